"""The interface between a rebuild of a replica from its peers and its host; the same for a repair
of damage and for an installation.

Sans-IO over the disk port, like everything in this package: no clock, no network. The host passes
in received packets and the time, sends the output, and calls again at `wake_at_ns` or when a packet
arrives. A turn reads and writes a bounded number of bytes and may block for a sync, so it needs a
thread that no running group shares. During a rebuild the group is not open: this replica does not
lead, vote or acknowledge, but `shipping.Shipper` may serve from its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ledgermq.node.broker.ports import PeerPacket


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a rebuild. `total_bytes` may grow; `source` is the peer in use, "" for none;
    `what` names the range for operators: group, file, entries, bytes. `peer_bytes`, `store_bytes`:
    what an installation has received from peers and from the object store, and `store_problem` why
    it does not use the store any more."""

    done_bytes: int = 0
    total_bytes: int = 0
    source: str = ""
    what: str = ""
    peer_bytes: int = 0
    store_bytes: int = 0
    store_problem: str = ""


@dataclass(frozen=True, slots=True)
class RebuildOutput:
    """The output of a turn. `finished`: everything is durable and verified, and the group can be
    opened. `refused`: for operators, why no peer that answered can help; the rebuild keeps asking,
    and the reason is cleared when that changes. `install_wanted`: (peer, its begin) if every peer
    has trimmed what is missing, so that only an installation helps."""

    packets: tuple[tuple[str, PeerPacket], ...]
    wake_at_ns: int
    finished: bool
    refused: str | None
    progress: Progress
    install_wanted: tuple[str, int] | None = None


class Rebuild(Protocol):
    """A rebuild in progress. Not thread-safe: used by one thread at a time."""

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> RebuildOutput:
        """Take shipping packets (others are ignored) and continue. Raises OSError and StorageError
        (no space, a failed sync), as opening does."""
        ...

    def close(self) -> None:
        """Close all files; what was verified stays for the next attempt."""
        ...
