"""The `consume` command: with leases (`receiving.py`), or into a data file by native streams
(`native/sinks/consuming.py`).

Only argument parsing, progress and the choice between the two live here. stdout carries only the
result.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.admin_requests import ask
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    DURATION,
    Meter,
    cluster_command,
    json_option,
    namespace_option,
)
from ledgermq.client.cli.message_commands import opened
from ledgermq.client.errors import BadArgument, ClusterError, Refused
from ledgermq.client.messages import data_files
from ledgermq.client.messages.receiving import BATCH, SQL_PREFIX, Receiver
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code


@click.command()
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option("--group", "group_name", required=True, help="Name of the consumer group.")
@click.option(
    "--filter",
    "expression",
    default="*",
    show_default=True,
    help="Tags joined with ||, or sql: followed by a SQL92 condition.",
)
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after this many messages.")
@click.option(
    "--until-empty",
    "until_empty_s",
    type=DURATION,
    help="Stop when no message arrived for this long.",
)
@click.option(
    "--no-ack", is_flag=True, help="Do not acknowledge: the messages are delivered again."
)
@click.option(
    "--to",
    "path",
    type=click.Path(dir_okay=False),
    help="Output file: .jsonl, .csv or .parquet; any other name gets one body per line.",
)
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
    """Receive and acknowledge messages; print one body or JSON object per line. Runs until Ctrl-C
    unless bounded.

    \b
    Examples:
      ledgermq consume --topic orders --group billing --until-empty 2s
      ledgermq consume --topic orders --group billing --filter 'new || paid' --json
      ledgermq consume --topic orders --group big \\
        --filter "sql:amount > 1000 AND region IN ('eu', 'us')"
      ledgermq consume --topic orders --group lake --until-empty 2s --to orders.parquet

    Output is appended to an existing file, except .parquet, which must be a new file and appears
    when complete. Messages are acknowledged after they are durable in the file, or after the reader
    of a pipe has read them: `| head -1` acknowledges one message. A group without leases in the
    topic reads .jsonl, .csv and .parquet in batches, and commits offsets.
    """
    kind = data_files.kind_of(path)
    if (
        kind
        and path is not None
        and not expression.startswith(SQL_PREFIX)
        and _may_stream(connection, topic_name, group_name, namespace)
    ):
        file = data_files.Parquet(Path(path)) if kind == ".parquet" else data_files.lines_to(path)
        tags = None if expression == "*" else {tag.strip() for tag in expression.split("||")}
        options: dict[str, Any] = {
            "group": group_name,
            "namespace": namespace,
            "tags": tags,
            "timeout_s": connection.timeout_s,
        }
        with suppress(KeyboardInterrupt), Meter("consumed", limit) as meter:
            asyncio.run(
                _stream(
                    topic=topic_name,
                    options={**options, **connection.options},
                    file=file,
                    limit=limit,
                    until_empty_s=until_empty_s,
                    no_ack=no_ack,
                    meter=meter,
                )
            )
        return
    if kind == ".parquet":
        what = (
            f"group {group_name} consumes topic {topic_name} by leases, which would expire before a"
            " Parquet file is complete"
        )
        other = (
            "with another group and without --filter sql:, unless the topic is of kind priority or"
            " lite"
        )
        raise BadArgument(what, f"consume to a .jsonl or .csv file, or {other}")
    # Ctrl-C is the normal end of following a topic.
    with (
        suppress(KeyboardInterrupt),
        Receiver(
            connection, topic_name, group_name, expression=expression, namespace=namespace
        ) as receiver,
    ):
        receiver.route()
        to_stdout = path in (None, "-")
        lines = (
            data_files.Lines(opened("-", "wb"), as_json=as_json)
            if to_stdout
            else data_files.lines_to(str(path), as_json)
        )
        try:
            with Meter("consumed", limit, shown=not (to_stdout and sys.stdout.isatty())) as meter:
                consume_loop(receiver, lines, limit, until_empty_s, no_ack, meter=meter)
        except ClusterError:
            if not to_stdout:
                lines.abandon()
            raise


def consume_loop(
    receiver: Receiver,
    lines: data_files.Lines,
    limit: int | None,
    until_empty_s: float | None,
    no_ack: bool,
    meter: Meter,
) -> None:
    """Consume with leases, one batch after the other."""
    done = 0
    while limit is None or done < limit:
        batch = BATCH if limit is None else min(BATCH, limit - done)
        messages = receiver.receive(20.0 if until_empty_s is None else until_empty_s, batch)
        if not messages and until_empty_s is not None:
            return
        handed = 0
        try:
            for some in [[message] for message in messages] if lines.piped else [messages]:
                lines.write([message.body for message in some], map(render.received_json, some))
                lines.flush()
                handed += len(some)
        finally:
            if not no_ack:
                receiver.settle(messages, handed)
        done += len(messages)
        meter.show(done)


def _may_stream(connection: Connection, topic: str, group: str, namespace: str) -> bool:
    """Whether the group may be read by streams: its progress in the topic is committed offsets, or
    it has none."""
    from ledgermq.client.native.log_connection import LogConnection
    from ledgermq.client.native.sinks.consuming import Progress, by_offsets, progress_of

    progress: list[Progress] | None
    try:
        request = pb.DescribeGroupRequest(group=pb.Name(namespace=namespace, name=group))
        described = ask(connection, request, pb.DescribeGroupResponse)
        progress = progress_of(described, topic, namespace)
    except Refused as error:
        # An unknown group has no progress. If the caller may not read the group, only its committed
        # offsets tell.
        progress = [] if error.code == Code.CONSUMER_GROUP_NOT_FOUND else None

    async def judged() -> bool:
        async with LogConnection(timeout_s=connection.timeout_s, **connection.options) as log:
            return await by_offsets(log, topic, group, namespace, progress)

    return asyncio.run(judged())


async def _stream(
    topic: str,
    options: dict[str, Any],
    file: data_files.Lines | data_files.Parquet,
    limit: int | None,
    until_empty_s: float | None,
    no_ack: bool,
    meter: Meter,
) -> None:
    from ledgermq.client.native.consumers.consumer import AsyncConsumer
    from ledgermq.client.native.sinks.consuming import Filling

    def expect(total: int | None) -> None:
        meter.expect(total, None)

    filling = Filling(file, limit, not no_ack, meter.show, expect)
    consumer = AsyncConsumer(
        topic=topic, on_revoked=lambda queues: filling.revoked(consumer, queues), **options
    )
    try:
        async with consumer:
            await filling.run(consumer, until_empty_s)
    except BaseException:
        # Also when reading could not start; a completed file stays.
        file.abandon()
        raise
