"""A case: everything that determines a run, as one value that can be written to a file and run
again.

This module holds the value, its JSON form, and the way from a case to its outcome. A case without a
plan uses the plan of its seed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ledgermq.node.broker.flush import FlushPolicy, LazySync
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.transactions.transaction_checks import TransactionRules
from ledgermq.raft.config import HaRules, Rule, Timing
from ledgermq.sim.checks.outcome import Outcome, TimelineEvent
from ledgermq.sim.faults import acting, draw, drawn_from
from ledgermq.sim.faults.plan import Plan, PlanError
from ledgermq.sim.machine.settings import HA, Settings
from ledgermq.sim.nodes.bugs import Bug
from ledgermq.sim.runs.world import World

DEFAULT_STEPS = 5000
VERSION = 1


@dataclass(frozen=True, slots=True)
class Case:
    """`steps` events on a cluster from a seed, and the faults that occur."""

    seed: int
    steps: int = DEFAULT_STEPS
    settings: Settings = field(default_factory=Settings)
    plan: Plan = field(default_factory=Plan)
    bug: Bug = Bug.NONE

    @staticmethod
    def drawn(
        seed: int,
        steps: int,
        settings: Settings,
        kinds: tuple[str, ...] | None,
        bug: Bug = Bug.NONE,
    ) -> Case:
        """A case with the plan of its seed."""
        known = drawn_from(settings) if kinds is None else kinds
        return Case(seed, steps, settings, draw(seed, settings.names, steps, known), bug)

    def run(self) -> Ran:
        """Run it once in a new world. Raises PlanError."""
        world = World(self.seed, settings=self.settings, bug=self.bug)
        result = world.run(self.steps, acting(self.plan))
        return Ran(self, result, tuple(world.events), dict(world.faults))

    def to_json(self) -> str:
        whole = {
            "v": VERSION,
            "seed": self.seed,
            "steps": self.steps,
            "settings": _settings_object(self.settings),
            "bug": self.bug.value,
            "plan": self.plan.as_object(),
        }
        return json.dumps(whole, indent=1)

    @staticmethod
    def from_json(text: str) -> Case:
        """Raises PlanError."""
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"not JSON: {error}") from error
        if not isinstance(given, dict) or given.get("v") != VERSION:
            raise PlanError(
                f'a case is an object with "v": {VERSION}, as --shrink --save writes it'
            )
        seed, steps = given.get("seed"), given.get("steps")
        if (
            isinstance(seed, bool)
            or not isinstance(seed, int)
            or isinstance(steps, bool)
            or not isinstance(steps, int)
            or steps < 1
        ):
            raise PlanError('a case needs a whole number "seed" and at least one of "steps"')
        try:
            return Case(
                seed,
                steps,
                _settings(given["settings"]),
                Plan.from_object(given.get("plan")),
                Bug(given.get("bug", "none")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise (
                error
                if isinstance(error, PlanError)
                else PlanError(f"its settings cannot be read: {error!r}")
            ) from error

    def with_events(self, plan: Plan) -> Case:
        return replace(self, plan=plan)


@dataclass(frozen=True, slots=True)
class Ran:
    """A case, its outcome, and the last events."""

    case: Case
    result: Outcome
    events: tuple[TimelineEvent, ...]
    faults: dict[str, int]
    """How often each kind of fault was carried out."""


def _settings_object(settings: Settings) -> dict[str, Any]:
    def fields(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in value.__dataclass_fields__}

    told = {
        **fields(settings),
        "names": list(settings.names),
        "policy": settings.policy.value,
        "rule": settings.rule.value,
    }
    parts = ("timing", "lazy", "times", "transactions", "ha")
    return {**told, **{name: fields(getattr(settings, name)) for name in parts}}


def _settings(given: dict[str, Any]) -> Settings:
    values = {
        **given,
        "names": tuple(given["names"]),
        "policy": FlushPolicy(given["policy"]),
        "timing": Timing(**given["timing"]),
        "lazy": LazySync(**given["lazy"]),
        "times": LeaseTimes(**given["times"]),
        "transactions": TransactionRules(**given["transactions"]),
        # Cases that were saved before HA groups existed.
        "rule": Rule(given.get("rule", Rule.MAJORITY)),
        "ha": HaRules(**given["ha"]) if "ha" in given else HA,
    }
    return Settings(**values)
