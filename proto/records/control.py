"""Control records: everything a broker group replicates besides clients' messages (docs/format.md
§11).

One frozen dataclass per kind, with `encode()` for its JSON body, and `decode(tag, body)` for the
inverse. Only the form is defined here; the code that applies a record decides its effect. Groups
and topics in records are stored names. Tuples stand for JSON arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.levels import FIRST_LEVEL, RECORDS
from ledgermq.proto.names import (
    CONFIG_TOPIC,
    DELIVERY_TOPIC,
    RAFT_TOPIC,
    STORAGE_TOPIC,
    stored_name,
)
from ledgermq.proto.proofs.log_tree import HASH_BYTES
from ledgermq.proto.records.group_config import group_fields, read_group
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import (
    Draft,
    GroupConfig,
    Permission,
    TopicConfig,
    TopicDurability,
    TopicKind,
)

VERSION = 1
MEMBERSHIP_VERSION = 2
"""The version of a membership record that contains more than names."""
RULED_VERSION = 3
"""The version of one with another rule than majority, or with observers."""
MINIMUM_VERSION = 4
"""The version of one that names how many replicas must be in sync."""
TREE_VERSION = 2
"""The version of a seal with the root of the file's entries tree."""
STORED_VERSION = 2
"""The version of a trim whose files the object store has."""
DIGEST_VERSION = 2
"""The version of the record of a producer with a digest of its messages."""
MAJORITY, ALL, IN_SYNC = RULES = ("majority", "all", "in-sync")
MEMBERSHIP_CHANNEL = 1


class UnknownControlRecord(Exception):
    """An unknown kind, version or feature level, or an invalid body. The replica stops before
    anything is applied."""

    exit_code = ExitCode.WRONG_VERSION


_to_json: Callable[[Any], str] = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


def _body(fields: dict[str, Any]) -> bytes:
    return _to_json({"v": VERSION, **fields}).encode()


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of the group. The first entry of every group is one that contains only names;
    each change adds one (version 2).

    `incarnations`: the directories of members whose directory is not that of the group's formation.
    `returning`: learners that will vote again. `rule`, `towards`, `since`, `observers`, `minimum`:
    as in `ledgermq.raft.config.Members`; a record without these has version 1 or 2. `reason` is for
    people. Reading raises ValueError for members that are impossible for a group."""

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
    minimum: int = 0

    def encode(self) -> bytes:
        version, fields = self.version, self.fields()
        return (
            _body(fields)
            if version == VERSION
            else _to_json({"v": version, **fields, "reason": self.reason}).encode()
        )

    @property
    def version(self) -> int:
        """The lowest version of the record that can express it."""
        if self.minimum:
            return MINIMUM_VERSION
        if self.is_ruled:
            return RULED_VERSION
        return MEMBERSHIP_VERSION if self.reason or self.incarnations or self.returning else VERSION

    def fields(self) -> dict[str, Any]:
        """The members, as in the body and in the snapshot."""
        fields: dict[str, Any] = {
            "voters": self._told(self.voters),
            "learners": self._told(self.learners),
        }
        if self.is_ruled:
            fields["rule"], fields["since"] = self.rule, self.since
            if self.towards is not None:
                fields["towards"] = self.towards
        if self.minimum:
            fields["min_in_sync"] = self.minimum
        return fields

    @property
    def is_ruled(self) -> bool:
        """Whether only version 3 of the record, or a later one, can express it."""
        return self.rule != MAJORITY or bool(self.observers)

    def _told(self, nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
        told: dict[str, dict[str, Any]] = {}
        for node in sorted(nodes):
            told[node] = (
                {"incarnation": self.incarnations[node]} if node in self.incarnations else {}
            )
            if node in self.returning:
                told[node]["returning"] = True
            if node in self.observers:
                told[node]["observer"] = True
        return told

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Membership:
        voters, learners = fields["voters"], fields["learners"]
        facts: dict[str, dict[str, Any]] = {**voters, **learners}
        incarnations = {
            node: str(known["incarnation"])
            for node, known in facts.items()
            if "incarnation" in known
        }
        returning = tuple(
            sorted(node for node, known in learners.items() if known.get("returning") is True)
        )
        if not voters or len(facts) != len(voters) + len(learners) or not all(facts):
            raise ValueError("a group needs a voter, and no member is both voter and learner")
        observers = tuple(
            sorted(node for node, known in learners.items() if known.get("observer") is True)
        )
        said = cls(
            tuple(sorted(voters)),
            tuple(sorted(learners)),
            incarnations,
            returning,
            str(fields.get("reason", "")),
        )
        rule, towards, since = (
            fields.get("rule", MAJORITY),
            fields.get("towards"),
            int(fields.get("since", 0)),
        )
        if (
            rule not in RULES
            or (rule == ALL) != (towards is not None)
            or towards not in (None, MAJORITY, IN_SYNC)
        ):
            raise ValueError(f"a group cannot have the rule {rule!r} towards {towards!r}")
        minimum = int(fields.get("min_in_sync", 0))
        if minimum < 0 or (minimum and rule != IN_SYNC):
            raise ValueError(
                f"a group of the rule {rule!r} cannot demand {minimum} replicas in sync"
            )
        return replace(
            said, rule=rule, towards=towards, observers=observers, since=since, minimum=minimum
        )


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
    """An operator made `node` master of `epoch`, without regard to the in-sync set. `kept` is the
    last entry that it held; later entries that only other nodes held are lost."""

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
class LevelRecord:
    """The group has this feature level from here on (`levels.py`), one more than before."""

    TAG: ClassVar[str] = "level"
    TOPIC: ClassVar[str] = RAFT_TOPIC

    level: int
    user: str = ""
    """Who asked for it; empty if calls are not signed."""

    def encode(self) -> bytes:
        return _body({"level": self.level, **({"u": self.user} if self.user else {})})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> LevelRecord:
        return cls(int(fields["level"]), str(fields.get("u", "")))


@dataclass(frozen=True, slots=True)
class TimeEpochRecord:
    """A time epoch begins with this entry: its store time may be lower than the one before
    (`time_epochs.py`)."""

    TAG: ClassVar[str] = "time-epoch"
    TOPIC: ClassVar[str] = RAFT_TOPIC

    before_ms: int
    """The store time of the entry before."""
    user: str = ""
    """Who asked for it; empty if calls are not signed."""

    def encode(self) -> bytes:
        return _body({"before": self.before_ms, **({"u": self.user} if self.user else {})})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TimeEpochRecord:
        return cls(int(fields["before"]), str(fields.get("u", "")))


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """Sets a topic's configuration in this broker group, or deletes the topic."""

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
                **(
                    {"durability": c.durability.value}
                    if c.durability is not TopicDurability.GROUP
                    else {}
                ),
                **({"dedup_ms": c.dedup_ms} if c.dedup_ms else {}),
            }
        )

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TopicRecord:
        config = TopicConfig(
            namespace=fields["ns"],
            name=fields["name"],
            kind=TopicKind(fields["kind"]),
            queues=fields["queues"],
            permission=Permission(fields["perm"]),
            incarnation=fields["incarnation"],
            durability=TopicDurability(fields.get("durability", "")),
            dedup_ms=int(fields.get("dedup_ms", 0)),
        )
        return cls(config, fields["first_queue"], fields["deleted"])


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Sets a consumer group's configuration, or deletes the group."""

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
    """A producer of native frames was opened or resumed, and is in this epoch from here on.
    `sequence`: the number of its next message, for a new producer. `dropped`: producers that were
    inactive for long, and are forgotten with this record. `owner`: the user who opened it, if calls
    are signed. `digest`: from its first message on, a digest of its messages is kept; without it,
    the record has version 1."""

    TAG: ClassVar[str] = "producer"
    TOPIC: ClassVar[str] = CONFIG_TOPIC

    producer_id: int
    epoch: int
    name: str = ""
    sequence: int = 0
    dropped: tuple[int, ...] = ()
    owner: str = ""
    digest: bool = False

    @property
    def version(self) -> int:
        return DIGEST_VERSION if self.digest else VERSION

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"v": self.version, "p": self.producer_id, "e": self.epoch}
        told = {
            "n": self.name,
            "s": self.sequence,
            "x": self.dropped,
            "u": self.owner,
            "d": self.digest,
        }
        return _to_json(fields | {key: value for key, value in told.items() if value}).encode()

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ProducerRecord:
        return cls(
            producer_id=int(fields["p"]),
            epoch=int(fields["e"]),
            name=str(fields.get("n", "")),
            sequence=int(fields.get("s", 0)),
            dropped=tuple([int(number) for number in fields.get("x", ())]),
            owner=str(fields.get("u", "")),
            digest=bool(fields.get("d", False)),
        )


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Messages of one topic leased to one client. The lease number of all of them is the index of
    this entry."""

    TAG: ClassVar[str] = "lease"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    group: str
    topic: str
    client: str
    duration_ms: int | None
    """None: the lease renews itself while the client is alive."""
    leased: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = ()
    """(queue, offsets, attempts)"""
    passed: tuple[tuple[int, int, int], ...] = ()
    """(queue, from, to): new messages that the filter skipped; `to` is exclusive."""
    passed_again: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(queue, offsets) that a redelivery skipped."""
    waiting: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(queue, offsets) of new messages that a FIFO group skips until an earlier one of their
    message group is done."""
    attempt_id: str = ""
    """The attempt id of the Receive, in a FIFO group."""

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
        leased = tuple(
            [(queue, tuple(offsets), tuple(attempts)) for queue, offsets, attempts in fields["q"]]
        )
        passed = tuple([(queue, first, to) for queue, first, to in fields["s"]])
        passed_again = tuple([(queue, tuple(offsets)) for queue, offsets in fields["x"]])
        waiting = tuple([(queue, tuple(offsets)) for queue, offsets in fields.get("w", ())])
        return cls(
            group=fields["g"],
            topic=fields["t"],
            client=fields["c"],
            duration_ms=fields["d"],
            leased=leased,
            passed=passed,
            passed_again=passed_again,
            waiting=waiting,
            attempt_id=fields.get("i", ""),
        )


@dataclass(frozen=True, slots=True)
class AckRecord:
    """Acknowledged messages: (group, stored topic, queue, offsets, lease numbers)."""

    TAG: ClassVar[str] = "ack"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    acks: tuple[tuple[str, str, int, tuple[int, ...], tuple[int, ...]], ...]

    def encode(self) -> bytes:
        return _body({"a": self.acks})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> AckRecord:
        return cls(
            tuple(
                [
                    (g, t, queue, tuple(offsets), tuple(leases))
                    for g, t, queue, offsets, leases in fields["a"]
                ]
            )
        )


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """Replaced leases: (group, stored topic, queue, offset, old lease number, duration in ms,
    client id)."""

    TAG: ClassVar[str] = "change"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    changes: tuple[tuple[str, str, int, int, int, int, str], ...]

    def encode(self) -> bytes:
        return _body({"a": self.changes})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ChangeRecord:
        rows = [
            (g, t, queue, offset, lease, duration, client)
            for g, t, queue, offset, lease, duration, client in fields["a"]
        ]
        return cls(tuple(rows))


@dataclass(frozen=True, slots=True)
class ResetRecord:
    """Moves a consumer group's cursors in these queues of a topic: (queue, its new cursor). All its
    leases there end."""

    TAG: ClassVar[str] = "reset"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    group: str
    topic: str
    queues: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        return _body({"g": self.group, "t": self.topic, "q": self.queues})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> ResetRecord:
        return cls(
            fields["g"], fields["t"], tuple([(queue, offset) for queue, offset in fields["q"]])
        )


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """Half messages, by their offset in their queue: those that end without becoming visible, and
    those that are checked again.

    A commit has no record: the message that becomes visible names its half message (format
    §4.3)."""

    TAG: ClassVar[str] = "transaction"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    ended: tuple[tuple[int, str], ...] = ()
    """(half offset, how): `rollback`, `checks` (the maximum number of checks was not answered),
    `age`"""
    checked: tuple[tuple[int, int], ...] = ()
    """(half offset, the number of the check that is about to be sent)"""
    user: str | None = None
    """The operator who ended those of `ended`, empty if calls are not signed; None: no operator
    did."""

    def encode(self) -> bytes:
        return _body(
            {"e": self.ended, "c": self.checked, **({} if self.user is None else {"u": self.user})}
        )

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TransactionRecord:
        ended = tuple([(offset, how) for offset, how in fields["e"]])
        return cls(
            ended, tuple([(offset, checks) for offset, checks in fields["c"]]), fields.get("u")
        )


@dataclass(frozen=True, slots=True)
class LiteRecord:
    """Changes the set of lite topics that a client of a consumer group reads: `added` and `removed`
    are names within the topic.

    `whole`: the set becomes exactly `added`; a client that is gone has an empty one. `positions`:
    (lite topic, offset) for added topics in which the group starts elsewhere than at its former
    position."""

    TAG: ClassVar[str] = "lite"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    group: str
    topic: str
    client: str
    version: int = 0
    """The version in the client's request, by which a late one is recognised; 0 if it had none."""
    whole: bool = False
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    positions: tuple[tuple[str, int], ...] = ()

    def encode(self) -> bytes:
        fields = {
            "g": self.group,
            "t": self.topic,
            "c": self.client,
            "n": self.version,
            "w": self.whole,
        }
        return _body({**fields, "a": self.added, "r": self.removed, "p": self.positions})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> LiteRecord:
        return cls(
            group=fields["g"],
            topic=fields["t"],
            client=fields["c"],
            version=fields["n"],
            whole=fields["w"],
            added=tuple(fields["a"]),
            removed=tuple(fields["r"]),
            positions=tuple([(name, offset) for name, offset in fields["p"]]),
        )


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """Offsets committed by consumer groups: (group, stored topic, queue, the next offset to read),
    in order."""

    TAG: ClassVar[str] = "offset"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    offsets: tuple[tuple[str, str, int, int], ...]

    def encode(self) -> bytes:
        return _body({"a": self.offsets})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> OffsetRecord:
        return cls(
            tuple([(group, topic, queue, offset) for group, topic, queue, offset in fields["a"]])
        )


RESENT, PURGED = SETTLEMENTS = ("resent", "purged")


@dataclass(frozen=True, slots=True)
class LettersRecord:
    """Settles dead letters of one dead-letter topic, by their offsets in its queue 0. A resent one
    is delivered again to its group."""

    TAG: ClassVar[str] = "letters"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    topic: str
    """The stored name of the dead-letter topic."""
    how: str
    """`resent` or `purged`"""
    offsets: tuple[int, ...]
    places: tuple[tuple[str, str, int, int], ...] = ()
    """Of resent letters, in the same order: (group, stored topic, queue, offset) of the original
    message."""
    user: str = ""
    """Who asked for it; empty if calls are not signed."""

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"t": self.topic, "h": self.how, "o": self.offsets}
        if self.places:
            fields["p"] = self.places
        if self.user:
            fields["u"] = self.user
        return _body(fields)

    @classmethod
    def read(cls, fields: dict[str, Any]) -> LettersRecord:
        places = tuple(
            [(group, topic, queue, offset) for group, topic, queue, offset in fields.get("p", ())]
        )
        how, offsets = fields["h"], tuple(fields["o"])
        if how not in SETTLEMENTS or len(places) != (len(offsets) if how == RESENT else 0):
            raise ValueError(
                f"{len(offsets)} dead letters cannot be {how!r} with {len(places)} places"
            )
        return cls(fields["t"], how, offsets, places, str(fields.get("u", "")))


@dataclass(frozen=True, slots=True)
class RecallRecord:
    """Cancels a delayed message: its delivery time, and the fire time and queue offset of its first
    place (format §4.4)."""

    TAG: ClassVar[str] = "recall"
    TOPIC: ClassVar[str] = DELIVERY_TOPIC

    deliver_ms: int
    fire_ms: int
    offset: int
    user: str | None = None
    """The operator who cancelled it, empty if calls are not signed; None: its producer did."""

    def encode(self) -> bytes:
        return _body(
            {
                "d": self.deliver_ms,
                "f": self.fire_ms,
                "o": self.offset,
                **({} if self.user is None else {"u": self.user}),
            }
        )

    @classmethod
    def read(cls, fields: dict[str, Any]) -> RecallRecord:
        return cls(int(fields["d"]), int(fields["f"]), int(fields["o"]), fields.get("u"))


@dataclass(frozen=True, slots=True)
class TimersRecord:
    """Every message on the timer topic up to this place is done, including those without a copy;
    `dropped` of them lost their topic."""

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
    """A majority computed the same content for a log file that takes no more entries."""

    TAG: ClassVar[str] = "seal"
    TOPIC: ClassVar[str] = STORAGE_TOPIC

    base: int
    """The position in the file's name."""
    first_index: int
    last_index: int
    end_pos: int
    """The position behind the last entry; from here to its end the file holds filler."""
    sha256: str
    """Hexadecimal SHA-256 over the SHA-256 digests of the file's chunks of 1 MiB, filler
    included."""
    replicas: tuple[str, ...]
    """The replicas that reported this value."""
    root: str = ""
    """Hexadecimal root of the tree over the file's entries (`entries_tree.py`); without it, the
    record has version 1."""

    @property
    def version(self) -> int:
        return TREE_VERSION if self.root else VERSION

    def fields(self) -> dict[str, Any]:
        """The fields, as in the body and in the snapshot."""
        return {
            "base": self.base,
            "first": self.first_index,
            "last": self.last_index,
            "end": self.end_pos,
            "sha256": self.sha256,
            "replicas": list(self.replicas),
            **(
                {"tree": {"entries": self.last_index - self.first_index + 1, "root": self.root}}
                if self.root
                else {}
            ),
        }

    def encode(self) -> bytes:
        return _to_json({"v": self.version, **self.fields()}).encode()

    @classmethod
    def read(cls, fields: dict[str, Any]) -> SealRecord:
        root = fields["tree"]["root"] if "tree" in fields else ""
        if root and len(bytes.fromhex(root)) != HASH_BYTES:
            raise ValueError(f"{root!r} is no root of a tree")
        return cls(
            base=fields["base"],
            first_index=fields["first"],
            last_index=fields["last"],
            end_pos=fields["end"],
            sha256=fields["sha256"],
            replicas=tuple(fields["replicas"]),
            root=root,
        )


@dataclass(frozen=True, slots=True)
class TrimRecord:
    """The log now begins with `begin_index`; the files before it are removed."""

    TAG: ClassVar[str] = "trim"
    TOPIC: ClassVar[str] = STORAGE_TOPIC

    begin_index: int
    begin_pos: int
    """The position of a file, and of the entry `begin_index`, which is its first."""
    begin_term: int
    """Term and chain CRC of the entry before `begin_index`."""
    begin_chain: int
    from_index: int
    """The former begin of the log."""
    files: tuple[tuple[int, str | None], ...]
    """(base, digest of its seal record) of every removed file."""
    reason: str
    """time, size, disk or operator"""
    stored: bool = False
    """The object store has the removed files, so that no consumer group loses its position; without
    it, the record has version 1."""

    @property
    def version(self) -> int:
        return STORED_VERSION if self.stored else VERSION

    def fields(self) -> dict[str, Any]:
        """The fields, as in the body and in the snapshot."""
        return {
            "begin": self.begin_index,
            "pos": self.begin_pos,
            "term": self.begin_term,
            "chain": self.begin_chain,
            "from": self.from_index,
            "files": [list(file) for file in self.files],
            "reason": self.reason,
            **({"stored": True} if self.stored else {}),
        }

    def encode(self) -> bytes:
        return _to_json({"v": self.version, **self.fields()}).encode()

    @classmethod
    def read(cls, fields: dict[str, Any]) -> TrimRecord:
        return cls(
            begin_index=fields["begin"],
            begin_pos=fields["pos"],
            begin_term=fields["term"],
            begin_chain=fields["chain"],
            from_index=fields["from"],
            files=tuple([(base, sha256) for base, sha256 in fields["files"]]),
            reason=fields["reason"],
            stored=fields.get("stored", False),
        )


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit marker: the place in the log up to which an audit compares the replicas. It changes
    nothing."""

    TAG: ClassVar[str] = "audit"
    TOPIC: ClassVar[str] = STORAGE_TOPIC

    id: str
    """The name that its requester gave it."""

    def encode(self) -> bytes:
        return _body({"id": self.id})

    @classmethod
    def read(cls, fields: dict[str, Any]) -> AuditRecord:
        return cls(str(fields["id"]))


ControlRecord = (
    Membership
    | TermStart
    | ForcedRecord
    | LevelRecord
    | TimeEpochRecord
    | TopicRecord
    | GroupRecord
    | ProducerRecord
    | LeaseRecord
    | AckRecord
    | ChangeRecord
    | ResetRecord
    | TransactionRecord
    | OffsetRecord
    | LettersRecord
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
    """Decode a record of kind `tag`. Raises UnknownControlRecord for an unknown kind, version or
    form."""
    kind = KINDS.get(tag)
    if kind is None:
        raise UnknownControlRecord(
            f"control record of unknown kind {tag!r}; this log was written by a newer version,"
            " start that one"
        )
    try:
        fields = json.loads(bytes(body))
        version = fields["v"]
        if (tag, version) in RECORDS:
            record = kind.read(fields)
            if (
                isinstance(record, ProducerRecord | SealRecord | TrimRecord)
                and record.version != version
            ):
                # A field decides their version: with another one, programs of two versions would
                # read two things.
                raise ValueError(
                    f"its fields are of version {record.version}, and it names {version}"
                )
            return record
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownControlRecord(
            f"control record {tag!r} cannot be read ({error}); start the version that wrote it"
        ) from error
    raise UnknownControlRecord(
        f"control record {tag!r} has version {version}; this log was written by a newer version,"
        " start that one"
    )


def draft(record: ControlRecord, born_ms: int, level: int = FIRST_LEVEL) -> Draft:
    """`record` as a message on its system topic, queue 0, ready for the encoder. `level`: that of
    the broker group at the end of its log; without it, only records of the first level can be
    encoded."""
    version = (
        record.version
        if isinstance(record, Membership | ProducerRecord | SealRecord | TrimRecord)
        else VERSION
    )
    channel = MEMBERSHIP_CHANNEL if isinstance(record, Membership) else 0
    needed = RECORDS[record.TAG, version]
    assert needed <= level, (
        f"a {record.TAG} record of version {version} needs level {needed}, and the group has level"
        f" {level}"
    )
    return Draft(
        stored_topic=record.TOPIC,
        queue=0,
        body=record.encode(),
        properties=_PROPERTIES[record.TAG],
        born_ms=born_ms,
        tags_code=java_hash(record.TAG),
        channel=channel,
    )
