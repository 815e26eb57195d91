"""The definition of a kind of fault, and what drawing and carrying out of all kinds share.

This module holds the value that describes a kind, and the vocabulary of draws and targets. The
kinds themselves are in the modules named `faults_*.py`; `__init__.py` combines them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledgermq.proto.types import Role
from ledgermq.sim.faults.plan import FaultEvent, PlanError, Value
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.ports import Chance
from ledgermq.sim.runs.world import World

LEADER = "leader"
FOLLOWER = "follower"
"""Used instead of a node's name: the leader, or a node that does not lead, when the fault is
carried out."""
Draw = Callable[[Chance, Sequence[str]], dict[str, Value]]
Act = Callable[[World, FaultEvent], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: its rows of the fault matrix, its description, how it is drawn, and how it
    is carried out."""

    rows: tuple[int, ...]
    about: str
    draw: Draw
    act: Act


# -- draws
# ------------------------------------------------------------------------------------------------------------------------------


def some_node(chance: Chance, names: Sequence[str]) -> str:
    return names[chance.randrange(len(names))]


def nothing(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    """A kind without parameters."""
    return {}


def a_node(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": some_node(chance, names)}


def a_while(low_ms: int, high_ms: int, node: str | None = None) -> Draw:
    """Draw a node (or always use the same word), and a duration."""
    return lambda chance, names: {
        "node": some_node(chance, names) if node is None else node,
        "for_ns": chance.randrange(low_ms * MS, high_ms * MS),
    }


def lasting(low_ms: int, high_ms: int, draw: Draw = nothing) -> Draw:
    """Draw other parameters, and a duration."""
    return lambda chance, names: {
        **draw(chance, names),
        "for_ns": chance.randrange(low_ms * MS, high_ms * MS),
    }


# -- carrying out
# -----------------------------------------------------------------------------------------------------------------------


def own_chance(event: FaultEvent) -> random.Random:
    """The random source of one event: its draws do not affect other draws of the run."""
    return random.Random(event.number("salt"))


def leaders(world: World) -> list[str]:
    """Every node that believes it leads, running or paused; the one of the highest term last."""
    lives = [(station.life, name) for name, station in world.stations.items()]
    found = [
        (life.term, name) for life, name in lives if life is not None and life.role is Role.LEADER
    ]
    return [name for _, name in sorted(found)]


def target(world: World, event: FaultEvent, name: str = "node") -> str | None:
    """The node that an event names; None if it says `leader` or `follower` and there is none.
    Raises PlanError."""
    node = event.text(name)
    if node == LEADER:
        found = leaders(world)
        return found[-1] if found else None
    if node == FOLLOWER:
        led = leaders(world)
        others = [
            other
            for other, station in world.stations.items()
            if station.life is not None and other not in led[-1:]
        ]
        return others[own_chance(event).randrange(len(others))] if others else None
    if node not in world.stations:
        raise PlanError(
            f"there is no node {node!r} in this run; its nodes: {', '.join(world.stations)}"
        )
    return node
