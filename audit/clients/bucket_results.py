"""The results of judging one bucket: findings with their proofs, and counts of messages by window;
and the bucket's stored messages.

Shared by the judges of receipts and of deliveries. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.audit.reading.decode import I64, Flags

RESULTS = pa.schema(
    [
        ("what", pa.string()),
        ("broker_group", pa.string()),
        ("topic", pa.string()),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("index", pa.int64()),
        ("window_ms", pa.int64()),
        ("n", pa.int64()),
        ("proof", pa.string()),
    ]
)
"""A finding has a proof: `n` messages of claim (`file`, `row`), the first of them entry `index`,
break rule `what`. A count has no proof. An empty proof stands for `n` further findings of the
rule."""
CLOCKS_MS = 2_000
"""Clock difference between clients and nodes that is tolerated before it counts as a fault of the
cluster."""
LISTED = 4_000
"""At most this many findings of one rule are returned individually from a bucket, or from a
cluster; the counts include all messages."""


@dataclass(slots=True)
class Results:
    """Collected rows of `RESULTS`."""

    window_ms: int
    rows: list[dict[str, object]] = field(default_factory=list)
    _told: dict[str, int] = field(default_factory=dict)

    def count(
        self,
        result: str,
        groups: pa.Array,
        topics: pa.Array,
        store_ms: I64,
        chosen: Flags | None = None,
    ) -> None:
        """Count messages, one per row, by broker group, topic and window."""
        window = store_ms - store_ms % self.window_ms
        table = pa.table(
            {
                "broker_group": groups,
                "topic": topics,
                "window_ms": window,
                "n": np.ones(len(window), np.int64),
            }
        )
        if chosen is not None:
            table = table.filter(pa.array(chosen))
        if table.num_rows:
            for row in (
                table.group_by(["broker_group", "topic", "window_ms"])
                .aggregate([("n", "sum")])
                .to_pylist()
            ):
                row["n"] = row.pop("n_sum")
                self.rows.append({"what": result, **row})

    def finding(
        self,
        rule: str,
        group: str | None,
        topic: str | None,
        file: int,
        row: int,
        index: int | None,
        n: int,
        proof: str,
    ) -> None:
        self._told[rule] = self._told.get(rule, 0) + 1
        if self._told[rule] <= LISTED:
            fields = {
                "broker_group": group,
                "topic": topic,
                "file": file,
                "row": row,
                "index": index,
                "n": n,
            }
            self.rows.append({"what": rule, **fields, "proof": proof})

    def table(self) -> pa.Table:
        more = [
            {"what": rule, "n": count - LISTED, "proof": ""}
            for rule, count in self._told.items()
            if count > LISTED
        ]
        return pa.Table.from_pylist([*self.rows, *more], schema=RESULTS)


class Bucket:
    """The stored messages of one bucket, indexed by id."""

    def __init__(self, stored: pa.Table, ids: Sequence[pa.Array]) -> None:
        """`ids`: of the claims, column by column; their codes are in `codes`."""
        own = one(stored.column("message_id"))
        coded = (
            pa.concat_arrays([own, *ids])
            .dictionary_encode()
            .indices.to_numpy(zero_copy_only=False)
            .astype(np.int64)
        )
        edges = np.cumsum([len(own), *(len(column) for column in ids)])
        self.codes = [coded[begin:end] for begin, end in pairwise(edges.tolist())]
        self.order = np.argsort(coded[: len(own)], kind="stable")
        self._sorted = coded[: len(own)][self.order]
        self.groups, self.topics = (one(stored.column(name)) for name in ("broker_group", "topic"))
        self.native = stored.column("native").to_numpy()
        names = ("queue", "offset", "index", "term", "chain_crc", "store_ms")
        self.queue, self.offset, self.index, self.term, self.chain, self.store_ms = (
            stored.column(name).to_numpy().astype(np.int64) for name in names
        )

    def find(self, codes: I64) -> tuple[I64, I64]:
        """(first index in `order`, number) of the messages with each id."""
        begin = np.searchsorted(self._sorted, codes)
        return begin, np.searchsorted(self._sorted, codes, side="right") - begin


def numbers(column: pa.ChunkedArray) -> I64:
    """A column of numbers, −1 for null."""
    values: I64 = pc.fill_null(column, -1).to_numpy().astype(np.int64)
    return values


def one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as a single chunk."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
