"""The `ledgermq sim` command: runs a cluster on virtual time from a seed, and prints the verdict of
its checkers.

stdout is a function of the arguments, the files they name and the code: it contains no time, no
path and no process id.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.proto.status import ExitCode
from ledgermq.raft.config import HaRules, Rule
from ledgermq.sim.cli.cases import DEFAULT_STEPS, Case, Ran
from ledgermq.sim.cli.shrink import RUNS_MAX, shrink
from ledgermq.sim.cli.timeline import draw, explain
from ledgermq.sim.faults import FAULTS, KNOWN, faults_ha
from ledgermq.sim.faults.plan import PlanError
from ledgermq.sim.machine.settings import HA, SMALL_FILE_BYTES, Settings, SettingsError, read
from ledgermq.sim.nodes.bugs import Bug
from ledgermq.sim.runs.cluster import BEGAN_NS
from ledgermq.storage.files.real_disk import RealDisk

NODES_MAX = 9


class SeedRange(click.ParamType[range]):
    """`A..B`, both ends included."""

    name = "A..B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> range:
        if isinstance(value, range):
            return value
        low, dots, high = str(value).partition("..")
        if not dots or not low.isdigit() or not high.isdigit() or int(high) < int(low):
            self.fail(f"{value!r} is not a range of seeds; give for instance 1..100", param, ctx)
        return range(int(low), int(high) + 1)


class FaultList(click.ParamType[tuple[str, ...]]):
    """Kinds of faults, separated by commas."""

    name = "a,b"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part for part in str(value).split(",") if part)
        for name in names:
            if name not in KNOWN:
                self.fail(f"there is no fault {name!r}; known: {', '.join(KNOWN)}", param, ctx)
        return names


class HaWords(click.ParamType[HaRules]):
    """The rules of an HA group's master, separated by commas."""

    name = "a,b"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> HaRules:
        if isinstance(value, HaRules):
            return value
        words = [word for word in str(value).split(",") if word]
        least = 1
        for word in words:
            name, _, number = word.partition("=")
            if name == "min" and number.isdigit() and 1 <= int(number) <= NODES_MAX:
                least = int(number)
            elif word not in ("async", "in-sync", "push", "pull"):
                self.fail(
                    f"{word!r} is not an HA setting; known: async, in-sync, push, pull, min=N (1 to"
                    f" {NODES_MAX})",
                    param,
                    ctx,
                )
        if "async" in words and ("in-sync" in words or least > 1):
            self.fail("async waits for no replica; omit in-sync and min=N", param, ctx)
        return replace(HA, ack_async="async" in words, minimum=least, pull="pull" in words)


class UnusableFile(click.ClickException):
    """A configuration or plan that cannot be used; a usage error."""

    exit_code = ExitCode.USAGE


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option("--seed", type=click.IntRange(0), help="One seed; 1 by default.")
@click.option("--seeds", type=SeedRange(), help="Run several seeds; stop at the first that fails.")
@click.option(
    "--steps", type=click.IntRange(1), help=f"Events before faults end.  [default: {DEFAULT_STEPS}]"
)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), help="Number of nodes.  [default: 3]")
@click.option(
    "--faults",
    type=FaultList(),
    help=f"Only these faults: {', '.join(KNOWN)}.  [default: {', '.join(FAULTS)}]",
)
@click.option(
    "--ha",
    type=HaWords(),
    help="An HA group: async or in-sync, push or pull, min=N; for instance in-sync,pull,min=2.",
)
@click.option(
    "--policy",
    type=click.Choice([p.value for p in FlushPolicy]),
    help="Flush policy.  [default: durable]",
)
@click.option(
    "--config",
    "config_file",
    type=_FILE,
    help="Nodes, timing, flush policy and file sizes of this node configuration.",
)
@click.option("--group", help="The broker group of --config.  [default: the first]")
@click.option("--plan", "plan_file", type=_FILE, help="Replay a run written by --shrink --save.")
@click.option(
    "--shrink",
    "shrinks",
    is_flag=True,
    help="Search for a shorter run that breaks the same invariant.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the failing (or shortened) run to this file.",
)
@click.option(
    "--bug",
    type=click.Choice([b.value for b in Bug]),
    default="none",
    help="Break one rule of the product, to test checkers.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def sim(
    seed: int | None,
    seeds: range | None,
    steps: int | None,
    nodes: int | None,
    faults: tuple[str, ...] | None,
    ha: HaRules | None,
    policy: str | None,
    config_file: Path | None,
    group: str | None,
    plan_file: Path | None,
    shrinks: bool,
    save: Path | None,
    bug: str,
    as_json: bool,
) -> None:
    """Simulate a whole cluster on virtual time, with faulty disks and networks, and check every
    invariant after every step.

    \b
    Examples:
      ledgermq sim --seed 7
      ledgermq sim --seeds 1..200 --faults power-cut-all,isolate
      ledgermq sim --config node.yaml --seeds 1..50
      ledgermq sim --ha async,pull --seeds 1..50
      ledgermq sim --seed 41 --shrink --save short.json
      ledgermq sim --plan short.json

    Exit status: 0 all invariants held, 1 an invariant was broken.
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("give only one of --seed and --seeds")
    if save is not None and not save.absolute().parent.is_dir():
        raise click.UsageError(
            f"--save: there is no directory {save.parent}; create it, or choose another place"
        )
    if plan_file is not None:
        given: dict[str, object] = {
            "--seed": seed,
            "--seeds": seeds,
            "--steps": steps,
            "--nodes": nodes,
            "--faults": faults,
            "--ha": ha,
        }
        given |= {"--policy": policy, "--bug": None if bug == Bug.NONE.value else bug}
        told = [
            name for name, value in {**given, "--config": config_file}.items() if value is not None
        ]
        if told:
            raise click.UsageError(f"--plan defines the whole run; omit {told[0]}")
        cases = [_load(plan_file)]
        replay = "ledgermq sim --plan FILE"
    else:
        settings = _settings(
            config=config_file, group=group, nodes=nodes, ha=ha, policy=policy, kinds=faults
        )
        _refuse_pointless(settings, faults)
        chosen = seeds if seeds is not None else [1 if seed is None else seed]
        cases = [
            Case.drawn(number, steps or DEFAULT_STEPS, settings, faults, Bug(bug))
            for number in chosen
        ]
        replay = _replay(steps, nodes, faults, ha, policy, config=config_file, group=group, bug=bug)
    ran = _run_all(cases)
    if not ran.result.passed:
        tries = 0
        if shrinks:
            ran, tries = shrink(ran, Case.run, _tell)
        if save is not None:
            RealDisk().replace_file(str(save.absolute()), ran.case.to_json().encode() + b"\n")
        if not as_json:
            _explain(ran, tries, replay)
    report(ran, len(cases), as_json)
    if not ran.result.passed:
        raise SystemExit(1)


def _run_all(cases: list[Case]) -> Ran:
    """Run until one fails; returns the last run."""
    assert cases
    for case in cases:
        try:
            ran = case.run()
        except PlanError as error:
            raise UnusableFile(
                f"the plan cannot be carried out: {error}; see: ledgermq sim --help"
            ) from error
        if not ran.result.passed:
            break
    return ran


def _load(path: Path) -> Case:
    try:
        return Case.from_json(path.read_text())
    except (OSError, UnicodeDecodeError, PlanError) as error:
        raise UnusableFile(
            f"{path} is not a run to replay ({error}); create one with: ledgermq sim --seed N"
            " --save FILE"
        ) from error


def _refuse_pointless(settings: Settings, kinds: tuple[str, ...] | None) -> None:
    """Reject faults that cannot occur and a minimum that cannot be met: such a run would show
    nothing."""
    if settings.rule is not Rule.IN_SYNC and "change-over" not in (kinds or ()):
        for kind in kinds or ():
            if kind in faults_ha.KINDS:
                raise click.UsageError(
                    f"{kind} applies to HA groups only; add --ha in-sync, or --ha async"
                )
    elif settings.ha.minimum > len(settings.names):
        raise click.UsageError(
            f"{len(settings.names)} nodes can never have {settings.ha.minimum} in sync; use a"
            " smaller min=N or more nodes"
        )


def _settings(
    config: Path | None,
    group: str | None,
    nodes: int | None,
    ha: HaRules | None,
    policy: str | None,
    kinds: tuple[str, ...] | None,
) -> Settings:
    if config is None:
        if group is not None:
            raise click.UsageError("--group names a broker group of --config; give both")
        settings = Settings.of_nodes(nodes or 3)
        if ha is not None:
            settings = replace(settings, rule=Rule.IN_SYNC, ha=ha)
        if kinds is not None and {"trim", "seal"} & {*kinds}:
            # Log files small enough that some of them can be sealed and trimmed within a run.
            settings = replace(settings, file_bytes=SMALL_FILE_BYTES)
    else:
        if nodes is not None:
            raise click.UsageError("the nodes are those of --config; omit --nodes")
        if ha is not None:
            raise click.UsageError("--config defines how the group replicates; omit --ha")
        try:
            settings = read(config.read_text(), group)
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            raise UnusableFile(f"{config} cannot be simulated: {error}") from error
    return settings if policy is None else replace(settings, policy=FlushPolicy(policy))


def _replay(
    steps: int | None,
    nodes: int | None,
    faults: tuple[str, ...] | None,
    ha: HaRules | None,
    policy: str | None,
    config: Path | None,
    group: str | None,
    bug: str,
) -> str:
    """The command that runs a seed again, up to the failing step."""
    options = {
        "--steps": steps,
        "--nodes": nodes,
        "--faults": None if faults is None else ",".join(faults),
    }
    more = {"--ha": None if ha is None else _words(ha), "--policy": policy, "--group": group}
    more["--bug"] = None if bug == Bug.NONE.value else bug
    told = [f"{name} {value}" for name, value in {**options, **more}.items() if value is not None]
    return " ".join(
        ["ledgermq sim", *told, *(["--config FILE"] if config is not None else []), "--seed"]
    )


def _words(ha: HaRules) -> str:
    """The value for `--ha`."""
    words = ["async" if ha.ack_async else "in-sync", "pull" if ha.pull else "push"]
    return ",".join(words if ha.minimum == 1 else [*words, f"min={ha.minimum}"])


def _tell(ran: Ran) -> None:
    """Progress of a search, on stderr."""
    click.echo(f"shorter: {len(ran.case.plan)} faults, {ran.result.steps} steps", err=True)


def _explain(ran: Ran, tries: int, replay: str) -> None:
    """Print one screen: the violated invariant, the faults before it, the last actions, and the
    command to replay it."""
    result, case = ran.result, ran.case
    violation = result.violation
    assert violation is not None
    for line in explain(violation.invariant, str(violation), result.virtual_ns, result.steps):
        click.echo(line)
    carried = ", ".join(f"{count} {kind}" for kind, count in ran.faults.items()) or "none"
    click.echo(f"faults carried out: {carried}")
    click.echo("")
    for line in draw(ran.events, case.settings.names, since_ns=BEGAN_NS):
        click.echo(line)
    click.echo("")
    if tries:
        click.echo(
            f"shortened in {tries} of at most {RUNS_MAX} runs to {len(case.plan)} faults and"
            f" {result.steps} steps"
        )
        for event in case.plan:
            click.echo(f"  {event.at_ns / 1e9:.3f} s  {event}")
        click.echo("keep it with --save FILE, replay it with: ledgermq sim --plan FILE")
    else:
        click.echo(f"replay: {replay if replay.endswith('FILE') else f'{replay} {case.seed}'}")


def report(ran: Ran, count: int, as_json: bool) -> None:
    """Print the result as text or as the JSON object."""
    result, violation = ran.result, ran.result.violation
    if as_json:
        fields = {
            "v": 1,
            "verdict": "PASS" if result.passed else "FAIL",
            "seeds": count,
            "seed": result.seed,
            "steps": result.steps,
            "digest": result.digest,
            "entries_committed": result.commits,
            "terms": result.terms,
            "virtual_ms": result.virtual_ns // 1_000_000,
            "counts": result.counts,
            "coverage": {
                name.replace("-", "_"): number for name, number in result.coverage.items()
            },
            "faults": {name.replace("-", "_"): number for name, number in ran.faults.items()},
            "batches_acknowledged_durable": result.acknowledged_durable,
            "batches_acknowledged_memory": result.acknowledged_memory,
            "batches_lost_from_memory": result.lost_memory,
            "invariant": None if violation is None else violation.invariant,
            "reason": None if violation is None else str(violation),
        }
        click.echo(json.dumps(fields, separators=(",", ":")))
        return
    if violation is not None:
        click.echo(
            f"sim: FAIL seed={result.seed} invariant={violation.invariant} step={result.steps}"
        )
        return
    click.echo(
        f"{result.commits} entries committed in {result.terms} terms, {result.virtual_ns / 1e9:.1f}"
        " virtual seconds"
    )
    if result.acknowledged_memory:
        alone = ran.case.settings.rule is Rule.IN_SYNC and ran.case.settings.ha.ack_async
        by = "by a master alone" if alone else "from memory"
        click.echo(
            f"{result.acknowledged_memory} batches acknowledged {by}, {result.lost_memory} of them"
            " lost"
        )
    click.echo(
        "faults: "
        + (", ".join(f"{number} {name}" for name, number in ran.faults.items()) or "none")
    )
    click.echo(
        "covered: "
        + (
            ", ".join(f"{number} {name}" for name, number in result.coverage.items() if number)
            or "nothing"
        )
    )
    click.echo(f"sim: PASS seed={result.seed} steps={result.steps} digest={result.digest}")
