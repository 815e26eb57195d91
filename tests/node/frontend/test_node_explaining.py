"""Why a message was not delivered, and its trace: every reason, produced by a matching history and
reported by a node that leads no group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import WIRE_MAX, Change, Handle, Receive, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Reset
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.calls.transaction_calls import Prepare, Resolve
from ledgermq.node.broker.filters.filters import sql_filter
from ledgermq.node.broker.queries.why_delivery import RANKS, absent, born_of
from ledgermq.node.frontend.admin.messages import explaining
from ledgermq.proto import admin_pb2
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft, GroupConfig
from tests.node.query_bench import NAME, QueryBench, started_bench
from tests.node_core.core_fakes import EPOCH_MS, SECOND


class Story:
    """One message, m, in queue 0 of g1, and the consumer group c."""

    def __init__(self, bench: QueryBench) -> None:
        self.bench = bench
        self.engine = bench.engines[0]

    async def call(self, call: Any) -> Any:
        return await self.engine.call("g1", call)

    async def send(self, name: str = "m", body: bytes = b"x", **fields: Any) -> None:
        deliver_ms = fields.get("deliver_ms") or 0
        draft = Draft(
            "t", 0, body, encode(Fields(message_id=name, **fields)), EPOCH_MS, deliver_ms=deliver_ms
        )
        await self.call(Produce(self.engine.new_token(), [draft]))

    async def half(self) -> int:
        draft = Draft("t", 0, b"x", encode(Fields(message_id="m")), EPOCH_MS)
        return int(
            (await self.call(Prepare(self.engine.new_token(), [draft], [None]))).queue_offsets[0]
        )

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.bench.clock.now_ns += SECOND
            self.engine.turn()

    async def receive(self, expression: str = "", wait_s: int = 0) -> Received:
        call = Receive(
            self.engine.new_token(),
            "c",
            "t",
            "reader",
            sql_filter(expression or "TRUE"),
            32,
            10_000,
            self.bench.clock.now_ns,
        )
        call = replace(call, deadline_ns=call.deadline_ns + wait_s * SECOND)
        if wait_s:
            self.poll = self.engine.call("g1", call)
            self.engine.turn()
            return Received(())
        got: Received = await self.call(call)
        return got

    def handle(self, got: Received) -> Handle:
        lease = got.leases[-1]
        return Handle("c", "t", lease.queue, lease.queue_offset, lease.lease_number, lease.attempt)

    async def why(self, name: str = "m") -> admin_pb2.WhyNotDeliveredResponse:
        request = admin_pb2.WhyNotDeliveredRequest(
            message_id=name, group=admin_pb2.Name(name="c"), topic=NAME
        )
        return await self.bench.queries[1].why_not_delivered([self.bench.topic], request)

    async def trace(self) -> list[str]:
        kinds, after = [], b""
        while True:
            page = await self.bench.queries[1].trace(
                self.bench.topic, admin_pb2.TraceMessageRequest(message_id="m", after=after)
            )
            kinds += [event.kind for event in page.events]
            after = page.next
            if not after:
                return kinds


async def unread(s: Story) -> None:
    await s.send()


async def ready_nobody(s: Story) -> None:
    await s.send("first")
    await s.receive()
    await s.send()


async def leased(s: Story) -> None:
    await s.send()
    await s.receive()


async def visible_again(s: Story) -> None:
    await leased(s)
    s.pass_s(11)


async def too_large(s: Story) -> None:
    await s.send(body=bytes(WIRE_MAX))
    await s.receive()
    assert (await s.why()).reason == "leased"
    s.pass_s(11)
    await s.receive()


async def acknowledged(s: Story) -> None:
    await s.send()
    got = await s.receive()
    await s.call(Change(s.engine.new_token(), s.handle(got), 0, "reader"))
    await s.bench.ack(await s.receive())


async def filtered(s: Story) -> None:
    await s.send()
    await s.receive("nothing = 1")


async def skipped(s: Story) -> None:
    await leased(s)
    await s.call(Reset(s.engine.new_token(), "c", "t", ((0, 1),)))


async def dead(s: Story) -> None:
    await s.call(Configure(s.engine.new_token(), groups=(GroupConfig("", "c", max_attempts=1),)))
    await leased(s)
    s.pass_s(11)
    await s.receive()


async def ordered(s: Story) -> None:
    await s.call(Configure(s.engine.new_token(), groups=(GroupConfig("", "c", fifo=True),)))
    await s.send("before", message_group="u")
    got = await s.receive()
    assert len(got.leases) == 1
    await s.send(message_group="u")
    await s.send("other", message_group="v")
    await s.receive()


async def delayed(s: Story) -> None:
    await s.send(deliver_ms=s.bench.now_ms + 5_000)


async def fired(s: Story) -> None:
    await delayed(s)
    s.pass_s(7)
    await s.receive()


async def half(s: Story) -> None:
    await s.half()


async def rolled_back(s: Story) -> None:
    await s.call(Resolve(s.engine.new_token(), await s.half(), "t", "m", False))


async def committed(s: Story) -> None:
    await s.call(Resolve(s.engine.new_token(), await s.half(), "t", "m", True))
    await s.receive()


async def again(s: Story) -> None:
    """The topic is deleted, and another one gets its name."""
    await s.call(Configure(s.engine.new_token(), deleted_topics=("t",)))
    await s.call(
        Configure(
            s.engine.new_token(), (replace(s.bench.state.state.topics_of("g1")[0], incarnation=99),)
        )
    )


async def deleted(s: Story) -> None:
    await acknowledged(s)
    await again(s)
    await s.send("newer")
    await s.receive()


async def deleted_while_delayed(s: Story) -> None:
    await delayed(s)
    await again(s)


STORIES: dict[Callable[[Story], Awaitable[None]], tuple[str, list[str]]] = {
    unread: ("unread", ["stored"]),
    ready_nobody: ("no-consumer", ["stored"]),
    leased: ("leased", ["stored", "leased"]),
    visible_again: ("no-consumer", ["stored", "leased"]),
    too_large: ("too-large", ["stored", "leased", "leased"]),
    acknowledged: ("acknowledged", ["stored", "leased", "changed", "leased", "acknowledged"]),
    filtered: ("filtered", ["stored", "passed-over"]),
    skipped: ("skipped", ["stored", "leased", "reset"]),
    dead: ("dead-lettered", ["stored", "leased", "dead-lettered"]),
    ordered: ("ordered", ["stored", "waiting"]),
    delayed: ("delayed", ["delayed"]),
    deleted: ("deleted", ["stored", "leased", "changed", "leased", "acknowledged"]),
    deleted_while_delayed: ("deleted", ["delayed"]),
    fired: ("leased", ["delayed", "delivered-by-timer", "leased"]),
    half: ("half", ["half"]),
    rolled_back: ("rolled-back", ["half", "rolled-back"]),
    committed: ("leased", ["half", "committed", "leased"]),
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_every_reason_and_the_trace_behind_it(
    story: Callable[[Story], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each history gives its reason in one sentence about the message, and the trace its events in
    order, piece by piece too."""
    reason, kinds = STORIES[story]
    assert reason in RANKS

    async with started_bench() as bench:
        s = Story(bench)
        await story(s)
        found = await s.why()
        assert (found.reason, found.answer.count(".") >= 1, "m" in found.answer) == (
            reason,
            True,
            True,
        ), found
        assert await s.trace() == kinds
        assert len([line for line in found.evidence if "entry" in line]) == len(kinds)
        monkeypatch.setattr(explaining, "SCAN_BYTES", 1)
        assert await s.trace() == kinds


async def test_a_receive_that_waits_is_named() -> None:
    """A client of the group waits in a receive, so the message is about to be delivered."""
    async with started_bench() as bench:
        s = Story(bench)
        await leased(s)
        s.engine.replicators["g1"].commit_at_once = False
        s.pass_s(11)
        await s.receive(wait_s=60)
        question = explaining.peer_pb2.GroupWhy(topic="t", message_id="m", group="c")
        found: Any = await bench.queries[0]._local._explainer.why("g1", question)
        assert found.reason == "visible-again" and any(
            "1 receives of c wait" in line for line in found.evidence
        )


@pytest.mark.parametrize("less", [0, 400])
async def test_how_long_a_message_is_for_its_consumer(less: int) -> None:
    """The bytes beside the body decide whether it fits; the reported length is that on the wire."""
    async with started_bench() as bench:
        s = Story(bench)
        await s.send(body=bytes(WIRE_MAX - less))
        await s.receive()
        told = [line for line in (await s.why()).evidence if "on the wire" in line]
        assert [int(line.split()[0]) - WIRE_MAX > 100 for line in told] == ([] if less else [True])


async def test_unknown_message_is_not_found_or_expired() -> None:
    """An unknown id is not found; an id older than the log has expired, judging by its time; its
    trace is refused."""
    async with started_bench() as bench:
        s = Story(bench)
        await s.send()
        assert (await s.why("x")).reason == "not-found"
        old = (
            "01"
            + "AABBCCDDEEFF"
            + "0001"
            + f"{(EPOCH_MS // 1000 - 1_609_459_200 - 60):08X}"
            + "00000001"
        )
        assert born_of(old) == EPOCH_MS // 1000 * 1000 - 60_000
        assert (await s.why(old)).reason == "not-found", "nothing was trimmed yet"
        s.engine.hosted["g1"].reader.begin_index = 1
        assert (await s.why(old)).reason == "expired"
        with pytest.raises(LedgerError):
            await bench.queries[1].trace(bench.topic, admin_pb2.TraceMessageRequest(message_id="x"))
        with pytest.raises(LedgerError):
            await bench.queries[1].trace(
                bench.topic, admin_pb2.TraceMessageRequest(message_id="m", after=b"[1]")
            )
    assert absent("x", ["a", "b"], None, True).answer == "No message with the id x is in 2 topics."


async def test_message_with_trimmed_records_is_done_in_an_unknown_way() -> None:
    """A message that is done and whose records were trimmed is reported as done in an unknown
    way."""
    async with started_bench() as bench:
        s = Story(bench)
        await acknowledged(s)
        reader = s.engine.hosted["g1"].reader
        reader.begin_index = reader.limits.end_index
        found = await s.why()
        assert found.reason == "done" and "no longer in the log" in found.answer
