"""Health, readiness and the merged picture of the cluster, from made-up answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ledgermq.node.broker.calls.group_view import GroupView, HaView
from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.frontend.admin.cluster.overview import (
    Overview,
    queue_ends,
    topic_counts,
    topic_info,
    topic_sums,
)
from ledgermq.node.process.telemetry.http import Health
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import validate
from ledgermq.proto import peer_pb2
from ledgermq.proto.types import (
    Permission,
    RebuildStatus,
    ReplicaStatus,
    Role,
    TopicDurability,
    TopicKind,
)

Reply = peer_pb2.NodeStatusReply


def reply(
    node: str,
    role: str,
    term: int = 1,
    end: int = 10,
    leader: str = "n1",
    fenced: str | None = None,
) -> Reply:
    answer = Reply()
    answer.node.node, answer.node.up = node, True
    group = answer.groups.add(group="g1", leader=leader, term=term, commit_index=end)
    group.replicas.add(
        node=node, role=role, end_index=end, durable_index=end, commit_index=end, fenced=fenced
    )
    return answer


def overview(**parts: Any) -> Overview:
    roster = SimpleNamespace(
        nodes=("n1", "n2", "n3"), address=lambda node, kind: f"127.0.0.1:808{node[1]}"
    )
    return Overview(
        validate(yaml.safe_load(EXAMPLE)), SimpleNamespace(groups=(), views={}), {}, roster, **parts
    )  # type: ignore[arg-type]


FULL: dict[str, Reply | None] = {
    "n1": reply("n1", "leader", end=12),
    "n2": reply("n2", "follower"),
    "n3": reply("n3", "follower", end=12),
}


@pytest.mark.parametrize(
    ("change", "health", "leader"),
    [
        ({}, "ok", "n1"),
        ({"n3": None}, "degraded", "n1"),
        ({"n3": reply("n3", "follower", fenced="disk")}, "degraded", "n1"),
        ({"n2": None, "n3": None}, "down", "n1"),
        ({"n1": None}, "down", ""),
        (
            {"n1": reply("n1", "leader", term=1), "n2": reply("n2", "leader", term=2, leader="n2")},
            "ok",
            "n2",
        ),
    ],
)
def test_health_is_ok_degraded_or_down(
    change: Mapping[str, Reply | None], health: str, leader: str
) -> None:
    """A follower's belief does not make a leader; of two nodes that claim to lead, the higher term
    counts; a fenced replica does not count for the quorum."""
    merged = overview().merge({**FULL, **change})
    assert (merged.health, merged.groups[0].leader) == (health, leader)


def test_the_members_are_those_of_the_log_and_a_replica_that_waits_is_no_help() -> None:
    """A fourth was added and n3 removed: the leader's membership counts, not the configuration; a
    learner does not count for the quorum."""
    replies = {**FULL, "n4": reply("n4", "learner")}
    leader = replies["n1"]
    assert leader is not None
    leader = Reply.FromString(leader.SerializeToString())
    leader.groups[0].voters[:], leader.groups[0].learners[:] = ["n1", "n2"], ["n4"]
    group = overview().merge({**replies, "n1": leader}).groups[0]
    assert [replica.node for replica in group.replicas] == ["n1", "n2", "n4"] and list(
        group.learners
    ) == ["n4"]
    waiting = reply("n2", "follower")
    waiting.groups[0].replicas[0].state = "waiting"
    assert overview().merge({**replies, "n1": leader, "n2": waiting}).health == "down", (
        "one of two voters is no majority"
    )
    assert overview().merge({**FULL, "n2": waiting}).health == "degraded"


def test_replicas_show_their_lag_and_unknown_stays_absent() -> None:
    """Lag is counted against the leader's end; a node that did not answer has no numbers."""
    merged = overview().merge({**FULL, "n3": None})
    first, second, third = merged.groups[0].replicas
    assert (first.lag_entries, second.lag_entries) == (0, 2)
    assert (
        not third.HasField("role")
        and not third.HasField("end_index")
        and not third.HasField("lag_entries")
    )
    assert [(node.node, node.up) for node in merged.nodes] == [
        ("n1", True),
        ("n2", True),
        ("n3", False),
    ]
    assert merged.nodes[2].endpoint == "127.0.0.1:8083"


def test_a_replica_that_does_not_run_is_no_part_of_a_quorum() -> None:
    """It has no role and no indexes that count, and says what it does instead."""
    one = overview()
    rebuild = RebuildStatus("entry 7", "n2", 3, 4, 5)
    status = ReplicaStatus(
        "g1", "n3", Role.LEARNER, 7, None, 0, 99, 99, 99, 99, state="refused", rebuild=rebuild
    )
    own = Reply(groups=[one._own_group(status)])
    own.node.node, own.node.up = "n3", True
    merged = one.merge({**FULL, "n3": own})
    third = merged.groups[0].replicas[2]
    assert merged.health == "degraded" and merged.groups[0].term == 1
    assert (
        not third.HasField("role")
        and not third.HasField("end_index")
        and not third.HasField("lag_entries")
    )
    told = third.rebuild
    assert (third.state, told.reason, told.source, told.done_bytes, told.remaining_ms) == (
        "refused",
        "entry 7",
        "n2",
        3,
        5,
    )
    assert one.merge({**FULL, "n3": own, "n2": None}).health == "down"


def test_a_store_time_that_is_ahead_is_the_leaders_word() -> None:
    """A follower has another clock, and may be behind."""
    replies: dict[str, Reply | None] = {
        node: reply(node, role)
        for node, role in (("n1", "leader"), ("n2", "follower"), ("n3", "follower"))
    }
    for node in ("n1", "n2"):
        one = replies[node]
        assert one is not None
        one.groups[0].store_time_ahead_ms = 70_000 if node == "n1" else 90_000
    assert overview().merge(replies).groups[0].store_time_ahead_ms == 70_000
    one = replies["n1"]
    assert one is not None
    one.groups[0].ClearField("store_time_ahead_ms")
    assert not overview().merge(replies).groups[0].HasField("store_time_ahead_ms")


def test_the_level_of_a_group_is_that_of_its_newest_replica() -> None:
    """A replica that lags has not applied the record yet; a program without levels has level 1;
    without an answer it is unknown."""
    behind, ahead = reply("n1", "leader"), reply("n2", "follower")
    ahead.groups[0].level = 2
    for replies, level in (
        ({"n1": behind, "n2": ahead, "n3": None}, 2),
        ({"n1": behind, "n2": None, "n3": None}, 1),
    ):
        assert overview().merge(replies).groups[0].level == level
    assert not overview().merge(dict.fromkeys(("n1", "n2", "n3"))).groups[0].HasField("level")


def test_disk_use_is_each_replicas_own_and_kept_files_are_the_leaders_word() -> None:
    """Only the leader knows what keeps files; a follower's stale word is not shown."""
    storage = SimpleNamespace(
        disk="fine", disk_bytes={"g1": {"log": 7}}, files_kept={"g1": {"follower": 2}}
    )
    one = overview(storage=storage)
    status = ReplicaStatus("g1", "n1", Role.LEADER, 1, "n1", 5, 12, 12, 12, 12)
    own = Reply(groups=[one._own_group(status)])
    own.node.node, own.node.up = "n1", True
    stale = reply("n2", "follower")
    stale.groups[0].files_kept["consumer"] = 9
    merged = one.merge({**FULL, "n1": own, "n2": stale}).groups[0]
    assert dict(merged.files_kept) == {"follower": 2}
    assert (dict(merged.replicas[0].disk_bytes), merged.replicas[0].begin_index) == ({"log": 7}, 5)


TOPIC = SimpleNamespace(
    namespace="",
    name="t",
    kind=TopicKind.NORMAL,
    permission=Permission.READ_WRITE,
    durability=TopicDurability.GROUP,
    dedup_ms=0,
    queues=2,
    placement={"g2": 1, "g1": 1},
)


def test_topic_counts_messages_only_when_every_queue_is_known() -> None:
    """Queues are numbered over the broker groups; the furthest end anyone knows counts."""
    ahead, behind = Reply(), Reply()
    for answer, end in ((ahead, 7), (behind, 5)):
        answer.topics.add(topic={"name": "t"}).queue_list.add(
            broker_group="g1", group_queue=0, max_offset=end
        )
    partly = topic_info(TOPIC, queue_ends({"n1": ahead, "n2": behind, "n3": None}))
    assert not partly.HasField("messages")
    assert [(q.queue, q.broker_group, q.group_queue) for q in partly.queue_list] == [
        (0, "g1", 0),
        (1, "g2", 0),
    ]
    behind.topics[0].queue_list.add(broker_group="g2", group_queue=0, max_offset=3)
    assert topic_info(TOPIC, queue_ends({"n1": ahead, "n2": behind})).messages == 10


def answer_of(*known: tuple[str, tuple[int, ...]], queues: bool) -> Reply:
    """What a node answers that knows these ends of topic t in its broker groups."""
    one = overview()
    one._engine = FakeEngine(
        STATUS, {group: replace(VIEW, queue_ends={"t": ends}) for group, ends in known}
    )  # type: ignore[assignment]
    return asyncio.run(one.own(queues=queues))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    "ahead", [(("g1", (7, 3)),), (("g1", (7, 3)), ("g2", (4,))), (("g1", (7,)), ("g2", ()))]
)
def test_sums_are_those_of_the_queues_also_from_a_node_that_lists_them(
    ahead: tuple[Any, ...], older: bool
) -> None:
    """One replica is behind: it has fewer messages, and knows nothing of the broker group g2.
    `older`: it lists queues without being asked for them."""
    topic = SimpleNamespace(**{**vars(TOPIC), "queues": 3, "placement": {"g1": 2, "g2": 1}})
    behind = (("g1", (5, 3)),) if len(ahead[0][1]) == 2 else (("g1", (5,)),)
    listed = topic_info(
        topic,
        queue_ends(
            {
                "n1": answer_of(*ahead, queues=True),
                "n2": answer_of(*behind, queues=True),
                "n3": None,
            }
        ),
    )
    counts = topic_counts(
        {"n1": answer_of(*ahead, queues=False), "n2": answer_of(*behind, queues=older), "n3": None}
    )
    del listed.queue_list[:]
    assert topic_sums(topic, counts) == listed
    assert listed.HasField("messages") == (len(ahead) == 2 and ahead[1][1] == (4,))


def test_the_files_of_a_broker_group_are_not_counted_again_for_each_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention measures them now and then; a group has a file for each queue. What lies beside the
    groups is counted at once."""
    for path in (tmp_path / "n1" / "g1" / "consumequeue" / "t", tmp_path / "n1" / "other"):
        path.mkdir(parents=True)
        (path / "file").write_bytes(b"x" * 4096)
    one = overview()
    one._engine, one._config = (
        FakeEngine(STATUS),
        one._config.model_copy(update={"data": tmp_path / "n1"}),
    )  # type: ignore[assignment]
    both = asyncio.run(one.own()).node.disk_used_bytes
    assert both == 2 * 4096
    one._storage = SimpleNamespace(
        disk="fine", disk_bytes={"g1": {"log": 7, "consume-queue": 5}}, files_kept={}
    )  # type: ignore[assignment]
    read: list[str] = []
    listed = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (read.append(str(path)), listed(path))[1])
    assert asyncio.run(one.own()).node.disk_used_bytes == 4096 + 12
    assert read and not any("g1" in path for path in read)


STATUS = ReplicaStatus("g1", "n1", Role.FOLLOWER, 1, "n2", 0, 5, 5, 5, 5)
VIEW = GroupView("n2", 1, False, {}, {}, {})
RETURNING = replace(
    VIEW, members=GroupMembers(3, ("n2", "n3"), frozenset({"n1"}), {"n1": "new"}, frozenset({"n1"}))
)


@dataclass
class FakeEngine:
    now: ReplicaStatus | None
    views: dict[str, GroupView] = field(default_factory=lambda: {"g1": VIEW})
    groups: tuple[str, ...] = ("g1",)
    open_calls: int = 0

    def status(self, group: str) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.now is not None:
            future.set_result(self.now)
        return future


@pytest.mark.parametrize(
    ("engine", "unknown", "said"),
    [
        (FakeEngine(STATUS), [], ""),
        (FakeEngine(replace(STATUS, leader=None)), [], "has no known leader"),
        (FakeEngine(STATUS, {}), [], "has no known leader"),
        (FakeEngine(replace(STATUS, applied_index=4)), [], "applied 4 of 5"),
        (
            FakeEngine(replace(STATUS, commit_index=-1, applied_index=-1)),
            [],
            "commit index is not known",
        ),
        (FakeEngine(replace(STATUS, role=Role.LEADER, leader="n1")), [], "does not serve yet"),
        (FakeEngine(replace(STATUS, extra={"admitted": 1})), [], ""),
        (
            FakeEngine(replace(STATUS, extra={"admitted": 0})),
            [],
            "does not know its data directory",
        ),
        (FakeEngine(STATUS, {"g1": RETURNING}), [], "copies the log, and is a voter again"),
        (FakeEngine(STATUS), ["g1"], "not known to the controller"),
        (
            FakeEngine(
                replace(
                    STATUS, leader=None, state="repairing", rebuild=RebuildStatus("entry 7 is lost")
                )
            ),
            [],
            "entry 7 is lost",
        ),
    ],
)
def test_readiness_names_the_missing_condition(
    engine: FakeEngine, unknown: list[str], said: str
) -> None:
    """Leader known, applied, serving if leading, and known to the controller."""
    reasons = asyncio.run(Health(engine, lambda: unknown).why_not_ready())
    assert (said in reasons[0] and len(reasons) == 1) if said else not reasons


def test_group_without_a_leader_names_obstacles_to_an_election() -> None:
    """Obstacles to an election are reported only while there is no leader: a refused peer does not
    make a serving group unready."""

    def obstacles(group: str) -> list[str]:
        return [f"{group} waits for n2"]

    down = Health(FakeEngine(replace(STATUS, leader=None)), list, obstacles)
    assert asyncio.run(down.why_not_ready())[1:] == ["g1 waits for n2"]
    assert asyncio.run(Health(FakeEngine(STATUS), list, obstacles).why_not_ready()) == []
    strange = Health(FakeEngine(replace(STATUS, extra={"admitted": 0})), list, obstacles)
    assert asyncio.run(strange.why_not_ready())[1:] == ["g1 waits for n2"], (
        "a replica that its group does not know takes no part either"
    )


OLD_COPY = "not heard by n2, n3: broker group g1: node n1: its data directory is an old copy"


def test_a_replica_that_its_peers_do_not_hear_is_not_ready_and_takes_no_part() -> None:
    """Whatever its log says: its votes and acknowledgements do not count, so nobody may stop
    another node and rely on this one."""

    def unheard(group: str) -> list[str]:
        return [OLD_COPY] if group == "g1" else []

    for status in (STATUS, replace(STATUS, role=Role.LEADER, leader="n1")):
        assert asyncio.run(Health(FakeEngine(status), list, unheard=unheard).why_not_ready()) == [
            "broker group g1: this replica does not count",
            OLD_COPY,
        ]
    one = overview(unheard=unheard)
    own = Reply(groups=[one._own_group(replace(STATUS, node="n3", leader="n1"))])
    own.node.node, own.node.up = "n3", True
    merged = one.merge({**FULL, "n3": own})
    third = merged.groups[0].replicas[2]
    assert (merged.health, third.state, third.rebuild.reason) == ("degraded", "waiting", OLD_COPY)
    assert one.merge({**FULL, "n2": None, "n3": own}).health == "down", "one of three takes part"
    assert one._own_group(replace(STATUS, group="g2")).replicas[0].state == "running"


def test_unready_master_names_the_command_to_run() -> None:
    """The reason for refused calls names the command."""
    ha = HaView(
        0,
        ("n1", "n2"),
        2,
        ack_async=False,
        pull=False,
        short="too few; ledgermq replication g1 --min-in-sync 1",
    )
    view = GroupView("n1", 1, False, {}, {}, {}, ha=ha)
    master = FakeEngine(replace(STATUS, role=Role.LEADER, leader="n1"), {"g1": view})
    reasons = asyncio.run(Health(master, list).why_not_ready())
    assert "does not serve yet" in reasons[0] and reasons[1] == ha.short


def test_stalled_engine_and_a_draining_node_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does not answer in time makes the node unready instead of hanging the
    question."""
    monkeypatch.setattr("ledgermq.node.process.telemetry.http.ANSWER_WITHIN_S", 0.01)
    health = Health(FakeEngine(None), list)
    assert asyncio.run(health.why_not_ready()) == ["the engine does not answer"]
    health.draining = True
    assert asyncio.run(health.why_not_ready()) == ["this node is stopping"]
