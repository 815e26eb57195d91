"""Other systems under the same load on the same machine, one after the other; every row names the
durability class.

Each peer has its own script (`python -m bench.peers.NAME`), which downloads ordinary packages into
a cache outside the repository, starts three servers on loopback with the configurations in `conf/`,
drives them with the peer's own benchmark tool or client (`clients/`), stops them, and prints one
JSON document; if a peer cannot run, the reason. LedgerMQ's rows come from the same machine in the
same run, from `bench.streams.native_load` and `bench.tools.load`. The repository contains only our
own configurations and clients for peers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import common
from bench.tools import report

NAME, RUNS, DURABLE = "peers", 1, True
PEERS = ("ledgermq", "nats", "rabbitmq", "etcd", "pysyncobj", "rocketmq")
BODY_BYTES = 100
SECONDS, WARM_UP_S = 10.0, 30.0
"""Below 30 s of warm-up, the compilers of the systems that run on the JVM are part of the
figures."""
SHORT = {"seconds": 3.0, "warm_up_s": 2.0}
"""Enough to see that every peer starts, takes load and ends."""
WITHIN_S = 1800.0
"""Time limit of one peer, including its installation."""


def run(
    directory: Path,
    seconds: float = SECONDS,
    peers: tuple[str, ...] = PEERS,
    warm_up_s: float = WARM_UP_S,
) -> dict[str, Any]:
    """Rows by system; `skipped`: reasons by peer."""
    found: dict[str, Any] = {
        "body_bytes": BODY_BYTES,
        "seconds": seconds,
        "warm_up_s": warm_up_s,
        "rows": [],
        "skipped": {},
    }
    for peer in peers:
        document = one(peer, directory, seconds, warm_up_s)
        found["rows"] += document["rows"]
        if document["skipped"]:
            found["skipped"][document["system"]] = document["skipped"]
    return found


def one(
    peer: str, directory: Path, seconds: float, warm_up_s: float, within_s: float = WITHIN_S
) -> dict[str, Any]:
    """The output of a peer's script; if it fails, the peer counts as skipped, with the reason."""
    report.say(f"peers: {peer}")
    command = [
        sys.executable,
        "-m",
        f"bench.peers.{peer}",
        "--directory",
        str(directory),
        "--body-bytes",
        str(BODY_BYTES),
    ]
    command += ["--seconds", str(seconds), "--warm-up-s", str(warm_up_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        try:
            told, _ = script.communicate(timeout=within_s)
            reason = f"its script ended with {script.returncode}" if script.returncode else ""
        except subprocess.TimeoutExpired:
            # It ends its servers first, which a kill would leave behind.
            script.terminate()
            script.communicate()
            reason = f"its script did not end within {within_s:g} s"
    if reason:
        return {"system": peer, "rows": [], "skipped": reason}
    document: dict[str, Any] = json.loads(told)
    return document


def table(result: dict[str, Any]) -> str:
    """One row per figure, the fastest of each durability class first; the ratios; then the skipped
    peers, with reasons."""
    titles = (
        "system",
        "durability",
        "replicas",
        "message",
        "batching",
        "messages/s",
        "p50 / p99",
        "servers, µs a message",
        "client",
    )
    lines = [
        f"Every load ran for {result['warm_up_s']:g} s before the {result['seconds']:g} s that were"
        " measured.\n"
    ]
    lines += ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in sorted(
        result["rows"], key=lambda row: (row["durability_class"], -row["messages_per_s"])
    ):
        cpu = row["server_cpu_us_a_message"]
        cells = (
            f"{row['system']} {row['version']}",
            f"**{row['durability_class']}**: {row['durability']}",
            str(row["replicas"]),
            f"{row['body_bytes']} bytes",
            row["batching"],
            f"{row['messages_per_s']:,.0f}",
            f"{_ms(row['p50_ms'])} / {_ms(row['p99_ms'])} ms",
            "–" if cpu is None else f"{cpu:,.1f}",
            row["client"] + (f"; {row['notes']}" if row["notes"] else ""),
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += _ratio_table(ratios(result["rows"]))
    lines += [f"\n{system} was skipped: {reason}." for system, reason in result["skipped"].items()]
    return "\n".join(lines)


def ratios(
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[float, Mapping[str, Any], Mapping[str, Any]]]:
    """(rate of LedgerMQ ÷ rate of the peer, LedgerMQ's row, the peer's row), the lowest first:
    those that LedgerMQ loses.

    Each row of a peer is compared with LedgerMQ's fastest row of its durability class and kind; one
    that keeps a message on fewer replicas than LedgerMQ's weakest class, with that class. A row
    without such a counterpart has no ratio.
    """
    found = []
    for row in rows:
        kept = (
            common.MEMORY if row["durability_class"] == common.WEAKER else row["durability_class"]
        )
        same = [
            one
            for one in rows
            if _is_ours(one) and (one["durability_class"], one["kind"]) == (kept, row["kind"])
        ]
        if same and not _is_ours(row):
            best = max(same, key=lambda one: one["messages_per_s"])
            found.append((best["messages_per_s"] / row["messages_per_s"], best, row))
    return sorted(found, key=lambda ratio: ratio[0])


def _is_ours(row: Mapping[str, Any]) -> bool:
    return str(row["system"]).startswith("LedgerMQ")


def _ratio_table(found: Sequence[tuple[float, Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    if not found:
        return []
    titles = (
        "LedgerMQ ÷ other system",
        "other system",
        "its durability",
        "sends",
        "messages/s",
        "LedgerMQ, messages/s",
    )
    lines = ["\nRatios of the rates above, lowest first: below 1, LedgerMQ is slower.\n"]
    lines += ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for ratio, ours, other in found:
        kept = other["durability_class"] + (
            f" (LedgerMQ: {ours['durability_class']})"
            if other["durability_class"] == common.WEAKER
            else ""
        )
        rates = (f"{other['messages_per_s']:,.0f}", f"{ours['messages_per_s']:,.0f}")
        lines.append(
            "| "
            + " | ".join((f"**{ratio:.2g}**", other["system"], kept, other["kind"], *rates))
            + " |"
        )
    return lines


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
