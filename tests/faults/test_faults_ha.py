"""HA groups under faults: masters and slaves killed under load, no metadata quorum, an unclean
election, another kind of replication."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto.levels import MINIMUM_LEVEL
from tests.cluster import create_topic, leader, log_lines, running, status, wait_for, wipe
from tests.e2e.command_line import CommandLine
from tests.faults.faulty import (
    TOPIC,
    WAIT_S,
    events,
    faulty,
    judge,
    passes_while_it_runs,
    status_of,
    whole,
)
from tests.faults.histories import History

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ha(*replicas: str, **settings: Any) -> tuple[Mapping[str, Any], ...]:
    """One HA group."""
    placed = {"replicas": list(replicas)} if replicas else {}
    return ({"name": "g1", "replication": "ha", **placed, **settings},)


def in_sync(cluster: LocalCluster, group: str = "g1") -> set[str]:
    """The in-sync set according to a running node; empty if it is unknown."""
    node = next(node for node, child in cluster.children.items() if child.exit_code is None)
    info = status_of(cluster, node, group)
    return set(info.ha.in_sync) if info.HasField("leader") else set()


def wait_in_sync(cluster: LocalCluster, *nodes: str) -> None:
    wait_for(lambda: in_sync(cluster) == set(nodes), WAIT_S, f"{', '.join(nodes)} in sync")


@pytest.mark.verify
@pytest.mark.parametrize("transfer", ["push", "pull"])
def test_masters_and_slaves_killed_under_load(tmp_path: Path, transfer: str) -> None:
    """Nothing acknowledged is lost, the set shrinks and grows, and the files of all nodes prove to
    be equal at the end."""
    with faulty(tmp_path, groups=ha(transfer=transfer)) as cluster:
        with History(cluster, TOPIC) as history:
            for _ in range(2):
                master = leader(cluster)
                cluster.kill(master)
                began = time.monotonic()
                history.progress()
                print(f"sends go on {time.monotonic() - began:.2f} s after the master was killed")
                assert leader(cluster) != master
                wait_in_sync(cluster, *cluster.others(master))
                cluster.start(master)
                cluster.wait_ready(nodes=[master])
                wait_in_sync(cluster, *cluster.nodes)
            slave = cluster.others(leader(cluster))[0]
            cluster.kill(slave)
            wait_in_sync(cluster, *cluster.others(slave))
            history.progress()
            cluster.start(slave)
            cluster.wait_ready(nodes=[slave])
            wait_in_sync(cluster, *cluster.nodes)
            for node in cluster.nodes:
                cluster.kill(node)
            cluster.start_all()
            cluster.wait_ready()
            history.progress()
        judge(cluster, history)


@pytest.mark.verify
@pytest.mark.parametrize("transfer", ["push", "pull"])
def test_deaf_master_of_a_cluster_is_replaced(tmp_path: Path, transfer: str) -> None:
    """A one-way partition: the master keeps its slaves from campaigning, and cannot request another
    set. Sends continue during the partition."""
    with faulty(tmp_path, groups=ha(transfer=transfer)) as cluster:
        with History(cluster, TOPIC) as history:
            former = leader(cluster)
            others = cluster.others(former)
            cluster.network.block([(other, former) for other in others])
            began = time.monotonic()
            wait_for(
                lambda: {status_of(cluster, node, "g1").leader for node in others} & set(others),
                WAIT_S,
                "another master",
            )
            print(f"another master after {time.monotonic() - began:.1f} s")
            history.progress()
            cluster.network.heal()
            wait_in_sync(cluster, *cluster.nodes)
            history.progress()
        judge(cluster, history)
        stepped_down = [
            event
            for event in events(cluster, former)
            if event["event"] == "leadership changed" and event["leader"] is None
        ]
        assert any("too few others" in str(event) for event in stepped_down), stepped_down


def test_below_the_minimum_sends_are_refused_at_once_with_the_reason(tmp_path: Path) -> None:
    """And served again as soon as the set is whole; the command line says what is missing."""
    with faulty(tmp_path, groups=ha(min_in_sync=3)) as cluster:
        cli = CommandLine.of(cluster)
        assert cli.run("send", "--topic", TOPIC, "--body", "before").status == 0
        slave = cluster.others(leader(cluster))[0]
        cluster.kill(slave)
        wait_for(
            lambda: status_of(cluster, leader(cluster), "g1").ha.HasField("short"),
            WAIT_S,
            "a set that is too small",
        )
        began = time.monotonic()
        refused = cli.run("send", "--topic", TOPIC, "--body", "lost", "--timeout", "10s")
        assert refused.status == 3 and "2 of the 3 replicas in sync" in refused.error, refused
        assert time.monotonic() - began < 60

        def told() -> bool:
            found = cli.run("status", "--json").json
            return found["health"] == "degraded" and "min_in_sync" in (
                found["groups"][0]["ha"]["short"] or ""
            )

        wait_for(told, WAIT_S, "a status with the reason")
        cluster.start(slave)
        cluster.wait_ready(nodes=[slave])
        wait_in_sync(cluster, *cluster.nodes)
        assert cli.run("send", "--topic", TOPIC, "--body", "after").status == 0


def test_returning_master_drops_entries_it_alone_had(tmp_path: Path) -> None:
    """With `ack: async` the master acknowledges alone: what it had not passed on is cut off when it
    is back, and the copies are equal."""
    with faulty(tmp_path, groups=ha(ack="async")) as cluster:
        with History(cluster, TOPIC, readers=0) as history:
            master = leader(cluster)
            cluster.network.isolate(master)
            history.progress(5)
            cluster.kill(master)
            cluster.network.heal()
            wait_for(lambda: leader(cluster) != master, WAIT_S, "another master")
            history.progress()
            cluster.start(master)
            cluster.wait_ready(nodes=[master])
        whole(cluster)


def test_the_data_path_runs_on_without_a_metadata_quorum(tmp_path: Path) -> None:
    """Sends, receives and acknowledgements continue with the current master; when the quorum is
    back, a master can be replaced again."""
    with running(tmp_path, nodes=4, groups=ha("n1", "n2", min_in_sync=1)) as cluster:
        create_topic(cluster, TOPIC, queues=1)
        with History(cluster, TOPIC, readers=0) as history:
            for node in ("n3", "n4"):
                cluster.kill(node)
            history.progress(100)
            cli = CommandLine.of(cluster)
            refused = cli.run("elect", "g1", "--node", "n2")
            assert refused.status == 3 and "quorum" in refused.error, refused
            for node in ("n3", "n4"):
                cluster.start(node)
            cluster.wait_ready()
            master = leader(cluster)
            cluster.kill(master)
            history.progress()
            cluster.start(master)
            cluster.wait_ready(nodes=[master])
        history.check(lambda: cli.consume_all(TOPIC, "judge"))


def test_unclean_election_states_its_loss_and_restores_the_group(tmp_path: Path) -> None:
    """Refused without the word, with the reason; with it the node leads, the loss is stated, and
    the log and the quorum know of it."""
    with running(tmp_path, groups=ha("n1", "n2", min_in_sync=1)) as cluster:
        create_topic(cluster, TOPIC, queues=1)
        cli = CommandLine.of(cluster)
        master = leader(cluster)
        (slave,) = {"n1", "n2"} - {master}
        cluster.kill(slave)
        wait_in_sync(cluster, master)
        cli.send_lines(TOPIC, [f"m{number}" for number in range(20)])
        wait_for(
            lambda: _committed(cluster, master) >= 20,
            WAIT_S,
            "entries that are known to be confirmed",
        )
        cluster.terminate(master)
        cluster.start(slave)
        wait_for(lambda: slave in _replicas(cluster, "n3"), WAIT_S, "a slave that answers")
        refused = wait_for(
            lambda: _refusal(cli, slave), WAIT_S, "a refusal that names the in-sync set"
        )
        assert "would be lost" in refused and "--unclean" in refused
        unsaid = cli.run("elect", "g1", "--node", slave, "--unclean")
        assert (
            unsaid.status == 64
            and f"Make {slave} master of g1" in unsaid.error
            and f"only {master} had" in unsaid.error
        ), unsaid
        done = cli.run(
            "elect", "g1", "--node", slave, "--unclean", "--yes", "--json", "--timeout", "30s"
        )
        assert done.status == 0 and done.json["master"] == slave, done
        assert cli.run("send", "--topic", TOPIC, "--body", "after").status == 0
        why = cli.run("why-leader-moved", "g1", "--json").json
        assert why["reason"] == "forced" and "entries may be lost" in why["answer"], why
        child = cluster.start(master)

        def refusal() -> admin_pb2.ReplicaInfo | None:
            replica = _replica(cluster, slave, master)
            return replica if "would replace entry" in replica.rebuild.reason else None

        found = wait_for(refusal, WAIT_S, "a group that is refused")
        assert (
            found.state == "refused"
            and "move the directory of this group away" in found.rebuild.reason
        ), found
        # Its other duties go on: with it two of three nodes are a metadata quorum.
        cluster.kill("n3")
        assert (
            cli.run("topic", "create", "later", "--timeout", "60s").status == 0
            and child.exit_code is None
        )
        # A group that was let go of leaves its abort file: it did not end in good order.
        cluster.kill(master)


def _replicas(cluster: LocalCluster, asked: str) -> set[str]:
    info: admin_pb2.BrokerGroupInfo = next(
        item for item in status(cluster, asked).groups if item.group == "g1"
    )
    return {replica.node for replica in info.replicas if replica.HasField("role")}


def _replica(cluster: LocalCluster, asked: str, node: str) -> admin_pb2.ReplicaInfo:
    return next(
        replica for replica in status_of(cluster, asked, "g1").replicas if replica.node == node
    )


def _committed(cluster: LocalCluster, node: str) -> int:
    return status_of(cluster, node, "g1").commit_index


def _refusal(cli: CommandLine, node: str) -> str | None:
    """Until the quorum knows that the master is gone, other reasons come first."""
    refused = cli.run("elect", "g1", "--node", node)
    assert refused.status in (3, 4), refused
    return refused.error if "not in the in-sync set" in refused.error else None


@pytest.mark.verify
def test_a_group_changes_its_replication_there_and_back_under_load(tmp_path: Path) -> None:
    """raft → ha → raft → ha, while messages are sent and read; not while a voter is missing; the
    log wins over the configuration. The audit over the running nodes passes under every rule, and
    over their directories at the end."""
    with faulty(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        with History(cluster, TOPIC) as history:
            for to in ("ha", "raft", "ha"):
                done = cli.run("replication", "g1", "--to", to, "--timeout", "30s")
                assert done.status == 0 and f"g1 goes by {to}" in done.out, done
                wait_for(
                    lambda to=to: status_of(cluster, "n1", "g1").replication == to,
                    WAIT_S,
                    f"{to} in force",
                )  # type: ignore[misc]
                history.progress()
                passes_while_it_runs(cluster)
            master = leader(cluster)
            cluster.kill(master)
            history.progress()
            refused = cli.run("replication", "g1", "--to", "raft", "--timeout", "3s")
            assert refused.status == 4, refused
            cluster.start(master)
            cluster.wait_ready(nodes=[master])
            history.progress()
        judge(cluster, history)
        passes_while_it_runs(cluster)
        assert any("another kind of replication" in line for line in log_lines(cluster, master))


def test_two_replicas_lose_the_disk_of_their_master_for_a_while_and_for_good(
    tmp_path: Path,
) -> None:
    """The third node only votes on masters. The empty node is fed without a command, and not ready
    before it counts; while it is gone, one recorded command lets the other one continue, whatever
    the files say."""
    with faulty(tmp_path, groups=ha("n1", "n2", min_in_sync=2)) as cluster:
        cli = CommandLine.of(cluster)
        cli.ok("upgrade", "finish", "--yes")
        assert status_of(cluster, "n1", "g1").level >= MINIMUM_LEVEL
        with History(cluster, TOPIC) as history:
            history.progress()
            master = leader(cluster)
            cluster.kill(master)
            wipe(cluster, master)
            wait_for(
                lambda: status_of(cluster, "n3", "g1").ha.HasField("short"),
                WAIT_S,
                "a master that cannot commit",
            )
            cluster.start(master)
            cluster.wait_ready(nodes=[master])
            wait_in_sync(cluster, "n1", "n2")
            history.progress()

            gone = leader(cluster)
            cluster.kill(gone)
            wipe(cluster, gone)
            wait_for(
                lambda: "ledgermq replication g1 --min-in-sync 1" in cli.run("check").out,
                WAIT_S,
                "the command",
            )
            refused = cli.run("replication", "g1", "--min-in-sync", "1")
            assert refused.status == 64 and "confirm with --yes" in refused.error, refused
            done = cli.run("replication", "g1", "--min-in-sync", "1", "--yes", "--timeout", "30s")
            assert done.status == 0 and "g1 goes by min_in_sync 1" in done.out, done
            history.progress()
            assert status_of(cluster, "n3", "g1").ha.min_in_sync == 1

            cluster.start(gone)
            cluster.wait_ready(nodes=[gone])
            wait_in_sync(cluster, "n1", "n2")
            back = cli.run("replication", "g1", "--min-in-sync", "2", "--timeout", "30s")
            assert back.status == 0, back
            history.progress()
        cluster.wait_ready()
        history.check(lambda: cli.consume_all(TOPIC, "judge"))
