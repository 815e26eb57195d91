"""Lazy syncs of complete replicas on forgetful disks: when they start, that nothing waits forever
behind them, and what they may lose."""

from __future__ import annotations

import errno
from random import Random

import pytest

from ledgermq.node.broker.flush import LazySync, Unsynced
from ledgermq.node.broker.ports import Fenced
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_wire import decode
from ledgermq.node.replica.hosting.engine import as_fatal
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import Range
from ledgermq.raft.config import MS
from ledgermq.raft.messages import Append
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.durability import SyncJob
from tests.replica.replica_cluster import NAMES, Node, Trio, messages
from tests.replica.test_replica_faults import Disks

LAZY = LazySync()
DUE_MS = LAZY.thorough_ns // MS
INTERVAL_MS = LAZY.interval_ns // MS
ENOUGH = 200
"""Messages of more than four pages together."""


@pytest.fixture
def disks() -> Disks:
    return Disks()


@pytest.fixture
def trio(disks: Disks) -> Trio:
    """Files of 64 KiB: no roll comes between."""
    return Trio(disks.of, data_file_bytes=65536)


def send(trio: Trio, node: Node, count: int = 1, mark: str = "m") -> list[Range]:
    """Messages of the class `memory`."""
    return trio.propose(node, messages(count, mark=mark), urgent=False, early=True)


def durable(trio: Trio) -> set[int]:
    return {node.replica.durable_index for node in trio.up()}


def test_messages_in_memory_are_replicated_without_a_sync(trio: Trio) -> None:
    """The replicated index reaches them with the packets alone; no replica syncs and nothing is
    committed."""
    leader = trio.elect("n1")
    trio.advance(300)
    before = leader.replica.commit_index
    send(trio, leader, 3)
    trio.deliver()
    assert (leader.replica.replicated_index, leader.replica.commit_index) == (before + 3, before)
    assert [node.ticket for node in trio.nodes.values()] == [None] * 3
    assert durable(trio) == {before}


@pytest.mark.parametrize(("count", "after_ms"), [(1, DUE_MS), (ENOUGH, INTERVAL_MS)])
def test_they_are_committed_when_their_time_is_over(trio: Trio, count: int, after_ms: int) -> None:
    """Few bytes wait for the thorough interval, four pages for the short one; then all replicas
    sync together and the commit follows."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader, count)
    end = leader.replica.end_index
    trio.advance(after_ms - 200)
    assert leader.replica.commit_index == end - count and durable(trio) == {end - count}
    trio.advance(400)
    assert {node.replica.commit_index for node in trio.nodes.values()} == durable(trio) == {end}


def test_the_leader_asks_to_be_woken_when_the_sync_is_due(trio: Trio) -> None:
    """A replica without further input must not forget its lazy bytes; a follower requests a wake-up
    too."""
    leader = trio.elect("n1")
    trio.advance(300)
    written_ns = trio.now_ns
    send(trio, leader)
    trio.deliver()
    for node in trio.nodes.values():
        wake_ns = node.replica.take(trio.now_ns).wake_at_ns
        assert not node.log.durability.mark_pending or wake_ns <= written_ns + LAZY.thorough_ns
        node.replica.core.timer.due_ns = 1 << 61
        if (leading := node.replica.core.election.leading) is not None:
            leading.heartbeat_due_ns = leading.contact_due_ns = 1 << 61
        assert node.replica.take(trio.now_ns).wake_at_ns == written_ns + LAZY.thorough_ns


def test_urgent_entry_makes_earlier_entries_durable(trio: Trio) -> None:
    """A lease or a durable message behind messages from memory waits for one sync like any other,
    on every replica."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader, 5)
    trio.deliver()
    trio.propose(leader, messages(1))
    end = leader.replica.end_index
    assert leader.ticket is not None and (leader.ticket.entries, leader.ticket.size > 0) == (
        6,
        True,
    )
    trio.settle()
    assert leader.replica.commit_index == end and durable(trio) == {end}


def test_a_lazy_entry_caught_by_an_urgent_sync_is_committed_with_it(trio: Trio) -> None:
    """Its range was sent lazily before the sync began; the leader notifies its peers, and no timer
    is needed."""
    leader = trio.elect("n1")
    trio.advance(300)
    trio.propose(leader, messages(1))
    send(trio, leader, 2)
    trio.settle()
    trio.propose(leader, messages(1))
    trio.settle()
    assert {node.replica.commit_index for node in trio.nodes.values()} == {leader.replica.end_index}


def test_hurry_commits_at_once(trio: Trio) -> None:
    """A consumer waits for the messages after all."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader)
    trio.deliver()
    leader.replica.request_flush()
    trio.take(leader)
    trio.settle()
    assert leader.replica.commit_index == leader.replica.end_index and durable(trio) == {
        leader.replica.end_index
    }


def test_next_leader_commits_entries_held_by_a_majority(trio: Trio) -> None:
    """The old leader is gone without a sync anywhere; the messages are not, and a new leader does
    not wait with them."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader, 4)
    trio.deliver()
    kept = leader.replica.replicated_index
    word = leader.word(kept)
    trio.crash("n1")
    new = trio.elect("n2")
    assert new.replica.commit_index > kept and new.word(kept) == word


def test_a_follower_that_lost_its_memory_is_caught_up(trio: Trio, disks: Disks) -> None:
    """A power cut of one follower loses nothing: the leader forgets the state of the former
    process, pushes again, and progress continues."""
    leader = trio.elect("n1")
    trio.advance(300)
    durable_before = leader.replica.commit_index
    send(trio, leader, 4)
    trio.deliver()
    end = leader.replica.end_index
    trio.crash("n3")
    trio["n3"].disk = disks["n3"].successor()
    trio["n3"].disk.power_cut(Random(3))  # type: ignore[attr-defined]
    trio.restart("n3")
    assert durable_before <= trio["n3"].replica.end_index <= end
    assert leader.replica.replicated_index == end
    trio.advance(400)
    assert trio["n3"].replica.end_index == end
    trio.propose(leader, messages(1))
    trio.settle()
    assert leader.replica.commit_index == leader.replica.end_index and trio.agree(
        leader.replica.end_index
    )


def test_power_cut_of_all_keeps_durable_entries(trio: Trio, disks: Disks) -> None:
    """Every durable entry exists after the cut; of the others the replicas agree on some prefix and
    continue."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(3, mark="kept"))
    trio.settle()
    kept = leader.replica.commit_index
    word = leader.word(kept)
    send(trio, leader, 20)
    trio.deliver()
    for name in NAMES:
        trio.crash(name)
        trio[name].disk = disks[name].successor()
        trio[name].disk.power_cut(Random(name))  # type: ignore[attr-defined]
    for name in NAMES:
        trio.restart(name)
    best = max(trio.nodes.values(), key=lambda node: node.replica.end_index)
    trio.elect(best.name)
    trio.advance(400)
    assert {node.word(kept) for node in trio.nodes.values()} == {word}
    assert {node.replica.commit_index for node in trio.nodes.values()} == {best.replica.end_index}


def test_a_cut_of_lazy_entries_is_synced_at_once(trio: Trio) -> None:
    """What was cut off must not come back after a power cut: the zeros over it do not wait like the
    entries did."""
    old = trio.elect("n1")
    trio.advance(300)
    trio.isolate("n1")
    send(trio, old, 10, mark="lost")
    new = trio.elect("n2")
    trio.heal()
    trio.advance(200)
    assert (
        old.replica.end_index == new.replica.end_index
        and old.replica.durable_index == old.replica.end_index
    )
    assert not old.log.dirty


def test_only_entries_may_wait(trio: Trio) -> None:
    """A cut without anything in its place, as a full disk leaves it, and new names of files are
    synced at once, lazy entries or not."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader, 3)
    trio.deliver()
    follower = trio["n2"].replica
    follower.core.log_state.verified_index -= 1
    follower.core.log_state.cut_from(follower.end_index)
    follower.core.stirred = True
    assert follower.take(trio.now_ns).sync is not None
    other = trio["n3"].replica
    other.log.finish_sync(_synced(other), None)
    other.log._data.names_changed = True
    assert other.take(trio.now_ns).sync is not None


def _synced(replica: RaftReplica) -> SyncJob:
    """Make a replica's lazy entries durable behind its back."""
    job = replica.log.begin_sync()
    assert job is not None
    job.run()
    replica._unsynced.sync_begins()
    return job


def test_peers_are_told_in_the_turn_in_which_the_leader_begins(trio: Trio) -> None:
    """All copies become durable at the same time: the commit costs one sync, not two one after the
    other."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader)
    trio.settle()
    trio.now_ns += LAZY.thorough_ns
    output = leader.replica.take(trio.now_ns)
    told = [decode(packet, "n1").message for _, packet in output.packets]
    assert output.sync is not None and {
        message.to for message in told if isinstance(message, Append) and not message.lazy
    } == {"n2", "n3"}


def test_clean_stop_syncs_lazy_entries(trio: Trio) -> None:
    """Closing syncs the waiting bytes, so a cleanly stopped cluster has every message."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader, 3)
    trio.deliver()
    end = leader.replica.end_index
    for node in trio.nodes.values():
        node.store.close()
        store = GroupStore.open(node.disk.successor(), node.directory, node.identity)  # type: ignore[attr-defined]
        assert store.was_clean and store.log.end_index == store.log.durable_index == end


def test_the_mark_rests_while_lazy_bytes_wait(trio: Trio) -> None:
    """At rest the mark gets a sync of its own, but not one that would take lazy bytes along; with
    their sync it follows."""
    leader = trio.elect("n1")
    trio.settle()
    assert leader.log.durability.mark_pending
    send(trio, leader)
    trio.deliver()
    before = leader.log.durable_index
    trio.advance(300)
    assert leader.log.durable_index == before and leader.log.durability.mark_pending
    trio.advance(DUE_MS + 500)
    assert (
        leader.log.durable_index == leader.log.end_index and not leader.log.durability.mark_pending
    )


def test_a_failed_lazy_sync_fences_like_any_other(trio: Trio) -> None:
    """I9 in every policy: no second try, and the process ends with exit status 73."""
    leader = trio.elect("n1")
    trio.advance(300)
    send(trio, leader)
    trio.deliver()
    trio.stalled = set(NAMES)
    trio.advance(DUE_MS + 100)
    ticket = leader.ticket
    assert ticket is not None and ticket.entries == 1
    with pytest.raises(Fenced, match="sync of the log failed") as fenced:
        leader.replica.synced(trio.now_ns, ticket, OSError(errno.EIO, "I/O error"))
    assert as_fatal(fenced.value).exit_code == ExitCode.SYNC_FAILED == 73
    with pytest.raises(Fenced):
        leader.replica.take(trio.now_ns)


def test_unsynced_bytes_are_counted_from_sync_to_sync() -> None:
    """Enough bytes shorten the wait; a sync writes all of them, and the count restarts."""
    unsynced = Unsynced(LazySync(interval_ns=5, least_bytes=100, thorough_ns=50))
    unsynced.wrote(10, 2, 60)
    assert unsynced.due_ns() == 60
    unsynced.wrote(12, 1, 40)
    assert unsynced.due_ns() == 15
    assert unsynced.sync_begins() == (3, 100)
    assert unsynced.sync_begins() == (0, 0) and unsynced.due_ns() > 1 << 60
