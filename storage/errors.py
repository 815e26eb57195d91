"""The failures of the store, as types that carry what a process has to do about them.

Here live only exceptions. Each names who is at fault through its type and the exit status of a node that cannot go on (`exit_code`,
`None` where the caller handles it). Messages say what is wrong and what to do. A failed system call stays an `OSError` until a module
of this package knows what it means.
"""

from __future__ import annotations

import errno

NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


class StorageError(Exception):
    """Base of everything the store raises on purpose."""

    exit_code: int | None = None


class Unusable(StorageError):
    """The directory cannot be used: not ours, of another cluster, group or node, incomplete, or not writable."""

    exit_code = 71


class LogFenced(StorageError):
    """The log takes nothing any more (invariants I9 and I10). `exit_code` is 73 after a failed write or sync, 75 for damage."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class NoSpace(StorageError):
    """The disk is full. Nothing was appended; the same call may succeed later."""

    exit_code = 74


class Damaged(StorageError):
    """Bytes that were on stable storage are gone or changed."""

    exit_code = 75


class UnknownFormat(StorageError):
    """Written by another version of LedgerMQ."""

    exit_code = 76


class BadRange(StorageError):
    """A range that does not continue this log: wrong index, term, position or chain. Nothing was appended."""


class DerivedLost(StorageError):
    """Consume queues lack units that the snapshot claims: discard snapshot and queues and rebuild them from the log."""


def is_no_space(error: OSError) -> bool:
    """Whether a failed call means that the disk (or the quota) is full."""
    return error.errno in NO_SPACE_ERRNOS
