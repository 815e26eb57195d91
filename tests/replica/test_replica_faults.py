"""What goes wrong around a replica: divergent tails, late syncs, restarts that forgot, damaged
packets, failing disks."""

from __future__ import annotations

import errno
from random import Random

import numpy as np
import pytest

from ledgermq.node.broker.ports import Fenced, LogFull, PeerPacket
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.node.replica.consensus.replica_boot import bootstrap, membership
from ledgermq.node.replica.consensus.replica_wire import decode, encode, encode_append
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.ranges import tail_of
from ledgermq.proto.types import Role
from ledgermq.raft.config import MS
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteRequest
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state.identity import mint
from tests.replica.replica_cluster import CLUSTER, CREATED_MS, GROUP, NAMES, Node, Trio, messages


class Disks(dict[str, ForgetfulDisk]):
    """One forgetful disk per node."""

    def of(self, name: str) -> tuple[ForgetfulDisk, str]:
        self[name] = ForgetfulDisk()
        return self[name], f"/data/{name}"


@pytest.fixture
def disks() -> Disks:
    return Disks()


@pytest.fixture
def trio(disks: Disks) -> Trio:
    return Trio(disks.of)


def diverge(trio: Trio) -> int:
    """n1 leads term 1 and has a tail that no other node has; n2 leads term 2 with another tail.
    Returns the last common index."""
    old = trio.elect("n1")
    trio.propose(old, messages(5))
    trio.settle()
    common = old.replica.end_index
    trio.isolate("n1")
    trio.propose(old, messages(40, mark="lost"))
    trio.settle()
    new = trio.elect("n2")
    trio.propose(new, messages(39, mark="kept"))
    trio.settle()
    assert new.replica.commit_index == old.replica.end_index == common + 40
    return common


def forged(trio: Trio, node: Node, first: int, term: int, mark: str) -> PeerPacket:
    """A range that `node` might push as leader of `term`, after its own log was changed behind its
    back."""
    node.log.truncate_from(first)
    (entries,) = node.log.append_leader(
        term, messages(1, mark=mark), np.zeros(1, np.int64), CREATED_MS, bytes(8)
    )
    extent = Extent(first, first, term, len(entries.data))
    message = Append(
        sender=node.name,
        to="n2",
        term=max(term, 7),
        round=1,
        prev_index=first - 1,
        prev_term=node.log.term_at(first - 1),
        commit_index=0,
        extent=extent,
    )
    return encode_append(message, entries.prev_chain, entries)


def content(disk: ForgetfulDisk, name: str) -> dict[str, bytes]:
    prefix = f"/data/{name}/dledger-{name}/data/"
    return {
        path.removeprefix(prefix): disk.open(path).pread(0, 4096)
        for path in disk.files()
        if path.startswith(prefix)
    }


def test_a_divergent_tail_is_cut_and_replaced(trio: Trio, disks: Disks) -> None:
    """A deposed leader's own entries go away, over several files, and its bytes equal the others'
    afterwards, unused space included."""
    diverge(trio)
    trio.heal()
    trio.advance(300)
    assert trio["n1"].replica.status().extra["truncations"] == 1
    end = trio["n2"].replica.end_index
    assert [node.replica.commit_index for node in trio.nodes.values()] == [end] * 3
    ours, theirs = content(disks["n1"], "n1"), content(disks["n2"], "n2")
    assert ours.keys() & theirs.keys() > {f"{i * 4096:020d}" for i in range(2)}
    assert all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


@pytest.mark.parametrize("further", [0, 3])
def test_an_early_end_that_no_majority_has_is_cut(trio: Trio, disks: Disks, further: int) -> None:
    """A leader ends a file, and is deposed before another one has the entry behind it: the next
    leader continues in the old file."""
    old = trio.elect("n1")
    trio.propose(old, messages(5))
    trio.settle()
    index = old.replica.end_index
    trio.isolate("n1")
    trio.propose(old, messages(1, mark="lost"), new_file=True)
    trio.settle()
    assert old.replica.is_in_last_file(index + 1) and not old.replica.is_in_last_file(index)
    new = trio.elect("n2")
    trio.propose(new, messages(2, mark="kept"))
    if further:
        trio.propose(new, messages(further, mark="kept"), new_file=True)
    trio.heal()
    trio.advance(300)
    assert (
        trio.agree(new.replica.end_index) and trio["n1"].replica.status().extra["truncations"] == 1
    )
    assert trio["n1"].log.pos_of(index + 1) < 4096 and trio["n1"].log.end_pos == new.log.end_pos
    ours, theirs = content(disks["n1"], "n1"), content(disks["n2"], "n2")
    assert all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def test_a_follower_takes_an_early_end_when_its_next_file_is_made(trio: Trio) -> None:
    """It answers meanwhile, and nobody waits for it."""
    leader, jobs = trio.elect("n1"), []
    trio.propose(leader, messages(2))
    trio.settle()
    follower = trio["n2"]
    follower.log._data._submit = jobs.append
    assert leader.replica.prepare_file()
    trio.propose(leader, messages(1), new_file=True)
    trio.settle()
    trio.advance(500)
    end, term = leader.replica.end_index, leader.replica.term
    assert (leader.replica.commit_index, trio["n3"].log.end_index, follower.log.end_index) == (
        end,
        end,
        end - 1,
    )
    assert follower.replica.status().extra["refused-disk-full"] > 0 and len(jobs) == 1
    jobs.pop()()
    trio.advance(500)
    assert trio.agree(end) and (leader.replica.role, leader.replica.term) == (Role.LEADER, term)


def test_committed_entries_are_never_cut(trio: Trio) -> None:
    """A leader whose log contradicts a committed entry is wrong: the follower stops permanently
    (I2, I3), and its log is not changed."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(9))
    trio.settle()
    follower = trio["n2"]
    before = [follower.word(i) for i in range(follower.log.end_index + 1)]
    follower.replica.step(trio.now_ns, "n3", forged(trio, trio["n3"], 4, 7, "x"))
    with pytest.raises(Fenced, match="would replace entry 4, but entries up to 10 are committed"):
        follower.replica.take(trio.now_ns)
    assert [follower.word(i) for i in range(follower.log.end_index + 1)] == before
    with pytest.raises(Fenced):
        follower.replica.tick(trio.now_ns)
    assert follower.replica.status().fenced is not None


def test_another_history_of_the_same_term_fences(trio: Trio) -> None:
    """Same (index, term), other chain CRC: the follower stops (I2); it neither cuts nor appends."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(9))
    trio.settle()
    follower = trio["n2"]
    end = follower.word(follower.log.end_index)
    follower.replica.step(trio.now_ns, "n3", forged(trio, trio["n3"], 10, 1, "other"))
    with pytest.raises(Fenced, match="entry 10 of term 1 differs from that of n3"):
        follower.replica.take(trio.now_ns)
    assert follower.word(follower.log.end_index) == end


def test_another_history_before_the_range_fences(trio: Trio) -> None:
    """The chain CRC of the entry before a range is compared too, so nothing is appended to a
    different past."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(9))
    trio.settle()
    forged(trio, trio["n3"], 10, 1, "other")
    sender = trio["n3"]
    (entries,) = sender.log.append_leader(
        7, messages(1), np.zeros(1, np.int64), CREATED_MS, bytes(8)
    )
    message = Append(
        sender="n3",
        to="n2",
        term=7,
        round=1,
        prev_index=10,
        prev_term=1,
        commit_index=0,
        extent=Extent(11, 11, 7, len(entries.data)),
    )
    trio["n2"].replica.step(trio.now_ns, "n3", encode_append(message, entries.prev_chain, entries))
    with pytest.raises(Fenced, match="invariant I2"):
        trio["n2"].replica.take(trio.now_ns)


def test_sync_begun_before_a_cut_does_not_cover_replaced_entries(trio: Trio) -> None:
    """ABA: while the sync of the old tail runs, the tail is cut and refilled to the same length.
    Its success proves nothing about the new entries, and no reply claims them durable."""
    claims: list[AppendReply] = []

    def listen(sender: str, to: str, packet: PeerPacket) -> bool:
        message = decode(packet, sender).message
        if sender == "n1" and isinstance(message, AppendReply) and not message.rejected:
            claims.append(message)
        return True

    old = trio.elect("n1")
    trio.propose(old, messages(5))
    trio.settle()
    common = old.replica.end_index
    trio.isolate("n1")
    trio.stalled = {"n1"}
    trio.propose(old, messages(40, mark="lost"))
    late = old.ticket
    new = trio.elect("n2")
    trio.propose(new, messages(39, mark="kept"))
    trio.settle()
    trio.heal()
    trio.keep = listen
    trio.advance(300)
    assert old.word(old.log.end_index) == new.word(common + 40)
    assert old.ticket is late is not None
    assert max(reply.received for reply in claims) == common + 40
    trio.sync(old)
    assert old.replica.durable_index <= common
    assert max(reply.durable for reply in claims) <= common
    trio.stalled = set()
    trio.settle()
    assert old.replica.durable_index == common + 40
    assert max(reply.durable for reply in claims) == common + 40


def test_a_reborn_follower_that_lost_its_tail_is_not_counted_at_the_old_mark(trio: Trio) -> None:
    """W8 of DLedger: a follower comes back with a shorter log in the same term. Its new boot id
    lowers the leader's view, and what it lost is pushed again before anything is counted."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(20))
    trio.settle()
    follower = trio["n2"]
    trio.crash("n2")
    follower.log.truncate_from(8)
    follower.log.flush_mark()
    trio.restart("n2")
    trio.crash("n3")
    trio.propose(leader, messages(1))
    assert leader.replica.commit_index == 21
    seen: list[int] = []
    trio.watch = lambda t: (
        seen.append(leader.replica.core.peers["n2"].durable)
        if leader.replica.role is Role.LEADER
        else None
    )
    trio.advance(300)
    assert min(seen[1:]) <= 7
    assert leader.replica.commit_index == 22 == follower.replica.commit_index
    assert follower.word(22) == leader.word(22)


def test_late_replies_of_an_earlier_life_are_dropped(trio: Trio) -> None:
    """A reply with a retired boot id says nothing about the present log."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(3))
    trio.settle()
    trio.crash("n2")
    trio.restart("n2")
    trio.advance(200)
    peer = leader.replica.core.peers["n2"]
    before = (peer.received, peer.durable, peer.boot_id)
    late = AppendReply(
        sender="n2", to="n1", term=1, round=1, boot_id=1, rejected=False, received=4, durable=4
    )
    contact = peer.contact_ns
    trio.now_ns += MS
    leader.replica.step(trio.now_ns, "n2", encode(late))
    assert (peer.received, peer.durable, peer.boot_id, peer.contact_ns) == (*before, contact)


def test_any_changed_byte_of_a_packet_only_costs_the_packet(trio: Trio) -> None:
    """Header and payload flipped, cut and extended at many places: dropped and counted, never
    appended, no fence, no exception."""
    leader = trio.elect("n1")
    trio.keep = lambda sender, to, packet: to == "n2"
    trio.propose(leader, messages(3))
    (packet,) = [p for _, _, p in trio.network if len(p.payload)]
    follower = trio["n2"].replica
    end, chance, payload = follower.end_index, Random(5), bytes(packet.payload)
    damaged = [
        PeerPacket(packet.header, payload[:-1]),
        PeerPacket(packet.header, payload + b"\0"),
        PeerPacket(packet.header, b""),
    ]
    damaged += [PeerPacket(packet.header[:n], payload) for n in range(len(packet.header))]
    for part, other in ((packet.header, False), (payload, True)):
        for at in (
            range(len(part)) if not other else [chance.randrange(len(part)) for _ in range(200)]
        ):
            changed = bytearray(part)
            changed[at] ^= 1 << chance.randrange(8)
            damaged.append(
                PeerPacket(packet.header, bytes(changed))
                if other
                else PeerPacket(bytes(changed), payload)
            )
    for bad in damaged:
        follower.step(trio.now_ns, "n1", bad)
        assert follower.end_index == end
    follower.take(trio.now_ns)
    dropped = {
        key: count for key, count in follower.status().extra.items() if key.startswith("dropped")
    }
    assert sum(dropped.values()) == len(damaged), dropped
    follower.step(trio.now_ns, "n1", packet)
    assert follower.end_index == end + 3


def test_a_packet_in_a_false_name_is_dropped(trio: Trio) -> None:
    """The transport knows who sent it; the header must say the same."""
    trio.elect("n1")
    beat = encode_append(
        Append(sender="n1", to="n2", term=9, round=1, prev_index=0, prev_term=0, commit_index=0),
        0,
        None,
    )
    trio["n2"].replica.step(trio.now_ns, "n3", beat)
    assert (trio["n2"].replica.term, trio["n2"].replica.status().extra["dropped-stranger"]) == (
        1,
        1,
    )


def test_a_failed_sync_fences_for_ever(trio: Trio) -> None:
    """I9: after the first error of a group commit nothing is accepted, answered or synced again."""
    leader = trio.elect("n1")
    trio.propose(leader, messages(1))
    ticket = leader.ticket
    assert ticket is not None
    with pytest.raises(Fenced, match="sync of the log failed"):
        leader.replica.synced(trio.now_ns, ticket, OSError(errno.EIO, "I/O error"))
    for call in (
        lambda: leader.replica.take(trio.now_ns),
        lambda: leader.replica.tick(trio.now_ns),
        lambda: leader.replica.propose(trio.now_ns, messages(1), np.zeros(1, np.int64), CREATED_MS),
    ):
        with pytest.raises(Fenced):
            call()
    assert leader.replica.commit_index < leader.replica.end_index


def test_a_vote_that_cannot_be_stored_is_not_given(trio: Trio, disks: Disks) -> None:
    """The failing disk fences the voter before its answer exists."""

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "I/O error", path)

    candidate, voter = trio["n1"], trio["n2"]
    trio.down.add("n3")
    trio.now_ns += 3000 * MS
    candidate.replica.tick(trio.now_ns)
    trio.take(candidate)
    requests: list[PeerPacket] = []

    def catch(sender: str, to: str, packet: PeerPacket) -> bool:
        message = decode(packet, sender).message
        if isinstance(message, VoteRequest) and not message.pre and to == "n2":
            requests.append(packet)
            return False
        return True

    trio.keep = catch
    trio.deliver()
    (request,) = requests
    disks["n2"].on_sync = fail
    voter.replica.step(trio.now_ns, "n1", request)
    with pytest.raises(Fenced, match="term and vote could not be stored"):
        voter.replica.take(trio.now_ns)


def test_a_full_disk_refuses_clearly_and_writing_resumes(disks: Disks) -> None:
    """ENOSPC on the leader is LogFull with nothing appended; a follower drops the range, continues
    to answer, and catches up later."""
    trio = Trio(disks.of)
    leader = trio.elect("n1")
    trio.propose(leader, messages(8, size=100))
    trio.settle()
    disks["n2"].capacity_bytes = disks["n2"].used_bytes
    for _ in range(8):
        trio.propose(leader, messages(8, size=100))
        trio.settle()
    behind = trio["n2"].replica.end_index
    assert behind < leader.replica.commit_index
    assert trio["n2"].replica.status().extra["refused-disk-full"] > 0
    term = leader.replica.term
    trio.advance(2000)
    assert (leader.replica.role, leader.replica.term) == (Role.LEADER, term)
    disks["n2"].capacity_bytes = None
    trio.advance(500)
    assert trio["n2"].replica.commit_index == leader.replica.commit_index
    disks["n1"].capacity_bytes = disks["n1"].used_bytes
    end = leader.replica.end_index
    with pytest.raises(LogFull):
        for _ in range(20):
            end = leader.replica.end_index
            trio.propose(leader, messages(8, size=100))
            trio.settle()
    assert leader.replica.end_index == end
    trio.advance(1000)
    assert leader.replica.role is Role.LEADER
    disks["n1"].capacity_bytes = None
    trio.propose(leader, messages(8, size=100))
    trio.settle()
    assert leader.replica.commit_index == end + 8


def test_the_tail_of_a_range_is_the_range_of_the_tail(trio: Trio) -> None:
    """Cutting a range keeps positions, columns and chains right: the tail verifies on its own."""
    leader = trio.elect("n1")
    (entries,) = trio.propose(leader, messages(6))
    for first in range(entries.first_index, entries.last_index + 1):
        tail = tail_of(entries, first)
        again = verify_range(bytes(tail.data), first, tail.term, tail.pos, tail.prev_chain)
        assert (again.last_index, again.last_chain, again.starts.tolist()) == (
            tail.last_index,
            tail.last_chain,
            tail.starts.tolist(),
        )


def test_an_empty_or_damaged_log_does_not_start(disks: Disks) -> None:
    """A replica without its first entry, and one whose log recovery refused, never comes to
    life."""
    trio = Trio(disks.of)
    node = trio["n1"]
    node.log.truncate_from(0)
    with pytest.raises(ValueError, match="bootstrap it first"):
        rebuild(node)
    other = trio["n2"]
    trio.crash("n2")
    disks["n2"].flip("/data/n2/dledger-n2/data/00000000000000000000", 15)
    with pytest.raises(Fenced):
        other.start(trio.now_ns)


def rebuild(node: Node) -> RaftReplica:
    old = node.replica
    return RaftReplica(
        old.group, old.config, old.log, old._hard_state, Random(1), 0, store_host=bytes(8)
    )


def test_a_bootstrap_survives_a_power_cut_at_once() -> None:
    """The membership entry is on the medium when bootstrap returns: it counts as committed before
    anybody else is asked."""
    incarnation = "00000000-0000-4000-8000-000000000001"
    identity = mint(
        CLUSTER,
        GROUP,
        "n1",
        incarnation,
        CREATED_MS,
        data_file_bytes=16 << 10,
        index_file_bytes=32 * 64,
    )
    for seed in range(10):
        disk = ForgetfulDisk()
        disk.mkdirs("/n1")
        GroupStore.create(disk, "/n1", identity)
        bootstrap(GroupStore.open(disk, "/n1", identity).log, NAMES, CREATED_MS)
        disk.power_cut(Random(seed))
        reopened = GroupStore.open(disk.successor(), "/n1", identity)
        assert membership(reopened.log).voters == NAMES
