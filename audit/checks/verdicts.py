"""The meaning of every flaw of a replica after its group was compared: normal after a crash,
damage, or undecidable; and the exact place.

Damage of the log is narrowed to the bytes that differ from an intact peer's. If no byte of a flaw
differs, its cause is in the bytes that it was compared with, and it is moved there.

The law of this module, which is the only one to omit findings: a finding is omitted only in favour
of another one of the same replica that is reported and fails, and that covers the same bytes, or
lies on the bytes that these were compared with (`Flaw.measures`). `GroupResult.folds` keeps every
such pair; the tests check them against the findings of every audit that they run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ledgermq.audit.checks.evidence import locate
from ledgermq.audit.checks.group import MAJORITY, GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.unclean import excuse
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.decode import I64
from ledgermq.audit.rules import BIT_ROT, RULES, TORN_TAIL, UNDECIDABLE, Finding, Flaw, Place

CHAINED = ("entry.chain", "chain.seed")
"""Rules that compare an entry with the chain word before it, which may itself be damaged."""
CHECKED = (*CHAINED, "entry.body", "entry.body-crc", "entry.chain-word")
"""Rules that compare parts of an entry with each other: any part may have been altered so that it
contradicts another."""
PROVEN = ("entry.body-crc", "entry.body-size", "entry.chain-word")
"""Rules about words that may be damaged although the chain proves their entry."""
CHAIN_WORD = (36, 40)
HISTORIES = "replica."
"""Rules that mean other entries from the named one on."""


def settle(result: GroupResult) -> None:
    """Turn the flaws of all replicas into findings."""
    witnesses = [_Witness(one, result.divergent.get(one.name)) for one in result.replicas]
    for witness in witnesses:
        _Settling(
            result, witness.replica, [other for other in witnesses if other is not witness]
        ).run()


def covers(finding: Finding, flaw: Flaw) -> bool:
    """Whether a finding of the same replica covers all bytes of a flaw. A finding of another
    history covers everything behind it."""
    covering = finding.flaw
    end = flaw.byte_to if covering.rule.startswith(HISTORIES) else covering.byte_to
    return (
        covering.file == flaw.file and covering.byte_from <= flaw.byte_from and flaw.byte_to <= end
    )


def answers(finding: Finding, flaw: Flaw) -> bool:
    """Whether a finding of the same replica replaces a flaw: it covers the flaw's bytes, or lies on
    the bytes that they were compared with. A measure that is the flaw's own place must be
    covered."""
    own = flaw.file, flaw.byte_from, flaw.byte_to
    return covers(finding, flaw) or any(
        _lies_on(finding.flaw, place) for place in flaw.measures if place != own
    )


def _lies_on(flaw: Flaw, place: Place) -> bool:
    file, start, end = place
    return flaw.file == file and (
        (flaw.byte_from < end and flaw.byte_to > start)
        or start <= flaw.byte_from <= flaw.byte_to <= end
    )


def tell(result: GroupResult, finding: Finding) -> None:
    """Add a finding, unless an earlier one replaces it."""
    settled = (
        other for other in result.findings if other.fails and other.replica == finding.replica
    )
    replacing = (
        next((other for other in settled if answers(other, finding.flaw)), None)
        if finding.flaw.measures
        else None
    )
    if replacing is None:
        result.findings.append(finding)
    else:
        result.folds.append((finding, replacing))


def tell_difference(
    result: GroupResult, finding: Finding, one: Replica, peer: Replica, end: int
) -> None:
    """Report a log file whose first `end` bytes differ from a peer's, unless other findings cover
    the bytes that differ."""
    failing = [
        other
        for other in result.findings
        if other.fails and other.replica == one.name and other.flaw.file == finding.flaw.file
    ]
    flaws_of: dict[int, list[int]] = {}
    open_bytes: list[int] = []
    name = finding.flaw.file.rpartition("/")[2]
    for start in range(0, end, bytewise.CHUNK):
        own, theirs = (
            bytewise.read(f"{each.log}/data/{name}", start, min(start + bytewise.CHUNK, end))
            for each in (one, peer)
        )
        if own is None or theirs is None or len(own) != len(theirs):
            result.findings.append(finding)
            return
        places = (
            np.flatnonzero(np.frombuffer(own, np.uint8) != np.frombuffer(theirs, np.uint8)) + start
        )
        for number, other in enumerate(failing):
            stop = end if other.flaw.rule.startswith(HISTORIES) else other.flaw.byte_to
            inside = (places >= other.flaw.byte_from) & (places < stop)
            if inside.any():
                flaws_of.setdefault(number, []).extend(
                    (int(places[inside][0]), int(places[inside][-1]))
                )
                places = places[~inside]
        if len(places):
            open_bytes += [int(places[0]), int(places[-1])]
    for number, at in flaws_of.items():
        result.folds.append((_narrowed(finding, min(at), max(at) + 1), failing[number]))
    if open_bytes:
        proof = f"{finding.flaw.proof}; {peer.name} has other bytes here"
        result.findings.append(_narrowed(finding, min(open_bytes), max(open_bytes) + 1, proof))


def _narrowed(finding: Finding, start: int, end: int, proof: str = "") -> Finding:
    return replace(
        finding,
        flaw=replace(finding.flaw, byte_from=start, byte_to=end, proof=proof or finding.flaw.proof),
    )


@dataclass(slots=True)
class _Witness:
    """A replica as a peer: where its log is intact."""

    replica: Replica
    divergent: int | None
    held: int = field(init=False)
    broken: frozenset[int] = field(init=False)
    flawed: dict[str, I64] = field(init=False)
    """By the name of a log file, the bytes of flaws as rows of begin and end, and whether the chain
    proves the entry."""

    def __post_init__(self) -> None:
        one = self.replica
        self.held, self.broken = one.held, frozenset(one.broken)
        places: dict[str, list[tuple[int, int, int]]] = {}
        folder = one.shown(f"{one.log_folder}/data/")
        for flaw in one.flaws:
            # That a majority does not agree on an entry says nothing against its bytes here.
            if flaw.file.startswith(folder) and flaw.rule != "commit.lost":
                places.setdefault(flaw.file.removeprefix(folder), []).append(
                    (flaw.byte_from, flaw.byte_to, flaw.rule in PROVEN)
                )
        self.flawed = {name: np.array(rows, np.int64) for name, rows in places.items()}

    def holds(self, flaw: Flaw, *, proven: bool = False) -> bool:
        """Whether the place of a flaw is intact here, and of the majority's history. `proven`:
        damaged words do not count where the chain proves their entry."""
        if (
            flaw.index is None
            or self.divergent is not None
            or self.held < flaw.index
            or flaw.index in self.broken
        ):
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
        parted = [
            index for index in (result.divergent.get(one.name), one.stale_from) if index is not None
        ]
        self._parted = min(parted, default=None)
        """From this index on the peers hold other entries."""
        self._findings: list[Finding] = []
        self._by_file: dict[str, list[Finding]] = {}
        self._waiting: list[Flaw] = []
        """Flaws that may follow from others."""

    def run(self) -> None:
        for flaw in self._one.flaws:
            self._settle(flaw)
        left = [flaw for flaw in self._waiting if not self._fold(flaw)]
        for flaw in left:
            # A flaw that no finding replaces becomes a finding, and may replace later flaws.
            if not self._fold(flaw):
                self._add(flaw)
        self._result.findings += self._findings

    def _settle(self, flaw: Flaw) -> None:
        """Report a flaw at its place, or record that it may follow from another."""
        peers = self._intact(flaw)
        if self._excuse(flaw, peers) is not None:
            self._add(flaw, peers)
            return
        if not self._is_rot(flaw, peers):
            self._offer(flaw)
            return
        before = self._before(flaw, peers) if flaw.rule in CHAINED else None
        narrowed = self._narrow(flaw, peers)
        if before is not None:
            self._waiting.append(before)
        if narrowed is not None and narrowed is not flaw:
            # Bytes that differ from a peer's are a finding, whatever else is damaged.
            self._add(replace(narrowed, measures=()), peers)
        elif narrowed is not None or before is None:
            self._offer(flaw)

    def _offer(self, flaw: Flaw) -> None:
        if flaw.measures:
            self._waiting.append(flaw)
        else:
            self._add(flaw)

    def _add(self, flaw: Flaw, peers: list[Replica] | None = None) -> None:
        self._put(self._judge(flaw, self._intact(flaw) if peers is None else peers))

    def _put(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._by_file.setdefault(finding.flaw.file, []).append(finding)

    def _fold(self, flaw: Flaw) -> bool:
        """Omit a flaw in favour of a finding that replaces it. If that finding is excused, so is a
        flaw behind it: nothing counts from there on."""
        files = dict.fromkeys((flaw.file, *(file for file, _, _ in flaw.measures)))
        answering = [
            finding
            for file in files
            for finding in self._by_file.get(file, ())
            if answers(finding, flaw)
        ]
        for finding in answering:
            if finding.fails:
                self._result.folds.append((self._judge(flaw, self._intact(flaw)), finding))
                return True
        for finding in answering:
            if finding.flaw.index is not None and (
                flaw.index is None or flaw.index >= finding.flaw.index
            ):
                proof = (
                    f"{flaw.proof}; it follows from {finding.flaw.rule} at entry"
                    f" {finding.flaw.index}"
                )
                self._put(
                    Finding(
                        TORN_TAIL,
                        self._one.name,
                        self._result.group,
                        replace(flaw, proof=proof),
                        fails=False,
                    )
                )
                return True
        return False

    def _judge(self, flaw: Flaw, peers: list[Replica]) -> Finding:
        """Decide what a flaw means at its place."""
        one, result = self._one, self._result
        excused = self._excuse(flaw, peers)
        if excused is not None:
            return Finding(
                TORN_TAIL,
                one.name,
                result.group,
                replace(flaw, proof=f"{flaw.proof}; {excused}"),
                fails=False,
            )
        klass = self._class_of(flaw, peers)
        if self._is_rot(flaw, peers):
            if self._is_undecidable(flaw, peers):
                klass = UNDECIDABLE
                flaw = replace(flaw, proof=f"{flaw.proof}; no majority holds this entry intact")
            elif (
                flaw.torn
                and not one.clean
                and flaw.index is not None
                and (one.mark is None or flaw.index > one.mark.index)
            ):
                flaw = replace(
                    flaw,
                    proof=f"{flaw.proof}; above the synced mark, but a majority holds this entry",
                )
        return Finding(klass, one.name, result.group, flaw)

    def _excuse(self, flaw: Flaw, peers: list[Replica]) -> str | None:
        return excuse(self._one, flaw, self._result.compared, peers)

    def _class_of(self, flaw: Flaw, peers: list[Replica]) -> str:
        return BIT_ROT if flaw.rule == "chain.seed" and peers else RULES[flaw.rule].klass

    def _is_rot(self, flaw: Flaw, peers: list[Replica]) -> bool:
        """Whether a flaw is damage of log bytes, by its class and its place."""
        return (
            flaw.index is not None
            and flaw.file.startswith(self._data)
            and self._class_of(flaw, peers) == BIT_ROT
        )

    def _is_undecidable(self, flaw: Flaw, peers: list[Replica]) -> bool:
        """Damage in a compared entry that no peer holds intact, although peers hold that part of
        the log."""
        result, index = self._result, flaw.index
        if (
            index is None
            or result.compared is None
            or index > result.compared
            or self._one.name in result.divergent
        ):
            return False
        others = [
            other
            for other in result.replicas
            if other is not self._one and other.last_index >= index
        ]
        # With appointed masters, a confirmed entry may be on a single replica.
        return (bool(others) or result.rule != MAJORITY) and not peers

    # What intact peers have there

    def _intact(self, flaw: Flaw) -> list[Replica]:
        """Replicas of the majority whose log file of the same name has no flaw at the place; for an
        entry, if there are none, those whose chain proves theirs."""
        holders = [other.replica for other in self._others if other.holds(flaw)]
        if not holders and flaw.rule in CHECKED:
            holders = [other.replica for other in self._others if other.holds(flaw, proven=True)]
        return holders

    def _is_apart(self, index: int) -> bool:
        return self._parted is not None and index >= self._parted

    def _narrow(self, flaw: Flaw, peers: list[Replica]) -> Flaw | None:
        """The flaw at the bytes that differ from an intact peer's, or unchanged if none can be
        compared; None if the place is equal."""
        if (
            not peers
            or flaw.index is None
            or flaw.byte_to - flaw.byte_from > bytewise.READ_MAX
            or self._is_apart(flaw.index)
        ):
            return flaw
        entry = self._entry(peers[0], flaw, flaw.index) if flaw.rule in CHECKED else None
        if entry is not None and entry.file == flaw.file:
            whole = replace(
                flaw,
                byte_from=min(flaw.byte_from, entry.byte_from),
                byte_to=max(flaw.byte_to, entry.byte_to),
            )
            for peer in self._intact(whole)[:1]:
                return self._difference(peer, whole)
        return self._difference(peers[0], flaw)

    def _before(self, flaw: Flaw, peers: list[Replica]) -> Flaw | None:
        """The flaw in the previous entry, if its chain word is not the one that an intact peer
        continues: an entry that was altered together with its chain word shows only in the entry
        behind it."""
        if (
            not peers
            or not flaw.index
            or flaw.index <= self._one.begin.index
            or self._is_apart(flaw.index)
        ):
            return None
        whole = self._entry(peers[0], flaw, flaw.index - 1)
        if whole is None:
            return None
        word = replace(
            whole,
            byte_from=whole.byte_from + CHAIN_WORD[0],
            byte_to=whole.byte_from + CHAIN_WORD[1],
        )
        if self._difference(peers[0], word) is None:
            return None
        # Even a peer that is damaged there has the right word, because its next entry continues it.
        return self._difference(peers[0], whole if peers[0] in self._intact(whole) else word)

    def _entry(self, peer: Replica, flaw: Flaw, index: int) -> Flaw | None:
        """The flaw at the whole of an entry, at its place on an intact peer."""
        place = locate(peer, index)
        if place is None:
            return None
        start = place.pos - place.base
        return replace(
            flaw,
            file=f"{self._data}{place.base:020d}",
            index=index,
            byte_from=start,
            byte_to=start + place.size,
        )

    def _difference(self, peer: Replica, flaw: Flaw) -> Flaw | None:
        """The flaw at the bytes that differ from a peer's, or unchanged if they cannot be compared;
        None if none differ."""
        name = flaw.file.rpartition("/")[2]
        own, theirs = (
            bytewise.read(f"{each.log}/data/{name}", flaw.byte_from, flaw.byte_to)
            for each in (self._one, peer)
        )
        if own is None or theirs is None or len(own) != len(theirs):
            return flaw
        bounds = bytewise.difference(own, theirs)
        if bounds is None:
            return None
        start, stop = bounds
        proof = (
            f"{flaw.proof}; {own[start:stop][:16].hex()} here, {theirs[start:stop][:16].hex()} on"
            f" {peer.name}"
        )
        return replace(
            flaw, byte_from=flaw.byte_from + start, byte_to=flaw.byte_from + stop, proof=proof
        )
