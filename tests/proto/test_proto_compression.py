"""Compressed bodies: there and back, and nothing that is not exactly one frame of its format, or
that becomes too large."""

from __future__ import annotations

import io
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.entries.compression import (
    EXPANSION,
    ZLIB,
    BadBody,
    Compression,
    Expansion,
    compress,
    compression_of,
    decompress,
    length_max,
)

KINDS = [Compression.LZ4, Compression.ZSTD]
MIB = 1 << 20


@given(st.sampled_from(Compression), st.binary(min_size=1, max_size=2000))
def test_there_and_back(kind: Compression, body: bytes) -> None:
    """Bodies come back, up to a limit of exactly their length."""
    packed = compress(body, kind)
    assert decompress(packed, kind.value) == body
    assert decompress(memoryview(packed), kind.value, Expansion(len(body))) == body


@given(st.sampled_from(KINDS), st.binary(max_size=300), st.data())
def test_malformed_compressed_body_is_refused(
    kind: Compression, garbage: bytes, data: st.DataObject
) -> None:
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
        writer = zstandard.ZstdCompressor(write_content_size=False).stream_writer(
            silent, closefd=False
        )
        writer.write(large)
        writer.flush(zstandard.FLUSH_FRAME)
    for bomb in (compress(large, kind), silent.getvalue()):
        assert len(bomb) < MIB
        with pytest.raises(BadBody):
            decompress(bomb, kind.value)
    with pytest.raises(BadBody):
        decompress(compress(bytes(5000), kind), kind.value, Expansion(4999))


def test_unknown_compressors_and_empty_bodies() -> None:
    """ZLIB and what has no name are not decompressed; nothing decompresses to nothing."""
    for sysflag in (0x001, 0x301, 0x701):
        with pytest.raises(BadBody):
            decompress(b"x", sysflag)
    for kind in KINDS:
        with pytest.raises(BadBody):
            decompress(compress(b"", kind), kind.value)
    assert decompress(b"x", 0x100) == b"x"


def silent(body: bytes, kind: Compression) -> bytes:
    """A frame that does not state the length of its body."""
    if kind is Compression.LZ4:
        return bytes(lz4.frame.compress(body, store_size=False))
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


@given(st.sampled_from(KINDS), st.integers(1, 200), st.integers(0, 5_000), st.booleans())
def test_decompressed_length_is_bounded_in_advance(
    kind: Compression, pattern: int, count: int, states: bool
) -> None:
    """Exactly what the frame states; for a frame that states nothing, what its format allows, which
    is never less than the body."""
    body = bytes(range(pattern)) * count + b"x"
    packed = compress(body, kind) if states else silent(body, kind)
    bound = length_max(packed, kind.value)
    assert len(decompress(packed, kind.value)) == len(body) <= bound <= max(len(body), 4 * MIB)
    assert bound == len(body) or not states
    assert length_max(memoryview(packed), kind.value) == bound and length_max(packed, 0) == len(
        packed
    )


def test_formats_keep_the_ratio_by_which_unstated_lengths_are_bounded() -> None:
    """The most that LZ4 and deflate make of a byte, met by what compresses best."""
    for flag, packed in (
        (Compression.LZ4.value, silent(bytes(4 * MIB), Compression.LZ4)),
        (ZLIB, zlib.compress(bytes(4 * MIB), 9)),
    ):
        assert len(decompress(packed, flag)) == 4 * MIB <= length_max(packed, flag) * 1.03


def test_a_frame_that_states_too_much_counts_with_its_stored_bytes() -> None:
    """It is handed on as it is. Garbage is, too."""
    for kind in KINDS:
        bomb = compress(bytes(4 * MIB + 1), kind)
        assert length_max(bomb, kind.value) == len(bomb)
        for garbage in (b"", b"x", bomb[:5]):
            assert length_max(garbage, kind.value) == len(garbage)
    assert length_max(b"xy", 0x1F01) <= 4 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_a_ratio_bounds_a_body_by_its_stored_length(kind: Compression) -> None:
    """Both bounds hold; the smaller one decides."""
    packed = compress(bytes(10_000), kind)
    exact = -(-10_000 // len(packed))
    assert decompress(packed, kind.value, Expansion(ratio=exact)) == bytes(10_000)
    with pytest.raises(BadBody):
        decompress(packed, kind.value, Expansion(ratio=exact - 1))
    with pytest.raises(BadBody):
        decompress(packed, kind.value, Expansion(9_999, ratio=exact))
    assert (EXPANSION.of(1), Expansion(100, 7).of(10), Expansion(100, 7).of(20)) == (
        4 * MIB,
        70,
        100,
    )


def test_names_of_compressions() -> None:
    """As the mark of an undecoded body has them."""
    flags = (0, 0x100, Compression.LZ4.value, Compression.ZSTD.value, ZLIB, 0x401)
    assert [compression_of(flag) for flag in flags] == [
        None,
        None,
        "lz4",
        "zstd",
        "zlib",
        "unknown",
    ]
