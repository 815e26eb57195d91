"""Producers that are abandoned, closed, cancelled or given invalid input: every message has an outcome, no caller waits forever, and no
message affects others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.client import AsyncProducer, BadArgument, Consumer, Producer, Refused, SendFailed
from ledgermq.client.connection import Address
from ledgermq.client.errors import ClusterError
from ledgermq.client.native.batches import Batch, Futures, Gathering
from ledgermq.client.native.columns import Columns
from ledgermq.client.native.connection import Latencies, broken
from ledgermq.client.native.outcomes import Statistics
from ledgermq.client.native.producer_session import STALE_EPOCH, ProducerSession, ProducerSettings
from ledgermq.client.native.receipt_log import ReceiptLog
from ledgermq.proto import log_pb2 as pb
from tests.client.fake_log import LOG_TAG, FakeBrokerGroup, FakeLogNode, endpoints, fake_log

Scenario = Callable[[list[FakeLogNode], list[FakeBrokerGroup]], Awaitable[None]]
SOON_S = 30.0


def run(scenario: Scenario, nodes: int = 1) -> None:
    async def main() -> None:
        async with fake_log(nodes) as (started, found), asyncio.timeout(30):
            await scenario(started, found)

    asyncio.run(main())


def test_a_future_that_is_cancelled_is_no_failure() -> None:
    """If a caller cancels an acknowledgement, `flush` still returns; the message is stored and counted."""

    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
        async with AsyncProducer(endpoints(nodes), "t") as sending:
            nodes[0].hold.clear()
            future = await sending.send(b"a")
            future.cancel()
            nodes[0].hold.set()
            await asyncio.wait_for(sending.flush(), SOON_S)
            assert (sending.statistics.acknowledged, sending.statistics.late, sending.statistics.waiting) == (1, 0, 0)
        assert [message.body for message in groups[0].log] == [b"a"]

    run(scenario)


def test_a_cancelled_send_has_sent_nothing() -> None:
    """The call that fills a frame yields to the event loop, but not between accepting the message and returning its future."""

    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
        async with AsyncProducer(endpoints(nodes), "t", batch_bytes=1) as sending:
            for _ in range(3):
                before = sending.statistics.accepted
                task = asyncio.ensure_future(sending.send(b"a"))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert sending.statistics.accepted - before == (not task.cancelled())

    run(scenario)


@pytest.mark.parametrize("wrong", [{"tag": "\ud800"}, {"keys": ("\udfff",)}, {"properties": {"a": "\ud800"}}, {"tag": 5}, {"keys": (5,)}])
def test_what_cannot_be_encoded_fails_alone(wrong: dict[str, Any]) -> None:
    """Invalid text or a wrong type is detected when a frame is encoded; the other messages are sent."""

    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
        async with AsyncProducer(endpoints(nodes), "t", linger_ms=50) as sending:
            try:
                futures = [await sending.send(b"a", queue=0), await sending.send(b"b", queue=0, **wrong), await sending.send(b"c", queue=0)]
            except TypeError:
                # Scenario at once.
                return
            await asyncio.wait_for(sending.flush(), SOON_S)
            with pytest.raises(BadArgument):
                await futures[1]
            assert [(await future).offset for future in (futures[0], futures[2])] == [0, 1]

    run(scenario)


def test_a_batch_with_a_wrong_body_tells_which() -> None:
    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
        async with AsyncProducer(endpoints(nodes), "t") as sending:
            bodies: Any = [b"a", "text", b"c"]
            with pytest.raises(SendFailed, match="first row 1"):
                await asyncio.wait_for(await sending.send_batch(bodies, queue=0), SOON_S)
        assert groups[0].bodies(0) == [b"a", b"c"]

    run(scenario)


def test_whoever_waits_in_flush_hears_of_the_end() -> None:
    """Also when the producer is closed meanwhile, by another task, without patience."""

    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
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

    run(scenario)


def test_receipts_that_cannot_be_kept_end_the_producer(tmp_path: Path) -> None:
    """The producer ends at once with the reason, instead of sending messages whose receipts are lost."""

    class Full(ReceiptLog):
        def write(self, receipt: Any) -> None:
            raise OSError(28, "No space left on device")

    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
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

    run(scenario)


def test_a_node_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames beyond what the transport takes do not keep the producer there."""
    monkeypatch.setattr("ledgermq.client.native.stream.FINAL_ANSWER_S", 0.05)

    class Deaf:
        """A call whose frames are never read."""

        def __init__(self, call: Any) -> None:
            self.read, self.cancel, self._call = call.read, call.cancel, call

        async def write(self, request: pb.ProduceRequest) -> None:
            if request.HasField("frame"):
                await asyncio.Event().wait()
            await self._call.write(request)

    async def scenario(nodes: list[FakeLogNode], groups: list[FakeBrokerGroup]) -> None:
        async with AsyncProducer(endpoints(nodes), "t") as sending:
            open_stream = sending.connection.stream
            calls = iter([Deaf])
            monkeypatch.setattr(sending.connection, "stream", lambda *words: next(calls, lambda call: call)(open_stream(*words)))
            sending._streams["g1"]._answer_timeout_s = 0.1
            done = await asyncio.wait_for(await sending.send(b"a"), SOON_S)
            assert done.offset == 0 and sending.statistics.streams == 2

    run(scenario)


def threads(scenario: Callable[[Producer, list[FakeLogNode]], None], **options: Any) -> list[FakeBrokerGroup]:
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
    """Such a frame is neither in flight nor queued; its futures fail at their deadline nevertheless."""
    statistics, sink = Statistics(), Futures([])
    session = ProducerSession("g1", ProducerSettings("t"), Gathering(), statistics, {}, Latencies())
    session.opened(pb.ProducerOpened(producer_id=1, log_tag=LOG_TAG, max_frame_bytes=1 << 20))
    for _ in range(2):
        session.add(Batch(Columns([b"a"], 0, 1), sink, 0, 1, 5.0))
        assert session.next_frame(0.0) is not None
    statistics.accepted = 2
    again = pb.Problem(code=STALE_EPOCH, message="again", retryable=True)
    session.rejected(pb.FrameRejected(first_sequence=0, count=1, position=-1, next_sequence=0, problem=again), 0.0)
    assert session.expire(1.0) == 5.0
    assert session.expire(5.0) is None and statistics.failed == 2 == statistics.unknown and not statistics.waiting
    session.broken()
    session.give_up(SendFailed("the end", "none", unknown=False))
    assert (statistics.failed, statistics.waiting_bytes) == (2, -2) and session.idle


def test_a_consumer_for_threads_outside_of_its_block_says_so() -> None:
    consumer = Consumer("127.0.0.1:1", "t")
    calls: list[Callable[[], Any]] = [consumer.next_batch, consumer.commit, consumer.statistics, lambda: consumer.seek(0, 0)]
    for call in calls:
        with pytest.raises(BadArgument, match="with"):
            call()


def test_a_write_that_meets_the_end_of_its_stream_is_no_refusal() -> None:
    """The transport reports that as INTERNAL, whatever the node said: messages are sent again."""
    found = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata())
    assert "INTERNAL" in broken(Address("127.0.0.1", 1), found)[0]
    found = grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata())
    with pytest.raises(Refused):
        broken(Address("127.0.0.1", 1), found)
