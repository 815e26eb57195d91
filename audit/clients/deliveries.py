"""Comparing deliveries to consumers with the stored messages of one bucket: never stored,
redelivered after acknowledgement, out of order.

Times are those of the clients' clocks: within one file they are compared exactly, across files with
a tolerance for clock differences. Redeliveries that a consumer requested, or that an operator
caused by moving a group, are correct.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.audit.clients.bucket_results import CLOCKS_MS, Bucket, Results, numbers, one
from ledgermq.audit.clients.scope import Scope
from ledgermq.audit.reading.decode import I64, Flags


def judge_deliveries(
    bucket: Bucket, rows: pa.Table, scopes: Mapping[str, Scope], results: Results
) -> None:
    begin, number = bucket.find(bucket.codes[1])
    groups, topics = (one(rows.column(name)) for name in ("broker_group", "topic"))
    queue, offset = (numbers(rows.column(name)) for name in ("queue", "offset"))
    delivered, acknowledged = (
        numbers(rows.column(name)) for name in ("delivered_ms", "acknowledged_ms")
    )
    at = np.full(rows.num_rows, -1, np.int64)
    for turn in range(int(number.max(initial=0))):
        # A message id may have several places, if the message was sent again or was delayed: any
        # that fits is accepted.
        open_ = np.flatnonzero((at < 0) & (number > turn))
        places = bucket.order[begin[open_] + turn]
        take, mine = pa.array(places), pa.array(open_)
        named = pc.and_(
            pc.equal(bucket.topics.take(take), topics.take(mine)),
            pc.fill_null(pc.equal(bucket.groups.take(take), groups.take(mine)), True),
        )
        fits = named.to_numpy(zero_copy_only=False).astype(np.bool_)
        fits &= (queue[open_] < 0) | (bucket.queue[places] == queue[open_])
        fits &= (offset[open_] < 0) | (bucket.offset[places] == offset[open_])
        at[open_[fits]] = places[fits]
    is_stored = at >= 0
    where = np.where(is_stored, bucket.store_ms[at] if len(bucket.store_ms) else 0, delivered)
    owner = pc.coalesce(groups, _owners(bucket, at))
    results.count("delivered", owner, topics, where, is_stored)
    results.count("consumed", owner, topics, where, is_stored & (acknowledged >= 0))
    lost = ~is_stored
    for result, chosen in _deliveries_out_of_reach(rows, scopes):
        results.count(result, owner, topics, where, chosen & lost)
        lost &= ~chosen
    results.count("phantom", owner, topics, where, lost)
    for row in np.flatnonzero(lost).tolist():
        elsewhere = number[row] > 0
        proof = "delivered, and no message with this id is stored"
        if elsewhere:
            place = int(bucket.order[begin[row]])
            stored = (
                f"{bucket.topics[place]}, queue {bucket.queue[place]} of {bucket.groups[place]},"
                f" offset {bucket.offset[place]}"
            )
            proof = (
                f"delivered from queue {queue[row]}, offset {offset[row]}; the message with this id"
                f" is stored in {stored}"
            )
        _tell_delivery(results, "client.phantom", rows, row, index=None, proof=proof)
    _judge_again(bucket, rows, at, delivered, acknowledged, scopes=scopes, results=results)


def _owners(bucket: Bucket, at: I64) -> pa.Array:
    """The broker group of each message that was found."""
    if not len(bucket.groups):
        return pa.nulls(len(at), pa.string())
    return bucket.groups.take(pa.array(at, mask=at < 0))


def _deliveries_out_of_reach(
    rows: pa.Table, scopes: Mapping[str, Scope]
) -> list[tuple[str, Flags]]:
    """Deliveries of messages that need not be found: of another broker group, trimmed, possibly
    damaged, or behind the compared index.

    Without a broker group any of the given ones may be meant; without an offset any message may
    have been trimmed.
    """
    count = rows.num_rows
    foreign, trimmed, unreadable, beyond = (np.zeros(count, np.bool_) for _ in range(4))
    groups, topics = one(rows.column("broker_group")), one(rows.column("topic"))
    queue, offset, delivered = (
        numbers(rows.column(name)) for name in ("queue", "offset", "delivered_ms")
    )
    named = pc.fill_null(groups, "").to_numpy(zero_copy_only=False)
    foreign |= ~np.isin(named, ["", *scopes])
    texts = topics.to_numpy(zero_copy_only=False)
    for name, scope in scopes.items():
        of_group = (named == name) | (named == "")
        unreadable |= of_group & bool(scope.unreadable)
        beyond |= of_group & (not scope.whole) & (delivered > scope.last_store_ms - CLOCKS_MS)
        if scope.begin:
            lows = [
                scope.lows.get(topic, {}).get(str(number))
                for topic, number in zip(texts.tolist(), queue.tolist(), strict=True)
            ]
            below = np.array(
                [
                    low is None or place < low
                    for low, place in zip(lows, offset.tolist(), strict=True)
                ],
                np.bool_,
            )
            trimmed |= of_group & ((offset < 0) | (queue < 0) | below)
    return [
        ("foreign", foreign),
        ("trimmed", trimmed),
        ("unreadable", unreadable),
        ("beyond", beyond),
    ]


def _judge_again(
    bucket: Bucket,
    rows: pa.Table,
    at: I64,
    delivered: I64,
    acknowledged: I64,
    scopes: Mapping[str, Scope],
    results: Results,
) -> None:
    """A consumer group does not receive what it acknowledged, unless it moved back itself or an
    operator moved it."""
    members = pc.fill_null(one(rows.column("consumer_group")), "").dictionary_encode()
    group = members.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names, topics = members.dictionary.to_pylist(), one(rows.column("topic"))
    free = {name for scope in scopes.values() for name in scope.broadcast}
    judged = np.array([bool(name) and name not in free for name in names], np.bool_)[group]
    for name, topic in {
        pair for scope in scopes.values() for pair in scope.resets if pair[0] in names
    }:
        judged &= (group != names.index(name)) | pc.not_equal(topics, topic).to_numpy(
            zero_copy_only=False
        )
    sought = rows.column("sought").to_numpy().astype(np.bool_)
    chosen = np.flatnonzero((at >= 0) & judged)
    if len(chosen) < 2:
        return
    file = numbers(rows.column("file"))
    order = chosen[np.lexsort((delivered[chosen], at[chosen], group[chosen]))]
    edges = np.flatnonzero(
        np.append(True, (np.diff(group[order]) != 0) | (np.diff(at[order]) != 0))
    )
    again = np.zeros(rows.num_rows, np.bool_)
    for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        mine = order[begin:end]
        done = mine[acknowledged[mine] >= 0]
        if len(mine) < 2 or not len(done):
            continue
        first = done[int(np.argmin(acknowledged[done]))]
        apart = np.where(file[mine] == file[first], 0, CLOCKS_MS)
        again[mine[(delivered[mine] > acknowledged[first] + apart) & ~sought[mine]]] = True
    place = np.maximum(at, 0)
    results.count("redelivered", _owners(bucket, at), topics, bucket.store_ms[place], again)
    for row in np.flatnonzero(again).tolist():
        proof = f"delivered to consumer group {names[group[row]]}, which had acknowledged it before"
        _tell_delivery(
            results, "client.redelivered", rows, row, index=int(bucket.index[at[row]]), proof=proof
        )


def judge_order(rows: pa.Table, scopes: Mapping[str, Scope]) -> pa.Table:
    """For deliveries of one bucket of message groups: a FIFO consumer group first receives the
    messages of each group in order."""
    results = Results(1)
    fifo = {name for scope in scopes.values() for name in scope.fifo}
    moved = {pair for scope in scopes.values() for pair in scope.resets}
    keys = ["consumer_group", "topic", "message_group", "broker_group", "queue"]
    for key, part in _parts(rows, keys):
        if key[0] not in fifo or (key[0], key[1]) in moved:
            continue
        offset, delivered, file = (
            numbers(part.column(name)) for name in ("offset", "delivered_ms", "file")
        )
        apart = 0 if len(np.unique(file)) == 1 else CLOCKS_MS
        order = np.lexsort((delivered, offset))
        first = order[np.flatnonzero(np.append(True, np.diff(offset[order]) != 0))]
        before = np.maximum.accumulate(delivered[first])
        for place in (np.flatnonzero(delivered[first][1:] < before[:-1] - apart) + 1).tolist():
            row = int(first[place])
            proof = (
                f"offset {int(offset[row])} of message group {key[2]} was delivered to consumer"
                f" group {key[0]} before an earlier one"
            )
            _tell_delivery(results, "client.order", rows=part, row=row, index=None, proof=proof)
    return results.table()


def _parts(rows: pa.Table, keys: list[str]) -> list[tuple[tuple[str, ...], pa.Table]]:
    ordered = rows.sort_by([(key, "ascending") for key in keys])
    codes = [
        one(ordered.column(key)).dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)
        for key in keys
    ]
    edges = (
        np.flatnonzero(
            np.append(True, np.any([np.diff(code) != 0 for code in codes], axis=0))
        ).tolist()
        if ordered.num_rows
        else []
    )
    parts = []
    for begin, end in zip(edges, [*edges[1:], ordered.num_rows], strict=True):
        part = ordered.slice(begin, end - begin)
        parts.append((tuple(str(part.column(key)[0].as_py()) for key in keys), part))
    return parts


def _tell_delivery(
    results: Results, rule: str, rows: pa.Table, row: int, index: int | None, proof: str
) -> None:
    fields = {
        name: rows.column(name)[row].as_py() for name in ("broker_group", "topic", "file", "row")
    }
    results.finding(
        rule,
        group=fields["broker_group"],
        topic=fields["topic"],
        file=fields["file"],
        row=fields["row"],
        index=index,
        n=1,
        proof=proof,
    )
