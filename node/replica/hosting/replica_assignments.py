"""Decides of which broker groups a node keeps a replica: from its configuration and from what the
controller quorum agreed since.

The rule is pure (`assignments_of`). A file stores what the quorum agreed last
(`controller/groups.json`, format §12), so that a node opens all its replicas at the start without
waiting for the quorum. Only a founder whose replica never moved away may create its group's log.
Elsewhere an empty directory waits for the leader's membership record that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from ledgermq.node.controller.broker_groups import GroupSpec, Specs, export, restore
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk

FILE = "groups.json"
VERSION = 1


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AgreedGroups:
    """What the quorum agreed about broker groups: the intended nodes of their replicas, and their
    initial settings."""

    replicas: Mapping[str, Sequence[str]] = field(default_factory=_nothing)
    specs: Specs = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A broker group of which this node keeps a replica. `joins`: a new directory must not create a
    log."""

    group: BrokerGroup
    joins: bool


def assignments_of(
    config: NodeConfig, agreed: AgreedGroups
) -> tuple[dict[str, Assignment], dict[str, str]]:
    """Broker group → its assignment to this node; and broker group → why an assigned replica cannot
    be opened."""
    node = config.node
    found: dict[str, Assignment] = {}
    refused: dict[str, str] = {}
    for group in config.hosted_groups:
        spec = agreed.specs.get(group.name, GroupSpec())
        if node not in spec.left:
            found[group.name] = Assignment(group, config.joins(group.name) or node in spec.joined)
    configured = {group.name: group for group in config.cluster.groups}
    for name, replicas in agreed.replicas.items():
        spec = agreed.specs.get(name, GroupSpec())
        if name in found or node not in replicas or node in spec.left:
            continue
        try:
            group = configured.get(name) or BrokerGroup.model_validate(
                {"name": name, **spec.settings}
            )
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            refused[name] = (
                f"broker group {name}: this version of LedgerMQ does not understand its settings"
                f" ({where}: {first['msg']})"
            )
            continue
        found[name] = Assignment(group, node in spec.joined or node not in group.replicas)
    return found, refused


def effective(config: NodeConfig, assigned: Mapping[str, Assignment]) -> NodeConfig:
    """The configuration extended by all assignments, as if its file contained them."""
    for assignment in assigned.values():
        if assignment.group not in config.cluster.groups or assignment.joins != config.joins(
            assignment.group.name
        ):
            config = config.keeping(assignment.group, joins=assignment.joins)
    return config


class AssignmentFile:
    """The file of the agreed assignments. Used by one thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def load(self) -> tuple[AgreedGroups, str | None]:
        """Load the assignments of an earlier run, with an explanation if the file cannot be used;
        the quorum then sends everything again."""
        path = f"{self._directory}/{FILE}"
        if not self._disk.exists(path):
            return AgreedGroups(), None
        try:
            value = sealed_json.read(self._disk, path)
        except Damaged as damage:
            return AgreedGroups(), str(damage)
        if value.get("v") != VERSION:
            return (
                AgreedGroups(),
                f"{path} has version {value.get('v')}, this program reads {VERSION}",
            )
        replicas = {str(group): tuple(nodes) for group, nodes in value["replicas"].items()}
        return AgreedGroups(MappingProxyType(replicas), restore(value["specs"])), None

    def save(self, agreed: AgreedGroups) -> None:
        """Store the assignments durably. Raises OSError."""
        self._disk.mkdirs(self._directory)
        replicas = {group: list(nodes) for group, nodes in agreed.replicas.items()}
        sealed_json.write(
            self._disk,
            f"{self._directory}/{FILE}",
            {"v": VERSION, "replicas": replicas, "specs": export(agreed.specs)},
        )
