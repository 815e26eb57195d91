"""What the outline of a log tells of its files, and what it finds where headers and index units do
not lead to their entries."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest

from ledgermq.audit.checks import outline as outlines
from ledgermq.audit.checks.outline import outline, record_at
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw
from ledgermq.audit.run.jobs import audit
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import RAFT, Message, Placed, Writer, membership

FILE_BYTES = 1024
INDEX_BYTES = 128
SECTOR = 512


def write(base: Path, messages: list[Message]) -> Writer:
    writer = Writer(base / "n1", data_bytes=FILE_BYTES, index_bytes=INDEX_BYTES)
    for message in messages:
        writer.append(message)
    return writer.write_log()


def task_of(writer: Writer, begin: int = 0) -> LogFile:
    sizes = writer.data_bytes, writer.index_bytes, writer.queue_bytes
    return LogFile(
        str(writer.root),
        "g1",
        "n1",
        writer.log_id,
        writer.log.name,
        f"{0:020d}",
        *sizes,
        begin_pos=begin,
    )


def data(writer: Writer, base: int) -> Path:
    return writer.log / "data" / f"{base:020d}"


def unit_at(writer: Writer, index: int) -> tuple[Path, int]:
    """The index file with the unit of an entry, and its place there."""
    return (
        writer.log / "index" / f"{index * 32 // INDEX_BYTES * INDEX_BYTES:020d}",
        index * 32 % INDEX_BYTES,
    )


def put(path: Path, at: int, new: bytes) -> None:
    before = path.read_bytes()
    path.write_bytes(before[:at] + new + before[at + len(new) :])


def in_file(writer: Writer, base: int) -> list[Placed]:
    return [entry for entry in writer.entries if entry.pos - entry.pos % FILE_BYTES == base]


def bases(writer: Writer) -> list[int]:
    """Of the files with entries."""
    return sorted({entry.pos - entry.pos % FILE_BYTES for entry in writer.entries})


def expected(writer: Writer, begin: int = 0) -> list[LogReport]:
    """What the files of a sound log are known to hold."""
    found = []
    for base in range(
        begin, len(writer.space) // FILE_BYTES * FILE_BYTES + 2 * FILE_BYTES, FILE_BYTES
    ):
        report = LogReport(f"g1/dledger-n1/data/{base:020d}", base, FILE_BYTES)
        found.append(report)
        if entries := in_file(writer, base):
            first, last = entries[0], entries[-1]
            report.entries, report.first_index, report.last_index, report.last_intact_index = (
                len(entries),
                first.index,
                last.index,
                last.index,
            )
            report.first_term, report.first_size, report.first_chain = (
                first.term,
                first.size,
                first.chain,
            )
            report.last_term, report.last_chain, report.end, report.ending = (
                last.term,
                last.chain,
                last.pos + last.size - base,
                "blank",
            )
            if first.index == 0:
                report.memberships = [(0, first.message.body.decode())]
    filled = [report for report in found if report.entries]
    if filled:
        filled[-1].ending = "zero"
    return found


LARGE = Message("t", bytes(700))
"""One that has a file for itself."""
MESSAGES = [
    membership(NODES),
    *(Message("t", b"%d" % at * at, term=at // 5) for at in range(12)),
    LARGE,
    LARGE,
    Message("t", b"x", term=9),
]


def test_the_outline_of_a_sound_log(tmp_path: Path) -> None:
    """Of every length, and of a log that was trimmed; files with another name are those of other
    checks."""
    for count in range(len(MESSAGES) + 1):
        writer = write(tmp_path / str(count), MESSAGES[:count])
        assert outline(task_of(writer)) == expected(writer), count
    (writer.log / "data" / f"{FILE_BYTES + 1:020d}").touch()
    for begin in bases(writer):
        assert outline(task_of(writer, begin)) == expected(writer, begin)


def test_a_record_of_the_first_entry_is_the_one_of_the_group(tmp_path: Path) -> None:
    """Whatever its term; its length may be damaged."""
    for name, term, first in (("a", 0, 0), ("b", 1, 0), ("c", 0, 1)):
        writer = write(tmp_path / name, [replace(LARGE, term=term), replace(LARGE, term=term)])
        (found,) = [
            report
            for report in outline(task_of(writer, first * FILE_BYTES))
            if report.first_index == first
        ]
        assert found.memberships == ([] if first else [(0, "\0" * 700)])
    put(data(writer, 0), 48 + 84, b"\x7f\xff\xff\xff")
    ((index, body),) = outline(task_of(writer))[0].memberships
    assert index == 0 and 700 <= len(body) <= writer.entries[0].size - 48


def test_log_files_of_another_length(tmp_path: Path) -> None:
    """One whose end is missing is read as far as it has the first header and record."""
    writer = write(tmp_path, MESSAGES[:2])
    whole = data(writer, 0).read_bytes()
    for length in (0, 40, 100, 135, 136, FILE_BYTES - 1, FILE_BYTES + 1):
        data(writer, 0).write_bytes(whole[:length].ljust(length, b"\0"))
        (report, _ahead) = outline(task_of(writer))
        flaw = Flaw(
            "file.length",
            report.file,
            None,
            min(length, FILE_BYTES),
            max(length, FILE_BYTES),
            f"{length} bytes instead of {FILE_BYTES}",
        )
        assert report.flaws == [flaw] and report.length == length
        assert (report.first_index, report.last_index) == (
            (0, 1) if length > 1000 else (0, 0) if length == 136 else (None, None)
        )


def test_a_file_begins_with_an_entry(tmp_path: Path) -> None:
    """Its header has the magic, a size that agrees with that of its body, and its own position."""
    writer = write(tmp_path, [*MESSAGES[:2], LARGE])
    sizes = [138, 139, 140]
    for size, wrong in product(
        sizes, ({}, {0: 2}, {1: size_more(1)}, {4: FILE_BYTES + 1}, {4: 0}, {8: size_more(1)})
    ):
        fields = [1, size, 2, 0, FILE_BYTES, 0, 5, 0, size - 48]
        for at, value in wrong.items():
            fields[at] = value(fields[at]) if callable(value) else value
        put(data(writer, FILE_BYTES), 0, struct.pack(">iiqqqiIIi", *fields))
        found = outline(task_of(writer))[1]
        flaw = Flaw(
            "entry.unreadable", found.file, None, 0, 48, "the file does not begin with an entry"
        )
        readable = size >= 139 and not wrong
        assert (
            found.flaws == ([] if readable else [flaw])
            and (found.first_index is None) is not readable
        ), (size, wrong)


def size_more(by: int) -> object:
    return lambda value: value + by


def test_a_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """Its length is not known."""
    writer = write(tmp_path, MESSAGES[:2])
    data(writer, 0).unlink()
    data(writer, 0).symlink_to(tmp_path / "nowhere")
    (report, _ahead) = outline(task_of(writer))
    assert report == LogReport(
        report.file,
        0,
        0,
        flaws=[Flaw("file.read", report.file, None, 0, 0, "No such file or directory")],
    )


UNIT_PROOF = "the unit does not lead to the last entry of its log file: one of them is damaged"


def unit_flaw(index: int, torn: bool) -> Flaw:
    place = index * 32 % INDEX_BYTES
    return Flaw(
        "index.unit",
        f"g1/dledger-n1/index/{index * 32 - place:020d}",
        index,
        place,
        place + 32,
        UNIT_PROOF,
        torn,
    )


def test_the_unit_of_the_last_entry_of_a_file(tmp_path: Path) -> None:
    """If it is damaged, the file has no known end. If it was not written, that may be torn; a file
    with a single entry needs none."""
    writer = write(tmp_path, MESSAGES)
    sound = expected(writer)
    assert 1 in {report.entries for report in sound}
    for number, report in enumerate(sound[: len(bases(writer)) - 1]):
        assert report.last_index is not None
        path, at = unit_at(writer, report.last_index)
        whole = path.read_bytes()
        for unit in (
            bytes(32),
            struct.pack(">iqiqq", 1, 1, 200, report.last_index, 0),
            struct.pack(">iq20x", 1, -1),
            None,
        ):
            path.unlink() if unit is None else put(path, at, unit)
            found = outline(task_of(writer))[number]
            if report.entries == 1 and unit in (bytes(32), None):
                assert found == report
            else:
                assert found.flaws == [
                    unit_flaw(report.last_index, torn=unit in (bytes(32), None))
                ], (number, unit)
                assert (found.entries, found.last_index, found.last_intact_index, found.end) == (
                    0,
                    None,
                    -1,
                    0,
                )
            path.write_bytes(whole)


def test_a_unit_that_leads_to_another_file(tmp_path: Path) -> None:
    """The entry is there, but not in the file that should end with it, because the file between two
    others does not begin with an entry."""
    writer = write(tmp_path, [*MESSAGES[:3], LARGE, LARGE, LARGE])
    put(data(writer, FILE_BYTES), 0, b"\7")
    reports = outline(task_of(writer))
    assert [report.flaws for report in reports[:3]] == [
        [unit_flaw(3, torn=False)],
        [
            Flaw(
                "entry.unreadable",
                reports[1].file,
                None,
                0,
                48,
                "the file does not begin with an entry",
            )
        ],
        [],
    ]


def test_unit_of_an_unwritten_entry_is_torn_and_other_bytes_are_damage(tmp_path: Path) -> None:
    """The header lacks what lies in one sector of the log; it may lie in two. One with other bytes
    is damage, and so is a cut unit."""
    straddled = 0
    for filler in range(60, 150, 7):
        writer = write(
            tmp_path / str(filler),
            [*MESSAGES[:1], Message("t", bytes(filler)), Message("t", b"\1", term=-1), LARGE],
        )
        entry = writer.entries[2]
        assert in_file(writer, 0)[-1] == entry
        edge = min(SECTOR - entry.pos % SECTOR, 48)
        straddled += 0 < edge < 48
        whole = data(writer, 0).read_bytes()
        header = whole[entry.pos : entry.pos + 48]
        for altered, torn in (
            (bytes(48), True),
            (bytes(edge) + header[edge:], True),
            (header[:edge] + bytes(48 - edge), edge < 48),
            (bytes([255]) * 48, False),
            (bytes([*header[:9], 255, *header[10:]]), False),
        ):
            put(data(writer, 0), entry.pos, altered)
            found = outline(task_of(writer))[0].flaws
            # Its index and position suffice to find it.
            assert found == (
                []
                if altered[8:16] + altered[24:32] == header[8:16] + header[24:32]
                else [unit_flaw(2, torn)]
            ), filler
        put(data(writer, 0), entry.pos, bytes(48))
        path, at = unit_at(writer, 2)
        unit = path.read_bytes()[at : at + 32]
        put(path, at, bytes([*unit[:4], 1, *unit[5:]]))
        assert outline(task_of(writer))[0].flaws == [unit_flaw(2, torn=False)], (
            "a position behind all others"
        )
        path.write_bytes(path.read_bytes()[:at] + unit[:31])
        assert outline(task_of(writer))[0].flaws == [unit_flaw(2, torn=False)]
    assert straddled > 3


def test_an_index_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Here a directory in its place; a failing disk is reported in the same way."""
    writers = write_cluster(tmp_path, history(3, 100))
    last = next(
        before.index
        for before, after in pairwise(writers[1].entries)
        if before.pos // 8192 < after.pos // 8192
    )
    place = last * 32 % 1024
    path = writers[1].log / "index" / f"{last * 32 - place:020d}"
    path.unlink()
    path.mkdir()
    found = audit([str(tmp_path / name) for name in NODES], agreement=True)
    read = [finding.flaw for finding in found.findings if finding.flaw.rule == "file.read"]
    assert read == [
        Flaw(
            "file.read",
            f"g1/dledger-n2/index/{path.name}",
            last,
            place,
            place + 32,
            "Is a directory",
        )
    ]
    assert found.verdict == "FAIL"


def test_the_election_records_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries behind the last one that is something else, in the last file, at most a number of
    them."""
    monkeypatch.setattr(outlines, "TAIL_MAX", 3)
    kinds = {
        "E": Message(RAFT, b"", term=1),
        "m": Message("t", b"", term=1),
        "c": replace(membership(NODES), term=1),
    }
    for number, kind in enumerate(
        ["".join(each) for count in range(5) for each in product("Em", repeat=count)]
        + ["EcE", "cE", "Ec"]
    ):
        for before in (LARGE, kinds["E"]):
            writer = write(
                tmp_path / f"{number}-{before is LARGE}", [before, *(kinds[each] for each in kind)]
            )
            here = in_file(writer, bases(writer)[-1])
            tail = 0
            while tail < min(len(here), 3) and here[-1 - tail].message == kinds["E"]:
                tail += 1
            found = [report for report in outline(task_of(writer)) if report.entries][-1]
            assert found.election_tail == (here[-tail].index if tail else None), kind


def test_election_records_that_cannot_be_found_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end where an entry is not known to be one."""
    writer = write(tmp_path, [Message(RAFT, b"", term=1)] * 6)
    assert outline(task_of(writer))[0].election_tail == 0
    flip(data(writer, 0), writer.entries[3].pos + 12)
    assert outline(task_of(writer))[0].election_tail == 4
    real = outlines.open_file

    def fail(path: str) -> object:
        if path.endswith("0" * 20) and opened:
            raise OSError(5, "Input/output error")
        opened.append(path)
        return real(path)

    opened: list[str] = []
    monkeypatch.setattr(outlines, "open_file", fail)
    assert outline(task_of(writer))[0].election_tail is None


def test_a_record_is_read_as_far_as_it_is_there(tmp_path: Path) -> None:
    """Its size may be damaged, its file cut."""
    writer = write(
        tmp_path, [LARGE, Message("topic", b"body" * 10, tag="x"), Message(RAFT, b"", term=1)]
    )
    task = task_of(writer)
    for entry in writer.entries:
        length = len(entry.message.body)
        for size in (-5, 0, 1, *range(130, entry.size + 1), entry.size + 9, 1 << 30):
            topic, body = record_at(task, entry.pos, size)
            assert body == entry.message.body[: max(size - 136, 0)]
            assert topic == entry.message.topic.encode()[: max(size - 136 - length - 1, 0)], size
    last = writer.entries[-1]
    for kept in (last.pos % FILE_BYTES + 140, last.pos % FILE_BYTES - 1):
        data(writer, FILE_BYTES).write_bytes(data(writer, FILE_BYTES).read_bytes()[:kept])
        assert (
            record_at(task, last.pos, last.size)[0]
            == RAFT.encode()[: max(kept - last.pos % FILE_BYTES - 137, 0)]
        )
    data(writer, FILE_BYTES).unlink()
    assert record_at(task, last.pos, last.size) == (b"", b"")
