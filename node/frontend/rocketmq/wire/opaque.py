"""Opaque texts that clients receive and send back: a payload and a MAC with a key derived from the
cluster secret.

Every node reads the texts of every other node, they survive a change of leaders, and they cannot be
forged. The module that created a payload decides what it means and whether it is still valid.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, urlsafe_b64encode
from hashlib import sha256

from ledgermq.proto.status import Code, fail

MAC_BYTES = 12
# Five names of at most 255 characters and four numbers, in base64.
LONGEST = 2048


class Opaque:
    """Creates and reads the texts of one kind. `noun` names the kind in messages, and separates the
    keys of different kinds."""

    def __init__(self, secret: bytes, noun: str, code: Code) -> None:
        key = hmac.digest(secret, f"ledgermq {noun} 1".encode(), "sha256").ljust(
            sha256().block_size, b"\0"
        )
        self._inner, self._outer = (
            sha256(bytes([byte ^ 0x36 for byte in key])),
            sha256(bytes([byte ^ 0x5C for byte in key])),
        )
        """The two hashes of HMAC, with the key taken in: half of the work for a short text."""
        self._noun = noun
        self._code = code

    def _mac(self, payload: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(payload)
        outer.update(inner.digest())
        return outer.digest()[:MAC_BYTES]

    def make(self, text: str) -> str:
        """The opaque text of a payload."""
        payload = text.encode()
        return urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")

    def read(self, text: str) -> str:
        """The payload of a text. Raises an error with the kind's code if this cluster did not
        create it."""
        data = self._decode(text)
        payload = data[MAC_BYTES:]
        if not hmac.compare_digest(self._mac(payload), data[:MAC_BYTES]):
            raise fail(self._code, f"the {self._noun} was not made by this cluster")
        return payload.decode()

    def _decode(self, text: str) -> bytes:
        if 0 < len(text) <= LONGEST:
            try:
                data = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            except (binascii.Error, ValueError):
                data = b""
            # The unused bits of the last character must be zero: one payload has one text.
            if data and urlsafe_b64encode(data).decode().rstrip("=") == text:
                return data
        raise fail(
            self._code, f"the {self._noun} is not readable; send it back exactly as it was received"
        )
