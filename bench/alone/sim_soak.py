"""`python -m bench.alone.sim_soak`: as many simulated seconds as fit, and their results.

    python -m bench.alone.sim_soak --for 240 --from-commit        # seeds derived from the commit, as `.ci/run` does
    python -m bench.alone.sim_soak --for 900 --processes 2
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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import count
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
    machine_s: float = 0.0
    """Processor time."""
    steps: int = 0
    commits: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, object]] = field(default_factory=list)

    @classmethod
    def of(cls, ran: Ran, machine_s: float, options: str) -> Sum:
        """The sum of one seed; `options` are those of `ledgermq sim`."""
        result, failures = ran.result, []
        if result.violation is not None:
            replay = f"ledgermq sim --steps {ran.case.steps} {options} --seed {result.seed}"
            failures = [
                {
                    "seed": result.seed,
                    "violation": str(result.violation),
                    "replay": " ".join(replay.split()),
                }
            ]
        return cls(
            seeds=1,
            counted=int(result.counts),
            virtual_ns=result.virtual_ns,
            machine_s=machine_s,
            steps=result.steps,
            commits=result.commits,
            faults=Counter(ran.faults),
            failures=failures,
        )

    def add(self, other: Sum) -> None:
        self.seeds += other.seeds
        self.counted += other.counted
        self.virtual_ns += other.virtual_ns
        self.machine_s += other.machine_s
        self.steps += other.steps
        self.commits += other.commits
        self.faults.update(other.faults)
        self.failures += other.failures

    def as_object(self, first: int) -> dict[str, object]:
        return {
            "v": 1,
            "first_seed": first,
            "seeds": self.seeds,
            "seeds_that_count": self.counted,
            "virtual_s": round(self.virtual_ns / 1e9, 1),
            "machine_s": round(self.machine_s, 1),
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


def of_seed(seed: int, steps: int) -> Sum:
    began, chosen = time.process_time(), profile(seed)
    ran = Case.drawn(seed, steps, chosen.settings, chosen.kinds).run()
    return Sum.of(ran, time.process_time() - began, chosen.options)


def soak(first: int, seconds: float, virtual_s: float, steps: int, processes: int) -> Sum:
    """Run seeds from `first` on, none left out, until this much time by the clock, or virtual time,
    is over."""
    whole, seeds = Sum(), count(first)
    running: set[Future[Sum]] = set()
    told = time.monotonic()
    deadline = told + seconds
    with ProcessPoolExecutor(processes) as pool:
        while True:
            if time.monotonic() < deadline and whole.virtual_ns < virtual_s * 1e9:
                while len(running) < processes:
                    running.add(pool.submit(of_seed, next(seeds), steps))
            elif not running:
                return whole
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                whole.add(future.result())
            if time.monotonic() - told > EVERY_S:
                told = time.monotonic()
                print(
                    f"{whole.seeds} seeds, {whole.virtual_ns / 1e9:.0f} virtual s,"
                    f" {len(whole.failures)} failed",
                    file=sys.stderr,
                    flush=True,
                )


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
    parser.add_argument(
        "--processes", type=int, default=1, help="seeds that run at once (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args(arguments)
    first = commit_seed() if given.from_commit else given.first
    print(f"first seed: {first}", file=sys.stderr, flush=True)
    whole = soak(first, given.seconds, given.virtual_seconds, given.steps, given.processes)
    told = whole.as_object(first)
    if given.json:
        print(json.dumps(told))
    else:
        print(
            f"seeds {first}..{first + whole.seeds - 1}: {told['virtual_s']} virtual s in"
            f" {told['machine_s']} s of processor time"
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
