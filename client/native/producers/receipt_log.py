"""A Parquet file of receipts: one row per acknowledged frame, with the fields of `Receipt` as
columns (docs/format.md).

Only the columns are defined here, after `proto/proofs/receipts.py`; `parquet_log.py` writes the
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.client.native.parquet_log import ParquetLog
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.proofs.receipts import COLUMNS, row_of


class ReceiptLog(ParquetLog[dict[str, Any]]):
    """Writes receipts to one new file. A context manager. For one thread."""

    what = "receipts"

    def write(self, receipt: pb.Receipt) -> None:
        """Add a receipt. Raises OSError."""
        self._add(row_of(receipt), 1)

    def _columns(self) -> Any:
        return schema()

    def _table(self, parts: Sequence[dict[str, Any]]) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(list(parts), self._schema)


def schema() -> Any:
    """The Arrow schema of a receipt file."""
    import pyarrow as pa

    kinds = {
        "producer_id": pa.uint32(),
        "epoch": pa.uint32(),
        "first_sequence": pa.uint64(),
        "count": pa.uint32(),
        "term": pa.int64(),
        "first_index": pa.int64(),
        "ranges": pa.list_(
            pa.struct([("queue", pa.int32()), ("first_offset", pa.int64()), ("count", pa.uint32())])
        ),
        "chain_crc": pa.uint32(),
        "store_ms": pa.int64(),
        "replicas": pa.list_(pa.struct([("node", pa.string()), ("durable_index", pa.int64())])),
        "mac": pa.binary(),
    }
    return pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])
