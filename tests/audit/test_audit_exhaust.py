"""Every byte of a small cluster, altered at every level of consistency, before the auditor: a
sample, and tests of the run itself. `make exhaust` runs all of it.

`tests/audit/exhaust/judging.py` says what the auditor may let pass, and why.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest

from bench.audit_scan import NODES
from ledgermq.audit.checks.scan import scan
from ledgermq.audit.reading.files import exists, names_in, size_of, stat_of
from ledgermq.audit.reading.native import KERNEL
from ledgermq.audit.run import works
from ledgermq.audit.run.jobs import FAIL, PASS, local_engine
from tests.audit.both_scans import built, differences, tasks_of
from tests.audit.exhaust import __main__ as run_of
from tests.audit.exhaust.cases import Case
from tests.audit.exhaust.field import Field
from tests.audit.exhaust.ground import AGREEMENT, DEEP, MODES, WHOLE, Changes
from tests.audit.exhaust.judging import ALLOWED
from tests.audit.exhaust.keeping import Kept
from tests.audit.exhaust.memory import Memory
from tests.audit.exhaust.running import READ, audit_of, serving
from tests.audit.spark_session import running_spark

pytestmark = pytest.mark.verify

SEED = 20261122
SAMPLE = {WHOLE: 160, DEEP: 30, AGREEMENT: 120}
CROSS = 40
SCANS, MANY, BOTH = 250, 1500, 25
KEPT, BESIDE = 8, 4
ROOTS = 40
SPARK_SAMPLE, REPAIRS = 12, 60
REPAIRED = {
    "a word that the chain does not cover": (
        "one whole flip n3/raft/dledger-n3/data/00000000000000004096 2626 ff -"
    ),
    "another history": (
        "one whole flip n3/raft/dledger-n3/data/00000000000000000000 3507 01 chain+later+ends+noted"
    ),
    "an entry with a chain CRC of its own": (
        "one whole flip n1/raft/dledger-n1/data/00000000000000004096 3265 01 body+chain"
    ),
    "one of the replica that decides for an HA group": (
        "one whole flip n1/ha/dledger-n1/data/00000000000000008192 596 01 body+chain"
    ),
    "the last one of a file": (
        "one whole flip n1/raft/dledger-n1/data/00000000000000008192 3700 01 body+chain"
    ),
    "a unit beside its entry": (
        "one whole flip n1/raft/dledger-n1/data/00000000000000000000 488 01 chain+later+units+ends"
    ),
    "another history of a trimmed log": (
        "one whole flip n3/ha/dledger-n3/data/00000000000000008192 769 01"
        " chain+later+units+ends+noted"
    ),
}
"""Cases after which a repair once left something."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """One cluster; every case restores what it changed."""
    found = Field(tmp_path_factory.mktemp("exhaust"), "one")
    yield found
    assert found.ground.is_restored()


@pytest.mark.parametrize("mode", MODES)
def test_each_damage_fails_and_accuses_only_its_replica(ground: Field, mode: str) -> None:
    """A sample of every kind of place. Now and then the audit that reads only what is changed is
    held against the plain one."""
    wrong, tried = [], 0
    for case in ground.atlas.sample(random.Random(SEED), mode):
        changes = ground.atlas.changes(case)
        if changes is None:
            continue
        _verdict, text = ground.judge(case, changes, plain=tried % CROSS == 0)
        wrong += [f"{case}: {text}"] if text else []
        tried += 1
        if tried == SAMPLE[mode]:
            break
    assert not wrong, wrong


@pytest.mark.parametrize("mode", MODES)
def test_cached_answers_change_no_finding(ground: Field, mode: str) -> None:
    """Cases of the same byte, and of the same file as a whole, follow each other as in a full run:
    `Memory` has answers about files that differ in one of them. The audit that asks it and the one
    that reads everything have equal findings."""
    wrong, tried, rng = [], 0, random.Random(f"{SEED} kept {mode}")
    for place in ground.atlas.sample(rng, mode):
        beside = (
            list(ground.atlas.of_file(place.path, mode))
            if rng.random() < 0.2
            else ground.atlas.of_byte(place.path, place.at, mode)
        )
        for case in rng.sample(beside, min(len(beside), BESIDE)):
            changes = ground.atlas.changes(case)
            if changes is not None:
                text = ground.difference(changes, mode, ground.ground.verdict(changes, mode))
                wrong += [f"{case}: {text}"] if text else []
                tried += 1
        if tried >= KEPT:
            break
    assert not wrong, wrong


def test_a_root_that_is_wrong_everywhere_is_found(tmp_path: Path) -> None:
    """The root in a seal, or what is beside it, is another one on every replica, and all that is
    made of the record agrees: checksums, chain, marks, snapshots, leaves of the log tree. Only the
    entries of the sealed file contradict."""
    other = Field(tmp_path, "other")
    cases = [
        case
        for path in other.atlas.trees
        for at in other.atlas.trees[path]
        for case in other.atlas.of_byte(path, at, DEEP)
    ]
    roots = [case for case in cases if case.kind == "root"]
    assert {case.path.split("/")[1] for case in roots} == {"raft", "ha"}
    rules = Counter[str]()
    for case in random.Random(SEED).sample(roots, ROOTS):
        changes = other.atlas.changes(case)
        assert changes is not None and {path.partition("/")[0] for path in changes} == {*NODES}
        result = other.ground.plain(changes, DEEP)
        assert not other.complaint(case, result), case
        for rule in {finding.flaw.rule for finding in result.findings}:
            accused = {finding.replica for finding in result.findings if finding.flaw.rule == rule}
            assert accused == {*NODES}, case
            rules[rule] += 1
    assert rules["seal.tree"] > ROOTS // 2, rules


def _in_logs(ground: Field, seed: str) -> Iterator[tuple[Case, Changes]]:
    for case in ground.atlas.sample(random.Random(seed), WHOLE):
        changes = ground.atlas.changes(case)
        if changes is not None and "/data/" in case.path:
            yield case, changes


@built
@pytest.mark.parametrize(("part", "count"), [(0, SCANS), *((part, MANY) for part in range(1, 6))])
def test_both_scans_report_the_same(ground: Field, part: int, count: int) -> None:
    """The compiled scan and the Python scan of an altered log file, in small windows and in whole
    ones."""
    base = ground.ground.base
    tasks = {str(Path(task.path).relative_to(base)): task for task in tasks_of(base)}
    wrong = []
    for number, (case, changes) in enumerate(
        islice(_in_logs(ground, f"{SEED} scans {part}"), count)
    ):
        with ground.ground.damaged(changes):
            chosen = [tasks[path] for path in changes if path in tasks]
            wrong += [
                f"{case}: {text}"
                for text in differences(chosen, KERNEL, (1000, 4 << 20)[number % 2])
            ]
    assert not wrong, wrong[:5]


@built
def test_audits_with_both_scans_say_the_same(ground: Field) -> None:
    """Verdict, reasons and findings."""
    for case, changes in islice(_in_logs(ground, f"{SEED} audits"), BOTH):
        told = []
        for kernel in (None, KERNEL):
            with patch.object(works, "scan", partial(scan, kernel=kernel)):
                found = ground.ground.plain(changes, WHOLE)
            told.append((found.verdict, found.reasons, found.findings))
        assert told[0] == told[1], case


def test_answers_about_other_bytes_are_not_given_again(tmp_path: Path) -> None:
    """Only while every file that was opened for an answer, also by what was asked in between, is
    what it was."""
    image = {"n1/a": b"one", "n1/b": b"two"}
    memory = Memory(tmp_path, image)
    asked: list[str] = []

    def read(name: str) -> str:
        asked.append(name)
        with open(f"{tmp_path}/n1/{name}") as file:
            return file.read()

    def both() -> str:
        return str(memory.recall("a", lambda: read("a")) + memory.recall("b", lambda: read("b")))

    def ask(**changes: bytes) -> str:
        """The answer, and what was read for it."""
        asked.clear()
        for path, data in {
            **image,
            **{f"n1/{name}": data for name, data in changes.items()},
        }.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(data)
        memory.changed({f"n1/{name}": data for name, data in changes.items()})
        return f"{memory.recall('both', both)} {''.join(asked)}"

    assert [ask(), ask()] == ["onetwo ab", "onetwo "]
    assert [ask(a=b"ONE"), ask(a=b"ONE"), ask(a=b"0ne"), ask()] == [
        "ONEtwo a",
        "ONEtwo ",
        "0netwo a",
        "onetwo ",
    ]
    assert [ask(a=b"ONE", b=b"TWO"), ask(a=b"ONE")] == ["ONETWO b", "ONEtwo "]
    # An answer does not rest on a file that was not looked for.
    assert [ask(c=b"three"), ask(a=b"ONE", c=b"three")] == ["onetwo ", "ONEtwo "]


LOOKS: dict[str, Callable[[Path], object]] = {
    "stat": lambda path: os.stat(path / "a").st_size,
    "exists": lambda path: os.path.exists(path / "c"),
    "isdir": lambda path: os.path.isdir(f"{path}/c"),
    "isfile": lambda path: os.path.isfile(f"{path}/c"),
    "getsize": lambda path: os.path.getsize(f"{path}/a"),
    "listdir": lambda path: sorted(os.listdir(path)),
    "scandir": lambda path: sorted(entry.name for entry in os.scandir(path)),
    "Path": lambda path: (path / "c").exists(),
    "open": lambda path: _length_of(path / "c"),
    "auditor": lambda path: (
        stat_of(f"{path}/c") is None,
        names_in(str(path)),
        exists(f"{path}/c"),
        size_of(f"{path}/a"),
    ),
}
"""Ways to depend on a file without reading it."""


def _length_of(path: Path) -> int | None:
    try:
        with open(path) as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_an_answer_rests_on_files_that_were_only_looked_for(
    tmp_path: Path, look: Callable[[Path], object]
) -> None:
    """Another file came, and this one changed its length. What was asked in between, and was known
    already, is part of it."""
    base, image = tmp_path / "base", {"n1/a": b"one"}
    memory = Memory(base, image)
    (base / "n1").mkdir(parents=True)
    finds: list[str] = []

    def find() -> object:
        finds.append("")
        return memory.recall("inner", lambda: look(base / "n1"))

    for changes in ({}, {"n1/a": b"longer", "n1/c": b"new"}, {}):
        (base / "n1/c").unlink(missing_ok=True)
        for path, data in {**image, **changes}.items():
            (base / path).write_bytes(data)
        memory.changed(changes)
        memory.recall("inner", lambda: look(base / "n1"))
        assert memory.recall("outer", find) == look(base / "n1")
    assert len(finds) == 2


MENDED = (
    "one whole flip n1/raft/dledger-n1/data/00000000000000004096 274 ff -",
    (
        "one agreement flip n1/ha/dledger-n1/data/00000000000000008192 2384 ff"
        " record+body+chain+later+ends"
    ),
    "one agreement flip n1/raft/dledger-n1/data/00000000000000000000 608 ff chain+later+seals",
    "one whole flip n2/ha/state/snapshot.previous 745 01 crc",
    "one whole flip n2/raft/state/keyindex 219 01 crc",
    "one whole flip n2/ha/state/keyindex 291 01 crc",
    "one whole old n1/ha/dledger-n1/syncedmark 0 2 -",
    "one whole flip n3/raft/dledger-n3/data/00000000000000008192 472 01 body",
    "one whole flip n1/raft/dledger-n1/data/00000000000000008192 3383 01 record+body+chain",
    "one whole flip n3/raft/dledger-n3/syncedmark 73 01 crc",
    "one whole flip n2/ha/dledger-n2/syncedmark 27 01 crc",
    "one whole flip n1/ha/consumequeue/n/1/00000000000000000000 27 01 -",
    "one whole gone n1/ha/consumequeue/n/1/00000000000000000000 0 - -",
    "one whole flip n1/raft/dledger-n1/hardstate 4181 01 crc",
    "one whole flip n2/raft/dledger-n2/hardstate 67 ff crc",
    "one whole flip n2/raft/state/snapshot.previous 78 01 crc",
    "one whole flip n1/raft/state/snapshot.previous 1033 01 crc",
    "one whole flip n2/raft/state/snapshot 3529 01 crc",
    "one whole flip n2/ha/state/snapshot 3958 03 crc",
    "one whole flip n1/raft/state/keyindex 157 01 crc",
    "one whole flip n2/raft/state/keyindex 265 01 crc",
    "one whole flip n2/ha/state/snapshot.previous 1822 01 crc",
    "one whole flip n1/ha/state/snapshot.previous 42 01 crc",
    "one whole flip n3/ha/state/snapshot.previous 41 01 crc",
    "one whole flip n1/ha/state/snapshot.previous 3957 03 crc",
    "one whole flip n3/ha/state/snapshot 1721 01 crc",
    "one agreement flip n2/ha/dledger-n2/begin 49 01 crc",
    "one agreement old n1/ha/dledger-n1/hardstate 0 0 -",
    "one agreement old n1/ha/dledger-n1/syncedmark 0 2 -",
    "one agreement flip n2/raft/dledger-n2/checkpoint 10 01 -",
)
"""Cases that the auditor let pass once, and no sample is sure to draw."""


@pytest.mark.parametrize("text", MENDED)
def test_a_miss_that_was_mended(ground: Field, text: str) -> None:
    case = Case.of(text)
    changes = ground.atlas.changes(case)
    assert changes is not None
    result = ground.ground.plain(changes, case.mode)
    assert result.verdict != PASS and not ground.complaint(case, result)


@pytest.fixture
def clusters_of_a_run() -> Iterator[None]:
    """What the module of the run keeps does not outlive the test."""
    yield
    run_of.forget()


@pytest.mark.usefixtures("clusters_of_a_run")
def test_processes_of_a_run_damage_clusters_of_their_own() -> None:
    """The parent's is damaged meanwhile, as another process would damage it."""
    names = [name for name in run_of.pieces("one", WHOLE, "checkpoint") if name[3] > 0][:2]
    shared = run_of.field_of("one").ground
    with shared.damaged({"n1/raft/identity.json": None}):
        assert [piece.complaints for piece in run_of.run(names, 2, None, None, 0)] == [[], []]
    assert shared.is_restored()


def test_a_size_that_no_entry_has_does_not_end_the_quick_audit(ground: Field) -> None:
    """The size of the last entry is negative, or that of a whole disk: --agreement, which does not
    judge it, goes on."""
    (one,) = (one for root, one in ground.atlas.replicas.items() if root == "n2/raft")
    last = one.entries[-1]
    for value in ("80", "7f"):
        changes = ground.atlas.changes(Case("one", "flip", last.path, last.at + 4, value))
        assert changes is not None
        assert ground.ground.plain(changes, AGREEMENT).verdict == PASS


@pytest.mark.parametrize("flipped", [9, 13])
@pytest.mark.parametrize("filled", [False, True], ids=["", "and the first one is lost"])
def test_an_index_that_is_far_away_needs_no_memory(
    ground: Field, filled: bool, flipped: int
) -> None:
    """The last entry's index is 2⁴⁸ or 2¹⁶ too large. The audit compares what the replicas hold,
    and not the numbers between."""
    (one,) = (one for root, one in ground.atlas.replicas.items() if root == "n1/raft")
    last = one.entries[-1]
    first = next(entry for entry in one.entries if entry.path == last.path)
    data = bytearray((ground.ground.base / last.path).read_bytes())
    if filled:
        data[first.at : first.at + first.size] = b"\x01" * first.size
    data[last.at + flipped] ^= 1
    result = ground.ground.plain({last.path: bytes(data)})
    assert result.verdict == FAIL and {finding.replica for finding in result.findings} == {"n1"}


def test_the_cluster_is_whole_and_has_every_kind_of_file(ground: Field) -> None:
    """Both groups pass, one of them is trimmed, and the cases know where in them they are."""
    for mode in MODES:
        assert ground.ground.plain({}, mode).verdict == PASS
    kinds = {ground.atlas.label(path, 0).partition(":")[0] for path in ground.atlas.image}
    assert kinds >= {
        "data",
        "index",
        "consumequeue",
        "state/snapshot.previous",
        "state/keyindex",
        "state/bloom",
        "state/digests",
        "begin",
        "syncedmark",
    }
    sample = list(islice(ground.atlas.sample(random.Random(SEED)), 500))
    assert [Case.of(str(case)) for case in sample] == sample
    assert len({case.levels for case in sample}) > 10


def test_every_field_of_every_entry_is_tried_with_every_run_of_levels(ground: Field) -> None:
    """Its bytes take turns, and so do the replicas: none of them is left out."""
    atlas = ground.atlas
    for path in (
        "n1/raft/dledger-n1/data/00000000000000004096",
        "n1/ha/dledger-n1/data/00000000000000008192",
    ):
        tried: dict[tuple[int, int], set[tuple[str, ...]]] = {}
        for at in range(len(atlas.image[path])):
            cases = [
                case for node in NODES for case in atlas.of_byte(atlas.on_node(path, node), at)
            ]
            assert len(cases) == len({(case.at, case.value, case.levels) for case in cases})
            tried.setdefault(atlas.field_at(path, at), set()).update(
                case.levels for case in cases if case.value == "01"
            )
        for (start, _), levels in tried.items():
            assert levels >= {*atlas.log_levels(path, start, full=True, every=False)}, (
                path,
                start,
                atlas.label(path, start),
            )


def test_a_key_index_of_a_trimmed_group_is_judged(ground: Field) -> None:
    """Its file name is a time, not the place of units in a log."""
    path, *_ = (path for path in ground.atlas.image if re.fullmatch(r"n1/ha/index/\d{17}", path))
    at = next(
        at
        for at in range(len(ground.atlas.image[path]))
        if ground.atlas.label(path, at) == "index: "
    )
    case = Case("one", "flip", path, at, "01", mode=AGREEMENT)
    changes = ground.atlas.changes(case)
    assert changes is not None
    assert ground.judge(case, changes) == (PASS, "")


def test_a_run_of_zeros_is_one_kind_of_place(ground: Field) -> None:
    """Inside of a long run of zeros the cases take a byte here and there: the audit says the same
    of every one of them."""
    for path, start, stop in (
        ("n2/raft/dledger-n2/data/00000000000000012288", 3900, 4096),
        ("n2/raft/dledger-n2/syncedmark", 88, 4096),
        ("n2/raft/dledger-n2/hardstate", 4096 + 96, 8192),
        ("n2/raft/checkpoint", 24, 4096),
    ):
        said = set()
        assert not any(ground.atlas.image[path][start:stop])
        for at in random.Random(SEED).sample(range(start, stop), 10):
            changes = ground.atlas.changes(Case("one", "flip", path, at, "01"))
            assert changes is not None
            result = ground.ground.quick(changes)
            (finding,) = result.findings
            said.add(
                (
                    result.verdict,
                    finding.flaw.rule,
                    finding.flaw.byte_from - at,
                    finding.flaw.byte_to - at,
                )
            )
        assert len(said) == 1, (path, said)


@pytest.mark.parametrize(
    "count", [pytest.param(1, id="one"), pytest.param(40, id="many", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("group", ["raft", "ha"])
def test_no_damage_up_to_the_marker_passes_on_running_nodes(
    tmp_path: Path, group: str, count: int
) -> None:
    """The same through gRPC, of what counts of a running node. Both groups are whole."""
    field = Field(tmp_path, "one" if group == "raft" else "other")
    cluster = serving(field, group)
    assert audit_of(cluster, field, {}).verdict == PASS
    wrong, tried = [], 0
    for case in field.atlas.sample(random.Random(f"{SEED} {group}")):
        inside = (
            case.path.split("/")[1] == group
            and re.fullmatch(READ, field.atlas.label_of(case))
            and case.kind in ("flip", "packed")
        )
        changes = field.atlas.changes(case) if inside else None
        if changes is None:
            continue
        text = field.complaint(case, audit_of(cluster, field, changes))
        wrong += [f"{case}: {text}"] if text else []
        tried += 1
        if tried == count:
            break
    assert not wrong, wrong


@pytest.mark.slow
def test_spark_says_the_same_of_every_case(ground: Field) -> None:
    """One session, both engines: verdict, reasons and findings are equal."""
    from ledgermq.audit.spark.engine import SparkEngine

    with running_spark() as session:
        tried = 0
        for case in ground.atlas.sample(random.Random(SEED)):
            changes = ground.atlas.changes(case)
            if changes is None:
                continue
            here, there = (
                ground.ground.plain(changes, case.mode, engine)
                for engine in (local_engine, SparkEngine(session))
            )
            assert (here.verdict, here.reasons, here.findings) == (
                there.verdict,
                there.reasons,
                there.findings,
            ), case
            tried += 1
            if tried == SPARK_SAMPLE:
                break


@pytest.mark.parametrize("text", REPAIRED.values(), ids=REPAIRED.keys())
def test_a_repair_that_was_mended(ground: Field, text: str) -> None:
    case = Case.of(text)
    changes = ground.atlas.changes(case)
    assert changes is not None
    found = ground.repair(case, changes)
    assert (found.status, found.complaint) == (0, "")


def test_mark_that_names_an_unheld_entry_is_refused(ground: Field) -> None:
    """The slot that counts was altered together with its CRC."""
    case = Case.of("one whole flip n3/ha/dledger-n3/syncedmark 4165 01 crc")
    changes = ground.atlas.changes(case)
    assert changes is not None
    found = ground.repair(case, changes)
    assert found.status and not found.complaint and "the synced mark names entry" in found.told


@pytest.mark.slow
def test_repair_succeeds_or_leaves_the_files_unchanged(ground: Field) -> None:
    """Audited by the plain engine afterwards."""
    wrong, tried = [], 0
    for case in ground.atlas.sample(random.Random(SEED)):
        changes = ground.atlas.changes(case)
        if changes is None or ground.ground.verdict(changes).verdict != FAIL:
            continue
        found = ground.repair(case, changes)
        wrong += [f"{case}: {found.complaint}"] if found.complaint else []
        tried += 1
        if tried == REPAIRS:
            break
    assert not wrong, wrong


def test_only_another_deflated_form_of_a_column_is_excused(ground: Field) -> None:
    """The same bytes in another form are no damage. Other bytes are, and so is base64 that no
    writer produces."""
    path = "n3/raft/state/snapshot"
    same = Case(
        "one",
        "flip",
        path,
        ground.atlas.image[path].index(b"4pQFgDlbAgb") + 3,
        value="01",
        levels=("crc",),
    )
    column = ground.atlas.image[path].index(b'"eAFjYIAARgI0AAB4AAU="') + 1
    unused_bits = replace(same, at=column + len("eAFjYIAARgI0AAB4AAU") - 1, value="03")
    other = replace(same, at=column + len("eAFjYIAARgI0AAB4AA") - 1)
    for case, excused in ((same, True), (unused_bits, False), (other, False)):
        changes = ground.atlas.changes(case)
        assert changes is not None
        result = ground.ground.plain(changes, case.mode)
        assert (result.verdict == PASS) == excused and not ground.complaint(case, result), case
        assert any(row.covers(ground.atlas, case) for row in ALLOWED) == excused


def test_finished_pieces_count_while_rules_are_only_added(
    ground: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece with a complaint is done again; all are, after a rule was changed or removed."""
    rules = tmp_path / "judging.py"
    monkeypatch.setattr("tests.audit.exhaust.keeping.judging.__file__", str(rules))

    def kept(text: str) -> Kept:
        rules.write_text(text)
        return Kept(tmp_path / "pieces", [ground.atlas])

    first = "from re import match\nALLOWED: Rows = (Row(1), Row(2))\ndef fits():\n    return 1\n"
    more = (
        first.replace("match", "match, sub").replace("Row(1),", "Row(1), Row(3),")
        + "def fits_too():\n    pass\n"
    )
    before = kept(first)
    before.write("good piece/0", {"complaints": []})
    before.write("bad piece/0", {"complaints": ["why"]})
    after = kept(more)
    assert (
        after.read("good piece/0") == {"complaints": []}
        and after.read("bad piece/0") is None
        and after.read("new piece/0") is None
    )
    assert kept(more.replace("return 1", "return 2")).read("good piece/0") is None
    kept(more).write("good piece/0", {"complaints": []})
    assert kept(first).read("good piece/0") is None, "a row that it may rest on is gone"
