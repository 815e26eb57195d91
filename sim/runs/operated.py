"""What faults and operators do to a simulated cluster, besides ending and delaying its nodes
(`cluster.py`): requests to the leader, new nodes, lost directories, other programs.

`__init__.py` and its siblings decide when; the product decides whether a request is granted.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ledgermq.node.broker.calls.member_calls import (
    BeginTimeEpoch,
    ChangeMembers,
    MembersKind,
    RaiseLevel,
)
from ledgermq.node.broker.calls.operator_calls import EndFile
from ledgermq.node.replica.retention.retention_rules import HOUR_MS
from ledgermq.node.runtime.config_sections import Tiered
from ledgermq.proto.levels import EARLY_END_LEVEL, STORED_TRIM_LEVEL, TIME_EPOCH_LEVEL
from ledgermq.proto.records.control import LevelRecord
from ledgermq.proto.types import GroupConfig, Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.transfer import Cause
from ledgermq.sim.actors.clients import QUEUES, Client
from ledgermq.sim.actors.fifo_consumers import FifoConsumer, Groups
from ledgermq.sim.actors.operators import Operator, Upgrader
from ledgermq.sim.actors.ports import Answer
from ledgermq.sim.machine.acquaintance import Acquaintance
from ledgermq.sim.machine.network import MS
from ledgermq.sim.nodes.node import RECORD_BODY_AT, Life, Medium
from ledgermq.sim.runs.cluster import CALL_NS, RECONCILE_NS, SECOND, Cluster, Station
from ledgermq.storage.files.errors import LogDamaged

FIFO_CONSUMERS = 2
STORED = Tiered(url="s3://simulated")


class Operated(Cluster):
    """A cluster on which faults and operators act."""

    def _leader_lives(self) -> list[tuple[Station, Life]]:
        return [
            (station, station.life)
            for station in self.stations.values()
            if station.life is not None
            and self.now >= station.paused_until
            and station.life.role is Role.LEADER
        ]

    def trim(self, files: int, patience_ms: int = 0, *, stored: bool = False) -> None:
        """An operator limits the log to fewer bytes, so that the oldest `files` files are too many.
        Members that were silent for `patience_ms` are not waited for (0: all are). `stored`: what
        goes stays readable in the object store; a group below the level of such a trim is first
        raised to it."""
        for station, life in self._leader_lives():
            if not life.group.leader.serving or station.running is None:
                continue
            if stored and life.machine.level < STORED_TRIM_LEVEL:
                self._raise_level(station, life)
                continue
            self._limit(max(1, self._sealed_bytes(life) - files * self.settings.file_bytes))
            for each in self.stations.values():
                sections = each.medium.sections
                sections.retention = sections.retention.model_copy(
                    update={"follower_hours": patience_ms / HOUR_MS}
                )
                sections.tiered = STORED if stored else Tiered()
            station.running.upkeep.hurry()
            self.note(f"{files} log files are too many", station.name)

    def _limit(self, max_bytes: int) -> None:
        for station in self.stations.values():
            sections = station.medium.sections
            sections.retention = sections.retention.model_copy(update={"max_bytes": max_bytes})

    def _sealed_bytes(self, life: Life) -> int:
        while not life.files.advance():
            continue
        return sum(file.size for file in life.files.files() if file.sealed)

    def owed(self, group: str) -> list[str]:
        """The topics of which a consumer group must be given every message. Before a group has read
        a topic, nothing keeps its messages but the object store."""
        return [topic for topic in QUEUES if self.kept is None or (group, topic) in self.kept]

    def begin_tree(self) -> None:
        """Raise a group without a log tree to the level that has one."""
        for station, life in self._leader_lives():
            if life.group.leader.serving and life.machine.retained.tree is None:
                self._raise_level(station, life)

    def _raise_level(self, station: Station, life: Life) -> None:
        level = life.machine.level + 1
        self._token += 1
        asked = frozenset(name for name in self.names if self.told_level(name) >= level)
        self.put(station, RaiseLevel(self._token, LevelRecord(level), asked))

    def begin_time_epoch(self) -> None:
        """Ask the leader to begin a time epoch. A group below the level of such a record is first
        raised."""
        for station, life in self._leader_lives():
            if not life.group.leader.serving:
                continue
            if life.machine.level < TIME_EPOCH_LEVEL:
                self._raise_level(station, life)
                continue
            self._token += 1
            self.put(station, BeginTimeEpoch(self._token, "operator"))

    def late_group(self, seed: int) -> None:
        """A consumer group that is new reads every topic from the beginning."""
        number = len(self.clients)
        client = Client(
            cluster=self,
            number=number,
            chance=random.Random(f"late group {seed}"),
            habits=self._habits,
            body_at=RECORD_BODY_AT,
            group=f"late-{number}",
        )
        client.wind_down(receives=True)
        self.clients.append(client)
        self.note(f"consumer group {client.group} begins")
        self.coverage["late-groups"] += 1
        client.start()

    def fifo_group(self, seed: int) -> None:
        """A consumer group with the order of message groups begins, with two consumers."""
        groups = Groups(f"fifo-{len(self.fifo_groups) + 1}")
        self.fifo_groups.append(groups)
        self.controller.groups[groups.name] = GroupConfig("", groups.name, fifo=True)
        self.note(f"consumer group {groups.name} begins")
        self._begin_fifo(groups, seed)

    def _begin_fifo(self, groups: Groups, seed: int) -> None:
        """Until the group's record is committed, its messages would have no order."""
        if not any(
            station.life is not None and groups.name in station.life.machine.groups
            for station in self.stations.values()
        ):
            self.after(RECONCILE_NS, self._begin_fifo, groups, seed)
            return
        for number in range(FIFO_CONSUMERS):
            consumer = FifoConsumer(
                self, groups, number, random.Random(f"fifo {seed} {number}"), RECORD_BODY_AT
            )
            self.fifo_consumers.append(consumer)
            if self.healed:
                consumer.wind_down(receives=False)
            consumer.start()

    def end_file(self) -> None:
        """The leader ends the log file with the last committed entry early, for an operator. A
        group below the level of that is first raised."""
        for station, life in self._leader_lives():
            if not life.group.leader.serving:
                continue
            if life.machine.level < EARLY_END_LEVEL:
                self._raise_level(station, life)
                continue
            self._token += 1
            self.put(station, EndFile(self._token, life.machine.applied_index, "operator"))
            self.note("the log file ends early", station.name)
            self.coverage["early-ends"] += 1

    def transfer(self, to: str) -> None:
        """Ask the leader to transfer leadership to another node."""
        for station, life in self._leader_lives():
            if station.name == to:
                continue
            refusal = life.replica.transfer(
                station.clock.at(self.now),
                to,
                Cause.OPERATOR,
                self.chance.randrange(50 * MS, SECOND),
            )
            self.note(f"transfer to {to} {'refused' if refusal else 'begun'}", station.name)
            self.coverage["transfers-refused" if refusal else "transfers"] += 1
            self.turn_soon(station)

    def join(self) -> str:
        """A new node starts with an empty directory; returns its name."""
        name = f"j{len(self.names) - len(self.settings.names) + 1}"
        station = self.stations[name] = Station(
            name, Medium(name, self.settings, self.bug, founder=False)
        )
        limits = self.stations[self.names[0]].medium.sections
        station.medium.sections.retention = limits.retention
        station.medium.sections.tiered = limits.tiered
        self.names.append(name)
        self.media[name] = station.medium
        self.start(name)
        return name

    def change_members(self, kind: MembersKind, node: str, *, observer: bool = False) -> None:
        """Ask the leader to change the members by one. No operator removes a voter while another
        one's directory is lost."""
        if kind in ("demote", "remove") and not self._all_count():
            self.note(f"no {kind} of {node} while a directory is lost")
            return
        incarnation = (
            self.stations[node].medium.identity.incarnation if kind in ("add", "promote") else None
        )
        for station, _ in self._leader_lives():
            self._token += 1
            reads = self.reads(node) if kind == "add" else None
            self.put(
                station,
                ChangeMembers(
                    self._token, kind, node, incarnation, observer=observer, level_max=reads
                ),
            )
            self.note(f"asked to {kind} {node}", station.name)

    def led(self) -> tuple[str, Members] | None:
        """The newest running leader, and the members that it knows to be committed."""
        found = max(self._leader_lives(), key=lambda found: found[1].term, default=None)
        if found is None:
            return None
        station, life = found
        return station.name, life.replica.core.configurations.at(life.commit_index)

    def ask_to_change(
        self, leader: str, kind: MembersKind, node: str, answered: Callable[[Answer], None]
    ) -> int:
        """As `change_members`, for an operator that waits for the answer; 0 while the change is not
        allowed."""
        if kind == "remove" and not self._all_count():
            return 0
        incarnation = None if kind == "remove" else self.stations[node].medium.identity.incarnation
        reads = self.reads(node) if kind == "add" else None
        return self.ask(
            leader,
            lambda token: ChangeMembers(token, kind, node, incarnation, level_max=reads),
            answered,
        )

    def operate(self, source: str, target: str, chance: random.Random) -> None:
        """An operator starts to ask for a removal, or for a move to `target`."""
        operator = Operator(self, source, target, chance)
        self.operators.append(operator)
        self.note(f"an operator wants {operator}")
        self.coverage["moves" if target else "removals"] += 1

    def upgrade(self, chance: random.Random) -> None:
        """An operator starts to upgrade the nodes and to ask for the end of the upgrade."""
        self.operators.append(Upgrader(self, chance))
        self.note("an operator begins an upgrade")
        self.coverage["upgrades"] += 1

    def reads(self, name: str) -> int:
        """The highest feature level that the program installed on a node reads."""
        return self.stations[name].medium.level_max

    def told_level(self, name: str) -> int:
        """The level that a node's process tells now; 0 if none answers."""
        station = self.stations[name]
        return (
            0
            if station.life is None or self.now < station.paused_until
            else station.life.machine.level_max
        )

    def level_of(self, name: str) -> int:
        """The feature level of the group, as a running node has applied it."""
        life = self.stations[name].life
        assert life is not None, f"{name} does not run"
        return life.machine.level

    def replace_program(self, name: str, level_max: int) -> None:
        """Install a program on a node, and restart its process."""
        self.note(f"gets a program that reads level {level_max}", name)
        station = self.stations[name]
        station.medium.level_max = level_max
        if station.running is not None:
            self._end(station, power=False)
            self.after(self.chance.randrange(*CALL_NS), self.start, name)

    def change_rule(self) -> Rule | None:
        """Ask the leader to change to the other rule; returns that rule, None without a leader. No
        operator does that while a directory is lost: between both rules the group needs every
        voter."""
        members = self.members()
        if members is None or self.healed or not self._all_count():
            return None
        goal = members.towards or (Rule.MAJORITY if members.rule is Rule.IN_SYNC else Rule.IN_SYNC)
        for station, _ in self._leader_lives():
            self._token += 1
            self.put(station, ChangeMembers(self._token, "rule", "", rule=goal.value))
            self.note(f"asked for the rule {goal}", station.name)
        return goal

    def wipe(self, name: str) -> bool:
        """A node loses its directory, and gets a new one when it is started. Only if the group must
        survive it: all members are up and agree on their identities, and no other directory is
        lost. Returns whether it was done."""
        station = self.stations[name]
        if self.healed or not self._can_spare(name):
            self.note("the directory cannot be spared", name)
            return False
        self.note("the directory is lost", name)
        self.coverage["wiped"] += 1
        if station.running is not None:
            self._end(station, power=False)
        station.medium.wipe()
        station.acquaintance = Acquaintance()
        self.checkers.lost(name)
        return True

    def _can_spare(self, name: str) -> bool:
        members = self.members()
        if members is None or not self._all_count() or not self._left_without(name, members):
            return False
        for node in members.nodes:
            station = self.stations[node]
            life = station.life
            if (
                life is None
                or station.medium.harmed
                or life.replica.members != members
                or life.replica.members_index > life.commit_index
            ):
                return False
        seats = [
            station.running.seat
            for station in self.stations.values()
            if station.running is not None
        ]
        asked = (call for seat in seats if seat is not None for call in seat.held)
        return name in members.nodes and not any(isinstance(call, ChangeMembers) for call in asked)

    def _left_without(self, name: str, members: Members) -> bool:
        """Whether the group can continue without this node's data. Between two rules it needs every
        voter."""
        if members.rule is not Rule.IN_SYNC:
            return name not in members.voters or (
                members.rule is Rule.MAJORITY and len(members.voters) > 2
            )
        known = self.controller.appointment
        in_sync = set(
            members.voters if known is None or known.generation != members.since else known.in_sync
        )
        return in_sync != {name}

    def _all_count(self) -> bool:
        """Whether each member has the directory that the group knows, and none is still
        returning."""
        members = self.members()
        if members is None or members.returning:
            return False
        media = [(node, self.stations[node].medium) for node in members.nodes]
        return all(
            members.incarnations.get(node) == medium.identity.incarnation
            if node in members.incarnations
            else medium.directories == 1
            for node, medium in media
        )

    def _verify_all(self, station: Station) -> None:
        """An operator requests a full verification of a replica, because rot in unread bytes is not
        found otherwise."""
        if station.running is not None:
            self._end(station, power=False)
        self.start(station.name)
        self.unreadable(station, LogDamaged("every byte is to be verified"))

    def _in_force(self) -> list[Life | None]:
        """The processes of the members, None for one that does not run; empty without a leader."""
        members = self.members()
        return [] if members is None else [self.stations[node].life for node in members.nodes]

    def _lives(self) -> list[tuple[str, Life]]:
        return [
            (station.name, station.life)
            for station in self.stations.values()
            if station.life is not None
        ]
