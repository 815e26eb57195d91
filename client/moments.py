"""Points in time and time ranges as users write them on the command line.

`now`, `-10m` (before now), `2026-11-21T10:00:00Z` and other forms of ISO 8601 (UTC unless it has
another offset), or milliseconds since
1970. A range is A..B: from A on, before B; an omitted end has no limit. All times are store times,
      by the clocks of the nodes. A place in a
topic is `earliest`, `latest`, an offset, or a point in time, whose number therefore ends with ms.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ledgermq.client.errors import BadArgument
from ledgermq.proto import units

FORM = "2026-11-21T10:00:00Z, 1700000000000, -10m or now"
PLACE_FORM = (
    "earliest, latest, an offset, or a time: 2026-11-21T10:00:00Z, 1700000000000ms, -10m or now"
)
OFFSET_DIGITS = 18
"""So that an offset fits 64 bits."""
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that a calendar of Python has."""
_NUMBER = re.compile(r"(\d{1,15})(?:ms)?", re.ASCII)


def moment_ms(text: str, now_ms: int) -> int:
    """Parse a point in time into milliseconds since 1970. Raises BadArgument."""
    text = text.strip()
    if text == "now":
        return now_ms
    if text.startswith("-") and (before := units.duration_ms(text[1:])) is not None:
        return max(0, now_ms - before)
    try:
        if match := _NUMBER.fullmatch(text):
            milliseconds = int(match[1])
        else:
            moment = datetime.fromisoformat(text)
            milliseconds = round(
                (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
            )
    except (ValueError, OverflowError):
        milliseconds = -1
    if not 0 <= milliseconds <= LAST_MS:
        raise BadArgument(f"{text!r} is not a point in time", f"give {FORM}")
    return milliseconds


def place(text: str, now_ms: int) -> tuple[str, bool | int]:
    """Parse a place in a topic into the field of a request that holds it, and its value. Raises
    BadArgument."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return text, True
    if text.isascii() and text.isdigit():
        if len(text) > OFFSET_DIGITS:
            raise BadArgument(f"{text} is no offset", f"give at most {OFFSET_DIGITS} digits")
        return "offset", int(text)
    try:
        return "store_ms", moment_ms(text, now_ms)
    except BadArgument:
        raise BadArgument(f"{text!r} is no place in a topic", f"give {PLACE_FORM}") from None


def time_range_ms(text: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Parse A..B into (begin, end), None for an omitted end; both are None if there is no text.
    Raises BadArgument."""
    if text is None:
        return None, None
    begin, dots, end = text.partition("..")
    if not dots or not (begin.strip() or end.strip()):
        raise BadArgument(
            f"{text!r} is not a range of time", f"give A..B, each {FORM}; one side may be omitted"
        )
    first = moment_ms(begin, now_ms) if begin.strip() else None
    last = moment_ms(end, now_ms) if end.strip() else None
    if first is not None and last is not None and first >= last:
        raise BadArgument(
            f"the range {text!r} ends before it begins", "give the earlier time first"
        )
    return first, last
