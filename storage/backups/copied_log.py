"""A copied log, as backups and restored directories have it: verified entry by entry, with its
index, and with the small files that say where it ends.

The caller has put the log files in place. Nothing here decides what belongs to the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledgermq.proto.types import HardState, Identity, SyncedMark
from ledgermq.storage.backups.backup_manifest import BackupPoint, BadCopy, Step
from ledgermq.storage.backups.log_proof import Proved, prove
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.mapped_files import MappedFiles, file_name
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.begin import Begin, whole, write_begin
from ledgermq.storage.log.index_files import UNIT_BYTES, IndexFiles, make_units
from ledgermq.storage.log.log_scan import Piece, Point
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from ledgermq.storage.state import checkpoints
from ledgermq.storage.state.hard_state import HardStateFile
from ledgermq.storage.state.snapshot import SNAPSHOT_FILE


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """The copy in the group directory `root`, of entries `begin.index` … `index`, none of which
    ends behind `end_pos`. `snapshot`: what the log was before its begin, if it was trimmed."""

    root: str
    identity: Identity
    begin: Begin
    index: int
    end_pos: int
    snapshot: dict[str, Any] | None

    @property
    def directory(self) -> str:
        return f"{self.root}/dledger-{self.identity.replica}"

    @property
    def snapshot_index(self) -> int:
        return -1 if self.snapshot is None else int(self.snapshot["applied_index"])


def prove_and_index(
    disk: Disk, log: CopiedLog, step: Step, remedy: str, *, allocate: bool
) -> Proved:
    """Verify the entries and write their index units. Checks that the snapshot belongs to this
    history. Raises BadCopy, OSError."""
    size = log.identity.index_file_bytes
    first = log.begin.index * UNIT_BYTES // size * size
    for base in range(first, log.index * UNIT_BYTES + 1, size):
        disk.create(f"{log.directory}/index/{file_name(base)}", size, allocate=False).close()
    data = MappedFiles(
        disk, f"{log.directory}/data", log.identity.data_file_bytes, allocate=allocate
    )
    units = IndexFiles(MappedFiles(disk, f"{log.directory}/index", size, allocate=False))
    data.origin, units.files.origin = log.begin.pos, first
    data.load()
    units.files.load()

    def put(piece: Piece) -> None:
        described = make_units(piece.first_index, 0, piece.starts + piece.pos, piece.sizes)
        described["term"] = piece.terms
        units.put(piece.first_index, described)
        data.close_idle(lambda file: False)

    watch = log.begin.index - 1 if log.snapshot is None else log.snapshot_index
    try:
        begin = Point(
            pos=log.begin.pos, index=log.begin.index, term=log.begin.term, chain=log.begin.chain
        )
        proved = prove(
            data, begin, log.index, log.end_pos, watch=watch, each=put, step=step, remedy=remedy
        )
        units.sync()
    finally:
        data.close()
        units.files.close()
    if log.snapshot is not None and proved.watched != (
        log.snapshot["applied_term"],
        log.snapshot["chain_crc"],
    ):
        raise BadCopy(
            f"the snapshot for {log.root} does not agree with the log at entry {watch}", remedy
        )
    return proved


def write_small_files(
    disk: Disk, log: CopiedLog, proved: Proved, committed_index: int
) -> BackupPoint:
    """Write mark, hard state, checkpoint, begin and snapshot of a log that ends where `proved`
    does; all but the names are durable."""
    point, log_id = proved.point, log.identity.log_id
    mark = SyncedMark(point.term, log.index, point.pos, point.chain)
    SyncedMarkFile.create(disk, f"{log.directory}/syncedmark", log_id, mark).close()
    term = HardStateFile.create(disk, f"{log.directory}/hardstate")
    term.save(HardState(point.term))
    term.close()
    checkpoints.write_log_checkpoint(
        disk, log.directory, checkpoints.LogCheckpoint(log.index, committed_index)
    )
    if log.begin != whole(log_id):
        write_begin(disk, log.directory, log_id, log.begin)
    if log.snapshot is not None:
        sealed_json.write(disk, f"{log.root}/state/{SNAPSHOT_FILE}", log.snapshot)
    return BackupPoint(
        log_id=log_id,
        replica=log.identity.replica,
        begin_index=log.begin.index,
        index=log.index,
        term=point.term,
        end_pos=point.pos,
        chain_crc=point.chain,
        store_ms=proved.store_ms,
        snapshot_index=log.snapshot_index,
    )
