"""Consumers with leases of a hosted group whose older messages only a store in memory has:
retention, fetches, and what consumers get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ledgermq.node.broker.calls.consumer_calls import Ack, Acked, Handle, Receive, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Configured, Mark
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.frontend.admin.messages.explaining import Explainer
from ledgermq.node.frontend.admin.messages.group_reads import ReadThrough
from ledgermq.node.frontend.routing.tier_fetches import TierFetches, fetched
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.proto import peer_pb2
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.records.control import LevelRecord
from ledgermq.proto.types import Draft, GroupConfig
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.tiered.ports import StoreFailure
from ledgermq.storage.tiered.range_cache import RangeCache
from ledgermq.storage.tiered.tier_reader import TierReader
from ledgermq.storage.tiered.transfer import WrongObject
from tests.tiered.stored_log import another_reader
from tests.tiered.test_tiered_carrying import SIZE, TieredStage

GROUPS = ("slow", "new")
FILES = 3


class Consumers:
    """A leading replica with three files in the store only. Group `slow` received some messages
    before, and `new` none."""

    def __init__(self, directory: Path, level: int = 2) -> None:
        self.one = TieredStage(directory, files=0)
        self.driver = self.one.stage.driver
        if level > 1:
            self.driver.call(lambda token: Mark(token, LevelRecord(level)))  # type: ignore[arg-type]
        groups = [GroupConfig("", name) for name in GROUPS]
        assert self.driver.call(lambda token: Configure(token, groups=groups)) == Configured()
        self.bodies: list[bytes] = []
        self.got: dict[str, list[bytes]] = {name: [] for name in GROUPS}
        self.fill(FILES * SIZE + 1000)
        self.units = [column.tolist() for column in self.machine.units("t", 0, 0, len(self.bodies))]
        self.indexes = [self.machine.index_at(position) for position in self.units[0]]
        self.receive("slow", 10)
        self.one.carry_all()
        self.one.carry_all()
        self.one.retain()
        self.one.check()

    @property
    def machine(self) -> Any:
        return self.driver.group.machine

    @property
    def reader(self) -> TierReader:
        reader = self.one.tiering.reader("g1")
        assert reader is not None
        return reader

    def fill(self, end: int) -> None:
        while self.driver.group.store.log.end_pos < end:
            at = len(self.bodies)
            self.bodies += [b"%06d" % number * 100 for number in range(at, at + 4)]
            drafts = []
            for number in range(at, at + 4):
                tag = f"tag{number % 3}"
                drafts.append(
                    Draft(
                        "t",
                        0,
                        self.bodies[number],
                        encode(Fields(message_id=f"id-{number}", tag=tag)),
                        1,
                        java_hash(tag),
                    )
                )
            assert isinstance(
                self.driver.call(lambda token, drafts=drafts: Produce(token, drafts)), Produced
            )

    def receive(self, group: str, most: int = 32) -> int:
        """Receive and acknowledge. Returns how many messages came."""
        call = Receive(
            0, group, "t", "c", TagFilter(), most, 60_000, self.driver.now_ns + 5_000_000_000
        )
        self.driver.tokens += 1
        token = self.driver.tokens
        self.driver.turn(
            Receive(token, *[getattr(call, name) for name in list(call.__slots__)[1:]])
        )
        while token not in self.driver.done:
            self.serve()
            self.driver.turn(elapsed_ns=1_000_000_000)
        outcome = self.driver.done.pop(token)
        assert isinstance(outcome, Received)
        self.got[group] += [bytes(decode_record(lease.record).body) for lease in outcome.leases]
        handles = [
            Handle(group, "t", lease.queue, lease.queue_offset, lease.lease_number, lease.attempt)
            for lease in outcome.leases
        ]
        assert self.driver.call(lambda token: Ack(token, handles)) == Acked((True,) * len(handles))
        return len(handles)

    def serve(self) -> None:
        """Answer what the leader asked for."""
        asked, self.driver.fetches = self.driver.fetches, []
        self.driver.turn(*[fetched(self.reader, fetch) for fetch in asked])

    def fetch(self, first: int, **changes: Any) -> TierFetch:
        named = {"max_bytes": 1 << 20, "count": 1024, **changes}
        return TierFetch(
            1, "t", 0, first, self.machine.begin("t", 0), self.machine.begin_pos, **named
        )


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Consumers]]:
    found: list[Consumers] = []
    yield found
    for one in found:
        asyncio.run(one.one.tiering.stop())
        one.one.stage.close()


@pytest.fixture
def consumers(made: list[Consumers], tmp_path: Path) -> Consumers:
    made.append(Consumers(tmp_path))
    return made[0]


def test_groups_keep_no_local_files_and_get_every_message_once(consumers: Consumers) -> None:
    """Local retention removed what a slow group and a new one had not read; both get all of it, in
    order."""
    assert consumers.one.begin == FILES * SIZE and consumers.machine.begin("t", 0) > 150
    assert consumers.machine.retained.trims[-1].record.stored
    assert (
        consumers.machine.delivery.cursor(("slow", "t", 0)) == 10
        and consumers.machine.delivery.cursor(("new", "t", 0)) == 0
    )
    assert consumers.one.stage.ask(0).reason == "trimmed"
    for group in GROUPS:
        while len(consumers.got[group]) < len(consumers.bodies):
            assert consumers.receive(group)
        assert consumers.got[group] == consumers.bodies
    assert consumers.machine.delivery.in_flight == 0


def test_below_the_level_groups_keep_their_files(made: list[Consumers], tmp_path: Path) -> None:
    """Older replicas would raise the positions of the groups."""
    made.append(Consumers(tmp_path, level=1))
    (one,) = made
    assert one.one.begin == 0 and not one.machine.retained.trims
    assert one.one.stage.retainer.files_kept["g1"]["consumer"]


def test_fetched_messages_equal_the_stored_ones(consumers: Consumers) -> None:
    """Records, places, hashes of tags and indexes are those that the replica had while the messages
    were on its disk."""
    begin = consumers.machine.begin("t", 0)
    found: list[Any] = []
    while len(found) < begin:
        answer = fetched(consumers.reader, consumers.fetch(len(found), count=50))
        assert answer.first == len(found) and not answer.failure and 1 <= len(answer.messages) <= 50
        found += answer.messages
    assert len(found) == begin
    for at, message in enumerate(found):
        assert (message.position, len(message.record), message.tags_code) == tuple(
            column[at] for column in consumers.units
        )
        assert (
            message.entry_index == consumers.indexes[at]
            and decode_record(message.record).body == consumers.bodies[at]
        )
    assert len(fetched(consumers.reader, consumers.fetch(0, max_bytes=1)).messages) == 1


@pytest.mark.parametrize("damaged", [False, True], ids=["lost", "damaged"])
def test_a_description_that_the_store_lost_hides_no_message(
    consumers: Consumers, damaged: bool
) -> None:
    """L2: it is written again, and begins with the first file that lies there, not with the local
    log of now."""
    objects = consumers.one.store.objects
    key = consumers.one.store.keys("log.json")[0]
    former = objects.pop(key)
    if damaged:
        objects[key] = former[:-9] + b"}"
    consumers.one.restarted()
    consumers.fill((FILES + 1) * SIZE + 1000)
    consumers.one.carry_all()
    consumers.one.check()
    answer = fetched(consumers.reader, consumers.fetch(0))
    assert answer.first == 0 and answer.messages
    assert objects[key] == former


def test_empty_prefix_is_not_taken_for_the_store_of_trimmed_files(consumers: Consumers) -> None:
    """L2: a mistyped prefix holds nothing, and says nothing about what the right one holds: nothing
    is written, trimmed or passed over."""
    objects = consumers.one.store.objects
    former = dict(objects)
    objects.clear()
    RealDisk().unlink(f"{consumers.driver.group.store.state_directory}/tiered")
    consumers.one.restarted()
    consumers.fill((FILES + 1) * SIZE + 1000)
    consumers.one.carry_all()
    consumers.one.check()
    with pytest.raises(StoreFailure, match=r"holds nothing from before the log on the disks"):
        fetched(consumers.reader, consumers.fetch(0))
    assert not objects and consumers.one.pin.pos == 0
    objects.update(former)
    consumers.one.retry()
    consumers.one.check()
    assert fetched(consumers.reader, consumers.fetch(0)).messages


def uncached(consumers: Consumers) -> TierReader:
    """A reader that has nothing of the store in memory or on this disk."""
    cache = RangeCache(RealDisk(), str(consumers.one.stage.config.data / "other-cache"), 0)
    return another_reader(consumers.reader, cache)


def test_a_store_that_fails_or_is_wrong_gives_no_shorter_answer(consumers: Consumers) -> None:
    """T6 for consumers with leases: an error, and nothing that could be taken for the begin of the
    store or for the end of the queue."""
    store, fetch = consumers.one.store, consumers.fetch(0)
    unlinked = uncached(consumers)
    unlinked.link_files((), whole=False)
    with pytest.raises(StoreFailure):
        fetched(unlinked, fetch)
    store.away()
    with pytest.raises(StoreFailure):
        fetched(uncached(consumers), fetch)
    store.back()
    assert len(fetched(uncached(consumers), fetch).messages) > 50
    (key,) = [key for key in store.keys(".log") if f"{0:020d}-" in key]
    del store.objects[key]
    with pytest.raises(WrongObject):
        fetched(uncached(consumers), fetch)


def test_why_a_message_that_only_the_store_has_is_not_delivered(consumers: Consumers) -> None:
    """It is found there, its fate is the group's, and a store that is away is named as the
    reason."""
    engine: Any = consumers.one.stage.engine

    async def indexed(group: str) -> None:
        return None

    tier = TierReads(engine, consumers.one.tiering.reader, lambda: 0.0)
    explainer = Explainer(
        engine, ReadThrough(engine, tier), indexed, lambda: consumers.driver.now_ns
    )

    def why(number: int, group: str) -> Any:
        return asyncio.run(
            explainer.why(
                "g1", peer_pb2.GroupWhy(topic="t", message_id=f"id-{number}", group=group)
            )
        )

    last = len(consumers.bodies) - 1
    assert [why(number, "slow").reason for number in (3, 50, last)] == [
        "acknowledged",
        "no-consumer",
        "no-consumer",
    ]
    assert [why(number, "new").reason for number in (3, last)] == ["unread", "unread"]
    consumers.driver.turn(
        Receive(
            1 << 40,
            "new",
            "t",
            "c",
            TagFilter(),
            1,
            60_000,
            consumers.driver.now_ns + 5_000_000_000,
        )
    )
    (fetch,) = consumers.driver.fetches
    consumers.driver.turn(TierFetched(fetch, failure="it does not answer"))
    found = why(3, "new")
    assert found.reason == "store-away" and "it does not answer" in found.answer
    assert why(3, "slow").reason == "acknowledged"


class Notified:
    """The engine's side of `TierFetches`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def notify(self, group: str, call: Any) -> None:
        self.calls.append((group, call))


def test_every_fetch_is_answered(consumers: Consumers) -> None:
    """Also if the store is away, the group does not run, or something else fails; what changes is
    logged once."""
    engine = Notified()
    readers: list[Any] = [consumers.reader]
    now = [0.0]
    fetches = TierFetches(engine, TierReads(engine, lambda group: readers[-1], lambda: now[0]))  # type: ignore[arg-type]

    async def run(*wanted: TierFetch) -> None:
        fetches.start("g1", wanted)
        await asyncio.gather(*fetches._tasks)

    def answers() -> list[TierFetched]:
        found, engine.calls = [call for _, call in engine.calls], []
        return found

    with capture_logs() as logs:
        asyncio.run(run(consumers.fetch(0), consumers.fetch(5)))
        assert sorted(answer.first for answer in answers()) == [0, 5]
        readers.append(None)
        asyncio.run(run(consumers.fetch(0), consumers.fetch(0)))
        assert [bool(answer.failure) for answer in answers()] == [True, True]
        readers.append(object())
        asyncio.run(run(consumers.fetch(0)))
        assert "internal error" in answers()[0].failure
        readers.append(consumers.reader)
        asyncio.run(run(consumers.fetch(7)))
        assert answers()[0].first == 7
    said = [line["event"] for line in logs]
    assert said.count("consumers wait for messages that only the object store has") == 2
    assert said.count("consumers get messages from the object store again") == 1
