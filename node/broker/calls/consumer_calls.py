"""Calls of consumers that lease messages: receive, acknowledge, change, forward; their signs of
life; and their lite subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Result, Sign
from ledgermq.node.broker.ports import Filter

WIRE_MAX = 4 << 20
"""The most bytes that gRPC libraries accept as one message by default. A body alone may be as long,
so a few messages are longer."""
_VIA = " via "


def session_of(client_id: str, node_boot: str) -> str:
    """The session of a client at one process of one node.

    Auto-renewed leases belong to a session, not to the client alone: when the process that handed a
    message out is gone, no process knows whether the message reached the client, so its lease must
    not be renewed any more.
    """
    return f"{client_id}{_VIA}{node_boot}"


def client_of(session: str) -> str:
    """The client id of a session; a plain client id is returned unchanged."""
    return session.rpartition(_VIA)[0] or session


@dataclass(frozen=True, slots=True)
class Receive(Call):
    """Lease up to `max_messages` of a topic's queues for this group; waits until `deadline_ns`.
    Answer: `Received`, which may be empty."""

    token: Token
    group: str
    topic: str
    client_id: str
    """A session (`session_of`)."""
    filter: Filter
    max_messages: int
    invisible_ms: int | None
    """None: the lease is auto-renewed while the client is alive."""
    deadline_ns: int
    patience_ns: int = 100_000_000
    """How long after its deadline the caller still waits for messages whose lease is in the log but
    not yet committed."""
    lite: bool = False
    """Lease messages of the client's lite topics of `topic` instead of the topic's own messages."""
    attempt_id: str = ""
    """A FIFO group answers a Receive with the same attempt id with the same messages again, as long
    as they are leased."""


class Lease(NamedTuple):
    """One leased message. `record` is the whole message record (format §4)."""

    queue: int
    queue_offset: int
    lease_number: int
    attempt: int
    record: bytes
    topic: str = ""
    """The message's topic if it is a lite topic of the requested one; else empty."""


@dataclass(frozen=True, slots=True)
class Received(Result):
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class CancelReceive(Sign):
    """The caller of a Receive or a Pull is gone. A lease that is already committed for it becomes
    visible again at once. This call has no answer; the cancelled call is answered with an empty
    result."""

    receive: Token


class Handle(NamedTuple):
    """A receipt handle whose MAC was verified (docs/architecture.md, Serving clients)."""

    group: str
    topic: str
    queue: int
    queue_offset: int
    lease_number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Ack(Call):
    """Acknowledge messages. Answer: `Acked` with one flag per handle, in order; False: the handle
    is unknown, expired or replaced (40013)."""

    token: Token
    handles: Sequence[Handle]


@dataclass(frozen=True, slots=True)
class Acked(Result):
    ok: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Change(Call):
    """Change the invisible duration of a leased message. Answer: `Changed`."""

    token: Token
    handle: Handle
    invisible_ms: int
    client_id: str


@dataclass(frozen=True, slots=True)
class Changed(Result):
    """`lease_number` of the new lease; None if the handle was not valid (40013)."""

    lease_number: int | None


@dataclass(frozen=True, slots=True)
class Forward(Call):
    """Move a leased message to the dead-letter topic of its group. Answer: `Forwarded`. May be
    repeated."""

    token: Token
    handle: Handle


@dataclass(frozen=True, slots=True)
class Forwarded(Result):
    """`ok`: the message is done for its group, by this call or an earlier one. False: another lease
    of it is in force (40013)."""

    ok: bool


@dataclass(frozen=True, slots=True)
class ClientsAlive(Sign):
    """Signs of life: the node heard from these sessions at `at_ns`. No answer."""

    client_ids: frozenset[str]
    at_ns: int


@dataclass(frozen=True, slots=True)
class ClientGone(Sign):
    """NotifyClientTermination: auto-renewed leases of all sessions of the client become visible one
    second later. No answer."""

    client_id: str
    at_ns: int


LiteAction = Literal["add", "remove", "set"]
LiteStart = Literal["last", "min", "max", "offset", "tail", "time"]


@dataclass(frozen=True, slots=True)
class SyncLite(Call):
    """Change a client's set of subscribed lite topics of `topic`; with `set` it becomes exactly
    `names`. `start` says where the group begins in lite topics that are new to the client; `last`:
    at its former position, or at the end of a lite topic that it does not know. A request older
    than the client's last one changes nothing. Answer: `LiteSynced` once it is applied; refused
    with `lite-subscriptions` above `limit`."""

    token: Token
    group: str
    topic: str
    client_id: str
    action: LiteAction
    names: tuple[str, ...]
    version: int = 0
    start: LiteStart = "last"
    start_at: int = 0
    """An offset, a number of messages or a time in milliseconds, depending on `start`."""
    limit: int = 2000


@dataclass(frozen=True, slots=True)
class LiteSynced(Result):
    """`count`: the number of lite topics in the client's set."""

    count: int
