"""Backups as witnesses: held against their manifest and against the replicas, counted for no
majority."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks import backups
from ledgermq.audit.checks.backups import backup_looks, check_backup
from ledgermq.audit.cli.report import as_text
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw
from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import CLUSTER, STORAGE, Message, Writer, membership, sealed

LOG = f"g1/dledger-n1/data/{0:020d}"


def write_backup(base: Path, messages: list[Any]) -> Path:
    """A backup of n1 as docs/format.md §15 says: no abort file, nothing derived but the index, and
    a manifest."""
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
        files[str(path.relative_to(target))] = {
            "bytes": len(data),
            "used": used,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    value = {
        "v": 1,
        "program": "test",
        "made_ms": 1,
        "cluster_id": CLUSTER,
        "node": "n1",
        "groups": {"g1": {}},
        "files": files,
    }
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
    """It ends earlier, has no consume queues, and repeats a replica: none of this is a finding, and
    the report calls it a backup."""
    result = run(sources)
    assert (result.verdict, result.findings) == ("PASS", []), as_text(result)
    assert any(
        "n1:backup is a backup: it was compared as far as it is" in note for note in result.notes
    )


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
    seal = Message(
        STORAGE,
        json.dumps({"v": 1, **fields}, separators=(",", ":")).encode(),
        tag="seal",
        term=99,
        time=1 << 41,
    )
    write_cluster(tmp_path / "nodes", [*messages, seal])
    backup = write_backup(tmp_path, messages[: inside[-1].index - 5])
    result = run([*(tmp_path / "nodes" / name for name in NODES), backup])
    assert (result.verdict, result.findings) == ("PASS", []), as_text(result)


def test_lone_backup_is_incomplete_without_findings(sources: list[Path]) -> None:
    """Verified by itself; what it would have to agree with is missing, so it is INCOMPLETE."""
    result = run(sources[3:])
    assert result.verdict == "INCOMPLETE" and not result.findings, as_text(result)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda backup: flip(backup / LOG, 500), {"backup.file", "entry.body"}),
        (
            lambda backup: flip(backup / "g1" / "identity.json", 20),
            {"backup.file", "identity.json"},
        ),
        (lambda backup: (backup / "g1" / "dledger-n1" / "checkpoint").unlink(), {"backup.missing"}),
        (lambda backup: flip(backup / "backup.json", 20), {"backup.json"}),
    ],
)
def test_damage_of_a_backup_is_found(sources: list[Path], damage: Any, told: set[str]) -> None:
    """Its manifest shows the damage, and the rules for replicas locate it."""
    damage(sources[3])
    result = run(sources)
    assert result.verdict == "FAIL" and {finding.replica for finding in result.findings} == {
        "n1:backup"
    }, as_text(result)
    assert told <= {finding.flaw.rule for finding in result.findings}, as_text(result)


def test_a_backup_of_another_history_diverges(tmp_path: Path) -> None:
    """It was taken before the group began anew, or of something else: named from the first entry
    that differs."""
    messages = history(6)
    write_cluster(tmp_path / "nodes", messages)
    other = list(messages[:40])
    other[25] = type(other[25])(
        other[25].topic, b"other", other[25].queue, term=other[25].term, time=other[25].time
    )
    result = run([*(tmp_path / "nodes" / name for name in NODES), write_backup(tmp_path, other)])
    assert ("divergence", "n1:backup", 25) in {
        (f.klass, f.replica, f.flaw.index) for f in result.findings
    }, as_text(result)


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


def test_old_backups_do_not_determine_the_members(tmp_path: Path) -> None:
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


def test_a_manifest_that_says_nonsense(tmp_path: Path) -> None:
    """With a checksum that agrees: one finding about the manifest, also if it says nothing of a
    file that it names."""
    backup = write_backup(tmp_path, history(6, 10))
    path = backup / "backup.json"
    value = json.loads(path.read_bytes())
    del value["crc32c"]
    node = value["files"]["node.json"]
    wrong_facts = [
        [],
        *(
            {**node, **facts}
            for facts in (
                {"bytes": "x"},
                {"bytes": None},
                {"bytes": -1},
                {"bytes": True},
                {"sha256": 7},
            )
        ),
    ]
    wrong_files = [
        [],
        *(
            {**value["files"], **more}
            for more in ({"no\0.json": node}, *({"node.json": facts} for facts in wrong_facts))
        ),
    ]
    for wrong in (
        {"v": 2},
        {"groups": 5},
        {"groups": None},
        *({"files": files} for files in wrong_files),
    ):
        path.write_bytes(sealed({**value, **wrong}))
        result = run([backup])
        proof = "the text does not have the checksum or the content it should have"
        flaw = Flaw("backup.json", "backup.json", None, 0, path.stat().st_size, proof)
        assert [(found.replica, found.klass, found.flaw) for found in result.findings] == [
            ("n1:backup", "bit-rot", flaw)
        ], as_text(result)


BODY = bytes(range(10))


def write_files(
    base: Path, *paths: str, groups: tuple[str, ...] = ("g1",), size: int | None = None
) -> list[LogFile]:
    """Files with `BODY`, a manifest that gives them that body, and a length of `size`. Returns the
    tasks of the looks of group g1."""
    told = {}
    for path in paths:
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_bytes(BODY)
        told[path] = {
            "bytes": len(BODY) if size is None else size,
            "sha256": hashlib.sha256(BODY).hexdigest(),
        }
    (base / "backup.json").write_bytes(
        sealed({"v": 1, "groups": {name: {} for name in groups}, "files": told})
    )
    task = LogFile(f"{base}/g1", "g1", "n1:backup", "", "dledger-n1", f"{0:020d}", 1, 1, 1)
    return [replace(task, name=name) for name in backup_looks(task)]


def test_every_file_of_the_group_and_of_the_node_is_looked_at(tmp_path: Path) -> None:
    """Not those of other groups, of which each has its own looks."""
    tasks = write_files(
        tmp_path,
        "node.json",
        "g2/b",
        "g1/a",
        "g3",
        "controller/g2",
        "g1/g2/c",
        groups=("g1", "g2", "g3"),
    )
    for path in ("node.json", "g1/a", "controller/g2", "g1/g2/c", "g2/b", "g3"):
        (tmp_path / path).unlink()
    told = [flaw for task in tasks for flaw in check_backup(task)]
    assert told == [
        Flaw("backup.missing", path, None, 0, len(BODY), "the manifest names it")
        for path in ("controller/g2", "g1/a", "g1/g2/c", "node.json")
    ]


@pytest.mark.parametrize("chunk", [1, 3, 10, 11])
def test_a_file_has_the_bytes_of_the_manifest(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever one differs, and in whatever pieces it is read, which are no longer than the
    file."""
    asked: list[int] = []
    monkeypatch.setattr(backups, "READ_BYTES", chunk)
    opened = backups.open_file

    def open_file(path: str) -> Any:
        file = opened(path)
        read = file.pread

        def pread(size: int, offset: int) -> bytes:
            asked.append(size)
            return read(size, offset)  # type: ignore[no-any-return]

        monkeypatch.setattr(file, "pread", pread)
        return file

    monkeypatch.setattr(backups, "open_file", open_file)
    (task,) = write_files(tmp_path, "g1/a")
    assert (
        check_backup(task) == [] and sum(asked) == len(BODY) and max(asked) == min(chunk, len(BODY))
    )
    for place in range(len(BODY)):
        data = bytearray(BODY)
        data[place] ^= 1
        (tmp_path / "g1" / "a").write_bytes(data)
        (flaw,) = check_backup(task)
        proof = (
            f"SHA-256 {hashlib.sha256(data).hexdigest()[:16]}…, the manifest says"
            f" {hashlib.sha256(BODY).hexdigest()[:16]}…"
        )
        assert flaw == Flaw("backup.file", "g1/a", None, 0, len(BODY), proof)


@pytest.mark.parametrize("size", [0, 9, 11])
def test_a_file_has_the_length_of_the_manifest(tmp_path: Path, size: int) -> None:
    """The bytes between both lengths are concerned."""
    (task,) = write_files(tmp_path, "g1/a", size=size)
    assert check_backup(task) == [
        Flaw("backup.file", "g1/a", None, *sorted((size, 10)), f"10 bytes instead of {size}")
    ]


def test_a_file_of_a_backup_that_cannot_be_read(tmp_path: Path) -> None:
    """As a disk that fails, here below a file in the place of a folder."""
    (task,) = write_files(tmp_path, "g1/a/b")
    (tmp_path / "g1" / "a" / "b").unlink()
    (tmp_path / "g1" / "a").rmdir()
    (tmp_path / "g1" / "a").touch()
    assert check_backup(task) == [
        Flaw("file.read", "g1/a/b", None, 0, len(BODY), "Not a directory")
    ]
