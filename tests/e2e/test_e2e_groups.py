"""Broker groups come, replicas move and a cluster is balanced while clients write; official clients
work over several groups."""

from __future__ import annotations

import itertools
import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster, free_ports
from ledgermq.proto import admin_pb2
from tests import cluster as real
from tests.contract.official import events, message, official, push, receive_some, simple, text
from tests.e2e.command_line import CommandLine
from tests.e2e.test_e2e_members import Writer, places, read_all, settings, started_with
from tests.faults.histories import History

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def members_of(run: CommandLine, group: str) -> dict[str, str]:
    (found,) = [
        entry
        for entry in run.ok("broker-group", "list", "--json").json["groups"]
        if entry["group"] == group
    ]
    return {member["node"]: member["role"] for member in found["members"]}


def test_a_group_comes_and_a_replica_moves_under_load(tmp_path: Path) -> None:
    """Sends continue, all acknowledged messages are read, wrong moves are refused by name, and a
    restart finds the same state."""
    with real.running(tmp_path, groups=("g1", "g2")) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "t")
        with Writer(cluster) as writer:
            assert (
                run.ok("broker-group", "add", "g3", "--replicas", "n1,n2", "--timeout", "60s").out
                == "created: g3 on n1, n2\n"
            )
            again = run.ok("broker-group", "add", "g3", "--replicas", "n1,n2", "--json").json
            assert not again["created"] and again["done"]
            run.ok("topic", "update", "t", "--add-group", "g3")
            queues = run.ok("topic", "describe", "t", "--json").json["queue_list"]
            assert Counter(queue["broker_group"] for queue in queues) == {"g1": 2, "g2": 2, "g3": 2}
            before = len(writer.acknowledged)
            real.wait_for(
                lambda: len(writer.acknowledged) > before + 50, 60, "messages in three groups"
            )
            moved = run.ok(
                "move-replica", "g3", "--from", "n1", "--to", "n3", "--timeout", "60s", "--json"
            ).json
            assert (
                moved["done"]
                and moved["left"] == "n1: g3/"
                and members_of(run, "g3") == {"n2": "voter", "n3": "voter"}
            )
            before = len(writer.acknowledged)
            real.wait_for(
                lambda: len(writer.acknowledged) > before + 50, 60, "messages after the move"
            )
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
        audited = run.ok(
            "audit",
            "--engine",
            "local",
            *(cluster.data(node) for node in cluster.nodes),
            timeout_s=300,
        )
        assert (
            "audit: PASS" in audited.out
            and "n1 was a member, and its replica was moved or removed" in audited.out
        )


def test_a_fourth_node_gets_its_share(tmp_path: Path) -> None:
    """It joins without a replica; the plan is shown, carried out under load, and empty
    afterwards."""
    with real.running(tmp_path, groups=("g1", "g2", "g3", "g4")) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "t")
        (fourth,) = free_ports(1)
        cluster.nodes["n4"] = fourth
        with started_with(cluster, [*settings("n4", fourth), "join=spare"]):
            cluster.start("n4")
        assert (
            run.ok("member", "add", "n4", "--address", places(fourth), "--timeout", "60s").out
            == "n4 has joined\n"
        )
        told = run.ok("rebalance", "--dry-run", "--json").json
        assert (
            sum(step["kind"] == "move-replica" for step in told["steps"]) == 3
            and told["taken"] == 0
        )
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


def in_sync(run: CommandLine) -> list[str]:
    (found,) = run.ok("status", "--json").json["groups"]
    return list(found["ha"]["in_sync"])


@pytest.mark.verify
def test_replicas_of_an_idle_ha_group_move_and_go(tmp_path: Path) -> None:
    """From a slave to a node that was down when it was added, from the master, and a removal: no
    client sends, so only the command itself drives the group. Removed replicas leave the in-sync
    set, and the others are in it."""
    with real.running(tmp_path, groups=({"name": "g1", "replication": "ha"},)) as cluster:
        run = CommandLine.of(cluster)
        (fourth,) = free_ports(1)
        added = run.run("member", "add", "n4", "--address", places(fourth), "--timeout", "4s")
        assert added.status == 4 and "n4 does not answer" in added.error, added
        cluster.nodes["n4"] = fourth
        with started_with(cluster, [*settings("n4", fourth), "join=spare"]):
            cluster.start("n4")
        up = lambda: {  # noqa: E731
            row["node"] for row in run.ok("member", "list", "--json").json["members"] if row["up"]
        }
        real.wait_for(lambda: "n4" in up(), 60, "n4 to be reached")
        real.wait_for(lambda: in_sync(run) == ["n1", "n2", "n3"], 60, "all replicas in sync")
        master = real.leader(cluster)
        slave, other = (node for node in ("n1", "n2", "n3") if node != master)
        moved = run.ok(
            "move-replica",
            "g1",
            "--from",
            slave,
            "--to",
            "n4",
            "--timeout",
            "60s",
            "--json",
            timeout_s=180,
        ).json
        assert moved["done"] and members_of(run, "g1") == dict.fromkeys(
            sorted({master, other, "n4"}), "voter"
        )
        real.wait_for(
            lambda: in_sync(run) == sorted({master, other, "n4"}), 60, "the moved replica in sync"
        )
        master = real.leader(cluster)
        moved = run.ok(
            "move-replica",
            "g1",
            "--from",
            master,
            "--to",
            slave,
            "--timeout",
            "60s",
            "--json",
            timeout_s=180,
        ).json
        left = {"n1", "n2", "n3", "n4"} - {master}
        assert moved["done"] and members_of(run, "g1") == dict.fromkeys(sorted(left), "voter")
        real.wait_for(
            lambda: in_sync(run) == sorted(left), 60, "the replica that moved back in sync"
        )
        gone = next(node for node in sorted(left) if node != real.leader(cluster))
        run.ok(
            "member", "remove", gone, "--yes", "--group", "g1", "--timeout", "60s", timeout_s=180
        )
        assert set(members_of(run, "g1")) == left - {gone} and set(in_sync(run)) == left - {gone}


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
            client.do(
                "send_many", name="p", messages=[message("T", str(number)) for number in range(120)]
            )
            assert sorted(int(text(got)) for got in events(client, 120, within_s=60)) == list(
                range(120)
            )
            used = {
                queue["broker_group"]
                for queue in run.ok("topic", "describe", "T", "--json").json["queue_list"]
                if queue["max_offset"]
            }
            assert used == {"g1", "g2", "g3"}
            for number in range(8):
                for name in "abcdef":
                    client.do(
                        "send",
                        name="p",
                        message=message("F", f"{name}{number}", message_group=name),
                    )
            push(client, "F", name="ordered", group="FG")
            seen = [text(got) for got in events(client, 48, name="ordered", within_s=90)]
            for name in "abcdef":
                assert [body for body in seen if body.startswith(name)] == [
                    f"{name}{number}" for number in range(8)
                ]
            simple(client, "T", group="again")
            assert receive_some(client)


def move_of(cluster: LocalCluster, group: str) -> tuple[str, str] | None:
    """From where to where a replica of the group moves at the moment, as a node that runs says;
    also None when it cannot say it."""
    asked = next(node for node, child in cluster.children.items() if child.exit_code is None)
    try:
        answer = real.admin(cluster, asked, "ListBrokerGroups", admin_pb2.ListBrokerGroupsRequest())
    except grpc.RpcError:
        return None
    found = next(
        (
            entry.move
            for entry in answer.groups
            if entry.broker_group == group and entry.HasField("move")
        ),
        None,
    )
    return None if found is None else (found.from_node, found.to_node)


def back(cluster: LocalCluster, node: str) -> None:
    cluster.start(node)
    cluster.wait_ready(120, [node])


def longest_pause(history: History) -> float:
    """The longest time in seconds between two consecutive acknowledgements of all clients."""
    told = sorted(
        send.returned
        for sender in history.senders
        for send in sender.sends
        if send.offset is not None
    )
    return max(later - earlier for earlier, later in itertools.pairwise(told))


KILLS = (("command", "n1", "n4", "n2"), ("source", "n4", "n1", "n2"), ("target", "n1", "n4", "n3"), ("leader", "n4", "n1", "n2"),
         ("source", "n1", "n4", "n1"))  # fmt: skip
"""Who is killed, from where to where the replica moves, who leads; the last one is both."""


def killed_in_a_move(
    run: CommandLine, cluster: LocalCluster, history: History, kill: tuple[str, str, str, str]
) -> bool:
    """Kill a node during a move, and finish the move by the same command. Returns whether the move
    was running at the time of the kill."""
    victim, source, target, leads = kill
    run.ok("transfer", "g1", "--to", leads, "--timeout", "60s")
    command = ("move-replica", "g1", "--from", source, "--to", target, "--timeout", "90s")
    going = run.start(*command)
    real.wait_for(
        lambda: move_of(cluster, "g1") == (source, target) or going.poll() is not None,
        60,
        "the move to begin",
    )
    in_the_middle = going.poll() is None
    node = {"source": source, "target": target, "leader": leads}.get(victim)
    if node is None:
        going.kill()
        history.progress()
    else:
        cluster.kill(node)
        history.progress()
        back(cluster, node)
    going.communicate(timeout=300)
    run.ok(*command, timeout_s=300)
    assert members_of(run, "g1") == {"n2": "voter", "n3": "voter", target: "voter"}
    history.progress()
    return in_the_middle


@pytest.mark.timeout(1200)
@pytest.mark.verify
def test_a_move_goes_on_after_a_kill_of_whoever_takes_part(tmp_path: Path) -> None:
    """The command, the source, the target, the leader, and a leader that is the source, each in the
    middle of a move under load: the same command finishes it, or --abort gives it up though the
    target is dead. Everything acknowledged is there, once, and in order."""
    with real.running(
        tmp_path, nodes=4, groups=[{"name": "g1", "replicas": ["n1", "n2", "n3"]}]
    ) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "t", queues=1)
        with History(cluster, "t", senders=2, body_bytes=1000) as history:
            hits = [killed_in_a_move(run, cluster, history, kill) for kill in KILLS]
            assert any(hits), "no kill came while its move was under way"
            run.ok("move-replica", "g1", "--from", "n4", "--to", "n1", "--no-wait")
            cluster.kill("n1")
            history.progress()
            run.ok(
                "move-replica",
                "g1",
                "--from",
                "n4",
                "--to",
                "n1",
                "--abort",
                "--timeout",
                "90s",
                timeout_s=300,
            )
            assert members_of(run, "g1") == {"n2": "voter", "n3": "voter", "n4": "voter"}
            back(cluster, "n1")
            history.progress()
        paused = longest_pause(history)
        print(
            f"in the middle: {hits}; acknowledged {history.acknowledged}; the longest pause of all"
            f" producers was {paused:.1f} s"
        )
        consume = (
            "consume",
            "--topic",
            "t",
            "--group",
            "readers",
            "--until-empty",
            "2s",
            "--timeout",
            "60s",
        )
        history.check(lambda: run.ok(*consume, timeout_s=600).out.splitlines())
        assert set(cluster.stop().values()) == {0}
        audited = run.ok(
            "audit",
            "--engine",
            "local",
            *(cluster.data(node) for node in cluster.nodes),
            timeout_s=300,
        )
        assert "audit: PASS" in audited.out


NO_QUORUM = (
    ("broker-group", "add", "g9", "--replicas", "n1,n2"),
    ("broker-group", "list"),
    ("topic", "create", "x"),
    ("topic", "update", "t", "--queues", "9"),
    ("topic", "update", "t", "--add-group", "h1"),
    ("move-replica", "g1", "--from", "n1", "--to", "n3"),
    ("move-replica", "g1", "--from", "n1", "--to", "n3", "--abort"),
    ("rebalance", "--dry-run"),
    ("rebalance", "--yes"),
    ("elect", "h1", "--node", "n2", "--unclean", "--yes"),
    ("replication", "g1", "--to", "ha"),
    ("member", "list"),
    ("member", "add", "n3"),
    ("member", "promote", "n3"),
    ("member", "remove", "n3", "--yes"),
)
PATIENCE_S = 10


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_ctrl_c_of_a_balance_and_commands_without_a_controller_quorum(tmp_path: Path) -> None:
    """The first prints how to continue and how to undo, and the undo works. The others report
    within their timeout that there is no quorum, and change nothing, while messages continue."""
    groups = [
        {"name": "g1", "replicas": ["n1", "n2"]},
        {"name": "h1", "replicas": ["n1", "n2"], "replication": "ha"},
    ]
    with real.running(tmp_path, nodes=4, groups=groups) as cluster:
        run = CommandLine.of(cluster)
        real.create_topic(cluster, "t")
        before = {group: members_of(run, group) for group in ("g1", "h1")}
        balance = run.start("rebalance", "--yes", "--timeout", "60s")
        real.wait_for(lambda: any(move_of(cluster, name) for name in before), 60, "a move")
        balance.send_signal(signal.SIGINT)
        _, err = balance.communicate(timeout=60)
        assert balance.returncode == 130, err
        told = err.decode().splitlines()[-1]
        assert (
            re.match(r"error: stopped in step \d+ of ", told)
            and "; continue: ledgermq rebalance, or abort this move: " in told
        )
        (way_back,) = re.findall(r"ledgermq (move-replica \S+ --from \S+ --to \S+ --abort)", told)
        group = way_back.split()[1]
        run.ok(*way_back.split(), "--timeout", "60s")
        assert move_of(cluster, group) is None and members_of(run, group) == before[group]
        # A target that is killed before it has closed the replica that was taken back keeps the
        # replica's abort file for good.
        target = cluster.data(way_back.split()[way_back.split().index("--to") + 1]) / group
        real.wait_for(lambda: not (target / "abort").exists(), 60, f"{target} to be closed")

        for node in ("n3", "n4"):
            cluster.kill(node)
        two = CommandLine(";".join(real.target(cluster, node) for node in ("n1", "n2")))
        real.wait_for(
            lambda: two.run("broker-group", "list", "--timeout", "1s").status == 3,
            60,
            "the quorum to be gone",
        )
        with ThreadPoolExecutor(len(NO_QUORUM)) as pool:
            outcomes = list(
                pool.map(
                    lambda command: two.run(*command, "--timeout", f"{PATIENCE_S}s"), NO_QUORUM
                )
            )
        for command, outcome in zip(NO_QUORUM, outcomes, strict=True):
            assert outcome.status in (3, 4) and "controller quorum" in outcome.error, (
                command,
                outcome,
            )
        assert two.send_lines("t", map(str, range(40)), "--timeout", "30s")["acknowledged"] == 40
        for node in ("n3", "n4"):
            back(cluster, node)
        groups_now = {
            entry["group"]: entry
            for entry in run.ok("broker-group", "list", "--json", "--timeout", "60s").json["groups"]
        }
        assert set(groups_now) == {"g1", "h1"} and not any(
            entry["move"] for entry in groups_now.values()
        )
        assert {name: entry["replication"] for name, entry in groups_now.items()} == {
            "g1": "raft",
            "h1": "ha",
        }
