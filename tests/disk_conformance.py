"""The conformance suite of the disk port: each implementation subclasses `DiskConformance` and
provides a disk with an empty directory.

The suite asserts only behaviour that the port promises. The tests of `ForgetfulDisk` cover what
survives a power cut.
"""

from __future__ import annotations

import pytest

from ledgermq.storage.files.ports import PAGE_BYTES, Disk

Place = tuple[Disk, str]


class DiskConformance:
    """Subclasses define the fixture `place`: a disk and the absolute path of an existing, empty
    directory on it."""

    def test_created_file_is_zero_and_has_its_length(self, place: Place) -> None:
        """A new file, sparse or allocated, has exactly its length and contains only zeros."""
        disk, root = place
        for name, allocate in (("sparse", False), ("allocated", True)):
            file = disk.create(f"{root}/{name}", 10_000, allocate=allocate)
            assert (file.path, file.size) == (f"{root}/{name}", 10_000)
            assert file.pread(0, 10_000) == bytes(10_000)
            assert disk.file_size(f"{root}/{name}") == 10_000
            file.close()

    def test_create_refuses_an_existing_name(self, place: Place) -> None:
        """`create` never replaces a file."""
        disk, root = place
        file = disk.create(f"{root}/a", 64, allocate=True)
        file.pwrite(0, b"kept")
        with pytest.raises(FileExistsError):
            disk.create(f"{root}/a", 64, allocate=True)
        assert file.pread(0, 4) == b"kept"
        file.close()

    def test_missing_names_are_errors_of_their_kind(self, place: Place) -> None:
        """A missing name raises FileNotFoundError, except in `exists` and `listdir`."""
        disk, root = place
        missing = f"{root}/missing"
        for act in (disk.open, disk.file_size, disk.unlink, disk.read_file):
            with pytest.raises(FileNotFoundError):
                act(missing)
        with pytest.raises(FileNotFoundError):
            disk.rename(missing, f"{root}/other")
        with pytest.raises(FileNotFoundError):
            disk.create(f"{missing}/file", 10, allocate=False)
        assert not disk.exists(missing)
        assert disk.listdir(missing) == []

    def test_forgotten_cache_pages_read_as_written(self, place: Place) -> None:
        """`forget` drops pages from the cache, and loses neither synced nor unsynced bytes."""
        disk, root = place
        file = disk.create(f"{root}/a", 3 * PAGE_BYTES, allocate=True)
        file.pwrite(0, b"synced")
        file.sync()
        file.pwrite(PAGE_BYTES, b"written")
        file.forget(0, 2 * PAGE_BYTES)
        assert file.pread(0, 6) == b"synced" and file.pread(PAGE_BYTES, 7) == b"written"
        file.close()

    def test_pread_is_short_only_at_the_end(self, place: Place) -> None:
        """A read past the end returns the existing bytes, or none."""
        disk, root = place
        file = disk.create(f"{root}/a", 100, allocate=True)
        assert len(file.pread(90, 50)) == 10
        assert file.pread(100, 1) == b""
        assert file.pread(5000, 1) == b""
        assert file.pread(0, 0) == b""
        file.close()

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_pwrite_takes_every_buffer_at_its_offset_only(self, place: Place, kind: type) -> None:
        """A write changes exactly its bytes, also across page boundaries, and copies its
        argument."""
        disk, root = place
        file = disk.create(f"{root}/a", 3 * PAGE_BYTES, allocate=True)
        source = bytearray(b"x" * (PAGE_BYTES + 10))
        file.pwrite(PAGE_BYTES - 5, kind(source))
        source[:] = bytes(len(source))
        want = bytes(PAGE_BYTES - 5) + b"x" * (PAGE_BYTES + 10) + bytes(PAGE_BYTES - 5)
        assert file.pread(0, 3 * PAGE_BYTES) == want
        file.close()

    def test_pwrite_outside_the_file_is_a_programming_error(self, place: Place) -> None:
        """A file never grows: a write beyond its bounds is refused as a whole."""
        disk, root = place
        file = disk.create(f"{root}/a", 100, allocate=True)
        for offset, length in ((96, 5), (100, 1), (-1, 1)):
            with pytest.raises(AssertionError):
                file.pwrite(offset, b"x" * length)
        assert file.pread(0, 100) == bytes(100)
        assert disk.file_size(f"{root}/a") == 100
        file.close()

    def test_view_sees_later_writes_and_is_read_only(self, place: Place) -> None:
        """A view shows the file itself, not a copy, and stays valid after the file is closed."""
        disk, root = place
        file = disk.create(f"{root}/a", 2 * PAGE_BYTES, allocate=True)
        view = file.view()
        assert len(view) == 2 * PAGE_BYTES
        assert view.readonly
        file.pwrite(PAGE_BYTES - 2, b"abcd")
        assert bytes(view[PAGE_BYTES - 2 : PAGE_BYTES + 2]) == b"abcd"
        file.pwrite(PAGE_BYTES - 2, b"ABCD")
        part = view[PAGE_BYTES - 2 : PAGE_BYTES + 2]
        assert bytes(part) == b"ABCD"
        assert bytes(file.view()[:1]) == b"\0"
        del view
        file.close()
        assert bytes(part) == b"ABCD"

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_store_is_a_write_through_the_map(self, place: Place, kind: type) -> None:
        """A store changes exactly its bytes, also across page boundaries, and copies its argument;
        reads and views see it."""
        disk, root = place
        file = disk.create(f"{root}/a", 3 * PAGE_BYTES, allocate=True)
        view = file.view()
        source = bytearray(b"x" * (PAGE_BYTES + 10))
        file.store(PAGE_BYTES - 5, kind(source))
        source[:] = bytes(len(source))
        want = bytes(PAGE_BYTES - 5) + b"x" * (PAGE_BYTES + 10) + bytes(PAGE_BYTES - 5)
        assert file.pread(0, 3 * PAGE_BYTES) == bytes(view) == bytes(file.view()) == want
        file.sync()
        other = disk.open(f"{root}/a")
        assert other.pread(0, 3 * PAGE_BYTES) == want
        file.close()
        other.close()

    def test_stores_and_writes_overwrite_each_other(self, place: Place) -> None:
        """Both change the same content, in the order of the calls, through any handle."""
        disk, root = place
        file = disk.create(f"{root}/a", 2 * PAGE_BYTES, allocate=True)
        other = disk.open(f"{root}/a")
        file.pwrite(0, b"aaaaaaaa")
        file.store(2, b"bbbb")
        other.pwrite(3, b"c")
        other.store(5, b"")
        other.store(7, b"d")
        assert file.pread(0, 8) == other.pread(0, 8) == bytes(file.view()[:8]) == b"aabcbbad"
        file.close()
        other.close()

    def test_store_outside_the_file_is_a_programming_error(self, place: Place) -> None:
        """A map has the length of the file: a store beyond its bounds is refused as a whole."""
        disk, root = place
        file = disk.create(f"{root}/a", 100, allocate=True)
        for offset, length in ((96, 5), (100, 1), (-1, 1)):
            with pytest.raises(AssertionError):
                file.store(offset, b"x" * length)
        assert file.pread(0, 100) == bytes(100)
        file.close()

    def test_a_map_is_counted_from_its_first_use_to_its_last(self, place: Place) -> None:
        """The first view or store maps the file, `swap_out` unmaps it, and the next use maps it
        again."""
        disk, root = place
        file = disk.create(f"{root}/a", 2 * PAGE_BYTES, allocate=True)
        assert file.swap_out()
        assert file.mapped_bytes == 0
        for use in (
            lambda: file.store(0, b"x"),
            lambda: bytes(file.view()[:1]),
            lambda: file.warm(stores=True),
        ):
            use()
            assert file.mapped_bytes == 2 * PAGE_BYTES
            assert file.swap_out()
            assert file.mapped_bytes == 0
        assert file.pread(0, 1) == b"x"
        file.warm(stores=False)
        file.close()
        assert file.mapped_bytes == 0

    def test_a_view_pins_its_map(self, place: Place) -> None:
        """The map stays while a view exists, even after close and unlink, and is removed with the
        last view."""
        disk, root = place
        file = disk.create(f"{root}/a", 2 * PAGE_BYTES, allocate=True)
        file.pwrite(5, b"kept")
        part = file.view()[5:9]
        assert not file.swap_out()
        assert file.mapped_bytes == 2 * PAGE_BYTES
        disk.unlink(f"{root}/a")
        file.close()
        assert file.mapped_bytes == 2 * PAGE_BYTES
        assert bytes(part) == b"kept"
        del part
        assert file.mapped_bytes == 0

    def test_locked_bytes_end_with_the_map(self, place: Place) -> None:
        """Locking maps the file; unlocking, swapping out and closing release the lock."""
        disk, root = place
        file = disk.create(f"{root}/a", PAGE_BYTES, allocate=True)
        for end in (file.unlock, file.swap_out, file.close):
            file.lock()
            assert (file.locked_bytes, file.mapped_bytes) == (PAGE_BYTES, PAGE_BYTES)
            end()
            assert file.locked_bytes == 0

    def test_reopened_file_has_the_written_bytes(self, place: Place) -> None:
        """Two handles of a file see the same content; closing one does not affect the other."""
        disk, root = place
        first = disk.create(f"{root}/a", 100, allocate=False)
        first.pwrite(10, b"one")
        second = disk.open(f"{root}/a")
        assert (second.size, second.pread(10, 3)) == (100, b"one")
        second.pwrite(10, b"two")
        assert first.pread(10, 3) == b"two"
        second.sync()
        second.close()
        first.sync()
        assert first.pread(10, 3) == b"two"
        first.close()

    def test_rename_moves_and_replaces(self, place: Place) -> None:
        """A rename keeps the content, replaces an existing file of that name, and open handles stay
        valid."""
        disk, root = place
        file = disk.create(f"{root}/a.alloc", 50, allocate=True)
        file.pwrite(0, b"new")
        disk.create(f"{root}/a", 70, allocate=True).close()
        disk.rename(f"{root}/a.alloc", f"{root}/a")
        disk.sync_dir(root)
        assert disk.listdir(root) == ["a"]
        assert disk.file_size(f"{root}/a") == 50
        file.pwrite(0, b"NEW")
        file.sync()
        assert disk.read_file(f"{root}/a")[:3] == b"NEW"
        file.close()

    def test_unlink_removes_the_name_and_leaves_handles_usable(self, place: Place) -> None:
        """An open file stays usable after unlink; its name can be used for another file."""
        disk, root = place
        file = disk.create(f"{root}/a", 50, allocate=True)
        file.pwrite(0, b"old")
        disk.unlink(f"{root}/a")
        disk.sync_dir(root)
        assert not disk.exists(f"{root}/a")
        other = disk.create(f"{root}/a", 50, allocate=True)
        file.pwrite(0, b"OLD")
        file.sync()
        assert (file.pread(0, 3), other.pread(0, 3)) == (b"OLD", bytes(3))
        file.close()
        other.close()

    def test_directories(self, place: Place) -> None:
        """`mkdirs` creates parents and accepts existing directories; `listdir` sorts."""
        disk, root = place
        disk.mkdirs(f"{root}/b/c")
        disk.mkdirs(f"{root}/b/c")
        disk.mkdirs(f"{root}/a")
        disk.create(f"{root}/b/file", 1, allocate=False).close()
        assert disk.listdir(root) == ["a", "b"]
        assert disk.listdir(f"{root}/b") == ["c", "file"]
        assert disk.exists(f"{root}/b/c")
        assert not disk.exists(f"{root}/b/file/below-a-file")
        for path in (f"{root}/b/c", f"{root}/b", root):
            disk.sync_dir(path)

    def test_replace_file(self, place: Place) -> None:
        """A small file is replaced as a whole by shorter or longer content, and no temporary file
        remains."""
        disk, root = place
        for content in (b"one", b"twenty two", b"", b"3"):
            disk.replace_file(f"{root}/small", content)
            assert disk.read_file(f"{root}/small") == content
            assert disk.file_size(f"{root}/small") == len(content)
            assert disk.listdir(root) == ["small"]

    def test_replace_file_passes_over_a_left_over(self, place: Place) -> None:
        """An unfinished file of an earlier attempt does not prevent the replacement."""
        disk, root = place
        disk.create(f"{root}/small.tmp", 500, allocate=True).close()
        disk.replace_file(f"{root}/small", b"new")
        assert disk.listdir(root) == ["small"]
        assert disk.read_file(f"{root}/small") == b"new"

    def test_free_bytes(self, place: Place) -> None:
        """The free bytes are positive and at most the total bytes."""
        disk, root = place
        assert 0 < disk.free_bytes(root) <= disk.total_bytes(root)
