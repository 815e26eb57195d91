"""Queries over two broker groups and two nodes: order, pages, the index's lag, copies, consumption,
progress and resets."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import Receive, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Reset
from ledgermq.node.broker.calls.read_calls import CommitOffset, Peek, Peeked
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import last_store_ms
from ledgermq.node.broker.parts.pulls import reads
from ledgermq.node.frontend.admin.messages import group_queries, peeks, queries
from ledgermq.node.frontend.admin.messages.copies import copy_of
from ledgermq.proto import admin_pb2
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.proto.status import Code, LedgerError
from tests.node.query_bench import NAME, QueryBench, bodies, started_bench
from tests.node_core.core_fakes import SECOND

QUEUES = [("g1", 0), ("g1", 1), ("g2", 0)]


async def pages(bench: QueryBench, at: int, size: int, **what: Any) -> list[list[str]]:
    """Every page of a query, asked of one of the nodes."""
    request = admin_pb2.QueryRequest(topic=NAME, max=size, **what)
    found = []
    while True:
        answer = await bench.queries[at].query(bench.topic, request)
        assert len(answer.messages) <= size
        found.append(bodies(answer))
        if not answer.next:
            return found
        assert answer.messages, "a page that is not the last one is not empty"
        request.after = answer.next


async def fill(bench: QueryBench, seed: int, count: int = 40) -> list[tuple[int, str]]:
    """Messages with the key k in random queues, many of them in the same millisecond: (store time,
    body)."""
    rng = Random(seed)
    sent = []
    for number in range(count):
        group, queue = rng.choice(QUEUES)
        await bench.send(group, queue, f"m{number}", key="k")
        sent.append((bench.now_ms, f"m{number}"))
        bench.pass_ms(rng.choice((0, 0, 0, 1, 700)))
    return sent


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
async def test_pages_hold_every_message_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By key newest first, by time oldest first, from any node, however small the pages and the
    byte limits are."""
    rng = Random(seed)
    if seed % 2:
        monkeypatch.setattr(group_queries, "ANSWER_BYTES", rng.choice((1, 6, 600)))
        monkeypatch.setattr(queries, "ANSWER_BYTES", rng.choice((1, 6, 600)))
        monkeypatch.setattr(group_queries, "BUFFER_BYTES", 300)
        monkeypatch.setattr(group_queries, "PAGE", 3)

    async with started_bench() as bench:
        sent = await fill(bench, seed)
        times = dict(map(reversed, sent))  # type: ignore[arg-type]
        for at in (0, 1):
            for size in (1, 3, 1000):
                by_key = [body for page in await pages(bench, at, size, key="k") for body in page]
                by_time = [body for page in await pages(bench, at, size) for body in page]
                assert sorted(by_key) == sorted(by_time) == sorted(times)
                assert [times[body] for body in by_key] == sorted(times.values(), reverse=True)
                assert [times[body] for body in by_time] == sorted(times.values())
        begin, end = sent[10][0], sent[30][0]
        wanted = {body for ms, body in sent if begin <= ms < end}
        for what in ({}, {"key": "k"}):
            found = [
                body
                for page in await pages(bench, 1, 4, begin_ms=begin, end_ms=end, **what)
                for body in page
            ]
            assert set(found) == wanted and len(found) == len(wanted)


@pytest.mark.parametrize("seed", range(3))
async def test_answers_go_by_the_times_that_count(seed: int) -> None:
    """Behind a time epoch, order, pages, ranges of time and shown times are those at which messages
    count as stored."""
    async with started_bench() as bench:
        await fill(bench, seed)
        times: dict[str, int] = {}
        for group in ("g1", "g2"):
            machine = bench.engines[0].hosted[group].machine
            entries = bench.engines[0].replicators[group].log.ranges
            middle = entries[len(entries) // 2]
            # As if everything before the middle had been stored later than that counts.
            begin = TimeEpoch(
                middle.first_index, middle.pos, last_store_ms(entries[len(entries) // 4])
            )
            machine.time_epochs = TimeEpochs([begin])
            for queue in range(machine.topics["t"].queues):
                for position, size in zip(
                    *machine.units("t", queue, 0, machine.end("t", queue))[:2], strict=True
                ):
                    record = decode_record(machine.record(int(position), int(size)))
                    times[record.body.decode()] = machine.time_epochs.counted(
                        record.store_ms, record.physical_offset
                    )
        assert len(set(times.values())) < len(times) == 40
        for size in (3, 1000):
            by_key = [body for page in await pages(bench, 1, size, key="k") for body in page]
            by_time = [body for page in await pages(bench, 1, size) for body in page]
            assert sorted(by_key) == sorted(by_time) == sorted(times)
            assert [times[body] for body in by_key] == sorted(times.values(), reverse=True)
            assert [times[body] for body in by_time] == sorted(times.values())
        for begin_ms, end_ms in (
            (min(times.values()), max(times.values())),
            (sorted(times.values())[10], sorted(times.values())[30]),
        ):
            wanted = sorted(body for body, ms in times.items() if begin_ms <= ms < end_ms)
            for what in ({}, {"key": "k"}):
                found = [
                    body
                    for page in await pages(bench, 0, 4, begin_ms=begin_ms, end_ms=end_ms, **what)
                    for body in page
                ]
                assert sorted(found) == wanted
        answer = await bench.queries[0].query(
            bench.topic, admin_pb2.QueryRequest(topic=NAME, max=1000)
        )
        assert {message.body.decode(): message.store_ms for message in answer.messages} == times
        newest = await bench.peeks[0].peek(
            bench.topic, admin_pb2.PeekRequest(topic=NAME, max=5, latest=True)
        )
        assert (
            sorted(times[message.body.decode()] for message in newest.messages)
            == sorted(times.values())[-5:]
        )
        whole = await bench.peeks[0].peek(
            bench.topic, admin_pb2.PeekRequest(topic=NAME, max=1000, earliest=True)
        )
        assert all(
            message.store_ms == times[message.body.decode()]
            for message in (*newest.messages, *whole.messages)
        )


async def test_a_scan_holds_no_more_than_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues and however long their messages: pages give way and are read again."""
    monkeypatch.setattr(group_queries, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(group_queries, "PAGE_BYTES", 15_000)
    held = []

    class Watched(group_queries._Scan):
        async def take(self) -> tuple[int, int, bytes] | None:
            taken = await super().take()
            held.append(sum(len(record) for page in self._pages.values() for record in page))
            return taken

    monkeypatch.setattr(group_queries, "_Scan", Watched)

    async with started_bench() as bench:
        for number in range(60):
            await bench.send(*QUEUES[number % 2], f"{number:04}" + "x" * 1000)
            bench.pass_ms(1)
        found = [body[:4] for page in await pages(bench, 0, 1000) for body in page]
        assert found == [f"{number:04}" for number in range(60)]
        assert 10_000 < max(held) <= 10_000 + 15_000


async def test_scan_continues_behind_a_concurrent_trim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two pages of a queue messages may go: those that stay keep their offsets, and a queue
    that lost all of them just ends."""
    monkeypatch.setattr(group_queries, "PAGE", 2)

    async with started_bench() as bench:
        for number in range(12):
            await bench.send("g1", number % 2, f"m{number}")
            bench.pass_ms(1)
        begins = {0: 0, 1: 0}
        peeked: list[Peek] = []

        def peek(machine: Machine, call: Peek) -> Peeked:
            # As after a trim that was applied behind the first look at each queue.
            peeked.append(call)
            if len(peeked) > 2:
                begins.update({0: 4, 1: 6})
            first = min(max(call.offset, begins[call.queue]), 6)
            whole = whole_peek(
                machine, Peek(call.token, call.topic, call.queue, first, call.max_messages)
            )
            assert isinstance(whole, Peeked)
            return whole

        whole_peek = reads.peek
        monkeypatch.setattr(reads, "peek", peek)
        (page,) = await pages(bench, 0, 1000)
        assert (
            page[:4] == ["m0", "m1", "m2", "m3"]
            and set(page[4:]) <= {"m8", "m10"}
            and page[-1] == "m10"
        )
        answer = await bench.queries[0].query(bench.topic, admin_pb2.QueryRequest(topic=NAME))
        assert [(message.body.decode(), message.offset) for message in answer.messages] == [
            ("m8", 4),
            ("m10", 5),
        ]


async def test_a_found_message_is_shown_as_peek_shows_it() -> None:
    """Queue numbers count over all broker groups; the position inside the group is reported too."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a", key="x")
        await bench.send("g2", 0, "b", key="k")
        (found,) = (
            await bench.queries[1].query(bench.topic, admin_pb2.QueryRequest(topic=NAME, key="k"))
        ).messages
        (peeked,) = (
            await bench.peeks[1].peek(bench.topic, admin_pb2.PeekRequest(topic=NAME, queue=2))
        ).messages
        assert found == peeked and (
            found.queue,
            found.broker_group,
            found.group_queue,
            found.offset,
        ) == (2, "g2", 0, 0)


async def test_keys_and_ids_are_not_mixed_up() -> None:
    """One index serves both: a key that looks like an id finds no id, and many messages with such a
    key do not hide it."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "real", message_id="X")
        for number in range(30):
            await bench.send("g1", 0, f"m{number}", key="X")
        assert await pages(bench, 0, 2, message_id="X") == [["real"]]
        assert sum(map(len, await pages(bench, 0, 7, key="X"))) == 30
        assert await pages(bench, 0, 2, message_id="id-real") == [[]]


async def test_recreated_topic_hides_messages_of_its_former_incarnation() -> None:
    """Messages of an older incarnation are found neither by key nor by time."""
    async with started_bench() as bench:
        await fill(bench, 1, 9)
        bench.state.command({"op": "delete-topic", "ns": "", "name": "t"})
        bench.state.command(
            {
                "op": "create-topic",
                "ns": "",
                "name": "t",
                "kind": "normal",
                "queues": 3,
                "permission": "rw",
            }
        )
        engine = bench.engines[0]
        for group in ("g1", "g2"):
            await engine.call(group, Configure(engine.new_token(), deleted_topics=("t",)))
            await engine.call(
                group, Configure(engine.new_token(), bench.state.state.topics_of(group))
            )
        await bench.send("g1", 0, "new", key="k")
        assert await pages(bench, 0, 10, key="k") == await pages(bench, 0, 10) == [["new"]]


async def test_a_query_waits_for_the_index_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is called absent that the index has not reached: the answer names the broker group,
    or comes once the index is there."""
    monkeypatch.setattr(group_queries, "INDEXED_WITHIN_S", 0.05)

    async with started_bench() as bench:
        await bench.send("g1", 0, "a", key="k")
        hosted = bench.engines[0].hosted["g1"]
        hosted.key_index.next_index = 1
        answer = await bench.queries[0].query(
            bench.topic, admin_pb2.QueryRequest(topic=NAME, key="k")
        )
        applied = hosted.machine.applied_index
        assert [(p.broker_group, p.indexed_to, p.applied_to) for p in answer.lagging] == [
            ("g1", 0, applied)
        ]
        by_time = await bench.queries[0].query(bench.topic, admin_pb2.QueryRequest(topic=NAME))
        assert bodies(by_time) == ["a"] and not by_time.lagging, "the consume queues never lag"

        class CatchingUp:
            """One entry further at every look."""

            looks = 0
            setbacks = 0

            @property
            def next_index(self) -> int:
                self.looks += 1
                return self.looks

        monkeypatch.setattr(group_queries, "INDEXED_WITHIN_S", 20)
        hosted.key_index = CatchingUp()
        answer = await bench.queries[0].query(
            bench.topic, admin_pb2.QueryRequest(topic=NAME, key="k")
        )
        assert not answer.lagging and hosted.key_index.looks == applied + 1


async def test_an_index_that_loses_keys_under_a_query_does_not_call_them_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first look into a damaged file takes it out of the index: the query says that the index
    lags, or asks again once it does not."""
    monkeypatch.setattr(group_queries, "INDEXED_WITHIN_S", 0.05)

    async with started_bench() as bench:
        await bench.send("g1", 0, "a", key="k")
        hosted = bench.engines[0].hosted["g1"]
        whole, index = hosted.lookup, hosted.key_index

        def lose(next_index: int) -> None:
            def each_by_key(*_: Any) -> Iterator[Any]:
                index.next_index = next_index
                index.setbacks += 1
                hosted.lookup = whole
                return iter(())

            hosted.lookup = SimpleNamespace(each_by_key=each_by_key)

        lose(0)
        answer = await bench.queries[0].query(
            bench.topic, admin_pb2.QueryRequest(topic=NAME, key="k")
        )
        assert [progress.indexed_to for progress in answer.lagging] == [-1]
        index.next_index = 1 << 40
        lose(1 << 40)
        answer = await bench.queries[0].query(
            bench.topic, admin_pb2.QueryRequest(topic=NAME, key="k")
        )
        assert bodies(answer) == ["a"] and not answer.lagging


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (admin_pb2.QueryRequest(topic=NAME, key="k", message_id="i"), Code.BAD_REQUEST),
        (admin_pb2.QueryRequest(topic=NAME, key="k", after=b"nonsense"), Code.BAD_REQUEST),
        (admin_pb2.QueryRequest(topic=NAME, key="k", after=b"[1]"), Code.BAD_REQUEST),
        (admin_pb2.QueryRequest(topic=NAME, key="k", after=b'{"ms":"x"}'), Code.BAD_REQUEST),
        (
            admin_pb2.QueryRequest(topic=NAME, after=b'{"offsets":{"g1":[1,2,3,4,5]}}'),
            Code.BAD_REQUEST,
        ),
        (admin_pb2.QueryRequest(topic=NAME, after=b'{"offsets":[]}'), Code.BAD_REQUEST),
    ],
)
async def test_bad_queries_are_refused(request_: admin_pb2.QueryRequest, code: Code) -> None:
    """A place that no answer gave, or two things at once."""
    async with started_bench() as bench:
        with pytest.raises(LedgerError) as caught:
            await bench.queries[1].query(bench.topic, request_)
        assert caught.value.code == code


# -- detail


async def test_copies_on_every_replica() -> None:
    """Present and equal, missing on a lagging replica, different, damaged, and unknown if a node
    does not answer."""
    async with started_bench() as bench:
        await bench.send("g1", 1, "a")
        request = admin_pb2.MessageDetailRequest(
            topic=NAME, broker_group="g1", group_queue=1, offset=0
        )

        async def copies(at: int = 0) -> dict[str, admin_pb2.ReplicaCopy]:
            return {
                copy.node: copy
                for copy in (await bench.queries[at].detail(bench.topic, request)).copies
            }

        behind = await copies()
        assert (behind["n1"].state, behind["n2"].state) == (
            "present",
            "missing",
        ) and "ends with" in behind["n2"].reason
        assert not behind["n3"].HasField("state") and "n3" in behind["n3"].reason
        bench.follow()
        for at in (0, 1):
            level = await copies(at)
            one, two = level["n1"], level["n2"]
            assert one.state == two.state == "present" and not two.HasField("reason")
            assert (
                one.file == f"g1/dledger-n1/data/{0:020d}"
                and two.file == f"g1/dledger-n2/data/{0:020d}"
            )
            for name in ("position", "size", "index", "term", "chain_crc", "sha256"):
                assert getattr(one, name) == getattr(two, name) and one.HasField(name)
        bench.engines[1].hosted["g1"].store.damage = True
        damaged = (await copies())["n2"]
        assert damaged.state == "different" and "damaged" in damaged.reason
        bench.back.up = False
        assert not (await copies())["n2"].HasField("state")


async def test_a_sound_copy_of_another_entry_is_different() -> None:
    """What the leader holds counts, even if both copies are whole."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        other = QueryBench()
        await other.start()
        await other.send("g1", 0, "b")
        bench.engines[1].hosted["g1"].store = other.engines[0].hosted["g1"].store
        request = admin_pb2.MessageDetailRequest(
            topic=NAME, broker_group="g1", group_queue=0, offset=0
        )
        copies = (await bench.queries[0].detail(bench.topic, request)).copies
        assert [(copy.node, copy.state) for copy in copies][:2] == [
            ("n1", "present"),
            ("n2", "different"),
        ]


async def test_a_trimmed_entry_is_missing_with_its_reason() -> None:
    """The reason is that the log begins later."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        store = bench.engines[0].hosted["g1"].store
        store.begin_index = 2
        copy, entries = copy_of(store, "n1", "g1", 1)
        assert (
            entries is None
            and copy.state == "missing"
            and "trimmed" in copy.reason
            and not copy.HasField("position")
        )


async def test_message_states_are_listed_per_group() -> None:
    """Not delivered yet, leased, visible again, acknowledged; groups that never used the topic are
    not listed."""
    async with started_bench() as bench:
        for body in "abc":
            await bench.send("g1", 0, body)
        done = await bench.receive("done", count=3)
        assert await bench.ack(done, "done") == (True,) * 3
        await bench.receive("held", count=2, invisible_ms=60_000)
        await bench.receive("late", count=2, invisible_ms=1000)
        bench.clock.now_ns += 2 * SECOND

        async def states(offset: int) -> dict[str, tuple[str, int, str]]:
            request = admin_pb2.MessageDetailRequest(
                topic=NAME, broker_group="g1", group_queue=0, offset=offset
            )
            found = (await bench.queries[1].detail(bench.topic, request)).consumption
            return {state.group.name: (state.state, state.attempt, state.client) for state in found}

        assert await states(1) == {
            "done": ("done", 0, ""),
            "held": ("leased", 1, "client"),
            "late": ("visible again", 1, "client"),
        }
        assert await states(2) == {
            "done": ("done", 0, ""),
            "held": ("not delivered yet", 0, ""),
            "late": ("not delivered yet", 0, ""),
        }
        with pytest.raises(LedgerError) as caught:
            await states(3)
        assert caught.value.code == Code.MESSAGE_NOT_FOUND


# -- progress


def name(group: str) -> admin_pb2.Name:
    return admin_pb2.Name(name=group)


async def test_lag_counts_waiting_messages_of_all_broker_groups() -> None:
    """Also in a broker group that the consumer group never met; ages are those of the first message
    that waits."""
    async with started_bench() as bench:
        for number in range(5):
            await bench.send("g1", number % 2, f"m{number}")
        bench.pass_ms(1000)
        await bench.send("g2", 0, "other")
        bench.pass_ms(500)
        received = await bench.receive("c", count=3)
        await bench.ack(received)
        await bench.receive("c", count=1)
        for at in (0, 1):
            (topic,) = (await bench.queries[at].lag(name("c"), None)).topics
            assert (topic.lag, topic.leased, topic.oldest_age_ms) == (2, 1, 1500)
            assert [(q.queue, q.broker_group, q.group_queue) for q in topic.queues] == [
                (0, "g1", 0),
                (1, "g1", 1),
                (2, "g2", 0),
            ]
            assert sum(q.cursor for q in topic.queues) == 4 and [q.end for q in topic.queues] == [
                3,
                2,
                1,
            ]
            assert topic.queues[2].oldest_age_ms == 500
            waits = [q.HasField("oldest_age_ms") for q in topic.queues]
            assert waits == [q.lag > 0 for q in topic.queues]


async def test_lag_of_a_group_that_pulls_is_behind_its_offsets() -> None:
    """What it committed is its place; a queue it never committed waits in whole; a reset moves it,
    and the group is listed by its topic."""
    async with started_bench() as bench:
        for number in range(3):
            await bench.send("g1", 0, f"a{number}")
            await bench.send("g2", 0, f"b{number}")
        engine = bench.engines[0]
        await engine.call("g1", CommitOffset(engine.new_token(), "puller", "t", 0, 2))
        bench.pass_ms(500)
        for at in (0, 1):
            (topic,) = (await bench.queries[at].lag(name("puller"), None)).topics
            assert [
                (q.cursor, q.lag, q.leased, q.HasField("oldest_age_ms")) for q in topic.queues
            ] == [
                (2, 1, 0, True),
                (0, 0, 0, False),
                (0, 3, 0, True),
            ]
            assert (topic.lag, topic.leased, topic.oldest_age_ms) == (4, 0, 500)
        assert await reset(bench, group="puller", queue=0, offset=1) == {0: 1}
        assert (await bench.queries[0].lag(name("puller"), None)).topics[0].queues[0].lag == 2
        await engine.call("g1", CommitOffset(engine.new_token(), "puller", "t", 0, 3))
        assert [
            q.cursor
            for _, q in await bench.queries[1].cursors(name("puller"))
            if q.broker_group == "g1"
        ] == [3, 0]


async def test_lag_of_a_broadcasting_group_is_that_of_its_slowest_client() -> None:
    """Every client is listed, the one with the largest lag first; a reset moves all of them."""
    async with started_bench() as bench:
        for member in ("b$x", "b$y@1"):
            await bench.receive(member)
        for number in range(3):
            await bench.send("g1", 0, f"a{number}")
        bench.pass_ms(200)
        await bench.ack(await bench.receive("b$x", count=2), "b$x")
        await bench.receive("b$y@1", count=1)
        for at in (0, 1):
            (topic,) = (await bench.queries[at].lag(name("b"), None)).topics
            assert (topic.queues[0].cursor, topic.queues[0].lag, topic.lag, topic.leased) == (
                1,
                2,
                2,
                1,
            )
            told = [
                (part.client, part.lag, part.leased, part.oldest_age_ms) for part in topic.parts
            ]
            assert told == [("y@1", 2, 1, 200), ("x", 1, 0, 200)]
        assert await reset(bench, group="b", queue=0, latest=True) == {0: 3}
        (topic,) = (await bench.queries[0].lag(name("b"), None)).topics
        assert (topic.lag, topic.leased, [part.lag for part in topic.parts]) == (0, 0, [0, 0])


async def test_lag_of_a_broker_group_without_a_leader_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown lag makes its sums unknown too; other values are reported."""
    monkeypatch.setattr(queries, "PROGRESS_WITHIN_S", 0.1)

    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        await bench.receive("c")
        bench.engines[0].follow("g2", None)
        for topic_of in (None, bench.topic):
            (topic,) = (await bench.queries[0].lag(name("c"), topic_of)).topics
            assert not topic.HasField("lag") and topic.queues[0].cursor == 1
            assert not any(
                topic.queues[2].HasField(field) for field in ("cursor", "end", "lag", "leased")
            )


@pytest.mark.parametrize("at", [0, 1])
async def test_a_leader_that_cannot_prove_it_answers_no_read(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a majority nothing is read from it, by whatever command; with a majority everything
    is."""
    monkeypatch.setattr(queries, "LEADER_WITHIN_S", 0.15)
    monkeypatch.setattr(queries, "PROGRESS_WITHIN_S", 0.15)
    monkeypatch.setattr(peeks, "CALL_TIMEOUT_S", 0.15)

    async with started_bench() as bench:
        await bench.send("g1", 0, "m", key="k")
        await bench.receive()
        replicator = bench.engines[0].replicators["g1"]
        replicator.confirms = False
        asked = (
            lambda: bench.queries[at].query(
                bench.topic, admin_pb2.QueryRequest(topic=NAME, key="k")
            ),
            lambda: bench.queries[at].query(bench.topic, admin_pb2.QueryRequest(topic=NAME)),
            lambda: bench.queries[at].detail(
                bench.topic, admin_pb2.MessageDetailRequest(topic=NAME, broker_group="g1")
            ),
            lambda: bench.queries[at].cursors(name("c")),
            lambda: bench.peeks[at].peek(
                bench.topic, admin_pb2.PeekRequest(topic=NAME, earliest=True)
            ),
            lambda: bench.peeks[at].peek(
                bench.topic, admin_pb2.PeekRequest(topic=NAME, store_ms=1)
            ),
        )
        monkeypatch.setattr(
            replicator, "read_index", lambda token, _: replicator.reads.append((token, None))
        )
        for ask in asked:
            with pytest.raises(LedgerError) as caught:
                await ask()
            assert caught.value.code == Code.HA_NOT_AVAILABLE
        lag = await bench.queries[at].lag(name("c"), bench.topic)
        assert not lag.topics[0].queues[0].HasField("cursor")
        monkeypatch.setattr(
            replicator,
            "read_index",
            lambda token, _: replicator.reads.append((token, replicator.commit_index)),
        )
        for ask in asked:
            await ask()


async def test_cursors_of_a_group_come_from_every_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the leaders have them, whatever the asked node has applied; a broker group without a
    leader makes the answer an error."""
    async with started_bench() as bench:
        for group, queue in QUEUES:
            await bench.send(group, queue, f"{group}-{queue}")
        await bench.receive()
        found = await bench.queries[1].cursors(name("c"))
        assert [
            (topic, q.broker_group, q.group_queue, q.cursor, q.end, q.leased) for topic, q in found
        ] == [
            ("t", "g1", 0, 1, 1, 1),
            ("t", "g1", 1, 1, 1, 1),
        ]
        assert await bench.queries[1].cursors(name("nobody")) == []
        bench.engines[0].follow("g2", None)
        monkeypatch.setattr(queries, "PROGRESS_WITHIN_S", 0.1)
        with pytest.raises(LedgerError, match="g2"):
            await bench.queries[0].cursors(name("c"))


async def test_a_node_that_has_just_started_asks_for_the_broker_groups() -> None:
    """Before it has heard from the quorum it knows none, and no lag and no positions would look
    like those of an unused group."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        await bench.receive()
        for at in (0, 1):
            for ask in (
                lambda at=at: bench.queries[at].cursors(name("c")),
                lambda at=at: bench.queries[at].lag(name("c"), None),
            ):
                wanted = await ask()
                bench.state.forget()
                assert await ask() == wanted


async def test_lag_of_an_unused_group_is_empty_or_the_whole_topic() -> None:
    """With a topic everything waits for it; an unknown group is refused, a configured one has no
    topics."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        with pytest.raises(LedgerError) as caught:
            await bench.queries[0].lag(name("nobody"), None)
        assert caught.value.code == Code.CONSUMER_GROUP_NOT_FOUND
        bench.state.command(
            {"op": "create-group", "ns": "", "name": "new", "max_attempts": 3, "fifo": False}
        )
        assert not (await bench.queries[0].lag(name("new"), None)).topics
        (topic,) = (await bench.queries[0].lag(name("new"), bench.topic)).topics
        assert (topic.lag, topic.leased) == (1, 0)


# -- reset


async def reset(bench: QueryBench, at: int = 1, group: str = "c", **where: Any) -> dict[int, int]:
    request = admin_pb2.ResetGroupRequest(group=name(group), topic=NAME, **where)
    return {
        cursor.queue: cursor.cursor
        for cursor in (await bench.queries[at].reset(bench.topic, request)).queues
    }


async def test_reset_moves_every_queue_and_old_handles_stop_counting() -> None:
    """After a reset to the beginning all messages are delivered again, after one to the end none;
    both over all broker groups."""
    async with started_bench() as bench:
        for group, queue in QUEUES:
            await bench.send(group, queue, f"{group}-{queue}")
        first = await bench.receive()
        await bench.ack(await bench.receive(broker="g2"), broker="g2")
        assert len(first.leases) == 2 and not (await bench.receive()).leases
        assert await reset(bench, earliest=True) == {0: 0, 1: 0, 2: 0}
        assert await bench.ack(first) == (False, False)
        again = await bench.receive()
        assert [lease.attempt for lease in again.leases] == [1, 1] and len(
            (await bench.receive(broker="g2")).leases
        ) == 1
        assert await bench.ack(again) == (True, True)
        await reset(bench, at=0, earliest=True)
        assert await reset(bench, latest=True) == {0: 1, 1: 1, 2: 1}
        assert not (await bench.receive()).leases and not (await bench.receive(broker="g2")).leases
        await bench.send("g1", 0, "next")
        assert len((await bench.receive()).leases) == 1


async def test_reset_to_an_offset_a_time_and_in_one_queue() -> None:
    """An offset is brought into what the queue holds; a time means its first message in each
    queue."""
    async with started_bench() as bench:
        for number in range(4):
            await bench.send("g1", 0, f"a{number}")
            await bench.send("g2", 0, f"b{number}")
            bench.pass_ms(10)
        await bench.receive()
        assert await reset(bench, queue=0, offset=3) == {0: 3}
        assert await reset(bench, queue=2, offset=99) == {2: 4}
        assert await reset(bench, store_ms=bench.now_ms - 20) == {0: 2, 1: 0, 2: 2}
        lag = (await bench.queries[0].lag(name("c"), None)).topics[0]
        assert [queue.lag for queue in lag.queues] == [2, 0, 2]
        for wrong in ({"queue": 3, "earliest": True}, {}):
            with pytest.raises(LedgerError) as caught:
                await reset(bench, **wrong)
            assert caught.value.code == Code.BAD_REQUEST


async def test_reset_of_an_unknown_group_is_refused() -> None:
    """A misspelt name creates nothing; the start of a new group without consumers can be set."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        with pytest.raises(LedgerError) as caught:
            await reset(bench, group="nobody", latest=True)
        assert caught.value.code == Code.CONSUMER_GROUP_NOT_FOUND
        assert not bench.engines[0].groups["g1"].machine.delivery.queues
        bench.state.command(
            {"op": "create-group", "ns": "", "name": "new", "max_attempts": 3, "fifo": False}
        )
        assert await reset(bench, group="new", latest=True) == {0: 1, 1: 0, 2: 0}
        assert not (await bench.receive("new")).leases


async def test_reset_answers_a_waiting_receive() -> None:
    """The receive need not be repeated."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "a")
        await bench.ack(await bench.receive())
        engine = bench.engines[0]
        call = Reset(engine.new_token(), "c", "t", ((0, 0),))
        waiting = engine.call(
            "g1",
            Receive(
                engine.new_token(),
                "c",
                "t",
                "x",
                TagFilter(),
                8,
                1000,
                bench.clock.now_ns + 60 * SECOND,
            ),
        )
        engine.turn()
        assert not waiting.done()
        await engine.call("g1", call)
        engine.turn()
        outcome = await waiting
        assert isinstance(outcome, Received) and len(outcome.leases) == 1


# -- peek


async def test_peek_at_the_latest_looks_at_all_queues() -> None:
    """The last messages of the topic, whichever queues hold them, queue by queue; in one queue its
    last ones."""
    async with started_bench() as bench:
        for number, (group, queue) in enumerate([*QUEUES, *QUEUES, ("g1", 0), ("g1", 0)]):
            await bench.send(group, queue, f"m{number}")
            bench.pass_ms(1)
        bench.follow()
        for at in (0, 1):
            last = await bench.peeks[at].peek(
                bench.topic, admin_pb2.PeekRequest(topic=NAME, latest=True, max=4)
            )
            assert bodies(last) == ["m6", "m7", "m4", "m5"]
            one = await bench.peeks[at].peek(
                bench.topic, admin_pb2.PeekRequest(topic=NAME, latest=True, queue=1, max=1)
            )
            assert bodies(one) == ["m4"]
            after = await bench.peeks[at].peek(
                bench.topic, admin_pb2.PeekRequest(topic=NAME, store_ms=bench.now_ms - 3, max=9)
            )
            assert bodies(after) == ["m6", "m7", "m5"]


async def test_peek_at_the_latest_reads_to_the_end_of_long_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However few of them fit into one answer of a queue, they are its last ones."""
    monkeypatch.setattr(peeks, "LOOK_BYTES", 2500)
    monkeypatch.setattr(peeks, "PEEK_BYTES", 1500)

    async with started_bench() as bench:
        for number in range(9):
            await bench.send("g1", 0, f"{number}" + "x" * 1000)
            bench.pass_ms(1)
        bench.follow()
        for at in (0, 1):
            last = await bench.peeks[at].peek(
                bench.topic, admin_pb2.PeekRequest(topic=NAME, latest=True, max=8)
            )
            assert [body[0] for body in bodies(last)] == ["7", "8"]
            assert [message.offset for message in last.messages] == [7, 8]


async def test_a_delayed_message_is_found_before_it_is_visible() -> None:
    """It is found by key and id, in order with the others, with the time of its delivery;
    afterwards it is found once, like other messages."""
    async with started_bench() as bench:
        await bench.send("g1", 0, "before", key="k")
        bench.pass_ms(1)
        due_ms = bench.now_ms + 5_000
        await bench.send("g1", 1, "later", key="k", deliver_ms=due_ms)
        bench.pass_ms(1)
        await bench.send("g2", 0, "after", key="k")
        assert await pages(bench, 0, 1, key="k") == [["after"], ["later"], ["before"]]
        for what in ({"key": "k"}, {"message_id": "id-later"}):
            answer = await bench.queries[1].query(
                bench.topic, admin_pb2.QueryRequest(topic=NAME, **what)
            )
            (found,) = [message for message in answer.messages if message.body == b"later"]
            assert (found.delayed_until_ms, found.group_queue, found.offset, found.topic.name) == (
                due_ms,
                1,
                0,
                "t",
            )
            assert not any(
                message.HasField("delayed_until_ms")
                for message in answer.messages
                if message.body != b"later"
            )
        bench.pass_ms(5_000)
        for _ in range(2):
            bench.pass_ms(0)
        answer = await bench.queries[0].query(
            bench.topic, admin_pb2.QueryRequest(topic=NAME, message_id="id-later")
        )
        (found,) = answer.messages
        assert not found.HasField("delayed_until_ms") and found.group_queue == 1
