"""A Parquet file that grows while a client works: rows in groups as they come, complete and synced once it is closed.

Law: such a file is evidence. It never overwrites one of an earlier run. pyarrow is loaded when a file is opened, not before. What the rows
mean is for those who write them: see `receipt_log.py` and `delivery_log.py`.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from ledgermq.client.errors import BadArgument

GROUP_ROWS = 4096
GROUP_S = 5.0

P = TypeVar("P")


class ParquetLog(ABC, Generic[P]):
    """Rows into one file, which must not exist yet; they come in parts, and become Arrow in groups. A context manager. For one thread."""

    what = "rows"
    """What the file holds, in errors."""

    def __init__(self, path: str | Path, *, group_rows: int = GROUP_ROWS, group_s: float = GROUP_S) -> None:
        """A row group ends after so many rows, or with the first ones after so long. Raises BadArgument."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise BadArgument(f"a file of {self.what} needs pyarrow", "install it: pip install 'ledgermq[audit]'") from None
        self.path = Path(path)
        self.count = 0
        self._group_rows, self._group_s = group_rows, group_s
        self._parts: list[P] = []
        self._waiting = 0
        self._since_s = time.monotonic()
        try:
            # What was kept by an earlier run is a proof: it is not overwritten.
            self._file = self.path.open("xb")
        except FileExistsError:
            raise BadArgument(f"{path} exists already", f"choose another file for the {self.what}") from None
        except OSError as error:
            raise BadArgument(f"{path} cannot be written ({error.strerror})", f"choose another file for the {self.what}") from error
        self._schema = self._columns()
        self._writer: Any = parquet.ParquetWriter(self._file, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Complete the file and sync it. Only then can it be read. Raises OSError."""
        if self._writer is None:
            return
        self._end_group()
        self._writer.close()
        self._writer = None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _add(self, part: P, rows: int) -> None:
        self._parts.append(part)
        self._waiting += rows
        self.count += rows
        if self._waiting >= self._group_rows or time.monotonic() - self._since_s >= self._group_s:
            self._end_group()

    def _end_group(self) -> None:
        if self._waiting:
            self._writer.write_table(self._table(self._parts), row_group_size=self._waiting)
        self._parts, self._waiting = [], 0
        self._since_s = time.monotonic()

    @abstractmethod
    def _columns(self) -> Any:
        """The file's Arrow schema."""

    @abstractmethod
    def _table(self, parts: Sequence[P]) -> Any:
        """The rows of these parts, in their order, as an Arrow table of that schema."""
