"""Lite topics at the leader: changes clients' sets, removes dead clients' sets, and serves Receives
from the lite topics of a client's set.

A lite topic is one ordered queue, locked as a whole: while a consumer group has a message of it
under a running lease, no client of the group gets another one. When all leases in flight have
ended, those messages are delivered again from the first on. Until all of them are done, the group
gets no new one.

A client may read from thousands of lite topics, so those without messages are not examined: each
client has a list of lite topics that may have some, which grows when messages arrive, leases end
and sets grow. The list may contain too much, but never too little. Examining a lite topic removes
it from the list if it is empty or locked; the event that unlocks it adds it again. All of this is
local to the leader; the next leader rebuilds it (`lead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ledgermq.node.broker.calls.consumer_calls import (
    Lease,
    LiteSynced,
    Receive,
    SyncLite,
    client_of,
)
from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import Effects, LeaderPart, Takers
from ledgermq.node.broker.parts.dead_letters.dead_lettering import DeadLettering
from ledgermq.node.broker.parts.ports import WaitingReceives
from ledgermq.node.broker.plan import NEVER_NS, Leased, Plan, Poll
from ledgermq.node.broker.ports import ReadBudget
from ledgermq.node.broker.queues import LiteKey, Pair, QueueKey, lite_pair
from ledgermq.node.broker.uncommitted import (
    UncommittedState,
    group_name,
    reset_pair_name,
    topic_name,
)
from ledgermq.proto.names import LITE_SEPARATOR, lite_stored, parse_lite
from ledgermq.proto.records import control
from ledgermq.proto.types import TopicKind

LOOKS = 8
"""How often within the liveness limit the leader looks for dead clients."""
SETS_MAX = 1_000_000
"""Limit of the names in all sets of a broker group."""


@dataclass(slots=True)
class _Found:
    """The messages of one lite topic for a Receive."""

    topic: str
    offsets: list[int]
    attempts: list[int]
    records: list[bytes]


class LiteServer(LeaderPart):
    """The lite topics of one broker group, on its leader."""

    def __init__(
        self,
        machine: Machine,
        ready: Callable[[QueueKey], Iterable[int]],
        uncommitted: UncommittedState,
        polls: WaitingReceives,
        dead_lettering: DeadLettering,
        liveness_ns: int,
        max_bytes: int,
        topics_max: int,
        budget: ReadBudget,
    ) -> None:
        """`ready(queue)`: the offsets that are visible again, as `LeaseClock.ready`."""
        self._machine = machine
        self._ready = ready
        self._uncommitted = uncommitted
        self._polls = polls
        self._dead_lettering = dead_lettering
        self._liveness_ns = liveness_ns
        self._max_bytes = max_bytes
        self._topics_max = topics_max
        self._budget = budget
        self._maybe: dict[LiteKey, dict[str, None]] = {}
        """Stored lite topics that may have messages for a client, longest listed first."""
        self.seen: dict[str, int] = {}
        """The last sign of life of each client with a set."""
        self.pending = self._silent = dict[str, None]()
        """Clients whose sets are to be emptied."""

    # Leadership

    def lead(self, now_ns: int) -> None:
        """Start over from the applied state; every client counts as alive now."""
        self.resign()
        for key in self._machine.lite.all():
            self.seen[key[2]] = now_ns
            self._list(key, self._machine.lite.names(key))
        self._look_at(now_ns)

    def resign(self) -> None:
        self._maybe.clear()
        self.seen.clear()
        self._silent.clear()
        self.due_ns = NEVER_NS

    def _look_at(self, now_ns: int) -> None:
        """Set when the signs of life of clients with a set are looked at next."""
        self.due_ns = now_ns + self._liveness_ns // LOOKS if self.seen else NEVER_NS

    def follow(self, effects: Effects, now_ns: int) -> None:
        """Entries were applied while there are sets, or that changed some: list the lite topics
        that may have messages now, for the clients that read them."""
        for topic in effects.topics:
            self._wake(topic, self._machine.lite.readers(topic))
        for group, topic in dict.fromkeys(
            (key[0], key[1]) for key, _ in effects.touched if LITE_SEPARATOR in key[1]
        ):
            self.unlocked(group, topic)
        for key, names in effects.lite:
            self.seen.setdefault(key[2], now_ns)
            if self.due_ns == NEVER_NS:
                self._look_at(now_ns)
            if not self._machine.lite.size(key):
                self._maybe.pop(key, None)
            else:
                self._list(key, names)

    def unlocked(self, group: str, topic: str) -> None:
        """A message in flight of a consumer group was acknowledged, changed, or is visible
        again."""
        self._wake(
            topic, (reader for reader in self._machine.lite.readers(topic) if reader[0] == group)
        )

    def _wake(self, topic: str, readers: Iterable[tuple[str, str]]) -> None:
        parent, _ = parse_lite(topic)
        for group, client in readers:
            self._maybe.setdefault((group, parent, client), {})[topic] = None
            self._polls.wake(lite_pair(group, parent, client))

    def _list(self, key: LiteKey, names: Iterable[str]) -> None:
        group, parent, client = key
        listed = self._maybe.setdefault(key, {})
        for name in names:
            topic = lite_stored(parent, name)
            if self._machine.delivery.cursor((group, topic, 0)) < self._machine.end(
                topic, 0
            ) or self._rows((group, topic, 0)):
                listed[topic] = None
        if listed:
            self._polls.wake(lite_pair(group, parent, client))
        else:
            del self._maybe[key]

    def _rows(self, key: QueueKey) -> int:
        queue = self._machine.delivery.queues.get(key)
        return 0 if queue is None else len(queue.rows)

    # Clients

    def alive(self, clients: Sequence[str], at_ns: int) -> None:
        """Record signs of life, given by session or client id."""
        if self.seen:
            for client in map(client_of, clients):
                if client in self.seen:
                    self.seen[client] = max(self.seen[client], at_ns)

    def gone(self, client: str, at_ns: int) -> None:
        if client in self.seen:
            self._silent[client] = None

    def expire(self, now_ns: int) -> None:
        """Find clients that have shown no sign of life for too long."""
        for client, seen_ns in list(self.seen.items()):
            if not any(self._machine.lite.of_client(client)):
                del self.seen[client]
            elif seen_ns + self._liveness_ns <= now_ns:
                self._silent[client] = None
        self._look_at(now_ns)

    def end_plan(self, plan: Plan) -> None:
        """Plan records that empty the sets of clients that are gone. A client that comes back
        starts with a new set."""
        if plan.full:
            return
        dropped: list[str] = []
        for client in self._silent:
            keys = list(self._machine.lite.of_client(client))
            if any(self._uncommitted.configuring(_set_name(key)) is not None for key in keys):
                continue
            dropped.append(client)
            for key in keys:
                self._uncommitted.mark_name(plan.next_index, _set_name(key))
                group, topic, _ = key
                record = control.LiteRecord(group=group, topic=topic, client=client, whole=True)
                plan.drafts.append(control.draft(record, plan.now_ms))
                plan.count("lite_sets_dropped")
        if dropped:
            plan.kept.append(lambda _: self._forget(dropped))

    def _forget(self, clients: list[str]) -> None:
        for client in clients:
            self._silent.pop(client, None)
            self.seen.pop(client, None)

    # Sets

    def decide(self, plan: Plan, call: SyncLite) -> None:
        """Change a client's set. If it already is as requested, nothing is written."""
        lite = self._machine.lite
        key = (call.group, call.topic, call.client_id)
        config = self._machine.topics.get(call.topic)
        if config is None or config.kind is not TopicKind.LITE:
            plan.refuse(call.token, "unknown-topic", call.topic)
            return
        if any(
            self._uncommitted.configuring(n) is not None
            for n in (topic_name(call.topic), group_name(call.group), _set_name(key))
        ):
            plan.deferred.append(call)
            return
        if call.client_id in self.seen:
            self.seen[call.client_id] = max(self.seen[call.client_id], plan.now_ns)
        self._silent.pop(call.client_id, None)
        if call.version and call.version < lite.version(key):
            plan.assured.append(Done(call.token, LiteSynced(lite.size(key))))
            return
        wanted = dict.fromkeys(call.names)
        new = (
            [] if call.action == "remove" else [name for name in wanted if not lite.has(key, name)]
        )
        lost: list[str] = []
        if call.action == "remove":
            lost = [name for name in wanted if lite.has(key, name)]
        elif call.action == "set":
            lost = [name for name in lite.names(key) if name not in wanted]
        size = lite.size(key) + len(new) - len(lost)
        if new and (size > call.limit or lite.count + len(new) > SETS_MAX):
            plan.refuse(
                call.token,
                "lite-subscriptions",
                f"{size} lite topics in the set of one client; the limit is {call.limit}",
            )
            return
        if not new and not lost:
            plan.assured.append(Done(call.token, LiteSynced(size)))
            return
        positions = tuple(
            [(name, at) for name in new if (at := self._start(call, name)) is not None]
        )
        record = control.LiteRecord(
            group=call.group,
            topic=call.topic,
            client=call.client_id,
            version=call.version,
            added=tuple(new),
            removed=tuple(lost),
            positions=positions,
        )
        index = plan.next_index
        plan.drafts.append(control.draft(record, plan.now_ms))
        plan.size += 64 * (len(new) + len(lost))
        self._uncommitted.mark_name(index, _set_name(key))
        for name, _ in positions:
            # A lease planned before this record is applied would begin at the group's former
            # position.
            self._uncommitted.mark_name(
                index, _lease_name((call.group, lite_stored(call.topic, name), 0))
            )
        plan.awaited.append((index, call.token, LiteSynced(size)))
        plan.count("lite_sets_changed")

    def _start(self, call: SyncLite, name: str) -> int | None:
        """The offset at which the group must begin in a lite topic; None: its former position, or
        the end if it has none."""
        topic = lite_stored(call.topic, name)
        begin, end = self._machine.begin(topic, 0), self._machine.end(topic, 0)
        if call.start == "last":
            return None
        if call.start == "time":
            return self._machine.offset_at(topic, 0, call.start_at)
        at = {"min": begin, "max": end, "offset": call.start_at, "tail": end - call.start_at}[
            call.start
        ]
        return min(max(at, begin), end)

    def crowded(self, plan: Plan, call: Produce) -> str | None:
        """Why the limit forbids the lite topics that a send would create; None if it does not.
        Unapplied entries are not counted, so the limit may be exceeded slightly."""
        for draft in call.drafts:
            parent = parse_lite(draft.stored_topic)[0]
            known = self._machine.lite_topics(parent)
            if draft.stored_topic in known:
                continue
            new = plan.lite_new.setdefault(parent, {})
            new[draft.stored_topic] = None
            if len(known) + len(new) > self._topics_max:
                del new[draft.stored_topic]
                return (
                    f"topic {parent} has {len(known)} lite topics with messages in this broker"
                    f" group; the limit is {self._topics_max}"
                )
        return None

    CALLS: ClassVar[Takers] = {SyncLite: decide}

    # Receives

    def serve(self, plan: Plan, pair: Pair) -> None:
        """Serve the Receives of one client, longest waiting first, until no messages are left for
        them."""
        for poll in self._polls.waiting(pair):
            call = poll.call
            if not self._budget.open:
                return
            if self._budget.crowded and not self._budget.admits(call.token):
                continue
            config = self._machine.topics.get(call.topic)
            if config is None:
                plan.unserved.append(poll)
                continue
            if any(
                self._uncommitted.configuring(n) is not None
                for n in (topic_name(call.topic), group_name(call.group))
            ):
                return
            found = self._pick(call)
            if not found:
                plan.settled.append((pair, False))
                return
            self._lease(plan, poll, found)

    def _pick(self, call: Receive) -> list[_Found]:
        key = (call.group, call.topic, client_of(call.client_id))
        listed = self._maybe.get(key, {})
        found: list[_Found] = []
        count = size = 0
        for topic in list(listed):
            if count >= call.max_messages or size >= self._max_bytes:
                break
            queue_key = (call.group, topic, 0)
            waits_for = _lease_name(queue_key), reset_pair_name(call.group, topic)
            if any(self._uncommitted.configuring(name) is not None for name in waits_for):
                continue
            one = self._look(queue_key, call.max_messages - count, self._max_bytes - size)
            if one is None or not self._machine.lite.has(key, parse_lite(topic)[1]):
                del listed[topic]
                # This very plan may be what locks it, and the log may refuse the plan.
                self._uncommitted.on_rollback(
                    lambda topic=topic: self._maybe.setdefault(key, {}).setdefault(topic)  # type: ignore[misc]
                )
            else:
                found.append(one)
                count += len(one.records)
                size += sum(map(len, one.records))
        if not listed:
            self._maybe.pop(key, None)
        return found

    def _look(self, key: QueueKey, most: int, max_bytes: int) -> _Found | None:
        """The next messages of a lite topic; None if it is empty or locked."""
        machine, topic = self._machine, key[1]
        again = sorted(self._ready(key))
        if self._rows(key) > len(again) or any(
            self._uncommitted.pending(key, offset) is not None for offset in again
        ):
            return None
        first = max(machine.delivery.cursor(key), machine.begin(topic, 0))
        found = _Found(topic, [], [], [])
        size = 0
        for offset in [*again, *range(first, min(machine.end(topic, 0), first + most))][:most]:
            row = machine.delivery.row(key, offset)
            attempt = 1 if row is None else row.attempt + 1
            # What was handed out comes again alone; what never was, or was resent from the dead
            # letters, comes behind it.
            if size >= max_bytes or (
                found.attempts and (attempt > 1) is not (found.attempts[0] > 1)
            ):
                break
            positions, sizes, _ = machine.units(topic, 0, offset, 1)
            found.offsets.append(offset)
            found.attempts.append(attempt)
            found.records.append(machine.record(int(positions[0]), int(sizes[0])))
            size += int(sizes[0])
        return found if found.records else None

    def _lease(self, plan: Plan, poll: Poll, found: list[_Found]) -> None:
        """Plan one record per lite topic. The Receive is answered when the last one is applied."""
        call = poll.call
        leases: list[Lease] = []
        index = -1
        for one in found:
            self._give_up(plan, (call.group, one.topic, 0), one)
            if not one.records:
                continue
            index = plan.next_index
            leased = ((0, tuple(one.offsets), tuple(one.attempts)),)
            plan.drafts.append(
                control.draft(
                    control.LeaseRecord(
                        call.group, one.topic, call.client_id, call.invisible_ms, leased
                    ),
                    plan.now_ms,
                )
            )
            self._uncommitted.mark_name(index, _lease_name((call.group, one.topic, 0)))
            for offset, attempt, record in zip(one.offsets, one.attempts, one.records, strict=True):
                leases.append(
                    Lease(
                        queue=0,
                        queue_offset=offset,
                        lease_number=index,
                        attempt=attempt,
                        record=record,
                        topic=one.topic,
                    )
                )
                if attempt > 1:
                    self._uncommitted.mark_row(index, (call.group, one.topic, 0), offset)
                    plan.count("leased_again")
            plan.count("leased", len(one.records))
            repeated = sum([attempt > 1 for attempt in one.attempts])
            plan.traffic.append(
                Leased(
                    call.group, one.topic, len(one.records), sum(map(len, one.records)), repeated
                )
            )
        if leases:
            self._budget.take(call.token, sum([len(lease.record) for lease in leases]))
            plan.leased.append((index, poll, tuple(leases)))

    def _give_up(self, plan: Plan, key: QueueKey, found: _Found) -> None:
        """Make dead letters of the messages that used up their attempts, and keep the others. While
        a dead letter cannot be written, all messages stay in place."""
        limit = self._dead_lettering.max_attempts(key[0])
        exhausted = [
            offset
            for offset, attempt in zip(found.offsets, found.attempts, strict=True)
            if attempt > limit
        ]
        if exhausted and plan.full:
            found.records.clear()
            return
        for offset in exhausted:
            lease = self._machine.delivery.lease(key, offset)
            assert lease is not None, "only a message in flight was delivered before"
            letter = self._dead_lettering.letter(key, offset, lease)
            if letter is not None:
                self._dead_lettering.bury(plan, key, offset, letter)
                at = found.offsets.index(offset)
                del found.offsets[at], found.attempts[at], found.records[at]


def _set_name(key: LiteKey) -> str:
    """The name that marks a pending change of a set."""
    return "lite-set:" + "\n".join(key)


def _lease_name(key: QueueKey) -> str:
    """The name that marks a pending lease of a lite topic, which locks the lite topic until it is
    applied."""
    return f"lite-lease:{key[0]}\n{key[1]}"
