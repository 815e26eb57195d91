"""The audit with what witnesses cosigned: forks, lost tails and replaced logs that all replicas
have in common."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.witnesses import (
    BadWitness,
    Witnessed,
    check_witnesses,
    read_witness,
    root_of,
    tree_of,
)
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.cli import run as command
from ledgermq.client.proofs.witness_files import GroupMemory, WitnessFiles
from ledgermq.proto.proofs.log_tree import FileLeaf
from ledgermq.proto.proofs.signed_notes import Checkpoint, LogName, Note, Signature, cosign
from tests.audit.checks.test_audit_agreement import in_file, seal_record
from tests.audit.damage_cases import NODES, history
from tests.audit.log_writer import CLUSTER, Writer
from tests.proto.naive_tree import naive_root

FILES = 5


def leaf_of(writer: Writer, file: int) -> FileLeaf:
    entries = in_file(writer, file)
    stored = [bytes(writer.space[one.pos : one.pos + one.size]) for one in entries]
    root = naive_root([hashlib.sha256(b"\0" + entry).digest() for entry in stored])
    return FileLeaf(
        file * writer.data_bytes,
        entries[0].index,
        len(entries),
        entries[-1].pos + entries[-1].size,
        root,
    )


def replica(base: Path, name: str, *, seals: int = FILES, seed: int = 5) -> Writer:
    """A replica whose last records seal its first files."""
    writer = Writer(base / name)
    for message in history(seed, 200):
        writer.append(message)
    for file in range(seals):
        leaf = leaf_of(writer, file)
        writer.append(
            seal_record(writer, file, v=2, tree={"entries": leaf.entries, "root": leaf.root.hex()})
        )
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
            files.accept(
                memory, Note(each.text(), (cosign(each.text(), files.key, 1, files.sign),))
            )
    return str(directory)


def found(
    base: Path, *witnesses: str, names: Sequence[str] = NODES
) -> tuple[list[tuple[str, str]], Audit]:
    check = partial(check_witnesses, witnesses=[read_witness(directory) for directory in witnesses])
    result = audit([str(base / name) for name in names], witnesses=check)
    return [
        (one.replica, one.flaw.rule)
        for one in result.findings
        if one.flaw.rule.startswith("witness.")
    ], result


@pytest.mark.parametrize("size", range(71))
def test_own_roots(size: int) -> None:
    leaves = [hashlib.sha256(bytes([number])).digest() for number in range(size)]
    assert root_of(leaves) == naive_root(leaves)


SEALED = [
    FileLeaf(4096 * file, 10 * file, 10, 4096 * file + 4000 + file, bytes([file]) * 32)
    for file in range(4)
]


def record(leaf: FileLeaf, *, old: bool = False, **changes: object) -> dict[str, Any]:
    """The seal record of a file; `old`: of version 1."""
    last = leaf.first + leaf.entries - 1
    fields = {"base": leaf.base, "first": leaf.first, "last": last, "end": leaf.end}
    return {
        **fields,
        **({} if old else {"tree": {"entries": leaf.entries, "root": leaf.root.hex()}}),
        **changes,
    }


def sealing(records: Sequence[object], *, name: str = "n1", stored: object = None) -> Replica:
    """A replica with these seal records in its log, and this tree in its snapshot."""
    one = Replica(f"/{name}", f"/{name}/g1", "g1", name, f"dledger-{name}", log_id="log")
    seals = [(number, json.dumps(value)) for number, value in enumerate(records)]
    reports: Any = [SimpleNamespace(seals=seals[1:]), SimpleNamespace(seals=seals[:1])]
    one.reports = reports
    one.snapshot = None if stored is None else {"retained": {"tree": stored}}
    return one


def test_the_leaves_of_a_log() -> None:
    """Those in the snapshot, then those of the seals behind it, as far as they follow each other.
    Seals of version 1 have none."""
    hashes = [leaf.hash() for leaf in SEALED]
    for old, kept, since in product(range(4), (None, *range(5)), range(5)):
        records = [record(leaf, old=number < old) for number, leaf in enumerate(SEALED)]
        seen = kept if kept is not None else old if since < old else 0
        stored = (
            None
            if kept is None
            else {"leaves": b64encode(b"".join(hashes[:kept])).decode(), "next": 10 * kept}
        )
        behind = seen >= max(old, since)
        expected = hashes[: kept or 0] + (hashes[seen:] if behind else [])
        assert tree_of(sealing(records[since:], stored=stored)) == (
            expected,
            40 if behind else 10 * seen,
        ), (old, kept, since)


def test_a_damaged_tree_in_a_snapshot_has_no_leaves() -> None:
    for text in ("AAA", "A!==", "!"):
        assert tree_of(sealing([record(SEALED[0])], stored={"leaves": text, "next": 0})) == ([], 0)


def test_only_whole_seal_records_have_leaves() -> None:
    """Numbers of 63 bits, and a root of 32 bytes. Another record does not count, and hides none
    behind it."""
    first = SEALED[0]
    leaf = [first.hash()]
    for key, value in product(
        ("base", "first", "last", "end"), (-1, 1 << 63, True, 1.0, "1", None)
    ):
        assert tree_of(sealing([record(first, **{key: value}), record(first)])) == (leaf, 10), (
            key,
            value,
        )
    for tree in (
        {},
        [],
        None,
        {"root": "00" * 31},
        {"root": "00" * 33},
        {"root": "x"},
        {"root": 1},
    ):
        assert tree_of(sealing([record(first, tree=tree), record(first)])) == (leaf, 10), tree
    assert tree_of(sealing([[], 1, record(first)])) == (leaf, 10)
    far = record(first, base=(1 << 63) - 1, end=(1 << 63) - 1)
    assert tree_of(sealing([far, record(first)]))[0] == [
        FileLeaf((1 << 63) - 1, 0, 10, (1 << 63) - 1, first.root).hash()
    ]


def cosigned(*sizes: int) -> Witnessed:
    """A witness that knows the tree over `SEALED`, in these sizes."""
    log = LogName(CLUSTER, "g1", "log")
    return Witnessed(
        "w",
        "/w",
        {
            "g1": {
                size: Checkpoint(log, size, root_of([leaf.hash() for leaf in SEALED[:size]]))
                for size in sizes
            }
        },
    )


def test_lacking_cosigned_entries_accuses_the_longest_proven_tree() -> None:
    """A finding of the replica with the longest tree, if a majority was given, or the holder of the
    confirmed history; else a reason."""
    ways: list[tuple[tuple[str, ...], str | None]] = [
        (("n1", "n2"), None),
        (("n1", "n2", "n3", "n4"), None),
        (("n1", "n2"), "n2"),
    ]
    for one, other, sizes, (voters, proven_by) in product(
        range(3), range(3), ((), (1,), (2, 3)), ways
    ):
        replicas = [
            sealing([record(leaf) for leaf in SEALED[:count]], name=name)
            for name, count in (("n1", one), ("n2", other))
        ]
        result = GroupResult("g1", replicas, voters=voters, proven_by=proven_by)
        check_witnesses(result, [cosigned(*sizes)])
        lacking, proven = max(sizes, default=0) > max(one, other), len(voters) == 2
        told = [
            (
                found.replica,
                found.flaw.rule,
                found.flaw.file,
                found.flaw.byte_from,
                found.flaw.byte_to,
            )
            for found in result.findings
        ]
        longest = "n1" if one >= other else "n2"
        assert told == [(longest, "witness.missing", f"g1/dledger-{longest}", 0, 0)] * (
            lacking and proven
        )
        assert len(result.reasons) == (lacking and not proven)


def test_a_group_without_replicas() -> None:
    """Whatever a witness cosigned, the audit did not see it."""
    for sizes in ((), (1,), (3,)):
        result = GroupResult("g1", [])
        check_witnesses(result, [cosigned(*sizes)])
        assert not result.findings and len(result.reasons) == len(sizes)


def test_up_to_which_file_a_fork_agrees() -> None:
    for size in range(1, 4):
        forked = [
            record(leaf, end=leaf.end + (number >= size)) for number, leaf in enumerate(SEALED)
        ]
        result = GroupResult("g1", [sealing(forked)])
        check_witnesses(result, [cosigned(1, 2, 3, 4)])
        (finding,) = result.findings
        assert finding.flaw.rule == "witness.fork" and finding.flaw.proof.endswith(
            f"up to {size} files they are the same"
        )
    other = GroupResult("g1", [sealing([record(leaf, end=leaf.end + 1) for leaf in SEALED])])
    check_witnesses(other, [cosigned(1)])
    assert other.findings[0].flaw.proof.endswith("up to 0 files they are the same")


def test_the_same_trees_are_no_finding(tmp_path: Path) -> None:
    """Of every size, and fewer than the log has now."""
    one = cluster(tmp_path)[0]
    place = witness(tmp_path / "w", [checkpoint(one, size) for size in range(1, FILES + 1)])
    assert found(tmp_path, place)[0] == []


@pytest.mark.parametrize("sizes", [(1, 3), (FILES,)])
def test_a_history_that_all_replicas_rewrote(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Every replica has the same other messages with right CRCs, seals and roots: only the witness
    knows."""
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
    """All replicas end earlier: a majority of them makes it a finding; of fewer the audit says that
    it does not know."""
    whole = replica(tmp_path / "before", "n1")
    cluster(tmp_path, seals=3)
    place = witness(tmp_path / "w", [checkpoint(whole, size) for size in (2, 4)])
    rules, result = found(tmp_path, place)
    assert [rule for _, rule in rules] == ["witness.missing"] and result.verdict == "FAIL"
    rules, result = found(tmp_path, place, names=["n1"])
    assert rules == [] and any(
        "no audited replica has more than 3; audit all replicas" in reason
        for reason in result.reasons
    )


def test_one_replica_that_lags_is_no_finding(tmp_path: Path) -> None:
    one = replica(tmp_path, "n1")
    replica(tmp_path, "n2")
    replica(tmp_path, "n3", seals=2)
    assert found(tmp_path, witness(tmp_path / "w", [checkpoint(one, FILES)]))[0] == []


def test_another_log_and_witnesses_that_disagree(tmp_path: Path) -> None:
    one = cluster(tmp_path)[0]
    other = Checkpoint(LogName(CLUSTER, "g1", "another"), 2, bytes(32))
    assert {rule for _, rule in found(tmp_path, witness(tmp_path / "w", [other]))[0]} == {
        "witness.log"
    }
    good = witness(tmp_path / "good", [checkpoint(one, 2)], "good")
    forked = witness(tmp_path / "bad", [Checkpoint(checkpoint(one, 2).log, 2, bytes(32))], "bad")
    rules = found(tmp_path, good, forked)[0]
    assert rules == [*((name, "witness.fork") for name in NODES), ("n1", "witness.agree")]


def test_checkpoint_without_a_true_cosignature_is_ignored_or_unusable(tmp_path: Path) -> None:
    """A checkpoint that somebody put into its directory; one with a false cosignature makes the
    directory unusable."""
    one = cluster(tmp_path)[0]
    place = witness(tmp_path / "w", [checkpoint(one, 2)])
    forged = Checkpoint(checkpoint(one, 3).log, 3, bytes(32)).text()
    with WitnessFiles.open(tmp_path / "w", "w") as files:
        memory = files.load("g1")
        files.accept(memory, Note(forged, (Signature("other", bytes(4), bytes(72)),)))
        assert found(tmp_path, place)[0] == []
        files.accept(
            memory, Note(forged, (Signature(files.key.name, files.key.key_id, bytes(72)),))
        )
    with pytest.raises(BadWitness, match="the signature of w is false"):
        read_witness(place)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    honest = replica(tmp_path / "before", "n1", seed=6)
    cluster(tmp_path)
    place = witness(tmp_path / "w", [checkpoint(honest, 2)])
    directories = [str(tmp_path / name) for name in NODES]
    assert command(["audit", *directories, "--engine", "local", "--witness", place]) == 1
    assert capsys.readouterr().out.count("rule=witness.fork") == 3
    assert (
        command(["audit", *directories, "--engine", "local", "--witness", str(tmp_path / "n1")])
        == 64
    )
    assert "is not the directory of a witness" in capsys.readouterr().err
    assert command(["audit", *directories, "--agreement", "--witness", place]) == 64
