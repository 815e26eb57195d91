"""What those who use a simulated cluster reach of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ledgermq.node.broker.calls.member_calls import MembersKind
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.raft.config import Members
from ledgermq.raft.ha_control import Appointment
from ledgermq.sim.checks.histories import Histories
from ledgermq.sim.machine.network import Network

Answer = Result | Refused | None
"""None: no answer arrived in time, or the connection broke."""


class Cluster(Protocol):
    """What a client can reach."""

    now: int
    names: list[str]
    histories: Histories

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...

    def ask(
        self, node: str, make: Callable[[int], Call], answered: Callable[[Answer], None]
    ) -> int:
        """Send a call, which is made for the given token, to a node; returns the token. `answered`
        is called once, unless the call is given up: with an answer, or with None if the connection
        broke."""
        ...

    def give_up(self, token: int) -> None:
        """Stop waiting for this call."""
        ...


class AppointedCluster(Protocol):
    """What this module needs of the world."""

    now: int
    network: Network
    healed: bool

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...

    def note(self, text: str, node: str = "") -> None: ...

    def tell(self, node: str, appointment: Appointment) -> None:
        """The node's process receives it, if one runs."""
        ...

    def agreed(self, appointment: Appointment) -> None:
        """The quorum has agreed on it."""
        ...

    def awake(self) -> Iterable[str]:
        """The nodes whose process runs and is not paused."""
        ...


class OperatedCluster(Protocol):
    """What an operator can reach."""

    now: int
    names: list[str]
    healed: bool

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...

    def give_up(self, token: int) -> None: ...

    def transfer(self, to: str) -> None: ...

    def led(self) -> tuple[str, Members] | None:
        """The newest leader, and the members that it knows to be committed."""
        ...

    def ask_to_change(
        self, leader: str, kind: MembersKind, node: str, answered: Callable[[Answer], None]
    ) -> int:
        """Send a change of members to a leader; returns the token, or 0 while no operator may
        request this."""
        ...

    def ask(
        self, node: str, make: Callable[[int], Call], answered: Callable[[Answer], None]
    ) -> int: ...

    def reads(self, name: str) -> int:
        """The highest feature level that the program installed on a node reads."""
        ...

    def told_level(self, name: str) -> int:
        """The level that a node's process tells now; 0 if none answers."""
        ...

    def level_of(self, name: str) -> int:
        """The feature level of the group, as a running node has applied it."""
        ...

    def replace_program(self, name: str, level_max: int) -> None:
        """Install a program on a node, and restart its process."""
        ...
