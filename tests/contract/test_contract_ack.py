"""Acknowledging, changing and renewing leases: statements 59–66 and 68–72 of the contract's
checklist, raw, on virtual time."""

from __future__ import annotations

import asyncio
import base64

from ledgermq.node.broker.calls.consumer_calls import Handle
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.runtime.config_sections import Delivery
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import SECRET, Backend, ack_request, contract, message, receive_request
from tests.contract.test_contract_telemetry import consumer, say

OTHER = (("x-mq-client-id", "t2"),)


async def one(server: Backend, **options: object) -> pb.Message:
    """Send a message and lease it."""
    await server.raw.send(message())
    (got,) = (await server.raw.receive(**options)).messages  # type: ignore[arg-type]
    return got


@contract()
async def test_statement_059_an_acknowledged_message_is_gone(server: Backend) -> None:
    """After the acknowledgement nothing is in flight and time brings nothing back."""
    got = await one(server)
    assert await server.raw.ack(got) == pb.OK
    assert server.engine.in_flight() == 0
    server.pass_time(13 * 3600)
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_statement_059_a_repeated_acknowledgement_is_confirmed_again(server: Backend) -> None:
    """Through any node, twice in one call, after the lease would be over and at the next leader:
    the same lease is OK again."""
    await server.raw.send(message(b"a"), message(b"b"))
    a, b = (await server.raw.receive(invisible=10)).messages
    assert await server.raw.ack(a) == pb.OK
    for raw in (server.raw, server.raw2):
        assert await raw.ack(a) == pb.OK
    response = await server.raw.unary("AckMessage", ack_request([b, b, a]))
    assert [entry.status.code for entry in response.entries] == [
        pb.OK
    ] * 3 and response.status.code == pb.OK
    server.pass_time(11)
    server.engine.follow("g1", None)
    server.engine.lead("g1", 20)
    server.forwarder.changed()
    assert await server.raw.ack(a) == pb.OK and await server.raw.ack(b) == pb.OK
    assert (await server.raw.change(a, 5)).status.code == pb.INVALID_RECEIPT_HANDLE
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_statement_059_an_acknowledgement_under_way_goes_on_at_the_next_leader(
    server: Backend,
) -> None:
    """After the loss of the leader it is unknown whether the acknowledgement counted; the node
    repeats it at the next leader, and the client gets OK."""
    for raw in (server.raw, server.raw2):
        got = await one(server)
        replicator = server.engine.replicators["g1"]
        replicator.commit_at_once = False
        end = replicator.log.end_index
        answer = asyncio.ensure_future(raw.ack(got))
        await server.until(lambda end=end, log=replicator.log: log.end_index > end)  # type: ignore[misc]
        server.engine.follow("g1", None)
        replicator.commit_at_once = True
        server.engine.lead("g1", replicator.term + 1)
        server.forwarder.changed()
        server.forwarder2.changed()
        assert await answer == pb.OK
        assert server.engine.in_flight() == 0


@contract()
async def test_statement_060_results_by_entry(server: Backend) -> None:
    """Every entry has its id, handle and status; outside is the common code, or 30000."""
    await server.raw.send(*(message(b"%d" % i) for i in range(4)))
    leased = (await server.raw.receive()).messages
    response = await server.raw.unary("AckMessage", ack_request(leased[:2]))
    assert response.status.code == pb.OK
    for entry, m in zip(response.entries, leased[:2], strict=True):
        assert entry.message_id == m.system_properties.message_id
        assert entry.receipt_handle == m.system_properties.receipt_handle
        assert entry.status.code == pb.OK
    request = ack_request(leased[2:])
    request.entries[1].receipt_handle = "nonsense"
    response = await server.raw.unary("AckMessage", request)
    assert response.status.code == pb.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [pb.OK, pb.INVALID_RECEIPT_HANDLE]
    assert server.engine.in_flight() == 1


@contract()
async def test_statement_061_acknowledging_too_late(server: Backend) -> None:
    """After the lease the handle is 40013, whether the message was received again or not; the
    message is redelivered."""
    got = await one(server, invisible=10)
    server.pass_time(9.999)
    stranger = message()
    stranger.CopyFrom(got)
    server.pass_time(0.001)
    assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE
    (again,) = (await server.raw.receive(metadata=OTHER)).messages
    assert again.system_properties.delivery_attempt == 2
    assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE
    assert await server.raw.ack(again) == pb.OK
    assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE


@contract()
async def test_statement_062_invalid_handles_are_refused(server: Backend) -> None:
    """Random, altered, foreign and forged handles are 40013; no entry at all is an error code."""
    got = await one(server)
    handle = got.system_properties.receipt_handle
    foreign = Handles(b"another secret of some length...").make("g1", Handle("G", "T", 0, 0, 1, 1))
    no_group = Handles(SECRET).make("g9", Handle("G", "T", 0, 0, 1, 1))
    decoded = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
    raised = decoded[:-1] + b"9"
    altered = [handle[:-1] + other for other in "AQgw-_9" if other != handle[-1]]
    bad = [
        "",
        "x",
        "ä",
        handle + "=",
        handle + "A",
        handle[:-4],
        handle.swapcase(),
        foreign,
        "A" * 5000,
        *altered,
    ]
    bad += [base64.urlsafe_b64encode(raised).decode().rstrip("=")]
    for text in bad:
        got.system_properties.receipt_handle = text
        assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE, text
        changed = await server.raw.change(got, 5, handle=text or "?")
        assert changed.status.code == pb.INVALID_RECEIPT_HANDLE, text
    got.system_properties.receipt_handle = no_group
    response = await server.raw.unary("AckMessage", ack_request([got]), timeout=0.5)
    assert response.status.code not in (pb.OK, pb.CODE_UNSPECIFIED)
    got.system_properties.receipt_handle = handle
    assert await server.raw.ack(got, group="other") == pb.INVALID_RECEIPT_HANDLE
    elsewhere = ack_request([got])
    elsewhere.topic.name = "F"
    assert (
        await server.raw.unary("AckMessage", elsewhere)
    ).status.code == pb.INVALID_RECEIPT_HANDLE
    empty = pb.AckMessageRequest(group=pb.Resource(name="G"), topic=pb.Resource(name="T"))
    assert (await server.raw.unary("AckMessage", empty)).status.code == pb.BAD_REQUEST
    empty.group.name = "a b"
    assert (await server.raw.unary("AckMessage", empty)).status.code == pb.ILLEGAL_CONSUMER_GROUP
    empty.topic.name = "a b"
    assert (await server.raw.unary("AckMessage", empty)).status.code == pb.ILLEGAL_TOPIC
    assert await server.raw.ack(got) == pb.OK


@contract()
async def test_statement_063_a_change_replaces_the_handle(server: Backend) -> None:
    """The new handle works until the new time, the old one not at all."""
    got = await one(server, invisible=10)
    old = got.system_properties.receipt_handle
    response = await server.raw.change(got, 15)
    assert response.status.code == pb.OK and response.receipt_handle not in ("", old)
    assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE
    refused = await server.raw.change(got, 15)
    assert (refused.status.code, refused.receipt_handle) == (pb.INVALID_RECEIPT_HANDLE, old)
    assert refused.status.message.startswith(
        "INVALID_RECEIPT_HANDLE: the lease of this receipt handle"
    )
    server.pass_time(14.999)
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND
    got.system_properties.receipt_handle = response.receipt_handle
    assert await server.raw.ack(got) == pb.OK and await server.raw.ack(got) == pb.OK
    got.system_properties.receipt_handle = old
    assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE


@contract()
async def test_statement_064_invisible_time_zero_is_immediate_and_bounds_are_checked(
    server: Backend,
) -> None:
    """0 is visible at once with the next attempt; less than 0 and more than 12 h are 40011."""
    got = await one(server)
    for seconds in (-1, -0.001, 13 * 3600, 12 * 3600 + 0.001):
        status = (await server.raw.change(got, seconds)).status
        assert status.code == pb.ILLEGAL_INVISIBLE_TIME, seconds
        assert (
            "the invisibleTime is too "
            + ("small. min is 0" if seconds < 0 else "large. max is 43200000")
            in status.message
        )
    without = pb.ChangeInvisibleDurationRequest(group=pb.Resource(name="G"), topic=got.topic)
    without.receipt_handle = got.system_properties.receipt_handle
    assert (
        await server.raw.unary("ChangeInvisibleDuration", without)
    ).status.code == pb.ILLEGAL_INVISIBLE_TIME
    assert (await server.raw.change(got, 0)).status.code == pb.OK
    (again,) = (await server.raw.receive()).messages
    assert again.system_properties.delivery_attempt == 2


@contract()
async def test_statement_065_attempts_count_deliveries(server: Backend) -> None:
    """A change is no delivery."""
    got = await one(server)
    for attempt in range(2, 6):
        for seconds in (10, 20, 0):
            response = await server.raw.change(got, seconds)
            assert response.status.code == pb.OK
            got.system_properties.receipt_handle = response.receipt_handle
        (got,) = (await server.raw.receive()).messages
        assert got.system_properties.delivery_attempt == attempt


@contract()
async def test_statement_069_070_a_failed_message_comes_after_its_step(server: Backend) -> None:
    """A push consumer asks for the first step of its Settings: the message comes then, with attempt
    2."""
    step = (
        (await say(server.raw.telemetry(), consumer()))
        .settings.backoff_policy.customized_backoff.next[0]
        .ToSeconds()
    )
    got = await one(server, invisible=None)
    assert (await server.raw.change(got, step)).status.code == pb.OK
    server.pass_time(0.999)
    assert (await server.raw.receive(invisible=None)).status.code == pb.MESSAGE_NOT_FOUND
    server.pass_time(0.001)
    (again,) = (await server.raw.receive(invisible=None)).messages
    assert again.system_properties.delivery_attempt == 2


@contract()
async def test_statement_071_a_long_listener_keeps_its_lease(server: Backend) -> None:
    """While any call of the client comes, the lease renews itself and the original handle stays
    good."""
    got = await one(server, invisible=None)
    assert not got.system_properties.HasField("invisible_duration")
    for _ in range(9):
        server.pass_time(60)
        await server.raw.unary("Heartbeat", pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER))
        server.flush_signs()
        assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
    assert await server.raw.ack(got) == pb.OK


@contract(delivery=Delivery(auto_renew_max_ms=600_000))
async def test_statement_071_renewal_ends_at_the_cap(server: Backend) -> None:
    """Automatic renewal of a lease ends."""
    got = await one(server, invisible=None)
    for _ in range(10):
        server.pass_time(59.9)
        await server.raw.unary("Heartbeat", pb.HeartbeatRequest())
        server.flush_signs()
    assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
    server.pass_time(1)
    (again,) = (await server.raw.receive(metadata=OTHER)).messages
    assert again.system_properties.delivery_attempt == 2
    assert await server.raw.ack(got) == pb.INVALID_RECEIPT_HANDLE


@contract()
async def test_statement_072_a_killed_consumer(server: Backend) -> None:
    """Its messages come to another member when it was silent for the liveness limit, not
    earlier."""
    await one(server, invisible=None)
    server.flush_signs()
    server.pass_time(64.999)
    assert (
        await server.raw.receive(invisible=None, metadata=OTHER)
    ).status.code == pb.MESSAGE_NOT_FOUND
    server.pass_time(0.001)
    (again,) = (await server.raw.receive(invisible=None, metadata=OTHER)).messages
    assert again.system_properties.delivery_attempt == 2


@contract()
async def test_statement_072_a_clean_goodbye(server: Backend) -> None:
    """After NotifyClientTermination, through any node, the messages are visible one second later,
    not earlier."""
    for raw in (server.raw, server.raw2):
        await one(server, invisible=None)
        await raw.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        server.engine.turn()
        server.pass_time(0.999)
        assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
        server.pass_time(0.001)
        (again,) = (await server.raw.receive(metadata=OTHER)).messages
        assert await server.raw.ack(again) == pb.OK


@contract()
async def test_statement_068_one_delivery_each(server: Backend) -> None:
    """A hundred messages consumed and acknowledged leave nothing to deliver, ever."""
    await server.raw.send(*(message(b"%d" % i) for i in range(100)))
    seen: list[int] = []
    while got := (await server.raw.receive(invisible=None)).messages:
        seen += [int(m.body) for m in got]
        assert (await server.raw.unary("AckMessage", ack_request(got))).status.code == pb.OK
    assert sorted(seen) == list(range(100))
    assert server.engine.in_flight() == 0
    server.pass_time(24 * 3600)
    assert (await server.raw.receive()).status.code == pb.MESSAGE_NOT_FOUND


@contract()
async def test_handles_survive_a_change_of_leaders(server: Backend) -> None:
    """A lease and its handle mean the same to the next leader."""
    got = await one(server, invisible=30)
    server.engine.follow("g1", None)
    server.engine.lead("g1", 20)
    server.forwarder.changed()
    assert (await server.raw.receive(metadata=OTHER)).status.code == pb.MESSAGE_NOT_FOUND
    assert await server.raw.ack(got) == pb.OK
    request = receive_request()
    server.pass_time(60)
    assert (
        await server.raw.collect(server.raw.stream(request))
    ).status.code == pb.MESSAGE_NOT_FOUND
