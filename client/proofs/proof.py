"""A proof as a value and as a file: one entry of a log, its paths up to a checkpoint, and the
checkpoint (docs/format.md).

The file is one JSON object with exactly the fields below. Bytes are base64. Nothing in it is
believed: `verifying.py` computes everything again from the entry up.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.client.errors import ClusterError
from ledgermq.proto.proofs.log_tree import HASH_BYTES, FileLeaf
from ledgermq.proto.proofs.signed_notes import Checkpoint, Note, Verified, format_note, parse_note
from ledgermq.proto.status import ExitCode

FORMAT, VERSION = "ledgermq-proof", 1
PROOF_BYTES_MAX = 64 << 20
_NUMBER_MAX = (1 << 63) - 1
_PATH_MAX = 64
"""A tree of 2^63 leaves has paths of 63 hashes, and consistency needs one more."""
_FIELDS = {"format", "version", "file", "entry", "entry_path", "log_path", "checkpoint", "since"}
_FILE = ("number", "base", "first", "entries", "end", "root")


class Refuted(ClusterError):
    """Something in the proof is false: it proves nothing, and somebody made it so."""

    exit_code = ExitCode.FAILED


class Unreadable(ClusterError):
    """A file is not a proof, a checkpoint, a key file or a receipt at all."""

    exit_code = ExitCode.DATA_ERROR


@dataclass(frozen=True, slots=True)
class Since:
    """The path from the tree of an older checkpoint, by its size, to the tree of the proof."""

    size: int
    path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a proof file holds. `file_number` is the number of the leaf in the log tree, from 0."""

    file_number: int
    leaf: FileLeaf
    entry: bytes
    entry_path: tuple[bytes, ...]
    log_path: tuple[bytes, ...]
    checkpoint: Note
    since: Since | None = None

    def to_json(self) -> str:
        """The content of the proof file."""
        leaf = {name: getattr(self.leaf, name) for name in _FILE[1:5]}
        since = (
            None
            if self.since is None
            else {"size": self.since.size, "path": [_text(each) for each in self.since.path]}
        )
        value = {
            "format": FORMAT,
            "version": VERSION,
            "file": {"number": self.file_number, **leaf, "root": _text(self.leaf.root)},
            "entry": _text(self.entry),
            "entry_path": [_text(each) for each in self.entry_path],
            "log_path": [_text(each) for each in self.log_path],
            "checkpoint": format_note(self.checkpoint),
            "since": since,
        }
        return json.dumps(value, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> Proof:
        """The inverse of `to_json`, with any white space. Raises ValueError with the reason."""
        if len(text) > PROOF_BYTES_MAX:
            raise ValueError(f"a proof has at most {PROOF_BYTES_MAX} bytes")
        try:
            value = json.loads(text, object_pairs_hook=_object)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        fields = _fields(value, _FIELDS, "a proof")
        if fields["format"] != FORMAT or _number(fields, "version") != VERSION:
            raise ValueError(f"expected the format {FORMAT}, version {VERSION}")
        leaf = _fields(fields["file"], _FILE, "the file of a proof")
        since = (
            None if fields["since"] is None else _fields(fields["since"], ("size", "path"), "since")
        )
        if not isinstance(fields["checkpoint"], str):
            raise ValueError("the checkpoint is not a text")
        return cls(
            file_number=_number(leaf, "number"),
            leaf=FileLeaf(
                **{name: _number(leaf, name) for name in _FILE[1:5]}, root=_hash(leaf["root"])
            ),
            entry=_bytes(fields["entry"]),
            entry_path=_path(fields["entry_path"]),
            log_path=_path(fields["log_path"]),
            checkpoint=parse_note(fields["checkpoint"]),
            since=None if since is None else Since(_number(since, "size"), _path(since["path"])),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """The message in a proven entry. `queue` is the number within the broker group; `body` is as
    the producer gave it."""

    message_id: str | None
    topic: str
    queue: int
    offset: int
    store_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Proven:
    """What a verified proof says: this message is entry `index` of this log, whose tree is
    signed."""

    message: Message
    index: int
    term: int
    checkpoint: Checkpoint
    signers: tuple[Verified, ...]
    since: Checkpoint | None = None


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _fields(value: Any, names: Sequence[str] | set[str], owner: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError(f"{owner} has the fields {', '.join(sorted(names))}")
    return value


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{name} is a number from 0 on, not {value!r}")
    return value


def _bytes(value: Any) -> bytes:
    try:
        decoded = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except ValueError:
        decoded = None
    if decoded is None or _text(decoded) != value:
        raise ValueError(f"expected base64, got {str(value)[:40]!r}")
    return decoded


def _hash(value: Any) -> bytes:
    digest = _bytes(value)
    if len(digest) != HASH_BYTES:
        raise ValueError(f"a hash has {HASH_BYTES} bytes, not {len(digest)}")
    return digest


def _path(value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list) or len(value) > _PATH_MAX:
        raise ValueError(f"a path is a list of at most {_PATH_MAX} hashes")
    return tuple(map(_hash, value))
