"""Decisions about transactions, against the state as of the log's end: which halves are accepted,
how they end, and which are checked.

Each method adds the work of one call to the plan of the turn: drafts, answers, and marks in the
uncommitted state for later decisions. A transaction ends once: with the message that it becomes, or
with a row in the turn's `transaction` record. From the planned end until it is applied, the
uncommitted state marks it, and every other call about the transaction waits.
"""

from __future__ import annotations

from typing import ClassVar

from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.transaction_calls import (
    ChecksCounted,
    CountChecks,
    Overdue,
    OverdueHalves,
    Prepare,
    Resolve,
    Resolved,
    UndecidedHalf,
)
from ledgermq.node.broker.flush import Durability
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.parts.sends.deduplication import mark_ids, without_duplicates
from ledgermq.node.broker.parts.transactions.transaction_checks import CheckClock, TransactionRules
from ledgermq.node.broker.parts.transactions.transactions import (
    AGE,
    CHECKS,
    COMMIT,
    ROLLBACK,
    Half,
    committed,
    half_draft,
    half_record,
)
from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.uncommitted import UncommittedState, topic_name
from ledgermq.proto.entries.entry_encoding import entry_bytes
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import MESSAGE_ID, PROPERTIES_MAX, parse
from ledgermq.proto.names import HALF_TOPIC
from ledgermq.proto.records import control
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft

_ROW_BYTES = 64
_CHECK_BYTES = 8 << 20
"""How many bytes of half messages are read for the checks of one call; at least one message is
read. The others come again later."""
_DROPS = (CHECKS, AGE)


class TransactionResolver(LeaderPart):
    """The leader's rules about transactions. Stateless except for the clock of checks."""

    def __init__(
        self,
        machine: Machine,
        clock: CheckClock,
        uncommitted: UncommittedState,
        entry_bytes_max: int,
        rules: TransactionRules,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._uncommitted = uncommitted
        self._entry_bytes_max = entry_bytes_max
        self._rules = rules

    # Half messages

    def prepare(self, plan: Plan, call: Prepare) -> None:
        """Half messages are checked against their real topic. They are always acknowledged as
        durable, whatever the topic's class: an id that a client holds must identify the same half
        for ever."""
        if plan.full:
            plan.refuse(call.token, "disk-full")
            return
        if (
            len(self._machine.transactions.halves) + plan.halves + len(call.drafts)
            > self._rules.undecided_max
        ):
            plan.refuse(
                call.token,
                "too-many-transactions",
                f"{self._rules.undecided_max} transactions of this broker group are undecided",
            )
            return
        if any(
            self._uncommitted.configuring(topic_name(draft.stored_topic)) is not None
            for draft in call.drafts
        ):
            plan.deferred.append(call)
            return
        names: tuple[str, ...] = ()
        topics = self._machine.topics
        if any(
            draft.stored_topic in topics and topics[draft.stored_topic].dedup_ms
            for draft in call.drafts
        ):
            rest = without_duplicates(plan, call, self._machine, self._uncommitted)
            if rest is None:
                return
            call, names = rest  # type: ignore[assignment]  # of the kind it was
        drafts: list[Draft] = []
        for draft, recovery_ms in zip(call.drafts, call.recovery_ms, strict=True):
            config = self._machine.topics.get(draft.stored_topic)
            if config is None or not 0 <= draft.queue < config.queues:
                plan.refuse(
                    call.token,
                    "unknown-topic",
                    f"queue {draft.queue} of topic {draft.stored_topic}",
                )
                return
            half = self._half(draft, recovery_ms)
            if half is None:
                plan.refuse(
                    call.token,
                    "too-large",
                    f"a half message of {len(draft.body)} bytes and its properties",
                )
                return
            drafts.append(half)
        if not drafts:
            plan.refuse(call.token, "unknown-topic", "the call has no message")
        else:
            mark_ids(plan, self._uncommitted, names)
            plan.produced.append((call, len(plan.drafts), Durability.DURABLE))
            plan.drafts.extend(drafts)
            plan.halves += len(drafts)
            plan.size += sum(len(draft.body) for draft in drafts)
            plan.count("half_messages", len(drafts))

    def _half(self, draft: Draft, recovery_ms: int | None) -> Draft | None:
        """The half message; None if it is too large. It names two topics, so the message that it
        becomes is never larger."""
        try:
            half = half_draft(draft, recovery_ms)
        except LedgerError:
            return None
        size = entry_bytes(HALF_TOPIC, len(half.body), len(half.properties)) + len(
            draft.stored_topic
        )
        return (
            half
            if size <= self._entry_bytes_max and len(half.properties) + _ROW_BYTES <= PROPERTIES_MAX
            else None
        )

    # Their end

    def resolve(self, plan: Plan, call: Resolve) -> None:
        outcome = COMMIT if call.commit else ROLLBACK
        pending = self._pending(call.offset)
        if pending is not None:
            index, how = pending
            plan.awaited.append((index, call.token, Resolved(_agrees(how, outcome))))
            return
        half = self._machine.transactions.halves.get(call.offset)
        if half is None:
            ended = self._machine.transactions.ended.get(call.offset)
            plan.assured.append(
                Done(call.token, Resolved(ended is not None and _agrees(ended, outcome)))
            )
            return
        record, properties = self._read(call.offset)
        if properties.get(MESSAGE_ID, "") != call.message_id or half.topic != call.topic:
            plan.assured.append(Done(call.token, Resolved(False)))
        elif self._uncommitted.configuring(topic_name(half.topic)) is not None:
            plan.deferred.append(call)
        elif not call.commit:
            index = (
                self._end(plan, call.offset, ROLLBACK)
                if call.user is None
                else self._cancel(plan, call.offset, call.user)
            )
            plan.awaited.append((index, call.token, Resolved(True)))
            plan.count("transactions_rolled_back")
        elif plan.full:
            plan.refuse(call.token, "disk-full")
        else:
            self._commit(plan, call, half, record, properties)

    def _commit(
        self, plan: Plan, call: Resolve, half: Half, record: Record, properties: dict[str, str]
    ) -> None:
        queues = self._machine.topics[half.topic].queues
        index = plan.next_index
        plan.drafts.append(
            committed(
                call.offset,
                half,
                queues,
                record.body,
                stored=record.properties,
                properties=properties,
                born_ms=record.born_ms,
            )
        )
        plan.size += len(record.body)
        self._uncommitted.mark_name(index, half_name(call.offset, COMMIT))
        plan.awaited.append((index, call.token, Resolved(True)))
        plan.count("transactions_committed")

    def _end(self, plan: Plan, offset: int, how: str) -> int:
        """A half ends without becoming visible. Returns the index of the entry that records it."""
        index = plan.shared_index(_transaction_record)
        plan.ended.append((offset, how))
        plan.rows += 1
        self._uncommitted.mark_name(index, half_name(offset, how))
        return index

    def _cancel(self, plan: Plan, offset: int, user: str) -> int:
        """An operator rolls a half back, by a record of its own that says who. Returns its
        index."""
        index = plan.next_index
        plan.drafts.append(
            control.draft(control.TransactionRecord(((offset, ROLLBACK),), user=user), plan.now_ms)
        )
        self._uncommitted.mark_name(index, half_name(offset, ROLLBACK))
        return index

    def _pending(self, offset: int) -> tuple[int, str] | None:
        """(entry index, kind) of the end of this half, if it is in the log or planned, and not
        applied yet."""
        for how in (COMMIT, ROLLBACK, *_DROPS):
            index = self._uncommitted.configuring(half_name(offset, how))
            if index is not None:
                return index, how
        return None

    def _read(self, offset: int) -> tuple[Record, dict[str, str]]:
        record = decode_record(half_record(self._machine, offset))
        return record, parse(record.properties)

    # Checks

    def overdue(self, plan: Plan, call: Overdue) -> None:
        """Lists the due halves. Those that exceeded their checks or age end here instead."""
        due: list[tuple[int, str]] = []
        dropped: list[tuple[int, str, str]] = []
        index = -1
        for offset in self._clock.due(plan.now_ns, call.limit):
            half = self._machine.transactions.halves.get(offset)
            if half is None or self._pending(offset) is not None:
                continue
            how = self._given_up(plan.now_ms, half)
            if how is None:
                due.append((offset, half.topic))
            else:
                index = self._end(plan, offset, how)
                dropped.append((offset, half.topic, how))
        plan.count("transactions_dropped", len(dropped))
        found = OverdueHalves(tuple(due), tuple(dropped))
        if index < 0:
            plan.done.append(Done(call.token, found))
        else:
            plan.awaited.append((index, call.token, found))

    def _given_up(self, now_ms: int, half: Half) -> str | None:
        if half.checks >= self._rules.checks_max:
            return CHECKS
        return AGE if now_ms - half.stored_ms > self._rules.age_max_ms else None

    def count_checks(self, plan: Plan, call: CountChecks) -> None:
        """A check is counted before it is sent, so that changes of leaders never cause more checks
        than allowed."""
        halves: list[UndecidedHalf] = []
        index = -1
        size = 0
        for offset in call.offsets:
            half = self._machine.transactions.halves.get(offset)
            if (
                half is None
                or half.checks >= self._rules.checks_max
                or self._pending(offset) is not None
            ):
                continue
            if self._uncommitted.configuring(checked_name(offset)) is not None:
                continue
            if size >= _CHECK_BYTES:
                break
            index = plan.shared_index(_transaction_record)
            plan.checked.append((offset, half.checks + 1))
            plan.rows += 1
            self._uncommitted.mark_name(index, checked_name(offset))
            record = half_record(self._machine, offset)
            size += len(record)
            halves.append(UndecidedHalf(offset, half.topic, half.checks + 1, record))
        plan.count("transaction_checks", len(halves))
        if index < 0:
            plan.done.append(Done(call.token, ChecksCounted(())))
        else:
            plan.awaited.append((index, call.token, ChecksCounted(tuple(halves))))

    CALLS: ClassVar[Takers] = {
        Prepare: prepare,
        Resolve: resolve,
        Overdue: overdue,
        CountChecks: count_checks,
    }

    def lead(self, now_ns: int) -> None:
        self._clock.lead(now_ns)

    def resign(self) -> None:
        self._clock.resign()


def _transaction_record(plan: Plan) -> control.TransactionRecord:
    return control.TransactionRecord(tuple(plan.ended), tuple(plan.checked))


def half_name(offset: int, how: str) -> str:
    """The name that marks the end of a half in the uncommitted state."""
    return f"half:{offset}:{how}"


def checked_name(offset: int) -> str:
    """The name that marks a check that is being counted."""
    return f"half:{offset}:checked"


def _agrees(ended: str, wanted: str) -> bool:
    """Whether the transaction ended as the caller wants. A dropped transaction counts as rolled
    back."""
    return (ended == COMMIT) == (wanted == COMMIT)
