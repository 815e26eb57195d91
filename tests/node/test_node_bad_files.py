"""Bad input as a node meets it: the node directory, the limits of the process, files that fail
while a group is being opened."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ledgermq.node.broker.ports import Fenced
from ledgermq.node.process.data_directory import DataDirectory
from ledgermq.node.replica.hosting import engine
from ledgermq.node.replica.hosting.hosted_groups import open_groups
from ledgermq.node.runtime.errors import FatalError
from ledgermq.storage.files.errors import Damaged, Exhausted, StorageError, UnknownFormat, Unusable
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity
from tests.node.replica.test_node_hosting import Driver, filled, single
from tests.storage.faulty_disk import FaultyDisk


def took(directory: Path) -> DataDirectory:
    data = DataDirectory(single(directory))
    try:
        data.take(RealDisk())
    except Exception:
        data.release()  # a process that is refused ends; here it goes on
        raise
    return data


@pytest.mark.parametrize(
    ("text", "kind", "exit_code"),
    [(b"", Damaged, 75), (b"{", Damaged, 75), (b'{"node":"n1"}', Damaged, 75)],
)
def test_a_damaged_node_file_is_refused(
    tmp_path: Path, text: bytes, kind: type[StorageError], exit_code: int
) -> None:
    """An identity that cannot be read is not replaced by a new one."""
    took(tmp_path).release()
    (tmp_path / "node.json").write_bytes(text)
    with pytest.raises(kind, match="damaged or edited by hand") as refused:
        took(tmp_path)
    assert refused.value.exit_code == exit_code
    assert (tmp_path / "node.json").read_bytes() == text


def test_a_node_directory_of_another_node_cluster_or_version_is_refused(tmp_path: Path) -> None:
    """The owner of the directory is checked first: status 71 for another node or cluster, 76 for
    another version."""
    ours = single(tmp_path)
    for node, cluster, version, kind, words in (
        ("n2", ours.cluster_id, 1, Unusable, "every node needs its own directory"),
        ("n1", "11111111-2222-3333-4444-555555555555", 1, Unusable, "set the data directory"),
        ("n1", ours.cluster_id, 2, UnknownFormat, "start the program that wrote it"),
    ):
        identity.write_node(
            RealDisk(), str(tmp_path), identity.NodeIdentity(cluster, node, 1, version)
        )
        with pytest.raises(kind, match=words):
            took(tmp_path)


def test_a_directory_without_node_file_but_with_files_is_refused(tmp_path: Path) -> None:
    """A missing node.json beside data is not made anew: 71, and the advice to restore the whole
    directory."""
    (tmp_path / "g1").mkdir()
    with pytest.raises(FatalError, match="restore the whole node directory") as refused:
        took(tmp_path)
    assert refused.value.exit_code == 71


def test_a_backup_is_refused(tmp_path: Path) -> None:
    """It looks like the directory of its node; what starts there would change it, and lacks derived
    files."""
    took(tmp_path).release()
    (tmp_path / "backup.json").touch()
    with pytest.raises(FatalError, match="is a backup") as refused:
        took(tmp_path)
    assert refused.value.exit_code == 71 and "ledgermq restore --from" in refused.value.remedy


def test_two_processes_cannot_have_one_directory(tmp_path: Path) -> None:
    """The second process exits with an error that names the remedy."""
    first = took(tmp_path)
    with pytest.raises(FatalError, match="used by another process") as refused:
        DataDirectory(single(tmp_path)).take(RealDisk())
    assert refused.value.exit_code == 71
    first.release()


@pytest.mark.parametrize(
    ("before", "after"),
    [(0o755, 0o750), (0o777, 0o770), (0o705, 0o700), (0o750, 0o750), (0o700, 0o700)],
)
def test_a_data_directory_that_is_open_to_others_is_closed(
    tmp_path: Path, before: int, after: int
) -> None:
    """Files of earlier versions have mode 0644; a closed directory protects them."""
    took(tmp_path).release()
    tmp_path.chmod(before)
    took(tmp_path).release()
    assert tmp_path.stat().st_mode & 0o777 == after


def test_a_directory_that_is_not_ours_stays_as_it_is(tmp_path: Path) -> None:
    """It is compared with whose it is before anything is changed."""
    (tmp_path / "g1").mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(FatalError):
        took(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_data_directory_of_another_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode cannot be changed; the node warns and starts anyway."""

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with capture_logs() as logs:
        took(tmp_path).release()
    assert [(entry["log_level"], entry["remedy"]) for entry in logs] == [
        ("warning", f"chmod o-rwx {tmp_path}")
    ]


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [("EMFILE", 79), ("EIO", 73), ("EROFS", 71), ("EACCES", 71), ("ENOSPC", 74)],
)
def test_failed_file_call_of_an_opening_has_its_exit_status(
    tmp_path: Path, name: str, exit_code: int
) -> None:
    """Whatever file it is, no failed call of a start is a bug (70) or a stack trace."""
    filled(tmp_path).group.close()
    disk = FaultyDisk(RealDisk())
    disk.fail_opening(errno_of=name)
    with pytest.raises(StorageError) as refused:
        open_groups(single(tmp_path), disk)
    assert refused.value.exit_code == exit_code
    again = Driver(single(tmp_path))
    assert again.count() == 50
    again.group.close()


def test_a_snapshot_that_cannot_be_opened_at_the_limit_is_left_out(tmp_path: Path) -> None:
    """Snapshot and checkpoint may be old: a process without free descriptors continues, and writes
    them later."""
    driver = filled(tmp_path)
    hosted = driver.group

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    hosted._hint("snapshot", refuse)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(Fenced):
        hosted._hint("snapshot", fail)
    hosted.close()


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), 79, "ulimit -n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 79, "vm.max_map_count"),
        (OSError(errno.ENOSPC, "No space left on device"), 74, "free disk space"),
        (OSError(errno.EIO, "a file ends inside an entry"), 73, "check the disk"),
        (Fenced("a sync could not begin", 79), 79, "ulimit -n"),
        (Fenced("a sync failed"), 73, "check the disk"),
        (Exhausted("no files"), 79, "no files"),
    ],
)
def test_engine_failure_is_a_limit_full_disk_or_failing_disk(
    error: Exception, exit_code: int, words: str
) -> None:
    """A limit, a full disk and a failing one are three statuses with three remedies, and none of
    them is called a bug."""
    fatal = engine.as_fatal(error)
    assert fatal.exit_code == exit_code
    assert words in str(fatal)
