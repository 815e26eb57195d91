"""The forgetful disk: the disk port in memory, with the effects of power cuts, failed syncs and
full disks.

This module models only the storage medium. Its law: after `power_cut` every synced byte exists, and
of the unsynced bytes any subset of 512-byte sectors survives, chosen by the given random source,
whether they were written or stored through a map. Of the names created, renamed or removed in a
directory since its last `sync_dir`, some prefix survives. A process crash (`process_crash`) loses
nothing, because the page cache outlives the process.

A failed sync behaves like Linux: the error is reported once, the pages then count as clean although
the medium lacks them, and the cache continues to return them (docs/architecture.md, Durability).

Media can also be faulty: `flip` (bit rot), `go_stale` (an old version of a page),
`lie_at_next_sync` (an acknowledged write that is lost or misplaced), `break_page` (EIO until it is
written again, except for a checker: `inspected`), `shorten` and `vanish` (files damaged by hand
while no process runs).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from ledgermq.sim.machine.ports import DiskChance
from ledgermq.storage.files.ports import PAGE_BYTES, Buffer

SECTOR_BYTES = 512


class Killed(BaseException):
    """The process that used the disk ended in the middle of an operation. No code of the process
    catches it."""


class Inode:
    """Content of one file: what readers see, and the synced content of every page that differs from
    the medium."""

    __slots__ = ("allocated", "before", "broken", "data", "former", "lost")

    def __init__(self, size: int, allocated: bool) -> None:
        self.data = bytearray(size)
        self.before: dict[int, bytes] = {}
        """page number -> what the medium holds, for pages written since the last sync"""
        self.lost: dict[int, bytes] = {}
        """page number -> what the medium holds, for pages left behind by a failed sync; later syncs
        skip them"""
        self.former: dict[int, bytes] = {}
        """page number -> what the medium held before the last sync that changed the page"""
        self.broken: set[int] = set()
        """pages that cannot be read until they are written again"""
        self.allocated: set[int] | None = None if allocated else set()

    def pages(self, offset: int, length: int) -> range:
        return range(offset // PAGE_BYTES, (offset + length + PAGE_BYTES - 1) // PAGE_BYTES)

    def page(self, number: int) -> bytes:
        return bytes(self.data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES])

    @property
    def pinned(self) -> bool:
        """Whether a view of the content exists."""
        try:
            # A bytearray with a view refuses to change its length.
            self.data.append(0)
        except BufferError:
            return True
        self.data.pop()
        return False

    def remember(self, offset: int, length: int) -> None:
        for number in self.pages(offset, length):
            self.broken.discard(number)
            if number in self.lost:
                self.before.setdefault(number, self.lost.pop(number))
            elif number not in self.before:
                self.before[number] = self.page(number)


@dataclass
class Directory:
    """Names of one directory: as processes see them, as the medium has them, and the changes
    between the two, in order."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    pending: list[dict[str, Inode | None]] = field(default_factory=list)

    def change(self, names: dict[str, Inode | None]) -> None:
        """One atomic change: each name now refers to this inode, or to none."""
        self.pending.append(names)
        apply_change(self.names, names)

    def settle(self, count: int) -> None:
        for names in self.pending[:count]:
            apply_change(self.durable, names)
        self.pending.clear()


def apply_change(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


@dataclass(frozen=True, slots=True)
class Lie:
    """Makes the next sync of a file report success without storing everything."""

    part: str
    chance: DiskChance
    misdirected: bool

    def tell(self, inode: Inode) -> int:
        """Leave one page that is being synced as the medium has it; returns its number."""
        pages = sorted(inode.before)
        number = pages[self.chance.randrange(len(pages))]
        if self.misdirected:
            written = inode.page(number)
            whole = range((len(inode.data) + PAGE_BYTES - 1) // PAGE_BYTES)
            others = [
                other
                for other in whole
                if other < number
                and other not in inode.before
                and len(inode.page(other)) == len(written)
            ]
            if others:
                inode.lost[others[self.chance.randrange(len(others))]] = written
        inode.lost[number] = inode.before.pop(number)
        return number


class ForgetfulFile:
    """One open file; see `ledgermq.storage.files.ports.DiskFile`. Its map is the content itself:
    only pins and counts are simulated."""

    def __init__(self, disk: ForgetfulDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self.size = len(inode.data)
        self._mapped = False
        self._locked = False
        self._closed = False

    def pread(self, offset: int, length: int) -> bytes:
        self._disk.check_alive()
        self._disk.check_readable(self._inode, offset, length, self.path)
        return bytes(self._inode.data[offset : offset + length])

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._disk.check_alive()
        length = len(data)
        assert 0 <= offset <= offset + length <= self.size, (
            f"write outside of the file: {offset}+{length} of {self.size}: {self.path}"
        )
        self._disk.charge(self._inode, offset, length, self.path)
        self._inode.remember(offset, length)
        self._inode.data[offset : offset + length] = data

    def sync(self) -> None:
        self._disk.sync_inode(self._inode, self.path)

    def store(self, offset: int, data: Buffer) -> None:
        """Raises Killed if the map has no block there and the disk is full: the kernel would send
        SIGBUS."""
        self._mapped = True
        try:
            self.pwrite(offset, data)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Killed(f"SIGBUS: {self.path} has no block at {offset}") from error
            raise

    def view(self) -> memoryview:
        self._mapped = True
        return memoryview(self._inode.data).toreadonly()

    def warm(self, *, stores: bool) -> None:
        self._disk.check_alive()
        self._mapped = True

    def lock(self) -> None:
        self.warm(stores=False)
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def swap_out(self) -> bool:
        if self._mapped and self._inode.pinned:
            return False
        self._mapped = self._locked = False
        return True

    def forget(self, offset: int, length: int) -> None:
        """Ignored: rot is visible immediately (`ForgetfulDisk.flip`)."""

    @property
    def mapped_bytes(self) -> int:
        return self.size if self._mapped and (not self._closed or self._inode.pinned) else 0

    @property
    def locked_bytes(self) -> int:
        return self.size if self._locked else 0

    def close(self) -> None:
        """Release the map; the medium is memory."""
        self._locked = False
        self._closed = True


class ForgetfulDisk:
    """A file system in memory; see `ledgermq.storage.files.ports.Disk`.

    `capacity_bytes` limits allocated pages (ENOSPC beyond). `on_sync(path)` is called before a sync
    takes effect and may raise OSError to make it fail; `trace(path)` is called after it took
    effect. `on_access` is called before every access and may raise Killed.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self._directories: dict[str, Directory] = {"/": Directory()}
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.on_sync: Callable[[str], None] | None = None
        self.trace: Callable[[str], None] | None = None
        self.on_access: Callable[[], None] | None = None
        self.lie: Lie | None = None
        self.lies: list[tuple[str, int]] = []
        """File and page number that a sync reported as stored, but did not store."""
        self.read_errors = 0
        self.any_names = False
        self.forgets_directories = False
        self._unsynced_directories: dict[str, None] = {}
        self._generation_open = True
        self._inspected = False

    # -- the port
    # -----------------------------------------------------------------------------------------------------------------

    def open(self, path: str) -> ForgetfulFile:
        self.check_alive()
        return ForgetfulFile(self, path, self._inode(path))

    def create(self, path: str, size: int, *, allocate: bool) -> ForgetfulFile:
        self.check_alive()
        directory, name = self._parent(path)
        if name in directory.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if allocate:
            self._take(size, path)
        inode = Inode(size, allocate)
        directory.change({name: inode})
        return ForgetfulFile(self, path, inode)

    def exists(self, path: str) -> bool:
        self.check_alive()
        if path in self._directories:
            return True
        parent, name = os.path.split(path)
        return parent in self._directories and name in self._directories[parent].names

    def file_size(self, path: str) -> int:
        return len(self._inode(path).data)

    def listdir(self, path: str) -> list[str]:
        self.check_alive()
        if path not in self._directories:
            return []
        prefix = path.rstrip("/") + "/"
        below = {p[len(prefix) :].split("/")[0] for p in self._directories if p.startswith(prefix)}
        return sorted(below | set(self._directories[path].names))

    def mkdirs(self, path: str) -> None:
        """Directories are durable immediately, unless the disk `forgets_directories`."""
        self.check_alive()
        while path not in self._directories:
            if self.forgets_directories:
                self._unsynced_directories[path] = None
            self._directories[path] = Directory()
            path = os.path.dirname(path)

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        inode = self._inode(old)
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        if source is not target:
            raise OSError(errno.EXDEV, "the store renames within one directory only", new)
        source.change({new_name: inode, old_name: None})

    def unlink(self, path: str) -> None:
        inode = self._inode(path)
        directory, name = self._parent(path)
        directory.change({name: None})
        self.used_bytes -= (
            len(inode.data) if inode.allocated is None else len(inode.allocated) * PAGE_BYTES
        )

    def sync_dir(self, path: str) -> None:
        self.check_alive()
        if self.on_sync is not None:
            self.on_sync(path)
        directory = self._directories[path]
        directory.settle(len(directory.pending))
        for made in [made for made in self._unsynced_directories if os.path.dirname(made) == path]:
            del self._unsynced_directories[made]
        if self.trace is not None:
            self.trace(path)

    def read_file(self, path: str) -> bytes:
        self.check_alive()
        inode = self._inode(path)
        self.check_readable(inode, 0, len(inode.data), path)
        return bytes(inode.data)

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        if self.exists(temporary):
            self.unlink(temporary)
        file = self.create(temporary, len(data), allocate=False)
        file.pwrite(0, data)
        file.sync()
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def free_bytes(self, path: str) -> int:
        return (
            1 << 50
            if self.capacity_bytes is None
            else max(0, self.capacity_bytes - self.used_bytes)
        )

    def total_bytes(self, path: str) -> int:
        return self.used_bytes + self.free_bytes(path)

    # -- what happens to media
    # ----------------------------------------------------------------------------------------------------

    def process_crash(self) -> None:
        """SIGKILL: open files are closed with the process, every byte and name stays in the
        cache."""

    def unsynced_pages(self) -> list[tuple[str, int]]:
        """Path and page number of everything that a power cut could lose now, however it was
        written."""
        return [
            (f"{path.rstrip('/')}/{name}", number)
            for path, directory in sorted(self._directories.items())
            for name, inode in sorted(directory.names.items())
            for number in sorted({*inode.before, *inode.lost})
        ]

    def write_back(self, chance: DiskChance) -> None:
        """A kernel's background writeback: any of the dirty pages reach the medium with their
        current content, and count as clean."""
        for inode in self._inodes():
            for number in sorted(inode.before):
                if chance.random() < 0.5:
                    del inode.before[number]

    def power_cut_keeping(
        self, kept: Set[tuple[str, int]], *, torn: Set[tuple[str, int]] = frozenset()
    ) -> None:
        """A power cut in which exactly these pages survived, half of each of the `torn` ones, and
        every name."""
        for path in sorted(self._directories):
            directory = self._directories[path]
            directory.settle(len(directory.pending))
            for name, inode in sorted(directory.names.items()):
                for number, old in {**inode.lost, **inode.before}.items():
                    page = f"{path.rstrip('/')}/{name}", number
                    if page in torn:
                        start = number * PAGE_BYTES + len(old) // 2
                        inode.data[start : start + len(old) - len(old) // 2] = old[len(old) // 2 :]
                    elif page not in kept:
                        self._restore(inode, number, old, keep=None)
                inode.before.clear()
                inode.lost.clear()

    def power_cut(self, chance: DiskChance) -> None:
        """Lose unsynced data: each sector of each unsynced page survives or not. Each directory
        keeps a prefix of its changes or, with `any_names`, any of them. With `forgets_directories`,
        a new directory is lost unless its parent was synced."""
        for path in [
            path
            for path in self._unsynced_directories
            if path in self._directories and chance.random() < 0.5
        ]:
            for below in [
                found
                for found in self._directories
                if found == path or found.startswith(path + "/")
            ]:
                del self._directories[below]
        self._unsynced_directories.clear()
        for path in sorted(self._directories):
            directory = self._directories[path]
            if self.any_names:
                directory.pending = [
                    change for change in directory.pending if chance.random() < 0.5
                ]
                directory.settle(len(directory.pending))
            else:
                directory.settle(chance.randrange(len(directory.pending) + 1))
            directory.names = dict(directory.durable)
        for inode in self._inodes():
            fate = chance.random()
            for number, old in sorted({**inode.lost, **inode.before}.items()):
                if number in inode.lost or fate < 0.25:
                    self._restore(inode, number, old, keep=None)
                elif fate < 0.5:
                    continue
                elif chance.random() < 0.5:
                    self._restore(inode, number, old, keep=chance)
            inode.before.clear()
            inode.lost.clear()

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Bit rot: change a byte both in the cache and on the medium."""
        inode = self._inode(path)
        inode.data[offset] ^= mask
        for pages in (inode.before, inode.lost):
            old = pages.get(offset // PAGE_BYTES)
            if old is not None:
                changed = bytearray(old)
                changed[offset % PAGE_BYTES] ^= mask
                pages[offset // PAGE_BYTES] = bytes(changed)

    def go_stale(self, path: str, chance: DiskChance, *, below: int | None = None) -> bool:
        """One page of a file (that ends at or before the offset `below`) returns to its content
        before its last change, in cache and on the medium; False if no page has an older
        version."""
        inode = self._inode(path)
        end = len(inode.data) if below is None else below
        clean = (
            number
            for number in inode.former
            if number not in inode.before and number not in inode.lost
        )
        pages = sorted(number for number in clean if (number + 1) * PAGE_BYTES <= end)
        if not pages:
            return False
        number = pages[chance.randrange(len(pages))]
        old = inode.former.pop(number)
        inode.data[number * PAGE_BYTES : number * PAGE_BYTES + len(old)] = old
        return True

    def lie_at_next_sync(self, part: str, chance: DiskChance, *, misdirected: bool) -> None:
        """The next sync of a file whose path contains `part` reports success, but one page is not
        stored; with `misdirected` it has overwritten another page of that file on the medium. The
        cache still shows what was written."""
        self.lie = Lie(part, chance, misdirected)

    def break_page(self, path: str, offset: int) -> None:
        """Reads of the page at this offset report EIO until it is written again."""
        self._inode(path).broken.add(offset // PAGE_BYTES)

    def shorten(self, path: str, size: int) -> None:
        """A file loses its end, as if truncated by hand while no process runs."""
        directory, name = self._parent(path)
        inode = self._inode(path)
        shorter = Inode(min(size, len(inode.data)), inode.allocated is None)
        shorter.data[:] = inode.data[: len(shorter.data)]
        directory.names[name] = directory.durable[name] = shorter

    def vanish(self, path: str) -> None:
        """A file disappears from cache and medium, as if removed by hand while no process runs."""
        directory, name = self._parent(path)
        self._inode(path)
        del directory.names[name]
        directory.durable.pop(name, None)

    def mend(self) -> None:
        """The medium is correct again, and every page can be read; existing damage stays."""
        self.lie = None
        for inode in self._inodes():
            inode.broken.clear()

    def on_medium(self, path: str, offset: int, length: int) -> bytes | None:
        """The bytes that a power cut would leave there if nothing unsynced survived; None if the
        file's name is not durable."""
        directory, name = self._parent(path)
        inode = directory.durable.get(name)
        if inode is None:
            return None
        content = bytearray(inode.data[offset : offset + length])
        for number in inode.pages(offset, length):
            old = inode.lost.get(number, inode.before.get(number))
            if old is not None:
                start = number * PAGE_BYTES
                low, high = max(start, offset), min(start + len(old), offset + length)
                content[low - offset : high - offset] = old[low - start : high - start]
        return bytes(content)

    def files(self) -> list[str]:
        return sorted(
            f"{path.rstrip('/')}/{name}"
            for path, directory in self._directories.items()
            for name in directory.names
        )

    # -- inside
    # -------------------------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        if not self._generation_open:
            raise OSError(errno.EIO, "this disk was taken away")
        if self.on_access is not None:
            self.on_access()

    def detach(self) -> None:
        """From now on every access fails, as leftover objects of a crashed node must experience."""
        self._generation_open = False

    def successor(self) -> ForgetfulDisk:
        """The same medium for the node's next process; this object is detached."""
        fresh = ForgetfulDisk(capacity_bytes=self.capacity_bytes)
        fresh.take_over(self)
        return fresh

    def take_over(self, former: ForgetfulDisk) -> None:
        """Continue with another object's medium."""
        self._directories = former._directories
        self._unsynced_directories = former._unsynced_directories
        self.any_names, self.forgets_directories = former.any_names, former.forgets_directories
        self.lie, self.lies, self.read_errors = former.lie, former.lies, former.read_errors
        self.used_bytes = former.used_bytes
        former.detach()

    @contextmanager
    def inspected(self) -> Iterator[None]:
        """Context for a checker's reads: broken pages show their content. Only the node's own reads
        of them fail."""
        self._inspected = True
        try:
            yield
        finally:
            self._inspected = False

    def check_readable(self, inode: Inode, offset: int, length: int, path: str) -> None:
        if self._inspected:
            return
        if inode.broken and not inode.broken.isdisjoint(inode.pages(offset, length)):
            self.read_errors += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def sync_inode(self, inode: Inode, path: str) -> None:
        self.check_alive()
        if self.on_sync is not None:
            try:
                self.on_sync(path)
            except OSError:
                inode.lost.update(inode.before)
                inode.before.clear()
                raise
        if self.lie is not None and self.lie.part in path and inode.before:
            self.lies.append((path, self.lie.tell(inode)))
            self.lie = None
        inode.former.update(inode.before)
        inode.before.clear()
        if self.trace is not None:
            self.trace(path)

    def charge(self, inode: Inode, offset: int, length: int, path: str) -> None:
        """Account for pages of a sparse file that receive their first bytes."""
        if inode.allocated is None:
            return
        fresh = [number for number in inode.pages(offset, length) if number not in inode.allocated]
        self._take(len(fresh) * PAGE_BYTES, path)
        inode.allocated.update(fresh)

    def _take(self, size: int, path: str) -> None:
        if self.capacity_bytes is not None and self.used_bytes + size > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.used_bytes += size

    def _restore(self, inode: Inode, number: int, old: bytes, keep: DiskChance | None) -> None:
        """Restore the medium's content, sector by sector; with `keep`, some sectors of the new
        content survive."""
        for sector in range(0, len(old), SECTOR_BYTES):
            if keep is not None and keep.random() < 0.5:
                continue
            start = number * PAGE_BYTES + sector
            inode.data[start : start + SECTOR_BYTES] = old[sector : sector + SECTOR_BYTES]

    def _inodes(self) -> list[Inode]:
        seen: dict[int, Inode] = {}
        for path in sorted(self._directories):
            for _, inode in sorted(self._directories[path].names.items()):
                seen.setdefault(id(inode), inode)
        return list(seen.values())

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, name = os.path.split(path)
        if parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._directories[parent], name

    def _inode(self, path: str) -> Inode:
        self.check_alive()
        directory, name = self._parent(path)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory.names[name]
