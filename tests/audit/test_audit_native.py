"""The compiled scan of log files beside the Python scan: whatever the bytes are, their reports are
equal.

The law has two sides. What the compiled scan takes, the Python scan finds in order. And what the
Python scan finds in order, the compiled one takes: otherwise it would be correct and useless.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import crc32c
import pytest

from bench.audit_scan import CREATED_MS, StoredReplica, batch_of, term_start
from ledgermq.audit.checks.scan import LogReport, Scan, scan
from ledgermq.audit.cli.report import as_json, as_text
from ledgermq.audit.reading import native
from ledgermq.audit.reading.native import KERNEL, PYTHON, SCAN
from ledgermq.audit.reading.trees import EntriesTree
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.run import works
from ledgermq.audit.run.jobs import audit
from tests.audit.both_scans import Counting, built, differences, report_of, tasks_of
from tests.audit.damage_cases import history, write_cluster
from tests.audit.log_writer import CREATED, Message, Writer, election, membership

SEED = 20261123


def one_file(
    base: Path, messages: Sequence[Message], data_bytes: int = 8192
) -> tuple[Writer, LogFile]:
    """A replica with one log file that holds these messages."""
    writer = Writer(base / "n1", data_bytes=data_bytes)
    for message in messages:
        writer.append(message)
    writer.finish()
    return writer, tasks_of(base)[0]


def varied(count: int) -> list[Message]:
    """Messages with every property that the scan reads, in several topics and queues."""
    rng = random.Random(SEED)
    found = [membership(("n1",)), election(1, "n1")]
    for number in range(count):
        found.append(
            Message(
                rng.choice(("orders", "namespace@orders", "long" * 40, "ünïcode")),
                bytes(rng.choices(range(256), k=rng.choice((0, 1, 40, 300)))),
                queue=rng.randrange(3),
                tag=rng.choice(("", "UA", "größe", "tag😀")),
                key=f"key-{number}",
                time=CREATED + number // 3,
                group=rng.choice(("", "g1", "g2")),
            )
        )
    return found


# Without damage


@pytest.mark.one_in(3)
@built
@pytest.mark.parametrize("window", [400, 1000, 3000, 4 << 20])
@pytest.mark.parametrize("deep", [False, True], ids=["", "deep"])
def test_reports_of_whole_files_are_equal(tmp_path: Path, window: int, deep: bool) -> None:
    """Random histories over several files; windows that end anywhere in an entry."""
    write_cluster(tmp_path, history(3, 60))
    one_file(tmp_path / "own", varied(120), 1 << 16)
    tasks = [*tasks_of(tmp_path, deep), *tasks_of(tmp_path / "own", deep)]
    assert len(tasks) > 5 and not differences(tasks, KERNEL, window)


@built
def test_the_kernel_takes_every_window_of_files_in_order(tmp_path: Path) -> None:
    """Of the messages of several sizes that storage itself writes."""
    replica = StoredReplica(tmp_path / "n1", 1 << 20)
    replica.append(1, term_start(1), CREATED_MS)
    for number in range(0, 3000, 1000):
        replica.append(1, batch_of(number, 1000, number // 10), CREATED_MS + number)
    replica.sync()
    replica.stop()
    for task in tasks_of(tmp_path):
        counting = Counting(KERNEL)
        report = report_of(task, counting, 64 << 10)
        # The window behind the last entry has none.
        assert (
            not report["flaws"]
            and counting.asked - 1 <= counting.taken
            and (not report["entries"] or counting.taken > 1)
        )


@built
def test_windows_in_order_have_no_columns_and_others_have(tmp_path: Path) -> None:
    _writer, task = one_file(tmp_path, varied(20))
    assert not list(Scan(task, None, KERNEL).columns())
    assert len(list(Scan(task).columns())) == 1


# Damage


@built
@pytest.mark.parametrize("seed", range(40))
def test_trees_over_any_bytes_are_equal(seed: int) -> None:
    """Of entries of any size, cut anywhere, mostly with one wrong byte. A root needs that nothing
    but entries lies before the end."""
    rng = random.Random(seed)
    sizes = [rng.choice((139, 140, 400, 2000)) for _ in range(rng.randrange(40))]
    data = bytearray(
        b"".join(struct.pack(">iI", 1, size) + rng.randbytes(size - 8) for size in sizes)
    )
    whole = seed % 4 == 0 or not data
    if not whole:
        at = rng.choice(
            (sum(sizes[: rng.randrange(len(sizes))]) + rng.randrange(8), rng.randrange(len(data)))
        )
        data[at] ^= 1 << rng.randrange(8)
    trees = EntriesTree(None), EntriesTree(KERNEL)
    cuts = sorted(rng.choices(range(len(data) + 1), k=seed % 7))
    for start, end in pairwise([0, *cuts, len(data)]):
        for tree in trees:
            tree.add(bytes(data[start:end]))
        assert [tree.root(end) for tree in trees] == [trees[0].root(end)] * 2
    one, other = (vars(tree) for tree in trees)
    assert all(one[name] == other[name] for name in ("_towers", "_held", "_end", "_stuck"))
    assert bool(trees[1].root(len(data))) == bool(data) or not whole


@built
@pytest.mark.parametrize("size", [0, 138, 139, (1 << 27) - 1, 1 << 27, 1 << 31])
def test_trees_refuse_the_same_sizes(size: int) -> None:
    """Below the smallest entry, and where a reader would collect bytes without end; zeros behind a
    whole entry are none either."""
    trees = EntriesTree(None), EntriesTree(KERNEL)
    for tree in trees:
        tree.add(struct.pack(">iI", 1, size) + bytes(200))
    assert [tree._stuck for tree in trees] == [not 139 < size < 1 << 27] * 2
    assert trees[0]._towers == trees[1]._towers and bool(trees[0]._towers) == (size == 139)


def remade(data: bytearray, writer: Writer, levels: Sequence[str], changed: int) -> None:
    """Make damage consistent: CRC of the message, of the entry's body, and the chain from the
    changed entry on."""
    chain = writer.seed
    for entry in writer.entries:
        at, size = entry.pos, entry.size
        if at <= changed < at + size:
            length = int.from_bytes(data[at + 132 : at + 136], "big")
            if "record" in levels and length <= size - 136:
                body = bytes(data[at + 136 : at + 136 + length])
                data[at + 56 : at + 60] = (zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big")
            if "body" in levels:
                data[at + 40 : at + 44] = crc_of(bytes(data[at + 48 : at + size])).to_bytes(
                    4, "big"
                )
        if "chain" in levels and at + size > changed:
            data[at + 36 : at + 40] = crc_of(
                bytes(data[at : at + 36] + data[at + 40 : at + 44]), chain
            ).to_bytes(4, "big")
        chain = int.from_bytes(data[at + 36 : at + 40], "big")


def crc_of(data: bytes, start: int = 0) -> int:
    return int(crc32c.crc32c(data, start))


LEVELS = tuple(
    tuple(text.split())
    for text in ("", "record", "body", "record body", "chain", "body chain", "record body chain")
)


@built
@pytest.mark.verify
@pytest.mark.parametrize("part", range(16))
def test_every_byte_at_every_level(tmp_path: Path, part: int) -> None:
    """One bit of every byte of a file with all kinds of messages; the parts take turns. Another
    byte is altered besides now and then."""
    writer, task = one_file(
        tmp_path, [*varied(5), Message("fifo", b"x", tag="t", group="g", key="k")], 4096
    )
    path, whole, rng = (
        Path(task.path),
        Path(task.path).read_bytes(),
        random.Random(f"{SEED} {part}"),
    )
    wrong = []
    for at in range(part, writer.pos + 24, 16):
        for levels in LEVELS:
            data = bytearray(whole)
            data[at] ^= 1 << rng.randrange(8)
            if rng.random() < 0.2:
                data[rng.randrange(writer.pos)] ^= 1 << rng.randrange(8)
            remade(data, writer, levels, at)
            path.write_bytes(data)
            wrong += [f"byte {at}, {levels}: {text}" for text in differences([task], KERNEL)]
    assert not wrong, wrong[:5]


@built
@pytest.mark.verify
def test_cut_and_exchanged_ranges(tmp_path: Path) -> None:
    """The file ends anywhere; two ranges, or two entries of one size, have each other's places;
    what lies between is anything."""
    writer, task = one_file(tmp_path, varied(20))
    path, whole, rng = Path(task.path), Path(task.path).read_bytes(), random.Random(SEED)
    wrong = []
    for number in range(240):
        data = bytearray(whole)
        kind = number % 4
        first, second = rng.choice(writer.entries), rng.choice(writer.entries)
        length = rng.choice((1, 4, 48, 200, min(first.size, second.size)))
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind == 1:
            here, there = (
                data[first.pos : first.pos + length],
                data[second.pos : second.pos + length],
            )
            data[first.pos : first.pos + length], data[second.pos : second.pos + length] = (
                there,
                here,
            )
        elif kind == 2:
            data[first.pos : first.pos + length] = rng.randbytes(length)
        else:
            at = rng.choice((4, 8, 16, 24, 32, 44, 48, 60, 64, 68, 76, 84, 124, 132))
            data[first.pos + at : first.pos + at + 4] = struct.pack(
                ">i", rng.choice((-(1 << 31), -1, 0, 1, 48, 139, 4096, (1 << 31) - 1))
            )
            remade(data, writer, rng.choice(LEVELS), first.pos)
        path.write_bytes(data)
        wrong += [
            f"case {number}: {text}"
            for text in differences([task], KERNEL, rng.choice((300, 2000, 1 << 20)))
        ]
    assert not wrong, wrong[:5]


@built
def test_damaged_units_are_explained_by_the_python_scan(tmp_path: Path) -> None:
    """Index and consume queue: a unit that is wrong, missing, or in a file that cannot be read."""
    _writer, task = one_file(tmp_path, varied(20))
    index = Path(f"{task.index_directory}/{0:020d}")
    queue = next(Path(f"{task.root}/consumequeue").rglob("0" * 20))
    for file in (index, queue):
        whole = file.read_bytes()
        for data in (whole[:5] + b"\xff" + whole[6:], bytes(len(whole)), whole[:30], b""):
            file.write_bytes(data)
            assert not differences([task], KERNEL)
            assert report_of(task, KERNEL, 4 << 20)["flaws"] or any(
                run["waiting"] for run in report_of(task, KERNEL, 4 << 20)["queues"]
            )
        file.unlink()
        assert not differences([task], KERNEL)
        file.write_bytes(whole)


@built
def test_no_bytes_make_the_kernel_raise() -> None:
    """Random windows with plausible headers, and extreme numbers around them."""
    assert KERNEL is not None
    rng = random.Random(SEED)
    edges = (-(1 << 63), -1, 0, 1, (1 << 63) - 1)
    for _ in range(3000):
        size = rng.choice((139, 200, 1 << 16, (1 << 31) - 1, -1))
        pos = rng.choice(edges)
        head = struct.pack(
            ">iiqqqiIIi",
            1,
            size,
            rng.choice(edges),
            rng.choice(edges),
            pos,
            0,
            0,
            0,
            max(size - 48, -(1 << 31)),
        )
        window = head + rng.randbytes(rng.choice((0, 91, 200)))
        found = KERNEL.scan(
            window,
            pos=pos,
            room=rng.choice((0, len(window), 1 << 62)),
            left=rng.choice((0, 1 << 62)),
            chain=0,
            index=rng.choice((None, *edges)),
            term=rng.choice(edges),
            store_ms=rng.choice(edges),
            deep=True,
            wanted=(),
        )
        assert found is None


@built
@pytest.mark.parametrize(
    "base", [(1 << 62) - 8192, 1 << 62, (1 << 63) - 8192, (1 << 63) - 8191, 1 << 63, 10**20 - 1]
)
def test_a_file_name_beyond_every_position(tmp_path: Path, base: int) -> None:
    """Both scans say the same of a file whose name the kernel's numbers cannot hold. Where its end
    has no position, it has no entries."""
    _writer, task = one_file(tmp_path, varied(5))
    path = Path(task.path)
    far = replace(task, name=f"{base:020d}")
    path.rename(path.with_name(far.name))
    told = report_of(far, KERNEL, 4 << 20)
    assert told == report_of(far, None, 4 << 20)
    rules = {flaw["rule"] for flaw in told["flaws"] if flaw["file"] == far.shown}
    if base + 8192 <= 1 << 63:
        assert told["entries"] == 7 and rules == {"entry.pos", "record.position"}
    else:
        assert told["entries"] == 0 and rules == {"tail.zero"}


# A planted error in one decoder, or in the writer


@built
def test_a_wrong_chain_of_the_brokers_writer_is_found(tmp_path: Path) -> None:
    """The writer goes on from a wrong chain CRC, and everything that it writes later fits that."""
    replica = StoredReplica(tmp_path / "n1", 1 << 20)
    replica.append(1, term_start(1), CREATED_MS)
    replica.append(1, batch_of(0, 50, 100), CREATED_MS)
    log = replica.store.log
    log.end_chain ^= 1
    first = log.end_index + 1
    replica.append(1, batch_of(50, 50, 100), CREATED_MS)
    replica.sync()
    replica.stop()
    (task, *_) = tasks_of(tmp_path)
    report = scan(task)
    assert report.scanned_by == SCAN
    assert [flaw.index for flaw in report.flaws if flaw.rule == "entry.chain"] == [first]


class Blind:
    """A kernel with a planted error: it does not check the chain. It is shown the bytes as they
    were before the chain was altered."""

    def __init__(self, whole: bytes) -> None:
        self._whole = whole

    def scan(self, window: bytes, **given: Any) -> Any:
        assert KERNEL is not None
        return KERNEL.scan(self._whole[: len(window)], **given)

    def find(self, window: bytes, *, pos: int, room: int) -> Any:
        assert KERNEL is not None
        return KERNEL.find(window, pos=pos, room=room)


@built
def test_a_kernel_that_skips_the_chain_is_found_by_the_python_scan(tmp_path: Path) -> None:
    writer, task = one_file(tmp_path, varied(10))
    path, whole = Path(task.path), Path(task.path).read_bytes()
    data = bytearray(whole)
    data[writer.entries[4].pos + 37] ^= 1
    path.write_bytes(data)
    assert not differences([task], KERNEL)
    assert any("flaws" in text for text in differences([task], Blind(whole)))


# Which scan runs


def test_the_report_says_which_scan_ran(tmp_path: Path) -> None:
    write_cluster(tmp_path, history(1, 20))
    for kernel, name in ((None, PYTHON), (KERNEL, PYTHON if KERNEL is None else SCAN)):
        with patch.object(works, "scan", partial(scan, kernel=kernel)):
            found = audit([str(tmp_path / node) for node in ("n1", "n2", "n3")])
        assert as_json(found)["scanned_by"] == [
            name
        ] and f"log files scanned by: {name}" in as_text(found)


def test_the_package_is_used_only_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not under LEDGERMQ_PURE, not in another version, and not if it was built from older
    sources."""
    package, compiled = ModuleType("ledgermq_native"), ModuleType("audit_scan")
    package.__dict__.update(__version__=native.__version__, audit_scan=compiled)
    compiled.__dict__.update(dict.fromkeys(("scan", "find", "grow_tree"), print))
    monkeypatch.setitem(sys.modules, "ledgermq_native", package)
    monkeypatch.setenv("LEDGERMQ_PURE", "1")
    assert native._find() == (None, PYTHON)
    monkeypatch.delenv("LEDGERMQ_PURE")
    assert native._find() == (compiled, f"ledgermq-native {native.__version__}")
    del compiled.__dict__["grow_tree"]
    assert native._find() == (None, PYTHON)
    compiled.__dict__["grow_tree"] = print
    monkeypatch.setattr(native, "__version__", "0.0.0")
    assert native._find() == (None, PYTHON)


def test_reports_cross_processes(tmp_path: Path) -> None:
    """As JSON, with the name of the scan."""
    write_cluster(tmp_path, history(1, 20))
    for task in tasks_of(tmp_path):
        outcome = works.Outcome(scan(task))
        again = works.Outcome.from_json(outcome.to_json())
        assert (
            again == outcome and isinstance(again.log, LogReport) and again.log.scanned_by == SCAN
        )
