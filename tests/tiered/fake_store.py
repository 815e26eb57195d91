"""An object store in memory that fails on request: away, full, denied, slow, forgetful, with old
versions or with wrong bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ledgermq.storage.tiered.ports import AccessDenied, ObjectMissing, StoreFailure


class FakeStore:
    """Objects by key. `versions` keeps every version ever written; `requests` counts operations by
    name."""

    def __init__(self) -> None:
        self.place = "s3://fake/log"
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, list[bytes]] = {}
        self.requests: dict[str, int] = {}
        self.failure: StoreFailure | None = None
        """Raised by every operation while it is set."""
        self.before: Callable[[str, str], None] = lambda operation, key: None
        """Called before every operation; may raise."""
        self.written: Callable[[str, bytes], bytes | None] = lambda key, data: data
        """What a put really stores; None: nothing, although the put succeeds."""

    def put(self, key: str, data: bytes) -> None:
        self._asked("put", key)
        self._store(key, bytes(data))

    def put_parts(self, key: str, chunks: Iterator[bytes]) -> None:
        self._asked("put_parts", key)
        data = b"".join(chunks)
        self._asked("complete", key)
        self._store(key, data)

    def read(self, key: str, offset: int, length: int) -> bytes:
        data = self._content("read", key)[offset : offset + length]
        if len(data) != length:
            raise ObjectMissing(f"{key} is short")
        return data

    def get(self, key: str) -> bytes:
        return self._content("get", key)

    def list(self, prefix: str) -> list[str]:
        self._asked("list", prefix)
        return sorted(key for key in self.objects if not prefix or key.startswith(f"{prefix}/"))

    def delete(self, key: str) -> None:
        self._asked("delete", key)
        self.objects.pop(key, None)

    def away(self) -> None:
        self.failure = StoreFailure("the store does not answer")

    def deny(self) -> None:
        self.failure = AccessDenied("the credentials have ended")

    def back(self) -> None:
        self.failure = None

    def keys(self, ending: str) -> list[str]:
        return [key for key in sorted(self.objects) if key.endswith(ending)]

    def _store(self, key: str, data: bytes) -> None:
        stored = self.written(key, data)
        if stored is not None:
            self.versions.setdefault(key, []).append(stored)
            self.objects[key] = stored

    def _content(self, operation: str, key: str) -> bytes:
        self._asked(operation, key)
        if key not in self.objects:
            raise ObjectMissing(f"{key} does not exist")
        return self.objects[key]

    def _asked(self, operation: str, key: str) -> None:
        self.requests[operation] = self.requests.get(operation, 0) + 1
        self.before(operation, key)
        if self.failure is not None:
            raise self.failure
