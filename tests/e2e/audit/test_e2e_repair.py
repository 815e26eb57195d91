"""Damaged replicas of a real cluster: repaired from their peers while the others continue, or
refused by name; entries are never renumbered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from tests.cluster import (
    admin,
    create_topic,
    full_files_sealed,
    http,
    leader,
    log_events,
    running,
    target,
    wait_for,
)
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

TOPIC = "t"
COUNT = 1500
FILE_BYTES = 256 << 10


def bodies(count: int = COUNT) -> list[str]:
    return [f"body-{k:05d}-{'x' * 300}" for k in range(count)]


def filled(cluster: LocalCluster, cli: CommandLine) -> list[str]:
    """A topic with messages over a few log files, all of them durable on every node, with the seals
    of the full files."""
    create_topic(cluster, TOPIC)
    sent = bodies()
    assert cli.send_lines(TOPIC, sent)["acknowledged"] == COUNT
    wait_for(lambda: full_files_sealed(cluster), 30, "the seals of the full log files")
    assert cli.ok("status", "--wait", "30s", "--strict")
    return sent


def digests(cluster: LocalCluster, node: str) -> int:
    """The number of log files whose digest the node has noted."""
    path = cluster.data(node) / "g1" / "state" / "digests"
    return len(json.loads(path.read_text())["digests"]) if path.exists() else 0


def stop(cluster: LocalCluster, *nodes: str) -> None:
    """Stop a node cleanly."""
    for node in nodes:
        assert cluster.terminate(node) == 0


def log_files(cluster: LocalCluster, node: str) -> list[Path]:
    return sorted((cluster.data(node) / "g1" / f"dledger-{node}" / "data").iterdir())


def flip(cluster: LocalCluster, node: str, body: str) -> None:
    """Flip bits inside a stored message."""
    wanted = body.encode()
    for path in log_files(cluster, node):
        data = path.read_bytes()
        at = data.find(wanted)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 20)
                file.write(bytes(byte ^ 0x55 for byte in data[at + 20 : at + 28]))
            return
    raise AssertionError(f"{node} does not hold {body[:10]}")


def states(cluster: LocalCluster, node: str) -> list[str]:
    """The states of the group since the node's log began, in order."""
    return [
        event["state"]
        for event in log_events(cluster, node)
        if event.get("event") == "broker group changed state"
    ]


def metric(cluster: LocalCluster, node: str, name: str) -> float:
    """The sum over all labels."""
    lines = http(cluster, node, "/metrics")[1].splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((name + "{", name + " "))
    )


def stored(cli: CommandLine) -> list[str]:
    """Every body that can be read, sorted."""
    return sorted(
        message["body"]
        for message in cli.ok("peek", "--topic", TOPIC, "--max", "100000", "--json").lines
    )


def passes(cli: CommandLine, cluster: LocalCluster) -> None:
    """The audit of the stopped cluster's directories says that the replicas are equal and whole."""
    verdict = cli.run(
        "audit",
        "--engine",
        "local",
        "--json",
        *(cluster.data(node) for node in cluster.nodes),
        timeout_s=120,
    )
    assert verdict.status == 0, verdict.out + verdict.err


def replica(cli: CommandLine, node: str) -> dict[str, Any]:
    """What `ledgermq status` says of one replica."""
    answer = cli.run("status", "--json")
    (group,) = json.loads(answer.out)["groups"]
    return next(found for found in group["replicas"] if found["node"] == node)


def test_flipped_bits_of_one_node_are_repaired_from_its_peers(tmp_path: Path) -> None:
    """The others continue; the node does not lead before it is repaired; event, metric and status
    report it; the audit passes."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        node = next(name for name in cluster.nodes if name != leader(cluster))
        stop(cluster, node)
        flip(cluster, node, sent[100])
        flip(cluster, node, sent[101])
        before = len(states(cluster, node))
        cluster.start(node)
        wait_for(
            lambda: states(cluster, node)[before:][-2:] == ["repairing", "running"],
            30,
            "the repair",
        )
        assert cli.ok("status", "--wait", "30s", "--strict")
        assert metric(cluster, node, "ledgermq_damaged_ranges_total") >= 1
        assert metric(cluster, node, "ledgermq_rebuilds_total") >= 1
        assert replica(cli, node)["state"] == "running" and replica(cli, node)["rebuild"] is None
        changes = [
            event
            for event in log_events(cluster, node)
            if event.get("event") == "leadership changed"
        ]
        assert node not in {change["leader"] for change in changes}
        assert stored(cli) == sent
    passes(cli, cluster)


@pytest.mark.verify
def test_different_damage_on_every_node_is_repaired_by_each_from_the_others(tmp_path: Path) -> None:
    """No replica is whole, and together they are: nothing is lost, and the groups need not be open
    for it."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        stop(cluster, *cluster.nodes)
        for k, node in enumerate(cluster.nodes):
            flip(cluster, node, sent[200 + 300 * k])
        cluster.start_all()
        for node in cluster.nodes:
            wait_for(
                lambda node=node: states(cluster, node)[-2:] == ["repairing", "running"],
                40,
                f"the repair of {node}",
            )  # type: ignore[misc]
        assert cli.ok("status", "--wait", "40s", "--strict")
        assert stored(cli) == sent
    passes(cli, cluster)


@pytest.mark.verify
def test_the_same_damage_on_every_node_is_refused_by_name(tmp_path: Path) -> None:
    """No replica has the bytes: the group names the lost entry, and neither serves nor renumbers or
    discards the others."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        stop(cluster, *cluster.nodes)
        whole = {
            node: [path.read_bytes() for path in log_files(cluster, node)] for node in cluster.nodes
        }
        for node in cluster.nodes:
            flip(cluster, node, sent[300])
        cluster.start_all()
        for node in cluster.nodes:
            wait_for(
                lambda node=node: states(cluster, node)[-1] == "refused",
                40,
                f"the refusal of {node}",
            )  # type: ignore[misc]
        answer = cli.run("status", "--json")
        assert answer.status == 1 and json.loads(answer.out)["health"] == "down"
        for node in cluster.nodes:
            found = replica(cli, node)
            assert found["state"] == "refused" and "entry" in found["rebuild"]["reason"], found
            code, text = http(cluster, node, "/readyz")
            assert code == 503 and "refused" in text
        assert (
            cli.run("send", "--topic", TOPIC, "--body", "one more", "--timeout", "2s").status != 0
        )
        stop(cluster, *cluster.nodes)
        for node, files in whole.items():
            for path, before in zip(log_files(cluster, node), files, strict=True):
                assert sum(a != b for a, b in zip(before, path.read_bytes(), strict=True)) <= 8
        # The operator finds an intact copy of one replica's files: it is enough for all three.
        for path, before in zip(log_files(cluster, "n1"), whole["n1"], strict=True):
            path.write_bytes(before)
        cluster.start_all()
        assert cli.ok("status", "--wait", "60s", "--strict")
        assert stored(cli) == sent
    passes(cli, cluster)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["truncated", "empty", "missing", "first-missing"])
def test_a_log_file_that_is_cut_or_gone_is_refilled(tmp_path: Path, kind: str) -> None:
    """A hole in the log is no torn tail: it is fetched, and nothing behind it is given up."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        node = next(name for name in cluster.nodes if name != leader(cluster))
        stop(cluster, node)
        path = log_files(cluster, node)[0 if kind == "first-missing" else 1]
        if kind == "truncated":
            with path.open("r+b") as file:
                file.truncate(FILE_BYTES // 2)
        elif kind == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
        before = len(states(cluster, node))
        cluster.start(node)
        wait_for(
            lambda: states(cluster, node)[before:][-2:] == ["repairing", "running"],
            30,
            "the repair",
        )
        assert cli.ok("status", "--wait", "30s", "--strict")
        assert stored(cli) == sent
    passes(cli, cluster)


def range_request(
    cluster: LocalCluster, node: str, first: int, last: int, *, whole_log: bool = False
) -> admin_pb2.RepairRangeRequest:
    identity = json.loads((cluster.data(node) / "g1" / "identity.json").read_text())
    return admin_pb2.RepairRangeRequest(
        broker_group="g1",
        log_id=identity["log_id"],
        incarnation=identity["incarnation"],
        first_index=first,
        last_index=last,
        whole_log=whole_log,
    )


def index_of(cluster: LocalCluster, node: str, body: str) -> int:
    """The entry that holds a body: the index field of its header (docs/format.md)."""
    for path in log_files(cluster, node):
        data = path.read_bytes()
        at = data.find(body.encode())
        if at >= 0:
            # Header and fixed part of the record lie in front of the body.
            return int.from_bytes(data[at - 136 + 8 : at - 136 + 16], "big")
    raise AssertionError(f"{node} does not hold {body[:10]}")


def test_a_range_of_a_running_node_is_put_back_while_it_leads(tmp_path: Path) -> None:
    """The group never stops: no change of state, of term or of leader; messages are taken
    meanwhile; the audit passes afterwards."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        node = leader(cluster)
        assert node is not None
        first, last = index_of(cluster, node, sent[100]), index_of(cluster, node, sent[103])
        before, term = (
            states(cluster, node),
            json.loads(cli.run("status", "--json").out)["groups"][0]["term"],
        )
        for body in sent[100:104]:
            flip(cluster, node, body)
        answer = admin(cluster, node, "RepairRange", range_request(cluster, node, first, last))
        assert answer.status.code == 20000 and answer.done, answer
        assert (
            answer.source in cluster.nodes
            and answer.written_bytes > 0
            and len(answer.repaired) == 1
        )
        again = admin(cluster, node, "RepairRange", range_request(cluster, node, first, last))
        assert again.done and not again.repaired
        assert states(cluster, node) == before
        assert json.loads(cli.run("status", "--json").out)["groups"][0]["term"] == term
        assert cli.send_lines(TOPIC, ["one more"])["acknowledged"] == 1
        assert stored(cli) == [*sent, "one more"]
        foreign = range_request(cluster, node, first, last)
        foreign.incarnation = "7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d21"
        assert (
            "not the one that was audited"
            in admin(cluster, node, "RepairRange", foreign).status.message
        )
    passes(cli, cluster)


def test_a_file_that_a_running_node_lost_is_mended_with_the_whole_log(tmp_path: Path) -> None:
    """A range cannot be restored into a missing file: the group stops and is repaired as a whole
    when the operator requests it, and not before."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        node = next(name for name in cluster.nodes if name != leader(cluster))
        index = index_of(cluster, node, sent[100])
        log_files(cluster, node)[0].unlink()
        before = len(states(cluster, node))
        refused = admin(cluster, node, "RepairRange", range_request(cluster, node, index, index))
        assert "is missing" in refused.status.message and len(states(cluster, node)) == before
        begun = admin(
            cluster, node, "RepairRange", range_request(cluster, node, index, index, whole_log=True)
        )
        assert begun.status.code == 20000 and not begun.done and "is missing" in begun.waits_for
        wait_for(
            lambda: states(cluster, node)[before:][-2:] == ["repairing", "running"],
            30,
            "the repair",
        )
        # The group forgot its commit index: the node refuses a range until the leader has said that
        # its entries are committed.
        wait_for(
            lambda: (
                admin(cluster, node, "RepairRange", range_request(cluster, node, index, index)).done
            ),
            30,
            "the range to be intact",
        )
        assert cli.ok("status", "--wait", "30s", "--strict")
    passes(cli, cluster)


def test_stopped_directories_are_repaired_from_findings(tmp_path: Path) -> None:
    """Different damage in every node's directory: after audit and repair, the cluster continues
    with every message; the repair log records it."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        directories = [cluster.data(node) for node in cluster.nodes]
        stop(cluster, *cluster.nodes)
        one, two, three = cluster.nodes
        flip(cluster, one, sent[100])
        log_files(cluster, two)[1].unlink()
        for path in (cluster.data(three) / "g1" / "consumequeue").glob("*/*/0*"):
            path.write_bytes(bytes(path.stat().st_size))
        findings = tmp_path / "findings"
        assert (
            cli.run(
                "audit", "--engine", "local", *directories, "--findings", findings, timeout_s=120
            ).status
            == 1
        )
        planned = cli.run("repair", "--from-findings", findings, "--dry-run", timeout_s=120)
        assert planned.status == 0 and "proof: " in planned.out, planned.out + planned.err
        done = cli.run("repair", "--from-findings", findings, timeout_s=120)
        assert done.status == 0 and done.out.endswith("repair: repaired\n"), done.out + done.err
        passes(cli, cluster)
        for node in (one, two):
            assert (
                '"step":"exchanged"'
                in (cluster.data(node) / "g1" / "state" / "repairs").read_text()
            )
        cluster.start_all()
        cluster.wait_ready()
        assert stored(cli) == sent
    passes(cli, cluster)


def test_a_running_cluster_is_repaired_from_findings(tmp_path: Path) -> None:
    """An audit over the nodes found damage: the command asks the node itself to repair it while it
    leads; the next audit passes."""
    with running(tmp_path, log_file_bytes=FILE_BYTES) as cluster:
        cli = CommandLine.of(cluster)
        sent = filled(cluster, cli)
        node = leader(cluster)
        assert node is not None
        before = states(cluster, node)
        # A node that read a full file for its digest after the damage would repair it by itself.
        wait_for(lambda: digests(cluster, node) == 2, 30, "the digests of both full files")
        flip(cluster, node, sent[100])
        flip(cluster, node, sent[900])
        endpoints = ";".join(target(cluster, name) for name in cluster.nodes)
        found = cli.run(
            "audit",
            "--endpoints",
            endpoints,
            "--engine",
            "local",
            "--findings",
            tmp_path / "findings",
            timeout_s=120,
        )
        assert found.status == 1 and "rule=entry.body" in found.out, found.out + found.err
        done = cli.run("repair", "--from-findings", tmp_path / "findings", timeout_s=120)
        assert done.status == 0, done.out + done.err
        assert states(cluster, node) == before
        assert (cluster.data(node) / "g1" / "state" / "repairs").read_text().count(
            '"step":"range"'
        ) == 2
        assert stored(cli) == sent
    passes(cli, cluster)
