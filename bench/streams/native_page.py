"""The suite's page: Markdown tables between marks in docs/benchmarks.md, generated from one result.
Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import limits, peers
from bench.streams import native_plots

ROOT = Path(__file__).parent.parent.parent
PAGE, PLOTS = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "plots"
MARKS = ("<!-- {}: begin -->", "<!-- {}: end -->")
Row = Mapping[str, Any]
MIB = 1 << 20


def publish(found: Mapping[str, Any], page: Path = PAGE, plots: Path = PLOTS) -> None:
    """Replace every measured part of the page, and draw the plots again."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts(found).items():
        begin, end = (mark.format(name) for mark in MARKS)
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"{page} has no place for {name}: {begin} … {end}")
        text = f"{before}{begin}\n{part}\n{end}{after}"
    page.write_text(text, encoding="utf-8")
    native_plots.draw(found, plots)


def text(found: Mapping[str, Any]) -> str:
    return "\n\n".join(parts(found).values())


def parts(found: Mapping[str, Any]) -> dict[str, str]:
    """Name of a place in the page → its Markdown."""
    out = {}
    if native := found.get("native"):
        out["limits"] = limits.table(native["limits"])
        out["native"] = "\n\n".join([taken(found), *sections(native)])
    if "peers" in found:
        out["peers"] = f"{taken(found)}\n\n{peers.table(found['peers'])}"
    return out


def taken(found: Mapping[str, Any]) -> str:
    load = found["machine"]["load_average_before"][0]
    quick = "the quick plan" if found["quick"] else "the full plan"
    return f"Taken {found['taken'][:10]} with {quick}, load average {load:g} before."


def sections(native: Row) -> list[str]:
    """The measured parts in the order of the page; failed ones with their reason."""
    bare = native["limits"]
    out = []
    for key, make in SECTIONS:
        if native.get(key):
            out.append(make(native[key], bare))
    out += [f"Not measured: {scenario}: {reason}" for scenario, reason in native["failed"].items()]
    return out


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def costs(row: Row) -> list[str]:
    """Processor time of leader, follower and client per message; bytes written by the leader per
    payload byte; anonymous memory."""
    follower = row.get("follower_cpu_us_a_message")
    cpu = [
        row["leader_cpu_us_a_message"],
        *([] if follower is None else [follower]),
        row["client_cpu_us_a_message"],
    ]
    shown = (
        " / ".join(number(part) for part in cpu[:-1])
        + (" / –" if follower is None else "")
        + f" / {number(cpu[-1])}"
    )
    return [
        shown,
        number(row["leader_written_per_payload_byte"]),
        f"{row['rss_anon_max_mib']:.0f} MiB",
    ]


PARTS = ("50", "90", "99", "99.9", "99.99")
COSTS = ("µs a message: leader / follower / client", "written per payload byte", "RssAnon, most")


def entries_mib_per_s(row: Row) -> float:
    return float(row["messages_per_s"] * row["entry_bytes_a_message"] / MIB)


def throughput(rows: Sequence[Row], bare: Row) -> str:
    titles = (
        "replicas",
        "class",
        "message",
        "messages/s",
        "payload",
        "of the disk's writes ÷ replicas",
        "of a bare gRPC stream",
        *COSTS,
    )
    lines = []
    for row in rows:
        disk = row["payload_mib_per_s"] / (bare["sequential_write_mib_per_s"] / row["replicas"])
        lines.append(
            [
                str(row["replicas"]),
                row["class"],
                f"{row['body_bytes']:,} bytes",
                f"**{number(row['messages_per_s'])}**",
                f"{number(row['payload_mib_per_s'])} MiB/s",
                f"{disk:.1%}",
                f"{entries_mib_per_s(row) / bare['grpc_stream_mib_per_s']:.1%}",
                *costs(row),
            ]
        )
    return "**Throughput**, full frames, one producer with five frames under way:\n\n" + markdown(
        titles, lines
    )


def latency(rows: Sequence[Row], bare: Row) -> str:
    parts = tuple(f"p{part}" for part in PARTS)
    titles = (
        "class",
        "message",
        "messages/s offered",
        "frames of",
        *parts,
        "p50 in fdatasyncs",
        "in bare calls",
    )
    lines = []
    for row in rows:
        times = [f"{number(row[f'p{part}_ms'])} ms" for part in PARTS]
        ratios = [
            f"{row['p50_ms'] / bare[key]:.1f}" for key in ("fdatasync_p50_ms", "grpc_unary_p50_ms")
        ]
        offered = f"{number(row['messages_per_s'])} ({row['part']:.0%})"
        lines.append(
            [
                row["class"],
                f"{row['body_bytes']:,} bytes",
                offered,
                str(row["batch"]),
                *times,
                *ratios,
            ]
        )
    return (
        "**Latency** from intended send times, three replicas, at parts of the throughput"
        " above:\n\n" + markdown(titles, lines)
    )


def single(row: Row, bare: Row) -> str:
    budget = bare["fdatasync_p50_ms"] + bare["loopback_round_trip_p50_ms"] + 0.5
    return (
        f"**One durable message at a time**: p50 {number(row['p50_ms'])} ms, p99"
        f" {number(row['p99_ms'])} ms. The budget, fdatasync p50 + loopback round trip + 0.5 ms, is"
        f" {budget:.2f} ms: {row['p50_ms'] / budget:.2f} of it was taken."
    )


def varied(title: str, key: str) -> Callable[[Sequence[Row], Row], str]:
    """A table of loads that differ in one thing."""

    def make(rows: Sequence[Row], bare: Row) -> str:
        first = rows[0]["messages_per_s"]
        lines = [
            [
                number(row[key]),
                f"**{number(row['messages_per_s'])}**",
                f"{row['messages_per_s'] / first:.2f}",
                f"{entries_mib_per_s(row) / bare['grpc_stream_mib_per_s']:.1%}",
                f"{number(row['p50_ms'])} / {number(row['p99_ms'])} ms",
                *costs(row),
            ]
            for row in rows
        ]
        titles = (key, "messages/s", "to the first", "of a bare gRPC stream", "p50 / p99", *COSTS)
        return f"**{title}**, durable, three replicas, 100 bytes, saturated:\n\n" + markdown(
            titles, lines
        )

    return make


def readers(found: Row, bare: Row) -> str:
    ratios = ("of a bare gRPC stream", "of a memory copy")
    titles = ("reader", "messages/s", "entries", *ratios, "µs a message: leader / client")
    lines = []
    names = {
        "page_cache": "from the page cache",
        "page_cache_bodies": "… bodies checked and handed out",
        "disk": "pages dropped before",
    }
    for size in (100, 10_240):
        backlog = found[f"backlog_{size}"]
        for key, name in names.items():
            row = backlog[key]
            mib = row["entries_mb_per_s"] * 1e6 / MIB
            lines.append(
                [
                    f"{backlog['messages']:,} of {size:,} bytes, {name}",
                    f"**{number(row['messages_per_s'])}**",
                    f"{number(row['entries_mb_per_s'])} MB/s",
                    f"{mib / bare['grpc_stream_mib_per_s']:.1%}",
                    f"{mib / bare['memory_copy_mib_per_s']:.1%}",
                    (
                        f"{number(row['leader_cpu_us_a_message'])} /"
                        f" {number(row['client_cpu_us_a_message'])}"
                    ),
                ]
            )
    parts = ["**Readers**, cold, of a backlog on three replicas:\n\n" + markdown(titles, lines)]
    half, everything = (found["tailing"][key]["arrived"] for key in ("half", "saturated"))
    parts.append(
        "**Tailing**: a reader at the end beside a saturated producer got"
        f" {number(everything['messages_per_s'])} messages/s; at half of that a message arrives"
        f" {number(half['p50_ms'])} ms (p50), {number(half['p99_ms'])} ms (p99) after its intended"
        f" send ({half['p50_ms'] / bare['fdatasync_p50_ms']:.1f} fdatasyncs)."
    )
    beside = found["beside_cold"]
    parts.append(
        f"**A cold reader beside a producer** at {number(beside['rate'])} messages/s: p99"
        f" {number(beside['alone']['p99_ms'])} ms alone, {number(beside['beside']['p99_ms'])} ms"
        f" while the whole backlog is read from the disk again and again ({beside['p99_ratio']:.2f}"
        " times)."
    )
    return "\n\n".join(parts)


def delay(found: Row, _: Row) -> str:
    return (
        f"**{found['delay_each_way_ms']:g} ms between the nodes**, each way:"
        f" {number(found['with']['messages_per_s'])} messages/s with it,"
        f" {number(found['without']['messages_per_s'])} through the same proxy without"
        f" ({found['rate_ratio']:.2f})."
    )


def leader_kill(found: Row, bare: Row) -> str:
    silence = found["silence_s"]
    return (
        f"**Leaders killed under load** ({found['kills']} kills, {found['rate']:,} messages/s"
        f" offered): no acknowledgement for {silence['median']:.2f} s (median),"
        f" {silence['all'][-1]:.2f} s at most; all {found['messages']:,} messages are stored, each"
        f" once. From intended send times over the whole run: p50 {number(found['p50_ms'])} ms, p99"
        f" {number(found['p99_ms'])} ms ({found['p50_ms'] / bare['fdatasync_p50_ms']:.1f}"
        " fdatasyncs)."
    )


def ceiling(found: Row, bare: Row) -> str:
    produce, consume = found["produce"], found["consume"]
    share = entries_mib_per_s(produce) / bare["grpc_stream_mib_per_s"]
    return (
        "**The ceiling of the client** on a Log service that stores nothing:"
        f" {number(produce['messages_per_s'])} messages/s produced ({share:.0%} of a bare gRPC"
        f" stream; {number(produce['client_cpu_us_a_message'])} µs of the client and"
        f" {number(produce['server_cpu_us_a_message'])} µs of the server a message),"
        f" {number(consume['messages_per_s'])} read."
    )


SECTIONS: tuple[tuple[str, Callable[[Any, Row], str]], ...] = (
    ("throughput", throughput),
    ("ceiling", ceiling),
    ("one_at_a_time", single),
    ("latency", latency),
    ("batches", varied("Messages in a frame", "batch")),
    ("producers", varied("Producers", "producers")),
    ("queues", varied("Queues, the messages of a frame spread over all", "queues")),
    ("readers", readers),
    ("delay", delay),
    ("leader_kill", leader_kill),
)
