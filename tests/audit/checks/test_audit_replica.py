"""What is known about one replica follows from its small files and the reports of its log files, in
every small case."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ledgermq.audit.checks.backups import SUFFIX
from ledgermq.audit.checks.derived import QueueRun
from ledgermq.audit.checks.replica import Mark, Point, Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import Begin, Low
from ledgermq.audit.reading.decode import crc
from ledgermq.audit.rules import Flaw

SIZE = 100
SIZES = SIZE, 32, 20
FOLDER = "g1/dledger-n1/data"


def replica(base: Path = Path("/none"), **fields: Any) -> Replica:
    return Replica(str(base), f"{base}/g1", "g1", "n1", "dledger-n1", **{"sizes": SIZES, **fields})


def report(base: int = 0, last_index: int | None = None, **fields: Any) -> LogReport:
    """Of a file with entries up to `last_index`, or with none."""
    return LogReport(
        f"{FOLDER}/{base:020d}",
        base,
        SIZE,
        **{"entries": int(last_index is not None), "last_index": last_index, **fields},
    )


def unreadable(index: int | None, rule: str = "entry.unreadable") -> Flaw:
    return Flaw(rule, f"{FOLDER}/{0:020d}", index, 0, 1, "p")


def mark(index: int, end_pos: int = 0) -> Mark:
    return Mark(1, index, end_pos, 0, "log")


def point(index: int, end_pos: int = 0) -> Point:
    return Point(index, end_pos, 1, 0)


def test_flaws_name_their_file_from_the_folder_of_the_group() -> None:
    one = replica()
    one.flaw("begin.json", "dledger-n1/begin", "p", 3, 5, 7, True)
    one.flaw("begin.json", "dledger-n1/begin", "p")
    assert one.flaws == [
        Flaw("begin.json", "g1/dledger-n1/begin", 7, 3, 5, "p", True),
        Flaw("begin.json", "g1/dledger-n1/begin", None, 0, 0, "p"),
    ]
    assert not one.is_backup
    one.name += SUFFIX
    assert one.is_backup


def test_the_snapshot_tells_how_far_store_times_do_not_fall() -> None:
    told: list[tuple[dict[str, Any] | None, int]] = [
        (None, 0),
        ({}, 0),
        ({"applied_end_pos": 7}, 7),
    ]
    told.append(({"applied_end_pos": 7, "time_epochs": [[1, 2, 3]]}, 0))
    assert [replica(snapshot=snapshot).ordered_to for snapshot, _ in told] == [
        end for _, end in told
    ]


def test_which_files_of_the_log_are_checked(tmp_path: Path) -> None:
    """From its begin on, up to the position that a running node described. A file whose name is no
    position of a file is not read."""
    bases = (0, 50, 100, 200, 201)
    folder = tmp_path / "g1" / "dledger-n1" / "data"
    folder.mkdir(parents=True)
    for name in (*(f"{base:020d}" for base in bases), "9", f"{300:020d}.tmp"):
        (folder / name).touch()
    for begin, end in product((0, 100, 200), (None, 0, 1, 100, 101, 200, 201)):
        one = replica(
            tmp_path,
            begin=Begin(1, begin, 1, 7) if begin else Begin(),
            point=None if end is None else point(9, end),
        )
        assert one.log_files == [
            (base, f"{base:020d}") for base in bases if end is None or base < end
        ]
        for deep in (False, True):
            found = one.tasks(deep)
            wanted = [
                base for base in (0, 100, 200) if base >= begin and (end is None or base < end)
            ]
            assert [(task.base, task.begin_pos, task.end_pos, task.deep) for task in found] == [
                (base, begin, end, deep) for base in wanted
            ]
            assert {(Path(task.path).parent, task.shown.rpartition("/")[0]) for task in found} <= {
                (folder, FOLDER)
            }
    for base in ((1 << 63) - 8, 1 << 63, (1 << 63) + 8):
        (folder / f"{base:020d}").touch()
    assert [task.base for task in replica(tmp_path, sizes=(8, 32, 20)).tasks()] == [
        0,
        200,
        (1 << 63) - 8,
    ]


def test_chain_begins_with_the_log_id_or_the_begin_file() -> None:
    for log_id, seed in ((None, None), ("l", crc(b"l")), ("\xfc", crc(b"?"))):
        assert [
            replica(log_id=log_id, begin=begin).task(f"{0:020d}").seed
            for begin in (Begin(), Begin(1, 2, 3, 0))
        ] == [seed, 0]
        task = replica(log_id=log_id).task(f"{0:020d}")
        assert (task.log_id, task.end_pos) == (log_id or "", None)
        assert (
            task.group,
            task.replica,
            task.data_file_bytes,
            task.index_file_bytes,
            task.queue_file_bytes,
        ) == ("g1", "n1", *SIZES)


def test_only_the_snapshot_says_where_queues_begin() -> None:
    """Also while the log still begins at entry 0: the trim may wait, and queues that are made again
    do not."""
    snapshot = {"minimums": {"t": {"0": [5, None]}}}
    for index, kept in product((0, 3), (None, snapshot)):
        wanted = {("t", 0): Low(5, None)} if kept else {}
        assert replica(begin=Begin(index, 200 * index), snapshot=kept).lows == wanted


def test_a_snapshot_with_another_begin_is_not_exact() -> None:
    for index, retained in product((0, 3), ({"begin_index": 3}, {"begin_index": 0}, {}, None, 3)):
        one = replica(begin=Begin(index, index), snapshot={"retained": retained})
        assert one.lows_are_exact is (retained == {"begin_index": index})
    assert not replica().lows_are_exact


def test_the_end_of_the_log_is_that_of_its_last_entry() -> None:
    """Files without an entry, and entries of unknown index, tell nothing about it."""
    for told in product((None, 0, 1, 2, "unknown"), repeat=3):
        reports = [
            report(SIZE * at, end=10 + at) if last is None else report(SIZE * at, 7, end=10 + at)
            for at, last in enumerate(told)
        ]
        for each, last in zip(reports, told, strict=True):
            each.last_index = last if isinstance(last, int) else None
            each.entries *= 3
        one = replica(reports=reports)
        filled = [at for at, last in enumerate(told) if last is not None]
        assert (one.filled, one.entries) == ([reports[at] for at in filled], 3 * len(filled))
        assert one.end_pos == (SIZE * filled[-1] + 10 + filled[-1] if filled else 0)
        assert one.last_index == max([-1, *(last for last in told if isinstance(last, int))])


def test_where_the_log_is_known_to_be_damaged() -> None:
    """At damaged entries, unreadable places and gaps of known index."""
    there = [
        report(damaged=[4, 9], flaws=[unreadable(2), unreadable(None), unreadable(7, "entry.body")])
    ]
    one = replica(
        reports=[*there, report(SIZE, damaged=[3])],
        flaws=[unreadable(index, "entry.gap") for index in (4, 6, None)],
    )
    one.flaws += [unreadable(8, "entry.repeat"), unreadable(None, "entry.repeat")]
    assert one.broken == [2, 3, 4, 6, 9]
    assert replica().broken == []


def ends(*known: tuple[int, int] | None) -> dict[str, Any]:
    """The ends that its mark and its running node name."""
    first, second = known
    return {
        "mark": None if first is None else mark(*first),
        "point": None if second is None else point(*second),
    }


def test_a_log_is_cut_short_if_an_entry_is_known_behind_its_end() -> None:
    for last, first, second in product((None, 0, 1, 2), (None, -1, 0, 1, 2), (None, 0, 1, 2)):
        known = [index for index in (first, second) if index is not None]
        told = ends(
            None if first is None else (first, 10 * first),
            None if second is None else (second, 10 * second),
        )
        one = replica(reports=[] if last is None else [report(0, last)], **told)
        assert one.known_ends == [(index, 10 * index) for index in known]
        short = any(index > (-1 if last is None else last) for index in known)
        assert (one.cut_short, one.lost_end is not None) == (short, short)


def test_where_lost_entries_should_be() -> None:
    """In the file that holds the first byte after the last entry that can be read, up to the known
    end or that of the file."""
    for ending, known, end in product(
        ("zero", "blank", "tail"), (151, 199, 200, 201, 250, 350), (150, 190)
    ):
        one = replica(
            reports=[
                report(0, 3, end=95, ending="blank"),
                report(100, 5, end=end - 100, ending=ending),
                report(200),
            ]
        )
        one.mark = mark(6, known)
        base = 200 if ending == "blank" and known > 200 else 100
        start = 0 if base == 200 else end - 100
        assert one.lost_end == (f"{FOLDER}/{base:020d}", start, min(max(known - base, start), SIZE))
        for marked, other in product((4, 6), (120, known)):
            assert (
                one.lost_end
                == replica(
                    reports=one.reports, mark=mark(marked, other), point=point(6, known)
                ).lost_end
            )
    assert replica(mark=mark(2, 30)).lost_end == (f"{FOLDER}/{0:020d}", 0, 30)
    assert replica(begin=Begin(9, 300, 1, 0), mark=mark(11, 350)).lost_end == (
        f"{FOLDER}/{300:020d}",
        0,
        50,
    )
    unknown = replica(sizes=(0, 1, 1), mark=mark(2, 30), reports=[report(0, 1, end=20)])
    assert unknown.lost_end == (f"{FOLDER}/{0:020d}", 20, 20), "the size of the files is unknown"


def test_a_log_ends_whole_at_the_mark_of_a_clean_stop() -> None:
    for clean, running, marked, last, damaged in product(
        (False, True), (False, True), (None, 3, 4, 5), (3, 4), ((), (3,), (4,))
    ):
        one = replica(
            clean=clean,
            point=point(1) if running else None,
            mark=None if marked is None else mark(marked),
        )
        one.reports = [report(0, last, damaged=list(damaged))]
        assert one.ends_whole is (clean and not running and marked == last and last not in damaged)


def test_the_number_of_lost_entries() -> None:
    """From the begin on, those that are damaged, and those that are not there, known or not. Behind
    the last one only known ones count."""
    for begin, states in product((0, 2), product("id?u", repeat=4)):
        told = [(begin + at, state) for at, state in enumerate(states)]
        there = [index for index, state in told if state in "id"]
        if not there:
            continue
        known = [index for index, state in told if state in "du"]
        one = replica(begin=Begin(begin, begin))
        one.reports = [
            report(
                0,
                there[-1],
                entries=len(there),
                damaged=[index for index, state in told if state == "d"],
            )
        ]
        one.reports[0].flaws = [unreadable(index) for index, state in told if state == "u"]
        before = [index for index, state in told if index < there[-1] and state != "i"]
        assert one.lost_entries == max(
            len(known), len(before) + (told[there[-1] - begin][1] == "d")
        ), (begin, states)


def subsets(of: Sequence[int]) -> list[tuple[int, ...]]:
    return [chosen for count in range(len(of) + 1) for chosen in combinations(of, count)]


def test_how_much_a_replica_holds() -> None:
    """Up to its last intact entry of the present history; after an unclean stop nothing behind a
    damage above its mark."""
    for intact, stale, clean, marked, damaged in product(
        (-1, 2, 4), (None, 0, 3, 6), (False, True), (None, 0, 1, 2), subsets((0, 1, 2, 4))
    ):
        one = replica(clean=clean, stale_from=stale, mark=None if marked is None else mark(marked))
        one.reports = [
            report(0, 9, last_intact_index=intact, damaged=list(damaged)),
            report(SIZE, last_intact_index=min(intact, 0)),
        ]
        synced = -1 if marked is None else marked
        lost = [index for index in damaged if index > synced and not clean]
        held = [
            index
            for index in range(-1, intact + 1)
            if (stale is None or index < stale) and not any(first <= index for first in lost)
        ]  # fmt: skip
        assert one.held == max(held), (intact, stale, clean, marked, damaged)
    assert replica().held == -1


def test_known_commit_is_the_highest_of_four_records() -> None:
    """By its checkpoint, its snapshot, its running node and the consume queue units that exist, the
    highest counts."""
    for commit, applied, at, filed in product(
        (None, -1, 2), (None, 3, "3"), (None, 2, 4), (None, 0, 5)
    ):
        one = replica(
            commit=commit,
            snapshot={"applied_index": applied},
            point=None if at is None else point(at),
        )
        runs = [
            QueueRun("t", 0, 0, 0, 1, 0, 0, 0, filed_index=filed),
            QueueRun("t", 1, 0, 0, 1, 0, 0, 0),
        ]
        one.reports = [report(0, 9, queues=runs)]
        assert one.applied == (applied if isinstance(applied, int) else None)
        told = [index for index in (commit, applied, at, filed) if isinstance(index, int)]
        assert one.known_commit == max([-1, *told])
    assert (replica().applied, replica().known_commit) == (None, -1)
