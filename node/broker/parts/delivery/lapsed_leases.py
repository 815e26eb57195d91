"""Leases that ended without an acknowledgement: they distinguish a repeated acknowledgement from
one with a stale handle.

A message that is done has no row, and a client may repeat an acknowledgement because the answer was
lost. Nearly every message is done because its only lease was acknowledged, so only the exceptions
are stored: leases that were replaced (leased again, changed), and leases that ended with their row
(dead letter, passed over, reset, trim, deleted). One lease per offset, the last, is enough, because
lease numbers ascend.

Invariant: for a lease of a message that is done, `has` returns False only if an acknowledgement of
this very lease ended it.

A pure function of the log, the same on every replica (I8). Memory is bounded (I11): the last
`LAPSED_MAX` leases are kept, in log order. Forgetting one raises `since`; leases up to `since` are
no longer known to be acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ledgermq.node.broker.packed import pack, unpack

LAPSED_MAX = 32_768
"""Part of the format, so that every replica forgets the same ones."""
_Queue = tuple[str, str, int]
"""(consumer group, stored topic, queue)"""


class Lapsed:
    """The lapsed leases of one broker group."""

    def __init__(self, since: int = -1) -> None:
        self.since = since
        """Leases up to this number may have lapsed without being listed."""
        self._leases: OrderedDict[tuple[_Queue, int], int] = OrderedDict()
        """(queue, offset) → its last lease that lapsed, in log order."""

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, queue: _Queue, offset: int, lease: int) -> None:
        """This lease ended without its acknowledgement."""
        if lease <= self.since:
            return
        self._leases[queue, offset] = lease
        self._leases.move_to_end((queue, offset))
        if len(self._leases) > LAPSED_MAX:
            self.since = max(self.since, self._leases.popitem(last=False)[1])

    def has(self, queue: _Queue, offset: int, lease: int) -> bool:
        """Whether this lease ended without its acknowledgement, or may have."""
        return lease <= max(self.since, self._leases.get((queue, offset), -1))

    def last(self, queue: _Queue, offset: int) -> int | None:
        """The last lease of this offset that ended without its acknowledgement; None if there is
        none, or it is forgotten."""
        return self._leases.get((queue, offset))

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): columns."""
        queues = {
            queue: place
            for place, queue in enumerate(dict.fromkeys(queue for queue, _ in self._leases))
        }
        return {
            "since": self.since,
            "queues": [list(queue) for queue in queues],
            "k": pack(np.array([queues[queue] for queue, _ in self._leases], np.int32), "i"),
            "o": pack(np.array([offset for _, offset in self._leases], np.int64), "q"),
            "l": pack(np.array(list(self._leases.values()), np.int64), "q"),
        }

    @staticmethod
    def restored(exported: Mapping[str, Any]) -> Lapsed:
        """The state that `export` returned."""
        lapsed = Lapsed(exported["since"])
        queues: list[_Queue] = [(group, topic, queue) for group, topic, queue in exported["queues"]]
        rows = zip(
            unpack(exported["k"], "i").tolist(), unpack(exported["o"], "q").tolist(), strict=True
        )
        leases = unpack(exported["l"], "q").tolist()
        lapsed._leases.update(
            ((queues[place], offset), lease)
            for (place, offset), lease in zip(rows, leases, strict=True)
        )
        return lapsed
