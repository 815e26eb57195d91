"""A Parquet file that grows while a client works: rows are written in groups, and the file is
complete and synced when it is closed.

Law: such a file is evidence, so it never overwrites the file of an earlier run, and it gets its
name when it is complete. pyarrow is imported when a file is opened. `receipt_log.py` and
`delivery_log.py` define the rows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from ledgermq.client.aside import Aside
from ledgermq.client.errors import BadArgument

GROUP_ROWS = 4096
GROUP_S = 5.0

P = TypeVar("P")


class ParquetLog(ABC, Generic[P]):
    """Writes rows to one new file; they arrive in parts, and are converted to Arrow in groups. A
    context manager. For one thread."""

    what = "rows"
    """Names the file's content in error messages."""

    def __init__(
        self, path: str | Path, *, group_rows: int = GROUP_ROWS, group_s: float = GROUP_S
    ) -> None:
        """A row group ends after `group_rows` rows, or with the first rows after `group_s` seconds.
        Raises BadArgument."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise BadArgument(
                f"a file of {self.what} needs pyarrow", "install it: pip install 'ledgermq[audit]'"
            ) from None
        if not isinstance(path, str | Path):
            raise BadArgument(f"{path!r} is no path", f"name a file for the {self.what}")
        self.path = Path(path)
        self.count = 0
        self._group_rows, self._group_s = group_rows, group_s
        self._parts: list[P] = []
        self._waiting = 0
        self._since_s = time.monotonic()
        try:
            self._aside = Aside(self.path)
        except FileExistsError:
            raise BadArgument(
                f"{path} exists already", f"choose another file for the {self.what}"
            ) from None
        except BlockingIOError:
            raise BadArgument(
                f"another process is writing {path}", f"choose another file for the {self.what}"
            ) from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise BadArgument(
                f"{path} cannot be written ({why})", f"choose another file for the {self.what}"
            ) from error
        self._schema = self._columns()
        self._writer: Any = parquet.ParquetWriter(self._aside.file, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Complete the file, sync it, and give it its name. Raises OSError; the file then does not
        exist."""
        if self._writer is None:
            return
        self.seal()
        self._aside.close()

    def seal(self) -> None:
        """Complete the file and sync it, without its name. Raises OSError; then there is no
        file."""
        try:
            self._end_group()
            self._writer.close()
            self._aside.sync()
        except OSError:
            self.abandon()
            raise
        self._writer = None

    def abandon(self) -> None:
        """Leave no file."""
        self._writer = None
        self._aside.abandon()

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
        """The rows of these parts, in order, as an Arrow table of that schema."""
