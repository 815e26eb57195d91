"""The file of deliveries that a native consumer keeps: what it says was acknowledged, the cluster
has answered for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.native.consumers import delivery_log
from ledgermq.client.native.consumers.delivery_log import DeliveryLog
from tests.client.test_client_native_consumer import (
    AsyncConsumer,
    FakeConnection,
    Run,
    consumer_of,
    everything,
    filled,
    some,
)
from tests.client.virtual_time import VirtualLoop

pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def run() -> Iterator[Run]:
    loop = VirtualLoop()
    yield loop.run_until_complete
    assert not asyncio.all_tasks(loop)
    loop.close()


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


async def test_delivery_log_marks_only_committed_deliveries_acknowledged(tmp_path: Path) -> None:
    """Every delivery is a row, those below a committed offset with a time; what was never committed
    is written at the end."""
    log = filled(20, {"g1": 2, "g2": 1})
    path = tmp_path / "deliveries.parquet"
    async with consumer_of(
        log, group="x", until_end=True, delivery_log=path, namespace=""
    ) as consumer:
        found = await everything(consumer)
        assert {number: len(bodies) for number, bodies in found.items()} == {
            0: 20,
            1: 20,
            2: 20,
        }
        await consumer.commit({0: 7, 2: 20})
    table = rows(path)
    assert sorted((row["broker_group"], row["queue"], row["offset"]) for row in table) == sorted(
        (name, queue, offset)
        for name, queue in (("g1", 0), ("g1", 1), ("g2", 0))
        for offset in range(20)
    )
    done = {
        (row["broker_group"], row["queue"], row["offset"])
        for row in table
        if row["acknowledged_ms"] is not None
    }
    assert done == {("g1", 0, offset) for offset in range(7)} | {
        ("g2", 0, offset) for offset in range(20)
    }
    assert {(row["consumer_group"], row["topic"], row["sought"]) for row in table} == {
        ("x", "t", False)
    }
    assert all(
        row["delivered_ms"] <= (row["acknowledged_ms"] or row["delivered_ms"]) for row in table
    )
    with pytest.raises(BadArgument, match="exists already"):
        consumer_of(log, delivery_log=path)


async def test_delivery_log_marks_rows_behind_a_seek(tmp_path: Path) -> None:
    """Behind a seek, everything that the queue held then was asked for by the application; what
    came later was not."""
    log = filled(20, {"g1": 1})
    with DeliveryLog(tmp_path / "deliveries.parquet") as kept:
        async with consumer_of(log, group="x", delivery_log=kept) as consumer:
            await some(consumer, 20)
            consumer.seek(0, 15)
            await some(consumer, 5)
            log.store("g1", 0, [b"new"])
            await some(consumer, 1)
            await consumer.commit()
        assert kept.count == 26
    table = rows(kept.path)
    assert [row["offset"] for row in table] == [*range(20), *range(15, 20), 20]
    assert [row["sought"] for row in table] == [False] * 20 + [True] * 5 + [False]


async def test_delivery_log_without_a_group_writes_rows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is ever committed, so every row is written as it is handed out."""
    with DeliveryLog(tmp_path / "deliveries.parquet") as kept:
        async with consumer_of(filled(20), until_end=True, delivery_log=kept) as consumer:
            await everything(consumer)
        assert kept.count == 40
    assert {(row["consumer_group"], row["acknowledged_ms"]) for row in rows(kept.path)} == {
        ("", None)
    }


async def test_uncommitted_deliveries_are_bounded_and_written_unacknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest deliveries are written as not acknowledged once too many wait: the file says less
    than the truth, never more."""
    monkeypatch.setattr(delivery_log, "PENDING_ROWS", 12)

    with DeliveryLog(tmp_path / "deliveries.parquet") as kept:
        async with consumer_of(
            filled(30, {"g1": 1}), group="x", until_end=True, delivery_log=kept
        ) as consumer:
            await everything(consumer)
            assert kept.count >= 18
            await consumer.commit()
    table = rows(kept.path)
    assert sorted(row["offset"] for row in table) == list(range(30))
    done = [row["offset"] for row in table if row["acknowledged_ms"] is not None]
    assert done == list(range(30 - len(done), 30)) and 0 < len(done) <= 12


async def test_a_file_that_cannot_be_written_ends_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch raises the error to the application."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeliveryLog, "_add", full)
    with pytest.raises(BadArgument, match=r"cannot be written to .* \(No space left on device\)"):
        async with consumer_of(
            filled(20), until_end=True, delivery_log=tmp_path / "deliveries.parquet"
        ) as consumer:
            await everything(consumer)


async def test_a_consumer_that_cannot_be_opened_leaves_no_file(tmp_path: Path) -> None:
    """The next attempt does not find it in its way; a consumer that opened and received nothing
    leaves a file without rows."""
    path = tmp_path / "deliveries.parquet"
    log = filled(0, {"g1": 1})
    failing = AsyncConsumer(";".join(log.endpoints), "absent", delivery_log=path)
    failing._connection = FakeConnection(log, 1000)
    with pytest.raises(Refused):
        await failing.__aenter__()
    assert list(tmp_path.iterdir()) == []
    async with consumer_of(log, until_end=True, delivery_log=path) as consumer:
        await everything(consumer)
    assert rows(path) == []
