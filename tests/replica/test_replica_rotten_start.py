"""A start looks for membership records in the log, and believes only what verifies: rot is no
configuration, and hides none."""

from __future__ import annotations

import numpy as np
import pytest

from ledgermq.node.replica.consensus.replica_boot import bootstrap, configurations, record_of
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft
from ledgermq.raft.config import Members
from ledgermq.raft.messages import NO_INDEX
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.state.identity import mint

VOTERS = ("a", "b", "c")
MORE = Members(("a", "b", "c", "d"))
DIRECTORY = "/n/g/dledger-a"
FILE = f"{DIRECTORY}/data/{0:020d}"
CHANNEL_AT = 35


def opened(disk: ForgetfulDisk) -> EntryLog:
    """The log after a start that has written nothing yet: what it finds is not of this process."""
    identity = mint(
        "6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "g",
        "a",
        "6f9619ff-8b86-4d01-b42d-00cf4fc964fe",
        1,
        data_file_bytes=8192,
    )
    if not disk.exists(DIRECTORY):
        disk.mkdirs(DIRECTORY)
        EntryLog.create(disk, DIRECTORY, identity)
    return EntryLog.open(disk, DIRECTORY, identity, clean=True)


@pytest.fixture
def disk() -> ForgetfulDisk:
    """Entry 0 names the voters, entry 1 is a message, entry 2 adds a voter."""
    disk = ForgetfulDisk()
    log = opened(disk)
    bootstrap(log, VOTERS, 1)
    for draft, is_control in (
        (Draft("t", 0, b"body", b"", 1), False),
        (control.draft(record_of(MORE, "one more"), 1), True),
    ):
        log.append_leader(
            1, encode_entries([draft]), np.zeros(1, np.int64), 1, bytes(8), control=is_control
        )
    log.flush_mark()
    log.close()
    return disk


def test_an_intact_log_tells_every_configuration(disk: ForgetfulDisk) -> None:
    found = list(configurations(opened(disk), (NO_INDEX, Members(VOTERS))))
    assert [(index, members.voters) for index, members in found] == [
        (NO_INDEX, VOTERS),
        (0, VOTERS),
        (2, MORE.voters),
    ]


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("inside", [CHANNEL_AT, 60, 140])
def test_rot_is_neither_read_nor_overlooked(disk: ForgetfulDisk, index: int, inside: int) -> None:
    """A mark of membership that rotted away would hide a configuration, one that rotted in would
    invent one."""
    pos = opened(disk).pos_of(index)
    disk.flip(FILE, pos + inside)
    with pytest.raises(LogDamaged):
        list(configurations(opened(disk), (NO_INDEX, Members(VOTERS))))
