"""The view `entries`: one row per entry of the log, including damaged ones, without its body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import I64, Flags
from ledgermq.audit.reading.entries import Entries, read_entries
from ledgermq.audit.reading.ranges import needed
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.spark.views.view import Batch, Share
from ledgermq.audit.spark.views.wanted import GROUP, INDEX, MS, POS, REPLICA, TOPIC, Wanted


class EntriesView:
    """`intact`: both recomputed CRCs equal the stored ones; null with `verify` false. Columns of
    the record are null in a damaged entry."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "group": "string",
        "file": "string",
        "index": "bigint",
        "term": "bigint",
        "pos": "bigint",
        "size": "int",
        "channel": "int",
        "chain_crc": "bigint",
        "body_crc": "bigint",
        "intact": "boolean",
        "topic": "string",
        "queue": "int",
        "queue_offset": "bigint",
        "tags_code": "bigint",
        "store_ms": "bigint",
    }
    bounds: Mapping[str, str] = {
        "replica": REPLICA,
        "group": GROUP,
        "topic": TOPIC,
        "index": INDEX,
        "pos": POS,
        "store_ms": MS,
    }
    kinds = frozenset({INDEX, MS, TOPIC})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        return log_shares(replica, wanted)

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        for entries, rows in wanted_entries(share, wanted):
            yield self._batch(entries, rows)

    @staticmethod
    def _batch(entries: Entries, rows: I64) -> Batch:
        task = entries.task
        unsound = ~entries.sound[rows]

        def plain(name: str) -> I64:
            return entries.field(name)[rows]

        return Batch(
            len(rows),
            {
                "replica": lambda: task.replica,
                "group": lambda: task.group,
                "file": lambda: task.shown,
                "index": lambda: entries.index[rows],
                "term": lambda: plain("term"),
                "pos": lambda: entries.pos[rows],
                "size": lambda: entries.sizes[rows],
                "channel": lambda: plain("channel"),
                "chain_crc": lambda: plain("chain_crc"),
                "body_crc": lambda: plain("body_crc"),
                "intact": lambda: (
                    None if entries.intact is None else pa.array(entries.intact[rows])
                ),
                "topic": lambda: topics_of(entries, rows),
                "queue": lambda: pa.array(plain("queue"), mask=unsound),
                "queue_offset": lambda: pa.array(plain("queue_offset"), mask=unsound),
                "tags_code": lambda: pa.array(entries.parts.tags_codes[rows], mask=unsound),
                "store_ms": lambda: plain("store_ms"),
            },
        )


def log_shares(replica: Replica, wanted: Wanted) -> list[Share]:
    """One task per log file that may hold wanted entries."""
    return [Share(replica.directory, task, start) for task, start in needed_files(replica, wanted)]


def needed_files(replica: Replica, wanted: Wanted) -> list[tuple[LogFile, int]]:
    """The log files that may hold wanted entries, each with the byte to start from."""
    index, ms, pos = wanted.span(INDEX), wanted.span(MS), wanted.span(POS)
    tasks = replica.tasks()
    if not ms:
        return needed(tasks, index, place=pos)
    # The search by time needs store times that never fall; a time epoch may begin behind what the
    # snapshot covers.
    known = [task for task in tasks if task.base + task.data_file_bytes <= replica.ordered_to]
    return needed(known, index, ms, pos) + needed(tasks[len(known) :], index, place=pos)


def wanted_entries(share: Share, wanted: Wanted) -> Iterator[tuple[Entries, I64]]:
    """The wanted entries of one log file: pieces, and the rows of each. Ends with the first piece
    behind the spans."""
    index, ms, pos = wanted.span(INDEX), wanted.span(MS), wanted.span(POS)
    for entries in read_entries(share.task, share.start, wanted.verify):
        flags = (
            index.holds(entries.index)
            & ms.holds(entries.field("store_ms"))
            & pos.holds(entries.pos)
        )
        if wanted.topics is not None:
            flags &= entries.sound & _has_topic(entries, wanted)
        rows = np.flatnonzero(flags)
        if len(rows):
            yield entries, rows
        if index.high is not None and int(entries.index[0]) > index.high and entries.sound[0]:
            return


def _has_topic(entries: Entries, wanted: Wanted) -> Flags:
    names = [wanted.has_topic(topic.decode("utf-8", "replace")) for topic in entries.parts.topics]
    return np.array(names, np.bool_)[entries.parts.topic_of]


def topics_of(entries: Entries, rows: I64) -> pa.Array:
    """The stored topics of entries; null if the record is damaged."""
    names = pa.array(
        [topic.decode("utf-8", "replace") for topic in entries.parts.topics], pa.string()
    )
    return names.take(pa.array(entries.parts.topic_of[rows], mask=~entries.sound[rows]))
