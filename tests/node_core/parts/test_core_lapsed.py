"""Repeated acknowledgements: what is remembered of leases that ended otherwise, and what the leader
answers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
)
from ledgermq.node.broker.calls.operator_calls import Reset
from ledgermq.node.broker.parts.delivery import lapsed_leases
from ledgermq.node.broker.parts.delivery.delivery import Delivery
from ledgermq.node.broker.parts.delivery.lapsed_leases import Lapsed
from ledgermq.node.broker.queues import QueueKey
from tests.node_core.core_fakes import LOG_ID, SECOND, Bench, handle

KEYS: tuple[QueueKey, ...] = (("g", "t", 0), ("g", "t", 1), ("h", "t", 0))
OFFSETS = 12


class History:
    """Every lease there ever was, and how it ended, beside the state under test."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.begins = dict.fromkeys((key[1:] for key in KEYS), 0)
        self.delivery = Delivery(lambda topic, queue: self.begins[topic, queue])
        self.index = 0
        self.live: dict[tuple[QueueKey, int], int] = {}
        self.acked: set[tuple[QueueKey, int, int]] = set()
        self.other: dict[tuple[QueueKey, int], int] = {}
        self.leases: list[tuple[QueueKey, int, int]] = []

    def step(self) -> None:
        self.index += 1
        key = self.rng.choice(KEYS)
        offsets = self.rng.sample(range(OFFSETS), 3)
        held = [offset for offset in offsets if (key, offset) in self.live]
        what = self.rng.choice(
            [self.lease] * 6 + [self.ack] * 6 + [self.change, self.bury, self.pass_again]
        )
        if self.rng.random() < 0.03:
            what = self.rng.choice([self.reset, self.trim, self.forget, self.restore])
        what(key, offsets if what == self.lease else held)
        assert self.delivery.in_flight == len(self.live)

    def end(self, key: QueueKey, offset: int, *, acked: bool = False) -> None:
        lease = self.live.pop((key, offset))
        if acked:
            self.acked.add((key, offset, lease))
        else:
            self.other[key, offset] = lease

    def lease(self, key: QueueKey, offsets: list[int]) -> None:
        cursor = self.delivery.cursor(key)
        wanted = sorted(
            offset for offset in offsets if offset >= cursor or (key, offset) in self.live
        )
        self.delivery.apply_lease(
            self.index, *key[:2], "c", 1000, [(key[2], wanted, [1] * len(wanted))], [], []
        )
        for offset in wanted:
            if (key, offset) in self.live:
                self.end(key, offset)
            self.live[key, offset] = self.index
            self.leases.append((key, offset, self.index))

    def ack(self, key: QueueKey, offsets: list[int]) -> None:
        numbers = [self.live[key, offset] - (self.rng.random() < 0.2) for offset in offsets]
        self.delivery.apply_ack([(*key, offsets, numbers)])
        for offset, number in zip(offsets, numbers, strict=True):
            if self.live[key, offset] == number:
                self.end(key, offset, acked=True)

    def change(self, key: QueueKey, offsets: list[int]) -> None:
        self.delivery.apply_change(
            self.index, [(*key, offset, self.live[key, offset], 5, "d") for offset in offsets]
        )
        for offset in offsets:
            self.end(key, offset)
            self.live[key, offset] = self.index
            self.leases.append((key, offset, self.index))

    def bury(self, key: QueueKey, offsets: list[int]) -> None:
        for offset in offsets:
            self.delivery.apply_dead_letter(key, offset, self.live[key, offset])
            self.end(key, offset)

    def pass_again(self, key: QueueKey, offsets: list[int]) -> None:
        self.delivery.apply_lease(self.index, *key[:2], "c", 1000, [], [], [(key[2], offsets)])
        for offset in offsets:
            self.end(key, offset)

    def reset(self, key: QueueKey, _: list[int]) -> None:
        self.delivery.apply_reset(*key[:2], [(key[2], self.rng.randrange(OFFSETS))])
        self._end_all(lambda of, offset: of == key)

    def trim(self, key: QueueKey, _: list[int]) -> None:
        self.begins[key[1:]] = self.rng.randrange(self.begins[key[1:]], 3 + self.begins[key[1:]])
        self.delivery.raise_cursors()
        self._end_all(lambda of, offset: offset < self.begins[of[1:]])

    def forget(self, key: QueueKey, _: list[int]) -> None:
        self.delivery.forget([each for each in self.delivery.queues if each[0] == key[0]])
        self._end_all(lambda of, offset: of[0] == key[0])

    def _end_all(self, ended: Callable[[QueueKey, int], bool]) -> None:
        for key, offset in list(self.live):
            if ended(key, offset):
                self.end(key, offset)

    def restore(self, *_: object) -> None:
        again = Delivery(lambda topic, queue: self.begins[topic, queue])
        again.restore(self.delivery.export(), Lapsed.restored(self.delivery.lapsed.export()))
        assert (
            again.export() == self.delivery.export()
            and again.lapsed.export() == self.delivery.lapsed.export()
        )
        self.delivery = again

    def done(self, key: QueueKey, offset: int) -> bool:
        queue = self.delivery.queues.get(key)
        return queue is not None and offset < queue.cursor and (key, offset) not in self.live


@pytest.mark.one_in(3)
@pytest.mark.parametrize("most", [4, 1000])
@pytest.mark.parametrize("seed", range(30))
def test_a_lease_counts_as_acknowledged_if_its_acknowledgement_ended_it(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ended leases: never is one acknowledged that is not; every one is that is
    remembered."""
    monkeypatch.setattr(lapsed_leases, "LAPSED_MAX", most)
    history = History(Random(seed))
    seen = 0
    for _ in range(400):
        history.step()
        known, delivery = history.delivery.lapsed, history.delivery
        assert len(known) <= most
        for key, offset, lease in history.leases[-60:]:
            found = delivery.acknowledged(key, offset, lease)
            was = (key, offset, lease) in history.acked and history.done(key, offset)
            remembered = lease > max(known.since, history.other.get((key, offset), -1))
            assert found == (was and remembered), (key, offset, lease)
            seen += found
    assert seen > 100
    assert (history.delivery.lapsed.since > -1) == (most == 4)


def test_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one offset the last, of all the last ones, in their order; what is forgotten is not known
    to be acknowledged."""
    assert lapsed_leases.LAPSED_MAX == 32_768
    monkeypatch.setattr(lapsed_leases, "LAPSED_MAX", 3)
    known = Lapsed()
    for offset, lease in ((0, 10), (1, 11), (2, 12), (0, 13)):
        known.add(KEYS[0], offset, lease)
    assert (len(known), known.since) == (3, -1)
    assert [known.has(KEYS[0], 0, lease) for lease in (10, 13, 14)] == [True, True, False]
    known.add(KEYS[1], 0, 14)
    assert (len(known), known.since) == (3, 11)
    assert [known.has(KEYS[2], 0, lease) for lease in (11, 12)] == [True, False]
    known.add(KEYS[2], 0, 11)
    assert len(known) == 3, "it says nothing that is not said already"


# The leader's answers


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.lead(1)
    bench.configure("t")
    return bench


def test_an_acknowledgement_that_is_repeated_is_confirmed_again(bench: Bench) -> None:
    """Later, after the lease would be over, and with nothing new in the log."""
    bench.send("a", "b")
    one, two = bench.receive(invisible_ms=10_000)
    assert bench.ack(one) == (True,)
    end = bench.log.end_index
    assert bench.ack(one) == (True,)
    bench.pass_time(20 * SECOND)
    assert bench.ack(one, two) == (True, False)
    assert bench.log.end_index == end


def test_a_repeated_acknowledgement_waits_for_the_first_one(bench: Bench) -> None:
    """Confirmed means committed, for every caller; if the entry is lost with its leader, no caller
    got OK."""
    bench.send("a")
    (one,) = bench.receive()
    bench.replicator.commit_at_once = False
    calls = [Ack(next(bench.tokens), [handle(one)]) for _ in range(3)]
    end = bench.log.end_index
    bench.turn(calls[0], calls[1])
    bench.turn(calls[2])
    assert bench.log.end_index == end + 1 and not any(call.token in bench.done for call in calls)
    bench.replicator.commit_index = bench.log.end_index
    bench.turn()
    assert [bench.done[call.token] for call in calls] == [Acked((True,))] * 3


def test_old_snapshot_leaves_lapses_of_its_leases_unknown(bench: Bench) -> None:
    """It is unknown whether these leases lapsed; for later ones it is known."""
    bench.send("a", "b")
    a, b = bench.receive(n=1) + bench.receive(n=1)
    bench.ack(a)
    exported = bench.machine.export(LOG_ID)
    del exported["lapsed"]
    bench.machine.restore({**exported, "v": 4})
    assert bench.ack(a) == (False,) and bench.ack(b) == (True,) and bench.ack(b) == (False,)
    bench.send("c")
    (c,) = bench.receive()
    assert bench.ack(c) == (True,) and bench.ack(c) == (True,)


def test_other_leases_of_a_message_that_is_done_are_refused(bench: Bench) -> None:
    """One that was over, one that was changed, one that a filter passed over, a dead letter's, one
    before a reset."""
    bench.send("a", "b", "c", "d", "e")
    leases = bench.receive(invisible_ms=10_000)
    a, b, c, d, e = leases
    number = bench.change(b, 10_000)
    assert number is not None
    assert bench.forward(c) and bench.ack(c) == (False,)
    assert bench.ack(d) == (True,)
    bench.pass_time(11 * SECOND)
    again = bench.receive(invisible_ms=10_000)
    assert bench.ack(*again) == (True,) * 3
    assert bench.ack(a, b, d, e) == (False, False, True, False)
    bench.send("f")
    (f,) = bench.receive()
    bench.ask(Reset(next(bench.tokens), "g", "t", [(0, 6)]))
    assert bench.ack(f) == (False,)
