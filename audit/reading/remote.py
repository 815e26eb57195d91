"""Files of running nodes, by path: `node://HOST:PORT/GROUP/…`, as `ledgermq.v1.Replicas` serves
them (proto/audit.proto).

The remote half of `files.py`, with the same meanings. Every process has its own connections, opened
when first needed. Credentials are set once per process (`use`); by default they come from the
environment, as for every other command. A node that cannot be reached, or refuses the caller,
raises `NodeLost`: that is no statement about the bytes, and must never become a finding. An error
of the node's disk is an OSError, as it would be on this machine. This module does not know what the
bytes mean.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ledgermq.audit.reading.node_paths import NodeLost, split
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import BadArgument
from ledgermq.proto import audit_pb2
from ledgermq.proto.signature import Credentials

SERVICE = "/ledgermq.v1.Replicas/"
OK, NOT_FOUND = 20000, 40400
REFUSALS = frozenset({40100, 40300})
"""Codes for a caller without permission."""
CALL_S = 30.0
STREAM_S = 60.0
"""A stream that takes longer is requested again from its current offset, so that a paused node is
noticed."""
TRIES = 3
"""How often a broken connection is retried before its node counts as lost."""
PAUSE_S = 0.3
STREAM_BYTES = 1 << 20
"""A caller that reads this much at once probably continues, so the rest of the file is requested
ahead."""
BEHIND_BYTES = 256 << 10
"""How much of the last bytes read is kept: a window begins with the last entry of the previous
one."""
AHEAD_BYTES = 8 << 20
"""For a place further ahead in the file a new request is made; nearer ones are reached by reading
on."""
BLOCK_BYTES = 64 << 10
"""The smallest request: derived files are read unit by unit."""
ENVIRONMENT = {
    "ca": "LEDGERMQ_TLS_CA",
    "certificate": "LEDGERMQ_TLS_CERTIFICATE",
    "certificate_key": "LEDGERMQ_TLS_CERTIFICATE_KEY",
}
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials for the nodes of a cluster. Can cross process boundaries; its text form hides
    the secret."""

    credentials: Credentials | None = None
    tls: bool = False
    ca: bytes | None = None
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Key and certificate."""

    def connect(self, endpoints: str, timeout_s: float = CALL_S) -> Connection:
        """A connection to these nodes. Raises BadArgument if a secret would be sent unencrypted."""
        wire: dict[str, Any] = {
            "credentials": self.credentials,
            "tls": self.tls,
            "ca": self.ca,
            "certificate": self.certificate,
        }
        connection = Connection(endpoints, timeout_s=timeout_s, **wire)
        if self.credentials is not None:
            connection.guard_secret()
        return connection


def access_of(environment: Mapping[str, str]) -> Access:
    """The credentials in the environment: LEDGERMQ_ACCESS_KEY and LEDGERMQ_SECRET_KEY;
    LEDGERMQ_TLS, and the names of `ENVIRONMENT` for PEM files. Raises OSError for a file that
    cannot be read."""
    access_key, secret_key = (
        environment.get(f"LEDGERMQ_{name}_KEY", "") for name in ("ACCESS", "SECRET")
    )
    options = {name: environment.get(variable, "") for name, variable in ENVIRONMENT.items()}
    pems = {name: Path(path).read_bytes() for name, path in options.items() if path}
    own = (
        (pems["certificate_key"], pems["certificate"])
        if {"certificate", "certificate_key"} <= pems.keys()
        else None
    )
    credentials = Credentials(access_key, secret_key) if access_key and secret_key else None
    return Access(
        credentials, environment.get("LEDGERMQ_TLS", "") not in ("", "0"), pems.get("ca"), own
    )


class _Process:
    """The state of this process: its credentials, and its connections by address."""

    def __init__(self) -> None:
        self.access: Access | None = None
        self.connections: dict[str, Connection] = {}
        self.owner = 0
        """The process that opened them: a child process must not use its parent's connections."""


_process = _Process()


def use(access: Access) -> None:
    """Use these credentials in this process from now on."""
    if access != _process.access:
        forget()
        _process.access = access


def access() -> Access:
    """The credentials of this process."""
    if _process.access is None:
        _process.access = access_of(os.environ)
    return _process.access


def forget() -> None:
    """Close every connection of this process."""
    if _process.owner == os.getpid():
        for connection in _process.connections.values():
            connection.close()
    _process.connections = {}


def connection_to(authority: str) -> Connection:
    """The connection to one node, HOST:PORT. Raises NodeLost."""
    if _process.owner != os.getpid():
        _process.connections, _process.owner = {}, os.getpid()
    if authority not in _process.connections:
        try:
            _process.connections[authority] = access().connect(authority)
        except (BadArgument, OSError) as error:
            raise NodeLost(authority, f"{authority}: {error}") from error
    return _process.connections[authority]


# --------------------------------------------------------------------------------------------------------------- calls


def call(
    authority: str, path: str, request: Message, response: type[M], timeout_s: float = CALL_S
) -> M:
    """One answer of one node, whatever its status. Raises NodeLost."""
    for left in reversed(range(TRIES)):
        connection = connection_to(authority)
        try:
            ask: Any = connection.channel().unary_unary(
                path, type(request).SerializeToString, response.FromString
            )
            answer: M = ask(request, metadata=connection.metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            if not left or not _worth_another(error):
                raise _lost(authority, error) from error
            time.sleep(PAUSE_S)
        else:
            return answer
    raise AssertionError("the last try returns or raises")


def _worth_another(error: grpc.RpcError) -> bool:
    return isinstance(error, grpc.Call) and error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
    )


def _lost(authority: str, error: grpc.RpcError) -> NodeLost:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        problem = f"the node at {authority} runs a build that cannot be audited while it runs"
        return NodeLost(authority, f"{problem}; upgrade it, or audit its directory")
    return NodeLost(
        authority,
        f"the node at {authority} does not answer ({'UNKNOWN' if code is None else code.name})",
    )


def require(authority: str, path: str, status: Any) -> None:
    """Convert an answer's status to the error that a local file would raise. Raises NodeLost,
    OSError."""
    if status.code == OK:
        return
    if status.code == NOT_FOUND:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if status.code in REFUSALS:
        raise NodeLost(
            authority,
            f"the node at {authority} refuses: {status.message}; an audit needs the permission"
            " admin:cluster:*",
        )
    raise OSError(errno.EIO, status.message, path)


def entries(path: str, *, itself: bool = False) -> list[Any]:
    """The `FileEntry`s of a directory, or the one of the path itself. Raises NodeLost, OSError."""
    authority, group, inner = split(path)
    request = audit_pb2.ListFilesRequest(broker_group=group, directory=inner, itself=itself)
    answer = call(authority, f"{SERVICE}List", request, audit_pb2.ListFilesResponse)
    if answer.status.code == NOT_FOUND:
        return []
    require(authority, path, answer.status)
    return list(answer.entries)


# --------------------------------------------------------------------------------------------------------------- bytes


class _Stream:
    """One `Read` in progress: bytes in order, zeros where the node sent none."""

    def __init__(
        self, path: str, offset: int, length: int | None, *, places_only: bool = False
    ) -> None:
        """Raises NodeLost, OSError."""
        self._authority, group, inner = split(path)
        self._path = path
        connection = connection_to(self._authority)
        ask: Any = connection.channel().unary_stream(
            f"{SERVICE}Read",
            audit_pb2.ReadFileRequest.SerializeToString,
            audit_pb2.ReadFileResponse.FromString,
        )
        request = audit_pb2.ReadFileRequest(
            broker_group=group, path=inner, offset=offset, length=length, places_only=places_only
        )
        self._call = ask(request, metadata=connection.metadata, timeout=STREAM_S)
        first = self._next()
        if first is None:
            raise NodeLost(
                self._authority,
                f"the node at {self._authority} ended its answer about {inner} before it began",
            )
        self.size = int(first.size)
        """The size of the file when it was opened."""

    def _next(self) -> Any:
        try:
            piece = next(self._call, None)
        except grpc.RpcError as error:
            raise _lost(self._authority, error) from error
        if piece is not None and piece.HasField("status"):
            require(self._authority, self._path, piece.status)
        return piece

    def pieces(self) -> Iterator[tuple[int, int, bytes]]:
        """(offset, length, data) of every further piece."""
        while (piece := self._next()) is not None:
            yield int(piece.offset), int(piece.length) or len(piece.data), piece.data

    def cancel(self) -> None:
        self._call.cancel()


class RemoteFile:
    """An open file of a running node, with the interface of `files.File`. The node opens it by name
    for every request, so if the file is replaced, only `read_at` returns a single version. Raises
    OSError, NodeLost."""

    def __init__(self, path: str) -> None:
        self._path = path
        opened = _Stream(path, 0, 0)
        opened.cancel()
        self.size = opened.size
        self._stream: _Stream | None = None
        self._pieces: Iterator[tuple[int, int, bytes]] = iter(())
        self._begin = 0
        self._held = bytearray()
        """Bytes from `_begin` on: those read last, and those received ahead."""
        self._end = 0
        """The end of the requested range."""

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer only at the end of the file."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        held_end = self._begin + len(self._held)
        if not self._begin <= offset <= held_end + AHEAD_BYTES or end > self._end:
            self._ask(offset, end)
        self._fill(end)
        end = min(end, self._end)
        data = bytes(memoryview(self._held)[offset - self._begin : end - self._begin])
        keep_from = max(end - BEHIND_BYTES, self._begin)
        if keep_from - self._begin > BEHIND_BYTES:
            del self._held[: keep_from - self._begin]
            self._begin = keep_from
        return data

    def _ask(self, offset: int, end: int) -> None:
        self._stop()
        self._end = (
            self.size
            if end - offset >= STREAM_BYTES
            else min(max(end, offset + BLOCK_BYTES), self.size)
        )
        self._begin, self._held = offset, bytearray()
        self._go_on()

    def _go_on(self) -> None:
        """Request the missing rest of the requested range. A file that has become shorter ends
        there."""
        at = self._begin + len(self._held)
        self._stream = _Stream(self._path, at, self._end - at)
        self._end = min(self._end, self._stream.size)
        self._pieces = self._stream.pieces()

    def _fill(self, end: int) -> None:
        """Receive everything before `end`; a broken stream is requested again from where it
        broke."""
        for left in reversed(range(TRIES)):
            try:
                self._receive(end)
                return
            except NodeLost:
                if not left:
                    raise
                time.sleep(PAUSE_S)
                self._stop()
                self._go_on()

    def _receive(self, end: int) -> None:
        while (at := self._begin + len(self._held)) < min(end, self._end):
            offset, _, data = next(self._pieces, (self._end, 0, b""))
            self._held += bytes(offset - at)
            self._held += data

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of start … end that are not holes of a sparse file."""
        for offset, length, _ in _Stream(
            self._path, start, max(end - start, 0), places_only=True
        ).pieces():
            yield offset, offset + length

    def _stop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._stream = None

    def close(self) -> None:
        self._stop()

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_at(path: str, offset: int, size: int | None) -> bytes:
    """Bytes of a file from a single opening; size None: to its end. Fewer only at its end. Raises
    OSError, NodeLost."""
    for left in reversed(range(TRIES)):
        try:
            stream = _Stream(path, offset, size)
            end = max(min(stream.size, stream.size if size is None else offset + size), offset)
            data = bytearray(end - offset)
            for at, length, piece in stream.pieces():
                data[at - offset : at - offset + length] = piece
        except NodeLost:
            if not left:
                raise
            time.sleep(PAUSE_S)
        else:
            return bytes(data)
    raise AssertionError("the last try returns or raises")
