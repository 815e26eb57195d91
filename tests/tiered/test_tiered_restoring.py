"""A node directory from the store: what was uploaded comes back to the last byte, and whatever is
missing or wrong is named."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.cli import run
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.storage.backups.backup_manifest import BadCopy, Refused
from ledgermq.storage.backups.tier_restore import HeldLog, restore_from_store
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity
from ledgermq.storage.tiered import s3
from ledgermq.storage.tiered.controller_files import pack, unpack
from ledgermq.storage.tiered.ports import StoreFailure
from tests.node.replica.test_node_hosting import Driver, single
from tests.tiered.fake_store import FakeStore
from tests.tiered.test_tiered_carrying import SIZE, TieredStage

DISK = RealDisk()


class Lost:
    """A cluster of one node whose store holds three of its files, and what its log looked like."""

    def __init__(self, directory: Path, *, trimmed: bool = False) -> None:
        self.target = directory / "restored"
        one = TieredStage(directory / "lost", files=2)
        if trimmed:
            one.stage.seal_all()
            one.stage.driver.group.pins.store = None
            one.retain()
            one.stage.grow(2)
        else:
            one.stage.grow(1)
        one.carry_all()
        controller = Path(one.stage.config.data) / "controller"
        controller.mkdir(exist_ok=True)
        (controller / "journal").write_bytes(b"definitions")
        one.tiering.keep_controller(1_700_000_000_000)
        self.end_index = one.stage.driver.group.store.log.end_index
        self.verified_pos = one.state.verified_pos
        self.files = {
            base: DISK.read_file(one.path(base))
            for base in range(one.begin, self.verified_pos, SIZE)
        }
        self.incarnation = one.stage.driver.identity.incarnation
        self.store: FakeStore = one.store
        asyncio.run(one.tiering.stop())
        one.stage.close()

    def restore(self, node: str = "n1", groups: tuple[str, ...] = ()) -> HeldLog:
        mint = lambda: str(uuid.uuid4())  # noqa: E731
        progress = lambda done, total: None  # noqa: E731
        _, [held] = restore_from_store(
            DISK,
            self.store,
            str(self.target),
            node=node,
            groups=groups,
            mint=mint,
            program="0",
            progress=progress,
        )
        return held

    def open(self) -> Driver:
        config: NodeConfig = single(self.target, group={"data_file_bytes": "64KiB"})
        return Driver(config)

    def key(self, ending: str, base: int = 0) -> str:
        return next(key for key in self.store.keys(ending) if file_name(base) in key)


@pytest.fixture
def lost(tmp_path: Path) -> Lost:
    return Lost(tmp_path)


@pytest.fixture
def opened() -> Iterator[Any]:
    drivers: list[Driver] = []

    def adopt(driver: Driver) -> Driver:
        drivers.append(driver)
        return driver

    yield adopt
    for driver in drivers:
        driver.crash()


def test_restore_from_the_store_is_identical_and_takes_messages(lost: Lost, opened: Any) -> None:
    """The files are byte-identical up to the last entry, which is named; the directory has another
    incarnation, and takes messages."""
    held = lost.restore()
    assert held.files[-1].last < lost.end_index and held.behind_gap == ()
    for file in held.files:
        used = file.end - file.base if file is held.files[-1] else SIZE
        found = DISK.read_file(f"{lost.target}/g1/dledger-n1/data/{file_name(file.base)}")
        assert found == lost.files[file.base][:used] + bytes(SIZE - used)
    who = identity.read_identity(DISK, f"{lost.target}/g1")
    assert who is not None and who.incarnation != lost.incarnation
    assert (lost.target / "controller/journal").read_bytes() == b"definitions"
    driver = opened(lost.open())
    assert driver.group.store.log.end_index > held.files[-1].last
    before = driver.count()
    assert before > 0
    driver.produce(5, size=4000)
    assert driver.count() == before + 5
    filler = DISK.read_file(f"{lost.target}/g1/dledger-n1/data/{file_name(held.files[-1].base)}")
    assert filler != bytes(SIZE) and driver.group.store.log.end_pos > lost.verified_pos - SIZE


def test_restore_command_states_last_entry_and_omissions(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On stdout, as text and as an object; a store that fails ends with status 1, and the options
    of s3:// belong to it."""
    del lost.store.objects[lost.key(".json", SIZE)]
    last = lost.restore().files[-1].last
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    there = ["--from", "s3://fake/log", "--node", "n1"]
    assert run(["restore", *there, "--data", str(tmp_path / "text")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"restored and verified: node n1 in {tmp_path}/text, 1 files, ")
    assert out[1].startswith(f"  g1: entries 0 to {last}, ")
    assert out[2] == f"  lost: everything that g1 had stored behind entry {last}"
    assert (
        out[3].startswith("  not restored: 1 files that do not continue the log, the first is g1/")
        and "another prefix" in out[3]
    )
    assert run(["restore", *there, "--data", str(tmp_path / "object"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["groups"][0]["index"] == last
    assert [key.rpartition("/")[2] for key in told["not_restored"]] == [
        f"{file_name(2 * SIZE)}.json"
    ]
    lost.store.deny()
    assert run(["restore", *there, "--data", str(tmp_path / "denied")]) == 1
    assert (
        "the credentials have ended; check the address, the credentials and the server"
        in capsys.readouterr().err
    )
    assert run(["restore", "--from", "s3://fake/log", "--data", str(tmp_path / "new")]) == 64
    assert run(["restore", "--from", "s3://fake/log", "--node", "n1"]) == 64
    for option in ("--endpoint", "--credentials", "--ca"):
        assert (
            run(
                [
                    "restore",
                    "--from",
                    str(tmp_path),
                    "--data",
                    str(tmp_path / "new"),
                    option,
                    "https://x",
                ]
            )
            == 64
        )


def test_the_store_can_be_checked_without_restoring(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every object is read and compared with its digest; what rots after the local files have gone
    is found and named."""
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("g1: 3 files with the entries 0 to ") and out[0].endswith(
        "are intact in the object store"
    )
    assert run(["restore", "--check", "--from", "s3://fake/log", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["groups"][0]["files"] == 3 and told["verified"]
    key = lost.key(".log", SIZE)
    lost.store.objects[key] = lost.store.objects[key][:-1] + b"!"
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 1
    assert key in capsys.readouterr().err
    description = lost.store.keys("log.json")[0]
    held = lost.store.objects[description]
    lost.store.objects[description] = sealed_json.encode({**sealed_json.decode(held, ""), "v": 2})
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 1
    assert (
        "was written by another version of LedgerMQ; use the program that wrote it"
        in capsys.readouterr().err
    )
    lost.store.objects[description] = held
    del lost.store.objects[lost.key(".json", SIZE)]
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 1
    assert "1 files that do not continue the log" in capsys.readouterr().err
    assert not lost.target.exists()
    assert run(["restore", "--check", "--from", "s3://fake/log", "--data", str(lost.target)]) == 64
    assert run(["restore", "--check", "--from", str(lost.target)]) == 64


def test_the_restored_log_goes_on_in_the_same_place(lost: Lost, tmp_path: Path) -> None:
    """The room behind the last entry that was stored is used by the next one: that file is stored
    again, and the former description kept. With a later file in the store, it would be another
    history."""
    held = lost.restore()
    last = held.files[-1]
    again = TieredStage(lost.target, files=2)
    try:
        again.store = lost.store
        again.restarted()
        again.carry_all()
        again.check()
        assert (
            again.state.waits_for is None and again.state.verified_pos >= lost.verified_pos + SIZE
        )
        [aside] = again.store.keys(".former")
        assert (
            last.sha256 in aside
            and len([key for key in again.store.keys(".log") if file_name(last.base) in key]) == 2
        )
        former = sealed_json.decode(again.store.objects[aside], aside)
        again.store.objects[lost.key(".json", last.base)] = again.store.objects[aside]
        RealDisk().unlink(f"{again.stage.driver.group.store.state_directory}/tiered")
        again.restarted()
        again.check()
        assert former["last"] == last.last and "another history" in again.state.waits_for
    finally:
        asyncio.run(again.tiering.stop())
        again.stage.close()


def test_a_log_that_was_trimmed_before_comes_back_from_its_snapshot(
    tmp_path: Path, opened: Any
) -> None:
    lost = Lost(tmp_path, trimmed=True)
    held = lost.restore()
    assert held.files[0].first > 0 and held.snapshot is not None
    driver = opened(lost.open())
    assert driver.group.store.log.begin_index == held.files[0].first
    assert driver.group.machine.end("t", 0) > 0


def test_every_node_of_the_cluster_is_made_from_the_same_store(lost: Lost) -> None:
    lost.restore(node="n3")
    found = identity.read_node(DISK, str(lost.target))
    assert (
        found is not None and found.node == "n3" and (lost.target / "g1/dledger-n3/data").is_dir()
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("base", [0, SIZE, 2 * SIZE])
@pytest.mark.parametrize("damage", ["flipped", "short", "gone"])
def test_a_wrong_object_is_named_and_no_node_starts(lost: Lost, base: int, damage: str) -> None:
    key = lost.key(".log", base)
    data = lost.store.objects.pop(key)
    if damage != "gone":
        lost.store.objects[key] = (
            data[:-1] if damage == "short" else data[:7000] + bytes([data[7000] ^ 4]) + data[7001:]
        )
    with pytest.raises(BadCopy, match=file_name(base)):
        lost.restore()
    assert identity.read_node(DISK, str(lost.target)) is None


def test_a_file_in_the_middle_that_is_missing_ends_the_log_there(lost: Lost, opened: Any) -> None:
    """What lies behind the gap is named and not restored."""
    del lost.store.objects[lost.key(".json", SIZE)]
    held = lost.restore()
    assert [file.base for file in held.files] == [0]
    assert [key.rpartition("/")[2] for key in held.behind_gap] == [f"{file_name(2 * SIZE)}.json"]
    driver = opened(lost.open())
    assert driver.group.store.log.begin_index == 0 and driver.count() > 0


def test_another_history_behind_a_file_is_not_joined_to_it(lost: Lost) -> None:
    key = lost.key(".json", SIZE)
    lost.store.objects[key] = sealed_json.encode(
        {**sealed_json.decode(lost.store.objects[key], key), "chain": 1}
    )
    assert [file.base for file in lost.restore().files] == [0]


def test_the_first_file_must_be_there(lost: Lost) -> None:
    """A log that lost its first file is not taken for one that was trimmed."""
    del lost.store.objects[lost.key(".json", 0)]
    with pytest.raises(
        BadCopy, match=f"{file_name(0)}.json, the manifest of the first file, is missing"
    ):
        lost.restore()


def test_damaged_descriptions_are_named(lost: Lost) -> None:
    key = lost.key(".json", SIZE)
    lost.store.objects[key] = lost.store.objects[key].replace(b'"size"', b'"sise"')
    with pytest.raises(BadCopy, match="does not have the checksum"):
        lost.restore()


def test_impossible_restore_is_refused_unwritten(lost: Lost, tmp_path: Path) -> None:
    """An empty place, an unknown group, a second log, another node's name, a target in use, no
    definitions."""
    for node, groups, said in (("../n1", (), "node id"), ("n1", ("g9",), "holds no log of g9")):
        with pytest.raises(Refused, match=said):
            lost.restore(node, groups)
    [log] = lost.store.keys("log.json")
    lost.store.objects["g1/other/log.json"] = lost.store.objects[log]
    with pytest.raises(Refused, match="several logs of g1"):
        lost.restore()
    del lost.store.objects["g1/other/log.json"]
    packed = lost.store.objects.pop("controller/n1.json")
    lost.store.objects["controller/n2.json"] = packed[:-9]
    with pytest.raises(BadCopy, match="no intact definitions"):
        lost.restore()
    lost.store.objects["controller/n1.json"] = packed
    lost.store.away()
    with pytest.raises(StoreFailure):
        lost.restore()
    lost.store.back()
    assert not lost.target.exists()
    lost.target.mkdir()
    (lost.target / "x").write_bytes(b"")
    with pytest.raises(Refused, match="not empty"):
        lost.restore()
    (lost.target / "x").unlink()
    lost.store.objects.clear()
    with pytest.raises(Refused, match="holds no log"):
        lost.restore()


# Objects of others


def test_foreign_objects_are_ignored_by_a_restore(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty object as a web console makes it for a folder, copies in folders of their own, and
    other names beside ours."""
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    [log] = lost.store.keys("log.json")
    folder = log.removesuffix("/log.json")
    copies = {
        f"{folder}/old/{key.rpartition('/')[2]}": data
        for key, data in lost.store.objects.items()
        if key.startswith(f"{folder}/")
    }
    begin = {
        f"{folder}/begins/old/{file_name(SIZE)}": b"",
        f"{folder}/snapshots/old/{file_name(1)}": b"",
    }
    names = (
        "controller",
        "controller/",
        "controller/.json",
        "controller/old/n1.json",
        "controller/README",
        f"{folder}/x.json",
        "x",
        "x/y",
    )
    lost.store.objects |= {**copies, **begin, **dict.fromkeys(names, b"")}
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 0
    held = lost.restore()
    assert len(held.files) == 3 and held.behind_gap == ()


@pytest.mark.parametrize("newest", ["n0", "n1", "n2"])
def test_the_newest_definitions_of_the_cluster_are_restored(lost: Lost, newest: str) -> None:
    """Whichever node stored them, and not those of another cluster that stands in the same
    place."""
    key = "controller/n1.json"
    held = unpack(lost.store.objects[key], key)
    for node in ("n0", "n1", "n2", "n9"):
        told = {
            "node": node,
            "made_ms": held.made_ms + (node == newest) + 2 * (node == "n9"),
            "files": {"journal": node.encode()},
        }
        other = {"cluster_id": "another"} if node == "n9" else {}
        lost.store.objects[f"controller/{node}.json"] = pack(replace(held, **told, **other))
    lost.restore()
    assert (lost.target / "controller/journal").read_bytes() == newest.encode()


def test_definitions_that_went_since_they_were_listed_leave_those_of_others(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that left the cluster, whose object an operator removes meanwhile."""
    listed = lost.store.list
    gone = {"controller": ["controller/n0.json"]}
    monkeypatch.setattr(lost.store, "list", lambda prefix: [*gone.get(prefix, ()), *listed(prefix)])
    assert len(lost.restore().files) == 3


@pytest.mark.parametrize("wrong", ["gone", "empty", "cut"])
def test_restore_check_fails_as_the_restore_does(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """No definitions of the cluster, or damaged ones."""
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    packed = lost.store.objects.pop("controller/n1.json")
    if wrong != "gone":
        lost.store.objects["controller/n1.json"] = packed[:-9] if wrong == "cut" else b"{}"
    for arguments in (["--check"], ["--data", str(lost.target), "--node", "n1"]):
        assert run(["restore", "--from", "s3://fake/log", *arguments]) == 1
        told = capsys.readouterr().err
        assert "s3://fake/log/controller holds no intact definitions of cluster" in told
        assert wrong == "gone" or "controller/n1.json" in told


def test_damaged_definitions_beside_intact_ones_fail_the_check_only(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    lost.store.objects["controller/n2.json"] = lost.store.objects["controller/n1.json"][:-9]
    assert run(["restore", "--from", "s3://fake/log", "--check"]) == 1
    assert "controller/n2.json" in capsys.readouterr().err
    assert lost.restore().files


@pytest.mark.parametrize(
    "wrong", ["head cut", "head of another file", "rows altered", "rows short", "rows gone"]
)
def test_a_wrong_index_part_fails_the_check_and_no_restore(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """Readers make it again; whoever checks the store is told."""
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    objects, head, rows = lost.store.objects, lost.key(".index", SIZE), lost.key(".rows", SIZE)
    changed = {
        "head cut": (head, objects[head][:-1]),
        "head of another file": (head, objects[lost.key(".index", 0)]),
        "rows altered": (rows, objects[rows][:-1] + bytes([objects[rows][-1] ^ 1])),
        "rows short": (rows, objects[rows][:-1]),
        "rows gone": (rows, None),
    }
    key, data = changed[wrong]
    del objects[key]
    if data is not None:
        objects[key] = data
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 1
    told = capsys.readouterr().err
    assert key in told and "no message is lost: remove the index part's two objects" in told
    assert len(lost.restore().files) == 3


def test_a_file_from_before_index_parts_passes_the_check(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "S3ObjectStore", lambda place: lost.store)
    for ending in (".index", ".rows"):
        del lost.store.objects[lost.key(ending, SIZE)]
    assert run(["restore", "--check", "--from", "s3://fake/log"]) == 0
