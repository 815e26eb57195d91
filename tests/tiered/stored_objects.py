"""A stopped node whose older files are in a store only, for readers of both; the auditor's own
client sees the same objects."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from ledgermq.audit.cli.commands import with_workers
from ledgermq.audit.reading import objects
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.run.jobs import Audit, audit
from ledgermq.node.broker.calls.member_calls import RaiseLevel
from ledgermq.proto.records.control import LevelRecord
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity
from ledgermq.storage.state.identity import NodeIdentity
from tests.tiered.fake_store import FakeStore
from tests.tiered.test_tiered_carrying import TieredStage

URL = "s3://fake/log"


def in_memory(fake: FakeStore) -> MemoryStore:
    """The library's own store with these objects."""
    store = MemoryStore()
    for key, data in fake.objects.items():
        obstore.put(store, key, data)
    return store


def serve(monkeypatch: pytest.MonkeyPatch, fake: FakeStore) -> StoreAccess:
    """Let this process open the store at `URL`, as it is now."""
    store: Any = in_memory(fake)
    monkeypatch.setattr(StoreAccess, "open", lambda self: store)
    monkeypatch.setattr(objects._process, "access", None)
    return StoreAccess(URL)


class Stored:
    """A stopped node of one replica, whose files before `begin` are in the store only."""

    def __init__(self, base: Path) -> None:
        one = TieredStage(base, files=2)
        one.stage.driver.call(
            lambda token: RaiseLevel(token, LevelRecord(2, "tester"), frozenset({"n1"}))
        )
        one.carry_all()
        one.retain()
        one.stage.grow(2)
        one.carry_all()
        self.directory = str(one.stage.config.data)
        controller = Path(self.directory) / "controller"
        controller.mkdir(exist_ok=True)
        (controller / "journal").write_bytes(b"definitions")
        one.tiering.keep_controller(1_700_000_000_000)
        shutil.rmtree(controller)
        self.store: FakeStore = one.store
        self.begin, self.end = one.begin, one.state.verified_pos
        own = one.stage.driver.group.store.identity
        self.log_id = own.log_id
        asyncio.run(one.tiering.stop())
        one.stage.close()
        identity.write_node(
            RealDisk(), self.directory, NodeIdentity(own.cluster_id, own.replica, own.created_ms)
        )


def copied(source: str, target: str) -> str:
    """Derived files are large, and no test changes them."""
    if "/index/" in source or "/consumequeue/" in source:
        os.link(source, target)
    else:
        shutil.copy(source, target)
    return target


class Case:
    """A copy of it to damage."""

    def __init__(self, made: Stored, base: Path, patch: pytest.MonkeyPatch) -> None:
        base.mkdir(exist_ok=True)
        self.directory = Path(shutil.copytree(made.directory, base / "n1", copy_function=copied))
        self.store = FakeStore()
        self.store.objects = dict(made.store.objects)
        self.begin, self.end, self.log_id = made.begin, made.end, made.log_id
        self._patch = patch

    def key(self, ending: str, base: int) -> str:
        return next(key for key in self.store.keys(ending) if file_name(base) in key)

    def change(self, key: str, **fields: Any) -> None:
        self.store.objects[key] = sealed_json.encode(
            {**sealed_json.decode(self.store.objects[key], key), **fields}
        )

    def flip(self, key: str, at: int) -> None:
        data = self.store.objects[key]
        self.store.objects[key] = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    def audit(self, **options: Any) -> Audit:
        return audit(
            with_workers(str(self.directory)), store=serve(self._patch, self.store), **options
        )

    def found(self, **options: Any) -> list[tuple[str, str, int, int]]:
        """Rule, file and range of the findings about the store."""
        findings = self.audit(**options).findings
        assert {finding.replica for finding in findings} <= {"store"}
        return [
            (f.flaw.rule, f.flaw.file.rpartition("/")[2], f.flaw.byte_from, f.flaw.byte_to)
            for f in findings
        ]
