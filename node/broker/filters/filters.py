"""The filters of a Receive or a Pull: by tags or by a SQL92 expression (contract §5.8).

With `tags`, messages can be told apart without reading them, because consume queues store a hash of
the tag. `matches` decides on the properties themselves. Filters are stateless values; the picker
(or a pull) skips the messages that do not match.

The records read for filters are bounded per call and per turn: a consumer that finds no match among
many messages continues in the next turn, behind those who wait for other messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ledgermq.node.broker.filters.sql_filter import Part, compiled
from ledgermq.node.broker.ports import Filter, Messages
from ledgermq.proto.entries.properties import TAG, parse

SYMBOLS_A_READ = 8
"""Evaluating this many symbols of an expression takes about as long as reading a record."""
LOOKS_PER_CALL = 256
"""How many short records are read for the filter of one call before other calls have their turn."""
LOOKS_PER_TURN = 1024
"""The same limit for the filters of all calls of a turn together."""
LOOK_BYTES = 4096
"""Bytes of one unit: a long record counts as several reads."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Matches messages with one of these exact tags; every message if `tags` is empty."""

    tags: frozenset[str] = frozenset()

    @property
    def cost(self) -> int:
        return 1 if self.tags else 0

    def matches(self, properties: bytes) -> bool:
        return not self.tags or parse(properties).get(TAG, "") in self.tags


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Matches messages for which a SQL92 expression is true. Created by `sql_filter`."""

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
    """The budget of one turn for reading records for filters. A new turn sets `left` to
    `LOOKS_PER_TURN`."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOKS_PER_TURN

    def of_call(self, filter_: Filter) -> CallLooks:
        return CallLooks(self, filter_)


class CallLooks:
    """The budget of one call within its turn."""

    __slots__ = ("_all", "_cost", "_filter", "_left")

    def __init__(self, looks: Looks, filter_: Filter) -> None:
        self._all = looks
        self._filter = filter_
        self._cost = filter_.cost
        self._left = min(LOOKS_PER_CALL, looks.left)

    @property
    def reads(self) -> bool:
        """Whether the filter needs the records of messages."""
        return self._cost > 0

    @property
    def used_up(self) -> bool:
        """Whether no more records may be read for this call in this turn."""
        return self._left <= 0 and self._cost > 0

    def matches(self, source: Messages, position: int, size: int) -> bool:
        """Whether the filter matches the message whose record is at this place; reading it uses up
        the budget."""
        return not self._cost or self._matches(source.properties(position, size), size)

    def matches_properties(self, properties: bytes, size: int) -> bool:
        """The same for a message whose properties are in memory; `size`: the length of its
        record."""
        return not self._cost or self._matches(properties, size)

    def _matches(self, properties: bytes, size: int) -> bool:
        looks = self._cost + size // LOOK_BYTES
        self._left -= looks
        self._all.left -= looks
        return self._filter.matches(properties)


@lru_cache(maxsize=512)
def sql_filter(expression: str) -> SqlFilter:
    """The filter of an expression, compiled once and cached. Raises FilterError."""
    return SqlFilter(expression, compiled(expression))
