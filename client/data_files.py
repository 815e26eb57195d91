"""Files that consumed messages are written to: one body per line, JSON Lines, CSV, Parquet.

Law: messages for which `flush` has returned are on stable storage, and only those may be acknowledged. Line files are appended to, so that
an acknowledged message is never overwritten. A Parquet file is written as a whole: it gets its name when it is complete, and until then
none of its messages counts as written.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ledgermq.client import render
from ledgermq.client.errors import BadArgument

if TYPE_CHECKING:
    from ledgermq.client.native.received import Batch

FIELDS = ("message_id", "topic", "queue", "offset", "tag", "keys", "message_group", "properties")
CSV_COLUMNS = (*FIELDS, "body", "body_base64", "born_ms", "store_ms")
DATA = (".jsonl", ".csv", ".parquet")
_TAIL_BYTES = 1 << 20

Row = dict[str, Any]
"""A message as `consume --json` shows it."""


def kind_of(path: str | None) -> str:
    """The suffix of a file of whole messages; "" for a file of bodies."""
    suffix = "" if path is None else Path(path).suffix
    return suffix if suffix in DATA else ""


def lines_to(path: str, as_json: bool = False) -> Lines:
    """Open a line file, whose format follows from its name. Raises BadArgument."""
    out = appended(path)
    return Lines(out, kind_of(path), as_json=as_json, synced=is_regular(out))


def rows_of(batch: Batch) -> Iterable[Row]:
    """The messages of a batch as rows."""
    topic = batch.topic
    for message, born_ms, store_ms in zip(batch, batch.born_ms.tolist(), batch.store_ms.tolist(), strict=True):
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
    """One line per message, appended. `kind`: the suffix of a data file, or "" for bodies (with `as_json`: JSON)."""

    whole = False
    """Whether messages count as written only when the file is closed."""

    def __init__(self, out: IO[bytes], kind: str = "", *, as_json: bool = False, synced: bool = False) -> None:
        """`synced`: the output is a regular file, whose bytes are on stable storage when `flush` returns."""
        self._out = out
        self._kind = ".jsonl" if as_json and not kind else kind
        self._synced = synced
        if kind == ".csv" and not (synced and os.fstat(out.fileno()).st_size):
            out.write(self._csv([CSV_COLUMNS]))

    def write(self, bodies: Sequence[bytes], rows: Iterable[Row]) -> None:
        """Write messages, given as bodies and as rows; `rows` is only iterated if the format needs it."""
        if self._kind == ".jsonl":
            self._out.writelines([render.json_line(**row).encode() + b"\n" for row in rows])
        elif self._kind == ".csv":
            self._out.write(self._csv([[_cell(row.get(name)) for name in CSV_COLUMNS] for row in rows]))
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

    def close(self) -> None:
        self.flush()
        self._out.close()

    def abandon(self) -> None:
        """Stop without flushing. Unflushed messages are delivered again, though they may be in the file."""
        self._out.close()


def _cell(value: Any) -> Any:
    """Join keys with a space, as the log stores them; encode properties as a JSON object."""
    if isinstance(value, list):
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, dict) else value


class Parquet:
    """One Parquet file with the columns of `Batch.to_arrow`."""

    whole = True

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise BadArgument(f"{path} needs pyarrow, which is not installed", "install it, or consume to a .jsonl or .csv file") from error
        self._module = pyarrow
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        if path.exists():
            raise BadArgument(f"{path} exists, and a Parquet file cannot be appended to", "give another file, or remove it")
        try:
            self._file: IO[bytes] = open(self._part, "wb")  # noqa: SIM115 - closed by `close` and `abandon`
        except OSError as error:
            raise BadArgument(f"{path} cannot be written ({error.strerror})", "give another file") from error
        self._writer: Any = None

    def write_batch(self, batch: Batch) -> None:
        record_batch = batch.to_arrow()
        if self._writer is None:
            self._writer = self._module.parquet.ParquetWriter(self._file, record_batch.schema)
        self._writer.write_batch(record_batch)

    def flush(self) -> None:
        """Do nothing: no message counts as written before `close`."""

    def close(self) -> None:
        """Complete the file, make it durable, and give it its name. Without messages there are no columns, and no file is left."""
        if self._writer is None:
            self.abandon()
            return
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._part, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def abandon(self) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            self._part.unlink()


def appended(path: str) -> IO[bytes]:
    """Open a line file to append to. A crash may have torn the last line, whose message is delivered again. In a JSON Lines file the torn
    line is cut off. In other files, which may hold the user's own lines, the line is ended, and so is a quoted CSV cell. Raises
    BadArgument."""
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
        raise BadArgument(f"{path} cannot be opened ({error.strerror})", "give another file, or - for the standard stream") from error
    return out


def is_regular(out: IO[bytes]) -> bool:
    return stat.S_ISREG(os.fstat(out.fileno()).st_mode)


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
    """Whether a CSV file ends inside a quoted cell. A quote inside a cell is written twice, so counting quotes is enough."""
    file.seek(0)
    return sum(piece.count(b'"') for piece in iter(lambda: file.read(_TAIL_BYTES), b"")) % 2 == 1


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
