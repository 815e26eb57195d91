"""The outside of the replica package: what it needs from the packages above it, and what it shows
them.

Above it stand the frontend and the process; the frontend imports nothing else of this package. The
node's parts satisfy these protocols; tests use small fakes. Beside the protocols, this module has
the values and exceptions that cross them, and the names of the calls among nodes that a part of
this package both makes and answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ledgermq.node.broker.group import Group
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.ports import Fenced, PeerPacket, Replicator, Unreadable
from ledgermq.node.broker.queries.leadership_history import LeadershipEvent
from ledgermq.proto import admin_pb2, audit_pb2, peer_pb2
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.keys.lookup import Lookup
from ledgermq.storage.log.log_reader import LogReader

STORAGE_METHOD = "ledgermq.v1.Admin/storage"
WHY_METHOD = "ledgermq.v1.Admin/WhyKept"


# -- what it needs


class PeerCaller(Protocol):
    """The forwarder: calls to other nodes, and to the leader of a broker group. Deadlines are in
    the loop's time."""

    def ask(
        self, node: str, method: str, request: bytes, deadline: float
    ) -> Awaitable[Sequence[bytes]]: ...
    def submit(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Awaitable[Sequence[bytes]]: ...


class NodeRoster(Protocol):
    """The nodes of the cluster (`node/controller/roster.py:Roster`)."""

    @property
    def nodes(self) -> Iterable[str]: ...
    def knows(self, node: str) -> bool: ...
    def removed(self, node: str) -> bool: ...


class PeerHandler(Protocol):
    """Handles what peers send to this node. Senders are authenticated node names."""

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None: ...
    async def execute(self, sender: str, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult: ...
    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply: ...
    def signs(self, client_ids: Sequence[str]) -> None: ...
    def gone(self, client_id: str) -> None: ...
    def link_changed(self, peer: str, up: bool) -> None: ...
    def wall_ns(self) -> int: ...
    def heard_clock(self, peer: str, wall_ns: int | None, asked_ns: int) -> None: ...


# -- what it shows: peers


class NotSent(Exception):
    """The call did not leave this node, so it was not executed."""


class Lost(Exception):
    """The stream ended after the call was sent and before its result arrived; the outcome is
    unknown."""


class PeerLink(Protocol):
    """The stream to one peer (`peers/links.py:Link`)."""

    @property
    def up(self) -> bool: ...

    @property
    def refusal(self) -> str | None:
        """Why there is no stream, if an operator must change that."""
        ...

    @property
    def removed(self) -> bool:
        """The peer said last that the cluster removed this node."""
        ...

    def post(self, message: peer_pb2.PeerMessage) -> None:
        """Queue a small message without an answer; it is dropped if the peer is not connected."""
        ...

    async def call(self, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        """Send a call and wait for the result. Raises NotSent or Lost."""
        ...

    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply:
        """The peer's status of itself. Raises NotSent or Lost."""
        ...


class Greetings(Protocol):
    """What peers said of themselves in their last greetings
    (`peers/peer_identities.py:PeerIdentities`)."""

    @property
    def presented(self) -> Mapping[str, Mapping[str, str]]:
        """Group → node → the incarnation of its directory."""
        ...

    @property
    def level_max(self) -> Mapping[str, int]:
        """Node → the highest feature level that it reads."""
        ...


class ClockOpinion(Protocol):
    """What this node knows of its wall clock (`consensus/cluster_clock.py:ClockStanding`)."""

    @property
    def state(self) -> str: ...

    @property
    def offset_ms(self) -> int:
        """The wall clock less cluster time."""
        ...


# -- what it shows: a replica of this node


class SealableFiles(Protocol):
    """The files of a log (`retention/retention_facts.py:FileBook`)."""

    def sealable(self) -> int:
        """The last entry that is worth a seal."""
        ...


class RunningReplica(Protocol):
    """A broker group that is open and runs here (`hosting/running.py:OpenReplica`), as it is shown
    between two of its turns. Only its turns change what it consists of."""

    @property
    def group(self) -> Group: ...
    @property
    def store(self) -> GroupStore: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def replicator(self) -> Replicator: ...
    @property
    def files(self) -> SealableFiles: ...

    @property
    def reader(self) -> LogReader:
        """For any thread; so are `key_index` and `lookup`."""
        ...

    @property
    def key_index(self) -> KeyIndex: ...
    @property
    def lookup(self) -> Lookup: ...

    def leaders(self) -> tuple[LeadershipEvent, ...]:
        """The last changes of leadership that this replica noticed."""
        ...

    def write_units(self, pos: int) -> bool:
        """Write some of the consume queue units in memory that belong to messages before `pos`;
        True if none is left. Raises OSError, StorageError."""
        ...

    def fail(self, failure: Fenced | Unreadable) -> None:
        """Report a failure from another thread; the next turn raises it."""
        ...


@dataclass(frozen=True, slots=True)
class RangePut:
    """The result of the repair of a range. `refused`: why the range cannot be restored alone; then
    only what `repaired` lists was changed."""

    repaired: tuple[str, ...] = ()
    written_bytes: int = 0
    source: str = ""
    refused: str | None = None


# -- what it shows: maintenance


class Retention(Protocol):
    """What keeps the log files of this node, and how full its disk is
    (`maintenance/retention_loop.py:Retainer`)."""

    @property
    def disk(self) -> str:
        """The state of this node's disk: fine, warn, delete or full."""
        ...

    @property
    def disk_bytes(self) -> Mapping[str, Mapping[str, int]]:
        """Broker group → bytes on this disk by kind."""
        ...

    @property
    def files_kept(self) -> Mapping[str, Mapping[str, int]]:
        """Broker group led here → number of due files by what keeps them."""
        ...

    async def sealed_files(
        self, group: str, bases: Sequence[int] | None
    ) -> list[audit_pb2.SealedFile]:
        """Files that take no more entries, with these bases (None: all), and their digests as far
        as known. Raises LedgerError if the group does not run."""
        ...

    async def take_pin(self, request: admin_pb2.TakePinRequest) -> admin_pb2.TakePinResponse:
        """Pin the files of this replica. Raises LedgerError, as the next two do."""
        ...

    async def renew_pin(self, request: admin_pb2.RenewPinRequest) -> admin_pb2.RenewPinResponse: ...
    async def drop_pin(self, request: admin_pb2.DropPinRequest) -> admin_pb2.DropPinResponse: ...

    async def ask_leader(self, request: admin_pb2.WhyKeptRequest) -> admin_pb2.WhyKeptResponse:
        """Why a file is kept, from any node. Raises LedgerError."""
        ...

    async def why_kept(self, request: admin_pb2.WhyKeptRequest) -> admin_pb2.WhyKeptResponse:
        """The answer to WHY_METHOD, on the node that leads the group. Raises LedgerError."""
        ...

    async def answer(self, request: bytes) -> bytes:
        """The answer to STORAGE_METHOD. Raises CallRefused while the group does not run here."""
        ...


class Digests(Protocol):
    """Agreement of the replicas about sealed files
    (`maintenance/digest_exchange.py:DigestExchange`)."""

    def differing(self, group: str) -> list[int]:
        """Positions of this node's sealed files whose digest differs from the recorded one."""
        ...

    def disputed(self, group: str) -> list[int]:
        """Positions of sealed files for which no digest has a majority; known to the leader."""
        ...

    def unverified_ms(self, group: str) -> int | None:
        """The time since the least recently verified byte was verified; None if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class TieredState:
    """What operators see of one replica: how many sealed files here this node has not verified in
    the store, and why the first waits; what readers find there through this node, and why that is
    not everything."""

    verified_pos: int
    waiting_files: int
    waiting_bytes: int
    waits_for: str | None
    stored_files: int
    stored_bytes: int
    stored_from_index: int | None
    unreadable: str | None
    not_removed: str | None
    """What total retention waits for."""


class StoredFiles(Protocol):
    """The sealed files in the object store (`maintenance/tiering.py:Tiering`)."""

    def state(self, group: str) -> TieredState | None:
        """None while the group does not run here."""
        ...
