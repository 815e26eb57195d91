"""The client side of an audit as a whole: files, scopes, both joins, and the sum of their results.

Returns findings, the reasons for which the verdict cannot be PASS, and a table of counts per
window. The joiner brings buckets together; `judging` decides what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.parquet as parquet

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.clients import claims, logged_messages
from ledgermq.audit.clients.bucket_results import LISTED, RESULTS
from ledgermq.audit.clients.client_files import (
    DELIVERIES,
    RECEIPTS,
    ClientFile,
    find_files,
    parts_of,
)
from ledgermq.audit.clients.deliveries import judge_order
from ledgermq.audit.clients.joining import Side, nothing
from ledgermq.audit.clients.judging import judge
from ledgermq.audit.clients.logged_messages import Slice
from ledgermq.audit.clients.ports import Joiner
from ledgermq.audit.clients.scope import Scope, from_json, scope_of, to_json
from ledgermq.audit.outputs import WriteTo, text
from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.audit.reading.objects import StoreLost
from ledgermq.audit.rules import RULES, Finding, Flaw

WHO = "clients"
"""Takes the place of a replica in findings about clients."""
BUCKET_ROWS = 400_000
PART_ROWS = 200_000
FINDINGS_MAX = 1000
COUNTS = (
    "stored",
    "acknowledged",
    "lost",
    "twice",
    "order",
    "receipt",
    "delivered",
    "consumed",
    "phantom",
    "redelivered",
    "memory",
    "master",
    "trimmed",
    "beyond",
    "unreadable",
    "foreign",
)
"""The columns of the table of counts, in messages."""
OPEN = {
    "beyond": "are behind the compared index, or were delivered while the log was read",
    "foreign": "are of a broker group or a log that was not given",
    "unreadable": "may be in entries that neither a replica nor the object store holds intact",
}
"""Counts that make the audit incomplete, and why."""


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """The clients' files to compare with the log, opened only as far as needed to recognise them.
    `window_ms`: the width of a count."""

    names: tuple[str, ...]
    parts: tuple[ClientFile, ...]
    window_ms: int

    @classmethod
    def find(
        cls, receipts: Sequence[str], deliveries: Sequence[str], window_ms: int = 60_000
    ) -> ClientFiles:
        """The files that the user named. Raises BadFile."""
        parts: list[ClientFile] = []
        names: list[str] = []
        for kind, paths in ((RECEIPTS, receipts), (DELIVERIES, deliveries)):
            for path in find_files(kind, paths):
                parts += parts_of(kind, len(names), path, PART_ROWS)
                names.append(path)
        return cls(tuple(names), tuple(parts), window_ms)


@dataclass(slots=True)
class ClientResult:
    """The result of comparing the clients' files with the log."""

    files: list[str]
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    """Rule → number of findings that are not in `findings`."""
    reasons: list[str] = field(default_factory=list)
    windows: list[dict[str, object]] = field(default_factory=list)
    """Rows of broker group, topic, start of the window in ms since 1970, and `COUNTS`."""

    def total(self, count: str) -> int:
        """The number of messages counted under this name, over all windows."""
        return sum(int(str(row[count])) for row in self.windows)

    def as_json(self) -> dict[str, object]:
        """Files, sums and the counts per window."""
        return {
            "files": self.files,
            "messages": {count: self.total(count) for count in COUNTS},
            "findings_not_listed": self.more,
            "windows": self.windows,
        }

    def lines(self) -> list[str]:
        """The sums as text lines."""
        counts = ", ".join(f"{self.total(name)} {name}" for name in COUNTS if self.total(name))
        more = [
            f"clients: {count} more findings of rule {rule} are not listed"
            for rule, count in sorted(self.more.items())
        ]
        return [
            (
                f"clients: {len(self.files)} file{'s' * (len(self.files) != 1)}; messages:"
                f" {counts or 'none'}"
            ),
            *more,
        ]

    def window_files(self) -> dict[str, WriteTo]:
        """The counts per window as `clients.jsonl` and `clients.parquet`: name → what writes it."""
        texts = [(name, pa.string()) for name in ("broker_group", "topic")]
        schema = pa.schema([*texts, *((name, pa.int64()) for name in ("window_ms", *COUNTS))])
        table = pa.Table.from_pylist(self.windows, schema=schema)
        return {
            "clients.jsonl": text(
                "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.windows)
            ),
            "clients.parquet": lambda path: parquet.write_table(table, path),
        }


def check_clients(groups: Sequence[GroupResult], given: ClientFiles, join: Joiner) -> ClientResult:
    """Compare the clients' files with the logs of these broker groups. If a log that was readable
    before cannot be read now, that is a reason, not a finding. Raises BadFile."""
    try:
        return _held(groups, given, join)
    except (NodeLost, StoreLost, OSError) as error:
        why = (
            "clients' files were not compared with the log, which could not be read again"
            f" ({error}); audit again"
        )
        return ClientResult(list(given.names), reasons=[why])


def _held(groups: Sequence[GroupResult], given: ClientFiles, join: Joiner) -> ClientResult:
    parts = given.parts
    scopes, slices, entries = [], [], 0
    for group in groups:
        scope, own, count = scope_of(group)
        scopes.append(scope)
        slices += own
        entries += count
    told = to_json(scopes)
    deliveries = [part for part in parts if part.kind == DELIVERIES]
    rows = entries + sum(part.rows or PART_ROWS for part in deliveries)
    buckets = max(1, -(-rows // BUCKET_ROWS))
    left = Side(tuple(piece.to_json() for piece in slices), read_stored, logged_messages.SCHEMA)
    right = Side(tuple(part.to_json() for part in parts), read_claims, claims.SCHEMA)
    result = ClientResult(list(given.names))
    gathered = _Gathered(result)
    for table in join(
        left, right, partial(judge_bucket, told=told, window_ms=given.window_ms), RESULTS, buckets
    ):
        gathered.add(table)
    if deliveries and any(scope.fifo for scope in scopes):
        ordered = Side(tuple(part.to_json() for part in deliveries), read_ordered, claims.ORDERED)
        for table in join(
            nothing(logged_messages.SCHEMA),
            ordered,
            partial(judge_orders, told=told),
            RESULTS,
            buckets,
        ):
            gathered.add(table)
    gathered.finish(scopes)
    return result


# Only text crosses process boundaries, so these functions take text.


def read_stored(source: str, buckets: int) -> Iterator[pa.RecordBatch]:
    """The messages of a slice, given as text."""
    yield from logged_messages.read_stored(Slice.from_json(source), buckets)


def read_claims(source: str, buckets: int) -> Iterator[pa.RecordBatch]:
    """The claims of a part of a file, given as text."""
    yield from claims.read_claims(ClientFile.from_json(source), buckets)


def read_ordered(source: str, buckets: int) -> Iterator[pa.RecordBatch]:
    """The deliveries of message groups of a part of a file, given as text."""
    yield from claims.read_ordered(ClientFile.from_json(source), buckets)


def judge_bucket(left: pa.Table, right: pa.Table, *, told: str, window_ms: int) -> pa.Table:
    """Judge one bucket, with the scopes as text."""
    return judge(left, right, from_json(told), window_ms)


def judge_orders(left: pa.Table, right: pa.Table, *, told: str) -> pa.Table:
    """Judge one bucket of message groups, with the scopes as text."""
    return judge_order(right, from_json(told))


class _Gathered:
    """Adds up the results of all buckets: counts by window, findings up to a limit."""

    def __init__(self, result: ClientResult) -> None:
        self._result = result
        self._windows: dict[tuple[str, str, int], dict[str, int]] = {}
        self._told: dict[str, list[dict[str, object]]] = {}

    def add(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            if row["proof"] == "":
                self._result.more[row["what"]] = self._result.more.get(row["what"], 0) + row["n"]
            elif row["proof"] is None:
                key = (row["broker_group"] or "", row["topic"] or "", row["window_ms"])
                counts = self._windows.setdefault(key, dict.fromkeys(COUNTS, 0))
                counts[row["what"]] += row["n"]
            else:
                self._keep(row)

    def _keep(self, row: dict[str, object]) -> None:
        rows = self._told.setdefault(str(row["what"]), [])
        rows.append(row)
        if len(rows) > LISTED:
            self._cut(str(row["what"]))

    def _cut(self, rule: str) -> None:
        rows = self._told[rule]
        rows.sort(
            key=lambda row: (row["file"], row["row"], -1 if row["index"] is None else row["index"])
        )
        self._result.more[rule] = self._result.more.get(rule, 0) + len(rows[FINDINGS_MAX:])
        del rows[FINDINGS_MAX:]

    def finish(self, scopes: Sequence[Scope]) -> None:
        result = self._result
        only = scopes[0].group if len(scopes) == 1 else "-"
        for rule in sorted(self._told):
            self._cut(rule)
            result.findings += [self._finding(row, only) for row in _joined(self._told[rule])]
        result.more = {rule: count for rule, count in result.more.items() if count}
        for key in sorted(self._windows):
            group, topic, window = key
            result.windows.append(
                {"broker_group": group, "topic": topic, "window_ms": window, **self._windows[key]}
            )
        for name, why in OPEN.items():
            count = result.total(name)
            if count:
                result.reasons.append(f"{count} messages of clients {why}; they cannot be judged")

    def _finding(self, row: dict[str, object], only: str) -> Finding:
        path = self._result.files[int(str(row["file"]))]
        index = None if row["index"] is None else int(str(row["index"]))
        flaw = Flaw(
            str(row["what"]),
            path,
            index=index,
            byte_from=0,
            byte_to=0,
            proof=f"row {row['row']}: {row['proof']}",
        )
        return Finding(RULES[flaw.rule].klass, WHO, str(row["broker_group"] or only), flaw)


def _joined(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """One finding per row and proof: the pieces of a receipt in several buckets are one finding."""
    groups: dict[tuple[object, object, str], dict[str, object]] = {}
    for row in rows:
        key = (row["file"], row["row"], str(row["proof"]).partition(": ")[2])
        before = groups.setdefault(key, {**row, "n": 0})
        before["n"] = int(str(before["n"])) + int(str(row["n"]))
    rows_of_rules = []
    for row in groups.values():
        more = int(str(row["n"])) - 1
        proof = (
            f"{row['proof']}; and {more} more messages of this receipt" if more else row["proof"]
        )
        rows_of_rules.append({**row, "proof": proof})
    return rows_of_rules
