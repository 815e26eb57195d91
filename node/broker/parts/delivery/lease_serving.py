"""The leader's rules for consumers that lease: which Receives get which messages, and which handles
are valid.

Decided against the state as of the log's end. A Receive that finds nothing waits (`polls.py`);
`picker.py` finds messages for it, `leases.py` knows which leases have ended. A lease is handed out
when its record is applied; if its Receive is gone by then, it is given back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    CancelReceive,
    Change,
    Changed,
    Handle,
    Lease,
    Received,
)
from ledgermq.node.broker.calls.operator_calls import Reset, ResetDone
from ledgermq.node.broker.calls.outcome import UNREAD, Done, Refused
from ledgermq.node.broker.calls.tier_calls import TierFetched
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.parts.delivery.broadcasting import Members
from ledgermq.node.broker.parts.delivery.fifo import MessageGroups
from ledgermq.node.broker.parts.delivery.fifo_picker import FifoJob
from ledgermq.node.broker.parts.delivery.leases import LeaseClock
from ledgermq.node.broker.parts.delivery.picker import NOTHING_SENT, Job, Pick, Picker, Rules
from ledgermq.node.broker.parts.delivery.polls import Polls
from ledgermq.node.broker.parts.delivery.tier_messages import TierMessages
from ledgermq.node.broker.parts.ports import LettersOfReceives, LiteReceives
from ledgermq.node.broker.plan import PLAN_BYTES, Awaited, Leased, Plan, Poll
from ledgermq.node.broker.ports import ReadBudget
from ledgermq.node.broker.queues import Pair, QueueKey, Touched
from ledgermq.node.broker.uncommitted import (
    UncommittedState,
    group_name,
    reset_name,
    reset_pair_name,
    topic_name,
)
from ledgermq.proto.names import base_group
from ledgermq.proto.records import control
from ledgermq.proto.types import TopicKind

_HANDLE_BYTES = 256
_REMEMBERED_RECEIVES = 1024
Given = tuple[str, int, int, int]
"""A lease without its message: lite topic (else empty), queue, queue offset, lease number."""


class LeaseServer(LeaderPart):
    """Receives and receipt handles of one broker group."""

    fifo_job_type: type[Job] = FifoJob

    def __init__(
        self,
        machine: Machine,
        clock: LeaseClock,
        uncommitted: UncommittedState,
        polls: Polls,
        tier: TierMessages,
        groups: MessageGroups,
        picker: Picker,
        lite: LiteReceives,
        members: Members,
        letters: LettersOfReceives,
        budget: ReadBudget,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._uncommitted = uncommitted
        self._polls = polls
        self._tier = tier
        self._groups = groups
        self._picker = picker
        self._lite = lite
        self._members = members
        self._letters = letters
        self._budget = budget
        self.pending = polls.woken
        self.releases: dict[tuple[QueueKey, int], int] = {}
        """Leases of cancelled Receives, to be made visible again: (queue, offset) → lease
        number."""
        self.answered: OrderedDict[Token, tuple[Pair, tuple[Given, ...]]] = OrderedDict()
        """Leases of the last Receives, without their messages, to be given back if an answer does
        not reach its caller."""
        self.touched_rows: Touched = []
        """Rows that the current range touched, collected for FIFO groups."""

    # Leadership

    def lead(self, now_ns: int) -> None:
        self._clock.lead(now_ns)
        self._polls.wake_all()

    def resign(self) -> None:
        self.releases.clear()
        self.answered.clear()
        self._clock.resign()
        self._groups.clear()
        self.touched_rows = []
        self._picker.forget()
        self._tier.resign()

    def alive(self, clients: Sequence[str], at_ns: int) -> None:
        self._clock.alive(clients, at_ns)

    def gone(self, client: str, at_ns: int) -> None:
        self._clock.gone(client, at_ns)

    def expire(self, now_ns: int) -> None:
        """End leases whose time is over, so that their messages are visible again."""
        clock, tier = self._clock, self._tier
        for pair in tier.expire(now_ns) if now_ns >= tier.retry_ns else ():
            self._polls.wake(pair)
        if clock.ends and now_ns >= clock.ends[0][0]:
            for pair in clock.expire(now_ns):
                self._polls.wake(pair)
                group, topic = pair
                self._lite.unlocked(group, topic)

    # Receives that end without messages

    def take_cancel(self, call: CancelReceive, now_ns: int) -> list[Done]:
        return self.cancel(call.receive)

    def take_fetched(self, call: TierFetched, now_ns: int) -> list[Done]:
        for pair in self._tier.take(call, now_ns):
            self._polls.wake(pair)
        return []

    ARRIVALS: ClassVar[Takers] = {CancelReceive: take_cancel, TierFetched: take_fetched}

    def cancel(self, token: Token) -> list[Done]:
        """The caller of a Receive is gone, so none of its leased messages may stay invisible."""
        if self._polls.remove(token) is not None:
            return [Done(token, Received(()))]
        pair, leases = self.answered.pop(token, (("", ""), ()))
        self._release(pair, leases)
        return []

    def _release(self, pair: Pair, leases: Sequence[Given]) -> None:
        for topic, queue, offset, number in leases:
            self.releases[(pair[0], topic or pair[1], queue), offset] = number

    def due(self, now_ns: int) -> list[Done]:
        """Answer long polls whose time is over. Each was examined at least once, however short its
        deadline. An empty answer says that nothing was left, so a poll is refused if its messages
        have not come from the object store, or may not be read now."""
        deadlines = self._polls.deadlines
        if not deadlines or now_ns < deadlines[0][0]:
            return []
        done: list[Done] = []
        for poll in self._polls.due(now_ns, self._is_turned_away):
            why = "" if poll.leasing else self._tier.lacks(poll.pair)
            if not why and self._is_turned_away(poll):
                done.append(Done(poll.call.token, UNREAD))
            else:
                done.append(
                    Done(
                        poll.call.token, Refused("store-away", detail=why) if why else Received(())
                    )
                )
            self._polls.remove(poll.call.token)
        return done

    def _is_turned_away(self, poll: Poll) -> bool:
        """Whether there may be messages for a Receive that may not be read now."""
        return (
            not poll.leasing
            and poll.pair in self._polls.woken
            and not self._budget.admits(poll.call.token)
        )

    # Applied entries

    def touched(self, now_ns: int, touched: Touched) -> None:
        """Rows that applying a range may have changed."""
        self._clock.touched(now_ns, touched)
        if len(self._groups):
            self.touched_rows += touched

    def follow(self) -> None:
        """The range that touched these rows is applied."""
        for key, offsets in self.touched_rows:
            for offset in offsets:
                if self._groups.touched(key, offset):
                    # Messages behind this one may be unlocked now, whatever the record changed.
                    self._polls.wake(key[:2])
        self.touched_rows = []

    def hand_out(self, awaited: Awaited) -> list[Done]:
        """The lease of a Receive is committed: hand out its messages, or make them visible again if
        the Receive no longer waits."""
        if awaited.poll is None:
            return [Done(awaited.token, Received(self._with_records(awaited)))]
        pair = awaited.poll.call.group, awaited.poll.call.topic
        given = tuple(
            [
                (lease.topic, lease.queue, lease.queue_offset, lease.lease_number)
                for lease in awaited.leases
            ]
        )
        if self._polls.remove(awaited.token) is None:
            self._release(pair, given)
            return []
        self.answered[awaited.token] = (pair, given)
        if len(self.answered) > _REMEMBERED_RECEIVES:
            self.answered.popitem(last=False)
        return [Done(awaited.token, Received(self._with_records(awaited)))]

    def _with_records(self, awaited: Awaited) -> tuple[Lease, ...]:
        """The leases with their messages. Those that the lease's own batch appended could not be
        read before now."""
        if all([lease.record for lease in awaited.leases]):
            return awaited.leases
        return tuple(
            [
                lease if lease.record else self._read(awaited.topic, lease)
                for lease in awaited.leases
            ]
        )

    def _read(self, topic: str, lease: Lease) -> Lease:
        positions, sizes, _ = self._machine.units(topic, lease.queue, lease.queue_offset, 1)
        return lease._replace(record=self._machine.record(int(positions[0]), int(sizes[0])))

    # Handles

    def _judge(self, plan: Plan, key: QueueKey, handle: Handle) -> tuple[bool, int | None]:
        """Whether the handle, of this queue, is valid, and if an unapplied entry is the reason why
        it is not, the index of that entry."""
        pending = self._uncommitted.pending(key, handle.queue_offset)
        good = (
            pending is None
            and self._machine.delivery.lease(key, handle.queue_offset) == handle.lease_number
            and not self._clock.expired(plan.now_ns, key, handle.queue_offset)
        )
        if self._uncommitted.names:
            if pending is None:
                pending = self._uncommitted.configuring(reset_name(key))
            names = (reset_name(key), topic_name(handle.topic), group_name(handle.group))
            good = good and all(self._uncommitted.configuring(name) is None for name in names)
        return good, pending

    def _acknowledged(self, key: QueueKey, offset: int, lease: int) -> tuple[bool, int | None]:
        """Whether this very lease has been acknowledged, and if an unapplied entry says so, the
        index of that entry."""
        pending = self._uncommitted.acking(key, offset)
        if pending is not None:
            # Only a current lease can be acknowledged, so the applied lease is the one that the
            # entry names.
            return self._machine.delivery.lease(key, offset) == lease, pending
        return self._machine.delivery.acknowledged(key, offset, lease), None

    def ack(self, plan: Plan, call: Ack) -> None:
        flags: list[bool] = []
        plan.size += _HANDLE_BYTES * len(call.handles)
        plan.rows += len(call.handles)
        index = -1
        for handle in call.handles:
            key = (handle.group, handle.topic, handle.queue)
            good, pending = self._judge(plan, key, handle)
            if good:
                at = plan.shared_index(_ack_record)
                index = max(index, at)
                plan.add_ack(key, handle.queue_offset, handle.lease_number)
                self._uncommitted.mark_acked(at, key, handle.queue_offset)
                plan.count("acked")
            else:
                good, acking = self._acknowledged(key, handle.queue_offset, handle.lease_number)
                # The acknowledgement took effect and its answer was lost, so a repetition gets the
                # same answer.
                pending = acking if good else pending
                plan.count("handles_refused", int(not good))
                # The answer depends on an entry that may never be committed, so it waits for it.
                index = index if pending is None else max(index, pending)
            flags.append(good)
        if index < 0:
            plan.assured.append(Done(call.token, Acked(tuple(flags))))
        else:
            plan.awaited.append((index, call.token, Acked(tuple(flags))))

    def change(self, plan: Plan, call: Change) -> None:
        handle = call.handle
        plan.rows += 1
        key = (handle.group, handle.topic, handle.queue)
        good, pending = self._judge(plan, key, handle)
        if good:
            index = plan.shared_index(_change_record)
            plan.changes.append(
                (*key, handle.queue_offset, handle.lease_number, call.invisible_ms, call.client_id)
            )
            self._uncommitted.mark_row(index, key, handle.queue_offset)
            plan.awaited.append((index, call.token, Changed(index)))
            plan.count("changed")
            return
        plan.count("handles_refused")
        if pending is not None:
            plan.awaited.append((pending, call.token, Changed(None)))
        else:
            plan.assured.append(Done(call.token, Changed(None)))

    def _give_back(self, plan: Plan, key: QueueKey, offset: int, lease: int) -> None:
        row = self._machine.delivery.row(key, offset)
        if row is None or row.lease != lease or self._uncommitted.pending(key, offset) is not None:
            return
        if self._uncommitted.configuring(reset_name(key)) is not None:
            # A reset that is already in the log gives the lease back.
            return
        plan.rows += 1
        index = plan.shared_index(_change_record)
        plan.changes.append((*key, offset, lease, 0, row.client))
        self._uncommitted.mark_row(index, key, offset)
        plan.count("released")

    def reset(self, plan: Plan, call: Reset) -> None:
        """Until the reset is applied, nothing of the pair is leased and no handle of its queues is
        valid: earlier leases vanish, and later ones begin at the new cursor."""
        count = self._machine.queues_of(call.topic)
        if not count or not all(0 <= queue < count for queue, _ in call.queues):
            plan.refuse(call.token, "unknown-topic", f"a queue of topic {call.topic}")
            return
        names = [
            topic_name(call.topic),
            group_name(call.group),
            reset_pair_name(call.group, call.topic),
        ]
        if any(self._uncommitted.configuring(name) is not None for name in names):
            plan.deferred.append(call)
            return
        self._polls.forget((call.group, call.topic))
        index = plan.next_index
        queues = tuple(
            [(queue, self._clamped(call.topic, queue, offset)) for queue, offset in call.queues]
        )
        plan.drafts.append(
            control.draft(control.ResetRecord(call.group, call.topic, queues), plan.now_ms)
        )
        for queue, _ in queues:
            self._uncommitted.mark_name(index, reset_name((call.group, call.topic, queue)))
        self._uncommitted.mark_name(index, reset_pair_name(call.group, call.topic))
        plan.awaited.append((index, call.token, ResetDone(queues)))
        plan.count("reset", len(queues))

    CALLS: ClassVar[Takers] = {Ack: ack, Change: change, Reset: reset}

    # Plans

    def give_back(self, plan: Plan, rows_max: int) -> None:
        """Give back the leases of `releases`; those for which the plan has no room follow in the
        next one."""
        later: dict[tuple[QueueKey, int], int] = {}
        for (key, offset), lease in self.releases.items():
            if plan.rows > rows_max:
                later[key, offset] = lease
            else:
                self._give_back(plan, key, offset, lease)
        plan.kept.append(lambda _: self._keep_releases(later))

    def _keep_releases(self, later: dict[tuple[QueueKey, int], int]) -> None:
        self.releases = later

    def serve(self, plan: Plan) -> None:
        """Serve the waiting Receives."""
        for pair in self._to_serve(plan):
            self._serve(plan, pair)

    def settle(self, plan: Plan) -> None:
        """The plan is in the log."""
        for pair, empty in plan.settled:
            self._polls.settled(pair, empty=empty)
        for poll in plan.unserved:
            self._polls.remove(poll.call.token)
            plan.refuse(poll.call.token, "unknown-topic", poll.call.topic)

    def _clamped(self, topic: str, queue: int, offset: int) -> int:
        return min(
            max(offset, self._machine.first_position(topic, queue)), self._machine.end(topic, queue)
        )

    def _to_serve(self, plan: Plan) -> Iterable[Pair]:
        """The pairs with Receives that this plan may serve: those that were woken, and those that
        wait for messages which it appends."""
        pairs = dict.fromkeys(self._polls.dirty())
        if self._polls.waiting_for:
            for topic in plan.sent():
                pairs.update(dict.fromkeys(self._polls.pairs_of(topic)))
        return pairs

    def _serve(self, plan: Plan, pair: Pair) -> None:
        """Serve the Receives of one (consumer group, topic), longest waiting first, until no
        messages are left for them."""
        group, topic = pair
        if self._polls.is_lite(pair):
            self._lite.serve(plan, pair)
            return
        config = self._machine.topics.get(topic)
        if config is None:
            plan.unserved += self._polls.waiting(pair)
            return
        if any(
            self._uncommitted.configuring(n) is not None
            for n in (topic_name(topic), group_name(group), reset_pair_name(group, topic))
        ):
            return
        if self._members.begins(plan, group, config, topic):
            return
        known = self._machine.groups.get(base_group(group))
        fifo = known is not None and known.fifo
        letter = None if plan.full else self._letters.letter
        rules = Rules(
            self._letters.max_attempts(group),
            letter,
            self._letters.is_own(group, topic),
            config.kind is TopicKind.PRIORITY,
        )
        # In a FIFO group the message group decides, which is known of applied messages only.
        kind = self.fifo_job_type if fifo else None
        only = None if fifo else self._polls.known(pair)
        sent = NOTHING_SENT if fifo else plan.sent().get(topic, NOTHING_SENT)
        held = turned_away = False
        for poll in self._polls.waiting(pair):
            if plan.size >= PLAN_BYTES or not self._budget.open:
                return
            if self._budget.crowded and not self._budget.admits(poll.call.token):
                turned_away = True
                continue
            pick = self._picker.pick(poll.call, config.queues, rules, kind, known=only, sent=sent)
            if pick:
                for queue, offset, dead_letter in pick.dead:
                    self._letters.bury(plan, (*pair, queue), offset, dead_letter)
                self._lease(plan, poll, pick, fifo=fifo)
            if pick.held:
                held = True
            elif not pick.messages:
                if not pick.more:
                    plan.settled.append((pair, pick.empty))
                elif pick:
                    self._polls.later(pair)
                return
        if held and not turned_away:
            plan.settled.append((pair, False))

    def _lease(self, plan: Plan, poll: Poll, pick: Pick, *, fifo: bool) -> None:
        call = poll.call
        if not (pick.messages or pick.passed or pick.passed_again):
            return
        index = plan.next_index
        columns: dict[int, tuple[list[int], list[int]]] = {}
        repeated = 0
        for message in pick.messages:
            offsets, attempts = columns.setdefault(message.queue, ([], []))
            offsets.append(message.offset)
            attempts.append(message.attempt)
            key = (call.group, call.topic, message.queue)
            if fifo or not message.fresh:
                self._uncommitted.mark_row(index, key, message.offset)
            if fifo and message.fresh:
                self._groups.planned(key, message.offset)
            repeated += message.attempt > 1
        waiting: dict[int, list[int]] = {}
        for queue, offset in pick.waiting:
            waiting.setdefault(queue, []).append(offset)
            self._uncommitted.mark_row(index, (call.group, call.topic, queue), offset)
            self._groups.planned((call.group, call.topic, queue), offset)
        again: dict[int, list[int]] = {}
        for queue, offset in pick.passed_again:
            again.setdefault(queue, []).append(offset)
            self._uncommitted.mark_row(index, (call.group, call.topic, queue), offset)
        for queue, cursor in pick.cursors.items():
            self._uncommitted.mark_cursor(index, (call.group, call.topic, queue), cursor)
        plan.count("leased", len(pick.messages))
        plan.count("leased_again", repeated)
        plan.traffic.append(
            Leased(call.group, call.topic, len(pick.messages), pick.bytes, repeated)
        )
        plan.count(
            "passed_over",
            len(pick.passed_again)
            + sum(to - begin for _, begin, to in pick.passed)
            - pick.gone
            - pick.ended,
        )
        plan.count("gone", pick.gone)
        if pick.ended:
            plan.count("letters_ended", pick.ended)
        record = control.LeaseRecord(
            group=call.group,
            topic=call.topic,
            client=call.client_id,
            duration_ms=call.invisible_ms,
            leased=tuple(
                [
                    (queue, tuple(offsets), tuple(attempts))
                    for queue, (offsets, attempts) in columns.items()
                ]
            ),
            passed=tuple(pick.passed),
            passed_again=tuple([(queue, tuple(offsets)) for queue, offsets in again.items()]),
            waiting=tuple([(queue, tuple(offsets)) for queue, offsets in waiting.items()]),
            attempt_id=call.attempt_id if fifo else "",
        )
        plan.drafts.append(control.draft(record, plan.now_ms))
        if pick.messages:
            leases = tuple(
                Lease(m.queue, m.offset, index, m.attempt, m.record) for m in pick.messages
            )
            # Also if the log refuses this plan: what the call holds is given back with the call.
            self._budget.take(call.token, pick.bytes)
            plan.leased.append((index, poll, leases))


def _ack_record(plan: Plan) -> control.AckRecord:
    return control.AckRecord(
        tuple(
            [(*key, tuple(offsets), tuple(leases)) for key, (offsets, leases) in plan.acks.items()]
        )
    )


def _change_record(plan: Plan) -> control.ChangeRecord:
    return control.ChangeRecord(tuple(plan.changes))
