"""RabbitMQ: three nodes; a quorum queue, whose log is synced before a confirm, and a stream, which
is never synced.

Debian's package and its dependencies are unpacked into the cache, not installed: only this script
starts servers.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from bench.peers import common
from bench.peers.common import Load, Processes, Row, Skip

PERF_TEST, STREAM_CLIENT = "com.rabbitmq:perf-test:2.22.1", "com.rabbitmq:stream-client:0.15.0"
CONFIRM, PRODUCERS = 1000, 4
STREAM_BATCH, STREAM_WINDOW = 500, 10_000
COMPACT = re.compile(
    r"confirmed: ([\d.]+) msg/s.*?min/median/75th/95th/99th confirm latency:"
    r" [\d.]+/([\d.]+)/[\d.]+/[\d.]+/([\d.]+) (µs|ms)",
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    root, version = unpacked()
    class_path = common.jars("rabbitmq-clients", [PERF_TEST, STREAM_CLIENT])
    with common.servers(directory) as processes:
        ports, _ = start(processes, root)
        result, cpu = common.measured(processes, lambda: quorum(class_path, ports, load))
        durability = "fdatasync before confirm, majority of 3 (quorum queue, default)"
        batching = f"single messages, {PRODUCERS} producers with {CONFIRM:,} in flight each"
        client = "perf-test " + PERF_TEST.rpartition(":")[2]
        yield Row(
            system="RabbitMQ quorum queue",
            version=version,
            durability_class=common.DURABLE,
            durability=durability,
            client=client,
            batching=batching,
            result=result,
            body_bytes=load.body_bytes,
            server_cpu_us_a_message=cpu,
        )
    with common.servers(directory) as processes:
        _, stream_ports = start(processes, root)
        arguments = (
            stream_ports[0],
            load.body_bytes,
            STREAM_BATCH,
            STREAM_WINDOW,
            load.seconds,
            load.warm_up_s,
        )
        until_s = load.seconds + load.warm_up_s + 120
        result, cpu = common.measured(
            processes,
            lambda: common.java_client("StreamPublish.java", class_path, arguments, until_s),
        )
        durability = "page cache of a majority of 3, never synced (stream, default)"
        batching = f"batches of {STREAM_BATCH}, {STREAM_WINDOW:,} in flight"
        client = "stream-client " + STREAM_CLIENT.rpartition(":")[2]
        of_client = (client, batching, result, load.body_bytes, cpu)
        yield Row(
            "RabbitMQ stream", version, common.MEMORY, durability, *of_client, kind=common.BATCHES
        )


def unpacked() -> tuple[Path, str]:
    """The root of an unpacked rabbitmq-server with its Erlang, and its version."""
    directory = common.CACHE / "rabbitmq-server"
    root, archives = directory / "root", directory / "archives"
    if not list(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")):
        for name in ("apt-get", "dpkg"):
            common.tool(name)
        (archives / "partial").mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1"]
        command = [
            "apt-get",
            "install",
            "-y",
            "--download-only",
            "--no-install-recommends",
            *options,
            "rabbitmq-server",
        ]
        common.install("rabbitmq-server", command, directory)
        for archive in sorted(archives.glob("*.deb")):
            common.install(archive.name, ["dpkg", "-x", str(archive), str(root)], directory)
        # Its start script contains the path where Debian installs it.
        erl = root / "usr" / "lib" / "erlang" / "bin" / "erl"
        erl.write_text(
            erl.read_text().replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={erl.parent.parent}")
        )
    found = list(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))
    if not found:
        raise Skip("rabbitmq-server is installed elsewhere or its package holds no server")
    return root, found[0].name.partition("-")[2]


def start(processes: Processes, root: Path) -> tuple[list[int], list[int]]:
    """Three nodes in one cluster; their AMQP and stream ports."""
    home = processes.directory
    free = common.free_ports(10)
    epmd_port, ports, stream_ports, dist_ports = free[0], free[1:4], free[4:7], free[7:]
    erlang = root / "usr" / "lib" / "erlang"
    scripts = next(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"))
    (home / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    (home / "rabbitmq-env.conf").write_text("")
    cookie = home / ".erlang.cookie"
    cookie.write_text("LEDGERMQBENCH")
    cookie.chmod(0o400)
    shared = {
        "HOME": str(home),
        "PATH": f"{erlang / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
    }
    # Erlang would start its own epmd, which keeps running; this one is ended with the nodes.
    epmd = next(erlang.glob("erts-*/bin/epmd"))
    processes.start("epmd", [str(epmd), "-port", str(epmd_port), "-address", "127.0.0.1"], shared)
    common.wait_for(lambda: common.listens(epmd_port), "epmd")
    for number in range(3):
        name = f"r{number + 1}"
        file = home / f"{name}.conf"
        file.write_text(
            common.configuration(
                "rabbitmq.conf", port=ports[number], stream_port=stream_ports[number]
            )
        )
        own = {
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_CONFIG_FILE": str(file),
            "RABBITMQ_MNESIA_BASE": str(home / name),
            "RABBITMQ_LOG_BASE": str(home / name),
            "RABBITMQ_DIST_PORT": str(dist_ports[number]),
            "RABBITMQ_PID_FILE": str(home / f"{name}.pid"),
        }
        processes.start(name, [str(scripts / "rabbitmq-server")], {**shared, **own})
        # One after the other, because nodes that form a cluster at the same moment may form two.
        common.wait_for(
            lambda number=number: _ready(processes, ports[number], stream_ports[number]),
            f"node {name}",
        )  # type: ignore[misc]
    status = common.output(
        [
            str(scripts / "rabbitmqctl"),
            "-n",
            "r1@localhost",
            "cluster_status",
            "--formatter",
            "json",
        ],
        60,
        shared,
    )
    if len(json.loads(status)["running_nodes"]) != 3:
        raise RuntimeError(f"the nodes form no cluster of three: {status}")
    return ports, stream_ports


def _ready(processes: Processes, *ports: int) -> bool:
    processes.check()
    return all(map(common.listens, ports))


def quorum(class_path: str, ports: list[int], load: Load) -> dict[str, float]:
    """perf-test prints one line per second: rates are averaged, latencies are the medians of its
    medians and of its 99th percentiles."""
    uris = ",".join(f"amqp://127.0.0.1:{port}" for port in ports)
    seconds = load.seconds + load.warm_up_s
    command = [
        common.tool("java"),
        "-cp",
        class_path,
        "com.rabbitmq.perf.PerfTest",
        "--uris",
        uris,
        "--quorum-queue",
        "--queue",
        "bench",
    ]
    command += [
        "--producers",
        str(PRODUCERS),
        "--consumers",
        "0",
        "--confirm",
        str(CONFIRM),
        "--size",
        str(load.body_bytes),
    ]
    text = common.output(
        [*command, "--time", str(round(seconds)), "--metrics-format", "default"], seconds + 120
    )
    every = COMPACT.findall(text)
    lines = every[round(load.warm_up_s) :]
    if len(lines) < 2:
        raise RuntimeError(f"perf-test reports no figures:\n{text[-2000:]}")
    scale = {"µs": 1000.0, "ms": 1.0}
    return {
        "messages_per_s": statistics.fmean(float(rate) for rate, *_ in lines),
        "p50_ms": statistics.median(float(median) / scale[unit] for _, median, _, unit in lines),
        "p99_ms": statistics.median(float(most) / scale[unit] for _, _, most, unit in lines),
        "total": sum(float(rate) for rate, *_ in every),
    }


if __name__ == "__main__":
    common.main("RabbitMQ", rows)
