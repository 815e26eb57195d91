"""Raft, HA push and HA pull compared: throughput, latency at equal rates, 2 ms between the nodes,
and fail-over, in one run.

All use the same flush class: an acknowledged message is on the disk of every node that must have
it. Native streams, three replicas, 100-byte messages, the same client. Every round measures all
kinds one after the other in rotating order, and ratios are taken within a round. `--publish`
(python -m bench.replication --publish) writes the last result to docs/benchmarks.md.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.streams import native_faults
from bench.tools import cluster as cl
from bench.tools import report

NAME, RUNS, DURABLE = "replication", 3, True
KINDS: Mapping[str, dict[str, Any]] = {
    "raft": {},
    "ha push, in-sync": {"replication": "ha", "ack": "in-sync", "min_in_sync": 2},
    "ha pull, in-sync": {
        "replication": "ha",
        "ack": "in-sync",
        "min_in_sync": 2,
        "transfer": "pull",
    },
    "ha push, async": {"replication": "ha", "ack": "async"},
    "ha pull, async": {"replication": "ha", "ack": "async", "transfer": "pull"},
}
SAFE = ("raft", "ha push, in-sync", "ha pull, in-sync")
"""Kinds whose acknowledgements survive the leader, so that the timed fail-over is also checked for
loss."""
BATCH, LATENCY_BATCH = 1000, 100
RATES = (1_000, 4_000, 8_000)
"""Messages per second, in frames of LATENCY_BATCH: the same for all kinds."""
KILLS, KILL_RATE = 5, 5_000
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- replication: begin -->", "<!-- replication: end -->"


@dataclass(frozen=True)
class Plan:
    """Times in seconds."""

    seconds: float = 6.0
    warm_up_s: float = 2.0
    kills: int = KILLS


_ROUND = [0]


def run(directory: Path, plan: Plan = Plan()) -> dict[str, Any]:
    """One round over all kinds; every round starts with another kind."""
    names = list(KINDS)
    turned = names[_ROUND[0] % len(names) :] + names[: _ROUND[0] % len(names)]
    _ROUND[0] += 1
    return {
        "plan": vars(plan),
        "kinds": {
            name: one(directory / name.replace(", ", "-").replace(" ", "-"), name, plan)
            for name in turned
        },
    }


def one(directory: Path, name: str, plan: Plan) -> dict[str, Any]:
    report.say(f"replication: {name}")
    group, times = KINDS[name], {"seconds": plan.seconds, "warm_up_s": plan.warm_up_s}
    found: dict[str, Any] = {}
    with cl.running(directory / "load", group=group) as cluster:
        cl.create_topic(cluster, "bench-rate")
        found["throughput"] = cl.led_load(cluster, "produce", "bench-rate", batch=BATCH, **times)
        options = {"batch": LATENCY_BATCH, **times}
        found["latency"] = [
            {"rate": rate, **cl.led_load(cluster, "produce", "bench-rate", rate=rate, **options)}
            for rate in RATES
        ]
    found["delay"] = native_faults.delayed(directory / "delay", plan.seconds, plan.warm_up_s, group)
    if name in SAFE:
        found["failover"] = native_faults.killed(directory / "kill", plan.kills, group, KILL_RATE)
    return found


def table(result: Mapping[str, Any]) -> str:
    """The result as text lines."""
    return page([result])


def page(rounds: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown: medians over the rounds, ratios to Raft within each."""
    heads = [f"p50 / p99 at {rate:,}/s" for rate in RATES]
    columns = [
        "",
        "messages/s",
        "to Raft",
        *heads,
        "2 ms between nodes",
        "fail-over, median (most)",
    ]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name in KINDS:
        found = [entry["kinds"][name] for entry in rounds]
        rate = statistics.median(throughput(entry, name) for entry in rounds)
        ratio = statistics.median(
            throughput(entry, name) / throughput(entry, "raft") for entry in rounds
        )
        waits = []
        for at in range(len(RATES)):
            p50, p99 = (
                statistics.median(one_["latency"][at][key] for one_ in found)
                for key in ("p50_ms", "p99_ms")
            )
            waits.append(f"{p50:,.1f} / {p99:,.0f} ms")
        delay = statistics.median(one_["delay"]["rate_ratio"] for one_ in found)
        silences = [
            value
            for one_ in found
            if "failover" in one_
            for value in one_["failover"]["silence_s"]["all"]
        ]
        gap = (
            f"{statistics.median(silences):.2f} s ({max(silences):.2f} s)"
            if silences
            else "not timed: the last messages may be lost"
        )
        lines.append(
            f"| {name} | {rate:,.0f} | {ratio:.2f} | {' | '.join(waits)} | × {delay:.2f} | {gap} |"
        )
    return "\n".join(lines)


def throughput(entry: Mapping[str, Any], name: str) -> float:
    return float(entry["kinds"][name]["throughput"]["messages_per_s"])


def plot(rounds: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Throughput as bars, latency by rate as lines; equal figures give equal bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ledgermq", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, (bars, lines) = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    names = list(KINDS)
    rates = [statistics.median(throughput(entry, name) for entry in rounds) for name in names]
    drawn = bars.barh(
        names, rates, color=["#1f6f8b" if name == "raft" else "#b8c4cc" for name in names]
    )
    bars.bar_label(drawn, [f"{rate:,.0f}" for rate in rates], padding=3)
    bars.invert_yaxis()
    bars.margins(x=0.25)
    bars.set_title("messages/s, frames of 1,000", fontsize=9)
    for name in names:
        values = [
            statistics.median(entry["kinds"][name]["latency"][at]["p50_ms"] for entry in rounds)
            for at in range(len(RATES))
        ]
        lines.plot(
            RATES, values, "o-" if "push" in name else "s--" if "pull" in name else "D-", label=name
        )
    lines.set_title("p50 in ms by messages/s, frames of 100", fontsize=9)
    lines.legend(frameon=False, fontsize=8)
    for axis in (bars, lines):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def publish(rounds: Sequence[Mapping[str, Any]], load: str) -> None:
    """Write table and plot of these rounds to the page, between its two marks."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    told = f"{'One round' if len(rounds) == 1 else f'Medians of {len(rounds)} rounds'}; {load}."
    PAGE.write_text(
        f"{before}{BEGIN}\n{page(rounds)}\n\n{told}\n\n![Raft, HA push and HA"
        f" pull](plots/replication.svg)\n{END}{after}"
    )
    plot(rounds, PAGE.parent / "plots" / "replication.svg")


if __name__ == "__main__":
    if sys.argv[1:] != ["--publish"]:
        sys.exit(
            "python -m bench replication measures; with --publish this writes the last result into"
            " docs/benchmarks.md"
        )
    last = json.loads((report.RESULTS / f"{NAME}.json").read_text())
    publish(
        last["all"],
        f"taken {last['taken']}, load average {last['machine']['load_average_before']} before",
    )
