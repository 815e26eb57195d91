"""Where the time of a start goes: every phase is measured by the clock it is given, and none is
counted twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.log.phases import PHASES, Phases
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import RealDisk, append, make_identity


def counter(step: int = 1) -> Callable[[], int]:
    """A clock that advances by `step` at each call."""
    now = 0

    def clock() -> int:
        nonlocal now
        now += step
        return now

    return clock


def test_phases_add_up_and_count_for_themselves() -> None:
    """A phase within another is not counted twice, and one that is entered again adds to what it
    had."""
    phases = Phases(counter())
    with phases.phase("log_files"):
        with phases.phase("index"):
            pass
        with phases.phase("index"):
            pass
    assert (phases.spent_ns["index"], phases.spent_ns["log_files"]) == (2, 3)
    with phases.phase("log_files"):
        pass
    assert phases.spent_ns["log_files"] == 4


def test_a_phase_that_fails_is_counted() -> None:
    """What was spent before a failure is known too."""
    phases = Phases(counter())
    try:
        with phases.phase("queues"):
            raise OSError
    except OSError:
        pass
    assert phases.spent_ns["queues"] == 1


def test_every_phase_of_the_store_is_measured(tmp_path: Path) -> None:
    """The store's own phases take the time of the disk accesses made in them; the node adds
    snapshot, queues and replay."""
    disk = FaultyDisk(RealDisk())
    root = str(tmp_path / "g1")
    GroupStore.create(disk, root, make_identity())
    store = GroupStore.open(disk, root, make_identity())
    append(store.log, 30)
    store.log.flush_mark()
    append(store.log, 30)
    store.abandon()
    phases = Phases(lambda: len(disk.trace))
    began = len(disk.trace)
    GroupStore.open(disk, root, make_identity(), phases=phases).abandon()
    spent = {name for name, ns in phases.spent_ns.items() if ns}
    assert spent == set(PHASES) - {"snapshot", "queues", "replay"}
    assert sum(phases.spent_ns.values()) >= (len(disk.trace) - began) * 0.8, (
        "most of what a start does belongs to a phase"
    )
