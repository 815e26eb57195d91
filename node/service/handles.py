"""Receipt handles: an opaque, checkable text that names one lease (design §7).

A handle holds the broker group, the consumer group, the stored topic, queue, queue offset, lease number and attempt, and a MAC with a key
derived from the cluster secret. So every node reads the handles of every other one, they survive a change of leaders, and nobody makes one
up. Whether the lease is still in force is the broker group's business.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, urlsafe_b64encode

from ledgermq.node.core.calls import Handle
from ledgermq.proto.status import Code, fail

MAC_BYTES = 12
# Five names of at most 255 characters and four numbers, in base64.
LONGEST = 2048


class Handles:
    """Makes and reads the handles of one cluster."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"ledgermq receipt handle 1", "sha256")

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")[:MAC_BYTES]

    def make(self, broker_group: str, handle: Handle) -> str:
        """The text for a lease."""
        h = handle
        payload = f"{broker_group}\n{h.group}\n{h.topic}\n{h.queue}\n{h.queue_offset}\n{h.lease_number}\n{h.attempt}".encode()
        return urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")

    def read(self, text: str) -> tuple[str, Handle]:
        """(broker group, lease) of a handle this cluster made; anything else is INVALID_RECEIPT_HANDLE."""
        data = _decode(text)
        payload = data[MAC_BYTES:]
        if not hmac.compare_digest(self._mac(payload), data[:MAC_BYTES]):
            raise fail(Code.INVALID_RECEIPT_HANDLE, "the receipt handle was not made by this cluster")
        broker_group, group, topic, queue, offset, lease, attempt = payload.decode().split("\n")
        return broker_group, Handle(group, topic, int(queue), int(offset), int(lease), int(attempt))


def _decode(text: str) -> bytes:
    if 0 < len(text) <= LONGEST:
        try:
            data = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            data = b""
        # The unused bits of the last character must be zero: one lease has one text.
        if data and urlsafe_b64encode(data).decode().rstrip("=") == text:
            return data
    raise fail(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is not readable; send it back exactly as it was received")
