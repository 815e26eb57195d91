"""Repair of a range while the log stays open: what is put back, what proves it, and what is refused
without a byte changed."""

from __future__ import annotations

import copy
import errno
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping import range_repair as range_repairs
from ledgermq.node.replica.shipping.ports import RebuildOutput
from ledgermq.node.replica.shipping.range_repair import RangeRepair
from ledgermq.node.replica.shipping.shipping import ShipperOutput
from ledgermq.node.replica.shipping.shipping_wire import FactsWanted, decode
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.raft.config import Rule
from ledgermq.sim.machine.disk import ForgetfulDisk, ForgetfulFile, Killed
from ledgermq.storage.files.errors import LogDamaged, StorageError
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.repair.mending import MARKER
from tests.example_counts import examples
from tests.shipping.shipping_material import (
    FILE_BYTES,
    NODES,
    ROOT,
    STANDARD,
    Batches,
    Replica,
    Wire,
    append,
    identity_of,
    log_of,
    replicas,
    run,
    synced,
    write_snapshot,
)
from tests.shipping.test_shipping_repair import data, entry_places, overwrite, spoil
from tests.storage.kill_points import KillDisk, after_power_cut
from tests.storage.repair_notes import read_notes

LAST = 52
"""Index of the last entry of the standard logs."""


def range_repair(
    replica: Replica,
    first: int,
    last: int,
    *,
    disk: Disk | None = None,
    rule: Rule = Rule.MAJORITY,
    master: str | None = None,
    committed: int = LAST,
) -> RangeRepair:
    identity, about = (
        identity_of(replica.node),
        {"rule": rule, "voters": NODES, "master": master, "committed_index": committed},
    )
    return RangeRepair(
        disk or replica.disk,
        ROOT,
        identity,
        first,
        last,
        others=NODES,
        **about,
        session=7,
        now_ns=0,
        now_ms=5,
    )  # type: ignore[arg-type]


def carried_out(
    group: Mapping[str, Replica], repair: RangeRepair, wire: Wire | None = None
) -> RebuildOutput:
    """Let n1 repair from the others. Returns the result."""
    shippers = {node: replica.shipper() for node, replica in group.items() if node != "n1"}
    ended = run(
        wire or Wire(),
        shippers,
        {"n1": repair},
        until=lambda last: last["n1"].finished or last["n1"].refused is not None,
    )["n1"]
    repair.close()
    return ended


def everything(disk: ForgetfulDisk) -> dict[str, bytes]:
    return {path: disk.read_file(path) for path in disk.files()}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_a_range_is_put_back_byte_for_byte_while_the_log_is_appended_to(
    loss: float, early: bool
) -> None:
    """Across a file's end, early or not, blank included; the owner keeps its files open, appends
    before, meanwhile and after, and reads it all."""
    group = replicas(early=early)
    places = entry_places(group["n1"])
    across = next(
        at
        for at in range(1, len(places))
        if places[at][0] // FILE_BYTES > places[at - 1][0] // FILE_BYTES
    )
    before = group["n1"].log_files()
    victim = group["n1"]
    for index in range(across - 2, across + 3):
        spoil(victim, places[index][0] + 60)
    overwrite(victim.disk, data("n1", places[across - 1][0] // FILE_BYTES), FILE_BYTES - 3, b"\xee")
    store = victim.open()
    append(store, 3, term=6)
    repair = range_repair(victim, across - 2, across + 2)
    output = carried_out(group, repair, Wire(4, loss=loss, delay_ms=(1, 30)))
    assert output.finished and repair.source in ("n2", "n3") and repair.written_bytes > 0
    assert (
        len(repair.repaired) == 1 and f"entries {across - 2} to {across + 2}" in repair.repaired[0]
    )
    append(store, 3, term=6)
    synced(store)
    index, chain = 0, store.log.chain_at(-1)
    while index <= store.log.end_index:
        entries = store.log.read(index, 1 << 16)
        chain = verify_range(
            bytes(entries.data), index, entries.term, entries.pos, chain
        ).last_chain
        index = entries.last_index + 1
    store.close()
    after, end = victim.log_files(), places[-1][0] + places[-1][1]
    assert all(
        after[name][: max(0, end - int(name))] == raw[: max(0, end - int(name))]
        for name, raw in before.items()
    )
    assert not victim.disk.exists(f"{log_of('n1')}/{MARKER}")
    (line,) = read_notes(victim.disk, ROOT)
    assert (line["step"], line["first"], line["last"], line["source"]) == (
        "range",
        across - 2,
        across + 2,
        repair.source,
    )


def test_repair_of_an_intact_range_writes_no_bytes() -> None:
    """A repeated request changes nothing, so a caller that lost the first answer may ask again."""
    group = replicas()
    places = entry_places(group["n1"])
    spoil(group["n1"], places[20][0] + 70)
    assert carried_out(group, range_repair(group["n1"], 20, 20)).finished
    again = range_repair(group["n1"], 20, 20)
    whole = everything(group["n1"].disk)
    assert carried_out(group, again).finished
    assert (again.repaired, again.written_bytes, again.source) == ([], 0, "")
    assert everything(group["n1"].disk) == whole


@pytest.mark.parametrize(
    ("first", "last"), [(0, 0), (0, 5), (LAST, LAST), (LAST - 3, LAST), (0, LAST)]
)
def test_the_first_and_the_last_entries_are_put_back_too(first: int, last: int) -> None:
    group = replicas()
    places = entry_places(group["n1"])
    assert len(places) == LAST + 1
    before = group["n1"].log_files()
    for index in range(first, last + 1):
        spoil(group["n1"], places[index][0] + 8)
    repair = range_repair(group["n1"], first, last)
    assert carried_out(group, repair).finished, repair
    assert group["n1"].log_files() == before


def test_one_peer_is_enough_where_this_replica_knows_both_ends_itself() -> None:
    """A body is damaged, headers stand: with one peer that makes two of three. Without a known end
    both peers are needed."""
    group = replicas()
    places = entry_places(group["n1"])
    spoil(group["n1"], places[20][0] + 70)
    wire = Wire()
    wire.cut.add("n3")
    repair = range_repair(group["n1"], 20, 20)
    assert carried_out(group, repair, wire).finished and repair.source == "n2"
    spoil(group["n1"], places[20][0] + 8)
    whole = everything(group["n1"].disk)
    refused = carried_out(group, range_repair(group["n1"], 20, 20), wire)
    assert (
        refused.refused is not None
        and "no majority" in refused.refused
        and "no answer from n3" in refused.refused
    )
    assert everything(group["n1"].disk) == whole


def lagging(batches: Batches, committed: int | None = None) -> dict[str, Replica]:
    """The standard logs, but n3 has these entries, and recorded this number of them as
    confirmed."""
    return {**replicas(), "n3": replicas(batches, committed=committed)["n3"]}


SHORT: Batches = (*STANDARD,)[:2]
LOST_TAIL: Batches = (*(*STANDARD,)[:3], (25, 2, 70))
"""Entries of the standard logs up to 20, then those of an epoch that was lost."""


@pytest.mark.parametrize(
    ("there", "noted"), [(SHORT, None), (LOST_TAIL, 20)], ids=["short", "lost-tail"]
)
@pytest.mark.parametrize("master", [None, "n1", "n2"])
@pytest.mark.parametrize("rule", [Rule.IN_SYNC, Rule.ALL])
def test_the_confirmed_is_put_back_where_no_majority_holds_it(
    there: Batches, noted: int | None, master: str | None, rule: Rule
) -> None:
    """n1 and n2 are in sync, and n1 lost the headers: one of three has them. The chain of n1 after
    the range continues from this copy."""
    group = lagging(there, noted)
    before = group["n1"].log_files()
    for index in (30, 31, 32):
        spoil(group["n1"], entry_places(group["n1"])[index][0] + 8)
    refused = carried_out(group, range_repair(group["n1"], 30, 32))
    assert refused.refused is not None and "no majority" in refused.refused
    repair = range_repair(group["n1"], 30, 32, rule=rule, master=master)
    assert carried_out(group, repair).finished and repair.source == "n2"
    assert group["n1"].log_files() == before


@pytest.mark.parametrize("case", ["recorded", "master", "alone", "nobody"])
def test_ha_range_repair_needs_the_confirmed_history(case: str) -> None:
    """A replica that recorded another entry as confirmed contradicts, and so does a master with
    another entry; a tail of a lost epoch proves nothing; entries that only this replica had are
    lost."""
    group = (
        lagging(SHORT)
        if case == "nobody"
        else lagging(LOST_TAIL, None if case == "recorded" else 20)
    )
    spoil(group["n1"], entry_places(group["n1"])[30][0] + 8)
    whole, wire = everything(group["n1"].disk), Wire()
    if case in ("alone", "nobody"):
        wire.cut.add("n2")
    repair = range_repair(
        group["n1"], 30, 30, rule=Rule.IN_SYNC, master="n3" if case == "master" else None
    )
    refused = carried_out(group, repair, wire).refused
    said = {"alone": "the entry behind it", "nobody": "holds entry 30; no answer from n2"}
    assert (
        refused is not None
        and said.get(case, "n3 tells of another entry 30 as confirmed") in refused
    )
    assert everything(group["n1"].disk) == whole


def test_a_source_that_is_damaged_itself_is_left_for_another_one() -> None:
    """n2 lost the same entry, and a further one in the range: what it gave in front of that counts,
    n3 gives the rest."""
    group = replicas()
    places = entry_places(group["n1"])
    before = group["n1"].log_files()
    for index in (18, 20, 21):
        spoil(group["n1"], places[index][0] + 70)
    spoil(group["n2"], places[20][0] + 70)
    repair = range_repair(group["n1"], 18, 22)
    assert carried_out(group, repair).finished and repair.source == "n3"
    assert group["n1"].log_files() == before


class Liar:
    """Reports the state of one replica, and sends the entries of another one."""

    def __init__(self, told: Replica, sent: Replica) -> None:
        self._told, self._sent = told.shipper(), sent.shipper()

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> ShipperOutput:
        about = [
            found
            for found in packets
            if isinstance(decode(found[1], found[0]).content, FactsWanted)
        ]
        told = self._told.turn(now_ns, about)
        sent = self._sent.turn(now_ns, [found for found in packets if found not in about])
        return ShipperOutput((*told.packets, *sent.packets), sent.wake_at_ns)


def test_entries_that_verify_and_lead_elsewhere_are_not_written() -> None:
    """Another history from the same beginning: every entry continues the one before, and the last
    one is not the proven one."""
    group, other = (
        replicas(),
        replicas(batches=((10, 2, 100), (8, 2, 300), (3, 2, 1500), (12, 3, 50), (20, 5, 200))),
    )
    assert [size for _, size in entry_places(other["n1"])] == [
        size for _, size in entry_places(group["n1"])
    ]
    spoil(group["n1"], entry_places(group["n1"])[3][0] + 70)
    whole = everything(group["n1"].disk)
    repair = range_repair(group["n1"], 0, 9)
    liars = {node: Liar(group[node], other[node]) for node in ("n2", "n3")}
    ended = run(
        Wire(),
        liars,
        {"n1": repair},
        until=lambda last: last["n1"].finished or last["n1"].refused is not None,
    )["n1"]  # type: ignore[arg-type]
    assert ended.refused is not None and "none could give all of it" in ended.refused
    assert everything(group["n1"].disk) == whole


def test_range_without_a_whole_copy_is_refused_unchanged() -> None:
    group = replicas()
    places = entry_places(group["n1"])
    for replica in group.values():
        spoil(replica, places[20][0] + 70)
    whole = everything(group["n1"].disk)
    output = carried_out(group, range_repair(group["n1"], 19, 21))
    assert output.refused is not None and "none could give all of it" in output.refused
    assert everything(group["n1"].disk) == whole


def test_another_history_behind_the_range_is_no_matter_for_a_repair_in_place() -> None:
    """The peers agree with each other and not with what this replica has behind the range: refused,
    not overwritten."""
    group = replicas(batches=((10, 1, 100),))
    other = replicas(batches=((10, 1, 100), (20, 3, 90)))
    mine = replicas(batches=((10, 1, 100), (20, 2, 110)))
    assert group
    spoil(mine["n1"], entry_places(mine["n1"])[12][0] + 70)
    whole = everything(mine["n1"].disk)
    mixed = {"n1": mine["n1"], "n2": other["n2"], "n3": other["n3"]}
    output = carried_out(mixed, range_repair(mine["n1"], 11, 13))
    assert output.refused is not None, output
    assert everything(mine["n1"].disk) == whole


@pytest.mark.parametrize("damage", ["missing", "short", "beside", "beyond", "open"])
def test_unrepairable_range_is_refused_with_its_reason(damage: str) -> None:
    """Files that are not whole, a damaged entry beside the range, entries that are not durable
    here: the whole log has to be looked at."""
    group = replicas()
    places = entry_places(group["n1"])
    path = data("n1", places[20][0] // FILE_BYTES)
    first, last, disk = 20, 20, group["n1"].disk
    if damage == "missing":
        disk.unlink(path)
    elif damage == "short":
        content = disk.read_file(path)
        disk.unlink(path)
        file = disk.create(path, 1000, allocate=True)
        file.pwrite(0, content[:1000])
    elif damage == "beside":
        spoil(group["n1"], places[20][0] + 70)
        spoil(group["n1"], places[21][0] + 70)
    elif damage == "open":
        # Synced, and a leader may still let others follow in its place: the owner would cut it off
        # while it is written.
        spoil(group["n1"], places[LAST][0] + 70)
        first = last = LAST
    else:
        last = LAST + 5
    whole = everything(disk)
    output = carried_out(group, range_repair(group["n1"], first, last, committed=LAST - 1))
    said = {"missing": "is missing", "short": "bytes instead of", "beside": "the entry behind it"}
    said["open"] = said["beyond"] = "committed here up to entry 51"
    assert output.refused is not None and said[damage] in output.refused
    assert everything(disk) == whole


def test_a_range_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = replicas()
    spoil(group["n1"], entry_places(group["n1"])[20][0] + 70)
    repair = range_repair(group["n1"], 0, LAST)
    monkeypatch.setattr(range_repairs, "BYTES_MAX", 1000)
    output = carried_out(group, repair)
    assert output.refused is not None and "more than 1000" in output.refused


def test_units_of_the_range_are_put_back_with_the_entries() -> None:
    """Index units, and consume queue units of what is known to be committed."""
    group = replicas()
    store = group["n1"].open()
    write_snapshot(store, LAST)
    store.close()
    places = entry_places(group["n1"])
    disk, before = group["n1"].disk, everything(group["n1"].disk)
    index = next(
        path
        for path in disk.files()
        if "/index/" in path and int(path[-20:]) <= 20 * 32 < int(path[-20:]) + 512
    )
    queue = next(
        path
        for path in disk.files()
        if "/consumequeue/" in path and int(path[-20:]) <= 20 * 20 < int(path[-20:]) + 200
    )
    overwrite(disk, index, 20 * 32 - int(index[-20:]), b"\xff" * 32)
    overwrite(disk, queue, 20 * 20 - int(queue[-20:]), b"\xff" * 20)
    spoil(group["n1"], places[20][0] + 70)
    repair = range_repair(group["n1"], 20, 20)
    # Without its unit the entry cannot be found here: both peers together know it.
    assert carried_out(group, repair).finished
    assert {
        path: raw for path, raw in everything(disk).items() if not path.endswith("/repairs")
    } == before
    assert any(index in text for text in repair.repaired) and any(
        queue in text for text in repair.repaired
    ), repair.repaired


def test_pages_that_the_disk_refuses_to_give_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = replicas()
    places = entry_places(group["n1"])
    before = group["n1"].log_files()
    pos, size = places[20]
    bad = {data("n1", pos // FILE_BYTES)}
    read, write = ForgetfulFile.pread, ForgetfulFile.pwrite

    def pread(file: ForgetfulFile, offset: int, length: int) -> bytes:
        if (
            file.path in bad
            and offset < pos % FILE_BYTES + size
            and offset + length > pos % FILE_BYTES + 60
        ):
            raise OSError(errno.EIO, "pending sector", file.path)
        return read(file, offset, length)

    def pwrite(file: ForgetfulFile, offset: int, raw: bytes) -> None:
        bad.discard(file.path)
        write(file, offset, raw)

    monkeypatch.setattr(ForgetfulFile, "pread", pread)
    monkeypatch.setattr(ForgetfulFile, "pwrite", pwrite)
    repair = range_repair(group["n1"], 20, 20)
    output = carried_out(group, repair)
    assert output.finished, output
    assert group["n1"].log_files() == before


@pytest.mark.parametrize("kind", ["data", "index"])
@pytest.mark.parametrize("beside", [0, 1])
def test_whole_pages_that_the_disk_refuses_to_give_end_no_process(
    monkeypatch: pytest.MonkeyPatch, kind: str, beside: int
) -> None:
    """Headers go with bodies, and index units with their neighbours; the page of the entry behind
    may be a bad one, too."""
    group = replicas()
    places = entry_places(group["n1"])
    before, at = group["n1"].log_files(), 20 + beside
    file_bytes = FILE_BYTES if kind == "data" else 512
    low, high = (places[at][0], sum(places[at])) if kind == "data" else (at * 32, at * 32 + 32)
    bad, read, write = {low // file_bytes * file_bytes}, ForgetfulFile.pread, ForgetfulFile.pwrite

    def hits(file: ForgetfulFile, offset: int, length: int) -> bool:
        base = int(file.path[-20:]) if f"dledger-n1/{kind}/" in file.path else -1
        return base in bad and base + offset < high and base + offset + length > low

    def pread(file: ForgetfulFile, offset: int, length: int) -> bytes:
        if hits(file, offset, length):
            raise OSError(errno.EIO, "pending sector", file.path)
        return read(file, offset, length)

    def pwrite(file: ForgetfulFile, offset: int, raw: bytes) -> None:
        if hits(file, offset, len(raw)):
            bad.clear()
        write(file, offset, raw)

    monkeypatch.setattr(ForgetfulFile, "pread", pread)
    monkeypatch.setattr(ForgetfulFile, "pwrite", pwrite)
    output = carried_out(group, range_repair(group["n1"], 20, 20))
    if beside and kind == "data":
        assert output.refused is not None, "the whole log has to be looked at"
    else:
        assert output.finished, output
    bad.clear()
    assert group["n1"].log_files() == before


@pytest.mark.parametrize("opens", range(8))
def test_a_limit_of_open_files_refuses_the_repair_and_ends_no_process(
    monkeypatch: pytest.MonkeyPatch, opens: int
) -> None:
    """Whenever the limit is met: a sentence with the remedy, and what was written by then is
    verified by the next open, or is whole."""
    group = replicas()
    victim = group["n1"]
    spoil(victim, entry_places(victim)[20][0] + 70)
    store = victim.open()
    repair = range_repair(victim, 20, 20)
    left = opens
    met = False

    def opened(disk: ForgetfulDisk, path: str, original: Any) -> Any:
        nonlocal left, met
        left -= 1
        if left < 0 and disk is victim.disk:
            met = True
            raise OSError(errno.EMFILE, "Too many open files")
        return original(disk, path)

    for name in ("open", "sync_dir"):
        original = getattr(ForgetfulDisk, name)
        monkeypatch.setattr(
            ForgetfulDisk, name, lambda disk, path, original=original: opened(disk, path, original)
        )
    ended = carried_out(group, repair)
    monkeypatch.undo()
    store.close()
    assert met == (ended.refused is not None)
    assert ended.refused is None or "open files" in ended.refused.lower()
    again = range_repair(victim, 20, 20)
    assert carried_out(group, again).finished


def test_a_crash_at_any_point_leaves_a_log_that_is_whole_or_says_that_it_is_not() -> None:
    """Killed at every operation, followed by a power cut: either nothing is missing, or the marker
    exists and a complete repair restores the log."""
    group = replicas()
    places = entry_places(group["n1"])
    before = group["n1"].log_files()
    for index in (19, 20, 21):
        spoil(group["n1"], places[index][0] + 8)
    damaged = group["n1"].log_files()
    count = KillDisk(copy.deepcopy(group["n1"].disk))
    assert carried_out(group, range_repair(group["n1"], 19, 21, disk=count)).finished
    assert len(count.operations) > 5
    for seed in range(8):
        done = Replica("n1", after_power_cut(count.disk, seed))
        assert done.log_files() == before and not done.disk.exists(f"{log_of('n1')}/{MARKER}")
    for at in range(len(count.operations)):
        for half in (False, True):
            killed = Replica("n1", copy.deepcopy(group["n1"].disk))
            disk = KillDisk(killed.disk, at, half=half)
            with pytest.raises(Killed):
                carried_out(group, range_repair(killed, 19, 21, disk=disk))
            after = Replica("n1", after_power_cut(killed.disk, at))
            if after.log_files() == before and not after.disk.exists(f"{log_of('n1')}/{MARKER}"):
                after.open().close()
                continue
            # Something in between is only there while the marker says so.
            assert after.disk.exists(f"{log_of('n1')}/{MARKER}") or after.log_files() == damaged, (
                disk.operations[at]
            )
            after.disk.replace_file(f"{ROOT}/abort", b"1")
            try:
                repair = after.repair(found=LogDamaged("found by the audit"))
            except StorageError as failure:
                raise AssertionError(disk.operations[at]) from failure
            assert run(Wire(), {"n2": group["n2"].shipper()}, {"n1": repair})["n1"].finished
            assert after.log_files() == before, disk.operations[at]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_range_repair_restores_the_whole_range_or_writes_no_byte(
    draw: st.DataObject,
) -> None:
    """Any bytes of any entries on any replica, any range: put back and equal to what it was, or
    refused and not written to."""
    group = replicas(batches=((6, 1, 100), (2, 2, 1500), (5, 3, 60)))
    places = entry_places(group["n1"])
    before = group["n1"].log_files()
    for node in NODES:
        for index in draw.draw(st.sets(st.integers(0, len(places) - 1), max_size=3)):
            pos, size = places[index]
            at = draw.draw(st.integers(0, size - 1))
            old = group[node].disk.read_file(data(node, pos // FILE_BYTES))[(pos + at) % FILE_BYTES]
            spoil(group[node], pos + at, bytes([old ^ draw.draw(st.integers(1, 255))]))
    first = draw.draw(st.integers(0, len(places) - 1))
    last = draw.draw(st.integers(first, len(places) - 1))
    whole = everything(group["n1"].disk)
    rule, master = draw.draw(st.sampled_from(Rule)), draw.draw(st.sampled_from((None, *NODES)))
    output = carried_out(group, range_repair(group["n1"], first, last, rule=rule, master=master))
    if output.finished:
        start, end = places[first][0], places[last][0] + places[last][1]
        for name, raw in group["n1"].log_files().items():
            low, high = max(0, start - int(name)), max(0, end - int(name))
            assert raw[low:high] == before[name][low:high]
            assert raw[:low] == whole[data("n1", int(name) // FILE_BYTES)][:low]
            assert raw[high:] == whole[data("n1", int(name) // FILE_BYTES)][high:]
    else:
        assert everything(group["n1"].disk) == whole
