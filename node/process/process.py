"""Process-wide settings of a node: the accepted platform, the parent process, emergency exits, and
the garbage collector. Nothing here knows what the process does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from typing import Any, Never

from ledgermq.node.runtime import logs
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode

GARBAGE_THRESHOLD = 20_000

log = logs.get_logger()


def spare_the_collector() -> None:
    """Exclude modules and the parts of the node, which live as long as the process, from garbage
    collection: rescanning them costs every call.

    Reference counts free what a call leaves; the few reference cycles wait for a larger number of
    objects than by default.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def check_platform() -> None:
    """Raise FatalError on a platform on which the node cannot keep its guarantees."""
    if not __debug__:
        what = "assertions are off (python -O), and with them the checks of the invariants"
        raise FatalError(ExitCode.WRONG_VERSION, what, "start without -O")
    if sys.platform != "linux":
        raise FatalError(
            ExitCode.WRONG_VERSION,
            f"LedgerMQ runs on Linux only, not on {sys.platform}",
            "use the container images",
        )


def end_with_parent() -> None:
    """End this process with its supervisor (`ledgermq up`), even if the supervisor is killed."""
    parent = os.environ.get("LEDGERMQ_PARENT")
    if parent is not None:
        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):
            raise FatalError(
                ExitCode.DATA_UNUSABLE,
                "the supervisor of this node is gone",
                "start the cluster again",
            )


def exit_on_lost_map() -> None:
    """End the process if a mapped file loses its backing (SIGBUS); a Python-level handler would
    return into the same fault forever."""

    def lost(_: int) -> None:
        os.write(
            2,
            b"error: a mapped file lost its backing (SIGBUS); check the disk, then start the node"
            b" again\n",
        )
        os._exit(ExitCode.MAP_LOST)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lost)
    _KEPT.append(handler)
    ctypes.CDLL(None).signal(signal.SIGBUS, handler)


_KEPT: list[Any] = []


def end_process(error: FatalError) -> Never:
    """Log the error, print one sentence, and end the process, from any thread: nothing may be
    acknowledged after this."""
    try:
        log.error(
            "fatal", exit_code=error.exit_code, reason=error.what, exc_info=error.__cause__ or False
        )
        logs.say(f"error: {' '.join(str(error).split())}\n")
    finally:
        # Even if logging fails: a process that goes on could acknowledge something.
        os._exit(error.exit_code)
