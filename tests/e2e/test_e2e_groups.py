"""Broker groups come, replicas move and a cluster is balanced while clients write; official clients work over several groups."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ledgermq.node.local import free_ports
from tests import cluster as real
from tests.contract.official import events, message, official, push, receive_some, simple, text
from tests.e2e.command_line import CommandLine
from tests.e2e.test_e2e_members import Writer, places, read_all, settings, started_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def members_of(run: CommandLine, group: str) -> dict[str, str]:
    (found,) = [entry for entry in run.ok("broker-group", "list", "--json").json["groups"] if entry["group"] == group]
    return {member["node"]: member["role"] for member in found["members"]}


def test_a_group_comes_and_a_replica_moves_under_load(tmp_path: Path) -> None:
    """Sends go on, everything acknowledged is read, wrong moves are refused by name, and a restart finds all of it again."""
    with real.running(tmp_path, groups=("g1", "g2")) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "t")
        with Writer(cluster) as writer:
            assert run.ok("broker-group", "add", "g3", "--replicas", "n1,n2", "--timeout", "60s").out == "created: g3 on n1, n2\n"
            again = run.ok("broker-group", "add", "g3", "--replicas", "n1,n2", "--json").json
            assert not again["created"] and again["done"]
            run.ok("topic", "update", "t", "--add-group", "g3")
            queues = run.ok("topic", "describe", "t", "--json").json["queue_list"]
            assert Counter(queue["broker_group"] for queue in queues) == {"g1": 2, "g2": 2, "g3": 2}
            before = len(writer.acknowledged)
            real.wait_for(lambda: len(writer.acknowledged) > before + 50, 60, "messages in three groups")
            moved = run.ok("move-replica", "g3", "--from", "n1", "--to", "n3", "--timeout", "60s", "--json").json
            assert moved["done"] and moved["left"] == "n1: g3/" and members_of(run, "g3") == {"n2": "voter", "n3": "voter"}
            before = len(writer.acknowledged)
            real.wait_for(lambda: len(writer.acknowledged) > before + 50, 60, "messages after the move")
        for refused, words in (
            (("--from", "n1", "--to", "n2"), "node n1 has no replica of broker group g3"),
            (("--from", "n2", "--to", "n3"), "node n3 has a replica of broker group g3 already"),
            (("--from", "n2", "--to", "n9"), "node n9 is not part of this cluster"),
        ):
            outcome = run.run("move-replica", "g3", *refused)
            assert outcome.status == 4 and words in outcome.error, outcome
        assert set(cluster.stop().values()) == {0}
        cluster.start_all()
        cluster.wait_ready(90)
        assert members_of(run, "g3") == {"n2": "voter", "n3": "voter"}
        assert writer.acknowledged <= read_all(run)
        assert set(cluster.stop().values()) == {0}
        # n1 has replicas of g1 and g2, and what g3 left there.
        audited = run.ok("audit", "--engine", "local", *(cluster.data(node) for node in cluster.nodes), timeout_s=300)
        assert "audit: PASS" in audited.out and "n1 was a member, and its replica was moved or removed" in audited.out


def test_a_fourth_node_gets_its_share(tmp_path: Path) -> None:
    """It joins without a replica; the plan is told, carried out under load, and empty afterwards."""
    with real.running(tmp_path, groups=("g1", "g2", "g3", "g4")) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "t")
        (fourth,) = free_ports(1)
        cluster.nodes["n4"] = fourth
        with started_with(cluster, [*settings("n4", fourth), "join=spare"]):
            cluster.start("n4")
        assert run.ok("member", "add", "n4", "--address", places(fourth), "--timeout", "60s").out == "n4 has joined\n"
        told = run.ok("rebalance", "--dry-run", "--json").json
        assert sum(step["kind"] == "move-replica" for step in told["steps"]) == 3 and told["taken"] == 0
        assert run.run("rebalance").status == 64, "without a terminal it wants --yes"
        with Writer(cluster) as writer:
            done = run.ok("rebalance", "--yes", "--timeout", "90s", "--json", timeout_s=300).json
            assert done["taken"] == len(done["steps"])
        groups = run.ok("broker-group", "list", "--json").json["groups"]
        placed = Counter(member["node"] for entry in groups for member in entry["members"])
        assert placed == {"n1": 3, "n2": 3, "n3": 3, "n4": 3}
        assert Counter(entry["leader"] for entry in groups) == {"n1": 1, "n2": 1, "n3": 1, "n4": 1}
        assert run.ok("rebalance").out == "balanced: nothing to move\n"
        assert writer.acknowledged and writer.acknowledged <= read_all(run)


def test_official_clients_over_three_groups(tmp_path: Path) -> None:
    """Sends and deliveries use all groups, and message groups keep their order."""
    with real.running(tmp_path, groups=("g1", "g2", "g3")) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "T", queues=6)
        real.create_topic(cluster, "F", "fifo", queues=6)
        real.create_group(cluster, "FG", fifo=True)
        with official(cluster, tmp_path / "home") as client:
            client.do("producer", name="p", topics=["T", "F"])
            push(client, "T")
            client.do("send_many", name="p", messages=[message("T", str(number)) for number in range(120)])
            assert sorted(int(text(got)) for got in events(client, 120, within_s=60)) == list(range(120))
            used = {queue["broker_group"] for queue in run.ok("topic", "describe", "T", "--json").json["queue_list"] if queue["max_offset"]}
            assert used == {"g1", "g2", "g3"}
            for number in range(8):
                for name in "abcdef":
                    client.do("send", name="p", message=message("F", f"{name}{number}", message_group=name))
            push(client, "F", name="ordered", group="FG")
            seen = [text(got) for got in events(client, 48, name="ordered", within_s=90)]
            for name in "abcdef":
                assert [body for body in seen if body.startswith(name)] == [f"{name}{number}" for number in range(8)]
            simple(client, "T", group="again")
            assert receive_some(client)
