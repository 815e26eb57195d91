"""Order within message groups: which messages in flight belong to the same message group, for a
leader's FIFO consumer groups.

Derived on the leader only, never replicated: read from the messages when a queue is first examined,
and kept up to date with planned and applied records. A message that only the object store has may
have to be fetched for that, and until then the queue has no order. A message group has no lock of
its own: its lowest message that is not done decides. While that message is leased, no consumer gets
another message of the message group; once it is visible again it is delivered first, and those
behind it follow in order.

In each queue, messages without a message group form one group. Memory is bounded by the messages in
flight and a short look ahead of the cursor.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from ledgermq.node.broker.parts.delivery.delivery import Delivery
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.broker.uncommitted import UncommittedState

LOOK_AHEAD = 1024
"""How many consecutive messages of locked message groups are examined behind a queue's cursor to
find one that is not locked."""
ROWS_MAX = 4096
"""About how many messages of a queue a FIFO group may have leased or waiting; beyond that no new
one is examined until some are done."""
_STALE_MAX = 4096

NameOf = Callable[[QueueKey, int], str | None]
"""Queue and offset → message group; None if the message is being fetched."""


class QueueOrder:
    """One queue of a FIFO group: the message group of every message that has a row or is planned to
    get one."""

    __slots__ = ("_names", "groups")

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        """Message group by offset, also of messages examined ahead of the cursor."""
        self.groups: dict[str, list[int]] = {}
        """Message group → offsets with a row, ascending."""

    def name(self, offset: int) -> str | None:
        """The message group of a message; None if it was not examined before."""
        return self._names.get(offset)

    def note(self, offset: int, name: str) -> None:
        """Remember the message group of a message ahead of the cursor."""
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
        """Forget messages that were examined ahead of the cursor and are done now, because a filter
        passed them over."""
        rows = sum(map(len, self.groups.values()))
        if len(self._names) > rows + LOOK_AHEAD + _STALE_MAX:
            kept = {offset for offsets in self.groups.values() for offset in offsets}
            self._names = {
                offset: name
                for offset, name in self._names.items()
                if offset >= cursor or offset in kept
            }


class MessageGroups:
    """The orders of all queues from which FIFO groups were served since this node started to
    lead."""

    def __init__(self, delivery: Delivery, uncommitted: UncommittedState, name_of: NameOf) -> None:
        self._delivery = delivery
        self._uncommitted = uncommitted
        self._name_of = name_of
        self._orders: dict[QueueKey, QueueOrder] = {}
        self._unnamed: dict[QueueKey, dict[int, None]] = {}
        """Rows whose message groups are not known yet; until then their queue has no order."""

    def __len__(self) -> int:
        return len(self._orders)

    def clear(self) -> None:
        """Leadership is lost."""
        self._orders.clear()
        self._unnamed.clear()

    def order(self, key: QueueKey) -> QueueOrder | None:
        """The order of a queue; initially read from its rows. None while messages for it are being
        fetched."""
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = QueueOrder()
            if key in self._delivery.queues:
                self._unnamed[key] = dict.fromkeys(self._delivery.queues[key].rows)
        unnamed = self._unnamed.get(key, {})
        while unnamed:
            offset = next(iter(unnamed))
            name = self._name_of(key, offset)
            if name is None:
                # One message is fetched at a time. While it does not come, the others must not cost
                # every turn that looks here.
                return None
            order.add(offset, name)
            del unnamed[offset]
        self._unnamed.pop(key, None)
        return order

    def unnamed(self, key: QueueKey) -> Iterable[int]:
        """The rows for which `order` waits."""
        return self._unnamed.get(key, ())

    def planned(self, key: QueueKey, offset: int) -> None:
        """A planned record will give this new message a row. If the log refuses the plan, this is
        rolled back with the uncommitted state."""
        order = self._orders[key]
        name = order.name(offset)
        assert name is not None, "only a message that was looked at is planned"
        order.add(offset, name)
        self._uncommitted.on_rollback(lambda: order.remove(offset))

    def touched(self, key: QueueKey, offset: int) -> bool:
        """A record about this offset was applied. Returns whether the queue belongs to a FIFO
        group."""
        order = self._orders.get(key)
        if order is None:
            return False
        if self._delivery.lease(key, offset) is not None:
            name = order.name(offset)
            if name is None:
                # The dead letter of a message was resent.
                name = self._name_of(key, offset)
            if name is None:
                self._unnamed.setdefault(key, {})[offset] = None
            else:
                order.add(offset, name)
        elif self._uncommitted.pending(key, offset) is None:
            order.remove(offset)
            self._unnamed.get(key, {}).pop(offset, None)
        return True
