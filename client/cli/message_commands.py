"""The commands `send`, `peek` and `query` (`consume` has its own module).

Only argument parsing, progress and exit statuses live here; the client package does the work.
stdout carries only the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, cast

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import PAGE, ask, pages
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    DURATION,
    Meter,
    cluster_command,
    exact_option,
    json_option,
    namespace_option,
    told_if_interrupted,
)
from ledgermq.client.cli.explain_commands import show_trace
from ledgermq.client.errors import BadArgument, Incomplete, Refused, WrongKind
from ledgermq.client.messages.receiving import MESSAGE_NOT_FOUND
from ledgermq.client.messages.send_files import (
    BadRow,
    FileSender,
    FileSummary,
    Row,
    kind_of,
    read_rows,
    with_defaults,
)
from ledgermq.client.messages.sending import WINDOW, Outgoing, Sender, SendSummary
from ledgermq.client.moments import moment_ms, place, time_range_ms
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import units
from ledgermq.proto.delays import DELAY_LEVELS_MS, level_ms
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import ExitCode

BAD_ROWS_SHOWN = 10


def lines_of(source: IO[bytes]) -> Iterator[bytes]:
    """One message per line, without the newline."""
    for line in source:
        yield line.removesuffix(b"\n")


def opened(path: str, mode: str) -> IO[bytes]:
    """The file, or stdin or stdout for `-`."""
    try:
        return cast(IO[bytes], click.open_file(path, mode))
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be opened ({error.strerror})",
            "give another file, or - for the standard stream",
        ) from error


def rows_of(body: str | None, path: str | None, kind: str | None) -> Iterator[Row | BadRow]:
    """The rows to send: one text, or the rows or lines of a file."""
    if path is None:
        assert body is not None
        yield Row(1, body.encode())
        return
    source = opened(path, "rb")
    if kind is not None:
        yield from read_rows(kind, source)
        return
    for number, line in enumerate(lines_of(source), 1):
        yield Row(number, line)


def good_rows(rows: Iterator[Row | BadRow], bad_rows: list[BadRow]) -> Iterator[Row]:
    """The rows that can be sent; the others are added to `bad_rows`."""
    for row in rows:
        if isinstance(row, Row):
            yield row
        else:
            bad_rows.append(row)


def send_natively(
    connection: Connection,
    topic: str,
    namespace: str,
    receipts: str | None,
    rows: Iterator[Row | BadRow],
    meter: Meter,
) -> FileSummary:
    """Send through native streams. Raises WrongKind before it reads the first row, if they do not
    carry the topic's kind."""
    from ledgermq.client.native.producers.sync_producer import Producer

    options = {
        "namespace": namespace,
        "timeout_s": connection.timeout_s,
        "receipt_log": receipts,
        **connection.options,
    }
    with Producer(topic=topic, **options) as producer:
        return FileSender(producer, meter.show, BAD_ROWS_SHOWN).send_all(rows)


def parse_properties(pairs: tuple[str, ...]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadArgument(f"--property {pair!r} is not KEY=VALUE", "give KEY=VALUE")
        properties[key] = value
    return properties


def delivery_times(
    delay_s: float | None, level: int | None, at: str | None
) -> Callable[[], int | None]:
    """A function that returns the delivery time of a message sent now, in milliseconds since 1970,
    or None. Raises BadArgument."""
    if sum(given is not None for given in (delay_s, level, at)) > 1:
        raise BadArgument(
            "a message has only one delivery time",
            "give one of --delay, --delay-level and --deliver-at",
        )
    if at is not None:
        at_ms = moment_ms(at, time.time_ns() // 1_000_000)
        return lambda: at_ms
    if level is not None:
        delay_s = level_ms(level) / 1000
    if delay_s is None:
        return lambda: None
    delay_ms = round(delay_s * 1000)
    return lambda: time.time_ns() // 1_000_000 + delay_ms


@click.command()
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option("--body", help="Send one message with this text.")
@click.option(
    "--file",
    "path",
    help=(
        "Send the rows of a .jsonl, .csv or .parquet file, otherwise one message per line; - is"
        " stdin."
    ),
)
@click.option("--tag", help="The tag by which consumers may filter.")
@click.option("--key", "keys", multiple=True, help="Message key for lookups; repeatable.")
@click.option(
    "--property", "properties", multiple=True, metavar="K=V", help="User property; repeatable."
)
@click.option(
    "--message-group", help="For fifo topics: messages of one group are delivered in order."
)
@click.option(
    "--priority",
    type=click.IntRange(0),
    help="For priority topics: messages of higher priority are delivered first.",
)
@click.option(
    "--delay",
    "delay_s",
    type=DURATION,
    help="For delay topics: deliver the message this long after it was sent.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(1, len(DELAY_LEVELS_MS)),
    help="RocketMQ delay level: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h.",
)
@click.option(
    "--deliver-at",
    metavar="TIME",
    help="For delay topics: deliver at this time: ISO 8601, or milliseconds since 1970.",
)
@click.option(
    "--one-way", is_flag=True, help="Send each message once without retries: delivery at most once."
)
@click.option(
    "--receipts",
    type=click.Path(dir_okay=False),
    help="Write the receipts to this Parquet file, which must not exist.",
)
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
    priority: int | None,
    delay_s: float | None,
    delay_level: int | None,
    deliver_at: str | None,
    one_way: bool,
    receipts: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Send messages and wait until each is acknowledged: durable on a majority, unless the topic or
    broker group requires less.

    \b
    Examples:
      ledgermq send --topic orders --body hello --tag new --key o-1
      ledgermq send --topic orders --file lines.txt
      seq 1000 | ledgermq send --topic orders --file - --json
      ledgermq send --topic reminders --body 'call back' --delay 10m
      ledgermq send --topic orders --file orders.parquet --receipts receipts.parquet

    A .jsonl file has one JSON object per line, as printed by `consume --json`: body or body_base64,
    tag, keys, properties, message_group. A .csv header and the columns of a .parquet file use the
    same names; other columns become properties. Invalid rows are reported on stderr with their
    line, and the others are sent. For normal and mixed topics these files use native streams, which
    store each row once (docs/client.md). Options apply to rows that do not set the value
    themselves.

    With --one-way a message is not sent again if its answer is lost: it is stored once or not at
    all (docs/delivery.md).

    With --body, the id of the message, its topic, its queue and its offset in the queue are
    printed. `query --id` and `why-not-delivered` ask for the id, `peek` for queue and offset.

    Each message is retried for --timeout. If no message was acknowledged for that long, the rest of
    the input is not sent.

    Exit status: 0 all acknowledged, 1 some not, 3 none; 4 the cluster refused all. With --one-way
    always 0.
    """
    if (body is None) == (path is None):
        raise BadArgument("a message needs a body", "give either --body or --file")
    kind = None if path is None else kind_of(path)
    default = Row(
        line=0,
        body=b"",
        tag=tag,
        keys=keys,
        properties=parse_properties(properties),
        message_group=message_group,
    )
    deliver_ms = delivery_times(delay_s, delay_level, deliver_at)
    special = (
        message_group is not None or priority is not None or one_way or deliver_ms() is not None
    )
    if receipts is not None and special:
        raise BadArgument(
            "receipts exist for ordinary messages only",
            "omit --receipts, or the options that make the messages special",
        )
    rows = (with_defaults(row, default) for row in rows_of(body, path, kind))
    bad_rows: list[BadRow] = []
    with (
        Meter("acknowledged", None) as meter,
        told_if_interrupted(
            lambda: f"{meter.done} messages were acknowledged, and more may be stored",
            "the same command would send all of them again",
        ),
    ):
        summary: SendSummary | None = None
        window = 1 if message_group else WINDOW
        if (kind is not None or receipts is not None) and not special:
            try:
                summary = send_natively(
                    connection,
                    topic=topic_name,
                    namespace=namespace,
                    receipts=receipts,
                    rows=rows,
                    meter=meter,
                )
                bad_rows = summary.bad_rows
            except WrongKind as wrong:
                if receipts is not None:
                    raise
                window = 1 if wrong.kind == "fifo" else WINDOW
        if summary is None:
            # When several sends are in flight, a retried one may be overtaken; a message group must
            # keep its order.
            sender = Sender(connection, window=window, one_way=one_way)
            outgoing = (
                Outgoing(
                    topic_name,
                    *row[1:],
                    namespace=namespace,
                    deliver_ms=deliver_ms(),
                    priority=priority,
                )
                for row in good_rows(rows, bad_rows)
            )
            summary = sender.send_all(outgoing, meter.show)
            if bad_rows:
                summary.add_failed(
                    len(bad_rows),
                    BadArgument(
                        f"line {bad_rows[0].line}: {bad_rows[0].reason}", "correct the row"
                    ),
                )
    for bad in bad_rows[:BAD_ROWS_SHOWN]:
        print(f"line {bad.line}: {bad.reason}", file=sys.stderr)
    fields = {
        name: getattr(summary, name)
        for name in ("sent", "acknowledged", "failed", "duration_ms", "durability")
    }
    if body is not None:
        fields |= {
            "message_id": summary.message_id,
            "topic": topic_name,
            "queue": summary.queue,
            "offset": summary.offset,
        }
    if as_json:
        render.print_json(**fields)
    else:
        if body is not None and summary.message_id is not None and not summary.failed:
            place = (("queue", summary.queue), ("offset", summary.offset))
            known = "".join(f", {name} {number}" for name, number in place if number is not None)
            print(
                f"message {summary.message_id}: topic {stored_name(namespace, topic_name)}{known}"
            )
        took = units.duration_words(summary.duration_ms)
        print(
            f"sent {summary.sent}, acknowledged {summary.acknowledged}, failed {summary.failed} in"
            f" {took}"
        )
    if summary.failed and not one_way:
        assert summary.first_error is not None
        cut = summary.given_up and path is not None
        end = (
            f"; nothing was acknowledged for {connection.timeout_s:g} s, the rest was not sent"
            if cut
            else ""
        )
        what = (
            f"{summary.failed} of {summary.sent} messages were not acknowledged{end}, first:"
            f" {summary.first_error}"
        )
        print(f"error: {' '.join(what.split())}", file=sys.stderr)
        refused = (
            isinstance(summary.first_error, Refused | BadArgument)
            and not summary.first_error.retryable
        )
        raise SystemExit(
            1 if summary.acknowledged else ExitCode.REFUSED if refused else ExitCode.UNREACHABLE
        )


@click.command()
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue. [default: all]")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="earliest, latest, an offset, or a time.",
)
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Show at most N messages.",
)
@namespace_option
@cluster_command
@json_option
def peek(
    connection: Connection,
    topic_name: str,
    queue: int | None,
    start: str,
    limit: int,
    namespace: str,
    as_json: bool,
) -> None:
    """Look at committed messages without a consumer group and without leasing them.

    A time is ISO 8601 (UTC unless it has another offset), milliseconds since 1970 as
    1700000000000ms, now, or a duration before now as -10m.

    \b
    Examples:
      ledgermq peek --topic orders --max 5
      ledgermq peek --topic orders --from -1h
      ledgermq peek --topic orders --queue 3 --from 1200 --json
    """
    request = pb.PeekRequest(
        topic=pb.Name(namespace=namespace, name=topic_name), queue=queue, max=limit
    )
    setattr(request, *place(start, time.time_ns() // 1_000_000))
    for message in peek_pages(connection, request, limit):
        if as_json:
            render.print_json(**render.peeked_json(message))
        else:
            render.message_text(message)


def peek_pages(
    connection: Connection, request: pb.PeekRequest, limit: int
) -> Iterator[pb.PeekedMessage]:
    """Up to `limit` messages. A number that fits one answer is read from all queues at once; more,
    or a single queue, page by page."""
    if not request.HasField("queue") and limit > PAGE and request.WhichOneof("from") != "latest":
        left, description = limit, pb.DescribeTopicRequest(topic=request.topic)
        topic = ask(connection, description, pb.DescribeTopicResponse).topic
        for queue in topic.queue_list:
            one = pb.PeekRequest()
            one.CopyFrom(request)
            one.queue = queue.queue
            for message in peek_pages(connection, one, left) if left else ():
                left -= 1
                yield message
        return
    left = limit
    while left > 0:
        request.max = min(left, PAGE)
        page = ask(connection, request, pb.PeekResponse).messages
        yield from page
        left -= len(page)
        if not page or not request.HasField("queue") or request.WhichOneof("from") == "latest":
            return
        request.offset = page[-1].offset + 1


@click.command()
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option("--key", help="Find messages that were sent with this key.")
@click.option("--id", "message_id", help="Find the message with this id.")
@click.option(
    "--time-range",
    "time_range",
    metavar="A..B",
    help="Find messages stored at or after A and before B.",
)
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Show at most N messages.",
)
@click.option(
    "--trace",
    is_flag=True,
    help="With --id: show the message's events, as far as the log still holds them.",
)
@click.option(
    "--detail/--no-detail",
    default=None,
    help="Also show replicas and consumer groups. [default: on with --id]",
)
@namespace_option
@cluster_command
@exact_option
@json_option
def query(
    connection: Connection,
    topic_name: str,
    key: str | None,
    message_id: str | None,
    time_range: str | None,
    limit: int,
    trace: bool,
    detail: bool | None,
    namespace: str,
    exact: bool,
    as_json: bool,
) -> None:
    """Find committed messages by key, by id or by the time they were stored.

    Messages found by key or id are listed newest first, by time oldest first. Each end of
    --time-range is a time in ISO 8601 (UTC unless it has another offset), milliseconds since 1970,
    now, or a duration before now as -10m; it may be omitted. --time-range also narrows --key and
    --id.

    \b
    Examples:
      ledgermq query --topic orders --key o-1
      ledgermq query --topic orders --id 01D6F5A2C8E0420000000001 --json
      ledgermq query --topic orders --id 01D6F5A2C8E0420000000001 --trace
      ledgermq query --topic orders --time-range -10m.. --max 100
      ledgermq query --topic orders --time-range 2026-11-21T10:00Z..2026-11-21T10:05Z --detail

    Exit status: 0 done, also when no message matches the key or the time; 4 no message has the id;
    2 INCOMPLETE: the newest messages are not indexed yet.
    """
    if key is not None and message_id is not None:
        raise BadArgument("--key and --id exclude each other", "give one of them")
    if key is None and message_id is None and time_range is None:
        raise BadArgument("nothing to search for", "give --key, --id or --time-range")
    if trace:
        if message_id is None:
            raise BadArgument("--trace needs a message", "give its --id")
        show_trace(connection, stored_name(namespace, topic_name), message_id, as_json)
        return
    begin_ms, end_ms = time_range_ms(time_range, time.time_ns() // 1_000_000)
    request = pb.QueryRequest(
        topic=pb.Name(namespace=namespace, name=topic_name),
        key=key,
        message_id=message_id,
        begin_ms=begin_ms,
        end_ms=end_ms,
        max=min(limit, PAGE),
    )
    wants_detail = message_id is not None if detail is None else detail
    count = 0
    lagging: dict[str, pb.IndexProgress] = {}
    for page in pages(connection, request, pb.QueryResponse):
        lagging |= {progress.broker_group: progress for progress in page.lagging}
        count += len(page.messages)
        for message in page.messages:
            show_found(connection, message, wants_detail, exact, as_json)
        if count >= limit:
            break
        request.max = min(limit - count, PAGE)
    if lagging:
        far = ", ".join(
            f"{p.broker_group} to entry {p.indexed_to} of {p.applied_to}" for p in lagging.values()
        )
        raise Incomplete(
            f"INCOMPLETE: the newest messages are not in the key index yet ({far})",
            "retry in a moment",
        )
    if message_id is not None and not count:
        raise Refused(
            MESSAGE_NOT_FOUND,
            f"topic {topic_name} has no message with the id {message_id}",
            "check the id and the topic",
        )


def show_found(
    connection: Connection,
    message: pb.PeekedMessage,
    wants_detail: bool,
    exact: bool,
    as_json: bool,
) -> None:
    """Print one message that a query found."""
    if wants_detail and not message.HasField("delayed_until_ms"):
        detail = detail_of(connection, message)
        if as_json:
            render.print_json(**render.detail_json(message, detail))
        else:
            render.detail_text(message, detail, exact)
    elif as_json:
        render.print_json(**render.peeked_json(message))
    else:
        render.message_text(message)


def detail_of(connection: Connection, message: pb.PeekedMessage) -> pb.MessageDetailResponse:
    """Where a message found by a query is stored, and what each consumer group has done with it."""
    request = pb.MessageDetailRequest(
        topic=message.topic,
        broker_group=message.broker_group,
        group_queue=message.group_queue,
        offset=message.offset,
    )
    return ask(connection, request, pb.MessageDetailResponse)
