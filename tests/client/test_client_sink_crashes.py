"""Every place at which the process of a sink may end: before each step that changes files, and
before and behind each commit of a table.

The process is killed there, or interrupted by a second Ctrl-C, and so is the one after it, which
may be recovering. Each message is in the files and in the table exactly once afterwards.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.native.sinks.iceberg_sink import IcebergSink
from ledgermq.client.native.sinks.parquet_sink import ParquetSink
from tests.client.fake_reading import Queue as Stored
from tests.client.test_client_iceberg_sink import FakeTable, Lake
from tests.client.test_client_parquet_sink import HOUR_MS, QUEUES, Killed, batch_of, kill, rows_of

pytest.importorskip("pyarrow")

STEPS = ("fsync", "rename", "mkdir", "unlink")
"""The functions of `os` that change names, or make something durable."""


class Ending:
    """Ends the process before its step number `at`, and never if that is more steps than it
    takes."""

    def __init__(self, at: int, how: type[BaseException]) -> None:
        self.left, self.how = at, how

    def step(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise self.how

    @property
    def over(self) -> bool:
        return self.left < 0

    @contextmanager
    def during(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        def before(done: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                self.step()
                return done(*arguments, **options)

            return counted

        with patch.context() as patched:
            for name in STEPS:
                patched.setattr(os, name, before(getattr(os, name)))
            yield


def messages() -> list[Stored]:
    """Two queues, of which one goes on into the next hour."""
    found = [Stored(queue) for _, queue in QUEUES[:2]]
    for stored in found:
        stored.append([str(k).encode() for k in range(3)], store_ms=HOUR_MS)
    found[0].append([b"3", b"4"], store_ms=2 * HOUR_MS)
    return found


def write_all(sink: ParquetSink | IcebergSink, stored: list[Stored]) -> None:
    """The first queue in two batches with a commit between, while the other one is still open."""
    for name, log, ends in (
        (QUEUES[1], stored[1], (2,)),
        (QUEUES[0], stored[0], (2, 5)),
        (QUEUES[1], stored[1], (3,)),
    ):
        for end in ends:
            if (begin := sink.positions.get(name, 0)) < end:
                assert sink.write(batch_of(name, log, begin, end))
                if name == QUEUES[0] and end == 2 and isinstance(sink, ParquetSink):
                    sink.roll(lambda file: file.queue == QUEUES[0])
                elif end == 2:
                    sink.roll()


def to_files(
    directory: Path, stored: list[Stored], ending: Ending, patch: pytest.MonkeyPatch
) -> None:
    """One process."""
    sink = None
    with suppress(Killed, KeyboardInterrupt), ending.during(patch):
        sink = ParquetSink(directory, "c", "t", "hour", 1 << 30, 1e9)
        if ending.how is Killed:
            write_all(sink, stored)
            sink.roll()
        else:
            with sink:
                write_all(sink, stored)
    if sink is not None:
        kill(sink)


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [Killed, KeyboardInterrupt])
def test_files_have_each_message_once_wherever_two_processes_end(
    how: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair of places. The third process is left alone."""
    stored, first, tried = messages(), 0, 0
    ends = [list(range(log.end)) for log in stored]
    while True:
        second = 0
        while True:
            directory = tmp_path / f"{first}-{second}"
            one, two = Ending(first, how), Ending(second, how)
            to_files(directory, stored, one, monkeypatch)
            to_files(directory, stored, two, monkeypatch)
            to_files(directory, stored, Ending(1 << 30, how), monkeypatch)
            found = rows_of(directory)
            assert [found[f"{group}/{queue}"] for group, queue in QUEUES[:2]] == ends, (
                first,
                second,
            )
            tried, second = tried + 1, second + 1
            if not two.over:
                break
        if not one.over:
            break
        first += 1
    assert first > 20 and tried > 300


def to_table(lake: Lake, stored: list[Stored], ending: Ending) -> None:
    """One process. Its steps are looks at the table, and the places before and behind a commit."""
    table = FakeTable(lake)
    load, append = table.load, table.append

    def loading() -> Any:
        ending.step()
        return load()

    def appending(rows: Any, mark: Any) -> None:
        ending.step()
        append(rows, mark)
        ending.step()

    table.load, table.append = loading, appending  # type: ignore[method-assign]
    with suppress(Killed, KeyboardInterrupt):
        sink = IcebergSink(table, "c", "t", 1 << 30, 1e9)
        if ending.how is Killed:
            write_all(sink, stored)
            sink.roll()
        else:
            with sink:
                write_all(sink, stored)


@pytest.mark.verify
@pytest.mark.parametrize("how", [Killed, KeyboardInterrupt])
def test_a_table_has_each_message_once_wherever_three_processes_end(
    how: type[BaseException],
) -> None:
    """Every three places."""
    stored = messages()
    every = Counter(
        (*name, offset)
        for name, log in zip(QUEUES, stored, strict=False)
        for offset in range(log.end)
    )
    for first in range(10):
        for second in range(10):
            for third in range(10):
                lake = Lake()
                for at in (first, second, third, 1 << 30):
                    to_table(lake, stored, Ending(at, how))
                assert lake.rows() == every, (first, second, third)
