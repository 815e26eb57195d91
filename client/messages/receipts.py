"""Reading receipts from the files that producers wrote, and verifying them with a running cluster.

A file holds one receipt per row, with the columns of `proto/proofs/receipts.py`: Parquet by its
name, otherwise JSON lines. Rows are sent to the cluster in order, a few hundred at a time; the file
is not kept in memory.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.client.api.connection import Connection
from ledgermq.client.api.service import LOG
from ledgermq.client.errors import BadArgument
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.proofs.receipts import receipt_of

BATCH = 200
RESULTS = {
    pb.Verdict.TRUE: "true",
    pb.Verdict.FALSE: "false",
    pb.Verdict.UNVERIFIABLE: "unverifiable",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a row of a file. `row` counts from 1; a row that is not a receipt is false,
    and has no receipt."""

    row: int
    result: str
    reason: str
    receipt: pb.Receipt | None = None


def judge(connection: Connection, path: Path) -> Iterator[Judged]:
    """Verify every row of the file, in order. Raises BadArgument for an unreadable file, and
    Unreachable or Refused as calls do."""
    numbered = enumerate(rows(path), 1)
    while batch := list(itertools.islice(numbered, BATCH)):
        yield from _judged(connection, batch)


def _judged(connection: Connection, batch: list[tuple[int, Any]]) -> Iterator[Judged]:
    read: list[tuple[int, pb.Receipt | None, str]] = []
    for number, row in batch:
        try:
            read.append((number, receipt_of(row), ""))
        except ValueError as error:
            read.append((number, None, str(error)))
    request = pb.VerifyRequest(receipts=[receipt for _, receipt, _ in read if receipt is not None])
    verdicts = iter(
        connection.ask(LOG + "Verify", request, pb.VerifyResponse).verdicts
        if request.receipts
        else ()
    )
    for number, receipt, wrong in read:
        if receipt is None:
            yield Judged(number, "false", wrong)
            continue
        verdict = next(verdicts)
        yield Judged(number, RESULTS.get(verdict.result, "unverifiable"), verdict.reason, receipt)


def rows(path: Path) -> Iterator[Any]:
    """The rows of a file of receipts, as mappings if they are any. Raises BadArgument for an
    unreadable file."""
    return _parquet(path) if path.suffix == ".parquet" else _lines(path)


def _lines(path: Path) -> Iterator[Any]:
    """Read lines; a line that is not a JSON object is a row that is not a receipt."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield _object(line)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadArgument(
            f"{path} is a Parquet file, and pyarrow is not installed", "pip install pyarrow"
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield from batch.to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> BadArgument:
    return BadArgument(
        f"the file {path} cannot be read ({why})", "give a file of receipts, .parquet or JSON lines"
    )
