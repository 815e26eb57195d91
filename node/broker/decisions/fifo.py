"""Order within message groups: which messages in flight belong together, for the FIFO consumer groups of a leader.

Leader-local and derived, never replicated: read from the messages themselves when a queue is first looked at, and kept up with what is
planned and applied. The lock of a message group is nothing of its own: its lowest message that is not done decides. As long as that one is
leased nobody gets any other of the group; once it is visible again it comes first, and those behind it follow in their order.

Messages without a message group are one group per queue. Memory is bounded by the messages in flight and a short look ahead of the cursor.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from ledgermq.node.broker.decisions.uncommitted import UncommittedState
from ledgermq.node.broker.state.delivery import Delivery, QueueKey

LOOK_AHEAD = 1024
"""So many messages in a row whose message groups are locked are looked at behind the cursor of a queue, for one that is not."""
ROWS_MAX = 4096
"""A FIFO group holds at most about this many messages of a queue, leased or waiting; then it looks at no new one until some are done."""
_STALE_MAX = 4096

NameOf = Callable[[str, int, int], str]
"""(stored topic, queue, offset) → message group"""


class QueueOrder:
    """One queue of a FIFO group: the message group of every message with a row, one that is planned included."""

    __slots__ = ("_names", "groups")

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        """By offset; also of messages that were looked at ahead of the cursor."""
        self.groups: dict[str, list[int]] = {}
        """Message group → offsets with a row, ascending."""

    def name(self, offset: int) -> str | None:
        """The message group of a message, if it was looked at before."""
        return self._names.get(offset)

    def note(self, offset: int, name: str) -> None:
        """A message ahead of the cursor was looked at."""
        self._names[offset] = name

    def add(self, offset: int, name: str) -> None:
        offsets = self.groups.setdefault(name, [])
        at = bisect_left(offsets, offset)
        if at == len(offsets) or offsets[at] != offset:
            insort(offsets, offset)
        self._names[offset] = name

    def remove(self, offset: int) -> None:
        name = self._names.pop(offset, None)
        offsets = self.groups.get(name, []) if name is not None else []
        at = bisect_left(offsets, offset)
        if at < len(offsets) and offsets[at] == offset:
            del offsets[at]
            if not offsets:
                del self.groups[str(name)]

    def heads(self) -> list[int]:
        """The lowest message of every message group, ascending."""
        return sorted(offsets[0] for offsets in self.groups.values())

    def tidy(self, cursor: int) -> None:
        """Forget what was looked at ahead and is done by now: a filter passed it over."""
        rows = sum(map(len, self.groups.values()))
        if len(self._names) > rows + LOOK_AHEAD + _STALE_MAX:
            kept = {offset for offsets in self.groups.values() for offset in offsets}
            self._names = {offset: name for offset, name in self._names.items() if offset >= cursor or offset in kept}


class MessageGroups:
    """The orders of all queues that FIFO groups were served from since this node began to lead."""

    def __init__(self, delivery: Delivery, uncommitted: UncommittedState, name_of: NameOf) -> None:
        self._delivery = delivery
        self._uncommitted = uncommitted
        self._name_of = name_of
        self._orders: dict[QueueKey, QueueOrder] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def clear(self) -> None:
        """Leadership is lost."""
        self._orders.clear()

    def order(self, key: QueueKey) -> QueueOrder:
        """The order of a queue; at first it is read from the rows there are."""
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = QueueOrder()
            queue = self._delivery.queues.get(key)
            for offset in () if queue is None else queue.rows:
                order.add(offset, self._name_of(key[1], key[2], offset))
        return order

    def planned(self, key: QueueKey, offset: int) -> None:
        """A record will give this new message a row; what the log refuses is undone with the uncommitted state."""
        order = self._orders[key]
        name = order.name(offset)
        assert name is not None, "only a message that was looked at is planned"
        order.add(offset, name)
        self._uncommitted.on_rollback(lambda: order.remove(offset))

    def touched(self, key: QueueKey, offset: int) -> bool:
        """A record about this offset was applied; True if the queue belongs to a FIFO group."""
        order = self._orders.get(key)
        if order is None:
            return False
        if self._delivery.lease(key, offset) is not None:
            order.add(offset, order.name(offset) or self._name_of(key[1], key[2], offset))
        elif self._uncommitted.pending(key, offset) is None:
            order.remove(offset)
        return True
