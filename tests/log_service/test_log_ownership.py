"""Ownership of queues: never two readers of one queue, whatever members and network do; every queue
owned, and balance, in the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.frontend.native.ownership import Ownership, shares

LIVENESS = 100


@given(
    st.integers(0, 40),
    st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=1, max_size=9),
    st.integers(0, 1 << 30),
)
def test_shares_are_balanced_and_sticky(queues: int, members: list[str], seed: int) -> None:
    """Every queue is assigned once, shares differ by at most one, and a member within its share
    loses no queue."""
    chance = random.Random(seed)
    owned: dict[str, list[int]] = {name: [] for name in members}
    for queue in range(queues):
        if chance.random() < 0.7:
            owned[chance.choice(members)].append(queue)
    found = shares(queues, members, owned)
    assert sorted(queue for own in found.values() for queue in own) == list(range(queues))
    sizes = [len(own) for own in found.values()]
    assert max(sizes) - min(sizes) <= 1
    for name, own in owned.items():
        if len(own) <= queues // len(members):
            assert set(own) <= set(found[name])


def test_shares_without_history_are_those_of_rocketmq() -> None:
    """AllocateMessageQueueAveragely: consecutive queues, the first members have one more."""
    assert shares(8, ["c", "a", "b"], {}) == {"a": (0, 1, 2), "b": (3, 4, 5), "c": (6, 7)}
    assert shares(2, ["a", "b", "c"], {}) == {"a": (0,), "b": (1,), "c": ()}


class Reader:
    """A member: it reads its last assignment until it gets another one or knows that it counts as
    gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.reads: set[int] = set()
        self.heard_of = 0
        """When the sign of life was sent that was answered last."""
        self.inbox: list[tuple[int, int, tuple[int, ...]]] = []
        """Answers on their way: (time of the question, generation, queues)."""


class Play:
    """Members, coordinators, and messages that take their time."""

    def __init__(self, chance: random.Random, queues: int) -> None:
        self.chance = chance
        self.queues = queues
        self.now = 1
        self.term = 1
        self.coordinator = self.elected()
        self.readers: list[Reader] = []
        self.count = 0

    def elected(self) -> Ownership:
        return Ownership(self.term << 32, self.queues, LIVENESS, self.now + LIVENESS)

    def step(self, *, calm: bool) -> None:
        self.now += self.chance.choice((1, 5, 20))
        self.coordinator.expire(self.now)
        action = self.chance.random()
        if not calm and action < 0.06 and len(self.readers) < 6:
            self.count += 1
            self.readers.append(Reader(f"m{self.count}"))
        elif not calm and action < 0.1 and self.readers:
            # Killed: it stops reading without a notification.
            self.readers.remove(self.chance.choice(self.readers))
        elif not calm and action < 0.13 and self.readers:
            leaver = self.chance.choice(self.readers)
            self.readers.remove(leaver)
            self.coordinator.leave(leaver.name, self.now)
        elif not calm and action < 0.16:
            self.term += 1
            self.coordinator = self.elected()
            for reader in self.readers:
                reader.inbox.clear()
        for reader in list(self.readers):
            if self.chance.random() < (1.0 if calm else 0.5):
                self.say(reader)
            while reader.inbox and self.chance.random() < (1.0 if calm else 0.4):
                self.hear(reader)
        self.check()

    def say(self, reader: Reader) -> None:
        """A sign of life; some are lost."""
        self.stop_in_time(reader)
        if self.coordinator.share(reader.name) is None:
            self.coordinator.join(reader.name, reader.generation, sorted(reader.reads), self.now)
        else:
            self.coordinator.alive(reader.name, reader.generation, self.now)
        share = self.coordinator.share(reader.name)
        assert share is not None
        reader.inbox.append((self.now, share.generation, share.queues))

    def hear(self, reader: Reader) -> None:
        asked, generation, queues = reader.inbox.pop(0)
        self.stop_in_time(reader)
        if asked + LIVENESS > self.now:
            reader.heard_of, reader.generation, reader.reads = asked, generation, set(queues)

    def stop_in_time(self, reader: Reader) -> None:
        """A member without an answer within the period stops by itself and drops its queues."""
        if reader.reads and reader.heard_of + LIVENESS <= self.now:
            reader.reads, reader.generation = set(), 0

    def check(self) -> None:
        for reader in self.readers:
            self.stop_in_time(reader)
        reading = [queue for reader in self.readers for queue in reader.reads]
        assert len(reading) == len(set(reading)), (
            f"two readers: {[(r.name, sorted(r.reads)) for r in self.readers]}"
        )


@given(st.integers(0, 1 << 40), st.integers(1, 9))
def test_no_queue_ever_has_two_readers_and_all_have_one_in_the_end(seed: int, queues: int) -> None:
    """Members come, are killed, leave, lose their coordinator; messages are late. When that ends,
    everything is owned and balanced."""
    play = Play(random.Random(seed), queues)
    for _ in range(80):
        play.step(calm=False)
    if not play.readers:
        play.readers.append(Reader("last"))
    for _ in range(60):
        play.step(calm=True)
    assert sorted(queue for reader in play.readers for queue in reader.reads) == list(range(queues))
    sizes = [len(reader.reads) for reader in play.readers]
    assert max(sizes) - min(sizes) <= 1
    generation = play.coordinator.generation
    for _ in range(5):
        play.step(calm=True)
    assert play.coordinator.generation == generation, "nothing happens any more"


def settled(queues: int = 4) -> Ownership:
    """A coordinator whose forerunner's readers are gone."""
    found = Ownership(0, queues, LIVENESS, LIVENESS)
    found.expire(LIVENESS)
    return found


def test_a_queue_goes_to_a_new_owner_only_after_the_former_let_go() -> None:
    """The first of two members has everything; the second gets its half once the first has finished
    the generation without it."""
    group = settled()
    group.join("a", 0, (), 200)
    first = group.share("a")
    assert first is not None and first.queues == (0, 1, 2, 3)
    group.join("b", 0, (), 210)
    told, waits = group.share("a"), group.share("b")
    assert told is not None and told.queues == (0, 1) and waits is not None and waits.queues == ()
    assert group.owns("a", 3, first.generation) and not group.owns("b", 3, told.generation)
    group.alive("a", first.generation, 220)
    assert group.share("b") == waits
    group.alive("a", told.generation, 230)
    got = group.share("b")
    assert got is not None and got.queues == (2, 3) and got.generation > told.generation
    assert (
        not group.owns("a", 3, got.generation)
        and group.owns("b", 3, got.generation)
        and not group.owns("b", 3, told.generation)
    )


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_member_that_is_gone_leaves_its_queues(goodbye: bool) -> None:
    """At once when it leaves, otherwise after the liveness period; its later messages are
    ignored."""
    group = settled(2)
    group.join("a", 0, (), 200)
    group.join("b", 0, (), 210)
    group.alive("a", group.generation, 220)
    if goodbye:
        group.leave("a", 230)
    else:
        group.alive("b", group.generation, 305)
        group.expire(319)
        assert group.members == ("a", "b") and group.next_ns == 320
        group.expire(320)
    share = group.share("b")
    assert share is not None and share.queues == (0, 1) and share.members == ("b",)
    assert not group.owns("a", 0, group.generation) and not group.alive("a", group.generation, 330)


def test_new_coordinator_withholds_unclaimed_queues_for_the_liveness_period() -> None:
    """Only to the member that says it has it; the rest after the liveness period."""
    group = Ownership(7 << 32, 4, LIVENESS, 1000 + LIVENESS)
    group.join("a", (6 << 32) + 3, (0, 1), 1010)
    group.join("b", 0, (), 1020)
    a, b = group.share("a"), group.share("b")
    assert a is not None and a.queues == (0, 1) and b is not None and b.queues == ()
    assert group.owns("a", 0, a.generation)
    group.alive("a", a.generation, 1090)
    group.alive("b", b.generation, 1090)
    group.expire(1100)
    b = group.share("b")
    assert b is not None and b.queues == (2, 3)


def test_a_topic_that_grows_is_shared_anew() -> None:
    group = settled(1)
    group.join("a", 0, (), 200)
    group.resize(3, 210)
    share = group.share("a")
    assert share is not None and share.queues == (0, 1, 2)
