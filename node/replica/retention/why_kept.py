"""Explains why a log file exists or not: one sentence, the reason as one word, and the evidence,
from facts and verdicts.

A pure function. It distinguishes a trimmed file from one that never existed by the trim records,
and, for files older than the oldest remembered record, by the begin of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from ledgermq.node.broker.calls.group_view import Why
from ledgermq.node.broker.parts.retention.retained import TRIMS_KEPT, Retained
from ledgermq.node.replica.retention.retention_rules import (
    DISK,
    NOT_DUE,
    SIZE,
    TIME,
    Rules,
    Verdict,
)
from ledgermq.proto import units

_DUE = {
    TIME: "its last message is older than the configured age",
    SIZE: "the sealed files are together larger than configured",
}
_DUE[DISK] = "the disks of a majority of the replicas are nearly full"


def why(
    base: int,
    file_bytes: int,
    retained: Retained,
    verdicts: Sequence[Verdict],
    rules: Rules,
    short: Sequence[str] = (),
) -> Why:
    """Explain the file named `base` in a log with files of `file_bytes` bytes. `short`: nodes whose
    disks are nearly full while those of a majority are not."""
    name = f"{base:020d}"
    if base < 0 or base % file_bytes:
        return Why(
            f"No file of this log can be named {name}.",
            "missing",
            (f"files of this log have {file_bytes} bytes each",),
        )
    if base < retained.begin_pos:
        return _gone(base, name, retained)
    verdict = next((verdict for verdict in verdicts if verdict.file.base == base), None)
    if verdict is None:
        end = verdicts[-1].file if verdicts else None
        known = (
            ()
            if end is None
            else (f"the last file is {end.base:020d}; the log ends at position {end.end_pos}",)
        )
        return Why(
            f"The file {name} does not exist and never did: the log has not grown that far.",
            "missing",
            known,
        )
    return _kept(name, verdict, retained, rules, short)


def _gone(base: int, name: str, retained: Retained) -> Why:
    trim = retained.trim_of(base)
    if trim is None:
        evidence = (
            f"the log begins with entry {retained.begin_index} at position {retained.begin_pos}",
            _digest(retained),
        )
        return Why(
            f"The file {name} was trimmed, longer ago than the last {TRIMS_KEPT} trim records.",
            "expired",
            evidence,
        )
    digest = next(sha256 for gone, sha256 in trim.record.files if gone == base)
    details = (
        (
            f"trim record at entry {trim.index}: the log begins with entry"
            f" {trim.record.begin_index} instead of {trim.record.from_index}"
        ),
        (
            f"digest of the file: {digest}"
            if digest is not None
            else "no digest of the file was recorded"
        ),
        _digest(retained),
    )
    because = _DUE.get(trim.record.reason, "an operator requested it")
    return Why(
        f"The file {name} was trimmed at {_time(trim.store_ms)} because {because}.",
        "trimmed",
        details,
    )


def _digest(retained: Retained) -> str:
    return f"digest over all trim records: {retained.trim_digest}"


def _kept(
    name: str, verdict: Verdict, retained: Retained, rules: Rules, short: Sequence[str]
) -> Why:
    file = verdict.file
    seal = retained.seals.get(file.base)
    evidence = [
        f"entries {file.first_index} to {file.last_index}, last message stored at"
        f" {_time(file.last_store_ms)}"
    ]
    if seal is not None:
        evidence.append(
            f"sealed with digest {seal.sha256} as reported by {', '.join(seal.replicas)}"
        )
    evidence += [f"{pin.kind}: {pin.detail}" for pin in verdict.pins]
    evidence += [
        f"not kept for the {pin.kind}, because {pin.waived}: {pin.detail}" for pin in verdict.waived
    ]
    if not file.sealed:
        return Why(
            f"The file {name} is kept because it is not complete yet.", "active", tuple(evidence)
        )
    if verdict.due == NOT_DUE:
        evidence.append(_limits(file.last_store_ms, rules))
        if short:
            what = (
                f"nearly full: {', '.join(short)}, less than a majority of the replicas; free space"
                " there"
            )
            evidence.append(f"no file goes for the disks of a minority ({what})")
        return Why(
            f"The file {name} is kept because no configured limit requires its removal yet.",
            "young",
            tuple(evidence),
        )
    evidence.append(f"due: {_DUE[verdict.due]}")
    if verdict.goes:
        return Why(f"The file {name} goes with the next check.", "due", tuple(evidence))
    first = verdict.pins[0]
    return Why(
        f"The file {name} should go but is kept because {first.detail}.",
        first.kind,
        tuple(evidence),
    )


def _limits(store_ms: int, rules: Rules) -> str:
    until = (
        f"by age it goes after {_time(store_ms + rules.max_age_ms)}"
        if rules.max_age_ms
        else "no age is configured"
    )
    size = (
        f"by size when sealed files exceed {units.size_words(rules.max_bytes)}"
        if rules.max_bytes
        else "no size is configured"
    )
    return f"{until}; {size}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
