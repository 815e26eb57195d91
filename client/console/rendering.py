"""Turns values into HTML: the template environment, its filters, and the data of pictures.

Law: everything that comes from the cluster or a browser reaches a page through autoescaping;
nothing here marks text as safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ledgermq.client.console.history import Values
from ledgermq.proto import units

HERE = Path(__file__).parent
ROWS = 100
"""Rows of a table on one page."""
BODY_SHOWN = 4096
"""Bytes of a body on a page."""
TABLE_ROWS = 20
"""Samples in the table beside a picture: the newest."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time: for the picture as JSON, for the table as rows, the newest first."""

    title: str
    labels: tuple[str, ...]
    points: list[tuple[float, Values]]

    @property
    def json(self) -> str:
        columns: list[list[float | None]] = [[at for at, _ in self.points]]
        columns += [
            [values[number] for _, values in self.points] for number in range(len(self.labels))
        ]
        return json.dumps({"labels": self.labels, "data": columns})

    @property
    def rows(self) -> list[tuple[float, Values]]:
        return self.points[: -TABLE_ROWS - 1 : -1]


def merged(title: str, series: dict[str, list[tuple[float, Values]]], value: int = 0) -> Chart:
    """One chart of several series, each by one of its values; their samples need not have the same
    times."""
    times = sorted({at for points in series.values() for at, _ in points})
    values_of = {
        name: {at: values[value] for at, values in points} for name, points in series.items()
    }
    return Chart(
        title,
        tuple(series),
        [(at, tuple(values_of[name].get(at) for name in series)) for at in times],
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """A part of a table that is too long for one page."""

    rows: Sequence[Any]
    start: int
    total: int
    search: str

    @property
    def next(self) -> int | None:
        return self.start + ROWS if self.start + ROWS < self.total else None

    @property
    def previous(self) -> int | None:
        return max(0, self.start - ROWS) if self.start else None


def part(rows: Iterable[Any], name: str, query: Any) -> Rows:
    """The rows whose attribute `name` contains the searched text, from the row on that the query of
    the page names."""
    search = query.get("search", "")
    matching = [row for row in rows if search.lower() in str(getattr(row, name)).lower()]
    given = query.get("start", "0")
    start = (
        min(int(given), max(0, len(matching) - 1))
        if given.isascii() and given.isdigit() and len(given) < 10
        else 0
    )
    return Rows(matching[start : start + ROWS], start, len(matching), search)


def _or_unknown(value: Any) -> Any:
    return "unknown" if value is None else value


def _size(value: int | None) -> str:
    return "unknown" if value is None else units.size_words(value)


def _age(ms: float | None) -> str:
    return "–" if ms is None else units.duration_words(round(ms))


def _moment(value: datetime | float | None) -> str:
    if value is None:
        return "–"
    moment = (
        datetime.fromtimestamp(value, UTC)
        if isinstance(value, (int, float))
        else value.astimezone(UTC)
    )
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _body(body: bytes) -> str:
    """A body as text: UTF-8 where it is, otherwise hexadecimal; long ones are cut."""
    shown = body[:BODY_SHOWN]
    rest = f"\n… {len(body) - BODY_SHOWN} more bytes" if len(body) > BODY_SHOWN else ""
    try:
        # A cut inside of a character is not an error.
        return shown.decode("utf-8", "strict" if not rest else "ignore") + rest
    except UnicodeDecodeError:
        return shown.hex(" ") + rest


@cache
def environment() -> jinja2.Environment:
    """The templates, with autoescape in all of them; an undefined name is an error. All are
    compiled here, not by the first page."""
    loader = jinja2.FileSystemLoader(HERE / "templates")
    templates = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        known=_or_unknown, size=_size, age=_age, moment=_moment, rate=_rate, body=_body
    )
    for name in templates.list_templates():
        templates.get_template(name)
    return templates
