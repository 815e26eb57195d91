"""The commands `status` and `topic`.

Only argument parsing and exit statuses live here; the client package does the work. stdout carries
only the result.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

import click

from ledgermq.client import render
from ledgermq.client.api.admin import Admin
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    DURATION,
    cluster_command,
    confirmed,
    exact_option,
    json_option,
    namespace_option,
)
from ledgermq.client.errors import BadArgument, Unreachable
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import parse_stored, stored_name

SHORTEST_WATCH_S = 0.1
GROUPS_ASKED = 100
KINDS = ["normal", "fifo", "delay", "transaction", "mixed", "priority", "lite"]
PERMISSIONS = ["rw", "r", "w", "none"]
DURABILITIES = ["group", "high", "memory", "hybrid"]
PERMISSION_HELP = "Whether clients may receive (r) and send (w)."
DEDUP_HELP = "Answer a repeated message id within this time without storing it again; 0s: never."
DURABILITY_HELP = (
    "A send waits for: a majority's disks (high) or memory (memory), by PRIORITY (hybrid), or the"
    " group's default (group)."
)

# -- status
# -----------------------------------------------------------------------------------------------------------------------------


@click.command()
@cluster_command
@click.option(
    "--wait",
    "wait_s",
    type=DURATION,
    default="0s",
    help="Wait up to this long for a healthy state.",
)
@click.option("--watch", is_flag=True, help="Show the state again and again until Ctrl-C.")
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    default="2s",
    show_default=True,
    help="With --watch: the time between two answers.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Also require that every node is up and every replica has caught up.",
)
@exact_option
@json_option
def status(
    connection: Connection,
    wait_s: float,
    watch: bool,
    every_s: float,
    strict: bool,
    exact: bool,
    as_json: bool,
) -> None:
    """Nodes, broker groups, replicas and topics.

    \b
    Examples:
      ledgermq status
      ledgermq status --wait 30s --strict --json
      ledgermq status --watch --every 5s

    With --watch a terminal is cleared before each answer; elsewhere, answers follow each other. A
    cluster that does not answer is reported and asked again.

    Exit status: 0 every group has a leader and a quorum, 1 a group has none (--strict: or a node is
    down or a replica lags), 3 no node answers. With --watch: 0 after Ctrl-C.
    """
    if watch:
        if wait_s:
            raise BadArgument("--wait and --watch exclude each other", "give one of them")
        if every_s < SHORTEST_WATCH_S:
            raise BadArgument("--every is too short", "give at least 100ms")
        watch_status(connection, every_s, exact, as_json)
        return
    end = time.monotonic() + wait_s
    while True:
        try:
            answer = _state(connection)
        except Unreachable as error:
            if time.monotonic() < end:
                continue
            raise (
                Unreachable(f"no node answered within {wait_s:g} s: {error.what}", error.remedy)
                if wait_s
                else error
            ) from None
        good = healthy(answer, strict)
        if good or time.monotonic() >= end:
            break
        time.sleep(0.2)
    if as_json:
        render.print_json(**render.status_json(answer))
    else:
        render.status_text(answer, exact)
    if not good:
        raise SystemExit(1)


def watch_status(connection: Connection, every_s: float, exact: bool, as_json: bool) -> None:
    """Show the state of the cluster until Ctrl-C, also while no node answers."""
    clear = "\x1b[H\x1b[2J\x1b[3J" if sys.stdout.isatty() and not as_json else ""
    with suppress(KeyboardInterrupt):
        while True:
            began = time.monotonic()
            try:
                answer = _state(connection)
            except Unreachable as error:
                print(
                    f"{clear}{datetime.now(UTC):%H:%M:%S} UTC: {error}", file=sys.stderr, flush=True
                )
            else:
                if as_json:
                    render.print_json(**render.status_json(answer))
                else:
                    print(f"{clear}{datetime.now(UTC):%H:%M:%S} UTC")
                    render.status_text(answer, exact)
                    sys.stdout.flush()
            time.sleep(max(0.0, began + every_s - time.monotonic()))


def _state(connection: Connection) -> pb.ClusterStatusResponse:
    return ask(connection, pb.ClusterStatusRequest(), pb.ClusterStatusResponse)


def healthy(answer: pb.ClusterStatusResponse, strict: bool) -> bool:
    """Whether every group has a leader and a quorum; with `strict` also every node is up and every
    replica has the leader's commit index."""
    if (
        answer.health == "down"
        or not answer.groups
        or any(not group.HasField("leader") for group in answer.groups)
    ):
        return False
    if not strict:
        return True
    replicas = [replica for group in answer.groups for replica in group.replicas]
    lagging = [r for r in replicas if not r.HasField("lag_entries") or r.lag_entries > 0]
    return answer.health == "ok" and all(node.up for node in answer.nodes) and not lagging


# -- topic and group
# --------------------------------------------------------------------------------------------------------------------


@click.group()
def topic() -> None:
    """Create, list, describe, update and delete topics.

    \b
    Examples:
      ledgermq topic create orders --queues 16
      ledgermq topic create orders-by-user --kind fifo
      ledgermq topic list
    """


@topic.command("create")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="normal",
    show_default=True,
    help="The type of messages that the topic takes.",
)
@click.option(
    "--queues",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    help="Message queues over all broker groups.",
)
@click.option(
    "--permission",
    type=click.Choice(PERMISSIONS),
    default="rw",
    show_default=True,
    help=PERMISSION_HELP,
)
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    default="group",
    show_default=True,
    help=DURABILITY_HELP,
)
@click.option("--dedup", "dedup_s", type=DURATION, default="0s", show_default=True, help=DEDUP_HELP)
@namespace_option
@cluster_command
@json_option
def topic_create(
    connection: Connection,
    name: str,
    kind: str,
    queues: int,
    permission: str,
    durability: str,
    dedup_s: float,
    namespace: str,
    as_json: bool,
) -> None:
    """Create a topic. Succeeds if it exists with the same settings; refused if it exists with
    others.

    \b
    Example: ledgermq topic create orders --kind fifo --queues 16
    """
    request = pb.CreateTopicRequest(
        topic=pb.Name(namespace=namespace, name=name),
        kind=kind,
        queues=queues,
        permission=permission,
        durability=durability.removeprefix("group"),
        dedup_ms=round(dedup_s * 1000),
    )
    answer = ask(connection, request, pb.CreateTopicResponse)
    if as_json:
        render.print_json(created=answer.created, **render.topic_detail_json(answer.topic))
    else:
        print(
            f"{'created' if answer.created else 'exists already, with these settings'}: {name}"
            f" ({kind}, {queues} queues, {permission})"
        )


@topic.command("update")
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, 4096),
    help="New total number of queues, spread evenly over the broker groups.",
)
@click.option(
    "--add-group",
    metavar="GROUP",
    help="Create queues in this broker group, which has none of this topic yet.",
)
@click.option("--permission", type=click.Choice(PERMISSIONS), help=PERMISSION_HELP)
@click.option("--durability", type=click.Choice(DURABILITIES), help=DURABILITY_HELP)
@click.option("--dedup", "dedup_s", type=DURATION, help=DEDUP_HELP)
@namespace_option
@cluster_command
@json_option
def topic_update(
    connection: Connection,
    name: str,
    queues: int | None,
    add_group: str | None,
    permission: str | None,
    durability: str | None,
    dedup_s: float | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Change a topic's permission, durability or deduplication, or raise its number of queues.
    Producers and consumers continue.

    \b
    Examples:
      ledgermq topic update orders --permission r
      ledgermq topic update orders --queues 24
      ledgermq topic update orders --add-group g4

    With more queues, most message groups (FIFO) move to another queue: messages sent before the
    change may be consumed at the same time as messages sent after it. If that order matters, let
    the consumers finish first.
    """
    if (
        queues is None
        and add_group is None
        and permission is None
        and durability is None
        and dedup_s is None
    ):
        raise BadArgument(
            "there is nothing to change",
            "give --queues, --add-group, --permission, --durability or --dedup",
        )
    request = pb.UpdateTopicRequest(
        topic=pb.Name(namespace=namespace, name=name),
        queues=queues,
        permission=permission,
        durability=None if durability is None else durability.removeprefix("group"),
        dedup_ms=None if dedup_s is None else round(dedup_s * 1000),
        add_group=add_group,
    )
    answer = ask(connection, request, pb.UpdateTopicResponse)
    if as_json:
        render.print_json(**render.topic_detail_json(answer.topic))
    else:
        render.print_topics([answer.topic])


@topic.command("list")
@cluster_command
@json_option
def topic_list(connection: Connection, as_json: bool) -> None:
    """List all topics.

    \b
    Example: ledgermq topic list --json
    """
    answer = ask(connection, pb.ListTopicsRequest(), pb.ListTopicsResponse)
    if as_json:
        render.print_json(topics=[render.topic_json(t) for t in answer.topics])
    else:
        render.print_topics(answer.topics)


@topic.command("describe")
@click.argument("name")
@namespace_option
@cluster_command
@json_option
def topic_describe(connection: Connection, name: str, namespace: str, as_json: bool) -> None:
    """Show one topic with its queues.

    \b
    Example: ledgermq topic describe orders
    """
    request = pb.DescribeTopicRequest(topic=pb.Name(namespace=namespace, name=name))
    found = ask(connection, request, pb.DescribeTopicResponse).topic
    if as_json:
        render.print_json(**render.topic_detail_json(found))
        return
    render.print_topics([found])
    numbers = {"min_offset": "first offset", "max_offset": "next offset"}
    if any(q.HasField("stored_offset") for q in found.queue_list):
        numbers = {
            "stored_offset": "first offset",
            "min_offset": "first on the disks",
            "max_offset": "next offset",
        }
    rows = [
        [q.queue, q.broker_group, q.group_queue, *(render.known(q, name) for name in numbers)]
        for q in found.queue_list
    ]
    render.print_table("queues", ["queue", "broker group", "id there", *numbers.values()], rows)


@topic.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namespace_option
@cluster_command
def topic_delete(connection: Connection, name: str, namespace: str, yes: bool) -> None:
    """Delete a topic and stop serving its messages. Consumer groups stay, and lose their positions
    in it; the question names them.

    \b
    Example: ledgermq topic delete orders --yes
    """
    admin = Admin(connection)
    if not yes and sys.stdin.isatty() and (readers := _readers(admin, name, namespace)):
        print(
            f"consumer groups that lose their positions in it: {', '.join(readers)}",
            file=sys.stderr,
        )
    confirmed(f"deleting the topic {name}", yes)
    admin.delete_topic(stored_name(namespace, name))
    print(f"deleted: {name}")


def _readers(admin: Admin, topic: str, namespace: str) -> list[str]:
    """The consumer groups that have read a topic, of the first hundred of its namespace."""
    names = [parse_stored(group.name) for group in admin.groups()]
    groups = [name for within, name in names if within == namespace][:GROUPS_ASKED]
    read = stored_name(namespace, topic)
    return [
        group
        for group in groups
        if any(one.topic == read for one in admin.lag(stored_name(namespace, group)))
    ]
