"""Loss of a site: three voters die at once, and their observer at another site continues alone,
with the loss reported. This is the documented procedure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster, free_ports
from tests.cluster import (
    create_topic,
    full_files_sealed,
    leader,
    log_events,
    log_file_bases,
    log_lines,
    running,
    status,
    target,
    wait_for,
)
from tests.e2e.audit.test_e2e_repair import passes
from tests.e2e.command_line import CommandLine
from tests.e2e.test_e2e_install import FILE_BYTES, TRIMMING
from tests.e2e.test_e2e_members import places, settings, started_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

SLOW = "raft.observer_bytes_per_s=65536"
"""So little is pushed to the observer that it cannot keep up with a burst."""


def bodies(first: int, count: int) -> list[str]:
    return [f"{number:06d}".ljust(1000, ".") for number in range(first, first + count)]


def observed(cluster: LocalCluster, run: CommandLine) -> list[str]:
    """Start n4 and add it as an observer; the settings with which it is to be started from now
    on."""
    (fourth,) = free_ports(1)
    cluster.nodes["n4"] = fourth
    own = [*settings("n4", fourth), "join=true"]
    with started_with(cluster, own):
        cluster.start("n4")
    outcome = run.run(
        "member", "add", "n4", "--address", places(fourth), "--observer", "--timeout", "60s"
    )
    assert (outcome.status, outcome.out) == (0, "n4 observes\n"), outcome.err
    return own


def heard(cluster: LocalCluster) -> dict[str, Any]:
    """What the observer keeps of its leader."""
    path = cluster.data("n4") / "g1" / "state" / "heard"
    return json.loads(path.read_bytes()) if path.exists() else {}


def replica(cluster: LocalCluster, asked: str, node: str) -> Any:
    return next(found for found in status(cluster, asked).groups[0].replicas if found.node == node)


def settled_end(cluster: LocalCluster, node: str) -> int | None:
    """The last entry of a leader that has committed everything, the seals of its full log files
    included: they come some time later."""
    if not full_files_sealed(cluster):
        return None
    found = replica(cluster, node, node)
    return int(found.end_index) if found.commit_index == found.end_index else None


def lost_site(cluster: LocalCluster) -> None:
    """Kill all nodes with SIGKILL except the observer, which is stopped cleanly."""
    for node in ("n1", "n2", "n3"):
        cluster.kill(node)
    for node in ("n1", "n2", "n3"):
        del cluster.children[node]
    assert cluster.terminate("n4") == 0


def test_an_observer_goes_on_alone_with_the_loss_it_states(tmp_path: Path) -> None:
    """Behind by a burst when the voters die: what it says is lost is what the leader had and it had
    not; all it had is read; it takes more; a voter that comes back is refused by log id."""
    with running(tmp_path, settings=[SLOW]) as cluster:
        run = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        sent = bodies(0, 100)
        assert run.send_lines("t", sent)["acknowledged"] == 100
        own = observed(cluster, run)
        (row,) = next(
            found
            for found in run.ok("member", "list", "--json").json["members"]
            if found["node"] == "n4"
        )["groups"]
        assert row["role"] == "observer"
        assert not next(
            found
            for found in run.ok("member", "list", "--json").json["members"]
            if found["node"] == "n4"
        )["controller"]
        refused = run.run("member", "promote", "n4")
        assert refused.status == 4 and "--observer-too" in refused.error
        more = bodies(100, 4_000)
        assert run.send_lines("t", more)["acknowledged"] == len(more)
        first = leader(cluster)
        end = wait_for(lambda: settled_end(cluster, first), 30, "everything to be committed")
        wait_for(
            lambda: heard(cluster).get("commit_index") == end,
            30,
            "the observer's note of the leader's end",
        )
        assert (
            replica(cluster, first, "n4").role == "observer"
            and replica(cluster, first, "n4").lag_entries > 0
        )
        assert replica(cluster, first, first).end_index == end, "nothing is written any more"
        lost_site(cluster)

        told = run.ok(
            "promote-observer", "--all", "--data", cluster.data("n4"), "--yes", "--json"
        ).json
        loss = told["groups"]["g1"]["loss"]
        assert (
            told["metadata"]
            and told["observed_still"] == []
            and loss["given_up"] == ["n1", "n2", "n3"]
        )
        assert (
            loss["lost"]["entries"] == loss["lost"]["committed"] == end - loss["index"] > 0
            and loss["lost"]["ms"] >= 0
        )

        with started_with(cluster, own):
            cluster.start("n4")
        cluster.wait_ready(60, ["n4"])
        alone = CommandLine(target(cluster, "n4"))
        found = [
            message["body"]
            for message in alone.ok("peek", "--topic", "t", "--max", "10000", "--json").lines
        ]
        everything = {*sent, *more}
        # Of the entries behind the observer's end all but a few control records were messages.
        lost = len(everything) - len(found)
        assert (
            loss["lost"]["entries"] - 5 <= lost <= loss["lost"]["entries"]
            and len({*found}) == len(found)
            and {*found} <= everything
        )
        assert alone.send_lines("t", ["after"], "--timeout", "30s")["acknowledged"] == 1
        assert alone.ok("topic", "create", "new").status == 0

        cluster.start("n1")
        wait_for(
            lambda: any("has log" in line and "n1" in line for line in log_lines(cluster, "n4")),
            30,
            "n1 to be refused by its log",
        )
        assert alone.send_lines("t", ["still"], "--timeout", "30s")["acknowledged"] == 1
        cluster.kill("n1")
        del cluster.children["n1"]
        for node in ("n1", "n2", "n3"):
            del cluster.nodes[node]


@pytest.mark.verify
def test_promoted_observer_has_all_received_messages(tmp_path: Path) -> None:
    """The command reports this, and consumer groups continue at their positions."""
    with running(tmp_path) as cluster:
        run = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        own = observed(cluster, run)
        sent = bodies(0, 50)
        assert run.send_lines("t", sent)["acknowledged"] == 50
        taken = run.ok(
            "consume",
            "--topic",
            "t",
            "--group",
            "readers",
            "--max",
            "20",
            "--json",
            "--timeout",
            "60s",
        ).lines
        first = leader(cluster)

        def settled() -> bool:
            there = replica(cluster, first, first)
            known, mine = heard(cluster), replica(cluster, first, "n4")
            return known.get("commit_index") == there.end_index == mine.durable_index

        wait_for(settled, 60, "the observer to have everything")
        lost_site(cluster)
        told = run.ok(
            "promote-observer", "g1", "--data", cluster.data("n4"), "--yes", "--json"
        ).json
        assert told["groups"]["g1"]["loss"]["lost"] == {"entries": 0, "committed": 0, "ms": 0}
        with started_with(cluster, own):
            cluster.start("n4")
        cluster.wait_ready(60, ["n4"])
        alone = CommandLine(target(cluster, "n4"))
        rest = alone.ok(
            "consume",
            "--topic",
            "t",
            "--group",
            "readers",
            "--until-empty",
            "6s",
            "--json",
            "--timeout",
            "60s",
        ).lines
        assert {message["body"] for message in [*taken, *rest]} == set(sent)
        for node in ("n1", "n2", "n3"):
            del cluster.nodes[node]


def states(cluster: LocalCluster, node: str, group: str) -> list[str]:
    """The states of a group since the node's log began, in order."""
    changes = [
        event
        for event in log_events(cluster, node)
        if event.get("event") == "broker group changed state"
    ]
    return [change["state"] for change in changes if change["group"] == group]


def caught_up(cluster: LocalCluster) -> bool:
    """Whether the observer lacks nothing of any group, as its leaders see it."""
    found = [
        its for info in status(cluster, "n1").groups for its in info.replicas if its.node == "n4"
    ]
    return len(found) == 2 and all(
        its.role == "observer" and its.HasField("lag_entries") and not its.lag_entries
        for its in found
    )


def test_an_observer_below_the_trim_is_installed(tmp_path: Path) -> None:
    """Of a Raft group and of an HA group, killed and away while what it lacks is trimmed
    everywhere: it gets begin, snapshot and files from a peer, observes as before, follows on, and
    passes the audit with the others."""
    groups = ("g1", {"name": "h1", "replication": "ha"})
    with running(tmp_path, groups=groups, log_file_bytes=FILE_BYTES, extra=TRIMMING) as cluster:
        run = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=2)
        own = observed(cluster, run)
        assert run.send_lines("t", bodies(0, 80))["acknowledged"] == 80
        wait_for(lambda: caught_up(cluster), 60, "the observer to have everything")
        cluster.kill("n4")
        ends = {group: log_file_bases(cluster, "n4", group)[-1] for group in ("g1", "h1")}
        assert run.send_lines("t", bodies(80, 800))["acknowledged"] == 800

        def trimmed() -> bool:
            begins = [
                log_file_bases(cluster, node, group)[0] - end
                for group, end in ends.items()
                for node in ("n1", "n2", "n3")
            ]
            return min(begins) > FILE_BYTES

        wait_for(trimmed, 120, "trims beyond the observer")
        before = {group: len(states(cluster, "n4", group)) for group in ends}
        with started_with(cluster, own):
            cluster.start("n4")
        for group, seen in before.items():

            def installed(group: str = group, seen: int = seen) -> bool:
                return states(cluster, "n4", group)[seen:][-2:] == ["installing", "running"]

            wait_for(installed, 90, f"{group} to be installed")
            assert log_file_bases(cluster, "n4", group)[0] > ends[group]
        wait_for(lambda: caught_up(cluster), 60, "the observer to follow")
        assert run.send_lines("t", bodies(880, 40))["acknowledged"] == 40
        wait_for(lambda: caught_up(cluster), 60, "the observer to go on")
        members = next(
            found
            for found in run.ok("member", "list", "--json").json["members"]
            if found["node"] == "n4"
        )
        assert [row["role"] for row in members["groups"]] == [
            "observer",
            "observer",
        ] and not members["controller"]
    passes(run, cluster)
