"""PullMessage, UpdateOffset, GetOffset and QueryOffset (§2.12), raw, on virtual time, at the leader
and through another node."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import CLIENT_ID, EPOCH_MS, SERVICE, Backend, Raw, contract, message


def queue(topic: str = "T", number: int = 0, broker: str = "g1") -> pb.MessageQueue:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=number, broker=pb.Broker(name=broker))


class Pulled:
    """What came on the stream of a PullMessage."""

    def __init__(self, responses: list[pb.PullMessageResponse]) -> None:
        self.contents = [str(response.WhichOneof("content")) for response in responses]
        self.code = next(r.status.code for r in responses if r.HasField("status"))
        self.text = next(r.status.message for r in responses if r.HasField("status"))
        self.messages = [r.message for r in responses if r.HasField("message")]
        self.next = next((r.next_offset for r in responses if r.HasField("next_offset")), None)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def pull(
    raw: Raw,
    offset: int,
    where: pb.MessageQueue | None = None,
    *,
    batch: int = 32,
    polling: float = 0,
    expression: str = "*",
    timeout: float | None = 10,
    group: str = "G",
) -> Pulled:
    request = pb.PullMessageRequest(
        group=pb.Resource(name=group),
        message_queue=where or queue(),
        offset=offset,
        batch_size=batch,
    )
    request.filter_expression.type = pb.TAG
    request.filter_expression.expression = expression
    request.long_polling_timeout.FromMilliseconds(round(polling * 1000))
    stub = raw.channel.unary_stream(
        SERVICE + "PullMessage", response_deserializer=pb.PullMessageResponse.FromString
    )
    return Pulled(
        [
            response
            async for response in stub(
                request.SerializeToString(), metadata=CLIENT_ID, timeout=timeout
            )
        ]
    )


async def update(
    raw: Raw, offset: int, where: pb.MessageQueue | None = None, group: str = "G"
) -> int:
    request = pb.UpdateOffsetRequest(
        group=pb.Resource(name=group), message_queue=where or queue(), offset=offset
    )
    return int((await raw.unary("UpdateOffset", request)).status.code)


async def stored(raw: Raw, where: pb.MessageQueue | None = None, group: str = "G") -> int | None:
    """The offset of the group; None when it has none."""
    response = await raw.unary(
        "GetOffset",
        pb.GetOffsetRequest(group=pb.Resource(name=group), message_queue=where or queue()),
    )
    if response.status.code == pb.OFFSET_NOT_FOUND:
        return None
    assert response.status.code == pb.OK, response.status
    return int(response.offset)


async def find(
    raw: Raw, policy: int, store_ms: int | None = None, where: pb.MessageQueue | None = None
) -> Any:
    request = pb.QueryOffsetRequest(message_queue=where or queue(), query_offset_policy=policy)  # type: ignore[arg-type]
    if store_ms is not None:
        request.timestamp.FromMilliseconds(store_ms)
    return await raw.unary("QueryOffset", request)


async def send_to_queue_0(server: Backend, *bodies: str, tags: str = "") -> None:
    """Four queues in turn: every fourth message is for queue 0, and each call is one turn."""
    for at, body in enumerate(bodies):
        tag = {"tag": tags[at]} if tags else {}
        for number in range(4):
            await server.raw.send(message(body.encode() if number == 0 else b"elsewhere", **tag))


def pulls(server: Backend) -> int:
    """How many pulls wait."""
    return int(server.engine.groups["g1"].statistics()["pulls_waiting"])


@contract()
async def test_a_pull_reads_in_order_without_a_lease(server: Backend) -> None:
    """Status, messages, next offset; no receipt handle and no lease; a repeated pull returns the
    same."""
    await send_to_queue_0(server, "a", "b", "c")
    for raw in (server.raw, server.raw2):
        got = await pull(raw, 0)
        assert got.contents == ["status", "message", "message", "message", "next_offset"]
        assert (got.code, got.bodies, got.next) == (pb.OK, [b"a", b"b", b"c"], 3)
        system = got.messages[1].system_properties
        assert (system.queue_id, system.queue_offset, system.HasField("receipt_handle")) == (
            0,
            1,
            False,
        )
        assert system.body_digest.type == pb.MD5 and system.message_type == pb.NORMAL
        assert (await pull(raw, 1, batch=1)).bodies == [b"b"]
    assert server.engine.in_flight() == 0


@contract()
async def test_an_empty_pull_tells_where_to_go_on(server: Backend) -> None:
    """MESSAGE_NOT_FOUND and the next offset, after the polling time and not before."""
    await send_to_queue_0(server, "a")
    got = await pull(server.raw, 1)
    assert (got.code, got.contents, got.next) == (
        pb.MESSAGE_NOT_FOUND,
        ["status", "next_offset"],
        1,
    )
    pending = asyncio.ensure_future(pull(server.raw, 1, polling=5))
    await server.until(lambda: pulls(server) == 1)
    server.pass_time(4.999)
    assert pulls(server) == 1
    server.pass_time(0.001)
    got = await pending
    assert (got.code, got.next) == (pb.MESSAGE_NOT_FOUND, 1)


@contract()
async def test_a_message_ends_a_waiting_pull(server: Backend) -> None:
    """It is handed out in the moment it is stored, on whichever node the pull waits; messages of
    other queues do not end it."""
    for raw in (server.raw, server.raw2):
        end = (await find(server.raw, pb.END)).offset
        pending = asyncio.ensure_future(pull(raw, end, polling=20, timeout=30))
        await server.until(lambda: pulls(server) == 1)
        await send_to_queue_0(server, "now")
        assert (await pending).bodies == [b"now"]


@contract()
async def test_a_filter_passes_over_messages_and_says_so(server: Backend) -> None:
    """Messages that do not match do not end the pull; the next offset is behind them."""
    await send_to_queue_0(server, "a", "b", "c", tags="xyx")
    got = await pull(server.raw, 0, expression="x")
    assert (got.bodies, got.next) == ([b"a", b"c"], 3)
    got = await pull(server.raw, 0, expression="y", batch=1)
    assert (got.bodies, got.next) == ([b"b"], 2)
    got = await pull(server.raw, 0, expression="z")
    assert (got.code, got.next) == (pb.MESSAGE_NOT_FOUND, 3)
    assert (await pull(server.raw, 0, expression="a||")).code == pb.MESSAGE_NOT_FOUND
    assert (await pull(server.raw, 0, expression="a|b")).code == pb.ILLEGAL_FILTER_EXPRESSION


@contract()
async def test_offsets_outside_of_the_queue_are_illegal(server: Backend) -> None:
    """Before its begin and behind its end; the end itself is where one waits."""
    await send_to_queue_0(server, "a")
    for raw in (server.raw, server.raw2):
        assert (await pull(raw, -1)).code == pb.ILLEGAL_OFFSET
        got = await pull(raw, 2)
        assert (got.code, got.contents) == (pb.ILLEGAL_OFFSET, ["status"])
        assert "holds 0 to 1" in got.text
        assert await update(raw, -1) == pb.ILLEGAL_OFFSET
        assert await update(raw, 2) == pb.ILLEGAL_OFFSET
    assert await stored(server.raw) is None


@contract()
async def test_names_and_queues_that_do_not_exist(server: Backend) -> None:
    """A topic, a broker, a queue: each with its code, from every method."""
    for where, code in (
        (queue("nowhere"), pb.TOPIC_NOT_FOUND),
        (queue("a.b"), pb.ILLEGAL_TOPIC),
        (queue(broker="g9"), pb.BAD_REQUEST),
        (queue(number=4), pb.BAD_REQUEST),
        (queue(number=-1), pb.BAD_REQUEST),
    ):
        assert (await pull(server.raw, 0, where)).code == code
        assert await update(server.raw, 0, where) == code
        assert (await find(server.raw, pb.END, where=where)).status.code == code
        request = pb.GetOffsetRequest(group=pb.Resource(name="G"), message_queue=where)
        assert (await server.raw.unary("GetOffset", request)).status.code == code
    assert (await pull(server.raw, 0, group="a b")).code == pb.ILLEGAL_CONSUMER_GROUP
    assert await update(server.raw, 0, group="") == pb.ILLEGAL_CONSUMER_GROUP
    assert (await find(server.raw, 7)).status.code == pb.BAD_REQUEST
    assert (await find(server.raw, pb.TIMESTAMP)).status.code == pb.BAD_REQUEST


@contract()
async def test_a_call_without_a_client_id(server: Backend) -> None:
    """Statement 9 for the four methods."""
    for method, request in (
        ("UpdateOffset", pb.UpdateOffsetRequest(message_queue=queue())),
        ("GetOffset", pb.GetOffsetRequest(message_queue=queue())),
        ("QueryOffset", pb.QueryOffsetRequest(message_queue=queue())),
    ):
        assert (
            await server.raw.unary(method, request, metadata=())
        ).status.code == pb.CLIENT_ID_REQUIRED
    stub = server.raw.channel.unary_stream(
        SERVICE + "PullMessage", response_deserializer=pb.PullMessageResponse.FromString
    )
    got = Pulled([response async for response in stub(b"", timeout=10)])
    assert got.code == pb.CLIENT_ID_REQUIRED
    got = Pulled([response async for response in stub(b"\xff", metadata=CLIENT_ID, timeout=10)])
    assert got.code == pb.BAD_REQUEST


@contract()
async def test_offsets_are_kept_per_group_and_queue(server: Backend) -> None:
    """What was stored is read, wherever one asks; it may also go back; another group and another
    queue have their own."""
    await send_to_queue_0(server, "a", "b", "c")
    assert await stored(server.raw2) is None
    assert await update(server.raw2, 3) == pb.OK
    assert await stored(server.raw) == 3
    assert await update(server.raw, 1) == pb.OK
    assert await stored(server.raw2) == 1
    assert await stored(server.raw, group="H") is None
    assert await stored(server.raw, queue(number=1)) is None
    assert await update(server.raw, 2, queue(number=1)) == pb.OK
    assert (await stored(server.raw, queue(number=1)), await stored(server.raw)) == (2, 1)


@contract()
async def test_where_a_queue_begins_ends_and_was(server: Backend) -> None:
    """BEGINNING, END, and the first message stored at or after a time; behind the last one it is
    the end."""
    start_ms = EPOCH_MS + server.clock.now_ns // 1_000_000
    await send_to_queue_0(server, "a")
    server.pass_time(10)
    await send_to_queue_0(server, "b", "c")
    for raw in (server.raw, server.raw2):
        assert (await find(raw, pb.BEGINNING)).offset == 0
        assert (await find(raw, pb.END)).offset == 3
        places = [
            (await find(raw, pb.TIMESTAMP, at)).offset
            for at in (0, start_ms, start_ms + 1, start_ms + 10_000, start_ms + 10_001)
        ]
        assert places == [0, 0, 1, 1, 3]


@contract()
async def test_offsets_of_a_deleted_topic_and_group_are_gone(server: Backend) -> None:
    """A new topic of that name starts without offsets, and so does the group."""
    await send_to_queue_0(server, "a")
    await server.group("G")
    assert await update(server.raw, 1) == pb.OK
    engine = server.engine
    await engine.call("g1", Configure(engine.new_token(), deleted_groups=("G",)))
    assert await stored(server.raw) is None
    assert await update(server.raw, 1) == pb.OK
    topics = server.controller.state.topics_of("g1")
    await engine.call("g1", Configure(engine.new_token(), deleted_topics=("T",)))
    await engine.call("g1", Configure(engine.new_token(), topics))
    assert await stored(server.raw) is None
    assert (await find(server.raw, pb.BEGINNING)).offset == 1
    assert (await pull(server.raw, 0)).code == pb.ILLEGAL_OFFSET


@contract()
async def test_a_lost_leader_ends_no_pull_for_good(server: Backend) -> None:
    """A pull that waits when leadership goes is put to the next leader; nothing was read, so
    nothing can be lost."""
    await send_to_queue_0(server, "a")
    pending = asyncio.ensure_future(pull(server.raw, 1, polling=20, timeout=30))
    await server.until(lambda: pulls(server) == 1)
    server.engine.follow("g1", None)
    server.engine.lead("g1", 9)
    server.forwarder.changed()
    await server.until(lambda: pulls(server) == 1)
    await send_to_queue_0(server, "b")
    assert (await pending).bodies == [b"b"]


@contract()
async def test_cancelled_pull_leaves_no_waiting_pull(server: Backend) -> None:
    """A cancelled pull leaves nothing behind."""
    pending = asyncio.ensure_future(pull(server.raw, 0, polling=20, timeout=30))
    await server.until(lambda: pulls(server) == 1)
    pending.cancel()
    await server.until(lambda: pulls(server) == 0)
