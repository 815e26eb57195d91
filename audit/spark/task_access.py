"""How tasks reach running nodes and an object store: the credentials are known where a query is
planned, perhaps not where it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.audit.reading import objects, remote
from ledgermq.audit.reading.node_paths import NODE, STORE
from ledgermq.audit.reading.objects import StoreAccess
from ledgermq.audit.reading.remote import Access


@dataclass(frozen=True, slots=True)
class TaskAccess:
    """What a task needs beside its work. Can cross process boundaries; its text form hides the
    secrets."""

    nodes: Access | None = None
    store: StoreAccess | None = None

    @classmethod
    def of(cls, works: Iterable[str]) -> TaskAccess:
        """What works or slices, given as JSON, need. Raises BadStore."""
        nodes = store = False
        for work in works:
            nodes |= f'"root": "{NODE}' in work
            store |= f'"root": "{STORE}' in work
        return cls(
            remote.access() if nodes else None, objects.access().with_keys() if store else None
        )

    def use(self) -> None:
        """Use it in this process from now on."""
        if self.nodes is not None:
            remote.use(self.nodes)
        if self.store is not None:
            objects.use(self.store)
