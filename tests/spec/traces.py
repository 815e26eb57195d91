"""Observed runs as a TLA+ module: `Observed`, which `Trace.tla` checks.

Entries that no event tells apart are one entry there: only those indexes count at which an append,
a sync, a commit, a reply or a log ended. They become 1, 2, 3 …, and the place before the first
entry becomes 0. Directories are numbered by node, in the order of their first start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.spec.recorder import Event

ENDS = ("to", "at")
"""Fields of events that are indexes."""


@dataclass(frozen=True)
class Observed:
    """A trace in the specification's terms."""

    nodes: tuple[str, ...]
    founders: tuple[str, ...]
    first_rule: str
    minimum: int
    terms: int
    events: tuple[str, ...]

    def module(self) -> str:
        lines = ",\n".join(self.events)
        return (
            "------------------------------ MODULE Observed ------------------------------\n"
            "EXTENDS Members, TLC\n"
            f"Events == <<\n{lines}\n>>\n"
            "=============================================================================\n"
        )

    def constants(self) -> dict[str, str]:
        return {
            "Nodes": _set(self.nodes),
            "Founders": _set(self.founders),
            "FirstRule": f'"{self.first_rule}"',
            "Minimum": str(self.minimum),
            "TermMax": str(self.terms),
        }


def finished_turns(events: Sequence[Event]) -> list[Event]:
    """The events without what a killed process had decided and told nobody. A turn ends with the
    event `told`, and its messages leave after that. A process that starts without the term or vote
    of its unfinished turn had not stored them: the rest of that turn had no effect."""
    kept: list[Event | None] = list(events)
    turns: dict[str, list[int]] = {}
    for place, event in enumerate(events):
        if event["do"] == "decide":
            continue
        turn = turns.setdefault(event["node"], [])
        if event["do"] == "told":
            kept[place] = None
            turn.clear()
            continue
        if event["do"] == "start":
            for undone in _undone([events[one] for one in turn], event["after"]):
                kept[turn[undone]] = None
            turn.clear()
        turn.append(place)
    return [event for event in kept if event is not None]


def without_heartbeats(events: Sequence[Event]) -> list[Event]:
    """The events without a follower's receipts and replies that say what its last ones said while
    nothing changed there."""
    kept: list[Event] = []
    last: dict[tuple[str, str], Event] = {}
    for event in events:
        do, node = event["do"], event.get("node", "")
        said = {name: value for name, value in event.items() if name not in ("after", "ns")}
        if last.get((node, do)) == said:
            continue
        for other in (
            ("reply",) if do == "receive" else () if do == "reply" else ("reply", "receive")
        ):
            last.pop((node, other), None)
        if do in ("receive", "reply"):
            last[node, do] = said
        kept.append(event)
    return kept


def _undone(turn: Sequence[Event], found: Event) -> range:
    """Which events of an unfinished turn had no effect: from the first decision on that was not
    stored."""
    for at, event in enumerate(turn):
        after = event.get("after")
        if (
            after is not None
            and (after["term"], after["vote"]) != (found["term"], found["vote"])
            and after["term"] >= found["term"]
        ):
            return range(at, len(turn))
    return range(0)


def observed(
    events: Sequence[Event], founders: Sequence[str], first_rule: str, minimum: int = 1
) -> Observed:
    """The trace in the specification's terms. Raises ValueError for a log that was trimmed."""
    numbers = _Numbers(events)
    nodes = sorted({*founders, *(str(event["node"]) for event in events if "node" in event)})
    terms = max((int(event["after"]["term"]) for event in events if event.get("after")), default=1)
    terms = max([terms, *(event["made"]["epoch"] for event in events if event["do"] == "decide")])
    writer = _Writer(numbers, tuple(nodes))
    return Observed(
        tuple(nodes),
        tuple(founders),
        first_rule,
        minimum,
        max(terms, 1),
        tuple(writer.event(event) for event in events),
    )


class _Numbers:
    """Indexes and directories as small numbers."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.directories: dict[str, list[str]] = {}
        ends: set[int] = {0}
        for event in events:
            ends.update(int(event[name]) for name in ENDS if name in event)
            after = event.get("after")
            if after:
                ends.update((after["end"], after["synced"], after["commit"]))
            members = event.get("members")
            if members:
                ends.update((event["to"], event["to"] - 1))
            if event["do"] == "start":
                if event["begin"] > 0:
                    raise ValueError("the log was trimmed before the trace began")
                ends.update(first - 1 for first, _ in event["runs"])
                known = self.directories.setdefault(event["node"], [])
                if event["directory"] not in known:
                    known.append(event["directory"])
        self.ends = sorted(end for end in ends if end >= 0)

    def index(self, index: int) -> int:
        if index < 0:
            return 0
        place = bisect_left(self.ends, index)
        assert self.ends[place] == index, index
        return place + 1

    def directory(self, node: str, incarnation: str) -> int:
        """1 for the first one, by which a member is also known that the log does not name by a
        directory."""
        known = self.directories.get(node, [])
        return 1 if not incarnation or incarnation not in known else known.index(incarnation) + 1


class _Writer:
    def __init__(self, numbers: _Numbers, nodes: tuple[str, ...]) -> None:
        self._numbers = numbers
        self._nodes = nodes
        self._decided: list[Event] = []

    def event(self, event: Event) -> str:
        """One event as a TLA+ record."""
        do, number = event["do"], self._numbers.index
        fields: dict[str, str] = {"do": _text(do)}
        if "node" in event:
            fields["node"] = _text(event["node"])
        after = event.get("after")
        fields["after"] = "None" if after is None else self._after(after)
        for name in ("for", "leader"):
            if name in event:
                fields[name] = _text(event[name])
        if "term" in event:
            fields["term"] = str(event["term"])
        for name in ENDS:
            if name in event:
                fields[name] = str(number(event[name]))
        if do == "start":
            fields["directory"] = str(self._numbers.directory(event["node"], event["directory"]))
            fields["terms"] = self._terms(event["runs"], after["end"])
        elif do == "append":
            fields["members"] = (
                "None" if event["members"] is None else self._members(event["members"])
            )
        elif do == "reply":
            fields["sound"] = str(event["sound"]).upper()
        elif do == "set":
            fields["wanted"] = _set(event["wanted"])
        elif do == "learn":
            fields["number"] = str(self._decided.index(event["appointment"]) + 1)
        elif do == "decide":
            self._decided.append(event["made"])
            fields["ask"], fields["made"] = self._ask(event["ask"]), self._made(event["made"])
        return _record(fields)

    def _after(self, after: Event) -> str:
        ends = {name: str(self._numbers.index(after[name])) for name in ("end", "synced", "commit")}
        return _record(
            {
                "term": str(after["term"]),
                "vote": _name(after["vote"]),
                "role": _text(after["role"]),
                **ends,
            }
        )

    def _terms(self, runs: list[list[int]], end: int) -> str:
        """The term of each entry of a log, in the specification's numbering."""
        terms = []
        for last in self._numbers.ends:
            if last <= end:
                terms.append(next(term for first, term in reversed(runs) if first <= last))
        return f"<<{', '.join(map(str, terms))}>>"

    def _per_node(self, directories: Mapping[str, str]) -> str:
        number = self._numbers.directory
        each = {
            node: number(node, directories[node]) if node in directories else 0
            for node in self._nodes
        }
        return "(" + " @@ ".join(f"{_text(node)} :> {value}" for node, value in each.items()) + ")"

    def _members(self, members: Event) -> str:
        sets = {name: _set(members[name]) for name in ("voters", "learners", "returning")}
        since = 0 if members["rule"] == "majority" else self._numbers.index(members["since"])
        rule = {
            "rule": _text(members["rule"]),
            "towards": _name(members["towards"]),
            "since": str(since),
        }
        return _record({**sets, **rule, "dirs": self._per_node(members["directories"])})

    def _ask(self, ask: Event) -> str:
        fields = {"kind": _text(ask["kind"]), "node": _text(ask["node"])}
        fields["generation"] = str(self._numbers.index(ask["generation"]))
        fields["epoch"] = str(ask["epoch"])
        if ask["kind"] == "alter":
            return _record(
                {**fields, "version": str(ask["version"]), "sync": self._per_node(ask["in_sync"])}
            )
        directory = str(self._numbers.directory(ask["node"], ask["incarnation"]))
        voters = self._per_node(ask["voters"])
        return _record(
            {
                **fields,
                "directory": directory,
                "term": str(ask["term"]),
                "voters": voters,
                "begun": str(ask["begun"]).upper(),
            }
        )

    def _made(self, made: Event) -> str:
        numbers = {name: str(made[name]) for name in ("version", "epoch")}
        generation = str(self._numbers.index(made["generation"]))
        return _record(
            {
                "generation": generation,
                **numbers,
                "master": _text(made["master"]),
                "sync": self._per_node(made["in_sync"]),
            }
        )


def _text(value: str) -> str:
    return f'"{value}"'


def _name(value: str | None) -> str:
    return "None" if value is None else _text(value)


def _set(values: Iterable[str]) -> str:
    return "{" + ", ".join(_text(value) for value in values) + "}"


def _record(fields: Mapping[str, str]) -> str:
    return "[" + ", ".join(f"{name} |-> {value}" for name, value in fields.items()) + "]"
