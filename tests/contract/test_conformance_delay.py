"""Delayed messages and their recall: statements 83 to 86 of the contract's checklist, raw; and
priority, statement 91."""

from __future__ import annotations

from ledgermq.node.broker.parts.timers.timers import slot_of
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import TIMER_TOPIC
from tests.contract.backend import Backend, contract, message, receive_request

KINDS = {"T": "normal", "D": "delay", "M": "mixed", "P": "priority"}


def now_ms(server: Backend) -> int:
    return server.clock.now_ms()


def delayed(
    server: Backend, after_ms: int, body: bytes = b"later", topic: str = "D", **system: object
) -> pb.Message:
    made = message(body, topic=topic, message_type=pb.DELAY, **system)
    made.system_properties.delivery_timestamp.FromMilliseconds(now_ms(server) + after_ms)
    return made


async def recall(
    server: Backend, handle: str, topic: str = "D", *, elsewhere: bool = False
) -> pb.RecallMessageResponse:
    request = pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)
    response: pb.RecallMessageResponse = await (server.raw2 if elsewhere else server.raw).unary(
        "RecallMessage", request
    )
    return response


@contract(KINDS)
async def test_statement_083_delivered_at_its_time(server: Backend) -> None:
    """Invisible until then; afterwards with type and time as sent, and stored then. Through either
    node, in a mixed topic too."""
    for raw, topic in ((server.raw, "D"), (server.raw2, "D"), (server.raw, "M")):
        sent = delayed(server, 5_000, topic=topic, tag="a", keys=["k"])
        due = now_ms(server) + 5_000
        (entry,) = (await raw.send(sent)).entries
        assert (entry.status.code, entry.message_id) == (pb.OK, sent.system_properties.message_id)
        assert entry.recall_handle and entry.offset == 0 and entry.transaction_id == ""
        server.pass_time(4.999)
        assert (await raw.receive(topic)).messages == []
        server.pass_time(0.001)
        (got,) = (await raw.receive(topic)).messages
        system = got.system_properties
        assert (got.body, system.tag, list(system.keys)) == (
            b"later",
            "a",
            ["k"],
        ) and not got.user_properties
        assert system.message_type == pb.DELAY and system.delivery_timestamp.ToMilliseconds() == due
        assert due <= system.store_timestamp.ToMilliseconds() <= due + 1000


@contract(KINDS)
async def test_statement_083_in_the_past_is_at_once(server: Backend) -> None:
    """An ordinary message with its time kept; there is nothing to recall."""
    for after_ms in (0, -1, -86_400_000 * 400):
        sent = delayed(server, after_ms)
        (entry,) = (await server.raw.send(sent)).entries
        assert (entry.status.code, entry.recall_handle) == (pb.OK, "")
        (got,) = (await server.raw.receive("D")).messages
        assert got.system_properties.message_type == pb.DELAY
        assert got.system_properties.delivery_timestamp == sent.system_properties.delivery_timestamp


@contract(KINDS)
async def test_statement_083_a_waiting_receive_gets_it(server: Backend) -> None:
    """A long poll that began before the time ends with the message."""
    await server.raw.send(delayed(server, 2_000))
    call = server.raw.stream(receive_request("D", polling=10))
    await server.until_polls(1)
    server.pass_time(2)
    assert (await server.raw.collect(call)).bodies == [b"later"]


@contract(KINDS)
async def test_statement_084_too_far_ahead(server: Backend) -> None:
    """A day is the limit; milliseconds given as seconds are beyond it and break nothing."""
    assert (await server.raw.send(delayed(server, 86_400_000))).status.code == pb.OK
    assert (
        await server.raw.send(delayed(server, 86_401_000))
    ).status.code == pb.ILLEGAL_DELIVERY_TIME
    for seconds in (1_790_000_000_000, 1 << 62, 253_402_300_800):
        sent = delayed(server, 0)
        sent.system_properties.delivery_timestamp.seconds = seconds
        response = await server.raw.send(sent)
        assert (response.status.code, len(response.entries)) == (pb.ILLEGAL_DELIVERY_TIME, 0)
    sent.system_properties.delivery_timestamp.seconds = -(1 << 62)
    assert (await server.raw.send(sent)).status.code == pb.OK


@contract(KINDS, limits=Limits(max_delay_ms=60 * 86_400_000))
async def test_statement_084_the_limit_is_configured(server: Backend) -> None:
    """Far beyond what the wheel of slots reaches."""
    (entry,) = (await server.raw.send(delayed(server, 59 * 86_400_000))).entries
    assert entry.status.code == pb.OK and entry.recall_handle
    for _ in range(59):
        server.pass_time(86_399)
        while server.engine.groups["g1"].leader.timer_firing.ready():
            server.pass_time(0)
    assert (await server.raw.receive("D")).messages == []
    for _ in range(5):
        server.pass_time(60)
    assert (await server.raw.receive("D")).bodies == [b"later"]


@contract(KINDS)
async def test_statement_085_recall(server: Backend) -> None:
    """The recalled message never comes, the other does; recalled twice, or delivered, it is not
    found. Any node takes the call."""
    first, second = delayed(server, 3_000, b"1"), delayed(server, 3_000, b"2")
    handles = [(await server.raw.send(sent)).entries[0].recall_handle for sent in (first, second)]
    answer = await recall(server, handles[0], elsewhere=True)
    assert (answer.status.code, answer.message_id) == (pb.OK, first.system_properties.message_id)
    assert (await recall(server, handles[0])).status.code == pb.NOT_FOUND
    server.pass_time(3)
    assert (await server.raw.receive("D")).bodies == [b"2"]
    for handle in handles:
        for elsewhere in (False, True):
            assert (await recall(server, handle, elsewhere=elsewhere)).status.code == pb.NOT_FOUND
    server.pass_time(3600)
    assert (await server.raw.receive("D", "other")).bodies == [b"2"]


@contract(KINDS)
async def test_statement_085_a_normal_message_has_no_recall_handle(server: Backend) -> None:
    """Not in a normal topic and not in a mixed one."""
    for topic in ("T", "M"):
        assert (await server.raw.send(message(topic=topic))).entries[0].recall_handle == ""


@contract(KINDS)
async def test_statement_086_garbage_handles(server: Backend) -> None:
    """40000 for invalid or changed handles and those of another topic; 40014 if the topic does not
    support recall, 40402 for an unknown topic."""
    handle = (await server.raw.send(delayed(server, 9_000))).entries[0].recall_handle
    changed = handle[:-1] + ("A" if handle[-1] != "A" else "B")
    for garbage in ("", "x", "ü", handle[1:], changed, handle + "A", "A" * 3000):
        for elsewhere in (False, True):
            answer = await recall(server, garbage, elsewhere=elsewhere)
            assert (answer.status.code, answer.message_id) == (pb.BAD_REQUEST, ""), garbage
    assert (await recall(server, handle, "M")).status.code == pb.BAD_REQUEST
    for topic in ("T", "P"):
        assert (
            await recall(server, handle, topic)
        ).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert (await recall(server, handle, "nowhere")).status.code == pb.TOPIC_NOT_FOUND


@contract(KINDS)
async def test_delayed_messages_of_one_request_have_their_own_handles(server: Backend) -> None:
    """Due ones among them are ordinary; each handle recalls its own message."""
    sent = [delayed(server, 2_000, b"a"), delayed(server, -1, b"b"), delayed(server, 1_000, b"c")]
    response = await server.raw.send(*sent)
    assert [bool(entry.recall_handle) for entry in response.entries] == [True, False, True]
    assert (await recall(server, response.entries[2].recall_handle)).message_id == sent[
        2
    ].system_properties.message_id
    server.pass_time(2)
    assert sorted((await server.raw.receive("D")).bodies) == [b"a", b"b"]


@contract(KINDS)
async def test_timer_topic_is_refused_by_every_method(server: Backend) -> None:
    """It is reserved, by every method, whatever waits there."""
    await server.raw.send(delayed(server, 1_000))
    due = now_ms(server) + 1_000
    assert server.engine.groups["g1"].machine.end(TIMER_TOPIC, slot_of(due)) == 1
    assert (await server.raw.send(message(topic=TIMER_TOPIC))).status.code == pb.ILLEGAL_TOPIC
    assert (await server.raw.receive(TIMER_TOPIC)).status.code == pb.ILLEGAL_TOPIC
    assert (
        await server.raw.unary(
            "QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=TIMER_TOPIC))
        )
    ).status.code == pb.ILLEGAL_TOPIC


@contract({})
async def test_statement_091_the_highest_priority_first(server: Backend) -> None:
    """Priorities 0 to 7 on eight queues come as 7 … 0, with the priority and type that were sent;
    100 is the highest."""
    await server.topic("P", "priority", queues=8)
    for priority in (3, 0, 7, 5, 1, 6, 2, 4):
        raw = server.raw if priority % 2 else server.raw2
        assert (
            await raw.send(message(b"%d" % priority, topic="P", priority=priority))
        ).status.code == pb.OK
    got = [(await server.raw.receive("P", batch=1)).messages[0] for _ in range(8)]
    assert [m.body for m in got] == [b"7", b"6", b"5", b"4", b"3", b"2", b"1", b"0"]
    assert [m.system_properties.priority for m in got] == list(range(7, -1, -1))
    assert {m.system_properties.message_type for m in got} == {pb.PRIORITY}
    await server.raw.send(message(b"7", topic="P", priority=7))
    await server.raw.send(message(b"100", topic="P", priority=100))
    got = (await server.raw.receive("P")).messages
    assert [(m.body, m.system_properties.queue_id) for m in got] == [(b"7", 7), (b"100", 7)]


@contract({})
async def test_statement_091_messages_visible_again_keep_their_rank(server: Backend) -> None:
    """A redelivered message of higher priority comes before an undelivered one of lower
    priority."""
    await server.topic("P", "priority", queues=4)
    for priority in (0, 3):
        await server.raw.send(message(b"%d" % priority, topic="P", priority=priority))
    (high,) = (await server.raw.receive("P", batch=1, invisible=10)).messages
    server.pass_time(11)
    for _ in range(2):
        (again,) = (await server.raw.receive("P", batch=1, invisible=10)).messages
        assert again.body == high.body == b"3"
        server.pass_time(11)


@contract(KINDS)
async def test_statement_036_only_delay_and_mixed_topics_take_delayed_messages(
    server: Backend,
) -> None:
    """Elsewhere a delivery time is a conflict with the topic's kind."""
    for topic, code in (
        ("T", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("P", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("M", pb.OK),
    ):
        assert (await server.raw.send(delayed(server, 1_000, topic=topic))).status.code == code
