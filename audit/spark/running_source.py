"""Views of the replicas of a running cluster, and the entries of one replica as a stream for
continuous audits.

    spark.readStream.format("ledgermq").option("endpoints", "127.0.0.1:8081").option("view",
    "entries").option("replicas", "n1").load()

A table ends at an audit marker in each log, like an audit of the cluster. A stream's offset is a
log index: a batch is a range of indexes that were committed before it was planned and never change,
so computing it again gives the same rows. Offsets are only in the checkpoint. With option `store`
the entries that the replica no longer has come from the object store; a batch that is computed
again may then name another replica and file for the same entries. Nothing here judges; the views
read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ledgermq.audit.checks.opening import limit, open_running
from ledgermq.audit.checks.replica import Point, Replica
from ledgermq.audit.reading import remote
from ledgermq.audit.reading.node_paths import authorities_of, node_path
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.ranges import Span
from ledgermq.audit.run.running import ADMIN, REPLICAS, RUNNING, RunningCluster
from ledgermq.audit.spark.cluster.cluster_options import count_of, flag_of, option
from ledgermq.audit.spark.stored_tables import shares_of, stored_log
from ledgermq.audit.spark.task_access import TaskAccess
from ledgermq.audit.spark.views.entries import EntriesView
from ledgermq.audit.spark.views.view import Share
from ledgermq.audit.spark.views.wanted import INDEX, Wanted
from ledgermq.proto import admin_pb2, audit_pb2
from ledgermq.proto.signature import Credentials

WITHIN_S = 10.0
"""Time limit for a marker, and for each replica to reach it."""


def access_for(options: Mapping[str, str]) -> remote.Access:
    """The credentials in the options; by default those of the environment."""
    access_key, secret_key = option(options, "accessKey"), option(options, "secretKey")
    ca, tls = option(options, "caFile"), flag_of(options, "tls", False)
    if not (access_key or secret_key or ca or tls):
        return remote.access_of(os.environ)
    credentials = Credentials(access_key, secret_key) if access_key else None
    return remote.Access(credentials, tls, Path(ca).read_bytes() if ca else None)


def running_replicas(endpoints: str, access: remote.Access, wanted: Wanted) -> list[Replica]:
    """The wanted replicas of a running cluster, each up to its log's marker. Pins keep their files
    for half an hour and then expire. A replica that cannot be read is an error, because a table
    must not silently lack it."""
    remote.use(access)
    with access.connect(endpoints) as connection:
        cluster = RunningCluster(connection, WITHIN_S)
        replicas = cluster.mark(cluster.open())
    for group, names in cluster.lost.items():
        for name, why in names.items():
            if wanted.has_replica(name, group):
                raise ValueError(
                    f"replica {name} of {group} {why}, or name the others with option replicas"
                )
    return replicas


EVERYTHING = Wanted()


@dataclass
class Stretch(Share):
    """A part of a batch: the part of its log file that belongs to it."""

    wanted: Wanted = EVERYTHING


def _stretch(share: Share, wanted: Wanted) -> Stretch:
    return Stretch(share.directory, share.task, share.start, share.names, wanted)


class EntryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The entries of one replica in log order, as they are committed. Sent to Spark's workers."""

    _goal: int | None = None
    """The end for a query that reads the existing entries and stops; None: it continues."""

    def __init__(
        self,
        schema: Any,
        options: Mapping[str, str],
        wanted: Wanted,
        store: StoreAccess | None = None,
    ) -> None:
        if wanted.replicas is None or len(wanted.replicas) != 1:
            raise ValueError(
                "option replicas: a stream reads one replica; give its name, such as n1"
            )
        (self._node,) = wanted.replicas
        self._endpoints, self._access = option(options, "endpoints"), access_for(options)
        self._tasks = TaskAccess(self._access, store)
        self._wanted = wanted
        self._most = count_of(options, "maxEntriesPerTrigger")
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    # -- offsets

    def initialOffset(self) -> dict[str, int]:
        _, group, description = self._described()
        low, begin = self._wanted.span(INDEX).low or 0, int(description.begin.index) + 1
        if self._tasks.store is not None and low < begin:
            begin = stored_log(
                self._tasks.store, group, description.log_id, description.begin.end_pos
            ).begin_index
        return {INDEX: max(begin, low)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = self._end() if self._goal is None else self._goal
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        first = start[INDEX]
        return {INDEX: max(first, end if most is None else min(end, first + most))}

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._end()

    def _end(self) -> int:
        """The index behind the last entry that the replica has applied."""
        end = int(self._described()[2].end.index) + 1
        high = self._wanted.span(INDEX).high
        return end if high is None else min(end, high + 1)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: a stream's offsets are only in the checkpoint."""

    # -- reading

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Stretch]:
        first, last = start[INDEX], end[INDEX] - 1
        if last < first:
            return []
        authority, group, description = self._described()
        begin = int(description.begin.index) + 1
        everything = replace(self._wanted, spans=())
        stretches: list[Stretch] = []
        if first < begin:
            wanted = everything.bounded(INDEX, Span(first, min(last, begin - 1)))
            stretches += [
                _stretch(share, wanted) for share in self._stored(first, group, description, wanted)
            ]
        if last >= begin:
            replica = open_running(node_path(authority), group)
            limit(
                replica,
                Point(
                    description.end.index,
                    description.end.end_pos,
                    description.end.term,
                    description.end.chain,
                ),
            )
            wanted = everything.bounded(INDEX, Span(max(first, begin), last))
            stretches += [
                _stretch(share, wanted) for share in EntriesView().shares(replica, wanted)
            ]
        return stretches

    def _stored(
        self, first: int, group: str, description: audit_pb2.DescribeReplicaResponse, wanted: Wanted
    ) -> Iterator[Share]:
        """The files in the store with entries before the replica's log, from `first` on."""
        begin, where = int(description.begin.index) + 1, self._node
        if self._tasks.store is not None:
            log = stored_log(
                self._tasks.store, group, description.log_id, description.begin.end_pos
            )
            if first >= log.begin_index:
                return shares_of(log, description.begin.end_pos, wanted)
            begin, where = log.begin_index, "the object store"
        why = f"entries {first} to {begin - 1} of {where} were trimmed before they were read"
        raise ValueError(f"{why}; restart with a new checkpoint, and extend the retention")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty list Spark makes an empty partition of its own.
        if isinstance(partition, Stretch):
            self._tasks.use()
            for batch in EntriesView().read(partition, partition.wanted):
                yield batch.to_arrow(self._schema)

    def _described(self) -> tuple[str, str, audit_pb2.DescribeReplicaResponse]:
        """The replica's current node, its group, and the node's description of it."""
        remote.use(self._access)
        with self._access.connect(self._endpoints) as connection:
            status = connection.ask(
                f"{ADMIN}ClusterStatus",
                admin_pb2.ClusterStatusRequest(),
                admin_pb2.ClusterStatusResponse,
            )
        groups = [
            info.group
            for info in status.groups
            if self._wanted.groups is None or info.group in self._wanted.groups
        ]
        authority = authorities_of(status.nodes).get(self._node)
        if authority is None or len(groups) != 1:
            known = (
                f"nodes are {', '.join(info.node for info in status.nodes)}, groups"
                f" {', '.join(info.group for info in status.groups)}"
            )
            raise ValueError(f"options replicas and group name one replica of the cluster; {known}")
        request = audit_pb2.DescribeReplicaRequest(broker_group=groups[0])
        description = remote.call(
            authority, f"{REPLICAS}Describe", request, audit_pb2.DescribeReplicaResponse
        )
        remote.require(authority, groups[0], description.status)
        if description.state != RUNNING:
            raise ValueError(
                f"replica {self._node} of {groups[0]} is {description.state}:"
                f" {description.reason}; continue when"
                " it runs"
            )
        return authority, groups[0], description
