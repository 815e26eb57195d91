"""An HTTP/2 client that writes and reads frames by hand, for tests of what a library would never
do."""

from __future__ import annotations

import asyncio

WITHIN_S = 20.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def literal(name: str, value: str) -> bytes:
    """A header field of HPACK, literal without indexing."""
    encoded = b"\0"
    for text in (name.encode(), value.encode()):
        if len(text) < 127:
            encoded += bytes([len(text)])
        else:
            rest, size = len(text) - 127, b"\x7f"
            while rest >= 128:
                size, rest = size + bytes([rest % 128 | 128]), rest // 128
            encoded += size + bytes([rest])
        encoded += text
    return encoded


HUFFMAN = {
    "g": "100110",
    "r": "101100",
    "p": "101011",
    "c": "00100",
    "-": "010110",
    "s": "01000",
    "t": "01001",
    "a": "00011",
    "u": "101101",
}
HUFFMAN |= {"0": "00000", "1": "00001", "2": "00010"} | {
    str(digit): f"{0x16 + digit:06b}" for digit in range(3, 10)
}
"""The part of HPACK's code that these tests look for."""


def huffman(text: str) -> bytes:
    bits = "".join(HUFFMAN[letter] for letter in text)
    bits += "1" * (-len(bits) % 8)
    encoded = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([len(encoded) | 0x80]) + encoded


def coded(name: str, value: str) -> bytes:
    """A header field as the server sends it first on a connection: both texts in Huffman code."""
    return huffman(name) + huffman(value)


def message(data: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(data).to_bytes(4, "big") + data


def acknowledged(ping: tuple[int, int, int, bytes]) -> bytes:
    """The frame that acknowledges a ping."""
    assert ping[0] == PING and not ping[1] & ACK
    return frame(PING, ACK, 0, ping[3])


class Raw:
    """A connection whose frames a test writes and reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, settings: bytes = b"", *, greet: bool = True) -> Raw:
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        if greet:
            raw.write(PREFACE + frame(SETTINGS, 0, 0, settings))
        return raw

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self) -> tuple[int, int, int, bytes] | None:
        """The next frame; None at the end of the connection."""
        try:
            async with asyncio.timeout(WITHIN_S):
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return head[3], head[4], int.from_bytes(head[5:9], "big"), payload

    async def until(self, kind: int, stream: int | None = None) -> tuple[int, int, int, bytes]:
        while (found := await self.read()) is not None:
            if found[0] == kind and stream in (None, found[2]):
                return found
        raise AssertionError(f"the connection ended without a frame of kind {kind}")

    async def to_the_end(self) -> list[tuple[int, int, int, bytes]]:
        found = []
        while (one := await self.read()) is not None:
            found.append(one)
        return found

    def close(self) -> None:
        self.writer.close()
