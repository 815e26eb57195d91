"""Bit rot is found by the first reader: the scrub, a replay or a delivery; damaged data is never
used."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.calls.read_calls import Peek
from ledgermq.node.broker.ports import Fenced, Unreadable
from ledgermq.node.replica.background import scrubbing
from ledgermq.node.replica.background.scrubbing import Plan, Scrub
from ledgermq.node.replica.background.step_thread import StepThread
from ledgermq.node.replica.hosting.hosted_groups import open_groups
from ledgermq.node.runtime import metrics
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.files.real_disk import RealDisk
from tests.node.replica.test_node_hosting import Driver, filled, single


def rot(directory: Path, body: bytes) -> None:
    """Flip a bit of the stored bytes after `body`'s first place in the log."""
    path = next((directory / "g1" / "dledger-n1" / "data").iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(body)
    data[at] ^= 1
    path.write_bytes(data)


def scrub_of(directory: Path, found: Callable[[Any], None]) -> Scrub:
    """A scrub whose thread never runs: the test does its steps."""
    worker = StepThread("scrub-g1")
    return Scrub("g1", RealDisk(), str(directory / "g1"), found, dict, Plan(1 << 40), worker)


def read_all(scrub: Scrub) -> None:
    """Read each file that is due."""
    steps = scrub.steps()
    while not next(steps).wakes:
        continue
    steps.close()


def scrubbed(directory: Path) -> Unreadable | None:
    """Scrub each file of a closed directory once."""
    found: list[Any] = []
    read_all(scrub_of(directory, found.append))
    return found[0] if found else None


def test_scrub_finds_a_flipped_bit_and_passes_an_intact_log(tmp_path: Path) -> None:
    """Every byte of every committed entry is under a CRC; a log that is whole is called whole."""
    filled(tmp_path).group.close()
    assert scrubbed(tmp_path) is None
    rot(tmp_path, b"m30")
    damage = scrubbed(tmp_path)
    assert (
        damage is not None
        and isinstance(damage.failure, LogDamaged)
        and "is damaged" in str(damage)
    )


def test_scrub_damage_ends_the_next_turn(tmp_path: Path) -> None:
    """The group is informed between two turns, and stops reading the log."""
    driver = filled(tmp_path)
    driver.group.fail(Unreadable(LogDamaged("entry 30 is damaged")))
    with pytest.raises(Unreadable, match="entry 30"):
        driver.turn()
    driver.group.abandon()


def test_a_failure_of_the_disk_is_not_replaced_by_damage(tmp_path: Path) -> None:
    """Both are reported between turns by different threads: in either order, only the end of the
    process may end the group (I9)."""
    driver = filled(tmp_path)
    driver.group.fail(Fenced("the digests could not be written"))
    driver.group.fail(Unreadable(LogDamaged("entry 30 is damaged")))
    for leave in (driver.turn, driver.group.abandon, driver.group.close):
        with pytest.raises(Fenced, match="digests"):
            leave()
    driver.crash()


def test_a_key_index_that_failed_ends_the_process_also_when_damage_ends_the_run(
    tmp_path: Path,
) -> None:
    """The turn that would have raised it never comes."""
    driver = filled(tmp_path)
    driver.group.indexer.failure = Fenced("the key index failed")
    with pytest.raises(Fenced, match="key index"):
        driver.group.abandon()
    driver.group.store.abandon()


def test_an_opened_group_is_scrubbed_once_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rot that a clean start does not look at is known soon after it, without anybody reading the
    entry."""
    filled(tmp_path).group.close()
    rot(tmp_path, b"m30")
    told = threading.Event()
    monkeypatch.setattr(scrubbing.Scrub, "_report", lambda scrub, what: told.set())
    opened = open_groups(single(tmp_path), RealDisk())["g1"].group
    assert told.wait(20)
    opened.close()


def test_a_rotten_message_is_never_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of an earlier life is held against its CRC before anybody gets it."""
    filled(tmp_path).group.close()
    monkeypatch.setattr(scrubbing.Scrub, "start", lambda scrub: None)
    rot(tmp_path, b"m30")
    driver = Driver(single(tmp_path))
    with pytest.raises(Unreadable, match="not what was stored"):
        driver.call(lambda token: Peek(token, "t", 0, 0, 10_000))
    driver.group.abandon()


def test_when_a_message_of_an_earlier_life_was_stored_can_be_asked(tmp_path: Path) -> None:
    """For lag in time and positions by time. Such a message is read as a whole in order to verify
    it."""
    filled(tmp_path).group.close()
    driver = Driver(single(tmp_path))
    driver.call(lambda token: Peek(token, "t", 0, 0, 10_000))
    machine = driver.group.machine
    stored = [
        machine.stored_ms("t", 0, offset)
        for offset in range(machine.begin("t", 0), machine.end("t", 0))
    ]
    assert stored and stored == sorted(stored) and stored[0] > 0
    assert machine.offset_at("t", 0, stored[0]) == 0
    driver.group.close()


def test_a_rotten_entry_is_never_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read to be applied has its CRCs computed, unless this process wrote or verified it
    already."""
    filled(tmp_path).group.close()
    monkeypatch.setattr(scrubbing.Scrub, "start", lambda scrub: None)
    driver = Driver(single(tmp_path))
    end = driver.group.replicator.end_index
    assert driver.group.replicator.read(2, 1 << 20).first_index == 2
    rot(tmp_path, b"m30")
    with pytest.raises(Unreadable, match="not what was stored"):
        driver.group.replicator.read(2, 1 << 20)
    assert driver.group.replicator.read(end, 1 << 20).last_index == end
    driver.group.abandon()


def test_rot_that_a_start_reads_is_told_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that has to read entries believes none that is not what was stored; a replica without
    peers ends with 75."""
    driver = filled(tmp_path)
    driver.group.scrub.stop()
    driver.group.store.log.flush_mark()
    driver.crash()
    rot(tmp_path, b"m30")
    with pytest.raises(LogDamaged, match="not what was stored"):
        open_groups(single(tmp_path), RealDisk())


def test_a_note_that_cannot_be_written_is_left_out_or_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk spoils nothing: the next process begins with another file. A failed sync is
    final, whatever was being written (I9)."""
    filled(tmp_path).group.close()
    for number, final in ((28, False), (24, False), (5, True)):
        told: list[Any] = []
        scrub = scrub_of(tmp_path, told.append)

        def fail(number: int = number) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr(scrub._scrubber, "write_note", fail)
        read_all(scrub)
        assert [type(failure) for failure in told] == ([Fenced] if final else [])


def test_the_oldest_unverified_byte_is_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown before the first look; then the age of what was written; after a pass next to
    nothing, whatever was written long ago. A node that no longer has the group says nothing of
    it."""
    filled(tmp_path).group.close()
    monkeypatch.setattr(StepThread, "now_ms", lambda worker: 1 << 50)
    scrub = scrub_of(tmp_path, lambda found: None)

    def metric() -> float | None:
        return metrics.REGISTRY.get_sample_value(
            "ledgermq_oldest_unverified_seconds", {"broker_group": "g1"}
        )

    before = metric()
    assert before is not None and math.isnan(before)
    assert scrub._scrubber.due() == 0
    assert (metric() or 0) > 3600
    read_all(scrub)
    assert metric() == 0
    scrub.stop()
    assert metric() is None
