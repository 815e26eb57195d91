"""Reading messages from the rows of `.jsonl`, `.csv` and `.parquet` files, and sending them through
native streams.

A row that is not a message becomes a BadRow with its number; the others are sent. Command options
and exit statuses are not known here.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ledgermq.client.errors import BadArgument, ClusterError, Refused
from ledgermq.client.messages.sending import SendSummary, weaker_of
from ledgermq.proto.proofs.receipts import class_of
from ledgermq.proto.status import Code

if TYPE_CHECKING:
    from ledgermq.client.native.producers.outcomes import BatchAcknowledged
    from ledgermq.client.native.producers.sync_producer import Producer

KINDS = (".jsonl", ".csv", ".parquet")
FIELDS = ("body", "body_base64", "tag", "keys", "message_group", "properties")
"""Fields of a row that are ignored: `consume --json` prints them to say where a message was."""
PLACE_FIELDS = frozenset(
    {"v", "message_id", "topic", "queue", "offset", "attempt", "born_ms", "store_ms"}
)
CHUNK_ROWS = 1000
CHUNK_BYTES = 1 << 20
CHUNKS_AHEAD = 64
BYTES_AHEAD = 64 << 20


class Row(NamedTuple):
    """One message of a file. `line`: in text files the line where the row starts, otherwise the
    number of the row, from 1."""

    line: int
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}
    message_group: str | None = None


class BadRow(NamedTuple):
    """A row that cannot be sent."""

    line: int
    reason: str


def kind_of(path: str) -> str | None:
    """The kind of a data file, by its name; None: one message per line."""
    suffix = PurePath(path).suffix.lower()
    return suffix if suffix in KINDS else None


def read_rows(kind: str, source: IO[bytes]) -> Iterator[Row | BadRow]:
    """The rows of an open file. Raises BadArgument if the whole file has another format."""
    return {".jsonl": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}[kind](source)


def _json_rows(source: IO[bytes]) -> Iterator[Row | BadRow]:
    for line, text in enumerate(source, 1):
        if not text.strip():
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield BadRow(line, f"no JSON: {error}")
            continue
        if not isinstance(fields, dict):
            yield BadRow(line, "no JSON object")
            continue
        unknown = [name for name in fields if name not in FIELDS and name not in PLACE_FIELDS]
        yield (
            BadRow(line, f"the field {unknown[0]!r} is not known; give it among the properties")
            if unknown
            else _row(line, fields)
        )


def _csv_rows(source: IO[bytes]) -> Iterator[Row | BadRow]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.reader(io.TextIOWrapper(source, "utf-8-sig", newline=""), strict=True)
    try:
        names = next(reader, [])
        if "body" not in names:
            raise BadArgument(
                "the first line of the file names no column 'body'",
                "give a header: body,tag,keys,…",
            )
        if len(set(names)) != len(names):
            raise BadArgument(
                "the first line of the file names a column twice", "give each column its own name"
            )
        while True:
            line = reader.line_num + 1
            cells = next(reader, None)
            if cells is None:
                return
            if len(cells) != len(names):
                if cells:
                    yield BadRow(
                        line, f"{len(cells)} cells, and the header names {len(names)} columns"
                    )
                continue
            # An empty cell means no value. An empty body cell is a value, unless there is another
            # column for the body.
            needed = {"body"} if "body_base64" not in names else set()
            fields = {
                name: cell
                for name, cell in zip(names, cells, strict=True)
                if cell or name in needed
            }
            yield _row(line, _with_properties(fields))
    except (csv.Error, UnicodeDecodeError) as error:
        yield BadRow(reader.line_num, f"no CSV in UTF-8 from here on: {error}")


def _parquet_rows(source: IO[bytes]) -> Iterator[Row | BadRow]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadArgument(
            "Parquet files need pyarrow", "install it: pip install 'ledgermq[audit]'"
        ) from None
    try:
        file = parquet.ParquetFile(source)
    except (pa.ArrowException, OSError) as error:
        raise BadArgument(f"the file is no Parquet file ({error})", "give another file") from None
    if "body" not in file.schema_arrow.names:
        raise BadArgument(
            "the file has no column 'body'", f"it has {', '.join(file.schema_arrow.names)}"
        )
    line = 0
    batches = file.iter_batches(CHUNK_ROWS)
    while True:
        try:
            batch = next(batches, None)
            rows = [] if batch is None else batch.to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            yield BadRow(line + 1, f"the file cannot be read from here on: {error}")
            return
        if batch is None:
            return
        for cells in rows:
            line += 1
            if isinstance(cells.get("properties"), list):
                cells["properties"] = _map_of(cells["properties"])
            yield _row(
                line,
                _with_properties({name: cell for name, cell in cells.items() if cell is not None}),
            )


def _map_of(pairs: list[Any]) -> Any:
    """Convert Arrow's list of pairs to a dict; leave other lists unchanged."""
    return (
        dict(pairs) if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs) else pairs
    )


def _with_properties(fields: dict[str, Any]) -> dict[str, Any]:
    """Treat columns without a meaning of their own as properties."""
    given = fields.get("properties")
    others = {
        name: str(cell)
        for name, cell in fields.items()
        if name not in FIELDS and name not in PLACE_FIELDS
    }
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return fields
    if others:
        return (
            {**fields, "properties": {**others, **(given or {})}}
            if isinstance(given, dict | None)
            else fields
        )
    return {**fields, "properties": given}


def _bytes(body: Any) -> bytes:
    if not isinstance(body, str | bytes):
        raise TypeError(f"it is of type {type(body).__name__}")
    return body.encode() if isinstance(body, str) else body


def _row(line: int, fields: Mapping[str, Any]) -> Row | BadRow:
    body, encoded = fields.get("body"), fields.get("body_base64")
    if (body is None) == (encoded is None):
        return BadRow(line, "a message has either a body or a body_base64")
    try:
        data = _bytes(body) if encoded is None else base64.b64decode(encoded, validate=True)
    except (ValueError, TypeError) as error:
        return BadRow(line, f"the body is neither text nor base64 ({error})")
    if not data:
        return BadRow(line, "the body is empty")
    tag, group, keys, properties = (
        fields.get("tag"),
        fields.get("message_group"),
        fields.get("keys"),
        fields.get("properties"),
    )
    if not isinstance(keys, str | list | None):
        return BadRow(line, "keys are a text or a list of texts")
    names = tuple(keys.split()) if isinstance(keys, str) else tuple(keys or ())
    if not all(isinstance(text, str | None) for text in (tag, group)) or not all(
        isinstance(text, str) for text in names
    ):
        return BadRow(line, "tag, keys and message_group are texts")
    if properties is not None and not isinstance(properties, dict):
        return BadRow(line, "properties are an object of texts")
    user = {name: value for name, value in (properties or {}).items() if value is not None}
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in user.items()):
        return BadRow(line, "properties are an object of texts")
    try:
        "".join((tag or "", group or "", *names, *user, *user.values())).encode()
    except UnicodeEncodeError as error:
        return BadRow(line, f"tag, keys, message_group and properties are texts ({error.reason})")
    return Row(
        line=line,
        body=data,
        tag=tag or None,
        keys=names,
        properties=user,
        message_group=group or None,
    )


@dataclass
class FileSummary(SendSummary):
    """A summary that also holds the first rows that were not acknowledged, with the reasons."""

    bad_rows: list[BadRow] = field(default_factory=list)


def with_defaults(row: Row | BadRow, default: Row) -> Row | BadRow:
    """A row with the default for each value that it does not set."""
    if isinstance(row, BadRow):
        return row
    group = row.message_group or default.message_group
    return Row(
        line=row.line,
        body=row.body,
        tag=row.tag or default.tag,
        keys=row.keys or default.keys,
        properties={**default.properties, **row.properties},
        message_group=group,
    )


def _chunks(rows: Iterable[Row | BadRow]) -> Iterator[list[Row | BadRow]]:
    """Chunks limited by number of rows and bytes of bodies; the row that exceeds the limit is
    included."""
    chunk: list[Row | BadRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.body) if isinstance(row, Row) else 0
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _bytes_of(rows: Iterable[Row]) -> int:
    return sum(len(row.body) for row in rows)


class FileSender:
    """Sends rows with a native producer in chunks, with several chunks in flight."""

    def __init__(
        self, producer: Producer, report: Callable[[int], None], rows_reported: int = 10
    ) -> None:
        """`report` is called with the number of acknowledged rows; at most `rows_reported` failed
        rows are remembered."""
        self._producer = producer
        self._report = report
        self._rows_reported = rows_reported
        self._ahead: deque[tuple[list[Row], Future[BatchAcknowledged], int]] = deque()
        """Per chunk: its rows, its outcome, and the number of messages the producer had
        acknowledged before it."""
        self._ahead_bytes = 0
        self._summary = FileSummary()

    def send_all(self, rows: Iterable[Row | BadRow]) -> FileSummary:
        """Send everything. Stops if no row was acknowledged for the timeout of a message; a failed
        row does not stop the others."""
        started = time.monotonic()
        for chunk in _chunks(rows):
            if self._summary.given_up:
                break
            self._summary.sent += len(chunk)
            for bad in chunk:
                if isinstance(bad, BadRow):
                    self._failed(bad)
                elif bad.message_group is not None:
                    self._failed(BadRow(bad.line, "a message group needs a fifo topic"))
            good = [row for row in chunk if isinstance(row, Row) and row.message_group is None]
            if good:
                self._send(good)
            while self._ahead and (
                self._ahead[0][1].done()
                or len(self._ahead) > CHUNKS_AHEAD
                or self._ahead_bytes > BYTES_AHEAD
            ):
                self._settle()
        while self._ahead:
            self._settle()
        self._summary.duration_ms = round((time.monotonic() - started) * 1000)
        return self._summary

    def _send(self, rows: list[Row]) -> None:
        columns: dict[str, Any] = {}
        for name in ("tag", "keys", "properties"):
            values = [getattr(row, name) for row in rows]
            if any(values):
                columns["tags" if name == "tag" else name] = values
        self._ahead_bytes += _bytes_of(rows)
        before = self._producer.statistics.acknowledged
        self._ahead.append(
            (rows, self._producer.send_batch([row.body for row in rows], **columns), before)
        )

    def _settle(self) -> None:
        from ledgermq.client.native.producers.outcomes import Acknowledged, BatchFailed

        rows, future, before = self._ahead.popleft()
        self._ahead_bytes -= _bytes_of(rows)
        summary = self._summary
        try:
            done = future.result()
        except BatchFailed as failed:
            done = failed.acknowledged
            for failure in failed.failures:
                error = failure.error
                assert isinstance(error, ClusterError)
                for row in failure.rows:
                    self._failed(BadRow(rows[row].line, error.what), error)
                summary.given_up |= (
                    error.retryable and self._producer.statistics.acknowledged == before
                )
        for frame in done.frames:
            summary.acknowledged += frame.count
            if frame.receipt is not None:
                summary.durability = weaker_of(summary.durability, class_of(frame.receipt))
            last = Acknowledged(frame, frame.count - 1)
            summary.message_id, summary.queue, summary.offset = (
                last.message_id,
                last.queue,
                last.offset,
            )
        self._report(summary.acknowledged)

    def _failed(self, bad: BadRow, error: ClusterError | None = None) -> None:
        summary = self._summary
        summary.failed += 1
        if len(summary.bad_rows) < self._rows_reported:
            summary.bad_rows.append(bad)
        refused = Refused(Code.BAD_REQUEST, f"line {bad.line}: {bad.reason}")
        if summary.first_error is None or (error is not None and not isinstance(error, Refused)):
            summary.first_error = error or refused
