"""The linked manifests: what the store says counts only if it continues this node's own log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered import catalogue, manifests
from ledgermq.storage.tiered.catalogue import Catalogue
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import StoreFailure
from ledgermq.storage.tiered.transfer import WrongObject
from tests.tiered.fake_store import FakeStore
from tests.tiered.stored_log import FILES, SIZE, StoredLog, make_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> StoredLog:
    return make_log(tmp_path_factory.mktemp("log"))


def _begin_of(file: FileManifest) -> Begin:
    return Begin(file.first, file.base, file.term, file.chain)


class Linking:
    def __init__(self, log: StoredLog, directory: Path) -> None:
        self.log, self.path = log, str(directory / catalogue.FILE)
        self.store = FakeStore()
        self.store.objects = dict(log.objects)
        self.again()

    def again(self) -> None:
        self.catalogue = Catalogue(
            RealDisk(), self.path, self.store, self.log.where, self.log.log_id, SIZE
        )
        self.catalogue.load()

    def link(self, local: Begin | None = None, number: int = 0) -> bool:
        """The store begins with file `number`."""
        return self.catalogue.link(
            local or self.log.behind, _begin_of(self.log.files[number]), self.log.behind.pos
        )

    @property
    def bases(self) -> list[int]:
        return [file.base for file in self.catalogue.files]


@pytest.fixture
def linking(log: StoredLog, tmp_path: Path) -> Linking:
    return Linking(log, tmp_path)


ALL = [number * SIZE for number in range(FILES)]


@pytest.mark.parametrize("number", range(FILES + 1))
def test_it_links_up_and_down_from_where_the_local_log_begins(
    linking: Linking, number: int
) -> None:
    """The local log may begin anywhere among the stored files."""
    begins = [*map(_begin_of, linking.log.files), linking.log.behind]
    assert linking.link(begins[number])
    assert linking.catalogue.files == tuple(linking.log.files)


def test_restart_links_manifests_without_requests(linking: Linking) -> None:
    assert linking.link()
    asked = linking.store.requests["get"]
    linking.again()
    assert linking.bases == [], "what is on the disk counts once it is linked"
    assert (
        linking.link() and linking.bases == ALL and linking.store.requests["get"] == asked == FILES
    )


def test_many_manifests_are_asked_for_in_steps(
    linking: Linking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one step found stays."""
    monkeypatch.setattr(catalogue, "MANIFESTS_A_STEP", 2)
    steps = [linking.link() for _ in range(4)]
    assert steps[0] is False and steps[-1] is True and linking.bases == ALL
    assert linking.store.requests["get"] == FILES


def test_manifests_linked_before_an_error_stay(linking: Linking) -> None:
    def before(operation: str, key: str) -> None:
        if manifests.manifest_key(linking.log.where, SIZE) in key:
            raise StoreFailure("cut off")

    linking.store.before = before
    with pytest.raises(StoreFailure):
        linking.link()
    assert linking.bases == ALL[2:]
    linking.store.before = lambda operation, key: None
    assert linking.link() and linking.bases == ALL


@pytest.mark.parametrize(
    "lie", ["missing", "damaged", "another digest and chain", "another log", "an older version"]
)
def test_a_store_that_lies_about_a_manifest_is_noticed(linking: Linking, lie: str) -> None:
    """Nothing behind the lie is linked; with the right manifest it goes on."""
    key = manifests.manifest_key(linking.log.where, 2 * SIZE)
    file, held = linking.log.files[2], linking.store.objects[key]
    lies = {
        "damaged": held[:-3],
        "another digest and chain": manifests.encode(replace(file, sha256="ab" * 32, last_chain=7)),
        "another log": manifests.encode(replace(file, log_id="0" * 36)),
        "an older version": manifests.encode(replace(file, last=file.last - 3, end=file.end - 900)),
    }
    if lie == "missing":
        del linking.store.objects[key]
    else:
        linking.store.objects[key] = lies[lie]
    with pytest.raises(WrongObject):
        linking.link()
    assert linking.bases == ALL[3:]
    linking.store.objects[key] = held
    assert linking.link() and linking.bases == ALL


def test_a_digest_that_this_node_verified_is_not_replaced_by_another(linking: Linking) -> None:
    """The store forges a manifest that links well: the copy on this disk counts."""
    assert linking.link()
    file = linking.log.files[1]
    linking.store.objects[manifests.manifest_key(linking.log.where, SIZE)] = manifests.encode(
        replace(file, sha256="ab" * 32)
    )
    linking.again()
    assert linking.link() and linking.catalogue.files == tuple(linking.log.files)


@pytest.mark.parametrize("damage", ["empty", "short", "bit", "other log"])
def test_a_damaged_copy_only_costs_requests(linking: Linking, damage: str) -> None:
    assert linking.link()
    data = Path(linking.path).read_bytes()
    at = len(data) - 20
    changed = {
        "empty": b"",
        "short": data[:-1],
        "bit": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "other log": data,
    }
    Path(linking.path).write_bytes(changed[damage])
    if damage == "other log":
        linking.catalogue = Catalogue(
            RealDisk(), linking.path, linking.store, linking.log.where, "1" * 36, SIZE
        )
        linking.catalogue.load()
        with pytest.raises(WrongObject):
            linking.link()
        return
    linking.again()
    assert linking.link() and linking.bases == ALL and linking.store.requests["get"] == 2 * FILES


def test_files_before_the_begin_of_the_store_are_forgotten(linking: Linking) -> None:
    assert linking.link() and linking.link(number=2)
    assert linking.bases == ALL[2:]


def test_a_local_log_that_begins_before_the_store_is_linked_behind_it(linking: Linking) -> None:
    """This node keeps files that total retention has removed from the store."""
    first = linking.log.files[0]
    for file in linking.log.files[:2]:
        del linking.store.objects[manifests.manifest_key(linking.log.where, file.base)]
    assert linking.link(_begin_of(first), number=2) and linking.bases == ALL[2:]


def test_another_local_log_unlinks_all(linking: Linking) -> None:
    """After an installation the log may be another history than the store's."""
    assert linking.link()
    with pytest.raises(WrongObject):
        linking.link(replace(linking.log.behind, chain=7))
    assert linking.bases == []


def test_a_manifest_that_is_no_text_of_ours(linking: Linking) -> None:
    linking.store.objects[manifests.manifest_key(linking.log.where, 0)] = sealed_json.encode(
        {"v": 1}
    )
    with pytest.raises(WrongObject):
        linking.link()
