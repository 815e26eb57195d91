"""Statements 96 to 98 of the contract and related rules: signatures, permissions, namespaces,
quotas, through real gRPC."""

from __future__ import annotations

import asyncio
import re
import threading

from ledgermq.node.frontend.rocketmq.wire import needs
from ledgermq.node.runtime.security_sections import Quota, Quotas
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import (
    SERVICE,
    Backend,
    Metadata,
    ack_request,
    contract,
    message,
    receive_request,
    signed,
)

TOPIC = pb.Resource(name="T")
ROUTE = pb.QueryRouteRequest(topic=TOPIC)
EVERYTHING = "admin:cluster:*"
PING, GO_AWAY = 6, 7
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def route_code(server: Backend, metadata: Metadata) -> int:
    return int((await server.raw.unary("QueryRoute", ROUTE, metadata=metadata)).status.code)


def with_header(metadata: Metadata, old: str, new: str) -> Metadata:
    return tuple(
        (key, value.replace(old, new) if key == "authorization" else value)
        for key, value in metadata
    )


@contract(authentication=True)
async def test_statement_096_signature(server: Backend) -> None:
    """The vector in upper and lower case, every form of credential; a wrong secret, an unknown key
    and no header are 40100."""
    server.user("ak1", "sk1", EVERYTHING)
    good = signed("ak1", "sk1")
    assert "651888104e62e38ad7484d9e5580cfaf3226a8db" in dict(good)["authorization"]
    upper = with_header(
        good, "651888104e62e38ad7484d9e5580cfaf3226a8db", "651888104E62E38AD7484D9E5580CFAF3226A8DB"
    )
    forms = [good, upper, with_header(good, "Credential=ak1", "Credential=ak1//Rocketmq")]
    forms += [
        with_header(good, "Credential=ak1", "Credential=ak1/region/RocketMQ"),
        signed("ak1", "sk1", "2026-01-02T03:04:05+02:00"),
    ]
    assert {await route_code(server, form) for form in forms} == {pb.OK}
    bad = [signed("ak1", "sk2"), signed("ak2", "sk1"), (("x-mq-client-id", "t1"),)]
    bad += [
        with_header(good, "MQv2-HMAC-SHA1", "MQv2-HMAC-MD5"),
        with_header(good, "651888", "zz1888"),
        signed("", ""),
    ]
    assert {await route_code(server, form) for form in bad} == {pb.UNAUTHORIZED}


@contract(authentication=True)
async def test_statement_096_every_method_refuses_strangers(server: Backend) -> None:
    """40100 in the body of every unary method and of Receive; on Telemetry a command that is only a
    status, then the end."""
    stranger = signed("nobody", "nothing")
    for method in server.service.unary_methods:
        response = await server.raw.unary(method, b"", metadata=stranger)
        assert response.status.code == pb.UNAUTHORIZED, method
    assert (await server.raw.receive(metadata=stranger)).status.code == pb.UNAUTHORIZED
    pull = server.raw.channel.unary_stream(
        SERVICE + "PullMessage", response_deserializer=pb.PullMessageResponse.FromString
    )
    assert [answer.status.code async for answer in pull(b"", metadata=stranger, timeout=10)][
        :1
    ] == [pb.UNAUTHORIZED]
    call = server.raw.telemetry(metadata=stranger)
    commands = [command async for command in call]
    assert [(command.status.code, command.WhichOneof("command")) for command in commands] == [
        (pb.UNAUTHORIZED, None)
    ]


@contract()
async def test_statement_097_header_is_ignored_without_authentication(server: Backend) -> None:
    """An empty credential, a wrong one and nonsense change nothing while authentication is off."""
    for header in (
        signed("", ""),
        signed("who", "what"),
        (("x-mq-client-id", "t1"), ("authorization", "nonsense")),
    ):
        assert await route_code(server, header) == pb.OK


@contract(topics={})
async def test_statement_098_namespace_by_header_or_field(server: Backend) -> None:
    """The header with empty fields (Node) and fields without a header (Rust) address the same
    topic, and the field counts first."""
    await server.topic("T", namespace="ns")
    header = (("x-mq-client-id", "t1"), ("x-mq-namespace", "ns"))
    assert (await server.raw.send(message(b"node"), metadata=header)).status.code == pb.OK
    assert (await server.raw.send(message(b"rust", namespace="ns"))).status.code == pb.OK
    got = await server.raw.receive(namespace="ns")
    assert sorted(got.bodies) == [b"node", b"rust"] and {
        m.topic.resource_namespace for m in got.messages
    } == {"ns"}
    assert (await server.raw.send(message())).status.code == pb.TOPIC_NOT_FOUND


@contract(namespaces=False)
async def test_statement_098_switched_off_namespaces_do_not_count(server: Backend) -> None:
    """With `ignore_namespaces` header and field lead to the plain name, at the leader as well."""
    header = (("x-mq-client-id", "t1"), ("x-mq-namespace", "ns"))
    assert (await server.raw.send(message(b"1"), metadata=header)).status.code == pb.OK
    assert (
        await server.raw2.send(message(b"2", namespace="other"), metadata=header)
    ).status.code == pb.OK
    got = await server.raw2.receive(metadata=header)
    assert sorted(got.bodies) == [b"1", b"2"]
    assert (
        await server.raw.unary("AckMessage", ack_request(got.messages), metadata=header)
    ).status.code == pb.OK


@contract(authentication=True)
async def test_permissions_of_the_contracts_table(server: Backend) -> None:
    """A user with only the publish permission cannot consume, and vice versa; a consumer needs
    permissions for topic and group; other groups are refused."""
    server.user("pub", "secret of pub", "publish:topic:T")
    server.user("sub", "secret of sub", "subscribe:topic:T", "subscribe:group:G")
    server.user("half", "secret of half", "subscribe:topic:T")
    pub, sub, half = (
        signed(name, f"secret of {name}", client_id=name) for name in ("pub", "sub", "half")
    )
    assert (await server.raw.send(message(), metadata=pub)).status.code == pb.OK
    assert (await server.raw2.send(message())).status.code == pb.OK, (
        "what a peer forwards has come past the peer's own gate"
    )
    assert (await server.raw.send(message(topic="F"), metadata=pub)).status.code == pb.FORBIDDEN
    assert (await server.raw.send(message(), metadata=sub)).status.code == pb.FORBIDDEN
    assert (await server.raw.receive(metadata=pub)).status.code == pb.FORBIDDEN
    assert (await server.raw.receive(metadata=half)).status.code == pb.FORBIDDEN
    assert (await server.raw.receive(group="G2", metadata=sub)).status.code == pb.FORBIDDEN
    got = await server.raw.receive(metadata=sub)
    assert got.status.code == pb.OK
    assert await server.raw.ack(got.messages[0], metadata=half) == pb.FORBIDDEN
    assert await server.raw.ack(got.messages[0], metadata=sub) == pb.OK
    assert {await route_code(server, who) for who in (pub, sub, half)} == {pb.OK}
    other = pb.QueryRouteRequest(topic=pb.Resource(name="F"))
    assert (await server.raw.unary("QueryRoute", other, metadata=pub)).status.code == pb.FORBIDDEN


@contract(authentication=True)
async def test_telemetry_beyond_the_permissions_is_forbidden(server: Backend) -> None:
    """Settings beyond the permissions are answered with a command that is only a status, and the
    end of the stream."""
    server.user("pub", "secret of pub", "publish:topic:T")
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    call = server.raw.telemetry(metadata=signed("pub", "secret of pub"))
    await call.write(pb.TelemetryCommand(settings=settings))
    assert (await call.read()).status.code == pb.OK
    call.cancel()
    settings.publishing.topics.add(name="F")
    call = server.raw.telemetry(metadata=signed("pub", "secret of pub"))
    await call.write(pb.TelemetryCommand(settings=settings))
    answers = [(command.status.code, command.WhichOneof("command")) async for command in call]
    assert answers == [(pb.FORBIDDEN, None)]


def test_every_method_has_a_row_of_needs() -> None:
    """A method without a row would refuse all users; Telemetry has its own rules."""
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods}
    assert methods == needs.RULES.keys() | {"Telemetry"}


@contract(quotas=Quotas(topic=Quota(messages_per_s=2), topics={"F": Quota()}))
async def test_quotas_answer_with_a_hint(server: Backend) -> None:
    """Past its rate a topic answers TOO_MANY_REQUESTS, says when to try again, and takes messages
    again then."""
    assert [(await server.raw.send(message())).status.code for _ in range(2)] == [pb.OK] * 2
    call = server.raw.unary("SendMessage", pb.SendMessageRequest(messages=[message()]))
    refused = await call
    assert (
        refused.status.code == pb.TOO_MANY_REQUESTS
        and "quota of 2 messages a second" in refused.status.message
    )
    hint = int(dict(await call.trailing_metadata())["retry-after-ms"])
    assert re.search(rf"try again in {hint} ms", refused.status.message)
    server.pass_time(hint / 1000)
    assert (await server.raw.send(message())).status.code == pb.OK


@contract(quotas=Quotas(client=Quota(receives=1)))
async def test_open_receives_are_counted(server: Backend) -> None:
    """A second Receive of one client is refused while the first is open, and let in when it has
    ended."""
    first = server.raw.stream(receive_request(polling=20), timeout=30)
    await server.until_polls(1)
    assert (await server.raw.receive()).status.code == pb.TOO_MANY_REQUESTS
    assert (
        await server.raw.receive(metadata=(("x-mq-client-id", "t2"),))
    ).status.code == pb.MESSAGE_NOT_FOUND
    await server.raw.send(message())
    assert [r.status.code async for r in first if r.HasField("status")] == [pb.OK]
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND


@contract(quotas=Quotas(client=Quota(receives=1)))
async def test_statement_075_a_client_that_asks_again_at_once(server: Backend) -> None:
    """A refused Receive that ten clients repeat hundreds of times without a pause, as Java clients
    do, does not delay other calls."""
    clients = [(("x-mq-client-id", f"java-{i}"),) for i in range(10)]
    open_ones = [
        server.raw.stream(receive_request(polling=20, batch=1), metadata=one, timeout=60)
        for one in clients
    ]
    await server.until_polls(10)

    async def storm(metadata: tuple[tuple[str, str]]) -> set[int]:
        return {(await server.raw.receive(metadata=metadata)).status.code for _ in range(50)}

    storming = [asyncio.ensure_future(storm(one)) for one in clients]
    for _ in range(10):
        assert (
            await server.raw.unary("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="T")))
        ).status.code == pb.OK
    assert await asyncio.gather(*storming) == [{pb.TOO_MANY_REQUESTS}] * 10
    await server.raw.send(*(message(b"%d" % number) for number in range(10)))
    got = [
        response.message.body
        for one in open_ones
        async for response in one
        if response.HasField("message")
    ]
    assert sorted(got) == [b"%d" % number for number in range(10)]


@contract(quotas=Quotas(client=Quota(calls=1, messages_per_s=1)))
async def test_over_quota_keeps_the_handle(server: Backend) -> None:
    """ChangeInvisibleDuration that is refused echoes the handle it came with."""
    await server.raw.send(message())
    got = await server.raw.receive(metadata=(("x-mq-client-id", "t2"),))
    answer = await server.raw.change(got.messages[0], 30)
    assert answer.status.code == pb.TOO_MANY_REQUESTS
    assert answer.receipt_handle == got.messages[0].system_properties.receipt_handle


@contract()
async def test_statement_100_pings_without_calls_do_no_harm(server: Backend) -> None:
    """However often a client pings on a connection without calls, every ping is answered and the
    connection is not asked to go away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
    for number in range(50):
        writer.write(b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + number.to_bytes(8, "big"))
    answered = 0
    while answered < 50:
        head = await asyncio.wait_for(reader.readexactly(9), 10)
        data = await reader.readexactly(int.from_bytes(head[:3], "big"))
        assert head[3] != GO_AWAY, data
        if head[3] == PING and head[4] & 1:
            assert int.from_bytes(data, "big") == answered
            answered += 1
    writer.close()
    await writer.wait_closed()


@contract(authentication=True, quotas=Quotas(client=Quota(messages_per_s=1000)))
async def test_statement_100_a_route_among_five_hundred_polls(server: Backend) -> None:
    """With the gate closed as well, five hundred open Receives do not keep a QueryRoute waiting."""
    server.user("sub", "secret of sub", "subscribe:topic:T", "subscribe:group:*")
    keys = signed("sub", "secret of sub")
    polls = [
        server.raw.stream(receive_request(polling=20), metadata=keys, timeout=60)
        for _ in range(500)
    ]
    await server.until_polls(500)
    assert (
        await server.raw.unary("QueryRoute", ROUTE, metadata=keys, timeout=5)
    ).status.code == pb.OK
    for poll in polls:
        poll.cancel()
    await server.until_polls(0)


@contract()
async def test_calls_of_a_crowd_wait_and_are_not_cancelled(server: Backend) -> None:
    """More calls at once than the loop comes to wait for it; gRPC by itself cancels calls of
    anybody from the thousandth on."""
    calls = [server.raw.unary("QueryRoute", ROUTE, timeout=60) for _ in range(3500)]
    for call in calls:
        call.add_done_callback(lambda _: None)
    # All of them reach the server while its loop is busy elsewhere: with this.
    await asyncio.sleep(0)
    threading.Event().wait(0.5)
    codes = {(await call).status.code for call in calls}
    assert codes == {pb.OK}
