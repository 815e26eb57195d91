"""The Spark data source `ledgermq`: node directories as tables, read by the auditor's own decoder
in the tasks.

    spark.read.format("ledgermq").option("view", "entries").load("ledgermq-data/n1")

Spark finds it by itself (`src/pyspark_ledgermq.py`). `views/` and docs/audit.md describe the views.
With option `endpoints` the replicas are those of a running cluster (`running_source.py`); then
without a view, or with the view `messages`, the source is a topic (`cluster_source.py`,
`cluster_sink.py`) that can be read, streamed and written. This module only turns options into a
reader; it reads and judges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading import objects
from ledgermq.audit.reading.files import is_directory
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.remote import use
from ledgermq.audit.run.jobs import adopt
from ledgermq.audit.run.works import Work
from ledgermq.audit.spark.cluster.cluster_options import flag_of, option
from ledgermq.audit.spark.cluster.cluster_sink import ClusterStreamWriter, ClusterWriter
from ledgermq.audit.spark.cluster.cluster_source import (
    ClusterReader,
    ClusterStreamReader,
    message_schema,
)
from ledgermq.audit.spark.running_source import EntryStreamReader, access_for, running_replicas
from ledgermq.audit.spark.stored_tables import WholeLogs, store_for
from ledgermq.audit.spark.task_access import TaskAccess
from ledgermq.audit.spark.views.entries import EntriesView
from ledgermq.audit.spark.views.key_units import KeyView
from ledgermq.audit.spark.views.messages import MessagesView, RecordsView
from ledgermq.audit.spark.views.ports import View
from ledgermq.audit.spark.views.segments import SegmentsView, WorkPartition, work_batch
from ledgermq.audit.spark.views.state import StateView
from ledgermq.audit.spark.views.units import IndexView, QueueView
from ledgermq.audit.spark.views.view import Share, struct_of
from ledgermq.audit.spark.views.wanted import Wanted, wanted_of

VIEWS: dict[str, View] = {
    "entries": EntriesView(),
    "messages": MessagesView(),
    "records": RecordsView(),
    "index": IndexView(),
    "consumequeue": QueueView(),
    "keyindex": KeyView(),
    "state": StateView(),
    "segments": SegmentsView(),
}


class LedgermqSource(DataSource):  # type: ignore[misc]
    """Node directories, or a topic of a running cluster, as tables."""

    @classmethod
    def name(cls) -> str:
        return "ledgermq"

    def schema(self) -> StructType | str:
        if self._is_topic():
            return message_schema(self.options)
        columns = VIEWS[self._view()].columns
        return struct_of(columns, self._names(columns))

    def reader(self, schema: Any) -> DataSourceReader:
        if self._is_topic():
            self._refuse_store()
            return ClusterReader(schema, self.options)
        if "works" in self.options:
            return WorkReader(schema, json.loads(self.options["works"]))
        view = self._view()
        wanted = wanted_of(self.options, view, VIEWS[view].kinds)
        store = store_for(self.options, view)
        if "endpoints" in self.options:
            return RunningReader(view, schema, self.options, wanted, store)
        kind = PushingReader if flag_of(self.options, "pushdown", False) else ViewReader
        return kind(view, schema, self._directories(), wanted, store)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        self._need_cluster()
        if self._is_topic():
            self._refuse_store()
            return ClusterStreamReader(schema, self.options)
        view = self._view()
        if view != "entries":
            raise ValueError(
                f"view {view} cannot be streamed; entries and a topic (view messages) can"
            )
        wanted = wanted_of(self.options, view, VIEWS[view].kinds)
        return EntryStreamReader(schema, self.options, wanted, store_for(self.options, view))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        self._need_cluster()
        return ClusterWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        self._need_cluster()
        # Spark sets overwrite only for the output mode complete.
        return ClusterStreamWriter(schema, self.options, overwrite)

    def _refuse_store(self) -> None:
        if "store" in self.options:
            raise ValueError(
                "option store: a topic of a running cluster is read through its nodes, which read"
                " the store; omit it, or use view entries, records or segments"
            )

    def _need_cluster(self) -> None:
        if "endpoints" not in self.options:
            raise ValueError("streams and writes need a running cluster: set option endpoints")

    def _is_topic(self) -> bool:
        return (
            "endpoints" in self.options and option(self.options, "view", "messages") == "messages"
        )

    def _view(self) -> str:
        view = option(self.options, "view", "entries")
        if view not in VIEWS:
            raise ValueError(f"there is no view {view!r}; use one of {', '.join(VIEWS)}")
        return view

    def _names(self, columns: Any) -> list[str]:
        wanted = [
            name.strip() for name in option(self.options, "columns", ",".join(columns)).split(",")
        ]
        unknown = [name for name in wanted if name not in columns]
        if unknown:
            raise ValueError(
                f"option columns: there is no column {unknown[0]!r}; use some of"
                f" {', '.join(columns)}"
            )
        return wanted

    def _directories(self) -> list[str]:
        if "dirs" in self.options:
            return [str(directory) for directory in json.loads(self.options["dirs"])]
        if "path" not in self.options and "store" in self.options:
            return []
        if "path" not in self.options:
            raise ValueError(
                "give a node directory, such as load('ledgermq-data/n1'), or several with option"
                " dirs"
            )
        return [self.options["path"]]


class ViewReader(DataSourceReader):  # type: ignore[misc]
    """Reads one view of node directories, and of the object store before them."""

    def __init__(
        self,
        view: str,
        schema: Any,
        directories: list[str],
        wanted: Wanted,
        store: StoreAccess | None = None,
    ) -> None:
        self._view = view
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._directories = directories
        self._wanted = self._chosen = wanted
        self._store = store

    def partitions(self) -> list[Share]:
        view, replicas, stored = VIEWS[self._view], self._replicas(), []
        if self._store is not None:
            # Filters of a query do not choose the replica that continues a stored log: options do.
            logs = WholeLogs(self._store, replicas, self._chosen)
            replicas, stored = logs.replicas, [*logs.shares(self._wanted)]
        return [
            *stored,
            *(
                share
                for replica in replicas
                if self._is_wanted(replica)
                for share in view.shares(replica, self._wanted)
            ),
        ]

    def _replicas(self) -> list[Replica]:
        missing = [directory for directory in self._directories if not is_directory(directory)]
        if missing:
            raise ValueError(
                f"there is no directory {missing[0]}; give node directories, such as"
                " ledgermq-data/n1"
            )
        replicas = [
            replica for directory in self._directories for replica in find_replicas(directory)
        ]
        adopt(replicas)
        return replicas

    def _is_wanted(self, replica: Replica) -> bool:
        return bool(replica.sizes[0]) and self._wanted.has_replica(replica.name, replica.group)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._store is not None:
            objects.use(self._store)
        # For an empty list Spark makes an empty partition of its own.
        if isinstance(partition, Share):
            for batch in VIEWS[self._view].read(partition, self._wanted):
                yield batch.to_arrow(self._schema)


class RunningReader(ViewReader):
    """Reads one view of the replicas of a running cluster, each up to a marker in its log."""

    def __init__(
        self,
        view: str,
        schema: Any,
        options: Mapping[str, str],
        wanted: Wanted,
        store: StoreAccess | None,
    ) -> None:
        super().__init__(view, schema, [], wanted, store)
        self._endpoints, self._access = option(options, "endpoints"), access_for(options)

    def _replicas(self) -> list[Replica]:
        return running_replicas(self._endpoints, self._access, self._wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        use(self._access)
        yield from super().read(partition)


class PushingReader(ViewReader):
    """Reads only what the filters of one query select, with option `pushdown`: for a table that is
    used by only one query.

    PySpark 4.3 keeps the reader that was narrowed for one query. It then uses it for the next query
    over the same table without a filter, and for both sides of a self-join, which would silently
    lose rows. So the option is off by default (docs/decisions). Spark refuses this reader in a
    session without the setting `spark.sql.python.filterPushdown.enabled`.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Every filter is also left to Spark: here it only reduces what is read."""
        self._wanted = self._wanted.narrowed(filters, VIEWS[self._view].bounds)
        return filters


class WorkReader(DataSourceReader):  # type: ignore[misc]
    """Runs partitions of work for the engine; each gives one row of the view `segments`."""

    def __init__(self, schema: Any, works: list[str]) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._works = works
        self._access = TaskAccess.of(works)

    def partitions(self) -> list[WorkPartition]:
        return [WorkPartition(work) for work in self._works]

    def __getstate__(self) -> dict[str, Any]:
        """What Spark sends with every task: a task gets its own work as its partition, and not the
        list."""
        return {**self.__dict__, "_works": []}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._access.use()
        if isinstance(partition, WorkPartition):
            yield work_batch(Work.from_json(partition.work)).to_arrow(self._schema)
