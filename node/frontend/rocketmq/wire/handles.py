"""Receipt handles: an opaque, authenticated text that names one lease (docs/architecture.md,
Serving clients).

A handle holds the broker group, the consumer group, the stored topic, queue, queue offset, lease
number and attempt; `opaque.py` protects it against forgery. The broker group decides whether the
lease is still in force.

Most handles come back to the process that made them, and soon. So the last ones are remembered
until they come back: a text that is equal to one of them was made by this cluster, and needs no
check and no parsing.
"""

from __future__ import annotations

from ledgermq.node.broker.calls.consumer_calls import Handle
from ledgermq.node.frontend.rocketmq.wire.opaque import Opaque
from ledgermq.proto.names import base_group, parent_of
from ledgermq.proto.status import Code, fail

MADE_MAX = 8192
"""How many handles are remembered, some 450 bytes each; beyond that all of them are forgotten."""


class Handles:
    """Creates and reads the handles of one cluster."""

    def __init__(self, secret: bytes) -> None:
        self._opaque = Opaque(secret, "receipt handle", Code.INVALID_RECEIPT_HANDLE)
        self._made: dict[str, tuple[str, Handle]] = {}

    def make(self, broker_group: str, handle: Handle) -> str:
        """The handle's text for a lease."""
        h = handle
        text = self._opaque.make(
            f"{broker_group}\n{h.group}\n{h.topic}\n{h.queue}\n{h.queue_offset}\n{h.lease_number}\n{h.attempt}"
        )
        if len(self._made) >= MADE_MAX:
            self._made.clear()
        self._made[text] = broker_group, handle
        return text

    def read(self, text: str) -> tuple[str, Handle]:
        """(broker group, lease) of a handle. Raises INVALID_RECEIPT_HANDLE if this cluster did not
        create it."""
        made = self._made.pop(text, None)
        if made is not None:
            return made
        broker_group, group, topic, queue, offset, lease, attempt = self._opaque.read(text).split(
            "\n"
        )
        return broker_group, Handle(
            group=group,
            topic=topic,
            queue=int(queue),
            queue_offset=int(offset),
            lease_number=int(lease),
            attempt=int(attempt),
        )

    def read_for(self, text: str, group: str, topic: str) -> tuple[str, Handle]:
        """(broker group, lease) of a handle. Raises INVALID_RECEIPT_HANDLE if it is not for this
        topic and this consumer group."""
        broker_group, handle = self.read(text)
        if base_group(handle.group) != group or parent_of(handle.topic) != topic:
            raise fail(
                Code.INVALID_RECEIPT_HANDLE,
                "the receipt handle belongs to another consumer group or topic",
            )
        return broker_group, handle
