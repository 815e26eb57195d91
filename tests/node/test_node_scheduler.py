"""The scheduler alone, without loop, clock or thread: which inputs lead to which actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import ClientGone
from ledgermq.node.broker.calls.outcome import Done, Refused
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.scheduler import SLICE_NS, Scheduler

FAR_NS = 1 << 62
TICKET = SyncTicket(1, lambda: None)
CALL = ClientGone("c", 0)
PACKET = PeerPacket(b"\x03")


class Group:
    """Records its inputs; `output` changes what the next turns return."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.turns: list[tuple[list[Any], list[Any], list[Any]]] = []
        self.output: Callable[[TurnOutput], None] = lambda output: None
        self.took_ns = 0

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Any],
        packets: Sequence[Any],
        synced: Sequence[Any],
    ) -> TurnOutput:
        self.turns.append((list(calls), list(packets), list(synced)))
        self.driver.clock_ns += self.took_ns
        output = TurnOutput([], [], None, FAR_NS, None, hold_calls=True)
        self.output(output)
        return output


class Driver:
    """Records what the scheduler asks for; nothing happens by itself."""

    def __init__(self) -> None:
        self.clock_ns = 1
        self.asked: list[Any] = []

    def now_ns(self) -> int:
        return self.clock_ns

    def now_ms(self) -> int:
        return 0

    def pass_soon(self) -> None:
        self.asked.append("pass")

    def pass_at(self, at_ns: int) -> None:
        self.asked.append(at_ns)

    def rest(self) -> None:
        self.asked.append("rest")

    def sync(self, group: str, ticket: SyncTicket) -> None:
        self.asked.append((group, ticket))

    def deliver(self, group: str, output: TurnOutput) -> None:
        self.asked.append(group)

    def take(self) -> list[Any]:
        asked, self.asked = self.asked, []
        return asked


def scheduled(*names: str) -> tuple[Scheduler, Driver, dict[str, Group]]:
    """A scheduler whose groups have had their first turn."""
    driver = Driver()
    scheduler, groups = Scheduler(driver), {name: Group(driver) for name in names}
    for name, group in groups.items():
        scheduler.add(name, group)  # type: ignore[arg-type]
    scheduler.run()
    driver.take()
    for group in groups.values():
        group.turns.clear()
    return scheduler, driver, groups


def test_calls_wait_for_others_and_then_for_the_sync_under_way() -> None:
    """A batch is what came until the driver rested; the next one is what came until the sync ended,
    and its outcome comes with it."""
    scheduler, driver, groups = scheduled("a")
    seat = scheduler.seats["a"]
    scheduler.put(seat, CALL)
    scheduler.put(seat, CALL)
    assert driver.take() == ["rest"], "the driver is asked once"
    scheduler.rested()
    assert driver.take() == ["pass"]

    def syncs(output: TurnOutput) -> None:
        output.sync = TICKET

    groups["a"].output = syncs
    scheduler.run()
    assert driver.take() == [("a", TICKET), "a"] and groups["a"].turns == [([CALL, CALL], [], [])]
    scheduler.put(seat, CALL)
    assert driver.take() == [], "the end of the sync brings the next pass"
    groups["a"].output = lambda output: output.done.append(Done(1, Refused("busy")))
    scheduler.sync_ended("a", TICKET, None)
    scheduler.run()
    assert driver.take() == ["pass", "a", "rest"] and groups["a"].turns[1:] == [
        ([CALL], [], [(TICKET, None)])
    ]
    scheduler.put(seat, CALL)
    assert driver.take() == [], "answers were delivered, and those clients may send again"
    scheduler.rested()
    assert driver.take() == ["pass"]


def test_a_pass_that_took_long_leaves_the_other_groups_to_the_next() -> None:
    """Sockets are read in between, and no group is given two turns before each had one."""
    scheduler, driver, groups = scheduled("a", "b", "c")
    groups["a"].took_ns = groups["b"].took_ns = SLICE_NS
    scheduler.packets([(name, "n2", PACKET) for name in "abc"])
    assert driver.take() == ["pass"]
    for name in "abc":
        scheduler.want("a")
        scheduler.run()
        assert driver.take()[0] == name
    assert [len(group.turns) for group in groups.values()] == [1, 1, 1]


def test_a_timer_is_ordered_anew_only_for_an_earlier_time() -> None:
    """Most turns move the time of the next one a little later, and a pass that finds nothing to do
    is cheap."""
    scheduler, driver, groups = scheduled("a")
    for wake_ns, ordered in ((500, [500]), (600, []), (400, [400])):
        groups["a"].output = lambda output, wake_ns=wake_ns: setattr(output, "wake_at_ns", wake_ns)  # type: ignore[misc]
        scheduler.want("a")
        scheduler.run()
        assert [asked for asked in driver.take() if isinstance(asked, int)] == ordered
    driver.clock_ns = 399
    scheduler.time_is_up()
    scheduler.run()
    assert driver.take() == ["pass", 400] and len(groups["a"].turns) == 3, (
        "too early: no turn, and the timer again"
    )
    driver.clock_ns = 400
    groups["a"].output = lambda output: None
    scheduler.time_is_up()
    scheduler.run()
    assert driver.take() == ["pass", "a"] and len(groups["a"].turns) == 4


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_group_that_leaves_has_only_the_turn_with_its_last_sync(all_of_them: bool) -> None:
    """The outcome of a sync must not be lost, and no further one may begin."""
    scheduler, _, groups = scheduled("a")

    def syncs(output: TurnOutput) -> None:
        output.sync = TICKET

    groups["a"].output = syncs
    scheduler.want("a")
    scheduler.run()
    ended: list[str] = []
    if all_of_them:
        scheduler.finish(lambda: ended.append("idle"))
    else:
        scheduler.remove("a", lambda: ended.append("gone"))
    scheduler.packets([("a", "n2", PACKET)])
    scheduler.put_at_once("a", CALL)
    scheduler.run()
    assert len(groups["a"].turns) == 1 and ended == []
    groups["a"].output = lambda output: None
    scheduler.sync_ended("a", TICKET, None)
    scheduler.run()
    assert groups["a"].turns[1:] == [([], [], [(TICKET, None)])] and ended == [
        "idle" if all_of_them else "gone"
    ]
    assert ("a" in scheduler.seats) is all_of_them
