"""`python -m tests.audit.fuzz`: audits thousands of damaged and healthy directories, and judges the
reports.

    python -m tests.audit.fuzz --cases 10000 --seed 1
    python -m tests.audit.fuzz --healthy 300 --seed 1 --cases 0
    python -m tests.audit.fuzz --suite trimmed --only "flipped bit of index size" --cases 50
    python -m tests.audit.fuzz --suite seals --suite backups --cases 500 --healthy 0
    python -m tests.audit.fuzz --suite "at rest" --replay 1000121

The seed is printed first. `--pieces DIR` keeps the finished pieces, and the same command continues
an interrupted run. The exit status is 1 if the auditor missed, misplaced or misclassified any
damage, or raised a false alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from tests.audit.fuzz.runner import Suite, Tally, run_cases, run_healthy
from tests.audit.fuzz.suites import STATES, SUITES

SEEDS = 1_000_000
"""The seed of a case is the seed of the run times this, plus its number."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.fuzz")
    parser.add_argument("--cases", type=int, default=10_000, help="damaged directories")
    parser.add_argument(
        "--healthy",
        type=int,
        default=200,
        help="number of healthy directories, killed and stopped in all ways",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--suite",
        action="append",
        choices=sorted(SUITES),
        help="run only this suite; repeatable (default: all)",
    )
    parser.add_argument(
        "--only", default="", help="run only cases whose description contains this text"
    )
    parser.add_argument(
        "--replay", type=int, help="try only the case with this seed in the named suite"
    )
    parser.add_argument(
        "--pieces", type=Path, help="a directory for finished pieces, which are not run again"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    suites = {name: SUITES[name] for name in options.suite or STATES}
    if options.replay is not None:
        return replay(suites, options.replay)
    print(
        f"seed {options.seed}: {options.cases} damaged and {options.healthy} healthy clusters",
        flush=True,
    )
    if options.pieces is not None:
        options.pieces.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="fuzzer-") as base:
        told = {"pieces": options.pieces, "tell": lambda text: print(text, flush=True)}
        tally.take(
            run_cases(
                Path(base) / "damaged",
                suites,
                options.cases,
                options.seed,
                only=options.only,
                **told,
            )
        )
        tally.take(run_healthy(Path(base) / "healthy", options.healthy, options.seed, **told))
    figures = tally.as_object()
    if options.json is not None:
        options.json.write_text(json.dumps({"seed": options.seed, **figures}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    for complaint in tally.complaints:
        print(complaint)
    return 1 if tally.complaints else 0


def replay(suites: Mapping[str, Callable[[Path], Suite]], seed: int) -> int:
    """Try the case with this seed again."""
    wrong = 0
    for name, make in suites.items():
        with tempfile.TemporaryDirectory(prefix="fuzzer-") as base:
            suite = make(Path(base))
            for case in islice(suite.cases(seed // SEEDS), seed % SEEDS, seed % SEEDS + 1):
                case_result = suite.try_case(case)
                print(
                    f"{name}: {case}:"
                    f" {'not possible here' if case_result is None else case_result.complaints or 'found'}"
                )
                wrong += bool(case_result is not None and case_result.complaints)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
