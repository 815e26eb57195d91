"""The answers of a node to an audit, over a hosted group with real files and real gRPC: markers,
facts at a marker, bytes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.controller.grants import User, grant_of
from ledgermq.node.frontend.audits.replicas_service import KNOWN_METHOD, Replicas
from ledgermq.node.frontend.native.callers import Callers
from ledgermq.node.frontend.ports import Listening
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.process.client_port import call_server
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.maintenance.retention_loop import Retainer
from ledgermq.proto import audit_pb2, audit_pb2_grpc
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.records.control import AuditRecord
from ledgermq.proto.signature import AUTHORIZATION, DATE_TIME, Credentials, operator_of, sign
from ledgermq.proto.status import Code
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.files.real_disk import RealDisk
from tests.contract.backend import run as run_on_the_loop
from tests.node.replica.test_node_hosting import Driver, single
from tests.node.replica.test_node_retention import DirectEngine, Peers

SECRET = b"0123456789abcdef0123456789abcdef"
PASSWORD = "open sesame"


def run(work: Awaitable[Any]) -> Any:
    """What a scenario returns."""
    found: list[Any] = []

    async def kept() -> None:
        found.append(await work)

    run_on_the_loop(kept)
    return found[0]


class Forwarder(Peers):
    """This node leads; `builds` are the other members and what they say when they are asked about
    markers."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas: Replicas
        self.builds: dict[str, str] = {}

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> Sequence[bytes]:
        if method != KNOWN_METHOD:
            return await super().ask(node, method, request, deadline)
        if self.builds[node]:
            raise CallRefused(Refused(self.builds[node]))
        return await self.replicas.execute("", method, request)

    async def submit(
        self,
        group: str,
        method: str,
        metadata: Any,
        request: bytes,
        *_: Any,
        repeatable: bool = False,
    ) -> Sequence[bytes]:
        return await self.replicas.execute(group, method, request)


class Engine(DirectEngine):
    """As it is, with what the group says of itself."""

    groups = ("g1",)

    async def status(self, group: str) -> Any:
        return self.driver.hosted.status()


class Stage:
    """One replica with sealed files, its service, and a client."""

    def __init__(self, directory: Path, *, required: bool = False) -> None:
        self.directory = directory
        config = single(
            directory, group={"data_file_bytes": "64KiB"}, retention={"reserve_bytes": 0}
        )
        self.driver = Driver(config)
        self.driver.configure()
        while self.driver.group.store.log.end_pos < 200 << 10:
            self.driver.produce(4, size=4000)
        engine: Any = Engine(self.driver)
        self.forwarder = Forwarder()
        hosted = {"g1": self.driver.hosted}
        self.digest_exchange = DigestExchange(
            config, RealDisk(), hosted, engine, self.forwarder, lambda name: ThreadPoolExecutor(1)
        )
        self.retainer = Retainer(
            config,
            RealDisk(),
            hosted,
            engine,
            self.forwarder,
            self.digest_exchange,
            lambda: time.time_ns() // 1_000_000,
        )

        async def catch_up() -> None:
            return None

        sealer = Sealer((SECRET,), config.cluster_id)
        grants = {"alice": "admin:topic:*", "auditor": "admin:cluster:*"}
        users = {
            name: User(name, (sealer.seal(name, PASSWORD),), frozenset({grant_of(grant)}))
            for name, grant in grants.items()
        }
        authority = Authority(
            lambda: users, catch_up, sealer, operator_of(SECRET), required=required
        )
        self.replicas = self.forwarder.replicas = Replicas(
            *(
                config,
                "boot" * 8,
                lambda group: self.driver.hosted.boots,
                engine,
                self.forwarder,
                self.retainer,
                Callers(authority),
            )
        )
        self.stub: Any = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Any]:
        server = call_server()
        server.add_service("ledgermq.v1.Replicas", self.replicas.methods())
        port = await server.listen(Listening("127.0.0.1", 0))
        try:
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]
            ) as channel:
                yield audit_pb2_grpc.ReplicasStub(channel)  # type: ignore[no-untyped-call]
        finally:
            await server.stop(0)

    def ask(self, method: str, request: Any) -> Any:
        """One call, over the wire."""

        async def asked() -> Any:
            async with self.serving() as stub:
                return await getattr(stub, method)(request)

        return run(asked())

    def read(self, path: str, **options: Any) -> list[Any]:
        async def asked() -> list[Any]:
            async with self.serving() as stub:
                return [
                    piece
                    async for piece in stub.Read(
                        audit_pb2.ReadFileRequest(broker_group="g1", path=path, **options)
                    )
                ]

        return run(asked())

    def mark(self) -> Any:
        marked = self.ask("Mark", audit_pb2.MarkRequest(broker_group="g1", id="tester"))
        assert marked.status.code == Code.OK, marked.status
        return marked.point


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_audit_marker_is_an_entry_without_derived_changes(stage: Stage) -> None:
    """The answer names the entry, its end, its term and its chain CRC, as the log has them."""
    machine, log = stage.driver.group.machine, stage.driver.group.store.log
    before = machine.export("log")
    point = stage.mark()
    assert (point.index, point.end_pos, point.term, point.chain) == (
        log.end_index,
        log.end_pos,
        log.end_term,
        log.end_chain,
    )
    entry = log.read(point.index, 1)
    record = decode_record(bytes(entry.data)[48:])
    assert (record.topic, record.body) == (
        "rmq_sys_ledgermq_storage",
        AuditRecord("tester").encode(),
    )
    after = machine.export("log")
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"applied_index", "applied_end_pos", "chain_crc", "store_ms", "queues"}
    assert stage.mark().index == point.index + 1, "another one is another entry"


@pytest.mark.parametrize("wrong", ["", "x" * 65, "a\nb"])
def test_a_marker_needs_an_id_that_people_can_read(stage: Stage, wrong: str) -> None:
    """It stays in the log for as long as the log does."""
    end = stage.driver.group.store.log.end_index
    assert (
        stage.ask("Mark", audit_pb2.MarkRequest(broker_group="g1", id=wrong)).status.code
        == Code.BAD_REQUEST
    )
    assert stage.driver.group.store.log.end_index == end


def test_no_marker_where_a_member_would_stop_at_it(stage: Stage) -> None:
    """An older build stops at an unknown record, so the refusal names it. A node that does not
    answer does not prevent an audit."""
    stage.driver.group.machine.members = GroupMembers(0, ("n1", "n2", "n3"))
    stage.forwarder.builds = {"n2": "unknown-outcome", "n3": "internal"}
    refused = stage.ask("Mark", audit_pb2.MarkRequest(broker_group="g1", id="tester"))
    assert (
        refused.status.code == Code.PRECONDITION_FAILED
        and "node n3 runs a build" in refused.status.message
    )
    stage.forwarder.builds["n3"] = ""
    assert stage.mark().index > 0


def test_a_replica_is_described_at_a_marker(stage: Stage) -> None:
    """Its identity, the begin and end of its log, and its sealed files with their digests once they
    are known."""
    point = stage.mark()
    stage.driver.produce(1, size=4000)
    asked = audit_pb2.DescribeReplicaRequest(broker_group="g1", index=point.index)
    told = stage.ask("Describe", asked)
    identity, log = stage.driver.identity, stage.driver.group.store.log
    assert told.status.code == Code.OK and told.state == "running"
    assert (told.node, told.cluster_id, told.log_id, told.incarnation) == (
        "n1",
        identity.cluster_id,
        identity.log_id,
        identity.incarnation,
    )
    assert (told.data_file_bytes, told.format_version) == (64 << 10, 1)
    assert told.end == point and told.applied_index > point.index
    assert (told.begin.index, told.begin.end_pos, told.begin.term, told.begin.chain) == (
        -1,
        0,
        -1,
        log.chain_at(-1),
    )
    assert list(told.voters) == ["n1"] and told.life == "bootbootboot-1"
    files = {file.base: file for file in told.sealed}
    assert list(files) == [0, 64 << 10, 128 << 10] and not files[0].HasField("sha256")
    assert files[0].last_index + 1 == files[64 << 10].first_index
    wanted = audit_pb2.FileDigestsRequest(broker_group="g1", bases=[0, 1 << 30])
    assert list(stage.ask("Digests", wanted).files) == []
    run(stage.digest_exchange.check("g1"))
    assert [file.base for file in stage.ask("Digests", wanted).files] == [0]
    path = f"{stage.directory}/g1/dledger-n1/data/{0:020d}"
    assert stage.ask("Describe", asked).sealed[0].sha256 == file_digest(
        RealDisk(), path, lambda _: None
    )


def test_units_that_wait_in_memory_are_written_before_a_replica_is_described(stage: Stage) -> None:
    """All state derived from the log up to the marker is in the files before the answer; later
    state need not be."""
    written: list[int] = []

    def write_units(pos: int) -> bool:
        written.append(pos)
        return len(written) == 3

    stage.driver.group.write_units = write_units  # type: ignore[method-assign]
    point = stage.mark()
    stage.driver.produce(1)
    assert (
        stage.ask(
            "Describe", audit_pb2.DescribeReplicaRequest(broker_group="g1", index=point.index)
        ).status.code
        == Code.OK
    )
    assert written == [point.end_pos] * 3


def test_a_replica_that_is_not_there_yet_or_no_more_says_so(stage: Stage) -> None:
    """An entry that does not come in time, one that was trimmed, a group that is not hosted, one
    that does not run."""
    end = stage.driver.group.machine.applied_index
    late = stage.ask(
        "Describe", audit_pb2.DescribeReplicaRequest(broker_group="g1", index=end + 5, within_ms=30)
    )
    assert (
        late.status.code == Code.PROXY_TIMEOUT and f"only up to entry {end}" in late.status.message
    )
    stage.driver.group.store.log.begin_index = 7
    gone = stage.ask("Describe", audit_pb2.DescribeReplicaRequest(broker_group="g1", index=3))
    assert gone.status.code == Code.NOT_FOUND and "begins with entry 7" in gone.status.message
    assert (
        stage.ask("Describe", audit_pb2.DescribeReplicaRequest(broker_group="g2")).status.code
        == Code.NOT_FOUND
    )
    resting = SimpleNamespace(
        state="repairing", rebuild=SimpleNamespace(reason="entry 5 is damaged")
    )

    async def status(group: str) -> Any:
        return resting

    stage.replicas._engine.status = status  # type: ignore[method-assign]
    told = stage.ask("Describe", audit_pb2.DescribeReplicaRequest(broker_group="g1"))
    assert (told.status.code, told.state, told.reason) == (
        Code.OK,
        "repairing",
        "entry 5 is damaged",
    ) and not told.HasField("end")


def test_bytes_come_as_they_are_and_zeros_do_not_travel(stage: Stage) -> None:
    """The whole file, a part of it, and only its non-zero pieces; the bytes between the pieces are
    zero."""
    path = f"g1/dledger-n1/data/{0:020d}"
    content = (stage.directory / path).read_bytes()

    def joined(pieces: list[Any], start: int, end: int) -> bytes:
        assert pieces[0].status.code == Code.OK and pieces[0].size == len(content)
        data = bytearray(end - start)
        for piece in pieces[1:]:
            data[piece.offset - start : piece.offset - start + len(piece.data)] = piece.data
        return bytes(data)

    assert joined(stage.read(path), 0, len(content)) == content
    assert joined(stage.read(path, offset=1000, length=50), 1000, 1050) == content[1000:1050]
    assert (
        joined(
            stage.read(path, offset=len(content) - 10, length=500), len(content) - 10, len(content)
        )
        == content[-10:]
    )
    index = stage.read(f"g1/dledger-n1/index/{0:020d}")
    assert sum(len(piece.data) for piece in index) < index[0].size / 10, "holes are left out"
    (stage.directory / "g1" / "zeros").write_bytes(bytes(3 << 20) + b"x")
    assert [(piece.offset, len(piece.data)) for piece in stage.read("g1/zeros")[1:]] == [
        (3 << 20, 1)
    ]
    (place,) = stage.read("g1/zeros", places_only=True)[1:]
    assert (place.offset, place.length, place.data) == (0, (3 << 20) + 1, b"")


def test_a_read_belongs_to_the_file_that_was_opened(stage: Stage) -> None:
    """Small files are replaced while a node runs: what is read is one of them, not a mixture."""
    path = stage.directory / "g1" / "state" / "replaced"
    path.write_bytes(b"a" * (3 << 20))

    async def asked() -> bytes:
        data = bytearray()
        async with stage.serving() as stub:
            request = audit_pb2.ReadFileRequest(broker_group="g1", path="g1/state/replaced")
            async for piece in stub.Read(request):
                if not data:
                    (stage.directory / "fresh").write_bytes(b"b" * (3 << 20))
                    (stage.directory / "fresh").replace(path)
                data += piece.data
        return bytes(data)

    assert set(run(asked())) == {ord("a")}


def test_names_are_listed(stage: Stage) -> None:
    """The group's own directory by default, another one, one name alone; a path that leads out is
    refused with a sentence."""
    own = stage.ask("List", audit_pb2.ListFilesRequest(broker_group="g1"))
    assert {"g1/identity.json", "g1/state", "g1/dledger-n1"} <= {
        entry.path for entry in own.entries
    }
    data = stage.ask(
        "List", audit_pb2.ListFilesRequest(broker_group="g1", directory="g1/dledger-n1/data")
    )
    assert [
        entry.path for entry in data.entries if entry.path.endswith(f"/{64 << 10:020d}")
    ] and not data.entries[0].directory
    below = stage.ask("List", audit_pb2.ListFilesRequest(broker_group="g1", recursive=True))
    assert {entry.path for entry in data.entries} <= {entry.path for entry in below.entries}
    (stage.directory / "node.json").write_bytes(b"node")
    (one,) = stage.ask(
        "List", audit_pb2.ListFilesRequest(broker_group="g1", directory="node.json", itself=True)
    ).entries
    assert one.path == "node.json" and one.size == 4
    assert (
        list(
            stage.ask(
                "List",
                audit_pb2.ListFilesRequest(broker_group="g1", directory="g1/no", itself=True),
            ).entries
        )
        == []
    )
    node = stage.ask("List", audit_pb2.ListFilesRequest()).entries
    assert [(entry.path, entry.directory) for entry in node] == [("g1", True), ("node.json", False)]
    out = stage.ask(
        "List", audit_pb2.ListFilesRequest(broker_group="g1", directory="g1/../controller")
    )
    assert out.status.code == Code.BAD_REQUEST and "paths begin with g1/" in out.status.message
    (refused,) = stage.read("g1/../../etc/passwd")
    assert refused.status.code == Code.BAD_REQUEST
    (absent,) = stage.read("g1/nothing")
    assert absent.status.code == Code.NOT_FOUND


def test_only_an_administrator_is_answered(tmp_path: Path) -> None:
    """The files contain every message, so all methods refuse unsigned calls and users who do not
    administer the whole cluster."""
    stage = Stage(tmp_path, required=True)
    requests: dict[str, Callable[[], Any]] = {
        "Mark": lambda: stage.ask("Mark", audit_pb2.MarkRequest(broker_group="g1", id="tester")),
        "Describe": lambda: stage.ask(
            "Describe", audit_pb2.DescribeReplicaRequest(broker_group="g1")
        ),
        "List": lambda: stage.ask("List", audit_pb2.ListFilesRequest(broker_group="g1")),
        "Digests": lambda: stage.ask("Digests", audit_pb2.FileDigestsRequest(broker_group="g1")),
        "Read": lambda: stage.read("g1/identity.json")[0],
    }
    assert set(requests) == {
        method.name for method in audit_pb2.DESCRIPTOR.services_by_name["Replicas"].methods
    }
    end = stage.driver.group.store.log.end_index
    for method, request in requests.items():
        answer = request()
        assert answer.status.code == Code.UNAUTHORIZED, method
        assert answer == type(answer)(status=answer.status), method
    assert stage.driver.group.store.log.end_index == end

    async def listed(user: str) -> int:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signature = ((DATE_TIME, now), (AUTHORIZATION, sign(Credentials(user, PASSWORD), now)))
        async with stage.serving() as stub:
            return int(
                (
                    await stub.List(
                        audit_pb2.ListFilesRequest(broker_group="g1"), metadata=signature
                    )
                ).status.code
            )

    assert run(listed("alice")) == Code.FORBIDDEN and run(listed("auditor")) == Code.OK


def test_many_readers_share_one_pace(stage: Stage) -> None:
    """Two streams at once: both come whole, and every piece of either is counted by the one
    budget."""
    (stage.directory / "g1" / "large").write_bytes(bytes(range(1, 256)) * (5 << 12))
    sizes: list[int] = []

    def told(size: int, late_s: float) -> float:
        sizes.append(size)
        return 0.0

    stage.replicas._budget.wait_s = told  # type: ignore[method-assign]

    async def asked() -> list[int]:
        async with stage.serving() as stub:

            async def one() -> int:
                request = audit_pb2.ReadFileRequest(broker_group="g1", path="g1/large")
                return sum([len(piece.data) async for piece in stub.Read(request)])

            return list(await asyncio.gather(one(), one()))

    length = 255 * (5 << 12)
    assert run(asked()) == [length, length]
    assert sum(sizes) == 2 * length and max(sizes) == 1 << 20


def test_a_caller_that_goes_while_its_file_is_opened_leaves_no_descriptor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is opened on a thread; its caller has already left when the open returns."""
    files, closed = stage.replicas._files, threading.Event()
    opening, go_on = threading.Event(), threading.Event()
    path = "g1/dledger-n1/data/00000000000000000000"

    def slow(group: str, path: str) -> Any:
        opening.set()
        assert go_on.wait(20)
        return SimpleNamespace(close=closed.set)

    async def scenario() -> None:
        monkeypatch.setattr(files, "open", slow)
        reading = asyncio.create_task(
            anext(stage.replicas.read(audit_pb2.ReadFileRequest(broker_group="g1", path=path)))
        )
        assert await asyncio.to_thread(opening.wait, 20)
        reading.cancel()
        await asyncio.wait([reading])
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 5)

    run(scenario())
