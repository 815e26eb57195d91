"""Recovery by exhaustion: header × body × index unit × synced mark, each intact, zero, torn,
flipped or stale, for entries at every kind of place. What recovery does is compared with a small
model that knows only what was synced and what was changed.

The model: nothing that was synced ever goes away without the log being fenced; a fenced log is not
touched; above the mark the log ends exactly in front of the first thing that is not as it was
written; index units never matter, they are made again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import SyncedMark
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import PAGE_BYTES
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_decision import ROWS
from tests.storage.log_material import FILE_BYTES, HOST, make_batch, make_identity

LOG = "/g1"
IDENTITY = make_identity()
COUNT, PER_FILE = 16, 6
MARKED, MARKED_BEFORE = 8, 7
"""The mark in its newest slot, and the one in the other: 0…5 fill the first file, 6…11 the second,
12…15 lie in the third."""
BODY_BYTES = 500

STATES = ("intact", "zero", "torn", "flipped", "stale")
UNITS = ("intact", "zero", "flipped", "stale")
MARKS = ("intact", "newest torn")
SUBJECTS = (3, 5, 6, 8, 9, 10, 11, 12, 15)
"""Before the marked entry, last and first of a file below the mark, the marked one, the first above
it, within, last and first of a file above it, the last of all."""


@dataclass(frozen=True)
class Template:
    """An undamaged log: the disk, and the positions of everything on it."""

    disk: ForgetfulDisk
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    chains: tuple[int, ...]
    stale: tuple[bytes, ...]
    """For every entry, what an earlier leader had put in its place: valid there, of the term
    before."""


def term_of(index: int) -> int:
    """Every entry is the first of its term, so that an older history fits below each."""
    return 2 * index + 2


@cache
def template(*, filler: bool, marked: int, trimmed: bool = False) -> Template:
    """`filler`: the blanks have more than their 8 bytes. `trimmed`: the first file is gone."""
    disk = ForgetfulDisk()
    disk.mkdirs(LOG)
    EntryLog.create(disk, LOG, IDENTITY)
    log = EntryLog.open(disk, LOG, IDENTITY, clean=True)
    starts, ends, chains, stale = [], [], [], []
    for index in range(COUNT):
        before = log.end_pos, log.end_chain
        room = FILE_BYTES - 8 - log.end_pos % FILE_BYTES
        body = BODY_BYTES
        if index % PER_FILE == PER_FILE - 1 and not filler:
            body += room - len(make_batch(1, BODY_BYTES).data)
        (piece,) = log.append_leader(
            term_of(index), make_batch(1, body, first=index), np.array([index]), 1, HOST
        )
        starts.append(piece.pos)
        ends.append(piece.end_pos)
        chains.append(piece.last_chain)
        old = make_batch(1, body, first=1000 + index)
        seal(
            old, first_index=index, term=term_of(index) - 1, pos=np.array([piece.pos]), queue_offsets=np.array([index]), store_ms=1,
            store_host=HOST, prev_chain=before[1],
        )  # fmt: skip
        stale.append(bytes(old.data))
        if index in (marked - 1, marked):
            job = log.begin_sync()
            assert job is not None
            job.run()
            log.finish_sync(job, None)
            job = log.begin_sync(idle=True)
            assert job is not None
            job.run()
            log.finish_sync(job, None)
    if trimmed:
        log.trim(PER_FILE)
    assert log.synced_mark.index == marked
    log.close()
    assert [start // FILE_BYTES for start in starts] == [
        index // PER_FILE for index in range(COUNT)
    ]
    assert all(
        (end % FILE_BYTES == FILE_BYTES - 8) is not filler
        for end in ends[PER_FILE - 1 : 2 * PER_FILE : PER_FILE]
    )
    return Template(disk, tuple(starts), tuple(ends), tuple(chains), tuple(stale))


def change(old: bytes, state: str, stale: bytes) -> bytes:
    half = len(old) // 2
    flipped = bytearray(old)
    flipped[7 if len(old) == HEADER_BYTES else half] ^= 0x10
    return {
        "intact": old,
        "zero": bytes(len(old)),
        "torn": old[:half].ljust(len(old), b"\0"),
        "flipped": bytes(flipped),
        "stale": stale,
    }[state]


def poke(
    disk: ForgetfulDisk, pos: int, data: bytes, kind: str = "data", file_bytes: int = FILE_BYTES
) -> None:
    disk.open(f"{LOG}/{kind}/{pos - pos % file_bytes:020d}").pwrite(pos % file_bytes, data)


def peek(disk: ForgetfulDisk, pos: int, length: int) -> bytes:
    return disk.open(f"{LOG}/data/{pos - pos % FILE_BYTES:020d}").pread(pos % FILE_BYTES, length)


def spoil_entry(disk: ForgetfulDisk, form: Template, index: int, header: str, body: str) -> None:
    start, end, old = form.starts[index], form.ends[index], form.stale[index]
    poke(disk, start, change(peek(disk, start, HEADER_BYTES), header, old[:HEADER_BYTES]))
    at = start + HEADER_BYTES
    poke(disk, at, change(peek(disk, at, end - at), body, old[HEADER_BYTES:]))


def spoil_unit(disk: ForgetfulDisk, index: int, state: str) -> None:
    """`stale` is the unit the older entry had: the same place and size, its term."""
    pos = 32 * index
    path = f"{LOG}/index/{pos - pos % IDENTITY.index_file_bytes:020d}"
    unit = bytearray(disk.open(path).pread(pos % IDENTITY.index_file_bytes, 32))
    if state == "zero":
        unit = bytearray(32)
    elif state == "flipped":
        unit[11] ^= 0x10
    elif state == "stale":
        unit[24:32] = (term_of(index) - 1).to_bytes(8, "big")
    poke(disk, pos, bytes(unit), "index", IDENTITY.index_file_bytes)


def tear_newest_mark(disk: ForgetfulDisk) -> None:
    file = disk.open(f"{LOG}/syncedmark")
    sequences = [int.from_bytes(file.pread(slot * PAGE_BYTES + 8, 8), "big") for slot in (0, 1)]
    file.pwrite(sequences.index(max(sequences)) * PAGE_BYTES + 40, bytes(30))


def data_of(disk: ForgetfulDisk) -> dict[str, bytes]:
    return {
        path: disk.read_file(path)
        for path in disk.files()
        if "/data/" in path and not path.endswith(".alloc")
    }


@dataclass(frozen=True)
class Demand:
    """What the model asks for. `ends` are the last entries the log may have; `may_fence` and
    `may_live` what may happen at all."""

    ends: frozenset[int]
    may_fence: bool
    may_live: bool
    changed: bool = False
    """The bytes of the subject are no longer those that were written."""


def model(subject: int, header: str, body: str, unit: str, mark: str) -> Demand:
    """The oracle, for an unclean start with the mark at MARKED (or, with its newest slot torn, at
    MARKED_BEFORE)."""
    marked = MARKED if mark == "intact" else MARKED_BEFORE
    intact = header == body == "intact"
    whole = frozenset({COUNT - 1})
    if intact:
        return Demand(whole, may_fence=False, may_live=True)
    if subject > marked:
        # An older entry, whole, is as valid in its place as the newer one was; what follows it does
        # not continue it.
        replaced = header == body == "stale"
        return Demand(
            frozenset({subject if replaced else subject - 1}),
            may_fence=False,
            may_live=True,
            changed=replaced,
        )
    # Bodies below the mark are the audit's affair, and so is a unit and an entry that agree about
    # an older history.
    unseen = header == "intact" or (header == "stale" and unit == "stale" and subject != marked)
    return Demand(whole, may_fence=True, may_live=unseen, changed=True)


def cases() -> Iterator[tuple[bool, int, str, str, str, str]]:
    yield from product((True, False), SUBJECTS, STATES, STATES, UNITS, MARKS)


def judge(
    form: Template, damaged: ForgetfulDisk, demand: Demand, what: str, *, clean: bool = False
) -> str:
    """Recover and compare. Returns the label of the row."""
    before = data_of(damaged)
    log = EntryLog.open(damaged, LOG, IDENTITY, clean=clean)
    if log.fenced is not None:
        assert demand.may_fence, f"{what}: fenced without need: {log.fenced}"
        assert log.fenced.exit_code == 75 and "restore this replica" in str(log.fenced)
        assert data_of(damaged) == before, f"{what}: a fenced log was touched"
        log.close()
        return log.report.row
    assert demand.may_live, f"{what}: something synced is damaged, and the log opened"
    assert log.end_index in demand.ends, (
        f"{what}: the log ends with {log.end_index} instead of {set(demand.ends)} ({log.report})"
    )
    if log.end_index == COUNT - 1:
        assert {
            path: data for path, data in data_of(damaged).items() if path in before
        } == before, f"{what}: bytes of the log changed"
    assert log.end_pos == form.ends[log.end_index]
    joined = b"".join(data_of(damaged).values())
    assert not any(joined[log.end_pos - log.begin_pos :]), f"{what}: not zero behind the end"
    for index in range(log.begin_index, log.end_index + 1):
        assert log.pos_of(index) == form.starts[index], (
            f"{what}: the unit of entry {index} is wrong"
        )
        if not demand.changed:
            assert log.chain_at(index) == form.chains[index], (
                f"{what}: entry {index} is another one"
            )
    log.close()
    return log.report.row


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("subject", "trimmed"),
    [*product(SUBJECTS, [False]), *product([at for at in SUBJECTS if at >= PER_FILE], [True])],
)
def test_every_state_of_header_body_unit_and_mark(subject: int, trimmed: bool) -> None:
    """After an unclean end, torn and corrupt entries are never confused, at any position, in
    complete and trimmed logs."""
    labels = set()
    for filler, subject_, header, body, unit, mark in cases():
        if subject_ != subject:
            continue
        form = template(filler=filler, marked=MARKED, trimmed=trimmed)
        disk = copy.deepcopy(form.disk)
        spoil_entry(disk, form, subject, header, body)
        spoil_unit(disk, subject, unit)
        if mark != "intact":
            tear_newest_mark(disk)
        what = (
            f"filler={filler} entry={subject} header={header} body={body} unit={unit} mark={mark}"
        )
        labels.add(judge(form, disk, model(subject, header, body, unit, mark), what))
    assert labels <= {row.label for row in ROWS}
    assert ("corrupt" in labels) == (subject <= MARKED)
    assert "unmarked-entries" in labels


@pytest.mark.one_in(2)
@pytest.mark.parametrize("subject", [0, 3, 5, 6, 12, COUNT - 1])
def test_every_state_after_a_clean_stop(subject: int) -> None:
    """After a clean stop fewer bytes are looked at, but nothing is ever cut, and the ends of the
    skeleton are always checked."""
    for filler, header, body, unit in product((True, False), STATES, STATES, UNITS):
        form = template(filler=filler, marked=COUNT - 1)
        disk = copy.deepcopy(form.disk)
        spoil_entry(disk, form, subject, header, body)
        spoil_unit(disk, subject, unit)
        hit = header != "intact"
        checked = subject in (COUNT - 1, *range(0, COUNT, PER_FILE))
        lives = not hit or not checked or (header == "stale" and subject != COUNT - 1)
        demand = Demand(
            frozenset({COUNT - 1}), hit or body != "intact", lives, changed=hit or body != "intact"
        )
        judge(
            form,
            disk,
            demand,
            f"filler={filler} entry={subject} header={header} body={body} unit={unit}",
            clean=True,
        )


FIELDS = {
    "magic": 0,
    "size": 4,
    "index": 8,
    "term": 16,
    "pos": 24,
    "channel": 32,
    "chain CRC": 36,
    "body CRC": 40,
    "body size": 44,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("field", [*FIELDS, "record"])
def test_a_flip_above_the_mark_is_found_wherever_it_is(field: str) -> None:
    """Every bit of the header and every eighth byte of the body of an unmarked entry: both CRC
    words, all fields, the record."""
    form = template(filler=True, marked=MARKED)
    for subject in (9, 11, 12, COUNT - 1):
        if field == "record":
            flips = [
                (at, 1 << at % 8)
                for at in range(HEADER_BYTES, form.ends[subject] - form.starts[subject], 8)
            ]
        else:
            width = 8 if field in ("index", "term", "pos") else 4
            flips = [
                (at, 1 << bit)
                for at in range(FIELDS[field], FIELDS[field] + width)
                for bit in range(0, 8, 3)
            ]
        for at, mask in flips:
            disk = copy.deepcopy(form.disk)
            pos = form.starts[subject] + at
            poke(disk, pos, bytes([peek(disk, pos, 1)[0] ^ mask]))
            judge(
                form,
                disk,
                Demand(frozenset({subject - 1}), may_fence=False, may_live=True),
                f"entry {subject} byte {at} bit {mask}",
            )


BLANKS = ("zero", "torn", "magic", "length", "filler")


@pytest.mark.parametrize("state", BLANKS)
@pytest.mark.parametrize("filler", [True, False])
def test_every_state_of_a_blank(state: str, filler: bool) -> None:
    """A blank belongs to the entry behind it: below the mark its damage fences, above the mark that
    entry goes with it."""
    form = template(filler=filler, marked=MARKED)
    for last in (PER_FILE - 1, 2 * PER_FILE - 1):
        pos = form.ends[last]
        disk = copy.deepcopy(form.disk)
        blank = bytearray(peek(disk, pos, FILE_BYTES - pos % FILE_BYTES))
        if state == "filler" and not filler:
            continue
        if state in ("zero", "torn"):
            blank[0 if state == "zero" else 4 : 8] = bytes(8 if state == "zero" else 4)
        else:
            blank[{"magic": 1, "length": 6, "filler": 20}[state]] ^= 1
        poke(disk, pos, bytes(blank))
        below = last < MARKED
        judge(
            form,
            disk,
            Demand(frozenset({last}), may_fence=below, may_live=not below),
            f"blank {state} after entry {last}",
        )


def tails(form: Template) -> dict[str, tuple[bytes, str]]:
    """What may lie behind the last entry, and the row it leads to."""
    rest = FILE_BYTES - form.ends[-1] % FILE_BYTES
    other = bytearray(form.stale[-1])
    return {
        "zeros": (b"", "unmarked-entries"),
        "garbage": (b"\x01garbage", "torn"),
        "a lone blank": (b"\xff\xff\xff\xff" + rest.to_bytes(4, "big"), "torn"),
        "an entry of another place": (bytes(other), "torn"),
    }


@pytest.mark.parametrize("filler", [True, False])
def test_every_kind_of_tail(filler: bool) -> None:
    """Everything behind the last valid entry is erased, and nothing before it."""
    form = template(filler=filler, marked=MARKED)
    for name, (data, label) in tails(form).items():
        disk = copy.deepcopy(form.disk)
        poke(disk, form.ends[-1], data)
        found = (
            judge(
                form,
                disk,
                Demand(frozenset({COUNT - 1}), may_fence=False, may_live=True, changed=True),
                name,
            )
            if not data
            else None
        )
        if found is None:
            log = EntryLog.open(disk, LOG, IDENTITY, clean=False)
            assert (log.fenced, log.end_index) == (None, COUNT - 1)
            assert not any(b"".join(data_of(disk).values())[log.end_pos :])
            found = log.report.row
        assert found == label, name


def test_no_valid_slot_of_the_mark_is_damage() -> None:
    """Without both slots it is unknown what was synced: the log is not opened and not changed."""
    form = template(filler=True, marked=MARKED)
    disk = copy.deepcopy(form.disk)
    file = disk.open(f"{LOG}/syncedmark")
    for slot in (0, 1):
        file.pwrite(slot * PAGE_BYTES + 40, bytes(30))
    before = data_of(disk)
    with pytest.raises(Damaged, match="restore it from its peers"):
        EntryLog.open(disk, LOG, IDENTITY, clean=False)
    assert data_of(disk) == before


def test_a_mark_beyond_the_log_is_damage() -> None:
    """A mark that names more than the files hold: what was synced is gone."""
    form = template(filler=True, marked=MARKED)
    disk = copy.deepcopy(form.disk)
    from ledgermq.storage.log.synced_mark import SyncedMarkFile

    mark = SyncedMarkFile.open(disk, f"{LOG}/syncedmark", IDENTITY.log_id)
    mark.write_and_sync(SyncedMark(99, 500, 40 * FILE_BYTES, 1))
    judge(form, disk, Demand(frozenset(), may_fence=True, may_live=False), "a mark beyond the end")
