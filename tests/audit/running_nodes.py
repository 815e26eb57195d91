"""Fake nodes that only answer audits: written directories behind real gRPC; tests control their
state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from ledgermq.audit.reading import remote
from ledgermq.audit.reading.remote import Access
from ledgermq.audit.run.jobs import Audit, ClientCheck, audit_running, local_engine
from ledgermq.audit.run.running import RunningCluster
from ledgermq.node.frontend.audits.replica_files import ReplicaFiles
from ledgermq.proto import admin_pb2, audit_pb2
from ledgermq.proto.status import LedgerError
from tests.audit.log_writer import CLUSTER, Writer

OK = admin_pb2.Status(code=20000)


@contextmanager
def signed_in(value: Access) -> Iterator[None]:
    """Use these credentials within the block."""
    former = remote._process.access
    remote.use(value)
    try:
        yield
    finally:
        remote.forget()
        remote._process.access = former


@dataclass
class FakeNode:
    """A node and its replica."""

    name: str
    directory: Path
    writer: Any
    """The writer of the replica; its `entries` have the positions of all entries."""
    applied: int
    """The last applied entry."""
    life: str = "a-1"
    state: str = "running"
    address: str = ""
    up: bool = True
    begin: int = 0
    """The first entry on its disk."""
    pins: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    forgets_pins: bool = False
    before_read: Callable[[str], None] = lambda path: None
    """Called with the path of each file before it is read."""
    cluster: FakeCluster = field(init=False)

    def start(self) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(4))
        for service in (
            admin_pb2.DESCRIPTOR.services_by_name["Admin"],
            audit_pb2.DESCRIPTOR.services_by_name["Replicas"],
        ):
            handlers = {
                method.name: self._handler(method)
                for method in service.methods
                if hasattr(self, f"do_{method.name}")
            }
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service.full_name, handlers),)
            )
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        return server

    def _handler(self, method: Any) -> Any:
        request = getattr(audit_pb2, method.input_type.name, None) or getattr(
            admin_pb2, method.input_type.name
        )
        work = getattr(self, f"do_{method.name}")

        def unary(message: Any, context: Any) -> Any:
            if not self.up:
                context.abort(grpc.StatusCode.UNAVAILABLE, "down")
            return work(message)

        def stream(message: Any, context: Any) -> Iterator[Any]:
            if not self.up:
                context.abort(grpc.StatusCode.UNAVAILABLE, "down")
            yield from work(message)

        def encoded(answer: Any) -> bytes:
            data: bytes = answer.SerializeToString()
            return data

        if method.name == "Read":
            return grpc.unary_stream_rpc_method_handler(stream, request.FromString, encoded)
        return grpc.unary_unary_rpc_method_handler(unary, request.FromString, encoded)

    # -- answers

    def do_ClusterStatus(self, _: Any) -> Any:
        answer = admin_pb2.ClusterStatusResponse(status=OK, cluster_id=self.cluster.cluster_id)
        for node in self.cluster.nodes.values():
            answer.nodes.add(node=node.name, endpoint=node.address, up=node.up)
        info = answer.groups.add(group=self.cluster.group, voters=list(self.cluster.nodes))
        for name in self.cluster.nodes:
            info.replicas.add(node=name)
        return answer

    def do_TakePin(self, _: Any) -> Any:
        self.taken += 1
        self.pins[f"pin-{self.taken}"] = 0
        return admin_pb2.TakePinResponse(status=OK, pin=f"pin-{self.taken}")

    def do_RenewPin(self, request: Any) -> Any:
        if self.forgets_pins:
            self.pins.clear()
        held = request.pin in self.pins
        if held:
            self.pins[request.pin] += 1
        return admin_pb2.RenewPinResponse(status=OK, held=held)

    def do_DropPin(self, request: Any) -> Any:
        return admin_pb2.DropPinResponse(
            status=OK, held=self.pins.pop(request.pin, None) is not None
        )

    def _point(self, index: int) -> Any:
        entry = self.writer.entries[index]
        return audit_pb2.EntryPoint(
            index=index, end_pos=entry.pos + entry.size, term=entry.term, chain=entry.chain
        )

    def do_Mark(self, request: Any) -> Any:
        assert request.id.startswith("audit-")
        self.cluster.when_marked()
        return audit_pb2.MarkResponse(status=OK, point=self._point(self.cluster.marker))

    def do_Describe(self, request: Any) -> Any:
        answer = audit_pb2.DescribeReplicaResponse(
            status=OK, node=self.name, life=self.life, state=self.state
        )
        if self.state != "running":
            answer.reason = "entry 5 is damaged"
            return answer
        index = request.index if request.HasField("index") else self.applied
        if index > self.applied:
            return audit_pb2.DescribeReplicaResponse(
                status=admin_pb2.Status(code=50400, message="it lags")
            )
        answer.log_id = self.writer.log_id
        answer.begin.index, answer.begin.end_pos = -1, 0
        if self.begin:
            # The begin is behind the last trimmed entry, with the file that follows.
            answer.begin.index, answer.begin.end_pos = (
                self.begin - 1,
                self.writer.entries[self.begin].pos,
            )
        answer.end.CopyFrom(self._point(index))
        return answer

    def do_List(self, request: Any) -> Any:
        files = ReplicaFiles(str(self.directory))
        try:
            if not request.broker_group and not request.directory:
                return audit_pb2.ListFilesResponse(
                    status=OK,
                    entries=[audit_pb2.FileEntry(path=self.cluster.group, directory=True)],
                )
            path = request.directory or request.broker_group
            found = files.entry(request.broker_group, path)
            entries = (
                ([] if found is None else [found])
                if request.itself
                else files.entries(request.broker_group, path, recursive=False)
            )
        except LedgerError as error:
            return audit_pb2.ListFilesResponse(
                status=admin_pb2.Status(code=int(error.code), message=error.message)
            )
        told = [
            audit_pb2.FileEntry(
                path=e.path, directory=e.directory, size=e.size, mtime_ns=e.mtime_ns, inode=e.inode
            )
            for e in entries
        ]
        return audit_pb2.ListFilesResponse(status=OK, entries=told)

    def do_Read(self, request: Any) -> Iterator[Any]:
        self.before_read(request.path)
        file = ReplicaFiles(str(self.directory)).open(request.broker_group, request.path)
        if file is None:
            yield audit_pb2.ReadFileResponse(status=admin_pb2.Status(code=40400))
            return
        try:
            end = (
                min(request.offset + request.length, file.size)
                if request.HasField("length")
                else file.size
            )
            yield audit_pb2.ReadFileResponse(status=OK, size=file.size)
            for begin, stop in file.stretches(request.offset, end):
                data = b"" if request.places_only else file.pread(begin, stop - begin)
                yield audit_pb2.ReadFileResponse(
                    offset=begin, length=stop - begin if request.places_only else 0, data=data
                )
        finally:
            file.close()


@dataclass
class FakeCluster:
    """Three nodes with one log, and the entry of the marker."""

    nodes: dict[str, FakeNode]
    marker: int
    now_s: float = 0.0
    group: str = "g1"
    cluster_id: str = CLUSTER
    when_marked: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, writers: list[Writer], marker: int) -> FakeCluster:
        nodes = {
            writer.node: FakeNode(writer.node, writer.node_dir, writer, len(writer.entries) - 1)
            for writer in writers
        }
        return cls(nodes, marker)

    @contextmanager
    def serving(self) -> Iterator[None]:
        servers = []
        for node in self.nodes.values():
            node.cluster = self
            servers.append(node.start())
        try:
            with signed_in(Access()):
                yield
        finally:
            for server in servers:
                server.stop(0)

    def audit(
        self,
        *names: str,
        deep: bool = False,
        between: Callable[[], None] = lambda: None,
        clients: ClientCheck | None = None,
    ) -> Audit:
        """Audit the running cluster through the named nodes, by default the first one. `between`
        runs after everything was read once and before it is judged."""
        with self.serving():
            endpoints = ";".join(self.nodes[name].address for name in names or list(self.nodes)[:1])

            def engine(works: Any, progress: Any) -> Any:
                found = local_engine(works, progress)
                between()
                return found

            with Access().connect(endpoints, 1.0) as connection:
                return audit_running(
                    RunningCluster(connection, 0.2, lambda: self.now_s),
                    engine,
                    deep=deep,
                    clients=clients,
                )
