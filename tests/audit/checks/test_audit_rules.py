"""Findings as values: how they are joined, told and counted, in every small case."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.rules import NEXT_STEP, RULE_STEP, RULES, Finding, Flaw, coalesce

ONE = Flaw("entry.pos", "f", 3, 30, 34, "p", measures=(("g", 1, 2),))


def at(index: int | None, **changes: object) -> Flaw:
    """A flaw of four bytes at this entry."""
    start = 10 * (0 if index is None else index)
    return replace(ONE, index=index, byte_from=start, byte_to=start + 4, **changes)  # type: ignore[arg-type]


OTHERS: list[dict[str, object]] = [
    {"rule": "entry.body"},
    {"file": "h"},
    {"torn": True},
    {"measures": ()},
]


def test_flaws_of_consecutive_entries_become_one() -> None:
    """In the order in which they are found; the number of the others is told."""
    for indexes in (
        indexes for count in range(5) for indexes in product((3, 4, 5, 7), repeat=count)
    ):
        runs: list[list[int]] = []
        for index in indexes:
            if runs and index == runs[-1][-1] + 1:
                runs[-1].append(index)
            else:
                runs.append([index])
        proofs = [
            f"p; and {len(run) - 1} more entries in a row" if len(run) > 1 else "p" for run in runs
        ]
        expected = [
            replace(at(run[0]), byte_to=10 * run[-1] + 4, proof=proof)
            for run, proof in zip(runs, proofs, strict=True)
        ]
        assert coalesce([at(index) for index in indexes], 10) == expected


@pytest.mark.parametrize("other", OTHERS)
def test_only_flaws_of_the_same_kind_become_one(other: dict[str, object]) -> None:
    """Flaws of another kind between them are no obstacle, and keep their places."""
    flaws = [at(3), at(9, **other), at(4), at(5, **other), at(10, **other)]
    assert coalesce(flaws, 10) == [
        replace(at(3), byte_to=44, proof="p; and 1 more entries in a row"),
        at(9, **other),
        at(5, **other),
        at(10, **other),
    ]
    assert coalesce([at(3), at(4, **other)], 10) == [at(3), at(4, **other)]


def test_flaws_without_an_entry_stay_alone() -> None:
    """And end no run."""
    assert coalesce([at(None), at(None), at(3), at(None), at(4)], 10) == [
        at(None), at(None), replace(at(3), byte_to=44, proof="p; and 1 more entries in a row"), at(None),
    ]  # fmt: skip


def test_bytes_of_a_run_may_lie_in_any_order() -> None:
    joined = coalesce(
        [replace(at(3), byte_from=50, byte_to=90), replace(at(4), byte_from=40, byte_to=60)], 10
    )
    assert [(flaw.byte_from, flaw.byte_to) for flaw in joined] == [(40, 90)]


@pytest.mark.parametrize("limit", range(7))
def test_beyond_the_limit_one_flaw_stands_for_a_rule_and_a_file(limit: int) -> None:
    """Of the first entry that is known, over all bytes, torn only if all are, and compared with
    nothing."""
    flaws = [
        at(9, torn=True),
        at(5),
        at(None),
        at(7, torn=True),
        replace(at(1, torn=True), file="h"),
        replace(at(None), file="i"),
    ]
    told = coalesce(flaws, limit)
    assert told[: min(limit, 6)] == flaws[:limit]
    rest = flaws[limit:]
    expected = []
    for file in dict.fromkeys(flaw.file for flaw in rest):
        same = [flaw for flaw in rest if flaw.file == file]
        end = max(flaw.byte_to for flaw in same)
        expected.append(
            Flaw(
                "entry.pos",
                file,
                min((flaw.index for flaw in same if flaw.index is not None), default=None),
                min(flaw.byte_from for flaw in same),
                end,
                f"p; and {len(same) - 1} more places up to byte {end}",
                torn=all(flaw.torn for flaw in same),
            )
        )
    assert told[limit:] == expected


@pytest.mark.parametrize("index", [None, 7])
def test_how_a_finding_is_told(index: int | None) -> None:
    finding = Finding(RULES["entry.pos"].klass, "n1", "g1", replace(ONE, index=index))
    entry = "-" if index is None else "7"
    assert finding.text == f"{finding.klass} n1 f entry={entry} bytes=30-34 rule=entry.pos"
    assert finding.as_json() == {
        "class": finding.klass, "replica": "n1", "group": "g1", "file": "f", "index": index,
        "byte_from": 30, "byte_to": 34, "rule": "entry.pos", "proof": "p",
    }  # fmt: skip


def test_every_rule_has_a_next_step() -> None:
    """Its own, or that of its class."""
    for rule, known in RULES.items():
        finding = Finding(known.klass, "n1", "g1", replace(ONE, rule=rule))
        assert (
            finding.next_step == RULE_STEP.get(rule, NEXT_STEP[known.klass]) and finding.next_step
        )


@pytest.mark.parametrize(
    ("voters", "majority"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)]
)
def test_proving_copies_are_a_voter_majority_or_the_confirmed_history(
    voters: int, majority: int
) -> None:
    """Those of a majority of the voters, or that of the one with the confirmed history."""
    names = tuple("abcdefg"[:voters])
    result = GroupResult("g1", [], voters=names)
    assert (result.majority, result.proving) == (majority, names)
    result.proven_by = "c"
    assert result.proving == ("c",)
