"""64 unary sends of 100 bytes in flight, durable on three nodes: connected to the leader, and
through a follower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.official import empty_server
from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "send", 3, True
TOPIC = "bench-send"


def run(directory: Path) -> dict[str, Any]:
    ceiling = without_a_cluster()
    with cl.running(directory) as cluster:
        cl.create_topic(cluster, TOPIC)
        leads = cl.leader(cluster)
        through = cl.follower(cluster)
        return {
            "window": 64,
            "body_bytes": 100,
            "to_the_leader": one(cluster, leads),
            "through_a_follower": one(cluster, through),
            "one_at_a_time_to_the_leader": one(
                cluster, leads, "--window", "1", "--seconds", "4", "--warm-up-s", "1"
            ),
            "ceiling_empty_server": ceiling,
            "settings": cl.defaults(cluster),
        }


def without_a_cluster() -> dict[str, Any]:
    """The same load on a server that stores nothing and answers at once: the cost of the protocol
    alone on this machine now."""
    with empty_server() as (endpoint, pid):
        before = cl.cpu_s(pid)
        result = cl.load("send", endpoint, TOPIC, "--seconds", "5", "--limit", "150000")
        total = result.pop("total")
        result["server_cpu_us_a_message"] = round((cl.cpu_s(pid) - before) / total * 1e6)
        result["client_cpu_us_a_message"] = round(result.pop("client_cpu_s") / total * 1e6)
        return result


def one(cluster: LocalCluster, node: str, *more: str) -> dict[str, Any]:
    """One load, and its cost: processor time of every node, group commits and turns of the
    leader."""
    leads = cl.leader(cluster)
    cpu, syncs, turns = (
        cl.all_cpu_s(cluster),
        *(cl.metric_sums(cluster, leads, name) for name in METRICS),
    )
    result = cl.load("send", cl.address(cluster, node), TOPIC, *more)
    after = cl.all_cpu_s(cluster)
    syncs_after, turns_after = (cl.metric_sums(cluster, leads, name) for name in METRICS)
    used = {name: after[name] - cpu[name] for name in cluster.nodes}
    others = [seconds for name, seconds in used.items() if name not in (leads, node)]
    by_role = {"leader": used[leads], "each_other_node": sum(others) / len(others)}
    if node != leads:
        by_role["called_node"] = used[node]
    stored = result.pop("total")
    result["node_cpu_us_a_message"] = {
        role: round(seconds / stored * 1e6) for role, seconds in by_role.items()
    }
    result["client_cpu_us_a_message"] = round(result.pop("client_cpu_s") / stored * 1e6)
    commits = syncs_after[0] - syncs[0]
    result["group_commits"] = int(commits)
    result["messages_a_group_commit"] = round(stored / max(commits, 1), 1)
    result["fdatasync_mean_ms"] = round((syncs_after[1] - syncs[1]) / max(commits, 1) * 1000, 3)
    result["engine_turns_a_group_commit"] = round((turns_after[0] - turns[0]) / max(commits, 1), 1)
    return result


METRICS = ("ledgermq_sync_seconds", "ledgermq_turn_seconds")
