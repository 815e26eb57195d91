"""The key index of a small log, made by a second writer of docs/format.md §14: every index that a
node may have passes, and what differs is found at its place."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks import key_index
from ledgermq.audit.checks.key_index import WHOLE, check_keys, key_looks
from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading import key_files
from ledgermq.audit.reading.entries import read_entries
from ledgermq.audit.rules import Flaw
from tests.audit.damage_cases import CREATED, flip
from tests.audit.log_writer import (
    Message,
    Writer,
    checksum,
    election,
    java_hash,
    membership,
    sealed,
)

SLOTS, UNITS = 3, 5
DATA_BYTES = 1024
COUNTS = (1, 2, 0, 3, 1, 1, 2, 0, 0, 1, 4, 1, 1)
"""The number of keys of each message."""
HEAD = 40


@dataclass(frozen=True)
class Key:
    """A key of the log: its hash, its entry, and place and time of that."""

    hash: int
    index: int
    pos: int
    ms: int


@dataclass(frozen=True)
class Note:
    """What the position says of a file, and the keys in it."""

    name: str
    slots: int
    units: int
    first_index: int
    first_rows: int
    keys: tuple[Key, ...]
    begin_ms: int

    @property
    def full(self) -> bool:
        return len(self.keys) + 1 == self.units

    def content(self) -> bytes:
        heads, units = [0] * self.slots, b""
        for number, key in enumerate(self.keys, 1):
            seconds = (
                min((key.ms - self.begin_ms) // 1000, (1 << 31) - 1) if self.begin_ms > 0 else 0
            )
            units += struct.pack(">iqii", key.hash, key.pos, seconds, heads[key.hash % self.slots])
            heads[key.hash % self.slots] = number
        ends = self.keys[0].ms, self.keys[-1].ms, self.keys[0].pos, self.keys[-1].pos
        head = struct.pack(">qqqqii", *ends, sum(map(bool, heads)), len(self.keys) + 1)
        return (head + struct.pack(f">{self.slots}i", *heads) + bytes(20) + units).ljust(
            HEAD + 4 * self.slots + 20 * self.units, b"\0"
        )

    def row(self) -> list[Any]:
        begin_ms, end_ms, begin_pos, end_pos, used, count = struct.unpack_from(
            ">qqqqii", self.content()
        )
        return [
            self.name, self.slots, self.units, self.first_index, self.first_rows, count, used, begin_ms, end_ms, begin_pos, end_pos
        ]  # fmt: skip

    def unit(self, number: int) -> int:
        return HEAD + 4 * self.slots + 20 * number

    def bloom(self) -> bytes:
        """The filter of the file, bit by bit."""
        count = max(1, (12 * self.units + 255) // 256)
        words = [[0] * 8 for _ in range(count)]
        for key in self.keys:
            mixed = key.hash * 0x9E3779B97F4A7C15 % (1 << 64)
            low = (mixed >> 8) & 0xFFFFFFFF
            salts = (
                0x2545F491,
                0x6C8E9CF5,
                0x8F1BBCDD,
                0xA0761D65,
                0xC2B2AE3D,
                0xD6E8FEB9,
                0xE7037ED1,
                0xFF51AFD7,
            )
            for word, salt in enumerate(salts):
                words[((mixed >> 32) * count) >> 32][word] |= 1 << ((low * salt % (1 << 32)) >> 27)
        blocks = b"".join(struct.pack(">8I", *block) for block in words)
        head = b"LMKB" + struct.pack(">iIII4x", 1, count, len(self.keys) + 1, checksum(blocks))
        return head + bytes(4) + struct.pack(">I", checksum(head)) + blocks


def message(number: int, count: int, time: int) -> Message:
    """One with an id and words, so many keys in all."""
    words = " ".join(f"word{number}.{at}" for at in range(count - 1))
    key = f"id-{number}" + (f"\2KEYS\1{words}" if words else "") if count else ""
    return Message("flights", b"x" * 60, 0, "", key, 0, time)


@dataclass
class Index:
    """A node with a key index, for tests to change."""

    base: Path
    counts: Sequence[int] = COUNTS
    units: int = UNITS
    slots: int = SLOTS
    left_out: int = 0
    """Keys at the end of the log that are not in the index yet."""
    back: int = 0
    """How many entries before its first message a file is said to begin."""
    clean: bool = True
    times: Callable[[int], int] = lambda number: CREATED + 700 * number
    notes: list[Note] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = Writer(self.base / "n1", data_bytes=DATA_BYTES)
        self.writer.append(membership(("n1",)))
        self.writer.append(election(1, "n1", self.times(0)))
        for number, count in enumerate(self.counts):
            self.writer.append(message(number, count, self.times(number)))
        self.writer.finish(clean=self.clean)
        self.root = self.writer.root
        self.keys = list(self.keys_of_log())
        kept = self.keys[: len(self.keys) - self.left_out]
        following = self.keys[len(kept)].index if self.left_out else len(self.writer.entries)
        for start in range(0, len(kept), self.units - 1):
            own = kept[start : start + self.units - 1]
            first = max(own[0].index - self.back, 2)
            # Files and the position begin with a batch of entries.
            first = following if first < following <= own[0].index else first
            rows = sum(first <= key.index for key in kept[:start])
            name = f"2026{start:013d}"
            self.notes.append(
                Note(name, self.slots, self.units, first, rows, tuple(own), own[0].ms)
            )
        last = self.writer.entries[following - 1]
        rows = sum(key.index >= following for key in kept)
        self.position: dict[str, Any] = {
            "v": 1, "log_id": self.writer.log_id, "next": following, "rows": rows, "chain": last.chain, "store_ms": last.message.time
        }  # fmt: skip
        (self.root / "index").mkdir()
        (self.root / "state" / "bloom").mkdir(parents=True)
        for note in self.notes:
            self.file(note).write_bytes(note.content())
            if note.full:
                self.bloom(note).write_bytes(note.bloom())
        self.place()

    def keys_of_log(self) -> Iterator[Key]:
        for number, (count, entry) in enumerate(
            zip(self.counts, self.writer.entries[2:], strict=True)
        ):
            for text in [f"id-{number}", *(f"word{number}.{at}" for at in range(count - 1))][
                :count
            ]:
                number_of_text = abs(java_hash(f"flights#{text}"))
                yield Key(
                    number_of_text % (1 << 31), entry.index, entry.pos + 48, entry.message.time
                )

    def file(self, note: Note) -> Path:
        return self.root / "index" / note.name

    def bloom(self, note: Note) -> Path:
        return self.root / "state" / "bloom" / note.name

    def place(self, files: Sequence[list[Any]] | None = None, **changes: object) -> int:
        """Write the position. Returns its length."""
        named = [note.row() for note in self.notes] if files is None else list(files)
        raw = sealed({**self.position, "files": named, **changes})
        return (self.root / "state" / "keyindex").write_bytes(raw)

    @property
    def replica(self) -> Replica:
        (replica,) = find_replicas(str(self.base / "n1"))
        return replica

    def check(self, replica: Replica | None = None) -> list[Flaw]:
        one = replica or self.replica
        return [flaw for name in key_looks(one.task(WHOLE)) for flaw in check_keys(one.task(name))]

    def told(self, replica: Replica | None = None) -> list[tuple[str, str, int | None, int, int]]:
        """Rule, file below the group, entry and bytes of each flaw; none is torn."""
        flaws = self.check(replica)
        assert not any(flaw.torn for flaw in flaws)
        return [
            (flaw.rule, flaw.file.removeprefix("g1/"), flaw.index, flaw.byte_from, flaw.byte_to)
            for flaw in flaws
        ]

    def hurt(self, index: int) -> None:
        """Damage the body of an entry; a second time, put it right again."""
        entry = self.writer.entries[index]
        flip(
            self.writer.log / "data" / f"{entry.pos - entry.pos % DATA_BYTES:020d}",
            entry.pos % DATA_BYTES + 140,
        )


POSITION = "state/keyindex"
FOLDERS, STRANGERS = ("index", "state/bloom"), ("20990000000000000", "other")
TOTAL = sum(COUNTS)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log, units and slots are read in small pieces."""
    read_log_by(monkeypatch, 700)
    monkeypatch.setattr(key_files, "UNITS_AT_ONCE", 3)
    monkeypatch.setattr(key_index, "SLOTS_AT_ONCE", 2)


def read_log_by(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(key_index, "read_entries", partial(read_entries, window_bytes=window))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_every_index_of_a_log_passes(tmp_path: Path) -> None:
    """Files of any length, of one key to all; however much of the log is indexed, also a part of a
    message's keys; wherever a file is said to begin; of a stopped and of a killed node."""
    cases = [*product((5, TOTAL + 1, TOTAL + 2), (0, 1, 3, TOTAL), (0, 2)), (2, 3, 0), (2, 0, 2)]
    for number, (units, left_out, back) in enumerate(cases):
        one = Index(
            tmp_path / str(number),
            units=units,
            left_out=left_out,
            back=back,
            slots=1 + number % 4,
            clean=number % 3 > 0,
        )
        assert one.told() == [], (units, left_out, back)


@pytest.mark.parametrize("first", [-1, 0, 1, CREATED])
@pytest.mark.parametrize("step", [0, 999, 10**15])
def test_the_seconds_of_units(tmp_path: Path, first: int, step: int) -> None:
    """From the first message of the file on, at most 2^31 - 1; 0 if the store time of that is not
    positive."""
    index = Index(tmp_path, counts=(1, 1, 1, 1, 1), times=lambda number: first + number // 2 * step)
    assert index.told() == []


def test_a_file_that_cannot_be_read(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a failing disk; and one that goes before it is opened, which the look at the whole
    names."""
    note = index.notes[1]
    for error, told in (
        (OSError(5, "Input/output error"), [("file.read", None, 0, len(note.content()))]),
        (FileNotFoundError(2, "No such file"), []),
    ):  # fmt: skip

        def fail(_root: str, _name: str, error: OSError = error) -> Any:
            raise error

        monkeypatch.setattr(key_index, "open_key_file", fail)
        found = check_keys(index.replica.task(note.name))
        assert [(flaw.rule, flaw.index, flaw.byte_from, flaw.byte_to) for flaw in found] == told
        assert all(flaw.file == f"g1/index/{note.name}" for flaw in found)


def test_looks(index: Index) -> None:
    """One of the whole, and one of each file that a valid position of this log names; another name
    is nothing."""
    task = index.replica.task
    assert key_looks(task(WHOLE)) == [WHOLE, *(note.name for note in index.notes)]
    (index.root / "index" / "20260000000000077").write_bytes(b"x")
    assert check_keys(task("20260000000000077")) == []
    (index.root / "index" / "20260000000000077").unlink()
    index.file(index.notes[0]).unlink()
    assert check_keys(task(index.notes[0].name)) == []
    for changes in ({"log_id": "another"}, {"v": 2}):
        index.place(**changes)
        assert key_looks(task(WHOLE)) == [WHOLE] and check_keys(task(index.notes[1].name)) == []
    (index.root / POSITION).unlink()
    assert key_looks(task(WHOLE)) == [WHOLE] and check_keys(task(index.notes[1].name)) == []


# ------------------------------------------------------------------------------------------------------------- position


def test_a_position_that_cannot_be_read(index: Index) -> None:
    """Without its checksum, its keys, or its rows; of another log; missing while there are
    files."""
    rows = [note.row() for note in index.notes]
    for bad in ({"rows": "1"}, {"v": 2}, {"store_ms": None}, {"log_id": "another"}):
        length = index.place(**bad)
        assert index.told() == [("keyindex.position", POSITION, None, 0, length)], bad
    path = index.root / POSITION
    path.write_bytes(b"{}")
    assert index.told() == [("keyindex.position", POSITION, None, 0, 2)]
    index.place(log_id="another")
    (index.root / "recovery.json").write_bytes(sealed({"former": ["another"]}))
    assert index.told() == []
    (index.root / "recovery.json").unlink()
    assert index.told(replace(index.replica, log_id=None)) == []
    path.unlink()
    assert index.told() == [("keyindex.position", POSITION, None, 0, 0)]
    path.mkdir()
    assert index.told() == [("file.read", POSITION, None, 0, 0)]
    path.rmdir()
    (index.root / "abort").touch()
    assert index.told() == []
    (index.root / "abort").unlink()
    for note in index.notes:
        index.file(note).unlink()
    assert index.told() == [] and len(rows) > 3


def test_the_last_entry_of_a_position(index: Index) -> None:
    """It has the chain CRC and the time of the entry before the next one, if that is there."""
    chain, ms, following = (
        index.position["chain"],
        index.position["store_ms"],
        index.position["next"],
    )
    length = len(index.writer.entries)
    assert following == length
    for changes, count in (
        ({"chain": chain ^ 1}, 1),
        ({"store_ms": ms + 1}, 1),
        ({"chain": chain ^ 1, "store_ms": ms - 1}, 2),
        ({}, 0),
    ):
        size = index.place(**changes)
        assert index.told() == [("keyindex.position", POSITION, following - 1, 0, size)] * count, (
            changes
        )
    index.place(chain=None, store_ms=7)
    assert index.told() == []
    index.place(chain=7, next=length + 5)
    assert index.told() == []
    # One that says less than the files have: their last keys are of later entries.
    empty = Index(index.base / "empty", left_out=TOTAL)
    for following in range(length):
        last = empty.writer.entries[following - 1]
        empty.place(next=following, chain=last.chain if following else None)
        assert empty.told() == (
            [
                (
                    "keyindex.position",
                    POSITION,
                    following - 1,
                    0,
                    empty.place(next=following, chain=last.chain),
                )
            ]
            if following and last.message.time != empty.position["store_ms"]
            else []
        ), following
        size = empty.place(next=following, chain=last.chain ^ 1, store_ms=last.message.time)
        assert empty.told() == (
            [("keyindex.position", POSITION, following - 1, 0, size)] if following else []
        ), following
    # Also where no index unit leads to the entry; a damaged entry tells nothing.
    shutil.rmtree(empty.writer.log / "index")
    for following in range(3, length):
        size = empty.place(
            next=following, chain=7, store_ms=empty.writer.entries[following - 1].message.time
        )
        assert empty.told() == [("keyindex.position", POSITION, following - 1, 0, size)], following
    empty.hurt(4)
    empty.place(next=5, chain=7)
    assert empty.told() == []


@pytest.mark.parametrize("left_out", [0, 3, 7])
def test_how_many_keys_a_position_says_are_there(tmp_path: Path, left_out: int) -> None:
    """Exactly those of the next entry that the files have, if the log can tell."""
    index = Index(tmp_path, left_out=left_out)
    following = index.position["next"]
    for more in (-1, 1):
        size = index.place(rows=index.position["rows"] + more)
        assert index.told() == [("keyindex.position", POSITION, following, 0, size)]
    index.hurt(index.notes[-1].keys[0].index)
    assert index.told() == []


def test_a_position_of_keys_and_no_file(index: Index) -> None:
    """Keys are in files."""
    for note in index.notes:
        index.file(note).unlink()
        index.bloom(note).unlink(missing_ok=True)
    size = index.place([], rows=1)
    assert index.told() == [("keyindex.position", POSITION, index.position["next"], 0, size)]
    index.place([], rows=0)
    assert index.told() == []


def test_the_rows_of_a_position(index: Index) -> None:
    """Each says what its file holds; all but the last are full and follow each other."""
    rows = [note.row() for note in index.notes]
    names = [
        "name",
        "slots",
        "units",
        "first index",
        "first rows",
        "count",
        "used",
        "begin ms",
        "end ms",
        "begin pos",
        "end pos",
    ]
    for at, field_at in product((0, 1, len(rows) - 1), (6, 7, 8, 9, 10)):
        changed = [list(row) for row in rows]
        changed[at][field_at] += 1
        size = index.place(changed)
        note = index.notes[at]
        key = note.keys[-1] if field_at in (8, 10) else note.keys[0]
        told = [found for found in index.told() if found[0] == "keyindex.position"]
        entry = note.first_index if field_at == 6 else key.index
        assert told == [("keyindex.position", POSITION, entry, 0, size)], names[field_at]
        # The header is right if it is the one of the units.
        assert field_at != 6 or index.told() == told
    for order in ([1, 0, *range(2, len(rows))], [0, 0, *range(1, len(rows))]):
        size = index.place([rows[at] for at in order])
        assert index.told()[0] == ("keyindex.position", POSITION, None, 0, size)
    for at, field_at, by in ((1, 3, -5), (1, 3, 50), (1, 4, -9)):
        changed = [list(row) for row in rows]
        changed[at][field_at] += by
        size = index.place(changed)
        assert (("keyindex.position", POSITION, None, 0, size) in index.told()) == (
            by != -9 or rows[0][3] == rows[1][3]
        )
    for at in range(len(rows)):
        changed = [list(row) for row in rows]
        changed[at][5] = 2
        size = index.place(changed)
        assert (("keyindex.position", POSITION, None, 0, size) in index.told()) == (
            at < len(rows) - 1
        )


def test_the_last_message_of_a_file_read_at_once(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is named, also where those before it were read with it."""
    read_log_by(monkeypatch, 1 << 20)
    for at, note in enumerate(index.notes):
        rows = [other.row() for other in index.notes]
        rows[at][10] += 1
        size = index.place(rows)
        told = [found for found in index.told() if found[0] == "keyindex.position"]
        assert told == [("keyindex.position", POSITION, note.keys[-1].index, 0, size)]


def test_the_log_without_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry of a file is then found among others. A file of the log with an impossible
    name is none of it."""
    for number, (back, window, units) in enumerate(((2, 700, 2), (4, 1 << 20, 5))):
        read_log_by(monkeypatch, window)
        one = Index(tmp_path / str(number), back=back, units=units)
        shutil.rmtree(one.writer.log / "index")
        assert one.told() == [], (back, window, units)
        data = one.writer.log / "data"
        shutil.copy(data / f"{0:020d}", data / f"{7:020d}")
        assert one.told() == [], (back, window, units)


def test_files_that_are_missing_short_or_too_many(index: Index) -> None:
    """No byte of a file of another length counts; what a stopped node keeps beside its index is
    named."""
    for note in index.notes[:2]:
        kept = note.content()
        index.file(note).unlink()
        assert index.told() == [
            ("keyindex.missing", f"index/{note.name}", note.first_index, 0, len(kept))
        ]
        for raw in (kept[:-1], kept + b"x"):
            index.file(note).write_bytes(raw)
            size = max(len(raw), len(kept))
            assert index.told() == [
                ("file.length", f"index/{note.name}", note.first_index, 0, size)
            ]
        index.file(note).write_bytes(kept)
    for note in index.notes[:2]:
        index.file(note).unlink()
    assert [found[:3] for found in index.told()] == [
        ("keyindex.missing", f"index/{note.name}", note.first_index) for note in index.notes[:2]
    ]
    for note in index.notes[:2]:
        index.file(note).write_bytes(note.content())
    for folder, name in product(FOLDERS, STRANGERS):
        (index.root / folder / name).write_bytes(b"xyz")
    extra = [
        ("keyindex.extra", f"{folder}/{name}", None, 0, 3)
        for folder in FOLDERS
        for name in STRANGERS
    ]
    assert index.told() == extra
    (index.root / "abort").touch()
    assert index.told() == []


# ---------------------------------------------------------------------------------------------------------------- files


def test_every_byte_of_a_file(index: Index) -> None:
    """Header, slots, unit 0, units, what is behind them, and the filter: the rule, the entry and
    just this byte. Of the last file of a killed node only units count."""
    for note, killed in product((index.notes[1], index.notes[-1]), (False, True)):
        if killed:
            (index.root / "abort").touch()
        task = index.replica.task(note.name)
        path, size = index.file(note), len(note.content())
        for at in (
            0,
            15,
            23,
            39,
            HEAD,
            HEAD + 5,
            note.unit(0) - 1,
            note.unit(0),
            *range(note.unit(1) - 1, note.unit(2) + 1),
            size - 1,
        ):
            flip(path, at)
            number = (at - note.unit(0)) // 20
            held = at >= note.unit(1) and number <= len(note.keys)
            rule = (
                "header"
                if at < HEAD
                else "slot"
                if at < note.unit(0)
                else "unit"
                if held
                else "tail"
            )
            start = at - at % 4 if rule == "slot" else at
            entry = note.keys[number - 1].index if held else None
            expected = [(f"keyindex.{rule}", entry, start, start + (4 if rule == "slot" else 1))]
            found = [
                (flaw.rule, flaw.index, flaw.byte_from, flaw.byte_to) for flaw in check_keys(task)
            ]
            assert found == ([] if killed and not note.full and not held else expected), (
                note.full,
                killed,
                at,
            )
            flip(path, at)
        (index.root / "abort").unlink(missing_ok=True)


def test_several_bytes(index: Index) -> None:
    """From the first that differs to the last, in each unit, the header, and what no unit takes."""
    note = index.notes[0]
    for at in (
        2,
        37,
        note.unit(0) + 3,
        note.unit(0) + 9,
        note.unit(2) + 3,
        note.unit(2) + 6,
        note.unit(2) + 17,
    ):
        flip(index.file(note), at)
    found = [(flaw.rule, flaw.byte_from, flaw.byte_to) for flaw in index.check()]
    expected = [("keyindex.unit", note.unit(2) + 3, note.unit(2) + 18), ("keyindex.header", 2, 38)]
    assert found == [*expected, ("keyindex.tail", note.unit(0) + 3, note.unit(0) + 10)]


def test_the_filter_of_a_full_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of its hashes; a missing one is made again. Many units of a slot at once are in
    their order."""
    monkeypatch.setattr(key_files, "UNITS_AT_ONCE", 1 << 16)
    index = Index(tmp_path, counts=(54,) * 8, units=427, slots=7)
    note, other = index.notes[0], index.notes[1]
    path, good = index.bloom(note), note.bloom()
    shown = f"state/bloom/{note.name}"
    assert len(good) == 32 + 21 * 32 and index.told() == []
    task = index.replica.task(note.name)

    def told() -> list[tuple[str, str, int, int]]:
        return [
            (flaw.rule, flaw.file.removeprefix("g1/"), flaw.byte_from, flaw.byte_to)
            for flaw in check_keys(task)
        ]

    for places in ((0,), (31,), (32,), (len(good) - 1,), (3, 50, 77)):
        for place in places:
            flip(path, place)
        assert told() == [("keyindex.filter", shown, places[0], places[-1] + 1)]
        path.write_bytes(good)
    for raw in (good[:-5], good + b"12345", b""):
        path.write_bytes(raw)
        assert told() == [
            ("keyindex.filter", shown, min(len(raw), len(good)), max(len(raw), len(good)))
        ]
    path.write_bytes(b"xyz" + good[3:-1])
    assert told() == [("keyindex.filter", shown, 0, 3)]
    path.unlink()
    assert told() == []
    path.mkdir()
    assert told() == [("file.read", shown, 0, 0)]
    path.rmdir()
    # The filter of a file that is not full is nothing that counts, but nothing that a stopped node
    # has either.
    index.bloom(other).write_bytes(b"x")
    (index.root / "abort").touch()
    assert index.told() == []


# ------------------------------------------------------------------------------------------------------ damage of the log


@pytest.mark.parametrize(
    ("clean", "back", "window"),
    [(True, 0, 300), (True, 2, 700), (False, 0, 1 << 20), (False, 2, 300)],
)
def test_damage_of_the_log_is_no_finding_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool, back: int, window: int
) -> None:
    """Whatever entries cannot be read, the units of the others are still held against the log. Of a
    killed node the last ones may be units of entries that a power cut removed, which is no
    damage."""
    read_log_by(monkeypatch, window)
    index = Index(tmp_path, counts=(1, 2, 0, 3, 1, 2), back=back, clean=clean, left_out=1)
    for hurt in (chosen for count in range(1, 4) for chosen in combinations(range(2, 8), count)):
        for entry in hurt:
            index.hurt(entry)
        last = max({*range(8)} - {*hurt})
        lost = [] if clean else [note for note in index.notes if note.keys[-1].index > last]
        found = [
            (flaw.rule, flaw.file[-17:], flaw.index, flaw.byte_to, flaw.torn)
            for flaw in index.check()
        ]
        assert found == [
            ("keyindex.unit", note.name, None, note.unit(len(note.keys) + 1), True) for note in lost
        ], hurt
        for entry in hurt:
            index.hurt(entry)


def test_a_wrong_unit_beside_a_damaged_entry(tmp_path: Path) -> None:
    """Every unit of every intact entry; of a damaged one only its chain can be checked."""
    index = Index(tmp_path, counts=(1, 2, 0, 3, 1, 2), units=6)
    for damaged in range(2, 8):
        index.hurt(damaged)
        for note in index.notes:
            for number, key in enumerate(note.keys, 1):
                at = note.unit(number) + 14
                flip(index.file(note), at)
                found = [
                    (flaw.rule, flaw.index, flaw.byte_from, flaw.byte_to)
                    for flaw in check_keys(index.replica.task(note.name))
                ]
                assert found == (
                    [] if key.index == damaged else [("keyindex.unit", key.index, at, at + 1)]
                ), (damaged, key.index)
                flip(index.file(note), at)
                at = note.unit(number) + 19
                flip(index.file(note), at)
                found = [
                    (flaw.rule, flaw.index, flaw.byte_from, flaw.byte_to)
                    for flaw in check_keys(index.replica.task(note.name))
                ]
                entry = note.first_index if key.index == damaged else key.index
                assert found == [("keyindex.unit", entry, at, at + 1)], (damaged, key.index)
                flip(index.file(note), at)
        index.hurt(damaged)


def test_a_damaged_first_entry_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which keys of the following ones are in the previous file is then told by the place of the
    file's first message: a wrong unit, or a wrong place, is found as itself."""
    read_log_by(monkeypatch, 1 << 20)
    index = Index(tmp_path, counts=(1,) * 12, units=4, back=2)
    rows = [note.row() for note in index.notes]
    for at, note in enumerate(index.notes[1:], 1):
        path, shown = index.file(note), f"index/{note.name}"
        index.hurt(note.first_index)
        assert index.told() == []
        raw = note.content()
        start = note.unit(2) + 4
        path.write_bytes(raw[:start] + struct.pack(">q", note.keys[0].pos) + raw[start + 8 :])
        assert [found[:3] for found in index.told()] == [
            ("keyindex.unit", shown, note.keys[1].index)
        ]
        path.write_bytes(raw)
        changed = [list(row) for row in rows]
        changed[at][9] -= 1
        index.place(changed)
        assert [found[:3] for found in index.told()] == [
            ("keyindex.position", POSITION, note.keys[0].index), ("keyindex.header", shown, None)
        ]  # fmt: skip
        index.place()
        index.hurt(note.first_index)


def test_the_place_of_a_damaged_first_message(tmp_path: Path) -> None:
    """If the position has a wrong one, only the header differs; if its unit has, this may be any
    place before the next message."""
    index = Index(tmp_path)
    note = index.notes[0]
    index.hurt(note.first_index)
    rows = [other.row() for other in index.notes]
    rows[0][9] += 10**6
    index.place(rows)
    assert [found[:2] for found in index.told()] == [("keyindex.header", f"index/{note.name}")]
    index.place()
    raw, start = note.content(), note.unit(1) + 4
    for pos in (0, note.keys[1].pos - 96, note.keys[1].pos - 1):
        index.file(note).write_bytes(raw[:start] + struct.pack(">q", pos) + raw[start + 8 :])
        assert index.told() == [], pos
    assert note.keys[1].index == note.first_index + 1


def test_log_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Their units are passed over."""
    for number, gone in enumerate(
        chosen for count in (1, 2) for chosen in combinations(range(4), count)
    ):
        index = Index(tmp_path / str(number))
        files = sorted((index.writer.log / "data").iterdir())
        for at in gone:
            files[at].unlink()
            files[at].mkdir()
        assert [found for found in index.told() if found[0] != "file.read"] == [], gone


@pytest.mark.parametrize("clean", [True, False])
def test_keys_that_the_log_does_not_have(tmp_path: Path, clean: bool) -> None:
    """Units of entries that a killed node's log lost in a power cut. Of a stopped one the position
    tells it, where the file's first entries are lost too."""
    index = Index(tmp_path, clean=clean)
    for number in range(len(index.writer.entries) - 1, 1, -1):
        pos = index.writer.entries[number].pos
        for path in (index.writer.log / "data").iterdir():
            keep = max(pos - int(path.name), 0)
            path.write_bytes(path.read_bytes()[:keep].ljust(DATA_BYTES, b"\0"))
        found = [flaw for flaw in index.check() if flaw.rule == "keyindex.unit"]
        lost = [
            note
            for note in index.notes
            if note.keys[-1].index >= number and (not clean or note.first_index < number)
        ]
        starts = [note.unit(sum(key.index < number for key in note.keys) + 1) for note in lost]
        assert [
            (flaw.file[-17:], flaw.byte_from, flaw.byte_to, flaw.torn, flaw.index) for flaw in found
        ] == [
            (note.name, start, note.unit(len(note.keys) + 1), not clean, None)
            for note, start in zip(lost, starts, strict=True)
        ]


def test_a_trimmed_log(tmp_path: Path) -> None:
    """The first file that is left has units of messages that are gone."""
    for number, file in enumerate((1, 2, 3)):
        index = Index(tmp_path / str(number), units=4)
        begin = index.writer.trim(file)
        gone = [note for note in index.notes if note.keys[-1].pos < begin.pos]
        for note in gone:
            index.file(note).unlink()
            index.bloom(note).unlink()
        index.notes = index.notes[len(gone) :]
        index.place()
        assert index.told() == [], file
        note = index.notes[0]
        for at, key in enumerate(note.keys, 1):
            flip(index.file(note), note.unit(at) + 14)
            found = [(flaw.rule, flaw.index, flaw.byte_from) for flaw in index.check()]
            assert found == (
                [("keyindex.unit", key.index, note.unit(at) + 14)]
                if key.index >= begin.index
                else []
            ), (file, at)
            flip(index.file(note), note.unit(at) + 14)
