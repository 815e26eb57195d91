"""How old what a replica knows may be, on a replica that does not lead: for readers who are served here instead of by the leader.

A leader says with every message how far it has committed. Once everything up to there is applied here, whoever reads here misses nothing
that was acknowledged before that message was sent; its age is counted from when it was heard, for clocks of two nodes cannot be compared.
Words of a leader count only when an entry of its own term is applied: before that it may know less than its predecessor did.
"""

from __future__ import annotations

from collections import deque

from ledgermq.raft.messages import LeaderContact

NOTES_MAX = 256
"""Words of the leader that wait for what they speak of to be applied. Further ones are not noted: then the state here only seems older."""
NOTE_EVERY_NS = 10_000_000


class Freshness:
    """Of one replica. The owner of the group calls `note`; `age_ns` may be asked from any thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(heard at, commit index, term), ascending in all three."""
        self._known_ns: int | None = None

    def note(self, heard: LeaderContact | None, applied_index: int, applied_term: int) -> None:
        """After a turn. `heard`: what the leader said last; None on a leader, and while nobody is followed."""
        if heard is not None and self._is_newer(heard):
            self._waiting.append((heard.at_ns, heard.commit_index, heard.term))
        while self._waiting and self._waiting[0][1] <= applied_index and self._waiting[0][2] <= applied_term:
            self._known_ns = self._waiting.popleft()[0]

    def _is_newer(self, heard: LeaderContact) -> bool:
        if self._waiting:
            last_ns, _, term = self._waiting[-1]
            if heard.term > term:
                # What the former leader said last and is not applied yet is said again by its successor, if it is true.
                self._waiting.clear()
                return True
            return heard.at_ns >= last_ns + NOTE_EVERY_NS and len(self._waiting) < NOTES_MAX
        return self._known_ns is None or heard.at_ns > self._known_ns

    def age_ns(self, now_ns: int) -> int | None:
        """So long ago, at most, the state here was everything that had been acknowledged; None: that is not known."""
        known_ns = self._known_ns
        return None if known_ns is None else max(0, now_ns - known_ns)
