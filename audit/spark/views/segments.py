"""The view `segments`: one row per log file, fully verified in the task, so that only small columns
are transferred.

The engine's own table: with the option `works` it runs any partitions of work, and `report` is the
result of each, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql.datasource import InputPartition

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.run.works import LOG, STORED, Outcome, Work, run_work
from ledgermq.audit.spark.views.entries import needed_files
from ledgermq.audit.spark.views.view import Batch, Share
from ledgermq.audit.spark.views.wanted import GROUP, INDEX, MS, POS, REPLICA, Wanted


@dataclass
class WorkPartition(InputPartition):  # type: ignore[misc]
    """One partition of work, as JSON."""

    work: str


class SegmentsView:
    """`base` is bounded like a position: a file is read as a whole or not at all."""

    columns: Mapping[str, str] = {
        "directory": "string",
        "replica": "string",
        "group": "string",
        "kind": "string",
        "file": "string",
        "base": "bigint",
        "bytes": "bigint",
        "entries": "bigint",
        "first_index": "bigint",
        "last_index": "bigint",
        "last_term": "bigint",
        "last_chain_crc": "bigint",
        "flaws": "int",
        "report": "string",
    }
    bounds: Mapping[str, str] = {
        "replica": REPLICA,
        "group": GROUP,
        "base": POS,
        "last_index": INDEX,
    }
    kinds = frozenset({INDEX, MS})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        return [Share(replica.directory, task) for task, _ in needed_files(replica, wanted)]

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        yield work_batch(Work(share.directory, share.task, STORED if share.task.key else LOG))


def work_batch(work: Work) -> Batch:
    """Do one partition of work, and return one row; for other kinds than log files, a row without a
    file."""
    return _row(work, run_work(work))


def _row(work: Work, outcome: Outcome) -> Batch:
    report, task = outcome.log, work.task
    row: dict[str, Any] = dict.fromkeys(SegmentsView.columns)
    row |= {
        "directory": work.directory,
        "replica": task.replica,
        "group": task.group,
        "kind": work.kind,
    }
    row |= {"base": task.base, "report": outcome.to_json()}
    if report is not None:
        row |= {
            "file": report.file,
            "bytes": report.length,
            "entries": report.entries,
            "flaws": len(report.flaws),
        }
    if report is not None and report.entries:
        row |= {
            "first_index": report.first_index,
            "last_index": report.last_index,
            "last_term": report.last_term,
        }
        row["last_chain_crc"] = report.last_chain
    return Batch(1, {name: partial(row.get, name) for name in row})
