"""Compare our log, a database, a LevelDB-like store, a journal with an index, and memory: writing,
reading, recovery and size.

Every store stores the same messages on the same disk in the same batches, and each batch is durable
before the next one begins. The writer is a separate process that ends without closing anything, as
if it had been killed. The store is then opened again (`killed_open_s`), read, closed, and opened
once more (`clean_open_s`). Reads are served from a warm page cache. `python -m bench.storage_modes`
generates the table and the plot in docs/benchmarks.md from the last result.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.tools import report
from bench.tools.stores import STORES, Batch, Store, versions

NAME, RUNS, DURABLE = "storage_modes", 3, True
MESSAGES = 300_000
BATCH = 500
BODY_BYTES = 100
QUEUES = 8
LOOKUPS = 2000
READ_BATCH = 32
BORN_MS = 1_700_000_000_000
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
PLOT = Path(__file__).parent.parent / "docs" / "plots" / "storage-modes.svg"
MARKS = ("<!-- storage modes: begin -->", "<!-- storage modes: end -->")
TITLES = {
    "ledger": "LedgerMQ",
    "database": "database",
    "leveldb": "LevelDB",
    "journal": "journal + index",
    "memory": "memory",
}


def key_of(number: int) -> str:
    """Keys without any order, like order numbers from many senders."""
    return f"{number * 2_654_435_761 % (1 << 32):08x}-{number}"


def body_of(number: int) -> bytes:
    """Bytes that cannot be compressed and are the same in every run."""
    return random.Random(number).randbytes(BODY_BYTES)


def batches(messages: int) -> Iterator[Batch]:
    for first in range(0, messages, BATCH):
        numbers = range(first, min(first + BATCH, messages))
        yield Batch(
            first=first,
            queues=[number % QUEUES for number in numbers],
            offsets=[number // QUEUES for number in numbers],
            tags=[f"tag-{number % 16}" for number in numbers],
            keys=[key_of(number) for number in numbers],
            bodies=[body_of(number) for number in numbers],
            born_ms=BORN_MS + first,
        )


def write_all(store: Store, messages: int) -> dict[str, Any]:
    """Write every batch and time each one; building the batches is not measured."""
    times = []
    for batch in batches(messages):
        began = time.perf_counter()
        store.write(batch)
        times.append(time.perf_counter() - began)
    ordered = sorted(times)
    return {
        "write_messages_per_s": messages / sum(times),
        "batch_p50_ms": report.percentile(ordered, 0.5) * 1000,
        "batch_p99_ms": report.percentile(ordered, 0.99) * 1000,
    }


def write_and_die(name: str, directory: str, messages: int, answer: Connection) -> None:
    """The writing process: it ends without closing or flushing anything."""
    answer.send(write_all(STORES[name](Path(directory)), messages))
    answer.close()
    os._exit(0)


def read_all(store: Store, messages: int) -> dict[str, Any]:
    """Read single messages and runs of messages by queue and offset, present keys and absent keys,
    and check every result."""
    chosen = random.Random(7).sample(
        range(messages - READ_BATCH * QUEUES), min(LOOKUPS, messages // 2)
    )
    answers = {
        "read_one_us": _timed(
            chosen,
            lambda number: store.read(number % QUEUES, number // QUEUES, 1),
            lambda number: [body_of(number)],
        ),
        "by_key_us": _timed(
            chosen, lambda number: store.by_key(key_of(number)), lambda number: [body_of(number)]
        ),
        "absent_key_us": _timed(
            chosen, lambda number: store.by_key(f"absent-{number}"), lambda number: []
        ),
    }
    run_us = _timed(
        chosen[: len(chosen) // 10],
        lambda number: store.read(number % QUEUES, number // QUEUES, READ_BATCH),
        lambda number: [body_of(number + QUEUES * k) for k in range(READ_BATCH)],
    )
    return {**answers, "read_run_messages_per_s": READ_BATCH / run_us * 1e6}


def _timed(
    numbers: list[int], ask: Callable[[int], Any], right: Callable[[int], list[bytes]]
) -> float:
    """The median duration of one query in microseconds."""
    times = []
    for number in numbers:
        began = time.perf_counter_ns()
        found = ask(number)
        times.append(time.perf_counter_ns() - began)
        assert list(found) == right(number), f"message {number} came back wrong"
    return statistics.median(times) / 1000


def disk_bytes(directory: Path) -> int:
    """The disk space that the files occupy."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def opened(name: str, directory: Path) -> tuple[Store, float]:
    began = time.perf_counter()
    store: Store = STORES[name](directory)
    return store, time.perf_counter() - began


def one(name: str, directory: Path, messages: int) -> dict[str, Any]:
    """All figures for one store."""
    directory.mkdir(parents=True)
    if name == "memory":
        store, _ = opened(name, directory)
        return {
            **write_all(store, messages),
            **read_all(store, messages),
            "killed_open_s": None,
            "clean_open_s": None,
            "disk_bytes": 0,
        }
    context = multiprocessing.get_context("spawn")
    answer, theirs = context.Pipe(duplex=False)
    writer = context.Process(target=write_and_die, args=(name, str(directory), messages, theirs))
    writer.start()
    theirs.close()
    written = answer.recv()
    writer.join()
    used = disk_bytes(directory)
    store, killed_open_s = opened(name, directory)
    answers = read_all(store, messages)
    assert len(store.by_key(key_of(messages - 1))) == 1, f"{name} lost the last batch"
    store.close()
    store, clean_open_s = opened(name, directory)
    assert len(store.by_key(key_of(messages - 1))) == 1, f"{name} lost the last batch"
    store.close()
    return {
        **written,
        **answers,
        "killed_open_s": killed_open_s,
        "clean_open_s": clean_open_s,
        "disk_bytes": used,
    }


def run(directory: Path, messages: int = MESSAGES) -> dict[str, Any]:
    results = {}
    for name in STORES:
        report.say(f"storage_modes: {name}")
        results[name] = one(name, directory / name, messages)
        shutil.rmtree(directory / name)
    settings = {"messages": messages, "batch": BATCH, "body_bytes": BODY_BYTES, "queues": QUEUES}
    return {**settings, "versions": versions(), "stores": results}


def table(medians: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    titles = (
        "write, messages/s",
        "batch p50 / p99",
        "one by offset",
        f"runs of {READ_BATCH}, messages/s",
        "by key",
        "absent key",
    )
    lines = [
        "| | " + " | ".join([*titles, "open after a kill", "open", "on disk"]) + " |",
        "|---|" + "---|" * (len(titles) + 3),
    ]
    for name, row in medians["stores"].items():
        opens = [
            "–" if row[key] is None else f"{row[key]:.3f} s"
            for key in ("killed_open_s", "clean_open_s")
        ]
        cells = [
            TITLES[name],
            f"{row['write_messages_per_s']:,.0f}",
            f"{row['batch_p50_ms']:.2f} / {row['batch_p99_ms']:.2f} ms",
            f"{row['read_one_us']:.1f} µs",
            f"{row['read_run_messages_per_s']:,.0f}",
            f"{row['by_key_us']:.1f} µs",
            f"{row['absent_key_us']:.1f} µs",
            *opens,
            f"{row['disk_bytes'] / (1 << 20):,.0f} MiB",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    kinds = "; ".join(f"{TITLES[name]}: {what}" for name, what in medians["versions"].items())
    size = f"{medians['messages']:,} messages of {medians['body_bytes']} bytes with a tag and a key"
    lines += [
        "",
        (
            f"{size}, {medians['queues']} queues, batches of {medians['batch']}, each durable by"
            f" one sync. {kinds}."
        ),
    ]
    return "\n".join(lines)


def plot(medians: dict[str, Any], path: Path) -> None:
    """Four bar charts in one picture; the same figures always produce the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ledgermq", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    charts = (
        ("write_messages_per_s", "durable write, messages/s", 1.0),
        ("read_one_us", "read one by queue offset, µs", 1.0),
        ("by_key_us", "read by key, µs", 1.0),
        ("killed_open_s", "open after a kill, ms", 1000.0),
    )
    figure, axes = pyplot.subplots(1, len(charts), figsize=(12, 2.6), layout="constrained")
    names = list(medians["stores"])
    for axis, (key, title, factor) in zip(axes, charts, strict=True):
        figures = {name: medians["stores"][name][key] for name in names}
        # Memory is not durable: drawing its rate would flatten the bars of the durable stores, so
        # the rate is given as text only.
        drawn = {
            name: 0 if name == "memory" and axis is axes[0] else (figures[name] or 0) * factor
            for name in names
        }
        values = list(drawn.values())
        colours = ["#1f6f8b" if name == "ledger" else "#b8c4cc" for name in names]
        bars = axis.barh([TITLES[name] for name in names], values, color=colours)
        labels = [
            "–" if figures[name] is None else _label(figures[name] * factor) for name in names
        ]
        if axis is axes[0]:
            labels[-1] += ", not durable"
        axis.bar_label(bars, labels, padding=3)
        axis.invert_yaxis()
        axis.margins(x=0.3)
        axis.set_title(title, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xticks([])
        if axis is not axes[0]:
            axis.set_yticklabels([])
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def publish(page: Path, picture: Path, medians: dict[str, Any]) -> None:
    """Write the table between its marks in the page and draw the picture."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    assert end, f"{page} has no place for the table: {MARKS[0]} … {MARKS[1]}"
    page.write_text(f"{before}{MARKS[0]}\n{table(medians)}\n{MARKS[1]}{after}", encoding="utf-8")
    plot(medians, picture)


if __name__ == "__main__":
    publish(PAGE, PLOT, json.loads((report.RESULTS / f"{NAME}.json").read_text())["medians"])
