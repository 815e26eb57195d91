"""The original bodies of messages: reverses the compressions named by SYSFLAG and the property
`__LMQ.ENC` (docs/format.md §4.1, §4.5).

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
_RATIO_MAX = {"lz4": 255, "zlib": 1032, "gzip": 1032}
"""How often its own length a packed body can become; ZSTD has no such bound."""


def unpack(body: bytes, packing: str) -> bytes | None:
    """Decompress a body of `lz4`, `zstd`, `zlib` or `gzip`; None if it is not exactly one frame of
    that, or becomes too large."""
    try:
        if packing == "zstd":
            # The library reserves the length that the frame states, whatever the limit.
            if zstandard.frame_content_size(body) > BODY_BYTES_MAX:
                return None
            return zstandard.ZstdDecompressor().decompress(
                body, max_output_size=BODY_BYTES_MAX, allow_extra_data=False
            )
        if packing in ("gzip", "zlib"):
            return _stream(
                zlib.decompressobj(_GZIP_WINDOW if packing == "gzip" else zlib.MAX_WBITS), body
            )
        frame = lz4.frame.LZ4FrameDecompressor()
        out: bytes = frame.decompress(body, max_length=BODY_BYTES_MAX + 1)
        return out if frame.eof and not frame.unused_data and len(out) <= BODY_BYTES_MAX else None
    except (zstandard.ZstdError, zlib.error, RuntimeError, ValueError, EOFError):
        return None


def unpacked_max(body: bytes, packing: str) -> int:
    """The length that `unpack` at most returns, without unpacking: what the frame states, or else
    what its format allows."""
    try:
        stated = zstandard.frame_content_size(body) if packing == "zstd" else 0
        if packing == "lz4":
            stated = lz4.frame.get_frame_info(body)["content_size"]
    except (zstandard.ZstdError, RuntimeError):
        return 0
    if stated > BODY_BYTES_MAX:
        return 0
    return (
        stated
        if stated > 0
        else min(BODY_BYTES_MAX, _RATIO_MAX.get(packing, BODY_BYTES_MAX) * len(body))
    )


def _stream(unpacker: zlib._Decompress, body: bytes) -> bytes | None:
    out = unpacker.decompress(body, BODY_BYTES_MAX + 1)
    return out if unpacker.eof and not unpacker.unused_data and len(out) <= BODY_BYTES_MAX else None
