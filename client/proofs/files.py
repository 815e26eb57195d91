"""Reading the files that the commands about proofs take. A file that cannot be opened is a wrong
argument; one that is something else is Unreadable."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ledgermq.client.cli.commands import file_bytes
from ledgermq.client.errors import BadArgument
from ledgermq.client.messages.receipts import rows
from ledgermq.client.proofs.keys import TrustedKeys
from ledgermq.client.proofs.proof import Proof, Unreadable
from ledgermq.proto import log_pb2
from ledgermq.proto.proofs.receipts import receipt_of
from ledgermq.proto.proofs.signed_notes import Checkpoint, Note, parse_note

T = TypeVar("T")


def _read(path: Path, description: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(file_bytes(path).decode())
    except ValueError as error:
        raise Unreadable(
            f"the file {path} is not {description}: {error}", "give the file as it was written"
        ) from None


def read_proof(path: Path) -> Proof:
    return _read(path, "a proof", Proof.parse)


def read_keys(path: Path, quorum: int | None) -> TrustedKeys:
    return _read(path, "a key file", lambda text: TrustedKeys.parse(text, quorum))


def read_checkpoint(path: Path) -> tuple[Note, Checkpoint]:
    """A kept checkpoint; its signatures are not verified."""

    def parse(text: str) -> tuple[Note, Checkpoint]:
        note = parse_note(text)
        return note, Checkpoint.parse(note.text)

    return _read(path, "a checkpoint", parse)


def read_receipt(path: Path, row: int) -> log_pb2.Receipt:
    """The receipt in one row of a file of receipts, from 1."""
    row_read = next(islice(rows(path), row - 1, None), None)
    if row_read is None:
        raise BadArgument(f"the file {path} has fewer than {row} receipts", "give another --row")
    try:
        return receipt_of(row_read)
    except ValueError as error:
        raise Unreadable(
            f"row {row} of {path} is not a receipt: {error}",
            "give the file that the producer wrote",
        ) from None
