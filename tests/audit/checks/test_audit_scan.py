"""One log file on its own: what a scan tells of it, to the byte, whatever is wrong with one field
of one entry."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from ledgermq.audit.checks import scan as scans
from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.checks.scan import LogReport, Scan, scan
from ledgermq.audit.reading import bytewise, objects
from ledgermq.audit.reading.columns import Columns
from ledgermq.audit.reading.native import KERNEL, PYTHON, SCAN, Kernel
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw, coalesce
from tests.audit.altering import log_bytes, put_log
from tests.audit.both_scans import differences, report_of
from tests.audit.client_cases import native_id
from tests.audit.log_writer import (
    CREATED,
    RAFT,
    STORAGE,
    Message,
    Placed,
    Writer,
    checksum,
    election,
    java_hash,
    membership,
)

DELIVERY = "rmq_sys_ledgermq_delivery"
KERNELS = [None] if KERNEL is None else [None, KERNEL]
KEPT = ("memberships", "elections", "trims", "seals", "resets")


def opened(writer: Writer, *, deep: bool = False) -> list[LogFile]:
    (one,) = find_replicas(str(writer.node_dir))
    return one.tasks(deep)


def scanned(
    task: LogFile, kernel: Kernel | None = None, window_bytes: int = 4 << 20
) -> tuple[LogReport, list[Columns]]:
    """What the scan with this kernel, or without one, tells of a file. The compiled scan must tell
    the same as the Python scan: a window that it takes is in order by every rule."""
    work = Scan(task, None, kernel)
    columns = list(work.columns(window_bytes))
    if kernel is None and KERNEL is not None:
        assert report_of(task, KERNEL, window_bytes) == report_of(task, None, window_bytes)
    return work.report, columns


def test_every_rule_of_an_entry_is_broken_here() -> None:
    """A window that the compiled scan takes is never seen by the Python scan, so a rule that only
    the latter knows would be skipped. `scanned` notices, given a case that breaks the rule."""
    rules, here = (
        set(re.findall(r'"((?:entry|record)\.[a-z-]+)"', text))
        for text in (inspect.getsource(scans), Path(__file__).read_text())
    )
    assert len(rules) > 20 and rules <= here | {f"entry.{field}" for field in FIELDS}


def own_flaws(report: LogReport) -> list[Flaw]:
    """Those of the log file and its entries; derived files and the order of queues have others."""
    return [
        flaw
        for flaw in report.flaws
        if flaw.file == report.file and flaw.rule != "record.queue-offset"
    ]


def window_of(count: int, writer: Writer) -> int:
    """So many bytes that a piece has this number of entries, all of the size of the first: one more
    must be whole in it."""
    return (count + 1) * writer.entries[0].size + 60


def write(
    base: Path,
    messages: Sequence[Message],
    *,
    data_bytes: int = 8192,
    writer: type[Writer] = Writer,
    **finish: Any,
) -> Writer:
    found = writer(base / "n1", data_bytes=data_bytes)
    for message in messages:
        found.append(message)
    return found.finish(**{"snapshot": False, **finish})


def record(topic: str, tag: str, body: object, term: int = 1) -> Message:
    return Message(topic, json.dumps(body).encode(), tag=tag, term=term, time=CREATED + 7)


def plain(number: int, term: int = 1, size: int = 30) -> Message:
    return Message(
        f"t{number % 2}",
        b"x" * size,
        number % 3,
        f"tag{number % 2}",
        f"k{number}",
        0,
        CREATED + number,
        term,
    )


# A log in order


HISTORY = [
    membership(("n1",)),
    election(1, "n1"),
    *[plain(number) for number in range(2)],
    record(DELIVERY, "reset", {"group": "g"}),
    record(DELIVERY, "other", {"group": "h"}),
    replace(record(RAFT, "membership", {"voters": {"ä": {}}}), channel=1),
    record("t0", "reset", {}),
    record("t1", "term-start", {}),
    record(STORAGE, "trim", {"begin": 1}),
    record(STORAGE, "seal", {"base": 1}),
    record(STORAGE, "other", {}),
    record("t1", "seal", {}),
    Message("t0", b"TAGS\x01trim\x02", tag="trim", time=CREATED + 7),
    *[plain(number, 2, 300) for number in range(9, 16)],
    *[
        Message("t0", b"x", 0, "", native_id("log", 7, 1, 5 + at), 0, CREATED + 16, 2, at + 1)
        for at in range(3)
    ],
    Message(RAFT, b"forced", tag="forced", term=3, time=CREATED + 20),
    Message(RAFT, b"\xff", tag="term-start", term=3, time=CREATED + 20),
    Message(RAFT, b"other", tag="other", term=3, time=CREATED + 21),
]


def kept_in(entries: Sequence[Placed]) -> dict[str, list[tuple[int, str]]]:
    """The records whose bodies a scan keeps, by topic and tag."""
    wanted = {
        "memberships": [(RAFT, "membership")],
        "elections": [(RAFT, "term-start"), (RAFT, "forced")],
        "trims": [(STORAGE, "trim")],
        "seals": [(STORAGE, "seal")],
        "resets": [(DELIVERY, "reset")],
    }
    return {
        name: [
            (e.index, e.message.body.decode("utf-8", "replace"))
            for e in entries
            if (e.message.topic, e.message.tag) in chosen
        ]
        for name, chosen in wanted.items()
    }


def in_files(writer: Writer) -> list[list[Placed]]:
    count = (writer.pos // writer.data_bytes) + 1
    return [
        [e for e in writer.entries if e.pos // writer.data_bytes == number]
        for number in range(count)
    ]


@pytest.mark.parametrize("kernel", KERNELS, ids=["python", "compiled"][: len(KERNELS)])
@pytest.mark.parametrize("window_bytes", [300, 900, 4 << 20])
def test_the_report_of_a_file_in_order(
    tmp_path: Path, kernel: Kernel | None, window_bytes: int
) -> None:
    """Every field, in windows that end anywhere."""
    writer = write(tmp_path, HISTORY, data_bytes=2048)
    tasks, space, chain, counted = opened(writer), log_bytes(writer), writer.seed, 0
    for task, entries in zip(tasks, in_files(writer), strict=False):
        report, columns = scanned(task, kernel, window_bytes)
        told = asdict(report)
        first, last = entries[0], entries[-1]
        common = [e.index for e in entries if e.message.topic != RAFT or e.message.channel]
        raw = space[first.pos : first.pos + 44]
        expected = {
            "file": f"g1/dledger-n1/data/{task.base:020d}",
            "base": task.base,
            "length": 2048,
            "entries": len(entries),
            "sound": len(entries),
            "first_index": first.index,
            "last_index": last.index,
            "last_intact_index": last.index,
            "first_term": first.term,
            "last_term": last.term,
            "last_sound_term": last.term,
            "first_size": first.size,
            "first_input": (raw[:36] + raw[40:]).hex(),
            "first_chain": first.chain,
            "last_chain": last.chain,
            "prev_chain": chain,
            "first_store_ms": first.message.time,
            "last_store_ms": last.message.time,
            "last_at": last.pos - task.base,
            "end": last.pos - task.base + last.size,
            "ending": "zero" if last is writer.entries[-1] else "blank",
            "election_tail": max([*common, first.index - 1]) + 1,
            "damaged": [],
            "flaws": [],
            "scanned_by": PYTHON if kernel is None else SCAN,
            **kept_in(entries),
        }
        assert {key: told[key] for key in expected} == expected
        native = [e.index for e in entries if e.message.flag]
        assert [(7, run.first_index, run.last_index) for run in report.producers] == [
            (7, native[0], native[-1]) for _ in native[:1]
        ]
        assert {(run.topic, run.queue): run.last_index for run in report.queues} == {
            (e.message.topic, e.message.queue): e.index for e in entries
        }
        if kernel is None:
            check_columns(columns, entries, task.base)
        else:
            assert columns == []
        chain, counted = last.chain, counted + len(entries)
    assert counted == len(HISTORY) and len(in_files(writer)) > 3


def check_columns(columns: Sequence[Columns], entries: Sequence[Placed], base: int) -> None:
    assert [index for each in columns for index in each.index.tolist()] == [
        e.index for e in entries
    ]
    rows = [(each, row) for each in columns for row in range(len(each))]
    for ordinal, ((each, row), entry) in enumerate(zip(rows, entries, strict=True)):
        message = entry.message
        assert (each.offset[row], each.size[row], each.term[row], each.chain[row]) == (
            entry.pos - base,
            entry.size,
            entry.term,
            entry.chain,
        )
        assert (each.channel[row], each.queue[row], each.queue_offset[row]) == (
            message.channel,
            message.queue,
            entry.queue_offset,
        )
        assert (each.store_ms[row], each.total_size[row]) == (message.time, entry.size - 48)
        assert each.topics[int(each.topic_of[row])].decode() == message.topic and each.tags_code[
            row
        ] == java_hash(message.tag)
        assert each.body_crc[row] == checksum(
            Writer.record(message, entry.queue_offset, entry.pos + 48)
        )
        assert (
            each.intact[row]
            and each.proven[row]
            and each.sound[row]
            and each.ordinal[row] == ordinal
        )


@pytest.mark.parametrize("kernel", KERNELS, ids=["python", "compiled"][: len(KERNELS)])
def test_the_records_of_masters_at_the_end_of_a_file(tmp_path: Path, kernel: Kernel | None) -> None:
    """From where on a file holds only these; damaged entries may be any."""
    start = Message(RAFT, b"{}", tag="term-start", time=CREATED + 9)
    for number, (messages, tail) in enumerate(
        (
            ([start, start], 0),
            ([plain(0), start, start], 1),
            ([start, plain(0), start], 2),
            ([start, start, plain(0)], 3),
            ([start, replace(start, topic="t1"), start], 2),
            ([start, replace(membership(("n1",)), term=1, time=CREATED + 9), start], 2),
        )
    ):
        writer = write(tmp_path / str(number), messages)
        for window_bytes in (4 << 20, 250, 150):
            assert scanned(opened(writer)[0], kernel, window_bytes)[0].election_tail == tail
    space = log_bytes(writer)
    space[writer.entries[0].pos + 60] ^= 1
    put_log(writer, space)
    assert scanned(opened(writer)[0], kernel)[0].election_tail == 2
    writer = write(tmp_path / "damaged", [start, start])
    space = log_bytes(writer)
    space[writer.entries[0].pos + 60] ^= 1
    put_log(writer, space)
    assert scanned(opened(writer)[0], kernel)[0].election_tail == 1


def test_progress_is_told_up_to_the_end_of_the_file(tmp_path: Path) -> None:
    """Behind each window, and once more for what is behind the last entry."""
    writer = write(
        tmp_path, [plain(number, size=30 + number) for number in range(6)], data_bytes=2048
    )
    told: list[int] = []
    done = 0
    for columns in Scan(opened(writer)[0], told.append).columns(window_of(2, writer)):
        assert sum(told) == done
        done = int(columns.offset[-1] + columns.size[-1])
    assert (done, sum(told), told[0]) == (writer.pos, 2048, writer.entries[2].pos)
    if KERNEL is not None:
        told = []
        assert not list(Scan(opened(writer)[0], told.append, KERNEL).columns(window_of(2, writer)))
        assert (told[0], told[-1], sum(told)) == (writer.entries[2].pos, 2048 - writer.pos, 2048)
    for kernel in KERNELS:
        told = []
        assert (
            scan(opened(writer)[0], told.append, kernel) == scanned(opened(writer)[0], kernel)[0]
            and sum(told) == 2048
        )
        told = []
        scan(replace(opened(writer)[0], end_pos=writer.entries[4].pos), told.append, kernel)
        assert sum(told) == writer.entries[4].pos, (
            "behind the limit of a running replica, nothing is checked"
        )


def test_store_times_of_a_log_begin_at_minus_one(tmp_path: Path) -> None:
    for time in (0, -1, -2):
        writer = write(tmp_path, [Message("t", b"", time=time)])
        for kernel in KERNELS:
            flaws = own_flaws(scanned(opened(writer)[0], kernel)[0])
            assert [flaw.proof for flaw in flaws] == ["store time -2 follows -1"] * (time == -2)


# One field of one entry


FIELDS = {
    "magic": (0, 4),
    "size": (4, 8),
    "index": (8, 16),
    "term": (16, 24),
    "pos": (24, 32),
    "channel": (32, 36),
}
FIELDS |= {"chain-word": (36, 40), "body-crc": (40, 44), "body-size": (44, 48)}
OWN = ("magic", "size", "index", "pos", "body-size")
"""Fields whose right value is known without the chain."""


def number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def chain_of(head: bytes, body: bytes, before: int) -> int:
    return checksum(head + struct.pack(">I", checksum(body)), before)


@pytest.mark.parametrize("field", [*FIELDS, "body", "body and term"])
def test_one_wrong_field_of_a_header(tmp_path: Path, field: str) -> None:
    """The field alone, if its right value is known, or the chain tells which one it is; else the
    entry."""
    writer = write(tmp_path, [plain(at) for at in range(5)])
    (task, *_), whole = opened(writer), bytes(log_bytes(writer))
    for entry in writer.entries:
        at, before = (
            entry.pos,
            writer.entries[entry.index - 1].chain if entry.index else writer.seed,
        )
        data = bytearray(whole)
        start, stop = FIELDS.get(field, (48, entry.size))
        data[at + (stop - 1 if field != "body" else 140)] ^= 1 if field != "body and term" else 0
        if field == "body and term":
            data[at + 140] ^= 1
            data[at + 23] ^= 1
        put_log(writer, data)
        head, body = bytes(data[at : at + 36]), bytes(data[at + 48 : at + entry.size])
        has, wants, stored = (
            checksum(body),
            struct.unpack(">I", data[at + 40 : at + 44])[0],
            struct.unpack(">I", data[at + 36 : at + 40])[0],
        )
        calculated, rule = chain_of(head, body, before), f"entry.{field}"
        seed = "chain.seed" if entry.index == 0 else "entry.chain"
        text = f"the body has CRC {has:08x}, its header says {wants:08x}"
        if field in OWN:
            text = (
                f"{number(data[at + start : at + stop])} instead of"
                f" {number(whole[at + start : at + stop])}"
            )
        elif field in ("term", "channel") or (
            field == "chain-word" and entry is writer.entries[-1]
        ):
            start, stop, rule, text = (
                0,
                entry.size,
                seed,
                f"the chain CRC is {stored:08x}, recomputed {calculated:08x}",
            )
        elif field == "chain-word":
            text = f"the word is {stored:08x}, the chain goes on from {calculated:08x}"
        elif field == "body and term":
            start, rule = 0, "entry.body"
        whole_entry = rule in ("entry.chain-word", "entry.body-crc", "entry.body-size")
        proven = whole_entry or field in OWN
        word = stored if rule != "entry.chain-word" else entry.chain
        for window_bytes in (4 << 20, window_of(1, writer)):
            report, columns = scanned(task, None, window_bytes)
            assert own_flaws(report) == [
                Flaw(rule, task.shown, entry.index, start + at, stop + at, text, torn=True)
            ]
            assert report.damaged == ([] if whole_entry else [entry.index])
            assert joined(columns, "intact") == [
                whole_entry or other is not entry for other in writer.entries
            ]
            assert (
                joined(columns, "proven")
                == joined(columns, "sound")
                == [proven or other is not entry for other in writer.entries]
            )
            assert joined(columns, "index") == [0, 1, 2, 3, 4]
            assert joined(columns, "chain") == [
                word if other is entry else other.chain for other in writer.entries
            ]
            assert (report.last_index, report.last_intact_index) == (
                4,
                4 if whole_entry or entry.index < 4 else 3,
            )
            assert report.sound == 4 + proven


def joined(columns: Sequence[Columns], name: str) -> list[Any]:
    return [value for each in columns for value in getattr(each, name).tolist()]


@pytest.mark.parametrize("second", ["term", "channel", "body"])
def test_wrong_field_beside_other_damage_leaves_the_header_unproven(
    tmp_path: Path, second: str
) -> None:
    """The rest of the header is right only if the chain continues over it."""
    writer = write(tmp_path, [plain(at) for at in range(3)])
    data = log_bytes(writer)
    entry = writer.entries[1]
    data[entry.pos + 3] ^= 16
    data[entry.pos + {"term": 23, "channel": 35, "body": 140}[second]] ^= 1
    put_log(writer, data)
    report, (columns,) = scanned(opened(writer)[0])
    found = [
        (flaw.rule, flaw.byte_from - entry.pos, flaw.byte_to - entry.pos)
        for flaw in own_flaws(report)
    ]
    damage = ("entry.body", 48, entry.size) if second == "body" else ("entry.chain", 0, entry.size)
    assert sorted(found) == sorted([("entry.magic", 0, 4), damage])
    assert columns.proven.tolist() == [True, False, True]


def test_both_words_of_an_entry(tmp_path: Path) -> None:
    """The chain that goes on tells that only these are wrong, but not of two entries in a row."""
    writer = write(tmp_path, [plain(at) for at in range(4)])
    (task, *_), whole, entry = opened(writer), bytes(log_bytes(writer)), writer.entries[1]
    for places, expected in (
        ((39, 43), [("entry.chain-word", 1, 36, 40), ("entry.body-crc", 1, 40, 44)]),
        ((39, 39 + entry.size), [("entry.chain", at, 0, entry.size) for at in (1, 2, 3)]),
    ):
        data = bytearray(whole)
        for place in places:
            data[entry.pos + place] ^= 1
        put_log(writer, data)
        for window_bytes in (4 << 20, window_of(1, writer)):
            report, _ = scanned(task, None, window_bytes)
            flaws = [
                Flaw(
                    rule,
                    task.shown,
                    at,
                    writer.entries[at].pos + start,
                    writer.entries[at].pos + stop,
                    "",
                    True,
                )
                for rule, at, start, stop in expected
            ]
            assert [replace(flaw, proof="") for flaw in own_flaws(report)] == [
                replace(flaw, proof="") for flaw in coalesce(flaws, 9)
            ]


def test_a_chain_may_go_on_from_zero(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "n1")
    writer.chain = 0
    for at in range(3):
        writer.append(plain(at))
    task = opened(writer.finish(snapshot=False))[0]
    for kernel in KERNELS:
        assert own_flaws(scanned(replace(task, seed=0), kernel)[0]) == []


@pytest.mark.parametrize("kernel", KERNELS, ids=["python", "compiled"][: len(KERNELS)])
def test_the_body_of_a_kept_record_that_has_an_origin(
    tmp_path: Path, kernel: Kernel | None
) -> None:
    """The number of its bytes stands right behind the index of the origin."""
    writer = write(
        tmp_path,
        [
            plain(0),
            plain(1),
            record(DELIVERY, "reset", {"group": "g"}),
            replace(plain(3), time=CREATED + 9),
        ],
    )
    remade(writer, {2: {124: q(1)}})
    report, _ = scanned(opened(writer)[0], kernel)
    assert (report.resets, report.flaws) == ([(2, '{"group": "g"}')], [])


def test_damage_in_windows_of_any_size_is_told_alike(tmp_path: Path) -> None:
    """By both scans: a window in order is taken by the compiled one, whatever was before it."""
    writer = write(
        tmp_path,
        [election(1, "n1"), *[plain(at) for at in range(6)], election(2, "n1", CREATED + 9)],
        data_bytes=2048,
    )
    (task, *_), whole = opened(writer), bytes(log_bytes(writer))
    for entry, place in product(writer.entries[:5:4], (3, 15, 39, 60)):
        data = bytearray(whole)
        data[entry.pos + place] ^= 1
        put_log(writer, data)
        for window_bytes in (250, 500):
            assert KERNEL is None or not differences([task], KERNEL, window_bytes)


def remade(writer: Writer, entries: Mapping[int, Mapping[int, bytes]]) -> None:
    """Put bytes at places of entries, and make all checksums right again, of each entry's body and
    of the chain."""
    space, chain = log_bytes(writer), writer.seed
    for entry in writer.entries:
        at = entry.pos
        for place, new in entries.get(entry.index, {}).items():
            space[at + place : at + place + len(new)] = new
        body_crc = checksum(bytes(space[at + 48 : at + entry.size]))
        chain = checksum(bytes(space[at : at + 36]) + struct.pack(">I", body_crc), chain)
        space[at + 36 : at + 44] = struct.pack(">II", chain, body_crc)
    put_log(writer, space)


def q(value: int) -> bytes:
    return struct.pack(">q", value)


def i(value: int) -> bytes:
    return struct.pack(">i", value)


JUMPS: list[tuple[list[int], list[int], list[tuple[str, int, str, int]]]] = [
    # Fields, right indexes, and rule, place, proof, index of each flaw: one wrong field is an
    # error, a lasting jump is a gap.
    ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], []),
    ([9, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [("entry.index", 0, "9 instead of 0", 0)]),
    ([0, 9, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [("entry.index", 1, "9 instead of 1", 1)]),
    ([0, 1, 2, 3, 4, 9], [0, 1, 2, 3, 4, 5], [("entry.index", 5, "9 instead of 5", 5)]),
    (
        [0, 1, 9, 3, 9, 5],
        [0, 1, 2, 3, 4, 5],
        [("entry.index", 2, "9 instead of 2", 2), ("entry.index", 4, "9 instead of 4", 4)],
    ),
    ([0, 1, 5, 6, 7, 8], [0, 1, 5, 6, 7, 8], [("entry.gap", 2, "index 5 follows index 1", 2)]),
    ([0, 1, 2, 3, 5, 6], [0, 1, 2, 3, 5, 6], [("entry.gap", 4, "index 5 follows index 3", 4)]),
    ([0, 1, 2, 1, 2, 3], [0, 1, 2, 1, 2, 3], [("entry.repeat", 3, "index 1 follows index 2", 1)]),
    ([0, 1, 2, 2, 3, 4], [0, 1, 2, 2, 3, 4], [("entry.repeat", 3, "index 2 follows index 2", 2)]),
    ([3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8], []),
    ([0, 5, 6, 7, 8, 9], [4, 5, 6, 7, 8, 9], [("entry.index", 0, "0 instead of 4", 4)]),
]


@pytest.mark.parametrize(("fields", "right", "flaws"), JUMPS)
def test_indexes_that_do_not_count_up(
    tmp_path: Path, fields: list[int], right: list[int], flaws: list[tuple[str, int, str, int]]
) -> None:
    writer = write(tmp_path, [plain(at) for at in range(6)])
    remade(writer, {at: {8: q(index)} for at, index in enumerate(fields)})
    report, (columns,) = scanned(opened(writer)[0])
    places = [writer.entries[at].pos for _, at, _, _ in flaws]
    expected = [
        Flaw(rule, report.file, index, at + 8, at + 16, proof, rule == "entry.index")
        for at, (rule, _, proof, index) in zip(places, flaws, strict=True)
    ]
    # The field is part of what the chain covers, and it is made right again over the wrong one.
    assert [
        flaw for flaw in own_flaws(report) if not flaw.rule.startswith(("entry.chain", "chain."))
    ] == expected
    assert columns.index.tolist() == right and (report.first_index, report.last_index) == (
        right[0],
        right[-1],
    )


def test_indexes_across_windows(tmp_path: Path) -> None:
    """The last index of a window counts for the next one, and its next entry for the last one of a
    window."""
    for count, (fields, right, flaws) in product((1, 2, 3), JUMPS[5:9]):
        writer = write(tmp_path / "w", [plain(at) for at in range(6)])
        remade(writer, {at: {8: q(index)} for at, index in enumerate(fields)})
        report, columns = scanned(opened(writer)[0], None, window_of(count, writer))
        assert len(columns[0]) == count
        found = [
            flaw
            for flaw in own_flaws(report)
            if not flaw.rule.startswith(("entry.chain", "chain."))
        ]
        told = [(flaw.rule, flaw.byte_from, flaw.proof, flaw.index) for flaw in found]
        assert told == [
            (rule, writer.entries[at].pos + 8, proof, index) for rule, at, proof, index in flaws
        ]
        assert [index for each in columns for index in each.index.tolist()] == right
    for count, wrong, bit in product((1, 2), (1, 3, 5), (2, 64)):
        writer = write(tmp_path / "w", [plain(at) for at in range(6)])
        data = log_bytes(writer)
        data[writer.entries[wrong].pos + 15] ^= bit
        put_log(writer, data)
        report, columns = scanned(opened(writer)[0], None, window_of(count, writer))
        assert [(flaw.rule, flaw.index) for flaw in own_flaws(report)] == [("entry.index", wrong)]
        assert [index for each in columns for index in each.index.tolist()] == [0, 1, 2, 3, 4, 5]


def test_of_two_entries_the_one_with_the_wrong_index_is_told(tmp_path: Path) -> None:
    """Also if the file has no other, or no other is in the window."""
    for count, wrong in product((2, 3), (0, 1)):
        writer = write(tmp_path, [plain(at) for at in range(count)])
        data = log_bytes(writer)
        data[writer.entries[wrong].pos + 15] ^= 64
        put_log(writer, data)
        report, columns = scanned(opened(writer)[0], None, window_of(1, writer))
        assert [(flaw.rule, flaw.index) for flaw in own_flaws(report)] == [("entry.index", wrong)]
        assert [index for each in columns for index in each.index.tolist()] == [0, 1, 2][:count]


def test_of_two_entries_a_damaged_one_may_have_the_right_index(tmp_path: Path) -> None:
    """The chain leads to an entry also with the CRC that its header names: at the begin of a log
    and behind a place that cannot be read."""
    for first, count, wrong, place in product((0, 2), (2, 3), (0, 1), (43, 60)):
        writer = write(tmp_path, [plain(at) for at in range(first + count)])
        data, entries = log_bytes(writer), writer.entries[first:]
        data[entries[wrong].pos + 15] ^= 64
        data[entries[1 - wrong].pos + place] ^= 1
        if first:
            data[writer.entries[1].pos : writer.entries[1].pos + 48] = b"\x07" * 48
        put_log(writer, data)
        for window_bytes in (4 << 20, window_of(1, writer)):
            report, columns = scanned(opened(writer)[0], None, window_bytes)
            found = {(flaw.rule, flaw.index) for flaw in own_flaws(report)} - {
                ("entry.unreadable", 1),
                ("entry.chain", 2),
            }
            body = "entry.body-crc" if place == 43 and not (first and wrong) else "entry.body"
            assert found == {("entry.index", first + wrong), (body, first + 1 - wrong)}
            assert joined(columns, "index")[first // 2 :] == list(range(first, first + count))


def test_of_three_entries_the_third_one_tells_which_index_is_right(tmp_path: Path) -> None:
    """Whatever else is damaged in the other one of the first two."""
    writer = write(tmp_path, [plain(at) for at in range(3)])
    (task, *_), whole = opened(writer), bytes(log_bytes(writer))
    for wrong, place in product((0, 1), (23, 35, 39, 60)):
        data = bytearray(whole)
        data[writer.entries[wrong].pos + 15] ^= 64
        data[writer.entries[1 - wrong].pos + place] ^= 1
        put_log(writer, data)
        report, columns = scanned(task)
        assert joined(columns, "index") == [0, 1, 2]
        assert [flaw.index for flaw in own_flaws(report) if flaw.rule == "entry.index"] == [wrong]


def test_of_two_entries_the_first_one_may_be_damaged_in_its_index_and_its_word(
    tmp_path: Path,
) -> None:
    writer = write(tmp_path, [plain(at) for at in range(2)])
    data = log_bytes(writer)
    data[15] ^= 64
    data[39] ^= 1
    put_log(writer, data)
    report, columns = scanned(opened(writer)[0])
    assert joined(columns, "index") == [0, 1] and ("entry.index", 0) in [
        (flaw.rule, flaw.index) for flaw in own_flaws(report)
    ]


def test_an_entry_leaves_room_for_a_blank(tmp_path: Path) -> None:
    writer = write(tmp_path, [plain(at) for at in range(3)], data_bytes=2048)
    entry, (task, *_) = writer.entries[2], opened(writer)
    path = Path(task.path)
    for room in (8, 7, 0):
        path.write_bytes(bytes(log_bytes(writer)[: entry.pos + entry.size + room]))
        length = entry.pos + entry.size + room
        flaws = [
            Flaw("file.length", task.shown, None, length, 2048, f"{length} bytes instead of 2048")
        ]
        flaws += [
            Flaw(
                "entry.room",
                task.shown,
                2,
                entry.pos,
                entry.pos + entry.size,
                "the entry leaves no room for a blank",
                True,
            )
        ] * (room < 8)
        for kernel, window_bytes in product(KERNELS, (4 << 20, window_of(1, writer))):
            report, _ = scanned(task, kernel, window_bytes)
            assert sorted(own_flaws(report), key=lambda flaw: flaw.rule) == sorted(
                flaws, key=lambda flaw: flaw.rule
            ), room
        path.write_bytes(bytes(log_bytes(writer)).ljust(2048, b"\0"))
    path.write_bytes(bytes(2050))
    assert own_flaws(scanned(task)[0]) == [
        Flaw("file.length", task.shown, None, 2048, 2050, "2050 bytes instead of 2048")
    ]


# One field of one record


def as_record(number: int) -> Message:
    return Message("topic", b"body", 1, "tag", f"k{number}", 0, CREATED + 1, 1)


Case = tuple[str, Mapping[int, bytes], str, int, int | None, str]
RECORDS: list[Case] = [
    # Bytes of the entry, and rule, first and last place in it and proof of the flaw.
    ("total size", {48: i(1)}, "record.total-size", 48, 52, "TOTALSIZE is not bodySize"),
    (
        "unknown magic",
        {52: b"\xda\xa3\x20\xa8"},
        "record.magic",
        52,
        56,
        "MAGICCODE does not fit the topic",
    ),
    ("crc", {56: i(5)}, "record.crc", 56, 60, "BODYCRC is not that of the body"),
    ("queue", {60: i(-1)}, "record.topic", 60, None, "the topic or the queue id is illegal"),
    ("topic", {141: b"\x80"}, "record.topic", 60, None, "the topic or the queue id is illegal"),
    (
        "flag",
        {64: i(-1)},
        "record.native",
        64,
        68,
        "FLAG is not the place of a native message in its frame",
    ),
    (
        "flag 1",
        {64: i(1)},
        "record.native",
        64,
        68,
        "FLAG is not the place of a native message in its frame",
    ),
    ("position", {76: q(1)}, "record.position", 76, 84, "PHYSICALOFFSET is not pos + 48"),
    (
        "sysflag",
        {84: i(1)},
        "record.sysflag",
        84,
        88,
        "SYSFLAG is none of those that a record may have",
    ),
    ("born host", {96: q(1)}, "record.constant", 96, 124, "a field that must be zero is not"),
    ("times", {120: i(1)}, "record.constant", 96, 124, "a field that must be zero is not"),
    ("origin", {124: q(-1)}, "record.origin", 124, 132, "its origin is not before it"),
    ("own origin", {124: q(2)}, "record.origin", 124, 132, "its origin is not before it"),
    ("body length", {132: i(5)}, "record.structure", 132, None, "its parts do not fill the record"),
    (
        "open end",
        {-1: b"x"},
        "record.properties",
        136,
        None,
        "the property string does not end in 02",
    ),
    ("channel", {32: i(1)}, "entry.channel", 32, 36, "the channel does not fit the record"),
]


@pytest.mark.parametrize(
    ("bytes_at", "rule", "start", "stop", "proof"),
    [case[1:] for case in RECORDS],
    ids=[case[0] for case in RECORDS],
)
def test_one_wrong_field_of_a_record(
    tmp_path: Path,
    bytes_at: Mapping[int, bytes],
    rule: str,
    start: int,
    stop: int | None,
    proof: str,
) -> None:
    """With checksums that agree: the field, of an entry that was written at once. The deep scan
    tells no more of it."""
    writer = write(tmp_path, [as_record(at) for at in range(4)])
    entry = writer.entries[2]
    remade(writer, {2: {place % entry.size: new for place, new in bytes_at.items()}})
    for window_bytes, deep in product((4 << 20, window_of(1, writer)), (False, True)):
        report, columns = scanned(opened(writer, deep=deep)[0], None, window_bytes)
        found = [
            flaw
            for flaw in own_flaws(report)
            if flaw.rule != "record.structure" or rule == "record.structure"
        ]
        stop_at = entry.size if stop is None else stop
        assert found == [Flaw(rule, report.file, 2, entry.pos + start, entry.pos + stop_at, proof)]
        sound = rule not in ("record.structure", "record.magic")
        assert [flag for each in columns for flag in each.sound.tolist()] == [
            True,
            True,
            sound,
            True,
        ]
        assert [number for each in columns for number in each.ordinal.tolist()] == [
            0,
            1,
            2,
            2 + sound,
        ] and report.sound == 3 + sound
        assert report.damaged == [] and report.unnumbered == (
            [2] if rule == "record.native" else []
        )


def test_a_damaged_entry_is_not_judged_as_a_record(tmp_path: Path) -> None:
    writer = write(tmp_path, [as_record(at) for at in range(4)])
    (task, *_), whole, entry = opened(writer), bytes(log_bytes(writer)), writer.entries[2]
    for _, bytes_at, *_ in RECORDS:
        data = bytearray(whole)
        for place, new in bytes_at.items():
            data[entry.pos + place % entry.size : entry.pos + place % entry.size + len(new)] = new
        put_log(writer, data)
        report, _ = scanned(replace(task, deep=True))
        assert [flaw.rule for flaw in own_flaws(report)] == [
            "entry.chain" if min(bytes_at) == 32 else "entry.body"
        ]


def flawed(
    base: Path, message: Message, bytes_at: Mapping[int, bytes], *, deep: bool = False
) -> list[str]:
    """The rules that the third of four records breaks."""
    writer = write(
        base, [as_record(0), as_record(1), message, replace(as_record(3), term=message.term)]
    )
    remade(writer, {2: bytes_at})
    return [flaw.rule for flaw in own_flaws(scanned(opened(writer, deep=deep)[0])[0])]


def test_values_that_a_record_may_have(tmp_path: Path) -> None:
    message = as_record(2)
    for packing, flag in product((0, 1, 0x101, 0x201, 0x301, 0x401), (0, 1)):
        key = native_id("log", 1, 1, 1) if flag else "k"
        allowed = packing in (0, 0x101, 0x201) or (packing == 0x301 and not flag)
        found = flawed(tmp_path, replace(message, flag=flag, key=key), {84: i(packing)})
        assert found == ([] if allowed else ["record.sysflag"]), (packing, flag)
    for origin in (0, 1, 2, 3):
        assert flawed(tmp_path, message, {124: q(origin)}) == (
            [] if origin < 2 else ["record.origin"]
        )
    first = write(tmp_path / "first", [as_record(0)])
    for origin in (0, 1):
        remade(first, {0: {124: q(origin)}})
        assert [flaw.rule for flaw in own_flaws(scanned(opened(first)[0])[0])] == [
            "record.origin"
        ] * origin
    imported = replace(membership(("n1",)), topic="t", channel=0, tag="x")
    writer = write(tmp_path / "imported", [imported, imported])
    remade(writer, {1: {96: q(1), 120: i(1)}})
    assert own_flaws(scanned(opened(writer)[0])[0]) == []
    assert flawed(tmp_path, message, {60: i(0)}) == []
    record_of_members = replace(membership(("n1",)), term=1, time=CREATED + 1)
    assert flawed(tmp_path, record_of_members, {}) == []
    assert flawed(tmp_path, record_of_members, {32: i(0)}) == ["entry.channel"]


def test_properties_are_pairs(tmp_path: Path) -> None:
    """Which only the deep scan looks at."""
    message = as_record(2)
    writer = write(tmp_path, [as_record(0), as_record(1), message])
    entry = writer.entries[2]
    place = entry.size - len(b"UNIQ_KEY\x01k2\x02TAGS\x01tag\x02")
    for deep in (False, True):
        assert flawed(tmp_path, message, {}, deep=deep) == []
        assert (
            flawed(tmp_path, message, {place + 8: b"x"}, deep=deep) == ["record.properties"] * deep
        )
    remade(writer, {2: {place + 8: b"x"}})
    (flaw,) = own_flaws(scanned(opened(writer, deep=True)[0])[0])
    assert flaw == Flaw(
        "record.properties",
        flaw.file,
        2,
        entry.pos + place,
        entry.pos + entry.size,
        "the property string is not name 01 value 02, repeated",
    )


# Records that depend on the one before


def test_places_in_a_frame(tmp_path: Path) -> None:
    """Every three messages with flags 0 to 3, of which the second may have no native id: a flag
    above 1 is that of the one before and 1."""
    messages: list[Message] = []
    odd: list[int] = []
    for flags in product(range(4), repeat=3):
        for native in (True, False):
            for at, flag in enumerate(flags):
                key = native_id("log", 1, 1, len(messages)) if native or at != 1 else "none"
                before = 0 if at == 0 else flags[at - 1]
                if flag and ((flag > 1 and flag != before + 1) or key == "none"):
                    odd.append(len(messages))
                messages.append(Message("t", b"", 0, "", key, 0, CREATED, 1, flag))
            messages.append(Message("t", b"", 0, "", "k", 0, CREATED, 1))
    writer = write(tmp_path, messages, data_bytes=1 << 17)
    report, _ = scanned(opened(writer)[0])
    flaws = [flaw for flaw in own_flaws(report) if flaw.rule == "record.native"]
    proof = "FLAG is not the place of a native message in its frame"
    entries = [writer.entries[at] for at in odd]
    assert flaws == coalesce(
        [
            Flaw("record.native", report.file, e.index, e.pos + 64, e.pos + 68, proof)
            for e in entries
        ],
        2000,
    )


def test_the_first_place_in_a_window_or_behind_damage_is_not_known(tmp_path: Path) -> None:
    ids = [native_id("log", 1, 1, at) for at in range(3)]
    messages = [
        Message("t", b"", 0, "", key, 0, CREATED, 1, flag)
        for key, flag in zip(ids, (1, 3, 3), strict=True)
    ]
    writer = write(tmp_path, messages)
    task = opened(writer)[0]

    def odd(window_bytes: int) -> list[int | None]:
        return [
            flaw.index
            for flaw in own_flaws(scanned(task, None, window_bytes)[0])
            if flaw.rule == "record.native"
        ]

    assert (odd(4 << 20), odd(window_of(1, writer)), odd(window_of(2, writer))) == ([1], [], [1])
    data = log_bytes(writer)
    data[writer.entries[0].pos + 60] ^= 1
    put_log(writer, data)
    assert odd(4 << 20) == [2]


def test_terms_and_store_times_never_decrease(tmp_path: Path) -> None:
    """From one proven entry to the next, also across windows and behind a damaged entry."""
    steps = [(1, 5), (2, 4), (1, 6), (1, 6), (3, 3), (2, 2)]
    messages = [Message("t", b"", 0, "", "k", 0, CREATED + time, term) for term, time in steps]
    writer = write(tmp_path, messages)
    (task, *_), size, whole = opened(writer), writer.entries[0].size, bytes(log_bytes(writer))

    def expected(rows: Sequence[int]) -> list[Flaw]:
        found = []
        for before, at in pairwise(rows):
            place, (term, time), (last_term, last_time) = (
                writer.entries[at].pos,
                steps[at],
                steps[before],
            )
            if term < last_term:
                found.append(
                    Flaw(
                        "entry.term-order",
                        task.shown,
                        at,
                        place + 16,
                        place + 24,
                        f"term {term} follows term {last_term}",
                    )
                )
            if time < last_time:
                proof = f"store time {CREATED + time} follows {CREATED + last_time}"
                found.append(
                    Flaw("record.store-time", task.shown, at, place + 104, place + 112, proof)
                )
        return coalesce(found, 2000)

    for window_bytes in (4 << 20, window_of(1, writer), window_of(2, writer)):
        put_log(writer, whole)
        report, _ = scanned(task, None, window_bytes)
        assert own_flaws(report) == expected(range(6))
        assert (report.last_term, report.last_sound_term, report.last_store_ms) == (
            2,
            2,
            CREATED + 2,
        )
        for broken in (1, 4, 5):
            data = bytearray(whole)
            data[writer.entries[broken].pos + 60] ^= 1
            put_log(writer, data)
            report, _ = scanned(task, None, window_bytes)
            order = [flaw for flaw in own_flaws(report) if flaw.rule != "entry.body"]
            assert order == expected([at for at in range(6) if at != broken])
            last = 4 if broken == 5 else 5
            assert (report.last_term, report.last_sound_term, report.last_store_ms) == (
                2,
                steps[last][0],
                CREATED + steps[last][1],
            )
    data = bytearray(whole)
    data[writer.entries[0].pos + 60] ^= 1
    put_log(writer, data[: 2 * size] + bytes(len(data) - 2 * size))
    assert [flaw.rule for flaw in own_flaws(scanned(task)[0])] == ["entry.body"], (
        "nothing comes before the first proven entry"
    )


def test_store_times_fall_only_where_a_time_epoch_begins(tmp_path: Path) -> None:
    """The record may stand anywhere; one with its tag on another topic, or any other entry, begins
    no epoch. Both scans say the same."""
    far = CREATED + 10**9
    record = Message(
        "rmq_sys_ledgermq_raft", b'{"v":1,"before":1}', 0, "time-epoch", "", 0, CREATED
    )
    before, behind = replace(plain(0), time=far), replace(plain(1), time=CREATED + 1)
    for number, (what, rules) in enumerate(
        [
            ([before, record, behind], []),
            ([record, behind], []),
            ([before, record, before, record], []),
            ([before, behind], ["record.store-time"]),
            ([before, replace(record, topic="t"), behind], ["record.store-time"]),
            ([before, replace(record, tag="time"), behind], ["record.store-time"]),
            ([before, record, before, behind], ["record.store-time"]),
        ]
    ):
        writer = write(tmp_path / str(number), what)
        task = opened(writer)[0]
        for window_bytes in (4 << 20, window_of(1, writer)):
            report, _ = scanned(task, None, window_bytes)
            assert [flaw.rule for flaw in own_flaws(report)] == rules, number
            assert report.time_epochs == [
                at for at, message in enumerate(what) if message == record
            ]
            assert (report.last_store_ms, report.highest_store_ms) == (
                what[-1].time,
                max(message.time for message in what),
            )
            if KERNEL is not None:
                assert report_of(task, KERNEL, window_bytes) == report_of(task, None, window_bytes)


# Where nothing comes before


def second_file(base: Path) -> tuple[Writer, LogFile, Placed]:
    writer = write(base, [plain(at) for at in range(9)], data_bytes=600)
    return writer, opened(writer)[1], in_files(writer)[1][0]


def test_the_chain_before_a_file(tmp_path: Path) -> None:
    """The seed, or the word of the last entry of the file before, which the index leads to. Without
    it only the body is checked."""
    writer, task, first = second_file(tmp_path)
    (whole_task, *_), whole = opened(writer), bytes(log_bytes(writer))
    assert (
        scanned(whole_task)[0].prev_chain == writer.seed
        and scanned(task)[0].prev_chain == writer.entries[first.index - 1].chain
    )
    assert own_flaws(scanned(replace(whole_task, seed=None))[0]) == []
    assert scanned(replace(whole_task, seed=None))[0].prev_chain is None
    far = replace(task, begin_pos=600, seed=9)
    assert [flaw.rule for flaw in own_flaws(scanned(far)[0])] == ["chain.seed"] and scanned(far)[
        0
    ].prev_chain == 9
    other = write(tmp_path / "other", [plain(0, size=300), plain(1, size=300)], data_bytes=600)
    assert scanned(opened(other)[1])[0].prev_chain == other.entries[0].chain
    Path(task.path).write_bytes(whole[600:623] + b"\x09" + whole[624:1200])
    assert [(flaw.rule, flaw.index) for flaw in own_flaws(scanned(task)[0])] == [
        ("entry.chain", first.index)
    ]
    for place in range(8, 15):
        Path(task.path).write_bytes(whole[600 : 600 + place] + b"\x01" + whole[601 + place : 1200])
        assert scanned(task)[0].prev_chain is None, (
            "an index that is much too large leads to no entry"
        )
    Path(whole_task.path).unlink()
    for place, flaws in (
        (None, []),
        (140, [Flaw("entry.body", task.shown, first.index, 40, first.size, "", True)]),
        (43, [Flaw("entry.body", task.shown, first.index, 40, first.size, "", True)]),
        (23, []),
        (39, []),
    ):
        data = bytearray(whole[600:1200])
        if place is not None:
            data[place] ^= 1
        Path(task.path).write_bytes(data)
        report, (columns,) = scanned(task)
        assert [
            replace(flaw, proof="") for flaw in own_flaws(report) if flaw.index == first.index
        ] == flaws, place
        assert report.prev_chain is None and columns.intact.tolist()[0] == (not flaws)
    for index in (0, -1):
        data = bytearray(whole[600:1200])
        data[8:16] = q(index)
        Path(task.path).write_bytes(data)
        assert scanned(task)[0].prev_chain is None


def test_damaged_body_of_the_first_known_entry_is_found(tmp_path: Path) -> None:
    writer, task, first = second_file(tmp_path)
    Path(opened(writer)[0].path).unlink()
    data = bytearray(Path(task.path).read_bytes())
    data[140] ^= 1
    Path(task.path).write_bytes(data)
    has, wants = checksum(bytes(data[48 : first.size])), struct.unpack(">I", data[40:44])[0]
    (flaw,) = own_flaws(scanned(task)[0])
    assert flaw == Flaw(
        "entry.body",
        task.shown,
        first.index,
        40,
        first.size,
        f"the body has CRC {has:08x}, its header says {wants:08x}",
        True,
    )


def test_an_entry_behind_an_unreadable_place(tmp_path: Path) -> None:
    """Nothing continues to it: the place before it explains that, though the rest of the header
    there may be right."""
    writer = write(tmp_path, [plain(at) for at in range(4)])
    (task, *_), whole = opened(writer), bytes(log_bytes(writer))
    lost, entry = writer.entries[1], writer.entries[2]
    for kernel, places in product(KERNELS, ((range(48),), (range(4, 8), range(44, 48)))):
        data = bytearray(whole)
        for place in (lost.pos + place for each in places for place in each):
            data[place] = 7
        put_log(writer, data)
        report, _columns = scanned(task, kernel)
        unreadable, chain = own_flaws(report)
        assert (unreadable.rule, unreadable.byte_from, unreadable.byte_to) == (
            "entry.unreadable",
            lost.pos,
            entry.pos,
        )
        proof = "the entry before it cannot be read, so nothing continues to this one"
        measures = ((task.shown, entry.pos - 1, entry.pos),)
        assert chain == Flaw(
            "entry.chain", task.shown, 2, entry.pos, entry.pos + entry.size, proof, True, measures
        )
        assert report.entries == 3 and report.last_index == 3


def test_entries_behind_an_unreadable_place_count_on_from_themselves(tmp_path: Path) -> None:
    """A wrong index of the first one is told by the second and the third, one of the second by the
    chain."""
    for wrong, count in (*product((None, 2), (1, 2, 3)), (3, 2), (3, 3)):
        writer = write(tmp_path, [plain(at) for at in range(2 + count)])
        data = log_bytes(writer)
        lost = writer.entries[1]
        data[lost.pos : lost.pos + 48] = b"\x07" * 48
        if wrong is not None:
            data[writer.entries[wrong].pos + 15] ^= 64
        put_log(writer, data)
        report, columns = scanned(opened(writer)[0])
        known = wrong != 2 or count > 1
        assert [index for each in columns[1:] for index in each.index.tolist()] == [
            2 if known else 66,
            3,
            4,
        ][:count]
        found = [flaw.rule for flaw in own_flaws(report)]
        assert ("entry.index" in found) == (wrong is not None and count > 1)


# Files that cannot be read


class Failing:
    """A file whose reads fail behind a place."""

    def __init__(self, file: Any, place: int) -> None:
        self._file, self._place, self.size, self.closed = file, place, file.size, False

    def pread(self, size: int, offset: int) -> bytes:
        if offset + size > self._place:
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self._file.pread(size, offset))

    def stretches(self, start: int, end: int) -> Any:
        return self._file.stretches(start, end)

    def close(self) -> None:
        self.closed = True
        self._file.close()


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start, or from a place on: what was read before it counts."""
    writer = write(tmp_path, [plain(at) for at in range(6)])
    task, real = opened(writer)[0], scans.open_file
    files: list[Failing] = []
    flaw = Flaw("file.read", task.shown, 1, 0, 8192, "Input/output error")

    def failing(path: str) -> Any:
        files.append(Failing(real(path), window_of(2, writer)))
        return files[-1]

    with monkeypatch.context() as patch:
        patch.setattr(scans, "open_file", failing)
        report, columns = scanned(task, None, window_of(2, writer))
    assert (own_flaws(report), report.entries, [len(each) for each in columns]) == (
        [flaw],
        2,
        [2],
    ) and files[0].closed
    assert [run.topic for run in report.queues] == ["t0", "t1"]
    Path(task.path).unlink()
    report, columns = scanned(task)
    assert (own_flaws(report), columns) == (
        [Flaw("file.read", task.shown, None, 0, 0, "No such file or directory")],
        [],
    )


def damage_units(writer: Writer, *folders: str) -> None:
    for folder in folders:
        path = writer.root / folder / f"{0:020d}"
        path.write_bytes(path.read_bytes()[:35] + b"\xff" + path.read_bytes()[36:])


@pytest.mark.parametrize(
    ("folder", "rule"), [("dledger-n1/index", "index.unit"), ("consumequeue/topic/1", "queue.unit")]
)
def test_damaged_units_beside_a_file_in_order(tmp_path: Path, folder: str, rule: str) -> None:
    writer = write(tmp_path, [as_record(at) for at in range(4)])
    damage_units(writer, folder)
    for kernel in KERNELS:
        assert [flaw.rule for flaw in scanned(opened(writer)[0], kernel)[0].flaws] == [rule]


def test_flaws_are_in_the_order_of_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then those of the order of messages, of the index and of the queues; beyond a limit they are
    told together."""
    writer = write(tmp_path, [as_record(at) for at in range(8)])
    remade(writer, {at: {124: q(-1), 84: i(1)} for at in (2, 4, 6)})
    damage_units(writer, "dledger-n1/index", "consumequeue/topic/1")
    task = opened(writer)[0]
    report, _ = scanned(task)
    entries = [writer.entries[at].pos for at in (2, 4, 6)]
    places = [(flaw.rule, flaw.byte_from) for flaw in own_flaws(report)]
    assert places == [
        found
        for at in entries
        for found in (("record.sysflag", at + 84), ("record.origin", at + 124))
    ]
    assert [flaw.rule for flaw in report.flaws[6:]] == ["index.unit", "queue.unit"]
    monkeypatch.setattr(scans, "FLAWS_MAX", 2)
    assert len(scanned(task)[0].flaws) == 2 + 4


def test_running_node_is_scanned_to_its_applied_end(tmp_path: Path) -> None:
    writer = write(tmp_path, [plain(at) for at in range(6)])
    end = writer.entries[3].pos
    for kernel in KERNELS:
        report, _ = scanned(replace(opened(writer)[0], end_pos=end), kernel)
        assert (report.entries, report.end, report.length, own_flaws(report)) == (3, end, 8192, [])


def test_an_object_in_a_store_is_digested_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest and the root of its entries, in one pass. Nothing derived lies beside it, so that
    the chain before it is not known."""
    writer, task, first = second_file(tmp_path)
    store, key = MemoryStore(), "g1/file"
    obstore.put(store, key, Path(task.path).read_bytes())
    monkeypatch.setattr(objects, "_store", lambda: store)
    monkeypatch.setattr(objects, "access", lambda: objects.StoreAccess("s3://bucket"))
    plain_report, _ = scanned(task)
    assert (plain_report.sha256, plain_report.root) == ("", "")
    for kernel in KERNELS:
        report, _ = scanned(replace(task, key=key, seed=writer.seed), kernel)
        end = plain_report.end
        assert (report.sha256, report.root) == (
            bytewise.digest(task.path, 600),
            bytewise.entries_root(task.path, end),
        )
        assert (report.file, report.flaws, report.entries, report.end, report.prev_chain) == (
            key,
            [],
            3,
            end,
            None,
        )
        alone = replace(task, key=key, begin_pos=600, seed=writer.entries[first.index - 1].chain)
        report, _ = scanned(alone, kernel)
        assert (report.prev_chain, report.flaws, report.length) == (
            alone.seed,
            [],
            600,
        ) and report.sha256
    gone = scanned(replace(task, key="g1/none"))[0].flaws
    assert gone == [Flaw("file.read", "g1/none", None, 0, 0, "No such file or directory")]


def test_object_is_digested_whole_despite_damage_and_torn_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte once and in order, in parts of any size: the walk reaches the end of a file behind
    a blank, a torn tail, a place that cannot be read, zeros, and entries up to the last byte."""
    writer, task, first = second_file(tmp_path)
    whole = Path(task.path).read_bytes()
    end, second = scanned(task)[0].end, first.size
    contents = [
        whole,
        whole[:end],
        whole[: end + 5],
        whole[:end] + bytes(600 - end),
        whole[:end] + b"\x09" * 9 + whole[end + 9 :],
        whole[:end] + b"\x09" * (600 - end),
        whole[:second] + b"\x09" * 48 + whole[second + 48 :],
        whole[:second] + bytes(600 - second),
        whole * 3,
        whole[::-1],
        bytes(600),
        b"",
    ]
    store, key, alone = (
        MemoryStore(),
        "g1/file",
        replace(task, key="g1/file", begin_pos=600, seed=writer.entries[first.index - 1].chain),
    )
    monkeypatch.setattr(objects, "_store", lambda: store)
    monkeypatch.setattr(objects, "access", lambda: objects.StoreAccess("s3://bucket"))
    monkeypatch.setattr(bytewise, "CHUNK", 64)
    for content, part, kernel in product(contents, (64, 256, 8 << 20), KERNELS):
        monkeypatch.setattr(objects, "PART_BYTES", part)
        obstore.put(store, key, content)
        Path(task.path).write_bytes(content)
        report, _ = scanned(alone, kernel, 300)
        chunks = [
            hashlib.sha256(content[at : at + 64]).digest() for at in range(0, len(content), 64)
        ]
        assert report.sha256 == hashlib.sha256(b"".join(chunks)).hexdigest()
        assert report.root == bytewise.entries_root(task.path, report.end)
