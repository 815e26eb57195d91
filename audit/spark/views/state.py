"""The view `state`: one row for each value of a replica's snapshot (docs/format.md §11), with the
path of keys that leads there.

Packed columns are unpacked: the rows of `delivery` and of `transactions` have their own paths,
which end in their queue offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import read_sealed_json
from ledgermq.audit.reading.files import exists
from ledgermq.audit.spark.views.view import Batch, Share
from ledgermq.audit.spark.views.wanted import GROUP, REPLICA, Wanted
from ledgermq.audit.state.lapsed import Lapsed
from ledgermq.audit.state.packed import table, unpack_all

SNAPSHOTS = ("state/snapshot", "state/snapshot.previous")
ROWS_AT_ONCE = 10_000
Row = tuple[list[str], str]


class StateView:
    """`keys`: the path as an array; `path`: the same with slashes; `value`: JSON text. Lists are
    values, objects are paths."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "group": "string",
        "file": "string",
        "applied_index": "bigint",
        "path": "string",
        "keys": "array<string>",
        "value": "string",
    }
    bounds: Mapping[str, str] = {"replica": REPLICA, "group": GROUP}
    kinds: frozenset[str] = frozenset()

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        task = replica.task(f"{0:020d}")
        return [
            Share(replica.directory, task, 0, (name,))
            for name in SNAPSHOTS
            if exists(f"{replica.root}/{name}")
        ]

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        task, name = share.task, share.names[0]
        snapshot = read_sealed_json(f"{task.root}/{name}")
        if snapshot is None:
            return
        paths = paths_of(snapshot)
        while rows := list(islice(paths, ROWS_AT_ONCE)):
            yield self._batch(share, name, snapshot, rows)

    @staticmethod
    def _batch(share: Share, name: str, snapshot: Mapping[str, Any], rows: list[Row]) -> Batch:
        task = share.task
        return Batch(
            len(rows),
            {
                "replica": lambda: task.replica,
                "group": lambda: task.group,
                "file": lambda: f"{task.group}/{name}",
                "applied_index": lambda: snapshot.get("applied_index"),
                "path": lambda: ["/".join(keys) for keys, _ in rows],
                "keys": lambda: pa.array([keys for keys, _ in rows], pa.list_(pa.string())),
                "value": lambda: [value for _, value in rows],
            },
        )


# ----------------------------------------------------------------------------------------------------------------- paths


def paths_of(snapshot: Mapping[str, Any]) -> Iterator[Row]:
    """Every value of a snapshot with its path."""
    for key in sorted(snapshot):
        value = snapshot[key]
        if key == "delivery" and isinstance(value, dict):
            yield from _delivery(value)
        elif key == "lapsed":
            yield from _lapsed(value)
        elif key == "transactions" and isinstance(value, dict):
            yield from _transactions(value)
        else:
            yield from _plain([key], value)


def _plain(keys: list[str], value: Any) -> Iterator[Row]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _plain([*keys, key], value[key])
    else:
        yield keys, json.dumps(value, ensure_ascii=False)


def _delivery(value: Mapping[str, Any]) -> Iterator[Row]:
    for keys, leaf in _leaves(["delivery"], value, 3):
        if not isinstance(leaf, list) or len(leaf) != 2:
            yield from _plain(keys, leaf)
            continue
        cursor, packed = leaf
        yield from _plain([*keys, "cursor"], cursor)
        yield from _taken_apart([*keys, "rows"], packed, _leases)


def _lapsed(value: Any) -> Iterator[Row]:
    try:
        canonical = Lapsed.canonical(value)
    except (ValueError, TypeError, KeyError, IndexError):
        yield from _plain(["lapsed"], value)
        return
    yield from _plain(["lapsed", "since"], canonical["since"])
    for *place, lease in canonical["rows"]:
        yield from _plain(["lapsed", *map(str, place)], lease)


def _leaves(keys: list[str], value: Any, depth: int) -> Iterator[tuple[list[str], Any]]:
    """The values `depth` keys deeper, or the value found before that depth."""
    if depth == 0 or not isinstance(value, dict) or not value:
        yield keys, value
        return
    for key in sorted(value):
        yield from _leaves([*keys, key], value[key], depth - 1)


def _leases(packed: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(packed, list):
        rows = packed
    else:
        offsets, leases, attempts, kinds = unpack_all(
            table(packed), {"o": "q", "l": "q", "a": "i", "k": "i"}
        )
        terms = [(term[0], term[1]) for term in packed["terms"]]
        rows = [
            [o, lease, attempt, *terms[kind]]
            for o, lease, attempt, kind in zip(offsets, leases, attempts, kinds, strict=True)
        ]
    for offset, lease, attempt, client, duration in rows:
        yield (
            offset,
            {"lease": lease, "attempt": attempt, "client": client, "duration_ms": duration},
        )


def _transactions(value: Mapping[str, Any]) -> Iterator[Row]:
    for key in sorted(value):
        if key in TRANSACTIONS:
            yield from _taken_apart(["transactions", key], value[key], TRANSACTIONS[key])
        else:
            yield from _plain(["transactions", key], value[key])


def _halves(packed: Any) -> Iterator[tuple[int, Any]]:
    names = {"i": "index", "s": "store_ms", "r": "immunity_ms", "c": "checks", "t": "topic"}
    columns = unpack_all(table(packed), {"o": "q", **dict.fromkeys(names, "q")})
    for offset, *fields in zip(*columns, strict=True):
        row = dict(zip(names.values(), fields, strict=True))
        immunity = None if row["immunity_ms"] < 0 else row["immunity_ms"]
        yield offset, {**row, "immunity_ms": immunity, "topic": packed["topics"][row["topic"]]}


def _ended(packed: Any) -> Iterator[tuple[int, Any]]:
    for offset, how in zip(*unpack_all(table(packed), {"o": "q", "h": "q"}), strict=True):
        yield offset, ENDINGS[how]


ENDINGS = ("commit", "rollback", "checks", "age", "topic")
TRANSACTIONS = {"halves": _halves, "ended": _ended}


def _taken_apart(
    keys: list[str], packed: Any, take_apart: Callable[[Any], Iterator[tuple[int, Any]]]
) -> Iterator[Row]:
    """A row for each packed row; a value that cannot be unpacked is one row, as stored."""
    try:
        rows = [
            ([*keys, str(offset)], json.dumps(row, ensure_ascii=False))
            for offset, row in take_apart(packed)
        ]
    except (ValueError, TypeError, KeyError, IndexError):
        rows = [(keys, json.dumps(packed, ensure_ascii=False))]
    yield from rows
