"""Telemetry, Settings, Heartbeat and goodbye: statements 11–18, 22, 24 and 25 of the contract's
checklist, raw."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from ledgermq.node.frontend.rocketmq import telemetry
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, contract, message, receive_request


def producer(
    max_body_size: int = 128 << 20, topics: tuple[str, ...] = ("T", "F")
) -> pb.TelemetryCommand:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.access_point.scheme = pb.IPv4
    settings.access_point.addresses.add(host="127.0.0.1", port=8081)
    settings.publishing.topics.extend(
        pb.Resource(name=name, resource_namespace="ns") for name in topics
    )
    settings.publishing.max_body_size = max_body_size
    settings.user_agent.version = "5.1.2"
    settings.metric.on = True
    settings.request_timeout.seconds = 3
    return pb.TelemetryCommand(settings=settings)


def consumer(
    expression: str = "*",
    kind: int = pb.TAG,
    group: str = "G",
    topic: str = "T",
    client: Any = pb.PUSH_CONSUMER,
) -> pb.TelemetryCommand:
    settings = pb.Settings(client_type=client)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.type = kind  # type: ignore[assignment]
    entry.expression.expression = expression
    settings.subscription.fifo = True
    settings.subscription.receive_batch_size = 7
    settings.subscription.long_polling_timeout.seconds = 3
    return pb.TelemetryCommand(settings=settings)


async def say(stream: Any, command: pb.TelemetryCommand) -> pb.TelemetryCommand:
    """Write a command and read its answer."""
    await stream.write(command)
    answer: pb.TelemetryCommand = await stream.read()
    return answer


@contract()
async def test_statement_011_first_settings_are_answered(server: Backend) -> None:
    """The answer carries OK and settings, and needs nothing else to happen first."""
    answer = await say(server.raw.telemetry(), producer())
    assert (answer.status.code, answer.WhichOneof("command")) == (pb.OK, "settings")


@contract()
async def test_statement_012_headers_before_any_request(server: Backend) -> None:
    """Response headers come at once, before the client said anything."""
    stream = server.raw.telemetry()
    await stream.initial_metadata()


@contract()
async def test_statement_013_producer_settings(server: Backend) -> None:
    """A producer gets attempts, an exponential backoff and the server's own body limit."""
    for max_body_size in (128 << 20, 0):
        settings = (await say(server.raw.telemetry(), producer(max_body_size))).settings
        backoff = settings.backoff_policy
        assert (backoff.max_attempts, backoff.WhichOneof("strategy")) == (3, "exponential_backoff")
        steps = backoff.exponential_backoff
        assert (steps.initial.ToMilliseconds(), steps.max.ToMilliseconds(), steps.multiplier) == (
            10,
            1000,
            2.0,
        )
        assert (settings.publishing.max_body_size, settings.publishing.validate_message_type) == (
            4_194_304,
            True,
        )
        assert settings.HasField("metric") and settings.metric.on is False


@contract()
async def test_statement_014_consumer_settings(server: Backend) -> None:
    """A consumer gets attempts, retry steps, batch size and polling time; fifo is what the server
    says."""
    settings = (await say(server.raw.telemetry(), consumer())).settings
    steps = [step.ToSeconds() for step in settings.backoff_policy.customized_backoff.next]
    assert settings.backoff_policy.max_attempts == 17
    assert steps[:5] == [1, 5, 10, 30, 60] and steps[-3:] == [1800, 3600, 7200] and len(steps) == 18
    subscription = settings.subscription
    assert (
        subscription.fifo,
        subscription.receive_batch_size,
        subscription.long_polling_timeout.ToSeconds(),
    ) == (False, 32, 20)
    await server.group("careful", max_attempts=5, fifo=True, backoff={"steps_ms": [2000, 500]})
    settings = (await say(server.raw.telemetry(), consumer(group="careful"))).settings
    steps = [step.ToMilliseconds() for step in settings.backoff_policy.customized_backoff.next]
    assert (settings.backoff_policy.max_attempts, steps, settings.subscription.fifo) == (
        5,
        [2000, 500],
        True,
    )
    await server.group(
        "patient", backoff={"initial_ms": 5000, "max_ms": 7_200_000, "multiplier": 2.0}
    )
    steps = (
        await say(server.raw.telemetry(), consumer(group="patient"))
    ).settings.backoff_policy.exponential_backoff
    assert (steps.initial.ToSeconds(), steps.max.ToSeconds(), steps.multiplier) == (5, 7200, 2.0)


@contract()
async def test_statement_016_settings_of_the_client_are_returned(server: Backend) -> None:
    """Client type, access point, topics, group, subscriptions and user agent are unchanged."""
    said = producer()
    got = (await say(server.raw.telemetry(), said)).settings
    for field in ("client_type", "access_point", "user_agent", "request_timeout"):
        assert getattr(got, field) == getattr(said.settings, field), field
    assert got.publishing.topics == said.settings.publishing.topics
    said = consumer("a || b")
    got = (await say(server.raw.telemetry(), said)).settings
    assert got.client_type == pb.PUSH_CONSUMER
    assert got.subscription.group == said.settings.subscription.group
    assert got.subscription.subscriptions == said.settings.subscription.subscriptions


BAD = {
    "no pub_sub": pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER)),
    "illegal topic": producer(topics=("a b",)),
    "illegal subscribed topic": consumer(topic="a b"),
    "illegal group": consumer(group="a b"),
}


@contract()
async def test_statement_017_bad_settings_end_the_stream(server: Backend) -> None:
    """Settings that cannot be accepted end the stream with INVALID_ARGUMENT and are not
    remembered."""
    for name, command in BAD.items():
        stream = server.raw.telemetry()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await say(stream, command)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, name
        assert caught.value.details(), name
    assert len(server.service.clients) == 0


@contract()
async def test_statement_018_settings_again(server: Backend) -> None:
    """A second Settings on the same stream is answered and replaces the first."""
    stream = server.raw.telemetry()
    await say(stream, consumer("a"))
    answer = await say(stream, consumer("b"))
    assert answer.status.code == pb.OK
    assert answer.settings.subscription.subscriptions[0].expression.expression == "b"
    known = server.service.clients.settings("t1")
    assert known is not None and known.subscription.subscriptions[0].expression.expression == "b"


@contract()
async def test_statement_021_the_first_settings_are_repeated_once(server: Backend) -> None:
    """Clients that lose the first answer get it again, once; a second Settings is not repeated."""
    assert telemetry.REPEAT_S <= 2
    stream = server.raw.telemetry()
    first = await say(stream, producer())
    assert await stream.read() == first
    assert await say(stream, producer(topics=("T",))) != first
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


@contract()
async def test_statement_022_the_stream_stays_open(server: Backend) -> None:
    """Other commands, unknown ones included, leave the stream open; only the client's end ends it,
    with OK."""
    stream = server.raw.telemetry()
    await stream.write(pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce="n")))
    await stream.write(pb.TelemetryCommand(verify_message_result=pb.VerifyMessageResult(nonce="n")))
    await stream.write(pb.TelemetryCommand())
    assert (await say(stream, producer())).status.code == pb.OK
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK


@contract()
async def test_statement_024_heartbeat(server: Backend) -> None:
    """A Heartbeat needs Settings first; a consumer's group is checked, a producer has none."""

    async def beat(client_type: Any, group: str | None = None) -> int:
        request = pb.HeartbeatRequest(client_type=client_type)
        if group is not None:
            request.group.name = group
        return int((await server.raw.unary("Heartbeat", request)).status.code)

    assert await beat(pb.PRODUCER) == pb.UNRECOGNIZED_CLIENT_TYPE
    stream = server.raw.telemetry()
    await say(stream, producer())
    assert await beat(pb.PRODUCER) == pb.OK
    for client_type in (pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.LITE_PUSH_CONSUMER):
        assert await beat(client_type, "G") == pb.OK
        assert await beat(client_type, "a b") == pb.ILLEGAL_CONSUMER_GROUP
    await stream.done_writing()
    await stream.read()
    assert await beat(pb.PRODUCER) == pb.OK, "the end of a stream is no goodbye"


@contract()
async def test_statement_025_goodbye(server: Backend) -> None:
    """NotifyClientTermination forgets a known client and is 40015 for an unknown one."""

    async def leave(group: str | None = None) -> int:
        request = pb.NotifyClientTerminationRequest()
        if group is not None:
            request.group.name = group
        return int((await server.raw.unary("NotifyClientTermination", request)).status.code)

    assert await leave() == pb.UNRECOGNIZED_CLIENT_TYPE
    for group in (None, "", "G"):
        await say(server.raw.telemetry(), producer())
        assert await leave(group) == pb.OK
        assert (
            await server.raw.unary("Heartbeat", pb.HeartbeatRequest())
        ).status.code == pb.UNRECOGNIZED_CLIENT_TYPE
    assert await leave("a b") == pb.ILLEGAL_CONSUMER_GROUP


@contract(delivery=Delivery(liveness_ms=400))
async def test_an_open_stream_is_a_sign_of_life(server: Backend) -> None:
    """While Telemetry is open the client's automatically renewed leases hold; without it they end
    with the liveness limit."""
    await server.raw.send(message())
    stream = server.raw.telemetry()
    await say(stream, consumer())
    got = await server.raw.receive(invisible=None)
    assert len(got.messages) == 1
    server.flush_signs()
    server.pass_time(0.39)
    async with asyncio.timeout(30):
        while not server.forwarder._contacted:
            await asyncio.sleep(0.01)
    server.flush_signs()
    server.pass_time(0.39)
    other = (("x-mq-client-id", "t2"),)
    assert (
        await server.raw.receive(invisible=None, metadata=other)
    ).status.code == pb.MESSAGE_NOT_FOUND
    stream.cancel()
    server.pass_time(0.01)
    again = await server.raw.receive(invisible=None, metadata=other)
    assert [m.system_properties.delivery_attempt for m in again.messages] == [2]


@contract()
async def test_goodbye_ends_the_polls_of_the_client(server: Backend) -> None:
    """A long poll of a client that says goodbye is answered at once."""
    stream = server.raw.telemetry()
    await say(stream, consumer())
    poll = server.raw.stream(receive_request(polling=20))
    collected = asyncio.ensure_future(server.raw.collect(poll))
    await server.until_polls(1)
    await server.raw.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    assert (await collected).status.code == pb.MESSAGE_NOT_FOUND
