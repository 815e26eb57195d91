"""Backups as witnesses: held against their manifest and against the replicas, counted for no majority."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.jobs import Audit, audit
from ledgermq.audit.report import as_text
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import CLUSTER, STORAGE, Message, Writer, membership, sealed

LOG = f"g1/dledger-n1/data/{0:020d}"


def write_backup(base: Path, messages: list[Any]) -> Path:
    """A backup of n1 as docs/format.md §15 says: no abort file, nothing derived but the index, and a manifest."""
    writer = Writer(base / "n1")
    for message in messages:
        writer.append(message)
    writer.finish(snapshot=False, committed=len(messages) - 1)
    for queue in sorted((writer.root / "consumequeue").rglob("*"), reverse=True):
        queue.unlink() if queue.is_file() else queue.rmdir()
    (writer.root / "consumequeue").rmdir()
    target = base / "backup"
    (base / "n1").rename(target)
    files = {}
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        data = path.read_bytes()
        used = len(data.rstrip(b"\0"))
        files[str(path.relative_to(target))] = {"bytes": len(data), "used": used, "sha256": hashlib.sha256(data).hexdigest()}
    value = {"v": 1, "program": "test", "made_ms": 1, "cluster_id": CLUSTER, "node": "n1", "groups": {"g1": {}}, "files": files}
    (target / "backup.json").write_bytes(sealed(value))
    return target


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Three replicas and an older backup of one of them."""
    messages = history(6)
    write_cluster(tmp_path / "nodes", messages)
    return [*(tmp_path / "nodes" / name for name in NODES), write_backup(tmp_path, messages[:40])]


def run(sources: list[Path]) -> Audit:
    return audit([str(path) for path in sources])


def test_a_backup_that_agrees_passes(sources: list[Path]) -> None:
    """It ends earlier, has no consume queues, and repeats a replica: none of this is a finding, and the report calls it a backup."""
    result = run(sources)
    assert (result.verdict, result.findings) == ("PASS", []), as_text(result)
    assert any("n1:backup is a backup: it was compared as far as it is" in note for note in result.notes)


def test_a_backup_from_before_a_seal_passes(tmp_path: Path) -> None:
    """A file that was sealed later is not complete in it, and that is no finding."""
    messages = history(6, 90)
    probe = Writer(tmp_path / "probe" / "n1")
    for message in messages:
        probe.append(message)
    inside = [entry for entry in probe.entries if entry.pos < probe.data_bytes]
    fields = {
        "base": 0,
        "first": 0,
        "last": inside[-1].index,
        "end": inside[-1].pos + inside[-1].size,
        "sha256": "ab" * 32,
        "replicas": list(NODES),
    }
    seal = Message(STORAGE, json.dumps({"v": 1, **fields}, separators=(",", ":")).encode(), tag="seal", term=99, time=1 << 41)
    write_cluster(tmp_path / "nodes", [*messages, seal])
    backup = write_backup(tmp_path, messages[: inside[-1].index - 5])
    result = run([*(tmp_path / "nodes" / name for name in NODES), backup])
    assert (result.verdict, result.findings) == ("PASS", []), as_text(result)


def test_a_backup_alone_is_read_and_compared_with_nothing(sources: list[Path]) -> None:
    """Verified by itself; what it would have to agree with is missing, so it is INCOMPLETE."""
    result = run(sources[3:])
    assert result.verdict == "INCOMPLETE" and not result.findings, as_text(result)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda backup: flip(backup / LOG, 500), {"backup.file", "entry.body"}),
        (lambda backup: flip(backup / "g1" / "identity.json", 20), {"backup.file", "identity.json"}),
        (lambda backup: (backup / "g1" / "dledger-n1" / "checkpoint").unlink(), {"backup.missing"}),
        (lambda backup: flip(backup / "backup.json", 20), {"backup.json"}),
    ],
)
def test_damage_of_a_backup_is_found(sources: list[Path], damage: Any, told: set[str]) -> None:
    """Its manifest shows the damage, and the rules for replicas locate it."""
    damage(sources[3])
    result = run(sources)
    assert result.verdict == "FAIL" and {finding.replica for finding in result.findings} == {"n1:backup"}, as_text(result)
    assert told <= {finding.flaw.rule for finding in result.findings}, as_text(result)


def test_a_backup_of_another_history_diverges(tmp_path: Path) -> None:
    """It was taken before the group began anew, or of something else: named from the first entry that differs."""
    messages = history(6)
    write_cluster(tmp_path / "nodes", messages)
    other = list(messages[:40])
    other[25] = type(other[25])(other[25].topic, b"other", other[25].queue, term=other[25].term, time=other[25].time)
    result = run([*(tmp_path / "nodes" / name for name in NODES), write_backup(tmp_path, other)])
    assert ("divergence", "n1:backup", 25) in {(f.klass, f.replica, f.flaw.index) for f in result.findings}, as_text(result)


def test_the_backup_of_a_replica_does_not_vouch_for_it(tmp_path: Path) -> None:
    """A replica that lags is not verified because a backup bears its name."""
    messages = history(6)
    write_cluster(tmp_path / "nodes", messages)
    backup = write_backup(tmp_path, messages[:30])
    shutil.rmtree(tmp_path / "nodes" / "n1")
    lagging = Writer(tmp_path / "nodes" / "n1")
    for message in messages[:40]:
        lagging.append(message)
    lagging.finish()
    result = run([*(tmp_path / "nodes" / name for name in NODES), backup])
    assert result.verdict == "INCOMPLETE" and not result.findings, as_text(result)
    told = {replica: verdict for (_, _, replica), verdict in result.replica_verdicts.items()}
    assert told == {"n1": "INCOMPLETE", "n2": "PASS", "n3": "PASS", "n1:backup": "PASS"}


def test_old_backups_do_not_say_who_belongs_to_a_group(tmp_path: Path) -> None:
    """More backups than replicas, from before n4 took the place of n3: the replicas know better."""
    messages = history(6)
    now = membership(("n1", "n2", "n4"))
    changed = [*messages, replace(now, term=messages[-1].term, time=messages[-1].time)]
    for name in ("n1", "n2", "n4"):
        writer = Writer(tmp_path / "nodes" / name)
        for message in changed:
            writer.append(message)
        writer.finish()
    backups = []
    for number in range(4):
        backups.append(tmp_path / f"backup-{number}")
        write_backup(tmp_path, messages).rename(backups[-1])
    # Backups of one node would be one replica twice.
    for number, path in enumerate(backups):
        (path / "g1" / "dledger-n1").rename(path / "g1" / f"dledger-m{number}")
    result = run([*(tmp_path / "nodes" / name for name in ("n1", "n2", "n4")), *backups])
    assert result.groups[0].voters == ("n1", "n2", "n4"), as_text(result)
    assert result.compared == len(changed) - 1
