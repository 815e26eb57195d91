"""The conformance suite of the object store port: each implementation subclasses `StoreConformance`
and provides an empty store.

The suite asserts only behaviour that the port promises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ledgermq.storage.tiered.ports import PART_BYTES, ObjectMissing, ObjectStore


class Broken(Exception):
    pass


class StoreConformance:
    """Subclasses define the fixture `store`: an empty place."""

    def test_a_small_object_is_read_as_it_was_written(self, store: ObjectStore) -> None:
        """Every byte value, also of no bytes at all, and a second put replaces the first."""
        for data in (bytes(range(256)), b"", b"again"):
            store.put("g1/log/small", data)
            assert store.get("g1/log/small") == data

    @pytest.mark.parametrize("size", [1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 12345])
    def test_a_large_object_is_read_in_ranges(self, store: ObjectStore, size: int) -> None:
        """Chunks of any size become one object, whatever part they end in."""
        data = os.urandom(size)
        store.put_parts(
            "g1/log/large", iter(data[at : at + 1_000_003] for at in range(0, size, 1_000_003))
        )
        at = min(size - 1, PART_BYTES - 7)
        assert store.read("g1/log/large", at, min(14, size - at)) == data[at : at + 14]
        assert store.read("g1/log/large", size - 1, 1) == data[-1:]
        assert store.read("g1/log/large", 0, size) == data

    def test_absent_object_or_range_is_missing(self, store: ObjectStore) -> None:
        """Missing keys, and ranges that reach behind the end or begin there."""
        store.put("g1/x", b"0123456789")
        for ask in (
            lambda: store.get("g1/y"),
            lambda: store.read("g1/y", 0, 1),
            lambda: store.read("g1/x", 5, 6),
            lambda: store.read("g1/x", 10, 1),
            lambda: store.read("g1/x", 1000, 1),
        ):
            with pytest.raises(ObjectMissing):
                ask()
        assert store.read("g1/x", 5, 5) == b"56789"

    def test_broken_upload_keeps_the_former_object(self, store: ObjectStore) -> None:
        """The exception of the iterator arrives as it is, and the key has no object, or the one it
        had."""

        def chunks() -> Iterator[bytes]:
            yield bytes(PART_BYTES + 5)
            raise Broken

        with pytest.raises(Broken):
            store.put_parts("g1/broken", chunks())
        with pytest.raises(ObjectMissing):
            store.get("g1/broken")
        store.put("g1/broken", b"whole")
        with pytest.raises(Broken):
            store.put_parts("g1/broken", chunks())
        assert store.get("g1/broken") == b"whole"

    def test_listing_has_the_sorted_keys_of_the_folder(self, store: ObjectStore) -> None:
        """All keys, sorted, of more than one page, and none of a neighbour whose name begins
        alike."""
        names = [f"g1/{number:04d}" for number in range(1, 61)]
        for name in [*reversed(names), "g10/x", "g2/y/z"]:
            store.put(name, b"x")
        assert store.list("g1") == names
        assert store.list("g2") == ["g2/y/z"]
        assert store.list("nothing") == []
        assert store.list("") == sorted([*names, "g10/x", "g2/y/z"])

    def test_deleted_object_is_missing(self, store: ObjectStore) -> None:
        """Also the second time; other objects stay."""
        store.put("g1/x", b"1")
        store.put("g1/y", b"2")
        for _ in range(2):
            store.delete("g1/x")
        with pytest.raises(ObjectMissing):
            store.get("g1/x")
        assert store.list("g1") == ["g1/y"] and store.get("g1/y") == b"2"
