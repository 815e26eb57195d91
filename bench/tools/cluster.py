"""Three `serve` processes with the shipped defaults on loopback, and their figures from the
kernel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc

from bench.tools import report
from ledgermq.node.process.local import LocalCluster, config_of, free_ports
from ledgermq.proto import admin_pb2, admin_pb2_grpc

GROUP = "g1"
ROOT = Path(__file__).parent.parent.parent
CHANNEL = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
ERROR_CHARACTERS = 400
MOVES_MAX = 3
"""How often a load is repeated because the leader changed."""
TICKS = os.sysconf("SC_CLK_TCK")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def running(
    directory: Path,
    extra: Mapping[str, Any] | None = None,
    *,
    nodes: int = 3,
    kind: type[LocalCluster] = LocalCluster,
    group: Mapping[str, Any] | None = None,
    groups: Sequence[Mapping[str, Any]] | None = None,
) -> Iterator[LocalCluster]:
    """A ready cluster as made by `ledgermq up`, with `extra` sections in its configuration and
    settings of its one `group`, or several `groups` with names; its processes are ended
    afterwards."""
    cluster = kind.prepare(
        directory / "cluster",
        nodes=nodes,
        extra=extra,
        groups=groups or [{"name": GROUP, **(group or {})}],
    )
    cluster.start_all()
    try:
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


def defaults(cluster: LocalCluster) -> dict[str, Any]:
    """The effective settings, as the nodes read them."""
    config = config_of(cluster, next(iter(cluster.nodes)))
    groups = [group.model_dump(mode="json") for group in config.cluster.groups]
    sections = {
        name: getattr(config, name).model_dump(mode="json")
        for name in ("raft", "delivery", "limits", "flush")
    }
    return {
        "nodes": len(cluster.nodes),
        "groups": groups,
        "log_level": config.log_level,
        **sections,
    }


def address(cluster: LocalCluster, node: str) -> str:
    where = cluster.nodes[node]
    return f"{where.host}:{where.client_port}"


def free_port() -> int:
    """A free loopback port."""
    return int(free_ports(1)[0].client_port)


def admin(
    cluster: LocalCluster, node: str, method: str, request: Any, timeout_s: float = 10
) -> Any:
    with grpc.insecure_channel(address(cluster, node), options=CHANNEL) as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        return getattr(stub, method)(request, timeout=timeout_s)


def create_topic(cluster: LocalCluster, name: str, queues: int = 8) -> None:
    request = admin_pb2.CreateTopicRequest(
        topic=admin_pb2.Name(name=name), kind="normal", queues=queues, permission="rw"
    )
    answer = admin(cluster, next(iter(cluster.nodes)), "CreateTopic", request)
    if answer.status.code != 20000:
        raise RuntimeError(f"topic {name} was not created: {answer.status.message}")


def leader(cluster: LocalCluster, timeout_s: float = 30) -> str:
    """The leading node, according to any node that serves; a node that was just started does not
    serve yet."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        for node, child in cluster.children.items():
            if child.exit_code is not None:
                continue
            try:
                status = admin(cluster, node, "ClusterStatus", admin_pb2.ClusterStatusRequest())
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                continue
            for info in status.groups:
                if (
                    info.group == GROUP
                    and info.HasField("leader")
                    and cluster.children[info.leader].exit_code is None
                ):
                    return cast(str, info.leader)
        time.sleep(0.05)
    raise RuntimeError(f"no leader within {timeout_s:g} s")


def follower(cluster: LocalCluster) -> str:
    leads = leader(cluster)
    return next(node for node in cluster.nodes if node != leads)


def program(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"bench.{module}", *arguments]


def load(what: str, target: str, topic: str, *more: str, timeout_s: float = 300) -> dict[str, Any]:
    """Run the load generator in its own process; returns its result."""
    command = program("tools.load", what, "--target", target, "--topic", topic, *more)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, timeout=timeout_s, check=True, cwd=ROOT, text=True
    )
    return cast("dict[str, Any]", json.loads(done.stdout))


def native_load(what: str, target: str, topic: str, **options: Any) -> dict[str, Any]:
    """Run the load generator of native streams in its own process; returns its result. Options are
    those of `bench.streams.native_load`."""
    command = native_command(what, target, topic, **options)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(
            f"{what} {options} ended with {done.returncode}:"
            f" {' '.join(done.stderr[-ERROR_CHARACTERS:].split())}"
        )
    return report.parsed(done.stdout)


def led_load(cluster: LocalCluster, what: str, topic: str, **options: Any) -> dict[str, Any]:
    """`native_load` at the leader. If it is redirected because the leader changed, it is repeated
    at the next one, and the result contains the number of repetitions (`moved`); this happens on a
    busy machine."""
    for moved in range(MOVES_MAX + 1):
        try:
            return {
                **native_load(what, address(cluster, leader(cluster)), topic, **options),
                "moved": moved,
            }
        except RuntimeError as error:
            if "redirect" not in str(error) or moved == MOVES_MAX:
                raise
    raise AssertionError


def native_command(what: str, target: str, topic: str, **options: Any) -> list[str]:
    words = []
    for name, value in options.items():
        words += (
            [f"--{name.replace('_', '-')}"]
            if value is True
            else [f"--{name.replace('_', '-')}", str(value)]
        )
    return program("streams.native_load", what, "--target", target, "--topic", topic, *words)


def fill(cluster: LocalCluster, topic: str, messages: int) -> dict[str, Any]:
    """Store many messages of 100 bytes quickly."""
    size = ("--limit", str(messages), "--batch", "500", "--window", "4")
    return load("fill", address(cluster, leader(cluster)), topic, *size, timeout_s=900)


# What the kernel knows


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def pids(cluster: LocalCluster) -> dict[str, int]:
    return {
        node: child.process.pid
        for node, child in cluster.children.items()
        if child.exit_code is None
    }


def all_cpu_s(cluster: LocalCluster) -> dict[str, float]:
    return {node: cpu_s(pid) for node, pid in pids(cluster).items()}


def status_kib(pid: int, key: str) -> int:
    """A size from /proc/PID/status, such as RssAnon."""
    return int(re.findall(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[0])


def wake_ups(pid: int) -> int:
    """How often the threads of a process gave up the processor voluntarily."""
    return sum(
        int(
            re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[0]
        )
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


def metric_sums(cluster: LocalCluster, node: str, name: str) -> tuple[float, float]:
    """(count, sum) of a histogram of a node, over all its labels."""
    where = cluster.nodes[node]
    with _OPENER.open(f"http://{where.host}:{where.http_port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return tuple(
        sum(map(float, re.findall(rf"^{name}_{part}(?:{{.*}})? (\S+)", text, re.M)))
        for part in ("count", "sum")
    )  # type: ignore[return-value]


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.05)
