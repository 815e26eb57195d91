"""Three replicas over real files: elect, replicate, catch up, restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.node.broker.ports import NotLeader, Replicator
from ledgermq.node.replica.consensus.replica_boot import bootstrap, membership
from ledgermq.proto.types import Role
from ledgermq.raft.config import MS
from ledgermq.storage.files.real_disk import RealDisk
from tests.replica.replica_cluster import CREATED_MS, NAMES, Trio, messages


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(lambda name: (RealDisk(), str(tmp_path / name)))


def files(tmp_path: Path, name: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted((tmp_path / name / f"dledger-{name}" / "data").iterdir())
        if path.suffix == ""
    }


def test_the_replica_is_a_replicator(trio: Trio) -> None:
    """The class has every member of the port; the assignment is checked by the type checker."""
    port: Replicator = trio["n1"].replica
    assert (port.begin_index, port.end_index, port.durable_index, port.commit_index) == (0, 0, 0, 0)


def test_every_replica_bootstraps_the_same_membership_entry(trio: Trio) -> None:
    """Index 0, term 0, equal chain CRC everywhere, and the voters can be read back."""
    assert {node.word(0) for node in trio.nodes.values()} == {trio["n1"].word(0)}
    assert trio["n2"].log.term_at(0) == 0
    assert membership(trio["n3"].log).voters == NAMES


def test_repeated_bootstrap_writes_one_entry(trio: Trio) -> None:
    """The entry is written once."""
    before = trio["n1"].word(0)
    bootstrap(trio["n1"].log, NAMES, CREATED_MS)
    assert (trio["n1"].log.end_index, trio["n1"].word(0)) == (0, before)


def test_proposals_commit_everywhere_and_files_are_equal(trio: Trio, tmp_path: Path) -> None:
    """Batches that cross log files arrive byte-identical on all replicas, and the commit index
    follows without any timer."""
    leader = trio.elect("n1")
    for i in range(12):
        trio.propose(leader, messages(7, mark=f"b{i}-"))
    trio.settle()
    end = leader.replica.end_index
    assert end == 1 + 12 * 7
    assert [node.replica.commit_index for node in trio.nodes.values()] == [end] * 3
    assert files(tmp_path, "n1") == files(tmp_path, "n2") == files(tmp_path, "n3")
    assert len(files(tmp_path, "n1")) >= 4


def test_followers_refuse_proposals(trio: Trio) -> None:
    """A proposal to a follower names the leader and appends nothing."""
    trio.elect("n1")
    end = trio["n2"].replica.end_index
    with pytest.raises(NotLeader) as refusal:
        trio.propose(trio["n2"], messages(1))
    assert (refusal.value.leader, trio["n2"].replica.end_index) == ("n1", end)


def test_a_replica_that_was_down_catches_up_without_new_writes(trio: Trio) -> None:
    """User pain 7: the leader reads what is missing from its own log, by ranges, with no traffic
    from clients."""
    leader = trio.elect("n1")
    trio.crash("n3")
    for _ in range(10):
        trio.propose(leader, messages(20))
        trio.settle()
    assert trio["n3"].log.end_index < leader.replica.commit_index
    trio.restart("n3")
    trio.advance(400)
    assert trio["n3"].replica.commit_index == leader.replica.commit_index
    assert trio.agree(leader.replica.end_index)


def test_full_restart_keeps_the_log_and_commits_in_a_new_term(trio: Trio) -> None:
    """Term, vote and log survive; the next leader commits the old entries through one of its
    own."""
    leader = trio.elect("n2")
    trio.propose(leader, messages(30))
    trio.settle()
    before = [leader.word(i) for i in range(leader.log.end_index + 1)]
    for name in NAMES:
        trio.crash(name)
    for name in NAMES:
        trio.restart(name)
    assert {node.replica.term for node in trio.nodes.values()} == {1}
    again = trio.elect("n3")
    assert again.replica.term == 2
    assert [again.word(i) for i in range(len(before))] == before
    assert {node.replica.commit_index for node in trio.nodes.values()} == {len(before)}


def test_commit_needs_no_third_replica_and_no_heartbeat(trio: Trio) -> None:
    """With one replica down, a proposal commits on the other two without any passage of time."""
    leader = trio.elect("n1")
    trio.crash("n2")
    now = trio.now_ns
    trio.propose(leader, messages(3))
    trio.settle()
    assert trio.now_ns == now
    assert (
        leader.replica.commit_index == leader.replica.end_index == trio["n3"].replica.commit_index
    )


def test_a_leader_without_contact_steps_down(trio: Trio) -> None:
    """Check-quorum: after one maximum election timeout without answers there is no leader that
    could acknowledge anything."""
    leader = trio.elect("n1")
    trio.down |= {"n2", "n3"}
    trio.advance(700)
    assert leader.replica.role is Role.LEADER
    trio.advance(200)
    assert leader.replica.role is not Role.LEADER


def test_status_shows_peers_to_the_leader_only(trio: Trio) -> None:
    """The leader lists the progress of the others; a follower lists no peers."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(4))
    trio.settle()
    status = leader.replica.status()
    assert [(p.node, p.end_index, p.durable_index) for p in status.peers] == [
        ("n2", 5, 5),
        ("n3", 5, 5),
    ]
    follower = trio["n2"].replica.status()
    assert (follower.role, follower.leader, follower.peers) == (Role.FOLLOWER, "n1", ())


def test_the_synced_mark_follows_at_rest(trio: Trio) -> None:
    """After 100 ms without a write one more sync brings the mark up, and then none is started any
    more."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(4))
    trio.settle()
    assert leader.log.durability.mark_pending
    trio.advance(300)
    assert not leader.log.durability.mark_pending
    assert leader.ticket is None
    assert leader.last is not None and leader.last.wake_at_ns <= trio.now_ns + 100 * MS


def test_cheap_invariants_are_checked_in_every_turn_and_all_of_them_at_their_pace(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a node; in tests all of them are checked in every turn."""
    leader = trio.elect("n1").replica
    assert leader.check_every_ns == 0
    monkeypatch.setattr(leader, "check_every_ns", 50 * MS)
    checked: list[int] = []
    monkeypatch.setattr(leader.core, "check_invariants", lambda: checked.append(trio.now_ns))
    began_ns = trio.now_ns
    for _ in range(11):
        leader.take(trio.now_ns)
        trio.now_ns += 10 * MS
    assert checked == [began_ns, began_ns + 50 * MS, began_ns + 100 * MS]
    leader.core.log_state.commit_index = leader.end_index + 1
    with pytest.raises(AssertionError):
        leader.take(trio.now_ns)


def test_a_silent_quorum_ends_leadership_in_time_although_the_slack_shrinks(trio: Trio) -> None:
    """The time of the next look is set at a heartbeat. Less slack is left when it comes, and the
    leader counts with that."""
    leader = trio.elect("n1").replica
    began_ns = trio.now_ns
    leader.core.timer.note_silence(2000 * MS, began_ns)
    for ms in range(0, 3501, 100):
        leader.tick(began_ns + ms * MS)
        leader.take(began_ns + ms * MS)
    assert leader.role is Role.LEADER and 0 < leader.core.slack_ms < 3200
    leader.tick(began_ns + 3558 * MS)
    assert leader.role is Role.FOLLOWER
