"""The manifests of the stored files of one log, as far as this node has linked them to its own log,
with a copy on its disk.

A manifest counts only if term and chain CRC continue those of its neighbours up to the local log,
so that an older version, another history or a gap is noticed. The copy (`state/tiered.files`,
format §21) spares the requests after a restart, and keeps the digests of the files that this node
has verified itself: a store that later claims another digest is not believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import crc32c

from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import manifests
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import ObjectMissing, ObjectStore
from ledgermq.storage.tiered.transfer import WrongObject

FILE = "tiered.files"
MANIFESTS_A_STEP = 256
"""How many manifests one call reads from the store at most."""
_MAGIC, _VERSION = b"LMQT", 1
_HEADER = struct.Struct(">4siqqI36s")
"""Magic, version, size of the log files, number of rows, CRC-32C of the rows, log id."""
_ROW = struct.Struct(">qqqqqqqII32s")
"""Base, first, last, end, term, last term, last store time, chain, last chain, SHA-256."""


class Catalogue:
    """The linked manifests of one log. Belongs to one thread, but for `files`, which is replaced as
    a whole."""

    def __init__(
        self, disk: Disk, path: str, store: ObjectStore, where: str, log_id: str, file_bytes: int
    ) -> None:
        self.files: tuple[FileManifest, ...] = ()
        """Oldest first, without a gap."""
        self._disk = disk
        self._path = path
        self._store = store
        self._where = where
        self._log_id = log_id
        self._file_bytes = file_bytes
        self._known: dict[int, FileManifest] = {}
        """Base → manifest that this node linked or verified earlier."""

    def load(self) -> None:
        """Read the copy on this disk. A damaged one counts as none. Raises OSError."""
        if not self._disk.exists(self._path):
            return
        data = self._disk.read_file(self._path)
        if len(data) >= _HEADER.size:
            magic, version, size, count, crc, log_id = _HEADER.unpack_from(data)
            rows = data[_HEADER.size :]
            own = magic, version, size, log_id.decode("ascii", "replace"), len(rows), crc
            if own == (
                _MAGIC,
                _VERSION,
                self._file_bytes,
                self._log_id,
                count * _ROW.size,
                crc32c.crc32c(rows),
            ):
                self._known = {file.base: file for file in self._unpacked(rows)}

    def add(self, file: FileManifest) -> None:
        """Note a file that this node has just verified; `link` takes it in."""
        self._known[file.base] = file

    def link(self, local: Begin, stored: Begin, verified_pos: int) -> bool:
        """Link files, at most MANIFESTS_A_STEP of those that must be asked for: up to
        `verified_pos`, then down to `stored`, where the log begins in the store. `local`: where it
        begins on this disk. Returns whether there is nothing left to link. Raises WrongObject,
        StoreFailure, OSError."""
        before = self.files
        files = [file for file in before if file.base >= stored.pos]
        self._check(files, local)
        asked = 0
        if local.pos < stored.pos:
            # The files in which both would meet are gone. What follows is verified against the
            # local log, file by file.
            local = stored
        try:
            while (end := files[-1].behind if files else local).pos < verified_pos:
                asked += self._fetch(end.pos)
                if asked > MANIFESTS_A_STEP:
                    return False
                file = self._known[end.pos]
                files.append(self._require(file, fits=file.follows(end), base=end.pos))
            while (begin := _begin_of(files[0]) if files else local).pos > stored.pos:
                asked += self._fetch(begin.pos - self._file_bytes)
                if asked > MANIFESTS_A_STEP:
                    return False
                file = self._known[begin.pos - self._file_bytes]
                files.insert(
                    0,
                    self._require(
                        file, fits=file.behind == begin, base=begin.pos - self._file_bytes
                    ),
                )
        finally:
            if files != list(before):
                self.files = tuple(files)
                self._write()
        return True

    def _check(self, files: list[FileManifest], local: Begin) -> None:
        """Forget what was linked to a log that this node no longer has."""
        for file in reversed(files):
            if file.next_base == local.pos and file.behind != local:
                files.clear()
                return
            if file.next_base <= local.pos:
                return

    def _fetch(self, base: int) -> bool:
        """Ensure that the manifest of a file is known. Returns whether the store was asked."""
        if base in self._known:
            return False
        key = manifests.manifest_key(self._where, base)
        try:
            manifest = manifests.decode_manifest(self._store.get(key), key)
        except ObjectMissing as missing:
            raise WrongObject(str(missing)) from missing
        except Damaged as damage:
            raise WrongObject(f"{self._store.place}: {damage}") from damage
        self._known[base] = manifest
        return True

    def _require(self, file: FileManifest, *, fits: bool, base: int) -> FileManifest:
        if fits and (file.base, file.size, file.log_id) == (base, self._file_bytes, self._log_id):
            return file
        del self._known[base]
        problem = (
            f"{self._store.place}/{manifests.manifest_key(self._where, base)} does not continue the"
            " log of this node"
        )
        raise WrongObject(f"{problem}: it is an older version, or of another history")

    def _write(self) -> None:
        rows = b"".join([_packed(file) for file in self.files])
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            self._file_bytes,
            len(self.files),
            crc32c.crc32c(rows),
            self._log_id.encode("ascii"),
        )
        self._disk.replace_file(self._path, header + rows)

    def _unpacked(self, rows: bytes) -> Iterator[FileManifest]:
        for (
            base,
            first,
            last,
            end,
            term,
            last_term,
            last_store_ms,
            chain,
            last_chain,
            sha256,
        ) in _ROW.iter_unpack(rows):
            yield FileManifest(
                log_id=self._log_id,
                base=base,
                size=self._file_bytes,
                first=first,
                last=last,
                end=end,
                term=term,
                chain=chain,
                last_term=last_term,
                last_chain=last_chain,
                last_store_ms=last_store_ms,
                sha256=sha256.hex(),
            )


def _begin_of(file: FileManifest) -> Begin:
    return Begin(file.first, file.base, file.term, file.chain)


def _packed(file: FileManifest) -> bytes:
    return _ROW.pack(
        file.base,
        file.first,
        file.last,
        file.end,
        file.term,
        file.last_term,
        file.last_store_ms,
        file.chain,
        file.last_chain,
        bytes.fromhex(file.sha256),
    )
