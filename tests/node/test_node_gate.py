"""When calls wait for a batch that is on its way, and when they stop waiting."""

from __future__ import annotations

import asyncio

from ledgermq.node.core.ports import PeerPacket, SyncTicket
from ledgermq.node.gate import Gate
from tests.node.test_node_engine import PEEKED, Bench, FakeGroup, Output

MS = 1_000_000


def gate_after_sync(took_ns: int) -> Gate:
    """A sync began, took so long and ended at 100 ms, and its batch is not committed yet."""
    gate = Gate()
    gate.sync_begins()
    gate.turned(Output(awaits_commit=True), 0, answers=False)
    assert gate.shut and gate.wake_at_ns is None, "while a sync is under way nothing but its end counts"
    gate.sync_ended(100 * MS, took_ns)
    gate.turned(Output(awaits_commit=True), 100 * MS, answers=False)
    return gate


def test_calls_wait_for_the_commit_behind_a_sync() -> None:
    """The majority's answer opens the gate."""
    gate = gate_after_sync(3 * MS)
    assert gate.shut
    gate.turned(Output(awaits_commit=False), 101 * MS, answers=False)
    assert not gate.shut and gate.wake_at_ns is None


def test_a_distant_majority_is_waited_for_no_longer_than_the_sync_took() -> None:
    """Then the next batch follows, although the last one is not committed: batches are pipelined over long ways."""
    gate = gate_after_sync(3 * MS)
    assert gate.wake_at_ns == 103 * MS
    gate.look(103 * MS - 1)
    assert gate.shut
    gate.look(103 * MS)
    assert not gate.shut
    gate.turned(Output(awaits_commit=True), 104 * MS, answers=False)
    assert not gate.shut, "a later turn does not begin the wait anew"


def test_after_answers_calls_wait_until_the_loop_has_rested() -> None:
    """Who was just answered sends again: these calls are one batch."""
    gate = Gate()
    gate.turned(Output(), 0, answers=True)
    assert gate.shut
    gate.turned(Output(), 1, answers=False)
    assert gate.shut, "a further turn is no rest"
    gate.rested()
    assert not gate.shut


def test_a_group_that_can_answer_before_a_sync_holds_nothing() -> None:
    """Neither for a sync, nor for a commit, nor for the loop."""
    gate = Gate()
    gate.sync_begins()
    gate.turned(Output(hold_calls=False, awaits_commit=True), 0, answers=True)
    assert not gate.shut


def test_a_gate_that_opens_without_an_answer_lets_its_calls_through() -> None:
    """The commit of a batch that nobody waits for wakes nobody else; calls behind it get their turn all the same. So do calls that wait for
    a commit that does not come."""

    async def main(commits: bool) -> None:
        synced = asyncio.Event()
        loop = asyncio.get_running_loop()

        def react(group: FakeGroup, output: Output) -> None:
            if group.turns == 1:
                output.sync = SyncTicket(1, lambda: None)
            output.awaits_commit = not group.packets
            if group.synced and not group.packets:
                loop.call_soon_threadsafe(synced.set)

        group = FakeGroup(react)
        bench = Bench(group)
        async with asyncio.timeout(20):
            await synced.wait()
            calls = [bench.peek() for _ in range(3)]
            if commits:
                bench.engine.packets([("g1", "n2", PeerPacket(b"committed"))])
            assert await asyncio.gather(*calls) == [PEEKED] * 3
        await bench.engine.stop()

    asyncio.run(main(commits=True))
    asyncio.run(main(commits=False))
