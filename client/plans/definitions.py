"""The definitions of a cluster as values: topics, consumer groups, users with permissions, broker
groups; and the plan from one to another.

Law: a plan never deletes an object and never changes what would move data or lose order by itself;
such differences are named and left. Definitions hold no secrets, because a cluster does not give
them out. Reading, comparing and describing live here; `applying.py` makes the calls, and no option
or file name is known in either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.errors import BadArgument
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.names import DLQ_PREFIX, RETRY_PREFIX, parse_stored
from ledgermq.proto.records.group_config import backoff_words, parse_backoff

VERSION = 1
TOPIC_KINDS = ("normal", "fifo", "delay", "transaction", "mixed", "priority", "lite")
PERMISSIONS = ("rw", "r", "w", "none")
DURABILITIES = ("group", "high", "memory", "hybrid")


@dataclass(frozen=True, slots=True)
class BrokerGroupDefinition:
    name: str
    replication: str = "raft"
    replicas: tuple[str, ...] = ()
    """Empty: the cluster chooses the nodes."""
    preferred_leader: str = ""
    """Empty: the cluster chooses it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further configuration keys of the group, as `broker-group add --set` takes them. Others have
    their defaults in a new group."""


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    name: str
    kind: str = "normal"
    queues: int = 8
    permission: str = "rw"
    durability: str = "group"
    dedup: str = "0s"


@dataclass(frozen=True, slots=True)
class ConsumerGroupDefinition:
    name: str
    max_attempts: int = 17
    fifo: bool = False
    broadcast: bool = False
    backoff: str = "default"
    lite_topic: str = ""


@dataclass(frozen=True, slots=True)
class UserDefinition:
    name: str
    role: bool = False
    grants: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


Definition: TypeAlias = (
    BrokerGroupDefinition | TopicDefinition | ConsumerGroupDefinition | UserDefinition
)
SECTIONS: dict[str, type[Definition]] = {
    "broker_groups": BrokerGroupDefinition,
    "topics": TopicDefinition,
    "consumer_groups": ConsumerGroupDefinition,
    "users": UserDefinition,
}
"""The sections of a file, in the order in which they are applied: a topic needs broker groups, a
consumer group may need a topic."""
SINGULAR = {
    "broker_groups": "broker group",
    "topics": "topic",
    "consumer_groups": "consumer group",
    "users": "user",
}
ONE_OF: dict[tuple[str, str], tuple[str, ...]] = {
    ("broker_groups", "replication"): ("raft", "ha"),
    ("topics", "kind"): TOPIC_KINDS,
    ("topics", "permission"): PERMISSIONS,
    ("topics", "durability"): DURABILITIES,
}
FIXED: dict[str, Mapping[str, str]] = {
    "broker_groups": {
        "replication": "ledgermq replication",
        "replicas": "ledgermq move-replica",
        "settings": "they are fixed when the group is created",
    },
    "topics": {"kind": "delete the topic and create it anew"},
    "users": {"role": "delete it and create it anew"},
}
"""Fields that an import does not change in an object that exists, and what does."""

Definitions: TypeAlias = dict[str, list[Definition]]


@dataclass(frozen=True, slots=True)
class Step:
    """One difference. `sign`: + create, ~ change, ! left. `changed` holds the names of the fields
    that differ."""

    sign: str
    section: str
    wanted: Definition
    text: str
    changed: frozenset[str] = field(default_factory=frozenset)
    former: Definition | None = None

    def __str__(self) -> str:
        return f"{self.sign} {SINGULAR[self.section]} {self.wanted.name}: {self.text}"


def read(admin: Admin, sections: Iterable[str]) -> Definitions:
    """The definitions of the cluster, sorted by name. Raises Unreachable or Refused."""
    readers: dict[str, Callable[[], Iterable[Definition]]] = {
        "broker_groups": lambda: (
            BrokerGroupDefinition(
                g.broker_group,
                g.replication.rpartition(" ")[2] or "raft",
                tuple(sorted(g.replicas)),
                g.preferred,
                dict(sorted(g.settings.items())),
            )
            for g in ask(
                admin.connection, pb.ListBrokerGroupsRequest(), pb.ListBrokerGroupsResponse
            ).groups
        ),
        "topics": lambda: _topics(admin),
        "consumer_groups": lambda: (
            ConsumerGroupDefinition(
                name=g.name,
                max_attempts=g.max_attempts,
                fifo=g.fifo,
                broadcast=g.broadcast,
                backoff="default" if g.backoff is None else backoff_words(g.backoff),
                lite_topic=g.lite_topic or "",
            )
            for g in admin.groups()
            if g.configured
        ),
        "users": lambda: (
            UserDefinition(u.name, u.role, tuple(sorted(u.grants)), tuple(sorted(u.roles)))
            for u in admin.users()
        ),
    }
    return {
        name: sorted(readers[name](), key=lambda one: one.name)
        for name in SECTIONS
        if name in sections
    }


def _topics(admin: Admin) -> Iterator[TopicDefinition]:
    for topic in admin.topics():
        # The cluster creates these itself, when a message needs them.
        if not parse_stored(topic.name)[1].startswith((DLQ_PREFIX, RETRY_PREFIX)):
            settings = (topic.kind, topic.queues, topic.permission, topic.durability or "group")
            yield TopicDefinition(topic.name, *settings, units.duration_text(topic.dedup_ms))


def dump(definitions: Definitions) -> str:
    """The text of a file of definitions: the same definitions give the same bytes."""
    tree = {
        "v": VERSION,
        **{name: [asdict(one) for one in ones] for name, ones in definitions.items()},
    }
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> Definitions:
    """The definitions of a file. Raises BadArgument, which names the place."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(
            f"the file is not JSON ({error})", "give a file that ledgermq definitions export wrote"
        ) from error
    if not isinstance(tree, dict) or tree.pop("v", None) != VERSION:
        raise BadArgument(
            'the file is not a set of definitions ("v": 1)',
            "give a file that ledgermq definitions export wrote",
        )
    sections: Definitions = {}
    for name, entries in tree.items():
        if name not in SECTIONS:
            raise BadArgument(
                f"the section {name!r} is not known", f"known are {', '.join(SECTIONS)}"
            )
        if not isinstance(entries, list):
            raise BadArgument(f"the section {name} is not a list", "give a list of objects")
        ones = [_entry(name, number, entry) for number, entry in enumerate(entries, 1)]
        names = [one.name for one in ones]
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise BadArgument(f"{SINGULAR[name]} {twice} is there twice", "remove one of the two")
        sections[name] = ones
    return {name: sections[name] for name in SECTIONS if name in sections}


def _entry(section: str, number: int, entry: Any) -> Definition:
    where = f"{section}, entry {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise BadArgument(f"{where} has no name", "give each object a name")
    where = f"{SINGULAR[section]} {entry['name']}"
    kind = SECTIONS[section]
    known = {one.name: str(one.type) for one in fields(kind)}
    given: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in known:
            raise BadArgument(
                f"{where}: the key {key!r} is not known", f"known are {', '.join(known)}"
            )
        if not _fits(known[key], value):
            raise BadArgument(f"{where}: {key} is {json.dumps(value)}", f"give {WORDS[known[key]]}")
        if (choices := ONE_OF.get((section, key))) and value not in choices:
            raise BadArgument(f"{where}: {key} is {value!r}", f"give one of {', '.join(choices)}")
        given[key] = _stored(value)
    if "dedup" in given and units.duration_ms(given["dedup"]) is None:
        raise BadArgument(f"{where}: dedup is {given['dedup']!r}", f"give {units.DURATION_FORM}")
    if given.get("backoff", "default") != "default":
        try:
            parse_backoff(given["backoff"])
        except ValueError as error:
            raise BadArgument(f"{where}: {error}", "correct the backoff") from error
    return kind(**given)


def _stored(value: Any) -> Any:
    """A value of a file as a definition holds it: lists sorted, settings as texts."""
    if isinstance(value, dict):
        return {
            key: each if isinstance(each, str) else json.dumps(each)
            for key, each in sorted(value.items())
        }
    return tuple(sorted(value)) if isinstance(value, list) else value


WORDS = {
    "str": "a text",
    "int": "a whole number from 1 on",
    "bool": "true or false",
    "tuple[str, ...]": "a list of texts",
}
WORDS["Mapping[str, str]"] = "an object of texts, numbers, true and false"


def _fits(kind: str, value: Any) -> bool:
    if kind == "tuple[str, ...]":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if kind == "Mapping[str, str]":
        return isinstance(value, dict) and all(
            isinstance(each, str | int) for each in value.values()
        )
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return isinstance(value, {"str": str, "bool": bool}[kind])


def plan(present: Definitions, wanted: Definitions) -> list[Step]:
    """The differences, in the order in which they can be applied: roles come before the users that
    have them."""
    steps: list[Step] = []
    for section, ones in wanted.items():
        known = {one.name: one for one in present[section]}
        ordered: Sequence[Definition] = sorted(ones, key=lambda one: not getattr(one, "role", True))
        for one in ordered:
            steps += _steps(section, one, known.get(one.name))
    return steps


def _steps(section: str, wanted: Definition, former: Definition | None) -> Iterator[Step]:
    if former is None:
        given = {
            key: value
            for key, value in asdict(wanted).items()
            if key != "name" and value not in ("", (), False, {})
        }
        yield Step(
            "+",
            section,
            wanted,
            ", ".join(f"{key} {_shown(value)}" for key, value in given.items()) or "no permissions",
        )
        return
    before, after = _comparable(former), _comparable(wanted)
    differing = {key for key in after if before[key] != after[key]}
    if isinstance(wanted, BrokerGroupDefinition):
        # What the file leaves out, the cluster has chosen.
        differing -= {key for key in ("replicas", "preferred_leader") if not getattr(wanted, key)}
        if all(before["settings"].get(key) == value for key, value in after["settings"].items()):
            differing.discard("settings")
    left = {key: how for key, how in FIXED.get(section, {}).items() if key in differing}
    if (
        isinstance(wanted, TopicDefinition)
        and isinstance(former, TopicDefinition)
        and wanted.queues < former.queues
    ):
        left["queues"] = "a topic keeps its queues"
    texts = {
        key: f"{key} {_shown(getattr(former, key))} → {_shown(getattr(wanted, key))}"
        for key in differing
    }
    if "settings" in differing:
        other = {
            key: value
            for key, value in after["settings"].items()
            if before["settings"].get(key) != value
        }
        texts["settings"] = (
            f"settings {_shown({key: before['settings'].get(key, '') for key in other})} →"
            f" {_shown(other)}"
        )
    for key, how in left.items():
        yield Step(
            sign="!",
            section=section,
            wanted=wanted,
            text=f"{texts[key]} is not changed ({how})",
            changed=frozenset({key}),
            former=former,
        )
    if changed := differing - set(left):
        yield Step(
            sign="~",
            section=section,
            wanted=wanted,
            text=", ".join(texts[key] for key in asdict(wanted) if key in changed),
            changed=frozenset(changed),
            former=former,
        )


def _comparable(one: Definition) -> dict[str, Any]:
    """The fields, with the same value for the same meaning."""
    content = asdict(one)
    if isinstance(one, TopicDefinition):
        content["dedup"] = units.duration_ms(one.dedup)
    if isinstance(one, BrokerGroupDefinition):
        content["settings"] = {key: _amount(key, value) for key, value in one.settings.items()}
    if isinstance(one, ConsumerGroupDefinition) and one.backoff != "default":
        content["backoff"] = parse_backoff(one.backoff)
    return content


def _amount(key: str, value: str) -> str:
    """The same text for the same size or duration."""
    read = (
        units.size_bytes
        if key.endswith("_bytes")
        else units.duration_ms
        if key.endswith("_ms")
        else None
    )
    amount = None if read is None else read(value)
    return value if amount is None else str(amount)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={each or 'default'}" for key, each in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (" ".join(value) or "none") if isinstance(value, tuple) else str(value) or "none"
