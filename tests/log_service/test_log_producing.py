"""Produce over the wire: opening, order, the window, rejections, redirects, permissions, quotas,
and the end of a stream."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from structlog.testing import capture_logs

from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import OpenProducer, ProduceFrame
from ledgermq.node.frontend.admin.cluster.client_list import ClientList
from ledgermq.node.frontend.native import frame_checks
from ledgermq.node.frontend.native.produce_stream import WINDOW_BYTES, WINDOW_FRAMES, ProduceStream
from ledgermq.node.frontend.rocketmq.streams import Streams
from ledgermq.node.process.telemetry import tracing
from ledgermq.node.process.telemetry.tracing import Spans
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.node.runtime.security_sections import Quota
from ledgermq.node.runtime.security_sections import Quotas as QuotaSettings
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.proofs.receipts import proven
from ledgermq.proto.status import Code, fail
from tests.log_service.log_frames import STORE_MS, TAG, Group, frame, framing, opening
from tests.log_service.log_stage import CLUSTER, LOG_ID, Stage, Wire, on_the_wire, signed

Test = Callable[[Stage, Wire, Group], Awaitable[None]]


def produce(**options: Any) -> Callable[[Test], Callable[[], None]]:
    """Make a test of a scenario on a stage with the topic T and a broker group."""

    def wrap(test: Test) -> Callable[[], None]:
        async def main() -> None:
            stage, group = Stage(**options), Group()
            stage.topic("T")
            stage.engine.answer = group.answer
            async with asyncio.timeout(30), on_the_wire(stage) as wire:
                await test(stage, wire, group)
            assert len(stage.service.streams) == 0

        def run() -> None:
            asyncio.run(main())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return wrap


async def opened(wire: Wire, metadata: Any = (), **fields: Any) -> Any:
    """A stream whose producer is open."""
    call = wire.produce(metadata)
    await call.write(opening(**fields))
    answer = await call.read()
    assert answer.WhichOneof("response") == "opened", answer
    return call


async def rest(call: Any) -> list[Any]:
    """What still comes after the client closed its side; the stream must end well."""
    await call.done_writing()
    return await until_end(call)


async def until_end(call: Any) -> list[Any]:
    """What comes before the node ends the stream."""
    found = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        found.append(answer)
        if answer.WhichOneof("response") in ("redirect", "problem"):
            await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    return found


@produce()
async def test_a_producer_is_opened_and_learns_the_limits(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """What it must not exceed, and what its message ids begin with."""
    call = wire.produce()
    await call.write(opening(name="shop", client_id="c1"))
    answer = (await call.read()).opened
    assert (answer.producer_id, answer.epoch, answer.next_sequence) == (7, 0, 0)
    assert (answer.max_frame_bytes, answer.window_bytes, answer.window_frames) == (
        1 << 20,
        WINDOW_BYTES,
        WINDOW_FRAMES,
    )
    assert (answer.cluster_id, answer.log_tag) == (CLUSTER, TAG)
    assert stage.engine.calls == [OpenProducer(1, "shop")]
    [known] = stage.service.streams
    assert (known.client_id, known.type, known.broker_group) == ("c1", "native-producer", "g1")
    assert await rest(call) == []


@produce()
async def test_frames_are_acknowledged_in_order_with_receipts(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """Each receipt says where its frame is, and its MAC holds."""
    call = await opened(wire)
    for first in (0, 2, 4):
        await call.write(framing(frame(first)))
    acks = [answer.ack for answer in await rest(call)]
    assert [(ack.first_sequence, ack.count, ack.duplicate) for ack in acks] == [
        (0, 2, False),
        (2, 2, False),
        (4, 2, False),
    ]
    key = stage.keys.newest()
    assert key is not None
    for ack in acks:
        receipt = ack.receipt
        assert proven(key[1], receipt) and receipt.key_id == key[0]
        assert (receipt.cluster_id, receipt.broker_group, receipt.log_id, receipt.topic) == (
            CLUSTER,
            "g1",
            LOG_ID,
            "T",
        )
        assert (receipt.producer_id, receipt.epoch, receipt.first_sequence, receipt.count) == (
            7,
            0,
            ack.first_sequence,
            2,
        )
        assert (receipt.term, receipt.first_index, receipt.store_ms) == (
            3,
            100 + ack.first_sequence,
            STORE_MS,
        )
        assert list(receipt.ranges) == [
            pb.QueueRange(queue=0, first_offset=5 + ack.first_sequence, count=2)
        ]
        assert receipt.durability == pb.DURABLE
        assert [item.node for item in receipt.replicas] == ["n1", "n2"]


@produce()
async def test_duplicate_frame_gets_its_first_receipt_or_none(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """A frame that is older than what is remembered is acknowledged without one."""
    call = await opened(wire)
    for first in (0, 2, 0):
        await call.write(framing(frame(first)))
    one, _, again = [await call.read() for _ in range(3)]
    assert again.ack.duplicate
    assert (again.ack.receipt.first_index, again.ack.receipt.chain_crc) == (
        one.ack.receipt.first_index,
        one.ack.receipt.chain_crc,
    )
    group.stored.clear()
    await call.write(framing(frame(0)))
    [known] = await rest(call)
    assert known.ack == pb.FrameAck(first_sequence=0, count=2, duplicate=True)


@produce()
async def test_memory_is_asked_for_and_said(stage: Stage, wire: Wire, group: Group) -> None:
    """The receipt is of the weaker class and names no replicas."""
    call = await opened(wire, memory=True)
    await call.write(framing(frame()))
    [answer] = await rest(call)
    assert answer.ack.receipt.durability == pb.MEMORY
    assert not answer.ack.receipt.replicas


@produce()
async def test_a_malformed_message_rejects_its_frame_by_position(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """The frame does not reach the broker group, and the stream continues."""
    call = await opened(wire)
    bad = frame(0, [b"a", b"b", b"c", b"d", b"e", b"f"])
    entries = bytearray(bad.entries)
    size = len(entries) // 6
    entries[3 * size + 136] ^= 1
    bad.entries = bytes(entries)
    await call.write(framing(bad))
    await call.write(framing(frame(0)))
    rejected, stored = await rest(call)
    assert (
        rejected.rejected.position,
        rejected.rejected.count,
        rejected.rejected.next_sequence,
    ) == (3, 6, 0)
    assert rejected.rejected.problem.code == 40016 and not rejected.rejected.problem.retryable
    assert stored.ack.count == 2
    assert sum(isinstance(call, ProduceFrame) for call in stage.engine.calls) == 1


@produce()
async def test_frame_gap_is_refused_with_the_missing_sequence(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """It may be sent again behind the missing messages."""
    call = await opened(wire)
    for first in (0, 4, 2, 4):
        await call.write(framing(frame(first)))
    answers = await rest(call)
    assert [answer.WhichOneof("response") for answer in answers] == [
        "ack",
        "rejected",
        "ack",
        "ack",
    ]
    gap = answers[1].rejected
    assert (gap.first_sequence, gap.next_sequence, gap.position, gap.problem.retryable) == (
        4,
        2,
        -1,
        True,
    )


@produce()
async def test_frames_that_no_topic_takes_are_refused(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """Unknown topics, unsupported kinds, read-only topics, queues of other groups, invalid
    names."""
    stage.topic("F", kind="fifo")
    stage.topic("R", permission="r")
    stage.topic("M", kind="mixed")
    call = await opened(wire)
    for topic, code in (("missing", 40402), ("F", 40014), ("R", 40300), ("rmq_sys_x", 40002)):
        await call.write(framing(frame(topic=topic)))
        assert (await call.read()).rejected.problem.code == code, topic
    await call.write(framing(frame(queue=4)))
    assert (await call.read()).rejected.problem.code == 40000
    await call.write(framing(frame(topic="M")))
    assert (await call.read()).ack.receipt.topic == "M"
    assert await rest(call) == []


@produce(limits=Limits(max_frame_bytes=64 << 10))
async def test_a_frame_above_the_limit_is_refused(stage: Stage, wire: Wire, group: Group) -> None:
    """Its size is looked at before anything else costs."""
    call = await opened(wire)
    await call.write(framing(frame(bodies=[b"x" * (64 << 10)])))
    [answer] = await rest(call)
    assert answer.rejected.problem.code == 41301


@produce()
async def test_large_frames_are_checked_on_a_thread(stage: Stage, wire: Wire, group: Group) -> None:
    """And are answered in order with small ones."""
    call = await opened(wire)
    many = frame_checks.INLINE_MESSAGES + 1
    for first, count in ((0, many), (many, 1)):
        await call.write(framing(frame(first, [b"x"] * count)))
    assert [answer.ack.count for answer in await rest(call)] == [many, 1]


@produce()
async def test_no_more_than_the_window_is_under_way(stage: Stage, wire: Wire, group: Group) -> None:
    """The transport holds back further frames; every answer admits one more."""
    group.held = True
    call = await opened(wire)
    for number in range(WINDOW_FRAMES + 3):
        await call.write(framing(frame(2 * number)))
    while len(stage.engine.waiting) < WINDOW_FRAMES:
        await asyncio.sleep(0)
    # The reader has had every chance to take more once another stream was opened and closed.
    assert await rest(await opened(wire)) == []
    assert len(stage.engine.waiting) == WINDOW_FRAMES
    first, future = stage.engine.waiting.pop(0)
    future.set_result(group.produced(first))
    assert (await call.read()).ack.first_sequence == 0
    while len(stage.engine.waiting) < WINDOW_FRAMES:
        await asyncio.sleep(0)
    group.held = False
    for waiting, future in stage.engine.waiting:
        future.set_result(group.produced(waiting))
    assert [answer.ack.first_sequence for answer in await rest(call)] == list(
        range(2, 2 * WINDOW_FRAMES + 6, 2)
    )


@produce()
async def test_deposed_leader_sends_due_acknowledgements_then_redirects(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """Acknowledgements that exist are not lost with the leadership; what is behind them has no
    answer."""
    group.held = True
    call = await opened(wire)
    for first in (0, 2, 4):
        await call.write(framing(frame(first)))
    while len(stage.engine.waiting) < 3:
        await asyncio.sleep(0)
    one, two, three = stage.engine.waiting
    two[1].set_result(Refused("unknown-outcome"))
    three[1].set_result(Refused("unknown-outcome"))
    one[1].set_result(group.produced(one[0]))
    stage.moves("n2")
    answers = await until_end(call)
    assert [answer.WhichOneof("response") for answer in answers] == ["ack", "redirect"]
    redirect = answers[-1].redirect
    assert (redirect.broker_group, redirect.leader, redirect.endpoint) == (
        "g1",
        "n2",
        "10.0.0.2:8081",
    )


@produce()
async def test_an_idle_stream_is_redirected_when_leadership_moves(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """The stream learns of the new leader without sending; if none is elected yet, it waits for the
    next leader."""
    call = await opened(wire)
    stage.moves(None)
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0)
    stage.moves("n2")
    assert (await reading).redirect.leader == "n2"
    assert await call.read() is grpc.aio.EOF


@produce()
async def test_a_node_that_does_not_lead_redirects_at_once(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """Also a node whose group reports this only in its answer."""
    stage.engine.answer = lambda call: Refused("not-leader")
    call = wire.produce()
    await call.write(opening())
    assert (await call.read()).WhichOneof("response") == "redirect"
    stage.moves("n2")
    call = wire.produce()
    await call.write(opening())
    assert (await call.read()).redirect.endpoint == "10.0.0.2:8081"


@produce()
async def test_stopping_node_answers_frames_under_way_then_redirects(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """And sends the client elsewhere."""
    group.held = True
    call = await opened(wire)
    await call.write(framing(frame()))
    while not stage.engine.waiting:
        await asyncio.sleep(0)
    stage.service.drain()
    waiting, future = stage.engine.waiting[0]
    future.set_result(group.produced(waiting))
    answers = await until_end(call)
    assert [answer.WhichOneof("response") for answer in answers] == ["ack", "redirect"]


@produce()
async def test_a_lost_connection_is_resumed_in_the_same_epoch(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """The producer learns what is stored; an unknown producer is refused, and the stream ends with
    the reason."""
    call = await opened(wire)
    await call.write(framing(frame()))
    await call.read()
    call.cancel()
    again = wire.produce()
    await again.write(opening(producer_id=7, epoch=0))
    assert (await again.read()).opened.next_sequence == 2
    assert await rest(again) == []
    stranger = wire.produce()
    await stranger.write(opening(producer_id=8))
    problem = (await stranger.read()).problem
    assert (problem.code, problem.retryable) == (40400, False)
    while len(stage.service.streams):
        await asyncio.sleep(0)


@produce()
async def test_a_fenced_producer_is_told_so(stage: Stage, wire: Wire, group: Group) -> None:
    """Another producer has opened its name: its frames are refused permanently."""
    call = await opened(wire)
    stage.engine.answer = lambda call: Refused("stale-epoch", detail="opened again")
    await call.write(framing(frame()))
    [answer] = await rest(call)
    assert (answer.rejected.problem.code, answer.rejected.problem.retryable) == (42800, False)


@pytest.mark.parametrize(
    "requests",
    [
        [framing(frame())],
        [b"\xff\xff"],
        [b""],
        [opening(broker_group="nowhere")],
        [opening(name="a\nb")],
        [opening(name="x" * 256)],
    ],
)
def test_a_stream_that_does_not_open_a_producer_ends_with_a_problem(requests: list[bytes]) -> None:
    """With the reason, and without a trace in the log."""

    @produce()
    async def test(stage: Stage, wire: Wire, group: Group) -> None:
        call = wire.produce()
        for request in requests:
            await call.write(request)
        [answer] = await rest(call)
        assert answer.problem.code == 40000
        assert not stage.engine.calls

    test()


@produce()
async def test_a_node_that_has_just_started_opens_producers(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """It knows no broker group before it has asked the quorum."""
    stage.quorum.forget()
    await rest(await opened(wire))


@produce()
async def test_garbage_behind_good_frames_ends_the_stream_after_their_answers(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """So does a second opening."""
    for last in (b"\xff\xff", opening()):
        group.next_sequence, group.stored = 0, {}
        call = await opened(wire)
        await call.write(framing(frame()))
        await call.write(last)
        answers = await until_end(call)
        assert [answer.WhichOneof("response") for answer in answers] == ["ack", "problem"]
        assert answers[-1].problem.code == 40000


def test_an_idle_stream_holds_no_frame() -> None:
    """What was answered is let go: ten thousand streams that sent something once hold nothing of
    it."""

    class Request(bytearray):
        """Can be watched."""

    async def main() -> None:
        request = Request(framing(frame()))
        watched, calls = weakref.ref(request), [request]
        del request
        silent = asyncio.Event()

        async def next_request() -> Any:
            if not calls:
                silent.set()
                await asyncio.Event().wait()
            return calls.pop()

        async def check(origin: Any, request: Any) -> Any:
            raise fail(Code.FORBIDDEN, "nobody may")

        answered = []

        async def write(data: bytes) -> None:
            answered.append(data)

        answers = SimpleNamespace(
            rejected=lambda sent, error, position=-1: pb.ProduceResponse(
                rejected=pb.FrameRejected(count=sent.count)
            )
        )
        stream = ProduceStream(
            SimpleNamespace(write=write), SimpleNamespace(next=next_request), None, SimpleNamespace(check=check), answers,
            SimpleNamespace(broker_group="g1"), memory=False, node="n1", trace=None,
        )  # type: ignore[arg-type]  # fmt: skip
        running = asyncio.create_task(stream.run())
        await silent.wait()
        while not answered:
            await asyncio.sleep(0)
        assert watched() is None, "not even for the collector, which counts objects and not bytes"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["moved", "broken off", "said nonsense"])
def test_ended_produce_stream_leaves_no_cycle_for_the_collector(end: str) -> None:
    """Its frames in flight are released with it."""

    @produce()
    async def play(stage: Stage, wire: Wire, group: Group) -> None:
        group.held = True
        call = await opened(wire)
        await call.write(framing(frame()))
        while not stage.engine.waiting:
            await asyncio.sleep(0)
        (listed,) = stage.service.streams
        stream = weakref.ref(listed.end.__self__)  # type: ignore[attr-defined]  # a method of the stream
        del listed
        ((_, outcome),) = stage.engine.waiting
        if end == "moved":
            stage.moves("n2")
            outcome.set_result(Refused("unknown-outcome"))
        elif end == "broken off":
            call.cancel()
        else:
            await call.write(opening())
            outcome.set_result(Refused("busy"))
        while stream() is not None:
            await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        play()
    finally:
        gc.enable()


@produce(authentication=True)
async def test_permissions_are_those_of_now(stage: Stage, wire: Wire, group: Group) -> None:
    """A grant that is taken back counts from the next frame on; names of producers belong to their
    users."""
    stage.user("writer", "secret-of-writer", "publish:topic:T")
    call = await opened(wire, signed("writer", "secret-of-writer"), name="shop")
    assert stage.engine.calls == [OpenProducer(1, "writer@shop", "writer")]
    assert [stream.client_id for stream in stage.service.streams] == ["writer@t1"]
    await call.write(framing(frame()))
    assert (await call.read()).HasField("ack")
    stage.quorum.command({"op": "change-user", "name": "writer", "revoke": ["publish:topic:T"]})
    await call.write(framing(frame(2)))
    assert (await call.read()).rejected.problem.code == 40300
    stage.quorum.command({"op": "change-user", "name": "writer", "grant": ["publish:topic:T"]})
    await call.write(framing(frame(2)))
    assert (await call.read()).HasField("ack")
    assert await rest(call) == []
    stranger = wire.produce()
    await stranger.write(opening())
    assert (await stranger.read()).problem.code == 40100


@produce(quotas=QuotaSettings(topic=Quota(messages_per_s=2)))
async def test_a_quota_refuses_with_the_time_to_wait(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """After that time the same frame is taken."""
    call = await opened(wire)
    await call.write(framing(frame(0, [b"a", b"b", b"c"])))
    assert (await call.read()).HasField("ack")
    await call.write(framing(frame(3)))
    problem = (await call.read()).rejected.problem
    assert (problem.code, problem.retryable) == (42900, True)
    stage.now += problem.retry_after_ms / 1000
    await call.write(framing(frame(3)))
    [answer] = await rest(call)
    assert answer.HasField("ack")


@produce(quotas=QuotaSettings(topic=Quota(calls=1)))
async def test_frames_under_way_count_until_they_are_answered(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """Also those whose client went away."""
    group.held = True
    call = await opened(wire)
    await call.write(framing(frame()))
    while not stage.engine.waiting:
        await asyncio.sleep(0)
    call.cancel()
    while len(stage.service.streams):
        await asyncio.sleep(0)
    group.held = False
    call = await opened(wire)
    await call.write(framing(frame()))
    [answer] = await rest(call)
    assert answer.HasField("ack"), "what the first stream held is free again"


@produce()
async def test_a_topic_that_is_being_set_up_holds_its_frames(
    stage: Stage, wire: Wire, group: Group
) -> None:
    """They are not refused, which would part those behind them from their order."""
    stage.quorum.command(
        {
            "op": "create-topic",
            "ns": "",
            "name": "N",
            "kind": "normal",
            "queues": 1,
            "permission": "rw",
        }
    )
    call = await opened(wire)
    await call.write(framing(frame(topic="N")))
    await call.write(framing(frame(2)))
    assert await rest(await opened(wire)) == []
    assert not any(isinstance(call, ProduceFrame) for call in stage.engine.calls)
    config = stage.quorum.state.topics["", "N"].in_group("g1")
    assert config is not None
    stage.engine.show(topics={"N": config})
    assert [answer.ack.first_sequence for answer in await rest(call)] == [0, 2]


def test_frames_have_spans_under_their_callers() -> None:
    """Stored and rejected ones, with how they ended and nothing of a message; the list of clients
    shows the stream."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @produce(spans=Spans(provider, "node1", 8081))
    async def test(stage: Stage, wire: Wire, group: Group) -> None:
        clients = SimpleNamespace(streams=Streams(), clients=SimpleNamespace(known=lambda: ()))
        listed = ClientList("n1", clients, stage.service.streams, None, ())  # type: ignore[arg-type]  # no other node is asked
        call = await opened(
            wire,
            (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),),
            client_id="c1",
        )
        await call.write(framing(frame()))
        await call.read()
        [info] = listed.here().clients
        assert (info.client_id, info.type, list(info.topics), info.connected) == (
            "c1",
            "native-producer",
            ["T"],
            True,
        )
        await call.write(framing(frame(8)))
        await rest(call)
        assert not listed.here().clients

    test()
    stored, gap = exporter.get_finished_spans()
    assert (stored.name, f"{stored.context.trace_id:x}") == (
        "send T",
        "af7651916cd43dd8448eb211c80319c",
    )
    assert gap.attributes is not None and gap.attributes["error.type"] == "PRECONDITION_FAILED"
    assert (
        gap.status.status_code is StatusCode.ERROR and stored.status.status_code is StatusCode.UNSET
    )
    assert dict(stored.attributes or {}) == {
        **{
            "messaging.system": "rocketmq",
            "server.address": "node1",
            "server.port": 8081,
            "messaging.client.id": "c1",
        },
        **{
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": 2,
        },
        **{
            "messaging.destination.name": "T",
            "messaging.rocketmq.namespace": "",
            "ledgermq.first_sequence": 0,
        },
    }


def test_the_span_of_a_frame_links_to_its_messages_and_is_named_in_log_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for each trace context, at most as many as a span names messages; log lines are written
    while the frame is checked."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    named: list[Any] = []
    reads = frame_checks.read_frame
    monkeypatch.setattr(
        frame_checks,
        "read_frame",
        lambda *args, **more: (named.append(tracing._current_ids()), reads(*args, **more))[1],
    )
    contexts = [f"00-{number:032x}-{number + 1:016x}-01" for number in range(1, 41)]
    several = [contexts[0], contexts[1], contexts[0], "no trace at all", ""]

    @produce(spans=Spans(provider, "node1", 8081))
    async def test(stage: Stage, wire: Wire, group: Group) -> None:
        call = await opened(wire, client_id="c1")
        await call.write(
            framing(
                frame(
                    0,
                    [b"x"] * 5,
                    properties=[{"traceparent": text} if text else {} for text in several],
                )
            )
        )
        await call.write(
            framing(frame(5, [b"x"] * 40, properties=[{"traceparent": text} for text in contexts]))
        )
        await call.write(framing(frame(45)))
        await rest(call)

    test()
    first, many, plain = spans = exporter.get_finished_spans()
    assert [(link.context.trace_id, link.context.span_id) for link in first.links] == [
        (1, 2),
        (2, 3),
    ]
    assert [link.context.trace_id for link in many.links] == list(range(1, tracing.IDS_MAX + 1))
    assert not plain.links
    assert [one["span_id"] for one in named] == [f"{span.context.span_id:016x}" for span in spans]
    assert not tracing._current_ids()


@given(
    st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 2**31)), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_arbitrary_bytes_end_a_produce_stream_with_a_problem(
    pieces: list[bytes | int], seed: int
) -> None:
    """Noise, and good requests with bits changed: answers or a problem, no broken stream, no trace
    in the log, nothing left behind."""
    # How many bytes a good request has depends on what was answered by then, and what hypothesis is
    # asked for may not.
    chance = random.Random(seed)

    async def main() -> None:
        stage, group = Stage(quotas=QuotaSettings(topic=Quota(calls=9))), Group()
        stage.topic("T")
        stage.engine.answer = group.answer
        async with asyncio.timeout(20), on_the_wire(stage) as wire:
            call = await opened(wire)
            for piece in pieces:
                await call.write(damaged(group, piece, chance) if isinstance(piece, int) else piece)
            await call.done_writing()
            kinds = [answer.WhichOneof("response") for answer in await until_end(call)]
            assert set(kinds) <= {"ack", "rejected", "problem"} and "problem" not in kinds[:-1]
            while len(stage.service.streams):
                await asyncio.sleep(0)
            again = await opened(wire)
            group.next_sequence, group.stored = 0, {}
            await again.write(framing(frame()))
            assert (await rest(again))[0].HasField("ack"), (
                "quotas are free, and the next stream works"
            )

    with capture_logs() as logged:
        asyncio.run(main())
    assert not [entry for entry in logged if entry["log_level"] in ("error", "critical")]


def damaged(group: Group, times: int, chance: random.Random) -> bytes:
    """A good frame with up to two bits changed."""
    data = bytearray(framing(frame(group.next_sequence)))
    for _ in range(times % 3):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)
