"""Explains whether and why a consumer group has not got a message: one sentence, a one-word reason,
and the evidence.

A pure function of facts, for people. The facts are the leader's state at one moment, and the log's
events of the message (`trace.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ledgermq.node.broker.calls.consumer_calls import WIRE_MAX
from ledgermq.node.broker.calls.group_view import Why
from ledgermq.node.broker.queries.trace import Event
from ledgermq.proto import units

RANKS = (
    "not-found", "expired", "deleted", "unread", "recalled", "rolled-back", "half", "delayed", "skipped", "filtered", "done",
    "no-consumer", "ready", "store-away", "ordered", "visible-again", "leased", "too-large", "dead-lettered", "acknowledged",
)  # fmt: skip
"""Reasons in ascending order of knowledge: of two broker groups, the answer with the later reason
is shown."""
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a message in one broker group, for one consumer group."""

    message_id: str
    group: str
    topic: str
    queue: int = -1
    """The queue of the visible message; −1 if there is none yet."""
    offset: int = -1
    begin: int = 0
    """The lowest offset that a consumer group can get. A message below it was found in the object
    store."""
    deleted: bool = False
    """Whether it is a message of a topic that was deleted; another one has its name now."""
    store: str = ""
    """Why messages for the group that only the object store has cannot be fetched; empty if they
    can, or if this is none of them."""
    cursor: int | None = None
    """The next offset never leased; None: the group never read this queue."""
    row: tuple[int, str, int | None] | None = None
    """Attempt, client and duration of the lease; None: not in flight. Attempt 0: it waits for an
    earlier message of its message group, or its dead letter was resent."""
    resent: bool = False
    """Whether its dead letter was resent, and it was not delivered since."""
    expired: bool = False
    """Whether the lease has ended."""
    lease_ms: int | None = None
    """When the lease began."""
    too_large: int = 0
    """The message's bytes on the wire, if they exceed what some official clients accept; else 0."""
    polls: int = 0
    """How many Receives of the group wait for this topic now."""
    deliver_ms: int | None = None
    waiting: str = ""
    """State of a copy that is not visible yet: half, delayed, recalled, or dropped with its
    topic."""
    events: Sequence[Event] = ()
    complete: bool = True
    """Whether all entries behind the message were scanned."""


def why(facts: Facts) -> Why:
    """Explains one message that was found in this broker group."""
    answer, reason = _answer(facts)
    evidence = [f"{_time(event.store_ms)} {_described(event)}" for event in facts.events[-_SHOWN:]]
    if len(facts.events) > _SHOWN:
        evidence.insert(
            0,
            f"{len(facts.events) - _SHOWN} earlier events: ledgermq query --id {facts.message_id}"
            " --trace",
        )
    if facts.too_large and reason != "acknowledged":
        evidence.append(
            f"{facts.too_large} bytes on the wire: official clients for Node, Rust and C# accept"
            f" {WIRE_MAX}, others accept it"
        )
    if not facts.complete:
        evidence.append("the log behind these events was not scanned to its end")
    if facts.polls:
        evidence.append(
            f"{facts.polls} receives of {facts.group} wait for messages of {facts.topic} now"
        )
    return Why(answer, reason, tuple(evidence))


def _answer(facts: Facts) -> tuple[str, str]:
    name, group = facts.message_id, facts.group
    if facts.deleted or facts.waiting == "dropped":
        return (
            f"{name} was deleted with its topic; {facts.topic} is another topic of this name.",
            "deleted",
        )
    if facts.queue < 0:
        return _invisible(facts)
    new = facts.row is None and (facts.cursor is None or facts.offset >= facts.cursor)
    if facts.store and (new or facts.expired):
        return (
            (
                f"{name} waits for {group}: only the object store has it, which cannot be read now"
                f" ({facts.store})."
            ),
            "store-away",
        )
    if facts.row is not None:
        attempt, client, duration_ms = facts.row
        return _in_flight(facts, attempt, client, duration_ms)
    if facts.cursor is None and facts.offset < facts.begin:
        return (
            (
                f"{name} left the disks before {group} asked for messages of {facts.topic}; pull"
                " consumers and readers get it."
            ),
            "expired",
        )
    if facts.cursor is None:
        return (
            (
                f"{group} never asked for messages of queue {facts.queue} of {facts.topic}, where"
                f" {name} is ready."
            ),
            "unread",
        )
    if facts.offset >= facts.cursor:
        before = facts.offset - facts.cursor
        if not facts.polls:
            return (
                (
                    f"{name} is ready, with {before} messages before it, but no consumer of {group}"
                    " asks for messages now."
                ),
                "no-consumer",
            )
        return (
            (
                f"{name} is ready and waits for its turn: {before} messages of its queue are"
                " before it."
            ),
            "ready",
        )
    return _done(facts)


def _invisible(facts: Facts) -> tuple[str, str]:
    name = facts.message_id
    last = facts.events[-1] if facts.events else None
    if facts.waiting == "delayed":
        at = "its time" if facts.deliver_ms is None else _time(facts.deliver_ms)
        return f"{name} is delayed until {at}.", "delayed"
    if facts.waiting == "recalled" or (last is not None and last.kind == "recalled"):
        by = last.detail if last is not None and last.kind == "recalled" else "by its producer"
        return (
            f"{name} was recalled {by} before its delivery time and is not delivered.",
            "recalled",
        )
    if facts.waiting == "half":
        return f"{name} is a half message: its producer has not decided its transaction.", "half"
    if last is not None and last.kind in ("rolled-back", "dropped"):
        return f"The transaction of {name} was not committed: {last.detail}.", "rolled-back"
    return (
        f"{name} was stored, but the records of its further fate are no longer in the log.",
        "expired",
    )


def _in_flight(facts: Facts, attempt: int, client: str, duration_ms: int | None) -> tuple[str, str]:
    name, group = facts.message_id, facts.group
    if facts.resent:
        next_one = (
            "a next receive will get it"
            if facts.polls
            else f"no consumer of {group} asks for messages now"
        )
        return (
            f"The dead letter of {name} was resent to {group}, and {next_one}.",
            "visible-again" if facts.polls else "no-consumer",
        )
    if attempt == 0:
        return (
            (
                f"{name} waits: an earlier message of its message group is not acknowledged by"
                f" {group}."
            ),
            "ordered",
        )
    if facts.too_large and (facts.expired or attempt > 1):
        most = (
            f"it has {facts.too_large} bytes on the wire, and clients for Node, Rust and C# accept"
            f" {WIRE_MAX}"
        )
        return (
            (
                f"{name} was leased {attempt} times, the last time to client {client}, and never"
                f" acknowledged: {most}."
            ),
            "too-large",
        )
    if facts.expired:
        if not facts.polls:
            return (
                (
                    f"{name} is visible again after attempt {attempt}, but no consumer of {group}"
                    " asks for messages now."
                ),
                "no-consumer",
            )
        return (
            (
                f"{name} is visible again after attempt {attempt} by client {client}, and a next"
                " receive will get it."
            ),
            "visible-again",
        )
    until = "for as long as that client is alive"
    if duration_ms is not None:
        until = (
            f"for {units.duration_words(duration_ms)}"
            if facts.lease_ms is None
            else f"until {_time(facts.lease_ms + duration_ms)}"
        )
    return (
        (
            f"{name} was delivered: it is leased to client {client} of {group} (attempt {attempt})"
            f" {until}."
        ),
        "leased",
    )


def _done(facts: Facts) -> tuple[str, str]:
    name, group = facts.message_id, facts.group
    own = [event for event in facts.events if event.group == group]
    last = own[-1] if own else None
    if last is None:
        return (
            (
                f"{name} is done for {group}; the record that says how is no longer in the log, or"
                " was not reached."
            ),
            "done",
        )
    if last.kind == "acknowledged":
        given = next((event for event in reversed(own) if event.kind == "leased"), None)
        by = f" by client {given.client} (attempt {given.attempt})" if given is not None else ""
        return f"{name} was delivered to {group} and acknowledged{by}.", "acknowledged"
    if last.kind == "passed-over":
        return f"{name} was skipped by {group}: {last.detail}.", "filtered"
    if last.kind == "dead-lettered":
        return f"{name} is a dead letter of {group}: {last.detail}.", "dead-lettered"
    if last.kind == "reset":
        return (
            f"{name} was skipped: {last.detail} since the offsets of {group} were reset.",
            "skipped",
        )
    return f"{name} is done for {group}; its last known event is {last.kind}.", "done"


def absent(message_id: str, topics: Sequence[str], begins_ms: int | None, lagging: bool) -> Why:
    """Explains a message that no broker group has."""
    where = f"topic {topics[0]}" if len(topics) == 1 else f"{len(topics)} topics"
    evidence = [
        "a send whose outcome is unknown may still be under way: it is found once it is committed"
    ]
    if lagging:
        evidence.append("the newest messages could not be looked up yet: try again in a moment")
    born_ms = born_of(message_id)
    if born_ms is not None and begins_ms is not None and born_ms < begins_ms:
        evidence.insert(
            0,
            f"the id was made at {_time(born_ms)}; the log begins with what was stored at"
            f" {_time(begins_ms)}",
        )
        return Why(
            f"{message_id} is older than all messages that retention kept in {where}.",
            "expired",
            tuple(evidence),
        )
    return Why(f"No message with the id {message_id} is in {where}.", "not-found", tuple(evidence))


def born_of(message_id: str) -> int | None:
    """Milliseconds since the epoch from a message id in the official clients' form (contract §4.1);
    None for other ids."""
    if len(message_id) != 34 or not message_id.startswith("01"):
        return None
    try:
        return (int(message_id[18:26], 16) + 1_609_459_200) * 1000
    except ValueError:
        return None


def _described(event: Event) -> str:
    parts = [event.kind, event.group or "", event.detail]
    if event.attempt is not None:
        parts.append(f"attempt {event.attempt}")
    if event.client:
        parts.append(f"client {event.client}")
    return f"{' '.join(part for part in parts if part)} (entry {event.index})"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
