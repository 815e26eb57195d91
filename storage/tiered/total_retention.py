"""Total retention: removes the oldest log files from the object store, in an order that leaves a
store from which the log can be restored after every single request.

Invariant: at any moment, the files from the begin in the store on are all there, with their
manifests, and if the begin is not entry 0, a snapshot is there that covers everything before it and
nothing behind the last file. So: first the snapshot, then the begin, then what is before it. Nobody
looks for anything before the begin, so that the order of those deletions does not matter, and what
an interruption leaves goes with the next removal. Repetitions, and two leaders who overlap, change
nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.mapped_files import parse_name
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import begins
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import ObjectStore


@dataclass(frozen=True, slots=True)
class TotalLimits:
    """What the store keeps of a log; 0: no such limit."""

    max_age_ms: int = 0
    max_bytes: int = 0


def due(
    files: Sequence[FileManifest],
    limits: TotalLimits,
    now_ms: int,
    keep_from: int,
    epochs: TimeEpochs = NO_EPOCHS,
) -> Begin | None:
    """Where the log shall begin in the store; None if nothing is due. `files`: all that are stored,
    oldest first. Nothing at `keep_from` or behind it goes, and never the last file. The age of a
    file is that of its last entry, by the time at which that counts as stored."""
    size = sum(file.size for file in files)
    last_due = None
    for file in files[:-1]:
        old = limits.max_age_ms and now_ms - file.counted_ms(epochs) > limits.max_age_ms
        if file.next_base > keep_from or not (
            old or (limits.max_bytes and size > limits.max_bytes)
        ):
            break
        size -= file.size
        last_due = file.behind
    return last_due


class TotalRetention:
    """The store of one log, for the leader of its broker group. Methods block, and can be repeated
    after any error."""

    def __init__(
        self,
        store: ObjectStore,
        where: str,
        snapshots: Callable[[], Sequence[dict[str, Any]]],
        put: Callable[[str, bytes], None],
    ):
        """`snapshots`: those of this replica, the newest first. `put`: writes an object and reads
        it back."""
        self._store = store
        self._where = where
        self._snapshots = snapshots
        self._put = put
        self._cleaned = 0
        """Before this position everything was removed."""

    def remove(self, begin: Begin, last: int) -> str | None:
        """Remove everything before `begin`. `last`: the last stored entry. Returns what it waits
        for; None if it is done. Raises StoreFailure, WrongObject, Damaged, OSError."""
        waits_for = self._cover(begin.index, last) if begin.index > 0 else None
        if waits_for is not None:
            return waits_for
        self._put(begins.begin_key(self._where, begin.pos), begins.encode(begin))
        self.clean(begin)
        return None

    def clean(self, begin: Begin) -> None:
        """Remove what is left of the files before the begin, and snapshots that do not cover it;
        asks only if that was not done yet. Raises StoreFailure."""
        if begin.pos <= self._cleaned:
            return
        for at in begins.stored_snapshots(self._store, self._where):
            if at < begin.index - 1:
                self._store.delete(begins.snapshot_key(self._where, at))
        for key in self._store.list(self._where):
            base = _base(key, self._where)
            if base is not None and base < begin.pos:
                self._store.delete(key)
        self._cleaned = begin.pos

    def _cover(self, index: int, last: int) -> str | None:
        """Ensure that the store has a snapshot of what is before entry `index`, and of nothing
        behind entry `last`. One that reaches further waits there until the stored files reach it,
        because the replica soon replaces its own."""
        snapshot = begins.covering_snapshot(self._store, self._where, index)
        if snapshot is None:
            own = [value for value in self._snapshots() if begins.covers(value, index)]
            if not own:
                return "a snapshot of this node"
            snapshot = min(own, key=_reach)
            self._put(
                begins.snapshot_key(self._where, _reach(snapshot)), sealed_json.encode(snapshot)
            )
        at = _reach(snapshot)
        return None if at <= last else f"the file with entry {at}, to which the snapshot reaches"


def _reach(snapshot: dict[str, Any]) -> int:
    return int(snapshot["applied_index"])


def _base(key: str, where: str) -> int | None:
    """The position to which an object belongs: a log file, a manifest, an index part, or a begin;
    None for other objects."""
    name = key.removeprefix(f"{where}/").removeprefix(f"{begins.FOLDER}/")
    return parse_name(name[:20])
