"""The thread that runs the syncs of one broker group.

The one blocking call of a group commit runs only here; its outcome is an input of the engine like
any other. Any error in it counts as a failed sync (invariant I9).
"""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable

from ledgermq.node.broker.ports import SyncTicket
from ledgermq.node.replica.hosting.sync_watch import SyncWatch


class Syncer:
    """The sync thread of one group: runs tickets one after the other and calls `report` with each
    outcome."""

    def __init__(
        self, group: str, report: Callable[[str, SyncTicket, OSError | None], None]
    ) -> None:
        self._group = group
        self._report = report
        self._tickets: queue.SimpleQueue[SyncTicket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"sync-{group}", daemon=True)
        self._watch = SyncWatch(group)

    def start(self) -> None:
        self._thread.start()

    def submit(self, ticket: SyncTicket) -> None:
        self._tickets.put(ticket)

    def stop(self) -> None:
        self._tickets.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            error: OSError | None = None
            began = time.perf_counter()
            try:
                ticket.run()
            except OSError as failure:
                error = failure
            # after any failure it is unknown what is durable: the same as a failed sync (invariant
            # I9)
            except Exception as failure:
                error = OSError(errno.EIO, f"{type(failure).__name__}: {failure}")
            self._watch.ran(ticket, began, time.perf_counter())
            self._report(self._group, ticket, error)
