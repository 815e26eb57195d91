"""Repair of damaged logs from peers: every kind of damage, on one replica and on all, over a wire
that loses and reorders."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.installation import Install
from ledgermq.node.replica.shipping.repair import repair_needed
from ledgermq.node.replica.shipping.shipping import Shipper, ShipperOutput
from ledgermq.node.replica.shipping.shipping_wire import decode, encode
from ledgermq.proto.types import HardState
from ledgermq.sim.machine.disk import ForgetfulDisk, ForgetfulFile, Killed
from ledgermq.storage.files.errors import LogDamaged, LogFenced, PromisesLost
from ledgermq.storage.repair.log_source import Facts
from tests.example_counts import examples
from tests.shipping.shipping_material import (
    FILE_BYTES,
    NODES,
    ROOT,
    Replica,
    Wire,
    identity_of,
    log_of,
    replicas,
    run,
    synced,
    write_snapshot,
)
from tests.storage.kill_points import DIVISIBLE, KillDisk, after_power_cut


def data(node: str, number: int) -> str:
    return f"{log_of(node)}/data/{number * FILE_BYTES:020d}"


def overwrite(disk: ForgetfulDisk, path: str, offset: int, raw: bytes) -> None:
    file = disk.open(path)
    file.pwrite(offset, raw)
    file.sync()


def shorten(disk: ForgetfulDisk, path: str, size: int) -> None:
    content = disk.read_file(path)
    disk.unlink(path)
    file = disk.create(path, size, allocate=True)
    file.pwrite(0, content[:size])
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])


def unclean(replica: Replica) -> None:
    """A kill: the next start reads everything it may."""
    replica.disk.replace_file(f"{ROOT}/abort", b"1")


Damage = Callable[[Replica], None]


def flips(number: int, offset: int) -> Damage:
    return lambda replica: overwrite(replica.disk, data(replica.node, number), offset, b"\xff" * 9)


def files_away(*numbers: int) -> Damage:
    def act(replica: Replica) -> None:
        for number in numbers:
            replica.disk.unlink(data(replica.node, number))

    return act


def units_too(replica: Replica) -> None:
    flips(1, 3)(replica)
    for name in replica.disk.listdir(f"{log_of(replica.node)}/index"):
        replica.disk.unlink(f"{log_of(replica.node)}/index/{name}")


KINDS: dict[str, Damage] = {
    "a header": flips(0, 8),
    "the first header of a file": flips(1, 3),
    "a term": flips(1, 16),
    "one byte of the term of a file's first entry": lambda r: overwrite(
        r.disk, data(r.node, 1), 16, b"\x01"
    ),
    "a body": flips(1, 200),
    "one byte of a chain CRC": lambda r: overwrite(r.disk, data(r.node, 1), 37, b"\x01"),
    "a file of zeros": lambda r: overwrite(r.disk, data(r.node, 1), 0, bytes(FILE_BYTES)),
    "a missing file": files_away(1),
    "the first file missing": files_away(0),
    "the last files missing": files_away(2, 3),
    "a short file": lambda r: shorten(r.disk, data(r.node, 1), 1000),
    "a file of no length": lambda r: shorten(r.disk, data(r.node, 0), 0),
    "a long file": lambda r: shorten(r.disk, data(r.node, 0), 5000),
    "another file's content": lambda r: overwrite(
        r.disk, data(r.node, 1), 0, r.disk.read_file(data(r.node, 2))
    ),
    "a blank": lambda r: overwrite(r.disk, data(r.node, 0), FILE_BYTES - 9, b"\xff"),
    "all index units too": units_too,
}


UNNOTICED = ("one byte of a chain CRC", "a body")


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_is_repaired_from_a_peer(kind: str, early: bool) -> None:
    """The log is restored byte for byte and opens, and no hard state changed. Also if its files
    ended early."""
    group = replicas(early=early)
    victim, peer = group["n1"], group["n2"]
    before = victim.log_files()
    hard = victim.disk.read_file(f"{log_of('n1')}/hardstate")
    unclean(victim)
    KINDS[kind](victim)
    # Of a chain CRC alone, and of a body, an open takes no notice: a reader or the audit finds it.
    repair = victim.repair(found=LogDamaged("found by the audit") if kind in UNNOTICED else None)
    outputs = run(Wire(), {"n2": peer.shipper()}, {"n1": repair})
    assert outputs["n1"].finished and outputs["n1"].refused is None
    store = victim.open()
    assert victim.log_files() == before
    assert victim.disk.read_file(f"{log_of('n1')}/hardstate") == hard
    store.close()


def entry_places(replica: Replica) -> list[tuple[int, int]]:
    """Position and size of every entry."""
    store = replica.open()
    log = store.log
    places = [(log.pos_of(index), log.pos_of(index + 1)) for index in range(log.end_index + 1)]
    sizes = [(pos, len(log.read(index, 1).data)) for index, (pos, _) in enumerate(places)]
    store.close()
    return sizes


def spoil(replica: Replica, pos: int, raw: bytes = b"\xff\xfe\xfd") -> None:
    overwrite(replica.disk, data(replica.node, pos // FILE_BYTES), pos % FILE_BYTES, raw)


def test_different_damage_on_every_replica_is_repaired_by_each_from_the_others() -> None:
    """None of the three opens, each serves what is whole, all three end with equal logs."""
    group = replicas()
    places = entry_places(group["n1"])
    whole = group["n1"].log_files()
    for at, replica in enumerate(group.values()):
        unclean(replica)
        for index in range(at, len(places), 3):
            spoil(replica, places[index][0] + 8)
    repairs = {node: replica.repair() for node, replica in group.items()}
    outputs = run(
        Wire(3, loss=0.2, delay_ms=(1, 40)), {n: r.shipper() for n, r in group.items()}, repairs
    )
    assert all(output.finished for output in outputs.values())
    for replica in group.values():
        replica.open().close()
        assert replica.log_files() == whole
    assert any("entries 3 to 3" in text for text in repairs["n1"].repaired), repairs["n1"].repaired


def test_entry_damaged_on_all_replicas_is_named_and_waited_for() -> None:
    """It says entry, file, bytes and what every peer answered, keeps asking, renumbers nothing;
    when a whole copy comes back, it ends."""
    group = replicas()
    places = entry_places(group["n1"])
    whole = group["n1"].log_files()
    for replica in group.values():
        unclean(replica)
        spoil(replica, places[20][0] + 8)
    repairs = {node: replica.repair() for node, replica in group.items()}
    shippers = {node: replica.shipper() for node, replica in group.items()}
    wire = Wire(5)
    outputs = run(
        wire, shippers, repairs, until=lambda last: all(output.refused for output in last.values())
    )
    for node, output in outputs.items():
        assert output.refused is not None and not output.finished
        assert (
            "entries 20 to 20" in output.refused
            and data(node, places[20][0] // FILE_BYTES) in output.refused
        )
        assert all(
            f"{other}: entry 20 is damaged here too" in output.refused
            for other in NODES
            if other != node
        )
        with pytest.raises(LogFenced):
            group[node].open()
    at = places[20][0]
    spoil(
        group["n3"],
        at + 8,
        whole[f"{at // FILE_BYTES * FILE_BYTES:020d}"][at % FILE_BYTES + 8 : at % FILE_BYTES + 11],
    )
    outputs = run(wire, shippers, {node: repairs[node] for node in ("n1", "n2")})
    assert [output.refused for output in outputs.values()] == [None, None]
    assert group["n1"].log_files() == group["n2"].log_files() == whole


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_entries_whole_on_one_replica_are_restored_on_all(draw: st.DataObject) -> None:
    """Any bytes of any entries changed, anywhere, as long as every entry is whole on one replica:
    all logs come back byte for byte."""
    group = replicas(batches=((6, 1, 100), (2, 2, 1500), (5, 3, 60)))
    places = entry_places(group["n1"])
    whole = group["n1"].log_files()
    keepers = draw.draw(
        st.lists(st.sampled_from(NODES), min_size=len(places), max_size=len(places))
    )
    damaged = set()
    for replica in group.values():
        unclean(replica)
    for (pos, size), keeper in zip(places, keepers, strict=True):
        for node in NODES:
            if node != keeper and draw.draw(st.booleans()):
                at = draw.draw(st.integers(0, size - 1))
                old = group[node].disk.read_file(data(node, pos // FILE_BYTES))[
                    (pos + at) % FILE_BYTES
                ]
                spoil(group[node], pos + at, bytes([old ^ draw.draw(st.integers(1, 255))]))
                damaged.add(node)
    found = LogFenced("found by an audit", 75)
    repairs = {
        node: repair_needed(
            group[node].disk, ROOT, identity_of(node), found, others=NODES, session=1, now_ns=0
        )
        for node in sorted(damaged)
    }
    shippers = {node: replica.shipper() for node, replica in group.items()}
    seed = draw.draw(st.integers(0, 99))
    run(Wire(seed, loss=0.1, delay_ms=(0, 20)), shippers, repairs)  # type: ignore[arg-type]
    for replica in group.values():
        replica.open().close()
        assert replica.log_files() == whole


def test_an_older_entry_that_came_back_is_replaced_only_by_a_proven_history() -> None:
    """A lost write: the file holds entries of a former term that continue what is before them.
    Their CRCs are right, the mark says more."""
    old = replicas(batches=((10, 1, 100), (25, 2, 100)))
    group = replicas(batches=((10, 1, 100), (25, 3, 100)))
    victim, whole = group["n1"], group["n2"].log_files()
    unclean(victim)
    # One page-sized piece of the second file is that of the other history, cut at an entry.
    places = entry_places(old["n1"])
    stale = old["n1"].disk.read_file(data("n1", 0))
    first = places[10][0]
    overwrite(victim.disk, data("n1", 0), first, stale[first : places[13][0]])
    victim.disk.unlink(f"{log_of('n1')}/index/{0:020d}")
    repair = victim.repair()
    run(Wire(), {node: group[node].shipper() for node in ("n2", "n3")}, {"n1": repair})
    victim.open().close()
    assert victim.log_files() == {
        name.replace("n2", "n1"): content for name, content in whole.items()
    }


def test_a_whole_file_of_another_history_at_the_end_is_found_by_the_mark() -> None:
    """Everything continues up to the end and is not what was synced."""
    old = replicas(batches=((10, 1, 100), (25, 2, 100)))
    group = replicas(batches=((10, 1, 100), (25, 3, 100)))
    victim, whole = group["n1"], group["n2"].log_files()
    unclean(victim)
    for name in victim.disk.listdir(f"{log_of('n1')}/data"):
        overwrite(
            victim.disk,
            f"{log_of('n1')}/data/{name}",
            0,
            old["n1"].disk.read_file(f"{log_of('n1')}/data/{name}"),
        )
    repair = victim.repair()
    run(Wire(), {node: group[node].shipper() for node in ("n2", "n3")}, {"n1": repair})
    victim.open().close()
    assert victim.log_files() == whole


def test_damaged_uncommitted_tail_gives_way_to_committed_entries() -> None:
    """A former leader's last entries are damaged and its peers committed others in their place:
    these count, and the mark follows them."""
    group = replicas(batches=((10, 1, 100), (8, 4, 100), (20, 4, 60)))
    lone = replicas(batches=((10, 1, 100), (12, 3, 100)), nodes=("n1",))["n1"]
    unclean(lone)
    places = entry_places(lone)
    unclean(lone)
    spoil(lone, places[15][0] + 8)
    repair = lone.repair()
    run(Wire(), {node: group[node].shipper() for node in ("n2", "n3")}, {"n1": repair})
    store = lone.open()
    assert store.log.end_index == 37
    store.close()
    assert lone.log_files() == group["n2"].log_files()


def test_claimed_end_of_a_peer_allocates_no_files() -> None:
    """A peer far ahead, or one that boasts: files behind the mark are made for entries that are
    here, not for a number in a packet."""

    class Boaster(Shipper):
        def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> ShipperOutput:
            output, said = super().turn(now_ns, packets), []
            for to, packet in output.packets:
                message = decode(packet, "n2")
                if isinstance(message.content, Facts):
                    boast = replace(message.content, committed_index=1 << 40, committed_pos=1 << 50)
                    packet = encode("n2", to, message.log_id, message.session, boast)
                said.append((to, packet))
            return ShipperOutput(tuple(said), output.wake_at_ns)

    group = replicas(batches=((10, 1, 100), (8, 4, 100), (20, 4, 60)))
    lone = replicas(batches=((10, 1, 100), (12, 3, 100)), nodes=("n1",))["n1"]
    places = entry_places(lone)
    unclean(lone)
    spoil(lone, places[15][0] + 8)
    lone.disk.capacity_bytes = lone.disk.used_bytes + 20 * FILE_BYTES
    run(
        Wire(),
        {"n2": Boaster("g1", "n2", group["n2"].disk, ROOT), "n3": group["n3"].shipper()},
        {"n1": lone.repair()},
    )
    assert lone.log_files() == group["n3"].log_files()


def test_unproven_history_of_a_peer_replaces_no_entry() -> None:
    """The only peer has other entries there and cannot prove them: the damaged replica waits for
    one that can."""
    group = replicas(batches=((10, 1, 100), (12, 3, 100)))
    other = replicas(batches=((10, 1, 100), (6, 2, 100)), nodes=("n1", "n2"), committed=9)["n2"]
    victim = group["n1"]
    places = entry_places(victim)
    unclean(victim)
    spoil(victim, places[12][0] + 8)
    before = victim.log_files()
    repair = victim.repair()
    wire = Wire()
    outputs = run(
        wire,
        {"n2": other.shipper()},
        {"n1": repair},
        until=lambda last: last["n1"].refused is not None,
    )
    assert "entries 12 to 12" in str(outputs["n1"].refused)
    assert victim.log_files() == before
    run(wire, {"n2": other.shipper(), "n3": group["n3"].shipper()}, {"n1": repair})
    victim.open().close()
    assert victim.log_files() == group["n3"].log_files()


@pytest.mark.parametrize("sizes", [(170, 60), (20, 20), (2500, 2500)])
def test_a_damaged_tail_gives_way_to_committed_entries_that_lie_elsewhere(
    sizes: tuple[int, int],
) -> None:
    """The committed entries have other lengths, so at the position of the damaged one a peer has
    the middle of another entry, or nothing yet."""
    group = replicas(batches=((10, 1, 100), (8, 4, sizes[0]), (20, 4, sizes[1])))
    lone = replicas(batches=((10, 1, 100), (12, 3, 1500)), nodes=("n1",))["n1"]
    places = entry_places(lone)
    unclean(lone)
    spoil(lone, places[19][0] + 8)
    repair = lone.repair()
    outputs = run(Wire(), {node: group[node].shipper() for node in ("n2", "n3")}, {"n1": repair})
    assert outputs["n1"].refused is None
    store = lone.open()
    assert (store.log.end_index, store.log.durable_index) == (37, 37)
    peer = group["n2"].open()
    assert store.log.chain_at(37) == peer.log.chain_at(37)
    store.close()
    peer.close()


def test_one_committed_entry_of_a_later_term_proves_that_a_damaged_tail_never_was() -> None:
    """The term start of the next leader is committed where the tail had an entry, and nothing else
    yet: it is shorter than the tail."""
    group = replicas(batches=((10, 1, 100), (1, 4, 100)))
    lone = replicas(batches=((10, 1, 100), (12, 3, 100)), nodes=("n1",))["n1"]
    places = entry_places(lone)
    unclean(lone)
    spoil(lone, places[15][0] + 8)
    repair = lone.repair()
    run(Wire(), {node: group[node].shipper() for node in ("n2", "n3")}, {"n1": repair})
    store = lone.open()
    assert (store.log.end_index, store.log.durable_index, store.log.term_at(10)) == (10, 10, 4)
    assert store.hard_state.value == HardState(4, None)
    store.close()


@pytest.mark.parametrize(
    "batches", [((10, 1, 100),), ((10, 1, 100), (5, 3, 100)), ((10, 1, 100), (12, 3, 100))]
)
def test_a_damaged_tail_that_no_peer_contradicts_is_never_cut(
    batches: tuple[tuple[int, int, int], ...],
) -> None:
    """What the peers committed is the beginning of this very log, or has the same damage: a
    majority may have stored the entry."""
    group = replicas(batches=batches)
    victim = replicas(batches=((10, 1, 100), (12, 3, 100)), nodes=("n1",))["n1"]
    places = entry_places(victim)
    for replica in (
        victim,
        *([group["n2"], group["n3"]] if len(entry_places(group["n2"])) > 20 else []),
    ):
        unclean(replica)
        spoil(replica, places[21][0] + 8)
    before = victim.log_files()
    repair = victim.repair()
    shippers = {node: group[node].shipper() for node in ("n2", "n3")}
    wire = Wire()
    outputs = run(wire, shippers, {"n1": repair}, until=lambda last: wire.now_ns > 20_000 * 10**6)
    assert "entries 21 to 21" in str(outputs["n1"].refused) and not outputs["n1"].finished
    assert victim.log_files() == before


def test_unreadable_pages_are_repaired_as_damage() -> None:
    """Pages that answer with EIO are fetched and written again; the disk takes the write and gives
    it back from then on."""
    group = replicas()
    victim, whole = group["n1"], group["n2"].log_files()
    unclean(victim)
    bad = {(data("n1", 1), page) for page in (0,)}
    disk = BadPages(victim.disk, bad)
    repair = victim.repair(disk=disk)  # type: ignore[arg-type]
    run(Wire(), {"n2": group["n2"].shipper()}, {"n1": repair})
    assert not disk.bad
    victim.open().close()
    assert victim.log_files() == whole


def test_index_units_that_the_disk_refuses_to_give_are_made_again() -> None:
    """The log is complete; without rebuilt units it could never be opened."""
    group = replicas()
    victim, whole = group["n1"], group["n2"].log_files()
    unclean(victim)
    path = f"{log_of('n1')}/index/{0:020d}"
    disk = BadPages(victim.disk, {(path, 0)})
    repair = victim.repair(disk=disk)  # type: ignore[arg-type]
    run(Wire(), {"n2": group["n2"].shipper()}, {"n1": repair})
    assert repair.repaired == [f"{path} is made again"]
    store = victim.open(disk)  # type: ignore[arg-type]
    assert store.log.end_index == 52
    store.close()
    assert victim.log_files() == whole


def test_files_behind_a_gap_above_the_mark_are_in_nobodys_way() -> None:
    """A committed history that reaches further than the mark is written over what a torn tail left
    there."""
    group = replicas(batches=((10, 1, 100), (8, 4, 100), (60, 4, 60)))
    lone = replicas(batches=((10, 1, 100), (12, 3, 100)), nodes=("n1",))["n1"]
    places = entry_places(lone)
    unclean(lone)
    spoil(lone, places[15][0] + 8)
    number = max(int(name) for name in lone.log_files()) // FILE_BYTES + 2
    lone.disk.create(data("n1", number), FILE_BYTES, allocate=True).pwrite(0, b"\x01" * 100)
    run(Wire(), {node: group[node].shipper() for node in ("n2", "n3")}, {"n1": lone.repair()})
    store = lone.open()
    assert store.log.end_index == 77
    store.close()


class BadPages:
    """A disk of which some pages cannot be read until they are written."""

    def __init__(self, disk: ForgetfulDisk, bad: set[tuple[str, int]]) -> None:
        self._disk = disk
        self.bad = bad

    def open(self, path: str) -> BadPagesFile:
        return BadPagesFile(self, self._disk.open(path))

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)
        self.bad = {(other, page) for other, page in self.bad if other != path}

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)


class BadPagesFile:
    def __init__(self, disk: BadPages, file: ForgetfulFile) -> None:
        self._disk, self._file = disk, file

    def _pages(self, offset: int, length: int) -> set[tuple[str, int]]:
        return {
            (self._file.path, page)
            for page in range(offset // 4096, (offset + length - 1) // 4096 + 1)
        }

    def pread(self, offset: int, length: int) -> bytes:
        if self._disk.bad & self._pages(offset, length):
            raise OSError(errno.EIO, "Input/output error", self._file.path)
        return self._file.pread(offset, length)

    def pwrite(self, offset: int, raw: bytes) -> None:
        self._file.pwrite(offset, raw)
        self._disk.bad -= self._pages(offset, len(raw))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_lost_promises_and_other_faults_are_not_repaired() -> None:
    """Hard state or mark lost, a failed sync, a full disk: another finding."""
    replica = replicas(nodes=("n1",))["n1"]
    for failure in (
        PromisesLost("x"),
        LogFenced("a sync failed", 73),
        OSError(errno.ENOSPC, "full"),
        ValueError(),
    ):
        assert (
            repair_needed(
                replica.disk, ROOT, identity_of("n1"), failure, others=NODES, session=1, now_ns=0
            )
            is None
        )
    assert (
        repair_needed(
            replica.disk,
            ROOT,
            identity_of("n1"),
            LogDamaged("x"),
            others=NODES,
            session=1,
            now_ns=0,
        )
        is not None
    )


def test_crash_at_any_point_of_a_repair_is_repairable() -> None:
    """A missing file, a damaged header and a damaged blank: killed before and half-way through
    every write, cache kept or power cut."""
    base = replicas()
    victim, whole = base["n1"], base["n2"].log_files()
    victim.disk.any_names = True
    unclean(victim)
    for kind in ("a missing file", "a header", "a blank"):
        KINDS[kind](victim)
    hard = victim.disk.read_file(f"{log_of('n1')}/hardstate")

    def attempt(at: int, half: bool) -> tuple[KillDisk, bool]:
        medium = copy.deepcopy(victim.disk)
        disk = KillDisk(medium, at, half=half)
        repair = repair_needed(
            disk, ROOT, identity_of("n1"), LogDamaged("x"), others=NODES, session=1, now_ns=0
        )  # type: ignore[arg-type]
        assert repair is not None
        try:
            run(Wire(), {"n2": base["n2"].shipper()}, {"n1": repair})
        except Killed:
            return disk, False
        return disk, True

    operations, done = attempt(-1, False)
    assert done
    for at, (name, _) in enumerate(operations.operations):
        for half in (False, True) if name in DIVISIBLE else (False,):
            killed, done = attempt(at, half)
            assert not done
            for cut in (None, at):
                again = Replica(
                    "n1",
                    copy.deepcopy(killed.disk)
                    if cut is None
                    else after_power_cut(killed.disk, cut),
                )
                try:
                    again.open().abandon()
                except (LogDamaged, LogFenced):
                    run(Wire(), {"n2": base["n2"].shipper()}, {"n1": again.repair(session=99)})
                again.open().close()
                assert again.log_files() == whole, f"{at} {name} {half} {cut}"
                assert again.disk.read_file(f"{log_of('n1')}/hardstate") == hard


def test_killed_repair_is_finished_before_the_log_opens() -> None:
    """Its writes may be in the page cache only: a log that looks whole now would be damaged again
    by a power cut, after it has promised."""
    group = replicas()
    victim, whole = group["n1"], group["n2"].log_files()
    unclean(victim)
    KINDS["a header"](victim)
    disk = KillDisk(victim.disk)
    repair = victim.repair(disk=disk)  # type: ignore[arg-type]
    before = len(disk.operations)
    run(
        Wire(),
        {"n2": group["n2"].shipper()},
        {"n1": repair},
        until=lambda last: victim.log_files() == whole,
    )
    assert not [
        path
        for name, path in disk.operations[before:]
        if name == "sync" and path.startswith(f"{log_of('n1')}/data/")
    ]
    with pytest.raises(LogDamaged, match="was interrupted"):
        victim.open()
    run(Wire(), {"n2": group["n2"].shipper()}, {"n1": victim.repair(session=77)})
    for seed in range(8):
        again = Replica("n1", after_power_cut(victim.disk, seed))
        again.open().close()
        assert again.log_files() == whole


def trimmed_group() -> dict[str, Replica]:
    """All three trimmed to the same file, each with its two snapshots."""
    group = replicas()
    for replica in group.values():
        store = replica.open()
        store.queues.start({}, 0)
        begin = next(
            index
            for index in range(store.log.end_index + 1)
            if store.log.pos_of(index) == 2 * FILE_BYTES
        )
        write_snapshot(store, store.log.end_index - 3)
        store.log.trim(begin)
        synced(store)
        store.close()
    return group


def test_a_trimmed_log_is_repaired_from_its_begin_on_and_gets_its_snapshot_back() -> None:
    """The first file that is left missing, and both snapshots gone: both come from a peer."""
    group = trimmed_group()
    victim, whole = group["n1"], group["n2"].log_files()
    unclean(victim)
    victim.disk.unlink(data("n1", 2))
    for name in ("snapshot", "snapshot.previous"):
        victim.disk.unlink(f"{ROOT}/state/{name}")
    run(Wire(), {"n2": group["n2"].shipper()}, {"n1": victim.repair()})
    assert victim.log_files() == whole
    store = victim.open()
    expected = group["n2"].open()
    assert store.read_snapshot() == expected.read_snapshot() is not None


def test_damage_trimmed_by_every_peer_asks_for_an_installation() -> None:
    """The damage is before the begin of every other log: the output names the peer whose log to
    install."""
    group = trimmed_group()
    victim = replicas()["n1"]
    unclean(victim)
    KINDS["a header"](victim)
    repair = victim.repair()
    wire = Wire()
    shippers = {node: group[node].shipper() for node in ("n2", "n3")}
    outputs = run(
        wire, shippers, {"n1": repair}, until=lambda last: last["n1"].install_wanted is not None
    )
    wanted = outputs["n1"].install_wanted
    assert wanted is not None and wanted[0] in ("n2", "n3") and wanted[1] > 0
    repair.close()
    floor = repair.floor_pos
    store = group["n2"].open()
    assert floor == store.log.end_pos
    store.close()
    new = Install.begin(
        victim.disk,
        ROOT,
        identity_of("n1"),
        others=NODES,
        source=wanted[0],
        floor_pos=floor,
        session=50,
        now_ns=wire.now_ns,
    )
    run(wire, shippers, {"n1": new})
    victim.open().close()
    assert victim.log_files() == group["n2"].log_files()


@pytest.mark.parametrize("kind", ["a header", "a missing file", "a blank", "a short file"])
def test_finished_repair_survives_a_power_cut(kind: str) -> None:
    """Finished means durable: names and pages."""
    group = replicas()
    victim, whole = group["n1"], group["n2"].log_files()
    victim.disk.any_names = True
    unclean(victim)
    KINDS[kind](victim)
    run(Wire(), {"n2": group["n2"].shipper()}, {"n1": victim.repair()})
    for seed in range(5):
        again = Replica("n1", after_power_cut(victim.disk, seed))
        again.open().close()
        assert again.log_files() == whole
