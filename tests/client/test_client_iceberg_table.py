"""The table of a sink in pyiceberg, with a catalog in SQLite: what its maintenance and other
programs may do, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.errors import BadArgument, ClusterError
from ledgermq.client.native.sinks.iceberg_sink import IcebergSink
from tests.client.fake_reading import Queue as Stored
from tests.client.test_client_parquet_sink import HOUR_MS, QUEUES, batch_of

pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.verify

NAME = "lake.sales.orders"
FIRST_HOUR = 480_000 - 2
"""Two hours before midnight."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalog `lake`. pyiceberg reads a user's configuration when it is imported; the
    end-to-end test has one."""
    import pyiceberg.catalog

    load = pyiceberg.catalog.load_catalog
    where = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    monkeypatch.setattr(
        pyiceberg.catalog,
        "load_catalog",
        lambda name: load(name, **(where if name == "lake" else {})),
    )
    catalog = load("lake", **where)
    catalog.create_namespace("sales")
    yield catalog
    catalog.close()


@pytest.fixture
def stored() -> Stored:
    """Forty messages, ten an hour, over two days."""
    stored = Stored(0)
    for hour in range(4):
        stored.append(
            [str(10 * hour + k).encode() for k in range(10)], store_ms=(FIRST_HOUR + hour) * HOUR_MS
        )
    return stored


def open_sink(partition: str = "hour") -> IcebergSink:
    from ledgermq.client.native.sinks.iceberg_table import IcebergTable

    return IcebergSink(IcebergTable(NAME, partition), "c", "t", 1 << 30, 1e9)


def sink_to(end: int, stored: Stored) -> None:
    """A whole process: from the positions to this offset."""
    with open_sink() as sink:
        begin = sink.positions.get(QUEUES[0], 0)
        assert sink.write(batch_of(QUEUES[0], stored, begin, end))


def bodies(lake: Any) -> list[int]:
    return sorted(
        int(body) for body in lake.load_table("sales.orders").scan().to_arrow()["body"].to_pylist()
    )


def another_commit(table: Any) -> None:
    """Such as the one of a job that merges files."""
    with table.transaction() as change, change.update_snapshot().merge_append():
        pass


def expire(table: Any) -> None:
    """Remove every snapshot but the current one."""
    current = table.current_snapshot().snapshot_id
    table.maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
    ).commit()


def test_it_continues_where_the_table_ends(lake: Any, stored: Stored) -> None:
    """Also behind commits of others, and when the snapshots with the positions are gone, twice."""
    sink_to(5, stored)
    sink_to(15, stored)
    for end in (25, 35):
        another_commit(lake.load_table("sales.orders"))
        expire(lake.load_table("sales.orders"))
        assert len(lake.load_table("sales.orders").snapshots()) == 1
        sink_to(end, stored)
    assert bodies(lake) == list(range(35))


def test_a_table_that_is_rolled_back_has_its_former_positions(lake: Any, stored: Stored) -> None:
    """The messages whose rows went are added again. A sink that runs meanwhile ends."""
    sink_to(5, stored)
    table = lake.load_table("sales.orders")
    former = table.current_snapshot().snapshot_id
    sink_to(15, stored)
    with pytest.raises(BadArgument, match="or it was rolled back"), open_sink() as running:
        running.write(batch_of(QUEUES[0], stored, 15, 20))
        lake.load_table("sales.orders").manage_snapshots().set_current_snapshot(
            snapshot_id=former
        ).commit()
    assert bodies(lake) == list(range(5))
    another_commit(lake.load_table("sales.orders"))
    sink_to(20, stored)
    assert bodies(lake) == list(range(20))


def test_positions_that_are_lost_are_not_guessed(lake: Any, stored: Stored) -> None:
    """Rolled back to a commit of another program, all snapshots with positions are removed: the
    property is of a later history."""
    sink_to(5, stored)
    another_commit(lake.load_table("sales.orders"))
    former = lake.load_table("sales.orders").current_snapshot().snapshot_id
    sink_to(15, stored)
    lake.load_table("sales.orders").manage_snapshots().set_current_snapshot(
        snapshot_id=former
    ).commit()
    expire(lake.load_table("sales.orders"))
    with pytest.raises(BadArgument, match=r"positions .* are lost"):
        open_sink()


def test_of_two_sinks_one_ends(lake: Any, stored: Stored) -> None:
    """Between the look at the table and the commit too: pyiceberg must not try again on top of the
    other sink's commit, whatever the table's properties say."""
    sink_to(5, stored)
    lake.load_table("sales.orders").transaction().set_properties(
        {"commit.retry.num-retries": "4"}
    ).commit_transaction()
    first = open_sink()
    first.write(batch_of(QUEUES[0], stored, 5, 15))
    table: Any = first._table
    append = table.append

    def appending(rows: Any, mark: Any) -> None:
        table.append = append
        sink_to(10, stored)
        append(rows, mark)

    table.append = appending
    with pytest.raises(BadArgument, match="another sink of the topic writes it"), first:
        first.roll()
    assert bodies(lake) == list(range(10))
    assert lake.load_table("sales.orders").properties["commit.retry.num-retries"] == "4"
    sink_to(20, stored)
    assert bodies(lake) == list(range(20))


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda columns: columns.add_column("seen", string()), False),
        (lambda columns: columns.make_column_optional("born_time"), False),
        (lambda columns: columns.rename_column("tag", "label"), True),
        (lambda columns: columns.delete_column("keys"), True),
        (lambda columns: columns.add_column("seen", string(), required=True), True),
    ],
    ids=["column added", "made optional", "renamed", "deleted", "required column added"],
)
def test_columns_that_change(
    change: Callable[[Any], object], refused: bool, lake: Any, stored: Stored
) -> None:
    """Between runs and within one: what a sink still writes goes on, everything else is refused
    before any row is added."""
    sink_to(5, stored)
    running = open_sink()
    running.write(batch_of(QUEUES[0], stored, 5, 10))
    with lake.load_table("sales.orders").update_schema(allow_incompatible_changes=True) as columns:
        change(columns)
    if not refused:
        running.roll()
        sink_to(15, stored)
    else:
        with pytest.raises(BadArgument, match="does not take the rows of a sink"):
            running.roll()
        with pytest.raises(BadArgument, match="does not take the rows of a sink"):
            sink_to(15, stored)
    # A table with a new required column cannot be read.
    summary = lake.load_table("sales.orders").current_snapshot().summary
    assert summary["total-records"] == ("5" if refused else "15")


def string() -> Any:
    from pyiceberg.types import StringType

    return StringType()


@pytest.mark.parametrize(("partition", "files"), [("day", 2), ("hour", 4), ("none", 1)])
def test_a_query_by_time_reads_only_the_files_that_it_needs(
    partition: str, files: int, lake: Any, stored: Stored
) -> None:
    with open_sink(partition) as sink:
        sink.write(batch_of(QUEUES[0], stored, 0, 40))
    table = lake.load_table("sales.orders")
    assert len(list(table.scan().plan_files())) == files
    last_hour = datetime.fromtimestamp((FIRST_HOUR + 3) * 3600, UTC).isoformat()
    late = table.scan(f"store_time >= '{last_hour}'")
    assert len(list(late.plan_files())) == 1 and late.to_arrow()["offset"].to_pylist() == list(
        range(30, 40)
    )
    assert table.schema().identifier_field_names() == {"broker_group", "group_queue", "offset"}
    assert bodies(lake) == list(range(40))


def test_foreign_dropped_or_missing_table_is_refused(lake: Any, stored: Stored) -> None:
    """A table of another program, one that is dropped while a sink writes it, and names that are
    not there."""
    from ledgermq.client.native.sinks.iceberg_table import IcebergTable

    for name, said in (
        ("orders", "not the name of a table"),
        ("lake.orders", "not the name of a table"),
        (".sales.orders", "not the name of a table"),
        ("none.sales.orders", "the catalog none cannot be used"),
        ("lake.none.orders", "cannot be created"),
    ):
        with pytest.raises(BadArgument, match=said):
            IcebergTable(name, "day")
    running = open_sink()
    lake.create_table(
        "sales.old",
        schema=lake.load_table("sales.orders").schema(),
        properties={"format-version": "1"},
    )
    with pytest.raises(BadArgument, match="has format version 1"):
        IcebergTable("lake.sales.old", "day")
    running.write(batch_of(QUEUES[0], stored, 0, 5))
    another_commit(lake.load_table("sales.orders"))
    with pytest.raises(BadArgument, match="written by another program only"):
        open_sink()
    with pytest.raises(BadArgument, match="written by another program only"):
        running.roll()
    lake.drop_table("sales.orders")
    sink_to(5, stored)
    running = open_sink()
    running.write(batch_of(QUEUES[0], stored, 5, 10))
    lake.drop_table("sales.orders")
    with pytest.raises(ClusterError, match="NoSuchTableError"):
        running.roll()
    sink_to(10, stored)
    assert bodies(lake) == list(range(10))
    table = lake.load_table("sales.orders")
    with table.transaction() as change:
        change.append(table.scan().to_arrow(), snapshot_properties={"ledgermq.sink": "{}"})
    with pytest.raises(BadArgument, match="cannot be read"):
        open_sink()
