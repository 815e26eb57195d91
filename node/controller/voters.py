"""Who votes in the controller quorum: the form of the log entries that say so, and which change the leader may append.

Pure. Every such entry names all voters, so the newest one in a journal is the whole truth as of that journal's end: in force when it is
appended, undone when it is cut off (Raft dissertation, chapter 4). The first entry of a quorum names the voters it begins with; a joining
node's first entry names nobody, until it is told.

One voter more or less at a time, and only when the former change and an entry of the leader's own term are committed: then the majorities
before and after a change have a node in common. An entry that names the same voters again changes nothing; it is for those who only listen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ledgermq.node.controller.journal import Entry
from ledgermq.node.controller.wire import JsonCodec

TYPE = b"\x02"
"""The library's own type byte of a change of members; it looks at these entries when they are appended and cut."""
VERB = "voters"


def encode(voters: Sequence[str]) -> bytes:
    return TYPE + JsonCodec.dumps([VERB, list(voters)])


def decode(command: bytes) -> tuple[str, ...] | None:
    """The voters that an entry names; None for any other entry. Raises ValueError for one that this version does not know."""
    if command[:1] != TYPE:
        return None
    verb, named = JsonCodec.loads(command[1:])
    if verb != VERB:
        raise ValueError(f"controller entry {verb!r} about its members")
    return tuple(named)


def newest(entries: Iterable[Entry]) -> tuple[int, tuple[str, ...]] | None:
    """Index and voters of the last entry that names them."""
    found = None
    for command, index, _ in entries:
        named = decode(command)
        if named is not None:
            found = index, named
    return found


def objection(leader: str, current: Collection[str], wanted: Collection[str], reached: Collection[str], *, settled: bool) -> str | None:
    """Why the leader must not append a change from `current` to `wanted`; None: it may. `reached`: the nodes it is connected to, itself
    included. `settled`: the last change and an entry of its own term are committed. A voter that is added counts as reached: whoever asks
    has made sure."""
    if len(set(current) ^ set(wanted)) > 1:
        return f"the controller quorum changes by one node at a time; it is {', '.join(sorted(current))} now"
    if not settled:
        return "the last change of the controller quorum is not committed yet"
    if lost := would_lose_quorum(current, wanted, reached):
        return lost
    if leader not in wanted:
        return f"{leader} leads the controller quorum and hands it over first"
    return None


def would_lose_quorum(current: Collection[str], wanted: Collection[str], reached: Collection[str]) -> str | None:
    """A sentence when less than a majority of `wanted` would be there."""
    there = [node for node in wanted if node in reached or node not in current]
    if wanted and len(there) * 2 > len(wanted):
        return None
    missing = ", ".join(sorted(set(wanted) - set(there))) or "everybody"
    return (
        f"the controller quorum of {len(current)} would become one of {len(wanted)} of which only {len(there)} can be reached "
        f"(missing: {missing}); it could decide nothing any more"
    )
