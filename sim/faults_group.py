"""No faults, but what a group does beside them and must survive under them: trims and transfers (rows 37, 40).

Here lives which of it is asked for when. Whether it is granted is the product's affair.
"""

from __future__ import annotations

from ledgermq.sim.faults_kind import Kind, a_node, target
from ledgermq.sim.plan import FaultEvent
from ledgermq.sim.world import World


def trim(world: World, event: FaultEvent) -> None:
    world.trim(event.number("files"))


def transfer(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.transfer(name)


KINDS: dict[str, Kind] = {
    "trim": Kind((40,), "files of the log go that every voter has", lambda c, n: {"files": c.randrange(1, 4)}, trim),
    "transfer": Kind((37,), "leadership is handed to some node, whatever state that one is in", a_node, transfer),
}
