"""An object store against the logs of its replicas, all in memory: what is named when one thing is
wrong, and that nothing else is."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.checks.group import GroupResult, StoredResult
from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import LogReport
from ledgermq.audit.checks.stored_objects import (
    NOTE,
    as_object,
    check_parts,
    check_store,
    lines_of,
    notes_of,
    spans_text,
)
from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.stored_logs import Manifest, StoredLog
from ledgermq.audit.reading.stored_parts import DEFINITIONS, Definitions
from ledgermq.audit.rules import RULES, Finding, Flaw
from ledgermq.proto.proofs.log_tree import FileLeaf
from tests.audit.log_writer import sealed

SIZE, ENTRIES = 1000, 10
FILES = 6
LOG = "log-id"
FOLDER = f"g1/{LOG}"
OTHER = "f" * 64
Told = tuple[str, str, int | None, int, int]
"""Rule, key without the folder, entry, and bytes of a finding."""


def first_of(file: int) -> int:
    return file * ENTRIES


def digest_of(file: int) -> str:
    return f"{file + 1:064x}"


def root_of(file: int) -> bytes:
    return hashlib.sha256(b"%d" % file).digest()


def object_name(file: int, digest: str | None = None) -> str:
    return f"{file * SIZE:020d}-{digest or digest_of(file)}.log"


def json_name(file: int) -> str:
    return f"{file * SIZE:020d}.json"


def report_of(file: int, name: str = "", **changes: Any) -> LogReport:
    """The scan of a whole file of the log: of the replica with this name, or of the object."""
    key = f"g1/dledger-{name}/data/{file * SIZE:020d}" if name else f"{FOLDER}/{object_name(file)}"
    first, last = first_of(file), first_of(file) + ENTRIES - 1
    one = LogReport(
        key,
        file * SIZE,
        SIZE,
        ENTRIES,
        first,
        last,
        end=SIZE - 50,
        ending="blank",
        last_term=1,
        last_chain=100 + file,
    )
    one.last_intact_index, one.last_store_ms = last, 5000 + file
    if not name:
        one.sha256, one.root = digest_of(file), root_of(file).hex()
    return replace(one, **changes)


def manifest_of(file: int, **changes: Any) -> Manifest:
    first, base = first_of(file), file * SIZE
    made = Manifest(
        f"{FOLDER}/{json_name(file)}", "", LOG, base, SIZE, first, first + ENTRIES - 1, base + SIZE - 50, 1, 99 + file, 1, 100 + file,
        5000 + file, digest_of(file),
    )  # fmt: skip
    made = replace(made, **changes)
    return replace(made, object=f"{FOLDER}/{base:020d}-{made.sha256}.log")


def seal_of(file: int, *, tree: bool = True, **changes: Any) -> dict[str, Any]:
    first = first_of(file)
    fields = {
        "base": file * SIZE,
        "first": first,
        "last": first + ENTRIES - 1,
        "end": file * SIZE + SIZE - 50,
        "sha256": digest_of(file),
    }
    return {
        **fields,
        **(
            {"v": 2, "tree": {"root": root_of(file).hex(), "entries": ENTRIES}}
            if tree
            else {"v": 1}
        ),
        **changes,
    }


def leaf_of(file: int) -> bytes:
    return FileLeaf(
        file * SIZE, first_of(file), ENTRIES, file * SIZE + SIZE - 50, root_of(file)
    ).hash()


def replica_of(
    name: str,
    begin: int = 0,
    *,
    tree_from: int = 0,
    sealed_files: int = FILES - 1,
    trims: bool = False,
) -> Replica:
    """A replica whose log begins with file `begin`. Each file but the last is sealed by a record in
    the next one; the records of trimmed files are gone, and the log tree of them is in the
    snapshot. `trims`: the snapshot has the trim records."""
    one = Replica(
        "/none",
        "/none/g1",
        "g1",
        name,
        f"dledger-{name}",
        log_id=LOG,
        sizes=(SIZE, 1, 1),
        identity={"cluster_id": "c1"},
    )
    one.reports = [report_of(file, name) for file in range(begin, FILES)]
    for file in range(max(begin - 1, 0), sealed_files):
        one.reports[file + 1 - begin].seals.append(
            (first_of(file + 1) + 1, json.dumps(seal_of(file, tree=file >= tree_from)))
        )
    if begin:
        one.begin = Begin(first_of(begin), begin * SIZE, 1, 99 + begin)
        gone = range(tree_from, begin - 1)
        tree = {
            "leaves": b64encode(b"".join(map(leaf_of, gone))).decode(),
            "next": first_of(max(begin - 1, tree_from)),
        }
        one.snapshot = {
            "applied_index": FILES * ENTRIES - 1,
            "retained": {"seals": [], **({"tree": tree} if begin > tree_from else {})},
        }
        if trims:
            one.snapshot["retained"]["trims"] = [
                [1, 2, {"files": [[file * SIZE, digest_of(file)]]}] for file in range(begin)
            ]
    return one


@dataclass
class World:
    """An honest store with the first files, and honest replicas, for tests to change."""

    stored: int = FILES - 1
    begin: int = 0
    replicas: list[Replica] = field(
        default_factory=lambda: [replica_of("n1"), replica_of("n2"), replica_of("n3")]
    )
    compared: int | None = FILES * ENTRIES - 1
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = range(self.begin, self.stored)
        objects = {f"{FOLDER}/log.json": 7, f"{FOLDER}/snapshot": 8} | {
            f"{FOLDER}/{json_name(file)}": 9 for file in files
        }
        objects |= {f"{FOLDER}/{object_name(file)}": SIZE for file in files}
        begin = {
            "index": first_of(self.begin),
            "pos": self.begin * SIZE,
            "term": 1,
            "chain": 99 + self.begin,
        }
        about = {
            "group": "g1",
            "log_id": LOG,
            "cluster_id": "c1",
            "data_file_bytes": SIZE,
            "index_file_bytes": 3,
            "begin": begin,
        }
        about["consume_queue_file_bytes"] = 4
        self.log = StoredLog("g1", LOG, objects, about, files=[manifest_of(file) for file in files])
        self.objects = objects
        self.reports = {f"{FOLDER}/{object_name(file)}": report_of(file) for file in files}
        self.group = GroupResult("g1", self.replicas, compared=self.compared)
        self.logs = [self.log]

    def report(self, file: int) -> LogReport:
        return self.reports[f"{FOLDER}/{object_name(file)}"]

    def manifest(self, file: int, **changes: Any) -> None:
        """Change a manifest; its object keeps the name that it has then."""
        at = next(at for at, one in enumerate(self.log.files) if one.base == file * SIZE)
        self.log.files[at] = replace(self.log.files[at], **changes)

    def check(self) -> list[Told]:
        """What the audit finds."""
        check_store(self.group, self.logs, self.reports, self.notes, "s3://b")
        return self.found()

    def found(self) -> list[Told]:
        """The findings so far; all are of the group and the store."""
        assert all(
            f.fails and (f.replica, f.group, f.klass) == ("store", "g1", RULES[f.flaw.rule].klass)
            for f in self.group.findings
        )
        flaws = [finding.flaw for finding in self.group.findings]
        return [
            (f.rule, f.file.removeprefix(f"{FOLDER}/"), f.index, f.byte_from, f.byte_to)
            for f in flaws
        ]

    @property
    def result(self) -> StoredResult:
        (found,) = self.group.stored
        return found


def spans(*files: int) -> list[tuple[int, int]]:
    """The positions of these files, neighbours as one range."""
    found: list[tuple[int, int]] = []
    for file in sorted(files):
        if found and found[-1][1] == file * SIZE:
            found[-1] = found[-1][0], (file + 1) * SIZE
        else:
            found.append((file * SIZE, (file + 1) * SIZE))
    return found


def of(rule: str, file: int, end: int = SIZE) -> Told:
    """A finding on a whole object."""
    return rule, object_name(file), first_of(file), 0, end


END = (FILES - 1) * SIZE + SIZE - 50
"""The position behind the last entry of the log."""


def test_an_honest_store_has_no_finding() -> None:
    """However far it is, wherever replicas begin, whatever they still know of trimmed files, and
    wherever the log tree begins. Only where no replica has what the store lacks, that is named."""
    for stored, begins, tree_from, trims in product(
        range(FILES),
        ((0, 0, 0), (2, 0, 0), (2, 3, 3), (4, 4, 4), (5, 5, 5)),
        (0, 1, 3, 5),
        (False, True),
    ):
        names = zip(("n1", "n2", "n3"), begins, strict=True)
        world = World(
            stored,
            replicas=[
                replica_of(name, begin, tree_from=tree_from, trims=trims) for name, begin in names
            ],
        )
        low = min(begins)
        lost = (
            [("stored.gap", json_name(stored), None, stored * SIZE, low * SIZE)]
            if low > stored
            else []
        )
        assert world.check() == lost, (stored, begins, tree_from, trims)
        one = world.result
        assert (one.place, one.log_id, one.files, one.entries) == (
            "s3://b",
            LOG,
            stored,
            stored * ENTRIES,
        )
        assert (one.begins_with, one.begin_index) == (0, 0 if stored else None)
        assert one.last_index == (stored * ENTRIES - 1 if stored else None)
        assert one.read == ([(0, stored * SIZE)] if stored else [])
        assert one.unread == one.sealed_there == []
        assert one.not_stored == [(max(stored, low) * SIZE, END)]
        there = {
            name: spans(*range(begin, stored))
            for name, begin in zip(("n1", "n2", "n3"), begins, strict=True)
            if begin < stored
        }
        assert one.replicas == there and one.alone == spans(*range(min(stored, low)))
        assert [(task.key, task.seed, task.begin_pos) for task, _ in one.sound] == [
            (m.object, m.chain, m.base) for m in world.log.files
        ]
        assert [report for _, report in one.sound] == [world.report(file) for file in range(stored)]
        # Files before the log tree are known by their seals or trims alone.
        tree_known = low <= 1 or tree_from < low
        known = {
            file
            for file in range(stored)
            if file >= low - 1 or (tree_known and file >= tree_from) or trims
        }
        if low <= stored:
            assert one.sealed == spans(*known)
            assert len(world.group.reasons) == bool(one.unsealed)


def test_other_logs_in_the_store() -> None:
    """Another group's are passed over, those from before a recovery are noted, and a log that
    nobody has is foreign."""
    world = World()
    stranger = StoredLog("g1", "stranger", {"g1/stranger/log.json": 3, "g1/stranger/x": 4})
    world.logs = [StoredLog("g0", "stranger", {}), stranger, StoredLog("g2", LOG, {}), world.log]
    world.replicas.append(replace(replica_of("n4"), log_id=None, identity=None))
    assert (
        world.check() == [("stored.foreign", "g1/stranger", None, 0, 7)]
        and world.group.reasons == [] == world.group.notes
    )
    assert world.group.findings[0].flaw.proof.endswith(
        "2 objects of a log that no replica has; their log is log-id"
    )
    unknown = World(replicas=[replace(replica_of("n1"), log_id=None, identity=None)])
    assert unknown.check() == [("stored.foreign", FOLDER, None, 0, sum(unknown.objects.values()))]
    assert (
        unknown.group.findings[0].flaw.proof.endswith("their log is unknown")
        and unknown.group.stored == []
    )


def test_a_log_from_before_a_recovery(tmp_path: Path) -> None:
    """The record of the recovery names it."""
    (tmp_path / "recovery.json").write_bytes(sealed({"former": ["older"]}))
    world = World()
    world.replicas[1].root = str(tmp_path)
    world.logs.insert(0, StoredLog("g1", "older", {"g1/older/log.json": 3}))
    assert (
        world.check() == []
        and len(world.group.notes) == 1
        and "older from before a recovery" in world.group.notes[0]
    )


@pytest.mark.parametrize("notes", [{}, {"n1": 0}, {"n1": 3000, "n2": 4000}])
def test_a_store_without_the_log(notes: dict[str, int]) -> None:
    """It was there if a replica noted that. Without any log there is a reason not to pass."""
    world = World(notes=notes)
    world.logs = []
    assert world.check() == ([("stored.older", FOLDER, None, 0, 4000)] if len(notes) > 1 else [])
    assert world.group.reasons == ["group g1: the store holds nothing of its log"]


def test_the_description_of_the_log() -> None:
    """Missing, damaged, or of another log or cluster. A replica that has another cluster than its
    peers says nothing of the store."""
    world = World()
    del world.objects[f"{FOLDER}/log.json"]
    world.log.about = None
    assert world.check() == [("stored.missing", "log.json", None, 0, 0)]
    world = World()
    world.log.about = None
    world.log.damaged = [f"{FOLDER}/log.json", f"{FOLDER}/{json_name(2)}"]
    assert world.check() == [
        ("stored.manifest", "log.json", None, 0, 7),
        ("stored.manifest", json_name(2), None, 0, 9),
    ]
    for key in ("group", "log_id", "cluster_id"):
        world = World()
        assert world.log.about is not None
        world.log.about[key] = "another"
        assert world.check() == [("stored.foreign", "log.json", None, 0, 7)], key
    world = World()
    world.replicas[0].identity = {"cluster_id": "c2"}
    assert world.check() == []


OWN, FOREIGN = (
    Definitions("controller/n1.json", 70, "c1"),
    Definitions("controller/n9.json", 80, "c9"),
)
DAMAGED = Definitions("controller/n2.json", 60, None)
NO_DEFINITIONS: Told = ("stored.definitions", DEFINITIONS, None, 0, 0)


@pytest.mark.parametrize(
    ("definitions", "told"),
    [
        ([OWN], []),
        ([FOREIGN, OWN], []),
        ([], [NO_DEFINITIONS]),
        ([FOREIGN], [NO_DEFINITIONS]),
        ([OWN, DAMAGED], [("stored.definitions", DAMAGED.key, None, 0, 60)]),
        ([DAMAGED], [("stored.definitions", DAMAGED.key, None, 0, 60), NO_DEFINITIONS]),
    ],
)
def test_the_definitions_of_the_cluster(definitions: list[Definitions], told: list[Told]) -> None:
    """A group with stored files needs some of its own cluster; one that has none yet needs none. A
    damaged object is told of both. The identities of the replicas say which cluster that is, as far
    as they can be read."""
    for stored in (FILES - 1, 0, None):
        world = World(stored or 0)
        world.replicas.append(replace(replica_of("n4"), log_id=None, identity=None))
        world.logs = [] if stored is None else world.logs
        assert world.check() == []
        check_parts(world.group, [], definitions)
        assert world.found() == [one for one in told if stored or one != NO_DEFINITIONS], stored


def test_index_parts_are_told_with_their_group() -> None:
    world = World()
    wrong = [
        Flaw("stored.index", f"{FOLDER}/{start}.index", None, start, start + 5, "it is wrong")
        for start in (0, 7)
    ]
    assert world.check() == []
    check_parts(world.group, wrong, [OWN])
    assert world.found() == [
        ("stored.index", "0.index", None, 0, 5),
        ("stored.index", "7.index", None, 7, 12),
    ]


@pytest.mark.parametrize("begin", [0, 2])
def test_stored_log_with_a_begin_needs_a_snapshot(begin: int) -> None:
    """A stored log that does not begin with entry 0 needs one."""
    world = World(begin=begin)
    assert world.check() == [] and world.result.begins_with == first_of(begin)
    assert world.result.not_stored == [*spans(*range(begin)), ((FILES - 1) * SIZE, END)]
    world = World(begin=begin)
    del world.objects[f"{FOLDER}/snapshot"]
    assert world.check() == ([("stored.missing", "snapshot", None, 0, 0)] if begin else [])


def test_objects_and_their_lengths() -> None:
    """Each manifest has its object, in its length; all have the length of the log's files."""
    world = World()
    del world.objects[f"{FOLDER}/{object_name(1)}"], world.reports[f"{FOLDER}/{object_name(1)}"]
    assert world.check() == [of("stored.missing", 1)]
    one = world.result
    assert (one.unread, one.read, one.sealed) == (spans(1), spans(0, 2, 3, 4), spans(0, 2, 3, 4))
    assert (one.files, one.entries, len(one.sound)) == (5, 40, 4) and one.replicas["n1"] == spans(
        0, 2, 3, 4
    )
    for size in (0, 999, 1001):
        world = World()
        world.objects[f"{FOLDER}/{object_name(1)}"] = size
        assert world.check() == [("stored.digest", object_name(1), 10, *sorted((size, SIZE)))]
        assert [task.base for task, _ in world.result.sound] == [0, 2000, 3000, 4000]
    world = World()
    assert world.log.about is not None
    world.log.about["data_file_bytes"] = 500
    assert world.check() == [
        ("stored.entries", json_name(file), first_of(file), 0, 9) for file in range(5)
    ]
    assert world.result.sound == []
    world = World()
    world.manifest(3, log_id="another")
    assert world.check() == [("stored.foreign", json_name(3), 30, 0, 9)]


def damage_manifest(world: World) -> None:
    """That of the second file."""
    world.log.damaged.append(world.log.files.pop(1).key)


def test_objects_that_no_manifest_names() -> None:
    """Beside another object at a position with an intact manifest it is foreign; in place of one
    without it may wait, or is named already. What a manifest named before is known."""
    cases: list[tuple[str, Callable[[World], None] | None, bool]] = [
        (object_name(1, OTHER), None, True),
        (object_name(1, OTHER).replace(f"-{OTHER}", ""), None, True),
        (object_name(0, OTHER), None, True),
        (object_name(4, OTHER), None, True),
        (object_name(5, OTHER), None, False),
        (object_name(1, OTHER).replace(".log", ".former"), None, False),
        (object_name(1, OTHER).replace(".log", ".index"), None, False),
        (object_name(1, OTHER), damage_manifest, False),
        (
            object_name(1, OTHER),
            lambda world: world.objects.update(
                {f"{FOLDER}/{object_name(1, OTHER)[:-4]}.former": 1}
            ),
            False,
        ),
        (
            object_name(1, OTHER),
            lambda world: world.objects.update(
                {f"{FOLDER}/{object_name(2, OTHER)[:-4]}.former": 1}
            ),
            True,
        ),
    ]
    for name, prepare, named in cases:
        world = World()
        world.objects[f"{FOLDER}/{name}"] = 77
        if prepare is not None:
            prepare(world)
        found = [told for told in world.check() if told[0] != "stored.manifest"]
        assert found == ([("stored.foreign", name, None, 0, 77)] if named else []), name
    # Before the begin, and where a manifest is missing.
    world = World(begin=2)
    world.objects[f"{FOLDER}/{object_name(1, OTHER)}"] = 77
    assert world.check() == []
    world = World()
    del world.log.files[1]
    assert [found[0] for found in world.check()] == ["stored.gap"]


def gap(start: int, end: int) -> Told:
    return "stored.gap", json_name(start), None, start * SIZE, end * SIZE


def test_manifests_without_a_neighbour() -> None:
    """Every range that no manifest describes is a gap, unless its first one is damaged, which is
    named itself."""
    for missing in (chosen for count in range(1, 4) for chosen in combinations(range(5), count)):
        for damaged in (False, True):
            world = World(stored=5)
            world.log.files = [manifest_of(file) for file in range(5) if file not in missing]
            if damaged:
                world.log.damaged = [f"{FOLDER}/{json_name(file)}" for file in missing]
            ranges = [
                (start // SIZE, stop // SIZE) for start, stop in spans(*missing) if stop < 5 * SIZE
            ]
            told = [found for found in world.check() if found[0] != "stored.manifest"]
            assert told == ([] if damaged else [gap(*each) for each in ranges]), (missing, damaged)
            assert (
                world.result.not_stored == sorted([*spans(*missing), (5 * SIZE, END)])
                or missing[-1] == 4
            )


def test_manifests_of_another_history() -> None:
    """Each continues the entry, the term and the chain of the one before; the first one those of
    total retention."""
    for key, file in product(("first", "term", "chain"), (1, 3)):
        world = World()
        world.manifest(file, **{key: getattr(manifest_of(file), key) + 1})
        wrong = first_of(file) + (key == "first")
        assert world.check()[0] == ("stored.entries", json_name(file), wrong, 0, 9), key
        assert (
            f"ends with entry {first_of(file) - 1} of term 1" in world.group.findings[0].flaw.proof
        )
    good = {"index": 20, "pos": 2000, "term": 1, "chain": 101}
    for moved in (good, *({**good, key: good[key] + 1} for key in ("index", "term", "chain"))):
        world = World(begin=2)
        world.log.moved = moved
        world.objects[f"{FOLDER}/snapshots/{20:020d}"] = 1
        assert world.check() == (
            [] if moved == good else [("stored.entries", json_name(2), 20, 0, 9)]
        )
    world = World(stored=0)
    world.log.moved = {**good, "pos": 0}
    world.objects[f"{FOLDER}/snapshots/{20:020d}"] = 1
    assert world.check() == []


def test_stored_log_must_reach_the_noted_end_and_every_begin() -> None:
    """It ends no earlier than any replica noted; and no later than where all replicas begin, which
    would be lost."""
    for notes, lost in (({}, 0), ({"n1": 3000}, 0), ({"n1": 2000, "n2": 4000, "n3": 4000}, 4000)):
        world = World(stored=3, notes=notes)
        assert world.check() == ([("stored.older", json_name(3), None, 3000, lost)] if lost else [])
        assert not lost or world.group.findings[0].flaw.proof.startswith(
            "n2, n3 found the log up to position 4000"
        )
    for begins, noted in product(((3, 3, 3), (4, 3, 3), (4, 4, 5)), (0, 4000)):
        notes = {"n2": noted} if noted else {}
        world = World(
            3,
            replicas=[replica_of(f"n{number}", begin) for number, begin in enumerate(begins)],
            notes=notes,
        )
        expected = (
            [("stored.older", json_name(3), None, 3000, 4000)]
            if noted
            else [gap(3, 4)]
            if min(begins) > 3
            else []
        )
        assert world.check() == expected, (begins, noted)


def flaw(rule: str, start: int, end: int, index: int | None = None) -> Flaw:
    return Flaw(rule, "scanned", index, start, end, f"proof of {rule}")


def test_an_object_with_other_bytes() -> None:
    """Where its entries say so, else as a whole; the length alone is no place. Nothing else is
    compared with it."""
    for flaws, index, start, end, more in (
        ((), 10, 0, 1000, ""),
        ((flaw("file.length", 5, 9, 3),), 10, 0, 1000, ""),
        (
            (
                flaw("entry.body", 100, 200),
                flaw("entry.body", 300, 400, 13),
                flaw("tail.zero", 350, 380, 14),
            ),
            13,
            100,
            400,
            "; entry.body: ",
        ),
    ):
        world = World()
        world.report(1).sha256 = OTHER
        world.report(1).last_chain = 7
        world.report(1).flaws = list(flaws)
        assert world.check() == [("stored.digest", object_name(1), index, start, end)]
        assert world.group.findings[0].flaw.proof.endswith(
            f"the manifest says {digest_of(1)[:16]}…" if not more else "proof of entry.body"
        )
        one = world.result
        assert (one.read, one.sealed, one.replicas["n1"]) == (
            spans(0, 1, 2, 3, 4),
            spans(0, 2, 3, 4),
            spans(0, 2, 3, 4),
        )
        assert (one.alone, one.unsealed, len(one.sound), one.entries) == ([], [], 4, 50)
    # One that is shorter is named only once.
    world = World()
    world.report(1).sha256, world.objects[f"{FOLDER}/{object_name(1)}"] = OTHER, 990
    world.report(3).sha256 = OTHER
    assert world.check() == [
        ("stored.digest", object_name(1), 10, 990, 1000),
        of("stored.digest", 3),
    ]


def test_an_object_that_cannot_be_read() -> None:
    """It is in no list of what was compared."""
    world = World()
    world.report(1).flaws = [flaw("entry.body", 1, 2), flaw("file.read", 0, 5)]
    assert world.check() == []
    one = world.result
    assert (one.unread, one.read, one.entries, [task.base // SIZE for task, _ in one.sound]) == (
        spans(1),
        spans(0, 2, 3, 4),
        40,
        [0, 2, 3, 4],
    )


def test_manifest_field_that_differs_from_its_object_is_a_finding() -> None:
    """Every field that is not part of the digest. Other flaws of the right bytes are those of their
    entries."""
    for key in ("first", "last", "end", "last_term", "last_chain", "last_store_ms"):
        world = World(stored=1)
        world.manifest(0, **{key: getattr(manifest_of(0), key) + 1})
        told = [found for found in world.check() if found[0] == "stored.entries"]
        assert told == [("stored.entries", json_name(0), int(key == "first"), 0, 0)], key
        assert world.result.sound == []
    for rule, index, named in (
        ("chain.seed", 10, True), ("entry.chain", 10, True), ("entry.chain", 11, False), ("record.magic", 10, False)
    ):  # fmt: skip
        world = World()
        world.report(1).flaws = [flaw(rule, 3, 4, index)]
        assert world.check() == [
            ("stored.entries", json_name(1), 10, 0, 0) if named else (rule, "scanned", index, 3, 4)
        ]
        assert len(world.result.sound) == (4 if named else 5)
    # What the neighbours already show is told once.
    world = World()
    world.manifest(1, chain=7)
    world.report(1).flaws = [flaw("entry.chain", 0, 40, 10)]
    assert world.check() == [("stored.entries", json_name(1), 10, 0, 9)]


def sealing(world: World, file: int, names: Collection[str], **changes: Any) -> None:
    """These replicas have another seal of a file."""
    for one in world.replicas:
        if one.name in names:
            report = one.reports[file + 1]
            report.seals = [
                (index, json.dumps({**json.loads(body), **changes})) for index, body in report.seals
            ]


def test_a_file_that_a_majority_sealed_otherwise() -> None:
    """Its digest, edges or leaf. A digest that a former manifest of the store had shows an older
    state of the store."""
    for changes, names in product(({"sha256": OTHER}, {"last": 18}, {"end": 7}, {"first": 9}, {"tree": {"root": "00" * 32, "entries": 9}}),
                                  (("n1",), ("n1", "n2"))):  # fmt: skip
        world = World()
        sealing(world, 2, names, **changes)
        assert world.check() == ([of("stored.seal", 2)] if len(names) > 1 else []), (changes, names)
        assert world.result.sealed == spans(*range(5)) and len(world.result.sound) == 6 - len(names)
    for former in (OTHER, digest_of(2), "e" * 64):
        world = World()
        sealing(world, 2, ("n1", "n2", "n3"), sha256=OTHER)
        world.objects[f"{FOLDER}/{object_name(2, former)[:-4]}.former"] = 1
        assert world.check() == [of("stored.seal" if former == "e" * 64 else "stored.older", 2)], (
            former
        )
    world = World()
    sealing(world, 2, ("n1", "n2", "n3"), last=18)
    world.check()
    assert (
        world.group.findings[0].flaw.proof
        == "sealed with entries 20 to 18 up to position 2950; stored 20 to 29 up to 2950"
    )


def test_the_log_tree_outlives_seals() -> None:
    """Its leaf is known of every file since the tree began, by the replicas that most agree. It
    counts where no seal does."""
    for names, wrong in product((("n1",), ("n1", "n2"), ("n1", "n2", "n3")), range(3)):
        world = World(replicas=[replica_of(f"n{number}", 4) for number in (1, 2, 3)])
        for one in world.replicas:
            if one.name in names:
                leaves = [bytes(32) if file == wrong else leaf_of(file) for file in range(3)]
                assert one.snapshot is not None
                one.snapshot["retained"]["tree"]["leaves"] = b64encode(b"".join(leaves)).decode()
        assert world.check() == ([of("stored.seal", wrong)] if len(names) > 1 else []), (
            names,
            wrong,
        )
        assert world.result.sealed == spans(*range(5)) and world.result.alone == spans(*range(4))
    # A file that can be read only in part has another leaf.
    world = World(replicas=[replica_of("n1", 4)])
    world.report(1).root = ""
    assert world.check() == [of("stored.seal", 1)]
    # Two that disagree tell nothing.
    world = World(replicas=[replica_of("n1", 4), replica_of("n2", 4)])
    assert world.replicas[0].snapshot is not None
    world.replicas[0].snapshot["retained"]["tree"]["leaves"] = b64encode(bytes(32) * 3).decode()
    assert world.check() == [] and world.result.unsealed == spans(0, 1, 2)
    assert world.group.reasons[0].startswith(
        "group g1: no seal is known of the stored positions 0 to 3,000;"
    )


def test_files_that_cannot_be_counted_are_not_compared_with_the_tree() -> None:
    """Behind the end of the store, where their seals are trimmed, or not known to a majority; and
    with a gap in the store."""
    world = World(2, replicas=[replica_of(f"n{number}", 5) for number in (1, 2, 3)])
    assert world.check() == [gap(2, 5)] and world.result.unsealed == spans(0, 1)
    world = World(3, compared=None)
    assert (
        world.check() == []
        and world.result.unsealed == spans(0, 1, 2)
        and world.result.sealed_there == []
    )
    world = World(replicas=[replica_of(f"n{number}", 5) for number in (1, 2, 3)])
    del world.log.files[1]
    assert world.check() == [gap(1, 2)] and world.result.unsealed == spans(0, 2, 3)
    for edges, known in (
        ([(30, 29)], False),
        ([(30, 30)], False),
        ([(30, 30), (31, 39)], True),
        ([(30, 40)], False),
    ):
        world = World(3, replicas=[replica_of(f"n{number}", 5) for number in (1, 2, 3)])
        for one in world.replicas:
            assert one.snapshot is not None
            seals = [
                seal_of(3, base=3000 + at, first=first, last=last)
                for at, (first, last) in enumerate(edges)
            ]
            leaves = [leaf_of(0), leaf_of(1), leaf_of(2), *(bytes(32) for _ in edges)]
            tree = {"leaves": b64encode(b"".join(leaves)).decode(), "next": 40}
            one.snapshot["retained"] |= {"seals": seals, "tree": tree}
        assert world.check() == [gap(3, 5)] and world.result.sealed == (
            spans(0, 1, 2) if known else []
        ), edges


def test_replica_with_a_seal_the_others_lack_is_not_outvoted() -> None:
    """One whose last seal the others do not have yet; and a file of one entry, which the trees do
    not reach."""
    others = [replica_of(name, 4, sealed_files=4) for name in ("n2", "n3")]
    world = World(3, replicas=[replica_of("n1", 4), *others], compared=45)
    assert world.check() == [gap(3, 4)] and world.result.sealed == spans(0, 1, 2)
    one = replace(replica_of("n1", 4), reports=[])
    assert one.snapshot is not None
    one.begin = Begin()
    world = World(4, replicas=[one], compared=None)
    world.manifest(3, last=30)
    world.report(3).last_index = world.report(3).last_intact_index = 30
    assert world.check() == [] and (world.result.sealed, world.result.unsealed) == (
        spans(0, 1, 2),
        spans(3),
    )


def test_seals_in_the_store_itself() -> None:
    """They are compared where replicas know nothing. The first record counts."""

    def known(*records: Any, digest: str | None = None) -> tuple[list[Told], StoredResult]:
        world = World(replicas=[replica_of(f"n{number}", 5, tree_from=5) for number in (1, 2, 3)])
        bodies = [record if isinstance(record, str) else json.dumps(record) for record in records]
        world.report(2).seals = [(21 + at, body) for at, body in enumerate(bodies[:2])]
        world.report(3).seals = [(31 + at, body) for at, body in enumerate(bodies[2:])]
        return world.check(), world.result

    good, bad = seal_of(1), seal_of(1, sha256=OTHER)
    for records, named in (
        ([good], False), ([bad], True), ([good, bad], False), ([bad, good], True), ([good, "{"], False), ([bad, "{"], True),
        ([bad, {}], True), (["{", good, bad], False), (["[]", {}, bad, good], True), ([{}, {}, good, bad], False),
    ):  # fmt: skip
        found, one = known(*records)
        assert found == ([of("stored.seal", 1)] if named else []), records
        assert (one.sealed_there, one.unsealed, one.sealed) == (spans(1), spans(0, 2, 3), spans(4))
        assert len(one.sound) == 5 - named
    found, one = known()
    assert (one.sealed_there, one.unsealed) == ([], spans(0, 1, 2, 3))


def trimmed(
    *records: object, index: int = 7, kept: Sequence[object] | None = None, snapshot: Any = "…"
) -> Replica:
    """A replica without a tree, with trim records in its log and in its snapshot."""
    one = replica_of("n1", 5, tree_from=5)
    one.reports[0].trims = [
        (index, record if isinstance(record, str) else json.dumps(record)) for record in records
    ]
    one.snapshot = {"retained": {"trims": kept}} if snapshot == "…" else snapshot
    return one


def test_the_digests_in_trim_records() -> None:
    """Of most replicas, up to the compared index, or in their snapshots. The first record of a
    replica counts."""

    def files(*pairs: object) -> dict[str, object]:
        return {"files": list(pairs)}

    good, bad = files([1000, digest_of(1)]), files([1000, OTHER])

    def told(*replicas: Replica, **more: Any) -> tuple[list[Told], list[tuple[int, int]]]:
        named = [replace(one, name=f"n{number}") for number, one in enumerate(replicas)]
        world = World(4, replicas=named, **more)
        return [found for found in world.check() if found[0] != "stored.gap"], world.result.sealed

    wrong = [of("stored.seal", 1)]
    assert told(trimmed(good)) == ([], spans(1)) and told(trimmed(bad)) == (wrong, spans(1))
    assert told(trimmed(bad, good)) == (wrong, spans(1)) and told(trimmed("{", good, bad)) == (
        [],
        spans(1),
    )
    for index, compared in product((6, 7, 8), (None, 0, 7)):
        assert told(trimmed(bad, index=index), compared=compared)[0] == (
            wrong if compared == 7 and index <= 7 else []
        ), (index, compared)
    assert (
        told(trimmed(bad, index=0), compared=0)[0] == wrong
        and told(trimmed(bad, index=0), compared=None)[0] == []
    )
    assert told(trimmed(kept=[[1, 2, bad]])) == (wrong, spans(1)) and told(
        trimmed(good, kept=[[1, 2, bad]])
    ) == ([], spans(1))
    for junk in ([1, bad], [1, 2, bad, 4], [1, 2, 3], bad, None, [1, 2, {"files": 7}], [1, 2, {}]):
        assert told(trimmed(kept=[junk, [1, 2, bad]])) == (wrong, spans(1)), junk
    for pair in (
        [1000], [1000, OTHER, 3], ["1000", OTHER], [1000, 7], [1000, None], 1000, {}, "10"
    ):  # fmt: skip
        assert (
            told(trimmed(files(pair))) == ([], []) == told(trimmed(kept=[[1, 2, files(pair)]]))
        ), pair
    for snapshot in (
        None,
        {},
        {"retained": None},
        {"retained": []},
        {"retained": {}},
        {"retained": {"trims": {}}},
    ):
        assert told(trimmed(snapshot=snapshot)) == ([], [])
    # Most replicas decide, and of two nobody.
    assert told(trimmed(bad), trimmed(good)) == ([], []) == told(trimmed(), trimmed())
    assert told(trimmed(bad), trimmed(good), trimmed(good)) == ([], spans(1))
    assert told(trimmed(bad), trimmed(good), trimmed(bad)) == (wrong, spans(1))


def test_the_same_file_of_a_replica() -> None:
    """It is another one if its edges are others, or its bytes, if they were read."""
    for key, value in (
        ("first_index", 21),
        ("last_index", 28),
        ("last_chain", 7),
        ("end", 940),
        ("sha256", OTHER),
    ):
        world = World()
        world.replicas[1].reports[2] = report_of(2, "n2", **{key: value})
        assert world.check() == [of("stored.replica", 2)], key
        proof = (
            f"it ends with chain CRC 00000066 and SHA-256 {digest_of(2)[:16]}…, that of n2 with "
        )
        proof += f"{7 if key == 'last_chain' else 102:08x}" + (
            f" and {OTHER[:16]}…" if key == "sha256" else ""
        )
        assert world.group.findings[0].flaw.proof == proof
        assert (
            world.result.replicas == dict.fromkeys(("n1", "n2", "n3"), spans(*range(5)))
            and len(world.result.sound) == 4
        )
    world = World()
    world.replicas[1].reports[2].sha256 = digest_of(2)
    assert world.check() == []


def test_files_of_replicas_that_are_not_compared() -> None:
    """Those that are not complete, or have findings; of a deposed leader, or another history, those
    from there on."""

    def without(change_it: Callable[[World, Replica], None]) -> list[tuple[int, int]]:
        world = World()
        world.replicas[1].reports[2] = report_of(2, "n2", last_chain=7)
        change_it(world, world.replicas[1])
        found = [one for one in world.check() if one[0].startswith("stored.")]
        compared = world.result.replicas.get("n2", [])
        assert found == (
            [of("stored.replica", 2)] if any(start <= 2000 < end for start, end in compared) else []
        )
        assert (
            world.result.replicas["n1"] == world.result.replicas["n3"] == spans(*range(5))
            and world.result.alone == []
        )
        return compared

    assert without(lambda world, one: setattr(one.reports[2], "ending", "zero")) == spans(
        0, 1, 3, 4
    )
    assert without(lambda world, one: setattr(one, "stale_from", 29)) == spans(0, 1)
    assert without(lambda world, one: setattr(one, "stale_from", 30)) == spans(0, 1, 2)
    assert without(lambda world, one: world.group.divergent.update(n2=29)) == spans(0, 1)
    assert without(lambda world, one: world.group.divergent.update(n2=30)) == spans(0, 1, 2)
    assert without(lambda world, one: world.group.divergent.update(n1=1000)) == spans(*range(5))


@pytest.mark.parametrize(
    ("name", "file", "hurt"), [("n2", 2, True), ("n2", 1, False), ("n1", 2, False)]
)
def test_a_file_with_a_finding_is_no_measure(name: str, file: int, hurt: bool) -> None:
    """Only the file of the replica with the finding."""
    world = World()
    world.replicas[1].reports[2] = report_of(2, "n2", last_chain=7)
    place = f"g1/dledger-n2/data/{file * SIZE:020d}"
    world.group.findings.append(
        Finding("bit-rot", name, "g1", Flaw("entry.body", place, 1, 0, 1, ""))
    )
    world.group.findings.append(
        Finding("bit-rot", "n9", "g1", Flaw("entry.body", "elsewhere", 1, 0, 1, ""))
    )
    check_store(world.group, world.logs, world.reports, {}, "s3://b")
    told = [f.flaw.file for f in world.group.findings if f.flaw.rule == "stored.replica"]
    assert told == ([] if hurt else [f"{FOLDER}/{object_name(2)}"])


def test_files_on_no_replica_are_alone() -> None:
    world = World(replicas=[replica_of("n1", 2), replica_of("n2", 3)])
    assert world.check() == [] and world.result.alone == spans(0, 1)
    assert world.result.replicas == {"n1": spans(2, 3, 4), "n2": spans(3, 4)}
    for stored in (0, 5):
        empty = World(stored, replicas=[replace(replica_of("n1"), reports=[])], compared=None)
        assert empty.check() == []
        assert (empty.result.alone, empty.result.not_stored, empty.result.replicas) == (
            spans(*range(stored)),
            [],
            {},
        )
    del empty.log.files[0]
    empty.group.stored.clear()
    assert empty.check() == [gap(0, 1)] and empty.result.not_stored == []
    lagging = replace(replica_of("n2"), reports=replica_of("n2").reports[:2])
    for replicas in ([lagging, replica_of("n1")], [replica_of("n1"), lagging]):
        world = World(4, replicas=replicas)
        assert world.check() == [] and world.result.not_stored == [(4 * SIZE, END)]


def test_a_log_that_replicas_and_store_have_in_part() -> None:
    """What the store lacks of the replicas' logs, in every combination: before, between and behind
    its files."""
    for there in (chosen for count in range(6) for chosen in combinations(range(5), count)):
        for begin in range(2):
            world = World(stored=5, replicas=[replica_of("n1", begin), replica_of("n2", begin + 1)])
            world.log.files = [manifest_of(file) for file in there]
            world.check()
            lacking = spans(*(file for file in range(begin, FILES) if file not in there))
            assert world.result.not_stored == [*lacking[:-1], (lacking[-1][0], END)], (there, begin)


# ----------------------------------------------------------------------------------------------------------- notes, text


def test_notes_of_replicas(tmp_path: Path) -> None:
    """Of this log in this store, whatever address it is reached by. One that cannot be read is a
    flaw."""
    access = StoreAccess("s3://bucket/p/", "http://here:1")
    good = {"v": 1, "log_id": LOG, "place": "s3://bucket/p at http://there:2", "verified_pos": 4000}
    cases: list[tuple[object, int | None]] = [
        (good, 4000),
        ({**good, "place": "s3://bucket/p"}, 4000),
        ({**good, "place": "s3://bucket/q at http://here:1"}, None),
        ({**good, "log_id": "another"}, None),
        ({**good, "verified_pos": "4000"}, None),
        ({key: good[key] for key in good if key != "verified_pos"}, None),
        ({}, None),
        (None, None),
        ("a folder", None),
        (good, 4000),
    ]
    replicas = []
    for number, (value, _) in enumerate(cases):
        one = replace(replica_of(f"n{number}"), root=str(tmp_path / str(number) / "g1"))
        path = Path(one.root) / NOTE
        path.parent.mkdir(parents=True)
        if value == "a folder":
            path.mkdir()
        elif value is not None:
            path.write_bytes(sealed(value))  # type: ignore[arg-type]
        replicas.append(one)
    assert notes_of(replicas, access) == {
        f"n{number}": pos for number, (_, pos) in enumerate(cases) if pos is not None
    }
    flaws = [(one.name, flaw.rule, flaw.file) for one in replicas for flaw in one.flaws]
    assert flaws == [("n8", "file.read", "g1/state/tiered")]


def test_store_report_states_its_lists_and_file_counts() -> None:
    """Each list that is not empty, and how many files there are."""
    assert spans_text([(0, 1000), (2000, 1234567)]) == "0 to 1,000, 2,000 to 1,234,567"
    assert lines_of(StoredResult("s3://b", LOG)) == ["0 files, no entry"]
    one = StoredResult(
        "s3://b", LOG, 1, 10, 0, 1009, read=[(0, 1000)], replicas={"n2": [(0, 5)]}, alone=[(7, 8)]
    )
    assert lines_of(one) == [
        "1 file, entries 0 to 1,009",
        (
            "read to the last byte, compared with the manifests, every entry verified: positions 0"
            " to 1,000"
        ),
        "compared with the files of n2: positions 0 to 5",
        "never compared with a replica, because none has it any more: positions 7 to 8",
    ]
    told: Any = as_object("g1", one)
    assert (told["group"], told["place"], told["log_id"], told["entries"]) == (
        "g1",
        "s3://b",
        LOG,
        10,
    )
    assert (told["compared"]["manifests"], told["never_compared"]["without_replica"]) == (
        [(0, 1000)],
        [(7, 8)],
    )
