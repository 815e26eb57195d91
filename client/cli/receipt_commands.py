"""`ledgermq receipts`: verify the receipts that producers kept, and change the key that signs new
ones.

Only argument parsing, messages and exit statuses live here.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import Meter, cluster_command, json_option
from ledgermq.client.errors import Incomplete
from ledgermq.client.messages.receipts import Judged, judge
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import ExitCode

FINDINGS_MAX = 1000
"""At most this many receipts that could not be confirmed are printed; the others are only
counted."""


@click.group()
def receipts() -> None:
    """Verify receipts of native producers, and change the key that signs them.

    \b
    Examples:
      ledgermq receipts verify receipts.parquet
      ledgermq receipts rotate
    """


@receipts.command()
@click.argument("file", type=click.Path(path_type=Path))
@cluster_command
@json_option
def verify(connection: Connection, file: Path, as_json: bool) -> None:
    """Verify every receipt of FILE with the cluster: its MAC, and the log entries that it names.

    FILE is Parquet if its name ends so, otherwise one JSON object per line. A receipt cannot be
    verified, and is neither true nor false, if its messages were trimmed, if it is of another
    cluster or log, or if its broker group has no leader now.

    \b
    Examples:
      ledgermq receipts verify receipts.parquet
      ledgermq receipts verify receipts.jsonl --json

    Exit status: 0 all true; 1 at least one is false; 2 some cannot be verified, or FILE has none; 3
    no node answers.
    """
    counts: Counter[str] = Counter()
    findings: list[Judged] = []
    with Meter("receipts", None) as meter:
        for judged in judge(connection, file):
            counts[judged.result] += 1
            if judged.result != "true" and len(findings) < FINDINGS_MAX:
                findings.append(judged)
            meter.show(counts.total())
    numbers = {result: counts[result] for result in ("true", "false", "unverifiable")}
    if as_json:
        render.print_json(
            receipts=counts.total(), **numbers, findings=[_as_json(finding) for finding in findings]
        )
    else:
        for finding in findings:
            print(f"row {finding.row}: {finding.result.upper()}: {finding.reason}{_where(finding)}")
        if counts.total() - counts["true"] > len(findings):
            print(f"… and {counts.total() - counts['true'] - len(findings)} more that are not true")
        print(
            f"{counts.total()} receipts: "
            + ", ".join(f"{number} {result}" for result, number in numbers.items())
        )
    if counts["false"]:
        print(f"error: {counts['false']} receipts are false; see the rows above", file=sys.stderr)
        raise click.exceptions.Exit(ExitCode.FAILED)
    if counts["unverifiable"]:
        raise Incomplete(
            f"INCOMPLETE: {counts['unverifiable']} receipts cannot be verified",
            "see the reasons above",
        )
    if not counts.total():
        raise Incomplete(
            f"INCOMPLETE: there is no receipt in {file}", "give the file that the producer wrote"
        )


@receipts.command()
@cluster_command
@json_option
def rotate(connection: Connection, as_json: bool) -> None:
    """Sign receipts with a new key from now on. Receipts under former keys can still be verified.
    The key also changes every 30 days.

    \b
    Examples:
      ledgermq receipts rotate
      ledgermq receipts rotate --json

    Exit status: 0 changed; 3 no node answers; 4 refused.
    """
    answer = ask(connection, pb.RotateReceiptKeyRequest(), pb.RotateReceiptKeyResponse)
    if as_json:
        render.print_json(key_id=answer.key_id, keys=answer.keys)
    else:
        print(f"receipts are signed with key {answer.key_id} ({answer.keys} keys verify)")


def _where(finding: Judged) -> str:
    found = finding.receipt
    if found is None:
        return ""
    return (
        f" ({found.broker_group}, topic {found.topic}, entries {found.first_index} to"
        f" {found.first_index + found.count - 1})"
    )


def _as_json(finding: Judged) -> dict[str, Any]:
    found = finding.receipt
    shown: dict[str, Any] = {"row": finding.row, "result": finding.result, "reason": finding.reason}
    if found is not None:
        shown.update(
            broker_group=found.broker_group,
            topic=found.topic,
            producer_id=found.producer_id,
            epoch=found.epoch,
        )
        shown.update(
            first_sequence=found.first_sequence,
            first_index=found.first_index,
            count=found.count,
            key_id=found.key_id,
        )
    return shown
