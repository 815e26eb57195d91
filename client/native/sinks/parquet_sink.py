"""Parquet files of a topic that a sink writes, each message in exactly one of them.

Law: the file of positions decides. A file of messages is completed and synced as a part, and so is
the part's name in its directory. Then the positions are moved behind it, and name it as pending;
then it gets its name. The next process gives the pending files of a killed one their names, and
every other part is written anew from the positions. So a file that has its name may be moved away
at any time.

    DIR/date=2026-11-23/orders.g1.0.00000000000000004096.parquet   topic, broker group, queue in it, first offset
    DIR/.orders.positions.json                                     cluster, the next offset of each queue, the name of the message in
                                                                   front of it, the ids of the logs,
                                                                   and the pending files
    DIR/.orders.lock                                               locked by the process that writes

This module writes; `sinking.py` reads the topic.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from ledgermq.client.aside import part_of, replace_file, sync_directory
from ledgermq.client.errors import BadArgument
from ledgermq.client.native.consumers.arrow import schema
from ledgermq.client.native.consumers.positions import EntryName
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.parquet_log import ParquetLog
from ledgermq.client.native.sinks.ports import Queue
from ledgermq.client.native.sinks.sinking import completes, continues, names_of, names_tree
from ledgermq.proto.json_checksum import BadChecksum, opened, sealed

VERSION = 1
OTHERS = ("node.json", "cluster.yaml", "backup.json")
"""Each of these files is in a directory whose content is another program's: of a node, of a local
cluster, and of a backup."""
GROUP_ROWS = 65_536
GROUP_BYTES = 16 << 20
_FILE = re.compile(
    r"(?P<topic>[^.]+)\.(?P<group>[^.]+)\.(?P<queue>\d+)\.(?P<first>\d{20})\.parquet"
)
"""No name of a topic, namespace or broker group has a dot."""

PARTITIONS: dict[str, tuple[str, int]] = {
    "none": ("", 1 << 62),
    "day": ("date=%Y-%m-%d", 86_400_000),
    "hour": ("date=%Y-%m-%d/hour=%H", 3_600_000),
}
"""The directory of a time in UTC, and its length in milliseconds."""


class SinkFile(ParquetLog[Any]):
    """Consecutive messages of one queue."""

    what = "messages"

    def __init__(
        self, path: Path, cluster: str, topic: str, queue: Queue, first: int, partition: int
    ) -> None:
        super().__init__(path, group_rows=GROUP_ROWS, group_s=float("inf"))
        self.queue, self.first_offset, self.next_offset, self.partition = (
            queue,
            first,
            first,
            partition,
        )
        self.last: EntryName | None = None
        self.bytes, self.opened_s = 0, time.monotonic()
        self._unwritten_bytes = 0
        self._about = {
            "cluster": cluster,
            "topic": topic,
            "broker_group": queue[0],
            "queue": str(queue[1]),
            "first_offset": str(first),
        }

    def add(self, batch: Batch, next_offset: int) -> None:
        rows = batch.to_arrow()
        self.bytes += rows.nbytes
        self._unwritten_bytes += rows.nbytes
        self._add(rows, len(batch))
        self.next_offset, self.last = next_offset, batch.last
        if self._unwritten_bytes >= GROUP_BYTES:
            self._end_group()

    def _end_group(self) -> None:
        super()._end_group()
        self._unwritten_bytes = 0

    def seal(self) -> None:
        about = {**self._about, "next_offset": str(self.next_offset)}
        self._writer.add_key_value_metadata(
            {f"ledgermq.{key}": value for key, value in about.items()}
        )
        super().seal()
        # A power cut must not leave positions behind a part whose name was not durable.
        sync_directory(self.path.parent)
        # The lock of the directory keeps others from the part until it gets its name.
        self._aside.file.close()

    def _columns(self) -> Any:
        return schema(None)

    def _table(self, parts: Sequence[Any]) -> Any:
        import pyarrow as pa

        return pa.Table.from_batches(parts, schema(None))


class ParquetSink:
    """The files of one topic in one directory. A context manager, which holds the lock; for one
    thread.

    `topic`: with its namespace, as stored. Leaving it completes the open files if `completes`
    holds, and removes them otherwise.
    """

    def __init__(
        self,
        directory: Path,
        cluster: str,
        topic: str,
        partition: str,
        roll_bytes: int,
        roll_s: float,
    ) -> None:
        """Raises BadArgument if the directory is not usable for this topic of this cluster."""
        self.directory, self.topic, self.where = directory, topic, str(directory)
        self.rows = self.done = 0
        self._cluster, self._roll_bytes, self._roll_s = cluster, roll_bytes, roll_s
        self._pattern, self._length_ms = PARTITIONS[partition]
        self._open: dict[Queue, SinkFile] = {}
        self.logs: dict[str, str] = {}
        self._durable: dict[Queue, int] = {}
        self._durable_last: dict[Queue, EntryName] = {}
        """The next offset behind the complete files of each queue, and the message in front of it;
        in `positions` and `last` behind all messages written."""
        self._positions_path = directory / f".{topic}.positions.json"
        self._lock = self._locked()
        try:
            self._durable = self._kept()
        except BaseException:  # an error must not leave the directory locked
            self._lock.close()
            raise
        self.positions, self.last = dict(self._durable), dict(self._durable_last)

    def _locked(self) -> IO[str]:
        if marker := next((name for name in OTHERS if (self.directory / name).exists()), None):
            problem = (
                f"{self.directory} is the directory of a node, of a cluster or of a backup"
                f" ({marker}"
                " is there)"
            )
            raise BadArgument(problem, "give another directory")
        try:
            self._make(self.directory)
            lock = open(self.directory / f".{self.topic}.lock", "a")  # noqa: SIM115 - closed by `__exit__`
        except OSError as error:
            raise BadArgument(
                f"{self.directory} cannot be written ({error.strerror})", "give another directory"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            problem = f"another process writes topic {self.topic} to {self.directory}"
            raise BadArgument(problem, "stop it, or give another directory") from None
        return lock

    def _kept(self) -> dict[Queue, int]:
        """The positions of the last process, after its pending files got their names."""
        path = self._positions_path
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            if orphan := next(
                (
                    one
                    for one in self.directory.rglob(f"{self.topic}.*.parquet")
                    if _FILE.fullmatch(one.name)
                ),
                None,
            ):
                raise BadArgument(
                    f"{orphan} is there, and {path} is not", "restore it, or give another directory"
                ) from None
            return {}
        except OSError as error:
            raise BadArgument(
                f"{path} cannot be read ({error.strerror})",
                "make it readable, or give another directory",
            ) from error
        try:
            tree = opened(json.loads(text), required=False)
            version, cluster, pending = (
                tree["v"],
                tree["cluster"],
                [str(name) for name in tree["pending"]],
            )
            following = {
                (str(group), int(queue)): int(offset) for group, queue, offset in tree["next"]
            }
            self._durable_last = names_of(tree)
            self.logs = {str(group): str(log_id) for group, log_id in tree["logs"].items()}
        except BadChecksum as error:
            raise BadArgument(
                f"{path} is damaged: {error}", "restore it, or give another directory"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadArgument(
                f"{path} is damaged ({error!r})", "restore it, or give another directory"
            ) from error
        if version != VERSION:
            raise BadArgument(
                f"{path} has version {version}, and this release reads {VERSION}",
                "use the release that wrote it",
            )
        if cluster != self._cluster:
            raise BadArgument(
                f"{path} belongs to the cluster {cluster}, and this is {self._cluster}",
                "give another directory",
            )
        for name in pending:
            # Named already, it may have been moved away by now, and so may its directory.
            with suppress(FileNotFoundError):
                os.rename(part_of(self.directory / name), self.directory / name)
            with suppress(FileNotFoundError):
                sync_directory((self.directory / name).parent)
        return following

    def __enter__(self) -> ParquetSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            if completes(kind):
                self.roll()
            else:
                for file in self._open.values():
                    file.abandon()

    def write(self, batch: Batch) -> bool:
        """Write the messages of a batch. Returns False, and writes nothing, if it does not continue
        its queue."""
        queue = batch.broker_group, batch.group_queue
        if not continues(self.positions.get(queue), batch):
            return False
        parts = batch.store_ms // self._length_ms
        edges = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(batch)]
        for begin, end in pairwise(edges):
            piece = batch if end - begin == len(batch) else batch.rows(np.arange(begin, end))
            following = batch.next_offset if end == len(batch) else int(batch.offsets[end])
            self._file(queue, int(piece.offsets[0]), int(parts[begin])).add(piece, following)
        self.positions[queue], self.last[queue] = batch.next_offset, batch.last
        self.rows += len(batch)
        return True

    def _file(self, queue: Queue, first: int, partition: int) -> SinkFile:
        """The open file of a queue; another partition begins another file."""
        self.roll(lambda file: file.queue == queue and file.partition != partition)
        file = self._open.get(queue)
        if file is None:
            place = self.directory / datetime.fromtimestamp(
                partition * self._length_ms / 1000, UTC
            ).strftime(self._pattern)
            self._make(place)
            path = place / f"{self.topic}.{queue[0]}.{queue[1]}.{first:020}.parquet"
            file = self._open[queue] = SinkFile(
                path, self._cluster, self.topic, queue, first, partition=partition
            )
        return file

    def _make(self, place: Path) -> None:
        """Create a directory of this one, durably: the positions must not survive files that are
        lost with their directory."""
        if not place.is_dir():
            self._make(place.parent)
            place.mkdir(exist_ok=True)
            sync_directory(place.parent)

    def roll(self, due: Callable[[SinkFile], bool] = lambda file: True) -> None:
        """Complete the open files for which `due` holds. Raises OSError."""
        done = [file for file in self._open.values() if due(file)]
        if not done:
            return
        for file in done:
            file.seal()
        for file in done:
            # From now on the positions decide what becomes of it, so that no error may remove it.
            del self._open[file.queue]
            assert file.last is not None, "a file is begun with a message"
            self._durable[file.queue], self._durable_last[file.queue] = file.next_offset, file.last
        self._keep([file.path for file in done])
        for file in done:
            name_file(file.path)
        self.done += len(done)

    def roll_due(self) -> None:
        """Complete the files that have reached their size or age."""
        now = time.monotonic()
        self.roll(
            lambda file: file.bytes >= self._roll_bytes or now - file.opened_s >= self._roll_s
        )

    def _keep(self, pending: Sequence[Path]) -> None:
        names = [str(path.relative_to(self.directory)) for path in pending]
        following = [[*queue, offset] for queue, offset in sorted(self._durable.items())]
        about = {
            "v": VERSION,
            "cluster": self._cluster,
            "next": following,
            "last": names_tree(self._durable_last),
        }
        tree = {**about, "logs": self.logs, "pending": names}
        replace_file(self._positions_path, json.dumps(sealed(tree)).encode())


def name_file(path: Path) -> None:
    """Give a complete file its name, durably. Raises OSError."""
    os.rename(part_of(path), path)
    sync_directory(path.parent)
