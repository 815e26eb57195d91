"""One round of a witness: which checkpoints of a cluster it accepts and cosigns, and what it finds
wrong.

A tree is accepted if a quorum of the replicas of its broker group signed it with trusted keys, and
the largest accepted tree and it continue one another; or if it is proven to be the beginning of
such a tree. What nodes do not prove, and what too few have signed, is reported and not accepted:
whoever has the keys of a minority decides nothing. Time, files and the cluster are ports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.proofs.keys import TrustedKeys, node_of
from ledgermq.client.proofs.ports import Clock, Cluster, Group
from ledgermq.client.proofs.proof import Refuted
from ledgermq.client.proofs.proof_fetching import Shown, merged, read_shown
from ledgermq.client.proofs.witness_files import GroupMemory, LastShown, Newest, WitnessFiles
from ledgermq.proto.proofs.log_tree import check_consistency
from ledgermq.proto.proofs.signed_notes import Checkpoint, Note, cosign, format_note, parse_note
from ledgermq.proto.status import Code

FORK = "fork"
"""Two trees were signed of which neither continues the other."""
ROLLED_BACK = "rolled-back"
"""A node shows fewer sealed files than it has shown before, longer than a restart takes."""
WITHHELD = "withheld"
"""Nothing new is shown, although messages were committed, or although another node shows more."""
REPLACED = "replaced"
"""The group has another log than before."""
UNPROVEN = "unproven"
"""A node does not answer, its checkpoint is not signed by its known key or by too few nodes, or no
path to it was given: nothing is known against it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ALARMS = frozenset({FORK, ROLLED_BACK, WITHHELD, REPLACED})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong or unknown. `evidence` are the texts of files by their names."""

    kind: str
    broker_group: str
    node: str
    text: str
    evidence: dict[str, str] = field(default_factory=dict)

    @property
    def alarm(self) -> bool:
        return self.kind in ALARMS


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a node may show less than before, for a restart, and how long a log may show nothing
    new although messages are committed."""

    patience_s: float
    stale_after_s: float
    poll_s: float = 1.0


@dataclass(slots=True)
class _Look:
    """What the nodes of a group showed in one round: each of them first and last, and every tree
    with the signatures of all who showed it. `found`: the nodes that are done, with what was
    found."""

    first: dict[str, Shown] = field(default_factory=dict)
    last: dict[str, Shown | None] = field(default_factory=dict)
    signed: dict[str, Shown] = field(default_factory=dict)
    found: dict[str, Finding | None] = field(default_factory=dict)

    def add(self, node: str, shown: Shown | None, finding: Finding | None) -> None:
        """The answer of a node, or why there is none that counts."""
        self.last[node] = shown
        if finding is not None:
            self.found[node] = finding
        elif shown is not None:
            others = self.signed.get(shown.note.text)
            whole = shown.note if others is None else merged([others.note, shown.note])
            self.signed[shown.note.text] = replace(shown, note=whole)


class Witness:
    """Follows the logs of a cluster. `round` may be interrupted anywhere and repeated."""

    def __init__(
        self, cluster: Cluster, files: WitnessFiles, keys: TrustedKeys, clock: Clock, limits: Limits
    ) -> None:
        self._cluster = cluster
        self._files = files
        self._keys = keys
        self._clock = clock
        self._limits = limits

    def round(self) -> tuple[list[GroupMemory], list[Finding]]:
        """Ask every node once: what is accepted now, and the findings. Raises Unreachable if no
        node answers at all."""
        memories, findings = [], []
        for group in self._cluster.groups():
            wrong = [name for name in (group.name, *group.nodes) if not _NAME.fullmatch(name)]
            if wrong:
                findings.append(
                    Finding(
                        UNPROVEN,
                        "-",
                        "all",
                        f"{wrong[0]!r} cannot be the name of a broker group or node",
                    )
                )
                continue
            memory = self._files.load(group.name)
            findings += self._ask_nodes(memory, group)
            findings += [*self._unconfirmed(memory), *self._standing_still(memory, group)]
            if memory.accepted:
                self._files.remember(memory)
            memories.append(memory)
        return memories, findings

    def _ask_nodes(self, memory: GroupMemory, group: Group) -> list[Finding]:
        """Ask the nodes, and within the patience again those that show less than before, or more
        than a quorum has signed: they restart, or the others follow."""
        deadline, look, waiting = (
            self._clock.now() + self._limits.patience_s,
            _Look(),
            list(group.nodes),
        )
        before = {node: parse_note(last.note) for node, last in memory.nodes.items()}
        while True:
            for node in waiting:
                shown, finding = self._ask(memory.group, node)
                look.add(node, shown, finding)
            self._accept(memory, look, group.commit_index)
            for node in waiting:
                if node not in look.found:
                    self._judge(memory, look, node, before.get(node))
            waiting = [node for node in group.nodes if node not in look.found]
            if not waiting or self._clock.now() >= deadline:
                late = {
                    node: self._too_late(memory, look, node, before.get(node)) for node in waiting
                }
                return [
                    finding
                    for node in group.nodes
                    if (finding := (look.found | late)[node]) is not None
                ]
            self._clock.sleep(self._limits.poll_s)

    def _ask(self, group: str, node: str) -> tuple[Shown | None, Finding | None]:
        """The checkpoint of a node, None while no file is sealed; or why there is none that
        counts."""
        try:
            text = self._cluster.checkpoint(group, node)
        except Refused as error:
            if error.code == Code.NOT_FOUND:
                return None, None
            return None, Finding(UNPROVEN, group, node, f"node {node} shows no checkpoint: {error}")
        except Unreachable as error:
            return None, Finding(UNPROVEN, group, node, f"node {node} does not answer: {error}")
        try:
            shown = read_shown(node, group, text)
            signers = self._keys.signers(shown.note, shown.checkpoint)
            if node not in {node_of(each.key, shown.checkpoint) for each in signers}:
                raise ValueError(f"no trusted key of {node} has signed it")
        except (ValueError, Refuted) as error:
            what = f"the checkpoint of node {node} does not count: {error}"
            return None, Finding(UNPROVEN, group, node, what, {"shown.checkpoint": text})
        return shown, None

    def _accept(self, memory: GroupMemory, look: _Look, commit_index: int) -> None:
        """Accept the trees that a quorum signed in this round, and that continue the accepted
        one."""
        for shown in sorted(look.signed.values(), key=_size):
            if not self._confirmed(shown.note) or self._contradiction(memory, shown) is not None:
                continue
            largest, size, now = (
                0 if memory.latest is None else memory.latest.size,
                shown.checkpoint.size,
                self._clock.now(),
            )
            self._keep(memory, shown, now)
            if memory.newest is None or size > largest:
                memory.newest = Newest(max(size, largest), now, commit_index)

    def _judge(self, memory: GroupMemory, look: _Look, node: str, before: Note | None) -> None:
        """Settle what a node showed, or leave it open while it shows less than before or more than
        a quorum has signed."""
        shown, confirmed = look.last[node], self._confirmed_size(memory)
        first = None if shown is None else look.first.setdefault(node, shown)
        for each in dict.fromkeys((shown, first)):
            finding = None if each is None else self._contradiction(memory, each)
            if finding is not None:
                look.found[node] = finding
                return
            if each is not None and each.checkpoint.size <= confirmed:
                self._remember(memory, each)
        if _size(first) <= confirmed and _size(shown) >= _size_of(before):
            look.found[node] = None

    def _too_late(
        self, memory: GroupMemory, look: _Look, node: str, before: Note | None
    ) -> Finding:
        """What an open case is after the patience."""
        shown = look.last[node]
        if before is not None and _size(shown) < _size_of(before):
            return _rolled_back(memory.group, node, shown, before)
        first = look.first[node]
        names, needed = (
            sorted(self._nodes(look.signed[first.note.text].note)),
            self._keys.needed(first.checkpoint.log),
        )
        signed = f"{', '.join(names) or 'no known replica'} alone, and {needed} replicas must have"
        what = (
            f"node {node} shows a tree of {first.checkpoint.size} files that was signed by"
            f" {signed}: it is not accepted"
        )
        return Finding(
            UNPROVEN, memory.group, node, what, {"shown.checkpoint": format_note(first.note)}
        )

    def _remember(self, memory: GroupMemory, shown: Shown) -> None:
        """Keep a checkpoint that is part of a confirmed tree, and that this node showed it."""
        now, size, largest = (
            self._clock.now(),
            shown.checkpoint.size,
            0 if memory.latest is None else memory.latest.size,
        )
        self._keep(memory, shown, now)
        before = memory.nodes.get(shown.node)
        # A node that rolled back is compared with the most that it has shown.
        kept = before is not None and _size_of(parse_note(before.note)) > size
        note = before.note if before is not None and kept else format_note(shown.note)
        behind = (
            (now if before is None or before.behind_since is None else before.behind_since)
            if size < largest
            else None
        )
        memory.nodes[shown.node] = LastShown(note, behind)

    def _nodes(self, note: Note) -> set[str]:
        """The replicas whose trusted keys signed it."""
        checkpoint = Checkpoint.parse(note.text)
        return self._keys.counted(self._keys.signers(note, checkpoint), checkpoint)

    def _confirmed(self, note: Note) -> bool:
        """Whether a quorum of the replicas has signed it."""
        return len(self._nodes(note)) >= self._keys.needed(Checkpoint.parse(note.text).log)

    def _confirmed_size(self, memory: GroupMemory) -> int:
        """The size of the largest accepted tree that a quorum has signed; what is proven to be its
        beginning is confirmed with it."""
        return next(
            (
                size
                for size in sorted(memory.accepted, reverse=True)
                if self._confirmed(memory.accepted[size])
            ),
            0,
        )

    def _unconfirmed(self, memory: GroupMemory) -> list[Finding]:
        """Trees in the directory that fewer than a quorum have signed: an earlier version accepted
        them, or keys have left the key file. They stay, because what contradicts them must not go
        unseen; that they are to go is said by whoever keeps the witness."""
        found, confirmed = [], self._confirmed_size(memory)
        for size in sorted(size for size in memory.accepted if size > confirmed):
            note = memory.accepted[size]
            signed = ", ".join(sorted(self._nodes(note))) or "no node of the key file"
            remove = (
                "if it is false (a stolen key), stop the witness and remove"
                f" {self._files.checkpoint_path(memory.group, size)}"
            )
            what = f"the accepted tree of {size} files is signed by {signed} alone; {remove}"
            found.append(
                Finding(
                    UNPROVEN, memory.group, "all", what, {"accepted.checkpoint": format_note(note)}
                )
            )
        return found

    def _contradiction(self, memory: GroupMemory, shown: Shown) -> Finding | None:
        """Compare a checkpoint with the accepted ones: by its root if one has its size, by a path
        between the trees otherwise."""
        latest, found = memory.latest, shown.checkpoint
        if latest is None:
            return None
        if found.log != latest.log:
            what = (
                f"node {shown.node} shows the log {found.log}, and this witness knows {latest.log}"
                f" with {latest.size} sealed files"
            )
            return Finding(
                REPLACED, memory.group, shown.node, what, _evidence(shown, memory, latest.size)
            )
        if found.size in memory.accepted:
            if Checkpoint.parse(memory.accepted[found.size].text).root == found.root:
                return None
            what = (
                f"node {shown.node} shows another tree of {found.size} files than was accepted"
                " before"
            )
            return Finding(
                FORK, memory.group, shown.node, what, _evidence(shown, memory, found.size)
            )
        old, new = sorted((latest, found), key=lambda each: each.size)
        evidence = _evidence(shown, memory, latest.size)
        try:
            paths = self._cluster.paths(memory.group, old.size, new.size)
        except (Refused, Unreachable) as error:
            what = (
                f"no path proves that the tree of {found.size} files of node {shown.node} and the"
                f" accepted one of {latest.size} are one"
            )
            return Finding(UNPROVEN, memory.group, shown.node, f"{what}: {error}", evidence)
        # A false path is no proof: the node that answered may be the one that lies. One true path
        # is a proof, whoever gave it.
        wrong = [why for path in paths if (why := _flaw(old, new, path)) is not None]
        if len(wrong) < len(paths):
            return None
        what = (
            f"the tree of {found.size} files of node {shown.node} contradicts the accepted one of"
            f" {latest.size}: {wrong[0]}"
        )
        given = "\n\n".join("\n".join(each.hex() for each in path) for path in paths)
        return Finding(FORK, memory.group, shown.node, what, evidence | {"paths.hex": f"{given}\n"})

    def _keep(self, memory: GroupMemory, shown: Shown, now: int) -> None:
        """Keep the checkpoint with the signatures of all nodes that showed it. The largest one is
        cosigned if it is confirmed, with the time of this round: a cosignature says that nothing
        larger was confirmed."""
        note, own = shown.note, self._files.key
        kept = memory.accepted.get(shown.checkpoint.size)
        whole = note if kept is None else merged([kept, note])
        if self._confirmed(whole) and (
            memory.latest is None or shown.checkpoint.size >= memory.latest.size
        ):
            others = tuple(
                each
                for each in whole.signatures
                if (each.name, each.key_id) != (own.name, own.key_id)
            )
            whole = Note(note.text, (*others, cosign(note.text, own, now, self._files.sign)))
        if whole != kept:
            self._files.accept(memory, whole)

    def _standing_still(self, memory: GroupMemory, group: Group) -> list[Finding]:
        """Whether the log, or one node, has shown nothing new for too long."""
        latest, newest, now = memory.latest, memory.newest, self._clock.now()
        if latest is None or newest is None:
            return []
        accepted = {"accepted.checkpoint": format_note(memory.accepted[latest.size])}
        found, limit = [], self._limits.stale_after_s
        if now - newest.since >= limit and group.commit_index > newest.commit_index:
            entries = group.commit_index - newest.commit_index
            what = (
                f"nothing new behind {latest.size} files for {now - newest.since} s, while"
                f" {entries} entries were committed"
            )
            found.append(Finding(WITHHELD, group.name, "all", what, accepted))
        for node, last in sorted(memory.nodes.items()):
            if (
                node in group.nodes
                and last.behind_since is not None
                and now - last.behind_since >= limit
            ):
                what = (
                    f"node {node} shows fewer than the {latest.size} sealed files of the others for"
                    f" {now - last.behind_since} s"
                )
                found.append(
                    Finding(
                        WITHHELD, group.name, node, what, accepted | {"shown.checkpoint": last.note}
                    )
                )
        return found


def _flaw(old: Checkpoint, new: Checkpoint, path: Sequence[bytes]) -> str | None:
    """Why a path does not prove that one tree continues the other; None if it does."""
    try:
        check_consistency(old.size, old.root, new.size, new.root, path)
    except ValueError as error:
        return str(error)
    return None


def _size(shown: Shown | None) -> int:
    return 0 if shown is None else shown.checkpoint.size


def _size_of(note: Note | None) -> int:
    return 0 if note is None else Checkpoint.parse(note.text).size


def _rolled_back(group: str, node: str, shown: Shown | None, before: Note) -> Finding:
    what = f"node {node} shows {_size(shown)} sealed files, and has shown {_size_of(before)} before"
    evidence = {"before.checkpoint": format_note(before)} | (
        {} if shown is None else {"shown.checkpoint": format_note(shown.note)}
    )
    return Finding(ROLLED_BACK, group, node, what, evidence)


def _evidence(shown: Shown, memory: GroupMemory, size: int) -> dict[str, str]:
    return {
        "shown.checkpoint": format_note(shown.note),
        "accepted.checkpoint": format_note(memory.accepted[size]),
    }
