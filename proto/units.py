"""Durations and sizes as users write them: `500ms`, `10s`, `2m`; `64KiB`, `64MiB`. The single
grammar of configuration and command line.

This module only converts text to numbers. The caller decides whether a bare number is accepted, and
in which unit.
"""

from __future__ import annotations

import re

DURATION_FORM = "500ms, 10s, 2m or 1h"
SIZE_FORM = "64KiB, 64MiB or 1GiB"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)", re.ASCII)
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def duration_ms(text: str) -> int | None:
    """Milliseconds of a duration with a unit; None for any other text."""
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else round(float(match[1]) * _DURATION_MS[match[2]])


def duration_text(milliseconds: int) -> str:
    """A duration in the largest unit that divides it: the inverse of `duration_ms`."""
    unit = next(
        unit
        for unit, length in reversed(_DURATION_MS.items())
        if milliseconds % length == 0 and (milliseconds or unit == "s")
    )
    return f"{milliseconds // _DURATION_MS[unit]}{unit}"


def size_words(count: int) -> str:
    """A size for people, with three digits: `512 B`, `1.42 GiB`. Not exact, so it has no
    inverse."""
    unit, value = "B", float(count)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 1023.6 KiB would be shown as 1024.
        if value < 1023.5:
            break
        unit, value = larger, value / 1024
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def duration_words(milliseconds: int) -> str:
    """A duration for people, in its two largest units: `850 ms`, `12 s`, `3 min 20 s`, `2 d 4 h`.
    Not exact."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    left = milliseconds // 1000
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= length or parts:
            parts.append((left // length, unit))
            left %= length
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def offset_words(milliseconds: int) -> str:
    """By how much a clock is wrong, for people: `3 s ahead`, `400 d behind`. Not exact."""
    size = abs(milliseconds)
    # Rounded, because a clock that was set 400 days ahead is a microsecond less ahead soon.
    return (
        f"{duration_words(size if size < 1000 else round(size / 1000) * 1000)}"
        f" {'behind' if milliseconds < 0 else 'ahead'}"
    )


def size_bytes(text: str) -> int | None:
    """Bytes of a size with a unit; None for any other text."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else round(float(match[1]) * _SIZE_BYTES[match[2]])
