"""Answers to a Receive that their client has not taken: on a connection that a test writes and
reads by hand, on virtual time.

With auto-renewal the client would keep a lease of which it does not know for as long as it lives.
So the node gives back what the client has not provably taken: it acknowledged an HTTP/2 PING behind
the answer before the call's deadline.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.node.frontend.rocketmq import acknowledging, messaging
from ledgermq.node.process.grpc_server import GrpcServer
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.proto import messaging_pb2 as pb
from tests.contract import backend
from tests.contract.backend import CLIENT_ID, SERVICE, Backend, contract, message, receive_request
from tests.native import http2_by_hand as by_hand
from tests.native.http2_by_hand import frame
from tests.proto.ways import NOT_BUILT

OTHER = (("x-mq-client-id", "t2"),)
SHORT = "300m"
"""A `grpc-timeout`: the shortest deadline that leaves a busy machine the time to answer."""


class Client:
    """The consumer `t1` on a connection of its own, which decides what it acknowledges."""

    def __init__(self, raw: by_hand.Raw) -> None:
        self.raw = raw
        self.stream = -1

    @classmethod
    async def open(cls, port: int) -> Client:
        return cls(await by_hand.Raw.open(port))

    def begin(self, topic: str = "T", timeout: str = "20S", **options: Any) -> None:
        """Begin a Receive on the next stream."""
        self.stream += 2
        data = receive_request(topic, **{"invisible": None, **options}).SerializeToString()
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"{SERVICE}ReceiveMessage",
            ":authority": "test",
            "te": "trailers",
        }
        fields |= {"content-type": "application/grpc", "grpc-timeout": timeout, **dict(CLIENT_ID)}
        head = b"".join(by_hand.literal(name, value) for name, value in fields.items())
        self.raw.write(frame(by_hand.HEADERS, by_hand.END_HEADERS, self.stream, head))
        self.raw.write(frame(by_hand.DATA, by_hand.END_STREAM, self.stream, by_hand.message(data)))

    async def answer(self) -> list[pb.Message]:
        """Read the whole answer to the last Receive."""
        data, ended = b"", False
        while not ended:
            kind, flags, stream, payload = await self.raw.read() or pytest.fail(
                "the connection ended"
            )
            if stream == self.stream:
                data += payload if kind == by_hand.DATA else b""
                ended = bool(flags & by_hand.END_STREAM)
        found = []
        while data:
            size = int.from_bytes(data[1:5], "big")
            response = pb.ReceiveMessageResponse.FromString(data[5 : 5 + size])
            found += [response.message] if response.HasField("message") else []
            data = data[5 + size :]
        return found

    async def ping(self) -> bytes:
        """Read the ping behind the answer. Returns the frame that acknowledges it."""
        return by_hand.acknowledged(await self.raw.until(by_hand.PING))


def given_back(reason: str) -> float:
    return float(metrics.RECEIVES_GIVEN_BACK.labels(reason)._value.get())


async def until_given_back(server: Backend, reason: str, before: float) -> None:
    """Wait until an answer was given back, and its leases are ended."""
    async with asyncio.timeout(30):
        while given_back(reason) == before:
            await asyncio.sleep(0.001)
        for service in (server.service, server.service2):
            while service._releases:
                await asyncio.gather(*service._releases)


async def live_on(server: Backend, seconds: int) -> None:
    """Let time pass in which the client shows that it lives."""
    for _ in range(seconds // 30):
        server.pass_time(30)
        for raw in (server.raw, server.raw2):
            await raw.unary("Heartbeat", pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER))
        server.flush_signs()


@NOT_BUILT
@contract()
async def test_an_answer_that_was_taken_is_kept_while_its_client_lives(server: Backend) -> None:
    """Nothing is written for it, and nothing comes again, when the deadline of its call has passed
    neither."""
    for port in (server.port, server.port2):
        await server.raw.send(message(b"a"))
        client = await Client.open(port)
        client.begin()
        (got,) = await client.answer()
        client.raw.write(await client.ping())
        proposals = len(server.engine.replicators["g1"].proposals)
        await live_on(server, 600)
        assert (await server.raw.receive(metadata=OTHER)).messages == []
        assert len(server.engine.replicators["g1"].proposals) == proposals
        assert await server.raw.ack(got) == pb.OK
        client.raw.close()


@NOT_BUILT
@contract()
async def test_untaken_receive_answer_is_redelivered(server: Backend) -> None:
    """The client is suspended beyond the deadline, resets the call, or its connection ends; its
    node leads or forwards the call."""
    for port in (server.port, server.port2):
        for how in ("deadline", "reset", "connection"):
            before = given_back(how)
            await server.raw.send(message(b"a"))
            client = await Client.open(port)
            client.begin(timeout=SHORT if how == "deadline" else "20S")
            assert [m.system_properties.delivery_attempt for m in await client.answer()] == [1]
            ping = await client.ping()
            if how == "reset":
                client.raw.write(frame(by_hand.RST_STREAM, 0, client.stream, b"\0\0\0\x08") + ping)
            elif how == "connection":
                client.raw.writer.transport.abort()
            await until_given_back(server, how, before)
            (got,) = (await server.raw.receive(metadata=OTHER)).messages
            assert got.system_properties.delivery_attempt == 2
            assert await server.raw.ack(got) == pb.OK
            client.raw.close()


@NOT_BUILT
@contract()
async def test_a_suspended_client_gets_its_message_when_it_goes_on(server: Backend) -> None:
    """Its late acknowledgement changes nothing, and its next Receive brings the message; what it
    took before stays its own."""
    await server.raw.send(message(b"kept"))
    client = await Client.open(server.port)
    client.begin()
    (kept,) = await client.answer()
    client.raw.write(await client.ping())
    await server.raw.send(message(b"lost"))
    before = given_back("deadline")
    client.begin(timeout=SHORT)
    await client.answer()
    late = await client.ping()
    await until_given_back(server, "deadline", before)
    client.raw.write(late)
    client.begin()
    (again,) = await client.answer()
    client.raw.write(await client.ping())
    assert (again.body, again.system_properties.delivery_attempt) == (b"lost", 2)
    await live_on(server, 600)
    assert (await server.raw.receive(metadata=OTHER)).messages == []
    assert [await server.raw.ack(each) for each in (kept, again)] == [pb.OK, pb.OK]
    client.raw.close()


@NOT_BUILT
@contract()
async def test_a_fifo_group_goes_on_after_a_lost_answer(server: Backend) -> None:
    """With the same messages, in order, and all of them in one record."""
    await server.group("G", fifo=True)
    for body in (b"1", b"2", b"3"):
        await server.raw.send(message(body, "F", message_type=pb.FIFO, message_group="a"))
    before, changed = given_back("connection"), server.engine.counter("changed")
    client = await Client.open(server.port2)
    client.begin("F", batch=2, attempt_id="x")
    assert [m.body for m in await client.answer()] == [b"1", b"2"]
    await client.ping()
    assert (await server.raw.receive("F", metadata=OTHER)).messages == []
    proposals = len(server.engine.replicators["g1"].proposals)
    client.raw.writer.transport.abort()
    await until_given_back(server, "connection", before)
    assert server.engine.counter("changed") == changed + 2
    assert len(server.engine.replicators["g1"].proposals) == proposals + 1
    got = (await server.raw.receive("F", metadata=OTHER)).messages
    assert [m.body for m in got] == [b"1", b"2"], "what was never handed out waits for these"
    assert [await server.raw.ack(m, metadata=OTHER) for m in got] == [pb.OK] * 2
    assert [m.body for m in (await server.raw.receive("F", metadata=OTHER)).messages] == [b"3"]


@NOT_BUILT
@contract()
async def test_only_renewed_leases_are_worth_a_ping(server: Backend) -> None:
    """Leases with a duration of their own end by themselves, and an answer without messages gives
    none."""
    client = await Client.open(server.port)
    client.begin()
    assert await client.answer() == []
    await server.raw.send(message(b"a"))
    client.begin(invisible=30)
    assert len(await client.answer()) == 1
    client.raw.write(frame(by_hand.PING, 0, 0, b"12345678"))
    assert (await client.raw.until(by_hand.PING))[1:] == (by_hand.ACK, 0, b"12345678")
    client.raw.close()


@NOT_BUILT
def test_a_lost_lease_is_not_renewed_if_no_leader_could_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next leader does not know that the answer was lost, and the client lives on under a new
    session."""
    monkeypatch.setattr(messaging, "NO_DEADLINE_S", 0.2)

    @contract()
    async def scenario(server: Backend) -> None:
        await server.raw.send(message(b"a"))
        client = await Client.open(server.port)
        client.begin()
        await client.answer()
        await client.ping()
        server.flush_signs()
        before = given_back("connection")
        server.engine.follow("g1", None)
        client.raw.writer.transport.abort()
        await until_given_back(server, "connection", before)
        server.engine.lead("g1", 7)
        await live_on(server, 60)
        assert (await server.raw.receive(metadata=OTHER)).messages == []
        server.pass_time(5)
        (got,) = (await server.raw.receive(metadata=OTHER)).messages
        assert got.system_properties.delivery_attempt == 2

    scenario()


def refuses(server: Backend) -> None:
    """From now on the leader refuses to end a lease, and says so in its answer."""

    async def refuse(data: bytes, *_: object) -> bytes:
        return acknowledging.change_failure(pb.Status(code=pb.HA_NOT_AVAILABLE), data)

    for service in (server.service, server.service2):
        service._acknowledger.route_change = refuse  # type: ignore[method-assign]


@NOT_BUILT
@contract()
async def test_a_lost_lease_is_not_renewed_if_its_end_was_refused(server: Backend) -> None:
    """A refusal of a leader on another node comes as an answer, and is none that ended the
    lease."""
    await server.raw.send(message(b"a"))
    client = await Client.open(server.port2)
    client.begin()
    await client.answer()
    await client.ping()
    server.flush_signs()
    before = given_back("connection")
    refuses(server)
    client.raw.writer.transport.abort()
    await until_given_back(server, "connection", before)
    await live_on(server, 60)
    assert (await server.raw.receive(metadata=OTHER)).messages == []
    server.pass_time(5)
    assert len((await server.raw.receive(metadata=OTHER)).messages) == 1


@contract()
async def test_a_message_held_back_without_a_leader_is_not_renewed(server: Backend) -> None:
    """Its client cannot take it, so that client must not keep it."""
    raw = backend.Raw(server.port, backend.NODE_JS)
    await server.raw.send(message(bytes(backend.WIRE_MAX)))
    refuses(server)
    assert (await raw.receive(invisible=None)).status.code == pb.MESSAGE_BODY_TOO_LARGE
    await asyncio.gather(*server.service._releases)
    server.flush_signs()
    await live_on(server, 60)
    assert (await server.raw.receive(metadata=OTHER)).messages == []
    server.pass_time(5)
    assert len((await server.raw.receive(metadata=OTHER)).messages) == 1
    await raw.close()


def test_python_server_renews_untaken_leases_up_to_the_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot know what the client took: `delivery.auto_renew_max_ms` is the bound."""
    monkeypatch.setattr(backend, "call_server", GrpcServer)

    @contract(delivery=Delivery(auto_renew_max_ms=600_000))
    async def scenario(server: Backend) -> None:
        await server.raw.send(message(b"a"))
        client = await Client.open(server.port)
        client.begin()
        assert len(await client.answer()) == 1
        client.raw.writer.transport.abort()
        await live_on(server, 570)
        assert (await server.raw.receive(metadata=OTHER)).messages == []
        server.pass_time(30)
        (got,) = (await server.raw.receive(metadata=OTHER)).messages
        assert got.system_properties.delivery_attempt == 2

    scenario()
