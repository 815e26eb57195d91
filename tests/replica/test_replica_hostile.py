"""A core handles any input of a peer: numbers from the whole range of the wire, in every role and
stage, in any order.

The messages are drawn as packets with a valid checksum, so `decode` has its say first; what it lets
through is stepped like the driver in `node/replica/consensus/raft_replica.py` does it, with random
outcomes of chain comparison, writing and syncing in between. A fence, which names the invariant
that a peer contradicts, is an answer; an assertion or any other exception is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import (
    TERM_MAX,
    BadPacket,
    decode,
    encode,
    encode_append,
)
from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.follower import chain_question
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Change, MemberChange
from ledgermq.raft.messages import NO_INDEX, Append, AppendReply, Extent, VoteReply, VoteRequest
from ledgermq.raft.progress import Stage
from ledgermq.raft.transfer import Cause
from tests.replica.raw_packets import FLAGS, KINDS, Header, header_of

VOTERS = ("n1", "n2", "n3")
LEARNER = "n9"
TIMING = Timing(window_bytes=600, range_bytes_max=300, window_ranges=4)
LATER = 2000 * MS
TOP = (1 << 63) - 1
RUNS = {0: ((0, 0), (1, 1), (5, 2), (8, 4)), 6: ((6, 2), (8, 4)), 8: ((8, 4),)}
"""Begin of the log → its runs; it ends with entry 12. At begin 8 the entry before is of another
term than the first."""
BEFORE = {0: -1, 6: 2, 8: 2}
END = 12


def core(
    begin: int = 0, name: str = "n1", *, admitted: bool = True, voters: tuple[str, ...] = VOTERS
) -> Core:
    config = RaftConfig(
        name, voters, 7, learners=frozenset({LEARNER}), timing=TIMING, incarnation="this"
    )
    log = LogView(RUNS[begin], END, BEFORE[begin])
    return Core(
        config,
        log,
        HardState(5, None),
        Random(3),
        0,
        commit_index=max(0, begin - 1),
        admitted=admitted,
    )


def following(begin: int = 0) -> Core:
    raft = core(begin)
    raft.step(
        Append(sender="n2", to="n1", term=6, round=1, prev_index=10, prev_term=4, commit_index=9), 0
    )
    raft.take(0)
    assert raft.leader == "n2" and raft.commit_index == 9
    return raft


def campaigning(begin: int = 0, *, pre: bool) -> Core:
    raft = core(begin)
    raft.tick(LATER)
    if not pre:
        raft.step(VoteReply(sender="n2", to="n1", term=6, pre=True, granted=True), LATER)
    raft.take(LATER)
    assert (raft.role, raft.term) == (Role.CANDIDATE, 5 if pre else 6)
    return raft


def leading(begin: int = 0) -> Core:
    """One range is in flight to each peer, before any answer."""
    raft = campaigning(begin, pre=False)
    raft.step(VoteReply(sender="n3", to="n1", term=6, pre=False, granted=True), LATER)
    assert raft.role is Role.LEADER
    raft.appended(Extent(END + 1, END + 3, 6, 300))
    push(raft)
    return raft


def push(raft: Core) -> list[Append]:
    effects = raft.take(LATER)
    sent = [m for m in effects.messages if isinstance(m, Append)]
    for each in effects.pushes:
        last = raft.log.run_end(each.first_index)
        term = raft.log.term_at(each.first_index)
        assert term is not None
        sent.append(
            raft.pushed(
                each.to, Extent(each.first_index, last, term, 100 * (last - each.first_index + 1))
            )
        )
    return sent


def flowing(begin: int = 0) -> Core:
    """n2 confirmed and has more in flight, n3 rejected once."""
    raft = leading(begin)
    raft.step(
        AppendReply(
            sender="n2",
            to="n1",
            term=6,
            round=3,
            boot_id=70,
            rejected=False,
            received=END,
            durable=END,
        ),
        LATER,
    )
    raft.appended(Extent(END + 4, END + 5, 6, 200))
    push(raft)
    raft.step(
        AppendReply(
            sender="n3",
            to="n1",
            term=6,
            round=4,
            boot_id=71,
            rejected=True,
            received=7,
            durable=-1,
            hint_term=2,
        ),
        LATER,
    )
    push(raft)
    assert raft.peers["n2"].stage is Stage.FLOWING and raft.peers["n2"].underway
    return raft


def left_behind() -> Core:
    """n3 lacks what this leader trimmed."""
    raft = leading(8)
    for _ in range(4):
        raft.step(
            AppendReply(
                sender="n3",
                to="n1",
                term=6,
                round=raft.election.leading.round,
                boot_id=71,
                rejected=True,
                received=2,
                durable=-1,
                hint_term=1,
            ),
            LATER,
        )
        push(raft)
    assert raft.peers["n3"].needs_snapshot
    return raft


def handing_over() -> Core:
    """Everything is committed and durable at n2, which was asked to campaign; reads wait for a
    round."""
    raft = flowing()
    raft.synced(*raft.sync_begins())
    raft.step(
        AppendReply(
            sender="n2",
            to="n1",
            term=6,
            round=raft.election.leading.round,
            boot_id=70,
            rejected=False,
            received=END + 5,
            durable=END + 5,
        ),
        LATER,
    )
    raft.read(1, LATER)
    assert raft.transfer("n2", Cause.OPERATOR, LATER, 1000 * MS) is None
    push(raft)
    assert raft.handover is not None and raft.handover.notified and not raft.accepting
    return raft


def removing(node: str) -> Core:
    """A leader that removes this voter, itself perhaps; the entry is not committed yet."""
    raft = flowing()
    raft.synced(*raft.sync_begins())
    raft.step(
        AppendReply(
            sender="n2",
            to="n1",
            term=6,
            round=raft.election.leading.round,
            boot_id=70,
            rejected=False,
            received=END + 5,
            durable=END + 5,
        ),
        LATER,
    )
    members = raft.propose_members(MemberChange(Change.REMOVE, node, "", ""), LATER)
    assert isinstance(members, Members), members
    raft.appended(Extent(END + 6, END + 6, 6, 100, membership=True), members=members)
    push(raft)
    return raft


STAGES: dict[str, Callable[[], Core]] = {
    "follower of nobody": core,
    "follower": following,
    "follower, trimmed": lambda: core(6),
    "follower, trimmed between terms": lambda: core(8),
    "follower with a leader, trimmed": lambda: following(6),
    "pre-candidate": lambda: campaigning(pre=True),
    "candidate": lambda: campaigning(pre=False),
    "candidate, trimmed": lambda: campaigning(8, pre=False),
    "new leader": leading,
    "new leader, trimmed": lambda: leading(6),
    "leader": flowing,
    "leader, trimmed": lambda: flowing(6),
    "leader of one left behind": left_behind,
    "leader handing over": handing_over,
    "leader removing a voter": lambda: removing("n3"),
    "leader removing itself": lambda: removing("n1"),
    "learner": lambda: core(name=LEARNER),
    "joining": lambda: Core(
        RaftConfig("n1", (), 7, incarnation="this"),
        LogView(),
        HardState(),
        Random(3),
        0,
        admitted=False,
    ),
    "not admitted": lambda: core(admitted=False),
    "alone": lambda: core(voters=("n1",)),
}

ABSURD = (-TOP - 1, -2, 1 << 31, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, TOP - 1, TOP)
LIVES = 500


def number(chance: Random, field: str) -> int:
    """Mostly near valid values of the field, sometimes anywhere."""
    if chance.random() < 0.08:
        return chance.choice(ABSURD)
    return chance.randint(-1, 8) if field.endswith("term") else chance.randint(-1, END + 7)


def hostile(chance: Random) -> tuple[PeerPacket, str]:
    """A packet whose fields are all drawn on their own, and its sender."""
    sender, to = (
        chance.choice(("n2", "n2", "n3", "n3", LEARNER, "n1", "stranger")),
        chance.choice(("n1", "n1", "n1", LEARNER, "n2")),
    )
    term = chance.choice((5, 6, 7)) if chance.random() < 0.7 else number(chance, "term")
    kind = chance.choice([*KINDS, "append", "append", "append_reply"])
    _, names_count, fields = KINDS[kind]
    ranged = chance.random() < 0.6
    numbers = {"term": term}
    for name, form in fields:
        if kind == "append" and name in ("last_index", "range_term", "pos") and not ranged:
            numbers[name] = -1
        elif name == "cause":
            numbers[name] = chance.choice((0, 1, 3, 4, 5, 6, 9, 255))
        elif form.isupper():
            numbers[name] = chance.choice((0, 1, 70, 71, (1 << 32) - 1))
        else:
            numbers[name] = number(chance, name)
    names = [sender, to, chance.choice(("", "this", "other"))][:names_count]
    header = Header(
        kind, numbers, chance.randrange(1 << len(FLAGS[kind])), tuple(map(str.encode, names))
    )
    return header.packet(
        bytes(chance.choice((0, 1, 100, 5000))) if kind == "append" and ranged else b""
    ), sender


class Driver:
    """Carries out what a core decides, without a log; `chance` answers for the disk."""

    def __init__(self, raft: Core, chance: Random) -> None:
        self.raft, self.chance = raft, chance
        self.now_ns = LATER
        self.sync: tuple[int, int] | None = None
        self.asked = 1
        """Reads so far; the first may have been asked before this life."""
        self.answered: set[int] = set()

    def arrive(self, packet: PeerPacket, sender: str) -> None:
        try:
            message = decode(packet, sender).message
        except BadPacket:
            return
        if not isinstance(message, Append):
            self.raft.step(message, self.now_ns)
            return
        question = chain_question(self.raft.log, message)
        verified = message.extent is not None and (
            question is not None or message.prev_index == NO_INDEX
        )
        members = None
        if message.extent is not None and self.chance.random() < 0.3:
            message = replace(message, extent=replace(message.extent, membership=True))
            members = self.chance.choice(
                (None, Members(("n2",)), Members(("n1", "n2"), frozenset({"n3"}), {"n1": "other"}))
            )
        self.raft.step(
            message,
            self.now_ns,
            chains_agree=question is None or self.chance.random() < 0.9,
            members=members,
        )
        if self.raft.take_writes().append is not None:
            assert verified, f"{message} is appended with unverified bytes"
            if self.chance.random() < 0.1:
                self.raft.append_refused()
            else:
                self.raft.append_written()

    def turn(self) -> bool:
        """Take, send and check; False after a fence."""
        effects = self.raft.take(self.now_ns)
        if effects.fence is not None:
            assert "(invariant" in effects.fence
            return False
        for token, index in effects.reads:
            assert 1 <= token <= self.asked and token not in self.answered, (
                "a read is answered once"
            )
            assert index is None or index <= effects.commit_index
            self.answered.add(token)
        for message in effects.messages:
            if isinstance(message, Append):
                known = self.raft.log.term_at(message.prev_index) is not None
                assert known or message.prev_index == NO_INDEX == self.raft.log.begin_index - 1, (
                    message
                )
                encode_append(message, 0, None)
            else:
                encode(message)
        for each in effects.pushes:
            last, term = (
                self.raft.log.run_end(each.first_index),
                self.raft.log.term_at(each.first_index),
            )
            assert term is not None
            self.raft.pushed(each.to, Extent(each.first_index, last, term, 100))
        self.raft.check_invariants()
        return True

    def live(self) -> None:
        """Something of its own between two messages."""
        event = self.chance.random()
        if event < 0.2:
            self.now_ns += round(self.chance.uniform(0, 900) * MS)
            self.raft.tick(self.now_ns)
        elif event < 0.4 and self.sync is None:
            self.sync = self.raft.sync_begins()
        elif event < 0.5 and self.sync is not None:
            self.raft.synced(*self.sync)
            self.sync = None
        elif event < 0.6 and self.raft.accepting:
            self.raft.appended(
                Extent(
                    self.raft.log.end_index + 1, self.raft.log.end_index + 2, self.raft.term, 200
                )
            )
        elif event < 0.63 and self.raft.accepting:
            kind = self.chance.choice([kind for kind in Change if kind is not Change.RULE])
            change = MemberChange(
                kind, self.chance.choice(("n1", "n2", "n3", "n4", LEARNER)), "some"
            )
            if isinstance(members := self.raft.propose_members(change, self.now_ns), Members):
                index = self.raft.log.end_index + 1
                self.raft.appended(
                    Extent(index, index, self.raft.term, 100, membership=True), members=members
                )
        elif event < 0.65 and self.raft.log.begin_index < min(
            self.raft.commit_index, self.raft.durable_index
        ):
            self.raft.trimmed(self.raft.log.begin_index + 1)
        elif event < 0.75 and self.raft.role is Role.LEADER:
            self.raft.transfer(
                self.chance.choice(("n2", "n3", LEARNER)), Cause.OPERATOR, self.now_ns, 1000 * MS
            )
        elif event < 0.85:
            self.asked += 1
            self.raft.read(self.asked, self.now_ns)
        elif event < 0.87:
            self.raft.leave()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", STAGES)
def test_arbitrary_peer_messages_raise_no_assertion(stage: str) -> None:
    """In every stage the core answers, ignores or fences; its invariants hold after each message,
    and what it says fits on the wire."""
    for seed in range(LIVES):
        chance = Random(f"{stage}/{seed}")
        driver = Driver(STAGES[stage](), chance)
        for _ in range(chance.randint(1, 8)):
            packet, sender = hostile(chance)
            with explained(f"{stage}, life {seed}"):
                driver.arrive(packet, sender)
                if not driver.turn():
                    break
                driver.live()
                if not driver.turn():
                    break


@contextmanager
def explained(where: str) -> Iterator[None]:
    """What escapes says where it happened, so that one life can be repeated alone."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


def stepped(raft: Core, message: Append, *, agree: bool = True) -> str | None:
    """The fence it leads to, if any."""
    raft.step(message, LATER, chains_agree=agree)
    if raft.take_writes().append is not None:
        raft.append_written()
    raft.check_invariants()
    return raft.take(LATER).fence


def test_a_term_at_the_end_of_its_range_is_refused() -> None:
    """The receiver would take it over, and its next campaign would ask for a term that no field can
    hold."""
    for term in (TERM_MAX + 1, TOP - 1, TOP, -1, -TOP):
        for packet in (
            header_of(encode(VoteReply(sender="n2", to="n1", term=0, pre=False, granted=False)))
            .with_(term=term)
            .packet(),
            header_of(
                encode_append(
                    Append(
                        sender="n2",
                        to="n1",
                        term=0,
                        round=0,
                        prev_index=0,
                        prev_term=-TOP,
                        commit_index=0,
                    ),
                    0,
                    None,
                )
            )
            .with_(term=term)
            .packet(),
        ):
            with pytest.raises(BadPacket, match="out of bounds"):
                decode(packet, "n2")
    driver = Driver(core(), Random(1))
    driver.arrive(
        encode(
            VoteRequest(sender="n2", to="n1", term=TERM_MAX, pre=False, last_index=0, last_term=0)
        ),
        "n2",
    )
    assert driver.turn() and driver.raft.term == TERM_MAX
    driver.now_ns += LATER
    driver.raft.tick(driver.now_ns)
    assert driver.turn() and driver.raft.role is Role.CANDIDATE


@pytest.mark.parametrize("last", [7, 9, 14])
def test_range_of_another_term_across_the_begin_is_not_accepted(
    last: int,
) -> None:
    """Entry 7, the one before the begin, was committed with term 2. A range that has it in term 4
    begins below everything this log could compare, so its bytes were not even looked at: nothing of
    it may get in, however well its end would fit."""
    raft = core(8)
    message = Append(
        sender="n2",
        to="n1",
        term=6,
        round=1,
        prev_index=4,
        prev_term=4,
        commit_index=12,
        extent=Extent(5, last, 4, 900),
    )
    assert chain_question(raft.log, message) is None
    fence = stepped(raft, message)
    assert fence is not None and "would replace entry 7" in fence
    assert (raft.log.end_index, raft.commit_index) == (END, 7)


@pytest.mark.parametrize("begin", [0, 6, 8])
def test_the_first_entry_of_a_log_is_never_cut(begin: int) -> None:
    """Its trim was decided behind it, so it is committed, even where a restart remembers the commit
    index only up to the entry before."""
    raft = core(begin)
    before = raft.log.term_at(begin - 1)
    message = Append(
        sender="n2",
        to="n1",
        term=6,
        round=1,
        prev_index=begin - 1,
        prev_term=-1 if before is None else before,
        commit_index=0,
        extent=Extent(begin, begin, 6, 100),
    )
    fence = stepped(raft, message)
    assert (
        fence is not None
        and f"would replace entry {begin}" in fence
        and "invariants I2, I3" in fence
    )
    assert raft.log.end_index == END


def test_the_draw_reaches_the_core() -> None:
    """Enough of what is drawn comes through `decode`, in every kind, and ranges are among it; else
    the lives above would prove little."""
    kinds: Counter[str] = Counter()
    chance = Random(1)
    for _ in range(3000):
        packet, sender = hostile(chance)
        try:
            message = decode(packet, sender).message
        except BadPacket:
            continue
        kinds[
            type(message).__name__
            + (" of a range" if isinstance(message, Append) and message.extent is not None else "")
        ] += 1
    assert len(kinds) >= 5 and min(kinds.values()) >= 40, kinds
