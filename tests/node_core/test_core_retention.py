"""Retention as a decision table, and its laws over random facts: pins hold, the last file stays, files go oldest first without a gap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.replica.retention.retention_facts import observer_pins
from ledgermq.node.replica.retention.retention_rules import (
    DISK,
    FILES_A_TRIM,
    FOLLOWER,
    NOT_DUE,
    OBSERVER,
    SIZE,
    TIME,
    Facts,
    Level,
    LogFile,
    Pin,
    Rules,
    Space,
    Watermarks,
    agreed,
    decide,
    refuses,
    trim_of,
)
from ledgermq.proto.entry_encoding import entry_bytes
from ledgermq.proto.types import PeerProgress, Role

SIZE_BYTES = 1000
GIB = 1 << 30
MARKS = Watermarks(80, 85, 90, 20 * GIB)
OLD, YOUNG = 0, 900_000
NOW = 1_000_000
RULES = Rules(max_age_ms=500_000, max_bytes=0, marks=MARKS)


def files(*ages: int) -> list[LogFile]:
    """Sealed files whose last messages were stored at these times, and the active one behind them."""
    made = [LogFile(k * SIZE_BYTES, SIZE_BYTES, k * 10, k * 10 + 9, k * SIZE_BYTES + 990, 3, 70 + k, at) for k, at in enumerate(ages)]
    k = len(made)
    return [*made, LogFile(k * SIZE_BYTES, SIZE_BYTES, k * 10, k * 10 + 4, k * SIZE_BYTES + 500, 3, 70 + k, NOW, sealed=False)]


def facts(found: list[LogFile], *pins: Pin, spaces: tuple[Space, ...] = (), digests: bool = True) -> Facts:
    return Facts(NOW, found, pins, spaces, frozenset(file.base for file in found) if digests else frozenset())


FULL = Space("n2", 100 * SIZE_BYTES, 14 * SIZE_BYTES)
"""One file has to go until 15 percent are free."""

TABLE = [
    ("young files stay", RULES, facts(files(YOUNG, YOUNG)), [], NOT_DUE),
    ("old files go, up to the first young one", RULES, facts(files(OLD, OLD, YOUNG)), [0, 1], TIME),
    ("an old file behind a young one stays (a clock that went back)", RULES, facts(files(YOUNG, OLD)), [], NOT_DUE),
    ("the active file stays however old", RULES, facts(files()), [], NOT_DUE),
    ("exactly the age is old enough", RULES, facts(files(NOW - 500_000)), [0], TIME),
    ("one millisecond less is not", RULES, facts(files(NOW - 499_999)), [], NOT_DUE),
    ("no limit of age", Rules(0, 0, MARKS), facts(files(OLD, OLD)), [], NOT_DUE),
    ("too large: the oldest go", Rules(0, 2 * SIZE_BYTES, MARKS), facts(files(YOUNG, YOUNG, YOUNG)), [0], SIZE),
    ("just as large as allowed", Rules(0, 3 * SIZE_BYTES, MARKS), facts(files(YOUNG, YOUNG, YOUNG)), [], NOT_DUE),
    ("a pin at the first byte of a file keeps it", RULES, facts(files(OLD, OLD), Pin("follower", SIZE_BYTES, "n3")), [0], TIME),
    ("a pin at the last byte of a file keeps it", RULES, facts(files(OLD, OLD), Pin("consumer", SIZE_BYTES - 1, "g")), [], TIME),
    ("one reason a record: time first, size later", Rules(500_000, 1, MARKS), facts(files(OLD, YOUNG)), [0], TIME),
    ("no agreed digest yet: age waits", RULES, facts(files(OLD), digests=False), [], TIME),
    ("no agreed digest yet: a full disk does not", RULES, facts(files(YOUNG, YOUNG), spaces=(FULL,), digests=False), [0], DISK),
    ("a full disk takes as many files as it needs", RULES, facts(files(YOUNG, YOUNG), spaces=(FULL,)), [0], DISK),
    ("a full disk does not break a pin", RULES, facts(files(YOUNG), Pin("reader", 0, "backup"), spaces=(FULL,)), [], DISK),
    ("a full disk does not wait for a follower", RULES, facts(files(YOUNG), Pin(FOLLOWER, 0, "n3"), spaces=(FULL,)), [0], DISK),
    ("nor where age wants the file gone", RULES, facts(files(OLD), Pin(FOLLOWER, 0, "n3"), spaces=(FULL,)), [0], TIME),
    ("a follower that is waited for no longer keeps nothing", RULES, facts(files(OLD), Pin(FOLLOWER, 0, "n3", "n3", "gone")), [0], TIME),
    ("a large disk with ample space is not full", RULES, facts(files(YOUNG), spaces=(Space("n1", 1000 * GIB, 30 * GIB),)), [], NOT_DUE),
]


@pytest.mark.parametrize(("rules", "given_facts", "gone", "due"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_decision_table(rules: Rules, given_facts: Facts, gone: list[int], due: str) -> None:
    """What goes under which rule, and the reason given for the oldest file."""
    verdicts = decide(rules, given_facts)
    assert verdicts[0].due == due or given_facts.files[0].sealed is False
    record = trim_of(verdicts, {0: "aa"})
    assert [base // SIZE_BYTES for base, _ in (record.files if record is not None else ())] == gone


def test_record_tells_the_new_begin_and_what_went() -> None:
    """Begin, chain and term are those behind the last removed file; an unrecorded digest is null."""
    record = trim_of(decide(RULES, facts(files(OLD, OLD, YOUNG))), {0: "aa"})
    assert record is not None
    assert (record.begin_index, record.begin_pos, record.begin_term, record.begin_chain, record.from_index) == (20, 2000, 3, 71, 0)
    assert (record.files, record.reason) == (((0, "aa"), (1000, None)), TIME)


def test_a_kept_file_says_everything_that_keeps_it() -> None:
    """All pins are reported, not only the first, and files behind a kept file are reported as such."""
    first, second, last = decide(RULES, facts(files(OLD, OLD), Pin("follower", 10, "n3"), Pin("consumer", 20, "g"), digests=False))
    assert [pin.kind for pin in first.pins] == ["follower", "consumer", "digest"]
    assert [pin.kind for pin in second.pins] == ["follower", "consumer", "digest", "order"]
    assert last.pins[0].kind == "active"


@pytest.mark.parametrize(
    ("total", "free", "level", "excess"),
    [
        (100, 21, Level.FINE, 0),
        (100, 20, Level.FINE, 0),
        (100, 19, Level.WARN, 0),
        (100, 15, Level.WARN, 0),
        (100, 14, Level.DELETE, 1),
        (100, 10, Level.DELETE, 5),
        (100, 9, Level.REFUSE, 6),
        (100, 0, Level.REFUSE, 15),
        (1000 * GIB, 20 * GIB, Level.FINE, 0),
        (1000 * GIB, 20 * GIB - 1, Level.REFUSE, 1),
        (0, 0, Level.FINE, 0),
    ],
)
def test_watermarks(total: int, free: int, level: Level, excess: int) -> None:
    """A mark is crossed above its percentage and only while less than the ample number of bytes is free."""
    assert (MARKS.level(total, free), MARKS.excess(total, free)) == (level, excess)


def test_writes_are_refused_for_the_own_disk_or_a_lost_majority() -> None:
    """One full follower of three is tolerated, two are not."""
    good, full = Space("a", 100, 50), Space("b", 100, 1)
    assert not refuses(MARKS, good, [good, full], 3)
    assert refuses(MARKS, good, [full, full], 3)
    assert refuses(MARKS, full, [good, good], 3)
    assert not refuses(MARKS, good, [], 1)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({"n1": "a"}, None),
        ({"n1": "a", "n2": "b"}, None),
        ({"n1": "a", "n2": "b", "n3": "a"}, ("a", ("n1", "n3"))),
        ({"n1": "a", "n2": "a"}, ("a", ("n1", "n2"))),
        ({"n1": "a", "stranger": "a"}, None),
        ({"n1": "a", "n2": "b", "n3": "c"}, None),
    ],
)
def test_seal_needs_a_majority_of_voters(reports: dict[str, str], expected: object) -> None:
    """The same value from more than half of the voters; other nodes do not count."""
    assert agreed(reports, ("n1", "n2", "n3")) == expected


RANDOM_FACTS = st.builds(
    lambda ages, pins, free, digests: Facts(
        NOW,
        files(*ages),
        [Pin(kind, pos, "", waived=waived) for pos, kind, waived in pins],
        [Space("n", 100 * SIZE_BYTES, free)],
        frozenset(b * SIZE_BYTES for b in digests),
    ),
    st.lists(st.sampled_from([OLD, YOUNG]), max_size=6),
    st.lists(st.tuples(st.integers(0, 7 * SIZE_BYTES), st.sampled_from(["p", FOLLOWER]), st.sampled_from(["", "silent"])), max_size=3),
    st.integers(0, 100 * SIZE_BYTES),
    st.sets(st.integers(0, 6)),
)
RANDOM_RULES = st.builds(Rules, st.sampled_from([0, 500_000]), st.sampled_from([0, 1, 3 * SIZE_BYTES]), st.just(MARKS))


@given(RANDOM_RULES, RANDOM_FACTS)
def test_laws(rules: Rules, found: Facts) -> None:
    """Only a sealed, due, unpinned prefix goes, for one reason; the begin after it is the next file's first entry. Only what a
    follower needs gives way, to a full disk or when it is waived."""
    record = trim_of(decide(rules, found), {})
    if record is None:
        return
    count = len(record.files)
    assert [base for base, _ in record.files] == [file.base for file in found.files[:count]]
    assert count < len(found.files) and all(file.sealed for file in found.files[:count])
    full = any(rules.marks.excess(space.total, space.free) > 0 for space in found.spaces)
    holding = [pin for pin in found.pins if not pin.waived and not (full and pin.kind == FOLLOWER)]
    assert all(pin.pos >= record.begin_pos for pin in holding)
    successor = found.files[count]
    assert (record.begin_index, record.begin_pos) == (successor.first_index, successor.base)


def test_trim_record_fits_the_smallest_log_file() -> None:
    """However many files are due at once, and whatever their names: what does not fit goes with the next check, and 64 of them are kept in
    every snapshot."""
    found = facts(files(*[OLD] * (FILES_A_TRIM + 50)))
    verdicts = decide(RULES, found)
    record = trim_of(verdicts, {file.base: "ab" * 32 for file in found.files})
    assert record is not None and len(record.files) == FILES_A_TRIM and record.begin_index == 10 * FILES_A_TRIM
    longest = replace(record, files=tuple([(10**20 - 1, sha256) for _, sha256 in record.files]))
    assert entry_bytes(longest.TOPIC, len(longest.encode()), 100) < 64 << 10
    rest = decide(RULES, facts(list(found.files[FILES_A_TRIM:])))
    following = trim_of(rest, {})
    assert following is not None and following.from_index == record.begin_index and len(following.files) == 50


class Book:
    """A log of 100 bytes an entry that ends behind entry 99."""

    end_pos = 10_000

    def pos_after(self, index: int) -> int:
        return (index + 1) * 100


def observers(durable: int | None, *, silent_ms: int = 0, bytes_max: int = 2_000, patience_ms: int = 60_000) -> list[Pin]:
    peers = [PeerProgress("o", Role.LEARNER, durable, durable, silent_ms=silent_ms)]
    return list(observer_pins(Book(), ["o"], "n1", peers, patience_ms, bytes_max))  # type: ignore[arg-type]


def test_an_observer_holds_back_no_more_than_is_granted() -> None:
    """The entries that it lacks, up to the bound; none after a long silence; for an observer that never reported, at most the bound."""
    (pin,) = observers(89)
    assert (pin.kind, pin.pos, pin.holder, pin.waived) == (OBSERVER, 9_000, "o", "")
    (pin,) = observers(79)
    assert not pin.waived
    (pin,) = observers(78)
    assert "it lacks 2.05 KiB, more than the 1.95 KiB that are kept for an observer" in pin.waived
    (pin,) = observers(89, silent_ms=60_000)
    assert "not heard" in pin.waived
    (pin,) = observers(None)
    assert pin.pos == 8_000 and not pin.waived
    assert observers(99) == []
    (pin,) = observers(98, bytes_max=0)
    assert pin.waived, "nothing is kept for it at all"
