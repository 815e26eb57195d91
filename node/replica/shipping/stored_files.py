"""Sealed log files for an installation, from the object store of tiered storage (format §21), one
after the other.

What is fetched is named by the seals in a peer's snapshot, which a majority decided: the key of a
file contains its digest, so no manifest is asked, and whatever the store answers is that file or
not used. Anything that fails ends the use of the store for this installation, because the peers
have everything. A read blocks for at most the time limit of one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.proto.records.control import SealRecord
from ledgermq.proto.types import Identity
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.file_digest import FileDigest
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.installing import Staging
from ledgermq.storage.tiered.manifests import folder, object_key
from ledgermq.storage.tiered.ports import PART_BYTES, ObjectMissing, ObjectStore


class StoredFiles:
    """The sealed files that may be fetched. `problem`: why the store is not used any more."""

    def __init__(self, store: ObjectStore, identity: Identity, snapshot: Mapping[str, Any]) -> None:
        """`snapshot`: a peer's, whose checksum was verified. One without readable seals offers no
        file."""
        self.problem = ""
        self.received_bytes = 0
        self._store = store
        self._size = identity.data_file_bytes
        self._folder = folder(identity.group, identity.log_id)
        self._seals: dict[int, SealRecord] = {}
        self._file: SealRecord | None = None
        """The file that is being fetched."""
        self._offset = 0
        self._digest = FileDigest()
        try:
            self._seals = {
                fields["base"]: SealRecord.read(fields) for fields in snapshot["retained"]["seals"]
            }
        except (KeyError, TypeError, ValueError):
            self.problem = "the snapshot of the source names no sealed files"

    def file_at(self, point: Point) -> SealRecord | None:
        """The sealed file that begins with the next entry behind `point`; None if there is none, or
        if the store is not used any more."""
        base = -(-point.pos // self._size) * self._size
        seal = self._seals.get(base) if not self.problem else None
        if seal is None:
            return None
        # The entry before it must be the last one of its file: then nothing lies between.
        before = self._seals.get(base - self._size)
        return (
            seal
            if point.pos == base or (before is not None and before.end_pos == point.pos)
            else None
        )

    def peers_until(self, point: Point, end_pos: int) -> int:
        """The position up to which entries have to come from peers, if they begin in the middle of
        a file and the next one is sealed."""
        base = point.pos - point.pos % self._size
        here, following = self._seals.get(base), self._seals.get(base + self._size)
        ends = self.problem or here is None or following is None or here.end_pos <= point.pos
        return end_pos if ends or here is None else min(end_pos, here.end_pos)

    def fetch(self, file: SealRecord, staging: Staging) -> bool:
        """Fetch the next part of a file. Returns whether the whole file is there with its sealed
        digest. Raises OSError, NoSpace."""
        if self._file is not file:
            self._file, self._offset, self._digest = file, 0, FileDigest()
        length = min(PART_BYTES, self._size - self._offset)
        try:
            data = self._store.read(
                object_key(self._folder, file.base, file.sha256), self._offset, length
            )
        except ObjectMissing as missing:
            return self.leave(f"the object store does not hold the file yet ({missing})")
        except StorageError as failure:
            return self.leave(str(failure))
        staging.receive(file.base, self._offset, data)
        self._digest.add(data)
        self._offset += length
        self.received_bytes += length
        if self._offset < self._size:
            return False
        if self._digest.hexdigest() != file.sha256:
            return self.leave(
                f"{self._store.place} holds another file at {file.base} than the one that a"
                " majority sealed"
            )
        return True

    def leave(self, problem: str) -> bool:
        """Use the store no more."""
        self.problem = problem
        return False
