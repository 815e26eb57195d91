"""The verdict on a proof: entry, entries tree, log tree, signatures, and continuity. Pure
functions; nothing is asked of a cluster.

Law: everything that a verdict says was computed from the bytes of the entry, the trusted keys and,
for continuity, the older checkpoint.
"""

from __future__ import annotations

from crc32c import crc32c

from ledgermq.client.errors import Incomplete
from ledgermq.client.proofs.keys import TrustedKeys
from ledgermq.client.proofs.proof import Message, Proof, Proven, Refuted, Since
from ledgermq.proto import log_pb2
from ledgermq.proto.entries.compression import BadBody, decompress
from ledgermq.proto.entries.layout import (
    CRC_WORDS_AT,
    ENTRY_HEAD,
    ENTRY_MAGIC,
    ENTRY_MIN_BYTES,
    HEADER_BYTES,
)
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import message_id_of
from ledgermq.proto.proofs.log_tree import check_consistency, leaf_hash, root_of_inclusion
from ledgermq.proto.proofs.signed_notes import Checkpoint, Note, Verified

NOT_TRUE = "keep the file and ask who made it"


def verify(proof: Proof, keys: TrustedKeys, since: Note | None = None) -> Proven:
    """Check the proof, and with `since` that its log continues the one of this older checkpoint.
    Raises Refuted if something is false, and Incomplete if nothing is false and too few known nodes
    have signed, or the proof has no path from that checkpoint."""
    try:
        checkpoint = Checkpoint.parse(proof.checkpoint.text)
        index, term, message = check_paths(proof, checkpoint)
        signers = keys.signers(proof.checkpoint, checkpoint)
        old = None if since is None else check_since(proof.since, checkpoint, since, keys)
    except ValueError as error:
        raise Refuted(f"REFUTED: {error}", NOT_TRUE) from None
    enough_signed(signers, checkpoint, keys)
    return Proven(
        message=message,
        index=index,
        term=term,
        checkpoint=checkpoint,
        signers=tuple(signers),
        since=old,
    )


def check_paths(proof: Proof, checkpoint: Checkpoint) -> tuple[int, int, Message]:
    """Check an entry and its paths up to the root of the checkpoint; signatures are not looked at.
    The entry's index, term and message. Raises ValueError with what is false."""
    index, term, position = _header(proof.entry)
    leaf = proof.leaf
    if not leaf.first <= index < leaf.first + leaf.entries:
        raise ValueError(
            f"entry {index} is not one of the {leaf.entries} entries of the file, which begin at"
            f" {leaf.first}"
        )
    last = index == leaf.first + leaf.entries - 1
    begins, ends = position - leaf.base, leaf.end - position - len(proof.entry)
    if begins < 0 or ends < 0 or (begins == 0) != (index == leaf.first) or (ends == 0) != last:
        raise ValueError(
            f"entry {index} does not lie in its file: position {position}, file {leaf.base} to"
            f" {leaf.end}"
        )
    root = root_of_inclusion(
        leaf_hash(proof.entry), index - leaf.first, leaf.entries, proof.entry_path
    )
    if root != leaf.root:
        raise ValueError(
            f"entry {index} is not in the tree of its file: the path leads to another root"
        )
    root = root_of_inclusion(leaf.hash(), proof.file_number, checkpoint.size, proof.log_path)
    if root != checkpoint.root:
        raise ValueError(
            f"file {proof.file_number} is not in the tree of the checkpoint: the path leads to"
            " another root"
        )
    return index, term, message_of(proof.entry)


def check_since(
    since: Since | None, checkpoint: Checkpoint, note: Note, keys: TrustedKeys
) -> Checkpoint:
    """Check that the log continues an older checkpoint, which a known key signed. Raises ValueError
    with what is false."""
    old = Checkpoint.parse(note.text)
    if old.log != checkpoint.log:
        raise ValueError(
            f"the older checkpoint is of the log {old.log}, this one of {checkpoint.log}"
        )
    if not keys.signers(note, old):
        raise Incomplete(
            "NOT PROVEN: no known key has signed the older checkpoint",
            "give the checkpoint that you or your witness kept",
        )
    if old.size > checkpoint.size:
        raise ValueError(
            f"the log had {old.size} sealed files, and has {checkpoint.size} now: its end is"
            " withheld, or it was rolled back"
        )
    if since is None or since.size != old.size:
        what = f"NOT PROVEN: the proof has no path from the tree of {old.size} files"
        raise Incomplete(what, "make the proof with --since and this checkpoint")
    check_consistency(old.size, old.root, checkpoint.size, checkpoint.root, since.path)
    return old


def enough_signed(signers: list[Verified], checkpoint: Checkpoint, keys: TrustedKeys) -> None:
    """Raise Incomplete unless as many known replicas of the broker group have signed as must."""
    nodes, needed = keys.counted(signers, checkpoint), keys.needed(checkpoint.log)
    if len(nodes) < needed:
        said = f"signed by {', '.join(sorted(nodes))}" if nodes else "signed by no known node"
        what = (
            f"NOT PROVEN: the checkpoint of {checkpoint.log} is {said}; {needed} known nodes must"
            " have signed"
        )
        if keys.names(checkpoint.log):
            raise Incomplete(
                what, "make the proof while more nodes answer, or complete the key file"
            )
        remedy = (
            "the key file does not name the replicas of the group: write it anew with ledgermq"
            " checkpoint keys, or give --quorum"
        )
        raise Incomplete(what, remedy)


def _header(entry: bytes) -> tuple[int, int, int]:
    """Index, term and position of an entry whose sizes and CRC fit."""
    if len(entry) < ENTRY_MIN_BYTES:
        raise ValueError(f"an entry has at least {ENTRY_MIN_BYTES} bytes, not {len(entry)}")
    magic, size, index, term, position = ENTRY_HEAD.unpack_from(entry)
    _, body_crc, body_size = (
        int.from_bytes(entry[at : at + 4], "big")
        for at in range(CRC_WORDS_AT, CRC_WORDS_AT + 12, 4)
    )
    if magic != ENTRY_MAGIC or size != len(entry) or body_size != size - HEADER_BYTES:
        raise ValueError("the header of the entry does not fit its bytes")
    if crc32c(entry[HEADER_BYTES:]) != body_crc:
        raise ValueError(f"the body of entry {index} does not fit its CRC")
    return index, term, position


def message_of(entry: bytes) -> Message:
    """The message in the record of an entry. Raises ValueError."""
    record = decode_record(entry[HEADER_BYTES:])
    try:
        body = decompress(record.body, record.sysflag)
    except BadBody as error:
        raise ValueError(str(error)) from None
    return Message(
        message_id=message_id_of(record.properties),
        topic=record.topic,
        queue=record.queue,
        offset=record.queue_offset,
        store_ms=record.store_ms,
        body=body,
    )


def check_receipt(proven: Proven, receipt: log_pb2.Receipt, entry: bytes) -> None:
    """Check that the proven entry holds a message of this receipt. Raises Refuted."""
    log, message = proven.checkpoint.log, proven.message
    number = proven.index - receipt.first_index
    in_frame = 0 <= number < receipt.count
    in_ranges = any(
        item.queue == message.queue
        and item.first_offset <= message.offset < item.first_offset + item.count
        for item in receipt.ranges
    )
    chain = int.from_bytes(entry[CRC_WORDS_AT : CRC_WORDS_AT + 4], "big")
    wrong = {
        "cluster": (receipt.cluster_id, log.cluster_id),
        "broker group": (receipt.broker_group, log.broker_group),
        "log": (receipt.log_id, log.log_id),
        "topic": (receipt.topic, message.topic),
        "term": (receipt.term, proven.term),
        "store time": (receipt.store_ms, message.store_ms),
    }
    for what, (said, found) in wrong.items():
        if said != found:
            raise Refuted(
                f"REFUTED: the receipt is of the {what} {said}, the entry of {found}", NOT_TRUE
            )
    if not in_frame or not in_ranges:
        raise Refuted(
            f"REFUTED: entry {proven.index} is none of the {receipt.count} messages of the receipt",
            NOT_TRUE,
        )
    if number == receipt.count - 1 and chain != receipt.chain_crc:
        raise Refuted(
            f"REFUTED: entry {proven.index} does not have the chain CRC of the receipt", NOT_TRUE
        )
