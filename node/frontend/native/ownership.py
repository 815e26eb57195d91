"""Decides which member of a consumer group owns which queue of a topic. Pure: it uses only the
members' requests and a clock passed in.

Law: a queue never has two owners. A queue that is to move is first withdrawn from its owner. It
stays reserved for that owner until the owner reports that it has finished a generation in which the
queue is no longer its own, or until the owner counts as gone. Once every member has reported, every
queue has an owner, and the numbers of queues of two members differ by at most one. Queues move only
if balance requires it; without history the shares are those of RocketMQ's default allocation:
consecutive queues for the members in order of their names.

A new coordinator does not know its predecessor's members, and they may still read. Until the
liveness period ends, every queue is therefore *haunted*: it is assigned only to a member that joins
and claims it. The same holds for the queues of a member whose name joins again without claiming
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Share:
    """A member's assignment."""

    generation: int
    queues: tuple[int, ...]
    members: tuple[str, ...]


@dataclass(slots=True)
class _Member:
    heard_ns: int
    queues: dict[int, int] = field(default_factory=dict)
    """The queues it owns, with the generation in which it got each."""
    leaving: dict[int, int] = field(default_factory=dict)
    """Queues withdrawn from it, with the generation in which each was withdrawn."""


def shares(
    queues: int, members: Sequence[str], owned: Mapping[str, Iterable[int]]
) -> dict[str, tuple[int, ...]]:
    """Balanced shares of the queues 0 … queues−1. Each member keeps the queues it owns, up to its
    share; the others go, ascending, to the members in order of their names."""
    if not members:
        return {}
    names = sorted(members)
    least, more = divmod(queues, len(names))
    kept = {
        name: sorted(queue for queue in owned.get(name, ()) if queue < queues) for name in names
    }
    larger = set(sorted(names, key=lambda name: (-len(kept[name]), name))[:more])
    queues_of = {name: kept[name][: least + (name in larger)] for name in names}
    taken = {queue for own in queues_of.values() for queue in own}
    left = iter([queue for queue in range(queues) if queue not in taken])
    for name in names:
        queues_of[name] += [
            next(left) for _ in range(least + (name in larger) - len(queues_of[name]))
        ]
    return {name: tuple(sorted(own)) for name, own in queues_of.items()}


class Ownership:
    """One consumer group's ownership of one topic. `generation`: the first generation is above it;
    every later coordinator starts higher. `queues`: the number of queues. Members of a former
    coordinator may read until `haunted_until_ns`. Times are monotonic, in ns."""

    def __init__(
        self, generation: int, queues: int, liveness_ns: int, haunted_until_ns: int
    ) -> None:
        self.generation = generation
        self._queues = queues
        self._liveness_ns = liveness_ns
        self._members: dict[str, _Member] = {}
        self._haunted = dict.fromkeys(range(queues), haunted_until_ns)
        """Queues that an unknown member may still read, and until when."""

    # -- events

    def join(self, name: str, generation: int, claims: Iterable[int], now_ns: int) -> None:
        """A member joins. With generation 0 it reads nothing; otherwise it has finished that
        generation, maybe under another coordinator, and reads the queues it claims."""
        self.expire(now_ns)
        member = self._members.get(name)
        if member is not None and generation:
            member.heard_ns = now_ns
            self._release(member, generation)
        else:
            if member is not None:
                # Another process of this name may still read queues that this one does not know of.
                self._haunted.update(
                    dict.fromkeys(
                        (*member.queues, *member.leaving), member.heard_ns + self._liveness_ns
                    )
                )
            member = self._members[name] = _Member(now_ns)
            for queue in claims if generation else ():
                if self._haunted.pop(queue, None) is not None:
                    member.queues[queue] = self.generation + 1
            self.generation += 1
        self._settle()

    def alive(self, name: str, generation: int, now_ns: int) -> bool:
        """A sign of life of a member that has finished a generation. False: the member counts as
        gone and must join again."""
        self.expire(now_ns)
        member = self._members.get(name)
        if member is None:
            return False
        member.heard_ns = now_ns
        self._release(member, generation)
        self._settle()
        return True

    def leave(self, name: str, now_ns: int) -> None:
        """A member leaves and reads nothing any more."""
        if self._members.pop(name, None) is not None:
            self.generation += 1
        self.expire(now_ns)

    def resize(self, queues: int, now_ns: int) -> None:
        """The topic now has this number of queues."""
        if queues != self._queues:
            self._queues = queues
            self.generation += 1
        self.expire(now_ns)

    # -- state

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))

    @property
    def next_ns(self) -> int | None:
        """The next time at which the state changes without an event; None if there is none."""
        ends = [member.heard_ns + self._liveness_ns for member in self._members.values()]
        return min((*ends, *self._haunted.values()), default=None)

    def share(self, name: str) -> Share | None:
        """What a member owns; None if it is not a member."""
        member = self._members.get(name)
        return (
            None
            if member is None
            else Share(self.generation, tuple(sorted(member.queues)), self.members)
        )

    def owns(self, name: str, queue: int, generation: int) -> bool:
        """Whether a member's commit for a queue counts: it owns the queue since this generation or
        an earlier one, or the queue is being withdrawn from it."""
        member = self._members.get(name)
        if member is None or generation > self.generation:
            return False
        if queue in member.queues:
            return member.queues[queue] <= generation
        return queue in member.leaving

    # -- transitions

    def expire(self, now_ns: int) -> None:
        """Remove members that were silent for longer than the liveness period, and end haunting
        that is over."""
        gone = [
            name
            for name, member in self._members.items()
            if member.heard_ns + self._liveness_ns <= now_ns
        ]
        for name in gone:
            del self._members[name]
        if gone:
            self.generation += 1
        self._haunted = {queue: until for queue, until in self._haunted.items() if until > now_ns}
        self._settle()

    def _release(self, member: _Member, generation: int) -> None:
        """Release the queues that were withdrawn in that generation or before."""
        member.leaving = {
            queue: since for queue, since in member.leaving.items() if since > generation
        }

    def _settle(self) -> None:
        """Withdraw and assign queues as balance requires, in one new generation."""
        wanted = shares(
            self._queues,
            list(self._members),
            {name: member.queues for name, member in self._members.items()},
        )
        following = self.generation + 1
        changed = False
        for name, member in self._members.items():
            for queue in [queue for queue in member.queues if queue not in wanted[name]]:
                del member.queues[queue]
                member.leaving[queue] = following
                changed = True
        held = {
            queue
            for member in self._members.values()
            for queue in (*member.queues, *member.leaving)
        }
        for name, member in self._members.items():
            for queue in wanted[name]:
                if queue in member.leaving or (queue not in held and queue not in self._haunted):
                    member.leaving.pop(queue, None)
                    member.queues[queue] = following
                    changed = True
        if changed:
            self.generation = following
