"""The age of a follower's state, for readers that a follower serves instead of the leader.

Every message of a leader carries its commit index. Once everything up to that index is applied
here, a reader here sees everything that was acknowledged before the leader sent that message. The
age counts from the arrival of the message, because the clocks of two nodes cannot be compared. A
leader's commit index counts only when an entry of its own term is applied here: before, the leader
may know less than its predecessor did.
"""

from __future__ import annotations

from collections import deque

from ledgermq.raft.messages import LeaderContact

NOTES_MAX = 256
"""How many contacts may wait for their commit index to be applied. Further ones are ignored; the
state here then only seems older."""
NOTE_EVERY_NS = 10_000_000


class Freshness:
    """The freshness of one replica. The owner of the group calls `note`; `age_ns` may be called
    from any thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(arrival time, commit index, term), ascending in all three."""
        self._known_ns: int | None = None

    def note(self, heard: LeaderContact | None, applied_index: int, applied_term: int) -> None:
        """Called after each turn that heard from the leader or applied entries. `heard`: the last
        contact of the leader; None on a leader, and while the replica follows none. Invariant: a
        second call with the same arguments changes nothing."""
        while (
            self._waiting
            and self._waiting[0][1] <= applied_index
            and self._waiting[0][2] <= applied_term
        ):
            self._known_ns = self._waiting.popleft()[0]
        if heard is None or not self._is_newer(heard):
            return
        applied = heard.commit_index <= applied_index and heard.term <= applied_term
        if applied and not self._waiting:
            self._known_ns = heard.at_ns
        else:
            self._waiting.append((heard.at_ns, heard.commit_index, heard.term))

    def _is_newer(self, heard: LeaderContact) -> bool:
        if self._waiting:
            last_ns, _, term = self._waiting[-1]
            if heard.term > term:
                # The successor repeats what is still true of its predecessor's unapplied contacts.
                self._waiting.clear()
                return True
            return heard.at_ns >= last_ns + NOTE_EVERY_NS and len(self._waiting) < NOTES_MAX
        return self._known_ns is None or heard.at_ns > self._known_ns

    def age_ns(self, now_ns: int) -> int | None:
        """The state here contains everything that was acknowledged this long ago, or longer; None:
        unknown."""
        known_ns = self._known_ns
        return None if known_ns is None else max(0, now_ns - known_ns)
