"""`ledgermq waiting`: messages that are stored and not visible yet: delayed messages, and half
messages of transactions.

Only argument parsing, progress and exit statuses live here.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import click

from ledgermq.client import render, results
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import BATCH, PAGE, pages
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.reading import name_of, read_all
from ledgermq.client.cli.commands import (
    Meter,
    cluster_command,
    confirmed,
    exact_option,
    json_option,
    namespace_option,
)
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.messages.receiving import MESSAGE_NOT_FOUND
from ledgermq.client.moments import time_range_ms
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import ExitCode

kind_option = click.option(
    "--kind",
    type=click.Choice(("delayed", "half")),
    required=True,
    help="delayed messages, or half messages of undecided transactions.",
)
range_option = click.option(
    "--time-range",
    "time_range",
    metavar="A..B",
    help="Only messages sent at or after A and before B, as for `query`.",
)


@click.group()
def waiting() -> None:
    """List and cancel messages that are stored and not visible yet: delayed messages, and half
    messages of transactions.

    \b
    Examples:
      ledgermq waiting list --topic reminders --kind delayed
      ledgermq waiting cancel --topic reminders --kind delayed --id 01D6F5A2C8E0420000000001 --yes
    """


@waiting.command("list")
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@kind_option
@range_option
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Show at most N messages.",
)
@namespace_option
@cluster_command
@exact_option
@json_option
def waiting_list(
    connection: Connection,
    topic_name: str,
    kind: str,
    time_range: str | None,
    limit: int,
    namespace: str,
    exact: bool,
    as_json: bool,
) -> None:
    """List the delayed messages of a topic by the minute of their time, or its half messages by
    age, within each broker group.

    checks: how often a producer was asked for its decision about a half message.

    \b
    Examples:
      ledgermq waiting list --topic reminders --kind delayed --json
      ledgermq waiting list --topic payments --kind half --time-range ..-1h
    """
    topic, rows = stored_name(namespace, topic_name), []
    for found in islice(_listed(connection, topic, kind, (), time_range), limit):
        if as_json:
            render.print_json(**_as_json(found))
        else:
            until = (
                render.moment(found.message.delayed_until_ms) if kind == "delayed" else found.checks
            )
            where = f"{found.place.broker_group}:{found.place.offset}"
            rows.append(
                [
                    found.message.message_id,
                    render.moment(found.message.store_ms),
                    until,
                    where,
                    render.size(len(found.message.body), exact),
                ]
            )
    if not as_json:
        columns = [
            "message id",
            "sent",
            "delivered at" if kind == "delayed" else "checks",
            "waits at",
            "bytes" if exact else "size",
        ]
        render.print_table(f"{kind} messages of {topic}", columns, rows)


@waiting.command("cancel")
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@kind_option
@click.option(
    "--id", "message_ids", multiple=True, help="Only the message with this id; repeatable."
)
@range_option
@click.option(
    "--all", "everything", is_flag=True, help="All messages of this kind that wait for the topic."
)
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namespace_option
@cluster_command
@json_option
def waiting_cancel(
    connection: Connection,
    topic_name: str,
    kind: Literal["delayed", "half"],
    message_ids: tuple[str, ...],
    time_range: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    namespace: str,
    as_json: bool,
) -> None:
    """Cancel messages before they become visible: delayed messages are recalled, half messages
    rolled back. They are never delivered.

    A cancelled message stays cancelled, so an interrupted command can be run again. The record in
    the log names the user who cancelled.

    \b
    Examples:
      ledgermq waiting cancel --topic reminders --kind delayed --all --dry-run
      ledgermq waiting cancel --topic payments --kind half --time-range ..-1h --yes

    Exit status: 0 all selected messages are cancelled; 1 some became visible first; 3 no answer:
    run it again; 4 no message has the id.
    """
    if everything == bool(message_ids or time_range):
        raise BadArgument(
            "it is not clear which messages are meant", "give --id, --time-range, or only --all"
        )
    topic = stored_name(namespace, topic_name)
    if not dry_run:
        confirmed(f"cancelling the selected {kind} messages of {topic}", yes)
    admin = Admin(connection)
    found = _listed(connection, topic, kind, message_ids, time_range)
    total: Counter[str] = Counter()
    try:
        with Meter("cancelled", None) as meter:
            while batch := read_all(results.WaitingMessage, islice(found, BATCH)):
                total.update(
                    ["waiting"] * len(batch)
                    if dry_run
                    else admin.cancel_waiting(topic, kind, batch)
                )
                meter.show(total["cancelled"])
    except BaseException:  # Ctrl-C too: whatever ends the job, the operator learns how far it came
        print(f"cancelled so far: {total['cancelled']}", file=sys.stderr)
        raise
    count = sum(total.values())
    if as_json:
        render.print_json(dry_run=dry_run, messages=count, **total)
    elif dry_run:
        print(f"would be cancelled: {count}")
    else:
        print(f"cancelled {total['cancelled']} of {count}")
    if message_ids and not count:
        raise Refused(
            MESSAGE_NOT_FOUND,
            "no message with such an id waits",
            f"see: ledgermq waiting list --topic {topic_name} --kind {kind}",
        )
    if total["gone"]:
        raise SystemExit(ExitCode.FAILED)


def _listed(
    connection: Connection,
    topic: str,
    kind: str,
    message_ids: tuple[str, ...],
    time_range: str | None,
) -> Iterator[pb.WaitingMessage]:
    """The messages, page by page."""
    begin_ms, end_ms = time_range_ms(time_range, time.time_ns() // 1_000_000)
    request = pb.ListWaitingRequest(
        topic=name_of(topic),
        kind=kind,
        message_ids=message_ids,
        begin_ms=begin_ms,
        end_ms=end_ms,
        max=PAGE,
    )
    listing = pages(connection, request, pb.ListWaitingResponse)
    return (message for page in listing for message in page.messages)


def _as_json(found: pb.WaitingMessage) -> dict[str, Any]:
    fields = render.peeked_json(found.message)
    for name in ("offset", "attempt"):
        del fields[name]
    return {
        **fields,
        "checks": found.checks,
        "broker_group": found.place.broker_group,
        "waits_at": found.place.offset,
    }
