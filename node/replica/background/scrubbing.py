"""Reads the whole log of one broker group again and again: rot is found before somebody asks for the entry.

Which file is next and what verifies is decided by `node/replica/retention/scrub.py`; here are its thread, its pace, and what is said.
What is found is told
to the group, which lets a repair look at everything (`hosting.py`); nothing is judged or changed here. Reads the files alone, below the
synced mark.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq.node.broker.ports import Fenced, Unreadable
from ledgermq.node.replica.background.pace import Pace
from ledgermq.node.replica.retention.scrub import Differs, Gone, Scrubber
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.control import SealRecord
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import LogDamaged, StorageError, is_exhausted, is_no_space, lacks_descriptors
from ledgermq.storage.thresholds import SCRUB_BYTES_PER_S

REST_FACTOR = 9
"""It rests at least so many times as long as it worked: a tenth of a core, however small the messages are."""
RETRY_S = 60.0
"""While all files rest; and after a look that came to nothing: no descriptors, or files that went while they were read."""
NOTE_EVERY_S = 10.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """How fast one broker group is read, and for how long a file rests that was read."""

    bytes_per_s: float = SCRUB_BYTES_PER_S
    again_s: float = 24 * 3600.0


class Scrub:
    """The thread and its pace. `start` it once; `stop` may be called from any thread and waits for a read under way."""

    def __init__(
        self,
        group: str,
        disk: Disk,
        root: str,
        found: Callable[[Fenced | Unreadable], None],
        seals: Callable[[], Mapping[int, SealRecord]],
        plan: Plan,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`found` hears of damage, and of a failure of the disk that is final; `seals` is called on the thread."""
        self._group = group
        self._found = found
        self._now_ms = now_ms
        self._scrubber = Scrubber(disk, root, seals, now_ms, int(plan.again_s * 1000))
        self._idle_s = min(RETRY_S, plan.again_s)
        self._pace = Pace(plan.bytes_per_s, REST_FACTOR)
        self._scrubbed = metrics.SCRUBBED_BYTES.labels(group)
        self._files = metrics.SCRUBBED_FILES.labels(group)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._note_due_s: float | None = None
        """From this moment on what was read is noted; None: everything is."""
        self._thread = threading.Thread(target=self._work, name=f"scrub-{group}", daemon=True)
        metrics.UNVERIFIED_SECONDS.labels(group).set_function(self._unverified_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def soon(self, base: int) -> None:
        """This file is next. From any thread."""
        self._scrubber.soon(base)
        self._wake.set()

    def unverified_ms(self) -> int | None:
        """How long ago the byte was verified, or written, that waits longest; None before the first look. From any thread."""
        oldest_ms = self._scrubber.oldest_ms
        return None if oldest_ms is None else max(0, self._now_ms() - oldest_ms)

    def _unverified_s(self) -> float:
        found = self.unverified_ms()
        return math.nan if found is None else found / 1000

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._look():
                    self._wake.wait(self._idle_s)
                    self._wake.clear()
        finally:
            self._scrubber.close()

    def _look(self) -> bool:
        """One file. False when there is none now, or it has to be begun again."""
        try:
            base = self._scrubber.due()
            read = base is not None and self._read(base)
            self._keep_note(at_once=base is None)
        except Gone:
            return False
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_exhausted(error):
                return False
            return self._report(str(error))
        except StorageError as error:
            return self._report(str(error))
        return read

    def _read(self, base: int) -> bool:
        try:
            self._pace.begin()
            for length in self._scrubber.read(base):
                self._scrubbed.inc(length)
                if self._stop.wait(self._pace.rest_s(length)):
                    return False
                self._pace.begin()
        except Differs as differs:
            remedy = "do not delete anything: run ledgermq audit over all replicas, it names the first entry that differs"
            log.error("replicas hold different histories", group=self._group, reason=str(differs), remedy=remedy)
            return True
        self._files.inc()
        if self._note_due_s is None:
            self._note_due_s = time.monotonic() + NOTE_EVERY_S
        return True

    def _keep_note(self, *, at_once: bool) -> None:
        if self._note_due_s is None or not (at_once or time.monotonic() >= self._note_due_s):
            return
        self._note_due_s = None
        try:
            self._scrubber.write_note()
        except OSError as error:
            if not is_no_space(error) and not lacks_descriptors(error):
                self._found(Fenced(f"what was verified could not be noted: {error}"))
            # Only a hint; the next file tries again.
            log.warning("what was verified is not noted", group=self._group, reason=str(error))

    def _report(self, what: str) -> bool:
        """Returns False: whoever hears it ends this loop, or wants it to try again later."""
        log.error("damage found", group=self._group, reason=what)
        self._found(Unreadable(LogDamaged(what)))
        return False
