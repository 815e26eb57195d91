"""Replicas with small files, as the comparison of replicas gets them: written by the second writer,
scanned one file at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import scan
from tests.audit.log_writer import Message, Writer

FILE_BYTES = 600
"""Room for three entries of `write`."""
Texts = Sequence[tuple[str, int]]
"""Text and term of each entry."""


def write(base: Path, name: str, texts: Texts, **finish: bool | int | None) -> Writer:
    writer = Writer(base / name, data_bytes=FILE_BYTES)
    for text, term in texts:
        writer.append(Message("t", text.ljust(20, ".").encode(), key="k", term=term))
    return writer.finish(**{"snapshot": False, **finish})  # type: ignore[arg-type]


def opened(writer: Writer) -> Replica:
    (one,) = find_replicas(str(writer.node_dir))
    one.reports = [scan(task, None, None) for task in one.tasks()]
    return one


def place_of(writer: Writer, index: int) -> tuple[Path, str, int]:
    """The file of an entry, as it is shown, and its place there."""
    at = writer.entries[index].pos % FILE_BYTES
    name = f"{writer.entries[index].pos - at:020d}"
    return writer.log / "data" / name, f"g1/dledger-{writer.node}/data/{name}", at
