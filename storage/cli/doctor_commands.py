"""The command `ledgermq doctor`: arguments, the report as text or JSON, exit status. `doctor.py`
measures and evaluates."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from ledgermq.proto import kernels, units
from ledgermq.proto.status import ExitCode
from ledgermq.storage.backups.backup_manifest import MANIFEST_FILE, Refused
from ledgermq.storage.cli.backup_commands import EXACT, ProgressLine
from ledgermq.storage.cli.doctor import (
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
from ledgermq.storage.cli.doctor_facts import (
    NodeFound,
    ScratchFile,
    look_at_node,
    open_to_all,
    read_facts,
)
from ledgermq.storage.cli.sizing import (
    FIGURES,
    NATIVE,
    NODES_MAX,
    ROCKETMQ,
    Options,
    Sizing,
    UnusablePlan,
    chart_values,
    parse,
    plan,
)
from ledgermq.storage.files.errors import is_no_space


class Size(click.ParamType[int]):
    """A size with a unit, in bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        converted = units.size_bytes(value)
        if not converted:
            self.fail(f"{value!r} is not a size; write it like {units.SIZE_FORM}")
        return converted


COUNT = click.IntRange(1, 100_000)
PLANNING = (
    click.option(
        "--plan",
        "text",
        metavar="TEXT",
        help="Size a cluster for a load, such as '20k msg/s of 1 KiB, 3 days'.",
    ),
    click.option(
        "--clients",
        type=click.Choice((NATIVE, ROCKETMQ)),
        help="Plan: protocol of the clients.  [native]",
    ),
    click.option(
        "--replicas", type=click.IntRange(1, 9), help="Plan: replicas of a broker group.  [3]"
    ),
    click.option(
        "--nodes",
        type=click.IntRange(1, NODES_MAX),
        help="Plan: number of nodes, instead of as many as are needed.",
    ),
    click.option(
        "--consumer-groups",
        type=click.IntRange(0, 100_000),
        help="Plan: consumer groups that read every message.  [1]",
    ),
    click.option("--topics", type=COUNT, help="Plan: number of topics.  [1]"),
    click.option("--queues", type=COUNT, help="Plan: queues of each topic.  [8]"),
    click.option(
        "--connections",
        type=click.IntRange(0, 10_000_000),
        help="Plan: connections of all clients.  [100]",
    ),
    click.option(
        "--log-file-size",
        "log_file_bytes",
        type=Size(),
        help="Plan: size of the log files.  [1GiB]",
    ),
    click.option("--cores", type=click.IntRange(1, 1024), help="Plan: cores of a node.  [4]"),
    click.option("--memory", "memory_bytes", type=Size(), help="Plan: memory of a node.  [16GiB]"),
    click.option("--disk", "disk_bytes", type=Size(), help="Plan: disk of a node.  [4TiB]"),
    click.option(
        "--disk-rate",
        "disk_bytes_per_s",
        type=Size(),
        help="Plan: bytes a second that the disk writes.  [200MiB]",
    ),
    click.option(
        "--network",
        "network_bytes_per_s",
        type=Size(),
        help="Plan: bytes a second, each way.  [119.2MiB, 1 Gbit/s]",
    ),
)


def _planning(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(PLANNING):
        command = option(command)
    return command


@click.command()
@click.argument(
    "directory", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False)
)
@click.option("--quick", is_flag=True, help="About three seconds instead of about fifteen.")
@_planning
@EXACT
@click.option(
    "--json", "as_object", is_flag=True, help="One JSON object on stdout instead of text."
)
def doctor(
    directory: str | None,
    quick: bool,
    text: str | None,
    exact: bool,
    as_object: bool,
    **options: Any,
) -> None:
    """Measure the disk under DIR and recommend settings for it, or size a cluster (--plan).

    Measures sequential writes and flushes of 4 KiB, 64 KiB and 1 MiB, and checks the relevant
    limits. The measurements use a file without a name, so nothing is left behind. If DIR is a node
    directory, the report also describes its content. The directory is never changed.

    With --plan, measures nothing: computes nodes, broker groups, cores, memory, disk and network
    for a load from the costs that docs/sizing.md lists. Exit status: 0 fine, 1 a threshold is
    crossed, or the given number of nodes is too small for the plan.

    \b
    Examples:
      ledgermq doctor /var/lib/ledgermq
      ledgermq doctor ledgermq-data/n1 --quick --json
      ledgermq doctor --plan "20k msg/s of 1 KiB, 3 days"
      ledgermq doctor --plan "500 msg/s of 2 KiB, 2 weeks" --clients rocketmq \\
        --consumer-groups 3 --disk 500GiB
    """
    given = {name: value for name, value in options.items() if value is not None}
    if text is not None:
        if directory is not None or quick:
            raise click.UsageError(
                "--plan takes neither DIR nor --quick; measure the disk with a command of its own:"
                " ledgermq doctor DIR"
            )
        _say_plan(text, given, exact, as_object)
    if given:
        name = next(iter(given))
        option = next(
            opt
            for known in click.get_current_context().command.params
            if known.name == name
            for opt in known.opts
        )
        raise click.UsageError(
            f"{option} is an option of a plan; give the load too: --plan '20k msg/s of 1 KiB, 3"
            " days'"
        )
    if directory is None:
        raise click.UsageError("give a directory, or a load; see: ledgermq doctor --help")
    facts = read_facts(directory)
    progress = ProgressLine("doctor")
    measured = _measured(
        directory, probe_bytes(facts.free_bytes), QUICK if quick else THOROUGH, progress
    )
    progress.close()
    node = look_at_node(directory)
    read, more = (
        (None, [])
        if measured is None
        else reading(measured.rate, 0 if node is None else sum(g.log_bytes for g in node.groups))
    )
    for group in () if node is None else node.groups:
        more += about_files(group.group, group.differing_files)
    if (node is not None or os.path.exists(f"{directory}/{MANIFEST_FILE}")) and open_to_all(
        directory
    ):
        more.append(about_access(directory))
    verdict = examine(facts, measured, None if node is None else node.used_bytes)
    verdict = replace(verdict, warnings=(*verdict.warnings, *more))
    report = as_json(directory, verdict, node, read)
    print(
        json.dumps(report) if as_object else as_text(directory, verdict, node, read, exact),
        flush=True,
    )
    raise SystemExit(ExitCode.FAILED if verdict.warnings else 0)


def _say_plan(text: str, options: dict[str, Any], exact: bool, as_object: bool) -> NoReturn:
    try:
        sizing = plan(parse(text), Options(**options))
    except UnusablePlan as error:
        raise click.UsageError(str(error)) from error
    print(
        json.dumps(plan_as_json(sizing)) if as_object else plan_as_text(sizing, exact), flush=True
    )
    raise SystemExit(ExitCode.FAILED if sizing.exceeded else 0)


def plan_as_json(sizing: Sizing) -> dict[str, Any]:
    """The plan as the command line prints it. `figures`: the measured constants, and the page that
    states each."""
    figures = {
        name: {"what": figure.what, "points": figure.points, "page": figure.page}
        for name, figure in FIGURES.items()
    }
    return {"v": 1, **asdict(sizing), "chart": chart_values(sizing), "figures": figures}


def plan_as_text(sizing: Sizing, exact: bool = False) -> str:
    """The plan for people."""

    def size(count: float) -> str:
        return f"{count:,.0f} bytes" if exact else units.size_words(round(count))

    load, options, node = sizing.load, sizing.options, sizing.node
    each = load.messages_per_s / sizing.groups
    workers = f"{node.workers} worker{'s' if node.workers > 1 else ''}"
    values = chart_values(sizing)
    lines = [
        (
            f"load         {load.messages_per_s:,g} messages/s of {size(load.body_bytes)}, kept for"
            f" {_span(load.retention_s)}; {options.clients} clients, {options.consumer_groups}"
            f" consumer group{'s' if options.consumer_groups != 1 else ''}"
        ),
        (
            f"cluster      {sizing.nodes} node{'s' if sizing.nodes > 1 else ''} with {workers}"
            " each,"
            f" {sizing.groups} broker groups of {options.replicas} replicas; {each:,.0f} messages/s"
            " for each leader"
        ),
        "each node",
        f"  cores      {node.cores}, of which the load uses {node.cores_used:.2f}",
        (
            f"  memory     {size(node.memory_bytes)}, of which {size(node.page_cache_bytes)} is"
            " page cache"
        ),
        (
            f"  disk       {size(node.disk_bytes)} for {node.replicas} replicas, written at"
            f" {size(node.disk_written_per_s)}/s"
        ),
        f"  network    {size(node.network_in_per_s)}/s in, {size(node.network_out_per_s)}/s out",
        f"message      {size(sizing.log_bytes_a_message)} in the log",
        f"decided by   {sizing.limit}",
        f"chart        {json.dumps(values)}",
        (
            "assumed      half of each core and of the network stays free; disk below 80 %; every"
            " figure and its source: docs/sizing.md"
        ),
    ]
    if sizing.exceeded:
        lines.append(
            f"alarm: {sizing.nodes} nodes are too few ({', '.join(sizing.exceeded)}); leave out"
            " --nodes, or give larger nodes"
        )
    return "\n".join(lines)


def _span(seconds: float) -> str:
    return units.duration_words(round(seconds * 1000))


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
        raise Refused(
            f"{directory} cannot be measured ({error.strerror})",
            "check the path, its owner and its permissions",
        ) from error


def as_json(
    directory: str, verdict: Verdict, node: NodeFound | None, read: Reading | None
) -> dict[str, Any]:
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
        "sequential": (
            None
            if measured is None
            else {"bytes_per_s": round(measured.rate), "written_bytes": measured.written_bytes}
        ),
        "flushes": None if measured is None else [_flush(flush) for flush in measured.flushes],
        "model": None if measured is None else _model(measured),
        "advice": None if verdict.advice is None else asdict(verdict.advice),
        "scrub": None if read is None else asdict(read),
        "warnings": [asdict(warning) for warning in verdict.warnings],
        "node": None if node is None else asdict(node),
    }


def _flush(flush: Any) -> dict[str, Any]:
    return {
        "write_bytes": flush.write_bytes,
        "samples": flush.samples,
        "p50_ms": _ms(flush.p50_s),
        "p99_ms": _ms(flush.p99_s),
    }


def _model(measured: Measured) -> dict[str, Any]:
    check = [
        {
            "batch_bytes": flush.write_bytes,
            "model_ms": _ms(measured.cost_s(flush.write_bytes)),
            "measured_ms": _ms(flush.p50_s + measured.write_s),
        }
        for flush in measured.flushes
    ]
    terms = {
        "rate_bytes_per_s": round(measured.rate),
        "write_ms": _ms(measured.write_s),
        "flush_ms": _ms(measured.flush_s),
    }
    return {**terms, "half_transfer_bytes": measured.half_bytes, "check": check}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def as_text(
    directory: str,
    verdict: Verdict,
    node: NodeFound | None,
    read: Reading | None,
    exact: bool = False,
) -> str:
    """The report for people. `exact`: bytes as numbers; otherwise rounded, with a unit."""

    def size(count: float, digits: int = 0) -> str:
        return f"{round(count)} bytes" if exact else f"{count / MIB:,.{digits}f} MiB"

    facts, measured = verdict.facts, verdict.measured
    turning = {True: "rotational", False: "not rotational", None: "rotational or not: unknown"}[
        facts.rotational
    ]
    memory = ", in memory" if facts.in_memory else ""
    lines = [
        f"{directory}: {facts.file_system}{memory}, {turning}",
        (
            f"  space        {size(facts.free_bytes)} free of {size(facts.total_bytes)},"
            f" {facts.used_percent:.1f} % used"
        ),
        (
            f"  limits       {_limit(facts.max_map_count, 'memory maps')},"
            f" {_limit(facts.open_files, 'open files')},"
            f" {_limit(facts.memory_lock_bytes, 'bytes of locked memory')}"
        ),
    ]
    lines.append(f"  kernels      {kernels.described()}")
    if measured is not None:
        lines.append(
            f"  sequential   {size(measured.rate)}/s in writes of 1 MiB"
            f" ({size(measured.written_bytes)} written)"
        )
        for flush in measured.flushes:
            times = (
                f"p50 {_ms(flush.p50_s):.2f} ms, p99 {_ms(flush.p99_s):.2f} ms ({flush.samples}"
                " times)"
            )
            lines.append(f"  fdatasync    {flush.write_bytes // KIB:>5} KiB: {times}")
        half = f"{measured.half_bytes} bytes" if exact else f"{measured.half_bytes / KIB:,.0f} KiB"
        lines += _model_lines(measured, size, half)
    if verdict.advice is not None:
        lines.append(f"  flush policy {verdict.advice.flush_policy}: {verdict.advice.why}")
        files = size(verdict.advice.log_file_bytes)
        lines.append(
            f"  log files    of {files} (data_file_bytes, fixed when a broker group is created)"
        )
    if read is not None:
        days = "" if node is None else f"; a pass takes {read.pass_s / 3600:,.1f} hours"
        lines.append(
            f"  scrub        {size(read.bytes_per_s, 1)}/s, {read.part_of_disk:.1%} of the"
            f" sequential rate{days}"
        )
    if node is not None:
        lines += _node_lines(node, size)
    for warning in verdict.warnings:
        lines.append(f"{warning.level}: {warning.what}; {warning.remedy}")
    lines.append(f"doctor: {'a threshold is crossed' if verdict.warnings else 'fine'}")
    return "\n".join(lines)


def _model_lines(measured: Measured, size: Callable[[float], str], half: str) -> list[str]:
    sizes = [
        (
            flush.write_bytes,
            _ms(measured.cost_s(flush.write_bytes)),
            _ms(flush.p50_s + measured.write_s),
        )
        for flush in measured.flushes
    ]
    check = ", ".join(
        f"{size // KIB} KiB {model:.2f} ms (measured {taken:.2f})"
        for size, model, taken in sizes[1:]
    )
    return [
        (
            f"  cost model   T = S/R + W + F: R = {size(measured.rate)}/s, W ="
            f" {_ms(measured.write_s):.3f} ms, F = {_ms(measured.flush_s):.2f} ms"
        ),
        f"               predicts {check}",
        (
            f"               half of T is transfer from batches of {half} on: group commit pays up"
            " to there"
        ),
    ]


def _node_lines(node: NodeFound, size: Callable[[float, int], str]) -> list[str]:
    lines = [f"  node         {node.node} of cluster {node.cluster_id}, {size(node.used_bytes, 1)}"]
    if node.problem is not None:
        lines.append(f"               cannot be read further: {node.problem}")
    for group in node.groups:
        state = "stopped in good order" if group.clean else "running, or not stopped in good order"
        committed = "unknown" if group.committed_index is None else str(group.committed_index)
        lines.append(
            f"  group        {group.group}: {group.log_files} log files,"
            f" {size(group.log_bytes, 1)}, synced up to entry {group.synced_index}, committed"
            f" (noted): {committed}, {state}"
        )
        since = "a time nobody noted" if group.verified_ms is None else _moment(group.verified_ms)
        agree = (
            f"{len(group.differing_files)} of them differ"
            if group.differing_files
            else "none known to differ"
        )
        lines.append(
            f"               {group.sealed_files} sealed by a majority, {agree}; everything"
            f" verified or written since {since}"
        )
        if group.recovery is not None:
            lines.append(f"               {group.recovery}")
    return lines


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat("T", "seconds")


def _limit(value: int | None, unit: str) -> str:
    return f"no known limit of {unit}" if value is None else f"{value:,} {unit}"
