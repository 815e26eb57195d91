"""The indexes of this replica's log: its end, what is durable, verified and committed, and what
must become durable at once.

`LogState` is the only writer of these indexes. It knows no role, no election and no peer: the role
objects tell it what happened. `LogView` knows the terms of the entries; only `LogState` changes it.
"""

from __future__ import annotations

from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import NO_INDEX, Extent


class LogState:
    """For every index, −1 means none.

    view.end_index    last entry of the log; `append_own` moves it on a leader, `merge` and `cut_from` on a follower
    durable_index     ≤ end_index; `synced` moves it, truncation lowers it
    verified_index    ≤ end_index; on a follower the last entry known to equal the current leader's; only rises while it follows that one
    commit_index      ≤ end_index; never falls; counts durable copies only
    urgent_index      ≤ end_index; everything up to it must become durable without delay, here and, on a leader, on every peer
    early_index       ≤ end_index; on a leader the last entry whose arrival the peers should report at once
    held_index        on a leader ≤ end_index: the last entry of its term that a quorum holds, durable or not
    """

    def __init__(self, view: LogView, commit_index: int) -> None:
        """`view` holds only durable entries. `commit_index` is known to be committed *and* durable
        here."""
        self.view = view
        self.durable_index = view.end_index
        self.verified_index = NO_INDEX
        # Only committed entries are ever trimmed.
        self.commit_index = max(commit_index, view.begin_index - 1)
        self.urgent_index = NO_INDEX
        self.early_index = NO_INDEX
        self.held_index = NO_INDEX
        self._cut_since_sync: int | None = None
        self.truncating_from: int | None = None
        """What `take_writes` will return; the same for the next one."""
        self.appending: tuple[int, int] | None = None
        self.unreported: tuple[int, int] | None = None
        """The range of the last `take_writes`, until its write is reported."""

    def check(self) -> None:
        """Invariant I4 and the relations in the class docstring."""
        self.view.check()
        end = self.view.end_index
        assert -1 <= self.durable_index <= end, self
        assert -1 <= self.verified_index <= end, self
        assert -1 <= self.commit_index <= end, self
        assert -1 <= self.urgent_index <= end and self.early_index <= end, self

    def __repr__(self) -> str:
        return (
            f"end={self.view.end_index} durable={self.durable_index} verified={self.verified_index}"
            f" commit={self.commit_index}"
        )

    # Appending and truncating

    def append_own(self, extent: Extent, *, urgent: bool) -> None:
        """The driver of a leader appended this range."""
        self.view.append(extent.first_index, extent.last_index, extent.term)
        if urgent:
            self.urgent_index = extent.last_index

    def reply_early(self, index: int) -> None:
        """Leader only: a caller waits for the arrival of `index` at the peers."""
        self.early_index = index

    def merge(self, first_index: int, last_index: int, term: int) -> None:
        """The driver is about to append this range of the leader that is followed."""
        self.view.append(first_index, last_index, term)
        self.appending = (first_index, last_index)

    def take_writes(self) -> tuple[int | None, tuple[int, int] | None]:
        """(first index to truncate, range to append) for the driver."""
        truncate_from, append = self.truncating_from, self.appending
        self.unreported = append
        self.truncating_from = self.appending = None
        return truncate_from, append

    def append_written(self) -> None:
        """The range of the last `take_writes` is in the log; only from now on it counts as
        received."""
        assert self.unreported is not None
        self.verified_index = max(self.verified_index, self.unreported[1])
        self.unreported = None

    def append_refused(self) -> int:
        """The range of the last `take_writes` could not be written: the log still ends before it.
        Returns the first missing index."""
        assert self.unreported is not None
        first_index = self.unreported[0]
        self.view.truncate_from(first_index)
        self.urgent_index = min(self.urgent_index, self.view.end_index)
        self.unreported = None
        return first_index

    def cut_from(self, index: int) -> None:
        """The entries from `index` on contradict the leader's log: the driver will truncate
        them."""
        self.truncating_from = index
        self.view.truncate_from(index)
        self.durable_index = min(self.durable_index, index - 1)
        self.urgent_index, self.early_index = (
            min(self.urgent_index, index - 1),
            min(self.early_index, index - 1),
        )
        self._cut_since_sync = (
            index if self._cut_since_sync is None else min(index, self._cut_since_sync)
        )

    def trim(self, begin_index: int) -> None:
        """The log now begins with `begin_index`; everything before it was committed."""
        assert begin_index <= self.commit_index + 1, (begin_index, self)
        self.view.trim(begin_index)

    def was_trimmed(self, index: int) -> bool:
        """Whether an entry lies before the begin of the log: it was committed, so by leader
        completeness every later leader has it too."""
        return index < self.view.begin_index - 1

    # Durable

    def begin_sync(self) -> tuple[int, int]:
        """(term, index) that a sync starting now will make durable."""
        self._cut_since_sync = None
        return self.view.end_term, self.view.end_index

    def synced(self, term: int, index: int) -> None:
        """The sync that began when the log ended with this entry succeeded."""
        self.durable_index = max(self.durable_index, self.covered_by_sync(term, index))

    def covered_by_sync(self, term: int, index: int) -> int:
        """The index that a finished sync covers, if its entry is still the one it began with;
        entries cut meanwhile do not count."""
        if self.view.term_at(index) != term:
            return NO_INDEX
        return index if self._cut_since_sync is None else min(index, self._cut_since_sync - 1)

    def leader_claim(self) -> int:
        """The durable index that the leader itself contributes to the commit quorum."""
        return self.durable_index

    def follower_claim(self) -> int:
        """The durable index that a follower reports, which is its contribution to the commit
        quorum."""
        return min(self.durable_index, self.verified_index)

    def request_flush(self) -> None:
        """Everything that the log holds now must be synced without delay."""
        self.urgent_index = self.view.end_index

    def request_flush_to(self, index: int) -> None:
        """Everything up to `index`, as far as the log goes, must be synced without delay."""
        self.urgent_index = max(self.urgent_index, min(index, self.view.end_index))

    # Verified and committed

    def verify(self, index: int) -> None:
        """The log equals the leader's up to `index`."""
        self.verified_index = max(self.verified_index, index)

    def forget_verified(self) -> None:
        """Another leader or another term: what was verified against the old leader is not verified
        against the new one."""
        self.verified_index = NO_INDEX

    def follow_commit(self, leader_commit: int) -> None:
        """The leader committed up to `leader_commit`; this counts here as far as the log is
        verified to equal the leader's."""
        self.commit_index = max(self.commit_index, min(leader_commit, self.verified_index))

    def commit(self, index: int) -> None:
        """Leader only: a quorum has made the entries up to `index` durable."""
        assert index > self.commit_index, (index, self)
        self.commit_index = index

    def hold(self, index: int) -> None:
        """Leader only: a quorum holds the entries up to `index`, durable or not."""
        self.held_index = index

    def begin_leading(self) -> None:
        """It is unknown which entries of earlier terms were urgent or early, so all of them are
        urgent."""
        self.request_flush()
        self.early_index = self.held_index = NO_INDEX
