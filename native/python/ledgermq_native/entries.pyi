"""Kernels over entries, records and frames. Arrays are passed as contiguous buffers, and returned as native-endian bytes. A kernel returns
None for bytes that its Python twin must judge."""

from collections.abc import Sequence
from typing import Any

Buffer = bytes | bytearray | memoryview
Array = Any
"""A contiguous buffer of int64 or int32."""
Edges = tuple[int, list[int], list[tuple[int, int, int, int]]] | tuple[int, bytes]

def seal(
    data: bytearray,
    starts: Array,
    sizes: Array,
    queues: Array,
    queue_offsets: Array,
    positions: Array,
    store_ms: int,
    store_host: bytes,
    first_index: int,
    term: int,
    prev_chain: int,
) -> int | None: ...
def verify(
    data: Buffer, first_index: int, term: int, pos: int, prev_chain: int, few: int
) -> Edges | None: ...
def columns(
    data: Buffer, starts: Array, sizes: Array, timer_topic: str
) -> tuple[tuple[str, ...], bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes] | None: ...
def key_columns(
    data: Buffer, starts: Array, sizes: Array, keyless_topics: list[str]
) -> tuple[bytes, bytes, bytes, bytes] | None: ...
def check_frame(
    data: Buffer,
    sizes: Buffer,
    record_magic: int,
    topic: bytes,
    log_tag: int,
    producer_id: int,
    epoch: int,
    first_sequence: int,
    queues: int,
    max_body_bytes: int,
    max_entry_bytes: int,
    max_properties_bytes: int,
    max_user_properties: int,
    compressions: list[tuple[int, bytes]],
) -> tuple[bytes, bytes, bytes, list[str]] | None: ...
def build_frame(
    record_magic: int,
    topic: bytes,
    log_tag: int,
    producer_id: int,
    epoch: int,
    first_sequence: int,
    bodies: Sequence[Buffer],
    queues: Array,
    born_ms: Array,
    sysflags: Array,
    rests: Sequence[Buffer] | None,
) -> tuple[bytes, bytes] | None: ...
def read_entries(data: Buffer, sizes: Buffer, verify: bool) -> tuple[bytes, ...] | None: ...
def grow_tree(count: int, peaks: bytes, data: Buffer) -> tuple[int, int, bytes] | None: ...
