"""Carrying out a planned repair: killed at every operation and cut from power, it is finished by
itself or by the node, never half done."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace

import pytest

from ledgermq.proto.records.repair_plan import DirectoryRepair, FileRepair, MarkRepair, Piece
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.storage.files.errors import Damaged, LogDamaged, NoSpace, Unusable
from ledgermq.storage.repair.mending import MARKER
from ledgermq.storage.repair.replacing import FENCE, SourceChanged, carry_out
from tests.shipping.shipping_material import (
    FILE_BYTES,
    ROOT,
    Replica,
    Wire,
    identity_of,
    log_of,
    replicas,
    run,
    write_snapshot,
)
from tests.shipping.test_shipping_repair import data, entry_places, overwrite
from tests.storage.kill_points import DIVISIBLE, KillDisk, after_power_cut
from tests.storage.repair_notes import read_notes

PEER = "/peer"
LAST = 52


def sha(raw: bytes) -> str:
    return hashlib.sha256(hashlib.sha256(raw).digest()).hexdigest()


def damaged() -> tuple[Replica, dict[str, bytes], DirectoryRepair]:
    """A replica with two damaged log files, a derived file that is wrong, a slot of its mark gone
    and its hard state damaged outside of the slots; what it held; and the plan."""
    group = replicas()
    store = group["n1"].open()
    write_snapshot(store, LAST)
    store.close()
    victim, before = group["n1"], group["n1"].log_files()
    disk, files = victim.disk, []
    disk.mkdirs(PEER)
    for number, at in ((0, 700), (1, 100)):
        raw = before[f"{number * FILE_BYTES:020d}"]
        path = f"{PEER}/{number * FILE_BYTES:020d}"
        disk.create(path, FILE_BYTES, allocate=True).close()
        overwrite(disk, path, 0, raw)
        overwrite(disk, data("n1", number), at, b"\xff" * 50)
        own = data("n1", number)
        pieces = (Piece(0, at, own), Piece(at, at + 60, path), Piece(at + 60, FILE_BYTES, own))
        files.append(FileRepair(number * FILE_BYTES, pieces, sha(raw), "a test", "the test knows"))
    for directory in ("/", PEER, f"{log_of('n1')}/data"):
        disk.sync_dir(directory)
    slots = disk.read_file(f"{log_of('n1')}/syncedmark")
    # The older one: the mark stays where it is.
    overwrite(
        disk, f"{log_of('n1')}/syncedmark", 0 if slots[8:16] < slots[4104:4112] else 4096, bytes(88)
    )
    overwrite(disk, f"{log_of('n1')}/syncedmark", 700, b"\x01")
    overwrite(disk, f"{log_of('n1')}/hardstate", 5000, b"\x01")
    index = next(name for name in disk.listdir(f"{log_of('n1')}/index"))
    overwrite(disk, f"{log_of('n1')}/index/{index}", 0, b"\xff" * 32)
    identity = identity_of("n1")
    derived = (f"dledger-n1/index/{index}", "consumequeue/")
    plan = DirectoryRepair(
        "/data",
        "g1",
        "n1",
        identity.log_id,
        identity.incarnation,
        tuple(files),
        None,
        derived,
        True,
        True,
    )
    return victim, before, plan


def carried_out(disk: object, plan: DirectoryRepair) -> list[str]:
    said: list[str] = []
    carry_out(disk, plan, "r1", lambda: 7, said.append)  # type: ignore[arg-type]
    return said


def test_files_are_exchanged_and_every_step_is_noted() -> None:
    """Log files are complete, derived files are removed, both slots have the mark, term and vote
    stay, zeros follow the entries, no unfinished file is left, and the log opens."""
    victim, before, plan = damaged()
    voted = victim.disk.read_file(f"{log_of('n1')}/hardstate")
    said = carried_out(victim.disk, plan)
    assert victim.log_files() == before
    steps = [line["step"] for line in read_notes(victim.disk, ROOT)]
    assert steps == ["begun", "file", "file", "mark", "hardstate", "dropped", "exchanged"] and len(
        said
    ) == len(steps)
    assert not victim.disk.exists(f"{log_of('n1')}/{MARKER}")
    assert not [
        path for path in victim.disk.files() if "/consumequeue/" in path or path.endswith(".alloc")
    ]
    slots = victim.disk.read_file(f"{log_of('n1')}/syncedmark")
    assert slots[16:84] == slots[4096 + 16 : 4096 + 84] and slots[:4] == slots[4096:4100] == b"LMSM"
    assert not any(slots[88:4096]) and not any(slots[4096 + 88 :])
    voted = voted[:5000] + b"\0" + voted[5001:]
    assert victim.disk.read_file(f"{log_of('n1')}/hardstate") == voted
    victim.open().close()


def test_a_crash_at_any_point_is_finished_by_the_same_plan_or_by_the_node() -> None:
    """The fence exists from before the first change until after the last: a directory that opens
    without it is complete."""
    victim, before, plan = damaged()
    peer = replicas()["n2"]
    whole = KillDisk(copy.deepcopy(victim.disk))
    carried_out(whole, plan)
    assert len(whole.operations) > 30
    for at in range(len(whole.operations)):
        for half in (False, True) if whole.operations[at][0] in DIVISIBLE else (False,):
            killed = copy.deepcopy(victim.disk)
            with pytest.raises(Killed):
                carried_out(KillDisk(killed, at, half=half), plan)
            for left in (killed, after_power_cut(killed, at)):
                again = Replica("n1", copy.deepcopy(left))
                fenced = again.disk.exists(f"{log_of('n1')}/{MARKER}")
                assert fenced or again.log_files() in (before, victim.log_files()), (
                    whole.operations[at]
                )
                carried_out(again.disk, plan)
                assert again.log_files() == before, whole.operations[at]
                again.open().close()
                if not fenced:
                    continue
                node = Replica("n1", left)
                with pytest.raises(LogDamaged):
                    node.open()
                assert run(Wire(), {"n2": peer.shipper()}, {"n1": node.repair()})["n1"].finished
                assert node.log_files() == before, whole.operations[at]


def test_changed_source_is_refused_before_files_are_exchanged() -> None:
    victim, _, plan = damaged()
    held = victim.log_files()
    overwrite(victim.disk, f"{PEER}/{0:020d}", 710, b"\x01")
    with pytest.raises(SourceChanged, match="audit again"):
        carried_out(victim.disk, plan)
    assert victim.log_files() == held and victim.disk.read_file(f"{log_of('n1')}/{MARKER}") == FENCE


def test_a_file_that_the_disk_refuses_to_give_is_replaced_without_being_read() -> None:
    victim, before, plan = damaged()
    whole = Piece(0, FILE_BYTES, f"{PEER}/{0:020d}")
    victim.disk.break_page(data("n1", 0), 700)
    carried_out(
        victim.disk, replace(plan, files=(replace(plan.files[0], pieces=(whole,)), *plan.files[1:]))
    )
    assert victim.log_files() == before


def test_another_replica_and_an_interrupted_repair_of_the_node_are_refused() -> None:
    """Nothing was written."""
    victim, _, plan = damaged()
    before = {path: victim.disk.read_file(path) for path in victim.disk.files()}
    with pytest.raises(Unusable, match="audit again"):
        carried_out(victim.disk, replace(plan, incarnation="7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d2f"))
    assert {path: victim.disk.read_file(path) for path in victim.disk.files()} == before
    victim.disk.replace_file(f"{log_of('n1')}/{MARKER}", b"repair\n")
    with pytest.raises(Damaged, match="start the node"):
        carried_out(victim.disk, plan)


def test_a_node_that_goes_on_with_an_exchange_in_place_says_so() -> None:
    """From its first write on the fence means what a repair in place means: what verifies may not
    be durable."""
    victim, _, plan = damaged()
    peer = replicas()["n2"]
    started = KillDisk(copy.deepcopy(victim.disk), 20)
    with pytest.raises(Killed):
        carried_out(started, plan)
    assert started.disk.read_file(f"{log_of('n1')}/{MARKER}") == FENCE
    held = Replica("n1", copy.deepcopy(started.disk)).log_files()
    seen = 0
    for at in range(10_000):
        node = Replica("n1", copy.deepcopy(started.disk))
        kill = KillDisk(node.disk, at)
        try:
            run(Wire(), {"n2": peer.shipper()}, {"n1": Replica("n1", kill).repair()})  # type: ignore[arg-type]
        except Killed:
            if node.log_files() != held:
                seen += 1
                marker = f"{log_of('n1')}/{MARKER}"
                assert not node.disk.exists(marker) or node.disk.read_file(marker) != FENCE
            continue
        break
    assert seen


def test_replacement_on_a_full_disk_is_refused_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, _, plan = damaged()
    before = {path: victim.disk.read_file(path) for path in victim.disk.files()}
    monkeypatch.setattr(ForgetfulDisk, "free_bytes", lambda disk, path: FILE_BYTES)
    with pytest.raises(NoSpace, match="free disk space"):
        carried_out(victim.disk, plan)
    assert {path: victim.disk.read_file(path) for path in victim.disk.files()} == before


def test_another_history_is_cut_where_the_majority_ends_and_kept_beside() -> None:
    """Files behind the end go, the mark follows, the term is raised; what was there is kept as it
    was."""
    group = replicas()
    victim, before, places = group["n1"], group["n1"].log_files(), entry_places(group["n1"])
    last = max(index for index, (pos, _) in enumerate(places) if pos < FILE_BYTES)
    end = places[last][0] + places[last][1]
    first = before[f"{0:020d}"]
    raw = first[:end] + bytes(FILE_BYTES - end)
    chain = int.from_bytes(first[places[last][0] + 36 : places[last][0] + 40], "big")
    term = int.from_bytes(first[places[last][0] + 16 : places[last][0] + 24], "big")
    identity = identity_of("n1")
    file = FileRepair(
        0,
        (Piece(0, end, data("n1", 0)), Piece(end, FILE_BYTES, None)),
        sha(raw),
        "a test",
        "the test knows",
        keep=True,
    )
    mark = MarkRepair(term, last, end, chain)
    derived = ("dledger-n1/index/",)
    carried_out(
        victim.disk,
        DirectoryRepair(
            "/data", "g1", "n1", identity.log_id, identity.incarnation, (file,), mark, derived
        ),
    )
    store = victim.open()
    assert (store.log.end_index, store.log.end_pos, store.log.end_chain) == (last, end, chain)
    store.close()
    beside = f"{ROOT}/state/replaced"
    kept = {
        name.partition(".")[0]: victim.disk.read_file(f"{beside}/{name}")
        for name in victim.disk.listdir(beside)
    }
    assert (
        kept == {name: raw for name, raw in before.items() if name in kept}
        and f"{0:020d}" in kept
        and len(kept) > 1
    )


def test_lines_of_the_repair_log_are_only_added() -> None:
    """A damaged line stays, and is passed over."""
    victim, _, plan = damaged()
    victim.disk.replace_file(f"{ROOT}/state/repairs", b"not a line\n")
    carried_out(victim.disk, plan)
    assert victim.disk.read_file(f"{ROOT}/state/repairs").startswith(b"not a line\n{")
    assert [line["when_ms"] for line in read_notes(victim.disk, ROOT)] == [7] * 7
