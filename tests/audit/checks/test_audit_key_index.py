"""The key index against the log: what the product writes passes, whatever byte changes is found,
and what does not count is no finding."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.checks import key_index
from ledgermq.audit.checks.key_index import WHOLE, check_keys, key_looks
from ledgermq.audit.checks.opening import find_replicas
from ledgermq.audit.reading import keys
from ledgermq.audit.reading.files import Stat
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import RULES, Flaw
from ledgermq.proto.entries.key_columns import key_hash
from tests.audit.damage_cases import flip
from tests.audit.fuzz.anatomy import anatomies
from tests.audit.fuzz.clusters import at_rest
from tests.audit.log_writer import sealed
from tests.audit.view_material import DATA_BYTES, ViewLog, write
from tests.compat.group_material import Writer as GroupWriter


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> ViewLog:
    return write(tmp_path_factory.mktemp("keys"), 14)


@pytest.fixture
def node(material: ViewLog, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(material.node_dir, tmp_path / "n1"))


def check(node: Path) -> list[Flaw]:
    (replica,) = find_replicas(str(node))
    whole = replica.task(WHOLE)
    flaws = [flaw for name in key_looks(whole) for flaw in check_keys(replica.task(name))]
    assert all(flaw.rule in RULES for flaw in flaws)
    return flaws


def texts(flaws: list[Flaw]) -> list[str]:
    return [f"{flaw.rule} {flaw.file} {flaw.byte_from}-{flaw.byte_to}" for flaw in flaws]


def test_key_index_written_by_the_product_passes(material: ViewLog) -> None:
    """Several full files with filters, native stretches, odd keys: no finding."""
    assert len(list((material.root / "index").iterdir())) >= 4
    assert len(list((material.root / "state" / "bloom").iterdir())) >= 3
    assert texts(check(material.node_dir)) == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_every_changed_byte_is_found(node: Path, seed: int) -> None:
    """Header, slots, units, unit 0, what is behind the last unit, filters and the position: the
    file, and the place."""
    rng = random.Random(seed)
    files = sorted(
        path for folder in ("index", "state/bloom") for path in (node / "g1" / folder).iterdir()
    )
    for path in [*files, node / "g1" / "state" / "keyindex"]:
        for _ in range(6):
            at = rng.randrange(path.stat().st_size)
            flip(path, at)
            found = [flaw for flaw in check(node) if flaw.file == str(path.relative_to(node))]
            assert any(flaw.byte_from <= at < flaw.byte_to for flaw in found), (
                path,
                at,
                texts(found),
            )
            flip(path, at)
    assert check(node) == []


def test_files_that_come_and_go(node: Path) -> None:
    """Missing, short and unknown files and a missing position are findings; a missing filter is
    not, because the node rebuilds it."""
    index = node / "g1" / "index"
    first = min(index.iterdir())
    kept = first.read_bytes()
    first.unlink()
    assert texts(check(node)) == [f"keyindex.missing g1/index/{first.name} 0-{len(kept)}"]
    first.write_bytes(kept[:-7])
    assert texts(check(node)) == [f"file.length g1/index/{first.name} 0-{len(kept)}"]
    first.write_bytes(kept)
    (index / "20991231235959999").write_bytes(b"x")
    assert texts(check(node)) == ["keyindex.extra g1/index/20991231235959999 0-1"]
    (index / "20991231235959999").unlink()
    (node / "g1" / "state" / "bloom" / first.name).unlink()
    assert check(node) == []
    (node / "g1" / "state" / "keyindex").unlink()
    assert [flaw.rule for flaw in check(node)] == ["keyindex.position"]
    (node / "g1" / "abort").touch()
    assert check(node) == []


def test_slots_and_header_above_the_position_of_a_killed_node_are_ignored(node: Path) -> None:
    """After a kill slots and header of the file being written, and all behind its position, mean
    nothing; its units below still do."""
    (node / "g1" / "abort").touch()
    position = json.loads((node / "g1" / "state" / "keyindex").read_bytes())
    name, slots, _, _, _, count = position["files"][-1][:6]
    path = node / "g1" / "index" / name
    for at in (3, 41, 40 + 4 * slots + 20 * count + 2):
        flip(path, at)
    assert check(node) == []
    flip(path, 40 + 4 * slots + 20 + 5)
    assert [flaw.rule for flaw in check(node)] == ["keyindex.unit"]


def running_task(node: Path) -> LogFile:
    """The task of a running replica whose check ends early in its log."""
    (replica,) = find_replicas(str(node))
    return replace(replica.task(WHOLE), end_pos=DATA_BYTES // 2)


def test_an_index_that_is_ahead_of_the_marker_is_compared_with_the_log_up_to_itself(
    node: Path,
) -> None:
    """The position of a running node may be behind the part of the log that is checked otherwise. A
    wrong unit there is still wrong."""
    task = running_task(node)
    names = key_looks(task)
    assert [flaw for name in names for flaw in check_keys(replace(task, name=name))] == []
    value = json.loads((node / "g1" / "state" / "keyindex").read_bytes())
    name, slots = value["files"][-1][:2]
    flip(node / "g1" / "index" / name, 40 + 4 * slots + 20 + 5)
    assert [flaw.rule for name in names for flaw in check_keys(replace(task, name=name))] == [
        "keyindex.unit"
    ]


def test_a_key_file_that_a_running_node_removes_meanwhile_is_not_missing(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node takes it out of the position first. One that the position still names is missing."""
    task = running_task(node)
    path = node / "g1" / "state" / "keyindex"
    value = json.loads(path.read_bytes())
    del value["crc32c"]
    gone = value["files"][0][0]
    stat = key_index.stat_of

    def trimmed(asked: str) -> Stat | None:
        path.write_bytes(sealed({**value, "files": value["files"][1:]}))
        (node / "g1" / "index" / gone).unlink(missing_ok=True)
        return stat(asked)

    monkeypatch.setattr(key_index, "stat_of", trimmed)
    assert check_keys(task) == []
    path.write_bytes(sealed(value))
    monkeypatch.setattr(key_index, "stat_of", stat)
    assert [flaw.rule for flaw in check_keys(task)] == ["keyindex.missing"]
    assert check_keys(replace(task, name=gone)) == []


def test_a_position_that_lies_is_found(node: Path) -> None:
    """Sealed with a right checksum, but not what the log and the files say; one of a log that a
    recovery renamed counts for nothing."""
    path = node / "g1" / "state" / "keyindex"
    value = json.loads(path.read_bytes())
    del value["crc32c"]
    other, lacking = "0" * 36, {key: value[key] for key in value if key != "chain"}
    changes = (
        {"chain": value["chain"] ^ 1},
        {"files": value["files"][::-1]},
        {"store_ms": value["store_ms"] + 1},
        {"log_id": other},
    )
    for changed in (*({**value, **change} for change in changes), lacking, {**value, "chaim": 1}):
        path.write_bytes(sealed(changed))
        assert "keyindex.position" in [flaw.rule for flaw in check(node)]
    for field in (7, 8, 9, 10):
        files = [list(row) for row in value["files"]]
        files[1][field] += 1
        path.write_bytes(sealed({**value, "files": files}))
        assert "keyindex.position" in [flaw.rule for flaw in check(node)], field
    path.write_bytes(sealed({**value, "log_id": other}))
    (node / "g1" / "recovery.json").write_bytes(sealed({"v": 1, "former": [other]}))
    assert check(node) == []


def test_damage_of_the_log_is_not_blamed_on_the_index(node: Path, material: ViewLog) -> None:
    """Destroyed entries, first of a file or within, a lost log file: their units are passed over,
    the others still held against the log."""
    data = node / "g1" / "dledger-n1" / "data"
    for said in (material.messages[3], material.messages[60], material.messages[61]):
        flip(
            data / f"{said['pos'] - said['pos'] % DATA_BYTES:020d}", said["pos"] % DATA_BYTES + 139
        )
    assert check(node) == []
    flip(data / f"{2 * DATA_BYTES:020d}", 5)
    assert check(node) == []
    (data / f"{4 * DATA_BYTES:020d}").unlink()
    assert check(node) == []
    value = json.loads((node / "g1" / "state" / "keyindex").read_bytes())
    note = value["files"][-2]
    path = node / "g1" / "index" / note[0]
    at = 40 + 4 * note[1] + 20 * 30 + 6
    flip(path, at)
    assert texts(check(node)) == [f"keyindex.unit g1/index/{note[0]} {at}-{at + 1}"]


def test_damaged_entries_at_a_file_border_are_no_key_index_finding(
    tmp_path: Path,
) -> None:
    """A file begins behind a number of keys of the log, which are those of several messages."""
    cluster = at_rest(114, steps=1400, kinds=("trim",))
    cluster.write(tmp_path)
    node, one = tmp_path / "n1", anatomies(cluster.image)[0]
    assert check(node) == []
    notes = json.loads((node / "g1" / "state" / "keyindex").read_bytes())["files"]
    spans = [(first, first + rows) for _, _, _, first, rows, *_ in notes if rows > 10]
    assert spans
    for entry in one.entries:
        if any(first <= entry.index <= last for first, last in spans):
            path = tmp_path / entry.path
            flip(path, entry.at + 60)
            assert texts(check(node)) == [], entry.index
            flip(path, entry.at + 60)
    # The same of the last keys of the log.
    flip(tmp_path / one.entries[-1].path, one.entries[-1].at + 60)
    assert texts(check(node)) == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_trimmed_log_has_an_index_of_more_than_itself(tmp_path: Path, clean: bool) -> None:
    """The first file that a trim leaves has units of messages that are gone: those are passed over,
    the others are held against the log."""
    writer = GroupWriter(tmp_path / "n1" / "g1")
    writer.fill()
    writer.trim()
    writer.close(clean=clean)
    node = tmp_path / "n1"
    assert check(node) == []
    value = json.loads((node / "g1" / "state" / "keyindex").read_bytes())
    name, slots = value["files"][0][:2]
    flip(node / "g1" / "index" / name, 40 + 4 * slots + 20 * 999 + 7)
    assert [flaw.rule for flaw in check(node)] == ["keyindex.unit"]


def test_a_key_of_another_message_is_found(node: Path) -> None:
    """Chains and slots of a file that a wrong writer made agree with each other, and still it is
    not the index of this log."""
    value = json.loads((node / "g1" / "state" / "keyindex").read_bytes())
    name, slots = value["files"][0][:2]
    path = node / "g1" / "index" / name
    raw = bytearray(path.read_bytes())
    first = 40 + 4 * slots
    at = first + 20 * 7
    (hash_,) = np.frombuffer(raw[at : at + 4], ">i4").tolist()
    raw[at : at + 4] = (hash_ + slots).to_bytes(4, "big")
    path.write_bytes(raw)
    found = check(node)
    assert [flaw.rule for flaw in found] == ["keyindex.unit"]
    assert at <= found[0].byte_from < found[0].byte_to <= at + 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t", "ns@orders", "é" * 3]),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
        )
    )
)
def test_hashes_are_javas(pairs: list[tuple[str, str]]) -> None:
    """The running sums give what hashing letter by letter gives, whatever texts stand side by
    side."""
    raw = [key.encode() for _, key in pairs]
    data = np.frombuffer(b"".join(raw) + b"\0", np.uint8)
    lengths = np.array([len(key) for key in raw], np.int64)
    at = np.cumsum(lengths) - lengths
    topics = sorted({topic for topic, _ in pairs})
    found = keys._hashes(
        data,
        at,
        lengths,
        np.array([topics.index(topic) for topic, _ in pairs], np.int64),
        [t.encode() for t in topics],
    )
    assert found.tolist() == [key_hash(topic, key) for topic, key in pairs]
