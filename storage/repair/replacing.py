"""Carrying out a planned repair on the directory of a stopped node (format §16, §18): files are
created beside the old ones, verified, and then renamed.

The planner (`audit/repairs`) decided what is right and what proves it; here every file is read back
and compared with the planned digest before it replaces another. The invariant: at every moment the
directory is either unchanged, or less damaged than before, and then its fence allows only a repair
to open it. After a crash, carrying out the same plan again finishes it; a node that is started
instead finds the fence and repairs its log from its peers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from ledgermq.proto.records.repair_plan import DirectoryRepair, FileRepair, MarkRepair
from ledgermq.proto.types import SyncedMark
from ledgermq.storage.files.errors import Damaged, NoSpace, Unusable, needing_room
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.files.mapped_files import HEADROOM_FRACTION, file_name, parse_name
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.log.begin import Begin, write_begin
from ledgermq.storage.log.synced_mark import SyncedMarkFile, erase_mark_fill
from ledgermq.storage.repair.mending import MARKER, UNDER_REPAIR
from ledgermq.storage.repair.repair_log import note
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.hard_state import erase_hard_state_fill, raise_term

FENCE = b"replacing\n"
"""The marker's content while files are exchanged: unlike in a repair in place, every file with a
final name is durable."""
KEPT_DIRECTORY = "replaced"
"""In `state/`: unchanged copies of files of another history. No code reads them."""
COPY_BYTES = 1 << 20
OUTDATED = ("state/digests", "state/scrub")
"""In `state/`: findings about the replaced files."""

Say = Callable[[str], None]


class SourceChanged(Damaged):
    """A copy differs from the plan: a source changed, or the disk does not return what was written.
    Nothing was exchanged."""


def carry_out(
    disk: Disk,
    plan: DirectoryRepair,
    repair: str,
    now_ms: Callable[[], int],
    say: Say = lambda text: None,
) -> None:
    """Replace, drop and record. On return the node may open the directory; derived files are still
    to be rebuilt. `repair` names the repair in the log; `say` is called with every step. Raises
    Unusable, Damaged, NoSpace, OSError; it may then be repeated."""
    root, log = plan.root, f"{plan.root}/dledger-{plan.replica}"
    own_identity = identities.read_identity(disk, root)
    if own_identity is None or (own_identity.log_id, own_identity.incarnation) != (
        plan.log_id,
        plan.incarnation,
    ):
        raise Unusable(f"{root} is not the replica that was audited: audit again")
    fenced = disk.exists(f"{log}/{MARKER}")
    if fenced and disk.read_file(f"{log}/{MARKER}") != FENCE:
        raise Damaged(
            f"a repair of {log} by its own node was interrupted: start the node, which continues it"
        )
    needed = own_identity.data_file_bytes + own_identity.data_file_bytes // HEADROOM_FRACTION
    if plan.files and disk.free_bytes(root) < needed:
        raise NoSpace(
            f"{root} has no room for a log file of {own_identity.data_file_bytes} bytes: free disk"
            " space,"
            " then repair again"
        )
    steps = _Steps(disk, plan, repair, now_ms, say)
    if not fenced:
        steps.note("begun", derived=list(plan.derived))
        disk.replace_file(f"{log}/{MARKER}", FENCE)
    for file in plan.files:
        steps.replace(file, own_identity.data_file_bytes)
    if plan.end is not None:
        steps.end_with(plan.end, own_identity.data_file_bytes)
    if plan.mark_slots:
        erase_mark_fill(disk, f"{log}/syncedmark")
        steps.write_mark(None)
    if plan.hard_state_fill:
        erase_hard_state_fill(disk, f"{log}/hardstate")
        steps.note("hardstate")
    if plan.begin is not None:
        begin = plan.begin
        write_begin(
            disk, log, own_identity.log_id, Begin(begin.index, begin.pos, begin.term, begin.chain)
        )
        steps.note("begin", **asdict(begin))
    steps.drop_derived()
    if plan.snapshot is not None:
        disk.replace_file(f"{root}/state/snapshot", disk.read_file(plan.snapshot))
        steps.note("snapshot", source=plan.snapshot)
    disk.unlink(f"{log}/{MARKER}")
    disk.sync_dir(log)
    steps.note("exchanged")


class _Steps:
    """The single steps; each may be repeated."""

    def __init__(
        self, disk: Disk, plan: DirectoryRepair, repair: str, now_ms: Callable[[], int], say: Say
    ) -> None:
        self._disk, self._plan, self._repair, self._now_ms, self._say = (
            disk,
            plan,
            repair,
            now_ms,
            say,
        )
        self._root = plan.root
        self._log = f"{plan.root}/dledger-{plan.replica}"

    def note(self, step: str, **facts: object) -> None:
        note(self._disk, self._root, self._repair, self._now_ms(), step, **facts)
        self._say(
            f"{self._plan.replica} {self._plan.group}: {step}"
            + "".join(f" {key}={value}" for key, value in facts.items())
        )

    def replace(self, file: FileRepair, size: int) -> None:
        """Replace one log file. A file that has its final name is complete."""
        disk, directory = self._disk, f"{self._log}/data"
        path, unfinished = f"{directory}/{file_name(file.base)}", f"{directory}/{UNDER_REPAIR}"
        exists = disk.exists(path)
        if exists and disk.file_size(path) == size and _has(disk, path, file.sha256):
            # An earlier attempt got this far.
            return
        if file.keep and exists:
            self._keep(path)
        if disk.exists(unfinished):
            disk.unlink(unfinished)
        with needing_room(unfinished):
            made = disk.create(unfinished, size, allocate=True)
        try:
            for piece in file.pieces:
                with needing_room(unfinished):
                    _copy(disk, made, piece.start, piece.end, piece.source, data=piece.data)
            made.sync()
        finally:
            made.close()
        checksum = _digest(disk, unfinished)
        if checksum != file.sha256:
            disk.unlink(unfinished)
            raise SourceChanged(
                f"{path} was copied and reads as {checksum[:16]}…, not as {file.sha256[:16]}…:"
                " audit"
                " again, then repair again"
            )
        sources = sorted(
            {
                piece.source
                for piece in file.pieces
                if piece.source is not None and piece.source != path
            }
        )
        disk.rename(unfinished, path)
        disk.sync_dir(directory)
        self.note(
            "file", file=path, sha256=file.sha256, sources=sources, why=file.why, proof=file.proof
        )

    def _keep(self, path: str) -> None:
        """Keep a copy of the file of another history: it may be the only evidence of it."""
        disk, directory = self._disk, f"{self._root}/state/{KEPT_DIRECTORY}"
        kept = f"{directory}/{path.rpartition('/')[2]}.{self._repair}"
        if disk.exists(kept):
            return
        if not disk.exists(directory):
            disk.mkdirs(directory)
            disk.sync_dir(f"{self._root}/state")
        unfinished, size = f"{kept}.alloc", disk.file_size(path)
        if disk.exists(unfinished):
            disk.unlink(unfinished)
        with needing_room(unfinished):
            made = disk.create(unfinished, size, allocate=False)
        try:
            with needing_room(unfinished):
                _copy(disk, made, start=0, end=size, source=path, data=b"")
            made.sync()
        finally:
            made.close()
        disk.rename(unfinished, kept)
        disk.sync_dir(directory)
        self.note("kept", file=kept)

    def end_with(self, end: MarkRepair, size: int) -> None:
        """Make the log end with this entry: no file behind it, the term not below the entry's, the
        mark at the entry."""
        disk, directory = self._disk, f"{self._log}/data"
        gone = [
            name
            for name in disk.listdir(directory)
            if (base := parse_name(name)) is not None and base >= end.end_pos
        ]
        for name in gone:
            self._keep(f"{directory}/{name}")
            disk.unlink(f"{directory}/{name}")
        if gone:
            disk.sync_dir(directory)
        raise_term(disk, f"{self._log}/hardstate", end.term)
        self.write_mark(SyncedMark(end.term, end.index, end.end_pos, end.chain))

    def write_mark(self, value: SyncedMark | None) -> None:
        """Write `value`, or the current value, to both slots."""
        file = SyncedMarkFile.open(self._disk, f"{self._log}/syncedmark", self._plan.log_id)
        try:
            file.lower(file.value if value is None else value)
            written = file.value
        finally:
            file.close()
        self.note(
            "mark",
            term=written.term,
            index=written.index,
            end_pos=written.end_pos,
            chain=written.chain_crc,
        )

    def drop_derived(self) -> None:
        """Remove derived files that are wrong, and everything computed from them."""
        wanted = [*self._plan.derived, *(OUTDATED if self._plan.files else ())]
        # A plan may name a file both by itself and by its directory.
        dropped = list(
            dict.fromkeys(
                path for named in wanted for path in _files_in(self._disk, self._root, named)
            )
        )
        for path in dropped:
            self._disk.unlink(path)
        for directory in sorted({path.rpartition("/")[0] for path in dropped}):
            self._disk.sync_dir(directory)
        if dropped:
            self.note("dropped", files=dropped)


def _copy(
    disk: Disk, made: DiskFile, start: int, end: int, source: str | None, data: bytes
) -> None:
    if source is None:
        # The rest is zero already.
        made.pwrite(start, data)
        return
    file = disk.open(source)
    try:
        for offset in range(start, end, COPY_BYTES):
            made.pwrite(offset, file.pread(offset, min(COPY_BYTES, end - offset)))
    finally:
        file.close()


def _has(disk: Disk, path: str, sha256: str) -> bool:
    """Whether a file has this digest. An unreadable file does not, and is replaced."""
    try:
        return _digest(disk, path) == sha256
    except OSError:
        return False


def _digest(disk: Disk, path: str) -> str:
    return file_digest(disk, path, lambda length: None)


def _files_in(disk: Disk, root: str, named: str) -> list[str]:
    """The file of this name, if it exists; for a name that ends in a slash, all files named by
    offsets in that directory and below."""
    path = f"{root}/{named}".rstrip("/")
    if not named.endswith("/"):
        return [path] if disk.exists(path) else []
    paths: list[str] = []
    for name in disk.listdir(path):
        paths += (
            [f"{path}/{name}"]
            if parse_name(name) is not None
            else _files_in(disk, path, f"{name}/")
        )
    return paths
