"""A cluster of bare cores in one thread: a log of (term, chain) pairs instead of bytes, a network
that loses, duplicates and reorders messages, and a disk that loses unsynced writes. After every
step the cluster checks I1, I3, I4, log matching, and that committed entries are durable.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from random import Random

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.effects import NO_WRITES, Effects, Writes
from ledgermq.raft.follower import chain_question
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import MemberChange
from ledgermq.raft.messages import NO_INDEX, Append, Extent, Message

Entry = tuple[int, int]
ENTRY_BYTES = 100


def chain(previous: int, term: int, value: int) -> int:
    return zlib.crc32(f"{term}/{value}".encode(), previous)


@dataclass
class Disk:
    """The log as written, and the part that survives a power cut."""

    hard_state: HardState = field(default_factory=HardState)
    written: list[Entry] = field(default_factory=lambda: [(0, 1)])
    durable: int = 0

    def runs(self) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        for index, (term, _) in enumerate(self.written):
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
        return runs


@dataclass
class Packet:
    message: Message
    entries: list[Entry]


class Member:
    """A core with the smallest correct driver for its effects."""

    core_type: type[Core] = Core
    keeps_votes = True
    """Whether the disk refuses to take back a vote, as the product's vote file does."""
    disk_full_share = 0.02

    def __init__(self, name: str, voters: tuple[str, ...], chance: Random, timing: Timing) -> None:
        self.name, self.voters, self.chance, self.timing = name, voters, chance, timing
        self.disk = Disk()
        self.directory = ""
        """The incarnation of its directory, which membership entries may name."""
        self.admitted = True
        self.said: dict[int, Members] = {}
        """Chain CRC → the members in the entry with this CRC; shared by all members."""
        self.syncing: tuple[int, int, list[Entry]] | None = None
        self.boots = 0
        self.slept_ns = 0
        """By how much its clock is behind, because it stood still while the machine was
        suspended."""
        self.told = NO_INDEX
        """The commit index that was taken last."""
        self.core: Core
        self.start(0)
        self.standing = self._standing()
        """Role, term, leader and members when it was taken last."""

    def start(self, now_ns: int) -> None:
        self.boots += 1
        self.syncing = None
        config = self.config()
        log = LogView(self.disk.runs(), len(self.disk.written) - 1)
        changes = [
            (index, self.said[word])
            for index, (_, word) in enumerate(self.disk.written)
            if word in self.said
        ]
        known = [(NO_INDEX, config.members), *changes]
        start = (config, log, self.disk.hard_state, self.chance, now_ns, min(0, log.end_index))
        self.core = self.core_type(*start, admitted=self.admitted, configurations=known)

    def _standing(self) -> tuple[object, ...]:
        return self.core.role, self.core.term, self.core.leader, self.core.members

    def config(self) -> RaftConfig:
        return RaftConfig(
            self.name, self.voters, self.boots, timing=self.timing, incarnation=self.directory
        )

    def crash(self) -> None:
        """Keep a random prefix of the unsynced writes, as recovery would."""
        keep = self.chance.randint(self.disk.durable, len(self.disk.written) - 1)
        del self.disk.written[keep + 1 :]
        self.disk.durable = keep

    def step(self, packet: Packet, now_ns: int) -> None:
        message, agree = packet.message, True
        if (
            isinstance(message, Append)
            and (at := chain_question(self.core.log, message)) is not None
        ):
            theirs = packet.entries[at - message.prev_index]
            agree = theirs[1] == self.disk.written[at][1]
        pushed = message.extent if isinstance(message, Append) else None
        members = (
            self.said[packet.entries[-1][1]] if pushed is not None and pushed.membership else None
        )
        self.core.step(message, now_ns, chains_agree=agree, members=members)
        if isinstance(message, Append):
            self.carry_out(self.core.take_writes(), message, packet.entries)

    def carry_out(self, writes: Writes, message: Append | None, entries: list[Entry]) -> None:
        if writes.hard_state is not None:
            old, new = self.disk.hard_state, writes.hard_state
            forward = new.term > old.term or (new.term == old.term and old.vote in (None, new.vote))
            assert forward or not self.keeps_votes, f"the hard state {old} was replaced by {new}"
            self.disk.hard_state = new
        if writes.truncate_from is not None:
            del self.disk.written[writes.truncate_from :]
            self.disk.durable = min(self.disk.durable, writes.truncate_from - 1)
        if writes.append is not None:
            assert message is not None
            first, last = writes.append
            assert first == len(self.disk.written)
            if self.chance.random() < self.disk_full_share:
                self.core.append_refused()
                return
            self.disk.written += entries[first - message.prev_index : last - message.prev_index + 1]
            self.core.append_written()

    def propose(self, count: int) -> None:
        first, term = len(self.disk.written), self.core.term
        for _ in range(count):
            self.disk.written.append(
                (term, chain(self.disk.written[-1][1], term, self.chance.getrandbits(30)))
            )
        self.appended(Extent(first, first + count - 1, term, count * ENTRY_BYTES))

    def appended(self, extent: Extent) -> None:
        self.core.appended(extent)

    def change(self, change: MemberChange, now_ns: int) -> str | None:
        """Propose a membership change on the leader. Returns the refusal, or None."""
        members = self.core.propose_members(change, now_ns)
        if isinstance(members, str):
            return members
        index, term = len(self.disk.written), self.core.term
        word = chain(self.disk.written[-1][1], term, self.chance.getrandbits(30))
        self.disk.written.append((term, word))
        self.said[word] = members
        self.core.appended(
            Extent(index, index, term, ENTRY_BYTES, membership=True), members=members
        )
        return None

    def take(self, now_ns: int) -> tuple[Effects, list[Packet]]:
        calm, stood = self.core.calm_until(now_ns) is not None, self.standing
        # Where the core says that nothing moved, look all the same.
        self.core.stirred = True
        effects = self.core.take(now_ns)
        assert not calm or effects == Effects(
            fence=None,
            writes=NO_WRITES,
            messages=(),
            pushes=(),
            commit_index=self.told,
            role_changed=False,
        ), f"{self.core} is not calm: {effects}"
        self.standing = self._standing()
        assert not calm or stood == self.standing, f"{self.core} is not calm: {stood}"
        self.told = effects.commit_index
        self.carry_out(effects.writes, None, [])
        packets = [Packet(m, self.payload(m)) for m in effects.messages]
        for push in effects.pushes:
            first, budget, ranges = push.first_index, push.size, push.ranges
            while budget > 0 and ranges > 0 and first <= self.core.log.end_index:
                ranges -= 1
                most = max(1, min(budget, self.timing.range_bytes_max) // ENTRY_BYTES)
                last = min(self.core.log.run_end(first), first + most - 1)
                marks = [
                    index
                    for index in range(first, last + 1)
                    if self.disk.written[index][1] in self.said
                ]
                last = last if not marks else max(first, marks[0] - 1)
                term = self.core.log.term_at(first)
                assert term is not None
                extent = Extent(
                    first,
                    last,
                    term,
                    (last - first + 1) * ENTRY_BYTES,
                    membership=marks[:1] == [first],
                )
                message = self.core.pushed(push.to, extent)
                packets.append(Packet(message, self.payload(message)))
                budget -= (last - first + 1) * ENTRY_BYTES
                first = last + 1
        return effects, packets

    def payload(self, message: Message) -> list[Entry]:
        """The entry before the range (for its chain) and the range."""
        if not isinstance(message, Append):
            return []
        if message.prev_index == NO_INDEX:
            return [(NO_INDEX, 0), *self.disk.written[: message.last_index + 1]]
        return self.disk.written[message.prev_index : message.last_index + 1]

    def begin_sync(self) -> None:
        if self.syncing is None and self.disk.durable < len(self.disk.written) - 1:
            term, index = self.core.sync_begins()
            self.syncing = (term, index, list(self.disk.written))

    def end_sync(self) -> None:
        """Make durable what was written when the sync began, unless it was truncated since."""
        if self.syncing is None:
            return
        term, index, then = self.syncing
        self.syncing = None
        same = 0
        while (
            same < min(len(then), len(self.disk.written)) and then[same] is self.disk.written[same]
        ):
            same += 1
        self.disk.durable = max(self.disk.durable, same - 1)
        self.core.synced(term, index)


class Cluster:
    """Members, network and checks. All randomness comes from one seed."""

    member_type: type[Member] = Member

    def __init__(self, size: int, seed: int) -> None:
        self.chance = Random(seed)
        self.now_ns = 0
        names = tuple(f"n{i + 1}" for i in range(size))
        timing = Timing(window_bytes=2000, range_bytes_max=500, window_ranges=6)
        self.members = {name: self.member_type(name, names, self.chance, timing) for name in names}
        self.network: list[Packet] = []
        self.down: dict[str, int] = {}
        self.suspended: dict[str, tuple[int, int]] = {}
        """Members whose machine is suspended: since when, and until when. They do nothing, and
        their clocks stand still."""
        self.cut: set[tuple[str, str]] = set()
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, Entry] = {0: (0, 1)}
        self.committed_in: dict[int, int] = {0: 0}
        """index → the first term in which a member reported it as committed"""
        self.seen: dict[tuple[int, int], int] = {}
        self.commits: dict[str, int] = {}
        self.fences: list[str] = []
        self.loss = self.chance.choice((0.0, 0.02, 0.2))
        self.repeat = self.chance.choice((0.0, 0.1))
        self.shuffle = self.chance.random() < 0.7
        self.pace_ms = self.chance.choice((30, 150, 400))
        self.calm = self.chance.choice((0.985, 0.95, 0.9))
        self.slow_disk = self.chance.choice((0.0, 0.0, 0.95))
        """`pace_ms`: how fast time passes relative to messages; at a high pace elections are
        frequent. A step injects a fault with probability 1 − `calm`. `slow_disk`: the probability
        that a running sync does not finish in a step."""

    def up(self) -> list[Member]:
        return [
            m
            for m in self.members.values()
            if m.name not in self.down and m.name not in self.suspended
        ]

    def now_of(self, member: Member) -> int:
        """The time of its own clock."""
        return self.now_ns - member.slept_ns

    def suspend(self, name: str, for_ns: int) -> None:
        if name not in self.down and name not in self.suspended:
            self.suspended[name] = self.now_ns, self.now_ns + for_ns

    def resume(self, name: str) -> None:
        since_ns, _ = self.suspended.pop(name)
        self.members[name].slept_ns += self.now_ns - since_ns

    def turn(self, member: Member) -> None:
        """Take the effects of a member, send its messages, and check the invariants."""
        effects, packets = member.take(self.now_of(member))
        if effects.fence is not None:
            self.fences.append(f"{member.name}: {effects.fence}")
        for packet in packets:
            if (
                packet.message.sender,
                packet.message.to,
            ) in self.cut or self.chance.random() < self.loss:
                continue
            self.network += [packet] * (2 if self.chance.random() < self.repeat else 1)
        self.check(member)
        self.watch(member, effects)

    def watch(self, member: Member, effects: Effects) -> None:
        """A hook for further checks after a turn."""

    def deliver(self) -> None:
        if not self.network:
            return
        packet = self.network.pop(self.chance.randrange(len(self.network)) if self.shuffle else 0)
        member = self.members[packet.message.to]
        if member.name in self.suspended:
            # Some packets wait for it in a buffer, the others are lost.
            if self.chance.random() < 0.5:
                self.network.append(packet)
        elif member.name not in self.down:
            member.step(packet, self.now_of(member))
            self.turn(member)

    def step(self) -> None:
        """One random event."""
        event = self.chance.random()
        member = self.chance.choice(self.up()) if self.up() else None
        if event < 0.55 and self.network:
            self.deliver()
        elif event < 0.7 and member:
            if member.syncing is None:
                member.begin_sync()
            elif self.chance.random() >= self.slow_disk:
                member.end_sync()
            self.turn(member)
        elif event < 0.82 and member:
            if member.core.accepting and len(member.disk.written) < 400:
                member.propose(self.chance.randint(1, 7))
                self.turn(member)
        elif event < self.calm:
            self.now_ns += round(self.chance.uniform(1, self.pace_ms) * MS)
            for each in self.up():
                if self.now_of(each) >= each.core.wake_at_ns(self.now_of(each)):
                    each.core.tick(self.now_of(each))
                    self.turn(each)
        else:
            self.disturb()
        for name in [n for n, (_, until) in self.suspended.items() if until <= self.now_ns]:
            self.resume(name)
        for name in [n for n, until in self.down.items() if until <= self.now_ns]:
            del self.down[name]
            self.members[name].start(self.now_of(self.members[name]))
            self.commits[name] = min(0, self.members[name].core.log.end_index)

    def disturb(self) -> None:
        what = self.chance.random()
        names = list(self.members)
        if what < 0.15:
            self.waste_a_leader()
        elif what < 0.4 and len(self.down) < len(names) - 1:
            name = self.chance.choice(names)
            if name not in self.down:
                self.members[name].crash()
                self.down[name] = self.now_ns + round(self.chance.uniform(1, 2000) * MS)
        elif what < 0.7:
            alone = self.chance.choice(names)
            self.cut |= {(alone, n) for n in names}
            if self.chance.random() < 0.6:
                self.cut |= {(n, alone) for n in names}
        else:
            self.cut.clear()

    def waste_a_leader(self) -> None:
        """A leader syncs entries that no other member receives, then stays silent for a while. This
        creates divergent log tails."""
        for leader in [m for m in self.up() if m.core.accepting]:
            leader.propose(1)
            leader.end_sync()
            leader.begin_sync()
            leader.end_sync()
            self.cut |= {(leader.name, n) for n in self.members} | {
                (n, leader.name) for n in self.members
            }
            self.turn(leader)

    def check(self, member: Member) -> None:
        core = member.core
        core.check_invariants()
        assert core.log.end_index == len(member.disk.written) - 1
        assert core.log.runs == tuple(member.disk.runs())
        assert core.durable_index <= member.disk.durable, (
            f"{member.name} reports more entries as durable than its disk holds"
        )
        if core.role is Role.LEADER:
            assert self.leaders.setdefault(core.term, member.name) == member.name, (
                f"I1: two leaders in term {core.term}"
            )
            for index, entry in self.committed.items():
                if self.committed_in[index] >= core.term:
                    continue
                assert index < len(member.disk.written) and member.disk.written[index] == entry, (
                    f"I3: {member.name} lacks {index}"
                )
        for index, (term, word) in enumerate(member.disk.written):
            assert self.seen.setdefault((index, term), word) == word, (
                f"I2: ({index}, {term}) has two different predecessors"
            )
        before = self.commits.get(member.name, 0)
        assert core.commit_index >= before, f"I4: the commit index of {member.name} went back"
        self.commits[member.name] = core.commit_index
        for index in range(before + 1, core.commit_index + 1):
            entry = member.disk.written[index]
            assert self.committed.setdefault(index, entry) == entry, (
                f"I3: two entries committed at {index}"
            )
            self.committed_in.setdefault(index, core.term)
        holders = [m for m in self.members.values() if m.disk.durable >= core.commit_index]
        holders = [
            m
            for m in holders
            if m.disk.written[core.commit_index] == member.disk.written[core.commit_index]
        ]
        assert len(holders) > len(self.members) // 2, (
            f"I5: entry {core.commit_index} committed but durable on only {len(holders)}"
        )

    def heal(self) -> None:
        """Heal all faults: the cluster must elect a leader, commit a new entry on all members, and
        have equal logs."""
        self.cut.clear()
        self.loss = self.repeat = 0.0
        self.shuffle = False
        for name in list(self.suspended):
            self.resume(name)
        for name in list(self.down):
            self.members[name].start(self.now_of(self.members[name]))
            self.commits[name] = min(0, self.members[name].core.log.end_index)
        self.down.clear()
        deadline = self.now_ns + 20_000 * MS
        target, proposed_in = -1, -1
        while self.now_ns < deadline:
            while self.network:
                self.deliver()
            for member in self.up():
                member.begin_sync()
                member.end_sync()
                self.turn(member)
            leader = next((m for m in self.up() if m.core.accepting), None)
            if leader is not None and leader.core.term != proposed_in:
                leader.propose(1)
                target, proposed_in = leader.core.log.end_index, leader.core.term
                self.turn(leader)
            if target >= 0 and all(m.core.commit_index >= target for m in self.members.values()):
                return
            if not self.network:
                self.now_ns += 10 * MS
                for member in self.up():
                    member.core.tick(self.now_of(member))
                    self.turn(member)
        raise AssertionError(
            f"no progress after healing: {[repr(m.core) for m in self.members.values()]}"
        )
