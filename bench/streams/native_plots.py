"""The plots of the suite, from one result; equal figures give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, OTHERS = "#1f6f8b", "#b8c4cc"
Row = Mapping[str, Any]
CURVE = (50.0, 90.0, 99.0, 99.9, 99.99)


def draw(found: Mapping[str, Any], directory: Path) -> None:
    """Draw native-throughput.svg, native-latency.svg and peers.svg, for what the result
    contains."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ledgermq", "svg.fonttype": "none", "font.size": 9})
    directory.mkdir(exist_ok=True)
    native = found.get("native") or {}
    if native.get("throughput"):
        throughput(native, directory / "native-throughput.svg")
    if native.get("latency"):
        latency(native["latency"], directory / "native-latency.svg")
    if found.get("peers", {}).get("rows"):
        peers(found["peers"]["rows"], directory / "peers.svg")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def throughput(native: Row, path: Path) -> None:
    """Bars by message size, class and replicas; and the effect of batches, producers and queues on
    the rate."""
    from matplotlib import pyplot

    varied = [key for key in ("batches", "producers", "queues") if native.get(key)]
    figure, axes = pyplot.subplots(
        1,
        1 + len(varied),
        figsize=(4 + 2.6 * len(varied), 3.2),
        layout="constrained",
        squeeze=False,
    )
    rows = native["throughput"]
    names = [f"{row['body_bytes']:,} B, {row['replicas']} × {row['class']}" for row in rows]
    colours = [OURS if row["class"] == "durable" else OTHERS for row in rows]
    bars = axes[0][0].barh(names, [row["payload_mib_per_s"] for row in rows], color=colours)
    axes[0][0].bar_label(bars, [f"{row['messages_per_s']:,.0f}/s" for row in rows], padding=3)
    axes[0][0].invert_yaxis()
    axes[0][0].margins(x=0.35)
    axes[0][0].set_title("payload, MiB/s (messages/s)", fontsize=9)
    for axis, key in zip(axes[0][1:], varied, strict=True):
        what = {"batches": "batch"}.get(key, key)
        axis.plot(
            [row[what] for row in native[key]],
            [row["messages_per_s"] for row in native[key]],
            "o-",
            color=OURS,
        )
        axis.set_xscale("log")
        axis.set_xticks(
            [row[what] for row in native[key]], [f"{row[what]:,}" for row in native[key]]
        )
        axis.minorticks_off()
        axis.set_ylim(0, 1.15 * max(row["messages_per_s"] for row in native[key]))
        axis.set_title(
            {"batches": "messages in a frame", "producers": "producers", "queues": "queues"}[key]
            + ": messages/s",
            fontsize=9,
        )
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def latency(rows: Sequence[Row], path: Path) -> None:
    """One curve per load, by percentile on a scale of nines; durable and memory side by side."""
    from matplotlib import pyplot

    classes = sorted({row["class"] for row in rows})
    sizes = sorted({row["body_bytes"] for row in rows})
    size = (5 * len(classes), 2.8 * len(sizes))
    figure, axes = pyplot.subplots(
        len(sizes), len(classes), figsize=size, layout="constrained", squeeze=False, sharey="row"
    )
    for down, body_bytes in enumerate(sizes):
        for across, kind in enumerate(classes):
            axis = axes[down][across]
            for row in rows:
                if (row["class"], row["body_bytes"]) != (kind, body_bytes):
                    continue
                times = [row[f"p{percent:g}_ms"] for percent in CURVE]
                shade, label = 0.25 + 0.75 * row["part"], f"{row['messages_per_s']:,.0f}/s"
                axis.plot(
                    [100 / (100 - percent) for percent in CURVE],
                    times,
                    "o-",
                    color=OURS,
                    alpha=shade,
                    label=label,
                )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(
                [100 / (100 - percent) for percent in CURVE],
                [f"{percent:g} %" for percent in CURVE],
            )
            axis.minorticks_off()
            axis.set_title(f"{kind}, {body_bytes:,} bytes: ms from the intended send", fontsize=9)
            axis.legend(frameon=False, fontsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def peers(rows: Sequence[Row], path: Path) -> None:
    """Rates by durability class; LedgerMQ's in colour."""
    from matplotlib import pyplot

    classes = sorted({row["durability_class"] for row in rows})
    heights = [sum(row["durability_class"] == kind for row in rows) for kind in classes]
    figure, axes = pyplot.subplots(
        len(classes),
        1,
        figsize=(9, 0.4 * sum(heights) + 0.7 * len(classes)),
        layout="constrained",
        squeeze=False,
        height_ratios=heights,
    )
    for (axis,), kind in zip(axes, classes, strict=True):
        chosen = sorted(
            (row for row in rows if row["durability_class"] == kind),
            key=lambda row: -row["messages_per_s"],
        )
        places = range(len(chosen))
        colours = [OURS if row["system"].startswith("LedgerMQ") else OTHERS for row in chosen]
        bars = axis.barh(places, [row["messages_per_s"] for row in chosen], color=colours)
        axis.set_yticks(
            places, [f"{row['system']}: {row['batching'].partition(', ')[0]}" for row in chosen]
        )
        axis.bar_label(bars, [f"{row['messages_per_s']:,.0f}" for row in chosen], padding=3)
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.set_xticks([])
        axis.set_title(f"messages/s, {kind}", fontsize=9, loc="left")
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    _save(figure, path)
