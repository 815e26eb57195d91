"""The state of the controller quorum as one immutable value, and its JSON form.

The commands define how a state may change (`metadata.py` and the modules that it combines).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ledgermq.node.controller import broker_groups as group_specs
from ledgermq.node.controller import ha, signing_keys
from ledgermq.node.controller import users as user_commands
from ledgermq.node.controller.grants import User
from ledgermq.proto.levels import FIRST_LEVEL, LEVEL_MAX
from ledgermq.proto.names import is_dead_letter_topic
from ledgermq.proto.records.group_config import group_fields, read_group
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicDurability, TopicKind

Json = dict[str, Any]
Key = tuple[str, str]
STATE_VERSION = 1
ADDRESS_KINDS = ("client", "peer", "controller", "http")
"""The kinds of a node's addresses in `State.nodes`, each as host:port."""
NODE_STATE = "state"
JOINING = "joining"
"""The state of a node that was added and has no voting replica yet; a member has no state entry."""
OBSERVER = "observer"
"""The state of a node whose replicas are observers: they never vote, and automatic placement puts
no voting replica there."""


class UnknownCommand(Exception):
    """The log holds a command this version does not know. Skipping it would make replicas differ,
    so the controller stops."""

    exit_code = ExitCode.WRONG_VERSION


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as intended. `placement` maps every broker group that has queues of it to their
    number, sorted by group."""

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
        """The topic as the log of that broker group should have it; None if it has no queue
        there."""
        queues = self.placement.get(broker_group, 0)
        if not queues:
            return None
        return TopicConfig(
            namespace=self.namespace,
            name=self.name,
            kind=self.kind,
            queues=queues,
            permission=self.permission,
            incarnation=self.incarnation,
            durability=self.durability,
            dedup_ms=self.dedup_ms,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command: a status code, an explanation if it was refused, and the resulting
    object if there is one.

    `changed` is False if the state was already as requested.
    """

    code: int = 20000
    detail: str = ""
    value: Json | None = None
    changed: bool = False


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """The agreed metadata. `revision` grows by one with every command that changes something, and
    only then."""

    revision: int = 0
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=_empty)
    broker_groups: Mapping[str, tuple[str, ...]] = field(default_factory=_empty)
    topics: Mapping[Key, Topic] = field(default_factory=_empty)
    groups: Mapping[Key, GroupConfig] = field(default_factory=_empty)
    answered: Mapping[str, Outcome] = field(default_factory=_empty)
    deleted_topics: Mapping[Key, int] = field(default_factory=_empty)
    """Topics that were deleted and not created again, with their last incarnation."""
    deleted_groups: Mapping[Key, int] = field(default_factory=_empty)
    """Consumer groups that were deleted and not created again, with the revision of the
    deletion."""
    removed_nodes: Mapping[str, int] = field(default_factory=_empty)
    """Nodes that were removed and not added again, with the revision of the removal: an old
    configuration does not bring them back."""
    users: Mapping[str, User] = field(default_factory=_empty)
    """By name; replaced as a whole whenever one changes."""
    receipt_keys: signing_keys.ReceiptKeys = ()
    """The keys that sign receipts, the newest last; replaced as a whole."""
    appointments: ha.Appointments = field(default_factory=_empty)
    """HA groups: epoch, master and in-sync set; replaced as a whole."""
    specs: group_specs.Specs = field(default_factory=_empty)
    """The settings that broker groups were created with, their preferred leaders and their moves;
    replaced as a whole."""

    checkpoint_keys: signing_keys.CheckpointKeys = ()
    """The public keys with which nodes sign checkpoints, the newest last; replaced as a whole."""

    level: int = FIRST_LEVEL
    """The feature level of the cluster (`levels.py`); never lowered. Every broker group had it
    before, or gets it from its leader."""

    def topics_of(self, broker_group: str) -> tuple[TopicConfig, ...]:
        """The topics that the log of a broker group should have, ordered by (namespace, name).
        Dead-letter topics are not among them: the logs create those themselves, and this state only
        records where they are."""
        found = (
            self.topics[key].in_group(broker_group)
            for key in sorted(self.topics)
            if not is_dead_letter_topic(key[1])
        )
        return tuple(config for config in found if config is not None)

    def gone_topics(self, broker_group: str) -> frozenset[Key]:
        """The topics that the log of a broker group must not have. A topic that is neither here nor
        in `topics_of` is unknown, not deleted: a quorum that lost its metadata must not make the
        logs delete theirs."""
        elsewhere = (
            key for key, topic in self.topics.items() if not topic.placement.get(broker_group)
        )
        return frozenset(
            key for key in (*self.deleted_topics, *elsewhere) if not is_dead_letter_topic(key[1])
        )


def may_vote(state: State) -> tuple[str, ...]:
    """The nodes on which automatic placement may put voting replicas: all but observers."""
    return tuple(node for node, known in state.nodes.items() if known.get(NODE_STATE) != OBSERVER)


def export(state: State) -> Json:
    """The whole state as JSON; `restore` is its inverse."""
    return {
        "v": STATE_VERSION,
        "revision": state.revision,
        "nodes": {name: dict(addresses) for name, addresses in sorted(state.nodes.items())},
        "broker_groups": {
            name: list(replicas) for name, replicas in sorted(state.broker_groups.items())
        },
        "topics": [export_topic(state.topics[key]) for key in sorted(state.topics)],
        "groups": [group_fields(state.groups[key]) for key in sorted(state.groups)],
        "deleted_topics": [
            [*key, incarnation] for key, incarnation in sorted(state.deleted_topics.items())
        ],
        "deleted_groups": [
            [*key, revision] for key, revision in sorted(state.deleted_groups.items())
        ],
        "removed_nodes": dict(sorted(state.removed_nodes.items())),
        "users": user_commands.export(state.users),
        "receipt_keys": signing_keys.export_receipt_keys(state.receipt_keys),
        "appointments": ha.export(state.appointments),
        "specs": group_specs.export(state.specs),
        **(
            {"checkpoint_keys": signing_keys.export_checkpoint_keys(state.checkpoint_keys)}
            if state.checkpoint_keys
            else {}
        ),
        **({"level": state.level} if state.level > FIRST_LEVEL else {}),
        "answered": [
            [request, int(o.code), o.detail, o.value, o.changed]
            for request, o in state.answered.items()
        ],
    }


def restore(tree: Json) -> State:
    """The inverse of `export`. Raises UnknownCommand for another version, and for a level that this
    program does not read."""
    if tree["v"] != STATE_VERSION:
        raise UnknownCommand(
            f"controller state of version {tree['v']}: start the program that wrote it"
        )
    topics = [restore_topic(item) for item in tree["topics"]]
    groups = [read_group(item) for item in tree["groups"]]
    return State(
        revision=tree["revision"],
        nodes=MappingProxyType(
            {name: MappingProxyType(dict(addresses)) for name, addresses in tree["nodes"].items()}
        ),
        broker_groups=MappingProxyType(
            {name: tuple(replicas) for name, replicas in tree["broker_groups"].items()}
        ),
        topics=MappingProxyType({(topic.namespace, topic.name): topic for topic in topics}),
        groups=MappingProxyType({(group.namespace, group.name): group for group in groups}),
        answered=MappingProxyType(
            {request: Outcome(*fields) for request, *fields in tree["answered"]}
        ),
        deleted_topics=MappingProxyType(
            {(ns, name): incarnation for ns, name, incarnation in tree["deleted_topics"]}
        ),
        deleted_groups=MappingProxyType(
            {(ns, name): revision for ns, name, revision in tree["deleted_groups"]}
        ),
        removed_nodes=MappingProxyType(dict(tree.get("removed_nodes", {}))),
        users=user_commands.restore(tree.get("users", [])),
        receipt_keys=signing_keys.restore_receipt_keys(tree.get("receipt_keys", [])),
        appointments=ha.restore(tree.get("appointments", {})),
        specs=group_specs.restore(tree.get("specs", {})),
        checkpoint_keys=signing_keys.restore_checkpoint_keys(tree.get("checkpoint_keys", [])),
        level=read_level(tree.get("level", FIRST_LEVEL)),
    )


def read_level(level: int) -> int:
    """The level, if this program reads it. Raises UnknownCommand."""
    if level > LEVEL_MAX:
        what = f"the cluster has feature level {level}, this program reads up to {LEVEL_MAX}"
        raise UnknownCommand(
            f"{what}: start the program that raised it, or a newer one; an upgrade that is finished"
            " has no way back"
        )
    return level


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
    return Topic(
        namespace=tree["ns"],
        name=tree["name"],
        kind=TopicKind(tree["kind"]),
        permission=Permission(tree["permission"]),
        queues=tree["queues"],
        placement=placement,
        incarnation=tree["incarnation"],
        durability=TopicDurability(tree.get("durability", "")),
        dedup_ms=tree.get("dedup_ms", 0),
    )


def next_state(state: State, **fields: Any) -> State:
    """`state` with these fields and the next revision; the same state if no field changes."""
    if all(getattr(state, name) == value for name, value in fields.items()):
        return state
    return replace(state, revision=state.revision + 1, **fields)


def merged_with(known: Mapping[str, Any], told: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(sorted({**known, **told}.items())))


def with_entry(known: Mapping[Key, Any], key: Key, value: Any) -> Mapping[Key, Any]:
    return MappingProxyType({**known, key: value})


def without_entry(known: Mapping[Key, Any], key: Key) -> Mapping[Key, Any]:
    return MappingProxyType({other: value for other, value in known.items() if other != key})
