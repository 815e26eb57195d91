"""Columns by queue offset, terms that rows share, and the clock of leases against the plain
containers they replace."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.packed import pack, unpack
from ledgermq.node.broker.parts.delivery import leases
from ledgermq.node.broker.parts.delivery.delivery import Delivery, Row, Terms, TermsTable
from ledgermq.node.broker.parts.delivery.lapsed_leases import Lapsed
from ledgermq.node.broker.parts.delivery.leases import LeaseClock, LeaseTimes
from ledgermq.node.broker.parts.delivery.offset_table import CHUNK, OffsetTable
from tests.node_core.core_fakes import MS, SECOND

OFFSETS = st.integers(0, 6) | st.integers(CHUNK - 3, CHUNK + 3) | st.integers(0, 1 << 40)


@given(
    st.lists(st.tuples(OFFSETS, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 30))),
    OFFSETS,
)
def test_offset_table_equals_a_dictionary(rows: list[tuple[int, int, int]], border: int) -> None:
    """Puts, changes, removals and lookups in any order, across chunks; what is copied out comes
    back by `load`."""
    table, plain = OffsetTable("qi"), {}
    for offset, first, second in rows:
        found = table.find(offset)
        assert (found is not None) == (offset in plain) == (offset in table)
        if found is None:
            table.put(offset, first, second)
            plain[offset] = (first, second)
        elif second % 3:
            table.remove(offset, *found)
            del plain[offset]
        else:
            found[0][1][found[1]] = first
            plain[offset] = (first, plain[offset][1])
    offsets, *columns = table.columns()
    assert list(table) == offsets.tolist() == sorted(plain) and len(table) == len(plain)
    assert list(zip(*[c.tolist() for c in columns], strict=True)) == [
        plain[offset] for offset in sorted(plain)
    ]
    assert table.first() == min(plain, default=None) and table.last() == max(plain, default=None)
    assert table.below(border) == sorted(offset for offset in plain if offset < border)
    again = OffsetTable("qi")
    again.load(offsets, *columns)
    assert [c.tolist() for c in again.columns()] == [c.tolist() for c in table.columns()] and len(
        again
    ) == len(table)


@given(st.sets(OFFSETS), st.lists(OFFSETS, min_size=1, max_size=8))
def test_rows_added_together_are_those_added_one_by_one(
    before: set[int], offsets: list[int]
) -> None:
    """Across chunks too. Only ascending offsets behind all rows are taken; they are found as a run
    if they are in one chunk."""
    together, single = OffsetTable("qi"), OffsetTable("qi")
    for table in (together, single):
        for offset in before:
            table.put(offset, 1, 2)
    takes = together.takes_behind(offsets)
    assert takes == (offsets == sorted(set(offsets)) and offsets[0] > max(before, default=-1))
    if takes:
        together.extend(offsets, [7] * len(offsets), [*range(len(offsets))])
        for place, offset in enumerate(offsets):
            single.put(offset, 7, place)
        assert [c.tolist() for c in together.columns()] == [
            c.tolist() for c in single.columns()
        ] and len(together) == len(single)
    rows = list(together)
    neighbours = offsets[0] in rows and rows[rows.index(offsets[0]) :][: len(offsets)] == offsets
    found = together.find_run(offsets)
    assert (found is not None) == (neighbours and offsets[0] // CHUNK == offsets[-1] // CHUNK)
    assert found is None or found == together.find(offsets[0])


def test_a_row_costs_tens_of_bytes_also_where_it_has_no_neighbours() -> None:
    """A chunk is as large as its rows: one message left of every few thousand costs no whole chunk
    (I11)."""
    table = OffsetTable("qii")
    for offset in range(3 * CHUNK):
        table.put(offset, 1, 1, 0)
    for offset in range(3 * CHUNK):
        if offset % CHUNK:
            table.remove(offset, *table.find(offset))  # type: ignore[misc]
    held = [column.buffer_info()[1] for chunk in table._chunks.values() for column in chunk]
    assert len(table) == 3 and held == [1] * 12


def test_terms_are_held_once_and_as_long_as_a_row_has_them() -> None:
    """Numbers are used again; nothing grows with the clients that came and went."""
    table = TermsTable()
    for i in range(100):
        number = table.take(Terms(f"c{i}", None), 2)
        assert table.take(Terms(f"c{i}", None)) == number and table[number] == Terms(f"c{i}", None)
        table.drop(number, 3)
    assert len(table) == 0 and number == 0


def test_numbers_of_terms_leave_no_trace_in_a_snapshot() -> None:
    """Two replicas met clients in another order, one from a snapshot: their exports are the same
    (I8)."""
    one, two = Delivery(lambda topic, queue: 0), Delivery(lambda topic, queue: 0)
    for delivery, before in ((one, ()), (two, ("z", "y"))):
        for i, client in enumerate(before):
            delivery.apply_lease(i, "g", "t", client, 5, [(0, [i], [1])], [], [])
        for i in range(len(before)):
            delivery.apply_ack([("g", "t", 0, [i], [i])])
        delivery.apply_lease(8, "g", "t", "a", None, [(0, [5, 6], [1, 2])], [], [])
        delivery.apply_lease(9, "g", "t", "b", 7, [(0, [7], [1])], [(0, 0, 5)], [])
        delivery.apply_change(10, [("g", "t", 0, 5, 8, 7, "b")])
    assert one.export() == two.export()
    again = Delivery(lambda topic, queue: 0)
    again.restore(two.export(), two.lapsed)
    assert again.export() == one.export() and again.row(("g", "t", 0), 5) == Row(10, 1, "b", 7)
    again.apply_reset("g", "t", [(0, 0)])
    assert len(again.terms) == 0 and again.in_flight == 0


def test_snapshots_with_a_list_for_every_row_are_still_read() -> None:
    """They were written before the columns, under the same version."""
    delivery = Delivery(lambda topic, queue: 0)
    delivery.restore(
        {"g": {"t": {"0": [9, [[5, 3, 1, "c", None], [7, 4, 2, "d", 1000]]]}}}, Lapsed()
    )
    assert [delivery.row(("g", "t", 0), offset) for offset in (5, 6, 7)] == [
        Row(3, 1, "c", None),
        None,
        Row(4, 2, "d", 1000),
    ]
    assert delivery.cursor(("g", "t", 0)) == 9 and delivery.in_flight == 2


class PlainClock:
    """The law of `leases.py` with a deadline for every row."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int, str, int | None]] = {}
        self.seen: dict[str, int] = {}
        self.ready: set[int] = set()

    def deadline(self, offset: int) -> int:
        _, base, client, end = self.rows[offset]
        return end if end is not None else max(base, self.seen.get(client, 0)) + 65 * SECOND

    def touched(self, now: int, offset: int, row: Row | None) -> None:
        if offset in self.rows and row is not None and self.rows[offset][0] == row.lease:
            return
        self.rows.pop(offset, None)
        self.ready.discard(offset)
        if row is not None:
            end = None if row.duration_ms is None else now + row.duration_ms * MS
            self.rows[offset] = (row.lease, now, row.client, end)

    def gone(self, client: str, now: int) -> None:
        for offset, (lease, base, of, end) in self.rows.items():
            if of == client and end is None:
                self.rows[offset] = (lease, base, of, min(self.deadline(offset), now + SECOND))

    def expire(self, now: int) -> None:
        for offset in self.rows:
            if self.deadline(offset) <= now and offset not in self.ready:
                lease, base, client, _ = self.rows[offset]
                self.rows[offset] = (lease, base, client, self.deadline(offset))
                self.ready.add(offset)


@pytest.mark.parametrize("seed", range(20))
def test_batches_end_when_every_single_lease_would(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of either kind, signs of life, goodbyes, acknowledgements and changes in random order:
    the plain clock says the same."""
    monkeypatch.setattr(leases, "_ROWS_MAX", 5)
    rng, key = random.Random(seed), ("g", "t", 0)
    delivery, plain = Delivery(lambda topic, queue: 0), PlainClock()
    clock, now = LeaseClock(delivery, LeaseTimes(handover_ns=0)), SECOND
    for index in range(1, 401):
        now += rng.choice((0, 0, 0, 0, MS, SECOND, 30 * SECOND))
        cursor = delivery.cursor(key)
        known = [*range(max(0, cursor - 30), cursor + 5)]
        client, offset = f"c{rng.randrange(2)}", rng.choice(known)
        what = rng.choice(("lease", "new", "new", "ack", "change", "alive", "gone", "gone"))
        touched = []
        if what in ("lease", "new"):
            wanted = [
                o for o in rng.sample(known, min(6, len(known))) if o in plain.ready or o >= cursor
            ]
            if what == "new":
                # As a leader leases nearly always: ascending, from the cursor on, with gaps where
                # messages did not match.
                wanted = [cursor + o for o in range(6) if rng.random() < 0.9]
            leased = [(0, wanted, [1] * len(wanted))]
            touched = delivery.apply_lease(
                index, "g", "t", client, rng.choice((None, None, 0, 1000)), leased, [], []
            )
        elif what == "ack":
            touched = delivery.apply_ack(
                [("g", "t", 0, [offset], [delivery.lease(key, offset) or 0])]
            )
        elif what == "change":
            touched = delivery.apply_change(
                index,
                [
                    (
                        "g",
                        "t",
                        0,
                        offset,
                        delivery.lease(key, offset) or 0,
                        rng.choice((0, 5000)),
                        client,
                    )
                ],
            )
        elif what == "alive":
            clock.alive([client], now)
            if any(of == client and end is None for _, _, of, end in plain.rows.values()):
                plain.seen[client] = now
        else:
            clock.gone(client, now)
            plain.gone(client, now)
        clock.touched(now, touched)
        for o in (o for _, offsets in touched for o in offsets):
            plain.touched(now, o, delivery.row(key, o))
        clock.expire(now)
        plain.expire(now)
        for of in list(plain.seen):
            # A client without leases that renew themselves is forgotten.
            if not any(client == of and end is None for _, _, client, end in plain.rows.values()):
                del plain.seen[of]
        assert set(clock.ready(key)) == plain.ready and clock.ready_count == len(plain.ready)
        assert [o for o in plain.rows if clock.expired(now, key, o)] == [
            o for o in plain.rows if plain.deadline(o) <= now
        ]
    if rng.random() < 0.5:
        clock.lead(now)
        assert (
            clock.ready_count == 0
            and sum(batch.count for batch in clock._batches.values()) == delivery.in_flight
        )
    delivery.apply_reset("g", "t", [(0, 0)])
    clock.touched(now, [(key, range(3000))])
    assert not clock._batches and not clock._rows and not clock._clients and clock.ready_count == 0


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_packed_columns_come_back(numbers: list[int]) -> None:
    """Whatever a column holds, differences beyond its width included; a narrow column keeps its low
    half."""
    column = np.array(numbers, np.int64)
    assert unpack(pack(column, "q"), "q").tolist() == numbers
    assert (
        unpack(pack(column.astype(np.int32), "i"), "i").tolist() == column.astype(np.int32).tolist()
    )
