"""The owner of a directory (format §9): creating, writing, reading and comparing identities.

A directory is opened only after its identity was compared. An operator who configured a wrong
directory sees the messages of this module. Random and clock values are passed in.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ledgermq.proto.types import Identity
from ledgermq.proto.workers import WORKER_NAME
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, UnknownFormat, Unusable
from ledgermq.storage.files.ports import Disk

FORMAT_VERSION = 1
"""The format version of new directories."""
FORMAT_MAX = 1
"""The highest version that this program reads. It also reads the version before, and keeps the
version of an existing directory."""
IDENTITY_FILE = "identity.json"
NODE_FILE = "node.json"
PEERS_FILE = "peers.json"
BOOTS_FILE = "boots.json"
BOOTS_LISTED = 32
BOOT_WORD_CHARS = 12

DATA_FILE_BYTES_MIN = 4096
INDEX_UNIT_BYTES = 32
CONSUME_QUEUE_UNIT_BYTES = 20
CONSUME_QUEUE_FILE_BYTES = 6_000_000
INDEX_FILE_BYTES = 167_772_160


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The owner of a node directory (`node.json`)."""

    cluster_id: str
    node: str
    created_ms: int
    format_version: int = FORMAT_VERSION


def mint_log_id(cluster_id: str, group: str) -> str:
    """The log id of a broker group: every replica computes the same one at bootstrap."""
    return str(uuid.uuid5(uuid.UUID(cluster_id), group))


def mint(
    cluster_id: str,
    group: str,
    replica: str,
    incarnation: str,
    created_ms: int,
    *,
    data_file_bytes: int,
    index_file_bytes: int = INDEX_FILE_BYTES,
    consume_queue_file_bytes: int = CONSUME_QUEUE_FILE_BYTES,
) -> Identity:
    """A new replica identity. `incarnation` is a random UUID that the caller drew for this
    directory alone."""
    identity = Identity(
        cluster_id=cluster_id,
        group=group,
        log_id=mint_log_id(cluster_id, group),
        replica=replica,
        incarnation=str(uuid.UUID(incarnation)),
        data_file_bytes=data_file_bytes,
        index_file_bytes=index_file_bytes,
        consume_queue_file_bytes=consume_queue_file_bytes,
        created_ms=created_ms,
        format_version=FORMAT_VERSION,
    )
    if data_file_bytes < DATA_FILE_BYTES_MIN:
        raise Unusable(f"data files of {data_file_bytes} bytes: use at least {DATA_FILE_BYTES_MIN}")
    for name, size, unit in (
        ("index", index_file_bytes, INDEX_UNIT_BYTES),
        ("consume queue", consume_queue_file_bytes, CONSUME_QUEUE_UNIT_BYTES),
    ):
        if size < unit or size % unit:
            raise Unusable(f"{name} files of {size} bytes: use a multiple of {unit}")
    return identity


def write_identity(disk: Disk, root: str, identity: Identity) -> None:
    sealed_json.write(disk, f"{root}/{IDENTITY_FILE}", asdict(identity))


def read_identity(disk: Disk, root: str) -> Identity | None:
    """None if the directory has no identity. Raises Damaged, UnknownFormat."""
    value = _read(disk, f"{root}/{IDENTITY_FILE}")
    return (
        None
        if value is None
        else Identity(**_exactly(f"{root}/{IDENTITY_FILE}", value, Identity.__dataclass_fields__))
    )


def write_node(disk: Disk, directory: str, node: NodeIdentity) -> None:
    sealed_json.write(disk, f"{directory}/{NODE_FILE}", asdict(node))


def workers_in(disk: Disk, directory: str) -> list[str]:
    """The subdirectories of a node directory that belong to further workers of the node; each is a
    node directory of its own."""
    return [
        name
        for name in sorted(disk.listdir(directory))
        if WORKER_NAME(name) and disk.exists(f"{directory}/{name}/{NODE_FILE}")
    ]


def read_node(disk: Disk, directory: str) -> NodeIdentity | None:
    """None if the directory has no identity. Raises Damaged, UnknownFormat."""
    value = _read(disk, f"{directory}/{NODE_FILE}")
    return (
        None
        if value is None
        else NodeIdentity(
            **_exactly(f"{directory}/{NODE_FILE}", value, NodeIdentity.__dataclass_fields__)
        )
    )


def compare_node(directory: str, own_identity: NodeIdentity, cluster_id: str, node: str) -> None:
    """Raises Unusable if a node directory belongs to another cluster or node."""
    if own_identity.cluster_id != cluster_id:
        raise Unusable(
            f"{directory} belongs to cluster {own_identity.cluster_id}, this node to {cluster_id}:"
            " set the"
            " data directory of this node to its own"
        )
    if own_identity.node != node:
        raise Unusable(
            f"{directory} is the data directory of node {own_identity.node}, not of {node}: every"
            " node"
            " needs its own directory"
        )


def compare(root: str, own_identity: Identity, wanted: Identity) -> None:
    """Raises Unusable if a group directory belongs to another replica. File sizes and incarnation
    are not compared."""
    for field_name, has, needs in (
        ("cluster", own_identity.cluster_id, wanted.cluster_id),
        ("broker group", own_identity.group, wanted.group),
        ("log", own_identity.log_id, wanted.log_id),
        ("node", own_identity.replica, wanted.replica),
    ):
        if has != needs:
            raise Unusable(
                f"{root} belongs to {field_name} {has}, not to {needs}: set the data directory of"
                " this"
                " node to its own"
            )


def read_peers(disk: Disk, state_directory: str) -> dict[str, str]:
    """Incarnations of the peers met so far; empty if none is recorded."""
    path = f"{state_directory}/{PEERS_FILE}"
    if not disk.exists(path):
        return {}
    peers = sealed_json.read(disk, path).get("peers")
    if not isinstance(peers, dict):
        raise Damaged(f"{path} has no table of peers: it was damaged or edited by hand")
    return {str(node): str(incarnation) for node, incarnation in peers.items()}


def read_met_by(disk: Disk, state_directory: str) -> frozenset[str]:
    """The peers that have recorded this directory's incarnation; empty if none has yet."""
    path = f"{state_directory}/{PEERS_FILE}"
    met_by = sealed_json.read(disk, path).get("met_by", []) if disk.exists(path) else []
    if not isinstance(met_by, list):
        raise Damaged(
            f"{path} has no list of the peers that met this replica: it was damaged or edited by"
            " hand"
        )
    return frozenset(str(node) for node in met_by)


def read_vouched(disk: Disk, state_directory: str) -> bool:
    """Whether the peers confirmed that this directory took part in the formation of the group
    (node/replica/peers/formation_check.py); never revoked."""
    path = f"{state_directory}/{PEERS_FILE}"
    vouched = sealed_json.read(disk, path).get("vouched", False) if disk.exists(path) else False
    if not isinstance(vouched, bool):
        raise Damaged(
            f"{path} does not say whether the peers vouch for this replica: it was damaged or"
            " edited by hand"
        )
    return vouched


def read_peer_boots(disk: Disk, state_directory: str) -> dict[str, tuple[str, int, str]]:
    """Node → (incarnation, generation, boot id prefix) of the last start that each peer reported;
    empty if none is recorded."""
    path = f"{state_directory}/{PEERS_FILE}"
    boots = sealed_json.read(disk, path).get("boots", {}) if disk.exists(path) else {}
    if not isinstance(boots, dict):
        raise Damaged(f"{path} has no table of the peers' starts: it was damaged or edited by hand")
    return {
        str(node): (str(incarnation), int(generation), str(word))
        for node, (incarnation, generation, word) in boots.items()
    }


def write_peers(
    disk: Disk,
    state_directory: str,
    peers: Mapping[str, str],
    met_by: Iterable[str],
    boots: Mapping[str, tuple[str, int, str]] | None = None,
    *,
    vouched: bool = False,
) -> None:
    value: dict[str, Any] = {"peers": dict(peers), "met_by": sorted(met_by)}
    if vouched:
        value["vouched"] = True
    if boots:
        value["boots"] = {node: list(boot_ids) for node, boot_ids in boots.items()}
    sealed_json.write(disk, f"{state_directory}/{PEERS_FILE}", value)


@dataclass(frozen=True, slots=True)
class Boots:
    """The starts of processes on one directory: their number, and prefixes of the last boot ids,
    newest last."""

    generation: int = 0
    words: tuple[str, ...] = ()

    def begun(self, boot_id: str) -> Boots:
        """This record with one more start."""
        return Boots(self.generation + 1, (*self.words, boot_id[:BOOT_WORD_CHARS])[-BOOTS_LISTED:])


def note_boot(disk: Disk, state_directory: str, boot_id: str) -> Boots:
    """Record a start durably, before the process sends any message. Raises Damaged."""
    path = f"{state_directory}/{BOOTS_FILE}"
    former = Boots()
    if disk.exists(path):
        value = sealed_json.read(disk, path)
        former = Boots(int(value["generation"]), tuple(value["boots"]))
    boots = former.begun(boot_id)
    disk.mkdirs(state_directory)
    sealed_json.write(disk, path, {"generation": boots.generation, "boots": list(boots.words)})
    return boots


def _read(disk: Disk, path: str) -> dict[str, Any] | None:
    if not disk.exists(path):
        return None
    value = sealed_json.read(disk, path)
    if value.get("format_version") not in range(max(1, FORMAT_MAX - 1), FORMAT_MAX + 1):
        raise UnknownFormat(
            f"{path} has format version {value.get('format_version')}, this program knows"
            f" {FORMAT_MAX}: start the program that wrote it"
        )
    return value


def _exactly(path: str, value: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    if value.keys() != fields.keys():
        raise Damaged(
            f"{path} has the keys {sorted(value)}, expected {sorted(fields)}: was it edited by"
            " hand?"
        )
    return value
