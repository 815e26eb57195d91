"""The group store: creating, opening, refusing, clean and unclean stops."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.types import HardState, Identity
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import (
    LogFenced,
    NoSpace,
    PromisesLost,
    StorageError,
    UnknownFormat,
    Unusable,
)
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group import store
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import identity, snapshot
from ledgermq.storage.state.checkpoints import LogCheckpoint, StoreCheckpoint
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import append, content, make_identity, sync

DISK = RealDisk()
ME = make_identity()


def created(root: Path) -> str:
    GroupStore.create(DISK, str(root), ME)
    return str(root)


def refused(root: str, wanted: Identity = ME) -> StorageError:
    with pytest.raises(StorageError) as error:
        GroupStore.open(DISK, root, wanted)
    return error.value


def test_the_directory_tree(tmp_path: Path) -> None:
    """A new replica has the files of format §1, and an abort file while it is open."""
    root = created(tmp_path / "data/n1/g1")
    assert store.exists(DISK, root)
    opened = GroupStore.open(DISK, root, ME, process=4711)
    assert opened.was_clean
    append(opened.log, 3)
    sync(opened.log)
    names = {name for name in content(Path(root)) if "/data/" not in name and "/index/" not in name}
    assert names == {"abort", "identity.json", "dledger-n1/hardstate", "dledger-n1/syncedmark"}
    assert (Path(root) / "abort").read_text() == "4711"
    assert {"consumequeue", "state", "dledger-n1"} <= set(os.listdir(root))
    opened.close()
    assert not (Path(root) / "abort").exists()


def test_stop_and_start(tmp_path: Path) -> None:
    """After a good stop everything is as it was; after any other, recovery runs."""
    root = created(tmp_path / "g1")
    opened = GroupStore.open(DISK, root, ME)
    append(opened.log, 20, term=3)
    opened.hard_state.save(HardState(3, "n1"))
    opened.write_checkpoints(18, StoreCheckpoint(1, 2, 3))
    identity.write_peers(DISK, opened.state_directory, {"n2": "x"}, {"n2"}, vouched=True)
    opened.close()
    opened = GroupStore.open(
        DISK,
        root,
        replace(ME, incarnation="00000000-0000-0000-0000-000000000000", data_file_bytes=1 << 30),
    )
    assert opened.identity == ME
    assert (opened.was_clean, opened.log.report.row) == (True, "clean")
    assert (opened.log.end_index, opened.hard_state.value) == (19, HardState(3, "n1"))
    assert (opened.read_checkpoint(), opened.read_vouched()) == (LogCheckpoint(19, 18), True)
    append(opened.log, 5, term=3)
    opened.abandon()
    opened = GroupStore.open(DISK, root, ME)
    assert (opened.was_clean, opened.log.report.row, opened.log.end_index) == (
        False,
        "unmarked-entries",
        24,
    )
    opened.close()


def test_creation_needs_an_empty_directory(tmp_path: Path) -> None:
    """A directory with a replica, with a log, or with anything else is not overwritten; what an
    interrupted creation left is."""
    root = created(tmp_path / "g1")
    with pytest.raises(Unusable, match="already holds"):
        GroupStore.create(DISK, root, ME)
    (tmp_path / "g1/identity.json").unlink()
    GroupStore.create(DISK, root, ME)
    opened = GroupStore.open(DISK, root, ME)
    append(opened.log, 1)
    opened.close()
    (tmp_path / "g1/identity.json").unlink()
    with pytest.raises(Unusable, match="not empty"):
        GroupStore.create(DISK, root, ME)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letters.txt").write_text("dear")
    with pytest.raises(Unusable, match=r"letters\.txt"):
        GroupStore.create(DISK, str(tmp_path / "other"), ME)


def test_refused_store_names_exit_code_and_next_step(tmp_path: Path) -> None:
    """Every refusal has its exit code and a sentence with the next step."""
    error = refused(str(tmp_path / "nothing"))
    assert (type(error), error.exit_code) == (Unusable, 71)
    assert "bootstrap" in str(error)
    root = created(tmp_path / "g1")
    other = replace(ME, replica="n2")
    assert "belongs to node n1, not to n2" in str(refused(root, other))
    for name, kind, code in (("hardstate", PromisesLost, 75), ("syncedmark", PromisesLost, 75)):
        path = tmp_path / "g1/dledger-n1" / name
        data = path.read_bytes()
        path.unlink()
        error = refused(root)
        assert (type(error), error.exit_code) == (kind, code)
        assert "missing" in str(error)
        path.write_bytes(bytes(len(data)))
        error = refused(root)
        assert (type(error), error.exit_code) == (PromisesLost, 75)
        path.write_bytes(data)
    identity_path = tmp_path / "g1/identity.json"
    text = identity_path.read_bytes()
    identity_path.write_bytes(text.replace(b'"g1"', b'"g9"'))
    assert refused(root).exit_code == 75
    identity_path.write_bytes(text)
    GroupStore.open(DISK, root, ME).close()


def test_refused_directory_stays_unchanged(tmp_path: Path) -> None:
    """A foreign directory is as it was after it was refused."""
    root = created(tmp_path / "g1")
    before = content(tmp_path)
    refused(root, replace(ME, cluster_id="11111111-2222-3333-4444-555555555555"))
    assert content(tmp_path) == before


def test_environment_errors_have_their_codes(tmp_path: Path) -> None:
    """A full disk is 74, a failing one 73, a forbidden or impossible place 71."""
    disk = FaultyDisk(DISK)
    disk.free = 100
    with pytest.raises(NoSpace) as full:
        GroupStore.create(disk, str(tmp_path / "g1"), ME)
    assert full.value.exit_code == 74
    disk.heal()
    disk.fail_creation(errno_of="EACCES")
    with pytest.raises(Unusable, match="permissions"):
        GroupStore.create(disk, str(tmp_path / "g1"), ME)
    disk.heal()
    disk.syncs_fail = True
    with pytest.raises(LogFenced) as failing:
        GroupStore.create(disk, str(tmp_path / "g1"), ME)
    assert failing.value.exit_code == 73
    disk.heal()
    GroupStore.create(disk, str(tmp_path / "g1"), ME)
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable):
        GroupStore.create(DISK, str(tmp_path / "file/g1"), ME)


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    """A directory of a later version is not opened."""
    root = created(tmp_path / "g1")
    from ledgermq.storage.files import sealed_json

    value = sealed_json.read(DISK, f"{root}/identity.json")
    sealed_json.write(DISK, f"{root}/identity.json", {**value, "format_version": 2})
    error = refused(root)
    assert (type(error), error.exit_code) == (UnknownFormat, 76)


def test_unfinished_files_go_at_start(tmp_path: Path) -> None:
    """Nothing ending in .tmp or .alloc is ever read."""
    root = created(tmp_path / "g1")
    left = [
        "abort.tmp",
        "state/snapshot.tmp",
        "dledger-n1/hardstate.tmp",
        "dledger-n1/data/next.alloc",
    ]
    for name in left:
        (tmp_path / "g1" / name).write_bytes(b"half")
    GroupStore.open(DISK, root, ME).abandon()
    assert not [name for name, data in content(tmp_path / "g1").items() if data == b"half"]


def test_concurrent_write_of_peers_survives_an_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is opened again after a repair while a greeting replaces the file that remembers the
    peers."""
    root = created(tmp_path / "g1")
    real = os.rename

    def opening(old: str, new: str) -> None:
        if new == f"{root}/state/peers.json":
            monkeypatch.setattr(os, "rename", real)
            GroupStore.open(DISK, root, ME).abandon()
        real(old, new)

    monkeypatch.setattr(os, "rename", opening)
    identity.write_peers(DISK, f"{root}/state", {"n2": "a"}, frozenset(), {}, vouched=False)
    assert identity.read_peers(DISK, f"{root}/state") == {"n2": "a"}


def test_snapshot_counts_only_if_the_log_agrees(tmp_path: Path) -> None:
    """Index, term and chain CRC of a snapshot must be those of the log."""
    root = created(tmp_path / "g1")
    opened = GroupStore.open(DISK, root, ME)
    assert opened.read_snapshot() is None
    append(opened.log, 10, term=2)

    def write(value: dict[str, Any]) -> None:
        snapshot.write_snapshot(DISK, opened.state_directory, {**value, "log_id": ME.log_id})

    good: dict[str, Any] = {
        "applied_index": 6,
        "applied_term": 2,
        "chain_crc": opened.log.chain_at(6),
        "queues": {},
    }
    write(good)
    assert opened.read_snapshot() == {**good, "log_id": ME.log_id}
    for wrong in (
        {"applied_index": 7},
        {"applied_term": 1},
        {"chain_crc": 5},
        {"applied_index": 10},
        {"applied_index": None},
    ):
        snapshot.discard_snapshot(DISK, opened.state_directory)
        write({**good, **wrong})
        assert opened.read_snapshot() is None
    write({**good, "applied_index": -1, "applied_term": -1, "chain_crc": opened.log.chain_at(-1)})
    assert opened.read_snapshot() is not None
    opened.discard_derived()
    assert opened.read_snapshot() is None
    opened.close()


def test_a_good_stop_leaves_the_queues_on_the_medium() -> None:
    """What was dispatched is synced before the abort file goes: the next start believes a directory
    without one."""
    for seed in range(10):
        disk = ForgetfulDisk()
        disk.mkdirs("/g1")
        GroupStore.create(disk, "/g1", ME)
        opened = GroupStore.open(disk, "/g1", ME)
        opened.queues.start({}, 0)
        append(opened.log, 5)
        sync(opened.log)
        opened.queues.append(record_columns(opened.log.read(0, 1 << 20)))
        opened.close()
        disk.power_cut(Random(seed))
        names = [name for name in disk.files() if "/consumequeue/" in name]
        assert len(names) == 1
        assert disk.read_file(names[0])[: 5 * 20][-20:] != bytes(20)


def test_a_fenced_store_stops_uncleanly(tmp_path: Path) -> None:
    """A store that cannot sync never claims a good stop."""
    root = created(tmp_path / "g1")
    disk = FaultyDisk(DISK)
    opened = GroupStore.open(disk, root, ME)
    append(opened.log, 3)
    disk.syncs_fail = True
    with pytest.raises(LogFenced):
        opened.close()
    disk.heal()
    assert (tmp_path / "g1/abort").exists()
    opened.abandon()
    assert not GroupStore.open(disk, root, ME).was_clean


def test_no_handle_is_left_open(tmp_path: Path) -> None:
    """Stopping closes every file."""
    root = created(tmp_path / "g1")
    disk = FaultyDisk(DISK)
    opened = GroupStore.open(disk, root, ME)
    append(opened.log, 100)
    sync(opened.log)
    opened.log.truncate_from(10)
    opened.close()
    assert disk.open_files == 0


def test_a_good_stop_is_one_after_a_power_cut_too() -> None:
    """The removal of the abort file is durable when the stop is done: the next start need not
    verify what is known to be right."""
    for seed in range(10):
        disk = ForgetfulDisk()
        disk.any_names = True
        disk.mkdirs("/g1")
        GroupStore.create(disk, "/g1", ME)
        opened = GroupStore.open(disk, "/g1", ME)
        append(opened.log, 5)
        opened.close()
        disk.power_cut(Random(seed))
        opened = GroupStore.open(disk, "/g1", ME)
        assert (opened.was_clean, opened.log.report.row) == (True, "clean")
        opened.abandon()
