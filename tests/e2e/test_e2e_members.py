"""Operators change the cluster while clients write: a node joins, another leaves, a third moves,
and what was acknowledged is there."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster, free_ports
from ledgermq.node.runtime.config_cluster import NodeAddress
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity as identity_files
from tests import cluster as real
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
OK = 20000


class Writer:
    """Sends numbered messages to one node after the other, and remembers which were
    acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.acknowledged: set[str] = set()
        self.targets = list(cluster.nodes)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            node = self.targets[number % len(self.targets)]
            if real.send(self._cluster, node, "t", f"m{number:06}", timeout_s=5) == OK:
                self.acknowledged.add(f"m{number:06}")


def places(address: NodeAddress) -> str:
    return f"{address.host}:{address.client_port}:{address.peer_port}:{address.controller_port}:{address.http_port}"


def settings(node: str, address: NodeAddress) -> list[str]:
    return [
        f"nodes.{node}.{key}={value}"
        for key, value in address.model_dump(exclude_none=True).items()
    ]


@contextmanager
def started_with(cluster: LocalCluster, extra: list[str]) -> Iterator[None]:
    """Nodes that are started inside have further settings; the others' files know nothing of
    them."""
    former, cluster.settings = cluster.settings, [*cluster.settings, *extra]
    try:
        yield
    finally:
        cluster.settings = former


def read_all(run: CommandLine) -> set[str]:
    outcome = run.run(
        "consume",
        "--topic",
        "t",
        "--group",
        "readers",
        "--until-empty",
        "4s",
        "--json",
        "--timeout",
        "60s",
    )
    assert outcome.status == 0, outcome.err
    return {line["body"] for line in outcome.lines}


@pytest.mark.quiet
def test_replacing_all_nodes_under_load_keeps_messages(tmp_path: Path) -> None:
    """Add n4, promote it, remove n1, move n2, restart everything with files that know nothing of
    all that."""
    with real.running(tmp_path) as cluster:
        run = CommandLine(cluster.endpoints)
        real.create_topic(cluster, "t")
        fourth, moved = free_ports(2)
        with Writer(cluster) as writer:
            cluster.nodes["n4"] = fourth
            joining = [*settings("n4", fourth), "join=true"]
            with started_with(cluster, joining):
                cluster.start("n4")
            outcome = run.run(
                "member", "add", "n4", "--address", places(fourth), "--timeout", "60s"
            )
            assert outcome.status == 0, outcome.err
            assert run.run("member", "promote", "n4", "--timeout", "60s").out == "n4 votes\n"
            cluster.wait_ready(60, ["n4"])
            writer.targets.append("n4")
            members = {
                found["node"]: found
                for found in run.run("member", "list", "--json").json["members"]
            }
            assert [row["role"] for row in members["n4"]["groups"]] == ["voter"] and members["n4"][
                "controller"
            ]

            writer.targets.remove("n1")
            outcome = run.run("member", "remove", "n1", "--yes", "--timeout", "60s")
            assert outcome.status == 0, outcome.err
            refused = "was removed from this cluster"
            real.wait_for(
                lambda: any(refused in line for line in real.log_lines(cluster, "n1")),
                30,
                "n1 to be told",
            )
            # n1 does not hear any more what the controllers decide: the answer to the first call
            # may have been lost on its way there.
            assert (
                run.run("member", "remove", "n1", "--yes", "--timeout", "60s").out
                == "n1 is removed\n"
            )
            run = CommandLine(";".join(real.target(cluster, node) for node in ("n2", "n3", "n4")))
            assert cluster.terminate("n1") == 0
            del cluster.nodes["n1"]

            writer.targets.remove("n2")
            assert cluster.terminate("n2") == 0
            cluster.nodes["n2"] = moved
            assert (
                run.run("member", "set-address", "n2", places(moved), "--timeout", "30s").status
                == 0
            )
            with started_with(cluster, settings("n2", moved)):
                cluster.start("n2")
            cluster.wait_ready(60, ["n2"])
            writer.targets.append("n2")
            before = len(writer.acknowledged)
            real.wait_for(
                lambda: len(writer.acknowledged) > before + 20, 60, "messages after all changes"
            )
            status = real.status(cluster, "n3")
            assert (
                sorted(status.groups[0].voters) == ["n2", "n3", "n4"]
                and not status.groups[0].learners
            )
            assert sorted(node.node for node in status.nodes) == ["n2", "n3", "n4"]

        assert set(cluster.stop().values()) == {0}
        # n3's file still says that n1 exists, that n2 is where it was, and nothing of n4.
        cluster.start("n3")
        with started_with(cluster, settings("n2", moved)):
            cluster.start("n2")
        with started_with(cluster, joining):
            cluster.start("n4")
        cluster.wait_ready(90)
        run = CommandLine(cluster.endpoints)
        assert writer.acknowledged <= read_all(run)
        listed = {
            found["node"]: found["up"]
            for found in run.run("member", "list", "--json").json["members"]
        }
        assert listed == {"n2": True, "n3": True, "n4": True}


BUILD_AHEAD = """
import ledgermq.storage.state.identity as identity
identity.FORMAT_MAX = 2
"""
"""As a sitecustomize module: the same program one format version ahead, which has not switched any
group yet."""


@pytest.mark.verify
def test_builds_one_format_version_apart_are_exchanged_one_by_one_and_back(tmp_path: Path) -> None:
    """Rolling to the next build and back while messages are sent; a directory of an unknown version
    is refused before the first write."""
    ahead = tmp_path / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(BUILD_AHEAD)
    path = os.pathsep.join([str(ahead), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        with Writer(cluster) as writer:
            for environment, nodes in (({"PYTHONPATH": path}, ("n1", "n2", "n3")), ({}, ("n2",))):
                cluster.environment = environment
                for node in nodes:
                    assert cluster.terminate(node) == 0
                    cluster.start(node)
                    cluster.wait_ready(60)
            before = len(writer.acknowledged)
            real.wait_for(
                lambda: len(writer.acknowledged) > before + 20, 60, "messages among mixed builds"
            )
        assert writer.acknowledged <= read_all(CommandLine(cluster.endpoints))
        assert cluster.terminate("n2") == 0
        root = cluster.data("n2") / "g1"
        found = identity_files.read_identity(RealDisk(), str(root))
        assert found is not None and found.format_version == 1
        identity_files.write_identity(RealDisk(), str(root), replace(found, format_version=2))
        before_bytes = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
        assert cluster.start("n2").wait(60) == 76
        assert {
            file: file.read_bytes() for file in root.rglob("*") if file.is_file()
        } == before_bytes
        assert "format version 2, this program knows 1" in cluster.last_error("n2")
        cluster.environment = {"PYTHONPATH": path}
        cluster.start("n2")
        # All three read version 2 now.
        cluster.wait_ready(60, ["n2"])


def test_removal_that_costs_the_quorum_exits_with_4(tmp_path: Path) -> None:
    """With one of three down, no other may go; the one that is down may."""
    with real.running(tmp_path) as cluster:
        run = CommandLine(cluster.endpoints)
        leader = real.leader(cluster)
        down, other = sorted(set(cluster.nodes) - {leader})
        cluster.kill(down)
        outcome = run.run("member", "remove", other, "--yes", "--timeout", "20s")
        assert outcome.status == 4 and "quorum" in outcome.error
        outcome = run.run("member", "remove", "n9", "--yes")
        assert (
            outcome.status == 4
            and "n9 is not part of this cluster; its nodes are n1, n2, n3" in outcome.error
        )
        assert (
            run.run("member", "remove", down, "--yes", "--timeout", "60s").out
            == f"{down} is removed\n"
        )
        del cluster.children[down], cluster.nodes[down]
