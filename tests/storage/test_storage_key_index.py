"""The key index: RocketMQ's files byte for byte, repeated and interrupted dispatch, power cuts,
trimming, filters, searches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from itertools import product

import pytest

from ledgermq.proto.entries.key_columns import key_hash
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.sim.machine.disk import ForgetfulDisk, Killed
from ledgermq.storage.files.errors import Damaged, NoSpace
from ledgermq.storage.keys import key_file, key_index
from ledgermq.storage.keys.key_index import KeyIndex, name_of
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.key_material import BEGIN_MS, DATA_BYTES, ROOT, KeyLog, Message, official_files
from tests.storage.lookups import by_key

TOPICS = ("t", "ns@topic", "rmq_sys_ledgermq_config")
NAMES = ("", "a", "Aa", "BB", "b c", "key-17", "标签😀", "x" * 40, "y" * 200)


def some(count: int, seed: int = 1) -> list[Message]:
    """Messages of all sorts, their store times rising."""
    chance = random.Random(seed)
    ms = BEGIN_MS
    made = []
    for number in range(count):
        ms += chance.choice((0, 0, 1, 700, 5000))
        message_id = chance.choice((None, f"{number:034d}", "m"))
        keys = [chance.choice(NAMES) for _ in range(chance.randrange(4))]
        user = {"KEYSTONE": "UNIQ_KEY", "zKEYS": "a b"} if chance.random() < 0.2 else {}
        made.append(
            Message(
                message_id,
                keys,
                chance.choice(TOPICS),
                ms,
                chance.choice((None, "KEYS")),
                chance.randbytes(20),
                user,
            )
        )
    return made


def for_ever() -> Iterator[None]:
    return itertools.repeat(None)


@pytest.mark.parametrize("piece_bytes", [1, 3000, 1 << 20])
def test_files_are_rocketmqs_byte_for_byte(piece_bytes: int) -> None:
    """Whatever pieces the log comes in, headers, slots, units, chains and names are those of
    RocketMQ's own put."""
    log = KeyLog()
    log.send(*some(150))
    log.catch_up(piece_bytes)
    log.index.sync()
    assert len(log.files()) > 5
    assert log.files() == official_files(log)


def test_golden_unit_lies_where_rocketmq_looks_for_it() -> None:
    """The published hash, slot and unit of `TopicTest#key1`, 12 s after the file's first message,
    with the standard numbers."""
    log = KeyLog(slots=5_000_000, units=1000)
    log.send(
        Message("first", topic="TopicTest"), Message(None, ["key1"], "TopicTest", BEGIN_MS + 12_345)
    )
    log.catch_up()
    log.index.sync()
    (data,) = log.files().values()
    position = log.messages[1][0].to_bytes(8, "big")
    assert data[40 + 20_000_000 + 40 : 40 + 20_000_000 + 60] == bytes.fromhex(
        "62b4514c"
    ) + position + bytes.fromhex("0000000c00000000")
    assert data[40 + 984_460 * 4 :][:4] == bytes.fromhex("00000002")
    assert key_hash("TopicTest", "key1") == 1655984460


def test_hash_without_an_absolute_value_is_zero() -> None:
    """A text whose Java hash is the smallest integer is stored as 0 and found in slot 0."""
    key = _key_with_hash("t#", -(1 << 31))
    log = KeyLog()
    log.send(Message("m"), Message(None, [key]))
    log.catch_up()
    log.index.sync()
    assert key_hash("t", key) == 0
    assert log.files() == official_files(log)
    assert [found.index for found in by_key(log.lookup, "t", key)] == [1]


def _key_with_hash(prefix: str, wanted: int) -> str:
    """A key so that prefix + key has this Java hash: eight characters, each U+4E00 and a digit of a
    number in base 31."""
    high = 0
    for character in prefix:
        high = high * 31 + ord(character)
    rest = (wanted - high * 31**8 - sum(0x4E00 * 31**place for place in range(8))) & 0xFFFFFFFF
    digits = []
    for _ in range(8):
        rest, digit = divmod(rest, 31)
        digits.append(chr(0x4E00 + digit))
    return "".join(reversed(digits))


def test_repeated_key_dispatch_is_ignored_and_a_gap_is_an_assertion() -> None:
    """Entries may be given again, in part or whole; entries may not be left out."""
    log = KeyLog()
    log.send(*some(40))
    assert log.index.load(for_ever())
    first = log.reader.read(0, 1500)
    whole = log.reader.read(0, 1 << 20)
    assert first is not None and whole is not None and first.last_index < 39 == whole.last_index
    for piece in (first, first, whole, whole):
        log.index.append(piece)
    log.index.sync()
    assert log.files() == official_files(log)
    log.index.discard()
    later = log.reader.read(5, 1000)
    assert later is not None
    with pytest.raises(AssertionError, match="does not follow"):
        log.index.append(later)


@pytest.mark.parametrize("seed", range(12))
def test_key_index_equals_an_undisturbed_one_after_power_cuts(seed: int) -> None:
    """Any subset of unsynced sectors may survive each of several power cuts: afterwards the files
    equal those of an undisturbed index."""
    chance = random.Random(seed)
    disk = ForgetfulDisk()
    log = KeyLog(disk)
    messages = some(120, seed)
    while messages:
        for _ in range(chance.randrange(1, 30)):
            if messages:
                log.send(messages.pop(0))
        log.make_durable()
        log.catch_up(chance.choice((1, 1000, 5000)))
        if chance.random() < 0.4:
            log.index.sync()
        if chance.random() < 0.7:
            disk.power_cut(chance)
            disk = disk.successor()
            log.disk = disk
            log.open(clean=False)
            log.catch_up(chance.choice((1, 1000, 5000)))
            _check_all_found(log)
    log.index.sync()
    disk.power_cut(chance)
    assert log.files() == official_files(log)


def _check_all_found(log: KeyLog) -> None:
    """Every message of the log is found by each of its keys, and nothing else is."""
    for topic in TOPICS[:2]:
        for key in ("a", "Aa", "b c", "标签😀", "m"):
            wanted = [
                at
                for at, message in log.messages
                if message.topic == topic and (key in message.keys or key == message.message_id)
            ]
            assert [
                found.physical_offset for found in by_key(log.lookup, topic, key, limit=1000)
            ] == wanted[::-1]


def test_process_crash_before_slots_were_written_loses_no_key() -> None:
    """Units reach the cache at once, slots only with a sync: after a kill the slots are made from
    the units again."""
    log = KeyLog()
    log.send(*some(30, 3))
    log.catch_up()
    log.index.sync()
    log.send(
        *[Message(message.message_id, message.keys, ms=BEGIN_MS + 10**6) for message in some(30, 4)]
    )
    log.catch_up()
    log.open(clean=False)
    log.catch_up()
    log.index.sync()
    assert log.files() == official_files(log)


def test_clean_start_leaves_the_key_index_unwritten() -> None:
    """What a good stop left is taken as it is, the file being written too."""
    log = KeyLog()
    log.send(*some(50))
    log.catch_up()
    log.index.sync()
    disk = FaultyDisk(log.disk)
    before = log.files()
    log.disk = disk
    log.open(clean=True)
    disk.trace.clear()
    log.catch_up()
    assert not disk.names("pwrite", "create", "unlink", "replace_file") and not log.index.dirty
    assert log.files() == before
    _check_all_found(log)


class Killer:
    """Ends the process before the n-th access to the disk."""

    def __init__(self, disk: ForgetfulDisk, left: int) -> None:
        self.left = left
        disk.on_access = self

    def __call__(self) -> None:
        if self.left == 0:
            raise Killed("killed")
        self.left -= 1


@pytest.mark.parametrize("power", [False, True])
def test_kill_between_any_two_accesses_loses_no_key(power: bool) -> None:
    """Loading, building, rolling, syncing and trimming, ended anywhere, with or without the power:
    the next life has every key it needs."""
    messages = some(40, 9)
    for kill_at in itertools.count():
        disk = ForgetfulDisk()
        log = KeyLog(disk, units=12)
        log.send(*messages[:20])
        log.make_durable()
        log.catch_up()
        log.index.sync()
        log.send(*messages[20:])
        log.make_durable()
        begin_pos = log.messages[12][0]
        killer = Killer(disk, kill_at)
        try:
            index = KeyIndex(disk, ROOT, log.identity.log_id, slots=7, units=12)
            index.start(0, log.log.end_index, log.log.chain_at)
            log.index = index
            log.catch_up(700)
            index.sync()
            while index.tend(for_ever()):
                pass
            index.trim(begin_pos)
            index.sync()
        except Killed:
            pass
        disk.on_access = None
        if power:
            disk.power_cut(random.Random(kill_at))
        log.disk = disk = disk.successor()
        log.open(clean=False)
        log.catch_up()
        log.index.sync()
        wanted, files = official_files(log), log.files()
        assert files.items() <= wanted.items()
        assert all(
            int.from_bytes(wanted[name][24:32], "big") < begin_pos
            for name in wanted.keys() - files.keys()
        )
        if killer.left:
            break
    assert kill_at > 60


@pytest.mark.parametrize(
    "damage", ["missing", "short", "header", "units", "slots", "position", "other log", "ahead"]
)
def test_doubtful_files_are_made_again_from_the_log(damage: str) -> None:
    """Whatever is wrong with the index, it costs work, never an answer."""
    log = KeyLog()
    log.send(*some(100))
    log.catch_up()
    log.index.sync()
    names = sorted(log.files())
    disk = log.disk
    assert isinstance(disk, ForgetfulDisk)
    if damage == "missing":
        disk.unlink(f"{ROOT}/index/{names[2]}")
    elif damage == "short":
        disk.unlink(f"{ROOT}/index/{names[2]}")
        disk.create(f"{ROOT}/index/{names[2]}", 100, allocate=False)
    elif damage == "header":
        disk.flip(f"{ROOT}/index/{names[2]}", 39)
    elif damage == "units":
        disk.flip(f"{ROOT}/index/{names[-1]}", 40 + 4 * log.slots + 20 + 19)
    elif damage == "slots":
        disk.flip(f"{ROOT}/index/{names[-1]}", 43)
    elif damage == "position":
        disk.flip(f"{ROOT}/state/keyindex", 5)
    elif damage == "other log":
        index = KeyIndex(disk, ROOT, "another", slots=7, units=20)
        index.start(0, -1, lambda index: 0)
    else:
        # As if the log had lost its end after the index was made durable.
        log.index.close()
        index = KeyIndex(disk, ROOT, log.identity.log_id, slots=7, units=20)
        index.start(0, 10, log.log.chain_at)
        assert index.next_index == 0
    log.open(clean=True)
    log.catch_up()
    log.index.sync()
    assert log.files() == official_files(log)
    _check_all_found(log)


def test_whoever_looks_can_tell_that_keys_went_meanwhile() -> None:
    """A question may be the first to look into the file being written, and find it damaged: its
    answer is not all there is."""
    log = KeyLog()
    log.send(*some(55))
    log.catch_up()
    log.index.sync()
    name = max(log.files())
    assert isinstance(log.disk, ForgetfulDisk)
    log.disk.flip(f"{ROOT}/index/{name}", 40 + 4 * log.slots + 20 + 19)
    log.open(clean=True)
    assert (log.index.next_index, log.index.setbacks) == (55, 0)
    list(log.index.find(1, 0, 1 << 62))
    assert log.index.next_index < 55 and log.index.setbacks == 1


def test_stray_files_are_removed_at_start() -> None:
    """RocketMQ opens every file in the directory, so files that the position does not name are
    removed."""
    log = KeyLog()
    log.send(*some(30))
    log.catch_up()
    log.index.sync()
    log.disk.create(f"{ROOT}/index/20991231235959999", 40 + 28 + 400, allocate=False)
    log.open(clean=False)
    assert "20991231235959999" not in log.files()


def test_full_disk_stops_between_two_keys_and_goes_on() -> None:
    """A message with many keys may end in the middle: the same entries are given again, and no key
    is there twice or lost."""
    disk = FaultyDisk(ForgetfulDisk())
    log = KeyLog(disk)
    log.send(*[Message(f"m{number}", [f"k{key}" for key in range(30)]) for number in range(5)])
    assert log.index.load(for_ever())
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    for writes in range(12):
        disk.fail_writes_after(writes % 4, errno_of="ENOSPC")
        with pytest.raises(NoSpace, match="free disk space"):
            log.index.append(piece)
            raise AssertionError("it had room")
        disk.heal()
        if writes == 6:
            log.index.sync()
            log.open(clean=False)
            assert log.index.load(for_ever())
    log.catch_up()
    log.index.sync()
    assert log.files() == official_files(log)


def test_key_index_sync_without_room_rewinds_to_the_durable_position() -> None:
    """The result of such a sync on the disk is unknown, so everything behind the position is
    written again."""
    disk = ForgetfulDisk()
    log = KeyLog(disk)
    log.send(*some(60))
    log.make_durable()
    log.catch_up(2000)
    log.index.sync()
    log.send(*[Message(f"late{number}", ms=BEGIN_MS + 10**6) for number in range(40)])
    log.make_durable()
    log.catch_up()

    def fail(path: str) -> None:
        if "/index/" in path and "dledger" not in path:
            raise OSError(28, "No space left on device", path)

    disk.on_sync = fail
    with pytest.raises(NoSpace):
        log.index.sync()
    disk.on_sync = None
    assert log.index.next_index == log.position()["next"] == 60
    assert log.index.setbacks == 1
    log.catch_up()
    log.index.sync()
    disk.power_cut(random.Random(3))
    assert log.files() == official_files(log)


def test_changed_numbers_apply_to_new_files_only() -> None:
    """Files contain their own size: after a start with other numbers, old files are still used and
    searched."""
    log = KeyLog()
    log.send(*some(60))
    log.catch_up()
    log.index.sync()
    log.slots, log.units = 11, 50
    log.open(clean=True)
    log.send(*[Message(f"new{number}", ["a"], ms=BEGIN_MS + 10**7) for number in range(40)])
    log.catch_up()
    log.index.sync()
    sizes = [len(data) for data in log.files().values()]
    assert (
        sizes[0] == 40 + 7 * 4 + 20 * 20
        and sizes[-1] == 40 + 11 * 4 + 50 * 20
        and sizes == sorted(sizes)
    )
    _check_all_found(log)
    log.open(clean=False)
    _check_all_found(log)


def test_trim_removes_files_below_and_never_the_last() -> None:
    """Files whose messages all lie below go, with their filters, and the position forgets them
    first."""
    log = KeyLog()
    log.send(*some(100))
    log.catch_up()
    assert log.index.trim(1 << 40) == []
    log.index.sync()
    names = sorted(log.files())
    ends = {name: int.from_bytes(data[24:32], "big") for name, data in log.files().items()}
    begin = ends[names[2]]
    removed = log.index.trim(begin)
    assert removed == [f"{ROOT}/index/{name}" for name in names[:2]]
    assert sorted(log.files()) == names[2:] and set(log.disk.listdir(f"{ROOT}/state/bloom")) <= set(
        names[2:]
    )
    found = [one.physical_offset for one in by_key(log.lookup, "t", "m", limit=1000)]
    kept = [
        at
        for at, message in log.messages
        if message.topic == "t" and message.message_id == "m" and at >= begin
    ]
    assert (
        kept and [at for at in found if at >= begin] == kept[::-1] and min(found) >= ends[names[1]]
    )
    log.open(clean=False)
    assert sorted(log.files()) == names[2:] and log.index.next_index == 100
    assert log.index.load(for_ever())
    log.index.trim(1 << 40)
    assert sorted(log.files()) == names[-1:]


def test_log_that_begins_above_the_position_is_gone_on_with_there() -> None:
    """Keys of trimmed entries are not missed."""
    log = KeyLog()
    log.send(*some(20))
    log.index.skip_to(12)
    log.catch_up()
    assert log.index.next_index == 20
    assert {found.index for found in by_key(log.lookup, "t", "a", limit=99)} == {
        number
        for number, (_, message) in enumerate(log.messages)
        if number >= 12 and message.topic == "t" and "a" in message.keys
    }


# Searching


def test_colliding_keys_are_told_apart() -> None:
    """`Aa` and `BB` have one hash; so have ids that collide with keys. Only the real key leaves."""
    assert key_hash("t", "Aa") == key_hash("t", "BB")
    log = KeyLog()
    log.send(
        Message("m0", ["Aa"]),
        Message("m1", ["BB"]),
        Message("BB", ["x"]),
        Message("m3", ["Aa", "BB"]),
        Message("m4", ["Aa"], "u"),
    )
    log.catch_up()
    assert [found.index for found in by_key(log.lookup, "t", "Aa")] == [3, 0]
    assert [found.index for found in by_key(log.lookup, "t", "BB")] == [3, 2, 1]
    assert [found.index for found in by_key(log.lookup, "u", "Aa")] == [4]
    assert by_key(log.lookup, "u", "BB") == []


def test_key_with_spaces_is_found_by_its_exact_text_only() -> None:
    """The index holds the pieces; the exact list of keys decides."""
    log = KeyLog()
    log.send(
        Message("m0", ["order 17", "z"]),
        Message("m1", ["order", "17"]),
        Message("m2", [" order 17"]),
        Message("m3", ["", "17"]),
    )
    log.catch_up()
    assert [found.index for found in by_key(log.lookup, "t", "order 17")] == [0]
    assert [found.index for found in by_key(log.lookup, "t", " order 17")] == [2]
    assert [found.index for found in by_key(log.lookup, "t", "17")] == [3, 1]
    assert [found.index for found in by_key(log.lookup, "t", "order")] == [1]
    assert by_key(log.lookup, "t", "") == by_key(log.lookup, "t", " ") == []


def test_times_are_compared_to_the_millisecond_and_newest_come_first() -> None:
    """The index knows seconds since its file's first message; the record's store time decides."""
    log = KeyLog(slots=3, units=6)
    times = [BEGIN_MS + step for step in (0, 999, 1000, 1001, 1999, 2000, 5500, 5500, 7000)]
    log.send(*[Message(None, ["k"], ms=ms) for ms in times])
    log.catch_up()
    for begin, end in itertools.product(
        [*times, 0, BEGIN_MS + 3000], [*times, BEGIN_MS + 3000, 1 << 62]
    ):
        wanted = [index for index, ms in enumerate(times) if begin <= ms <= end]
        assert [found.index for found in by_key(log.lookup, "t", "k", begin, end)] == wanted[::-1]
    assert [found.index for found in by_key(log.lookup, "t", "k", 0, 1 << 62, 3)] == [8, 7, 6]
    assert by_key(log.lookup, "t", "k", 0, 1 << 62, 0) == []


def test_found_is_the_whole_record_and_its_place() -> None:
    """Small and large records come back as they are in the log, by key and by offset; a wrong size
    or place finds nothing."""
    log = KeyLog()
    log.send(Message("small"), Message("large", body=bytes(20_000)))
    log.catch_up()
    for index, name in enumerate(("small", "large")):
        (found,) = by_key(log.lookup, "t", name)
        data = bytes(log.log.record_at(found.physical_offset, found.size))
        assert (found.index, found.record, found.physical_offset) == (
            index,
            data,
            log.messages[index][0],
        )
        assert (
            log.lookup.at(found.physical_offset)
            == log.lookup.at(found.physical_offset, found.size)
            == found
        )
        assert log.lookup.at(found.physical_offset, found.size + 1) is None
        assert log.lookup.at(found.physical_offset + 1) is None
    assert log.lookup.at(0) is None and log.lookup.at(1 << 40) is None


def test_key_search_stays_below_its_limit() -> None:
    """A search sees only what it may see, though the index is further."""
    log = KeyLog()
    log.send(Message("m", ["k"]), Message("m", ["k"]))
    log.catch_up()
    limits = log.reader.limits
    log.reader.limits = type(limits)(0, 1, log.messages[1][0] - 48)
    assert [found.index for found in by_key(log.lookup, "t", "k")] == [0]
    assert log.lookup.at(log.messages[1][0]) is None


def test_a_file_filled_since_the_last_sync_may_be_trimmed() -> None:
    """The next sync does not look for it."""
    log = KeyLog()
    log.send(*some(10))
    log.catch_up()
    log.index.sync()
    log.send(*some(100))
    log.catch_up()
    first = min(log.files())
    assert log.index.trim(log.log.end_pos) == [f"{ROOT}/index/{first}"]
    log.index.sync()
    assert first not in log.files()


def test_trimmed_file_is_gone_and_damage_is_said() -> None:
    """A log file removed meanwhile is not found; a record with another checksum is an error, not an
    answer."""
    log = KeyLog()
    log.send(*[Message(f"m{number}", ["k"], body=bytes(9000)) for number in range(12)])
    log.catch_up()
    disk = log.disk
    assert isinstance(disk, ForgetfulDisk)
    names = disk.listdir(f"{ROOT}/dledger-n1/data")
    disk.unlink(f"{ROOT}/dledger-n1/data/{names[0]}")
    found = by_key(log.lookup, "t", "k")
    assert [one.index for one in found] == [11, 10, 9, 8, 7]
    disk.flip(f"{ROOT}/dledger-n1/data/{names[1]}", found[-1].physical_offset - (1 << 16) + 200)
    with pytest.raises(Damaged, match="checksum"):
        by_key(log.lookup, "t", "k")


def test_a_search_ends_where_the_log_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that many trimmed messages had costs no access to the log for any of them."""
    log = KeyLog(slots=50, units=1000)
    log.send(*[Message(f"m{number}", ["k"], body=bytes(3000)) for number in range(60)])
    log.make_durable()
    log.catch_up()
    begin = next(index for index in range(60) if log.log.pos_of(index) == DATA_BYTES * 2)
    log.log.trim(begin)
    log.limit()
    record_bytes, asked = log.reader.record_bytes, []

    def watched(pos: int, length: int) -> bytes | None:
        asked.append(pos)
        return record_bytes(pos, length)

    monkeypatch.setattr(log.reader, "record_bytes", watched)
    assert [one.index for one in by_key(log.lookup, "t", "k")] == list(range(59, begin - 1, -1))
    assert min(asked) == log.log.begin_pos


# Filters


def filtered(count: int = 95) -> tuple[KeyLog, FaultyDisk]:
    """An index of several full files whose filters were verified."""
    disk = FaultyDisk(ForgetfulDisk())
    log = KeyLog(disk, slots=50, units=21)
    log.send(*[Message(f"m{number}") for number in range(count)])
    log.catch_up()
    log.index.sync()
    while log.index.tend(for_ever()):
        pass
    disk.trace.clear()
    return log, disk


def index_reads(disk: FaultyDisk) -> list[str]:
    return [
        str(path)
        for operation, path, *_ in disk.trace
        if operation == "pread" and f"{ROOT}/index/" in str(path)
    ]


def test_absent_key_touches_no_index_file() -> None:
    """The filters say no, the file being written has its own in memory; a present key reads the one
    file that has it."""
    log, disk = filtered()
    assert len(log.files()) == 5
    absent = [
        name
        for name in (f"absent{number}" for number in range(300))
        if not by_key(log.lookup, "t", name)
    ]
    files_read = len(index_reads(disk))
    # 300 questions to 5 files; a filter of 20 keys is wrong once in a hundred at most.
    assert len(absent) == 300 and files_read <= 15
    quiet = next(name for name in absent if not _reads_of(log, disk, name))
    assert _reads_of(log, disk, quiet) == []
    assert set(_reads_of(log, disk, "m3")) == {f"{ROOT}/index/{sorted(log.files())[0]}"}


def _reads_of(log: KeyLog, disk: FaultyDisk, name: str) -> list[str]:
    disk.trace.clear()
    by_key(log.lookup, "t", name)
    return index_reads(disk)


def test_lost_or_damaged_filter_is_made_again_from_the_units() -> None:
    """Until then its file is read; the new filter is the old one, and nothing of the log is
    needed."""
    log, disk = filtered()
    directory = f"{ROOT}/state/bloom"
    before = {name: disk.read_file(f"{directory}/{name}") for name in disk.listdir(directory)}
    assert len(before) == 4
    first, second, *_ = sorted(before)
    disk.unlink(f"{directory}/{first}")
    disk.replace_file(f"{directory}/{second}", before[second][:-1] + b"!")
    log.open(clean=True)
    assert log.index.load(for_ever())
    assert [found.index for found in by_key(log.lookup, "t", "m3")] == [3]
    while log.index.tend(for_ever()):
        pass
    assert {
        name: disk.read_file(f"{directory}/{name}") for name in disk.listdir(directory)
    } == before


def test_filter_of_the_file_being_written_grows_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins small and doubles, and never forgets a key."""
    monkeypatch.setattr(key_file, "FILTER_KEYS_MIN", 8)
    log = KeyLog(slots=50, units=300)
    for number in range(120):
        log.send(Message(f"m{number}"))
        log.catch_up()
    assert log.index._active is not None and log.index._active.filter.capacity == 128
    assert [len(by_key(log.lookup, "t", f"m{number}")) for number in range(120)] == [1] * 120


def test_chunks_of_one_put_are_chained_like_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Putting and loading in small pieces gives the same bytes."""
    monkeypatch.setattr(key_index, "PUT_UNITS", 3)
    monkeypatch.setattr(key_file, "LOAD_UNITS", 3)
    log = KeyLog(units=40)
    log.send(*some(100))
    log.catch_up()
    log.index.sync()
    log.open(clean=False)
    log.catch_up()
    log.index.sync()
    assert log.files() == official_files(log)


def test_file_names_are_utc_times() -> None:
    """A name tells when its first message was stored."""
    assert name_of(0) == "19700101000000000"
    assert name_of(1_700_000_000_123) == "20231114221320123"
    assert name_of(-5) == name_of(0)


@pytest.mark.parametrize("flushed", [False, True])
def test_keys_indexed_beyond_the_position_are_gone_after_a_clean_stop(
    flushed: bool,
) -> None:
    """The next process applies fewer entries, because it does not learn that more were committed,
    and stops: the file matches the applied entries."""
    log = KeyLog(slots=70, units=1000)
    log.send(*some(40))
    log.catch_up()
    log.index.sync()
    limits, messages, before = log.reader.limits, list(log.messages), log.files()
    log.send(*some(60, seed=2))
    log.catch_up()
    if flushed:
        log.index._active.flush()  # type: ignore[union-attr]
    log.make_durable()
    assert log.files() != before
    log.open(clean=False)
    log.reader.limits = limits
    log.catch_up()
    assert log.index.dirty
    log.index.sync()
    log.index.close()
    assert log.files() == before
    # And once more is committed after all, it is as if nothing had happened.
    log.open(clean=True)
    log.catch_up()
    log.index.sync()
    assert len(log.messages) > len(messages) and log.files() == official_files(log)


@pytest.mark.parametrize("units", [4, 7, 100])
def test_with_a_time_epoch_a_search_goes_by_counted_times(units: int) -> None:
    """Wherever it begins in the files of the index, and after a restart: every message whose
    counted time lies in the range is found."""
    log = KeyLog(units=units)
    far = 400 * 24 * 3_600_000
    times = [0, 1000, far, far + 2000, 2000, 2500, 60_000]
    log.send(*[Message(f"id-{at}", ["k"], ms=BEGIN_MS + ms) for at, ms in enumerate(times)])
    log.catch_up()
    begin = TimeEpoch(4, log.messages[4][0] - 48, BEGIN_MS + 2000)
    epochs = TimeEpochs([begin])
    counted = [epochs.counted(message.ms, pos) for pos, message in log.messages]
    assert (
        counted
        == sorted(counted)
        == [BEGIN_MS + ms for ms in (0, 1000, 2000, 2000, 2000, 2500, 60_000)]
    )
    for _ in range(2):
        for low, high in product(sorted({*counted, BEGIN_MS + far}), repeat=2):
            found = [one.index for one in log.lookup.each_by_key("t", "k", low, high, epochs)]
            assert found == [at for at in reversed(range(7)) if low <= counted[at] <= high]
        log.make_durable()
        log.index.sync()
        log.index.close()
        log.log.close()
        log.open(clean=True)
        log.catch_up()
