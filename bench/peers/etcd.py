"""etcd: three members, puts of new keys; fsync before acknowledge (its default), and without
fsync."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bench.peers import common
from bench.peers.common import Load, Processes, Row

VERSION = "v3.6.8"
CLIENTS, CONNECTIONS, PUTS_MIN = 1000, 16, 3000
CLASSES = (
    (False, common.DURABLE, "fsync before acknowledge, majority of 3 (default)"),
    (True, common.MEMORY, "page cache of a majority of 3 (unsafe-no-fsync)"),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    modules = [f"go.etcd.io/etcd/server/v3@{VERSION}", f"go.etcd.io/etcd/v3@{VERSION}"]
    packages = {
        "etcd": "go.etcd.io/etcd/server/v3",
        "benchmark": "go.etcd.io/etcd/v3/tools/benchmark",
    }
    programs = common.go_build("etcd", modules, packages)
    for no_fsync, durability_class, durability in CLASSES:
        with common.servers(directory) as processes:
            free = common.free_ports(6)
            names, ports, peer_ports = ("e1", "e2", "e3"), free[:3], free[3:]
            members = ",".join(
                f"{name}=http://127.0.0.1:{port}"
                for name, port in zip(names, peer_ports, strict=True)
            )
            for name, port, peer_port in zip(names, ports, peer_ports, strict=True):
                file, data = processes.directory / f"{name}.yaml", processes.directory / name
                values = {
                    "name": name,
                    "port": port,
                    "peer_port": peer_port,
                    "members": members,
                    "directory": data,
                }
                file.write_text(
                    common.configuration("etcd.yaml", no_fsync=str(no_fsync).lower(), **values)
                )
                processes.start(name, [str(programs / "etcd"), "--config-file", str(file)])
            for port in ports:
                common.wait_for(lambda port=port: common.listens(port), "an etcd member")  # type: ignore[misc]
            command = put_command(programs, ports, load)
            total = PUTS_MIN
            # The tool takes a number of puts, not a time: the rate of a short run gives the
            # warm-up's, and its rate the measurement's.
            for seconds in (load.warm_up_s, load.seconds):
                total = max(
                    PUTS_MIN, int(put(command, processes, total)["messages_per_s"] * seconds)
                )
            result, cpu = common.measured(
                processes, lambda command=command, total=total: put(command, processes, total)
            )  # type: ignore[misc]
            batching = f"single puts, {CLIENTS:,} clients on {CONNECTIONS} connections"
            client = f"etcd's benchmark tool {VERSION}, connected to the leader"
            yield Row(
                system="etcd",
                version=VERSION,
                durability_class=durability_class,
                durability=durability,
                client=client,
                batching=batching,
                result=result,
                body_bytes=load.body_bytes,
                server_cpu_us_a_message=cpu,
            )


def put_command(programs: Path, ports: list[int], load: Load) -> list[str]:
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    command = [
        str(programs / "benchmark"),
        "--endpoints",
        endpoints,
        "--target-leader",
        "--precise",
        "--clients",
        str(CLIENTS),
    ]
    command += [
        "--conns",
        str(CONNECTIONS),
        "put",
        "--val-size",
        str(load.body_bytes),
        "--key-space-size",
        "100000000",
    ]
    return [*command, "--sequential-keys"]


def put(command: list[str], processes: Processes, total: int) -> dict[str, float]:
    """`total` puts; the tool reports the rate and the latencies."""
    processes.check()
    text = common.output([*command, "--total", str(total)], 300)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    parts = {part: re.search(rf"^\s*{part}% in ([\d.]+) secs", text, re.M) for part in ("50", "99")}
    if rate is None or None in parts.values() or "Error distribution" in text:
        raise RuntimeError(f"the benchmark tool reports no figures or errors:\n{text[-2000:]}")
    times = {f"p{part}_ms": float(found[1]) * 1000 for part, found in parts.items() if found}
    return {"messages_per_s": float(rate[1]), "total": float(total), **times}


if __name__ == "__main__":
    common.main("etcd", rows)
