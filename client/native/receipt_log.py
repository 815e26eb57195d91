"""A Parquet file of receipts: one row for each acknowledged frame, its columns the fields of `Receipt` (proto/receipts.py, docs/format.md).

Rows are written in groups as they come; the file is complete, and synced, once it is closed. pyarrow is loaded when a file is opened.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ledgermq.client.errors import BadArgument
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.receipts import COLUMNS, row_of

GROUP_ROWS = 4096
GROUP_S = 5.0


class ReceiptLog:
    """Receipts into one file, which must not exist yet. A context manager. For one thread."""

    def __init__(self, path: str | Path, *, group_rows: int = GROUP_ROWS, group_s: float = GROUP_S) -> None:
        """A row group ends after so many rows, or with the first receipt after so long. Raises BadArgument."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise BadArgument("a file of receipts needs pyarrow", "install it: pip install 'ledgermq[audit]'") from None
        self.path = Path(path)
        self.count = 0
        self._group_rows, self._group_s = group_rows, group_s
        self._rows: list[dict[str, Any]] = []
        self._since_s = time.monotonic()
        try:
            # Receipts are proofs: those of an earlier run are not overwritten.
            self._file = self.path.open("xb")
        except FileExistsError:
            raise BadArgument(f"{path} exists already", "choose another file for the receipts") from None
        except OSError as error:
            raise BadArgument(f"{path} cannot be written ({error.strerror})", "choose another file for the receipts") from error
        self._schema = schema()
        self._writer: Any = parquet.ParquetWriter(self._file, self._schema)

    def __enter__(self) -> ReceiptLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, receipt: pb.Receipt) -> None:
        """Add a receipt."""
        self._rows.append(row_of(receipt))
        self.count += 1
        if len(self._rows) >= self._group_rows or time.monotonic() - self._since_s >= self._group_s:
            self._end_group()

    def close(self) -> None:
        """Complete the file and sync it. Only then can it be read."""
        if self._writer is None:
            return
        self._end_group()
        self._writer.close()
        self._writer = None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _end_group(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema), row_group_size=len(self._rows))
        self._rows = []
        self._since_s = time.monotonic()


def schema() -> Any:
    """The Arrow schema of a file of receipts."""
    import pyarrow as pa

    kinds = {
        "producer_id": pa.uint32(),
        "epoch": pa.uint32(),
        "first_sequence": pa.uint64(),
        "count": pa.uint32(),
        "term": pa.int64(),
        "first_index": pa.int64(),
        "ranges": pa.list_(pa.struct([("queue", pa.int32()), ("first_offset", pa.int64()), ("count", pa.uint32())])),
        "chain_crc": pa.uint32(),
        "store_ms": pa.int64(),
        "replicas": pa.list_(pa.struct([("node", pa.string()), ("durable_index", pa.int64())])),
        "mac": pa.binary(),
    }
    return pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])
