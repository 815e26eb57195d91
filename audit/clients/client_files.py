"""Reading the clients' files as columns: receipts of producers and deliveries of consumers, Parquet
or JSON lines, in bounded pieces.

The files come from users: an invalid file raises `BadFile` with a sentence for the user; an invalid
row becomes a claim that cannot be true, and is reported where claims are judged. Nothing is
compared with a log here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgermq.audit.clients.bad_file import BadFile

RECEIPTS, DELIVERIES = "receipts", "deliveries"
BATCH_ROWS = 1 << 16
_RANGES = pa.list_(
    pa.struct([("queue", pa.int32()), ("first_offset", pa.int64()), ("count", pa.int64())])
)
KINDS: dict[str, dict[str, pa.DataType]] = {
    RECEIPTS: {
        "cluster_id": pa.string(),
        "broker_group": pa.string(),
        "log_id": pa.string(),
        "topic": pa.string(),
        "producer_id": pa.int64(),
        "epoch": pa.int64(),
        "first_sequence": pa.int64(),
        "count": pa.int64(),
        "term": pa.int64(),
        "first_index": pa.int64(),
        "ranges": _RANGES,
        "chain_crc": pa.int64(),
        "store_ms": pa.int64(),
        "durability": pa.string(),
        "key_id": pa.string(),
    },
    DELIVERIES: {
        "consumer_group": pa.string(),
        "topic": pa.string(),
        "broker_group": pa.string(),
        "queue": pa.int32(),
        "offset": pa.int64(),
        "message_id": pa.string(),
        "message_group": pa.string(),
        "delivered_ms": pa.int64(),
        "acknowledged_ms": pa.int64(),
        "sought": pa.bool_(),
    },
}
NEEDED = {RECEIPTS: tuple(KINDS[RECEIPTS]), DELIVERIES: ("topic", "message_id", "delivered_ms")}


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A part of a file: some row groups of a Parquet file, or a whole JSON lines file. `number`: of
    the file among those of the audit. `first_row` counts from 1."""

    kind: str
    path: str
    number: int
    rows: int | None
    row_groups: tuple[int, ...] | None
    first_row: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ClientFile:
        value = json.loads(text)
        groups = value.pop("row_groups")
        return cls(**value, row_groups=None if groups is None else tuple(groups))


def find_files(kind: str, paths: Sequence[str]) -> list[str]:
    """The files that the user named: files, and directories of .parquet, .jsonl and .json. Raises
    BadFile."""
    files: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = [
                f"{path}/{name}"
                for name in sorted(os.listdir(path))
                if name.endswith((".parquet", ".jsonl", ".json"))
            ]
            if not inside:
                raise BadFile(
                    f"{path} holds no file of {kind}; give files that end in .parquet or .jsonl"
                )
            files += inside
        else:
            files.append(path)
    return list(dict.fromkeys(files))


def parts_of(kind: str, number: int, path: str, rows_at_once: int) -> list[ClientFile]:
    """Split a file into parts of about `rows_at_once` rows, and check its columns. Raises
    BadFile."""
    if not path.endswith(".parquet"):
        part = ClientFile(kind, path, number, None, None)
        with _told(kind, path):
            next(_lines(part, 1), None)
        return [part]
    with _told(kind, path), pq.ParquetFile(path) as file:
        _check_columns(kind, path, file.schema_arrow.names)
        counts = [
            file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)
        ]
    parts: list[ClientFile] = []
    begin = row = held = 0
    for at, count in enumerate(counts):
        held += count
        if held >= rows_at_once or at + 1 == len(counts):
            parts.append(
                ClientFile(
                    kind=kind,
                    path=path,
                    number=number,
                    rows=held,
                    row_groups=tuple(range(begin, at + 1)),
                    first_row=row + 1,
                )
            )
            begin, row, held = at + 1, row + held, 0
    return parts


def read_part(part: ClientFile) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of its first row, rows with the columns of the kind), batch by batch. Raises
    BadFile."""
    row = part.first_row
    with _told(part.kind, part.path):
        for batch in _parquet(part) if part.row_groups is not None else _lines(part):
            yield row, _typed(part, batch)
            row += batch.num_rows


def _parquet(part: ClientFile) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(part.path) as file:
        names = [name for name in file.schema_arrow.names if name in KINDS[part.kind]]
        yield from file.iter_batches(
            BATCH_ROWS, row_groups=list(part.row_groups or ()), columns=names
        )


def _lines(part: ClientFile, rows_at_once: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    with open(part.path, "rb") as file:
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise BadFile(
                    f"{part.path}, line {number}, is not a JSON object; give a file of {part.kind},"
                    " .parquet or JSON lines"
                )
            if not rows:
                _check_columns(part.kind, part.path, value)
            rows.append({name: value.get(name) for name in KINDS[part.kind]})
            if len(rows) >= rows_at_once:
                yield _of_rows(part, rows)
                rows = []
        if rows:
            yield _of_rows(part, rows)


def _of_rows(part: ClientFile, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_pylist(rows, schema=pa.schema(KINDS[part.kind].items()))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadFile(f"{part.path} is not a file of {part.kind}: {error}") from error


def _typed(part: ClientFile, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of the kind with their types; null where the file has no such column."""
    columns = []
    for name, wanted in KINDS[part.kind].items():
        if name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, wanted))
            continue
        column = batch.column(name)
        if pa.types.is_timestamp(column.type) and pa.types.is_integer(wanted):
            column = pc.cast(column, pa.timestamp("ms"), safe=False)
        try:
            columns.append(column if column.type == wanted else pc.cast(column, wanted))
        except pa.ArrowException as error:
            raise BadFile(
                f"{part.path} is not a file of {part.kind}: column {name} is {column.type}, not"
                f" {wanted}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(KINDS[part.kind].items()))


def _check_columns(kind: str, path: str, names: Any) -> None:
    missing = [name for name in NEEDED[kind] if name not in names]
    if missing:
        raise BadFile(f"{path} is not a file of {kind}: it has no column {missing[0]}")


class _told:
    """Converts every error of a file reader to a BadFile that names the file."""

    def __init__(self, kind: str, path: str) -> None:
        self._kind, self._path = kind, path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, BadFile) or not isinstance(
            error, OSError | pa.ArrowException | UnicodeDecodeError
        ):
            return
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else str(error).splitlines()[0]
        )
        raise BadFile(
            f"{self._path} cannot be read as {self._kind} ({why}); a file is complete after its"
            " writer was closed"
        ) from error
