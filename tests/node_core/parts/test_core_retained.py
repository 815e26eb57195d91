"""Seals, trims and pins as the core keeps them: decided once, applied the same everywhere, found
again in a snapshot."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import Ack
from ledgermq.node.broker.calls.operator_calls import Configure, Kept, Seal, Trim
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.retention.retained import TRIMS_KEPT, Retained
from ledgermq.node.replica.retention import retention_facts
from ledgermq.node.replica.retention.pins import PINS_MAX, TTL_MS_MAX, PinBook, TooManyPins
from ledgermq.node.replica.retention.retention_facts import (
    FileBook,
    consumed_queues,
    consumer_pins,
    follower_pins,
)
from ledgermq.proto.names import STORAGE_TOPIC
from ledgermq.proto.records.control import SealRecord, TrimRecord
from ledgermq.proto.records.time_epochs import NO_EPOCHS
from ledgermq.proto.types import GroupConfig, PeerProgress, Role
from tests.node_core.core_fakes import Bench, MemoryQueues, handle
from tests.storage import log_material

S = 1_000_000_000
SEAL = SealRecord(0, 0, 4, 900, "ab" * 32, ("n1", "n2"))
TRIM = TrimRecord(5, 1000, 1, 77, 0, ((0, "ab" * 32),), "time")


def led() -> Bench:
    bench = Bench()
    bench.lead()
    bench.configure()
    return bench


def test_seal_and_trim_are_answered_once_applied_and_proposed_once() -> None:
    """What is so already proposes nothing, neither beside the first one in the same turn nor
    later."""
    bench = led()
    tokens = [next(bench.tokens) for _ in range(6)]
    end = bench.log.end_index
    bench.turn(
        Seal(tokens[0], SEAL),
        Seal(tokens[1], replace(SEAL, sha256="cd" * 32)),
        Trim(tokens[2], TRIM),
    )
    bench.turn()
    assert bench.log.end_index == end + 2
    assert (
        bench.machine.begin_index == 5
        and bench.machine.begin_pos == 1000
        and bench.machine.seals == {}
    )
    assert [trim.record for trim in bench.machine.trims] == [
        TRIM
    ] and bench.machine.retained.trim_index == end + 2
    bench.turn(
        Trim(tokens[3], TRIM), Trim(tokens[4], replace(TRIM, begin_index=3)), Seal(tokens[5], SEAL)
    )
    assert bench.log.end_index == end + 2
    assert all(bench.done[token] == Kept() for token in tokens)


def test_trim_uses_reserve_that_deliveries_may_not() -> None:
    """Only a trim makes room on a full disk: leases and acknowledgements cannot use up what it
    needs, nor slip in beside it."""
    bench = led()
    # Enough of them to use the reserve up before the attempts.
    bench.send(*map(str, range(200)))
    bench.replicator.full = True
    while leases := bench.receive(n=1, invisible_ms=0):
        last = leases
    assert last[0].attempt < 17
    ack, trim, seal = (
        Ack(next(bench.tokens), [handle(last[0])]),
        Trim(next(bench.tokens), TRIM),
        Seal(next(bench.tokens), SEAL),
    )
    end = bench.log.end_index
    bench.turn(ack, seal, trim)
    assert bench.done[trim.token] == Kept() and bench.machine.begin_index == 5
    assert bench.done[ack.token] == bench.done[seal.token] == Refused("disk-full")
    assert bench.log.end_index == end + 1
    bench.replicator.full_for_control = True
    again = Trim(next(bench.tokens), replace(TRIM, begin_index=9))
    assert bench.ask(again) == Refused("disk-full")


def test_leases_that_a_trim_ended_are_not_awaited_after_a_full_disk() -> None:
    """The range of a trim record that met a full disk is applied again: the leases that the first
    attempt ended must still be reported."""
    bench = led()
    bench.send("a", "b")
    assert len(bench.receive(invisible_ms=1000)) == 2
    bench.queues.full = True
    trim = Trim(next(bench.tokens), replace(TRIM, begin_pos=bench.log.end_pos))
    assert bench.ask(trim) is None
    bench.queues.full = False
    bench.turn()
    assert bench.done[trim.token] == Kept() and bench.machine.delivery.in_flight == 0
    bench.pass_time(5 * S)
    assert bench.group.statistics()["visible_again"] == 0


def test_trim_on_a_follower_is_refused() -> None:
    """Only the one writer proposes."""
    bench = Bench()
    assert bench.ask(Trim(next(bench.tokens), TRIM)) == Refused("not-leader", None)


def test_first_seal_of_a_file_stands_and_goes_with_it() -> None:
    """Two leaders may record two seals of one file; every replica keeps the first, until the file
    is trimmed."""
    kept = Retained()
    kept.apply_seal(SEAL)
    kept.apply_seal(replace(SEAL, sha256="cd" * 32))
    kept.apply_seal(replace(SEAL, base=1000))
    assert kept.seals == {0: SEAL, 1000: replace(SEAL, base=1000)}
    kept.apply_trim(9, 50, TRIM)
    assert kept.seals == {1000: replace(SEAL, base=1000)}
    kept.apply_seal(SEAL)
    assert 0 not in kept.seals, "a seal of a file that is gone says nothing"


def test_trims_move_forward_only_and_their_digest_covers_all_of_them() -> None:
    """The last ones are remembered in full; the rolling digest speaks of every one, in order."""
    kept, expected = Retained(), ""
    for number in range(1, TRIMS_KEPT + 3):
        record = replace(
            TRIM,
            begin_index=5 * number,
            begin_pos=1000 * number,
            files=((1000 * (number - 1), None),),
        )
        kept.apply_trim(10 * number, number, record)
        kept.apply_trim(10 * number + 1, number, record)
        expected = hashlib.sha256(expected.encode() + record.encode()).hexdigest()
    assert len(kept.trims) == TRIMS_KEPT and kept.trim_digest == expected
    assert kept.trim_of(1000 * TRIMS_KEPT) == kept.trims[-2] and kept.trim_of(0) is None
    again = Retained()
    again.restore(json.loads(json.dumps(kept.export())))
    assert again.export() == kept.export() and (again.trims, again.begin_index) == (
        kept.trims,
        kept.begin_index,
    )


def test_retained_state_is_equal_for_any_ranges_and_after_a_snapshot() -> None:
    """Whatever ranges the same entries come in, a second machine ends in the same state, and so
    does one that starts from a snapshot."""
    bench = led()
    bench.turn(Seal(next(bench.tokens), SEAL))
    bench.turn(Trim(next(bench.tokens), TRIM))
    other = Machine(MemoryQueues(), bench.log.record)
    while other.applied_index < bench.log.end_index:
        other.apply(bench.log.read(other.applied_index + 1))
    restored = Machine(MemoryQueues(), bench.log.record)
    restored.restore(json.loads(json.dumps(other.export("log"))))
    for machine in (other, restored):
        assert machine.retained.export() == bench.machine.retained.export()
        assert machine.trims[0].store_ms == bench.machine.trims[0].store_ms > 0
    assert restored.trim_digest == bench.machine.trim_digest != ""


def file_book(tmp_path: Path, applied: int | None = None) -> tuple[FileBook, Any]:
    """A log over three files and a bit, everything durable."""
    log = log_material.new_log(tmp_path / "log")
    for _ in range(8):
        log_material.append(log, 8)
    log_material.sync(log)
    machine: Any = SimpleNamespace(
        time_epochs=NO_EPOCHS,
        begin_pos=0,
        begin_index=0,
        applied_index=log.end_index if applied is None else applied,
        store_ms=1_700_000_000_500,
    )
    return FileBook(log, machine, log_material.FILE_BYTES), log


def test_file_book_finds_the_boundaries_of_every_file(tmp_path: Path) -> None:
    """First and last entry, end, chain and store time of each file, without gaps; the active one is
    not sealed."""
    book, log = file_book(tmp_path)
    files = book.files()
    assert len(files) >= 3 and [file.base for file in files] == [
        k * log_material.FILE_BYTES for k in range(len(files))
    ]
    assert files[0].first_index == 0 and files[-1].last_index == log.end_index
    for file, following in pairwise(files):
        assert (
            following.first_index == file.last_index + 1
            and log.pos_of(following.first_index) == following.base
        )
        assert (file.last_term, file.last_chain) == (1, log.chain_at(file.last_index))
        assert (
            file.sealed
            and file.end_pos <= file.next_base
            and file.last_store_ms == 1_700_000_000_500
        )
    assert not files[-1].sealed
    assert book.files() == files
    log.close()


def test_file_book_looks_at_many_files_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step ends after a number of new files; known files are not read again."""
    monkeypatch.setattr(retention_facts, "LOOKS_A_STEP", 1)
    book, log = file_book(tmp_path)
    steps = 1
    while not book.advance():
        steps += 1
    assert steps == len(book.files()) >= 3
    monkeypatch.setattr(book, "_look", None)
    assert book.advance() and len(book.files()) == steps
    log.close()


def test_file_is_sealed_only_when_its_successor_holds_a_committed_entry(tmp_path: Path) -> None:
    """As long as the next file's first entry may be cut off, the blank behind this file's last
    entry may go with it."""
    book, log = file_book(tmp_path, applied=0)
    assert not any(file.sealed for file in book.files())
    machine: Any = book._machine
    machine.applied_index = book.files()[1].first_index - 1
    assert not book.files()[0].sealed
    machine.applied_index += 1
    assert [file.sealed for file in book.files()[:2]] == [True, False]
    log.close()


def test_records_about_files_alone_are_not_worth_a_seal(tmp_path: Path) -> None:
    """What a seal leaves in the next file is no reason to end that file too; whatever else is
    applied there is."""
    book, log = file_book(tmp_path)
    machine: Any = book._machine
    assert book.sealable() == log.end_index
    before = log.end_index
    log_material.append(log, 1, topic=STORAGE_TOPIC, new_file=True)
    log_material.append(log, 2, topic=STORAGE_TOPIC)
    for applied, wanted in ((before - 1, before - 1), (before, before), (log.end_index, before)):
        machine.applied_index = applied
        assert book.sealable() == wanted
    log_material.append(log, 1)
    assert book.sealable() == before, "it is not applied yet"
    machine.applied_index = log.end_index
    assert book.sealable() == log.end_index
    log.close()


def test_file_book_begins_where_the_records_say(tmp_path: Path) -> None:
    """Files that are still on disk but trimmed by a record are no part of the log any more."""
    book, log = file_book(tmp_path)
    second = book.files()[1]
    machine: Any = book._machine
    machine.begin_pos, machine.begin_index = second.base, second.first_index
    assert book.files()[0] == second
    assert book.pos_after(0) == second.base and book.pos_after(second.first_index) == log.pos_of(
        second.first_index + 1
    )
    log.close()


def test_follower_pins_entries_it_lacks_and_an_unknown_one_the_whole_log(tmp_path: Path) -> None:
    """A voter without contact to the leader may need any entry; one that has all entries needs
    none."""
    book, log = file_book(tmp_path)
    peers = [
        PeerProgress("n2", Role.FOLLOWER, 20, 20),
        PeerProgress("n3", Role.FOLLOWER, None, None),
    ]
    pins = list(follower_pins(book, ("n1", "n2", "n3"), "n1", peers, log.end_index, 0))
    assert [(pin.kind, pin.pos) for pin in pins] == [("follower", log.pos_of(21)), ("follower", 0)]
    level = [
        PeerProgress(node, Role.FOLLOWER, log.end_index, log.end_index) for node in ("n2", "n3")
    ]
    assert not list(follower_pins(book, ("n1", "n2", "n3"), "n1", level, log.end_index, 0))
    assert len(list(follower_pins(book, ("n1", "n2", "n3"), "n1", [], log.end_index, 0))) == 2
    log.close()


def test_a_follower_that_is_silent_for_long_is_not_waited_for(tmp_path: Path) -> None:
    """The wait ends exactly after the configured time; without a time it never ends."""
    book, log = file_book(tmp_path)
    peers = [
        PeerProgress("n2", Role.FOLLOWER, 20, 20, silent_ms=60_000),
        PeerProgress("n3", Role.FOLLOWER, None, None, silent_ms=59_999),
    ]
    pins = list(follower_pins(book, ("n1", "n2", "n3"), "n1", peers, log.end_index, 60_000))
    assert [(pin.holder, pin.waived) for pin in pins] == [
        ("n2", "it was not heard for 1 min"),
        ("n3", ""),
    ]
    assert not any(
        pin.waived for pin in follower_pins(book, ("n1", "n2", "n3"), "n1", peers, log.end_index, 0)
    )
    log.close()


def test_configured_groups_pin_their_first_unfinished_message() -> None:
    """A leased message pins until it is acknowledged, an unread one until it is read; other groups
    pin nothing."""
    bench = led()
    bench.ask(Configure(next(bench.tokens), groups=(GroupConfig("", "g"),)))
    bench.send("a", "b", "c")
    leases = bench.receive(n=1), bench.receive(group="stranger", n=1)

    def pinned() -> list[int]:
        return [pin.pos for pin in consumer_pins(bench.machine, consumed_queues(bench.machine))]

    places = bench.machine.units("t", 0, 0, 3)[0].tolist()
    assert pinned() == [places[0]]
    bench.ack(*leases[0])
    assert pinned() == [places[1]]
    bench.ack(*bench.receive(n=5))
    assert pinned() == []


def test_a_group_pins_queues_it_has_not_come_to_yet() -> None:
    """It reads the topic, so it will read them; a topic it never read from pins nothing."""
    bench = Bench()
    bench.lead()
    bench.configure(queues=2)
    bench.configure("other")
    bench.ask(Configure(next(bench.tokens), groups=(GroupConfig("", "g"), GroupConfig("", "idle"))))
    bench.send("second", queue=1)
    bench.send("first", queue=0)
    bench.send("unread", topic="other")
    place = int(bench.machine.units("t", 1, 0, 1)[0][0])
    bench.machine.delivery.apply_lease(0, "g", "t", "c", None, [], [(0, 0, 1)], [])
    assert [
        (pin.pos, pin.holder)
        for pin in consumer_pins(bench.machine, consumed_queues(bench.machine))
    ] == [(place, "g")]


def test_pins_end_by_drop_or_time_and_are_bounded() -> None:
    """A renewed pin lives on, one that ran out cannot be renewed; neither number nor time is
    without limit."""
    book = PinBook()
    book.take("a", 500, "audit", 10_000, 0)
    book.take("b", 300, "backup", 20_000, 0)
    assert (
        book.lowest(0) == 300
        and [pin.pos for pin in book.pins(0)] == [500, 300]
        and "audit" in book.pins(0)[0].detail
    )
    assert book.renew("a", 30_000, 9 * S)
    assert book.lowest(20 * S) == 500 and not book.renew("b", 1, 20 * S)
    assert book.drop("a") and not book.drop("a") and book.lowest(20 * S) is None
    for number in range(PINS_MAX):
        book.take(str(number), 0, "r", 10 * TTL_MS_MAX, 0)
    with pytest.raises(TooManyPins):
        book.take("more", 0, "r", 1, 0)
    assert book.lowest(TTL_MS_MAX * 1_000_000) is None
