"""Appointments reach replicas, wishes reach the controller once, and neither waits for the
other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ledgermq.node.broker.calls.member_calls import Appointed
from ledgermq.node.controller.ha_control import HaControl
from ledgermq.proto.status import Code, fail
from ledgermq.raft.ha_control import AlterIsr, Appointment, ElectionRequest, HaRequest
from ledgermq.raft.transfer import Cause

ALL = {"n1": "", "n2": "", "n3": ""}


def agreed(version: int = 1, epoch: int = 1, generation: int = 0) -> Appointment:
    return Appointment(
        generation=generation, version=version, epoch=epoch, master="n1", in_sync=ALL
    )


def elect(epoch: int = 0, generation: int = 0) -> ElectionRequest:
    return ElectionRequest(
        node="n2",
        incarnation="",
        generation=generation,
        epoch=epoch,
        term=0,
        voters=ALL,
        cause=Cause.ELECTION_TIMEOUT,
        asked_by="n2",
    )


class World:
    """A controller that answers on request, and a record of what the engine received."""

    def __init__(self) -> None:
        self.appointments: dict[str, Appointment] = {}
        self.told: list[tuple[str, Appointment]] = []
        self.wishes: list[tuple[str, HaRequest]] = []
        self.answers: list[asyncio.Future[Appointment]] = []
        self.ha_control = HaControl(self, self, ("g1", "g2"))

    @property
    def state(self) -> World:
        return self

    def notify_at_once(self, group: str, call: Any) -> None:
        assert isinstance(call, Appointed)
        self.told.append((group, call.appointment))

    async def appoint(self, group: str, wish: HaRequest, timeout: float) -> Appointment:
        assert 0 < timeout < 10, "no call waits long for the quorum"
        self.wishes.append((group, wish))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def take_told(self) -> list[tuple[str, Appointment]]:
        told, self.told = self.told, []
        return told


@asynccontextmanager
async def running_world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.ha_control.stop()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_appointment_is_told_once_and_again_to_a_reopened_group() -> None:
    """With every change of the state, but only what is news; a new replica in the same process
    knows nothing yet."""
    async with running_world() as world:
        world.ha_control.changed()
        assert world.take_told() == []
        world.appointments = {"g1": agreed(), "elsewhere": agreed()}
        world.ha_control.changed()
        world.ha_control.changed()
        assert world.take_told() == [("g1", agreed())]
        world.appointments = {"g1": agreed(2), "g2": agreed()}
        world.ha_control.changed()
        assert world.take_told() == [("g1", agreed(2)), ("g2", agreed())]
        world.ha_control.opened("g1")
        assert world.take_told() == [("g1", agreed(2))]


async def test_one_wish_of_a_kind_is_under_way_at_a_time_and_its_grant_is_told_at_once() -> None:
    """Others are dropped: the core wishes again from what it knows then. Kinds and groups do not
    wait for each other."""
    async with running_world() as world:
        wish, alter = elect(), AlterIsr(node="n2", generation=0, epoch=1, version=1, in_sync=ALL)
        world.ha_control.wished("g1", (wish, wish))
        world.ha_control.wished("g1", (alter,))
        world.ha_control.wished("g2", (wish,))
        await settle()
        assert world.wishes == [("g1", wish), ("g1", alter), ("g2", wish)]
        world.answers[0].set_result(agreed())
        await settle()
        assert world.take_told() == [("g1", agreed())]
        # The state may hear of it later, and older of it than was granted.
        world.appointments = {"g1": agreed()}
        world.ha_control.changed()
        assert world.take_told() == []
        world.ha_control.wished("g1", (elect(1),))
        await settle()
        assert world.wishes[-1] == ("g1", elect(1))


async def test_failed_request_is_dropped_and_the_present_appointment_told() -> None:
    """Refused, or without a quorum: nothing is kept to be tried again."""
    async with running_world() as world:
        world.appointments = {"g1": agreed()}
        world.ha_control.changed()
        world.take_told()
        for error in (
            fail(Code.PRECONDITION_FAILED, "no"),
            fail(Code.HA_NOT_AVAILABLE, "no quorum"),
        ):
            world.ha_control.wished("g1", (elect(1),))
            await settle()
            world.answers[-1].set_exception(error)
            await settle()
            assert world.take_told() == [("g1", agreed())]
        assert len(world.wishes) == 2


async def test_whoever_wishes_from_old_news_is_told_the_newest_instead() -> None:
    """Such a request could not be granted, so it is not sent."""
    async with running_world() as world:
        world.appointments = {"g1": agreed(5, 3, 7)}
        for wish in (
            elect(2, 7),
            elect(9, 0),
            AlterIsr(node="n1", generation=7, epoch=3, version=4, in_sync=ALL),
        ):
            world.ha_control.wished("g1", (wish,))
            assert world.take_told() == [("g1", agreed(5, 3, 7))]
        world.ha_control.wished(
            "g1", (elect(3, 7), AlterIsr(node="n1", generation=8, epoch=3, version=4, in_sync=ALL))
        )
        await settle()
        assert len(world.wishes) == 2
