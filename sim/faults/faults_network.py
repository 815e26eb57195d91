"""Faults of the network: packets are lost, late, doubled or damaged, and links are cut in every
shape (rows 7–11, 42).

This module chooses which condition begins when, and ends it; `network.py` defines its effect on a
packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from ledgermq.sim.faults.faults_kind import LEADER, Kind, lasting, own_chance, some_node, target
from ledgermq.sim.faults.plan import FaultEvent, Value
from ledgermq.sim.machine.network import MS, Link, Weather, around, between, bridge, ring
from ledgermq.sim.machine.ports import Chance
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World

LAST_ANSWERS_NS = 20 * MS
"""Long enough that an answer of every follower is among the late ones."""


def sever(world: World, event: FaultEvent, links: Iterable[Link]) -> None:
    """Cut links for the duration of the event."""
    number = world.network.sever(links)
    world.after(event.number("for_ns"), partial(world.network.end, number))


def weather(world: World, event: FaultEvent) -> None:
    """Apply the event's parameters to the network."""
    loss, duplication, slow, damage = (
        event.share(n) if n in event.params else 0.0
        for n in ("loss", "duplication", "slow", "damage")
    )
    delay_ns, jitter_ns = (
        event.number(n) if n in event.params else 0 for n in ("delay_ns", "jitter_ns")
    )
    number = world.network.worsen(
        Weather(
            loss=loss,
            duplication=duplication,
            slow=slow,
            damage=damage,
            delay_ns=delay_ns,
            jitter_ns=jitter_ns,
        )
    )
    world.after(event.number("for_ns"), partial(world.network.end, number))


def isolate(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        sever(
            world,
            event,
            around(
                name, world.names, inbound=event.flag("inbound"), outbound=event.flag("outbound")
            ),
        )


def split(world: World, event: FaultEvent) -> None:
    name, other = target(world, event), target(world, event, "other")
    if name is not None and other is not None:
        sever(world, event, between((name,), (other,)))


def _shuffled(world: World, event: FaultEvent) -> list[str]:
    names = list(world.names)
    own_chance(event).shuffle(names)
    return names


def halves(world: World, event: FaultEvent) -> None:
    names = _shuffled(world, event)
    sever(world, event, between(names[: len(names) // 2], names[len(names) // 2 :]))


def in_a_ring(world: World, event: FaultEvent) -> None:
    sever(world, event, ring(_shuffled(world, event)))


def over_a_bridge(world: World, event: FaultEvent) -> None:
    sever(world, event, bridge(_shuffled(world, event)))


def flap(world: World, event: FaultEvent) -> None:
    """The links of one node break and heal repeatedly."""
    name = target(world, event)
    if name is None:
        return
    links = around(
        name, world.names, inbound=event.flag("inbound"), outbound=event.flag("outbound")
    )
    every = event.number("every_ns")
    for at in range(0, event.number("for_ns"), 2 * every):
        world.after(at, partial(_cut_for, world, links, every))


def _cut_for(world: World, links: Iterable[Link], for_ns: int) -> None:
    if world.healed:
        return
    number = world.network.sever(links)
    world.after(for_ns, partial(world.network.end, number))


def swizzle(world: World, event: FaultEvent) -> None:
    """Partition one node after the other; they return in another order."""
    chance, for_ns = own_chance(event), event.number("for_ns")
    for at, name in enumerate(_shuffled(world, event)):
        begins = at * for_ns // 4
        world.after(
            begins,
            partial(
                _cut_for, world, around(name, world.names), chance.randrange(for_ns // 4, for_ns)
            ),
        )


def late_answers(world: World, event: FaultEvent) -> None:
    """Partition the leader while answers to its last messages are in flight: they arrive when
    another leader may have been elected."""
    name = target(world, event)
    if name is None:
        return
    sever(world, event, around(name, world.names, inbound=False))
    late = world.network.worsen(Weather(delay_ns=event.number("delay_ns")))
    world.after(LAST_ANSWERS_NS, partial(world.network.end, late))
    world.after(
        LAST_ANSWERS_NS, partial(_cut_for, world, around(name, world.names), event.number("for_ns"))
    )


def _direction(chance: Chance) -> dict[str, Value]:
    inbound, outbound = ((True, True), (True, False), (False, True))[chance.randrange(3)]
    return {"inbound": inbound, "outbound": outbound}


def _draw_isolate(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": some_node(chance, names), **_direction(chance)}


def _draw_flap(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {
        "node": some_node(chance, names),
        **_direction(chance),
        "every_ns": chance.randrange(50 * MS, SECOND),
    }


def _draw_mixture(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {
        "loss": chance.uniform(0, 0.3),
        "duplication": chance.uniform(0, 0.3),
        "slow": chance.uniform(0, 0.05),
        "damage": chance.uniform(0, 0.3),
    }


KINDS: dict[str, Kind] = {
    "loss": Kind(
        (10,),
        "packets are lost, up to 30 %",
        lasting(200, 3000, lambda c, n: {"loss": c.uniform(0.01, 0.3)}),
        weather,
    ),
    "duplication": Kind(
        (10,),
        "packets arrive twice",
        lasting(200, 3000, lambda c, n: {"duplication": c.uniform(0.1, 0.9)}),
        weather,
    ),
    "corruption": Kind(
        (10,),
        "one bit of a payload flips",
        lasting(200, 3000, lambda c, n: {"damage": c.uniform(0.01, 0.5)}),
        weather,
    ),
    "reordering": Kind(
        (10,),
        "packets overtake each other, some by a term",
        lasting(
            200,
            3000,
            lambda c, n: {"slow": c.uniform(0, 0.1), "jitter_ns": c.randrange(MS, 60 * MS)},
        ),
        weather,
    ),
    "delay": Kind(
        (11,),
        "every round trip takes 2 to 100 ms longer",
        lasting(
            500,
            4000,
            lambda c, n: {
                "delay_ns": c.randrange(MS, 50 * MS),
                "jitter_ns": c.randrange(1, 10 * MS),
            },
        ),
        weather,
    ),
    "bad-network": Kind(
        (10,),
        "loss, repetition, stragglers and damage together",
        lasting(200, 2000, _draw_mixture),
        weather,
    ),
    "isolate": Kind(
        (7, 8),
        "a node is cut off, in both directions or one",
        lasting(200, 3000, _draw_isolate),
        isolate,
    ),
    "split": Kind(
        (7,),
        "one link is cut, the way around it stays",
        lasting(200, 3000, lambda c, n: {"node": some_node(c, n), "other": some_node(c, n)}),
        split,
    ),
    "late-answers": Kind(
        (7, 8),
        "the leader is cut off, and the last answers to it take longer than an election",
        lasting(
            1000, 3000, lambda c, n: {"node": LEADER, "delay_ns": c.randrange(250 * MS, 700 * MS)}
        ),
        late_answers,
    ),
    "halves": Kind(
        (7,), "a minority and a majority cannot hear each other", lasting(200, 3000), halves
    ),
    "ring": Kind(
        (7,),
        "each node reaches its neighbours only (of three nodes: one of them)",
        lasting(200, 3000),
        in_a_ring,
    ),
    "bridge": Kind(
        (7,), "two halves, and one node that both can talk to", lasting(200, 3000), over_a_bridge
    ),
    "flapping": Kind(
        (9,),
        "the links of a node break and heal every 0.05 to 1 s",
        lasting(1000, 5000, _draw_flap),
        flap,
    ),
    "swizzle": Kind(
        (42,),
        "one node after the other is cut off, and they come back in another order",
        lasting(500, 2000),
        swizzle,
    ),
}
