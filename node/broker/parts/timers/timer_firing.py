"""The leader's rules for delayed messages: where a message is stored, when it fires, and what is
appended then (docs/format.md §4.4).

Decisions are made against the watermark as of the log's end: the applied one plus what this leader
has appended since. A new message is stored above the watermark and within its reach. No message
fires before the leader's wall clock reaches its time, nor after one that is in the log but not in
its slot yet, because the watermark would then skip that one for ever. Each turn fires a bounded
batch, so that calls and heartbeats do not wait. The log may refuse the plan of a turn; `keep` and
`rollback` follow the plan.

While there is a former wheel (a time epoch began, `timers.py`), only its messages fire, and all of
them, whatever the clock says: those that are not due are stored again in the present wheel, above
its watermark. A record then ends the former wheel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.send_calls import Recall, Recalled
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.origins import origin_text
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.parts.timers.timer_window import Window
from ledgermq.node.broker.parts.timers.timers import (
    KIND,
    NEVER,
    RECALLED_MAX,
    SLOT_MS,
    SLOTS,
    Place,
    Watermark,
    epoch_of,
    first_place,
    key_of,
    slot_of,
)
from ledgermq.node.broker.plan import NEVER_NS, Plan
from ledgermq.node.broker.uncommitted import UncommittedState, topic_name
from ledgermq.proto.entries.layout import BODY_AT, HEADER_BYTES, split_record, tags_code
from ledgermq.proto.entries.properties import (
    DELIVER_MS,
    FIRE_MS,
    INCARNATION,
    ORIGIN,
    REAL_QUEUE,
    REAL_TOPIC,
    TIMER_FIRST,
    edited,
    parse,
)
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft

BATCH = 512
BATCH_BYTES = 1 << 20
"""The most bytes that fire in one turn; one message always fires."""
FLYING_MAX = 8
"""Limit of batches that are in the log and not applied yet, so that a leader without a majority
does not fill its log."""
RETRY_NS = 100_000_000
_TOPIC_RETRY_NS = 10_000_000
STORED_BYTES = 512
"""How much larger an entry may become by waiting on the timer topic."""
_LOOK_AGAIN_NS = 1_000_000_000
"""How often the wall clock is read while messages wait: it may be set while the monotonic clock
continues."""
_ADVANCE_EPOCHS = SLOTS // 8
_ALL_MS = NEVER // SLOT_MS * SLOT_MS - 1
_REAL_FIELD = f"\x02{REAL_TOPIC}\x01".encode()
_DELIVER_FIELD = f"\x02{DELIVER_MS}\x01".encode()
_BODY_AT = BODY_AT - HEADER_BYTES
_BORN_MS = slice(40, 48)


class _Stored(NamedTuple):
    """The parts of a record on the timer topic that are not the message itself."""

    own: bytes
    """The properties that the message has in its topic: all before the first one that
    `TimerFiring.stored` adds."""
    deliver_ms: int
    topic: str
    queue: int
    incarnation: int
    first: str
    body_end: int
    properties_at: int

    @classmethod
    def of(cls, record: bytes) -> _Stored:
        body_end, _, _, properties_at = split_record(record)
        properties = record[properties_at:]
        border = properties.rindex(_REAL_FIELD) + 1
        waiting = parse(properties[border:])
        at = properties.index(_DELIVER_FIELD) + len(_DELIVER_FIELD)
        deliver_ms = int(properties[at : properties.index(b"\x02", at)])
        return cls(
            own=properties[:border],
            deliver_ms=deliver_ms,
            topic=waiting[REAL_TOPIC],
            queue=int(waiting[REAL_QUEUE]),
            incarnation=int(waiting[INCARNATION]),
            first=waiting.get(TIMER_FIRST, ""),
            body_end=body_end,
            properties_at=properties_at,
        )


class _Position(NamedTuple):
    """The state that a plan changes, saved in case the log refuses the plan."""

    end: Watermark
    former: Watermark | None
    at: int


class TimerFiring(LeaderPart):
    """The timers of one broker group, on its leader. Idle on a follower."""

    def __init__(self, machine: Machine, uncommitted: UncommittedState) -> None:
        self._machine = machine
        self._timers = machine.timers
        self._uncommitted = uncommitted
        self._window: Window | None = None
        self._end = Watermark()
        """The watermark of the present wheel as of the log's end."""
        self._former: Watermark | None = None
        """That of the former wheel; None without one."""
        self._kept = _Position(self._end, None, 0)
        self._stored: deque[tuple[int, int]] = deque()
        """(last index, lowest fire time) of batches with new delayed messages that are in the log
        but not in their slots."""
        self._flying: deque[int] = deque()
        """Last index of each unapplied batch of fired messages."""
        self._planned: list[int] = []
        """Fire times of the messages that the current plan stores."""
        self._fired = False
        """Whether this turn's batch is already planned."""
        self._held_until_ns = 0
        self._sleep_until_ms = NEVER
        """Nothing has to be read before this time unless a message arrives; 0: there is something
        to read."""
        self.waits = False
        """Whether a message waits, as far as this leader has looked. If none does and none has
        arrived, there is nothing to look at."""
        self._now_ms = 0

    @property
    def watermark(self) -> Watermark:
        """The watermark as of the log's end."""
        return self._end

    def lead(self, now_ns: int) -> None:
        """The applied state is the log's end until this leader appends."""
        self.resign()
        former = self._timers.former
        self._end, self._former = (
            self._timers.watermark,
            None if former is None else former.watermark,
        )
        self._kept = _Position(self._end, self._former, 0)
        self.pending = former is not None

    def time_epoch_began(self, now_ns: int) -> None:
        """The record was applied; nothing was planned since it was appended."""
        self.lead(now_ns)

    def resign(self) -> None:
        self._window = None
        self._stored.clear()
        self._flying.clear()
        self._planned.clear()
        self._fired = False
        self._held_until_ns = 0
        self._sleep_until_ms = 0
        self.waits = True
        self.pending = False
        self.unapplied_index = NEVER_NS

    # Looking

    def look(self, now_ns: int, now_ms: int) -> None:
        """Called once per turn: note the time, and read on in the slot that is next."""
        self._now_ms, self._fired = now_ms, now_ns < self._held_until_ns
        arrived, self._timers.lowest_arrival, self._timers.arrived = (
            self._timers.lowest_arrival,
            NEVER,
            False,
        )
        if self._former is not None and self._timers.former is None:
            # Everything is moved: from now on the present wheel fires.
            self._former = self._window = None
            self._sleep_until_ms = 0
        if arrived == NEVER and now_ms < self._sleep_until_ms:
            return
        if self._window is not None and self._former is None and arrived < self._window.epoch:
            self._window = None
        window = self._window = self._next_window()
        if window is not None and not window.current:
            window.step()
        self._kept = _Position(self._end, self._former, 0 if window is None else window.at)
        self.pending = window is not None or self._former is not None
        idle = self._former is None and (window is None or self._is_idle())
        self._sleep_until_ms = self._next_epoch() * SLOT_MS if idle else 0
        self.waits = self._sleep_until_ms < NEVER // SLOT_MS * SLOT_MS

    def _is_idle(self) -> bool:
        """Whether the window has nothing, and no row of its epoch was left out."""
        window = self._window
        return window is None or (window.current and window.whole and not len(window))

    @property
    def _passed(self) -> Watermark:
        """The watermark of the wheel that fires, as of the log's end."""
        return self._end if self._former is None else self._former

    def _pass(self, to: Watermark) -> None:
        if self._former is None:
            self._end = to
        else:
            self._former = to

    def _next_epoch(self) -> int:
        """The first epoch after the window's that has messages."""
        passed = (self._end if self._former is None else self._former).epoch
        found = self._timers.firing.next_epoch(
            passed if self._window is None else max(self._window.epoch + 1, passed)
        )
        return NEVER // SLOT_MS if found is None else found

    def _next_window(self) -> Window | None:
        window = self._window
        if window is not None and (len(window) or not window.current):
            return window
        if window is not None and not window.whole:
            return self._open(window.epoch)
        # A used-up window stays while no message of a later epoch is due, because more messages may
        # arrive in its slot.
        epoch = self._next_epoch()
        return (
            window
            if epoch > epoch_of(self._now_ms if self._former is None else _ALL_MS)
            else self._open(epoch)
        )

    def _open(self, epoch: int) -> Window:
        first, passed, former = (
            self._timers.firing.first_of(epoch),
            self._passed,
            self._timers.former,
        )
        assert first is not None, f"epoch {epoch} has a first message"
        after = key_of(passed.fire_ms, passed.offset) if passed.epoch == epoch else -1
        return Window(
            self._machine, epoch, first, after, None if former is None else former.end_of(epoch)
        )

    def hold(self, now_ns: int) -> None:
        """Nothing can be appended now: try again later."""
        self._held_until_ns = now_ns + RETRY_NS
        self._fired = True

    def ready(self) -> bool:
        """Whether there is something to fire now."""
        if self._fired or not self.pending:
            return False
        return self._may_fire() or (self._former is not None and self._may_end_former())

    def _may_end_former(self) -> bool:
        """Whether everything in the former wheel is moved, and no record says so yet."""
        former = self._timers.former
        if (
            former is None
            or self._former is None
            or self._former >= former.last
            or len(self._flying) >= FLYING_MAX
        ):
            return False
        return self._is_idle() and self._next_epoch() == NEVER // SLOT_MS

    def _may_look(self) -> bool:
        """Whether the former wheel has a window to open, or to read on in."""
        window = self._window
        if window is not None and (len(window) or not window.current):
            return not window.current
        return not self._is_idle() or self._next_epoch() < NEVER // SLOT_MS

    def _may_fire(self) -> bool:
        window = self._window
        if window is None or not window.current or len(self._flying) >= FLYING_MAX:
            return False
        if self._former is not None:
            return len(window) > 0
        # Messages that just arrived in the slot of an earlier epoch fire first.
        return self._timers.lowest_arrival >= window.epoch and window.at < window.until(
            self._limit()
        )

    def _limit(self) -> int:
        """The latest fire time that may fire now."""
        if self._former is not None:
            return _ALL_MS
        return min([self._now_ms, *[fire_ms for _, fire_ms in self._stored], *self._planned])

    def wake_at_ns(self, now_ns: int) -> int | None:
        """When `look` has work next. Work that waits for an entry to be applied needs no wake-up
        time."""
        window, arrived = self._window, self._timers.lowest_arrival
        if now_ns < self._held_until_ns:
            return self._held_until_ns
        if self._former is not None:
            return (
                now_ns
                if self._timers.former is None
                or self._may_fire()
                or self._may_end_former()
                or self._may_look()
                else None
            )
        if arrived <= self._now_ms // SLOT_MS:
            return now_ns
        if self._sleep_until_ms:
            at_ms = min(self._sleep_until_ms, arrived * SLOT_MS)
        elif window is None or not window.current or not len(window):
            return now_ns
        else:
            at_ms = window.fire_ms(window.at)
            if at_ms <= self._now_ms:
                return now_ns if self._may_fire() else None
        return (
            None
            if at_ms >= NEVER // SLOT_MS * SLOT_MS
            else now_ns + min(max(0, at_ms - self._now_ms) * 1_000_000, _LOOK_AGAIN_NS)
        )

    # Storing

    def stored(self, plan: Plan, draft: Draft) -> Draft:
        """A client's message as it is to be appended; a message that is due or has no delivery time
        is unchanged. May add a record to the plan first."""
        if draft.deliver_ms <= plan.now_ms:
            return draft
        if epoch_of(draft.deliver_ms) > self._end.reach:
            self._advance(plan)
        fire_ms = self._placed(draft.deliver_ms)
        plan.kept.append(self._keep)
        incarnation = self._machine.topics[draft.stored_topic].incarnation
        put = {
            REAL_TOPIC: draft.stored_topic,
            REAL_QUEUE: str(draft.queue),
            INCARNATION: str(incarnation),
            FIRE_MS: str(fire_ms),
        }
        properties = edited(draft.properties, put)
        return Draft(
            stored_topic=TIMER_TOPIC,
            queue=slot_of(fire_ms),
            body=draft.body,
            properties=properties,
            born_ms=draft.born_ms,
            tags_code=fire_ms,
            priority=draft.priority,
        )

    def _placed(self, deliver_ms: int) -> int:
        """The fire time of a message: its delivery time, unless the watermark is already beyond it
        (the clock went back) or does not reach it."""
        fire_ms = max(deliver_ms, self._end.fire_ms)
        if epoch_of(fire_ms) > self._end.reach:
            fire_ms = self._end.reach * SLOT_MS
        self._planned.append(fire_ms)
        return fire_ms

    def _advance(self, plan: Plan) -> None:
        """Raise a watermark that has not moved for long, because nothing fired, to a time before
        which no message waits."""
        to_ms = min(plan.now_ms, self._lowest_waiting())
        if epoch_of(to_ms) > self._end.epoch + _ADVANCE_EPOCHS:
            plan.drafts.append(control.draft(control.TimersRecord(to_ms, -1), plan.now_ms))
            self._end = Watermark(to_ms, -1)

    def _lowest_waiting(self) -> int:
        """A time before which no pending message fires."""
        if self._former is not None:
            return self._end.fire_ms
        lowest = min([fire_ms for _, fire_ms in self._stored] + self._planned, default=NEVER)
        window = self._window
        if window is not None:
            if (
                self._timers.lowest_arrival < window.epoch
                or not window.current
                or not (len(window) or window.whole)
            ):
                return self._end.fire_ms
            if len(window):
                return min(lowest, window.fire_ms(window.at))
        return min(lowest, self._next_epoch() * SLOT_MS)

    # Firing

    def begin_plan(self, plan: Plan) -> None:
        """Append copies of due messages, in firing order."""
        if not self.ready():
            return
        self._fired = True
        if plan.full:
            self.hold(plan.now_ns)
            return
        window, former = self._window, self._timers.former
        if former is not None and (window is None or not len(window)):
            plan.drafts.append(
                control.draft(
                    control.TimersRecord(former.last.fire_ms, former.last.offset), plan.now_ms
                )
            )
            plan.kept.append(self._keep_fired)
            self._pass(former.last)
            return
        assert window is not None, "there is something to fire"
        size, skipped, dropped = 0, False, 0
        fired_ms, fired = self._passed.fire_ms, self._passed.offset
        stop = min(window.until(self._limit()), window.at + BATCH)
        while window.at < stop and size < BATCH_BYTES:
            fire_ms, offset, bytes_ = (
                window.fire_ms(window.at),
                window.offset(window.at),
                int(window.sizes[window.at]),
            )
            position = int(window.positions[window.at])
            record = self._machine.record(position, bytes_)
            stored = _Stored.of(record)
            if self._uncommitted.configuring(topic_name(stored.topic)) is not None:
                # Until the topic's record is applied, it is unknown whether the message still has a
                # topic.
                self._held_until_ns = plan.now_ns + _TOPIC_RETRY_NS
                break
            place = first_place(stored.first, fire_ms, offset)
            window.at += 1
            self._pass(Watermark(fire_ms, offset))
            if self._is_recalled(place, stored.deliver_ms):
                skipped = True
            elif not self._machine.takes(stored.topic, stored.incarnation, stored.queue):
                skipped, dropped = True, dropped + 1
            else:
                if dropped:
                    # The copy's mark does not say how many messages were dropped before it.
                    plan.drafts.append(
                        control.draft(
                            control.TimersRecord(fire_ms=fired_ms, offset=fired, dropped=dropped),
                            plan.now_ms,
                        )
                    )
                plan.drafts.append(
                    self._copy(
                        plan,
                        record,
                        stored,
                        first=place,
                        at=(fire_ms, offset),
                        index=self._machine.index_at(position),
                    )
                )
                size, skipped, dropped = size + bytes_, False, 0
            fired_ms, fired = fire_ms, offset
        if skipped:
            plan.drafts.append(
                control.draft(
                    control.TimersRecord(fire_ms=fired_ms, offset=fired, dropped=dropped),
                    plan.now_ms,
                )
            )
        plan.kept.append(self._keep_fired)
        plan.size += size

    def _copy(
        self,
        plan: Plan,
        record: bytes,
        stored: _Stored,
        first: Place,
        at: tuple[int, int],
        index: int,
    ) -> Draft:
        """The copy of a firing message: in its topic or, if its delivery time was out of reach, on
        the timer topic again. `at`: where it fires now."""
        body, born_ms = (
            record[_BODY_AT : stored.body_end],
            int.from_bytes(record[_BORN_MS], "big", signed=True),
        )
        mark = origin_text(KIND, at[0], slot_of(at[0]), at[1])
        if stored.deliver_ms <= plan.now_ms:
            properties = stored.own + f"{ORIGIN}\x01{mark}\x02".encode()
            return Draft(
                stored_topic=stored.topic,
                queue=stored.queue,
                body=body,
                properties=properties,
                born_ms=born_ms,
                tags_code=tags_code(stored.own),
                origin=index,
            )
        again_ms = self._placed(stored.deliver_ms)
        put = {
            ORIGIN: f"{mark}:again",
            TIMER_FIRST: f"{first.fire_ms}:{first.offset}",
            FIRE_MS: str(again_ms),
        }
        properties = edited(record[stored.properties_at :], put)
        return Draft(
            stored_topic=TIMER_TOPIC,
            queue=slot_of(again_ms),
            body=body,
            properties=properties,
            born_ms=born_ms,
            tags_code=again_ms,
            origin=index,
        )

    # Recalling

    def _is_recalled(self, place: Place, deliver_ms: int) -> bool:
        return (
            self._timers.is_recalled(place, deliver_ms)
            or self._uncommitted.configuring(recall_name(place)) is not None
        )

    def recall(self, plan: Plan, call: Recall) -> None:
        place = Place(call.fire_ms, call.offset)
        pending = self._uncommitted.configuring(recall_name(place))
        if pending is not None:
            plan.awaited.append((pending, call.token, Recalled(False)))
        elif not self._recallable(plan, place, call.deliver_ms):
            # The message is due, even if the entry that fired it is never committed.
            plan.assured.append(Done(call.token, Recalled(False)))
        elif self._timers.recalled_count + plan.recalls >= RECALLED_MAX:
            plan.refuse(
                call.token,
                "too-many-recalls",
                f"{RECALLED_MAX} recalled messages of this broker group are not due yet",
            )
        else:
            index = plan.next_index
            plan.drafts.append(
                control.draft(
                    control.RecallRecord(call.deliver_ms, call.fire_ms, call.offset, call.user),
                    plan.now_ms,
                )
            )
            self._uncommitted.mark_name(index, recall_name(place))
            plan.recalls += 1
            plan.awaited.append((index, call.token, Recalled(True)))
            plan.count("messages_recalled")

    CALLS: ClassVar[Takers] = {Recall: recall}

    def _recallable(self, plan: Plan, place: Place, deliver_ms: int) -> bool:
        """Whether the message is neither delivered nor due nor recalled, so that it can be
        recalled."""
        if self._timers.due_ms(place, deliver_ms) <= plan.now_ms or self._timers.passed(
            place, deliver_ms, self._end
        ):
            return False
        return not self._is_recalled(place, deliver_ms) and not self._contradicts(place, deliver_ms)

    def _contradicts(self, place: Place, deliver_ms: int) -> bool:
        """Whether the message at this place, if still readable, has another delivery time, was
        delivered before its time, or has lost its topic. A client that repeats an id with a
        different time gets the place of the first message, which a recall with that time does not
        mean."""
        slot = slot_of(place.fire_ms)
        if (
            not self._machine.begin(TIMER_TOPIC, slot)
            <= place.offset
            < self._machine.end(TIMER_TOPIC, slot)
        ):
            return False
        positions, sizes, _ = self._machine.units(TIMER_TOPIC, slot, place.offset, 1)
        position, begins = int(positions[0]), self._machine.time_epochs.begins
        if begins and position < begins[-1].pos and self._timers.fired_before(place, deliver_ms):
            return True
        stored = _Stored.of(self._machine.record(position, int(sizes[0])))
        return stored.deliver_ms != deliver_ms or not self._machine.takes(
            stored.topic, stored.incarnation, stored.queue
        )

    # Outcome of the plan

    def _keep_fired(self, plan: Plan) -> None:
        self._flying.append(plan.next_index - 1)
        self._keep(plan)

    def _keep(self, plan: Plan) -> None:
        """The plan is in the log."""
        if self._planned:
            self._stored.append((plan.next_index - 1, min(self._planned)))
            self._planned.clear()
        self.unapplied_index = min(self.unapplied_index, plan.next_index - 1)
        self._kept = _Position(
            self._end, self._former, 0 if self._window is None else self._window.at
        )

    def withdrawn(self) -> None:
        self._end, self._former = self._kept.end, self._kept.former
        self._planned.clear()
        if self._window is not None:
            self._window.at = self._kept.at
        self._fired = False

    def applied(self, index: int) -> None:
        while self._stored and self._stored[0][0] <= index:
            self._stored.popleft()
        while self._flying and self._flying[0] <= index:
            self._flying.popleft()
        self.unapplied_index = min(
            [*self._flying, *[last for last, _ in self._stored]], default=NEVER_NS
        )


def recall_name(place: Place) -> str:
    """The name that marks a recall in the uncommitted state."""
    return f"recall:{place.fire_ms}:{place.offset}"


def fire_times(drafts: Sequence[Draft | None]) -> tuple[int, ...]:
    """Fire times of delayed drafts, 0 for others; empty if no draft is delayed."""
    if not any([draft is not None and draft.stored_topic == TIMER_TOPIC for draft in drafts]):
        return ()
    times = [
        0 if draft is None or draft.stored_topic != TIMER_TOPIC else draft.tags_code
        for draft in drafts
    ]
    return tuple(times) if any(times) else ()
