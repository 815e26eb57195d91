"""What a leader knows of one peer, without a leader: every small state, against the rule written
down again."""

from __future__ import annotations

from collections import deque
from itertools import combinations, product

import pytest

from ledgermq.raft.config import Timing
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent
from ledgermq.raft.progress import RETIRED_BOOTS, Peer, Stage, Underway
from ledgermq.raft.reads import Reads
from ledgermq.raft.window import Window

END, ROUND, NOW_NS = 5, 9, 77


def peer_at(stage: Stage, received: int, next_index: int) -> Peer:
    """A peer that was pushed everything from `received` on to before `next_index`, one entry a
    range."""
    peer = Peer("b", next_index, 0, Window(Timing()))
    peer.stage, peer.received, peer.durable, peer.probe_due = stage, received, received, False
    if stage is Stage.FLOWING:
        peer.underway.extend(
            Underway(index, 10, 1, 10, 0) for index in range(received + 1, next_index)
        )
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
def test_peer_below_the_begin_is_probed_from_the_begin(begin: int) -> None:
    """A peer that has the entry before the begin goes on; any other is asked about the begin, and
    what is under way to it is given up."""
    for stage, received, next_index in STATES:
        peer, before = peer_at(stage, received, next_index), peer_at(stage, received, next_index)
        peer.keep_from(begin, ROUND)
        peer.check(max(END, begin))
        goes_on = received >= begin - 1 if stage is Stage.FLOWING else next_index >= begin
        if goes_on:
            assert {**state_of(peer), "underway": list(peer.underway)} == {
                **state_of(before),
                "underway": list(before.underway),
            }
            continue
        assert peer.anchor() >= begin - 1
        assert (peer.stage, peer.next_index) == (Stage.PROBING, max(next_index, begin))
        assert (list(peer.underway), peer.underway_bytes, peer.rewound_round) == ([], 0, ROUND)
        assert peer.suspect and peer.probe_due is True
        assert (peer.received, peer.durable) == (
            received,
            received,
        ), "what it confirmed still counts"


def test_restarted_peer_equals_a_fresh_one() -> None:
    """Losses that answers to earlier rounds report are known, and its time without progress begins
    now."""
    for stage, received, next_index in STATES:
        peer, fresh = (
            peer_at(stage, received, next_index),
            Peer("b", next_index, NOW_NS, Window(Timing())),
        )
        peer.restart(ROUND, NOW_NS)
        fresh.rewound_round, fresh.suspect, fresh.contact_ns = ROUND, True, peer.contact_ns
        assert state_of(peer) == state_of(fresh)


def test_new_peer_is_probed_with_one_optimistic_range() -> None:
    """It is asked at once, one optimistic range may go to it, and it is taken for one that
    pulls."""
    window = Window(Timing())
    peer = Peer("b", 7, NOW_NS, window)
    nothing = dict.fromkeys(("received", "durable", "sent_commit", "sent_urgent", "named_at"), -1)
    never = dict.fromkeys(
        ("suspect", "needs_snapshot", "asks", "leaving", "watched", "provisional"), False
    )
    none: dict[str, object] = dict.fromkeys(("pace", "removed_by", "boot_id"))
    zero = dict.fromkeys(("underway_bytes", "rewound_round", "answered_round", "forget_at_ns"), 0)
    times = {"contact_ns": NOW_NS, "_progress_ns": NOW_NS}
    rest = {
        "node": "b",
        "next_index": 7,
        "stage": Stage.PROBING,
        "underway": deque(),
        "probe_due": True,
        "pulls": True,
        "_retired_boots": {},
    }
    assert (
        state_of(peer) == {**nothing, **never, **none, **zero, **times, **rest}
        and peer.window is window
    )


def test_untaken_read_answers_outlive_the_next_round() -> None:
    reads = Reads()
    for token in (1, 2):
        reads.ask(token, leads=True)
        assert reads.begin(token * 10, token)
        reads.answered(token)
    assert reads.take() == ((1, 10), (2, 20)) and reads.take() == ()


# Answers


class Confirmed(Window):
    """Keeps what it was told."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        super().__init__(Timing())
        self.told: list[tuple[int, int]] = []

    def confirmed(self, ahead_bytes: int, took_ns: int) -> None:
        self.told.append((ahead_bytes, took_ns))


def answer(
    received: int,
    durable: int = -1,
    *,
    round_: int = 0,
    boot_id: int = 1,
    rejected: bool = False,
    hint: int = 0,
    **said: bool,
) -> AppendReply:
    return AppendReply(
        sender="b",
        to="a",
        term=2,
        round=round_,
        boot_id=boot_id,
        rejected=rejected,
        received=received,
        durable=durable,
        hint_term=hint,
        **said,
    )


def sent(
    received: int, ends: tuple[int, ...], *, flowing: bool = True, suspect: bool = False
) -> tuple[Peer, Confirmed]:
    """A peer with entries up to `received`, half of them durable, and ranges under way that end
    with `ends`: round 3 carried the first, round 4 the second, and so on."""
    window = Confirmed()
    peer = Peer("b", received + 1, 5, window)
    peer.stage, peer.received, peer.durable = (
        Stage.FLOWING if flowing else Stage.PROBING,
        received,
        received // 2,
    )
    peer.suspect, peer.needs_snapshot, peer._progress_ns = suspect, True, 4
    for number, end in enumerate(ends):
        peer.pushed(Extent(peer.next_index, end, 2, 10 + number), 3 + number, 50 + number)
    return peer, window


def ranges(received: int) -> list[tuple[int, ...]]:
    """All ways to have up to two ranges under way."""
    return [
        ends for count in range(3) for ends in combinations(range(received + 1, END + 1), count)
    ]


@pytest.mark.parametrize("received", range(-1, END + 1))
def test_answer_retires_received_ranges_and_resends_lost_ones(
    received: int,
) -> None:
    """A range is lost if a message that was sent after it was answered without it. Nothing that was
    confirmed is taken back, nothing beyond the end of the log counts, and the window learns how
    long the last range took that has arrived."""
    for ends, suspect, claimed, durable, round_ in product(
        ranges(received), (False, True), range(-1, END + 3), (-1, 1, END + 2), range(2, 7)
    ):
        peer, window = sent(received, ends, suspect=suspect)
        before, (fetch, rest) = (
            peer.next_index,
            (claimed % 2 == 0, [number for number, end in enumerate(ends) if end > claimed]),
        )
        peer.on_reply(answer(claimed, durable, round_=round_), NOW_NS, 1000)
        peer.accepted(answer(claimed, durable, round_=round_, fetch=fetch), END, ROUND)
        peer.check(END)
        now = max(received, min(claimed, END))
        lost = bool(rest) and 3 + rest[0] < round_
        assert (peer.received, peer.durable) == (now, max(received // 2, min(durable, now)))
        assert [u.last_index for u in peer.underway] == (
            [] if lost else [ends[number] for number in rest]
        )
        assert peer.underway_bytes == (0 if lost else sum(10 + number for number in rest))
        assert peer.next_index == (before if rest and not lost else now + 1)
        assert peer.suspect is (lost or (suspect and now == received))
        assert peer.rewound_round == (ROUND if lost else 0)
        assert peer._progress_ns == (NOW_NS if now > received else 4)
        assert (peer.stage, peer.probe_due, peer.needs_snapshot) == (Stage.FLOWING, False, False)
        assert peer.asks is peer.pulls is fetch
        arrived = len(ends) - len(rest)
        assert window.told == (
            [(sum(range(10, 10 + arrived)), NOW_NS - 49 - arrived)] if arrived else []
        )


LOG = LogView([(2, 1), (4, 3)], END, 1)
"""Entries 2 to 5 of the terms 1, 1, 3, 3; what was before them is trimmed."""


def common(hint: int, term: int, next_index: int) -> int:
    """The last entry before the one in question that may be common."""
    return max(
        (
            i
            for i, t in ((2, 1), (3, 1), (4, 3), (5, 3))
            if i <= min(hint, next_index - 2) and t <= term
        ),
        default=1,
    )


def test_a_probe_that_is_refused_steps_back_by_terms() -> None:
    """To the last entry that may be common, never below what this peer confirmed; a peer without
    the entry before the log's begin needs a snapshot. Refusals of messages from before the last
    step are known."""
    for received, next_index, hint, term, round_ in product(
        (-1, 2, 3), range(2, END + 2), range(-1, END + 1), range(-1, 4), (6, 7)
    ):
        if received >= next_index:
            continue
        peer = Peer("b", next_index, 0, Window(Timing()))
        peer.received, peer.rewound_round, peer.probe_due = received, 6, False
        before = state_of(peer)
        peer.rejected(answer(hint, round_=round_, rejected=True, hint=term), LOG, ROUND)
        if round_ == 6:
            assert state_of(peer) == before
            continue
        behind = next_index == 2
        steps_to = 2 if behind else max(received, common(hint, term, next_index)) + 1
        assert state_of(peer) == {
            **before, "next_index": steps_to, "rewound_round": ROUND, "suspect": True, "needs_snapshot": behind, "probe_due": not behind,
        }  # fmt: skip


def test_untrimmed_log_leaves_no_peer_behind() -> None:
    """The question is then about no entry at all, and whoever refuses that is asked again."""
    peer = Peer("b", 0, 0, Window(Timing()))
    peer.rejected(answer(-1, round_=1, rejected=True, hint=-1), LogView([(0, 1)], END), ROUND)
    assert (peer.next_index, peer.needs_snapshot, peer.probe_due) == (0, False, True)
    peer = Peer("b", 1, 0, Window(Timing()))
    peer.rejected(answer(-1, round_=1, rejected=True, hint=-1), LogView([(1, 1)], END, 0), ROUND)
    assert (peer.next_index, peer.needs_snapshot, peer.probe_due) == (1, True, False)


@pytest.mark.parametrize("suspect", [False, True])
def test_a_range_that_is_refused_is_sent_again_and_then_all_is_asked_anew(suspect: bool) -> None:
    """What is refused again, although it builds on what was confirmed, shows that the peer lost
    that."""
    peer, _ = sent(2, (3, 5), suspect=suspect)
    peer.probe_due = False
    peer.rejected(answer(2, round_=4, rejected=True), LOG, ROUND)
    assert (peer.received, peer.durable, peer.next_index) == ((-1, -1, 6) if suspect else (2, 1, 3))
    assert (peer.stage, peer.probe_due, peer.needs_snapshot) == (
        (Stage.PROBING, True, False) if suspect else (Stage.FLOWING, False, True)
    )
    assert (list(peer.underway), peer.underway_bytes, peer.rewound_round, peer.suspect) == (
        [],
        0,
        ROUND,
        True,
    )


def test_new_boot_id_drops_confirmations_and_answers_of_the_former() -> None:
    """And late answers of the former one speak for nobody, unless it answers something that was
    sent after it was replaced."""
    peer, _ = sent(3, (5,))
    assert peer.admit(answer(3, boot_id=7), 4) and (peer.boot_id, peer.received) == (
        7,
        3,
    ), "the first life replaces none"
    assert peer.admit(answer(3, boot_id=7, round_=4), 5) and peer.received == 3
    assert peer.admit(answer(3, boot_id=8, round_=5), 6)
    assert (peer.boot_id, peer.received, peer.durable, peer.stage, peer.rewound_round) == (
        8,
        -1,
        -1,
        Stage.PROBING,
        6,
    )
    assert not peer.admit(answer(3, boot_id=7, round_=6), 9) and peer.boot_id == 8
    assert peer.admit(answer(3, boot_id=7, round_=7), 9) and (peer.boot_id, peer.rewound_round) == (
        7,
        9,
    )
    assert not peer.admit(answer(3, boot_id=8, round_=9), 9)


def test_so_many_former_lives_are_known() -> None:
    """The last ones; one that comes again is the last one again."""
    peer = Peer("b", 0, 0, Window(Timing()))
    for boot_id in (*range(RETIRED_BOOTS + 1), 0, 100):
        assert peer.admit(
            answer(-1, boot_id=boot_id, round_=10 * boot_id + 10_000 * (boot_id == 0)),
            10 * boot_id + 5,
        )
    # 1 to 8 and then 0 were replaced, in this order.
    assert list(peer._retired_boots) == [*range(2, RETIRED_BOOTS + 1), 0]
    assert len(peer._retired_boots) == RETIRED_BOOTS
    assert peer.admit(answer(-1, boot_id=1, round_=0), 0)


def test_recurring_boot_id_is_forgotten_after_earlier_replaced_ones() -> None:
    """When there are too many to remember."""
    peer = Peer("b", 0, 0, Window(Timing()))
    for round_, boot_id in enumerate((0, 1, 0, *range(2, RETIRED_BOOTS + 2))):
        assert peer.admit(answer(-1, boot_id=boot_id, round_=round_), round_)
    assert list(peer._retired_boots) == [0, *range(2, RETIRED_BOOTS + 1)]


def test_an_answer_to_no_round_is_one_of_the_present_life() -> None:
    peer = Peer("b", 0, 0, Window(Timing()))
    assert peer.admit(answer(-1, round_=0), 1)


@pytest.mark.parametrize("ago_ns", [9, 10])
def test_answer_updates_contact_leaving_watched_and_provisional(ago_ns: int) -> None:
    """When it was heard, whether it leaves, whether a reader waits there, and whether its copy
    counts; an old answer is no later round. After a silence its progress is measured anew."""
    for provisional, received in product((False, True), (3, 4)):
        peer, _ = sent(2, ())
        peer.contact_ns, peer.named_at = NOW_NS - ago_ns, 4
        for round_, last in ((5, 5), (4, 5), (6, 6)):
            said = answer(
                received, round_=round_, leaving=True, watched=True, provisional=provisional
            )
            peer.on_reply(said, NOW_NS, 10)
            assert (peer.contact_ns, peer.answered_round) == (NOW_NS, last)
        assert peer.leaving and peer.watched and peer.provisional is (provisional or received < 4)
        assert peer._progress_ns == (NOW_NS if ago_ns >= 10 else 4)
        peer.on_reply(answer(received), NOW_NS, 10)
        assert not peer.leaving and not peer.watched


def message(round_: int, *, commit: int = -1, quiet: bool = False, lazy: bool = False) -> Append:
    return Append(
        sender="a",
        to="b",
        term=2,
        round=round_,
        prev_index=3,
        prev_term=2,
        commit_index=commit,
        lazy=lazy,
        quiet=quiet,
    )


def test_asked_raises_sent_commit_and_urgent_index() -> None:
    """The greatest commit index that it can follow, and the last entry that it was to sync at once;
    earlier messages change nothing."""
    peer = Peer("b", 4, 0, Window(Timing()))
    for commit, last, lazy, sent_commit, sent_urgent in (
        (2, 3, True, 2, -1), (9, 4, False, 4, 4), (1, 9, True, 4, 4), (3, 2, False, 4, 4), (9, 6, False, 6, 6),
    ):  # fmt: skip
        peer.probe_due = True
        peer.asked(message(5, commit=commit, lazy=lazy), last)
        assert (peer.sent_commit, peer.sent_urgent, peer.probe_due) == (
            sent_commit,
            sent_urgent,
            False,
        )


def test_peer_lacks_sync_word_or_commit_news() -> None:
    """A word to sync at once for what it received, and the news of commits for a reader, if nothing
    is under way that could tell it."""
    for stage, received, durable, told, index, watched, underway in product(
        Stage, range(2, 5), range(2, 5), range(1, 6), range(1, 6), (False, True), (False, True)
    ):
        if durable > received:
            continue
        peer, _ = sent(received, (5,) if underway and received < 5 else ())
        peer.stage, peer.durable, peer.sent_urgent, peer.sent_commit, peer.watched = (
            stage,
            durable,
            told,
            told,
            watched,
        )
        flowing = stage is Stage.FLOWING
        assert peer.lacks_urgency(index) is (
            flowing and any(durable < i and told < i for i in range(received + 1) if i <= index)
        )
        assert peer.lacks_news(index) is (
            flowing
            and watched
            and not underway
            and any(told < i <= index for i in range(received + 1))
        )


def test_how_much_may_be_pushed() -> None:
    """What the window has left, in so many ranges; one range at a time after a loss, and a single
    one while probing before any loss."""
    for stage, suspect, rewound, count, size in product(
        Stage, (False, True), (0, 1, 2), (0, 1, 2), (0, 20, 21, 22, 40)
    ):
        peer, window = sent(1, (2, 3)[:count])
        peer.stage, peer.suspect, peer.rewound_round, window.size = stage, suspect, rewound, size
        limit = (1 if suspect else 4) if stage is Stage.FLOWING else 1 if rewound == 0 else 0
        left = size - (0, 10, 21)[count], limit - count
        assert peer.room(4) == (left if min(left) > 0 else (0, 0))


def test_when_a_removed_peer_is_forgotten() -> None:
    """A time after its removal is committed, from the first look on; a peer that is a member is
    not."""
    peer = Peer("b", 0, 0, Window(Timing()))
    assert not peer.may_be_forgotten(9, 100, 10)
    peer.remove(4)
    peer.remove(6)
    assert not peer.may_be_forgotten(3, 100, 10)
    assert [peer.may_be_forgotten(4, now_ns, 10) for now_ns in (200, 209, 210)] == [
        False,
        False,
        True,
    ]
    peer.readmit()
    assert not peer.may_be_forgotten(9, 300, 10)
    peer.remove(7)
    assert [peer.may_be_forgotten(7, now_ns, 10) for now_ns in (400, 409, 410)] == [
        False,
        False,
        True,
    ]


def test_answering_peer_without_progress_is_stalled() -> None:
    """A peer that answers, lacks something that the log has, and received nothing for a time."""
    for lacks, snapshot, progress_ago, contact_ago in product(
        (False, True), (False, True), (99, 100), (9, 10)
    ):
        peer, _ = sent(END - lacks, ())
        peer.needs_snapshot, peer._progress_ns, peer.contact_ns = (
            snapshot,
            NOW_NS - progress_ago,
            NOW_NS - contact_ago,
        )
        stalled = lacks and not snapshot and progress_ago >= 100 and contact_ago < 10
        assert peer.stalled(END, NOW_NS, 100, 10) is stalled
        assert peer._progress_ns == (NOW_NS - progress_ago if lacks and not snapshot else NOW_NS)


def test_renamed_peer_is_provisional_without_confirmations() -> None:
    peer, _ = sent(3, (5,))
    peer.rename(4, ROUND)
    assert (peer.named_at, peer.provisional, peer.received, peer.durable, peer.rewound_round) == (
        4,
        True,
        -1,
        -1,
        ROUND,
    )


def test_push_answers_the_ask_and_is_under_way() -> None:
    peer, _ = sent(1, ())
    peer.asks = True
    peer.pushed(Extent(2, 4, 2, 30), 7, NOW_NS)
    assert not peer.asks and (peer.next_index, peer.underway_bytes) == (5, 30)
    peer.pushed(Extent(5, 5, 2, 12), 8, NOW_NS + 1)
    assert list(peer.underway) == [
        Underway(4, 30, 7, 30, NOW_NS),
        Underway(5, 12, 8, 42, NOW_NS + 1),
    ]


@pytest.mark.parametrize(("stage", "anchor"), [(Stage.PROBING, 4), (Stage.FLOWING, 1)])
def test_which_entry_a_message_without_a_range_asks_about(stage: Stage, anchor: int) -> None:
    peer, _ = sent(1, (4,), flowing=stage is Stage.FLOWING)
    assert peer.anchor() == anchor
