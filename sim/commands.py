"""The `ledgermq sim` command: a cluster on virtual time from a seed, and the verdict of its checkers.

stdout is a pure function of the arguments and the code: no time, no path, no process id.
"""

from __future__ import annotations

import json
from typing import Any

import click

from ledgermq.node.core.flush import FlushPolicy
from ledgermq.sim.bugs import Bug
from ledgermq.sim.faults import FAULTS, KNOWN, schedule
from ledgermq.sim.node import DATA_FILE_BYTES, SMALL_FILE_BYTES
from ledgermq.sim.world import Outcome, World

DEFAULT_STEPS = 2000


class SeedRange(click.ParamType[range]):
    """`A..B`, both ends included."""

    name = "A..B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        low, dots, high = str(value).partition("..")
        if not dots or not low.isdigit() or not high.isdigit() or int(high) < int(low):
            self.fail(f"{value!r} is not a range of seeds; give for instance 1..100", param, ctx)
        return range(int(low), int(high) + 1)


class FaultList(click.ParamType[tuple[str, ...]]):
    """Kinds of faults, joined by commas."""

    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part for part in str(value).split(",") if part)
        for name in names:
            if name not in KNOWN:
                self.fail(f"there is no fault {name!r}; known: {', '.join(KNOWN)}", param, ctx)
        return names


@click.command()
@click.option("--seed", type=click.IntRange(0), help="One seed; 1 by default.")
@click.option("--seeds", type=SeedRange(), help="Several seeds; stops at the first that fails.")
@click.option("--steps", type=click.IntRange(1), default=DEFAULT_STEPS, show_default=True, help="Events before everything heals.")
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True)
@click.option("--faults", type=FaultList(), help=f"Only these: {', '.join(KNOWN)}.")
@click.option("--policy", type=click.Choice([p.value for p in FlushPolicy]), default="durable", show_default=True, help="Flush policy.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def sim(seed: int | None, seeds: range | None, steps: int, nodes: int, faults: tuple[str, ...] | None, policy: str, as_json: bool) -> None:
    """Run the whole cluster on virtual time, on disks that forget and a network that loses, and check every invariant after every step.

    \b
    Examples:
      ledgermq sim --seed 7
      ledgermq sim --seeds 1..200 --faults power-cut-all,isolate

    Exit status: 0 all invariants held, 1 one was broken.
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("give --seed or --seeds, not both; one of them is enough")
    kinds = tuple(FAULTS) if faults is None else faults
    chosen = seeds if seeds is not None else range(1 if seed is None else seed, (1 if seed is None else seed) + 1)
    outcome = None
    for number in chosen:
        world = World(number, nodes=nodes, bug=Bug.NONE, policy=FlushPolicy(policy), file_bytes=_file_bytes(kinds))
        outcome = world.run(steps, schedule(kinds))
        if not outcome.passed:
            break
    assert outcome is not None
    report(outcome, len(chosen), as_json)
    if not outcome.passed:
        raise SystemExit(1)


def _file_bytes(kinds: tuple[str, ...]) -> int:
    """Log files so small that some of them can go within a run."""
    return SMALL_FILE_BYTES if "trim" in kinds else DATA_FILE_BYTES


def report(outcome: Outcome, count: int, as_json: bool) -> None:
    """The last line in text form, or the JSON object."""
    if as_json:
        fields = {
            "v": 1,
            "verdict": "PASS" if outcome.passed else "FAIL",
            "seeds": count,
            "seed": outcome.seed,
            "steps": outcome.steps,
            "digest": outcome.digest,
            "entries_committed": outcome.commits,
            "terms": outcome.terms,
            "batches_acknowledged_durable": outcome.acknowledged_durable,
            "batches_acknowledged_memory": outcome.acknowledged_memory,
            "batches_lost_from_memory": outcome.lost_memory,
            "invariant": None if outcome.violation is None else outcome.violation.invariant,
            "reason": None if outcome.violation is None else str(outcome.violation),
        }
        click.echo(json.dumps(fields, separators=(",", ":")))
        return
    click.echo(f"{outcome.commits} entries committed in {outcome.terms} terms")
    if outcome.acknowledged_memory:
        click.echo(f"{outcome.acknowledged_memory} batches acknowledged from memory, {outcome.lost_memory} of them lost")
    if outcome.violation is None:
        click.echo(f"sim: PASS seed={outcome.seed} steps={outcome.steps} digest={outcome.digest}")
    else:
        click.echo(str(outcome.violation))
        click.echo(f"sim: FAIL seed={outcome.seed} invariant={outcome.violation.invariant} step={outcome.steps}")
