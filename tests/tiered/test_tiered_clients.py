"""The files of clients against a log whose older part is in the object store only: moving files
there changes no finding and no count."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from ledgermq.audit.reading import objects
from ledgermq.audit.reading.node_paths import NODE, STORE
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.remote import Access
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.run.jobs import Audit, audit, judge
from ledgermq.audit.run.works import Work
from ledgermq.audit.spark.task_access import TaskAccess
from ledgermq.proto.signature import Credentials
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import begins, manifests
from ledgermq.storage.tiered.begins import begin_key, snapshot_key
from ledgermq.storage.tiered.controller_files import ControllerFiles, pack
from ledgermq.storage.tiered.manifests import FileManifest, StoredLog
from tests.audit.client_cases import FIFO, Clients, write_clients
from tests.audit.damage_cases import CREATED, flip
from tests.audit.log_writer import CLUSTER, Message, Placed, Writer, sealed
from tests.audit.running_nodes import signed_in
from tests.audit.test_audit_clients import LIES, everything, rules, said
from tests.tiered.fake_store import FakeStore
from tests.tiered.s3_servers import SECRET, write_credentials
from tests.tiered.stored_objects import URL, serve

pytest.importorskip("pyarrow")
from ledgermq.audit.clients.joining import join_here
from ledgermq.audit.clients.logged_messages import Slice
from ledgermq.audit.clients.outcome import ClientFiles, check_clients

FILES = 2
"""Files of 8 KiB that only the store holds. The log has some more."""


def manifest_of(writer: Writer, file: int) -> FileManifest:
    entries = [entry for entry in writer.entries if entry.pos // writer.data_bytes == file]
    first, last, before = (
        entries[0],
        entries[-1],
        writer.entries[entries[0].index - 1] if entries[0].index else None,
    )
    link = (0, writer.seed) if before is None else (before.term, before.chain)
    base, size = file * writer.data_bytes, writer.data_bytes
    digest = file_digest(
        RealDisk(), str(writer.log / "data" / file_name(base)), lambda length: None
    )
    edges = (
        first.index,
        last.index,
        last.pos + last.size,
        *link,
        last.term,
        last.chain,
        last.message.time,
    )
    return FileManifest(writer.log_id, base, size, *edges, digest)


class Case:
    """Clients whose log had its first files moved to a store. `whole`: what the audit said
    before."""

    def __init__(self, clients: Clients, store_files: int = FILES + 1) -> None:
        self.clients, self.store, writer = clients, FakeStore(), clients.writers[0]
        self.whole = said(clients)
        clients.groups = None
        self.where = manifests.folder(writer.group, writer.log_id)
        sizes = writer.data_bytes, writer.index_bytes, writer.queue_bytes
        about = StoredLog(
            CLUSTER, writer.group, writer.log_id, CREATED, *sizes, Begin(0, 0, 0, writer.seed)
        )
        self.store.objects[f"{self.where}/log.json"] = manifests.encode(about)
        self.store.objects[manifests.controller_key("n1")] = pack(
            ControllerFiles(CLUSTER, "n1", CREATED, {"journal": b"definitions"})
        )
        self.files = [manifest_of(writer, number) for number in range(store_files)]
        for held in self.files:
            path = writer.log / "data" / file_name(held.base)
            self.store.objects[manifests.manifest_key(self.where, held.base)] = manifests.encode(
                held
            )
            self.store.objects[self.key(held)] = path.read_bytes()
        for one in clients.writers:
            one.decide(FILES)
            one.trim(FILES)
            one.trim_queues(FILES)
            path = one.root / "state/snapshot"
            snapshot = json.loads(path.read_bytes())
            del snapshot["crc32c"]
            # Which files a majority had sealed with which digests.
            record = {"begin": 0, "files": [[held.base, held.sha256] for held in self.files]}
            snapshot["retained"]["trims"] = [[0, 0, record]]
            path.write_bytes(sealed(snapshot))

    def key(self, held: FileManifest) -> str:
        return manifests.object_key(self.where, held.base, held.sha256)

    @property
    def below(self) -> list[Placed]:
        """The clients' messages that only the store holds."""
        return [
            entry
            for entry in self.clients.writers[0].entries[: self.files[FILES].first]
            if entry.message.key
        ]

    def access(self, patch: pytest.MonkeyPatch) -> StoreAccess:
        return serve(patch, self.store)

    @property
    def given(self) -> ClientFiles:
        return ClientFiles.find(*([path] for path in self.clients.write()))

    def said(self, patch: pytest.MonkeyPatch) -> Audit:
        given = self.given
        return audit(
            self.clients.directories,
            clients=lambda groups: check_clients(groups, given, join_here),
            store=self.access(patch),
        )

    def fresh(self) -> Case:
        """The same directories, with a store and clients' files of its own."""
        found = copy.copy(self)
        found.store = FakeStore()
        found.store.objects = dict(self.store.objects)
        claims = copy.deepcopy((self.clients.receipts, self.clients.deliveries))
        found.clients = replace(self.clients, receipts=claims[0], deliveries=claims[1])
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(write_clients(tmp_path_factory.mktemp("clients")))


@pytest.fixture
def case(made: Case) -> Case:
    return made.fresh()


def counts(told: Audit) -> dict[str, int]:
    assert told.clients is not None
    found: Any = told.clients.as_json()["messages"]
    return {what: count for what, count in found.items() if count}


def client_side(told: Audit) -> tuple[Any, Any]:
    """What was found about the clients."""
    value = everything(told)
    return value["clients"], [
        finding for finding in value["findings"] if finding["rule"].startswith("client.")
    ]


def test_true_claims_pass_wherever_the_files_are(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same counts in the same windows as from local files; one file lies in both places and
    counts once. Without the store, what only it holds is trimmed."""
    told = case.said(monkeypatch)
    assert (told.verdict, told.findings, told.reasons) == ("PASS", [], []), told.reasons
    assert (
        client_side(told) == client_side(case.whole)
        and counts(told)["stored"] > len(case.below) > 10
    )
    assert (
        told.groups[0].stored[0].alone == [(0, FILES * 8192)]
        and "n1" in told.groups[0].stored[0].replicas
    )
    alone = said(case.clients)
    natives = sum(entry.message.flag > 0 for entry in case.below)
    assert (
        counts(alone)["trimmed"] == len(case.below) + natives
        and counts(alone)["stored"] < counts(told)["stored"]
    )


def test_lies_about_stored_files_are_found_as_those_about_local_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts that lie in each field, of lost and foreign messages; deliveries of what is not
    there, and after an acknowledgement."""
    clients = write_clients(tmp_path, leave_out=2, twice=4)
    for at, lie in enumerate(LIES):
        LIES[lie](clients.receipts[at % 7])
    clients.receipts[8]["first_sequence"] += 1_000_000
    row = clients.deliveries[5]
    clients.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
    clients.deliveries[8]["message_id"] = "order-99"
    case = Case(clients)
    told = case.said(monkeypatch)
    assert client_side(told) == client_side(case.whole)
    assert {
        "client.lost",
        "client.twice",
        "client.receipt",
        "client.phantom",
        "client.redelivered",
    } <= rules(told).keys()


@pytest.mark.verify
def test_a_reset_that_only_the_store_holds_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator moved the consumer group, so that its redeliveries were wanted, also after the
    record went from the disks."""
    body = json.dumps(
        {"g": "billing", "t": FIFO, "q": [[0, 0]], "v": 1}, sort_keys=True, separators=(",", ":")
    ).encode()
    reset = Message("rmq_sys_ledgermq_delivery", body, tag="reset", time=CREATED + 9000)
    bulk = [Message("late", bytes(4000), 0, "", f"late-{at}", 0, CREATED + 9001) for at in range(6)]
    clients = write_clients(tmp_path, more=[reset, *bulk])
    row = next(row for row in clients.deliveries if row["topic"] == FIFO)
    clients.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
    monkeypatch.setattr(
        f"{__name__}.FILES",
        next(e.pos for e in clients.writers[0].entries if e.message is bulk[1]) // 8192,
    )
    case = Case(clients, FILES + 1)
    assert (
        next(e.index for e in clients.writers[0].entries if e.message is reset)
        < case.files[FILES].first
    )
    told = case.said(monkeypatch)
    assert (told.verdict, told.findings) == ("PASS", []) and client_side(told) == client_side(
        case.whole
    )


def test_stored_begin_counts_as_a_trim_for_client_records(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store begins with its second file: what was before it is gone, as recorded, and
    everything from there on is compared."""
    second = case.files[1]
    case.store.objects[begin_key(case.where, second.base)] = begins.encode(
        Begin(second.first, second.base, second.term, second.chain)
    )
    case.store.objects[snapshot_key(case.where, second.first)] = b"?"
    del case.store.objects[case.key(case.files[0])]
    del case.clients.deliveries[0]["offset"]
    told = case.said(monkeypatch)
    gone = [entry for entry in case.below if entry.index < second.first]
    natives = sum(entry.message.flag > 0 for entry in gone)
    assert (told.findings, told.reasons) == ([], [])
    assert counts(told)["trimmed"] == len(gone) + natives and counts(told)["stored"] == counts(
        case.whole
    )["stored"] - len(gone)
    case.clients.deliveries[-1] |= {"message_id": "never", "offset": 10**6}
    row = next(
        row
        for row in case.clients.deliveries
        if row["message_id"] == next(e.message.key for e in case.below if e not in gone)
    )
    row["message_id"] = "never"
    assert rules(case.said(monkeypatch)) == {"client.phantom": 2}


def refuse(*_: Any, **__: Any) -> Any:
    raise GenericError("the store is away")


@pytest.mark.parametrize("harm", ["gone", "byte", "manifest", "refused", "away"])
def test_client_records_of_a_lacking_file_are_incomplete(
    harm: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts and deliveries of such a file cannot be judged, which never is a PASS; those of all
    others are."""
    hurt = case.files[1]
    key, first = case.key(hurt), 0 if harm == "away" else hurt.first
    data, plain = case.store.objects[key], obstore.get_range
    if harm == "gone":
        del case.store.objects[key]
    elif harm == "byte":
        case.store.objects[key] = data[:200] + bytes([data[200] ^ 1]) + data[201:]
    elif harm == "manifest":
        fields = {**asdict(hurt), "chain": hurt.chain ^ 1}
        case.store.objects[manifests.manifest_key(case.where, hurt.base)] = manifests.encode(
            FileManifest(**fields)
        )
    elif harm == "refused":
        monkeypatch.setattr(
            obstore,
            "get_range",
            lambda store, name, **more: (refuse if name == key else plain)(store, name, **more),
        )
    else:
        monkeypatch.setattr(obstore, "list", refuse)
    told = case.said(monkeypatch)
    assert told.verdict == ("INCOMPLETE" if harm in ("refused", "away") else "FAIL"), told.reasons
    assert not [rule for rule in rules(told) if rule.startswith("client.")]
    lacking = [entry for entry in case.below if entry.index >= first]
    natives = sum(entry.message.flag > 0 for entry in lacking)
    assert counts(told)["unreadable"] == len(lacking) + natives and "trimmed" not in counts(told)
    assert counts(told)["stored"] == counts(case.whole)["stored"] - len(lacking)
    assert any(
        "neither a replica nor the object store holds intact" in reason for reason in told.reasons
    )


@pytest.mark.verify
def test_the_store_stands_in_for_damage_on_every_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that lies in both places is read where it is intact."""
    case = Case(write_clients(tmp_path))
    entry = next(
        e
        for e in case.clients.writers[0].entries
        if e.index > case.files[FILES].first and e.message.flag
    )
    for writer in case.clients.writers:
        flip(writer.log / "data" / file_name(entry.pos // 8192 * 8192), entry.pos % 8192 + 150)
    told = case.said(monkeypatch)
    assert told.verdict == "FAIL" and client_side(told) == client_side(case.whole)


@pytest.mark.parametrize("harm", ["gone", "refused"])
def test_a_file_that_cannot_be_read_again_is_a_reason(
    harm: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Total retention may remove it after it was audited, or the store fails: the clients' files
    were not compared."""
    groups = audit(case.clients.directories, store=case.access(monkeypatch)).groups
    if harm == "gone":
        del case.store.objects[case.key(case.files[0])]
        objects.use(case.access(monkeypatch))
    else:
        monkeypatch.setattr(obstore, "get_range", refuse)
    told = judge(groups, [], 0, check_clients(groups, case.given, join_here))
    assert (told.verdict, told.findings) == ("INCOMPLETE", [])
    assert any("could not be read again" in reason for reason in told.reasons)


def test_tasks_get_only_the_credentials_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the nodes, of the store, or none; with the content of files that other machines do
    not have."""
    keys = write_credentials(tmp_path / "keys")
    monkeypatch.setattr(objects._process, "access", StoreAccess(URL, credentials=str(keys)))
    file = LogFile("", "g1", "n1", "", "", "0", 8192, 1024, 200)
    local, node, stored = (
        Slice(replace(file, root=root), 7).to_json()
        for root in ("/data/g1", f"{NODE}10.0.0.1:8081/g1", f"{STORE}g1")
    )
    with signed_in(Access(Credentials("user", "secret"))):
        found = [
            TaskAccess.of(works)
            for works in ([local], [local, node], [stored, local], [node, stored])
        ]
    assert [(one.nodes is not None, one.store is not None) for one in found] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    assert found[3].nodes is not None and found[3].nodes.credentials == Credentials(
        "user", "secret"
    )
    keys.unlink()
    assert found[3].store is not None and dict(found[3].store.keys)["secret_access_key"] == SECRET
    assert (
        TaskAccess.of([Work("", replace(file, root=f"{NODE}10.0.0.1:8081/g1")).to_json()]).nodes
        is not None
    )
