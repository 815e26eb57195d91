from collections.abc import Sequence
from typing import final

@final
class Clean:
    """A window in which every entry is in order. Row numbers count its entries; places are bytes of the window. The `count` entries end at
    `stop`; `more`: the window, not the log, ends there."""

    stop: int
    more: bool
    count: int
    index: int
    first_term: int
    first_size: int
    first_input: bytes
    first_chain: int
    first_store_ms: int
    last_term: int
    last_chain: int
    last_store_ms: int
    last_at: int
    last_plain_row: int | None
    index_units: bytes
    queues: list[Queue]
    producers: list[Producer]
    groups: list[GroupEvent]
    noted: list[Note]

@final
class Queue:
    topic: bytes
    queue: int
    first: int
    last: int
    count: int
    first_row: int
    first_at: int
    last_row: int
    last_at: int
    units: bytes

@final
class Producer:
    producer: int
    first_sequence: int
    first_epoch: int
    first_row: int
    first_at: int
    last_sequence: int
    last_epoch: int
    last_row: int
    last_at: int

@final
class GroupEvent:
    row: int
    at: int
    size: int
    topic: bytes | None
    group: bytes
    queue: int

@final
class Note:
    row: int
    at: int
    size: int
    kind: int

def scan(
    window: bytes,
    *,
    pos: int,
    room: int,
    left: int,
    chain: int,
    index: int | None,
    term: int,
    store_ms: int,
    deep: bool,
    wanted: Sequence[tuple[bytes, int | None]],
) -> Clean | None: ...
def find(window: bytes, *, pos: int, room: int) -> tuple[bytes, bytes, int, bool, int] | None: ...
def grow_tree(
    towers: Sequence[tuple[int, bytes]], data: bytes
) -> tuple[list[tuple[int, bytes]], int, bool]: ...
