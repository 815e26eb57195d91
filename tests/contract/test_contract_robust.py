"""What must not hurt a node's client port: malformed messages, strangers, callers that vanish,
oversized requests, many open calls."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.frontend.rocketmq.messaging import REQUEST_BYTES
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import UNLIMITED, Backend, Raw, contract, message, receive_request
from tests.contract.test_contract_route import UNARY, route_request
from tests.contract.test_contract_telemetry import consumer, say

GARBAGE = (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", bytes(range(256)))


@contract()
async def test_malformed_messages(server: Backend) -> None:
    """Bytes that are no message of the method are 40000 in the body; on Telemetry
    INVALID_ARGUMENT."""
    for data in GARBAGE:
        for method, _ in UNARY:
            assert (await server.raw.unary(method, data)).status.code == pb.BAD_REQUEST, method
        got = await server.raw.collect(server.raw.stream(data))
        assert (got.status.code, got.contents) == (pb.BAD_REQUEST, ["status", "delivery_timestamp"])
        stream = server.raw.channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")(
            metadata=(("x-mq-client-id", "t1"),)
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.write(data)
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@contract()
async def test_mutated_messages_never_crash(server: Backend) -> None:
    """Requests with changed bytes end with a status of the contract, whatever they turned into."""
    chance = random.Random(7)
    good = [
        ("SendMessage", pb.SendMessageRequest(messages=[message(tag="a", keys=["k"])])),
        ("QueryRoute", route_request()),
        (
            "AckMessage",
            pb.AckMessageRequest(
                group=pb.Resource(name="G"),
                topic=pb.Resource(name="T"),
                entries=[pb.AckMessageEntry()],
            ),
        ),
        (
            "Heartbeat",
            pb.HeartbeatRequest(group=pb.Resource(name="G"), client_type=pb.PUSH_CONSUMER),
        ),
    ]
    for _ in range(150):
        method, request = chance.choice(good)
        data = bytearray(request.SerializeToString())
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        status = (await server.raw.unary(method, bytes(data))).status
        assert 20000 <= status.code < 50000, (method, bytes(data), status)
    for _ in range(50):
        data = bytearray(receive_request(expression="a || b").SerializeToString())
        data[chance.randrange(len(data))] = chance.randrange(256)
        pending = asyncio.ensure_future(server.raw.collect(server.raw.stream(bytes(data))))
        while not pending.done():
            # It may have become a long poll.
            server.pass_time(5)
            await asyncio.sleep(0)
        status = pending.result().status
        assert 20000 <= status.code < 50000, bytes(data)


@contract()
async def test_random_bytes_on_the_port(server: Backend) -> None:
    """Invalid clients get a closed connection; the server continues."""
    chance = random.Random(11)
    hellos = [
        chance.randbytes(200),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500),
    ]
    hellos += [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(300)]
    for hello in hellos:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(hello)
        async with asyncio.timeout(10):
            try:
                while await reader.read(4096):
                    pass
            except ConnectionResetError:
                pass
        writer.close()
    assert (await server.raw.send(message())).status.code == pb.OK


@contract()
async def test_oversized_requests(server: Backend) -> None:
    """A request beyond the limit of the port ends with RESOURCE_EXHAUSTED; several full bodies in
    one are fine."""
    bodies = [message(bytes(4 << 20)) for _ in range(4)]
    assert (await server.raw.send(*bodies)).status.code == pb.OK
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.raw.unary("SendMessage", bytes(REQUEST_BYTES + 1))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await server.raw.send(message())).status.code == pb.OK


@contract()
async def test_a_connection_that_breaks_in_a_long_poll(server: Backend) -> None:
    """Its polls end, nothing is leased to it, and nothing of it stays behind."""
    raw = Raw(server.port, (*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)))
    stream = raw.telemetry()
    await say(stream, consumer())
    calls = [
        asyncio.ensure_future(
            raw.collect(raw.stream(receive_request(polling=20, invisible=None), timeout=30))
        )
        for _ in range(20)
    ]
    await server.until_polls(20)
    await raw.close()
    await asyncio.gather(*calls, return_exceptions=True)
    await server.until_polls(0)
    await server.raw.send(message())
    (got,) = (await server.raw.receive()).messages
    assert got.system_properties.delivery_attempt == 1
    assert await server.raw.ack(got) == pb.OK
    assert not server.service._releases and not server.engine._waiting


@contract()
async def test_statement_100_five_hundred_open_polls(server: Backend) -> None:
    """500 open Receive streams do not keep other calls from being answered, and each gets its
    message."""
    calls = [
        asyncio.ensure_future(
            server.raw.collect(server.raw.stream(receive_request(polling=20, batch=1), timeout=60))
        )
        for _ in range(500)
    ]
    await server.until_polls(500)
    assert (await server.raw.unary("QueryRoute", route_request(), timeout=5)).status.code == pb.OK
    for start in range(0, 500, 50):
        assert (
            await server.raw.send(
                *(message(b"%d" % i) for i in range(start, start + 50)), timeout=20
            )
        ).status.code == pb.OK
    got = await asyncio.gather(*calls)
    assert sorted(int(one.bodies[0]) for one in got) == list(range(500))
    assert server.engine.polls == 0


@contract()
async def test_unexpected_errors_are_statuses(server: Backend) -> None:
    """A bug inside is 50001 with a sentence; no trace, no name of an exception, and a forwarded
    call says the same."""

    def broken(group: str, call: Any) -> Any:
        raise ZeroDivisionError("secret detail")

    server.engine.call = broken  # type: ignore[method-assign]
    for raw in (server.raw, server.raw2):
        for status in (
            (await raw.send(message())).status,
            (await raw.receive()).status,
        ):
            assert status.code == pb.INTERNAL_SERVER_ERROR
            assert "n1" in status.message
            assert "secret" not in status.message and "ZeroDivision" not in status.message


@contract()
async def test_a_node_with_too_many_calls_says_so(server: Backend) -> None:
    """Flow control is 42900; a change that was refused keeps its handle."""
    await server.raw.send(message())
    (got,) = (await server.raw.receive()).messages

    def busy(group: str, call: Any) -> Any:
        future: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        future.set_result(Refused("busy", detail="too many"))
        return future

    server.engine.call = busy  # type: ignore[method-assign,assignment]
    for raw in (server.raw, server.raw2):
        assert (await raw.send(message())).status.code == pb.TOO_MANY_REQUESTS
        assert await raw.ack(got) == pb.TOO_MANY_REQUESTS
        changed = await raw.change(got, 5)
        assert changed.status.code == pb.TOO_MANY_REQUESTS
        assert changed.receipt_handle == got.system_properties.receipt_handle


@contract()
async def test_streams_of_clients_that_left_are_forgotten(server: Backend) -> None:
    """A hundred clients that come and go leave no task and no timer of theirs behind."""
    for i in range(100):
        stream = server.raw.telemetry(metadata=(("x-mq-client-id", f"c{i}"),))
        await say(stream, consumer())
        stream.cancel()
    gc.collect()
    async with asyncio.timeout(10):
        while any(
            "serve_telemetry" in repr(task) or "_serve_telemetry" in repr(task)
            for task in asyncio.all_tasks()
        ):
            await asyncio.sleep(0.01)
    assert len(server.service.clients) == 100
    loop = asyncio.get_running_loop()
    server.service.clients._now = lambda: loop.time() + 10_000
    server.service.clients.remember("new", pb.Settings())
    assert len(server.service.clients) == 1


@contract()
async def test_draining_answers_polls_and_ends_streams(server: Backend) -> None:
    """Before a node stops, long polls are answered, Telemetry ends with OK, and messages that
    arrive then are not leased."""
    for raw, service in ((server.raw, server.service), (server.raw2, server.service2)):
        stream = raw.telemetry()
        await say(stream, consumer())
        poll = asyncio.ensure_future(
            raw.collect(raw.stream(receive_request(polling=20, invisible=None)))
        )
        await server.until_polls(1)
        service.drain()
        got = await poll
        assert (got.status.code, got.contents) == (
            pb.MESSAGE_NOT_FOUND,
            ["status", "delivery_timestamp"],
        )
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK
        await server.until_polls(0)
    await server.raw.send(message())
    (left,) = (await server.raw.receive()).messages
    assert left.system_properties.delivery_attempt == 1
