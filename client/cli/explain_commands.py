"""The command `why-not-delivered`, and the trace that `query --trace` shows.

Only argument parsing and exit statuses live here; the cluster finds the explanation.
"""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import pages
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.reading import name_of
from ledgermq.client.cli.commands import cluster_command, json_option, namespace_option
from ledgermq.client.errors import Refused
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code

NOT_THERE = frozenset({"not-found", "expired"})


@click.command("why-not-delivered")
@click.argument("message_id")
@click.option(
    "--group",
    "group_name",
    required=True,
    help="The consumer group that has not received the message.",
)
@click.option(
    "--topic",
    "topic_name",
    help="The message's topic. [default: search all, those the group has used first]",
)
@namespace_option
@cluster_command
@json_option
def why_not_delivered(
    connection: Connection,
    message_id: str,
    group_name: str,
    topic_name: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Explain why a consumer group has not received a message, or that it has: one sentence, then
    the evidence.

    \b
    Examples:
      ledgermq why-not-delivered 01D6F5A2C8E042AB00C0FFEE0000000001 --group billing
      ledgermq why-not-delivered 01D6F5A2C8E042AB00C0FFEE0000000001 --group billing \\
        --topic orders --json

    Reasons (--json): acknowledged, leased, visible-again, too-large (for its client), ready,
    store-away (only the object store has it), no-consumer, ordered (an earlier message of its
    message group comes first), delayed, half (its transaction is undecided), rolled-back, recalled,
    filtered, skipped (by a reset), dead-lettered, unread (the group never asked), done (how is no
    longer known), deleted (with its topic), expired, not-found.

    Exit status: 0 answered; 4 no message has the id.
    """
    answer = Admin(connection).why_not_delivered(
        message_id,
        stored_name(namespace, group_name),
        topic=None if topic_name is None else stored_name(namespace, topic_name),
    )
    render.explanation(answer, as_json)
    if answer.reason in NOT_THERE:
        raise Refused(
            Code.MESSAGE_NOT_FOUND,
            f"no message with the id {message_id} was found",
            "check the id and the topic",
        )


def show_trace(connection: Connection, topic: str, message_id: str, as_json: bool) -> None:
    """Print every event of a message that the log still holds, in log order: one line, or one JSON
    object, per event."""
    request = pb.TraceMessageRequest(topic=name_of(topic), message_id=message_id)
    for page in pages(connection, request, pb.TraceMessageResponse):
        for event in page.events:
            fields = event_fields(event)
            if as_json:
                render.print_json(**fields)
            else:
                shown = [
                    fields[name]
                    for name in ("event", "group", "attempt", "client", "detail", "broker_group")
                ]
                print(
                    "  ".join(
                        str(value)
                        for value in (_time(event.store_ms), *shown)
                        if value not in (None, "")
                    )
                )


def event_fields(event: pb.TraceEvent) -> dict[str, object]:
    """One event in the form of the JSON output."""
    return {
        "store_ms": event.store_ms,
        "index": event.index,
        "event": event.kind,
        "group": event.group.name if event.HasField("group") else None,
        "attempt": render.known(event, "attempt"),
        "client": render.known(event, "client"),
        "duration_ms": render.known(event, "duration_ms"),
        "detail": event.detail,
        "broker_group": event.broker_group,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
