"""What clients saw, held against the log: each law is shown to catch what breaks it, on histories
made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ledgermq.node.broker.calls.consumer_calls import Handle, Lease
from ledgermq.node.broker.calls.read_calls import Peeked
from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.proto.types import I64
from ledgermq.sim.actors.clients import FIFO, NORMAL
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.histories import Histories
from ledgermq.sim.checks.ports import QueueKey
from ledgermq.sim.runs.world import World

KEY: QueueKey = ("t", 0)


class Log:
    """A log of one queue."""

    def __init__(self, *values: int) -> None:
        self._values: I64 = np.array(values, np.int64)

    def queues(self) -> Mapping[QueueKey, I64]:
        return {KEY: self._values}


def record(value: int) -> bytes:
    return value.to_bytes(8, "big")


def produced(*offsets: int, durability: str = "durable") -> Produced:
    return Produced(1, 1, offsets, 0, durability)


def history(log: Log) -> Histories:
    """Producer 1 sent the messages 10 and 11, then 12; both were acknowledged."""
    told = Histories(log)
    told.produced(told.sent(1, KEY, 10, 2, now=0), produced(0, 1), now=5)
    told.produced(told.sent(1, KEY, 12, 1, now=6), produced(2), now=9)
    return told


def read(told: Histories, end: int, invoked: int, returned: int, *values: int) -> None:
    told.shown(
        KEY, Peeked(tuple(record(value) for value in values), end, end), 0, invoked, returned
    )


def lease(offset: int, value: int, number: int = 7, attempt: int = 1) -> Lease:
    return Lease(0, offset, number, attempt, record(value))


def test_a_true_history_is_accepted() -> None:
    """Sends, reads, deliveries and acknowledgements as they should be, with a repeated delivery
    before the acknowledgement."""
    told = history(Log(10, 11, 12))
    read(told, 2, 5, 6, 10, 11)
    read(told, 3, 10, 11, 12)
    told.delivered("g", "t", [lease(0, 10), lease(1, 11)], 0, 10)
    told.delivered("g", "t", [lease(0, 10, 9, 2)], 0, 20)
    told.acked([Handle("g", "t", 0, 0, 9, 2)], [True], 30)
    told.finish()
    assert (told.reads, told.groups["g"].again, told.acknowledged) == (2, 1, (2, 0))


@pytest.mark.parametrize("values", [(10, 11), (10, 99, 12), (11, 10, 12), (10, 11, 13)])
def test_an_acknowledged_message_that_is_not_there_is_noticed(values: tuple[int, ...]) -> None:
    with pytest.raises(Violation, match="I5"):
        history(Log(*values)).settle()


def test_a_stale_read_is_noticed() -> None:
    """A read that began after a send was acknowledged must see it, and one that began after another
    read ended must not see less."""
    told = history(Log(10, 11, 12))
    read(told, 2, 10, 11)
    with pytest.raises(Violation, match="linearizable"):
        told.finish()


def test_reads_that_go_back_are_noticed() -> None:
    told = Histories(Log(10))
    told.sent(1, KEY, 10, 1, now=0)
    read(told, 1, 2, 3)
    read(told, 0, 4, 5)
    with pytest.raises(Violation, match="linearizable"):
        told.finish()


@pytest.mark.parametrize("values", [(10, 11, 12, 77), (10, 11, 12, 12)])
def test_unsent_or_duplicated_value_is_a_violation(values: tuple[int, ...]) -> None:
    with pytest.raises(Violation, match="I6"):
        history(Log(*values)).finish()


def test_reader_shown_other_values_is_a_violation() -> None:
    told = history(Log(10, 11, 12))
    read(told, 2, 10, 11, 10, 12)
    with pytest.raises(Violation, match="I6"):
        told.settle()


def test_reader_shown_uncommitted_values_is_a_violation() -> None:
    told = history(Log(10, 11, 12))
    read(told, 4, 10, 11, 13)
    with pytest.raises(Violation, match="I5"):
        told.settle()


def test_acknowledgements_out_of_order_are_noticed() -> None:
    """I7: a later send of a producer is never stored before an earlier acknowledged one."""
    told = history(Log(10, 11, 12))
    with pytest.raises(Violation, match="I7"):
        told.produced(told.sent(1, KEY, 13, 1, now=10), produced(1), now=12)


def test_a_message_done_is_done() -> None:
    """It is not delivered again. A repeated acknowledgement is confirmed; an acknowledgement with
    another lease never is."""
    told = history(Log(10, 11, 12))
    told.delivered("g", "t", [lease(0, 10)], 0, 10)
    told.acked([Handle("g", "t", 0, 0, 7, 1)], [True], 20)
    with pytest.raises(Violation, match="after it was done"):
        told.delivered("g", "t", [lease(0, 10, 9, 2)], 0, 21)
    told.acked([Handle("g", "t", 0, 0, 7, 1), Handle("g", "t", 0, 0, 9, 2)], [True, False], 22)
    assert told.groups["g"].repeated == 1
    with pytest.raises(Violation, match="under two leases"):
        told.acked([Handle("g", "t", 0, 0, 9, 2)], [True], 22)
    with pytest.raises(Violation, match="refused when it was repeated"):
        told.acked([Handle("g", "t", 0, 0, 7, 1)], [False], 22)


def test_first_deliveries_out_of_order_are_noticed() -> None:
    told = history(Log(10, 11, 12))
    told.delivered("g", "t", [lease(1, 11, 7)], 0, 10)
    told.delivered("g", "t", [lease(0, 10, 8)], 0, 11)
    with pytest.raises(Violation, match="I7"):
        told.finish()


@pytest.mark.parametrize(("end", "true"), [(3, True), (2, False)])
def test_partly_stored_send_counts_its_stored_messages(end: int, true: bool) -> None:
    """A leader failed in the middle of a send of nine; the next leader continues after its first
    message."""
    told = Histories(Log(5, 10, 20))
    told.produced(told.sent(2, KEY, 5, 1, now=0), produced(0), now=1)
    told.sent(1, KEY, 10, 9, now=2)
    told.produced(told.sent(2, KEY, 20, 1, now=6), produced(2), now=9)
    read(told, end, 10, 11)
    if true:
        told.finish()
        return
    with pytest.raises(Violation, match="linearizable"):
        told.finish()


def test_group_is_owed_messages_that_every_trim_waited_for() -> None:
    """A trim without an object store takes the messages of a topic that a group has not read yet,
    and that is no fault. Of two trims the group must have been in the way of both."""
    world = World(1)
    assert world.owed("g") == [NORMAL, FIFO], "nothing was trimmed"
    world.trimmed_for_good([("g", NORMAL, 0), ("g", NORMAL, 1), ("g", FIFO, 0), ("h", FIFO, 0)])
    assert (world.owed("g"), world.owed("h"), world.owed("i")) == ([NORMAL, FIFO], [FIFO], [])
    world.trimmed_for_good([("g", NORMAL, 0), ("h", NORMAL, 0), ("i", FIFO, 0)])
    assert (world.owed("g"), world.owed("h"), world.owed("i")) == ([NORMAL], [], [])
