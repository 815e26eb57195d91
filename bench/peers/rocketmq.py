"""Apache RocketMQ from its published packages: three brokers of a DLedger group, and a master with two slaves.

Neither syncs on a majority before it acknowledges: DLedger answers from the page cache of a majority and flushes every 10 ms, whatever
`flushDiskType` says; a master can sync itself, but its slaves only need to have received the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.peers import common
from bench.peers.common import Load, Processes, Row

VERSION = "5.3.3"
ARTIFACTS = [f"org.apache.rocketmq:rocketmq-{part}:{VERSION}" for part in ("broker", "namesrv", "client", "tools")]
HEAP = ("-Xms768m", "-Xmx768m", "-XX:+UseG1GC")
OPEN = ("--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED")
WINDOW, BATCH, BATCH_WINDOW = 256, 100, 32
"""A broker rejects requests that wait for more than 200 ms, so more in flight lowers its rate."""
WARM_UP_S = 10.0
"""Minimal warm-up: the first seconds measure the JVM's compiler."""
MODES = (
    ("dledger", "ASYNC_FLUSH", 1, common.MEMORY, "page cache of a majority of 3, flushed every 10 ms (DLedger, default)"),
    ("replicated", "SYNC_FLUSH", 2, common.WEAKER, "fsync on the master, page cache of one of two slaves (SYNC_MASTER, SYNC_FLUSH)"),
    ("replicated", "ASYNC_FLUSH", 1, common.WEAKER, "page cache of the master alone (ASYNC_MASTER, default)"),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    warm_up_s = max(load.warm_up_s, WARM_UP_S)
    # Its client waits 150 s for the first acknowledgement and 60 s for the last ones.
    within_s = load.seconds + warm_up_s + 270
    java, class_path = common.tool("java"), common.jars("rocketmq", ARTIFACTS)
    failures = []
    for mode, flush, in_sync, durability_class, durability in MODES:
        for batch, window in ((1, WINDOW), (BATCH, BATCH_WINDOW)):
            try:
                with common.servers(directory) as processes:
                    command = [java, *HEAP, *OPEN, "-cp", class_path, f"-Duser.home={processes.directory}"]
                    names_port = start(processes, command, mode, flush, in_sync)
                    arguments = (names_port, load.body_bytes, batch, window, load.seconds, warm_up_s)
                    result, cpu = common.measured(
                        processes,
                        lambda arguments=arguments: common.java_client("RocketPublish.java", class_path, arguments, within_s),  # type: ignore[misc]
                    )
            except RuntimeError as failure:
                # The other rows are valid, and are measured.
                failures.append(f"{mode}, {flush}, batches of {batch}: {failure}")
                continue
            batching = f"single messages, {window:,} in flight" if batch == 1 else f"batches of {batch}, {window} batches in flight"
            system = "Apache RocketMQ, DLedger" if mode == "dledger" else "Apache RocketMQ, master and slaves"
            client = f"rocketmq-client {VERSION}, asynchronous"
            notes = f"{result['refused']:,.0f} sends refused" if result["refused"] else ""
            yield Row(system, VERSION, durability_class, durability, client, batching, result, load.body_bytes, cpu, notes=notes)
    if failures:
        raise common.Skip("; ".join(failures))


def start(processes: Processes, command: Sequence[str], mode: str, flush: str, in_sync: int) -> int:
    """A name server and three brokers; the name server's port."""
    home = processes.directory
    environment = {"ROCKETMQ_HOME": str(home)}
    # A broker also takes the port two below its own.
    names_port, *ports = (port + 2 for port in common.free_ports(4, 4))
    inner_ports = common.free_ports(10, 4)[7:]
    file = home / "names.conf"
    file.write_text(f"listenPort={names_port}\n")
    processes.start("names", [*command, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(file)], environment)
    common.wait_for(lambda: common.listens(names_port), "the name server")
    members = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(inner_ports))
    for number, port in enumerate(ports):
        values: dict[str, object] = {"port": port, "names_port": names_port, "directory": home / f"store-{number}", "flush": flush}
        if mode == "dledger":
            values |= {"members": members, "name": f"n{number}"}
        else:
            role = "SLAVE" if number else "SYNC_MASTER" if in_sync > 1 else "ASYNC_MASTER"
            values |= {"number": number, "role": role, "ha_port": inner_ports[number], "in_sync": in_sync}
        file = home / f"broker-{number}.conf"
        file.write_text(common.configuration(f"rocketmq-{mode}.conf", **values))
        processes.start(f"broker-{number}", [*command, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(file)], environment)
    for port in ports:
        common.wait_for(lambda port=port: common.listens(port), "a broker")  # type: ignore[misc]
    return names_port


if __name__ == "__main__":
    common.main("Apache RocketMQ", rows)
