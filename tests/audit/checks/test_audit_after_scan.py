"""What the files of a replica say together: their names and joins, lost numbers, required and
needless units, in every small case."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.audit.checks import after_scan
from ledgermq.audit.checks import replica as replicas
from ledgermq.audit.checks.after_scan import (
    check_checkpoint_end,
    check_hard_term,
    check_log,
    check_names,
    check_queues,
    required_dispatch,
)
from ledgermq.audit.checks.backups import SUFFIX
from ledgermq.audit.checks.derived import QueueRun, TailReport, tails
from ledgermq.audit.checks.order import ProducerRun
from ledgermq.audit.checks.replica import Mark, Point, Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.reading.decode import HEADER_BYTES, crc
from ledgermq.audit.rules import Flaw, Place

SIZE = 1000
LENGTH = 7
DATA = "g1/dledger-n1/data/"
INDEX = "dledger-n1/index"
QUEUE = "consumequeue/t/0"


def name(base: int) -> str:
    return f"{DATA}{base:020d}"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says which files the log has; every file has the same length."""

    def there(*bases: int) -> None:
        monkeypatch.setattr(
            replicas, "numbered_files", lambda directory: [(base, f"{base:020d}") for base in bases]
        )

    monkeypatch.setattr(after_scan, "size_of", lambda path: LENGTH)
    there()
    return there


def replica(base: Path = Path("/none"), **fields: Any) -> Replica:
    one = Replica(
        str(base), f"{base}/g1", "g1", "n1", "dledger-n1", log_id="l", sizes=(SIZE, 64, 40)
    )
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def filled(at: int, first: int | None, last: int | None, **fields: Any) -> LogReport:
    """The report of a file whose entries continue those of the file before it."""
    values: dict[str, Any] = {
        "entries": 1, "first_index": first, "last_index": last, "first_size": 200, "last_at": 600, "end": 900, "ending": "blank",
        "prev_chain": (first or 0) + 70, "first_chain": 9, "last_chain": (last or 0) + 71, "last_intact_index": last or 0, "sound": 1,
        "first_term": 1, "last_term": 1, "first_store_ms": 5, "last_store_ms": 5, "highest_store_ms": 5,
    }  # fmt: skip
    return LogReport(name(SIZE * at), SIZE * at, SIZE, **{**values, **fields})


def empty(at: int, **fields: Any) -> LogReport:
    return LogReport(name(SIZE * at), SIZE * at, SIZE, **fields)


def last(at: int, first: int | None, index: int, **fields: Any) -> LogReport:
    return filled(at, first, index, **{"ending": "zero", **fields})


def flaws(one: Replica, *rules: str) -> list[Flaw]:
    return [flaw for flaw in one.flaws if not rules or flaw.rule in rules]


def places(one: Replica, *rules: str) -> list[tuple[str, str, int, int]]:
    return [(flaw.rule, flaw.file, flaw.byte_from, flaw.byte_to) for flaw in flaws(one, *rules)]


def checked(*reports: LogReport, decided: int = 0, **fields: Any) -> Replica:
    one = replica(reports=[*reports], **fields)
    check_log(one, decided)
    return one


def ahead(index: int, end_pos: int = 0) -> Mark:
    return Mark(1, index, end_pos, 0, "l")


# ---------------------------------------------------------------------------------------------------------------------- names


def subsets(of: Sequence[int]) -> list[tuple[int, ...]]:
    return [*chain.from_iterable(combinations(of, count) for count in range(len(of) + 1))]


def test_the_files_of_a_log_follow_each_other(files: Callable[..., None]) -> None:
    """From its begin on. Of missing ones the first of each gap is told; a name that is no position
    is one by itself."""
    for begin, bases in product((0, 2000), subsets((0, 1000, 1500, 2000, 4000, 5000))):
        files(*bases)
        one = replica(begin=Begin(3, begin, 1, 0) if begin else Begin(), mark=ahead(99, 9999))
        check_names(one)
        expected, wanted = begin, []
        for base in bases:
            if base % SIZE:
                wanted.append(("file.name", name(base), 0, 0))
            elif base >= begin:
                wanted += [("file.missing", name(expected), 0, SIZE)] * (base > expected)
                expected = base + SIZE
        assert places(one) == wanted, (begin, bases)
    files(0)
    one = replica(sizes=(0, 64, 40), point=Point(1, 5, 1, 0))
    check_names(one)
    assert one.flaws == [], "without an identity, and with empty files, nobody knows their size"


def test_running_node_without_the_file_of_an_applied_entry_is_missing_it(
    files: Callable[..., None],
) -> None:
    for end in (1, 999, 1000, 1001, 2000):
        files(0)
        one = replica(point=Point(1, end, 1, 0))
        check_names(one)
        assert places(one) == [("file.missing", name(SIZE), 0, SIZE)] * (end > 1000)


def test_file_is_missing_if_a_blank_known_end_or_later_entry_shows_it(
    files: Callable[..., None],
) -> None:
    """The blank before it, a known end behind its begin, or later entries. Otherwise the file
    behind it does not belong to the log, and what is wrong with it follows from that."""
    for ending, before, first, marked, pointed in product(
        ("zero", "blank"),
        (None, "unknown", 4),
        (None, "unknown", -1, 0, 1, 4, 5),
        (None, 1999, 2000, 2001),
        (None, 2000, 4500),
    ):
        files(0, 1000, 3000)
        one = replica(
            mark=None if marked is None else ahead(2, marked),
            point=None if pointed is None else Point(2, pointed, 1, 0),
        )
        stray = (
            empty(3) if first is None else filled(3, first if isinstance(first, int) else None, 9)
        )
        stray.flaws.append(Flaw("entry.body", stray.file, 9, 10, 20, "p"))
        second = (
            empty(1)
            if before is None
            else filled(1, 3, before if isinstance(before, int) else None, ending=ending)
        )
        one.reports = [filled(0, 0, 2, ending="zero" if before else ending), second, stray]
        check_names(one)
        if pointed == 2000:
            assert places(one) == [] and len(one.reports) == 3, (
                "the checked part ends before the last file"
            )
            continue
        high = 4 if before == 4 else 2
        shown = (
            ending == "blank"
            or max(marked or 0, pointed or 0) > 2000
            or (isinstance(first, int) and first > high)
        )
        if shown:
            assert (places(one)[0], len(one.reports)) == (("file.missing", name(2000), 0, SIZE), 3)
        else:
            assert places(one) == [
                ("file.name", name(3000), 0, LENGTH),
                ("entry.body", name(3000), 10, 20),
            ]
            assert (one.flaws[1].measures, len(one.reports)) == (((name(3000), 0, LENGTH),), 2)
    files(0, 2000, 3000)
    one = replica(reports=[filled(0, 0, 2, ending="zero"), empty(2), empty(3)])
    check_names(one)
    assert places(one) == [
        ("file.name", name(2000), 0, LENGTH),
        ("file.name", name(3000), 0, LENGTH),
    ]
    for first in (-1, 0, 1):
        files(0, 2000)
        one = replica(reports=[empty(0), filled(2, first, 9)])
        check_names(one)
        assert [flaw.rule for flaw in one.flaws] == [
            "file.missing" if first >= 0 else "file.name"
        ], first
    files(0, 2000)
    for firsts in ((0, 3), (3, 0)):
        one = replica(
            reports=[
                filled(0, 0, 2, ending="zero"),
                filled(2, firsts[0], 5),
                filled(3, firsts[1], 9),
            ]
        )
        check_names(one)
        assert [flaw.rule for flaw in one.flaws] == ["file.missing"], "any later entry shows it"


# ---------------------------------------------------------------------------------------------------------------------- joins


def test_files_that_follow_each_other_are_no_flaw(files: Callable[..., None]) -> None:
    one = checked(
        filled(0, 0, 3),
        filled(1, 4, 6, first_term=2, last_term=2),
        last(2, 7, 9, first_term=2, last_term=3, first_store_ms=6),
    )
    assert one.flaws == []
    assert checked().flaws == []


def test_terms_and_store_times_do_not_fall(files: Callable[..., None]) -> None:
    """From one entry to a later one, whatever lies between. A damaged one of the two may be the
    reason."""
    for at, index, term, ms, damaged in product(
        (1, 2), (3, 4, 5), (1, 2, 3), (4, 5, 6), ((), (3,), (5,), (3, 5))
    ):
        before = filled(0, 0, 3, last_term=2, damaged=[3] if 3 in damaged else [])
        after = last(
            at,
            index,
            9,
            first_term=term,
            first_store_ms=ms,
            damaged=[index] if 5 in damaged else [9],
        )
        epoch = checked(before, replace(after, time_epochs=[index]))
        assert flaws(epoch, "record.store-time") == []
        one = checked(before, after)
        found = flaws(one, "entry.term-order", "record.store-time")
        later = index > 3
        wanted = [("entry.term-order", name(SIZE * at), 16, 24)] * (later and term < 2)
        wanted += [("record.store-time", name(SIZE * at), 104, 112)] * (later and ms < 5)
        assert places(one, "entry.term-order", "record.store-time") == wanted
        measures = ((name(0), 600, 900),) * (3 in damaged) + ((name(SIZE * at), 0, 200),) * (
            5 in damaged
        )
        assert all((flaw.index, flaw.measures) == (index, measures) for flaw in found)
    for known in (False, True):
        one = checked(
            filled(0, 0, 3 if known else None),
            last(1, 4, 9, first_index=None if known else 4, first_term=0),
        )
        assert flaws(one, "entry.term-order", "entry.chain", "entry.gap") == []


def test_the_chain_continues_across_files(files: Callable[..., None]) -> None:
    """It is checked with the word before it, or computed again."""
    text = "00" * 40
    for at, prev, first_chain in product((1, 2), (74, 75, None), (crc(bytes(40), 74), 1)):
        one = checked(
            filled(0, 0, 3),
            last(at, 4, 9, prev_chain=prev, first_input=text, first_chain=first_chain),
        )
        wrong = at == 1 and prev != 74 and first_chain == 1
        found = [flaw for flaw in flaws(one, "entry.chain") if not flaw.torn]
        assert [(flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) for flaw in found] == [
            (name(SIZE), 4, 0, 200)
        ] * wrong


def test_a_blank_stands_where_the_next_entry_did_not_fit(files: Callable[..., None]) -> None:
    """With a blank's own 8 bytes."""
    for ending, size, end in product(("blank", "zero"), (91, 92, 93), (899, 900, 901)):
        one = checked(filled(0, 0, 3, ending=ending, end=end), last(1, 4, 9, first_size=size))
        needless = ending == "blank" and size + 8 <= SIZE - end
        assert places(one, "blank.needless") == [("blank.needless", name(0), end, SIZE)] * needless
        assert all(flaw.index == 4 for flaw in flaws(one, "blank.needless"))
    assert flaws(checked(filled(0, 0, 3), last(2, 4, 9, first_size=1)), "blank.needless") == [], (
        "the file between them is missing"
    )
    for index, damaged in product((3, 4, 5), ([], [4], [9])):
        one = checked(
            filled(0, 0, 3), last(1, 4, 9, first_size=1, markers=[(index, "")], damaged=damaged)
        )
        wanted = index != 4 and damaged != [4]
        assert len(flaws(one, "blank.needless")) == wanted, (
            "a marker may begin a file that an operator wanted"
        )


def test_indexes_continue_across_files(files: Callable[..., None]) -> None:
    """A gap lies at the end of a file without a blank, else before the first entry of the next one,
    where entries may never have been written if the node was killed."""
    for index, ending, clean, hole in product(
        (2, 3, 4, 5, 6), ("blank", "zero"), (False, True), (None, 0, 1)
    ):
        after = last(1, index, 9)
        if hole is not None:
            after.flaws = [
                Flaw("entry.body", name(SIZE), 9, 0, 9, "p"),
                Flaw("entry.unreadable", name(SIZE), 4, hole, 300, "p", torn=True),
            ]
        one = checked(filled(0, 0, 3, ending=ending), after, clean=clean)
        found = flaws(one, "entry.gap", "entry.repeat")
        if index == 4:
            assert found == []
            continue
        (flaw,) = found
        behind = index > 4 and ending != "blank"
        torn = hole == 0 and not clean and not behind
        place = (
            (name(0), 900, SIZE)
            if behind
            else (name(SIZE), 0, 300)
            if torn
            else (name(SIZE), 8, 16)
        )
        assert (flaw.file, flaw.byte_from, flaw.byte_to, flaw.torn) == (*place, torn), (
            index,
            ending,
            clean,
            hole,
        )
        assert (flaw.rule, flaw.index) == (
            ("entry.gap", 4) if index > 4 else ("entry.repeat", index)
        )
    assert flaws(checked(filled(0, 0, 3), last(2, 6, 9)), "entry.gap") == [], (
        "the missing file is told"
    )


def test_entry_behind_an_unknown_one_breaks_the_chain(files: Callable[..., None]) -> None:
    """The places that are missing before it are its measures, and the rest of the file before
    it."""
    for at, index, known, prev in product((1, 2), (4, 5), (3, None), (None, 74)):
        files(0, SIZE * at)
        head = last(at, index, 9, prev_chain=prev, first_chain=crc(b"", 74))
        one = replica(reports=[filled(0, 0, known, last_chain=74), head])
        one.flaw("identity.json", "identity.json", "p", 0, 5)
        one.flaw("begin.json", "begin", "p", 1, 6)
        one.flaw("identity.missing", "identity.json", "p", 2, 7)
        one.flaw("mark.slot", "mark", "p", 0, 8)
        check_log(one, 0)
        found = [flaw for flaw in flaws(one, "entry.chain") if flaw.torn]
        if prev is not None or (at, index, known) == (1, 4, 3):
            assert found == []
            continue
        (flaw,) = found
        assert (flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) == (
            name(SIZE * at),
            index,
            0,
            200,
        )
        absent = [("g1/identity.json", 0, 5), ("g1/begin", 1, 6), ("g1/identity.json", 2, 7)] + [
            (name(SIZE), 0, SIZE)
        ] * (at == 2)
        assert flaw.measures == (*absent, (name(0), 600, SIZE), (name(SIZE * at), 0, HEADER_BYTES))
    files()
    first = checked(filled(0, 0, 3, prev_chain=None), last(1, 4, 9))
    assert [(flaw.rule, flaw.torn, flaw.measures) for flaw in first.flaws] == [
        ("entry.chain", True, ((name(0), 0, HEADER_BYTES),))
    ]


def test_files_without_an_entry_before_others_lost_theirs(files: Callable[..., None]) -> None:
    for full, begin, length in product(product((False, True), repeat=3), (0, 3), (0, 1, 2, SIZE)):
        reports = [
            filled(at, None, 10 * at + 5) if has else replace(empty(at), length=length)
            for at, has in enumerate(full)
        ]
        one = checked(*reports, decided=9, begin=Begin(begin, begin and SIZE, 1, 0))
        found = [
            (flaw.file, flaw.index, flaw.byte_from, flaw.byte_to)
            for flaw in flaws(one, "entry.gap")
        ]
        ends = [at for at, has in enumerate(full) if has]
        wanted = []
        for at in range(max(ends, default=0)):
            if not full[at]:
                before = max((10 * other + 6 for other in ends if other < at), default=begin)
                wanted.append((name(SIZE * at), before, 0, max(length, 1)))
        assert found == wanted, (full, begin)
    one = checked(filled(0, None, None), empty(1), last(2, 9, 9))
    assert [flaw.index for flaw in flaws(one, "entry.gap") if flaw.file == name(SIZE)] == [1], (
        "of an unknown index only that it is one"
    )


def test_a_blank_ends_every_file_but_the_last(files: Callable[..., None]) -> None:
    for endings, known in product(product(("blank", "zero", "tail"), repeat=3), (False, True)):
        reports = [
            filled(at, 4 * at, 4 * at + 3, ending=ending) for at, ending in enumerate(endings)
        ]
        one = checked(*reports, mark=ahead(12, 3300) if known else None)
        missing = [flaw for flaw in flaws(one, "blank.missing")]
        assert [
            (flaw.file, flaw.byte_from, flaw.byte_to, flaw.index, flaw.measures, flaw.torn)
            for flaw in missing
        ] == [
            (name(SIZE * at), 900, SIZE, 4 * at + 4, ((name(SIZE * at), 900, SIZE),), False)
            for at in (0, 1)
            if endings[at] != "blank"
        ]
        lost: tuple[Place, ...] = ((name(3000), 0, 300),) if known else ()
        assert [
            (flaw.file, flaw.byte_from, flaw.byte_to, flaw.index, flaw.measures, flaw.torn)
            for flaw in flaws(one, "blank.alone")
        ] == [(name(2000), 900, SIZE, 12, lost, True)] * (endings[2] == "blank")
    one = checked(filled(0, 0, 3), empty(1, ending="blank", end=50), mark=ahead(9, 1500))
    assert [(flaw.file, flaw.byte_from, flaw.index, bool(flaw.measures)) for flaw in flaws(one, "blank.alone")] == [
        (name(0), 900, 4, True), (name(SIZE), 50, 4, False)
    ]  # fmt: skip
    assert (
        flaws(checked(empty(0, ending="zero"), last(1, 0, 3)), "blank.alone", "blank.missing") == []
    )
    assert (
        flaws(checked(filled(0, 0, None, ending="zero"), last(1, 4, 9)), "blank.missing") == []
    ), "nothing in it is known"


def test_the_log_begins_where_its_group_decided(files: Callable[..., None]) -> None:
    for index, decided, first, at in product((0, 3), (0, 2, 3, 4), (None, 0, 2, 3), (0, 1)):
        begin = Begin(index, 1000, 1, 0) if index else Begin()
        one = checked(
            last(at, first, 9, first_index=first, prev_chain=7),
            last(at + 1, 3, 9),
            begin=begin,
            decided=decided,
        )
        assert bool(flaws(one, "begin.decided")) is (index > decided)
        assert all(flaw.file == "g1/dledger-n1/begin" for flaw in flaws(one, "begin.decided"))
        wrong = SIZE * at == begin.pos and first not in (index, None)
        found = [flaw for flaw in flaws(one, "entry.gap") if "begins with" in flaw.proof]
        assert [(flaw.file, flaw.index, flaw.byte_from, flaw.byte_to) for flaw in found] == [
            (name(SIZE * at), index, 0, 48)
        ] * wrong


def test_names_and_flaws_of_files_are_told(files: Callable[..., None]) -> None:
    files(0, 1500)
    own = Flaw("entry.body", name(0), 1, 2, 3, "p")
    one = checked(last(0, 0, 3, flaws=[own]))
    assert own in one.flaws and ("file.name", name(1500), 0, 0) in places(one)


# ---------------------------------------------------------------------------------------------------------------- small files


def test_the_term_of_the_hard_state() -> None:
    for noted, term in product((None, 1, 2, 3), (None, 2)):
        one = replica(hard_term=noted)
        check_hard_term(one, term)
        wrong = noted == 1 and term == 2
        assert places(one) == [("hardstate.term", "g1/dledger-n1/hardstate", 0, 8192)] * wrong


def test_the_hard_state_is_held_against_the_last_proven_entry(files: Callable[..., None]) -> None:
    for terms in product((None, 1, 3), repeat=2):
        one = checked(
            filled(0, 0, 3, last_sound_term=terms[0]),
            last(1, 4, 9, last_sound_term=terms[1]),
            hard_term=2,
        )
        known = [term for term in terms if term is not None]
        assert bool(flaws(one, "hardstate.term")) is (known[-1:] == [3])


def test_checkpoint_or_key_index_ahead_of_a_clean_log_is_a_finding(
    files: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the checkpoint nor the key index. The end is that of the log or of its mark."""
    for clean, point, marked, told in product(
        (False, True), (None, Point(9, 900, 1, 0)), (None, 5, 9, 10), (9, 10, 11, None)
    ):
        for field in ("end_hint", "commit", "next", "other log"):
            position = SimpleNamespace(
                log_id="l" if field == "next" else "x", next_index=(told or 0) + 1
            )
            monkeypatch.setattr(
                after_scan,
                "read_position",
                lambda root, found=position, there=told: None if there is None else found,
            )
            mark = None if marked is None else ahead(marked, 900)
            one = replica(
                reports=[last(0, 0, 9, last_store_ms=3, highest_store_ms=5)],
                clean=clean,
                point=point,
                mark=mark,
            )
            if field in ("end_hint", "commit"):
                setattr(one, field, told)
                setattr(one, "commit" if field == "end_hint" else "end_hint", 3)
                check_checkpoint_end(one)
            else:
                check_log(one, 0)
            wrong = (
                clean
                and point is None
                and marked is not None
                and told is not None
                and told > max(9, marked)
            )
            rule, file = ("keyindex.position", "g1/state/keyindex")
            if field in ("end_hint", "commit"):
                rule, file = ("checkpoint.ahead", "g1/dledger-n1/checkpoint")
            wrong = wrong and field != "other log"
            assert (
                places(one, "keyindex.position", "checkpoint.ahead")
                == [(rule, file, 0, LENGTH)] * wrong
            )
            assert all(f"names entry {told}" in flaw.proof for flaw in flaws(one, rule))
    monkeypatch.setattr(
        after_scan, "read_position", lambda root: SimpleNamespace(log_id="l", next_index=12)
    )
    assert (
        flaws(
            checked(last(0, 0, 9), mark=ahead(9, 900), end_hint=99),
            "keyindex.position",
            "checkpoint.ahead",
        )[0].rule
        == "checkpoint.ahead"
    )
    for error in (ValueError("p"), OSError(5, "p")):

        def unreadable(root: str, told: Exception = error) -> None:
            raise told

        monkeypatch.setattr(after_scan, "read_position", unreadable)
        assert checked(last(0, 0, 9), mark=ahead(9, 900)).flaws == []


def test_a_stamp_of_before_a_time_epoch_is_not_later_than_the_log(
    files: Callable[..., None],
) -> None:
    """The key index may be durable up to an entry of a former epoch only."""
    for stamp in (9, 10):
        reports = [
            filled(0, 0, 1, last_store_ms=9, highest_store_ms=9),
            last(1, 2, 3, last_store_ms=4, highest_store_ms=4),
        ]
        one = checked(*reports, store_stamps=(4, 4, stamp), clean=True, point=None, mark=None)
        assert places(one, "checkpoint.store") == [("checkpoint.store", "g1/checkpoint", 0, 24)] * (
            stamp == 10
        )


def test_stamps_of_the_store_are_not_later_than_its_last_entry(files: Callable[..., None]) -> None:
    """Of a log that lost its end, or is unreadable there, the last store time is unknown."""
    for stamp, clean, point, ending, damaged, lost in product(
        (-1, 0, 5, 6),
        (False, True),
        (None, Point(3, 900, 1, 0)),
        ("zero", "tail", "blank"),
        ((), (3,), (2,)),
        (False, True),
    ):
        one = checked(
            filled(0, 0, 1), last(1, 2, 3, ending=ending, damaged=list(damaged), first_term=1),
            store_stamps=(4, stamp), clean=clean, point=point, mark=ahead(4, 1980) if lost else None,
        )  # fmt: skip
        wrong = stamp in (-1, 6) and clean and point is None
        assert (
            places(one, "checkpoint.store")
            == [("checkpoint.store", "g1/checkpoint", 0, 24)] * wrong
        )
        for flaw in flaws(one, "checkpoint.store"):
            place = (name(2000), 0, 0) if False else (name(1000), 900, 980)
            measures = [place] * lost + [(name(1000), 600, SIZE)] * (
                3 in damaged or ending == "tail"
            )
            assert flaw.measures == tuple(measures) and f"stamp {stamp} " in flaw.proof
    for stamp in (0, 1):
        assert [flaw.rule for flaw in checked(store_stamps=(stamp,)).flaws] == [
            "checkpoint.store"
        ] * stamp


# -------------------------------------------------------------------------------------------------------------- lost entries

ENTRIES = {1: (0, 1, 2), 4: (3, 4), 5: (5, 6), 7: (7, 8, 9)}
"""File → its entries. The files 0, 3, 6 and 8 are missing, file 2 has no entry."""
AT = {index: at for at, indexes in ENTRIES.items() for index in indexes}


def damaged_log(files: Callable[..., None], lost: Sequence[int], **fields: Any) -> Replica:
    """A log of these files in which some entries are not intact."""
    files(*(SIZE * at for at in (1, 2, 4, 5, 7, 9)))
    reports = [empty(2)]
    for at, indexes in {**ENTRIES, 9: (10,)}.items():
        report = filled(
            at,
            indexes[0],
            indexes[-1],
            sound=sum(index not in lost for index in indexes),
            entries=len(indexes),
        )
        reports.append(report)
    one = replica(reports=sorted(reports, key=lambda report: report.base), **fields)
    one.flaws.append(Flaw("blank.missing", name(3 * SIZE), None, 1, 2, "p"))
    one.flaws.append(Flaw("file.missing", f"g1/{INDEX}/{3 * SIZE:020d}", None, 3, 4, "p"))
    return one


def spot(lost: Sequence[int], index: int) -> tuple[int, int, int]:
    """Of a message: its index, the number of intact entries before it in its file, and its offset
    there."""
    first = ENTRIES[AT[index]][0]
    return index, sum(other not in lost for other in range(first, index)), 100 * (index - first)


def between(low: int, high: int) -> tuple[Place, ...]:
    """The bytes from one entry to the header of a later one, in files that are there, and the
    missing files between them."""
    start, stop = spot((), low)[2], spot((), high)[2] + HEADER_BYTES
    if AT[low] == AT[high]:
        return ((name(SIZE * AT[low]), start, stop),)
    there = [at for at in (2, 3, 4, 5, 6, 7) if AT[low] < at < AT[high]]
    return (
        (name(SIZE * AT[low]), start, SIZE),
        *((name(SIZE * at), 0, SIZE) for at in there),
        (name(SIZE * AT[high]), 0, stop),
    )


PAIRS = [(0, 5), (1, 6), (2, 3), (3, 6), (4, 5), (2, 9)]


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_as_many_numbers_of_a_producer_may_be_missing_as_entries_are_lost(
    files: Callable[..., None], low: int, high: int
) -> None:
    """Between its two messages; entries that can be read and have no number that is known count as
    well."""
    inside = range(low + 1, high)
    for lost in subsets(inside)[:24]:
        for step, unnumbered in product(range(4), ((), (low, high), (inside or (0,))[:1])):
            one = damaged_log(files, lost)
            one.reports[0].unnumbered = list(unnumbered)
            first, second = spot(lost, low), spot(lost, high)
            runs = {
                AT[low]: ProducerRun(7, 5, 1, *first, 5, 1, *first),
                AT[high]: ProducerRun(7, 5 + step, 1, *second, 9, 1, *second),
            }
            for report in one.reports:
                if report.base // SIZE in runs:
                    report.producers.append(runs[report.base // SIZE])
            check_log(one, 0)
            flaw, *others = [*flaws(one, "order.producer"), None]
            if step == 1:
                assert flaw is None
                continue
            assert flaw is not None and others == [None]
            known = len(lost) + sum(index in inside for index in unnumbered)
            assert (flaw.file, flaw.index) == (name(SIZE * AT[high]), high)
            assert (flaw.byte_from, flaw.byte_to) == (second[2], second[2] + HEADER_BYTES)
            assert tuple(sorted(flaw.measures)) == (
                between(low, high) if 0 < step - 1 <= known else ()
            ), (lost, step, unnumbered)


def test_a_producer_does_not_go_back_to_an_older_epoch(files: Callable[..., None]) -> None:
    for step, epoch, producer in product((0, 1, 3), (1, 2, 3), (7, 8)):
        one = replica(reports=[filled(0, 0, 3, sound=1), last(1, 4, 9)])
        one.reports[0].producers.append(ProducerRun(7, 5, 2, 0, 0, 0, 5, 2, 1, 0, 100))
        one.reports[1].producers.append(
            ProducerRun(producer, 5 + step, epoch, 9, 3, 300, 9, epoch, 9, 3, 300)
        )
        check_log(one, 0)
        wrong = producer == 7 and (step != 1 or epoch < 2)
        assert [(flaw.index, flaw.byte_from) for flaw in flaws(one, "order.producer")] == [
            (9, 300)
        ] * wrong
        assert (
            all("older epoch" in flaw.proof for flaw in flaws(one, "order.producer")) or epoch >= 2
        )
        assert all(
            bool(flaw.measures) is (step == 3 and epoch >= 2)
            for flaw in flaws(one, "order.producer")
        )


@pytest.mark.parametrize(("low", "high"), [(-1, 0), (-1, 1), (-1, 6), *PAIRS])
def test_as_many_queue_offsets_may_be_missing_as_entries_are_lost(
    files: Callable[..., None], low: int, high: int
) -> None:
    """Before the first message of a queue too."""
    for lost in subsets(range(low + 1, high))[:24]:
        for step in range(5):
            one = damaged_log(files, lost)
            first, second = spot(lost, max(low, 0)), spot(lost, high)
            if low >= 0:
                by_base(one)[AT[low]].queues.append(QueueRun("t", 0, 0, 2, 3, *first, *first))
            offset = (3 if low >= 0 else 0) + step
            by_base(one)[AT[high]].queues.append(
                QueueRun("t", 0, offset, offset, 1, *second, *second)
            )
            check_log(one, 0)
            check_queues(one)
            found = flaws(one, "record.queue-offset", "record.queue-repeat")
            if step == 0:
                assert found == []
                continue
            (flaw,) = found
            assert (flaw.file, flaw.index, flaw.byte_from) == (
                name(SIZE * AT[high]),
                high,
                second[2] + HEADER_BYTES + 20,
            )
            start = between(low, high) if low >= 0 else ((name(0), 0, SIZE), *between(0, high))
            assert tuple(sorted(flaw.measures)) == (start if step <= len(lost) else ()), (
                lost,
                step,
            )


def by_base(one: Replica) -> dict[int, LogReport]:
    return {report.base // SIZE: report for report in one.reports}


# -------------------------------------------------------------------------------------------------------------------- queues


def run(
    first: int, index: int, topic: str = "t", *, to: int | None = None, **fields: Any
) -> QueueRun:
    """Messages of a queue in one file, from an offset, and an index, `to` another offset."""
    return QueueRun(
        topic,
        0,
        first,
        first if to is None else to,
        1,
        index,
        0,
        0,
        **{"last_index": index, **fields},
    )


def queued(*runs: QueueRun, **fields: Any) -> Replica:
    """A replica with these runs, each in a file of its own, whose derived files were not looked
    at."""
    reports = [filled(at, 5 * at, 5 * at + 4) for at in range(len(runs))]
    for report, each in zip(reports, runs, strict=True):
        report.queues.append(each)
    one = replica(reports=reports, **fields)
    check_queues(one)
    return one


def test_where_the_offsets_of_a_queue_begin(files: Callable[..., None]) -> None:
    """At 0; in a trimmed log where an exact snapshot says, else where they do. Those of a lite
    topic may begin anew at a multiple of 300 000."""
    for begin, exact, low, offset, topic in product(
        (0, 3), (False, True), (None, 4), (0, 4, 5, 300_000, 300_001), ("t", "t$0")
    ):
        minimums = {} if low is None else {topic: {"0": [low, None]}}
        snapshot = {
            "retained": {"begin_index": begin if exact else begin + 1},
            "minimums": minimums,
        }
        one = queued(
            run(offset, 3, topic),
            begin=Begin(begin, 0, 1, 0) if begin else Begin(),
            snapshot=snapshot,
        )
        expected = 0 if not begin else offset if not exact else (low or 0)
        right = offset == expected or ("$" in topic and offset == 300_000)
        assert [flaw.rule for flaw in flaws(one, "record.queue-offset", "record.queue-repeat")] == (
            [] if right else ["record.queue-offset" if offset > expected else "record.queue-repeat"]
        ), (begin, exact, low, offset, topic)
    two = queued(run(0, 3, to=2), run(4, 8))
    assert [flaw.index for flaw in two.flaws] == [8] and "follows 2" in two.flaws[0].proof
    mixed = replica(
        reports=[
            filled(0, 0, 4, queues=[run(0, 1), replace(run(0, 2), queue=1)]),
            last(1, 5, 9, queues=[run(1, 6)]),
        ]
    )
    check_queues(mixed)
    assert mixed.flaws == [], "every queue has its own offsets"


def test_which_messages_must_have_been_dispatched() -> None:
    for point, backup, applied, commit, clean in product(
        (None, 4), (False, True), (None, "x", 5), (None, 6), (False, True)
    ):
        one = replica(
            clean=clean, commit=commit, point=None if point is None else Point(point, 0, 1, 0)
        )
        one.name += SUFFIX * backup
        one.snapshot = None if applied is None else {"applied_index": applied}
        wanted = -1
        if point is not None:
            wanted = point
        elif not backup and applied == 5:
            wanted = 5
        elif not backup and clean and commit is not None:
            wanted = commit
        assert required_dispatch(one) == wanted


def units(one: Replica, *rules: str) -> list[tuple[int, bool]]:
    """The numbers of the units that flaws name, each whether its flaw is torn."""
    found = []
    for flaw in flaws(one, *rules):
        base = int(flaw.file.removeprefix(f"g1/{QUEUE}/"))
        assert base % 40 == 0 and 0 <= flaw.byte_from < flaw.byte_to <= 40
        numbers = range((base + flaw.byte_from) // 20, (base + flaw.byte_to) // 20)
        assert (base + flaw.byte_from) % 20 == (base + flaw.byte_to) % 20 == 0
        found += [(number, flaw.torn) for number in numbers]
    return found


def test_applied_entry_without_queue_unit_is_a_hole(files: Callable[..., None]) -> None:
    """Message k of the queue is entry 2 k. Behind what is applied, a unit may be empty, but not
    before one that is written."""
    for first, last_, applied, filed in product(
        range(4), range(6), range(-1, 12, 2), (None, 0, 3, 5, 7)
    ):
        if last_ < first:
            continue
        for required in (applied, applied + 1):
            waiting = [[first, last_, 2 * first, 2 * last_]]
            one = queued(
                run(0, 0, to=9, waiting=waiting, filed_offset=filed, filed_index=0),
                clean=True,
                commit=required,
            )
            offsets = range(first, last_ + 1)
            if 2 * first <= required:
                # Entries that are not messages of the queue may be among those behind the first
                # one.
                end = last_ if 2 * last_ <= required else min(last_, first + required - 2 * first)
                assert units(one) == [(offset, False) for offset in range(first, end + 1)]
                assert all(
                    (flaw.rule, flaw.index) == ("queue.missing", 2 * first) for flaw in one.flaws
                )
            elif filed is not None and first < filed:
                assert units(one) == [(offset, True) for offset in offsets]
                assert all(
                    (flaw.rule, flaw.index) == ("queue.hole", 2 * first) for flaw in one.flaws
                )
            else:
                assert one.flaws == []


def test_below_the_minimum_of_the_snapshot_a_unit_may_be_gone(files: Callable[..., None]) -> None:
    """Empty or blank, with whatever begin of the log; from the first kept unit on, a blank one is
    wrong and an empty one missing. Message k of the queue is entry 2 k."""
    for begin, first, last_, low, kept, applied in product(
        (0, 4), range(3), range(4), (None, 0, 1, 2, 4), (False, True), (2, 7)
    ):
        if last_ < first or (kept and not low):
            continue
        unit = [0, 7, 0] if kept else None
        snapshot = {} if low is None else {"minimums": {"t": {"0": [low, unit]}}}
        floor = (low or 0) - kept
        gone = [[first, last_, 2 * first, 2 * last_]]
        given = {
            "begin": Begin(begin, begin * 200, 1, 1),
            "snapshot": snapshot,
            "clean": True,
            "commit": applied,
        }
        for field in ("waiting", "blanks"):
            one = queued(run(0, 0, to=9, filed_offset=0, filed_index=0, **{field: gone}), **given)
            wanted = range(max(first, floor), last_ + 1)
            lowest = 2 * first + len(range(first, max(first, floor)))
            if field == "waiting":
                wanted = wanted[: max(applied - lowest + 1, 0)]
            assert units(one, "queue.missing", "queue.unit") == [
                (offset, False) for offset in wanted
            ], (first, last_, low, kept)
            assert {flaw.rule for flaw in one.flaws if flaw.rule.startswith("queue.")} == (
                set() if not wanted else {"queue.unit" if field == "blanks" else "queue.missing"}
            )


def test_units_written_in_one_file_show_holes_in_another(files: Callable[..., None]) -> None:
    for filed in product((None, 1, 3), repeat=2):
        runs = [
            run(0, 0, to=2, waiting=[[2, 2, 3, 3]], filed_offset=filed[0]),
            run(3, 5, to=9, filed_offset=filed[1]),
        ]
        assert units(queued(*runs, clean=False), "queue.hole") == [(2, True)] * (3 in filed)


def test_a_queue_ends_behind_its_highest_offset(files: Callable[..., None]) -> None:
    """In whatever file of the log that is: the units up to there are no further ones, and files
    before them are missing."""
    one = replica(
        reports=[filled(0, 0, 4, queues=[run(0, 0, to=5)]), last(1, 5, 9, queues=[run(3, 5)])]
    )
    one.tails = [TailReport(QUEUE, 120, f"{80:020d}", [], 0, [(40, 80), (120, 160)])]
    check_queues(one)
    assert places(one, "file.missing", "file.name", "queue.tail") == [
        ("file.missing", f"g1/{QUEUE}/{40:020d}", 0, 40), ("file.name", f"g1/{QUEUE}/{160:020d}", 0, LENGTH)
    ]  # fmt: skip


def test_derived_files_exist_from_the_first_needed_one(files: Callable[..., None]) -> None:
    """Earlier ones may exist. Of missing ones before units of the log each gap is told; a file
    behind the end is no part of the data."""
    for begin, first_base, gaps in product(
        (0, 3, 4, 5),
        (0, 64, 128, 192, 256),
        ((), ((128, 192),), ((192, 320),), ((128, 192), (256, 320))),
    ):
        own = Flaw("file.length", f"g1/{INDEX}/x", None, 0, 1, "p")
        one = replica(
            reports=[last(0, begin, 6)], begin=Begin(begin, 0, 1, 0) if begin else Begin()
        )
        one.tails = [TailReport(INDEX, 0, f"{0:020d}", [own], first_base, [*gaps])]
        check_queues(one)
        # Entries up to 6 have units up to byte 224.
        needed = begin * 32 // 64 * 64
        missing = [(needed, first_base)] * (first_base > needed) + [
            (max(start, needed), base) for start, base in gaps if base > needed
        ]
        assert one.flaws[0] == own
        assert places(one)[1:] == [
            (
                ("file.missing", f"g1/{INDEX}/{start:020d}", 0, base - start)
                if start < 224
                else ("file.name", f"g1/{INDEX}/{base:020d}", 0, LENGTH)
            )
            for start, base in missing
        ], (begin, first_base, gaps)


def test_consume_queues_begin_at_their_first_kept_unit(files: Callable[..., None]) -> None:
    """Which the snapshot says, and where they end if no message is left. A lite topic that vanished
    may have any files."""
    cases = product(
        ("t", "t$0"), (None, 3, 4, 6), (False, True), (0, 40, 80, 120), (0, 8), (20, 40)
    )
    for topic, low, with_unit, first_base, messages, size in cases:
        unit = [0, 0, 0] if with_unit else None
        minimums = {} if low is None else {topic: {"0": [low, unit]}}
        one = replica(
            begin=Begin(3, 0, 1, 0), snapshot={"minimums": minimums, "retained": {"begin_index": 3}}
        )
        one.reports = [
            last(0, 3, 9, queues=[run(low or 0, 3, topic, to=messages - 1)] if messages else [])
        ]
        folder = f"consumequeue/{topic}/0"
        one.tails = [
            TailReport(folder, 0, f"{0:020d}", [], first_base),
            TailReport(INDEX, 0, f"{0:020d}", [], 128),
        ]
        one.sizes = SIZE, 64, size
        check_queues(one)
        kept = (low or 0) - (with_unit and low is not None)
        needed = kept * 20 // size * size
        end = 20 * messages if messages else 20 * (low or 0)
        ignored = topic != "t" and low is None and not messages
        told = [flaw for flaw in one.flaws if flaw.file.startswith(f"g1/{folder}")]
        assert [(flaw.rule, flaw.file, flaw.byte_to) for flaw in told] == (
            [] if ignored or first_base <= needed
            else [("file.missing", f"g1/{folder}/{needed:020d}", first_base - needed)] if needed < end
            else [("file.name", f"g1/{folder}/{first_base:020d}", LENGTH)]
        ), (topic, low, with_unit, first_base, messages)  # fmt: skip
        others = [flaw for flaw in one.flaws if flaw.file.startswith(f"g1/{INDEX}")]
        assert [flaw.rule for flaw in others] == ["file.missing"], (
            "what is behind a topic that vanished is checked"
        )


# --------------------------------------------------------------------------------------------------------------------- tails


def index_unit(number: int, kind: str) -> bytes:
    """A unit of entry `number`, or one that says something else."""
    index, magic = number + (kind == "other"), 2 if kind == "magic" else 1
    return bytes(32) if kind == "zero" else struct.pack(">iqiqi4x", magic, 9, 200, index, 0)


def queue_unit(pos: int, size: int = 91) -> bytes:
    return struct.pack(">qiq", pos, size, -1)


def written(base: Path, folder: str, size: int, data: bytes, one: Replica) -> None:
    """The derived files of a replica, which has no others, and what a look at them found."""
    path = base / "g1" / folder
    path.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(data), size):
        (path / f"{start:020d}").write_bytes(data[start : start + size])
    one.tails = [tail for tail in tails(one.task(f"{0:020d}")) if tail.folder == folder]


def nonzero(data: bytes, start: int) -> tuple[int, int]:
    """The first and last (exclusive) byte behind a place that is not zero."""
    at = [place for place, byte in enumerate(data) if byte and place >= start]
    return at[0], at[-1] + 1


@pytest.mark.parametrize("files_of", [4, 8])
def test_index_units_behind_the_end_of_the_log(tmp_path: Path, files_of: int) -> None:
    """Those of entries that the log lost are torn after a kill, and follow from a known loss.
    Anything else is a flaw by itself."""
    cases = [
        *product(("zero", "right", "other"), repeat=3),
        ("magic", "right", "zero"),
        ("right", "zero", "magic"),
    ]
    for number, (told, (clean, known)) in enumerate(
        product(cases, ((False, True), (True, True), (False, False)))
    ):
        one = replica(tmp_path / str(number), clean=clean, mark=ahead(7, 950) if known else None)
        one.sizes = SIZE, 32 * files_of, 40
        one.reports = [last(0, 0, 2)]
        data = b"".join(index_unit(at, "right") for at in range(3)) + b"".join(
            index_unit(3 + at, kind) for at, kind in enumerate(told)
        )
        written(
            tmp_path / str(number),
            INDEX,
            one.sizes[1],
            data + bytes(-len(data) % one.sizes[1]),
            one,
        )
        check_queues(one)
        if told == ("zero",) * 3:
            assert one.flaws == []
            continue
        # The last file with units is looked at.
        base = (nonzero(data, 96)[1] - 1) // one.sizes[1] * one.sizes[1]
        start, stop = nonzero(data, max(96, base))
        kinds_there = told[start // 32 - 3 : (stop - 1) // 32 - 2]
        (flaw,) = one.flaws
        assert (flaw.rule, flaw.file) == ("index.tail", f"g1/{INDEX}/{base:020d}")
        assert (flaw.byte_from, flaw.byte_to) == (start - base, stop - base)
        assert flaw.torn is (kinds_there[0] == "right" and not clean), (told, clean)
        lost = known and {*kinds_there} == {"right"}
        assert flaw.measures == (((name(0), 900, 950),) if lost else ()), (told, clean, known)


def test_index_files_behind_the_checked_part_of_a_running_replica_are_ignored(
    tmp_path: Path,
) -> None:
    """Its node makes them. A flaw of a file that has units of checked entries counts, and so does a
    file that is missing among them."""
    for number, point in enumerate((None, Point(2, 900, 1, 0))):
        one = replica(tmp_path / str(number), reports=[last(0, 0, 2)], point=point)
        one.sizes = SIZE, 64, 40
        shown = [f"g1/{INDEX}/{base:020d}" for base in (0, 64, 96, 128)]
        flawed = [Flaw("file.length", file, None, 0, 64, "") for file in shown]
        written(tmp_path / str(number), INDEX, 64, bytes(192), one)
        one.tails = [TailReport(INDEX, 0, f"{0:020d}", flawed, gaps=[(32, 64), (96, 128)])]
        check_queues(one)
        assert [flaw.file for flaw in flaws(one, "file.length")] == (
            shown if point is None else shown[:2]
        )
        assert places(one, "file.missing") == [("file.missing", f"g1/{INDEX}/{32:020d}", 0, 32)]
        assert len(flaws(one, "file.name")) == (point is None)


def test_a_unit_at_the_end_of_a_sector_is_whole(tmp_path: Path) -> None:
    for kind in ("right", "other"):
        one = replica(tmp_path / kind, reports=[last(0, 0, 14)], clean=False)
        one.sizes = SIZE, 1024, 40
        data = b"".join(index_unit(at, "right") for at in range(15)) + index_unit(15, kind)
        written(tmp_path / kind, INDEX, 1024, data + bytes(512), one)
        check_queues(one)
        assert [flaw.torn for flaw in flaws(one, "index.tail")] == [kind == "right"]


def test_a_part_of_an_index_unit_is_no_unit(tmp_path: Path) -> None:
    for length in (31, 32):
        one = replica(tmp_path / str(length), reports=[last(0, 0, 2)], clean=False)
        one.sizes = SIZE, 256, 40
        data = b"".join(index_unit(at, "right") for at in range(4))[: 96 + length - 4] + bytes(4)
        written(tmp_path / str(length), INDEX, 256, data[: 96 + length], one)
        check_queues(one)
        assert [flaw.torn for flaw in flaws(one, "index.tail")] == [length == 32]


def test_bytes_that_are_gone_when_they_are_looked_at_again(tmp_path: Path) -> None:
    """The end that was found before is told."""
    one = replica(tmp_path, reports=[last(0, 0, 2)], clean=False)
    one.sizes = SIZE, 256, 40
    written(tmp_path, INDEX, 256, bytes(512), one)
    one.tails = [replace(one.tails[0], used=300, last_file=f"{256:020d}")]
    check_queues(one)
    assert [(flaw.byte_from, flaw.byte_to, flaw.torn, flaw.measures) for flaw in one.flaws] == [
        (0, 44, False, ())
    ]


END = 900
BEYOND = END + HEADER_BYTES


@pytest.mark.parametrize("clean", [False, True])
def test_consume_queue_units_behind_the_end_of_the_log(tmp_path: Path, clean: bool) -> None:
    """Unit 25 lies in two sectors, of which one may not have been written."""
    right = queue_unit(BEYOND)
    kinds = {
        "right": right, "zero": bytes(20), "before": queue_unit(BEYOND - 1), "small": queue_unit(BEYOND, 90), "negative": queue_unit(-1),
        "negative size": queue_unit(BEYOND, -1), "head": right[:12] + bytes(8), "rest": bytes(12) + right[12:],
        "more": right[:13] + bytes(7),
    }  # fmt: skip
    for number, (first, told) in enumerate(product((24, 25), product(kinds, repeat=2))):
        known = number % 3 > 0
        one = replica(tmp_path / str(number), clean=clean, mark=ahead(4, 950) if known else None)
        one.sizes = SIZE, 64, 1000
        one.reports = [last(0, 0, 2, queues=[run(0, 0, to=first - 1)], sound=3, entries=3)]
        one.reports[0].queues[0].last_ordinal, one.reports[0].queues[0].last_index = 2, 2
        data = b"\1" * 20 * first + b"".join(kinds[kind] for kind in told)
        written(tmp_path / str(number), QUEUE, 1000, data + bytes(1000 - len(data)), one)
        check_queues(one)
        if told == ("zero", "zero"):
            assert one.flaws == []
            continue
        start, stop = nonzero(data, 20 * first)

        def beyond(at: int, first: int = first, told: tuple[str, ...] = told) -> bool:
            kind = told[at - first]
            if at == 25 and kind in ("head", "rest", "zero"):
                return not clean
            return kind in ("right", "head", "more")

        span = range(start // 20, (stop - 1) // 20 + 1)
        (flaw,) = one.flaws
        assert (flaw.rule, flaw.file, flaw.byte_from, flaw.byte_to) == (
            "queue.tail",
            f"g1/{QUEUE}/{0:020d}",
            start,
            stop,
        )
        assert flaw.torn is (beyond(span[0]) and not clean), (first, told)
        assert flaw.measures == (
            ((name(0), 900, 950),) if known and all(map(beyond, span)) else ()
        ), (first, told)


def test_units_of_lost_entries_follow_from_their_loss(tmp_path: Path) -> None:
    """They lie between the last readable message of the queue and the end of the log, and as many
    may follow as entries are lost there. What is behind them is looked at by itself."""
    for number, (told, (lost, first)) in enumerate(
        product(product("iz<>", repeat=3), ((0, 1), (1, 2), (2, 1), (3, 2)))
    ):
        one = replica(tmp_path / str(number))
        # Entry 0 is the message, and of the next ones these are lost; the last one can be read.
        one.reports = [filled(0, 0, 0, end=SIZE, entries=1), empty(1), last(2, lost + 1, lost + 1)]
        one.reports[0].queues.append(run(0, 0, to=first - 1, last_at=100, last_ordinal=0))
        one.reports[0].sound = one.reports[2].sound = 1
        places_of = {
            "i": queue_unit(SIZE + 500),
            "z": bytes(20),
            "<": queue_unit(100 + HEADER_BYTES),
            ">": queue_unit(2 * SIZE + 900),
        }
        data = b"\1" * 20 * first + b"".join(places_of[kind] for kind in told)
        written(tmp_path / str(number), QUEUE, 40, data + bytes(-len(data) % 40), one)
        check_queues(one)
        text = "".join(told)
        prefix = text[: next((at for at, kind in enumerate(text) if kind in "<>"), 3)]
        count = prefix[:lost].rfind("i") + 1
        explained = [flaw for flaw in one.flaws if flaw.measures]
        numbers = [number for number, _ in units(replica(flaws=explained))]
        assert numbers == [*range(first, first + count)], (told, lost)
        assert all(
            flaw.measures
            == (
                (name(0), 100, SIZE),
                (name(SIZE), 0, SIZE),
                (name(2 * SIZE), 0, SIZE + HEADER_BYTES),
            )
            for flaw in explained
        )
        rest = text[count:].rstrip("z")
        assert len(one.flaws) - len(explained) == bool(rest), (told, lost)


def test_units_beside_an_empty_log_belong_to_no_entry(tmp_path: Path) -> None:
    for reports in ([], [empty(0)]):
        one = replica(tmp_path, reports=reports)
        written(tmp_path, QUEUE, 40, queue_unit(200) + queue_unit(400), one)
        check_queues(one)
        assert (
            places(one) == [("queue.tail", f"g1/{QUEUE}/{0:020d}", 7, 40)]
            and one.flaws[0].measures == ()
        )


def test_units_of_lost_entries_before_the_first_message(tmp_path: Path) -> None:
    """Of a queue without any readable message, in a log whose first entry, or first file, is lost:
    from its begin on."""
    for number, (whole, pos, lost) in enumerate(
        product((False, True), (SIZE + HEADER_BYTES - 1, SIZE + HEADER_BYTES), (0, 1))
    ):
        one = replica(tmp_path / str(number), begin=Begin(5, SIZE, 1, 0))
        one.snapshot = {"minimums": {"t": {"0": [1, None]}}, "retained": {"begin_index": 5}}
        one.reports = [last(2, 5 + lost, 6)] if whole else [last(1, 5 + lost, 6)]
        one.reports[0].sound = one.reports[0].entries = 2 - lost
        one.reports[0].last_index = 6
        written(tmp_path / str(number), QUEUE, 40, queue_unit(7) + queue_unit(pos), one)
        check_queues(one)
        (flaw,) = [flaw for flaw in one.flaws if flaw.rule == "queue.tail"]
        assert bool(flaw.measures) is (pos == SIZE + HEADER_BYTES and lost == 1), (whole, pos, lost)
