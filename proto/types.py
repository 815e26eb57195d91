"""Value types that cross package borders.

Only data and trivial arithmetic live here, and no value changes once it is made. Values that every
commit makes are not frozen dataclasses, whose constructors take several times as long. Anything
that decides, keeps or acts belongs to raft/, storage/ or node/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
else:

    def __getattr__(name: str) -> object:
        """`I64` and `I32`, imported when a module that works with arrays needs them: most commands
        do not, and start without numpy."""
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
    """What the acknowledgement of a send to a topic guarantees (docs/format.md §11, key
    `durability`)."""

    GROUP = ""
    """As the broker group's flush policy says."""
    HIGH = "high"
    MEMORY = "memory"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic as a broker group's log knows it (docs/format.md §11, kind `topic`).

    `queues` is the number of message queues in *this* broker group; their ids are 0 … queues−1
    there.
    """

    namespace: str
    name: str
    kind: TopicKind
    queues: int
    permission: Permission
    incarnation: int
    durability: TopicDurability = TopicDurability.GROUP
    dedup_ms: int = 0
    """How long a repeated message id is answered without storing it again; 0: never."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays after which a consumer receives a message again that it could not process:
    `steps_ms` by attempt, the last one for all later attempts; without steps exponential, from
    `initial_ms` up to `max_ms`."""

    steps_ms: tuple[int, ...] = ()
    initial_ms: int = 0
    max_ms: int = 0
    multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One consumer group (docs/format.md §11, kind `group`). A group without a record has the
    defaults."""

    namespace: str
    name: str
    max_attempts: int = 17
    """The maximum number of deliveries of a message; afterwards it goes to the dead-letter
    topic."""
    fifo: bool = False
    """Whether messages of one message group are delivered one at a time, in order."""
    backoff: Backoff | None = None
    """None: the backoff steps of the contract (§2.4)."""
    lite_topic: str = ""
    """The topic of kind lite that the group's consumers read; empty for an ordinary group."""
    broadcast: bool = False
    """Whether every consumer receives every message."""


@dataclass(slots=True)
class Draft:
    """One message before the log assigns it a place: the input of the encoder."""

    stored_topic: str
    queue: int
    body: bytes
    properties: bytes
    born_ms: int
    tags_code: int = 0
    channel: int = 0
    priority: int = -1
    """The message's priority; −1 without one. Also in `properties`; here it only decides how soon
    the message must be durable."""
    origin: int = 0
    """Index of the entry from which this message was made, and whose end it marks (format §4.3); 0
    if none."""
    deliver_ms: int = 0
    """Not visible before this time (milliseconds since 1970), which is also in `properties`; 0: at
    once."""
    sysflag: int = 0
    """The compression of `body` (format §4.5), for a message made from a native one; 0: none."""


@dataclass(init=False, repr=False, eq=False, slots=True)
class UnsealedBatch:
    """Whole concatenated entries whose header and server-set record fields are still zero (format
    §4); `data` is writable.

    Many entries are described by arrays: `starts` (int64, n) are the entries' offsets in `data` and
    `sizes` (int32, n) their lengths, header included; `topics` holds the distinct stored topics,
    `topic_of` (int32, n) indexes into it; `queues` (int32, n). Few entries are described by lists:
    `edges` are the starts followed by the end of the last entry, `keys` are (stored topic, queue).
    A batch is made from one description; the other one is made when it is first read.
    """

    data: bytearray
    starts: I64
    sizes: I32
    topics: tuple[str, ...]
    topic_of: I32
    queues: I32
    edges: list[int] = field(init=False)
    keys: list[tuple[str, int]] = field(init=False)
    count: int = field(init=False)
    """How many entries it has."""

    def __init__(
        self,
        data: bytearray,
        starts: I64,
        sizes: I32,
        topics: tuple[str, ...],
        topic_of: I32,
        queues: I32,
    ) -> None:
        self.data = data
        self.starts = starts
        self.sizes = sizes
        self.topics = topics
        self.topic_of = topic_of
        self.queues = queues
        self.count = len(sizes)

    @classmethod
    def of_few(
        cls, data: bytearray, edges: list[int], keys: list[tuple[str, int]]
    ) -> UnsealedBatch:
        """A batch from the description by lists."""
        batch = cls.__new__(cls)
        batch.data = data
        batch.edges = edges
        batch.keys = keys
        batch.count = len(keys)
        return batch

    def __len__(self) -> int:
        return self.count

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name == "edges":
                self.edges = [*self.starts.tolist(), len(self.data)]
            elif name == "keys":
                topics = self.topics
                self.keys = [
                    (topics[topic], queue)
                    for topic, queue in zip(
                        self.topic_of.tolist(), self.queues.tolist(), strict=True
                    )
                ]
            elif name in ("starts", "sizes"):
                self.starts, self.sizes = _spans(self.edges)
            elif name in ("topics", "topic_of", "queues"):
                numbers = {}
                topic_of = [numbers.setdefault(topic, len(numbers)) for topic, _ in self.keys]
                self.topics = tuple(numbers)
                self.topic_of, self.queues = (
                    _array(topic_of, "i4"),
                    _array([queue for _, queue in self.keys], "i4"),
                )
            else:
                raise AttributeError(f"UnsealedBatch has no attribute {name!r}")
            return getattr(self, name)


@dataclass(frozen=True, slots=True)
class Frame:
    """Messages of one topic with consecutive sequence numbers of one producer, as whole unsealed
    entries (format §4, frames).

    Validated: message ids and flags in the records agree with the producer, epoch and sequence
    numbers of the fields here.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    batch: UnsealedBatch

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def next_sequence(self) -> int:
        """The sequence number after the last message."""
        return self.first_sequence + len(self.batch)


@dataclass(init=False, repr=False, eq=False, slots=True)
class Range:
    """The unit that flows through storage and raft: contiguous sealed entries of one term in one
    log file, without a blank inside.

    `data` holds entries first_index … last_index exactly as they are on disk; `pos` is the absolute
    position of the first. `prev_chain` is the chain CRC before the first entry, `last_chain` that
    of the last. `starts` (int64, n) are the entries' offsets in `data`, and `sizes` (int32, n)
    their lengths; for few entries `edges` lists the starts, then the end of the last entry. A range
    is made from one of these descriptions; the other one is made when it is first read. `splits`
    are the results of `layout.split_record` for each entry, where verification has already computed
    them. Any thread may read it.
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
    splits: list[tuple[int, int, int, int]] | None
    edges: list[int] = field(init=False)

    def __init__(
        self,
        first_index: int,
        last_index: int,
        term: int,
        pos: int,
        data: memoryview,
        starts: I64 | None,
        sizes: I32 | None,
        prev_chain: int,
        last_chain: int,
        edges: list[int] | None = None,
        splits: list[tuple[int, int, int, int]] | None = None,
    ) -> None:
        """`starts` and `sizes`, or `edges`."""
        self.first_index = first_index
        self.last_index = last_index
        self.term = term
        self.pos = pos
        self.data = data
        self.prev_chain = prev_chain
        self.last_chain = last_chain
        self.splits = splits
        if edges is not None:
            self.edges = edges
        else:
            assert starts is not None and sizes is not None
            self.starts = starts
            self.sizes = sizes

    def __len__(self) -> int:
        return self.last_index - self.first_index + 1

    def __repr__(self) -> str:
        return (
            f"Range({self.first_index}, {self.last_index}, term={self.term}, pos={self.pos},"
            f" {len(self.data)} bytes)"
        )

    @property
    def end_pos(self) -> int:
        return self.pos + len(self.data)

    def copied(self) -> Range:
        """The same with a copy of the bytes, which no truncation of the log changes."""
        data = memoryview(bytes(self.data))
        starts, sizes = self.starts, self.sizes
        return Range(
            self.first_index,
            self.last_index,
            self.term,
            self.pos,
            data,
            starts=starts,
            sizes=sizes,
            prev_chain=self.prev_chain,
            last_chain=self.last_chain,
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name == "edges":
                self.edges = [*self.starts.tolist(), len(self.data)]
            elif name in ("starts", "sizes"):
                self.starts, self.sizes = _spans(self.edges)
            else:
                raise AttributeError(f"Range has no attribute {name!r}")
            return getattr(self, name)


def _array(numbers: list[int], dtype: str) -> NDArray[Any]:
    import numpy as np  # most commands do not need it, and start without it

    return np.array(numbers, dtype)


def _spans(edges: list[int]) -> tuple[I64, I32]:
    """Starts and sizes of adjacent entries."""
    edge = _array(edges, "i8")
    starts: I64 = edge[:-1]
    sizes: I32 = (edge[1:] - starts).astype("i4")
    return starts, sizes


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a replica (format §9, identity.json). File sizes are part of the identity,
    because positions depend on them."""

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
    """Raft state that must be on stable storage before any message that depends on it is sent
    (format §8)."""

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
    """The role of a replica in its group."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """The progress of one replica of a group, as seen by its leader. None: not known.

    From the consensus core: `silent_ms` since its last message; `left_behind` if the leader's log
    no longer holds what it lacks; `restarts` of the comparison with it for lack of progress. From
    `state` on: observations over time (`node/replica/consensus/catch_up.py`).
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
    """Bytes that it received per second, over the last seconds."""
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    """Estimated time until it has caught up, at the current rate."""
    note: str = ""
    """A text for people: why it is not in its proper state."""
    lag_ms: int | None = None
    """For a learner: the age of the first entry that it lacks."""


@dataclass(frozen=True, slots=True)
class RebuildStatus:
    """Why a replica does not run, and the progress of its repair or installation. Unknown values
    are None."""

    reason: str
    source: str | None = None
    """The peer that supplies the bytes."""
    done_bytes: int | None = None
    total_bytes: int | None = None
    remaining_ms: int | None = None
    """An estimate from the rate so far."""


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
    """State of the hosted group (`node/replica/hosting/hosting.py`): joining, repairing,
    installing, running or refused."""
    rebuild: RebuildStatus | None = None
    """None while it runs."""
