"""Ten times the local limit through a cluster whose log lives in a store: leaders are killed, a
node loses its disk and is made again from the store, the store goes away and comes back; then
everything is read, audited and counted exactly, and disks kept to their limit."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster, free_ports
from tests.audit.spark_session import running_spark
from tests.cluster import (
    create_group,
    create_topic,
    http,
    leader,
    log_file_bases,
    running,
    target,
    wait_for,
    wipe,
)
from tests.contract.official import official, simple
from tests.e2e.command_line import CommandLine
from tests.tiered.s3_servers import BUCKET, Server, program, serving, tiered_settings
from tests.tiered.test_tiered_cluster import (
    BODY,
    FILE_BYTES,
    bodies,
    consume,
    metric,
    nothing_waits,
    read_all,
)

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(2400)]

LOCAL_FILES = 8
LOCAL_BYTES = LOCAL_FILES * FILE_BYTES
BATCH = 120
BATCH_FILES = BATCH * (BODY + 400) // FILE_BYTES + 1
TOTAL = 10 * LOCAL_BYTES // BODY // BATCH * BATCH + BATCH
KILLS, LOST, AWAY = (4, 12), 15, 18
"""Batches after which a leader is killed, a node loses its disk, and the store goes away."""
RETENTION: dict[str, Any] = {
    "hours": 0,
    "max_bytes": LOCAL_BYTES,
    "check_ms": 200,
    "reserve_bytes": "1MiB",
    "follower_hours": 0.01,
}
AWAY_BATCHES = 2
assert TOTAL * BODY >= 10 * LOCAL_BYTES and TOTAL // BATCH > AWAY + AWAY_BATCHES + 1


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("versitygw"))


class Watch:
    """The largest number of log files that each node ever had."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.most = dict.fromkeys(cluster.nodes, 0)
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for node in self.most:
                folder = self._cluster.data(node) / "g1" / f"dledger-{node}" / "data"
                # Files that are being installed replace others at once.
                count = (
                    sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0
                )
                self.most[node] = max(self.most[node], count)

    @contextmanager
    def running(self) -> Iterator[Watch]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()


def installed(cluster: LocalCluster, node: str, source: str) -> float:
    _, page = http(cluster, node, "/metrics")
    lines = [
        line
        for line in page.splitlines()
        if line.startswith("ledgermq_installed_bytes_total{") and f'source="{source}"' in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_log_that_outgrows_its_disks(tmp_path: Path, versitygw: Path) -> None:
    home, port = tmp_path / "store", free_ports(1)[0].client_port
    home.mkdir()
    extra = {"retention": RETENTION, "tiered": {**tiered_settings(home, port), "retry_ms": "500ms"}}
    with ExitStack() as ends, running(tmp_path, log_file_bytes=FILE_BYTES, extra=extra) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        client = ends.enter_context(official(cluster, tmp_path / "client"))
        for group in ("slow", "new"):
            create_group(cluster, group)
            simple(client, "t", name=group, group=group, await_s=3)
        slow: list[str] = []
        away = ends.enter_context(ExitStack())
        server: Server = away.enter_context(serving(versitygw, home, port))
        watch = ends.enter_context(Watch(cluster).running())
        for number in range(TOTAL // BATCH):
            assert (
                cli.send_lines("t", bodies(number * BATCH, BATCH), "--timeout", "60s")[
                    "acknowledged"
                ]
                == BATCH
            )
            slow += [] if number else consume(client, "slow", 40)
            if number in KILLS:
                node = leader(cluster)
                cluster.kill(node)
                cluster.start(node)
                cluster.wait_ready()
            elif number == LOST:
                lose_a_disk(cluster, cli)
            elif number == AWAY:
                away.close()
            elif number == AWAY + AWAY_BATCHES:
                # Every message was acknowledged, nothing was removed, and the nodes have said why.
                assert (
                    min(
                        metric(cluster, node, "ledgermq_tiered_waiting_bytes")
                        for node in cluster.nodes
                    )
                    >= FILE_BYTES
                )
                assert "not verified in the object store yet" in cli.ok("status").out
                server = ends.enter_context(serving(versitygw, home, port))
            if not AWAY <= number < AWAY + AWAY_BATCHES:
                wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
                wait_for(
                    lambda: (
                        max(len(log_file_bases(cluster, node)) for node in cluster.nodes)
                        <= LOCAL_FILES + 2
                    ),
                    120,
                    "the limit",
                )
        # Two groups of official clients, one of which was slow, and a native reader get all of it,
        # while the disks keep to their limit.
        slow += consume(client, "slow", TOTAL - len(slow), within_s=600)
        assert (
            sorted(slow)
            == sorted(consume(client, "new", TOTAL, within_s=600))
            == read_all(cluster, timeout_s=120)
            == bodies(0, TOTAL)
        )
        assert consume(client, "slow", 1, within_s=5) == consume(client, "new", 1, within_s=5) == []
        wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
        most = LOCAL_FILES + 2 + BATCH_FILES * (1 + AWAY_BATCHES) + 1
        assert max(watch.most.values()) <= most, (watch.most, most)

        where = [
            "--store",
            f"s3://{BUCKET}/cluster",
            "--store-endpoint",
            server.endpoint,
            "--store-credentials",
            server.credentials,
        ]
        endpoints = ";".join(target(cluster, node) for node in cluster.nodes)
        online = cli.ok(
            "audit", "--endpoints", endpoints, "--engine", "local", "--json", *where, timeout_s=300
        ).json
        check_audit(online, cluster)
        assert set(cluster.stop().values()) <= {0}
        directories = [cluster.data(node) for node in cluster.nodes]
        check_audit(
            cli.ok(
                "audit",
                *directories,
                "--engine",
                "local",
                "--deep",
                "--json",
                *where,
                timeout_s=300,
            ).json,
            cluster,
        )
        check_messages(directories, server)
        damaged = rot(server)
        failed = cli.run(
            "audit", *directories, "--engine", "local", "--json", *where, timeout_s=300
        )
        assert failed.status == 1
        [finding] = failed.json["findings"]
        assert (finding["rule"], finding["replica"]) == ("stored.digest", "store") and finding[
            "file"
        ].endswith(damaged)
        cluster.start_all()
        cluster.wait_ready()


def lose_a_disk(cluster: LocalCluster, cli: CommandLine) -> None:
    """A follower loses everything; sealed files come from the store, and peers give only the
    snapshot and what was not sealed."""
    node = next(name for name in cluster.nodes if name != leader(cluster))
    others = [name for name in cluster.nodes if name != node]
    assert all(log_file_bases(cluster, other)[0] > 0 for other in others), (
        "there are files that only the store has"
    )
    # A snapshot is at most a minute old.
    wait_for(
        lambda: all(
            newest_seal(cluster, other) >= log_file_bases(cluster, other)[-1] - 3 * FILE_BYTES
            for other in others
        ),
        120,
        "seals",
    )
    cluster.kill(node)
    wipe(cluster, node)
    cluster.start(node)
    cluster.wait_ready()
    assert cli.ok("status", "--wait", "60s", "--strict")
    from_store, from_peers = installed(cluster, node, "store"), installed(cluster, node, "peers")
    assert from_store >= (LOCAL_FILES - 4) * FILE_BYTES, (from_store, from_peers)
    snapshot = max(len(snapshot_of(cluster, other)) for other in others)
    assert from_peers <= 2 * snapshot + 3 * FILE_BYTES, (from_store, from_peers)


def newest_seal(cluster: LocalCluster, node: str) -> int:
    """The last file that the newest snapshot of a node names as sealed."""
    value = json.loads(snapshot_of(cluster, node))
    return max((seal["base"] for seal in value["retained"]["seals"]), default=-1)


def snapshot_of(cluster: LocalCluster, node: str) -> bytes:
    """The newest snapshot. While a node writes one, for a moment only the one before has its
    name."""
    for name in ("snapshot", "snapshot.previous"):
        with suppress(FileNotFoundError):
            return (cluster.data(node) / "g1/state" / name).read_bytes()
    raise AssertionError(f"{node} has no snapshot")


def check_audit(found: dict[str, Any], cluster: LocalCluster) -> None:
    """PASS, and the whole log is in the store and compared: with manifests and records, and with
    files of each node."""
    assert found["verdict"] == "PASS", json.dumps(
        {key: found[key] for key in ("reasons", "findings")}
    )
    [stored] = found["stored"]
    end = stored["files"] * FILE_BYTES
    assert (
        stored["compared"]["manifests"] == stored["compared"]["recorded_by_replicas"] == [[0, end]]
    )
    assert (
        stored["begin_index"] == 0
        and stored["entries"] == stored["last_index"] + 1
        and end >= 10 * LOCAL_BYTES
    )
    assert sorted(stored["compared"]["replicas"]) == sorted(cluster.nodes)
    assert stored["never_compared"]["unread"] == stored["never_compared"]["without_seal"] == []
    assert stored["never_compared"]["without_replica"][0][0] == 0


def check_messages(directories: list[Path], server: Server) -> None:
    """Every message once, and a queue without a gap: from the store, and behind it from a node."""
    with running_spark() as spark:
        where = {
            "dirs": json.dumps([*map(str, directories)]),
            "store": f"s3://{BUCKET}/cluster",
            "storeEndpoint": server.endpoint,
        }
        reader = spark.read.format("ledgermq").options(view="messages", topic="t", **where)
        table = reader.option("storeCredentials", str(server.credentials)).load()
        rows = table.select("offset", "body", "replica").collect()
    rows.sort(key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(TOTAL))
    assert sorted(bytes(row["body"]).decode() for row in rows) == bodies(0, TOTAL)
    assert sum(row["replica"] == "store" for row in rows) > TOTAL // 2


def rot(server: Server) -> str:
    """Change one byte of one stored file that no node has any more; returns its name."""
    path = sorted(server.directory.rglob("*.log"))[3]
    data = bytearray(path.read_bytes())
    data[FILE_BYTES // 2] ^= 1
    # As a disk does it: in place, so that the object keeps what the server noted beside its bytes.
    with path.open("r+b") as file:
        file.write(data)
    return path.name
