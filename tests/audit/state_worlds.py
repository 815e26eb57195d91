"""Logs with records of all kinds, in the form of one replica's disk, produced by the node's leader
and machine in `core_world.World`.

The log files have any length: a file begins wherever a trim record lets the log begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

from ledgermq.audit.reading.walk import LogFile
from ledgermq.storage.files import sealed_json
from tests.node_core.core_fakes import LOG_ID, MemoryLog
from tests.node_core.core_world import World

Step = tuple[str, int, int]
FOLDER = "dledger-n1"


class Lived:
    """A world after some steps: its log, and its state at some indexes."""

    def __init__(self, steps: Iterable[Step], look_every: int = 12) -> None:
        self.world = World()
        self.snapshots: dict[int, dict[str, Any]] = {}
        for number, (name, a, b) in enumerate(steps):
            getattr(self.world, name)(a, b)
            if number % look_every == look_every - 1:
                self.look()
        self.world.heal()
        self.look()

    def settle(self) -> None:
        """Run until all waiting messages became due and all messages are consumed."""
        self.world.settle()
        self.look()

    def look(self) -> None:
        machine = self.world.bench.machine
        # A world that lost its leader may still lose entries that were applied after the committed
        # index.
        if machine.settled and machine.applied_index >= 0:
            self.snapshots[machine.applied_index] = self.world.exported()

    @property
    def indexes(self) -> list[int]:
        return sorted(self.snapshots)

    def write(
        self,
        directory: Path,
        previous: Mapping[str, Any] | None,
        newest: Mapping[str, Any],
        *,
        trimmed: bool = False,
    ) -> LogFile:
        return write_replica(self.world.bench.log, directory, previous, newest, trimmed=trimmed)


def write_replica(
    log: MemoryLog,
    directory: Path,
    previous: Mapping[str, Any] | None,
    newest: Mapping[str, Any],
    *,
    trimmed: bool = False,
) -> LogFile:
    """Write the directory of one replica. `trimmed`: remove the files before the begin in
    `previous`."""
    root = directory / "g"
    data, state = root / FOLDER / "data", root / "state"
    data.mkdir(parents=True)
    state.mkdir()
    text = b"".join(bytes(entries.data) for entries in log.ranges)
    trims = [body["pos"] for _, _, body in newest["retained"]["trims"]]
    begin = previous["retained"] if trimmed and previous is not None else None
    for start, stop in pairwise(sorted({0, *trims, len(text)})):
        if begin is None or start >= begin["begin_pos"]:
            (data / f"{start:020d}").write_bytes(text[start:stop])
    if begin is not None and begin["begin_index"]:
        kept = {name: begin[f"begin_{name}"] for name in ("index", "pos", "term", "chain")}
        (root / FOLDER / "begin").write_bytes(sealed_json.encode({"v": 1, **kept}))
    (state / "snapshot").write_bytes(sealed_json.encode(newest))
    if previous is not None:
        (state / "snapshot.previous").write_bytes(sealed_json.encode(previous))
    return LogFile(str(root), "g", "n1", LOG_ID, FOLDER, f"{0:020d}", 1 << 40, 1 << 20, 1 << 20)


def fresh(directory: Path) -> Path:
    """A new empty directory below `directory`; it replaces the last one."""
    path = directory / "world"
    if path.exists():
        rmtree(path)
    return path
