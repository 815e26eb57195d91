"""Histories of the same log file on several replicas: where they part, who is right, and who is
accused of what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path

import numpy as np
import pytest

from ledgermq.audit.checks import histories
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.histories import (
    Table,
    agree_by_majority,
    diverge,
    entry_place,
    first_apart,
    read_table,
)
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.rules import Flaw
from tests.audit.altering import alter
from tests.audit.damage_cases import flip
from tests.audit.log_writer import Writer
from tests.audit.small_logs import FILE_BYTES, opened, place_of, write

ENTRIES = 8


def damage(writer: Writer, *indexes: int) -> None:
    """Change a byte of these entries' bodies."""
    for index in indexes:
        path, _, at = place_of(writer, index)
        flip(path, at + 140)


COMMON = [(f"a{number}", 1) for number in range(ENTRIES)]


def test_history_table_holds_chain_and_place_of_intact_entries(tmp_path: Path) -> None:
    """Every entry of the file with its chain CRC and place, none that the replica does not hold,
    and no chain CRC of a damaged one."""
    for number, (broken, mark) in enumerate(product(((), (1,), (3,), (4,), (5,), (6,)), (0, 3, 5))):
        writer = write(
            tmp_path, f"n{number}", [("a" * 400, 1), *COMMON[:6]], clean=False, mark=mark
        )
        damage(writer, *broken)
        one = opened(writer)
        intact = max(index for index in range(7) if index not in broken)
        held = min([intact, *(index - 1 for index in broken if index > mark)])
        assert (
            one.held,
            [len(range(r.first_index or 0, (r.last_index or 0) + 1)) for r in one.filled],
        ) == (held, [1, 3, 3])
        for report in one.filled:
            ones = [
                each
                for each in writer.entries
                if each.pos // FILE_BYTES * FILE_BYTES == report.base and each.index <= held
            ]
            table = read_table(one, report)
            assert table.first == report.first_index
            assert table.chain.tolist() == [
                -1 if each.index in broken else each.chain for each in ones
            ]
            assert table.offset.tolist() == [each.pos - report.base for each in ones]
            assert table.size.tolist() == [each.size for each in ones]


def test_a_damaged_first_index_makes_no_table_longer_than_its_file(tmp_path: Path) -> None:
    one = opened(write(tmp_path, "n1", COMMON))
    for first in (-(1 << 40), -(1 << 40) - 1):
        table = read_table(one, replace(one.filled[1], first_index=first))
        assert (table.chain.tolist(), table.offset.tolist(), table.size.tolist()) == (
            [-1] * (FILE_BYTES // 48),
        ) * 3


def test_file_without_a_known_index_begins_at_entry_zero(tmp_path: Path) -> None:
    table = read_table(
        one := opened(write(tmp_path, "n1", COMMON)),
        replace(one.filled[0], first_index=None, last_index=None),
    )
    assert (table.first, len(table.chain)) == (0, 1)


def test_where_two_columns_part() -> None:
    """At the first place behind all equal ones where both are known and differ."""
    columns = list(product((-1, 0, 1), repeat=3))
    for own, theirs in product(columns, columns):
        pairs = [
            (at, a == b)
            for at, (a, b) in enumerate(zip(own, theirs, strict=True))
            if min(a, b) >= 0
        ]
        equal = max((at for at, same in pairs if same), default=-1)
        expected = next((at for at, same in pairs if not same and at > equal), None)
        assert first_apart(np.array(own), np.array(theirs)) == expected, (own, theirs)


History = tuple[str, int, int, int]
"""What follows the common entries, from which one on, how many entries there are, and how many are
known as committed. The text `t` is of another term."""
HISTORIES: list[History] = [
    ("a", 8, 8, 8),
    ("a", 8, 4, 4),
    ("b", 5, 7, 3),
    ("t", 4, 8, 4),
    ("t", 6, 8, 7),
]


def texts_of(history: History) -> list[tuple[str, int]]:
    text, begin, length, _ = history
    return [
        (f"{text}{number}", 2 if text == "t" else 1) if number >= begin else COMMON[number]
        for number in range(length)
    ]


class Group:
    """Replicas n1, n2, … of which each is written with every history once."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._known: dict[tuple[str, History], tuple[Writer, Replica]] = {}

    def replica(self, name: str, history: History) -> tuple[Writer, Replica]:
        if (name, history) not in self._known:
            base = self._base / "-".join(map(str, history))
            writer = write(base, name, texts_of(history), committed=history[3] - 1)
            self._known[name, history] = writer, opened(writer)
        writer, one = self._known[name, history]
        one.flaws, one.stale_from = [], None
        return writer, one

    def judged(
        self, histories: Sequence[History], learners: int = 0, strangers: int = 0
    ) -> tuple[GroupResult, list[Writer]]:
        """The last ones are learners, and behind them replicas that no record names."""
        ones = [self.replica(f"n{number}", history) for number, history in enumerate(histories)]
        names = tuple(one.name for _, one in ones)
        voters = names[: len(names) - learners - strangers]
        result = GroupResult(
            "g1",
            [one for _, one in ones],
            voters=voters,
            learners=names[len(voters) : len(names) - strangers],
        )
        agree_by_majority(result)
        return result, [writer for writer, _ in ones]


def agreed(histories: Sequence[History], majority: int) -> list[tuple[str, int]]:
    """The longest beginning that a majority has."""
    texts = [texts_of(history) for history in histories]
    found = [
        one[:length]
        for one in texts
        for length in range(1, len(one) + 1)
        if sum(each[:length] == one[:length] for each in texts) >= majority
    ]
    return max(found, key=len, default=[])


@pytest.mark.parametrize("voters", [1, 3])
def test_a_replica_is_accused_of_the_first_entry_that_the_majority_has_otherwise(
    tmp_path: Path, voters: int
) -> None:
    """Or holds what is left of a deposed leader, if that entry is of another term and the replica
    never knew it as committed."""
    group = Group(tmp_path)
    for chosen in combinations_with_replacement(HISTORIES, voters):
        for learners in ([], HISTORIES[2:3]) if voters == 1 else ([],):
            histories = [*chosen, *learners]
            result, writers = group.judged(histories, learners=len(learners))
            right = agreed(chosen, voters // 2 + 1)
            assert result.compared == (len(right) - 1 if right else None), histories
            divergent: dict[str, int] = {}
            for one, writer, history in zip(result.replicas, writers, histories, strict=True):
                own = texts_of(history)
                at = next(
                    (at for at in range(min(len(own), len(right))) if own[at] != right[at]), None
                )
                stale = at is not None and own[at][1] != right[at][1] and at > history[3] - 1
                assert one.stale_from == (at if stale else None), (histories, one.name)
                if at is None or stale:
                    assert one.flaws == []
                    continue
                divergent[one.name] = at
                theirs = next(
                    w
                    for w, h in zip(writers, histories, strict=True)
                    if texts_of(h)[: len(right)] == right
                )
                _, file, start = place_of(writer, at)
                own_entry = writer.entries[at]
                proof = (
                    f"the chain CRC is {own_entry.chain:08x}, that of the majority"
                    f" {theirs.entries[at].chain:08x}"
                )
                assert one.flaws == [
                    Flaw("replica.divergence", file, at, start, start + own_entry.size, proof)
                ]
            assert result.divergent == divergent


def test_only_voters_make_a_majority_and_only_members_are_judged(tmp_path: Path) -> None:
    group, (whole, short, other, *_) = Group(tmp_path), HISTORIES
    result, _ = group.judged([whole, whole, other, other, other], learners=2)
    assert (result.compared, result.divergent) == (7, {"n2": 5, "n3": 5, "n4": 5})
    result, _ = group.judged([whole, whole, short, other, other], learners=1, strangers=1)
    assert (result.compared, result.divergent) == (7, {"n3": 5})
    result, _ = group.judged([whole, short, short, whole, whole], learners=2)
    assert (result.compared, result.divergent) == (3, {})
    result, _ = group.judged([whole, short, whole], learners=1)
    assert (result.compared, result.divergent) == (3, {})


def test_duplicated_directory_is_not_counted_in_a_majority(tmp_path: Path) -> None:
    group, (whole, _, other, *_) = Group(tmp_path), HISTORIES
    ones = [
        group.replica(name, history)[1]
        for name, history in (("n1", whole), ("n2", other), ("n3", other))
    ]
    for rule, expected in (("identity.twice", (4, {})), ("identity.agree", (6, {"n1": 5}))):
        for one in ones:
            one.flaws, one.stale_from = [], None
        ones[2].flaws = [Flaw(rule, "g1/identity.json", None, 0, 0, "p")]
        result = GroupResult("g1", ones, voters=("n1", "n2", "n3"))
        agree_by_majority(result)
        assert (result.compared, result.divergent) == expected


def three(base: Path, texts: Sequence[tuple[str, int]] = COMMON) -> list[Replica]:
    return [opened(write(base, name, texts)) for name in ("n1", "n2", "n3")]


def compared(ones: Sequence[Replica]) -> int | None:
    """Up to which entry they agree, of whom nobody is accused."""
    result = GroupResult("g1", list(ones), voters=("n1", "n2", "n3"))
    agree_by_majority(result)
    assert result.divergent == {} and all(one.flaws == [] for one in ones)
    return result.compared


def test_entries_that_a_majority_holds_count(tmp_path: Path) -> None:
    """Not those of a deposed leader."""
    ones = three(tmp_path)
    for held in (5, 6, 7):
        for one in ones[1:]:
            one.reports[1].last_intact_index, one.reports[2].last_intact_index = (
                5,
                held if held > 5 else -1,
            )
        assert compared(ones) == held
    assert compared([replace(one, stale_from=9) for one in ones]) is None


def test_files_that_only_a_minority_has_are_passed_over(tmp_path: Path) -> None:
    ones = three(tmp_path)
    for one in ones[1:]:
        one.reports = one.reports[1:]
    assert compared(ones) == 7


def test_files_with_equal_ends_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(histories, "read_table")
    assert compared(three(tmp_path / "many")) == 7
    assert compared(three(tmp_path / "one", COMMON[:1])) == 0


def test_a_chain_crc_may_be_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = three(tmp_path)
    monkeypatch.setattr(
        histories,
        "read_table",
        lambda _one, report: Table(report.first_index, np.zeros(3, np.int64), *[np.array([0])] * 2),
    )
    ones[0].reports = ones[0].reports[:1]
    ones[0].reports[0].end += 1
    ones[1].reports, ones[2].reports = ones[1].reports[:1], ones[2].reports[:1]
    assert compared(ones) == 2


def swapped(texts: list[tuple[str, int]]) -> None:
    texts[4:6] = [texts[5], texts[4]]


def dropped(texts: list[tuple[str, int]]) -> None:
    del texts[4]


def added(texts: list[tuple[str, int]]) -> None:
    texts.insert(4, ("more", 1))


def changed(texts: list[tuple[str, int]]) -> None:
    texts[4] = ("other", 1)


@pytest.mark.parametrize(
    ("change", "rule"),
    [(swapped, "reordered"), (dropped, "missing"), (added, "extra"), (changed, "divergence")],
)
def test_how_a_history_differs(
    tmp_path: Path, change: Callable[[list[tuple[str, int]]], None], rule: str
) -> None:
    texts = [*COMMON]
    change(texts)
    ones = [
        opened(write(tmp_path, name, each))
        for name, each in (("n1", COMMON), ("n2", COMMON), ("n3", texts))
    ]
    result = GroupResult("g1", ones, voters=("n1", "n2", "n3"))
    agree_by_majority(result)
    assert ([flaw.rule for flaw in ones[2].flaws], result.divergent) == (
        [f"replica.{rule}"],
        {"n3": 4},
    )


def test_an_altered_entry_is_no_other_history(tmp_path: Path) -> None:
    """The replicas have equal chain words behind it. Up to fifteen damaged entries at the end hide
    none of these words, more do."""
    texts = [*COMMON[:6], *[(f"a{number}", 1) for number in range(6, 24)]]
    writers = [write(tmp_path, name, texts) for name in ("n1", "n2")]
    alter(writers[0], writers[0].entries[5], "body", ("record", "body", "chain"))
    ones = [opened(writer) for writer in writers]
    assert [index for report in ones[0].filled for index in report.damaged] == [6]
    tables = [read_table(one, one.filled[1]) for one in ones]
    for count, damaged, behind in product((0, 1, 15, 16), (0, 1), (None, 0, 1)):
        told = [
            replace(one, reports=[replace(report) for report in one.reports], flaws=[])
            for one in ones
        ]
        high = 23 if behind is None else 22
        told[damaged].reports[0].damaged = list(range(high + 1 - count, 24))
        if behind is not None:
            told[behind].stale_from = 23
        result = GroupResult("g1", told, voters=("n1", "n2", "n3"))
        diverge(result, told[0], told[0].filled[1], tables[0], told[1], tables[1], 5)
        assert result.divergent == ({} if count < 16 else {"n1": 5}), (count, damaged, behind)


def test_the_place_of_an_entry(tmp_path: Path) -> None:
    """From the end of the entry before it in its file; the end of the log for what it does not
    have, or cannot be read."""
    writer = write(tmp_path, "n1", COMMON)
    one = opened(writer)
    ends = {each.index: each.pos % FILE_BYTES + each.size for each in writer.entries}
    end = place_of(writer, 7)[1], ends[7], ends[7]
    for index in range(-1, ENTRIES + 1):
        expected = end
        if 0 <= index < ENTRIES:
            _, file, at = place_of(writer, index)
            expected = (file, at, ends[index])
        assert entry_place(one, index) == expected, index
    for broken in range(ENTRIES):
        one.reports[0].damaged = [broken]
        assert entry_place(one, broken) == end
        if broken + 1 < ENTRIES:
            _, file, _ = place_of(writer, broken + 1)
            assert entry_place(one, broken + 1) == (file, 0, ends[broken + 1])
    one.reports = []
    assert entry_place(one, 3) == (f"g1/dledger-n1/data/{0:020d}", 0, 0)
