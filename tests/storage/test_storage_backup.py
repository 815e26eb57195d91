"""Backup and restore of a node directory on the real disk: what is kept, what is refused, and that
damage is found and named."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from ledgermq.cli import run
from ledgermq.proto.types import Identity
from ledgermq.proto.units import size_words
from ledgermq.storage.backups import backup as backups
from ledgermq.storage.backups.backup_manifest import (
    MANIFEST_FILE,
    BadCopy,
    Manifest,
    Refused,
    read_manifest,
)
from ledgermq.storage.backups.restore import restore
from ledgermq.storage.cli import backup_commands
from ledgermq.storage.files import real_disk, sealed_json
from ledgermq.storage.files.errors import Unusable
from ledgermq.storage.files.real_disk import HeldFile, RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import identity as identities
from ledgermq.storage.state.checkpoints import LogCheckpoint, StoreCheckpoint, read_log_checkpoint
from ledgermq.storage.state.identity import NodeIdentity
from ledgermq.storage.state.snapshot import read_snapshot
from tests.storage.log_material import CLUSTER, append, content, make_identity, sync

DISK = RealDisk()


def new_node(directory: Path) -> GroupStore:
    """A node directory with one broker group, opened."""
    DISK.mkdirs(str(directory))
    identities.write_node(DISK, str(directory), NodeIdentity(CLUSTER, "n1", 1_700_000_000_000))
    (directory / "controller").mkdir()
    (directory / "controller/journal").write_bytes(b"journal")
    root, who = str(directory / "g1"), make_identity()
    GroupStore.create(DISK, root, who)
    return GroupStore.open(DISK, root, who)


def settle(store: GroupStore, committed: int) -> None:
    """Everything durable and marked; the note says what is committed."""
    store.log.flush_mark()
    store.write_checkpoints(committed, StoreCheckpoint())


def back_up(source: Path, target: Path, progress: Any = lambda done, total: None) -> Manifest:
    return backups.backup(
        DISK,
        str(source),
        str(target),
        program="0",
        made_ms=1,
        mint=lambda: str(uuid.uuid4()),
        progress=progress,
    )


def bring_back(source: Path, target: Path, node: str | None = None) -> Manifest:
    return restore(
        DISK,
        str(source),
        str(target),
        node=node,
        mint=lambda: str(uuid.uuid4()),
        progress=lambda done, total: None,
    )


def reopened(directory: Path, replica: str = "n1") -> GroupStore:
    found = identities.read_identity(DISK, str(directory / "g1"))
    assert found is not None
    wanted = identities.mint(
        CLUSTER, "g1", replica, found.incarnation, 1_700_000_000_000, data_file_bytes=4096
    )
    return GroupStore.open(DISK, str(directory / "g1"), wanted)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A running node of 200 entries in several files, 150 of them committed, and its backup."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 149)
    back_up(tmp_path / "n1", tmp_path / "b")
    store.abandon()
    return tmp_path / "n1", tmp_path / "b"


def test_backup_ends_at_the_committed_point(made: tuple[Path, Path]) -> None:
    """Entries up to the committed one are kept byte for byte, zeros follow, and the source is not
    changed."""
    source, target = made
    before = b"".join(data for name, data in content(source / "g1/dledger-n1/data").items())
    manifest = read_manifest(DISK, str(target))
    point = manifest.groups["g1"]
    assert (point.begin_index, point.index, point.snapshot_index) == (0, 149, -1)
    after = b"".join(data for name, data in content(target / "g1/dledger-n1/data").items())
    assert after[: point.end_pos] == before[: point.end_pos]
    assert (
        len(after) % 4096 == 0
        and len(after) - point.end_pos < 4096
        and not any(after[point.end_pos :])
    )
    assert (target / "controller/journal").read_bytes() == b"journal"


def test_restored_directory_starts_as_the_node_with_every_entry(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """The log of the restored directory ends at the point, opens as after a clean stop, and accepts
    entries; it contains no commit index and no vote."""
    source, target = made
    bring_back(target, tmp_path / "r")
    assert read_log_checkpoint(DISK, str(tmp_path / "r/g1/dledger-n1")) == LogCheckpoint(149, -1)
    store = reopened(tmp_path / "r")
    assert (store.was_clean, store.log.fenced, store.log.end_index, store.log.report.row) == (
        True,
        None,
        149,
        "clean",
    )
    assert store.log.report.rebuilt_units == 0
    assert (store.hard_state.value.term, store.hard_state.value.vote) == (1, None)
    old = identities.read_identity(DISK, str(source / "g1"))
    assert (
        old is not None
        and store.identity.incarnation != old.incarnation
        and store.identity.log_id == old.log_id
    )
    append(store.log, 10)
    store.close()


def test_backup_serves_every_node(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Restored as another node, a directory is that node's own: its name, its log folder, its
    incarnation."""
    bring_back(made[1], tmp_path / "r", "n3")
    found = identities.read_node(DISK, str(tmp_path / "r"))
    assert found == NodeIdentity(CLUSTER, "n3", 1_700_000_000_000)
    assert sorted(path.name for path in (tmp_path / "r/g1").glob("dledger-*")) == ["dledger-n3"]
    store = reopened(tmp_path / "r", "n3")
    assert store.log.end_index == 149
    store.close()


def test_point_is_clamped_by_the_synced_mark(tmp_path: Path) -> None:
    """What the note calls committed counts only as far as the mark says that it is durable here."""
    store = new_node(tmp_path / "n1")
    append(store.log, 20)
    settle(store, 19)
    append(store.log, 20)
    store.write_checkpoints(39, StoreCheckpoint())
    assert back_up(tmp_path / "n1", tmp_path / "b").groups["g1"].index == 19
    store.abandon()


def test_backup_beside_a_running_writer(tmp_path: Path) -> None:
    """While entries are appended, synced and noted, a backup is a whole prefix of the log, and the
    writer notices nothing."""
    store = new_node(tmp_path / "n1")
    append(store.log, 50)
    settle(store, 49)
    stop, running, rounds = threading.Event(), threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            append(store.log, 7)
            sync(store.log)
            sync(store.log)
            store.write_checkpoints(store.log.durable_index, StoreCheckpoint())
            rounds.append(store.log.end_index)
            running.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert running.wait(60)
    try:
        points = [
            back_up(tmp_path / "n1", tmp_path / f"b{number}").groups["g1"] for number in range(4)
        ]
    finally:
        stop.set()
        writer.join()
    assert store.log.fenced is None and rounds
    whole = b"".join(content(tmp_path / "n1/g1/dledger-n1/data").values())
    for number, point in enumerate(points):
        assert 49 <= point.index <= store.log.end_index
        copy = b"".join(content(tmp_path / f"b{number}/g1/dledger-n1/data").values())
        assert copy[: point.end_pos] == whole[: point.end_pos]
    store.close()


def trim(store: GroupStore, keep: int) -> None:
    """What a node does before it trims, then the trim: two snapshots above it, and only the last
    `keep` files stay."""
    log = store.log
    for _ in range(2):
        at = {
            "applied_index": log.durable_index,
            "applied_term": log.term_at(log.durable_index),
            "chain_crc": log.chain_at(log.durable_index),
        }
        store.write_snapshot({"v": 2, "log_id": store.identity.log_id, **at})
    begins = [
        index
        for index in range(log.begin_index, log.durable_index + 1)
        if log.pos_of(index) % 4096 == 0
    ]
    if len(begins) > keep:
        log.trim(begins[-keep])


def test_backup_of_a_trimmed_log(tmp_path: Path) -> None:
    """A log without its first files is kept from its beginning on, with a snapshot between there
    and the point, and starts again so."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    trim(store, 2)
    begin = store.log.begin_index
    append(store.log, 20)
    settle(store, 210)
    point = back_up(tmp_path / "n1", tmp_path / "b").groups["g1"]
    assert begin > 0 and (point.begin_index, point.index, point.snapshot_index) == (begin, 210, 199)
    store.abandon()
    bring_back(tmp_path / "b", tmp_path / "r", "n2")
    assert read_log_checkpoint(DISK, str(tmp_path / "r/g1/dledger-n2")) == LogCheckpoint(210, 199)
    restored = reopened(tmp_path / "r", "n2")
    assert (restored.log.begin_index, restored.log.end_index, restored.log.fenced) == (
        begin,
        210,
        None,
    )
    assert restored.log.report.rebuilt_units == 0 and restored.log.report.row == "clean"
    snapshot = restored.read_snapshot()
    assert snapshot is not None and snapshot["applied_index"] == 199
    restored.close()
    for damaged in ("g1/dledger-n1/begin", "g1/state/snapshot"):
        intact = (tmp_path / "b" / damaged).read_bytes()
        flip(tmp_path / "b" / damaged, 20)
        with pytest.raises(BadCopy, match=damaged):
            bring_back(tmp_path / "b", tmp_path / damaged.replace("/", "-"))
        (tmp_path / "b" / damaged).write_bytes(intact)


@pytest.mark.parametrize("what", ["none", "above the point", "of another history"])
def test_trimmed_log_without_a_fitting_snapshot(tmp_path: Path, what: str) -> None:
    """What the removed entries led to must come from a snapshot; without one that fits, there is no
    backup."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    trim(store, 2)
    append(store.log, 50)
    settle(store, 249)
    state = tmp_path / "n1/g1/state"
    error: type[Exception] = Refused
    for name in ("snapshot", "snapshot.previous"):
        value = sealed_json.read(DISK, str(state / name))
        if what == "none":
            (state / name).unlink()
        elif what == "above the point":
            sealed_json.write(DISK, str(state / name), {**value, "applied_index": 300})
        else:
            sealed_json.write(
                DISK, str(state / name), {**value, "chain_crc": value["chain_crc"] ^ 1}
            )
            error = BadCopy
    with pytest.raises(error, match="snapshot"):
        back_up(tmp_path / "n1", tmp_path / "b")
    store.abandon()


def test_newer_snapshot_above_the_point_yields_to_the_older(tmp_path: Path) -> None:
    """The older generation is taken where the newest speaks of entries behind the point."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    trim(store, 2)
    state = tmp_path / "n1/g1/state"
    value = sealed_json.read(DISK, str(state / "snapshot"))
    sealed_json.write(DISK, str(state / "snapshot"), {**value, "applied_index": 300})
    assert back_up(tmp_path / "n1", tmp_path / "b").groups["g1"].snapshot_index == 199
    store.abandon()


def test_backup_beside_a_running_trim(tmp_path: Path) -> None:
    """While files are appended and trimmed away, every backup is a whole piece of the log that
    proves itself, and restores."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    stop, running = threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            append(store.log, 40)
            sync(store.log)
            store.log.flush_mark()
            store.write_checkpoints(store.log.durable_index, StoreCheckpoint())
            trim(store, 3)
            running.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert running.wait(60)
    try:
        points = [
            back_up(tmp_path / "n1", tmp_path / f"b{number}").groups["g1"] for number in range(4)
        ]
    finally:
        stop.set()
        writer.join()
    store.close()
    assert store.log.fenced is None and points[-1].begin_index > 0
    for number, point in enumerate(points):
        assert bring_back(tmp_path / f"b{number}", tmp_path / f"r{number}").groups["g1"] == point


def test_a_log_that_moves_on_between_two_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both snapshots are newer than the mark that was read before them: the backup reads again."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    trim(store, 2)
    read, moved = backups.read_begin, []

    def reading(disk: RealDisk, directory: str, log_id: str) -> Any:
        begin = read(disk, directory, log_id)
        for _ in range(2 * (not moved)):
            append(store.log, 100)
            sync(store.log)
            settle(store, store.log.durable_index)
            trim(store, 1)
        moved.append(begin)
        return begin

    monkeypatch.setattr(backups, "read_begin", reading)
    assert back_up(tmp_path / "n1", tmp_path / "b").groups["g1"].snapshot_index > 199
    assert len(moved) == 2
    store.abandon()


def test_a_snapshot_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames of a replacement the newest snapshot has the name of the older
    generation: the backup takes it from there."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    trim(store, 2)
    newest = tmp_path / "n1/g1/state/snapshot"
    known, read = read_snapshot(DISK, str(newest.parent)), RealDisk.read_file

    def reading(self: RealDisk, path: str) -> bytes:
        if path == str(newest) and newest.exists():
            newest.rename(newest.with_name("snapshot.previous"))
        return read(self, path)

    monkeypatch.setattr(RealDisk, "read_file", reading)
    point = back_up(tmp_path / "n1", tmp_path / "b").groups["g1"]
    assert known is not None and point.snapshot_index == known["applied_index"]
    store.abandon()


def test_files_that_vanish_while_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log file removed between the listing and its opening makes the backup list again; one held
    open keeps its content."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    data = tmp_path / "n1/g1/dledger-n1/data"
    ghost = data / f"{1 << 40:020d}"
    ghost.touch()
    listed = DISK.listdir
    calls: list[str] = []

    def listing(self: RealDisk, path: str) -> list[str]:
        names = listed(path)
        if path == str(data):
            calls.append(path)
            ghost.unlink(missing_ok=True)
        return names

    monkeypatch.setattr(RealDisk, "listdir", listing)
    first = HeldFile(str(data / f"{0:020d}"))
    back_up(tmp_path / "n1", tmp_path / "b")
    assert len(calls) == 2
    os.unlink(data / f"{0:020d}")
    first.copy_to(str(tmp_path / "copy"), 4096, 4096, allocate=False, step=lambda piece: None)
    first.close()
    assert (tmp_path / "copy").read_bytes() == (
        tmp_path / f"b/g1/dledger-n1/data/{0:020d}"
    ).read_bytes()
    store.abandon()


@pytest.mark.parametrize("works", [0, 2])
def test_copies_without_copy_file_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    """Where the kernel cannot copy between two file systems, from the beginning or from a piece on,
    sendfile does the same."""
    copy, calls = os.copy_file_range, []

    def refuse(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) > works:
            raise OSError(18, "cross-device")
        return copy(*arguments)

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(real_disk, "COPY_BYTES", 1000)
    (tmp_path / "a").write_bytes(os.urandom(5000))
    held = HeldFile(str(tmp_path / "a"))
    held.copy_to(str(tmp_path / "b"), 4500, 8192, allocate=True, step=lambda piece: None)
    held.close()
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()[:4500] + bytes(
        8192 - 4500
    )


def test_damage_of_the_source_is_named(tmp_path: Path) -> None:
    """A rotten byte in the source makes the backup fail with the file's name and without a
    manifest."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    store.abandon()
    flip(tmp_path / f"n1/g1/dledger-n1/data/{4096:020d}", 700)
    with pytest.raises(BadCopy, match=rf"{4096:020d}: entry \d+ at byte \d+ is damaged"):
        back_up(tmp_path / "n1", tmp_path / "b")
    assert not (tmp_path / "b" / MANIFEST_FILE).exists()
    with pytest.raises(Refused, match="no finished backup"):
        bring_back(tmp_path / "b", tmp_path / "r")


def test_missing_file_of_the_source_is_named(tmp_path: Path) -> None:
    """A log with a hole is not backed up."""
    store = new_node(tmp_path / "n1")
    append(store.log, 200)
    settle(store, 199)
    store.abandon()
    (tmp_path / f"n1/g1/dledger-n1/data/{4096:020d}").unlink()
    with pytest.raises(BadCopy, match=f"{4096:020d} is missing"):
        back_up(tmp_path / "n1", tmp_path / "b")


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def files_of(made: tuple[Path, Path]) -> list[Path]:
    return [path for path in sorted(made[1].rglob("*")) if path.is_file()]


def test_every_flipped_byte_of_a_backup_is_found(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Whichever file of a backup rots, restore fails, names it, and leaves nothing that starts."""
    for number, path in enumerate(files_of(made)):
        intact = path.read_bytes()
        flip(path, min(100, len(intact) // 2))
        target = tmp_path / f"r{number}"
        with pytest.raises(BadCopy, match=path.name):
            bring_back(made[1], target)
        assert identities.read_identity(DISK, str(target / "g1")) is None
        path.write_bytes(intact)
    assert bring_back(made[1], tmp_path / "r").groups["g1"].index == 149


def test_missing_files_of_a_backup_are_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    """A file that the manifest lists and the backup lacks is named."""
    for number, path in enumerate(path for path in files_of(made) if path.name != MANIFEST_FILE):
        intact = path.read_bytes()
        path.unlink()
        with pytest.raises(BadCopy, match=path.name):
            bring_back(made[1], tmp_path / f"r{number}")
        path.write_bytes(intact)


def seal_again(backup: Path, path: str, **changes: Any) -> None:
    """A manifest that vouches for what a file of the backup holds now."""
    manifest = sealed_json.read(DISK, str(backup / MANIFEST_FILE))
    manifest["files"][path] |= {
        "sha256": hashlib.sha256((backup / path).read_bytes()).hexdigest(),
        **changes,
    }
    sealed_json.write(DISK, str(backup / MANIFEST_FILE), manifest)


PATHS = ("../x", "/x", "a/../../x", "a//b", "", "\0")
NONSENSE: dict[str, dict[str, Any]] = {
    "no files": {"files": []},
    "no groups": {"groups": None},
    "a file without facts": {"files": {"node.json": {}}},
    "a length that is no number": {"files": {"node.json": {"bytes": "x", "used": 1, "sha256": ""}}},
    "more used bytes than there are": {
        "files": {"node.json": {"bytes": 1, "used": 2, "sha256": ""}}
    },
    **{
        f"the path {path!r}": {"files": {path: {"bytes": 1, "used": 1, "sha256": ""}}}
        for path in PATHS
    },
    "a group in another directory": {"groups": {"..": {}}},
    "a point without a log": {"groups": {"g1": {}}},
    "a field too many": {"more": 1},
}


def test_nonsensical_manifest_restores_no_file(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checksum agrees, as that of a forged one does: no file is written, least of all outside
    of the target."""
    manifest = sealed_json.read(DISK, str(made[1] / MANIFEST_FILE))
    for what, changes in NONSENSE.items():
        sealed_json.write(DISK, str(made[1] / MANIFEST_FILE), {**manifest, **changes})
        assert run(["restore", "--from", str(made[1]), "--data", str(tmp_path / "r")]) == 1, what
        (line,) = capsys.readouterr().err.splitlines()
        assert "does not have the content of a manifest" in line and "use another backup" in line
        assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("kind", "base", "offset", "reason"),
    [
        ("data", 4096, 700, r"00004096: entry \d+ at byte"),
        ("index", 512, 40, "index does not describe the entries"),
        ("data", None, -1, "behind its last entry"),
        ("syncedmark", None, 60, "syncedmark"),
    ],
)
def test_a_manifest_does_not_vouch_for_entries(
    made: tuple[Path, Path], tmp_path: Path, kind: str, base: int | None, offset: int, reason: str
) -> None:
    """Damage with matching digests is found as well, because entries, units and the end are
    verified independently."""
    folder = made[1] / "g1/dledger-n1"
    if kind == "syncedmark":
        path = folder / kind
    else:
        path = (
            folder / kind / f"{base:020d}"
            if base is not None
            else sorted((folder / kind).iterdir())[-1]
        )
    flip(path, offset)
    seal_again(made[1], str(path.relative_to(made[1])), used=path.stat().st_size)
    with pytest.raises(BadCopy, match=reason):
        bring_back(made[1], tmp_path / "r")


def test_every_directory_is_another_incarnation(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Source, backup and each restored directory differ: peers that met one of them take no other
    for it."""
    for name in ("r1", "r2"):
        bring_back(made[1], tmp_path / name)
    found = [
        identities.read_identity(DISK, str(place / "g1"))
        for place in (*made, tmp_path / "r1", tmp_path / "r2")
    ]
    assert len({one.incarnation for one in found if one is not None}) == 4
    assert not list((tmp_path / "r1/g1/state").iterdir())


def test_interrupted_backup_is_not_restored(tmp_path: Path) -> None:
    """Wherever a backup is interrupted, restore refuses what is left, and a second backup refuses
    to write into it."""
    store = new_node(tmp_path / "n1")
    append(store.log, 100)
    settle(store, 99)
    store.abandon()
    seen: list[int] = []
    back_up(tmp_path / "n1", tmp_path / "whole", lambda done, total: seen.append(done))
    for stop in range(len(seen)):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        left = iter(range(stop))

        def interrupted(done: int, total: int, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            back_up(tmp_path / "n1", tmp_path / "b", interrupted)
        with pytest.raises(Refused, match="no finished backup"):
            bring_back(tmp_path / "b", tmp_path / "r")
        with pytest.raises(Refused, match="is not empty"):
            back_up(tmp_path / "n1", tmp_path / "b")


def test_interrupted_restore_does_not_start(made: tuple[Path, Path], tmp_path: Path) -> None:
    """A restore that was cut short leaves no identity, and a store refuses the directory instead of
    making a new replica in it."""
    (made[1] / f"g1/dledger-n1/data/{4096:020d}").unlink()
    with pytest.raises(BadCopy):
        bring_back(made[1], tmp_path / "r")
    with pytest.raises(Unusable, match="is not empty"):
        GroupStore.create(DISK, str(tmp_path / "r/g1"), make_identity())


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_ctrl_c_leaves_no_half_of_a_directory(
    made: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    there: bool,
) -> None:
    """The target is as it was, missing or empty, and the same command succeeds afterwards. A target
    in use is left alone."""
    target = tmp_path / "target"
    if there:
        target.mkdir()
    arguments = {
        "backup": ["--data", str(made[0]), "--to"],
        "restore": ["--from", str(made[1]), "--data"],
    }[command]
    seen: list[int] = []

    def pressed(line: backup_commands.ProgressLine, done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            assert os.listdir(target)
            raise KeyboardInterrupt

    monkeypatch.setattr(backup_commands.ProgressLine, "__call__", pressed)
    assert run([command, *arguments, str(target)]) == 130
    assert target.exists() == there and not (there and os.listdir(target))
    assert run([command, *arguments, str(target)]) == 0
    kept = content(target)
    assert run([command, *arguments, str(target)]) == 4 and content(target) == kept


@pytest.mark.parametrize("what", ["not empty", "inside", "no node", "no note", "a file"])
def test_refused_backup_creates_no_file(tmp_path: Path, what: str) -> None:
    """A target in use or inside the source, a directory without an identity, and a log without a
    committed point are refused; nothing is created."""
    store = new_node(tmp_path / "n1")
    append(store.log, 10)
    settle(store, 9)
    store.abandon()
    source, target, text = tmp_path / "n1", tmp_path / "b", what
    if what == "not empty":
        (target / "x").mkdir(parents=True)
    elif what == "inside":
        target, text = source / "b", "lies inside"
    elif what == "no node":
        source, text = tmp_path, "is not a node directory"
    elif what == "no note":
        (source / "g1/dledger-n1/checkpoint").unlink()
        text = "nothing noted as committed"
    else:
        target.write_text("x")
    before = content(tmp_path)
    with pytest.raises(Refused, match=text):
        back_up(source, target)
    assert content(tmp_path) == before


def test_full_disk_is_refused_before_copying(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is looked for first, with what is missing in the message."""
    monkeypatch.setattr(RealDisk, "free_bytes", lambda self, path: 1000)
    with pytest.raises(Refused, match="room for 1000 bytes"):
        back_up(made[0], tmp_path / "c")
    with pytest.raises(Refused, match="room for 1000 bytes"):
        bring_back(made[1], tmp_path / "r")
    assert not (tmp_path / "c").exists() and not (tmp_path / "r").exists()


def test_commands(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0 with one JSON object or text, 1 for a damaged copy with its file in the error line, 4
    for a refusal, 64 without a choice."""
    assert run(["backup", "--data", str(made[0]), "--to", str(tmp_path / "c"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (
        told["v"] == 1
        and told["verified"]
        and told["groups"][0]["index"] == 149
        and told["node"] == "n1"
    )
    assert run(["restore", "--from", str(tmp_path / "c"), "--data", str(tmp_path / "r")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("restored and verified: node n1") and first.endswith(
        f", {size_words(told['used_bytes'])}"
    )
    assert (
        run(
            ["restore", "--from", str(tmp_path / "c"), "--data", str(tmp_path / "exact"), "--bytes"]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[0].endswith(f", {told['used_bytes']} bytes")
    assert run(["restore", "--from", str(tmp_path / "c"), "--data", str(tmp_path / "r")]) == 4
    assert "is not empty" in capsys.readouterr().err
    flip(tmp_path / f"c/g1/dledger-n1/data/{0:020d}", 100)
    assert run(["restore", "--from", str(tmp_path / "c"), "--data", str(tmp_path / "r2")]) == 1
    assert f"{0:020d}" in capsys.readouterr().err.splitlines()[-1]
    flip(made[0] / f"g1/dledger-n1/data/{0:020d}", 100)
    assert run(["backup", "--data", str(made[0]), "--to", str(tmp_path / "d")]) == 1
    assert f"{0:020d}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EIO, "correct this"),
        (errno.EACCES, "correct this"),
        (None, "another version"),
    ],
)
def test_failures_on_the_way_end_with_1_and_a_remedy(
    made: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int | None,
    text: str,
) -> None:
    """A disk that fails or fills up while copying, and a backup of another version, are errors with
    a file and a remedy, not bugs."""

    def fail(self: HeldFile, path: str, *arguments: object, **more: object) -> None:
        assert number is not None
        raise OSError(number, os.strerror(number), path)

    if number is None:
        manifest = sealed_json.read(DISK, str(made[1] / MANIFEST_FILE))
        sealed_json.write(DISK, str(made[1] / MANIFEST_FILE), {**manifest, "v": 2})
    else:
        monkeypatch.setattr(HeldFile, "copy_to", fail)
        assert run(["backup", "--data", str(made[0]), "--to", str(tmp_path / "c")]) == 1
        assert text in capsys.readouterr().err and not (tmp_path / "c" / MANIFEST_FILE).exists()
    assert run(["restore", "--from", str(made[1]), "--data", str(tmp_path / "r")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line and line.startswith("error: ") and "bug" not in line


def test_default_directory(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --data the only node of ./ledgermq-data is meant; with two, or none, the question
    goes back."""
    monkeypatch.chdir(tmp_path)
    assert run(["backup", "--to", "c"]) == 64
    shutil.copytree(made[0], tmp_path / "ledgermq-data/n1")
    assert run(["backup", "--to", "c"]) == 0
    shutil.copytree(made[0], tmp_path / "ledgermq-data/n2")
    assert run(["backup", "--to", "e"]) == 64


def test_identity_is_complete(made: tuple[Path, Path], tmp_path: Path) -> None:
    """File sizes and ids of the source's identity are those of the restored one."""
    bring_back(made[1], tmp_path / "r")
    old, new = (
        identities.read_identity(DISK, str(place / "g1")) for place in (made[0], tmp_path / "r")
    )
    assert isinstance(old, Identity) and isinstance(new, Identity)
    assert (old.data_file_bytes, old.index_file_bytes, old.log_id) == (
        new.data_file_bytes,
        new.index_file_bytes,
        new.log_id,
    )


@pytest.mark.verify
def test_stopped_node_with_two_groups(tmp_path: Path) -> None:
    """Every broker group of the node is kept, each up to its own point, after a good stop up to its
    end."""
    stores = [new_node(tmp_path / "n1")]
    other = identities.mint(CLUSTER, "g2", "n1", str(uuid.uuid4()), 1, data_file_bytes=8192)
    GroupStore.create(DISK, str(tmp_path / "n1/g2"), other)
    stores.append(GroupStore.open(DISK, str(tmp_path / "n1/g2"), other))
    for store, count in zip(stores, (70, 30), strict=True):
        append(store.log, count)
        settle(store, count - 1)
        store.close()
    back_up(tmp_path / "n1", tmp_path / "b")
    points = bring_back(tmp_path / "b", tmp_path / "r").groups
    assert {name: point.index for name, point in points.items()} == {"g1": 69, "g2": 29}
    assert (tmp_path / "r/g2/dledger-n1/data" / f"{0:020d}").stat().st_size == 8192
