"""Who belongs to a group, which directories contradict each other, which entries are lost and which
replicas only lag, in every small case."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from ledgermq.audit.checks import after_scan, evidence, histories
from ledgermq.audit.checks.backups import SUFFIX
from ledgermq.audit.checks.derived import QueueRun
from ledgermq.audit.checks.group import MAJORITY, GroupResult
from ledgermq.audit.checks.group_comparison import check_identities, compare, find_voters, note_lag
from ledgermq.audit.checks.histories import Table
from ledgermq.audit.checks.replica import Mark, Point, Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import BIT_ROT, Finding, Flaw
from ledgermq.audit.state.derive import StateReport

SIZE = 100
IDENTITY = {
    "cluster_id": "c",
    "log_id": "l",
    "data_file_bytes": SIZE,
    "index_file_bytes": 64,
    "consume_queue_file_bytes": 40,
}
NAMES = ("n1", "n2", "n3")
OTHER_RULE = "in-sync"


def replica(name: str, **fields: Any) -> Replica:
    one = Replica(
        f"/none/{name}", f"/none/{name}/g1", "g1", name, f"dledger-{name}", sizes=(SIZE, 64, 40)
    )
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def data_file(name: str, base: int) -> str:
    return f"g1/dledger-{name}/data/{base:020d}"


def identified(name: str, incarnation: str = "", **values: Any) -> Replica:
    return replica(name, identity={**IDENTITY, "incarnation": incarnation or f"{name}-1", **values})


def told(one: Replica) -> list[tuple[str, str]]:
    return [(flaw.rule, flaw.file) for flaw in one.flaws]


# ----------------------------------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("key", [*IDENTITY])
def test_directories_that_differ_from_most_others_are_told(key: str) -> None:
    """Of those without an identity nothing is told. If no value is the most frequent one, one of
    them counts."""
    for values in product((1, 2, 3, None), repeat=3):
        replicas = [
            replica(name) if value is None else identified(name)
            for name, value in zip(NAMES, values, strict=True)
        ]
        for one, value in zip(replicas, values, strict=True):
            if one.identity is not None:
                one.identity[key] = value
        check_identities(GroupResult("g1", replicas))
        wrong = [bool(one.flaws) for one in replicas]
        assert all(
            set(told(one)) <= {("identity.agree", "g1/identity.json")} and len(one.flaws) <= 1
            for one in replicas
        )
        ranked = Counter(value for value in values if value is not None).most_common()
        right = (
            ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None
        )
        if right is None:
            assert not ranked or sum(wrong) == 3 - values.count(None) - ranked[0][1]
        else:
            assert wrong == [value not in (None, right) for value in values]
            assert all(
                f"{key} is {value}, that of the other replicas is {right}" == one.flaws[0].proof
                for one, value in zip(replicas, values, strict=True)
                if one.flaws
            )


def test_of_two_files_of_a_directory_the_one_that_a_peer_shares_is_right() -> None:
    for node, own, peer in product(("c", "d", None), ("c", "d", None), ("c", "d", None)):
        one = replica("n1") if own is None else identified("n1", cluster_id=own)
        one.node = None if node is None else {"cluster_id": node}
        check_identities(
            GroupResult(
                "g1", [one, replica("n2") if peer is None else identified("n2", cluster_id=peer)]
            )
        )
        differ = None not in (node, own) and node != own
        found = [flaw for flaw in one.flaws if flaw.proof.startswith("node.json says")]
        assert len(found) == differ
        for flaw in found:
            assert flaw == Flaw(
                "identity.agree", "node.json" if peer == own else "g1/identity.json", None, 0, 0,
                f"node.json says cluster {node}, identity.json {own}",
            )  # fmt: skip


def test_a_replica_has_one_directory() -> None:
    """Every further one is told, with the first."""
    for names in product(NAMES, repeat=3):
        replicas = [replica(name, directory=f"/d{number}") for number, name in enumerate(names)]
        check_identities(GroupResult("g1", replicas))
        for number, one in enumerate(replicas):
            first = names.index(one.name)
            assert told(one) == [("identity.twice", "g1/identity.json")] * (first < number)
            assert all(flaw.proof.startswith(f"/d{first} is") for flaw in one.flaws)


def test_which_of_a_directory_and_its_peers_is_wrong() -> None:
    """What two or more peers met is right against the directory; a single one, or one that another
    peer contradicts, is wrong. A directory that was not admitted, or has no entry behind the first
    one, came back without its data."""
    for met, named, vouched, last in product(
        product(("old", "new", None), repeat=3), (False, True), (None, False, True), (-1, 0, 1)
    ):
        one = identified("n9", "new", cluster_id="c")
        one.vouched = vouched
        one.reports = [LogReport(data_file("n9", 0), 0, SIZE, 1, 0, last)]
        peers = [identified(name) for name in NAMES]
        for peer, known in zip(peers, met, strict=True):
            peer.peers = {} if known is None else {"n9": known}
        one.peers = {"n9": "old"}
        if named:
            peers[0].snapshot = {"members": {"voters": {"n9": {"incarnation": "new"}}}}
        result = GroupResult("g1", [*peers, one])
        check_identities(result)
        against = (
            []
            if named
            else [peer.name for peer, known in zip(peers, met, strict=True) if known == "old"]
        )
        returned = bool(against) and (vouched is False or (vouched is None and last <= 0))
        agreed = len(against) > 1 and "new" not in met
        assert result.returned == ({"n9"} if returned else set())
        assert [
            reason.startswith("group g1: n9 has come back without its data")
            for reason in result.reasons
        ] == [True] * returned
        assert told(one) == [("peers.incarnation", "g1/identity.json")] * (agreed and not returned)
        for peer in peers:
            wrong = peer.name in against and not agreed and not returned
            assert told(peer) == [("peers.incarnation", "g1/state/peers.json")] * wrong, (
                met,
                named,
                vouched,
                last,
            )


@pytest.mark.parametrize("role", ["voters", "learners"])
def test_directories_that_records_name_are_known(role: str) -> None:
    """Whatever else is in the record, and whatever cannot be read beside it."""
    for value in ({"incarnation": "new"}, {"incarnation": 1}, {}, None, "new"):
        body = json.dumps({role: {"n1": {}, "n9": value}})
        peer, one = identified("n1"), identified("n9", "new")
        peer.peers = {"n9": "old"}
        one.vouched = True
        peer.reports = [
            LogReport(
                data_file("n1", 0),
                0,
                SIZE,
                memberships=[(0, "{"), (1, "[]"), (2, body), (3, '{"voters": []}')],
            )
        ]
        check_identities(GroupResult("g1", [peer, one]))
        assert bool(peer.flaws) is (value != {"incarnation": "new"})


# -------------------------------------------------------------------------------------------------------------------- members


def record(*voters: str, learners: Sequence[str] = (), rule: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "voters": {name: {} for name in voters},
        "learners": {name: {} for name in learners},
    }
    return found if rule is None else {**found, "rule": rule}


def holding(
    name: str,
    *records: tuple[int, object],
    held: int = 9,
    members: object = None,
    begin: int = 0,
    **fields: Any,
) -> Replica:
    """A replica with entries 0 to 9 and these membership records."""
    one = replica(name, **fields)
    one.begin = Begin(begin, begin)
    one.snapshot = None if members is None else {"members": members}
    bodies = [
        (index, body if isinstance(body, str) else json.dumps(body)) for index, body in records
    ]
    one.reports = [
        LogReport(
            data_file(name, 0),
            0,
            SIZE,
            10,
            begin,
            9,
            memberships=bodies,
            last_intact_index=held,
            first_size=30,
        )
    ]
    return one


def members_of(*replicas: Replica, lost: dict[str, str] | None = None) -> GroupResult:
    result = GroupResult("g1", [*replicas], lost=lost or {})
    find_voters(result)
    return result


A, B = record("n1", "n2", "n3"), record("n1", "n2", "n4")


def test_the_last_record_that_most_replicas_hold_counts() -> None:
    """A record behind what a replica holds does not; and where the records were trimmed, the
    snapshot's list does."""
    for states in product(("old", "new", "not held", "trimmed", "snapshot"), repeat=3):
        replicas = []
        for name, state in zip(NAMES, states, strict=True):
            later = [(5, B)] if state in ("new", "not held") else []
            if state == "trimmed":
                replicas.append(holding(name, members=B, begin=3))
            else:
                kept = B if state == "snapshot" else None
                replicas.append(
                    holding(
                        name, (0, A), *later, held=4 if state == "not held" else 5, members=kept
                    )
                )
        result = members_of(*replicas)
        new = sum(state in ("new", "trimmed") for state in states)
        assert result.voters == (("n1", "n2", "n4") if new > 1 else NAMES), states
        assert result.rule == MAJORITY and not any(one.flaws for one in replicas)


def test_backups_determine_the_members_only_without_replicas() -> None:
    for mine, backups, trimmed in product((0, 1), (0, 1, 3), (False, True)):
        replicas = [holding("n1", (0, A))] * mine + [holding("n2")]
        for number in range(backups):
            name = f"m{number}{SUFFIX}"
            replicas.append(holding(name, members=B, begin=3) if trimmed else holding(name, (0, B)))
        result = members_of(*replicas)
        assert result.voters == (NAMES if mine else ("n1", "n2", "n4") if backups else ())
        assert any("no membership record" in reason for reason in result.reasons) is (
            not mine and not backups
        )


def test_the_first_entry_is_a_membership_record() -> None:
    """Unless it is damaged, trimmed or missing."""
    for index, first, damaged, begin in product((0, 1, None), (0, 1), ((), (0,), (1,)), (0, 3)):
        one = holding("n1", *([] if index is None else [(index, A)]), begin=begin)
        one.reports[0].damaged = list(damaged)
        one.reports[0].first_index = first
        one.reports.append(LogReport(data_file("n1", SIZE), SIZE, SIZE, 1, 0, 9, first_size=20))
        members_of(one)
        if index != 0 and 0 not in damaged and first == 0:
            assert [
                (flaw.rule, flaw.file, flaw.index, flaw.byte_from, flaw.byte_to)
                for flaw in one.flaws
            ] == [("membership.first", data_file("n1", 0), 0, 0, 30)]
        else:
            assert one.flaws == []
    empty = replica("n1")
    members_of(empty)
    assert empty.flaws == []


@pytest.mark.parametrize("body", ["{", "[]", "7", "{}", '{"voters": []}', '{"voters": {}}'])
def test_unreadable_membership_record_names_no_members(body: str) -> None:
    result = members_of(holding("n1", (0, body)))
    assert (result.voters, result.learners, result.rule, result.missing) == ((), (), MAJORITY, ())
    assert result.reasons == ["group g1: the membership record cannot be read"]


def test_members_by_name() -> None:
    """Older snapshots have a list of voters, older records neither learners nor a rule."""
    for members, wanted in (
        (["n2", "n1"], (("n1", "n2"), (), MAJORITY)),
        ({"voters": {"n2": {}, "n1": {}}}, (("n1", "n2"), (), MAJORITY)),
        ({"voters": {"n1": {}}, "learners": ["n2"]}, (("n1",), (), MAJORITY)),
        (record("n1", learners=("n3", "n2"), rule=OTHER_RULE), (("n1",), ("n2", "n3"), OTHER_RULE)),
    ):
        result = members_of(holding("n1", members=members, begin=3))
        assert (result.voters, result.learners, result.rule) == wanted


def test_with_appointed_masters_the_newest_record_counts() -> None:
    """Which one replica may hold alone, in its log or its snapshot."""
    new = record("n1", "n2", "n4", rule=OTHER_RULE)
    for rule, where in product((OTHER_RULE, MAJORITY), ("log", "snapshot", "not held", "behind")):
        first = (0, record(*NAMES, rule=rule))
        changed = {**new, "rule": rule}
        if where == "snapshot":
            one = holding("n1", first, members={**changed, "index": 5})
        else:
            one = holding(
                "n1",
                first,
                (5 if where != "behind" else 0, changed),
                held=4 if where == "not held" else 5,
            )
        older = [holding(name, first) for name in ("n2", "n3")]
        if where == "behind":
            older = [holding(name, first, (5, record(*NAMES, rule=rule))) for name in ("n2", "n3")]
        result = members_of(one, *older)
        assert result.voters == (
            ("n1", "n2", "n4") if rule == OTHER_RULE and where in ("log", "snapshot") else NAMES
        ), (rule, where)
    nobody = (5, record(rule=OTHER_RULE))
    assert (
        members_of(
            holding("n1", (0, A), nobody), holding("n2", (0, A)), holding("n3", (0, A))
        ).voters
        == NAMES
    )
    for members in ([*NAMES], {**A, "index": "5"}, {**A}):
        assert members_of(holding("n1", members=members, begin=3)).voters == NAMES


def test_former_members_are_those_of_records_before_the_one_in_force() -> None:
    first, later = record("n1", "n8", learners=("n9",)), record("n1", learners=("n2",))
    for records, former in (
        (((0, first), (5, later)), {"n8", "n9"}),
        (((0, later), (5, later)), set()),
        (((0, later), (3, first), (5, later)), {"n8", "n9"}),
        (((0, first), (3, later), (5, later)), {"n8", "n9"}),
    ):
        assert members_of(holding("n1", *records)).former == former
    ones = [
        holding("n1", (0, later), (5, later)),
        holding("n2", (0, later), (5, later)),
        holding("n3", (0, later), (5, first)),
    ]
    assert members_of(*ones).former == set(), (
        "the third has another record in its place, which never was in force"
    )
    unknown = [holding(name, members=["n1", "n2"], begin=3) for name in ("n1", "n2")]
    assert members_of(*unknown, holding("n3", (0, first))).former == set(), (
        "nobody knows since when the list is in force"
    )


def test_missing_voters_and_strangers_are_reasons_and_backups_notes() -> None:
    """Every missing voter and every replica that could not be read is a reason, and so is one that
    belongs to nobody. Backups, learners and former members are excused."""
    names = ("n1", f"n1{SUFFIX}", "n5", "n8", "x", f"x{SUFFIX}")
    replicas = [
        holding(name, (0, record("n1", "n8")), (5, record("n1", "n2", "n3", learners=("n5",))))
        for name in names
    ]
    result = members_of(*replicas, lost={"n3": "is lost", "y": "is gone"})
    assert (result.voters, result.former, result.missing) == (NAMES, {"n8"}, ("n2", "n3"))
    assert result.reasons == [
        "group g1: replica n2 was not given; audit its directory together with the others",
        "group g1: replica n3 is lost",
        "group g1: replica y is gone",
        "group g1: x is none of the voters n1, n2, n3; it was not compared",
    ]
    assert result.excused == {f"n1{SUFFIX}", f"x{SUFFIX}", "n5", "n8"}
    assert sorted(result.learners) == [f"n1{SUFFIX}", "n5", "n8", f"x{SUFFIX}"]
    words = {
        "n5": "is a learner",
        "n8": "was a member",
        f"n1{SUFFIX}": "is a backup",
        f"x{SUFFIX}": "is a backup",
    }
    assert [
        note.partition(": ")[2].split(",")[0].split(":")[0]
        for note in result.notes
        if SUFFIX not in note
    ] == [f"{name} {words[name]}" for name in ("n5", "n8")]
    assert sum("is a backup" in note for note in result.notes) == 2 and len(result.notes) == 4
    nobody = members_of(holding("n1"), holding(f"n2{SUFFIX}"))
    assert (nobody.notes, nobody.excused, nobody.learners) == ([], set(), ())


# ---------------------------------------------------------------------------------------------------------------------- lag


def ending(name: str, held: int, *, tails: Sequence[int | None] = (), **fields: Any) -> Replica:
    """A replica with five entries a file, up to an index; `tails`: from which entry on each file
    has only records of elections."""
    one = replica(name, **fields)
    for number, first in enumerate(range(0, held + 1, 5)):
        last = min(first + 4, held)
        tail = tails[number] if number < len(tails) else None
        one.reports.append(
            LogReport(
                data_file(name, 100 * number),
                100 * number,
                SIZE,
                last - first + 1,
                first,
                last,
                last_intact_index=last,
                election_tail=tail,
            )
        )
    return one


def failing(name: str, *, fails: bool = True) -> Finding:
    return Finding(BIT_ROT, name, "g1", Flaw("entry.body", data_file(name, 0), 1, 0, 1, "p"), fails)


LAGS = "start the cluster, let it catch up, audit again"


def test_a_replica_that_lags_is_a_reason_for_no_verdict() -> None:
    """Unless it failed, or is a backup or a former member. The number of entries and what it keeps
    are said."""
    for held, finding, backup, former in product(
        (2, 8, 9, 12), (None, "own", "excused", "another's"), (False, True), (False, True)
    ):
        name = f"n2{SUFFIX}" if backup else "n2"
        findings = {
            None: [], "own": [failing(name)], "excused": [failing(name, fails=False)], "another's": [failing("n1")]
        }[finding]  # fmt: skip
        result = GroupResult(
            "g1",
            [ending("n1", 9), ending(name, held), ending("n3", 8)],
            compared=9,
            findings=findings,
        )
        result.former = {name} if former else set()
        note_lag(result)
        lags = held < 9 and finding != "own" and not backup
        count = "1 entry" if held == 8 else f"{9 - held} entries"
        assert result.reasons == [
            f"group g1: {name} ends {count} before the compared index 9; {LAGS}"
        ] * (lags and not former) + [
            f"group g1: n3 ends 1 entry before the compared index 9; {LAGS}"
        ]
        assert result.notes == [
            f"group g1: {name} ends {count} before the compared index 9, as what a member leaves"
            " behind does"
        ] * (lags and former)
        assert result.excused == set()
    uncompared = GroupResult("g1", [ending("n1", 9), ending("n2", 3)])
    note_lag(uncompared)
    assert (uncompared.reasons, uncompared.notes) == ([], [])


def test_lagging_replica_with_a_stale_tail_is_reported() -> None:
    for stale, given_up in product((None, 7), (False, True)):
        one = ending("n2", 11, stale_from=stale)
        one.reports[1].last_intact_index = 6
        one.reports[2].last_intact_index = 6
        result = GroupResult("g1", [ending("n1", 9), one], compared=9)
        result.given_up = {"n2": "given up by force"} if given_up else {}
        note_lag(result)
        kept = (
            " and keeps 5 that were given up by force"
            if given_up
            else " and keeps 5 uncommitted of an older leader"
            if stale
            else ""
        )
        assert result.reasons == [
            f"group g1: n2 ends 3 entries before the compared index 9{kept}; {LAGS}"
        ]


def test_a_running_replica_that_had_not_reached_the_marker_is_no_proof() -> None:
    for held, awaited, failed in product((8, 9, 10), (None, 12), (False, True)):
        findings = [failing("n2")] if failed else []
        result = GroupResult(
            "g1",
            [ending("n1", 9), ending("n2", held, awaited=awaited)],
            compared=9,
            findings=findings,
        )
        note_lag(result)
        waits = held >= 9 and awaited is not None and not failed
        found = [reason for reason in result.reasons if "had reached entry" in reason]
        assert len(found) == waits and len(result.reasons) == (waits or (held < 9 and not failed))
        if waits:
            assert found[0].startswith(
                f"group g1: n2 had reached entry {held} when the marker, entry 12, was waited for;"
            )


def test_a_replica_that_lacks_only_records_of_elections_does_not_lag() -> None:
    """As a replica shows that has all compared entries, and no damage and no other history that
    could hide a message."""
    for held, first, second, third in product(
        (-1, 2, 3, 4, 5, 8), (None, 0, 1, 3, 4, 5), (None, 5, 6), (None, 10, 11)
    ):
        lacking = ending("n2", held)
        result = GroupResult(
            "g1", [lacking, ending("n1", 11, tails=(first, second, third))], compared=11
        )
        note_lag(result)
        tails = [tail for tail, last in ((first, 4), (second, 9), (third, 11)) if last > held]
        begins = [max(begin, held + 1) for begin, last in ((0, 4), (5, 9), (10, 11)) if last > held]
        only = all(
            tail is not None and tail <= begin for tail, begin in zip(tails, begins, strict=True)
        )
        assert result.excused == ({"n2"} if only else set()), (held, first, second, third)
        count = "1 entry" if held == 10 else f"{11 - held} entries"
        lacks = f"group g1: n2 ends {count} before the compared index 11"
        assert result.notes == [f"{lacks}; they hold election records only, no message"] * only
        assert result.reasons == [f"{lacks}; {LAGS}"] * (not only)


def test_lag_is_measured_against_an_intact_majority_replica() -> None:
    for damaged, divergent, second in product((False, True), (False, True), (False, True)):
        ahead = ending("n1", 9, tails=(5, 5))
        ahead.reports[0].damaged = [2] if damaged else []
        replicas = [
            ahead,
            ending("n2", 4),
            ending("n3", 9, tails=(5, 5)) if second else ending("n3", 8),
        ]
        result = GroupResult("g1", replicas, compared=9, divergent={"n1": 3} if divergent else {})
        note_lag(result)
        assert ("n2" in result.excused) is (second or not (damaged or divergent))
    messages = ending("n1", 9), ending("n2", 4), ending("n3", 9, tails=(5, 5))
    result = GroupResult("g1", [*messages], compared=9, divergent={"n1": 3})
    note_lag(result)
    assert result.excused == {"n2"}
    unknown = ending("n1", 9, tails=(5, 5))
    unknown.reports.append(LogReport(data_file("n1", 200), 200, SIZE, 1, None, None))
    result = GroupResult("g1", [unknown, ending("n2", 4)], compared=9)
    note_lag(result)
    assert result.excused == {"n2"}, "of an entry without a readable index nothing is known"


# --------------------------------------------------------------------------------------------------------------- comparison


def word(history: str) -> int:
    """The chain word behind a history."""
    chain = 7
    for letter in history.lower():
        chain = chain * 31 + ord(letter)
    return chain


class Logs:
    """Replicas without files. Each letter of a history is an entry in a file of its own: those of
    equal replicas have equal letters up to there, a capital is a damaged entry, and `z` is of
    another term."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.histories: dict[str, str] = {}
        monkeypatch.setattr(evidence, "header_at", self._header_at)
        monkeypatch.setattr(after_scan, "size_of", lambda path: 4096)
        monkeypatch.setattr(histories, "read_table", self._read_table)

    def replica(
        self, name: str, history: str, voters: Sequence[str] = NAMES, **fields: Any
    ) -> Replica:
        self.histories[name] = history
        one = identified(name)
        one.vouched, one.begin = True, Begin(0, 0, -1, word(""))
        for at, letter in enumerate(history):
            whole = letter.islower()
            report = LogReport(
                data_file(name, SIZE * at),
                SIZE * at,
                SIZE,
                1,
                at,
                at,
                first_size=90,
                end=90,
                sound=int(whole),
            )
            report.ending = "zero" if at == len(history) - 1 else "blank"
            report.prev_chain, report.first_chain, report.last_chain = (
                word(history[:at]),
                word(history[: at + 1]),
                word(history[: at + 1]),
            )
            report.first_term = report.last_term = 1 + (letter == "z")
            report.last_intact_index, report.damaged = (at, []) if whole else (-1, [at])
            if at == 0 and whole:
                report.memberships.append((0, json.dumps(record(*voters))))
            one.reports.append(report)
        for field, value in fields.items():
            setattr(one, field, value)
        return one

    def _header_at(self, task: LogFile, index: int) -> tuple[int, tuple[int, ...]] | None:
        history = self.histories.get(task.replica, "")
        if index >= len(history):
            return None
        return SIZE * index, (
            0,
            90,
            index,
            1 + (history[index] == "z"),
            0,
            0,
            word(history[: index + 1]),
        )

    def _read_table(self, one: Replica, report: LogReport) -> Table:
        at = report.base // SIZE
        chain = (
            word(self.histories[one.name][: at + 1])
            if not report.damaged and at <= one.held
            else -1
        )
        return Table(at, *(np.array([value], np.int64) for value in (chain, 0, 90)))


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    return Logs(monkeypatch)


def lost_commits(result: GroupResult) -> dict[str, tuple[int | None, str, int, int]]:
    found = [one for one in result.findings if one.flaw.rule == "commit.lost"]
    assert len({one.replica for one in found}) == len(found)
    return {
        one.replica: (one.flaw.index, one.flaw.file, one.flaw.byte_from, one.flaw.byte_to)
        for one in found
    }


ENTRY = 2
HISTORIES = {
    "whole": "aaa",
    "damaged": "aaA",
    "slow damaged": "aaA",
    "behind": "a",
    "other": "abb",
    "back": "",
}
"""State of a replica as to entry 2, which was committed → its history; of the other states `aa`."""
STATES = (*HISTORIES, "cut", "lags", "slow", "slow cut")


def in_state(logs: Logs, name: str, state: str, entry: int, voters: Sequence[str]) -> Replica:
    """The same for another entry with fewer ones before it."""
    one = logs.replica(name, HISTORIES.get(state, "aa")[ENTRY - entry :], voters)
    if "cut" in state:
        one.mark = Mark(1, entry, SIZE * entry + 90, word("aaa"[ENTRY - entry :]), "l")
    if "slow" in state:
        one.awaited = 9
    one.vouched = state != "back"
    return one


def agreed(histories: Sequence[str], majority: int) -> int:
    """The last index at which a majority has the same intact entry after the same ones."""
    found = -1
    for at in range(ENTRY + 1):
        same = Counter(
            history[: at + 1].lower() for history in histories if history[at : at + 1].islower()
        )
        found = at if max(same.values(), default=0) >= majority else found
    return found


def chosen(voters: int, entry: int) -> list[tuple[str, ...]]:
    """Combinations in which one replica has the entry."""
    few = ("whole", "damaged", "cut", "lags")
    of = few if voters > 3 else STATES if entry else (*few, "back")
    return [states for states in combinations_with_replacement(of, voters) if "whole" in states]


@pytest.mark.parametrize(("voters", "entry"), [(1, 2), (2, 2), (3, 0), (3, 2), (5, 0), (5, 2)])
def test_lost_committed_entry_accuses_its_former_holders_or_all_lacking_voters(
    logs: Logs, voters: int, entry: int
) -> None:
    """If a majority once had it, those of it that damaged or lost it, or have another history; else
    every voter without it. Nobody is accused who holds it, or who came back without its data, and
    nobody at all while too few voters have reached the marker."""
    names = [f"n{number}" for number in range(1, voters + 1)]
    majority = voters // 2 + 1
    for states in chosen(voters, entry):
        replicas = [
            in_state(logs, name, state, entry, names)
            for name, state in zip(names, states, strict=True)
        ]
        histories = [logs.histories[name] for name in names]
        before = agreed([history[:entry] for history in histories], majority)
        if "other" in states and (before < 1 or states.count("other") >= majority):
            continue
        replicas[states.index("whole")].commit = entry
        for one in replicas:
            one.peers = {
                name: f"{name}-0" if state == "back" else f"{name}-1"
                for name, state in zip(names, states, strict=True)
            }
        result = compare("g1", replicas)
        had = sum(state not in ("lags", "behind", "slow") for state in states)
        accused = {"damaged", "slow damaged", "cut", "slow cut", "other"} | (
            set() if had >= majority else {"lags", "behind", "slow"}
        )
        if states.count("whole") >= majority or voters - states.count("slow") < majority:
            accused = set()
        found = lost_commits(result)
        assert [*found] == [
            name for name, state in zip(names, states, strict=True) if state in accused
        ], states
        assert result.recorded == entry
        raised = before >= 0 and voters - states.count("slow") >= majority
        now = agreed(histories, majority)
        assert result.compared == (entry if raised else None if now < 0 else now), states
        for one, state in zip(replicas, states, strict=True):
            if one.name in found and state == "other":
                assert found[one.name] == (2, data_file(one.name, 2 * SIZE), 0, 90)
            elif one.name in found:
                place = (
                    (one.filled[-1].file, 90, 90) if one.filled else (data_file(one.name, 0), 0, 0)
                )
                assert found[one.name] == (min(before, one.held) + 1, *place)


def test_different_committed_entries_without_a_majority_accuse_all_that_hold_one(
    logs: Logs,
) -> None:
    """And those with damage; one that ends before it, or lost its end, is not at fault. Of a
    learner the same is true."""
    endings = {
        "one": "aaa",
        "another": "aab",
        "third": "aac",
        "damaged": "aaA",
        "cut": "aa",
        "lags": "aa",
    }
    for states, learner in product(
        combinations_with_replacement(endings, 3), (None, "third", "damaged", "lags")
    ):
        told = [*states, *([] if learner is None else [learner])]
        apart = {state for state in told if state in ("one", "another", "third")}
        if (
            len(apart) < 2
            or any(states.count(state) > 1 for state in apart)
            or states.count("damaged") + states.count("cut") > 2
        ):
            continue
        if not apart & {*states}:
            continue
        replicas = [
            logs.replica(name, endings[state])
            for name, state in zip((*NAMES, "n4"), told, strict=False)
        ]
        for one, state in zip(replicas, told, strict=True):
            one.reports[0].memberships = [(0, json.dumps(record(*NAMES, learners=("n4",))))]
            if state == "cut":
                one.mark = Mark(1, 2, 290, word("aaa"), "l")
        replicas[next(at for at, state in enumerate(told) if state in apart)].commit = 2
        result = compare("g1", replicas)
        accused = [
            one.name
            for one, state in zip(replicas, told, strict=True)
            if state in apart or (state == "damaged" and one.name != "n4")
        ]
        assert [*lost_commits(result)] == accused, told
        assert all(index == 2 for index, *_ in lost_commits(result).values())


def test_committed_entry_without_a_holder_is_lost(logs: Logs) -> None:
    """Of a single voter too, and where nothing at all is agreed."""
    assert [*lost_commits(claiming(logs, 1, "aaA", commit=2))] == ["n1"]
    assert [*lost_commits(claiming(logs, 1, "aa", commit=2))] == ["n1"]
    replicas = [logs.replica(name, history) for name, history in zip(NAMES, "abc", strict=True)]
    replicas[1].commit = 0
    result = compare("g1", replicas)
    assert (result.compared, lost_commits(result)) == (
        None,
        {name: (0, data_file(name, 0), 0, 90) for name in NAMES},
    )


def test_a_begin_is_decided_by_any_record_that_can_be_read(logs: Logs) -> None:
    for bodies, decided in (
        (["{", "[]", "{}"], False),
        (["{", "[]", '{"begin": 1}'], True),
        (['{"begin": 1}', "{"], True),
    ):
        one, peer = ending("n1", 9, begin=Begin(1, 0, 1, 0)), ending("n2", 9)
        peer.reports[1].trims = [(5 + at, body) for at, body in enumerate(bodies)]
        assert (("n1", "begin.decided") in rules(compare("g1", [one, peer]))) is not decided


def test_only_voters_are_accused_of_losing_a_committed_entry(logs: Logs) -> None:
    """Entries become committed without learners, backups and former members."""
    for state, name, had in product(
        ("whole", "damaged", "lags"), ("n4", f"n4{SUFFIX}", "n5", "x"), (False, True)
    ):
        voters = [
            logs.replica("n1", "aaa"),
            logs.replica("n2", "aaA" if had else "aa"),
            logs.replica("n3", "aa"),
        ]
        voters[0].commit = 2
        other = logs.replica(name, {"whole": "aaa", "damaged": "aaA", "lags": "aa"}[state])
        for one in (*voters, other):
            one.reports[0].memberships = [(0, json.dumps(record(*NAMES, learners=("n4",))))]
        result = compare("g1", [*voters, other])
        assert [*lost_commits(result)] == (["n2"] if had else ["n2", "n3"]), (state, name, had)


def claiming(logs: Logs, voters: int, history: str, **fields: Any) -> GroupResult:
    """All voters have this history, and these fields belong to the first of them."""
    replicas = [logs.replica(name, history, NAMES[:voters]) for name in NAMES[:voters]]
    for field, value in fields.items():
        setattr(replicas[0], field, value)
    return compare("g1", replicas)


def test_recorded_commit_is_the_highest_claim_a_clean_log_can_hold(logs: Logs) -> None:
    """What a checkpoint, a snapshot or a running node says, unless the log that was stopped cleanly
    ends before it and says so."""
    cases = [
        *product((None, -1, 0, 2, 3), (None, 4), (None, 1), (None, 2)),
        (1, 0, None, 1),
        (0, 1, None, 1),
        (None, 2, 0, None),
    ]
    for commit, applied, at, marked in cases:
        fields: dict[str, Any] = {"commit": commit, "snapshot": {"applied_index": applied}}
        fields["point"] = (
            None if at is None else Point(at, SIZE * at + 90, 1, word("aaa"[: at + 1]))
        )
        fields["mark"] = (
            None
            if marked is None
            else Mark(1, marked, SIZE * marked + 90, word("aaa"[: marked + 1]), "l")
        )
        told = [index for index in (commit, applied) if index is not None]
        whole = at is None and marked == 2
        claims = [index for index in told if not (whole and index > 2)] + (
            [] if at is None else [at]
        )
        recorded = max((index for index in claims if index >= 0), default=None)
        result = claiming(logs, 3, "aaa", **fields)
        assert (result.recorded, result.compared) == (recorded, max(2, recorded or 0)), (
            commit,
            applied,
            at,
            marked,
        )
        assert [*lost_commits(result)] == [name for name in NAMES if max(claims, default=0) > 2]


def test_loss_is_unknown_while_a_voter_is_missing(logs: Logs) -> None:
    replicas = [logs.replica("n1", "aaa", commit=2), logs.replica("n2", "aa")]
    result = compare("g1", replicas)
    assert (result.missing, result.recorded, result.compared, lost_commits(result)) == (
        ("n3",),
        2,
        1,
        {},
    )
    unreadable = logs.replica("n1", "aaa", commit=5)
    unreadable.reports[0].memberships = [(0, "{")]
    result = compare("g1", [unreadable])
    assert (result.voters, result.recorded, result.compared, lost_commits(result)) == (
        (),
        5,
        None,
        {},
    )


# -------------------------------------------------------------------------------------------------------------------- notes


def test_where_trimmed_logs_begin_is_noted(logs: Logs) -> None:
    for begins, exact in product(product((0, 3, 5), repeat=2), (False, True)):
        replicas = [ending(name, 9) for name in NAMES[:2]]
        for one, begin in zip(replicas, begins, strict=True):
            one.begin = Begin(begin, begin)
            one.snapshot = {"retained": {"begin_index": begin if exact else 4}}
        notes = [note.removeprefix("group g1: ") for note in compare("g1", replicas).notes]
        trimmed = [note for note in notes if note.startswith("older entries were trimmed")]
        if begins == (0, 0):
            assert notes == []
            continue
        assert trimmed == [
            "older entries were trimmed, and that is recorded; the logs begin with entries"
            f" {' and '.join(map(str, sorted({*begins})))}"
        ]
        assert len(notes) == (1 if exact else 2)
    mixed = [
        ending("n1", 9, begin=Begin(3, 3), snapshot={"retained": {"begin_index": 3}}),
        ending("n2", 9, begin=Begin(5, 5)),
    ]
    assert (
        len([note for note in compare("g1", mixed).notes if "not carried out everywhere" in note])
        == 1
    )
    assert compare("g1", []).notes == []


def test_a_state_that_is_too_new_is_a_reason(logs: Logs) -> None:
    for unknown, known in product((False, True), (False, True)):
        one = logs.replica("n1", "aaa", state=StateReport("version 9", unknown) if known else None)
        reasons = compare("g1", [one, logs.replica("n2", "aaa"), logs.replica("n3", "aaa")]).reasons
        assert reasons == ["group g1: the state of n1 was not derived: version 9"] * (
            unknown and known
        )


def test_dispatched_entry_above_the_commit_is_a_finding(logs: Logs) -> None:
    """Up to the compared index, or to what a running node has applied. Without every voter, or with
    damage, nobody knows."""
    for filed, damaged, missing, rule, at in product(
        (1, 2, 3), (False, True), (False, True), (None, OTHER_RULE), (None, 1, 3)
    ):
        replicas = [
            logs.replica("n1", "aaaa"),
            logs.replica("n2", "aaa"),
            logs.replica("n3", "aAa" if damaged else "aaa"),
        ]
        run = QueueRun("t", 0, 0, 0, 1, filed, 0, 0, filed_offset=1, filed_index=filed)
        replicas[0].reports[filed].queues.append(run)
        for one in replicas:
            one.reports[0].memberships = [(0, json.dumps(record(*NAMES, rule=rule)))]
        if at is not None:
            replicas[0].point = Point(at, SIZE * at + 90, 1, word("aaaa"[: at + 1]))
            replicas[1].awaited = replicas[2].awaited = 3
        result = compare("g1", replicas[: 2 if missing else 3])
        found = [
            (one.replica, one.flaw.index)
            for one in result.findings
            if one.flaw.rule == "queue.uncommitted"
        ]
        told = filed > max(2, at or 0) and not damaged and not missing and rule is None
        assert found == [("n1", filed)] * told, (filed, damaged, missing, rule, at)


def test_snapshots_of_replicas_with_another_history_are_no_measure(logs: Logs) -> None:
    for history, told in (("aaa", ["n3"]), ("abb", [])):
        replicas = [
            logs.replica("n1", "aaa"),
            logs.replica("n2", "aaa"),
            logs.replica("n3", history),
        ]
        for one, state in zip(replicas, (1, 1, 2), strict=True):
            one.snapshots = {"state/snapshot": {"applied_index": 2, "x": state}}
        assert [
            one.replica
            for one in compare("g1", replicas).findings
            if one.flaw.rule == "snapshot.same"
        ] == told


def test_findings_are_in_order(logs: Logs) -> None:
    """Those that fail first, then by replica and place."""
    replicas = [logs.replica(name, "aaa") for name in reversed(NAMES)]
    for one in replicas:
        for file, start, rule in product(("dledger/b", "a"), (9, 3), ("peers.json", "boots.json")):
            one.flaw(rule, file, "p", start, start + 1)
        one.reports[2].flaws.append(
            Flaw("tail.zero", data_file(one.name, 2 * SIZE), 3, 92, 93, "p", torn=True)
        )
        one.clean = False
    findings = compare("g1", replicas).findings
    rows = [
        (not one.fails, one.replica, one.flaw.file, one.flaw.byte_from, one.flaw.rule)
        for one in findings
    ]
    assert rows == sorted(rows) and len({row[0] for row in rows}) == 2


def rules(result: GroupResult) -> list[tuple[str, str]]:
    return [(one.replica, one.flaw.rule) for one in result.findings]


def test_every_kind_of_record_is_compared_with_the_log(logs: Logs) -> None:
    """A flaw in one of them is a finding of its replica alone."""

    def changed(**fields: Any) -> list[tuple[str, str]]:
        return rules(claiming(logs, 3, "aaa", **fields))

    assert changed() == []
    right, wrong = (word("aaa"), word("aab"))
    for chain, found in ((right, False), (wrong, True)):
        assert (("n1", "marker.same") in changed(point=Point(2, 290, 1, chain))) is found
        assert changed(mark=Mark(1, 2, 290, chain, "l")) == [("n1", "mark.log")] * found
        snapshot = {
            "applied_index": 2,
            "applied_term": 1,
            "applied_end_pos": 290,
            "chain_crc": chain,
        }
        assert changed(snapshot=snapshot) == [("n1", "snapshot.log")] * found
    assert changed(
        state=StateReport(flaws=[Flaw("state.topics", "g1/state/snapshot", None, 0, 1, "p")])
    ) == [("n1", "state.topics")]
    for first, found in ((0, False), (1, True)):
        one = logs.replica("n1", "aaa")
        one.reports[2].queues.append(
            QueueRun("t", 0, first, first, 1, 2, 0, 0, filed_offset=first, filed_index=2)
        )
        result = compare("g1", [one, logs.replica("n2", "aaa"), logs.replica("n3", "aaa")])
        assert rules(result) == [("n1", "record.queue-offset")] * found


def test_an_entry_that_a_mark_names_may_be_on_another_replica(logs: Logs) -> None:
    """Of a replica that lost its end."""
    for chain, held in ((word("aaa"), True), (word("aab"), False)):
        cut = logs.replica("n1", "aa", mark=Mark(1, 2, 290, chain, "l"))
        found = rules(compare("g1", [cut, logs.replica("n2", "aaa"), logs.replica("n3", "aaa")]))
        assert sorted(found) == [("n1", "mark.end")] + [("n1", "mark.log")] * (not held)


def test_a_term_has_one_leader(logs: Logs) -> None:
    for leaders, told in (
        (("n1", "n1", "n1"), []),
        (("n1", "n1", "n2"), ["n3"]),
        (("n1", "n2", "n3"), [*NAMES]),
    ):
        replicas = [logs.replica(name, "aaa") for name in NAMES]
        for one, leader in zip(replicas, leaders, strict=True):
            one.reports[1].elections.append((1, json.dumps({"term": 1, "leader": leader})))
        assert rules(compare("g1", replicas)) == [(name, "term.leader") for name in told]


def test_compared_index_follows_the_rule_of_the_group(logs: Logs) -> None:
    """By majority, what most voters hold; with appointed masters, what one recorded. Replicas that
    lag are named, lost ones too."""
    for rule in (None, OTHER_RULE):
        replicas = [
            logs.replica("n1", "aaa"),
            logs.replica("n2", "aaa", commit=1),
            logs.replica("n3", "a"),
        ]
        for one in replicas:
            one.reports[0].memberships = [(0, json.dumps(record(*NAMES, rule=rule)))]
        result = compare("g1", replicas, {"n4": "could not be read"})
        compared = 2 if rule is None else 1
        count = "2 entries" if rule is None else "1 entry"
        assert (result.compared, result.findings) == (compared, [])
        assert result.reasons == [
            "group g1: replica n4 could not be read",
            f"group g1: n3 ends {count} before the compared index {compared}; {LAGS}",
        ]
