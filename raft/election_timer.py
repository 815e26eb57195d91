"""How long this replica waits for its leader: the election timer, the last contact, and the slack
for late signs of life.

Only waiting depends on the slack; votes and commits do not.
"""

from __future__ import annotations

from ledgermq.raft.config import Chance, Timing

SLACK_FACTOR = 2
"""How many times the lateness of the latest late sign of life the next one may be late."""
SLACK_FADES = 8
"""Slack shrinks by this fraction (1/8) of the time that passes."""


class ElectionTimer:
    """Invariant: a follower neither campaigns nor votes for another candidate within the shortest
    election timeout after it heard the leader, because slack is never negative. So nobody deposes a
    leader that a majority hears; and a leader of a release before 0.2.0, which a cluster may have
    during an upgrade, answers reads by a lease that rests on it.

    due_ns            when this replica campaigns unless it hears its leader before
    excused           the running timer has already expired once, when this replica was late itself
    last_contact_ns   when the leader that is followed was last heard; on a leader, when it last heard the leader before it
    promised_until_ns until when a leader that was heard before a restart may still count on this
    replica
    held_back         this replica should lead only if no other can: its timeouts are longer by the longest one of the others
    """

    def __init__(self, timing: Timing, chance: Chance, now_ns: int, *, promised: bool) -> None:
        self._timing = timing
        self._chance = chance
        self.last_contact_ns = now_ns
        self._slack_ns, self._slack_at_ns = 0, now_ns
        """The slack when a sign of life last came late, and the time of that."""
        self.promised_until_ns = now_ns + timing.election_min_ns if promised else now_ns
        self.held_back = False
        self.restart(now_ns)

    def restart(self, now_ns: int) -> None:
        """Begin a new random timeout."""
        self.due_ns = now_ns + self._drawn_timeout_ns() + self.slack_ns(now_ns)
        if self.held_back:
            self.due_ns += self._timing.election_max_ns
        self.excused = False

    def hold_back(self, held_back: bool) -> None:
        """Whether the others campaign first, from the next timeout on."""
        self.held_back = held_back

    def postpone(self, by_ns: int) -> None:
        self.due_ns += by_ns

    def _drawn_timeout_ns(self) -> int:
        return round(
            self._chance.uniform(self._timing.election_min_ns, self._timing.election_max_ns)
        )

    def excuse(self, now_ns: int, *, follows: bool) -> bool:
        """Whether the leader's silence proves nothing, because this replica itself was late:
        without processor time it could hear no message, and what the leader sent meanwhile may not
        have been read yet. The replica then waits once more, for as long as it was late but at most
        for a timeout without slack, which is enough time to read. A replica that is always late
        still campaigns the next time."""
        late_ns = now_ns - self.due_ns
        if self.excused or not follows or late_ns < self._timing.heartbeat_ns:
            return False
        self.due_ns = now_ns + min(self._drawn_timeout_ns(), late_ns)
        self.excused = True
        return True

    def demand_punctuality(self) -> None:
        """Until now this replica was not required to tick in time, so its next lateness is no
        excuse."""
        self.excused = True

    def heard(self, now_ns: int) -> None:
        """The leader that is followed was heard: begin a new timeout."""
        self.last_contact_ns = now_ns
        self.restart(now_ns)

    def contact(self, now_ns: int) -> None:
        """The leader was heard, or this replica was the leader until now."""
        self.last_contact_ns = now_ns

    def slack_ns(self, now_ns: int) -> int:
        """How much longer than its timeout a silence may last, because this replica recently heard
        a living leader, or as leader a quorum, late: some node gets too little processor time but
        is alive. Slack shrinks while signs of life are on time."""
        if not self._slack_ns:
            return 0
        return max(0, self._slack_ns - (now_ns - self._slack_at_ns) // SLACK_FADES)

    def lasts_until_ns(self, limit_ns: int) -> int:
        """The first time at which a silence that may last until `limit_ns` without slack has lasted
        too long. Slack shrinks meanwhile."""
        if not self._slack_ns:
            return limit_ns
        # The smallest t with t >= limit_ns + slack_ns(t).
        periods, rest = divmod(limit_ns + self._slack_ns - self._slack_at_ns, SLACK_FADES + 1)
        return max(limit_ns, self._slack_at_ns + periods * SLACK_FADES + rest)

    def note_silence(self, silent_ns: int, now_ns: int) -> None:
        """The silence of a living leader, or of a reachable quorum, has ended. One lost heartbeat
        does not count as late."""
        timing = self._timing
        if silent_ns <= 2 * timing.heartbeat_ns:
            return
        slack_ns = min(SLACK_FACTOR * (silent_ns - 2 * timing.heartbeat_ns), timing.slack_max_ns)
        if slack_ns > self.slack_ns(now_ns):
            self._slack_ns, self._slack_at_ns = slack_ns, now_ns
