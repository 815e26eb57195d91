"""A crash between any two file operations, and in the middle of any write, leaves a store that
recovers to every acknowledged message.

The default run takes the kill points of every scenario with the page cache kept and with a power
cut, and samples second crashes; the slow run leaves none out and takes more second crashes.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable

import pytest

from ledgermq.proto.types import HardState
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.storage.files.slots import SlotFile
from tests.storage.key_material import KeyLog, official_files
from tests.storage.kill_points import (
    DIVISIBLE,
    Act,
    KillDisk,
    Owner,
    Promises,
    after_power_cut,
    crashes,
    prepared,
    run,
    verify,
)
from tests.storage.test_storage_key_index import some as some_messages


def born(owner: Owner) -> None:
    owner.create()
    owner.open()


def filled(count: int) -> Act:
    """An open store with durable entries, one snapshot and a checkpoint."""

    def act(owner: Owner) -> None:
        born(owner)
        owner.append(count)
        owner.sync()
        owner.dispatch()
        owner.snapshot()
        owner.checkpoint()

    return act


def left_open(count: int) -> tuple[ForgetfulDisk, Promises]:
    return prepared(filled(count), lambda owner: owner.store.abandon())


def stopped(count: int) -> tuple[ForgetfulDisk, Promises]:
    return prepared(filled(count), Owner.close)


def append(owner: Owner) -> None:
    """Entries one by one and in batches, some of them durable."""
    owner.open()
    owner.append(1)
    owner.append(4)
    owner.sync()
    owner.append(2, term=2)
    owner.sync(idle=True)
    owner.append(1, term=2)


def roll(owner: Owner) -> None:
    """Over two file boundaries within one batch, and over one with a blank of its own sync."""
    owner.open()
    owner.append(30, body_bytes=200)
    owner.sync()
    owner.append(1, body_bytes=3000)
    owner.append(1, body_bytes=3000)
    owner.sync()
    owner.sync(idle=True)


def early(owner: Owner) -> None:
    """A file ends early behind durable entries, one behind others; that one is cut back over its
    blank, and the log goes on there."""
    owner.open()
    owner.append(1, new_file=True)
    owner.sync()
    owner.append(2)
    owner.append(3, term=2, new_file=True)
    owner.sync()
    owner.truncate(owner.log.end_index - 2)
    owner.append(2, term=3)
    owner.sync(idle=True)


def sync(owner: Owner) -> None:
    """Group commits with writes that arrive while they run, and marks that lag."""
    owner.open()
    for term in (1, 2, 3):
        owner.append(3, term=term)
        job = owner.log.begin_sync()
        assert job is not None
        owner.append(2, term=term)
        job.run()
        owner.log.finish_sync(job, None)
        owner._promise()
    owner.sync()
    owner.sync(idle=True)


def truncate(owner: Owner) -> None:
    """Back over a file boundary and below the mark, then on with another history, twice."""
    owner.open()
    owner.append(20, term=2, body_bytes=300)
    owner.sync()
    owner.sync(idle=True)
    owner.truncate(22)
    owner.append(4, term=3)
    owner.truncate(20)
    owner.append(12, term=4, body_bytes=300)
    owner.sync()


def checkpoint(owner: Owner) -> None:
    """Write the two hint files repeatedly."""
    owner.open()
    for _ in range(3):
        owner.append(2)
        owner.sync()
        owner.checkpoint()


def snapshot(owner: Owner) -> None:
    """Snapshots in the course of time, with units dispatched behind them."""
    owner.open()
    for _ in range(3):
        owner.append(4)
        owner.sync()
        owner.dispatch()
        owner.snapshot()
        owner.append(3)
        owner.sync()
        owner.dispatch()


def index_build(owner: Owner) -> None:
    """The index files are gone and are built again from the log."""
    for name in owner.disk.disk.listdir(INDEX):
        owner.disk.unlink(f"{INDEX}/{name}")
    owner.open()


def queues_build(owner: Owner) -> None:
    """The consume queues are gone and are built again from the log."""
    for name in owner.disk.disk.listdir(QUEUE):
        owner.disk.unlink(f"{QUEUE}/{name}")
    owner.open()
    owner.snapshot()


def hard_state(owner: Owner) -> None:
    """Terms and votes."""
    owner.open()
    for term in range(1, 5):
        owner.save(HardState(term, None))
        owner.save(HardState(term, f"n{term % 3}"))


def bootstrap(owner: Owner) -> None:
    """The making of a replica, its first entry and its first vote."""
    born(owner)
    owner.append(1)
    owner.sync()
    owner.save(HardState(1, "n1"))


def close(owner: Owner) -> None:
    """A clean stop with all work pending."""
    owner.open()
    owner.append(5)
    owner.sync()
    owner.dispatch()
    owner.append(3)
    owner.close()


FAST_STRIDE = {"trim": 3, "snapshot": 2, "queues build, trimmed": 2}
"""The default run leaves out kill points of the longest scenarios."""
EXTRA_OPERATIONS = 12
"""What a recovery after a recovery may do besides: the abort file again, unfinished files, one file
ahead."""
EXTRA_BYTES = 32 << 10


def trim(owner: Owner) -> None:
    """Two files go, later one more."""
    owner.open()
    owner.trim(owner.first_of_file(2))
    owner.append(3, term=2)
    owner.sync()
    owner.trim(owner.first_of_file(1))
    owner.sync()


INDEX = "/data/n1/g1/dledger-n1/index"
QUEUE = "/data/n1/g1/consumequeue/t/0"


def nothing() -> tuple[ForgetfulDisk, Promises]:
    return prepared()


SCENARIOS: dict[str, tuple[Callable[[], tuple[ForgetfulDisk, Promises]], Act]] = {
    "append": (lambda: left_open(8), append),
    "roll": (lambda: stopped(8), roll),
    "early": (lambda: left_open(8), early),
    "sync": (lambda: stopped(3), sync),
    "truncate": (lambda: left_open(20), truncate),
    "checkpoint": (lambda: stopped(3), checkpoint),
    "snapshot": (lambda: stopped(3), snapshot),
    "index build": (lambda: stopped(30), index_build),
    "queues build": (lambda: stopped(30), queues_build),
    "queues build, trimmed": (
        lambda: prepared(filled(60), lambda owner: owner.trim(owner.first_of_file(2)), Owner.close),
        queues_build,
    ),
    "hard state": (lambda: stopped(3), hard_state),
    "bootstrap": (nothing, bootstrap),
    "close": (lambda: stopped(8), close),
    "trim": (lambda: stopped(60), trim),
}


def check(name: str, disk: ForgetfulDisk, promises: Promises) -> None:
    try:
        verify(copy.deepcopy(disk), promises)
    except Exception as error:
        raise AssertionError(f"killed at {name}: {error}") from error


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_crash_at_any_operation_keeps_acknowledged_data(scenario: str) -> None:
    """Killed before or half-way through every operation, with the page cache kept and with a power
    cut: every promise holds."""
    prepare, act = SCENARIOS[scenario]
    for number, (name, disk, promises) in enumerate(
        crashes(*prepare(), act, FAST_STRIDE.get(scenario, 1))
    ):
        check(name, disk, promises)
        check(f"{name}, then a power cut", after_power_cut(disk, number), promises)


def second_crashes(
    name: str, disk: ForgetfulDisk, promises: Promises, seed: int, stride: int
) -> None:
    """Kill the recovery from a crash, too; then cut the power as well."""
    if not disk.exists("/data/n1/g1/identity.json"):
        return
    recovery, _, done = run(disk, promises, Owner.open)
    assert done
    for at in range(seed % stride, len(recovery.operations), stride):
        for half in (False, True) if recovery.operations[at][0] in DIVISIBLE else (False,):
            again, told, done = run(disk, promises, Owner.open, at, half=half)
            assert not done
            check(f"{name}, again at {at}", again.disk, told)
            check(
                f"{name}, again at {at}, then a power cut", after_power_cut(again.disk, seed), told
            )


@pytest.mark.one_in(6)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_second_crash_during_recovery_is_fine_too(scenario: str) -> None:
    """A sample of kill points of the recovery from a sample of crashes."""
    prepare, act = SCENARIOS[scenario]
    for number, (name, disk, promises) in enumerate(crashes(*prepare(), act, stride=11)):
        second_crashes(
            name, after_power_cut(disk, number) if number % 2 else disk, promises, number, stride=13
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("scenario", ["append", "roll", "truncate", "index build"])
def test_a_crash_loop_ends_and_costs_no_more_each_time(scenario: str, cut: bool) -> None:
    """Killed in every life a little later: no recovery does more than the first one would have, and
    the last one keeps every promise."""
    prepare, act = SCENARIOS[scenario]
    disk, promises, _ = run(*prepare(), act, 40)
    medium = disk.disk
    first, _, done = run(medium, promises, Owner.open)
    assert done
    life = 0
    while True:
        dying, promises, done = run(medium, promises, Owner.open, life)
        # A recovery that was cut short may have to write again what the first one would have found
        # written: never more than all of it.
        assert len(dying.operations) <= len(first.operations) + EXTRA_OPERATIONS
        assert dying.bytes_read <= first.bytes_read * 2 + EXTRA_BYTES
        medium = after_power_cut(dying.disk, life) if cut else dying.disk
        if done:
            break
        life += 1
    assert life > 10
    check("the crash loop", medium, promises)


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_more_crashes(scenario: str) -> None:
    """Every kill point with another power cut, and more second crashes."""
    prepare, act = SCENARIOS[scenario]
    for number, (name, disk, promises) in enumerate(crashes(*prepare(), act)):
        check(name, disk, promises)
        cut = after_power_cut(disk, 1000 + number)
        check(f"{name}, then another power cut", cut, promises)
        second_crashes(name, cut, promises, number, stride=29)


# The key index has an owner of its own: a thread beside the log, behind what is committed.


def indexing(
    base: KeyLog, medium: ForgetfulDisk, at: int = -1, *, half: bool = False
) -> tuple[KillDisk, bool]:
    """Open the key index of a log and bring it up to date in small steps. Returns the disk as the
    process left it."""
    disk = KillDisk(copy.deepcopy(medium), at, half=half)
    log = copy.copy(base)
    log.disk = disk
    try:
        log.open(clean=False)
        assert log.index.load(itertools.repeat(None))
        while log.index.next_index < log.reader.limits.end_index:
            piece = log.reader.read(log.index.next_index, 2500)
            assert piece is not None
            log.index.append(piece)
            log.index.sync()
    except Killed:
        return disk, False
    return disk, True


def check_keys(base: KeyLog, medium: ForgetfulDisk, name: str) -> None:
    """The next process creates the same files as an undisturbed index."""
    disk, done = indexing(base, medium)
    assert done
    log = copy.copy(base)
    log.disk = disk.disk
    assert log.files() == official_files(base), f"killed at {name}: the key index differs"


def test_a_crash_anywhere_in_indexing_leaves_the_same_key_index() -> None:
    """Killed before or half-way through every operation, with the page cache kept and with a power
    cut: byte for byte the same index."""
    base = KeyLog(slots=5, units=12)
    base.send(*some_messages(30, 3))
    base.make_durable()
    medium = base.disk
    assert isinstance(medium, ForgetfulDisk)
    medium.any_names = True
    whole, done = indexing(base, medium)
    assert done
    for at in range(0, len(whole.operations), 2):
        name, path = whole.operations[at]
        for half in (False, True) if name in DIVISIBLE else (False,):
            dying, done = indexing(base, medium, at, half=half)
            assert not done
            check_keys(base, dying.disk, f"{at} {name} {path}")
            check_keys(
                base, after_power_cut(dying.disk, at), f"{at} {name} {path}, then a power cut"
            )


@pytest.mark.parametrize("kept", [False, True])
def test_a_slot_file_that_has_its_name_has_its_value(kept: bool) -> None:
    """Killed anywhere while it is made, with nothing or everything unsynced surviving: under its
    final name it is whole."""
    at, made = 0, False
    while not made:
        medium = ForgetfulDisk()
        medium.mkdirs("/d")
        disk = KillDisk(medium, at)
        with contextlib.suppress(Killed):
            SlotFile.create(disk, "/d/slots", b"TEST", b"value")
            made = True
        medium.power_cut_keeping(frozenset(medium.unsynced_pages()) if kept else frozenset())
        if medium.exists("/d/slots"):
            assert SlotFile.open(medium, "/d/slots", b"TEST", 5).payload == b"value", at
        at += 1
    assert at > 5
