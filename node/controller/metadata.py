"""What the controller quorum agrees on: nodes, broker groups, topics, consumer groups and users, as intent (design §6), and the masters of
HA groups, of which it is the only judge (`ha.py`).

Pure and deterministic: `apply(state, command)` returns the next state and what to tell the caller, from its arguments alone. States are
immutable, so any thread may read one; commands, outcomes and the exported state are plain JSON values. No clock, no chance, no I/O, and
nothing of the library that replicates the commands.

Every command carries the id of the request it serves. The outcomes of the last requests are part of the state, so a request that is
submitted again because its answer was lost is answered, not carried out twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ledgermq.node.controller import broker_groups as group_specs
from ledgermq.node.controller import ha, receipt_keys
from ledgermq.node.controller import users as user_commands
from ledgermq.node.security.grants import User
from ledgermq.proto.group_config import group_fields, group_words, read_backoff, read_group
from ledgermq.proto.names import LITE_PARENT_MAX, group_name, is_dead_letter_topic, stored_name, topic_name
from ledgermq.proto.status import Code, LedgerError
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicDurability, TopicKind
from ledgermq.proto.workers import MEMBER_NAME, node_of

Json = dict[str, Any]
Key = tuple[str, str]

STATE_VERSION = 1
NODE_NAME = re.compile(MEMBER_NAME)
MAX_QUEUES = 1024
MAX_ATTEMPTS = 1000
MAX_DEDUP_MS = 7 * 86_400_000
REMEMBERED_REQUESTS = 512

ADDRESS_KINDS = ("client", "peer", "controller", "http")
"""Where a node is reached, each as host:port, in `State.nodes`."""
NODE_STATE = "state"
JOINING = "joining"
"""The state of a node that was added and has no replica that votes yet; a member has none."""
OBSERVER = "observer"
"""The state of a node whose replicas are observers: they never vote, and nothing that votes is placed there by itself."""


class UnknownCommand(Exception):
    """The log holds a command this version does not know. Skipping it would make replicas differ, so the controller stops."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as intended. `placement` gives every broker group that has queues of it their number, sorted by group."""

    namespace: str
    name: str
    kind: TopicKind
    permission: Permission
    queues: int
    placement: Mapping[str, int]
    incarnation: int
    durability: TopicDurability = TopicDurability.GROUP
    dedup_ms: int = 0

    def in_group(self, broker_group: str) -> TopicConfig | None:
        """The topic as that broker group's log should know it; None when it has no queue there."""
        queues = self.placement.get(broker_group, 0)
        if not queues:
            return None
        named = self.namespace, self.name, self.kind, queues, self.permission, self.incarnation
        return TopicConfig(*named, durability=self.durability, dedup_ms=self.dedup_ms)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to: a status code, a sentence when it was refused, the resulting object when there is one.

    `changed` is False when everything was as asked already.
    """

    code: int = 20000
    detail: str = ""
    value: Json | None = None
    changed: bool = False


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """The agreed metadata. `revision` grows by one with every command that changed something, and by nothing else."""

    revision: int = 0
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=_empty)
    broker_groups: Mapping[str, tuple[str, ...]] = field(default_factory=_empty)
    topics: Mapping[Key, Topic] = field(default_factory=_empty)
    groups: Mapping[Key, GroupConfig] = field(default_factory=_empty)
    answered: Mapping[str, Outcome] = field(default_factory=_empty)
    deleted_topics: Mapping[Key, int] = field(default_factory=_empty)
    """Topics that were deleted and not created again, with their last incarnation."""
    deleted_groups: Mapping[Key, int] = field(default_factory=_empty)
    """Consumer groups that were deleted and not created again, with the revision that did it."""
    removed_nodes: Mapping[str, int] = field(default_factory=_empty)
    """Nodes that were removed and not added again, with the revision that did it: an old configuration does not bring them back."""
    users: Mapping[str, User] = field(default_factory=_empty)
    """By name; replaced as a whole whenever one changes."""
    receipt_keys: receipt_keys.Keys = ()
    """What receipts are signed with, the newest last; replaced as a whole."""
    appointments: ha.Appointments = field(default_factory=_empty)
    """Of HA groups: epoch, master and in-sync set; replaced as a whole."""
    specs: group_specs.Specs = field(default_factory=_empty)
    """What broker groups were begun with, who is meant to lead them, and what moves; replaced as a whole."""

    def topics_of(self, broker_group: str) -> tuple[TopicConfig, ...]:
        """What the log of a broker group should hold, in the order of (namespace, name). Dead-letter topics come into force in the logs by
        themselves; what is known of them here is where they are."""
        found = (self.topics[key].in_group(broker_group) for key in sorted(self.topics) if not is_dead_letter_topic(key[1]))
        return tuple(config for config in found if config is not None)

    def gone_topics(self, broker_group: str) -> frozenset[Key]:
        """What the log of a broker group should not hold. A topic that is neither here nor in `topics_of` is unknown, not deleted: a quorum
        that lost its metadata must not make the logs forget theirs."""
        elsewhere = (key for key, topic in self.topics.items() if not topic.placement.get(broker_group))
        return frozenset(key for key in (*self.deleted_topics, *elsewhere) if not is_dead_letter_topic(key[1]))


def may_vote(state: State) -> tuple[str, ...]:
    """The nodes on which replicas that vote may be placed by themselves: all but observers."""
    return tuple(node for node, known in state.nodes.items() if known.get(NODE_STATE) != OBSERVER)


class _Refused(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.outcome = Outcome(int(code), detail)


def apply(state: State, command: Json) -> tuple[State, Outcome]:
    """The one transition. Refusals leave everything but the remembered outcomes as it was."""
    operation = _OPERATIONS.get(command.get("op", ""))
    if operation is None:
        raise UnknownCommand(f"controller command {command.get('op')!r}")
    request = command.get("id")
    if request is not None and request in state.answered:
        return state, state.answered[request]
    try:
        after, outcome = operation(state, command)
    except _Refused as refused:
        after, outcome = state, refused.outcome
    else:
        outcome = replace(outcome, changed=after is not state)
    if request is not None:
        after = replace(after, answered=_remember(after.answered, request, outcome))
    return after, outcome


def barrier(state: State, _: Json) -> tuple[State, Outcome]:
    """Changes nothing: its place in the log is what its caller wants."""
    return state, Outcome()


def set_cluster(state: State, command: Json) -> tuple[State, Outcome]:
    """What a configuration file says at a start: seeds. Nodes and broker groups that nobody knows become known; what is known, and what was
    removed, stays as it is, because a file may be older than the cluster."""
    told = _mapping(command.get("nodes"))
    nodes = {name: _addresses(addresses) for name, addresses in told.items() if name not in state.removed_nodes}
    groups = {name: tuple(_text(r) for r in _list(members)) for name, members in _mapping(command.get("broker_groups")).items()}
    new_groups = {name: replicas for name, replicas in groups.items() if name not in state.broker_groups}
    for name, replicas in new_groups.items():
        for replica in replicas:
            if replica not in nodes and replica not in state.nodes:
                raise _Refused(Code.BAD_REQUEST, f"broker group {name} names the replica {replica}, which is no known node")
    # An address of a kind that was not told before is new, too.
    merged = {name: MappingProxyType({**at, **state.nodes.get(name, {})}) for name, at in nodes.items()}
    after = _merged(state.broker_groups, new_groups)
    specs = _by_specs(group_specs.announced, state.specs, _mapping(command.get("specs")), after)
    return _changed(state, nodes=_merged(state.nodes, merged), broker_groups=after, specs=specs), Outcome()


def set_node(state: State, command: Json) -> tuple[State, Outcome]:
    """A node is there, or is reached elsewhere from now on. `state`: `joining`, `member`, `observer`, or null to leave it as it is; a node
    that was unknown or removed has to be told as one of them."""
    node = _node_name(command)
    given = command.get("state")
    if given not in (None, JOINING, OBSERVER, "member"):
        raise _Refused(Code.BAD_REQUEST, f"a node is joining, member or observer, not {given!r}")
    if node not in state.nodes and given is None:
        raise _Refused(Code.PRECONDITION_FAILED, f"node {node} is not part of this cluster; add it: ledgermq member add {node}")
    known = state.nodes.get(node, {})
    told = _addresses(command.get("addresses"))
    unknown = sorted(told.keys() - set(ADDRESS_KINDS))
    if unknown:
        raise _Refused(Code.BAD_REQUEST, f"{unknown[0]!r} is no address of a node; known: {', '.join(ADDRESS_KINDS)}")
    after = {**known, **told}
    if given is not None:
        after.pop(NODE_STATE, None)
        after.update({NODE_STATE: given} if given in (JOINING, OBSERVER) else {})
    removed = MappingProxyType({name: revision for name, revision in state.removed_nodes.items() if name != node})
    sealed = MappingProxyType(dict(sorted(after.items())))
    return _changed(state, nodes=_merged(state.nodes, {node: sealed}), removed_nodes=removed), Outcome()


def remove_node(state: State, command: Json) -> tuple[State, Outcome]:
    """Nobody talks to the node any more. Removing what was removed is fine."""
    node = _node_name(command)
    if node in state.removed_nodes:
        return state, Outcome()
    if node not in state.nodes:
        raise _Refused(Code.PRECONDITION_FAILED, f"node {node} is not part of this cluster; its nodes are {', '.join(sorted(state.nodes))}")
    holding = [group for group, replicas in sorted(state.broker_groups.items()) if node in replicas]
    if holding:
        raise _Refused(Code.PRECONDITION_FAILED, f"node {node} still has a replica of broker group {', '.join(holding)}")
    left = MappingProxyType({name: at for name, at in state.nodes.items() if name != node})
    removed = MappingProxyType({**state.removed_nodes, node: state.revision + 1})
    return _changed(state, nodes=left, removed_nodes=removed), Outcome()


def place_replica(state: State, command: Json) -> tuple[State, Outcome]:
    """A broker group is meant to have a replica on a node, or not to."""
    node, group = _node_name(command), _text(command.get("group"))
    present = command.get("present")
    if group not in state.broker_groups or not isinstance(present, bool):
        raise _Refused(Code.BAD_REQUEST, f"broker group {group} does not exist; known: {', '.join(sorted(state.broker_groups))}")
    if present and node not in state.nodes:
        raise _Refused(Code.PRECONDITION_FAILED, f"node {node} is not part of this cluster")
    others = tuple(name for name in state.broker_groups[group] if name != node)
    if present and (near := next((name for name in others if node_of(name) == node_of(node)), None)) is not None:
        what = f"broker group {group} has a replica on {near}, which is a worker of the same node as {node}: one failure would take both"
        raise _Refused(Code.PRECONDITION_FAILED, f"{what}; choose a worker of another node, or remove {near} first")
    replicas = tuple(sorted((*others, node))) if present else others
    specs = group_specs.placed_again(state.specs, group, node) if present else state.specs
    return _changed(state, broker_groups=_merged(state.broker_groups, {group: replicas}), specs=specs), Outcome()


def _by_specs(operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return operation(*arguments, **options)
    except group_specs.Refusal as refusal:
        raise _Refused(Code.PRECONDITION_FAILED, str(refusal)) from refusal


def add_broker_group(state: State, command: Json) -> tuple[State, Outcome]:
    """A new broker group; its founders open it as soon as they hear of it. The same again is fine."""
    group = _text(command.get("group"))
    specs, new = _by_specs(group_specs.added, state.specs, state.broker_groups, state.nodes, group, command.get("settings"))
    value = group_specs.export_spec(specs[group])
    if not new:
        return state, Outcome(value=value)
    replicas = _merged(state.broker_groups, {group: tuple(sorted(specs[group].founders))})
    return _changed(state, broker_groups=replicas, specs=specs), Outcome(value=value)


def begin_move(state: State, command: Json) -> tuple[State, Outcome]:
    """A replica is to move to another node, which opens it as soon as it hears of it."""
    group, move = _text(command.get("group")), _move(command)
    specs = _by_specs(group_specs.move_begun, state.specs, state.broker_groups, state.nodes, group, move)
    replicas = tuple(sorted({*state.broker_groups[group], move.target}))
    return _changed(state, broker_groups=_merged(state.broker_groups, {group: replicas}), specs=specs), Outcome()


def end_move(state: State, command: Json) -> tuple[State, Outcome]:
    """The replica has moved (`done`), or the move is given up. A move that is not under way has ended."""
    group, move, done = _text(command.get("group")), _move(command), command.get("done")
    if not isinstance(done, bool):
        raise _Refused(Code.BAD_REQUEST, f"a move is done or given up, not {done!r}")
    specs, replicas = _by_specs(group_specs.move_ended, state.specs, state.broker_groups, group, move, done=done)
    return _changed(state, broker_groups=_merged(state.broker_groups, {group: replicas}), specs=specs), Outcome()


def prefer_leader(state: State, command: Json) -> tuple[State, Outcome]:
    """Somebody is meant to lead a broker group."""
    group = _text(command.get("group"))
    specs = _by_specs(group_specs.preferring, state.specs, state.broker_groups, group, _node_name(command))
    return _changed(state, specs=specs), Outcome()


def _move(command: Json) -> group_specs.Move:
    source, target = _text(command.get("from")), _text(command.get("to"))
    for name in (source, target):
        _node_name({"node": name})
    return group_specs.Move(source, target)


def adopt_topic(state: State, command: Json) -> tuple[State, Outcome]:
    """A dead-letter topic is in force in a broker group's log, which needed one: consumers are told of it from now on."""
    key, broker_group = _topic_key(command), _text(command.get("broker_group"))
    if not is_dead_letter_topic(key[1]) or broker_group not in state.broker_groups:
        raise _Refused(Code.BAD_REQUEST, f"{_shown(key)} in broker group {broker_group} is no dead-letter topic of this cluster")
    known = state.topics.get(key)
    placement = {} if known is None else dict(known.placement)
    placement[broker_group] = 1
    placed = MappingProxyType(dict(sorted(placement.items())))
    topic = Topic(*key, TopicKind.NORMAL, Permission.READ_WRITE, len(placed), placed, incarnation=0)
    return _changed(state, topics=_with(state.topics, key, topic)), Outcome(value=export_topic(topic))


def create_topic(state: State, command: Json) -> tuple[State, Outcome]:
    key = _own_topic_key(command)
    kind = _choice(TopicKind, command.get("kind"), "kind")
    permission = _choice(Permission, command.get("permission"), "permission")
    durability = _choice(TopicDurability, command.get("durability", ""), "durability")
    queues = _count(command.get("queues"), "queues", MAX_QUEUES)
    dedup_ms = _dedup(command.get("dedup_ms", 0))
    if kind is TopicKind.LITE and len(stored_name(*key)) > LITE_PARENT_MAX:
        what = f"a topic of kind lite has at most {LITE_PARENT_MAX} characters, its namespace and '@' included"
        raise _Refused(Code.ILLEGAL_TOPIC, f"{what}: the names of its lite topics need the rest; choose a shorter name")
    known = state.topics.get(key)
    if known is not None:
        asked = (kind, permission, queues, durability, dedup_ms)
        if (known.kind, known.permission, known.queues, known.durability, known.dedup_ms) == asked:
            return state, Outcome(value=export_topic(known))
        settings = f"kind {known.kind.value}, {known.queues} queues, permission {known.permission.value}"
        if known.durability is not TopicDurability.GROUP:
            settings += f", durability {known.durability.value}"
        if known.dedup_ms:
            settings += f", deduplication for {known.dedup_ms} ms"
        raise _Refused(Code.PRECONDITION_FAILED, f"topic {_shown(key)} exists with other settings ({settings})")
    placement = _placed(state, key, {}, queues)
    topic = Topic(*key, kind, permission, queues, placement, state.revision + 1, durability, dedup_ms)
    deleted = _without(state.deleted_topics, key)
    return _changed(state, topics=_with(state.topics, key, topic), deleted_topics=deleted), Outcome(value=export_topic(topic))


def update_topic(state: State, command: Json) -> tuple[State, Outcome]:
    """Another permission, durability or window of deduplication, or more queues; null leaves a setting alone. Existing queues stay where
    they are. `add_group`: queues in a broker group that has none of them, as many as the others have on average, or what `queues` adds.
    `grow`: broker group → at least so many queues there."""
    key = _own_topic_key(command)
    known = _existing(state.topics, key, Code.TOPIC_NOT_FOUND, "topic")
    permission = known.permission if command.get("permission") is None else _choice(Permission, command["permission"], "permission")
    durability = known.durability if command.get("durability") is None else _choice(TopicDurability, command["durability"], "durability")
    dedup_ms = known.dedup_ms if command.get("dedup_ms") is None else _dedup(command["dedup_ms"])
    placement = _grown(state, known, command)
    queues = sum(placement.values())
    if queues > MAX_QUEUES:
        raise _Refused(Code.BAD_REQUEST, f"topic {_shown(key)} would have {queues} queues; the most is {MAX_QUEUES}")
    topic = replace(known, permission=permission, queues=queues, placement=placement, durability=durability, dedup_ms=dedup_ms)
    return _changed(state, topics=_with(state.topics, key, topic)), Outcome(value=export_topic(topic))


def _grown(state: State, known: Topic, command: Json) -> Mapping[str, int]:
    """Where the queues of a topic are after an update."""
    key, held = (known.namespace, known.name), known.placement
    queues = known.queues if command.get("queues") is None else _count(command["queues"], "queues", MAX_QUEUES)
    if queues < known.queues:
        raise _Refused(Code.PRECONDITION_FAILED, f"topic {_shown(key)} has {known.queues} queues; their number can grow but not shrink")
    into = {group: _count(count, "queues", MAX_QUEUES) for group, count in _mapping(command.get("grow")).items()}
    group = _text(command.get("add_group") or "")
    if group in held:
        what = f"topic {_shown(key)} has {held[group]} queues in broker group {group} already"
        raise _Refused(Code.PRECONDITION_FAILED, f"{what}; more of them: ledgermq topic update {known.name} --queues N")
    if group:
        into[group] = max(queues - known.queues, 0) or -(-known.queues // len(held))
    _check_growth(state, known, into)
    if into:
        return MappingProxyType(dict(sorted({**held, **{name: max(count, held.get(name, 0)) for name, count in into.items()}}.items())))
    if queues == known.queues:
        return held
    return _placed(state, key, held, queues, within=held if _stays(known) else None)


def _stays(topic: Topic) -> bool:
    """Whether what the topic has in its broker groups would be looked for elsewhere if it had queues in another one."""
    return topic.kind is TopicKind.LITE or topic.dedup_ms > 0


def _check_growth(state: State, topic: Topic, into: Mapping[str, int]) -> None:
    shown = _shown((topic.namespace, topic.name))
    for group in into:
        if group not in state.broker_groups:
            raise _Refused(Code.BAD_REQUEST, f"broker group {group} does not exist; known: {', '.join(sorted(state.broker_groups))}")
        if group not in topic.placement and topic.kind is TopicKind.LITE:
            what = f"topic {shown} is of kind lite: each of its lite topics lies in one of its broker groups for ever"
            raise _Refused(Code.PRECONDITION_FAILED, f"{what}; create another topic to use broker group {group}")
        if group not in topic.placement and topic.dedup_ms:
            what = f"topic {shown} recognises duplicates by the broker group they lie in"
            remedy = f"end that first (ledgermq topic update {topic.name} --dedup 0s), and begin it again one window later"
            raise _Refused(Code.PRECONDITION_FAILED, f"{what}; {remedy}")


def delete_topic(state: State, command: Json) -> tuple[State, Outcome]:
    key = _own_topic_key(command)
    known = _existing(state.topics, key, Code.TOPIC_NOT_FOUND, "topic")
    deleted = _with(state.deleted_topics, key, known.incarnation)
    return _changed(state, topics=_without(state.topics, key), deleted_topics=deleted), Outcome(value=export_topic(known))


def create_group(state: State, command: Json) -> tuple[State, Outcome]:
    key = _group_key(command)
    _count(command.get("max_attempts"), "max_attempts", MAX_ATTEMPTS)
    group = _with_settings(GroupConfig(*key), command)
    known = state.groups.get(key)
    if known is not None:
        if known == group:
            return state, Outcome(value=group_fields(known))
        detail = f"consumer group {_shown(key)} exists with other settings ({group_words(known)}); change them with: group update"
        raise _Refused(Code.PRECONDITION_FAILED, detail)
    deleted = _without(state.deleted_groups, key)
    return _changed(state, groups=_with(state.groups, key, group), deleted_groups=deleted), Outcome(value=group_fields(group))


def update_group(state: State, command: Json) -> tuple[State, Outcome]:
    """Other settings; null leaves one alone, a backoff without values is the default again."""
    key = _group_key(command)
    known = _existing(state.groups, key, Code.CONSUMER_GROUP_NOT_FOUND, "consumer group")
    group = _with_settings(known, command)
    return _changed(state, groups=_with(state.groups, key, group)), Outcome(value=group_fields(group))


def _with_settings(group: GroupConfig, command: Json) -> GroupConfig:
    """The group with what the command says about it."""
    given: Json = {}
    if command.get("max_attempts") is not None:
        given["max_attempts"] = _count(command["max_attempts"], "max_attempts", MAX_ATTEMPTS)
    for name in ("fifo", "broadcast"):
        if command.get(name) is not None:
            if not isinstance(command[name], bool):
                raise _Refused(Code.BAD_REQUEST, f"{name} must be true or false, not {command[name]!r}")
            given[name] = command[name]
    if command.get("backoff") is not None:
        try:
            given["backoff"] = read_backoff(_mapping(command["backoff"]))
        except ValueError as error:
            raise _Refused(Code.BAD_REQUEST, str(error)) from error
        except KeyError as error:
            raise _Refused(Code.BAD_REQUEST, f"a backoff has steps_ms, or initial_ms, max_ms and multiplier; {error} is missing") from error
    if command.get("lite_topic") is not None:
        given["lite_topic"] = _text(command["lite_topic"])
        if given["lite_topic"]:
            _key({"ns": group.namespace, "name": given["lite_topic"]}, topic_name)
    changed = replace(group, **given)
    if changed.broadcast and changed.lite_topic:
        raise _Refused(Code.BAD_REQUEST, "a group either gives every message to every client or reads lite topics, not both")
    return changed


def delete_group(state: State, command: Json) -> tuple[State, Outcome]:
    key = _group_key(command)
    known = _existing(state.groups, key, Code.CONSUMER_GROUP_NOT_FOUND, "consumer group")
    deleted = _with(state.deleted_groups, key, state.revision + 1)
    return _changed(state, groups=_without(state.groups, key), deleted_groups=deleted), Outcome(value=group_fields(known))


def _on_users(
    operation: Callable[[Mapping[str, User], Json], tuple[Mapping[str, User], Json]],
) -> Callable[[State, Json], tuple[State, Outcome]]:
    """A command of `users.py` as one on the whole state."""

    def carry_out(state: State, command: Json) -> tuple[State, Outcome]:
        try:
            users, value = operation(state.users, command)
        except user_commands.Refusal as refusal:
            raise _Refused(refusal.code, str(refusal)) from refusal
        return _changed(state, users=users), Outcome(value=value)

    return carry_out


def add_receipt_key(state: State, command: Json) -> tuple[State, Outcome]:
    """Receipts are signed with this key from now on, unless another came first."""
    try:
        keys, value = receipt_keys.add(state.receipt_keys, command)
    except ValueError as error:
        raise _Refused(Code.BAD_REQUEST, str(error)) from error
    return _changed(state, receipt_keys=keys), Outcome(value=value)


def _on_appointments(operation: str) -> Callable[[State, Json], tuple[State, Outcome]]:
    """A command of `ha.py` as one on the whole state."""

    def carry_out(state: State, command: Json) -> tuple[State, Outcome]:
        try:
            appointments, value = ha.carry_out(operation, state.appointments, command)
        except user_commands.Refusal as refusal:
            raise _Refused(refusal.code, str(refusal)) from refusal
        return _changed(state, appointments=appointments), Outcome(value=value)

    return carry_out


_OPERATIONS: dict[str, Callable[[State, Json], tuple[State, Outcome]]] = {
    "barrier": barrier,
    "set-cluster": set_cluster,
    "set-node": set_node,
    "remove-node": remove_node,
    "place-replica": place_replica,
    "add-broker-group": add_broker_group,
    "begin-move": begin_move,
    "end-move": end_move,
    "prefer-leader": prefer_leader,
    "adopt-topic": adopt_topic,
    "create-topic": create_topic,
    "update-topic": update_topic,
    "delete-topic": delete_topic,
    "create-group": create_group,
    "update-group": update_group,
    "delete-group": delete_group,
    "create-user": _on_users(user_commands.create),
    "change-user": _on_users(user_commands.change),
    "delete-user": _on_users(user_commands.delete),
    "add-receipt-key": add_receipt_key,
    **{operation: _on_appointments(operation) for operation in (ha.ELECT, ha.ALTER, ha.FORCE)},
}


def spread(queues: int, held: Mapping[str, int], load: Mapping[str, int]) -> Mapping[str, int]:
    """`queues` of one topic over the broker groups of `load` (their queues of other topics), keeping what `held` already places.

    One by one to the group with the fewest queues of this topic, then the least load, then the first name: the numbers differ by at
    most one when nothing was held.
    """
    counts = {group: held.get(group, 0) for group in sorted(load)}
    for _ in range(queues - sum(counts.values())):
        chosen = min(counts, key=lambda group: (counts[group], load[group] + counts[group], group))
        counts[chosen] += 1
    return MappingProxyType({group: count for group, count in counts.items() if count})


def _placed(
    state: State, key: Key, held: Mapping[str, int], queues: int, within: Mapping[str, int] | None = None
) -> Mapping[str, int]:
    """`within`: only in these broker groups."""
    if not state.broker_groups:
        raise _Refused(Code.HA_NOT_AVAILABLE, "no broker group is known yet; wait until the cluster has started and try again")
    load = dict.fromkeys(state.broker_groups if within is None else within, 0)
    for other, topic in state.topics.items():
        if other != key:
            for group, count in topic.placement.items():
                if group in load:
                    load[group] += count
    return spread(queues, held, load)


def export(state: State) -> Json:
    """The whole state as JSON; `restore` is its inverse."""
    return {
        "v": STATE_VERSION,
        "revision": state.revision,
        "nodes": {name: dict(addresses) for name, addresses in sorted(state.nodes.items())},
        "broker_groups": {name: list(replicas) for name, replicas in sorted(state.broker_groups.items())},
        "topics": [export_topic(state.topics[key]) for key in sorted(state.topics)],
        "groups": [group_fields(state.groups[key]) for key in sorted(state.groups)],
        "deleted_topics": [[*key, incarnation] for key, incarnation in sorted(state.deleted_topics.items())],
        "deleted_groups": [[*key, revision] for key, revision in sorted(state.deleted_groups.items())],
        "removed_nodes": dict(sorted(state.removed_nodes.items())),
        "users": user_commands.export(state.users),
        "receipt_keys": receipt_keys.export(state.receipt_keys),
        "appointments": ha.export(state.appointments),
        "specs": group_specs.export(state.specs),
        "answered": [[request, int(o.code), o.detail, o.value, o.changed] for request, o in state.answered.items()],
    }


def restore(tree: Json) -> State:
    """The state that `export` described."""
    if tree["v"] != STATE_VERSION:
        raise UnknownCommand(f"controller state of version {tree['v']}")
    topics = [restore_topic(item) for item in tree["topics"]]
    groups = [read_group(item) for item in tree["groups"]]
    return State(
        revision=tree["revision"],
        nodes=MappingProxyType({name: MappingProxyType(dict(addresses)) for name, addresses in tree["nodes"].items()}),
        broker_groups=MappingProxyType({name: tuple(replicas) for name, replicas in tree["broker_groups"].items()}),
        topics=MappingProxyType({(topic.namespace, topic.name): topic for topic in topics}),
        groups=MappingProxyType({(group.namespace, group.name): group for group in groups}),
        answered=MappingProxyType({request: Outcome(*fields) for request, *fields in tree["answered"]}),
        deleted_topics=MappingProxyType({(ns, name): incarnation for ns, name, incarnation in tree["deleted_topics"]}),
        deleted_groups=MappingProxyType({(ns, name): revision for ns, name, revision in tree["deleted_groups"]}),
        removed_nodes=MappingProxyType(dict(tree.get("removed_nodes", {}))),
        users=user_commands.restore(tree.get("users", [])),
        receipt_keys=receipt_keys.restore(tree.get("receipt_keys", [])),
        appointments=ha.restore(tree.get("appointments", {})),
        specs=group_specs.restore(tree.get("specs", {})),
    )


def export_topic(topic: Topic) -> Json:
    return {
        "ns": topic.namespace,
        "name": topic.name,
        "kind": topic.kind.value,
        "permission": topic.permission.value,
        "queues": topic.queues,
        "placement": dict(topic.placement),
        "incarnation": topic.incarnation,
        "durability": topic.durability.value,
        **({"dedup_ms": topic.dedup_ms} if topic.dedup_ms else {}),
    }


def restore_topic(tree: Json) -> Topic:
    placement = MappingProxyType(dict(sorted(tree["placement"].items())))
    kind, permission = TopicKind(tree["kind"]), Permission(tree["permission"])
    durability = TopicDurability(tree.get("durability", ""))
    named = tree["ns"], tree["name"], kind, permission, tree["queues"], placement, tree["incarnation"]
    return Topic(*named, durability=durability, dedup_ms=tree.get("dedup_ms", 0))


def _changed(state: State, **fields: Any) -> State:
    """`state` with these fields and the next revision; the same state when nothing differs."""
    if all(getattr(state, name) == value for name, value in fields.items()):
        return state
    return replace(state, revision=state.revision + 1, **fields)


def _remember(answered: Mapping[str, Outcome], request: str, outcome: Outcome) -> Mapping[str, Outcome]:
    kept = list(answered.items())[-(REMEMBERED_REQUESTS - 1) :]
    return MappingProxyType({**dict(kept), request: outcome})


def _merged(known: Mapping[str, Any], told: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(sorted({**known, **told}.items())))


def _with(known: Mapping[Key, Any], key: Key, value: Any) -> Mapping[Key, Any]:
    return MappingProxyType({**known, key: value})


def _without(known: Mapping[Key, Any], key: Key) -> Mapping[Key, Any]:
    return MappingProxyType({other: value for other, value in known.items() if other != key})


def _existing(known: Mapping[Key, Any], key: Key, code: Code, what: str) -> Any:
    if key not in known:
        raise _Refused(code, f"{what} {_shown(key)} does not exist")
    return known[key]


def _shown(key: Key) -> str:
    return stored_name(*key)


def _addresses(value: Any) -> dict[str, str]:
    return {kind: _text(at) for kind, at in sorted(_mapping(value).items())}


def _node_name(command: Json) -> str:
    name = _text(command.get("node"))
    if not NODE_NAME.fullmatch(name):
        raise _Refused(Code.BAD_REQUEST, f"{name!r} is no name of a node: letters, digits, '_' and '-', at most 63")
    return name


def _topic_key(command: Json) -> Key:
    return _key(command, topic_name)


def _own_topic_key(command: Json) -> Key:
    """A topic that is an operator's to create and to change."""
    key = _topic_key(command)
    if is_dead_letter_topic(key[1]):
        detail = f"{_shown(key)} is a dead-letter topic: it is there once it is needed, with the settings of its kind"
        raise _Refused(Code.PRECONDITION_FAILED, detail)
    return key


def _group_key(command: Json) -> Key:
    return _key(command, group_name)


def _key(command: Json, check: Callable[[str, str], str]) -> Key:
    key = _text(command.get("ns")), _text(command.get("name"))
    try:
        check(*key)
    except LedgerError as error:
        raise _Refused(error.code, error.message) from error
    return key


def _choice(kind: Callable[[str], Any], value: Any, field: str) -> Any:
    try:
        return kind(_text(value))
    except ValueError:
        raise _Refused(Code.BAD_REQUEST, f"{field} {value!r} is unknown") from None


def _count(value: Any, field: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise _Refused(Code.BAD_REQUEST, f"{field} must be a whole number from 1 to {most}, not {value!r}")
    return value


def _dedup(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_DEDUP_MS:
        raise _Refused(Code.BAD_REQUEST, f"deduplication lasts from 0 (never) to {MAX_DEDUP_MS} ms, not {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refused(Code.BAD_REQUEST, f"expected a text, not {value!r}")
    return value


def _mapping(value: Any) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _Refused(Code.BAD_REQUEST, f"expected names and values, not {value!r}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Refused(Code.BAD_REQUEST, f"expected a list, not {value!r}")
    return value
