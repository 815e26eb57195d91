"""The reported age of a replica's state: never less than the true age, whatever it received and
however late it applies."""

from __future__ import annotations

import random

from ledgermq.node.broker.parts.pulls.freshness import NOTES_MAX, Freshness
from ledgermq.raft.messages import LeaderContact

MS = 1_000_000


def heard(at_ms: int, commit: int, term: int = 3) -> LeaderContact:
    return LeaderContact(
        leader="n1", term=term, at_ns=at_ms * MS, end_index=commit, commit_index=commit
    )


def test_freshness_counts_a_message_once_its_commit_is_applied() -> None:
    """A message received at 100 with commit 7 counts only once 7 is applied; then the age is that
    of the message."""
    fresh = Freshness()
    fresh.note(heard(100, 7), 6, 3)
    assert fresh.age_ns(150 * MS) is None
    fresh.note(heard(100, 7), 7, 3)
    assert fresh.age_ns(150 * MS) == 50 * MS
    fresh.note(heard(200, 9), 8, 3)
    assert fresh.age_ns(250 * MS) == 150 * MS
    fresh.note(None, 9, 3)
    assert fresh.age_ns(250 * MS) == 50 * MS


def test_a_new_leader_counts_only_after_an_entry_of_its_term() -> None:
    """It may know less to be committed than its predecessor acknowledged."""
    fresh = Freshness()
    fresh.note(heard(100, 5, term=4), 5, 3)
    assert fresh.age_ns(100 * MS) is None
    fresh.note(heard(200, 9, term=4), 9, 4)
    assert fresh.age_ns(200 * MS) == 0


def test_age_grows_without_new_contact() -> None:
    """A leader that is gone: the age is the time since its last word."""
    fresh = Freshness()
    fresh.note(heard(100, 5), 5, 3)
    for _ in range(3):
        fresh.note(heard(100, 5), 5, 3)
    assert fresh.age_ns(5_100 * MS) == 5_000 * MS


def test_it_never_claims_more_than_is_true_and_its_memory_is_bounded() -> None:
    """Against every word ever said: the state was complete at the moment claimed, for random lags
    and leaders."""
    for seed in range(20):
        chance, fresh = random.Random(seed), Freshness()
        commits: list[tuple[int, int]] = []
        now, commit, applied, term, term_start = 0, 0, 0, 1, 0
        for _ in range(2_000):
            now += chance.randint(1, 30)
            if chance.random() < 0.01:
                term, term_start = term + 1, commit + 1
            known = max(0, commit - chance.randint(0, 5)) if commit < term_start else commit
            if chance.random() < 0.7:
                commit += chance.randint(0, 40)
            commits.append((now, commit))
            if chance.random() < 0.8:
                applied = min(commit, applied + chance.randint(0, 30))
            # The leader's statement was true when it was made, except that of a new leader without
            # full knowledge.
            told = commit if commit >= term_start else known
            fresh.note(heard(now, told, term), applied, term if applied >= term_start else term - 1)
            age_ns = fresh.age_ns(now * MS)
            if age_ns is not None:
                then = now - age_ns // MS
                assert applied >= max(index for at, index in commits if at <= then)
            assert len(fresh._waiting) <= NOTES_MAX
