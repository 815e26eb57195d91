"""Digests of simulated runs: what clients were answered, the log files and the derived state of
every node.

A change that moves code changes no digest. `python -m tests.sim.digests --record FILE` before it,
and `--compare FILE` behind it; the comparison runs the seeds that the file has, and exits with 1 if
one of them differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.sim.faults import FAULTS, KNOWN, faults_media, schedule
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES, Settings
from ledgermq.sim.runs.world import World

STEPS = 2000
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
RAFT_KINDS = tuple(
    name
    for name in KNOWN
    if name in FAULTS or name in ("trim", "transfer", "kill-inside", "full-disk")
)
PROFILES: dict[str, tuple[Settings, tuple[str, ...] | None]] = {
    "default": (Settings(), None),
    "small-files": (replace(Settings(), file_bytes=SMALL_FILE_BYTES), RAFT_KINDS),
    "hybrid": (replace(Settings(), policy=FlushPolicy.HYBRID), None),
    "five": (Settings.of_nodes(5), None),
    "in-sync": (Settings.of_ha(minimum=2, pull=True), None),
    "async": (Settings.of_ha(ack_async=True), None),
    "media": (Settings(), tuple(faults_media.KINDS)),
}


class Witness(World):
    """A run that notes every answer of a node."""

    def __init__(self, seed: int, settings: Settings) -> None:
        super().__init__(seed, settings=settings)
        self.answers = {name: hashlib.sha256() for name in self.names}

    def _done(self, node: str, done: Done) -> None:
        self.answers.setdefault(node, hashlib.sha256()).update(ADDRESS.sub("", repr(done)).encode())
        super()._done(node, done)

    def digest(self, profile: str) -> dict[str, Any]:
        """Run it once."""
        outcome = self.run(STEPS, schedule(PROFILES[profile][1]))
        nodes = {}
        for name, station in sorted(self.stations.items()):
            disk, log, life = station.medium.disk, hashlib.sha256(), station.life
            for path in sorted(disk.files()):
                if path.startswith(station.medium.data_directory):
                    log.update(disk.read_file(path))
            state = "" if life is None else json.dumps(life.machine.export("log"), sort_keys=True)
            nodes[name] = {
                "answers": self.answers[name].hexdigest()[:16],
                "log": log.hexdigest()[:16],
                "state": hashlib.sha256(state.encode()).hexdigest()[:16],
            }
        return {"run": outcome.digest, "violation": str(outcome.violation or ""), "nodes": nodes}


def runs(counts: dict[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
    for profile, count in counts.items():
        for seed in range(count):
            yield f"{profile} {seed}", Witness(seed, PROFILES[profile][0]).digest(profile)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds",
        type=int,
        default=60,
        help="of the default profile, and an eighth of them of each other one",
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--record", type=Path, metavar="FILE")
    chosen.add_argument("--compare", type=Path, metavar="FILE")
    given = parser.parse_args()
    counts = {
        profile: given.seeds if profile == "default" else max(1, given.seeds // 8)
        for profile in PROFILES
    }
    if given.record:
        given.record.write_text(json.dumps(dict(runs(counts)), indent=1) + "\n")
        return 0
    known = json.loads(given.compare.read_text())
    compared, wrong = 0, []
    for name, digest in runs(counts):
        if name in known:
            compared += 1
            wrong += [name] if digest != known[name] else []
    print(f"{compared} runs compared, {len(wrong)} differ {', '.join(wrong)}".rstrip())
    return int(bool(wrong) or not compared)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Answers with sets are told in the order that sets have.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.sim.digests", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
