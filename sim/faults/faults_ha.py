"""Faults of HA groups and of the metadata quorum that appoints their masters (rows 43–49), and
changes of the rule (row 50).

This module chooses which step of a decision is hit, and by which fault. `appointing.py` defines how
requests and notifications travel; the product decides whether a change of the rule is granted. In a
group without appointed masters most of these have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ledgermq.raft.config import Rule
from ledgermq.raft.ha_control import AlterIsr, ElectionRequest
from ledgermq.sim.actors.appointing import QUORUM, STEPS, Moment, Trap
from ledgermq.sim.faults.faults_kind import (
    FOLLOWER,
    LEADER,
    Kind,
    lasting,
    leaders,
    own_chance,
    some_node,
    target,
)
from ledgermq.sim.faults.plan import FaultEvent, PlanError, Value
from ledgermq.sim.machine.network import MS, Link, around
from ledgermq.sim.machine.ports import Chance
from ledgermq.sim.runs.cluster import SECOND
from ledgermq.sim.runs.world import World

PATIENCE_NS = 4 * SECOND
"""How long a fault waits for its step of a decision."""
LOOK_NS = 2 * MS
LOOKS = 1000
"""How often, and how many times, a change of the rule is checked. Each check is a step of the
run."""
MASTER, SLAVE = "master", "slave"
HOW = ("kill", "power", "cut", "pause")
STAGES = ("asked", "all", "all committed", "rule", "rule committed", "appointed")


def _cut(world: World, links: set[Link], for_ns: int) -> None:
    if not world.healed:
        number = world.network.sever(links)
        world.after(for_ns, partial(world.network.end, number))


def _to_quorum(node: str, *, inbound: bool, outbound: bool) -> set[Link]:
    return ({(node, QUORUM)} if outbound else set()) | ({(QUORUM, node)} if inbound else set())


def _strike(world: World, name: str, how: str, for_ns: int) -> None:
    """A fault hits one node, and ends."""
    if how not in HOW:
        raise PlanError(f"a node can be hit by {', '.join(HOW)}, not by {how!r}")
    if how == "cut":
        _cut(world, around(name, world.names), for_ns)
    elif how == "pause":
        world.pause(name, for_ns)
    else:
        world.crash(name, power=how == "power")
        world.after(for_ns, partial(world.start, name))


def _await(world: World, trap: Trap) -> None:
    world.appointing.trap(trap)
    world.after(PATIENCE_NS, partial(world.appointing.forget, trap))


def _unseat(world: World, event: FaultEvent) -> None:
    """Hit the leader, so that another node must take over."""
    for name in leaders(world)[-1:]:
        _strike(world, name, event.text("how"), event.number("for_ns"))


# -- two masters, and the quorum
# --------------------------------------------------------------------------------------------------------


def two_masters(world: World, event: FaultEvent) -> None:
    """The master continues behind a partition, and may or may not learn of its successor."""
    name = target(world, event)
    if name is not None:
        links = around(
            name, world.names, inbound=event.flag("inbound"), outbound=event.flag("outbound")
        )
        _cut(
            world,
            links | _to_quorum(name, inbound=event.flag("deaf"), outbound=event.flag("mute")),
            event.number("for_ns"),
        )


def a_usurper(world: World, event: FaultEvent) -> None:
    """A slave hears no node but reaches the quorum; no other node learns what the quorum
    decides."""
    name = target(world, event)
    if name is not None:
        links = around(name, world.names)
        for other in world.names:
            if other != name:
                links |= _to_quorum(other, inbound=True, outbound=event.flag("mute"))
        _cut(world, links, event.number("for_ns"))


def lose_quorum(world: World, event: FaultEvent) -> None:
    world.appointing.lose()
    world.after(event.number("for_ns"), world.appointing.regain)


def lose_quorum_at_step(world: World, event: FaultEvent) -> None:
    """The leader of the quorum ends at one step of a decision, and a new one takes a while to
    appear."""
    step, wishes = (
        event.text("step"),
        (ElectionRequest, AlterIsr) if event.flag("any") else (ElectionRequest,),
    )
    if step not in STEPS:
        raise PlanError(f"a decision has the steps {', '.join(STEPS)}, not {step!r}")

    def trap(moment: Moment) -> bool:
        if moment.step != step or not (moment.wish is None or isinstance(moment.wish, wishes)):
            return False
        lose_quorum(world, event)
        return True

    if not event.flag("any"):
        _unseat(world, event)
    _await(world, trap)


def cut_from_quorum(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        _cut(
            world,
            _to_quorum(name, inbound=event.flag("inbound"), outbound=event.flag("outbound")),
            event.number("for_ns"),
        )


# -- the in-sync set
# --------------------------------------------------------------------------------------------------------------------


def race_in_sync(world: World, event: FaultEvent) -> None:
    """A slave lags until it is removed from the set, and returns; at one step of that the master or
    the slave is hit."""
    name = target(world, event)
    if name is None:
        return
    step, adds, hit, how = (
        event.text("step"),
        event.flag("adds"),
        event.text("hit"),
        event.text("how"),
    )

    def trap(moment: Moment) -> bool:
        if moment.step != step or (
            moment.step != "heard" and not isinstance(moment.wish, AlterIsr)
        ):
            return False
        told = moment.appointment or moment.wish
        assert told is not None
        if isinstance(told, ElectionRequest) or (name in told.in_sync) is not adds:
            return False
        victims = leaders(world)[-1:] if hit == MASTER else [name]
        for victim in victims:
            world.after(
                own_chance(event).randrange(3 * MS),
                partial(_strike_once, world, victim, how, event.number("for_ns")),
            )
        return True

    _cut(world, around(name, world.names), world.settings.ha.lag_ns + event.number("apart_ns"))
    _await(world, trap)


def _strike_once(world: World, name: str, how: str, for_ns: int) -> None:
    if not world.healed:
        _strike(world, name, how, for_ns)


def slow_slave(world: World, event: FaultEvent) -> None:
    """The syncs of one slave take about as long as a member of the set may lag."""
    name = target(world, event)
    if name is not None:
        most = world.settings.ha.lag_ns * event.number("percent") // 100
        number = world.slow_down((name,), (MS, max(2 * MS, most)))
        world.after(event.number("for_ns"), partial(world.speed_up, number))


def lose_tail(world: World, event: FaultEvent) -> None:
    """A node does not sync received entries for a while; then its power is cut."""
    name = target(world, event)
    if name is not None:
        for_ns = event.number("for_ns")
        number = world.slow_down((name,), (for_ns, 2 * for_ns))
        world.after(for_ns, partial(world.speed_up, number))
        world.after(for_ns, partial(_strike_once, world, name, "power", event.number("down_ns")))


# -- epochs
# -----------------------------------------------------------------------------------------------------------------------------


def restart_when_appointed(world: World, event: FaultEvent) -> None:
    """The node that was just appointed ends, and returns before another one is appointed."""

    def trap(moment: Moment) -> bool:
        known = moment.appointment
        if known is None or moment.step != event.text("step"):
            return False
        if (moment.step == "heard" and moment.node != known.master) or isinstance(
            moment.wish, AlterIsr
        ):
            return False
        how = "power" if event.flag("power") else "kill"
        world.after(
            event.number("then_ns"),
            partial(_strike_once, world, known.master, how, event.number("down_ns")),
        )
        return True

    _unseat(world, event)
    _await(world, trap)


# -- changing the rule
# ------------------------------------------------------------------------------------------------------------------


def change_over(world: World, event: FaultEvent) -> None:
    """Change from the group's rule to the other one; at one stage of it a node is hit."""
    goal = world.change_rule()
    if goal is not None and event.text("stage") in STAGES:
        _strike_at_stage(world, event, goal, LOOKS)


def _strike_at_stage(world: World, event: FaultEvent, goal: Rule, looks: int) -> None:
    if world.healed or not looks:
        return
    if event.text("stage") not in _stages(world, goal):
        world.after(LOOK_NS, partial(_strike_at_stage, world, event, goal, looks - 1))
        return
    chance, hit = own_chance(event), event.text("hit")
    led = leaders(world)[-1:]
    names = {MASTER: led, SLAVE: [name for name in world.names if name not in led][:1]}.get(
        hit, list(world.names)
    )
    for name in names:
        _strike(world, name, event.text("how"), event.number("for_ns") + chance.randrange(100 * MS))


def _stages(world: World, goal: Rule) -> set[str]:
    """The stages that the change has reached, on the newest leader."""
    reached = {"asked"}
    for name in leaders(world)[-1:]:
        life = world.stations[name].life
        assert life is not None
        rule, settled = life.replica.members.rule, life.replica.members_index <= life.commit_index
        if rule in (Rule.ALL, goal):
            reached.add("all")
        if rule is goal or (rule is Rule.ALL and settled):
            reached.add("all committed")
        if rule is goal:
            reached.add("rule")
        if rule is goal and settled:
            reached.add("rule committed")
    known = world.controller.appointment
    if known is not None and goal is Rule.IN_SYNC and known.generation > 0:
        reached.add("appointed")
    return reached


# -- draws
# ------------------------------------------------------------------------------------------------------------------------------


def _one_of(chance: Chance, values: Sequence[str]) -> str:
    return values[chance.randrange(len(values))]


def _with(
    node: str | None, draw: Callable[[Chance], dict[str, Value]]
) -> Callable[[Chance, Sequence[str]], dict[str, Value]]:
    return lambda chance, names: {
        "node": some_node(chance, names) if node is None else node,
        **draw(chance),
    }


def _directions(chance: Chance) -> dict[str, Value]:
    inbound, outbound = ((True, True), (True, False), (False, True))[chance.randrange(3)]
    return {"inbound": inbound, "outbound": outbound}


def _draw_two(chance: Chance) -> dict[str, Value]:
    return {**_directions(chance), "deaf": chance.random() < 0.6, "mute": chance.random() < 0.5}


def _draw_step(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {
        "step": _one_of(chance, STEPS),
        "any": chance.random() < 0.4,
        "how": _one_of(chance, HOW),
    }


def _draw_race(chance: Chance) -> dict[str, Value]:
    return {
        "step": _one_of(chance, STEPS),
        "adds": chance.random() < 0.5,
        "hit": _one_of(chance, (MASTER, SLAVE)),
        "how": _one_of(chance, HOW),
        "apart_ns": chance.randrange(50 * MS, 800 * MS),
    }


def _draw_restart(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {
        "how": _one_of(chance, HOW),
        "step": _one_of(chance, ("agreed", "heard")),
        "power": chance.random() < 0.5,
        "then_ns": chance.randrange(8 * MS),
        "down_ns": chance.randrange(5 * MS, 300 * MS),
    }


def _draw_change(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {
        "stage": _one_of(chance, (*STAGES, "")),
        "hit": _one_of(chance, (MASTER, SLAVE, "all")),
        "how": _one_of(chance, HOW),
    }


KINDS: dict[str, Kind] = {
    "two-masters": Kind(
        (43,),
        "the master lives on behind a partition while another is appointed",
        lasting(700, 3500, _with(LEADER, _draw_two)),
        two_masters,
    ),
    "usurper": Kind(
        (43,),
        "a slave that hears nobody reaches the metadata quorum, whose news nobody else hears",
        lasting(1000, 4000, _with(FOLLOWER, lambda c: {"mute": c.random() < 0.5})),
        a_usurper,
    ),
    "quorum-outage": Kind(
        (44,), "the metadata quorum is lost while data goes on", lasting(200, 4000), lose_quorum
    ),
    "quorum-step": Kind(
        (44,),
        "the leader of the metadata quorum ends at some step of a decision",
        lasting(200, 2500, _draw_step),
        lose_quorum_at_step,
    ),
    "cut-from-quorum": Kind(
        (45,),
        "a node does not reach the metadata quorum, or does not hear it",
        lasting(300, 4000, _with(None, _directions)),
        cut_from_quorum,
    ),
    "in-sync-race": Kind(
        (46,),
        "the in-sync set changes, and its master or the slave in question is hit at some step"
        " of it",
        lasting(20, 1500, _with(FOLLOWER, _draw_race)),
        race_in_sync,
    ),
    "lost-tail": Kind(
        (47,),
        "the power of a master or slave goes with what it had not synced",
        lasting(
            30,
            600,
            lambda c, n: {
                "node": (LEADER, FOLLOWER)[c.randrange(2)],
                "down_ns": c.randrange(10 * MS, SECOND),
            },
        ),
        lose_tail,
    ),
    "restart-when-appointed": Kind(
        (48,),
        "a node ends right after it was appointed, and is back at once",
        lasting(200, 2000, _draw_restart),
        restart_when_appointed,
    ),
    "slow-slave": Kind(
        (49,),
        "the syncs of a slave take about as long as it may lag",
        lasting(500, 4000, lambda c, n: {"node": FOLLOWER, "percent": c.randrange(10, 200)}),
        slow_slave,
    ),
    "change-over": Kind(
        (50,),
        "the group takes the other rule, and somebody is hit at some stage of it",
        lasting(20, 1500, _draw_change),
        change_over,
    ),
}
BY_NAME = frozenset({"change-over"})
"""A kind that is not a fault."""
