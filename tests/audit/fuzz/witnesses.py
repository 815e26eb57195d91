"""The suite of backups as audit sources: a backup does not count for a majority, and errors in a
backup are reported only for it.

A backup may be forged together with its manifest. Backups of any age and any replica, several
backups, and lagging replicas are all valid. The module has its own implementation of docs/format.md
§15.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import NODES, history
from tests.audit.fuzz.case import Case
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.damage import DIVERGENCE, EXTRA, MISSING, REORDERED, ROT
from tests.audit.fuzz.scenario import (
    SOUND,
    WHOLE,
    Expected,
    Experiment,
    MakeExperiment,
    Scenario,
    image_of,
    of_place,
    span,
)
from tests.audit.log_writer import CLUSTER, Message, Placed, Writer, sealed

COUNT, FILE_BYTES = 80, 8192
MANIFEST = "backup.json"
HISTORIES = r"replica\.(divergence|missing|extra|reordered)"


def backup_of(node: str, messages: Sequence[Message]) -> Image:
    """The result of `ledgermq backup` for a replica: log, index and small files, no other derived
    files, and the manifest."""

    def make(base: Path) -> None:
        writer = Writer(base / node)
        for message in messages:
            writer.append(message)
        writer.finish(snapshot=False)

    plain = {
        path.partition("/")[2]: data
        for path, data in image_of(make).items()
        if "/consumequeue/" not in path
    }
    return with_manifest(node, plain)


def with_manifest(node: str, files: Image) -> Image:
    """The files with a matching manifest."""
    told = {}
    for path, data in sorted(files.items()):
        if path != MANIFEST:
            told[path] = {
                "bytes": len(data),
                "used": len(data.rstrip(b"\0")),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
    value = {
        "v": 1,
        "program": "fuzzer",
        "made_ms": 1,
        "cluster_id": CLUSTER,
        "node": node,
        "groups": {"g1": {}},
        "files": told,
    }
    return {**files, MANIFEST: sealed(value)}


class Backups(Scenario):
    """Three replicas and backups."""

    def __init__(self, base: Path, seed: int = 6) -> None:
        super().__init__(base)
        self.messages = history(seed, COUNT)
        self.plain = image_of(self._write)
        probe = Writer(Path("/probe/n1"))
        self.entries = [probe.append(message) for message in self.messages]
        self.experiments = {
            "backup: byte of a file": (self._file(_flipped, r"backup\.file", ROT), (1,)),
            "backup: file cut off": (
                self._file(
                    lambda rng, data: data[: rng.randrange(len(data))], r"backup\.file", ROT
                ),
                (1,),
            ),
            "backup: file grown": (
                self._file(
                    lambda rng, data: data + bytes(rng.randrange(1, 99)), r"backup\.file", ROT
                ),
                (1,),
            ),
            "backup: file removed": (
                self._file(lambda rng, data: None, r"backup\.missing", MISSING),
                (1,),
            ),
            "backup: byte of the manifest": (self._manifest, (1,)),
            "backup: another history": (self._history, (1,)),
            "backup: damaged before it was made": (self._rot, (1,)),
            "backup: log file that the manifest does not miss": (self._left_out, (1,)),
            "backup: damaged replica beside it": (self._beside, (1, 2)),
        }
        self.sound = {
            "of any age": lambda rng, case: self._sound(rng, 1, WHOLE),
            "several": lambda rng, case: self._sound(rng, rng.choice((2, 3)), WHOLE),
            "beside one that lags": self._lagging,
        }

    def _write(self, base: Path, ends: dict[str, int] | None = None) -> None:
        for name in NODES:
            writer = Writer(base / name)
            for message in self.messages[: len(self.messages) - (ends or {}).get(name, 0)]:
                writer.append(message)
            writer.finish()

    def audit(self) -> Audit:
        return audit(
            [
                str(self.base / name)
                for name in sorted({path.partition("/")[0] for path in self.image})
            ]
        )

    def _experiment(
        self, node: str, files: Image, expected: Sequence[Expected], also: str = ""
    ) -> Experiment:
        return Experiment(self._with({node: files}), expected, also=also)

    def _with(self, backups: dict[str, Image], replicas: Image | None = None) -> Image:
        below = {
            f"backup-{node}/{path}": data
            for node, files in backups.items()
            for path, data in files.items()
        }
        return {**(replicas or self.plain), **below}

    def _some(self, rng: random.Random) -> tuple[str, int, Image]:
        """A backup of a random replica: its node, its number of entries, its files."""
        node, count = rng.choice(NODES), rng.randrange(COUNT // 2, len(self.messages) + 1)
        return node, count, backup_of(node, self.messages[:count])

    def _sound(
        self,
        rng: random.Random,
        count: int,
        verdicts: frozenset[str],
        replicas: Image | None = None,
    ) -> Experiment:
        ages = {
            node: backup_of(node, self.messages[: rng.randrange(3, len(self.messages) + 1)])
            for node in rng.sample(NODES, count)
        }
        return Experiment(self._with(ages, replicas), verdicts=verdicts)

    def _lagging(self, rng: random.Random, case: Case) -> Experiment:
        ends = {rng.choice(NODES): rng.randrange(1, COUNT)}
        return self._sound(rng, 1, SOUND, image_of(lambda base: self._write(base, ends)))

    def _file(
        self, change: Callable[[random.Random, bytes], bytes | None], rules: str, klass: str
    ) -> MakeExperiment:
        def act(rng: random.Random, case: Case) -> Experiment:
            node, _, files = self._some(rng)
            path = of_place(case.place, sorted(files.keys() - {MANIFEST}), rng)
            after = change(rng, files.pop(path))
            files |= {} if after is None else {path: after}
            wanted = Expected(f"{node}:backup", rules, frozenset({klass}), path)
            return self._experiment(node, files, [wanted], also=rf"{node}:backup .*")

        return act

    def _manifest(self, rng: random.Random, case: Case) -> Experiment:
        node, _, files = self._some(rng)
        files[MANIFEST] = _flipped(rng, files[MANIFEST])
        return self._experiment(
            node, files, [Expected(f"{node}:backup", r"backup\.json", frozenset({ROT}), MANIFEST)]
        )

    def _entry(self, case: Case, rng: random.Random, count: int) -> Placed:
        plain = [
            entry
            for entry in self.entries[: count - 2]
            if not entry.message.topic.startswith("rmq_sys_") and entry.message.body
        ]
        return of_place(case.place, plain, rng)

    def _history(self, rng: random.Random, case: Case) -> Experiment:
        """A consistent backup of another history, with a matching manifest."""
        node, count, _ = self._some(rng)
        entry = self._entry(case, rng, count)
        other = list(self.messages[:count])
        body = bytes([entry.message.body[0] ^ 1]) + entry.message.body[1:]
        other[entry.index] = replace(entry.message, body=body)
        where, start, stop = span(entry, FILE_BYTES)
        classes = frozenset({DIVERGENCE, MISSING, EXTRA, REORDERED})
        wanted = Expected(f"{node}:backup", HISTORIES, classes, where, entry.index, start, stop)
        return self._experiment(node, backup_of(node, other), [wanted], also=rf"{node}:backup .*")

    def _rot(self, rng: random.Random, case: Case) -> Experiment:
        """The replica was damaged before the backup, so the manifest matches the damaged bytes."""
        node, count, files = self._some(rng)
        entry = self._entry(case, rng, count)
        where, start, _ = span(entry, FILE_BYTES)
        path, at = f"g1/dledger-{node}/{where}", start + 48 + rng.randrange(entry.size - 48)
        files[path] = files[path][:at] + bytes([files[path][at] ^ 8]) + files[path][at + 1 :]
        wanted = Expected(
            f"{node}:backup", r"entry\..*", frozenset({ROT}), where, entry.index, at, at + 1
        )
        return self._experiment(node, with_manifest(node, files), [wanted])

    def _left_out(self, rng: random.Random, case: Case) -> Experiment:
        """A log file is missing in the backup and in its manifest."""
        node, count, files = self._some(rng)
        bases = sorted({entry.pos - entry.pos % FILE_BYTES for entry in self.entries[:count]})
        base = of_place(case.place, bases, rng)
        # Missing bytes after the last entry are not reported.
        gone = (
            [path for path in files if "/data/" in path and int(path[-20:]) >= base]
            if base == bases[-1]
            else []
        )
        gone = gone or [f"g1/dledger-{node}/data/{base:020d}"]
        for path in gone:
            del files[path]
        wanted = Expected(f"{node}:backup", r"file\.missing|mark\.end", frozenset({MISSING}))
        return self._experiment(
            node, with_manifest(node, files), [wanted], also=rf"{node}:backup .*"
        )

    def _beside(self, rng: random.Random, case: Case) -> Experiment:
        """The backup is correct, and some replicas are damaged."""
        node, _, files = self._some(rng)
        entry = self._entry(case, rng, len(self.messages))
        where, start, _ = span(entry, FILE_BYTES)
        at = start + 48 + rng.randrange(entry.size - 48)
        image, expected = dict(self.plain), []
        for name in rng.sample(NODES, case.replicas):
            path = f"{name}/g1/dledger-{name}/{where}"
            image[path] = image[path][:at] + bytes([image[path][at] ^ 8]) + image[path][at + 1 :]
            expected.append(
                Expected(name, r"entry\..*", frozenset({ROT}), where, entry.index, at, at + 1)
            )
        return Experiment(self._with({node: files}, image), expected)


def _flipped(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]
