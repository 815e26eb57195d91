"""The output of an audit: the text, the JSON object and the findings as a data set. Presentation
only; nothing is decided here."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.stored_objects import as_object, lines_of
from ledgermq.audit.outputs import WriteTo, text, write_set
from ledgermq.audit.rules import RULE_STEP, RULES, UNDECIDABLE
from ledgermq.audit.run.jobs import Audit
from ledgermq.proto import units


def coverage(audit: Audit, replica: Replica) -> float | None:
    """The share of the compared entries that this replica holds intact; None if nothing was
    compared or read."""
    compared = next(group.compared for group in audit.groups if replica in group.replicas)
    if compared is None or audit.outlined:
        return None
    present = max(min(replica.held, compared) + 1, 0)
    return max(
        present - sum(index <= min(replica.held, compared) for index in replica.broken), 0
    ) / (compared + 1)


def state_of(replica: Replica) -> dict[str, object] | None:
    """Whether its snapshot was derived from its log: from which entries, or why not; None if that
    was not tried."""
    state = replica.state
    if state is None:
        return None
    first, last = (state.first_index, state.last_index) if state.derived else (None, None)
    return {
        "derived": state.derived,
        "first_index": first,
        "last_index": last,
        "reason": state.reason or None,
    }


def state_text(replica: Replica) -> str:
    """The same as text; "" if it was not tried."""
    state = replica.state
    if state is None:
        return ""
    span = (
        "no entry"
        if state.last_index is None
        else f"entries {state.first_index} to {state.last_index}"
    )
    derivation = f"derived from {span}" if state.derived else "not derived"
    return f"{derivation} ({state.reason})" if state.reason else derivation


def checked(audit: Audit, replica: Replica, *, exact: bool = True) -> list[str]:
    """What was verified of a replica and what was not, by kind of check. `exact`: in bytes;
    otherwise rounded, with a unit."""
    begin, files = replica.begin, len(replica.reports)
    length = replica.end_pos - begin.pos
    size = f"{length:,} bytes" if exact else units.size_words(length)
    span = (
        f"entries {begin.index:,} to {replica.last_index:,}, {size}"
        if replica.entries
        else "no entry"
    )
    log = f"log: {span} in {files:,} file{'s' * (files != 1)}"
    if audit.outlined:
        return [
            f"{log}: the edges of the files only",
            "derived files: not read",
            "state: not derived",
        ]
    unread = sum(flaw.rule == "file.read" for report in replica.reports for flaw in report.flaws)
    lines = [
        f"{log}: every byte, both CRCs and the chain"
        + (f", but {unread:,} could not be read to the end" if unread else "")
    ]
    if replica.is_backup:
        lines.append("files of the backup: compared with its manifest")
    else:
        queues = sum(not tail.folder.startswith(replica.log_folder) for tail in replica.tails)
        lines.append(
            f"derived files: index, key index and {queues:,} consume queue{'s' * (queues != 1)}"
            " compared with the log"
        )
    return [*lines, f"state: {state_text(replica) or 'not derived'}"]


def scanned_by(audit: Audit) -> list[str]:
    """The scans that read the log files. Processes of Spark may differ in what is installed."""
    return sorted(
        {
            report.scanned_by
            for group in audit.groups
            for one in group.replicas
            for report in one.reports
        }
    )


def undecidable(audit: Audit) -> list[str]:
    """The places for which no majority proves the right bytes."""
    return [finding.text for finding in audit.findings if finding.klass == UNDECIDABLE]


def as_json(audit: Audit) -> dict[str, object]:
    """The object of `--json`."""
    replicas = [
        {
            "replica": one.name,
            "group": one.group,
            "dir": one.directory,
            "verdict": audit.replica_verdicts[one.directory, one.group, one.name],
            "entries": one.entries,
            "bytes": one.end_pos,
            "commit_index": one.commit if one.commit is not None and one.commit >= 0 else None,
            "coverage_ratio": coverage(audit, one),
            "state": state_of(one),
            "checked": checked(audit, one),
        }
        for group in audit.groups
        for one in group.replicas
    ]
    value: dict[str, object] = {
        "v": 1,
        "verdict": audit.verdict,
        "reasons": audit.reasons,
        "compared_to_index": audit.compared,
        "replicas": replicas,
        "findings": [finding.as_json() for finding in audit.findings],
    }
    if audit.outlined:
        value["bytes_verified"] = False
    else:
        value["scanned_by"] = scanned_by(audit)
    if audit.clients is not None:
        value["clients"] = audit.clients.as_json()
    if audit.store is not None:
        value["stored"] = [
            as_object(group.group, stored) for group in audit.groups for stored in group.stored
        ]
    return value


def for_repair(audit: Audit) -> dict[str, object]:
    """What a repair needs to find the audited replicas again, and to notice changes (read by
    `repairs/told.py`)."""
    return {
        "groups": [
            {
                "group": one.group,
                "voters": one.voters,
                "proven_by": one.proving,
                "compared_to_index": one.compared,
            }
            for one in audit.groups
        ],
        "replicas": [
            {
                "replica": one.name,
                "group": one.group,
                "path": one.directory if "://" in one.directory else os.path.abspath(one.directory),
                "log_id": one.log_id,
                "incarnation": None if one.identity is None else one.identity["incarnation"],
            }
            for group in audit.groups
            for one in group.replicas
        ],
    }


def as_text(audit: Audit, *, exact: bool = False) -> str:
    """The report for people; scripts may parse its last line. `exact`: in bytes; otherwise rounded,
    with a unit."""
    lines: list[str] = []
    for group in audit.groups:
        compared = (
            "nothing compared"
            if group.compared is None
            else f"compared up to index {group.compared}"
        )
        recorded = "none" if group.recorded is None else str(group.recorded)
        lines.append(
            f"group {group.group}: voters {', '.join(group.voters) or 'unknown'}; {compared};"
            f" highest recorded commit {recorded}"
        )
        for one in group.replicas:
            share = coverage(audit, one)
            covered = "-" if share is None else f"{share:.2%}"
            verdict = audit.replica_verdicts[one.directory, one.group, one.name]
            size = f"bytes={one.end_pos}" if exact else f"size={units.size_words(one.end_pos)}"
            lines.append(
                f"  {one.name}: {verdict}  entries={one.entries} {size} coverage={covered}"
                f" dir={one.directory}"
            )
            lines += [f"    {line}" for line in checked(audit, one, exact=exact)]
        for stored in group.stored:
            lines += [f"  store: {stored.place}", *(f"    {line}" for line in lines_of(stored))]
    lines += (
        []
        if audit.outlined or not audit.groups
        else [f"log files scanned by: {', '.join(scanned_by(audit)) or 'nothing'}"]
    )
    lines += [] if audit.clients is None else audit.clients.lines()
    lines += [finding.text for finding in audit.findings]
    lines += [f"note: {note}" for note in audit.notes]
    lines += [f"reason: {reason}" for reason in audit.reasons]
    lines += next_steps(audit)
    return "\n".join([*lines, f"audit: {audit.verdict}"])


def next_steps(audit: Audit) -> list[str]:
    """The operator's next steps, one line per kind of finding."""
    steps = {
        (f.flaw.rule if f.flaw.rule in RULE_STEP else f.klass): f.next_step for f in audit.findings
    }
    return [f"next step for {kind}: {steps[kind]}" for kind in sorted(steps)]


VERDICT_FILE = "verdict.json"
CLIENT_FILES = ("clients.jsonl", "clients.parquet")
"""Files that are written only by an audit with clients' files."""


def write_findings(audit: Audit, directory: str) -> None:
    """Write the findings as JSON lines, and as Parquet if pyarrow is installed, to a directory of
    their own; also the verdict, and what a repair needs. If the verdict exists, the other files are
    of the same audit. Raises CannotWrite."""
    rows = [
        {
            **finding.as_json(),
            "fails": finding.fails,
            "meaning": RULES[finding.flaw.rule].meaning,
            "next_step": finding.next_step,
        }
        for finding in audit.findings
    ]
    verdict = {**as_json(audit), "repair": for_repair(audit)}
    files = {
        "findings.jsonl": text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)),
        VERDICT_FILE: text(json.dumps(verdict, ensure_ascii=False, indent=1) + "\n"),
    }
    if audit.clients is not None:
        files |= audit.clients.window_files()
    with suppress(ImportError):
        files["findings.parquet"] = _as_parquet(rows)
    write_set(Path(directory), files, last=VERDICT_FILE, former=("findings.parquet", *CLIENT_FILES))


def _as_parquet(rows: list[dict[str, object]]) -> WriteTo:
    """The findings as a table. Raises ImportError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("class", "replica", "group", "file", "rule", "proof", "meaning", "next_step")
    numbers = ("index", "byte_from", "byte_to")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in names),
            *((name, pa.int64()) for name in numbers),
            ("fails", pa.bool_()),
        ]
    )
    table = pa.Table.from_pylist(rows, schema=schema)
    return lambda path: pq.write_table(table, path)
