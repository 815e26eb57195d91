"""Which nodes there are and where they are reached: what the controller quorum said last, over what the configuration file says.

The file's `nodes` are seeds: they lead to the others until the quorum has told of a node, and stay as a second address to try. What the
quorum told is kept in `controller/nodes.json` (format §12), so that a node whose file is older than the cluster still finds everybody, and
does not talk to a node that was removed. Here live the merging and that file; who dials is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.storage import sealed_json
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import Damaged

FILE = "nodes.json"
VERSION = 1
KINDS = ("client", "peer", "controller", "http")

Addresses = Mapping[str, str]
"""Kind → host:port."""


class Roster:
    """All reads are of values that are replaced as a whole: from any thread."""

    def __init__(self, node: str, seeds: Mapping[str, Addresses], disk: Disk, directory: str) -> None:
        self._node = node
        self._seeds = seeds
        self._disk = disk
        self._directory = directory
        self._revision = 0
        self._told: Mapping[str, Addresses] = {}
        self._removed: frozenset[str] = frozenset()
        self._configured: Addresses | None = None
        """What this node's configuration said of itself in its last life that was told anything."""

    def load(self) -> str | None:
        """What an earlier life was told; a sentence when the file is of no use. The quorum tells it all again."""
        path = f"{self._directory}/{FILE}"
        if not self._disk.exists(path):
            return None
        try:
            value = sealed_json.read(self._disk, path)
        except Damaged as damage:
            return str(damage)
        if value.get("v") != VERSION:
            return f"{path} has version {value.get('v')}, this program reads {VERSION}"
        self._revision = int(value["revision"])
        self._told = {str(name): _addresses(at) for name, at in value["nodes"].items()}
        self._removed = frozenset(value["removed"])
        self._configured = _addresses(value["configured"])
        return None

    def on_addresses(self, revision: int, nodes: Mapping[str, Mapping[str, str]], removed: Iterable[str], *, current: bool) -> bool:
        """What the quorum says; whether anything is different now. `current`: this node's part of the quorum is up to date; until then an
        older state than the last life's says nothing."""
        if revision < self._revision and not current:
            return False
        now = {name: _addresses(at) for name, at in nodes.items()}
        gone = frozenset(removed)
        self._revision = revision
        if (now, gone) == (self._told, self._removed):
            return False
        self._told, self._removed = now, gone
        return True

    def has_moved(self) -> None:
        """The quorum knows where this node is now."""
        self._configured = self._seeds[self._node]

    def save(self) -> None:
        """Durably. Raises OSError."""
        self._disk.mkdirs(self._directory)
        nodes = {name: dict(at) for name, at in self._told.items()}
        value: dict[str, Any] = {"v": VERSION, "revision": self._revision, "nodes": nodes, "removed": sorted(self._removed)}
        value["configured"] = dict(self._seeds[self._node] if self._configured is None else self._configured)
        sealed_json.write(self._disk, f"{self._directory}/{FILE}", value)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node of the cluster, itself included, sorted."""
        return tuple(sorted((self._seeds.keys() | self._told.keys()) - self._removed))

    def knows(self, node: str) -> bool:
        return node != self._node and node in self.nodes

    def removed(self, node: str) -> bool:
        return node in self._removed

    def address(self, node: str, kind: str) -> str | None:
        """Where a node is, as far as anybody said."""
        return self._told.get(node, {}).get(kind) or self._seeds.get(node, {}).get(kind)

    def peers(self) -> dict[str, tuple[str, ...]]:
        """The other nodes and the addresses of their peer ports, the best first."""
        found = {}
        for name in self.nodes:
            if name != self._node and (where := self._places(name, "peer")):
                found[name] = where
        return found

    def controllers(self) -> dict[str, tuple[str, ...]]:
        """The addresses of every node's controller port, the best first; this node's own is as it is configured."""
        found = {name: self._places(name, "controller") for name in self.nodes if name != self._node}
        return {**found, self._node: (self._seeds[self._node]["controller"],)}

    @property
    def moved(self) -> Addresses | None:
        """This node's own addresses, when its configuration gives others than in its last life: then it has to tell the quorum.

        An operator's `set-address` against an unchanged configuration stands."""
        own = self._seeds[self._node]
        return own if self._configured is not None and own != self._configured else None

    def _places(self, node: str, kind: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(at for source in (self._told, self._seeds) if (at := source.get(node, {}).get(kind))))


def _addresses(value: Mapping[str, str]) -> dict[str, str]:
    return {kind: str(value[kind]) for kind in KINDS if kind in value}
