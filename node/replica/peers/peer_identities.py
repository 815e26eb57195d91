"""What a node remembers of its peers' directories, per broker group, and which peers' packets a
group must therefore ignore.

Durable (format §9, state/peers.json): the incarnation of each peer's directory at the first
contact, the peers that have recorded ours, the result of the formation check
(`formation_check.py`), and the last start on its directory that each peer reported. In memory: the
directory that each peer presented in its last greeting, and the nodes that the group's membership
record names.

A peer's valid directory is the one that the group's membership record names, else the one of the
first contact. A peer that presents another one has lost or replaced it. Its packets are ignored
(`barred`) until the record names the new directory, because the peer may have forgotten what it
promised. Packets that only an elected leader sends are accepted (`replica_wire.is_of_leader`): the
record here may be older than the one that names the directory. A peer whose starts do not descend
from the last one that it reported runs on an old copy, and may have forgotten its promises too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode
from ledgermq.storage.files.errors import is_no_space
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.state import identity as identity_files
from ledgermq.storage.state.identity import Boots

__all__ = ["Boots", "PeerIdentities", "Refused"]


class Refused(Exception):
    """The other side may not speak. Both sides log the text. `reason` is a short word for
    metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def descends(boots: Boots, generation: int, word: str) -> bool:
    """Whether a directory with these starts is the one whose start `generation` was `word`, or a
    later state of it. Starts that are too old to be listed are not checked."""
    if boots.generation < generation:
        return False
    place = len(boots.words) - 1 - (boots.generation - generation)
    return place < 0 or boots.words[place] == word


@dataclass(slots=True)
class PeerIdentities:
    """The remembered identities, see the module's docstring. Greetings run on threads, because they
    write; `barred` is replaced as a whole.

    That this node knows a peer does not mean that the peer knows this node: a peer that ignores our
    new directory has proven its own identity all the same.
    """

    disk: Disk
    directories: dict[str, str]
    """Broker group → its `state` directory."""
    on_fatal: Callable[[FatalError], None]
    """Ends the node: after a failed write of this file the disk is not used again (invariant
    I9)."""
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    met_by: dict[str, frozenset[str]] = field(default_factory=dict)
    vouched: dict[str, bool] = field(default_factory=dict)
    boots: dict[str, dict[str, tuple[str, int, str]]] = field(default_factory=dict)
    """Group → node → (incarnation, generation, word) of the last start that it reported."""
    presented: dict[str, dict[str, str]] = field(default_factory=dict)
    """Group → node → the incarnation in its last greeting."""
    named: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Group → node → the incarnation that the group's membership record names."""
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Group → all nodes that the group's membership record names."""
    levels: dict[str, int] = field(default_factory=dict)
    """Group → its feature level, as far as its log is applied here."""
    level_max: dict[str, int] = field(default_factory=dict)
    """Node → the highest feature level that it reads, from its last valid greeting."""
    barred: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(group, node) → why the group's packets from that node are ignored, in words for both
    sides."""
    objections: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(group, node) → why that node ignores the group's packets from here, in its words; replaced
    as a whole."""
    answered: frozenset[str] = frozenset()
    """The nodes that answered a greeting in this run; replaced as a whole, like
    `reported_members`."""
    since: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Group that was opened while this node runs → the nodes that answered a greeting since
    then."""
    reported_members: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Group → node → all nodes that the membership record there names, from its answer."""
    _stale: dict[tuple[str, str], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        for group, directory in self.directories.items():
            self.load_group(group, directory)

    def load_group(self, group: str, directory: str) -> None:
        """Read what is remembered of a group from its `state` directory."""
        self.known[group] = identity_files.read_peers(self.disk, directory)
        self.met_by[group] = identity_files.read_met_by(self.disk, directory)
        self.vouched[group] = identity_files.read_vouched(self.disk, directory)
        self.boots[group] = identity_files.read_peer_boots(self.disk, directory)

    def greeted(self, group: str, node: str, incarnation: str, boots: Boots | None) -> None:
        """Record the directory that a peer presented in a valid greeting; what must be remembered
        is durable on return.

        Raises Refused on a full disk."""
        with self._lock:
            if group not in self.known:
                # The group has just left this node.
                return
            first = self.known[group].get(node)
            last = self.boots.get(group, {}).get(node)
            stale = None
            if (
                boots is not None
                and last is not None
                and last[0] == incarnation
                and not descends(boots, last[1], last[2])
            ):
                stale = (
                    f"its data directory is an old copy (start {boots.generation} of it, but start"
                    f" {last[1]} was reported before): a backup was restored, or another copy ran"
                    " meanwhile; remove this group's directory there and start the node again"
                )
            newest = last
            if (
                boots is not None
                and stale is None
                and incarnation == self._counts(group, node, incarnation)
            ):
                # Starts of a replaced directory are not recorded before it counts: the former one,
                # or an old copy of it, may come back.
                newest = (incarnation, boots.generation, boots.words[-1] if boots.words else "")
            if first is None or newest != last:
                marks = self.boots.get(group, {})
                marks = marks if newest is None else {**marks, node: newest}
                self._write(
                    group,
                    {node: incarnation, **self.known[group]},
                    self.met_by.get(group, frozenset()),
                    marks,
                )
            self.presented.setdefault(group, {})[node] = incarnation
            if stale is None:
                self._stale.pop((group, node), None)
            else:
                self._stale[group, node] = stale
            self._judge()

    def note_met_by(self, group: str, node: str) -> None:
        """Record that the peer has recorded this node's directory. Raises as `greeted`."""
        with self._lock:
            met_by = self.met_by.get(group, frozenset())
            if group in self.known and node not in met_by:
                self._write(group, self.known[group], met_by | {node}, self.boots.get(group, {}))

    def note_vouched(self, group: str) -> None:
        """Record that this directory passed the formation check. Raises as `greeted`."""
        with self._lock:
            if group in self.known and not self.vouched.get(group):
                self._write(
                    group,
                    self.known[group],
                    self.met_by.get(group, frozenset()),
                    self.boots.get(group, {}),
                    vouched=True,
                )

    def note_objection(self, group: str, node: str, objection: str) -> None:
        """Set the peer's objection to this node's directory; empty for none."""
        with self._lock:
            others = {key: why for key, why in self.objections.items() if key != (group, node)}
            self.objections = {**others, (group, node): objection} if objection else others

    def note_objections(self, node: str, by_group: Mapping[str, str]) -> None:
        """Set all objections of a peer to directories of this node."""
        told = {(group, node): why for group, why in by_group.items() if group in self.known}
        if told != {key: why for key, why in self.objections.items() if key[1] == node}:
            with self._lock:
                self.objections = {
                    **{key: why for key, why in self.objections.items() if key[1] != node},
                    **told,
                }

    def objections_of(self, node: str) -> dict[str, str]:
        """Group → why the group's packets from that node are ignored here."""
        return {group: why for (group, peer), why in self.barred.items() if peer == node}

    def unheard(self, group: str) -> list[str]:
        """Which members ignore the group's packets from here, and why: a replica that they do not
        hear helps neither to elect nor to commit."""
        members = self.members.get(group)
        reasons: dict[str, list[str]] = {}
        for (name, node), why in sorted(self.objections.items()):
            if name == group and (not members or node in members):
                reasons.setdefault(why, []).append(node)
        return [f"not heard by {', '.join(nodes)}: {why}" for why, nodes in reasons.items()]

    def hears(self, group: str, node: str, incarnation: str | None) -> bool:
        """Whether packets of the group are accepted from a stream that was opened from this
        directory; None if its greeting named none.

        A stream of a former directory may still be open after the node presented another one to a
        link of ours; the newer one counts."""
        return (group, node) not in self.barred and incarnation in (
            None,
            self.presented.get(group, {}).get(node, incarnation),
        )

    def note_answer(self, node: str, members: Mapping[str, Iterable[str]]) -> None:
        """Record a peer's answer: group → the nodes that its log names."""
        with self._lock:
            now = dict(self.reported_members)
            for group, named in members.items():
                if names := frozenset(named):
                    now[group] = {**now.get(group, {}), node: names}
            self.reported_members = now
            self.answered |= {node}
            self.since = {group: nodes | {node} for group, nodes in self.since.items()}

    def arrived(self, group: str, directory: str, members: tuple[str, ...]) -> None:
        """Load what is remembered of a group that was opened while this node runs; answers from
        before say nothing about it."""
        with self._lock:
            self.directories[group] = directory
            self.load_group(group, directory)
            self.members[group] = members
            self.since = {**self.since, group: frozenset()}

    def left(self, group: str) -> None:
        """Forget a group that is no longer open here."""
        with self._lock:
            remembered = (
                self.directories,
                self.known,
                self.met_by,
                self.vouched,
                self.boots,
                self.presented,
                self.named,
                self.members,
            )
            for table in (*remembered, self.levels):
                table.pop(group, None)
            self.since = {other: nodes for other, nodes in self.since.items() if other != group}
            self.reported_members = {
                other: members for other, members in self.reported_members.items() if other != group
            }
            for key in [key for key in self._stale if key[0] == group]:
                del self._stale[key]
            self.objections = {key: why for key, why in self.objections.items() if key[0] != group}
            self._judge()

    def answered_since(self, group: str) -> frozenset[str]:
        """The nodes that have answered a greeting since the group was opened here."""
        return self.since.get(group, self.answered)

    def name(self, group: str, members: tuple[str, ...], incarnations: Mapping[str, str]) -> None:
        """Set the nodes and the directories that the group's membership record names."""
        with self._lock:
            self.members[group] = members
            if self.named.get(group) != incarnations:
                self.named[group] = dict(incarnations)
                self._judge()

    def returned(self, group: str) -> dict[str, str]:
        """Node → the new incarnation of its directory, for nodes that replaced it and were not
        admitted again."""
        found = self.presented.get(group, {})
        return {
            node: incarnation
            for node, incarnation in found.items()
            if (group, node) in self.barred and (group, node) not in self._stale
        }  # fmt: skip

    def _counts(self, group: str, node: str, presented: str) -> str:
        """The valid incarnation of a node's directory for this group."""
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
                    barred[group, node] = (
                        f"{where}{what}; it takes part again after the group's leader has admitted"
                        " it as a learner"
                    )
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
            identity_files.write_peers(
                self.disk, self.directories[group], peers, met_by, boots, vouched=in_force
            )
        except OSError as error:
            if is_no_space(error):
                raise Refused(
                    "space",
                    f"no space to remember the peers of broker group {group}; free disk space on"
                    " that node",
                ) from error
            what = (
                f"the file that remembers the peers of broker group {group} cannot be written"
                f" ({error})"
            )
            self.on_fatal(
                FatalError(ExitCode.SYNC_FAILED, what, "check the disk, then start the node again")
            )
            raise
        self.known[group] = peers
        self.met_by[group] = met_by
        self.boots[group] = boots
        self.vouched[group] = in_force
