"""Ends of logs, torn tails, damage in the middle, leftovers of a former life, and directories that
are no store roots."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from tests.importing.conftest import Run
from tests.importing.imported_log import messages
from tests.importing.store_root import BORN_MS, Put, StoreRoot, record

KINDS = ("commitlog", "dledger")


def filled(path: Path, kind: str, count: int = 60) -> StoreRoot:
    root = StoreRoot(path, kind)
    for number in range(count):
        root.send(
            "orders",
            b"body %d" % number,
            0,
            properties={"UNIQ_KEY": f"U{number}"},
            store_ms=BORN_MS + number,
        )
    return root


def content(path: Path) -> dict[str, str]:
    return {
        str(one.relative_to(path)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in path.rglob("*")
        if one.is_file()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_is_only_read(tmp_path: Path, import_store: Run, kind: str) -> None:
    """No byte, name or time of the store root changes; a read-only directory can be imported."""
    root = filled(tmp_path / "store", kind)
    root.write()
    before = content(root.path), {str(one): one.stat().st_mtime_ns for one in root.path.rglob("*")}
    assert import_store(root.path)[0] == 0
    assert before == (
        content(root.path),
        {str(one): one.stat().st_mtime_ns for one in root.path.rglob("*")},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_tail_is_cut_and_said(tmp_path: Path, import_store: Run, kind: str) -> None:
    """The last record is half there: the messages before it count, and only with --yes the rest is
    given up."""
    root = filled(tmp_path / "store", kind)
    root.write()
    root.overwrite(root.positions[-1] + 90, bytes(200))
    status, _, said = import_store(root.path)
    assert status == 4 and "torn tail cut" in said
    status, told, _ = import_store(root.path, "--yes")
    assert (status, told["messages"], len(told["damages"])) == (0, 59, 1)
    assert len(messages(tmp_path / "cluster/n1")) == 59


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_the_middle(tmp_path: Path, import_store: Run, kind: str) -> None:
    """The import is refused with file and byte; with --skip-damaged the log continues after it,
    with a placeholder message in each lost place."""
    root = filled(tmp_path / "store", kind)
    root.write()
    root.overwrite(root.positions[20] + 88, b"\xff\xff")
    root.overwrite(root.positions[40], bytes(60))
    status, _, said = import_store(root.path)
    base = (root.positions[20]) // 4096 * 4096
    at = root.positions[20] - (48 if kind == "dledger" else 0) - base
    assert status == 4 and f"{base:020d} at byte {at}:" in said and "--skip-damaged" in said
    status, told, _ = import_store(root.path, "--skip-damaged", "--yes")
    assert (status, told["audit"], len(told["damages"]), told["topics"][0]["lost"]) == (
        0,
        "PASS",
        2,
        2,
    )
    found = messages(tmp_path / "cluster/n1")
    assert [one.offset for one in found] == list(range(60))
    assert [one.offset for one in found if one.properties.get("LEDGERMQ_LOST")] == [20, 40]
    assert found[21].body == b"body 21" and b"could not be read" in found[20].body


def test_leftovers_of_a_former_life_are_no_damage(tmp_path: Path, import_store: Run) -> None:
    """Records behind the end are from before a truncation of the log; their queue offsets were
    assigned again since."""
    root = filled(tmp_path / "store", "commitlog", 20)
    old = root.end
    root.data += b"\xee" * 50
    for number in range(12, 16):
        root.data += record(Put("orders", b"former", 0, number, {"UNIQ_KEY": "F"}), root.end)
    root.write()
    status, told, said = import_store(root.path, "--yes")
    assert (status, told["messages"]) == (0, 20) and f"at byte {old - old // 4096 * 4096}" in said


def test_leftovers_in_dledger_have_an_older_term(tmp_path: Path, import_store: Run) -> None:
    """The same with DLedger, which does not erase what it cuts either."""
    root = filled(tmp_path / "store", "dledger", 20)
    cut = bytes(root.data)
    root.term, root.data, root.index = 2, root.data[:], root.index
    stale = filled(tmp_path / "stale", "dledger", 30)
    # Entry 15 was written anew in term 2; of the former one and those behind it the rest still
    # stands there.
    keep = root.positions[15] - 48
    root.data, root.index, root.term = bytearray(cut[:keep]), 15, 2
    root._offsets["orders", 0] = 15
    root.send("orders", b"another, longer body", 0, properties={"UNIQ_KEY": "N"})
    root.data += stale.data[len(root.data) :]
    root.write()
    status, told, _ = import_store(root.path, "--yes")
    assert (status, told["messages"], told["damages"][0]["resumes"]) == (0, 16, None)


def test_repeated_offsets_are_left_out(tmp_path: Path, import_store: Run) -> None:
    """A second message with an offset that was given away before: RocketMQ shows the first one, and
    so do we."""
    root = filled(tmp_path / "store", "commitlog", 5)
    root.put(Put("orders", b"again", 0, 3, {"UNIQ_KEY": "X"}))
    root.send("orders", b"next", 0, properties={"UNIQ_KEY": "Y"})
    status, told, _ = import_store(root.write())
    assert (status, told["topics"][0]["repeated"], told["topics"][0]["messages"]) == (0, 1, 6)


def test_a_gap_without_damage(tmp_path: Path, import_store: Run) -> None:
    """Offsets that jump without damage: refused by name, filled on request, and refused if the gap
    is implausibly large."""
    root = filled(tmp_path / "store", "commitlog", 5)
    root.put(Put("orders", b"later", 0, 9, {"UNIQ_KEY": "X"}))
    root.write()
    status, _, said = import_store(root.path)
    assert status == 4 and "queue 0 of topic orders jumps from offset 5 to 9" in said
    assert import_store(root.path, "--skip-damaged", "--yes")[1]["topics"][0]["lost"] == 4
    root.put(Put("orders", b"much later", 0, 10_000_000, {"UNIQ_KEY": "Z"}))
    root.write()
    status, _, said = import_store(root.path, "--skip-damaged", "--yes", data="second")
    assert status == 4 and "more than the damage of this log can explain" in said


def test_batches_are_refused_by_name(tmp_path: Path, import_store: Run) -> None:
    root = filled(tmp_path / "store", "commitlog", 5)
    root.send("batched", b"many", 0, sysflag=0x80, properties={"INNER_NUM": "3"})
    status, _, said = import_store(root.write())
    assert (
        status == 4
        and "topic batched has records that hold several messages" in said
        and "--topics" in said
    )
    assert import_store(root.path, "--topics", "orders")[0] == 0


def test_a_plain_log_that_went_on_with_dledger(tmp_path: Path, import_store: Run) -> None:
    """RocketMQ can turn one into the other: the files follow each other, and so do the messages."""
    plain = filled(tmp_path / "store", "commitlog", 10)
    plain.write()
    later = StoreRoot(plain.path, "dledger", first_file=4096)
    later.begin_queue("orders", 0, 10)
    for number in range(10, 15):
        later.send(
            "orders",
            b"body %d" % number,
            0,
            properties={"UNIQ_KEY": f"U{number}"},
            store_ms=BORN_MS + number,
        )
    later.write()
    left = 4096 - len(plain.data)
    plain.overwrite(plain.end, left.to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big"))
    status, told, _ = import_store(plain.path)
    assert (status, told["layout"], told["messages"]) == (0, "plain commit log, then DLedger", 15)


def test_import_of_an_unusable_directory_is_refused(tmp_path: Path, import_store: Run) -> None:
    """Each refusal names the finding and the remedy; nothing is written."""
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a store root of RocketMQ" in import_store(empty)[2]
    assert "is not a directory" in import_store(tmp_path / "missing")[2]
    store = filled(tmp_path / "store", "commitlog", 200)
    store.write()
    names = sorted(os.listdir(store.directory))
    for odd in ("notes.txt", "1" * 19, "²" * 20):
        (store.directory / odd).write_bytes(b"x")
        assert f"{odd} does not have the name of a log file" in import_store(store.path)[2]
        (store.directory / odd).unlink()
    (store.directory / names[1]).rename(tmp_path / "away")
    assert f"has no file {names[1]}, but {names[2]}" in import_store(store.path)[2]
    (tmp_path / "away").rename(store.directory / names[1])
    with (store.directory / names[-1]).open("ab") as file:
        file.write(b"x")
    assert "the files of one log have one length" in import_store(store.path)[2]
    two = tmp_path / "two"
    for name in ("n0", "n1"):
        StoreRoot(two, "dledger", self_id=name).send("orders", b"x")
    status, _, said = import_store(two)
    assert status == 4 and "dledger-n0, dledger-n1" in said and "--dledger-self" in said
    assert "holds no readable message" in import_store(StoreRoot(tmp_path / "zeros").write())[2]
    assert not (tmp_path / "cluster").exists()


def test_a_broker_that_still_runs(tmp_path: Path, import_store: Run) -> None:
    """Its lock on the file `lock` is seen, and left alone."""
    root = filled(tmp_path / "store", "commitlog")
    root.write()
    (root.path / "lock").write_bytes(b"lock")
    taken, ready = os.pipe()
    end, stop = os.pipe()
    child = os.fork()
    if child == 0:
        with (root.path / "lock").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 1)
            os.write(ready, b"x")
            os.close(stop)
            os.read(end, 1)
        os._exit(0)
    os.read(taken, 1)
    status, _, said = import_store(root.path)
    os.close(end)
    os.close(stop)
    os.waitpid(child, 0)
    assert status == 4 and f"process {child} uses" in said


def test_an_interrupted_import_begins_again(tmp_path: Path, import_store: Run) -> None:
    """What a killed import left aside goes; what others left there does not; a target that is in
    use is refused."""
    root = filled(tmp_path / "store", "commitlog")
    root.write()
    aside = tmp_path / "cluster.importing"
    (aside / "n1/g1").mkdir(parents=True)
    assert "not from an interrupted import" in import_store(root.path)[2]
    (aside / "importing").write_text("unfinished")
    assert import_store(root.path)[0] == 0
    assert not aside.exists() and not (tmp_path / "cluster/importing").exists()
    assert "is not empty" in import_store(root.path)[2]


def test_import_dry_run_writes_no_file(tmp_path: Path, import_store: Run) -> None:
    root = filled(tmp_path / "store", "dledger")
    root.write()
    status, told, _ = import_store(root.path, "--dry-run")
    assert (status, told["dry_run"], told["audit"], told["kept"]) == (0, True, None, 60)
    assert sorted(os.listdir(tmp_path)) == ["store"]
