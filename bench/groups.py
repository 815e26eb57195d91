"""Several broker groups: the total throughput of three, the cost of an idle one, and the effect of
moving a replica on producers.

Loads are processes of `bench.streams.native_load`, on the same cores as the nodes. Ratios are taken
within a run. The load of three groups and that of one use the same number of producer processes, so
that clients take the same share of the machine. The moved replica is a follower's, so leadership
does not change.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2

NAME, RUNS, DURABLE = "groups", 1, True
GROUPS = ("g1", "g2", "g3")
TOPIC = "bench"
QUEUES = 8
"""For each group."""
LEADERS_WITHIN_S = 90.0
ATTEMPTS = 3
LATENCY_BATCH = 100
FILL_BODY_BYTES, FILL_BATCH, ENTRY_OVER_BYTES = 10_240, 85, 184
REST_FILE_BYTES = 4 << 20
"""Log file size of idle groups, so that the disk need not hold three large files for each of nine
groups."""
MOVE_WITHIN_S = 600


@dataclass(frozen=True)
class Plan:
    """The size of each measurement. Times in seconds."""

    seconds: float = 6.0
    warm_up_s: float = 3.0
    rounds: int = 3
    groups_at_rest: int = 9
    settle_s: float = 15.0
    rest_s: float = 20.0
    move_bytes: int = 1 << 30


FULL = Plan()
SHORT = {
    "plan": Plan(
        seconds=1.5,
        warm_up_s=1.0,
        rounds=1,
        groups_at_rest=3,
        settle_s=8.0,
        rest_s=3.0,
        move_bytes=32 << 20,
    )
}


def run(directory: Path, plan: Plan = FULL) -> dict[str, Any]:
    return {
        "plan": vars(plan),
        "together": together(directory / "together", plan),
        "at_rest": at_rest(directory / "rest", plan),
        "move": move(directory / "move", plan),
    }


# What they carry in sum


def together(directory: Path, plan: Plan) -> dict[str, Any]:
    """One producer for each group, and the same number of producers for one group, in turn; the
    leaders are on three nodes."""
    report.say("groups: three together")
    with cl.running(directory, groups=[{"name": name} for name in GROUPS]) as cluster:
        cl.create_topic(cluster, TOPIC, queues=QUEUES * len(GROUPS))
        cl.wait_until(
            lambda: len({*_leaders(cluster).values()}) == len(GROUPS),
            LEADERS_WITHIN_S,
            "leaders on three nodes",
        )
        rounds = []
        for number in range(plan.rounds):
            one = (GROUPS[number % len(GROUPS)],) * len(GROUPS)
            turn = (("one", one), ("three", GROUPS))
            found = {
                name: _load(cluster, groups, plan)
                for name, groups in (turn if number % 2 else turn[::-1])
            }
            rounds.append(
                {
                    **found,
                    "ratio": round(
                        found["three"]["messages_per_s"] / found["one"]["messages_per_s"], 3
                    ),
                }
            )
        return {
            "one_group_messages_per_s": statistics.median(
                each["one"]["messages_per_s"] for each in rounds
            ),
            "three_groups_messages_per_s": statistics.median(
                each["three"]["messages_per_s"] for each in rounds
            ),
            "ratio": statistics.median(each["ratio"] for each in rounds),
            "least_to_even_share": min(each["three"]["least_to_even_share"] for each in rounds),
            "rounds": rounds,
            "settings": cl.defaults(cluster),
        }


def _leaders(cluster: LocalCluster) -> dict[str, str]:
    """Group → its leader, for groups with a leader."""
    status = cl.admin(
        cluster, next(iter(cluster.nodes)), "ClusterStatus", admin_pb2.ClusterStatusRequest()
    )
    return {info.group: info.leader for info in status.groups if info.HasField("leader")}


def _load(cluster: LocalCluster, groups: Sequence[str], plan: Plan) -> dict[str, Any]:
    """One producer process for each of `groups`, all at once. A load that ends because leaders
    changed is repeated."""
    for attempt in range(1, ATTEMPTS + 1):
        leaders = _leaders(cluster)
        missing = {*groups} - leaders.keys()
        before = sum(cl.all_cpu_s(cluster).values())

        def load(group: str, leaders: dict[str, str] = leaders) -> dict[str, Any]:
            given = {
                "group": group,
                "queues": QUEUES,
                "seconds": plan.seconds,
                "warm_up_s": plan.warm_up_s,
            }
            return cl.native_load("produce", cl.address(cluster, leaders[group]), TOPIC, **given)

        try:
            if missing:
                raise RuntimeError(f"no leader of {', '.join(sorted(missing))}: redirect")
            with ThreadPoolExecutor(len(groups)) as pool:
                results = list(pool.map(load, groups))
        except RuntimeError as error:
            report.say(f"groups: attempt {attempt} failed: {error}")
            if attempt == ATTEMPTS or "redirect" not in str(error):
                raise
            time.sleep(plan.warm_up_s)
            continue
        used = sum(cl.all_cpu_s(cluster).values()) - before
        rates = [result["messages_per_s"] for result in results]
        return {
            "messages_per_s": round(sum(rates)),
            "each": [
                {"group": group, "messages_per_s": round(rate)}
                for group, rate in zip(groups, rates, strict=True)
            ],
            "least_to_even_share": round(min(rates) * len(rates) / max(sum(rates), 1), 3),
            "nodes_cpu_us_a_message": round(
                used / max(sum(result["total"] for result in results), 1) * 1e6, 3
            ),
            "client_cpu_us_a_message": statistics.median(
                result["client_cpu_us_a_message"] for result in results
            ),
            "attempts": attempt,
        }
    raise AssertionError("the loop returns or raises")


# What one costs that has nothing to do


def at_rest(directory: Path, plan: Plan) -> dict[str, Any]:
    """Nodes with one group and with several, some time after their start: processor time and memory
    per additional group."""
    found = {
        count: _resting(directory / str(count), count, plan) for count in (1, plan.groups_at_rest)
    }
    fewer, more = found.values()
    shares = (plan.groups_at_rest - 1) * len(fewer["cpu_percent_of_a_core"])

    def each(name: str) -> float:
        return round(float(sum(more[name].values()) - sum(fewer[name].values())) / shares, 3)

    return {
        "groups": plan.groups_at_rest,
        "a_group_and_node": {
            "cpu_percent_of_a_core": each("cpu_percent_of_a_core"),
            "anonymous_mib": each("anonymous_mib"),
        },
        "one": fewer,
        "several": more,
    }


def _resting(directory: Path, count: int, plan: Plan) -> dict[str, Any]:
    report.say(f"groups: {count} at rest")
    groups = [
        {"name": f"g{number + 1}", "data_file_bytes": REST_FILE_BYTES} for number in range(count)
    ]
    with cl.running(directory, groups=groups) as cluster:
        cl.wait_until(
            lambda: len(_leaders(cluster)) == count, LEADERS_WITHIN_S, "leaders of all groups"
        )
        time.sleep(plan.settle_s)
        before, began = cl.all_cpu_s(cluster), time.monotonic()
        time.sleep(plan.rest_s)
        after, took = cl.all_cpu_s(cluster), time.monotonic() - began
        return {
            "cpu_percent_of_a_core": {
                node: round((after[node] - before[node]) / took * 100, 2) for node in after
            },
            "anonymous_mib": {
                node: round(cl.status_kib(pid, "RssAnon") / 1024, 1)
                for node, pid in cl.pids(cluster).items()
            },
            "leaders": _leaders(cluster),
        }


# A replica that moves


def move(directory: Path, plan: Plan) -> dict[str, Any]:
    """Producers at half of the maximal throughput: alone, while a follower's replica moves to a
    fourth node, and alone again."""
    report.say("groups: a replica moves")
    with cl.running(
        directory, nodes=4, groups=[{"name": cl.GROUP, "replicas": ["n1", "n2", "n3"]}]
    ) as cluster:
        leads = cl.leader(cluster)
        target, source = (
            cl.address(cluster, leads),
            next(node for node in ("n1", "n2", "n3") if node != leads),
        )
        cl.create_topic(cluster, TOPIC, QUEUES)
        messages = plan.move_bytes // (FILL_BODY_BYTES + ENTRY_OVER_BYTES)
        size = {"body_bytes": FILL_BODY_BYTES, "batch": FILL_BATCH}
        cl.native_load("produce", target, TOPIC, **size, limit=messages, warm_up_s=0, seconds=800)
        times = {"seconds": plan.seconds, "warm_up_s": plan.warm_up_s, "batch": LATENCY_BATCH}
        most = cl.native_load("produce", target, TOPIC, **times)["messages_per_s"]
        options = {**times, "rate": max(1.0, most / 2)}
        before = cl.native_load("produce", target, TOPIC, **options)
        during, took = _moved(cluster, source, target, {**options, "seconds": MOVE_WITHIN_S})
        after = cl.native_load("produce", target, TOPIC, **options)
    alone = statistics.mean((before["p99_ms"], after["p99_ms"]))
    return {
        "rate": round(most / 2),
        "bytes": plan.move_bytes,
        "took_s": round(took, 2),
        "mib_per_s": round(plan.move_bytes / took / (1 << 20), 1),
        "alone_before": before,
        "while_moving": during,
        "alone_after": after,
        "p99_ratio": round(during["p99_ms"] / alone, 3),
    }


def _moved(
    cluster: LocalCluster, source: str, target: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    """(the producer's figures during the move, seconds of the move)."""
    command = cl.native_command("produce", target, TOPIC, **options, attended=True)
    load = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cl.ROOT
    )
    assert load.stdout is not None
    try:
        load.stdout.readline()
        words = [
            "move-replica",
            cl.GROUP,
            "--from",
            source,
            "--to",
            "n4",
            "--timeout",
            f"{MOVE_WITHIN_S}s",
            "--json",
        ]
        environment = {**os.environ, "LEDGERMQ_ENDPOINTS": cluster.endpoints}
        began = time.monotonic()
        moved = subprocess.run(
            [sys.executable, "-m", "ledgermq", *words],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        took = time.monotonic() - began
    finally:
        output, _ = load.communicate()
    if moved.returncode:
        raise RuntimeError(
            f"move-replica ended with {moved.returncode}:"
            f" {' '.join(moved.stderr[-cl.ERROR_CHARACTERS :].split())}"
        )
    if load.returncode:
        raise RuntimeError(f"the producer ended with {load.returncode}")
    return report.parsed(output), took


def table(result: Mapping[str, Any]) -> str:
    """The result as text lines."""
    sums, rest, moved = result["together"], result["at_rest"]["a_group_and_node"], result["move"]
    p99 = [moved[name]["p99_ms"] for name in ("alone_before", "while_moving", "alone_after")]
    lines = (
        ("one group, three producers", f"{sums['one_group_messages_per_s']:,.0f} messages/s"),
        (
            "three groups, a producer each",
            f"{sums['three_groups_messages_per_s']:,.0f} messages/s, × {sums['ratio']:.2f}",
        ),
        ("the least group's part of an even share", f"{sums['least_to_even_share']:.2f}"),
        (
            "a group more at rest, of each node",
            f"{rest['cpu_percent_of_a_core']:.2f} % of a core, {rest['anonymous_mib']:.1f} MiB",
        ),
        (
            f"a replica of {moved['bytes'] / (1 << 20):,.0f} MiB moves",
            f"{moved['took_s']:.1f} s, {moved['mib_per_s']:.0f} MiB/s",
        ),
        (
            f"p99 at {moved['rate']:,}/s before, meanwhile, after",
            f"{p99[0]:,.1f}, {p99[1]:,.1f}, {p99[2]:,.1f} ms; × {moved['p99_ratio']:.2f}",
        ),
    )
    return "\n".join(("| | |", "|---|---|", *(f"| {what} | {how} |" for what, how in lines)))
