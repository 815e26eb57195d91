"""An altered entry is found whichever checksums were recomputed, and every altered byte is covered
by a finding."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.altering import PLACES, alter, levels, log_bytes, put_log
from tests.audit.damage_cases import NODES, history, write_cluster
from tests.audit.fuzz.appointed import members, messages
from tests.audit.log_writer import Message, Placed, Writer, election

HA = [members(), election(1, "n1"), *messages(1, 60)]
CLUSTERS: dict[str, tuple[list[Message], bool]] = {
    "raft": (history(5, 60), True),
    "in-sync, killed": (HA, False),
}


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[Writer]]]:
    """Three equal replicas; a test puts back what it altered."""
    base = tmp_path_factory.mktemp("cluster")
    told, clean = CLUSTERS[request.param]
    yield base, write_cluster(base, told, clean=clean)


def run(base: Path, *, deep: bool = False) -> Audit:
    return audit([str(base / name) for name in NODES], deep=deep)


def entries_of(writer: Writer) -> dict[str, Placed]:
    """One entry for every kind of place in the log, each with a body and a header that can be
    altered in the same way."""
    files: dict[int, list[Placed]] = {}
    for entry in writer.entries[2:]:
        files.setdefault(entry.pos // writer.data_bytes, []).append(entry)
    first, last = files[min(files)], files[max(files)]
    second = files[min(files) + 1]
    return {
        "middle of a sealed file": next(entry for entry in first[5:] if entry.message.body),
        "last of a sealed file": first[-1],
        "first of a file": second[0],
        "last file": last[len(last) // 2],
        "last entry": last[-1],
    }


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    "where",
    [
        "middle of a sealed file",
        "last of a sealed file",
        "first of a file",
        "last file",
        "last entry",
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_altered_byte_is_found_although_checksums_were_repaired(
    cluster: tuple[Path, list[Writer]], place: str, where: str
) -> None:
    """Every set of checksums, made right again on the one replica that was altered: FAIL, and each
    byte that differs is in a finding."""
    base, writers = cluster
    writer = writers[1]
    entry = entries_of(writer)[where]
    before = bytes(log_bytes(writer))
    for right in levels():
        changed = alter(writer, entry, place, right)
        result = run(base)
        put_log(writer, before)
        if not changed:
            # What was altered was the very checksum that was made right again.
            continue
        failing = [finding for finding in result.findings if finding.fails]
        texts = [finding.text for finding in result.findings]
        assert result.verdict == "FAIL" and {finding.replica for finding in failing} == {"n2"}, (
            right,
            result.verdict,
            texts,
        )
        # With its own chain word right the entry begins another history, or is one that only a
        # comparison of words can tell.
        apart = {
            pos
            for f in failing
            if f.flaw.rule.startswith("replica.")
            for pos in _behind(f.flaw.file, f.flaw.byte_from)
        }
        told = {
            pos for f in failing for pos in _covered(f.flaw.file, f.flaw.byte_from, f.flaw.byte_to)
        }
        assert changed <= told | apart, (right, sorted(changed - told - apart), texts)


def _covered(file: str, start: int, end: int) -> range:
    base = int(file[-20:]) if "/data/" in file else -end
    return range(max(base + start, 0), base + end)


def _behind(file: str, start: int) -> range:
    """A history that parts from the others' is another one from there to the end of the log."""
    return range(int(file[-20:]) + start, 1 << 20)


def test_a_message_altered_with_its_checksums_fails_deep_and_plain_alike(
    cluster: tuple[Path, list[Writer]],
) -> None:
    """Body, BODYCRC and bodyCrc altered, the chain left: the finding names the body's bytes, with
    or without `--deep`."""
    base, writers = cluster
    entry = entries_of(writers[0])["middle of a sealed file"]
    before = bytes(log_bytes(writers[0]))
    changed = alter(writers[0], entry, "body", ("record", "body"))
    results = [run(base, deep=deep) for deep in (False, True)]
    put_log(writers[0], before)
    places = [
        [
            (f.replica, f.flaw.rule, f.flaw.index, f.flaw.byte_from, f.flaw.byte_to)
            for f in result.findings
        ]
        for result in results
    ]
    start = entry.pos % writers[0].data_bytes
    low, high = min(changed) - entry.pos + start, max(changed) - entry.pos + start + 1
    assert places == [[("n1", "entry.chain", entry.index, low, high)]] * 2


@pytest.mark.parametrize(
    "where", ["middle of a sealed file", "last of a sealed file", "first of a file", "last file"]
)
def test_an_entry_that_later_ones_do_not_continue_is_no_other_history(
    tmp_path: Path, where: str
) -> None:
    """Everything of the entry was made right again, its chain word too; the next entry continues
    what it was. A replica that ends earlier makes the audit look at every entry of the last
    file."""
    told = history(5, 60)
    writers = [*write_cluster(tmp_path, told)[:2], write_one(tmp_path / "n3", told[:-1])]
    entry = entries_of(writers[0])[where]
    alter(writers[1], entry, "body", ("record", "body", "chain"))
    result = run(tmp_path)
    assert [(f.klass, f.replica, f.flaw.rule, f.flaw.index) for f in result.findings] == [
        ("bit-rot", "n2", "entry.chain", entry.index)
    ]
    assert not result.groups[0].divergent


def write_one(node: Path, told: list[Message]) -> Writer:
    shutil.rmtree(node)
    writer = Writer(node)
    for message in told:
        writer.append(message)
    return writer.finish()


def test_unaltered_clusters_pass(cluster: tuple[Path, list[Writer]]) -> None:
    """What the other tests alter is right to begin with."""
    assert run(cluster[0]).verdict == "PASS"


def test_a_chain_word_is_told_once_though_the_next_file_contradicts_it_too(
    cluster: tuple[Path, list[Writer]],
) -> None:
    """The last word of a sealed file: its own entry and the first one of the next file both speak
    against it. One finding covers it."""
    base, writers = cluster
    entry = entries_of(writers[2])["last of a sealed file"]
    before = bytes(log_bytes(writers[2]))
    (changed,) = alter(writers[2], entry, "chainCrc", ())
    result = run(base)
    put_log(writers[2], before)
    places = [
        (f.replica, f.flaw.rule, f.flaw.index, int(f.flaw.file[-20:]) + f.flaw.byte_from)
        for f in result.findings
    ]
    assert places == [("n3", "entry.chain", entry.index, changed)]
    left, kept = next(
        (left, kept) for left, kept in result.groups[0].folds if left.flaw.rule == "entry.chain"
    )
    assert kept is result.findings[0] and (left.flaw.index, left.flaw.byte_from) == (
        entry.index,
        kept.flaw.byte_from,
    )
