"""Which member of a consumer group reads which queue of a topic: pure, of the members' words and a clock that is handed in.

Law: no queue has two owners, ever. A queue that is to move is first withdrawn from its owner, and stays his until he says that he has
finished a generation in which it is not his any more, or until he counts as gone. Once everybody has said so, every queue has an owner and
no member has two queues more than another. Queues move only where balance demands it; without any history the shares are those of
RocketMQ's default allocation: consecutive queues for the members in order of their names.

A coordinator that takes over knows nothing of its forerunner's members, and they may still read: until the liveness period is over, every
queue is *haunted*, and given to nobody but the member that comes and says it has it. The same holds of the queues of a member whose name
comes again without knowing of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Share:
    """What a member is told."""

    generation: int
    queues: tuple[int, ...]
    members: tuple[str, ...]


@dataclass(slots=True)
class _Member:
    heard_ns: int
    queues: dict[int, int] = field(default_factory=dict)
    """Its own queues, and the generation in which it got each."""
    leaving: dict[int, int] = field(default_factory=dict)
    """Queues withdrawn, and the generation in which they were."""


def shares(queues: int, members: Sequence[str], owned: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Balanced shares of the queues 0 … queues−1. Each member keeps what it owns up to its part; what is left goes, ascending, to the
    members in order of their names."""
    if not members:
        return {}
    names = sorted(members)
    least, more = divmod(queues, len(names))
    kept = {name: sorted(queue for queue in owned.get(name, ()) if queue < queues) for name in names}
    larger = set(sorted(names, key=lambda name: (-len(kept[name]), name))[:more])
    found = {name: kept[name][: least + (name in larger)] for name in names}
    taken = {queue for own in found.values() for queue in own}
    left = iter([queue for queue in range(queues) if queue not in taken])
    for name in names:
        found[name] += [next(left) for _ in range(least + (name in larger) - len(found[name]))]
    return {name: tuple(sorted(own)) for name, own in found.items()}


class Ownership:
    """One consumer group's ownership of one topic. `generation`: the first one is above it; higher in every life of a coordinator.
    `queues`: how many there are. Members of a forerunner may read until `haunted_until_ns`. Times are monotonic."""

    def __init__(self, generation: int, queues: int, liveness_ns: int, haunted_until_ns: int) -> None:
        self.generation = generation
        self._queues = queues
        self._liveness_ns = liveness_ns
        self._members: dict[str, _Member] = {}
        self._haunted = dict.fromkeys(range(queues), haunted_until_ns)
        """Queues that somebody unknown may still read, and until when."""

    # -- what happens

    def join(self, name: str, generation: int, claims: Iterable[int], now_ns: int) -> None:
        """A member comes: with generation 0 it reads nothing; else it has finished that one, maybe under another coordinator, and reads the
        queues it claims."""
        self.look(now_ns)
        member = self._members.get(name)
        if member is not None and generation:
            member.heard_ns = now_ns
            self._release(member, generation)
        else:
            if member is not None:
                # Somebody of this name may still read what this one knows nothing of.
                self._haunted.update(dict.fromkeys((*member.queues, *member.leaving), member.heard_ns + self._liveness_ns))
            member = self._members[name] = _Member(now_ns)
            for queue in claims if generation else ():
                if self._haunted.pop(queue, None) is not None:
                    member.queues[queue] = self.generation + 1
            self.generation += 1
        self._settle()

    def alive(self, name: str, generation: int, now_ns: int) -> bool:
        """A sign of life of a member that has finished a generation. False: it counts as gone, and has to join."""
        self.look(now_ns)
        member = self._members.get(name)
        if member is None:
            return False
        member.heard_ns = now_ns
        self._release(member, generation)
        self._settle()
        return True

    def leave(self, name: str, now_ns: int) -> None:
        """A member says goodbye: it reads nothing any more."""
        if self._members.pop(name, None) is not None:
            self.generation += 1
        self.look(now_ns)

    def resize(self, queues: int, now_ns: int) -> None:
        """The topic has so many queues now."""
        if queues != self._queues:
            self._queues = queues
            self.generation += 1
        self.look(now_ns)

    # -- what is so

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))

    @property
    def next_ns(self) -> int | None:
        """When time alone changes something."""
        ends = [member.heard_ns + self._liveness_ns for member in self._members.values()]
        return min((*ends, *self._haunted.values()), default=None)

    def share(self, name: str) -> Share | None:
        """What a member owns; None: it is none."""
        member = self._members.get(name)
        return None if member is None else Share(self.generation, tuple(sorted(member.queues)), self.members)

    def owns(self, name: str, queue: int, generation: int) -> bool:
        """Whether what a member does for a queue counts: the queue is its own, or on its way from it, and it got it in this generation or
        before."""
        member = self._members.get(name)
        if member is None or generation > self.generation:
            return False
        if queue in member.queues:
            return member.queues[queue] <= generation
        return queue in member.leaving

    # -- inside

    def look(self, now_ns: int) -> None:
        """Who was silent for too long is gone, and nobody unknown reads for longer than that."""
        gone = [name for name, member in self._members.items() if member.heard_ns + self._liveness_ns <= now_ns]
        for name in gone:
            del self._members[name]
        if gone:
            self.generation += 1
        self._haunted = {queue: until for queue, until in self._haunted.items() if until > now_ns}
        self._settle()

    def _release(self, member: _Member, generation: int) -> None:
        """What was withdrawn in that generation or before is free."""
        member.leaving = {queue: since for queue, since in member.leaving.items() if since > generation}

    def _settle(self) -> None:
        """Withdraw and give what balance demands, in one new generation."""
        wanted = shares(self._queues, list(self._members), {name: member.queues for name, member in self._members.items()})
        following = self.generation + 1
        changed = False
        for name, member in self._members.items():
            for queue in [queue for queue in member.queues if queue not in wanted[name]]:
                del member.queues[queue]
                member.leaving[queue] = following
                changed = True
        held = {queue for member in self._members.values() for queue in (*member.queues, *member.leaving)}
        for name, member in self._members.items():
            for queue in wanted[name]:
                if queue in member.leaving or (queue not in held and queue not in self._haunted):
                    member.leaving.pop(queue, None)
                    member.queues[queue] = following
                    changed = True
        if changed:
            self.generation = following
