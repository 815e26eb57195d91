"""Which finding stands for another flaw, and what two differing files make known, in every small case."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import Finding, Flaw, Place
from ledgermq.audit.checks.verdicts import answers, covers, tell, tell_difference
from ledgermq.audit.reading import bytewise

FILE = "g1/dledger-n1/data/00000000000000000000"
BOUNDS = [(low, high) for low, high in product(range(4), repeat=2) if low <= high]


def finding(
    rule: str, bounds: tuple[int, int], *, file: str = "f", replica: str = "n1", fails: bool = True, measures: tuple[Place, ...] = ()
) -> Finding:
    return Finding("bit-rot", replica, "g1", Flaw(rule, file, 5, *bounds, "p", measures=measures), fails)


def flaw(bounds: tuple[int, int], *, file: str = "f", measures: tuple[Place, ...] = ()) -> Flaw:
    return Flaw("entry.body", file, 5, *bounds, "p", measures=measures)


def test_a_finding_covers_what_lies_within_it() -> None:
    """All bytes of the same file; a finding of another history covers everything behind its begin."""
    for there, here, file in product(BOUNDS, BOUNDS, ("f", "g")):
        behind = file == "f" and there[0] <= here[0]
        assert covers(finding("entry.body", there), flaw(here, file=file)) is (behind and here[1] <= there[1])
        assert covers(finding("replica.divergence", there), flaw(here, file=file)) is behind


def test_a_finding_on_the_bytes_of_a_measure_answers_a_flaw() -> None:
    """It touches them, or lies within their bounds although it has no bytes. A measure that is the flaw's own place has to be covered."""
    for there, measure, file in product(BOUNDS, BOUNDS, ("m", "f")):
        own = flaw((20, 30), measures=((file, *measure),))
        touches = there[0] < measure[1] and there[1] > measure[0]
        within = measure[0] <= there[0] and there[1] <= measure[1]
        assert answers(finding("entry.body", there, file="m"), own) is (file == "m" and (touches or within)), (there, measure)
        assert answers(finding("entry.body", there, file=file), flaw(measure, file=file, measures=((file, *measure),))) is (
            there[0] <= measure[0] and measure[1] <= there[1]
        )


def test_one_finding_is_told_for_another() -> None:
    """Only of the same replica, only one that fails, and only for a flaw that others would explain. Every such pair is kept."""
    explained = finding("entry.chain", (2, 3), measures=(("m", 0, 9),))
    for replica, fails, file in product(("n1", "n2"), (False, True), ("m", "f")):
        result = GroupResult("g1", [])
        earlier = finding("entry.body", (1, 2), file=file, replica=replica, fails=fails)
        result.findings.append(earlier)
        tell(result, explained)
        told = replica == "n1" and fails and file == "m"
        assert result.findings == [earlier] + [explained] * (not told) and result.folds == [(explained, earlier)] * told
    result = GroupResult("g1", [], findings=[finding("entry.body", (0, 9))])
    tell(result, finding("entry.body", (2, 3)))
    assert len(result.findings) == 2, "a flaw that is compared with nothing stays, although it is covered"


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
    """From the first to the last byte that differs and is not covered; what others cover is kept with each of them."""
    monkeypatch.setattr(bytewise, "CHUNK", chunk)
    whole = bytes(range(64))
    for number, (places, covered, history) in enumerate(
        product(((), (3,), (3, 4, 20), (3, 20, 50, 53)), ((), (3,), (20, 50), (3, 20, 50)), (False, True))
    ):
        own = bytearray(whole)
        for place in places:
            own[place] ^= 0xFF
        one, peer = pair(tmp_path / str(number), bytes(own), whole)
        known = [finding("entry.body", (place, place + 1), file=FILE) for place in covered]
        if history:
            known.append(finding("replica.divergence", (45, 46), file=FILE))
        others = [finding("entry.body", (0, 64), file=FILE, fails=False), finding("entry.body", (0, 64), file="f")]
        others.append(finding("entry.body", (0, 64), file=FILE, replica="n3"))
        result = GroupResult("g1", [], findings=[*others, *known])
        whole_file = finding("replica.bytes", (0, 64), file=FILE)
        tell_difference(result, whole_file, one, peer, 60)
        open_places = [place for place in places if place not in covered and not (history and place >= 45)]
        added = result.findings[len(others) + len(known) :]
        assert [(each.flaw.byte_from, each.flaw.byte_to) for each in added] == (
            [(open_places[0], open_places[-1] + 1)] if open_places else []
        )
        assert all(each.flaw.proof == "p; n2 has other bytes here" for each in added)
        expected = []
        for each in known:
            inside = (
                [place for place in places if place == each.flaw.byte_from and place in covered] if each.flaw.rule == "entry.body" else []
            )
            if each.flaw.rule != "entry.body":
                inside = [place for place in places if place >= 45 and place not in covered]
            if inside:
                expected.append((inside[0], inside[-1] + 1, each))
        assert [(folded.flaw.byte_from, folded.flaw.byte_to, by) for folded, by in result.folds] == expected


def test_files_that_cannot_be_compared_differ_as_a_whole(tmp_path: Path) -> None:
    """One that is gone, or shorter. Bytes behind the end are not compared."""
    for number, (own, end, told) in enumerate(
        ((None, 8, True), (b"1234", 8, True), (b"12345678", 8, False), (b"1234567x", 7, False), (b"x2345678", 8, True))
    ):
        one, peer = pair(tmp_path / str(number), own, b"12345678")
        result = GroupResult("g1", [])
        whole = finding("replica.bytes", (0, 64), file=FILE)
        tell_difference(result, whole, one, peer, end)
        assert bool(result.findings) is told
        if own is None or len(own) < 8:
            assert result.findings == [whole]
