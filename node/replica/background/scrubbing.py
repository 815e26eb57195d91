"""Reads the whole log of one broker group again and again, beside the turns, so that bit rot is
found before a client needs the entry.

`node/replica/retention/scrub.py` decides which file is next and what counts as verified; this
module has the steps, their rate, and the log lines. Damage is reported to the group, which then has
a repair check everything (`hosting.py`); this module changes nothing. It only reads files, below
the synced mark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from ledgermq.node.broker.ports import Fenced, Unreadable
from ledgermq.node.replica.background.pace import Pace
from ledgermq.node.replica.background.ports import Rest, Steps, Worker
from ledgermq.node.replica.retention.scrub import Differs, Gone, Scrubber
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.records.control import SealRecord
from ledgermq.storage.files.errors import (
    LogDamaged,
    StorageError,
    is_exhausted,
    is_no_space,
    lacks_descriptors,
)
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.thresholds import SCRUB_BYTES_PER_S

REST_FACTOR = 9
"""Minimum rest as a multiple of the processor time: at most a tenth of a core, however small the
messages are."""
RETRY_S = 60.0
"""Delay while no file is due, and after a failed attempt: no descriptors, or files that were
trimmed while they were read."""
NOTE_EVERY_S = 10.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """The reading rate for one broker group, and the time between two readings of a file."""

    bytes_per_s: float = SCRUB_BYTES_PER_S
    again_s: float = 24 * 3600.0


class Scrub:
    """The scrub. Call `start` once; `stop` may be called from any thread and waits for a read in
    progress."""

    scrubber_type = Scrubber

    def __init__(
        self,
        group: str,
        disk: Disk,
        root: str,
        found: Callable[[Fenced | Unreadable], None],
        seals: Callable[[], Mapping[int, SealRecord]],
        plan: Plan,
        worker: Worker,
    ) -> None:
        """`found` is called with damage and with a final disk failure; `seals` is called in
        steps."""
        self._group = group
        self._found = found
        self._worker = worker
        self._scrubber = self.scrubber_type(
            disk, root, seals, worker.now_ms, int(plan.again_s * 1000)
        )
        self._idle_s = min(RETRY_S, plan.again_s)
        self._pace = Pace(plan.bytes_per_s, REST_FACTOR, worker.now_s, worker.spent_s)
        self._scrubbed = metrics.SCRUBBED_BYTES.labels(group)
        self._files = metrics.SCRUBBED_FILES.labels(group)
        self._note_due_s: float | None = None
        """When the progress is stored next; None if all of it is stored."""
        metrics.UNVERIFIED_SECONDS.labels(group).set_function(self._unverified_s)

    def start(self) -> None:
        self._worker.start(self.steps())

    def stop(self) -> None:
        self._worker.stop()
        # The age would grow for ever on a node that the group has left.
        metrics.UNVERIFIED_SECONDS.remove(self._group)

    def soon(self, base: int) -> None:
        """Read this file next. May be called from any thread."""
        self._scrubber.soon(base)
        self._worker.wake()

    def unverified_ms(self) -> int | None:
        """The time since the least recently verified (or written) byte was verified; None before
        the first file. May be called from any thread."""
        oldest_ms = self._scrubber.oldest_ms
        return None if oldest_ms is None else max(0, self._worker.now_ms() - oldest_ms)

    def _unverified_s(self) -> float:
        found = self.unverified_ms()
        return math.nan if found is None else found / 1000

    def steps(self) -> Steps:
        """Each step reads a piece of a file. Ends where it rests, when it is closed."""
        try:
            while True:
                if not (yield from self._look()):
                    yield Rest(self._idle_s, wakes=True)
        finally:
            self._scrubber.close()

    def _look(self) -> Generator[Rest, None, bool]:
        """Read one file. Returns False if no file is due, or the file must be read again."""
        try:
            base = self._scrubber.due()
            read = base is not None and (yield from self._read(base))
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

    def _read(self, base: int) -> Generator[Rest, None, bool]:
        try:
            self._pace.begin()
            for length in self._scrubber.read(base):
                self._scrubbed.inc(length)
                yield Rest(self._pace.rest_s(length))
                self._pace.begin()
        except Differs as differs:
            remedy = (
                "do not delete anything: run ledgermq audit over all replicas, it names the first"
                " entry that differs"
            )
            log.error(
                "replicas hold different histories",
                group=self._group,
                reason=str(differs),
                remedy=remedy,
            )
            return True
        self._files.inc()
        if self._note_due_s is None:
            self._note_due_s = self._worker.now_s() + NOTE_EVERY_S
        return True

    def _keep_note(self, *, at_once: bool) -> None:
        if self._note_due_s is None or not (at_once or self._worker.now_s() >= self._note_due_s):
            return
        self._note_due_s = None
        try:
            self._scrubber.write_note()
        except OSError as error:
            if not is_no_space(error) and not lacks_descriptors(error):
                self._found(Fenced(f"the scrub progress could not be stored: {error}"))
            # The file is only a hint; after the next log file it is written again.
            log.warning("scrub progress not stored", group=self._group, reason=str(error))

    def _report(self, what: str) -> bool:
        """Report damage. Returns False: the group then stops this work, or the file is tried again
        later."""
        log.error("damage found", group=self._group, reason=what)
        self._found(Unreadable(LogDamaged(what)))
        return False
