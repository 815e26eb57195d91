"""The search for bit rot: which log file of a broker group is read next, whether it still holds
what was written, and the progress.

Do not confuse it with the digest exchange (`node/replica/maintenance/digest_exchange.py`), which
checks that the replicas hold the same data and reads a file once. The scrub reads everything again,
for ever. The least recently read file is next, so that a pass continues after every start and no
file starves, however often the process ends. A sealed file with a recorded majority digest is
compared with that digest, read from the medium and not from memory. If it differs, and for files
without a record, the entries are read one by one with all CRCs, and so is the blank behind them, to
name what is damaged. Every file is read once after every opening, because the process may have been
down for long, and again when its rest is over. Plain functions over the disk port;
`node/replica/background/scrubbing.py` has the rate, the steps and the log lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping

from ledgermq.proto.entries.layout import HEADER_BYTES, STORE_MS_AT
from ledgermq.proto.records.control import SealRecord
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, LogDamaged, UnknownFormat
from ledgermq.storage.files.file_digest import read_chunks
from ledgermq.storage.files.mapped_files import file_name, parse_name
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.log_scan import ENTRY_HEAD, Point
from ledgermq.storage.log.placing import whole_blank
from ledgermq.storage.repair.log_source import Facts, LogSource, Missing, Why

SCRUB_FILE = "scrub"
NOTE_VERSION = 1
READ_BYTES = 256 << 10


class Gone(Exception):
    """The file was trimmed or created again while it was read, so nothing is known about it."""


class Differs(Exception):
    """Every entry of a sealed file is valid, but the file differs from what a majority sealed."""


class Scrubber:
    """The state of the scrub of one group directory. Used by one thread, except for `soon` and
    `oldest_ms`."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        seals: Callable[[], Mapping[int, SealRecord]],
        now_ms: Callable[[], int],
        again_ms: int,
    ) -> None:
        """`seals`: returns the records by position of the file; `again_ms`: the time between two
        readings of a file."""
        self._disk = disk
        self._root = root
        self._source = LogSource(disk, root)
        self._seals = seals
        self._now_ms = now_ms
        self._again_ms = again_ms
        self._opened_ms = now_ms()
        self._note = f"{root}/state/{SCRUB_FILE}"
        self._since: dict[int, int] | None = None
        """Position of a file → when it was verified as a whole, or, if never, when its first entry
        was stored. None before the first look."""
        self._urgent: list[int] = []
        self.oldest_ms: int | None = None
        """The smallest of these times; None while unknown. Read by other threads."""

    def close(self) -> None:
        self._source.close()

    def soon(self, base: int) -> None:
        """Read this file next. May be called from any thread."""
        self._urgent.append(base)

    def due(self) -> int | None:
        """The file to read next; None if none is due. Raises OSError, StorageError."""
        since = self._look()
        while self._urgent:
            base = self._urgent.pop(0)
            if base in since:
                return base
        base = min(since, key=lambda base: (since[base], base), default=-1)
        if base < 0 or (
            since[base] >= self._opened_ms and since[base] + self._again_ms > self._now_ms()
        ):
            return None
        return base

    def read(self, base: int) -> Iterator[int]:
        """Read a whole file; yields the number of bytes of each piece. When the iteration ends, the
        file is verified. Raises LogDamaged, Differs, Gone, OSError, other StorageErrors."""
        facts = self._source.facts()
        seal = self._seals().get(base)
        differs = seal is not None and (yield from self._digest(base)) != seal.sha256
        if seal is None or differs:
            yield from self._entries(facts, base)
        if self._since is not None and base in self._since:
            # This includes a file that differs: it stays different, and the other files must have
            # their turn.
            self._since[base] = self._now_ms()
            self.oldest_ms = min(self._since.values())
        if seal is not None and differs:
            raise Differs(
                f"{self._path(base)}: every entry is right in itself, and the file is not what"
                f" {', '.join(seal.replicas)} sealed"
            )

    def write_note(self) -> None:
        """Store the progress, so that the next process continues from here. Raises OSError."""
        files = [[base, ms] for base, ms in sorted((self._since or {}).items())]
        sealed_json.write(
            self._disk,
            self._note,
            {"v": NOTE_VERSION, "log_id": self._source.log_id, "files": files},
        )

    # Internal

    def _look(self) -> dict[int, int]:
        """The files of the log that hold committed entries, each with its time."""
        facts = self._source.facts()
        known, now_ms = self._read_note() if self._since is None else self._since, self._now_ms()
        found = {}
        for name in self._disk.listdir(self._data):
            base = parse_name(name)
            if base is not None and facts.begin.pos <= base < _end_pos(facts):
                found[base] = min(known.get(base) or self._written_ms(base, now_ms), now_ms)
        self._since = found
        self.oldest_ms = min(found.values(), default=None)
        return found

    @property
    def _data(self) -> str:
        identity = self._source.identity()
        assert identity is not None, f"{self._root} holds no replica"
        return f"{self._root}/dledger-{identity.replica}/data"

    def _path(self, base: int) -> str:
        return f"{self._data}/{file_name(base)}"

    def _read_note(self) -> dict[int, int]:
        try:
            value = (
                sealed_json.read(self._disk, self._note) if self._disk.exists(self._note) else {}
            )
        except (Damaged, UnknownFormat):
            # The note is only a hint: without it every file counts as never read.
            value = {}
        self._source.facts()
        if value.get("v") != NOTE_VERSION or value.get("log_id") != self._source.log_id:
            return {}
        return {int(base): int(ms) for base, ms in value["files"]}

    def _written_ms(self, base: int, now_ms: int) -> int:
        """The store time of the file's first entry. It is not verified; it only determines the
        order of reading."""
        file = self._disk.open(self._path(base))
        try:
            written_ms = int.from_bytes(file.pread(STORE_MS_AT, 8), "big", signed=True)
        finally:
            file.close()
        return written_ms if 0 < written_ms <= now_ms else now_ms

    def _digest(self, base: int) -> Generator[int, None, str]:
        whole = hashlib.sha256()
        for chunk in read_chunks(self._disk, self._path(base), from_medium=True):
            whole.update(hashlib.sha256(chunk).digest())
            yield len(chunk)
        return whole.hexdigest()

    def _entries(self, facts: Facts, base: int) -> Iterator[int]:
        """Verify every committed entry of a file with its CRCs, as a continuation of the previous
        file, and the blank behind the last."""
        end, file_end = _end_pos(facts), base + facts.data_file_bytes
        point = self._begin_of(facts, base)
        while point.pos < end:
            found = self._source.entries(point, end, READ_BYTES)
            if isinstance(found, Missing):
                if found.why is Why.DAMAGED:
                    raise LogDamaged(f"entry {found.index} at {found.pos}: {found.text}")
                raise Gone
            if found.pos >= file_end:
                self._blank(point.pos, file_end)
                return
            yield len(found.data)
            point = Point(
                pos=found.end_pos,
                index=found.last_index + 1,
                term=found.term,
                chain=found.last_chain,
            )

    def _begin_of(self, facts: Facts, base: int) -> Point:
        """The point at the beginning of a file, from the stored header of the entry before it."""
        if base == facts.begin.pos:
            return facts.begin
        file = self._disk.open(self._path(base))
        try:
            head = file.pread(0, HEADER_BYTES)
        finally:
            file.close()
        index = ENTRY_HEAD.unpack(head)[2] if len(head) == HEADER_BYTES else -1
        before = self._source.point_behind(index - 1) if index > facts.begin.index else None
        if before is None or not base - facts.data_file_bytes < before.pos <= base:
            raise LogDamaged(
                f"{self._path(base)} does not begin with the entry behind the last one of the file"
                " before it"
            )
        return Point(pos=base, index=before.index, term=before.term, chain=before.chain)

    def _blank(self, start: int, end: int) -> None:
        base = end - self._source.facts().data_file_bytes
        file = self._disk.open(self._path(base))
        try:
            for pos, wanted in whole_blank(start, end - start):
                if file.pread(pos - base, len(wanted)) != wanted:
                    raise LogDamaged(
                        f"the blank in {self._path(base)}, from byte {start - base} on, is not as"
                        " it was written"
                    )
        finally:
            file.close()


def _end_pos(facts: Facts) -> int:
    """The end of what is committed, which is never cut off while it is read."""
    return facts.committed_pos if facts.committed_pos >= 0 else facts.synced.pos
