"""Native frames (docs/format.md §4.5) under one name: ids, building, checking, reading,
compression.

Re-exports `native_ids`, `frame_building` (clients), `frame_reading` with `frame_rules` and
`frame_properties` (nodes), `entry_columns` (consumers), and `compression`.
"""

from ledgermq.proto.entries.compression import BadBody, Compression, compress, decompress
from ledgermq.proto.entries.entry_columns import BadEntries, EntryColumns, read_entries
from ledgermq.proto.entries.native_ids import (
    MAGIC_ID,
    NATIVE_ID_BYTES,
    NativeId,
    Run,
    native_id,
    native_ids,
    native_runs,
    read_native_id,
)
from ledgermq.proto.frames.frame_building import (
    COMPRESS_OVER_BYTES,
    Column,
    EncodedFrame,
    FrameBuilder,
)
from ledgermq.proto.frames.frame_reading import BadFrame, read_frame
from ledgermq.proto.types import Frame

__all__ = [
    "COMPRESS_OVER_BYTES",
    "MAGIC_ID",
    "NATIVE_ID_BYTES",
    "BadBody",
    "BadEntries",
    "BadFrame",
    "Column",
    "Compression",
    "EncodedFrame",
    "EntryColumns",
    "Frame",
    "FrameBuilder",
    "NativeId",
    "Run",
    "compress",
    "decompress",
    "native_id",
    "native_ids",
    "native_runs",
    "read_entries",
    "read_frame",
    "read_native_id",
]
