"""Messages of one topic from columns, as what the encoder takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft


def drafts(
    topic: str,
    bodies: Sequence[bytes],
    *,
    born_ms: int,
    queues: Iterable[int] | None = None,
    tags: Iterable[str] | None = None,
    keys: Iterable[str] | None = None,
    message_ids: Iterable[str] | None = None,
) -> list[Draft]:
    """A draft for each body: in queue 0 without `queues`; without a property whose column is
    missing or has an empty text."""
    missing = [None] * len(bodies)
    rows = zip(
        bodies,
        [0] * len(bodies) if queues is None else queues,
        message_ids or missing,
        tags or missing,
        keys or missing,
        strict=True,
    )
    return [
        Draft(
            topic,
            queue,
            body,
            encode(Fields(message_id=message_id or None, tag=tag, keys=(key,) if key else ())),
            born_ms,
        )
        for body, queue, message_id, tag, key in rows
    ]
