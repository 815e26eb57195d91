"""Points in time and time ranges as users write them on the command line.

`now`, `-10m` (before now), `2026-11-21T10:00:00Z` and other forms of ISO 8601 (UTC unless it has another offset), or milliseconds since
1970. A range is A..B: from A on, before B; an omitted end has no limit. All times are store times, by the clocks of the nodes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ledgermq.client.errors import BadArgument
from ledgermq.proto import units

FORM = "2026-11-21T10:00:00Z, 1700000000000, -10m or now"
_NUMBER = re.compile(r"(\d{1,15})(?:ms)?", re.ASCII)


def moment_ms(text: str, now_ms: int) -> int:
    """Parse a point in time into milliseconds since 1970. Raises BadArgument."""
    text = text.strip()
    if text == "now":
        return now_ms
    if text.startswith("-") and (before := units.duration_ms(text[1:])) is not None:
        return max(0, now_ms - before)
    if match := _NUMBER.fullmatch(text):
        return int(match[1])
    try:
        found = datetime.fromisoformat(text)
        milliseconds = round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        milliseconds = -1
    if milliseconds < 0:
        raise BadArgument(f"{text!r} is not a point in time", f"give {FORM}")
    return milliseconds


def time_range_ms(text: str, now_ms: int) -> tuple[int | None, int | None]:
    """Parse A..B into (begin, end), None for an omitted end. Raises BadArgument."""
    begin, dots, end = text.partition("..")
    if not dots or not (begin.strip() or end.strip()):
        raise BadArgument(f"{text!r} is not a range of time", f"give A..B, each {FORM}; one side may be omitted")
    first = moment_ms(begin, now_ms) if begin.strip() else None
    last = moment_ms(end, now_ms) if end.strip() else None
    if first is not None and last is not None and first >= last:
        raise BadArgument(f"the range {text!r} ends before it begins", "give the earlier time first")
    return first, last
