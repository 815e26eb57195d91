"""A written cluster and the files of its clients: receipts of native producers and deliveries of
consumers, all of them true."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.audit.checks.group import GroupResult
from ledgermq.client.native.consumers import delivery_log
from ledgermq.client.native.producers import receipt_log
from tests.audit.damage_cases import CREATED, NODES
from tests.audit.log_writer import CLUSTER, Message, Placed, Writer, checksum, election, membership

TOPIC, FIFO, GROUP = "flights", "orders", "billing"


def native_id(log_id: str, producer: int, epoch: int, sequence: int) -> str:
    return f"4C{checksum(log_id.encode()):08X}{producer:08X}{epoch:04X}{sequence:012X}"


def frame(
    log_id: str, producer: int, first: int, queues: list[int], time: int, term: int = 1
) -> list[Message]:
    """A frame of native messages, one for each queue in the list."""
    ids = [native_id(log_id, producer, 1, first + at) for at in range(len(queues))]
    return [
        Message(TOPIC, b"body %d" % at, queue, "UA", ids[at], 0, time, term, at + 1)
        for at, queue in enumerate(queues)
    ]


def receipt(writer: Writer, placed: list[Placed], producer: int, first: int) -> dict[str, Any]:
    """The receipt of a written frame."""
    queues = Counter(one.message.queue for one in placed)
    offsets = {
        queue: min(one.queue_offset for one in placed if one.message.queue == queue)
        for queue in queues
    }
    return {
        "cluster_id": CLUSTER,
        "broker_group": writer.group,
        "log_id": writer.log_id,
        "topic": placed[0].message.topic,
        "producer_id": producer,
        "epoch": 1,
        "first_sequence": first,
        "count": len(placed),
        "term": placed[0].term,
        "first_index": placed[0].index,
        "ranges": [
            {"queue": queue, "first_offset": offsets[queue], "count": queues[queue]}
            for queue in sorted(queues)
        ],
        "chain_crc": placed[-1].chain,
        "store_ms": placed[0].message.time,
        "durability": "durable",
        "replicas": [{"node": name, "durable_index": placed[-1].index} for name in NODES[:2]],
        "key_id": "k1",
        "mac": bytes(32),
    }


def delivery(
    writer: Writer, placed: Placed, delivered_ms: int, acknowledged_ms: int | None
) -> dict[str, Any]:
    """The delivery of a written message."""
    return {
        "consumer_group": GROUP,
        "topic": placed.message.topic,
        "broker_group": writer.group,
        "queue": placed.message.queue,
        "offset": placed.queue_offset,
        "message_id": placed.message.key,
        "message_group": placed.message.group or None,
        "attempt": 1,
        "delivered_ms": delivered_ms,
        "acknowledged_ms": acknowledged_ms,
        "sought": False,
    }


@dataclass
class Clients:
    """Three replicas and the files of their clients. `frames`: the entries of each receipt."""

    base: Path
    writers: list[Writer]
    receipts: list[dict[str, Any]] = field(default_factory=list)
    deliveries: list[dict[str, Any]] = field(default_factory=list)
    frames: list[list[Placed]] = field(default_factory=list)
    groups: list[GroupResult] | None = None
    """The result of an audit of the replicas."""

    @property
    def directories(self) -> list[str]:
        return [str(self.base / name) for name in NODES]

    def write(self, lines: bool = False) -> list[str]:
        """Write the files of receipts and deliveries. Returns their paths."""
        paths = []
        for name, rows, schema in (
            ("receipts", self.receipts, receipt_log.schema()),
            ("acks", self.deliveries, delivery_log.schema()),
        ):
            path = (
                self.base
                / f"{name}{len(list(self.base.glob(name + '*')))}.{'jsonl' if lines else 'parquet'}"
            )
            table = pa.Table.from_pylist(rows, schema=schema)
            if lines:
                path.write_text("".join(f"{_line(row)}\n" for row in rows))
            else:
                pq.write_table(table, path, row_group_size=7)
            paths.append(str(path))
        return paths


def _line(row: dict[str, Any]) -> str:
    return json.dumps(
        {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
    )


def write_clients(
    base: Path,
    leave_out: int | None = None,
    twice: int | None = None,
    swap: int | None = None,
    more: Sequence[Message] = (),
) -> Clients:
    """Frames of two producers, unary messages, and a FIFO topic; every message was received.
    `leave_out`: this frame was acknowledged but is not stored. `twice`: this frame is stored twice.
    `swap`: this frame is stored after the next one of its producer. `more`: further entries."""
    truth = Writer(base / "truth" / "n1")
    plan: list[tuple[int | None, list[Message]]] = [
        (None, [membership(NODES), election(1, "n1", CREATED)])
    ]
    first = {1: 0, 2: 4090}
    for number in range(16):
        producer = 1 + number % 2
        queues = [(number + at) % 3 for at in range(5 + number % 4)]
        plan.append(
            (number, frame(truth.log_id, producer, first[producer], queues, CREATED + 100 * number))
        )
        first[producer] += len(queues)
        time = CREATED + 100 * number + 50
        plan.append(
            (
                None,
                [
                    Message(
                        FIFO,
                        b"x",
                        0,
                        "",
                        f"order-{number}",
                        0,
                        time,
                        group=f"customer {number % 3}",
                    )
                ],
            )
        )
    sent = {number: messages for number, messages in plan if number is not None}
    kept: dict[int, list[Placed]] = {}
    for number, messages in plan:
        placed = [truth.append(message) for message in messages]
        kept |= {} if number is None else {number: placed}
    if leave_out is not None:
        plan = [(number, messages) for number, messages in plan if number != leave_out]
    if twice is not None:
        plan.append((None, _at(sent[twice], CREATED + 5000)))
    if swap is not None:
        times = {number: messages[0].time for number, messages in sent.items()}
        order = {swap: swap + 2, swap + 2: swap}
        plan = [
            (n, messages if n not in order else _at(sent[order[n]], times[n]))
            for n, messages in plan
        ]
    plan.append((None, [*more]))
    clients = Clients(base, [])
    for name in NODES:
        writer = Writer(base / name)
        for _, messages in plan:
            for message in messages:
                writer.append(message)
        clients.writers.append(writer.finish())
    writer = clients.writers[0]
    for number, placed in kept.items():
        sequence = int(placed[0].message.key[22:], 16)
        clients.receipts.append(receipt(truth, placed, 1 + number % 2, sequence))
        clients.frames.append(placed)
    read = [entry for entry in writer.entries if entry.message.key]
    clients.deliveries = [
        delivery(writer, entry, entry.message.time + 10, entry.message.time + 20) for entry in read
    ]
    return clients


def _at(messages: list[Message], time: int) -> list[Message]:
    return [replace(message, time=time) for message in messages]
