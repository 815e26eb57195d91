"""`ledgermq.v1.Replicas` on the client port: answers the requests of an audit of the running
cluster.

A marker goes through the log of the group's leader; facts are read between two turns;
`replica_files.py` reads bytes on separate threads, at the rate of `Budget`. Every method requires
an administrator. Only `Mark` is forwarded, because the caller of any other method wants this node's
disk. This module does not interpret the bytes.

A marker is a control record that older builds stop at. A leader therefore appends one only if every
member that answers knows markers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from ledgermq.node.broker.calls.operator_calls import Mark, Marked
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.audits.replica_files import NODE_FILE, Entry, ReplicaFile, ReplicaFiles
from ledgermq.node.frontend.native.callers import ADMINISTRATOR, Callers
from ledgermq.node.frontend.ports import (
    CallGone,
    Engine,
    Method,
    ServerCall,
    ServerStreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.leader_calls import ask_leader
from ledgermq.node.replica.ports import Retention, RunningReplica
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.answer_budget import ANSWERS, COPIES
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, audit_pb2
from ledgermq.proto.records.control import AuditRecord
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.proto.token_bucket import TokenBucket
from ledgermq.storage.files.errors import StorageError

SERVICE = "ledgermq.v1.Replicas"
PREFIX = f"{SERVICE}/"
"""Prefix of the name of every forwarded call that `Replicas.execute` answers."""
MARK_METHOD = f"{PREFIX}Mark"
KNOWN_METHOD = f"{PREFIX}Known"
"""Sent to every member before a marker is appended: a build that knows the method knows the
record."""
WITHIN_MS, WITHIN_MS_MAX = 5_000, 60_000
KNOWN_WITHIN_S = 1.0
LOOK_AGAIN_S = 0.01
ID_MAX = 64
PIECE_BYTES = 1 << 20
READERS = 2
"""Threads that read for audits, so that a slow disk delays no other work of the node."""
BASES_MAX = 1024
LATE_S = 0.001
"""If the event loop takes a result later than this, it is busy with other work."""
REST_FACTOR = 20
"""Reading pauses for this many times the delay of the loop."""
REST_MAX_S = 0.1
"""So an overloaded node still gives some 10 MiB a second: an audit of it ends."""
_MS = 1000
_ZEROS = bytes(PIECE_BYTES)

log = get_logger()
T = TypeVar("T")
Q = TypeVar("Q", bound=Message)


class Budget:
    """Limits how fast all audits together read from this node's disk, and slows them down while the
    event loop is busy. A reader asks before every piece how long to wait, and must then wait that
    long. The clock is passed in."""

    def __init__(self, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        # No burst: unused time is not made up for.
        self._bucket = TokenBucket(bytes_per_s, 0)
        self._now_s = now_s

    def wait_s(self, size: int, late_s: float) -> float:
        """Seconds to wait before reading the next piece, of `size` bytes. `late_s`: how late the
        loop took the previous result."""
        now_s = self._now_s()
        rest_s = min(REST_FACTOR * late_s, REST_MAX_S) if late_s > LATE_S else 0.0
        wait_s = self._bucket.wait(now_s) + rest_s
        self._bucket.take(size + rest_s * self._bucket.rate, now_s)
        return wait_s


class Replicas:
    """The service of one node. Its methods run on the loop's thread."""

    def __init__(
        self,
        config: NodeConfig,
        boot_id: str,
        boots: Callable[[str], int],
        engine: Engine,
        forwarder: Forwarder,
        storage: Retention,
        callers: Callers,
    ) -> None:
        self._node = config.node
        self._cluster_id = config.cluster_id
        self._boot_id = boot_id
        self._boots = boots
        self._engine = engine
        self._forwarder = forwarder
        self._storage = storage
        self._callers = callers
        self._files = ReplicaFiles(str(config.data.absolute()))
        self._budget = Budget(config.audit.bytes_per_s, time.monotonic)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="audit-read")

    def methods(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "Mark": self._unary(audit_pb2.MarkRequest, audit_pb2.MarkResponse, self.mark),
            "Describe": self._unary(
                audit_pb2.DescribeReplicaRequest, audit_pb2.DescribeReplicaResponse, self.describe
            ),
            "List": self._unary(audit_pb2.ListFilesRequest, audit_pb2.ListFilesResponse, self.list),
            "Digests": self._unary(
                audit_pb2.FileDigestsRequest, audit_pb2.FileDigestsResponse, self.digests
            ),
            "Read": ServerStreamMethod(self._serve_read),
        }

    def stop(self) -> None:
        """Stop the reader threads, after the last call has ended."""
        self._readers.shutdown()

    # -- the marker

    async def mark(self, request: audit_pb2.MarkRequest) -> audit_pb2.MarkResponse:
        """Append a marker, from any node: forwards the request to the leader and returns its
        answer. Raises LedgerError."""
        if not 0 < len(request.id) <= ID_MAX or not request.id.isprintable():
            raise fail(
                Code.BAD_REQUEST, f"the id of a marker must have 1 to {ID_MAX} printable characters"
            )
        return await ask_leader(
            self._forwarder,
            group=request.broker_group,
            method=MARK_METHOD,
            request=request,
            response=audit_pb2.MarkResponse,
            within_s=_within_s(request.within_ms),
            repeatable=True,
        )

    async def execute(self, group: str, method: str, request: bytes) -> list[bytes]:
        """Answer a call of this service that was forwarded to this node. Raises CallRefused."""
        if method == KNOWN_METHOD:
            return [b""]
        if method == MARK_METHOD:
            return [
                (
                    await self._mark_here(group, audit_pb2.MarkRequest.FromString(request))
                ).SerializeToString()
            ]
        raise CallRefused(
            Refused("internal", detail=f"node {self._node} does not know the call {method}")
        )

    async def _mark_here(
        self, group: str, request: audit_pb2.MarkRequest
    ) -> audit_pb2.MarkResponse:
        """Append a marker on this node, the leader. The status carries a refusal that no other node
        would change."""
        try:
            await self._require_known(group)
            outcome = await self._engine.call(
                group, Mark(self._engine.new_token(), AuditRecord(request.id))
            )
            if isinstance(outcome, Refused):
                raise CallRefused(outcome)
            assert isinstance(outcome, Marked), outcome
            point = await self._engine.run(group, lambda hosted: _point(hosted, outcome.index))
        except LedgerError as error:
            return audit_pb2.MarkResponse(
                status=admin_pb2.Status(code=int(error.code), message=error.message)
            )
        return audit_pb2.MarkResponse(status=admin_pb2.Status(code=int(Code.OK)), point=point)

    async def _require_known(self, group: str) -> None:
        """Check that every member that answers knows markers. Raises LedgerError."""
        members = await self._engine.run(group, lambda hosted: hosted.machine.members)
        others = [node for node in (() if members is None else members.nodes) if node != self._node]
        known = await asyncio.gather(*(self._knows(node) for node in others))
        for node, knows in zip(others, known, strict=True):
            if not knows:
                what = (
                    f"node {node} runs a build that does not know audit markers and would stop at"
                    " one; upgrade it first"
                )
                raise fail(Code.PRECONDITION_FAILED, what)

    async def _knows(self, node: str) -> bool:
        deadline = asyncio.get_running_loop().time() + KNOWN_WITHIN_S
        try:
            await self._forwarder.ask(node, KNOWN_METHOD, b"", deadline)
        except CallRefused as refusal:
            # A node that does not run cannot be asked, and an audit must be possible while one node
            # is down.
            return refusal.refused.reason == "unknown-outcome"
        return True

    # -- facts

    async def describe(
        self, request: audit_pb2.DescribeReplicaRequest
    ) -> audit_pb2.DescribeReplicaResponse:
        """The state of this node's replica at a marker. Raises LedgerError."""
        group = self._hosted_group(request.broker_group)
        status = await self._engine.status(group)
        answer = audit_pb2.DescribeReplicaResponse(
            node=self._node,
            cluster_id=self._cluster_id,
            broker_group=group,
            life=self._life(group),
            state=status.state,
        )
        if status.state != "running":
            answer.reason = "" if status.rebuild is None else status.rebuild.reason
            return answer
        index = request.index if request.HasField("index") else None
        end = await self._settled(group, index, _within_s(request.within_ms))
        answer.MergeFrom(await self._engine.run(group, lambda hosted: _facts(hosted, end)))
        answer.sealed.extend(
            file
            for file in await self._storage.sealed_files(group, None)
            if file.last_index <= end.index
        )
        if answer.life != self._life(group):
            raise fail(
                Code.HA_NOT_AVAILABLE,
                f"the replica of {group} on node {self._node} was opened again meanwhile; ask"
                " again",
            )
        return answer

    async def _settled(
        self, group: str, index: int | None, within_s: float
    ) -> audit_pb2.EntryPoint:
        """Wait until the log is applied up to an entry and all derived files are written up to it.
        Raises LedgerError."""
        limit = asyncio.get_running_loop().time() + within_s
        wanted: int = (
            await self._engine.run(group, lambda hosted: hosted.machine.applied_index)
            if index is None
            else index
        )
        while (
            applied := await self._engine.run(group, lambda hosted: hosted.machine.applied_index)
        ) < wanted:
            if asyncio.get_running_loop().time() >= limit:
                what = (
                    f"node {self._node} has applied {group} only up to entry {applied}, but entry"
                    f" {wanted} is needed"
                )
                raise fail(Code.PROXY_TIMEOUT, f"{what}; it lags behind or has no leader")
            await asyncio.sleep(LOOK_AGAIN_S)
        point = await self._engine.run(group, lambda hosted: _point(hosted, wanted))
        try:
            while not await self._engine.run(
                group, lambda hosted: hosted.write_units(point.end_pos)
            ):
                continue
        except (OSError, StorageError) as error:
            raise fail(
                Code.INTERNAL_SERVER_ERROR,
                f"node {self._node} cannot write consume queues ({error}); free disk space",
            ) from error
        return point

    def _life(self, group: str) -> str:
        return f"{self._boot_id[:12]}-{self._boots(group)}"

    async def digests(self, request: audit_pb2.FileDigestsRequest) -> audit_pb2.FileDigestsResponse:
        """Digests of sealed files, for the files whose digest is known."""
        if len(request.bases) > BASES_MAX:
            raise fail(
                Code.BAD_REQUEST, f"digests of at most {BASES_MAX:,} files can be asked for at once"
            )
        files = await self._storage.sealed_files(
            self._hosted_group(request.broker_group), list(request.bases)
        )
        return audit_pb2.FileDigestsResponse(
            files=[file for file in files if file.HasField("sha256")]
        )

    # -- files

    async def list(self, request: audit_pb2.ListFilesRequest) -> audit_pb2.ListFilesResponse:
        """Names of files and directories; read on a thread, because there may be many."""
        if not (request.broker_group or request.directory):
            own = audit_pb2.FileEntry(path=NODE_FILE)
            return audit_pb2.ListFilesResponse(
                entries=[
                    *(
                        audit_pb2.FileEntry(path=group, directory=True)
                        for group in sorted(self._engine.groups)
                    ),
                    own,
                ]
            )
        group = self._group_of(request.broker_group, request.directory)
        path = request.directory or group

        def look() -> Sequence[Entry]:
            if request.itself:
                found = self._files.entry(group, path)
                return [] if found is None else [found]
            return self._files.entries(group, path, recursive=request.recursive)

        entries = await self._on_reader(look)
        return audit_pb2.ListFilesResponse(
            entries=[
                audit_pb2.FileEntry(
                    path=e.path,
                    directory=e.directory,
                    size=e.size,
                    mtime_ns=e.mtime_ns,
                    inode=e.inode,
                )
                for e in entries
            ]
        )

    async def read(
        self, request: audit_pb2.ReadFileRequest
    ) -> AsyncGenerator[audit_pb2.ReadFileResponse, None]:
        """The pieces of a file. Raises LedgerError."""
        group = self._group_of(request.broker_group, request.path)
        file = await self._opened(group, request.path)
        if file is None:
            raise fail(Code.NOT_FOUND, f"there is no file {request.path} on node {self._node}")
        try:
            start = max(request.offset, 0)
            end = (
                min(start + max(request.length, 0), file.size)
                if request.HasField("length")
                else file.size
            )
            yield audit_pb2.ReadFileResponse(
                status=admin_pb2.Status(code=int(Code.OK)), size=file.size
            )
            stretches = await self._on_reader(lambda: list(file.stretches(start, end)))
            if request.places_only:
                for begin, stop in stretches:
                    yield audit_pb2.ReadFileResponse(offset=begin, length=stop - begin)
                return
            async with contextlib.aclosing(self._pieces(group, file, stretches)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            # Closed on the reader's thread, so after any read that is still running there.
            self._readers.submit(file.close)

    async def _opened(self, group: str, path: str) -> ReplicaFile | None:
        """Open a file; None if it does not exist. Raises LedgerError."""
        opening = asyncio.ensure_future(self._on_reader(lambda: self._files.open(group, path)))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The caller has gone, but the thread still opens the file: close it then.
            opening.add_done_callback(_close_opened)
            raise

    async def _pieces(
        self, group: str, file: ReplicaFile, stretches: Sequence[tuple[int, int]]
    ) -> AsyncGenerator[audit_pb2.ReadFileResponse, None]:
        counter, late_s = metrics.AUDIT_READ_BYTES.labels(group), 0.0
        for begin, stop in stretches:
            for offset in range(begin, stop, PIECE_BYTES):
                length = min(PIECE_BYTES, stop - offset)
                wait_s = self._budget.wait_s(length, late_s)
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                # Held until the auditor has taken the piece.
                with await ANSWERS.reserve(COPIES * length):
                    data, done_s = await self._on_reader(partial(_pread, file, offset, length))
                    late_s = time.monotonic() - done_s
                    counter.inc(len(data))
                    if data != _ZEROS[: len(data)]:
                        yield audit_pb2.ReadFileResponse(offset=offset, data=data)

    async def _on_reader(self, work: Callable[[], T]) -> T:
        """Run `work` on a reader thread. Raises LedgerError, for disk errors too."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            raise fail(
                Code.INTERNAL_SERVER_ERROR,
                f"node {self._node} cannot read{where}: {error.strerror or error}",
            ) from error

    # -- the port

    def _hosted_group(self, group: str) -> str:
        if group not in self._engine.groups:
            raise fail(
                Code.NOT_FOUND,
                f"node {self._node} has no replica of broker group {group!r}; ask a node that"
                " has one",
            )
        return group

    def _group_of(self, group: str, path: str) -> str:
        """The group that a path must belong to; empty for the node's own identity file."""
        return "" if path == NODE_FILE else self._hosted_group(group)

    async def _allow(self, context: ServerCall) -> None:
        self._callers.allow(await self._callers.of(context), ADMINISTRATOR)

    def _unary(
        self, request: type[Q], response: Any, work: Callable[[Q], Awaitable[Any]]
    ) -> UnaryMethod:
        async def serve(data: bytes, context: ServerCall) -> bytes:
            try:
                await self._allow(context)
                answer = await work(request.FromString(data))
                answer.status.code = int(Code.OK)
            except Exception as error:  # the caller gets a status, never an exception
                answer = response(status=_status(error, response))
            found: bytes = answer.SerializeToString()
            return found

        return UnaryMethod(serve)

    async def _serve_read(self, data: bytes, context: ServerCall) -> None:
        try:
            await self._allow(context)
            async with contextlib.aclosing(
                self.read(audit_pb2.ReadFileRequest.FromString(data))
            ) as pieces:
                async for piece in pieces:
                    await context.write(piece.SerializeToString())
        except CallGone:
            raise
        # as above; this may follow other messages, and the caller checks every status
        except Exception as error:
            last = audit_pb2.ReadFileResponse(status=_status(error, audit_pb2.ReadFileResponse))
            await context.write(last.SerializeToString())


def _pread(file: ReplicaFile, offset: int, length: int) -> tuple[bytes, float]:
    """A piece of a file, and when it was read."""
    return file.pread(offset, length), time.monotonic()


def _close_opened(opening: asyncio.Future[ReplicaFile | None]) -> None:
    if (
        not opening.cancelled()
        and opening.exception() is None
        and (file := opening.result()) is not None
    ):
        file.close()


def _status(error: Exception, response: Any) -> admin_pb2.Status:
    if isinstance(error, LedgerError):
        return admin_pb2.Status(code=int(error.code), message=error.message)
    if isinstance(error, DecodeError):
        return admin_pb2.Status(code=int(Code.BAD_REQUEST), message="the request cannot be read")
    log.error("replica call failed", response=response.__name__, exc_info=error)
    text = f"internal error, {type(error).__name__}; the node's log says more"
    return admin_pb2.Status(code=int(Code.INTERNAL_SERVER_ERROR), message=text)


def _within_s(within_ms: int) -> float:
    return min(within_ms, WITHIN_MS_MAX) / _MS if within_ms > 0 else WITHIN_MS / _MS


def _point(hosted: RunningReplica, index: int) -> audit_pb2.EntryPoint:
    """The end of an applied entry. Raises LedgerError if it was trimmed."""
    entries = hosted.store.log
    if index == entries.begin_index - 1:
        return _begin(hosted)
    if index < entries.begin_index:
        raise fail(
            Code.NOT_FOUND,
            f"the log begins with entry {entries.begin_index} here, but entry {index} is needed",
        )
    found = entries.read(index, 1)
    return audit_pb2.EntryPoint(
        index=index, end_pos=found.pos + len(found.data), term=found.term, chain=found.last_chain
    )


def _begin(hosted: RunningReplica) -> audit_pb2.EntryPoint:
    """The point before the first retained entry."""
    entries = hosted.store.log
    before = entries.begin_index - 1
    return audit_pb2.EntryPoint(
        index=before,
        end_pos=entries.begin_pos,
        term=entries.term_at(before),
        chain=entries.chain_at(before),
    )


def _facts(hosted: RunningReplica, end: audit_pb2.EntryPoint) -> audit_pb2.DescribeReplicaResponse:
    identity, machine = hosted.store.identity, hosted.machine
    members = machine.members
    return audit_pb2.DescribeReplicaResponse(
        log_id=identity.log_id,
        incarnation=identity.incarnation,
        format_version=identity.format_version,
        data_file_bytes=identity.data_file_bytes,
        index_file_bytes=identity.index_file_bytes,
        consume_queue_file_bytes=identity.consume_queue_file_bytes,
        begin=_begin(hosted),
        end=end,
        commit_index=hosted.replicator.commit_index,
        applied_index=machine.applied_index,
        voters=() if members is None else members.voters,
        learners=() if members is None else sorted(members.learners),
    )
