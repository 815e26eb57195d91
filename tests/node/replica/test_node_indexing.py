"""The key index beside a running group: it follows what is applied and durable, survives stops,
pauses on a full disk, ends with it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.ports import Fenced, Unreadable
from ledgermq.node.replica.background import indexing
from ledgermq.node.replica.background.indexing import Indexer
from ledgermq.node.replica.background.step_thread import StepThread
from ledgermq.node.runtime import metrics
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import Damaged, NoSpace
from ledgermq.storage.log.log_reader import Limits
from tests.node.replica.test_node_hosting import Driver, single
from tests.storage.key_material import ROOT, KeyLog, Message
from tests.storage.lookups import by_key

SMALL = {"key_index_slots": 50, "key_index_units": 100}


@pytest.fixture(autouse=True)
def no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Indexer, "gather_s", 0.0)


def driver_in(directory: Path) -> Driver:
    return Driver(single(directory, group=SMALL))


def produce(driver: Driver, names: list[str]) -> None:
    drafts = [
        Draft("t", 0, b"body", encode(Fields(message_id=name, keys=(f"key-{name}",))), 1)
        for name in names
    ]
    assert isinstance(driver.call(lambda token: Produce(token, drafts)), Produced)


def catch_up(driver: Driver) -> None:
    while driver.group.indexer.lag:
        driver.turn(elapsed_ns=1)


def found(driver: Driver, key: str) -> list[int]:
    return [one.index for one in by_key(driver.group.lookup, "t", key)]


def test_messages_are_found_by_key_across_stops_and_crashes(tmp_path: Path) -> None:
    """What was indexed stays found after a good stop; what a crash left behind is indexed again;
    nothing is found twice."""
    driver = driver_in(tmp_path)
    driver.configure()
    for life in range(6):
        produce(driver, [f"{life}-{number}" for number in range(70)])
        if life != 3:
            catch_up(driver)
        if life % 2:
            driver.crash()
        else:
            driver.group.close()
        driver = driver_in(tmp_path)
        catch_up(driver)
        for earlier in range(life + 1):
            assert (
                len(found(driver, f"{earlier}-69")) == len(found(driver, f"key-{earlier}-0")) == 1
            )
        assert found(driver, "absent") == []
    assert len(list((tmp_path / "g1" / "index").iterdir())) == 9
    driver.group.close()


def test_checkpoint_tells_how_far_the_index_is_durable(tmp_path: Path) -> None:
    """RocketMQ's third stamp is the store time of the last durable index entry."""
    driver = driver_in(tmp_path)
    driver.configure()
    produce(driver, ["a", "b"])
    catch_up(driver)
    driver.group.close()
    stamps = (tmp_path / "g1" / "checkpoint").read_bytes()
    assert stamps[16:24] == stamps[:8] != bytes(8)


def test_lag_and_lookup_time_are_metrics(tmp_path: Path) -> None:
    """The lag counts applied entries that are not indexed, in entries and in store time."""
    driver = driver_in(tmp_path)
    driver.configure()
    produce(driver, ["a"])
    catch_up(driver)
    group, index = driver.group, driver.group.key_index
    group.indexer._worker.stop()
    before = (
        metrics.REGISTRY.get_sample_value("ledgermq_lookup_seconds_count", {"broker_group": "g1"})
        or 0
    )
    assert len(found(driver, "a")) == 1
    assert (
        metrics.REGISTRY.get_sample_value("ledgermq_lookup_seconds_count", {"broker_group": "g1"})
        == before + 1
    )
    assert (
        metrics.REGISTRY.get_sample_value("ledgermq_key_index_lag_entries", {"broker_group": "g1"})
        == 0
    )
    group.indexer.advance(
        Limits(0, index.next_index + 3, 0), index.next_index + 2, index.store_ms + 2500
    )
    assert (
        metrics.REGISTRY.get_sample_value("ledgermq_key_index_lag_entries", {"broker_group": "g1"})
        == 3
    )
    assert (
        metrics.REGISTRY.get_sample_value("ledgermq_key_index_lag_seconds", {"broker_group": "g1"})
        == 2.5
    )
    group.close()


def stepper(log: KeyLog) -> Indexer:
    """An indexer whose thread never runs: the test does its steps."""
    return Indexer("g1", log.index, log.reader, StepThread("index-g1"))


def steps(indexer: Indexer) -> int:
    count = 0
    while indexer._step(0.0):
        count += 1
    return count


def test_pieces_are_small_and_syncs_come_with_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step reads a bounded piece; after a number of bytes the index is synced, and a full file
    gets a verified filter."""
    monkeypatch.setattr(indexing, "STEP_BYTES", 1000)
    monkeypatch.setattr(indexing, "SYNC_EVERY_BYTES", 3000)
    log = KeyLog()
    log.send(*[Message(f"m{number}") for number in range(40)])
    indexer = stepper(log)
    assert steps(indexer) >= 8
    assert log.index.next_index == 40 and 0 < int(str(log.position()["next"])) <= 40
    assert len(log.disk.listdir(f"{ROOT}/state/bloom")) == 2 == len(log.index._filter_of)
    assert (
        not indexer._step(0.0)
        and indexer._step(indexing.SYNC_EVERY_S * 1e9)
        and log.position()["next"] == 40
    )


@pytest.mark.parametrize("where", ["pwrite", "create", "replace_file", "mkdirs"])
def test_full_disk_pauses_the_key_index_without_a_gap(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reports a full disk, and once there is room the index continues without a gap."""
    log = KeyLog()
    log.send(*[Message(f"m{number}") for number in range(50)])
    indexer = stepper(log)
    monkeypatch.setattr(indexing, "SYNC_EVERY_BYTES", 1)
    with monkeypatch.context() as full:
        owner: Any = (
            type(log.disk.open(f"{ROOT}/dledger-n1/syncedmark"))
            if where == "pwrite"
            else ForgetfulDisk
        )
        full.setattr(owner, where, _raises(OSError(errno.ENOSPC, "No space left on device")))
        for _ in range(5):
            indexer._step(0.0)
        assert indexer._paused
    steps(indexer)
    assert not indexer._paused and log.index.next_index == 50
    assert [len(by_key(log.lookup, "t", f"m{number}")) for number in range(50)] == [1] * 50


def _raises(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.EIO, "Input/output error"), Fenced),
        (Damaged("rotten"), Damaged),
        (NoSpace("full"), None),
    ],
)
def test_failure_of_the_thread_ends_the_next_turn(
    error: Exception, raised: type[Exception] | None
) -> None:
    """A disk that fails for another reason than being full ends the node, as everywhere (invariant
    I9)."""
    log = KeyLog()
    log.send(Message("m"))
    indexer = stepper(log)
    log.index.append = _raises(error)  # type: ignore[method-assign]
    indexer.start()
    if raised is None:
        while not indexer._paused:
            pass
        indexer.advance(log.reader.limits, 0, 0)
        indexer.close()
        return
    while indexer.failure is None:
        pass
    with pytest.raises(raised):
        indexer.advance(log.reader.limits, 0, 0)
    with pytest.raises(raised):
        indexer.close()


def test_a_page_of_the_log_that_cannot_be_read_is_damage() -> None:
    """The replica is repaired, as for every other reader; the node does not end."""
    log = KeyLog()
    log.send(Message("m"))
    indexer = stepper(log)
    log.reader.read = _raises(OSError(errno.EIO, "Input/output error"))  # type: ignore[method-assign]
    with pytest.raises(Unreadable, match="Input/output error"):
        indexer._step(0.0)


def test_trim_is_carried_out_by_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention only determines where the log begins; the index removes older keys and
    continues."""
    monkeypatch.setattr(indexing, "SYNC_EVERY_BYTES", 1)
    log = KeyLog()
    log.send(*[Message(f"m{number}") for number in range(70)])
    indexer = stepper(log)
    steps(indexer)
    assert len(log.files()) == 4
    indexer.trim(log.messages[45][0])
    assert indexer._step(0.0) and len(log.files()) == 2
    log.send(Message("late"))
    log.reader.limits = Limits(71, 71, log.log.end_pos)
    steps(indexer)
    assert log.index.next_index == 71 and by_key(log.lookup, "t", "late") == []


def test_stop_does_not_wait_for_a_long_load(tmp_path: Path) -> None:
    """Closing breaks off making the slots: the position stays what it was."""
    log = KeyLog(units=100)
    log.send(*[Message(f"m{number}") for number in range(50)])
    log.catch_up()
    log.index.sync()
    log.open(clean=False)
    indexer = stepper(log)
    indexer._worker.stop()
    assert not indexer._step(0.0) and not log.index._loaded
    indexer.close()
    assert log.position()["next"] == 50
