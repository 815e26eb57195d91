"""A replicator in memory for one node, consume queues in memory, and a bench that drives a `Group`
over both on virtual time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import count

import numpy as np

from ledgermq.node.broker.calls.consumer_calls import Ack, Change, Forward, Handle, Lease, Receive
from ledgermq.node.broker.calls.operator_calls import Configure, Mark, Trim
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched, TierMessage
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.group import Group, TurnOutput
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.ports import LogFull, NotLeader, PeerPacket, ReplicaOutput, SyncTicket
from ledgermq.node.replica.consensus.replica_boot import record_of
from ledgermq.proto.entries.entry_encoding import encode_entries, host_bytes
from ledgermq.proto.entries.entry_sealing import chain_seed, make_range, seal
from ledgermq.proto.entries.layout import Columns, java_hash
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.records import control
from ledgermq.proto.types import (
    I64,
    Draft,
    GroupConfig,
    Permission,
    Range,
    ReplicaStatus,
    Role,
    TopicConfig,
    TopicKind,
    UnsealedBatch,
)
from ledgermq.raft.config import Members
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.membership import MemberChange, changed
from ledgermq.raft.messages import LeaderContact
from ledgermq.raft.transfer import Cause, Handover, LeaderChange
from ledgermq.storage.files.errors import NoSpace
from ledgermq.storage.queues.consume_queue import Minimum, QueueUnits

Outcome = Result | Refused

MS = 1_000_000
SECOND = 1_000_000_000
LOG_ID = "00000000-0000-5000-8000-000000000001"
EPOCH_MS = 1_700_000_000_000


class MemoryLog:
    """The log of one or more replicas: contiguous sealed bytes, as ranges of one term each."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []

    @property
    def end_index(self) -> int:
        return self.ranges[-1].last_index if self.ranges else -1

    @property
    def end_pos(self) -> int:
        return self.ranges[-1].end_pos if self.ranges else 0

    @property
    def chain(self) -> int:
        return self.ranges[-1].last_chain if self.ranges else chain_seed(LOG_ID)

    def append(self, entries: Range) -> None:
        assert entries.first_index == self.end_index + 1 and entries.prev_chain == self.chain
        self.ranges.append(entries)

    def read(self, first_index: int) -> Range:
        entries = self.ranges[
            bisect_right(self.ranges, first_index, key=lambda r: r.first_index) - 1
        ]
        assert entries.first_index <= first_index <= entries.last_index, (
            f"entry {first_index} is not in the log"
        )
        return tail_of(entries, first_index)

    def record(self, physical_offset: int, size: int) -> bytes:
        entries = self.ranges[bisect_right(self.ranges, physical_offset, key=lambda r: r.pos) - 1]
        begin = physical_offset - entries.pos
        return bytes(entries.data[begin : begin + size])

    def index_at(self, physical_offset: int) -> int:
        return int.from_bytes(self.record(physical_offset - 48 + 8, 8), "big")

    def cut(self, end_index: int) -> None:
        """Drop all entries above `end_index`, which may be inside a batch."""
        while self.ranges and self.ranges[-1].first_index > end_index:
            self.ranges.pop()
        if self.ranges:
            self.ranges[-1] = cut(self.ranges[-1], end_index)
        assert self.end_index == end_index


class FakeReplicator:
    """Leads or follows when a test says so; commits synced entries, or as far as a test says."""

    def __init__(self, log: MemoryLog, node: str = "n1") -> None:
        self.log = log
        self.node = node
        self.role = Role.FOLLOWER
        self.term = 0
        self.leader: str | None = None
        self.begin_index = 0
        self.commit_index = -1
        self.durable_index = -1
        self.commit_at_once = True
        self.full = False
        self.full_for_control = False
        self.proposals: list[int] = []
        self.urgencies: list[tuple[bool, bool]] = []
        self.replicated: int | None = None
        """The replicated index, if it differs from the commit index."""
        self.hurried = 0
        self.watched = False
        self.last_contact: LeaderContact | None = None
        self.handover: Handover | None = None
        self.handover_failure = ""
        self.objection: str | None = None
        self.kept_up = True
        self.left = False
        self.full_nodes: frozenset[str] = frozenset()
        self.confirms = True
        """Whether questions of reads are answered in their turn, as in a group of one node;
        otherwise when the test says so."""
        self.questions: list[int] = []
        self.reads: list[tuple[int, int | None]] = []
        self.members = Members(("n1", "n2", "n3"))
        self.members_index = -1
        self.appointment: Appointment | None = None
        self.short = 0
        """How many members of the in-sync set are missing."""
        self.refusal = ""
        """Why the membership cannot be changed now."""
        self.owed: MemberChange | None = None
        self.files: list[int] = [0]
        """The first entry of each log file."""
        self.file_ready = True

    def propose_members(
        self, now_ns: int, change: MemberChange, queue_offsets: I64, store_ms: int
    ) -> Sequence[Range] | str:
        after = self.refusal or changed(self.members, change, self.log.end_index + 1)
        if isinstance(after, str):
            return after
        batch = encode_entries(
            [control.draft(record_of(after, change.reason), EPOCH_MS, LEVEL_MAX)]
        )
        ranges = self.propose(now_ns, batch, queue_offsets, store_ms, control=True)
        self.members, self.members_index = after, self.log.end_index
        return ranges

    def due_change(self, now_ns: int) -> MemberChange | None:
        return self.owed

    def read_index(self, token: int, now_ns: int) -> None:
        self.questions.append(token)

    def missing_isr(self, now_ns: int) -> int:
        return self.short

    @property
    def standing(self) -> tuple[Role, int, str | None, Members]:
        return self.role, self.term, self.leader, self.members

    @property
    def accepting(self) -> bool:
        return self.role is Role.LEADER and (self.handover is None or not self.handover.closed)

    def durable_indexes(self) -> dict[str, int]:
        return {self.node: self.commit_index, "n2": self.commit_index - 1}

    def keeps_up(self, node: str, now_ns: int) -> bool:
        return self.kept_up

    def lag_of(self, node: str) -> int:
        return 7

    def transfer(self, now_ns: int, to: str | None, cause: Cause, patience_ns: int) -> str | None:
        if self.objection is None:
            self.handover = Handover(to or "n2", cause, now_ns + patience_ns)
        return self.objection

    def note_full(self, nodes: frozenset[str]) -> None:
        self.full_nodes = nodes

    def leave(self) -> None:
        self.left = True

    def take_changes(self) -> Sequence[LeaderChange]:
        return ()

    def calm_until(self, now_ns: int) -> int | None:
        return None

    def watch(self, watched: bool) -> None:
        self.watched = watched

    @property
    def end_index(self) -> int:
        return self.log.end_index

    @property
    def replicated_index(self) -> int:
        return self.commit_index if self.replicated is None else self.replicated

    def tick(self, now_ns: int) -> None:
        pass

    def admit(self) -> None:
        pass

    def step(self, now_ns: int, sender: str, packet: PeerPacket) -> None:
        pass

    def synced(self, now_ns: int, ticket: SyncTicket, error: OSError | None) -> None:
        pass

    def request_flush(self) -> None:
        self.hurried += 1

    def propose(
        self,
        now_ns: int,
        batch: UnsealedBatch,
        queue_offsets: I64,
        store_ms: int,
        *,
        control: bool = False,
        urgent: bool = True,
        early: bool = False,
        new_file: bool = False,
    ) -> Sequence[Range]:
        if not self.accepting:
            raise NotLeader(self.leader)
        if self.full and not (control and not self.full_for_control):
            raise LogFull
        first, pos, chain = self.log.end_index + 1, self.log.end_pos, self.log.chain
        place = {"first_index": first, "term": self.term, "pos": pos, "prev_chain": chain}
        seal(
            batch,
            queue_offsets=queue_offsets,
            store_ms=store_ms,
            store_host=host_bytes("127.0.0.1", 1),
            **place,
        )
        self.log.append(make_range(batch, 0, len(batch), **place))
        self.proposals.append(len(batch))
        self.urgencies.append((urgent, early))
        if new_file:
            assert self.file_ready
            self.files.append(first)
        return self.log.ranges[-1:]

    def is_in_last_file(self, index: int) -> bool:
        return index >= self.files[-1]

    def prepare_file(self) -> bool:
        return self.file_ready

    def take(self, now_ns: int) -> ReplicaOutput:
        if self.commit_at_once and self.role is Role.LEADER:
            self.commit_index = self.log.end_index
        if self.confirms:
            self.reads += [
                (token, self.commit_index if self.role is Role.LEADER else None)
                for token in self.questions
            ]
            self.questions.clear()
        reads, self.reads = tuple(self.reads), []
        return ReplicaOutput((), None, self.commit_index, False, now_ns + SECOND, reads)

    def read(self, first_index: int, max_bytes: int) -> Range:
        return self.log.read(first_index)

    def status(self) -> ReplicaStatus:
        end = self.end_index
        return ReplicaStatus(
            "g", self.node, self.role, self.term, self.leader, 0, end, end, self.commit_index, -1
        )

    def lead(self, term: int) -> None:
        self.role, self.term, self.leader = Role.LEADER, term, self.node

    def follow(self, term: int, leader: str | None) -> None:
        self.role, self.term, self.leader = Role.FOLLOWER, term, leader
        self.handover = None


class MemoryQueues:
    """Consume queues in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.low: dict[tuple[str, int], int] = {}
        self.lasts: dict[tuple[str, int], tuple[int, int, int]] = {}
        """The last unit of each queue that a trim left empty."""
        self.full = False

    def next_offset(self, topic: str, queue: int) -> int:
        return len(self.rows.get((topic, queue), ()))

    def ends(self, topic: str, queues: int) -> tuple[int, ...]:
        return tuple(self.next_offset(topic, queue) for queue in range(queues))

    def next_offsets(self) -> dict[str, dict[int, int]]:
        out: dict[str, dict[int, int]] = {}
        for (topic, queue), rows in sorted(self.rows.items()):
            out.setdefault(topic, {})[queue] = len(rows)
        return out

    def min_offset(self, topic: str, queue: int) -> int:
        return self.low.get((topic, queue), 0)

    def minimums(self) -> dict[str, dict[int, Minimum]]:
        out: dict[str, dict[int, Minimum]] = {}
        for (topic, queue), low in sorted(self.low.items()):
            out.setdefault(topic, {})[queue] = low, self.lasts.get((topic, queue))
        return out

    def raise_minimums(self, begin_pos: int) -> None:
        for key, rows in self.rows.items():
            low = self.low.get(key, 0)
            if low == len(rows) or rows[low][0] >= begin_pos:
                continue
            self.low[key] = sum(position < begin_pos for position, _, _ in rows)
            if self.low[key] == len(rows):
                self.lasts[key] = rows[-1]
            else:
                self.lasts.pop(key, None)

    def forget(self, topic: str, queue: int) -> None:
        self.rows.pop((topic, queue), None)
        self.low.pop((topic, queue), None)
        self.lasts.pop((topic, queue), None)

    def begin_at(self, topic: str, queue: int, offset: int) -> None:
        assert (topic, queue) not in self.rows
        self.rows[topic, queue] = [(-1, 0, 0)] * offset
        self.low[topic, queue] = offset

    def append(self, columns: Columns) -> None:
        for i, topic in enumerate(columns.topic_of.tolist()):
            rows = self.rows.setdefault((columns.topics[topic], int(columns.queues[i])), [])
            offset = int(columns.queue_offsets[i])
            assert offset <= len(rows), "queue offsets are dense (I6)"
            if offset == len(rows):
                if self.full:
                    raise NoSpace("the disk is full")
                rows.append(
                    (
                        int(columns.physical_offsets[i]),
                        int(columns.sizes[i]),
                        int(columns.tags_codes[i]),
                    )
                )

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits:
        first = max(first, self.min_offset(topic, queue))
        rows = self.rows.get((topic, queue), [])[first : first + count]
        return QueueUnits(
            first,
            np.array([r[0] for r in rows], np.int64),
            np.array([r[1] for r in rows], np.int32),
            np.array([r[2] for r in rows], np.int64),
        )

    def truncate(self, ends: dict[str, dict[int, int]]) -> None:
        self.rows = {
            key: rows[: ends.get(key[0], {}).get(key[1], 0)] for key, rows in self.rows.items()
        }


class FakeTier:
    """An object store that has the whole log, from `begin_pos` on: it answers in the next turn,
    unless it is away or a test holds it."""

    def __init__(self, log: MemoryLog, queues: MemoryQueues) -> None:
        self._log = log
        self._queues = queues
        self.begin_pos = 0
        self.away = False
        self.held = False
        self.pending: list[TierFetch] = []
        self.asked: list[TierFetch] = []

    def take(self, fetches: Sequence[TierFetch]) -> None:
        self.pending += fetches
        self.asked += fetches

    def answers(self) -> list[TierFetched]:
        if self.held:
            return []
        pending, self.pending = self.pending, []
        return [
            TierFetched(fetch, failure="away") if self.away else self.answer(fetch)
            for fetch in pending
        ]

    def answer(self, fetch: TierFetch) -> TierFetched:
        """As a reader of the store answers: at least one message if it has one, and no fewer than
        fit."""
        rows = self._queues.rows[fetch.topic, fetch.queue]
        first = next(
            (o for o in range(fetch.first, fetch.begin) if rows[o][0] >= self.begin_pos),
            fetch.begin,
        )
        found: list[TierMessage] = []
        size = 0
        for position, length, _ in rows[first : min(fetch.begin, first + fetch.count)]:
            size += length
            if found and size > fetch.max_bytes:
                break
            found.append(TierMessage.of_entry(self._log.record(position - 48, length + 48)))
        return TierFetched(fetch, first, tuple(found))


class Bench:
    """One group on virtual time. `done` holds the answers by token; a second answer to a token
    fails at once."""

    def __init__(
        self, log: MemoryLog | None = None, settings: LeaderSettings | None = None, node: str = "n1"
    ) -> None:
        self.log = log or MemoryLog()
        self.settings = settings or LeaderSettings(times=LeaseTimes(handover_ns=0))
        self.replicator = FakeReplicator(self.log, node)
        self.queues = MemoryQueues()
        self.machine = Machine(self.queues, self.log.record, self.log.index_at)
        self.group = Group("g", node, self.replicator, self.machine, self.settings)
        self.now_ns = 10 * SECOND
        self.tokens = count(1)
        self.done: dict[int, Outcome] = {}
        self.output: TurnOutput | None = None
        self.tier = FakeTier(self.log, self.queues)

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + self.now_ns // MS

    def lead(self, term: int | None = None) -> None:
        self.replicator.lead(self.replicator.term + 1 if term is None else term)
        self.turn()

    def successor(
        self, term: int | None = None, *, end: int | None = None, snapshot: bool = False
    ) -> Bench:
        """Another replica of the log, up to entry `end` or to its end, leads at the same moment,
        after this one has given up its office. Its state is that of the log as far as it is
        committed, or of a snapshot, and the same either way (I8)."""
        term = self.replicator.term + 1 if term is None else term
        self.replicator.follow(term, None)
        self.turn()
        if end is not None:
            self.log.cut(end)
        new = Bench(self.log, self.settings, "n2" if self.replicator.node == "n1" else "n1")
        if snapshot:
            new.queues.rows = {key: list(rows) for key, rows in self.queues.rows.items()}
            new.machine.restore(self.machine.export(LOG_ID))
        new.now_ns, new.tokens, new.done = self.now_ns, self.tokens, self.done
        new.replicator.commit_index = self.replicator.commit_index
        new.turn()
        assert new.machine.export(LOG_ID) == self.machine.export(LOG_ID), "I8"
        new.lead(term)
        return new

    def turn(self, *calls: Call, at_ns: int | None = None) -> TurnOutput:
        if at_ns is not None:
            self.now_ns = at_ns
        return self.took(self.group.turn(self.now_ns, self.now_ms, [*self.tier.answers(), *calls]))

    def took(self, output: TurnOutput) -> TurnOutput:
        """Take note of what a turn left."""
        self.output = output
        for done in output.done:
            assert done.token not in self.done, f"token {done.token} was answered twice"
            self.done[done.token] = done.outcome
        self.tier.take(output.tier_fetches)
        self.check_known_queues()
        return output

    def check_known_queues(self) -> None:
        """No wake-up is missed: where the leader knows the queues with visible messages, no other
        queue has one, and a Receive that waits for one of them is examined next."""
        leader = self.group.leader
        polls = leader.polls
        for pair, listed in polls._known.items():
            others = [
                (*pair, queue)
                for queue in range(self.machine.topics[pair[1]].queues)
                if queue not in listed
            ]
            for key in others:
                assert not leader._picker.is_new(key), f"{key} has new messages"
                assert not list(leader.clock.ready(key)), (
                    f"{key} has messages that are visible again"
                )
            assert not listed or pair not in polls.waiting_for or pair in polls.woken, (
                f"{pair} waits, and is not woken"
            )
        assert {pair for pairs in polls.known_of.values() for pair in pairs} == polls._known.keys()

    def pass_time(self, ns: int) -> TurnOutput:
        return self.turn(at_ns=self.now_ns + ns)

    def ask(self, call: Call) -> Outcome | None:
        """Run one turn with this call. Returns its answer if there is one already."""
        self.turn(call)
        return self.done.get(call.token)  # type: ignore[union-attr]

    def configure(self, topic: str = "t", queues: int = 1, incarnation: int = 1) -> None:
        config = TopicConfig(
            "", topic, TopicKind.NORMAL, queues, Permission.READ_WRITE, incarnation
        )
        self.ask(Configure(next(self.tokens), topics=(config,)))

    def trim(self, index: int, *, stored: bool = True) -> None:
        """Let the log begin with this entry. With `stored`, the group is raised to the highest
        level."""
        if stored:
            self.raise_level()
        self.turn(self.trimming(index, stored=stored))

    def raise_level(self) -> None:
        for level in range(self.machine.level + 1, LEVEL_MAX + 1):
            self.turn(Mark(next(self.tokens), control.LevelRecord(level)))  # type: ignore[arg-type]

    def trimming(self, index: int, *, stored: bool) -> Trim:
        before, entries = (
            cut(self.log.read(index - 1), index - 1),
            tail_of(self.log.read(index), index),
        )
        named = entries.pos, before.term, before.last_chain, self.machine.begin_index
        return Trim(
            next(self.tokens), control.TrimRecord(index, *named, ((0, None),), "operator", stored)
        )

    def send(
        self, *bodies: str, topic: str = "t", queue: int = 0, tag: str | None = None
    ) -> Outcome | None:
        return self.ask(self.produce(*bodies, topic=topic, queue=queue, tag=tag))

    def produce(
        self, *bodies: str, topic: str = "t", queue: int = 0, tag: str | None = None
    ) -> Produce:
        return Produce(next(self.tokens), [draft(body, topic, queue, tag) for body in bodies])

    def send_of(
        self,
        message_group: str | None,
        *bodies: str,
        topic: str = "t",
        queue: int = 0,
        tag: str | None = None,
    ) -> None:
        """Send messages of one message group."""
        self.ask(
            Produce(
                next(self.tokens),
                [draft(body, topic, queue, tag, message_group) for body in bodies],
            )
        )

    def forward(self, lease: Lease, group: str = "g", topic: str = "t") -> bool:
        outcome = self.ask(Forward(next(self.tokens), handle(lease, group, topic)))
        return outcome.ok  # type: ignore[union-attr]

    def poll(
        self,
        group: str = "g",
        topic: str = "t",
        n: int = 32,
        invisible_ms: int | None = 10_000,
        wait_ns: int = 5 * SECOND,
        tags: Sequence[str] = (),
        client: str = "c",
        attempt_id: str = "",
    ) -> Receive:
        until, wanted = self.now_ns + wait_ns, TagFilter(frozenset(tags))
        return Receive(
            next(self.tokens),
            group,
            topic,
            client,
            wanted,
            n,
            invisible_ms,
            until,
            attempt_id=attempt_id,
        )

    def receive(self, **options: object) -> tuple[Lease, ...]:
        """A Receive that does not wait."""
        call = self.poll(wait_ns=0, **options)  # type: ignore[arg-type]
        outcome = self.ask(call)
        return outcome.leases  # type: ignore[union-attr]

    def ack(self, *leases: Lease, group: str = "g", topic: str = "t") -> tuple[bool, ...]:
        outcome = self.ask(
            Ack(next(self.tokens), [handle(lease, group, topic) for lease in leases])
        )
        return outcome.ok  # type: ignore[union-attr]

    def ack_only(self, *leases: Lease) -> None:
        """Acknowledge without waiting for the answer."""
        self.turn(Ack(next(self.tokens), [handle(lease) for lease in leases]))

    def change(
        self, lease: Lease, invisible_ms: int, group: str = "g", topic: str = "t"
    ) -> int | None:
        outcome = self.ask(
            Change(next(self.tokens), handle(lease, group, topic), invisible_ms, "c")
        )
        return outcome.lease_number  # type: ignore[union-attr]


def leading(queues: int = 1, max_attempts: int = 17, *, fifo: bool = False) -> Bench:
    """A leader with the topic `t` and the consumer group `g`."""
    bench = Bench()
    bench.lead(1)
    bench.configure("t", queues)
    groups = (GroupConfig("", "g", max_attempts, fifo=fifo),)
    bench.ask(Configure(next(bench.tokens), groups=groups))
    return bench


def draft(
    body: str,
    topic: str = "t",
    queue: int = 0,
    tag: str | None = None,
    message_group: str | None = None,
) -> Draft:
    properties = encode(Fields(message_id=f"id-{body[:20]}", tag=tag, message_group=message_group))
    return Draft(topic, queue, body.encode(), properties, EPOCH_MS, java_hash(tag) if tag else 0)


def handle(lease: Lease, group: str = "g", topic: str = "t") -> Handle:
    return Handle(group, topic, lease.queue, lease.queue_offset, lease.lease_number, lease.attempt)
