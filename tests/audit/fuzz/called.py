"""The suite of running nodes: replicas are audited over the client port up to a marker, with errors
in their files or answers.

The nodes run in this process and answer real gRPC (`running_nodes.py`). Anything may follow the
marker; a node that lags or does not answer is no finding.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ledgermq.audit.run.jobs import Audit
from tests.audit.damage_cases import NODES, history
from tests.audit.fuzz.case import Case
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.damage import DIVERGENCE, EXTRA, MISSING, OPEN, REORDERED, ROT
from tests.audit.fuzz.scenario import (
    FAILS,
    SOUND,
    WHOLE,
    Expected,
    Experiment,
    Scenario,
    image_of,
    of_place,
    span,
)
from tests.audit.log_writer import Message, Placed, Writer
from tests.audit.running_nodes import FakeCluster

COUNT, LATER, FILE_BYTES = 50, 12, 8192
HISTORIES = r"replica\.(divergence|missing|extra|reordered|bytes)"


class Running(Scenario):
    """Three running nodes."""

    def __init__(self, base: Path, seed: int = 3) -> None:
        super().__init__(base)
        self.messages = history(seed, COUNT)
        self.marker = len(self.messages) - LATER
        self.held: dict[str, list[Message]] = {}
        self.change: Callable[[FakeCluster], None] = lambda cluster: None
        probe = Writer(Path("/probe/n1"))
        self.entries = [probe.append(message) for message in self.messages]
        self.experiments = {
            "running: byte of an entry": (self._rot, (1, 2, 3)),
            "running: file removed": (self._file, (1, 2)),
            "running: another history": (self._history, (1,)),
            "running: end before the marker lost": (self._end_lost, (1,)),
        }
        self.sound = {
            "whole": lambda rng, case: self._experiment(rng, WHOLE),
            "one lags": lambda rng, case: self._experiment(rng, SOUND, change=self._lag),
            "one does not answer": lambda rng, case: self._experiment(
                rng, SOUND, change=self._away
            ),
        }

    def audit(self) -> Audit:
        writers = []
        for name in NODES:
            writer = Writer(self.base / name)
            for message in self.held.get(name, self.messages):
                writer.append(message)
            writers.append(writer)
        cluster = FakeCluster.of(writers, self.marker)
        self.change(cluster)
        return cluster.audit(deep=True)

    def _image(self, rng: random.Random) -> Image:
        """The files of running nodes: not closed, with anything after the marker."""

        def make(base: Path) -> None:
            for name in NODES:
                writer = Writer(base / name)
                for message in self.held.get(name, self.messages):
                    writer.append(message)
                writer.finish(committed=self.marker, clean=False, snapshot=False)

        files, entry = image_of(make), self.entries[self.marker]
        for name in NODES:
            end = entry.pos + entry.size
            path, at = (
                f"{name}/g1/dledger-{name}/data/{end - end % FILE_BYTES:020d}",
                end % FILE_BYTES + rng.randrange(60),
            )
            torn = rng.randbytes(min(50, FILE_BYTES - at))
            files[path] = files[path][:at] + torn + files[path][at + len(torn) :]
        return files

    def _experiment(
        self,
        rng: random.Random,
        verdicts: frozenset[str] = FAILS,
        *,
        change: Callable[[FakeCluster], None] = lambda cluster: None,
    ) -> Experiment:
        self.held, self.change = {}, change
        return Experiment(self._image(rng), verdicts=verdicts)

    def _lag(self, cluster: FakeCluster) -> None:
        cluster.nodes["n3"].applied = self.marker - 5

    def _away(self, cluster: FakeCluster) -> None:
        cluster.nodes["n2"].up = False

    def _entry(self, case: Case, rng: random.Random) -> Placed:
        inside = [
            entry
            for entry in self.entries[: self.marker - 1]
            if len(entry.message.body) > 8 and entry.index > 1
        ]
        return of_place(
            case.place,
            [entry for entry in inside if not entry.message.topic.startswith("rmq_sys_")],
            rng,
        )

    def _rot(self, rng: random.Random, case: Case) -> Experiment:
        files, entry = self._experiment(rng).image, self._entry(case, rng)
        where, start, _ = span(entry, FILE_BYTES)
        at = start + 48 + rng.randrange(entry.size - 48)
        names = sorted(rng.sample(NODES, case.replicas))
        for name in names:
            path = f"{name}/g1/dledger-{name}/{where}"
            files[path] = files[path][:at] + bytes([files[path][at] ^ 8]) + files[path][at + 1 :]
        classes = frozenset({OPEN} if case.replicas == 3 else {ROT})
        return Experiment(
            files,
            [
                Expected(name, r"entry\..*", classes, where, entry.index, at, at + 1)
                for name in names
            ],
        )

    def _file(self, rng: random.Random, case: Case) -> Experiment:
        files = self._experiment(rng).image
        bases = sorted(
            {entry.pos - entry.pos % FILE_BYTES for entry in self.entries[: self.marker]}
        )
        base = of_place(case.place, bases, rng)
        names = sorted(rng.sample(NODES, case.replicas))
        for name in names:
            del files[f"{name}/g1/dledger-{name}/data/{base:020d}"]
        expected = [
            Expected(name, r"file\.missing|marker\.held|mark\.end", frozenset({MISSING}))
            for name in names
        ]
        return Experiment(files, expected, also=rf"({'|'.join(names)}) .*")

    def _history(self, rng: random.Random, case: Case) -> Experiment:
        entry, odd = self._entry(case, rng), rng.choice(NODES)
        other = list(self.messages)
        body = bytes([entry.message.body[0] ^ 1]) + entry.message.body[1:]
        other[entry.index] = replace(entry.message, body=body)
        self.held, self.change = {odd: other}, lambda cluster: None
        where, start, stop = span(entry, FILE_BYTES)
        classes = frozenset({DIVERGENCE, MISSING, EXTRA, REORDERED})
        return Experiment(
            self._image(rng),
            [Expected(odd, HISTORIES, classes, where, entry.index, start, stop)],
            also=rf"{odd} .*",
        )

    def _end_lost(self, rng: random.Random, case: Case) -> Experiment:
        """A node claims to have applied the marker, but its log reads as zeros from an earlier
        entry on."""
        files, entry, name = self._experiment(rng).image, self._entry(case, rng), rng.choice(NODES)
        for path in [path for path in files if path.startswith(f"{name}/g1/dledger-{name}/data/")]:
            keep = min(max(entry.pos - int(path[-20:]), 0), FILE_BYTES)
            files[path] = files[path][:keep].ljust(FILE_BYTES, b"\0")
        wanted = Expected(
            name,
            r"marker\.held|mark\.end|file\.missing|entry\..*|blank\.missing",
            frozenset({MISSING, ROT}),
        )
        return Experiment(files, [wanted], also=rf"{name} .*")
