"""What lies in the object store for one log (format §21): the keys, the log's own description, and
a manifest for each file.

Values and their texts only. A manifest is a claim; `transfer.py` and `tier_restore.py` verify what
it says.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ledgermq.proto.records.time_epochs import TimeEpochs
from ledgermq.proto.types import Identity
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, UnknownFormat
from ledgermq.storage.files.mapped_files import file_name, parse_name
from ledgermq.storage.log.begin import Begin

VERSION = 1
LOG_FILE = "log.json"
SNAPSHOT_FILE = "snapshot"
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The description of a log: `log.json`, written before its first file. `begin`: where the log
    begins in the store. `recovery`: the record of the recovery that began this log (format §17)."""

    cluster_id: str
    group: str
    log_id: str
    created_ms: int
    data_file_bytes: int
    index_file_bytes: int
    consume_queue_file_bytes: int
    begin: Begin
    recovery: dict[str, Any] | None = None

    @classmethod
    def of(cls, identity: Identity, begin: Begin, recovery: dict[str, Any] | None) -> StoredLog:
        return cls(
            cluster_id=identity.cluster_id,
            group=identity.group,
            log_id=identity.log_id,
            created_ms=identity.created_ms,
            data_file_bytes=identity.data_file_bytes,
            index_file_bytes=identity.index_file_bytes,
            consume_queue_file_bytes=identity.consume_queue_file_bytes,
            begin=begin,
            recovery=recovery,
        )

    def identity(self, replica: str, incarnation: str) -> Identity:
        """The identity of a replica of this log."""
        return Identity(
            cluster_id=self.cluster_id,
            group=self.group,
            log_id=self.log_id,
            replica=replica,
            incarnation=incarnation,
            data_file_bytes=self.data_file_bytes,
            index_file_bytes=self.index_file_bytes,
            consume_queue_file_bytes=self.consume_queue_file_bytes,
            created_ms=self.created_ms,
        )


@dataclass(frozen=True, slots=True)
class FileManifest:
    """One sealed file: its entries, and the links to the files before and behind it. `term`,
    `chain`: those of the entry before it; `last_term`, `last_chain`, `last_store_ms`: those of its
    last entry; `end`: position behind that entry."""

    log_id: str
    base: int
    size: int
    first: int
    last: int
    end: int
    term: int
    chain: int
    last_term: int
    last_chain: int
    last_store_ms: int
    sha256: str

    @property
    def next_base(self) -> int:
        return self.base + self.size

    def counted_ms(self, epochs: TimeEpochs) -> int:
        """When its last entry counts as stored."""
        return epochs.counted(self.last_store_ms, self.end - 1)

    def follows(self, begin: Begin) -> bool:
        """Whether the file continues a log that ends where `begin` says."""
        return (self.base, self.first, self.term, self.chain) == (
            begin.pos,
            begin.index,
            begin.term,
            begin.chain,
        )

    @property
    def behind(self) -> Begin:
        """Where the next file begins."""
        return Begin(self.last + 1, self.next_base, self.last_term, self.last_chain)


def folder(group: str, log_id: str) -> str:
    """The folder of a log. A log that continues another one after `recover` has an id, and a
    folder, of its own."""
    return f"{group}/{log_id}"


def manifest_key(where: str, base: int) -> str:
    return f"{where}/{file_name(base)}.json"


def object_key(where: str, base: int, sha256: str) -> str:
    """The key of a log file. It contains the digest: whatever lies there is this file, or wrong."""
    return f"{where}/{file_name(base)}-{sha256}.log"


def base_of_manifest(where: str, key: str) -> int | None:
    """The inverse of `manifest_key`; None for other keys, also of a copy in a folder below
    `where`."""
    base = parse_name(key.removeprefix(f"{where}/").removesuffix(".json"))
    return base if base is not None and key == manifest_key(where, base) else None


def controller_key(node: str) -> str:
    return f"{CONTROLLER}/{node}.json"


def is_controller_key(key: str) -> bool:
    """Whether a node may have stored its controller's files under this key."""
    node = key.removeprefix(f"{CONTROLLER}/").removesuffix(".json")
    return bool(node) and "/" not in node and key == controller_key(node)


def encode(value: StoredLog | FileManifest) -> bytes:
    return sealed_json.encode({"v": VERSION, **asdict(value)})


def decode_log(data: bytes, key: str) -> StoredLog:
    """Raises Damaged, UnknownFormat."""
    value = _decoded(data, key)
    try:
        return StoredLog(begin=Begin(**value.pop("begin")), **value)
    except (KeyError, TypeError) as error:
        raise Damaged(f"{key} lacks fields, or has unknown ones ({error})") from error


def decode_manifest(data: bytes, key: str) -> FileManifest:
    """Raises Damaged, UnknownFormat."""
    value = _decoded(data, key)
    try:
        return FileManifest(**value)
    except TypeError as error:
        raise Damaged(f"{key} lacks fields, or has unknown ones ({error})") from error


def _decoded(data: bytes, key: str) -> dict[str, Any]:
    value = sealed_json.decode(data, key)
    if value.pop("v", None) != VERSION:
        raise UnknownFormat(
            f"{key} was written by another version of LedgerMQ: use the program that wrote it"
        )
    return value
