"""When this replica stops waiting for its leader: the election timer, the latest contact, and the slack for late signs of life.

Only waiting depends on the slack; no vote, no lease and no commit does.
"""

from __future__ import annotations

from ledgermq.raft.config import Chance, Timing

SLACK_FACTOR = 2
"""The next sign of life may be overdue by this many times the lateness of the latest late one."""
SLACK_FADES = 8
"""Slack shrinks by this part of the time that passes."""


class ElectionTimer:
    """Invariant: a follower neither campaigns nor votes for another candidate within the shortest election timeout after it heard the
    leader, because slack is never negative. Leases (`reads.lease_ns`) rest on that shortest timeout, whatever slack any replica has.

    due_ns            when this replica campaigns unless it hears its leader before
    excused           the timer that runs now ran out once already, when this replica was late itself
    last_contact_ns   when the leader that is followed was last heard; on a leader, when it last heard the leader before it
    promised_until_ns until when a promise made before a restart may still support a leader's lease
    """

    def __init__(self, timing: Timing, chance: Chance, now_ns: int, *, promised: bool) -> None:
        self._timing = timing
        self._chance = chance
        self.last_contact_ns = now_ns
        self._slack_ns, self._slack_at_ns = 0, now_ns
        """The value of `slack_ns` when a sign of life came late, and when that was."""
        self.excused = False
        self.due_ns = 0
        self.promised_until_ns = now_ns + timing.election_min_ns if promised else now_ns
        self.restart(now_ns)

    def restart(self, now_ns: int) -> None:
        """A new random timeout begins."""
        self.due_ns = now_ns + self._drawn_timeout_ns() + self.slack_ns(now_ns)
        self.excused = False

    def postpone(self, by_ns: int) -> None:
        self.due_ns += by_ns

    def _drawn_timeout_ns(self) -> int:
        return round(self._chance.uniform(self._timing.election_min_ns, self._timing.election_max_ns))

    def excuse(self, now_ns: int, *, follows: bool) -> bool:
        """Whether a silence of the leader proves nothing, because this replica itself was late: while it got no processor time it could
        not hear anybody, and what the leader sent meanwhile may not have been read yet. It waits once more for as long as it was late, for
        a timeout without slack at most, which is time enough to read; a replica that is always late still campaigns the next time."""
        late_ns = now_ns - self.due_ns
        if self.excused or not follows or late_ns < self._timing.heartbeat_ns:
            return False
        self.due_ns = now_ns + min(self._drawn_timeout_ns(), late_ns)
        self.excused = True
        return True

    def demand_punctuality(self) -> None:
        """Until now this replica did not have to tick in time: its next lateness is no excuse."""
        self.excused = True

    def contact(self, now_ns: int) -> None:
        """The leader was heard, or this replica was the leader until now."""
        self.last_contact_ns = now_ns

    def slack_ns(self, now_ns: int) -> int:
        """By how much a silence may last longer than its timeout, because this replica has lately heard a living leader, or as leader a
        quorum, late: some node gets too little processor time, and is not dead. It fades while signs of life are on time."""
        return max(0, self._slack_ns - (now_ns - self._slack_at_ns) // SLACK_FADES)

    def note_silence(self, silent_ns: int, now_ns: int) -> None:
        """A silence of a leader that lives, or of a quorum that is there, ended now. One lost heartbeat is not late."""
        timing = self._timing
        slack_ns = min(SLACK_FACTOR * (silent_ns - 2 * timing.heartbeat_ns), timing.slack_max_ns)
        if slack_ns > self.slack_ns(now_ns):
            self._slack_ns, self._slack_at_ns = slack_ns, now_ns
