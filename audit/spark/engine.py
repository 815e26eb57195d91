"""The Spark engine: each log file is a partition, verified inside the data source's `read()`; one
small row per file is returned.

Nothing is decided here: the rows go through the same comparison as those of the local engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import TYPE_CHECKING, Any

from ledgermq.audit.run.jobs import Progress
from ledgermq.audit.run.works import Outcome, Work

if TYPE_CHECKING:
    from ledgermq.audit.clients.ports import Joiner

POLL_S = 0.5


class SparkEngine:
    """Runs partitions in a Spark session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @property
    def join(self) -> Joiner:
        """How clients' files are joined with the log in this engine."""
        from ledgermq.audit.spark.clients import SparkJoin

        return SparkJoin(self._session)

    def __call__(self, works: Sequence[Work], progress: Progress) -> list[Outcome]:
        if not works:
            return []
        total = sum(work.size for work in works)
        texts = json.dumps([work.to_json() for work in works])
        frame = (
            self._session.read.format("ledgermq")
            .option("view", "segments")
            .option("works", texts)
            .load()
        )
        with ThreadPoolExecutor(1) as pool:
            rows = self._watch(
                pool.submit(frame.select("directory", "group", "kind", "base", "report").collect),
                total,
                progress,
            )
        progress(total, total)
        outcomes = {
            (row["directory"], row["group"], row["kind"], row["base"]): row["report"]
            for row in rows
        }
        return [
            Outcome.from_json(outcomes[work.directory, work.task.group, work.kind, work.task.base])
            for work in works
        ]

    def _watch(self, running: Future[Any], total: int, progress: Progress) -> list[Any]:
        """Wait for the rows, and report progress by Spark's own count of tasks."""
        tracker = self._session.sparkContext.statusTracker()
        while True:
            try:
                rows: list[Any] = running.result(timeout=POLL_S)
                return rows
            except TimeoutError:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                tasks = sum(stage.numTasks for stage in stages if stage)
                done = sum(stage.numCompletedTasks for stage in stages if stage)
                progress(total * done // tasks if tasks else 0, total)
