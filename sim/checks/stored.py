"""The object store of a run: every message that was ever committed, for leaders whose consumers are
below the local begin.

Nothing is ever removed from it, so no consumer group may pass over a message. It may be away; then
every fetch fails.
"""

from __future__ import annotations

from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched, TierMessage
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.names import CONTROL_TOPICS
from ledgermq.sim.checks.truth import Truth


class StoredMessages:
    """What the store answers."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._next_index = 0
        self._entries: dict[tuple[str, int], list[bytes]] = {}
        self.away_until = 0

    def answer(self, fetch: TierFetch, now: int) -> TierFetched:
        """As the reader of the store: at least one message, then as many as fit."""
        if now < self.away_until:
            return TierFetched(fetch, failure="the store does not answer")
        self._take_in()
        entries = self._entries[fetch.topic, fetch.queue][
            fetch.first : min(fetch.begin, fetch.first + fetch.count)
        ]
        found, size = 1, len(entries[0])
        while found < len(entries) and size + len(entries[found]) <= fetch.max_bytes:
            size += len(entries[found])
            found += 1
        return TierFetched(fetch, fetch.first, tuple(map(TierMessage.of_entry, entries[:found])))

    def _take_in(self) -> None:
        """Sort what was committed since the last time."""
        last = len(self._truth) - 1
        for piece in self._truth.pieces(self._next_index, last) if last >= self._next_index else ():
            columns = record_columns(piece)
            for at in range(max(0, self._next_index - piece.first_index), len(piece)):
                topic = columns.topics[int(columns.topic_of[at])]
                if topic not in CONTROL_TOPICS:
                    start = int(piece.starts[at])
                    entry = bytes(piece.data[start : start + int(piece.sizes[at])])
                    self._entries.setdefault((topic, int(columns.queues[at])), []).append(entry)
            self._next_index = piece.last_index + 1
