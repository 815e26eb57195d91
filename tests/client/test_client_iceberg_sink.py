"""The table of a sink: each message in it once, whatever ends a process, and whatever else is
committed to the table.

A fake of the table here; `tests/client/test_client_iceberg_table.py` has pyiceberg's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq import cli
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import BadArgument, ClusterError
from ledgermq.client.native.consumers.positions import EntryName
from ledgermq.client.native.sinks.iceberg_sink import TRIES, Conflict, IcebergSink, Mark
from ledgermq.client.native.sinks.ports import Queue
from ledgermq.client.native.sinks.sinking import Sinking
from tests.client.fake_reading import Queue as Stored
from tests.client.fake_reading import served
from tests.client.test_client_native_consumer import filled
from tests.client.test_client_parquet_sink import QUEUES, Killed, batch_of

pa = pytest.importorskip("pyarrow")

Row = tuple[str, int, int]


@dataclass
class Snapshot:
    parent: Snapshot | None
    rows: list[Row]
    mark: Mark | None


@dataclass
class Lake:
    """The catalog and the storage of one table."""

    head: Snapshot | None = None
    every: list[Snapshot] = field(default_factory=list)
    late: Snapshot | None = None
    """A commit whose request is still on its way."""

    def commit(self, snapshot: Snapshot) -> None:
        if snapshot.parent is not self.head:
            raise Conflict
        self.head = snapshot
        self.every.append(snapshot)

    def history(self) -> list[Snapshot]:
        found, snapshot = [], self.head
        while snapshot is not None:
            found.append(snapshot)
            snapshot = snapshot.parent
        return found

    def mark(self) -> Mark | None:
        return next((one.mark for one in self.history() if one.mark is not None), None)

    def rows(self) -> Counter[Row]:
        return Counter(row for one in self.history() for row in one.rows)

    def arrive(self) -> None:
        late, self.late = self.late, None
        if late is not None and late.parent is self.head:
            self.commit(late)


class FakeTable:
    """The table, as one process sees it. `fault`: what happens at the next commit."""

    name = "lake.s.t"

    def __init__(self, lake: Lake) -> None:
        self.lake, self.fault = lake, ""
        self.seen: Snapshot | None = None
        self.appends = 0

    def load(self) -> Mark | None:
        self.seen = self.lake.head
        return self.lake.mark()

    def append(self, rows: Any, mark: Mark) -> None:
        self.appends += 1
        found = zip(
            *(rows[name].to_pylist() for name in ("broker_group", "group_queue", "offset")),
            strict=True,
        )
        snapshot = Snapshot(self.seen, list(found), mark)
        fault, self.fault = self.fault, ""
        if fault == "kill before":
            raise Killed
        if fault == "fails":
            raise ClusterError("the storage failed", "do it again")
        if fault in ("late", "killed late"):
            self.lake.late = snapshot
            raise (
                Killed
                if fault == "killed late"
                else ClusterError("the catalog does not answer", "do it again")
            )
        if fault == "compaction in between":
            self.lake.commit(Snapshot(self.lake.head, [], None))
        self.lake.commit(snapshot)
        if fault == "kill after":
            raise Killed
        if fault == "lost answer":
            raise ClusterError("the catalog does not answer", "do it again")
        if fault == "answered with a conflict":
            raise Conflict


FAULTS = [
    "",
    "kill before",
    "kill after",
    "fails",
    "late",
    "killed late",
    "lost answer",
    "answered with a conflict",
    "compaction in between",
]
STEPS = st.one_of(
    st.tuples(
        st.just("write"), st.integers(0, 1), st.sampled_from(range(len(QUEUES))), st.integers(1, 5)
    ),
    st.tuples(st.just("roll"), st.integers(0, 1), st.sampled_from(FAULTS)),
    st.tuples(st.just("kill"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["compaction", "arrive"])),
    st.tuples(st.just("roll back"), st.integers(0, 40)),
)


def open_sink(table: FakeTable, topic: str = "t", cluster: str = "c") -> IcebergSink:
    return IcebergSink(table, cluster, topic, 1 << 30, 1e9)


@given(st.lists(STEPS, max_size=40))
def test_the_table_is_the_log_below_its_positions(steps: list[tuple[Any, ...]]) -> None:
    """At every moment, with two sinks that run at the same time, kills at every place of a commit,
    answers that are lost and requests that arrive late, among compactions and with the table rolled
    back."""
    stored, lake = [Stored(queue) for _, queue in QUEUES], Lake()

    def process() -> tuple[FakeTable, IcebergSink]:
        table = FakeTable(lake)
        return table, open_sink(table)

    running = [process(), process()]
    for step in steps:
        if step[0] == "write":
            _, who, queue, count = step
            log = stored[queue]
            begin = running[who][1].positions.get(QUEUES[queue], 0)
            log.append([str(log.end + k).encode() for k in range(count)])
            assert running[who][1].write(
                batch_of(QUEUES[queue], log, begin, min(log.end, begin + count))
            )
        elif step[0] == "roll":
            table, sink = running[step[1]]
            table.fault = step[2]
            try:
                sink.roll()
            except (Killed, ClusterError):
                # Whatever ends a commit ends the process.
                running[step[1]] = process()
        elif step[0] == "kill":
            running[step[1]] = process()
        elif step[0] == "compaction":
            lake.commit(Snapshot(lake.head, [], None))
        elif step[0] == "arrive":
            lake.arrive()
        elif lake.every:
            lake.head = lake.every[step[1] % len(lake.every)]
            if lake.mark() is None:
                # A history without any row of the sink: such a table is refused.
                lake.head = None
        assert_below(lake)
    lake.arrive()
    with open_sink(FakeTable(lake)) as sink:
        for name, log in zip(QUEUES, stored, strict=True):
            if (begin := sink.positions.get(name, 0)) < log.end:
                assert sink.write(batch_of(name, log, begin, log.end))
    assert lake.rows() == Counter(
        (*name, offset)
        for name, log in zip(QUEUES, stored, strict=True)
        for offset in range(log.end)
    )


def assert_below(lake: Lake) -> None:
    mark = lake.mark()
    positions = {} if mark is None else mark.next
    assert lake.rows() == Counter(
        (*queue, offset) for queue, end in positions.items() for offset in range(end)
    )


def some(count: int) -> Stored:
    stored = Stored(0)
    stored.append([str(k).encode() for k in range(count)], store_ms=1_000)
    return stored


@pytest.mark.parametrize("second_waits", [False, True])
def test_of_two_sinks_one_ends(second_waits: bool) -> None:
    """Its rows are not added; run again, it continues behind the other one's."""
    lake, stored = Lake(), some(9)
    if second_waits:
        with open_sink(FakeTable(lake)) as before:
            before.write(batch_of(QUEUES[0], stored, 0, 1))
    begin = 1 if second_waits else 0
    first, second = open_sink(FakeTable(lake)), open_sink(FakeTable(lake))
    for one in (first, second):
        assert one.write(batch_of(QUEUES[0], stored, begin, 5))
    first.roll()
    with pytest.raises(BadArgument, match="another sink of the topic writes it") as caught, second:
        second.roll()
    assert "continues where the table ends" in caught.value.remedy
    with open_sink(FakeTable(lake)) as again:
        assert again.positions == {QUEUES[0]: 5} and again.write(batch_of(QUEUES[0], stored, 5, 9))
    assert_below(lake)


def test_a_failed_commit_is_not_tried_again_when_the_sink_is_left() -> None:
    """Its request may still arrive: the next process looks first."""
    table = FakeTable(Lake())
    table.fault = "late"
    with pytest.raises(ClusterError, match="does not answer"), open_sink(table) as sink:
        sink.write(batch_of(QUEUES[0], some(1), 0, 1))
        sink.roll()
    assert table.appends == 1 and table.lake.head is None


@pytest.mark.parametrize(
    ("fault", "appends"), [("compaction in between", 2), ("answered with a conflict", 1)]
)
def test_a_conflict_that_is_not_with_another_sink_does_not_end_it(fault: str, appends: int) -> None:
    """The commit is made on top of the other one. If it was made already, and only the answer says
    otherwise, it is not repeated."""
    table = FakeTable(Lake())
    table.fault = fault
    with open_sink(table) as sink:
        sink.write(batch_of(QUEUES[0], some(1), 0, 1))
    assert (
        sink.done == 1
        and table.appends == appends
        and table.lake.rows() == Counter([(*QUEUES[0], 0)])
    )


def test_commits_of_others_do_not_hold_it_for_ever() -> None:
    table = FakeTable(Lake())
    table.lake.commit = conflict  # type: ignore[assignment]
    sink = open_sink(table)
    sink.write(batch_of(QUEUES[0], some(1), 0, 1))
    with pytest.raises(ClusterError, match="met those of other programs"):
        sink.roll()
    assert table.appends == TRIES


def conflict(_: object) -> None:
    raise Conflict


def test_rows_are_committed_at_their_size() -> None:
    """Without waiting for the next look at the time, because they are in memory until then."""
    lake, stored = Lake(), some(4)
    with IcebergSink(FakeTable(lake), "c", "t", 1, 1e9) as sink:
        for k in range(4):
            sink.write(batch_of(QUEUES[0], stored, k, k + 1))
            sink.roll_due()
            assert sink.done == len(lake.every) == k + 1
        assert sink.rows == 4
    with IcebergSink(FakeTable(lake), "c", "t", 1 << 30, 0.0) as aged:
        aged.roll_due()
        assert aged.done == 0


def test_table_of_another_topic_or_cluster_is_refused() -> None:
    """Of another topic or cluster, and a batch that does not continue a queue."""
    lake, stored = Lake(), some(9)
    with open_sink(FakeTable(lake)) as sink:
        assert sink.write(batch_of(QUEUES[0], stored, 0, 5))
        for begin in (4, 6):
            assert not sink.write(batch_of(QUEUES[0], stored, begin, 8))
        assert sink.write(batch_of(QUEUES[0], stored, 6, 8, missed=1))
    with pytest.raises(BadArgument, match="belongs to the topic t, and this is u"):
        open_sink(FakeTable(lake), topic="u")
    with pytest.raises(BadArgument, match="belongs to the cluster c, and this is d"):
        open_sink(FakeTable(lake), cluster="d")


def test_marks_are_read_as_written() -> None:
    last = {("g1", 11): EntryName(1 << 41, 3, 0xFFFFFFFF)}
    mark = Mark("c", "t", "1", {("g2", 0): 1, ("g1", 11): 1 << 40}, last, {"g1": "l"})
    assert Mark.read(mark.text()) == mark
    former = {
        name: value
        for name, value in json.loads(mark.text()).items()
        if name not in ("last", "crc32c")
    }
    assert Mark.read(json.dumps(former)) == replace(mark, last={})
    text = mark.text()
    changed = [('"v": 1', '"v": 2'), ('"next"', '"former"'), (" 3,", ""), (" 3,", " 2,")]
    for bad in ("", "[]", "{}", *(text.replace(*change) for change in changed)):
        with pytest.raises(ValueError):
            Mark.read(bad)


def test_columns() -> None:
    """A queue has its name in its broker group; times are moments."""
    kept: list[Any] = []
    table = FakeTable(Lake())
    table.append = lambda rows, mark: kept.append(rows)  # type: ignore[method-assign]
    stored = some(2)
    with open_sink(table) as sink:
        sink.write(batch_of(("g2", 0), stored, 1, 2))
    (row,) = kept[0].to_pylist()
    assert (row["broker_group"], row["group_queue"], row["offset"], row["body"]) == (
        "g2",
        0,
        1,
        b"1",
    )
    assert row["store_time"].isoformat() == "1970-01-01T00:00:01+00:00"
    assert row["born_time"].isoformat() == "1970-01-01T00:00:00.001000+00:00"


def test_a_topic_is_read_into_the_table_and_continued_with_more_queues() -> None:
    """More queues in the first broker group change the numbers of the others, not their names in
    the table. After a recovery, which may have lost messages, offsets may name others."""
    lake = Lake()

    async def sunk(endpoints: str) -> Sinking:
        with Connection(endpoints) as connection:
            sinking = Sinking(connection, "t", "", lambda rows, lag: None)
            await sinking.run(
                lambda cluster, topic: open_sink(FakeTable(lake), topic, cluster), 0.1
            )
        return sinking

    async def work() -> None:
        log = filled(20, {"g1": 1, "g2": 1})
        async with served(log) as endpoints:
            first = await sunk(endpoints)
            assert (first.rows, first.done) == (40, 1)
            more = Stored(1)
            more.append([str(k).encode() for k in range(5)])
            log.groups["g1"].queues.append(more)
            log.groups["g2"].queues[0].append([b"20"])
            assert (await sunk(endpoints)).rows == 6
            log.groups["g1"].log_id = "another"
            more.append([b"5"])
            with pytest.raises(BadArgument, match="broker group g1 was recovered since"):
                await sunk(endpoints)

    asyncio.run(work())
    ends: dict[Queue, int] = {("g1", 0): 20, ("g1", 1): 5, ("g2", 0): 21}
    assert lake.rows() == Counter(
        (*queue, offset) for queue, end in ends.items() for offset in range(end)
    )


@pytest.mark.parametrize(
    ("arguments", "missing", "said"),
    [
        (
            ["--table", "lake.s.t"],
            "pyiceberg",
            "Iceberg tables need pyiceberg; install it: pip install 'ledgermq[iceberg]'",
        ),
        (["--table", "lake.s.t", "--roll-size", "2GiB"], "", "at most 1GiB"),
        (["--table", "lake.s.t", "--roll-every", "0s"], "", "positive"),
        ([], "", "--table"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    missing: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert cli.run(["sink", "iceberg", "--topic", "t", *arguments]) == 64
    assert said in capfd.readouterr().err.splitlines()[-1]
