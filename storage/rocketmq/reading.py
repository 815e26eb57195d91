"""The messages of a store root in log order, up to the first damage, and what follows it: nothing,
a torn tail, or more messages.

RocketMQ ends a log at the first record that does not parse. This reader also searches behind it:
intact messages there that are not left from an earlier use of the file mean damage in the middle of
the log, not its end. Files are read in bounded pieces and never mapped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from ledgermq.storage.rocketmq.layout import DLEDGER, LogFile, StoreRoot
from ledgermq.storage.rocketmq.records import (
    BLANK,
    RECORD_MAX_BYTES,
    RECORD_MIN_BYTES,
    V1,
    V2,
    BadRecord,
    Message,
    take_apart,
)

WINDOW_BYTES = 8 << 20
ENTRY_HEADER_BYTES = 48
ENTRY_MAGICS = (1, 2, 3)
"""A message; later versions of DLedger also write no-ops and membership changes."""
MAGICS = (V1.to_bytes(4, "big"), V2.to_bytes(4, "big"))
_TWO = struct.Struct(">iI")
_ENTRY = struct.Struct(">iiqqqiiii")


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a log becomes invalid: byte `at` of a file. `resumes`: file and byte of the first
    intact message behind it, if any."""

    path: str
    at: int
    reason: str
    rest_bytes: int = 0
    """Nonzero bytes behind `at`, up to the end of the log or the place where it resumes; exact only
    as to whether it is 0."""
    resumes: tuple[str, int] | None = None

    @property
    def text(self) -> str:
        return f"{self.path} at byte {self.at}: {self.reason}"


class _Window:
    """A file, read in pieces."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._fd = os.open(file.path, os.O_RDONLY)
        self._begin = 0
        self._data = b""

    def bytes(self, at: int, length: int) -> bytes:
        """Bytes at … at+length−1; fewer at the end of the file."""
        start = at - self._begin
        if start < 0 or start + length > len(self._data):
            self._data = os.pread(self._fd, max(WINDOW_BYTES, length), at)
            self._begin, start = at, 0
        return self._data[start : start + length]

    def data_from(self, at: int) -> int | None:
        """The first byte from `at` on that is not in a hole; None if only holes follow."""
        try:
            return os.lseek(self._fd, at, os.SEEK_DATA)
        except OSError:
            return None

    def forget(self) -> None:
        """Drop the bytes read so far from the page cache."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._fd)


Fresh = Callable[[Message], bool]
"""Whether a message behind damage continues the log. One that does not is left from an earlier use
of the file."""


class Reader:
    """Reads a store root once. `damages`: where reading stopped or skipped; `no_ops`: the number of
    entries without a message."""

    def __init__(
        self,
        root: StoreRoot,
        fresh: Fresh,
        *,
        skip_damaged: bool,
        progress: Callable[[int], None],
        known: Sequence[Damage] = (),
    ) -> None:
        """`known`: damages that an earlier reading of the same files found; its decisions are
        kept."""
        self._root = root
        self._fresh = fresh
        self._known = {(damage.path, damage.at): damage for damage in known}
        self._skip = skip_damaged
        self._progress = progress
        self._last_index, self._last_term = -1, -1
        self.damages: list[Damage] = []
        self.no_ops = 0
        self.last_index = -1
        """Of DLedger's last entry that was read."""

    def messages(self) -> Iterator[Message]:
        """Every valid message in log order. Ends at damage that no message follows. At other damage
        it continues with `skip_damaged`, and otherwise ends; `damages` then says that the log
        resumes. Raises OSError."""
        files, number, at = self._root.files, 0, 0
        while number < len(files):
            file = files[number]
            window = _Window(file)
            try:
                reason = yield from self._file(window, at)
                self.last_index = self._last_index
                if reason is None:
                    number, at = number + 1, 0
                    continue
                stop, text = reason
                damage = self._known.get((file.path, stop)) or self._damage(number, stop, text)
                self.damages.append(damage)
                if damage.resumes is None or not self._skip:
                    return
                path, at = damage.resumes
                number = next(place for place, other in enumerate(files) if other.path == path)
                if files[number].kind == DLEDGER:
                    # The entries in between are gone, so the indexes need not be consecutive here.
                    self._last_index = -1
            finally:
                window.forget()
                window.close()

    def _file(self, window: _Window, at: int) -> Generator[Message, None, tuple[int, str] | None]:
        """The messages of one file from byte `at` on. Returns None behind the last one, otherwise
        where the file becomes invalid, and why."""
        file = window.file
        reader = self._entry if file.kind == DLEDGER else self._record
        while at < file.bytes:
            try:
                size, message = reader(window, at)
            except BadRecord as bad:
                return at, str(bad)
            if size == 0:
                self._progress(file.bytes - at)
                return None
            if message is not None:
                yield message
            self._progress(size)
            at += size
        return None

    def _record(self, window: _Window, at: int) -> tuple[int, Message | None]:
        """(size, message) of the plain record at byte `at`; (0, None) for the filler at the end of
        a file. Raises BadRecord."""
        head = window.bytes(at, 8)
        if len(head) < 8:
            raise BadRecord(f"{len(head)} bytes are left, and no filler ends the file")
        size, magic = _TWO.unpack(head)
        if magic == BLANK:
            if size != window.file.bytes - at:
                raise BadRecord(f"the filler says {size} bytes, {window.file.bytes - at} are left")
            return 0, None
        message = self._message(window, at, size, magic)
        return size, message

    def _entry(self, window: _Window, at: int) -> tuple[int, Message | None]:
        """The same for a DLedger entry."""
        head = window.bytes(at, ENTRY_HEADER_BYTES)
        magic = int.from_bytes(head[:4], "big", signed=True)
        if magic == -1:
            size = int.from_bytes(head[4:8], "big", signed=True)
            if at == 0 and 8 < size < window.file.bytes:
                # Later versions of DLedger start a trimmed log with a blank.
                return size, None
            if size != window.file.bytes - at:
                raise BadRecord(f"the blank says {size} bytes, {window.file.bytes - at} are left")
            return 0, None
        if len(head) < ENTRY_HEADER_BYTES or not any(head):
            raise BadRecord("the log ends here")
        _, size, index, term, pos, _, _, _, body_bytes = _ENTRY.unpack(head)
        if magic not in ENTRY_MAGICS:
            raise BadRecord(f"its magic is {magic}")
        if size != body_bytes + ENTRY_HEADER_BYTES or size > window.file.bytes - at:
            raise BadRecord(f"it says {size} bytes, and {body_bytes} for the body")
        if self._last_index >= 0 and (index != self._last_index + 1 or term < self._last_term):
            raise BadRecord(
                f"entry {index} of term {term} follows entry {self._last_index} of term"
                f" {self._last_term}"
            )
        if magic != 1:
            self.no_ops += 1
            message = None
        else:
            if pos != window.file.base + at:
                raise BadRecord(f"it says that it stands at {pos}")
            size_, record_magic = _TWO.unpack(window.bytes(at + ENTRY_HEADER_BYTES, 8))
            if size_ != body_bytes:
                raise BadRecord(f"its message says {size_} bytes, its header {body_bytes}")
            message = self._message(window, at + ENTRY_HEADER_BYTES, size_, record_magic)
        self._last_index, self._last_term = index, term
        return size, message

    @staticmethod
    def _message(window: _Window, at: int, size: int, magic: int) -> Message:
        if size == 0 and magic == 0:
            raise BadRecord("the log ends here")
        if magic not in (V1, V2):
            raise BadRecord(f"its magic is {magic:#010x}")
        if not RECORD_MIN_BYTES <= size <= min(window.file.bytes - at, RECORD_MAX_BYTES):
            raise BadRecord(f"it says {size} bytes")
        message = take_apart(window.bytes(at, size))
        if message.position != window.file.base + at:
            raise BadRecord(f"it says that it stands at {message.position}")
        return message

    # Behind damage

    def _damage(self, number: int, at: int, reason: str) -> Damage:
        place, rest = self._look_on(number, at)
        resumes = None if place is None else (self._root.files[place[0]].path, place[1])
        return Damage(self._root.files[number].path, at, reason, rest, resumes)

    def _look_on(self, number: int, at: int) -> tuple[tuple[int, int] | None, int]:
        """The first intact message behind byte `at` of a file that continues the log (number of the
        file, byte), and the number of nonzero bytes before it."""
        rest, last = 0, (self._last_index, self._last_term)
        for place in range(number, len(self._root.files)):
            window = _Window(self._root.files[place])
            try:
                match, stained = self._search(window, at if place == number else 0, last)
            finally:
                window.forget()
                window.close()
            rest += stained
            if match is not None:
                return (place, match), rest
        return None, rest

    def _search(self, window: _Window, at: int, last: tuple[int, int]) -> tuple[int | None, int]:
        file, rest = window.file, 0
        header = ENTRY_HEADER_BYTES if file.kind == DLEDGER else 0
        overlap = header + 8
        while at < file.bytes:
            start = window.data_from(at)
            if start is None:
                break
            at = max(at, start)
            data = window.bytes(at, min(WINDOW_BYTES, file.bytes - at))
            if not data:
                break
            rest += len(data) - data.count(0)
            for candidate in sorted(_places(data)):
                place = at + candidate - 4 - header
                if place >= 0 and self._is_entry(window, place, last):
                    return place, rest
            if at + len(data) >= file.bytes:
                break
            at += max(1, len(data) - overlap)
        return None, rest

    def _is_entry(self, window: _Window, at: int, last: tuple[int, int]) -> bool:
        """Whether an intact message starts here that continues the log."""
        self._last_index, self._last_term = -1, -1
        no_ops = self.no_ops
        try:
            if window.file.kind == DLEDGER:
                _, message = self._entry(window, at)
                ahead = self._last_index > last[0] and self._last_term >= last[1]
            else:
                _, message = self._record(window, at)
                ahead = True
        except BadRecord:
            return False
        finally:
            self._last_index, self._last_term = last
            self.no_ops = no_ops
        return message is not None and ahead and self._fresh(message)


def _places(data: bytes) -> Iterator[int]:
    """The offsets of a record's magic."""
    for magic in MAGICS:
        at = data.find(magic)
        while at >= 0:
            yield at
            at = data.find(magic, at + 1)
