"""Calls of consumers that lease messages: receive, acknowledge, change, forward; signs of life; the lite topics they read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.ports import Filter

WIRE_MAX = 4 << 20
"""Bytes that gRPC libraries take as one message unless they are told otherwise. Bodies may be as long, so a few messages are longer."""
_VIA = " via "


def session_of(client_id: str, node_boot: str) -> str:
    """A client as one process of one node knows it.

    Leases that renew themselves belong to a session, not to the client alone: when the process that handed a message out is gone, nobody
    can say whether the message reached the client, so nobody renews its lease any more.
    """
    return f"{client_id}{_VIA}{node_boot}"


def client_of(session: str) -> str:
    """The client id of a session; a plain client id is its own session."""
    return session.rpartition(_VIA)[0] or session


@dataclass(frozen=True, slots=True)
class Receive:
    """Lease up to `max_messages` of a topic's queues in this group; waits until `deadline_ns`. Answer: `Received` (maybe empty)."""

    token: Token
    group: str
    topic: str
    client_id: str
    """A session."""
    filter: Filter
    max_messages: int
    invisible_ms: int | None
    """None: auto-renewed while the client is alive."""
    deadline_ns: int
    patience_ns: int = 100_000_000
    """How much longer than its deadline the caller waits for messages whose lease is in the log already and not committed yet."""
    lite: bool = False
    """Messages of the lite topics of `topic` that the client reads from, instead of the topic's own."""
    attempt_id: str = ""
    """A FIFO group gives a Receive that comes again with the same one the same messages again, as long as they are leased."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One message handed out. `record` is the whole message record (format §4)."""

    queue: int
    queue_offset: int
    lease_number: int
    attempt: int
    record: bytes
    topic: str = ""
    """Where it lies if that is not the topic that was asked for: a lite topic of it."""


@dataclass(frozen=True, slots=True)
class Received:
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class CancelReceive:
    """The caller of a Receive or a Pull is gone. A lease already committed for it is made visible again at once. No answer to this; the
    call itself is answered with an empty result."""

    receive: Token


@dataclass(frozen=True, slots=True)
class Handle:
    """A receipt handle after its MAC was checked (docs/architecture.md, Serving clients)."""

    group: str
    topic: str
    queue: int
    queue_offset: int
    lease_number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer: `Acked` with one flag per handle, in order: False = the handle is unknown, expired or replaced (40013)."""

    token: Token
    handles: Sequence[Handle]


@dataclass(frozen=True, slots=True)
class Acked:
    ok: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Change the invisible duration. Answer: `Changed`."""

    token: Token
    handle: Handle
    invisible_ms: int
    client_id: str


@dataclass(frozen=True, slots=True)
class Changed:
    """`lease_number` of the new lease; None when the handle was not valid (40013)."""

    lease_number: int | None


@dataclass(frozen=True, slots=True)
class Forward:
    """Move a leased message to the dead-letter topic of its group. Answer: `Forwarded`. May be repeated."""

    token: Token
    handle: Handle


@dataclass(frozen=True, slots=True)
class Forwarded:
    """`ok`: the message is done for its group, by this call or before. False: another lease of it is in force (40013)."""

    ok: bool


@dataclass(frozen=True, slots=True)
class ClientsAlive:
    """Signs of life: these sessions were heard of at `at_ns`. No answer."""

    client_ids: frozenset[str]
    at_ns: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """NotifyClientTermination: auto-renewed leases of all sessions of the client become visible one second later. No answer."""

    client_id: str
    at_ns: int

LiteAction = Literal["add", "remove", "set"]
LiteStart = Literal["last", "min", "max", "offset", "tail", "time"]


@dataclass(frozen=True, slots=True)
class SyncLite:
    """Change the set of lite topics of `topic` that a client reads from; `set`: it becomes exactly `names`. `start` says where the group
    begins in those that are new to the client; `last`: where it was, and at the end of one that it does not know. A request older than the
    last one of this client changes nothing. Answer: `LiteSynced` once it is applied; refused with `lite-subscriptions` above `limit`."""

    token: Token
    group: str
    topic: str
    client_id: str
    action: LiteAction
    names: tuple[str, ...]
    version: int = 0
    start: LiteStart = "last"
    start_at: int = 0
    """Offset, number of messages or time in milliseconds, as `start` says."""
    limit: int = 2000


@dataclass(frozen=True, slots=True)
class LiteSynced:
    """`count`: lite topics in the client's set."""

    count: int
