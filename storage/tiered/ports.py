"""The object store port: the only way LedgerMQ reaches an object store.

The protocol and its contract live here; `s3.py` implements it over the S3 API. One conformance
suite (`tests/tiered/store_conformance.py`) runs on that and on the fake of the tests. This module
does not know what the bytes mean.

Contract: a `put` that returned has replaced the whole object; one that failed may or may not have,
and never leaves a part of it under its key. A reader may see an older version of an object, or
none, for a while after a put: callers verify what they read. Keys are relative to the place that
the store was opened at. Methods block, may be called from any thread, and raise `StoreFailure`
only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ledgermq.storage.files.errors import StorageError

PART_BYTES = 8 << 20
"""Size of the parts in which a large object is written and read. S3 allows 10,000 parts: an object
may have 80 GB."""


class StoreFailure(StorageError):
    """The store did not do what was asked: it is unreachable, slow, full, or answered with an
    error. Another attempt may succeed."""


class Answered(StoreFailure):
    """The store answered, and does not give this object: that says nothing about others."""


class ObjectMissing(Answered):
    """There is no object of this key, or it ends before the requested range."""


class AccessDenied(Answered):
    """The store refused the credentials, or they do not allow the operation."""


class ObjectStore(Protocol):
    """A place in an object store."""

    place: str
    """For messages and notes: where the objects lie, without credentials."""

    def put(self, key: str, data: bytes) -> None:
        """Write a small object."""
        ...

    def put_parts(self, key: str, chunks: Iterator[bytes]) -> None:
        """Write a large object from chunks of any size. An exception of the iterator ends the
        upload and is raised as it is."""
        ...

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes (at least 1) at `offset`. Raises ObjectMissing if the object has
        fewer."""
        ...

    def get(self, key: str) -> bytes:
        """The whole content of a small object. Raises ObjectMissing."""
        ...

    def list(self, prefix: str) -> list[str]:
        """The keys of all objects below the folder `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object. It is no error if there is none."""
        ...


class Events(Protocol):
    """What a reader tells its owner, from any thread."""

    def wrong(self, what: str) -> None:
        """The store lacks an object, or holds other bytes than it must."""
        ...

    def fetched(self, size: int) -> None:
        """Bytes came from the store."""
        ...

    def not_stored(self, error: StoreFailure) -> None:
        """An index part that the store lacks could not be written there. The reader has made its
        own."""
        ...
