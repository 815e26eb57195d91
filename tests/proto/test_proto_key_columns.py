"""Keys of a batch in vectors: the same rows as RocketMQ's own rule takes from one property string
at a time."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from ledgermq.proto.entries import key_columns as module
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import chain_seed, make_range, seal
from ledgermq.proto.entries.key_columns import key_columns, key_hash, pieces
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, Range

TOPICS = ("t", "ns@some-topic", "rmq_sys_ledgermq_delivery")
LETTERS = "abc é标😀xyz"
HOST = bytes(8)


def sealed(drafts: list[Draft]) -> Range:
    batch = encode_entries(drafts)
    count = len(batch)
    positions = 1000 + np.concatenate(([0], np.cumsum(batch.sizes, dtype=np.int64)[:-1]))
    zeros = np.zeros(count, np.int64)
    chain = chain_seed("log")
    seal(
        batch,
        first_index=7,
        term=1,
        pos=positions,
        queue_offsets=zeros,
        store_ms=5000,
        store_host=HOST,
        prev_chain=chain,
    )
    return make_range(batch, 0, count, first_index=7, term=1, pos=1000, prev_chain=chain)


def expected(drafts: list[Draft]) -> list[tuple[int, int]]:
    """(place, hash) by the plain rule."""
    rows = []
    for place, draft in enumerate(drafts):
        if draft.stored_topic.startswith("rmq_sys_ledgermq"):
            continue
        values = dict(
            piece.split("\x01") for piece in draft.properties.decode().split("\x02") if piece
        )
        names = [values["UNIQ_KEY"]] if values.get("UNIQ_KEY") else []
        names += [name for name in values.get("KEYS", "").split(" ") if name]
        rows += [(place, _hash(f"{draft.stored_topic}#{name}")) for name in names]
    return rows


def _hash(text: str) -> int:
    raw = text.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(raw) // 2}H", raw):
        value = (value * 31 + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)


def some(count: int, seed: int) -> list[Draft]:
    chance = random.Random(seed)

    def text() -> str:
        return "".join(
            chance.choice(LETTERS)
            for _ in range(chance.choice((0, 1, 7, 8, 9, 16, 17, 34, 35, 64, 100, 128, 129, 300)))
        )

    drafts = []
    for _ in range(count):
        fields = Fields(
            message_id=chance.choice((None, text(), "01" + "A" * 32)),
            tag=chance.choice((None, "KEYS", "UNIQ_KEY")),
            keys=tuple(text() for _ in range(chance.randrange(5))),
            user={"KEYSTONE": "UNIQ_KEY KEYS", "zKEYS": " a b "} if chance.random() < 0.3 else {},
        )
        drafts.append(
            Draft(
                chance.choice(TOPICS), 0, chance.randbytes(chance.randrange(300)), encode(fields), 1
            )
        )
    return drafts


@pytest.mark.parametrize("count", [1, 16, 17, 400])
def test_rows_are_those_of_the_plain_rule(count: int) -> None:
    """Ids, pieces of keys, empty ones, letters of all widths and lengths, control topics: few and
    many alike."""
    for seed in range(1, 4):
        drafts = some(count, seed)
        entries = sealed(drafts)
        columns = key_columns(entries)
        assert list(
            zip(columns.entry_of.tolist(), columns.hashes.tolist(), strict=True)
        ) == expected(drafts)
        places = entries.starts[columns.entry_of] + entries.pos + 48
        assert columns.physical_offsets.tolist() == places.tolist() and set(
            columns.store_ms.tolist()
        ) <= {5000}


def test_property_without_its_end_counts_all_the_same() -> None:
    """RocketMQ wrote property strings without the final 0x02 once; the last value is one
    nevertheless."""
    drafts = [
        Draft("t", 0, b"", f"UNIQ_KEY\x01m{number}\x02KEYS\x01a b{number}".encode(), 1)
        for number in range(40)
    ]
    columns = key_columns(sealed(drafts))
    assert list(zip(columns.entry_of.tolist(), columns.hashes.tolist(), strict=True)) == expected(
        drafts
    )
    assert len(columns) == 120


def test_messages_without_keys_have_no_rows() -> None:
    """Neither a batch nor a single message without properties has any."""
    for count in (1, 30):
        assert len(key_columns(sealed([Draft("t", 0, b"\x02 KEYS\x01a\x02", b"", 1)] * count))) == 0


def test_key_pieces_equal_the_indexed_keys() -> None:
    """Spaces part keys; nothing empty is one."""
    assert (
        pieces("a") == ["a"] and pieces(" a  b ") == ["a", "b"] and pieces("  ") == pieces("") == []
    )
    assert key_hash("t", "Aa") == key_hash("t", "BB") == _hash("t#Aa")
    assert max(module._WIDTHS) <= 136


def test_hashes_of_message_keys_are_not_cached() -> None:
    """Ids and keys of messages are hashed and forgotten, by message and in vectors: a node that
    indexes for hours holds none of them."""
    before = java_hash.cache_info().currsize
    drafts = [
        Draft(
            "t", 0, b"", encode(Fields(message_id=f"id-{number}", keys=(f"key-{number}" * 30,))), 1
        )
        for number in range(500)
    ]
    assert len(key_columns(sealed(drafts))) == len(key_columns(sealed(drafts[:5]))) * 100 == 1000
    assert java_hash.cache_info().currsize == before
