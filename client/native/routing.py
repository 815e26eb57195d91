"""Which queue a message goes to: one after the other in runs, by the hash of a key, or the one that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.connection import Latencies, Located
from ledgermq.proto.layout import hash_once
from ledgermq.proto.types import I32

_hash_of_key = lru_cache(maxsize=65_536)(hash_once)
"""Keys are many, and each comes again."""


class Router:
    """The queues of one topic, by their numbers. More may come while it is used; then numbers, and the queues of keys, change."""

    def __init__(self, located: Located, latencies: Latencies) -> None:
        self.queues: tuple[tuple[str, int], ...] = ()
        self.groups: tuple[str, ...] = ()
        self.numbers: dict[tuple[str, int], int] = {}
        """The number of each queue, by what is known now. Whoever keeps this sees it change; no queue ever leaves it, for other threads
        look."""
        self._latencies = latencies
        self._turn = -1
        self.learn(located)
        if not self.queues:
            raise BadArgument("the topic has no queues", "see it with: ledgermq topic describe NAME")

    def learn(self, located: Located) -> None:
        """These are the topic's queues now."""
        if located.queues:
            self.queues = located.queues
            self.groups = tuple(dict.fromkeys(group for group, _ in self.queues))
            self.numbers.update({queue: number for number, queue in enumerate(self.queues)})

    def next_queue(self) -> tuple[str, int]:
        """For the next run of messages that may go anywhere: the next queue whose broker group has not been slow lately."""
        usable = set(self._latencies.usable(self.groups)) if len(self.groups) > 1 else set(self.groups)
        while True:
            self._turn = (self._turn + 1) % len(self.queues)
            if self.queues[self._turn][0] in usable:
                return self.queues[self._turn]

    def queue(self, number: int) -> tuple[str, int]:
        """The queue with this number. Raises BadArgument."""
        if not 0 <= number < len(self.queues):
            raise BadArgument(f"the topic has no queue {number}", f"its queues are 0 to {len(self.queues) - 1}")
        return self.queues[number]

    def number_of(self, key: str) -> int:
        """Where messages with this key go, as long as the topic has as many queues: as classic clients choose by hash."""
        # The remainder has the sign of the hash there.
        value = _hash_of_key(key)
        return abs(value) % len(self.queues)

    def numbers_of(self, keys: Sequence[str]) -> I32:
        return np.fromiter(map(self.number_of, keys), np.int32, len(keys))
