"""Directories without damage: what passes, what is incomplete, and what an unclean stop may
leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgermq.audit.rules import TORN_TAIL
from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import CREATED, NODES, history, write_cluster
from tests.audit.log_writer import RAFT, Message, Writer, election

LATE = 1_900_000_000_000


def run(base: Path, *names: str, deep: bool = False) -> Audit:
    return audit([str(base / name) for name in names or NODES], deep=deep)


def write_uneven(base: Path, common: int, **more: int) -> dict[str, Writer]:
    """One history of which each replica holds `common` entries and `more` of its own; all were
    stopped cleanly."""
    messages = history(5, 80)
    writers = {}
    for name in NODES:
        writer = Writer(base / name)
        for message in messages[: common + more.get(name, 0)]:
            writer.append(message)
        writers[name] = writer.finish(committed=common - 1)
    return writers


@pytest.mark.parametrize("seed", range(8))
def test_equal_replicas_pass(tmp_path: Path, seed: int) -> None:
    """Random histories over several files pass without a finding, compared up to the last entry."""
    writers = write_cluster(tmp_path, history(seed, 20 + 15 * seed))
    result = run(tmp_path, deep=seed % 2 == 0)
    assert (result.verdict, result.reasons, result.findings) == ("PASS", [], [])
    assert result.compared == len(writers[0].entries) - 1
    assert set(result.replica_verdicts.values()) == {"PASS"}


def test_every_boundary_of_a_file_passes(tmp_path: Path) -> None:
    """Entries that end at each distance from the end of a file, blank or not, are no findings."""
    for spare in (0, 1, 7, 8, 9, 39):
        base = tmp_path / str(spare)
        first = Writer(base / "probe")
        for message in history(1, 0):
            first.append(message)
        room = first.data_bytes - first.pos - 8 - (48 + 91 + 7 + 10) - spare
        bodies = (b"x" * room, b"next", b"")
        write_cluster(
            base, [*history(1, 0), *(Message("flights", body, time=CREATED + 2) for body in bodies)]
        )
        assert run(base).verdict == "PASS", spare


def test_missing_replicas_are_incomplete(tmp_path: Path) -> None:
    """With one of three nothing is compared; with two a majority is, but a replica is missing."""
    write_cluster(tmp_path, history(2))
    one, two = run(tmp_path, "n1"), run(tmp_path, "n1", "n3")
    assert (one.verdict, one.compared) == ("INCOMPLETE", None)
    assert (two.verdict, two.compared) == ("INCOMPLETE", 62)
    assert any("n2 was not given" in reason for reason in two.reasons)
    assert not one.findings and not two.findings


def test_no_data_is_incomplete(tmp_path: Path) -> None:
    """Empty directories prove nothing."""
    for name in NODES:
        (tmp_path / name).mkdir()
    assert run(tmp_path).verdict == "INCOMPLETE"
    assert audit([]).verdict == "INCOMPLETE"


def test_a_directory_given_twice_counts_once(tmp_path: Path) -> None:
    """The same directory under two names is one replica."""
    write_cluster(tmp_path, history(2))
    result = audit(
        [
            str(tmp_path / "n1"),
            str(tmp_path / "n2" / ".." / "n1"),
            str(tmp_path / "n2"),
            str(tmp_path / "n3"),
        ]
    )
    assert result.verdict == "PASS"


def test_uncommitted_suffix_is_no_finding(tmp_path: Path) -> None:
    """What only one replica appended behind the compared index was never promised."""
    write_uneven(tmp_path, 50, n2=3)
    result = run(tmp_path)
    assert (result.verdict, result.compared) == ("PASS", 49)


def test_different_uncommitted_suffixes_are_no_finding(tmp_path: Path) -> None:
    """Two replicas that appended different entries of different terms behind the commit still
    agree."""
    for name, term in zip(NODES, (5, 6, 7), strict=True):
        writer = Writer(tmp_path / name)
        for message in history(5, 40):
            writer.append(message)
        committed = len(writer.entries) - 1
        writer.append(election(term, name, 1_800_000_000_000))
        writer.append(Message("flights", name.encode(), key="x", term=term, time=1_800_000_000_000))
        writer.finish(committed=committed)
    result = run(tmp_path)
    assert (result.verdict, result.compared) == ("PASS", 42)


def test_a_lagging_replica_is_incomplete(tmp_path: Path) -> None:
    """A replica behind a majority lost nothing, but does not prove the rest."""
    write_uneven(tmp_path, 50, n1=5, n2=5)
    result = run(tmp_path)
    assert (result.verdict, result.compared, result.findings) == ("INCOMPLETE", 54, [])
    assert "n3 ends 5 entries before" in result.reasons[0]
    assert sorted(result.replica_verdicts.values()) == ["INCOMPLETE", "PASS", "PASS"]


def test_lacking_only_election_records_passes(tmp_path: Path) -> None:
    """When nodes stop one after the other, the last ones elect a leader once more; that record is
    no message."""
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(5, 40):
            writer.append(message)
        if name != "n1":
            writer.append(election(9, "n2", 1_800_000_000_000))
        writer.finish()
    result = run(tmp_path)
    assert (result.verdict, result.compared, len(result.notes)) == ("PASS", 43, 1)


def test_two_broker_groups_in_one_directory(tmp_path: Path) -> None:
    """Every group is compared separately; the JSON object has the lower index."""
    write_cluster(tmp_path, history(3, 30))
    for name in NODES:
        writer = Writer(tmp_path / name, group="g2")
        for message in history(4, 10):
            writer.append(message)
        writer.finish()
    result = run(tmp_path)
    assert result.verdict == "PASS"
    assert [group.compared for group in result.groups] == [32, 12] and result.compared == 12


@pytest.mark.parametrize("cut", [1, 47, 48, 100, 150, 230])
def test_torn_tail_of_a_killed_node_passes(tmp_path: Path, cut: int) -> None:
    """A partial entry above the synced mark that no majority has is reported, and truncated at the
    next start."""
    writers = write_cluster(tmp_path, history(6, 30), clean=False)
    writer = writers[0]
    last = writer.entries[-1]
    tail = Writer(tmp_path / "other")
    tail.entries, tail.space, tail.pos = list(writer.entries), bytearray(writer.space), writer.pos
    tail.chain, tail.offsets = writer.chain, dict(writer.offsets)
    new = tail.append(Message("flights", b"half" * 60, key="k", term=3, time=CREATED + 10_000))
    file = writer.log / "data" / f"{new.pos - new.pos % 8192:020d}"
    with open(file, "r+b") as handle:
        handle.seek(new.pos % 8192)
        handle.write(tail.space[new.pos : new.pos + max(cut, 4)])
    result = run(tmp_path)
    assert result.verdict == "PASS" and result.compared == last.index
    assert {finding.klass for finding in result.findings} == {TORN_TAIL}
    (writer.root / "abort").unlink()
    assert run(tmp_path).verdict == "FAIL", "after a clean stop nothing may stand behind the end"


def test_unclean_stop_without_the_last_derived_units_passes(tmp_path: Path) -> None:
    """Index and consume queue units above mark and snapshot may be lost with the power; they are
    rebuilt."""
    writers = write_cluster(tmp_path, history(6, 30), clean=False, mark=20, snapshot=False)
    writer = writers[1]
    place = 25 * 32
    with open(writer.log / "index" / f"{place - place % 1024:020d}", "r+b") as handle:
        handle.seek(place % 1024)
        handle.write(bytes(32 * 5))
    result = run(tmp_path)
    assert result.verdict == "PASS" and {finding.klass for finding in result.findings} == {
        TORN_TAIL
    }
    (writer.root / "abort").unlink()
    assert run(tmp_path).verdict == "FAIL"


def test_a_deposed_leader_that_was_not_started_again_is_incomplete(tmp_path: Path) -> None:
    """Its uncommitted entries of an older term were replaced by the majority: ordinary, but it
    proves nothing about the rest."""
    common = history(5, 40)
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in common:
            writer.append(message)
        committed = len(writer.entries) - 1
        terms = (3, 3) if name == "n1" else (4, 4, 4)
        for number, term in enumerate(terms):
            writer.append(
                Message(
                    "flights",
                    f"{term}-{number}".encode(),
                    key="x",
                    term=term,
                    time=1_800_000_000_000,
                )
            )
        writer.finish(committed=committed if name == "n1" else None, clean=name != "n1")
    result = run(tmp_path)
    assert (result.verdict, result.compared, [f.text for f in result.findings]) == (
        "INCOMPLETE",
        45,
        [],
    )
    assert "keeps 2 uncommitted of an older leader" in result.reasons[0]


def test_replaced_entries_that_were_known_committed_diverge(tmp_path: Path) -> None:
    """The same histories, but the first replica had dispatched its entries: a committed entry was
    replaced."""
    common = history(5, 40)
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in [
            *common,
            *(
                Message(
                    "flights", name[:1].encode(), term=3 + (name != "n1"), time=1_800_000_000_000
                )
                for _ in "ab"
            ),
        ]:
            writer.append(message)
        writer.finish()
    result = run(tmp_path)
    assert result.verdict == "FAIL" and ("divergence", "n1") in {
        (f.klass, f.replica) for f in result.findings
    }


def test_a_replica_that_is_no_voter_is_incomplete(tmp_path: Path) -> None:
    """Directories of replicas that the membership record does not name are not compared, and the
    report says so."""
    write_cluster(tmp_path, history(2))
    writer = Writer(tmp_path / "n4")
    for message in history(2):
        writer.append(message)
    writer.finish()
    result = run(tmp_path, "n1", "n2", "n3", "n4")
    assert result.verdict == "INCOMPLETE" and "n4 is none of the voters" in result.reasons[0]
    assert sorted(result.replica_verdicts.values()) == ["INCOMPLETE", "PASS", "PASS", "PASS"]


def test_a_learner_is_verified_and_counts_for_no_majority(tmp_path: Path) -> None:
    """The last membership record determines the members, also in its newer form; once it was
    trimmed, the snapshot does, in both forms."""
    body = json.dumps(
        {
            "v": 2,
            "voters": {name: {} for name in NODES},
            "learners": {"n4": {"incarnation": "x"}},
            "reason": "more room",
        }
    )
    messages = [
        *history(2),
        Message(RAFT, body.encode(), tag="membership", channel=1, term=3, time=LATE),
    ]
    write_cluster(tmp_path, messages)
    writer = Writer(tmp_path / "n4")
    for message in messages:
        writer.append(message)
    writer.finish()
    result = run(tmp_path, "n1", "n2", "n3", "n4")
    assert (result.verdict, result.groups[0].learners) == ("PASS", ("n4",))
    assert set(result.replica_verdicts.values()) == {"PASS"}


def _moved(voters: tuple[str, ...]) -> Message:
    body = json.dumps(
        {"v": 3, "voters": {name: {} for name in voters}, "learners": {}, "reason": ""}
    )
    return Message(RAFT, body.encode(), tag="membership", channel=1, term=3, time=LATE)


def test_intact_files_of_a_moved_replica_pass(tmp_path: Path) -> None:
    """Its files end where it was removed: they are held against the others' as far as they go, and
    its node may be named or left out."""
    moved, after = _moved(("n1", "n2", "n4")), Message("flights", b"after", term=3, time=LATE)
    whole = [*history(2), moved, after]
    for name, messages in {"n1": whole, "n2": whole, "n3": history(2), "n4": whole}.items():
        writer = Writer(tmp_path / name)
        for message in messages:
            writer.append(message)
        writer.finish()
    result = run(tmp_path, "n1", "n2", "n3", "n4")
    assert result.verdict == "PASS" and {*result.replica_verdicts.values()} == {"PASS"}, (
        result.reasons
    )
    assert any(
        "n3 was a member, and its replica was moved or removed" in note for note in result.notes
    )
    assert run(tmp_path, "n1", "n2", "n4").verdict == "PASS"


def test_damaged_files_of_a_moved_replica_fail(tmp_path: Path) -> None:
    """Files that differ from the others' are found in a former member's directory too."""
    messages = [*history(2), _moved(("n1", "n2", "n4"))]
    for name in ("n1", "n2", "n3", "n4"):
        writer = Writer(tmp_path / name)
        for message in (
            [*messages[:-2], Message("flights", b"other", term=3, time=LATE)]
            if name == "n3"
            else messages
        ):
            writer.append(message)
        writer.finish()
    result = run(tmp_path, "n1", "n2", "n3", "n4")
    assert result.verdict == "FAIL" and {
        finding.replica for finding in result.findings if finding.fails
    } == {"n3"}


def test_a_learner_that_differs_fails(tmp_path: Path) -> None:
    """A learner's entries are held against those of the voters, however far it is."""
    body = json.dumps(
        {
            "v": 2,
            "voters": {name: {} for name in NODES},
            "learners": {"n4": {"incarnation": "x"}},
            "reason": "",
        }
    )
    messages = [
        *history(2),
        Message(RAFT, body.encode(), tag="membership", channel=1, term=3, time=LATE),
    ]
    messages += [Message("flights", b"more", term=3, time=LATE) for _ in range(3)]
    write_cluster(tmp_path, messages)
    writer = Writer(tmp_path / "n4")
    for message in [*messages[:-2], Message("flights", b"mine", term=3, time=LATE)]:
        writer.append(message)
    writer.finish()
    result = run(tmp_path, "n1", "n2", "n3", "n4")
    assert {(f.klass, f.replica) for f in result.findings if f.fails} == {("divergence", "n4")}


def test_a_directory_that_changes_during_the_audit_is_incomplete(tmp_path: Path) -> None:
    """A node at work makes the verdict INCOMPLETE, never FAIL."""
    writers = write_cluster(tmp_path, history(2), clean=False)

    def while_reading(done: int, total: int) -> None:
        writers[0].write_space(
            writers[0].log / "data", bytes(writers[0].space), writers[0].data_bytes, ahead=True
        )

    result = audit([str(tmp_path / name) for name in NODES], progress=while_reading)
    assert result.verdict == "INCOMPLETE" and "n1 wrote while it was audited" in result.reasons[0]
