"""The leader's rules for topics with a deduplication window: which messages of a call are stored,
and how duplicates are answered.

Decided against the state as of the log's end: applied messages (`message_ids.py`), and ids of
unapplied entries, which the uncommitted state marks. A call with a message whose id an unapplied
entry has waits for that commit: only then can the answer not become false, and only then is it
decided whether that entry is a copy, or the message of another sender with the same id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.calls.transaction_calls import Prepare
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.sends.message_ids import key_of
from ledgermq.node.broker.plan import Known, Plan
from ledgermq.node.broker.uncommitted import UncommittedState
from ledgermq.proto.entries.properties import MESSAGE_ID, parse
from ledgermq.proto.names import parent_of


def without_duplicates(
    plan: Plan, call: Produce | Prepare, state: Machine, uncommitted: UncommittedState
) -> tuple[Produce | Prepare, tuple[str, ...]] | None:
    """The call reduced to messages that are not stored yet, and the names that mark their ids. None
    if no message is left, or if the call must wait until a message with one of its ids is
    committed. `Plan.known` gets the places of duplicates for the answer."""
    names: list[str] = []
    fresh: list[int] = []
    slots: list[int | Known] = []
    seen: dict[tuple[str, bytes], int] = {}
    for at, draft in enumerate(call.drafts):
        topic = parent_of(draft.stored_topic)
        window_ms = state.topics[topic].dedup_ms
        properties = parse(draft.properties) if window_ms else {}
        message_id = properties.get(MESSAGE_ID)
        place, name, key = None, "", b""
        if message_id is not None:
            key = key_of(state.level, draft.stored_topic, properties, draft.body)
            place = state.ids.find(topic, key, message_id, plan.now_ms - window_ms)
            name = f"id:{topic}:{message_id}"
        if name and uncommitted.configuring(name) is not None:
            plan.deferred.append(call)
            return None
        if place is not None:
            slots.append(place)
        elif (topic, key) in seen:
            slots.append(seen[topic, key])
        else:
            if name:
                seen[topic, key] = len(fresh)
            slots.append(len(fresh))
            fresh.append(at)
            names.append(name)
    duplicates = len(slots) - len(fresh)
    plan.count("duplicates", duplicates)
    if not fresh:
        places = [slot for slot in slots if isinstance(slot, Known)]
        offsets, fire_ms = _columns([(place.offset, place.fire_ms) for place in places])
        store_ms, queues = (
            max(place.store_ms for place in places),
            tuple(place.queue for place in places),
        )
        plan.done.append(
            Done(call.token, Produced(-1, -1, offsets, store_ms, fire_ms=fire_ms, queues=queues))
        )
        return None
    if duplicates:
        plan.known[call.token] = tuple(slots)
        rest = (
            {"recovery_ms": [call.recovery_ms[at] for at in fresh]}
            if isinstance(call, Prepare)
            else {}
        )
        call = replace(call, drafts=[call.drafts[at] for at in fresh], **rest)  # type: ignore[arg-type]
    return call, tuple(names)


def mark_ids(plan: Plan, uncommitted: UncommittedState, names: tuple[str, ...]) -> None:
    """Mark the ids of the next drafts of the plan: a repeated message waits until its first copy is
    applied."""
    for at, name in enumerate(names):
        if name:
            uncommitted.mark_name(plan.next_index + at, name)


def with_known(
    slots: Sequence[int | Known], offsets: tuple[int, ...], fire_ms: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Queue offsets and fire times of all messages of a call, given those of the new ones."""
    fresh = [(offset, fire_ms[at] if fire_ms else 0) for at, offset in enumerate(offsets)]
    return _columns(
        [(slot.offset, slot.fire_ms) if isinstance(slot, Known) else fresh[slot] for slot in slots]
    )


def _columns(rows: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    times = tuple([fire_ms for _, fire_ms in rows])
    return tuple([offset for offset, _ in rows]), times if any(times) else ()
