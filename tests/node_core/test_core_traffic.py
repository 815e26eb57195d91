"""What a leader counts by topic and consumer group, how far consumer groups are, and what the
counting costs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.read_calls import CommitOffset
from ledgermq.node.broker.queries import traffic
from ledgermq.node.broker.queries.backlog import Backlog, backlog, positions
from ledgermq.node.broker.queries.traffic import HandedOut, Stored
from ledgermq.proto.types import GroupConfig
from tests.node_core.core_fakes import SECOND, Bench

PAIR = ("g", "t")


@pytest.fixture
def b() -> Bench:
    bench = Bench()
    bench.lead(1)
    bench.configure()
    return bench


def left(b: Bench, pair: tuple[str, str] = PAIR) -> Backlog:
    machine = b.machine
    return backlog(
        machine, b.group.leader.clock, positions(machine)[pair], b.now_ms, machine.stored_ms
    )


def records(b: Bench, queue: int, count: int, topic: str = "t") -> int:
    """The bytes of the first records of a queue."""
    return int(b.machine.units(topic, queue, 0, count)[1].sum())


@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_topic_counts_the_messages_and_bytes_that_are_stored_in_it(b: Bench, count: int) -> None:
    """Alone in a range, among other topics, and in ranges of any size; control records count for no
    topic."""
    b.configure("u")
    b.send(*["body"] * count)
    assert b.group.leader.traffic.stored == {"t": Stored(count, records(b, 0, count))}
    mixed = [b.produce(*["x"] * count), b.produce("yy", topic="u"), b.produce("z")]
    b.turn(*mixed)
    stored = b.group.leader.traffic.stored
    assert stored == {
        "t": Stored(2 * count + 1, records(b, 0, 2 * count + 1)),
        "u": Stored(1, records(b, 0, 1, "u")),
    }


def test_traffic_counts_redeliveries_and_dead_letters(b: Bench) -> None:
    """Bytes are those of the records; a message that is delivered twice counts twice, a dead letter
    once."""
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g", 2),)))
    b.send("one", "three")
    assert len(b.receive(invisible_ms=1000)) == 2
    size = records(b, 0, 2)
    assert b.group.leader.traffic.handed_out == {PAIR: HandedOut(2, size)}
    b.pass_time(SECOND)
    (first, second) = b.receive(invisible_ms=1000)
    assert b.group.leader.traffic.handed_out == {PAIR: HandedOut(4, 2 * size, again=2)}
    b.ack(first)
    b.pass_time(SECOND)
    assert not b.receive()
    assert b.group.leader.traffic.handed_out == {PAIR: HandedOut(4, 2 * size, again=2, dead=1)}
    assert second.attempt == 2


def test_a_message_leased_in_the_batch_that_stores_it_counts_the_same(b: Bench) -> None:
    """The record of such a message is not known yet when it is leased."""
    b.turn(b.poll())
    b.send("direct")
    assert b.group.leader.traffic.handed_out == {PAIR: HandedOut(1, records(b, 0, 1))}


def test_counting_costs_the_same_for_any_number_of_messages(b: Bench) -> None:
    """Python calls, not times; and none on a follower."""
    costs = []
    for count in (1, 60, 1000):
        sent = calls_of_counting(lambda count=count: b.send(*["x"] * count))  # type: ignore[misc]
        received = calls_of_counting(lambda count=count: b.receive(n=count))  # type: ignore[misc]
        costs.append((sent, received))
    # A lease record is a range of its own, on a control topic.
    applied = {"Traffic.applied": 1}
    assert costs == [(applied, {**applied, "Traffic.leased": 1})] * 3
    follower = Bench(b.log)
    follower.replicator.commit_index = b.log.end_index
    assert calls_of_counting(follower.turn) == {}
    assert follower.machine.applied_index == b.machine.applied_index


def calls_of_counting(work: Callable[[], object]) -> Counter[str]:
    """The calls of functions of `traffic.py` while `work` runs, without constructors."""
    calls: Counter[str] = Counter()

    def noted(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename == traffic.__file__
            and not code.co_name.startswith("<")
        ):
            calls[code.co_qualname] += 1

    sys.setprofile(noted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_a_backlog_is_ready_or_in_flight(b: Bench) -> None:
    """Never leased, leased, visible again, done; ages are those of the oldest message of each
    kind."""
    b.send("one")
    b.pass_time(10 * SECOND)
    b.send("two", "three")
    assert PAIR not in positions(b.machine), "a group that never read has no position"
    (first,) = b.receive(n=1, invisible_ms=5000)
    b.pass_time(SECOND)
    assert left(b) == Backlog(ready=2, in_flight=1, lag=3, ready_age_ms=1000, lag_age_ms=11_000)
    b.pass_time(4 * SECOND)
    assert left(b) == Backlog(ready=3, in_flight=0, lag=3, ready_age_ms=15_000, lag_age_ms=15_000)
    got = b.receive()
    assert left(b) == Backlog(ready=0, in_flight=3, lag=3, ready_age_ms=0, lag_age_ms=15_000)
    b.ack(*got)
    assert left(b) == Backlog() and first.queue_offset == 0


def test_a_backlog_counts_queues_that_the_group_has_not_read(b: Bench) -> None:
    """A group that has read one queue of a topic lags in the others too."""
    b.configure("w", queues=4)
    for queue in range(4):
        b.send("x", topic="w", queue=queue)
    assert len(b.receive(topic="w", n=1)) == 1
    assert left(b, ("g", "w")) == Backlog(ready=3, in_flight=1, lag=4)


def test_a_skipped_message_of_a_fifo_group_is_only_lag(b: Bench) -> None:
    """It is neither ready, because an earlier one is not done, nor leased."""
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g", fifo=True),)))
    b.send_of("a", "a1")
    assert len(b.receive(n=1)) == 1
    b.send_of("a", "a2")
    b.send_of("b", "b1")
    assert len(b.receive(n=1)) == 1
    found = left(b)
    assert (found.ready, found.in_flight, found.lag) == (0, 2, 3)


def test_a_pulling_group_has_a_backlog(b: Bench) -> None:
    """Its position is the offset that it committed."""
    b.send("one", "two", "three")
    b.ask(CommitOffset(next(b.tokens), "p", "t", 0, 1))
    assert left(b, ("p", "t")) == Backlog(ready=2, lag=2)


def test_traffic_counts_of_deleted_topics_and_groups_are_dropped(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is deleted, and, once there are many, groups without a position."""
    monkeypatch.setattr("ledgermq.node.broker.queries.traffic._PAIRS_MIN", 0)
    traffic = b.group.leader.traffic
    traffic._pairs_max = 0
    b.send("one")
    b.receive()
    traffic.handed_out["gone", "t"] = HandedOut(1)
    b.configure("u")
    assert traffic.handed_out.keys() == {PAIR} and traffic.stored.keys() == {"t"}
    b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    assert not traffic.handed_out and not traffic.stored


def test_a_leader_keeps_its_counts_when_it_no_longer_leads(b: Bench) -> None:
    """No counter goes back."""
    b.send("one")
    b.receive()
    before = dict(b.group.leader.traffic.handed_out), dict(b.group.leader.traffic.stored)
    b.replicator.follow(2, "n2")
    b.turn()
    assert not b.group.leader.serving
    assert (b.group.leader.traffic.handed_out, b.group.leader.traffic.stored) == before
