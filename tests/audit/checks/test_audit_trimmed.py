"""Replicas without their first entries: what was trimmed is no finding, what is missing is one."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from ledgermq.audit.run.jobs import Audit, Progress, audit, local_engine
from ledgermq.audit.run.works import Outcome, Work
from tests.audit.damage_cases import NODES, history
from tests.audit.log_writer import Message, Writer, sealed

FILE = 2


def run(base: Path) -> Audit:
    return audit([str(base / name) for name in NODES], deep=True)


def write(base: Path, *, record: bool = True) -> list[Writer]:
    """Three whole replicas of some files, whose log ends with a trim record and a little more."""
    writers = []
    for name in NODES:
        writer = Writer(base / name)
        membership, start, *others = history(3, 130)
        early = Message("early", b"only at first", tag="x", term=start.term, time=start.time)
        for message in (membership, start, early, *others):
            writer.append(message)
        if record:
            writer.append(writer.trim_record(FILE))
        last = writer.entries[-1]
        writer.append(Message("flights", b"behind it", term=last.term, time=last.message.time))
        writers.append(writer.finish())
    return writers


def trim(writer: Writer, file: int = FILE) -> None:
    """One replica after it carried a trim out, as far as `file`."""
    writer.decide(FILE)
    if file:
        writer.trim(file)
    if file == FILE:
        writer.trim_queues(file)


def rules(found: Audit) -> set[tuple[str, str, str]]:
    return {(finding.replica, finding.klass, finding.flaw.rule) for finding in found.findings}


@pytest.mark.parametrize("trims", [(2, 0, 0), (1, 2, 0), (2, 2, 2), (2, 1, 2)])
def test_replicas_trimmed_to_different_begins_pass(tmp_path: Path, trims: tuple[int, ...]) -> None:
    """They are compared up to the last entry; the report says that older ones were trimmed."""
    writers = write(tmp_path)
    for writer, file in zip(writers, trims, strict=True):
        trim(writer, file)
    found = run(tmp_path)
    assert (found.verdict, found.reasons, found.findings) == ("PASS", [], [])
    assert found.compared == len(writers[0].entries) - 1
    assert any("older entries were trimmed, and that is recorded" in note for note in found.notes)


@pytest.mark.parametrize("file", [0, 1])
@pytest.mark.parametrize("damage", [False, True])
def test_queues_may_begin_where_the_snapshot_says_before_the_log_does(
    tmp_path: Path, file: int, damage: bool
) -> None:
    """A replica that is installed while a trim waits has the messages of its log that the trim
    removes, and makes its queues from the snapshot, which has the trim. From the first kept message
    on a blanked unit is damage."""
    writers = write(tmp_path)
    for writer in writers:
        trim(writer)
    late = write(tmp_path / "late")[2]
    trim(late, file)
    late.trim_queues(FILE)
    low, last = late.low("flights", 0, late.begin_of(FILE).index)
    assert low > 2 and last is None
    shutil.rmtree(tmp_path / "n3")
    late.node_dir.rename(tmp_path / "n3")
    if damage:
        base = low * 20 - low * 20 % late.queue_bytes
        unit = tmp_path / f"n3/g1/consumequeue/flights/0/{base:020d}"
        data = bytearray(unit.read_bytes())
        at = low * 20 - base
        data[at : at + 20] = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
        unit.write_bytes(data)
    found = run(tmp_path)
    assert (found.verdict, rules(found)) == (
        ("FAIL", {("n3", "wrong-derived", "queue.unit")}) if damage else ("PASS", set())
    )
    assert [
        (flaw.byte_from, flaw.byte_to) for flaw in (finding.flaw for finding in found.findings)
    ] == ([(at, at + 20)] if damage else [])


def test_snapshots_of_nodes_that_were_upgraded_at_different_entries(tmp_path: Path) -> None:
    """The first snapshot of a new form may know less than another node's of the same entry; without
    an older form beside it, it may not."""
    for writer in write(tmp_path):
        trim(writer)
    newest = tmp_path / "n3/g1/state/snapshot"
    value = json.loads(newest.read_bytes())
    del value["crc32c"]
    newest.write_bytes(sealed({**value, "producers": {"forgotten": 7}}))
    assert ("n3", "wrong-derived", "snapshot.same") in rules(run(tmp_path))
    newest.with_name("snapshot.previous").write_bytes(sealed({**value, "v": 2}))
    found = run(tmp_path)
    assert (found.verdict, found.findings) == ("PASS", [])


def test_both_ways_through_an_engine_say_the_same(tmp_path: Path) -> None:
    """What crosses to another process as text comes back as it was: the Spark engine sees a trimmed
    log as the local one does."""
    for writer in write(tmp_path):
        trim(writer)

    def remote(works: Sequence[Work], progress: Progress) -> list[Outcome]:
        sent = [Work.from_json(work.to_json()) for work in works]
        return [Outcome.from_json(outcome.to_json()) for outcome in local_engine(sent, progress)]

    directories = [str(tmp_path / name) for name in NODES]
    there, here = audit(directories, remote), audit(directories)
    assert (
        (there.verdict, there.notes, there.compared)
        == (here.verdict, here.notes, here.compared)
        == ("PASS", here.notes, here.compared)
    )


def test_missing_prefix_without_begin_file_is_a_missing_file(tmp_path: Path) -> None:
    """Without a begin file the first files are missing, whatever records say."""
    writers = write(tmp_path)
    trim(writers[0])
    (writers[0].log / "begin").unlink()
    assert ("n1", "missing", "file.missing") in rules(run(tmp_path))


def test_begin_file_without_a_trim_record_is_missing_entries(tmp_path: Path) -> None:
    """A begin file alone explains nothing: a trim record or a snapshot must know of it."""
    writers = write(tmp_path, record=False)
    writers[1].trim(FILE)
    assert rules(run(tmp_path)) >= {("n2", "missing", "begin.decided")}
    shutil.rmtree(tmp_path)
    writers = write(tmp_path)
    writers[1].trim(FILE)
    assert not {rule for _, _, rule in rules(run(tmp_path))} & {"begin.decided", "file.missing"}


def test_damage_in_a_trimmed_replica_is_found(tmp_path: Path) -> None:
    """A flipped bit behind the begin, a wrong link to the entry before it, a damaged begin file, a
    missing file: each is found."""
    for case in ("bit", "link", "begin", "file", "queue", "index"):
        base = tmp_path / case
        writers = write(base)
        for writer in writers:
            trim(writer)
        begin = writers[2].begin_of(FILE)
        log, root = writers[2].log, writers[2].root
        first = log / "data" / f"{FILE * writers[2].data_bytes:020d}"
        if case == "bit":
            data = bytearray(first.read_bytes())
            data[200] ^= 4
            first.write_bytes(data)
            expected = ("n3", "bit-rot")
        elif case == "link":
            before = writers[2].entries[begin.index - 1]
            value = {
                "v": 1,
                "log_id": writers[2].log_id,
                "index": begin.index,
                "pos": begin.pos,
                "term": before.term,
            }
            (log / "begin").write_bytes(sealed({**value, "chain": before.chain ^ 1}))
            expected = ("n3", "bit-rot")
        elif case == "begin":
            (log / "begin").write_bytes((log / "begin").read_bytes()[:-2] + b"0}")
            expected = ("n3", "bit-rot")
        elif case == "file":
            first.unlink()
            expected = ("n3", "missing")
        else:
            folder = root / "consumequeue" / "flights" / "0" if case == "queue" else log / "index"
            min(folder.iterdir()).unlink()
            expected = ("n3", "wrong-derived" if case == "queue" else "missing")
        found = run(base)
        assert found.verdict == "FAIL" and expected in {
            (replica, klass) for replica, klass, _ in rules(found)
        }, (case, rules(found))
        assert {replica for replica, _, _ in rules(found)} == {"n3"}, case


def test_an_interrupted_trim_is_ordinary(tmp_path: Path) -> None:
    """Files before the begin that are still there, all or some, are neither read nor held against
    the replica."""
    writers = write(tmp_path / "run")
    shutil.copytree(tmp_path / "run" / "n1", tmp_path / "old")
    for writer in writers:
        trim(writer)
    log, old = writers[0].log, tmp_path / "old" / "g1"
    shutil.copy(old / "dledger-n1/data" / f"{0:020d}", log / "data")
    shutil.copy(old / "dledger-n1/index" / f"{0:020d}", log / "index")
    shutil.rmtree(writers[0].root / "consumequeue")
    shutil.copytree(old / "consumequeue", writers[0].root / "consumequeue")
    found = run(tmp_path / "run")
    assert (found.verdict, found.findings) == ("PASS", [])


def test_a_trimmed_log_needs_a_snapshot(tmp_path: Path) -> None:
    """Without a snapshot, the effect of the trimmed entries is unknown; the previous generation is
    as good as the newest."""
    writers = write(tmp_path)
    for writer in writers:
        trim(writer)
    state = writers[0].root / "state"
    shutil.move(state / "snapshot", state / "snapshot.previous")
    assert run(tmp_path).verdict == "PASS"
    (state / "snapshot.previous").unlink()
    assert ("n1", "missing", "snapshot.needed") in rules(run(tmp_path))
