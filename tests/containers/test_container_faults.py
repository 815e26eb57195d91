"""Faults on real containers, one after the other under load: official clients from outside, native
clients from inside; three Raft groups, one HA group.

One cluster, one history. A seed determines the order of the faults and their targets
(`CONTAINER_FAULTS_SEED`, printed first; the default is constant); each fault ends with a healthy
cluster. Afterwards the checkers judge the history of all clients, every node must stop cleanly, and
the audit of compose.yaml judges the volumes. The test never waits for a time, only for
acknowledgements and for nodes to recover. It prints the seed, the schedule so far, and the place of
the history, so a failure shows them.

Needs a container engine; `.ci/with-engine` provides one. Faults with further requirements (root,
tc) are skipped with a reason if these are missing.
"""

from __future__ import annotations

import json
import os
import random
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from ledgermq.proto import admin_pb2, admin_pb2_grpc
from tests.cluster import wait_for
from tests.containers import faults
from tests.containers.engine import NODES, OPENER, Project, built, docker, engine_missing
from tests.containers.traffic import NATIVE, OFFICIAL, Traffic, traffic
from tests.faults.histories import OPTIONS

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

HA_GROUP = Path(__file__).with_name("ha-group.yaml")
RAFT_GROUPS = ["g1", "g2", "g3"]
SEED = "CONTAINER_FAULTS_SEED"
WHOLE_S = 120.0
ANSWER_S = 3.0
STAND_STILL_S = 1.0
LOSS = 0.2
RATE_BITS_PER_S = 2_000_000
WRITES_PER_S = 10


@dataclass
class Trial:
    """A cluster under load, and chance."""

    project: Project
    traffic: Traffic
    chance: random.Random
    told: list[str] = field(default_factory=list)
    """What was done so far."""

    def leader(self) -> str:
        """The node that leads some broker group."""
        group = self.chance.choice(self.traffic.groups)
        node = wait_for(lambda: leaders().get(group), WHOLE_S, f"a leader of {group}")
        self.say(f"{node}, which leads {group}")
        return node

    def anyone(self) -> str:
        node = self.chance.choice(list(NODES))
        self.say(node)
        return node

    def progress(
        self, topics: Sequence[str] = (OFFICIAL, NATIVE), groups: Sequence[str] | None = None
    ) -> None:
        self.traffic.progress(topics, groups)

    def say(self, text: str) -> None:
        self.told.append(text)
        print(f"    {text}", flush=True)

    def whole(self) -> None:
        wait_for(is_whole, WHOLE_S, "a whole cluster")


def kill_a_leader(t: Trial) -> None:
    """The others continue without it."""
    node = t.leader()
    faults.kill(t.project, node)
    t.progress()
    faults.start(t.project, node)


def kill_a_majority(t: Trial) -> None:
    """No message is acknowledged until one of them is back."""
    left = t.anyone()
    for node in faults.others(left):
        faults.kill(t.project, node)
    wait_for(lambda: not ready(left), WHOLE_S, f"{left} to know that it is alone")
    before = t.traffic.acknowledged()
    time.sleep(STAND_STILL_S)
    assert t.traffic.acknowledged() == before, "something was acknowledged without a majority"
    for node in faults.others(left):
        faults.start(t.project, node)


def kill_all(t: Trial) -> None:
    for node in NODES:
        faults.kill(t.project, node)
    for node in NODES:
        faults.start(t.project, node)


def stop_a_leader(t: Trial) -> None:
    """An operator's stop ends well, and is no interruption."""
    node = t.leader()
    status = faults.stop(t.project, node)
    assert status == 0, f"{node} ended with {status}"
    t.progress()
    faults.start(t.project, node)


def pause_a_leader(t: Trial) -> None:
    """Its answers after the pause are consistent with those of its successor. An official client
    whose node is silent waits for it."""
    with faults.paused(t.project, t.leader()):
        t.progress([NATIVE])


def pause_a_majority_and_kill(t: Trial) -> None:
    """The paused nodes elect one of them, and no message acknowledged before is missing."""
    node = t.leader()
    with faults.paused(t.project, *faults.others(node)):
        faults.kill(t.project, node)
    t.progress()
    faults.start(t.project, node)


def disconnect_a_leader(t: Trial) -> None:
    with faults.disconnected(t.project, t.leader()):
        t.progress()


def reconnect_elsewhere(t: Trial) -> None:
    """A node comes back under its name with another address."""
    node = t.anyone()
    before = faults.address(t.project, node)
    with faults.disconnected(t.project, node, elsewhere=True):
        t.progress()
    t.say(f"{before} became {faults.address(t.project, node)}")


def leader_cannot_hear(t: Trial) -> None:
    """The official client may be connected to this node. It stays with a node that answers, even if
    the answer is that there is no leader. A master of an HA group that can still send keeps its
    group waiting (docs/known-weaknesses.md)."""
    node = t.leader()
    with faults.dropping(t.project, node, "INPUT", faults.others(node)):
        t.progress([NATIVE], RAFT_GROUPS)


def leader_cannot_speak(t: Trial) -> None:
    node = t.leader()
    with faults.dropping(t.project, node, "OUTPUT", faults.others(node)):
        t.progress([NATIVE])


def lose_packets(t: Trial) -> None:
    """In both directions of one node."""
    node = t.leader()
    with (
        faults.dropping(t.project, node, "INPUT", faults.others(node), LOSS),
        faults.dropping(t.project, node, "OUTPUT", faults.others(node), LOSS),
    ):
        t.progress()


def narrow_line(t: Trial) -> None:
    with faults.limited_rate(t.project, t.leader(), RATE_BITS_PER_S):
        t.progress()


def slow_disk(t: Trial) -> None:
    """Followers commit without the slow one, which reports slow syncs."""
    node = t.leader()
    before = slow_syncs(node)
    with faults.slow_disk(t.project, node, WRITES_PER_S):
        t.progress()
        wait_for(lambda: slow_syncs(node) > before, WHOLE_S, "slow syncs to be counted")


def too_little_memory(t: Trial) -> None:
    """The kernel kills the node repeatedly; the others are not affected."""
    with faults.too_little_memory(t.project, t.anyone()):
        t.progress()


FAULTS: dict[str, Callable[[Trial], None]] = {
    "kill a leader": kill_a_leader,
    "kill a majority": kill_a_majority,
    "kill all": kill_all,
    "stop a leader": stop_a_leader,
    "pause a leader": pause_a_leader,
    "pause a majority": pause_a_majority_and_kill,
    "disconnect": disconnect_a_leader,
    "reconnect elsewhere": reconnect_elsewhere,
    "cannot hear": leader_cannot_hear,
    "cannot speak": leader_cannot_speak,
    "loss": lose_packets,
    "rate": narrow_line,
    "slow disk": slow_disk,
    "memory": too_little_memory,
}


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    reason = engine_missing()
    if reason is not None:
        pytest.skip(reason)
    # native clients run inside
    with built(Project({f"LEDGERMQ_ADVERTISED_{node.upper()}": node for node in NODES})) as project:
        yield project


def test_containers_under_every_fault(project: Project, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing is stored twice, every queue is one linearizable log in
    the order of its producers, no term has two leaders, and the volumes pass the audit."""
    seed = int(os.environ.get(SEED, "1"))
    chance = random.Random(seed)
    names = [name for name in FAULTS if name not in faults.missing()]
    chance.shuffle(names)
    print(
        f"{SEED}={seed}; schedule: {', '.join(names)}; the history will be in"
        f" {tmp_path}/history.jsonl",
        flush=True,
    )
    project.run("up", "-d", files=[HA_GROUP])
    wait_for(is_whole, WHOLE_S, "the cluster to start")
    with traffic(project, tmp_path, sorted(leaders())) as clients:
        trial = Trial(project, clients, chance)
        for name in names:
            began = time.monotonic()
            print(f"  {name}", flush=True)
            FAULTS[name](trial)
            trial.progress()
            trial.whole()
            print(f"    whole again after {time.monotonic() - began:.1f} s", flush=True)
        clients.settle()
        print(f"acknowledged: {clients.acknowledged()}", flush=True)
        violations = clients.check()
        assert not violations, "\n".join(
            f"{violation.rule}: {violation.text}" for violation in violations[:10]
        )
    doubled = {term: nodes for term, nodes in leaders_of_terms(project).items() if len(nodes) > 1}
    assert not doubled, f"terms with two leaders: {doubled}"
    project.run("stop", "--timeout", "30")
    assert {node: faults.exit_status(project, node) for node in NODES} == dict.fromkeys(NODES, 0)
    audit = project.run("--profile", "audit", "run", "--rm", "audit")
    assert audit.stdout.strip().splitlines()[-1] == "audit: PASS", audit.stdout[-3000:]


def test_every_fault_can_be_made_here() -> None:
    """The skip reason is what the test above left out."""
    reason = engine_missing() or "; ".join(
        f"{name}: {why}" for name, why in faults.missing().items()
    )
    if reason:
        pytest.skip(f"not tried here: {reason}")


# -- what nodes say


def ready(node: str) -> bool:
    _, port = NODES[node]
    try:
        with OPENER.open(f"http://127.0.0.1:{port}/readyz", timeout=ANSWER_S) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def status() -> admin_pb2.ClusterStatusResponse | None:
    """What the first node that answers says about the cluster."""
    for port, _ in NODES.values():
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            try:
                found: admin_pb2.ClusterStatusResponse = admin_pb2_grpc.AdminStub(
                    channel
                ).ClusterStatus(admin_pb2.ClusterStatusRequest(), timeout=ANSWER_S)
                return found
            except grpc.RpcError:
                continue
    return None


def leaders() -> dict[str, str]:
    """Broker group → node, of the groups that have one."""
    found = status()
    return (
        {}
        if found is None
        else {group.group: group.leader for group in found.groups if group.HasField("leader")}
    )


def is_whole() -> bool:
    """Every node ready, every replica a voter that takes part."""
    if not all(ready(node) for node in NODES):
        return False
    found = status()
    if found is None or found.health != "ok":
        return False
    roles = [sorted(replica.role for replica in group.replicas) for group in found.groups]
    return all(role == ["follower"] * (len(NODES) - 1) + ["leader"] for role in roles)


def slow_syncs(node: str) -> float:
    with OPENER.open(f"http://127.0.0.1:{NODES[node][1]}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("ledgermq_slow_syncs_total")
    )


def leaders_of_terms(project: Project) -> dict[tuple[str, int], set[str]]:
    """Broker group and term → every node that some node's log calls its leader."""
    found: dict[tuple[str, int], set[str]] = {}
    for node in NODES:
        for event in events(project, node):
            if event.get("event") == "leadership changed" and event["leader"] is not None:
                found.setdefault((event["group"], event["term"]), set()).add(event["leader"])
    return found


def events(project: Project, node: str) -> Iterator[dict[str, Any]]:
    """The JSON lines of a node's log over all its lives; a killed process may leave half a line."""
    for line in docker("logs", project.container(node), merged=True).splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
