"""What a leader knows of one peer, without a leader: every small state, against the rule written down again."""

from __future__ import annotations

from itertools import product

import pytest

from ledgermq.raft.config import Timing
from ledgermq.raft.progress import Peer, Stage, Underway
from ledgermq.raft.reads import Reads
from ledgermq.raft.window import Window

END, ROUND, NOW_NS = 5, 9, 77


def peer_at(stage: Stage, received: int, next_index: int) -> Peer:
    """A peer that was pushed everything from `received` on to before `next_index`, one entry a range."""
    peer = Peer("b", next_index, 0, Window(Timing()))
    peer.stage, peer.received, peer.durable, peer.probe_due = stage, received, received, False
    if stage is Stage.FLOWING:
        peer.underway.extend(Underway(index, 10, 1, 10, 0) for index in range(received + 1, next_index))
        peer.underway_bytes = 10 * len(peer.underway)
    peer.check(END)
    return peer


def state_of(peer: Peer) -> dict[str, object]:
    return {name: value for name, value in vars(peer).items() if name != "window"}


STATES = [
    (stage, received, next_index)
    for stage, received, next_index in product(Stage, range(-1, END + 1), range(END + 2))
    if received < next_index
]


@pytest.mark.parametrize("begin", range(END + 2))
def test_nothing_before_the_begin_of_the_log_is_asked_about_or_pushed(begin: int) -> None:
    """A peer that has the entry before the begin goes on; any other is asked about the begin, and what is under way to it is given up."""
    for stage, received, next_index in STATES:
        peer, before = peer_at(stage, received, next_index), peer_at(stage, received, next_index)
        peer.keep_from(begin, ROUND)
        peer.check(max(END, begin))
        goes_on = received >= begin - 1 if stage is Stage.FLOWING else next_index >= begin
        if goes_on:
            assert {**state_of(peer), "underway": list(peer.underway)} == {**state_of(before), "underway": list(before.underway)}
            continue
        assert peer.anchor() >= begin - 1
        assert (peer.stage, peer.next_index) == (Stage.PROBING, max(next_index, begin))
        assert (list(peer.underway), peer.underway_bytes, peer.rewound_round) == ([], 0, ROUND)
        assert peer.suspect and peer.probe_due is True
        assert (peer.received, peer.durable) == (received, received), "what it confirmed still counts"


def test_a_peer_that_starts_over_has_confirmed_nothing() -> None:
    """Losses that answers to earlier rounds report are known, and its time without progress begins now."""
    for stage, received, next_index in STATES:
        peer, fresh = peer_at(stage, received, next_index), Peer("b", next_index, NOW_NS, Window(Timing()))
        peer.restart(ROUND, NOW_NS)
        fresh.rewound_round, fresh.suspect, fresh.contact_ns = ROUND, True, peer.contact_ns
        assert state_of(peer) == state_of(fresh)


def test_answers_that_nobody_took_yet_outlive_the_next_round() -> None:
    reads = Reads()
    for token in (1, 2):
        reads.ask(token, leads=True)
        assert reads.begin(token * 10, token)
        reads.answered(token)
    assert reads.take() == ((1, 10), (2, 20)) and reads.take() == ()
