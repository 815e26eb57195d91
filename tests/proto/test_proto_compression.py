"""Compressed bodies: there and back, and nothing that is not exactly one frame of its format, or that becomes too large."""

from __future__ import annotations

import io

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.compression import BadBody, Compression, compress, decompress

KINDS = [Compression.LZ4, Compression.ZSTD]
MIB = 1 << 20


@given(st.sampled_from(Compression), st.binary(min_size=1, max_size=2000))
def test_there_and_back(kind: Compression, body: bytes) -> None:
    """Bodies come back, up to a limit of exactly their length."""
    packed = compress(body, kind)
    assert decompress(packed, kind.value) == body
    assert decompress(memoryview(packed), kind.value, limit=len(body)) == body


@given(st.sampled_from(KINDS), st.binary(max_size=300), st.data())
def test_nothing_else_is_taken(kind: Compression, garbage: bytes, data: st.DataObject) -> None:
    """A body that is cut, has more behind it, or is no such frame at all."""
    body = bytes(range(200)) * 3
    packed = compress(body, kind)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for bad in (garbage, packed[:cut], packed + (garbage or b"x"), packed + packed):
        with pytest.raises(BadBody):
            decompress(bad, kind.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused(kind: Compression) -> None:
    """Bodies that declare a large size, none, or a wrong one."""
    large = bytes(8 * MIB)
    silent = io.BytesIO()
    if kind is Compression.LZ4:
        silent.write(lz4.frame.compress(large, store_size=False))
    else:
        writer = zstandard.ZstdCompressor(write_content_size=False).stream_writer(silent, closefd=False)
        writer.write(large)
        writer.flush(zstandard.FLUSH_FRAME)
    for bomb in (compress(large, kind), silent.getvalue()):
        assert len(bomb) < MIB
        with pytest.raises(BadBody):
            decompress(bomb, kind.value)
    with pytest.raises(BadBody):
        decompress(compress(bytes(5000), kind), kind.value, limit=4999)


def test_unknown_compressors_and_empty_bodies() -> None:
    """ZLIB and what has no name are not decompressed; nothing decompresses to nothing."""
    for sysflag in (0x001, 0x301, 0x701):
        with pytest.raises(BadBody):
            decompress(b"x", sysflag)
    for kind in KINDS:
        with pytest.raises(BadBody):
            decompress(compress(b"", kind), kind.value)
    assert decompress(b"x", 0x100) == b"x"
