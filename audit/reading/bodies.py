"""The original bodies of messages: reverses the compressions named by SYSFLAG and the property `__LMQ.ENC` (docs/format.md §4.1, §4.5).

A stored body is not trusted: the size of the result is bounded, whatever it claims.
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

LZ4, ZSTD, ZLIB = 0x101, 0x201, 0x301
PACKINGS = {0: None, LZ4: "lz4", ZSTD: "zstd", ZLIB: "zlib"}
"""SYSFLAG → compression of the body."""
BODY_BYTES_MAX = 4 << 20
_GZIP_WINDOW = 31


def unpack(body: bytes, packing: str) -> bytes | None:
    """Decompress a body of `lz4`, `zstd`, `zlib` or `gzip`; None if it is not exactly one frame of that, or becomes too large."""
    try:
        if packing == "zstd":
            return zstandard.ZstdDecompressor().decompress(body, max_output_size=BODY_BYTES_MAX, allow_extra_data=False)
        if packing in ("gzip", "zlib"):
            return _stream(zlib.decompressobj(_GZIP_WINDOW if packing == "gzip" else zlib.MAX_WBITS), body)
        frame = lz4.frame.LZ4FrameDecompressor()
        out: bytes = frame.decompress(body, max_length=BODY_BYTES_MAX + 1)
        return out if frame.eof and not frame.unused_data and len(out) <= BODY_BYTES_MAX else None
    except (zstandard.ZstdError, zlib.error, RuntimeError, ValueError, EOFError):
        return None


def _stream(unpacker: zlib._Decompress, body: bytes) -> bytes | None:
    out = unpacker.decompress(body, BODY_BYTES_MAX + 1)
    return out if unpacker.eof and not unpacker.unused_data and len(out) <= BODY_BYTES_MAX else None
