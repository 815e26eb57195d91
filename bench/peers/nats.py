"""NATS JetStream: three servers, a stream of three replicas in files; fsync before acknowledge, and
its default of every two minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.peers import common
from bench.peers.common import Load, Row

SERVER, LIBRARY = "v2.15.2", "v1.55.0"
WINDOW = 4000
CLASSES = (
    ("always", common.DURABLE, "fsync before acknowledge, majority of 3 (sync_interval: always)"),
    ("2m", common.MEMORY, "page cache of a majority of 3, fsync every 2 minutes (default)"),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    modules = [
        f"github.com/nats-io/nats-server/v2@{SERVER}",
        f"github.com/nats-io/nats.go@{LIBRARY}",
    ]
    programs = common.go_build(
        "nats", modules, {"nats-server": "github.com/nats-io/nats-server/v2"}
    )
    publish = common.go_client("nats_publish.go", programs)
    for sync, durability_class, durability in CLASSES:
        with common.servers(directory) as processes:
            free = common.free_ports(6)
            names, ports, cluster_ports = ("n1", "n2", "n3"), free[:3], free[3:]
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster_ports)
            for name, port, cluster_port in zip(names, ports, cluster_ports, strict=True):
                file, data = processes.directory / f"{name}.conf", processes.directory / name
                values = {
                    "name": name,
                    "port": port,
                    "cluster_port": cluster_port,
                    "routes": routes,
                    "sync": sync,
                    "directory": data,
                }
                file.write_text(common.configuration("nats.conf", **values))
                processes.start(name, [str(programs / "nats-server"), "-c", str(file)])
            for port in ports:
                common.wait_for(lambda port=port: common.listens(port), "a NATS server")  # type: ignore[misc]
            urls = ",".join(
                f"{name}=nats://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
            )
            command = [
                str(publish),
                "-servers",
                urls,
                "-size",
                str(load.body_bytes),
                "-window",
                str(WINDOW),
            ]
            command += ["-seconds", str(load.seconds), "-warm-up", str(load.warm_up_s)]
            result, cpu = common.measured(
                processes,
                lambda command=command: common.client(command, load.seconds + load.warm_up_s + 120),  # type: ignore[misc]
            )
            batching = f"single messages, {WINDOW:,} in flight"
            client = f"nats.go {LIBRARY}, PublishAsync, connected to the stream's leader"
            yield Row(
                system="NATS JetStream",
                version=SERVER,
                durability_class=durability_class,
                durability=durability,
                client=client,
                batching=batching,
                result=result,
                body_bytes=load.body_bytes,
                server_cpu_us_a_message=cpu,
            )


if __name__ == "__main__":
    common.main("NATS JetStream", rows)
