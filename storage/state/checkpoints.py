"""The hint files of RocketMQ and DLedger (format §10): two checkpoints and the abort file.

Other tools read them. LedgerMQ trusts only the verified log, with one exception: an absent abort
file means a clean stop.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from ledgermq.storage.files.ports import Disk

STORE_CHECKPOINT_FILE = "checkpoint"
STORE_CHECKPOINT_BYTES = 4096
ABORT_FILE = "abort"
_STAMPS = struct.Struct(">qqq")
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""As it is written. `int` also takes spaces, a plus sign and underscores, which no program writes
there."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Store times (ms) of the last message known to be durable in the log, the consume queues and
    the key index; 0 = none."""

    physical_ms: int = 0
    logical_ms: int = 0
    index_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """The log's end, and a lower bound of the commit index, when the file was written."""

    end_index: int
    committed_index: int


def write_store_checkpoint(disk: Disk, root: str, value: StoreCheckpoint) -> None:
    stamps = _STAMPS.pack(value.physical_ms, value.logical_ms, value.index_ms)
    disk.replace_file(
        f"{root}/{STORE_CHECKPOINT_FILE}", stamps.ljust(STORE_CHECKPOINT_BYTES, b"\0")
    )


def write_log_checkpoint(disk: Disk, log_directory: str, value: LogCheckpoint) -> None:
    text = f"endIndex={value.end_index}\ncommittedIndex={value.committed_index}\n"
    disk.replace_file(f"{log_directory}/checkpoint", text.encode("ascii"))


def read_log_checkpoint(disk: Disk, log_directory: str) -> LogCheckpoint | None:
    """None if the file is missing or unreadable. Lines may come in any order; the caller clamps the
    values to the verified log."""
    path = f"{log_directory}/checkpoint"
    if not disk.exists(path):
        return None
    pairs = (
        line.partition("=") for line in disk.read_file(path).decode("ascii", "replace").splitlines()
    )
    values = {key.strip(): value.strip() for key, _, value in pairs}
    end, committed = values.get("endIndex", ""), values.get("committedIndex", "")
    if not _NUMBER.fullmatch(end) or not _NUMBER.fullmatch(committed):
        return None
    return LogCheckpoint(int(end), int(committed))


def write_abort(disk: Disk, root: str, process: int) -> None:
    """Record durably that a process works on this directory."""
    disk.replace_file(f"{root}/{ABORT_FILE}", str(process).encode("ascii"))


def is_clean(disk: Disk, root: str) -> bool:
    """Whether the last process that worked on this directory stopped cleanly."""
    return not disk.exists(f"{root}/{ABORT_FILE}")


def remove_abort(disk: Disk, root: str) -> None:
    """The last step of a clean stop; everything else is durable before it."""
    if disk.exists(f"{root}/{ABORT_FILE}"):
        disk.unlink(f"{root}/{ABORT_FILE}")
        disk.sync_dir(root)
