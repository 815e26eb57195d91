"""The budget of answers that clients have not taken: what is held is what was read and not given
back, and nothing is read beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.runtime import answer_budget
from ledgermq.node.runtime.answer_budget import (
    BULKY_BYTES,
    CONNECTION,
    COPIES,
    SMALL_BYTES,
    AnswerBudget,
    Share,
    connection_of,
)
from ledgermq.proto.status import Code, LedgerError

LIMIT, CONNECTION_LIMIT = 1000, 400


def in_task(connection: str, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
    """A task that serves a call of this connection."""

    async def serve() -> Any:
        CONNECTION.set(connection)
        return await work()

    return asyncio.create_task(serve())


async def settled() -> None:
    """All tasks have gone as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bytes_read_by_a_call_are_held_until_its_task_ends() -> None:
    budget, go_on, heard = AnswerBudget(LIMIT, CONNECTION_LIMIT), asyncio.Event(), 0

    def listener() -> None:
        nonlocal heard
        heard += 1

    budget.on_room(listener)

    async def call() -> None:
        entered = budget.enter(7)
        budget.take(7, 200)
        assert budget.held_bytes == 200 * COPIES
        budget.leave(entered)
        await go_on.wait()

    task = in_task("a", call)
    await settled()
    assert budget.held_bytes == 400 and budget.open
    # The connection is at its limit; the others are not.
    entered = in_task("a", lambda: entered_as(budget, 8))
    other = in_task("b", lambda: entered_as(budget, 9))
    await settled()
    assert not budget.admits(8) and budget.admits(9)
    assert heard == 0 and budget.version == 0
    go_on.set()
    await task
    await settled()
    assert budget.held_bytes == 0 and heard == 1 and budget.version == 1 and budget.admits(8)
    for waiting in (entered, other):
        waiting.cancel()


async def entered_as(budget: AnswerBudget, token: int) -> None:
    entered = budget.enter(token)
    try:
        await asyncio.Event().wait()
    finally:
        budget.leave(entered)


async def test_the_limit_of_the_node_closes_the_budget_for_all() -> None:
    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    share = await budget.reserve(LIMIT)
    assert not budget.open and not budget.admits(1)
    share.settle(LIMIT - 1)
    assert budget.open and budget.admits(1)
    assert budget.version == 1, "the groups ask again as soon as there is room"


def test_messages_for_a_caller_that_is_gone_are_not_counted() -> None:
    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    budget.take(7, 300)
    assert budget.held_bytes == 0


async def test_reads_wait_in_order_and_a_full_connection_delays_only_itself() -> None:
    budget, order = AnswerBudget(LIMIT, CONNECTION_LIMIT), []
    held = [
        await in_task("a", lambda: budget.reserve(350)),
        await in_task("", lambda: budget.reserve(600)),
    ]

    async def read(name: str, size: int) -> Share:
        share = await budget.reserve(size)
        order.append(name)
        return share

    tasks = [
        in_task("a", lambda: read("a", 100)),
        in_task("b", lambda: read("b1", 300)),
        in_task("b", lambda: read("b2", 60)),
    ]
    await settled()
    assert order == []
    held[1].settle(300)
    await settled()
    assert order == ["b1"], (
        "there is room for 350 bytes: not for b2 beside b1, and a has its own limit"
    )
    held[0].settle(0)
    await settled()
    assert order == ["b1", "a", "b2"]
    assert budget.held_bytes == 300 + 100 + 300 + 60
    for task in tasks:
        (await task).settle(0)
    held[1].settle(0)
    assert budget.held_bytes == 0


async def test_the_first_read_is_never_too_large() -> None:
    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    with await in_task("a", lambda: budget.reserve(10 * LIMIT)):
        assert budget.held_bytes == 10 * LIMIT
    assert budget.held_bytes == 0


async def test_read_cancelled_while_it_waits_holds_no_bytes() -> None:
    """Also in the moment when its turn has come."""
    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    held = await budget.reserve(LIMIT)
    waits, chosen = (
        in_task("", lambda: budget.reserve(10)),
        in_task("", lambda: budget.reserve(20)),
    )
    await settled()
    waits.cancel()
    await settled()
    held.settle(0)
    assert budget.held_bytes == 20
    chosen.cancel()
    await settled()
    assert chosen.cancelled() and budget.held_bytes == 0


async def test_too_many_waiting_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_budget, "WAITERS_MAX", 1)

    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    await budget.reserve(LIMIT)
    waits = in_task("", lambda: budget.reserve(1))
    await settled()
    with pytest.raises(LedgerError, match=r"limits\.buffered_bytes") as refused:
        await budget.reserve(1)
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    waits.cancel()


async def test_answers_of_other_nodes_are_held_and_refused_beyond_the_reserve() -> None:
    budget = AnswerBudget(BULKY_BYTES, BULKY_BYTES)

    async def call() -> list[bool]:
        return [
            budget.charge(size)
            for size in (
                SMALL_BYTES,
                BULKY_BYTES // 2,
                BULKY_BYTES // 2,
                SMALL_BYTES + 1,
                SMALL_BYTES,
            )
        ]

    task = in_task("a", call)
    assert await task == [True, True, True, False, True]
    await settled()
    assert budget.held_bytes == 0


async def test_a_call_to_another_node_waits_for_room_until_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    share = await budget.reserve(LIMIT)
    with pytest.raises(LedgerError):
        await budget.room(loop.time())
    waits = asyncio.create_task(budget.room(loop.time() + 60))
    await settled()
    assert not waits.done()
    share.settle(0)
    await waits
    assert budget.held_bytes == 0


def test_other_workers_bring_the_calls_of_many_clients() -> None:
    assert connection_of("unix:") == "" and connection_of("ipv4:192.0.2.1:5") == "ipv4:192.0.2.1:5"


async def test_answers_that_grow_do_not_wait_for_each_other() -> None:
    """All of them hold bytes and want more than there is: they go beyond the limit one after the
    other, each until its task ends. What fits does not wait."""
    budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
    ends = [asyncio.Event() for _ in range(4)]
    grown: list[int] = []

    async def call(number: int, size: int) -> None:
        await budget.reserve_for_task(300)
        await settled()
        await budget.grow(size, asyncio.get_running_loop().time() + 60)
        grown.append(number)
        await ends[number].wait()

    tasks = [in_task("", lambda number=number: call(number, 5000)) for number in range(3)]  # type: ignore[misc]
    tasks.append(in_task("", lambda: call(3, 50)))
    for _ in range(3):
        await settled()
    assert (grown, budget.held_bytes) == ([0], 3 * 300 + 5000), (
        "the others wait, and the small call for its first bytes"
    )
    for number in (0, 1):
        ends[number].set()
        await tasks[number]
        for _ in range(3):
            await settled()
        assert number + 1 in grown and budget.held_bytes <= 4 * 300 + 5000 + 50
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    await settled()
    assert sorted(grown) == [0, 1, 2, 3] and budget.held_bytes == 0


async def test_answer_without_budget_until_its_deadline_is_refused() -> None:
    """By its time, with nothing held."""
    budget, end = AnswerBudget(LIMIT, CONNECTION_LIMIT), asyncio.Event()

    async def first() -> None:
        await budget.reserve_for_task(1)
        await budget.grow(LIMIT, asyncio.get_running_loop().time() + 60)
        await end.wait()

    task = in_task("a", first)
    await settled()
    with pytest.raises(LedgerError, match=r"limits\.buffered_bytes") as refused:
        await in_task("b", lambda: budget.grow(1, asyncio.get_running_loop().time() - 1))
    assert refused.value.code == Code.TOO_MANY_REQUESTS and budget.held_bytes == LIMIT + 1
    end.set()
    await task
    await settled()
    assert budget.held_bytes == 0 and not budget._beyond.locked()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["group", "reserve", "cancel", "end"]),
        st.integers(1, 300),
    ),
    max_size=60,
)


@given(STEPS)
def test_held_bytes_stay_within_limits_and_return_to_zero(
    steps: list[tuple[str, str, int]],
) -> None:
    """Against the sum over the open calls, whatever begins and ends in which order."""

    async def scenario() -> None:
        budget = AnswerBudget(LIMIT, CONNECTION_LIMIT)
        held: dict[asyncio.Task[Any], tuple[str, int]] = {}
        ends: dict[asyncio.Task[Any], asyncio.Event] = {}

        def sum_of(connection: str | None = None) -> int:
            return sum(size for of, size in held.values() if connection in (None, of))

        async def group(token: int, connection: str, size: int, end: asyncio.Event) -> None:
            entered = budget.enter(token)
            if budget.admits(token):
                assert sum_of() < LIMIT and sum_of(connection) < CONNECTION_LIMIT
                budget.take(token, size)
                this = asyncio.current_task()
                assert this is not None
                held[this] = connection, size * COPIES
            budget.leave(entered)
            await end.wait()

        async def reserve(connection: str, size: int, end: asyncio.Event) -> None:
            await budget.reserve_for_task(size)
            this = asyncio.current_task()
            assert this is not None
            held[this] = connection, size
            assert sum_of() <= max(LIMIT, size) and sum_of(connection) <= max(
                CONNECTION_LIMIT, size
            )
            await end.wait()

        for token, (connection, what, size) in enumerate(steps):
            if what in ("group", "reserve"):
                end = asyncio.Event()
                work = (
                    group(token, connection, size, end)
                    if what == "group"
                    else reserve(connection, size, end)
                )
                task = in_task(connection, lambda work=work: work)  # type: ignore[misc]
                ends[task] = end
                task.add_done_callback(lambda task: held.pop(task, None))
            elif ends:
                task, end = list(ends.items())[size % len(ends)]
                task.cancel() if what == "cancel" else end.set()
                if what == "cancel" or task in held:
                    del ends[task]
            await settled()
            assert budget.held_bytes == sum_of()
        for task in ends:
            task.cancel()
        await settled()
        assert (
            budget.held_bytes == 0 and not budget._of and not budget._entered and not budget._full
        )

    asyncio.run(scenario())
