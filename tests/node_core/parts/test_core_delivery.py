"""The parts below a broker group: the transition table, the clock of leases, the sequencer, ranges,
uncommitted state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.parts.delivery.delivery import Delivery, Row
from ledgermq.node.broker.parts.delivery.leases import LeaseClock, LeaseTimes
from ledgermq.node.broker.parts.sends.sequencer import Sequencer
from ledgermq.node.broker.uncommitted import UncommittedState
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries, host_bytes
from ledgermq.proto.entries.entry_sealing import chain_seed, make_range, seal
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.types import Draft, Range, UnsealedBatch
from tests.node_core.core_fakes import LOG_ID, MS, SECOND, draft

KEY = ("g", "t", 0)


def state(cell: str) -> Delivery:
    """Offset 5 in one of the three columns of the transition table."""
    delivery = Delivery(lambda topic, queue: 0)
    if cell == "new":
        delivery.apply_lease(1, "g", "t", "c", 1000, [], [(0, 0, 5)], [])
    elif cell == "leased":
        delivery.apply_lease(1, "g", "t", "c", 1000, [(0, [5], [1])], [(0, 0, 5)], [])
    else:
        delivery.apply_lease(1, "g", "t", "c", 1000, [], [(0, 0, 6)], [])
    return delivery


def cell_of(delivery: Delivery) -> str | Row:
    row = delivery.row(KEY, 5)
    return row if row is not None else ("new" if delivery.cursor(KEY) <= 5 else "done")


LEASED = Row(1, 1, "c", 1000)
TABLE = [
    ("lease", "new", Row(9, 4, "d", None)),
    ("lease", "leased", Row(9, 4, "d", None)),
    ("lease", "done", "done"),
    ("pass", "new", "done"),
    ("pass again", "new", "new"),
    ("pass again", "leased", "done"),
    ("pass again", "done", "done"),
    ("ack 1", "new", "new"),
    ("ack 1", "leased", "done"),
    ("ack 2", "leased", LEASED),
    ("ack 1", "done", "done"),
    ("change 1", "new", "new"),
    ("change 1", "leased", Row(9, 1, "e", 7)),
    ("change 2", "leased", LEASED),
    ("change 1", "done", "done"),
    ("dead 1", "new", "new"),
    ("dead 1", "leased", "done"),
    ("dead 2", "leased", LEASED),
    ("dead 1", "done", "done"),
    *[("reset 5", before, "new") for before in ("new", "leased", "done")],
    *[("reset 6", before, "done") for before in ("new", "leased", "done")],
]


@pytest.mark.parametrize(("event", "before", "after"), TABLE)
def test_transition_table(event: str, before: str, after: str | Row) -> None:
    """Every cell of the table in the module's docstring; the count of rows follows, and touched
    rows are named."""
    delivery = state(before)
    kind, _, number = event.partition(" ")
    if event == "pass":
        delivery.apply_lease(9, "g", "t", "d", None, [], [(0, 5, 6)], [])
    elif event == "pass again":
        assert delivery.apply_lease(9, "g", "t", "d", None, [], [], [(0, [5])]) == [(KEY, [5])]
    elif kind == "lease":
        assert delivery.apply_lease(9, "g", "t", "d", None, [(0, [5], [4])], [], []) == [(KEY, [5])]
    elif kind == "ack":
        assert delivery.apply_ack([("g", "t", 0, [5], [int(number)])]) == [(KEY, [5])]
    elif kind == "dead":
        assert delivery.apply_dead_letter(KEY, 5, int(number)) == [(KEY, (5,))]
    elif kind == "reset":
        assert delivery.apply_reset("g", "t", [(0, int(number))]) == (
            [(KEY, [5])] if before == "leased" else []
        )
    else:
        assert delivery.apply_change(9, [("g", "t", 0, 5, int(number), 7, "e")]) == [(KEY, (5,))]
    assert cell_of(delivery) == after
    assert delivery.in_flight == sum(len(queue.rows) for queue in delivery.queues.values())


def test_records_of_unknown_queues_leave_no_rows() -> None:
    """An ack or change for an unknown group, topic or queue leaves no trace, not even an empty
    row."""
    delivery = Delivery(lambda topic, queue: 0)
    delivery.apply_ack([("g", "t", 0, [5], [1])])
    delivery.apply_change(9, [("g", "t", 0, 5, 1, 7, "e")])
    assert delivery.export() == {}


def test_a_cursor_begins_where_the_incarnation_begins() -> None:
    """What an older incarnation held is never leased."""
    delivery = Delivery(lambda topic, queue: 100)
    assert delivery.cursor(KEY) == 100
    delivery.apply_lease(1, "g", "t", "c", 1000, [(0, [100], [1])], [], [])
    assert delivery.cursor(KEY) == 101


def test_the_cap_ends_a_renewed_lease_even_between_signs_of_life() -> None:
    """The clock asks for the earliest of cap, liveness and goodbye."""
    delivery = state("new")
    clock = LeaseClock(delivery, LeaseTimes(handover_ns=0, cap_ns=100 * SECOND))
    delivery.apply_lease(7, "g", "t", "c", None, [(0, [5], [1])], [], [])
    clock.touched(0, [(KEY, [5])])
    assert clock.ends[0][0] == 65 * SECOND
    clock.alive(["c"], 60 * SECOND)
    assert clock.expire(65 * SECOND) == {} and clock.ends[0][0] == 100 * SECOND
    assert clock.expire(100 * SECOND) == {("g", "t"): None}
    assert list(clock.ready(KEY)) == [5] and clock.expired(100 * SECOND, KEY, 5)


def test_goodbye_never_prolongs_a_lease() -> None:
    """One second later, or earlier if the lease would have ended before."""
    delivery = state("new")
    clock = LeaseClock(delivery, LeaseTimes(handover_ns=0))
    delivery.apply_lease(7, "g", "t", "c", None, [(0, [5], [1])], [], [])
    clock.touched(0, [(KEY, [5])])
    clock.gone("c", 65 * SECOND - 1)
    assert not clock.expired(65 * SECOND - 1, KEY, 5) and clock.expired(65 * SECOND, KEY, 5)


# Sequencer


def batch_of(rows: list[tuple[int, int]]) -> UnsealedBatch:
    return encode_entries([Draft(f"t{topic}", queue, b"x", b"", 0) for topic, queue in rows])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=200))
def test_queue_offsets_in_columns_are_those_of_one_by_one(rows: list[tuple[int, int]]) -> None:
    """The vector path for large batches and the plain path assign the same dense offsets."""
    sequencer = Sequencer(lambda topic, queue: 10 * int(topic[1:]) + queue)
    batch = batch_of(rows)
    one = sequencer._assign_each(batch)
    many = sequencer._assign_columns(batch)
    assert one[0].tolist() == many[0].tolist() and one[1] == many[1]
    known: dict[tuple[int, int], int] = {}
    for row, offset in zip(rows, one[0].tolist(), strict=True):
        assert offset == known.setdefault(row, 10 * row[0] + row[1])
        known[row] += 1


def test_a_refused_batch_leaves_no_gap() -> None:
    """Offsets move when the log took the batch, not when they were planned."""
    sequencer = Sequencer(lambda topic, queue: 0)
    sequencer.assign(batch_of([(0, 0)] * 3), 5)
    planned = sequencer.assign(batch_of([(0, 0)] * 2), 5)
    assert planned.queue_offsets.tolist() == [0, 1]
    sequencer.appended(planned)
    assert sequencer.next_offset("t0", 0) == 2
    assert sequencer.assign(batch_of([(0, 0)]), 3).store_ms == 5, "store time never falls"


# Ranges


def sealed(count: int) -> Range:
    batch = encode_entries([draft(f"m{i}") for i in range(count)])
    place = {"first_index": 10, "term": 2, "pos": 1000, "prev_chain": chain_seed(LOG_ID)}
    seal(
        batch,
        queue_offsets=np.arange(count),
        store_ms=1,
        store_host=host_bytes("127.0.0.1", 1),
        **place,
    )
    return make_range(batch, 0, count, **place)


@pytest.mark.parametrize("at", range(10, 15))
def test_parts_of_a_range_are_ranges(at: int) -> None:
    """Both parts verify on their own: positions, indexes and chain continue."""
    whole = sealed(5)
    for part in (cut(whole, at), tail_of(whole, at)):
        again = verify_range(part.data, part.first_index, part.term, part.pos, part.prev_chain)
        assert (again.last_index, again.last_chain) == (part.last_index, part.last_chain)
        assert again.starts.tolist() == part.starts.tolist()
    assert cut(whole, at).last_index == at and tail_of(whole, at).first_index == at
    assert bytes(cut(whole, at).data) + (
        bytes(tail_of(whole, at + 1).data) if at < 14 else b""
    ) == bytes(whole.data)


# UncommittedState


def test_a_rolled_back_plan_leaves_no_mark() -> None:
    """Marks of earlier plans stay as they were."""
    uncommitted = UncommittedState()
    uncommitted.mark_cursor(5, KEY, 7)
    uncommitted.mark_name(5, "topic:t")
    uncommitted.keep()
    uncommitted.mark_cursor(6, KEY, 9)
    uncommitted.mark_name(6, "topic:t")
    uncommitted.mark_row(6, KEY, 3)
    uncommitted.rollback()
    assert (
        uncommitted.cursor(KEY),
        uncommitted.configuring("topic:t"),
        uncommitted.pending(KEY, 3),
    ) == (7, 5, None)
    uncommitted.applied(5)
    assert len(uncommitted) == 0


def test_the_newest_mark_outlives_the_older_one() -> None:
    """A cursor moved twice stays marked until the second entry is applied."""
    uncommitted = UncommittedState()
    uncommitted.mark_cursor(5, KEY, 7)
    uncommitted.mark_cursor(6, KEY, 9)
    uncommitted.keep()
    uncommitted.applied(5)
    assert uncommitted.cursor(KEY) == 9
    uncommitted.applied(6)
    assert uncommitted.cursor(KEY) is None


@pytest.mark.parametrize("changed", range(4))
def test_a_row_of_a_record_may_have_a_later_lease_when_the_clock_hears_of_it(changed: int) -> None:
    """A range is applied whole before the clock follows: a change behind the lease is in the rows
    already."""
    delivery = Delivery(lambda topic, queue: 0)
    clock = LeaseClock(delivery, LeaseTimes(handover_ns=0))
    touched = delivery.apply_lease(1, "g", "t", "c", 5, [(0, [0, 1, 2, 3], [1] * 4)], [], [])
    touched += delivery.apply_change(2, [("g", "t", 0, changed, 1, 9, "c")])
    clock.touched(0, touched)
    clock.expire(5 * MS)
    assert list(clock.ready(KEY)) == [offset for offset in range(4) if offset != changed]
    clock.expire(9 * MS)
    assert sorted(clock.ready(KEY)) == [0, 1, 2, 3]


def test_leases_of_equal_deadline_end_together() -> None:
    """However many leases end at one moment, one call makes them all visible, in a fixed order."""
    delivery = Delivery(lambda topic, queue: 0)
    clock = LeaseClock(delivery, LeaseTimes(handover_ns=0))
    delivery.apply_lease(1, "g", "t", "c", 5, [(0, list(range(100)), [1] * 100)], [], [])
    clock.touched(0, [(KEY, range(100))])
    clock.expire(5 * MS - 1)
    assert clock.ready_count == 0
    clock.expire(5 * MS)
    assert list(clock.ready(KEY)) == list(range(100)) and clock.ready_count == 100
