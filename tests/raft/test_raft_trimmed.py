"""Cores whose logs do not begin at entry 0 any more: elections, replication, and peers that lack
what is gone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig
from ledgermq.raft.core import Core
from ledgermq.raft.follower import chain_question
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, Message, VoteReply, VoteRequest
from tests.raft.memory_cluster import Cluster, Entry, Member

NAMES = ("n1", "n2", "n3")


@given(st.lists(st.integers(0, 2), min_size=2, max_size=12), st.data())
def test_a_trimmed_view_answers_like_the_list_behind_it(
    rises: list[int], data: st.DataObject
) -> None:
    """From the entry before the begin on, every question has the answer that the whole log would
    give."""
    terms = [sum(rises[: at + 1]) for at in range(len(rises))]
    view = LogView()
    for index, term in enumerate(terms):
        view.append(index, index, term)
    begin = data.draw(st.integers(1, len(terms) - 1))
    view.trim(begin)
    view.check()
    assert (view.begin_index, view.end_index, view.begin_term) == (
        begin,
        len(terms) - 1,
        terms[begin - 1],
    )
    for index in range(-2, len(terms) + 2):
        assert view.term_at(index) == (terms[index] if begin - 1 <= index < len(terms) else None)
    for index in range(begin - 1, len(terms)):
        assert view.run_end(index) == max(i for i, t in enumerate(terms) if t == terms[index])
        assert view.last_at_most(index, terms[index]) == index
    assert view.last_at_most(0, -1) == begin - 1
    again = LogView(view.runs, view.end_index, view.begin_term)
    assert again.runs == view.runs and again.term_at(begin - 1) == terms[begin - 1]


class TrimmedMember(Member):
    """Its disk keeps the whole list, but reads below the begin fail."""

    begin = 0

    def start(self, now_ns: int) -> None:
        super().start(now_ns)
        if self.begin:
            runs = [(max(first, self.begin), term) for first, term in self.disk.runs()]
            kept = [
                run
                for run, after in zip(runs, [*runs[1:], (len(self.disk.written), 0)], strict=True)
                if after[0] > self.begin
            ]
            config = RaftConfig(self.name, self.voters, self.boots, timing=self.timing)
            log = LogView(kept, len(self.disk.written) - 1, self.disk.written[self.begin - 1][0])
            self.core = self.core_type(
                config, log, self.disk.hard_state, self.chance, now_ns, commit_index=0
            )

    def payload(self, message: Message) -> list[Entry]:
        assert not isinstance(message, Append) or message.prev_index >= self.begin - 1, (
            message,
            self.core,
        )
        return super().payload(message)


class TrimmingCluster(Cluster):
    """Trims go to any point that every member has committed, whenever chance wants it, on each
    member at another time."""

    member_type = TrimmedMember
    trims = 0

    def step(self) -> None:
        super().step()
        member = self.chance.choice(self.up()) if self.up() else None
        if isinstance(member, TrimmedMember) and self.chance.random() < 0.1:
            most = min(self.commits.get(name, 0) for name in self.members)
            begin = self.chance.randint(0, max(0, min(most, member.disk.durable)))
            if begin > member.begin:
                member.begin = begin
                member.core.trimmed(begin)
                TrimmingCluster.trims += 1
                self.turn(member)

    def check(self, member: Member) -> None:
        core = member.core
        core.check_invariants()
        assert isinstance(member, TrimmedMember) and core.log.begin_index == member.begin
        assert core.log.end_index == len(member.disk.written) - 1
        view = core.log
        core.log = core.log_state.view = LogView(member.disk.runs(), core.log.end_index)
        try:
            super().check(member)
        finally:
            core.log = core.log_state.view = view


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, 120, 40))
def test_trimming_clusters_stay_safe_and_make_progress(first: int) -> None:
    """Crashes, partitions and lost packets among replicas that begin anywhere: the same safety, and
    progress when all is well again."""
    before = TrimmingCluster.trims
    for seed in range(first, first + 40):
        cluster = TrimmingCluster(3, seed)
        for _ in range(700):
            cluster.step()
        assert cluster.fences == []
        cluster.heal()
    assert TrimmingCluster.trims > before + 20


def core(
    name: str, runs: list[tuple[int, int]], end: int, begin_term: int = -1, term: int = 2
) -> Core:
    return Core(
        RaftConfig(name, NAMES, 1),
        LogView(runs, end, begin_term),
        HardState(term, None),
        Random(1),
        0,
    )


def lead(leader: Core) -> int:
    """Make it win an election; returns the time."""
    now = 2_000 * MS
    leader.tick(now)
    for _ in range(2):
        effects = leader.take(now)
        for message in [
            message for message in effects.messages if isinstance(message, VoteRequest)
        ]:
            leader.step(
                VoteReply(
                    sender=message.to,
                    to=leader.config.node,
                    term=message.term,
                    pre=message.pre,
                    granted=True,
                ),
                now,
            )
    assert leader.role is Role.LEADER
    return now


def test_follower_accepts_ranges_below_its_begin() -> None:
    """Ranges and probes below its begin are answered as matching up to there: they were
    committed."""
    for prev, extent in (
        (3, None),
        (3, Extent(4, 6, 1, 300)),
        (-1, Extent(0, 4, 0, 300)),
        (3, Extent(4, 12, 1, 900)),
    ):
        follower = core("n2", [(10, 1)], 12, begin_term=1)
        message = Append(
            sender="n1",
            to="n2",
            term=3,
            round=1,
            prev_index=prev,
            prev_term=1 if prev >= 0 else -1,
            commit_index=12,
            extent=extent,
        )
        question = chain_question(follower.log, message)
        assert question == (12 if extent is not None and extent.last_index == 12 else None)
        follower.step(message, 1)
        effects = follower.take(1)
        replies = [reply for reply in effects.messages if isinstance(reply, AppendReply)]
        assert effects.fence is None and [
            (reply.rejected, reply.received) for reply in replies
        ] == [(False, max(9, question or 0))]


def test_a_range_that_reaches_over_the_begin_continues_the_log() -> None:
    """Only entries behind the end are appended, and the chain CRCs are compared inside the log."""
    follower = core("n2", [(10, 1)], 12, begin_term=1)
    message = Append(
        sender="n1",
        to="n2",
        term=3,
        round=1,
        prev_index=3,
        prev_term=1,
        commit_index=12,
        extent=Extent(4, 15, 1, 900),
    )
    assert chain_question(follower.log, message) == 12
    follower.step(message, 1)
    assert follower.take_writes().append == (13, 15)


def test_the_entry_before_the_begin_is_a_common_one() -> None:
    """A probe about it is answered by its term and its chain CRC; a wrong word there fences, as
    everywhere."""
    for agree in (True, False):
        follower = core("n2", [(10, 2)], 12, begin_term=1)
        message = Append(
            sender="n1",
            to="n2",
            term=3,
            round=1,
            prev_index=9,
            prev_term=1,
            commit_index=9,
            extent=None,
        )
        assert chain_question(follower.log, message) == 9
        follower.step(message, 1, chains_agree=agree)
        assert (follower.take(1).fence is None) is agree


def test_peer_that_lacks_trimmed_entries_needs_a_snapshot() -> None:
    """Back-off ends at the begin; then the peer gets heartbeats only, until it has what it
    lacked."""
    leader = core("n1", [(10, 1)], 20, begin_term=1)
    now = lead(leader)
    term = leader.term

    def answer(node: str, rejected: bool, received: int, hint: int = -1) -> None:
        rounds = max(
            message.round for message in sent if isinstance(message, Append) and message.to == node
        )
        leader.step(
            AppendReply(
                sender=node,
                to="n1",
                term=term,
                round=rounds,
                boot_id=1,
                rejected=rejected,
                received=received,
                durable=-1 if rejected else received,
                hint_term=hint,
            ),
            now,
        )

    sent = list(leader.take(now).messages)
    for _ in range(3):
        answer("n3", True, 4, 1)
        sent += leader.take(now).messages
    answer("n2", False, 20)
    assert (
        leader.peers["n3"].needs_snapshot
        and leader.peers["n3"].next_index == 10
        and not leader.peers["n2"].needs_snapshot
    )
    leader.appended(Extent(21, 22, term, 200))
    effects = leader.take(now)
    assert [push.to for push in effects.pushes] == ["n2"] and not [
        m for m in effects.messages if m.to == "n3"
    ]
    now += leader.config.timing.heartbeat_ns
    beat = [m for m in leader.take(now).messages if m.to == "n3"]
    assert [(m.prev_index, m.prev_term) for m in beat if isinstance(m, Append)] == [(9, 1)]
    sent += beat
    answer("n3", False, 9)
    assert not leader.peers["n3"].needs_snapshot
    assert [(push.to, push.first_index) for push in leader.take(now).pushes if push.to == "n3"] == [
        ("n3", 10)
    ]


def test_a_trim_under_a_lagging_peer_starts_over_at_the_begin() -> None:
    """What was pushed and is gone is not pushed again; the next message asks about the entry before
    the new begin."""
    leader = core("n1", [(0, 0), (5, 1)], 20)
    now = lead(leader)
    sent = [m for m in leader.take(now).messages if isinstance(m, Append) and m.to == "n3"]
    leader.step(
        AppendReply(
            sender="n3",
            to="n1",
            term=leader.term,
            round=sent[-1].round,
            boot_id=1,
            rejected=False,
            received=6,
            durable=6,
            hint_term=-1,
        ),
        now,
    )
    leader.log_state.commit(20)
    leader.trimmed(12)
    leader.check_invariants()
    assert [
        m.prev_index for m in leader.take(now).messages if isinstance(m, Append) and m.to == "n3"
    ] == [11]
