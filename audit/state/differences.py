"""Comparing two values: where a stored one differs from a derived one, and which bytes of a
snapshot file hold that place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ledgermq.audit.reading.decode import crc
from ledgermq.audit.state.part import Path

SHOWN_MAX = 100


class _Nothing:
    """Stands for a missing value."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two values differ; `NOTHING` where a value is missing. `moved`: everything
    behind it in its list is shifted."""

    path: Path
    derived: Any
    stored: Any
    moved: bool = False

    @property
    def text(self) -> str:
        return f"{'/'.join(self.path)} is {shown(self.stored)}, the log says {shown(self.derived)}"


def differences(derived: Any, stored: Any, path: Path = ()) -> Iterator[Difference]:
    """The innermost places at which two JSON values differ. For lists of different lengths only the
    first, because the rest is only shifted."""
    if isinstance(derived, dict) and isinstance(stored, dict):
        for key in sorted({*derived, *stored}):
            yield from differences(
                derived.get(key, NOTHING), stored.get(key, NOTHING), (*path, key)
            )
    elif isinstance(derived, list) and isinstance(stored, list):
        pairs = list(zip(derived, stored, strict=False))
        if len(derived) == len(stored):
            for number, (one, other) in enumerate(pairs):
                yield from differences(one, other, (*path, str(number)))
            return
        at = next((number for number, (one, other) in enumerate(pairs) if one != other), len(pairs))
        one, other = (values[at] if at < len(values) else NOTHING for values in (derived, stored))
        yield Difference((*path, str(at)), one, other, moved=True)
    elif derived != stored or isinstance(derived, bool) != isinstance(stored, bool):
        yield Difference(path, derived, stored)


def shown(value: Any) -> str:
    """A value as text, shortened if it is long."""
    text = repr(value) if isinstance(value, _Nothing) else json.dumps(value, separators=(",", ":"))
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def place(value: dict[str, Any], path: Path) -> tuple[int, int]:
    """The bytes first … last + 1 of the value at `path` in the file that holds `value` with its
    checksum, as in docs/format.md §9; for a missing value, those of the innermost existing value
    around it."""
    node: Any = {
        **value,
        "crc32c": crc(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()),
    }
    start = 0
    for step in path:
        if isinstance(node, dict) and step in node:
            before = [key for key in node if key < step]
            start += (
                1 + sum(_length(key) + _length(node[key]) + 2 for key in before) + _length(step) + 1
            )
            node = node[step]
        elif isinstance(node, list) and step.isdigit() and int(step) < len(node):
            start += 1 + sum(_length(item) + 1 for item in node[: int(step)])
            node = node[int(step)]
        else:
            break
    return start, start + _length(node)


def _length(value: Any) -> int:
    return len(json.dumps(value, sort_keys=True, separators=(",", ":")))
