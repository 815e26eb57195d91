"""Producers that are abandoned, closed, cancelled or given invalid input: every message has an
outcome, no caller waits forever, and no message affects others."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import grpc
import grpc.aio
import pytest

from ledgermq.client import (
    AsyncProducer,
    BadArgument,
    BatchFailed,
    Consumer,
    Producer,
    Refused,
    SendFailed,
)
from ledgermq.client.api.connection import Address
from ledgermq.client.errors import ClusterError
from ledgermq.client.native.log_connection import Latencies, broken
from ledgermq.client.native.producers.batches import Batch, Futures, Gathering
from ledgermq.client.native.producers.columns import Columns
from ledgermq.client.native.producers.outcomes import FrameAcknowledged, Statistics
from ledgermq.client.native.producers.producer_session import (
    STALE_EPOCH,
    ProducerSession,
    ProducerSettings,
)
from ledgermq.client.native.producers.receipt_log import ReceiptLog
from ledgermq.client.native.producers.sync_producer import ProducerOptions
from ledgermq.proto import kernels
from ledgermq.proto import log_pb2 as pb
from tests.client.fake_log import LOG_TAG, FakeBrokerGroup, FakeLogNode, endpoints, fake_log

Scenario = Callable[[list[FakeLogNode], list[FakeBrokerGroup]], Awaitable[None]]
SOON_S = 30.0


@asynccontextmanager
async def short_log(
    nodes: int = 1,
) -> AsyncIterator[tuple[list[FakeLogNode], list[FakeBrokerGroup]]]:
    async with fake_log(nodes) as found, asyncio.timeout(30):
        yield found


async def test_a_future_that_is_cancelled_is_no_failure() -> None:
    """If a caller cancels an acknowledgement, `flush` still returns; the message is stored and
    counted."""
    async with short_log() as (nodes, groups):
        async with AsyncProducer(endpoints(nodes), "t") as sending:
            nodes[0].hold.clear()
            future = await sending.send(b"a")
            future.cancel()
            nodes[0].hold.set()
            await asyncio.wait_for(sending.flush(), SOON_S)
            assert (
                sending.statistics.acknowledged,
                sending.statistics.late,
                sending.statistics.waiting,
            ) == (1, 0, 0)
        assert [message.body for message in groups[0].log] == [b"a"]


async def test_cancelled_send_accepts_no_message() -> None:
    """The call that fills a frame yields to the event loop, but not between accepting the message
    and returning its future."""
    async with (
        short_log() as (nodes, _),
        AsyncProducer(endpoints(nodes), "t", batch_bytes=1) as sending,
    ):
        for _ in range(3):
            before = sending.statistics.accepted
            task = asyncio.ensure_future(sending.send(b"a"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert sending.statistics.accepted - before == (not task.cancelled())


@pytest.mark.parametrize(
    "wrong",
    [
        {"tag": "\ud800"},
        {"keys": ("\udfff",)},
        {"properties": {"a": "\ud800"}},
        {"tag": 5},
        {"keys": (5,)},
    ],
)
async def test_unencodable_message_fails_alone(wrong: dict[str, Any]) -> None:
    """Invalid text or a wrong type is detected when a frame is encoded; the other messages are
    sent."""
    async with (
        short_log() as (nodes, _),
        AsyncProducer(endpoints(nodes), "t", linger_ms=50) as sending,
    ):
        try:
            futures = [
                await sending.send(b"a", queue=0),
                await sending.send(b"b", queue=0, **wrong),
                await sending.send(b"c", queue=0),
            ]
        except TypeError:
            # Scenario at once.
            return
        await asyncio.wait_for(sending.flush(), SOON_S)
        with pytest.raises(BadArgument):
            await futures[1]
        assert [(await future).offset for future in (futures[0], futures[2])] == [0, 1]


async def test_a_batch_with_a_wrong_body_tells_which() -> None:
    async with short_log() as (nodes, groups):
        async with AsyncProducer(endpoints(nodes), "t") as sending:
            bodies: Any = [b"a", "text", b"c"]
            with pytest.raises(SendFailed, match="first row 1"):
                await asyncio.wait_for(await sending.send_batch(bodies, queue=0), SOON_S)
        assert groups[0].bodies(0) == [b"a", b"c"]


async def test_whoever_waits_in_flush_hears_of_the_end() -> None:
    """Also when the producer is closed meanwhile, by another task, without patience."""
    async with short_log() as (nodes, _):
        sending = AsyncProducer(endpoints(nodes), "t")
        async with sending:
            nodes[0].hold.clear()
            future = await sending.send(b"a")
            flushing = asyncio.ensure_future(sending.flush())
            await asyncio.sleep(0.05)
            await sending.close(0)
            await asyncio.wait_for(flushing, SOON_S)
            with pytest.raises(SendFailed):
                await future
        nodes[0].hold.set()


async def test_receipts_that_cannot_be_kept_end_the_producer(tmp_path: Path) -> None:
    """The producer ends at once with the reason, instead of sending messages whose receipts are
    lost."""

    class Full(ReceiptLog):
        def write(self, receipt: Any) -> None:
            raise OSError(28, "No space left on device")

    async with short_log() as (nodes, _):
        log = Full(tmp_path / "r.parquet")
        sending = AsyncProducer(endpoints(nodes), "t", receipt_log=log)
        await sending.start()
        assert (await asyncio.wait_for(await sending.send(b"a"), SOON_S)).offset == 0
        await asyncio.sleep(0)
        with pytest.raises(ClusterError, match="No space left"):
            await sending.send(b"b")
        with pytest.raises(ClusterError, match="No space left"):
            await asyncio.wait_for(sending.close(), SOON_S)
        assert sending.statistics.waiting_bytes == 0


async def test_producer_leaves_a_node_that_stops_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames beyond what the transport takes do not keep the producer there."""
    monkeypatch.setattr("ledgermq.client.native.producers.stream.FINAL_ANSWER_S", 0.05)

    class Deaf:
        """A call whose frames are never read."""

        def __init__(self, call: Any) -> None:
            self.read, self.cancel, self._call = call.read, call.cancel, call

        async def write(self, request: pb.ProduceRequest) -> None:
            if request.HasField("frame"):
                await asyncio.Event().wait()
            await self._call.write(request)

    async with short_log() as (nodes, _), AsyncProducer(endpoints(nodes), "t") as sending:
        open_stream = sending.connection.stream
        calls = iter([Deaf])
        monkeypatch.setattr(
            sending.connection,
            "stream",
            lambda *words: next(calls, lambda call: call)(open_stream(*words)),
        )
        sending._streams["g1"]._answer_timeout_s = 0.1
        done = await asyncio.wait_for(await sending.send(b"a"), SOON_S)
        assert done.offset == 0 and sending.statistics.streams == 2


def buffers() -> dict[str, tuple[Any, bytes | None]]:
    """What may be given as a body, and the bytes that it is; None: it is no body."""
    numbers = array("I", [1, 2, 3])
    released = memoryview(b"gone")
    released.release()
    return {
        "bytes": (b"abc", b"abc"),
        "bytearray": (bytearray(b"abc"), b"abc"),
        "a view": (memoryview(b"abc"), b"abc"),
        "a view of numbers": (memoryview(numbers), numbers.tobytes()),
        "a view with gaps": (memoryview(b"abcdef")[::2], b"ace"),
        "a view backwards": (memoryview(b"abc")[::-1], b"cba"),
        "a view of two dimensions": (memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
        "a view of characters": (memoryview(b"abc").cast("c"), b"abc"),
        "a view that was released": (released, None),
        "text": ("abc", None),
        "a number": (5, None),
        "nothing": (None, None),
        "numbers": ([1, 2, 3], None),
    }


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", list(buffers()))
@pytest.mark.parametrize("way", ["send", "send_batch", "send_batch with order keys"])
async def test_a_body_is_stored_as_it_is_or_fails_alone(
    monkeypatch: pytest.MonkeyPatch, way: str, kind: str, native: bool
) -> None:
    """Messages before and behind it, in the same frame, are stored."""
    monkeypatch.setattr(kernels, "NATIVE", native and kernels.NATIVE)
    body, stored = buffers()[kind]

    async with short_log() as (nodes, groups):
        async with AsyncProducer(endpoints(nodes), "t", linger_ms=20) as sending:
            if way == "send":
                before = await sending.send(b"before", queue=0)
                if stored is None:
                    with pytest.raises(BadArgument, match=type(body).__name__):
                        await sending.send(body, queue=0)
                else:
                    await sending.send(body, queue=0)
                await (await sending.send(b"behind", queue=0))
                await before
            else:
                where: dict[str, Any] = (
                    {"queue": 0} if way == "send_batch" else {"order_keys": ["k"] * 3}
                )
                done = await sending.send_batch([b"before", body, b"behind"], **where)
                if stored is None:
                    with pytest.raises(BatchFailed) as found:
                        await asyncio.wait_for(done, SOON_S)
                    assert [list(failure.rows) for failure in found.value.failures] == [
                        [1]
                    ] and not found.value.unknown
                else:
                    await asyncio.wait_for(done, SOON_S)
        middle = [] if stored is None else [stored]
        assert [message.body for message in groups[0].log] == [b"before", *middle, b"behind"]


async def test_mutation_behind_send_leaves_the_message_unchanged() -> None:
    """Neither the body nor keys nor properties; of a batch the sequences may change, and their
    values are the caller's until the end."""
    async with short_log() as (nodes, groups):
        body, keys, properties = bytearray(b"as sent"), ["k"], {"p": "1"}
        rows: list[bytes] = [b"0", b"1"]
        columns: dict[str, Any] = {
            "tags": ["a", "b"],
            "keys": ["k", "l"],
            "properties": [{"p": "1"}, {"p": "2"}],
        }
        async with AsyncProducer(endpoints(nodes), "t", linger_ms=20) as sending:
            one = await sending.send(body, keys=keys, properties=properties, queue=0)
            body[:], properties["p"] = b"changed, and longer", "2"
            keys.clear()
            batch = await sending.send_batch(rows, queue=0, **columns)
            for sequence in (rows, *columns.values()):
                sequence.clear()
            await asyncio.wait_for(asyncio.gather(one, batch), SOON_S)
        found = [
            (m.body, m.properties.get("TAGS"), m.properties["KEYS"], m.properties["p"])
            for m in groups[0].log
        ]
        assert found == [(b"as sent", None, "k", "1"), (b"0", "a", "k", "1"), (b"1", "b", "l", "2")]


async def test_rows_that_come_behind_the_end_of_the_producer_fail() -> None:
    """A batch whose caller waits between two frames when the producer is closed: nothing accepts
    rows that nobody would send."""
    async with short_log() as (nodes, groups):
        sending = AsyncProducer(endpoints(nodes), "t", batch_bytes=1)
        async with sending:
            task = asyncio.ensure_future(sending.send_batch([b"0", b"1", b"2"], queue=0))
            while not sending.statistics.accepted:
                await asyncio.sleep(0)
            await sending.close(0)
            with pytest.raises(BatchFailed) as found:
                await asyncio.wait_for(await task, SOON_S)
        failed = [row for failure in found.value.failures for row in failure.rows]
        assert len(failed) + len(groups[0].log) >= 3 and sending.statistics.waiting == 0
        assert any("is closed" in str(failure.error) for failure in found.value.failures)


class Raising(dict[str, str]):
    """Properties whose code raises when they are encoded."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(p="1")
        self.error: BaseException | None = error

    def values(self) -> Any:
        if self.error is not None:
            raise self.error
        return super().values()


def session_of(rows: list[Any]) -> tuple[ProducerSession, Statistics, dict[int, Any]]:
    """A session that is open, with one batch of as many messages; and the outcomes by row."""
    outcomes: dict[int, Any] = {}

    class Told:
        def acknowledged(self, row: int, frame: FrameAcknowledged) -> None:
            outcomes.update((row + at, "stored") for at in range(frame.count))

        def failed(self, row: int, count: int, error: Exception) -> None:
            outcomes.update((row + at, error) for at in range(count))

    statistics = Statistics(accepted=len(rows), waiting_bytes=len(rows))
    session = ProducerSession("g1", ProducerSettings("t"), Gathering(), statistics, {}, Latencies())
    session.opened(pb.ProducerOpened(producer_id=1, log_tag=LOG_TAG, max_frame_bytes=1 << 20))
    bodies = [b"%d" % row for row in range(len(rows))]
    session.add(Batch(Columns(bodies, 0, 1, properties=rows), Told(), 0, len(rows), 100.0))
    return session, statistics, outcomes


@pytest.mark.parametrize(
    "error",
    [
        BufferError,
        RuntimeError,
        KeyError,
        MemoryError,
        OverflowError,
        ZeroDivisionError,
        AssertionError,
    ],
)
@pytest.mark.parametrize("bad", [{0}, {1}, {4}, {0, 4}, {1, 2}, {0, 1, 2, 3, 4}])
def test_error_of_a_value_fails_only_its_message(error: type[Exception], bad: set[int]) -> None:
    """Each row has an outcome, and the others are sent in order."""
    session, statistics, outcomes = session_of(
        [Raising(error("own")) if row in bad else {} for row in range(5)]
    )
    sent = 0
    while (batch := session.next_frame(0.0)) is not None:
        assert batch.first_sequence is not None
        sent += len(batch)
        session.acknowledged(
            pb.FrameAck(first_sequence=batch.first_sequence, count=len(batch)), 0.0
        )
    assert {
        row
        for row, outcome in outcomes.items()
        if isinstance(outcome, BadArgument) and "own" in outcome.what
    } == bad
    assert sorted(outcomes) == list(range(5)) and sent == 5 - len(bad)
    assert session.idle and statistics.waiting == 0 == statistics.waiting_bytes


def test_an_interruption_while_a_frame_is_encoded_loses_no_message() -> None:
    """Such as Ctrl-C in an event loop that goes on afterwards."""
    properties = Raising(KeyboardInterrupt())
    session, statistics, outcomes = session_of([{}, properties])
    with pytest.raises(KeyboardInterrupt):
        session.next_frame(0.0)
    properties.error = None
    batch = session.next_frame(0.0)
    assert batch is not None and len(batch) == 2 and not outcomes and statistics.waiting == 2


@pytest.mark.parametrize("stored", [1, 2])
def test_a_part_in_doubt_that_cannot_be_encoded_again_is_unknown(stored: int) -> None:
    """A leader change kept a part of the frame, and row 1 has changed since. In the part that is
    stored, its numbers must not go to another message: what is behind it goes to another producer.
    In the part that is not, it fails alone."""
    changing = Raising(RuntimeError("changed meanwhile"))
    error, changing.error = changing.error, None
    session, _, outcomes = session_of([{}, changing, {}, {}])
    assert session.next_frame(0.0) is not None
    changing.error = error
    problem = pb.Problem(code=1, message="a part is stored", retryable=True)
    session.rejected(
        pb.FrameRejected(
            first_sequence=0, count=4, position=-1, next_sequence=stored, problem=problem
        ),
        0.0,
    )
    if stored == 2:
        assert session.next_frame(0.0) is None and session.reopen_due
        session.broken()
        session.opened(pb.ProducerOpened(producer_id=2, log_tag=LOG_TAG, max_frame_bytes=1 << 20))
    while (batch := session.next_frame(0.0)) is not None:
        assert batch.first_sequence is not None and (batch.row, batch.first_sequence) in (
            {(0, 0), (2, 1)} if stored == 1 else {(2, 0)}
        )
        session.acknowledged(
            pb.FrameAck(first_sequence=batch.first_sequence, count=len(batch)), 0.0
        )
    told = [
        outcome if outcome == "stored" else outcome.unknown
        for _, outcome in sorted(outcomes.items())
    ]
    assert told == (
        ["stored", False, "stored", "stored"] if stored == 1 else [True, True, "stored", "stored"]
    )
    assert session.idle


def test_a_misspelt_option_is_seen_by_type_checkers() -> None:
    """The blocking producer declares the options of the other one, and both declare the same
    parameters of every method."""
    options = {
        name: parameter
        for name, parameter in signature(AsyncProducer).parameters.items()
        if name not in ("endpoints", "topic")
    }
    assert get_type_hints(ProducerOptions) == {
        name: get_type_hints(AsyncProducer.__init__)[name] for name in options
    }
    assert signature(Producer).parameters["options"].annotation == "Unpack[ProducerOptions]"
    for name in ("send", "send_batch", "send_arrow", "close"):
        blocking, asynchronous = getattr(Producer, name), getattr(AsyncProducer, name)
        assert list(signature(blocking).parameters.values()) == list(
            signature(asynchronous).parameters.values()
        ), name


def threads(
    scenario: Callable[[Producer, list[FakeLogNode]], None], **options: Any
) -> list[FakeBrokerGroup]:
    async def main() -> list[FakeBrokerGroup]:
        async with fake_log(1) as (nodes, groups), asyncio.timeout(30):
            await asyncio.to_thread(scenario, Producer(endpoints(nodes), "t", **options), nodes)
            return groups

    return asyncio.run(main())


def test_a_producer_for_threads_that_is_not_open_says_so() -> None:
    """Before its block, behind it, and in a process that inherited it."""

    def scenario(sending: Producer, nodes: list[FakeLogNode]) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: sending.send(b"a"),
            lambda: sending.send_batch([b"a"]),
            sending.flush,
            sending.next_sequences,
        ]
        for call in calls:
            with pytest.raises(BadArgument):
                call()
        with sending:
            sending.send(b"a").result(SOON_S)
        for call in calls:
            with pytest.raises(BadArgument):
                call()

    threads(scenario)


def test_an_interrupted_close_leaves_no_message_without_an_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C before the loop has begun with it, and while it waits for answers."""

    def scenario(sending: Producer, nodes: list[FakeLogNode]) -> None:
        nodes[0].hold.clear()
        futures = []
        for begun in (False, True):
            producer = Producer(sending._producer.connection.addresses[0].place, "t")
            with pytest.raises(KeyboardInterrupt), producer:
                assert producer._background is not None
                futures.append(producer.send(b"a"))
                wait, turns = producer._background.wait, [0]

                def interrupted(
                    work: Any, begun: bool = begun, wait: Any = wait, turns: list[int] = turns
                ) -> Any:
                    turns[0] += 1
                    if turns[0] > 1:
                        return wait(work)
                    if begun:
                        with pytest.raises(TimeoutError):
                            wait(asyncio.wait_for(work, 0.05))
                    work.close()
                    raise KeyboardInterrupt

                monkeypatch.setattr(producer._background, "wait", interrupted)
        for future in futures:
            with pytest.raises(SendFailed, match="closed"):
                future.result(SOON_S)

    threads(scenario)


def test_messages_of_threads_are_bounded_while_the_loop_is_busy() -> None:
    """Also when nothing else waits: only a single message may be larger than the buffer."""

    def scenario(sending: Producer, nodes: list[FakeLogNode]) -> None:
        with sending:
            blocked = threading.Event()
            assert sending._background is not None
            sending._background.soon(lambda: blocked.wait(5))
            sent: list[int] = []
            pushing = threading.Thread(
                target=lambda: sent.extend(len(str(sending.send(bytes(400)))) for _ in range(50)),
                daemon=True,
            )
            pushing.start()
            while sending._producer.has_room(600, sending._handed_bytes):
                pushing.join(0.001)
            pushing.join(0.05)
            assert sending._handed_bytes <= 5_000
            blocked.set()
            pushing.join(SOON_S)
            assert len(sent) == 50

    threads(scenario, buffer_bytes=5_000)


def test_one_wrong_message_does_not_take_those_behind_it_along() -> None:
    """What threads handed over together is taken one by one."""

    def scenario(sending: Producer, nodes: list[FakeLogNode]) -> None:
        with sending:
            blocked = threading.Event()
            assert sending._background is not None
            sending._background.soon(lambda: blocked.wait(5))
            wrong: Any = "1"
            bad, good = sending.send(b"a", queue=wrong), sending.send(b"b")
            blocked.set()
            with pytest.raises(SendFailed):
                bad.result(SOON_S)
            assert good.result(SOON_S).offset == 0

    assert [message.body for message in threads(scenario)[0].log] == [b"b"]


def test_a_rejected_frame_that_waits_for_the_others_is_out_of_time_too() -> None:
    """Such a frame is neither in flight nor queued; its futures fail at their deadline
    nevertheless."""
    statistics, sink = Statistics(), Futures([])
    session = ProducerSession("g1", ProducerSettings("t"), Gathering(), statistics, {}, Latencies())
    session.opened(pb.ProducerOpened(producer_id=1, log_tag=LOG_TAG, max_frame_bytes=1 << 20))
    for _ in range(2):
        session.add(Batch(Columns([b"a"], 0, 1), sink, 0, 1, 5.0))
        assert session.next_frame(0.0) is not None
    statistics.accepted = 2
    again = pb.Problem(code=STALE_EPOCH, message="again", retryable=True)
    session.rejected(
        pb.FrameRejected(first_sequence=0, count=1, position=-1, next_sequence=0, problem=again),
        0.0,
    )
    assert session.expire(1.0) == 5.0
    assert (
        session.expire(5.0) is None
        and statistics.failed == 2 == statistics.unknown
        and not statistics.waiting
    )
    session.broken()
    session.give_up(SendFailed("the end", "none", unknown=False))
    assert (statistics.failed, statistics.waiting_bytes) == (2, -2) and session.idle


def test_a_consumer_for_threads_outside_of_its_block_says_so() -> None:
    consumer = Consumer("127.0.0.1:1", "t")
    calls: list[Callable[[], Any]] = [
        consumer.next_batch,
        consumer.commit,
        consumer.statistics,
        lambda: consumer.seek(0, 0),
    ]
    for call in calls:
        with pytest.raises(BadArgument, match="with"):
            call()


def test_a_write_that_meets_the_end_of_its_stream_is_no_refusal() -> None:
    """The transport reports that as INTERNAL, whatever the node said: messages are sent again."""
    found = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata())
    assert "INTERNAL" in broken(Address("127.0.0.1", 1), found)[0]
    found = grpc.aio.AioRpcError(
        grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata()
    )
    with pytest.raises(Refused):
        broken(Address("127.0.0.1", 1), found)
