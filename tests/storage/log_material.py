"""Material for tests of the entry log: an identity, batches, a log in a temporary directory, and
its crash."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.types import Draft, Identity, UnsealedBatch
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import LogWriter, make_writer
from ledgermq.storage.state import identity as identities

CLUSTER = "2b1b9a6e-6f0e-4b8e-9a43-0d0f5f3f5a10"
INCARNATION = "7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d21"
FILE_BYTES = 4096
HOST = bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x91])


class Append:
    """The append mode of the tests' logs (see the fixture `each_mode` in conftest.py). The pool has
    small buffers, and its commit runner never runs, so that bytes stay in the pool as long as
    possible."""

    def __init__(self) -> None:
        self.mode = "pwrite"
        self.logs: dict[str, EntryLog] = {}
        """directory → the log that was last opened there"""

    def writer(self) -> LogWriter:
        return make_writer(self.mode, buffers=3, buffer_bytes=1500, submit=lambda work: None)

    def drain(self, directory: str) -> None:
        """Write the bytes that a log still buffers to its files."""
        if directory in self.logs:
            with suppress(OSError):
                self.logs[directory]._writer.drain()


APPEND = Append()


def make_identity(
    *,
    data_file_bytes: int = FILE_BYTES,
    index_file_bytes: int = 32 * 16,
    queue_file_bytes: int = 20 * 10,
) -> Identity:
    return identities.mint(
        CLUSTER,
        "g1",
        "n1",
        INCARNATION,
        1_700_000_000_000,
        data_file_bytes=data_file_bytes,
        index_file_bytes=index_file_bytes,
        consume_queue_file_bytes=queue_file_bytes,
    )


def make_batch(
    count: int, body_bytes: int = 100, *, topic: str = "t", first: int = 0
) -> UnsealedBatch:
    """A batch of `count` messages; each body contains the message number."""
    bodies = [f"{first + i:08d}".encode().ljust(body_bytes, b".") for i in range(count)]
    return encode_entries(
        [Draft(topic, 0, body, b"TAGS\x01a\x02", 1_700_000_000_000) for body in bodies]
    )


def new_log(
    directory: Path, disk: Disk | None = None, identity: Identity | None = None
) -> EntryLog:
    disk = disk or RealDisk()
    identity = identity or make_identity()
    disk.mkdirs(str(directory))
    EntryLog.create(disk, str(directory), identity)
    return reopen(directory, clean=True, disk=disk, identity=identity)


def reopen(
    directory: Path, *, clean: bool, disk: Disk | None = None, identity: Identity | None = None
) -> EntryLog:
    log = EntryLog.open(
        disk or RealDisk(),
        str(directory),
        identity or make_identity(),
        clean=clean,
        writer=APPEND.writer(),
    )
    APPEND.logs[str(directory)] = log
    return log


def append(
    log: EntryLog,
    count: int,
    *,
    term: int = 1,
    body_bytes: int = 100,
    control: bool = False,
    topic: str = "t",
    new_file: bool = False,
) -> None:
    first = log.end_index + 1
    batch = make_batch(count, body_bytes, first=first, topic=topic)
    log.append_leader(
        term,
        batch,
        np.arange(first, first + count),
        1_700_000_000_500,
        HOST,
        control=control,
        new_file=new_file,
    )


def sync(log: EntryLog) -> None:
    """One group commit, without the sync of the mark."""
    job = log.begin_sync()
    if job is not None:
        job.run()
        log.finish_sync(job, None)


def content(directory: Path) -> dict[str, bytes]:
    """Every file of a log directory by relative name, including bytes that its log still
    buffered."""
    APPEND.drain(str(directory))
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def log_bytes(directory: Path) -> bytes:
    """The log's data files joined."""
    return b"".join(data for name, data in content(directory).items() if name.startswith("data/"))
