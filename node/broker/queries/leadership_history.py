"""The recorded reasons of leadership changes: a bounded ring on each node, and the merged history
of all nodes.

Pure values and words. Each time is the wall clock of the node that recorded it: for people, never
for decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

from ledgermq.proto import units
from ledgermq.raft.transfer import HANDOVERS, Cause, LeaderChange, Reason

EVENTS_KEPT = 64
VERSION = 1


@dataclass(frozen=True, slots=True)
class LeadershipEvent:
    """A `LeaderChange` with the time at which a node noticed it. `leader` None: the node itself
    stopped leading `term`."""

    at_ms: int
    term: int
    former: str | None
    leader: str | None
    cause: Cause
    peer: str
    silent_ms: int

    @property
    def reason(self) -> Reason:
        return Reason(self.cause, self.peer, self.silent_ms)


@dataclass(frozen=True, slots=True)
class History:
    """One sentence, the name of the reason, and one line per change."""

    answer: str
    reason: str
    evidence: tuple[str, ...]


class Ring:
    """The last events of one replica, oldest first."""

    def __init__(self, events: Iterable[LeadershipEvent] = ()) -> None:
        self.events = tuple(events)[-EVENTS_KEPT:]

    def add(self, change: LeaderChange, at_ms: int) -> LeadershipEvent:
        reason = change.reason
        event = LeadershipEvent(
            at_ms=at_ms,
            term=change.term,
            former=change.former,
            leader=change.leader,
            cause=reason.cause,
            peer=reason.peer,
            silent_ms=reason.silent_ms,
        )
        self.events = (*self.events, event)[-EVENTS_KEPT:]
        return event

    def export(self, log_id: str) -> dict[str, Any]:
        return {
            "v": VERSION,
            "log_id": log_id,
            "events": [list(astuple(event)) for event in self.events],
        }


def restored(value: Mapping[str, Any], log_id: str) -> Ring:
    """The exported ring. An export of another log or version gives an empty ring, since the history
    serves only people."""
    if value.get("v") != VERSION or value.get("log_id") != log_id:
        return Ring()
    try:
        rows = value["events"]
        return Ring(
            LeadershipEvent(
                at_ms=at,
                term=term,
                former=former,
                leader=leader,
                cause=Cause(why),
                peer=peer,
                silent_ms=ms,
            )
            for at, term, former, leader, why, peer, ms in rows
        )
    except (KeyError, TypeError, ValueError):
        return Ring()


def words(reason: Reason) -> str:
    """A reason for people."""
    return {
        Cause.STARTED: "started: no leader was known",
        Cause.ELECTION_TIMEOUT: (
            f"election timeout: not heard from {reason.peer} for"
            f" {units.duration_words(reason.silent_ms)}"
        ),
        Cause.OPERATOR: "transfer asked by operator",
        Cause.PLANNED_STOP: f"planned stop of {reason.peer}",
        Cause.PREFERRED: (
            "preferred leader, or the disk of the one before was full or its clock off (ledgermq"
            " status)"
        ),
        Cause.NO_MAJORITY: (
            f"check-quorum: heard from too few others for {units.duration_words(reason.silent_ms)}"
        ),
        Cause.HIGHER_TERM: f"higher term from {reason.peer}",
        Cause.REMOVED: "the leader was removed from the voters",
        Cause.FORCED: (
            "an operator made it master, regardless of the in-sync set: entries may be lost"
        ),
        Cause.FOLLOWED: f"{reason.peer} was followed as leader; its own reason is not known",
    }[reason.cause]


def merged(
    group: str, told: Mapping[str, Sequence[LeadershipEvent]], silent: Sequence[str], last: int
) -> History:
    """The combined history of the nodes that answered, newest change last. The nodes in `silent`
    did not answer."""
    missing = tuple(f"{node} did not answer: what only it recorded is missing" for node in silent)
    came: dict[int, tuple[str, LeadershipEvent]] = {}
    went: dict[int, LeadershipEvent] = {}
    for node, events in sorted(told.items()):
        for event in events:
            if event.leader is None:
                went[event.term] = event
            elif event.term not in came or _knows_better((node, event), came[event.term]):
                came[event.term] = node, event
    if not came:
        return History(
            f"no change of leadership of {group} is recorded on the nodes that answer",
            "unknown",
            missing,
        )
    terms = sorted(came)
    lines = tuple(
        _line(came, went, terms, at) for at in range(max(0, len(terms) - last), len(terms))
    )
    newest, reason = came[terms[-1]][1], _reason(came, went, terms, len(terms) - 1)
    before = _former(came, terms, len(terms) - 1)
    moved = (
        f"moved from {before} to {newest.leader}"
        if before not in (None, newest.leader)
        else f"went to {newest.leader}"
    )
    answer = (
        f"leadership of {group} {moved} at {_time(newest.at_ms)} (term {newest.term}):"
        f" {words(reason)}"
    )
    return History(answer, reason.cause.name.lower().replace("_", "-"), (*lines, *missing))


def _knows_better(told: tuple[str, LeadershipEvent], known: tuple[str, LeadershipEvent]) -> bool:
    """The winner knows the cause; among the others, the node that noticed first is preferred."""
    (node, event), (other, former) = told, known
    return (node != event.leader, event.at_ms) < (other != former.leader, former.at_ms)


def _former(
    came: Mapping[int, tuple[str, LeadershipEvent]], terms: list[int], at: int
) -> str | None:
    own = came[terms[at]][1].former
    return own if own is not None or at == 0 else came[terms[at - 1]][1].leader


def _reason(
    came: Mapping[int, tuple[str, LeadershipEvent]],
    went: Mapping[int, LeadershipEvent],
    terms: list[int],
    at: int,
) -> Reason:
    """If only followers of the new leader answered, the old leader's record may still show a
    handover."""
    own = came[terms[at]][1].reason
    left = went.get(terms[at - 1]) if at > 0 else None
    if own.cause is Cause.FOLLOWED and left is not None and left.cause in HANDOVERS:
        return Reason(left.cause, left.former or "")
    return own


def _line(
    came: Mapping[int, tuple[str, LeadershipEvent]],
    went: Mapping[int, LeadershipEvent],
    terms: list[int],
    at: int,
) -> str:
    node, event = came[terms[at]]
    before = _former(came, terms, at) or "no leader"
    line = (
        f"{_time(event.at_ms)} term {event.term}: {before} -> {event.leader},"
        f" {words(_reason(came, went, terms, at))} (told by {node})"
    )
    left = went.get(terms[at - 1]) if at > 0 else None
    return (
        line
        if left is None or left.cause in HANDOVERS
        else f"{line}; {left.former} stepped down: {words(left.reason)}"
    )


def _time(at_ms: int) -> str:
    return (
        datetime.fromtimestamp(at_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
