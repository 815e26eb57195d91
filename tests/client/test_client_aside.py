"""A file that gets its name when it is complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgermq.client.aside import Aside


def test_the_name_appears_with_the_whole_content(tmp_path: Path) -> None:
    """Before `close` there is no such file; afterwards nothing else is left."""
    path = tmp_path / "f"
    aside = Aside(path)
    aside.file.write(b"all")
    aside.file.flush()
    assert not path.exists()
    aside.close()
    assert path.read_bytes() == b"all" and os.listdir(tmp_path) == ["f"]


def test_abandoned_file_is_removed(tmp_path: Path) -> None:
    """The next attempt finds no file in its way."""
    aside = Aside(tmp_path / "f")
    aside.file.write(b"half")
    aside.abandon()
    assert os.listdir(tmp_path) == []


def test_remains_of_a_killed_process_are_overwritten(tmp_path: Path) -> None:
    """The remains are not part of the next file."""
    (tmp_path / ".f.part").write_bytes(b"remains of a longer file")
    aside = Aside(tmp_path / "f")
    aside.file.write(b"new")
    aside.close()
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    """Neither one that was there before, nor one that is being written."""
    path = tmp_path / "f"
    first = Aside(path)
    with pytest.raises(BlockingIOError):
        Aside(path)
    first.file.write(b"first")
    first.close()
    with pytest.raises(FileExistsError):
        Aside(path)
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("left", [True, False])
def test_a_file_completed_while_another_process_opens_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """Between the first look and the lock, its writer renamed it: the second process holds that
    very file, or a new one of its own."""
    path = tmp_path / "f"
    first = Aside(path)
    first.file.write(b"first")
    real_open = open

    def late_open(*arguments: str) -> object:
        if not left:
            first.close()
        opened = real_open(*arguments)
        if left:
            first.close()
        return opened

    monkeypatch.setattr("builtins.open", late_open)
    with pytest.raises(FileExistsError):
        Aside(path)
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["f"]


def test_a_file_that_cannot_be_synced_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk shows at the end only."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    aside = Aside(tmp_path / "f")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        aside.close()
    assert os.listdir(tmp_path) == []
