"""The log entries that name the voters of the controller quorum, and the rule for which change a
leader may append.

Pure. Each of these entries names all voters, so the newest one in a journal gives the voters at the
journal's end. It is in force as soon as it is appended, and undone if it is cut off (Raft
dissertation, chapter 4). The first entry of a quorum names its initial voters. The first entry of a
joining node names none, until the quorum tells the node.

A leader changes one voter at a time, and only after the previous change and an entry of its own
term are committed: then the majorities before and after a change share a node. An entry that
repeats the present voters changes nothing; it informs nodes that only listen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ledgermq.node.controller.journal import Entry
from ledgermq.node.controller.wire import JsonCodec

TYPE = b"\x02"
"""The library's type byte of a membership change; the library processes these entries when they are
appended and cut."""
VERB = "voters"


def encode(voters: Sequence[str]) -> bytes:
    return TYPE + JsonCodec.dumps([VERB, list(voters)])


def decode(command: bytes) -> tuple[str, ...] | None:
    """The voters that an entry names; None for any other entry. Raises ValueError for an entry of
    an unknown version."""
    if command[:1] != TYPE:
        return None
    verb, named = JsonCodec.loads(command[1:])
    if verb != VERB:
        raise ValueError(f"controller entry {verb!r} about its members")
    return tuple(named)


def newest(entries: Iterable[Entry]) -> tuple[int, tuple[str, ...]] | None:
    """Index and voters of the last entry that names voters; None if there is none."""
    found = None
    for command, index, _ in entries:
        named = decode(command)
        if named is not None:
            found = index, named
    return found


def objection(
    leader: str,
    current: Collection[str],
    wanted: Collection[str],
    reached: Collection[str],
    *,
    settled: bool,
) -> str | None:
    """Why the leader must not append a change from `current` to `wanted`; None if it may.
    `reached`: the nodes that the leader is connected to, itself included. `settled`: the last
    change and an entry of the leader's own term are committed. An added voter counts as reached,
    because the caller has checked that it is."""
    if len(set(current) ^ set(wanted)) > 1:
        return (
            "the controller quorum changes by one node at a time; it is"
            f" {', '.join(sorted(current))} now"
        )
    if not settled:
        return "the last change of the controller quorum is not committed yet"
    if lost := would_lose_quorum(current, wanted, reached):
        return lost
    if leader not in wanted:
        return f"{leader} leads the controller quorum and hands it over first"
    return None


def would_lose_quorum(
    current: Collection[str], wanted: Collection[str], reached: Collection[str]
) -> str | None:
    """An explanation if fewer than a majority of `wanted` would be reachable; None otherwise."""
    there = [node for node in wanted if node in reached or node not in current]
    if wanted and len(there) * 2 > len(wanted):
        return None
    missing = ", ".join(sorted(set(wanted) - set(there))) or "all"
    return (
        f"the controller quorum of {len(current)} would become one of {len(wanted)} of which only"
        f" {len(there)} can be reached (missing: {missing}); it could no longer decide anything"
    )
