"""What an unclean stop excuses, for every kind of flaw at every place; and which zero bytes are
sectors that were never written."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.audit.checks.replica import Mark, Replica
from ledgermq.audit.checks.unclean import excuse
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.decode import SECTOR
from ledgermq.audit.rules import Flaw

MARKED, SIZE = 10, 4096
FILE = "g1/dledger-n1/data/00000000000000004096"


def replica(
    base: Path,
    name: str = "n1",
    *,
    marked: int | None = MARKED,
    clean: bool = False,
    data: bytes | None = None,
) -> Replica:
    """A replica that was killed, with one log file if it has `data`; its mark ends in the file that
    begins with entry 8."""
    mark = None if marked is None else Mark(1, marked, SIZE + 1 if marked >= 0 else 0, 0, "id")
    one = Replica(
        str(base / name),
        str(base / name / "g1"),
        "g1",
        name,
        "dledger-n1",
        mark=mark,
        clean=clean,
        sizes=(SIZE, 32, 20),
    )
    reports: Any = [
        SimpleNamespace(
            base=at, first_index=first, file=f"g1/dledger-n1/data/{at:020d}", end=0, length=SIZE
        )
        for at, first in ((0, 0), (SIZE, 8), (2 * SIZE, None))
    ]
    one.reports = reports
    one.snapshot = {"applied_index": 6}
    folder = Path(one.log) / "data"
    folder.mkdir(parents=True)
    if data is not None:
        (folder / FILE.rpartition("/")[2]).write_bytes(data)
    return one


def flaw(
    rule: str, index: int | None, *, torn: bool = True, bounds: tuple[int, int] = (0, 8)
) -> Flaw:
    return Flaw(rule, FILE, index, *bounds, "p", torn=torn)


INDEXES = (None, 5, 6, 7, 8, 9, 10, 11, 12)


def test_units_that_need_not_be_on_the_disk(tmp_path: Path) -> None:
    """Torn index units of the log file in which the mark stands and behind it, and torn queue units
    above the snapshot. After a clean stop nothing is excused."""
    killed, stopped = replica(tmp_path), replica(tmp_path, "n2", clean=True)
    for index, torn in product(INDEXES, (False, True)):
        of_index = torn and (index is None or index >= 8)
        assert (
            excuse(killed, flaw("index.unit", index, torn=torn), 20, []) is not None
        ) is of_index
        of_queue = torn and (index is None or index > 6)
        assert (
            excuse(killed, flaw("queue.unit", index, torn=torn), 20, []) is not None
        ) is of_queue
        for rule in ("index.unit", "queue.unit", "entry.body"):
            assert excuse(stopped, flaw(rule, index, torn=torn), None, []) is None


@pytest.mark.parametrize(("marked", "sizes"), [(None, SIZE), (-1, SIZE), (MARKED, 0)])
def test_without_a_mark_every_torn_index_unit_is_excused(
    tmp_path: Path, marked: int | None, sizes: int
) -> None:
    """Also if the size of the log's files is unknown."""
    one = replica(tmp_path, marked=marked)
    one.sizes = (sizes, 32, 20)
    assert all(excuse(one, flaw("index.unit", index), 20, []) for index in INDEXES)


@pytest.mark.parametrize(
    ("marked", "end", "first"),
    [(0, 1, 0), (7, SIZE, 0), (8, SIZE + 1, 8), (9, 2 * SIZE, 8), (12, 2 * SIZE + 1, None)],
)
def test_the_file_in_which_the_mark_stands(
    tmp_path: Path, marked: int, end: int, first: int | None
) -> None:
    """It is the one that holds the last marked byte. If no entry of it was found, only what lies
    above the mark is excused."""
    one = replica(tmp_path)
    one.mark = Mark(1, marked, end, 0, "id")
    for index in range(14):
        excused = index > marked or (first is not None and index >= first)
        assert (excuse(one, flaw("index.unit", index), 20, []) is not None) is excused


def test_a_mark_in_a_file_without_a_readable_entry(tmp_path: Path) -> None:
    """Excuses nothing up to the marked entry, be it the first one of the log."""
    one = replica(tmp_path)
    one.mark, one.reports = Mark(1, 0, 1, 0, "id"), []
    assert excuse(one, flaw("index.unit", 0), 20, []) is None
    assert excuse(one, flaw("index.unit", 1), 20, []) is not None


def test_torn_flaw_above_the_mark_is_excused_unless_compared(tmp_path: Path) -> None:
    """A torn flaw, unless its entry was compared; a blank alone, and the key index, although it
    was. Without a mark everything is above."""
    killed, unmarked = replica(tmp_path), replica(tmp_path, "n2", marked=None)
    for rule, index, torn, compared in product(
        ("entry.body", "blank.alone", "keyindex.unit"), INDEXES, (False, True), (None, 10, 11, 12)
    ):
        promised = index is not None and compared is not None and index <= compared
        for one, marked in ((killed, MARKED), (unmarked, -1)):
            above = index is None or index > marked
            excused = above and torn and (not promised or rule != "entry.body")
            found = excuse(one, flaw(rule, index, torn=torn), compared, [])
            assert (found is not None) is excused, (rule, index, torn, compared, marked)
            assert found is None or f"nothing above its synced mark ({marked}) counts" in found


@pytest.mark.parametrize("byte", [0, 1])
def test_zero_gap_above_the_mark_is_excused_unless_compared(tmp_path: Path, byte: int) -> None:
    """Is excused above the mark, unless its entry was compared or the bytes are something."""
    one = replica(tmp_path, data=bytes(100) + bytes([byte]) + bytes(SIZE - 101))
    for rule, index, compared, bounds in product(
        ("entry.gap", "entry.body"), (10, 11), (None, 11), ((0, 200), (101, 200), (0, 100))
    ):
        zero = not byte or bounds != (0, 200)
        excused = rule == "entry.gap" and index == 11 and compared is None and zero
        found = excuse(one, flaw(rule, index, torn=False, bounds=bounds), compared, [])
        assert (found is not None) is excused and (found is None or "nothing was written" in found)
    missing = replica(tmp_path, "n3")
    assert excuse(missing, flaw("entry.gap", 11, torn=False), None, []) is None


SECTORS = 4


def lost(
    whole: bytes, sectors: tuple[int, ...], spoilt: int | None = None, since: int = 0
) -> bytes:
    """A file whose sectors were not written from byte `since` of each on; `spoilt`: a byte that
    something else changed."""
    data = bytearray(whole)
    for sector in sectors:
        data[sector * SECTOR + since : (sector + 1) * SECTOR] = bytes(SECTOR - since)
    if spoilt is not None:
        data[spoilt] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize("chunk", [bytewise.CHUNK, SECTOR, 2 * SECTOR])
@pytest.mark.parametrize("sectors", [(), (0,), (1,), (3,), (0, 2), (1, 2)])
def test_sectors_that_were_never_written(
    tmp_path: Path, chunk: int, sectors: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differ from an intact peer, and are zero from the first difference on. Any other difference
    is damage, and so is none."""
    monkeypatch.setattr(bytewise, "CHUNK", chunk)
    whole = bytes(range(1, 129)) * (SECTORS * SECTOR // 128)
    peer = replica(tmp_path, "peer", data=whole)
    for number, (since, spoilt) in enumerate(product((0, 100), (None, 5, 700, 1999))):
        one = replica(tmp_path, f"n{number}", data=lost(whole, sectors, spoilt, since))
        for start, end in ((0, SECTORS * SECTOR), (SECTOR, 2 * SECTOR), (300, 1200)):
            inside = [
                sector
                for sector in sectors
                if sector * SECTOR + SECTOR > start and sector * SECTOR < end
            ]
            changed = spoilt is not None and start <= spoilt < end
            expected = bool(inside) and not changed
            found = excuse(one, flaw("entry.body", 11, torn=False, bounds=(start, end)), 11, [peer])
            seen = whole[start:end] != lost(whole, sectors, spoilt, since)[start:end]
            assert (found is not None) is (expected and seen), (sectors, since, spoilt, start, end)
            assert found is None or "sectors that were never written" in found


def test_a_sector_is_judged_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes with other ones behind them in their sector are damage, wherever the compared
    pieces end."""
    monkeypatch.setattr(bytewise, "CHUNK", SECTOR)
    whole = bytes(range(1, 129)) * (SECTORS * SECTOR // 128)
    one, peer = replica(tmp_path, data=whole), replica(tmp_path, "peer", data=whole)
    path = Path(one.log) / "data" / FILE.rpartition("/")[2]
    for end in (*range(300 + SECTOR - 200, 3 * SECTOR, 100), 2 * SECTOR):
        start = end - 1 - (end - 1) % SECTOR
        path.write_bytes(whole[:start] + bytes(end - start) + whole[end:])
        found = excuse(
            one, flaw("entry.body", 11, torn=False, bounds=(300, 3 * SECTOR)), 11, [peer]
        )
        assert (found is not None) is (end % SECTOR == 0), end


def test_damage_without_comparable_peer_bytes_is_not_excused(tmp_path: Path) -> None:
    """No peer, a file outside of the log, a file that one of the two lacks, and files of different
    lengths."""
    whole = bytes(range(1, 129)) * 16
    one, peer = replica(tmp_path, data=lost(whole, (1,))), replica(tmp_path, "peer", data=whole)
    body = flaw("entry.body", 11, torn=False, bounds=(0, 2048))
    assert excuse(one, body, 11, [peer]) is not None
    assert excuse(one, body, 11, []) is None
    elsewhere = Flaw("entry.body", "g1/other", 11, 0, 2048, "p")
    assert excuse(one, elsewhere, 11, [peer]) is None
    for name, data in (("short", whole[:2000]), ("none", None)):
        other = replica(tmp_path, name, data=data)
        assert excuse(one, body, 11, [other]) is None and excuse(other, body, 11, [peer]) is None


def test_of_bytes_behind_the_end_all_are_compared(tmp_path: Path) -> None:
    """Such a flaw names only the bytes that are not zero."""
    whole = bytes(range(1, 129)) * 16
    one, peer = replica(tmp_path, data=lost(whole, (1,), 5)), replica(tmp_path, "peer", data=whole)
    report: Any = one.reports[1]
    report.end, report.length = 0, 2048
    narrow = flaw("tail.zero", 11, torn=False, bounds=(SECTOR, 2 * SECTOR))
    assert excuse(one, narrow, 11, [peer]) is None, "byte 5 is damage"
    report.end = SECTOR
    assert excuse(one, narrow, 11, [peer]) is not None
    report.end = 2 * SECTOR
    assert excuse(one, narrow, 11, [peer]) is None, "nothing differs there"
    assert (
        excuse(one, flaw("entry.body", 11, torn=False, bounds=(SECTOR, 2 * SECTOR)), 11, [peer])
        is not None
    )
