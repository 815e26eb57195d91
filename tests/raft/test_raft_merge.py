"""A follower that gets a range: every small log, every range of one term, against the rule written
down again (Raft §5.3)."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from ledgermq.raft.messages import NO_INDEX, Append, AppendReply, Extent
from tests.raft.test_raft_paper import core

LEADS = 9
"""The term of the leader; its entries are of terms 1 to 3, as those of the follower."""


@pytest.mark.parametrize(
    "terms",
    [
        list(terms)
        for length in range(4)
        for terms in combinations_with_replacement((1, 2, 3), length)
    ],
)
def test_a_range_is_kept_cut_or_refused(terms: list[int]) -> None:
    """What is there already stays. The first entry that differs is cut with all behind it. A
    contradiction to an entry that was committed, or verified against this leader, stops the
    replica. An answer claims what the log has in common with the leader's."""
    mine = dict(enumerate([0, *terms]))
    end = len(terms)
    for commit, verified, prev, count in product(
        range(end + 1), range(NO_INDEX, end + 1), range(end + 2), range(3)
    ):
        for prev_term, term in combinations_with_replacement((0, 1, 2, 3), 2):
            if mine.get(prev) != prev_term and (commit, verified) != (end, end):
                continue  # refused whatever is committed: one state is enough
            raft = core(terms, term=LEADS, commit=commit)
            if verified > NO_INDEX:
                raft.step(
                    Append(
                        sender="b",
                        to="a",
                        term=LEADS,
                        round=1,
                        prev_index=verified,
                        prev_term=mine[verified],
                        commit_index=NO_INDEX,
                        extent=None,
                    ),
                    0,
                )
                raft.take(0)
            extent = Extent(prev + 1, prev + count, term, 100) if count else None
            raft.step(
                Append(
                    sender="b",
                    to="a",
                    term=LEADS,
                    round=2,
                    prev_index=prev,
                    prev_term=prev_term,
                    commit_index=NO_INDEX,
                    extent=extent,
                ),
                0,
            )
            writes = raft.take_writes()
            if writes.append is not None:
                raft.append_written()
                raft.synced(*raft.sync_begins())
            effects = raft.take(0)
            state = (commit, verified, prev, prev_term, term, count)
            answers = [message for message in effects.messages if isinstance(message, AppendReply)]
            theirs = {index: term for index in range(prev + 1, prev + count + 1)}
            if mine.get(prev) != prev_term:
                assert all(answer.rejected for answer in answers) and answers, state
                assert (writes.truncate_from, writes.append, raft.verified_index) == (
                    None,
                    None,
                    verified,
                ), state
                continue
            differs = min((index for index in theirs if mine.get(index) != term), default=None)
            if differs is not None and differs <= max(verified, commit) and differs <= end:
                assert effects.fence is not None and not answers, state
                assert (writes.truncate_from, writes.append) == (None, None), state
                continue
            assert effects.fence is None, state
            assert writes.truncate_from == (
                differs if differs is not None and differs <= end else None
            ), state
            assert writes.append == (None if differs is None else (differs, prev + count)), state
            assert raft.verified_index == max(verified, prev + count), state
            assert [(answer.received, answer.durable) for answer in answers[-1:]] == [
                (raft.verified_index, raft.verified_index)
            ], state
