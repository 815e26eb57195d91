"""Groups whose masters a controller appoints: what their directories prove, what is undecidable,
and what is against all rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ledgermq.audit.cli.report import for_repair
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.sim.machine.settings import Settings
from tests.audit.damage_cases import NODES, flip
from tests.audit.fuzz.clusters import interrupted
from tests.audit.log_writer import CREATED, RAFT, Message, Writer, election


def members(
    rule: str, since: int = 0, *, term: int = 0, time: int = CREATED, observer: str = ""
) -> Message:
    """A membership record of version 3, or of version 1 and 2 for a majority."""
    learners = {observer: {"incarnation": "x", "observer": True}} if observer else {}
    body: dict[str, object] = {
        "v": 3,
        "voters": {name: {} for name in NODES},
        "learners": learners,
        "reason": "",
    }
    body |= {"rule": rule, "since": since} if rule != "majority" or observer else {"v": 2}
    body |= {"towards": "in-sync"} if rule == "all" else {}
    return Message(
        RAFT, json.dumps(body).encode(), tag="membership", channel=1, term=term, time=time
    )


def forced(epoch: int, node: str, kept: int) -> Message:
    body = json.dumps({"v": 1, "epoch": epoch, "node": node, "kept": kept}).encode()
    return Message(RAFT, body, tag="forced", term=epoch, time=CREATED)


def messages(epoch: int, count: int, salt: str = "") -> list[Message]:
    bodies = [f"{epoch}-{number}{salt}".encode() * 9 for number in range(count)]
    return [
        Message("flights", body, key=f"k{number}", term=epoch, time=CREATED)
        for number, body in enumerate(bodies)
    ]


COMMON = [members("in-sync"), election(1, "n1"), *messages(1, 38)]
"""40 entries: the first master's, on all replicas."""


def write(
    base: Path, name: str, told: Sequence[Message], confirmed: int, *, clean: bool = True
) -> Writer:
    """Write one replica that knows this many entries as confirmed."""
    writer = Writer(base / name)
    for message in told:
        writer.append(message)
    return writer.finish(committed=confirmed - 1, clean=clean)


def run(base: Path, *more: str, agreement: bool = False) -> Audit:
    return audit(
        [str(base / name) for name in (*NODES, *more)], deep=not agreement, agreement=agreement
    )


def told(result: Audit) -> list[tuple[str, str, str]]:
    return sorted(
        {
            (finding.klass, finding.replica, finding.flaw.rule)
            for finding in result.findings
            if finding.fails
        }
    )


def alone(base: Path) -> list[Writer]:
    """Twenty confirmed entries stand on the master alone, which was all of its in-sync set."""
    more = [*COMMON, *messages(1, 20, "more")]
    return [
        write(base, "n1", more, 60),
        write(base, "n2", COMMON, 40),
        write(base, "n3", COMMON, 40),
    ]


@pytest.mark.parametrize("agreement", [False, True])
def test_equal_replicas_pass(tmp_path: Path, agreement: bool) -> None:
    """With an observer beside them, which only follows."""
    observed = [members("in-sync", observer="n4"), *COMMON[1:]]
    for name in (*NODES, "n4"):
        write(tmp_path, name, observed, 40)
    result = run(tmp_path, "n4", agreement=agreement)
    assert (result.verdict, result.compared, result.findings) == ("PASS", 39, [])
    assert (result.groups[0].rule, result.groups[0].learners) == ("in-sync", ("n4",))


@pytest.mark.parametrize("agreement", [False, True])
def test_entries_confirmed_by_the_master_alone_are_incomplete_not_lost(
    tmp_path: Path, agreement: bool
) -> None:
    """No majority holds it, nor has to. The others lag: nothing wrong, and no PASS."""
    alone(tmp_path)
    result = run(tmp_path, agreement=agreement)
    assert (result.verdict, result.compared, told(result)) == ("INCOMPLETE", 59, [])
    assert (
        sum("20 entries before the compared index 59" in reason for reason in result.reasons) == 2
    )


def test_a_former_masters_unconfirmed_tail_is_no_finding(tmp_path: Path) -> None:
    """The tail was acknowledged only by the master (`ack: async`), lost with it, and no replica
    recorded it as confirmed. Its size is reported."""
    write(tmp_path, "n1", [*COMMON, *messages(1, 5, "tail")], 40, clean=False)
    for name in ("n2", "n3"):
        write(tmp_path, name, [*COMMON, election(2, "n2"), *messages(2, 8)], 49)
    result = run(tmp_path)
    assert (result.verdict, result.compared, told(result)) == ("INCOMPLETE", 48, [])
    assert any("keeps 5 uncommitted" in reason for reason in result.reasons)


@pytest.mark.parametrize("agreement", [False, True])
def test_equal_unconfirmed_tails_of_two_replicas_do_not_outvote(
    tmp_path: Path, agreement: bool
) -> None:
    """They left the in-sync set; the one that stayed was elected and confirmed other entries
    alone."""
    write(tmp_path, "n1", [*COMMON, election(2, "n1"), *messages(2, 8)], 49)
    for name in ("n2", "n3"):
        write(tmp_path, name, [*COMMON, *messages(1, 5, "tail")], 40)
    result = run(tmp_path, agreement=agreement)
    assert (result.verdict, result.compared, told(result)) == ("INCOMPLETE", 48, [])


@pytest.mark.parametrize("agreement", [False, True])
@pytest.mark.parametrize("recorded", [True, False])
def test_confirmed_entries_may_be_given_up_only_by_a_recorded_word(
    tmp_path: Path, recorded: bool, agreement: bool
) -> None:
    """A forced master begins behind what it kept; without that record the same directories are two
    histories."""
    write(tmp_path, "n1", [*COMMON, *messages(1, 10, "more")], 50)
    word = [forced(2, "n2", 39)] if recorded else messages(2, 1, "no")
    for name in ("n2", "n3"):
        write(tmp_path, name, [*COMMON, election(2, "n2"), *word, *messages(2, 4)], 46)
    result = run(tmp_path, agreement=agreement)
    assert result.verdict == ("INCOMPLETE" if recorded else "FAIL")
    assert told(result) == ([] if recorded else [("divergence", "n1", "replica.divergence")])
    assert not recorded or any(
        "given up when an operator forced n2 to be master of epoch 2" in reason
        for reason in result.reasons
    )


@pytest.mark.parametrize("agreement", [False, True])
@pytest.mark.parametrize("recorded", [True, False])
def test_two_replicas_that_an_operator_gave_up_do_not_outvote_the_forced_master(
    tmp_path: Path, recorded: bool, agreement: bool
) -> None:
    """They come back after it was forced alone; without that record they are the majority, and it
    is the one that left."""
    word = [forced(2, "n1", 39)] if recorded else messages(2, 1, "no")
    write(tmp_path, "n1", [*COMMON, election(2, "n1"), *word, *messages(2, 4)], 46)
    for name in ("n2", "n3"):
        write(tmp_path, name, [*COMMON, *messages(1, 10, "more")], 50)
    result = run(tmp_path, agreement=agreement)
    assert result.verdict == ("INCOMPLETE" if recorded else "FAIL")
    assert told(result) == ([] if recorded else [("divergence", "n1", "replica.divergence")])
    assert {name for name, _ in result.groups[0].given_up.items()} == (
        {"n2", "n3"} if recorded else set()
    )


def test_an_epoch_has_one_master(tmp_path: Path) -> None:
    """Two masters of one epoch, though neither confirmed anything in it."""
    for name in NODES:
        write(tmp_path, name, [*COMMON, election(2, "n2" if name != "n1" else "n1")], 40)
    result = run(tmp_path)
    assert result.verdict == "FAIL"
    assert ("divergence", "n1", "term.leader") in told(result) and {
        name for _, name, _ in told(result)
    } == {"n1"}


def test_a_group_that_changed_over_and_back_passes(tmp_path: Path) -> None:
    """The commit rule changes from majority to all, to in-sync, to all, and to majority."""
    parts = [
        members("majority"), election(1, "n1"), *messages(1, 5), members("all", 0, term=1), members("in-sync", 7, term=1),
        election(4, "n2"), *messages(4, 5), members("all", 7, term=4), members("majority", term=4), election(5, "n3"), *messages(5, 4),
    ]  # fmt: skip
    for name in NODES:
        write(tmp_path, name, parts, len(parts))
    result = run(tmp_path)
    assert (result.verdict, told(result), result.groups[0].rule) == ("PASS", [], "majority")


def test_damage_is_told_as_in_every_group(tmp_path: Path) -> None:
    """If a peer has the entry, damage is rot; an entry that only the master had is undecidable. A
    repair gets the replicas that prove each entry."""
    writers = alone(tmp_path)
    place = writers[1].entries[20].pos + 70
    flip(writers[1].log / "data" / f"{place - place % 8192:020d}", place % 8192)
    lone = writers[0].entries[50].pos + 70
    flip(writers[0].log / "data" / f"{lone - lone % 8192:020d}", lone % 8192)
    result = run(tmp_path)
    assert {(klass, name) for klass, name, _ in told(result)} == {
        ("bit-rot", "n2"),
        ("undecidable", "n1"),
    }
    (group,) = for_repair(result)["groups"]  # type: ignore[misc]
    assert (group["voters"], group["proven_by"]) == (("n1", "n2", "n3"), ("n1",))


def test_the_newest_confirmed_entry_damaged_on_its_only_holder_is_a_loss(tmp_path: Path) -> None:
    """It was recorded as confirmed, and no replica has it intact."""
    writer = alone(tmp_path)[0]
    last = writer.entries[-1]
    flip(writer.log / "data" / f"{last.pos - last.pos % 8192:020d}", last.pos % 8192 + 70)
    result = run(tmp_path)
    assert result.verdict == "FAIL" and {(klass, name) for klass, name, _ in told(result)} >= {
        ("undecidable", "n1")
    }


@pytest.mark.parametrize("power", [None, False, True])
def test_simulated_groups_that_end_all_at_once_never_fail(
    tmp_path: Path, power: bool | None
) -> None:
    """The product's own core under faults, with both ways of acknowledging: stopped, killed,
    without power."""
    for seed, waits in ((7, True), (18, False)):
        cluster = interrupted(
            seed,
            700,
            kinds=("kill", "isolate", "transfer"),
            power=power,
            group=Settings.of_ha(3, ack_async=not waits),
        )
        result = audit(cluster.write(tmp_path / str(seed)), deep=True)
        assert (result.groups[0].rule, told(result)) == ("in-sync", [])
