"""A small value in two checksummed slots: replaced in place, and never lost in between.

Frame of a slot (all big-endian): 4 bytes magic, i32 version, u64 sequence, the payload, u32 CRC-32C
of everything before it. Slot 0 lies at offset 0, slot 1 at 4096. The valid slot with the higher
sequence counts. `synced_mark.py` and `hard_state.py` define the payload.

Invariant: at every moment one slot that is on stable storage is not written. A value that is
written but not synced yet may therefore only be overwritten in its own slot.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from ledgermq.storage.files.errors import Damaged, PromisesLost, UnknownFormat
from ledgermq.storage.files.ports import PAGE_BYTES, Disk, DiskFile

SLOT_FILE_BYTES = 2 * PAGE_BYTES
VERSION = 1
_REMEDY = "the promises of this replica are lost; restore it from its peers"
_HEAD = struct.Struct(">4siQ")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class _Slot:
    valid: bool
    version: int
    sequence: int
    payload: bytes


class SlotFile:
    """One two-slot file. `payload` is the value last written (or found), `sequence` its number."""

    def __init__(
        self, file: DiskFile, magic: bytes, slot: int, sequence: int, payload: bytes
    ) -> None:
        self.file = file
        self.sequence = sequence
        self.payload = payload
        self._magic = magic
        self._slot = slot
        self.unsynced = False
        """Whether the last written value may not be durable."""

    @classmethod
    def create(cls, disk: Disk, path: str, magic: bytes, payload: bytes) -> SlotFile:
        """Create the file with `payload` in slot 0; durable under its final name, except for the
        directory's own name in its parent."""
        unfinished = path + ".tmp"
        if disk.exists(unfinished):
            disk.unlink(unfinished)
        file = disk.create(unfinished, SLOT_FILE_BYTES, allocate=True)
        file.pwrite(0, _frame(magic, 1, payload))
        file.sync()
        file.close()
        disk.rename(unfinished, path)
        disk.sync_dir(path.rpartition("/")[0])
        return cls.open(disk, path, magic, len(payload))

    @classmethod
    def open(cls, disk: Disk, path: str, magic: bytes, payload_bytes: int) -> SlotFile:
        """Find the current value. Raises PromisesLost if no slot is valid, UnknownFormat for
        another version."""
        file = disk.open(path)
        if file.size != SLOT_FILE_BYTES:
            size = file.size
            file.close()
            raise PromisesLost(f"{path} has {size} bytes instead of {SLOT_FILE_BYTES}: {_REMEDY}")
        length = _HEAD.size + payload_bytes + _CRC.size
        slots = [_parse(file.pread(slot * PAGE_BYTES, length), magic) for slot in (0, 1)]
        valid = [
            (value.sequence, value.payload, slot) for slot, value in enumerate(slots) if value.valid
        ]
        if not valid:
            file.close()
            versions = {value.version for value in slots} - {VERSION, 0}
            if versions:
                raise UnknownFormat(
                    f"{path} has version {min(versions)}, this program knows {VERSION}: start the"
                    " program that wrote it"
                )
            raise PromisesLost(f"both slots of {path} are damaged: {_REMEDY}")
        sequence, payload, slot = max(valid)
        # After a failed sync or a kill the page cache may hold a slot that the medium lacks. So the
        # slot is written again, in place, which leaves the other slot unchanged in any case; it
        # counts when it is synced.
        file.pwrite(slot * PAGE_BYTES, _frame(magic, sequence, payload))
        file.sync()
        return cls(file, magic, slot, sequence, payload)

    def write(self, payload: bytes) -> None:
        """Write a new value to the slot that does not hold the last durable one. It counts after
        `sync`."""
        if not self.unsynced:
            self._slot = 1 - self._slot
        self.unsynced = True
        self.sequence += 1
        self.payload = payload
        self.file.pwrite(self._slot * PAGE_BYTES, _frame(self._magic, self.sequence, payload))

    def sync(self) -> None:
        """Make the last written value durable."""
        self.file.sync()
        self.unsynced = False

    def synced(self) -> None:
        """Record that other code synced `file` after the last `write`."""
        self.unsynced = False

    def write_everywhere(self, payload: bytes) -> None:
        """Replace both slots, one durably after the other, so that no older value can ever count
        again."""
        self.write(payload)
        self.sync()
        self.write(payload)
        self.sync()

    def close(self) -> None:
        self.file.close()


def peek(disk: Disk, path: str, magic: bytes, payload_bytes: int) -> bytes:
    """The current value, read from a file that another process may be writing: a half-written slot
    is not valid, and the other one is intact. Raises OSError, Damaged."""
    data = disk.read_file(path)
    length = _HEAD.size + payload_bytes + _CRC.size
    slots = [
        _parse(data[start : start + length], magic)
        for start in (0, PAGE_BYTES)
        if len(data) >= start + length
    ]
    valid = [(slot.sequence, slot.payload) for slot in slots if slot.valid]
    if not valid:
        raise Damaged(
            f"no slot of {path} is valid: the file is damaged, or of another version of LedgerMQ"
        )
    return max(valid)[1]


def erase_fill(disk: Disk, path: str, payload_bytes: int) -> None:
    """Zero everything outside the slots. The file must not be open. Raises OSError."""
    data, length = disk.read_file(path), _HEAD.size + payload_bytes + _CRC.size
    disk.replace_file(
        path,
        b"".join(data[slot : slot + length].ljust(PAGE_BYTES, b"\0") for slot in (0, PAGE_BYTES)),
    )


def _frame(magic: bytes, sequence: int, payload: bytes) -> bytes:
    head = _HEAD.pack(magic, VERSION, sequence) + payload
    return head + _CRC.pack(crc32c.crc32c(head))


def _parse(raw: bytes, magic: bytes) -> _Slot:
    """Parse a slot. A foreign version counts only in a file without any valid slot, because a
    single damaged byte must not look like one."""
    magic_word, version, sequence = _HEAD.unpack_from(raw)
    if magic_word != magic:
        return _Slot(False, 0, 0, b"")
    intact = version == VERSION and _CRC.unpack_from(raw, len(raw) - _CRC.size)[0] == crc32c.crc32c(
        raw[: -_CRC.size]
    )
    return _Slot(intact, version, sequence, raw[_HEAD.size : -_CRC.size])
