"""Answers to vote requests and the question about chains, in every small state, against the rule
written down again."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.follower import chain_question
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, Extent, VoteReply, VoteRequest
from tests.raft.test_raft_lazy import grow, led
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow

TERM = 5
SHORTEST_NS = Timing().election_min_ns
LONG_AGO_NS = LATER - SHORTEST_NS
"""The last moment that no longer counts as hearing the leader."""


def voter(vote: str | None, heard: str | None) -> Core:
    """Replica `a` of term 5, with the entries 0 to 2, the last two of term 3. `heard`: whether it
    heard the leader of its term just now, too long ago (and the longest time that counts), or knows
    none."""
    raft = core([3, 3], term=TERM, vote=vote)
    if heard is not None:
        follow(
            raft,
            append(2, 3, term=TERM),
            {"now": LATER, "just": LONG_AGO_NS + 1, "before": LONG_AGO_NS}[heard],
        )
    raft.take(LATER)
    return raft


LOGS = {(2, 2): False, (3, 1): False, (3, 2): True, (3, 3): True, (4, 0): True}
"""(last term, last index) of a candidate → whether its log is as up to date as (3, 2)."""
STATES = list(product((None, "b", "c"), (None, "now", "just", "before")))


@pytest.mark.parametrize(("vote", "heard"), STATES)
def test_every_vote_request_is_answered_by_the_rules(vote: str | None, heard: str | None) -> None:
    """§5.1, §5.2, §5.4.1; dissertation §4.2.3 and §9.6: a granted vote is stored; a pre-vote
    changes nothing; a voter that hears its leader refuses, unless that leader hands over; a request
    of a later term ends the present one."""
    for candidate, term, pre, transfer, log in product(
        ("b", "c"), (TERM - 1, TERM, TERM + 1), (False, True), (False, True), LOGS
    ):
        raft = voter(vote, heard)
        last_term, last_index = log
        raft.step(
            VoteRequest(
                sender=candidate,
                to="a",
                term=term,
                pre=pre,
                last_index=last_index,
                last_term=last_term,
                transfer=transfer,
            ),
            LATER,
        )
        effects = raft.take(LATER)
        sticky = heard in ("now", "just") and not transfer
        if term < TERM:
            expected, after = False, (TERM, vote)
        elif pre:
            expected, after = LOGS[log] and term > TERM and not sticky, (TERM, vote)
        elif term > TERM:
            expected = LOGS[log] and not sticky
            after = (TERM, vote) if sticky else (term, candidate if expected else None)
        else:
            expected = LOGS[log] and vote in (None, candidate) and heard is None
            after = (TERM, candidate if expected else vote)
        state = (candidate, term, pre, transfer, log)
        (reply,) = [message for message in effects.messages if isinstance(message, VoteReply)]
        assert (reply.sender, reply.to, reply.granted) == ("a", candidate, expected), state
        assert reply.term == (term if expected else after[0]), state
        assert reply.pre == pre or term < TERM, state
        assert (raft.term, raft.voted_for) == after, state
        if after != (TERM, vote):
            assert effects.writes.hard_state == HardState(*after), state
        assert raft.leader == ("b" if heard is not None and after[0] == TERM else None), state


def test_a_leader_and_a_replica_that_just_restarted_are_deposed_by_no_request() -> None:
    """A leader hears itself. After a restart the promise of the life before holds for the shortest
    election timeout."""
    raft = led()
    raft.step(
        VoteRequest(
            sender="b", to="a", term=raft.term + 1, pre=False, last_index=9, last_term=raft.term
        ),
        LATER,
    )
    assert (raft.role, raft.term) == (Role.LEADER, 2)
    for now_ns, granted in ((SHORTEST_NS - 1, False), (SHORTEST_NS, True)):
        config = RaftConfig("a", VOTERS, 1)
        fresh = Core(config, LogView([(0, 0), (1, 3)], 2), HardState(TERM, None), Random(1), 0, 0)
        fresh.step(
            VoteRequest(sender="b", to="a", term=TERM + 1, pre=False, last_index=2, last_term=3),
            now_ns,
        )
        assert (fresh.voted_for == "b") is granted


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (0, 3), (1, 3), (2, 3)])
def test_the_question_about_chains_is_the_last_entry_that_both_logs_share(
    begin: int, end: int
) -> None:
    """All terms of up to four entries here, all ranges of one term there: the last index that both
    hold with the same term."""
    for terms in product((1, 2, 3), repeat=end + 1):
        if list(terms) != sorted(terms):
            continue
        mine = dict(enumerate(terms))
        runs = [
            (index, mine[index])
            for index in range(begin, end + 1)
            if index == begin or mine[index] != mine[index - 1]
        ]
        view = LogView(runs, end, mine[begin - 1] if begin else -1)
        known = {index: term for index, term in mine.items() if index >= begin - 1}
        for prev, prev_term, count, term in product(
            range(-1, end + 2), (1, 2, 3), range(3), (1, 2, 3)
        ):
            if term < prev_term:
                continue
            extent = Extent(prev + 1, prev + count, term, 100) if count else None
            theirs = {
                prev: prev_term,
                **{index: term for index in range(prev + 1, prev + count + 1)},
            }
            shared = [
                index for index, of in theirs.items() if index >= 0 and known.get(index) == of
            ]
            first = max(prev + 1, begin - 1)
            # Within the range the first entry decides: if that differs, so do all behind it.
            expected = max(
                (index for index in shared if index <= prev or known.get(first) == term),
                default=None,
            )
            assert (
                chain_question(
                    view,
                    Append(
                        sender="b",
                        to="a",
                        term=9,
                        round=1,
                        prev_index=prev,
                        prev_term=prev_term,
                        commit_index=0,
                        extent=extent,
                    ),
                )
                == expected
            ), (terms, prev, prev_term, extent)


def test_lone_leader_holds_at_once_and_commits_after_the_sync() -> None:
    """A single voter is a quorum of copies at once; durable, and committed, is an entry only after
    the sync."""
    raft = led(voters=("a",))
    grow(raft, lazy=False)
    assert (raft.commit_index, raft.replicated_index) == (1, 2)
    raft.synced(*raft.sync_begins())
    assert (raft.commit_index, raft.replicated_index) == (2, 2)
