"""External paths against a real directory: files of the group are served, all others are
refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.node.frontend.audits import replica_files
from ledgermq.node.frontend.audits.replica_files import ReplicaFiles
from ledgermq.node.frontend.audits.replicas_service import LATE_S, REST_FACTOR, REST_MAX_S, Budget
from ledgermq.proto.status import Code, LedgerError

PAGE = 4096


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node directory with two groups, a secret beside them, and things that are no files."""
    directory = tmp_path / "n1"
    (directory / "g1" / "consumequeue" / "0" / "0").mkdir(parents=True)
    (directory / "g2").mkdir()
    (directory / "controller").mkdir()
    (directory / "node.json").write_bytes(b"node")
    (directory / "g1" / "identity.json").write_bytes(b"identity")
    (directory / "g1" / "consumequeue" / "0" / "0" / "0").write_bytes(b"units")
    (directory / "g2" / "identity.json").write_bytes(b"other")
    (directory / "controller" / "journal").write_bytes(b"secret")
    (tmp_path / "outside").write_bytes(b"secret")
    (directory / "g1" / "link").symlink_to(tmp_path / "outside")
    (directory / "g1" / "up").symlink_to(tmp_path)
    os.mkfifo(directory / "g1" / "pipe")
    return directory


def read(node: Path, group: str, path: str) -> bytes | None:
    file = ReplicaFiles(str(node)).open(group, path)
    if file is None:
        return None
    try:
        return file.pread(0, file.size)
    finally:
        file.close()


def test_files_of_the_group_and_the_nodes_own_are_read(node: Path) -> None:
    """Also if a name occurs twice in the path; a missing file gives None."""
    assert read(node, "g1", "g1/identity.json") == b"identity"
    assert read(node, "g1", "g1/consumequeue/0/0/0") == b"units"
    assert read(node, "g1", "node.json") == b"node"
    for absent in ("g1/nothing", "g1/nothing/at/all", "g1/identity.json/below", "g1/up/outside"):
        assert read(node, "g1", absent) is None
        assert ReplicaFiles(str(node)).entry("g1", absent) is None


REFUSED = [
    "",
    "/",
    "g1/",
    "/g1/identity.json",
    "g1/../controller/journal",
    "g1/./identity.json",
    "..",
    "../outside",
    "g1//identity.json",
]
REFUSED += [
    "g2/identity.json",
    "controller/journal",
    "g1x/identity.json",
    "g1/link",
    "g1/pipe",
    "g1/\0",
    "node.json/x",
]


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_that_is_not_the_groups_is_refused(node: Path, path: str) -> None:
    """With a sentence and without a look at the disk, and no link or pipe is ever opened."""
    with pytest.raises(LedgerError) as refused:
        read(node, "g1", path)
    assert refused.value.code == Code.BAD_REQUEST and repr(path) in refused.value.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            [
                "g1",
                "g2",
                "..",
                ".",
                "",
                "up",
                "link",
                "consumequeue",
                "0",
                "controller",
                "journal",
                "outside",
            ]
        ),
        max_size=6,
    )
)
def test_no_path_ever_leads_out(node: Path, names: list[str]) -> None:
    """Whatever a path is made of: nothing of another group, of the controller or of the disk around
    comes back."""
    files = ReplicaFiles(str(node))
    path = "/".join(names)
    try:
        told = [entry.path for entry in files.entries("g1", path, recursive=True)]
        content = read(node, "g1", path)
    except LedgerError:
        return
    assert content in (None, b"units")
    assert all(name.startswith("g1/") and "up/" not in name for name in told)


def test_listing_has_files_and_directories_without_links(node: Path) -> None:
    """Sorted by path; links and pipes are omitted; a missing directory is empty."""
    files = ReplicaFiles(str(node))
    own = files.entries("g1", "g1", recursive=False)
    assert [(entry.path, entry.directory) for entry in own] == [
        ("g1/consumequeue", True),
        ("g1/identity.json", False),
    ]
    stat = (node / "g1" / "identity.json").stat()
    assert (own[1].size, own[1].mtime_ns, own[1].inode) == (8, stat.st_mtime_ns, stat.st_ino)
    below = files.entries("g1", "g1", recursive=True)
    assert [entry.path for entry in below][1:3] == [
        "g1/consumequeue/0",
        "g1/consumequeue/0/0",
    ] and len(below) == 5
    assert (
        files.entries("g1", "g1/nothing", recursive=True)
        == []
        == files.entries("g1", "g1/up", recursive=True)
    )
    assert files.entries("g1", "g1/identity.json", recursive=False) == []


def test_a_listing_is_bounded(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with too many names is refused with a hint to list less."""
    monkeypatch.setattr(replica_files, "ENTRIES_MAX", 3)
    with pytest.raises(LedgerError, match="one directory after the other"):
        ReplicaFiles(str(node)).entries("g1", "g1", recursive=True)


def test_no_descriptor_is_left_open(node: Path) -> None:
    """Neither by what is found nor by what is refused."""
    before = len(os.listdir("/proc/self/fd"))
    for path in (
        "g1/identity.json",
        "g1/link",
        "g1/pipe",
        "g1/nothing",
        "g1/up/outside",
        "node.json",
    ):
        try:
            read(node, "g1", path)
            ReplicaFiles(str(node)).entries("g1", path, recursive=True)
        except LedgerError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_holes_are_told(node: Path) -> None:
    """Where a sparse file has data, inside the bounds that were asked for."""
    path = node / "g1" / "sparse"
    with path.open("wb") as sparse:
        sparse.truncate(1 << 20)
        sparse.seek(64 << 10)
        sparse.write(b"x" * PAGE)
        sparse.seek(512 << 10)
        sparse.write(b"y")
    file = ReplicaFiles(str(node)).open("g1", "g1/sparse")
    assert file is not None
    try:
        assert list(file.stretches(0, file.size)) == [
            (64 << 10, (64 << 10) + PAGE),
            (512 << 10, (512 << 10) + PAGE),
        ]
        assert list(file.stretches((64 << 10) + 1, 512 << 10)) == [
            ((64 << 10) + 1, (64 << 10) + PAGE)
        ]
        assert list(file.stretches(600 << 10, file.size)) == []
    finally:
        file.close()


def test_the_budget_spreads_pieces_and_rests_while_the_node_is_busy() -> None:
    """As many bytes a second as it says, no saving up of idle time, and rests that follow how late
    the loop was."""
    now = [100.0]
    budget = Budget(1000, lambda: now[0])
    assert budget.wait_s(500, 0.0) == 0.0
    assert budget.wait_s(500, 0.0) == pytest.approx(0.5)
    assert budget.wait_s(100, LATE_S / 2) == pytest.approx(1.0), (
        "a loop that is hardly late is idle"
    )
    now[0] = 200.0
    assert budget.wait_s(1000, 0.0) == 0.0, "what was not used is not there later"
    assert budget.wait_s(100, 0.004) == pytest.approx(1.0 + REST_FACTOR * 0.004)
    now[0] = 300.0
    assert budget.wait_s(100, 60.0) == pytest.approx(REST_MAX_S)
