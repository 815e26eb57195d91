"""Reading a log in the object store: whatever the store does, what comes is what was written, or an
error that says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.storage.files import sealed_json
from ledgermq.storage.tiered import begins, index_part, manifests
from ledgermq.storage.tiered.index_part import IndexHead
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import StoreFailure
from ledgermq.storage.tiered.tier_reader import LocalBegin, NotHere
from ledgermq.storage.tiered.transfer import WrongObject
from tests.tiered.stored_log import FILES, QUEUES, RARE, Reading, StoredLog, make_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> StoredLog:
    return make_log(tmp_path_factory.mktemp("log"))


@pytest.fixture
def reading(log: StoredLog, tmp_path: Path) -> Reading:
    return Reading(log, tmp_path)


def ids(
    reading: Reading, key: str, begin_ms: int = 0, end_ms: int = 1 << 62, below: int = 1 << 62
) -> list[int]:
    return [found.index for found in reading.reader.each_by_key("t", key, begin_ms, end_ms, below)]


def test_every_queue_reads_as_it_was_written(reading: Reading) -> None:
    """From any offset, in small pieces and in large ones, byte for byte."""
    for queue in range(QUEUES):
        written = reading.log.queue("t", queue)
        assert len(written) > 100
        assert reading.queue("t", queue) == written == reading.queue("t", queue, max_bytes=1 << 20)
        assert reading.queue("t", queue, first=len(written) // 2) == written[len(written) // 2 :]
    assert (
        reading.queue(RARE, 0) == reading.log.queue(RARE, 0)
        and len(reading.log.queue(RARE, 0)) == 2
    )
    assert reading.told.wrongs == []


def test_the_log_reads_as_it_was_written(reading: Reading) -> None:
    """All kinds of entries, from any index, across files."""
    found: list[bytes] = []
    while len(found) <= reading.log.files[-1].last:
        piece = reading.reader.read(len(found), 5000)
        assert (
            piece is not None
            and piece.first_index == len(found)
            and piece.last_index == len(found) + len(piece.sizes) - 1
        )
        data = bytes(piece.data)
        found += [
            data[s : s + n]
            for s, n in zip(piece.starts.tolist(), piece.sizes.tolist(), strict=True)
        ]
    assert found == reading.log.entries[: len(found)]
    with pytest.raises(NotHere):
        reading.reader.read(len(found), 1000)


def test_times_keys_and_ids_are_found(reading: Reading) -> None:
    """By time the first offset that is not older; by key newest first, exactly."""
    written = [decode_record(entry[HEADER_BYTES:]) for entry in reading.log.queue("t", 1)]
    local = reading.log.local("t", 1)
    for store_ms in sorted(
        {record.store_ms for record in written[::9]}
        | {written[0].store_ms - 1, written[-1].store_ms + 1}
    ):
        wanted = next(
            (offset for offset, record in enumerate(written) if record.store_ms >= store_ms),
            local.offset,
        )
        assert reading.reader.offset_at("t", 1, 0, local, store_ms) == wanted
        low = min(wanted + 2, local.offset)
        assert reading.reader.offset_at("t", 1, low, local, store_ms) == low
    stored = [
        decode_record(entry[HEADER_BYTES:])
        for entry in reading.log.entries[: reading.log.files[-1].last + 1]
    ]
    for key in ("key0", "key3", "id-50", "id-1", "absent"):
        wanted_ids = [
            index
            for index, record in enumerate(stored)
            if record.topic == "t" and b"%s\x02" % key.encode() in record.properties
        ]
        assert ids(reading, key) == wanted_ids[::-1]
        assert (not wanted_ids) == (key == "absent")
    middle = stored[reading.log.files[2].first].store_ms
    both = [
        index
        for index, record in enumerate(stored)
        if record.topic == "t" and b"key3\x02" in record.properties
    ]
    assert ids(reading, "key3", middle) == [
        index for index in reversed(both) if stored[index].store_ms >= middle
    ]
    below = _pos(reading.log.entries[both[-3]])
    assert ids(reading, "key3", below=below) == both[-4::-1]
    assert ids(reading, "key3", 0, middle) == [
        index for index in reversed(both) if stored[index].store_ms <= middle
    ]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_times_count_to_the_begin_of_a_time_epoch(reading: Reading, share: float) -> None:
    """An epoch begins in any file, at a time below those before it: what was stored before counts
    as stored then."""
    entries = [
        (_pos(entry), decode_record(entry[HEADER_BYTES:]))
        for entry in reading.log.entries[: reading.log.files[-1].last + 1]
    ]
    middle, early = int(len(entries) * share), int(len(entries) * share / 2)
    epochs = TimeEpochs([TimeEpoch(middle, entries[middle][0], entries[early][1].store_ms)])
    local = replace(reading.log.local("t", 1), time_epochs=epochs)
    counted = [
        epochs.counted(record.store_ms, pos)
        for pos, record in entries
        if (record.topic, record.queue) == ("t", 1)
    ]
    assert counted == sorted(counted) and len(set(counted)) < len(counted)
    for ms in sorted(
        {
            *counted[::7],
            counted[0] - 1,
            counted[-1] + 1,
            epochs.begins[0].ms,
            epochs.begins[0].ms + 1,
        }
    ):
        wanted = next((offset for offset, at in enumerate(counted) if at >= ms), local.offset)
        assert reading.reader.offset_at("t", 1, 0, local, ms) == wanted
    with_key = [
        (index, epochs.counted(record.store_ms, pos))
        for index, (pos, record) in enumerate(entries)
        if record.topic == "t" and b"key3\x02" in record.properties
    ]
    for low, high in (
        (epochs.begins[0].ms, 1 << 62),
        (epochs.begins[0].ms + 1, 1 << 62),
        (0, epochs.begins[0].ms),
    ):
        found = [
            found.index
            for found in reading.reader.each_by_key("t", "key3", low, high, 1 << 62, epochs)
        ]
        assert found == [index for index, ms in reversed(with_key) if low <= ms <= high]


def test_a_range_is_fetched_once_and_read_ahead(reading: Reading) -> None:
    """Readers of one node share the cache; a sequential reader finds the next file there; a restart
    begins with an empty cache."""
    reading.queue("t", 0)
    reads = reading.store.requests["read"]
    assert reads <= FILES * 2
    reading.queue("t", 1)
    reading.again()
    reading.queue("t", 2)
    assert reading.store.requests["read"] <= reads + FILES
    reading.again()
    names: list[str] = []
    reading.store.before = lambda operation, key: names.append(key)
    fresh = Reading(reading.log, Path(reading.cache._directory).parent)
    fresh.store.before = lambda operation, key: (
        names.append(key) if operation == "read" and key.endswith(".log") else None
    )
    local = reading.log.local("t", 0)
    second = next(
        number
        for number, entry in enumerate(reading.log.queue("t", 0))
        if _pos(entry) >= reading.log.files[1].base
    )
    assert fresh.reader.entries("t", 0, 0, local, 1000) is not None and len(set(names)) == 1
    assert fresh.reader.entries("t", 0, second, local, 1000) is not None
    assert len(set(names)) == 4, "the second file was next, so the two behind it are on their way"


def _pos(entry: bytes) -> int:
    return int.from_bytes(entry[24:32], "big")


def test_the_cache_keeps_to_its_size(log: StoredLog, tmp_path: Path) -> None:
    """The bytes on the disk never exceed it, and reading goes on with what does not fit."""
    one = Reading(log, tmp_path, cache_bytes=150_000)
    assert one.queue("t", 0) == log.queue("t", 0)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
    assert on_disk == one.cache.size <= 150_000
    Reading(log, tmp_path, cache_bytes=150_000)
    assert list((tmp_path / "cache").iterdir()) == [], "removed on start"


def test_a_full_disk_costs_only_requests(log: StoredLog, tmp_path: Path) -> None:
    """A cache without room gives back what it had, and every reader gets its answer."""
    one = Reading(log, tmp_path)
    one.queue("t", 0)
    assert one.cache.size > 0
    one.cache.give_way()
    assert one.cache.size > 0
    one.cache._crowded = lambda: True
    one.cache.give_way()
    assert one.cache.size == 0
    assert one.queue("t", 1) == log.queue("t", 1)
    one.again()
    assert one.queue("t", 2) == log.queue("t", 2)
    assert (
        one.cache.size == 0 and one.cache.refused > 0 and list((tmp_path / "cache").iterdir()) == []
    )


def test_damage_in_the_cache_is_a_miss(reading: Reading, tmp_path: Path) -> None:
    reading.queue("t", 0)
    for path in (tmp_path / "cache").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    reading.again()
    assert reading.queue("t", 0) == reading.log.queue("t", 0)
    assert reading.told.wrongs == []


def test_a_store_that_is_away_is_an_error(reading: Reading) -> None:
    """Neither an empty answer nor a shorter one; when it is back, everything is there."""
    reading.store.away()
    local = reading.log.local("t", 0)
    with pytest.raises(StoreFailure, match="does not answer"):
        reading.reader.entries("t", 0, 0, local, 1000)
    with pytest.raises(StoreFailure):
        reading.reader.first_offset("t", 0, 0, local)
    with pytest.raises(StoreFailure):
        reading.reader.offset_at("t", 0, 0, local, 1)
    with pytest.raises(StoreFailure):
        ids(reading, "key1")
    reading.store.back()
    assert reading.queue("t", 0) == reading.log.queue("t", 0) and reading.told.wrongs == []


@pytest.mark.parametrize("lie", ["one bit", "another file", "shorter", "missing"])
def test_a_store_that_lies_about_a_file_is_noticed(reading: Reading, lie: str) -> None:
    """No altered byte is given to anyone; the object is counted."""
    key = reading.key(".log", 2)
    data = reading.store.objects[key]
    lies = {
        "one bit": data[:9000] + bytes([data[9000] ^ 4]) + data[9001:],
        "another file": reading.store.objects[reading.key(".log", 1)],
    }
    reading.store.objects |= {key: lies.get(lie, data[:-1])}
    if lie == "missing":
        del reading.store.objects[key]
    written, got = reading.log.queue("t", 0), []
    with pytest.raises(WrongObject):
        for entry in reading.each("t", 0, 0, 5000):
            got.append(entry)
    assert got == written[: len(got)] and 0 < len(got) < len(written) and reading.told.wrongs
    after = next(
        offset for offset, entry in enumerate(written) if _pos(entry) >= reading.log.files[3].base
    )
    assert reading.queue("t", 0, first=after) == written[after:]


@pytest.mark.parametrize("ending", [".index", ".rows"])
@pytest.mark.parametrize("lie", ["one bit", "another file", "shorter", "missing"])
def test_an_index_part_that_is_lost_or_damaged_is_made_again(
    reading: Reading, ending: str, lie: str
) -> None:
    """Also of files that were stored before there were index parts; the store gets it again."""
    key = reading.key(ending, 2)
    data = reading.store.objects[key]
    lies = {
        "one bit": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
        "another file": reading.store.objects[reading.key(ending, 1)],
    }
    reading.store.objects |= {key: lies.get(lie, data[:-20])}
    if lie == "missing":
        del reading.store.objects[key]
    assert reading.queue("t", 0) == reading.log.queue("t", 0) and ids(reading, "id-200")
    assert reading.store.objects[key] == data


def test_reader_without_index_parts_reads_from_a_full_store(reading: Reading) -> None:
    for key in [*reading.store.keys(".index"), *reading.store.keys(".rows")]:
        del reading.store.objects[key]

    def refused(operation: str, key: str) -> None:
        if operation in ("put", "put_parts"):
            raise StoreFailure("the store is full")

    reading.store.before = refused
    assert reading.queue("t", 2) == reading.log.queue("t", 2)
    assert len(reading.told.failures) == FILES and reading.told.wrongs == []


def forge(reading: Reading, number: int, **changes: object) -> None:
    """Replace the head of an index part by another one that is well-formed."""
    key = reading.key(".index", number)
    head = index_part.decode_head(reading.store.objects[key], key, reading.log.files[number])
    reading.store.objects[key] = index_part.encode_head(replace(head, **changes))  # type: ignore[arg-type]


def test_an_index_part_that_leaves_out_a_queue_is_noticed(reading: Reading) -> None:
    """Offsets are dense: no well-formed index part makes a message vanish."""
    head = index_part.decode_head(
        reading.store.objects[reading.key(".index", 2)], "", reading.log.files[2]
    )
    forge(reading, 2, queues={key: rows for key, rows in head.queues.items() if key != ("t", 0)})
    with pytest.raises(WrongObject, match="names no message"):
        reading.queue("t", 0)
    assert len(reading.told.wrongs) == 1


def test_an_index_part_that_leaves_out_the_first_or_the_last_messages_is_noticed(
    reading: Reading,
) -> None:
    for number in (0, FILES - 1):
        one = Reading(reading.log, Path(reading.cache._directory).parent)
        head = index_part.decode_head(
            one.store.objects[one.key(".index", number)], "", reading.log.files[number]
        )
        forge(
            one, number, queues={key: rows for key, rows in head.queues.items() if key != ("t", 0)}
        )
        with pytest.raises(WrongObject, match="names no message"):
            one.queue("t", 0)


def test_rows_that_lead_to_other_messages_are_noticed(reading: Reading) -> None:
    """The entry is compared with queue, offset and topic, because the rows are only claims."""
    head = index_part.decode_head(
        reading.store.objects[reading.key(".index", 1)], "", reading.log.files[1]
    )
    queues = dict(head.queues)
    queues["t", 0], queues["t", 1] = (
        replace(queues["t", 0], row=queues["t", 1].row),
        replace(queues["t", 1], row=queues["t", 0].row),
    )
    forge(reading, 1, queues=queues)
    with pytest.raises(WrongObject):
        reading.queue("t", 0)
    one = Reading(reading.log, Path(reading.cache._directory).parent)
    head = index_part.decode_head(one.store.objects[one.key(".index", 0)], "", reading.log.files[0])
    forge(one, 0, queues={**head.queues, (RARE, 0): head.queues["t", 0]})
    with pytest.raises(WrongObject, match="another topic"):
        one.reader.entries(RARE, 0, 0, one.log.local(RARE, 0), 1000)


def test_read_of_unlinked_files_is_an_error(reading: Reading) -> None:
    """Files before the linked ones, and files between them and the local log."""
    reading.reader.link_files(tuple(reading.log.files[2:]), whole=False)
    reading.reader.problem = "it is still reading the manifests"
    local = reading.log.local("t", 0)
    for work in (
        lambda: reading.reader.entries("t", 0, 0, local, 1000),
        lambda: reading.reader.first_offset("t", 0, 0, local),
        lambda: reading.reader.offset_at("t", 0, 0, local, 0),
        lambda: reading.reader.read(0, 1000),
        lambda: ids(reading, "id-1"),
    ):
        with pytest.raises(NotHere, match="still reading the manifests"):
            work()
    reading.reader.link_files(tuple(reading.log.files[:-1]), whole=True)
    with pytest.raises(NotHere):
        reading.queue("t", 0)
    with pytest.raises(NotHere):
        reading.reader.offset_at("t", 0, 0, local, 1 << 60)
    reading.reader.link_files((), whole=True)
    with pytest.raises(NotHere):
        reading.reader.entries("t", 0, 0, LocalBegin(5, 1), 1000)


def test_files_that_are_linked_during_a_read_are_no_gap(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that began before older files were linked does not say that the store begins behind
    them, nor that it has nothing."""
    files, head = tuple(reading.log.files), reading.reader._parts.head

    def links(file: FileManifest) -> IndexHead:
        reading.reader.link_files(files, whole=True)
        return head(file)

    monkeypatch.setattr(reading.reader._parts, "head", links)
    local = reading.log.local("t", 0)
    for work in (
        lambda: reading.reader.entries("t", 0, 0, local, 1000),
        lambda: reading.reader.entries("absent", 0, 0, local, 1000),
        lambda: reading.reader.first_offset("t", 0, 0, local),
        lambda: list(reading.reader.each_by_key("t", "key1", 0, 1 << 62, 1 << 62)),
    ):
        reading.reader.link_files(files[2:], whole=False)
        with pytest.raises(NotHere):
            work()


def test_files_that_total_retention_removed_are_passed_over(reading: Reading) -> None:
    """The reader learns of it when an object is missing: what is left is read, and nothing counts
    as wrong."""
    reading.queue("t", 0)
    files = reading.log.files
    reading.store.objects[begins.begin_key(reading.log.where, files[2].base)] = begins.encode(
        files[1].behind
    )
    for file in files[:2]:
        for key in [
            key
            for key in reading.store.keys("")
            if file.sha256 in key or manifests.manifest_key(reading.log.where, file.base) == key
        ]:
            del reading.store.objects[key]
    one = Reading(reading.log, Path(reading.cache._directory).parent)
    one.store.objects = reading.store.objects
    written, local = one.log.queue("t", 0), one.log.local("t", 0)
    first = next(offset for offset, entry in enumerate(written) if _pos(entry) >= files[2].base)
    assert one.reader.first_offset("t", 0, 0, local) == first
    found = one.reader.entries("t", 0, 0, local, 1000)
    assert found is not None and found.first == first and one.told.wrongs == []
    assert one.reader.read(0, 1000) is None
    assert one.queue("t", 0, first=first) == written[first:]
    assert one.reader.entries(RARE, 0, 0, one.log.local(RARE, 0), 1000).first == 1  # type: ignore[union-attr]


def test_another_version_of_an_index_part_is_not_guessed(reading: Reading) -> None:
    key = reading.key(".index", 0)
    reading.store.objects[key] = sealed_json.encode(
        {**sealed_json.decode(reading.store.objects[key], key), "v": 2}
    )
    with pytest.raises(Exception, match="another version"):
        reading.queue("t", 0)
