"""Delayed messages and half messages through the admin service, from a node that leads no broker
group: lists, pages, cancellations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledgermq.node.broker.calls.operator_calls import LETTERS_MAX, Configure
from ledgermq.node.broker.calls.transaction_calls import Prepare, Resolve, Resolved
from ledgermq.node.frontend.admin.messages import group_waiting
from ledgermq.node.frontend.admin.messages.waiting_admin import WaitingMessages
from ledgermq.node.frontend.security import admin_guard
from ledgermq.proto import admin_pb2
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft
from tests.node.query_bench import NAME, QueryBench, started_bench
from tests.node_core.core_fakes import EPOCH_MS

MINUTE = 60_000


class Scene:
    """The bench with messages that wait; questions go to the node that leads nothing."""

    def __init__(self, bench: QueryBench) -> None:
        self.bench = bench
        self.waiting = WaitingMessages(bench.queries[1], bench.state)

    async def delay(self, broker: str, body: str, ms: int) -> None:
        await self.bench.send(broker, 0, body, deliver_ms=self.bench.now_ms + ms)

    async def half(self, broker: str, body: str) -> int:
        engine = self.bench.engines[0]
        draft = Draft("t", 0, body.encode(), encode(Fields(message_id=f"id-{body}")), EPOCH_MS)
        outcome: Any = await engine.call(broker, Prepare(engine.new_token(), [draft], [None]))
        return int(outcome.queue_offsets[0])

    async def pages(self, kind: str, **fields: Any) -> list[admin_pb2.WaitingMessage]:
        found, after = [], b""
        while True:
            request = admin_pb2.ListWaitingRequest(topic=NAME, kind=kind, after=after, **fields)
            page = await self.waiting.listed(self.bench.topic, request)
            found += page.messages
            after = page.next
            if not after:
                return found

    async def names(self, kind: str, **fields: Any) -> list[str]:
        return [found.message.message_id for found in await self.pages(kind, **fields)]

    async def cancel(
        self, kind: str, *places: admin_pb2.WaitingPlace, user: str = "me"
    ) -> list[str]:
        request = admin_pb2.CancelWaitingRequest(topic=NAME, kind=kind, messages=places)
        return list((await self.waiting.cancelled(self.bench.topic, request, user)).states)

    async def pass_ms(self, ms: int) -> None:
        self.bench.pass_ms(ms)
        for _ in range(5):
            self.bench.engines[0].turn()

    async def trace(self, message_id: str) -> list[tuple[str, str]]:
        self.bench.follow()
        request = admin_pb2.TraceMessageRequest(message_id=message_id)
        return [
            (event.kind, event.detail)
            for event in (await self.bench.queries[1].trace(self.bench.topic, request)).events
        ]


async def test_delayed_messages_are_listed_by_minute_and_cancelled_once() -> None:
    """Over broker groups and pages; a cancelled one is never delivered, one that is due is gone;
    the trace says who it was."""
    async with started_bench() as bench:
        s = Scene(bench)
        for body, ms in (("c", 9 * MINUTE), ("a", MINUTE), ("b", 5 * MINUTE)):
            await s.delay("g1", body, ms)
        await s.delay("g2", "d", MINUTE)
        assert await s.names("half") == []
        for size in (1, 2, 100):
            assert await s.names("delayed", max=size) == ["id-a", "id-b", "id-c", "id-d"]
        assert await s.names("delayed", message_ids=["id-c", "id-x"]) == ["id-c"]
        a, b, _, d = await s.pages("delayed")
        assert (
            b.message.delayed_until_ms - a.message.delayed_until_ms == 4 * MINUTE
            and b.message.body == b"b"
        )
        assert await s.cancel("delayed", b.place, d.place, b.place) == ["cancelled"] * 3
        assert await s.cancel("delayed", b.place) == ["cancelled"] and await s.names("delayed") == [
            "id-a",
            "id-c",
        ]
        assert (await s.trace("id-b"))[-1] == ("recalled", "by the operator me")
        await s.pass_ms(2 * MINUTE)
        assert await s.cancel("delayed", a.place) == ["gone"] and await s.names("delayed") == [
            "id-c"
        ]
        await s.pass_ms(20 * MINUTE)
        got = [
            decode_record(lease.record).body.decode() for lease in (await bench.receive()).leases
        ]
        assert got == ["a", "c"]


async def test_store_times_are_those_that_count() -> None:
    """In the list, and in its range of times, of messages that were stored before a time epoch."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.delay("g1", "a", MINUTE)
        machine = bench.engines[0].hosted["g1"].machine
        begin_ms = machine.store_ms - 1000
        machine.time_epochs = TimeEpochs(
            [TimeEpoch(machine.applied_index + 1, machine.applied_end_pos, begin_ms)]
        )
        (found,) = await s.pages("delayed")
        assert found.message.store_ms == begin_ms
        assert await s.names("delayed", end_ms=begin_ms + 1) == ["id-a"] and not await s.names(
            "delayed", begin_ms=begin_ms + 1
        )


async def test_a_place_that_does_not_hold_a_message_of_the_topic_is_gone() -> None:
    """The right to cancel in one topic is none for another's messages."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.delay("g1", "a", MINUTE)
        (found,) = await s.pages("delayed")
        at = found.place
        behind = admin_pb2.WaitingPlace(broker_group="g1", fire_ms=at.fire_ms, offset=at.offset + 1)
        later = admin_pb2.WaitingPlace(broker_group="g1", fire_ms=at.fire_ms + 1, offset=at.offset)
        assert await s.cancel("delayed", behind, later) == ["gone", "gone"] and await s.names(
            "delayed"
        ) == ["id-a"]
        other = group_waiting._delayed_at("another", found.place)
        assert other(bench.engines[0].hosted["g1"])[0] == "gone"


async def test_recreated_topic_hides_delayed_messages_of_the_former() -> None:
    """The next topic of the name has its own messages only: in the list, for a query, to cancel,
    and to roll back."""
    async with started_bench() as bench:
        s = Scene(bench)
        engine = bench.engines[0]
        await s.delay("g1", "a", MINUTE)
        half = await s.half("g1", "h")
        (delayed,), (undecided,) = await s.pages("delayed"), await s.pages("half")
        (topic,) = bench.state.state.topics_of("g1")
        await engine.call("g1", Configure(engine.new_token(), deleted_topics=("t",)))
        await engine.call(
            "g1",
            Configure(engine.new_token(), (replace(topic, incarnation=topic.incarnation + 1),)),
        )
        assert await s.names("delayed") == [] and await s.names("half") == []
        assert await s.cancel("delayed", delayed.place) == ["gone"]
        assert await s.cancel("half", undecided.place) == ["cancelled"], (
            "it ended without becoming visible, as after a roll-back"
        )
        assert await engine.call(
            "g1", Resolve(engine.new_token(), half, "t", "id-h", True)
        ) == Resolved(False)
        asked = admin_pb2.QueryRequest(topic=NAME, message_id="id-a", max=9)
        assert not (await bench.queries[1].query(bench.topic, asked)).messages
        await s.delay("g1", "b", MINUTE)
        assert await s.names("delayed") == ["id-b"]
        await s.pass_ms(3 * MINUTE)
        assert [decode_record(lease.record).body for lease in (await bench.receive()).leases] == [
            b"b"
        ]


async def test_half_messages_are_listed_by_age_and_rolled_back() -> None:
    """By the operator, which the record says; the producer's later commit is refused, its roll-back
    agreed to."""
    async with started_bench() as bench:
        s = Scene(bench)
        first = await s.half("g1", "a")
        bench.pass_ms(1000)
        at = bench.now_ms
        await s.half("g1", "b")
        await s.half("g2", "c")
        for size in (1, 2, 100):
            assert await s.names("half", max=size) == ["id-a", "id-b", "id-c"]
        assert await s.names("half", begin_ms=at) == ["id-b", "id-c"] and await s.names(
            "half", end_ms=at
        ) == ["id-a"]
        a, b, c = await s.pages("half")
        wrong = admin_pb2.WaitingPlace(broker_group="g1", offset=b.place.offset, message_id="id-a")
        assert await s.cancel("half", a.place, wrong, c.place, user="") == [
            "cancelled",
            "gone",
            "cancelled",
        ]
        assert await s.cancel("half", a.place) == ["cancelled"] and await s.names("half") == [
            "id-b"
        ]
        engine = bench.engines[0]
        for commit in (True, False):
            assert await engine.call(
                "g1", Resolve(engine.new_token(), first, "t", "id-a", commit)
            ) == Resolved(not commit)
        assert (await s.trace("id-a"))[-1] == (
            "rolled-back",
            "by the operator (calls are not signed)",
        )
        assert not (await bench.receive()).leases
        assert await engine.call(
            "g1", Resolve(engine.new_token(), b.place.offset, "t", "id-b", False)
        ) == Resolved(True)
        assert (await s.trace("id-b"))[-1] == ("rolled-back", "the producer rolled it back")


async def test_one_answer_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may be empty; the next one goes on behind what was looked at."""
    monkeypatch.setattr(group_waiting, "PAGE", 2)
    monkeypatch.setattr(group_waiting, "LOOK_MAX", 2)

    async with started_bench() as bench:
        s = Scene(bench)
        for number in range(7):
            await s.delay("g1", f"d{number}", MINUTE + number)
            await s.half("g1", f"h{number}")
        assert await s.names("delayed", message_ids=["id-d6"]) == ["id-d6"]
        assert await s.names("half", message_ids=["id-h5"], max=1) == ["id-h5"]
        assert len(await s.names("delayed", max=100)) == len(await s.names("half", max=100)) == 7


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (admin_pb2.ListWaitingRequest(topic=NAME, kind="late"), "delayed or half"),
        (admin_pb2.ListWaitingRequest(topic=NAME, kind="half", after=b"[]"), "page token"),
        (admin_pb2.ListWaitingRequest(topic=NAME, kind="half", after=b'["g9",0,0]'), "page token"),
        (admin_pb2.CancelWaitingRequest(topic=NAME, kind=""), "delayed or half"),
        (
            admin_pb2.CancelWaitingRequest(
                topic=NAME, kind="half", messages=[admin_pb2.WaitingPlace(broker_group="g9")]
            ),
            "no queue in",
        ),
        (
            admin_pb2.CancelWaitingRequest(
                topic=NAME, kind="half", messages=[admin_pb2.WaitingPlace()] * (LETTERS_MAX + 1)
            ),
            "the limit is 100",
        ),
    ],
)
async def test_invalid_waiting_request_is_refused_with_its_reason(request_: Any, what: str) -> None:
    """With the reason."""
    async with started_bench() as bench:
        s = Scene(bench)
        with pytest.raises(LedgerError, match=what):
            if isinstance(request_, admin_pb2.ListWaitingRequest):
                await s.waiting.listed(bench.topic, request_)
            else:
                await s.waiting.cancelled(bench.topic, request_, "")


def test_waiting_calls_need_admin_on_the_topic() -> None:
    """An administrator of the topic."""
    for method, request in (
        ("ListWaiting", admin_pb2.ListWaitingRequest),
        ("CancelWaiting", admin_pb2.CancelWaitingRequest),
    ):
        assert [str(need) for need in admin_guard.needs_of(method, request(topic=NAME))] == [
            "admin on topic t"
        ]
