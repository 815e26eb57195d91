"""The commands of the controller quorum on topics, and the placement of their queues. Pure, like
`metadata.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ledgermq.node.controller.command_fields import (
    Refused,
    existing,
    name_of,
    read_choice,
    read_count,
    read_mapping,
    read_text,
    read_topic_key,
)
from ledgermq.node.controller.state import (
    Json,
    Key,
    Outcome,
    State,
    Topic,
    export_topic,
    next_state,
    with_entry,
    without_entry,
)
from ledgermq.proto import units
from ledgermq.proto.names import LITE_PARENT_MAX, is_dead_letter_topic, stored_name
from ledgermq.proto.status import Code
from ledgermq.proto.types import Permission, TopicDurability, TopicKind

MAX_QUEUES = 1024
MAX_DEDUP_MS = 7 * 86_400_000


def adopt_topic(state: State, command: Json) -> tuple[State, Outcome]:
    """Record that a broker group's log has a dead-letter topic; from then on consumers can find
    it."""
    key, broker_group = read_topic_key(command), read_text(command.get("broker_group"))
    if not is_dead_letter_topic(key[1]) or broker_group not in state.broker_groups:
        raise Refused(
            Code.BAD_REQUEST,
            f"{name_of(key)} in broker group {broker_group} is no dead-letter topic of this"
            " cluster",
        )
    known = state.topics.get(key)
    placement = {} if known is None else dict(known.placement)
    placement[broker_group] = 1
    placed = MappingProxyType(dict(sorted(placement.items())))
    namespace, name = key
    topic = Topic(
        namespace=namespace,
        name=name,
        kind=TopicKind.NORMAL,
        permission=Permission.READ_WRITE,
        queues=len(placed),
        placement=placed,
        incarnation=0,
    )
    return next_state(state, topics=with_entry(state.topics, key, topic)), Outcome(
        value=export_topic(topic)
    )


def create_topic(state: State, command: Json) -> tuple[State, Outcome]:
    """Create a topic and place its queues. Repeating the command with the same settings succeeds.
    Raises Refused."""
    key = _read_own_topic_key(command)
    kind = read_choice(TopicKind, command.get("kind"), "kind")
    permission = read_choice(Permission, command.get("permission"), "permission")
    durability = read_choice(TopicDurability, command.get("durability", ""), "durability")
    queues = read_count(command.get("queues"), "queues", MAX_QUEUES)
    dedup_ms = _read_dedup_ms(command.get("dedup_ms", 0))
    if kind is TopicKind.LITE and len(stored_name(*key)) > LITE_PARENT_MAX:
        what = (
            f"a topic of kind lite has at most {LITE_PARENT_MAX} characters, its namespace and '@'"
            " included"
        )
        raise Refused(
            Code.ILLEGAL_TOPIC,
            f"{what}: the names of its lite topics need the rest; choose a shorter name",
        )
    known = state.topics.get(key)
    if known is not None:
        asked = (kind, permission, queues, durability, dedup_ms)
        if (known.kind, known.permission, known.queues, known.durability, known.dedup_ms) == asked:
            return state, Outcome(value=export_topic(known))
        settings = (
            f"kind {known.kind.value}, {known.queues} queues, permission {known.permission.value}"
        )
        if known.durability is not TopicDurability.GROUP:
            settings += f", durability {known.durability.value}"
        if known.dedup_ms:
            settings += f", deduplication for {units.duration_text(known.dedup_ms)}"
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"topic {name_of(key)} exists with other settings ({settings})",
        )
    placement = _placed(state, key, {}, queues)
    namespace, name = key
    topic = Topic(
        namespace=namespace,
        name=name,
        kind=kind,
        permission=permission,
        queues=queues,
        placement=placement,
        incarnation=state.revision + 1,
        durability=durability,
        dedup_ms=dedup_ms,
    )
    deleted = without_entry(state.deleted_topics, key)
    return next_state(
        state, topics=with_entry(state.topics, key, topic), deleted_topics=deleted
    ), Outcome(value=export_topic(topic))


def update_topic(state: State, command: Json) -> tuple[State, Outcome]:
    """Change the permission, the durability or the deduplication window, or add queues; a null
    leaves a setting unchanged. Existing queues stay where they are. `add_group`: place queues in a
    broker group that has none of this topic: as many as the others have on average, or as many as
    `queues` adds. `grow`: broker group → the minimum number of queues there."""
    key = _read_own_topic_key(command)
    known = existing(state.topics, key, Code.TOPIC_NOT_FOUND, "topic")
    permission, durability = known.permission, known.durability
    if command.get("permission") is not None:
        permission = read_choice(Permission, command["permission"], "permission")
    if command.get("durability") is not None:
        durability = read_choice(TopicDurability, command["durability"], "durability")
    dedup_ms = (
        known.dedup_ms if command.get("dedup_ms") is None else _read_dedup_ms(command["dedup_ms"])
    )
    placement = _grown(state, known, command)
    queues = sum(placement.values())
    if queues > MAX_QUEUES:
        raise Refused(
            Code.BAD_REQUEST,
            f"topic {name_of(key)} would have {queues} queues; the most is {MAX_QUEUES}",
        )
    topic = replace(
        known,
        permission=permission,
        queues=queues,
        placement=placement,
        durability=durability,
        dedup_ms=dedup_ms,
    )
    return next_state(state, topics=with_entry(state.topics, key, topic)), Outcome(
        value=export_topic(topic)
    )


def _grown(state: State, known: Topic, command: Json) -> Mapping[str, int]:
    """The placement of a topic's queues after an update."""
    key, held = (known.namespace, known.name), known.placement
    queues = (
        known.queues
        if command.get("queues") is None
        else read_count(command["queues"], "queues", MAX_QUEUES)
    )
    if queues < known.queues:
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"topic {name_of(key)} has {known.queues} queues; their number can grow but not shrink",
        )
    into = {
        group: read_count(count, "queues", MAX_QUEUES)
        for group, count in read_mapping(command.get("grow")).items()
    }
    group = read_text(command.get("add_group") or "")
    if group in held:
        what = f"topic {name_of(key)} has {held[group]} queues in broker group {group} already"
        raise Refused(
            Code.PRECONDITION_FAILED,
            f"{what}; more of them: ledgermq topic update {known.name} --queues N",
        )
    if group:
        into[group] = max(queues - known.queues, 0) or -(-known.queues // len(held))
    _check_growth(state, known, into)
    if into:
        return MappingProxyType(
            dict(
                sorted(
                    {
                        **held,
                        **{name: max(count, held.get(name, 0)) for name, count in into.items()},
                    }.items()
                )
            )
        )
    if queues == known.queues:
        return held
    return _placed(state, key, held, queues, within=held if _stays(known) else None)


def _stays(topic: Topic) -> bool:
    """Whether the topic's data would be looked up in the wrong broker group if its queues were
    spread over another one."""
    return topic.kind is TopicKind.LITE or topic.dedup_ms > 0


def _check_growth(state: State, topic: Topic, into: Mapping[str, int]) -> None:
    shown = name_of((topic.namespace, topic.name))
    for group in into:
        if group not in state.broker_groups:
            raise Refused(
                Code.BAD_REQUEST,
                f"broker group {group} does not exist; known:"
                f" {', '.join(sorted(state.broker_groups))}",
            )
        if group not in topic.placement and topic.kind is TopicKind.LITE:
            what = (
                f"topic {shown} is of kind lite: each of its lite topics lies in one of its broker"
                " groups for ever"
            )
            raise Refused(
                Code.PRECONDITION_FAILED,
                f"{what}; create another topic to use broker group {group}",
            )
        if group not in topic.placement and topic.dedup_ms:
            what = f"topic {shown} recognises duplicates by the broker group they lie in"
            remedy = (
                f"end that first (ledgermq topic update {topic.name} --dedup 0s), and begin it"
                " again one window later"
            )
            raise Refused(Code.PRECONDITION_FAILED, f"{what}; {remedy}")


def delete_topic(state: State, command: Json) -> tuple[State, Outcome]:
    """Delete a topic and record the deletion, so that the logs delete it too. Raises Refused."""
    key = _read_own_topic_key(command)
    known = existing(state.topics, key, Code.TOPIC_NOT_FOUND, "topic")
    deleted = with_entry(state.deleted_topics, key, known.incarnation)
    return next_state(
        state, topics=without_entry(state.topics, key), deleted_topics=deleted
    ), Outcome(value=export_topic(known))


def spread(queues: int, held: Mapping[str, int], load: Mapping[str, int]) -> Mapping[str, int]:
    """Distribute `queues` of one topic over the broker groups of `load` (group → number of queues
    of other topics). Queues that `held` already places stay.

    Each queue goes to the group with the fewest queues of this topic, then the least load, then the
    first name. If nothing was held, the counts differ by at most one.
    """
    counts = {group: held.get(group, 0) for group in sorted(load)}
    for _ in range(queues - sum(counts.values())):
        chosen = min(counts, key=lambda group: (counts[group], load[group] + counts[group], group))
        counts[chosen] += 1
    return MappingProxyType({group: count for group, count in counts.items() if count})


def _placed(
    state: State,
    key: Key,
    held: Mapping[str, int],
    queues: int,
    within: Mapping[str, int] | None = None,
) -> Mapping[str, int]:
    """Place `queues`; `within` limits the candidates to these broker groups."""
    if not state.broker_groups:
        raise Refused(
            Code.HA_NOT_AVAILABLE,
            "no broker group is known yet; wait until the cluster has started and try again",
        )
    load = dict.fromkeys(state.broker_groups if within is None else within, 0)
    for other, topic in state.topics.items():
        if other != key:
            for group, count in topic.placement.items():
                if group in load:
                    load[group] += count
    return spread(queues, held, load)


def _read_own_topic_key(command: Json) -> Key:
    """The key of a topic that operators may create and change."""
    key = read_topic_key(command)
    if is_dead_letter_topic(key[1]):
        detail = (
            f"{name_of(key)} is a dead-letter topic: it is there once it is needed, with the"
            " settings of its kind"
        )
        raise Refused(Code.PRECONDITION_FAILED, detail)
    return key


def _read_dedup_ms(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_DEDUP_MS:
        raise Refused(
            Code.BAD_REQUEST,
            f"deduplication lasts from 0 (never) to {MAX_DEDUP_MS} ms, not {value!r}",
        )
    return value
