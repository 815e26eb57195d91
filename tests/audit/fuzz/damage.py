"""The kinds of damage to the bytes of a data directory, and the findings that an audit must report
for each.

Each row of the table defines the spots for a kind of damage, the damage, and the class of the
required finding. This module runs no audit. A kind returns its changes of an image: new bytes for a
path, or None for a removed file.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.audit.fuzz.anatomy import Anatomy, Spot
from tests.audit.fuzz.clusters import Image

Changes = dict[str, bytes | None]
ROT, DERIVED, MISSING, EXTRA, OPEN = "bit-rot", "wrong-derived", "missing", "extra", "undecidable"
DIVERGENCE, REORDERED = "divergence", "reordered"
SECTOR, PAGE = 512, 4096
Scramble = Callable[[random.Random, bytes, int, int], bytes | None]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one file of a replica: a finding must name the replica and the file, touch these
    bytes, and have one of these classes. `mild`: a finding is not required, because docs/format.md
    calls the bytes a hint or meaningless."""

    node: str
    path: str
    start: int
    stop: int
    classes: frozenset[str]
    mild: bool = False
    rules: str = ""
    """A pattern: findings of these rules on this replica also count, wherever they point."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of damage. `fits`: whether it applies to a spot."""

    name: str
    fits: Callable[[str], bool]
    act: Callable[[random.Random, Image, Anatomy, Spot], tuple[Changes, list[Mutation]] | None]


# ----------------------------------------------------------------------------------------------------------- bytes of a spot


def _flip_bit(rng: random.Random, data: bytes, start: int, stop: int) -> bytes:
    at = rng.randrange(start, stop)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _flip_byte(rng: random.Random, data: bytes, start: int, stop: int) -> bytes:
    at = rng.randrange(start, stop)
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


def _fill(byte: bytes) -> Scramble:
    return lambda rng, data, start, stop: data[:start] + byte * (stop - start) + data[stop:]


def _garbage(rng: random.Random, data: bytes, start: int, stop: int) -> bytes:
    """Overwrite up to 300 bytes from a random byte of the spot on."""
    at = rng.randrange(start, stop)
    end = min(len(data), at + rng.randrange(1, 300))
    return data[:at] + rng.randbytes(end - at) + data[end:]


def _stale_sector(rng: random.Random, data: bytes, start: int, stop: int) -> bytes:
    """The sector reads as if it was never written."""
    at = rng.randrange(start, stop) // SECTOR * SECTOR
    end = min(len(data), at + SECTOR)
    return data[:at] + bytes(end - at) + data[end:]


def _misdirected(rng: random.Random, data: bytes, start: int, stop: int) -> bytes:
    """The sector contains the bytes of another place of the file."""
    at = rng.randrange(start, stop) // SECTOR * SECTOR
    other = rng.randrange(0, max(1, len(data) // SECTOR)) * SECTOR
    end = min(len(data), at + SECTOR)
    return data[:at] + data[other : other + end - at].ljust(end - at, b"\0") + data[end:]


def _lost_page(rng: random.Random, data: bytes, start: int, stop: int) -> bytes:
    at = rng.randrange(start, stop) // PAGE * PAGE
    end = min(len(data), at + PAGE)
    return data[:at] + bytes(end - at) + data[end:]


SCRAMBLES: dict[str, Scramble] = {
    "flipped bit": _flip_bit,
    "flipped byte": _flip_byte,
    "zeroed": _fill(b"\0"),
    "all ones": _fill(b"\xff"),
    "garbage": _garbage,
    "stale sector": _stale_sector,
    "misdirected sector": _misdirected,
    "lost page": _lost_page,
}


def _scrambles(name: str) -> Kind:
    scramble = SCRAMBLES[name]

    def act(
        rng: random.Random, image: Image, one: Anatomy, spot: Spot
    ) -> tuple[Changes, list[Mutation]] | None:
        before = image[spot.path]
        after = scramble(rng, before, spot.start, spot.stop)
        if after is None or after == before:
            return None
        places = [at for at in range(len(before)) if before[at] != after[at]]
        return {spot.path: after}, [_wound(one, spot, places, before, after)]

    return Kind(name, lambda kind: not kind.endswith(" file"), act)


def _wound(one: Anatomy, spot: Spot, places: list[int], before: bytes, after: bytes) -> Mutation:
    start, stop = places[0], places[-1] + 1
    mild = all(means_nothing(one, spot.path, at, before, after) for at in places)
    return Mutation(
        one.node, spot.path, start, stop, classes_of(one, spot.path, places, after), mild
    )


def classes_of(one: Anatomy, path: str, places: list[int], after: bytes) -> frozenset[str]:
    """The possible classes of a finding about these changed bytes."""
    if "/data/" in path:
        # After its last bytes, or where it reads as zero, a log looks as if it had lost entries.
        last = one.entries[-1]
        gone = (
            not any(after[places[0] : min(places[0] + 48, places[-1])])
            or bytes(200) in after[places[0] : places[-1] + 1]
        )
        ends = path == last.path and any(last.at <= at < last.at + last.size for at in places)
        return frozenset({ROT, OPEN, *({MISSING} if gone or ends else ())})
    if path.startswith(
        (f"{one.root}/index/", f"{one.root}/state/bloom/", f"{one.root}/state/keyindex")
    ):
        return frozenset({DERIVED, ROT})
    if path.endswith(("hardstate", "syncedmark")):
        # A slot of zeros looks as if it was never written; then the other slot counts.
        return frozenset({ROT, MISSING, DIVERGENCE})
    return frozenset(
        {DERIVED if "/consumequeue/" in path or path.startswith(f"{one.log}/index/") else ROT}
    )


def means_nothing(one: Anatomy, path: str, at: int, before: bytes, after: bytes) -> bool:
    """Whether docs/format.md calls this byte meaningless: the digits of the log checkpoint,
    timestamps of the store checkpoint, units below a trim."""
    if path == f"{one.log}/checkpoint":
        return before[at : at + 1].isdigit() and after[at : at + 1].isdigit()
    if path == f"{one.root}/checkpoint":
        return at < 24
    if "/index/" in path and path.startswith(one.log):
        return int(path[-20:]) + at < one.entries[0].index * 32
    if "/consumequeue/" in path:
        first = next((spot for spot in one.spots["queue position"] if spot.path == path), None)
        return first is not None and at < first.start
    return False


# ---------------------------------------------------------------------------------------------------------------- whole files

SMALL = r"snapshot|older snapshot|identity|node|peers|boots|begin"
"""Small files: a finding covers the whole file."""
FILES = rf".* file|{SMALL}"


def _of_file(
    name: str, change: Callable[[random.Random, bytes], bytes | None], fits: str = FILES
) -> Kind:
    def act(
        rng: random.Random, image: Image, one: Anatomy, spot: Spot
    ) -> tuple[Changes, list[Mutation]] | None:
        before = image[spot.path]
        after = change(rng, before)
        if after == before:
            return None
        plain = re.fullmatch(SMALL, spot.kind) is not None
        start = 0 if after is None or plain else min(len(before), len(after))
        stop = max(len(before), 0 if after is None else len(after))
        classes = _file_classes(spot.kind, gone=after is None)
        return {spot.path: after}, [
            Mutation(one.node, spot.path, start, stop, classes, _spare(one, spot))
        ]

    return Kind(name, lambda kind: re.fullmatch(fits, kind) is not None, act)


def _file_classes(kind: str, *, gone: bool) -> frozenset[str]:
    if kind in ("index file", "queue file", "key file"):
        return frozenset({DERIVED, MISSING} if gone else {DERIVED, ROT})
    return frozenset({MISSING} if gone else {ROT, MISSING})


def _spare(one: Anatomy, spot: Spot) -> bool:
    """Whether the file may be missing: preallocated log files, hints, and files that a start
    creates again."""
    if spot.kind == "log file":
        return spot.path > one.end[0]
    if spot.kind in ("index file", "queue file"):
        used = [
            other
            for other in one.spots
            if other.startswith(spot.kind.split()[0]) and not other.endswith((" file", " tail"))
        ]
        return not any(s.path == spot.path for kind in used for s in one.spots[kind])
    if spot.kind == "snapshot":
        # Then the previous snapshot counts, or the log is complete.
        return True
    return spot.kind in ("older snapshot", "peers", "boots")


def _next_name(path: str, size: int) -> str:
    head, _, number = path.rpartition("/")
    return f"{head}/{int(number) + size:020d}"


def _misnamed(
    rng: random.Random, image: Image, one: Anatomy, spot: Spot
) -> tuple[Changes, list[Mutation]] | None:
    """Rename a file to an invalid name."""
    path = _next_name(spot.path, 1)
    gone = Mutation(
        one.node,
        spot.path,
        0,
        len(image[spot.path]),
        _file_classes(spot.kind, gone=True),
        _spare(one, spot),
    )
    alien = Mutation(one.node, path, 0, 1, frozenset({EXTRA}))
    return {path: image[spot.path], spot.path: None}, [gone, alien]


def _copied(
    rng: random.Random, image: Image, one: Anatomy, spot: Spot
) -> tuple[Changes, list[Mutation]] | None:
    """Copy the bytes of a file over another file of the same kind."""
    size = len(image[spot.path])
    others = [
        s.path
        for s in one.spots[spot.kind]
        if s.path != spot.path and s.path.rpartition("/")[0] == spot.path.rpartition("/")[0]
    ]
    others = [path for path in others if image[path] != image[spot.path]]
    if not others:
        return None
    target = rng.choice(others)
    before, after = image[target], image[spot.path]
    places = [at for at in range(size) if before[at] != after[at]]
    aim = Spot(spot.kind, target, 0, size)
    return {target: after}, [_wound(one, aim, places, before, after)]


def _swapped(
    rng: random.Random, image: Image, one: Anatomy, spot: Spot
) -> tuple[Changes, list[Mutation]] | None:
    """Swap the names of two files of the same kind."""
    found = _copied(rng, image, one, spot)
    if found is None:
        return None
    (target,) = found[0]
    back, size = image[target], len(image[target])
    places = [at for at in range(size) if back[at] != image[spot.path][at]]
    mutations = [
        *found[1],
        _wound(one, Spot(spot.kind, spot.path, 0, size), places, image[spot.path], back),
    ]
    return {target: image[spot.path], spot.path: back}, mutations


def _foreign(
    rng: random.Random, image: Image, one: Anatomy, spot: Spot
) -> tuple[Changes, list[Mutation]] | None:
    """Replace a file by that of another replica."""
    others = sorted({path.partition("/")[0] for path in image} - {one.node})
    for other in rng.sample(others, len(others)):
        path = spot.path.replace(one.node, other)
        if path in image and image[path] != image[spot.path]:
            return {spot.path: image[path]}, [
                Mutation(
                    one.node, spot.path, 0, len(image[path]), frozenset({DIVERGENCE, EXTRA, ROT})
                )
            ]
    return None


FILE_KINDS = (
    _of_file("removed", lambda rng, data: None),
    _of_file("emptied", lambda rng, data: b""),
    _of_file("halved", lambda rng, data: data[: len(data) // 2]),
    _of_file("a byte short", lambda rng, data: data[:-1]),
    _of_file(
        "a page short", lambda rng, data: data[: max(0, (len(data) - 1) // PAGE * PAGE)], r".* file"
    ),
    _of_file("grown by zeros", lambda rng, data: data + bytes(rng.randrange(1, 5000))),
    _of_file("grown by garbage", lambda rng, data: data + rng.randbytes(rng.randrange(1, 5000))),
    Kind("misnamed", lambda kind: kind in ("log file", "index file", "queue file"), _misnamed),
    Kind("copied over", lambda kind: kind in ("log file", "index file", "queue file"), _copied),
    Kind("swapped", lambda kind: kind in ("log file", "index file", "queue file"), _swapped),
    Kind("another replica's", lambda kind: kind in ("identity", "node", "peers"), _foreign),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (*map(_scrambles, SCRAMBLES), *FILE_KINDS)}
