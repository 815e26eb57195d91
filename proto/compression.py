"""Compressed message bodies: SYSFLAG bits, the two formats natives use (docs/format.md §4.5), and the third that imported messages may
have (§4.8). Nothing else is compressed.

A body that somebody sent is never trusted: what it becomes is bounded whatever it claims to be, and anything that is not exactly one
complete frame of its format is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import Enum

import lz4.frame
import zstandard

from ledgermq.proto.layout import Buffer

COMPRESSED = 0x001
COMPRESSORS = 0x700
LZ4_FLAG = 0x100
ZSTD_FLAG = 0x200
ZLIB_FLAG = 0x300
ZLIB = COMPRESSED | ZLIB_FLAG
"""SYSFLAG of a body that RocketMQ's clients compressed with zlib; nobody writes new ones."""
DECOMPRESSED_MAX = 4 << 20
"""Bytes of a body once decompressed: the largest that a node can be configured to take."""
_ZSTD_LEVEL = 3


class Compression(Enum):
    """How a body is stored; the value is the record's SYSFLAG."""

    NONE = 0
    LZ4 = COMPRESSED | LZ4_FLAG
    ZSTD = COMPRESSED | ZSTD_FLAG


FIRST_BYTES = {Compression.LZ4.value: b"\x04\x22\x4d\x18", Compression.ZSTD.value: b"\x28\xb5\x2f\xfd"}
"""What a body with this SYSFLAG begins with."""


class BadBody(ValueError):
    """The body is not what its SYSFLAG says, or becomes larger than allowed."""


def compressor(kind: Compression) -> Callable[[Buffer], bytes]:
    """What makes a body into a frame of this kind. For one thread: calls at the same time would share its memory."""
    if kind is Compression.LZ4:
        return _pack_lz4
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress if kind is Compression.ZSTD else bytes


def _pack_lz4(body: Buffer) -> bytes:
    packed: bytes = lz4.frame.compress(body, store_size=True)
    return packed


def compress(body: Buffer, kind: Compression) -> bytes:
    """One body in the frame format of its kind."""
    return compressor(kind)(body)


def decompress(body: Buffer, sysflag: int, limit: int = DECOMPRESSED_MAX) -> bytes:
    """The body as its producer had it; `body` itself if SYSFLAG says it is not compressed. Raises BadBody; never makes more than
    `limit` bytes of it."""
    if not sysflag & COMPRESSED:
        return bytes(body)
    kind = sysflag & COMPRESSORS
    if kind not in _UNPACKERS:
        raise BadBody(f"the body is compressed in a way that is not known here (SYSFLAG {sysflag:#x})")
    out = _UNPACKERS[kind](bytes(body), limit)
    if not out:
        raise BadBody("nothing is left of the body when decompressed")
    return out


def _unpack_lz4(body: bytes, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        out: bytes = unpacker.decompress(body, max_length=limit)
        if not unpacker.eof and not unpacker.needs_input:
            # The limit may have been met exactly, with only the end mark left to read.
            out += unpacker.decompress(b"", max_length=1)
    except (RuntimeError, ValueError, EOFError) as error:
        raise BadBody(f"the body is no LZ4 frame: {error}") from None
    if len(out) > limit:
        raise BadBody(f"the body has more than {limit} bytes when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise BadBody("the body is no complete LZ4 frame" if not unpacker.eof else "bytes follow the LZ4 frame of the body")
    return out


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        if size > limit:
            raise BadBody(f"the body has {size} bytes when decompressed; the limit is {limit}")
        # In one go: the output never grows beyond what is allocated, the size in the frame or else the limit.
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadBody(f"the body is no ZSTD frame of at most {limit} bytes: {error}") from None


def _unpack_zlib(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadBody(f"the body is no zlib stream: {error}") from None
    if len(out) > limit:
        raise BadBody(f"the body has more than {limit} bytes when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise BadBody("the body is no complete zlib stream" if not unpacker.eof else "bytes follow the zlib stream of the body")
    return out


_UNPACKERS: dict[int, Callable[[bytes, int], bytes]] = {LZ4_FLAG: _unpack_lz4, ZSTD_FLAG: _unpack_zstd, ZLIB_FLAG: _unpack_zlib}
