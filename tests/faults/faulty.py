"""A cluster of real processes whose peers connect through a proxy, and the checks of its
directories at the end.

`faulty(tmp_path)` yields a ready cluster. Each test ends with `judge`: all nodes are up and equal,
the histories are correct, each term has at most one leader, every node stops cleanly, and the local
audit of the three directories passes.

In all configurations and in the controller quorum, a node has a loopback address of its own that
belongs to the proxy. The node itself listens on 127.0.0.1, where the tests' clients connect. So the
proxy controls both peer streams and the controller's connections.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledgermq.audit.cli.report import as_text
from ledgermq.audit.run.jobs import Audit
from ledgermq.audit.run.jobs import audit as run_audit
from ledgermq.node.process.local import Child, LocalCluster
from ledgermq.proto import admin_pb2
from tests.cluster import create_topic, http, log_lines, running, status, target, wait_for
from tests.e2e.command_line import CommandLine
from tests.faults.histories import History
from tests.faults.proxy import Address, Network, holder

TOPIC = "faults"
GROUP = "g1"
KNOWN_AS = "127.0.0.10"
"""The prefix of the loopback addresses 127.0.0.101, …102, …103."""
WAIT_S = 60.0


class FaultyCluster(LocalCluster):
    """Nodes that may each have their own directory, settings and environment."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.own_environment: dict[str, Mapping[str, str]] = {}
        self.own_data: dict[str, Path] = {}
        self.own_settings: dict[str, Sequence[str]] = {}
        known_as = self.known_as = {
            node: f"{KNOWN_AS}{number}" for number, node in enumerate(self.nodes, 1)
        }
        self.settings = [
            *self.settings,
            *(f"nodes.{node}.host={host}" for node, host in known_as.items()),
        ]
        doors = {
            node: [
                ((known_as[node], port), (address.host, port))
                for port in (address.peer_port, address.controller_port)
            ]
            for node, address in self.nodes.items()
        }
        self.network = Network(doors, self._who)

    def _who(self, own: Address, other: Address) -> str | None:
        return holder(
            own, other, {node: child.process.pid for node, child in self.children.items()}
        )

    def data(self, node: str) -> Path:
        return self.own_data.get(node, self.directory / node)

    def start(self, node: str) -> Child:
        environment, settings = self.environment, self.settings
        self.environment = {**environment, **self.own_environment.get(node, {})}
        self.settings = [*settings, *self.own_settings.get(node, ())]
        try:
            return super().start(node)
        finally:
            self.environment, self.settings = environment, settings

    def address(self, node: str) -> str:
        """The address at which other nodes reach it, in the form that `ledgermq member` takes."""
        at = self.nodes[node]
        return f"{self.known_as[node]}:{at.client_port}:{at.peer_port}:{at.controller_port}:{at.http_port}"

    def others(self, node: str) -> list[str]:
        return [name for name in self.nodes if name != node]


@contextmanager
def faulty(
    directory: Path, *, kind: type[FaultyCluster] = FaultyCluster, **options: Any
) -> Iterator[FaultyCluster]:
    """A ready cluster with one topic of one queue; its processes are ended afterwards."""
    with running(directory, kind=kind, **options) as cluster:
        assert isinstance(cluster, FaultyCluster)
        try:
            create_topic(cluster, TOPIC, queues=1)
            yield cluster
            stop_and_audit(cluster)
        finally:
            cluster.network.heal()
            cluster.network.close()


def whole(cluster: LocalCluster, within_s: float = WAIT_S) -> None:
    """Wait until every node is up, and every replica is a voter and has all committed entries."""

    def is_whole() -> bool:
        node = next(node for node, child in cluster.children.items() if child.exit_code is None)
        if not cluster.ready(node):
            return False
        found = status(cluster, node)
        replicas = found.groups[0].replicas
        ends = {replica.durable_index for replica in replicas}
        vote = sorted(replica.role for replica in replicas) == ["follower"] * (
            len(cluster.nodes) - 1
        ) + ["leader"]
        return found.health == "ok" and vote and ends == {found.groups[0].commit_index}

    wait_for(is_whole, within_s, "a whole cluster")


def judge(cluster: FaultyCluster, *histories: History) -> None:
    """The checks after every fault."""
    cluster.wait_ready()
    whole(cluster)
    cli = CommandLine.of(cluster)
    for number, history in enumerate(histories):
        history.check(
            lambda number=number, history=history: cli.consume_all(history.topic, f"judge-{number}")
        )  # type: ignore[misc]
    one_leader_a_term(cluster)


def stop_and_audit(cluster: FaultyCluster) -> None:
    """Stop every node cleanly, and audit that all files are equal and intact."""
    codes = cluster.stop()
    assert set(codes.values()) <= {0}, f"exit statuses {codes}"
    outcome = audited(cluster)
    assert outcome.verdict == "PASS", as_text(outcome)


def audited(cluster: LocalCluster) -> Audit:
    """An audit of all nodes that have a replica."""
    return run_audit(
        [
            str(cluster.data(node))
            for node in cluster.nodes
            if any(cluster.data(node).glob("*/state"))
        ]
    )


def passes_while_it_runs(cluster: LocalCluster) -> None:
    """Audit the running cluster through all nodes. The endpoints are given explicitly, because the
    addresses that the nodes report belong to the proxy, which does not accept clients."""
    endpoints = ";".join(target(cluster, node) for node in cluster.nodes)
    outcome = CommandLine(endpoints).run(
        "audit", "--endpoints", endpoints, "--engine", "local", "--timeout", "60s", timeout_s=300
    )
    assert outcome.status == 0, outcome.out + outcome.err


def leaders(cluster: LocalCluster) -> dict[int, set[str]]:
    """Term → all nodes that any node's log names as its leader."""
    found: dict[int, set[str]] = {}
    for node in cluster.nodes:
        for event in events(cluster, node):
            if event["event"] == "leadership changed" and event["leader"] is not None:
                found.setdefault(event["term"], set()).add(event["leader"])
    return found


def events(cluster: LocalCluster, node: str) -> list[dict[str, Any]]:
    """The JSON lines of a node's log. A killed process may leave half a line, and the gRPC library
    writes lines of its own."""
    found = []
    for line in log_lines(cluster, node):
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [event for event in found if isinstance(event, dict)]


def one_leader_a_term(cluster: LocalCluster) -> None:
    """Check I1 in the logs of all nodes."""
    doubled = {term: names for term, names in leaders(cluster).items() if len(names) > 1}
    assert not doubled, f"terms with two leaders: {doubled}"


def terms(cluster: LocalCluster, without: str | None = None) -> dict[str, int]:
    """The term of every running node."""
    running_now = [
        node
        for node, child in cluster.children.items()
        if child.exit_code is None and node != without
    ]
    return {node: int(gauge(cluster, node, "ledgermq_term")) for node in running_now}


def status_of(cluster: LocalCluster, node: str, group: str) -> admin_pb2.BrokerGroupInfo:
    """The status of a broker group according to one node."""
    return next(info for info in status(cluster, node).groups if info.group == group)


def gauge(cluster: LocalCluster, node: str, name: str) -> float:
    """One value of the node's metrics page; `name` may have labels."""
    _, text = http(cluster, node, "/metrics")
    return next(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if re.match(re.escape(name) + r"[ {]", line)
    )
