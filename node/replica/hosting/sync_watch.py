"""Reports the group commits of one broker group: metrics, and a log line when the disk is slow.

Only the thread that runs the syncs calls it. It has no effect on the group: a slow sync is slow,
not wrong. For a disk that stays slow it logs one line a minute, with the number of slow syncs since
the last line.
"""

from __future__ import annotations

from ledgermq.node.broker.ports import SyncTicket
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.storage.files.thresholds import SYNC_ALARM_S, SYNC_WARN_S

QUIET_S = 60.0
"""Minimum time between two warnings of the same level."""
REMEDY = "see what else writes to this disk; measure it with: ledgermq doctor"

log = get_logger()


class SyncWatch:
    """One per broker group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._seconds = metrics.SYNC_SECONDS.labels(group)
        self._entries = metrics.SYNC_ENTRIES.labels(group)
        self._bytes = metrics.SYNC_BYTES.labels(group)
        self._said: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def ran(self, ticket: SyncTicket, began_s: float, ended_s: float) -> None:
        """Record a sync that ran, successful or not. The times may come from any one clock. A sync
        of the mark alone is not a batch."""
        seconds = ended_s - began_s
        self._seconds.observe(seconds)
        if ticket.entries:
            self._entries.observe(ticket.entries)
            self._bytes.observe(ticket.size)
        if seconds > SYNC_ALARM_S:
            self._slow("alarm", SYNC_ALARM_S, seconds, ended_s)
        elif seconds > SYNC_WARN_S:
            self._slow("warning", SYNC_WARN_S, seconds, ended_s)

    def _slow(self, level: str, limit_s: float, seconds: float, now_s: float) -> None:
        metrics.SLOW_SYNCS.labels(self._group, level).inc()
        if level in self._said and now_s - self._said[level] < QUIET_S:
            self._unsaid[level] = self._unsaid.get(level, 0) + 1
            return
        self._said[level] = now_s
        log.warning(
            "slow sync",
            group=self._group,
            severity=level,
            took_ms=round(seconds * 1000),
            threshold_ms=round(limit_s * 1000),
            others_since_last_line=self._unsaid.pop(level, 0),
            remedy=REMEDY,
        )
