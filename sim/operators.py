"""Simulated operators that want a replica moved or removed, and repeat the request, as `ledgermq move-replica` and `ledgermq member remove`
do.

This module chooses an operator's next request; the product decides whether it is granted. A removal also ends when the leader refuses it
permanently; a move ends only when it is complete, because the product treats every refusal during a move as temporary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from ledgermq.node.broker.calls.member_calls import MembersKind
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.raft.config import Members
from ledgermq.sim.clients import Answer
from ledgermq.sim.network import MS

ASK_NS = (300 * MS, 420 * MS)
"""The pause between two requests: that of the command line, plus the time of a request."""
PATIENCE_NS = 3_000 * MS
"""How long an operator waits for an answer."""


class Cluster(Protocol):
    """What an operator can reach."""

    now: int

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...

    def give_up(self, token: int) -> None: ...

    def transfer(self, to: str) -> None: ...

    def led(self) -> tuple[str, Members] | None:
        """The newest leader, and the members that it knows to be committed."""
        ...

    def ask_to_change(self, leader: str, kind: MembersKind, node: str, answered: Callable[[Answer], None]) -> int:
        """Send a change of members to a leader; returns the token, or 0 while no operator may request this."""
        ...


class Operator:
    """`source` shall be removed; with a `target`, after that node votes and leads what `source` led."""

    def __init__(self, cluster: Cluster, source: str, target: str, chance: random.Random) -> None:
        self._cluster, self._chance = cluster, chance
        self.source, self.target = source, target
        self.ended = False
        self._token = self._since = 0
        cluster.after(chance.randrange(*ASK_NS), self._round)

    def __str__(self) -> str:
        return f"the move from {self.source} to {self.target}" if self.target else f"the removal of {self.source}"

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
