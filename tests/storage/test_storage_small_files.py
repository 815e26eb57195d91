"""Slots, hard state, synced mark, identities, snapshot and hint files: layout, round trips,
damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import crc32c
import pytest

from ledgermq.proto.types import HardState, SyncedMark
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, UnknownFormat, Unusable
from ledgermq.storage.files.ports import PAGE_BYTES
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.files.slots import SlotFile
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from ledgermq.storage.state import checkpoints, identity, snapshot
from ledgermq.storage.state.hard_state import HardStateFile
from ledgermq.storage.state.identity import NodeIdentity
from tests.storage.log_material import CLUSTER, INCARNATION, make_identity

DISK = RealDisk()
LOG_ID = identity.mint_log_id(CLUSTER, "g1")


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


# Slots


def test_values_alternate_between_the_slots(tmp_path: Path) -> None:
    """A durable value is never overwritten by the next one."""
    path = tmp_path / "slots"
    slots = SlotFile.create(DISK, str(path), b"TEST", b"value001")
    assert (slots.payload, slots.sequence) == (b"value001", 1)
    for number in range(2, 6):
        before = path.read_bytes()
        slots.write(f"value{number:03d}".encode())
        slots.sync()
        data = path.read_bytes()
        spared = 0 if number % 2 == 0 else PAGE_BYTES
        assert data[spared : spared + PAGE_BYTES] == before[spared : spared + PAGE_BYTES]
        assert SlotFile.open(DISK, str(path), b"TEST", 8).payload == f"value{number:03d}".encode()


def test_an_unsynced_value_is_replaced_in_its_own_slot(tmp_path: Path) -> None:
    """Until a sync there is one durable value, and no write may come near it."""
    path = tmp_path / "slots"
    slots = SlotFile.create(DISK, str(path), b"TEST", b"durable.")
    durable = path.read_bytes()[:PAGE_BYTES]
    for value in (b"unsynced", b"again...", b"and more"):
        slots.write(value)
        assert path.read_bytes()[:PAGE_BYTES] == durable
    assert SlotFile.open(DISK, str(path), b"TEST", 8).payload == b"and more"


def test_lowering_reaches_both_slots(tmp_path: Path) -> None:
    """After a lowered value no damage of one slot can bring back a higher one."""
    path = tmp_path / "slots"
    slots = SlotFile.create(DISK, str(path), b"TEST", b"higher..")
    slots.write(b"higher2.")
    slots.sync()
    slots.write_everywhere(b"lowered.")
    for offset in (20, PAGE_BYTES + 20):
        data = path.read_bytes()
        damage(path, offset)
        assert SlotFile.open(DISK, str(path), b"TEST", 8).payload == b"lowered."
        path.write_bytes(data)


@pytest.mark.parametrize("offset", range(28))
def test_any_damaged_byte_disqualifies_its_slot(tmp_path: Path, offset: int) -> None:
    """One damaged slot: the other value counts. Both: an error that says what to do."""
    path = tmp_path / "slots"
    slots = SlotFile.create(DISK, str(path), b"TEST", b"older...")
    slots.write(b"newer...")
    slots.sync()
    damage(path, PAGE_BYTES + offset)
    assert SlotFile.open(DISK, str(path), b"TEST", 8).payload == b"older..."
    damage(path, offset)
    with pytest.raises((Damaged, UnknownFormat)):
        SlotFile.open(DISK, str(path), b"TEST", 8)


def test_slots_of_another_version_are_named_so(tmp_path: Path) -> None:
    """A later format is refused as such, with its own exit code."""
    path = tmp_path / "slots"
    SlotFile.create(DISK, str(path), b"TEST", b"value...").close()
    head = struct.pack(">4siQ", b"TEST", 2, 9) + b"longer payload of version 2"
    data = head + struct.pack(">I", crc32c.crc32c(head))
    path.write_bytes(data.ljust(PAGE_BYTES, b"\0") * 2)
    with pytest.raises(UnknownFormat, match="version 2") as refused:
        SlotFile.open(DISK, str(path), b"TEST", 8)
    assert refused.value.exit_code == 76


def test_slot_file_of_another_length_is_damaged(tmp_path: Path) -> None:
    """A shortened file is not read."""
    path = tmp_path / "slots"
    path.write_bytes(bytes(100))
    with pytest.raises(Damaged, match="100 bytes"):
        SlotFile.open(DISK, str(path), b"TEST", 8)


# Hard state and synced mark, against the byte tables


def test_hard_state_layout(tmp_path: Path) -> None:
    """The file is what format §8 says, byte by byte."""
    path = tmp_path / "hardstate"
    state = HardStateFile.create(DISK, str(path))
    assert state.value == HardState()
    state.save(HardState(7, "n2"))
    head = b"LMHS" + struct.pack(">iQqi", 1, 2, 7, 2) + b"n2".ljust(64, b"\0")
    assert len(head) == 92
    data = path.read_bytes()
    assert len(data) == 8192
    assert data[4096:] == (head + struct.pack(">I", crc32c.crc32c(head))).ljust(4096, b"\0")
    assert HardStateFile.open(DISK, str(path)).value == HardState(7, "n2")


def test_hard_state_never_goes_back(tmp_path: Path) -> None:
    """Terms only rise, and a vote stays for its term; saving the same again writes nothing."""
    state = HardStateFile.create(DISK, str(tmp_path / "hardstate"))
    state.save(HardState(3))
    state.save(HardState(3, "n1"))
    before = (tmp_path / "hardstate").read_bytes()
    state.save(HardState(3, "n1"))
    assert (tmp_path / "hardstate").read_bytes() == before
    for worse in (HardState(2, "n1"), HardState(3, "n2"), HardState(3)):
        with pytest.raises(AssertionError):
            state.save(worse)
    state.save(HardState(4))
    assert HardStateFile.open(DISK, str(tmp_path / "hardstate")).value == HardState(4)


def test_synced_mark_layout(tmp_path: Path) -> None:
    """The file is what format §7 says, byte by byte."""
    path = tmp_path / "syncedmark"
    mark = SyncedMarkFile.create(
        DISK, str(path), LOG_ID, SyncedMark(chain_crc=crc32c.crc32c(LOG_ID.encode()))
    )
    mark.write_and_sync(SyncedMark(4, 99, 12345, 0xDEADBEEF))
    head = (
        b"LMSM"
        + struct.pack(">iQ", 1, 2)
        + LOG_ID.encode()
        + struct.pack(">iqqqI", 0, 4, 99, 12345, 0xDEADBEEF)
    )
    assert len(head) == 84
    assert path.read_bytes()[4096:] == (head + struct.pack(">I", crc32c.crc32c(head))).ljust(
        4096, b"\0"
    )
    assert SyncedMarkFile.open(DISK, str(path), LOG_ID).value == SyncedMark(
        4, 99, 12345, 0xDEADBEEF
    )
    with pytest.raises(Unusable, match="its own data directory"):
        SyncedMarkFile.open(DISK, str(path), "0" * 36)


# JSON files


def test_sealed_json_text() -> None:
    """Sorted keys, no space, one line, and the checksum of the text without it."""
    text = sealed_json.encode({"b": 1, "a": {"z": "ä", "y": [1, 2]}})
    plain = b'{"a":{"y":[1,2],"z":"\\u00e4"},"b":1}'
    assert (
        text
        == b'{"a":{"y":[1,2],"z":"\\u00e4"},"b":1,"crc32c":'
        + str(crc32c.crc32c(plain)).encode()
        + b"}"
    )
    assert sealed_json.decode(text, "x") == {"a": {"y": [1, 2], "z": "ä"}, "b": 1}


def test_every_flipped_byte_of_sealed_json_is_noticed() -> None:
    """No single change of the text goes unnoticed."""
    value = {"cluster": "c", "numbers": [1, 2, 3], "text": "x y"}
    text = sealed_json.encode(value)
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= 0x01
        with pytest.raises(Damaged):
            sealed_json.decode(bytes(changed), "x")
    for other in (text[:-1], b"", b"[]", b"{}", b"\xff"):
        with pytest.raises(Damaged):
            sealed_json.decode(other, "x")


def test_log_ids_are_the_same_everywhere() -> None:
    """UUID version 5 of cluster and group: a constant, pinned here."""
    assert identity.mint_log_id(CLUSTER.upper(), "g1") == LOG_ID
    assert identity.mint_log_id(CLUSTER, "g2") != LOG_ID
    assert (
        identity.mint_log_id("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "python.org")
        == "886313e1-3b8a-5372-9b90-0c9aee199e5d"
    )


def test_identity_round_trip_and_comparison(tmp_path: Path) -> None:
    """Written and read back; every stranger is named with what to do."""
    root = str(tmp_path)
    assert identity.read_identity(DISK, root) is None
    mine = make_identity()
    identity.write_identity(DISK, root, mine)
    assert identity.read_identity(DISK, root) == mine
    text = json.loads((tmp_path / "identity.json").read_text())
    assert set(text) == {
        *(
            "format_version",
            "cluster_id",
            "group",
            "log_id",
            "replica",
            "incarnation",
            "data_file_bytes",
        ),
        *("index_file_bytes", "consume_queue_file_bytes", "created_ms", "crc32c"),
    }
    identity.compare(root, mine, mine)
    for cluster, group, node, word in (
        ("11111111-2222-3333-4444-555555555555", "g1", "n1", "cluster"),
        (CLUSTER, "g2", "n1", "group"),
        (CLUSTER, "g1", "n2", "node"),
    ):
        other = identity.mint(cluster, group, node, INCARNATION, 0, data_file_bytes=4096)
        with pytest.raises(Unusable, match=f"belongs to .*{word}.*data directory") as refused:
            identity.compare(root, mine, other)
        assert refused.value.exit_code == 71


def test_identity_of_another_format_is_refused(tmp_path: Path) -> None:
    """A later format version is not read."""
    sealed_json.write(DISK, f"{tmp_path}/identity.json", {"format_version": 2, "anything": "else"})
    with pytest.raises(UnknownFormat, match="format version 2"):
        identity.read_identity(DISK, str(tmp_path))
    sealed_json.write(DISK, f"{tmp_path}/identity.json", {"format_version": 1, "anything": "else"})
    with pytest.raises(Damaged, match="edited by hand"):
        identity.read_identity(DISK, str(tmp_path))


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"data_file_bytes": 4095}, "data files"),
        ({"data_file_bytes": 8192, "index_file_bytes": 100}, "index files"),
        ({"data_file_bytes": 8192, "consume_queue_file_bytes": 30}, "consume queue files"),
    ],
)
def test_impossible_file_sizes_are_refused(sizes: dict[str, int], word: str) -> None:
    """Sizes that cannot hold whole units are refused before anything is written."""
    with pytest.raises(Unusable, match=word):
        identity.mint(CLUSTER, "g1", "n1", INCARNATION, 0, **sizes)


def test_node_identity(tmp_path: Path) -> None:
    """A node directory belongs to one node of one cluster."""
    directory = str(tmp_path)
    assert identity.read_node(DISK, directory) is None
    mine = NodeIdentity(CLUSTER, "n1", 5)
    identity.write_node(DISK, directory, mine)
    found = identity.read_node(DISK, directory)
    assert found == mine
    identity.compare_node(directory, mine, CLUSTER, "n1")
    with pytest.raises(Unusable, match="every node needs its own"):
        identity.compare_node(directory, mine, CLUSTER, "n2")
    with pytest.raises(Unusable, match="belongs to cluster"):
        identity.compare_node(directory, mine, "another", "n1")


def test_peers(tmp_path: Path) -> None:
    """The incarnations of peers are kept, and which peers recorded ours; a missing file or a file
    without that list means none."""
    assert (
        identity.read_peers(DISK, str(tmp_path)),
        identity.read_met_by(DISK, str(tmp_path)),
    ) == ({}, frozenset())
    identity.write_peers(DISK, str(tmp_path), {"n2": "b", "n3": "c"}, {"n3"})
    assert (
        identity.read_peers(DISK, str(tmp_path)),
        identity.read_met_by(DISK, str(tmp_path)),
    ) == ({"n2": "b", "n3": "c"}, {"n3"})
    sealed_json.write(DISK, str(tmp_path / "peers.json"), {"peers": {"n2": "b"}})
    assert identity.read_met_by(DISK, str(tmp_path)) == frozenset()
    sealed_json.write(DISK, str(tmp_path / "peers.json"), {"peers": {}, "met_by": "n2"})
    with pytest.raises(Damaged, match="peers that met this replica"):
        identity.read_met_by(DISK, str(tmp_path))


def test_snapshot_round_trip_and_damage(tmp_path: Path) -> None:
    """A damaged snapshot is no snapshot: the log has everything."""
    assert snapshot.read_snapshot(DISK, str(tmp_path)) is None
    snapshot.write_snapshot(DISK, str(tmp_path), {"v": 1, "queues": {"t": {"0": 5}}})
    assert snapshot.read_snapshot(DISK, str(tmp_path)) == {"v": 1, "queues": {"t": {"0": 5}}}
    damage(tmp_path / "snapshot", 10)
    assert snapshot.read_snapshot(DISK, str(tmp_path)) is None
    snapshot.discard_snapshot(DISK, str(tmp_path))
    snapshot.discard_snapshot(DISK, str(tmp_path))
    assert not (tmp_path / "snapshot").exists()


def test_checkpoints_and_abort_file(tmp_path: Path) -> None:
    """The hint files have RocketMQ's and DLedger's bytes, and unreadable ones are no obstacle."""
    root = str(tmp_path)
    checkpoints.write_store_checkpoint(DISK, root, checkpoints.StoreCheckpoint(1, 2, 3))
    data = (tmp_path / "checkpoint").read_bytes()
    assert data == struct.pack(">qqq", 1, 2, 3).ljust(4096, b"\0")
    log_directory = tmp_path / "dledger-n1"
    log_directory.mkdir()
    assert checkpoints.read_log_checkpoint(DISK, str(log_directory)) is None
    checkpoints.write_log_checkpoint(DISK, str(log_directory), checkpoints.LogCheckpoint(41, 40))
    assert (log_directory / "checkpoint").read_bytes() == b"endIndex=41\ncommittedIndex=40\n"
    assert checkpoints.read_log_checkpoint(DISK, str(log_directory)) == checkpoints.LogCheckpoint(
        41, 40
    )
    (log_directory / "checkpoint").write_bytes(b"committedIndex=7\r\nother=1\nendIndex=9\n")
    assert checkpoints.read_log_checkpoint(DISK, str(log_directory)) == checkpoints.LogCheckpoint(
        9, 7
    )
    for wrong in (
        b"x\n\xff",
        b"+9",
        b"1_0",
        b"09",
        b"-0",
        b"",
        b"9 9",
        b"9" * 20,
        "\N{ARABIC-INDIC DIGIT NINE}".encode(),
    ):
        (log_directory / "checkpoint").write_bytes(b"committedIndex=7\nendIndex=" + wrong + b"\n")
        assert checkpoints.read_log_checkpoint(DISK, str(log_directory)) is None, wrong
    assert checkpoints.is_clean(DISK, root)
    checkpoints.write_abort(DISK, root, 4711)
    assert (tmp_path / "abort").read_bytes() == b"4711"
    assert not checkpoints.is_clean(DISK, root)
    checkpoints.remove_abort(DISK, root)
    checkpoints.remove_abort(DISK, root)
    assert checkpoints.is_clean(DISK, root)
