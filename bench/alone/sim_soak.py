"""`python -m bench.alone.sim_soak`: as many simulated seconds as fit, and their results.

    python -m bench.alone.sim_soak --for 240 --from-commit        # seeds derived from the commit, as `.ci/run` does
    python -m bench.alone.sim_soak --virtual-seconds 1000000 --first 1 --json

The range of seeds is printed first, so that every run can be repeated: `ledgermq sim --seed N
--steps S`. Several profiles alternate: the default faults, every kind except damaged media over
small log files, earlier acknowledgements, five nodes, and as many for HA groups. A run that
violates an invariant is reported and the next seed continues; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.sim.cli.cases import Case, Ran
from ledgermq.sim.faults import KNOWN, faults_ha, faults_media
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES, Settings

STEPS = 5000
EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of a seed, and the equivalent options of `ledgermq sim`."""

    settings: Settings
    kinds: tuple[str, ...] | None
    options: str


ALL = tuple(
    name for name in KNOWN if name not in faults_media.KINDS and name not in faults_ha.KINDS
)
"""Damaged media together with everything else: see docs/known-weaknesses.md."""
HA_ALL = (*ALL, *[name for name in faults_ha.KINDS for _ in range(3)])
PROFILES = (
    Profile(Settings(), None, ""),
    Profile(Settings(), None, ""),
    Profile(replace(Settings(), file_bytes=SMALL_FILE_BYTES), ALL, f"--faults {','.join(ALL)}"),
    Profile(replace(Settings(), policy=FlushPolicy.HYBRID), None, "--policy hybrid"),
    Profile(Settings.of_nodes(5), None, "--nodes 5"),
    Profile(Settings.of_ha(), None, "--ha in-sync"),
    Profile(Settings.of_ha(ack_async=True), None, "--ha async"),
    Profile(Settings.of_ha(minimum=2, pull=True), None, "--ha in-sync,pull,min=2"),
    Profile(
        replace(Settings.of_ha(), file_bytes=SMALL_FILE_BYTES),
        HA_ALL,
        f"--ha in-sync --faults {','.join(HA_ALL)}",
    ),
    Profile(Settings.of_ha(5, minimum=2), None, "--ha in-sync,min=2 --nodes 5"),
)


def profile(seed: int) -> Profile:
    return PROFILES[seed % len(PROFILES)]


@dataclass
class Sum:
    """The sum of the results of a range of seeds."""

    seeds: int = 0
    counted: int = 0
    """Seeds with an election, a crash with unsynced pages and at least 200 committed entries."""
    virtual_ns: int = 0
    steps: int = 0
    commits: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, object]] = field(default_factory=list)

    def add(self, ran: Ran, options: str) -> None:
        result = ran.result
        self.seeds += 1
        self.counted += result.counts
        self.virtual_ns += result.virtual_ns
        self.steps += result.steps
        self.commits += result.commits
        self.faults.update(ran.faults)
        if result.violation is not None:
            replay = (
                f"ledgermq sim --steps {ran.case.steps} {options} --seed {result.seed}".replace(
                    "  ", " "
                )
            )
            self.failures.append(
                {"seed": result.seed, "violation": str(result.violation), "replay": replay}
            )

    def as_object(self, first: int, machine_s: float) -> dict[str, object]:
        return {
            "v": 1,
            "first_seed": first,
            "seeds": self.seeds,
            "seeds_that_count": self.counted,
            "virtual_s": round(self.virtual_ns / 1e9, 1),
            "machine_s": round(machine_s, 1),
            "steps": self.steps,
            "entries_committed": self.commits,
            "faults": dict(sorted(self.faults.items())),
            "failures": self.failures,
        }


def commit_seed() -> int:
    """A first seed specific to the commit: its hash, cut to eight digits; 1 outside of a
    repository."""
    root = Path(__file__).resolve().parent.parent.parent
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return int(told.stdout[:8], 16) if told.returncode == 0 else 1


def soak(first: int, seconds: float, virtual_s: float, steps: int) -> tuple[Sum, float]:
    """Run seeds from `first` on until this much machine time, or virtual time, is over."""
    whole, began = Sum(), time.process_time()
    told, seed = time.monotonic(), first
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and whole.virtual_ns < virtual_s * 1e9:
        chosen = profile(seed)
        whole.add(Case.drawn(seed, steps, chosen.settings, chosen.kinds).run(), chosen.options)
        seed += 1
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(
                f"{whole.seeds} seeds, {whole.virtual_ns / 1e9:.0f} virtual s,"
                f" {len(whole.failures)} failed",
                file=sys.stderr,
                flush=True,
            )
    return whole, time.process_time() - began


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.alone.sim_soak", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=float,
        default=240.0,
        help="seconds by the clock (default: 240)",
    )
    parser.add_argument(
        "--virtual-seconds",
        type=float,
        default=float("inf"),
        help="stop after this many virtual seconds",
    )
    parser.add_argument("--first", type=int, default=1, help="first seed (default: 1)")
    parser.add_argument(
        "--from-commit", action="store_true", help="derive the first seed from the commit"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"steps per seed (default: {STEPS})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args(arguments)
    first = commit_seed() if given.from_commit else given.first
    print(f"first seed: {first}", file=sys.stderr, flush=True)
    whole, machine_s = soak(first, given.seconds, given.virtual_seconds, given.steps)
    told = whole.as_object(first, machine_s)
    if given.json:
        print(json.dumps(told))
    else:
        print(
            f"seeds {first}..{first + whole.seeds - 1}: {told['virtual_s']} virtual s in"
            f" {told['machine_s']} s of one core"
        )
        print(
            f"{whole.counted} of {whole.seeds} seeds count; {whole.commits} entries committed;"
            f" {sum(whole.faults.values())} faults"
        )
        for failure in whole.failures:
            print(f"{failure['violation']}\n  replay: {failure['replay']}")
    return 1 if whole.failures else 0


if __name__ == "__main__":
    sys.exit(main())
