"""The findings of an audit with several errors: the damaged place and its replica, never an intact
one beside it."""

from __future__ import annotations

import json
import shutil
import struct
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.audit.checks.group import GroupResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.run.jobs import Audit, audit, compare_bytes
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import Message, Writer, sealed

FILE = 8192


def run(base: Path) -> Audit:
    return audit([str(base / name) for name in NODES], deep=True)


def told(result: Audit) -> set[tuple[str, str, str]]:
    """(replica, rule, file) of what failed."""
    return {
        (f.replica, f.flaw.rule, f.flaw.file.rpartition("/")[2]) for f in result.findings if f.fails
    }


def data(writer: Writer, number: int) -> Path:
    return writer.log / "data" / f"{number * FILE:020d}"


def test_zeroed_log_file_is_an_entry_gap(tmp_path: Path) -> None:
    """In the middle and at the beginning: the neighbouring files are complete, so only the gap
    shows the loss."""
    for number in (0, 1):
        base = tmp_path / str(number)
        writers = write_cluster(base, history(3, 120))
        data(writers[1], number).write_bytes(bytes(FILE))
        result = run(base)
        assert result.verdict == "FAIL" and ("n2", "entry.gap", f"{number * FILE:020d}") in told(
            result
        ), told(result)
        assert {replica for replica, _, _ in told(result)} == {"n2"}


def test_entries_lost_at_the_end_of_a_file_are_missed_there(tmp_path: Path) -> None:
    """The last page of a file reads as zero, and entries stand in the next file: the finding names
    the lost page."""
    writers = write_cluster(tmp_path, history(3, 120))
    path = data(writers[0], 0)
    path.write_bytes(path.read_bytes()[:4096].ljust(FILE, b"\0"))
    (gap,) = [f for f in run(tmp_path).findings if f.flaw.rule == "entry.gap"]
    assert (gap.replica, gap.klass, gap.flaw.file[-20:], gap.flaw.byte_to) == (
        "n1",
        "missing",
        f"{0:020d}",
        FILE,
    )
    assert 4096 <= gap.flaw.byte_from < 4096 + 600


def forged_mark(writer: Writer, index: int, at: int) -> None:
    """The mark names that entry with the term, end and chain CRC of entry `at`; its checksum is
    right."""
    entry = writer.entries[at]
    fields = struct.pack(">iqqqI", 0, entry.term, index, entry.pos + entry.size, entry.chain)
    body = writer.log_id.encode() + fields
    (writer.log / "syncedmark").write_bytes(
        writer.slot(b"LMSM", 8, body) + writer.slot(b"LMSM", 7, body)
    )


def test_a_mark_that_lies_ahead_is_named_beside_the_log(tmp_path: Path) -> None:
    """No replica has the entry that it names: the log may have lost it, or the mark is wrong. Both
    files are named."""
    writers = write_cluster(tmp_path, history(3, 60))
    forged_mark(writers[1], len(writers[1].entries) + 4, -1)
    result = run(tmp_path)
    assert told(result) == {
        ("n2", "mark.end", data(writers[1], writers[1].pos // FILE).name),
        ("n2", "mark.log", "syncedmark"),
    }
    assert all(
        "g1/dledger-n2/syncedmark" in f.flaw.proof
        for f in result.findings
        if f.flaw.rule == "mark.end"
    )


def test_a_mark_that_other_replicas_bear_out_is_not_named(tmp_path: Path) -> None:
    """The log lost its last entries, and the others hold the one that the mark names."""
    writers = write_cluster(tmp_path, history(3, 60))
    lost = writers[1].entries[-4]
    path, at = data(writers[1], lost.pos // FILE), lost.pos % FILE
    path.write_bytes(path.read_bytes()[:at].ljust(FILE, b"\0"))
    assert told(run(tmp_path)) == {("n2", "mark.end", path.name)}


def test_a_mark_behind_the_end_of_a_log_that_was_stopped_is_named(tmp_path: Path) -> None:
    """A clean stop leaves the mark at the last entry."""
    writers = write_cluster(tmp_path, history(3, 60))
    forged_mark(writers[1], len(writers[1].entries) - 5, -5)
    assert told(run(tmp_path)) == {("n2", "mark.log", "syncedmark")}


@pytest.mark.parametrize(("how", "rule"), [("missing", "file.missing"), ("zeros", "entry.gap")])
def test_lost_first_file_is_the_only_finding(tmp_path: Path, how: str, rule: str) -> None:
    """The units of its messages are right, and the queue offsets in the next file follow those that
    it had."""
    writers = write_cluster(tmp_path, history(6, 40))
    path = writers[1].log / "data" / f"{0:020d}"
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size))
    assert told(run(tmp_path)) == {("n2", rule, f"{0:020d}")}


@pytest.mark.parametrize("content", ["zeros", "garbage", "a copy"])
@pytest.mark.parametrize("folder", ["data", "index"])
def test_a_stray_file_far_ahead_is_named_itself(tmp_path: Path, content: str, folder: str) -> None:
    """Nothing shows that the log continues up to this file, so the files before it are not reported
    as missing."""
    writers = write_cluster(tmp_path, history(3, 60))
    size = FILE if folder == "data" else writers[1].index_bytes
    first = (writers[1].log / folder / f"{0:020d}").read_bytes()
    stray = writers[1].log / folder / f"{90 * size:020d}"
    stray.write_bytes({"zeros": bytes(size), "garbage": b"\x5a" * size, "a copy": first}[content])
    found = told(run(tmp_path))
    assert ("n2", "file.name", stray.name) in found and {
        (name, file) for name, _, file in found
    } == {("n2", stray.name)}, found


@pytest.mark.parametrize("number", [(1 << 63) // FILE - 1, (1 << 63) // FILE, (10**20 - 1) // FILE])
def test_a_stray_file_at_the_last_positions_or_behind_them_is_named_itself(
    tmp_path: Path, number: int
) -> None:
    """Its name has 20 digits, which are enough for places that no entry can have."""
    writers = write_cluster(tmp_path, history(3, 60))
    shutil.copy(data(writers[1], 0), data(writers[1], number))
    assert told(run(tmp_path)) == {("n2", "file.name", f"{number * FILE:020d}")}


def test_a_stray_file_beside_an_empty_log_is_named_itself(tmp_path: Path) -> None:
    """A replica that has no entry yet needs no second log file."""
    write_cluster(tmp_path, history(3, 60))
    shutil.rmtree(tmp_path / "n2")
    stray = data(Writer(tmp_path / "n2").finish(), 90)
    stray.write_bytes(bytes(FILE))
    assert told(run(tmp_path)) == {("n2", "file.name", stray.name)}


def test_missing_middle_file_is_the_only_finding(tmp_path: Path) -> None:
    """Entries stand in the file behind: the one between is missing."""
    writers = write_cluster(tmp_path, history(3, 120))
    data(writers[1], 1).unlink()
    assert told(run(tmp_path)) == {("n2", "file.missing", data(writers[1], 1).name)}


def test_lost_last_file_is_the_only_finding(tmp_path: Path) -> None:
    """What index, consume queues, snapshot and checkpoint say of lost entries is right: it is the
    log that lost them."""
    writers = write_cluster(tmp_path, history(3, 120))
    for writer in writers:
        (writer.root / "checkpoint").write_bytes(
            writer.entries[-1].message.time.to_bytes(8, "big").ljust(4096, b"\0")
        )
    assert run(tmp_path).verdict == "PASS"
    last = writers[2].entries[-1].pos // FILE
    for number in (last, last + 1):
        data(writers[2], number).unlink()
    assert told(run(tmp_path)) == {("n3", "mark.end", f"{last * FILE:020d}")}


def test_the_third_replica_is_not_accused_of_the_damage_of_two(tmp_path: Path) -> None:
    """Two replicas are damaged in one file, at one place or at two: its bytes differ from theirs,
    and it is right."""
    for number, places in enumerate(((140, 140), (140, 4000))):
        base = tmp_path / str(number)
        writers = write_cluster(base, history(3))
        for writer, place in zip(writers[:2], places, strict=True):
            flip(data(writer, 0), place)
        assert {replica for replica, _, _ in told(run(base))} == {"n1", "n2"}


def test_a_damaged_chain_word_is_no_other_history(tmp_path: Path) -> None:
    """The next entry continues from the correct chain CRC: every byte except these four is proven,
    and the replica still counts for other entries."""
    writers = write_cluster(tmp_path, history(3))
    flip(data(writers[2], 0), 38)
    entry = writers[0].entries[12]
    flip(data(writers[0], 0), entry.pos + 60)
    flip(data(writers[1], 0), entry.pos + 61)
    result = run(tmp_path)
    assert {(f.replica, f.klass, f.flaw.index) for f in result.findings} == {
        ("n1", "bit-rot", 12),
        ("n2", "bit-rot", 12),
        ("n3", "bit-rot", 0),
    }


def test_lagging_replica_is_not_accused_of_an_entry_damaged_elsewhere(tmp_path: Path) -> None:
    """A majority had the last committed entry, and one of them has it damaged: the third never had
    it, and that is ordinary."""
    messages = history(5, 60)
    writers = []
    for name, count in zip(NODES, (62, 62, 50), strict=True):
        writer = Writer(tmp_path / name)
        for message in messages[:count]:
            writer.append(message)
        writers.append(writer.finish())
    entry = writers[0].entries[-1]
    flip(data(writers[0], entry.pos // FILE), entry.pos % FILE + 60)
    assert {replica for replica, _, _ in told(run(tmp_path))} == {"n1"}


def test_a_snapshot_that_its_log_contradicts_is_no_measure(tmp_path: Path) -> None:
    """Two replicas have the same wrong snapshot: the third, which is right, is not accused of being
    another one."""
    writers = write_cluster(tmp_path, history(3))
    for writer in writers[:2]:
        path = writer.root / "state" / "snapshot"
        value = json.loads(path.read_bytes())
        del value["crc32c"]
        value["queues"]["flights"]["0"] += 1
        path.write_bytes(sealed(value))
    assert {replica for replica, _, _ in told(run(tmp_path))} == {"n1", "n2"}


def test_a_foreign_identity_is_told_of_the_directory_it_lies_in(tmp_path: Path) -> None:
    """Another replica's identity file, or another directory's incarnation that two peers never met:
    the finding names that replica."""
    writers = write_cluster(tmp_path, history(3))
    shutil.copy(writers[0].root / "identity.json", writers[1].root / "identity.json")
    assert {replica for replica, _, _ in told(run(tmp_path))} == {"n2"}
    writers[1].identities()
    for writer in writers:
        (writer.root / "state").mkdir(exist_ok=True)
        others = [other for other in writers if other is not writer]
        met = {
            other.node: json.loads((other.root / "identity.json").read_bytes())["incarnation"]
            for other in others
        }
        (writer.root / "state" / "peers.json").write_bytes(sealed({"peers": met}))
    assert run(tmp_path).verdict == "PASS"
    value = json.loads((writers[1].root / "identity.json").read_bytes())
    del value["crc32c"]
    (writers[1].root / "identity.json").write_bytes(sealed({**value, "incarnation": "another"}))
    assert told(run(tmp_path)) == {("n2", "peers.incarnation", "identity.json")}


def test_a_trimmed_log_without_its_begin_file_is_told_so(tmp_path: Path) -> None:
    """The snapshot knows where the log begins, and the files bear it out: the begin file is
    missing, not the entries before it."""
    writers = []
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(3, 130):
            writer.append(message)
        writer.append(writer.trim_record(2))
        writers.append(writer.finish())
        begin = writer.begin_of(2)
        writer.decide(2)
        path = writer.root / "state" / "snapshot"
        value = json.loads(path.read_bytes())
        del value["crc32c"]
        before = writer.entries[begin.index - 1]
        value["retained"] |= {"begin_term": before.term, "begin_chain": before.chain}
        path.write_bytes(sealed(value))
        writer.trim(2)
        writer.trim_queues(2)
    assert run(tmp_path).verdict == "PASS"
    (writers[0].log / "begin").unlink()
    assert told(run(tmp_path)) == {("n1", "begin.missing", "begin")}


def test_a_damaged_list_of_starts_is_found(tmp_path: Path) -> None:
    """`state/boots.json` carries a checksum like the other identity files."""
    writers = write_cluster(tmp_path, history(3))
    path = writers[1].root / "state" / "boots.json"
    path.write_bytes(sealed({"generation": 3, "boots": ["a", "b", "c"]}))
    assert run(tmp_path).verdict == "PASS"
    flip(path, 5)
    assert told(run(tmp_path)) == {("n2", "boots.json", "boots.json")}


def test_a_begin_that_the_snapshot_contradicts_is_found(tmp_path: Path) -> None:
    """The term before the first entry is not in the remaining log, so the snapshot and the begin
    file must agree."""
    writers = []
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in history(3, 130):
            writer.append(message)
        writer.append(writer.trim_record(2))
        writers.append(writer.finish())
        before = writer.entries[writer.begin_of(2).index - 1]
        writer.decide(2)
        path = writer.root / "state" / "snapshot"
        value = json.loads(path.read_bytes())
        del value["crc32c"]
        value["retained"] |= {"begin_term": before.term, "begin_chain": before.chain}
        path.write_bytes(sealed(value))
        writer.trim(2)
        writer.trim_queues(2)
    path = writers[1].log / "begin"
    value = json.loads(path.read_bytes())
    del value["crc32c"]
    path.write_bytes(sealed({**value, "term": value["term"] + 1}))
    assert told(run(tmp_path)) == {("n2", "begin.snapshot", "begin")}


def test_checkpoint_refuted_by_its_own_log_is_the_only_finding(tmp_path: Path) -> None:
    """Log and mark end together: a commit behind that was never there, and no peer has lost it."""
    writers = write_cluster(tmp_path, history(3))
    (writers[0].log / "checkpoint").write_text("endIndex=900\ncommittedIndex=900\n")
    assert told(run(tmp_path)) == {("n1", "checkpoint.ahead", "checkpoint")}


def test_a_key_index_that_ends_behind_its_log_is_found(tmp_path: Path) -> None:
    """The node was stopped in good order, so the index cannot know an entry that the log lost;
    after a kill it can."""
    writer = write_cluster(tmp_path, history(3))[0]
    last = writer.entries[-1]
    position = {
        "v": 1,
        "log_id": writer.log_id,
        "rows": 0,
        "files": [],
        "chain": last.chain,
        "store_ms": last.message.time,
    }
    for beyond, found in ((0, set()), (1, {("n1", "keyindex.position", "keyindex")})):
        (writer.root / "state/keyindex").write_bytes(
            sealed({**position, "next": last.index + 1 + beyond})
        )
        assert told(run(tmp_path)) == found
    (writer.root / "abort").touch()
    assert told(run(tmp_path)) == set()


def test_a_log_of_one_entry_is_held_against_its_mark(tmp_path: Path) -> None:
    """Index 0 is an index; and a mark of no entry has no end and no term."""
    for number, point in enumerate(((0, 0, 999, 1), (3, -1, 232, 1))):
        base = tmp_path / str(number)
        writers = write_cluster(base, history(3, 0)[:1])
        body = writers[0].log_id.encode() + struct.pack(">iqqqI", 0, *point)
        (writers[0].log / "syncedmark").write_bytes(
            writers[0].slot(b"LMSM", 6, body) + writers[0].slot(b"LMSM", 7, body)
        )
        assert told(run(base)) == {("n1", "mark.log", "syncedmark")}


def test_a_wrong_node_file_is_told_of_that_file(tmp_path: Path) -> None:
    """The log's folder and the peers' cluster say which of the two identities is wrong."""
    for number, change in enumerate(({"node": "n9"}, {"cluster_id": "another"})):
        base = tmp_path / str(number)
        writers = write_cluster(base, history(3))
        path = writers[1].node_dir / "node.json"
        value = json.loads(path.read_bytes())
        del value["crc32c"]
        path.write_bytes(sealed({**value, **change}))
        assert told(run(base)) == {("n2", "identity.agree", "node.json")}


def test_two_confirmed_histories_without_a_third_are_undecidable(tmp_path: Path) -> None:
    """Two replicas hold different entries at an index that both recorded as committed, and the
    third only lags: FAIL on both."""
    messages = history(5, 60)
    other = [*messages[:40], replace(messages[40], body=b"another"), *messages[41:]]
    writers = []
    for name, own in zip(NODES, (messages, other, messages[:20]), strict=True):
        writer = Writer(tmp_path / name)
        for message in own:
            writer.append(message)
        writers.append(writer.finish(snapshot=False))
    result = run(tmp_path)
    entry = writers[0].entries[40]
    found = {
        (f.replica, f.klass, f.flaw.index, f.flaw.byte_from) for f in result.findings if f.fails
    }
    assert found == {(name, "undecidable", 40, entry.pos % FILE) for name in ("n1", "n2")}


def test_damage_in_a_deposed_tail_is_not_compared_with_its_replacement(
    tmp_path: Path,
) -> None:
    """A deposed leader's own entries, one of them damaged: the peers hold others at that place,
    whose bytes say nothing about these."""
    common = history(5, 40)
    writers = []
    for name in NODES:
        writer = Writer(tmp_path / name)
        for message in common:
            writer.append(message)
        committed = len(writer.entries) - 1
        for term in (3, 3, 3) if name == "n1" else (4, 4, 4, 4):
            body = str(term).encode() + b"-" * 100 + (b"A" if name == "n1" else b"B")
            writer.append(Message("flights", body, key="x", term=term, time=1_800_000_000_000))
        writers.append(writer.finish(committed=committed if name == "n1" else None))
    assert run(tmp_path).verdict == "INCOMPLETE"
    entry = writers[0].entries[-2]
    # As it is on the peers.
    place = entry.pos % FILE + 136 + 101
    flip(data(writers[0], entry.pos // FILE), place, ord("A") ^ ord("B"))
    (finding,) = [f for f in run(tmp_path).findings if f.fails]
    assert (finding.replica, finding.klass, finding.flaw.index) == ("n1", "bit-rot", entry.index)
    assert (
        finding.flaw.byte_from <= place < finding.flaw.byte_to
        and finding.flaw.byte_to - finding.flaw.byte_from > 100
    )


@pytest.mark.parametrize("key", ["index_file_bytes", "consume_queue_file_bytes"])
def test_replicas_agree_about_the_lengths_of_derived_files(tmp_path: Path, key: str) -> None:
    """A group has one length for each kind of file; a differing replica is reported, whatever its
    files contain."""
    writers = write_cluster(tmp_path, history(3))
    value = json.loads((writers[2].root / "identity.json").read_bytes())
    del value["crc32c"]
    (writers[2].root / "identity.json").write_bytes(sealed({**value, key: 2 * value[key]}))
    assert ("n3", "identity.agree", "identity.json") in told(run(tmp_path))


def test_of_two_replicas_that_differ_in_bytes_alone_neither_is_blamed(tmp_path: Path) -> None:
    """Two say one thing each: undecidable, on both. A third one decides."""
    group = GroupResult("g1", [], voters=("n1", "n2", "n3"), compared=9)
    for name, digest in (("n1", "a" * 64), ("n2", "b" * 64)):
        replica = Replica(
            str(tmp_path / name), str(tmp_path / name / "g1"), "g1", name, f"dledger-{name}"
        )
        report = LogReport(
            f"g1/dledger-{name}/data/0",
            0,
            100,
            entries=10,
            first_index=0,
            last_index=9,
            last_intact_index=9,
            end=90,
        )
        report.sha256 = digest
        replica.reports.append(report)
        group.replicas.append(replica)
    compare_bytes(group)
    assert [(finding.replica, finding.klass, finding.flaw.rule) for finding in group.findings] == [
        ("n1", "undecidable", "replica.bytes"),
        ("n2", "undecidable", "replica.bytes"),
    ]
    third = deepcopy(group.replicas[1])
    third.name = "n3"
    group.replicas.append(third)
    group.findings.clear()
    compare_bytes(group)
    assert [(finding.replica, finding.klass) for finding in group.findings] == [
        ("n1", "divergence")
    ]
