"""The invariants, checked from outside after every step: what no interleaving may show
(docs/architecture.md, Invariants, I1–I5).

Checkers know about all nodes at once, which no node does. A checker reads replicas and media and
remembers; it never changes them. `Violation` names the invariant; the simulator turns it into a
failed seed. `truth.py` compares applied state, `histories.py` what clients saw.

Only a node that acted is checked, and of its log only what changed: because of the chain, equal
CRCs at one entry stand for equal logs up to there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.proto.types import Range, Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.quorum import majority
from ledgermq.sim.checks.ports import Appointments, Committed, OnMedium, Watched

LOOKED_BACK = 64
"""After a start or a change of leaders, this many entries before the end are compared."""


class Violation(AssertionError):
    """An invariant was violated: `invariant` is its id."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass(slots=True)
class Seen:
    """The state of a process at the last check."""

    life: int
    tip: tuple[int, int, int] | None = None
    commit: int = -1
    led: int = -1
    """The term it led, −1 for none."""
    begin: int = 0


@dataclass
class Checkers:
    """The memory of one run. `look` is called after every step with the replica that acted in
    it."""

    committed: Committed
    media: Mapping[str, OnMedium]
    appointments: Appointments
    minimum: int = 1
    """The minimum number of copies in an HA group."""
    leaders: dict[int, tuple[str, int]] = field(default_factory=dict)
    """term → (node, life) of its leader"""
    history: dict[int, dict[int, int]] = field(default_factory=dict)
    """index → term → chain CRC, over all replicas and all time, for every end that a log once
    had"""
    peaks: dict[tuple[str, int], int] = field(default_factory=dict)
    """(node, term) → the highest index at which this node ever had an entry of this term"""
    seen: dict[str, Seen] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    """node → where its log began at the last check: it had the entries that it trimmed."""
    promises: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """node → the last term and vote in its directory"""
    durable: tuple[int, int] = (-1, 0)
    """(index, chain CRC) of the highest entry that a client was told is durable"""
    on_media: int = 0
    """The media were checked up to here."""
    elections: int = 0
    generation: int = 0
    """Appointments of an earlier generation elect nobody any more: all voters know that the group
    has had another rule since."""

    def look(self, node: str, life: int, replica: Watched) -> None:
        """Check a node; `life` is the number of its process. Raises Violation."""
        seen = self.seen.get(node)
        if seen is None or seen.life != life:
            seen = self.seen[node] = Seen(life)
        promise = replica.promise
        if promise != self.promises.get(node):
            self._promise_is_kept(node, promise)
        leads = replica.role is Role.LEADER
        if leads and seen.led != replica.term:
            self._one_leader_per_term(node, life, replica)
        tip = replica.tip
        if tip != seen.tip:
            self._log_matching(node, replica, seen.tip, tip)
            seen.tip = tip
        self._commit_is_sound(node, replica, seen, leads)
        if leads:
            self._one_change_at_a_time(node, replica)

    def _promise_is_kept(self, node: str, promise: tuple[int, str | None]) -> None:
        """I1 depends on this: the term of a directory never decreases, and within a term its vote
        never changes."""
        term, vote = self.promises.get(node, (-1, None))
        if promise[0] < term or (promise[0] == term and vote not in (None, promise[1])):
            raise Violation(
                "I1",
                f"{node} was in term {term} and voted for {vote}; now it is in term {promise[0]}"
                f" with vote {promise[1]}",
            )
        self.promises[node] = promise

    def _one_change_at_a_time(self, node: str, replica: Watched) -> None:
        """I4 depends on this (Raft dissertation §4.1, and its correction): a leader changes the
        members only when an entry of its own term and the previous change are committed. Only what
        changes no quorum of an HA group may come first."""
        changes = replica.open_changes
        if (
            not changes
            or replica.term_at(changes[-1][0]) != replica.term
            or _comes_first(*changes[-1][1:])
        ):
            return
        if len(changes) > 1:
            raise Violation(
                "I4",
                f"{node} changed the members with entry {changes[-1][0]} while entry"
                f" {changes[-2][0]} was not committed",
            )
        if replica.term_at(replica.commit_index) != replica.term:
            raise Violation(
                "I4",
                f"{node} changed the members before it had committed an entry of its term"
                f" {replica.term}",
            )

    def _one_leader_per_term(self, node: str, life: int, replica: Watched) -> None:
        known = self.leaders.get(replica.term)
        if known is None:
            self.leaders[replica.term] = (node, life)
            self.elections += 1
            self._leader_completeness(node, replica)
        elif known != (node, life):
            raise Violation(
                "I1",
                f"term {replica.term} is led by {known[0]} (life {known[1]}) and by {node} (life"
                f" {life})",
            )

    def _leader_completeness(self, node: str, replica: Watched) -> None:
        """I3, checked when a leader appears: because of the chain, its entry at the last committed
        index stands for all before it."""
        last = len(self.committed.chains) - 1
        if last >= 0 and not _has(replica, last, self.committed.chains[last]):
            raise Violation(
                "I3", f"{node} leads term {replica.term} without the committed entry {last}"
            )
        self.still_durable(node, replica)

    def still_durable(self, node: str, replica: Watched) -> None:
        """I5: entries acknowledged as durable are in the log of every later leader."""
        index, chain = self.durable
        if not _has(replica, index, chain):
            raise Violation("ack", f"entry {index} was acknowledged as durable, and {node} lost it")

    def promised(self, node: str, index: int, term: int, durability: str, replica: Watched) -> None:
        """This node tells a client that the log up to here is safe, in the sense of the durability
        class."""
        if durability == "master":
            self._promised_alone(node, index, term, replica)
            return
        if durability != "durable":
            holders = {node, *self.had_by(index, term)}
            if not self._are_enough(holders, replica.counted, term):
                raise Violation(
                    "ack",
                    f"entry {index} is acknowledged from memory, but only {sorted(holders)} ever"
                    " had it",
                )
            return
        chains, terms = self.committed.chains, self.committed.terms
        if index >= len(chains) or terms[index] != term:
            raise Violation(
                "ack",
                f"{node} acknowledges entry {index} of term {term} as durable, and no node"
                " applied it",
            )
        if index > self.durable[0]:
            self.durable = index, chains[index]

    def _promised_alone(self, node: str, index: int, term: int, replica: Watched) -> None:
        """Acknowledged by a master that the whole in-sync set has accepted, and durable on its own
        medium. A master may learn of its successor in the turn that acknowledges: what it confirmed
        before, it confirmed in the epoch that it led."""
        led = self.seen[node].led if node in self.seen else -1
        epoch = replica.term if replica.role is Role.LEADER else max(term, led)
        if replica.term_at(replica.commit_index) < epoch:
            raise Violation(
                "ack",
                f"{node} acknowledges entry {index}, and nothing of its epoch {epoch} is"
                " confirmed yet",
            )
        entry = replica.entry(index)
        if not self.media[node].holds(entry.pos, bytes(entry.data)):
            raise Violation(
                "ack", f"{node} acknowledges entry {index} alone, and would lose it by a power cut"
            )

    def _log_matching(
        self,
        node: str,
        replica: Watched,
        before: tuple[int, int, int] | None,
        tip: tuple[int, int, int],
    ) -> None:
        """I2, checked wherever any log ever ended: batches of other logs meet this one there."""
        end, term, chain = tip
        if before is None or end <= before[0] or term != before[1]:
            self._nothing_behind(node, replica)
        begin = replica.begin_index
        # Entries found at a start were checked when they were written; entries replaced by another
        # leader are near the end.
        low = min(before[0], end) if before is not None and term == before[1] else end - LOOKED_BACK
        for index in range(max(low, begin), end):
            known = self.history.get(index)
            if known is not None:
                self._same(node, replica.term_at(index), index, known, replica.chain_at(index))
        if end >= begin:
            self._same(node, term, end, self.history.setdefault(end, {}), chain)
        peak = (node, term)
        if self.peaks.get(peak, -1) < end:
            self.peaks[peak] = end

    def _same(self, node: str, term: int, index: int, known: dict[int, int], chain: int) -> None:
        if known.setdefault(term, chain) != chain:
            raise Violation(
                "I2",
                f"entry {index} of term {term} has chain CRC {chain:08x} on {node},"
                f" {known[term]:08x} elsewhere",
            )

    def _nothing_behind(self, node: str, replica: Watched) -> None:
        """The log ends with its last entry (format §2): truncated entries cannot reappear."""
        left = replica.bytes_behind_end()
        if left:
            raise Violation(
                "I10", f"{node} has {left} bytes that are not zero behind entry {replica.end_index}"
            )

    def _commit_is_sound(self, node: str, replica: Watched, seen: Seen, leads: bool) -> None:
        commit, before, led_before = replica.commit_index, seen.commit, seen.led
        seen.led = replica.term if leads else -1
        begin = replica.begin_index
        if begin != seen.begin:
            self.begins[node] = seen.begin = begin
            if begin > max(commit, len(self.committed.chains) - 1) + 1:
                raise Violation(
                    "I5",
                    f"{node} trimmed entries up to {begin - 1}, which no node called committed",
                )
        if commit == before:
            return
        if commit < before:
            raise Violation("I4", f"the commit index of {node} fell from {before} to {commit}")
        if commit > replica.end_index:
            raise Violation(
                "I4", f"{node} calls {commit} committed, but its log ends at {replica.end_index}"
            )
        seen.commit = commit
        self._note_rule(replica.counted[0])
        if leads and led_before == replica.term and replica.term_at(commit) != replica.term:
            raise Violation(
                "I3",
                f"{node} leads term {replica.term} and commits entry {commit} of term"
                f" {replica.term_at(commit)} by counting",
            )
        known = min(commit, len(self.committed.chains) - 1)
        if known >= begin and replica.chain_at(known) != self.committed.chains[known]:
            raise Violation("I3", f"{node} commits another entry {known} than was committed before")
        if leads or replica.counted[0].rule is Rule.IN_SYNC:
            self._on_enough_media(commit, replica)

    def _note_rule(self, members: Members) -> None:
        """Both rules are reached by way of the rule ALL only, whose entry every voter of that time
        has on stable storage."""
        known = self.appointments.appointment
        if members.rule is Rule.IN_SYNC:
            self.generation = max(self.generation, members.since)
        elif members.rule is Rule.MAJORITY and known is not None:
            self.generation = max(self.generation, known.generation + 1)

    def _on_enough_media(self, commit: int, replica: Watched) -> None:
        """I4: only fsynced copies of the nodes in the rule count for commit, and the media are
        checked, not the nodes. In an HA group a slave is checked as well: a master that has just
        ended may have been the only one that knew, and no other node may show more than it knew."""
        last = min(commit, len(self.committed.chains) - 1)
        if last <= self.on_media:
            return
        holders = self._holders(self.on_media + 1, last)
        if not self._are_enough(holders, replica.counted, replica.term):
            raise Violation(
                "I4",
                f"entry {last} is called committed, but only {holders or 'no node'} would have it"
                " after a power cut",
            )
        self.on_media = last
        if replica.counted[0].rule is Rule.IN_SYNC:
            self._in_sync_hold(holders, last)

    def _holders(self, first: int, last: int) -> list[str]:
        """The nodes that would have these entries after a power cut."""
        pieces = self.committed.pieces(first, last)
        return [
            name
            for name, medium in self.media.items()
            if _holds(medium, pieces, self.begins.get(name, 0), last)
        ]

    def _are_enough(self, holders: Iterable[str], counted: tuple[Members, ...], term: int) -> bool:
        """Whether, by any of these sets of members, entries held by these nodes are committed in
        this term."""
        held = set(holders)
        return any(self._suffice(held, members, term) for members in counted)

    def _suffice(self, held: set[str], members: Members, term: int) -> bool:
        """By the rule of these members: a majority of the voters, or all of them, or the in-sync
        set that the metadata quorum has for this epoch."""
        if members.rule is Rule.MAJORITY:
            return len(held.intersection(members.voters)) >= majority(len(members.voters))
        known = self.appointments.of_epoch(term) if members.rule is Rule.IN_SYNC else None
        if known is None:
            return held.issuperset(members.voters)
        copies = held.intersection(members.nodes) - members.observers
        return held.issuperset(known.in_sync) and len(copies) >= (members.minimum or self.minimum)

    def _in_sync_hold(self, holders: Collection[str], last: int) -> None:
        """Any member of the current in-sync set may be elected, so each must have everything that
        was ever committed."""
        known = self.appointments.appointment
        lacking = (
            set()
            if known is None or known.generation < self.generation
            else set(known.in_sync) - set(holders)
        )
        if lacking:
            names = ", ".join(sorted(lacking))
            raise Violation(
                "I4",
                f"{names} could be elected, and would lack the committed entry {last} after a"
                " power cut",
            )

    def appointed(self) -> None:
        """The metadata quorum decided for an HA group: every member of the new in-sync set has all
        committed entries."""
        last = len(self.committed.chains) - 1
        if last >= 0:
            self._in_sync_hold(self._holders(max(0, last - LOOKED_BACK), last), last)

    def dies(self, node: str, replica: Watched) -> None:
        """Called before a process ends: within one step a node may accept entries, acknowledge and
        end, or trim."""
        end, term, _ = replica.tip
        self.peaks[node, term] = max(end, self.peaks.get((node, term), -1))
        self.begins[node] = replica.begin_index

    def lost(self, node: str) -> None:
        """The node lost its directory, so it trimmed nothing of the next one."""
        self.begins.pop(node, None)
        self.promises.pop(node, None)

    def had_by(self, index: int, term: int) -> list[str]:
        """The nodes that were ever seen with this entry: two logs that hold an entry of one term
        hold the same."""
        return [node for node in self.media if self.peaks.get((node, term), -1) >= index]


def _has(replica: Watched, index: int, chain: int) -> bool:
    if index < replica.begin_index:
        # Trimmed: a record says so, and a trim removes only committed entries.
        return True
    return replica.end_index >= index and replica.chain_at(index) == chain


def _holds(medium: OnMedium, pieces: Iterable[Range], begin_index: int, last_index: int) -> bool:
    """A node had the entries that it trimmed; that they are no longer needed was committed."""
    return all(
        piece.first_index < begin_index or medium.holds(piece.pos, bytes(piece.data))
        for piece in pieces
        if piece.last_index <= last_index
    )


def _comes_first(before: Members, after: Members) -> bool:
    """Whether a change takes back a directory of a member of an HA group, or names another
    minimum."""
    same = (
        after.rule is before.rule is Rule.IN_SYNC
        and set(after.nodes) == set(before.nodes)
        and after.since == before.since
    )
    return same and (after.incarnations != before.incarnations or after.minimum != before.minimum)
