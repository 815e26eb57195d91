"""The errors of the store; their types carry what a process has to do about them.

Only exceptions live here. The type says who is at fault, and `exit_code` is the exit status of a
node that cannot continue (`None` if the caller handles the error). Messages say what is wrong and
what to do. A failed system call stays an `OSError` until a module of this package knows what it
means.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ledgermq.proto.status import ExitCode

NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
GONE_ERRNOS = frozenset({errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE})
REFUSED_ERRNOS = frozenset(
    {
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
LIMIT_REMEDY = (
    "raise the limit of open files (ulimit -n) or of maps (sysctl vm.max_map_count), or provide"
    " more memory"
)


class StorageError(Exception):
    """Base of every error that the store raises deliberately."""

    exit_code: int | None = None


class Unusable(StorageError):
    """The directory cannot be used: it belongs to another cluster, group or node, is incomplete, or
    is not writable."""

    exit_code = ExitCode.DATA_UNUSABLE


class LogFenced(StorageError):
    """The log accepts no more writes (invariants I9 and I10). `exit_code` is 73 after a failed
    write or sync, 75 for damage, 79 if the operating system ran out of a resource in the middle of
    a write."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class NoSpace(StorageError):
    """The disk is full. Nothing was appended; the same call may succeed later."""

    exit_code = ExitCode.NO_SPACE


class Exhausted(NoSpace):
    """The process reached a limit of open files, maps or memory. Nothing was appended; the same
    call may succeed later."""

    exit_code = ExitCode.LIMIT


class Damaged(StorageError):
    """Bytes that were on stable storage are missing or changed."""

    exit_code = ExitCode.DAMAGED


class LogDamaged(Damaged):
    """Log files, the begin file, or the snapshots of a trimmed log are damaged or missing: a repair
    from peers fixes it."""


class PromisesLost(Damaged):
    """The hard state or the synced mark is lost, so the promises of this replica are unknown. It
    may only return as a learner."""


class UnknownFormat(StorageError):
    """Written by another version of LedgerMQ."""

    exit_code = ExitCode.WRONG_VERSION


class BadRange(StorageError):
    """A range that does not continue this log: wrong index, term, position or chain. Nothing was
    appended."""


class DerivedLost(StorageError):
    """Consume queues lack units that the snapshot claims: discard snapshot and queues and rebuild
    them from the log."""


def is_no_space(error: OSError) -> bool:
    """Whether a failed call means that the disk (or the quota) is full."""
    return error.errno in NO_SPACE_ERRNOS


def lacks_descriptors(error: OSError) -> bool:
    """Whether a call failed because no more files can be opened. No sync fails like this, so
    nothing was lost."""
    return error.errno in DESCRIPTOR_ERRNOS


def is_exhausted(error: OSError) -> bool:
    """Whether a call failed at a limit of the operating system before it had any effect. Not for
    syncs, which may report ENOMEM too."""
    return error.errno in DESCRIPTOR_ERRNOS or error.errno == errno.ENOMEM


def concerns_files(error: OSError) -> bool:
    """Whether a call failed because of a disk, a file system or a process limit, for any file; it
    is then not a bug."""
    return is_no_space(error) or is_exhausted(error) or error.errno in GONE_ERRNOS | REFUSED_ERRNOS


@contextlib.contextmanager
def needing_room(path: str) -> Iterator[None]:
    """Context for creating or writing a file, never for a sync: a full disk becomes NoSpace, and
    the caller retries later."""
    try:
        yield
    except OSError as error:
        if is_no_space(error):
            raise NoSpace(
                f"no space for {path} ({error}): free disk space; the operation is then retried"
            ) from error
        raise


def explain(root: str, error: OSError) -> StorageError:
    """What a failed call means for a process that starts in `root`, and what to do."""
    if is_no_space(error):
        return NoSpace(f"no space to start in {root} ({error}): free disk space, then start again")
    if is_exhausted(error):
        return Exhausted(
            f"the operating system denies this process more files, maps or memory ({error}):"
            f" {LIMIT_REMEDY}, then start again"
        )
    if error.errno in GONE_ERRNOS:
        problem = f"the disk under {root} fails or is missing ({error})"
        remedy = (
            "check the kernel's log; replace or reattach it, or restore this replica from its peers"
        )
        return LogFenced(f"{problem}: {remedy}", ExitCode.SYNC_FAILED)
    if error.errno == errno.EROFS:
        problem = f"{root} is on a read-only file system ({error})"
        return Unusable(
            f"{problem}: the kernel remounts a failing disk like this; check its log, then mount it"
            " writable again"
        )
    return Unusable(
        f"{root} cannot be used ({error}): check the path, its owner and its permissions"
    )
