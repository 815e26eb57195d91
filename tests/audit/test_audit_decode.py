"""The decoder: golden vectors, every cut of a window, tags, slots, sealed JSON, zero space."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.reading import columns, decode
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.walk import find_entries
from ledgermq.audit.rules import CLASSES, NEXT_STEP, RULES, Flaw, coalesce
from tests.audit.damage_cases import history
from tests.audit.log_writer import Message, Writer, java_hash, sealed

GOLDEN = Path(__file__).parents[1] / "golden"
NO_UNITS = np.empty(0, decode.INDEX_UNIT)


def test_golden_entries() -> None:
    """The vectors of the format page, decoded by the second implementation: columns, both CRCs,
    chain, tags code."""
    golden = json.loads((GOLDEN / "entries.json").read_text())
    chain = decode.crc(golden["log_id"].encode())
    assert chain == golden["chain_seed"]
    for wanted in golden["entries"]:
        data = bytes.fromhex(wanted["entry_hex"])
        found = find_entries(data, wanted["pos"], len(data), NO_UNITS)
        assert found.sizes.tolist() == [len(data)]
        rows = decode.gather(data, found.offsets)
        for name in (
            "index",
            "term",
            "pos",
            "channel",
            "queue",
            "queue_offset",
            "store_ms",
            "chain_crc",
            "body_crc",
        ):
            assert int(rows[name][0]) == wanted[name], name
        body = decode.crc(data[48:])
        assert body == wanted["body_crc"]
        chain = decode.crc(decode.chain_inputs(rows, np.array([body], np.uint32)), chain)
        assert chain == wanted["chain_crc"]
        parts = columns.take_apart(data, found.offsets, found.sizes, rows)
        assert parts.fits.all() and parts.topics == [wanted["topic"].encode()]
        assert parts.tags_codes.tolist() == [wanted["tags_code"]]
        unit = np.frombuffer(bytes.fromhex(wanted["queue_unit_hex"]), decode.QUEUE_UNIT)[0]
        assert (int(unit["pos"]), int(unit["tags_code"])) == (
            wanted["pos"] + 48,
            wanted["tags_code"],
        )


def test_java_hashes() -> None:
    """Java's String.hashCode, as RocketMQ's own store computes it."""
    for text, value in json.loads((GOLDEN / "reference.json").read_text())["java_hash"].items():
        assert decode.tags_code(text.encode()) == value


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20))
def test_java_hash_of_any_text(text: str) -> None:
    """Agrees with a plain second version."""
    assert decode.tags_code(text.encode()) == java_hash(text)


def test_every_cut_of_a_window(tmp_path: Path) -> None:
    """A window cut at any byte yields exactly the entries that lie in it whole, and asks for
    more."""
    writer = Writer(tmp_path / "n1", data_bytes=1 << 20)
    for message in history(2, 6):
        writer.append(message)
    whole = bytes(writer.space)
    ends = [entry.pos + entry.size for entry in writer.entries]
    for cut in range(len(whole)):
        found = find_entries(whole[:cut], 0, 1 << 20, NO_UNITS)
        assert found.more and len(found.offsets) == sum(end <= cut for end in ends)


def property_text(*pairs: tuple[str, str]) -> bytes:
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (property_text(), b""),
        (property_text(("TAGS", "a")), b"a"),
        (property_text(("UNIQ_KEY", "x"), ("TAGS", "abc"), ("KEYS", "k")), b"abc"),
        (property_text(("UNIQ_KEY", "x"), ("KEYS", "k"), ("TAGS", "late")), b"late"),
        (property_text(("UNIQ_KEY", "x"), ("MYTAGS", "no")), b""),
        (property_text(("UNIQ_KEY", "TAGS"), ("XTAGS", "no"), ("TAGS", "yes")), b"yes"),
        (property_text(("UNIQ_KEY", "x"), ("TAGS", "")), b""),
        (b"TAGS\x01open", b"open"),
        (b"TAGS", b""),
    ],
)
def test_tags_wherever_they_stand(text: bytes, tag: bytes) -> None:
    """TAGS first, second or later; names that only end in it do not count."""
    window = b"\x02pad" + text + b"\x02TAGS\x01behind\x02"
    starts, ends = np.array([4]), np.array([4 + len(text)])
    at, length = columns.find_tags(window, np.frombuffer(window, np.uint8), starts, ends)
    assert window[int(at[0]) : int(at[0] + length[0])] == tag


@given(st.lists(st.binary(max_size=6), max_size=40))
def test_interning(texts: list[bytes]) -> None:
    """Equal strings get one number, different ones different numbers, whatever their lengths."""
    data = np.frombuffer(b"".join(texts) + b"end", np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(lengths) - lengths
    numbers, distinct = columns.intern(data, starts, lengths)
    assert [distinct[number] for number in numbers.tolist()] == texts
    assert len(set(distinct)) == len(distinct) == len(set(texts))


def test_hash_collisions_do_not_confuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that brings everything together, equality still decides."""
    monkeypatch.setattr(columns, "HASH_FACTOR", np.uint64(1))
    data = np.frombuffer(b"abbaabcc", np.uint8)
    numbers, distinct = columns.intern(data, np.array([0, 2, 4, 6]), np.array([2, 2, 2, 2]))
    assert [distinct[number] for number in numbers.tolist()] == [b"ab", b"ba", b"ab", b"cc"]


def test_property_strings() -> None:
    """name 01 value 02, repeated."""
    whole = (b"", b"a\x01b\x02", b"a\x01\x02", b"a\x01b\x02c\x01d\x02")
    broken = (b"a", b"a\x01b", b"a\x02", b"\x01b\x02", b"a\x01b\x01c\x02", b"a\x01b\x02\x02")
    assert all(decode.properties_are_whole(text) for text in whole)
    assert not any(decode.properties_are_whole(text) for text in broken)


def test_slots() -> None:
    """The intact slot with the higher sequence counts; one that was never written is no damage."""
    body = decode.HARD_STATE[1].pack(7, 2, b"n1")
    one, two = Writer.slot(b"LMHS", 5, body), Writer.slot(b"LMHS", 6, body)
    for data, number in (
        (one + two, 1),
        (two + one, 0),
        (one + bytes(4096), 0),
        (one + two[:20] + b"x" + two[21:], 0),
    ):
        slot = decode.current(decode.read_slots(data, decode.HARD_STATE))
        assert slot is not None and slot.number == number
    assert decode.current(decode.read_slots(bytes(8192), decode.HARD_STATE)) is None
    assert [slot.state for slot in decode.read_slots(one + bytes(4096), decode.HARD_STATE)] == [
        "intact",
        "empty",
    ]


def test_sealed_json(tmp_path: Path) -> None:
    """Any single changed byte of a sealed JSON file is noticed, added ones too."""
    path, value = tmp_path / "x", {"a": 1, "b": {"c": "ü"}}
    text = sealed(value)
    path.write_bytes(text)
    assert decode.read_sealed_json(str(path)) == value
    for at in range(len(text)):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        assert decode.read_sealed_json(str(path)) is None
    for changed in (text + b"\n", b" " + text, text[:-1], b"", b"[]"):
        path.write_bytes(changed)
        assert decode.read_sealed_json(str(path)) is None


STAINS = [
    ((0,), True),
    ((5,), True),
    ((512,), False),
    ((700,), True),
    (tuple(range(600, 640)), False),
]


@pytest.mark.parametrize(("places", "stray"), STAINS)
def test_stains(tmp_path: Path, places: tuple[int, ...], stray: bool) -> None:
    """Bytes in zero space are found, in sparse files too, and a lonely one away from a sector's
    edge is called stray."""
    path = tmp_path / "x"
    with open(path, "wb") as file:
        file.truncate(1 << 20)
        for place in places:
            file.seek(place)
            file.write(b"\x80")
    with open_file(str(path)) as file:
        stain = decode.find_stain(file, 0, 1 << 20)
        assert stain is not None and (stain.first, stain.last, stain.stray) == (
            places[0],
            places[-1],
            stray,
        )
        assert decode.find_stain(file, places[-1] + 1, 1 << 20) is None
        assert decode.last_nonzero(file, 1 << 20) == places[-1]
        assert decode.last_nonzero(file, places[0]) == -1


def test_rules_and_classes() -> None:
    """Every rule has a class of the agreed list and every class a next step; runs of one flaw
    become one, and no byte of those beyond the limit is left untold."""
    assert {rule.klass for rule in RULES.values()} <= set(CLASSES) == set(NEXT_STEP)
    flaws = [
        Flaw("entry.pos", "f", index, index * 10, index * 10 + 4, "p") for index in (3, 4, 5, 9)
    ]
    joined = coalesce(flaws, 2)
    assert [(flaw.index, flaw.byte_from, flaw.byte_to) for flaw in joined] == [
        (3, 30, 54),
        (9, 90, 94),
    ]
    assert "2 more entries" in joined[0].proof
    many = [
        Flaw("entry.pos", "f", index, index * 10, index * 10 + 4, "p", torn=index > 2)
        for index in (1, 3, 5, 7)
    ]
    first, rest = coalesce(many, 1)
    assert first == many[0]
    assert (rest.index, rest.byte_from, rest.byte_to, rest.torn) == (3, 30, 74, True)
    (whole,) = coalesce(many, 0)
    assert (whole.index, whole.byte_from, whole.byte_to, whole.torn) == (1, 10, 74, False)


def test_long_topic_and_empty_parts(tmp_path: Path) -> None:
    """A V2 record, an empty body and an empty property string come apart."""
    writer = Writer(tmp_path / "n1", data_bytes=1 << 16)
    for message in (
        Message("t" * 200, b"x" * 300, tag="T"),
        Message("rmq_sys_x", b""),
        Message("a", b"", key="k"),
    ):
        writer.append(message)
    data = bytes(writer.space)
    found = find_entries(data, 0, len(data), NO_UNITS)
    parts = columns.take_apart(data, found.offsets, found.sizes, decode.gather(data, found.offsets))
    assert parts.fits.all() and parts.right_magic.all() and parts.closed.all()
    assert [parts.topics[at] for at in parts.topic_of.tolist()] == [b"t" * 200, b"rmq_sys_x", b"a"]
