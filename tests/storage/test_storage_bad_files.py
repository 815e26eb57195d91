"""Bad input, row by row of docs/bad-files.md: every file of a group directory missing, short,
empty, damaged, or from another directory.

There are three reactions. A file that others depend on is refused with a status and a message, and
left unchanged. A file that can be rebuilt is rebuilt. A hint is ignored. In no case is an
acknowledged message lost.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.proto.entries.layout import record_columns
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import (
    Damaged,
    DerivedLost,
    LogDamaged,
    LogFenced,
    PromisesLost,
    StorageError,
    UnknownFormat,
    Unusable,
)
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import snapshot
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from ledgermq.storage.state.identity import read_met_by, write_peers
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import FILE_BYTES, append, content, make_identity, sync

DISK = RealDisk()
ME = make_identity()
LOG = "dledger-n1"
COUNT = 60


def filled(root: Path) -> Path:
    """A cleanly stopped directory with sixty acknowledged entries in several files."""
    GroupStore.create(DISK, str(root), ME)
    store = GroupStore.open(DISK, str(root), ME)
    store.queues.start({}, 0)
    append(store.log, COUNT)
    sync(store.log)
    index = 0
    while index < COUNT:
        entries = store.log.read(index, 1 << 20)
        store.queues.append(record_columns(entries))
        index = entries.last_index + 1
    write_peers(DISK, store.state_directory, {"n2": "x"}, {"n2"})
    value = {
        "log_id": ME.log_id,
        "applied_index": COUNT - 1,
        "applied_term": 1,
        "chain_crc": store.log.end_chain,
        "queues": {"t": {"0": COUNT}},
    }
    snapshot.write_snapshot(DISK, store.state_directory, value)
    store.write_checkpoints(COUNT - 1, StoreCheckpoint(1, 2, 3))
    store.close()
    return root


def whole(root: Path) -> None:
    """Everything acknowledged is there."""
    store = GroupStore.open(DISK, str(root), ME)
    assert (store.log.fenced, store.log.end_index) == (None, COUNT - 1)
    for index in range(COUNT):
        store.log.read(index, 1)
    store.close()


def shorten(name: str, size: int) -> Callable[[Path], object]:
    return lambda root: (root / name).open("r+b").truncate(size)


def remove(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def overwrite(name: str, offset: int, data: bytes) -> Callable[[Path], object]:
    def act(root: Path) -> None:
        with (root / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return act


def both_slots(name: str, offset: int, data: bytes) -> Callable[[Path], object]:
    def act(root: Path) -> None:
        overwrite(name, offset, data)(root)
        overwrite(name, 4096 + offset, data)(root)

    return act


def unclean(act: Callable[[Path], object]) -> Callable[[Path], object]:
    def both(root: Path) -> None:
        (root / "abort").write_text("1")
        act(root)

    return both


def stranger(root: Path) -> None:
    (root / LOG / "data/notes.txt").write_text("dear diary")


FIRST, SECOND = f"{LOG}/data/{0:020d}", f"{LOG}/data/{FILE_BYTES:020d}"
LAST = f"{LOG}/data/{2 * FILE_BYTES:020d}"
REFUSED: dict[str, tuple[Callable[[Path], object], type[StorageError], int, str]] = {
    "a log file that is too short": (shorten(SECOND, 1000), LogDamaged, 75, "has 1000 bytes instead of 4096"),
    "a log file of no length": (shorten(SECOND, 0), LogDamaged, 75, "has 0 bytes instead of 4096"),
    "a log file that is too long": (shorten(FIRST, 5000), LogDamaged, 75, "has 5000 bytes instead of 4096"),
    "no first log file": (remove(FIRST), LogFenced, 75, "restore this replica from its peers"),
    "a log file missing in the middle": (remove(SECOND), LogFenced, 75, "restore this replica from its peers"),
    "no last log file": (remove(LAST), LogFenced, 75, "restore this replica from its peers"),
    "a log file of zeros": (overwrite(SECOND, 0, bytes(FILE_BYTES)), LogFenced, 75, "does not begin with the entry that belongs there"),
    "a damaged entry header": (unclean(overwrite(FIRST, 8, b"\xff" * 8)), LogFenced, 75, "restore this replica from its peers"),
    "a file that is none of ours": (stranger, Damaged, 75, "move it away"),
    "no synced mark": (remove(f"{LOG}/syncedmark"), PromisesLost, 75, "missing"),
    "a short synced mark": (shorten(f"{LOG}/syncedmark", 100), PromisesLost, 75, "has 100 bytes instead of 8192"),
    "a damaged synced mark": (both_slots(f"{LOG}/syncedmark", 20, bytes(40)), PromisesLost, 75, "restore it from its peers"),
    "a synced mark of another version": (both_slots(f"{LOG}/syncedmark", 4, b"\0\0\0\7"), UnknownFormat, 76, "start the program"),
    "no hard state": (remove(f"{LOG}/hardstate"), PromisesLost, 75, "missing"),
    "an empty hard state": (shorten(f"{LOG}/hardstate", 0), PromisesLost, 75, "has 0 bytes instead of 8192"),
    "a damaged hard state": (both_slots(f"{LOG}/hardstate", 20, b"\xff" * 40), PromisesLost, 75, "restore it from its peers"),
    "a hard state of another version": (both_slots(f"{LOG}/hardstate", 4, b"\0\0\0\7"), UnknownFormat, 76, "start the program"),
    "no identity": (remove("identity.json"), Unusable, 71, "bootstrap this node"),
    "an empty identity": (shorten("identity.json", 0), Damaged, 75, "damaged or edited by hand"),
    "a damaged identity": (overwrite("identity.json", 20, b"\xff"), Damaged, 75, "damaged or edited by hand"),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_refused_with_a_status_and_left_alone(tmp_path: Path, row: str) -> None:
    """The log, the mark, the hard state and the identity are never guessed: status, sentence, and
    not a byte of the log changed."""
    spoil, kind, exit_code, words = REFUSED[row]
    root = filled(tmp_path / "g1")
    spoil(root)
    before = {
        name: data
        for name, data in content(root).items()
        if "/data/" in name or name == "identity.json"
    }
    with pytest.raises(StorageError) as refused:
        store = GroupStore.open(DISK, str(root), ME)
        if store.log.fenced is not None:
            store.abandon()
            raise store.log.fenced
    assert isinstance(refused.value, kind)
    assert refused.value.exit_code == exit_code
    assert words in str(refused.value)
    assert {name: data for name, data in content(root).items() if name in before} == before


INDEX = f"{LOG}/index/{512:020d}"
QUEUE = f"consumequeue/t/0/{200:020d}"
MADE_AGAIN: dict[str, Callable[[Path], object]] = {
    "an index file that is too short": shorten(INDEX, 100),
    "an index file of no length": shorten(INDEX, 0),
    "an index file missing in the middle": remove(INDEX),
    "damaged index units": overwrite(INDEX, 64, b"\x55" * 64),
    "a stranger in the index": lambda root: (root / LOG / "index/notes.txt").write_text("?"),
    "no snapshot": remove("state/snapshot"),
    "an empty snapshot": shorten("state/snapshot", 0),
    "a damaged snapshot": overwrite("state/snapshot", 10, b"\xff\xff"),
    "no checkpoint": remove(f"{LOG}/checkpoint"),
    "a damaged checkpoint": overwrite(f"{LOG}/checkpoint", 0, b"\xff\xff\xff"),
    "an empty checkpoint": shorten(f"{LOG}/checkpoint", 0),
    "a checkpoint that knows too much": lambda root: (root / LOG / "checkpoint").write_text("endIndex=999\ncommittedIndex=999\n"),
    "no store checkpoint": remove("checkpoint"),
    "a short store checkpoint": shorten("checkpoint", 3),
    "what an interrupted write left": lambda root: (root / LOG / "data/next.alloc").write_bytes(b"half"),
}  # fmt: skip


@pytest.mark.parametrize("row", MADE_AGAIN)
def test_made_again_or_ignored(tmp_path: Path, row: str) -> None:
    """Derived files are rebuilt from the log, and unreadable hints are ignored."""
    root = filled(tmp_path / "g1")
    MADE_AGAIN[row](root)
    whole(root)


@pytest.mark.parametrize(
    "spoil",
    [shorten(QUEUE, 10), shorten(QUEUE, 0), remove(QUEUE)],
    ids=["short", "empty", "missing"],
)
def test_consume_queue_files_that_are_lost_are_rebuilt_from_the_log(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    """The snapshot's word is not taken for units that are gone: queues and snapshot are discarded,
    the log has everything."""
    root = filled(tmp_path / "g1")
    spoil(root)
    store = GroupStore.open(DISK, str(root), ME)
    with pytest.raises(DerivedLost, match="rebuilt from the log"):
        store.queues.start({"t": {0: COUNT}}, 0)
    store.discard_derived()
    store.queues.start({}, 0)
    index = 0
    while index < COUNT:
        entries = store.log.read(index, 1 << 20)
        store.queues.append(record_columns(entries))
        index = entries.last_index + 1
    assert len(store.queues.read("t", 0, 0, 1000)) == COUNT
    assert store.read_snapshot() is None
    store.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster_id": "11111111-2222-3333-4444-555555555555"}, "belongs to cluster"),
        ({"replica": "n2"}, "belongs to node n1, not to n2"),
        ({"group": "g2"}, "belongs to broker group g1, not to g2"),
        ({"log_id": "11111111-2222-3333-4444-555555555555"}, "belongs to log"),
    ],
)
def test_a_directory_from_another_cluster_or_node_is_refused(
    tmp_path: Path, change: dict[str, str], words: str
) -> None:
    """Status 71, whose it is and whose it should be, and not a byte changed."""
    root = filled(tmp_path / "g1")
    before = content(root)
    with pytest.raises(Unusable, match="set the data directory of this node to its own") as refused:
        GroupStore.open(DISK, str(root), replace(ME, **change))  # type: ignore[arg-type]
    assert words in str(refused.value) and refused.value.exit_code == 71
    assert content(root) == before


def test_files_swapped_in_from_another_replica_are_refused(tmp_path: Path) -> None:
    """The mark names its log, and a log file of another log does not continue ours."""
    root = filled(tmp_path / "g1")
    other = replace(ME, log_id="11111111-2222-3333-4444-555555555555")
    GroupStore.create(DISK, str(tmp_path / "g2"), other)
    store = GroupStore.open(DISK, str(tmp_path / "g2"), other)
    append(store.log, COUNT)
    store.close()
    mark = (root / LOG / "syncedmark").read_bytes()
    (root / LOG / "syncedmark").write_bytes((tmp_path / "g2" / LOG / "syncedmark").read_bytes())
    with pytest.raises(Unusable, match="point the node at its own data directory"):
        GroupStore.open(DISK, str(root), ME)
    (root / LOG / "syncedmark").write_bytes(mark)
    last = sorted((root / LOG / "data").glob("0*"))[-1].name
    for name in (
        path.name for path in sorted((root / LOG / "data").iterdir()) if path.name <= last
    ):
        (root / LOG / "data" / name).write_bytes(
            (tmp_path / "g2" / LOG / "data" / name).read_bytes()
        )
    opened = GroupStore.open(DISK, str(root), ME)
    assert opened.log.fenced is not None and opened.log.fenced.exit_code == 75
    assert "is not the one that was synced" in str(opened.log.fenced)


def test_a_directory_of_another_format_version_is_refused(tmp_path: Path) -> None:
    """Status 76: only the program that wrote it, or a later one that says so, may touch it."""
    root = filled(tmp_path / "g1")
    value = sealed_json.read(DISK, f"{root}/identity.json")
    sealed_json.write(DISK, f"{root}/identity.json", {**value, "format_version": 2})
    before = content(root)
    with pytest.raises(UnknownFormat, match="start the program that wrote it") as refused:
        GroupStore.open(DISK, str(root), ME)
    assert refused.value.exit_code == 76
    assert content(root) == before


@pytest.mark.parametrize("data", [b"", b"{", b"\xff" * 30])
def test_a_damaged_table_of_peers_is_refused(tmp_path: Path, data: bytes) -> None:
    """The peers that know this directory decide whether it may vote; this is never guessed."""
    root = filled(tmp_path / "g1")
    (root / "state/peers.json").write_bytes(data)
    with pytest.raises(Damaged, match="damaged or edited by hand") as refused:
        read_met_by(DISK, f"{root}/state")
    assert refused.value.exit_code == 75


def test_a_file_shortened_under_a_running_log_is_an_error_of_the_read(tmp_path: Path) -> None:
    """Files of earlier processes are read with pread: a file that ends too early raises an OSError,
    and no reader gets half an entry."""
    root = filled(tmp_path / "g1")
    store = GroupStore.open(DISK, str(root), ME)
    shorten(FIRST, 300)(root)
    with pytest.raises(OSError, match="ends inside an entry") as error:
        store.log.read(0, 1 << 20)
    assert error.value.errno == errno.EIO
    store.abandon()


@pytest.mark.parametrize("name", ["EROFS", "EIO", "ENODEV"])
def test_a_device_that_vanishes_or_turns_read_only_fences(tmp_path: Path, name: str) -> None:
    """The first write that fails ends the log: status 73, nothing more is acknowledged, and what
    was is there after the next start."""
    disk = FaultyDisk(DISK)
    root = filled(tmp_path / "g1")
    store = GroupStore.open(disk, str(root), ME)
    disk.fail_writes_after(0, errno_of=name)
    with pytest.raises(LogFenced) as fenced:
        append(store.log, 1)
    assert fenced.value.exit_code == 73
    with pytest.raises(LogFenced):
        store.log.begin_sync()
    disk.heal()
    store.abandon()
    whole(root)


def trimmed(root: Path) -> Path:
    """The same, after its first two files were trimmed."""
    filled(root)
    store = GroupStore.open(DISK, str(root), ME)
    value = store.read_snapshot()
    assert value is not None
    store.write_snapshot(value)
    begin = next(index for index in range(COUNT) if store.log.pos_of(index) == 2 * FILE_BYTES)
    store.log.trim(begin)
    store.close()
    return root


def no_snapshots(root: Path) -> None:
    for name in ("snapshot", "snapshot.previous"):
        (root / "state" / name).unlink()


def damaged_snapshots(root: Path) -> None:
    for name in ("snapshot", "snapshot.previous"):
        overwrite(f"state/{name}", 10, b"\xff\xff")(root)


OF_A_TRIMMED_LOG: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "no begin file": (remove(f"{LOG}/begin"), 75, "no begin file says that it was trimmed"),
    "an empty begin file": (shorten(f"{LOG}/begin", 0), 75, "the begin of this log is unknown"),
    "a damaged begin file": (
        overwrite(f"{LOG}/begin", 12, b"\xff"),
        75,
        "the begin of this log is unknown",
    ),
    "no first file": (remove(LAST), 75, "is missing"),
    "no snapshot at all": (no_snapshots, 75, "cannot be derived again"),
    "no snapshot that is whole": (damaged_snapshots, 75, "cannot be derived again"),
}


@pytest.mark.parametrize("row", OF_A_TRIMMED_LOG)
def test_trimmed_log_without_begin_or_snapshot_is_refused(tmp_path: Path, row: str) -> None:
    """A log that does not begin at its beginning has to say why, and what its first entries led to
    has to stand somewhere."""
    spoil, exit_code, words = OF_A_TRIMMED_LOG[row]
    root = trimmed(tmp_path / "g1")
    spoil(root)
    with pytest.raises(StorageError) as refused:
        store = GroupStore.open(DISK, str(root), ME)
        if store.log.fenced is not None:
            store.abandon()
            raise store.log.fenced
        try:
            store.read_snapshot()
        finally:
            store.abandon()
    assert refused.value.exit_code == exit_code
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["snapshot", "snapshot.previous"])
def test_one_whole_snapshot_is_enough(tmp_path: Path, name: str) -> None:
    """The other generation steps in."""
    root = trimmed(tmp_path / "g1")
    overwrite(f"state/{name}", 10, b"\xff\xff")(root)
    store = GroupStore.open(DISK, str(root), ME)
    assert store.read_snapshot() is not None
    store.abandon()
