"""Seeded damage: a flipped byte anywhere is found and located, lost and foreign entries are
distinguished, and faulty writers are detected."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledgermq.audit.run.jobs import Audit, audit
from tests.audit.damage_cases import NODES, RAFT, flip, history, write_cluster
from tests.audit.log_writer import Message, Placed, Writer

FLIPS_PER_SEED = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Writer]]]:
    """One undamaged cluster; a test puts back what it flips."""
    base = tmp_path_factory.mktemp("cluster")
    yield base, write_cluster(base, history(11, 60))


def run(base: Path) -> Audit:
    return audit([str(base / name) for name in NODES])


def told(base: Path, path: Path, offset: int) -> tuple[str, list[str], list[str]]:
    """(verdict, rules of the findings that contain the byte, all findings)."""
    result = run(base)
    node = path.relative_to(base).parts[0]
    shown = str(path.relative_to(base / node))
    here = [
        f.flaw.rule
        for f in result.findings
        if f.fails
        and (f.replica, f.flaw.file) == (node, shown)
        and f.flaw.byte_from <= offset < f.flaw.byte_to
    ]
    return result.verdict, here, [f.text for f in result.findings]


def is_undetectable(path: Path, offset: int) -> bool:
    """The digits of the log checkpoint are a hint without a checksum: another number may be as good
    as the old one."""
    return (
        path.name == "checkpoint"
        and path.parent.name.startswith("dledger-")
        and path.read_bytes()[offset : offset + 1].isdigit()
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_byte_in_any_file_is_found(cluster: tuple[Path, list[Writer]], seed: int) -> None:
    """Any bits of any byte of any file of any replica: FAIL, with a finding that contains the
    byte."""
    base, _ = cluster
    rng = random.Random(seed)
    files = sorted(path for path in base.rglob("*") if path.is_file())
    for _ in range(FLIPS_PER_SEED):
        path = rng.choice(files)
        offset, mask = rng.randrange(path.stat().st_size), rng.randrange(1, 256)
        if is_undetectable(path, offset):
            continue
        flip(path, offset, mask)
        verdict, here, findings = told(base, path, offset)
        flip(path, offset, mask)
        assert verdict == "FAIL" and here, (
            f"{path} byte {offset} mask {mask:#x}: {verdict} {findings}"
        )
    assert run(base).verdict == "PASS"


PARTS: dict[str, tuple[int, int, str]] = {
    "magic": (0, 4, "entry.magic"),
    "size": (4, 8, "entry.size"),
    "index": (8, 16, "entry.index"),
    "term": (16, 24, "entry.chain"),
    "pos": (24, 32, "entry.pos"),
    "channel": (32, 36, "entry.chain"),
    "chainCrc": (36, 40, "entry.chain-word"),
    "bodyCrc": (40, 44, "entry.body-crc"),
    "bodySize": (44, 48, "entry.body-size"),
    "record": (48, 136, "entry.body"),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("which", [0, 1, 20, -1])
def test_damage_in_an_entry_is_told_to_the_byte(
    cluster: tuple[Path, list[Writer]], part: str, which: int
) -> None:
    """Each byte of each header field and of the record, in the first, a middle and the last entry:
    rule, entry and the very byte."""
    base, writers = cluster
    start, end, rule = PARTS[part]
    writer = writers[1]
    entry = writer.entries[which]
    file = writer.log / "data" / f"{entry.pos - entry.pos % 8192:020d}"
    for field_at in {start, end - 1, (start + end) // 2}:
        offset = entry.pos % 8192 + field_at
        flip(file, offset)
        result = run(base)
        flip(file, offset)
        places = {
            (f.flaw.rule, f.flaw.index, f.flaw.byte_from, f.flaw.byte_to) for f in result.findings
        }
        rules = {rule}
        if entry.index == 0:
            rules |= {"chain.seed"}
        if entry is writer.entries[-1]:
            rules |= {"entry.chain"}
        assert result.verdict == "FAIL" and places <= {
            (r, entry.index, offset, offset + 1) for r in rules
        }, (field_at, places)


def test_a_single_replica_tells_its_own_damage(cluster: tuple[Path, list[Writer]]) -> None:
    """Without a peer to compare with, damage is still FAIL and located to the part of the entry."""
    base, writers = cluster
    entry = writers[0].entries[10]
    file = writers[0].log / "data" / f"{entry.pos - entry.pos % 8192:020d}"
    offset = entry.pos % 8192 + 140
    flip(file, offset)
    result = audit([str(base / "n1")])
    flip(file, offset)
    (finding,) = result.findings
    assert result.verdict == "FAIL" and finding.klass == "bit-rot"
    assert (finding.flaw.byte_from, finding.flaw.byte_to) == (
        entry.pos % 8192 + 48,
        entry.pos % 8192 + entry.size,
    )


def test_damaged_last_entry_that_a_majority_holds_fails_even_after_a_kill(tmp_path: Path) -> None:
    """Above the mark of a killed node, but held by the two others: not a torn tail."""
    writers = write_cluster(tmp_path, history(3), clean=False, mark=30)
    entry = writers[2].entries[-1]
    flip(writers[2].log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + 140)
    result = run(tmp_path)
    assert result.verdict == "FAIL"
    assert [(f.klass, f.replica, f.flaw.index) for f in result.findings] == [
        ("bit-rot", "n3", entry.index)
    ]


def test_same_entry_damaged_everywhere_is_undecidable(tmp_path: Path) -> None:
    """If no replica is intact, no replica is reported as correct."""
    writers = write_cluster(tmp_path, history(3))
    for number, writer in enumerate(writers):
        entry = writer.entries[12]
        flip(
            writer.log / "data" / f"{entry.pos - entry.pos % 8192:020d}",
            entry.pos % 8192 + 60 + number,
        )
    result = run(tmp_path)
    assert result.verdict == "FAIL" and result.compared == 62
    assert {(f.klass, f.flaw.index) for f in result.findings} == {("undecidable", 12)}


@pytest.mark.parametrize("name", ["syncedmark", "hardstate"])
def test_a_slot_that_lies_over_the_other_one_is_found(tmp_path: Path, name: str) -> None:
    """Every value has its own sequence number: two intact slots with the same number show a
    misdirected write, which no checksum detects."""
    base = tmp_path / "cluster"
    path = write_cluster(base, history(3))[2].log / name
    data = path.read_bytes()
    path.write_bytes(data[:4096] * 2)
    result = run(base)
    assert result.verdict == "FAIL"
    rule = {"syncedmark": "mark.slot", "hardstate": "hardstate.slot"}[name]
    assert [(f.klass, f.replica, f.flaw.rule, f.flaw.byte_from) for f in result.findings] == [
        ("bit-rot", "n3", rule, 0)
    ]
    assert result.findings[0].flaw.byte_to > 4096


def test_damage_at_different_places_of_all_replicas_is_decided(tmp_path: Path) -> None:
    """Every damaged entry is intact on other replicas: three byte-exact findings of rot, and the
    comparison continues to the end."""
    writers = write_cluster(tmp_path, history(3))
    places = []
    for number, writer in enumerate(writers):
        entry = writer.entries[10 + 15 * number]
        offset = entry.pos % 8192 + 70
        flip(writer.log / "data" / f"{entry.pos - entry.pos % 8192:020d}", offset)
        places.append(("bit-rot", writer.node, entry.index, offset, offset + 1))
    result = run(tmp_path)
    assert result.compared == 62
    assert [
        (f.klass, f.replica, f.flaw.index, f.flaw.byte_from, f.flaw.byte_to)
        for f in result.findings
    ] == places


def vandalise(rng: random.Random, path: Path) -> bool:
    """Change a file in one of many ways; False when its content stayed the same."""
    data = path.read_bytes()
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 8, 48, 300, 4096)))
    other = rng.randrange(len(data))
    changed = rng.choice(
        (
            data[:start] + bytes(end - start) + data[end:],
            data[:start] + rng.randbytes(end - start) + data[end:],
            data[:start] + b"\xff" * (end - start) + data[end:],
            data[:start] + data[other : other + end - start].ljust(end - start, b"\0") + data[end:],
            data[:start],
            data[end:] + data[:end],
            data + data[start:end],
            b"",
        )
    )
    path.write_bytes(changed)
    return changed != data


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clean", [True, False])
def test_vandalism_is_survived_and_found(tmp_path: Path, seed: int, clean: bool) -> None:
    """Zeroed, foreign, swapped, cut, grown and emptied files never break the auditor, and after a
    clean stop never pass."""
    base = tmp_path / "cluster"
    write_cluster(base, history(20 + seed, 40), clean=clean)
    rng = random.Random(seed)
    files = sorted(
        path
        for path in base.rglob("*")
        if path.is_file() and path.name not in ("abort", "checkpoint")
    )
    for _ in range(12):
        path = rng.choice(files)
        before = path.read_bytes()
        changed = vandalise(rng, path)
        result = run(base)
        assert result.verdict == "FAIL" or not clean or not changed, (
            path,
            [f.text for f in result.findings],
        )
        path.write_bytes(before)
    assert run(base).verdict == "PASS"


# ------------------------------------------------------------------------------------------------------- lost and foreign


def zero_from(writer: Writer, entry: Placed) -> None:
    """Erase the log and its index from an entry on, as if it had never been."""
    for folder, start, size in (
        (writer.log / "data", entry.pos, 8192),
        (writer.log / "index", entry.index * 32, 1024),
    ):
        for file in sorted(folder.iterdir()):
            keep = min(max(start - int(file.name), 0), size)
            file.write_bytes(file.read_bytes()[:keep].ljust(size, b"\0"))


def test_entries_lost_below_the_mark_are_missing(tmp_path: Path) -> None:
    """A log that ends before its own synced mark lost something, however clean the cut."""
    writers = write_cluster(tmp_path, history(3))
    zero_from(writers[0], writers[0].entries[-3])
    result = run(tmp_path)
    assert result.verdict == "FAIL"
    assert ("missing", "n1", "mark.end", 60) in {
        (f.klass, f.replica, f.flaw.rule, f.flaw.index) for f in result.findings
    }


def test_lost_files_are_missing(tmp_path: Path) -> None:
    """A log file in the middle, a last one, an index file and a consume queue file: each absence is
    a finding of its own kind."""
    for number, (path, rule) in enumerate(
        (
            ("dledger-n2/data/00000000000000008192", "file.missing"),
            ("dledger-n2/data/00000000000000016384", "mark.end"),
            ("dledger-n2/index/00000000000000000000", "file.missing"),
            (f"consumequeue/{RAFT}/0/00000000000000000000", "queue.missing"),
            ("dledger-n2/syncedmark", "mark.missing"),
            ("dledger-n2/hardstate", "hardstate.missing"),
            ("identity.json", "identity.missing"),
        )
    ):
        base = tmp_path / str(number)
        write_cluster(base, history(3, 90))
        (base / "n2" / "g1" / path).unlink()
        if rule == "mark.end":
            for later in (base / "n2" / "g1" / "dledger-n2/data").iterdir():
                later.unlink() if int(later.name) > 16384 else None
        result = run(base)
        assert result.verdict == "FAIL" and rule in {f.flaw.rule for f in result.findings}, (
            path,
            [f.text for f in result.findings],
        )


@pytest.mark.parametrize(
    ("change", "klass"),
    [
        (lambda m: m[:30] + m[31:], "missing"),
        (
            lambda m: [
                *m[:30],
                Message("flights", b"foreign", key="f", term=m[30].term, time=m[30].time),
                *m[30:],
            ],
            "extra",
        ),
        (lambda m: [*m[:30], m[31], m[30], *m[32:]], "reordered"),
        (
            lambda m: [
                *m[:30],
                Message("flights", b"other", key="o", term=m[30].term, time=m[30].time),
                *m[31:],
            ],
            "divergence",
        ),
    ],
)
def test_another_history_is_told_by_kind(
    tmp_path: Path, change: Callable[[list[Message]], list[Message]], klass: str
) -> None:
    """A replica that is whole in itself but holds another history than the majority, from the first
    different entry on."""
    messages = [m for m in history(3) if m.term < 3]
    steady = [
        Message(m.topic, m.body, m.queue, m.tag, m.key, m.channel, 1_700_000_000_100, m.term)
        for m in messages[1:]
    ]
    messages = [messages[0], *steady]
    write_cluster(tmp_path, messages)
    shutil.rmtree(tmp_path / "n2")
    writer = Writer(tmp_path / "n2")
    for message in change(messages):
        writer.append(message)
    writer.finish(committed=20, snapshot=False)
    result = run(tmp_path)
    assert result.verdict == "FAIL"
    assert [(f.klass, f.replica, f.flaw.index) for f in result.findings] == [(klass, "n2", 30)], [
        f.text for f in result.findings
    ]


def test_a_commit_that_no_majority_holds_is_undecidable(tmp_path: Path) -> None:
    """Two replicas end before the committed index that the third recorded, so entries were lost."""
    messages = history(5, 60)
    for name, count in zip(NODES, (62, 50, 50), strict=True):
        writer = Writer(tmp_path / name)
        for message in messages[:count]:
            writer.append(message)
        writer.finish()
    result = run(tmp_path)
    assert result.verdict == "FAIL" and result.compared == 61
    assert {(f.klass, f.replica, f.flaw.rule) for f in result.findings} >= {
        ("undecidable", "n2", "commit.lost")
    }


# ---------------------------------------------------------------------------------------------------------- wrong writers


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda w: setattr(w, "seed_text", "00000000-0000-0000-0000-000000000000"), "chain.seed"),
        (lambda w: setattr(w, "shift", 8), "entry.pos"),
    ],
)
def test_a_wrong_writer_is_caught_although_all_replicas_agree(
    tmp_path: Path, change: Callable[[Writer], None], rule: str
) -> None:
    """A wrong CRC seed and wrong positions, the same on every replica and consistent in
    themselves."""
    write_cluster(tmp_path, history(4), change)
    result = run(tmp_path)
    assert result.verdict == "FAIL"
    assert {f.replica for f in result.findings if f.flaw.rule == rule} == set(NODES)


@pytest.mark.parametrize(
    "what",
    [
        "record position",
        "queue offset",
        "body crc",
        "term order",
        "store time",
        "uncommitted dispatch",
    ],
)
def test_other_wrong_writers_are_caught(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that are intact but say the wrong thing."""
    original = Writer.record

    def record(message: Message, offset: int, pos: int) -> bytes:
        if what == "record position":
            return original(message, offset, pos - 48)
        if what == "queue offset":
            return original(message, offset + (offset > 3), pos)
        data = original(message, offset, pos)
        return data[:8] + b"\0\0\0\1" + data[12:] if what == "body crc" else data

    if what in ("record position", "queue offset", "body crc"):
        monkeypatch.setattr(Writer, "record", staticmethod(record))
    messages = history(4, 40)
    if what == "term order":
        messages[30] = Message("flights", b"", key="t", term=0, time=messages[30].time)
    if what == "store time":
        messages[30] = Message("flights", b"", key="t", term=messages[30].term, time=5)
    write_cluster(tmp_path, messages)
    if what == "uncommitted dispatch":
        shutil.rmtree(tmp_path / "n1")
        writer = Writer(tmp_path / "n1")
        for message in [
            *messages,
            Message("flights", b"", key="u", term=9, time=messages[-1].time),
        ]:
            writer.append(message)
        writer.finish(snapshot=False)
        (writer.log / "checkpoint").unlink()
    expected = {
        "record position": "record.position",
        "queue offset": "record.queue-offset",
        "body crc": "record.crc",
        "term order": "entry.term-order",
        "store time": "record.store-time",
        "uncommitted dispatch": "queue.uncommitted",
    }[what]
    result = run(tmp_path)
    assert result.verdict == "FAIL" and expected in {f.flaw.rule for f in result.findings}, [
        f.text for f in result.findings
    ]


def native(sequence: int, flag: int, time: int, **changes: object) -> Message:
    message_id = f"4C{0x6F961986:08X}{7:08X}{1:04X}{sequence:012X}"
    return Message(
        "flights", b"body", **{"key": message_id, "time": time, "term": 9, "flag": flag, **changes}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (None, None),
        ({"flag": 4}, "record.native"),
        ({"flag": 3}, "record.native"),
        ({"flag": -1}, "record.native"),
        ({"key": "4C" + "0" * 31 + "g"}, "record.native"),
        ({"key": "4C"}, "record.native"),
        ({"key": "01" + "0" * 32}, "record.native"),
        ({"sysflag": 0x201}, None),
        ({"sysflag": 0x301}, "record.sysflag"),
    ],
)
def test_native_messages_are_held_to_their_rules(
    tmp_path: Path, change: dict[str, object] | None, rule: str | None
) -> None:
    """Two frames pass; a FLAG that does not count, an id that is not native and an unknown SYSFLAG
    are found on every replica."""
    messages = history(4, 30)
    time = messages[-1].time
    messages += [native(i, i + 1, time) for i in range(3)] + [
        native(3 + i, i + 1, time) for i in range(3)
    ]
    if change is not None:
        messages[-2] = native(4, **{"flag": 2, "time": time, **change})  # type: ignore[arg-type]
    write_cluster(tmp_path, messages)
    result = run(tmp_path)
    found = {(f.flaw.rule, f.replica) for f in result.findings}
    wanted = set() if rule is None else {(rule, name) for name in NODES}
    assert found == wanted and result.verdict == ("PASS" if rule is None else "FAIL"), [
        f.text for f in result.findings
    ]
