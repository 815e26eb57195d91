"""The data directory of a node: locked by one process at a time, and refused if it belongs to
another node or cluster.

Other modules open what lies in it. Directories of the node's other workers inside it belong to them
(docs/workers.md).
"""

from __future__ import annotations

import os
import stat
import time

from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.errors import FatalError
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.status import ExitCode
from ledgermq.proto.workers import WORKER_NAME, node_of, number_of
from ledgermq.storage.backups.backup_manifest import is_backup
from ledgermq.storage.files.errors import is_no_space
from ledgermq.storage.files.real_disk import DirectoryLock, RealDisk
from ledgermq.storage.state import identity as identity_files

log = get_logger()


class DataDirectory:
    """The node's directory: writable, the node's own, and used by no other process while it is
    locked."""

    def __init__(self, config: NodeConfig) -> None:
        self.path = config.data.absolute()
        self._config = config
        self._lock: DirectoryLock | None = None

    def take(self, disk: RealDisk) -> None:
        """Lock and check the directory. Raises FatalError or StorageError if this node cannot use
        it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(str(self.path))
            probe = self.path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            self._identify(disk)
            self._miss_no_worker()
            self._close_to_others()
        except BlockingIOError as error:
            what = f"the data directory {self.path} is used by another process"
            raise FatalError(
                ExitCode.DATA_UNUSABLE,
                what,
                "stop that process, or give this node its own directory",
            ) from error
        except OSError as error:
            what = f"the data directory {self.path} cannot be used ({error.strerror or error})"
            if is_no_space(error):
                raise FatalError(
                    ExitCode.NO_SPACE, what, "free disk space, then start again"
                ) from error
            raise FatalError(
                ExitCode.DATA_UNUSABLE,
                what,
                "make it a directory this user can write, or set data to another one",
            ) from error

    def _identify(self, disk: RealDisk) -> None:
        """Compare node.json with the configuration, or write it into an empty directory."""
        if is_backup(disk, str(self.path)):
            what = f"the data directory {self.path} is a backup, which lacks derived files"
            raise FatalError(
                ExitCode.DATA_UNUSABLE,
                what,
                f"restore it: ledgermq restore --from {self.path} --data DIR",
            )
        found = identity_files.read_node(disk, str(self.path))
        if found is not None:
            identity_files.compare_node(
                str(self.path), found, self._config.cluster_id, self._config.node
            )
            return
        foreign = sorted(
            name
            for name in os.listdir(self.path)
            if name != "node.log" and not self._of_worker(name)
        )
        if foreign:
            what = (
                f"the data directory {self.path} has no node.json but holds"
                f" {', '.join(foreign[:3])}"
            )
            raise FatalError(
                ExitCode.DATA_UNUSABLE,
                what,
                "use an empty directory, or restore the whole node directory",
            )
        created = time.time_ns() // 1_000_000
        identity_files.write_node(
            disk,
            str(self.path),
            identity_files.NodeIdentity(self._config.cluster_id, self._config.node, created),
        )

    def _miss_no_worker(self) -> None:
        """Refuse to start without a worker whose data is in the directory: its replicas would be
        missing without notice."""
        own = self._config.node
        left = sorted(
            name
            for name in os.listdir(self.path)
            if self._of_worker(name) and name not in self._config.workers
        )
        if left:
            what = (
                f"{self.path} holds the data of worker {left[0]}, but nodes.{own}.workers is"
                f" {len(self._config.workers)}"
            )
            remedy = (
                f"set it to {number_of(left[-1])}, or move the worker's replicas away, remove the"
                " member, and then the directory"
            )
            raise FatalError(ExitCode.DATA_UNUSABLE, what, remedy)

    def _close_to_others(self) -> None:
        """Close the directory to other users, so that they cannot read its files, whatever mode
        older files have."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & stat.S_IRWXO:
            return
        try:
            self.path.chmod(mode & ~stat.S_IRWXO)
        except PermissionError:
            # It belongs to another user, for example as a mount point.
            log.warning(
                "every user of this machine can enter the data directory",
                remedy=f"chmod o-rwx {self.path}",
            )
        else:
            log.info(
                "every user of this machine could enter the data directory; it is closed now",
                mode=f"{mode & ~stat.S_IRWXO:o}",
            )

    def _of_worker(self, name: str) -> bool:
        """Whether this is the directory of another worker of this node, which may have started
        first."""
        return bool(WORKER_NAME(name)) and node_of(name) == self._config.node

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
