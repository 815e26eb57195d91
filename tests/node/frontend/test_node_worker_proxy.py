"""Calls for one certain worker, whichever worker the connection landed on: bytes, metadata,
endings, certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.node.frontend.ports import (
    CallAborted,
    Listening,
    Method,
    ServerCall,
    ServerStreamMethod,
    StatusCode,
    StreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq.access_control import common_name_of
from ledgermq.node.frontend.routing.worker_proxy import COMMON_NAME, OPTIONS, WorkerProxy
from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry, worker_registry_of
from ledgermq.node.process.client_port import call_server
from ledgermq.proto.workers import MEMBER_METADATA, PASSED_BY

SERVICE = "a.Service"
CONTRACT = "apache.rocketmq.v2.MessagingService"
LARGE = 600_000
NAMES = ("n1", "n1.2", "n1.3")


class Worker:
    """A server with one unary method, two streams, and the passing in front of them."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.workers = WorkerRegistry(name, NAMES, directory)
        self.proxy = WorkerProxy(self.workers)
        self.server = call_server(self.proxy.divert)
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.left = asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        methods: dict[str, Method] = {
            "Who": UnaryMethod(self._who),
            "Echo": StreamMethod(self._echo),
            "Certified": UnaryMethod(self._certified),
            "Fails": UnaryMethod(self._fails),
            "Waits": UnaryMethod(self._waits),
        }
        self.server.add_service(SERVICE, methods)
        self.server.add_service(CONTRACT, {"ReceiveMessage": ServerStreamMethod(self._receive)})
        self.port = await self.server.listen(
            Listening("127.0.0.1", 0, unix=self.workers.calls(self.name))
        )

    async def stop(self) -> None:
        await self.server.stop(0)
        await self.proxy.close()

    async def _who(self, request: bytes, context: ServerCall) -> bytes:
        context.set_trailing_metadata(
            (("told", dict(context.invocation_metadata()).get("said", "")),)
        )
        return self.name.encode() + request

    async def _echo(self, context: ServerCall) -> None:
        while (data := await context.read()) is not None:
            if data == b"enough":
                return
            await context.write(data)

    async def _certified(self, request: bytes, context: ServerCall) -> bytes:
        return common_name_of(context).encode()

    async def _fails(self, request: bytes, context: ServerCall) -> bytes:
        raise CallAborted(StatusCode.FAILED_PRECONDITION, "not like this", (("why", "because"),))

    async def _waits(self, request: bytes, context: ServerCall) -> bytes:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def _receive(self, request: bytes, context: ServerCall) -> None:
        try:
            await context.send_initial_metadata((("by", self.name),))
            await context.write(bytes(LARGE))
            await context.finish()
        except BaseException:
            self.left.set()
            raise


@asynccontextmanager
async def two_workers(directory: Path) -> AsyncIterator[tuple[dict[str, Worker], Any]]:
    """Two of three workers, and a connection that landed on the first."""
    workers = {name: Worker(name, directory) for name in NAMES[:2]}
    for worker in workers.values():
        await worker.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{workers['n1'].port}", OPTIONS) as channel:
            yield workers, channel
    finally:
        for worker in workers.values():
            await worker.stop()


def meant(node: str) -> tuple[tuple[str, str], ...]:
    return ((MEMBER_METADATA, node),)


async def test_call_goes_to_the_named_worker_or_stays(
    tmp_path: Path,
) -> None:
    async with two_workers(tmp_path) as (_, channel):
        who = channel.unary_unary(f"/{SERVICE}/Who")
        for node, answers in (
            ("n1", b"n1"),
            ("n1.2", b"n1.2"),
            ("n2", b"n1"),
            ("n2.2", b"n1"),
            ("", b"n1"),
        ):
            assert await who(b"!", metadata=meant(node)) == answers + b"!"
        assert await who(b"!") == b"n1!"


async def test_metadata_goes_both_ways(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (_, channel):
        call = channel.unary_unary(f"/{SERVICE}/Who")(
            b"", metadata=(*meant("n1.2"), ("said", "hello"))
        )
        assert await call == b"n1.2"
        assert dict(await call.trailing_metadata())["told"] == "hello"
        assert dict(await call.initial_metadata())[PASSED_BY] == "n1"


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
async def test_a_stream_is_carried_both_ways_until_either_side_ends_it(
    tmp_path: Path, size: int
) -> None:
    async with two_workers(tmp_path) as (_, channel):
        for ends in (True, False):
            call: Any = channel.stream_stream(f"/{SERVICE}/Echo")(metadata=meant("n1.2"))
            for number in range(3):
                data = bytes([number]) * size
                await call.write(data)
                assert await call.read() == data
            if ends:
                await call.done_writing()
            else:
                await call.write(b"enough")
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK


async def test_a_failure_arrives_as_it_was_said(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/Fails")(b"", metadata=meant("n1.2"))
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "not like this",
        )
        assert dict(caught.value.trailing_metadata())["why"] == "because"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/Nothing")(b"", metadata=meant("n1.2"))
        # The library may lose the status of a call that is refused before its request was taken
        # (docs/known-weaknesses.md).
        assert caught.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


async def test_a_sibling_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """Clients try again after that, elsewhere or here."""
    async with two_workers(tmp_path) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/Who")(b"", metadata=meant("n1.3"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_caller_that_gives_up_ends_the_call_at_the_worker_that_is_meant(
    tmp_path: Path,
) -> None:
    async with two_workers(tmp_path) as (workers, channel):
        meant_worker = workers["n1.2"]
        for timeout in (None, 2):
            meant_worker.waiting.clear()
            meant_worker.cancelled.clear()
            call = channel.unary_unary(f"/{SERVICE}/Waits")(
                b"", metadata=meant("n1.2"), timeout=timeout
            )
            sent = asyncio.ensure_future(call.code())
            async with asyncio.timeout(20):
                # A call that ends before it has arrived ends nothing.
                await meant_worker.waiting.wait()
                if timeout is None:
                    call.cancel()
                await meant_worker.cancelled.wait()
                await sent


async def test_receive_through_a_sibling_whose_client_leaves_is_not_delivered(
    tmp_path: Path,
) -> None:
    """The handler that knows the leases learns that the client did not take the answer: it is where
    the client's connection is. A worker that passed the answer on would have taken it for the
    client."""
    async with two_workers(tmp_path) as (workers, _):
        windows = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))
        channel: Any
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{workers['n1'].port}", (*OPTIONS, *windows)
        ) as channel:
            call = channel.unary_stream(f"/{CONTRACT}/ReceiveMessage")(
                b"", metadata=meant("n1.2"), timeout=30
            )
            assert dict(await call.initial_metadata())["by"] == "n1"
            call.cancel()
            async with asyncio.timeout(20):
                await workers["n1"].left.wait()
            received = channel.unary_stream(f"/{CONTRACT}/ReceiveMessage")(
                b"", metadata=meant("n1.2"), timeout=30
            )
            assert await received.read() == bytes(LARGE)


async def test_certificate_claim_counts_only_on_the_siblings_socket(tmp_path: Path) -> None:
    """Over the port the claim counts for nothing, neither here nor where the call is passed on to;
    on the siblings' socket it does."""
    async with two_workers(tmp_path) as (workers, channel):
        claim = ((COMMON_NAME, "root"),)
        for node in ("n1", "n1.2"):
            assert (
                await channel.unary_unary(f"/{SERVICE}/Certified")(
                    b"", metadata=(*meant(node), *claim)
                )
                == b""
            )
        inner: Any
        async with grpc.aio.insecure_channel(
            f"unix:{workers['n1'].workers.calls('n1')}", OPTIONS
        ) as inner:
            assert await inner.unary_unary(f"/{SERVICE}/Certified")(b"", metadata=claim) == b"root"


def test_a_worker_does_not_run_by_itself() -> None:
    from ledgermq.node.runtime.config_loading import validate
    from ledgermq.node.runtime.errors import ConfigError
    from tests.node.test_node_workers_config import tree

    found = worker_registry_of(validate(tree(node="n1.2")), {"LEDGERMQ_WORKER": "/run/x"})
    assert found is not None and found.others == ("n1",) and found.calls("n1") == "/run/x/n1.calls"
    assert worker_registry_of(validate(tree(node="n1")), {}) is None
    with pytest.raises(
        ConfigError, match=r"n1\.2 is a worker of node n1 and does not run by itself"
    ):
        worker_registry_of(validate(tree(node="n1.2")), {})
