"""`ledgermq check`: the state of a cluster for monitoring systems, by the rules of Nagios plugins.

Law: every outcome, wrong usage included, is one line on stdout with the exit status 0, 1, 2 or 3,
because monitoring systems read nothing else. `health.py` judges; only options, calls and the line
live here.
"""

from __future__ import annotations

from typing import Any, NoReturn

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.reading import name_of
from ledgermq.client.cli.commands import DURATION, SIZE, cluster_command, exact_option, json_option
from ledgermq.client.errors import BadArgument, ClusterError, Unreachable
from ledgermq.client.plans.health import (
    Finding,
    Limit,
    Severity,
    lag_of,
    of_cluster,
    of_consumer_group,
    worst,
)
from ledgermq.proto import admin_pb2 as pb


class Plugin(click.Command):
    """A command whose errors are results: CRITICAL if the cluster does not answer, otherwise
    UNKNOWN."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except click.UsageError as error:
            _end(
                Severity.UNKNOWN,
                f"{error.format_message().rstrip('.')}; see: ledgermq check --help",
            )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Unreachable as error:
            _end(Severity.CRITICAL, str(error))
        except ClusterError as error:
            _end(Severity.UNKNOWN, str(error))


def _end(severity: Severity, text: str, numbers: str = "") -> NoReturn:
    # The bar separates the text from the numbers.
    print(f"LEDGERMQ {severity.name} - {' '.join(text.replace('|', '/').split())}{numbers}")
    raise SystemExit(int(severity))


@click.command(cls=Plugin)
@click.option(
    "--disk-warning",
    type=SIZE,
    default="5GiB",
    show_default=True,
    help="Warn below this much free space of a node's disk.",
)
@click.option(
    "--disk-critical",
    type=SIZE,
    default="1GiB",
    show_default=True,
    help="Critical below this much free space.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Also check the lag of this consumer group; repeatable.",
)
@click.option(
    "--lag-warning",
    type=click.IntRange(1),
    help="Warn if at least so many messages wait for a consumer group.",
)
@click.option("--lag-critical", type=click.IntRange(1), help="Critical from this many messages on.")
@click.option(
    "--age-warning",
    "age_warning_s",
    type=DURATION,
    help="Warn if a message has waited for a consumer group for this long.",
)
@click.option("--age-critical", "age_critical_s", type=DURATION, help="Critical from this age on.")
@exact_option
@cluster_command
@json_option
def check(
    connection: Connection,
    disk_warning: int,
    disk_critical: int,
    groups: tuple[str, ...],
    lag_warning: int | None,
    lag_critical: int | None,
    age_warning_s: float | None,
    age_critical_s: float | None,
    exact: bool,
    as_json: bool,
) -> None:
    """Check the cluster for a monitoring system: one line, and the exit status of a Nagios plugin.

    \b
    Examples:
      ledgermq check
      ledgermq check --group billing --lag-warning 1000 --lag-critical 100000 --age-warning 5m
      ledgermq check --context prod --timeout 5s --json

    Critical: a broker group without a leader or with differing replicas, an HA group that is short
    of members, a full disk, no answer at all. A warning: a node that is down, a replica that does
    not run, a clock on which no majority of the nodes agrees, a store time that is ahead of the
    clock.

    Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (wrong usage, no permission, or a number
    that nobody knows).
    """
    messages, age_ms = (
        Limit(lag_warning, lag_critical),
        Limit(_ms(age_warning_s), _ms(age_critical_s)),
    )
    if (messages != Limit() or age_ms != Limit()) and not groups:
        raise BadArgument(
            "limits of lag and age have no meaning without a consumer group", "add --group GROUP"
        )
    status = ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)
    found = of_cluster(status, disk_warning, disk_critical, exact=exact)
    numbers = {
        "nodes_up": sum(node.up for node in status.nodes),
        "leaders": sum(group.HasField("leader") for group in status.groups),
    }
    for name in groups:
        lag = ask(connection, pb.GroupLagRequest(group=name_of(name)), pb.GroupLagResponse)
        found += of_consumer_group(name, lag, messages, age_ms, exact=exact)
        if found[-1].severity != Severity.UNKNOWN:
            numbers[f"lag {name}"], numbers[f"age {name}"] = lag_of(lag)
    _say(worst(found), found, numbers, _summary(status), as_json)


def _say(
    severity: Severity, found: list[Finding], numbers: dict[str, int], summary: str, as_json: bool
) -> None:
    # The worst first: some systems cut the line.
    ordered = sorted(
        found, key=lambda finding: (finding.severity == Severity.OK, finding.severity != severity)
    )
    if as_json:
        findings = [
            {"severity": finding.severity.name.lower(), "text": finding.text} for finding in ordered
        ]
        render.print_json(status=severity.name.lower(), findings=findings, numbers=numbers)
        raise SystemExit(int(severity))
    bad = [finding.text for finding in ordered if finding.severity != Severity.OK]
    good = [finding.text for finding in ordered if finding.severity == Severity.OK]
    shown = " ".join(
        f"'{name}'={value}{'ms' if name.startswith('age ') else ''}"
        for name, value in numbers.items()
    )
    _end(severity, "; ".join([*bad, *([] if bad else [summary]), *good]), f" | {shown}")


def _summary(status: pb.ClusterStatusResponse) -> str:
    return f"nodes up: {len(status.nodes)}, broker groups with a leader: {len(status.groups)}"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
