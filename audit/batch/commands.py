"""`ledgermq jobs`: batch jobs over topics on Spark. Only arguments, connections and printing live
here.

Every command calls the cluster before it starts Spark, so that a wrong name or address costs no
start of Java.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ledgermq.audit.batch import replay as replays
from ledgermq.audit.batch.results import (
    born_within,
    expression,
    narrow_table,
    opened_session,
    range_options,
    show,
    table,
)
from ledgermq.audit.batch.targets import (
    check_exists,
    name_of,
    other_cluster,
    target_in,
    this_cluster,
    topic_pairs,
)
from ledgermq.audit.outputs import try_file
from ledgermq.audit.spark.cluster.cluster_options import Target
from ledgermq.client import render
from ledgermq.client.api.connection import Connection
from ledgermq.client.cli import contexts
from ledgermq.client.cli.commands import cluster_command, json_option, namespace_option
from ledgermq.client.errors import BadArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOUND = 1
"""The exit status of a job that found what it looks for."""
KEY_HELP = (
    "The business key: an SQL expression over the columns of docs/spark.md. [default: each message"
    " key]"
)
RANGE_HELP = "Only messages stored at or after A and before B, as for `query`."

topic_option = click.option("--topic", "topic_name", required=True, help="Name of the topic.")


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every job whose result is rows."""
    limit = click.option(
        "--limit",
        type=click.IntRange(0),
        default=20,
        show_default=True,
        help="Show at most this many rows.",
    )
    return limit(master_option(command))


master_option = click.option(
    "--master", default="local[*]", show_default=True, help="The Spark master."
)


@click.group("jobs")
def jobs() -> None:
    """Count, check, compare and replay the messages of topics, with Spark.

    \b
    Examples:
      ledgermq jobs count --topic orders --key "properties['customer']"
      ledgermq jobs duplicates --topic orders \\
        --key "get_json_object(CAST(body AS string), '$.order')"
      ledgermq jobs gaps --topic orders --number "properties['n']" --series tag
      ledgermq jobs compare --topic orders --with-context standby
      ledgermq jobs replay --topic orders --to-topic orders-again --plan replay.json
    """


@jobs.command("count")
@topic_option
@click.option("--key", "key_text", metavar="SQL", help=KEY_HELP)
@click.option(
    "--time",
    "column",
    type=click.Choice(["store", "born"]),
    default="store",
    show_default=True,
    help="The time of a message.",
)
@click.option("--time-range", "time_range", metavar="A..B", help=RANGE_HELP)
@spark_options
@namespace_option
@cluster_command
@json_option
def count(
    connection: Connection,
    topic_name: str,
    namespace: str,
    key_text: str | None,
    column: str,
    time_range: str | None,
    limit: int,
    master: str,
    as_json: bool,
) -> None:
    """Count messages per key and hour, the largest counts first. Hours are those of UTC.

    \b
    Examples:
      ledgermq jobs count --topic orders
      ledgermq jobs count --topic orders --key tag --time-range -24h.. --limit 100
      ledgermq jobs count --topic orders --key "properties['customer']" --time born --json

    Without --key, a message counts for each of its message keys.
    """
    from_topic = _opened(connection, topic_name, namespace)
    with _session(master) as session:
        from ledgermq.audit.batch.counts import messages_per_hour

        time_column = f"{column}_time"
        frame = narrow_table(
            session, from_topic, range_options(time_range), ["keys", time_column], key_text
        )
        hourly = messages_per_hour(frame, expression("--key", frame, key_text), time_column)
        show(
            "count",
            hourly,
            ["-messages", "hour", "key"],
            limit,
            as_json,
            topic=from_topic.stored_topic,
        )


@jobs.command("duplicates")
@topic_option
@click.option("--key", "key_text", metavar="SQL", help=KEY_HELP)
@click.option("--time-range", "time_range", metavar="A..B", help=RANGE_HELP)
@spark_options
@namespace_option
@cluster_command
@json_option
def duplicates(
    connection: Connection,
    topic_name: str,
    namespace: str,
    key_text: str | None,
    time_range: str | None,
    limit: int,
    master: str,
    as_json: bool,
) -> None:
    """Find business keys that several messages have, those with the most messages first.

    \b
    Examples:
      ledgermq jobs duplicates --topic orders
      ledgermq jobs duplicates --topic orders --key "properties['order']" --time-range -24h..
      ledgermq jobs duplicates --topic orders --key "sha2(body, 256)" --json

    The column bodies counts the different bodies of a key: 1 means that the same message was sent
    again. first and last are the places of two of the messages, as broker group/queue/offset. Exit
    status: 0 there are none, 1 there are some.
    """
    from_topic = _opened(connection, topic_name, namespace)
    with _session(master) as session:
        from ledgermq.audit.batch.counts import PLACE
        from ledgermq.audit.batch.counts import duplicates as find

        needed = ["keys", "body", *PLACE]
        frame = narrow_table(session, from_topic, range_options(time_range), needed, key_text)
        rows = find(frame, expression("--key", frame, key_text))
        total = show(
            "duplicates", rows, ["-messages", "key"], limit, as_json, topic=from_topic.stored_topic
        )
    raise SystemExit(FOUND if total else 0)


@jobs.command("gaps")
@topic_option
@click.option(
    "--number",
    "number_text",
    required=True,
    metavar="SQL",
    help="The sequence number of a message, as for --key of `count`.",
)
@click.option(
    "--series",
    "series_text",
    metavar="SQL",
    help="What tells sequences apart, such as an account. [default: one sequence]",
)
@click.option("--time-range", "time_range", metavar="A..B", help=RANGE_HELP)
@spark_options
@namespace_option
@cluster_command
@json_option
def gaps(
    connection: Connection,
    topic_name: str,
    namespace: str,
    number_text: str,
    series_text: str | None,
    time_range: str | None,
    limit: int,
    master: str,
    as_json: bool,
) -> None:
    """Find numbers that are missing between the lowest and the highest of a sequence.

    \b
    Examples:
      ledgermq jobs gaps --topic orders --number "properties['n']"
      ledgermq jobs gaps --topic orders --number "properties['n']" --series "properties['account']"
      ledgermq jobs gaps --topic orders \\
        --number "get_json_object(CAST(body AS string), '$.n')" --json

    Messages for which --number gives no integer are left out. Numbers that are missing at the end
    of a sequence cannot be seen. Exit status: 0 there are none, 1 there are some.
    """
    from_topic = _opened(connection, topic_name, namespace)
    with _session(master) as session:
        from ledgermq.audit.batch.counts import gaps as find

        frame = narrow_table(
            session, from_topic, range_options(time_range), ["offset"], number_text, series_text
        )
        number, series = (
            expression("--number", frame, number_text, is_number=True),
            expression("--series", frame, series_text),
        )
        assert number is not None, "the option is required"
        total = show(
            "gaps",
            find(frame, number, series),
            ["series", "first"],
            limit,
            as_json,
            topic=from_topic.stored_topic,
        )
    raise SystemExit(FOUND if total else 0)


@jobs.command("compare")
@click.option(
    "--topic",
    "topic_name",
    help="Name of the topic. [default: all topics, if another cluster is named]",
)
@click.option(
    "--with-topic", "other_name", help="The topic to compare with. [default: the same name]"
)
@click.option(
    "--with-context",
    "other_context",
    metavar="NAME",
    help="The cluster to compare with (ledgermq context).",
)
@click.option(
    "--with-endpoints",
    "other_endpoints",
    help="The cluster to compare with, without credentials and TLS.",
)
@click.option(
    "--key",
    "key_text",
    metavar="SQL",
    help="What to show of a message, as for --key of `count`. [default: nothing]",
)
@click.option(
    "--time-range",
    "time_range",
    metavar="A..B",
    help="Only messages created at or after A and before B by their producers.",
)
@spark_options
@namespace_option
@cluster_command
@json_option
def compare(
    connection: Connection,
    topic_name: str | None,
    namespace: str,
    other_name: str | None,
    other_context: str | None,
    other_endpoints: str | None,
    key_text: str | None,
    time_range: str | None,
    limit: int,
    master: str,
    as_json: bool,
) -> None:
    """Compare two topics, or all topics of two clusters: find messages that one side has more often
    than the other.

    \b
    Examples:
      ledgermq jobs compare --topic orders --with-topic orders-again
      ledgermq jobs compare --topic orders --with-context standby --key "properties['order']"
      ledgermq jobs compare --with-context standby --time-range ..-10m --json

    Messages are equal if body, tag, keys and user properties are equal; ids, offsets and times are
    not compared. Without --topic, topics that only one cluster has are differences too. Exit
    status: 0 the sides are equal, 1 they differ.
    """
    other = other_cluster(other_context, other_endpoints)
    both, alone = topic_pairs(
        connection,
        context=_here(connection),
        topic=topic_name,
        namespace=namespace,
        other_topic=other_name,
        other=other,
    )
    total = len(alone)
    with _session(master) as session:
        from ledgermq.audit.batch.compare import differences

        for pair in both:
            left, right = (born_within(table(session, side, {}), time_range) for side in pair)
            rows = differences(left, right, expression("--key", left, key_text))
            names = {"topic": pair[0].stored_topic, "with_topic": pair[1].stored_topic}
            total += show("compare", rows, ["key", "digest"], limit, as_json, **names)
    for name, side in alone:
        if as_json:
            render.print_json(
                job="compare",
                **{("topic" if side == "this" else "with_topic"): name},
                only=side,
                total=1,
                rows=[],
            )
        else:
            print(f"topic {name}: only {side} cluster has it")
    raise SystemExit(FOUND if total else 0)


@jobs.command("replay")
@topic_option
@click.option("--to-topic", required=True, help="The topic to write to; it exists already.")
@click.option(
    "--to-context",
    metavar="NAME",
    help="The cluster to write to (ledgermq context). [default: the same]",
)
@click.option("--to-endpoints", help="The cluster to write to, without credentials and TLS.")
@click.option(
    "--plan",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The plan's file; created if missing.",
)
@click.option(
    "--where",
    "condition",
    metavar="SQL",
    help="Only messages for which this is true. [default: all]",
)
@click.option("--time-range", "time_range", metavar="A..B", help=RANGE_HELP)
@master_option
@namespace_option
@cluster_command
@json_option
def replay(
    connection: Connection,
    topic_name: str,
    namespace: str,
    to_topic: str,
    to_context: str | None,
    to_endpoints: str | None,
    path: Path,
    condition: str | None,
    time_range: str | None,
    master: str,
    as_json: bool,
) -> None:
    """Copy messages of a topic to another topic, each at most once, however often the command is
    repeated.

    \b
    Examples:
      ledgermq jobs replay --topic orders --to-topic orders-again --plan replay.json
      ledgermq jobs replay --topic orders --to-topic late --plan late.json \\
        --where "tag = 'late'" --time-range -24h..
      ledgermq jobs replay --topic orders --to-topic orders --to-context standby --plan standby.json

    The plan fixes the range and the filter. If the command is interrupted or fails, repeat it with
    the same plan within six days: it stores only what is missing. With a plan that is done it does
    nothing. Bodies, tags, keys, user properties and the order of each queue are kept; message
    groups, delays and priorities are not.
    """
    source = _opened(connection, topic_name, namespace)
    goal = target_in(
        other_cluster(to_context, to_endpoints) or _here(connection), *name_of(to_topic, namespace)
    )
    with (
        source.connect(connection.timeout_s) as reading,
        goal.connect(connection.timeout_s) as writing,
    ):
        sides = replays.Opened(source, reading), replays.Opened(goal, writing)
        plan, is_new = _plan(path, sides, condition, time_range)
        ranges = replays.range_options(plan, sides[0])
    messages = None
    if not plan.done:
        with _session(master) as session:
            if plan.where:
                expression("--where", table(session, source, ranges), plan.where, is_condition=True)
            if is_new:
                replays.write_new(plan, path)
            plan, messages = replays.replay(session, plan, source.options | ranges, goal.options)
        replays.write_done(plan, path)
    if as_json:
        render.print_json(
            job="replay",
            plan=plan.id,
            topic=plan.topic,
            to_topic=plan.to_topic,
            read=plan.messages,
            messages=messages,
        )
    elif messages is None:
        print(f"replayed before: the plan {path} is done")
    else:
        print(
            f"replayed: {messages} of {plan.messages} messages from {plan.topic} are in"
            f" {plan.to_topic}"
        )


def _plan(
    path: Path,
    sides: tuple[replays.Opened, replays.Opened],
    condition: str | None,
    time_range: str | None,
) -> tuple[replays.Plan, bool]:
    """The plan in the file, or a new one, and whether it is new."""
    now_ms = round(time.time() * 1000)
    if not path.exists():
        try_file(path)
        return (
            replays.make_plan(
                str(uuid.uuid4()),
                *sides,
                range_options(time_range),
                condition or "",
                now_ms,
                time_range or "",
            ),
            True,
        )
    plan = replays.read_plan(path)
    if time_range not in (None, plan.time_range) or condition not in (None, plan.where):
        raise BadArgument(
            f"the plan {path} was made for another range or filter",
            "omit --time-range and --where, or name a new file",
        )
    replays.check_plan(plan, *sides, now_ms)
    return plan, False


def _here(connection: Connection) -> contexts.Context:
    return this_cluster(connection, click.get_current_context().ensure_object(dict)["files"])


def _opened(connection: Connection, topic: str, namespace: str) -> Target:
    """The topic of a command, which exists. Raises Unreachable or Refused."""
    target = target_in(_here(connection), namespace, topic)
    check_exists(target, connection.timeout_s)
    return target


def _session(master: str) -> AbstractContextManager[SparkSession]:
    return opened_session(
        master, bool(click.get_current_context().ensure_object(dict).get("quiet"))
    )
