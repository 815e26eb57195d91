"""The fixed parts of native messages' entries (docs/format.md §4.5), for whole frames at once: the
bytes before the bodies, and those between a body and the properties chosen by the producer. Both
the builder and the reader of frames use these, from the few free fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.layout import (
    BODY_AT,
    HEADER_BYTES,
    PREFIX,
    RECORD_V1,
    RECORD_V2,
    V1_TOPIC_MAX,
)
from ledgermq.proto.entries.native_ids import ID_FIELD, ID_PROPERTY_BYTES, native_id, put_sequences
from ledgermq.proto.types import I32, I64

ENTRY_FIXED_BYTES = BODY_AT + 2
"""The size of an entry without topic (and its length), body and properties."""


class Layout(NamedTuple):
    """The values that depend only on the topic."""

    record_magic: int
    topic: bytes
    """The topic preceded by its length, as stored behind the body."""

    @property
    def topic_bytes(self) -> int:
        return len(self.topic)

    @property
    def least_bytes(self) -> int:
        """The size of an entry with one byte of body and no property except its id."""
        return ENTRY_FIXED_BYTES + 1 + len(self.topic) + ID_PROPERTY_BYTES


@lru_cache(maxsize=4096)
def layout_of(stored_topic: str) -> Layout:
    """The layout of a topic's records."""
    topic = stored_topic.encode()
    wide = len(topic) > V1_TOPIC_MAX
    return Layout(
        RECORD_V2 if wide else RECORD_V1, len(topic).to_bytes(2 if wide else 1, "big") + topic
    )


def heads_of(
    layout: Layout,
    sizes: I64,
    body_lengths: I64,
    crcs: Sequence[int] | NDArray[np.uint32],
    *,
    queues: int | I32,
    born_ms: int | I64,
    sysflags: int | I32,
) -> NDArray[Any]:
    """The first 136 bytes of each entry."""
    n = len(sizes)
    heads = np.zeros(n, PREFIX)
    heads["total_size"] = sizes - HEADER_BYTES
    heads["record_magic"] = layout.record_magic
    heads["crc32"] = np.asarray(crcs, np.uint32) & 0x7FFFFFFF
    heads["queue"] = queues
    heads["flag"] = np.arange(1, n + 1)
    heads["sysflag"] = sysflags
    heads["born_ms"] = born_ms
    heads["body_length"] = body_lengths
    return heads


def tails_of(
    layout: Layout,
    property_lengths: int | I64,
    log_tag: int,
    producer_id: int,
    epoch: int,
    first_sequence: int,
    count: int,
) -> NDArray[np.uint8]:
    """Topic, length of the properties and message id: the bytes behind each body, one row per
    message."""
    message_id = native_id(log_tag, producer_id, epoch, first_sequence).encode()
    first = b"%b\0\0%b%b\x02" % (layout.topic, ID_FIELD, message_id)
    rows = np.frombuffer(bytearray(first * count), np.uint8).reshape(count, len(first))
    at = len(layout.topic)
    rows[:, at : at + 2] = np.full(count, property_lengths, ">i2").view(np.uint8).reshape(count, 2)
    put_sequences(rows[:, :-1], first_sequence)
    return rows
