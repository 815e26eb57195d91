"""Two suites over logs with sealed files: one reads every byte (`--deep`), the other only the edges
(`--agreement`).

All forgeries have valid checksums: seal records with another digest or other edges, sealed files of
another history (on one replica, the majority, or all), recorded digests; and lost log ends. The
files come from the fuzzer's own writer of docs/format.md.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import NODES, history
from tests.audit.fuzz.case import Case
from tests.audit.fuzz.clusters import Image
from tests.audit.fuzz.damage import DERIVED, DIVERGENCE, EXTRA, MISSING, REORDERED, ROT
from tests.audit.fuzz.scenario import (
    SOUND,
    WHOLE,
    Expected,
    Experiment,
    Scenario,
    image_of,
    of_place,
    span,
)
from tests.audit.log_writer import STORAGE, Message, Placed, Writer, sealed

FILE_BYTES = 8192
INDEX_BYTES = 1024
COUNT = 100
BODY_BYTES = 10
HISTORIES = r"replica\.(divergence|missing|extra|reordered)"
APART = frozenset({DIVERGENCE, MISSING, EXTRA, REORDERED})
Edit = Callable[[list[Message]], list[Message]]


class Truth:
    """A history, its files and their seals on one replica."""

    def __init__(self, seed: int) -> None:
        self.messages = history(seed, COUNT)
        self.writer = Writer(Path("/truth/n1"))
        for message in self.messages:
            self.writer.append(message)
        grouped = groupby(self.writer.entries, lambda entry: entry.pos // FILE_BYTES)
        self.files: list[list[Placed]] = [list(entries) for _, entries in grouped]
        # The contents of the last file are not final.
        self.sealed = list(range(len(self.files) - 1))

    def record(self, file: int, **other: object) -> Message:
        """The seal record of a file; `other`: fields with other values."""
        entries, last = self.files[file], self.writer.entries[-1]
        edges = {"base": file * FILE_BYTES, "first": entries[0].index, "last": entries[-1].index}
        value = {
            **edges,
            "end": entries[-1].pos + entries[-1].size,
            "sha256": digest(self.writer, file),
            "replicas": ["n1", "n2"],
            "v": 1,
        }
        return Message(
            STORAGE,
            json.dumps({**value, **other}, sort_keys=True).encode(),
            tag="seal",
            term=last.term,
            time=last.message.time,
        )

    def records(self, file: int = -1, **other: object) -> list[Message]:
        """All seal records; that of `file` may have other values."""
        return [self.record(each, **(other if each == file else {})) for each in self.sealed]


def digest(writer: Writer, file: int) -> str:
    """The digest that a node computes for a complete file."""
    data = bytes(writer.space[file * FILE_BYTES : (file + 1) * FILE_BYTES])
    return hashlib.sha256(hashlib.sha256(data).digest()).hexdigest()


def cluster(
    truth: Truth,
    records: Sequence[Message],
    edits: dict[str, Edit] | None = None,
    ends: dict[str, int] | None = None,
) -> Image:
    """Three replicas. `edits`: replicas with an edited history. `ends`: replicas that end this many
    entries earlier. Each replica recorded the digests of its complete files."""

    def make(base: Path) -> None:
        for name in NODES:
            messages = [*(edits or {}).get(name, list)(truth.messages), *records]
            writer = Writer(base / name)
            for message in messages[: len(messages) - (ends or {}).get(name, 0)]:
                writer.append(message)
            writer.finish()
            digests = {
                str(file * FILE_BYTES): digest(writer, file)
                for file in range(len(writer.space) // FILE_BYTES)
            }
            note = sealed({"v": 1, "log_id": writer.log_id, "digests": digests})
            (writer.root / "state" / "digests").write_bytes(note)

    return image_of(make)


def altered(at: int, salt: bytes) -> Edit:
    """Replace the message at an entry and adjust everything else."""

    def edit(messages: list[Message]) -> list[Message]:
        one = messages[at]
        return [
            *messages[:at],
            replace(one, body=salt + one.body[len(salt) :]),
            *messages[at + 1 :],
        ]

    return edit


class _Seals(Scenario):
    """The common part of both suites: the true history and the healthy variants."""

    def __init__(self, base: Path, seed: int = 5) -> None:
        super().__init__(base)
        self.truth = Truth(seed)
        self.plain = cluster(self.truth, self.truth.records())
        self.sound = {
            "whole": lambda rng, case: Experiment(self.plain, verdicts=WHOLE),
            "lagging": self._lagging,
            "some sealed": lambda rng, case: Experiment(
                cluster(self.truth, self.truth.records()[: rng.randrange(3)]), verdicts=WHOLE
            ),
        }

    def directories(self) -> list[str]:
        return [str(self.base / name) for name in NODES]

    def _lagging(self, rng: random.Random, case: Case) -> Experiment:
        """One replica ends before the seals, or within a sealed file. (If two did, entries that the
        third recorded as committed would be lost.)"""
        ends = {rng.choice(NODES): rng.randrange(1, COUNT)}
        return Experiment(cluster(self.truth, self.truth.records(), ends=ends), verdicts=SOUND)

    def _place(self, case: Case, rng: random.Random) -> tuple[int, Placed]:
        """A sealed file, and a message of it."""
        file = of_place(case.place, self.truth.sealed, rng)
        plain = [
            entry
            for entry in self.truth.files[file]
            if not entry.message.topic.startswith("rmq_sys_")
        ]
        return file, of_place(
            case.place, [entry for entry in plain if len(entry.message.body) > BODY_BYTES], rng
        )

    def _other_history(
        self, case: Case, rng: random.Random, *, apart: bool = False
    ) -> tuple[Image, list[str], int, Placed]:
        file, entry = self._place(case, rng)
        names = sorted(rng.sample(NODES, case.replicas))
        edits = {
            name: altered(entry.index, b"forged " + (name.encode() if apart else b""))
            for name in names
        }
        return cluster(self.truth, self.truth.records(), edits), names, file, entry


class Seals(_Seals):
    """All bytes are read and compared with the records."""

    def __init__(self, base: Path, seed: int = 5) -> None:
        super().__init__(base, seed)
        self.experiments = {
            "seal: other digest": (self._digest, (3,)),
            "seal: other first entry": (lambda rng, case: self._edge(rng, case, "first"), (3,)),
            "seal: other last entry": (lambda rng, case: self._edge(rng, case, "last"), (3,)),
            "seal: other end": (lambda rng, case: self._edge(rng, case, "end"), (3,)),
            "seal: file of another history": (self._replaced, (1, 2, 3)),
            "seal: byte of a sealed file": (self._rot, (1, 2, 3)),
        }

    def audit(self) -> Audit:
        return audit(self.directories(), deep=True)

    def _digest(self, rng: random.Random, case: Case) -> Experiment:
        """The record is wrong in all logs."""
        file = of_place(case.place, self.truth.sealed, rng)
        return self._recorded(
            file, "seal.digest", frozenset({ROT, DIVERGENCE}), sha256=rng.randbytes(32).hex()
        )

    def _edge(self, rng: random.Random, case: Case, edge: str) -> Experiment:
        file = of_place(case.place, self.truth.sealed, rng)
        entries = self.truth.files[file]
        right = {
            "first": entries[0].index,
            "last": entries[-1].index,
            "end": entries[-1].pos + entries[-1].size,
        }[edge]
        return self._recorded(
            file,
            "seal.record",
            frozenset({DERIVED}),
            **{edge: right + (rng.choice((-1, 1)) if right else 1)},
        )

    def _recorded(
        self, file: int, rule: str, classes: frozenset[str], **other: object
    ) -> Experiment:
        image = cluster(self.truth, self.truth.records(file, **other))
        return Experiment(
            image,
            [Expected(name, rule, classes, f"data/{file * FILE_BYTES:020d}") for name in NODES],
        )

    def _replaced(self, rng: random.Random, case: Case) -> Experiment:
        """Some replicas have another history from a message in a sealed file on. If it is one
        replica, the others show it; if more, only the seal record does."""
        image, names, file, entry = self._other_history(case, rng)
        where, start, stop = span(entry, FILE_BYTES)
        if case.replicas == 1:
            expected = [Expected(names[0], HISTORIES, APART, where, entry.index, start, stop)]
            return Experiment(image, expected, also=rf"{names[0]} .*")
        expected = [
            Expected(
                name, r"seal\.digest", frozenset({DIVERGENCE}), f"data/{file * FILE_BYTES:020d}"
            )
            for name in names
        ]
        return Experiment(image, expected, also=r".* (seal\.digest|replica\..*)")

    def _rot(self, rng: random.Random, case: Case) -> Experiment:
        """The same byte of the same message on several replicas."""
        _, entry = self._place(case, rng)
        where, start, _ = span(entry, FILE_BYTES)
        image, at = dict(self.plain), start + 48 + rng.randrange(entry.size - 48)
        names = sorted(rng.sample(NODES, case.replicas))
        for name in names:
            path = f"{name}/g1/dledger-{name}/{where}"
            data = image[path]
            image[path] = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        classes = frozenset({"undecidable"} if case.replicas == 3 else {ROT})
        # If no replica has the sealed bytes, the extent of the difference is unknown.
        also = r"n\d seal\.digest" if case.replicas == 3 else ""
        return Experiment(
            image,
            [
                Expected(name, r"entry\..*", classes, where, entry.index, at, at + 1)
                for name in names
            ],
            also=also,
        )


class Agreement(_Seals):
    """Only histories, edges of files and recorded digests are read."""

    def __init__(self, base: Path, seed: int = 5) -> None:
        super().__init__(base, seed)
        self.experiments = {
            "agreement: another history": (self._history, (1,)),
            "agreement: file removed": (
                lambda rng, case: self._file(
                    rng, case, lambda data: None, r"file\.missing|index\.unit"
                ),
                (1, 2),
            ),
            "agreement: file cut off": (
                lambda rng, case: self._file(rng, case, lambda data: data[:-512], r"file\.length"),
                (1, 2, 3),
            ),
            "agreement: file grown": (
                lambda rng, case: self._file(
                    rng, case, lambda data: data + bytes(9), r"file\.length"
                ),
                (1, 2, 3),
            ),
            "agreement: noted digest": (self._noted, (1, 2, 3)),
            "agreement: recorded digest": (self._recorded, (3,)),
            "agreement: chain word at the end of a file": (self._word, (1,)),
            "agreement: end of the log lost": (self._end_lost, (1, 2)),
        }

    def audit(self) -> Audit:
        return audit(self.directories(), agreement=True)

    def _history(self, rng: random.Random, case: Case) -> Experiment:
        image, names, _, entry = self._other_history(case, rng)
        where, start, stop = span(entry, FILE_BYTES)
        return Experiment(
            image,
            [Expected(names[0], HISTORIES, APART, where, entry.index, start, stop)],
            also=rf"{names[0]} seal\..*",
        )

    def _file(
        self, rng: random.Random, case: Case, change: Callable[[bytes], bytes | None], rules: str
    ) -> Experiment:
        file = of_place(case.place, self.truth.sealed, rng)
        image, where = dict(self.plain), f"data/{file * FILE_BYTES:020d}"
        names = sorted(rng.sample(NODES, case.replicas))
        for name in names:
            path = f"{name}/g1/dledger-{name}/{where}"
            after = change(image.pop(path))
            image |= {} if after is None else {path: after}
        return Experiment(
            image,
            [Expected(name, rules, frozenset({ROT, MISSING, DERIVED})) for name in names],
            also=rf"({'|'.join(names)}) .*",
        )

    def _noted(self, rng: random.Random, case: Case) -> Experiment:
        file = of_place(case.place, self.truth.sealed, rng)
        image, names = dict(self.plain), sorted(rng.sample(NODES, case.replicas))
        for name in names:
            path = f"{name}/g1/state/digests"
            value = json.loads(image[path])
            del value["crc32c"]
            value["digests"][str(file * FILE_BYTES)] = rng.randbytes(32).hex()
            image[path] = sealed(value)
        where = f"data/{file * FILE_BYTES:020d}"
        # The snapshot lists the sealed files, because the log is not read.
        return Experiment(
            _told(image, self.truth.records()),
            [Expected(n, r"seal\.noted", frozenset({DIVERGENCE}), where) for n in names],
        )

    def _recorded(self, rng: random.Random, case: Case) -> Experiment:
        file = of_place(case.place, self.truth.sealed, rng)
        records = self.truth.records(file, sha256=rng.randbytes(32).hex())
        where = f"data/{file * FILE_BYTES:020d}"
        expected = [
            Expected(name, r"seal\.noted", frozenset({DIVERGENCE}), where) for name in NODES
        ]
        return Experiment(_told(cluster(self.truth, records), records), expected)

    def _word(self, rng: random.Random, case: Case) -> Experiment:
        file = of_place(case.place, self.truth.sealed, rng)
        where, start, _ = span(self.truth.files[file][-1], FILE_BYTES)
        name = rng.choice(NODES)
        image, at = dict(self.plain), start + 36 + rng.randrange(4)
        path = f"{name}/g1/dledger-{name}/{where}"
        image[path] = (
            image[path][:at]
            + bytes([image[path][at] ^ rng.randrange(1, 256)])
            + image[path][at + 1 :]
        )
        index = self.truth.files[file][-1].index
        return Experiment(
            image, [Expected(name, r"entry\.chain.*", frozenset({ROT}), where, index, at, at + 1)]
        )

    def _end_lost(self, rng: random.Random, case: Case) -> Experiment:
        """Log and index read as zeros from an entry on; only the synced mark shows that it
        existed."""
        file = of_place(case.place, [*self.truth.sealed, len(self.truth.files) - 1], rng)
        entry = of_place(case.place, self.truth.files[file][1:], rng)
        image, names = dict(self.plain), sorted(rng.sample(NODES, case.replicas))
        for name in names:
            for folder, start, size in (
                ("data", entry.pos, FILE_BYTES),
                ("index", entry.index * 32, INDEX_BYTES),
            ):
                for path in [
                    path for path in image if path.startswith(f"{name}/g1/dledger-{name}/{folder}/")
                ]:
                    keep = min(max(start - int(path[-20:]), 0), size)
                    image[path] = image[path][:keep].ljust(size, b"\0")
        return Experiment(
            image,
            [
                Expected(name, r"mark\.end", frozenset({MISSING}), index=entry.index)
                for name in names
            ],
        )


def _told(image: Image, records: Sequence[Message]) -> Image:
    """Add the seals to the snapshots."""
    seals = [
        {key: part for key, part in json.loads(record.body).items() if key != "v"}
        for record in records
    ]
    for name in NODES:
        path = f"{name}/g1/state/snapshot"
        value = json.loads(image[path])
        del value["crc32c"]
        image[path] = sealed(
            {**value, "retained": {"begin_index": 0, "begin_pos": 0, "seals": seals}}
        )
    return image
