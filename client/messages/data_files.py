"""Files that consumed messages are written to: one body per line, JSON Lines, CSV, Parquet.

Law: messages for which `flush` has returned are on stable storage, or were read from the pipe that
they were written to, and only those may be acknowledged. Line files are appended to, so that an
acknowledged message is never overwritten. A Parquet file is written as a whole: it gets its name
when it is complete, and until then none of its messages counts as written.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import select
import stat
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ledgermq.client import render
from ledgermq.client.aside import Aside
from ledgermq.client.errors import BadArgument

if TYPE_CHECKING:
    from ledgermq.client.native.consumers.received import Batch

FIELDS = ("message_id", "topic", "queue", "offset", "tag", "keys", "message_group", "properties")
CSV_COLUMNS = (*FIELDS, "body", "body_base64", "born_ms", "store_ms")
DATA = (".jsonl", ".csv", ".parquet")
_TAIL_BYTES = 1 << 20
_EXPORT_ROWS = 1000
"""How many rows of an export a row group of a Parquet file has."""

Row = dict[str, Any]
"""A message as `consume --json` shows it."""


def kind_of(path: str | None) -> str:
    """The suffix of a file of whole messages; "" for a file of bodies."""
    suffix = "" if path is None else Path(path).suffix
    return suffix if suffix in DATA else ""


def lines_to(path: str, as_json: bool = False) -> Lines:
    """Open a line file, whose format follows from its name. Raises BadArgument."""
    new = None if os.path.exists(path) else path
    out = appended(path)
    return Lines(out, kind_of(path), as_json=as_json, synced=is_regular(out), new=new)


def rows_of(batch: Batch) -> Iterable[Row]:
    """The messages of a batch as rows."""
    topic = batch.topic
    for message, born_ms, store_ms in zip(
        batch, batch.born_ms.tolist(), batch.store_ms.tolist(), strict=True
    ):
        yield {
            **{name: getattr(message, name) for name in FIELDS},
            "topic": topic,
            "keys": list(message.keys),
            "properties": dict(message.properties),
            **render.body_fields(message.body),
            "attempt": None,
            "born_ms": born_ms,
            "store_ms": store_ms,
        }


class Lines:
    """One line per message, appended. `kind`: the suffix of a data file, or "" for bodies (with
    `as_json`: JSON)."""

    whole = False
    """Whether messages count as written only when the file is closed."""

    def __init__(
        self,
        out: IO[bytes],
        kind: str = "",
        *,
        as_json: bool = False,
        synced: bool = False,
        new: str | None = None,
    ) -> None:
        """`synced`: the output is a regular file, whose bytes are on stable storage when `flush`
        returns. `new`: the path of a file that did not exist; `abandon` removes it if it has no
        message."""
        self._out = out
        self._kind = ".jsonl" if as_json and not kind else kind
        self._synced = synced
        self._new = new
        self._header_bytes = 0
        self.piped = is_pipe(out)
        """Whether somebody reads along, who may end after any message (`| head -1`)."""
        if self.piped:
            with suppress(OSError):
                # In a pipe of one page there is room exactly when it is empty. Refused while more
                # than that is in it, from another writer; what is written into it counts as read
                # then.
                fcntl.fcntl(out.fileno(), fcntl.F_SETPIPE_SZ, 1)
        if kind == ".csv" and not (synced and os.fstat(out.fileno()).st_size):
            self._header_bytes = out.write(self._csv([CSV_COLUMNS]))

    def write(self, bodies: Sequence[bytes], rows: Iterable[Row]) -> None:
        """Write messages, given as bodies and as rows; `rows` is only iterated if the format needs
        it."""
        if self._kind == ".jsonl":
            self._out.writelines([render.json_line(**row).encode() + b"\n" for row in rows])
        elif self._kind == ".csv":
            self._out.write(
                self._csv([[_cell(row.get(name)) for name in CSV_COLUMNS] for row in rows])
            )
        else:
            self._out.write(b"\n".join([*bodies, b""]))

    def write_batch(self, batch: Batch) -> None:
        self.write(batch.bodies() if not self._kind else (), rows_of(batch))

    @staticmethod
    def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()

    def flush(self) -> None:
        self._out.flush()
        if self._synced:
            os.fdatasync(self._out.fileno())
        if self.piped:
            waiting = select.poll()
            waiting.register(self._out.fileno(), select.POLLOUT)
            if not waiting.poll()[0][1] & select.POLLOUT:
                raise BrokenPipeError(errno.EPIPE, "the reader ended before it had read everything")

    def close(self) -> None:
        self.flush()
        self._out.close()

    def abandon(self) -> None:
        """Stop without flushing. Unflushed messages are delivered again, though they may be in the
        file."""
        self._out.close()
        if self._new is not None and os.path.getsize(self._new) == self._header_bytes:
            os.unlink(self._new)


def _cell(value: Any) -> Any:
    """Join keys with a space, as the log stores them; encode properties as a JSON object."""
    if isinstance(value, list):
        return " ".join(value)
    return (
        json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if isinstance(value, dict)
        else value
    )


def _parquet() -> Any:
    """pyarrow's module for Parquet. Raises BadArgument."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BadArgument(
            "Parquet files need pyarrow, which is not installed",
            "install it, or give a .jsonl or .csv file",
        ) from error
    return pyarrow.parquet


def _aside(path: Path, why: str) -> Aside:
    """A new file that gets its name when it is complete; `why` it must be new. Raises
    BadArgument."""
    try:
        return Aside(path)
    except FileExistsError:
        raise BadArgument(f"{path} exists, and {why}", "give another file, or remove it") from None
    except BlockingIOError:
        raise BadArgument(f"another process is writing {path}", "give another file") from None
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be written ({error.strerror})", "give another file"
        ) from error


class Parquet:
    """One Parquet file with the columns of `Batch.to_arrow`."""

    whole = True

    def __init__(self, path: Path) -> None:
        self._module = _parquet()
        self._aside = _aside(path, "a Parquet file cannot be appended to")
        self._writer: Any = None

    def write_batch(self, batch: Batch) -> None:
        record_batch = batch.to_arrow()
        if self._writer is None:
            self._writer = self._module.ParquetWriter(self._aside.file, record_batch.schema)
        self._writer.write_batch(record_batch)

    def flush(self) -> None:
        """Do nothing: no message counts as written before `close`."""

    def close(self) -> None:
        """Complete the file, make it durable, and give it its name. Without messages there are no
        columns, and no file is left."""
        if self._writer is None:
            self.abandon()
            return
        try:
            self._writer.close()
        except OSError:
            self.abandon()
            raise
        self._aside.close()

    def abandon(self) -> None:
        self._aside.abandon()


def appended(path: str) -> IO[bytes]:
    """Open a line file to append to. A crash may have torn the last line, whose message is
    delivered again. In a JSON Lines file the torn line is cut off. In other files, which may hold
    the user's own lines, the line is ended, and so is a quoted CSV cell. Raises BadArgument."""
    try:
        out = open(path, "ab")  # noqa: SIM115 - the caller closes it
        size = os.fstat(out.fileno()).st_size if is_regular(out) else 0
        with open(path, "rb") if size else io.BytesIO() as before:
            tail = _last_line(before, size)
            if path.endswith(".csv") and _within_quotes(before):
                out.write(b'"\n')
            elif tail and path.endswith(".jsonl") and not _is_json(tail):
                out.truncate(size - len(tail))
            elif tail:
                out.write(b"\n")
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be opened ({error.strerror})",
            "give another file, or - for the standard stream",
        ) from error
    return out


def is_regular(out: IO[bytes]) -> bool:
    return stat.S_ISREG(os.fstat(out.fileno()).st_mode)


def is_pipe(out: IO[bytes]) -> bool:
    return stat.S_ISFIFO(os.fstat(out.fileno()).st_mode)


def _last_line(file: IO[bytes], size: int) -> bytes:
    """The bytes behind the last newline, however many."""
    tail, at, newline = b"", size, False
    while at and not newline:
        begin = max(0, at - _TAIL_BYTES)
        file.seek(begin)
        _, newline_found, piece = file.read(at - begin).rpartition(b"\n")
        tail, at, newline = piece + tail, begin, bool(newline_found)
    return tail


def _within_quotes(file: IO[bytes]) -> bool:
    """Whether a CSV file ends inside a quoted cell. A quote inside a cell is written twice, so
    counting quotes is enough."""
    file.seek(0)
    return sum(piece.count(b'"') for piece in iter(lambda: file.read(_TAIL_BYTES), b"")) % 2 == 1


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


class Export:
    """A new file of rows, in the format that follows from its name. It gets its name in `close`;
    without rows there is no file."""

    def __init__(self, path: Path) -> None:
        """Raises BadArgument."""
        self._kind = path.suffix
        if self._kind == ".parquet":
            _parquet()
        self._aside = _aside(path, "an export never adds to a file")
        self._lines = None if self._kind == ".parquet" else Lines(self._aside.file, self._kind)
        self._writer: Any = None
        self._rows: list[Row] = []
        self._written = False

    def write(self, row: Row) -> None:
        self._written = True
        if self._lines is not None:
            self._lines.write((), [row])
            return
        self._rows.append(row)
        if len(self._rows) >= _EXPORT_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        from ledgermq.client.native.consumers.arrow import schema

        wanted = pa.schema([("topic", pa.string()), *schema(None)])
        if self._writer is None:
            self._writer = _parquet().ParquetWriter(self._aside.file, wanted)
        columns = [[_arrow_cell(row, name) for row in self._rows] for name in wanted.names]
        arrays = [
            pa.array(column, type=kind) for column, kind in zip(columns, wanted.types, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=wanted))
        self._rows = []

    def close(self) -> None:
        if not self._written:
            self._aside.abandon()
            return
        if self._rows:
            self._write_group()
        if self._writer is not None:
            self._writer.close()
        self._aside.close()

    def abandon(self) -> None:
        self._aside.abandon()


def _arrow_cell(row: Row, name: str) -> Any:
    if name == "properties":
        return list(row[name].items())
    if name == "body":
        return row["body"].encode() if "body" in row else b64decode(row["body_base64"])
    return row[name]


@contextmanager
def exported_to(path: Path) -> Iterator[Export]:
    """A new file for an export; complete if the block ends, and not there if it raises."""
    file = Export(path)
    try:
        yield file
        file.close()
    except BaseException:  # Ctrl-C too: half an export is removed
        file.abandon()
        raise
