"""Producers against misbehaving nodes in this process: no loss, no duplicates, order kept, memory
bounded, and an outcome for every message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import (
    AsyncProducer,
    BadArgument,
    BatchFailed,
    Producer,
    ProducerFenced,
    Refused,
    SendFailed,
)
from ledgermq.client.api import connection
from ledgermq.client.native.producers.outcomes import Statistics
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.proofs.receipts import receipt_of
from ledgermq.proto.signature import AUTHORIZATION, Credentials
from tests.client.fake_log import FakeBrokerGroup, FakeLogNode, Trouble, endpoints, fake_log

Scenario = Callable[[list[FakeLogNode], list[FakeBrokerGroup]], Awaitable[None]]


def producer(nodes: list[FakeLogNode], **options: Any) -> AsyncProducer:
    return AsyncProducer(endpoints(nodes), "t", **options)


async def test_a_message_is_acknowledged_with_its_place_and_found_there() -> None:
    """Queue, offset and id are those in the log; tag, keys and properties arrive."""
    async with fake_log() as (nodes, groups):
        async with producer(nodes, credentials=Credentials("ann", "s")) as sending:
            done = await (
                await sending.send(
                    b"hello", tag="a", keys=("k 1", "k2"), properties={"x": "y"}, queue=2
                )
            )
            again = await (await sending.send(b"world", queue=2))
        assert "Credential=ann" in nodes[0].metadata[AUTHORIZATION]
        first, second = groups[0].log
        assert (done.queue, done.group_queue, done.offset, done.broker_group) == (2, 2, 0, "g1")
        assert again.offset == 1 and second.offset == 1
        assert (
            done.message_id == first.properties["UNIQ_KEY"]
            and again.message_id == second.properties["UNIQ_KEY"]
        )
        assert (first.body, first.queue, first.properties["TAGS"], first.properties["x"]) == (
            b"hello",
            2,
            "a",
            "y",
        )
        assert done.receipt is not None and done.receipt.count == 1


@pytest.mark.parametrize("trouble", list(Trouble))
async def test_troubled_frames_store_each_message_once_and_in_order(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for the frames in flight behind it. A refused message fails alone."""
    monkeypatch.setattr("ledgermq.client.native.producers.stream.ANSWER_TIMEOUT_S", 0.3)

    async with fake_log(nodes=2) as (nodes, groups):
        nodes[0].troubles = [Trouble.NONE, trouble]
        bodies = [b"%04d" % number for number in range(40)]
        async with producer(nodes) as sending:
            sending._streams["g1"]._answer_timeout_s = 0.3
            futures = []
            for body in bodies:
                futures.append(await sending.send(body, queue=1))
                if len(futures) == 1:
                    # The stream is open then, so that there is a second frame to be in trouble,
                    # however slow the machine is.
                    await futures[0]
                if len(futures) % 8 == 0:
                    await asyncio.sleep(0.001)
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            statistics = sending.statistics
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert len(refused) == (trouble is Trouble.REFUSE)
        assert all(isinstance(error, Refused) and not error.unknown for error in refused)
        good = [
            (body, outcome)
            for body, outcome in zip(bodies, outcomes, strict=True)
            if not isinstance(outcome, BaseException)
        ]
        assert groups[0].bodies(1) == [body for body, _ in good]
        assert [outcome.offset for _, outcome in good] == list(range(len(good)))
        assert (
            statistics.acknowledged == len(good)
            and statistics.waiting == 0 == statistics.waiting_bytes
        )
        assert statistics.frames_cut == (trouble is Trouble.PART)


async def test_a_batch_is_cut_into_frames_over_all_queues() -> None:
    """One run of messages a frame; the rows of every frame are where its receipt says."""
    async with fake_log() as (nodes, groups):
        bodies = [b"%06d" % number for number in range(3000)]
        async with producer(nodes, batch_bytes=50_000) as sending:
            done = await (await sending.send_batch(bodies, tags="x"))
        assert done.count == 3000 and len(done.frames) > 8
        assert {message.queue for message in groups[0].log} == {0, 1, 2, 3}
        places = {(message.queue, message.offset): message.body for message in groups[0].log}
        for frame, rows in zip(done.frames, done.rows, strict=True):
            assert frame.offsets is not None
            for row, offset in zip(rows, frame.offsets.tolist(), strict=True):
                assert places[int(frame.queues), offset] == bodies[row]  # type: ignore[arg-type]


async def test_order_keys_decide_the_queue_over_several_broker_groups() -> None:
    """Messages of a key share a queue, one by one and in batches, and keep their order."""
    async with fake_log(groups=[FakeBrokerGroup("g1", 2), FakeBrokerGroup("g2", 3)]) as (
        nodes,
        groups,
    ):
        keys = [f"k{number % 7}" for number in range(140)]
        bodies = [b"%s-%d" % (key.encode(), number) for number, key in enumerate(keys)]
        async with producer(nodes) as sending:
            done = await (await sending.send_batch(bodies[:70], order_keys=keys[:70]))
            for body, key in zip(bodies[70:], keys[70:], strict=True):
                await sending.send(body, order_key=key)
        assert done.count == 70 and sorted(row for rows in done.rows for row in rows) == list(
            range(70)
        )
        where: dict[bytes, set[tuple[str, int]]] = {}
        for group in groups:
            for queue in range(group.queues):
                found = group.bodies(queue)
                assert [int(body.split(b"-")[1]) for body in found] == sorted(
                    int(body.split(b"-")[1]) for body in found
                )
                for body in found:
                    where.setdefault(body.split(b"-")[0], set()).add((group.name, queue))
        assert len(where) == 7 and all(len(places) == 1 for places in where.values())
        assert sum(len(group.log) for group in groups) == 140


async def test_a_slow_broker_group_is_not_used_while_there_is_another() -> None:
    """Frames are sent in runs to the queues of the fast group."""
    async with fake_log(groups=[FakeBrokerGroup("g1", 2), FakeBrokerGroup("g2", 2)]) as (
        nodes,
        groups,
    ):
        async with producer(nodes) as sending:
            sending.connection.latencies.took("g1", 3000)
            for number in range(12):
                await (await sending.send(b"%d" % number))
        assert not groups[0].log and len(groups[1].log) == 12


async def test_messages_avoid_a_broker_group_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three groups on three nodes, one killed: messages without a fixed queue go to the other two
    groups. Messages that waited for the dead group are stored when another node leads it; every
    acknowledged message is stored once."""
    monkeypatch.setattr("ledgermq.client.native.log_connection.MISSED_S", 60.0)

    async with fake_log(
        nodes=3, groups=[FakeBrokerGroup(name, 2) for name in ("g1", "g2", "g3")]
    ) as (nodes, groups):
        for node, group in zip(nodes, groups, strict=True):
            node.leads = {group.name}
        async with producer(nodes[1:]) as sending, asyncio.timeout(30):
            for number in range(30):
                await (await sending.send(b"before-%d" % number))
            assert all(group.log for group in groups)
            await nodes[0].stop()
            nodes[0].leads.clear()
            waiting = await sending.send(b"waits", queue=0)
            while "g1" in sending.connection.latencies.usable(["g1", "g2", "g3"]):
                await asyncio.sleep(0.01)
            stored = [len(group.log) for group in groups]
            for number in range(60):
                await (await sending.send(b"after-%d" % number))
            assert len(groups[0].log) == stored[0] and not waiting.done()
            assert all(
                len(group.log) > before
                for group, before in zip(groups[1:], stored[1:], strict=True)
            )
            nodes[2].leads.add("g1")
            assert (await waiting).broker_group == "g1"
        bodies = sorted(message.body for group in groups for message in group.log)
        wanted = [
            b"waits",
            *(b"before-%d" % number for number in range(30)),
            *(b"after-%d" % number for number in range(60)),
        ]
        assert bodies == sorted(wanted)


async def test_memory_is_bounded_without_answers() -> None:
    """Senders wait for room; at most the buffer is held, and at most five frames of the window are
    in flight."""
    async with fake_log() as (nodes, groups):
        nodes[0].hold.clear()
        most = 0
        async with producer(nodes, buffer_bytes=200_000, batch_bytes=10_000) as sending:

            async def push() -> None:
                for _ in range(3000):
                    await sending.send(bytes(1000))

            pushing = asyncio.create_task(push())
            for _ in range(200):
                await asyncio.sleep(0.001)
                most = max(most, sending.statistics.waiting_bytes)
            assert not pushing.done() and 150_000 < most <= 200_000
            assert sending.statistics.frames <= 5
            nodes[0].hold.set()
            await pushing
            await sending.flush()
            assert sending.statistics.acknowledged == 3000
        assert len(groups[0].log) == 3000


async def test_out_of_time_is_a_definite_error_or_an_unknown_one() -> None:
    """A message that was on the wire may be stored; one that never was is not."""
    async with fake_log() as (nodes, groups):
        nodes[0].hold.clear()
        async with producer(nodes, timeout_s=2, window_bytes=1000) as sending:
            first = await sending.send(bytes(900))
            while not nodes[0].frames:
                await asyncio.sleep(0.001)
            second = await sending.send(bytes(900))
            for future, unknown in ((first, True), (second, False)):
                with pytest.raises(SendFailed) as found:
                    await future
                assert found.value.unknown is unknown and found.value.retryable
            nodes[0].hold.set()
            await (await sending.send(b"third"))
            assert sending.statistics.late == 1
        assert [len(message.body) for message in groups[0].log] == [900, 5]


async def test_a_name_opened_elsewhere_fences_the_older_producer() -> None:
    """The newer producer continues the sequence numbers; the older one fails permanently."""
    async with fake_log() as (nodes, groups):
        async with producer(nodes, name="loader") as older:
            await (await older.send(b"1"))
            async with producer(nodes, name="loader") as newer:
                assert await newer.next_sequences() == {"g1": 1}
                await (await newer.send(b"2"))
                with pytest.raises(ProducerFenced, match="loader") as found:
                    await (await older.send(b"3"))
                assert not found.value.unknown
                with pytest.raises(ProducerFenced):
                    await older.send(b"4")
                with pytest.raises(BatchFailed, match="loader"):
                    await (await older.send_batch([b"5"]))
        assert [message.body for message in groups[0].log] == [b"1", b"2"]


async def test_one_bad_message_of_a_batch_fails_alone() -> None:
    """The failure says the row and the reason; the others are stored in order."""
    async with fake_log() as (nodes, groups):
        bodies = [b"%d" % number for number in range(100)]
        bodies[37], bodies[60] = b"", bytes(2 << 20)
        async with producer(nodes) as sending:
            with pytest.raises(BatchFailed, match="2 messages") as found:
                await (await sending.send_batch(bodies, queue=0))
        failed = {row: failure.error for failure in found.value.failures for row in failure.rows}
        assert set(failed) == {37, 60} and not found.value.unknown
        assert "empty" in str(failed[37]) and "limit" in str(failed[60])
        assert groups[0].bodies(0) == [body for row, body in enumerate(bodies) if row not in failed]


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
async def test_bodies_above_a_size_are_compressed(kind: Any) -> None:
    """What does not become smaller is stored as it is."""
    async with fake_log() as (nodes, groups):
        async with producer(nodes, compression=kind, compress_over=1000) as sending:
            await (await sending.send(b"a" * 5000, queue=0))
            await (await sending.send(b"a" * 1000, queue=0))
        assert [(message.body, bool(message.sysflag)) for message in groups[0].log] == [
            (b"a" * 5000, True),
            (b"a" * 1000, False),
        ]


async def test_linger_gathers_messages_into_one_frame() -> None:
    """A full batch, and a flush, do not wait for it."""
    async with (
        fake_log() as (nodes, _),
        producer(nodes, linger_ms=60_000, batch_bytes=5_000) as sending,
    ):
        futures = [await sending.send(b"%d" % number) for number in range(3)]
        await asyncio.sleep(0.05)
        assert not nodes[0].frames
        await sending.flush()
        await asyncio.gather(*futures)
        assert len(nodes[0].frames) == 1
        await (await sending.send(bytes(6_000)))
        assert len(nodes[0].frames) == 2


async def test_progress_receipts_and_statistics(tmp_path: Path) -> None:
    """The file of receipts holds one row a frame, each again the receipt it was; the callback sees
    the count rise."""
    parquet = pytest.importorskip("pyarrow.parquet")
    seen: list[int] = []

    async with fake_log() as (nodes, _):
        path = tmp_path / "receipts.parquet"
        options: dict[str, Any] = {
            "receipt_log": path,
            "on_progress": lambda found: seen.append(found.acknowledged),
            "batch_bytes": 10_000,
        }
        async with producer(nodes, **options) as sending:
            done = await (await sending.send_batch([bytes(100)] * 500))
            assert isinstance(sending.statistics, Statistics) and sending.statistics.latency_ms > 0
        rows = parquet.read_table(path).to_pylist()
        assert [receipt_of(row) for row in rows] == [frame.receipt for frame in done.frames]
        assert seen == sorted(seen) and seen[-1] == 500
        with pytest.raises(BadArgument, match="exists"):
            producer(nodes, receipt_log=path)


async def test_an_arrow_table_is_sent_by_its_columns() -> None:
    """Slices and chunks included; other types become text, and a missing value is no property."""
    pa = pytest.importorskip("pyarrow")

    async with fake_log() as (nodes, groups):
        columns = {
            "body": [b"a", b"b", b"c"],
            "tag": ["x", None, "z"],
            "id": [1, 2, 3],
            "note": ["n", None, "m"],
            "key": ["k", "k", "l"],
        }
        table = pa.concat_tables([pa.table(columns)] * 2).slice(1)
        async with producer(nodes) as sending:
            await (
                await sending.send_arrow(
                    table, tag="tag", keys="key", properties=["id", "note"], queue=3
                )
            )
            with pytest.raises(BadArgument, match="nobody"):
                await sending.send_arrow(table, body="nobody")
            with pytest.raises(BadArgument, match="row 0"):
                await sending.send_arrow(pa.table({"body": [None, b"x"]}))
        found = [
            (m.body, m.properties.get("TAGS"), m.properties.get("id"), m.properties.get("note"))
            for m in groups[0].log
        ]
        second, third = (b"b", None, "2", None), (b"c", "z", "3", "m")
        assert found == [second, third, (b"a", "x", "1", "n"), second, third]


async def test_topics_of_other_kinds_and_topics_that_are_not_there() -> None:
    """Said before anything is sent."""
    async with fake_log() as (nodes, _):
        nodes[0].kind = "fifo"
        with pytest.raises(BadArgument, match="fifo"):
            await producer(nodes).__aenter__()
        with pytest.raises(Refused, match="does not exist"):
            await AsyncProducer(endpoints(nodes), "other").__aenter__()


async def test_leaving_by_an_exception_fails_unanswered_messages() -> None:
    """Its futures fail; nothing waits."""
    async with fake_log() as (nodes, _):
        nodes[0].hold.clear()
        futures = []
        with pytest.raises(ZeroDivisionError):
            async with producer(nodes) as sending:
                futures.append(await sending.send(b"1"))
                while not nodes[0].frames:
                    await asyncio.sleep(0.001)
                raise ZeroDivisionError
        with pytest.raises(SendFailed, match="closed") as found:
            await futures[0]
        assert found.value.unknown
        with pytest.raises(BadArgument, match="closed"):
            await sending.send(b"2")
        nodes[0].hold.set()


async def test_the_producer_for_threads() -> None:
    """Order from one thread, room for many, batches behind single messages, and an end that
    flushes."""
    async with fake_log() as (nodes, groups):

        def work() -> None:
            with Producer(endpoints(nodes), "t", buffer_bytes=100_000) as sending:
                futures = [sending.send(b"%05d" % number, queue=0) for number in range(2000)]
                batch = sending.send_batch(
                    [b"%05d" % number for number in range(2000, 2100)], queue=0
                )
                last = sending.send(b"02100", queue=0)
                sending.flush()
                assert (
                    futures[-1].result(0).offset == 1999
                    and batch.result(5).count == 100
                    and last.result(0).offset == 2100
                )
                late = sending.send(b"02101", queue=0)
            assert late.result(0).offset == 2101
            assert sending.statistics.acknowledged == 2102
            with pytest.raises(BadArgument, match="closed"):
                sending.send(b"x")

        await asyncio.to_thread(work)
        assert groups[0].bodies(0) == [b"%05d" % number for number in range(2102)]


async def test_refused_opening_fails_waiting_messages_and_is_retried() -> None:
    """Such as a permission that comes late."""
    async with fake_log() as (nodes, groups):
        problem = pb.ProduceResponse(
            problem=pb.Problem(code=40300, message="the topic does not permit this")
        )
        opening, groups[0].open = groups[0].open, lambda hello: problem  # type: ignore[method-assign]
        async with producer(nodes) as sending:
            with pytest.raises(Refused, match="permit") as found:
                await (await sending.send(b"1"))
            assert not found.value.unknown
            with pytest.raises(Refused):
                await sending.next_sequences()
            groups[0].open = opening  # type: ignore[method-assign]
            assert (await (await sending.send(b"2"))).offset == 0


class Relay:
    """A door to a node. When it falls silent, bytes of its connections go nowhere, as after a node
    came back at another address; new connections work."""

    def __init__(self, endpoint: str) -> None:
        self._to = endpoint.rpartition(":")
        self._living: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fall_silent(self) -> None:
        for task in self._living:
            task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._to[0], int(self._to[2]))
        ways = [
            asyncio.create_task(self._copy(*ends)) for ends in ((reader, back), (there, writer))
        ]
        self._living.update(ways)
        self._tasks += ways

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_a_connection_that_dies_without_a_word_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packets to an address without a host are neither answered nor refused, and TCP retries for a
    quarter of an hour."""
    waits = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    short = [(name, 300 if name in waits else value) for name, value in connection.OPTIONS]
    monkeypatch.setattr(connection, "OPTIONS", short)

    async with fake_log() as (nodes, groups):
        async with Relay(nodes[0].endpoint) as relay:
            nodes[0].endpoint = relay.endpoint
            async with producer(nodes, timeout_s=20.0) as sending:
                await (await sending.send(b"before", queue=0))
                relay.fall_silent()
                await (await sending.send(b"after", queue=0))
        assert groups[0].bodies(0) == [b"before", b"after"]


def lead(node: FakeLogNode, group: FakeBrokerGroup) -> None:
    """The topic gets queues in one more broker group, led there."""
    node.groups[group.name] = group
    node.leads.add(group.name)


async def test_a_producer_learns_of_queues_that_its_topic_gets_while_it_runs() -> None:
    """In a broker group that it knew, and in one that it did not, which comes first by name:
    numbers change, also those of what was acknowledged before. Messages of a key stay in order
    within the queue they had and within the one they get."""
    async with fake_log(groups=[FakeBrokerGroup("g1", 2)]) as (nodes, groups):
        keys = [f"k{number}" for number in range(9)]
        new = FakeBrokerGroup("g0", 2)
        async with producer(nodes) as sending:
            first = [await sending.send(b"%s-0" % key.encode(), order_key=key) for key in keys]
            before = await asyncio.gather(*first)
            assert {done.queue for done in before} == {0, 1}
            groups[0].queues = 4
            lead(nodes[0], new)
            await sending.refresh()
            second = [await sending.send(b"%s-1" % key.encode(), order_key=key) for key in keys]
            third = await sending.send_batch(
                [b"%s-2" % key.encode() for key in keys], order_keys=keys
            )
            with pytest.raises(BadArgument, match="no queue 6"):
                await sending.send(b"x", queue=6)
            after = await asyncio.gather(*second)
            anywhere = [await (await sending.send(b"any")) for _ in range(6)]
            await third
            assert await sending.next_sequences() == {"g0": len(new.log), "g1": len(groups[0].log)}
        assert {done.queue for done in before} == {2, 3}, (
            "numbers are those of all queues known now"
        )
        assert len({done.broker_group for done in after}) == 2 and {
            done.queue for done in anywhere
        } == set(range(6))
        for key in map(str.encode, keys):
            places = [
                (group, queue, body)
                for group in (new, *groups)
                for queue in range(group.queues)
                for body in group.bodies(queue)
            ]
            found = [
                (group.name, queue, body)
                for group, queue, body in places
                if body.startswith(key + b"-")
            ]
            later = [body for group, queue, body in found if body != key + b"-0"]
            assert later == [key + b"-1", key + b"-2"] and len(found) == 3
            assert len({(group, queue) for group, queue, body in found if body != key + b"-0"}) == 1


async def test_a_producer_asks_for_queues_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer also continues with the known queues after an answer that the topic does not
    exist."""
    monkeypatch.setattr("ledgermq.client.native.producers.producer.ROUTE_S", 0.01)

    async with fake_log() as (nodes, groups), producer(nodes) as sending:
        await (await sending.send(b"opens the stream"))
        nodes[0].groups.clear()
        with pytest.raises(Refused):
            await sending.refresh()
        await (await sending.send(b"still there"))
        groups[0].queues = 5
        lead(nodes[0], groups[0])
        while not groups[0].bodies(4):
            await (await sending.send(b"anywhere"))


async def test_flush_waits_for_a_broker_group_that_came_meanwhile() -> None:
    """What it gathers is sent at once as well, however long it would linger."""
    async with fake_log(groups=[FakeBrokerGroup("g1", 1)]) as (nodes, groups):
        new = FakeBrokerGroup("g2", 1)
        async with producer(nodes, linger_ms=3_600_000) as sending:
            nodes[0].hold.clear()
            await sending.send(b"a", queue=0)
            flushing = asyncio.create_task(sending.flush())
            while not nodes[0].frames:
                await asyncio.sleep(0)
            lead(nodes[0], new)
            await sending.refresh()
            await sending.send(b"b", queue=1)
            nodes[0].hold.set()
            await flushing
        assert groups[0].bodies(0) == [b"a"] and new.bodies(0) == [b"b"]
        assert all(stream.session.flushing == 0 for stream in sending._streams.values())


async def test_threads_can_have_a_producer_learn_of_new_queues() -> None:
    """The blocking producer learns on its own loop."""
    async with fake_log() as (nodes, groups):

        def work() -> None:
            with Producer(endpoints(nodes), "t") as sending:
                groups[0].queues = 6
                sending.refresh()
                assert sending.send(b"x", queue=5).result().queue == 5

        await asyncio.to_thread(work)
