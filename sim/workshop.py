"""What a simulated process does with its group's files beside running the group: it serves peers from them, and mends them from peers.

Here lives the imitation of a node's shipping thread: packets in, packets out, a turn at a time. What is served, fetched, proven and written
is the product's code (`node.replica.shipping.shipping`, `node.replica.shipping.repair`, `node.replica.shipping.installation`).
Whether damage may be there at all is the world's
affair.
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
    """What one turn left: packets for peers, when to turn again (−1: when something comes), and whether the group can be opened again."""

    packets: tuple[tuple[str, PeerPacket], ...]
    wake_at_ns: int
    finished: bool
    install_wanted: tuple[str, int] | None = None
    """(peer, place up to which this replica may have acknowledged): no repair helps, only an installation."""


class Workshop:
    """One process's. It ends with the process."""

    def __init__(self, medium: Medium) -> None:
        self.packets: list[tuple[str, PeerPacket]] = []
        self.rebuild: Rebuild | None = None
        """What mends the group's files now; the group is not open then."""
        self.refused: str | None = None
        """Why nobody can give what is missing, as long as that is so."""
        self.wake_ns = -1
        self.turning = False
        self._medium = medium
        self._shipper = Shipper(medium.settings.group, medium.name, medium.disk, medium.root)

    def mend(self, failure: BaseException, others: Sequence[str], now_ns: int, session: int) -> bool:
        """Begin to mend what made the group fail to open or to read; False when no peer could help with that. Raises OSError,
        StorageError."""
        medium = self._medium
        disk, root = medium.disk, medium.root
        self.rebuild = repair_needed(disk, root, medium.identity, failure, others=others, session=session, now_ns=now_ns)
        return self.rebuild is not None

    def install(self, source: str, floor_pos: int, others: Sequence[str], now_ns: int, session: int) -> None:
        """Begin to bring the group's log from peers: that of `source` begins after what is here. Raises OSError, StorageError."""
        medium = self._medium
        disk, root = medium.disk, medium.root
        self.rebuild = medium.install_type.begin(
            disk, root, medium.identity, others=others, source=source, floor_pos=floor_pos, session=session, now_ns=now_ns
        )

    def turn(self, now_ns: int) -> Worked:
        """Take what has come in. Raises OSError, StorageError, as an open does."""
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
