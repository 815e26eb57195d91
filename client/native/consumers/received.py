"""What a consumer hands out: consecutive messages of one queue, as columns that are built on
access.

Entries stay in the received bytes; columns are extracted from them with vector operations where the
format allows it. This module knows neither streams nor positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ledgermq.client.api.reading import moment_of
from ledgermq.client.native.consumers.arrow import record_batch
from ledgermq.client.native.consumers.positions import EntryName, Run
from ledgermq.client.native.consumers.spans import PropertyFields
from ledgermq.client.results import Message
from ledgermq.proto.entries.compression import EXPANSION, Expansion
from ledgermq.proto.entries.properties import KEYS, MESSAGE_ID, TAG, TRACE_CONTEXT, TRACEPARENT
from ledgermq.proto.frames import BadEntries, EntryColumns, read_entries
from ledgermq.proto.names import parse_stored, stored_name
from ledgermq.proto.types import I64

if TYPE_CHECKING:
    import pyarrow

BATCH_BYTES = 32 << 20
"""What the bodies of a batch take at most by default, decompressed; a message has at most 4 MiB
(`DECOMPRESSED_MAX`)."""


class Batch:
    """Messages of one queue in order, one row each. Offsets are consecutive, unless messages were
    filtered out by tag."""

    def __init__(self, run: Run, queue: int, columns: EntryColumns) -> None:
        self._number = queue
        self.broker_group = run.place.broker_group
        self.group_queue = run.place.queue
        """The queue's id within the broker group."""
        self.skipped = run.missed
        """The number of messages in front of the batch that retention removed before they were
        read."""
        self.next_offset = run.end
        """The offset to continue at; commit it once the batch is processed."""
        self._columns = columns
        self._run = run

    @property
    def queue(self) -> int:
        """The queue's number over all broker groups, as used in administration."""
        return self._number

    @property
    def columns(self) -> EntryColumns:
        """All fields of the entries, as stored."""
        return self._columns

    @classmethod
    def read(
        cls,
        run: Run,
        queue: int,
        verify: bool,
        body_bytes: int = BATCH_BYTES,
        expansion: Expansion = EXPANSION,
    ) -> Batch:
        """Decode the first messages of a run whose bodies take at most `body_bytes` when they are
        decompressed, at least one; `rest` has the others. Raises BadEntries if the bytes are not
        the expected entries."""
        columns = read_entries(run.sizes, run.entries, verify=verify)
        columns.expansion = expansion
        offsets = np.arange(run.first_offset, run.first_offset + len(columns))
        if not ((columns.queue_offsets == offsets) & (columns.queues == run.place.queue)).all():
            raise BadEntries(
                -1, f"not the entries of queue {run.place.queue} from offset {run.first_offset} on"
            )
        batch = cls(run, queue, columns)
        if run.stop - run.begin < len(columns):
            batch = batch.rows(np.arange(run.begin, run.stop))
        count = batch.columns.fitting(body_bytes)
        if count < len(batch):
            batch = Batch(
                replace(run, stop=run.begin + count), queue, batch.rows(np.arange(count)).columns
            )
        return batch

    def rest(self, run: Run) -> Run | None:
        """What of the run that it was read from comes behind it."""
        return run.behind(self._run.stop, self.last) if self._run.stop < run.stop else None

    @property
    def run(self) -> Run:
        """The part of the run that it holds."""
        return self._run

    def rows(self, chosen: NDArray[np.int64]) -> Batch:
        """The messages of the given rows, as a batch of the same queue."""
        c = self.columns
        return Batch(
            self._run,
            self.queue,
            EntryColumns(c.data, c.starts[chosen], c.sizes[chosen], c.expansion),
        )

    def before(self, offset: int) -> Batch:
        """The messages below an offset."""
        return self.rows(np.flatnonzero(self.offsets < offset))

    def with_tags(self, tags: Collection[str]) -> Batch:
        """The messages that have one of these tags."""
        spans = self._fields.spans(TAG)
        wanted = spans.rows[spans.among([tag.encode() for tag in tags])]
        return self if len(wanted) == len(self) else self.rows(wanted)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return (
            f"<Batch queue={self.queue} messages={len(self)} next_offset={self.next_offset}"
            f" skipped={self.skipped}>"
        )

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries, as stored."""
        return int(self.columns.sizes.sum(dtype=np.int64))

    @property
    def last(self) -> EntryName:
        """The name of the last message, if there is one; keep it with `next_offset` where a
        position must outlive the cluster."""
        return EntryName.of(self.columns.data[int(self.columns.starts[-1]) :])

    @property
    def topic(self) -> str:
        """The topic's name, without its namespace."""
        names, _ = self.columns.topics
        return parse_stored(names[0])[1] if names else ""

    @property
    def offsets(self) -> I64:
        return self.columns.queue_offsets

    @property
    def store_ms(self) -> I64:
        return self.columns.store_ms

    @property
    def born_ms(self) -> I64:
        return self.columns.born_ms

    @cached_property
    def _fields(self) -> PropertyFields:
        return PropertyFields(self.columns)

    def bodies(self) -> list[bytes]:
        """The bodies as their producers sent them, decompressed. One that cannot be, or that
        becomes too large, is as it is stored, and its user property `__LMQ.UNDECODED` names the
        compression."""
        return self.columns.bodies()

    def joined_bodies(self) -> tuple[bytes, I64]:
        """The concatenated bodies, and the start of each plus the end of the last."""
        return self.columns.joined_bodies()

    def tags(self) -> list[str | None]:
        return self._fields.texts(TAG)

    def message_ids(self) -> list[str | None]:
        return self._fields.texts(MESSAGE_ID)

    def keys(self) -> list[tuple[str, ...]]:
        """The keys of each message."""
        return [
            () if text is None else tuple(self.columns.fields(row).keys)
            for row, text in enumerate(self._fields.texts(KEYS))
        ]

    def trace_contexts(self) -> list[str | None]:
        """The W3C `traceparent` of each message: the one that an official client set, otherwise the
        user property of that name."""
        own, user = self._fields.texts(TRACE_CONTEXT), self._fields.texts(TRACEPARENT)
        return [first or second for first, second in zip(own, user, strict=True)]

    def properties(self) -> list[dict[str, str]]:
        """The user properties of each message; with the mark of an undecoded body (`bodies`)."""
        return [dict(self.columns.fields(row).user) for row in range(len(self))]

    def messages(self) -> Iterator[Message]:
        """Yield one object per message: convenient, but slower than every other method here."""
        stored, _ = self.columns.topics
        topic = stored_name(*parse_stored(stored[0])) if stored else ""
        rows = zip(
            self.bodies(),
            self.offsets.tolist(),
            self.born_ms.tolist(),
            self.store_ms.tolist(),
            strict=True,
        )
        for row, (body, offset, born, store) in enumerate(rows):
            fields = self.columns.fields(row)
            yield Message(
                message_id=fields.message_id,
                topic=topic,
                queue=self.queue,
                offset=offset,
                tag=fields.tag,
                keys=tuple(fields.keys),
                message_group=fields.message_group,
                properties=fields.user,
                body=body,
                body_encoding="GZIP" if fields.gzip else None,
                attempt=None,
                born=moment_of(born),
                stored=moment_of(store),
                broker_group=self.broker_group,
                group_queue=self.group_queue,
                delayed_until=None,
            )

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def to_arrow(self, columns: Collection[str] | None = None) -> pyarrow.RecordBatch:
        """An Arrow record batch with these columns, by default all of `arrow.COLUMNS`. Needs
        pyarrow. Raises BadArgument for an unknown column."""
        return record_batch(self, self._fields, columns)
