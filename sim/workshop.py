"""A simulated process's work on its group's files besides running the group: it serves peers from them, and repairs them from peers.

This module imitates a node's shipping thread: packets in, packets out, one turn at a time. The product's code serves, fetches, proves and
writes (`node.replica.shipping.shipping`, `node.replica.shipping.repair`, `node.replica.shipping.installation`). The world decides whether
there may be damage at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.ports import Rebuild
from ledgermq.node.replica.shipping.repair import Repair, repair_needed
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.sim.node import Medium


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of one turn: packets for peers, when to turn again (−1: when something arrives), and whether the group can be reopened."""

    packets: tuple[tuple[str, PeerPacket], ...]
    wake_at_ns: int
    finished: bool
    install_wanted: tuple[str, int] | None = None
    """(peer, position up to which this replica may have acknowledged): only an installation helps, not a repair."""


class Workshop:
    """The shipping work of one process; ends with the process."""

    def __init__(self, medium: Medium) -> None:
        self.packets: list[tuple[str, PeerPacket]] = []
        self.rebuild: Rebuild | None = None
        """The current repair of the group's files; the group is not open during it."""
        self.refused: str | None = None
        """Why no peer can supply the missing bytes, while that is so."""
        self.wake_ns = -1
        self.turning = False
        self._medium = medium
        self._shipper = Shipper(medium.settings.group, medium.name, medium.disk, medium.root)

    def mend(self, failure: BaseException, others: Sequence[str], now_ns: int, session: int) -> bool:
        """Start to repair what prevented the group from opening or reading; False if no peer could help. Raises OSError, StorageError."""
        medium = self._medium
        disk, root = medium.disk, medium.root
        self.rebuild = repair_needed(disk, root, medium.identity, failure, others=others, session=session, now_ns=now_ns)
        return self.rebuild is not None

    def install(self, source: str, floor_pos: int, others: Sequence[str], now_ns: int, session: int) -> None:
        """Start to install the group's log from peers, because that of `source` begins after the end here. Raises OSError, StorageError."""
        medium = self._medium
        disk, root = medium.disk, medium.root
        self.rebuild = medium.install_type.begin(
            disk, root, medium.identity, others=others, source=source, floor_pos=floor_pos, session=session, now_ns=now_ns
        )

    def turn(self, now_ns: int) -> Worked:
        """Process what has arrived. Raises OSError, StorageError, as opening does."""
        packets, self.packets = self.packets, []
        served = self._shipper.turn(now_ns, packets)
        if self.rebuild is None:
            return Worked(served.packets, served.wake_at_ns, False)
        output = self.rebuild.turn(now_ns, packets)
        self.refused = output.refused
        wanted = output.install_wanted
        install = (wanted[0], self.rebuild.floor_pos) if wanted is not None and isinstance(self.rebuild, Repair) else None
        if output.finished or install is not None:
            self.rebuild.close()
            self.rebuild = None
        wakes = [at for at in (served.wake_at_ns, output.wake_at_ns) if at >= 0]
        return Worked((*served.packets, *output.packets), min(wakes, default=-1), output.finished, install)
