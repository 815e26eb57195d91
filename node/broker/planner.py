"""Plans client calls against the state as of the log's end, which is the applied state plus the uncommitted state.

Each method adds the work of one call, or of one waiting Receive, to the plan of the turn: drafts, answers, and marks in the uncommitted
state for later decisions. Nothing here may assume that the log will accept the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ledgermq.node.broker.calls.consumer_calls import Ack, Acked, Change, Changed, Forward, Handle, Lease, SyncLite
from ledgermq.node.broker.calls.operator_calls import Configure, Configured, Kept, Mark, Marked, Reset, ResetDone, Seal, SettleLetters, Trim
from ledgermq.node.broker.calls.outcome import Call, Done
from ledgermq.node.broker.calls.read_calls import CommitOffset, OffsetCommitted
from ledgermq.node.broker.calls.send_calls import OpenProducer, Produce, ProduceFrame, Recall, Recalled, ResumeProducer
from ledgermq.node.broker.calls.transaction_calls import CountChecks, Overdue, Prepare, Resolve
from ledgermq.node.broker.decisions.broadcasting import Members
from ledgermq.node.broker.decisions.dead_lettering import DeadLettering
from ledgermq.node.broker.decisions.deduplication import mark_ids, without_duplicates
from ledgermq.node.broker.decisions.fifo import MessageGroups
from ledgermq.node.broker.decisions.fifo_picker import FifoJob
from ledgermq.node.broker.decisions.leases import LeaseClock
from ledgermq.node.broker.decisions.lite_serving import LiteServer
from ledgermq.node.broker.decisions.picker import NOTHING_SENT, Job, Pick, Picker, Rules
from ledgermq.node.broker.decisions.polls import Poll, Polls
from ledgermq.node.broker.decisions.producer_sequencing import ProducerSequencing
from ledgermq.node.broker.decisions.timer_firing import STORED_BYTES, TimerFiring, recall_name
from ledgermq.node.broker.decisions.traffic import Leased
from ledgermq.node.broker.decisions.transaction_resolution import TransactionResolver
from ledgermq.node.broker.flush import Durability, FlushPolicy, durability_of, strongest
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.ports import ReadBudget
from ledgermq.node.broker.queues import Pair, QueueKey
from ledgermq.node.broker.state.timers import RECALLED_MAX, Place
from ledgermq.node.broker.uncommitted import RETAINED, UncommittedState, group_name, reset_name, reset_pair_name, topic_name
from ledgermq.proto import control
from ledgermq.proto.entry_encoding import entry_bytes
from ledgermq.proto.names import LITE_SEPARATOR, base_group, parent_of, stored_name
from ledgermq.proto.properties import PROPERTIES_MAX
from ledgermq.proto.types import Draft, TopicConfig, TopicKind

_PLAN_BYTES = 8 << 20
"""Calls beyond this many bytes go into the next batch of the same turn."""
_HANDLE_BYTES = 256
_BARE_ENTRY_BYTES = entry_bytes("", 0, 0) + 1
"""The length of an entry without topic, body and properties; a long topic takes one byte more."""
_ROW_BYTES_MAX = 1024
"""The most bytes of a shared record that one handle takes: names and a client id at their longest."""


class Planner:
    """The leader's rules for calls. Stateless: decisions are in the plan and in the uncommitted state."""

    fifo_job_type: type[Job] = FifoJob

    def __init__(
        self,
        machine: Machine,
        clock: LeaseClock,
        uncommitted: UncommittedState,
        picker: Picker,
        transaction_resolver: TransactionResolver,
        timer_firing: TimerFiring,
        lite: LiteServer,
        members: Members,
        dead_lettering: DeadLettering,
        producer_sequencing: ProducerSequencing,
        groups: MessageGroups,
        entry_bytes_max: int,
        policy: FlushPolicy,
        budget: ReadBudget,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._uncommitted = uncommitted
        self._picker = picker
        self._transaction_resolver = transaction_resolver
        self._timer_firing = timer_firing
        self._lite = lite
        self._members = members
        self._dead_lettering = dead_lettering
        self._producer_sequencing = producer_sequencing
        self._groups = groups
        self._entry_bytes_max = entry_bytes_max
        self._policy = policy
        self._budget = budget
        self._rows_max = entry_bytes_max // (2 * _ROW_BYTES_MAX)
        """How many rows a plan may have: its shared records must fit into a log file. Further calls go into the next batch."""

    def plan(self, plan: Plan, calls: Sequence[Call], releases: Mapping[tuple[QueueKey, int], int], polls: Polls) -> Plan:
        """Decide `calls`, give back the leases in `releases` ((queue, offset) → lease number), and serve the waiting Receives."""
        self._timer_firing.fire(plan)
        for call in calls:
            if plan.size >= _PLAN_BYTES or plan.rows > self._rows_max:
                plan.deferred.append(call)
            elif isinstance(call, Produce):
                if not self._produce_plain(plan, call):
                    self._produce(plan, call)
            elif isinstance(call, ProduceFrame):
                self._frame(plan, call)
            elif isinstance(call, Ack):
                self._ack(plan, call)
            elif isinstance(call, Change):
                self._change(plan, call)
            elif isinstance(call, Prepare | Resolve | Overdue | CountChecks):
                self._transaction_resolver.take(plan, call)
            elif isinstance(call, Recall):
                self._recall(plan, call)
            elif isinstance(call, Forward):
                self._dead_lettering.forward(plan, call)
            elif isinstance(call, SettleLetters):
                self._dead_lettering.settle(plan, call)
            elif isinstance(call, Configure):
                self._configure(plan, call, polls)
            elif isinstance(call, Reset):
                self._reset(plan, call, polls)
            elif isinstance(call, CommitOffset):
                self._commit_offset(plan, call)
            elif isinstance(call, OpenProducer):
                self._producer_sequencing.open(plan, call, self._machine.level)
            elif isinstance(call, ResumeProducer):
                self._producer_sequencing.resume(plan, call)
            elif isinstance(call, SyncLite):
                self._lite.sync(plan, call)
            elif isinstance(call, Mark):
                plan.awaited.append((plan.next_index, call.token, Marked(plan.next_index)))
                plan.drafts.append(control.draft(call.record, plan.now_ms))
            elif isinstance(call, Seal | Trim):
                self._retain(plan, call)
        for (key, offset), lease in releases.items():
            if plan.rows > self._rows_max:
                plan.releases[key, offset] = lease
            else:
                self._give_back(plan, key, offset, lease)
        self._lite.drop_gone(plan)
        self._members.drop_gone(plan)
        for pair in self._to_serve(plan, polls):
            self._serve(plan, pair, polls)
        if plan.ack_place >= 0:
            acks = tuple([(*key, tuple(offsets), tuple(leases)) for key, (offsets, leases) in plan.acks.items()])
            plan.drafts[plan.ack_place] = control.draft(control.AckRecord(acks), plan.now_ms)
        if plan.change_place >= 0:
            plan.drafts[plan.change_place] = control.draft(control.ChangeRecord(tuple(plan.changes)), plan.now_ms)
        if plan.transaction_place >= 0:
            record = control.TransactionRecord(tuple(plan.ended), tuple(plan.checked))
            plan.drafts[plan.transaction_place] = control.draft(record, plan.now_ms)
        if plan.offset_place >= 0:
            offsets = tuple([(*key, offset) for key, offset in plan.offsets.items()])
            plan.drafts[plan.offset_place] = control.draft(control.OffsetRecord(offsets), plan.now_ms)
        return plan

    def _produce_plain(self, plan: Plan, call: Produce) -> bool:
        """The fast path for nearly every send: one message without special requirements, while no configuration is pending. Returns False
        if the call needs the full path. The full path would accept the same calls, with the same effect."""
        if len(call.drafts) != 1 or plan.full or self._uncommitted.names:
            return False
        draft = call.drafts[0]
        name = draft.stored_topic
        topic = self._machine.topics.get(name)
        if topic is None or topic.dedup_ms or draft.deliver_ms or not 0 <= draft.queue < topic.queues:
            return False
        body, properties = len(draft.body), len(draft.properties)
        # A character has at most four bytes, so this is at least the size of the entry.
        large = _BARE_ENTRY_BYTES + 4 * len(name) + body + properties > self._entry_bytes_max
        if (large and entry_bytes(name, body, properties) > self._entry_bytes_max) or properties > PROPERTIES_MAX:
            return False
        durability = plan.classes.get((name, draft.priority))
        if durability is None:
            durability = plan.classes[name, draft.priority] = self._durability_of(topic, draft, plan)
        plan.memory_drafts += durability is Durability.MEMORY
        plan.produced.append((call, len(plan.drafts), durability))
        plan.drafts.append(draft)
        plan.size += body
        plan.counts["produced"] = plan.counts.get("produced", 0) + 1
        return True

    def _produce(self, plan: Plan, call: Produce) -> None:
        if plan.full:
            plan.refuse(call.token, "disk-full")
            return
        for draft in call.drafts:
            if not 0 <= draft.queue < self._machine.queues_of(draft.stored_topic):
                plan.refuse(call.token, "unknown-topic", f"queue {draft.queue} of topic {draft.stored_topic}")
                return
            size = entry_bytes(draft.stored_topic, len(draft.body), len(draft.properties))
            room = STORED_BYTES if draft.deliver_ms else 0
            if size + room > self._entry_bytes_max or len(draft.properties) + room > PROPERTIES_MAX:
                plan.refuse(call.token, "too-large", f"an entry of {size} bytes")
                return
        if any(self._uncommitted.configuring(topic_name(topic)) is not None for topic in {draft.stored_topic for draft in call.drafts}):
            plan.deferred.append(call)
            return
        if not call.drafts:
            plan.refuse(call.token, "unknown-topic", "the call has no message")
            return
        if any(LITE_SEPARATOR in draft.stored_topic for draft in call.drafts):
            if self._uncommitted.configuring(RETAINED) is not None:
                # A trim removes lite topics without messages, which then begin at another offset.
                plan.deferred.append(call)
                return
            crowded = self._lite.crowded(plan, call)
            if crowded is not None:
                plan.refuse(call.token, "lite-topics", crowded)
                return
        topics = self._machine.topics
        names: tuple[str, ...] = ()
        if any(topics[parent_of(draft.stored_topic)].dedup_ms for draft in call.drafts):
            rest = without_duplicates(plan, call, self._machine, self._uncommitted)
            if rest is None:
                return
            call, names = rest  # type: ignore[assignment]  # of the kind it was
        durability = strongest(self._durability_of(topics[parent_of(d.stored_topic)], d, plan) for d in call.drafts)
        # The watermark may have to be raised first, by a record of its own.
        drafts = [self._timer_firing.stored(plan, draft) if draft.deliver_ms else draft for draft in call.drafts]
        if names:
            # An id counts as stored only when it is durable, so the first send and its repetitions are answered as durable.
            durability = Durability.DURABLE
            mark_ids(plan, self._uncommitted, names)
        plan.produced.append((call, len(plan.drafts), durability))
        if durability is Durability.MEMORY:
            plan.memory_drafts += len(call.drafts)
        plan.drafts.extend(drafts)
        plan.size += sum(len(draft.body) for draft in call.drafts)
        plan.count("produced", len(call.drafts))

    def _durability_of(self, topic: TopicConfig, draft: Draft, plan: Plan) -> Durability:
        return durability_of(self._policy, topic.durability, draft.priority, alone=plan.alone)

    def _frame(self, plan: Plan, call: ProduceFrame) -> None:
        """Makes the checks that do not depend on the producer. `producer_sequencing.py` makes the others once this plan's drafts are in the
        log."""
        frame, config = call.frame, self._machine.topics.get(call.topic)
        if plan.full:
            plan.refuse(call.token, "disk-full")
        elif frame.producer_id in plan.held or self._uncommitted.configuring(topic_name(call.topic)) is not None:
            plan.held.add(frame.producer_id)
            plan.deferred.append(call)
        elif config is None or not len(frame) or not 0 <= int(frame.batch.queues.min()) <= int(frame.batch.queues.max()) < config.queues:
            plan.refuse(call.token, "unknown-topic", f"a queue of topic {call.topic}")
        elif config.kind not in (TopicKind.NORMAL, TopicKind.MIXED):
            plan.refuse(call.token, "wrong-kind", f"topic {call.topic} is of kind {config.kind.value}: send to it message by message")
        elif int(frame.batch.sizes.max()) > self._entry_bytes_max:
            plan.refuse(call.token, "too-large", f"an entry of {int(frame.batch.sizes.max())} bytes")
        else:
            plan.frames.append(call)
            plan.size += len(frame.batch.data)

    def _judge(self, plan: Plan, key: QueueKey, handle: Handle) -> tuple[bool, int | None]:
        """Whether the handle, of this queue, is valid, and if an unapplied entry is the reason why it is not, the index of that entry."""
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
        """Whether this very lease has been acknowledged, and if an unapplied entry says so, the index of that entry."""
        pending = self._uncommitted.acking(key, offset)
        if pending is not None:
            # Only a current lease can be acknowledged, so the applied lease is the one that the entry names.
            return self._machine.delivery.lease(key, offset) == lease, pending
        return self._machine.delivery.acknowledged(key, offset, lease), None

    def _ack(self, plan: Plan, call: Ack) -> None:
        flags: list[bool] = []
        plan.size += _HANDLE_BYTES * len(call.handles)
        plan.rows += len(call.handles)
        index = -1
        for handle in call.handles:
            key = (handle.group, handle.topic, handle.queue)
            good, pending = self._judge(plan, key, handle)
            if good:
                at = plan.ack_index()
                index = max(index, at)
                plan.add_ack(key, handle.queue_offset, handle.lease_number)
                self._uncommitted.mark_acked(at, key, handle.queue_offset)
                plan.count("acked")
            else:
                good, acking = self._acknowledged(key, handle.queue_offset, handle.lease_number)
                # The acknowledgement took effect and its answer was lost, so a repetition gets the same answer.
                pending = acking if good else pending
                plan.count("handles_refused", int(not good))
                # The answer depends on an entry that may never be committed, so it waits for it.
                index = index if pending is None else max(index, pending)
            flags.append(good)
        if index < 0:
            plan.assured.append(Done(call.token, Acked(tuple(flags))))
        else:
            plan.awaited.append((index, call.token, Acked(tuple(flags))))

    def _change(self, plan: Plan, call: Change) -> None:
        handle = call.handle
        plan.rows += 1
        key = (handle.group, handle.topic, handle.queue)
        good, pending = self._judge(plan, key, handle)
        if good:
            index = plan.change_index()
            plan.changes.append((*key, handle.queue_offset, handle.lease_number, call.invisible_ms, call.client_id))
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
        index = plan.change_index()
        plan.changes.append((*key, offset, lease, 0, row.client))
        self._uncommitted.mark_row(index, key, offset)
        plan.count("released")

    def _recall(self, plan: Plan, call: Recall) -> None:
        place = Place(call.fire_ms, call.offset)
        pending = self._uncommitted.configuring(recall_name(place))
        if pending is not None:
            plan.awaited.append((pending, call.token, Recalled(False)))
        elif not self._timer_firing.recallable(plan, place, call.deliver_ms):
            # The message is due, even if the entry that fired it is never committed.
            plan.assured.append(Done(call.token, Recalled(False)))
        elif self._machine.timers.recalled_count + plan.recalls >= RECALLED_MAX:
            plan.refuse(call.token, "too-many-recalls", f"{RECALLED_MAX} recalled messages of this broker group are not due yet")
        else:
            index = plan.next_index
            plan.drafts.append(control.draft(control.RecallRecord(call.deliver_ms, call.fire_ms, call.offset, call.user), plan.now_ms))
            self._uncommitted.mark_name(index, recall_name(place))
            plan.recalls += 1
            plan.awaited.append((index, call.token, Recalled(True)))
            plan.count("messages_recalled")

    def _configure(self, plan: Plan, call: Configure, polls: Polls) -> None:
        names = [topic_name(stored_name(t.namespace, t.name)) for t in call.topics]
        names += [group_name(stored_name(g.namespace, g.name)) for g in call.groups]
        names += [topic_name(stored) for stored in call.deleted_topics] + [group_name(stored) for stored in call.deleted_groups]
        judged = {topic_name(frame.topic) for frame in plan.frames}
        if any(self._uncommitted.configuring(name) is not None or name in judged for name in names):
            # Frames of this plan come after its drafts, but were checked against the topic as it was before them.
            plan.deferred.append(call)
            return
        index = -1
        for record in _differences(self._machine, call):
            index = plan.next_index
            plan.drafts.append(control.draft(record, plan.now_ms))
            name = topic_name if isinstance(record, control.TopicRecord) else group_name
            self._uncommitted.mark_name(index, name(record.stored))
            if isinstance(record, control.GroupRecord):
                # Deleted, it has every message before it again; with another configuration it may have others. Served once it is applied.
                polls.wake_group(record.stored)
        if index < 0:
            plan.assured.append(Done(call.token, Configured()))
        else:
            plan.awaited.append((index, call.token, Configured()))

    def _reset(self, plan: Plan, call: Reset, polls: Polls) -> None:
        """Until the reset is applied, nothing of the pair is leased and no handle of its queues is valid: earlier leases vanish, and later
        ones begin at the new cursor."""
        count = self._machine.queues_of(call.topic)
        if not count or not all(0 <= queue < count for queue, _ in call.queues):
            plan.refuse(call.token, "unknown-topic", f"a queue of topic {call.topic}")
            return
        names = [topic_name(call.topic), group_name(call.group), reset_pair_name(call.group, call.topic)]
        if any(self._uncommitted.configuring(name) is not None for name in names):
            plan.deferred.append(call)
            return
        polls.forget((call.group, call.topic))
        index = plan.next_index
        queues = tuple([(queue, self._clamped(call.topic, queue, offset)) for queue, offset in call.queues])
        plan.drafts.append(control.draft(control.ResetRecord(call.group, call.topic, queues), plan.now_ms))
        for queue, _ in queues:
            self._uncommitted.mark_name(index, reset_name((call.group, call.topic, queue)))
        self._uncommitted.mark_name(index, reset_pair_name(call.group, call.topic))
        plan.awaited.append((index, call.token, ResetDone(queues)))
        plan.count("reset", len(queues))

    def _commit_offset(self, plan: Plan, call: CommitOffset) -> None:
        """A consumer has pulled only applied messages, so the applied end bounds the offsets that it can commit. The offsets of a turn
        share one record; an offset that comes after a reset must wait for the next turn's record."""
        key = (call.group, call.topic, call.queue)
        if not 0 <= call.queue < self._machine.queues_of(call.topic):
            plan.refuse(call.token, "unknown-topic", f"queue {call.queue} of topic {call.topic}")
        elif not 0 <= call.offset <= (end := self._machine.end(call.topic, call.queue)):
            plan.refuse(call.token, "illegal-offset", f"queue {call.queue} of topic {call.topic} ends at offset {end}, not {call.offset}")
        elif any(self._uncommitted.configuring(n) is not None for n in (topic_name(call.topic), group_name(call.group), reset_name(key))):
            plan.deferred.append(call)
        else:
            plan.rows += 1
            # Of several commits in one turn the last one counts, in its place.
            plan.offsets.pop(key, None)
            plan.offsets[key] = call.offset
            plan.awaited.append((plan.offset_index(), call.token, OffsetCommitted()))
            plan.count("offsets_committed")

    def _retain(self, plan: Plan, call: Seal | Trim) -> None:
        """A seal or a trim that changes nothing is answered at once; one that follows an unapplied one waits for it."""
        retained = self._machine.retained
        if self._uncommitted.configuring(RETAINED) is not None:
            plan.deferred.append(call)
        elif retained.sealing(call.record) if isinstance(call, Seal) else retained.trimming(call.record):
            index = plan.next_index
            plan.drafts.append(control.draft(call.record, plan.now_ms, self._machine.level))
            self._uncommitted.mark_name(index, RETAINED)
            plan.awaited.append((index, call.token, Kept()))
        else:
            plan.done.append(Done(call.token, Kept()))

    def _clamped(self, topic: str, queue: int, offset: int) -> int:
        return min(max(offset, self._machine.first_position(topic, queue)), self._machine.end(topic, queue))

    def _to_serve(self, plan: Plan, polls: Polls) -> Iterable[Pair]:
        """The pairs with Receives that this plan may serve: those that were woken, and those that wait for messages which it appends."""
        pairs = dict.fromkeys(polls.dirty())
        if polls.waiting_for:
            for topic in plan.sent():
                pairs.update(dict.fromkeys(polls.pairs_of(topic)))
        return pairs

    def _serve(self, plan: Plan, pair: Pair, polls: Polls) -> None:
        """Serve the Receives of one (consumer group, topic), longest waiting first, until no messages are left for them."""
        group, topic = pair
        if polls.is_lite(pair):
            self._lite.serve(plan, pair, polls)
            return
        config = self._machine.topics.get(topic)
        if config is None:
            plan.unserved += polls.waiting(pair)
            return
        if any(self._uncommitted.configuring(n) is not None for n in (topic_name(topic), group_name(group), reset_pair_name(group, topic))):
            return
        if self._members.begins(plan, group, config, topic):
            return
        known = self._machine.groups.get(base_group(group))
        fifo = known is not None and known.fifo
        letter = None if plan.full else self._dead_lettering.letter
        rules = Rules(self._dead_lettering.max_attempts(group), letter, config.kind is TopicKind.PRIORITY)
        # In a FIFO group the message group decides, which is known of applied messages only.
        kind = self.fifo_job_type if fifo else None
        only = None if fifo else polls.known(pair)
        sent = NOTHING_SENT if fifo else plan.sent().get(topic, NOTHING_SENT)
        held = turned_away = False
        for poll in polls.waiting(pair):
            if plan.size >= _PLAN_BYTES or not self._budget.open:
                return
            if self._budget.crowded and not self._budget.admits(poll.call.token):
                turned_away = True
                continue
            pick = self._picker.pick(poll.call, config.queues, rules, kind, only, sent)
            if pick:
                for queue, offset, dead_letter in pick.dead:
                    self._dead_lettering.bury(plan, (*pair, queue), offset, dead_letter)
                self._lease(plan, poll, pick, fifo=fifo)
            if pick.held:
                held = True
            elif not pick.messages:
                if not pick.more:
                    plan.settled.append((pair, pick.empty))
                elif pick:
                    polls.later(pair)
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
        plan.traffic.append(Leased(call.group, call.topic, len(pick.messages), pick.bytes, repeated))
        plan.count("passed_over", len(pick.passed_again) + sum(to - begin for _, begin, to in pick.passed) - pick.gone - pick.ended)
        plan.count("gone", pick.gone)
        if pick.ended:
            plan.count("letters_ended", pick.ended)
        record = control.LeaseRecord(
            group=call.group,
            topic=call.topic,
            client=call.client_id,
            duration_ms=call.invisible_ms,
            leased=tuple([(queue, tuple(offsets), tuple(attempts)) for queue, (offsets, attempts) in columns.items()]),
            passed=tuple(pick.passed),
            passed_again=tuple([(queue, tuple(offsets)) for queue, offsets in again.items()]),
            waiting=tuple([(queue, tuple(offsets)) for queue, offsets in waiting.items()]),
            attempt_id=call.attempt_id if fifo else "",
        )
        plan.drafts.append(control.draft(record, plan.now_ms))
        if pick.messages:
            leases = tuple(Lease(m.queue, m.offset, index, m.attempt, m.record) for m in pick.messages)
            # Also if the log refuses this plan: what the call holds is given back with the call.
            self._budget.take(call.token, pick.bytes)
            plan.leased.append((index, poll, leases))


def _differences(machine: Machine, call: Configure) -> Iterator[control.TopicRecord | control.GroupRecord]:
    """The records that put `call` into force; none for what is already in force. An older incarnation never replaces a newer one."""
    for stored in call.deleted_topics:
        if stored in machine.topics:
            yield control.TopicRecord(machine.topics[stored], deleted=True)
    for stored in call.deleted_groups:
        if stored in machine.groups:
            yield control.GroupRecord(machine.groups[stored], deleted=True)
    for topic in call.topics:
        now = machine.topics.get(stored_name(topic.namespace, topic.name))
        if now != topic and (now is None or topic.incarnation >= now.incarnation):
            yield control.TopicRecord(topic)
    for group in call.groups:
        if machine.groups.get(stored_name(group.namespace, group.name)) != group:
            yield control.GroupRecord(group)
