"""What a witness keeps in its directory (docs/format.md): its key, every checkpoint it accepted,
what each node showed last, and evidence.

Law: a file is complete and durable before it has its name, and a name is durable before the witness
goes on. A process that is killed at any point leaves a directory from which the next one continues.
One process uses a directory at a time.
"""

from __future__ import annotations

import base64
import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ledgermq.client.aside import replace_file, sync_directory
from ledgermq.client.errors import BadArgument
from ledgermq.client.proofs import ed25519
from ledgermq.client.proofs.proof import Unreadable
from ledgermq.proto.json_checksum import opened, sealed
from ledgermq.proto.proofs.signed_notes import (
    COSIGNATURE,
    Checkpoint,
    LogName,
    Note,
    Signer,
    VerifierKey,
    format_note,
    parse_note,
)

_KEY, _PUBLIC, _LOCK, _GROUPS, _NODES, _EVIDENCE = (
    "key",
    "key.pub",
    "lock",
    "groups",
    "nodes.json",
    "evidence",
)
_PREFIX = "PRIVATE+KEY+"
_SUFFIX = ".checkpoint"
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class LastShown:
    """What a node showed last: its checkpoint, since when it is behind the largest accepted one
    (seconds; None: it is not)."""

    note: str
    behind_since: int | None = None


@dataclass(frozen=True, slots=True)
class Newest:
    """The largest accepted size of a log, when it was first seen (seconds), and the group's commit
    index at that time."""

    size: int
    since: int
    commit_index: int


@dataclass(slots=True)
class GroupMemory:
    """What the witness knows of a broker group: accepted checkpoints of its one log by size, what
    each node showed last, and since when nothing is new."""

    group: str
    accepted: dict[int, Note]
    nodes: dict[str, LastShown]
    newest: Newest | None = None

    @property
    def latest(self) -> Checkpoint | None:
        """The largest accepted checkpoint."""
        return Checkpoint.parse(self.accepted[max(self.accepted)].text) if self.accepted else None


class WitnessFiles:
    """The directory of a witness, opened by one process. `open` creates it and its key when first
    used."""

    def __init__(self, directory: Path, key: VerifierKey, signer: Signer) -> None:
        self.directory = directory
        self.key = key
        self.sign = signer

    @classmethod
    @contextmanager
    def open(cls, directory: Path, name: str) -> Iterator[WitnessFiles]:
        """Lock the directory and read the key; `name` names a new key. Raises BadArgument and
        Unreadable."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(directory / _LOCK, "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (directory / _KEY).exists():
                    _write(directory / _KEY, _new_key(name), 0o600)
                key, signer = _read_key(directory / _KEY)
                _write(directory / _PUBLIC, f"{key}\n".encode())
                yield cls(directory, key, signer)
        except BlockingIOError:
            raise BadArgument(
                f"another process uses the directory {directory}", "stop it, or give another --dir"
            ) from None

    def load(self, group: str) -> GroupMemory:
        """What is known of a broker group. Raises Unreadable if a file of the directory is
        damaged."""
        place = self._place(group)
        accepted = accepted_in(place)
        if not (place / _NODES).exists():
            return GroupMemory(group, accepted, {})
        try:
            value = opened(json.loads((place / _NODES).read_bytes()), required=False)
            nodes = {node: LastShown(**fields) for node, fields in value["nodes"].items()}
            newest = None if value["newest"] is None else Newest(**value["newest"])
            # A tree is accepted before it is remembered who showed it: what is beyond the accepted
            # ones is of a tree that was removed.
            largest = max(accepted, default=0)
            nodes = {
                node: last
                for node, last in nodes.items()
                if Checkpoint.parse(parse_note(last.note).text).size <= largest
            }
            return GroupMemory(
                group,
                accepted,
                nodes,
                newest if newest is not None and newest.size <= largest else None,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(place / _NODES, error) from None

    def accept(self, memory: GroupMemory, note: Note) -> None:
        """Keep a checkpoint with its signatures, durably, in place of the one of the same size."""
        size = Checkpoint.parse(note.text).size
        _write(self.checkpoint_path(memory.group, size), format_note(note).encode())
        memory.accepted[size] = note

    def remember(self, memory: GroupMemory) -> None:
        """Keep what the nodes showed, durably."""
        newest = None if memory.newest is None else asdict(memory.newest)
        value = {
            "nodes": {node: asdict(shown) for node, shown in sorted(memory.nodes.items())},
            "newest": newest,
        }
        _write(
            self._place(memory.group) / _NODES,
            json.dumps(sealed(value), ensure_ascii=False, indent=1).encode(),
        )

    def keep_evidence(
        self, kind: str, broker_group: str, node: str, evidence: Mapping[str, str]
    ) -> Path:
        """Write the files of a finding into a directory of their own; the same evidence is written
        once. The directory."""
        digest = sha256(
            json.dumps([kind, broker_group, node, sorted(evidence.items())]).encode()
        ).hexdigest()[:12]
        place = self.directory / _EVIDENCE / f"{kind}-{broker_group}-{node}-{digest}"
        for name, text in evidence.items():
            if not (place / name).exists():
                _write(place / name, text.encode())
        return place

    def checkpoint_path(self, group: str, size: int) -> Path:
        """The file of an accepted checkpoint."""
        return self._place(group) / _name(size)

    def _place(self, group: str) -> Path:
        return self.directory / _GROUPS / group


def public_key(directory: Path) -> VerifierKey:
    """The verifier key of a witness. Raises Unreadable if it is not the directory of a witness."""
    path = directory / _PUBLIC
    try:
        return VerifierKey.parse(path.read_bytes().decode().removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise Unreadable(
            f"{directory} is not the directory of a witness ({error})",
            "give the --dir of ledgermq witness",
        ) from None


def groups_in(directory: Path) -> list[str]:
    """The broker groups of which a witness keeps checkpoints."""
    place = directory / _GROUPS
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def accepted_of(directory: Path, group: str) -> dict[int, Note]:
    """The accepted checkpoints of a broker group by size. Raises Unreadable if one of them is
    damaged."""
    return accepted_in(directory / _GROUPS / group)


def accepted_in(place: Path) -> dict[int, Note]:
    """The checkpoints in the directory of a broker group by size: all of one log."""
    found: dict[int, Note] = {}
    logs: set[LogName] = set()
    for path in sorted(place.glob(f"*{_SUFFIX}")):
        try:
            note = parse_note(path.read_bytes().decode())
            checkpoint = Checkpoint.parse(note.text)
            logs.add(checkpoint.log)
            if (
                path.name != _name(checkpoint.size)
                or checkpoint.log.broker_group != place.name
                or len(logs) > 1
            ):
                raise ValueError(f"it is of {checkpoint.size} files of {checkpoint.log}")
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from None
        found[checkpoint.size] = note
    return found


def _name(size: int) -> str:
    return f"{size:0{_DIGITS}}{_SUFFIX}"


def _damaged(path: Path, error: Any) -> Unreadable:
    return Unreadable(
        f"the file {path} of the witness is damaged: {error}",
        "restore the directory of the witness from a copy",
    )


def _new_key(name: str) -> bytes:
    """The text of a new private key, in the form that tools for signed notes use."""
    seed = ed25519.new_seed()
    public = VerifierKey(name, COSIGNATURE, ed25519.signing_key(seed)[1])
    try:
        VerifierKey.parse(str(public))
    except ValueError as error:
        raise BadArgument(str(error), "give another --name") from None
    encoded = base64.b64encode(bytes([COSIGNATURE]) + seed).decode()
    return f"{_PREFIX}{name}+{public.key_id.hex()}+{encoded}\n".encode()


def _read_key(path: Path) -> tuple[VerifierKey, Signer]:
    try:
        name, key_id, encoded = (
            path.read_bytes().decode().removesuffix("\n").removeprefix(_PREFIX).split("+", 2)
        )
        material = base64.b64decode(encoded, validate=True)
        if len(material) != 1 + ed25519.SEED_BYTES or material[0] != COSIGNATURE:
            raise ValueError("it is not the key of a witness")
        signer, public = ed25519.signing_key(material[1:])
        key = VerifierKey(name, COSIGNATURE, public)
        if key.key_id.hex() != key_id:
            raise ValueError("its id is wrong")
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return key, signer


def _write(path: Path, content: bytes, mode: int = 0o640) -> None:
    """Replace a file at once and durably. Raises BadArgument if the disk does not take it."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, mode=0o750)
            for place in (path.parent, *path.parent.parents[:4]):
                sync_directory(place)
        replace_file(path, content, mode)
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be written ({error.strerror})",
            "check the disk and the directory of the witness",
        ) from None
