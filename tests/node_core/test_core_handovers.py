"""Handing a broker group over: callers that wait, calls in between, the preferred leader, and a
whole cluster that moves under load."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import HandedOver, HandingOver, HandOver
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.members.handovers import (
    CALM_NS,
    LOOK_NS,
    SETTLED_MAX_NS,
    SETTLED_NS,
    Preference,
)
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from ledgermq.raft.config import Members
from ledgermq.raft.transfer import Cause, Handover
from tests.node_core.core_cluster import Cluster
from tests.node_core.core_fakes import MS, SECOND, Bench, draft

ASK_NS = 500 * MS


def ask(bench: Bench, to: str | None = "n2", cause: Cause = Cause.OPERATOR) -> HandOver:
    return HandOver(next(bench.tokens), to, cause, 2 * SECOND, bench.now_ns + ASK_NS)


def test_a_caller_hears_when_the_target_leads() -> None:
    """The caller is answered once, when another replica is known to lead: not while the transfer
    runs, nor while there is no leader."""
    bench = Bench()
    bench.lead()
    call = ask(bench)
    assert bench.ask(call) is None
    bench.replicator.follow(1, None)
    bench.pass_time(MS)
    assert call.token not in bench.done
    bench.replicator.follow(2, "n2")
    bench.pass_time(MS)
    assert bench.done[call.token] == HandedOver("n2")


def test_handover_is_refused_ended_lost_or_left_running() -> None:
    """Refused with the reason, ended by the leader with its reason, won by another replica, or
    still running at the caller's deadline."""
    bench = Bench()
    assert bench.ask(ask(bench)) == Refused("not-leader", None)
    bench.lead()
    assert bench.ask(ask(bench, "n1")) == HandedOver("n1")
    bench.replicator.objection = "n2 is about to stop"
    assert bench.ask(ask(bench)) == Refused("transfer-refused", "n1", "n2 is about to stop")
    bench.replicator.objection = None
    late = ask(bench)
    bench.turn(late)
    assert bench.output is not None and bench.output.wake_at_ns <= bench.now_ns + ASK_NS
    bench.pass_time(ASK_NS)
    assert bench.done[late.token] == HandingOver("n2", 7)
    failed = ask(bench)
    bench.turn(failed)
    bench.replicator.handover, bench.replicator.handover_failure = None, "n2 was too slow"
    bench.pass_time(MS)
    assert bench.done[failed.token] == Refused("transfer-refused", "n1", "n2 was too slow")
    stolen = ask(bench)
    bench.turn(stolen)
    bench.replicator.follow(2, "n3")
    bench.pass_time(MS)
    assert bench.done[stolen.token] == Refused("transfer-refused", "n3", "n3 was elected instead")


def test_a_planned_stop_is_noted_by_followers_too() -> None:
    """A replica that is about to stop does not become leader, whether it leads now or not."""
    bench = Bench()
    assert bench.ask(ask(bench, None, Cause.PLANNED_STOP)) == Refused("not-leader", None)
    assert bench.replicator.left
    assert not Bench().replicator.left


def test_calls_wait_while_the_log_is_closed() -> None:
    """They are neither appended nor refused at once: they end with `not-leader`, or are appended if
    this leader continues."""
    bench = Bench()
    bench.lead()
    bench.configure()
    bench.replicator.handover = Handover("n2", Cause.OPERATOR, bench.now_ns, closed=True)
    end = bench.log.end_index
    first = bench.produce("a")
    assert bench.ask(first) is None and bench.log.end_index == end
    bench.replicator.handover = None
    bench.pass_time(MS)
    assert isinstance(bench.done[first.token], Produced)
    bench.replicator.handover = Handover("n2", Cause.OPERATOR, bench.now_ns, closed=True)
    second = bench.produce("b")
    assert bench.ask(second) is None
    bench.replicator.follow(2, "n2")
    bench.pass_time(MS)
    assert bench.done[second.token] == Refused("not-leader", "n2")


def test_the_preferred_leader_gets_leadership_when_it_kept_up_for_long_enough() -> None:
    """Any lag restarts the wait; so do a running transfer and a new term."""
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred="n2"))
    bench.lead()
    bench.pass_time(SETTLED_NS - MS)
    bench.replicator.kept_up = False
    bench.pass_time(MS)
    bench.replicator.kept_up = True
    bench.pass_time(MS)
    bench.pass_time(SETTLED_NS - MS)
    assert bench.replicator.handover is None
    bench.pass_time(MS)
    handover = bench.replicator.handover
    assert handover is not None and (handover.to, handover.cause) == ("n2", Cause.PREFERRED)


def test_a_preferred_leader_that_is_no_voter_is_waited_for() -> None:
    """A learner, or a node that was removed, cannot lead; once it votes it must keep up for as long
    as anybody."""
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred="n2"))
    voting, bench.replicator.members = (
        bench.replicator.members,
        Members(("n1", "n3"), frozenset({"n2"})),
    )
    bench.lead()
    for _ in range(5):
        bench.pass_time(SETTLED_NS)
    assert bench.replicator.handover is None
    bench.replicator.members = voting
    bench.pass_time(MS)
    bench.pass_time(SETTLED_NS - MS)
    assert bench.replicator.handover is None
    bench.pass_time(MS)
    assert bench.replicator.handover is not None


def preferring(node: str = "n2") -> Bench:
    return Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred=node))


def test_each_leadership_gives_the_preferred_leader_its_whole_time() -> None:
    """What was seen of it in a former term does not count, whoever led in between."""
    bench = preferring()
    bench.lead()
    bench.pass_time(MS)
    bench.pass_time(SETTLED_NS - MS)
    bench.replicator.follow(2, "n3")
    bench.pass_time(MS)
    bench.lead(3)
    bench.pass_time(MS)
    bench.pass_time(SETTLED_NS - MS)
    assert bench.replicator.handover is None
    bench.pass_time(MS)
    assert bench.replicator.handover is not None


def test_a_handover_that_is_under_way_is_left_alone() -> None:
    """An operator's, to another node; the time of the preferred leader begins when it has ended."""
    bench = preferring()
    bench.lead()
    bench.turn(ask(bench, "n3"))
    for _ in range(3):
        bench.pass_time(SETTLED_NS)
        assert bench.replicator.handover is not None and bench.replicator.handover.to == "n3"
    bench.replicator.handover = None
    for ns in (MS, SETTLED_NS - MS):
        bench.pass_time(ns)
        assert bench.replicator.handover is None
    bench.pass_time(MS)
    assert bench.replicator.handover is not None and bench.replicator.handover.to == "n2"


def test_leader_that_does_not_serve_yet_keeps_leadership() -> None:
    """It has not applied what was committed before it, and may not even know whom it should
    prefer."""
    bench = preferring()
    bench.replicator.commit_at_once = False
    bench.lead()
    for _ in range(3):
        bench.pass_time(SETTLED_NS)
        assert not bench.group.leader.serving and bench.replicator.handover is None
    bench.replicator.commit_at_once = True
    bench.pass_time(MS)
    bench.pass_time(SETTLED_NS)
    assert bench.group.leader.serving and bench.replicator.handover is None, (
        "its time begins when it serves"
    )
    bench.pass_time(SETTLED_NS)
    assert bench.replicator.handover is not None


def test_a_leader_that_only_hears_packets_looks_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that bring no call and change nothing are cut short, but not those in which it has to
    look."""
    bench = preferring()
    bench.lead()
    handovers, looks = bench.group._handovers, []
    look = handovers.look_for_leader
    monkeypatch.setattr(
        handovers, "look_for_leader", lambda now_ns: (looks.append(now_ns), look(now_ns))
    )
    monkeypatch.setattr(bench.replicator, "calm_until", lambda now_ns: now_ns + SECOND)
    bench.pass_time(MS)
    packet: Any = None
    for _ in range(10):
        bench.now_ns += LOOK_NS // 2
        bench.took(bench.group.turn(bench.now_ns, bench.now_ms, packets=[("n2", packet)]))
    assert [at - looks[0] for at in looks] == [number * LOOK_NS for number in range(6)]


def test_leadership_stays_without_another_preferred_leader() -> None:
    """Without a preferred leader, and where it leads already, leadership stays."""
    for preferred in (None, "n1"):
        bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred=preferred))
        bench.lead()
        for _ in range(10):
            bench.pass_time(SETTLED_NS)
        assert bench.replicator.handover is None


def full(bench: Bench, *nodes: str) -> None:
    bench.group.note_full(frozenset(nodes))
    for _ in range(2):
        bench.pass_time(MS)


@pytest.mark.parametrize("preferred", [None, "n1", "n2", "n3"])
@pytest.mark.parametrize(
    "disks", [(), ("n1",), ("n2",), ("n1", "n2"), ("n1", "n3"), ("n2", "n3"), ("n1", "n2", "n3")]
)
def test_leadership_goes_from_a_full_disk_to_one_with_room_and_never_the_other_way(
    preferred: str | None, disks: tuple[str, ...]
) -> None:
    """Of those with room the preferred leader comes first. Where none has room, leadership
    stays."""
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred=preferred))
    bench.lead()
    full(bench, *disks)
    assert bench.replicator.full_nodes == frozenset(disks), "elections avoid them too"
    bench.pass_time(SETTLED_NS)
    roomy = [node for node in (preferred, "n2", "n3") if node not in (None, "n1", *disks)]
    if "n1" not in disks:
        roomy = [node for node in roomy if node == preferred]
    handover = bench.replicator.handover
    assert (None if handover is None else handover.to) == (roomy[0] if roomy else None)


def test_a_full_leader_takes_whoever_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the preferred leader, which is down."""
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred="n2"))
    bench.lead()
    monkeypatch.setattr(bench.replicator, "keeps_up", lambda node, now_ns: node == "n3")
    full(bench, "n1")
    bench.pass_time(SETTLED_NS - 2 * MS)
    assert bench.replicator.handover is None
    bench.pass_time(MS)
    assert bench.replicator.handover is not None and bench.replicator.handover.to == "n3"


def test_the_preferred_leader_gets_leadership_back_when_it_has_room_again() -> None:
    """And a disk that fills again and again does not move leadership again and again: each time it
    has to keep up for longer."""
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), preferred="n2"))
    bench.lead()
    for waits_ns in (SETTLED_NS, 2 * SETTLED_NS, 4 * SETTLED_NS):
        full(bench, "n2")
        bench.pass_time(SETTLED_MAX_NS // 10)
        assert bench.replicator.handover is None
        full(bench)
        bench.pass_time(waits_ns - 2 * MS)
        assert bench.replicator.handover is None
        bench.pass_time(MS)
        assert bench.replicator.handover is not None and bench.replicator.handover.to == "n2"
        bench.replicator.handover = None
        bench.pass_time(MS)


def test_a_preferred_leader_cannot_flap() -> None:
    """Each time leadership comes back soon, it must keep up twice as long, up to ten minutes; a
    calm time makes up for it."""
    preference, now, waits = Preference(), 0, []
    for _ in range(10):
        began = now
        while not preference.due(now, "n2"):
            now += SECOND
        waits.append((now - began) // SECOND)
        preference.due(now, None)
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert SETTLED_MAX_NS == 600 * SECOND
    now += CALM_NS + SETTLED_MAX_NS
    preference.due(now, "n2")
    while not preference.due(now, "n2"):
        now += SECOND
    assert preference.settled_ns == 2 * SETTLED_NS


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(8))
def test_transfers_under_load_lose_no_call(seed: int) -> None:
    """Leadership goes round while messages are sent: every call ends with success or `not-leader`,
    none with an unknown outcome."""
    cluster, tokens, moves = Cluster(seed), count(1), Random(seed)
    cluster.run(2000 * MS)
    first = cluster.leader()
    assert first is not None
    topic = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)
    cluster.turn(first, [Configure(next(tokens), topics=(topic,))])
    cluster.run(cluster.now_ns + 100 * MS)
    asked, moved, sent = [], 0, {}
    for step in range(400):
        node = cluster.leader()
        if node is not None:
            call = Produce(next(tokens), [draft(f"m{step}")])
            sent[call.token] = f"m{step}"
            cluster.turn(node, [call])
            if step % 40 == 20:
                to = moves.choice([name for name in cluster.nodes if name != node.name])
                asked.append(next(tokens))
                cluster.turn(
                    node,
                    [HandOver(asked[-1], to, Cause.OPERATOR, 2 * SECOND, cluster.now_ns + SECOND)],
                )
        cluster.run(cluster.now_ns + 5 * MS)
    cluster.run(cluster.now_ns + 2 * SECOND)
    outcomes = [cluster.outcomes[token] for token in sent]
    assert all(
        isinstance(o, Produced) or (isinstance(o, Refused) and o.reason == "not-leader")
        for o in outcomes
    )
    moved = sum(isinstance(cluster.outcomes[token], HandedOver) for token in asked)
    assert moved >= len(asked) - 1 > 5
    acknowledged = sum(isinstance(outcome, Produced) for outcome in outcomes)
    ends = {node.machine.queue_ends()["t"] for node in cluster.nodes.values()}
    assert ends == {(acknowledged,)}, "each acknowledged message is there once, and no other"
