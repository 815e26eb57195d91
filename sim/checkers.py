"""The invariants, watched from outside after every step: what no interleaving may ever show (design §1, I1–I4).

Here lives knowledge about all nodes at once, which no node has. A checker reads replicas and media and remembers; it never acts on them.
`Violation` names the invariant; the simulator turns it into a seed that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ledgermq.proto.types import Role


class Violation(AssertionError):
    """An invariant was broken: `invariant` is its id."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Watched(Protocol):
    """What a checker may ask of a living replica."""

    @property
    def role(self) -> Role: ...

    @property
    def term(self) -> int: ...

    @property
    def begin_index(self) -> int:
        """The first entry that was not trimmed."""
        ...

    @property
    def end_index(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def tip(self) -> tuple[int, int, int]:
        """(end index, its term, its chain CRC), kept in memory."""
        ...

    def term_at(self, index: int) -> int: ...

    def chain_at(self, index: int) -> int: ...

    def stored_on_medium(self, index: int) -> bool:
        """Whether the entry would be there after a power cut now."""
        ...

    def bytes_behind_end(self) -> int:
        """How many bytes behind the end of the log are not zero."""
        ...


@dataclass
class Checkers:
    """Memory of one run. `look` is called after every step with the living replicas."""

    voters: int
    leaders: dict[int, tuple[str, int]] = field(default_factory=dict)
    """term → (node, life) of its leader"""
    history: dict[tuple[int, int], int] = field(default_factory=dict)
    """(index, term) → chain CRC, over all replicas and all time"""
    committed: list[tuple[int, int]] = field(default_factory=list)
    """index → (term, chain CRC) of every entry some replica called committed"""
    commits: dict[tuple[str, int], int] = field(default_factory=dict)
    led: dict[tuple[str, int], int] = field(default_factory=dict)
    """(node, life) → the term it led at the last look, −1 for none"""
    seen_end: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)

    def look(self, living: Mapping[str, tuple[int, Watched]], on_medium: Mapping[str, Watched]) -> None:
        """`living`: node → (life, replica). `on_medium`: every node whose disk can be asked, crashed ones included."""
        for node, (life, replica) in living.items():
            self._one_leader_per_term(node, life, replica)
            self._log_matching(node, life, replica)
        for node, (life, replica) in living.items():
            self._commit_is_sound(node, life, replica, on_medium)

    def _one_leader_per_term(self, node: str, life: int, replica: Watched) -> None:
        if replica.role is not Role.LEADER:
            return
        known = self.leaders.get(replica.term)
        if known is None:
            self.leaders[replica.term] = (node, life)
            self._leader_completeness(node, replica)
        elif known != (node, life):
            raise Violation("I1", f"term {replica.term} is led by {known[0]} (life {known[1]}) and by {node} (life {life})")

    def _leader_completeness(self, node: str, replica: Watched) -> None:
        """I3, checked when a leader appears: by chaining, its entry at the last committed index stands for all before it."""
        if not self.committed:
            return
        last = len(self.committed) - 1
        if replica.end_index < last or replica.chain_at(last) != self.committed[last][1]:
            raise Violation("I3", f"{node} leads term {replica.term} without the committed entry {last}")

    def _log_matching(self, node: str, life: int, replica: Watched) -> None:
        tip = replica.tip
        before = self.seen_end.get((node, life))
        if before == tip:
            return
        self.seen_end[node, life] = tip
        if before is None or tip[0] <= before[0] or tip[1] != before[1]:
            self._nothing_behind(node, replica)
        index = tip[0]
        while index >= replica.begin_index:
            key, chain = (index, replica.term_at(index)), replica.chain_at(index)
            known = self.history.setdefault(key, chain)
            if known != chain:
                raise Violation("I2", f"entry {index} of term {key[1]} has chain CRC {chain:08x} on {node}, {known:08x} elsewhere")
            index -= 1
            below = index < replica.begin_index
            if before is not None and index <= before[0] and (below or self.history.get((index, replica.term_at(index))) is not None):
                return

    def _nothing_behind(self, node: str, replica: Watched) -> None:
        """The log ends with its last entry (format §2): what was cut off cannot come back."""
        left = replica.bytes_behind_end()
        if left:
            raise Violation("I10", f"{node} has {left} bytes that are not zero behind entry {replica.end_index}")

    def _commit_is_sound(self, node: str, life: int, replica: Watched, on_medium: Mapping[str, Watched]) -> None:
        commit, before = replica.commit_index, self.commits.get((node, life), -1)
        if commit < before:
            raise Violation("I4", f"the commit index of {node} fell from {before} to {commit}")
        if commit > replica.end_index:
            raise Violation("I4", f"{node} calls {commit} committed, but its log ends at {replica.end_index}")
        self.commits[node, life] = commit
        if replica.begin_index > max(commit, len(self.committed) - 1) + 1:
            raise Violation("I5", f"{node} trimmed entries up to {replica.begin_index - 1}, which nobody called committed")
        led_before = self.led.get((node, life)) == replica.term
        self.led[node, life] = replica.term if replica.role is Role.LEADER else -1
        if commit > before and led_before and replica.role is Role.LEADER and replica.term_at(commit) != replica.term:
            raise Violation(
                "I3", f"{node} leads term {replica.term} and commits entry {commit} of term {replica.term_at(commit)} by counting"
            )
        for index in range(max(before + 1, replica.begin_index - 1, 0), commit + 1):
            entry = (replica.term_at(index), replica.chain_at(index))
            if index < len(self.committed):
                if self.committed[index] != entry:
                    raise Violation("I3", f"{node} commits another entry {index} than was committed before")
                continue
            self.committed.append(entry)
        if commit > before and replica.role is Role.LEADER:
            self._on_a_majority(commit, on_medium)

    def _on_a_majority(self, index: int, on_medium: Mapping[str, Watched]) -> None:
        """I4: commit counts only fsynced copies, and we ask the media, not the nodes."""
        holders = [
            name
            for name, replica in on_medium.items()
            # What a node trimmed it had; that nobody needs it any more was committed.
            if index < replica.begin_index
            or (replica.end_index >= index and replica.chain_at(index) == self.committed[index][1] and replica.stored_on_medium(index))
        ]
        if len(holders) <= self.voters // 2:
            raise Violation("I4", f"entry {index} is called committed, but only {holders or 'no node'} would have it after a power cut")
