"""Directories that the product itself wrote: the storage package and the applier on one side, the
auditor on the other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.audit_scan import CREATED_MS, NODES, StoredReplica, batch_of, term_start
from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import flip

FILE_BYTES = 16384


def write(
    base: Path, batches: int = 20, *, killed: str = "", extra: int = 0
) -> dict[str, StoredReplica]:
    """The same appends on three replicas, over several log, index and consume queue files, with two
    terms."""
    replicas = {}
    for name in NODES:
        replica = StoredReplica(base / name, FILE_BYTES, 32 * 64, 20 * 30)
        number = 0
        for turn in range(batches):
            if turn % (batches // 2) == 0:
                replica.append(1 + turn, term_start(1 + turn), CREATED_MS + turn)
            count = 1 + turn % 13
            replica.append(
                1 + turn - turn % (batches // 2),
                batch_of(number, count, 10 * turn),
                CREATED_MS + turn,
            )
            number += count
        replica.sync()
        if name == killed:
            for turn in range(extra):
                replica.append(
                    99, batch_of(number + turn, 1, 50), CREATED_MS + batches, apply=False
                )
        replica.stop(clean=name != killed)
        replicas[name] = replica
    return replicas


def run(base: Path) -> Audit:
    return audit([str(base / name) for name in NODES], deep=True)


def test_stored_directories_pass(tmp_path: Path) -> None:
    """No false alarm on what storage writes, to the last derived unit."""
    replicas = write(tmp_path)
    result = run(tmp_path)
    assert (result.verdict, [f.text for f in result.findings], result.reasons) == ("PASS", [], [])
    assert result.compared == replicas["n1"].store.log.end_index


def test_a_killed_replica_passes(tmp_path: Path) -> None:
    """A replica that was killed with appended but uncommitted entries is as good as the others."""
    replicas = write(tmp_path, killed="n2", extra=3)
    result = run(tmp_path)
    assert (result.verdict, [f.text for f in result.findings], result.reasons) == ("PASS", [], [])
    assert (
        result.compared == replicas["n1"].store.log.end_index < replicas["n2"].store.log.end_index
    )


@pytest.mark.parametrize("seed", range(4))
def test_flips_in_stored_directories_are_found(tmp_path: Path, seed: int) -> None:
    """A flipped byte in any log, index, queue, slot, identity or snapshot file that storage wrote:
    FAIL with the place."""
    write(tmp_path)
    rng = random.Random(seed)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "checkpoint")
    for _ in range(12):
        path = rng.choice(files)
        offset = rng.randrange(path.stat().st_size)
        flip(path, offset)
        result = run(tmp_path)
        flip(path, offset)
        node = path.relative_to(tmp_path).parts[0]
        here = [
            f.text
            for f in result.findings
            if (f.replica, f.flaw.file) == (node, str(path.relative_to(tmp_path / node)))
            and f.flaw.byte_from <= offset < f.flaw.byte_to
        ]
        assert result.verdict == "FAIL" and here, (path, offset, [f.text for f in result.findings])
