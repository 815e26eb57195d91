"""Retention as a decision table, and its laws over random facts: pins hold, the last file stays,
files go oldest first without a gap."""

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
    Need,
    Pin,
    Rules,
    Space,
    Watermarks,
    agreed,
    common_excess,
    decide,
    need_of,
    refuses,
    trim_of,
)
from ledgermq.proto.entries.entry_encoding import entry_bytes
from ledgermq.proto.types import PeerProgress, Role

SIZE_BYTES = 1000
GIB = 1 << 30
MARKS = Watermarks(80, 85, 90, 20 * GIB)
OLD, YOUNG = 0, 900_000
NOW = 1_000_000
RULES = Rules(max_age_ms=500_000, max_bytes=0)


def files(*ages: int) -> list[LogFile]:
    """Sealed files whose last messages were stored at these times, and the active one behind
    them."""
    made = [
        LogFile(k * SIZE_BYTES, SIZE_BYTES, k * 10, k * 10 + 9, k * SIZE_BYTES + 990, 3, 70 + k, at)
        for k, at in enumerate(ages)
    ]
    k = len(made)
    return [
        *made,
        LogFile(
            k * SIZE_BYTES,
            SIZE_BYTES,
            k * 10,
            k * 10 + 4,
            k * SIZE_BYTES + 500,
            3,
            70 + k,
            NOW,
            sealed=False,
        ),
    ]


def facts(found: list[LogFile], *pins: Pin, excess: int = 0, digests: bool = True) -> Facts:
    return Facts(
        NOW, found, pins, excess, frozenset(file.base for file in found) if digests else frozenset()
    )


TABLE = [
    ("young files stay", RULES, facts(files(YOUNG, YOUNG)), [], NOT_DUE),
    ("old files go, up to the first young one", RULES, facts(files(OLD, OLD, YOUNG)), [0, 1], TIME),
    (
        "an old file behind a young one stays (a clock that went back)",
        RULES,
        facts(files(YOUNG, OLD)),
        [],
        NOT_DUE,
    ),
    ("the active file stays however old", RULES, facts(files()), [], NOT_DUE),
    ("exactly the age is old enough", RULES, facts(files(NOW - 500_000)), [0], TIME),
    ("one millisecond less is not", RULES, facts(files(NOW - 499_999)), [], NOT_DUE),
    ("no limit of age", Rules(0, 0), facts(files(OLD, OLD)), [], NOT_DUE),
    (
        "too large: the oldest go",
        Rules(0, 2 * SIZE_BYTES),
        facts(files(YOUNG, YOUNG, YOUNG)),
        [0],
        SIZE,
    ),
    (
        "just as large as allowed",
        Rules(0, 3 * SIZE_BYTES),
        facts(files(YOUNG, YOUNG, YOUNG)),
        [],
        NOT_DUE,
    ),
    (
        "a pin at the first byte of a file keeps it",
        RULES,
        facts(files(OLD, OLD), Pin("follower", SIZE_BYTES, "n3")),
        [0],
        TIME,
    ),
    (
        "a pin at the last byte of a file keeps it",
        RULES,
        facts(files(OLD, OLD), Pin("consumer", SIZE_BYTES - 1, "g")),
        [],
        TIME,
    ),
    (
        "one reason a record: time first, size later",
        Rules(500_000, 1),
        facts(files(OLD, YOUNG)),
        [0],
        TIME,
    ),
    ("no agreed digest yet: age waits", RULES, facts(files(OLD), digests=False), [], TIME),
    (
        "no agreed digest yet: a full disk does not",
        RULES,
        facts(files(YOUNG, YOUNG), excess=SIZE_BYTES, digests=False),
        [0],
        DISK,
    ),
    (
        "a full disk takes as many files as it needs",
        RULES,
        facts(files(YOUNG, YOUNG), excess=SIZE_BYTES),
        [0],
        DISK,
    ),
    (
        "a full disk does not break a pin",
        RULES,
        facts(files(YOUNG), Pin("reader", 0, "backup"), excess=SIZE_BYTES),
        [],
        DISK,
    ),
    (
        "a full disk does not wait for a follower",
        RULES,
        facts(files(YOUNG), Pin(FOLLOWER, 0, "n3"), excess=SIZE_BYTES),
        [0],
        DISK,
    ),
    (
        "nor where age wants the file gone",
        RULES,
        facts(files(OLD), Pin(FOLLOWER, 0, "n3"), excess=SIZE_BYTES),
        [0],
        TIME,
    ),
    (
        "a follower that is waited for no longer keeps nothing",
        RULES,
        facts(files(OLD), Pin(FOLLOWER, 0, "n3", "n3", "gone")),
        [0],
        TIME,
    ),
    (
        "one byte more is a file more",
        RULES,
        facts(files(YOUNG, YOUNG, YOUNG), excess=SIZE_BYTES + 1),
        [0, 1],
        DISK,
    ),
]


@pytest.mark.parametrize(
    ("rules", "given_facts", "gone", "due"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_decision_table(rules: Rules, given_facts: Facts, gone: list[int], due: str) -> None:
    """What goes under which rule, and the reason given for the oldest file."""
    verdicts = decide(rules, given_facts)
    assert verdicts[0].due == due or given_facts.files[0].sealed is False
    record = trim_of(verdicts, {0: "aa"})
    assert [base // SIZE_BYTES for base, _ in (record.files if record is not None else ())] == gone


def test_trim_record_holds_the_new_begin_and_removed_digests() -> None:
    """Begin, chain and term are those behind the last removed file; an unrecorded digest is
    null."""
    record = trim_of(decide(RULES, facts(files(OLD, OLD, YOUNG))), {0: "aa"})
    assert record is not None
    assert (
        record.begin_index,
        record.begin_pos,
        record.begin_term,
        record.begin_chain,
        record.from_index,
    ) == (20, 2000, 3, 71, 0)
    assert (record.files, record.reason) == (((0, "aa"), (1000, None)), TIME)


def test_kept_file_reports_all_its_pins() -> None:
    """All pins are reported, not only the first, and files behind a kept file are reported as
    such."""
    first, second, last = decide(
        RULES,
        facts(files(OLD, OLD), Pin("follower", 10, "n3"), Pin("consumer", 20, "g"), digests=False),
    )
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
    """A mark is crossed above its percentage and only while less than the ample number of bytes is
    free."""
    assert (MARKS.level(total, free), MARKS.excess(total, free)) == (level, excess)


@pytest.mark.parametrize(
    ("full", "others", "voters", "needed", "refused"),
    [
        (False, 0, 1, 1, False),
        (True, 0, 1, 1, True),
        (False, 1, 3, 2, False),
        (False, 2, 3, 2, True),
        (True, 0, 3, 2, True),
        (False, 2, 5, 3, False),
        (False, 3, 5, 3, True),
        (False, 1, 2, 2, True),
        (False, 1, 2, 1, False),
        (False, 2, 3, 1, False),
        (False, 2, 3, 2, True),
    ],
)
def test_writes_are_refused_if_too_few_have_room(
    full: bool, others: int, voters: int, needed: int, refused: bool
) -> None:
    """The leader of a Raft group and a majority have to have room, of an HA group the master and as
    many as an entry needs."""
    needs = [Need(full=k < others) for k in range(voters - 1)]
    assert refuses(Need(full=full), needs, voters, needed) is refused


@pytest.mark.parametrize(
    ("free", "group", "own", "lacks_room", "found"),
    [
        (50, 10, 40, False, Need()),
        (15, 10, 40, False, Need()),
        (14, 40, 40, False, Need(wanted=1)),
        (5, 40, 40, False, Need(full=True, wanted=10)),
        (5, 30, 40, False, Need(full=True, wanted=8)),
        (5, 10, 40, False, Need(full=True, wanted=3)),
        (5, 0, 40, False, Need(full=True)),
        (5, 10, 10, False, Need(full=True, wanted=10)),
        (5, 9, 9, False, Need(full=True)),
        (5, 0, 0, False, Need(full=True)),
        (50, 10, 40, True, Need(full=True)),
    ],
)
def test_need_of_a_disk_is_shared_between_groups(
    free: int, group: int, own: int, lacks_room: bool, found: Need
) -> None:
    """Each group gives its share of what has to go, rounded up. What all groups together do not
    have, something else took."""
    assert need_of(MARKS, Space("n", 100, free), group, own, lacks_room=lacks_room) == found


@given(st.integers(0, 100), st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_shares_of_all_groups_sum_to_the_excess(free: int, sizes: list[int]) -> None:
    """Together at least that, at most a byte more for each, and of no group more than it has."""
    space, own = Space("n", 100, free), sum(sizes)
    excess, wanted = (
        MARKS.excess(100, free),
        [need_of(MARKS, space, size, own).wanted for size in sizes],
    )
    if 0 < excess <= own:
        assert excess <= sum(wanted) < excess + len(sizes) and all(
            part <= size for part, size in zip(wanted, sizes, strict=True)
        )
    else:
        assert not any(wanted)


@given(st.integers(1, 7), st.data())
def test_common_excess_is_what_a_majority_wants_removed(voters: int, data: st.DataObject) -> None:
    """So many bytes go as each node of some majority wants gone, and no node of any majority wants
    less: whatever the others say, or if they say nothing."""
    wanted = data.draw(st.lists(st.integers(0, 5), max_size=voters))
    agreed_bytes = common_excess([Need(wanted=each) for each in wanted], voters)
    everybody = wanted + [0] * (voters - len(wanted))
    assert sum(each >= agreed_bytes for each in everybody) >= voters // 2 + 1
    assert sum(each > agreed_bytes for each in everybody) < voters // 2 + 1


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
    lambda ages, pins, excess, digests: Facts(
        NOW,
        files(*ages),
        [Pin(kind, pos, "", waived=waived) for pos, kind, waived in pins],
        excess,
        frozenset(b * SIZE_BYTES for b in digests),
    ),
    st.lists(st.sampled_from([OLD, YOUNG]), max_size=6),
    st.lists(
        st.tuples(
            st.integers(0, 7 * SIZE_BYTES),
            st.sampled_from(["p", FOLLOWER]),
            st.sampled_from(["", "silent"]),
        ),
        max_size=3,
    ),
    st.sampled_from([0, 1, 2 * SIZE_BYTES]),
    st.sets(st.integers(0, 6)),
)
RANDOM_RULES = st.builds(
    Rules, st.sampled_from([0, 500_000]), st.sampled_from([0, 1, 3 * SIZE_BYTES])
)


@given(RANDOM_RULES, RANDOM_FACTS)
def test_laws(rules: Rules, found: Facts) -> None:
    """Only a sealed, due, unpinned prefix goes, for one reason; the begin after it is the next
    file's first entry. Only what a follower needs gives way, to a full disk or when it is
    waived."""
    record = trim_of(decide(rules, found), {})
    if record is None:
        return
    count = len(record.files)
    assert [base for base, _ in record.files] == [file.base for file in found.files[:count]]
    assert count < len(found.files) and all(file.sealed for file in found.files[:count])
    holding = [
        pin for pin in found.pins if not pin.waived and not (found.excess and pin.kind == FOLLOWER)
    ]
    assert all(pin.pos >= record.begin_pos for pin in holding)
    successor = found.files[count]
    assert (record.begin_index, record.begin_pos) == (successor.first_index, successor.base)


def test_trim_record_fits_the_smallest_log_file() -> None:
    """However many files are due at once, and whatever their names: what does not fit goes with the
    next check, and 64 of them are kept in every snapshot."""
    found = facts(files(*[OLD] * (FILES_A_TRIM + 50)))
    verdicts = decide(RULES, found)
    record = trim_of(verdicts, {file.base: "ab" * 32 for file in found.files})
    assert (
        record is not None
        and len(record.files) == FILES_A_TRIM
        and record.begin_index == 10 * FILES_A_TRIM
    )
    longest = replace(record, files=tuple([(10**20 - 1, sha256) for _, sha256 in record.files]))
    assert entry_bytes(longest.TOPIC, len(longest.encode()), 100) < 64 << 10
    rest = decide(RULES, facts(list(found.files[FILES_A_TRIM:])))
    following = trim_of(rest, {})
    assert (
        following is not None
        and following.from_index == record.begin_index
        and len(following.files) == 50
    )


class Book:
    """A log of 100 bytes an entry that ends behind entry 99."""

    end_pos = 10_000

    def pos_after(self, index: int) -> int:
        return (index + 1) * 100


def observers(
    durable: int | None, *, silent_ms: int = 0, bytes_max: int = 2_000, patience_ms: int = 60_000
) -> list[Pin]:
    peers = [PeerProgress("o", Role.LEARNER, durable, durable, silent_ms=silent_ms)]
    return list(observer_pins(Book(), ["o"], "n1", peers, patience_ms, bytes_max))  # type: ignore[arg-type]


def test_an_observer_holds_back_no_more_than_is_granted() -> None:
    """The entries that it lacks, up to the bound; none after a long silence; for an observer that
    never reported, at most the bound."""
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
