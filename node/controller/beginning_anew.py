"""Rebuilds the controller quorum from one node's journal after the other voters are lost. The node
must be stopped. There is no way back.

The journal gets one more entry, in a term that had no leader, that names this node as the only
voter. Everything in the journal and the snapshot stays, including entries that were not known to be
committed; what only the lost voters had is lost. If a lost voter comes back, this node rejects it:
a voter greets by its name, and that name no longer has a vote.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.controller import snapshot, voters
from ledgermq.node.controller.journal import NAME, Journal
from ledgermq.storage.files.ports import Disk


@dataclass(frozen=True, slots=True)
class Begun:
    """The former voters other than this node, and the position of the entry that names this node as
    the only voter."""

    former: tuple[str, ...]
    index: int
    term: int


def votes_of(disk: Disk, directory: str) -> tuple[str, ...] | None:
    """The voters according to this node's journal and snapshot; None if there is no journal.
    Opening the journal rewrites its file with the same contents. Raises StorageError, OSError."""
    if not disk.exists(f"{directory}/{NAME}"):
        return None
    journal = _opened(disk, directory)
    try:
        return _voters(disk, directory, journal)
    finally:
        journal._destroy()


def begin_alone(disk: Disk, directory: str, node: str) -> Begun:
    """Make `node` the only voter. The change is durable on return; a repeated call changes nothing.
    Raises StorageError, OSError."""
    journal = _opened(disk, directory)
    try:
        former = _voters(disk, directory, journal)
        if former != (node,):
            last = journal[-1]
            term = max(int(journal.getCurrentTerm()), int(last[2])) + 1
            journal.setCurrentTerm(term, None)
            journal.add(voters.encode((node,)), last[1] + 1, term)
            journal.flush()
        _, index, term = journal[-1]
        return Begun(tuple(name for name in former if name != node), index, term)
    finally:
        journal._destroy()


def _opened(disk: Disk, directory: str) -> Journal:
    path = f"{directory}/{snapshot.NAME}"
    covered = None
    if disk.exists(path):
        _, last, previous, _ = snapshot.read(disk, path)
        covered = previous, last
    return Journal(disk, directory, snapshot=covered)


def _voters(disk: Disk, directory: str, journal: Journal) -> tuple[str, ...]:
    newest = voters.newest(journal[:])
    if newest is not None:
        return newest[1]
    path = f"{directory}/{snapshot.NAME}"
    named = snapshot.read(disk, path)[3] if disk.exists(path) else None
    return () if named is None else named
