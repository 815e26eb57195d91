"""The command `ledgermq doctor`: arguments, the report as text or JSON, exit status. `doctor.py` measures and evaluates."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import click

from ledgermq.proto import kernels
from ledgermq.proto.status import ExitCode
from ledgermq.storage.backup_manifest import MANIFEST_FILE, Refused
from ledgermq.storage.commands import EXACT, ProgressLine
from ledgermq.storage.doctor import (
    KIB,
    MIB,
    QUICK,
    THOROUGH,
    Effort,
    Measured,
    Reading,
    Verdict,
    about_access,
    about_files,
    examine,
    measure,
    probe_bytes,
    reading,
)
from ledgermq.storage.doctor_facts import NodeFound, ScratchFile, look_at_node, open_to_all, read_facts
from ledgermq.storage.errors import is_no_space


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--quick", is_flag=True, help="About three seconds instead of about fifteen.")
@EXACT
@click.option("--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text.")
def doctor(directory: str, quick: bool, exact: bool, as_object: bool) -> None:
    """Measure the disk under DIR and recommend settings for it.

    Measures sequential writes and flushes of 4 KiB, 64 KiB and 1 MiB, and checks the relevant limits. The measurements use a file without a
    name, so nothing is left behind. If DIR is a node directory, the report also describes its content. The directory is never changed.
    Exit status: 0 fine, 1 a threshold is crossed.

    \b
    Examples:
      ledgermq doctor /var/lib/ledgermq
      ledgermq doctor ledgermq-data/n1 --quick --json
    """
    facts = read_facts(directory)
    progress = ProgressLine("doctor")
    measured = _measured(directory, probe_bytes(facts.free_bytes), QUICK if quick else THOROUGH, progress)
    progress.close()
    node = look_at_node(directory)
    read, more = (None, []) if measured is None else reading(measured.rate, 0 if node is None else sum(g.log_bytes for g in node.groups))
    for group in () if node is None else node.groups:
        more += about_files(group.group, group.differing_files)
    if (node is not None or os.path.exists(f"{directory}/{MANIFEST_FILE}")) and open_to_all(directory):
        more.append(about_access(directory))
    verdict = examine(facts, measured)
    verdict = replace(verdict, warnings=(*verdict.warnings, *more))
    told = as_json(directory, verdict, node, read)
    print(json.dumps(told) if as_object else as_text(directory, verdict, node, read, exact), flush=True)
    raise SystemExit(ExitCode.FAILED if verdict.warnings else 0)


def _measured(directory: str, size: int, effort: Effort, progress: ProgressLine) -> Measured | None:
    """None if there is no room to measure."""
    if size == 0:
        return None
    try:
        with closing(ScratchFile(directory)) as probe:
            return measure(probe, size, effort, time.monotonic_ns, progress)
    except OSError as error:
        if is_no_space(error):
            return None
        raise Refused(f"{directory} cannot be measured ({error.strerror})", "check the path, its owner and its permissions") from error


def as_json(directory: str, verdict: Verdict, node: NodeFound | None, read: Reading | None) -> dict[str, Any]:
    """The report as the command line prints it."""
    facts, measured = verdict.facts, verdict.measured
    return {
        "v": 1,
        "directory": directory,
        "native": kernels.VERSION,
        "file_system": facts.file_system,
        "in_memory": facts.in_memory,
        "rotational": facts.rotational,
        "free_bytes": facts.free_bytes,
        "total_bytes": facts.total_bytes,
        "used_percent": round(facts.used_percent, 1),
        "max_map_count": facts.max_map_count,
        "memory_lock_bytes": facts.memory_lock_bytes,
        "open_files": facts.open_files,
        "sequential": None if measured is None else {"bytes_per_s": round(measured.rate), "written_bytes": measured.written_bytes},
        "flushes": None if measured is None else [_flush(flush) for flush in measured.flushes],
        "model": None if measured is None else _model(measured),
        "advice": None if verdict.advice is None else asdict(verdict.advice),
        "scrub": None if read is None else asdict(read),
        "warnings": [asdict(warning) for warning in verdict.warnings],
        "node": None if node is None else asdict(node),
    }


def _flush(flush: Any) -> dict[str, Any]:
    return {"write_bytes": flush.write_bytes, "samples": flush.samples, "p50_ms": _ms(flush.p50_s), "p99_ms": _ms(flush.p99_s)}


def _model(measured: Measured) -> dict[str, Any]:
    check = [
        {
            "batch_bytes": flush.write_bytes,
            "model_ms": _ms(measured.cost_s(flush.write_bytes)),
            "measured_ms": _ms(flush.p50_s + measured.write_s),
        }
        for flush in measured.flushes
    ]
    terms = {"rate_bytes_per_s": round(measured.rate), "write_ms": _ms(measured.write_s), "flush_ms": _ms(measured.flush_s)}
    return {**terms, "half_transfer_bytes": measured.half_bytes, "check": check}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def as_text(directory: str, verdict: Verdict, node: NodeFound | None, read: Reading | None, exact: bool = False) -> str:
    """The report for people. `exact`: bytes as numbers; otherwise rounded, with a unit."""

    def size(count: float, digits: int = 0) -> str:
        return f"{round(count)} bytes" if exact else f"{count / MIB:,.{digits}f} MiB"

    facts, measured = verdict.facts, verdict.measured
    turning = {True: "rotational", False: "not rotational", None: "rotational or not: unknown"}[facts.rotational]
    memory = ", in memory" if facts.in_memory else ""
    lines = [
        f"{directory}: {facts.file_system}{memory}, {turning}",
        f"  space        {size(facts.free_bytes)} free of {size(facts.total_bytes)}, {facts.used_percent:.1f} % used",
        f"  limits       {_limit(facts.max_map_count, 'memory maps')}, {_limit(facts.open_files, 'open files')}, "
        f"{_limit(facts.memory_lock_bytes, 'bytes of locked memory')}",
    ]
    lines.append(f"  kernels      {kernels.described()}")
    if measured is not None:
        lines.append(f"  sequential   {size(measured.rate)}/s in writes of 1 MiB ({size(measured.written_bytes)} written)")
        for flush in measured.flushes:
            times = f"p50 {_ms(flush.p50_s):.2f} ms, p99 {_ms(flush.p99_s):.2f} ms ({flush.samples} times)"
            lines.append(f"  fdatasync    {flush.write_bytes // KIB:>5} KiB: {times}")
        half = f"{measured.half_bytes} bytes" if exact else f"{measured.half_bytes / KIB:,.0f} KiB"
        lines += _model_lines(measured, size, half)
    if verdict.advice is not None:
        lines.append(f"  flush policy {verdict.advice.flush_policy}: {verdict.advice.why}")
        files = size(verdict.advice.log_file_bytes)
        lines.append(f"  log files    of {files} (data_file_bytes, fixed when a broker group is created)")
    if read is not None:
        days = "" if node is None else f"; a pass takes {read.pass_s / 3600:,.1f} hours"
        lines.append(f"  scrub        {size(read.bytes_per_s, 1)}/s, {read.part_of_disk:.1%} of the sequential rate{days}")
    if node is not None:
        lines += _node_lines(node, size)
    for warning in verdict.warnings:
        lines.append(f"{warning.level}: {warning.what}; {warning.remedy}")
    lines.append(f"doctor: {'a threshold is crossed' if verdict.warnings else 'fine'}")
    return "\n".join(lines)


def _model_lines(measured: Measured, size: Callable[[float], str], half: str) -> list[str]:
    sizes = [
        (flush.write_bytes, _ms(measured.cost_s(flush.write_bytes)), _ms(flush.p50_s + measured.write_s)) for flush in measured.flushes
    ]
    check = ", ".join(f"{size // KIB} KiB {model:.2f} ms (measured {found:.2f})" for size, model, found in sizes[1:])
    return [
        f"  cost model   T = S/R + W + F: R = {size(measured.rate)}/s, W = {_ms(measured.write_s):.3f} ms, "
        f"F = {_ms(measured.flush_s):.2f} ms",
        f"               predicts {check}",
        f"               half of T is transfer from batches of {half} on: group commit pays up to there",
    ]


def _node_lines(node: NodeFound, size: Callable[[float, int], str]) -> list[str]:
    lines = [f"  node         {node.node} of cluster {node.cluster_id}, {size(node.used_bytes, 1)}"]
    if node.problem is not None:
        lines.append(f"               cannot be read further: {node.problem}")
    for group in node.groups:
        state = "stopped in good order" if group.clean else "running, or not stopped in good order"
        committed = "unknown" if group.committed_index is None else str(group.committed_index)
        lines.append(
            f"  group        {group.group}: {group.log_files} log files, {size(group.log_bytes, 1)}, synced up to entry "
            f"{group.synced_index}, committed (noted): {committed}, {state}"
        )
        since = "a time nobody noted" if group.verified_ms is None else _moment(group.verified_ms)
        agree = f"{len(group.differing_files)} of them differ" if group.differing_files else "none known to differ"
        lines.append(f"               {group.sealed_files} sealed by a majority, {agree}; everything verified or written since {since}")
        if group.recovery is not None:
            lines.append(f"               {group.recovery}")
    return lines


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat("T", "seconds")


def _limit(value: int | None, what: str) -> str:
    return f"no known limit of {what}" if value is None else f"{value:,} {what}"
