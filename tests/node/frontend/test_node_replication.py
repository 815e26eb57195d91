"""HA groups as operators see them: what speaks against an election by their word, what it would
cost, and what status makes of the set."""

from __future__ import annotations

import pytest

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.frontend.admin.cluster.overview import replication_of
from ledgermq.node.frontend.admin.cluster.replication_admin import loss_of, reports_of, why_not
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import peer_pb2
from tests.node.frontend.test_node_overview import FULL, overview, reply

VOTERS = ("n1", "n2", "n3")


def report(
    node: str,
    *,
    role: str = "follower",
    end: int = 10,
    commit: int = 10,
    leader: str | None = None,
    directory: str = "",
    ms: int = 1_000,
) -> pb.BrokerGroupInfo:
    found = pb.BrokerGroupInfo(
        group="g1", leader=leader, term=4, commit_index=commit, voters=VOTERS
    )
    found.replicas.add(node=node, role=role, end_index=end)
    found.ha.CopyFrom(pb.HaInfo(incarnation=directory, last_store_ms=ms))
    return found


def test_only_replicas_that_run_count() -> None:
    """One that is being repaired has no role, and a node that does not answer says nothing."""
    resting = report("n2")
    resting.replicas[0].ClearField("role")
    replies = {
        "n1": peer_pb2.NodeStatusReply(groups=[report("n1")]),
        "n2": peer_pb2.NodeStatusReply(groups=[resting]),
        "n3": None,
    }
    assert set(reports_of("g1", replies)) == {"n1"} and not reports_of("g2", replies)


@pytest.mark.parametrize(
    ("told", "in_sync", "said"),
    [
        (
            [report("n1", role="leader"), report("n2", leader="n1")],
            {"n1": "", "n2": ""},
            "n1 is master of g1 (epoch 4)",
        ),
        (
            [report("n2", leader="n1"), report("n3", leader="n1")],
            {"n1": ""},
            "n2, n3 heard the master n1",
        ),
        (
            [report("n2"), report("n3")],
            {"n1": "", "n3": ""},
            "n3 of the in-sync set of g1 answers and is elected by itself",
        ),
        ([report("n2")], {"n1": "", "n3": ""}, "n2 is not in the in-sync set of g1 (n1, n3)"),
        ([report("n2", directory="new")], {"n1": "", "n2": "old"}, "n2 is not in the in-sync set"),
        ([report("n2", directory="d")], {"n1": "", "n2": "d"}, ""),
        ([report("n2")], None, "the controller quorum knows of no in-sync set of g1"),
    ],
)
def test_forced_election_is_refused_while_a_better_node_exists(
    told: list[pb.BrokerGroupInfo], in_sync: dict[str, str] | None, said: str
) -> None:
    """An existing or reachable master; members of the set that could be elected without loss; a
    node that is not in sync."""
    reports = {found.replicas[0].node: found for found in told}
    objection = why_not("g1", "n2", reports, in_sync)
    assert objection.startswith(said) if said else objection == ""


def test_loss_of_a_forced_election_is_counted_from_known_replicas() -> None:
    """The loss in entries and in time; the answer says that silent nodes may have had more; an
    in-sync node loses nothing."""
    told = {
        "n2": report("n2", end=7, commit=7, ms=1_000),
        "n3": report("n3", end=9, commit=12, ms=1_040),
    }
    loss = loss_of("n2", told, unclean=True)
    assert (loss.entries, loss.ms) == (5, 40)
    assert (
        "entries up to 7" in loss.words
        and "5 later ones, of 40 ms" in loss.words
        and "what only n1 had cannot be counted" in loss.words
    )
    alone = loss_of("n2", {"n2": told["n2"]}, unclean=True)
    assert alone.entries is None and "no replica that answers knows of a later one" in alone.words
    assert (
        loss_of("n2", told, unclean=False).words
        == "nothing that was committed is lost: n2 is in sync"
    )


def test_the_kind_of_replication_in_the_words_of_the_configuration() -> None:
    """Also while a group is changing over."""
    assert replication_of(GroupMembers(0, VOTERS)) == "raft"
    assert replication_of(GroupMembers(0, VOTERS, rule="in-sync")) == "ha"
    assert replication_of(GroupMembers(5, VOTERS, rule="all", towards="in-sync")) == "raft to ha"
    assert replication_of(GroupMembers(5, VOTERS, rule="all", towards="majority")) == "ha to raft"


@pytest.mark.parametrize(
    ("in_sync", "short", "silent", "health"),
    [
        (VOTERS, None, (), "ok"),
        (("n1", "n2"), None, (), "degraded"),
        (("n1", "n2"), "too few", (), "degraded"),
        (("n1",), None, ("n2", "n3"), "degraded"),
    ],
)
def test_health_of_an_ha_group_is_that_of_its_in_sync_set(
    in_sync: tuple[str, ...], short: str | None, silent: tuple[str, ...], health: str
) -> None:
    """A lone master is degraded, where a Raft leader without a majority would be down; a slave that
    is not in sync is reported."""
    replies = {node: None if node in silent else answer for node, answer in FULL.items()}
    master = reply("n1", "leader", end=12)
    master.groups[0].ha.CopyFrom(pb.HaInfo(epoch=1, in_sync=in_sync, short=short))
    master.groups[0].voters.extend(VOTERS)
    merged = overview().merge({**replies, "n1": master})
    assert merged.health == health and list(merged.groups[0].ha.in_sync) == list(in_sync)


def test_without_a_master_nobodys_word_on_the_set_counts() -> None:
    """The last knowledge of slaves may be old; a node that knows the agreed state supplies it."""
    slave = reply("n2", "follower")
    slave.groups[0].ha.CopyFrom(pb.HaInfo(epoch=1, in_sync=VOTERS, min_in_sync=2))
    slave.groups[0].voters.extend(VOTERS)
    merged = overview().merge({"n1": None, "n2": slave, "n3": None})
    assert merged.health == "down"
    assert (
        not merged.groups[0].ha.in_sync
        and not merged.groups[0].ha.HasField("epoch")
        and merged.groups[0].ha.min_in_sync == 2
    )
