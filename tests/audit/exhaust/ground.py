"""A small cluster in memory that is damaged, audited and restored, case by case; what a case cannot have changed is not read again.

The auditor's own functions do everything. Kept are: the small files of the other nodes as they were read once, and what looking at a
partition of work gave, if nothing that was opened meanwhile is changed. `plain` audits without any of this.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ledgermq.audit import jobs
from ledgermq.audit.checks import opening
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.jobs import Audit, Progress
from ledgermq.audit.works import KEYS, STATE, Outcome, Work, look
from tests.audit.exhaust.cluster import CLUSTERS, SHAPES, build
from tests.audit.jury.clusters import Image

Changes = Mapping[str, bytes | None]
"""By path: other bytes, or None for a file that is gone."""
WHOLE, DEEP, AGREEMENT = "whole", "deep", "agreement"
MODES = (WHOLE, DEEP, AGREEMENT)
_watching: list[set[str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open" and isinstance(arguments[0], str):
        for opened in _watching:
            opened.add(arguments[0])


sys.addaudithook(_watch)


@contextmanager
def opened() -> Iterator[set[str]]:
    """The paths of the files that are opened meanwhile."""
    found: set[str] = set()
    _watching.append(found)
    try:
        yield found
    finally:
        _watching.remove(found)


def image_of(base: Path) -> Image:
    return {str(path.relative_to(base)): path.read_bytes() for path in sorted(base.rglob("*")) if path.is_file()}


class Place:
    """Directories of nodes below `base` that are changed and put back. `image`: their files as they are."""

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
            self.write({path: self.image.get(path) for path in found.keys() | self.image if found.get(path) != self.image.get(path)})

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
        self._outcomes: dict[Work, tuple[bytes, set[str]]] = {}
        self.groups = [SHAPES[name].group for name in CLUSTERS[cluster]]
        self._replicas: dict[tuple[str, str], bytes] = {}
        for mode in MODES:
            # Whatever is kept is of the cluster as it is now.
            assert self.quick({}, mode).verdict == jobs.PASS, mode

    # Audits

    def plain(self, changes: Changes, mode: str = WHOLE, engine: jobs.Engine = jobs.local_engine) -> Audit:
        """The audit of everything, as the command makes it."""
        with self.damaged(changes):
            return jobs.audit(self.directories, engine, deep=mode == DEEP, agreement=mode == AGREEMENT)

    def verdict(self, changes: Changes, mode: str = WHOLE) -> Audit:
        """An audit with the verdict of the plain one. What is made of the log is looked at only where the log itself does not FAIL: it
        can only add findings."""
        if any("/data/" in path for path in changes) and mode != AGREEMENT:
            found = self.quick(changes, mode, log_only=True)
            if found.verdict == jobs.FAIL:
                return found
        return self.quick(changes, mode)

    def quick(self, changes: Changes, mode: str = WHOLE, *, log_only: bool = False) -> Audit:
        """The same findings in the broker groups that are changed, without reading again what is not changed."""
        nodes = {path.partition("/")[0] for path in changes}
        touched = {path.split("/")[1] for path in changes if path.count("/") > 1}
        groups = [name for name in self.groups if name in touched] if touched and not self._of_nodes(changes) else self.groups
        same = all(data is not None and len(data) == len(self.image.get(path, b"")) for path, data in changes.items())
        dirty = {str(self.base / path) for path in changes}

        def find(directory: str) -> list[Replica]:
            if os.path.basename(directory) in nodes:
                return _find(directory, groups)
            return [self._kept(directory, group) for group in groups]

        def engine(works: Sequence[Work], progress: Progress) -> list[Outcome]:
            same_here = {work: same or os.path.basename(work.directory) not in nodes for work in works}
            return [self._look(work, {*()} if log_only and work.kind in (KEYS, STATE) else dirty, sound=same_here[work]) for work in works]

        with self.damaged(changes), patch.object(jobs, "find_replicas", find), patch.object(jobs, "refuse_unreadable"):
            return jobs.audit(self.directories, engine, deep=mode == DEEP, agreement=mode == AGREEMENT)

    @staticmethod
    def _of_nodes(changes: Changes) -> bool:
        return any(path.count("/") == 1 for path in changes)

    def _kept(self, directory: str, group: str) -> Replica:
        key = directory, group
        if key not in self._replicas:
            (found,) = _find(directory, [group])
            self._replicas[key] = pickle.dumps(found)
        one = pickle.loads(self._replicas[key])  # noqa: S301 (written above)
        # Its files may have been written again since, with the same bytes.
        one.fingerprint = opening.fingerprint(one)
        return one  # type: ignore[no-any-return]

    def _look(self, work: Work, dirty: set[str], *, sound: bool) -> Outcome:
        kept = self._outcomes.get(work)
        if kept is not None and sound and not kept[1] & dirty:
            return pickle.loads(kept[0])  # type: ignore[no-any-return]  # noqa: S301 (written below)
        with opened() as files:
            outcome = look(work)
        if kept is None and sound and not files & dirty:
            self._outcomes[work] = pickle.dumps(outcome), files
        return outcome


def _find(directory: str, groups: Sequence[str]) -> list[Replica]:
    names: Callable[[str], list[str]] = opening.names_in
    with patch.object(opening, "names_in", lambda path: list(groups) if path == directory else names(path)):
        return jobs_find(directory)


jobs_find = opening.find_replicas
