"""Repair from findings on directories written by the product: restored bytes are the original ones,
and unproven bytes are not changed."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.audit.cli.report import write_findings
from ledgermq.audit.reading.bytewise import digest
from ledgermq.audit.repairs import plan
from ledgermq.audit.repairs.told import Report, read_report
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.cli import run as command
from ledgermq.storage.files.real_disk import DirectoryLock, RealDisk
from tests.audit.checks.test_audit_stored import FILE_BYTES, write
from tests.audit.damage_cases import NODES, flip, history
from tests.audit.log_writer import Writer
from tests.storage.repair_notes import read_notes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three equal replicas of several log files."""
    base = tmp_path_factory.mktemp("whole")
    write(base)
    return base


@pytest.fixture
def base(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    for name in NODES:
        shutil.copytree(whole / name, tmp_path / name)
    return tmp_path


def logs(base: Path, node: str = "n1") -> list[Path]:
    return sorted((base / node / "g1" / f"dledger-{node}" / "data").glob("0*"))


def findings(base: Path, *nodes: str) -> Audit:
    """Audit, and write what it found beside the directories."""
    result = audit([str(base / name) for name in nodes or NODES])
    write_findings(result, str(base / "findings"))
    return result


def repair(base: Path, *more: str) -> int:
    return command(["repair", "--from-findings", str(base / "findings"), *more])


def contents(base: Path, node: str = "n1") -> dict[str, bytes]:
    """Every file of a node directory."""
    return {
        str(path.relative_to(base / node)): path.read_bytes()
        for path in sorted((base / node).rglob("*"))
        if path.is_file()
    }


def log_contents(base: Path, node: str) -> dict[str, bytes]:
    """Log files that hold entries: one that is allocated ahead may be there or not."""
    return {path.name: raw for path in logs(base, node) if any(raw := path.read_bytes())}


def overwrite(path: Path, offset: int, raw: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(raw)


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def ahead(base: Path) -> Path:
    """The preallocated file behind the last entry."""
    return logs(base)[0].with_name(f"{FILE_BYTES * len(log_contents(base, 'n1')):020d}")


def last(base: Path) -> Path:
    return logs(base)[len(log_contents(base, "n1")) - 1]


Damage = Callable[[Path], None]
DAMAGES: dict[str, Damage] = {
    "a body": lambda base: flip(logs(base)[1], 700),
    "a header": lambda base: overwrite(logs(base)[1], 0, b"\xff" * 30),
    "the first entry of all": lambda base: overwrite(logs(base)[0], 8, b"\xff" * 9),
    "the last entry": lambda base: overwrite(
        last(base), len(last(base).read_bytes().rstrip(b"\0")) - 30, b"\xaa" * 20
    ),
    "a whole file of zeros": lambda base: overwrite(logs(base)[1], 0, bytes(FILE_BYTES)),
    "a blank": lambda base: overwrite(logs(base)[0], FILE_BYTES - 5, b"\xff"),
    "zero space": lambda base: overwrite(logs(base)[-1], FILE_BYTES - 100, b"\xee"),
    "a missing file": lambda base: logs(base)[1].unlink(),
    "the last files missing": lambda base: remove(*logs(base)[2:]),
    "the space behind the log's end": lambda base: ahead(base).write_bytes(
        bytes(99) + b"x" + bytes(FILE_BYTES - 100)
    ),
    "a short file": lambda base: overwrite_short(logs(base)[0]),
    "a grown file": lambda base: logs(base)[1].write_bytes(logs(base)[1].read_bytes() + b"more"),
    "all log files": lambda base: remove(*logs(base)),
    "another file's content": lambda base: logs(base)[1].write_bytes(logs(base)[2].read_bytes()),
    "entries swapped by files": lambda base: logs(base)[0].write_bytes(logs(base)[1].read_bytes()),
}


def overwrite_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_log_comes_back_byte_for_byte(
    base: Path, whole: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is restored from the entries that its peers prove; the next audit passes, and the repair
    log has every step."""
    DAMAGES[kind](base)
    assert findings(base).verdict == "FAIL"
    untouched = contents(base, "n2"), contents(base, "n3")
    assert repair(base) == 0, capsys.readouterr()
    assert capsys.readouterr().out.endswith("repair: repaired\n")
    assert log_contents(base, "n1") == log_contents(whole, "n1")
    assert (contents(base, "n2"), contents(base, "n3")) == untouched
    result = audit([str(base / name) for name in NODES], deep=True)
    assert (result.verdict, [f.text for f in result.findings]) == ("PASS", [])
    steps = [line["step"] for line in read_notes(RealDisk(), str(base / "n1" / "g1"))]
    assert steps[0] == "begun" and "file" in steps and steps[-2:] == ["derived", "audited"]
    assert not (base / "n1" / "g1" / "dledger-n1" / "repair").exists()


def test_different_damage_on_every_replica_is_mended_by_each_from_the_others(
    base: Path, whole: Path
) -> None:
    """No replica has a whole file, and together they have all of it: entry by entry."""
    for at, node in enumerate(NODES):
        for path in logs(base, node)[:3]:
            overwrite(path, 1500 + 3000 * at, b"\xff" * 40)
    findings(base)
    assert repair(base) == 0
    for node in NODES:
        assert log_contents(base, node) == log_contents(whole, node)
    assert audit([str(base / name) for name in NODES], deep=True).verdict == "PASS"


def test_damage_on_all_replicas_is_undecidable_and_left_alone(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same place on all replicas: exit status 2, no change, and the entry is named; other
    damage is still repaired."""
    for node in NODES:
        overwrite(logs(base, node)[1], 700, b"\xff" * 5)
    findings(base)
    before = {node: contents(base, node) for node in NODES}
    assert repair(base) == 2
    told = capsys.readouterr()
    assert (
        told.out.endswith("repair: undecidable ranges remain\n")
        and "no replica holds entry" in told.err
    )
    assert {node: contents(base, node) for node in NODES} == before
    flip(logs(base)[0], 900)
    findings(base)
    assert repair(base) == 2
    assert (
        log_contents(base, "n1")[logs(base)[0].name] == log_contents(base, "n2")[logs(base)[0].name]
    )


def test_the_seal_of_a_majority_is_the_proof_where_there_is_one(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes on which all replicas agree prove nothing if they differ from the seal."""
    name = logs(base)[1].name
    sealed = digest(str(logs(base, "n2")[1]), FILE_BYTES)
    flip(logs(base)[1], 700)
    findings(base)
    monkeypatch.setattr(plan, "_seals", lambda replicas, voters: {int(name): "ab" * 32})
    assert repair(base, "--dry-run") == 2
    assert "the seal of a majority is abab" in capsys.readouterr().out
    monkeypatch.setattr(plan, "_seals", lambda replicas, voters: {int(name): sealed})
    assert repair(base, "--dry-run") == 0
    assert f"proof: the seal of a majority: SHA-256 {sealed}" in capsys.readouterr().out


def test_a_last_entry_that_only_one_replica_has_is_not_proven(base: Path) -> None:
    """Nothing behind it says that it is the one that was committed: undecidable, and nothing is
    written."""
    for node in ("n1", "n2"):
        path = logs(base, node)[len(log_contents(base, node)) - 1]
        overwrite(path, len(path.read_bytes().rstrip(b"\0")) - 30, b"\xaa" * 20)
    findings(base)
    before = {node: log_contents(base, node) for node in NODES}
    assert repair(base) == 2
    assert {node: log_contents(base, node) for node in NODES} == before


def test_a_majority_decides_and_a_minority_of_one_does_not(base: Path, whole: Path) -> None:
    """Two replicas lost an entry, the third alone has it: it leads to what all three hold behind
    it, so it is the one that was there."""
    for node in ("n1", "n2"):
        overwrite(logs(base, node)[1], 700, b"\xff" * 5)
    findings(base)
    assert repair(base) == 0
    assert log_contents(base, "n1") == log_contents(base, "n2") == log_contents(whole, "n3")


def test_another_history_is_replaced_and_kept(
    base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One replica holds other entries than the two others: theirs take the place, state is derived
    again, what it held stays beside."""
    another_history(base, tmp_path_factory.mktemp("other"))
    held = log_contents(base, "n1")
    result = findings(base)
    assert {f.flaw.rule for f in result.findings} & {
        "replica.divergence",
        "replica.missing",
        "replica.extra",
        "replica.reordered",
    }
    assert repair(base) == 0
    assert log_contents(base, "n1") == log_contents(base, "n2")
    assert audit([str(base / name) for name in NODES], deep=True).verdict == "PASS"
    kept = {
        path.name.partition(".")[0]: path.read_bytes()
        for path in (base / "n1" / "g1" / "state" / "replaced").iterdir()
    }
    assert kept and all(held[name] == raw for name, raw in kept.items() if name in held)


def another_history(base: Path, other: Path) -> None:
    """n1 holds other entries than the two others."""
    write(other, 18)
    for name in ("identity.json", "state/peers.json"):
        if (base / "n1" / "g1" / name).exists():
            shutil.copy(base / "n1" / "g1" / name, other / "n1" / "g1" / name)
    shutil.rmtree(base / "n1" / "g1")
    shutil.copytree(other / "n1" / "g1", base / "n1" / "g1")


def test_a_log_is_not_cut_off_by_findings_from_before_it_grew(
    base: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nodes went on after the audit: a majority holds entries behind the compared index that
    this replica has promised, too."""
    another_history(base, tmp_path_factory.mktemp("other"))
    result = findings(base)
    first = min(
        f.flaw.index
        for f in result.findings
        if f.flaw.rule.startswith("replica.") and f.flaw.index is not None
    )
    report = base / "findings" / "verdict.json"
    value = json.loads(report.read_text())
    value["repair"]["groups"][0]["compared_to_index"] = first + 2
    report.write_text(json.dumps(value))
    held = contents(base)
    assert repair(base) == 2
    assert "audit again" in capsys.readouterr().err
    assert contents(base) == held


def damaged_derived(base: Path, pattern: str) -> Path:
    path = next(
        path
        for path in sorted((base / "n1" / "g1").glob(pattern))
        if path.is_file() and any(path.read_bytes())
    )
    at = next(at for at, byte in enumerate(path.read_bytes()) if byte)
    flip(path, at)
    return path


@pytest.mark.parametrize(
    "pattern",
    [
        "dledger-n1/index/0*",
        "consumequeue/*/*/0*",
        "state/snapshot",
        "checkpoint",
        "dledger-n1/checkpoint",
        "dledger-n1/syncedmark",
    ],
)
def test_derived_files_are_made_again_from_the_log(base: Path, pattern: str) -> None:
    """Dropped, derived as the node would, and equal to what the audit derives; a slot of the mark
    is written from the other one."""
    damaged_derived(base, pattern)
    assert findings(base).verdict == "FAIL"
    assert repair(base) == 0
    result = audit([str(base / name) for name in NODES], deep=True)
    assert (result.verdict, [f.text for f in result.findings]) == ("PASS", [])


@pytest.mark.parametrize("name", ["identity.json", "dledger-n1/hardstate"])
def test_damage_without_another_source_remains(
    base: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said with what to do instead: exit status 1, nothing is changed."""
    path = base / "n1" / "g1" / name
    overwrite(path, 0, bytes(100))
    overwrite(path, min(4096, path.stat().st_size - 8), bytes(8))
    findings(base)
    before = contents(base)
    assert repair(base) == 1
    told = capsys.readouterr()
    assert told.out.endswith("repair: damage remains\n") and f"g1/{name}" in told.err
    assert contents(base) == before


def test_a_backup_is_never_written_to(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It proves, or does not; what is wrong with it remains."""
    flip(logs(base)[1], 700)
    (base / "n1" / "backup.json").write_text("{}")
    findings(base)
    before = contents(base)
    assert repair(base) == 1
    assert "make a new backup" in capsys.readouterr().err
    assert contents(base) == before


def test_dry_run_reports_the_plan_and_leaves_the_files_unchanged(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(logs(base)[1], 700)
    findings(base)
    before = contents(base)
    assert repair(base, "--dry-run") == 0
    told, progress = capsys.readouterr()
    assert (
        told.endswith("repair: would be repaired\n")
        and "is recreated from" in told
        and "proof: chain CRC" in told
    )
    assert progress == "", "a terminal shows both streams, and would show the plan twice"
    assert repair(base, "--dry-run", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert list(value) == [
        "v",
        "dry_run",
        "outcome",
        "directories",
        "ranges",
        "undecided",
        "remaining",
    ]
    assert [file["base"] for file in value["directories"][0]["files"]] == [FILE_BYTES]
    assert contents(base) == before


def test_the_object_of_the_audit_is_enough(
    base: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`audit --json > FILE` says which directories; the rest is looked for again. The file of
    findings names its verdict."""
    flip(logs(base)[1], 700)
    result = findings(base)
    assert (
        command(["audit", "--engine", "local", "--json", *(str(base / name) for name in NODES)])
        == 1
    )
    (base / "audit.json").write_text(capsys.readouterr().out)
    assert command(["repair", "--from-findings", str(base / "audit.json")]) == 0
    assert log_contents(base, "n1") == log_contents(whole, "n1")
    assert result.verdict == "FAIL"
    flip(logs(base)[1], 700)
    assert command(["repair", "--from-findings", str(base / "findings" / "findings.jsonl")]) == 0


def test_repaired_findings_leave_the_files_unchanged(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same findings again: nothing is damaged, nothing is written."""
    flip(logs(base)[1], 700)
    findings(base)
    assert repair(base) == 0
    before = contents(base)
    assert repair(base) == 0
    assert contents(base) == before
    assert repair(base, "--dry-run") == 0
    assert "nothing is damaged" in capsys.readouterr().out


def told(base: Path, text: str) -> None:
    (base / "findings" / "verdict.json").write_text(text)


BAD: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "no file": (lambda base: shutil.rmtree(base / "findings"), 64, "cannot be read"),
    "no JSON": (lambda base: told(base, "hello"), 64, "is not what an audit"),
    "other JSON": (lambda base: told(base, "[1]"), 64, "is not what an audit"),
    "another version": (lambda base: told(base, '{"v":2}'), 64, "is not what an audit"),
    "a directory that is gone": (lambda base: shutil.rmtree(base / "n3"), 4, "cannot be opened"),
    "another replica in its place": (lambda base: exchanged(base), 4, "was audited"),
}


def exchanged(base: Path) -> None:
    path = base / "n1" / "g1" / "identity.json"
    path.unlink()
    shutil.copy(base / "n2" / "g1" / "identity.json", path)


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_sentence(
    base: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(logs(base)[1], 700)
    findings(base)
    change, status, text = BAD[kind]
    change(base)
    assert repair(base) == status
    told = capsys.readouterr()
    (line,) = [line for line in told.err.splitlines() if line.startswith("error: ")]
    assert text in line and "; " in line and "Traceback" not in told.err


def test_a_node_that_runs_is_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its peers' directories are locked as well: what is copied must not change."""
    flip(logs(base)[1], 700)
    findings(base)
    before = contents(base)
    lock = DirectoryLock(str(base / "n2"))
    try:
        assert repair(base) == 4
    finally:
        lock.close()
    assert "stop the node first" in capsys.readouterr().err
    assert contents(base) == before


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(30))
def test_random_damage_comes_back_or_is_named(base: Path, whole: Path, seed: int) -> None:
    """A few flips anywhere on one or two replicas: either everything is restored, or the rest is
    reported and found again."""
    rng = random.Random(seed)
    for node in rng.sample(NODES, rng.choice((1, 1, 2))):
        for _ in range(rng.choice((1, 3, 9))):
            path = rng.choice(logs(base, node))
            flip(path, rng.randrange(FILE_BYTES), rng.choice((1, 0x10, 0xFF)))
    if findings(base).verdict != "FAIL":
        return
    status = repair(base)
    result = audit([str(base / name) for name in NODES], deep=True)
    if status == 0:
        assert (result.verdict, [f.text for f in result.findings]) == ("PASS", [])
        assert all(log_contents(base, node) == log_contents(whole, node) for node in NODES)
    else:
        assert status == 2 and result.verdict == "FAIL"


def test_a_snapshot_of_another_history_is_not_given_to_a_replica(tmp_path: Path) -> None:
    """Of a trimmed log whose snapshot is damaged: the state of a replica that holds other entries
    is no substitute, the third one's is."""
    for name in NODES:
        writer = Writer(tmp_path / name)
        messages = history(3, 120)
        for number, message in enumerate(messages):
            writer.append(
                replace(message, body=b"another")
                if (name, number) == ("n2", len(messages) - 3)
                else message
            )
        writer.append(writer.trim_record(1))
        writer.finish()
        writer.decide(1)
        writer.trim(1)
        writer.trim_queues(1)
    flip(tmp_path / "n1" / "g1" / "state" / "snapshot", 30)
    findings(tmp_path)
    report = read_report(str(tmp_path / "findings"))
    assert isinstance(report, Report)
    planned = {one.replica: one.snapshot for one in plan.make_plan(report).directories}
    assert planned["n1"] == str(tmp_path / "n3" / "g1" / "state" / "snapshot")


@pytest.mark.parametrize("call", ["pread", "open", "stat", "listdir"])
def test_a_read_that_fails_is_told_with_its_file(
    base: Path, call: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each read of the plan in turn: of the damaged replica, and of those that the bytes come from.
    Nothing is changed, and no read that fails is a bug of the program."""
    path = logs(base)[1]
    flip(path, 200)
    findings(base)
    before = {name: contents(base, name) for name in NODES}
    real, seen, fails_at = getattr(os, call), 0, -1

    def failing(where: int | str, *more: int, **options: object) -> object:
        nonlocal seen
        name = os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else str(where)
        if any(name.startswith(str(base / node)) for node in NODES):
            seen += 1
            if seen == fails_at:
                raise OSError(errno.EIO, "Input/output error", *([name] if call != "pread" else []))
        return real(where, *more, **options)

    monkeypatch.setattr(os, call, failing)
    assert repair(base, "--dry-run") == 0
    total, refused = seen, 0
    assert total
    for at in range(1, total + 1, max(1, total // 40)):
        seen, fails_at = 0, at
        capsys.readouterr()
        status = repair(base, "--dry-run")
        err = capsys.readouterr().err
        assert status in (0, 1, 2, 4) and "internal error" not in err, (at, status, err)
        if "Input/output error" in err:
            refused += 1
            assert status == 4 and f"{base}/n" in err.splitlines()[-1]
    monkeypatch.undo()
    assert {name: contents(base, name) for name in NODES} == before
    assert refused
