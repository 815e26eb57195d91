"""`python -m tests.audit.exhaust`: every byte of every file of a small cluster, damaged at every
level of consistency, before the auditor.

    python -m tests.audit.exhaust --pieces DIR --processes 2
    python -m tests.audit.exhaust --mode agreement --only state/
    python -m tests.audit.exhaust --pieces DIR --share 0/2 --for 3600
    python -m tests.audit.exhaust --repair 50 --mode whole
    python -m tests.audit.exhaust --replay "one whole flip n1/raft/identity.json 125 01 crc"

A piece is some hundred bytes of one file on all three nodes, or one file as a whole. With `--pieces
DIR` what is done is kept there, and the same command goes on where it was broken off, as long as
the auditor, the run and the damaged files are the same. One case in `CROSS` is audited a second
time, plainly; with `--repair N` one in N is repaired, too. The exit status is 1 when the auditor
said PASS, or accused another replica, where no row of the table in `judging.py` says why.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.audit.exhaust.cases import Atlas, Case
from tests.audit.exhaust.cluster import CLUSTERS
from tests.audit.exhaust.field import Field
from tests.audit.exhaust.ground import MODES
from tests.audit.exhaust.keeping import Kept

BYTES = 128
"""Of a file in a piece."""
CROSS = 200
TOLD = 5
"""Complaints of a piece that are printed."""


@dataclass
class Piece:
    """What came of some cases."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    plain: int = 0
    """So many were audited plainly as well."""
    verdicts: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    """By exit status; −1 where there was nothing to repair."""
    complaints: list[str] = field(default_factory=list)


def pieces(cluster: str, mode: str, only: str) -> Iterator[tuple[str, str, str, int]]:
    """(cluster, mode, path on the first node, first byte or −1 for the file as a whole), small
    files first."""
    atlas = field_of(cluster).atlas
    paths = [path for path in atlas.image if path.startswith("n1/") and only in path]
    for path in sorted(paths, key=lambda path: ("/data/" in path, path)):
        yield cluster, mode, path, -1
        yield from (
            (cluster, mode, path, start) for start in range(0, len(atlas.image[path]), BYTES)
        )


_fields: dict[str, Field] = {}
_homes: list[str] = []
_kept: list[tempfile.TemporaryDirectory[str]] = []


def field_of(cluster: str) -> Field:
    """The cluster of this process."""
    if cluster not in _fields:
        if not _homes:
            _kept.append(new_home())
            _homes.append(_kept[0].name)
        _fields[cluster] = Field(Path(tempfile.mkdtemp(dir=_homes[0])), cluster)
        gc.freeze()
    return _fields[cluster]


def forget() -> None:
    """Free the clusters of this process, with what their memories keep."""
    _fields.clear()
    _homes.clear()
    while _kept:
        _kept.pop().cleanup()
    gc.unfreeze()


def new_home() -> tempfile.TemporaryDirectory[str]:
    """A directory for clusters, in memory where there is such a file system."""
    return tempfile.TemporaryDirectory(
        prefix="exhaust-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    )


def move_in(home: str) -> None:
    """Make clusters of its own in a process of the pool: those that it has from its parent are
    shared by all of them."""
    _fields.clear()
    _homes[:] = [home]


def try_piece(name: tuple[str, str, str, int], repairs: int) -> Piece:
    """All cases of one piece, of which one in `repairs` is repaired."""
    cluster, mode, path, start = name
    found, piece, began = field_of(cluster), Piece(" ".join(map(str, name))), time.process_time()
    for case in cases_of(found.atlas, mode, path, start):
        changes = found.atlas.changes(case)
        if changes is None:
            continue
        # By the case itself: most pieces are shorter than CROSS.
        plain = zlib.crc32(str(case).encode()) % CROSS == 0
        verdict, wrong = found.judge(case, changes, plain=plain)
        piece.plain += plain
        piece.cases += 1
        piece.verdicts[verdict] += 1
        piece.levels["+".join(case.levels) or case.kind] += 1
        # No replica has another root, so a repair has nothing to take.
        if repairs and not wrong and case.kind != "root" and piece.cases % repairs == 0:
            done = found.repair(case, changes)
            piece.repairs[str(int(done.status))] += 1
            wrong = done.complaint
        if wrong:
            piece.complaints.append(f"{case}: {wrong}")
    assert found.ground.is_restored(), "the cluster is not what it was"
    piece.seconds = round(time.process_time() - began, 2)
    return piece


def cases_of(atlas: Atlas, mode: str, path: str, start: int) -> Iterator[Case]:
    for node in ("n1", "n2", "n3"):
        own = Atlas.on_node(path, node)
        if start < 0:
            yield from atlas.of_file(own, mode)
        else:
            for at in range(start, min(start + BYTES, len(atlas.image[own]))):
                yield from atlas.of_byte(own, at, mode)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.exhaust")
    parser.add_argument("--cluster", action="append", choices=sorted(CLUSTERS), help="else all")
    parser.add_argument("--mode", action="append", choices=MODES, help="else all")
    parser.add_argument("--only", default="", help="files whose path on n1 holds this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--share", default="0/1", help="N/M: of all pieces each M-th, from the N-th on"
    )
    parser.add_argument(
        "--for", dest="seconds", type=float, help="begin no further piece after so many seconds"
    )
    parser.add_argument(
        "--pieces", type=Path, help="a directory for what is done; what is there is not done again"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--repair",
        type=int,
        default=0,
        help="repair one case in so many as well; with --replay that one",
    )
    parser.add_argument("--replay", help="one case, as it was printed")
    options = parser.parse_args()
    if options.replay:
        return replay(Case.of(options.replay), repaired=options.repair > 0)
    names = [
        name
        for mode in options.mode or MODES
        for cluster in options.cluster or CLUSTERS
        for name in pieces(cluster, mode, options.only)
    ]
    share, shares = map(int, options.share.split("/"))
    total, done = Piece("all"), 0
    atlases = [field_of(cluster).atlas for cluster in options.cluster or CLUSTERS]
    kept = None if options.pieces is None else Kept(options.pieces, atlases)
    for piece in run(
        names[share::shares], options.processes, kept, options.seconds, options.repair
    ):
        done += 1
        total.cases, total.seconds, total.plain = (
            total.cases + piece.cases,
            total.seconds + piece.seconds,
            total.plain + piece.plain,
        )
        total.verdicts.update(piece.verdicts)
        total.levels.update(piece.levels)
        total.repairs.update(piece.repairs)
        total.complaints += piece.complaints
        for text in piece.complaints[:TOLD]:
            print(text, flush=True)
        if done % 50 == 0:
            print(
                f"{done} of {len(names[share::shares])} pieces, {total.cases} cases,"
                f" {len(total.complaints)} complaints",
                flush=True,
            )
    figures = {
        **vars(total),
        "pieces": done,
        "of": len(names[share::shares]),
        "complaints": len(total.complaints),
    }
    if options.json is not None:
        options.json.write_text(
            json.dumps({**figures, "complaints": total.complaints}, indent=1) + "\n"
        )
    print(json.dumps(figures, indent=1))
    return 1 if total.complaints else 0


def run(
    names: list[tuple[str, str, str, int]],
    processes: int,
    kept: Kept | None,
    seconds: float | None,
    repairs: int,
) -> Iterator[Piece]:
    """Every piece, in any order."""
    until = None if seconds is None else time.monotonic() + seconds
    left = []
    for name in names:
        done = None if kept is None else kept.read(" ".join(map(str, name)))
        if done is None:
            left.append(name)
        else:
            yield Piece(
                **{
                    key: Counter(part) if isinstance(part, dict) else part
                    for key, part in done.items()
                }
            )
    with (
        new_home() as home,
        ProcessPoolExecutor(processes, initializer=move_in, initargs=(home,)) as pool,
    ):
        waiting = iter(left)
        running: list[Future[Piece]] = []
        while True:
            while len(running) < 2 * processes and (until is None or time.monotonic() < until):
                following = next(waiting, None)
                if following is None:
                    break
                running.append(pool.submit(try_piece, following, repairs))
            if not running:
                return
            piece = running.pop(0).result()
            if kept is not None:
                kept.write(piece.name, vars(piece))
            yield piece


def replay(case: Case, *, repaired: bool) -> int:
    """One case again, plainly, with all that the audit says of it, and what a repair does."""
    found = field_of(case.cluster)
    changes = found.atlas.changes(case)
    if changes is None:
        print("nothing is changed")
        return 0
    result = found.ground.plain(changes, case.mode)
    print(
        f"{case}: {found.atlas.label(case.path, case.at)}: changes"
        f" {', '.join(changes)}\n{result.verdict} {'; '.join(result.reasons)}"
    )
    for finding in result.findings:
        print(f"  {finding.text}: {finding.flaw.proof}")
    wrong = found.complaint(case, result)
    print(wrong or "right")
    if repaired:
        done = found.repair(case, changes)
        print(f"{done.told}exit {done.status}: {done.complaint or 'right'}")
        wrong = wrong or done.complaint
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
