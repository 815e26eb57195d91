"""Hard state (format §8): the term and vote of a replica, durable before any message that depends
on them is sent.

A thin layer over `slots.py`.
"""

from __future__ import annotations

import struct

from ledgermq.proto.types import HardState
from ledgermq.storage.files.errors import PromisesLost
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.slots import SlotFile, erase_fill

MAGIC = b"LMHS"
VOTE_BYTES = 64
_PAYLOAD = struct.Struct(f">qi{VOTE_BYTES}s")


class HardStateFile:
    """Term and vote of one replica. After a failed `save` the caller must fence (invariant I9)."""

    def __init__(self, slots: SlotFile) -> None:
        self._slots = slots
        term, length, vote = _PAYLOAD.unpack(slots.payload)
        if term < 0 or not 0 <= length <= VOTE_BYTES:
            raise PromisesLost(
                f"{slots.file.path} holds term {term} and a vote of {length} bytes: restore this"
                " replica from its peers"
            )
        self.value = HardState(term, vote[:length].decode() if length else None)

    @classmethod
    def create(cls, disk: Disk, path: str) -> HardStateFile:
        return cls(SlotFile.create(disk, path, MAGIC, _pack(HardState())))

    @classmethod
    def open(cls, disk: Disk, path: str) -> HardStateFile:
        return cls(SlotFile.open(disk, path, MAGIC, _PAYLOAD.size))

    def save(self, value: HardState) -> None:
        """Save `value` durably. Terms never decrease, and a vote never changes within its term."""
        old = self.value
        forward = value.term > old.term or (
            value.term == old.term and old.vote in (None, value.vote)
        )
        assert forward, f"hard state {old} must not become {value}"
        if value == old:
            return
        self._slots.write(_pack(value))
        self._slots.sync()
        self.value = value

    def close(self) -> None:
        self._slots.close()


def raise_term(disk: Disk, path: str, term: int) -> None:
    """Ensure that a replica's term is at or above that of its log, also for a log that was
    installed while the replica was closed. Takes back no vote: in a higher term there is none.
    Raises Damaged, OSError."""
    file = HardStateFile.open(disk, path)
    try:
        if file.value.term < term:
            file.save(HardState(term, None))
    finally:
        file.close()


def erase_hard_state_fill(disk: Disk, path: str) -> None:
    """As `slots.erase_fill`."""
    erase_fill(disk, path, _PAYLOAD.size)


def _pack(value: HardState) -> bytes:
    vote = (value.vote or "").encode()
    assert len(vote) <= VOTE_BYTES, f"node id {value.vote!r} is longer than {VOTE_BYTES} bytes"
    return _PAYLOAD.pack(value.term, len(vote), vote)
