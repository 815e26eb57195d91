"""Urgent and lazy entries, and the replicated index: what a leader knows before entries are
durable, and which members it asks to sync."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.core import Core
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteRequest
from tests.raft.memory_cluster import Cluster, Member
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow, leader, said


def grow(raft: Core, count: int = 1, *, lazy: bool) -> None:
    """The leader appends, of one class."""
    first = raft.log.end_index + 1
    raft.appended(
        Extent(first, first + count - 1, raft.term, 100 * count), urgent=not lazy, early=lazy
    )


def pushes(raft: Core) -> list[Append]:
    """Everything the leader sends now, ranges included."""
    effects = raft.take(LATER)
    messages = [message for message in effects.messages if isinstance(message, Append)]
    for push in effects.pushes:
        last = raft.log.end_index
        messages.append(
            raft.pushed(
                push.to,
                Extent(push.first_index, last, raft.term, 100 * (last - push.first_index + 1)),
            )
        )
    return messages


def reply(raft: Core, sender: str, received: int, durable: int) -> None:
    raft.step(
        AppendReply(
            sender=sender,
            to="a",
            term=raft.term,
            round=raft.election.leading.round,
            boot_id=1,
            rejected=False,
            received=received,
            durable=durable,
        ),
        LATER,
    )


def led(lazy: int = 0, voters: tuple[str, ...] = VOTERS) -> Core:
    """A leader whose term start is entry 1, durable everywhere, with `lazy` lazy entries behind
    it."""
    raft = leader(voters=voters)
    grow(raft, lazy=False)
    pushes(raft)
    raft.synced(*raft.sync_begins())
    for voter in voters[1:]:
        reply(raft, voter, 1, 1)
    pushes(raft)
    if lazy:
        grow(raft, lazy, lazy=True)
    raft.check_invariants()
    return raft


def test_the_replicated_index_counts_memory_and_the_commit_index_does_not() -> None:
    """A majority that received an entry moves the one, only a majority that synced it the other."""
    raft = led(lazy=2)
    assert (raft.commit_index, raft.replicated_index) == (1, 1)
    pushes(raft)
    reply(raft, "b", 2, 1)
    assert (raft.commit_index, raft.replicated_index) == (1, 2)
    reply(raft, "c", 3, 3)
    assert (raft.commit_index, raft.replicated_index) == (1, 3)
    raft.synced(*raft.sync_begins())
    assert (raft.commit_index, raft.replicated_index) == (3, 3)
    raft.check_invariants()


def test_lone_voter_holds_entries_at_once_and_commits_after_its_sync() -> None:
    """Its own memory is the majority; commit still waits for its disk."""
    raft = core(voters=("a",))
    raft.tick(LATER)
    assert raft.role is Role.LEADER
    grow(raft, lazy=True)
    assert (raft.commit_index, raft.replicated_index) == (0, 1)


def test_copies_of_earlier_terms_are_not_counted() -> None:
    """The rule of commit (§5.4.2) holds for the earlier acknowledgement as well: only entries of
    the leader's own term."""
    raft = leader([1, 1])
    pushes(raft)
    for voter in ("b", "c"):
        reply(raft, voter, 2, 0)
    assert raft.replicated_index == raft.commit_index == 0
    grow(raft, lazy=False)
    pushes(raft)
    reply(raft, "b", 3, 0)
    assert (raft.commit_index, raft.replicated_index) == (0, 3)


def test_the_replicated_index_ends_with_the_leadership() -> None:
    """A deposed leader promises nothing more, and a later term starts from what is committed."""
    raft = led(lazy=2)
    pushes(raft)
    reply(raft, "b", 3, 1)
    assert raft.replicated_index == 3
    raft.step(
        AppendReply(
            sender="c", to="a", term=9, round=0, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    assert raft.role is Role.FOLLOWER and raft.replicated_index == raft.commit_index == 1


def test_reborn_peer_leaves_the_held_index_in_place() -> None:
    """What was held by a majority was held; a reborn peer only stops counting for what comes."""
    raft = led(lazy=1)
    pushes(raft)
    reply(raft, "b", 2, 1)
    raft.step(
        AppendReply(
            sender="b",
            to="a",
            term=raft.term,
            round=raft.election.leading.round,
            boot_id=2,
            rejected=False,
            received=1,
            durable=1,
        ),
        LATER,
    )
    assert raft.replicated_index == 2
    grow(raft, lazy=True)
    assert raft.replicated_index == 2
    raft.check_invariants()


def test_ranges_carry_lazy_and_early_flags_of_their_entries() -> None:
    """A durable range is neither lazy nor early, one from memory is both; behind an urgent entry
    everything up to it is urgent."""
    raft = led()
    grow(raft, lazy=False)
    assert {(m.lazy, m.early) for m in pushes(raft)} == {(False, False)}
    grow(raft, lazy=True)
    assert {(m.lazy, m.early) for m in pushes(raft)} == {(True, True)}
    grow(raft, lazy=True)
    grow(raft, lazy=False)
    assert {(m.lazy, m.early) for m in pushes(raft)} == {(False, True)}


def test_heartbeat_keeps_lazy_entries_lazy_unless_one_is_urgent() -> None:
    """Entries from memory that a peer received and did not sync yet stay lazy, unless an urgent one
    is among them."""
    for lazy in (True, False):
        raft = led()
        grow(raft, lazy=lazy)
        grow(raft, lazy=True)
        pushes(raft)
        reply(raft, "b", 3, 1)
        beat = raft.take(LATER + raft.config.timing.heartbeat_ns).messages
        assert [(m.prev_index, m.lazy) for m in beat if isinstance(m, Append) and m.to == "b"] == [
            (3, lazy)
        ]


def test_peers_are_told_when_lazy_entries_become_urgent() -> None:
    """By a message of its own to those that have them, and again with every heartbeat until they
    say that they are durable."""
    raft = led(lazy=2)
    pushes(raft)
    for voter in ("b", "c"):
        reply(raft, voter, 3, 1)
    assert [m for m in pushes(raft) if not m.lazy] == []
    raft.request_flush()
    told = pushes(raft)
    assert [(m.to, m.extent, m.last_index, m.lazy) for m in told] == [
        ("b", None, 3, False),
        ("c", None, 3, False),
    ]
    assert pushes(raft) == []
    reply(raft, "b", 3, 3)
    raft.take(LATER)
    beats = [
        m for m in said(raft, LATER + raft.config.timing.heartbeat_ns) if isinstance(m, Append)
    ]
    assert [(m.to, m.lazy) for m in beats] == [("b", True), ("c", False)]


def test_a_range_on_its_way_becomes_urgent_when_it_has_arrived() -> None:
    """The range became urgent between the push and the reply, and the peer is notified at once."""
    raft = led(lazy=1)
    pushes(raft)
    raft.request_flush()
    assert pushes(raft) == []
    reply(raft, "b", 2, 1)
    assert [(m.to, m.last_index, m.lazy) for m in pushes(raft)] == [("b", 2, False)]


def test_sync_of_the_leader_asks_its_peers_to_sync() -> None:
    """Otherwise a lazy entry caught by an urgent sync would be durable on one node and wait
    everywhere else."""
    raft = led(lazy=1)
    pushes(raft)
    for voter in ("b", "c"):
        reply(raft, voter, 2, 1)
    raft.sync_begins()
    assert {(m.to, m.lazy) for m in pushes(raft)} == {("b", False), ("c", False)}


@pytest.mark.parametrize("leads", [True, False])
def test_sync_behind_a_turn_makes_the_entries_of_a_leader_urgent(leads: bool) -> None:
    """With the messages of that turn; a follower asks nobody."""
    raft = led(lazy=1)
    assert {message.end_index for message in pushes(raft)} == {raft.log.end_index}
    if not leads:
        follow(raft, append(1, 2, term=raft.term + 1), LATER)
        assert raft.role is Role.FOLLOWER
        raft.log_state.urgent_index = 0
    urgent = raft.log_state.urgent_index
    assert urgent < raft.log.end_index
    effects = raft.take(LATER, syncs=True)
    assert raft.log_state.urgent_index == (raft.log.end_index if leads else urgent)
    # Effects say when the next turn is due, of a turn with work and of a calm one.
    assert effects.wake_at_ns == raft.wake_at_ns(LATER) > LATER
    for voter in ("b", "c"):
        raft.take(LATER)
        assert raft.take(LATER).wake_at_ns == (raft.calm_until(LATER) or raft.wake_at_ns(LATER))
        if leads:
            reply(raft, voter, 2, 2)


def test_a_new_leader_takes_all_it_finds_for_urgent() -> None:
    """The class of entries of earlier terms is unknown: callers may wait for their durability."""
    raft = leader([1, 1, 1])
    assert raft.urgent_index == 3
    beats = said(raft, LATER + raft.config.timing.heartbeat_ns)
    assert [(m.to, m.prev_index, m.lazy) for m in beats if isinstance(m, Append)] == [
        ("b", 3, False),
        ("c", 3, False),
    ]


def test_urgent_index_of_a_follower_follows_the_leader_and_cuts() -> None:
    """A lazy range leaves it in peace, a later heartbeat or range does not; refused and cut entries
    leave nothing behind."""
    raft = core()
    follow(raft, replace(append(0, 0, 2), lazy=True, early=True))
    assert raft.urgent_index == -1
    follow(raft, replace(append(1, 2, round_=2), lazy=False))
    assert raft.urgent_index == 1
    follow(raft, append(2, 2, 2, round_=3))
    assert raft.urgent_index == 4
    raft.step(append(4, 2, 3, round_=4), 0)
    assert raft.take_writes().append == (5, 7)
    raft.append_refused()
    assert raft.urgent_index == 4
    raft.check_invariants()
    follow(raft, replace(append(2, 2, 1, term=3, of=3), sender="c", lazy=True))
    assert (raft.log.end_index, raft.urgent_index) == (3, 2)
    raft.check_invariants()


def test_an_early_range_is_answered_before_it_is_durable() -> None:
    """Once when it is written, and once more when it is synced; without `early` the one reply waits
    for the sync."""
    raft = core()
    (answer,) = follow(raft, replace(append(0, 0, 2), lazy=True, early=True)).messages
    assert isinstance(answer, AppendReply) and (answer.received, answer.durable) == (2, 0)
    raft.synced(*raft.sync_begins())
    (answer,) = raft.take(0).messages
    assert isinstance(answer, AppendReply) and (answer.received, answer.durable) == (2, 2)
    assert follow(raft, append(2, 2, 1, round_=2)).messages == ()


def test_a_vote_looks_at_all_entries_lazy_ones_included() -> None:
    """A candidate that lacks lazy entries of ours is behind us: what memory holds on a majority
    outlives an election without crashes."""
    raft = core()
    follow(raft, replace(append(0, 0, 2), lazy=True, early=True))
    raft.step(VoteRequest(sender="c", to="a", term=5, pre=True, last_index=1, last_term=2), LATER)
    assert [m.granted for m in said(raft)] == [False]  # type: ignore[union-attr]


class Lazy(Member):
    """A driver that leaves most of its syncs for later, whenever the core allows it."""

    def appended(self, extent: Extent) -> None:
        lazy = self.chance.random() < 0.7
        self.core.appended(extent, urgent=not lazy, early=lazy)

    def begin_sync(self) -> None:
        if self.core.durable_index >= self.core.urgent_index and self.chance.random() < 0.8:
            return
        super().begin_sync()


class LazyCluster(Cluster):
    member_type = Lazy


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [3, 5])
def test_random_faults_with_lazy_syncs_break_no_invariant(size: int) -> None:
    """The same random lives as with urgent entries alone: every check holds, and a healed cluster
    commits."""
    ahead = 0
    for seed in range(60):
        cluster = LazyCluster(size, seed)
        for _ in range(600):
            cluster.step()
            ahead += any(m.core.replicated_index > m.core.commit_index for m in cluster.up())
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
    assert ahead > 0
