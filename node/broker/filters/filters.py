"""What a consumer wants of a topic: the filters of a Receive (contract §5.8).

A filter says two things. By `tags` messages can be told apart without being read: consume queues hold a hash of the tag. `matches` decides
on the properties themselves. Filters are values without state; whoever passes over what does not match is the picker (or a pull).

Looking at records is bounded, for one call and for a turn: whoever finds nothing in a flood of messages that do not match goes on in the
next turn, behind those who wait for other messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ledgermq.node.broker.filters.sql_filter import Part, compiled
from ledgermq.node.broker.ports import Filter, Messages
from ledgermq.proto.properties import TAG, parse

SYMBOLS_A_READ = 8
"""So many symbols of an expression take about as long to evaluate as reading a record does."""
LOOKS_PER_CALL = 256
"""About so many short records are looked at for the filter of one call, before others have their turn."""
LOOKS_PER_TURN = 1024
"""For the filters of all calls of a turn together."""
LOOK_BYTES = 4096
"""The unit is a read of so much: a long record counts for several."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """`tags` empty: everything. Otherwise the exact tags wanted."""

    tags: frozenset[str] = frozenset()

    @property
    def cost(self) -> int:
        return 1 if self.tags else 0

    def matches(self, properties: bytes) -> bool:
        return not self.tags or parse(properties).get(TAG, "") in self.tags


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages for which a SQL92 expression is true. Made by `sql_filter`."""

    expression: str
    _condition: Part = field(compare=False, repr=False)

    @property
    def tags(self) -> frozenset[str]:
        return self._condition.tags or frozenset()

    @property
    def cost(self) -> int:
        return 1 + self._condition.symbols // SYMBOLS_A_READ

    def matches(self, properties: bytes) -> bool:
        return self._condition.test(parse(properties)) is True


class Looks:
    """What filters that must look at records may still cost, in one turn and in one call of it."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOKS_PER_TURN

    def refill(self) -> None:
        """A turn begins."""
        self.left = LOOKS_PER_TURN

    def of_call(self, filter_: Filter) -> CallLooks:
        return CallLooks(self, filter_)


class CallLooks:
    """The share of one call."""

    __slots__ = ("_all", "_cost", "_filter", "_left")

    def __init__(self, looks: Looks, filter_: Filter) -> None:
        self._all = looks
        self._filter = filter_
        self._cost = filter_.cost
        self._left = min(LOOKS_PER_CALL, looks.left)

    @property
    def used_up(self) -> bool:
        """No more records may be looked at for this call in this turn."""
        return self._left <= 0 and self._cost > 0

    def matches(self, source: Messages, position: int, size: int) -> bool:
        """Does the filter want the message whose record lies there?"""
        if not self._cost:
            return True
        looks = self._cost + size // LOOK_BYTES
        self._left -= looks
        self._all.left -= looks
        return self._filter.matches(source.properties(position, size))


@lru_cache(maxsize=512)
def sql_filter(expression: str) -> SqlFilter:
    """The filter of an expression, compiled once. Raises FilterError."""
    return SqlFilter(expression, compiled(expression))
