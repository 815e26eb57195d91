"""The soak: `python -m tests.soak --hours 24` runs pieces until the record has so many hours;
`--report` writes docs/soak.md.

A piece is a cluster under load and faults (`piece.py`). Its record is one line of `pieces.jsonl`,
written when the piece is over. An interrupted piece leaves no record; one that fails leaves its
reason, and its directory in `.soak/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.builds import ROOT
from tests.soak.page import HOURS, render
from tests.soak.piece import commit, run, start_nodes_by_fork

PIECES = Path(__file__).with_name("pieces.jsonl")
PAGE = ROOT / "docs" / "soak.md"
STATE = ROOT / ".soak"


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PIECES.read_text().splitlines()] if PIECES.exists() else []


def claimed(state: Path) -> tuple[int, Path]:
    """The next seed, and its directory. Another soak that runs at the same time gets another
    one."""
    state.mkdir(exist_ok=True)
    seed = 1 + max((piece["seed"] for piece in read()), default=0)
    while True:
        try:
            (directory := state / str(seed)).mkdir()
        except FileExistsError:
            seed += 1
            continue
        if all(piece["seed"] != seed for piece in read()):
            return seed, directory
        # That piece ended between the two looks: it is in the record before its directory is gone.
        directory.rmdir()
        seed += 1


def piece(seconds: float) -> dict[str, Any]:
    """Run and record one piece."""
    seed, directory = claimed(STATE)
    began_ms = time.time_ns() // 1_000_000
    print(f"piece {seed}, {seconds / 60:g} minutes", flush=True)
    try:
        record = run(seed, seconds, directory)
    except KeyboardInterrupt:
        shutil.rmtree(directory)
        raise
    except Exception as error:
        record = {
            "v": 1,
            "seed": seed,
            "began_ms": began_ms,
            "commit": commit(),
            "failed": f"{type(error).__name__}: {error}",
        }
    with PIECES.open("a") as file:
        file.write(json.dumps(record) + "\n")
    if "failed" not in record:
        shutil.rmtree(directory)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Run a cluster under load and faults for hours."
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=HOURS,
        help=f"stop when the record has so many hours (default: {HOURS})",
    )
    parser.add_argument(
        "--piece-minutes", type=float, default=30.0, help="length of a piece (default: 30)"
    )
    parser.add_argument(
        "--report", action="store_true", help="write docs/soak.md from the record, and run nothing"
    )
    chosen = parser.parse_args()
    if chosen.report:
        PAGE.write_text(render(read()))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ledgermq-soak-") as place:
        start_nodes_by_fork(Path(place))
        while sum(found.get("seconds", 0) for found in read()) < chosen.hours * 3600:
            record = piece(60 * chosen.piece_minutes)
            failed += "failed" in record
            print(json.dumps(record), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: this piece is not counted", file=sys.stderr)
        os._exit(130)
