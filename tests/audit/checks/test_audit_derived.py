"""Index files and consume queues against entries in memory: units that are right, and all that are
not; runs of queues in any windows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ledgermq.audit.checks import derived
from ledgermq.audit.checks.derived import (
    IndexCheck,
    QueueCheck,
    QueueRun,
    TailReport,
    differing,
    near_each_other,
    space_tail,
    tails,
)
from ledgermq.audit.reading.columns import Columns
from ledgermq.audit.reading.decode import numbered_files
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw

BASE = 1 << 20
TASK = LogFile("/r/g1", "g1", "n1", "id", "dledger-n1", f"{BASE:020d}", BASE, 128, 60)
STORED = replace(TASK, key="the/key")
"""In an object store, where nothing derived lies beside a file."""


@dataclass(frozen=True)
class Row:
    """An entry of the tests' log file; its other values follow from its index."""

    index: int
    offset: int = 0
    """In its queue."""
    topic: str = "t"
    queue: int = 1
    sound: bool = True

    @property
    def at(self) -> int:
        return 100 * (self.index - 10)

    @property
    def term(self) -> int:
        return 300 + self.index

    @property
    def unit(self) -> bytes:
        return struct.pack(">iqiqq", 1, BASE + self.at, 200 + self.index, self.index, self.term)

    @property
    def queue_unit(self) -> bytes:
        return struct.pack(">qiq", BASE + self.at + 48, 152 + self.index, -self.index)


def columns(rows: Sequence[Row], sound_before: int = 0) -> Columns:
    topics = sorted({row.topic for row in rows})
    sound = np.array([row.sound for row in rows], np.bool_)

    def column(values: Sequence[int]) -> np.ndarray[Any, Any]:
        return np.array(values, np.int64)

    none = column([0] * len(rows))
    return Columns(
        index=column([row.index for row in rows]),
        term=column([row.term for row in rows]),
        offset=column([row.at for row in rows]),
        size=column([200 + row.index for row in rows]),
        chain=none,
        body_crc=none,
        channel=none,
        queue=column([row.queue for row in rows]),
        queue_offset=column([row.offset for row in rows]),
        store_ms=none,
        total_size=column([152 + row.index for row in rows]),
        tags_code=column([-row.index for row in rows]),
        topic_of=column([topics.index(row.topic) for row in rows]),
        topics=[topic.encode() for topic in topics],
        intact=sound,
        proven=sound,
        sound=sound,
        ordinal=sound_before + np.cumsum(sound) - sound,
    )


class Space:
    """Derived files in memory: units by folder and number. Without one, the unit is zero; behind
    `end` there is nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.size = size
        self.units: dict[tuple[str, int], bytes] = {}
        self.end: int | None = None
        self.error: OSError | None = None
        self.read = 0
        monkeypatch.setattr(derived, "read_space", self.read_space)

    def put(self, folder: str, number: int, unit: bytes) -> None:
        self.units[folder, number] = unit

    def read_space(self, folder: str, file_bytes: int, start: int, end: int) -> bytes:
        assert file_bytes == {32: 128, 20: 60}[self.size]
        if self.error is not None:
            raise self.error
        self.read += end - start
        first, last = start // self.size, -(-end // self.size)
        assert last - first < 1000, "a range between numbers that are far apart"
        data = b"".join(
            self.units.get((folder, number), bytes(self.size)) for number in range(first, last)
        )
        data = data[start - first * self.size :][: end - start]
        return data if self.end is None else data[: max(self.end - start, 0)]


def test_differing_places() -> None:
    for has, wants in product(product(b"ab", repeat=4), repeat=2):
        places = [at for at in range(4) if has[at] != wants[at]]
        if places:
            assert differing(bytes(has), bytes(wants)) == (places[0], places[-1] + 1)


def test_numbers_that_are_far_apart_are_read_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they stand; negative ones are read nowhere."""
    monkeypatch.setattr(derived, "REACH_MAX", 3)
    for count in range(4):
        for numbers in product((-5, 0, 1, 4, 5, 9, 10), repeat=count):
            array = np.array(numbers, np.int64)
            found = [np.arange(count)[near].tolist() for near in near_each_other(array)]
            if numbers and min(numbers) >= 0 and max(numbers) - min(numbers) <= count + 3:
                assert found == [list(range(count))]
                continue
            expected: list[list[int]] = []
            before = -100
            for number, place in sorted(
                (number, place) for place, number in enumerate(numbers) if number >= 0
            ):
                if number - before > 3:
                    expected.append([])
                expected[-1].append(place)
                before = number
            assert found == [sorted(group) for group in expected], numbers


# ----------------------------------------------------------------------------------------------------------- index files

INDEX = "/r/g1/dledger-n1/index"
ENTRIES = [Row(index) for index in range(10, 16)]


@pytest.fixture
def index_space(monkeypatch: pytest.MonkeyPatch) -> Space:
    space = Space(monkeypatch, 32)
    for row in ENTRIES:
        space.put(INDEX, row.index, row.unit)
    return space


def index_flaws(rows: Sequence[Row], task: LogFile = TASK) -> list[Flaw]:
    check = IndexCheck(task)
    check.check(columns(rows))
    return check.flaws


def index_flaw(
    rule: str, index: int, start: int, stop: int, proof: str, torn: bool = False
) -> Flaw:
    place = index * 32 % 128
    return Flaw(
        rule,
        f"g1/dledger-n1/index/{index * 32 - place:020d}",
        index,
        place + start,
        place + stop,
        proof,
        torn,
    )


def test_index_units_repeat_their_entries(index_space: Space) -> None:
    """Every byte of them; entries that are damaged, or in a store, have no right units. One of an
    older term was replaced."""
    assert index_flaws(ENTRIES) == [] and index_flaws(ENTRIES[2:3]) == [] and index_flaws([]) == []
    for row, place, by in product(ENTRIES[::2], range(32), (1, 0x80)):
        unit = bytearray(row.unit)
        unit[place] ^= by
        index_space.put(INDEX, row.index, bytes(unit))
        _magic, pos, size, _index, term = struct.unpack(">iqiqq", unit)
        replaced = place >= 24 and 0 <= term < row.term and pos > 0 and size >= 48
        flaw = index_flaw(
            "index.unit",
            row.index,
            place,
            place + 1,
            f"{unit[place]:02x} instead of {row.unit[place]:02x}",
            replaced,
        )
        assert index_flaws(ENTRIES) == index_flaws([row]) == [flaw], (row, place)
        damaged = [replace(each, sound=each is not row) for each in ENTRIES]
        assert index_flaws(damaged) == [] and index_flaws(ENTRIES, STORED) == []
        index_space.put(INDEX, row.index, row.unit)


def test_a_unit_of_an_entry_that_was_replaced(index_space: Space) -> None:
    """It is that of an entry: with a magic, this index, an older term, a position and a size."""
    row = ENTRIES[1]
    for magic, pos, size, index, term in product(
        (1, 2), (0, 1, 900), (47, 48, 500), (11, 12), (-1, 0, 310, 311, 312)
    ):
        unit = struct.pack(">iqiqq", magic, pos, size, index, term)
        index_space.put(INDEX, 11, unit)
        (flaw,) = index_flaws(ENTRIES)
        assert flaw.torn is (
            magic == 1 and pos > 0 and size >= 48 and index == 11 and 0 <= term < row.term
        )
        start, stop = differing(unit, row.unit)
        assert flaw == index_flaw(
            "index.unit",
            11,
            start,
            stop,
            f"{unit[start:stop].hex()} instead of {row.unit[start:stop].hex()}",
            flaw.torn,
        )


def test_index_units_that_were_never_written(index_space: Space) -> None:
    """Zero, or behind the end of what is there; half a unit there says nothing either."""
    for row in ENTRIES:
        index_space.put(INDEX, row.index, bytes(32))
        assert index_flaws(ENTRIES) == [
            index_flaw("index.missing", row.index, 0, 32, "the unit was never written", torn=True)
        ]
        index_space.put(INDEX, row.index, row.unit)
        for kept in (0, 31):
            index_space.end = row.index * 32 + kept
            lost = [
                index_flaw("index.missing", each.index, 0, 32, "the unit was never written", True)
                for each in ENTRIES
                if each.index >= row.index
            ]
            assert index_flaws(ENTRIES) == lost
        index_space.end = None


def test_index_files_that_cannot_be_read(index_space: Space) -> None:
    index_space.error = OSError(5, "Input/output error")
    assert index_flaws(ENTRIES[1:]) == [index_flaw("file.read", 11, 0, 32, "Input/output error")]
    assert not IndexCheck(TASK).agrees(10, b"") and IndexCheck(STORED).agrees(10, b"x")


def test_a_damaged_index_is_not_followed(
    index_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that are far apart are read separately."""
    monkeypatch.setattr(derived, "REACH_MAX", 10)
    far = Row(1 << 20)
    index_space.put(INDEX, far.index, far.unit)
    assert index_flaws([*ENTRIES, far, Row(-7)]) == []
    index_space.put(INDEX, far.index, bytes(32))
    assert [flaw.index for flaw in index_flaws([far, *ENTRIES])] == [far.index]


def test_units_of_a_window_that_was_checked_elsewhere(index_space: Space) -> None:
    units = b"".join(row.unit for row in ENTRIES)
    check = IndexCheck(TASK)
    for first, count in product(range(6), range(7)):
        assert check.agrees(10 + first, units[32 * first : 32 * (first + count)])
    assert (
        not check.agrees(11, units)
        and not check.agrees(10, units[:-1] + b"\1")
        and check.flaws == []
    )


# -------------------------------------------------------------------------------------------------------- consume queues


def folder(row: Row) -> str:
    return f"/r/g1/consumequeue/{row.topic}/{row.queue}"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    return Space(monkeypatch, 20)


def file_units(space: Space, rows: Sequence[Row]) -> None:
    for row in rows:
        space.put(folder(row), row.offset, row.queue_unit)


def checked(*windows: Sequence[Row], task: LogFile = TASK) -> QueueCheck:
    check = QueueCheck(task)
    before = 0
    for rows in windows:
        check.check(columns(rows, before))
        before += sum(row.sound for row in rows)
    return check


def windows_of(rows: Sequence[Row]) -> list[list[Sequence[Row]]]:
    """The rows in all windows of up to three."""
    return [
        [rows[a:b] for a, b in zip((0, *cut), (*cut, len(rows)), strict=True)]
        for n in range(3)
        for cut in combinations(range(1, len(rows)), n)
    ]


MIXED = [
    Row(10, 5),
    Row(11, 0, queue=2),
    Row(12, 6),
    Row(13, 9, topic="a"),
    Row(14, 0, topic="é", sound=False),
    Row(15, 7),
    Row(16, 10, topic="a"),
]


def test_runs_of_queues_in_any_windows(space: Space) -> None:
    """First and last message with their places, and the last one that is filed; damaged entries are
    no messages. The compiled scan takes windows that are in order instead."""
    file_units(space, MIXED)
    sound = [row for row in MIXED if row.sound]
    expected = []
    for key in sorted({(row.topic, row.queue) for row in sound}):
        rows = [row for row in sound if (row.topic, row.queue) == key]
        first, last = rows[0], rows[-1]
        begin, end = ((row.index, sound.index(row), row.at) for row in (first, last))
        run = QueueRun(*key, first.offset, last.offset, len(rows), *begin, *end)
        run.filed_offset, run.filed_index = last.offset, last.index
        expected.append(run)
    for windows in windows_of(MIXED):
        check = checked(*windows)
        assert check.flaws == [] and check.runs() == expected
    in_order = [replace(row, index=at + 10) for at, row in enumerate(sound)]
    space.units.clear()
    file_units(space, in_order)
    for windows in windows_of(in_order):
        plain, taking, mixed = checked(*windows), QueueCheck(TASK), QueueCheck(TASK)
        before = 0
        for number, rows in enumerate(windows):
            clean = clean_of(rows)
            assert taking.agrees(clean.queues)
            taking.add_window(clean, rows[0].at, before)
            if number % 2:
                mixed.check(columns(rows, before))
            else:
                mixed.add_window(clean, rows[0].at, before)
            before += len(rows)
        assert taking.runs() == plain.runs() == mixed.runs()


def clean_of(rows: Sequence[Row]) -> Any:
    """What the compiled scan gives of a window in order."""
    queues = []
    for key in sorted({(row.topic, row.queue) for row in rows}):
        own = [row for row in rows if (row.topic, row.queue) == key]
        ends = [(rows.index(row), row.at - rows[0].at) for row in (own[0], own[-1])]
        queues.append(
            SimpleNamespace(
                topic=key[0].encode(),
                queue=key[1],
                first=own[0].offset,
                last=own[-1].offset,
                count=len(own),
                first_row=ends[0][0],
                first_at=ends[0][1],
                last_row=ends[1][0],
                last_at=ends[1][1],
                units=b"".join(row.queue_unit for row in own),
            )
        )
    return SimpleNamespace(index=rows[0].index, queues=queues)


def test_a_window_that_was_checked_elsewhere_continues_its_queues(space: Space) -> None:
    """And has their units, which a file in a store has not."""
    rows = [Row(10 + at, 5 + at) for at in range(4)]
    file_units(space, rows)
    check = QueueCheck(TASK)
    check.add_window(clean_of(rows[:2]), 0, 0)
    right, gap, again = (clean_of(rows[at:]).queues for at in (2, 3, 1))
    other = clean_of([Row(12, 9, topic="b")]).queues
    assert (
        check.agrees(right)
        and not check.agrees(gap)
        and not check.agrees(again)
        and check.agrees([])
    )
    assert not check.agrees(other) and not check.agrees([*right, *other])
    assert QueueCheck(TASK).agrees(gap)
    space.error = OSError(5, "x")
    assert not check.agrees(right)
    stored = QueueCheck(STORED)
    stored.add_window(clean_of(rows[:2]), 0, 0)
    assert stored.agrees(right) and not stored.agrees(gap)


def queue_flaw(rule: str, row: Row, start: int, stop: int, proof: str, torn: bool = False) -> Flaw:
    place = row.offset * 20 % 60
    file = f"{folder(row)[3:]}/{row.offset * 20 - place:020d}"
    return Flaw(rule, file, row.index, place + start, place + stop, proof, torn)


def test_queue_units_repeat_their_messages(space: Space) -> None:
    """Every byte of them, in every window, unless nothing derived lies beside the file."""
    rows = [Row(10, 5), Row(11, 0, queue=2), Row(12, 6), Row(13, 7)]
    file_units(space, rows)
    for row, place in product(rows, (0, 7, 8, 11, 12, 19)):
        unit = bytearray(row.queue_unit)
        unit[place] ^= 1
        space.put(folder(row), row.offset, bytes(unit))
        flaw = queue_flaw(
            "queue.unit",
            row,
            place,
            place + 1,
            f"{unit[place]:02x} instead of {row.queue_unit[place]:02x}",
        )
        for windows in windows_of(rows):
            assert checked(*windows).flaws == [flaw]
        assert checked(rows, task=STORED).flaws == []
        space.put(folder(row), row.offset, row.queue_unit)


def test_a_unit_that_is_zero_in_one_sector_may_be_torn(space: Space) -> None:
    """It lies in two sectors of its file. The rest of it must be right; all zero it waits."""
    task = replace(TASK, queue_file_bytes=2000)
    space.read_space = lambda folder, file_bytes, start, end, real=space.read_space: real(
        folder, 60, start, end
    )  # type: ignore[method-assign]
    derived_read = space.read_space
    for offset in (24, 25, 125):
        row = Row(10, offset)
        edge = 512 - offset * 20 % 2000 % 512
        for unit, torn in (
            (row.queue_unit[:edge] + bytes(20 - edge) if edge < 20 else None, True),
            (bytes(edge) + row.queue_unit[edge:] if edge < 20 else None, True),
            (row.queue_unit[:7] + bytes(13), edge == 7),
            (bytes([255]) + row.queue_unit[1:], False),
        ):
            if unit is None or unit == row.queue_unit:
                continue
            space.put(folder(row), offset, unit)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(derived, "read_space", derived_read)
                (flaw,) = checked([row], task=task).flaws
            assert flaw.torn is torn, (offset, unit)
            assert flaw.file.endswith(f"{offset * 20 // 2000 * 2000:020d}")


def test_units_that_wait_or_are_blank_are_kept_in_runs(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of messages that follow each other, in whatever windows they come; the last ones of too many
    runs become one. A unit with any part is there, be it wrong; one of a removed message is there
    and no flaw of the file."""
    monkeypatch.setattr(derived, "WAITING_MAX", 2)
    rows = [Row(10 + at, 3 + at) for at in range(5)]
    for there in product(["filed", "waiting", "blank"], repeat=5):
        space.units.clear()
        runs: dict[str, list[list[int]]] = {"waiting": [], "blank": []}
        filed = None
        for row, kind in zip(rows, there, strict=True):
            if kind != "waiting":
                space.put(
                    folder(row),
                    row.offset,
                    row.queue_unit if kind == "filed" else struct.pack(">qiq", 0, 0x7FFFFFFF, 0),
                )
                filed = row
            if kind != "filed":
                known = runs[kind]
                if known and (known[-1][1] + 1 == row.offset or len(known) >= 2):
                    known[-1][1], known[-1][3] = row.offset, row.index
                else:
                    known.append([row.offset, row.offset, row.index, row.index])
        for windows in windows_of(rows):
            check = checked(*windows)
            (run,) = check.runs()
            assert (check.flaws, run.waiting, run.blanks) == (
                [],
                runs["waiting"],
                runs["blank"],
            ), there
            assert (run.filed_offset, run.filed_index) == (
                (filed.offset, filed.index) if filed else (None, None)
            )
    for part in range(3):
        parts = [0, 0, 0]
        parts[part] = 1
        space.put(folder(rows[0]), 3, struct.pack(">qiq", *parts))
        check = checked(rows[:1])
        assert [flaw.rule for flaw in check.flaws] == ["queue.unit"] and check.runs()[
            0
        ].waiting == []


def test_consume_queues_that_end_early_or_cannot_be_read(space: Space) -> None:
    """What is not there waits, also half a unit."""
    rows = [Row(10 + at, 3 + at) for at in range(3)]
    file_units(space, rows)
    for kept in (0, 19):
        space.end = 4 * 20 + kept
        check = checked(rows)
        assert check.flaws == [] and check.runs()[0].waiting == [[4, 5, 11, 12]]
    space.error = OSError(5, "Input/output error")
    assert checked(rows).flaws == [queue_flaw("file.read", rows[0], 0, 20, "Input/output error")]


def density(row: Row, expected: int, measures: tuple[tuple[str, int, int], ...] = ()) -> Flaw:
    rule = "record.queue-offset" if row.offset > expected else "record.queue-repeat"
    proof = f"queue offset {row.offset} of {row.topic}/{row.queue} follows {expected - 1}"
    file = f"g1/dledger-n1/data/{BASE:020d}"
    return Flaw(rule, file, row.index, row.at + 68, row.at + 76, proof, measures=measures)


def test_queue_offsets_are_dense(space: Space) -> None:
    """In any windows. Those that damaged entries in between may have had are explained by these."""
    for first, second, damaged, others in product((5, 6), (3, 5, 6, 7, 8, 9), range(3), range(2)):
        start = Row(11, first)
        between = [Row(12 + at, 0, sound=False) for at in range(damaged)]
        between += [Row(12 + damaged + at, 1 + at, queue=7) for at in range(others)]
        rows = [
            Row(10, 0, queue=7),
            start,
            *between,
            Row(12 + len(between), second),
            Row(13 + len(between), second + 1),
        ]
        file_units(space, [row for row in rows if row.sound])
        missing = second - first - 1
        measures = (
            ((f"g1/dledger-n1/data/{BASE:020d}", start.at, rows[-2].at + 48),)
            if 0 < missing <= damaged
            else ()
        )
        expected = [] if missing == 0 else [density(rows[-2], first + 1, measures)]
        for windows in windows_of(rows):
            check = checked(*windows)
            assert [flaw for flaw in check.flaws if flaw.rule.startswith("record.")] == expected, (
                rows
            )
            run = next(run for run in check.runs() if run.queue == 1)
            assert (run.first, run.last, run.count) == (first, second + 1, 3)
        space.units.clear()


def test_a_lite_topic_may_begin_anew(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a multiple of the step, in the window of its last message or in a later one."""
    monkeypatch.setattr(derived, "REACH_MAX", 10)
    for topic, offset in product(("L$x", "t"), (300_000, 300_001)):
        rows = [Row(10, 5, topic=topic), Row(11, offset, topic=topic)]
        file_units(space, rows)
        for windows in ([rows], [rows[:1], rows[1:]]):
            assert checked(*windows).flaws == (
                [] if (topic, offset) == ("L$x", 300_000) else [density(rows[1], 6)]
            )
        again = Row(12, offset + 2, topic=topic)
        file_units(space, [again])
        assert checked([*rows, again]).flaws[-1] == density(again, offset + 1)
        space.units.clear()


def test_a_damaged_queue_offset_is_not_followed(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "REACH_MAX", 10)
    rows = [Row(10, 5), Row(11, 1 << 40), Row(12, 7), Row(13, -3)]
    file_units(space, rows)
    check = checked(rows)
    assert [flaw.index for flaw in check.flaws] == [11, 12, 13] and all(
        "queue-" in flaw.rule for flaw in check.flaws
    )
    assert checked([]).runs() == [] and checked([replace(rows[0], sound=False)]).runs() == []


# ------------------------------------------------------------------------------------------------- behind the last unit


def write_space(path: Path, files: dict[int, bytes]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for base, content in files.items():
        (path / f"{base:020d}").write_bytes(content)


@pytest.mark.parametrize("running", [False, True])
def test_the_end_of_derived_files(tmp_path: Path, running: bool) -> None:
    """Of any of them, wherever the last byte is; of a running replica, whose files continue, it is
    not looked for."""
    task = replace(TASK, root=str(tmp_path / "g1"), end_pos=5 if running else None)
    shown = "g1/q"
    for number, (size, place) in enumerate(product((0, 9, 10, 11), (None, 0, 4, 8))):
        path = tmp_path / "g1" / "q" / str(number)
        content = bytearray(size)
        if place is not None and place < size:
            content[place] = 7
        write_space(path, {20: bytes(10), 30: bytes(content), 50: bytes(10)})
        report = space_tail(task, f"q/{number}", 10)
        file = f"{shown}/{number}/{30:020d}"
        wrong = (
            [
                Flaw(
                    "file.length",
                    file,
                    None,
                    min(size, 10),
                    max(size, 10),
                    f"{size} bytes instead of 10",
                )
            ]
            if size != 10
            else []
        )
        used = 30 + place + 1 if place is not None and place < size and not running else 0
        assert report == TailReport(
            f"q/{number}", used, f"{30 if used else 0:020d}", wrong, 20, [(40, 50)]
        )


def test_names_of_derived_files(tmp_path: Path) -> None:
    """A file whose offset is no multiple belongs to none; one that cannot be read is a finding."""
    task = replace(TASK, root=str(tmp_path / "g1"))
    write_space(tmp_path / "g1" / "q", {5: b"x", 10: bytes(10), 17: b"x"})
    (tmp_path / "g1" / "q" / f"{20:020d}").symlink_to(tmp_path / "nowhere")
    report = space_tail(task, "q", 10)
    names = [
        Flaw("file.name", f"g1/q/{base:020d}", None, 0, 0, "the offset is no multiple of 10")
        for base in (5, 17)
    ]
    unread = Flaw("file.read", f"g1/q/{20:020d}", None, 0, 10, "No such file or directory")
    assert report == TailReport("q", 0, f"{0:020d}", [*names, unread], 10, [])
    assert len(numbered_files(str(tmp_path / "g1" / "q"))) == 4
    assert space_tail(task, "none", 10) == TailReport("none", 0, f"{0:020d}", [])


def test_a_file_of_a_running_replica_that_was_removed_since_it_was_listed(tmp_path: Path) -> None:
    """It is not there: whether the log needs it is checked later. The same holds for one that would
    be behind a gap."""
    task = replace(TASK, root=str(tmp_path / "g1"), end_pos=5)
    write_space(tmp_path / "g1" / "q", {10: bytes(10), 20: bytes(10), 40: bytes(10)})
    for base in (0, 30):
        (tmp_path / "g1" / "q" / f"{base:020d}").symlink_to(tmp_path / "nowhere")
    assert space_tail(task, "q", 10) == TailReport("q", 0, f"{0:020d}", [], 10, [(30, 40)])


def test_all_derived_files_of_a_replica(tmp_path: Path) -> None:
    """Index files, then every queue; what is no folder is no queue."""
    task = replace(TASK, root=str(tmp_path / "g1"))
    write_space(tmp_path / "g1" / "dledger-n1" / "index", {0: bytes([1]) * 128})
    for topic, queue in (("b", "0"), ("a", "1"), ("a", "0")):
        write_space(tmp_path / "g1" / "consumequeue" / topic / queue, {0: bytes([1]) * 60})
    (tmp_path / "g1" / "consumequeue" / "a" / "notes").touch()
    found = list(tails(task))
    folders = ["dledger-n1/index", "consumequeue/a/0", "consumequeue/a/1", "consumequeue/b/0"]
    assert found == [
        TailReport(folder, 128 if at == 0 else 60, f"{0:020d}", [])
        for at, folder in enumerate(folders)
    ]
