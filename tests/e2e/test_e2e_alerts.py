"""A real Prometheus beside real nodes: every alert is made to fire by a fault that it is for, and
ends after the fault."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.messages.receiving import Receiver
from ledgermq.node.frontend.security import minting
from ledgermq.node.process.local import LocalCluster, free_ports
from tests.cluster import create_topic, leader, running, target, wait_for
from tests.contract.test_contract_unread import call, frame, pull_of
from tests.e2e.audit.test_e2e_repair import flip, log_files
from tests.e2e.command_line import CommandLine
from tests.e2e.prometheus import Prometheus, alerts, watching
from tests.faults.faulty import faulty
from tests.faults.test_faults_disk import BadDisks, SmallDisks, bad_disk, bad_disks, unmounted
from tests.packaging.test_dashboards import NAMES, executable, panels
from tests.tiered.s3_servers import program, serving, tiered_settings

__all__ = ["bad_disk", "bad_disks", "unmounted"]

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1500)]

TOPIC = "t"
FAULTS = {
    "LedgerMQNodeDown": "a killed node",
    "LedgerMQNoLeader": "two of three nodes killed",
    "LedgerMQReplicaNotRunning": "a damaged replica whose peers are down",
    "LedgerMQFollowerBehind": "a paused follower, and 70 MiB of messages",
    "LedgerMQInSyncSetTooSmall": "a killed slave of a group that needs all three",
    "LedgerMQReplicasDiffer": "bytes that change in a file before it is sealed",
    "LedgerMQDamageFound": "the same bytes, once they are read",
    "LedgerMQLogNotVerified": "a scrub that reads no file again for too long",
    "LedgerMQNotInObjectStore": "an object store that does not answer, until it does",
    "LedgerMQStoreTimesAhead": "a broker group whose first entry was stored an hour from now",
    "LedgerMQDiskFillsUp": "a file system of which 82 % is in use",
    "LedgerMQDiskFull": "a full file system",
    "LedgerMQWritesRefused": "full file systems of all nodes",
    "LedgerMQSlowDisk": "syncs of 150 ms",
    "LedgerMQClockOff": "a wall clock that is set an hour ahead",
    "LedgerMQPeerTls": "a node that comes back with a certificate that has ended",
    "LedgerMQStrangeDirectory": (
        "a node that comes back with a directory that was replaced, while no leader can admit it"
    ),
    "LedgerMQConsumersBehind": "a consumer that receives and stays away",
    "LedgerMQDeadLetters": "a message that is received and never acknowledged",
    "LedgerMQAnswersNotTaken": "a client that pulls messages and keeps its windows shut",
    "LedgerMQSeriesLeftOut": "more consumer groups than metrics.series_max has room for",
}
"""Alert → the fault that makes it fire here. There is one for each."""
SILENT = {
    "cluster: Messages to native readers",
    "broker-group: In-sync replicas of HA groups",
    "audit: Damaged ranges found",
    "audit: Time to a majority digest, 99 %",
    "audit: Bytes read for audits",
    "audit: Digests that failed",
    "audit: Bytes fetched for repairs",
    "audit: Repairs",
    "audit: Log files kept, by reason",
    "audit: Log files removed",
}
"""Diagrams without a value in a cluster that has no HA group, no native readers, no damage, and one
log file."""


def test_every_alert_has_a_fault() -> None:
    assert sorted(FAULTS) == sorted(alerts())


def test_alerts_of_nodes_that_are_gone(tmp_path: Path) -> None:
    """One node, then two, then one that comes back with files that it once lost."""
    groups = ("g1", {"name": "h1", "replication": "ha", "min_in_sync": 3})
    with running(tmp_path, groups=groups) as cluster, watching(cluster, tmp_path) as seen:
        _, two, three = cluster.nodes
        mine = (
            "LedgerMQNodeDown",
            "LedgerMQNoLeader",
            "LedgerMQInSyncSetTooSmall",
            "LedgerMQStrangeDirectory",
        )
        seen.begin(*mine)

        cluster.kill(three)
        seen.wait_firing("LedgerMQNodeDown", instance=seen.instance(three))
        seen.wait_firing("LedgerMQInSyncSetTooSmall", broker_group="h1")
        assert not seen.fired("LedgerMQNoLeader")
        cluster.start(three)
        seen.wait_calm(*mine)

        cluster.kill(three)
        former = put_aside(cluster, three, tmp_path / "former")
        cluster.start(three)
        assert CommandLine.of(cluster).ok("status", "--wait", "90s", "--strict", timeout_s=120), (
            "it has a new directory, and takes part"
        )

        assert not seen.fired("LedgerMQStrangeDirectory")
        cluster.kill(two)
        cluster.kill(three)
        seen.wait_firing("LedgerMQNoLeader", broker_group="g1")
        known = put_aside(cluster, three, tmp_path / "known")
        put_back(cluster, three, former)
        cluster.start(three)
        seen.wait_firing("LedgerMQStrangeDirectory", peer=three, broker_group="g1")
        cluster.kill(three)
        put_aside(cluster, three, tmp_path / "done")
        put_back(cluster, three, known)
        cluster.start(two)
        cluster.start(three)
        seen.wait_calm(*mine)
        cluster.wait_ready()


def test_the_alert_of_store_times_that_are_ahead(tmp_path: Path) -> None:
    """It ends with the time epoch that its remedy names."""
    ahead = {"name": "h1", "created_ms": time.time_ns() // 1_000_000 + 3_600_000}
    with running(tmp_path, groups=("g1", ahead)) as cluster, watching(cluster, tmp_path) as seen:
        seen.wait_firing("LedgerMQStoreTimesAhead", broker_group="h1")
        assert CommandLine.of(cluster).ok("begin-time-epoch", "h1", "--yes").out
        seen.wait_calm("LedgerMQStoreTimesAhead")


def put_aside(cluster: LocalCluster, node: str, place: Path) -> Path:
    """Move a stopped node's directory of the broker group away; returns where it is."""
    return (cluster.data(node) / "g1").rename(place)


def put_back(cluster: LocalCluster, node: str, place: Path) -> None:
    place.rename(cluster.data(node) / "g1")


def test_alerts_of_damaged_and_unread_files(tmp_path: Path) -> None:
    """The scrub is slow, so that a difference lasts until the damaged entry is found. It reads no
    file again, so that the log ages."""
    extra = {"scrub": {"bytes_per_s": "64KiB"}}
    with (
        running(tmp_path, log_file_bytes=1 << 20, extra=extra) as cluster,
        watching(cluster, tmp_path) as seen,
    ):
        mine = ("LedgerMQReplicasDiffer", "LedgerMQDamageFound", "LedgerMQReplicaNotRunning")
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        sent = [f"body-{number:05d}-{'x' * 900}" for number in range(3000)]
        cli.send_lines(TOPIC, sent[:200])
        seen.begin(*mine)

        node = next(name for name in cluster.nodes if name != leader(cluster))
        assert (
            cli.ok("status", "--wait", "60s", "--strict") and len(log_files(cluster, node)) <= 2
        ), "the file is not sealed yet"
        flip(cluster, node, sent[50])
        cli.send_lines(TOPIC, sent[200:])
        seen.wait_fired("LedgerMQReplicasDiffer", broker_group="g1")
        seen.wait_fired("LedgerMQDamageFound", broker_group="g1", instance=seen.instance(node))
        seen.wait_fired("LedgerMQLogNotVerified", broker_group="g1")
        seen.wait_calm(*mine)

        assert set(cluster.stop().values()) == {0}
        flip(cluster, node, sent[60])
        cluster.settings = ("scrub.bytes_per_s=64MiB", "scrub.again_hours=0.001")
        cluster.start(node)
        seen.wait_firing(
            "LedgerMQReplicaNotRunning", broker_group="g1", instance=seen.instance(node)
        )
        for other in cluster.nodes:
            if other != node:
                cluster.start(other)
        seen.wait_calm(*mine, "LedgerMQLogNotVerified")
        cluster.wait_ready()


def test_alerts_of_a_store_that_is_away(tmp_path: Path) -> None:
    """The first sealed files wait for an object store, which is started only after the alert."""
    [address] = free_ports(1)
    (tmp_path / "store").mkdir()
    tiered = {**tiered_settings(tmp_path / "store", address.client_port), "retry_ms": "500ms"}
    with (
        running(tmp_path, log_file_bytes=1 << 20, extra={"tiered": tiered}) as cluster,
        watching(cluster, tmp_path) as seen,
    ):
        create_topic(cluster, TOPIC)
        seen.begin("LedgerMQNotInObjectStore")
        CommandLine.of(cluster).send_lines(
            TOPIC, [f"body-{number:05d}-{'x' * 900}" for number in range(3000)]
        )
        for node in cluster.nodes:
            seen.wait_firing(
                "LedgerMQNotInObjectStore", broker_group="g1", instance=seen.instance(node)
            )
        with serving(program(tmp_path), tmp_path / "store", address.client_port):
            seen.wait_calm("LedgerMQNotInObjectStore")


def test_an_alert_of_a_wrong_clock(tmp_path: Path, bad_disks: type[BadDisks]) -> None:
    """Only of the node whose clock it is; it ends when the clock is right again."""
    with faulty(tmp_path, kind=bad_disks) as cluster, watching(cluster, tmp_path) as seen:
        assert isinstance(cluster, BadDisks)
        seen.begin("LedgerMQClockOff")
        node = cluster.others(leader(cluster))[0]
        cluster.set_clock(node, 3600)
        seen.wait_firing("LedgerMQClockOff", instance=seen.instance(node))
        cluster.set_clock(node, 0)
        seen.wait_calm("LedgerMQClockOff")


def test_the_alert_of_a_certificate_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the node that has it; it ends when the files are replaced, without a restart."""
    with running(tmp_path, tls=True) as cluster, watching(cluster, tmp_path) as seen:
        seen.begin("LedgerMQPeerTls")
        one, _, three = cluster.nodes
        tls, ended = cluster.directory / "tls", tmp_path / "ended"
        shutil.copytree(tls, ended)
        (ended / f"{three}.pem").unlink()
        monkeypatch.setattr(minting, "NODE_DAYS", -0.01)
        minting.ensure(ended, {three: (cluster.nodes[three].host,)})
        cluster.kill(three)
        for kind in ("key", "pem"):
            shutil.copy(tls / f"{three}.{kind}", tmp_path / f"{three}.{kind}")
            shutil.copy(ended / f"{three}.{kind}", tls / f"{three}.{kind}")
        cluster.start(three)
        seen.wait_firing(
            "LedgerMQPeerTls", instance=seen.instance(one), peer=three, reason="expired"
        )
        for kind in ("key", "pem"):
            shutil.copy(tmp_path / f"{three}.{kind}", tls / f"{three}.{kind}")
        cluster.wait_ready()
        seen.wait_calm("LedgerMQPeerTls")


def test_alerts_fire_for_slow_disk_stuck_follower_and_absent_consumers(
    tmp_path: Path, bad_disks: type[BadDisks]
) -> None:
    """A slow disk, a follower that stands still, consumers that stay away; meanwhile every diagram
    of the dashboards is asked for."""
    with faulty(tmp_path, kind=bad_disks) as cluster, watching(cluster, tmp_path) as seen:
        assert isinstance(cluster, BadDisks)
        mine = (
            "LedgerMQSlowDisk",
            "LedgerMQFollowerBehind",
            "LedgerMQConsumersBehind",
            "LedgerMQDeadLetters",
        )
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        cli.ok("group", "create", "away")
        cli.ok("group", "create", "poison", "--max-attempts", "1", "--backoff", "1s")
        seen.begin(*mine)

        leads = leader(cluster)
        # A node that does not lead forwards it, which one of the dashboards shows.
        CommandLine(target(cluster, cluster.others(leads)[0])).send_lines(TOPIC, ["forwarded"])
        load = cli.start("bench", "send", "--topic", TOPIC, "--rate", "20", "--duration", "1h")
        try:
            slow = cluster.order(leads, "slow", f"/dledger-{leads}/data/")
            seen.wait_firing("LedgerMQSlowDisk", broker_group="g1", instance=seen.instance(leads))
            slow.unlink()
        finally:
            load.send_signal(signal.SIGINT)
            load.communicate(timeout=60)
        seen.wait_calm(*mine)

        leave_one(cluster, "away", 60)
        seen.wait_firing("LedgerMQConsumersBehind", topic=TOPIC, consumer_group="away")
        leave_one(cluster, "poison", 1)
        # A message that has used up its attempts becomes a dead letter at the next Receive.
        dead = 'rocketmq_send_to_dlq_messages_total{consumer_group="poison"} > 0'
        wait_for(
            lambda: cli.consume_all(TOPIC, "poison") is not None and seen.query(dead),
            120,
            "a dead letter",
        )
        seen.wait_fired("LedgerMQDeadLetters", topic=TOPIC, consumer_group="poison")
        without_values = silent(seen)
        print(f"diagrams without a value: {sorted(without_values)}")
        cli.ok("group", "delete", "away", "--yes")
        cli.ok("topic", "delete", TOPIC, "--yes")

        create_topic(cluster, "large")
        leads = leader(cluster)
        follower = cluster.others(leads)[0]
        cluster.children[follower].signal(signal.SIGSTOP)
        try:
            CommandLine(target(cluster, leads)).send_lines(
                "large", [f"{number:03d}" + "x" * 250_000 for number in range(300)]
            )
            seen.wait_firing("LedgerMQFollowerBehind", broker_group="g1", follower=follower)
        finally:
            cluster.children[follower].signal(signal.SIGCONT)
        seen.wait_calm(*mine)
    assert without_values == SILENT


def leave_one(cluster: LocalCluster, group: str, seconds: float) -> None:
    """Receive one message and do not acknowledge it."""
    with (
        Connection(cluster.endpoints) as connection,
        Receiver(connection, TOPIC, group, invisible_s=seconds) as receiver,
    ):
        assert len(receiver.receive(30, 1)) == 1


def silent(seen: Prometheus) -> set[str]:
    """The diagrams of all dashboards for which there is no value at all."""
    found = set()
    for name in NAMES:
        for panel in panels(name):
            if not any(seen.query(executable(target["expr"])) for target in panel["targets"]):
                found.add(f"{name}: {panel['title']}")
    return found


@pytest.mark.usefixtures("unmounted")
def test_alerts_of_full_disks_of_too_many_series_and_of_answers(tmp_path: Path) -> None:
    """One disk that fills up and is full, then all; three consumer groups where one has room; and a
    client that takes no answer."""
    extra = {
        "retention": {"check_ms": 500},
        "metrics": {"series_max": 12},
        "limits": {"unread_ms": 1000},
    }
    with (
        faulty(tmp_path, kind=SmallDisks, extra=extra) as cluster,
        watching(cluster, tmp_path) as seen,
    ):
        assert isinstance(cluster, SmallDisks)
        mine = (
            "LedgerMQDiskFillsUp",
            "LedgerMQDiskFull",
            "LedgerMQWritesRefused",
            "LedgerMQSeriesLeftOut",
            "LedgerMQAnswersNotTaken",
        )
        cli = CommandLine.of(cluster)
        create_topic(cluster, TOPIC)
        seen.begin(*mine)
        cli.send_lines(TOPIC, ["one", "two"])

        for group in ("a", "b", "c"):
            cli.ok("group", "create", group)
            cli.consume_all(TOPIC, group)
        seen.wait_firing("LedgerMQSeriesLeftOut", kind="consumer_group")
        for group in ("a", "b"):
            cli.ok("group", "delete", group, "--yes")
        seen.wait_ended("LedgerMQSeriesLeftOut")

        host, port = cluster.endpoints.split(";")[0].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as takes_nothing:
            shut = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4\0\0\0\0")
            takes_nothing.sendall(shut + call(1, "PullMessage", pull_of(TOPIC)))
            seen.wait_firing("LedgerMQAnswersNotTaken")

        follower = cluster.others(leader(cluster))[0]
        cluster.fill(follower, 82)
        seen.wait_firing("LedgerMQDiskFillsUp", instance=seen.instance(follower))
        assert not seen.fired("LedgerMQDiskFull")
        fillers = [cluster.fill(follower)]
        seen.wait_firing("LedgerMQDiskFull", instance=seen.instance(follower))
        assert not seen.fired("LedgerMQWritesRefused")
        fillers += [cluster.fill(node) for node in cluster.others(follower)]
        seen.wait_firing("LedgerMQWritesRefused", broker_group="g1")
        for filler in fillers:
            filler.unlink()
        seen.wait_calm(*mine)
        assert json.loads(cli.ok("send", "--topic", TOPIC, "--body", "again", "--json").out)
