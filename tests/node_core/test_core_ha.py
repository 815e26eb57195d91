"""HA groups in a broker group's turns: what a master acknowledges alone, and what it refuses while
too few are in sync."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.node.broker import in_sync
from ledgermq.node.broker.calls.member_calls import (
    Appointed,
    ChangeMembers,
    GroupMembers,
    MembersChanged,
    Returned,
)
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.flush import Durability, FlushPolicy, durability_of, strongest, weakest
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.members.memberships import AGAIN_NS
from ledgermq.proto.levels import MINIMUM_LEVEL
from ledgermq.proto.types import Permission, TopicConfig, TopicDurability, TopicKind
from ledgermq.raft.config import HaRules, Members, Rule
from ledgermq.raft.ha_control import Appointment
from tests.node_core.core_fakes import SECOND, Bench, draft
from tests.node_core.parts.test_core_producers import Producing, numbered, produced

IN_SYNC = Members(("n1", "n2", "n3"), rule=Rule.IN_SYNC)


def topic(name: str, durability: TopicDurability = TopicDurability.GROUP) -> TopicConfig:
    return TopicConfig("", name, TopicKind.NORMAL, 1, Permission.READ_WRITE, 1, durability)


def bench(
    rules: HaRules = HaRules(ack_async=True),  # noqa: B008
    policy: FlushPolicy = FlushPolicy.DURABLE,
) -> Bench:
    """The master of an HA group with one topic of each durability, everything committed so far, and
    nothing from now on."""
    b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), policy=policy, ha=rules))
    b.replicator.members = IN_SYNC
    b.replicator.appointment = Appointment(
        generation=0, version=1, epoch=1, master="n1", in_sync={"n1": "", "n2": ""}
    )
    b.lead(1)
    b.ask(
        Configure(next(b.tokens), topics=[topic(one.value or "t", one) for one in TopicDurability])
    )
    b.pass_time(2 * SECOND)
    b.replicator.commit_at_once = False
    b.replicator.urgencies.clear()
    return b


def produce(b: Bench, name: str, priority: int = -1) -> Produce:
    return Produce(next(b.tokens), [replace(draft("m", name), priority=priority)])


def out(b: Bench) -> TurnOutput:
    assert b.output is not None
    return b.output


def master_syncs(b: Bench) -> None:
    b.replicator.replicated = b.log.end_index
    b.turn()


def commit(b: Bench) -> None:
    b.replicator.commit_index = b.log.end_index
    b.replicator.replicated = None
    b.turn()


@pytest.mark.parametrize("policy", list(FlushPolicy))
@pytest.mark.parametrize(
    ("durability", "priority", "expected"),
    [
        (TopicDurability.HIGH, -1, "durable"),
        (TopicDurability.MEMORY, 9, "master"),
        (TopicDurability.HYBRID, 4, "durable"),
        (TopicDurability.HYBRID, 3, "master"),
        (TopicDurability.GROUP, -1, "master"),
    ],
)
def test_master_that_acknowledges_alone_waits_only_for_durable_requests(
    policy: FlushPolicy, durability: TopicDurability, priority: int, expected: str
) -> None:
    """Whatever the flush policy of the group is: nothing there is weaker than the master's disk."""
    assert durability_of(policy, durability, priority, alone=True).value == expected


def test_classes_are_ordered() -> None:
    """A call has the strongest class of its messages, several answers together the weakest."""
    memory, master, durable = Durability.MEMORY, Durability.MASTER, Durability.DURABLE
    assert strongest([memory, master]) is master and strongest([master, durable, memory]) is durable
    assert weakest([durable, master]) is master and weakest([durable, memory, master]) is memory


@pytest.mark.parametrize("name", ["t", "high", "memory", "hybrid"])
def test_a_send_is_answered_when_the_master_has_synced_it(name: str) -> None:
    """It is urgent, marked, and not delivered before its commit; a topic of durability `high` waits
    for that."""
    b = bench()
    call = produce(b, name)
    assert b.ask(call) is None
    assert b.replicator.urgencies == [(True, False)]
    master_syncs(b)
    assert (call.token in b.done) is (name != "high")
    assert b.machine.end(name, 0) == 0, "consumers see what is confirmed"
    commit(b)
    answer = b.done[call.token]
    assert isinstance(answer, Produced) and answer.durability == (
        "durable" if name == "high" else "master"
    )


def test_a_master_acknowledges_alone_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the quorum, a silent slave cannot be removed from the set; unconfirmed entries stay
    in memory, so they are bounded."""
    monkeypatch.setattr(in_sync, "UNCONFIRMED_MAX", 2)
    b = bench()
    first, second = produce(b, "t"), produce(b, "t")
    b.ask(first)
    master_syncs(b)
    assert first.token in b.done and out(b).open_batches == 0
    b.ask(second)
    master_syncs(b)
    assert second.token not in b.done and out(b).hold_calls and out(b).open_batches == 1
    commit(b)
    assert second.token in b.done and out(b).open_batches == 0


def test_majority_rule_ignores_asynchronous_acknowledgement() -> None:
    """While the group goes by majorities a send waits for the commit, also one that was appended
    before the group changed over."""
    b = bench()
    before = produce(b, "t")
    b.ask(before)
    b.replicator.members = Members(
        ("n1", "n2", "n3"), rule=Rule.ALL, towards=Rule.MAJORITY, since=7
    )
    after = produce(b, "t")
    b.ask(after)
    master_syncs(b)
    assert before.token not in b.done and after.token not in b.done
    commit(b)
    classes = [b.done[call.token].durability for call in (before, after)]  # type: ignore[union-attr]
    assert classes == ["master", "durable"]


def test_native_frames_say_so_and_name_the_master() -> None:
    """A producer need not ask: what its group acknowledges for is the group's to say."""
    b = Producing(ha=HaRules(ack_async=True))
    b.replicator.members = IN_SYNC
    b.open()
    b.replicator.commit_at_once = False
    first = b.later(numbered(1, 0, 0, 2))
    master_syncs(b)
    assert produced(b.done[first]).durability == "master"
    again = b.later(numbered(1, 0, 0, 2))
    commit(b)
    assert produced(b.done[again]).durability == "durable"


def test_a_batch_is_over_when_its_sends_are_answered() -> None:
    """Calls are held only during the master's own sync: a slow slave does not delay them."""
    b = bench()
    b.ask(produce(b, "t"))
    assert out(b).open_batches == 1 and out(b).hold_calls
    master_syncs(b)
    assert out(b).open_batches == 0 < b.log.end_index - b.replicator.commit_index
    in_sync = bench(HaRules(minimum=2))
    in_sync.ask(produce(in_sync, "t"))
    master_syncs(in_sync)
    assert out(in_sync).open_batches == 1


def test_while_too_few_are_in_sync_calls_are_refused_at_once() -> None:
    """The refusal names the missing members and the remedy and is not delayed; calls are accepted
    again when the set is complete."""
    b = bench(HaRules(minimum=2))
    b.replicator.short = 1
    call = produce(b, "t")
    b.ask(call)
    refusal = b.done[call.token]
    assert isinstance(refusal, Refused) and refusal.reason == "in-sync-short"
    assert (
        "1 of the 2 replicas in sync" in refusal.detail and "nothing was stored" in refusal.detail
    )
    assert b.replicator.urgencies == [] and not out(b).hold_calls
    view = b.group.view()
    assert view.ha is not None and view.short == refusal.detail and view.ha.in_sync == ("n1", "n2")
    numbers = b.group.statistics()
    assert (numbers["in_sync"], numbers["in_sync_short"]) == (2, 1)
    b.replicator.short = 0
    b.ask(produce(b, "t"))
    assert len(b.replicator.urgencies) == 1 and b.group.view().short == ""


def stuck(level: int = MINIMUM_LEVEL) -> Bench:
    """A new master that cannot commit the first entry of its epoch."""
    b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), ha=HaRules(minimum=2)))
    b.replicator.members, b.replicator.commit_at_once = (
        Members(("n1", "n2"), rule=Rule.IN_SYNC),
        False,
    )
    b.replicator.appointment = Appointment(
        generation=0, version=1, epoch=1, master="n1", in_sync={"n1": "", "n2": ""}
    )
    b.machine.members = GroupMembers(-1, ("n1", "n2"), rule="in-sync")
    b.machine.level = level
    b.lead(1)
    b.replicator.short = 1
    b.pass_time(2 * SECOND)
    assert not b.group.leader.serving and b.log.end_index == 0
    return b


def test_how_many_copies_an_entry_needs() -> None:
    """So many disks must have room: by the rule in force, and in an HA group by the minimum in
    force."""
    needed = []
    for rules, members in (
        (HaRules(minimum=2), IN_SYNC),
        (HaRules(minimum=2), Members(("n1", "n2", "n3"), rule=Rule.ALL, towards=Rule.IN_SYNC)),
        (HaRules(minimum=1), Members(("n1", "n2", "n3"))),
        (HaRules(minimum=1), IN_SYNC),
    ):
        b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), ha=rules))
        b.replicator.members = members
        needed.append([b.group.in_sync.copies_needed(voters) for voters in (3, 4)])
    assert needed == [[2, 2], [3, 4], [2, 3], [1, 1]]


def minimum(b: Bench, wanted: int) -> ChangeMembers:
    call = ChangeMembers(
        next(b.tokens), "minimum", "", reason="asked for by an operator", minimum=wanted
    )
    b.turn(call)
    return call


def test_a_master_that_does_not_serve_yet_takes_back_a_lost_directory() -> None:
    """It may need the copy to commit anything. It asks once, and again if another master cut the
    record off."""
    b = stuck()
    for _ in range(3):
        b.turn(Returned("n2", "new"))
        b.pass_time(AGAIN_NS)
    assert (
        b.log.end_index == 1
        and b.replicator.members.returning == {"n2"}
        and not b.group.leader.serving
    )
    assert "n2" in b.group.view().in_effect and b.group.view().incarnations == {"n2": "new"}
    commit(b)
    assert (
        b.group.leader.serving
        and b.machine.members is not None
        and b.machine.members.returning == {"n2"}
    )


def test_a_master_that_does_not_serve_yet_takes_another_minimum() -> None:
    """Answered when the record is committed; the same minimum again needs no record. Other changes
    wait for a leader that serves."""
    b = stuck()
    assert "ledgermq replication g --min-in-sync 1" in b.group.view().short
    promote = ChangeMembers(next(b.tokens), "promote", "n2")
    b.turn(promote)
    assert (
        isinstance(b.done[promote.token], Refused) and b.done[promote.token].reason == "not-leader"
    )  # type: ignore[union-attr]
    call = minimum(b, 1)
    assert call.token not in b.done and b.replicator.members.minimum == 1 and b.log.end_index == 1
    b.replicator.short = 0
    commit(b)
    answer = b.done[call.token]
    assert (
        isinstance(answer, MembersChanged)
        and answer.members.minimum == 1
        and answer.members.index == 1
    )
    assert b.group.leader.serving and b.group.view().ha.minimum == 1  # type: ignore[union-attr]
    again = minimum(b, 1)
    assert b.done[again.token] == answer and b.log.end_index == 1
    wrong = minimum(b, 3)
    refusal = b.done[wrong.token]
    assert (
        isinstance(refusal, Refused)
        and refusal.reason == "members-refused"
        and "1 to 2" in refusal.detail
    )


def test_below_its_level_no_minimum_is_recorded() -> None:
    """The refusal and the reason for refused calls name what helps there."""
    b = stuck(MINIMUM_LEVEL - 1)
    assert "lower min_in_sync of the group" in b.group.view().short
    call = minimum(b, 1)
    refusal = b.done[call.token]
    assert (
        isinstance(refusal, Refused)
        and "feature level 3" in refusal.detail
        and "restart the master" in refusal.detail
    )
    assert b.log.end_index == 0


def test_a_raft_leader_changes_no_members_before_it_serves() -> None:
    b = Bench()
    b.replicator.commit_at_once = False
    b.lead(1)
    b.turn(Returned("n2", "new"))
    b.pass_time(10 * AGAIN_NS)
    call = minimum(b, 1)
    assert b.log.end_index == 0 and isinstance(b.done[call.token], Refused)


def test_a_new_master_is_given_a_moment_to_be_heard() -> None:
    """Calls wait until the slaves answer, and are not refused."""
    b = Bench(settings=LeaderSettings(ha=HaRules(minimum=2)))
    b.replicator.members = IN_SYNC
    b.replicator.short = 1
    b.lead(1)
    call = produce(b, "t")
    b.turn(call)
    assert (
        not isinstance(b.done.get(call.token), Refused)
        or b.done[call.token].reason != "in-sync-short"
    )  # type: ignore[union-attr]
    b.pass_time(2 * SECOND)
    late = produce(b, "t")
    b.turn(late)
    assert isinstance(b.done[late.token], Refused) and b.done[late.token].reason == "in-sync-short"  # type: ignore[union-attr]


def test_a_send_that_waits_when_the_set_shrinks_is_answered_when_it_is_whole_again() -> None:
    """It is in the log: to refuse it would be a lie, and its caller's deadline ends the waiting."""
    b = bench(HaRules(minimum=2))
    call = produce(b, "t")
    b.ask(call)
    b.replicator.short = 1
    b.turn()
    assert call.token not in b.done
    b.replicator.short = 0
    commit(b)
    assert isinstance(b.done[call.token], Produced)


def test_an_appointed_master_sends_and_syncs_its_term_start_in_the_same_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be alone: then no answer of another replica would give it the next turn before its own
    heartbeat is due."""
    b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), ha=HaRules()))
    replicator, take = b.replicator, b.replicator.take
    replicator.members = IN_SYNC
    monkeypatch.setattr(
        replicator,
        "appointed",
        lambda now_ns, appointment: replicator.lead(appointment.epoch),
        raising=False,
    )
    monkeypatch.setattr(
        replicator,
        "take",
        lambda now_ns: replace(take(now_ns), role_changed=b.group.leader.term != replicator.term),
    )
    b.turn(
        Appointed(Appointment(generation=0, version=1, epoch=1, master="n1", in_sync={"n1": ""}))
    )
    assert b.log.end_index == 0 and b.group.view().serving
