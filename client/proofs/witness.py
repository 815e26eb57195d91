"""One round of a witness: which checkpoints of a cluster it accepts and cosigns, and what it finds wrong.

A checkpoint is accepted if its own node signed it with a trusted key, and the tree of the largest accepted checkpoint and its tree continue
one another. What a node does not prove is not accepted. Time, files and the cluster are ports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.proofs.fetching import Shown, merged, read_shown
from ledgermq.client.proofs.keys import TrustedKeys, node_of
from ledgermq.client.proofs.proof import Refuted
from ledgermq.client.proofs.witness_files import GroupMemory, LastShown, Newest, WitnessFiles
from ledgermq.proto.log_tree import check_consistency
from ledgermq.proto.signed_notes import Checkpoint, Note, cosign, format_note, parse_note
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
"""A node does not answer, its checkpoint is not signed by its known key, or no path to it was given: nothing is known against it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ALARMS = frozenset({FORK, ROLLED_BACK, WITHHELD, REPLACED})


class Cluster(Protocol):
    """The cluster as the witness asks it."""

    def groups(self) -> Sequence[Group]:
        """The broker groups. Raises Unreachable if no node answers."""

    def checkpoint(self, broker_group: str, node: str) -> str:
        """The note that a node shows. Raises Refused (NOT_FOUND: no file of the log is sealed) and Unreachable."""

    def paths(self, broker_group: str, old_size: int, new_size: int) -> Sequence[tuple[bytes, ...]]:
        """The consistency paths that nodes give, at least one. Raises Refused and Unreachable if none does."""


class Clock(Protocol):
    """Seconds since 1970, and waiting."""

    def now(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group: the nodes that hold it, and its commit index as its leader says."""

    name: str
    nodes: tuple[str, ...]
    commit_index: int


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
    """How long a node may show less than before, for a restart, and how long a log may show nothing new although messages are committed."""

    patience_s: float
    stale_after_s: float
    poll_s: float = 1.0


class Witness:
    """Follows the logs of a cluster. `round` may be interrupted anywhere and repeated."""

    def __init__(self, cluster: Cluster, files: WitnessFiles, keys: TrustedKeys, clock: Clock, limits: Limits) -> None:
        self._cluster = cluster
        self._files = files
        self._keys = keys
        self._clock = clock
        self._limits = limits

    def round(self) -> tuple[list[GroupMemory], list[Finding]]:
        """Ask every node once: what is accepted now, and the findings. Raises Unreachable if no node answers at all."""
        memories, findings = [], []
        for group in self._cluster.groups():
            wrong = [name for name in (group.name, *group.nodes) if not _NAME.fullmatch(name)]
            if wrong:
                findings.append(Finding(UNPROVEN, "-", "all", f"{wrong[0]!r} cannot be the name of a broker group or node"))
                continue
            memory = self._files.load(group.name)
            for node in group.nodes:
                findings += self._look(memory, node, group.commit_index)
            findings += self._standing_still(memory, group)
            if memory.accepted:
                self._files.remember(memory)
            memories.append(memory)
        return memories, findings

    def _look(self, memory: GroupMemory, node: str, commit_index: int) -> list[Finding]:
        """Ask one node, and again within the patience while it shows less than before."""
        deadline = self._clock.now() + self._limits.patience_s
        last = memory.nodes.get(node)
        before = None if last is None else parse_note(last.note)
        while True:
            shown, finding = self._ask(memory.group, node)
            if finding is not None:
                return [finding]
            found = [] if shown is None else self._judge(memory, shown, commit_index)
            if found or before is None or _size(shown) >= Checkpoint.parse(before.text).size:
                return found
            if self._clock.now() >= deadline:
                return [_rolled_back(memory.group, node, shown, before)]
            self._clock.sleep(self._limits.poll_s)

    def _ask(self, group: str, node: str) -> tuple[Shown | None, Finding | None]:
        """The checkpoint of a node, None while no file is sealed; or why there is none that counts."""
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

    def _judge(self, memory: GroupMemory, shown: Shown, commit_index: int) -> list[Finding]:
        """Accept a checkpoint of a node, or say why not."""
        finding = self._contradiction(memory, shown)
        if finding is not None:
            return [finding]
        now, largest = self._clock.now(), 0 if memory.latest is None else memory.latest.size
        self._keep(memory, shown, now)
        size = shown.checkpoint.size
        if memory.newest is None or size > largest:
            memory.newest = Newest(max(size, largest), now, commit_index)
        before = memory.nodes.get(shown.node)
        # A node that rolled back is compared with the most that it has shown.
        kept = before is not None and Checkpoint.parse(parse_note(before.note).text).size > size
        note = before.note if before is not None and kept else format_note(shown.note)
        behind = (now if before is None or before.behind_since is None else before.behind_since) if size < largest else None
        memory.nodes[shown.node] = LastShown(note, behind)
        return []

    def _contradiction(self, memory: GroupMemory, shown: Shown) -> Finding | None:
        """Compare a checkpoint with the accepted ones: by its root if one has its size, by a path between the trees otherwise."""
        latest, found = memory.latest, shown.checkpoint
        if latest is None:
            return None
        if found.log != latest.log:
            what = f"node {shown.node} shows the log {found.log}, and this witness knows {latest.log} with {latest.size} sealed files"
            return Finding(REPLACED, memory.group, shown.node, what, _evidence(shown, memory, latest.size))
        if found.size in memory.accepted:
            if Checkpoint.parse(memory.accepted[found.size].text).root == found.root:
                return None
            what = f"node {shown.node} shows another tree of {found.size} files than was accepted before"
            return Finding(FORK, memory.group, shown.node, what, _evidence(shown, memory, found.size))
        old, new = sorted((latest, found), key=lambda each: each.size)
        evidence = _evidence(shown, memory, latest.size)
        try:
            paths = self._cluster.paths(memory.group, old.size, new.size)
        except (Refused, Unreachable) as error:
            what = f"no path proves that the tree of {found.size} files of node {shown.node} and the accepted one of {latest.size} are one"
            return Finding(UNPROVEN, memory.group, shown.node, f"{what}: {error}", evidence)
        # A false path is no proof: the node that answered may be the one that lies. One true path is a proof, whoever gave it.
        wrong = [why for path in paths if (why := _flaw(old, new, path)) is not None]
        if len(wrong) < len(paths):
            return None
        what = f"the tree of {found.size} files of node {shown.node} contradicts the accepted one of {latest.size}: {wrong[0]}"
        given = "\n\n".join("\n".join(each.hex() for each in path) for path in paths)
        return Finding(FORK, memory.group, shown.node, what, evidence | {"paths.hex": f"{given}\n"})

    def _keep(self, memory: GroupMemory, shown: Shown, now: int) -> None:
        """Keep the checkpoint with the signatures of all nodes that showed it. The largest one is cosigned, with the time of this round: a
        cosignature says that nothing larger was seen."""
        note, own = shown.note, self._files.key
        kept = memory.accepted.get(shown.checkpoint.size)
        whole = note if kept is None else merged([kept, note])
        if memory.latest is None or shown.checkpoint.size >= memory.latest.size:
            others = tuple(each for each in whole.signatures if (each.name, each.key_id) != (own.name, own.key_id))
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
            what = f"nothing new behind {latest.size} files for {now - newest.since} s, while {entries} entries were committed"
            found.append(Finding(WITHHELD, group.name, "all", what, accepted))
        for node, last in sorted(memory.nodes.items()):
            if node in group.nodes and last.behind_since is not None and now - last.behind_since >= limit:
                what = f"node {node} shows fewer than the {latest.size} sealed files of the others for {now - last.behind_since} s"
                found.append(Finding(WITHHELD, group.name, node, what, accepted | {"shown.checkpoint": last.note}))
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


def _rolled_back(group: str, node: str, shown: Shown | None, before: Note) -> Finding:
    what = f"node {node} shows {_size(shown)} sealed files, and has shown {Checkpoint.parse(before.text).size} before"
    evidence = {"before.checkpoint": format_note(before)} | ({} if shown is None else {"shown.checkpoint": format_note(shown.note)})
    return Finding(ROLLED_BACK, group, node, what, evidence)


def _evidence(shown: Shown, memory: GroupMemory, size: int) -> dict[str, str]:
    return {"shown.checkpoint": format_note(shown.note), "accepted.checkpoint": format_note(memory.accepted[size])}
