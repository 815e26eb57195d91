"""Mutation of the product: `python -m tests.mutation --paths raft storage/log/log_writer.py`, by
default everything in `AREAS`.

Judges every mutant (`mutants.py`) by the fast tests of its area (`judging.py`), one at a time.
`results.json` keeps what was found, function by function, and a run goes on where the last one
ended: a function that is as it was is not judged again, except for mutants that are left without a
row in `explained.json`, because a new test, or with `--slowest` a longer one, may find them.
`--fresh` judges everything again: do that after tests were removed or made weaker. `--tests` judges
by these tests alone: those of one module find most of its mutants, and only what they leave needs
the measurement of all tests of the area, which a later run without the option makes.

Every mutant that is left has a row in `explained.json`: why no test needs to find it. The exit
status is 1 if a row is missing, or if a row explains a mutant that was found or does not exist.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutation.judging import SLOWEST_S, Judge, Target, Verdict, judge, targets
from tests.mutation.mutants import functions, source_digest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
EXPLAINED = HERE / "explained.json"
KEPT = ROOT / ".mutation"
COMMIT_PATH = (
    "durability",
    "entry_log",
    "hard_state",
    "log_decision",
    "log_recovery",
    "log_scan",
    "log_writer",
    "mending",
    "recovered",
)
AREAS: dict[str, tuple[list[str], list[str]]] = {
    "raft": (["raft/*.py"], ["tests/raft"]),
    "storage": (
        [f"storage/*/{name}.py" for name in (*COMMIT_PATH, "reserve", "slots", "synced_mark")],
        ["tests/storage", "tests/shipping"],
    ),
    "audit": (["audit/checks/*.py", "audit/rules.py"], ["tests/audit"]),
}
"""Area → files, and tests that judge them."""
KINDS = ("equivalent", "text", "speed", "defence")
"""What an explanation begins with: nothing that happens differs; only a text differs; only the work
differs, not its outcome; the code answers what cannot happen while an invariant holds."""

Results = dict[str, dict[str, dict[str, Any]]]
"""File → function → `source` (digest), `mutants`, `by_time`, `left` (texts)."""


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def files_of(patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def work_on(
    chosen: Sequence[Path], *, fresh: bool
) -> Iterator[tuple[str, Target, set[str] | None]]:
    """File, function and the mutants to judge (None: all of them) of what is not known."""
    explained = read(EXPLAINED)
    for path in chosen:
        file = str(path.relative_to(ROOT))
        known = read(RESULTS).get(file, {})
        for target in targets(path):
            before = known.get(target.name)
            if fresh or before is None or before["source"] != source_digest(target.function):
                yield file, target, None
            elif (
                unexplained := set(before["left"])
                - explained.get(f"{file}:{target.name}", {}).keys()
            ):
                yield file, target, unexplained


def judge_area(
    area: str, chosen: Sequence[Path], tests: Sequence[str], *, fresh: bool, slowest_s: float
) -> None:
    files, all_tests = AREAS[area]

    def work(judge: Judge) -> None:
        for file, target, only in work_on(chosen, fresh=fresh):
            verdict = judge.judged(target, only)
            keep(file, target, verdict, only)
            left = (
                f", left {len(verdict.left)} ({verdict.untried} not tried)" if verdict.left else ""
            )
            print(f"{file} {target.name}: {verdict.mutants} mutants{left}", flush=True)

    judge(files_of(files), tests or all_tests, KEPT / f"{area}.json", work, slowest_s)


def keep(file: str, target: Target, verdict: Verdict, only: set[str] | None) -> None:
    """Note a verdict, of all mutants or `only` of these, in the file of results, which another run
    may have changed meanwhile. Functions that are gone are left out of it."""
    results: Results = read(RESULTS)
    names = {name for name, _ in functions(target.tree)}
    known = results[file] = {
        name: found for name, found in results.get(file, {}).items() if name in names
    }
    found = asdict(verdict)
    del found["untried"]
    if only is None:
        known[target.name] = {"source": source_digest(target.function), **found}
    else:
        known[target.name]["left"] = [
            text for text in known[target.name]["left"] if text not in only or text in verdict.left
        ]
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def complaints(results: Results, explained: dict[str, dict[str, str]]) -> list[str]:
    """Mutants without a row, rows without a mutant, and rows that begin with no kind. Files without
    results are not looked at."""
    left = {
        f"{file}:{name}": found["left"]
        for file, of in results.items()
        for name, found in of.items()
    }
    found = [
        f"{place}: {text}: no row"
        for place, texts in left.items()
        for text in texts
        if text not in explained.get(place, {})
    ]
    for place, rows in explained.items():
        for text, why in rows.items():
            if why.partition(": ")[0] not in KINDS:
                found.append(
                    f"{place}: {text}: the explanation begins with none of {', '.join(KINDS)}"
                )
            if text not in left.get(place, ()):
                found.append(f"{place}: {text}: explained, but not left")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description="Judge mutants of the product by its fast tests.",
    )
    parser.add_argument(
        "--paths",
        nargs="*",
        default=[],
        help="files or folders below one of the areas; default: all",
    )
    parser.add_argument(
        "--tests", nargs="*", default=[], help="files of tests that judge; default: all of the area"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="judge everything again, not only what changed or was left",
    )
    parser.add_argument(
        "--slowest",
        type=float,
        default=SLOWEST_S,
        help="processor seconds of a test that judges (default: %(default)g)",
    )
    chosen = parser.parse_args()
    asked = [(ROOT / path).resolve() for path in chosen.paths]
    for area, (patterns, _) in AREAS.items():
        files = files_of(patterns)
        if asked:
            files = list(
                dict.fromkeys(
                    file for path in asked for file in files if file == path or path in file.parents
                )
            )
        if files:
            judge_area(area, files, chosen.tests, fresh=chosen.fresh, slowest_s=chosen.slowest)
    results: Results = read(RESULTS)
    found = complaints(results, read(EXPLAINED))
    mutants = sum(verdict["mutants"] for of in results.values() for verdict in of.values())
    left = sum(len(verdict["left"]) for of in results.values() for verdict in of.values())
    print(
        "\n".join(
            [
                *found,
                (
                    f"{mutants:,} mutants in {len(results)} files, {left} left, {len(found)}"
                    " complaints"
                ),
            ]
        )
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
