"""Tables over an object store: the files there before the begin of the replicas' logs, and then the
files of one replica, each entry once.

    spark.read.format("ledgermq").option("view", "messages").option("store",
    "s3://bucket/prefix").load("ledgermq-data/n1")

The manifests say which files hold the wanted entries, so planning reads no log file, and every
stored file is a partition. Nothing is judged here; `ledgermq audit --store` does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading import objects
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.ranges import ALL
from ledgermq.audit.reading.stored_logs import NAME, StoredLog, find_logs
from ledgermq.audit.spark.cluster.cluster_options import option
from ledgermq.audit.spark.views.view import Share
from ledgermq.audit.spark.views.wanted import INDEX, MS, POS, Wanted

VIEWS = ("entries", "messages", "records", "segments")
"""The views of the log itself; the others are of files that the store does not have."""


def store_for(options: Mapping[str, str], view: str) -> StoreAccess | None:
    """The store in the options, with the content of its credentials file. Raises ValueError."""
    url = option(options, "store")
    others = [
        name
        for name in ("storeEndpoint", "storeRegion", "storeCredentials", "storeCa")
        if option(options, name)
    ]
    if not url:
        if others:
            raise ValueError(f"option {others[0]}: it is for option store")
        return None
    if view not in VIEWS:
        raise ValueError(f"option store: view {view} is not of the log; use {', '.join(VIEWS)}")
    region = option(options, "storeRegion", "us-east-1")
    ca = option(options, "storeCa")
    pem = Path(ca).read_text() if ca else ""
    access = StoreAccess(
        url, option(options, "storeEndpoint"), region, option(options, "storeCredentials"), ca=pem
    ).with_keys()
    access.open()
    return access


class WholeLogs:
    """The logs in a store, each continued by one replica."""

    def __init__(self, access: StoreAccess, replicas: Sequence[Replica], wanted: Wanted) -> None:
        """`wanted`: the options, by which the replica of a group is chosen: of several the one that
        goes furthest. Raises ValueError if the store lacks what is before its log, StoreLost."""
        objects.use(access)
        stored = find_logs()
        present = [
            one for one in replicas if one.sizes[0] and wanted.has_replica(one.name, one.group)
        ]
        groups = {one.group for one in present}
        self.replicas = [
            max((one for one in present if one.group == group), key=_reach)
            for group in sorted(groups)
        ]
        logs = [
            (one, _log_of(stored, one.group, one.log_id, access.place)) for one in self.replicas
        ]
        self._logs: list[tuple[StoredLog, int | None, bool]] = [
            (log, one.begin.pos, one.ordered_to > 0) for one, log in logs
        ]
        """The log, where it ends here, and whether store times are known never to fall before
        that."""
        if not replicas:
            self._logs = [
                (_only(stored, group), None, False)
                for group in sorted({log.group for log in stored})
            ]
        for log, end, _ in self._logs:
            _require_whole(log, log.end if end is None else end)

    def shares(self, wanted: Wanted) -> Iterator[Share]:
        """The tasks for the stored files before the replicas' logs that may hold wanted entries."""
        for log, end, ordered in self._logs:
            if wanted.has_replica(NAME, log.group):
                yield from shares_of(log, end, wanted, ordered=ordered)


def shares_of(
    log: StoredLog, end: int | None, wanted: Wanted, *, ordered: bool = False
) -> Iterator[Share]:
    """The tasks for the stored files before position `end` that may hold wanted entries. `ordered`:
    store times never fall before it. Manifests do not show whether a time epoch begins in a file,
    so otherwise they choose no files by time."""
    before_ms, ms = 0, wanted.span(MS) if ordered else ALL
    for file in log.files:
        spans = (
            wanted.span(INDEX).meets(file.first, file.last),
            wanted.span(POS).meets(file.base, file.end - 1),
        )
        if (
            (end is None or file.base < end)
            and all(spans)
            and ms.meets(before_ms, file.last_store_ms)
        ):
            yield Share(NAME, log.task(file))
        before_ms = file.last_store_ms


def stored_log(access: StoreAccess, group: str, log_id: str, end: int) -> StoredLog:
    """One log in a store. Raises ValueError if it is not there or lacks files before position
    `end`, StoreLost."""
    objects.use(access)
    log = _log_of(find_logs(), group, log_id, access.place)
    _require_whole(log, end)
    return log


def _reach(one: Replica) -> int:
    """The last entry that a replica is known to hold."""
    return max(
        -1 if one.mark is None else one.mark.index, -1 if one.point is None else one.point.index
    )


def _log_of(stored: Sequence[StoredLog], group: str, log_id: str | None, place: str) -> StoredLog:
    log = next((log for log in stored if (log.group, log.log_id) == (group, log_id)), None)
    if log is None:
        raise ValueError(
            f"option store: {place} holds no log {log_id} of {group}; give the address that the"
            " nodes have as tiered.url"
        )
    return log


def _only(stored: Sequence[StoredLog], group: str) -> StoredLog:
    logs = [log for log in stored if log.group == group]
    if len(logs) > 1:
        raise ValueError(
            f"option store: there are several logs of {group}, from before and after a recovery;"
            " give a node directory too"
        )
    return logs[0]


def _require_whole(log: StoredLog, end: int) -> None:
    """Raises ValueError: a table must not silently lack what is missing."""
    gap = log.gap(end)
    if log.damaged or gap is not None:
        problem = (
            f"{log.damaged[0]} is damaged"
            if log.damaged
            else f"the files of {log.folder} at positions {gap} are missing"
        )
        raise ValueError(f"option store: {problem}; see: ledgermq audit --store")
