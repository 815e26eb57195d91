"""What a leader knows of one peer, and how much may be under way to it. Arithmetic over indexes and
bytes; nothing is sent here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from ledgermq.proto.token_bucket import TokenBucket
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent
from ledgermq.raft.window import Window

RETIRED_BOOTS = 8


class Stage(Enum):
    """PROBING: the last common entry is unknown; before the first rejection one optimistic range
    may be under way. FLOWING: it is known, and ranges are pipelined."""

    PROBING = "probing"
    FLOWING = "flowing"


@dataclass(slots=True)
class Underway:
    """A range that was pushed and not yet confirmed."""

    last_index: int
    size: int
    round: int
    ahead: int
    """Bytes under way when it was pushed, its own included."""
    pushed_ns: int


class Peer:
    """Progress of one peer within one term of its leader.

    received        last index the peer verified against this leader; only rises, unless the peer is found to have lost it
    durable         last of those on its stable storage; ≤ received, same rule; the peer's contribution to the commit quorum
    next_index      first index not yet pushed; > received; when flowing, the index after the last one under way or received
    underway_bytes  Σ size of `underway`; the window bounds what may be added
    window          the most bytes under way, from what the link was seen to carry
    pace            bytes per nanosecond that may be pushed to it while it is an observer; None: no limit
    rewound_round   messages up to this round were sent before the last rewind; losses that they report are already known
    suspect         the last range was lost or refused: one range at a time until `received` rises again
    sent_commit     the commit index it was sent, as far as it can follow it
    sent_urgent     up to here a message asked it to sync at once; a hint for promptness, which every heartbeat repeats
    probe_due       an answer changed what to ask about: ask at once instead of with the next heartbeat
    provisional     it said that its copies, answers and votes do not count
    answered_round  the last round it is known to have received
    named_at        the entry by which this leader gave it another directory: a replica without that entry may be its former life
    removed_by      the entry that removed it from the group; that entry is still sent to it
    leaving         it said that it is about to stop; it takes over no leadership
    watched         it said that a reader waits there for committed entries
    asks            it asked for the entries after `received`, and nothing was sent since; matters only if slaves pull
    pulls           it asks for what it lacks, as far as is known; a replica that joins, or has other settings, never asks
    needs_snapshot  it lacks entries that this leader's log no longer has: it gets heartbeats, but no pushes
    """

    def __init__(
        self,
        node: str,
        next_index: int,
        now_ns: int,
        window: Window,
        pace: TokenBucket | None = None,
    ) -> None:
        self.node = node
        self.window = window
        self.pace = pace
        self.stage = Stage.PROBING
        self.received = -1
        self.durable = -1
        self.next_index = next_index
        self.underway: deque[Underway] = deque()
        self.underway_bytes = 0
        self.rewound_round = 0
        self.suspect = False
        self.probe_due = True
        self.needs_snapshot = False
        self.asks = False
        self.pulls = True
        self.leaving = False
        self.watched = False
        self.sent_commit = -1
        self.sent_urgent = -1
        self.provisional = False
        self.answered_round = 0
        self.named_at = -1
        self.removed_by: int | None = None
        self.forget_at_ns = 0
        self.contact_ns = now_ns
        self._progress_ns = now_ns
        self.boot_id: int | None = None
        self._retired_boots: dict[int, int] = {}
        """Boot ids that were replaced by another one, with the last round that had been sent by
        then."""

    def anchor(self) -> int:
        """The entry that a message without a range asks about: the last one known to be common, or
        while probing the one in question."""
        return self.received if self.stage is Stage.FLOWING else self.next_index - 1

    def lacks_urgency(self, urgent_index: int) -> bool:
        """Whether it received entries that must become durable at once, and no message told it
        so."""
        return self.stage is Stage.FLOWING and max(self.sent_urgent, self.durable) < min(
            urgent_index, self.received
        )

    def lacks_news(self, commit_index: int) -> bool:
        """Whether a reader waits there for commits that it was not told of, and nothing is under
        way that could tell it."""
        if not self.watched or self.underway or self.stage is not Stage.FLOWING:
            return False
        return self.sent_commit < min(commit_index, self.received)

    def room(self, window_ranges: int) -> tuple[int, int]:
        """(bytes, ranges) that may be pushed now; (0, 0) for none. The last range may exceed the
        bytes, so that any entry fits."""
        flowing = 1 if self.suspect else window_ranges
        limit = flowing if self.stage is Stage.FLOWING else int(self.rewound_round == 0)
        size, ranges = self.window.size - self.underway_bytes, limit - len(self.underway)
        return (size, ranges) if size > 0 and ranges > 0 else (0, 0)

    def pushed(self, extent: Extent, round_: int, now_ns: int) -> None:
        assert extent.first_index == self.next_index, (extent, self)
        self.asks = False
        self.next_index = extent.last_index + 1
        self.underway_bytes += extent.size
        self.underway.append(
            Underway(
                last_index=extent.last_index,
                size=extent.size,
                round=round_,
                ahead=self.underway_bytes,
                pushed_ns=now_ns,
            )
        )

    def admit(self, reply: AppendReply, round_: int) -> bool:
        """Whether the reply speaks for the peer's present life. A new boot id makes the leader
        forget what the old life confirmed. A retired boot id that answers a round sent after its
        retirement is alive: late messages of an earlier life had retired it."""
        if reply.round <= self._retired_boots.get(reply.boot_id, -1):
            return False
        if self.boot_id is not None and reply.boot_id != self.boot_id:
            self._retired_boots.pop(self.boot_id, None)
            self._retired_boots[self.boot_id] = round_
            if len(self._retired_boots) > RETIRED_BOOTS:
                del self._retired_boots[next(iter(self._retired_boots))]
            self._forget(round_)
        self.boot_id = reply.boot_id
        return True

    def asked(self, message: Append, last_index: int) -> None:
        """This message, which ends with `last_index`, is about to be sent to it."""
        self.probe_due = False
        self.sent_commit = max(self.sent_commit, min(message.commit_index, last_index))
        if not message.lazy:
            self.sent_urgent = max(self.sent_urgent, last_index)

    def on_reply(self, reply: AppendReply, now_ns: int, silence_ns: int) -> None:
        """It answered. After a silence longer than `silence_ns` its progress is measured from now
        on."""
        if now_ns - self.contact_ns >= silence_ns:
            self._progress_ns = now_ns
        self.contact_ns = now_ns
        self.leaving, self.watched = reply.leaving, reply.watched
        self.provisional = reply.provisional or reply.received < self.named_at
        self.answered_round = max(self.answered_round, reply.round)

    def rename(self, index: int, round_: int) -> None:
        """From this entry on it is known by another directory; what the former one confirmed no
        longer counts."""
        self.named_at, self.provisional = index, True
        self._forget(round_)

    def remove(self, index: int) -> None:
        """The entry `index` removed it from the group, unless an earlier one did."""
        self.removed_by = self.removed_by or index

    def readmit(self) -> None:
        """It is a member: an earlier removal no longer counts, nor does the time since then."""
        self.removed_by, self.forget_at_ns = None, 0

    def may_be_forgotten(self, commit_index: int, now_ns: int, after_ns: int) -> bool:
        """Whether its removal is committed, and it had `after_ns` to learn of that, counted from
        the first call."""
        if self.removed_by is None or self.removed_by > commit_index:
            return False
        self.forget_at_ns = self.forget_at_ns or now_ns + after_ns
        return now_ns >= self.forget_at_ns

    def stalled(self, end_index: int, now_ns: int, stall_ns: int, silence_ns: int) -> bool:
        """Whether it answered for `stall_ns`, without a silence as long as `silence_ns`, and
        received nothing of what it lacks."""
        if self.received >= end_index or self.needs_snapshot:
            self._progress_ns = now_ns
        return now_ns - self._progress_ns >= stall_ns and now_ns - self.contact_ns < silence_ns

    def restart(self, round_: int, now_ns: int) -> None:
        """Compare logs with it as if it had never answered."""
        self._progress_ns = now_ns
        self._forget(round_)

    def accepted(self, reply: AppendReply, end_index: int, round_: int) -> None:
        """The peer agrees up to `reply.received`. A range that was pushed before the answered round
        and is not covered was lost."""
        if min(reply.received, end_index) > self.received:
            self.received = min(reply.received, end_index)
            self.suspect = False
            self._progress_ns = self.contact_ns
        self.durable = max(self.durable, min(reply.durable, self.received))
        self.asks = self.pulls = reply.fetch
        arrived = None
        while self.underway and self.underway[0].last_index <= self.received:
            arrived = self.underway.popleft()
            self.underway_bytes -= arrived.size
        if arrived is not None:
            self.window.confirmed(arrived.ahead, self.contact_ns - arrived.pushed_ns)
        self.stage = Stage.FLOWING
        self.probe_due = self.needs_snapshot = False
        if not self.underway:
            self.next_index = self.received + 1
        elif self.underway[0].round < reply.round:
            self._rewind(self.received + 1, round_)

    def rejected(self, reply: AppendReply, log: LogView, round_: int) -> None:
        """The peer lacks the entry before the range. While probing, step back by whole terms; when
        flowing, push the lost range again."""
        if reply.round <= self.rewound_round:
            return
        if self.stage is Stage.PROBING:
            if self.next_index <= log.begin_index and log.begin_index > 0:
                self._leave_behind(round_)
                return
            common = log.last_at_most(min(reply.received, self.next_index - 2), reply.hint_term)
            self._rewind(max(common, self.received) + 1, round_)
            self.probe_due = True
        elif self.suspect:
            # Everything sent since the last rewind builds on what the peer had confirmed, and it
            # refuses even that.
            self._forget(round_)
        else:
            self._rewind(self.received + 1, round_)

    def keep_from(self, begin_index: int, round_: int) -> None:
        """The leader's log now begins with `begin_index`: nothing before it can be asked about or
        pushed."""
        if self.next_index < begin_index or (
            self.stage is Stage.FLOWING and self.received < begin_index - 1
        ):
            self.stage = Stage.PROBING
            self._rewind(max(self.next_index, begin_index), round_)
            self.probe_due = True

    def _leave_behind(self, round_: int) -> None:
        """It lacks even the entry before the log's begin: the log alone cannot help this peer."""
        self._rewind(self.next_index, round_)
        self.needs_snapshot = True
        self.probe_due = False

    def _forget(self, round_: int) -> None:
        """Start over: nothing that the peer confirmed counts any more."""
        self.received = self.durable = -1
        self.stage = Stage.PROBING
        self.probe_due = True
        self.needs_snapshot = False
        self._rewind(self.next_index, round_)

    def _rewind(self, next_index: int, round_: int) -> None:
        self.next_index = next_index
        self.underway.clear()
        self.underway_bytes = 0
        self.rewound_round = round_
        self.suspect = True

    def check(self, end_index: int) -> None:
        """The invariants in the class docstring."""
        assert -1 <= self.durable <= self.received < self.next_index <= end_index + 1, self
        last = self.underway[-1].last_index if self.underway else self.received
        assert self.stage is Stage.PROBING or self.next_index == last + 1, self
        assert self.underway_bytes == sum(u.size for u in self.underway), self
        assert all(self.received < u.last_index < self.next_index for u in self.underway), self

    def __repr__(self) -> str:
        return (
            f"{self.node}:{self.stage.value} received={self.received} durable={self.durable}"
            f" next={self.next_index} underway={len(self.underway)}/{self.underway_bytes}B"
        )
