"""Which finding stands for another flaw, and what two differing files make known, in every small
case."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pytest

from ledgermq.audit.checks import verdicts
from ledgermq.audit.checks.evidence import Located
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Mark, Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.verdicts import answers, covers, settle, tell, tell_difference
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.rules import (
    BIT_ROT,
    DIVERGENCE,
    REORDERED,
    TORN_TAIL,
    UNDECIDABLE,
    Finding,
    Flaw,
    Place,
)

FILE = "g1/dledger-n1/data/00000000000000000000"
BOUNDS = [(low, high) for low, high in product(range(4), repeat=2) if low <= high]


def finding(
    rule: str,
    bounds: tuple[int, int],
    *,
    file: str = "f",
    replica: str = "n1",
    fails: bool = True,
    measures: tuple[Place, ...] = (),
) -> Finding:
    return Finding(
        "bit-rot", replica, "g1", Flaw(rule, file, 5, *bounds, "p", measures=measures), fails
    )


def flaw(bounds: tuple[int, int], *, file: str = "f", measures: tuple[Place, ...] = ()) -> Flaw:
    return Flaw("entry.body", file, 5, *bounds, "p", measures=measures)


def test_finding_covers_flaws_within_its_bytes() -> None:
    """All bytes of the same file; a finding of another history covers everything behind its
    begin."""
    for there, here, file in product(BOUNDS, BOUNDS, ("f", "g")):
        behind = file == "f" and there[0] <= here[0]
        assert covers(finding("entry.body", there), flaw(here, file=file)) is (
            behind and here[1] <= there[1]
        )
        assert covers(finding("replica.divergence", there), flaw(here, file=file)) is behind


def test_a_finding_on_the_bytes_of_a_measure_answers_a_flaw() -> None:
    """It touches them, or lies within their bounds although it has no bytes. A measure that is the
    flaw's own place has to be covered."""
    for there, measure, file in product(BOUNDS, BOUNDS, ("m", "f")):
        own = flaw((20, 30), measures=((file, *measure),))
        touches = there[0] < measure[1] and there[1] > measure[0]
        within = measure[0] <= there[0] and there[1] <= measure[1]
        assert answers(finding("entry.body", there, file="m"), own) is (
            file == "m" and (touches or within)
        ), (there, measure)
        assert answers(
            finding("entry.body", there, file=file),
            flaw(measure, file=file, measures=((file, *measure),)),
        ) is (there[0] <= measure[0] and measure[1] <= there[1])


def test_one_finding_is_told_for_another() -> None:
    """Only of the same replica, only one that fails, and only for a flaw that others would explain.
    Every such pair is kept."""
    explained = finding("entry.chain", (2, 3), measures=(("m", 0, 9),))
    for replica, fails, file in product(("n1", "n2"), (False, True), ("m", "f")):
        result = GroupResult("g1", [])
        earlier = finding("entry.body", (1, 2), file=file, replica=replica, fails=fails)
        result.findings.append(earlier)
        tell(result, explained)
        told = replica == "n1" and fails and file == "m"
        assert (
            result.findings == [earlier] + [explained] * (not told)
            and result.folds == [(explained, earlier)] * told
        )
    result = GroupResult("g1", [], findings=[finding("entry.body", (0, 9))])
    tell(result, finding("entry.body", (2, 3)))
    assert len(result.findings) == 2, (
        "a flaw that is compared with nothing stays, although it is covered"
    )


def pair(base: Path, own: bytes | None, theirs: bytes) -> list[Replica]:
    found = []
    for name, data in (("n1", own), ("n2", theirs)):
        one = Replica(str(base / name), str(base / name / "g1"), "g1", name, "dledger-n1")
        folder = Path(one.log) / "data"
        folder.mkdir(parents=True)
        if data is not None:
            (folder / FILE.rpartition("/")[2]).write_bytes(data)
        found.append(one)
    return found


@pytest.mark.parametrize("chunk", [bytewise.CHUNK, 8])
def test_files_that_differ_are_a_finding_where_no_other_covers_the_difference(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first to the last byte that differs and is not covered; what others cover is kept
    with each of them."""
    monkeypatch.setattr(bytewise, "CHUNK", chunk)
    whole = bytes(range(64))
    for number, (places, covered, history) in enumerate(
        product(
            ((), (3,), (3, 4, 20), (3, 20, 50, 53)),
            ((), (3,), (20, 50), (3, 20, 50)),
            (False, True),
        )
    ):
        own = bytearray(whole)
        for place in places:
            own[place] ^= 0xFF
        one, peer = pair(tmp_path / str(number), bytes(own), whole)
        known = [finding("entry.body", (place, place + 1), file=FILE) for place in covered]
        if history:
            known.append(finding("replica.divergence", (45, 46), file=FILE))
        others = [
            finding("entry.body", (0, 64), file=FILE, fails=False),
            finding("entry.body", (0, 64), file="f"),
        ]
        others.append(finding("entry.body", (0, 64), file=FILE, replica="n3"))
        result = GroupResult("g1", [], findings=[*others, *known])
        whole_file = finding("replica.bytes", (0, 64), file=FILE)
        tell_difference(result, whole_file, one, peer, 60)
        open_places = [
            place for place in places if place not in covered and not (history and place >= 45)
        ]
        added = result.findings[len(others) + len(known) :]
        assert [(each.flaw.byte_from, each.flaw.byte_to) for each in added] == (
            [(open_places[0], open_places[-1] + 1)] if open_places else []
        )
        assert all(each.flaw.proof == "p; n2 has other bytes here" for each in added)
        expected = []
        for each in known:
            inside = (
                [place for place in places if place == each.flaw.byte_from and place in covered]
                if each.flaw.rule == "entry.body"
                else []
            )
            if each.flaw.rule != "entry.body":
                inside = [place for place in places if place >= 45 and place not in covered]
            if inside:
                expected.append((inside[0], inside[-1] + 1, each))
        assert [
            (folded.flaw.byte_from, folded.flaw.byte_to, by) for folded, by in result.folds
        ] == expected


def test_files_that_cannot_be_compared_differ_as_a_whole(tmp_path: Path) -> None:
    """One that is gone, or shorter. Bytes behind the end are not compared."""
    for number, (own, end, told) in enumerate(
        (
            (None, 8, True),
            (b"1234", 8, True),
            (b"12345678", 8, False),
            (b"1234567x", 7, False),
            (b"x2345678", 8, True),
        )
    ):
        one, peer = pair(tmp_path / str(number), own, b"12345678")
        result = GroupResult("g1", [])
        whole = finding("replica.bytes", (0, 64), file=FILE)
        tell_difference(result, whole, one, peer, end)
        assert bool(result.findings) is told
        if own is None or len(own) < 8:
            assert result.findings == [whole]


def held(
    name: str,
    flaws: list[Flaw],
    *,
    intact: int = 9,
    last: int = 9,
    broken: tuple[int, ...] = (),
    mark: int | None = None,
) -> Replica:
    """A replica without files; `mark`: of a node that was killed with this mark, if not None; −2:
    without one."""
    one = Replica(
        f"/{name}", f"/{name}/g1", "g1", name, "dledger-n1", flaws=flaws, clean=mark is None
    )
    one.mark = None if mark in (None, -2) else Mark(1, mark or 0, 1, 0, "id")
    one.reports = [
        LogReport(FILE, 0, 64, 1, 0, last, last_intact_index=intact, damaged=list(broken))
    ]
    return one


def findings(one: Replica, *others: Replica, **result: object) -> list[Finding]:
    """Those of the first replica."""
    group = GroupResult("g1", [one, *others], **result)  # type: ignore[arg-type]
    settle(group)
    return [found for found in group.findings if found.replica == one.name]


DAMAGE = Flaw("entry.size", FILE, 6, 10, 20, "p")


@pytest.mark.parametrize("rule", ["entry.size", "entry.body"])
def test_which_peer_holds_a_damaged_entry_intact(rule: str) -> None:
    """One that reaches it, has it undamaged, and is of the majority's history. A word that the
    chain does not need is no damage to an entry that is compared with its own parts."""
    damage = replace(DAMAGE, rule=rule)
    for other, bounds in product(
        ("entry.size", "entry.body-size", "tail.zero"),
        ((0, 10), (0, 11), (19, 25), (20, 25), (12, 14)),
    ):
        for file in (FILE, FILE[:-1] + "1", "g1/syncedmark"):
            peer = held("n2", [Flaw(other, file, None, *bounds, "p")])
            hurt = (
                file == FILE
                and bounds[0] < 20
                and bounds[1] > 10
                and not (rule == "entry.body" and other == "entry.body-size")
            )
            (found,) = findings(held("n1", [damage]), peer, compared=9)
            assert found.klass == (UNDECIDABLE if hurt else BIT_ROT), (other, bounds, file)
    for intact, broken, divergent in product(
        (5, 6, 7), ((), (5,), (6,)), ({}, {"n2": 3}, {"n3": 3})
    ):
        holds = intact >= 6 and 6 not in broken and "n2" not in divergent
        (found,) = findings(
            held("n1", [damage]),
            held("n2", [], intact=intact, broken=broken),
            compared=9,
            divergent=divergent,
        )
        assert found.klass == (BIT_ROT if holds else UNDECIDABLE), (intact, broken, divergent)


def test_compared_entry_without_an_intact_copy_is_undecidable() -> None:
    """Damage of a compared entry that a peer reaches and none has intact; with appointed masters
    none need reach it."""
    for compared, last, rule, own in product(
        (None, 5, 6, 7), (5, 6, 7), ("majority", "in-sync"), ({}, {"n1": 2})
    ):
        peer = held("n2", [], intact=2, last=last)
        (found,) = findings(held("n1", [DAMAGE]), peer, compared=compared, rule=rule, divergent=own)
        expected = (
            compared is not None and compared >= 6 and not own and (last >= 6 or rule == "in-sync")
        )
        assert found.klass == (UNDECIDABLE if expected else BIT_ROT)
        assert found.flaw.proof == ("p; no majority holds this entry intact" if expected else "p")
    for other in (
        replace(DAMAGE, index=None),
        replace(DAMAGE, file="g1/other"),
        replace(DAMAGE, rule="order.group"),
    ):
        (found,) = findings(held("n1", [other]), held("n2", [], intact=2), compared=9)
        assert found.klass == (REORDERED if other.rule == "order.group" else BIT_ROT)


@pytest.mark.parametrize(
    ("voters", "learners"),
    [((), ()), (("n1", "n2"), ()), (("n1",), ("n2",)), (("n1", "n3"), ("n4",)), ((), ("n4",))],
)
def test_only_members_are_peers(voters: tuple[str, ...], learners: tuple[str, ...]) -> None:
    """Unless nobody knows who is one."""
    members = {*voters, *learners}
    (found,) = findings(
        held("n1", [DAMAGE]), held("n2", []), compared=9, voters=voters, learners=learners
    )
    assert found.klass == (BIT_ROT if not members or "n2" in members else UNDECIDABLE)


def test_a_wrong_first_chain_is_rot_where_a_peer_has_the_right_one() -> None:
    seed = replace(DAMAGE, rule="chain.seed", index=0)
    assert [found.klass for found in findings(held("n1", [seed]), held("n2", []), compared=9)] == [
        BIT_ROT
    ]
    assert [found.klass for found in findings(held("n1", [seed]), compared=9)] == [DIVERGENCE]
    assert [
        found.klass for found in findings(held("n1", [seed]), held("n2", [seed]), compared=9)
    ] == [DIVERGENCE]


def test_a_torn_entry_that_others_hold_was_promised() -> None:
    """Its finding says that it lies above the mark."""
    for mark, torn in product((None, -2, 5, 6), (False, True)):
        (found,) = findings(
            held("n1", [replace(DAMAGE, torn=torn)], mark=mark), held("n2", []), compared=6
        )
        above = torn and mark in (-2, 5)
        assert found.fails and found.klass == BIT_ROT
        assert found.flaw.proof == (
            "p; above the synced mark, but a majority holds this entry" if above else "p"
        )


def after(index: int | None, bounds: tuple[int, int], *measures: Place) -> Flaw:
    """A flaw of another class that may follow from damage in `measures`."""
    return Flaw("order.producer", FILE, index, *bounds, "q", measures=measures)


def test_flaws_that_follow_from_others_are_told_once() -> None:
    """In whatever order they are found. If the first of a chain has no finding, it becomes one, and
    the later ones follow from it."""
    on_damage, on_other = after(7, (30, 40), (FILE, 10, 20)), after(8, (50, 60), (FILE, 30, 40))
    for flaws in permutations((DAMAGE, on_damage)):
        assert [found.flaw for found in findings(held("n1", list(flaws)))] == [DAMAGE]
    for flaws in permutations((on_damage, on_other)):
        told = [found.flaw for found in findings(held("n1", list(flaws)))]
        assert told == ([on_damage] if flaws[0] is on_damage else [on_other, on_damage])
    group = GroupResult("g1", [held("n1", [on_damage, DAMAGE])])
    settle(group)
    ((left, kept),) = group.folds
    assert (left.flaw, left.klass, left.fails, kept.flaw) == (on_damage, REORDERED, True, DAMAGE)


def test_flaw_behind_an_excused_one_is_excused() -> None:
    """If it lies behind it: nothing counts from there on."""
    torn = replace(DAMAGE, rule="entry.body", index=7, torn=True)
    for index, file in product((None, 6, 7, 8), (FILE, "g1/other")):
        follows = replace(after(index, (30, 40), (FILE, 10, 20)), file=file)
        found = findings(held("n1", [follows, torn], mark=5))
        assert len(found) == 2 and (found[0].flaw.index, found[0].klass, found[0].fails) == (
            7,
            TORN_TAIL,
            False,
        )
        assert found[0].flaw.proof.startswith("p; the node was killed")
        excused = index is None or index >= 7
        assert (found[1].klass, found[1].fails) == (
            (TORN_TAIL, False) if excused else (REORDERED, True)
        )
        assert found[1].flaw.proof == (
            "q; it follows from entry.body at entry 7" if excused else "q"
        )
    unplaced = replace(torn, index=None)
    found = findings(held("n1", [after(8, (30, 40), (FILE, 10, 20)), unplaced], mark=5))
    assert [(one.klass, one.fails) for one in found] == [(TORN_TAIL, False), (REORDERED, True)]


ENTRY = 100
"""The size of the entries in the files of the tests below: four from byte 0 on."""
WORD = range(ENTRY + 36, ENTRY + 40)
"""The bytes of the chain word of entry 1."""
WHOLE = bytes(range(1, ENTRY + 1)) * 4


class Pair:
    """Two replicas with one log file each, of which the first is judged."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = 0
        """Where the peer has the entries."""
        self.one, self.peer = pair(base, WHOLE, WHOLE)
        for each in (self.one, self.peer):
            each.reports = [LogReport(FILE, 0, len(WHOLE), 4, 0, 3, last_intact_index=3)]

        def locate(_one: Replica, index: int) -> Located | None:
            return (
                Located(self.base, self.base + ENTRY * index, ENTRY, 1, 0)
                if 0 <= index < 4
                else None
            )

        monkeypatch.setattr(verdicts, "locate", locate)

    def told(
        self, flaw: Flaw, *altered: int, divergent: int | None = None, alone: bool = False
    ) -> list[tuple[int | None, int, int]]:
        """Entry and bytes of the findings for this flaw, if these bytes of the file are altered."""
        data = bytearray(WHOLE)
        for place in altered:
            data[place] ^= 0xFF
        self.put(self.one, bytes(data), flaw.file)
        self.one.flaws = [flaw]
        result = {} if divergent is None else {"n1": divergent}
        self.found = findings(
            self.one, *([] if alone else [self.peer]), compared=3, divergent=result
        )
        return sorted(
            (found.flaw.index, found.flaw.byte_from, found.flaw.byte_to) for found in self.found
        )  # type: ignore[type-var]

    @staticmethod
    def put(one: Replica, data: bytes, file: str = FILE) -> None:
        (Path(one.log) / "data" / file.rpartition("/")[2]).write_bytes(data)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


BODY = Flaw("entry.body", FILE, 1, ENTRY + 48, 2 * ENTRY, "p", measures=((FILE, 0, 1),))
CHAIN = Flaw("entry.chain", FILE, 2, 2 * ENTRY, 3 * ENTRY, "p")


def test_damage_is_narrowed_to_the_bytes_that_differ_from_a_peer(two: Pair) -> None:
    """Anywhere in the entry, if its parts contradict each other; else within the field that is
    wrong by itself."""
    size = replace(BODY, rule="entry.size", byte_from=ENTRY + 4, byte_to=ENTRY + 8)
    checksum = replace(BODY, rule="entry.body-crc", byte_from=ENTRY + 40, byte_to=ENTRY + 44)
    for first in (ENTRY, ENTRY + 5, 2 * ENTRY - 1):
        for last in (place for place in (first, ENTRY + 7, ENTRY + 60) if place >= first):
            assert two.told(BODY, 37, first, last if last > first else 37 + 3) == [
                (1, first, last + 1)
            ]
            assert two.told(checksum, first, last if last > first else 37) == [(1, first, last + 1)]
            assert two.found[0].flaw.measures == () and two.found[0].flaw.proof.endswith("on n2")
            inside = [place for place in (first, last) if place in range(ENTRY + 4, ENTRY + 8)]
            bounds = (inside[0], inside[-1] + 1) if inside else (size.byte_from, size.byte_to)
            assert two.told(size, *{first, last}) == [(1, *bounds)]
    assert two.told(BODY) == [(1, BODY.byte_from, BODY.byte_to)]
    other = replace(BODY, rule="record.crc")
    assert two.told(other, ENTRY + 60) == [(1, BODY.byte_from, BODY.byte_to)], (
        "no rot, whatever the bytes are"
    )
    two.base = len(WHOLE)
    assert two.told(BODY, ENTRY + 5, ENTRY + 60) == [(1, ENTRY + 60, ENTRY + 61)], (
        "the peer has the entry in another file"
    )
    second = replace(BODY, file=f"{FILE[:-3]}{len(WHOLE)}")
    two.put(two.peer, WHOLE, second.file)
    assert two.told(second, ENTRY + 5) == [(1, ENTRY + 5, ENTRY + 6)]


def test_damage_that_cannot_be_compared_keeps_its_place(
    two: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a peer, where the peers hold other entries, and of too many bytes."""
    kept = [(1, BODY.byte_from, BODY.byte_to)]
    assert two.told(BODY, ENTRY + 60, alone=True) == kept and two.told(
        CHAIN, *WORD, alone=True
    ) == [(2, 2 * ENTRY, 3 * ENTRY)]
    for divergent, stale in product((None, 0, 1, 2), repeat=2):
        two.one.stale_from = stale
        apart = min((index for index in (divergent, stale) if index is not None), default=9) <= 1
        assert two.told(BODY, ENTRY + 60, divergent=divergent) == (
            kept if apart else [(1, ENTRY + 60, ENTRY + 61)]
        )
    two.one.stale_from = None
    for most in (51, 52, 53):
        monkeypatch.setattr(bytewise, "READ_MAX", most)
        assert two.told(BODY, ENTRY + 60) == ([(1, ENTRY + 60, ENTRY + 61)] if most >= 52 else kept)
    assert two.told(CHAIN, *WORD) == [(1, WORD.start, WORD.stop), (2, 2 * ENTRY, 3 * ENTRY)]


def test_a_shorter_file_of_the_peer_is_not_compared(two: Pair) -> None:
    """Nor one that is gone. The finding is the whole entry."""
    two.put(two.peer, WHOLE[: ENTRY + 70])
    assert two.told(BODY, ENTRY + 60) == [(1, ENTRY, 2 * ENTRY)]
    (Path(two.peer.log) / "data" / FILE.rpartition("/")[2]).unlink()
    assert two.told(BODY, ENTRY + 60) == [(1, ENTRY, 2 * ENTRY)]


def test_an_entry_that_was_altered_with_its_chain_word(two: Pair) -> None:
    """Shows in the next entry, and is the finding: with all bytes that differ, or with its word
    where the peer is damaged itself. The next entry is one only if it differs, too, or if nothing
    does."""
    words, others = ((), tuple(WORD), (WORD[3],)), ((), (ENTRY + 60,), (70, ENTRY + 5))
    for hurt, word, before, here in product((False, True), words, others, ((), (2 * ENTRY + 9,))):
        two.peer.flaws = [Flaw("entry.body", FILE, 1, ENTRY + 50, ENTRY + 60, "p")] if hurt else []
        expected: list[tuple[int, int, int]] = []
        if word:
            inside = [
                place
                for place in (*word, *before)
                if place in (WORD if hurt else range(ENTRY, 2 * ENTRY))
            ]
            expected.append((1, min(inside), max(inside) + 1))
        if here:
            expected.append((2, here[0], here[0] + 1))
        assert two.told(CHAIN, *word, *before, *here) == (
            expected or [(2, 2 * ENTRY, 3 * ENTRY)]
        ), (hurt, word, before, here)
    two.peer.flaws = []
    for begin in range(4):
        two.one.begin = Begin(begin, 0, 0, 0)
        assert two.told(CHAIN, *WORD) == (
            [(1, WORD.start, WORD.stop)] if begin < 2 else [(2, 2 * ENTRY, 3 * ENTRY)]
        ), "it was trimmed"
