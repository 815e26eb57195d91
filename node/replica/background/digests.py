"""Computes and stores digests of this node's sealed log files, and the roots of their entries
trees, one file at a time, in jobs of an executor that run slowly beside other work.

A caller that wants a digest asks again until it is known. Results are stored in `state/digests`, so
that a restart need not read every file again; that file is a hint, and is valid only for the same
log. This module compares nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from ledgermq.node.broker.ports import Fenced
from ledgermq.node.replica.background.pace import Pace
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, UnknownFormat, is_no_space, lacks_descriptors
from ledgermq.storage.files.file_digest import digest_and_root
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore

DIGESTS_FILE = "digests"
NOTE_VERSION = 1

log = get_logger()


class _Stopped(Exception):
    """The node is stopping."""


class Digests:
    """The digests of one broker group's files on this node. Methods belong to the loop's thread."""

    def __init__(
        self,
        disk: Disk,
        store: GroupStore,
        bytes_per_s: int,
        on_failure: Callable[[Fenced], None],
        executor: Executor,
    ) -> None:
        """`on_failure` is called, in any job, with a final disk failure; `executor` runs one job at
        a time and belongs to this object."""
        self._disk = disk
        self._on_failure = on_failure
        self._data = f"{store.log_directory}/data"
        self._note = f"{store.state_directory}/{DIGESTS_FILE}"
        self._log_id = store.identity.log_id
        self._group = store.identity.group
        self._pace = Pace(bytes_per_s)
        self._executor = executor
        self._stopping = threading.Event()
        self._running: tuple[int, Future[tuple[str, str]], bool] | None = None
        self._failed: set[int] = set()
        self.known: dict[int, str] = {}
        """Position of a file → its digest."""
        self.roots: dict[int, str] = {}
        """Position of a file → the root of its entries tree; empty if its bytes are no entries."""
        self._read_note()
        self._noted = set(self.known)
        """Files whose digest an earlier run computed, and this run has not."""

    def want(self, bases: list[int], ends: Mapping[int, int] | None = None) -> None:
        """Begin to compute what is unknown of the first of these files, unless one is being
        computed. The files must be sealed here. `ends` names those whose root is wanted too, with
        the place in the file where the last entry ends."""
        self._collect()
        ends = ends or {}
        unknown = [
            base
            for base in bases
            if base not in self.known or (base in ends and base not in self.roots)
        ]
        missing = [base for base in unknown if base not in self._failed]
        if self._running is None and missing and not self._stopping.is_set():
            base = missing[0]
            self._running = (
                base,
                self._executor.submit(self.compute, base, ends.get(base)),
                base in ends,
            )

    async def settle(self, within_s: float) -> bool:
        """Wait at most `within_s` for the digest in progress; returns whether it was finished."""
        if self._running is None:
            return False
        await asyncio.wait([asyncio.wrap_future(self._running[1])], timeout=within_s)
        self._collect()
        return self._running is None

    def doubt(self, base: int) -> bool:
        """Handle a digest that differs from the one that a majority recorded. If an earlier run
        computed it, the file may have changed, so the digest is forgotten. Returns whether it
        was."""
        if base not in self._noted:
            return False
        self._noted.discard(base)
        del self.known[base]
        self.roots.pop(base, None)
        return True

    def keep_from(self, base: int) -> None:
        """Forget the digests of files below `base`, which were trimmed."""
        self._collect()
        for gone in [known for known in self.known if known < base]:
            del self.known[gone]
            self.roots.pop(gone, None)
            self._noted.discard(gone)
        self._failed = {failed for failed in self._failed if failed >= base}

    def stop(self) -> None:
        """End the job in progress; the next start computes the digest in progress again."""
        self._stopping.set()
        self._executor.shutdown()

    def _collect(self) -> None:
        if self._running is None or not self._running[1].done():
            return
        base, future, rooted = self._running
        self._running = None
        error = future.exception()
        if error is None:
            self.known[base], root = future.result()
            if rooted:
                self.roots[base] = root
            if not self._stopping.is_set():
                self._executor.submit(self._write_note, dict(self.known), dict(self.roots))
        elif isinstance(error, FileNotFoundError):
            # The file was trimmed while it was read.
            return
        elif isinstance(error, OSError):
            self._failed.add(base)
            metrics.DIGEST_FAILURES.labels(self._group).inc()
            remedy = "check the disk; `ledgermq audit` tells whether the other replicas are sound"
            log.error(
                "log file unreadable",
                group=self._group,
                file=f"{self._data}/{file_name(base)}",
                reason=str(error),
                remedy=remedy,
            )
        elif not isinstance(error, _Stopped):
            raise error

    # -- in jobs of the executor

    def compute(self, base: int, end: int | None) -> tuple[str, str]:
        """Digest and root of one file; the root is empty without the place in the file where the
        last entry ends. Raises OSError."""
        self._pace.begin()
        return digest_and_root(self._disk, f"{self._data}/{file_name(base)}", end, self.pause)

    def pause(self, length: int) -> None:
        """Rest after this many bytes, so that other work goes first."""
        if self._stopping.wait(self._pace.rest_s(length)):
            raise _Stopped
        self._pace.begin()

    def _write_note(self, known: dict[int, str], roots: dict[int, str]) -> None:
        value: dict[str, Any] = {"v": NOTE_VERSION, "log_id": self._log_id}
        value["digests"] = {str(base): digest for base, digest in sorted(known.items())}
        if roots:
            value["roots"] = {str(base): root for base, root in sorted(roots.items())}
        try:
            sealed_json.write(self._disk, self._note, value)
        except OSError as error:
            if not is_no_space(error) and not lacks_descriptors(error):
                self._on_failure(Fenced(f"{self._note} could not be written: {error}"))
            # The file is only a hint; after the next digest it is written again.
            log.warning("digests not noted", group=self._group, reason=str(error))

    def _read_note(self) -> None:
        try:
            value: dict[str, Any] = (
                sealed_json.read(self._disk, self._note) if self._disk.exists(self._note) else {}
            )
        except (Damaged, UnknownFormat, OSError):
            # The digests are computed again.
            return
        if value.get("v") == NOTE_VERSION and value.get("log_id") == self._log_id:
            self.known = {int(base): digest for base, digest in value["digests"].items()}
            self.roots = {int(base): root for base, root in value.get("roots", {}).items()}
