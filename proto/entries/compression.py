"""Compressed message bodies: SYSFLAG bits, the two formats of native messages (docs/format.md
§4.5), and the third one of imported messages (§4.8). Nothing else is compressed.

A received body is never trusted: the size of its decompressed form is bounded, whatever it claims,
and anything that is not exactly one complete frame of its format is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import lz4.frame
import zstandard

from ledgermq.proto.entries.layout import Buffer

COMPRESSED = 0x001
COMPRESSORS = 0x700
LZ4_FLAG = 0x100
ZSTD_FLAG = 0x200
ZLIB_FLAG = 0x300
ZLIB = COMPRESSED | ZLIB_FLAG
"""SYSFLAG of a body that a RocketMQ client compressed with zlib; new ones are not written."""
DECOMPRESSED_MAX = 4 << 20
"""Limit on a decompressed body: the largest limit that can be configured for a node."""
_ZSTD_LEVEL = 3


class Compression(Enum):
    """The compression of a stored body; the value is the record's SYSFLAG."""

    NONE = 0
    LZ4 = COMPRESSED | LZ4_FLAG
    ZSTD = COMPRESSED | ZSTD_FLAG


class Expansion(NamedTuple):
    """How large a body may become: in bytes, and as a multiple of its stored length (None: any
    multiple)."""

    limit_bytes: int = DECOMPRESSED_MAX
    ratio: int | None = None

    def of(self, stored: int) -> int:
        """The limit of a body of this stored length."""
        return (
            self.limit_bytes if self.ratio is None else min(self.limit_bytes, self.ratio * stored)
        )


EXPANSION = Expansion()
_NAMES = {LZ4_FLAG: "lz4", ZSTD_FLAG: "zstd", ZLIB_FLAG: "zlib"}
_RATIO_MAX = {LZ4_FLAG: 255, ZLIB_FLAG: 1032}
"""What one byte of such a frame can at most become, by its format: a match of LZ4 grows by 255 with
each further byte, one of deflate has at most 258 bytes in two bits. A ZSTD frame repeats a byte
without such a bound."""

FIRST_BYTES = {
    Compression.LZ4.value: b"\x04\x22\x4d\x18",
    Compression.ZSTD.value: b"\x28\xb5\x2f\xfd",
}
"""SYSFLAG → the first bytes of such a body."""


class BadBody(ValueError):
    """The body does not match its SYSFLAG, or is larger than allowed."""


def compressor(kind: Compression) -> Callable[[Buffer], bytes]:
    """A function that compresses a body into a frame of this kind. For one thread, because its
    calls share memory."""
    if kind is Compression.LZ4:
        return _pack_lz4
    return (
        zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress
        if kind is Compression.ZSTD
        else bytes
    )


def _pack_lz4(body: Buffer) -> bytes:
    packed: bytes = lz4.frame.compress(body, store_size=True)
    return packed


def compress(body: Buffer, kind: Compression) -> bytes:
    """One body in the frame format of its kind."""
    return compressor(kind)(body)


def compression_of(sysflag: int) -> str | None:
    """The name of the compression of a body; None: it is not compressed."""
    return _NAMES.get(sysflag & COMPRESSORS, "unknown") if sysflag & COMPRESSED else None


def length_max(body: Buffer, sysflag: int, expansion: Expansion = EXPANSION) -> int:
    """The length that the body can at most have after `decompress`, without decompressing it: what
    its frame states, or else what its format allows. The stored length if the frame is refused for
    what it states: such a body is handed on as it is."""
    stored = len(body)
    limit, kind = expansion.of(stored), sysflag & COMPRESSORS
    if not sysflag & COMPRESSED:
        return stored
    try:
        if kind == ZSTD_FLAG:
            told = zstandard.frame_content_size(body)
        else:
            told = lz4.frame.get_frame_info(body)["content_size"] if kind == LZ4_FLAG else 0
    except (RuntimeError, zstandard.ZstdError):
        # It is no such frame.
        return stored
    if told > limit:
        return stored
    return told if told > 0 else min(limit, _RATIO_MAX.get(kind, limit) * stored)


def decompress(body: Buffer, sysflag: int, expansion: Expansion = EXPANSION) -> bytes:
    """The original body; `body` itself if SYSFLAG says it is not compressed. Raises BadBody; never
    produces or reserves more bytes than the limit, whatever the frame states."""
    if not sysflag & COMPRESSED:
        return bytes(body)
    kind = sysflag & COMPRESSORS
    if kind not in _UNPACKERS:
        raise BadBody(f"the body has an unknown compression (SYSFLAG {sysflag:#x})")
    out = _UNPACKERS[kind](bytes(body), expansion.of(len(body)))
    if not out:
        raise BadBody("the decompressed body is empty")
    return out


def _unpack_lz4(body: bytes, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        out: bytes = unpacker.decompress(body, max_length=limit)
        if not unpacker.eof and not unpacker.needs_input:
            # The limit may have been met exactly, so that only the end mark is left to read.
            out += unpacker.decompress(b"", max_length=1)
    except (RuntimeError, ValueError, EOFError) as error:
        raise BadBody(f"the body is not an LZ4 frame: {error}") from None
    if len(out) > limit:
        raise BadBody(f"the body has more than {limit} bytes when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise BadBody(
            "the body is not a complete LZ4 frame"
            if not unpacker.eof
            else "bytes follow the LZ4 frame of the body"
        )
    return out


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        if size > limit:
            raise BadBody(f"the body has {size} bytes when decompressed; the limit is {limit}")
        # In one call: the output never exceeds the allocation, which is the size in the frame, or
        # else the limit.
        return zstandard.ZstdDecompressor().decompress(
            body, max_output_size=limit, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BadBody(f"the body is not a ZSTD frame of at most {limit} bytes: {error}") from None


def _unpack_zlib(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadBody(f"the body is not a zlib stream: {error}") from None
    if len(out) > limit:
        raise BadBody(f"the body has more than {limit} bytes when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise BadBody(
            "the body is not a complete zlib stream"
            if not unpacker.eof
            else "bytes follow the zlib stream of the body"
        )
    return out


_UNPACKERS: dict[int, Callable[[bytes, int], bytes]] = {
    LZ4_FLAG: _unpack_lz4,
    ZSTD_FLAG: _unpack_zstd,
    ZLIB_FLAG: _unpack_zlib,
}
