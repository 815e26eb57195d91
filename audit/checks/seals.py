"""Comparing recorded digests of sealed log files with the files: their edges, their bytes
(`--deep`), and the node's own notes.

A seal record states, confirmed by a majority, what a complete file held when the next one began. It
is the only evidence about bytes that is not stored next to them: only a seal detects a history that
was rewritten with all its CRCs, equally on every replica.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.verdicts import tell, tell_difference
from ledgermq.audit.reading.decode import NOT_JSON, read_sealed_json
from ledgermq.audit.rules import BIT_ROT, DIVERGENCE, RULES, Finding, Flaw

DIGESTS = "state/digests"
TREE_VERSION = 2
"""The version of seals that have a tree."""


@dataclass(frozen=True, slots=True)
class Seal:
    """The content of a seal record about one file."""

    first: int
    last: int
    end: int
    sha256: str
    root: str | None = None
    """The root of the tree over its entries; none in a seal of version 1, empty in one of version 2
    that has no valid tree."""
    entries: int = 0
    """The number of leaves of that tree."""


def seals_of(result: GroupResult) -> dict[int, Seal]:
    """Seals by the position of the file: from the log up to the compared index, or else from a
    snapshot up to there. The first record counts."""
    seals: dict[int, Seal] = {}
    limit = -1 if result.compared is None else result.compared
    for value in _records(result, limit):
        parsed = seal_in(value)
        if parsed is not None:
            base, seal = parsed
            known = seals.setdefault(base, seal)
            # Where a seal needs a root, one without it changes nothing, and is followed by another.
            if known.root is None and replace(known, root=seal.root, entries=seal.entries) == seal:
                seals[base] = seal
    return seals


def seal_in(value: Mapping[str, object]) -> tuple[int, Seal] | None:
    """Base and seal in a record; None if a field is missing."""
    fields = [value.get(key) for key in ("base", "first", "last", "end", "sha256")]
    if not all(isinstance(field, int) for field in fields[:4]) or not isinstance(fields[4], str):
        return None
    base, first, last, end = (int(str(field)) for field in fields[:4])
    return base, Seal(first, last, end, fields[4], *_tree(value))


def _tree(seal: Mapping[str, object]) -> tuple[str | None, int]:
    """Root and number of entries in a seal. Snapshots keep seals without their version."""
    if "tree" not in seal and seal.get("v") != TREE_VERSION:
        return None, 0
    tree = seal.get("tree")
    root, entries = (
        (tree.get("root"), tree.get("entries")) if isinstance(tree, dict) else (None, None)
    )
    return (root, entries) if isinstance(root, str) and isinstance(entries, int) else ("", 0)


def _records(result: GroupResult, limit: int) -> Iterator[Mapping[str, object]]:
    """Seal records: first from the log in order, up to the compared index, then from snapshots,
    which keep those of trimmed files. Each in the version of most replicas; if two versions are
    equally frequent, neither counts."""
    # Records of a history other than the majority's do not count.
    ends = [(one, result.divergent.get(one.name, limit + 1) - 1) for one in result.replicas]
    in_log: dict[int, Counter[str]] = {}
    for one, end in ends:
        for index, body in (record for report in one.reports for record in report.seals):
            if index <= min(limit, one.held, end):
                in_log.setdefault(index, Counter())[body] += 1
    for _, bodies in sorted(in_log.items()):
        with contextlib.suppress(*NOT_JSON):
            value = json.loads(_usual(bodies))
            if isinstance(value, dict):
                yield value
    by_file: dict[str, Counter[str]] = {}
    for one in result.replicas:
        snapshot = one.snapshot or {}
        applied, retained = snapshot.get("applied_index"), snapshot.get("retained")
        seals = (
            retained.get("seals")
            if isinstance(retained, dict) and isinstance(applied, int) and applied <= limit
            else None
        )
        for value in seals if isinstance(seals, list) else ():
            if isinstance(value, dict):
                by_file.setdefault(str(value.get("base")), Counter())[
                    json.dumps(value, sort_keys=True)
                ] += 1
    yield from (json.loads(text) for text in map(_usual, by_file.values()) if text)


def _usual(votes: Counter[str]) -> str:
    """The most frequent text; empty if two are equally frequent."""
    ranked = votes.most_common(2)
    return ranked[0][0] if len(ranked) == 1 or ranked[0][1] > ranked[1][1] else ""


def check_seals(result: GroupResult) -> None:
    """Compare the seals of a judged group with its files."""
    seals = seals_of(result)
    for one in result.replicas:
        for flaw in check_records(one, seals):
            tell(result, Finding(RULES[flaw.rule].klass, one.name, result.group, flaw))
    _check_digests(result, seals)


def check_records(one: Replica, seals: Mapping[int, Seal]) -> list[Flaw]:
    """A record names the first and last entry of its file, and where the last one ends."""
    flaws = []
    for report in one.filled:
        seal = seals.get(report.base)
        if seal is None or report.last_index is None or _is_stale(one, report):
            continue
        if report is one.filled[-1] and report.last_index < seal.last:
            # The log ends before the file was complete: a replica that lags, or a backup. Losses
            # are reported elsewhere.
            continue
        actual = report.first_index, report.last_index, report.base + report.end
        if actual != (seal.first, seal.last, seal.end):
            sealed = f"sealed with entries {seal.first} to {seal.last} up to position {seal.end}"
            proof = f"{sealed}; here {actual[0]} to {actual[1]} up to {actual[2]}"
            # If the file lacks entries, or some are unreadable, another finding names bytes between
            # both ends.
            ends = sorted((report.end, seal.end - report.base))
            places = (
                [(report.file, 0, report.first_size)]
                if report.first_index in report.damaged
                else []
            )
            places += (
                [(report.file, report.last_at, ends[1])]
                if actual[2] != seal.end or report.last_index in report.damaged
                else []
            )
            flaws.append(
                Flaw(
                    "seal.record",
                    report.file,
                    index=report.first_index,
                    byte_from=0,
                    byte_to=report.end,
                    proof=proof,
                    measures=tuple(places),
                )
            )
    return flaws


def _is_stale(one: Replica, report: LogReport) -> bool:
    """Whether a file holds entries of a deposed leader that were never committed: the seal is of
    other entries with these indexes, which the replica gets when it catches up."""
    last = report.last_index
    return one.stale_from is not None and last is not None and last >= one.stale_from


def check_notes(one: Replica, seals: Mapping[int, Seal]) -> list[Flaw]:
    """Check the digests and roots that the node itself computed of its files: 64 bytes per file,
    for audits that do not read the bytes."""
    noted = read_sealed_json(f"{one.root}/{DIGESTS}")
    if noted is None or noted.get("log_id") != one.log_id:
        return []
    flaws = []
    for report in one.filled:
        seal = None if _is_stale(one, report) else seals.get(report.base)
        # A seal without a valid root says nothing of it.
        sealed_values = (
            []
            if seal is None
            else [
                ("digests", "", seal.sha256),
                *([("roots", "the root ", seal.root)] if seal.root else []),
            ]
        )
        for kind, subject, sealed in sealed_values:
            of_files = noted.get(kind)
            own = of_files.get(str(report.base)) if isinstance(of_files, dict) else None
            if own is not None and own != sealed:
                proof = (
                    f"the node computed {subject}{str(own)[:16]}…, sealed was {sealed[:16]}…; audit"
                    " without --agreement to see the bytes"
                )
                flaws.append(
                    Flaw(
                        "seal.noted",
                        report.file,
                        index=report.first_index,
                        byte_from=0,
                        byte_to=report.length,
                        proof=proof,
                    )
                )
    return flaws


def _check_digests(result: GroupResult, seals: Mapping[int, Seal]) -> None:
    """Compare the bytes of complete files (reports with a digest) with the records. Differences
    that other findings cover are not repeated. If no replica has the sealed bytes, it is unknown
    which bytes differ."""
    for base, seal in sorted(seals.items()):
        reports = [
            (one, report)
            for one in result.replicas
            for report in one.reports
            if report.base == base and report.sha256 and not _is_stale(one, report)
        ]
        wrong = [(one, report) for one, report in reports if report.sha256 != seal.sha256]
        usual = Counter(report.sha256 for _, report in wrong).most_common(1)
        rewritten = bool(usual) and usual[0][1] >= max(2, result.majority)
        peers = [one for one, report in reports if report.sha256 == seal.sha256]
        _check_tree(
            result, seal, [(one, report) for one, report in reports if report.sha256 == seal.sha256]
        )
        for one, report in wrong:
            proof = f"SHA-256 {report.sha256[:16]}…, a majority sealed {seal.sha256[:16]}…"
            flaw = Flaw(
                "seal.digest",
                report.file,
                index=report.first_index,
                byte_from=0,
                byte_to=report.length,
                proof=proof,
            )
            # If a majority has the same different bytes, it is another history, unless they are
            # known to be damaged.
            damaged = any(
                f.fails and f.replica == one.name and f.flaw.file == report.file
                for f in result.findings
            )
            klass = (
                DIVERGENCE
                if rewritten and report.sha256 == usual[0][0] and not damaged
                else BIT_ROT
            )
            finding = Finding(klass, one.name, result.group, flaw)
            if peers:
                tell_difference(result, finding, one, peers[0], report.length)
            else:
                result.findings.append(finding)


def _check_tree(result: GroupResult, seal: Seal, reports: list[tuple[Replica, LogReport]]) -> None:
    """Compare the root in a seal with the entries of the files that have the sealed bytes: only
    then is the record itself wrong."""
    for one, report in reports if seal.root is not None else ():
        if (seal.root, seal.entries) != (report.root, report.entries):
            sealed = f"{seal.root[:16]}… of {seal.entries}" if seal.root else "no valid root"
            proof = (
                f"the root of its {report.entries} entries is {report.root[:16]}…, sealed was"
                f" {sealed}"
            )
            flaw = Flaw(
                "seal.tree",
                report.file,
                index=report.first_index,
                byte_from=0,
                byte_to=report.end,
                proof=proof,
            )
            tell(result, Finding(RULES[flaw.rule].klass, one.name, result.group, flaw))
