"""Other systems under the same load on the same machine, one after the other; every row names the durability class.

Each peer has its own script (`python -m bench.peers.NAME`), which downloads ordinary packages into a cache outside the repository, starts
three servers on loopback with the configurations in `conf/`, drives them with the peer's own benchmark tool or client (`clients/`), stops
them, and prints one JSON document; if a peer cannot run, the reason. LedgerMQ's rows come from the same machine in the same run, from
`bench.native_load` and `bench.load`. The repository contains only our own configurations and clients for peers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import report

NAME, RUNS, DURABLE = "peers", 1, True
PEERS = ("ledgermq", "nats", "rabbitmq", "etcd", "pysyncobj", "rocketmq")
BODY_BYTES = 100
SECONDS, WARM_UP_S = 10.0, 3.0
WITHIN_S = 1800.0
"""Time limit of one peer, including its installation."""


def run(directory: Path, seconds: float = SECONDS, peers: tuple[str, ...] = PEERS) -> dict[str, Any]:
    """Rows by system; `skipped`: reasons by peer."""
    found: dict[str, Any] = {"body_bytes": BODY_BYTES, "seconds": seconds, "warm_up_s": WARM_UP_S, "rows": [], "skipped": {}}
    for peer in peers:
        document = one(peer, directory, seconds)
        found["rows"] += document["rows"]
        if document["skipped"]:
            found["skipped"][document["system"]] = document["skipped"]
    return found


def one(peer: str, directory: Path, seconds: float) -> dict[str, Any]:
    """The output of a peer's script; if it fails, the peer counts as skipped, with the reason."""
    report.say(f"peers: {peer}")
    command = [sys.executable, "-m", f"bench.peers.{peer}", "--directory", str(directory), "--body-bytes", str(BODY_BYTES)]
    command += ["--seconds", str(seconds), "--warm-up-s", str(WARM_UP_S)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        return {"system": peer, "rows": [], "skipped": f"its script ended with {done.returncode}"}
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def table(result: dict[str, Any]) -> str:
    """One row per figure, the fastest of each durability class first; then the skipped peers, with reasons."""
    titles = ("system", "durability", "replicas", "message", "batching", "messages/s", "p50 / p99", "servers, µs a message", "client")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in sorted(result["rows"], key=lambda row: (row["durability_class"], -row["messages_per_s"])):
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
    lines += [f"\n{system} was skipped: {reason}." for system, reason in result["skipped"].items()]
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
