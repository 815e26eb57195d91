"""The official Python client, `send_async` with a window of 64: the cluster, and its ceiling with a
server that answers at once."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from ledgermq.node.process.local import free_ports

NAME, RUNS, DURABLE = "official", 3, True
TOPIC = "bench-official"
SECONDS = "8"


def run(directory: Path) -> dict[str, Any]:
    home = {**os.environ, "HOME": str(directory)}  # the client writes its log below HOME
    with empty_server() as (endpoint, _):
        ceiling = one(endpoint, home)
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        return {
            "window": 64,
            "body_bytes": 100,
            "all_three_endpoints": one(cluster.endpoints, home),
            "leader_only": one(cl.address(cluster, cl.leader(cluster)), home),
            "ceiling_empty_server": ceiling,
            "settings": cl.defaults(cluster),
        }


def one(endpoints: str, environment: dict[str, str]) -> dict[str, Any]:
    command = cl.program("tools.official_load", endpoints, TOPIC, SECONDS)
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        env=environment,
        timeout=120,
        check=True,
        text=True,
        cwd=cl.ROOT,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def empty_server() -> Iterator[tuple[str, int]]:
    """Endpoint and process id of a server that answers at once."""
    port = free_ports(1)[0].client_port
    command = cl.program("tools.empty_server", str(port))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cl.ROOT
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the empty server did not start")
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.communicate()
