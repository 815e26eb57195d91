"""Operations that a group must survive besides faults: changes of members, lost directories,
transfers, trims (rows 33, 34, 37, 40).

This module chooses which of them is requested when. The product decides whether it is granted; the
world decides whether a directory may be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ledgermq.node.broker.calls.member_calls import MembersKind
from ledgermq.sim.actors.operators import Operator, Upgrader
from ledgermq.sim.faults.faults_kind import (
    FOLLOWER,
    LEADER,
    Kind,
    a_node,
    a_while,
    lasting,
    leaders,
    nothing,
    own_chance,
    target,
)
from ledgermq.sim.faults.plan import FaultEvent, PlanError, Value
from ledgermq.sim.machine.network import MS, around
from ledgermq.sim.machine.ports import Chance
from ledgermq.sim.runs.world import World

LOOK_NS = MS // 2
LOOKS = 600
"""How often, and how many times, a requested transfer is checked. Each check is a step of the
run."""
JOINERS_MAX = 2
"""At most this many nodes join in a run."""
ASKED = 4
"""Interval at which a promotion is requested, because a learner has to catch up first."""
VOTERS_LEAST = 2
ENDS = ("observer", "kill", "voter")
"""How an observer ends."""
SILENT_MS = 200
LATE_GROUPS_MAX = 3
FIFO_GROUPS_MAX = 2
CHANGES: tuple[MembersKind, ...] = ("add", "promote", "demote", "remove")
_DRAWN: tuple[MembersKind, ...] = (
    "add",
    "add",
    "promote",
    "promote",
    "promote",
    "demote",
    "remove",
)


def trim(world: World, event: FaultEvent) -> None:
    world.trim(event.number("files"))


def trim_stored(world: World, event: FaultEvent) -> None:
    """Files go although consumer groups have not read them: the object store has them."""
    world.trim(event.number("files"), stored=True)


def late_group(world: World, event: FaultEvent) -> None:
    """A few times in a run, once files have gone."""
    led = world.led()
    life = None if led is None else world.stations[led[0]].life
    if (
        life is not None
        and life.machine.begin_index
        and world.coverage["late-groups"] < LATE_GROUPS_MAX
    ):
        world.late_group(event.number("salt"))


def fifo_group(world: World, event: FaultEvent) -> None:
    """A few times in a run."""
    if len(world.fifo_groups) < FIFO_GROUPS_MAX:
        world.fifo_group(event.number("salt"))


def store_away(world: World, event: FaultEvent) -> None:
    world.store.away_until = max(world.store.away_until, world.now + event.number("for_ns"))


def seal(world: World, event: FaultEvent) -> None:
    """The file being written ends early, and is sealed with all others. The first times the group
    gets its log tree, and the level at which a file can end early."""
    world.end_file()
    world.begin_tree()


def transfer(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None:
        world.transfer(name)


def transfer_and_cut(world: World, event: FaultEvent) -> None:
    """The leader is partitioned right after it told another node to take over: it does not learn
    what the new leader commits."""
    name = target(world, event)
    if name is not None:
        world.transfer(name)
        _cut_when_told(world, event, LOOKS)


def _cut_when_told(world: World, event: FaultEvent, looks: int) -> None:
    for name in leaders(world):
        life = world.stations[name].life
        handover = None if life is None else life.replica.handover
        if handover is not None and handover.notified:
            number = world.network.sever(around(name, world.names))
            world.after(event.number("for_ns"), partial(world.network.end, number))
            return
    if looks and not world.healed:
        world.after(LOOK_NS, partial(_cut_when_told, world, event, looks - 1))


def change(world: World, event: FaultEvent) -> None:
    """Change one of the nodes for which the change is possible now, including the leader."""
    kind = next((known for known in CHANGES if known == event.text("change")), None)
    if kind is None:
        raise PlanError(
            f"members cannot be changed by {event.text('change')!r}; known: {', '.join(CHANGES)}"
        )
    members = world.members()
    if members is None:
        return
    of = {
        "add": sorted(set(world.names) - set(members.nodes)),
        "promote": sorted(members.learners),
        "demote": sorted(members.voters),
        "remove": sorted(members.nodes),
    }[kind]
    if of:
        world.change_members(kind, of[own_chance(event).randrange(len(of))])


def wipe(world: World, event: FaultEvent) -> None:
    name = target(world, event)
    if name is not None and world.wipe(name):
        world.after(event.number("for_ns"), partial(world.start, name))


def join(world: World, event: FaultEvent) -> None:
    """A node starts with an empty directory, becomes a learner, and a voter when it has caught
    up."""
    if len(world.names) >= len(world.settings.names) + JOINERS_MAX:
        return
    name, pace = world.join(), event.number("for_ns")
    for at in range(ASKED):
        world.after((at + 1) * pace, partial(_ask, world, "add", name))
        world.after((at + 2) * pace, partial(_ask, world, "promote", name))


def _ask(world: World, kind: MembersKind, name: str, *, observer: bool = False) -> None:
    """Ask for the change, unless it is done already."""
    members = world.members()
    if (
        members is None
        or world.healed
        or name in members.voters
        or (kind == "add") == (name in members.learners)
    ):
        return
    world.change_members(kind, name, observer=observer)


def observe(world: World, event: FaultEvent) -> None:
    """A node starts with an empty directory and only receives; later it may be lost, or be promoted
    to a voter."""
    if len(world.names) >= len(world.settings.names) + JOINERS_MAX:
        return
    name, pace, ends = world.join(), event.number("for_ns"), event.text("ends")
    if ends not in ENDS:
        raise PlanError(f"an observer ends as {', '.join(ENDS)}, not as {ends!r}")
    world.observing.add(name)
    for at in range(ASKED):
        world.after((at + 1) * pace, partial(_ask_to_observe, world, name))
    if ends == "kill":
        world.after((ASKED + 1) * pace, partial(world.crash, name, power=event.flag("power")))
        world.after((ASKED + 2) * pace, partial(world.start, name))
    for at in range(ASKED, 2 * ASKED):
        if ends == "voter":
            world.after((at + 1) * pace, partial(_ask, world, "promote", name, observer=True))


def _ask_to_observe(world: World, name: str) -> None:
    members = world.members()
    if members is not None and not world.healed and name not in members.nodes:
        world.change_members("add", name, observer=True)


def leave_behind(world: World, event: FaultEvent) -> None:
    """While a follower is down, the others trim as if it had been silent for long."""
    name = target(world, event)
    if name is None:
        return
    world.crash(name, power=event.flag("power"))
    down = event.number("for_ns")
    for part in range(1, 8):
        world.after(down * part // 8, partial(_trim_for_all, world, event.number("files")))
    world.after(down, partial(world.start, name))


def _trim_for_all(world: World, files: int) -> None:
    if not world.healed:
        world.trim(files, SILENT_MS)


def move(world: World, event: FaultEvent) -> None:
    """Move to a node that is not a member, or to a new one. A group moves one replica at a time."""
    source, led = target(world, event), world.led()
    if (
        source is None
        or led is None
        or source not in led[1].voters
        or any(each.target for each in _asking(world))
    ):
        return
    wanted = {node for each in _asking(world) for node in (each.source, each.target)}
    known = [name for name in world.names if name not in {*led[1].nodes, *wanted, *world.observing}]
    may_join = len(world.names) < len(world.settings.names) + JOINERS_MAX
    if source not in wanted and (known or may_join):
        chance = own_chance(event)
        world.operate(
            source, world.join() if may_join else known[chance.randrange(len(known))], chance
        )


def remove(world: World, event: FaultEvent) -> None:
    """Remove a replica that the group does not need: two voters stay."""
    source, led = target(world, event), world.led()
    wanted = {node for each in _asking(world) for node in (each.source, each.target)}
    if source is not None and led is not None and source in led[1].voters and source not in wanted:
        removals = sum(not each.target for each in _asking(world))
        if len(led[1].voters) - removals > VOTERS_LEAST:
            world.operate(source, "", own_chance(event))


def _asking(world: World) -> list[Operator]:
    return [
        operator
        for operator in world.operators
        if isinstance(operator, Operator) and not operator.ended
    ]


def upgrade(world: World, event: FaultEvent) -> None:
    """Once in a run."""
    if not any(isinstance(operator, Upgrader) for operator in world.operators):
        world.upgrade(own_chance(event))


def _of_some(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"node": (LEADER, FOLLOWER)[chance.randrange(2)]}


def _draw_change(chance: Chance, names: Sequence[str]) -> dict[str, Value]:
    return {"change": _DRAWN[chance.randrange(len(_DRAWN))]}


KINDS: dict[str, Kind] = {
    "trim": Kind(
        (40,),
        "files of the log go that every voter has",
        lambda c, n: {"files": c.randrange(1, 4)},
        trim,
    ),
    "trim-stored": Kind(
        (40,),
        "files of the log go that consumers have not read; the object store has them",
        lambda c, n: {"files": c.randrange(1, 4)},
        trim_stored,
    ),
    "late-group": Kind(
        (40,), "a new consumer group reads every topic from the beginning", nothing, late_group
    ),
    "fifo-group": Kind(
        (38,),
        "two consumers of a new FIFO group take batches, and acknowledge, give back or keep each"
        " message",
        nothing,
        fifo_group,
    ),
    "store-away": Kind((40,), "the object store does not answer", lasting(200, 6000), store_away),
    "transfer": Kind(
        (37,), "leadership is handed to some node, whatever state that one is in", a_node, transfer
    ),
    "seal": Kind(
        (40,),
        "a log file ends early; from the first time on, the group has a log tree of the files",
        nothing,
        seal,
    ),
    "transfer-and-cut": Kind(
        (8, 37),
        "the leader is cut off right after it told another to take over",
        a_while(300, 2000),
        transfer_and_cut,
    ),
    "membership": Kind(
        (33,),
        "some node is added, promoted, demoted or removed, be it the leader",
        _draw_change,
        change,
    ),
    "move": Kind(
        (33,),
        "an operator moves a replica, the leader's or another, and asks until it is done",
        _of_some,
        move,
    ),
    "remove": Kind(
        (33,),
        "an operator removes a voter, and asks until it is done or refused for good",
        _of_some,
        remove,
    ),
    "join": Kind(
        (33,),
        "a node begins with an empty directory, becomes a learner, then a voter",
        lasting(200, 1000),
        join,
    ),
    "observe": Kind(
        (33,),
        "a node begins with an empty directory and observes; it is killed, made a voter, or"
        " neither",
        lasting(200, 800, lambda c, n: {"ends": ENDS[c.randrange(3)], "power": c.random() < 0.5}),
        observe,
    ),
    "upgrade": Kind(
        (36,),
        "one node after the other gets a program that reads the next feature level; an operator"
        " asks to finish it",
        nothing,
        upgrade,
    ),
    "wipe-and-return": Kind(
        (34,), "a node loses its directory and comes back with a new one", a_while(20, 1500), wipe
    ),
    "left-behind": Kind(
        (40,),
        "the others trim what a follower lacks while it is down; it is brought the log",
        lasting(
            2000,
            6000,
            lambda c, n: {"node": FOLLOWER, "files": c.randrange(1, 4), "power": c.random() < 0.5},
        ),
        leave_behind,
    ),
}
