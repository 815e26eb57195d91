"""What recovery observes: walks, comparisons with index units, and the search for bytes, with every
kind of damage at every entry."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, product

import numpy as np
import pytest

from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.storage.files.mapped_files import MappedFiles
from ledgermq.storage.log import log_scan
from ledgermq.storage.log.index_files import IndexFiles, make_units
from ledgermq.storage.log.log_scan import (
    Disagreement,
    Piece,
    Point,
    Walker,
    add_runs,
    check_units,
    first_nonzero,
    is_place,
)
from ledgermq.storage.log.placing import BLANK_BYTES, make_blank
from tests.storage.test_storage_mending import IDENTITY, LAST, ROOT, SIZE, Log

PER_CHUNK = 2_000
"""Bytes of two entries of the log, and of no third one."""


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture(params=["as it is", "small"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read at once: more than a file, or little more than two entries."""
    if request.param == "small":
        monkeypatch.setattr(log_scan, "CHUNK_BYTES", PER_CHUNK)
        monkeypatch.setattr(log_scan, "_ZEROS", bytes(PER_CHUNK))
        monkeypatch.setattr(log_scan, "UNITS_AT_ONCE", 3)


def files_of(log: Log) -> MappedFiles:
    files = MappedFiles(log.disk, f"{ROOT}/data", SIZE, allocate=True)
    files.load()
    return files


def index_of(log: Log) -> IndexFiles:
    files = MappedFiles(log.disk, f"{ROOT}/index", IDENTITY.index_file_bytes, allocate=False)
    files.load()
    return IndexFiles(files)


def walked(
    log: Log, first: int = 0, stop: int | None = None, *, verify: bool = True
) -> tuple[Walker, list[Piece]]:
    walker = Walker(files_of(log), log.point(first), verify=verify)
    return walker, list(walker.pieces(log.ends[-1] + SIZE if stop is None else stop))


def firsts(log: Log) -> list[int]:
    return [entry.first_index for entry in log.entries if entry.pos % SIZE == 0]


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("first", [0, 5, 11])
def test_a_whole_log_is_walked_piece_by_piece(log: Log, verify: bool, first: int) -> None:
    """Every entry is in one piece, with its place, size and term, and behind its blank if it is the
    first of a file."""
    walker, pieces = walked(log, first, verify=verify)
    assert (walker.point, walker.blank_at, walker.problem) == (
        Point(pos=log.ends[-1], index=LAST + 1, term=1, chain=log.entries[-1].last_chain),
        None,
        "",
    )
    assert b"".join(piece.data for piece in pieces) == b"".join(
        bytes(entry.data) for entry in log.entries[first:]
    )
    index = first
    for piece in pieces:
        assert piece.first_index == index and piece.pos == log.entries[index].pos
        crosses = index and piece.pos != log.ends[index - 1]
        assert piece.blank_at == (log.ends[index - 1] if crosses else None)
        assert len(piece.data) <= log_scan.CHUNK_BYTES
        for start, size, term in zip(
            piece.starts.tolist(), piece.sizes.tolist(), piece.terms.tolist(), strict=True
        ):
            assert (piece.pos + start, size, term) == (
                log.entries[index].pos,
                len(log.entries[index].data),
                1,
            )
            index += 1
    assert index == LAST + 1
    if log_scan.CHUNK_BYTES > SIZE:
        assert len(pieces) == len({piece.pos // SIZE for piece in pieces}), "a file is read at once"


def log_with(rest: int) -> Log:
    """Two entries that leave so many bytes of their file, and one in the next file."""
    extra = len(Log([8], [1]).entries[0].data) - 8
    return Log([600, SIZE - rest - 600 - 2 * extra, 600], [1] * 3)


@pytest.mark.parametrize(
    "rest", [BLANK_BYTES, BLANK_BYTES + 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 200]
)
def test_walk_passes_entries_at_file_and_chunk_borders(
    rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one then lies in the next file, or in what is read next; with neither, the walk has
    come to the end."""
    log = log_with(rest)
    sizes = [len(entry.data) for entry in log.entries]
    assert log.ends[1] == SIZE - rest
    at_once = [
        SIZE,
        *(sizes[0] + more for more in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1)),
        sizes[1],
    ]
    for blank, verify, chunk in product((True, False), (True, False), at_once):
        monkeypatch.setattr(log_scan, "CHUNK_BYTES", chunk)
        if not blank:
            log.write(log.ends[1], bytes(rest))
        count = 3 if blank else 2
        walker, pieces = walked(log, verify=verify)
        assert (walker.point, walker.blank_at, walker.problem) == (log.point(count), None, "")
        assert b"".join(piece.data for piece in pieces) == b"".join(
            bytes(entry.data) for entry in log.entries[:count]
        )


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("at", [0, 4])
def test_an_entry_that_leaves_no_room_for_a_blank_is_damage(
    log: Log, at: int, verify: bool
) -> None:
    """One byte less, and only its CRCs, or what follows it, are wrong."""
    room = SIZE - log.entries[at].pos
    for size in (room - BLANK_BYTES, room - BLANK_BYTES + 1, room, room + 1, SIZE * 2):
        log.write(log.entries[at].pos + 4, struct.pack(">i", size))
        log.write(log.entries[at].pos + HEADER_BYTES - 4, struct.pack(">i", size - HEADER_BYTES))
        walker, _ = walked(log, verify=verify)
        impossible = size > room - BLANK_BYTES
        assert ("impossible here" in walker.problem) is impossible
        if impossible or verify:
            assert walker.point == log.point(at) and walker.problem


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("index", [0, 3, 10, LAST])
def test_a_walk_ends_where_it_is_to_stop(log: Log, index: int, more: int) -> None:
    """With the entry that begins before that position."""
    walker, _ = walked(log, stop=log.entries[index].pos + more)
    assert walker.point == log.point(index + (more > 0)) or (
        more <= 0 and walker.point == log.point(index)
    )


@pytest.mark.usefixtures("chunks")
def test_walk_reads_no_byte_behind_its_stop(log: Log) -> None:
    """Not even a blank, also if the walk begins there."""
    for index in (0, 6, *(first - 1 for first in firsts(log)[1:])):
        for first in (0, index + 1):
            walker, pieces = walked(log, first, stop=log.ends[index])
            assert (walker.point, walker.blank_at, walker.problem) == (
                log.point(index + 1),
                None,
                "",
            )
            assert sum(len(piece.sizes) for piece in pieces) == index + 1 - first


HEADER = {
    "magic": (0, struct.pack(">i", 5), "not an entry"),
    "size": (4, struct.pack(">i", 700), "not an entry"),
    "both sizes": (4, None, "not an entry"),
    "index": (8, struct.pack(">q", 70), "not an entry"),
    "term": (16, struct.pack(">q", -5), "impossible here"),
    "position": (24, struct.pack(">q", 1), "not an entry"),
    "body": (90, b"\xff\xfe", ""),
    "zeros": (0, bytes(HEADER_BYTES), ""),
}


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("what", HEADER)
@pytest.mark.parametrize("at", [0, 4, 10, LAST])
def test_a_walk_ends_before_the_first_damaged_entry(log: Log, what: str, at: int) -> None:
    """And says what is wrong there. Without verification a damaged body is not noticed."""
    offset, data, said = HEADER[what]
    if data is None:
        data = struct.pack(">i", 30)
        log.write(log.entries[at].pos + 36 + 4, struct.pack(">i", -30))
    log.write(log.entries[at].pos + offset, data)
    walker, pieces = walked(log, verify=True)
    assert walker.point == log.point(at)
    assert sum(len(piece.sizes) for piece in pieces) == at
    assert said in walker.problem and bool(walker.problem) is (what != "zeros")
    expected_blank = log.ends[at - 1] if at and log.entries[at].pos % SIZE == 0 else None
    assert walker.blank_at == expected_blank
    if what == "body":
        lax, _ = walked(log, verify=False)
        assert lax.point.index == LAST + 1


def test_a_term_may_rise_and_never_falls(log: Log) -> None:
    walker = Walker(files_of(log), replace(log.point(5), term=2), verify=False)
    assert (
        list(walker.pieces(log.ends[-1])) == []
        and "entry 5 has a term or a size that is impossible here" in walker.problem
    )


@pytest.mark.usefixtures("chunks")
def test_a_piece_has_entries_of_several_terms(log: Log) -> None:
    """Their CRCs are verified term by term, and damage is found in each."""
    for index in range(6, LAST + 1):
        log.write(log.entries[index].pos + 16, struct.pack(">q", 2 + index // 9))
    walker, pieces = walked(log, verify=False)
    runs: list[tuple[int, int]] = []
    for piece in pieces:
        add_runs(runs, piece.first_index, piece.terms)
    assert walker.point.index == LAST + 1 and runs == [
        (0, 1),
        (6, 2),
        (9, 3),
        (18, 4),
        (27, 5),
        (36, 6),
    ]
    strict, _ = walked(log, verify=True)
    assert strict.point == log.point(6), "the chain covers the term"


@pytest.mark.usefixtures("chunks")
def test_crcs_are_verified_in_every_run_of_terms() -> None:
    """A walk ends before the damaged entry, whichever it is, and goes on from there once it is
    mended."""
    terms = [1, 1, 2, 2, 2, 3, 4, 4, 7, 7, 7, 7, 9]
    log = Log([600] * len(terms), terms)
    for at in range(len(terms) + 1):
        if at < len(terms):
            log.write(log.entries[at].pos + 90, b"\xff\xfe")
        walker, pieces = walked(log)
        assert walker.point == log.point(at) and bool(walker.problem) is (at < len(terms))
        assert [term for piece in pieces for term in piece.terms.tolist()] == terms[:at]
        if at == len(terms) and log_scan.CHUNK_BYTES > SIZE:
            assert len(pieces) == 2, "a file is read at once"
        if at < len(terms):
            log.write(log.entries[at].pos, bytes(log.entries[at].data))
            assert [walker.point.index for _ in walker.pieces(log.ends[-1])][-1:] == [len(terms)]
            assert (walker.point, walker.problem) == (log.point(len(terms)), "")


BLANKS: dict[str, Callable[[Log, int, int], None]] = {
    "length": lambda log, pos, room: log.write(pos, make_blank(room - 1)[:BLANK_BYTES]),
    "magic": lambda log, pos, room: log.write(pos, b"\x01"),
    "filler": lambda log, pos, room: log.write(pos + room - 1, b"\x01"),
    "zeros": lambda log, pos, room: log.write(pos, bytes(room)),
}


@pytest.mark.parametrize("what", BLANKS)
def test_a_damaged_blank_ends_a_walk(log: Log, what: str) -> None:
    """What lies behind it does not count."""
    index = firsts(log)[1]
    pos = log.ends[index - 1]
    BLANKS[what](log, pos, SIZE - pos % SIZE)
    walker, _ = walked(log)
    assert (walker.point, walker.blank_at) == (log.point(index), None)
    said = {
        "length": "blank with a wrong length",
        "magic": "not an entry",
        "filler": "blank with a wrong length",
        "zeros": "",
    }[what]
    assert said in walker.problem and bool(walker.problem) is bool(said)


def test_a_blank_that_no_file_follows_is_where_the_walk_stopped(log: Log) -> None:
    index = firsts(log)[-1]
    log.disk.vanish(f"{ROOT}/data/{log.entries[index].pos:020d}")
    for base in range(log.entries[index].pos + SIZE, log.ends[-1] + 2 * SIZE, SIZE):
        if log.disk.exists(f"{ROOT}/data/{base:020d}"):
            log.disk.vanish(f"{ROOT}/data/{base:020d}")
    walker, _ = walked(log)
    assert (walker.point, walker.blank_at, walker.problem) == (
        log.point(index),
        log.ends[index - 1],
        "",
    )


@pytest.mark.parametrize("rest", [BLANK_BYTES, 30, HEADER_BYTES - 1, HEADER_BYTES])
def test_bytes_too_few_for_an_entry_end_a_file(rest: int) -> None:
    """Zeros are the end of the log, a blank of another length and other bytes are damage."""
    log = log_with(rest)
    no_blank, no_entry = "blank with a wrong length", "not an entry"
    ends = {b"": "", b"\1": no_entry, bytes(rest - 1) + b"\1": no_entry}
    ends |= {make_blank(length)[:BLANK_BYTES]: no_blank for length in (rest - 1, rest + 1)}
    for data, said in ends.items():
        log.write(log.ends[1], data.ljust(rest, b"\0"))
        walker, _ = walked(log)
        assert (walker.point, walker.blank_at) == (log.point(2), None)
        assert said in walker.problem and bool(walker.problem) is bool(said)


def test_runs_of_terms_are_those_of_the_column() -> None:
    """However it is cut into pieces."""
    for terms in product((1, 2, 3), repeat=4):
        if list(terms) != sorted(terms):
            continue
        for cut in range(5):
            runs: list[tuple[int, int]] = []
            add_runs(runs, 7, np.array(terms[:cut], np.int64))
            add_runs(runs, 7 + cut, np.array(terms[cut:], np.int64))
            expected = [
                (7 + next(iter(group))[0], term)
                for term, group in groupby(enumerate(terms), key=lambda pair: pair[1])
            ]
            assert runs == expected


@pytest.mark.usefixtures("chunks")
def test_the_first_byte_that_is_not_zero(log: Log) -> None:
    """In any file, between the bounds, of which the second is exclusive; where there is no file
    there is no byte."""
    files, end = files_of(log), log.ends[-1]
    base, last = end - end % SIZE, files_of(log).end
    assert first_nonzero(files, end, last) is None and first_nonzero(files, last, last + 5) is None
    for pos in (end, end + 1, last - 1):
        log.write(pos, b"x")
        for start, stop in product((end, pos, pos + 1), (pos, pos + 1, last, last + SIZE)):
            assert first_nonzero(files, start, stop) == (pos if start <= pos < stop else None)
        log.write(pos, b"\0")
    log.write(base, b"x")
    assert first_nonzero(files, base, last) == base


@pytest.mark.parametrize(("term", "falls"), [(0, False), (1, False), (2, True)])
def test_a_place_of_a_range_is_behind_its_point(log: Log, term: int, falls: bool) -> None:
    assert is_place(replace(log.point(7), term=term), log.entries[7], SIZE) is not falls
    assert not is_place(log.point(6), log.entries[7], SIZE)


# Index units


def file_of(log: Log, number: int) -> tuple[Point, int, int]:
    """The first place of a file of the log, its last entry, and the end of that."""
    begins = [*firsts(log), LAST + 1]
    first, last = begins[number], begins[number + 1] - 1
    return replace(log.point(first), pos=log.entries[first].pos), last, log.ends[last]


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("headers", [False, True])
def test_units_of_a_whole_log_agree_with_it(log: Log, number: int, headers: bool) -> None:
    runs: list[tuple[int, int]] = []
    check_units(files_of(log), index_of(log), *file_of(log, number), runs, headers=headers)
    assert runs == [(firsts(log)[number], 1)]


FIELDS = {"magic": 2, "pos": 1, "size": 1, "index": 1, "term": -1}


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("what", FIELDS)
@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_wrong_unit_is_noticed(log: Log, what: str, at: int) -> None:
    """Without the log's headers, too, by its neighbours."""
    point, last, end = file_of(log, 1)
    index = index_of(log)
    place = last if at < 0 else point.index + at
    units = index.get(place, 1).copy()
    units[what] += FIELDS[what]
    index.put(place, units)
    with pytest.raises(Disagreement):
        check_units(files_of(log), index, point, last, end, [], headers=False)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 32 + 8])
@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_wrong_header_is_noticed(log: Log, offset: int, at: int) -> None:
    point, last, end = file_of(log, 1)
    place = last if at < 0 else point.index + at
    data = log.entries[place].data
    header = log_scan.ENTRY_HEAD.unpack_from(data)
    assert header[0] and header[1] == len(data)
    spoilt = bytearray(data[:HEADER_BYTES])
    if offset == 40:
        spoilt[log_scan.ENTRY_HEAD.size - 1] ^= 1
    else:
        spoilt[offset + 3] ^= 1
    log.write(log.entries[place].pos, bytes(spoilt))
    with pytest.raises(Disagreement, match=f"the header of entry {place} and its unit differ"):
        check_units(files_of(log), index_of(log), point, last, end, [], headers=True)


def test_of_few_headers_those_at_both_ends_of_every_run_of_terms_are_compared(log: Log) -> None:
    """Only there a wrong term contradicts no other unit."""
    point, last, end = file_of(log, 1)
    for place in range(point.index + 4, last + 1):
        log.write(log.entries[place].pos + 16, struct.pack(">q", 2))
        units = index_of(log)
        unit = units.get(place, 1).copy()
        unit["term"] = 2
        units.put(place, unit)
    for place in range(point.index, last + 1):
        before = log.disk.read_file(f"{ROOT}/data/{point.pos:020d}")
        log.write(log.entries[place].pos + 16, struct.pack(">q", 7))
        if place in (point.index, point.index + 3, point.index + 4, last):
            with pytest.raises(
                Disagreement, match=f"the header of entry {place} and its unit differ"
            ):
                check_units(files_of(log), index_of(log), point, last, end, [], headers=False)
        else:
            check_units(files_of(log), index_of(log), point, last, end, [], headers=False)
        log.write(point.pos, before)


def test_units_that_end_elsewhere_or_lie_about_their_begin(log: Log) -> None:
    point, last, end = file_of(log, 1)
    files, index = files_of(log), index_of(log)
    for spoilt in (replace(point, pos=point.pos + 1), replace(point, term=2)):
        with pytest.raises(Disagreement, match="are not continuous"):
            check_units(files, index, spoilt, last, end, [], headers=False)
    with pytest.raises(Disagreement, match=f"the units end at {end}, the entries at {end + 1}"):
        check_units(files, index, point, last, end + 1, [], headers=False)
    with pytest.raises(Disagreement, match="are not continuous"):
        check_units(files, index, point, last, end - 1, [], headers=False)
    with pytest.raises(Disagreement, match="there is no unit for entry"):
        check_units(files, index, replace(point, index=10_000), 10_001, end, [], headers=False)


def test_terms_of_units_may_rise_within_a_file(log: Log) -> None:
    """And never fall; an entry is never smaller than its header."""
    point, last, end = file_of(log, 1)
    index = index_of(log)
    terms = [1, 1, 3, *[4] * (last - point.index - 2)]
    for number, term in enumerate(terms):
        entry = log.entries[point.index + number]
        log.write(entry.pos + 16, struct.pack(">q", term))
        index.put(
            point.index + number,
            make_units(
                point.index + number,
                term,
                np.array([entry.pos]),
                np.array([len(entry.data)], np.int32),
            ),
        )
    runs: list[tuple[int, int]] = [(0, 1)]
    check_units(files_of(log), index, point, last, end, runs, headers=False)
    assert runs == [(0, 1), (point.index + 2, 3), (point.index + 3, 4)]
    tiny = index.get(point.index, 2).copy()
    tiny["size"][0], tiny["pos"][1], tiny["size"][1] = 3, point.pos + 3, int(tiny["size"].sum()) - 3
    index.put(point.index, tiny)
    with pytest.raises(Disagreement, match="are not continuous"):
        check_units(files_of(log), index, point, last, end, [], headers=False)


def test_a_log_that_ends_inside_its_units_is_noticed(log: Log) -> None:
    point, last, end = file_of(log, 1)
    files = files_of(log)
    file = files.at(point.pos)
    read = file.pread
    file.pread = lambda offset, length: read(offset, length)[:-1]  # type: ignore[method-assign]
    with pytest.raises(Disagreement, match="the log ends inside the entries"):
        check_units(files, index_of(log), point, last, end, [], headers=True)
