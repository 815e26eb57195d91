"""Comparing the key index with the log (docs/format.md §14): every key of every message has its
unit, and there are no other units.

One look checks the position as a whole; one look per file reads the part of the log that the file
covers. Every look reads the position first, and then the log as far as the position says: in a
running replica both grow meanwhile, and the position may be before the marker or behind it. The
units of a file are the keys of the log in order, so both are walked side by side. Where the log is
damaged, or begins later, units are skipped by the position they name, and only their chains can be
checked. Bytes behind the recorded position (§14.3) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.reading.begin import former_logs
from ledgermq.audit.reading.decode import HEADER_BYTES, I64, crc, find_stain
from ledgermq.audit.reading.entries import Entries, read_entries
from ledgermq.audit.reading.files import AnyFile, exists, names_in, read_if_there, size_of, stat_of
from ledgermq.audit.reading.key_files import (
    KEY_HEADER,
    KEY_UNIT,
    SLOT_BYTES,
    KeyNote,
    KeyPosition,
    key_file_names,
    open_key_file,
    read_key_units,
    read_position,
)
from ledgermq.audit.reading.keys import keys_of
from ledgermq.audit.reading.ranges import Span, needed
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw, coalesce

WHOLE = f"{0:020d}"
"""The name of the look at the position as a whole."""
SECONDS_MAX = (1 << 31) - 1
SLOTS_AT_ONCE = 1 << 18
FLAWS_MAX = 500


def key_looks(task: LogFile) -> list[str]:
    """The names of the looks: the whole, and each valid file."""
    position = _believed(task)
    return [WHOLE, *(note.name for note in (position.notes if position is not None else ()))]


def check_keys(task: LogFile) -> list[Flaw]:
    """Run one of `key_looks`, named by the task."""
    if task.name == WHOLE:
        return list(_check_position(task))
    position = _believed(task)
    notes = [] if position is None else [note for note in position.notes if note.name == task.name]
    if position is None or not notes:
        return []
    try:
        with open_key_file(task.root, task.name) as file:
            if file.size != notes[0].file_bytes:
                return []
            return KeyFileCheck(task, file, notes[0], position).run()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [
            Flaw(
                "file.read",
                _shown(task, task.name),
                index=None,
                byte_from=0,
                byte_to=notes[0].file_bytes,
                proof=f"{error.strerror}",
            )
        ]


def _shown(task: LogFile, name: str) -> str:
    return f"{task.group}/index/{name}"


def _is_clean(task: LogFile) -> bool:
    """Whether the node was stopped: the disk then has everything that the node wrote."""
    return task.end_pos is None and not exists(f"{task.root}/abort")


def _believed(task: LogFile) -> KeyPosition | None:
    """The position, if it is valid; an index of another log does not count, because the node starts
    it again."""
    try:
        position = read_position(task.root)
    except (ValueError, OSError):
        return None
    return position if position is not None and position.log_id == task.log_id else None


def _check_position(task: LogFile) -> Iterator[Flaw]:
    """Check the position itself, and the existence of files."""
    path = f"{task.root}/state/keyindex"
    shown = f"{task.group}/state/keyindex"
    clean = _is_clean(task)
    try:
        position = read_position(task.root)
    except ValueError as error:
        yield Flaw(
            "keyindex.position",
            shown,
            index=None,
            byte_from=0,
            byte_to=size_of(path),
            proof=str(error),
        )
        return
    except OSError as error:
        yield Flaw(
            "file.read", shown, index=None, byte_from=0, byte_to=0, proof=f"{error.strerror}"
        )
        return
    key_files = key_file_names(task.root)
    if position is None:
        if key_files and clean:
            yield Flaw(
                "keyindex.position",
                shown,
                index=None,
                byte_from=0,
                byte_to=0,
                proof="the file is missing, and there are files of a key index",
            )
        return
    if position.log_id != task.log_id:
        # After a recovery gave the log a new id, the next start creates a new index.
        if task.log_id and position.log_id not in former_logs(task.root):
            proof = f"it belongs to log {position.log_id}, the replica to {task.log_id}"
            yield Flaw(
                "keyindex.position",
                shown,
                index=None,
                byte_from=0,
                byte_to=size_of(path),
                proof=proof,
            )
        return
    yield from _check_last(task, position, shown)
    if position.rows and not position.notes:
        proof = (
            f"it says that {position.rows} keys of entry {position.next_index} are in the files,"
            " and names no file"
        )
        yield Flaw(
            "keyindex.position",
            shown,
            index=position.next_index,
            byte_from=0,
            byte_to=size_of(path),
            proof=proof,
        )
    names = [note.name for note in position.notes]
    firsts = [(note.first_index, note.first_rows) for note in position.notes]
    full = all(note.full for note in position.notes[:-1])
    if sorted(set(names)) != names or sorted(firsts) != firsts or not full:
        yield Flaw(
            "keyindex.position",
            shown,
            index=None,
            byte_from=0,
            byte_to=size_of(path),
            proof="its files do not follow each other",
        )
    lengths = {note.name: stat_of(f"{task.root}/index/{note.name}") for note in position.notes}
    # A node names a file no more before it removes it.
    known = _believed(task) if None in lengths.values() else position
    still = {note.name for note in known.notes} if known is not None else set()
    for note in position.notes:
        status = lengths[note.name]
        if status is None:
            if note.name in still:
                yield Flaw(
                    "keyindex.missing",
                    _shown(task, note.name),
                    index=note.first_index,
                    byte_from=0,
                    byte_to=note.file_bytes,
                    proof="the file is missing",
                )
        elif status.size != note.file_bytes:
            # No byte of such a file counts.
            bounds = 0, max(status.size, note.file_bytes)
            proof = f"{status.size} bytes instead of {note.file_bytes}"
            yield Flaw("file.length", _shown(task, note.name), note.first_index, *bounds, proof)
    if clean:
        for folder in ("index", "state/bloom"):
            for name in names_in(f"{task.root}/{folder}"):
                if name not in names:
                    proof = "the position of the key index does not name it"
                    yield Flaw(
                        "keyindex.extra",
                        f"{task.group}/{folder}/{name}",
                        index=None,
                        byte_from=0,
                        byte_to=size_of(f"{task.root}/{folder}/{name}"),
                        proof=proof,
                    )


def _check_last(task: LogFile, position: KeyPosition, shown: str) -> Iterator[Flaw]:
    """The position has the chain CRC and the store time of the last indexed entry, if the log has
    that entry."""
    last, size = position.next_index - 1, size_of(f"{task.root}/state/keyindex")
    for file, start in (
        needed(_log_files(task), Span(last, last))
        if position.chain is not None and last >= 0
        else ()
    ):
        try:
            for entries in read_entries(file, start):
                at = last - int(entries.index[0])
                if (
                    not 0 <= at < len(entries)
                    or int(entries.index[at]) != last
                    or not entries.sound[at]
                ):
                    continue
                for name, has, wants in (
                    ("chain CRC", position.chain, int(entries.field("chain_crc")[at])),
                    ("store time", position.store_ms, int(entries.field("store_ms")[at])),
                ):
                    if has != wants:
                        proof = f"it remembers {name} {has} of entry {last}, the log has {wants}"
                        yield Flaw(
                            "keyindex.position",
                            shown,
                            index=last,
                            byte_from=0,
                            byte_to=size,
                            proof=proof,
                        )
                return
        except OSError:
            # The scan of that log file reports it as `file.read`.
            return


@dataclass(slots=True)
class KeyFileCheck:
    """One file and its part of the log. `number` is the next unit to check."""

    task: LogFile
    file: AnyFile
    note: KeyNote
    position: KeyPosition
    number: int = 1
    ahead: int = 0
    """Units so far of keys from the position's next entry on."""
    passed_over: bool = False
    """Units were passed over, so `ahead` may lack some."""
    flaws: list[Flaw] = field(default_factory=list)
    table: NDArray[np.int32] = field(init=False)
    """The newest unit so far, by slot."""
    bits: NDArray[np.uint32] = field(init=False)
    """The filter so far (§14.2)."""

    def __post_init__(self) -> None:
        self.table = np.zeros(self.note.slots, np.int32)
        self.bits = np.zeros(
            (-(-12 * self.note.units // 256) if self.note.full else 0, 8), np.uint32
        )

    def run(self) -> list[Flaw]:
        clean = _is_clean(self.task)
        self._go_through()
        used = int(np.count_nonzero(self.table))
        if self.number >= self.note.count and self.note.used != used:
            self._misnamed(
                f"its units take {used} slots, not {self.note.used}", self.note.first_index
            )
        if self.note is self.position.notes[-1] and not self.passed_over:
            self._check_rows()
        if self.note.full or clean:
            self._check_head(used)
            self._check_slots()
            self._check_rest()
        if self.note.full:
            self._check_filter()
        return coalesce(self.flaws, FLAWS_MAX)

    def _check_rows(self) -> None:
        """A start skips as many keys of the next entry as the position says are there already."""
        has, note = self.position.rows, self.note
        wants = self.ahead + (
            note.first_rows if note.first_index >= self.position.next_index else 0
        )
        if has != wants:
            proof = (
                f"it says that {has} keys from entry {self.position.next_index} on are in the"
                f" files, they have {wants}"
            )
            shown, size = (
                f"{self.task.group}/state/keyindex",
                size_of(f"{self.task.root}/state/keyindex"),
            )
            self.flaws.append(
                Flaw(
                    "keyindex.position",
                    shown,
                    index=self.position.next_index,
                    byte_from=0,
                    byte_to=size,
                    proof=proof,
                )
            )

    def _flaw(self, rule: str, start: int, end: int, proof: str, index: int | None = None) -> None:
        if len(self.flaws) >= 100 * FLAWS_MAX:
            self.flaws = coalesce(self.flaws, FLAWS_MAX)
        self.flaws.append(
            Flaw(
                rule,
                _shown(self.task, self.note.name),
                index=index,
                byte_from=start,
                byte_to=end,
                proof=proof,
            )
        )

    # --------------------------------------------------------------------------------------------------- units and log

    def _go_through(self) -> None:
        """Walk every unit, together with the log."""
        note = self.note
        passed: int | None = note.first_rows
        fresh, last = True, -1
        for task, start in needed(_log_files(self.task), Span(note.first_index, None)):
            if self.number >= note.count:
                break
            try:
                for entries in read_entries(task, start):
                    fresh = fresh or int(entries.index[0]) != last + 1
                    last = int(entries.index[-1])
                    passed, fresh = self._beside(entries, passed, fresh)
                    if self.number >= note.count:
                        break
            except OSError:
                fresh = True
        if self.number >= note.count:
            return
        left = note.count - self.number
        bounds = note.unit_at(self.number), note.unit_at(note.count)
        self._pass_over(None)
        clean = _is_clean(self.task)
        if fresh and clean:
            # The log continues with unreadable entries.
            return
        # If a power cut removed the entries of these units from the log, the next start creates a
        # new index.
        proof = f"the log has no keys for the last {left} units"
        self.flaws.append(
            Flaw(
                "keyindex.unit", _shown(self.task, note.name), None, *bounds, proof, torn=not clean
            )
        )

    def _beside(self, entries: Entries, passed: int | None, fresh: bool) -> tuple[int | None, bool]:
        """Check the units of some entries. `passed`: how many keys of the file's first entries are
        in the previous file; None once some of these are unreadable. `fresh`: nothing is known
        about the entries before these. Returns both values for the next entries."""
        keys = keys_of(entries)
        sound = entries.sound & (entries.index >= self.note.first_index)
        edges = np.flatnonzero(np.diff(sound.astype(np.int8), prepend=0, append=0))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if (fresh or begin > 0) and int(entries.index[begin]) > self.note.first_index:
                self._pass_over(int(entries.pos[begin]) + HEADER_BYTES)
                passed = None
            low, high = map(int, np.searchsorted(keys.row, [begin, end]))
            if passed is None:
                low += self._held_before(entries.pos[keys.row[low:high]] + HEADER_BYTES)
            else:
                held = min(passed, high - low)
                low, passed = low + held, passed - held
            rows = keys.row[low:high]
            self._expect(
                keys.hashes[low:high],
                entries.pos[rows] + HEADER_BYTES,
                entries.field("store_ms")[rows],
                entries.index[rows],
            )
        return passed, not bool(sound[-1])

    def _held_before(self, pos: I64) -> int:
        """How many of these keys before the first unit are in the previous file: those of messages
        before this file's first message, and those of that message without a unit here."""
        if self.number > 1:
            return 0
        low, high = map(int, np.searchsorted(pos, [self.note.begin_pos, self.note.begin_pos + 1]))
        units = next(read_key_units(self.file, self.note), None)
        units_held = 0 if units is None else int((units[1]["pos"] == self.note.begin_pos).sum())
        return high - min(units_held, high - low)

    def _expect(self, hashes: I64, pos: I64, ms: I64, index: I64) -> None:
        """Check that the next units are these keys."""
        note = self.note
        count = min(len(hashes), note.count - self.number)
        seconds = (
            np.clip((ms - note.begin_ms) // 1000, 0, SECONDS_MAX)
            if note.begin_ms > 0
            else np.zeros(len(ms), np.int64)
        )
        if (
            count
            and self.number == 1
            and (note.begin_ms, note.begin_pos) != (int(ms[0]), int(pos[0]))
        ):
            self._misnamed(
                f"its first message has store time {int(ms[0])} and position {int(pos[0])}",
                int(index[0]),
            )
        done = 0
        for numbers, units in read_key_units(self.file, note, self.number, self.number + count):
            part = slice(done, done + len(units))
            wanted = np.empty(len(units), KEY_UNIT)
            wanted["hash"], wanted["pos"], wanted["seconds"] = (
                hashes[part],
                pos[part],
                seconds[part],
            )
            wanted["previous"] = self._chain(numbers, hashes[part])
            self._compare(numbers, units, wanted, index[part])
            done += len(units)
        self.number += count
        self.ahead += int((index[:count] >= self.position.next_index).sum())
        if (
            count
            and self.number == note.count
            and (note.end_ms, note.end_pos) != (int(ms[count - 1]), int(pos[count - 1]))
        ):
            at = count - 1
            self._misnamed(
                f"its last message has store time {int(ms[at])} and position {int(pos[at])}",
                int(index[at]),
            )

    def _misnamed(self, difference: str, index: int) -> None:
        shown = f"{self.task.group}/state/keyindex"
        size = size_of(f"{self.task.root}/state/keyindex")
        self.flaws.append(
            Flaw(
                "keyindex.position",
                shown,
                index=index,
                byte_from=0,
                byte_to=size,
                proof=f"of {self.note.name} it says something else: {difference}",
            )
        )

    def _compare(
        self, numbers: I64, units: NDArray[np.void], wanted: NDArray[np.void], index: I64
    ) -> None:
        different = units.view(f"V{KEY_UNIT.itemsize}") != wanted.view(f"V{KEY_UNIT.itemsize}")
        for at in np.flatnonzero(different).tolist():
            has, wants = units[at].tobytes(), wanted[at].tobytes()
            places = [place for place in range(KEY_UNIT.itemsize) if has[place] != wants[place]]
            start, stop = places[0], places[-1] + 1
            place = self.note.unit_at(int(numbers[at]))
            proof = f"{has[start:stop].hex()} instead of {wants[start:stop].hex()}"
            self._flaw("keyindex.unit", place + start, place + stop, proof, int(index[at]))

    def _chain(self, numbers: I64, hashes: I64) -> I64:
        """For consecutive units, the previous unit of each in its slot; records them in slots and
        filter."""
        slots = hashes % self.note.slots
        order = np.argsort(slots, kind="stable")
        sorted_slots, sorted_numbers = slots[order], numbers[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = sorted_slots[1:] != sorted_slots[:-1]
        before = np.empty(len(order), np.int64)
        before[1:] = sorted_numbers[:-1]
        before[begins] = self.table[sorted_slots[begins]]
        previous = np.empty(len(order), np.int64)
        previous[order] = before
        self.table[sorted_slots] = sorted_numbers
        if len(self.bits):
            _add_to_filter(self.bits, hashes)
        return previous

    def _pass_over(self, until: int | None) -> None:
        """Skip units of messages below a position, or all remaining ones: their messages are
        unreadable, but their chains can be checked."""
        note = self.note
        for numbers, units in read_key_units(self.file, note, self.number):
            pos = units["pos"].astype(np.int64)
            count = (
                len(units)
                if until is None
                else int(np.argmax(pos >= until))
                if bool((pos >= until).any())
                else len(units)
            )
            if not count:
                return
            self.passed_over = True
            wanted = units[:count].copy()
            wanted["previous"] = self._chain(
                numbers[:count], units["hash"][:count].astype(np.int64) & SECONDS_MAX
            )
            self._compare(numbers[:count], units[:count], wanted, np.full(count, note.first_index))
            self.number += count
            if count < len(units):
                return

    # ------------------------------------------------------------------------------------------- the rest of the file

    def _check_head(self, used: int) -> None:
        note = replace(self.note, used=used)
        has, wants = self.file.pread(KEY_HEADER.size, 0), note.header()
        if has != wants:
            places = [place for place in range(KEY_HEADER.size) if has[place] != wants[place]]
            start, stop = places[0], places[-1] + 1
            self._flaw(
                "keyindex.header",
                start,
                stop,
                f"{has[start:stop].hex()} instead of {wants[start:stop].hex()}",
            )

    def _check_slots(self) -> None:
        for first in range(0, self.note.slots, SLOTS_AT_ONCE):
            wanted = self.table[first : first + SLOTS_AT_ONCE]
            start = KEY_HEADER.size + first * SLOT_BYTES
            stored = np.frombuffer(self.file.pread(len(wanted) * SLOT_BYTES, start), ">i4")
            for at in np.flatnonzero(stored != wanted).tolist():
                place = start + at * SLOT_BYTES
                self._flaw(
                    "keyindex.slot",
                    place,
                    place + SLOT_BYTES,
                    f"unit {int(stored[at])} instead of {int(wanted[at])}",
                )

    def _check_rest(self) -> None:
        """Check unit 0, which is never used, and everything behind the last unit."""
        note = self.note
        for start, end in (
            (note.unit_at(0), note.unit_at(1)),
            (note.unit_at(note.count), note.file_bytes),
        ):
            stain = find_stain(self.file, start, end)
            if stain is not None:
                self._flaw(
                    "keyindex.tail",
                    stain.first,
                    stain.last + 1,
                    "bytes that no unit takes are not zero",
                )

    def _check_filter(self) -> None:
        """Check the filter of a full file; the node rebuilds a missing one."""
        shown = f"{self.task.group}/state/bloom/{self.note.name}"
        try:
            has = read_if_there(f"{self.task.root}/state/bloom/{self.note.name}")
        except OSError as error:
            self.flaws.append(
                Flaw(
                    "file.read",
                    shown,
                    index=None,
                    byte_from=0,
                    byte_to=0,
                    proof=f"{error.strerror}",
                )
            )
            return
        if has is None:
            return
        wants = filter_bytes(self.bits, self.note.count)
        if has != wants:
            length = min(len(has), len(wants))
            places = np.flatnonzero(
                np.frombuffer(has[:length], np.uint8) != np.frombuffer(wants[:length], np.uint8)
            )
            start, stop = (
                (int(places[0]), int(places[-1]) + 1)
                if len(places)
                else (length, max(len(has), len(wants)))
            )
            self.flaws.append(
                Flaw(
                    "keyindex.filter",
                    shown,
                    index=None,
                    byte_from=start,
                    byte_to=stop,
                    proof="it is not the filter of the units of its file",
                )
            )


def _log_files(task: LogFile) -> list[LogFile]:
    """The log files of the task's replica."""
    return [
        file for file in task.log_so_far(task.begin_pos) if file.base % task.data_file_bytes == 0
    ]


# --------------------------------------------------------------------------------------------------------------- filters

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SALTS = np.array(
    [
        0x2545F491,
        0x6C8E9CF5,
        0x8F1BBCDD,
        0xA0761D65,
        0xC2B2AE3D,
        0xD6E8FEB9,
        0xE7037ED1,
        0xFF51AFD7,
    ],
    np.uint32,
)


def _add_to_filter(bits: NDArray[np.uint32], hashes: I64) -> None:
    mixed = hashes.astype(np.uint64) * _MIX
    block = ((mixed >> np.uint64(32)) * np.uint64(len(bits)) >> np.uint64(32)).astype(np.int64)
    low = (mixed >> np.uint64(8)).astype(np.uint32)
    for word, salt in enumerate(_SALTS):
        np.bitwise_or.at(bits[:, word], block, np.uint32(1) << ((low * salt) >> np.uint32(27)))


def filter_bytes(bits: NDArray[np.uint32], count: int) -> bytes:
    """The file of a filter over the units below `count`."""
    blocks = bits.astype(">u4").tobytes()
    head = b"LMKB" + b"".join(
        value.to_bytes(4, "big") for value in (1, len(bits), count, crc(blocks), 0)
    )
    return head + bytes(4) + crc(head).to_bytes(4, "big") + blocks
