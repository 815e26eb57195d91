"""What a node remembers of its peers' directories, per broker group, and whose packets a group must not hear because of it.

Durable (format §9, state/peers.json): the incarnation of each peer's directory when it was first met, which peers have recorded ours, that
ours was found to be one of those the group began with (`formation_check.py`), and the last start on its directory that each peer reported.
In memory: the directory each peer greeted with last, and whom the group's membership record names.

The directory a group goes by is the one its membership record names, else the one that was met first. A peer that greets with another has
lost or replaced it: its packets are not taken (`barred`) until the record names it, because it may have forgotten what it promised; but
what only an elected leader sends is (`replica_wire.is_of_leader`): the record here may be older than the one that names it. A peer
whose starts do not descend from the last one it told of runs on an old copy, and has forgotten as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode
from ledgermq.storage import identity as identity_files
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import is_no_space
from ledgermq.storage.identity import Boots

__all__ = ["Boots", "PeerIdentities", "Refused"]


class Refused(Exception):
    """The other side may not speak; the text goes to its log and to ours. `reason` is a short word for metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def descends(boots: Boots, generation: int, word: str) -> bool:
    """Whether a directory with these starts is the one on which start `generation` was `word`, or a later state of it. Starts that are too
    long ago to be listed are taken on trust."""
    if boots.generation < generation:
        return False
    place = len(boots.words) - 1 - (boots.generation - generation)
    return place < 0 or boots.words[place] == word


@dataclass(slots=True)
class PeerIdentities:
    """See the module. Greetings run on threads of their own, because this writes; `barred` is replaced as a whole.

    That we know a peer does not say that it knows us: a peer that does not take our new directory has proved to us who it is all the same.
    """

    disk: Disk
    directories: dict[str, str]
    """Broker group → its `state` directory."""
    on_fatal: Callable[[FatalError], None]
    """Ends the node: a disk that fails to keep this file is not asked again (invariant I9)."""
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    met_by: dict[str, frozenset[str]] = field(default_factory=dict)
    vouched: dict[str, bool] = field(default_factory=dict)
    boots: dict[str, dict[str, tuple[str, int, str]]] = field(default_factory=dict)
    """Group → node → (incarnation, generation, word) of the last start it told of."""
    presented: dict[str, dict[str, str]] = field(default_factory=dict)
    """Group → node → the incarnation it greeted with last."""
    named: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Group → node → the incarnation its membership record names."""
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Group → everyone whom its membership record names."""
    barred: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(group, node) → why packets of the group from there are not taken, in words for both sides."""
    objections: dict[tuple[str, str], str] = field(default_factory=dict)
    """(group, node) → why that node does not take packets of the group from here, in its words."""
    answered: frozenset[str] = frozenset()
    """The nodes that answered a greeting of this life; like `reported_members` replaced as a whole."""
    since: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Group that was opened while this node runs → the nodes that answered a greeting since."""
    reported_members: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Group → node → everyone whom the membership record there names, from its answer."""
    _stale: dict[tuple[str, str], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        for group, directory in self.directories.items():
            self.load_group(group, directory)

    def load_group(self, group: str, directory: str) -> None:
        self.known[group] = identity_files.read_peers(self.disk, directory)
        self.met_by[group] = identity_files.read_met_by(self.disk, directory)
        self.vouched[group] = identity_files.read_vouched(self.disk, directory)
        self.boots[group] = identity_files.read_peer_boots(self.disk, directory)

    def greeted(self, group: str, node: str, incarnation: str, boots: Boots | None) -> None:
        """A peer whose greeting is in order told of its directory; what has to be remembered is durable afterwards.

        Raises Refused on a full disk."""
        with self._lock:
            if group not in self.known:
                # It has left this node in this moment.
                return
            first = self.known[group].get(node)
            last = self.boots.get(group, {}).get(node)
            stale = None
            if boots is not None and last is not None and last[0] == incarnation and not descends(boots, last[1], last[2]):
                stale = (
                    f"its data directory is an old copy (start {boots.generation} of it, while start {last[1]} was heard already): a "
                    f"backup was put back, or a copy of it ran meanwhile; remove this group's directory there and start it again"
                )
            newest = last
            if boots is not None and stale is None and incarnation == self._counts(group, node, incarnation):
                # Of a replaced directory nothing is noted before it counts: the former one may come back, or an old copy of it.
                newest = (incarnation, boots.generation, boots.words[-1] if boots.words else "")
            if first is None or newest != last:
                marks = self.boots.get(group, {})
                marks = marks if newest is None else {**marks, node: newest}
                self._write(group, {node: incarnation, **self.known[group]}, self.met_by.get(group, frozenset()), marks)
            self.presented.setdefault(group, {})[node] = incarnation
            if stale is None:
                self._stale.pop((group, node), None)
            else:
                self._stale[group, node] = stale
            self._judge()

    def note_met_by(self, group: str, node: str) -> None:
        """That peer has recorded this node's directory. Raises as `greeted`."""
        with self._lock:
            met_by = self.met_by.get(group, frozenset())
            if group in self.known and node not in met_by:
                self._write(group, self.known[group], met_by | {node}, self.boots.get(group, {}))

    def note_vouched(self, group: str) -> None:
        """This directory is one of those the group began with. Raises as `greeted`."""
        with self._lock:
            if group in self.known and not self.vouched.get(group):
                self._write(group, self.known[group], self.met_by.get(group, frozenset()), self.boots.get(group, {}), vouched=True)

    def note_objection(self, group: str, node: str, objection: str) -> None:
        """What that peer has against this node's directory; empty: nothing."""
        if objection:
            self.objections[group, node] = objection
        else:
            self.objections.pop((group, node), None)

    def hears(self, group: str, node: str, incarnation: str | None) -> bool:
        """Whether packets of the group are taken from a stream that was opened from this directory; None: its greeting told of none.

        A stream of a former directory may still stand when the node has greeted with another, which counts, where we dialled it."""
        return (group, node) not in self.barred and incarnation in (None, self.presented.get(group, {}).get(node, incarnation))

    def note_answer(self, node: str, members: Mapping[str, Iterable[str]]) -> None:
        """A peer answered: group → whom its log names."""
        with self._lock:
            now = dict(self.reported_members)
            for group, named in members.items():
                if names := frozenset(named):
                    now[group] = {**now.get(group, {}), node: names}
            self.reported_members = now
            self.answered |= {node}
            self.since = {group: nodes | {node} for group, nodes in self.since.items()}

    def arrived(self, group: str, directory: str, members: tuple[str, ...]) -> None:
        """A group was opened while this node runs: what is remembered of it is read, and what was heard before says nothing of it."""
        with self._lock:
            self.directories[group] = directory
            self.load_group(group, directory)
            self.members[group] = members
            self.since = {**self.since, group: frozenset()}

    def left(self, group: str) -> None:
        """A group is not open here any more."""
        with self._lock:
            for table in (self.directories, self.known, self.met_by, self.vouched, self.boots, self.presented, self.named, self.members):
                table.pop(group, None)
            self.since = {other: nodes for other, nodes in self.since.items() if other != group}
            self.reported_members = {other: members for other, members in self.reported_members.items() if other != group}
            for key in [key for key in self._stale if key[0] == group]:
                del self._stale[key]
            for key in [key for key in self.objections if key[0] == group]:
                del self.objections[key]
            self._judge()

    def answered_since(self, group: str) -> frozenset[str]:
        """The nodes that have answered a greeting since the group was opened here."""
        return self.since.get(group, self.answered)

    def name(self, group: str, members: tuple[str, ...], incarnations: Mapping[str, str]) -> None:
        """Everyone whom the group's membership record names, and the directories that it names."""
        with self._lock:
            self.members[group] = members
            if self.named.get(group) != incarnations:
                self.named[group] = dict(incarnations)
                self._judge()

    def returned(self, group: str) -> dict[str, str]:
        """Node → the new incarnation of its directory, for those that replaced it and were not taken in again."""
        found = self.presented.get(group, {})
        return {
            node: incarnation
            for node, incarnation in found.items()
            if (group, node) in self.barred and (group, node) not in self._stale
        }  # fmt: skip

    def _counts(self, group: str, node: str, presented: str) -> str:
        """The incarnation that the group goes by."""
        return self.named.get(group, {}).get(node) or self.known[group].get(node, presented)

    def _judge(self) -> None:
        barred = {}
        for group, presented in self.presented.items():
            for node, incarnation in presented.items():
                counts = self._counts(group, node, incarnation)
                where = f"broker group {group}: node {node}: "
                if (group, node) in self._stale:
                    barred[group, node] = where + self._stale[group, node]
                elif incarnation != counts:
                    what = f"data directory replaced (incarnation {incarnation}, known {counts})"
                    barred[group, node] = f"{where}{what}; it takes part again once the group's leader has taken it in as a learner"
        self.barred = barred

    def _write(
        self,
        group: str,
        peers: dict[str, str],
        met_by: frozenset[str],
        boots: dict[str, tuple[str, int, str]],
        *,
        vouched: bool | None = None,
    ) -> None:
        in_force = self.vouched.get(group, False) if vouched is None else vouched
        try:
            self.disk.mkdirs(self.directories[group])
            identity_files.write_peers(self.disk, self.directories[group], peers, met_by, boots, vouched=in_force)
        except OSError as error:
            if is_no_space(error):
                raise Refused("space", f"no space to remember the peers of broker group {group}; free disk space on that node") from error
            what = f"the file that remembers the peers of broker group {group} cannot be written ({error})"
            self.on_fatal(FatalError(ExitCode.SYNC_FAILED, what, "check the disk, then start the node again"))
            raise
        self.known[group] = peers
        self.met_by[group] = met_by
        self.boots[group] = boots
        self.vouched[group] = in_force
