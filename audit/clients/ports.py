"""The port of the join: how two sides are brought together is its caller's choice, in this process
or on a Spark cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from ledgermq.audit.clients.joining import Judge, Side


class Joiner(Protocol):
    """Runs a judge over every bucket of two sides, and yields its results."""

    def __call__(
        self, left: Side, right: Side, judge: Judge, schema: pa.Schema, buckets: int
    ) -> Iterator[pa.Table]: ...
