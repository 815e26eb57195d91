"""The choice of a message's queue: round robin in runs, by the hash of a key, or the queue that the
caller named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.log_connection import Latencies, Located
from ledgermq.proto.entries.layout import hash_once
from ledgermq.proto.types import I32

_hash_of_key = lru_cache(maxsize=65_536)(hash_once)
"""Size of the cache of key hashes: there are many keys, and each is used repeatedly."""


class Router:
    """The queues of one topic, by number. When queues are added, the numbers and the queues of keys
    change."""

    def __init__(self, located: Located, latencies: Latencies) -> None:
        self.queues: tuple[tuple[str, int], ...] = ()
        self.groups: tuple[str, ...] = ()
        self.numbers: dict[tuple[str, int], int] = {}
        """The number of each queue, as known now. Readers that hold this mapping see it change;
        queues are never removed from it, because other threads read it."""
        self._latencies = latencies
        self._turn = -1
        self.learn(located)
        if not self.queues:
            raise BadArgument(
                "the topic has no queues", "see it with: ledgermq topic describe NAME"
            )

    def learn(self, located: Located) -> None:
        """Take over the current queues of the topic."""
        if located.queues:
            self.queues = located.queues
            self.groups = tuple(dict.fromkeys(group for group, _ in self.queues))
            self.numbers.update({queue: number for number, queue in enumerate(self.queues)})

    def next_queue(self) -> tuple[str, int]:
        """The queue for the next run of messages without a key: round robin over the broker groups
        that were not slow lately."""
        usable = (
            set(self._latencies.usable(self.groups)) if len(self.groups) > 1 else set(self.groups)
        )
        while True:
            self._turn = (self._turn + 1) % len(self.queues)
            if self.queues[self._turn][0] in usable:
                return self.queues[self._turn]

    def queue(self, number: int) -> tuple[str, int]:
        """The queue with this number. Raises BadArgument."""
        if not 0 <= number < len(self.queues):
            raise BadArgument(
                f"the topic has no queue {number}", f"its queues are 0 to {len(self.queues) - 1}"
            )
        return self.queues[number]

    def number_of(self, key: str) -> int:
        """The queue number for a key, stable while the number of queues is: the same hash as in
        classic RocketMQ clients."""
        # In Java the remainder has the sign of the hash.
        value = _hash_of_key(key)
        return abs(value) % len(self.queues)

    def numbers_of(self, keys: Sequence[str]) -> I32:
        return np.fromiter(map(self.number_of, keys), np.int32, len(keys))
