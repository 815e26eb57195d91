"""Linearizable reads without an entry (Raft dissertation §6.4): which reads wait for which round, and how long a lease lasts.

A read may be answered from the state at a commit index that was current after the read was requested, if no other leader could have
committed anything by then. ReadIndex proves that with a round of messages that began after the request and that a majority answered; a
lease proves it with the promise of a majority to elect no other leader for a while. This module keeps the state of both; it decides nothing
about roles.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DRIFT_DIVISOR = 10
"""The clocks of two nodes may drift apart by a tenth (1/10) during one lease."""


def lease_ns(election_min_ns: int) -> int:
    """How long, after a round that a majority answered was sent, no other leader can be elected. Every voter that answered refuses all
    candidates for the shortest election timeout after it heard the round, which was later than its sending. A voter whose election timeout
    was lengthened by late signs of life (`ElectionTimer.slack_ns`) promises no more than any other, so a lease never grows with slack."""
    return election_min_ns - election_min_ns // DRIFT_DIVISOR


@dataclass(slots=True)
class Batch:
    """Reads that are decided together once a majority answered a message of round `round` or later."""

    round: int
    index: int
    tokens: list[int]


@dataclass(slots=True)
class Reads:
    """ReadIndex requests of a leader (§6.4): those requested since the last round began, and those whose round is under way. There is one
    round at a time, so that rounds never exceed what the links can answer."""

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
        """Let all requested reads wait for round `round_`, the next one. False if there are none, or a round is under way."""
        if self.underway is not None or not self.asked:
            return False
        self.underway, self.asked = Batch(round_, commit_index, self.asked), []
        return True

    def answered(self, round_: int) -> None:
        """A majority answered this round or a later one."""
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
