"""The outline of a log: the headers at the edges of its files, and the entries that its index files
lead to; nothing in between is read.

`outline` is the plain function (replica → one report per file) that both engines run: three headers
per file. It reports stored words without verifying them; only `scan` recomputes. For the quick
comparison (`agreement`), which states that it did not read the bytes.
"""

from __future__ import annotations

import os

from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.columns import RAFT_TOPIC
from ledgermq.audit.reading.decode import (
    ENTRY_BYTES_MIN,
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    INDEX_UNIT_BYTES,
    RECORD_FIXED_BYTES,
    numbered_files,
    read_space,
)
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.lookup import header_at
from ledgermq.audit.reading.walk import LogFile, Progress
from ledgermq.audit.rules import Flaw

LENGTH_BYTES = 4
SECTOR = 512
TAIL_MAX = 64
"""At most this many entries at the end are checked for being election records."""


def outline(task: LogFile, progress: Progress | None = None) -> list[LogReport]:
    """One report per log file of the task's replica, in order of position."""
    folder = f"{task.log_folder}/data"
    names = [
        (base, name)
        for base, name in numbered_files(f"{task.root}/{folder}")
        if base % task.data_file_bytes == 0
    ]
    reports = [
        _begin(task, base, f"{folder}/{name}") for base, name in names if base >= task.begin_pos
    ]
    filled = [report for report in reports if report.first_index is not None]
    for at, report in enumerate(filled):
        following = filled[at + 1] if at + 1 < len(filled) else None
        assert report.first_index is not None
        if following is not None and following.first_index is not None:
            _end(task, report, following.first_index - 1)
        else:
            last = _last_by_units(task, report.first_index)
            _end(task, report, last)
            report.ending, report.election_tail = (
                "zero",
                _elections_from(task, report.first_index, last),
            )
    return reports


def _begin(task: LogFile, base: int, path: str) -> LogReport:
    report = LogReport(f"{os.path.basename(task.root)}/{path}", base, 0)
    try:
        with open_file(f"{task.root}/{path}") as file:
            report.length = file.size
            if file.size != task.data_file_bytes:
                proof = f"{file.size} bytes instead of {task.data_file_bytes}"
                bounds = min(file.size, task.data_file_bytes), max(file.size, task.data_file_bytes)
                report.flaws.append(Flaw("file.length", report.file, None, *bounds, proof))
            head = file.pread(HEADER_BYTES + RECORD_FIXED_BYTES, 0)
            if len(head) < HEADER_BYTES + RECORD_FIXED_BYTES or not any(head):
                # Allocated ahead, or truncated, which was reported above.
                return report
            fields = HEADER.unpack_from(head)
            if (
                fields[0] != ENTRY_MAGIC
                or fields[4] != base
                or fields[1] != fields[8] + HEADER_BYTES
                or fields[1] < ENTRY_BYTES_MIN
            ):
                report.flaws.append(
                    Flaw(
                        "entry.unreadable",
                        report.file,
                        index=None,
                        byte_from=0,
                        byte_to=HEADER_BYTES,
                        proof="the file does not begin with an entry",
                    )
                )
                return report
            report.first_index, report.first_term, report.first_size, report.first_chain = (
                fields[2],
                fields[3],
                fields[1],
                fields[6],
            )
            if fields[2] == 0:
                length = int.from_bytes(head[-LENGTH_BYTES:], "big")
                body = file.pread(min(length, fields[8]), HEADER_BYTES + RECORD_FIXED_BYTES)
                report.memberships.append((0, body.decode("utf-8", "replace")))
    except OSError as error:
        report.flaws.append(
            Flaw(
                "file.read",
                report.file,
                index=None,
                byte_from=0,
                byte_to=report.length,
                proof=f"{error.strerror}",
            )
        )
    return report


def _end(task: LogFile, report: LogReport, last: int) -> None:
    """The last entry of a file: found by its index unit, with the content of its header."""
    assert report.first_index is not None
    header = header_at(task, last)
    if header is not None and report.base <= header[0] < report.base + task.data_file_bytes:
        pos, fields = header
        report.last_term, report.last_chain, report.end = (
            fields[3],
            fields[6],
            pos + fields[1] - report.base,
        )
    else:
        start = last * INDEX_UNIT_BYTES
        place = start % task.index_file_bytes
        at = (
            f"{os.path.basename(task.root)}/{task.log_folder}/index/{start - place:020d}",
            last,
            place,
            place + INDEX_UNIT_BYTES,
        )
        try:
            unit = read_space(
                task.index_directory, task.index_file_bytes, start, start + INDEX_UNIT_BYTES
            )
        except OSError as error:
            report.flaws.append(Flaw("file.read", *at, f"{error.strerror}"))
            return
        if any(unit) or last != report.first_index:
            proof = (
                "the unit does not lead to the last entry of its log file: one of them is damaged"
            )
            report.flaws.append(
                Flaw(
                    "index.unit", *at, proof, torn=not any(unit) or _leads_to_unwritten(task, unit)
                )
            )
            return
        # After a kill the last file may lack all its units: its first entry is known independently.
        report.last_term, report.last_chain, report.end = (
            report.first_term,
            report.first_chain,
            report.first_size,
        )
    report.entries, report.ending = last - report.first_index + 1, "blank"
    report.last_index = report.last_intact_index = last


def _leads_to_unwritten(task: LogFile, unit: bytes) -> bool:
    """Whether the log sector to which a unit points was never written, as after a power cut."""
    if len(unit) < INDEX_UNIT_BYTES:
        return False
    pos = int.from_bytes(unit[4:12], "big")
    start = pos % task.data_file_bytes
    header = (
        bytewise.read(
            f"{task.root}/{task.log_folder}/data/{pos - start:020d}", start, start + HEADER_BYTES
        )
        or b""
    )
    edge = SECTOR - pos % SECTOR
    return any(part and not any(part) for part in (header[:edge], header[edge:]))


def _last_by_units(task: LogFile, first: int) -> int:
    """The last entry, from entry `first` on, that the index files lead to: units are written in
    order."""
    step = 1
    while header_at(task, first + step) is not None:
        step *= 2
    low, high = first + step // 2, first + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if header_at(task, middle) is not None else (low, middle)
    return low


def _elections_from(task: LogFile, first: int, last: int) -> int | None:
    """The first entry of the election records at the end of the log; None if the last entry is not
    an election record."""
    tail = None
    for index in range(last, max(first - 1, last - TAIL_MAX), -1):
        header = header_at(task, index)
        if (
            header is None
            or header[1][5] != 0
            or record_at(task, header[0], header[1][1])[0] != RAFT_TOPIC
        ):
            break
        tail = index
    return tail


def record_at(task: LogFile, pos: int, size: int) -> tuple[bytes, bytes]:
    """The stored topic, if its name is short, and the body of an entry; empty if they cannot be
    read."""
    base = pos - pos % task.data_file_bytes
    try:
        with open_file(f"{task.root}/{task.log_folder}/data/{base:020d}") as file:
            # The size is not verified: it may exceed the file.
            entry = file.pread(max(min(size, file.size), 0), pos - base)
    except OSError:
        return b"", b""
    body_at = HEADER_BYTES + RECORD_FIXED_BYTES
    at = body_at + int.from_bytes(entry[body_at - LENGTH_BYTES : body_at], "big")
    return (entry[at + 1 : at + 1 + entry[at]] if at < len(entry) else b""), entry[body_at:at]
