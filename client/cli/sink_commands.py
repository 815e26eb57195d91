"""`ledgermq sink`: the messages of a topic as files and tables for other systems.

Only argument parsing, progress and printing live here; `native/sinks/sinking.py` reads, and
`native/sinks/parquet_sink.py` and `native/sinks/iceberg_sink.py` write.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ledgermq.client import render
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli.commands import (
    DURATION,
    SIZE,
    Meter,
    cluster_command,
    json_option,
    namespace_option,
)
from ledgermq.client.errors import BadArgument
from ledgermq.proto.entries.properties import UNDECODED

if TYPE_CHECKING:
    from ledgermq.client.native.sinks.ports import Sink

EXPANSION_HELP = (
    "Write a body as it is stored if decompression makes it more than this many times as long"
    " (none: no limit below 4 MiB)."
)

F = TypeVar("F", bound=Callable[..., Any])


def sink_options(partition: str, roll_size: str, roll_every: str) -> Callable[[F], F]:
    """The options that every kind of sink has, with these help texts."""

    def add(command: F) -> F:
        kinds = click.Choice(["day", "hour", "none"])
        options = [
            click.option(
                "--partition", type=kinds, default="day", show_default=True, help=partition
            ),
            click.option(
                "--roll-size", type=SIZE, default="128MiB", show_default=True, help=roll_size
            ),
            click.option(
                "--roll-every",
                "roll_s",
                type=DURATION,
                default="1m",
                show_default=True,
                help=roll_every,
            ),
            click.option("--expansion-max", type=click.IntRange(1), help=EXPANSION_HELP),
            click.option(
                "--until-empty",
                "until_empty_s",
                type=DURATION,
                help="Stop when no message arrived for this long.",
            ),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group("sink")
def sink() -> None:
    """Write the messages of a topic into files or a table, each message once, also after crashes.

    \b
    Examples:
      ledgermq sink parquet --topic orders --to lake/orders
      ledgermq sink iceberg --topic orders --table lake.sales.orders
    """


@sink.command("parquet")
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option(
    "--to",
    "directory",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the files.",
)
@sink_options(
    "Directories by the time in UTC at which messages were stored.",
    "Complete a file of this size before compression.",
    "Complete a file after this time.",
)
@namespace_option
@cluster_command
@json_option
def parquet(
    connection: Connection,
    topic_name: str,
    directory: Path,
    partition: str,
    roll_size: int,
    roll_s: float,
    until_empty_s: float | None,
    expansion_max: int | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Write the messages of a topic into Parquet files. Runs until Ctrl-C unless bounded.

    \b
    Examples:
      ledgermq sink parquet --topic orders --to lake/orders
      ledgermq sink parquet --topic orders --to lake/orders --partition hour --roll-every 5m
      ledgermq sink parquet --topic orders --to lake/orders --until-empty 5s --json

    Each file holds consecutive messages of one queue, with their offsets in its name and metadata.
    It appears when it is complete and durable; the same command continues where the files end.
    Complete files may be moved away. No consumer group is used, so retention does not wait for this
    command. Needs pyarrow.

    Exit status: 0 ended by --until-empty or Ctrl-C, all messages read so far are in files; 3 no
    answer for --timeout; 64 the directory cannot be used for this topic, or has messages that the
    cluster does not have, because it was restored from an older state.
    """
    _check_positive(roll_size, roll_s)
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise BadArgument(
            "Parquet files need pyarrow", "install it: pip install 'ledgermq[audit]'"
        ) from None
    from ledgermq.client.native.sinks.parquet_sink import ParquetSink

    def opened(cluster: str, topic: str) -> Sink:
        return ParquetSink(
            directory, cluster, topic, partition, roll_bytes=roll_size, roll_s=roll_s
        )

    _run(
        connection,
        topic=topic_name,
        namespace=namespace,
        opened=opened,
        until_empty_s=until_empty_s,
        expansion_max=expansion_max,
        parts="files",
        as_json=as_json,
    )


@sink.command("iceberg")
@click.option("--topic", "topic_name", required=True, help="Name of the topic.")
@click.option(
    "--table",
    "table_name",
    required=True,
    metavar="CATALOG.NAMESPACE.TABLE",
    help="The table; created if it does not exist.",
)
@sink_options(
    "Partitioning of a new table, by the time in UTC at which messages were stored.",
    "Commit messages of this size.",
    "Commit messages after this time.",
)
@namespace_option
@cluster_command
@json_option
def iceberg(
    connection: Connection,
    topic_name: str,
    table_name: str,
    partition: str,
    roll_size: int,
    roll_s: float,
    until_empty_s: float | None,
    expansion_max: int | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Append the messages of a topic to an Iceberg table. Runs until Ctrl-C unless bounded.

    \b
    Examples:
      ledgermq sink iceberg --topic orders --table lake.sales.orders
      ledgermq sink iceberg --topic orders --table lake.sales.orders --partition hour \\
        --roll-every 5m
      ledgermq sink iceberg --topic orders --table lake.sales.orders --until-empty 5s --json

    Catalogs are those of pyiceberg: .pyiceberg.yaml in the home or working directory, or
    PYICEBERG_CATALOG__LAKE__URI and others. Each commit adds messages together with the positions
    behind them, so the same command continues where the table ends, on any machine. Other programs
    may compact the table, expire its snapshots, roll it back and add optional columns. No consumer
    group is used, so retention does not wait for this command. Needs pyiceberg.

    Exit status: 0 ended by --until-empty or Ctrl-C, all messages read so far are in the table; 3 no
    answer for --timeout; 4 the catalog or the storage of the table failed; 64 the table cannot be
    used for this topic, another sink writes it, or it has messages that the cluster does not have,
    because it was restored from an older state.
    """
    from ledgermq.client.native.sinks.iceberg_sink import ROLL_BYTES_MAX, IcebergSink

    _check_positive(roll_size, roll_s)
    if roll_size > ROLL_BYTES_MAX:
        raise BadArgument(
            "--roll-size of a table is at most 1GiB, because a commit is in memory until it is"
            " made",
            "give a smaller one",
        )
    try:
        import pyarrow  # noqa: F401
        import pyiceberg  # noqa: F401
    except ImportError:
        raise BadArgument(
            "Iceberg tables need pyiceberg", "install it: pip install 'ledgermq[iceberg]'"
        ) from None
    from ledgermq.client.native.sinks.iceberg_table import IcebergTable

    def opened(cluster: str, topic: str) -> Sink:
        return IcebergSink(IcebergTable(table_name, partition), cluster, topic, roll_size, roll_s)

    _run(
        connection,
        topic=topic_name,
        namespace=namespace,
        opened=opened,
        until_empty_s=until_empty_s,
        expansion_max=expansion_max,
        parts="commits",
        as_json=as_json,
    )


def _check_positive(roll_size: int, roll_s: float) -> None:
    if roll_size <= 0 or roll_s <= 0:
        raise BadArgument(
            "--roll-size and --roll-every have to be positive", "omit them, or give larger values"
        )


def _run(
    connection: Connection,
    topic: str,
    namespace: str,
    opened: Callable[[str, str], Sink],
    until_empty_s: float | None,
    expansion_max: int | None,
    parts: str,
    as_json: bool,
) -> None:
    """Sink until the end, and print the summary. `parts`: what `Sink.done` counts."""
    from ledgermq.client.native.sinks.sinking import Sinking

    with Meter("written", None) as meter:

        def show(rows: int, lag: int | None) -> None:
            meter.expect(None if lag is None else rows + lag, None)
            meter.show(rows)

        sinking = Sinking(connection, topic, namespace, show, expansion_max)
        # Ctrl-C is the normal end of following a topic.
        with suppress(KeyboardInterrupt):
            asyncio.run(sinking.run(opened, until_empty_s))
    if sinking.skipped:
        print(
            f"warning: retention removed {sinking.skipped} messages before they were read",
            file=sys.stderr,
        )
    if sinking.undecoded:
        what = (
            f"{sinking.undecoded} messages have a body that is not what it says or becomes too"
            " large"
        )
        print(
            f"warning: {what}; it was written as it is stored, and the property {UNDECODED} names"
            " its compression",
            file=sys.stderr,
        )
    if sinking.unproven:
        what = (
            f"retention removed the last message written of {sinking.unproven} queues, so that it"
            " could not be compared with the log"
        )
        print(f"warning: {what}", file=sys.stderr)
    if as_json:
        render.print_json(messages=sinking.rows, **{parts: sinking.done}, skipped=sinking.skipped)
    else:
        print(f"written: {sinking.rows} messages in {sinking.done} {parts}")
