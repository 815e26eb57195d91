"""PySyncObj: three processes that replicate an object, with its journal file and with memory only.
It has no mode that syncs before it acknowledges."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.peers import common
from bench.peers.common import Load, Processes, Row

VERSION = "0.3.17"
WINDOW = 10_000
"""It sends to its followers every 0.1 s: with fewer commands in flight only that timer would be
measured."""
CLASSES = (
    ("journal", common.MEMORY, "journal mapped into memory on a majority of 3, never synced"),
    ("memory", common.MEMORY, "memory of a majority of 3 (default: no journal)"),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    python = interpreter()
    for kind, durability_class, durability in CLASSES:
        with common.servers(directory) as processes:
            result = replicate(processes, python, kind, load)
            # The client is part of the leader's process, so the processor time of all three
            # includes the client's.
            cpu = round(result["cpu_s"] / result["total"] * 1e6, 1)
            batching, client = (
                f"single commands, {WINDOW:,} in flight",
                "PySyncObj itself, in the leader's process",
            )
            notes = "processor time includes the client's"
            yield Row(
                system="PySyncObj",
                version=VERSION,
                durability_class=durability_class,
                durability=durability,
                client=client,
                batching=batching,
                result=result,
                body_bytes=load.body_bytes,
                server_cpu_us_a_message=cpu,
                notes=notes,
            )


def interpreter() -> Path:
    directory = common.CACHE / "pysyncobj"
    python = directory / "bin" / "python"
    if not python.exists():
        common.install(
            "a virtual environment", [sys.executable, "-m", "venv", str(directory)], directory
        )
    if not list(directory.glob(f"lib/python*/site-packages/pysyncobj-{VERSION}.dist-info")):
        common.install(
            "pysyncobj",
            [str(python), "-m", "pip", "install", "-q", f"pysyncobj=={VERSION}"],
            directory,
        )
    return python


def replicate(processes: Processes, python: Path, kind: str, load: Load) -> dict[str, float]:
    """Three nodes; the leader generates the load and prints the result, the others print an empty
    line."""
    ports = common.free_ports(3)
    started: list[subprocess.Popen[str]] = []
    for number, port in enumerate(ports):
        others = [f"127.0.0.1:{other}" for other in ports if other != port]
        journal = str(processes.directory / f"journal-{number}") if kind == "journal" else "-"
        arguments = [
            f"127.0.0.1:{port}",
            ",".join(others),
            journal,
            load.body_bytes,
            WINDOW,
            load.seconds,
            load.warm_up_s,
        ]
        command = [str(python), str(common.CLIENTS / "pysyncobj_node.py"), *map(str, arguments)]
        started.append(
            processes.start(f"p{number}", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
    begun = processes.cpu_s()
    lines = []
    for one in started:
        assert one.stdout is not None
        lines.append(one.stdout.readline().strip())
    found = [line for line in lines if line]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} nodes led while the load lasted")
    result: dict[str, float] = json.loads(found[0])
    return {**result, "cpu_s": processes.cpu_s() - begun}


if __name__ == "__main__":
    common.main("PySyncObj", rows)
