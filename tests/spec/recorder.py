"""What a replica decides, as events that `Trace.tla` checks: a core that reports each step it
takes, in the simulator and in real nodes.

`recorded(core_type, record)` derives a core. It compares the core before and after each call of the
driver and names the steps in between. The product knows nothing of it: the driver has an attribute
for the type of its core, which the simulator's planted bugs use as well. An event is an object of
JSON values; indexes count from 0, as in the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import Chance, Members, RaftConfig
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.ha_control import AlterIsr, Appointment, HaRequest
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, Message, VoteReply, VoteRequest

Event = dict[str, Any]
Record = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a core the specification knows."""

    term: int
    vote: str | None
    role: str
    end: int
    synced: int
    commit: int
    appointment: Appointment | None

    def as_object(self) -> Event:
        return {
            name: getattr(self, name)
            for name in ("term", "vote", "role", "end", "synced", "commit")
        }


def shown(core: Core) -> Shown:
    candidate = core.election.candidate
    campaigns = (
        candidate is not None and not candidate.pre and not core.membership.policy.controller_elects
    )
    role = "leads" if core.role is Role.LEADER else "campaigns" if campaigns else "rests"
    return Shown(
        core.term,
        core.voted_for,
        role,
        core.log.end_index,
        core.durable_index,
        core.commit_index,
        core.appointment,
    )


def members_object(members: Members) -> Event:
    return {
        "voters": sorted(members.voters),
        "learners": sorted(members.learners),
        "returning": sorted(members.returning),
        "rule": str(members.rule),
        "towards": None if members.towards is None else str(members.towards),
        "since": members.since,
        "directories": {node: members.incarnations.get(node, "") for node in members.nodes},
    }


def request_object(ask: HaRequest) -> Event:
    if isinstance(ask, AlterIsr):
        named = ("node", "generation", "epoch", "version")
        return {
            "kind": "alter",
            "in_sync": dict(ask.in_sync),
            **{name: getattr(ask, name) for name in named},
        }
    named = ("node", "incarnation", "generation", "epoch", "term", "begun")
    return {
        "kind": "elect",
        "voters": dict(ask.voters),
        **{name: getattr(ask, name) for name in named},
    }


def appointment_object(made: Appointment) -> Event:
    named = ("generation", "version", "epoch", "master")
    return {"in_sync": dict(made.in_sync), **{name: getattr(made, name) for name in named}}


def recorded(core_type: type[Core], record: Record) -> type[Core]:
    """A core of this type that reports its steps."""

    class Recorded(core_type):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            config: RaftConfig,
            log: LogView,
            hard_state: HardState,
            chance: Chance,
            now_ns: int,
            commit_index: int,
            **named: Any,
        ) -> None:
            # What the process found is told before the core judges it.
            self._told = Shown(
                hard_state.term,
                hard_state.vote,
                "rests",
                log.end_index,
                log.end_index,
                commit_index,
                None,
            )
            start = {
                "do": "start",
                "directory": config.incarnation,
                "begin": log.begin_index,
                "runs": [[*run] for run in log.runs],
            }
            record({**start, "node": config.node, "after": self._told.as_object()})
            super().__init__(config, log, hard_state, chance, now_ns, commit_index, **named)

        def _emit(self, events: list[Event]) -> None:
            """Report the steps of one call; what the core shows now follows from the last of
            them."""
            for event in events:
                event["node"] = self.config.node
            if events:
                events[-1]["after"] = self._told.as_object()
            for event in events:
                record(event)

        def _watch(
            self,
            call: Callable[[], Any],
            message: Message | None = None,
            members: Members | None = None,
        ) -> Any:
            before, replies, requests = (
                self._told,
                len(self.outbox.messages),
                len(self.outbox.requests),
            )
            outcome = call()
            after = self._told = shown(self)
            made = self.outbox.messages[replies:]
            asked = (
                outcome.requests[requests:]
                if isinstance(outcome, Effects)
                else self.outbox.requests[requests:]
            )
            if self.outbox.fence is None:
                events = steps(self, before, after, message, members, made)
                self._emit([*events, *(_request(ask) for ask in asked)])
            return outcome

        # What the driver calls

        def tick(self, now_ns: int) -> None:
            self._watch(lambda: super(Recorded, self).tick(now_ns))

        def handle(
            self,
            message: Message,
            now_ns: int,
            *,
            chains_agree: bool = True,
            members: Members | None = None,
        ) -> None:
            call = super().handle
            self._watch(
                lambda: call(message, now_ns, chains_agree=chains_agree, members=members), message
            )

        def appended(
            self,
            extent: Extent,
            *,
            urgent: bool = True,
            early: bool = False,
            members: Members | None = None,
        ) -> None:
            call = super().appended
            self._watch(
                lambda: call(extent, urgent=urgent, early=early, members=members), None, members
            )

        def append_written(self) -> None:
            self._watch(super().append_written)

        def append_refused(self) -> None:
            raise AssertionError("the specification has no full disks")

        def trimmed(self, begin_index: int) -> None:
            raise AssertionError("the specification has no trimmed logs")

        def synced(self, term: int, index: int) -> None:
            call = super().synced
            self._watch(lambda: call(term, index))

        def appointed(self, appointment: Appointment, now_ns: int) -> None:
            call = super().appointed
            self._watch(lambda: call(appointment, now_ns))

        def take(self, now_ns: int, *, syncs: bool = False) -> Effects:
            call = super().take
            effects: Effects = self._watch(lambda: call(now_ns, syncs=syncs))
            return effects

    return Recorded


def _request(ask: HaRequest) -> Event:
    if isinstance(ask, AlterIsr):
        return {"do": "set", "wanted": sorted(ask.in_sync)}
    return {"do": "master", "for": ask.node}


def steps(
    core: Core,
    b: Shown,
    a: Shown,
    message: Message | None,
    members: Members | None,
    made: list[Message],
) -> list[Event]:
    """The steps between two looks at a core, in the order in which the core takes them. `made`: the
    messages that it made meanwhile."""
    events: list[Event] = []
    if a.appointment is not b.appointment and a.appointment is not None:
        events.append({"do": "learn", "appointment": appointment_object(a.appointment)})
    followed = (
        isinstance(message, Append) and core.leader == message.sender and message.term == a.term
    )
    if followed:
        assert isinstance(message, Append)
        rejected = any(isinstance(reply, AppendReply) and reply.rejected for reply in made)
        events.append(
            {
                "do": "receive",
                "term": a.term,
                "leader": message.sender,
                "to": -1 if rejected else message.last_index,
            }
        )
    else:
        events += _elections(core, b, a, message, made)
    if a.role == "leads" and a.end > b.end:
        events.append(
            {
                "do": "append",
                "to": a.end,
                "members": None if members is None else members_object(members),
            }
        )
    if a.synced > b.synced:
        events.append({"do": "sync", "to": a.synced})
    if a.commit > b.commit:
        events.append({"do": "commit" if a.role == "leads" else "follow", "to": a.commit})
    for reply in made:
        if isinstance(reply, AppendReply) and not reply.rejected:
            events.append(
                {
                    "do": "reply",
                    "leader": reply.to,
                    "term": reply.term,
                    "at": reply.durable,
                    "sound": not reply.provisional,
                }
            )
    return events


def _elections(
    core: Core, b: Shown, a: Shown, message: Message | None, made: list[Message]
) -> list[Event]:
    voted = any(isinstance(reply, VoteReply) and reply.granted and not reply.pre for reply in made)
    if a.role == "leads" and (b.role != "leads" or a.term != b.term):
        if core.membership.policy.controller_elects:
            return [{"do": "office", "term": a.term}]
        campaign: list[Event] = [{"do": "campaign"}] if a.term > b.term else []
        return [*campaign, {"do": "win"}]
    if a.role == "campaigns" and a.term > b.term:
        return [{"do": "campaign"}]
    if voted:
        assert isinstance(message, VoteRequest)
        return [{"do": "vote", "for": message.sender, "term": message.term}]
    if a.term > b.term or a.role != b.role:
        return [{"do": "hear", "term": a.term}]
    return []
