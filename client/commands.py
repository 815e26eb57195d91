"""The commands that talk to a running cluster: status, topic, group, send, consume, peek.

Only argument parsing, progress and exit statuses live here; what they do is in the client package. stdout carries the result alone.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import IO, Any, cast

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ledgermq.client import render
from ledgermq.client.admin import Admin, name_of
from ledgermq.client.connection import DEFAULT_ENDPOINTS, Connection
from ledgermq.client.errors import EXIT_REFUSED, EXIT_UNREACHABLE, BadArgument, Refused, Unreachable
from ledgermq.client.receiving import BATCH, Receiver
from ledgermq.client.sending import Outgoing, Sender
from ledgermq.proto import admin_pb2

KINDS = ["normal", "fifo"]
PERMISSIONS = ["rw", "r", "w", "none"]
PROGRESS_LINE_S = 5.0
PEEK_PAGE = 1000
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """`500ms`, `10s`, `2m`, `1h` as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.match(str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration; give 500ms, 10s, 2m or 1h", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


DURATION = Duration()


def cluster_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that every cluster command takes, and hands over an open Connection as the first argument."""

    @click.option("--endpoints", envvar="LEDGERMQ_ENDPOINTS", default=DEFAULT_ENDPOINTS, show_default=True, help="'host:port;host:port'")
    @click.option("--timeout", "timeout_s", type=DURATION, default="10s", show_default=True, help="How long to try, retries included.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
    @wraps(command)
    def with_connection(endpoints: str, timeout_s: float, quiet: bool, **options: Any) -> Any:
        with Connection(endpoints, timeout_s=timeout_s) as connection:
            click.get_current_context().ensure_object(dict)["quiet"] = quiet
            return command(connection, **options)

    return with_connection


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
namespace_option = click.option("--namespace", default="", help="Namespace of the topic or group; empty by default.")


class Meter:
    """Progress on stderr: a bar on a terminal, a line every five seconds elsewhere, nothing when quiet."""

    def __init__(self, what: str, total: int | None) -> None:
        self._quiet = bool(click.get_current_context().ensure_object(dict).get("quiet"))
        console = Console(stderr=True)
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        self._bar = Progress(*columns, console=console, disable=self._quiet or not console.is_terminal, transient=True)
        self._task = self._bar.add_task(what, total=total)
        self._plain = not self._quiet and not console.is_terminal
        self._what, self._last = what, time.monotonic()

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int) -> None:
        self._bar.update(self._task, completed=done)
        if self._plain and time.monotonic() - self._last >= PROGRESS_LINE_S:
            self._last = time.monotonic()
            print(f"{self._what}: {done}", file=sys.stderr, flush=True)


# -- status -----------------------------------------------------------------------------------------------------------------------------


@click.command()
@cluster_command
@click.option("--wait", "wait_s", type=DURATION, default="0s", help="Wait up to this long for the wanted state.")
@click.option("--strict", is_flag=True, help="Also want every node up and every replica caught up.")
@json_option
def status(connection: Connection, wait_s: float, strict: bool, as_json: bool) -> None:
    """Nodes, broker groups, replicas and topics.

    \b
    Examples:
      ledgermq status
      ledgermq status --wait 30s --strict --json

    Exit status: 0 every group has a leader and a quorum, 1 some has not (--strict: or a node is down or a replica lags),
    3 nobody answers.
    """
    end = time.monotonic() + wait_s
    while True:
        try:
            answer = Admin(connection).cluster_status()
        except Unreachable:
            if time.monotonic() >= end:
                raise
            continue
        good = healthy(answer, strict)
        if good or time.monotonic() >= end:
            break
        time.sleep(0.2)
    if as_json:
        render.print_json(**render.status_json(answer))
    else:
        render.status_text(answer)
    if not good:
        raise SystemExit(1)


def healthy(answer: admin_pb2.ClusterStatusResponse, strict: bool) -> bool:
    """Every group led; with `strict` also every node up and every replica level with its leader's commit index."""
    if answer.health == "down" or not answer.groups or any(not group.HasField("leader") for group in answer.groups):
        return False
    if not strict:
        return True
    replicas = [replica for group in answer.groups for replica in group.replicas]
    lagging = [r for r in replicas if not r.HasField("lag_entries") or r.lag_entries > 0]
    return answer.health == "ok" and all(node.up for node in answer.nodes) and not lagging


# -- topic and group --------------------------------------------------------------------------------------------------------------------


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
@click.option("--kind", type=click.Choice(KINDS), default="normal", show_default=True)
@click.option("--queues", type=click.IntRange(1, 4096), default=8, show_default=True, help="Message queues over all broker groups.")
@click.option("--permission", type=click.Choice(PERMISSIONS), default="rw", show_default=True)
@namespace_option
@cluster_command
@json_option
def topic_create(connection: Connection, name: str, kind: str, queues: int, permission: str, namespace: str, as_json: bool) -> None:
    """Create a topic. The same settings again are fine; other settings are refused.

    \b
    Example: ledgermq topic create orders --kind fifo --queues 16
    """
    answer = Admin(connection).create_topic(name, kind, queues, permission, namespace)
    if as_json:
        render.print_json(created=answer.created, **render.topic_detail_json(answer.topic))
    else:
        print(f"{'created' if answer.created else 'exists already, with these settings'}: {name} ({kind}, {queues} queues, {permission})")


@topic.command("update")
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 4096), help="Grow to this many queues.")
@click.option("--permission", type=click.Choice(PERMISSIONS))
@namespace_option
@cluster_command
@json_option
def topic_update(connection: Connection, name: str, queues: int | None, permission: str | None, namespace: str, as_json: bool) -> None:
    """Change a topic's permission or raise its number of queues.

    \b
    Example: ledgermq topic update orders --permission r
    """
    if queues is None and permission is None:
        raise BadArgument("there is nothing to change", "give --queues or --permission")
    answer = Admin(connection).update_topic(name, queues, permission, namespace)
    if as_json:
        render.print_json(**render.topic_detail_json(answer.topic))
    else:
        render.print_topics([answer.topic])


@topic.command("list")
@cluster_command
@json_option
def topic_list(connection: Connection, as_json: bool) -> None:
    """All topics.

    \b
    Example: ledgermq topic list --json
    """
    answer = Admin(connection).list_topics()
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
    """One topic with its queues.

    \b
    Example: ledgermq topic describe orders
    """
    found = Admin(connection).describe_topic(name, namespace).topic
    if as_json:
        render.print_json(**render.topic_detail_json(found))
        return
    render.print_topics([found])
    rows = [
        [q.queue, q.broker_group, q.group_queue, render.known(q, "min_offset"), render.known(q, "max_offset")] for q in found.queue_list
    ]
    render.print_table("queues", ["queue", "broker group", "id there", "first offset", "next offset"], rows)


def confirmed(what: str, yes: bool) -> None:
    """Ask on a terminal, insist on --yes elsewhere."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadArgument(f"{what} destroys data", "confirm with --yes")
    click.confirm(f"{what}?", abort=True, err=True)


@topic.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namespace_option
@cluster_command
def topic_delete(connection: Connection, name: str, namespace: str, yes: bool) -> None:
    """Delete a topic and stop serving its messages.

    \b
    Example: ledgermq topic delete orders --yes
    """
    confirmed(f"deleting the topic {name}", yes)
    Admin(connection).delete_topic(name, namespace)
    print(f"deleted: {name}")


@click.group()
def group() -> None:
    """Create, list, describe and delete consumer groups.

    \b
    Examples:
      ledgermq group create billing --max-attempts 5
      ledgermq group describe billing
    """


@group.command("create")
@click.argument("name")
@click.option("--max-attempts", type=click.IntRange(1, 1000), default=17, show_default=True, help="Deliveries before dead-lettering.")
@namespace_option
@cluster_command
@json_option
def group_create(connection: Connection, name: str, max_attempts: int, namespace: str, as_json: bool) -> None:
    """Create a consumer group. A group that was never created exists with the defaults once a consumer uses it.

    \b
    Example: ledgermq group create billing
    """
    answer = Admin(connection).create_group(name, max_attempts, namespace)
    if as_json:
        render.print_json(created=answer.created, **render.group_json(answer.group))
    else:
        print(f"{'created' if answer.created else 'exists already, with these settings'}: {name} (max attempts {max_attempts})")


@group.command("list")
@cluster_command
@json_option
def group_list(connection: Connection, as_json: bool) -> None:
    """All consumer groups.

    \b
    Example: ledgermq group list
    """
    answer = Admin(connection).list_groups()
    if as_json:
        render.print_json(groups=[render.group_json(g) for g in answer.groups])
        return
    rows = [
        [g.group.namespace or "-", g.group.name, g.max_attempts, "yes" if g.configured else "no", render.known(g, "clients")]
        for g in answer.groups
    ]
    render.print_table("consumer groups", ["namespace", "group", "max attempts", "configured", "clients"], rows)


@group.command("describe")
@click.argument("name")
@namespace_option
@cluster_command
@json_option
def group_describe(connection: Connection, name: str, namespace: str, as_json: bool) -> None:
    """One consumer group and how far it is in each queue.

    \b
    Example: ledgermq group describe billing --json
    """
    found = Admin(connection).describe_group(name, namespace).group
    if as_json:
        render.print_json(**render.group_json(found))
        return
    print(f"{name}: max attempts {found.max_attempts}, clients {render.known(found, 'clients') if found.HasField('clients') else '?'}")
    rows = [
        [q.topic.name, q.broker_group, q.group_queue, *(render.known(q, c) for c in ("cursor", "leased", "lag", "max_offset"))]
        for q in found.queues
    ]
    render.print_table("queues", ["topic", "broker group", "queue", "cursor", "leased", "lag", "next offset"], rows)


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
    Admin(connection).delete_group(name, namespace)
    print(f"deleted: {name}")


# -- messages ---------------------------------------------------------------------------------------------------------------------------


def lines_of(source: IO[bytes]) -> Iterator[bytes]:
    """One message a line: its bytes without the newline."""
    for line in source:
        yield line.removesuffix(b"\n")


def opened(path: str, mode: str) -> IO[bytes]:
    """The file, or stdin or stdout for `-`."""
    try:
        return cast(IO[bytes], click.open_file(path, mode))
    except OSError as error:
        raise BadArgument(f"{path} cannot be opened ({error.strerror})", "give another file, or - for the standard stream") from error


def parse_properties(pairs: tuple[str, ...]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadArgument(f"--property {pair!r} has no value", "give KEY=VALUE")
        properties[key] = value
    return properties


@click.command()
@click.option("--topic", "topic_name", required=True)
@click.option("--body", help="One message with this text.")
@click.option("--file", "path", help="One message a line; - for stdin.")
@click.option("--tag")
@click.option("--key", "keys", multiple=True, help="May be repeated.")
@click.option("--property", "properties", multiple=True, metavar="K=V", help="May be repeated.")
@click.option("--message-group", help="For fifo topics: messages of one group keep their order.")
@namespace_option
@cluster_command
@json_option
def send(
    connection: Connection,
    topic_name: str,
    body: str | None,
    path: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    message_group: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Send messages and wait until each is durable on a majority.

    \b
    Examples:
      ledgermq send --topic orders --body hello --tag new --key o-1
      ledgermq send --topic orders --file lines.txt
      seq 1000 | ledgermq send --topic orders --file - --json

    Exit status: 0 all acknowledged, 1 some were not, 3 none was; 4 when the cluster refused them all.
    """
    if (body is None) == (path is None):
        raise BadArgument("a message needs a body", "give either --body or --file")
    common = {"tag": tag, "keys": keys, "properties": parse_properties(properties), "message_group": message_group, "namespace": namespace}
    bodies = iter([body.encode()]) if path is None else lines_of(opened(path, "rb"))  # type: ignore[union-attr]
    with Meter("acknowledged", None) as meter:
        # Several sends in flight may overtake each other when one is repeated; a message group must not.
        sender = Sender(connection, window=1) if message_group else Sender(connection)
        summary = sender.send_all((Outgoing(topic_name, b, **common) for b in bodies), meter.show)  # type: ignore[arg-type]
    fields = {name: getattr(summary, name) for name in ("sent", "acknowledged", "failed", "duration_ms", "durability")}
    if as_json:
        render.print_json(**fields)
    else:
        print(f"sent {summary.sent}, acknowledged {summary.acknowledged}, failed {summary.failed} in {summary.duration_ms} ms")
    if summary.failed:
        assert summary.first_error is not None
        what = f"{summary.failed} of {summary.sent} were not acknowledged, first: {summary.first_error}"
        print(f"error: {' '.join(what.split())}", file=sys.stderr)
        refused = isinstance(summary.first_error, Refused) and not summary.first_error.retryable
        raise SystemExit(1 if summary.acknowledged else EXIT_REFUSED if refused else EXIT_UNREACHABLE)


@click.command()
@click.option("--topic", "topic_name", required=True)
@click.option("--group", "group_name", required=True)
@click.option("--filter", "expression", default="*", show_default=True, help="Tags joined with ||.")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--until-empty", "until_empty_s", type=DURATION, help="Stop when nothing came for this long.")
@click.option("--no-ack", is_flag=True, help="Do not acknowledge: the messages come again.")
@click.option("--to", "path", type=click.Path(dir_okay=False), help="Write to this file instead of stdout.")
@namespace_option
@cluster_command
@json_option
def consume(
    connection: Connection,
    topic_name: str,
    group_name: str,
    expression: str,
    limit: int | None,
    until_empty_s: float | None,
    no_ack: bool,
    path: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Receive and acknowledge messages: a body per line, or a JSON object per line. Follows until Ctrl-C unless bounded.

    \b
    Examples:
      ledgermq consume --topic orders --group billing --until-empty 2s
      ledgermq consume --topic orders --group billing --filter 'new || paid' --json
    """
    receiver = Receiver(connection, topic_name, group_name, expression=expression, namespace=namespace)
    # Ctrl-C is how following a topic ends: nothing went wrong.
    with suppress(KeyboardInterrupt):
        receiver.route()
        with opened(path or "-", "wb") as out, Meter("consumed", limit) as meter:
            consume_loop(receiver, out, limit, until_empty_s, no_ack, as_json, meter)


def consume_loop(
    receiver: Receiver, out: IO[bytes], limit: int | None, until_empty_s: float | None, no_ack: bool, as_json: bool, meter: Meter
) -> None:
    done = 0
    while limit is None or done < limit:
        batch = BATCH if limit is None else min(BATCH, limit - done)
        messages = receiver.receive(20.0 if until_empty_s is None else until_empty_s, batch)
        if not messages and until_empty_s is not None:
            return
        for message in messages:
            if as_json:
                out.write(render.json_line(**render.received_json(message)).encode() + b"\n")
            else:
                out.write(message.body + b"\n")
        out.flush()
        if messages and not no_ack:
            receiver.acknowledge(messages)
        done += len(messages)
        meter.show(done)


@click.command()
@click.option("--topic", "topic_name", required=True)
@click.option("--queue", type=click.IntRange(0), help="One queue; all by default.")
@click.option("--from", "start", default="earliest", show_default=True, help="earliest, latest, an offset, or a time as 1700000000000ms.")
@click.option("--max", "limit", type=click.IntRange(1), default=10, show_default=True)
@namespace_option
@cluster_command
@json_option
def peek(connection: Connection, topic_name: str, queue: int | None, start: str, limit: int, namespace: str, as_json: bool) -> None:
    """Look at committed messages without a consumer group and without leasing them.

    \b
    Examples:
      ledgermq peek --topic orders --max 5
      ledgermq peek --topic orders --queue 3 --from 1200 --json
    """
    request = admin_pb2.PeekRequest(topic=name_of(topic_name, namespace), queue=queue, max=limit)
    match = re.fullmatch(r"(\d+)(ms)?", start)
    if start in ("earliest", "latest"):
        setattr(request, start, True)
    elif match is None:
        raise BadArgument(f"--from {start!r} is no place to begin", "give earliest, latest, an offset, or a time as 1700000000000ms")
    else:
        setattr(request, "store_ms" if match[2] else "offset", int(match[1]))
    for message in peek_pages(Admin(connection), request, limit):
        if as_json:
            render.print_json(**render.peeked_json(message))
        else:
            print(f"{message.queue}:{message.offset} {render.known(message, 'tag') or '-'} {message.body.decode(errors='replace')}")


def peek_pages(admin: Admin, request: admin_pb2.PeekRequest, limit: int) -> Iterator[admin_pb2.PeekedMessage]:
    """Up to `limit` messages. What one answer can hold is asked over all queues at once; more, and a single queue, page by page."""
    if not request.HasField("queue") and limit > PEEK_PAGE and request.WhichOneof("from") != "latest":
        left = limit
        for queue in admin.describe_topic(request.topic.name, request.topic.namespace).topic.queue_list:
            one = admin_pb2.PeekRequest()
            one.CopyFrom(request)
            one.queue = queue.queue
            for message in peek_pages(admin, one, left) if left else ():
                left -= 1
                yield message
        return
    left = limit
    while left > 0:
        request.max = min(left, PEEK_PAGE)
        page = admin.peek(request).messages
        yield from page
        left -= len(page)
        if not page or not request.HasField("queue") or request.WhichOneof("from") == "latest":
            return
        request.offset = page[-1].offset + 1
