"""Installation of a replica from the object store and its peers: what the store gives, what it must
not, and what happens when it fails."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from ledgermq.node.replica.shipping.installation import Install
from ledgermq.sim.machine.disk import Killed
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from ledgermq.storage.tiered.ports import StoreFailure
from tests.shipping.shipping_material import (
    FILE_BYTES,
    NODES,
    ROOT,
    Replica,
    Wire,
    append,
    copy_to,
    identity_of,
    log_of,
    run,
    synced,
    write_snapshot,
)
from tests.shipping.test_shipping_install import check
from tests.storage.kill_points import DIVISIBLE, KillDisk, after_power_cut
from tests.tiered.fake_store import FakeStore

FILES = 6
"""Sealed files in the store; the last ones of the log are not sealed."""


@cache
def _material() -> tuple[dict[str, Replica], FakeStore, int]:
    """Two replicas with a log of some files, whose snapshot names the sealed ones; n1 has nothing.
    And the store, and the log's end."""
    made = {node: Replica(node) for node in NODES}
    stores = {node: replica.create() for node, replica in made.items()}
    for count, term, body_bytes in ((5, 1, 100), (60, 2, 300), (60, 4, 200)):
        copy_to(stores["n3"], append(stores["n2"], count, term=term, body_bytes=body_bytes))
    store = FakeStore()
    for node, opened in stores.items():
        synced(opened)
        if node != "n1":
            opened.queues.start({}, 0)
            write_snapshot(opened, opened.log.end_index - 5)
            value = opened.read_snapshot()
            assert value is not None
            value["retained"] = {"seals": [*seals(made[node], opened, store)]}
            opened.write_snapshot(value)
            opened.write_snapshot(value)
            opened.write_checkpoints(opened.log.end_index, StoreCheckpoint())
        end = stores["n2"].log.end_pos
    for opened in stores.values():
        opened.close()
    return made, store, end


def seals(replica: Replica, opened: GroupStore, store: FakeStore) -> Iterator[dict[str, Any]]:
    """The seals of the first files, which are put into the store."""
    log, index = opened.log, 0
    for base in range(0, FILES * FILE_BYTES, FILE_BYTES):
        last = next(
            at for at in range(index, log.end_index + 1) if log.pos_of(at + 1) >= base + FILE_BYTES
        )
        path = f"{log_of(replica.node)}/data/{file_name(base)}"
        sha256 = file_digest(replica.disk, path, lambda length: None)
        store.objects[f"g1/{opened.identity.log_id}/{file_name(base)}-{sha256}.log"] = (
            replica.disk.read_file(path)
        )
        end = log.read(last, 1).end_pos
        yield {
            "base": base,
            "first": index,
            "last": last,
            "end": end,
            "sha256": sha256,
            "replicas": ["n2", "n3"],
        }
        index = last + 1


class Case:
    def __init__(self) -> None:
        self.replicas, self.store, self.end = copy.deepcopy(_material())
        self.wire = Wire()

    def key(self, base: int) -> str:
        return next(key for key in self.store.objects if file_name(base) in key)

    def install(self, *, session: int = 7, disk: Any = None, store: bool = True) -> Install:
        where, others = disk or self.replicas["n1"].disk, list(NODES)
        own = self.store if store else None
        return Install.begin(
            where,
            ROOT,
            identity_of("n1"),
            others=others,
            source="n2",
            floor_pos=0,
            session=session,
            now_ns=self.wire.now_ns,
            store=own,
        )

    def run(self, new: Install, **options: Any) -> Any:
        return run(
            self.wire,
            {node: self.replicas[node].shipper() for node in ("n2", "n3")},
            {"n1": new},
            **options,
        )["n1"].progress

    def check(self) -> None:
        check(self.replicas["n1"], self.replicas["n2"])


@pytest.fixture
def case() -> Case:
    return Case()


def test_sealed_files_come_from_the_store_and_only_the_rest_from_peers(case: Case) -> None:
    """Counted: the store gives every sealed file once, byte for byte; peers give the snapshot and
    what lies behind the last sealed file."""
    assert case.end > (FILES + 1) * FILE_BYTES
    progress = case.run(case.install())
    case.check()
    assert progress.store_bytes == FILES * FILE_BYTES and case.store.requests == {"read": FILES}
    snapshot = len(case.replicas["n2"].disk.read_file(f"{ROOT}/state/snapshot"))
    assert progress.peer_bytes <= snapshot + case.end - FILES * FILE_BYTES
    assert progress.store_problem == ""
    for base in range(0, FILES * FILE_BYTES, FILE_BYTES):
        mine, theirs = (
            case.replicas[node].disk.read_file(f"{log_of(node)}/data/{file_name(base)}")
            for node in ("n1", "n2")
        )
        assert mine == theirs


def test_installation_without_a_store_fetches_from_peers(case: Case) -> None:
    progress = case.run(case.install(store=False))
    case.check()
    assert progress.store_bytes == 0 and progress.peer_bytes > FILES * FILE_BYTES // 2


@pytest.mark.parametrize("fails_at", range(FILES))
@pytest.mark.parametrize("fault", ["away", "missing", "other bytes", "short"])
def test_a_store_that_fails_at_any_point_costs_only_bytes(
    case: Case, fails_at: int, fault: str
) -> None:
    """The files before are used, the rest comes from the peers, and the reason is told."""
    key = case.key(fails_at * FILE_BYTES)
    data = case.store.objects[key]
    if fault == "missing":
        del case.store.objects[key]
    elif fault == "short":
        case.store.objects[key] = data[:-1]
    elif fault == "other bytes":
        case.store.objects[key] = data[:500] + bytes([data[500] ^ 1]) + data[501:]

    def before(operation: str, asked: str) -> None:
        if fault == "away" and asked == key:
            raise StoreFailure("the store is away")

    case.store.before = before
    progress = case.run(case.install())
    case.check()
    received = fails_at + (fault == "other bytes")
    assert (
        progress.store_bytes == received * FILE_BYTES
        and case.store.requests["read"] == fails_at + 1
    )
    assert progress.store_problem


def test_a_consistent_foreign_file_is_not_used(case: Case) -> None:
    """An object of another history, whose entries verify by themselves: the digest in the seal
    decides, before an entry is looked at."""
    keys = [case.key(base) for base in (0, FILE_BYTES)]
    case.store.objects[keys[1]] = case.store.objects[keys[0]]
    progress = case.run(case.install())
    case.check()
    assert "another file at" in progress.store_problem and progress.store_bytes == 2 * FILE_BYTES


def test_a_seal_that_does_not_fit_the_log_is_not_followed(case: Case) -> None:
    """The snapshot says that a file ends with an earlier entry: its entries are verified, the file
    is dropped, and peers give it."""
    for node in ("n2", "n3"):
        opened = case.replicas[node].open()
        value = opened.read_snapshot()
        assert value is not None
        value["retained"]["seals"][1]["last"] -= 1
        opened.write_snapshot(value)
        opened.write_snapshot(value)
        opened.close()
    progress = case.run(case.install())
    case.check()
    assert "do not continue the log" in progress.store_problem


def test_a_snapshot_without_seals_uses_no_store(case: Case) -> None:
    for node in ("n2", "n3"):
        opened = case.replicas[node].open()
        value = opened.read_snapshot()
        assert value is not None
        del value["retained"]
        opened.write_snapshot(value)
        opened.write_snapshot(value)
        opened.close()
    progress = case.run(case.install())
    case.check()
    assert progress.store_bytes == 0 and "names no sealed files" in progress.store_problem


def test_an_interrupted_installation_goes_on_where_it_was(case: Case) -> None:
    """Files that were verified stay, and are not fetched again."""
    first = case.install()
    case.run(first, until=lambda last: last["n1"].progress.store_bytes >= 3 * FILE_BYTES)
    first.close()
    second = case.install(session=1000)
    progress = case.run(second)
    case.check()
    kept = round(second.reused_bytes / FILE_BYTES)
    assert kept >= 2 and progress.store_bytes == (FILES - kept) * FILE_BYTES


def test_peers_give_the_rest_of_a_file_and_the_store_the_next_one(case: Case) -> None:
    """An attempt without a store ended in the middle of the second file."""
    before = copy.deepcopy(case.replicas["n1"].disk)
    whole = KillDisk(case.replicas["n1"].disk, -1, half=False)
    case.run(case.install(store=False, disk=whole))
    path = f"{log_of('n1')}/data/{file_name(FILE_BYTES)}.staged"
    at = next(
        number for number, operation in enumerate(whole.operations) if operation == ("pwrite", path)
    )
    case.replicas["n1"].disk, case.wire = before, Wire()
    with pytest.raises(Killed):
        case.run(case.install(store=False, disk=KillDisk(before, at, half=True)))
    second = case.install(session=1000)
    progress = case.run(second)
    case.check()
    assert (
        FILE_BYTES < second.reused_bytes < 2 * FILE_BYTES
        and progress.store_bytes == (FILES - 2) * FILE_BYTES
    )
    snapshot = len(case.replicas["n2"].disk.read_file(f"{ROOT}/state/snapshot"))
    assert (
        progress.peer_bytes <= snapshot + case.end - (FILES - 2) * FILE_BYTES - second.reused_bytes
    )


def test_installation_from_the_store_survives_a_power_cut(case: Case) -> None:
    """Finished means durable, also for files that got their bytes under another name."""
    case.replicas["n1"].disk.any_names = True
    case.run(case.install())
    for seed in range(5):
        check(
            Replica("n1", after_power_cut(case.replicas["n1"].disk, seed)),
            copy.deepcopy(case.replicas["n2"]),
        )


@pytest.mark.verify
def test_a_crash_at_any_point_is_continued(case: Case) -> None:
    """With the page cache kept, and after a power cut: the old log counts, or the new one; then the
    installation goes on to its end."""
    for replica in case.replicas.values():
        replica.disk.any_names = True
    base = copy.deepcopy(case.replicas)

    def attempt(at: int, half: bool) -> KillDisk:
        again = copy.copy(case)
        again.replicas, again.wire = copy.deepcopy(base), Wire()
        disk = KillDisk(again.replicas["n1"].disk, at, half=half)
        with contextlib.suppress(Killed):
            again.run(again.install(disk=disk))
        return disk

    whole = attempt(-1, False)
    ends = set()
    for at, (name, path) in enumerate(whole.operations):
        if at % 3 and ".received" not in path:
            continue
        for half in (False, True) if name in DIVISIBLE else (False,):
            killed = attempt(at, half).disk
            for cut in (False, True):
                again = copy.copy(case)
                again.replicas, again.wire = copy.deepcopy(base), Wire()
                again.replicas["n1"] = Replica(
                    "n1", after_power_cut(killed, at) if cut else copy.deepcopy(killed)
                )
                opened = again.replicas["n1"].open()
                ends.add(opened.log.end_index)
                opened.close()
                again.run(again.install(session=99))
                again.check()
    assert -1 in ends
