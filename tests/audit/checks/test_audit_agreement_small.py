"""The quick comparison of small logs in every case: where histories part, where entries are
damaged, and where index units are lacking."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.audit.checks import agreement
from ledgermq.audit.checks.agreement import agree
from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.outline import outline
from ledgermq.audit.checks.replica import Mark, Replica
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.rules import BIT_ROT, TORN_TAIL, Finding, Flaw
from tests.audit.altering import alter
from tests.audit.checks.test_audit_appointed import forced, members
from tests.audit.damage_cases import NODES, flip
from tests.audit.log_writer import RAFT, Message, Placed, Writer, election, membership

FILE_BYTES = 1024
INDEX_BYTES = 128
LOG = "g1/dledger-{}/data/{:020d}"


def message(at: int, term: int = 1, salt: str = "") -> Message:
    return Message("t", f"{at}{salt}".encode() * 20, term=term)


MESSAGES = [membership(NODES), *(message(at) for at in range(1, 12))]


def write(base: Path, name: str, messages: Sequence[Message]) -> Writer:
    writer = Writer(base / name, data_bytes=FILE_BYTES, index_bytes=INDEX_BYTES)
    for each in messages:
        writer.append(each)
    return writer.write_log()


def replica(
    writer: Writer, *, commit: int | None = None, clean: bool = True, marked: bool = True
) -> Replica:
    """As a node leaves it: its mark is at the last entry."""
    sizes = writer.data_bytes, writer.index_bytes, writer.queue_bytes
    found = Replica(
        str(writer.node_dir),
        str(writer.root),
        "g1",
        writer.node,
        writer.log.name,
        log_id=writer.log_id,
        sizes=sizes,
    )
    found.reports = outline(found.task(f"{0:020d}"))
    found.commit, found.clean = commit, clean
    if marked and writer.entries:
        last = writer.entries[-1]
        found.mark = Mark(last.term, last.index, last.pos + last.size, last.chain, writer.log_id)
    return found


def base_of(entry: Placed) -> int:
    return entry.pos - entry.pos % FILE_BYTES


def data(writer: Writer, entry: Placed) -> Path:
    return writer.log / "data" / f"{base_of(entry):020d}"


def is_last_of_file(writer: Writer, entry: Placed) -> bool:
    return entry is not writer.entries[-1] and base_of(writer.entries[entry.index + 1]) != base_of(
        entry
    )


def flaws(result: GroupResult) -> list[tuple[str, Flaw]]:
    return [(found.replica, found.flaw) for found in result.findings]


def test_the_compared_index_is_that_of_a_majority(tmp_path: Path) -> None:
    """Of replicas that end anywhere; the others lag, which is no finding."""
    whole = {
        name: {
            length: write(tmp_path / str(length), name, MESSAGES[:length]) for length in (1, 5, 12)
        }
        for name in NODES
    }
    for lengths in product((1, 5, 12), repeat=3):
        result = agree(
            "g1",
            [replica(whole[name][length]) for name, length in zip(NODES, lengths, strict=True)],
        )
        assert result.compared == sorted(lengths)[1] - 1 and result.findings == [], lengths
        lag = [reason.split()[2] for reason in result.reasons]
        assert lag == [
            name for name, length in zip(NODES, lengths, strict=True) if length < sorted(lengths)[1]
        ]
        assert result.notes[0].startswith("group g1: only agreement was checked")
    assert agree("g1", [replica(whole["n1"][12]), replica(whole["n2"][5])]).compared == 4
    assert agree("g1", [replica(whole["n1"][12])]).compared is None


def test_only_members_are_compared(tmp_path: Path) -> None:
    ones = [replica(write(tmp_path, name, MESSAGES)) for name in NODES]
    former = replica(
        write(tmp_path, "n4", [*MESSAGES[:6], *(message(at, 1, "x") for at in range(6, 12))])
    )
    result = agree("g1", [*ones, former])
    assert (result.findings, result.compared, former.stale_from) == ([], 11, None)


def contents(writer: Writer, index: int, count: int) -> list[int]:
    """What the entries from one on hold, as far as they are in the file of the first."""
    first = writer.entries[index]
    here = [
        entry for entry in writer.entries[index : index + count] if base_of(entry) == base_of(first)
    ]
    return [hash((entry.message.topic, entry.message.body)) & 0xFFFFFFFF for entry in here]


def branches(place: int) -> Iterator[tuple[str, list[Message]]]:
    """Histories that leave the other one at a place."""
    before, behind = MESSAGES[:place], MESSAGES[place:]
    yield "other", [*before, *(replace(each, body=b"x" + each.body) for each in behind)]
    yield "longer", [*before, *(replace(each, body=b"x" * 300) for each in behind)]
    if len(behind) > 1:
        yield "missing", [*before, *behind[1:]]
        yield "reordered", [*before, behind[1], behind[0], *behind[2:]]
    yield "extra", [*before, replace(behind[0], body=b"new"), *behind]


@pytest.mark.parametrize("ahead", [64, 2])
def test_another_history_is_found_wherever_it_begins(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the replica that holds it, at its first entry; what follows in the same file tells which
    kind it is."""
    monkeypatch.setattr(bytewise, "LOOK_AHEAD", ahead)
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    seen = set()
    for place in range(1, 12):
        for kind, messages in branches(place):
            other = write(tmp_path / f"{place}{kind}", "n2", messages)
            result = agree("g1", [replica(right[0]), replica(other), replica(right[1])])
            own, theirs = other.entries[place], right[0].entries[place]
            rule = bytewise.relation(
                contents(other, place, ahead), contents(right[0], place, ahead)
            )
            proof = f"the chain CRC is {own.chain:08x}, that of the majority {theirs.chain:08x}"
            at = own.pos - base_of(own)
            assert flaws(result) == [
                ("n2", Flaw(rule, LOG.format("n2", base_of(own)), place, at, at + own.size, proof))
            ], (place, kind)
            assert result.divergent == {"n2": place} and result.compared == 11
            seen.add(rule)
    assert seen == {f"replica.{rule}" for rule in ("divergence", "missing", "extra", "reordered")}


def test_uncommitted_entries_of_an_older_leader(tmp_path: Path) -> None:
    """Those of another term that its replica never recorded as committed; the others are another
    history. Behind the compared index nothing is another history."""
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    short = [write(tmp_path / "short", name, MESSAGES[:6]) for name in ("n1", "n3")]
    for place, term, commit in product((1, 5, 11), (0, 1), (None, 0, 1, 10, 11)):
        other = write(
            tmp_path / f"{place}-{term}-{commit}",
            "n2",
            [*MESSAGES[:place], *(message(at, term, "x") for at in range(place, 13))],
        )
        one = replica(other, commit=commit)
        one.reports = [replace(report, flaws=[]) for report in one.reports]
        result = agree("g1", [replica(right[0]), one, replica(right[1])])
        stale = term == 0 and (commit is None or commit < place)
        history = [flaw.index for name, flaw in flaws(result) if flaw.rule.startswith("replica.")]
        assert (one.stale_from, history) == ((place, []) if stale else (None, [place])), (
            place,
            term,
            commit,
        )
        one = replica(other, commit=commit)
        result = agree("g1", [replica(short[0]), one, replica(short[1])])
        assert (one.stale_from is None and not result.divergent) is (place > 5), (
            place,
            term,
            commit,
        )


@pytest.mark.parametrize("place", range(3))
def test_longer_minority_history_is_called_stale(tmp_path: Path, place: int) -> None:
    """Whichever of the replicas has it."""
    names = [name for at, name in enumerate(NODES) if at != place]
    ones = [replica(write(tmp_path, name, MESSAGES)) for name in names]
    other = [*MESSAGES[:6], *(message(at, 0, "x") for at in range(6, 30))]
    ones.insert(place, longer := replica(write(tmp_path, NODES[place], other)))
    for report in longer.reports:
        report.flaws.clear()
    result = agree("g1", ones)
    assert (result.compared, longer.stale_from, result.divergent) == (11, 6, {})


def flipped(writer: Writer, entry: Placed, *places: int) -> None:
    for place in places:
        flip(data(writer, entry), entry.pos % FILE_BYTES + place)


def damage(kind: str, writer: Writer, entry: Placed) -> tuple[str, list[int]]:
    """Damage an entry whose chain CRC word then differs. Returns the rule and the places in the
    entry that differ."""
    if kind == "word":
        flipped(writer, entry, 37)
        return "entry.chain", [37]
    if kind == "word and body":
        flipped(writer, entry, 37, 48 + 90)
        return "entry.body", [37, 48 + 90]
    places = alter(writer, entry, "body", {"record", "body", "chain"})
    if kind == "body crc":
        flipped(writer, entry, 43)
        places.add(entry.pos + 43)
    return "entry.body-crc" if kind == "body crc" else "entry.chain", [
        place - entry.pos for place in places
    ]


def headers(writer: Writer, entry: Placed) -> tuple[int, ...]:
    return struct.unpack_from(
        ">iiqqqiIIi", data(writer, entry).read_bytes(), entry.pos % FILE_BYTES
    )


@pytest.mark.parametrize("kind", ["word", "word and body", "body crc", "consistent"])
def test_a_damaged_entry_at_the_end_of_a_file_or_of_the_log(tmp_path: Path, kind: str) -> None:
    """Told apart from another history by its own bytes, and by the entry behind it; no other entry
    of the log is looked at."""
    sound = {name: write(tmp_path, name, MESSAGES) for name in NODES}
    ends = [entry.index for entry in sound["n1"].entries if is_last_of_file(sound["n1"], entry)]
    assert len(ends) == 2
    for index, name in product((*ends, 11, ends[0] + 1), NODES[:2]):
        writer = write(tmp_path / f"{index}", name, MESSAGES)
        entry = writer.entries[index]
        rule, places = damage(kind, writer, entry)
        # The bytes of the body differ by more than a word.
        now, was = (data(each, entry).read_bytes() for each in (writer, sound[name]))
        differ = [at for at in range(FILE_BYTES) if now[at] != was[at]]
        assert {place + entry.pos % FILE_BYTES for place in places} >= {differ[0], differ[-1]}
        result = agree("g1", [replica({**sound, name: writer}[each]) for each in NODES])
        stored, last = headers(writer, entry)[6], index == 11
        if not last and not is_last_of_file(writer, entry):
            assert result.findings == [] and result.reasons == []
            continue
        ((told, flaw),) = flaws(result)
        assert told == name and (flaw.file, flaw.index) == (LOG.format(name, base_of(entry)), index)
        if last and kind == "consistent":
            assert flaw.rule == "replica.divergence" and result.reasons == []
            continue
        assert (flaw.rule, flaw.byte_from, flaw.byte_to) == (rule, differ[0], differ[-1] + 1)
        if kind == "word":
            assert flaw.proof == f"the chain CRC is {stored:08x}, recomputed {entry.chain:08x}"
        if kind == "consistent":
            behind = writer.entries[index + 1].chain
            assert flaw.proof.startswith(
                f"entry {index + 1} continues another chain CRC: it is {behind:08x}, recomputed "
            )
        reason = (
            f"group g1: {name} was compared up to index {index - 1} only, where an entry is damaged"
        )
        assert result.reasons == ([reason] if last else [])


def zero_units(writer: Writer, indexes: Sequence[int]) -> None:
    for index in indexes:
        path = writer.log / "index" / f"{index * 32 // INDEX_BYTES * INDEX_BYTES:020d}"
        if path.exists():
            whole = path.read_bytes()
            path.write_bytes(
                whole[: index * 32 % INDEX_BYTES]
                + bytes(32)
                + whole[index * 32 % INDEX_BYTES + 32 :]
            )


@pytest.mark.parametrize("term", [1, 2])
def test_entries_without_index_units_leave_a_reason(
    tmp_path: Path, term: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut: a stale tail is told as such, and another history by entries that were
    found; if none was, the audit says so."""
    monkeypatch.setattr(agreement, "NEIGHBOURS", 2)
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    for place, first, count in product((3, 9), range(1, 12), (2, 4)):
        lost = range(first, min(first + count, 12))
        other = write(
            tmp_path / f"{place}-{first}-{count}",
            "n2",
            [*MESSAGES[:place], *(message(at, term, "x") for at in range(place, 12))],
        )
        zero_units(other, lost)
        one = replica(other, clean=False, marked=False)
        result = agree("g1", [replica(right[0]), one, replica(right[1])])
        found = [flaw.index for _, flaw in flaws(result) if flaw.rule.startswith("replica.")]
        parted = [index for index in (one.stale_from, *found) if index is not None]
        assert all(
            finding.flaw.rule.startswith("replica.") for finding in result.findings if finding.fails
        )
        assert not (found and term == 2) and len(parted) <= 1, (place, lost)
        for index in parted:
            assert index >= place and index not in lost, (place, lost)
        if one.last_index >= place and not parted:
            assert any("n2" in reason for reason in result.reasons), (place, lost)
        if place not in lost and place - 1 not in lost and one.last_index == 11 and count <= 2:
            assert parted == [place], (place, lost)


class FakeWords(agreement._Words):
    """Chain words by replica and index; None where no unit leads to the entry. No others are looked
    for."""

    def __init__(self, words: Mapping[str, Mapping[int, int | None]]) -> None:
        self.at = cache(lambda name, index: words[name][index])


@pytest.mark.parametrize("near", [0, 1])
def test_where_two_histories_part(near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every two logs of up to four entries, whichever entries cannot be found: as long as no
    more than `NEIGHBOURS` in a row are lacking, the last common entry and the first different one
    of all that can be found; otherwise nothing that is wrong."""
    monkeypatch.setattr(agreement, "NEIGHBOURS", near)
    for begins, lasts, part in product(
        product(range(3), repeat=2), product(range(-1, 4), repeat=2), range(5)
    ):
        both = range(max(begins), min(lasts) + 1)
        for found in product((True, False), repeat=len(both)):
            known = [index for index, there in zip(both, found, strict=True) if there]
            words = FakeWords(
                {
                    "n1": {index: index if index in known else None for index in both},
                    "n2": {index: index if index < part else -1 for index in both},
                }
            )
            one, other = (
                cast(
                    Replica,
                    SimpleNamespace(name=name, begin=SimpleNamespace(index=begin), last_index=last),
                )
                for name, begin, last in zip(NODES[:2], begins, lasts, strict=True)
            )
            shared, parted = words.parting(one, other)
            last = max(
                (index for index in known if index < part), default=min(max(begins) - 1, *lasts)
            )
            first = min((index for index in known if index >= part), default=None)
            lacking = max((len(list(run)) for there, run in groupby(found) if not there), default=0)
            if lacking <= near:
                assert (shared, parted) == (last, first), (begins, lasts, part, known)
            assert shared <= last and (parted is None or (parted in known and parted >= part)), (
                begins,
                lasts,
                part,
                known,
            )
            assert shared in known or shared == min(max(begins) - 1, *lasts)


def test_equal_histories_are_compared_as_far_as_units_lead_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those just before the last common entry serve as well."""
    monkeypatch.setattr(agreement, "NEIGHBOURS", 3)
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    for first, count in product(range(12), (1, 2, 3, 5)):
        other = write(tmp_path / f"{first}-{count}", "n2", MESSAGES)
        zero_units(other, range(first, min(first + count, 12)))
        one = replica(other, clean=False, marked=False)
        short = write(tmp_path / f"{first}-{count}", "n1", MESSAGES[: first + count])
        for result in (
            agree("g1", [replica(right[0]), one, replica(right[1])]),
            agree("g1", [replica(short), one]),
        ):
            assert (
                not any(finding.fails for finding in result.findings)
                and not result.divergent
                and one.stale_from is None
            )
            if one.last_index < 11 and result.compared == 11:
                assert any("n2 ends" in reason for reason in result.reasons)
        if result.compared is not None:
            assert result.compared <= min(first + count - 1, one.last_index)


def test_no_unit_leads_to_the_end_of_the_shorter_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "NEIGHBOURS", 2)
    ones = [replica(write(tmp_path, name, MESSAGES[: 12 if name == "n2" else 7])) for name in NODES]
    zero_units(write(tmp_path, "n2", MESSAGES), [4, 5, 6])
    lacks = "index units lead to none of the entries behind it"
    reason = f"group g1: n2 was compared up to index 3 only, {lacks}; audit without --agreement"
    result = agree("g1", ones)
    assert (result.compared, result.reasons) == (6, [reason])


def test_damage_behind_a_file_without_end_unit_is_found(tmp_path: Path) -> None:
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    other = write(tmp_path, "n2", MESSAGES)
    _, second = (entry for entry in other.entries if is_last_of_file(other, entry))
    flipped(other, second, 37)
    one = replica(other, clean=False)
    one.reports[0].last_index = None
    result = agree("g1", [replica(right[0]), one, replica(right[1])])
    assert [(name, flaw.rule, flaw.index) for name, flaw in flaws(result)] == [
        ("n2", "entry.chain", second.index)
    ]


def test_of_a_damaged_entry_the_whole_is_named_if_the_other_replica_lacks_it(
    tmp_path: Path,
) -> None:
    """Its log file is cut, so no bytes are there to compare."""
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    other = write(tmp_path, "n2", MESSAGES)
    entry = other.entries[11]
    ones = [replica(each) for each in (right[0], other, right[1])]
    flipped(other, entry, 37)
    for each in right:
        path = data(each, entry)
        path.write_bytes(path.read_bytes()[: entry.pos % FILE_BYTES + 60])
    ((name, flaw),) = [
        found for found in flaws(agree("g1", ones)) if found[1].rule == "entry.chain"
    ]
    at = entry.pos % FILE_BYTES
    assert (name, flaw.index, flaw.byte_from, flaw.byte_to) == ("n2", 11, at, at + entry.size)


def test_an_entry_that_cannot_be_read_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here only its header can be read."""
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    other = write(tmp_path, "n2", [*MESSAGES[:11], message(11, 1, "x")])
    one = replica(other)
    real = agreement.open_file

    def fail(path: str) -> Any:
        if "dledger-n2/data" in path:
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(agreement, "open_file", fail)
    result = agree("g1", [replica(right[0]), one, replica(right[1])])
    entry = other.entries[11]
    at = entry.pos % FILE_BYTES
    assert flaws(result) == [
        (
            "n2",
            Flaw("file.read", LOG.format("n2", base_of(entry)), 11, at, at, "Input/output error"),
        )
    ]
    assert result.reasons == [
        "group g1: n2 was compared up to index 10 only, where an entry is damaged"
    ]


def test_a_size_that_is_damaged(tmp_path: Path) -> None:
    """Together with the chain CRC of the last entry: as much of it is read as there is."""
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    other = write(tmp_path, "n2", MESSAGES)
    entry = other.entries[11]
    for size in (-1, 0, 40, entry.size - 1, entry.size + 1, 1 << 30):
        fields = list(headers(right[0], entry))
        fields[1], fields[6] = size, fields[6] ^ 1
        path = data(other, entry)
        at = entry.pos % FILE_BYTES
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + struct.pack(">iiqqqiIIi", *fields) + whole[at + 48 :])
        ((name, flaw),) = flaws(agree("g1", [replica(right[0]), replica(other), replica(right[1])]))
        assert (name, flaw.rule, flaw.index) == ("n2", "entry.body", 11)
        assert at <= flaw.byte_from <= flaw.byte_to <= min(at + max(size, 0), FILE_BYTES)


def test_the_first_entry_follows_the_seed(tmp_path: Path) -> None:
    """That of the log id, or of the begin file. Where neither is known, the chain CRC of the first
    entry cannot be computed."""
    right = [write(tmp_path, name, MESSAGES[:1]) for name in ("n1", "n3")]
    other = write(tmp_path, "n2", MESSAGES[:1])
    flipped(other, other.entries[0], 37)
    for known in (True, False):
        ones = [replica(each) for each in (right[0], other, right[1])]
        for one in ones:
            one.log_id = one.log_id if known else None
        found = flaws(agree("g1", ones))
        assert [(name, flaw.rule) for name, flaw in found] == [
            ("n2", "entry.chain" if known else "replica.divergence")
        ]


def test_unrefuted_differing_entry_asks_for_a_full_audit(tmp_path: Path) -> None:
    """It is altered with its chain CRC, and the entry behind it tells nothing: it is damaged, or no
    unit leads to it."""
    right = [write(tmp_path, name, MESSAGES) for name in ("n1", "n3")]
    end = next(entry.index for entry in right[0].entries if is_last_of_file(right[0], entry))
    for how in ("damaged", "damaged word", "no unit"):
        other = write(tmp_path / how, "n2", MESSAGES)
        alter(other, other.entries[end], "body", {"record", "body", "chain"})
        if how == "no unit":
            zero_units(other, [end + 1])
        else:
            flipped(
                other, other.entries[end + 1], 48 + 90, *([37] if how == "damaged word" else [])
            )
        result = agree("g1", [replica(right[0]), replica(other), replica(right[1])])
        assert result.findings == [] and result.reasons == [
            f"group g1: n2 has another entry {end}; audit without --agreement"
        ], how


def trimmed(writer: Writer, begin: int) -> Replica:
    one = replica(writer)
    first = writer.entries[begin]
    assert first.pos % FILE_BYTES == 0
    one.begin = Begin(begin, first.pos, 1, writer.entries[begin - 1].chain)
    one.reports = [report for report in one.reports if report.base >= first.pos]
    for path in (writer.log / "data").iterdir():
        if int(path.name) < first.pos:
            path.unlink()
    return one


def test_a_trimmed_log_is_compared_from_its_begin_on(tmp_path: Path) -> None:
    """Also with one that ends before it. Its first entry may be the one that differs, or be
    damaged."""
    right = {name: write(tmp_path, name, MESSAGES) for name in NODES}
    begin = next(
        entry.index for entry in right["n1"].entries if entry.index and entry.pos % FILE_BYTES == 0
    )
    one = trimmed(write(tmp_path / "same", "n2", MESSAGES), begin)
    result = agree("g1", [replica(right["n1"]), one, replica(right["n3"])])
    assert (result.findings, result.compared, result.reasons) == ([], 11, [])
    short = write(tmp_path / "short", "n3", MESSAGES[:3])
    result = agree("g1", [replica(right["n1"]), one, replica(short)])
    assert (result.findings, result.compared) == ([], 11) and len(result.reasons) == 1
    one = trimmed(
        write(
            tmp_path / "other",
            "n2",
            [*MESSAGES[:begin], *(message(at, 1, "x") for at in range(begin, 12))],
        ),
        begin,
    )
    result = agree("g1", [replica(right["n1"]), one, replica(right["n3"])])
    assert [(name, flaw.rule, flaw.index) for name, flaw in flaws(result)] == [
        ("n2", "replica.divergence", begin)
    ]
    first = {name: write(tmp_path / "first", name, MESSAGES[: begin + 1]) for name in NODES}
    flipped(first["n2"], first["n2"].entries[begin], 37)
    result = agree("g1", [replica(first["n1"]), trimmed(first["n2"], begin), replica(first["n3"])])
    ((name, flaw),) = flaws(result)
    assert (name, flaw.rule, flaw.index) == ("n2", "entry.chain", begin)
    assert flaw.proof.endswith(f"recomputed {first['n1'].entries[begin].chain:08x}")


def test_replicas_without_entries_and_of_other_groups(tmp_path: Path) -> None:
    ones = [replica(write(tmp_path, name, MESSAGES)) for name in NODES]
    keys = (
        "cluster_id",
        "log_id",
        "data_file_bytes",
        "index_file_bytes",
        "consume_queue_file_bytes",
        "incarnation",
    )
    for one in ones:
        one.identity = dict.fromkeys(keys, "x")
    ones[0].identity = {**dict.fromkeys(keys, "x"), "log_id": "y"}
    assert [(name, flaw.rule) for name, flaw in flaws(agree("g1", ones))] == [
        ("n1", "identity.agree")
    ]
    ones[2].reports = []
    assert agree("g1", ones).compared == 11


# --------------------------------------------------------------------------------------------------------------- one replica


def alone(one: Replica) -> list[Flaw]:
    return [flaw for _, flaw in flaws(agree("g1", [one]))]


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return write(tmp_path, "n1", MESSAGES)


def test_a_log_begins_with_the_entry_of_its_begin_file(writer: Writer) -> None:
    """If its first file is there."""
    for more, missing in product((0, 1), (False, True)):
        one = replica(writer)
        first = one.filled[1]
        assert first.first_index is not None
        one.begin = Begin(first.first_index + more, first.base, 1, 0)
        one.reports = one.reports[2 if missing else 1 :]
        proof = (
            f"the log begins with index {first.first_index}, and the begin file says"
            f" {one.begin.index}"
        )
        gap = (
            [Flaw("entry.gap", first.file, one.begin.index, 0, 48, proof)]
            if more and not missing
            else []
        )
        assert [flaw for flaw in alone(one) if flaw.rule == "entry.gap"] == gap
    one = replica(writer)
    one.reports = []
    assert alone(one) == []


def test_terms_do_not_fall_from_file_to_file(writer: Writer) -> None:
    for first_term in (0, 1, 2):
        one = replica(writer)
        after = one.filled[1]
        after.first_term = first_term
        flaw = Flaw(
            "entry.term-order",
            after.file,
            after.first_index,
            16,
            24,
            f"term {first_term} follows term 1",
        )
        assert alone(one) == ([flaw] if first_term == 0 else [])
        one = replica(writer)
        one.filled[0].last_index = None
        one.filled[1].first_term = 0
        assert "entry.term-order" not in {flaw.rule for flaw in alone(one)}


def test_files_follow_each_other_and_are_those_of_their_seals(writer: Writer) -> None:
    """Of the files only their edges are known."""
    last = writer.entries[-1]
    one = replica(writer)
    one.reports[1].seals.append(
        (9, json.dumps({"base": 0, "first": 0, "last": 3, "end": 9, "sha256": ""}))
    )
    result = agree("g1", [one, replica(write(writer.node_dir.parent, "n2", MESSAGES))])
    assert [(name, flaw.rule) for name, flaw in flaws(result)] == [
        ("n1", "seal.record"),
        ("n2", "seal.record"),
    ]
    (writer.log / "data" / f"{FILE_BYTES:020d}").unlink()
    one = replica(writer)
    assert ("file.missing", LOG.format("n1", FILE_BYTES)) in [
        (flaw.rule, flaw.file) for flaw in alone(one)
    ]
    assert one.last_index == last.index


def test_flaws_of_the_files_are_those_of_the_replica(writer: Writer) -> None:
    one = replica(writer)
    one.reports[1].flaws.append(flaw := Flaw("file.length", one.reports[1].file, None, 3, 5, "p"))
    assert alone(one) == [flaw]


def test_a_log_reaches_its_mark(writer: Writer) -> None:
    """Unless there is an entry behind the last one that units lead to. The lost bytes lie in the
    last file."""
    last = writer.entries[-1]
    end = last.pos % FILE_BYTES + last.size
    file = LOG.format("n1", base_of(last))
    for marked, place, behind in product(
        (10, 11, 12),
        (0, last.pos + last.size + 50, last.pos + 5000),
        (b"", b"\0\0\0\1", b"\0\0\1\1"),
    ):
        one = replica(writer, clean=False)
        one.mark = Mark(1, marked, place, 0, writer.log_id)
        path = data(writer, last)
        whole = path.read_bytes()
        path.write_bytes(whole[:end] + behind.ljust(FILE_BYTES - end, b"\0"))
        stop = min(max(place - base_of(last), end), FILE_BYTES)
        flaw = Flaw(
            "mark.end",
            file,
            12,
            end,
            stop,
            f"the synced mark names entry {marked}, the log ends with 11",
        )
        assert alone(one) == ([flaw] if marked == 12 and behind != b"\0\0\0\1" else [])
        path.write_bytes(whole)
    one = replica(writer, clean=False)
    one.mark, one.reports[-2].last_index = Mark(1, 50, 0, 0, writer.log_id), None
    assert "mark.end" not in {flaw.rule for flaw in alone(one)}
    one.reports, one.flaws = [], []
    assert alone(one) == []


def test_small_files_agree_with_the_end_of_the_log(writer: Writer) -> None:
    (writer.log / "checkpoint").write_bytes(b"x" * 30)
    one = replica(writer)
    one.hard_term = 0
    assert [flaw.rule for flaw in alone(one)] == ["hardstate.term"]
    one = replica(writer)
    one.mark = Mark(1, 5, 0, 0, writer.log_id)
    assert [flaw.rule for flaw in alone(one)] == ["mark.log"]
    assert [flaw.rule for flaw in alone(replica(writer, commit=12))] == ["checkpoint.ahead"]


def test_findings_are_in_order(tmp_path: Path) -> None:
    """Those that fail first, then by replica, file, place and rule; what a killed node may lack
    does not fail, and is a reason."""
    ones = [replica(write(tmp_path, name, MESSAGES)) for name in NODES]
    ones[0].clean, ones[0].mark = False, None
    proof = "the unit does not lead to the last entry of its log file: one of them is damaged"
    unit = Flaw("index.unit", "g1/a", 3, 0, 32, proof, torn=True)
    places = [
        ("g1/a", 9, "file.length"),
        ("g1/a", 2, "file.name"),
        ("g1/a", 2, "file.length"),
        ("g1/b", 0, "file.length"),
    ]
    for one in ones:
        one.reports[0].flaws = [
            Flaw(rule, file, None, at, at + 1, "p") for file, at, rule in reversed(places)
        ]
    ones[0].reports[0].flaws.append(unit)
    result = agree("g1", ones)
    ordered = sorted(places)
    assert [
        (found.replica, found.flaw.file, found.flaw.byte_from, found.flaw.rule)
        for found in result.findings[:-1]
    ] == [(name, *place) for name in NODES for place in ordered]
    torn = result.findings[-1]
    assert (torn.klass, torn.fails, torn.replica) == (
        TORN_TAIL,
        False,
        "n1",
    ) and torn.flaw.proof.startswith(f"{proof}; the node was killed")
    assert all(found.fails for found in result.findings[:-1])
    lacks = "was killed, and lacks index units or bytes of a log file; audit without --agreement"
    assert result.reasons == [f"group g1: n1 {lacks}"]
    assert isinstance(torn, Finding) and result.findings[0].klass == BIT_ROT


# ------------------------------------------------------------------------------------------------------- members and commits


def test_members_are_those_of_the_newest_record(tmp_path: Path) -> None:
    """The one in the snapshot, which names its entry; the others tell nothing. A log may have one
    file only, or more."""
    for number, (index, voters) in enumerate(product((5, None, "5"), (("n1", "n2"), ()))):
        ones = [replica(write(tmp_path / str(number), name, MESSAGES)) for name in NODES]
        for one in ones:
            one.snapshot = {
                "members": {
                    "index": index,
                    "voters": {name: {} for name in voters},
                    "learners": {"n3": {}},
                }
            }
        result = agree("g1", ones)
        assert result.voters == ((voters or ()) if index == 5 else NODES)
        assert (result.learners == ("n3",)) is (index == 5)
    for length in (2, 12):
        ones = [
            replica(write(tmp_path / f"of {length}", name, MESSAGES[:length])) for name in NODES
        ]
        for one in ones:
            one.snapshot = {"members": {"index": 1, "voters": {"n1": {}, "n2": {}}, "learners": {}}}
        assert agree("g1", ones).voters == ("n1", "n2")
    ones[0].snapshot, ones[0].reports = {"members": {"index": 5, "voters": {}}}, []
    assert agree("g1", ones).group == "g1"
    ones[1].snapshot = {"members": [1]}
    assert agree("g1", ones).group == "g1"


def test_recorded_commit_above_the_compared_index_is_a_reason(tmp_path: Path) -> None:
    """By a checkpoint or by a snapshot; if not, index units may lack, and only the bytes tell."""
    for number, (commit, applied, length) in enumerate(
        product((None, -1, 0, 6, 7), (None, "x", 6, 7), (8,))
    ):
        ones = [
            replica(write(tmp_path / str(number), name, MESSAGES[: length if name == "n1" else 7]))
            for name in NODES
        ]
        ones[0].commit, ones[0].clean = commit, False
        ones[0].snapshot = None if applied is None else {"applied_index": applied}
        result = agree("g1", ones)
        recorded = max(
            (each for each in (commit, applied) if isinstance(each, int) and each >= 0),
            default=None,
        )
        assert (result.recorded, result.compared) == (recorded, 6)
        reason = (
            "group g1: index 7 was recorded as committed, the index files of a majority lead up to"
            " 6; audit without --agreement"
        )
        assert result.reasons == ([reason] if recorded == 7 else [])
        del ones[2]
        assert reason not in agree("g1", ones).reasons
    assert agree("g1", ones[:1]).compared is None


# --------------------------------------------------------------------------------------------------- appointed masters


def appointed(
    base: Path, name: str, messages: Sequence[Message], commit: int, **more: Any
) -> Replica:
    return replica(write(base, name, [members("in-sync"), *messages]), commit=commit, **more)


FIRST = [election(1, "n1"), *(message(at) for at in range(2, 6))]
"""The entries 1 to 5, of epoch 1."""


def second(node: str, salt: str, count: int = 4) -> list[Message]:
    """The first entries of epoch 2."""
    return [election(2, node), *(message(at, 2, salt) for at in range(count))]


def test_the_confirmed_entry_of_the_highest_epoch_counts(tmp_path: Path) -> None:
    """And of the highest index in it; as far as its replica reaches."""
    for number, (epochs, commits) in enumerate(
        product(product((1, 2), repeat=3), product((-1, 0, 3, 7, 20), repeat=3))
    ):
        if number % 11:
            continue
        ones = [
            appointed(
                tmp_path / str(number),
                name,
                [*FIRST, *(second("n1", "a") if epoch == 2 else [])],
                commit,
                clean=False,
            )
            for name, epoch, commit in zip(NODES, epochs, commits, strict=True)
        ]
        result = agree("g1", ones)
        points = [min(one.commit or 0, one.last_index) for one in ones]
        best = max(points)
        assert result.compared == (best if best >= 0 else None), (epochs, commits)
        assert result.proven_by == (NODES[points.index(best)] if best >= 0 else None)
        assert not [flaw for _, flaw in flaws(result) if flaw.rule.startswith("replica.")]


def test_replica_against_a_recorded_majority_is_divergent(tmp_path: Path) -> None:
    """A replica whose history two others, and a majority, recorded otherwise; entries that nobody
    recorded count for nothing. The histories part at entry 6."""
    for number, (mine, theirs, other) in enumerate(product((5, 6, 8), repeat=3)):
        base = tmp_path / str(number)
        ones = [
            appointed(base, "n1", [*FIRST, *second("n1", "a")], mine, clean=False),
            appointed(
                base, "n2", [*FIRST, *(message(at, 1, "b") for at in range(5))], theirs, clean=False
            ),
            appointed(
                base, "n3", [*FIRST, *(message(at, 1, "b") for at in range(5))], other, clean=False
            ),
        ]
        result = agree("g1", ones)
        against = {name for name, commit in (("n2", theirs), ("n3", other)) if commit >= 6}
        if mine >= 6 and len(against) < 2:
            assert (result.proven_by, result.compared, result.divergent) == (
                "n1",
                mine,
                dict.fromkeys(against, 6),
            )
        elif mine >= 6:
            proven = "n2" if theirs >= other else "n3"
            assert (result.proven_by, result.compared, result.divergent) == (
                proven,
                max(theirs, other),
                {"n1": 6},
            )
        else:
            assert result.compared == max(theirs, other) and result.divergent == {}


def test_two_of_five_recorded_replicas_do_not_outvote(tmp_path: Path) -> None:
    """They are fewer than half, although the history that they recorded has fewer against it."""
    names = [*NODES, "n4", "n5"]
    body = {
        "v": 3,
        "voters": {name: {} for name in names},
        "learners": {},
        "reason": "",
        "rule": "in-sync",
        "since": 0,
    }
    start = Message(RAFT, json.dumps(body).encode(), tag="membership", channel=1, term=0)
    sides = {
        "a": [start, *FIRST, *second("n1", "a")],
        "b": [start, *FIRST, *(message(at, 1, "b") for at in range(5))],
        "-": [start, *FIRST],
    }
    ones = [
        replica(write(tmp_path, name, sides[side]), commit=5 if side == "-" else 8, clean=False)
        for name, side in zip(names, "abb--", strict=True)
    ]
    result = agree("g1", ones)
    assert (result.proven_by, result.compared, result.divergent) == ("n1", 8, {"n2": 6, "n3": 6})


def test_the_end_of_a_file_that_is_the_last_compared_entry(tmp_path: Path) -> None:
    """Damage there is found by it; what follows on all replicas is the same."""
    history = [*FIRST, *(message(at) for at in range(6, 12))]
    sound = {name: write(tmp_path, name, [members("in-sync"), *history]) for name in NODES}
    ends = [entry for entry in sound["n1"].entries if is_last_of_file(sound["n1"], entry)]
    assert len(ends) > 1
    for commit, end in product(range(12), ends):
        other = write(tmp_path / f"{commit}-{end.index}", "n2", [members("in-sync"), *history])
        flipped(other, other.entries[end.index], 37)
        result = agree(
            "g1",
            [replica({**sound, "n2": other}[name], commit=commit, clean=False) for name in NODES],
        )
        told = [(name, flaw.rule, flaw.index) for name, flaw in flaws(result)]
        assert told == ([("n2", "entry.chain", end.index)] if commit >= end.index else []), (
            commit,
            end.index,
        )


def test_pairs_that_outvote_each_other(tmp_path: Path) -> None:
    """Of four members, an observer among them: two against one count. If every history has two
    against it, that of the highest epoch stays."""
    start = members("in-sync", observer="n4")
    sides = {
        "a": [start, *FIRST, *second("n1", "a")],
        "b": [start, *FIRST, *(message(at, 1, "b") for at in range(5))],
        "-": [start, *FIRST],
    }
    for number, (told, proven, divergent) in enumerate(
        (
            ("abb-", "n2", {"n1": 6}),
            ("bba-", "n1", {"n3": 6}),
            ("aabb", "n1", {"n3": 6, "n4": 6}),
            ("bbaa", "n3", {"n1": 6, "n2": 6}),
        )
    ):
        ones = [
            replica(
                write(tmp_path / str(number), name, sides[side]),
                commit=5 if side == "-" else 8,
                clean=False,
            )
            for name, side in zip((*NODES, "n4"), told, strict=True)
        ]
        result = agree("g1", ones)
        assert (result.proven_by, result.divergent, result.compared) == (proven, divergent, 8), told


def test_entries_given_up_by_a_forced_election_are_no_divergence(tmp_path: Path) -> None:
    """From the entry behind the last one that the forced master kept, if it is of an older epoch.
    The record is the second entry of its epoch, intact, and in the log."""
    for number, (kept, epoch, spoilt, commit) in enumerate(
        product((5, 6), (2, 1), ("", "body", "word", "topic", "text"), (5, 6, 10))
    ):
        record = forced(epoch, "n2", kept)
        if spoilt == "topic":
            record = replace(record, topic="other")
        if spoilt == "text":
            record = replace(record, body=b"{" if number % 2 else b"[]")
        base = tmp_path / str(number)
        new = write(
            base,
            "n2",
            [
                members("in-sync"),
                *FIRST,
                election(2, "n2"),
                replace(record, term=2),
                *(message(at, 2) for at in range(3)),
            ],
        )
        if spoilt == "body":
            flipped(new, new.entries[7], 48 + 89)
        if spoilt == "word":
            flipped(new, new.entries[7], 37)
        old = appointed(
            base, "n1", [*FIRST, *(message(at, 1, "old") for at in range(6))], commit, clean=False
        )
        ones = [
            old,
            replica(new, commit=9, clean=False),
            appointed(base, "n3", FIRST, 5, clean=False),
        ]
        result = agree("g1", ones)
        given_up = commit >= 6 and kept == 5 and epoch == 2 and not spoilt
        if commit == 5:
            assert old.stale_from == 6 and result.given_up == {} and result.divergent == {}
        else:
            assert ("n1" in result.given_up) is given_up and (
                "n1" in result.divergent
            ) is not given_up, (kept, epoch, spoilt)
        assert result.recorded == (10 if commit == 10 and not given_up else 9)
