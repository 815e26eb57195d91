"""Broken writers: the product's writer with one planted bug, the same on every replica, and the
rule that must detect it.

No comparison of replicas, and no checksum computed by the same code, detects an error that all
replicas share; only an auditor written from docs/format.md does. Each row patches one place of the
product, and the patched writer writes a whole cluster. `test_audit_broken_writers.py` also writes
without a patch and expects PASS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from numpy.typing import NDArray

from bench import audit_scan
from bench.audit_scan import CREATED_MS, NODES, StoredReplica, batch_of, term_start
from ledgermq.node.broker.machine import Machine
from ledgermq.proto.entries import entry_sealing, layout
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.records import control
from ledgermq.proto.types import HardState, SyncedMark, UnsealedBatch
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.log import begin, entry_log, index_files, placing, synced_mark
from ledgermq.storage.queues import queue_buffer
from ledgermq.storage.state import hard_state
from tests.proto.ways import ARRAYS, few_entries

FILE_BYTES, INDEX_BYTES, QUEUE_BYTES = 8192, 32 * 64, 20 * 30
BATCHES = 24
WRONG_FROM = 20
"""Most broken writers fail from this entry on."""
Patch = Callable[[pytest.MonkeyPatch], None]
Heads = NDArray[Any]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Broken:
    """`rule` must be among the findings of every replica. `derives`: the machine can apply the
    entries; otherwise none is applied, and the nodes are killed."""

    patch: Patch
    rule: str
    derives: bool = True


def write(base: Path, names: Sequence[str] = NODES, *, derives: bool = True) -> list[str]:
    """Write the same history on these replicas with the (patched) writer of the product. Returns
    the node directories."""
    disk = ForgetfulDisk()
    # The patches replace steps of the array way; the way of few entries is held equal to it by
    # tests/proto/test_proto_ways.py.
    with pytest.MonkeyPatch.context() as patch, few_entries(ARRAYS):
        patch.setattr(audit_scan, "RealDisk", lambda: disk)
        _write(base, names, derives)
    for path in disk.files():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(disk.read_file(path))
    return [str(base / name) for name in names]


def _write(base: Path, names: Sequence[str], derives: bool) -> None:
    for name in names:
        one = StoredReplica(base / name, FILE_BYTES, INDEX_BYTES, QUEUE_BYTES)
        number, term = 0, 0
        for turn in range(BATCHES):
            at = CREATED_MS + 10 * turn
            if turn % (BATCHES // 3) == 0:
                term += 2
                one.append(term, term_start(term), at, apply=derives)
            count = 1 + turn % 7
            one.append(term, batch_of(number, count, 9 * turn), at, apply=derives)
            number += count
            if turn == BATCHES // 2 and derives:
                one.append(term, _seal_of(one, 0), at)
            if turn % 5 == 4:
                one.append(term, _filling(one), at, apply=derives)
            one.sync()
        one.stop(clean=derives)


def _filling(one: StoredReplica) -> UnsealedBatch:
    """A message as long as the rest of the file, so that it must go to the next file."""
    rest = FILE_BYTES - one.store.log.end_pos % FILE_BYTES
    empty = int(batch_of(0, 1, 0).sizes[0])
    return batch_of(0, 1, max(rest - empty + 12, 12))


def _seal_of(one: StoredReplica, base: int) -> UnsealedBatch:
    """The seal that a leader proposes when a majority has reported the same digest of a file."""
    log = one.store.log
    index = 0
    while log.pos_of(index + 1) < base + FILE_BYTES:
        index += 1
    entry = log.read(index, 1)
    digest = file_digest(
        one.store.disk, f"{one.store.log_directory}/data/{base:020d}", lambda length: None
    )
    record = control.SealRecord(base, 0, index, entry.pos + len(entry.data), digest, NODES)
    return encode_entries([control.draft(record, CREATED_MS)])


# ------------------------------------------------------------------------------------------------------------------ patches


def _field(name: str, change: Callable[[Heads, I64], Any], *, every: bool = False) -> Patch:
    """Give every entry from `WRONG_FROM` on a wrong field in its header or record before its CRCs
    are computed."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = entry_sealing.seal

        def seal(batch: UnsealedBatch, *, first_index: int, prev_chain: int, **rest: Any) -> int:
            original(batch, first_index=first_index, prev_chain=prev_chain, **rest)
            heads = layout.prefixes(batch.data, batch.starts)
            indexes = first_index + np.arange(len(batch), dtype=np.int64)
            rows = np.flatnonzero(indexes >= (0 if every else WRONG_FROM))
            wrong = heads[rows]
            wrong[name] = change(wrong, indexes[rows])
            heads[rows] = wrong
            layout.put_prefixes(batch.data, batch.starts, heads)
            value = prev_chain
            for start, size in zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True):
                body = crc32c(bytes(batch.data[start + 48 : start + size])).to_bytes(4, "big")
                value = crc32c(bytes(batch.data[start : start + 36]) + body, value)
                batch.data[start + 36 : start + 44] = value.to_bytes(4, "big") + body
            return value

        monkeypatch.setattr(entry_log, "seal", seal)

    return patch


def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (entry_log, begin):
        monkeypatch.setattr(module, "chain_seed", lambda log_id: crc32c(log_id.upper().encode()))


def _body_crc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body CRC starts with another value."""
    monkeypatch.setattr(
        entry_sealing,
        "body_crcs_of",
        lambda data, starts, sizes: np.array(
            [
                crc32c(bytes(data[a + 48 : a + n]), 1)
                for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)
            ],
            np.uint32,
        ),
    )


def _body_crc_of_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body CRC covers all but the fixed part of the record, which the server fills in later."""
    monkeypatch.setattr(
        entry_sealing,
        "body_crcs_of",
        lambda data, starts, sizes: np.array(
            [
                crc32c(bytes(data[a + 136 : a + n]))
                for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)
            ],
            np.uint32,
        ),
    )


def _chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain CRC omits the channel."""
    original = entry_sealing.chained
    monkeypatch.setattr(
        entry_sealing,
        "chained",
        lambda heads, crcs: [item[:32] + item[36:] for item in original(heads, crcs)],
    )


def _chain_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch starts a new chain."""
    original = entry_sealing.seal

    def seal(batch: UnsealedBatch, *, prev_chain: int, first_index: int, **rest: Any) -> int:
        return original(
            batch,
            prev_chain=prev_chain if first_index < WRONG_FROM else 0,
            first_index=first_index,
            **rest,
        )

    monkeypatch.setattr(entry_log, "seal", seal)


def _blank_room(room: int) -> Patch:
    """Write a blank for other entries than those that would leave less than 8 bytes."""
    return lambda monkeypatch: monkeypatch.setattr(placing, "BLANK_BYTES", room)


def _blank(change: Callable[[bytes], bytes]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = placing.make_blank
        monkeypatch.setattr(entry_log, "make_blank", lambda length: change(original(length)))

    return patch


def _unit(name: str, change: Callable[[Any], Any]) -> Patch:
    """Patch the index units."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = index_files.make_units

        def make_units(*given: Any) -> Any:
            units = original(*given)
            units[name] = change(units[name])
            return units

        monkeypatch.setattr(index_files, "make_units", make_units)

    return patch


def _queue_unit(name: str, change: Callable[[Any], Any]) -> Patch:
    """Patch the consume queue units."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = queue_buffer.BufferedQueues.append

        def changed(columns: Any) -> Any:
            return replace(columns, **{name: change(getattr(columns, name))})

        monkeypatch.setattr(
            queue_buffer.BufferedQueues,
            "append",
            lambda self, columns: original(self, changed(columns)),
        )

    return patch


def _export(change: Callable[[dict[str, Any]], object]) -> Patch:
    """Patch the snapshots."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = Machine.export

        def export(self: Machine, log_id: str) -> dict[str, Any]:
            value = json.loads(json.dumps(original(self, log_id)))
            change(value)
            return value  # type: ignore[no-any-return]

        monkeypatch.setattr(Machine, "export", export)

    return patch


def _mark(**more: int) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = synced_mark._pack

        def pack(log_id: str, value: SyncedMark) -> bytes:
            wrong = {name: getattr(value, name) + plus for name, plus in more.items()}
            return original(log_id, replace(value, **wrong) if value.index >= WRONG_FROM else value)

        monkeypatch.setattr(synced_mark, "_pack", pack)

    return patch


def _hard_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a term that is one too low."""
    original = hard_state.HardStateFile.save
    monkeypatch.setattr(
        hard_state.HardStateFile,
        "save",
        lambda self, value: original(self, HardState(value.term - 1, value.vote)),
    )


def _seal_record(name: str, change: Callable[[Any], Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = control.SealRecord.fields

        def fields(self: control.SealRecord) -> dict[str, Any]:
            value = original(self)
            value[name] = change(value[name])
            return value

        monkeypatch.setattr(control.SealRecord, "fields", fields)

    return patch


def _tags_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tags hash that is never negative, as in an incorrect port of Java's."""
    hashed = layout.java_hash
    monkeypatch.setattr(layout, "java_hash", lambda text: hashed(text) % (1 << 32))


def _next_offset(value: dict[str, Any]) -> None:
    value["queues"]["flights"]["0"] += 1


def _add(key: str, more: int) -> Callable[[dict[str, Any]], object]:
    def change(value: dict[str, Any]) -> None:
        value[key] += more

    return change


def _plus(more: int) -> Callable[[Any], Any]:
    return lambda column: column + more


WRITERS: dict[str, Broken] = {
    "chain begins with another seed": Broken(_seed, "chain.seed"),
    "chain leaves a field out": Broken(_chain, "entry.chain"),
    "chain begins anew with a batch": Broken(_chain_restarts, "entry.chain"),
    "body CRC with another start": Broken(_body_crc, "entry.body"),
    "body CRC over less than the body": Broken(_body_crc_of_less, "entry.body"),
    "entry magic": Broken(_field("magic", lambda heads, index: 2), "entry.magic"),
    "entry size one too many": Broken(
        _field("size", lambda heads, index: heads["size"] + 1), "entry.size", derives=False
    ),
    "entry body size one too few": Broken(
        _field("body_size", lambda heads, index: heads["body_size"] - 1), "entry.body-size"
    ),
    "entry index one too high": Broken(
        _field("index", lambda heads, index: index + 1), "entry.gap"
    ),
    "entry index stands still": Broken(
        _field("index", lambda heads, index: WRONG_FROM), "entry.repeat"
    ),
    "entry term falls": Broken(
        _field("term", lambda heads, index: np.where(index % 9 == 0, 0, heads["term"])),
        "entry.term-order",
    ),
    "entry term negative": Broken(
        _field("term", lambda heads, index: -1, every=True), "entry.term-order", derives=False
    ),
    "entry position": Broken(_field("pos", lambda heads, index: heads["pos"] + 8), "entry.pos"),
    "entry position within its file": Broken(
        _field("pos", lambda heads, index: heads["pos"] % FILE_BYTES), "entry.pos"
    ),
    "entry channel": Broken(_field("channel", lambda heads, index: 1), "entry.channel"),
    "record total size": Broken(
        _field("total_size", lambda heads, index: heads["total_size"] + 48),
        "record.total-size",
        derives=False,
    ),
    "record magic": Broken(
        _field("record_magic", lambda heads, index: layout.RECORD_V2),
        "record.structure",
        derives=False,
    ),
    "record crc": Broken(_field("crc32", lambda heads, index: heads["crc32"] ^ 1), "record.crc"),
    "record crc with its top bit": Broken(
        _field("crc32", lambda heads, index: heads["crc32"] | -(1 << 31)), "record.crc"
    ),
    "record queue negative": Broken(
        _field("queue", lambda heads, index: -1), "record.topic", derives=False
    ),
    "record flag of no frame": Broken(
        _field("flag", lambda heads, index: 1), "record.native", derives=False
    ),
    "record queue offset one too high": Broken(
        _field("queue_offset", lambda heads, index: heads["queue_offset"] + 1),
        "record.queue-offset",
        derives=False,
    ),
    "record queue offset one too low": Broken(
        _field("queue_offset", lambda heads, index: heads["queue_offset"] - 1),
        "record.queue-repeat",
        derives=False,
    ),
    "record queue offset from 1": Broken(
        _field("queue_offset", lambda heads, index: heads["queue_offset"] + 1, every=True),
        "record.queue-offset",
        derives=False,
    ),
    "record position is the entry's": Broken(
        _field("physical_offset", lambda heads, index: heads["pos"]), "record.position"
    ),
    "record sysflag": Broken(_field("sysflag", lambda heads, index: 0x401), "record.sysflag"),
    "record born host": Broken(
        _field("born_host", lambda heads, index: np.void(b"\x7f\0\0\x01\0\0\0\0")),
        "record.constant",
    ),
    "record store time falls": Broken(
        _field(
            "store_ms", lambda heads, index: np.where(index % 9 == 0, CREATED_MS, heads["store_ms"])
        ),
        "record.store-time",
    ),
    "record store time in seconds": Broken(
        _field("store_ms", lambda heads, index: heads["store_ms"] // 1000), "record.store-time"
    ),
    "record reconsume times": Broken(
        _field("reconsume_times", lambda heads, index: 1), "record.constant"
    ),
    "record origin ahead": Broken(
        _field("prepared_offset", lambda heads, index: index + 5), "record.origin", derives=False
    ),
    "record body length": Broken(
        _field("body_length", lambda heads, index: heads["body_length"] + 1),
        "record.structure",
        derives=False,
    ),
    "blank too early": Broken(_blank_room(200), "blank.needless"),
    "blank too late": Broken(_blank_room(0), "entry.room"),
    "blank without magic": Broken(_blank(lambda blank: b"\0\0\0\0" + blank[4:]), "blank.magic"),
    "blank of another length": Broken(
        _blank(lambda blank: blank[:4] + b"\0\0\0\x08" + blank[8:]), "blank.size"
    ),
    "blank with filler": Broken(
        _blank(lambda blank: blank[:8].ljust(len(blank), b"\xcc")), "blank.fill"
    ),
    "index unit position": Broken(_unit("pos", _plus(8)), "index.unit", derives=False),
    "index unit size": Broken(_unit("size", _plus(1)), "index.unit", derives=False),
    "index unit index": Broken(_unit("index", _plus(1)), "index.unit", derives=False),
    "index unit term": Broken(_unit("term", _plus(1)), "index.unit"),
    "queue unit position": Broken(_queue_unit("physical_offsets", _plus(-48)), "queue.unit"),
    "queue unit size": Broken(_queue_unit("sizes", _plus(48)), "queue.unit"),
    "queue unit tags code": Broken(_queue_unit("tags_codes", _plus(1)), "queue.unit"),
    "tags code without a sign": Broken(_tags_code, "queue.unit"),
    "snapshot index one too high": Broken(_export(_add("applied_index", 1)), "snapshot.log"),
    "snapshot index one too low": Broken(_export(_add("applied_index", -1)), "snapshot.log"),
    "snapshot term": Broken(_export(_add("applied_term", -1)), "snapshot.log"),
    "snapshot end": Broken(_export(_add("applied_end_pos", 8)), "snapshot.log"),
    "snapshot chain": Broken(_export(_add("chain_crc", 1)), "snapshot.log"),
    "snapshot next offset": Broken(_export(_next_offset), "state.queues"),
    "snapshot without a queue": Broken(
        _export(lambda value: value["queues"].pop("flights")), "state.queues"
    ),
    "mark index one too high": Broken(_mark(index=1), "mark.end"),
    "mark index one too low": Broken(_mark(index=-1), "mark.log"),
    "mark end before its last entry": Broken(_mark(end_pos=-8), "mark.log"),
    "mark of another chain": Broken(_mark(chain_crc=-1), "mark.log"),
    "hard state one too low": Broken(_hard_state, "hardstate.term"),
}
