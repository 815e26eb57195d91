"""What rebuilds a replica from its peers looks like to whoever hosts it: one shape for a repair of damage and for an installation.

Sans-IO like everything in this package, over the disk port: no clock, no network. The host hands in what arrived and the time, sends what
comes out, and calls again at `wake_at_ns` or when something arrives. A turn reads and writes a bounded number of bytes, and may block for a
sync: it belongs on a thread that no running group shares. While a rebuild is under way the group is not open: nobody leads, votes or
acknowledges in it, but `shipping.Shipper` may serve from its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ledgermq.node.broker.ports import PeerPacket


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is. `total_bytes` may grow while more is learnt; `source` is the peer asked now, "" for none; `what` names the
    range for people: group, file, entries, bytes."""

    done_bytes: int = 0
    total_bytes: int = 0
    source: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class RebuildOutput:
    """What a turn leaves for its host. `finished`: everything is durable and verified, open the group. `refused`: no peer that answered can
    give what is missing, for people; it keeps asking, and the reason goes when that changes. `install_wanted`: (peer, its begin) when
    every peer has trimmed what is missing: only an installation helps."""

    packets: tuple[tuple[str, PeerPacket], ...]
    wake_at_ns: int
    finished: bool
    refused: str | None
    progress: Progress
    install_wanted: tuple[str, int] | None = None


class Rebuild(Protocol):
    """A rebuild under way. Not thread-safe: one caller owns it."""

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> RebuildOutput:
        """Take in packets of shipping (others are ignored) and go on. Raises OSError and StorageError (no space, a failed sync), as an open
        does."""
        ...

    def close(self) -> None:
        """Let go of all files; what was verified stays for the next attempt."""
        ...
