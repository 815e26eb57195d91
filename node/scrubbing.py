"""Reads the whole log of one broker group from time to time, with all CRCs computed: rot is found before somebody asks for the entry.

Once after every opening and then at rest intervals, on a thread of its own, slowly. What is found is told to the group, which lets a repair
look at everything (`hosting.py`); nothing is judged or changed here. Reads the files alone, below the synced mark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ledgermq.node import metrics
from ledgermq.node.core.ports import Unreadable
from ledgermq.node.logs import get_logger
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import LogDamaged, StorageError, is_exhausted
from ledgermq.storage.log_scan import Point
from ledgermq.storage.log_source import LogSource, Missing, Why

READ_BYTES = 256 << 10
BYTES_PER_S = 16 << 20
REST_FACTOR = 9
"""It rests at least so many times as long as it worked: a tenth of a core, however small the messages are."""
AGAIN_S = 24 * 3600.0
RETRY_S = 60.0
"""After a look that came to nothing: no descriptors, or files that went while they were read."""

log = get_logger()


class Scrub:
    """The thread and its pace. `start` it once; `stop` may be called from any thread and waits for a read under way."""

    def __init__(self, group: str, disk: Disk, root: str, found: Callable[[Unreadable], None]) -> None:
        self._group = group
        self._source = LogSource(disk, root)
        self._found = found
        self._scrubbed = metrics.SCRUBBED_BYTES.labels(group)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"scrub-{group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._stop.wait(AGAIN_S if self._look() else RETRY_S)
        finally:
            self._source.close()

    def _look(self) -> bool:
        """Once through the log. False when it has to be begun again."""
        try:
            facts = self._source.facts()
            # What is committed is never cut off while it is read.
            point, end = facts.begin, facts.committed_pos if facts.committed_pos >= 0 else facts.synced.pos
            while point.pos < end and not self._stop.is_set():
                began = time.perf_counter()
                found = self._source.entries(point, end, READ_BYTES)
                if found is None:
                    break
                if isinstance(found, Missing):
                    return self._judge(found)
                self._scrubbed.inc(len(found.data))
                point = Point(found.end_pos, found.last_index + 1, found.term, found.last_chain)
                self._stop.wait(max(len(found.data) / BYTES_PER_S, REST_FACTOR * (time.perf_counter() - began)))
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_exhausted(error):
                return False
            self._tell(str(error))
        except StorageError as error:
            self._tell(str(error))
        return True

    def _judge(self, missing: Missing) -> bool:
        if missing.why is not Why.DAMAGED:
            # Trimmed meanwhile.
            return False
        self._tell(f"entry {missing.index} at {missing.pos}: {missing.text}")
        return True

    def _tell(self, what: str) -> None:
        log.error("damage found", group=self._group, reason=what)
        self._found(Unreadable(LogDamaged(what)))
