"""A fault schedule as data: which fault happens when, drawn before a run, written to a file,
shortened and replayed.

This module has only the value and its JSON form. `__init__.py` defines the kinds, draws them and
carries them out.

    {"v": 1, "events": [{"at_ns": 120000000, "kind": "kill", "params": {"node": "leader", "for_ns": 700000000}}]}

A parameter is a number, a text or a boolean, so that two plans are equal exactly if their files
are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Value = int | float | str | bool
Params = Mapping[str, Value]
VERSION = 1


class PlanError(ValueError):
    """A plan that cannot be read; the text names the event and the reason."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One fault: `at_ns` after the start of the run (virtual nanoseconds), its kind, and the other
    parameters that `__init__.py` drew."""

    at_ns: int
    kind: str
    params: Params = field(default_factory=dict)

    def number(self, name: str) -> int:
        """An integer parameter. Raises PlanError."""
        value = self.params.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise PlanError(
                f"{self.kind} at {self.at_ns} ns needs a whole number {name!r}, not {value!r}"
            )
        return value

    def share(self, name: str) -> float:
        """A parameter that is a share or a factor. Raises PlanError."""
        value = self.params.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise PlanError(
                f"{self.kind} at {self.at_ns} ns needs a number {name!r}, not {value!r}"
            )
        return float(value)

    def text(self, name: str) -> str:
        """A text parameter. Raises PlanError."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise PlanError(f"{self.kind} at {self.at_ns} ns needs a text {name!r}, not {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """A parameter that is true or false; absent is false."""
        return self.params.get(name) is True

    def __str__(self) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.params.items() if name != "salt")
        return f"{self.kind} {told}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults in the order in which they are carried out."""

    events: tuple[FaultEvent, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "events", tuple(sorted(self.events, key=lambda event: event.at_ns))
        )

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[FaultEvent]:
        return iter(self.events)

    def kinds(self) -> tuple[str, ...]:
        """Every kind in it, once, in order of first appearance."""
        return tuple(dict.fromkeys(event.kind for event in self.events))

    def as_object(self) -> dict[str, Any]:
        """The JSON form."""
        events = [
            {"at_ns": event.at_ns, "kind": event.kind, "params": dict(event.params)}
            for event in self.events
        ]
        return {"v": VERSION, "events": events}

    def to_json(self) -> str:
        return json.dumps(self.as_object(), indent=1)

    @staticmethod
    def from_object(given: Any) -> Plan:
        """Raises PlanError."""
        if (
            not isinstance(given, dict)
            or given.get("v") != VERSION
            or not isinstance(given.get("events"), list)
        ):
            raise PlanError(f'a plan is an object with "v": {VERSION} and a list of "events"')
        return Plan(tuple(_events(given["events"])))

    @staticmethod
    def from_json(text: str) -> Plan:
        """Raises PlanError."""
        try:
            return Plan.from_object(json.loads(text))
        except json.JSONDecodeError as error:
            raise PlanError(f"not JSON: {error}") from error


def _events(given: Iterable[Any]) -> Iterator[FaultEvent]:
    for number, event in enumerate(given):
        if not isinstance(event, dict):
            raise PlanError(f"event {number} is not an object")
        at_ns, kind, params = event.get("at_ns"), event.get("kind"), event.get("params", {})
        if isinstance(at_ns, bool) or not isinstance(at_ns, int) or at_ns < 0:
            raise PlanError(f'event {number} has no "at_ns" of whole nanoseconds')
        if not isinstance(kind, str) or not isinstance(params, dict):
            raise PlanError(f'event {number} needs a "kind" and an object of "params"')
        for name, value in params.items():
            if not isinstance(value, (int, float, str, bool)):
                raise PlanError(
                    f"event {number} has a parameter {name!r} that is not a number, a text or a"
                    " boolean"
                )
        yield FaultEvent(at_ns, kind, params)
