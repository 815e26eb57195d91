"""An Iceberg table that a sink writes, through pyiceberg: its configuration names the catalog, as
for every program that uses it.

Law: a commit of a sink is one transaction with a snapshot whose summary holds the sink's mark, and
a property of the table that repeats it. The summary belongs to the rows: a table that is rolled
back also has its former positions. The property is there for the time when the maintenance of the
table has removed that snapshot; it counts only if the remaining history is younger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ledgermq.client.errors import BadArgument, ClusterError
from ledgermq.client.native.sinks.iceberg_sink import Conflict, Mark

MARK = "ledgermq.sink"
"""In a summary the mark; in the properties the sequence number of that snapshot, and the mark."""
AGAIN = "correct the cause, then run the command again; it continues where the table ends"


class IcebergTable:
    """`name`: CATALOG.NAMESPACE.TABLE. Created if it does not exist, partitioned by `partition`:
    day, hour or none."""

    def __init__(self, name: str, partition: str) -> None:
        """Raises BadArgument, ClusterError."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import (
            NoSuchNamespaceError,
            NoSuchTableError,
            TableAlreadyExistsError,
        )

        self.name = name
        catalog, _, self._identifier = name.partition(".")
        if not all(self._identifier.partition(".")) or not catalog:
            raise BadArgument(f"{name} is not the name of a table", "give CATALOG.NAMESPACE.TABLE")
        try:
            self._catalog = load_catalog(catalog)
        except Exception as error:  # each kind of catalog is another library, with its own errors
            remedy = (
                "configure it for pyiceberg: .pyiceberg.yaml, or"
                f" PYICEBERG_CATALOG__{catalog.upper()}__URI"
            )
            raise BadArgument(
                f"the catalog {catalog} cannot be used ({told(error)})", remedy
            ) from error
        with self._reported():
            try:
                self._table = self._catalog.load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                try:
                    self._table = self._catalog.create_table(self._identifier, *_design(partition))
                except TableAlreadyExistsError:
                    # Another process created it in between.
                    self._table = self._catalog.load_table(self._identifier)
                except NoSuchNamespaceError as error:
                    raise BadArgument(
                        f"table {name} cannot be created ({told(error)})", "create its namespace"
                    ) from error
        if self._table.metadata.format_version < 2:
            # Its snapshots have no sequence numbers, and `load` needs them.
            raise BadArgument(
                f"table {name} has format version 1",
                "upgrade it to version 2, or give another table",
            )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (BadArgument, Conflict):
            raise
        except Exception as error:  # catalog and storage are other libraries, with their own errors
            raise ClusterError(f"table {self.name} failed: {told(error)}", AGAIN) from error

    def load(self) -> Mark | None:
        with self._reported():
            table = self._table = self._catalog.load_table(self._identifier)
            snapshot = table.current_snapshot()
        if snapshot is None:
            return None
        while snapshot is not None:
            if (
                snapshot.summary is not None
                and (text := snapshot.summary.additional_properties.get(MARK)) is not None
            ):
                return self._read(text)
            # Removing a snapshot also removes its number from its successor, or leaves it there:
            # both are the end of the history.
            oldest, parent = snapshot, snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        if MARK not in table.properties:
            raise BadArgument(
                f"table {self.name} was written by another program only",
                "give another table, or an empty one",
            )
        sequence, _, text = table.properties[MARK].partition(" ")
        if not sequence.isdigit() or not 0 < int(sequence) < (oldest.sequence_number or 0):
            problem = (
                f"the positions of table {self.name} are lost: its snapshots were removed after it"
                " was rolled back"
            )
            raise BadArgument(problem, "give another table")
        return self._read(text)

    def _read(self, text: str) -> Mark:
        try:
            return Mark.read(text)
        except ValueError as error:
            raise BadArgument(
                f"the positions of table {self.name} cannot be read: {error}", "give another table"
            ) from error

    def append(self, rows: Any, mark: Mark) -> None:
        from pyiceberg.exceptions import CommitFailedException

        # pyiceberg would try again on top of the other commit, even if that is another sink's. This
        # copy of the properties is never stored.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"
        text = mark.text()
        with self._reported():
            try:
                with self._table.transaction() as change:
                    change.append(rows, snapshot_properties={MARK: text})
                    snapshot = change.table_metadata.current_snapshot()
                    change.set_properties({MARK: f"{snapshot.sequence_number or 0} {text}"})
            except CommitFailedException as error:
                raise Conflict from error
            except ValueError as error:
                problem = f"table {self.name} does not take the rows of a sink: {told(error)}"
                raise BadArgument(
                    problem, "give its columns their former names and types, or give another table"
                ) from error


def told(error: Exception) -> str:
    """The kind and the first line of an error; pyiceberg adds tables to some."""
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _design(partition: str) -> tuple[Any, None, Any]:
    """Schema, location and partitioning of a new table. The columns are those of
    `iceberg_sink.rows_of`."""
    from pyiceberg import types as t
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import DayTransform, HourTransform

    always = {
        "broker_group": t.StringType(),
        "group_queue": t.IntegerType(),
        "offset": t.LongType(),
        "store_time": t.TimestamptzType(),
        "born_time": t.TimestamptzType(),
        "body": t.BinaryType(),
    }
    # Numbers from 11 on are within the columns.
    keys = t.ListType(element_id=11, element_type=t.StringType(), element_required=False)
    properties = t.MapType(
        key_id=12,
        key_type=t.StringType(),
        value_id=13,
        value_type=t.StringType(),
        value_required=False,
    )
    kinds = {
        **always,
        "message_id": t.StringType(),
        "tag": t.StringType(),
        "keys": keys,
        "properties": properties,
    }
    names = (
        "broker_group",
        "group_queue",
        "offset",
        "store_time",
        "born_time",
        "message_id",
        "tag",
        "keys",
        "properties",
        "body",
    )
    fields = [
        t.NestedField(number, name, kinds[name], required=name in always)
        for number, name in enumerate(names, 1)
    ]
    transform = {"day": DayTransform(), "hour": HourTransform()}.get(partition)
    by = (
        []
        if transform is None
        else [
            PartitionField(
                names.index("store_time") + 1, 1000, transform, f"store_time_{partition}"
            )
        ]
    )
    return Schema(*fields, identifier_field_ids=[1, 2, 3]), None, PartitionSpec(*by)
