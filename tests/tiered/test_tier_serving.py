"""What clients read below the local begin: a replica whose local log was trimmed, its store in
memory, and the reads of its services."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from ledgermq.node.broker.calls.consumer_calls import Ack, Handle, Receive
from ledgermq.node.broker.calls.operator_calls import Configure, Configured, Reset
from ledgermq.node.broker.calls.read_calls import Pull, ReadOffset
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.calls.transaction_calls import Prepare, Resolve
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.parts.pulls.reads import read_offset
from ledgermq.node.broker.queries.trace import Subject
from ledgermq.node.frontend.admin.messages import explaining
from ledgermq.node.frontend.admin.messages.group_queries import GroupQueries
from ledgermq.node.frontend.admin.messages.group_reads import ReadThrough
from ledgermq.node.frontend.admin.messages.peeks import Peeks
from ledgermq.node.frontend.native.log_tail import LogTail
from ledgermq.node.frontend.native.reading import read_ends
from ledgermq.node.frontend.native.sources import Sources, Waiter
from ledgermq.node.frontend.native.tailing import QueueTail
from ledgermq.node.frontend.rocketmq.pulling import Puller
from ledgermq.node.frontend.routing.tier_reads import FAILED_S, TierReads
from ledgermq.proto import admin_pb2, log_pb2, peer_pb2
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.records.control import OffsetRecord
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.proto.types import Draft
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.tiered.ports import AccessDenied, Answered, StoreFailure
from ledgermq.storage.tiered.range_cache import RangeCache
from tests.tiered.stored_log import another_reader, topic
from tests.tiered.test_tiered_carrying import SIZE, TieredStage

TOLD = "told"


class Served:
    """A leading replica with three files in the store only, and more on its disk."""

    def __init__(self, directory: Path) -> None:
        self.one = TieredStage(directory, files=0)
        self.driver = self.one.stage.driver
        self.entries: list[bytes] = []
        self.tell_a_story()
        self.fill(3 * SIZE + 1000)
        self.one.carry_all()
        self.one.carry_all()
        self.read_local()
        self.one.retain()
        self.one.check()
        self.fill(4 * SIZE + 1000)
        # What happens to a message whose entries are in the store only.
        self.driver.call(lambda token: Reset(token, "c", TOLD, [(0, 1)]))
        self.read_local()
        # The last stored file is on the disk, too.
        self.one.carry_all()
        self.engine: Any = self.one.stage.engine
        self.engine.views = {}
        self.engine.on_view = self.engine.on_hidden = lambda listener: None
        self.now_s = 100.0
        self.tier = TierReads(self.engine, self.one.tiering.reader, lambda: self.now_s)

    def tell_a_story(self) -> None:
        """A transaction, delivered to the consumer group c, and another one that was rolled
        back."""
        driver, ids = self.driver, ("told", "undone")
        assert driver.call(lambda token: Configure(token, [topic(TOLD, 1)])) == Configured()
        for number, name in enumerate(ids):
            draft = Draft(TOLD, 0, b"x", encode(Fields(message_id=name)), 1)
            half = driver.call(
                lambda token, draft=draft: Prepare(token, [draft], [None])
            ).queue_offsets[0]
            assert driver.call(
                lambda token, of=(half, TOLD, name, not number): Resolve(token, *of)
            ).ok
        [lease] = driver.call(
            lambda token: Receive(token, "c", TOLD, "reader", TagFilter(), 8, 10_000, driver.now_ns)
        ).leases
        handle = Handle(
            "c", TOLD, lease.queue, lease.queue_offset, lease.lease_number, lease.attempt
        )
        assert driver.call(lambda token: Ack(token, [handle])).ok == (True,)

    def fill(self, end: int) -> None:
        """Messages up to a position of the log."""
        log = self.driver.group.store.log
        while log.end_pos < end:
            at = self.driver.group.machine.end("t", 0)
            drafts = [
                Draft(
                    "t",
                    0,
                    b"%06d" % n * 100,
                    encode(Fields(message_id=f"id-{n}", keys=(f"k{n % 5}",), tag=f"tag{n % 3}")),
                    1,
                )
                for n in range(at, at + 4)
            ]
            assert isinstance(
                self.driver.call(lambda token, drafts=drafts: Produce(token, drafts)), Produced
            )
            self.driver.turn()

    def read_local(self) -> None:
        log = self.driver.group.store.log
        while len(self.entries) <= log.end_index:
            found = log.read(len(self.entries), 1 << 20)
            self.entries += [
                bytes(found.data[s : s + n])
                for s, n in zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
            ]

    @property
    def written(self) -> list[bytes]:
        """The entries of queue 0 of topic t."""
        return [entry for entry in self.entries if decode_record(entry[48:]).topic == "t"]

    @property
    def records(self) -> list[bytes]:
        return [entry[48:] for entry in self.written]

    @property
    def begin(self) -> int:
        return int(self.driver.group.machine.begin("t", 0))

    def fresh(self) -> None:
        """Nothing of the store in memory or on the disk of this node."""
        reader = self.one.tiering.reader("g1")
        assert reader is not None
        again = another_reader(
            reader, RangeCache(RealDisk(), reader._parts._ranges.cache._directory, 64 << 20)
        )
        self.tier = TierReads(self.engine, lambda group: again, lambda: self.now_s)

    async def tail(self, first: int, goals: bool = True) -> QueueTail:
        source = await Sources(self.engine, self.tier).open("g1", Waiter("t"))
        ends = await source.run(lambda hosted: read_ends(hosted, "t"))
        assert ends is not None
        return QueueTail(source, "t", ends, {0: first}, {0: ends.ends[0]} if goals else None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served"))
    assert served.begin > 100 and served.one.begin == 3 * SIZE
    yield served
    asyncio.run(served.one.tiering.stop())
    served.one.stage.close()


@pytest.fixture
def served(made: Served) -> Served:
    made.one.store.back()
    made.fresh()
    return made


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


async def drained(tail: Any, *arguments: Any) -> list[tuple[int, int, bytes, int]]:
    """(first offset, count, data, skipped) of every answer up to the goal."""
    found = []
    while not tail.finished:
        for answer in await tail.read(*arguments):
            entries = log_pb2.FetchResponse.FromString(answer.data).entries
            found.append(
                (entries.first_offset, len(entries.sizes) // 4, entries.entries, entries.skipped)
            )
    return found


def test_a_native_reader_goes_from_the_store_to_the_disk(served: Served) -> None:
    """Every entry once, in order, byte for byte; nothing is skipped."""

    async def main() -> list[tuple[int, int, bytes, int]]:
        return await drained(await served.tail(0), [len(served.written)], 1, 9000)

    answers = run(main())
    assert b"".join(data for _, _, data, _ in answers) == b"".join(served.written)
    assert [skipped for *_, skipped in answers] == [0] * len(answers) and len(answers) > 10


def test_files_removed_by_total_retention_are_skipped_and_counted(served: Served) -> None:
    """By queue and by log index, as what local retention removed was."""
    reader = served.tier.reader("g1")
    reader.link_files(reader.files[1:], whole=True)
    first = next(
        n for n, entry in enumerate(served.written) if int.from_bytes(entry[24:32], "big") >= SIZE
    )

    async def main() -> tuple[list[tuple[int, int, bytes, int]], list[tuple[int, int, bytes, int]]]:
        by_queue = await drained(await served.tail(0), [len(served.written)], 1, 9000)
        source = await Sources(served.engine, served.tier).open("g1", Waiter(""))
        return by_queue, await drained(LogTail(source, 0, len(served.entries)), 9000)

    by_queue, by_index = run(main())
    assert (
        by_queue[0][0] == by_queue[0][3] == first
        and sum(skipped for *_, skipped in by_queue) == first
    )
    assert b"".join(data for _, _, data, _ in by_queue) == b"".join(served.written[first:])
    index = reader.files[0].first
    assert by_index[0][0] == by_index[0][3] == index and b"".join(
        d for _, _, d, _ in by_index
    ) == b"".join(served.entries[index:])


def test_the_log_is_read_through_the_store(served: Served) -> None:
    async def main() -> list[tuple[int, int, bytes, int]]:
        source = await Sources(served.engine, served.tier).open("g1", Waiter(""))
        return await drained(LogTail(source, 0, len(served.entries)), 9000)

    answers = run(main())
    assert b"".join(data for _, _, data, _ in answers) == b"".join(served.entries)


def test_a_reader_gets_an_error_while_the_store_is_away(served: Served) -> None:
    """Never fewer messages than there are; it goes on where it was when the store is back. The
    store is left alone for a moment."""
    served.one.store.away()

    async def refused(first: int) -> LedgerError:
        with pytest.raises(LedgerError) as caught:
            await (await served.tail(first)).read([len(served.written)], 1, 9000)
        return caught.value

    async def main() -> None:
        error = await refused(0)
        assert error.code == Code.HA_NOT_AVAILABLE and error.retryable
        assert "the store does not answer" in error.message and "try again" in error.message
        assert (await (await served.tail(served.begin)).read([len(served.written)], 1, 9000))[
            0
        ].count, "newer messages need no store"
        asked = dict(served.one.store.requests)
        await refused(5)
        assert served.one.store.requests == asked
        served.one.store.back()
        served.now_s += FAILED_S
        assert (await (await served.tail(5)).read([len(served.written)], 1, 9000))[0].count

    run(main())


@pytest.mark.parametrize(
    ("failure", "others_wait"),
    [
        (Answered("the object is archived"), False),
        (AccessDenied("not this key"), False),
        (StoreFailure("no answer in time"), True),
    ],
)
def test_an_object_that_the_store_does_not_give_delays_its_own_group_only(
    failure: StoreFailure, others_wait: bool
) -> None:
    """A store that does not answer would cost the readers of every group its time-out; one that
    answers costs them nothing."""
    now_s, asked = [0.0], []

    def refuse(reader: Any) -> None:
        asked.append(reader)
        raise failure

    async def main() -> None:
        tier = TierReads(cast(Any, None), lambda group: cast(Any, group), lambda: now_s[0])
        for _ in range(2):
            with pytest.raises(LedgerError, match=str(failure)):
                await tier.run("g1", refuse)
        assert asked == ["g1"]
        if others_wait:
            with pytest.raises(LedgerError, match=str(failure)):
                await tier.run("g2", lambda reader: reader)
        else:
            assert await tier.run("g2", lambda reader: reader) == "g2"
        now_s[0] += FAILED_S
        assert (
            await tier.run("g2", lambda reader: reader) == "g2"
            and await tier.run("g1", lambda reader: reader) == "g1"
        )

    run(main())


def test_unready_reader_does_not_delay_other_logs(served: Served) -> None:
    """A reader that is not ready is no failure of the store."""
    reader = served.tier.reader("g1")
    files, reader.problem = reader.files, "it is still reading the manifests"
    reader.link_files(files[1:], whole=False)
    with pytest.raises(LedgerError, match="still reading the manifests"):
        run(served.tier.first_offset("g1", "t", 0))
    reader.link_files(files, whole=True)
    assert run(served.tier.first_offset("g1", "t", 0)) == 0


def test_a_reader_gets_an_error_if_the_store_lies(served: Served) -> None:
    key = served.one.store.keys(".log")[1]
    held = served.one.store.objects[key]
    served.one.store.objects[key] = held[:100] + b"x" + held[101:]
    try:
        with pytest.raises(LedgerError) as caught:
            run(_drain(served))
        assert (
            caught.value.code == Code.INTERNAL_SERVER_ERROR
            and "restore --check" in caught.value.message
        )
    finally:
        served.one.store.objects[key] = held


async def _drain(served: Served) -> Any:
    return await drained(await served.tail(0), [len(served.written)], 1, 9000)


def test_peek_reads_stored_messages(served: Served) -> None:
    """From an offset, from the earliest, from a time, the latest; across the begin of the local
    log."""
    topic = SimpleNamespace(namespace="", name="t", placement={"g1": 1})
    peeks = Peeks(served.engine, None, None, ReadThrough(served.engine, served.tier))  # type: ignore[arg-type]

    def peek(**wanted: Any) -> list[int]:
        request = admin_pb2.PeekRequest(queue=0, **wanted)
        messages = run(peeks.peek_here(topic, request)).messages
        assert [m.body for m in messages] == [b"%06d" % m.offset * 100 for m in messages]
        return [m.offset for m in messages]

    end, begin = len(served.written), served.begin
    assert peek(offset=7, max=5) == list(range(7, 12))
    assert peek(offset=begin - 3, max=8) == list(range(begin - 3, begin + 5))
    assert peek(max=2) == [0, 1]
    assert peek(latest=True, max=1000) == list(range(max(0, end - 1000), end))
    at = decode_record(served.records[9]).store_ms
    first = next(
        n for n, record in enumerate(served.records) if decode_record(record).store_ms >= at
    )
    assert peek(store_ms=at, max=2) == [first, first + 1]


def query(served: Served, **wanted: Any) -> peer_pb2.GroupQueryReply:
    queries = GroupQueries("n1", served.engine, ReadThrough(served.engine, served.tier))
    return run(queries.query("g1", peer_pb2.GroupQuery(topic="t", max=1000, **wanted)))


def test_queries_by_key_id_and_time_find_stored_messages(served: Served) -> None:
    records = [decode_record(record) for record in served.records]
    assert [m.offset for m in query(served, message_id="id-3").messages] == [3]
    newest_first = [n for n in range(len(records)) if n % 5 == 2][::-1]
    assert [m.offset for m in query(served, key="k2").messages] == newest_first
    begin_ms, end_ms = records[20].store_ms, records[served.begin + 5].store_ms
    wanted = [n for n, record in enumerate(records) if begin_ms <= record.store_ms < end_ms]
    assert [m.offset for m in query(served, begin_ms=begin_ms, end_ms=end_ms).messages] == wanted[
        :1000
    ] and wanted[0] < served.begin


def test_a_query_by_key_with_the_store_away_says_how_to_narrow_it(served: Served) -> None:
    served.one.store.away()
    with pytest.raises(LedgerError, match="only newer messages") as caught:
        query(served, key="k2")
    assert caught.value.code == Code.HA_NOT_AVAILABLE
    newer = decode_record(served.records[-4]).store_ms
    if newer > decode_record(served.records[served.begin - 1]).store_ms:
        assert query(served, key="k2", begin_ms=newer).messages


def explained(served: Served, method: str, question: Any, reply: Any) -> Any:
    queries = GroupQueries("n1", served.engine, ReadThrough(served.engine, served.tier))
    answer = reply.FromString(run(queries.execute(method, "g1", question.SerializeToString())))
    if answer.status.code != Code.OK:
        raise fail(answer.status.code, answer.status.message)
    return answer


def trace(served: Served, name: str, topic: str = TOLD, first: int = 0) -> list[tuple[str, int]]:
    """Kind and entry of all events, page by page."""
    found: list[tuple[str, int]] = []
    while True:
        question = peer_pb2.GroupTrace(topic=topic, message_id=name, from_index=first)
        page = explained(served, "GroupTrace", question, peer_pb2.GroupTraceReply)
        found += [(event.kind, event.index) for event in page.events]
        first = page.next_index
        if not first:
            return found


def why(served: Served, name: str, group: str, topic: str = TOLD) -> str:
    question = peer_pb2.GroupWhy(topic=topic, message_id=name, group=group)
    return str(explained(served, "GroupWhy", question, peer_pb2.GroupWhyReply).reason)


@pytest.mark.parametrize("page", [1, explaining.SCAN_BYTES])
def test_a_trace_goes_from_the_store_to_the_disk(
    served: Served, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that happened to a message, in log order, wherever it is recorded, each once
    however long the pages are."""
    monkeypatch.setattr(explaining, "SCAN_BYTES", page)
    events = trace(served, "told")
    assert [kind for kind, _ in events] == ["half", "committed", "leased", "acknowledged", "reset"]
    indexes = [index for _, index in events]
    assert (
        indexes == sorted(indexes)
        and indexes[3] < served.driver.group.store.log.begin_index < indexes[4]
    )
    assert [kind for kind, _ in trace(served, "undone")] == ["half", "rolled-back"]
    assert [kind for kind, _ in trace(served, "id-3", "t")] == ["stored"]
    assert not explained(
        served,
        "GroupTrace",
        peer_pb2.GroupTrace(topic="t", message_id="none"),
        peer_pb2.GroupTraceReply,
    ).found


def test_trace_of_a_local_message_works_without_the_store(served: Served) -> None:
    """While the store is away, only a message that no disk has cannot be traced."""
    served.one.store.away()
    assert [kind for kind, _ in trace(served, f"id-{len(served.written) - 1}", "t")] == ["stored"]
    with pytest.raises(LedgerError, match="object store, which cannot be read now") as caught:
        trace(served, "told")
    assert caught.value.code == Code.HA_NOT_AVAILABLE


def test_a_trace_goes_on_where_total_retention_let_the_log_begin(served: Served) -> None:
    """Between two pages the store lost its first files; what the others say follows."""
    reader = served.tier.reader("g1")
    reader.link_files(reader.files[1:], whole=True)
    assert [kind for kind, _ in trace(served, f"id-{served.begin - 2}", "t", first=1)] == ["stored"]


def test_an_entry_that_is_trimmed_during_a_trace_is_read_in_the_store(served: Served) -> None:
    """The disk had it when the log's begin was looked at, and has it no longer when it is read."""
    reader = served.driver.group.reader
    trimming = SimpleNamespace(limits=dataclasses.replace(reader.limits, begin_index=0))

    def read(*where: int) -> Any:
        trimming.limits = reader.limits
        return reader.read(*where)

    trimming.read = read
    events, next_index = explaining._scanned(
        trimming, served.tier.reader("g1"), Subject("t", "id-3"), 1
    )
    assert [event.kind for event in events] == ["stored"] and next_index == 0


def test_why_a_message_in_the_store_was_not_delivered(served: Served) -> None:
    """It was, or was rolled back; a consumer group that came later cannot get it, and is not told
    that it waits."""
    assert why(served, "told", "c") == "skipped"
    assert why(served, "undone", "c") == "rolled-back"
    assert why(served, "id-3", "latecomer", "t") == "expired"
    assert why(served, f"id-{len(served.written) - 1}", "latecomer", "t") == "unread"
    assert why(served, "none", "c") == "not-found"


def pull(served: Served, offset: int, filter_: TagFilter, count: int = 6) -> Any:
    puller = Puller(None, None, None, None, lambda: 0, None, served.tier)  # type: ignore[arg-type]
    call = Pull(1, "t", 0, offset, filter_, count, 1 << 20, 0)
    return run(puller._below(served.tier, "g1", call))


def test_pulls_are_served_and_filtered_from_the_store(served: Served) -> None:
    """By offset and by tag; where the local log goes on, the pull ends."""
    found = pull(served, 3, TagFilter())
    assert (found.offsets, found.next_offset) == (tuple(range(3, 9)), 9)
    assert list(found.records) == served.records[3:9]
    found = pull(served, 3, TagFilter(frozenset({"tag1"})))
    assert found.offsets == (4, 7, 10, 13, 16, 19) and found.next_offset == 20
    found = pull(served, served.begin - 2, TagFilter())
    assert (
        found.offsets == (served.begin - 2, served.begin - 1) and found.next_offset == served.begin
    )
    assert pull(served, served.begin, TagFilter()) is None
    found = pull(served, 0, TagFilter(frozenset({"none"})))
    assert found.records == () and found.next_offset > 100


def test_offsets_of_readers_are_honest(served: Served) -> None:
    """The first offset is the store's; a committed offset is not moved by a trim."""
    assert run(served.tier.first_offset("g1", "t", 0)) == 0
    assert run(served.tier.first_offset("g1", "t", 0, 17)) == 17
    assert run(served.tier.first_offset("g1", "t", 0, served.begin + 1)) == served.begin + 1
    assert run(served.tier.first_index("g1", 0, 1000)) == 0
    machine = served.driver.group.machine
    machine.offsets.take_offsets(0, OffsetRecord((("reader", "t", 0, 5),)), mock.Mock())
    assert read_offset(machine, ReadOffset(1, "reader", "t", 0)).offset == served.begin
    assert read_offset(machine, ReadOffset(1, "reader", "t", 0, tiered=True)).offset == 5


def test_status_states_stored_files_and_bytes(served: Served) -> None:
    state = served.one.state
    assert (state.stored_files, state.stored_bytes, state.stored_from_index, state.unreadable) == (
        4,
        4 * SIZE,
        0,
        None,
    )
