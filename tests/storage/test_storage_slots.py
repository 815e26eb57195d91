"""Two slots and what is built on them, operation by operation: what is written where, what is
synced, and what counts when a file is found as a crash or damage left it."""

from __future__ import annotations

import errno
import os
import struct
from itertools import product
from pathlib import Path

import crc32c
import pytest

from ledgermq.proto.types import HardState, SyncedMark
from ledgermq.storage.files.errors import Damaged, PromisesLost, UnknownFormat, Unusable
from ledgermq.storage.files.ports import PAGE_BYTES, DiskFile
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.files.reserve import Reserve
from ledgermq.storage.files.sealed_json import write as write_sealed
from ledgermq.storage.files.slots import SlotFile, erase_fill, peek
from ledgermq.storage.log.synced_mark import SyncedMarkFile, erase_mark_fill, read_mark
from ledgermq.storage.state.hard_state import HardStateFile, erase_hard_state_fill, raise_term
from ledgermq.storage.state.recovered import RECOVERY_FILE, as_recovered, read_recovery
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import make_identity

MAGIC = b"TEST"


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is synced is observed, and need not be waited for."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


NONE, DAMAGED, OTHER_MAGIC, LATER = "none", "damaged", "another magic", "a later version"


def frame(sequence: int, payload: bytes, state: str = "") -> bytes:
    """A slot as format §7 has it, or one that does not count."""
    if state == NONE:
        return bytes(28)
    magic = b"LMXX" if state == OTHER_MAGIC else MAGIC
    head = struct.pack(">4siQ", magic, 3 if state == LATER else 1, sequence) + payload
    return head + struct.pack(">I", crc32c.crc32c(head) ^ (state == DAMAGED))


def slot_file(path: Path, first: bytes, second: bytes) -> str:
    path.write_bytes(first.ljust(PAGE_BYTES, b"\0") + second.ljust(PAGE_BYTES, b"\0"))
    return str(path)


def operations(disk: FaultyDisk) -> list[tuple[object, ...]]:
    """What was written or synced since the last call, without paths."""
    found = [
        (event[0], *event[2:3])
        for event in disk.trace
        if event[0] in ("pwrite", "sync", "rename", "sync_dir")
    ]
    disk.trace.clear()
    return found


def allocations(disk: FaultyDisk) -> list[bool]:
    """Whether each file that is created from now on has real blocks."""
    create, found = disk.create, list[bool]()

    def noted(path: str, size: int, *, allocate: bool) -> DiskFile:
        found.append(allocate)
        return create(path, size, allocate=allocate)

    disk.create = noted  # type: ignore[method-assign]
    return found


def test_a_new_file_gets_its_name_when_its_content_is_durable(tmp_path: Path) -> None:
    """An unfinished one of an earlier attempt does not matter."""
    disk, path = FaultyDisk(RealDisk()), str(tmp_path / "slots")
    (tmp_path / "slots.tmp").write_bytes(b"unfinished")
    blocks = allocations(disk)
    slots = SlotFile.create(disk, path, MAGIC, b"12345678")
    assert blocks == [True] and disk.names("sync_dir") == [("sync_dir", str(tmp_path))]
    assert operations(disk)[:4] == [("pwrite", 0), ("sync",), ("rename",), ("sync_dir",)]
    assert (tmp_path / "slots").read_bytes() == frame(1, b"12345678").ljust(2 * PAGE_BYTES, b"\0")
    assert (slots.sequence, slots.payload, slots.unsynced, disk.open_files) == (
        1,
        b"12345678",
        False,
        1,
    )
    slots.close()
    assert disk.open_files == 0


STATES = ("", NONE, DAMAGED, OTHER_MAGIC, LATER)


@pytest.mark.parametrize(("first", "second"), list(product((1, 2, 3), repeat=2)))
def test_the_valid_slot_with_the_higher_number_counts(
    tmp_path: Path, first: int, second: int
) -> None:
    """For its owner, who writes it again in place before it relies on it, and for a process that
    only looks."""
    for one, other in product(STATES, repeat=2):
        path = slot_file(
            tmp_path / "slots", frame(first, b"payload1", one), frame(second, b"payload2", other)
        )
        disk = FaultyDisk(RealDisk())
        valid = [(first, b"payload1", 0)] * (one == "") + [(second, b"payload2", 1)] * (other == "")
        if not valid:
            later = LATER in (one, other)
            with pytest.raises(
                UnknownFormat if later else PromisesLost,
                match="version 3" if later else "both slots",
            ):
                SlotFile.open(disk, path, MAGIC, 8)
            assert disk.open_files == 0
            with pytest.raises(Damaged, match="no slot"):
                peek(disk, path, MAGIC, 8)
            continue
        sequence, payload, slot = max(valid)
        before = Path(path).read_bytes()
        assert peek(disk, path, MAGIC, 8) == payload
        slots = SlotFile.open(disk, path, MAGIC, 8)
        assert (slots.sequence, slots.payload, slots.unsynced) == (sequence, payload, False)
        assert (
            operations(disk) == [("pwrite", slot * PAGE_BYTES), ("sync",)]
            and Path(path).read_bytes() == before
        )
        slots.write(b"written.")
        assert operations(disk) == [("pwrite", (1 - slot) * PAGE_BYTES)]
        slots.close()


def test_the_least_of_two_foreign_versions_is_named(tmp_path: Path) -> None:
    path = slot_file(
        tmp_path / "slots", struct.pack(">4siQ", MAGIC, 7, 1), struct.pack(">4siQ", MAGIC, 5, 1)
    )
    with pytest.raises(UnknownFormat, match="version 5, this program knows 1"):
        SlotFile.open(RealDisk(), path, MAGIC, 8)


@pytest.mark.parametrize("size", [0, 2 * PAGE_BYTES - 1, 2 * PAGE_BYTES + 1])
def test_a_file_of_another_length_holds_no_promise(tmp_path: Path, size: int) -> None:
    disk = FaultyDisk(RealDisk())
    (tmp_path / "slots").write_bytes(frame(1, b"12345678").ljust(size, b"\0")[:size])
    with pytest.raises(PromisesLost, match=f"has {size} bytes instead of 8192"):
        SlotFile.open(disk, str(tmp_path / "slots"), MAGIC, 8)
    assert disk.open_files == 0


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (27, None),
        (28, b"payload1"),
        (PAGE_BYTES + 5, b"payload1"),
        (PAGE_BYTES + 27, b"payload1"),
        (PAGE_BYTES + 28, b"payload2"),
    ],
)
def test_a_look_at_a_file_that_is_being_made(
    tmp_path: Path, size: int, found: bytes | None
) -> None:
    """A slot that is not complete yet does not count."""
    path = Path(slot_file(tmp_path / "slots", frame(1, b"payload1"), frame(2, b"payload2")))
    path.write_bytes(path.read_bytes()[:size])
    if found is None:
        with pytest.raises(Damaged):
            peek(RealDisk(), str(path), MAGIC, 8)
    else:
        assert peek(RealDisk(), str(path), MAGIC, 8) == found


def test_only_a_durable_value_lets_the_next_one_into_the_other_slot(tmp_path: Path) -> None:
    """Every order of writes, syncs and reports of syncs by others: at every moment the last durable
    value is intact."""
    for number, steps in enumerate(product(("write", "sync", "synced"), repeat=4)):
        disk = FaultyDisk(RealDisk())
        slots = SlotFile.create(disk, str(tmp_path / f"slots{number}"), MAGIC, bytes(8))
        at, unsynced, sequence = 0, False, 1
        disk.trace.clear()
        for step in steps:
            if step == "write":
                at, unsynced, sequence = at if unsynced else 1 - at, True, sequence + 1
                slots.write(sequence.to_bytes(8, "big"))
                assert operations(disk) == [("pwrite", at * PAGE_BYTES)]
            elif step == "sync":
                slots.sync()
                unsynced = False
                assert operations(disk) == [("sync",)]
            else:
                slots.synced()
                unsynced = False
                assert operations(disk) == []
            assert (slots.unsynced, slots.sequence, slots.payload) == (
                unsynced,
                sequence,
                (sequence.to_bytes(8, "big") if sequence > 1 else bytes(8)),
            )
        slots.close()


def test_a_lowered_value_is_written_to_both_slots_one_durably_after_the_other(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(RealDisk())
    slots = SlotFile.create(disk, str(tmp_path / "slots"), MAGIC, b"payload1")
    disk.trace.clear()
    slots.write_everywhere(b"payload0")
    assert operations(disk) == [("pwrite", PAGE_BYTES), ("sync",), ("pwrite", 0), ("sync",)]
    assert (tmp_path / "slots").read_bytes() == frame(3, b"payload0").ljust(
        PAGE_BYTES, b"\0"
    ) + frame(2, b"payload0").ljust(PAGE_BYTES, b"\0")


def test_only_the_slots_of_a_file_survive_an_erasure(tmp_path: Path) -> None:
    """In files that are not complete, too."""
    path = tmp_path / "slots"
    one, other = frame(1, b"payload1"), frame(2, b"payload2")
    path.write_bytes(one.ljust(PAGE_BYTES, b"x") + other.ljust(PAGE_BYTES, b"y"))
    erase_fill(RealDisk(), str(path), 8)
    assert path.read_bytes() == one.ljust(PAGE_BYTES, b"\0") + other.ljust(PAGE_BYTES, b"\0")


# Hard state


def test_a_hard_state_that_could_not_have_been_written_is_no_promise(tmp_path: Path) -> None:
    """Valid slots with an impossible content: a term below 0, or a vote of an impossible length.
    The bounds are possible."""
    for number, (term, length) in enumerate(product((-1, 0, 5), (-1, 0, 64, 65))):
        payload = struct.pack(">qi64s", term, length, b"n" * 64)
        slots = SlotFile.create(RealDisk(), str(tmp_path / f"{number}"), b"LMHS", payload)
        if term < 0 or not 0 <= length <= 64:
            with pytest.raises(PromisesLost, match=f"term {term} and a vote of {length} bytes"):
                HardStateFile(slots)
        else:
            assert HardStateFile(slots).value == HardState(term, "n" * length or None)


def test_which_hard_states_follow_one_another(tmp_path: Path) -> None:
    """Terms only rise, and a vote stays for its term. What is the same already is not written
    again; what is written is synced."""
    values = [HardState(term, vote) for term in (3, 4) for vote in (None, "n1", "n2")]
    for number, (old, new) in enumerate(product(values, repeat=2)):
        disk = FaultyDisk(RealDisk())
        state = HardStateFile.create(disk, str(tmp_path / f"{number}"))
        state.save(old)
        disk.trace.clear()
        if new.term > old.term or (new.term == old.term and old.vote in (None, new.vote)):
            state.save(new)
            assert state.value == new
            assert [event[0] for event in operations(disk)] == (
                [] if new == old else ["pwrite", "sync"]
            )
        else:
            with pytest.raises(AssertionError, match="must not become"):
                state.save(new)
            assert state.value == old and operations(disk) == []
        state.close()
        assert disk.open_files == 0


@pytest.mark.parametrize(
    ("term", "after"), [(6, HardState(7, "n1")), (7, HardState(7, "n1")), (8, HardState(8))]
)
def test_a_term_is_raised_to_that_of_a_log(tmp_path: Path, term: int, after: HardState) -> None:
    """And a vote in an earlier term is no vote in it."""
    disk, path = FaultyDisk(RealDisk()), str(tmp_path / "hardstate")
    state = HardStateFile.create(disk, path)
    state.save(HardState(7, "n1"))
    state.close()
    raise_term(disk, path, term)
    assert disk.open_files == 0
    assert HardStateFile.open(disk, path).value == after


def test_bytes_beside_hard_state_and_mark_are_erased(tmp_path: Path) -> None:
    disk = RealDisk()
    identity = make_identity()
    mark = SyncedMark(3, 7, 900, 5)
    HardStateFile.create(disk, str(tmp_path / "hardstate")).save(HardState(7, "n1"))
    SyncedMarkFile.create(disk, str(tmp_path / "syncedmark"), identity.log_id, mark).write_and_sync(
        mark
    )
    for name, length, erase in (
        ("hardstate", 96, erase_hard_state_fill),
        ("syncedmark", 88, erase_mark_fill),
    ):
        whole = (tmp_path / name).read_bytes()
        spoilt = b"".join(whole[at : at + length].ljust(PAGE_BYTES, b"x") for at in (0, PAGE_BYTES))
        (tmp_path / name).write_bytes(spoilt)
        erase(disk, str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == whole
    assert read_mark(disk, str(tmp_path / "syncedmark"), identity.log_id) == mark


# The synced mark


def test_a_mark_is_written_synced_and_lowered(tmp_path: Path) -> None:
    """What is written counts as synced when its owner, or a group commit, says so; a lower mark
    replaces both slots."""
    disk, path, log_id = (
        FaultyDisk(RealDisk()),
        str(tmp_path / "syncedmark"),
        make_identity().log_id,
    )
    marks = [SyncedMark(1, index, 100 * index, index) for index in range(6)]
    mark = SyncedMarkFile.create(disk, path, log_id, marks[1])
    assert (mark.value, mark.slots.unsynced, mark.slots.file.path) == (marks[1], False, path)
    disk.trace.clear()
    mark.write(marks[2])
    assert (mark.value, mark.slots.unsynced, operations(disk)) == (
        marks[2],
        True,
        [("pwrite", PAGE_BYTES)],
    )
    mark.slots.synced()
    assert (mark.slots.unsynced, operations(disk)) == (False, [])
    mark.write(marks[3])
    mark.sync()
    assert (mark.slots.unsynced, operations(disk)) == (False, [("pwrite", 0), ("sync",)])
    mark.write_and_sync(marks[4])
    assert (mark.value, mark.slots.unsynced, operations(disk)) == (
        marks[4],
        False,
        [("pwrite", PAGE_BYTES), ("sync",)],
    )
    mark.lower(marks[0])
    assert (mark.value, operations(disk)) == (
        marks[0],
        [("pwrite", 0), ("sync",), ("pwrite", PAGE_BYTES), ("sync",)],
    )
    assert read_mark(disk, path, log_id) == marks[0]
    mark.close()
    assert disk.open_files == 0


def test_a_mark_of_another_log_is_refused(tmp_path: Path) -> None:
    disk, path, log_id = (
        FaultyDisk(RealDisk()),
        str(tmp_path / "syncedmark"),
        make_identity().log_id,
    )
    SyncedMarkFile.create(disk, path, log_id, SyncedMark()).close()
    for refuse in (SyncedMarkFile.open, read_mark):
        with pytest.raises(Unusable, match=f"belongs to log {log_id}, not to {'0' * 36}"):
            refuse(disk, path, "0" * 36)  # type: ignore[operator]
    assert disk.open_files == 0


# The reserve


def test_a_reserve_is_held_while_there_is_room_for_it_twice(tmp_path: Path) -> None:
    """It is complete or not there, and is made once."""
    disk = FaultyDisk(RealDisk())
    reserve = Reserve(disk, str(tmp_path / "reserve"), 5000)
    assert not reserve.held and not reserve.release()
    disk.free = 9999
    assert not reserve.fill() and not reserve.held and disk.opened == 0
    disk.free = 10_000
    (tmp_path / "reserve.tmp").write_bytes(b"unfinished")
    blocks = allocations(disk)
    assert reserve.fill() and reserve.held and disk.open_files == 0
    assert blocks == [True] and disk.names("sync_dir") == [("sync_dir", str(tmp_path))]
    assert operations(disk) == [("sync",), ("rename",), ("sync_dir",)]
    assert [path.name for path in tmp_path.iterdir()] == ["reserve"] and (
        tmp_path / "reserve"
    ).stat().st_size == 5000
    disk.free = 0
    assert reserve.fill() and operations(disk) == []
    assert reserve.release() and not reserve.held and not reserve.release()


def test_no_reserve_of_no_size(tmp_path: Path) -> None:
    reserve = Reserve(RealDisk(), str(tmp_path / "reserve"), 0)
    assert not reserve.fill() and not reserve.held
    smallest = Reserve(RealDisk(), str(tmp_path / "reserve"), 1)
    assert smallest.fill() and smallest.fill() and smallest.held


@pytest.mark.parametrize(("name", "raises"), [("ENOSPC", False), ("EDQUOT", False), ("EIO", True)])
def test_reserve_without_room_is_absent_and_other_errors_raise(
    tmp_path: Path, name: str, raises: bool
) -> None:
    disk = FaultyDisk(RealDisk())
    disk.fail_creation(errno_of=name)
    reserve = Reserve(disk, str(tmp_path / "reserve"), 5000)
    if raises:
        with pytest.raises(OSError, match="made to fail") as failed:
            reserve.fill()
        assert failed.value.errno == getattr(errno, name)
    else:
        assert not reserve.fill()
    assert not reserve.held


def test_reserve_with_a_failed_sync_is_closed_and_removed(tmp_path: Path) -> None:
    disk = FaultyDisk(RealDisk())
    disk.syncs_fail = True
    reserve = Reserve(disk, str(tmp_path / "reserve"), 5000)
    with pytest.raises(OSError, match="Input/output error"):
        reserve.fill()
    assert disk.open_files == 0 and not reserve.held


# The record of a recovery


def test_finished_recovery_replaces_only_the_former_log_id(tmp_path: Path) -> None:
    """Only a former log id is replaced; nothing is while the recovery is not done."""
    disk, root, wanted = RealDisk(), str(tmp_path), make_identity()
    assert read_recovery(disk, root) is None and as_recovered(disk, root, wanted) == wanted
    record = {"v": 1, "state": "done", "log_id": "new", "former": ["old", wanted.log_id]}
    write_sealed(disk, f"{root}/{RECOVERY_FILE}", record)
    found = as_recovered(disk, root, wanted)
    assert found.log_id == "new" and found.replica == wanted.replica
    assert read_recovery(disk, root) == record
    write_sealed(disk, f"{root}/{RECOVERY_FILE}", {**record, "former": ["old"]})
    assert as_recovered(disk, root, wanted) == wanted
    write_sealed(disk, f"{root}/{RECOVERY_FILE}", {**record, "state": "begun"})
    with pytest.raises(Unusable, match="was interrupted"):
        as_recovered(disk, root, wanted)
    write_sealed(disk, f"{root}/{RECOVERY_FILE}", {**record, "v": 2})
    with pytest.raises(UnknownFormat, match="has version 2, this program knows 1"):
        as_recovered(disk, root, wanted)
