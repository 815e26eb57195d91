"""Control records: everything a broker group replicates besides clients' messages (docs/format.md §11).

One frozen dataclass per kind, with `encode()` for its JSON body, and `decode(tag, body)` back. Only the form lives here; what a record
does to the state is decided where it is applied. Groups and topics inside are stored names. Tuples stand for JSON arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

from ledgermq.proto.group_config import group_fields, read_group
from ledgermq.proto.layout import java_hash
from ledgermq.proto.names import CONFIG_TOPIC, DELIVERY_TOPIC, RAFT_TOPIC, STORAGE_TOPIC, stored_name
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import Draft, GroupConfig, Permission, TopicConfig, TopicDurability, TopicKind

VERSION = 1
MEMBERSHIP_VERSION = 2
"""Of a membership record that says more than names."""
RULED_VERSION = 3
"""Of one that names another rule than that of a majority, or observers."""
MAJORITY, ALL, IN_SYNC = RULES = ("majority", "all", "in-sync")
MEMBERSHIP_CHANNEL = 1


class UnknownControlRecord(Exception):
    """A kind or version this program does not know, or a body it cannot read. The replica stops before anything is applied."""

    exit_code = ExitCode.WRONG_VERSION


_to_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _body(fields: dict[str, Any]) -> bytes:
    return _to_json({"v": VERSION, **fields}).encode()


@dataclass(frozen=True, slots=True)
class Membership:
    """Who replicates the group. The first entry of every group, which says no more than names, and one entry per change (version 2).

    `incarnations`: the directory a member is known by, where another than that of the group's beginning. `returning`: learners that are to
    vote again. `rule`, `towards`, `since`, `observers`: as in `ledgermq.raft.config.Members`; a record that says nothing of them has
    version 1 or 2. `reason` is for people. Reading raises ValueError for members that no group can have."""

    TAG: ClassVar[str] = "membership"
    TOPIC: ClassVar[str] = RAFT_TOPIC

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    returning: tuple[str, ...] = ()
    reason: str = ""
    rule: str = MAJORITY
    towards: str | None = None
    observers: tuple[str, ...] = ()
    since: int = 0

    def encode(self) -> bytes:
        fields = self.fields()
        if self.is_ruled:
            return _to_json({"v": RULED_VERSION, **fields, "reason": self.reason}).encode()
        if self.reason or self.incarnations or self.returning:
            return _to_json({"v": MEMBERSHIP_VERSION, **fields, "reason": self.reason}).encode()
        return _body(fields)

    def fields(self) -> dict[str, Any]:
        """The members as in the body, and in the snapshot."""
        fields: dict[str, Any] = {"voters": self._told(self.voters), "learners": self._told(self.learners)}
        if self.is_ruled:
            fields["rule"], fields["since"] = self.rule, self.since
            if self.towards is not None:
                fields["towards"] = self.towards
        return fields

    @property
    def is_ruled(self) -> bool:
        """Whether only version 3 of the record can say it."""
        return self.rule != MAJORITY or bool(self.observers)

    def _told(self, nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
        told: dict[str, dict[str, Any]] = {}
        for node in sorted(nodes):
            told[node] = {"incarnation": self.incarnations[node]} if node in self.incarnations else {}
            if node in self.returning:
                told[node]["returning"] = True
            if node in self.observers:
                told[node]["observer"] = True
        return told

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Membership:
        voters, learners = fields["voters"], fields["learners"]
        facts: dict[str, dict[str, Any]] = {**voters, **learners}
        incarnations = {node: str(known["incarnation"]) for node, known in facts.items() if "incarnation" in known}
        returning = tuple(sorted(node for node, known in learners.items() if known.get("returning") is True))
        if not voters or len(facts) != len(voters) + len(learners) or not all(facts):
            raise ValueError("a group needs a voter, and nobody is voter and learner at once")
        observers = tuple(sorted(node for node, known in learners.items() if known.get("observer") is True))
        said = cls(tuple(sorted(voters)), tuple(sorted(learners)), incarnations, returning, str(fields.get("reason", "")))
        rule, towards, since = fields.get("rule", MAJORITY), fields.get("towards"), int(fields.get("since", 0))
        if rule not in RULES or (rule == ALL) != (towards is not None) or towards not in (None, MAJORITY, IN_SYNC):
            raise ValueError(f"no group has the rule {rule!r} towards {towards!r}")
        return replace(said, rule=rule, towards=towards, observers=observers, since=since)


@dataclass(frozen=True, slots=True)
class TermStart:
    """The first entry of every leader's term."""

    TAG: ClassVar[str] = "term-start"
    TOPIC: ClassVar[str] = RAFT_TOPIC

    term: int
    leader: str

    def encode(self) -> bytes:
        return _body({"term": self.term, "leader": self.leader})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TermStart:
        return cls(fields["term"], fields["leader"])


@dataclass(frozen=True, slots=True)
class ForcedRecord:
    """An operator made `node` master of `epoch`, whoever was in sync. What only others held is lost: entries behind `kept`, the last one it
    held before."""

    TAG: ClassVar[str] = "forced"
    TOPIC: ClassVar[str] = RAFT_TOPIC

    epoch: int
    node: str
    kept: int

    def encode(self) -> bytes:
        return _body({"epoch": self.epoch, "node": self.node, "kept": self.kept})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ForcedRecord:
        return cls(fields["epoch"], fields["node"], fields["kept"])


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic's configuration in this broker group takes effect, or the topic is deleted."""

    TAG: ClassVar[str] = "topic"
    TOPIC: ClassVar[str] = CONFIG_TOPIC

    config: TopicConfig
    first_queue: int = 0
    deleted: bool = False

    @property
    def stored(self) -> str:
        return stored_name(self.config.namespace, self.config.name)

    def encode(self) -> bytes:
        c = self.config
        return _body(
            {
                "ns": c.namespace,
                "name": c.name,
                "kind": c.kind.value,
                "queues": c.queues,
                "first_queue": self.first_queue,
                "perm": c.permission.value,
                "incarnation": c.incarnation,
                "deleted": self.deleted,
                **({"durability": c.durability.value} if c.durability is not TopicDurability.GROUP else {}),
                **({"dedup_ms": c.dedup_ms} if c.dedup_ms else {}),
            }
        )

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TopicRecord:
        kind, permission = TopicKind(fields["kind"]), Permission(fields["perm"])
        durability = TopicDurability(fields.get("durability", ""))
        config = TopicConfig(
            *(fields["ns"], fields["name"], kind, fields["queues"], permission, fields["incarnation"]),
            durability=durability,
            dedup_ms=int(fields.get("dedup_ms", 0)),
        )
        return cls(config, fields["first_queue"], fields["deleted"])


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A consumer group's configuration takes effect, or the group is deleted."""

    TAG: ClassVar[str] = "group"
    TOPIC: ClassVar[str] = CONFIG_TOPIC

    config: GroupConfig
    deleted: bool = False

    @property
    def stored(self) -> str:
        return stored_name(self.config.namespace, self.config.name)

    def encode(self) -> bytes:
        return _body({**group_fields(self.config), "deleted": self.deleted})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> GroupRecord:
        return cls(read_group(fields), fields["deleted"])


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A producer of native frames was opened or resumed: from here on it is in this epoch. `sequence`: of its next message, of a producer
    that is not known yet. `dropped`: producers that were silent for long, and are forgotten with it. `owner`: the user who opened it, where
    calls are signed."""

    TAG: ClassVar[str] = "producer"
    TOPIC: ClassVar[str] = CONFIG_TOPIC

    producer_id: int
    epoch: int
    name: str = ""
    sequence: int = 0
    dropped: tuple[int, ...] = ()
    owner: str = ""

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"p": self.producer_id, "e": self.epoch}
        told = {"n": self.name, "s": self.sequence, "x": self.dropped, "u": self.owner}
        return _body(fields | {key: value for key, value in told.items() if value})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ProducerRecord:
        dropped = tuple([int(number) for number in fields.get("x", ())])
        name, owner = str(fields.get("n", "")), str(fields.get("u", ""))
        return cls(int(fields["p"]), int(fields["e"]), name, int(fields.get("s", 0)), dropped, owner)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Messages of one topic handed to one client. The lease number of all of them is the index of this entry."""

    TAG: ClassVar[str] = "lease"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    group: str
    topic: str
    client: str
    duration_ms: int | None
    """None: renews itself while the client is alive."""
    leased: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = ()
    """(queue, offsets, attempts)"""
    passed: tuple[tuple[int, int, int], ...] = ()
    """(queue, from, to): the filter passed over these new messages; `to` is exclusive."""
    passed_again: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(queue, offsets) a redelivery passed over."""
    waiting: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(queue, offsets) of new messages that a FIFO group jumps over, because an earlier one of their message group is not done."""
    attempt_id: str = ""
    """Of the Receive, in a FIFO group."""

    def encode(self) -> bytes:
        fields = {
            "g": self.group,
            "t": self.topic,
            "c": self.client,
            "d": self.duration_ms,
            "q": self.leased,
            "s": self.passed,
            "x": self.passed_again,
        }
        if self.waiting:
            fields["w"] = self.waiting
        if self.attempt_id:
            fields["i"] = self.attempt_id
        return _body(fields)

    @classmethod
    def read(cls, fields: dict[str, Any]) -> LeaseRecord:
        leased = tuple([(queue, tuple(offsets), tuple(attempts)) for queue, offsets, attempts in fields["q"]])
        passed = tuple([(queue, first, to) for queue, first, to in fields["s"]])
        passed_again = tuple([(queue, tuple(offsets)) for queue, offsets in fields["x"]])
        waiting = tuple([(queue, tuple(offsets)) for queue, offsets in fields.get("w", ())])
        return cls(fields["g"], fields["t"], fields["c"], fields["d"], leased, passed, passed_again, waiting, fields.get("i", ""))


@dataclass(frozen=True, slots=True)
class AckRecord:
    """Leased messages that are done: (group, stored topic, queue, offsets, lease numbers)."""

    TAG: ClassVar[str] = "ack"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    acks: tuple[tuple[str, str, int, tuple[int, ...], tuple[int, ...]], ...]

    def encode(self) -> bytes:
        return _body({"a": self.acks})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> AckRecord:
        return cls(tuple([(g, t, queue, tuple(offsets), tuple(leases)) for g, t, queue, offsets, leases in fields["a"]]))


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """Leases that were replaced: (group, stored topic, queue, offset, old lease number, duration in ms, client id)."""

    TAG: ClassVar[str] = "change"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    changes: tuple[tuple[str, str, int, int, int, int, str], ...]

    def encode(self) -> bytes:
        return _body({"a": self.changes})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ChangeRecord:
        rows = [(g, t, queue, offset, lease, duration, client) for g, t, queue, offset, lease, duration, client in fields["a"]]
        return cls(tuple(rows))


@dataclass(frozen=True, slots=True)
class ResetRecord:
    """A consumer group reads these queues of a topic from other offsets on: (queue, its new cursor). Rows in flight there vanish."""

    TAG: ClassVar[str] = "reset"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    group: str
    topic: str
    queues: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        return _body({"g": self.group, "t": self.topic, "q": self.queues})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ResetRecord:
        return cls(fields["g"], fields["t"], tuple([(queue, offset) for queue, offset in fields["q"]]))


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """Half messages, by their offset in the queue they lie in: those that end without becoming visible, and those asked about again.

    A commit has no record: the message that becomes visible is its own mark (format §4.3)."""

    TAG: ClassVar[str] = "transaction"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    ended: tuple[tuple[int, str], ...] = ()
    """(half offset, how): `rollback`, `checks` (no answer to as many checks as there are), `age`"""
    checked: tuple[tuple[int, int], ...] = ()
    """(half offset, the number of the check that is about to be sent)"""

    def encode(self) -> bytes:
        return _body({"e": self.ended, "c": self.checked})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TransactionRecord:
        ended = tuple([(offset, how) for offset, how in fields["e"]])
        return cls(ended, tuple([(offset, checks) for offset, checks in fields["c"]]))


@dataclass(frozen=True, slots=True)
class LiteRecord:
    """The lite topics that a client of a consumer group reads from are others now: `added` and `removed` are names within the topic.

    `whole`: the set becomes exactly `added`; a client that is gone has an empty one. `positions`: (lite topic, offset) of those added where
    the group begins elsewhere than where it was."""

    TAG: ClassVar[str] = "lite"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    group: str
    topic: str
    client: str
    version: int = 0
    """Of the client's request, so that a late one can be told; 0 if it did not say."""
    whole: bool = False
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    positions: tuple[tuple[str, int], ...] = ()

    def encode(self) -> bytes:
        fields = {"g": self.group, "t": self.topic, "c": self.client, "n": self.version, "w": self.whole}
        return _body({**fields, "a": self.added, "r": self.removed, "p": self.positions})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> LiteRecord:
        names = tuple(fields["a"]), tuple(fields["r"]), tuple([(name, offset) for name, offset in fields["p"]])
        return cls(fields["g"], fields["t"], fields["c"], fields["n"], fields["w"], *names)


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """Offsets that consumer groups committed: (group, stored topic, queue, the next offset to be read), in order."""

    TAG: ClassVar[str] = "offset"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    offsets: tuple[tuple[str, str, int, int], ...]

    def encode(self) -> bytes:
        return _body({"a": self.offsets})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> OffsetRecord:
        return cls(tuple([(group, topic, queue, offset) for group, topic, queue, offset in fields["a"]]))


@dataclass(frozen=True, slots=True)
class RecallRecord:
    """A delayed message is not to be delivered: its delivery time, and fire time and queue offset of its first place (format §4.4)."""

    TAG: ClassVar[str] = "recall"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    deliver_ms: int
    fire_ms: int
    offset: int

    def encode(self) -> bytes:
        return _body({"d": self.deliver_ms, "f": self.fire_ms, "o": self.offset})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> RecallRecord:
        return cls(int(fields["d"]), int(fields["f"]), int(fields["o"]))


@dataclass(frozen=True, slots=True)
class TimersRecord:
    """Every message on the timer topic up to this place is done, also those that left no copy; `dropped` of them lost their topic."""

    TAG: ClassVar[str] = "timers"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    fire_ms: int
    offset: int
    dropped: int = 0

    def encode(self) -> bytes:
        return _body({"f": self.fire_ms, "o": self.offset, "n": self.dropped})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TimersRecord:
        return cls(int(fields["f"]), int(fields["o"]), int(fields["n"]))


@dataclass(frozen=True, slots=True)
class SealRecord:
    """A majority found the same content in a file of the log that takes no more entries."""

    TAG: ClassVar[str] = "seal"
    TOPIC: ClassVar[str] = STORAGE_TOPIC

    base: int
    """The position the file is named by."""
    first_index: int
    last_index: int
    end_pos: int
    """Behind the last entry; from here to the end of the file lies filler."""
    sha256: str
    """Hexadecimal SHA-256 over the SHA-256 digests of the file's chunks of 1 MiB, filler included."""
    replicas: tuple[str, ...]
    """Who reported this value."""

    def fields(self) -> dict[str, Any]:
        """As in the body, and in the snapshot."""
        return {
            "base": self.base,
            "first": self.first_index,
            "last": self.last_index,
            "end": self.end_pos,
            "sha256": self.sha256,
            "replicas": list(self.replicas),
        }

    def encode(self) -> bytes:
        return _body(self.fields())

    @classmethod
    def read(cls, fields: dict[str, Any]) -> SealRecord:
        return cls(fields["base"], fields["first"], fields["last"], fields["end"], fields["sha256"], tuple(fields["replicas"]))


@dataclass(frozen=True, slots=True)
class TrimRecord:
    """The log begins with `begin_index` from now on; the files before it go."""

    TAG: ClassVar[str] = "trim"
    TOPIC: ClassVar[str] = STORAGE_TOPIC

    begin_index: int
    begin_pos: int
    """Of a file, and of the entry `begin_index`, which is its first."""
    begin_term: int
    """Term and chain CRC of the entry before `begin_index`."""
    begin_chain: int
    from_index: int
    """Where the log began before."""
    files: tuple[tuple[int, str | None], ...]
    """(base, digest of its seal record) of every file that goes."""
    reason: str
    """time, size, disk or operator"""

    def fields(self) -> dict[str, Any]:
        """As in the body, and in the snapshot."""
        return {
            "begin": self.begin_index,
            "pos": self.begin_pos,
            "term": self.begin_term,
            "chain": self.begin_chain,
            "from": self.from_index,
            "files": [list(file) for file in self.files],
            "reason": self.reason,
        }

    def encode(self) -> bytes:
        return _body(self.fields())

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TrimRecord:
        files = tuple([(base, sha256) for base, sha256 in fields["files"]])
        begin = fields["begin"], fields["pos"], fields["term"], fields["chain"]
        return cls(*begin, fields["from"], files, fields["reason"])


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit marker: a place in the log up to which somebody holds the replicas against each other. It changes nothing."""

    TAG: ClassVar[str] = "audit"
    TOPIC: ClassVar[str] = STORAGE_TOPIC

    id: str
    """Who asked for it."""

    def encode(self) -> bytes:
        return _body({"id": self.id})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> AuditRecord:
        return cls(str(fields["id"]))


ControlRecord = (
    Membership
    | TermStart
    | ForcedRecord
    | TopicRecord
    | GroupRecord
    | ProducerRecord
    | LeaseRecord
    | AckRecord
    | ChangeRecord
    | ResetRecord
    | TransactionRecord
    | OffsetRecord
    | RecallRecord
    | TimersRecord
    | LiteRecord
    | SealRecord
    | TrimRecord
    | AuditRecord
)
KINDS: dict[str, type[ControlRecord]] = {kind.TAG: kind for kind in get_args(ControlRecord)}
_PROPERTIES = {tag: f"TAGS\x01{tag}\x02".encode() for tag in KINDS}


def decode(tag: str, body: bytes | memoryview) -> ControlRecord:
    """The record of kind `tag`. Raises UnknownControlRecord for a kind, version or form this program does not know."""
    kind = KINDS.get(tag)
    if kind is None:
        raise UnknownControlRecord(f"control record of unknown kind {tag!r}; this log was written by a newer version, start that one")
    try:
        fields = json.loads(bytes(body))
        if fields["v"] == VERSION or (kind is Membership and fields["v"] in (MEMBERSHIP_VERSION, RULED_VERSION)):
            return kind.read(fields)
        version = fields["v"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownControlRecord(f"control record {tag!r} cannot be read ({error}); start the version that wrote it") from error
    raise UnknownControlRecord(f"control record {tag!r} has version {version}; this log was written by a newer version, start that one")


def draft(record: ControlRecord, born_ms: int) -> Draft:
    """`record` as a message on its system topic, queue 0, ready for the encoder."""
    channel = MEMBERSHIP_CHANNEL if isinstance(record, Membership) else 0
    return Draft(record.TOPIC, 0, record.encode(), _PROPERTIES[record.TAG], born_ms, java_hash(record.TAG), channel)
