"""The synced mark (format §7): the last entry of a log that is known to be on stable storage.

A thin layer over `slots.py`: it defines the fields and the log id; `durability.py` decides when the
mark moves.

Why there is one. After a crash the end of a log may be damaged in two ways that look the same. A
write that was cut short was never acknowledged; the log must end before it, or the replica could
not start. Damage of bytes that were synced may be of an entry that this replica has acknowledged
and that a majority needs; if recovery cut it, the replica would vote with a log shorter than it
promised, and two such replicas lose a committed entry. The mark tells the two apart (invariant
I10): behind it damage is torn and cut, at or below it damage is corrupt, nothing is changed, and
peers give the bytes (`log_decision.py`).

Invariant: the mark on stable storage is never above what is durable. So it is raised only after a
sync of the log has ended, to what that sync covered, and lowered, in both slots and with a sync of
its own, before a cut erases the first byte. If it were too high, an ordinary torn write, or the cut
of a conflicting tail, would look like corruption, and the replica would not open until a peer had
committed something in its place (planted bug `mark-not-lowered`).

It may be too low, and is, by one sync: the mark that sync n allows is written with the log's next
bytes and synced by sync n + 1, and at idle, at the end of a file and at stop. So a commit costs no
flush of its own for the mark. The price is that damage of synced bytes between the mark and the
durable end is taken for torn. Those are the bytes of the last sync before the crash; recovery keeps
them if they are valid, whatever the mark says, so only a disk that also damages what it just
confirmed loses them. A trim raises the mark first (`Durability.raise_mark_to`): a start that finds
the new begin of the log must not find a mark before it.
"""

from __future__ import annotations

import struct

from ledgermq.proto.types import SyncedMark
from ledgermq.storage.files.errors import Unusable
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.slots import SlotFile, erase_fill, peek

MAGIC = b"LMSM"
_PAYLOAD = struct.Struct(">36siqqqI")


class SyncedMarkFile:
    """The mark of one log. `value` is the value last written; at every moment it is a lower bound
    of what is durable."""

    def __init__(self, slots: SlotFile, log_id: str) -> None:
        self.slots = slots
        """For a group commit that syncs the mark together with the log: the file, and whether the
        last value written is durable."""
        self._log_id = log_id
        try:
            self.value = _unpack(slots.file.path, log_id, slots.payload)
        except Unusable:
            slots.close()
            raise

    @classmethod
    def create(cls, disk: Disk, path: str, log_id: str, value: SyncedMark) -> SyncedMarkFile:
        return cls(SlotFile.create(disk, path, MAGIC, _pack(log_id, value)), log_id)

    @classmethod
    def open(cls, disk: Disk, path: str, log_id: str) -> SyncedMarkFile:
        return cls(SlotFile.open(disk, path, MAGIC, _PAYLOAD.size), log_id)

    def write(self, value: SyncedMark) -> None:
        """Write without a sync: a later group commit syncs it."""
        self.slots.write(_pack(self._log_id, value))
        self.value = value

    def sync(self) -> None:
        """Make the value last written durable. Raises OSError."""
        self.slots.sync()

    def write_and_sync(self, value: SyncedMark) -> None:
        self.write(value)
        self.sync()

    def lower(self, value: SyncedMark) -> None:
        """Make a lower value durable in both slots, so that damage of one can never bring back the
        higher one."""
        self.slots.write_everywhere(_pack(self._log_id, value))
        self.value = value

    def close(self) -> None:
        self.slots.close()


def read_mark(disk: Disk, path: str, log_id: str) -> SyncedMark:
    """The mark of a log that another process may own. Raises OSError, Damaged, Unusable."""
    return _unpack(path, log_id, peek(disk, path, MAGIC, _PAYLOAD.size))


def erase_mark_fill(disk: Disk, path: str) -> None:
    """As `slots.erase_fill`."""
    erase_fill(disk, path, _PAYLOAD.size)


def _unpack(path: str, log_id: str, payload: bytes) -> SyncedMark:
    identifier, _, term, index, end_pos, chain = _PAYLOAD.unpack(payload)
    stored_id = identifier.decode("ascii", "replace")
    if stored_id != log_id:
        raise Unusable(
            f"{path} belongs to log {stored_id}, not to {log_id}: point the node at its own data"
            " directory"
        )
    return SyncedMark(term, index, end_pos, chain)


def _pack(log_id: str, value: SyncedMark) -> bytes:
    return _PAYLOAD.pack(
        log_id.encode("ascii"), 0, value.term, value.index, value.end_pos, value.chain_crc
    )
