"""The audit with what witnesses cosigned: forks, lost tails and replaced logs that all replicas have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from ledgermq.audit.checks.witnesses import BadWitness, check_witnesses, read_witness, root_of
from ledgermq.audit.jobs import Audit, audit
from ledgermq.cli import run as command
from ledgermq.client.proofs.witness_files import GroupMemory, WitnessFiles
from ledgermq.proto.log_tree import FileLeaf
from ledgermq.proto.signed_notes import Checkpoint, LogName, Note, Signature, cosign
from tests.audit.damage_cases import NODES, history
from tests.audit.log_writer import CLUSTER, Writer
from tests.audit.test_audit_agreement import in_file, seal_record
from tests.proto.naive_tree import naive_root

FILES = 5


def leaf_of(writer: Writer, file: int) -> FileLeaf:
    entries = in_file(writer, file)
    stored = [bytes(writer.space[one.pos : one.pos + one.size]) for one in entries]
    root = naive_root([hashlib.sha256(b"\0" + entry).digest() for entry in stored])
    return FileLeaf(file * writer.data_bytes, entries[0].index, len(entries), entries[-1].pos + entries[-1].size, root)


def replica(base: Path, name: str, *, seals: int = FILES, seed: int = 5) -> Writer:
    """A replica whose last records seal its first files."""
    writer = Writer(base / name)
    for message in history(seed, 200):
        writer.append(message)
    for file in range(seals):
        leaf = leaf_of(writer, file)
        writer.append(seal_record(writer, file, v=2, tree={"entries": leaf.entries, "root": leaf.root.hex()}))
    return writer.finish()


def cluster(base: Path, **options: int) -> list[Writer]:
    return [replica(base, name, **options) for name in NODES]


def checkpoint(writer: Writer, size: int) -> Checkpoint:
    root = naive_root([leaf_of(writer, file).hash() for file in range(size)])
    return Checkpoint(LogName(CLUSTER, writer.group, writer.log_id), size, root)


def witness(directory: Path, checkpoints: Sequence[Checkpoint], name: str = "w") -> str:
    with WitnessFiles.open(directory, name) as files:
        memory = GroupMemory("g1", {}, {})
        for each in checkpoints:
            files.accept(memory, Note(each.text(), (cosign(each.text(), files.key, 1, files.sign),)))
    return str(directory)


def found(base: Path, *witnesses: str, names: Sequence[str] = NODES) -> tuple[list[tuple[str, str]], Audit]:
    check = partial(check_witnesses, witnesses=[read_witness(directory) for directory in witnesses])
    result = audit([str(base / name) for name in names], witnesses=check)
    return [(one.replica, one.flaw.rule) for one in result.findings if one.flaw.rule.startswith("witness.")], result


@pytest.mark.parametrize("size", range(71))
def test_own_roots(size: int) -> None:
    leaves = [hashlib.sha256(bytes([number])).digest() for number in range(size)]
    assert root_of(leaves) == naive_root(leaves)


def test_the_same_trees_are_no_finding(tmp_path: Path) -> None:
    """Of every size, and fewer than the log has now."""
    one = cluster(tmp_path)[0]
    place = witness(tmp_path / "w", [checkpoint(one, size) for size in range(1, FILES + 1)])
    assert found(tmp_path, place)[0] == []


@pytest.mark.parametrize("sizes", [(1, 3), (FILES,)])
def test_a_history_that_all_replicas_rewrote(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Every replica has the same other messages with right CRCs, seals and roots: only the witness knows."""
    honest = replica(tmp_path / "before", "n1", seed=6)
    cluster(tmp_path)
    place = witness(tmp_path / "w", [checkpoint(honest, size) for size in sizes])
    rules, result = found(tmp_path, place)
    assert rules == [(name, "witness.fork") for name in NODES]
    assert result.verdict == "FAIL"


def test_one_replica_with_a_history_of_its_own(tmp_path: Path) -> None:
    one = replica(tmp_path, "n1")
    replica(tmp_path, "n2")
    replica(tmp_path, "n3", seed=6)
    place = witness(tmp_path / "w", [checkpoint(one, 2)])
    assert found(tmp_path, place)[0] == [("n3", "witness.fork")]


def test_sealed_files_that_are_gone(tmp_path: Path) -> None:
    """All replicas end earlier: a majority of them makes it a finding; of fewer the audit says that it does not know."""
    whole = replica(tmp_path / "before", "n1")
    cluster(tmp_path, seals=3)
    place = witness(tmp_path / "w", [checkpoint(whole, size) for size in (2, 4)])
    rules, result = found(tmp_path, place)
    assert [rule for _, rule in rules] == ["witness.missing"] and result.verdict == "FAIL"
    rules, result = found(tmp_path, place, names=["n1"])
    assert rules == [] and any("no audited replica has more than 3; audit all replicas" in reason for reason in result.reasons)


def test_one_replica_that_lags_is_no_finding(tmp_path: Path) -> None:
    one = replica(tmp_path, "n1")
    replica(tmp_path, "n2")
    replica(tmp_path, "n3", seals=2)
    assert found(tmp_path, witness(tmp_path / "w", [checkpoint(one, FILES)]))[0] == []


def test_another_log_and_witnesses_that_disagree(tmp_path: Path) -> None:
    one = cluster(tmp_path)[0]
    other = Checkpoint(LogName(CLUSTER, "g1", "another"), 2, bytes(32))
    assert {rule for _, rule in found(tmp_path, witness(tmp_path / "w", [other]))[0]} == {"witness.log"}
    good = witness(tmp_path / "good", [checkpoint(one, 2)], "good")
    forked = witness(tmp_path / "bad", [Checkpoint(checkpoint(one, 2).log, 2, bytes(32))], "bad")
    rules = found(tmp_path, good, forked)[0]
    assert rules == [*((name, "witness.fork") for name in NODES), ("n1", "witness.agree")]


def test_what_the_witness_did_not_cosign_does_not_count(tmp_path: Path) -> None:
    """A checkpoint that somebody put into its directory; one with a false cosignature makes the directory unusable."""
    one = cluster(tmp_path)[0]
    place = witness(tmp_path / "w", [checkpoint(one, 2)])
    forged = Checkpoint(checkpoint(one, 3).log, 3, bytes(32)).text()
    with WitnessFiles.open(tmp_path / "w", "w") as files:
        memory = files.load("g1")
        files.accept(memory, Note(forged, (Signature("other", bytes(4), bytes(72)),)))
        assert found(tmp_path, place)[0] == []
        files.accept(memory, Note(forged, (Signature(files.key.name, files.key.key_id, bytes(72)),)))
    with pytest.raises(BadWitness, match="the signature of w is false"):
        read_witness(place)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    honest = replica(tmp_path / "before", "n1", seed=6)
    cluster(tmp_path)
    place = witness(tmp_path / "w", [checkpoint(honest, 2)])
    directories = [str(tmp_path / name) for name in NODES]
    assert command(["audit", *directories, "--engine", "local", "--witness", place]) == 1
    assert capsys.readouterr().out.count("rule=witness.fork") == 3
    assert command(["audit", *directories, "--engine", "local", "--witness", str(tmp_path / "n1")]) == 64
    assert "is not the directory of a witness" in capsys.readouterr().err
    assert command(["audit", *directories, "--agreement", "--witness", place]) == 64
