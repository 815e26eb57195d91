"""What a consumer is told when it is made: one frozen value, checked before anything is asked of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypedDict, get_args

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.delivery_log import DeliveryLog
from ledgermq.client.native.positions import Start
from ledgermq.client.native.statistics import ConsumerStatistics
from ledgermq.client.reading import ms_of
from ledgermq.proto.signature import Credentials

From = str | datetime | Mapping[int, int]
"""`earliest`, `latest`, `committed`, a moment with a time zone, or an offset for each of some queues (the others: earliest)."""

ReadFrom = Literal["leader", "nearest"]
QueuesChanged = Callable[[tuple[int, ...]], Awaitable[None] | None]
READ_AHEAD_BYTES = 32 << 20
READ_AHEAD_LEAST = 1 << 20
RESPONSE_BYTES = 1 << 20


class ConsumerOptions(TypedDict, total=False):
    """What `AsyncConsumer` and `Consumer` can be told besides endpoints and topic."""

    group: str | None
    """A consumer group: its members share the queues, and what it commits is where its next member goes on."""
    namespace: str
    start: From
    """Where to begin; with a consumer group: in queues of which it committed nothing."""
    queues: Collection[int] | None
    """Without a consumer group: only these queues, as the topic numbers them over all broker groups."""
    tags: Collection[str] | None
    """Hand out only messages with one of these tags. The others are read and passed over."""
    until_end: bool
    """Stop behind what was there when reading began, instead of waiting for more."""
    read_from: ReadFrom
    """`leader` (the default), or `nearest`: the first of the endpoints that has a replica, where the broker group allows it, and the leader
    where none may serve; what comes is confirmed, in order and once in any case, and some seconds old at most (docs/observers.md)."""
    verify: bool
    """Check the CRC of every body (the default)."""
    read_ahead_bytes: int
    """At most so many bytes of entries are under way or wait, over all broker groups."""
    response_bytes: int
    """About how large a batch may be, in bytes of entries."""
    auto_commit: bool
    """Commit a batch by itself once the next one was asked for."""
    commit_interval_s: float
    on_assigned: QueuesChanged | None
    """Called with the numbers of queues that are now read; may seek. A function or a coroutine function."""
    on_revoked: QueuesChanged | None
    """Called with those that are about to be given to another member: the last moment to commit what was handed out of them."""
    on_progress: Callable[[ConsumerStatistics], None] | None
    """Called as batches are handed out, at most ten times a second."""
    delivery_log: DeliveryLog | str | Path | None
    """A Parquet file of what was handed out and committed, for `ledgermq audit --acks`."""
    timeout_s: float
    """How long a broker group may be without an answer before reading it fails (30 s)."""
    credentials: Credentials | None
    tls: bool
    ca: bytes | None
    certificate: tuple[bytes, bytes] | None


WIRE = ("timeout_s", "credentials", "tls", "ca", "certificate")
"""Options of the connection."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The options that are not the connection's."""

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
    auto_commit: bool = False
    commit_interval_s: float = 1.0
    on_assigned: QueuesChanged | None = None
    on_revoked: QueuesChanged | None = None
    on_progress: Callable[[ConsumerStatistics], None] | None = None
    delivery_log: DeliveryLog | str | Path | None = None

    def __post_init__(self) -> None:
        if self.group is None and (self.auto_commit or self.start == "committed"):
            raise BadArgument("without a consumer group nothing is committed", "name a group, or leave auto_commit and committed away")
        if self.group is not None and self.queues is not None:
            raise BadArgument("the members of a consumer group are given their queues", "leave group or queues away")
        if self.read_ahead_bytes < READ_AHEAD_LEAST:
            raise BadArgument(f"read_ahead_bytes is {self.read_ahead_bytes}", f"give at least {READ_AHEAD_LEAST}: one message may be large")
        if self.response_bytes <= 0 or self.commit_interval_s <= 0:
            raise BadArgument("response_bytes and commit_interval_s have to be positive", "leave them away, or give larger ones")
        if self.read_from not in get_args(ReadFrom):
            raise BadArgument(f"{self.read_from!r} is no place to read from", "give leader or nearest")
        start_of(self.start, 0)


def start_of(place: From, queue: int) -> Start:
    """Where a queue begins. Raises BadArgument."""
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise BadArgument("the time to begin at has no time zone", "give a datetime with tzinfo, such as datetime.now(UTC)")
        return Start(store_ms=ms_of(place))
    if isinstance(place, str):
        if place not in ("earliest", "latest", "committed"):
            raise BadArgument(f"{place!r} is no place to begin", "give earliest, latest, committed, a datetime, or {queue: offset}")
        return Start(earliest=place != "latest")
    offset = place.get(queue)
    return Start() if offset is None else at_offset(offset)


def at_offset(offset: int) -> Start:
    """Raises BadArgument."""
    if offset < 0:
        raise BadArgument(f"{offset} is no offset", "the first message of a queue has offset 0")
    return Start(offset=offset)
