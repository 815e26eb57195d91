"""Transactions, derived again: which half messages are undecided, and how the last ones ended
(docs/format.md §11, Transactions).

A half message is identified by its queue offset on the half topic. A commit has no record: the
message made from the half names it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ledgermq.audit.state.packed import table, unpack_all
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.ports import Begins
from ledgermq.audit.state.reader import HALF_TOPIC, Entry

HALF_QUEUE = 0
ENDED_MAX = 32_768
"""At most this many ended transactions are remembered."""
ENDS = ("commit", "rollback", "checks", "age", "topic")
"""The possible ends of a transaction; a snapshot stores an index into this."""
_NO_IMMUNITY = -1
_HALVES = {"o": "q", "i": "q", "s": "q", "r": "q", "c": "q", "t": "q"}
_ENDED = {"o": "q", "h": "q"}


@dataclass(frozen=True, slots=True)
class _Half:
    index: int
    topic: str
    store_ms: int
    immunity_ms: int
    checks: int = 0


class Transactions(Part):
    """The undecided halves in log order, and the ends in the order in which they occurred."""

    keys: ClassVar[tuple[str, ...]] = ("transactions",)

    def __init__(self, begins: Begins) -> None:
        self._begins = begins
        self._halves: dict[int, _Half] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._touched: dict[int, int] = {}
        """Half offset → index of the last entry about it, for halves that are undecided or
        remembered."""

    # What entries do

    def apply(self, entry: Entry) -> None:
        if entry.topic == HALF_TOPIC:
            self._add(entry)
        elif entry.kind == "transaction":
            for offset, how in entry.fields["e"]:
                if how not in ENDS:
                    raise ValueError(f"ends a transaction by {how!r}")
                self._end(offset, how, entry.index)
            for offset, checks in entry.fields["c"]:
                if offset in self._halves:
                    self._halves[offset] = replace(self._halves[offset], checks=checks)
                    self._touched[offset] = entry.index
        elif entry.kind == "time-epoch":
            late = [
                offset for offset, half in self._halves.items() if half.store_ms > entry.store_ms
            ]
            self._halves.update(
                {offset: replace(self._halves[offset], store_ms=entry.store_ms) for offset in late}
            )
        elif entry.origin and entry.origin_text[0] == "tx":
            self._end(int(entry.origin_text[1]), "commit", entry.index)

    def _add(self, entry: Entry) -> None:
        offset = entry.queue_offset
        if offset in self._halves or offset in self._ended:
            return
        immunity_ms = int(entry.properties.get("__LMQ.RECOVERY", _NO_IMMUNITY))
        self._halves[offset] = _Half(
            entry.index, entry.properties["REAL_TOPIC"], entry.store_ms, immunity_ms
        )
        self._touched[offset] = entry.index

    def _end(self, offset: int, how: str, index: int) -> None:
        if self._halves.pop(offset, None) is None:
            return
        self._ended[offset] = how
        self._touched[offset] = index
        if len(self._ended) > ENDED_MAX:
            self._touched.pop(self._ended.popitem(last=False)[0], None)

    def topic_ended(self, topic: str, entry: Entry) -> None:
        for offset in [offset for offset, half in self._halves.items() if half.topic == topic]:
            self._end(offset, "topic", entry.index)

    def trimmed(self, entry: Entry) -> None:
        begin = self._begins.begin(HALF_TOPIC, HALF_QUEUE)
        for offset in [offset for offset in self._halves if offset < begin]:
            del self._halves[offset]
            self._touched.pop(offset, None)

    # The snapshot

    def values(self) -> dict[str, Any]:
        return {"transactions": _as_tree(self._halves, self._ended)}

    def canonical(self, key: str, stored: Any) -> Any:
        tree = _as_tree(*_read(stored))
        # The writer must also keep the order of the topics.
        return (
            {**tree, "topics": stored["halves"]["topics"]} if stored and stored["halves"] else tree
        )

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._halves, self._ended = _read(snapshot.get("transactions"))

    def touched(self, path: Path) -> int | None:
        if len(path) > 2 and path[1] == "halves":
            return self._touched.get(int(path[2]))
        if len(path) > 2 and path[1] == "ended":
            offsets = list(self._ended)
            at = int(path[2])
            return self._touched.get(offsets[at]) if at < len(offsets) else None
        return None


def _as_tree(halves: Mapping[int, _Half], ended: Mapping[int, str]) -> dict[str, Any]:
    """Undecided halves by offset, their topics in the order of first use, and the ends as [offset,
    how] in order."""
    tree = {
        str(offset): {
            "index": half.index,
            "topic": half.topic,
            "store_ms": half.store_ms,
            "immunity_ms": half.immunity_ms,
            "checks": half.checks,
        }
        for offset, half in halves.items()
    }
    met = list(dict.fromkeys(half.topic for half in halves.values()))
    return {
        "halves": tree,
        "topics": met,
        "ended": [[offset, how] for offset, how in ended.items()],
    }


def _read(stored: Any) -> tuple[dict[int, _Half], OrderedDict[int, str]]:
    """The transactions in a snapshot; None: it is older than transactions. Raises KeyError,
    TypeError or ValueError for invalid data."""
    halves: dict[int, _Half] = {}
    ended: OrderedDict[int, str] = OrderedDict()
    value = (
        {"halves": {}, "ended": {}}
        if stored is None or stored == {}
        else table(stored, "halves", "ended")
    )
    if value["halves"] != {}:
        columns = table(value["halves"], *_HALVES, "topics")
        for offset, index, store_ms, immunity_ms, checks, place in zip(
            *unpack_all(columns, _HALVES), strict=True
        ):
            if not 0 <= place < len(columns["topics"]) or offset <= next(reversed(halves), -1):
                raise ValueError(
                    f"half message {offset} does not follow the one before, or has an unknown topic"
                )
            halves[offset] = _Half(index, columns["topics"][place], store_ms, immunity_ms, checks)
    if value["ended"] != {}:
        columns = table(value["ended"], *_ENDED)
        for offset, how in zip(*unpack_all(columns, _ENDED), strict=True):
            if not 0 <= how < len(ENDS) or offset in ended:
                raise ValueError(f"transaction {offset} ended in an unknown way, or twice")
            ended[offset] = ENDS[how]
    return halves, ended
