"""Fetch on a real port, over a real group's files: start positions, credit, waiting for messages,
the ends of a stream, and permissions."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ledgermq.node.frontend.native import fetching
from ledgermq.node.frontend.native.answers import Answer
from ledgermq.node.process.telemetry.tracing import Spans
from ledgermq.node.runtime.answer_budget import COPIES, AnswerBudget
from ledgermq.node.runtime.security_sections import Quota, Quotas
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code
from tests.log_service.fetch_stage import DrivenStage, Got, Group, got
from tests.log_service.log_stage import Wire, on_the_wire, signed

MORE = 1 << 20


def opening(topic: str = "T", credit: int = MORE, **options: Any) -> pb.FetchRequest:
    """Queue 0 from the first message on, unless a test says otherwise."""
    begin = options.pop("begin", [{"queue": 0, "earliest": True}])
    request = pb.OpenFetch(broker_group="g1", topic=topic, credit_bytes=credit, **options)
    getattr(request, "from").extend(pb.FetchFrom(**place) for place in begin)
    return pb.FetchRequest(open=request)


class Reader:
    """The client's end of one stream."""

    def __init__(self, wire: Wire, metadata: Any = ()) -> None:
        self._call = wire.fetch(metadata)

    async def say(self, request: Message | bytes) -> None:
        await self._call.write(
            request if isinstance(request, bytes) else request.SerializeToString()
        )

    async def leave(self) -> None:
        await self._call.done_writing()

    def break_off(self) -> None:
        self._call.cancel()

    async def hear(self) -> pb.FetchResponse | Got | None:
        """The next answer; None at the end of the stream."""
        data = await self._call.read()
        if not isinstance(data, bytes):
            return None
        response = pb.FetchResponse.FromString(data)
        return got(data) if response.WhichOneof("response") == "entries" else response

    async def entries(self) -> Got:
        found = await self.hear()
        assert isinstance(found, Got), found
        return found

    async def control(self, kind: str) -> Any:
        found = await self.hear()
        assert isinstance(found, pb.FetchResponse) and found.WhichOneof("response") == kind, found
        return getattr(found, kind)


@asynccontextmanager
async def played(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[DrivenStage, Wire]]:
    """A stage with a topic of two queues."""
    group = Group(tmp_path)
    try:
        stage = DrivenStage(group, **options)
        stage.topic("T", queues=2)
        async with on_the_wire(stage) as wire:
            yield stage, wire
    finally:
        group.close()


async def test_reader_gets_stored_entries_then_new_ones(tmp_path: Path) -> None:
    """Opened, entries, caught up; then each batch as soon as it is applied, and caught up once more
    each time."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 5 + [("T", 1, 60)])
        reader = Reader(wire)
        await reader.say(
            opening(begin=[{"queue": 0, "offset": 2}, {"queue": 1, "earliest": False}])
        )
        opened = await reader.control("opened")
        assert [(at.queue, at.first_offset) for at in opened.begins] == [(0, 2), (1, 1)]
        assert [(at.queue, at.first_offset) for at in opened.ends] == [
            (0, 5),
            (1, 1),
        ] and opened.log_id
        first = await reader.entries()
        assert (first.queue, first.first, first.bodies, first.end) == (
            0,
            2,
            tuple(stage.group.stored["T", 0][2:]),
            5,
        )
        caught_up = await reader.control("caught_up")
        assert [(at.queue, at.first_offset) for at in caught_up.ends] == [(0, 5), (1, 1)]
        for _ in range(3):
            stage.group.produce([("T", 1, 80)] * 2)
            more = await reader.entries()
            assert (more.queue, len(more.bodies)) == (1, 2)
            await reader.control("caught_up")


async def test_reader_waits_while_answers_hold_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read when there is room again; what one batch held is given back when it was
    written."""
    budget = AnswerBudget(1 << 20, 1 << 20)
    monkeypatch.setattr(fetching, "ANSWERS", budget)

    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 5)
        held = await budget.reserve(1 << 20)
        reader, reads = Reader(wire), []
        read = fetching._Stream._next

        async def counted(*arguments: Any) -> Any:
            reads.append(budget.held_bytes)
            return await read(*arguments)

        monkeypatch.setattr(fetching._Stream, "_next", counted)
        await reader.say(opening(credit=3000))
        await reader.control("opened")
        async with asyncio.timeout(30):
            while not budget._waiting:
                await asyncio.sleep(0)
        assert reads == []
        held.settle(0)
        assert len((await reader.entries()).bodies) == 5
        await reader.control("caught_up")
        assert reads[0] == COPIES * 3000 and budget.held_bytes == 0


async def test_each_batch_has_a_span_that_links_to_its_messages(tmp_path: Path) -> None:
    """From the producer's trace to the consumer: under the reader's own trace, with the consumer
    group, and nothing of a body."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    reads, wrote = (
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        f"00-{1:032x}-{2:016x}-01",
    )

    async with played(tmp_path, spans=Spans(provider, "node1", 8081)) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 3, {"traceparent": wrote})
        reader = Reader(wire, (("traceparent", reads),))
        await reader.say(opening(consumer_group="G"))
        await reader.control("opened")
        assert len((await reader.entries()).bodies) == 3
        await reader.control("caught_up")
        await reader.leave()
    (span,) = exporter.get_finished_spans()
    assert (span.name, f"{span.context.trace_id:032x}") == (
        "fetch T",
        "0af7651916cd43dd8448eb211c80319c",
    )
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(1, 2)]
    told = dict(span.attributes or {})
    assert (told["messaging.operation.type"], told["messaging.batch.message_count"]) == (
        "receive",
        3,
    )
    assert (told["messaging.consumer.group.name"], told["messaging.destination.name"]) == ("G", "T")
    assert "T/0/0" not in span.to_json()


async def test_a_node_that_has_just_started_serves_readers(tmp_path: Path) -> None:
    """It knows no broker group before it has asked the quorum. A reader that was told of an unknown
    group would end for good."""
    async with played(tmp_path) as (stage, wire):
        stage.quorum.forget()
        reader = Reader(wire)
        await reader.say(opening())
        await reader.control("opened")


async def test_reader_gets_entries_up_to_its_credit(tmp_path: Path) -> None:
    """Without credit there is silence; credit of one byte lets one entry through; what was owed is
    paid first."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 6)
        reader = Reader(wire)
        await reader.say(opening(credit=1))
        await reader.control("opened")
        one = await reader.entries()
        assert len(one.bodies) == 1
        size = len(one.entries)
        # It owes all but a byte of it, and gets two more entries' worth.
        await reader.say(pb.FetchRequest(credit_bytes=3 * size - 1))
        two = await reader.entries()
        assert (two.first, len(two.bodies)) == (1, 2)
        await reader.say(pb.FetchRequest(credit_bytes=MORE))
        three = await reader.entries()
        assert (three.first, len(three.bodies)) == (3, 3)


async def test_a_reader_that_wants_the_end_gets_an_end(tmp_path: Path) -> None:
    """Caught up behind the last message there was, of an empty queue at once; then the stream ends
    as soon as the reader ends it."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 4)
        reader = Reader(wire)
        await reader.say(opening(until_end=True, max_response_bytes=1))
        await reader.control("opened")
        stage.group.produce([("T", 0, 60)])
        assert [(await reader.entries()).first for _ in range(4)] == [0, 1, 2, 3]
        assert (await reader.control("caught_up")).ends[0].first_offset == 4
        # Credit that comes when everything is sent is no failure.
        await reader.say(pb.FetchRequest(credit_bytes=1))
        await reader.leave()
        assert await reader.hear() is None
        empty = Reader(wire)
        await empty.say(opening(until_end=True, begin=[{"queue": 1, "earliest": True}]))
        await empty.control("opened")
        await empty.control("caught_up")


async def test_a_reader_begins_at_a_time(tmp_path: Path) -> None:
    """At the first message stored then or later: of the past the first one, of the future the
    end."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 30)
        stage.group.produce([("T", 0, 60)] * 3)
        machine = stage.group.driver.group.machine
        stored = [machine.stored_ms("T", 0, offset) for offset in range(33)]
        for at_ms in (0, stored[0], stored[30], stored[32] + 1):
            reader = Reader(wire)
            await reader.say(opening(begin=[{"queue": 0, "store_ms": at_ms}]))
            opened = await reader.control("opened")
            assert opened.begins[0].first_offset == sum(time_ms < at_ms for time_ms in stored)


async def test_another_leader_is_said_with_the_place_to_go(tmp_path: Path) -> None:
    """Waiting readers, readers without credit and new readers get a redirect; each continues at the
    new leader after its last entry."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)])
        waiting, poor = Reader(wire), Reader(wire)
        await waiting.say(opening())
        await poor.say(opening(credit=0))
        await waiting.control("opened")
        await waiting.entries()
        await waiting.control("caught_up")
        await poor.control("opened")
        stage.engine.show("n2", serving=False)
        late = Reader(wire)
        await late.say(opening())
        stage.service.led_elsewhere("g1")
        for reader in (waiting, poor, late):
            redirect = await reader.control("redirect")
            assert (redirect.broker_group, redirect.leader, redirect.endpoint) == (
                "g1",
                "n2",
                "10.0.0.2:8081",
            )
            assert await reader.hear() is None


async def test_readers_are_listed_and_end_with_the_node(tmp_path: Path) -> None:
    """The list of clients shows a reader with its topic and group; a stop ends its stream."""
    async with played(tmp_path) as (stage, wire):
        reader = Reader(wire, (("x-mq-client-id", "me"),))
        await reader.say(opening(consumer_group="G"))
        await reader.control("opened")
        (listed,) = stage.service.streams
        assert (listed.client_id, listed.type, listed.topics, listed.group) == (
            "me",
            "native-consumer",
            {"T"},
            "G",
        )
        await reader.control("caught_up")
        stage.service.drain()
        await reader.control("redirect")
        assert await reader.hear() is None
        assert not len(stage.service.streams)
        # There are no followers any more, so nothing is kept.
        assert stage.group.driver.group.group.recent is None


async def test_a_reader_that_waits_holds_no_answer(tmp_path: Path) -> None:
    """At the end of the log or without credit: ten thousand of them hold nothing of what they
    got."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 4)
        readers = [Reader(wire), Reader(wire)]
        await readers[0].say(opening())
        await readers[0].control("opened")
        await readers[0].entries()
        await readers[0].control("caught_up")
        await readers[1].say(opening(credit=1))
        await readers[1].control("opened")
        await readers[1].entries()
        async with asyncio.timeout(30):
            while any(isinstance(found, Answer) for found in gc.get_objects()):
                await asyncio.sleep(0.05)


async def moved(stage: DrivenStage, reader: Reader) -> None:
    stage.engine.show("n2", serving=False)
    stage.service.led_elsewhere("g1")
    await reader.control("redirect")


async def stopped(stage: DrivenStage, reader: Reader) -> None:
    stage.service.drain()
    await reader.control("redirect")


async def broke_off(stage: DrivenStage, reader: Reader) -> None:
    reader.break_off()


async def deleted(stage: DrivenStage, reader: Reader) -> None:
    stage.group.delete("T")
    await reader.control("problem")


async def said_nonsense(stage: DrivenStage, reader: Reader) -> None:
    await reader.say(opening())
    await reader.control("problem")


@pytest.mark.parametrize("end", [moved, stopped, broke_off, deleted, said_nonsense])
async def test_ended_reader_leaves_no_cycle_for_the_collector(
    tmp_path: Path, end: Callable[[DrivenStage, Reader], Awaitable[None]]
) -> None:
    """The window on the newest entries goes with its last reader, by reference counts: the
    collector counts objects, not bytes, and never finds what a cancelled task knows."""

    gc.collect()
    gc.disable()
    try:
        async with played(tmp_path) as (stage, wire):
            stage.group.produce([("T", 0, 60)] * 4)
            reader = Reader(wire)
            await reader.say(opening())
            await reader.control("opened")
            await reader.entries()
            await reader.control("caught_up")
            stage.group.produce([("T", 0, 60)] * 400)
            await reader.entries()
            await reader.control("caught_up")
            window = weakref.ref(stage.group.driver.group.group.recent)
            assert window() is not None
            await end(stage, reader)
            async with asyncio.timeout(30):
                while window() is not None:
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_a_deleted_topic_ends_its_readers(tmp_path: Path) -> None:
    """Their streams end with the code of a deleted topic, and no retry is suggested."""
    async with played(tmp_path) as (stage, wire):
        reader = Reader(wire)
        await reader.say(opening())
        await reader.control("opened")
        await reader.control("caught_up")
        stage.group.delete("T")
        problem = await reader.control("problem")
        assert (problem.code, problem.retryable) == (Code.TOPIC_NOT_FOUND, False)


async def answers(reader: Reader) -> AsyncIterator[Any]:
    while (found := await reader.hear()) is not None:
        yield found


BAD: list[tuple[str, Message | bytes, Code]] = [
    ("bytes that are no request", b"\xff\xff\xff", Code.BAD_REQUEST),
    ("credit before the opening", pb.FetchRequest(credit_bytes=1), Code.BAD_REQUEST),
    ("nothing", pb.FetchRequest(), Code.BAD_REQUEST),
    ("no queue", opening(begin=[]), Code.BAD_REQUEST),
    ("a queue without a place", opening(begin=[{"queue": 0}]), Code.BAD_REQUEST),
    (
        "a queue twice",
        opening(begin=[{"queue": 0, "offset": 0}, {"queue": 0, "earliest": True}]),
        Code.BAD_REQUEST,
    ),
    ("a queue that is not there", opening(begin=[{"queue": 2, "offset": 0}]), Code.BAD_REQUEST),
    ("a queue below the first", opening(begin=[{"queue": -1, "offset": 0}]), Code.BAD_REQUEST),
    ("an offset behind the end", opening(begin=[{"queue": 0, "offset": 2}]), Code.ILLEGAL_OFFSET),
    ("an offset below the first", opening(begin=[{"queue": 0, "offset": -1}]), Code.ILLEGAL_OFFSET),
    ("a topic that is not there", opening("U"), Code.TOPIC_NOT_FOUND),
    ("a topic of the system", opening("rmq_sys_ledgermq_half"), Code.ILLEGAL_TOPIC),
    ("a bad name of a topic", opening("a b"), Code.ILLEGAL_TOPIC),
    ("a bad name of a group", opening(consumer_group="a b"), Code.ILLEGAL_CONSUMER_GROUP),
    ("a reserved name of a group", opening(consumer_group="%DLQ%zz"), Code.ILLEGAL_CONSUMER_GROUP),
    (
        "a broker group that is not there",
        pb.FetchRequest(open=pb.OpenFetch(broker_group="g9")),
        Code.NOT_FOUND,
    ),
    (
        "a log index behind the end",
        pb.FetchRequest(open=pb.OpenFetch(broker_group="g1", from_index=99)),
        Code.ILLEGAL_OFFSET,
    ),
    ("queues without a topic", opening(""), Code.BAD_REQUEST),
]


async def test_invalid_fetch_request_ends_with_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends with one problem and its code; other streams continue."""
    # a topic that nobody creates is waited for that long
    monkeypatch.setattr(fetching, "TOPIC_WITHIN_S", 0.1)

    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)])
        for what, request, code in BAD:
            reader = Reader(wire)
            await reader.say(request)
            found = [one async for one in answers(reader)]
            assert len(found) == 1 and found[0].problem.code == code, (what, found)
        good = Reader(wire)
        await good.say(opening())
        await good.control("opened")
        await good.entries()
        await good.control("caught_up")
        await good.say(opening())
        assert (await good.control("problem")).code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    "place", [{"topic": "T"}, {"topic": "T", "consumer_group": "G"}, {"topic": ""}]
)
async def test_a_reader_needs_the_permissions(tmp_path: Path, place: dict[str, str]) -> None:
    """To read a topic; with a group that too; the log itself is for administrators."""
    async with played(tmp_path, authentication=True) as (stage, wire):
        stage.user("nobody", "s3cret-of-nobody", "publish:topic:*")
        stage.user("reader", "s3cret-of-reader", "subscribe:topic:T", "subscribe:group:G")
        stage.user("admin", "s3cret-of-admin", "admin:cluster:*")
        request = (
            opening(**place)
            if place["topic"]
            else pb.FetchRequest(open=pb.OpenFetch(broker_group="g1", credit_bytes=1))
        )
        stranger = Reader(wire)
        await stranger.say(request)
        assert (await stranger.control("problem")).code == Code.UNAUTHORIZED
        for user, allowed in (("nobody", False), ("reader", bool(place["topic"])), ("admin", True)):
            reader = Reader(wire, signed(user, f"s3cret-of-{user}"))
            await reader.say(request)
            if allowed:
                await reader.control("opened")
            else:
                assert (await reader.control("problem")).code == Code.FORBIDDEN


async def test_a_reader_over_its_quota_waits_for_its_turn(tmp_path: Path) -> None:
    """A second's worth may go at once; what is over that is paid for by the time after it, and
    nothing is lost."""
    async with played(tmp_path, quotas=Quotas(group=Quota(messages_per_s=0.01))) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 4)
        reader = Reader(wire)
        await reader.say(opening(consumer_group="G", max_response_bytes=1, until_end=True))
        await reader.control("opened")
        assert [(await reader.entries()).first for _ in range(2)] == [0, 1]
        silent = asyncio.ensure_future(reader.entries())
        await asyncio.sleep(0.05)
        assert not silent.done()
        stage.now += 1000
        assert (await silent).first == 2


async def test_a_reader_that_waits_for_its_quota_is_sent_away_when_the_node_stops(
    tmp_path: Path,
) -> None:
    """What it owes does not hold it here, nor the node."""
    async with played(tmp_path, quotas=Quotas(group=Quota(messages_per_s=0.01))) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 4)
        reader = Reader(wire)
        await reader.say(opening(consumer_group="G", max_response_bytes=1))
        await reader.control("opened")
        assert [(await reader.entries()).first for _ in range(2)] == [0, 1]
        stage.service.drain()
        async with asyncio.timeout(10):
            await reader.control("redirect")
