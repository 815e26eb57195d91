"""A leader that believed an older answer of a node sends what the node has: the node keeps every
entry that it acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.controller import snapshot, voters
from ledgermq.node.controller.journal import Entry, Journal
from ledgermq.node.controller.quorum import Place, Quorum
from ledgermq.node.controller.state import State, export
from ledgermq.storage.files.real_disk import RealDisk
from tests.controller.controller_cluster import FAST, SECRET, free_ports

NAMES = ("n1", "n2", "n3")
END = 12
COVERED = 4
"""The last entry in the snapshot of the node."""


def entry(index: int) -> Entry:
    """Entries up to 6 are of term 1, the others of term 2."""
    return b"\x01", index, 1 if index <= 6 else 2


def snapshot_up_to(path: Path, index: int) -> None:
    snapshot.write(RealDisk(), str(path), export(State()), entry(index), entry(index - 1), NAMES)


class Node:
    """One node that hears messages of a leader. Nothing is sent, and no time passes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        journal = Journal(RealDisk(), str(home), snapshot=None, file_bytes=1 << 16)
        journal.add(voters.encode(NAMES), 1, 0)
        for index in range(2, END + 1):
            journal.add(*entry(index))
        snapshot_up_to(home / snapshot.NAME, COVERED)
        journal.deleteEntriesTo(COVERED - 2)
        journal.setCurrentTerm(2, None)
        journal._destroy()
        self.open()

    def open(self) -> None:
        place = Place("n1", NAMES, f"127.0.0.1:{free_ports(1)[0]}", str(self.home))
        self.quorum: Any = Quorum(place, {}, SECRET, RealDisk(), FAST, 1 << 16)
        self.quorum.tick()
        self.answers: list[dict[str, Any]] = []
        self.quorum._SyncObj__transport.send = lambda node, message: self.answers.append(message)

    def hear(self, term: int = 2, commit: int = END, **content: Any) -> None:
        message = {"type": "append_entries", "term": term, "commit_index": commit, **content}
        self.quorum._SyncObj__onMessageReceived(self.quorum._member("n2"), message)

    def hear_snapshot(self, path: Path, term: int = 2) -> None:
        data = path.read_bytes()
        half = len(data) // 2
        for piece in ((data[:half], True, False), (data[half:], False, False), (b"", False, True)):
            self.hear(term, serialized=piece)

    @property
    def entries(self) -> list[Entry]:
        return list(self.quorum.journal[:])

    @property
    def known_to_leader(self) -> int:
        """The index of the next entry, as the last answer says."""
        return int(self.answers[-1]["next_node_idx"])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    home = tmp_path / "home"
    home.mkdir()
    made = Node(home)
    yield made
    made.quorum.destroy()


@pytest.mark.parametrize("covered", [COVERED - 1, COVERED, COVERED + 1, 9, END])
def test_snapshot_of_known_entries_removes_no_entry(
    node: Node, tmp_path: Path, covered: int
) -> None:
    """Older than the node's own, the same, newer, and as new as its journal; before and after a
    restart."""
    before, own = node.entries, (node.home / snapshot.NAME).read_bytes()
    snapshot_up_to(tmp_path / "sent", covered)
    node.hear_snapshot(tmp_path / "sent")
    assert node.entries == before
    assert (node.home / snapshot.NAME).read_bytes() == own
    node.quorum.destroy()
    node.open()
    assert node.entries == before


def test_a_compaction_that_is_not_finished_does_not_meet_an_older_snapshot(
    node: Node, tmp_path: Path
) -> None:
    """The node wrote its snapshot, and shortens its journal with its next tick."""
    node.hear(entries=[], prevLogIdx=END, prevLogTerm=2)
    node.quorum.forceLogCompaction()
    node.quorum.tick()
    snapshot_up_to(tmp_path / "sent", COVERED + 1)
    node.hear_snapshot(tmp_path / "sent")
    node.quorum.tick()
    node.quorum.destroy()
    node.open()
    assert node.entries[-1] == entry(END)


def test_a_snapshot_beyond_the_journal_replaces_it(node: Node, tmp_path: Path) -> None:
    snapshot_up_to(tmp_path / "sent", END + 5)
    node.hear_snapshot(tmp_path / "sent")
    assert node.entries == [entry(END + 4), entry(END + 5)]
    node.quorum.destroy()
    node.open()
    assert node.entries == [entry(END + 4), entry(END + 5)]


def test_received_snapshot_counts_after_a_crash_before_its_journal(
    node: Node,
) -> None:
    """The snapshot has its name, and the journal still is the former one."""
    node.quorum.destroy()
    snapshot_up_to(node.home / snapshot.NAME, END + 5)
    node.open()
    assert node.entries == [entry(END + 4), entry(END + 5)]


def test_entries_that_the_node_has_are_not_cut(node: Node) -> None:
    """Whatever part of them comes again."""
    before = node.entries
    for first in range(COVERED, END + 1):
        for behind in range(first, END + 2):
            sent = [list(entry(index)) for index in range(first, behind)]
            node.hear(entries=sent, prevLogIdx=first - 1, prevLogTerm=entry(first - 1)[2])
            assert node.entries == before
            assert node.known_to_leader == END + 1


@pytest.mark.parametrize("first", [COVERED, 8, END, END + 1])
def test_entries_behind_those_that_the_node_has_are_added(node: Node, first: int) -> None:
    before, sent = node.entries, [list(entry(index)) for index in range(first, END + 4)]
    node.hear(entries=sent, prevLogIdx=first - 1, prevLogTerm=entry(first - 1)[2])
    assert [tuple(each) for each in node.entries] == [
        *before,
        entry(END + 1),
        entry(END + 2),
        entry(END + 3),
    ]
    assert node.known_to_leader == END + 4


def test_entries_that_contradict_the_leader_are_cut(node: Node) -> None:
    """They are of an earlier term, so the leader of a later one decides."""
    node.hear(term=3, commit=6, entries=[[b"\x01", 8, 3]], prevLogIdx=7, prevLogTerm=2)
    assert [tuple(each) for each in node.entries[-2:]] == [entry(7), (b"\x01", 8, 3)]
    assert node.known_to_leader == 9
