"""Route, naming and metadata: statements 1–10, 67, 82 and 97 of the contract's checklist, raw."""

from __future__ import annotations

import grpc

from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import Backend, contract, message, receive_request


def route_request(
    topic: str = "T", namespace: str = "", host: str = "10.1.2.3", port: int = 8081
) -> pb.QueryRouteRequest:
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=port)])
    return pb.QueryRouteRequest(
        topic=pb.Resource(name=topic, resource_namespace=namespace), endpoints=endpoints
    )


@contract()
async def test_statement_001_route_and_receipt(server: Backend) -> None:
    """The route has usable queues, and a send returns the id that was sent."""
    response = await server.raw.unary("QueryRoute", route_request())
    assert response.status.code == pb.OK
    assert len(response.message_queues) == 4
    for queue in response.message_queues:
        assert (queue.broker.id, queue.permission, list(queue.accept_message_types)) == (
            0,
            pb.READ_WRITE,
            [pb.NORMAL],
        )
        assert queue.broker.endpoints.addresses
    sent = message()
    receipt = await server.raw.send(sent)
    assert receipt.status.code == pb.OK
    assert receipt.entries[0].message_id == sent.system_properties.message_id


@contract()
async def test_statement_002_endpoints_are_echoed(server: Backend) -> None:
    """Whatever address the client used comes back; without one it gets the node's own."""
    for scheme, host, port in (
        (pb.IPv4, "127.0.0.1", 8081),
        (pb.DOMAIN_NAME, "mq.example", 443),
        (pb.IPv6, "::1", 9),
    ):
        request = pb.QueryRouteRequest(topic=pb.Resource(name="T"))
        request.endpoints.scheme = scheme
        request.endpoints.addresses.add(host=host, port=port)
        response = await server.raw.unary("QueryRoute", request)
        assert {
            queue.broker.endpoints.SerializeToString() for queue in response.message_queues
        } == {request.endpoints.SerializeToString()}
    response = await server.raw.unary(
        "QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="T"))
    )
    own = response.message_queues[0].broker.endpoints
    assert (own.scheme, own.addresses[0].host, own.addresses[0].port) == (
        pb.IPv4,
        "127.0.0.1",
        8081,
    )


@contract()
async def test_statement_002_several_addresses_and_bad_ones(server: Backend) -> None:
    """A list of addresses is echoed as a list; an invalid address is 40001."""
    request = pb.QueryRouteRequest(topic=pb.Resource(name="T"))
    request.endpoints.scheme = pb.IPv4
    for port in (1, 2, 3):
        request.endpoints.addresses.add(host="127.0.0.1", port=port)
    response = await server.raw.unary("QueryRoute", request)
    assert [address.port for address in response.message_queues[0].broker.endpoints.addresses] == [
        1,
        2,
        3,
    ]
    for host, port in (("", 1), ("h", 0), ("h", 65536)):
        response = await server.raw.unary("QueryRoute", route_request(host=host, port=port))
        assert response.status.code == pb.ILLEGAL_ACCESS_POINT
    request.endpoints.scheme = pb.DOMAIN_NAME
    assert (await server.raw.unary("QueryRoute", request)).status.code == pb.ILLEGAL_ACCESS_POINT


@contract()
async def test_statement_003_unknown_topic(server: Backend) -> None:
    """An unknown topic is 40402 in the body, without queues, after one look through a barrier."""
    response = await server.raw.unary("QueryRoute", route_request("nowhere"))
    assert (response.status.code, len(response.message_queues)) == (pb.TOPIC_NOT_FOUND, 0)
    assert server.controller.barriers == 1
    assert (await server.raw.send(message(topic="nowhere"))).status.code == pb.TOPIC_NOT_FOUND
    assert server.controller.barriers == 2
    server.controller.behind = True
    await server.topic("late")
    assert (await server.raw.unary("QueryRoute", route_request("late"))).status.code == pb.OK


@contract()
async def test_statement_005_illegal_topic_names(server: Backend) -> None:
    """Names that break the rules are 40002 from route and send."""
    for name in ("", "   ", "a" * 128, "a.b", "a b", "TBW102", "rmq_sys_x"):
        assert (
            await server.raw.unary("QueryRoute", route_request(name))
        ).status.code == pb.ILLEGAL_TOPIC, name
        assert (await server.raw.send(message(topic=name))).status.code == pb.ILLEGAL_TOPIC, name
    assert (
        await server.raw.unary("QueryRoute", route_request("a" * 127))
    ).status.code == pb.TOPIC_NOT_FOUND


@contract()
async def test_statement_007_topic_is_echoed(server: Backend) -> None:
    """Routes and assignments carry the request's resource, namespace included."""
    await server.topic("T", namespace="ns")
    for namespace in ("", "ns"):
        request = route_request(namespace=namespace)
        response = await server.raw.unary("QueryRoute", request)
        assert {queue.topic.SerializeToString() for queue in response.message_queues} == {
            request.topic.SerializeToString()
        }
        wanted = pb.QueryAssignmentRequest(
            topic=request.topic, group=pb.Resource(name="G"), endpoints=request.endpoints
        )
        assigned = await server.raw.unary("QueryAssignment", wanted)
        assert {a.message_queue.topic.SerializeToString() for a in assigned.assignments} == {
            request.topic.SerializeToString()
        }
    # The header names the namespace for clients that leave the field empty; the resource comes back
    # as it was sent.
    response = await server.raw.unary(
        "QueryRoute", route_request(), metadata=(("x-mq-client-id", "t1"), ("x-mq-namespace", "ns"))
    )
    assert (
        response.status.code == pb.OK and response.message_queues[0].topic.resource_namespace == ""
    )


@contract(groups=("g1", "g2"))
async def test_statement_008_queue_ids(server: Backend) -> None:
    """Every broker's queue ids are 0…n−1, names and ids stay the same between calls."""
    await server.topic("five", queues=5)
    first = await server.raw.unary("QueryRoute", route_request("five"))
    second = await server.raw.unary("QueryRoute", route_request("five"))
    assert first == second
    ids: dict[str, list[int]] = {}
    for queue in first.message_queues:
        ids.setdefault(queue.broker.name, []).append(queue.id)
    assert sorted(ids) == ["g1", "g2"] and sorted(map(len, ids.values())) == [2, 3]
    assert all(found == list(range(len(found))) for found in ids.values())


UNARY = (
    ("QueryRoute", pb.QueryRouteRequest()),
    ("QueryAssignment", pb.QueryAssignmentRequest()),
    ("Heartbeat", pb.HeartbeatRequest()),
    ("NotifyClientTermination", pb.NotifyClientTerminationRequest()),
    ("SendMessage", pb.SendMessageRequest()),
    ("AckMessage", pb.AckMessageRequest()),
    ("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest()),
    ("EndTransaction", pb.EndTransactionRequest()),
)


@contract()
async def test_statement_009_client_id_required(server: Backend) -> None:
    """Without a client id every method says 40017 in the body; Telemetry says it on the stream and
    ends."""
    for metadata in ((), (("x-mq-client-id", "  "),)):
        for method, request in UNARY:
            response = await server.raw.unary(method, request, metadata=metadata)
            assert response.status.code == pb.CLIENT_ID_REQUIRED, method
        got = await server.raw.collect(server.raw.stream(receive_request(), metadata=metadata))
        assert (got.status.code, got.code) == (pb.CLIENT_ID_REQUIRED, grpc.StatusCode.OK)
        stream = server.raw.telemetry(metadata=metadata)
        commands = [command async for command in stream]
        assert [(command.status.code, command.WhichOneof("command")) for command in commands] == [
            (pb.CLIENT_ID_REQUIRED, None)
        ]
        assert await stream.code() == grpc.StatusCode.OK


@contract()
async def test_statement_010_unknown_headers(server: Backend) -> None:
    """Headers of any client and any spelling are accepted."""
    metadata = (
        ("x-mq-client-id", "t1"),
        ("x-mq-language", "HTTP"),
        ("x-mq-protocol", "GRPC_V2"),
        ("x-mq-date-time", "2026-01-02T03:04:05.678+01:00"),
        ("x-mq-unheard-of", "~"),
        ("x-trace-bin", b"\x00\xff"),  # type: ignore[list-item]
    )
    assert (
        await server.raw.unary("QueryRoute", route_request(), metadata=metadata)
    ).status.code == pb.OK
    assert (await server.raw.send(message(), metadata=metadata)).status.code == pb.OK


@contract(groups=("g1", "g2"))
async def test_statement_067_assignment(server: Backend) -> None:
    """An ordinary group gets one assignment a broker, for all its queues."""
    endpoints = route_request().endpoints

    async def ask(topic: str, group: str = "G") -> pb.QueryAssignmentResponse:
        request = pb.QueryAssignmentRequest(
            topic=pb.Resource(name=topic), group=pb.Resource(name=group), endpoints=endpoints
        )
        response: pb.QueryAssignmentResponse = await server.raw.unary("QueryAssignment", request)
        return response

    response = await ask("T")
    assert response.status.code == pb.OK
    queues = [assignment.message_queue for assignment in response.assignments]
    assert [(queue.broker.name, queue.broker.id, queue.id) for queue in queues] == [
        ("g1", 0, -1),
        ("g2", 0, -1),
    ]
    assert all(
        queue.broker.endpoints == endpoints and queue.permission == pb.READ_WRITE
        for queue in queues
    )
    assert (await ask("nowhere")).status.code == pb.TOPIC_NOT_FOUND
    assert (await ask("a b")).status.code == pb.ILLEGAL_TOPIC
    assert (await ask("T", "a b")).status.code == pb.ILLEGAL_CONSUMER_GROUP
    await server.topic("sealed", permission="w")
    assert (await ask("sealed")).status.code == pb.FORBIDDEN


@contract()
async def test_statement_097_authorization_is_ignored(server: Backend) -> None:
    """With authentication off, a header with empty credentials does no harm."""
    value = "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00"
    metadata = (("x-mq-client-id", "t1"), ("authorization", value))
    assert (await server.raw.send(message(), metadata=metadata)).status.code == pb.OK
