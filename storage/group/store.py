"""One broker group's directory (format §1): its files, its owner, and whether the last process
stopped cleanly.

The entry point of this package. Combines identity, hard state, entry log and consume queues;
decides nothing about their content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ledgermq.proto.types import Identity
from ledgermq.storage.files.errors import (
    DerivedLost,
    LogDamaged,
    NoSpace,
    PromisesLost,
    StorageError,
    Unusable,
    explain,
)
from ledgermq.storage.files.mapped_files import HEADROOM_FRACTION, UNFINISHED, Submit, run_now
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import LogWriter
from ledgermq.storage.log.phases import Phases
from ledgermq.storage.queues.queue_buffer import BufferedQueues
from ledgermq.storage.repair.installing import REBUILDING_FILE, carry_out
from ledgermq.storage.repair.mending import MARKER
from ledgermq.storage.state import checkpoints, identity, snapshot
from ledgermq.storage.state.hard_state import HardStateFile
from ledgermq.storage.state.recovered import as_recovered

START_BYTES = 1 << 20
"""A new replica needs this much free space besides the first log file."""


class GroupStore:
    """An opened group directory. Created by `open`; `close` is a clean stop, `abandon` any
    other."""

    hard_state_type = HardStateFile

    def __init__(
        self,
        disk: Disk,
        root: str,
        found: Identity,
        hard_state: HardStateFile,
        log: EntryLog,
        *,
        was_clean: bool,
    ) -> None:
        self.disk = disk
        self.root = root
        self.identity = found
        self.hard_state = hard_state
        self.log = log
        self.queues = BufferedQueues(disk, f"{root}/consumequeue", found.consume_queue_file_bytes)
        self.was_clean = was_clean
        self._generations: dict[str, int] | None = None
        """File name → applied index of the valid snapshots; None until they were read."""

    @classmethod
    def create(cls, disk: Disk, root: str, new: Identity) -> None:
        """Create the directory of a new replica; durable on return. The identity is written last: a
        directory without one was never used and is created again. Raises Unusable if other files
        are in the way, NoSpace."""
        parent = root.rpartition("/")[0]
        log_directory = f"{root}/dledger-{new.replica}"
        try:
            if identity.read_identity(disk, root) is not None:
                raise Unusable(
                    f"{root} already holds a replica: a new one needs an empty directory"
                )
            _require_unused(disk, root, new.replica)
            needed = new.data_file_bytes + new.data_file_bytes // HEADROOM_FRACTION + START_BYTES
            if disk.exists(parent) and disk.free_bytes(parent) < needed:
                raise NoSpace(
                    f"{parent} has no room for a log file of {new.data_file_bytes} bytes: free disk"
                    " space, then start again"
                )
            for directory in (log_directory, f"{root}/state", f"{root}/consumequeue"):
                disk.mkdirs(directory)
            for name in ("hardstate", "syncedmark"):
                if disk.exists(f"{log_directory}/{name}"):
                    disk.unlink(f"{log_directory}/{name}")
            EntryLog.create(disk, log_directory, new)
            HardStateFile.create(disk, f"{log_directory}/hardstate").close()
            for directory in (log_directory, root, parent, parent.rpartition("/")[0]):
                if directory:
                    disk.sync_dir(directory)
            identity.write_identity(disk, root, new)
        except OSError as error:
            raise explain(root, error) from error

    @classmethod
    def open(
        cls,
        disk: Disk,
        root: str,
        wanted: Identity,
        *,
        process: int = 0,
        submit: Submit = run_now,
        writer: LogWriter | None = None,
        phases: Phases | None = None,
        recovering: bool = False,
        log_type: type[EntryLog] = EntryLog,
    ) -> GroupStore:
        """Open and recover a replica's directory. `wanted` is the expected identity, except for
        file sizes and incarnation, which the directory defines; `writer` appends to its log,
        `log_type` is the class of the log (tests pass faulty ones). Only a recovery itself
        (`new_cluster.py`) may open a directory in which another recovery was interrupted.

        The abort file is written before anything else changes. Raises Unusable (71), LogFenced
        (73), NoSpace (74), Damaged (75), UnknownFormat (76) or Exhausted (79); a log with damage at
        or below its mark is returned fenced (`log.fenced`).
        """
        phases = phases or Phases()
        try:
            with phases.phase("identity"):
                own_identity = identity.read_identity(disk, root)
                if own_identity is None:
                    raise Unusable(
                        f"{root} holds no replica (no {identity.IDENTITY_FILE}): check the data"
                        " directory, or bootstrap this node"
                    )
                identity.compare(
                    root, own_identity, wanted if recovering else as_recovered(disk, root, wanted)
                )
                log_directory = f"{root}/dledger-{own_identity.replica}"
                _remove_unfinished(disk, (root, log_directory))
                _remove_unfinished(disk, (f"{root}/state",), snapshot.SNAPSHOT_FILE)
                for name in ("hardstate", "syncedmark"):
                    if not disk.exists(f"{log_directory}/{name}"):
                        raise _incomplete(f"{log_directory}/{name}")
                installed = carry_out(disk, root, own_identity)
                if disk.exists(f"{log_directory}/{MARKER}"):
                    raise LogDamaged(
                        f"a repair of {log_directory} was interrupted: restore this replica from"
                        " its peers"
                    )
                was_clean = checkpoints.is_clean(disk, root) and not installed
                checkpoints.write_abort(disk, root, process)
                hard_state = cls.hard_state_type.open(disk, f"{log_directory}/hardstate")
            log = log_type.open(
                disk,
                log_directory,
                own_identity,
                clean=was_clean,
                submit=submit,
                writer=writer,
                phases=phases,
            )
        except OSError as error:
            raise explain(root, error) from error
        return cls(disk, root, own_identity, hard_state, log, was_clean=was_clean)

    @property
    def log_directory(self) -> str:
        return f"{self.root}/dledger-{self.identity.replica}"

    @property
    def state_directory(self) -> str:
        return f"{self.root}/state"

    def read_snapshot(self) -> dict[str, Any] | None:
        """The newest snapshot that agrees with the log in index, term and chain CRC; None if there
        is none. Raises LogDamaged if the log was trimmed and there is none: the state of the
        trimmed entries is then lost here."""
        generations = [
            (name, value)
            for name, value in snapshot.read_snapshots(self.disk, self.state_directory)
            if self._agrees(value)
        ]
        self._generations = {name: int(value["applied_index"]) for name, value in generations}
        if not generations and self.log.begin_index > 0:
            problem = (
                f"no snapshot in {self.state_directory} is intact and agrees with the log, which"
                f" begins at entry {self.log.begin_index}"
            )
            why = "the state of the earlier entries cannot be derived again"
            raise LogDamaged(f"{problem}: {why}; restore this replica from peers or a backup")
        return generations[0][1] if generations else None

    def write_snapshot(self, value: Mapping[str, Any]) -> None:
        """Make `value` the newest snapshot, and the current newest the previous one. One thread at
        a time. Raises OSError."""
        if self._generations is None:
            self.read_snapshot()
        known = self._generations or {}
        rotate = snapshot.SNAPSHOT_FILE in known
        previous = known.get(snapshot.SNAPSHOT_FILE if rotate else snapshot.PREVIOUS_FILE)
        snapshot.write_snapshot(self.disk, self.state_directory, value, rotate=rotate)
        kept = {} if previous is None else {snapshot.PREVIOUS_FILE: previous}
        self._generations = {snapshot.SNAPSHOT_FILE: int(value["applied_index"]), **kept}

    @property
    def durable_snapshot_index(self) -> int:
        """The applied index that both generations cover: derived state above it may have to be
        derived again. −1 without two generations."""
        known = self._generations or {}
        return min(known.values()) if len(known) == len(snapshot.GENERATIONS) else -1

    def _agrees(self, value: Mapping[str, Any]) -> bool:
        index, log = value.get("applied_index"), self.log
        if (
            value.get("log_id") != self.identity.log_id
            or not isinstance(index, int)
            or not log.begin_index - 1 <= index <= log.end_index
        ):
            return False
        return (log.term_at(index), log.chain_at(index)) == (
            value.get("applied_term"),
            value.get("chain_crc"),
        )

    def start_queues(self, value: Mapping[str, Any]) -> None:
        """Cut the consume queues to a snapshot. Raises DerivedLost if units that it claims are
        missing, or may be."""
        if self.disk.exists(self._rebuilding_path):
            raise DerivedLost(
                f"{self.queues.directory} was being rebuilt when the last process ended: the"
                " rebuild starts again"
            )
        above = self.log.end_index - value["applied_index"]
        self.queues.start(snapshot.next_offsets(value), above, snapshot.minimums(value))

    @contextlib.contextmanager
    def rebuilding_queues(self) -> Iterator[None]:
        """Context for rebuilding the queues below a snapshot that relies on them. An existing file
        looks as if all its units were there, so a note says that they are not, until they are
        durable. Raises OSError."""
        self.disk.replace_file(self._rebuilding_path, b"consumequeue\n")
        yield
        self.queues.sync()
        self.disk.unlink(self._rebuilding_path)
        self.disk.sync_dir(self.state_directory)

    @property
    def _rebuilding_path(self) -> str:
        return f"{self.state_directory}/{REBUILDING_FILE}"

    def discard_derived(self) -> None:
        """Discard snapshots and consume queues: they are rebuilt from the log, which must be
        untrimmed."""
        assert self.log.begin_index == 0, (
            "derived state of a trimmed log cannot be rebuilt without a snapshot"
        )
        snapshot.discard_snapshot(self.disk, self.state_directory)
        self._generations = {}
        self.queues.discard()
        if self.disk.exists(self._rebuilding_path):
            # Without a snapshot no state relies on the units: the next snapshot is written after
            # they are durable.
            self.disk.unlink(self._rebuilding_path)

    def read_checkpoint(self) -> checkpoints.LogCheckpoint | None:
        return checkpoints.read_log_checkpoint(self.disk, self.log_directory)

    def write_checkpoints(self, committed_index: int, stamps: checkpoints.StoreCheckpoint) -> None:
        """Write the two hint files; called from time to time and at a stop. Raises OSError."""
        checkpoints.write_log_checkpoint(
            self.disk,
            self.log_directory,
            checkpoints.LogCheckpoint(self.log.end_index, committed_index),
        )
        checkpoints.write_store_checkpoint(self.disk, self.root, stamps)

    def read_vouched(self) -> bool:
        return identity.read_vouched(self.disk, self.state_directory)

    def close(self) -> None:
        """A clean stop: everything durable, the mark at the end, then no abort file. After
        LogFenced or OSError the stop stays unclean."""
        self.log.flush_mark()
        # Units for which there is no room are in no snapshot: they are dispatched again.
        with contextlib.suppress(NoSpace):
            self.queues.sync()
        self.abandon()
        checkpoints.remove_abort(self.disk, self.root)

    def abandon(self) -> None:
        """Close the files and leave the abort file: the next start recovers."""
        self.log.close()
        self.queues.close()
        self.hard_state.close()


def exists(disk: Disk, root: str) -> bool:
    """Whether there is a replica in `root`. Raises as `GroupStore.open`."""
    try:
        return identity.read_identity(disk, root) is not None
    except OSError as error:
        raise explain(root, error) from error


def _require_unused(disk: Disk, root: str, replica: str) -> None:
    """A directory without identity may only hold files of an interrupted creation."""
    ours = {"state", "consumequeue", f"dledger-{replica}", f"{identity.IDENTITY_FILE}.tmp"}
    strangers = [name for name in disk.listdir(root) if name not in ours]
    used = [
        name
        for kind in ("data", "index")
        for name in disk.listdir(f"{root}/dledger-{replica}/{kind}")
    ]
    if strangers or used:
        first = (strangers + used)[0]
        raise Unusable(
            f"{root} is not empty ({first} is there) and has no {identity.IDENTITY_FILE}: use an"
            " empty directory"
        )


def _remove_unfinished(disk: Disk, directories: tuple[str, ...], prefix: str = "") -> None:
    """Remove what a crash left. In `state` only the store's own: other threads of a running node
    write there while a group is opened again after a repair, and each of them replaces its
    unfinished file itself."""
    for directory in directories:
        for name in disk.listdir(directory):
            if name.startswith(prefix) and name.endswith(UNFINISHED):
                disk.unlink(f"{directory}/{name}")


def _incomplete(path: str) -> StorageError:
    return PromisesLost(
        f"{path} is missing: the promises of this replica are lost; restore it from its peers"
    )
