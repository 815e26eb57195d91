"""Lite topics on three whole replicas over forgetful disks: whatever crashes, every replica comes
to the same state."""

from __future__ import annotations

import json
from itertools import count
from random import Random
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import SyncLite
from ledgermq.node.broker.calls.operator_calls import Configure, Trim
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records import control
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, NAMES, Cluster, Node
from tests.node_core.core_fakes import LOG_ID, draft

NUMBER = 12


def state(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(node.machine.export(LOG_ID)))
    return found


def trim_record(node: Node) -> control.TrimRecord | None:
    """The log could begin with its newest file; None while there is only one more than it begins
    with."""
    log, machine = node.store.log, node.machine
    size = node.identity.data_file_bytes
    base = log.pos_of(machine.applied_index) // size * size
    if base <= machine.begin_pos:
        return None
    index = machine.applied_index
    while log.pos_of(index - 1) >= base:
        index -= 1
    before = cut(log.read(index - 1, 1), index - 1)
    files = tuple((at, None) for at in range(machine.begin_pos, base, size))
    return control.TrimRecord(
        index, base, before.term, before.last_chain, machine.begin_index, files, "operator"
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_lite_topics_come_and_go_on_every_replica_alike(seed: int) -> None:
    """Sends to names that come and go, subscriptions, trims, power cuts, restarts from old
    snapshots: one state, and dense queues."""
    cluster, chance, tokens = Cluster(seed), Random(seed), count(1)
    cluster.run(3000 * MS)
    leader = cluster.leader()
    assert leader is not None
    topic = TopicConfig("", "L", TopicKind.LITE, 1, Permission.READ_WRITE, 1)
    cluster.turn(
        leader,
        [Configure(next(tokens), topics=(topic,), groups=(GroupConfig("", "g", lite_topic="L"),))],
    )
    vanished = 0
    for step in range(60):
        cluster.run(cluster.now_ns + chance.randint(20, 200) * MS)
        leader = cluster.leader()
        if leader is None:
            continue
        names = [f"n{chance.randrange(step // 5 * 2, step // 5 * 2 + NUMBER)}" for _ in range(6)]
        cluster.turn(
            leader, [Produce(next(tokens), [draft("x" * 900, f"L${name}") for name in names])]
        )
        cluster.turn(
            leader, [SyncLite(next(tokens), "g", "L", "c", "set", tuple(dict.fromkeys(names)))]
        )
        if step % 7 == 6 and (record := trim_record(leader)) is not None:
            before = len(leader.machine.lite_topics("L"))
            cluster.turn(leader, [Trim(next(tokens), record)])
            cluster.run(cluster.now_ns + 500 * MS)
            vanished += max(0, before - len(leader.machine.lite_topics("L")))
        node = cluster.nodes[chance.choice(NAMES)]
        if node.alive and chance.random() < 0.3:
            node.save()
        if node.alive and chance.random() < 0.15:
            cluster.crash(node.name, power=chance.random() < 0.5)
            cluster.run(cluster.now_ns + 300 * MS)
            cluster.boot(node)
    cluster.heal()
    cluster.run(cluster.now_ns + 8000 * MS)
    assert vanished > 3, "the run must show what it is about"
    states = [state(node) for node in cluster.nodes.values()]
    assert states[0] == states[1] == states[2]
    for node in cluster.nodes.values():
        node.store.queues.write_waiting()
        for stored in node.machine.lite_topics("L"):
            low, end = node.machine.begin(stored, 0), node.machine.end(stored, 0)
            assert len(node.machine.units(stored, 0, low, end - low)[0]) == end - low > 0
