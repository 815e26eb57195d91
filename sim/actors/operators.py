"""Simulated operators that want a replica moved or removed, or an upgrade finished, and repeat the
request, as `ledgermq move-replica`, `ledgermq member remove` and `ledgermq upgrade finish` do.

This module chooses an operator's next request; the product decides whether it is granted. A removal
also ends when the leader refuses it permanently; a move ends only when it is complete, because the
product treats every refusal during a move as temporary.
"""

from __future__ import annotations

import random

from ledgermq.node.broker.calls.member_calls import MembersKind, RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Kept
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.records.control import LevelRecord
from ledgermq.sim.actors.ports import Answer, OperatedCluster
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import NEXT_LEVEL

ASK_NS = (300 * MS, 420 * MS)
"""The pause between two requests: that of the command line, plus the time of a request."""
PATIENCE_NS = 3_000 * MS
"""How long an operator waits for an answer."""
REPLACED_SHARE = 0.3
"""The share of rounds in which an operator replaces the program of a node."""


class Operator:
    """`source` shall be removed; with a `target`, after that node votes and leads what `source`
    led."""

    def __init__(
        self, cluster: OperatedCluster, source: str, target: str, chance: random.Random
    ) -> None:
        self._cluster, self._chance = cluster, chance
        self.source, self.target = source, target
        self.ended = False
        self._token = self._since = 0
        cluster.after(chance.randrange(*ASK_NS), self._round)

    def __str__(self) -> str:
        return (
            f"the move from {self.source} to {self.target}"
            if self.target
            else f"the removal of {self.source}"
        )

    def _round(self) -> None:
        if self._token and self._cluster.now - self._since > PATIENCE_NS:
            self._cluster.give_up(self._token)
            self._token = 0
        if not self._token:
            self._step()
        if not self.ended:
            self._cluster.after(self._chance.randrange(*ASK_NS), self._round)

    def _step(self) -> None:
        led = self._cluster.led()
        if led is None:
            return
        leader, members = led
        if self.target and self.target not in members.voters:
            self._ask(leader, "promote" if self.target in members.learners else "add", self.target)
        elif self.source not in members.nodes:
            self.ended = True
        elif self.target and self.source == leader:
            self._cluster.transfer(self.target)
        else:
            self._ask(leader, "remove", self.source)

    def _ask(self, leader: str, kind: MembersKind, node: str) -> None:
        self._since = self._cluster.now
        self._token = self._cluster.ask_to_change(leader, kind, node, self._answered)

    def _answered(self, outcome: Answer) -> None:
        self._token = 0
        if not self.target and isinstance(outcome, Refused) and outcome.reason == "members-refused":
            self.ended = True


class Upgrader:
    """Replaces the program of one node after the other by one that reads the next level, and asks
    all the while to finish the upgrade."""

    def __init__(self, cluster: OperatedCluster, chance: random.Random) -> None:
        self._cluster, self._chance = cluster, chance
        self.ended = False
        self._token = self._since = 0
        self._level = 0
        """The level that the group was last asked to have; they are raised one by one."""
        self._begun = False
        """Whether the group has the level of the present release, from which on programs of the
        next one are installed."""
        cluster.after(chance.randrange(*ASK_NS), self._round)

    def __str__(self) -> str:
        return "the upgrade"

    def _round(self) -> None:
        cluster = self._cluster
        if self._token and cluster.now - self._since > PATIENCE_NS:
            cluster.give_up(self._token)
            self._token = 0
        former = [name for name in cluster.names if cluster.reads(name) < NEXT_LEVEL]
        if former and self._begun and (cluster.healed or self._chance.random() < REPLACED_SHARE):
            cluster.replace_program(former[self._chance.randrange(len(former))], NEXT_LEVEL)
        if not self._token:
            self._finish()
        if former or not self.ended:
            cluster.after(self._chance.randrange(*ASK_NS), self._round)

    def _finish(self) -> None:
        led = self._cluster.led()
        if led is None:
            return
        level = self._cluster.level_of(led[0])
        self._begun = self._begun or level == LEVEL_MAX
        self._level = min(level + 1, NEXT_LEVEL)
        asked, record = self._asked(), LevelRecord(self._level)
        self._since = self._cluster.now
        self._token = self._cluster.ask(
            led[0], lambda token: RaiseLevel(token, record, asked), self._answered
        )

    def _asked(self) -> frozenset[str]:
        """The nodes whose present processes tell that they read the level. Whether they are enough
        is up to the leader."""
        return frozenset(
            name for name in self._cluster.names if self._cluster.told_level(name) >= self._level
        )

    def _answered(self, outcome: Answer) -> None:
        self._token = 0
        self.ended = self.ended or (isinstance(outcome, Kept) and self._level >= NEXT_LEVEL)
