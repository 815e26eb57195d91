"""What a look-up by key finds, as a list."""

from __future__ import annotations

from itertools import islice

from ledgermq.storage.keys.lookup import TIME_MAX, Found, Lookup


def by_key(
    lookup: Lookup,
    stored_topic: str,
    key: str,
    begin_ms: int = 0,
    end_ms: int = TIME_MAX,
    limit: int = 64,
) -> list[Found]:
    """The first `limit` messages, newest first."""
    return list(islice(lookup.each_by_key(stored_topic, key, begin_ms, end_ms), limit))
