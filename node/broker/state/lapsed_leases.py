"""Leases that ended other than by their acknowledgement: what tells a repeated acknowledgement from one with a stale handle.

A message that is done has no row, and an acknowledgement may be repeated because its answer was lost. Nearly every message is done because
its only lease was acknowledged, so the exceptions are remembered: leases that were replaced (leased again, changed), and leases that ended
with their row (dead letter, passed over, reset, trim, deleted). Of one offset the last such lease is enough, because lease numbers ascend.

Invariant: of a lease of a message that is done, `has` is false only if an acknowledgement of this very lease ended it.

A pure function of the log, the same on every replica (I8). Memory is bounded (I11): the last `LAPSED_MAX` are remembered, in log order;
what is forgotten moves `since` up, and no lease up to `since` is known to be acknowledged any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ledgermq.node.broker.state.packed import pack, unpack

LAPSED_MAX = 32_768
"""Part of the format: every replica forgets the same ones."""
_Queue = tuple[str, str, int]
"""(consumer group, stored topic, queue)"""


class Lapsed:
    """The lapsed leases of one broker group."""

    def __init__(self, since: int = -1) -> None:
        self.since = since
        """Leases up to this number may have lapsed."""
        self._leases: OrderedDict[tuple[_Queue, int], int] = OrderedDict()
        """(queue, offset) → the last lease of it that lapsed, in log order."""

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, queue: _Queue, offset: int, lease: int) -> None:
        """This lease ended other than by its acknowledgement."""
        if lease <= self.since:
            return
        self._leases[queue, offset] = lease
        self._leases.move_to_end((queue, offset))
        if len(self._leases) > LAPSED_MAX:
            self.since = max(self.since, self._leases.popitem(last=False)[1])

    def has(self, queue: _Queue, offset: int, lease: int) -> bool:
        """Whether this lease ended other than by its acknowledgement, or may have."""
        return lease <= max(self.since, self._leases.get((queue, offset), -1))

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): columns."""
        queues = {queue: place for place, queue in enumerate(dict.fromkeys(queue for queue, _ in self._leases))}
        return {
            "since": self.since,
            "queues": [list(queue) for queue in queues],
            "k": pack(np.array([queues[queue] for queue, _ in self._leases], np.int32), "i"),
            "o": pack(np.array([offset for _, offset in self._leases], np.int64), "q"),
            "l": pack(np.array(list(self._leases.values()), np.int64), "q"),
        }

    @staticmethod
    def restored(exported: Mapping[str, Any]) -> Lapsed:
        """What `export` returned, taken back."""
        lapsed = Lapsed(exported["since"])
        queues: list[_Queue] = [(group, topic, queue) for group, topic, queue in exported["queues"]]
        rows = zip(unpack(exported["k"], "i").tolist(), unpack(exported["o"], "q").tolist(), strict=True)
        leases = unpack(exported["l"], "q").tolist()
        lapsed._leases.update(((queues[place], offset), lease) for (place, offset), lease in zip(rows, leases, strict=True))
        return lapsed
