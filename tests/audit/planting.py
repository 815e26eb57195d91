"""Seeded changes of a snapshot's content: one value, key or row at a time, also inside packed
columns.

Every change leaves a valid file that a faulty node could have written.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

WIDTHS = {
    "delivery": {"o": "<i8", "l": "<i8", "a": "<i4", "k": "<i4"},
    "lapsed": {"k": "<i4", "o": "<i8", "l": "<i8"},
    "transactions": dict.fromkeys("oisrcth", "<i8"),
}
"""The columns by snapshot key and name."""
ENVELOPE = frozenset(
    {"v", "log_id", "applied_index", "applied_term", "applied_end_pos", "chain_crc"}
)
COUNTS = dict.fromkeys(("stored", "fired", "rolled", "recalled", "dropped"), 0)
NOTHING: tuple[Any, ...] = (
    None,
    {},
    {"halves": {}, "ended": {}},
    {"watermark": [0, -1], "slots": [], "recalled": [], "counts": COUNTS},
)
"""Values of keys without content."""
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Planted:
    """A snapshot with a changed value at `place`."""

    place: Place
    what: str
    value: dict[str, Any]

    @property
    def key(self) -> str:
        return str(self.place[0])


def plant(snapshot: dict[str, Any], rng: Random) -> Planted:
    """Change one value, key or row."""
    while True:
        value = json.loads(json.dumps(snapshot))
        places = [
            place
            for place in _places(value)
            if place[0] not in ENVELOPE and not _may_be_missing(value, place)
        ]
        # All keys are equally likely, whatever their sizes.
        key = rng.choice(sorted({place[0] for place in places}, key=str))
        place = rng.choice([place for place in places if place[0] == key])
        holder: Any = value
        for step in place[:-1]:
            holder = holder[step]
        what = _change(holder, place, rng)
        if what and json.dumps(value, sort_keys=True) != json.dumps(snapshot, sort_keys=True):
            return Planted(place, what, value)


def _may_be_missing(value: dict[str, Any], place: Place) -> bool:
    """Whether the place is a key without content, which a snapshot may omit."""
    return len(place) == 1 and value[str(place[0])] in NOTHING


def _places(value: Any, at: Place = ()) -> Iterator[Place]:
    if at:
        yield at
    steps: Any = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, inner in steps:
        yield from _places(inner, (*at, step))


def _change(holder: Any, place: Place, rng: Random) -> str:
    """Change the value of `holder` at the last step of a place. Returns a description of the
    change, or "" if none was possible."""
    step, old = place[-1], holder[place[-1]]
    width = WIDTHS.get(str(place[0]), {}).get(str(step)) if isinstance(old, str) else None
    if width is not None:
        holder[step] = _packed(old, width, rng)
        return "number in a column"
    # The durability is empty if a topic has none of its own.
    ways = [] if old == "" and step == "durability" else ["missing"]
    if isinstance(old, bool):
        ways.append("turned")
    elif isinstance(old, int):
        ways += ["more", "less", "far"]
    elif isinstance(old, str):
        ways += ["longer", "bit"] if place[0] == "ids" else ["longer"]
    elif old is None:
        ways.append("something")
    elif isinstance(old, list):
        ways += ["twice", "turned round"]
    elif isinstance(old, dict):
        ways.append("one more key")
    way = rng.choice(ways) if ways else ""
    if way == "missing":
        del holder[step]
    elif way in ("more", "less", "far"):
        holder[step] = old + {"more": 1, "less": -1, "far": rng.randrange(1 << 40)}[way]
    elif way == "longer":
        holder[step] = old + "AAAA" if place[0] == "ids" else old + "x"
    elif way == "bit":
        raw = bytearray(b64decode(old))
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        holder[step] = b64encode(bytes(raw)).decode()
    elif way == "turned":
        holder[step] = not old
    elif way == "something":
        holder[step] = 1
    elif way == "twice" and old:
        old.append(json.loads(json.dumps(rng.choice(old))))
    elif way == "turned round":
        old.reverse()
    elif way == "one more key":
        old["7"] = json.loads(json.dumps(next(iter(old.values()), 1)))
    return way


def _packed(text: str, width: str, rng: Random) -> str:
    """A column with one number added, removed or changed."""
    numbers = np.cumsum(
        np.frombuffer(zlib.decompress(b64decode(text)), width), dtype=width
    ).tolist()
    way = rng.choice(["other", "less", "more"] if numbers else ["more"])
    at = rng.randrange(len(numbers)) if numbers else 0
    if way == "other":
        numbers[at] += rng.choice([-1, 1])
    elif way == "less":
        del numbers[at]
    else:
        numbers.append((numbers[-1] if numbers else 0) + 1)
    column = np.array(numbers, width)
    return b64encode(
        zlib.compress(np.diff(column, prepend=column.dtype.type(0)).tobytes(), 1)
    ).decode()
