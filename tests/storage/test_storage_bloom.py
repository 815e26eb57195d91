"""Filters: never a false no, fewer than one false yes in a hundred, and a stored one that is not
what it should be does not count."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ledgermq.proto.types import I32
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.keys.bloom import HEADER_BYTES, Bloom, StoredBloom

KEYS = 20_000
PATH = "/filter"


def hashes(seed: int, count: int = KEYS) -> I32:
    return np.random.default_rng(seed).integers(0, 1 << 31, count, np.int64).astype(np.int32)


def stored(content: bytes) -> ForgetfulDisk:
    disk = ForgetfulDisk()
    disk.replace_file(PATH, content)
    return disk


def verify(disk: ForgetfulDisk, units: int) -> StoredBloom | None:
    return StoredBloom.verify(disk, PATH, units, itertools.repeat(None))


def test_full_filter_says_yes_to_all_it_has_and_to_few_others() -> None:
    """Whatever the sizes of the batches; the stored filter gives the same answers with one read of
    one block."""
    filter_, again = Bloom(KEYS), Bloom(KEYS)
    present = hashes(1)
    filter_.add(present)
    for part in np.array_split(present, 37):
        again.add(part)
    content = filter_.encode(KEYS + 1)
    assert content == again.encode(KEYS + 1)
    disk = stored(content)
    found = verify(disk, KEYS + 1)
    assert found is not None
    file = disk.open(PATH)
    assert all(
        filter_.may_have(int(hash_)) and found.may_have(file, int(hash_))
        for hash_ in present[:2000]
    )
    known = set(present.tolist())
    others = [int(hash_) for hash_ in hashes(2, 6000) if hash_ not in known]
    wrong = [hash_ for hash_ in others if filter_.may_have(hash_)]
    assert len(wrong) <= len(others) // 100
    assert [hash_ for hash_ in others if found.may_have(file, hash_)] == wrong


@pytest.mark.parametrize(
    "change",
    ["magic", "version", "blocks", "units", "body", "short", "empty", "missing", "other units"],
)
def test_filter_that_is_not_sound_does_not_count(change: str) -> None:
    """A false no would lose messages: every byte is checked before a filter is asked."""
    filter_ = Bloom(100)
    filter_.add(hashes(3, 100))
    content = bytearray(filter_.encode(101))
    at = {"magic": 0, "version": 7, "blocks": 11, "units": 15, "body": HEADER_BYTES + 40}
    if change in at:
        content[at[change]] ^= 1
    elif change == "short":
        del content[-1:]
    elif change == "empty":
        content.clear()
    disk = stored(bytes(content))
    if change == "missing":
        disk.unlink(PATH)
    assert verify(disk, 90 if change == "other units" else 101) is None


def test_verifying_can_be_broken_off() -> None:
    """A filter that was not read to its end does not count either."""
    filter_ = Bloom(100)
    disk = stored(filter_.encode(1))
    assert StoredBloom.verify(disk, PATH, 1, iter([None])) is None
    assert StoredBloom.verify(disk, PATH, 1, iter([None, None])) is not None
