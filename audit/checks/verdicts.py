"""What every flaw of a replica means once its group was compared: ordinary after a crash, damage, or undecidable; and where exactly.

Damage of the log is narrowed down to the bytes that differ from an intact peer's. A flaw of which no byte differs has its cause in what it
was held against: it is moved there. The law of this module: a finding is left out only for another one that is reported, that fails, and
that covers the same bytes of the same replica; `GroupResult.folds` keeps every such pair, and the tests hold them against the findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ledgermq.audit.checks.evidence import locate
from ledgermq.audit.checks.group import MAJORITY, GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.rules import BIT_ROT, RULES, TORN_TAIL, UNDECIDABLE, Finding, Flaw
from ledgermq.audit.checks.unclean import excuse
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.decode import I64

CHAINED = ("entry.chain", "chain.seed")
"""Rules that hold an entry against the chain word before it, which may be the one that is damaged."""
CHECKED = (*CHAINED, "entry.body", "entry.body-crc", "entry.chain-word")
"""Rules that hold parts of an entry against each other: each part may have been altered so that it speaks against another one."""
PROVEN = ("entry.body-crc", "entry.body-size", "entry.chain-word")
"""Rules of words that may be rotten though the chain proves their entry."""
CHAIN_WORD = (36, 40)


def settle(result: GroupResult) -> None:
    """Make findings of all flaws of all replicas."""
    witnesses = [_Witness(one, result.divergent.get(one.name)) for one in result.replicas]
    for witness in witnesses:
        _Settling(result, witness.replica, [other for other in witnesses if other is not witness]).run()


def covers(finding: Finding, flaw: Flaw) -> bool:
    """Whether a finding of the same replica tells of all bytes of a flaw, and fails for them."""
    there = finding.flaw
    return finding.fails and there.file == flaw.file and there.byte_from <= flaw.byte_from and flaw.byte_to <= there.byte_to


@dataclass(slots=True)
class _Witness:
    """What a replica is worth as a peer: where its log is intact."""

    replica: Replica
    divergent: int | None
    held: int = field(init=False)
    broken: frozenset[int] = field(init=False)
    flawed: dict[str, I64] = field(init=False)
    """By the name of a log file, the bytes that flaws concern, as rows of begin and end, and whether the chain proves the entry."""

    def __post_init__(self) -> None:
        one = self.replica
        self.held, self.broken = one.held, frozenset(one.broken)
        places: dict[str, list[tuple[int, int, int]]] = {}
        folder = one.shown(f"{one.log_folder}/data/")
        for flaw in one.flaws:
            if flaw.file.startswith(folder):
                places.setdefault(flaw.file.removeprefix(folder), []).append((flaw.byte_from, flaw.byte_to, flaw.rule in PROVEN))
        self.flawed = {name: np.array(rows, np.int64) for name, rows in places.items()}

    def holds(self, flaw: Flaw, *, proven: bool = False) -> bool:
        """Whether the place of a flaw is intact here, and of the history that the majority has. `proven`: rotten words do not count where
        the chain proves their entry."""
        if flaw.index is None or self.divergent is not None or self.held < flaw.index or flaw.index in self.broken:
            return False
        rows = self.flawed.get(flaw.file.rpartition("/")[2])
        if rows is None:
            return True
        touching = (rows[:, 0] < flaw.byte_to) & (rows[:, 1] > flaw.byte_from)
        return not bool((touching & (rows[:, 2] == 0) if proven else touching).any())


class _Settling:
    """The flaws of one replica."""

    def __init__(self, result: GroupResult, one: Replica, others: list[_Witness]) -> None:
        members = {*result.voters, *result.learners}
        self._result = result
        self._one = one
        self._others = [other for other in others if other.replica.name in members or not members]
        self._data = one.shown(f"{one.log_folder}/data/")
        parted = [index for index in (result.divergent.get(one.name), one.stale_from) if index is not None]
        self._parted = min(parted, default=None)
        """From this index on the peers hold other entries."""
        self._moved: list[Flaw] = []

    def run(self) -> None:
        own = [finding for flaw in self._one.flaws for finding in self._settle(flaw)]
        for flaw in self._moved:
            for finding in self._judge(flaw, self._intact(flaw)):
                told = next((other for other in own if covers(other, flaw)), None)
                if told is None:
                    own.append(finding)
                else:
                    self._result.folds.append((finding, told))
        self._result.findings += own

    def _settle(self, flaw: Flaw) -> Iterator[Finding]:
        """The findings of a flaw. What it says of an entry that it is not about is noted as moved."""
        peers = self._intact(flaw)
        if not self._is_rot(flaw, peers) or self._excuse(flaw, peers) is not None:
            yield from self._judge(flaw, peers)
            return
        before = self._before(flaw, peers) if flaw.rule in CHAINED else None
        narrowed = self._narrow(flaw, peers)
        if before is not None:
            self._moved.append(before)
        if narrowed is not None:
            yield from self._judge(narrowed, peers)
        elif before is None:
            # Nothing explains it: it stands as it was found.
            yield from self._judge(flaw, peers)

    def _judge(self, flaw: Flaw, peers: list[Replica]) -> Iterator[Finding]:
        """Decide what a flaw means at its place."""
        one, result = self._one, self._result
        excused = self._excuse(flaw, peers)
        if excused is not None:
            yield Finding(TORN_TAIL, one.name, result.group, replace(flaw, proof=f"{flaw.proof}; {excused}"), fails=False)
            return
        klass = self._class_of(flaw, peers)
        if self._is_rot(flaw, peers):
            if self._is_undecidable(flaw, peers):
                klass = UNDECIDABLE
                flaw = replace(flaw, proof=f"{flaw.proof}; no majority holds this entry intact")
            elif flaw.torn and not one.clean and flaw.index is not None and (one.mark is None or flaw.index > one.mark.index):
                flaw = replace(flaw, proof=f"{flaw.proof}; above the synced mark, but a majority holds this entry")
        yield Finding(klass, one.name, result.group, flaw)

    def _excuse(self, flaw: Flaw, peers: list[Replica]) -> str | None:
        return excuse(self._one, flaw, self._result.compared, peers)

    def _class_of(self, flaw: Flaw, peers: list[Replica]) -> str:
        return BIT_ROT if flaw.rule == "chain.seed" and peers else RULES[flaw.rule].klass

    def _is_rot(self, flaw: Flaw, peers: list[Replica]) -> bool:
        """Whether a flaw is damage of bytes of the log, as a class and by its place."""
        return flaw.index is not None and flaw.file.startswith(self._data) and self._class_of(flaw, peers) == BIT_ROT

    def _is_undecidable(self, flaw: Flaw, peers: list[Replica]) -> bool:
        """Damage in a compared entry that no peer holds intact, although peers hold that part of the log."""
        result, index = self._result, flaw.index
        if index is None or result.compared is None or index > result.compared or self._one.name in result.divergent:
            return False
        others = [other for other in result.replicas if other is not self._one and other.last_index >= index]
        # Where masters are appointed a confirmed entry may stand on one replica alone.
        return (bool(others) or result.rule != MAJORITY) and not peers

    # What intact peers have there

    def _intact(self, flaw: Flaw) -> list[Replica]:
        """Replicas of the majority whose log file of the same name has no flaw that touches the place; of an entry, if there are none,
        those whose chain proves theirs."""
        found = [other.replica for other in self._others if other.holds(flaw)]
        if not found and flaw.rule in CHECKED:
            found = [other.replica for other in self._others if other.holds(flaw, proven=True)]
        return found

    def _is_apart(self, index: int) -> bool:
        return self._parted is not None and index >= self._parted

    def _narrow(self, flaw: Flaw, peers: list[Replica]) -> Flaw | None:
        """The flaw at the bytes that differ from an intact peer's, or as it is where none can be compared; None: the place is equal."""
        if not peers or flaw.index is None or flaw.byte_to - flaw.byte_from > bytewise.READ_MAX or self._is_apart(flaw.index):
            return flaw
        entry = self._entry(peers[0], flaw, flaw.index) if flaw.rule in CHECKED else None
        if entry is not None and entry.file == flaw.file:
            whole = replace(flaw, byte_from=min(flaw.byte_from, entry.byte_from), byte_to=max(flaw.byte_to, entry.byte_to))
            for peer in self._intact(whole)[:1]:
                return self._difference(peer, whole)
        return self._difference(peers[0], flaw)

    def _before(self, flaw: Flaw, peers: list[Replica]) -> Flaw | None:
        """The flaw in the entry before, where the chain word of that one is not the one that an intact peer continues: what was altered
        with its chain word made right again shows only in the entry behind it."""
        if not peers or not flaw.index or flaw.index <= self._one.begin.index or self._is_apart(flaw.index):
            return None
        whole = self._entry(peers[0], flaw, flaw.index - 1)
        if whole is None:
            return None
        word = replace(whole, byte_from=whole.byte_from + CHAIN_WORD[0], byte_to=whole.byte_from + CHAIN_WORD[1])
        if self._difference(peers[0], word) is None:
            return None
        # Of a peer that is damaged there itself the word is right all the same: its next entry continues it.
        return self._difference(peers[0], whole if peers[0] in self._intact(whole) else word)

    def _entry(self, peer: Replica, flaw: Flaw, index: int) -> Flaw | None:
        """The flaw at the whole of an entry, which stands where it stands on an intact peer."""
        found = locate(peer, index)
        if found is None:
            return None
        start = found.pos - found.base
        return replace(flaw, file=f"{self._data}{found.base:020d}", index=index, byte_from=start, byte_to=start + found.size)

    def _difference(self, peer: Replica, flaw: Flaw) -> Flaw | None:
        """The flaw at the bytes that differ from a peer's, or as it is where they cannot be compared; None: there are none."""
        name = flaw.file.rpartition("/")[2]
        own, theirs = (bytewise.read(f"{each.log}/data/{name}", flaw.byte_from, flaw.byte_to) for each in (self._one, peer))
        if own is None or theirs is None or len(own) != len(theirs):
            return flaw
        found = bytewise.difference(own, theirs)
        if found is None:
            return None
        start, stop = found
        proof = f"{flaw.proof}; {own[start:stop][:16].hex()} here, {theirs[start:stop][:16].hex()} on {peer.name}"
        return replace(flaw, byte_from=flaw.byte_from + start, byte_to=flaw.byte_from + stop, proof=proof)
