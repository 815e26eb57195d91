"""Comparing receipts of producers with the stored messages of one bucket: lost, stored twice, out
of order, or different from the receipt.

A receipt is split into its messages, whose ids follow from producer, epoch and sequence number. A
message is judged only where the log can be read: trimmed and unreadable messages are counted. A
message acknowledged from memory may be lost without a fault of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.audit.clients.bucket_results import Bucket, Results, one
from ledgermq.audit.clients.logged_messages import native_ids_of
from ledgermq.audit.clients.scope import Scope
from ledgermq.audit.reading.decode import I64, Flags, crc

Tell = Callable[[str, Flags, str], None]
"""Makes a finding of a rule, with this proof, for each receipt with chosen messages."""
NUMBERS = (
    "file",
    "row",
    "producer_id",
    "epoch",
    "sequence",
    "skip",
    "length",
    "count",
    "term",
    "first_index",
    "chain_crc",
    "store_ms",
)


class Receipts:
    """Pieces of receipts, one row per message. `of`: the piece of each message, `nth`: its index in
    its receipt."""

    def __init__(self, pieces: pa.Table) -> None:
        self.pieces = pieces
        self.numbers = {name: pieces.column(name).to_numpy().astype(np.int64) for name in NUMBERS}
        lengths = self.numbers["length"]
        self.of = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(self.of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self.nth = self.number("skip") + within
        self.sequence = self.number("sequence") + within
        self.index = self.number("first_index") + self.nth
        logs = one(pieces.column("log_id")).dictionary_encode()
        tags = np.array([crc(text.encode()) for text in logs.dictionary.to_pylist()], np.int64)
        own = (
            tags[logs.indices.to_numpy(zero_copy_only=False)][self.of]
            if len(self.of)
            else np.zeros(0, np.int64)
        )
        self.ids = native_ids_of(
            own, self.number("producer_id"), self.number("epoch"), self.sequence.astype(np.uint64)
        )
        take = pa.array(self.of)
        self.groups, self.topics = (
            one(pieces.column(name)).take(take) for name in ("broker_group", "topic")
        )
        self.durable, self.master = (
            one(pieces.column(name)).take(take).to_numpy(zero_copy_only=False).astype(np.bool_)
            for name in ("durable", "master")
        )

    def __len__(self) -> int:
        return len(self.of)

    def number(self, name: str) -> I64:
        """A column of the receipts, for each message."""
        values: I64 = self.numbers[name][self.of]
        return values


def judge_receipts(
    bucket: Bucket, receipts: Receipts, scopes: Mapping[str, Scope], results: Results
) -> None:
    begin, number = bucket.find(bucket.codes[0])
    at = (
        bucket.order[np.minimum(begin, max(len(bucket.order) - 1, 0))]
        if len(bucket.order)
        else np.zeros(len(begin), np.int64)
    )
    for row in np.flatnonzero(number > 1).tolist():
        # If several messages have the id, take the acknowledged one if it is among them.
        places = bucket.order[begin[row] : begin[row] + number[row]]
        same = places[bucket.index[places] == receipts.index[row]]
        at[row] = same[0] if len(same) else places[0]
    known_code = number > 0
    claimed_ms = receipts.number("store_ms")

    def tell(result: str, chosen: Flags, proof: str) -> None:
        """Make a finding for each receipt with such messages, and count the messages."""
        if chosen.any():
            results.count(
                result.removeprefix("client."), receipts.groups, receipts.topics, claimed_ms, chosen
            )
            _tell_receipts(receipts, results, result, chosen, proof)

    open_ = np.ones(len(receipts), np.bool_)
    for result, chosen in _out_of_reach(receipts, scopes, known_code):
        results.count(result, receipts.groups, receipts.topics, claimed_ms, chosen & open_)
        open_ &= ~chosen
    gone = open_ & ~known_code & ~receipts.durable
    results.count("memory", receipts.groups, receipts.topics, claimed_ms, gone & ~receipts.master)
    results.count("master", receipts.groups, receipts.topics, claimed_ms, gone & receipts.master)
    tell(
        "client.lost",
        open_ & ~known_code & receipts.durable,
        "acknowledged as durable, but not stored up to the compared index",
    )
    results.count("acknowledged", receipts.groups, receipts.topics, claimed_ms, open_ & known_code)
    tell("client.twice", open_ & (number > 1), "stored more than once")
    sure = open_ & known_code & receipts.durable
    _tell_differences(bucket, receipts, at, sure, tell)
    _tell_order(bucket, receipts, at, sure, tell)


def _out_of_reach(
    receipts: Receipts, scopes: Mapping[str, Scope], known_code: Flags
) -> list[tuple[str, Flags]]:
    """Messages of receipts about entries that cannot be read, but do not count as missing."""
    groups = receipts.groups.dictionary_encode()
    code = groups.indices.to_numpy(zero_copy_only=False)
    foreign, trimmed, unreadable, beyond = (np.zeros(len(receipts), np.bool_) for _ in range(4))
    logs = one(receipts.pieces.column("log_id")).take(pa.array(receipts.of))
    for number, name in enumerate(groups.dictionary.to_pylist()):
        of_code, scope = code == number, scopes.get(name)
        if scope is None:
            foreign |= of_code
            continue
        known = pc.is_in(logs, pa.array(scope.log_ids, pa.string())).to_numpy(zero_copy_only=False)
        foreign |= of_code & ~known
        trimmed |= of_code & (receipts.index < scope.begin)
        unreadable |= of_code & _within(receipts.index, scope.unreadable)
        beyond |= of_code & (receipts.index > scope.last) & (not scope.whole)
    return [
        ("foreign", foreign),
        ("trimmed", trimmed),
        ("unreadable", unreadable),
        ("beyond", beyond & ~known_code),
    ]


def _within(index: I64, ranges: Sequence[tuple[int, int]]) -> Flags:
    """Whether each entry lies in one of the ranges, which are sorted."""
    firsts, lasts = (np.array([bounds[side] for bounds in ranges], np.int64) for side in (0, 1))
    before = np.searchsorted(firsts, index, side="right")
    inside: Flags = (before > 0) & (
        index <= np.append(np.maximum.accumulate(lasts), -1)[before - 1]
    )
    return inside


def _tell_differences(bucket: Bucket, receipts: Receipts, at: I64, sure: Flags, tell: Tell) -> None:
    """Stored, but not as in the receipt: another place in the log, or another term, time, topic,
    queue offset or chain CRC."""
    if not sure.any():
        return
    same_topic = pc.equal(bucket.topics.take(pa.array(at)), receipts.topics).to_numpy(
        zero_copy_only=False
    )
    low, high = _ranges(receipts, bucket.queue[at])
    offset = bucket.offset[at]
    last = receipts.nth == receipts.number("count") - 1
    checks = (
        ("its entry has another index than the receipt says", bucket.index[at] != receipts.index),
        (
            "its entry has another term than the receipt says",
            bucket.term[at] != receipts.number("term"),
        ),
        (
            "its entry has another store time than the receipt says",
            bucket.store_ms[at] != receipts.number("store_ms"),
        ),
        ("it is stored in another topic than the receipt says", ~same_topic),
        ("its queue offset is not in the ranges of the receipt", (offset < low) | (offset >= high)),
        (
            "the chain CRC of its entry is not the receipt's",
            last & (bucket.chain[at] != receipts.number("chain_crc")),
        ),
    )
    reported = np.zeros(len(receipts), np.bool_)
    for proof, differs in checks:
        tell("client.receipt", sure & differs & ~reported[receipts.of], proof)
        hurt = np.unique(receipts.of[sure & differs])
        reported[hurt] = True


def _ranges(receipts: Receipts, queues: I64) -> tuple[I64, I64]:
    """The queue offsets [low, high) that each message's receipt gives for a queue; an empty range
    for a queue that it does not name."""
    ranges = one(receipts.pieces.column("ranges"))
    owner = pc.list_parent_indices(ranges).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = ranges.flatten()
    if not len(flat):
        return np.zeros(len(queues), np.int64), np.zeros(len(queues), np.int64)
    fields = [pc.struct_field(flat, name) for name in ("queue", "first_offset", "count")]
    queue, first, count = (
        field.to_numpy(zero_copy_only=False).astype(np.int64) for field in fields
    )
    keys = owner << 32 | queue
    order = np.argsort(keys, kind="stable")
    wanted = receipts.of << 32 | queues
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    known = keys[order][place] == wanted
    low = np.where(known, first[order][place], 0)
    return low, np.where(known, low + count[order][place], 0)


def _tell_order(bucket: Bucket, receipts: Receipts, at: I64, sure: Flags, tell: Tell) -> None:
    """For one producer, an acknowledged message with a higher sequence number is stored later in
    the log."""
    rows = np.flatnonzero(sure)
    if len(rows) < 2:
        return
    log = receipts.groups.dictionary_encode().indices.to_numpy(zero_copy_only=False)[rows]
    producer, sequence = receipts.number("producer_id")[rows], receipts.sequence[rows]
    order = np.lexsort((sequence, producer, log))
    same = (
        (np.diff(log[order]) == 0)
        & (np.diff(producer[order]) == 0)
        & (np.diff(sequence[order]) > 0)
    )
    late = np.zeros(len(receipts), np.bool_)
    late[rows[order[1:][same & (np.diff(bucket.index[at[rows]][order]) <= 0)]]] = True
    tell("client.order", late, "a message that its producer sent earlier is behind it in the log")


def _tell_receipts(
    receipts: Receipts, results: Results, rule: str, chosen: Flags, proof: str
) -> None:
    rows = np.flatnonzero(chosen)
    pieces, first, count = np.unique(receipts.of[rows], return_index=True, return_counts=True)
    for piece, at, n in zip(pieces.tolist(), rows[first].tolist(), count.tolist(), strict=True):
        numbers = {name: int(column[piece]) for name, column in receipts.numbers.items()}
        who = f"producer {numbers['producer_id']}, sequence number {int(receipts.sequence[at])}"
        group, topic = receipts.groups[at].as_py(), receipts.topics[at].as_py()
        results.finding(
            rule,
            group,
            topic,
            file=numbers["file"],
            row=numbers["row"],
            index=int(receipts.index[at]),
            n=n,
            proof=f"{who}: {proof}",
        )
