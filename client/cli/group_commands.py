"""The commands for consumer groups: create, update, list, describe, delete, lag, reset, skip.

Only argument parsing and exit statuses live here; the client package does the work. stdout carries
only the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from ledgermq.client import render, results
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.reading import read
from ledgermq.client.cli.commands import (
    cluster_command,
    confirmed,
    exact_option,
    json_option,
    namespace_option,
    told_if_interrupted,
)
from ledgermq.client.errors import BadArgument, Incomplete
from ledgermq.client.moments import place
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import parse_stored, stored_name
from ledgermq.proto.records.group_config import BACKOFF_FORM, backoff_fields, parse_backoff
from ledgermq.proto.types import Backoff


@click.group()
def group() -> None:
    """Create, list, describe, update, reset and delete consumer groups, and show their progress.

    \b
    Examples:
      ledgermq group create billing --max-attempts 5
      ledgermq group lag billing
      ledgermq group reset billing --topic orders --to earliest
    """


class BackoffType(click.ParamType[Backoff]):
    """Parse `1s,5s,30s`, `exponential:5s..2h*2`, or `default`, which is a backoff without
    values."""

    name = "backoff"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Backoff:
        try:
            return Backoff() if value == "default" else parse_backoff(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


BACKOFF = BackoffType()
BACKOFF_HELP = (
    f"Redelivery delays of messages that a consumer failed to process: {BACKOFF_FORM}, or default."
)
LITE_HELP = "The topic of kind lite that the group's consumers read."


@group.command("create")
@click.argument("name")
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1000),
    default=17,
    show_default=True,
    help="Deliveries before dead-lettering.",
)
@click.option(
    "--fifo", is_flag=True, help="Deliver the messages of a message group in order, one at a time."
)
@click.option("--backoff", type=BACKOFF, help=BACKOFF_HELP)
@click.option("--lite-topic", default="", help=LITE_HELP)
@click.option("--broadcast", is_flag=True, help="Deliver every message to every consumer.")
@namespace_option
@cluster_command
@json_option
def group_create(
    connection: Connection,
    name: str,
    max_attempts: int,
    fifo: bool,
    backoff: Backoff | None,
    lite_topic: str,
    broadcast: bool,
    namespace: str,
    as_json: bool,
) -> None:
    """Create a consumer group. A group that was not created gets the defaults when a consumer first
    uses it.

    \b
    Examples:
      ledgermq group create billing
      ledgermq group create ledger --fifo --max-attempts 5 --backoff 1s,5s,30s
    """
    request = pb.CreateGroupRequest(
        group=pb.Name(namespace=namespace, name=name),
        max_attempts=max_attempts,
        fifo=fifo,
        backoff=None if backoff is None else pb.Backoff(**backoff_fields(backoff)),
        lite_topic=lite_topic,
        broadcast=broadcast,
    )
    answer = ask(connection, request, pb.CreateGroupResponse)
    found = read(results.ConsumerGroup, answer.group)
    if as_json:
        render.print_json(created=answer.created, **render.group_json(found))
    else:
        done = "created" if answer.created else "exists already, with these settings"
        print(f"{done}: {name} ({render.group_words(found)})")


@group.command("update")
@click.argument("name")
@click.option(
    "--max-attempts", type=click.IntRange(1, 1000), help="Deliveries before dead-lettering."
)
@click.option(
    "--fifo/--no-fifo",
    default=None,
    help="Deliver the messages of a message group in order, one at a time.",
)
@click.option("--backoff", type=BACKOFF, help=BACKOFF_HELP)
@click.option("--lite-topic", help=LITE_HELP)
@click.option(
    "--broadcast/--no-broadcast", default=None, help="Deliver every message to every consumer."
)
@namespace_option
@cluster_command
@json_option
def group_update(
    connection: Connection,
    name: str,
    max_attempts: int | None,
    fifo: bool | None,
    backoff: Backoff | None,
    lite_topic: str | None,
    broadcast: bool | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Change settings of a consumer group. Settings that are not given stay as they are.

    \b
    Example: ledgermq group update billing --max-attempts 3 --backoff exponential:5s..2h*2
    """
    if all(given is None for given in (max_attempts, fifo, backoff, lite_topic, broadcast)):
        raise BadArgument(
            "there is nothing to change", "give a setting, see: ledgermq group update --help"
        )
    found = Admin(connection).update_group(
        stored_name(namespace, name),
        max_attempts=max_attempts,
        fifo=fifo,
        backoff=backoff,
        lite_topic=lite_topic,
        broadcast=broadcast,
    )
    if as_json:
        render.print_json(**render.group_json(found))
    else:
        print(f"updated: {name} ({render.group_words(found)})")


@group.command("list")
@cluster_command
@json_option
def group_list(connection: Connection, as_json: bool) -> None:
    """List all consumer groups. Clients are those of `client list`, unknown while a node does not
    answer.

    \b
    Example: ledgermq group list
    """
    groups = Admin(connection).groups()
    if as_json:
        render.print_json(groups=[render.group_json(g) for g in groups])
        return
    rows = []
    for g in groups:
        namespace, name = parse_stored(g.name)
        configured = "yes" if g.configured else "no"
        rows.append([namespace or "-", name, render.group_words(g), configured, g.clients])
    render.print_table(
        "consumer groups", ["namespace", "group", "settings", "configured", "clients"], rows
    )


@group.command("describe")
@click.argument("name")
@namespace_option
@cluster_command
@json_option
def group_describe(connection: Connection, name: str, namespace: str, as_json: bool) -> None:
    """Show one consumer group and its progress in each queue.

    \b
    Example: ledgermq group describe billing --json
    """
    found = Admin(connection).group(stored_name(namespace, name))
    if as_json:
        render.print_json(**render.group_json(found))
        return
    clients = "?" if found.clients is None else found.clients
    print(f"{name}: {render.group_words(found)}, clients {clients}")
    rows = [
        [
            parse_stored(q.topic)[1],
            q.queue,
            q.broker_group,
            q.cursor,
            q.leased,
            q.lag,
            q.max_offset,
        ]
        for q in found.queues
    ]
    render.print_table(
        "queues", ["topic", "queue", "broker group", "cursor", "leased", "lag", "next offset"], rows
    )


@group.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namespace_option
@cluster_command
def group_delete(connection: Connection, name: str, namespace: str, yes: bool) -> None:
    """Delete a consumer group and its progress.

    \b
    Example: ledgermq group delete billing --yes
    """
    confirmed(f"deleting the consumer group {name}", yes)
    Admin(connection).delete_group(stored_name(namespace, name))
    print(f"deleted: {name}")


@group.command("lag")
@click.argument("name")
@click.option(
    "--topic", "topic_name", help="Only this topic, even if the group has not used it yet."
)
@exact_option
@namespace_option
@cluster_command
@json_option
def group_lag(
    connection: Connection,
    name: str,
    topic_name: str | None,
    exact: bool,
    namespace: str,
    as_json: bool,
) -> None:
    """Show how many messages a consumer group has still to consume, per topic and queue.

    lag: messages never delivered; leased: delivered but not acknowledged; oldest age: time since
    the oldest of them was stored.

    \b
    Examples:
      ledgermq group lag billing
      ledgermq group lag billing --topic orders --json

    Exit status: 0 done; 2 INCOMPLETE: a broker group has no leader, so its numbers are unknown.
    """
    request = pb.GroupLagRequest(group=pb.Name(namespace=namespace, name=name))
    if topic_name is not None:
        request.topic.CopyFrom(pb.Name(namespace=namespace, name=topic_name))
    answer = ask(connection, request, pb.GroupLagResponse)
    if as_json:
        render.print_json(**render.lag_json(name, namespace, answer))
    else:
        render.lag_text(answer, exact)
    unknown = sorted(
        {q.broker_group for t in answer.topics for q in t.queues if not q.HasField("lag")}
    )
    if unknown:
        what = f"INCOMPLETE: the numbers of broker group {', '.join(unknown)} are unknown"
        raise Incomplete(what, "see ledgermq status, and retry when the group has a leader")


@group.command("reset")
@click.argument("name")
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option(
    "--to",
    "where",
    required=True,
    metavar="PLACE",
    help="earliest, latest, a time, or an offset (with --queue).",
)
@click.option("--queue", type=click.IntRange(0), help="Only this queue. [default: all]")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namespace_option
@cluster_command
@json_option
def group_reset(
    connection: Connection,
    name: str,
    topic_name: str,
    where: str,
    queue: int | None,
    yes: bool,
    namespace: str,
    as_json: bool,
) -> None:
    """Move the position of a consumer group in a topic: moved backwards, messages are delivered
    again; moved forwards, they are skipped.

    Leases end: the acknowledgement of a message that was delivered before the reset is refused. A
    time is ISO 8601 (UTC unless it has another offset), milliseconds since 1970 as 1700000000000ms,
    or a duration before now as -10m. An offset belongs to one queue and is clamped to the range
    that the queue holds.

    \b
    Examples:
      ledgermq group reset billing --topic orders --to earliest
      ledgermq group reset billing --topic orders --to -1h --yes
      ledgermq group reset billing --topic orders --queue 3 --to 1200 --yes
    """
    request = pb.ResetGroupRequest(
        group=pb.Name(namespace=namespace, name=name),
        topic=pb.Name(namespace=namespace, name=topic_name),
        queue=queue,
    )
    setattr(request, *place(where, time.time_ns() // 1_000_000))
    if request.HasField("offset") and queue is None:
        remedy = "give --queue as well, or a time as 1700000000000ms"
        raise BadArgument("an offset means a different message in every queue", remedy)
    confirmed(f"resetting the consumer group {name} in topic {topic_name} to {where}", yes)
    answer = ask(connection, request, pb.ResetGroupResponse)
    _show_reset(name, topic_name, answer.queues, as_json)


@group.command("skip")
@click.argument("name")
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option(
    "--queue",
    type=click.IntRange(0),
    required=True,
    help="The queue's number, as shown by group lag.",
)
@click.option(
    "--count",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Messages to skip behind those in flight.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@namespace_option
@cluster_command
@json_option
def group_skip(
    connection: Connection,
    name: str,
    topic_name: str,
    queue: int,
    count: int,
    yes: bool,
    namespace: str,
    as_json: bool,
) -> None:
    """Skip the messages that a consumer group has in flight in a queue, and optionally more: for
    messages that no consumer can process.

    Skipped messages are not delivered again and do not go to the dead-letter topic; acknowledging
    them is refused. They stay in the log; `group reset` makes the group read them again.

    \b
    Examples:
      ledgermq group skip billing --topic orders --queue 3
      ledgermq group skip billing --topic orders --queue 3 --count 10 --yes
    """
    admin, group = Admin(connection), stored_name(namespace, name)
    topic = stored_name(namespace, topic_name)
    found = [q for t in admin.lag(group, topic=topic) for q in t.queues if q.queue == queue]
    if not found or found[0].cursor is None:
        raise BadArgument(
            f"queue {queue} of topic {topic_name} is unknown", "see: ledgermq group lag " + name
        )
    offset = found[0].cursor + count
    confirmed(
        f"moving the consumer group {name} to offset {offset} of queue {queue} of topic"
        f" {topic_name}",
        yes,
    )
    remedy = (
        f"see where it is (ledgermq group lag {name}): the same command would skip further messages"
    )
    with told_if_interrupted(
        lambda: f"the consumer group {name} may have moved to offset {offset}", remedy
    ):
        cursors = admin.reset(group, topic, offset, queue=queue)
    _show_reset(name, topic_name, cursors, as_json)


def _show_reset(
    name: str,
    topic_name: str,
    cursors: Iterable[pb.QueueCursor | results.Cursor],
    as_json: bool,
) -> None:
    rows = [[q.queue, q.broker_group, q.group_queue, q.cursor] for q in cursors]
    if as_json:
        names = ("queue", "broker_group", "group_queue", "cursor")
        render.print_json(
            group=name,
            topic=topic_name,
            queues=[dict(zip(names, row, strict=True)) for row in rows],
        )
    else:
        render.print_table(
            f"{name} reads {topic_name} from", ["queue", "broker group", "id there", "offset"], rows
        )
