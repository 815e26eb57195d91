"""Dead letters through the admin service, from a node that leads no broker group: lists, pages,
counts, settlements, and who may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import Ack, Change, Forward, Handle, Receive
from ledgermq.node.broker.calls.operator_calls import LETTERS_MAX
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.frontend.admin.messages import group_letters
from ledgermq.node.frontend.admin.messages.letters_admin import DeadLetters
from ledgermq.node.frontend.security import admin_guard
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import LedgerError
from tests.node.query_bench import NAME, QueryBench, started_bench

GROUP = admin_pb2.Name(name="c")


class Scene:
    """The bench with both nodes' dead letters; questions go to the node that leads nothing."""

    def __init__(self, bench: QueryBench) -> None:
        self.bench = bench
        self.letters = DeadLetters(bench.queries[1], bench.state)

    async def bury(self, broker: str, *bodies: str, group: str = "c") -> None:
        """Messages that the group gives up."""
        for body in bodies:
            await self.bench.send(broker, 0, body)
            for lease in (await self.bench.receive(group, broker)).leases:
                handle = Handle(
                    group, "t", lease.queue, lease.queue_offset, lease.lease_number, lease.attempt
                )
                await self.bench.engines[0].call(
                    broker, Forward(self.bench.engines[0].new_token(), handle)
                )
            self.bench.pass_ms(1000)

    async def listed(self, **fields: Any) -> list[tuple[str, str]]:
        """All pages: (body's id, state)."""
        found, after = [], b""
        while True:
            page = await self.letters.listed(
                admin_pb2.ListDeadLettersRequest(group=GROUP, after=after, **fields)
            )
            found += [(letter.message.message_id, letter.state) for letter in page.letters]
            after = page.next
            if not after:
                return found

    async def settled(self, how: str, *places: tuple[str, int], user: str = "") -> list[str]:
        letters = [
            admin_pb2.DeadLetterPlace(broker_group=group, offset=offset) for group, offset in places
        ]
        request = admin_pb2.SettleDeadLettersRequest(group=GROUP, how=how, letters=letters)
        return list((await self.letters.settled(request, user)).states)

    async def counts(self, **fields: Any) -> list[tuple[str, int, int, int]]:
        answer = await self.letters.counted(admin_pb2.CountDeadLettersRequest(**fields))
        return [
            (count.group.name, count.unsettled, count.resent, count.purged)
            for count in answer.groups
        ]


async def test_a_group_that_does_not_exist_has_no_empty_list() -> None:
    """A name that is wrong would look like success. A group that was used, and one that was never
    used but is configured, have one."""
    async with started_bench() as bench:
        s = Scene(bench)
        with pytest.raises(LedgerError, match="consumer group c does not exist and was never used"):
            await s.listed()
        await bench.send("g1", 0, "a")
        await bench.receive("c", "g1")
        assert await s.listed() == []


async def test_letter_list_states_place_reason_original_and_requested_body() -> None:
    """Where it is and why, its original's place, and its body only on request."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.bury("g1", "a", "b")
        page = await s.letters.listed(admin_pb2.ListDeadLettersRequest(group=GROUP, bodies=True))
        first, letter = page.letters
        assert (letter.message.message_id, letter.message.body, letter.body_bytes) == (
            "id-b",
            b"b",
            1,
        )
        assert (letter.message.topic.name, letter.message.broker_group, letter.message.offset) == (
            "%DLQ%c",
            "g1",
            1,
        )
        assert (letter.topic.name, letter.group_queue, letter.offset, letter.client) == (
            "t",
            0,
            1,
            "",
        )
        assert letter.state == "waiting" and letter.message.store_ms > first.message.store_ms
        page = await s.letters.listed(admin_pb2.ListDeadLettersRequest(group=GROUP))
        assert [(letter.message.body, letter.body_bytes) for letter in page.letters] == [
            (b"", 1),
            (b"", 1),
        ]


async def test_a_node_that_has_just_started_asks_for_the_broker_groups() -> None:
    """Before it has heard from the quorum it knows none; an empty list would look like one without
    letters."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.bury("g1", "a")
        for ask, wanted in (
            (s.listed, [("id-a", "waiting")]),
            (lambda: s.counts(group=GROUP), [("c", 1, 0, 0)]),
            (lambda: s.settled("purged", ("g1", 0)), ["purged"]),
        ):
            bench.state.forget()
            assert await ask() == wanted  # type: ignore[operator]


async def test_pages_over_broker_groups_end_where_the_first_page_saw_the_end() -> None:
    """Letters of messages that fail again during a job do not extend it."""
    async with started_bench() as bench:
        s = Scene(bench)
        assert await s.counts(group=GROUP) == [("c", 0, 0, 0)] and await s.counts() == []
        await s.bury("g1", "a", "b", "c")
        await s.bury("g2", "d", "e")
        wanted = [(f"id-{body}", "waiting") for body in "abcde"]
        for size in (1, 2, 3, 100):
            assert await s.listed(max=size) == wanted
        page = await s.letters.listed(admin_pb2.ListDeadLettersRequest(group=GROUP, max=2))
        await s.bury("g1", "late")
        await s.bury("g2", "later")
        rest = await s.letters.listed(
            admin_pb2.ListDeadLettersRequest(group=GROUP, max=100, after=page.next)
        )
        assert [letter.message.message_id for letter in rest.letters] == [
            "id-c",
            "id-d",
            "id-e",
        ] and not rest.next


async def test_letters_that_retention_removed_during_a_job_are_passed_over() -> None:
    """A page that begins behind the end of the job is empty."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.bury("g1", "a", "b", "c")
        page = await s.letters.listed(
            admin_pb2.ListDeadLettersRequest(group=GROUP, max=1, settled=True)
        )
        await s.bury("g1", "d", "e")
        bench.engines[0].hosted["g1"].machine._queues.low["%DLQ%c", 0] = 4
        rest = await s.letters.listed(
            admin_pb2.ListDeadLettersRequest(group=GROUP, max=9, settled=True, after=page.next)
        )
        assert not rest.letters and not rest.next
        assert await s.listed() == [("id-e", "waiting")] and await s.settled(
            "resent", ("g1", 3), ("g1", 4)
        ) == ["gone", "resent"]


async def test_conditions_narrow_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """By time, by id, and by state; settled letters are passed over in bounded steps."""
    monkeypatch.setattr(group_letters, "PAGE", 2)
    monkeypatch.setattr(group_letters, "LOOK_MAX", 2)

    async with started_bench() as bench:
        s = Scene(bench)
        await s.bury("g1", *"abcdefgh")
        everything = admin_pb2.ListDeadLettersRequest(group=GROUP, max=100)
        at = [letter.message.store_ms for letter in (await s.letters.listed(everything)).letters]
        assert [name for name, _ in await s.listed(max=100, begin_ms=at[2], end_ms=at[4])] == [
            "id-c",
            "id-d",
        ]
        assert [name for name, _ in await s.listed(max=100, begin_ms=at[7])] == ["id-h"]
        assert await s.settled("resent", ("g1", 1), ("g1", 2)) == ["resent"] * 2
        assert await s.settled("purged", ("g1", 3), ("g1", 5)) == ["purged"] * 2
        assert [name for name, _ in await s.listed(max=100)] == ["id-a", "id-e", "id-g", "id-h"]
        states = [
            "waiting",
            "resent",
            "resent",
            "purged",
            "waiting",
            "purged",
            "waiting",
            "waiting",
        ]
        assert [state for _, state in await s.listed(max=3, settled=True)] == states
        assert await s.listed(message_ids=["id-e", "id-b", "id-e", "nobody"]) == [
            ("id-e", "waiting")
        ]
        assert sorted(await s.listed(message_ids=["id-e", "id-b"], settled=True)) == [
            ("id-b", "resent"),
            ("id-e", "waiting"),
        ]
        assert await s.listed(message_ids=["id-e"], end_ms=at[4]) == []


async def test_counts_are_of_all_broker_groups() -> None:
    """Of one consumer group, and of all that have dead letters."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.bury("g1", "a", "b", "c")
        await s.bury("g2", "d")
        await s.bury("g2", "e", group="other")
        assert await s.settled("resent", ("g1", 0), ("g2", 0)) == ["resent", "resent"]
        assert await s.settled("purged", ("g1", 1)) == ["purged"]
        assert await s.counts(group=GROUP) == [("c", 1, 2, 1)]
        # The group `other` got `d` as well.
        assert await s.counts() == [("c", 1, 2, 1), ("other", 2, 0, 0)]
        oldest = (
            (await s.letters.counted(admin_pb2.CountDeadLettersRequest(group=GROUP)))
            .groups[0]
            .oldest_ms
        )
        (letter,) = (await s.letters.listed(admin_pb2.ListDeadLettersRequest(group=GROUP))).letters
        assert letter.message.store_ms == oldest and letter.message.message_id == "id-c"


async def test_a_list_says_how_often_the_group_itself_tried_a_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In flight or ended; a change of the lease is no try of its own; acknowledged at once is none.
    Another group's do not count."""
    topic = "%DLQ%c"

    async with started_bench() as bench:
        s = Scene(bench)
        engine = bench.engines[0]
        await s.bury("g1", "a", "b", "c", "d")

        async def handles(group: str, count: int) -> list[Handle]:
            call = Receive(
                engine.new_token(),
                group,
                topic,
                "client",
                TagFilter(),
                count,
                1000,
                bench.clock.now_ns,
            )
            leases = (await engine.call("g1", call)).leases
            return [
                Handle(group, topic, x.queue, x.queue_offset, x.lease_number, x.attempt)
                for x in leases
            ]

        async def tries() -> list[int]:
            page = await s.letters.listed(admin_pb2.ListDeadLettersRequest(group=GROUP, max=9))
            return [letter.tries for letter in page.letters]

        assert await tries() == [0, 0, 0, 0]
        await handles("other", 9)
        assert await tries() == [0, 0, 0, 0]
        a, b, c = await handles("c", 3)
        assert (await engine.call("g1", Ack(engine.new_token(), [c]))).ok == (True,)
        assert await tries() == [1, 1, 0, 0]
        await engine.call("g1", Forward(engine.new_token(), a))
        for _ in range(2):
            changed = await engine.call("g1", Change(engine.new_token(), b, 500, "client"))
            b = b._replace(lease_number=changed.lease_number)
        bench.pass_ms(1000)
        b = next(
            handle for handle in await handles("c", 9) if handle.queue_offset == b.queue_offset
        )
        await engine.call("g1", Change(engine.new_token(), b, 500, "client"))
        assert await tries() == [1, 2, 0, 1]
        monkeypatch.setattr(group_letters, "CHANGES_MAX", 1)
        assert await tries() == [1, 0, 0, 1], "what takes too long to find out is left out"


async def test_resent_letter_is_delivered_once_and_traced_to_its_user() -> None:
    """Once, however often it is asked for; why-not-delivered knows it until it is delivered."""
    async with started_bench() as bench:
        s = Scene(bench)
        await s.bury("g1", "a")
        for _ in range(2):
            assert await s.settled("resent", ("g1", 0), ("g1", 0), ("g1", 9), user="me") == [
                "resent",
                "resent",
                "gone",
            ]
        bench.follow()
        why = admin_pb2.WhyNotDeliveredRequest(message_id="id-a", group=GROUP, topic=NAME)
        found = await bench.queries[1].why_not_delivered([bench.topic], why)
        assert found.reason == "no-consumer" and "was resent" in found.answer
        trace = await bench.queries[1].trace(
            bench.topic, admin_pb2.TraceMessageRequest(message_id="id-a")
        )
        assert [event.kind for event in trace.events] == [
            "stored",
            "leased",
            "dead-lettered",
            "resent",
        ]
        assert trace.events[-1].detail == "from %DLQ%c by me" and trace.events[-1].group.name == "c"
        got = await bench.receive()
        assert [lease.attempt for lease in got.leases] == [1] and await bench.ack(got) == (True,)
        assert not (await bench.receive()).leases


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (admin_pb2.SettleDeadLettersRequest(group=GROUP, how="lost"), "resent or purged"),
        (
            admin_pb2.SettleDeadLettersRequest(
                group=GROUP, how="purged", letters=[{"broker_group": "g9"}]
            ),
            "does not exist",
        ),  # type: ignore[list-item]
        (
            admin_pb2.SettleDeadLettersRequest(
                group=GROUP, how="purged", letters=[admin_pb2.DeadLetterPlace()] * (LETTERS_MAX + 1)
            ),
            "the limit is 100",
        ),
        (admin_pb2.ListDeadLettersRequest(group=GROUP, after=b"{}"), "page token"),
        (admin_pb2.ListDeadLettersRequest(group=GROUP, after=b'[{"g1":"x"},"g1",0]'), "page token"),
        (admin_pb2.ListDeadLettersRequest(group=GROUP, after=b'[{"g1":1},"g2",0]'), "page token"),
        (
            admin_pb2.ListDeadLettersRequest(group=GROUP, message_ids=["x"] * (LETTERS_MAX + 1)),
            "the limit is 100",
        ),
    ],
)
async def test_invalid_letter_request_is_refused_with_its_reason(request_: Any, what: str) -> None:
    """With the reason."""
    async with started_bench() as bench:
        letters = DeadLetters(bench.queries[1], bench.state)
        with pytest.raises(LedgerError, match=what):
            if isinstance(request_, admin_pb2.ListDeadLettersRequest):
                await letters.listed(request_)
            else:
                await letters.settled(request_, "")


def test_letter_calls_need_group_rights_and_pass_the_user() -> None:
    """Lists and settlements need the group and its dead-letter topic, counts of all groups the
    cluster. The service learns the user."""
    group = admin_pb2.Name(namespace="ns", name="c")
    listed = admin_guard.needs_of("ListDeadLetters", admin_pb2.ListDeadLettersRequest(group=group))
    assert [str(need) for need in listed] == ["admin on group ns@c", "subscribe on topic ns@%DLQ%c"]
    assert listed == admin_guard.needs_of(
        "SettleDeadLetters", admin_pb2.SettleDeadLettersRequest(group=group)
    )
    (one,) = admin_guard.needs_of(
        "CountDeadLetters", admin_pb2.CountDeadLettersRequest(group=group)
    )
    assert one == listed[0]
    (all_of_them,) = admin_guard.needs_of("CountDeadLetters", admin_pb2.CountDeadLettersRequest())
    assert all_of_them.kind.name == "CLUSTER"

    class Authority:
        wants_certificates = False

        async def authenticate(self, metadata: Any, name: str, peer: Any) -> str:
            return "me"

        def authorize(self, user: str, needs: Any) -> None:
            assert user == "me"

    class Context:
        peer = staticmethod(str)

        def invocation_metadata(self) -> tuple[()]:
            return ()

    async def serve(request: Any, context: Any) -> str:
        return admin_guard.caller()

    guarded = admin_guard.guarded({"SettleDeadLetters": serve}, Authority(), str)  # type: ignore[arg-type]
    assert (
        asyncio.run(guarded["SettleDeadLetters"](admin_pb2.SettleDeadLettersRequest(), Context()))
        == "me"
    )  # type: ignore[arg-type, comparison-overlap]
    assert admin_guard.caller() == ""
