"""The rows of a topic in an Iceberg table, each message exactly once.

Law: positions and rows are one commit of the table. So a killed process has either added both or
neither, and the next one continues at the positions of the table's history. A commit is made only
on top of the history that ends with this sink's former commit: a second sink, a late commit of a
killed one and a table that was rolled back are noticed before anything is added, and end this sink.

`iceberg_table.py` is the table, and `sinking.py` reads the topic.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ledgermq.client.errors import BadArgument, ClusterError
from ledgermq.client.native.consumers.positions import EntryName
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.sinks.ports import Queue
from ledgermq.client.native.sinks.sinking import completes, continues, names_of, names_tree
from ledgermq.proto.json_checksum import opened, sealed

VERSION = 1
TRIES = 10
"""How often a commit is tried while others commit to the table, as the jobs do that merge its
files."""
ROLL_BYTES_MAX = 1 << 30
"""Arrow's columns of bytes have offsets of 31 bits, and the rows of one commit are brought together
by partition."""


class Conflict(Exception):
    """The table has another commit by now. Nothing was added."""


@dataclass(frozen=True)
class Mark:
    """What a commit of a sink says about the table: it holds the messages of `topic` below `next`,
    each once. `last`: the names of the last of them. `logs`: the ids of the logs of the broker
    groups. `commit` is unique."""

    cluster: str
    topic: str
    commit: str
    next: Mapping[Queue, int]
    last: Mapping[Queue, EntryName]
    logs: Mapping[str, str]

    def text(self) -> str:
        following = [[*queue, offset] for queue, offset in sorted(self.next.items())]
        about = {"v": VERSION, "cluster": self.cluster, "topic": self.topic, "commit": self.commit}
        return json.dumps(
            sealed({**about, "next": following, "last": names_tree(self.last), "logs": self.logs})
        )

    @classmethod
    def read(cls, text: str) -> Mark:
        """Raises ValueError."""
        try:
            tree = opened(json.loads(text), required=False)
            if tree["v"] != VERSION:
                raise ValueError(f"they have version {tree['v']}, and this release reads {VERSION}")
            following = {
                (str(group), int(queue)): int(offset) for group, queue, offset in tree["next"]
            }
            logs = {str(group): str(log_id) for group, log_id in tree["logs"].items()}
            return cls(
                cluster=str(tree["cluster"]),
                topic=str(tree["topic"]),
                commit=str(tree["commit"]),
                next=following,
                last=names_of(tree),
                logs=logs,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"they are damaged ({error!r})") from error


class SinkTable(Protocol):
    """The table, as far as a sink needs it."""

    name: str

    def load(self) -> Mark | None:
        """Look at the table as it is now, and return the newest mark in its history. None: the
        table has no rows. Raises ClusterError."""

    def append(self, rows: Any, mark: Mark) -> None:
        """Add rows and their mark in one commit, on top of what `load` last saw. Raises Conflict if
        there is another commit by now. After a ClusterError the commit may have been made, or may
        still be made."""


class IcebergSink:
    """The rows of one topic in one table. A context manager; for one thread.

    `topic`: with its namespace, as stored. Leaving it commits the rows that were written if
    `completes` holds, unless a commit failed before.
    """

    def __init__(
        self, table: SinkTable, cluster: str, topic: str, roll_bytes: int, roll_s: float
    ) -> None:
        """Raises BadArgument if the table is not usable for this topic of this cluster, and
        ClusterError."""
        self.where = f"table {table.name}"
        self.rows = self.done = 0
        self._table, self._cluster, self._topic = table, cluster, topic
        self._roll_bytes, self._roll_s = roll_bytes, roll_s
        self._rows: list[Any] = []
        self._bytes = 0
        self._since_s = 0.0
        self._mark = mark = table.load()
        for kind, theirs, ours in (
            ()
            if mark is None
            else (("cluster", mark.cluster, cluster), ("topic", mark.topic, topic))
        ):
            if theirs != ours:
                raise BadArgument(
                    f"{self.where} belongs to the {kind} {theirs}, and this is {ours}",
                    "give another table",
                )
        self.positions: dict[Queue, int] = {} if mark is None else dict(mark.next)
        self.last: dict[Queue, EntryName] = {} if mark is None else dict(mark.last)
        self.logs: dict[str, str] = {} if mark is None else dict(mark.logs)

    def __enter__(self) -> IcebergSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if completes(kind):
            self.roll()

    def write(self, batch: Batch) -> bool:
        """Write the messages of a batch. Returns False, and writes nothing, if it does not continue
        its queue. Raises as `roll`."""
        queue = batch.broker_group, batch.group_queue
        if not continues(self.positions.get(queue), batch):
            return False
        rows = rows_of(batch)
        if not self._rows:
            self._since_s = time.monotonic()
        self._rows.append(rows)
        self._bytes += rows.nbytes
        self.positions[queue], self.last[queue] = batch.next_offset, batch.last
        self.rows += len(batch)
        if self._bytes >= self._roll_bytes:
            self.roll()
        return True

    def roll_due(self) -> None:
        """Commit the rows if they have reached their age. Raises as `roll`."""
        if time.monotonic() - self._since_s >= self._roll_s:
            self.roll()

    def roll(self) -> None:
        """Commit the rows. Raises BadArgument if the table has positions that are not this sink's,
        and ClusterError; the sink ends then."""
        import pyarrow as pa

        # A commit that failed is not tried again when the sink is left: the next process begins at
        # what the table says then.
        waiting, self._rows, self._bytes = self._rows, [], 0
        if not waiting:
            return
        rows = pa.Table.from_batches(waiting)
        mark = Mark(
            cluster=self._cluster,
            topic=self._topic,
            commit=uuid.uuid4().hex,
            next=dict(self.positions),
            last=dict(self.last),
            logs=dict(self.logs),
        )
        for _ in range(TRIES):
            stored_mark = self._table.load()
            if stored_mark == mark:
                # The conflict that the catalog reported was with this very commit, such as after a
                # lost answer.
                break
            if stored_mark != self._mark:
                problem = (
                    f"{self.where} has other positions than this sink wrote: another sink of the"
                    " topic writes it, or it was rolled back"
                )
                raise BadArgument(
                    problem,
                    "stop the other one, and run this command again; it continues where the table"
                    " ends",
                )
            try:
                self._table.append(rows, mark)
            except Conflict:
                continue
            break
        else:
            problem = f"{TRIES} commits to {self.where} met those of other programs"
            raise ClusterError(
                problem,
                "run the command again when they are finished; it continues where the table ends",
            )
        self._mark = mark
        self.done += 1


def rows_of(batch: Batch) -> Any:
    """The messages as a record batch of the table. A queue is named by its broker group and its
    number in it, which stay when the topic gets more queues."""
    import pyarrow as pa

    number, moment = pa.int64(), pa.timestamp("us", tz="UTC")
    table = batch.to_arrow(["message_id", "tag", "keys", "properties", "body"])
    columns = {
        "broker_group": pa.repeat(pa.scalar(batch.broker_group, pa.string()), len(batch)),
        "group_queue": pa.array(np.full(len(batch), batch.group_queue, np.int32)),
        "offset": pa.array(batch.offsets, number),
        "store_time": pa.array(batch.store_ms * 1000, number).view(moment),
        "born_time": pa.array(batch.born_ms * 1000, number).view(moment),
        **dict(zip(table.schema.names, table.columns, strict=True)),
    }
    always = {"broker_group", "group_queue", "offset", "store_time", "born_time", "body"}
    fields = [
        pa.field(name, column.type, nullable=name not in always) for name, column in columns.items()
    ]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))
