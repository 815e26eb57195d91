"""Logs the trims of a node's replica and counts them in metrics;
`node/replica/retention/trimming.py` carries them out."""

from __future__ import annotations

from ledgermq.node.broker.machine import Machine
from ledgermq.node.replica.retention import trimming
from ledgermq.node.replica.retention.pins import PinBook
from ledgermq.node.replica.retention.ports import TrimmedIndex
from ledgermq.node.replica.retention.trimming import STEP_BYTES
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.queues.consume_queue import ConsumeQueues

__all__ = ["STEP_BYTES", "Trimming"]

log = get_logger()


class Trimming(trimming.Trimming):
    """The pending removals of one replica, with a log line for each."""

    def __init__(
        self,
        group: str,
        machine: Machine,
        trimmed: EntryLog,
        queues: ConsumeQueues,
        index: TrimmedIndex,
        pins: PinBook,
        file_bytes: int,
    ) -> None:
        super().__init__(machine, trimmed, queues, index, pins, file_bytes=file_bytes)
        self._group = group

    def file_removed(self, paths: list[str]) -> None:
        for path in paths:
            log.info("log file removed", group=self._group, file=path)
        metrics.FILES_TRIMMED.labels(self._group).inc()

    def trimmed(self, begin_index: int, begin_pos: int, consume_queue_files: int) -> None:
        where = {"begin_index": begin_index, "begin_pos": begin_pos}
        log.info("log trimmed", group=self._group, **where, consume_queue_files=consume_queue_files)
