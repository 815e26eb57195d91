"""A small cluster in memory that is damaged, audited and restored, case by case; what a case cannot
have changed is not read again.

The auditor's own functions do everything. Kept is (`memory.py`) what opening the replicas of a
node, looking at a partition of work, and scanning a log file gave while the files that were read
for it were the same. `plain` audits without any of this.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from ledgermq.audit.checks import opening
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.reading.columns import Columns
from ledgermq.audit.run import jobs
from ledgermq.audit.run.jobs import Audit, Progress
from ledgermq.audit.run.sources import other_version
from ledgermq.audit.run.works import KEYS, STATE, Outcome, Work, run_work
from tests.audit.exhaust.cluster import CLUSTERS, SHAPES, build
from tests.audit.exhaust.memory import Memory
from tests.audit.fuzz.clusters import Image

Changes = Mapping[str, bytes | None]
"""By path: other bytes, or None for a file that is gone."""
WHOLE, DEEP, AGREEMENT = "whole", "deep", "agreement"
MODES = (WHOLE, DEEP, AGREEMENT)


def image_of(base: Path) -> Image:
    return {
        str(path.relative_to(base)): path.read_bytes()
        for path in sorted(base.rglob("*"))
        if path.is_file()
    }


class Place:
    """Directories of nodes below `base` that are changed and put back. `image`: their files as they
    are."""

    def __init__(self, base: Path, image: Image) -> None:
        self.base, self.image = base, image
        self.nodes = sorted({path.partition("/")[0] for path in image})
        self.directories = [str(base / node) for node in self.nodes]

    @contextmanager
    def damaged(self, changes: Changes) -> Iterator[None]:
        """The cluster with other bytes, and then as before."""
        self.write(changes)
        try:
            yield
        finally:
            self.write({path: self.image.get(path) for path in changes})

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Whatever happens meanwhile, the cluster is as before afterwards."""
        try:
            yield
        finally:
            found = image_of(self.base)
            self.write(
                {
                    path: self.image.get(path)
                    for path in found.keys() | self.image
                    if found.get(path) != self.image.get(path)
                }
            )

    def write(self, changes: Changes) -> None:
        for path, data in changes.items():
            target = self.base / path
            if data is None:
                target.unlink(missing_ok=True)
                continue
            try:
                with open(target, "r+b") as file:
                    file.write(data)
                    file.truncate(len(data))
            except FileNotFoundError:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)

    def is_restored(self) -> bool:
        return image_of(self.base) == self.image


class Ground(Place):
    """One cluster below `base`, which should lie in memory."""

    def __init__(self, base: Path, cluster: str = "one", unclean: Sequence[str] = ()) -> None:
        build(base, cluster, clean={"n1", "n2", "n3"} - {*unclean})
        super().__init__(base, image_of(base))
        self.cluster = cluster
        self.memory = Memory(base, self.image)
        self.groups = [SHAPES[name].group for name in CLUSTERS[cluster]]
        for mode in MODES:
            # Whatever is kept is of the cluster as it is now.
            assert self.quick({}, mode).verdict == jobs.PASS, mode

    # Audits

    def plain(
        self, changes: Changes, mode: str = WHOLE, engine: jobs.Engine = jobs.local_engine
    ) -> Audit:
        """The audit of everything, as the command makes it."""
        with self.damaged(changes):
            return jobs.audit(
                self.directories, engine, deep=mode == DEEP, agreement=mode == AGREEMENT
            )

    def verdict(self, changes: Changes, mode: str = WHOLE) -> Audit:
        """An audit with the verdict of the plain one. What is made of the log is looked at only
        where the log itself does not FAIL: it can only add findings."""
        if any("/data/" in path for path in changes) and mode != AGREEMENT:
            found = self.quick(changes, mode, log_only=True)
            if found.verdict == jobs.FAIL:
                return found
        return self.quick(changes, mode)

    def quick(self, changes: Changes, mode: str = WHOLE, *, log_only: bool = False) -> Audit:
        """The same findings in the broker groups that are changed, without reading again what is
        not changed."""
        touched = {path.split("/")[1] for path in changes if path.count("/") > 1}
        groups = (
            [name for name in self.groups if name in touched]
            if touched and not self._of_nodes(changes)
            else self.groups
        )

        def find(directory: str) -> list[Replica]:
            kept = self.memory.recall(
                (_find, directory, *groups), lambda: pickle.dumps(_find(directory, groups))
            )
            replicas: list[Replica] = pickle.loads(kept)  # noqa: S301 (written above)
            for one in replicas:
                # Its files may have been written again since, with the same bytes.
                one.fingerprint = opening.fingerprint(one)
            return replicas

        def version(directory: str) -> int | None:
            found: int | None = self.memory.recall(
                (other_version, directory), lambda: other_version(directory)
            )
            return found

        def engine(works: Sequence[Work], progress: Progress) -> list[Outcome]:
            return [
                self._look(work, unchanged=log_only and work.kind in (KEYS, STATE))
                for work in works
            ]

        self.memory.changed(changes)
        with (
            self.damaged(changes),
            patch.object(jobs, "other_version", version),
            patch.object(jobs, "find_replicas", find),
            patch.object(jobs, "refuse_unreadable", _nothing),
            patch.object(Scan, "columns", self._columns),
        ):
            return jobs.audit(
                self.directories, engine, deep=mode == DEEP, agreement=mode == AGREEMENT
            )

    @staticmethod
    def _of_nodes(changes: Changes) -> bool:
        return any(path.count("/") == 1 for path in changes)

    def _look(self, work: Work, *, unchanged: bool) -> Outcome:
        """`unchanged`: as if nothing were."""
        kept = self.memory.recall(work, lambda: pickle.dumps(run_work(work)), unchanged=unchanged)
        return pickle.loads(kept)  # type: ignore[no-any-return]  # noqa: S301 (written above)

    @property
    def _columns(self) -> Callable[..., Iterator[Columns]]:
        """`Scan.columns`, which several checks ask for the same file."""

        def columns(scan: Scan, *window: int) -> Iterator[Columns]:
            def find() -> tuple[list[Columns], bytes]:
                pieces = list(scan_columns(scan, *window))
                for piece in pieces:
                    for array in (getattr(piece, name) for name in piece.__slots__):
                        if isinstance(array, np.ndarray):
                            array.flags.writeable = False
                return pieces, pickle.dumps(scan.report)

            pieces, report = self.memory.recall(
                (Scan, scan.task, scan.report.scanned_by, window), find
            )
            scan.report = pickle.loads(report)  # noqa: S301 (written above)
            yield from pieces

        return columns


scan_columns = Scan.columns


def _nothing(one: Replica) -> None:
    """Every file here can be read."""


def _find(directory: str, groups: Sequence[str]) -> list[Replica]:
    names: Callable[[str], list[str]] = opening.names_in
    with patch.object(
        opening, "names_in", lambda path: list(groups) if path == directory else names(path)
    ):
        return jobs_find(directory)


jobs_find = opening.find_replicas
