"""Checks a broker group's directory against the formats of RocketMQ 5 and DLedger 0.3.1.2, written
from their layouts with the standard library.

It reads entry files, index files, message records, consume queues, key index files and both
checkpoint files, and describes each error. It imports nothing from LedgerMQ, because a checker that
shares code with the writer shares its mistakes. LedgerMQ's additions within the layout (checksums
in words that DLedger leaves zero) and its other files are ignored.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ENTRY = struct.Struct(">iiqqqiiii")
UNIT = struct.Struct(">iqiqq")
QUEUE_UNIT = struct.Struct(">qiq")
KEY_HEADER = struct.Struct(">qqqqii")
KEY_UNIT = struct.Struct(">iqii")
MAGIC, BLANK = 1, -1
RECORD_MAGICS = {0xDAA320A7: ">b", 0xDAA320AB: ">h"}
PRE_BLANK = (0, 0x7FFFFFFF, 0)
MIN_BLANK = 8


@dataclass(frozen=True)
class Record:
    """The fields of a message record on which derived files depend."""

    index: int
    physical_offset: int
    size: int
    topic: str
    queue: int
    queue_offset: int
    store_ms: int
    properties: dict[str, str]


@dataclass
class Group:
    """The contents of a group, and the errors found."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    end_pos: int = 0

    def wrong(self, text: str) -> None:
        self.problems.append(text)


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, 32 bits, signed."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def key_hash(key: str) -> int:
    """Java's absolute value of the hash; the smallest integer, which has none, becomes 0."""
    value = abs(java_hash(key))
    return value if value < 1 << 31 else 0


def check_group(
    root: Path, self_id: str, data_bytes: int, index_bytes: int, queue_bytes: int
) -> Group:
    """Check a whole store root."""
    group = Group()
    log = root / f"dledger-{self_id}"
    for pos, index, raw in _entries(group, log / "data", data_bytes):
        record = _record(group, index, pos + 48, raw[48:])
        if record is not None:
            group.records.append(record)
    _check_index(group, log / "index", index_bytes, data_bytes, log / "data")
    _check_queues(group, root / "consumequeue", queue_bytes, _check_checkpoints(group, root, log))
    return group


def files_of(group: Group, directory: Path, size: int) -> list[tuple[int, Path]]:
    """(first offset, file) of a directory with files of equal length, named by their first offset,
    without gaps."""
    found = []
    for path in sorted(directory.iterdir()):
        if len(path.name) != 20 or not path.name.isdigit() or int(path.name) % size:
            group.wrong(f"{path}: not a file name of this list")
        elif path.stat().st_size != size:
            group.wrong(f"{path}: {path.stat().st_size} bytes, not {size}")
        else:
            found.append((int(path.name), path))
    for (before, _), (after, path) in pairwise(found):
        if after != before + size:
            group.wrong(f"{path}: {before + size} was expected")
    return found


def _entries(group: Group, directory: Path, size: int) -> Iterator[tuple[int, int, bytes]]:
    """(position, index, bytes) of every entry; only zeros may follow the last entry."""
    last_index, last_term, ended = -1, -1, False
    for base, path in files_of(group, directory, size):
        raw = path.read_bytes()
        at = 0
        while at < size:
            magic, length = struct.unpack_from(">ii", raw, at) if size - at >= 8 else (0, 0)
            if magic == BLANK and not ended:
                if length != size - at or any(raw[at + 8 :]):
                    group.wrong(
                        f"{path}+{at}: a blank of {length} bytes where {size - at} are left, or"
                        " with content"
                    )
                at = size
                continue
            if magic == 0 or ended:
                if any(raw[at:]):
                    group.wrong(f"{path}+{at}: bytes behind the last entry")
                ended = True
                break
            magic, length, index, term, pos, channel, _, _, body = ENTRY.unpack_from(raw, at)
            first = last_index < 0
            if (
                magic != MAGIC
                or length != body + 48
                or body <= 0
                or pos != base + at
                or channel not in (0, 1)
            ):
                group.wrong(
                    f"{path}+{at}: header {magic} {length} {index} {term} {pos} {channel} {body}"
                )
                return
            if at + length + MIN_BLANK > size:
                group.wrong(f"{path}+{at}: an entry of {length} bytes leaves no room for a blank")
            if (not first and index != last_index + 1) or term < last_term:
                group.wrong(
                    f"{path}+{at}: entry {index} of term {term} after {last_index} of term"
                    f" {last_term}"
                )
            last_index, last_term = index, term
            yield base + at, index, raw[at : at + length]
            at += length
            group.end_pos = base + at
    return


def _record(group: Group, index: int, physical_offset: int, raw: bytes) -> Record | None:
    where = f"record of entry {index}"
    total, magic, crc, queue = struct.unpack_from(">iIii", raw)
    queue_offset, its_offset, flags, _ = struct.unpack_from(">qqiq", raw, 20)
    store_ms = struct.unpack_from(">q", raw, 56)[0]
    if total != len(raw) or magic not in RECORD_MAGICS:
        group.wrong(f"{where}: size {total} of {len(raw)}, magic {magic:08x}")
        return None
    if (
        its_offset != physical_offset
        or flags & 0x30
        or queue < 0
        or queue_offset < 0
        or store_ms <= 0
    ):
        places = f"{its_offset} at {physical_offset}, queue {queue}/{queue_offset}"
        group.wrong(f"{where}: physical offset {places}, flags {flags}, time {store_ms}")
    body_length = struct.unpack_from(">i", raw, 84)[0]
    body = raw[88 : 88 + body_length]
    if crc != zlib.crc32(body) & 0x7FFFFFFF:
        group.wrong(f"{where}: body CRC {crc:08x}")
    at = 88 + body_length
    form = RECORD_MAGICS[magic]
    topic_length = struct.unpack_from(form, raw, at)[0]
    at += struct.calcsize(form)
    topic = raw[at : at + topic_length].decode()
    at += topic_length
    properties_length = struct.unpack_from(">h", raw, at)[0]
    properties = raw[at + 2 : at + 2 + properties_length].decode()
    if at + 2 + properties_length != total or (len(topic) > 127) != (form == ">h"):
        group.wrong(
            f"{where}: the parts do not add up to {total} bytes, or the topic of {len(topic)} has"
            " the wrong magic"
        )
    if properties and not properties.endswith("\x02"):
        group.wrong(f"{where}: the last property is not closed")
    pairs = dict(pair.split("\x01", 1) for pair in properties.split("\x02") if pair)
    return Record(index, physical_offset, total, topic, queue, queue_offset, store_ms, pairs)


def _check_index(group: Group, directory: Path, size: int, data_bytes: int, data: Path) -> None:
    """Unit i at i x 32 describes entry i; nothing follows the last unit."""
    files = dict(files_of(group, directory, size))
    heads = {int(path.name): path.read_bytes() for path in data.iterdir()}
    known = set()
    for record in group.records:
        base = record.index * 32 // size * size
        if base not in files:
            group.wrong(f"index: no file for the unit of entry {record.index}")
            continue
        with files[base].open("rb") as file:
            file.seek(record.index * 32 - base)
            unit = UNIT.unpack(file.read(32))
        pos = record.physical_offset - 48
        term = struct.unpack_from(">q", heads[pos - pos % data_bytes], pos % data_bytes + 16)[0]
        known.add(record.index)
        if unit != (MAGIC, pos, record.size + 48, record.index, term):
            group.wrong(f"index: unit of entry {record.index} is {unit}")
    if known and files:
        behind = (max(known) + 1) * 32
        for base, path in files.items():
            with path.open("rb") as file:
                file.seek(min(size, max(0, behind - base)))
                while chunk := file.read(1 << 20):
                    if any(chunk):
                        group.wrong(f"{path}: content behind the last unit")
                        break


def _check_queues(group: Group, directory: Path, size: int, committed: int) -> None:
    """Every record has a unit at its queue offset; before the first kept one there are only
    pre-blanks, after the last one nothing.

    Units are written only for committed records, so the end of a log may lack them, such as the
    first record of a leader without followers. A queue without committed records need not exist.
    """
    expected: dict[tuple[str, int], dict[int, Record]] = {}
    for record in group.records:
        expected.setdefault((record.topic, record.queue), {})[record.queue_offset] = record
    for (topic, queue), records in expected.items():
        offsets = sorted(records)
        if offsets != list(range(offsets[0], offsets[-1] + 1)):
            group.wrong(f"{topic}/{queue}: queue offsets are not dense")
        where = directory / topic / str(queue)
        due = [offset for offset in offsets if records[offset].index <= committed]
        if not where.is_dir():
            if due:
                group.wrong(f"{topic}/{queue}: no consume queue")
            continue
        files = files_of(group, where, size)
        begin, units = (
            (files[0][0] if files else 0),
            b"".join(path.read_bytes() for _, path in files),
        )
        last = offsets[-1]
        for number in range(len(units) // 20):
            unit = QUEUE_UNIT.unpack_from(units, number * 20)
            offset = begin // 20 + number
            wanted = records.get(offset)
            if wanted is not None and wanted.index > committed and unit == (0, 0, 0):
                last = min(last, offset - 1)
            elif wanted is not None and offset <= last:
                tag = java_hash(wanted.properties.get("TAGS", ""))
                if unit != (wanted.physical_offset, wanted.size, tag):
                    group.wrong(f"{topic}/{queue}: unit {offset} is {unit}")
            elif offset > last and unit != (0, 0, 0):
                group.wrong(f"{topic}/{queue}: unit {offset} behind the last message")
            elif offset < offsets[0] and unit[1] <= 0:
                group.wrong(f"{topic}/{queue}: unit {offset} before the first message is empty")
        if due and begin // 20 + len(units) // 20 <= due[-1]:
            group.wrong(f"{topic}/{queue}: ends before message {due[-1]}")


def _check_checkpoints(group: Group, root: Path, log: Path) -> int:
    """Check both checkpoint files. Returns the committed index in DLedger's checkpoint."""
    raw = (root / "checkpoint").read_bytes()
    times = struct.unpack_from(">qqq", raw)
    newest = max((record.store_ms for record in group.records), default=0)
    if len(raw) != 4096 or any(raw[40:]) or not all(0 <= time <= newest for time in times):
        group.wrong(f"checkpoint: {len(raw)} bytes, times {times}, newest message {newest}")
    pairs = dict(line.split("=", 1) for line in (log / "checkpoint").read_text().splitlines())
    last = max((record.index for record in group.records), default=-1)
    if (
        set(pairs) != {"endIndex", "committedIndex"}
        or not int(pairs["committedIndex"]) <= int(pairs["endIndex"]) <= last
    ):
        group.wrong(f"dledger checkpoint: {pairs}, last entry {last}")
    return int(pairs.get("committedIndex", -1))


def check_key_index(
    group: Group, directory: Path, slots: int, units: int
) -> list[tuple[str, Record]]:
    """Check headers, slots and chains of the key index files: the official lookup must find every
    key of every record, and nothing else.

    Returns the (key, record) pairs in the files.
    """
    by_offset = {record.physical_offset: record for record in group.records}
    kept_from = min(by_offset, default=0)
    wanted: dict[tuple[int, int], list[str]] = {}
    for record in group.records:
        names = [record.properties["UNIQ_KEY"]] if "UNIQ_KEY" in record.properties else []
        names += [name for name in record.properties.get("KEYS", "").split(" ") if name]
        for name in names:
            wanted.setdefault(
                (record.physical_offset, key_hash(f"{record.topic}#{name}")), []
            ).append(name)
    found: list[tuple[str, Record]] = []
    seen: set[tuple[int, int]] = set()
    for path in sorted(directory.iterdir()):
        if len(path.name) != 17 or not path.name.isdigit():
            group.wrong(f"{path}: not a time")
            continue
        raw = path.read_bytes()
        if len(raw) != 40 + 4 * slots + 20 * units:
            group.wrong(f"{path}: {len(raw)} bytes")
            continue
        begin_ms, end_ms, begin_offset, end_offset, used, count = KEY_HEADER.unpack_from(raw)
        heads = struct.unpack_from(f">{slots}i", raw, 40)
        reached = 0
        for slot, head in enumerate(heads):
            number = head
            while 0 < number < count:
                hashed, offset, seconds, before = KEY_UNIT.unpack_from(
                    raw, 40 + 4 * slots + 20 * number
                )
                reached += 1
                hit = by_offset.get(offset)
                names = wanted.get((offset, hashed), [])
                if offset < kept_from:
                    # The file is kept because of its newer messages.
                    number = before
                    continue
                if hashed % slots != slot or hit is None or not names:
                    group.wrong(
                        f"{path}: unit {number} in slot {slot} names {offset} with hash {hashed}"
                    )
                elif (
                    seconds != max(0, (hit.store_ms - begin_ms) // 1000)
                    or not begin_offset <= offset <= end_offset
                ):
                    group.wrong(
                        f"{path}: unit {number} at {offset} has {seconds} s of"
                        f" {hit.store_ms - begin_ms} ms, or is outside the header"
                    )
                else:
                    seen.add((offset, hashed))
                    found += [(name, hit) for name in names]
                if before >= number:
                    group.wrong(f"{path}: unit {number} points forward to {before}")
                    break
                number = before
        if reached != count - 1 or used != sum(1 for head in heads if head):
            group.wrong(f"{path}: {reached} units in chains of {count - 1}, {used} slots counted")
        last = max(
            (record.store_ms for record in group.records if record.physical_offset <= end_offset),
            default=0,
        )
        if count > 1 and not begin_ms <= end_ms <= last:
            group.wrong(f"{path}: times {begin_ms} to {end_ms}")
    for key in wanted.keys() - seen:
        group.wrong(f"key index: {wanted[key]} of the record at {key[0]} is missing")
    return found
