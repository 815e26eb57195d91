"""Value types that cross package borders.

Only frozen data and trivial arithmetic live here. Anything that decides, keeps or acts belongs to raft/, storage/ or node/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
else:

    def __getattr__(name: str) -> object:
        """`I64` and `I32`, made when a module that works with arrays asks: most commands do not, and start without numpy."""
        if name not in ("I64", "I32"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import numpy as np
        from numpy.typing import NDArray

        made = NDArray[np.int64 if name == "I64" else np.int32]
        globals()[name] = made
        return made


class TopicKind(str, Enum):
    """Which message type a topic accepts (contract §2.1)."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    MIXED = "mixed"
    """Normal, FIFO, delayed and transactional messages."""
    PRIORITY = "priority"
    LITE = "lite"


class Permission(str, Enum):
    """What clients may do with a topic."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"
    NONE = "none"

    @property
    def readable(self) -> bool:
        return self in (Permission.READ_WRITE, Permission.READ)

    @property
    def writable(self) -> bool:
        return self in (Permission.READ_WRITE, Permission.WRITE)


class TopicDurability(str, Enum):
    """What a send to a topic is acknowledged for (docs/format.md §11, key `durability`)."""

    GROUP = ""
    """Whatever the broker group's flush policy says."""
    HIGH = "high"
    MEMORY = "memory"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic as a broker group's log knows it (docs/format.md §11, kind `topic`).

    `queues` is the number of message queues in *this* broker group; their ids are 0 … queues−1 there.
    """

    namespace: str
    name: str
    kind: TopicKind
    queues: int
    permission: Permission
    incarnation: int
    durability: TopicDurability = TopicDurability.GROUP
    dedup_ms: int = 0
    """For how long a message id that comes again is answered instead of stored; 0: never."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """After which time a consumer asks again for a message that it could not process: `steps_ms` by attempt, the last one for all later
    attempts; without steps exponential, from `initial_ms` up to `max_ms`."""

    steps_ms: tuple[int, ...] = ()
    initial_ms: int = 0
    max_ms: int = 0
    multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One consumer group (docs/format.md §11, kind `group`). A group without a record has the defaults."""

    namespace: str
    name: str
    max_attempts: int = 17
    """Deliveries of one message; the next one would be to the dead-letter topic."""
    fifo: bool = False
    """Messages of one message group are delivered one after the other, in their order."""
    backoff: Backoff | None = None
    """None: the steps of the contract (§2.4)."""
    lite_topic: str = ""
    """The topic of kind lite that the group's consumers are bound to; empty for an ordinary group."""
    broadcast: bool = False
    """Every consumer gets every message."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One message before the log gives it a place: what a unary call hands to the encoder.

    `stored_topic` is namespace-encoded (format §4.2); `properties` is the encoded property string (format §4.1).
    """

    stored_topic: str
    queue: int
    body: bytes
    properties: bytes
    born_ms: int
    tags_code: int = 0
    channel: int = 0
    priority: int = -1
    """Of the message; −1 without one. Part of `properties` too; here it only decides how soon the message must be durable."""
    origin: int = 0
    """Index of the entry this message was made from, whose end it marks (format §4.3); 0: of none."""
    deliver_ms: int = 0
    """Not to be visible before this time (milliseconds since 1970), which stands in `properties` too; 0: at once."""
    sysflag: int = 0
    """How `body` is compressed (format §4.5), of a message made from a native one; 0: it is not."""


@dataclass(frozen=True, slots=True)
class UnsealedBatch:
    """Whole entries whose header and server-set record fields are still zero (format §4), back to back.

    `data` is writable; `starts` (int64, n) are the entries' offsets in it and `sizes` (int32, n) their lengths, header included.
    `topics` holds the distinct stored topics, `topic_of` (int32, n) indexes into it; `queues` (int32, n), `tags_codes` (int64, n) are
    what the encoder knows anyway and the dispatcher would otherwise have to parse again.
    """

    data: bytearray
    starts: I64
    sizes: I32
    topics: tuple[str, ...]
    topic_of: I32
    queues: I32
    tags_codes: I64

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class Frame:
    """Messages of one topic with consecutive sequence numbers of one producer, as whole unsealed entries (format §4, frames).

    Validated: message ids and flags in the records say the same producer, epoch and sequence numbers as the fields here.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    batch: UnsealedBatch

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def next_sequence(self) -> int:
        """Of the message after the last one."""
        return self.first_sequence + len(self.batch)


@dataclass(frozen=True, slots=True)
class Range:
    """The unit that flows through storage and raft: contiguous sealed entries of one term in one log file, no blank inside.

    `data` holds entries first_index … last_index exactly as they are on disk; `pos` is the absolute position of the first; `starts`
    and `sizes` are columns relative to `data`. `prev_chain` is the chain CRC before the first entry, `last_chain` that of the last.
    """

    first_index: int
    last_index: int
    term: int
    pos: int
    data: memoryview
    starts: I64
    sizes: I32
    prev_chain: int
    last_chain: int

    def __len__(self) -> int:
        return self.last_index - self.first_index + 1

    @property
    def end_pos(self) -> int:
        return self.pos + len(self.data)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a replica is (format §9, identity.json). File sizes are part of the identity: positions depend on them."""

    cluster_id: str
    group: str
    log_id: str
    replica: str
    incarnation: str
    data_file_bytes: int
    index_file_bytes: int
    consume_queue_file_bytes: int
    created_ms: int
    format_version: int = 1


@dataclass(frozen=True, slots=True)
class HardState:
    """Raft state that must be on stable storage before any message that depends on it leaves (format §8)."""

    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class SyncedMark:
    """The last entry known to be on stable storage (format §7); index −1 for an empty log."""

    term: int = -1
    index: int = -1
    end_pos: int = 0
    chain_crc: int = 0


class Role(str, Enum):
    """What a replica is in its group."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """How far one replica of a group is, as its leader sees it. None: not known.

    What the consensus core tells: `silent_ms` since it was heard last, `left_behind` when the leader's log does not hold what it lacks,
    `restarts` of the comparison with it for want of progress. From `state` on: what was seen of it over time
    (`node/replica/consensus/catch_up.py`).
    """

    node: str
    role: Role
    end_index: int | None
    durable_index: int | None
    silent_ms: int | None = None
    left_behind: bool = False
    restarts: int = 0
    state: str = ""
    """probing, flowing, installing or restarted-from-compare"""
    behind_entries: int | None = None
    behind_bytes: int | None = None
    entries_per_s: float | None = None
    """What it receives, over the last seconds."""
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    """Until it lacks nothing, if things go on as they do."""
    note: str = ""
    """For people: why it is not what it should be."""
    lag_ms: int | None = None
    """Of a learner: how long ago the first entry was stored that it lacks."""


@dataclass(frozen=True, slots=True)
class RebuildStatus:
    """Why a replica does not run, and how far its repair or its installation is. What is unknown is None."""

    reason: str
    source: str | None = None
    """The peer that the bytes come from."""
    done_bytes: int | None = None
    total_bytes: int | None = None
    remaining_ms: int | None = None
    """An estimate from the pace so far."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A snapshot of one replica for status pages and metrics."""

    group: str
    node: str
    role: Role
    term: int
    leader: str | None
    begin_index: int
    end_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    peers: tuple[PeerProgress, ...] = ()
    fenced: str | None = None
    extra: Mapping[str, int] = field(default_factory=dict)
    state: str = "running"
    """Of the hosted group (`node/replica/hosting/hosting.py`): joining, repairing, installing, running or refused."""
    rebuild: RebuildStatus | None = None
    """Unless it runs."""
