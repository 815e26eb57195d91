"""Groups with appointed masters: whose record of confirmed entries counts, who left that history,
and which record of a master is odd."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ledgermq.audit.checks.confirmed import agree_by_record, check_leaders, gives_up, note_given_up
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.rules import Flaw
from tests.audit.small_logs import Texts, opened, place_of, write

Known = tuple[str, int]
"""A history of `HISTORIES`, and how many of its entries a replica knows as confirmed."""
COMMON = [(f"a{number}", 1) for number in range(8)]
HISTORIES: dict[str, Texts] = {
    "whole": COMMON,
    "short": COMMON[:5],
    "tail": [*COMMON[:5], ("b5", 1), ("b6", 1)],
    "later": [*COMMON[:5], *[(f"c{number}", 2) for number in range(5, 8)]],
    "latest": [*COMMON[:4], *[(f"d{number}", 3) for number in range(4, 8)]],
    "early": [*COMMON[:3], *[(f"e{number}", 1) for number in range(3, 8)]],
}


class Group:
    """Writes every replica once."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._known: dict[tuple[str, Known], Replica] = {}

    def replica(self, name: str, known: Known) -> Replica:
        if (name, known) not in self._known:
            history, confirmed = known
            writer = write(
                self._base / f"{history}-{confirmed}",
                name,
                HISTORIES[history],
                committed=confirmed - 1,
            )
            self._known[name, known] = opened(writer)
        one = self._known[name, known]
        return replace(one, flaws=[], reports=[replace(report) for report in one.reports])

    def of(self, *known: Known) -> GroupResult:
        ones = [self.replica(f"n{number}", each) for number, each in enumerate(known)]
        return GroupResult("g1", ones, rule="in-sync", voters=tuple(one.name for one in ones))

    def judged(self, *known: Known) -> GroupResult:
        result = self.of(*known)
        agree_by_record(result)
        return result


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    return Group(tmp_path_factory.mktemp("group"))


def outcome(result: GroupResult) -> tuple[int | None, str | None, int | None]:
    return result.compared, result.proven_by, result.recorded


def left(result: GroupResult) -> dict[str, tuple[str, int | None]]:
    """Replica → what it is accused of, or `stale`, and from which entry on."""
    found: dict[str, tuple[str, int | None]] = {
        one.name: ("stale", one.stale_from) for one in result.replicas if one.stale_from is not None
    }
    found |= {one.name: (flaw.rule, flaw.index) for one in result.replicas for flaw in one.flaws}
    assert result.divergent == {
        name: index for name, (rule, index) in found.items() if rule.startswith("replica.")
    }
    return found


DIVERGENCE = "replica.divergence"
CASES: list[
    tuple[
        Sequence[Known],
        tuple[int | None, str | None, int | None],
        Mapping[str, tuple[str, int | None]],
    ]
] = [
    # Nobody recorded anything.
    ([("whole", 0), ("tail", 0), ("later", 0)], (None, None, None), {}),
    ([], (None, None, None), {}),
    # One entry is enough, and the first of two with equal records proves it.
    ([("whole", 0), ("whole", 1), ("tail", 1)], (0, "n1", 0), {}),
    ([("whole", 4), ("whole", 6), ("short", 5)], (5, "n1", 5), {}),
    ([("whole", 6), ("whole", 6), ("whole", 8)], (7, "n2", 7), {}),
    ([("whole", 6), ("short", 5), ("whole", 6)], (5, "n0", 5), {}),
    # What lies behind the confirmed entries is no matter.
    ([("whole", 5), ("tail", 5), ("later", 5)], (4, "n0", 4), {}),
    (
        [("whole", 6), ("tail", 5), ("later", 5)],
        (5, "n0", 5),
        {"n1": (DIVERGENCE, 5), "n2": ("stale", 5)},
    ),
    # A record of a higher epoch counts more than one of a higher index.
    (
        [("whole", 5), ("later", 6), ("whole", 5)],
        (5, "n1", 5),
        {"n0": ("stale", 5), "n2": ("stale", 5)},
    ),
    ([("whole", 8), ("later", 6)], (5, "n1", 5), {"n0": (DIVERGENCE, 5)}),
    ([("later", 8), ("latest", 5)], (4, "n1", 4), {"n0": (DIVERGENCE, 4)}),
    # Unless two replicas, and at least half of all, recorded another one.
    ([("later", 6), ("whole", 6), ("whole", 8)], (7, "n2", 7), {"n0": (DIVERGENCE, 5)}),
    (
        [("later", 6), ("whole", 6), ("whole", 5)],
        (5, "n0", 5),
        {"n1": (DIVERGENCE, 5), "n2": ("stale", 5)},
    ),
    (
        [("later", 6), ("whole", 6), ("whole", 6), ("short", 5)],
        (5, "n1", 5),
        {"n0": (DIVERGENCE, 5)},
    ),
    (
        [("later", 6), ("whole", 6), ("whole", 6), ("short", 5), ("short", 5)],
        (5, "n0", 5),
        {"n1": (DIVERGENCE, 5), "n2": (DIVERGENCE, 5)},
    ),
    # If each contradicts each, the highest epoch stands.
    (
        [("later", 7), ("latest", 6), ("early", 8)],
        (5, "n1", 5),
        {"n0": (DIVERGENCE, 4), "n2": (DIVERGENCE, 3)},
    ),
]


@pytest.mark.parametrize(("known", "expected", "accused"), CASES)
def test_confirmed_history_is_that_of_the_recorded_reference(
    group: Group,
    known: Sequence[Known],
    expected: tuple[int | None, str | None, int | None],
    accused: Mapping[str, tuple[str, int | None]],
) -> None:
    result = group.judged(*known)
    assert (outcome(result), left(result)) == (expected, accused)


def test_a_damaged_record_counts_less_than_an_intact_one(group: Group) -> None:
    """Though it is of a later entry: nothing tells its epoch."""
    result = group.of(("whole", 6), ("early", 5))
    result.replicas[0].reports[1].damaged = [5]
    agree_by_record(result)
    assert (outcome(result), left(result)) == ((4, "n1", 4), {"n0": (DIVERGENCE, 3)})


def test_only_members_with_one_directory_have_a_say(group: Group) -> None:
    """Learners have; no replica that no record names, nor one that exists twice."""
    for rule, named, compared in (
        ("identity.agree", ("n0", "n1"), 7),
        ("identity.agree", ("n0",), 5),
        ("identity.twice", ("n0", "n1"), 5),
    ):
        for learner in (False, True):
            result = group.of(("whole", 6), ("whole", 8))
            result.voters, result.learners = (named[:1], named[1:]) if learner else (named, ())
            result.replicas[1].flaws = [Flaw(rule, "g1/identity.json", None, 0, 0, "p")]
            agree_by_record(result)
            assert result.compared == compared


def test_a_later_record_counts_if_a_replica_holds_the_entry(group: Group) -> None:
    """The first that does; one whose log ends, whole, before what it recorded is no witness."""
    for recorded, holder, whole in product((4, 5, 6, 8), ("whole", "tail"), (False, True)):
        result = group.of(("short", 5), (holder, 5), ("whole", 0))
        one = result.replicas[0]
        one.commit, one.clean = recorded, whole
        claimed = recorded if not whole or recorded <= 4 else 4
        agree_by_record(result)
        held = 7 if holder == "whole" else 6
        proven = (
            "n0" if claimed <= 4 else "n1" if held >= claimed else "n2" if claimed <= 7 else "n0"
        )
        expected = (claimed if proven != "n0" else 4, proven, claimed)
        assert (outcome(result), bool(one.flaws)) == (expected, claimed == 8), (
            recorded,
            holder,
            whole,
        )


def test_recorded_entry_without_a_holder_is_lost(group: Group) -> None:
    """Each replica that recorded it is named, with the end of its log; not while a replica is
    missing, or its node could not be heard."""
    for missing, awaited, lost in product((), ("n9",), repeat=1) and product(
        ((), ("n9",)), (None, 9), ({}, {"n9": "why"})
    ):
        result = group.of(("short", 5), ("short", 5), ("short", 5), ("short", 5))
        result.missing, result.lost = missing, lost
        result.replicas[3].awaited = awaited
        for one, commit in zip(result.replicas, (5, 7, 4, 3), strict=True):
            one.commit, one.clean = commit, False
        agree_by_record(result)
        assert outcome(result) == (4, "n0", 7)
        if missing or awaited or lost:
            assert left(result) == {}
            continue
        for one, recorded in zip(result.replicas, (True, True, False, False), strict=True):
            end = one.filled[-1].end
            proof = "index 7 was recorded as confirmed, no replica holds it whole, this one holds 4"
            assert (
                one.flaws
                == [Flaw("commit.lost", one.filled[-1].file, 5, end, end, proof)] * recorded
            )


def test_a_lost_entry_within_the_log_is_at_its_end(group: Group) -> None:
    """Where a replica holds later entries, but not the one behind those that it holds."""
    result = group.of(("whole", 5))
    one = result.replicas[0]
    one.commit, one.clean, one.mark, one.reports[1].damaged = 7, False, None, [5]
    agree_by_record(result)
    end = one.filled[-1].end
    proof = "index 7 was recorded as confirmed, no replica holds it whole, this one holds 4"
    assert one.flaws == [Flaw("commit.lost", one.filled[-1].file, 5, end, end, proof)]


def test_log_whole_before_its_own_record_has_no_divergence(group: Group) -> None:
    result = group.of(("short", 5))
    result.replicas[0].commit = 8
    agree_by_record(result)
    assert (outcome(result), left(result)) == ((4, "n0", None), {})


def test_replica_outside_the_history_proves_no_record(group: Group) -> None:
    for known in (("tail", 6), ("whole", 5)):
        result = group.of(("later", 6), known)
        result.replicas[1].commit, result.replicas[1].clean = (
            {"tail": 9, "whole": 4}[known[0]],
            False,
        )
        agree_by_record(result)
        assert outcome(result) == (5, "n0", 5)


def forced(kept: int, epoch: int = 2) -> tuple[int, str]:
    return 6, json.dumps({"epoch": epoch, "kept": kept, "node": "n0"})


def test_forced_decision_outweighs_records_of_what_it_gave_up(group: Group) -> None:
    """A recorded decision of the reference's log that kept nothing from the entry on. It outweighs
    the records of those who had more; who recorded less left an unconfirmed tail."""
    for record, confirmed, count in product(
        (None, forced(4), forced(3), forced(5), forced(4, 1)), (5, 6, 8), (1, 2)
    ):
        result = group.of(("later", 7), *[("whole", confirmed)] * count)
        if record is not None:
            result.replicas[0].reports[1].elections = [(5, "[]"), (5, "no JSON"), record]
        agree_by_record(result)
        names = [f"n{number + 1}" for number in range(count)]
        if confirmed > 5 and record == forced(4):
            text = "given up when an operator forced n0 to be master of epoch 2"
            assert (left(result), result.given_up) == (
                dict.fromkeys(names, ("stale", 5)),
                dict.fromkeys(names, text),
            )
        else:
            accused = dict.fromkeys(names, ("stale", 5) if confirmed == 5 else (DIVERGENCE, 5))
            accused = {"n0": (DIVERGENCE, 5)} if confirmed > 5 and count == 2 else accused
            assert (left(result), result.given_up) == (accused, {})


def test_histories_part_where_both_tables_have_entries(group: Group) -> None:
    """Only entries that both tables have are compared."""
    for who, first in product((0, 1), (3, 4, 5)):
        result = group.of(("latest", 6), ("whole", 5))
        result.replicas[who].reports[1].first_index = first
        agree_by_record(result)
        assert left(result) == {"n1": (DIVERGENCE, 4) if first < 5 else ("stale", 5)}, (who, first)
    for who, first in product((0, 1), (6, 7)):
        result = group.of(("latest", 6), ("whole", 5))
        result.replicas[who].reports[1].first_index = first
        agree_by_record(result)
        assert left(result) == {}
        result = group.of(("latest", 8), ("whole", 5))
        result.replicas[who].reports[1].first_index = first
        agree_by_record(result)
        assert left(result) == {"n1": ("stale", 6)}


def test_files_that_the_reference_does_not_have_are_not_compared(group: Group) -> None:
    result = group.of(("latest", 6), ("early", 5))
    result.replicas[0].reports = result.replicas[0].reports[1:]
    agree_by_record(result)
    assert left(result) == {"n1": (DIVERGENCE, 3)}


def test_a_damaged_file_is_compared_though_its_ends_are_equal(group: Group) -> None:
    """And files with equal ends are not read again."""
    for who, damaged in product((0, 1), (False, True)):
        result = group.of(("latest", 6), ("whole", 5))
        for one in result.replicas:
            one.reports[1].last_chain = 1
            one.reports[2].entries = 0
        if damaged:
            result.replicas[who].reports[1].damaged = [3]
        agree_by_record(result)
        assert left(result) == ({"n1": (DIVERGENCE, 4)} if damaged else {})


def test_which_record_gives_up_an_entry() -> None:
    for kept, epoch, index, own in product(
        (None, "3", 2, 3, 4), (None, "2", 0, 1, 2), (3, 4, 5), (-1, 0, 1, 2)
    ):
        value = {"kept": kept, "epoch": epoch}
        expected = (
            isinstance(kept, int)
            and isinstance(epoch, int)
            and kept == index - 1
            and 0 <= own < epoch
        )
        assert gives_up(value, index, own) == expected
    assert not gives_up({"epoch": 2}, 4, 1) and not gives_up({"kept": 3}, 4, 1)


def test_given_up_entries_are_noted_with_master_and_epoch() -> None:
    one = Replica("n1", "n1/g1", "g1", "n1", "dledger-n1")
    result = GroupResult("g1", [one])
    note_given_up(result, one, 5, {"node": "n2", "epoch": 3})
    assert one.stale_from == 5
    assert result.given_up == {"n1": "given up when an operator forced n2 to be master of epoch 3"}


FILE = "g1/dledger-n1/data/00000000000000000000"


def telling(name: str, *records: tuple[int, object]) -> Replica:
    one = Replica("n", "n/g1", "g1", name, "dledger-n1")
    bodies = [
        (index, each if isinstance(each, str) else json.dumps(each)) for index, each in records
    ]
    one.reports = [LogReport(FILE, 0, 100, 1, end=90, elections=bodies)]
    return one


def leads(leader: object, term: object = 2) -> dict[str, object]:
    return {"v": 1, "term": term, "leader": leader}


def flaws_of(*replicas: Replica) -> list[list[Flaw]]:
    check_leaders(GroupResult("g1", list(replicas)))
    return [one.flaws for one in replicas]


def test_a_term_begins_with_the_same_record_everywhere() -> None:
    """Where it exists. Named is who has another one than most; if two are equally frequent, all
    are."""
    for told in product(((5, "a"), (6, "a"), (5, "b"), None), repeat=3):
        records = Counter(each for each in told if each is not None)
        ranked = records.most_common()
        usual = (
            ranked[0][0] if len(ranked) == 1 or (ranked and ranked[0][1] > ranked[1][1]) else None
        )
        found = flaws_of(
            *[
                telling(f"n{at}", *[] if each is None else [(each[0], leads(each[1]))])
                for at, each in enumerate(told)
            ]
        )
        for own, flaws in zip(told, found, strict=True):
            if own is None or len(ranked) < 2 or own == usual:
                assert flaws == [], told
                continue
            others = " and ".join(
                f"{leader} with entry {at}"
                for at, leader in sorted(records, key=str)
                if (at, leader) != own
            )
            proof = f"term 2 begins with {own[1]} as leader here, elsewhere with {others}"
            assert flaws == [Flaw("term.leader", FILE, own[0], 90, 90, proof)]


def test_each_term_counts_by_itself() -> None:
    """Also in the log of one replica."""
    good = [(3, leads("a", 1)), (5, leads("b", 2))]
    assert flaws_of(telling("n1", *good), telling("n2", *good)) == [[], []]
    found = flaws_of(telling("n0", *good), telling("n1", *good, (7, leads("b", 2))))
    assert [[flaw.index for flaw in flaws] for flaws in found] == [[], [7]]


NO_LEADERS: dict[str, object] = {
    "no JSON": "x",
    "a list": "[]",
    "nested": "[" * 100_000,
    "no leader": {"v": 1, "term": 2},
    "no term": {"v": 1, "leader": "c"},
    "leader is null": leads(None),
    "leader is a list": leads(["c"]),
    "leader is an object": leads({}),
    "term is a list": leads("c", [2]),
    "of a forced master": {"v": 1, "epoch": 2, "node": "c", "kept": 3, "leader": "c", "term": 2},
}


@pytest.mark.parametrize("told", NO_LEADERS.values(), ids=NO_LEADERS)
def test_records_without_a_leader_are_left_out_of_the_terms(told: object) -> None:
    """Also where others contradict each other."""
    ones = [
        telling("n1", (4, told), (5, leads("a"))),
        telling("n2", (5, leads("a")), (6, told)),
        telling("n3", (5, leads("b"))),
    ]
    found = flaws_of(*ones)
    assert [[(flaw.rule, flaw.index) for flaw in flaws] for flaws in found] == [
        [],
        [],
        [("term.leader", 5)],
    ]


def test_the_place_of_such_a_record(tmp_path: Path) -> None:
    writers = [write(tmp_path, name, COMMON) for name in ("n1", "n2", "n3")]
    ones = [opened(writer) for writer in writers]
    for one, leader in zip(ones, "aab", strict=True):
        one.reports[1].elections = [(4, json.dumps(leads(leader)))]
    _, _, (flaw,) = flaws_of(*ones)
    _, file, at = place_of(writers[2], 4)
    assert (flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (
        file,
        4,
        at,
        at + writers[2].entries[4].size,
    )
