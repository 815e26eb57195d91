"""What the commands `ledgermq jobs` do with Spark: a session, tables of topics, expressions of the
user, and printed rows."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from ledgermq.audit.spark.cluster.cluster_options import Target
from ledgermq.client import render
from ledgermq.client.errors import BadArgument, ClusterError, Unreachable
from ledgermq.client.moments import time_range_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@contextmanager
def opened_session(master: str, quiet: bool) -> Iterator[SparkSession]:
    """A session whose times are UTC; it is stopped at the end. An error of Spark is told as one of
    the command."""
    from ledgermq.audit.spark.java import spark_session

    if not quiet:
        print(f"jobs: starting Spark on {master}", file=sys.stderr, flush=True)
    # What fails in a task is the command's last line; at the level `error` its Java trace would
    # come before, once for each attempt.
    session = spark_session(master, "ledgermq-jobs", "fatal")
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # Spark's Python side logs an error with its Java trace too, before it raises it.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")
    try:
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
    except PySparkException as error:
        _fail(str(error))
    finally:
        session.stop()


def _fail(text: str) -> NoReturn:
    """Raise the error of a task as it would be raised without Spark."""
    for name, kind in (
        ("Unreachable", Unreachable),
        ("Refused", ClusterError),
        ("BadArgument", BadArgument),
    ):
        match = re.search(rf"{name}: (.+?); (.+)", text)
        if match is not None:
            raise kind(match[1], match[2])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raise ClusterError(
        f"Spark failed: {lines[0] if lines else 'without a reason'}",
        "correct the command's expressions",
    )


def range_options(time_range: str | None) -> dict[str, str]:
    """A range of store times as options of the data source."""
    first, last = time_range_ms(time_range, round(time.time() * 1000))
    given = {"startingTime": first, "endingTime": last}
    return {name: str(moment) for name, moment in given.items() if moment is not None}


def table(session: SparkSession, target: Target, limits: Mapping[str, str]) -> DataFrame:
    """A topic, or a range of it."""
    return session.read.format("ledgermq").options(**target.options, **limits).load()


def narrow_table(
    session: SparkSession,
    target: Target,
    limits: Mapping[str, str],
    needed: Sequence[str],
    *texts: str | None,
) -> DataFrame:
    """The same with the needed columns, and with those whose names occur in expressions: Spark does
    not tell the source what it needs."""
    from ledgermq.audit.spark.cluster.cluster_source import COLUMNS

    columns = [
        name for name in COLUMNS if name in needed or any(name in text for text in texts if text)
    ]
    return table(session, target, {**limits, "columns": ",".join(columns)})


def born_within(frame: DataFrame, time_range: str | None) -> DataFrame:
    """The messages that were created in a range of time."""
    from pyspark.sql import functions as F

    limits = range_options(time_range)
    if "startingTime" in limits:
        frame = frame.where(F.unix_millis("born_time") >= int(limits["startingTime"]))
    return (
        frame.where(F.unix_millis("born_time") < int(limits["endingTime"]))
        if "endingTime" in limits
        else frame
    )


def expression(
    name: str,
    frame: DataFrame,
    text: str | None,
    is_condition: bool = False,
    is_number: bool = False,
) -> Column | None:
    """An expression of the user over the columns of a frame. Raises BadArgument."""
    if text is None:
        return None
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    try:
        column = F.expr(text)
        # Columns and functions are looked up when the frame is analysed.
        fields = frame.select(column).schema.fields
    except (AnalysisException, ParseException) as error:
        reason = (
            next(line for line in str(error).splitlines() if line.strip())
            .strip()
            .rstrip(".")
            .replace(";", ",")
        )
        raise BadArgument(
            f"{name} is not an expression over the columns of a message: {reason}",
            "see docs/spark.md, Read",
        ) from None
    if len(fields) != 1:
        raise BadArgument(
            f"{name} gives {len(fields)} columns", "give an expression with one value"
        )
    kind = fields[0].dataType.typeName()
    if is_condition and kind != "boolean":
        raise BadArgument(
            f"{name} is of type {kind}, not a condition", "give a comparison, such as tag = 'late'"
        )
    if is_number and kind in ("array", "binary", "boolean", "map", "struct", "variant"):
        raise BadArgument(
            f"{name} is of type {kind}, which is no number",
            "give a number or a text, such as CAST(body AS string)",
        )
    return column


def show(
    job: str, frame: DataFrame, order: Sequence[str], limit: int, as_json: bool, **names: str
) -> int:
    """Print the first rows, and return the number of all rows."""
    from pyspark.sql import functions as F

    frame = frame.persist()
    total = int(frame.count())
    by = [
        F.desc_nulls_last(name[1:]) if name.startswith("-") else F.asc_nulls_last(name)
        for name in order
    ]
    lines = (
        frame.orderBy(*by)
        .limit(limit)
        .select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
        .collect()
    )
    rows = [json.loads(line[0]) for line in lines]
    frame.unpersist()
    if as_json:
        render.print_json(job=job, **names, total=total, rows=rows)
        return total
    columns = frame.columns
    title = f"{job} of {' and '.join(names.values())}: {total} rows" + (
        f", {limit} shown" if total > limit else ""
    )
    if rows:
        render.print_table(
            title, columns, ([_cell(row[column]) for column in columns] for row in rows)
        )
    else:
        print(title)
    return total


def _cell(value: Any) -> Any:
    """A place in short form; null is a dash."""
    if isinstance(value, dict):
        return f"{value['broker_group']}/{value['queue']}/{value['offset']}"
    return "-" if value is None else value
