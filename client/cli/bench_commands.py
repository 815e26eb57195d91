"""`ledgermq bench send|receive|request`: measure a cluster under load.

Only argument parsing, the live line, printing and exit statuses live here; `bench_load.py` makes
the load and measures it.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import click

from ledgermq.client import render
from ledgermq.client.api.connection import AsyncConnection, Connection
from ledgermq.client.cli.commands import (
    DURATION,
    PROGRESS_LINE_S,
    SIZE,
    cluster_command,
    exact_option,
    json_option,
    namespace_option,
)
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.messages.bench_load import Load, Tally, run_receive, run_request, run_send
from ledgermq.proto import units
from ledgermq.proto.status import ExitCode

Run = Callable[[AsyncConnection, Load, Tally], Awaitable[None]]
LARGEST = 4 << 20
LEAST_DURATION_S = 0.1


@click.group()
def bench() -> None:
    """Measure a cluster under load: sends, receives and round trips, with percentiles of their
    latencies.

    \b
    Examples:
      ledgermq topic create bench
      ledgermq bench send --topic bench --rate 1000 --duration 30s
      ledgermq bench receive --topic bench --group bench --duration 30s
      ledgermq bench request --topic bench --rate 100 --json

    The messages are real: use a topic of their own, and delete it afterwards. With --rate, the time
    of every send is fixed before the run, and latencies count from there; without it, as many
    messages are sent as the calls in flight allow, and latencies count from each send.
    """


def load_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all three commands."""

    @click.option("--topic", "topic_name", required=True, help="Name of the topic.")
    @click.option(
        "--duration",
        "duration_s",
        type=DURATION,
        default="10s",
        show_default=True,
        help="Length of the run.",
    )
    @click.option(
        "--window",
        type=click.IntRange(1, 10_000),
        default=64,
        show_default=True,
        help="Calls in flight at most.",
    )
    @namespace_option
    @cluster_command
    @exact_option
    @json_option
    @wraps(command)
    def with_load(*arguments: Any, **options: Any) -> Any:
        return command(*arguments, **options)

    return with_load


def sending_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that send."""

    @click.option(
        "--rate",
        type=click.FloatRange(0, 1e6, min_open=True),
        help="Messages per second. [default: as fast as possible]",
    )
    @click.option(
        "--size", type=SIZE, default="1KiB", show_default=True, help="Size of a message body."
    )
    @wraps(command)
    def with_options(*arguments: Any, size: int, **options: Any) -> Any:
        if not 1 <= size <= LARGEST:
            raise BadArgument("--size is out of range", "give 1B to 4MiB")
        return command(*arguments, size=size, **options)

    return with_options


@bench.command("send")
@sending_options
@load_command
def bench_send(
    connection: Connection,
    rate: float | None,
    size: int,
    exact: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send messages, and measure from the intended time of each send to its acknowledgement.

    \b
    Examples:
      ledgermq bench send --topic bench --rate 1000 --duration 30s
      ledgermq bench send --topic bench --window 256 --size 4KiB --json

    Exit status: 0 all acknowledged; 1 some not, or not sent in time; 3 none; 4 the cluster refused
    all; 130 Ctrl-C, after the result.
    """
    _measure(
        "send",
        connection,
        run=run_send,
        load=_load(rate=rate, size=size, **options),
        exact=exact,
        as_json=as_json,
    )


@bench.command("receive")
@click.option("--group", "group_name", required=True, help="Name of the consumer group.")
@load_command
def bench_receive(
    connection: Connection, group_name: str, exact: bool, as_json: bool, **options: Any
) -> None:
    """Receive and acknowledge messages, and measure how many; for messages of `bench send` also the
    time since they were to be sent.

    \b
    Examples:
      ledgermq bench receive --topic bench --group bench --duration 30s
      ledgermq bench receive --topic bench --group bench --json

    Messages that were sent before the run count as well, and their latency is their age.

    Exit status: 0 done; 3 the cluster did not answer; 4 it refused; 130 Ctrl-C, after the result.
    """
    _measure(
        "receive",
        connection,
        run=run_receive,
        load=_load(rate=None, size=0, group_name=group_name, **options),
        exact=exact,
        as_json=as_json,
    )


@bench.command("request")
@click.option(
    "--group", "group_name", default="bench", show_default=True, help="Name of the consumer group."
)
@sending_options
@load_command
def bench_request(
    connection: Connection,
    group_name: str,
    rate: float | None,
    size: int,
    exact: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send messages and receive them in the same process: measure from the intended time of each
    send to its delivery.

    \b
    Examples:
      ledgermq bench request --topic bench --rate 100
      ledgermq bench request --topic bench --rate 100 --group other --json

    Messages of earlier runs that the consumer group still finds are acknowledged, but not counted.

    Exit status: 0 all delivered; 1 some not; 3 none acknowledged; 4 the cluster refused all; 130
    Ctrl-C, after the result.
    """
    _measure(
        "request",
        connection,
        run=run_request,
        load=_load(rate=rate, size=size, group_name=group_name, **options),
        exact=exact,
        as_json=as_json,
    )


def _load(
    *,
    topic_name: str,
    namespace: str,
    duration_s: float,
    rate: float | None,
    window: int,
    size: int,
    group_name: str = "",
) -> Load:
    if duration_s < LEAST_DURATION_S:
        raise BadArgument("--duration is too short", "give at least 100ms")
    return Load(
        topic=topic_name,
        namespace=namespace,
        duration_s=duration_s,
        rate=rate,
        window=window,
        size=size,
        group=group_name,
        run=secrets.token_hex(8),
    )


def _measure(
    mode: str, connection: Connection, run: Run, load: Load, exact: bool, as_json: bool
) -> None:
    tally = Tally()
    quiet = bool(click.get_current_context().ensure_object(dict).get("quiet"))
    asyncio.run(_run(connection, run, load, tally, quiet))
    fields = result(mode, load, tally)
    if as_json:
        render.print_json(**fields)
    else:
        _print(fields, exact)
    if tally.interrupted:
        raise SystemExit(ExitCode.INTERRUPTED)
    if tally.failed or tally.unsent:
        why = (
            f"first: {tally.first_error}"
            if tally.first_error
            else "the cluster or this machine did not keep up; give a lower --rate"
        )
        what = f"{tally.failed} messages failed and {tally.unsent} were not sent in time, {why}"
        print(f"error: {' '.join(what.split())}", file=sys.stderr)
        refused = isinstance(tally.first_error, Refused)
        raise SystemExit(
            1 if tally.acknowledged else ExitCode.REFUSED if refused else ExitCode.UNREACHABLE
        )


async def _run(connection: Connection, run: Run, load: Load, tally: Tally, quiet: bool) -> None:
    """Run the load with its live line. Ctrl-C ends it; what was measured until then counts."""
    live = None if quiet else asyncio.ensure_future(_live(tally))
    began = time.monotonic()
    try:
        async with AsyncConnection(timeout_s=connection.timeout_s, **connection.options) as own:
            await run(own, load, tally)
    except asyncio.CancelledError:
        # This is how the event loop passes on Ctrl-C.
        tally.interrupted = True
    finally:
        tally.seconds = time.monotonic() - began
        if live is not None:
            live.cancel()
            await asyncio.gather(live, return_exceptions=True)


async def _live(tally: Tally) -> None:
    """What happened in the last second, on stderr: one line that is rewritten on a terminal,
    otherwise a line every five seconds."""
    terminal = sys.stderr.isatty()
    every_s = 1.0 if terminal else PROGRESS_LINE_S
    former = 0
    try:
        while True:
            await asyncio.sleep(every_s)
            rate = (tally.messages - former) / every_s
            former = tally.messages
            p99 = tally.latencies.percentile_ms(0.99)
            text = (
                f"{tally.messages} messages, {rate:.0f}/s, p99"
                f" {'?' if p99 is None else f'{p99:.1f}'} ms, {tally.failed} failed"
            )
            print(
                f"\r\x1b[K{text}" if terminal else text,
                end="" if terminal else "\n",
                file=sys.stderr,
                flush=True,
            )
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def result(mode: str, load: Load, tally: Tally) -> dict[str, Any]:
    """The result as `--json` prints it. Unknown is null."""
    seconds = max(tally.seconds, 1e-9)
    return {
        "mode": mode,
        "seconds": round(seconds, 3),
        "messages": tally.messages,
        "failed": tally.failed,
        "unsent": tally.unsent,
        "messages_per_s": round(tally.messages / seconds, 1),
        "bytes_per_s": round(tally.bytes / seconds),
        "intended_per_s": load.rate,
        "latency_from": "intended time" if load.rate is not None or mode == "receive" else "send",
        "latency_ms": tally.latencies.as_json(),
        "latest_send_ms": None if mode == "receive" else round(tally.latest_s * 1000, 3),
        "interrupted": tally.interrupted,
    }


def _print(fields: dict[str, Any], exact: bool) -> None:
    ended = ", interrupted" if fields["interrupted"] else ""
    print(
        f"{fields['mode']}: {fields['messages']} messages in {fields['seconds']:g} s{ended},"
        f" {fields['failed']} failed"
    )
    volume = f"{fields['bytes_per_s']} bytes" if exact else units.size_words(fields["bytes_per_s"])
    print(f"rate: {fields['messages_per_s']} messages/s, {volume}/s")
    shown = " ".join(
        f"{name.replace('_', '.')} {'?' if value is None else f'{value:g}'}"
        for name, value in fields["latency_ms"].items()
    )
    print(f"latency in ms from the {fields['latency_from']}: {shown}")
    if fields["latest_send_ms"] is not None and fields["intended_per_s"] is not None:
        print(
            f"sends left at most {fields['latest_send_ms']:g} ms after their intended time;"
            f" {fields['unsent']} were not sent in time"
        )
