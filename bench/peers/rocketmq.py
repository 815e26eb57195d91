"""Apache RocketMQ from its published packages: three brokers of a DLedger group, and a master with
two slaves, each with a proxy.

Neither syncs on a majority before it acknowledges: DLedger answers from the page cache of a
majority and flushes every 10 ms, whatever `flushDiskType` says; a master can sync itself, but its
slaves only need to have received the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.peers import common
from bench.peers.common import Load, Processes, Row

VERSION, CLIENT_VERSION = "5.4.0", "5.2.0"
ARTIFACTS = [
    f"org.apache.rocketmq:rocketmq-{part}:{VERSION}"
    for part in ("broker", "namesrv", "client", "tools", "proxy")
]
OFFICIAL_CLIENT = f"org.apache.rocketmq:rocketmq-client-java:{CLIENT_VERSION}"
HEAP = ("-Xms768m", "-Xmx768m", "-XX:+UseG1GC")
OPEN = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
TOPIC = "bench"
WINDOW, BATCH, BATCH_WINDOW = 256, 100, 32
"""A broker rejects requests that wait for more than 200 ms, so more in flight lowers its rate."""
MODES = (
    (
        "dledger",
        "ASYNC_FLUSH",
        1,
        common.MEMORY,
        "page cache of a majority of 3, flushed every 10 ms (DLedger, default)",
    ),
    (
        "replicated",
        "SYNC_FLUSH",
        2,
        common.WEAKER,
        "fsync on the master, page cache of one of two slaves (SYNC_MASTER, SYNC_FLUSH)",
    ),
    (
        "replicated",
        "ASYNC_FLUSH",
        1,
        common.WEAKER,
        "page cache of the master alone (ASYNC_MASTER, default)",
    ),
)


def rows(directory: Path, load: Load) -> Iterator[Row]:
    java, class_path = common.tool("java"), common.jars("rocketmq", ARTIFACTS)
    official = common.jars("rocketmq-client-java", [OFFICIAL_CLIENT])
    failures = []
    for mode, flush, in_sync, durability_class, durability in MODES:
        system = (
            "Apache RocketMQ, DLedger"
            if mode == "dledger"
            else "Apache RocketMQ, master and slaves"
        )
        try:
            with common.servers(directory) as processes:
                command = [
                    java,
                    *HEAP,
                    *OPEN,
                    "-cp",
                    class_path,
                    f"-Duser.home={processes.directory}",
                ]
                names_port, proxy_port = start(processes, command, mode, flush, in_sync)
                for client, kind, batching, send in clients(
                    class_path, official, names_port, proxy_port, load
                ):
                    try:
                        result, cpu = common.measured(processes, send)
                    except RuntimeError as failure:
                        # The other rows are valid, and are measured.
                        failures.append(f"{mode}, {flush}, {batching}: {failure}")
                        continue
                    notes = f"{result['refused']:,.0f} sends refused" if result["refused"] else ""
                    of_client = (client, batching, result, load.body_bytes, cpu)
                    yield Row(
                        system,
                        VERSION,
                        durability_class,
                        durability,
                        *of_client,
                        notes=notes,
                        kind=kind,
                    )
        except RuntimeError as failure:
            failures.append(f"{mode}, {flush}: {failure}")
    if failures:
        raise common.Skip("; ".join(failures))


def clients(
    class_path: str, official: str, names_port: int, proxy_port: int, load: Load
) -> Iterator[tuple[str, str, str, Callable[[], dict[str, float]]]]:
    """(client, kind, batching, measurement): the client of the brokers' own protocol, and the
    official gRPC client through the proxy."""
    # The clients wait 150 s for the first acknowledgement and 60 s for the last ones.
    within_s = load.seconds + load.warm_up_s + 270
    times = (load.seconds, load.warm_up_s)
    for batch, window in ((1, WINDOW), (BATCH, BATCH_WINDOW)):
        arguments = (names_port, load.body_bytes, batch, window, *times)
        single = batch == 1
        yield (
            f"rocketmq-client {VERSION}, asynchronous",
            common.SINGLES if single else common.BATCHES,
            f"single messages, {window:,} in flight"
            if single
            else f"batches of {batch}, {window} batches in flight",
            lambda arguments=arguments: common.java_client(
                "RocketPublish.java", class_path, arguments, within_s
            ),  # type: ignore[misc]
        )
    through = (f"127.0.0.1:{proxy_port}", TOPIC, load.body_bytes, WINDOW, *times)
    yield (
        f"rocketmq-client-java {CLIENT_VERSION}, asynchronous, through the proxy",
        common.OFFICIAL,
        f"single messages through the proxy, {WINDOW:,} in flight",
        lambda: common.java_client("ClientPublish.java", official, through, within_s),
    )


def start(
    processes: Processes, command: Sequence[str], mode: str, flush: str, in_sync: int
) -> tuple[int, int]:
    """A name server, three brokers and a proxy; the ports of the name server and of the proxy."""
    home = processes.directory
    environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}
    # A broker also takes the port two below its own.
    names_port, proxy_port, *ports = (port + 2 for port in common.free_ports(5, 4))
    inner_ports = common.free_ports(12, 4)[8:]
    file = home / "names.conf"
    file.write_text(f"listenPort={names_port}\n")
    processes.start(
        "names",
        [*command, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(file)],
        environment,
    )
    common.wait_for(lambda: common.listens(names_port), "the name server")
    members = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(inner_ports[:3]))
    for number, port in enumerate(ports):
        values: dict[str, object] = {
            "port": port,
            "names_port": names_port,
            "directory": home / f"store-{number}",
            "flush": flush,
        }
        if mode == "dledger":
            values |= {"members": members, "name": f"n{number}"}
        else:
            role = "SLAVE" if number else "SYNC_MASTER" if in_sync > 1 else "ASYNC_MASTER"
            values |= {
                "number": number,
                "role": role,
                "ha_port": inner_ports[number],
                "in_sync": in_sync,
            }
        file = home / f"broker-{number}.conf"
        file.write_text(common.configuration(f"rocketmq-{mode}.conf", **values))
        processes.start(
            f"broker-{number}",
            [*command, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(file)],
            environment,
        )
    for port in ports:
        common.wait_for(lambda port=port: common.listens(port), "a broker")  # type: ignore[misc]
    file = home / "proxy.json"
    file.write_text(
        common.configuration(
            "rocketmq-proxy.json",
            port=proxy_port,
            names_port=names_port,
            remoting_port=inner_ports[3],
        )
    )
    processes.start(
        "proxy",
        [*command, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(file), "-pm", "cluster"],
        environment,
    )
    common.wait_for(lambda: common.listens(proxy_port), "the proxy")
    return names_port, proxy_port


if __name__ == "__main__":
    common.main("Apache RocketMQ", rows)
