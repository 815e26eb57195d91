"""Carries the sealed log files of one broker group into the object store and verifies them there:
the work of one file, on a thread.

`node/replica/maintenance/tiering.py` decides which file is next and what follows from the outcome.
This module compares what lies in the store with what the replica's log says, and never removes
anything, neither here nor there. An object with wrong bytes is written again from the replica's own
file, whose digest a majority sealed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from ledgermq.node.replica.background.pace import rest_s
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, StorageError
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.state.snapshot import read_snapshots
from ledgermq.storage.tiered import index_part, manifests
from ledgermq.storage.tiered.begins import covers, stored_begin
from ledgermq.storage.tiered.index_part import IndexBuilder, IndexPart, WrongEntries
from ledgermq.storage.tiered.manifests import FileManifest, StoredLog
from ledgermq.storage.tiered.ports import ObjectMissing, ObjectStore
from ledgermq.storage.tiered.transfer import WrongObject, upload, verify

log = get_logger()


class Stopped(Exception):
    """The node is stopping, or the group leaves it."""


class OtherHistory(StorageError):
    """The store holds another log, another history of this log, or a gap. Nothing is written: an
    operator must choose another place."""


@dataclass(frozen=True, slots=True)
class Duty:
    """One sealed file: where it lies on this disk, what the store must say about it, and whether
    this replica uploads it if the store lacks it."""

    path: str
    manifest: FileManifest
    uploads: bool


class FileCarrier:
    """The store as one broker group of this node uses it. Methods block and belong to the worker's
    thread, except `stop`."""

    def __init__(
        self, store: ObjectStore, disk: Disk, group: str, log_id: str, bytes_per_s: float
    ) -> None:
        self._store = store
        self._disk = disk
        self._group = group
        self._where = manifests.folder(group, log_id)
        self._bytes_per_s = bytes_per_s
        self._stopped = threading.Event()
        self._piece_s = 0.0

    def stop(self) -> None:
        """End the work under way at its next piece. May be called from any thread."""
        self._stopped.set()

    # -- the log

    def open(
        self, mine: StoredLog, *, uploads: bool, begins_stored: bool = False
    ) -> StoredLog | None:
        """The description of the log in the store. If there is none, the replica that uploads
        writes one, and others get None. It begins with the first file that the store describes, or
        with `mine`. `begins_stored`: what was before `mine` went because a store has it; a place
        that has none of it is not that store, and readers would take it for removed. Raises
        OtherHistory, StoreFailure, WrongObject, Damaged."""
        key = f"{self._where}/{manifests.LOG_FILE}"
        found = self._description(key)
        if found is None:
            if not uploads:
                return None
            begin = self._first_described()
            if begins_stored and begin is None:
                what = (
                    f"{self._store.place}/{self._where} holds nothing from before the log on the"
                    " disks, which was stored somewhere"
                )
                raise OtherHistory(f"{what}: {self._copy_before(mine.begin.pos)}")
            found = (
                replace(mine, begin=begin)
                if begin is not None and begin.pos < mine.begin.pos
                else mine
            )
            self.put_and_compare(key, manifests.encode(found))
        if replace(found, begin=mine.begin, recovery=mine.recovery) != mine:
            what = f"{self._store.place}/{key} describes another log (cluster {found.cluster_id})"
            raise OtherHistory(f"{what}: set tiered.url to a new prefix")
        return replace(found, begin=self.begin(found.begin))

    def begin(self, known: Begin) -> Begin:
        """Where the log begins in the store now; `known`: where it began when this node asked last.
        Raises StoreFailure, Damaged."""
        return stored_begin(self._store, self._where, known)

    def _description(self, key: str) -> StoredLog | None:
        try:
            return manifests.decode_log(self._store.get(key), key)
        except ObjectMissing:
            return None
        except Damaged as damage:
            log.error(
                "the object store holds something wrong", group=self._group, reason=str(damage)
            )
            return None

    def _first_described(self) -> Begin | None:
        """Where the first file begins of which the store has a manifest; None if it has none."""
        keys = self._store.list(self._where)
        bases = [
            base
            for key in keys
            if (base := manifests.base_of_manifest(self._where, key)) is not None
        ]
        if not bases:
            return None
        key = manifests.manifest_key(self._where, min(bases))
        first = manifests.decode_manifest(self._store.get(key), key)
        return Begin(first.first, first.base, first.term, first.chain)

    def require_link(self, begin: Begin, size: int) -> None:
        """Check that the store holds the file before `begin`, where this replica's log begins, and
        that both continue each other: otherwise files would be missing in the store for ever.
        Raises OtherHistory, StoreFailure."""
        key = manifests.manifest_key(self._where, begin.pos - size)
        before = self._manifest(key)
        if before is None or before.behind != begin:
            what = (
                f"{self._store.place}/{key} is missing"
                if before is None
                else f"{self._store.place}/{key} belongs to another history"
            )
            raise OtherHistory(
                f"{what}, and no longer on this disk: files went while tiered was off; set"
                " tiered.url to a new prefix"
            )

    # -- files

    def carry(self, duty: Duty) -> bool:
        """Ensure that the store holds the file, by reading all of it there. False if it is not
        there yet and another replica uploads it. Raises OtherHistory, WrongObject, WrongFile,
        StoreFailure, Stopped, OSError."""
        wanted = duty.manifest
        key = manifests.manifest_key(self._where, wanted.base)
        found = self._manifest(key)
        if found is None and not duty.uploads:
            return False
        if found is not None and found != wanted:
            self._require_written_again(key, found, wanted)
            if not duty.uploads:
                return False
            self._set_aside(key, found)
            found = None
        content = manifests.object_key(self._where, wanted.base, wanted.sha256)
        if found is None:
            self._upload(content, duty)
        try:
            part = self._verify(content, wanted, indexed=found is None)
        except (WrongObject, WrongEntries) as wrong:
            metrics.TIERED_WRONG.labels(self._group).inc()
            log.error(
                "the object store holds something wrong",
                group=self._group,
                reason=str(wrong),
                remedy="it is uploaded again",
            )
            self._upload(content, duty)
            part = self._verify(content, wanted, indexed=found is None)
        if part is not None:
            # Not read back: readers verify it, and make it again if it is wrong.
            index_part.put(self._store, self._where, wanted, part)
            self.put_and_compare(key, manifests.encode(wanted))
        return True

    def _require_written_again(self, key: str, found: FileManifest, wanted: FileManifest) -> None:
        """Raise OtherHistory unless the found file is the last one in the store, begins like the
        wanted one, and ends no later. That is so after a lost cluster was restored: its log went on
        in the room behind the last entry of the last file that was stored."""
        begins = found.follows(Begin(wanted.first, wanted.base, wanted.term, wanted.chain))
        follower = manifests.manifest_key(self._where, wanted.next_base)
        if (
            found.log_id != wanted.log_id
            or not begins
            or wanted.last < found.last
            or self._manifest(follower) is not None
        ):
            what = (
                f"{self._store.place}/{key} belongs to another history of this log, as after the"
                " restore of an older backup"
            )
            raise OtherHistory(
                f"{what}: set tiered.url to a new prefix, and if older files are no longer on the"
                f" disks, {self._copy_before(wanted.base)}"
            )

    def _copy_before(self, pos: int) -> str:
        """What an operator does to have the stored beginning of the log in another place."""
        return (
            f"copy the objects of {self._where} from before position {pos} there from the place"
            " that has them (docs/tiered-storage.md)"
        )

    def _set_aside(self, key: str, former: FileManifest) -> None:
        """Keep the description of a file that is about to be replaced under another key. Its object
        has a key of its own and stays."""
        aside = f"{key.removesuffix('.json')}-{former.sha256}.former"
        self.put_and_compare(aside, manifests.encode(former))
        log.warning(
            "last file in the object store replaced",
            group=self._group,
            base=former.base,
            entries=former.last,
            kept=aside,
        )

    def _manifest(self, key: str) -> FileManifest | None:
        """None if there is none, or a damaged one, which counts as none."""
        try:
            return manifests.decode_manifest(self._store.get(key), key)
        except ObjectMissing:
            return None
        except Damaged as damage:
            metrics.TIERED_WRONG.labels(self._group).inc()
            log.error(
                "the object store holds something wrong", group=self._group, reason=str(damage)
            )
            return None

    def _upload(self, key: str, duty: Duty) -> None:
        self._piece_s = time.monotonic()
        upload(
            self._store,
            key,
            self._disk,
            duty.path,
            duty.manifest.sha256,
            step=lambda length: self._step("written", length),
        )

    def _verify(self, key: str, wanted: FileManifest, *, indexed: bool) -> IndexPart | None:
        """Read the object back; with `indexed`, make its index part on the way."""
        self._piece_s = time.monotonic()
        builder = IndexBuilder(wanted) if indexed else None
        see = (lambda piece: None) if builder is None else builder.add
        verify(
            self._store,
            key,
            wanted.size,
            wanted.sha256,
            step=lambda length: self._step("read", length),
            see=see,
        )
        return None if builder is None else builder.finish()

    def _step(self, direction: str, length: int) -> None:
        metrics.TIERED_BYTES.labels(self._group, direction).inc(length)
        pause_s = rest_s(length, time.monotonic() - self._piece_s, 0.0, self._bytes_per_s, 0.0)
        if self._stopped.wait(pause_s):
            raise Stopped
        self._piece_s = time.monotonic()

    def put_and_compare(self, key: str, data: bytes) -> None:
        """Write a small object and read it back. Raises WrongObject, StoreFailure."""
        self._store.put(key, data)
        try:
            found = self._store.get(key)
        except ObjectMissing as missing:
            raise WrongObject(f"{missing}, although it was just written") from missing
        if found != data:
            raise WrongObject(f"{self._store.place}/{key} is not what was just written")

    # -- the snapshot

    def keep_snapshot(self, state_directory: str, begin_index: int) -> bool:
        """Ensure that the store holds a snapshot of a log that does not begin with entry 0. False
        if this replica has no fitting one yet. Raises WrongObject, StoreFailure, OSError."""
        key = f"{self._where}/{manifests.SNAPSHOT_FILE}"
        try:
            sealed_json.decode(self._store.get(key), key)
            return True
        except ObjectMissing:
            pass
        except Damaged as damage:
            log.error(
                "the object store holds something wrong",
                group=self._group,
                reason=str(damage),
                remedy="it is uploaded again",
            )
        for _, value in read_snapshots(self._disk, state_directory):
            if covers(value, begin_index):
                self.put_and_compare(key, sealed_json.encode(value))
                return True
        return False
