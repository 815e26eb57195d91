"""Every case of the exhaustive run: which bytes of which file of one replica are changed, and how
consistent the change is made.

A case is a line of text, from which it can be made again. Which levels of consistency there are for
a byte depends on what the byte is; a level that changes nothing more is no case. Nothing is audited
here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations, groupby, islice

from bench.audit_scan import NODES
from tests.audit.exhaust.consistent import (
    LEVELS,
    Files,
    bloom_crc,
    packed_texts,
    resealed,
    retained,
    row_at,
    seal_records,
    sealed,
    slot_crc,
    slot_size,
    with_packed,
)
from tests.audit.exhaust.ground import AGREEMENT, DEEP, WHOLE, Changes
from tests.audit.fuzz.anatomy import PAGE, Anatomy, anatomies
from tests.audit.fuzz.clusters import Image

FLIPS = (0x01, 0xFF)
STRIDE = 16
"""One byte in so many is tried with subsets of levels."""
QUARTER = 4
"""One in so many of the subsets is tried at one of these bytes, the others at the next ones: each
comes in many fields of each kind."""
TURNS = 16
"""So many bytes of one field of an entry share out the levels among themselves: each level comes at
least once in each field."""
ALONG = 16
"""Of what `--deep` reads as the plain audit does one case in so many is tried again."""
ZERO_STRIDE = 64
SWAPS = (8, 64, 512)
"""Lengths of the ranges that are exchanged."""
ALONE: tuple[tuple[str, ...], ...] = ((),)


@dataclass(frozen=True, slots=True)
class Case:
    """One damage. `kind`: `flip`, `root`, `packed`, `swap`, `exchange`, `peer`, `old`, `gone`,
    `short`, `grown`. `value`: the bits of a flip, the place of the other range and its length,
    another path, or which version."""

    cluster: str
    kind: str
    path: str
    at: int = 0
    value: str = ""
    levels: tuple[str, ...] = ()
    mode: str = WHOLE

    def __str__(self) -> str:
        return " ".join(
            (
                self.cluster,
                self.mode,
                self.kind,
                self.path,
                str(self.at),
                self.value or "-",
                "+".join(self.levels) or "-",
            )
        )

    @classmethod
    def of(cls, text: str) -> Case:
        """What `str` gave."""
        cluster, mode, kind, path, at, value, levels = text.split(" ")
        return cls(
            cluster,
            kind,
            path,
            int(at),
            value.replace("-", "", 1) if value == "-" else value,
            _levels(levels),
            mode,
        )

    @property
    def node(self) -> str:
        return self.path.partition("/")[0]


def _levels(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split("+"))


@dataclass(eq=False)
class Atlas:
    """What every byte of an image is, and the changes of every case. `versions`: the same cluster
    at earlier times."""

    cluster: str
    image: Image
    versions: Sequence[Image] = ()

    @cached_property
    def replicas(self) -> dict[str, Anatomy]:
        """By the folder of the broker group."""
        return {one.root: one for one in anatomies(self.image)}

    @cached_property
    def _labels(self) -> dict[str, list[str]]:
        found = {path: [""] * len(data) for path, data in self.image.items()}
        for one in self.replicas.values():
            for kind, spots in one.spots.items():
                for spot in spots:
                    if not kind.endswith(" file") and not spot.path.endswith(".json"):
                        found[spot.path][spot.start : spot.stop] = [kind] * (spot.stop - spot.start)
        for path, data in self.image.items():
            if data.startswith(b'{"'):
                found[path] = _keys_of(data)
        return found

    def label(self, path: str, at: int) -> str:
        """What a byte is: `log record body`, `state/snapshot: chain_crc` …"""
        name = path.split("/", 2)[-1] if path.count("/") > 1 else path.partition("/")[2]
        part = self._labels[path][at] if at < len(self._labels.get(path, ())) else ""
        if name.startswith("dledger-"):
            name = name.partition("/")[2]
        name = "/".join(piece for piece in name.split("/") if not piece.isdigit())
        name = "consumequeue" if name.startswith("consumequeue") else name
        return f"{name}: {part}"

    def label_of(self, case: Case) -> str:
        """What the first byte is that a case changes."""
        return (
            f"{self.label(case.path, 0).partition(':')[0]}: packed"
            if case.kind == "packed"
            else self.label(case.path, case.at)
        )

    def owner(self, path: str) -> Anatomy | None:
        return self.replicas.get("/".join(path.split("/")[:2]))

    # What a case changes

    def changes(self, case: Case) -> Changes | None:
        """None where there is nothing of this kind, or nothing is changed by it."""
        made: Changes | None = getattr(self, f"_{case.kind}")(case)
        return (
            made
            if made and any(self.image.get(path) != data for path, data in made.items())
            else None
        )

    def _flip(self, case: Case) -> Changes | None:
        one, data = self.owner(case.path), bytearray(self.image[case.path])
        data[case.at] ^= int(case.value, 16)
        if one is None:
            text = resealed(data) if case.levels else bytes(data)
            return None if text is None else {case.path: text}
        files = Files(self.image, one)
        files.changed[case.path] = data
        if case.levels and "/data/" in case.path:
            row = row_at(one, case.path, case.at)
            for name in case.levels:
                LEVELS[name](files, row if row is not None else 0)
        elif case.levels and not self._fix(files, case):
            return None
        return files.changes

    def _root(self, case: Case) -> Changes | None:
        """A byte of the tree in a seal record, on every replica, with all that is a function of it:
        only the sealed file contradicts."""
        found: dict[str, bytes | None] = {}
        for node in NODES:
            path = self.on_node(case.path, node)
            one = self.owner(path)
            assert one is not None
            files = Files(self.image, one)
            files.edit(path)[case.at] ^= int(case.value, 16)
            row = row_at(one, path, case.at)
            assert row is not None
            for name in ("record", "body", "chain", "later"):
                LEVELS[name](files, row)
            retained(files)
            for name in ("ends", "noted"):
                LEVELS[name](files, row)
            found |= files.changes
        return found

    @staticmethod
    def _fix(files: Files, case: Case) -> bool:
        path = case.path
        if path.endswith(("syncedmark", "hardstate")):
            size, slot = slot_size(path), case.at - case.at % PAGE
            if "both" in case.levels:
                files.edit(path)[(case.at + PAGE) % (2 * PAGE)] ^= int(case.value, 16)
                slot_crc(files, path, (slot + PAGE) % (2 * PAGE), size)
            slot_crc(files, path, slot, size)
        elif "/bloom/" in path:
            bloom_crc(files, path)
        else:
            text = resealed(files[path])
            if text is None:
                return False
            files.replace(path, text)
        return True

    def _packed(self, case: Case) -> Changes | None:
        """A byte of a packed column of a snapshot, packed again, with the right checksum."""
        value = json.loads(self.image[case.path])
        number, mask = case.value.split("^")
        where, raw = list(packed_texts(value))[int(number)]
        data = bytearray(raw)
        data[case.at] ^= int(mask, 16)
        return {case.path: sealed(with_packed(value, where, bytes(data)))}

    def _swap(self, case: Case) -> Changes | None:
        """Two ranges of a file are exchanged."""
        other, length = map(int, case.value.split("x"))
        data = bytearray(self.image[case.path])
        here, there = data[case.at : case.at + length], data[other : other + length]
        data[case.at : case.at + length], data[other : other + length] = there, here
        return {case.path: bytes(data)}

    def _exchange(self, case: Case) -> Changes | None:
        """Two files have each other's names."""
        return {case.path: self.image[case.value], case.value: self.image[case.path]}

    def _peer(self, case: Case) -> Changes | None:
        """The same file of another node."""
        return {case.path: self.image.get(self.on_node(case.path, case.value))}

    @staticmethod
    def on_node(path: str, node: str) -> str:
        """The path of the same file on another node."""
        own = path.partition("/")[0]
        return path.replace(f"{own}/", f"{node}/", 1).replace(f"dledger-{own}/", f"dledger-{node}/")

    def _old(self, case: Case) -> Changes | None:
        """The file as it was earlier."""
        return {case.path: self.versions[int(case.value)].get(case.path)}

    def _gone(self, case: Case) -> Changes | None:
        return {case.path: None}

    def _short(self, case: Case) -> Changes | None:
        return {case.path: self.image[case.path][: case.at]}

    def _grown(self, case: Case) -> Changes | None:
        return {case.path: self.image[case.path] + bytes.fromhex(case.value)}

    # Which cases there are

    def cases(self, mode: str = WHOLE) -> Iterator[Case]:
        """All of them."""
        for path in sorted(self.image):
            for at in range(len(self.image[path])):
                yield from self.of_byte(path, at, mode)
            yield from self.of_file(path, mode)

    def sample(self, rng: random.Random, mode: str = WHOLE) -> Iterator[Case]:
        """Some, without end: of a kind of place one after the other, of a file as a whole every now
        and then."""
        places: dict[str, list[tuple[str, int]]] = {}
        for path in sorted(self.image):
            for at in range(len(self.image[path])):
                places.setdefault(self.label(path, at), []).append((path, at))
        while True:
            for label in sorted(places):
                path, at = rng.choice(places[label])
                found = (
                    list(self.of_file(path, mode))
                    if rng.random() < 0.2
                    else self.of_byte(path, at, mode)
                )
                if found:
                    yield rng.choice(found)

    def of_byte(self, path: str, at: int, mode: str = WHOLE) -> list[Case]:
        """Each replica's turn comes by the place of the byte and the number of the level."""
        turn, _data = NODES.index(path.partition("/")[0]), self.image[path]
        if self._is_inner_zero(path, at):
            return []
        case = Case(self.cluster, "flip", path, at, mode=mode)
        found = [(mask, levels) for mask in FLIPS for levels in self._levels(path, at, mask, mode)]
        cases = [replace(case, value=f"{mask:02x}", levels=levels) for mask, levels in found]
        if "/state/snapshot" in path and at < len(columns := self._columns[path]):
            cases += [
                replace(case, kind="packed", at=place, value=f"{at}^01")
                for place in range(len(columns[at]))
            ]
        if mode == DEEP and at in self.trees.get(path, ()):
            cases.append(replace(case, kind="root", value=f"{FLIPS[0]:02x}"))
        if mode == DEEP and self._reads_alike(path, at):
            return cases[:1] if at % (ALONG * len(NODES)) == ALONG * turn else []
        return [case for number, case in enumerate(cases) if (at + number) % len(NODES) == turn]

    def _reads_alike(self, path: str, at: int = 0) -> bool:
        """Whether `--deep` reads this byte as the plain audit does: it adds digests of log files,
        held against seals and noted ones."""
        return (
            "/data/" not in path
            and not path.endswith("/digests")
            and not self.label(path, at).endswith(": retained")
        )

    @cached_property
    def trees(self) -> dict[str, set[int]]:
        """By path of a log file, the bytes of the trees in seal records. A record of a file that
        was trimmed is left out: nothing else in a cluster says what its root was."""
        found: dict[str, set[int]] = {}
        for one in self.replicas.values():
            for _row, entry, seal, _now in seal_records(Files(self.image, one)):
                if "tree" in seal and f"{one.log}/data/{seal['base']:020d}" in self.image:
                    raw = self.image[entry.path][entry.at : entry.at + entry.size]
                    start = raw.index(b'"tree":')
                    found.setdefault(entry.path, set()).update(
                        range(entry.at + start, entry.at + raw.index(b"}", start) + 1)
                    )
        return found

    @cached_property
    def _columns(self) -> dict[str, list[bytes]]:
        """By path of a snapshot."""
        snapshots = {
            path: json.loads(data) for path, data in self.image.items() if "/state/snapshot" in path
        }
        return {path: [raw for _, raw in packed_texts(value)] for path, value in snapshots.items()}

    def _is_inner_zero(self, path: str, at: int) -> bool:
        """Inside of a long run of zeros only its edges, those of sectors and pages, and one byte in
        so many are tried."""
        data = self.image[path]
        beside = data[max(0, at - ZERO_STRIDE) : at + ZERO_STRIDE]
        return (
            not any(beside)
            and at % ZERO_STRIDE not in (0, ZERO_STRIDE - 1)
            and ZERO_STRIDE <= at < len(data) - ZERO_STRIDE
        )

    def _levels(self, path: str, at: int, mask: int, mode: str) -> Sequence[tuple[str, ...]]:
        usual = mask == FLIPS[at % len(FLIPS)]
        if "/data/" in path:
            start, stop = self.field_at(path, at)
            runs = self.log_levels(path, at, full=mask == FLIPS[0] and mode == WHOLE, every=False)
            turns = min(TURNS, stop - start)
            alone = runs[:1] if usual or mask == FLIPS[0] or stop - start < len(FLIPS) else []
            found = [*alone, *runs[1:][(at - start) % turns :: turns]]
            if at % STRIDE == 0:
                subsets = self.log_levels(path, at, full=False, every=True)[
                    at // STRIDE % QUARTER :: QUARTER
                ]
                found += [levels for levels in subsets if levels not in found]
            return (
                found
                if mode == WHOLE
                else found[:: 2 if mode == AGREEMENT else 3]
                if usual or at % STRIDE == 0
                else []
            )
        if path.endswith(("syncedmark", "hardstate")):
            return (
                (*ALONE, ("crc",), ("crc", "both"))
                if at % PAGE < slot_size(path) and any(self.image[path][at - at % PAGE :][:4])
                else ALONE
            )
        if "/bloom/" in path or self.image[path].startswith(b'{"'):
            # With its checksum wrong a file says nothing, whichever byte and bits are other ones.
            return (*ALONE, ("crc",)) if usual and at % 8 < len(FLIPS) else (("crc",),)
        return ALONE

    def field_at(self, path: str, at: int) -> tuple[int, int]:
        """Where the field that a byte of a log file belongs to begins and ends."""
        return self._fields[path][at]

    @cached_property
    def _fields(self) -> dict[str, list[tuple[int, int]]]:
        """By path of a log file, for every byte, where its field begins and ends."""
        found = {}
        for path in self.image:
            if "/data/" in path:
                runs = [len(list(run)) for _, run in groupby(self._labels[path])]
                ends = list(accumulate(runs))
                found[path] = [
                    (end - run, end)
                    for run, end in zip(runs, ends, strict=True)
                    for _ in range(run)
                ]
        return found

    def log_levels(self, path: str, at: int, *, full: bool, every: bool) -> list[tuple[str, ...]]:
        """`full`: every run of levels that follow each other; else only none and all of the CRCs.
        `every`: every subset of them."""
        one = self.owner(path)
        assert one is not None
        row, label = row_at(one, path, at), self._labels[path][at]
        if row is None:
            return [(), ("noted",)]
        inside = at - one.entries[row].at
        told = [
            *(["record"] if label == "record body" else []),
            *(["body"] if inside >= 48 else []),
            *(["chain"] if not 36 <= inside < 40 and not 44 <= inside < 48 else []),
            *(["later"] if not 44 <= inside < 48 else []),
            *(
                ["units"]
                if inside < 32
                or 48 <= inside < 52
                or 76 <= inside < 84
                or label == "record properties"
                else []
            ),
            *("ends", "noted", "seals"),
        ]
        if not full and not every:
            return [(), tuple(told[: told.index("later") + 1] if "later" in told else told[:1])]
        runs = {
            tuple(told[first:stop])
            for first in range(len(told))
            for stop in range(first, len(told) + 1)
        }
        if every:
            runs |= {subset for count in range(len(told)) for subset in combinations(told, count)}
        return sorted(
            (levels for levels in runs if _matters(levels, inside)),
            key=lambda levels: (len(levels), levels),
        )

    def of_file(self, path: str, mode: str = WHOLE) -> Iterator[Case]:
        """The file as a whole, and its ranges."""
        cases = self._of_file(path, mode)
        yield from (
            islice(cases, NODES.index(path.partition("/")[0]), None, ALONG)
            if mode == DEEP and self._reads_alike(path)
            else cases
        )

    def _of_file(self, path: str, mode: str) -> Iterator[Case]:
        data = self.image[path]
        case = Case(self.cluster, "gone", path, mode=mode)
        yield case
        yield from (
            replace(case, kind="short", at=at)
            for at in sorted({0, 1, len(data) // 2, len(data) - 1})
            if at < len(data)
        )
        yield from (replace(case, kind="grown", value=more) for more in ("00", "01", "00" * 600))
        own = path.partition("/")[0]
        yield from (replace(case, kind="peer", value=node) for node in NODES if node != own)
        yield from (
            replace(case, kind="old", value=str(number)) for number in range(len(self.versions))
        )
        folder = path.rpartition("/")[0]
        beside = [
            other
            for other in sorted(self.image)
            if other > path and other.startswith(f"{own}/") and _alike(path, other)
        ]
        yield from (
            replace(case, kind="exchange", value=other)
            for other in beside
            if other.startswith(folder) or "consumequeue" in path
        )
        for length in SWAPS:
            places = range(0, len(data) - length + 1, length)
            for at, other in (
                (first, first + apart * length) for first in places for apart in (1, 5)
            ):
                # As with bytes, each range's turn comes on one replica.
                if other + length <= len(data) and (at // length) % len(NODES) == NODES.index(own):
                    yield replace(case, kind="swap", at=at, value=f"{other}x{length}")


def _matters(levels: tuple[str, ...], inside: int) -> bool:
    """Whether every one of these levels has something to make right: without a chain that is
    another one, later entries and what repeats the chain are right already."""
    moved = 36 <= inside < 40 or "chain" in levels
    if "later" in levels and not moved:
        return False
    return not ({"ends", "seals"} & {*levels} and "later" not in levels)


def _alike(path: str, other: str) -> bool:
    def kind(each: str) -> str:
        return "/".join(piece for piece in each.split("/")[1:] if not piece.isdigit())

    both = {path.rpartition("/")[2], other.rpartition("/")[2]}
    return (
        kind(path) == kind(other)
        or both == {"snapshot", "snapshot.previous"}
        or both == {"syncedmark", "hardstate"}
    )


def _keys_of(data: bytes) -> list[str]:
    """The top-level key that each byte of a JSON text belongs to."""
    found, depth, quoted, key, start, is_key = [""] * len(data), 0, False, "", 0, True
    for at, byte in enumerate(data):
        char = chr(byte)
        if char == '"' and data[at - 1 : at] != b"\\":
            quoted = not quoted
            if depth == 1 and is_key:
                start, key = (at + 1, key) if quoted else (start, data[start:at].decode())
                if not quoted:
                    found[start - 1 : at] = [key] * (at - start + 1)
        elif not quoted:
            depth += (char in "{[") - (char in "}]")
            is_key = (depth == 1 and char == ",") or (is_key and char != ":")
        found[at] = key
    return found
