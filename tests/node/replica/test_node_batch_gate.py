"""When calls wait for a batch that is on its way, and when they stop waiting."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.batch_gate import OPEN_BATCHES, BatchGate
from tests.node.replica.test_node_engine import PEEKED, Bench, FakeGroup, Output


@pytest.mark.parametrize("most", [1, 2])
def test_calls_wait_while_a_sync_runs_and_while_too_many_batches_are_open(most: int) -> None:
    """Both have to end; a commit that leaves one batch less than may be open opens the gate."""
    gate = BatchGate(most)
    gate.sync_begins()
    gate.turned(Output(open_batches=most - 1), answers=False)
    assert gate.shut, "a sync is under way"
    gate.sync_ended()
    gate.turned(Output(open_batches=most), answers=False)
    assert gate.shut
    gate.turned(Output(open_batches=most - 1), answers=False)
    assert not gate.shut


def test_after_answers_calls_wait_until_the_loop_has_rested() -> None:
    """Clients that were just answered send again: their calls form one batch."""
    gate = BatchGate()
    gate.turned(Output(), answers=True)
    assert gate.shut
    gate.turned(Output(), answers=False)
    assert gate.shut, "a further turn is no rest"
    gate.rested()
    assert not gate.shut


def test_gate_stays_open_for_a_group_that_answers_before_a_sync() -> None:
    """Neither for a sync, nor for a commit, nor for the loop."""
    gate = BatchGate()
    gate.sync_begins()
    gate.turned(Output(hold_calls=False, open_batches=OPEN_BATCHES), answers=True)
    assert not gate.shut


async def test_a_gate_that_opens_without_an_answer_lets_its_calls_through() -> None:
    """The commit of a batch without waiting callers answers no call; the calls behind it still get
    their turn."""
    synced = asyncio.Event()
    loop = asyncio.get_running_loop()

    def react(group: FakeGroup, output: Output) -> None:
        if group.turns == 1:
            output.sync = SyncTicket(1, lambda: None)
        output.open_batches = 0 if group.packets else OPEN_BATCHES
        if group.synced and not group.packets:
            loop.call_soon_threadsafe(synced.set)

    group = FakeGroup(react)
    bench = Bench(group)
    async with asyncio.timeout(20):
        await synced.wait()
        calls = [bench.peek() for _ in range(3)]
        bench.engine.packets([("g1", "n2", PeerPacket(b"committed"))])
        assert await asyncio.gather(*calls) == [PEEKED] * 3
    await bench.engine.stop()
