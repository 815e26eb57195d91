"""The controller quorum begun anew from one node's journal, after its voters were lost: offline, with that node stopped, and for good.

The journal goes on with an entry, in a term nobody led, that names this node as the only voter. Whatever the journal and the snapshot hold
stays, what was not known to be committed as well; what only the lost voters knew is lost. The lost ones know nothing of it: they greet by
their names, which have no vote here, and this node listens to them no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.controller import snapshot, voters
from ledgermq.node.controller.journal import NAME, Journal
from ledgermq.storage.disk import Disk


@dataclass(frozen=True, slots=True)
class Begun:
    """The voters that were given up, and the entry that names the only one now."""

    former: tuple[str, ...]
    index: int
    term: int


def votes_of(disk: Disk, directory: str) -> tuple[str, ...] | None:
    """Who votes, by this node's journal and snapshot; None: there are none. Reads nothing else and changes nothing that counts. Raises
    StorageError, OSError."""
    if not disk.exists(f"{directory}/{NAME}"):
        return None
    journal = _opened(disk, directory)
    try:
        return _voters(disk, directory, journal)
    finally:
        journal._destroy()


def begin_alone(disk: Disk, directory: str, node: str) -> Begun:
    """Durable when this returns; repeated, it changes nothing. Raises StorageError, OSError."""
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
