"""The quick comparison, which reads no bodies: it finds every difference of histories to the entry,
and says that it looked for no rot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.audit.cli.report import as_json, as_text
from ledgermq.audit.reading import files
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.audit.run.works import OUTLINE, Outcome, Work, run_work
from tests.audit.damage_cases import NODES, flip, history
from tests.audit.log_writer import STORAGE, Message, Placed, Writer, election, sealed
from tests.proto.test_entries_tree import plain_root

FILE_BYTES = 8192


def run(base: Path, **options: bool) -> Audit:
    return audit([str(base / name) for name in NODES], agreement=True, **options)


def told(found: Audit) -> list[tuple[str, str, str, int | None]]:
    return [(f.replica, f.klass, f.flaw.rule, f.flaw.index) for f in found.findings]


def write(
    base: Path, count: int = 200, seals: int = 0, ends: tuple[int, int, int] = (0, 0, 0)
) -> list[Writer]:
    """Three equal replicas; the last records seal a number of their files; the replicas end a
    number of entries earlier."""
    writers = [Writer(base / name) for name in NODES]
    for writer, less in zip(writers, ends, strict=True):
        messages = history(5, count)
        for message in messages[: len(messages) - less]:
            writer.append(message)
        for file in range(seals):
            writer.append(seal_record(writer, file))
        writer.finish()
    return writers


def digest_of(writer: Writer, file: int) -> str:
    data = bytes(writer.space[file * FILE_BYTES : (file + 1) * FILE_BYTES])
    return hashlib.sha256(hashlib.sha256(data).digest()).hexdigest()


def in_file(writer: Writer, file: int) -> list[Placed]:
    return [entry for entry in writer.entries if entry.pos // FILE_BYTES == file]


def seal_record(writer: Writer, file: int, **other: object) -> Message:
    """As a leader records it."""
    entries, last = in_file(writer, file), writer.entries[-1]
    body = {
        "base": file * FILE_BYTES,
        "first": entries[0].index,
        "last": entries[-1].index,
        "end": entries[-1].pos + entries[-1].size,
    }
    value = {**body, "sha256": digest_of(writer, file), "replicas": ["n1", "n2"], "v": 1, **other}
    return Message(
        STORAGE,
        json.dumps(value, sort_keys=True).encode(),
        tag="seal",
        term=last.term,
        time=last.message.time,
    )


def test_equal_replicas_pass_with_the_note_that_bytes_were_not_read(tmp_path: Path) -> None:
    """PASS with a note, no coverage, and `bytes_verified` false."""
    writers = write(tmp_path, seals=2)
    found = run(tmp_path)
    assert (found.verdict, found.reasons, told(found)) == ("PASS", [], [])
    assert found.compared == writers[0].entries[-1].index
    value = as_json(found)
    assert value["bytes_verified"] is False and "not read" in as_text(found)
    assert all(one["coverage_ratio"] is None for one in value["replicas"])  # type: ignore[attr-defined]


def test_agreement_reads_a_few_headers_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few headers a file, however long the files are."""
    writers = write(tmp_path, 1500)
    read = 0
    real = files.File.pread

    def pread(file: files.File, size: int, offset: int) -> bytes:
        nonlocal read
        data = real(file, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(files.File, "pread", pread)
    assert run(tmp_path).verdict == "PASS"
    assert read < 3 * len(writers[0].space) / 10


@pytest.mark.parametrize("place", [3, 40, 130, 198])
def test_another_history_is_found_to_the_entry(tmp_path: Path, place: int) -> None:
    """Right in itself from its first to its last word, and another one than the majority's from one
    entry on."""
    writers = write(tmp_path)
    messages = history(5, 200)
    other = Writer(tmp_path / "n2")
    for message in messages[:place]:
        other.append(message)
    changed = messages[place]
    other.append(
        Message(
            changed.topic,
            b"another body",
            changed.queue,
            changed.tag,
            changed.key,
            0,
            changed.time,
            changed.term,
        )
    )
    for message in messages[place + 1 :]:
        other.append(message)
    other.finish()
    found = run(tmp_path)
    assert found.verdict == "FAIL" and ("n2", "divergence", "replica.divergence", place) in told(
        found
    )
    (flaw,) = [f.flaw for f in found.findings if f.flaw.rule == "replica.divergence"]
    entry = other.entries[place]
    assert (flaw.byte_from, flaw.byte_to) == (
        entry.pos % FILE_BYTES,
        entry.pos % FILE_BYTES + entry.size,
    )
    assert flaw.file.endswith(f"{entry.pos - entry.pos % FILE_BYTES:020d}") and len(writers) == 3


@pytest.mark.parametrize("clean", [True, False])
def test_log_that_ends_before_its_synced_mark_is_missing_entries(
    tmp_path: Path, clean: bool
) -> None:
    """It looks like one that lags, but it was there; a killed node that lacks index units alone has
    lost nothing."""
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(5, 100):
            writer.append(message)
        writer.finish(clean=clean)
    entry = writer.entries[60]
    folders = (("index", entry.index * 32, 1024), ("data", entry.pos, FILE_BYTES))
    for folder, start, size in folders:
        for path in (writer.log / folder).iterdir():
            keep = min(max(start - int(path.name), 0), size)
            path.write_bytes(path.read_bytes()[:keep].ljust(size, b"\0"))
        if folder == "index" and not clean:
            assert not [row for row in told(run(tmp_path)) if row[1] == "missing"]
    found = run(tmp_path)
    assert found.verdict == "FAIL" and told(found) == [("n3", "missing", "mark.end", 60)]


def test_a_loss_of_power_above_the_synced_mark_is_no_finding(tmp_path: Path) -> None:
    """The unit of the last entry of a file was on the disk, and its sector of the log was not.
    Jury, healthy seed 31000005."""
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(5, 100):
            writer.append(message)
        writer.finish(clean=False, mark=10, committed=10)
    last = in_file(writer, 1)[-1]
    path = writer.log / "data" / f"{FILE_BYTES:020d}"
    data, sector = path.read_bytes(), last.pos % FILE_BYTES // 512 * 512
    path.write_bytes(data[:sector] + bytes(len(data) - sector))
    found = run(tmp_path)
    assert found.verdict == "INCOMPLETE" and not [
        finding for finding in found.findings if finding.fails
    ]


def test_rot_of_a_body_is_not_seen_and_a_rotten_word_at_a_file_end_is(tmp_path: Path) -> None:
    """The first is what the other checks are for; the second would look like another history, but
    later words agree."""
    writers = write(tmp_path)
    body = in_file(writers[0], 1)[2]
    flip(
        tmp_path / "n1" / "g1" / "dledger-n1" / "data" / f"{FILE_BYTES:020d}",
        body.pos - FILE_BYTES + 100,
    )
    assert run(tmp_path).verdict == "PASS"
    assert audit([str(tmp_path / name) for name in NODES]).verdict == "FAIL"
    last = in_file(writers[2], 0)[-1]
    flip(tmp_path / "n3" / "g1" / "dledger-n3" / "data" / f"{0:020d}", last.pos + 37)
    found = run(tmp_path)
    assert told(found) == [("n3", "bit-rot", "entry.chain", last.index)]
    assert (found.findings[0].flaw.byte_from, found.findings[0].flaw.byte_to) == (
        last.pos + 37,
        last.pos + 38,
    )


def test_a_replica_that_lags_is_no_finding_and_no_proof(tmp_path: Path) -> None:
    """The audit compares as far as a majority has entries; a replica that lacks messages makes it
    INCOMPLETE."""
    writers = write(tmp_path, ends=(0, 0, 30))
    found = run(tmp_path)
    assert (
        found.verdict == "INCOMPLETE"
        and told(found) == []
        and found.compared == writers[0].entries[-1].index
    )
    assert any("n3" in reason for reason in found.reasons)


def test_records_of_elections_at_the_end_are_no_lag(tmp_path: Path) -> None:
    """As when the nodes of a cluster stop one after the other."""
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(5, 100):
            writer.append(message)
        if name != "n3":
            writer.append(election(9, "n1", writer.entries[-1].message.time))
        writer.finish(committed=len(history(5, 100)) - 1)
    found = run(tmp_path)
    assert (found.verdict, told(found)) == ("PASS", []), found.reasons


def test_an_uncommitted_tail_of_a_deposed_leader_is_no_divergence(tmp_path: Path) -> None:
    """Entries of another term that it never knew to be committed."""
    messages = history(5, 100)
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in messages:
            writer.append(message)
        time = writer.entries[-1].message.time
        for number in range(3):
            term = 7 if name == "n2" else 8
            writer.append(
                Message(
                    "flights",
                    b"%d" % number,
                    key=name if name == "n2" else "same",
                    term=term,
                    time=time,
                )
            )
        writer.finish(committed=len(messages) - 1)
    found = run(tmp_path)
    assert told(found) == [] and found.verdict == "INCOMPLETE"


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("cut", "file.length"), ("gone", "file.missing"), ("zero", "entry.unreadable")],
)
def test_short_missing_or_headless_file_fails(tmp_path: Path, kind: str, rule: str) -> None:
    """A file that is short, missing, or does not begin with an entry."""
    write(tmp_path)
    path = tmp_path / "n1" / "g1" / "dledger-n1" / "data" / f"{FILE_BYTES:020d}"
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif kind == "gone":
        path.unlink()
    else:
        flip(path, 27)
    found = run(tmp_path)
    assert found.verdict == "FAIL" and ("n1", rule) in {
        (f.replica, f.flaw.rule) for f in found.findings
    }


def test_a_digest_that_a_node_noted_speaks_for_its_file(tmp_path: Path) -> None:
    """A recorded digest that differs from the seal proves that the replica has, or had, other
    bytes."""
    writers = write(tmp_path, seals=0)
    records = [json.loads(seal_record(writers[0], file).body) for file in (0, 1)]
    for name in NODES:
        path = tmp_path / name / "g1" / "state" / "snapshot"
        snapshot = json.loads(path.read_bytes())
        del snapshot["crc32c"]
        path.write_bytes(sealed({**snapshot, "retained": {"begin_index": 0, "seals": records}}))
        digests = {str(record["base"]): record["sha256"] for record in records}
        if name == "n3":
            digests[str(FILE_BYTES)] = "ab" * 32
        note = sealed({"v": 1, "log_id": writers[0].log_id, "digests": digests})
        (tmp_path / name / "g1" / "state" / "digests").write_bytes(note)
    assert told(run(tmp_path)) == [
        ("n3", "divergence", "seal.noted", in_file(writers[0], 1)[0].index)
    ]


def deep(base: Path) -> Audit:
    return audit([str(base / name) for name in NODES], deep=True)


def deep_with(base: Path, *records: Callable[[Writer], Message]) -> Audit:
    """A deep audit of three replicas with the same messages and, behind them, these records."""
    for name in NODES:
        writer = Writer(base / name)
        for message in history(5, 200):
            writer.append(message)
        for record in records:
            writer.append(record(writer))
        writer.finish()
    return deep(base)


def test_records_of_sealed_files_are_held_against_the_files(tmp_path: Path) -> None:
    """The bytes of every complete file, and what the record says of its edges."""
    write(tmp_path, seals=3)
    found = deep(tmp_path)
    assert found.verdict == "PASS", as_text(found)


@pytest.mark.parametrize(
    ("other", "rule", "klass"),
    [
        ({"sha256": "ab" * 32}, "seal.digest", "divergence"),
        ({"last": 3}, "seal.record", "wrong-derived"),
        ({"end": 9}, "seal.record", "wrong-derived"),
    ],
)
def test_a_history_that_was_written_anew_everywhere_is_seen_by_its_seal(
    tmp_path: Path, other: dict[str, object], rule: str, klass: str
) -> None:
    """All replicas agree and every CRC is right; only the record remembers. What a majority has
    alike is no rot."""
    found = deep_with(tmp_path, lambda writer: seal_record(writer, 1, **other))
    assert found.verdict == "FAIL"
    assert {(f.replica, f.klass, f.flaw.rule) for f in found.findings} == {
        (name, klass, rule) for name in NODES
    }


def rooted(writer: Writer, file: int, **other: object) -> Message:
    """A seal with the root of the entries, by the definition of the tree hash."""
    data = bytes(writer.space)
    leaves = [data[entry.pos : entry.pos + entry.size] for entry in in_file(writer, file)]
    tree = {"entries": len(leaves), "root": plain_root(leaves).hex(), **other}
    return seal_record(
        writer, file, v=2, tree={key: part for key, part in tree.items() if part is not None}
    )


@pytest.mark.parametrize(
    ("other", "rules"),
    [
        ({}, set()),
        ({"root": "ab" * 32}, {"seal.tree"}),
        ({"entries": 3}, {"seal.tree"}),
        ({"root": 5}, {"seal.tree"}),
        ({"entries": None}, {"seal.tree"}),
        ({"entries": None, "root": None}, {"seal.tree"}),
    ],
    ids=["right", "root", "entries", "root-that-is-none", "without-entries", "empty"],
)
def test_the_root_in_a_seal_is_computed_again(
    tmp_path: Path, other: dict[str, object], rules: set[str]
) -> None:
    """Where the file has the sealed bytes, the record itself is wrong, on every replica that holds
    it."""
    found = deep_with(
        tmp_path, lambda writer: rooted(writer, 0), lambda writer: rooted(writer, 1, **other)
    )
    assert {f.flaw.rule for f in found.findings} == rules and (found.verdict == "FAIL") == bool(
        rules
    ), as_text(found)
    assert {(f.replica, f.klass) for f in found.findings} == {
        (name, "wrong-derived") for name in NODES if rules
    }


@pytest.mark.parametrize(
    ("fields", "rules"),
    [({"v": 1}, set()), ({"v": 2}, {"seal.tree"})],
    ids=["version-1", "version-2"],
)
def test_a_seal_without_a_tree_has_version_1(
    tmp_path: Path, fields: dict[str, object], rules: set[str]
) -> None:
    found = deep_with(tmp_path, lambda writer: seal_record(writer, 0, **fields))
    assert {f.flaw.rule for f in found.findings} == rules


def test_a_damaged_file_is_told_by_its_bytes_and_not_by_its_root(tmp_path: Path) -> None:
    writers = [Writer(tmp_path / name) for name in NODES]
    for writer in writers:
        for message in history(5, 200):
            writer.append(message)
        writer.append(rooted(writer, 0))
        writer.finish()
    flip(
        tmp_path / "n2" / "g1" / "dledger-n2" / "data" / f"{0:020d}",
        in_file(writers[1], 0)[3].pos + 60,
    )
    assert "seal.tree" not in {f.flaw.rule for f in deep(tmp_path).findings}


def test_a_rewritten_file_of_one_replica_is_told_once(tmp_path: Path) -> None:
    """A file that another check reported is not reported again for its digest."""
    writers = write(tmp_path, seals=3)
    entry = in_file(writers[1], 0)[5]
    flip(tmp_path / "n2" / "g1" / "dledger-n2" / "data" / f"{0:020d}", entry.pos + 60)
    found = deep(tmp_path)
    assert {f.replica for f in found.findings} == {"n2"}
    assert [f.flaw.rule for f in found.findings if f.flaw.rule.startswith("seal.")] == []


@pytest.mark.parametrize("agreement", [True, False])
def test_seal_record_in_a_minority_history_accuses_only_its_replica(
    tmp_path: Path, agreement: bool
) -> None:
    """The last replica's record, written anew with all its CRCs, names another digest: the others
    are not accused by it."""
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(5, 200):
            writer.append(message)
        writer.append(
            seal_record(writer, 0, **({"sha256": "ab" * 32, "last": 5} if name == "n3" else {}))
        )
        writer.finish()
    found = run(tmp_path) if agreement else deep(tmp_path)
    assert found.verdict == "FAIL" and {f.replica for f in found.findings} == {"n3"}, as_text(found)


def test_outlines_cross_processes(tmp_path: Path) -> None:
    """As text, and back: what the Spark engine does with them."""
    write(tmp_path, seals=1)
    [one] = [found for found in audit([str(tmp_path / "n1")], agreement=True).groups[0].replicas]
    work = Work(one.directory, one.task(f"{0:020d}"), OUTLINE)
    outcome = run_work(Work.from_json(work.to_json()))
    assert Outcome.from_json(outcome.to_json()) == outcome and len(outcome.outline) > 2
