"""The nodes of the cluster and their addresses: what the controller quorum says, with the
configuration file as a fallback.

The file's `nodes` are seeds. A node uses them until the quorum has told it of the others, and keeps
them as second addresses. What the quorum says is stored in `controller/nodes.json` (format §12), so
that a node with an outdated file still finds every other node and does not connect to a removed
one. This module merges the two and stores that file; it opens no connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk

FILE = "nodes.json"
VERSION = 1
KINDS = ("client", "peer", "controller", "http")

Addresses = Mapping[str, str]
"""Kind → host:port."""


class Roster:
    """Readable from any thread: every value is replaced as a whole."""

    def __init__(
        self, node: str, seeds: Mapping[str, Addresses], disk: Disk, directory: str
    ) -> None:
        self._node = node
        self._seeds = seeds
        self._disk = disk
        self._directory = directory
        self._revision = 0
        self._told: Mapping[str, Addresses] = {}
        self._removed: frozenset[str] = frozenset()
        self._configured: Addresses | None = None
        """This node's addresses in the configuration of the last run that received a list of nodes
        from the quorum."""

    def load(self) -> str | None:
        """Load what the quorum said in an earlier run. Returns an explanation if the file cannot be
        used; the quorum then sends everything again."""
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

    def on_addresses(
        self,
        revision: int,
        nodes: Mapping[str, Mapping[str, str]],
        removed: Iterable[str],
        *,
        current: bool,
    ) -> bool:
        """Take in the quorum's list of nodes; returns whether anything changed. `current`: this
        node's controller is up to date. Until it is, a state older than the stored one is
        ignored."""
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
        """Note that the quorum knows this node's present addresses."""
        self._configured = self._seeds[self._node]

    def save(self) -> None:
        """Store the list durably. Raises OSError."""
        self._disk.mkdirs(self._directory)
        nodes = {name: dict(at) for name, at in self._told.items()}
        value: dict[str, Any] = {
            "v": VERSION,
            "revision": self._revision,
            "nodes": nodes,
            "removed": sorted(self._removed),
        }
        value["configured"] = dict(
            self._seeds[self._node] if self._configured is None else self._configured
        )
        sealed_json.write(self._disk, f"{self._directory}/{FILE}", value)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes of the cluster, this one included, sorted."""
        return tuple(sorted((self._seeds.keys() | self._told.keys()) - self._removed))

    def knows(self, node: str) -> bool:
        return node != self._node and node in self.nodes

    def removed(self, node: str) -> bool:
        return node in self._removed

    def address(self, node: str, kind: str) -> str | None:
        """The address of a node, from the quorum or else from the seeds; None if neither has
        one."""
        return self._told.get(node, {}).get(kind) or self._seeds.get(node, {}).get(kind)

    def peers(self) -> dict[str, tuple[str, ...]]:
        """The other nodes and the addresses of their peer ports, the most likely first."""
        found = {}
        for name in self.nodes:
            if name != self._node and (where := self._places(name, "peer")):
                found[name] = where
        return found

    def controllers(self) -> dict[str, tuple[str, ...]]:
        """The addresses of every node's controller port, the most likely first; for this node the
        configured one."""
        found = {
            name: self._places(name, "controller") for name in self.nodes if name != self._node
        }
        return {**found, self._node: (self._seeds[self._node]["controller"],)}

    @property
    def moved(self) -> Addresses | None:
        """This node's addresses if its configuration changed since its last run: it must then tell
        the quorum.

        An address set with `set-address` stays in force while the configuration is unchanged."""
        own = self._seeds[self._node]
        return own if self._configured is not None and own != self._configured else None

    def _places(self, node: str, kind: str) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                at for source in (self._told, self._seeds) if (at := source.get(node, {}).get(kind))
            )
        )


def _addresses(value: Mapping[str, str]) -> dict[str, str]:
    return {kind: str(value[kind]) for kind in KINDS if kind in value}
