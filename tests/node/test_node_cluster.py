"""Real nodes as processes: elections, kills, clean stops, refusals to start, garbage on every
port."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster, config_of
from ledgermq.node.runtime import metrics, mirrored
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity
from tests import cluster as real
from tests.cluster import bodies, send, wipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_messages_survive_kills_of_the_leader_and_of_all_nodes(tmp_path: Path) -> None:
    """Acknowledged through any node, killed leader, killed cluster: every message is there on every
    replica; stops leave no abort file."""
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        sent = set()
        for k, node in enumerate(cluster.nodes):
            assert send(cluster, node, "t", f"first-{k}") == 20000
            sent.add(f"first-{k}")
        leader = real.leader(cluster)
        followers = [node for node in cluster.nodes if node != leader]
        cluster.kill(leader)
        for k, node in enumerate(followers):
            assert send(cluster, node, "t", f"second-{k}") == 20000
            sent.add(f"second-{k}")

        def degraded() -> bool:
            # A node that did not answer the asked one in time is not up for a moment.
            report = real.status(cluster, followers[0])
            return report.health == "degraded" and [
                info.node for info in report.nodes if not info.up
            ] == [leader]

        real.wait_for(degraded, 30, "the status that names the killed node alone")
        cluster.start(leader)
        cluster.wait_ready()
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.start_all()
        cluster.wait_ready()
        assert send(cluster, leader, "t", "third") == 20000
        sent.add("third")
        for node in cluster.nodes:
            real.wait_for(
                lambda node=node: bodies(cluster, node, "t") == sent, 60, f"all messages at {node}"
            )  # type: ignore[misc]
        assert real.wait_for(lambda: real.status(cluster, "n1").health == "ok", 60, "health")


def test_minority_refuses_writes_inside_the_deadline_and_serves_again_later(tmp_path: Path) -> None:
    """One node of three acknowledges nothing, reports that it is not ready, and continues when a
    second node is back."""
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        leader = real.leader(cluster)
        others = [node for node in cluster.nodes if node != leader]
        for node in others:
            cluster.kill(node)
        assert send(cluster, leader, "t", "lost?", timeout_s=5) != 20000
        real.wait_for(lambda: real.http(cluster, leader, "/readyz")[0] == 503, 30, "not ready")
        assert real.http(cluster, leader, "/healthz")[0] == 200
        real.wait_for(
            lambda: real.status(cluster, leader).health == "down", 30, "a status without a leader"
        )
        cluster.start(others[0])
        cluster.wait_ready(nodes=[leader, others[0]])
        assert send(cluster, leader, "t", "again") == 20000


def test_pages_for_watchers(tmp_path: Path) -> None:
    """Health, readiness and metrics of a single node, all of them declared; the gRPC health service
    agrees; every log line is JSON."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with real.running(tmp_path, nodes=1, groups=("g1", "g2")) as cluster:
        real.create_topic(cluster, "t")
        assert send(cluster, "n1", "t", "one") == 20000
        own = {"cluster": cluster.cluster_id, "node": "n1"}
        assert json.loads(real.http(cluster, "n1", "/readyz")[1]) == {
            "status": "ready",
            "reasons": [],
            "warnings": [],
            **own,
        }
        for wanted in (
            'ledgermq_role{broker_group="g1",role="leader"} 1.0',
            'ledgermq_role{broker_group="g2",role="leader"} 1.0',
            'ledgermq_sync_seconds_count{broker_group="g1"}',
            'ledgermq_broker_group_messages_dead_lettered_total{broker_group="g1"} 0.0',
            "ledgermq_open_calls 0.0",
        ):
            # The page is made from what the engine told last.
            real.wait_for(
                lambda line=wanted: line in real.http(cluster, "n1", "/metrics")[1], 30, wanted
            )  # type: ignore[misc]
        labels = f'cluster="{cluster.cluster_id}"', 'node_id="n1"', 'topic="t"'
        stored = (
            rf"^rocketmq_messages_in_total{{{''.join(f'(?=.*{label})' for label in labels)}.*}} 1$"
        )
        assert len(re.findall(stored, real.http(cluster, "n1", "/metrics")[1], re.MULTILINE)) == 1
        assert mirrored.STATISTICS, "the declarations are complete once both modules are imported"
        exposed = re.findall(
            r"^# TYPE (\S+) (\S+)$", real.http(cluster, "n1", "/metrics")[1], re.MULTILINE
        )
        assert sorted(exposed) == sorted((one.name, one.kind) for one in metrics.DECLARED)
        with grpc.insecure_channel(
            real.target(cluster, "n1"), options=[("grpc.enable_http_proxy", 0)]
        ) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            for service in ("", "apache.rocketmq.v2.MessagingService"):
                request = health_pb2.HealthCheckRequest(service=service)
                real.wait_for(
                    lambda r=request: stub.Check(r, timeout=30).status == serving, 30, "health"
                )  # type: ignore[misc]
        # A disk that is slow at the moment is no fault of the node, and it says so.
        assert {
            event["level"]
            for event in real.log_events(cluster, "n1")
            if event["event"] != "slow sync"
        } <= {"info"}


def test_random_bytes_on_every_port_do_not_disturb(tmp_path: Path) -> None:
    """Garbage ends its own connection; the node continues and logs no internal error."""
    rng = random.Random(11)
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        for address in cluster.nodes.values():
            for port in (
                address.client_port,
                address.peer_port,
                address.controller_port,
                address.http_port,
            ):
                for size in (1, 24, 3000):
                    poke(port, rng.randbytes(size))
                    poke(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(size))
        for k, node in enumerate(cluster.nodes):
            assert send(cluster, node, "t", f"after-{k}") == 20000
        for node in cluster.nodes:
            real.wait_for(lambda node=node: cluster.ready(node), 30, f"{node} to be ready")  # type: ignore[misc]
            assert not [
                event
                for event in real.log_events(cluster, node)
                if event["level"] in ("error", "critical")
            ]


def poke(port: int, data: bytes) -> None:
    """Send bytes and wait until the other side closes or stays silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(0.05)
        try:
            connection.sendall(data)
            while connection.recv(65536):
                pass
        except OSError:
            # Reset, or nothing to say to half a message: both are fine.
            pass


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster directory of one node that does not run."""
    cluster = real.prepare(tmp_path, nodes=1)
    yield cluster
    real.end_all(cluster)


def refused(cluster: LocalCluster, exit_code: int, *said: str) -> None:
    """Start n1 and expect it to stop with this exit code and one sentence."""
    child = cluster.start("n1")
    assert child.wait(60) == exit_code, real.log_lines(cluster, "n1")[-3:]
    last = real.log_lines(cluster, "n1")[-1]
    assert last.startswith("error: ") and "; " in last
    for part in said:
        assert part in last
    assert not [line for line in real.log_lines(cluster, "n1") if line.startswith("Traceback")]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["client_port", "peer_port", "controller_port", "http_port"])
def test_taken_port_is_72(single: LocalCluster, kind: str) -> None:
    """The sentence names the port."""
    port = getattr(single.nodes["n1"], kind)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused(single, 72, str(port))


def test_unusable_or_foreign_data_directories_are_71(single: LocalCluster, tmp_path: Path) -> None:
    """A file in its place, another node's directory, a directory with something else in it, one
    that is in use."""
    data = single.data("n1")
    data.mkdir()
    (data / "precious").write_text("")
    refused(single, 71, "precious")
    (data / "precious").unlink()
    identity.write_node(RealDisk(), str(data), identity.NodeIdentity(single.cluster_id, "n2", 1))
    refused(single, 71, "node n2")
    (data / "node.json").unlink()
    identity.write_node(
        RealDisk(),
        str(data),
        identity.NodeIdentity("00000000-0000-4000-8000-000000000000", "n1", 1),
    )
    refused(single, 71, "cluster 00000000")
    (data / "node.json").unlink()
    single.settings = [f"data={tmp_path / 'file'}"]
    (tmp_path / "file").write_text("")
    refused(single, 71, "cannot be used")


def test_data_directory_in_use_is_71(tmp_path: Path) -> None:
    """A second process on the same directory stops at once, before it touches a file; the first
    one goes on."""
    with real.running(tmp_path, nodes=1) as cluster:
        command = [sys.executable, "-m", "ledgermq", "serve", "--config", str(cluster.config_file)]
        command += ["--set", "node=n1", "--set", f"data={cluster.data('n1')}"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (
            second.returncode == 71 and "used by another process" in second.stderr.splitlines()[-1]
        )
        real.wait_for(lambda: cluster.ready("n1"), 30, "the first process to serve")


def test_missing_secret_is_77_and_assertions_off_is_76(single: LocalCluster) -> None:
    """Neither runs without what the promises rest on."""
    (single.directory / "secret").rename(single.directory / "elsewhere")
    refused(single, 77, "secret")
    (single.directory / "elsewhere").rename(single.directory / "secret")
    single.environment = {"PYTHONOPTIMIZE": "1"}
    refused(single, 76, "assertions are off")


def test_wrong_configuration_is_64(single: LocalCluster) -> None:
    """The key and what is accepted."""
    single.settings = ["delivery.livenes_ms=1s"]
    refused(single, 64, "did you mean 'liveness_ms'")


def test_damage_below_the_synced_mark_is_75(tmp_path: Path) -> None:
    """The last entry that was synced is gone: the node stops, nothing is cut."""
    with real.running(tmp_path, nodes=1) as cluster:
        real.create_topic(cluster, "t")
        assert send(cluster, "n1", "t", "x" * 100) == 20000
    path = next(cluster.data("n1").glob("g1/dledger-n1/data/*"))
    data = bytearray(path.read_bytes())
    entry = data.index(b"x" * 100) - 136
    data[entry : entry + 48] = bytes(48)
    path.write_bytes(data)
    (cluster.data("n1") / "g1" / "abort").write_text("1")
    refused(cluster, 75)
    assert path.read_bytes() == data


def test_wiped_node_is_not_heard_before_the_group_has_taken_it_in_as_a_learner(
    tmp_path: Path,
) -> None:
    """A node that lost its directory comes back with another incarnation: its peers say so, and it
    votes again once it has everything."""
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        assert send(cluster, "n1", "t", "one") == 20000
        leader = real.leader(cluster)
        victim = next(node for node in cluster.nodes if node != leader)
        cluster.kill(victim)
        wipe(cluster, victim)
        cluster.start(victim)
        refusal = "data directory replaced"
        for node in (victim, leader):
            real.wait_for(
                lambda node=node: any(refusal in line for line in real.log_lines(cluster, node)),
                30,
                f"the reason at {node}",
            )  # type: ignore[misc]
        assert send(cluster, leader, "t", "two") == 20000
        real.wait_for(
            lambda: sorted(real.status(cluster, leader).groups[0].voters) == ["n1", "n2", "n3"],
            60,
            "the node to vote again",
        )
        real.wait_for(
            lambda: real.status(cluster, leader).health == "ok", 30, "the node to be back"
        )
        real.wait_for(lambda: bodies(cluster, victim, "t") == {"one", "two"}, 60, "both messages")


def reasons(cluster: LocalCluster, node: str) -> list[str]:
    """Why a node is not ready; empty while it does not answer yet."""
    try:
        return list(json.loads(real.http(cluster, node, "/readyz")[1])["reasons"])
    except OSError:
        return []


def test_majority_of_wiped_nodes_does_not_start_a_new_history(tmp_path: Path) -> None:
    """Two of three directories are gone: the two fresh ones know each other, but not without n1,
    which knows others; all three say why."""
    cluster = real.prepare(tmp_path)
    cluster.start_all()
    try:
        cluster.wait_ready()
        real.create_topic(cluster, "t")
        assert send(cluster, "n1", "t", "one") == 20000
        real.wait_for(lambda: bodies(cluster, "n1", "t") == {"one"}, 20, "the message at n1")
        for node in cluster.nodes:
            cluster.kill(node)
        data = next(cluster.data("n1").glob("g1/dledger-n1/data/*"))
        before = data.read_bytes()
        for node in ("n2", "n3"):
            wipe(cluster, node)
        cluster.start_all()
        for node in ("n2", "n3"):
            why = f"broker group g1: node {node}: data directory replaced"
            for where, reason in (
                (node, "missing: n1"),
                (node, f"not heard by n1: {why}"),
                ("n1", f"not heard: {why}"),
            ):
                told = lambda where=where, reason=reason: any(  # noqa: E731
                    reason in r for r in reasons(cluster, where)
                )
                real.wait_for(told, 60, f"{reason!r} at {where}")
        # Longer than any election would take.
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for node in cluster.nodes:
                (group,) = real.status(cluster, node).groups
                assert not group.HasField("leader")
        assert data.read_bytes() == before

        def told_by_all() -> dict[str, tuple[str, int]] | None:
            found = {
                replica.node: (replica.state, replica.end_index)
                for replica in real.status(cluster, "n1").groups[0].replicas
            }
            return found if all(state for state, _ in found.values()) else None

        found = real.wait_for(told_by_all, 30, "a status with the answers of all nodes")
        assert (
            found["n1"][0] == "running"
            and found["n1"][1] > 0
            and found["n2"] == found["n3"] == ("waiting", 0)
        )
        text = real.http(cluster, "n2", "/metrics")[1]
        assert (
            'ledgermq_broker_group_admitted{broker_group="g1"} 0.0' in text
            and 'ledgermq_term{broker_group="g1"} 0.0' in text
        )
    finally:
        real.end_all(cluster)


@pytest.mark.verify
def test_up_runs_a_cluster_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """`up` prints where it is ready and what to do next, reports a node that dies, ends with 0 on
    SIGINT, and resumes the directory."""
    base = real.base_port()
    command = [
        sys.executable,
        "-m",
        "ledgermq",
        "up",
        "--nodes",
        "3",
        "--data",
        str(tmp_path / "data"),
        "--log-file-size",
        "1MiB",
    ]
    command += ["--base-port", str(base)]
    for attempt in range(2):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert (
                line
                == f"ready: endpoints=127.0.0.1:{base};127.0.0.1:{base + 1};127.0.0.1:{base + 2}\n"
            )
            assert [process.stdout.readline().split()[0] for _ in range(4)] == [
                "in",
                "export",
                "ledgermq",
                "ledgermq",
            ]
            again = subprocess.run(command, capture_output=True, text=True)
            assert (
                (again.returncode, again.stdout) == (71, "")
                and "n1 of" in again.stderr
                and "is running" in again.stderr
            )
            if attempt == 1:
                pid = int((tmp_path / "data" / "n2" / "g1" / "abort").read_text().split()[0])
                os.kill(pid, signal.SIGKILL)
                assert any("node n2 stopped" in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0 and out == "" and "Traceback" not in err
        finally:
            process.kill()
            process.wait()
    left = [str(path) for path in (tmp_path / "data").glob("*/g1/abort")]
    assert left == [str(tmp_path / "data" / "n2" / "g1" / "abort")]
    assert (
        config_of(LocalCluster.prepare(tmp_path / "data", base_port=base), "n1")
        .cluster.groups[0]
        .data_file_bytes
        == 1 << 20
    )


def test_up_can_be_stopped_before_it_is_ready(tmp_path: Path) -> None:
    """A stop during the start ends everything with 0 and leaves nothing running."""
    base = real.base_port()
    command = [
        sys.executable,
        "-m",
        "ledgermq",
        "up",
        "--data",
        str(tmp_path / "data"),
        "--base-port",
        str(base),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    real.wait_for(
        lambda: (tmp_path / "data" / "n3" / "node.log").exists(), 30, "the last node's process"
    )
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert not list((tmp_path / "data").glob("*/g1/abort"))


@pytest.mark.verify
def test_up_refuses_a_taken_port_with_the_nodes_own_sentence(tmp_path: Path) -> None:
    """Exit 72 and the port; no process is left."""
    base = real.base_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 1))
        taken.listen()
        command = [
            sys.executable,
            "-m",
            "ledgermq",
            "up",
            "--data",
            str(tmp_path / "data"),
            "--base-port",
            str(base),
        ]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 72
    last = found.stderr.splitlines()[-1]
    assert last.startswith("error: node n2") and str(base + 1) in last
    assert last.endswith("; stop the process that uses it, or choose other ports with --base-port")


def test_nodes_of_up_do_not_outlive_it(tmp_path: Path) -> None:
    """Even when `up` is killed, its nodes stop by themselves, cleanly."""
    base = real.base_port()
    command = [
        sys.executable,
        "-m",
        "ledgermq",
        "up",
        "--nodes",
        "1",
        "--data",
        str(tmp_path / "data"),
        "--base-port",
        str(base),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        abort = tmp_path / "data" / "n1" / "g1" / "abort"
        assert abort.exists()
    finally:
        process.kill()
        process.wait()
    real.wait_for(lambda: not abort.exists(), 30, "the node's clean stop")
