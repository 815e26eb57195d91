"""The options of a consumer: one frozen value, checked before any call to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral
from pathlib import Path
from typing import Literal, TypedDict, get_args

from ledgermq.client.api import arguments
from ledgermq.client.api.reading import ms_of
from ledgermq.client.errors import BadArgument
from ledgermq.client.native.consumers.delivery_log import DeliveryLog
from ledgermq.client.native.consumers.positions import Start
from ledgermq.client.native.consumers.received import BATCH_BYTES
from ledgermq.client.native.consumers.statistics import ConsumerStatistics
from ledgermq.proto.entries.compression import Expansion
from ledgermq.proto.signature import Credentials

From = str | datetime | Mapping[int, int] | Mapping[int, Start]
"""`earliest`, `latest`, `committed`, a moment with a time zone, or offsets of some queues (the
others: earliest)."""

ReadFrom = Literal["leader", "nearest"]
QueuesChanged = Callable[[tuple[int, ...]], Awaitable[None] | None]
Progress = Callable[[ConsumerStatistics], Awaitable[None] | None]
READ_AHEAD_BYTES = 32 << 20
READ_AHEAD_LEAST = 1 << 20
RESPONSE_BYTES = 1 << 20
BATCH_BYTES_MAX = 1 << 30
"""An Arrow column has offsets of 31 bits, and a batch may exceed its limit by one message."""


class ConsumerOptions(TypedDict, total=False):
    """The options of `AsyncConsumer` and `Consumer` besides endpoints and topic."""

    group: str | None
    """A consumer group: its members share the queues, and the next owner of a queue continues at
    the committed offset."""
    namespace: str
    start: From
    """Where to start; with a consumer group, only for queues without a committed offset."""
    queues: Collection[int] | None
    """Without a consumer group: read only these queues, by their numbers over all broker groups."""
    tags: Collection[str] | None
    """Hand out only messages with one of these tags. The others are read and skipped."""
    until_end: bool
    """Stop at the ends that the queues had when reading started, instead of waiting for more
    messages."""
    read_from: ReadFrom
    """`leader` (the default), or `nearest`: the first endpoint with a replica, if the broker group
    allows it, otherwise the leader. Either way messages are committed, in order and read once; from
    a replica they are at most some seconds old (docs/observers.md)."""
    verify: bool
    """Check the CRC of every body (default: yes)."""
    read_ahead_bytes: int
    """Limit on the bytes of entries in flight or waiting, over all broker groups."""
    response_bytes: int
    """Approximate limit on a batch, in bytes of entries."""
    batch_bytes: int
    """Limit on the bodies of a batch, decompressed (default: 32 MiB). A longer one becomes several
    batches; one message always fits."""
    expansion_max: int | None
    """A body that would become more than this many times as long by decompression is handed out as
    it is stored (default: no limit but that of a message, 4 MiB). See `Batch.bodies`."""
    auto_commit: bool
    """Commit a batch automatically when the next one is requested."""
    commit_interval_s: float
    on_assigned: QueuesChanged | None
    """Called with the numbers of the queues read from now on, before anything is read from them;
    may seek. A function or a coroutine function; the functions of a `Consumer` are called in a
    thread of their own. Callbacks may commit, seek and ask for statistics; `next_batch` and `close`
    raise BadArgument there. What they raise, the next batch raises."""
    on_revoked: QueuesChanged | None
    """Called with queues that are about to go to another member: the last chance to commit messages
    handed out from them."""
    on_progress: Progress | None
    """Called as batches are handed out, at most ten times per second; otherwise as `on_assigned`.
    The batch waits for its end. If it raises, the next call returns that batch."""
    delivery_log: DeliveryLog | str | Path | None
    """A Parquet file of handed-out and committed messages, for `ledgermq audit --acks`."""
    timeout_s: float
    """How long a broker group may go without an answer before reading fails (default: 30 s)."""
    credentials: Credentials | None
    tls: bool
    ca: bytes | None
    certificate: tuple[bytes, bytes] | None


WIRE = ("timeout_s", "credentials", "tls", "ca", "certificate")
"""The options that belong to the connection."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The options that do not belong to the connection."""

    topic: str
    group: str | None = None
    namespace: str = ""
    start: From = "earliest"
    queues: Collection[int] | None = None
    tags: Collection[str] | None = None
    until_end: bool = False
    read_from: ReadFrom = "leader"
    verify: bool = True
    read_ahead_bytes: int = READ_AHEAD_BYTES
    response_bytes: int = RESPONSE_BYTES
    batch_bytes: int = BATCH_BYTES
    expansion_max: int | None = None
    auto_commit: bool = False
    commit_interval_s: float = 1.0
    on_assigned: QueuesChanged | None = None
    on_revoked: QueuesChanged | None = None
    on_progress: Progress | None = None
    delivery_log: DeliveryLog | str | Path | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if self.group is None and (self.auto_commit or self.start == "committed"):
            raise BadArgument(
                "without a consumer group nothing can be committed",
                "name a group, or omit auto_commit and committed",
            )
        if self.group is not None and self.queues is not None:
            raise BadArgument(
                "the members of a consumer group cannot choose their queues", "omit group or queues"
            )
        if self.read_from not in get_args(ReadFrom):
            raise BadArgument(
                f"{self.read_from!r} is not a place to read from", "give leader or nearest"
            )
        start_of(self.start, 0)

    def _check_types(self) -> None:
        arguments.text(self.topic, "the topic")
        arguments.text(self.namespace, "the namespace")
        if self.group is not None:
            arguments.text(self.group, "the group")
        arguments.one_of(self.start, "start", str, datetime, Mapping)
        # A text is a collection too, but of its letters.
        for queue in arguments.collection(self.queues, "queues") if self.queues is not None else ():
            arguments.count(queue, "a queue", 0)
        for tag in arguments.collection(self.tags, "tags") if self.tags is not None else ():
            arguments.text(tag, "a tag")
        arguments.count(self.read_ahead_bytes, "read_ahead_bytes", READ_AHEAD_LEAST)
        arguments.count(self.response_bytes, "response_bytes")
        if arguments.count(self.batch_bytes, "batch_bytes") > BATCH_BYTES_MAX:
            raise BadArgument(
                f"batch_bytes is {self.batch_bytes}", f"give at most {BATCH_BYTES_MAX}"
            )
        if self.expansion_max is not None:
            arguments.count(self.expansion_max, "expansion_max")
        arguments.seconds(self.commit_interval_s, "commit_interval_s")
        for name in ("on_assigned", "on_revoked", "on_progress"):
            arguments.function(getattr(self, name), name)
        arguments.one_of(self.delivery_log, "delivery_log", DeliveryLog, str, Path)

    @property
    def expansion(self) -> Expansion:
        """What a body may become."""
        return Expansion(ratio=self.expansion_max)


def start_of(place: From, queue: int) -> Start:
    """The start of a queue for this option. Raises BadArgument."""
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise BadArgument(
                "the time to begin at has no time zone",
                "give a datetime with tzinfo, such as datetime.now(UTC)",
            )
        return Start(store_ms=ms_of(place))
    if isinstance(place, str):
        if place not in ("earliest", "latest", "committed"):
            raise BadArgument(
                f"{place!r} is not a place to start",
                "give earliest, latest, committed, a datetime, or {queue: offset}",
            )
        return Start(earliest=place != "latest")
    if not isinstance(place, Mapping):
        raise BadArgument(
            f"{place!r} is not a place to start",
            "give earliest, latest, committed, a datetime, or {queue: offset}",
        )
    offset = place.get(queue)
    if isinstance(offset, Start):
        return offset
    return Start() if offset is None else at_offset(offset)


def at_offset(offset: int) -> Start:
    """A start at an offset. Raises BadArgument if it is negative."""
    if not isinstance(offset, Integral) or offset < 0:
        raise BadArgument(
            f"{offset!r} is not an offset", "the first message of a queue has offset 0"
        )
    return Start(offset=int(offset))
