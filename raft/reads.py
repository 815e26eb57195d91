"""Linearizable reads without an entry (ReadIndex, Raft dissertation §6.4): which reads wait for
which round.

A read may be answered from the state at a commit index that was current after the read was
requested, if no other leader could have committed anything by then. A *round* proves that: messages
that the leader sent after the request, and that a quorum answered in the leader's term. Whoever
answers has not voted in a later term by then, so no later leader was elected before the round
began. The proof needs no clock. A lease would need one, and the clock of a machine that was
suspended stands still (docs/divergence.md).

Every message has a number, which grows over all peers within a term, and every answer names the
highest number that its sender has seen. So an answer that was sent before the round began names a
smaller number, and confirms nothing; an answer to any later message confirms the round. This module
keeps which read waits for which round; it decides nothing about roles.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Batch:
    """Reads that are decided together once a quorum answered a message of round `round` or
    later."""

    round: int
    index: int
    tokens: list[int]


@dataclass(slots=True)
class Reads:
    """The reads of a leader: those requested since the last round began, and those whose round is
    under way. There is at most one round at a time, so that however many reads there are, rounds
    never exceed what the links can answer."""

    asked: list[int] = field(default_factory=list)
    underway: Batch | None = None
    done: list[tuple[int, int | None]] = field(default_factory=list)

    def ask(self, token: int, *, leads: bool) -> None:
        """A read is requested; a replica that does not lead refuses it at once."""
        if leads:
            self.asked.append(token)
        else:
            self.done.append((token, None))

    def begin(self, commit_index: int, round_: int) -> bool:
        """Let all requested reads wait for round `round_`, the next one. False if there are none,
        or a round is under way."""
        if self.underway is not None or not self.asked:
            return False
        self.underway, self.asked = Batch(round_, commit_index, self.asked), []
        return True

    def answered(self, round_: int) -> None:
        """A quorum answered this round or a later one."""
        if self.underway is not None and round_ >= self.underway.round:
            self.done += [(token, self.underway.index) for token in self.underway.tokens]
            self.underway = None

    def lose(self) -> None:
        """Leadership is lost: no requested read can be answered any more."""
        batch, self.underway = self.underway, None
        self.done += [(token, None) for token in (*(batch.tokens if batch else ()), *self.asked)]
        self.asked = []

    def take(self) -> tuple[tuple[int, int | None], ...]:
        done, self.done = tuple(self.done), []
        return done
