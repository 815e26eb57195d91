"""The audit of a store: every object is compared with its manifest, the seals and the replicas;
what is wrong has a name and a range."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from ledgermq.audit.checks.group import StoredResult
from ledgermq.audit.checks.stored_objects import as_object, lines_of
from ledgermq.audit.cli.report import as_text
from ledgermq.audit.reading import objects, stored_logs
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.run import jobs
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.cli import run
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import begins
from ledgermq.storage.tiered.begins import begin_key, snapshot_key
from tests.tiered.stored_objects import URL, Case, Stored, in_memory, serve
from tests.tiered.test_tiered_carrying import SIZE


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("stored"))


@pytest.fixture
def case(made: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(made, tmp_path, monkeypatch)


def stored_of(result: Audit) -> StoredResult:
    return result.groups[0].stored[0]


def test_intact_store_passes_and_states_the_compared_ranges(case: Case) -> None:
    """Everything with manifests and with what the replica recorded; with its files what it still
    has; its tail is not in the store."""
    result = case.audit()
    assert (result.findings, result.reasons) == ([], []), as_text(result)
    stored = stored_of(result)
    assert stored.files == case.end // SIZE and case.begin == 2 * SIZE
    assert stored.read == stored.sealed == [(0, case.end)]
    assert stored.replicas == {"n1": [(case.begin, case.end)]} and stored.alone == [(0, case.begin)]
    assert (stored.unread, stored.unsealed, stored.sealed_there) == ([], [], [])
    assert stored.not_stored and stored.not_stored[0][0] == case.end
    assert (
        "    never compared with a replica, because none has it any more: positions 0 to"
        f" {case.begin:,}" in as_text(result).splitlines()
    )
    assert as_object("g1", stored)["compared"] == {  # type: ignore[comparison-overlap]
        "manifests": [(0, case.end)],
        "recorded_by_replicas": [(0, case.end)],
        "seals_in_store": [],
        "replicas": {"n1": [(case.begin, case.end)]},
    }
    assert result.bytes_read > case.end and lines_of(stored)[0].startswith(
        f"{stored.files} files, entries 0 to "
    )
    assert case.found(deep=True) == []


def test_unknown_objects_and_keys_are_no_finding(case: Case) -> None:
    """Later versions may store more beside the files, and say more of them."""
    case.change(case.key(".json", 0), parts=7)
    case.store.objects[f"g1/{case.log_id}/{file_name(0)}.index"] = b"?"
    case.store.objects["elsewhere/readme.txt"] = b"?"
    assert case.found() == []


def begin_behind_the_first_file(case: Case, **changes: int) -> str:
    """Let the log begin with its second file, as total retention does before it removes the first;
    returns the key of the begin."""
    second = sealed_json.decode(case.store.objects[case.key(".json", SIZE)], "manifest")
    key = begin_key(f"g1/{case.log_id}", SIZE)
    begin = Begin(second["first"], SIZE, second["term"], second["chain"])
    case.store.objects[key] = begins.encode(replace(begin, **changes))
    case.store.objects[snapshot_key(f"g1/{case.log_id}", second["first"])] = b"?"
    return key


@pytest.mark.parametrize("removed", [(), (".json",), (".json", ".log")])
def test_files_before_the_stored_begin_are_no_finding(case: Case, removed: tuple[str, ...]) -> None:
    """From the begin on everything is compared; what is before it may be there in part, or not at
    all."""
    begin_behind_the_first_file(case)
    for ending in removed:
        del case.store.objects[case.key(ending, 0)]
    assert case.found() == []
    assert stored_of(case.audit()).read == [(SIZE, case.end)]


def test_total_retention_during_the_audit_is_no_finding(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any request: it notes the begin and the snapshot, and then removes the manifest and
    the file."""
    store = in_memory(case.store)
    before = dict(case.store.objects)
    gone = [case.key(ending, 0) for ending in (".json", ".log")]
    begin_behind_the_first_file(case)
    after = dict(case.store.objects)
    requests, turn = 0, -1
    asked = objects._asked

    def ask(key: str, request: Callable[[Any], Any]) -> Any:
        nonlocal requests
        if requests == turn:
            for name in after.keys() - before.keys():
                obstore.put(store, name, after[name])
            obstore.delete(store, gone)
        requests += 1
        return asked(key, request)

    monkeypatch.setattr(objects, "_asked", ask)
    monkeypatch.setattr(StoreAccess, "open", lambda self: store)
    monkeypatch.setattr(stored_logs, "AT_ONCE", 1)
    read = set()
    while turn <= requests:
        for name, data in before.items():
            obstore.put(store, name, data)
        obstore.delete(store, [name for name in after if name not in before])
        monkeypatch.setattr(objects._process, "access", None)
        requests, turn = 0, turn + 1
        result = audit([str(case.directory)], store=StoreAccess(URL))
        assert (result.findings, result.reasons) == ([], []), (turn, as_text(result))
        read.add(stored_of(result).read[0][0])
        assert stored_of(result).unread == []
    assert read == {0, SIZE}


def test_an_object_that_vanishes_during_the_audit_is_missing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the store says that it might go."""
    store = in_memory(case.store)
    monkeypatch.setattr(StoreAccess, "open", lambda self: store)
    monkeypatch.setattr(objects._process, "access", None)
    scanned = jobs.scan_store

    def scan(*given: Any) -> None:
        obstore.delete(store, case.key(".log", SIZE))
        scanned(*given)

    monkeypatch.setattr(jobs, "scan_store", scan)
    assert [
        finding.flaw.rule
        for finding in audit([str(case.directory)], store=StoreAccess(URL)).findings
    ] == ["stored.missing"]


def test_snapshot_that_does_not_cover_removed_files_is_missing(case: Case) -> None:
    """One before the begin, and one behind the last file."""
    begin_behind_the_first_file(case)
    where = f"g1/{case.log_id}"
    [covering] = [key for key in case.store.objects if "/snapshots/" in key]
    del case.store.objects[covering]
    for index in (0, 10**9):
        case.store.objects[snapshot_key(where, index)] = b"?"
    assert [rule for rule, *_ in case.found()] == ["stored.missing"]


def test_a_begin_that_does_not_fit_is_named(case: Case) -> None:
    """One of another history, and a damaged one."""
    key = begin_behind_the_first_file(case, chain=7)
    assert case.found() == [
        (
            "stored.entries",
            f"{file_name(SIZE)}.json",
            0,
            len(case.store.objects[case.key(".json", SIZE)]),
        )
    ]
    case.flip(key, 9)
    assert ("stored.manifest", file_name(SIZE), 0, len(case.store.objects[key])) in case.found()


@pytest.mark.parametrize("base", [0, 2 * SIZE])
def test_a_changed_byte_is_named(case: Case, base: int) -> None:
    """In an entry, the entry; behind the entries, the file's filler."""
    key = case.key(".log", base)
    case.flip(key, 9000)
    [(rule, file, start, end)] = case.found()
    assert (rule, file) == (
        "stored.digest",
        key.rpartition("/")[2],
    ) and start <= 9000 < end <= 9000 + 5000
    case.flip(key, 9000)
    case.flip(key, SIZE - 1)
    [(rule, file, start, end)] = case.found()
    assert (rule, end) == ("stored.digest", SIZE) and start > SIZE - 5000


def test_missing_stored_objects_are_named(case: Case) -> None:
    """An object, a manifest in the middle, a shorter object, a description, and the whole log."""
    key = case.key(".log", SIZE)
    data = case.store.objects.pop(key)
    assert case.found() == [("stored.missing", key.rpartition("/")[2], 0, SIZE)]
    assert stored_of(case.audit()).unread == [(SIZE, 2 * SIZE)]
    case.store.objects[key] = data[:-100]
    assert case.found() == [("stored.digest", key.rpartition("/")[2], SIZE - 100, SIZE)]
    case.store.objects[key] = data
    manifest = case.store.objects.pop(case.key(".json", SIZE))
    assert case.found() == [("stored.gap", f"{file_name(SIZE)}.json", SIZE, 2 * SIZE)]
    case.store.objects[f"g1/{case.log_id}/{file_name(SIZE)}.json"] = manifest
    del case.store.objects[f"g1/{case.log_id}/log.json"]
    assert case.found() == [("stored.missing", "log.json", 0, 0)]
    case.store.objects.clear()
    assert case.found() == [("stored.older", case.log_id, 0, case.end)]
    assert "the store holds nothing of its log" in " ".join(case.audit().reasons)


def test_rolled_back_store_is_older_than_the_notes_of_replicas(case: Case) -> None:
    """The last file is gone, with its manifest; without the node's note nobody knows, and without
    the local files too it is a gap."""
    last = case.end - SIZE
    for ending in (".log", ".json"):
        del case.store.objects[case.key(ending, last)]
    assert case.found() == [("stored.older", f"{file_name(last)}.json", last, case.end)]
    (case.directory / "g1/state/tiered").unlink()
    assert case.found() == []
    for base in range(SIZE, last, SIZE):
        for ending in (".log", ".json"):
            del case.store.objects[case.key(ending, base)]
    assert case.found() == [("stored.gap", f"{file_name(SIZE)}.json", SIZE, case.begin)]


@pytest.mark.parametrize(
    "field", ["term", "chain", "first", "last", "last_term", "last_chain", "last_store_ms"]
)
def test_a_manifest_that_lies_about_its_file_is_named(case: Case, field: str) -> None:
    """At both ends; the file itself has its digest."""
    key = case.key(".json", SIZE)
    value = sealed_json.decode(case.store.objects[key], key)[field]
    case.change(key, **{field: value + 1})
    found = case.found()
    assert found and {rule for rule, *_ in found} <= {"stored.entries", "stored.seal"}, found
    assert any(rule == "stored.entries" for rule, *_ in found)


@pytest.mark.parametrize(
    "wrong",
    ["checksum", "version", "field", "other file", "digests", "row", "rows short", "rows gone"],
)
def test_a_wrong_index_part_is_named(case: Case, wrong: str) -> None:
    """Head and rows, of a file that no disk holds any more; a reader would make it again."""
    head, rows = case.key(".index", SIZE), case.key(".rows", SIZE)
    size, blocks = (
        len(case.store.objects[rows]),
        sealed_json.decode(case.store.objects[head], head)["blocks"],
    )
    if wrong == "checksum":
        case.flip(head, 40)
    elif wrong == "other file":
        case.store.objects[head] = case.store.objects[case.key(".index", 0)]
    elif wrong == "row":
        case.flip(rows, size - 3)
    elif wrong == "rows gone":
        del case.store.objects[rows]
    elif wrong == "rows short":
        case.store.objects[rows] = case.store.objects[rows][:-1]
    else:
        case.change(
            head,
            **{
                "version": {"v": 2},
                "field": {"rows": "many"},
                "digests": {"blocks": blocks + "00" * 32},
            }[wrong],
        )
    key = rows if wrong.startswith("row") else head
    length = len(case.store.objects[head]) if key == head else size
    assert case.found() == [("stored.index", key.rpartition("/")[2], 0, length)]


def test_file_without_index_parts_is_no_finding(case: Case) -> None:
    for ending in (".index", ".rows"):
        del case.store.objects[case.key(ending, SIZE)]
    assert case.found() == []


def test_definitions_that_are_damaged_or_missing_are_named(case: Case) -> None:
    """What a node stored, also beside intact objects of others; and nothing of this cluster at all.
    Foreign objects do not count."""
    [key] = case.store.keys("n1.json")
    whole = case.store.objects[key]
    case.store.objects["controller/n2.json"] = whole[:-1]
    assert case.found() == [("stored.definitions", "n2.json", 0, len(whole) - 1)]
    del case.store.objects["controller/n2.json"]
    case.store.objects |= {
        "controller/old/n9.json": b"",
        "controller/README": b"",
        "controller": b"",
    }
    assert case.found() == []
    case.change(key, files={"journal": "bm8="})
    assert case.found() == [
        ("stored.definitions", "n1.json", 0, len(case.store.objects[key])),
        ("stored.definitions", "controller", 0, 0),
    ]
    case.store.objects[key] = whole
    case.change(key, cluster_id="another")
    assert case.found() == [("stored.definitions", "controller", 0, 0)]


def test_a_damaged_manifest_is_named(case: Case) -> None:
    key = case.key(".json", SIZE)
    case.store.objects[key] = case.store.objects[key].replace(b'"size"', b'"sise"')
    assert (
        "stored.manifest",
        f"{file_name(SIZE)}.json",
        0,
        len(case.store.objects[key]),
    ) in case.found()


def test_a_consistently_rewritten_store_is_found_by_the_log_tree(case: Case) -> None:
    """Object, digest and manifest of a file that no replica has any more fit each other; the trim
    records are gone too. The leaf that the replica's log tree keeps of its entries says that a
    majority stored something else."""
    snapshots = [case.directory / "g1/state" / name for name in ("snapshot", "snapshot.previous")]
    for path in snapshots:
        value = sealed_json.decode(path.read_bytes(), "")
        value["retained"]["trims"] = []
        path.write_bytes(sealed_json.encode(value))
    assert [f for f in case.audit().findings if f.flaw.rule.startswith("stored.")] == []
    for path in snapshots:
        value = sealed_json.decode(path.read_bytes(), "")
        tree = value["retained"]["tree"]
        leaves = base64.b64decode(tree["leaves"])
        tree["leaves"] = base64.b64encode(bytes([leaves[0] ^ 1]) + leaves[1:]).decode()
        path.write_bytes(sealed_json.encode(value))
    told = [f for f in case.audit().findings if f.flaw.rule.startswith("stored.")]
    assert [(f.flaw.rule, f.flaw.index) for f in told] == [
        ("stored.seal", 0)
    ] and "another leaf stands there" in told[0].flaw.proof


def test_a_file_that_differs_from_the_replicas_is_named(case: Case) -> None:
    """A local file with other bytes behind its last entry is the replica's finding, and no reason
    to blame the store."""
    path = next((case.directory / "g1").glob(f"dledger-*/data/{file_name(case.begin)}"))
    with path.open("r+b") as file:
        file.seek(9000)
        byte = file.read(1)
        file.seek(9000)
        file.write(bytes([byte[0] ^ 1]))
    result = case.audit()
    assert {finding.replica for finding in result.findings} == {"n1"}
    assert stored_of(result).replicas == {"n1": [(case.begin + SIZE, case.end)]}


def test_a_store_that_does_not_answer_makes_the_audit_incomplete(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure says nothing about the bytes: no finding."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise GenericError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "list", refuse)
        result = case.audit()
        assert result.verdict == "INCOMPLETE" and result.findings == []
        assert any(
            "could not be read (the store is away); check address" in reason
            for reason in result.reasons
        )
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "get_range", refuse)
        result = case.audit()
        assert (
            result.findings == []
            and stored_of(result).read == []
            and stored_of(result).unread == [(0, case.end)]
        )
        assert any("the store is away" in reason for reason in result.reasons)


def test_every_object_is_fetched_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan, the digest and the tree need one pass, and index parts one: what the audit costs is
    what it reads."""
    fetched: dict[str, list[int]] = {".log": [], ".rows": []}
    plain: Callable[..., Any] = obstore.get_range

    def counted(store: Any, key: str, *, start: int, length: int) -> Any:
        fetched[key[key.rindex(".") :]].append(length)
        return plain(store, key, start=start, length=length)

    monkeypatch.setattr(obstore, "get_range", counted)
    case.audit()
    assert (len(fetched[".log"]), sum(fetched[".log"])) == (case.end // SIZE, case.end)
    assert sorted(fetched[".rows"]) == sorted(
        len(case.store.objects[key]) for key in case.store.keys(".rows")
    )


def test_the_command_names_the_store(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in objects.ENVIRONMENT.values():
        monkeypatch.setenv(name, "")
    serve(monkeypatch, case.store)
    words = ["audit", str(case.directory), "--engine", "local", "--store", "s3://fake/log"]
    assert run([*words, "--json"]) == 0
    [stored] = json.loads(capsys.readouterr().out)["stored"]
    assert stored["compared"]["manifests"] == [[0, case.end]] and stored["place"] == "s3://fake/log"
    assert run(["audit", str(case.directory), "--store-endpoint", "http://x"]) == 64
    assert run([*words, "--agreement"]) == 64


def _digest(data: bytes) -> str:
    whole = hashlib.sha256()
    for at in range(0, len(data), 1 << 20):
        whole.update(hashlib.sha256(data[at : at + (1 << 20)]).digest())
    return whole.hexdigest()
