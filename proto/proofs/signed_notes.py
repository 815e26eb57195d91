"""Signed notes, checkpoints and cosignatures as text (docs/format.md).

The formats are those of C2SP: signed-note (c2sp.org/signed-note), tlog-checkpoint
(c2sp.org/tlog-checkpoint) and the Ed25519 cosignatures of witnesses (c2sp.org/tlog-cosignature). A
parser accepts only the bytes that the formatter writes, so a note has one form. The Ed25519
functions are passed in: `Signer` signs a message, `Verifier` checks a signature.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

from ledgermq.proto.proofs.log_tree import HASH_BYTES

ED25519 = 0x01
"""The signature type of a node: Ed25519 over the text of the note."""
COSIGNATURE = 0x04
"""The signature type of a witness: Ed25519 over a timestamp and the text."""
PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
NOTE_BYTES_MAX = 64 << 10
SIGNATURES_MAX = 64
_DASH = "\u2014 "
_TIME = Struct(">Q")
_TIME_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_ORIGIN = "ledgermq"

Signer = Callable[[bytes], bytes]
"""Signs a message: 64 bytes of Ed25519."""
Verifier = Callable[[bytes, bytes, bytes], bool]
"""Whether (public key, signature, message) belong together."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line of a note: who signed, with which key, and the bytes behind the key id."""

    name: str
    key_id: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A text, which ends with a newline, and its signatures in order. Nothing is verified yet."""

    text: str
    signatures: tuple[Signature, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public half of a key: the name of its owner, the signature type (ED25519 or COSIGNATURE)
    and 32 bytes."""

    name: str
    kind: int
    public: bytes

    @property
    def key_id(self) -> bytes:
        """The four bytes that signature lines carry."""
        return sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_base64(bytes([self.kind]) + self.public)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """The inverse of `str`. Raises ValueError for anything else."""
        name, _, rest = text.partition("+")
        key_id, _, encoded = rest.partition("+")
        material = _bytes(encoded, "a verifier key")
        if len(material) != 1 + PUBLIC_BYTES or material[0] not in (ED25519, COSIGNATURE):
            raise ValueError("a verifier key is an Ed25519 key of type 1 or 4")
        key = cls(_name(name), material[0], material[1:])
        if key.key_id.hex() != key_id:
            raise ValueError(
                f"the id of the verifier key {name} is {key.key_id.hex()}, not {key_id!r}"
            )
        return key


@dataclass(frozen=True, slots=True)
class Verified:
    """A signature that was verified: by which key, and the time of a cosignature in seconds since
    1970."""

    key: VerifierKey
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class LogName:
    """The log that a checkpoint speaks of: one broker group of one cluster, and the log that it has
    now."""

    cluster_id: str
    broker_group: str
    log_id: str

    def __str__(self) -> str:
        return "/".join((_ORIGIN, self.cluster_id, self.broker_group, self.log_id))

    @classmethod
    def parse(cls, origin: str) -> LogName:
        """The inverse of `str`. Raises ValueError for anything else."""
        parts = origin.split("/")
        if len(parts) != 4 or parts[0] != _ORIGIN or not all(parts):
            raise ValueError(f"expected an origin {_ORIGIN}/CLUSTER/GROUP/LOG, got {origin!r}")
        _, cluster_id, broker_group, log_id = parts
        return cls(cluster_id, broker_group, log_id)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size and root of a log tree: what nodes sign and witnesses cosign."""

    log: LogName
    size: int
    root: bytes

    def text(self) -> str:
        """The text of the note: three lines."""
        return f"{self.log}\n{self.size}\n{_base64(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """The inverse of `text`. Raises ValueError for anything else; extension lines are refused,
        because no proof covers them."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3]:
            raise ValueError("a checkpoint has three lines: origin, size and root")
        root = _bytes(lines[2], "the root of a checkpoint")
        if len(root) != HASH_BYTES:
            raise ValueError(f"the root of a checkpoint has {HASH_BYTES} bytes, not {len(root)}")
        return cls(LogName.parse(lines[0]), _number(lines[1]), root)


def format_note(note: Note) -> str:
    """The note as text."""
    lines = (
        f"{_DASH}{each.name} {_base64(each.key_id + each.value)}\n" for each in note.signatures
    )
    return note.text + "\n" + "".join(lines)


def parse_note(text: str) -> Note:
    """The inverse of `format_note`. Raises ValueError with the reason for anything else. Signatures
    of any type are kept."""
    if len(text.encode()) > NOTE_BYTES_MAX:
        raise ValueError(f"a note has at most {NOTE_BYTES_MAX} bytes")
    if _CONTROL.search(text):
        raise ValueError("a note has no control characters")
    body, separator, rest = text.rpartition("\n\n")
    lines = rest.split("\n")
    if not separator or lines.pop():
        raise ValueError(
            "a note is a text, an empty line and lines of signatures, each ended by a newline"
        )
    if not 0 < len(lines) <= SIGNATURES_MAX:
        raise ValueError(f"a note has 1 to {SIGNATURES_MAX} signatures, not {len(lines)}")
    return Note(body + "\n", tuple(_signature(line) for line in lines))


def sign(text: str, key: VerifierKey, signer: Signer) -> Signature:
    """Sign the text as a node does."""
    if key.kind != ED25519:
        raise ValueError(f"{key.name} is a key of a witness: cosign with it")
    return Signature(key.name, key.key_id, signer(text.encode()))


def cosign(text: str, key: VerifierKey, seconds: int, signer: Signer) -> Signature:
    """Cosign the text of a checkpoint as a witness does, at a time in seconds since 1970."""
    if key.kind != COSIGNATURE:
        raise ValueError(f"{key.name} is not a key of a witness")
    return Signature(key.name, key.key_id, _TIME.pack(seconds) + signer(_cosigned(text, seconds)))


def verify(note: Note, keys: Iterable[VerifierKey], verifier: Verifier) -> list[Verified]:
    """The signatures of known keys, in the order of the note; those of unknown keys are ignored.
    Raises ValueError if a signature of a known key is false, or if a known key signed twice."""
    known = {(key.name, key.key_id): key for key in keys}
    found: dict[VerifierKey, Verified] = {}
    for each in note.signatures:
        key = known.get((each.name, each.key_id))
        if key is None:
            continue
        if key in found:
            raise ValueError(f"{key.name} signed the note twice")
        found[key] = _verified(note.text, each, key, verifier)
    return list(found.values())


def _verified(text: str, signature: Signature, key: VerifierKey, verifier: Verifier) -> Verified:
    wrong = ValueError(f"the signature of {key.name} is false")
    seconds, value, message = None, signature.value, text.encode()
    if key.kind == COSIGNATURE:
        if len(value) != _TIME.size + SIGNATURE_BYTES:
            raise wrong
        (seconds,) = _TIME.unpack_from(value)
        value, message = value[_TIME.size :], _cosigned(text, seconds)
    if (
        len(value) != SIGNATURE_BYTES
        or (seconds or 0) > _TIME_MAX
        or not verifier(key.public, value, message)
    ):
        raise wrong
    return Verified(key, seconds)


def _cosigned(text: str, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()


def _signature(line: str) -> Signature:
    name, separator, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not separator:
        raise ValueError(f"expected a signature line, got {line!r}")
    value = _bytes(encoded, "a signature")
    if len(value) <= 4:
        raise ValueError("a signature has four bytes of key id and more behind them")
    return Signature(_name(name), value[:4], value[4:])


def _name(name: str) -> str:
    if not name or "+" in name or any(character.isspace() for character in name):
        raise ValueError(
            f"the name of a key is not empty and has neither spaces nor a plus sign: {name!r}"
        )
    return name


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _TIME_MAX:
        raise ValueError(f"expected a decimal number without leading zeros, got {text!r}")
    return int(text)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str, what: str) -> bytes:
    """Decode base64, in its only form with padding."""
    try:
        value = base64.b64decode(text, validate=True)
    except ValueError:
        value = b""
    if not value or _base64(value) != text:
        raise ValueError(f"{what} is base64, not {text!r}")
    return value
