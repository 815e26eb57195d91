"""Views of the replicas of a running cluster, and the entries of one replica as a stream that audits for as long as the cluster runs.

    spark.readStream.format("ledgermq").option("endpoints", "127.0.0.1:8081").option("view", "entries").option("replicas", "n1").load()

A table ends at an audit marker in each log, like an audit of the cluster. A stream's offset is a log index: a batch is a range of indexes
that were committed before it was planned and never change, so a batch that is computed again is the same. The checkpoint is the only place
where offsets are. Nothing here judges; the views read.
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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ledgermq.audit.checks.opening import open_running
from ledgermq.audit.checks.replica import Point, Replica
from ledgermq.audit.reading import remote
from ledgermq.audit.reading.node_paths import authorities_of, node_path
from ledgermq.audit.reading.ranges import Span
from ledgermq.audit.running import ADMIN, REPLICAS, RUNNING, RunningCluster
from ledgermq.audit.spark.cluster_options import count_of, flag_of, option
from ledgermq.audit.spark.views.entries import EntriesView
from ledgermq.audit.spark.views.view import Share
from ledgermq.audit.spark.views.wanted import INDEX, Wanted
from ledgermq.proto import admin_pb2, audit_pb2
from ledgermq.proto.signature import Credentials

WITHIN_S = 10.0
"""How long a marker, and each replica, may take."""


def access_for(options: Mapping[str, str]) -> remote.Access:
    """How the options say to sign in; where they say nothing, the environment."""
    access_key, secret_key = option(options, "accessKey"), option(options, "secretKey")
    ca, tls = option(options, "caFile"), flag_of(options, "tls", False)
    if not (access_key or secret_key or ca or tls):
        return remote.access_of(os.environ)
    credentials = Credentials(access_key, secret_key) if access_key else None
    return remote.Access(credentials, tls, Path(ca).read_bytes() if ca else None)


def running_replicas(endpoints: str, access: remote.Access, wanted: Wanted) -> list[Replica]:
    """The wanted replicas of a running cluster, each as far as its log's marker. Their files stay for half an hour: the pins run out by
    themselves. A replica that cannot be looked at is an error: a table must not lack it without a word."""
    remote.use(access)
    with access.connect(endpoints) as connection:
        cluster = RunningCluster(connection, WITHIN_S)
        found = cluster.open()
    for group, names in cluster.lost.items():
        for name, why in names.items():
            if wanted.has_replica(name, group):
                raise ValueError(f"replica {name} of {group} {why}, or name the others with option replicas")
    return found


EVERYTHING = Wanted()


@dataclass
class Stretch(Share):
    """A part of a batch, with what of its log file belongs to it."""

    wanted: Wanted = EVERYTHING


class EntryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The entries of one replica, in log order, as they are committed. Travels to Spark's workers."""

    _goal: int | None = None
    """Where a query ends that reads what is there and stops; None: it goes on."""

    def __init__(self, schema: Any, options: Mapping[str, str], wanted: Wanted) -> None:
        if wanted.replicas is None or len(wanted.replicas) != 1:
            raise ValueError("option replicas: a stream reads one replica; name it, such as n1")
        (self._node,) = wanted.replicas
        self._endpoints, self._access = option(options, "endpoints"), access_for(options)
        self._wanted = wanted
        self._most = count_of(options, "maxEntriesPerTrigger")
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    # -- offsets

    def initialOffset(self) -> dict[str, int]:
        begin = int(self._described()[2].begin.index) + 1
        return {INDEX: max(begin, self._wanted.span(INDEX).low or 0)}

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
        """Behind the last entry that the replica has applied."""
        end = int(self._described()[2].end.index) + 1
        high = self._wanted.span(INDEX).high
        return end if high is None else min(end, high + 1)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: the checkpoint is the only place where a stream's offsets are."""

    # -- reading

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Stretch]:
        first, last = start[INDEX], end[INDEX] - 1
        if last < first:
            return []
        authority, group, told = self._described()
        if first <= told.begin.index:
            why = f"entries {first} to {told.begin.index} of {self._node} were trimmed before they were read"
            raise ValueError(f"{why}; begin again with a new checkpoint, or let retention keep more")
        here = Point(told.end.index, told.end.end_pos, told.end.term, told.end.chain)
        replica = open_running(node_path(authority), group, here)
        wanted = replace(self._wanted, spans=()).bounded(INDEX, Span(first, last))
        shares = EntriesView().shares(replica, wanted)
        return [Stretch(share.directory, share.task, share.start, share.names, wanted) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one empty partition of its own out of an empty list.
        if isinstance(partition, Stretch):
            remote.use(self._access)
            for batch in EntriesView().read(partition, partition.wanted):
                yield batch.to_arrow(self._schema)

    def _described(self) -> tuple[str, str, audit_pb2.DescribeReplicaResponse]:
        """Where the replica is now, its group, and what its node says of it."""
        remote.use(self._access)
        with self._access.connect(self._endpoints) as connection:
            status = connection.ask(f"{ADMIN}ClusterStatus", admin_pb2.ClusterStatusRequest(), admin_pb2.ClusterStatusResponse)
        groups = [info.group for info in status.groups if self._wanted.groups is None or info.group in self._wanted.groups]
        authority = authorities_of(status.nodes).get(self._node)
        if authority is None or len(groups) != 1:
            known = f"nodes are {', '.join(info.node for info in status.nodes)}, groups {', '.join(info.group for info in status.groups)}"
            raise ValueError(f"options replicas and group name one replica of the cluster; {known}")
        request = audit_pb2.DescribeReplicaRequest(broker_group=groups[0])
        told = remote.call(authority, f"{REPLICAS}Describe", request, audit_pb2.DescribeReplicaResponse)
        remote.require(authority, groups[0], told.status)
        if told.state != RUNNING:
            raise ValueError(f"replica {self._node} of {groups[0]} is {told.state}: {told.reason}; go on when it runs")
        return authority, groups[0], told
