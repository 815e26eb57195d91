"""HA groups of a real cluster under the audit: over the nodes and over their directories, here and
on Spark; and repaired while they run.

What is confirmed hangs on the in-sync set, so each test makes one of its own: whole, without a
slave that is cut off, after another master, after one that an operator forced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_group, create_topic, leader, running, wait_for
from tests.e2e.audit.test_e2e_audit_running import all_of, audit, load
from tests.e2e.audit.test_e2e_repair import log_files
from tests.e2e.command_line import CommandLine, Outcome
from tests.faults.faulty import WAIT_S, FaultyCluster, faulty, status_of, whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "t"
FILE_BYTES = 256 << 10
BODY_AT, SIZE_AT = 136, 40
"""Of an entry: where the body of its message begins, and where the last words of its header do
(docs/format.md §1)."""


def ha(*replicas: str, **settings: Any) -> tuple[Mapping[str, Any], ...]:
    placed = {"replicas": list(replicas)} if replicas else {}
    return ({"name": "g1", "replication": "ha", **placed, **settings},)


def in_sync(cluster: LocalCluster) -> set[str]:
    node = next(node for node, child in cluster.children.items() if child.exit_code is None)
    info = status_of(cluster, node, "g1")
    return set(info.ha.in_sync) if info.HasField("leader") else set()


def wait_in_sync(cluster: LocalCluster, *nodes: str) -> None:
    wait_for(lambda: in_sync(cluster) == set(nodes), WAIT_S, f"{', '.join(nodes)} in sync")


def bodies(first: int, count: int) -> list[str]:
    return [f"body-{number:05d}-{'x' * 300}" for number in range(first, first + count)]


def spoil(cluster: LocalCluster, node: str, body: str, *, header: bool = False) -> None:
    """Overwrite eight bytes of a stored message, or of the header of its entry: then the node
    itself cannot say what it was."""
    for path in log_files(cluster, node):
        data = path.read_bytes()
        place = data.find(body.encode())
        if place >= 0:
            begin = place - BODY_AT + SIZE_AT if header else place + 20
            with path.open("r+b") as file:
                file.seek(begin)
                file.write(bytes(byte ^ 0x55 for byte in data[begin : begin + 8]))
            return
    raise AssertionError(f"{node} does not hold {body[:10]}")


def accused(outcome: Outcome) -> set[tuple[str, str]]:
    """(class, replica) of every finding of `audit --json`."""
    return {
        (finding["class"], finding["replica"])
        for finding in outcome.json["findings"]
        if finding["class"] != "torn-tail"
    }


def offline(
    cluster: LocalCluster, *options: str, engine: str = "local", nodes: tuple[str, ...] = ()
) -> Outcome:
    directories = [cluster.data(node) for node in nodes or cluster.nodes]
    return CommandLine(all_of(cluster)).run(
        "audit", "--engine", engine, *options, *directories, timeout_s=600
    )


def text(outcome: Outcome) -> str:
    return f"exit status {outcome.status}\n{outcome.out}\n{outcome.err}"


@pytest.mark.verify
@pytest.mark.parametrize("ack", ["in-sync", "async"])
def test_a_busy_ha_group_passes_over_its_nodes(tmp_path: Path, ack: str) -> None:
    """Under load, after a handover, without a slave (INCOMPLETE, by name), with it again, and at
    rest."""
    with running(tmp_path, groups=ha(ack=ack), log_file_bytes=FILE_BYTES) as cluster:
        create_topic(cluster, TOPIC)
        create_group(cluster, "g")
        cli, endpoints = CommandLine.of(cluster), all_of(cluster)
        cli.send_lines(TOPIC, bodies(0, 300))
        with load(endpoints):
            outcome = audit(endpoints)
            assert outcome.status == 0, text(outcome)
            master = leader(cluster)
            wait_in_sync(cluster, *cluster.nodes)
            cli.ok(
                "transfer",
                "g1",
                "--to",
                next(node for node in cluster.nodes if node != master),
                "--timeout",
                "30s",
            )
            outcome = audit(endpoints, "--deep")
            assert outcome.status == 0, text(outcome)
        slave = next(node for node in cluster.nodes if node != leader(cluster))
        cluster.kill(slave)
        wait_in_sync(cluster, *(node for node in cluster.nodes if node != slave))
        cli.send_lines(TOPIC, bodies(300, 50))
        outcome = audit(endpoints)
        assert outcome.status == 2 and f"replica {slave} could not be read" in outcome.out, text(
            outcome
        )
        cluster.start(slave)
        cluster.wait_ready(60, [slave])
        wait_in_sync(cluster, *cluster.nodes)
        outcome = audit(endpoints)
        assert outcome.status == 0, text(outcome)
    outcome = offline(cluster)
    assert outcome.status == 0, text(outcome)


def cut_off(cluster: FaultyCluster, cli: CommandLine) -> tuple[str, str, str]:
    """Master, slave, and a slave that the others cannot reach and clients can: it is out of the
    set, and lacks what is confirmed since."""
    create_topic(cluster, TOPIC)
    cli.send_lines(TOPIC, bodies(0, 200))
    master = leader(cluster)
    slave, lagging = cluster.others(master)
    cluster.network.isolate(lagging)
    wait_in_sync(cluster, master, slave)
    cli.send_lines(TOPIC, bodies(200, 300))
    return master, slave, lagging


@pytest.mark.verify
@pytest.mark.parametrize("ack", ["in-sync", "async"])
def test_damage_without_a_majority_is_found_and_repaired_online(tmp_path: Path, ack: str) -> None:
    """Two of three are in sync. Entries that the third lacks are damaged on the slave, including
    headers, and on the master: each restores what the other lost, no node stops, and no leadership
    moves. The third only lags, and catches up in the end."""
    with faulty(tmp_path, groups=ha(ack=ack), log_file_bytes=FILE_BYTES) as cluster:
        cli, endpoints = CommandLine.of(cluster), all_of(cluster)
        master, slave, lagging = cut_off(cluster, cli)
        healthy = audit(endpoints, "--timeout", "3s")
        assert healthy.status == 2 and f"{lagging} ends" in healthy.out, text(healthy)
        term = status_of(cluster, master, "g1").term
        sent = bodies(200, 300)
        for body in sent[100:103]:
            spoil(cluster, slave, body, header=True)
        spoil(cluster, slave, bodies(20, 1)[0])
        spoil(cluster, master, sent[200], header=True)
        findings = tmp_path / "findings"
        found = audit(endpoints, "--timeout", "3s", "--findings", str(findings), "--json")
        assert found.status == 1 and accused(found) == {("bit-rot", slave), ("bit-rot", master)}, (
            text(found)
        )
        done = cli.run("repair", "--from-findings", findings, timeout_s=120)
        assert done.status == 0, text(done)
        for node in (slave, master):
            assert '"step":"range"' in (cluster.data(node) / "g1" / "state" / "repairs").read_text()
        info = status_of(cluster, master, "g1")
        running_now = {replica.node for replica in info.replicas if replica.state == "running"}
        assert (info.leader, info.term) == (master, term) and running_now >= {master, slave}, info
        assert cli.send_lines(TOPIC, ["one more"])["acknowledged"] == 1
        cluster.network.heal()
        whole(cluster)
        outcome = audit(endpoints)
        assert outcome.status == 0, text(outcome)


def test_rot_in_entries_of_the_master_alone_is_undecidable_and_stops_no_node(
    tmp_path: Path,
) -> None:
    """With an in-sync set of one, entries that it confirmed since are damaged: the audit reports
    this, and the repair leaves the group running; an audit of the directories gives the same."""
    with running(
        tmp_path, groups=ha("n1", "n2", min_in_sync=1), log_file_bytes=FILE_BYTES
    ) as cluster:
        create_topic(cluster, TOPIC)
        cli, endpoints = CommandLine.of(cluster), all_of(cluster)
        cli.send_lines(TOPIC, bodies(0, 200))
        master = leader(cluster)
        (slave,) = {"n1", "n2"} - {master}
        assert cluster.terminate(slave) == 0
        wait_in_sync(cluster, master)
        cli.send_lines(TOPIC, bodies(200, 100))
        spoil(cluster, master, bodies(250, 1)[0])
        findings = tmp_path / "findings"
        found = audit(endpoints, "--timeout", "3s", "--findings", str(findings), "--json")
        assert found.status == 1 and {name for _, name in accused(found)} == {master}, text(found)
        done = cli.run("repair", "--from-findings", findings, timeout_s=120)
        assert done.status == 2 and "no other replica that was audited holds entries" in done.err, (
            text(done)
        )
        assert {
            replica.state
            for replica in status_of(cluster, master, "g1").replicas
            if replica.node == master
        } == {"running"}
        assert cli.send_lines(TOPIC, ["one more"])["acknowledged"] == 1
    outcome = offline(cluster, "--json", nodes=("n1", "n2"))
    assert outcome.status == 1 and accused(outcome) == {("undecidable", master)}, text(outcome)


def test_unclean_election_is_reported_and_passes_without_the_lost_history(
    tmp_path: Path,
) -> None:
    """What the former master alone had was given up by an operator: INCOMPLETE by the record's name
    over all directories, no finding; over the nodes the former one is missing. Without its files it
    comes back as an empty replica, and everything passes."""
    with running(
        tmp_path, groups=ha("n1", "n2", min_in_sync=1), log_file_bytes=FILE_BYTES
    ) as cluster:
        create_topic(cluster, TOPIC)
        cli, endpoints = CommandLine.of(cluster), all_of(cluster)
        cli.send_lines(TOPIC, bodies(0, 100))
        master = leader(cluster)
        (slave,) = {"n1", "n2"} - {master}
        assert cluster.terminate(slave) == 0
        wait_in_sync(cluster, master)
        cli.send_lines(TOPIC, bodies(100, 30))
        assert cluster.terminate(master) == 0
        cluster.start(slave)
        forced = ("elect", "g1", "--node", slave, "--unclean", "--yes", "--timeout", "30s")
        wait_for(lambda: cli.run(*forced).status == 0, WAIT_S, "an election")
        cli.send_lines(TOPIC, bodies(130, 50))
        outcome = audit(endpoints, "--timeout", "3s")
        assert outcome.status == 2 and f"replica {master} could not be read" in outcome.out, text(
            outcome
        )
        for node in (slave, "n3"):
            assert cluster.terminate(node) == 0
        outcome = offline(cluster, nodes=("n1", "n2"))
        assert (
            outcome.status == 2
            and f"given up when an operator forced {slave} to be master" in outcome.out
        ), text(outcome)
        lost = cluster.data(master) / "g1"
        lost.rename(tmp_path / "evidence")
        cluster.start_all()
        cluster.wait_ready()
        wait_in_sync(cluster, "n1", "n2")
        outcome = audit(endpoints)
        assert outcome.status == 0, text(outcome)
    outcome = offline(cluster, nodes=("n1", "n2"))
    assert outcome.status == 0, text(outcome)


@pytest.mark.timeout(1500)
@pytest.mark.verify
def test_spark_reads_running_nodes_of_an_ha_group_and_its_directories(tmp_path: Path) -> None:
    """The same verdicts where tasks read: PASS over the nodes; at rest damage on a slave is found,
    and repaired from what was found."""
    with running(tmp_path, groups=ha(), log_file_bytes=FILE_BYTES) as cluster:
        create_topic(cluster, TOPIC)
        cli, endpoints = CommandLine.of(cluster), all_of(cluster)
        cli.send_lines(TOPIC, bodies(0, 900))
        slave = next(node for node in cluster.nodes if node != leader(cluster))
        outcome = audit(endpoints, "--master", "local[2]", engine="spark")
        assert outcome.status == 0 and outcome.out.splitlines()[-1] == "audit: PASS", text(outcome)
    spoil(cluster, slave, bodies(310, 1)[0])
    findings = tmp_path / "findings"
    outcome = offline(
        cluster, "--master", "local[2]", "--findings", str(findings), "--json", engine="spark"
    )
    assert outcome.status == 1 and accused(outcome) == {("bit-rot", slave)}, text(outcome)
    repaired = cli.run("repair", "--from-findings", findings, timeout_s=120)
    assert repaired.status == 0, text(repaired)
