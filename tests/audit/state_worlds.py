"""Logs with everything in them, as one replica has them on its disk: made by the node's own leader and machine over the world of calls.

The log files are as long as they need be: one begins wherever a trim record says that the log does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

from ledgermq.audit.reading.walk import LogFile
from ledgermq.storage import sealed_json
from tests.node_core.core_fakes import LOG_ID, MemoryLog
from tests.node_core.core_world import World

Step = tuple[str, int, int]
FOLDER = "dledger-n1"


class Lived:
    """A world that lived through some steps: its log, and what its state was at some of the indexes."""

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
        """Go on until everything that waits came about and everything was consumed."""
        self.world.settle()
        self.look()

    def look(self) -> None:
        machine = self.world.bench.machine
        # What is applied behind a committed index may still be cut off, of a world that lost its leader.
        if machine.settled and machine.applied_index >= 0:
            self.snapshots[machine.applied_index] = self.world.exported()

    @property
    def indexes(self) -> list[int]:
        return sorted(self.snapshots)

    def write(self, directory: Path, previous: Mapping[str, Any] | None, newest: Mapping[str, Any], *, trimmed: bool = False) -> LogFile:
        return write_replica(self.world.bench.log, directory, previous, newest, trimmed=trimmed)


def write_replica(
    log: MemoryLog, directory: Path, previous: Mapping[str, Any] | None, newest: Mapping[str, Any], *, trimmed: bool = False
) -> LogFile:
    """The directory of one replica. `trimmed`: the files before the begin that `previous` knows are gone."""
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
    """An empty directory below this one, which takes the place of the one before."""
    path = directory / "world"
    if path.exists():
        rmtree(path)
    return path
