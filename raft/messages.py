"""Messages between replicas of one group, as values without payload. Nobody changes a message after
it was made; only the kinds that are rare are frozen, because a frozen dataclass takes three times
as long to make. Several fields of one type stand side by side, so all are given by name.

The bytes of a range travel beside an `Append`; the driver, which alone can read the log, compares
chain CRCs. Every message names its sender, its receiver and the sender's term. Nothing here
decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.raft.transfer import Cause

NO_INDEX = -1
NO_TERM = -1


@dataclass(slots=True, unsafe_hash=True)
class Extent:
    """Raft's view of a range: contiguous indexes of one term, their size in bytes, and whether it
    is a membership record."""

    first_index: int
    last_index: int
    term: int
    size: int
    membership: bool = False

    def __post_init__(self) -> None:
        assert 0 <= self.first_index <= self.last_index and self.term >= 0, self


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Asks for a vote in `term`; with `pre`, only whether it would be granted (Raft dissertation
    §9.6), which changes no state.

    `transfer`: the leader itself told the candidate to campaign (§3.10), so contact with that
    leader is no reason to refuse. `incarnation`: the directory by which the candidate's members
    name the receiver; empty if they name none.
    """

    sender: str
    to: str
    term: int
    pre: bool
    last_index: int
    last_term: int
    transfer: bool = False
    incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply:
    """`term` is the requested term if the vote is granted, otherwise the voter's own."""

    sender: str
    to: str
    term: int
    pre: bool
    granted: bool


@dataclass(slots=True, unsafe_hash=True, kw_only=True)
class Append:
    """The leader's only message to followers: heartbeat, commit news, probe and push in one.

    `prev_index`/`prev_term` name the entry before the range; without an `extent` the message only
    asks whether that entry matches. `round` grows with every message of a leader within its term,
    over all peers. `lazy` allows the receiver to delay its sync; otherwise everything up to
    `last_index` must become durable at once. `early` asks for a reply as soon as the range is
    received. `end_index`: where the leader's log ended, so that an operator can later learn what
    was lost with it. `quiet`: the message carries only commit news, so the receiver answers it only
    if it rejects it.
    """

    sender: str
    to: str
    term: int
    round: int
    prev_index: int
    prev_term: int
    commit_index: int
    extent: Extent | None = None
    lazy: bool = False
    early: bool = False
    end_index: int = NO_INDEX
    quiet: bool = False

    @property
    def last_index(self) -> int:
        return self.prev_index if self.extent is None else self.extent.last_index


@dataclass(slots=True, unsafe_hash=True, kw_only=True)
class AppendReply:
    """How far the sender's log equals that of the leader of `term`.

    `received` is the last index it verified against this leader, `durable` the last of those on its
    stable storage. `round` is the highest round it has seen. A rejection names in `received` the
    last index that may still be common and in `hint_term` the sender's term there; then `durable`
    is −1. A reply in a term above the leader's deposes it. `leaving`: the sender is about to stop
    and takes over no leadership. `provisional`: the sender's copy does not count, because its loss
    would go unnoticed (raft/membership.py). `fetch`: the sender asks for the entries after
    `received`; a master whose slaves pull pushes nothing without this. `watched`: a reader at the
    sender waits for committed entries, so the leader sends commit news without waiting for a
    heartbeat.
    """

    sender: str
    to: str
    term: int
    round: int
    boot_id: int
    rejected: bool
    received: int
    durable: int
    hint_term: int = NO_TERM
    leaving: bool = False
    provisional: bool = False
    fetch: bool = False
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """The leader's log begins with `begin_index`, and the receiver shares no entry with it: the log
    alone cannot help (docs/format.md §9). Sent with every heartbeat while this holds."""

    sender: str
    to: str
    term: int
    begin_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """The leader of `term` hands over (Raft dissertation §3.10): the receiver, whose log ends with
    exactly this entry, must campaign at once. A late copy finds another end or another term, and
    has no effect."""

    sender: str
    to: str
    term: int
    last_index: int
    last_term: int
    cause: Cause


Message = VoteRequest | VoteReply | Append | AppendReply | TimeoutNow | LeftBehind


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContact:
    """The latest message of the followed leader: when it came, by this replica's clock, and the
    leader's end and commit index."""

    leader: str
    term: int
    at_ns: int
    end_index: int
    commit_index: int
