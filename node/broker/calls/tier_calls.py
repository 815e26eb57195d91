"""What a leader asks the readers of the object store for, and what it gets: messages below the
local begin, for consumers with leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ledgermq.node.broker.calls.outcome import Sign
from ledgermq.proto.entries.layout import HEADER_BYTES, split_record, tags_code

_INDEX = slice(8, 16)
_PHYSICAL_OFFSET = slice(HEADER_BYTES + 28, HEADER_BYTES + 36)


class TierMessage(NamedTuple):
    """One message. `position`: of its record in the log; `tags_code`: as in a consume queue;
    `record`: the whole record (format §4)."""

    position: int
    entry_index: int
    tags_code: int
    record: bytes

    @staticmethod
    def of_entry(entry: bytes) -> TierMessage:
        """The message of a verified entry."""
        record = entry[HEADER_BYTES:]
        code = tags_code(record[split_record(record)[3] :])
        return TierMessage(
            int.from_bytes(entry[_PHYSICAL_OFFSET], "big"),
            int.from_bytes(entry[_INDEX], "big"),
            code,
            record,
        )


@dataclass(frozen=True, slots=True)
class TierFetch:
    """Messages of one queue from offset `first` on, which lie before the local log: that begins
    with offset `begin`, in the file at `begin_pos`. At least one, then at most `count` within
    `max_bytes`. Answer: a `TierFetched` that names it, in any case."""

    number: int
    topic: str
    queue: int
    first: int
    begin: int
    begin_pos: int
    max_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class TierFetched(Sign):
    """Consecutive messages from offset `first` on. `first` is above what was asked for only if the
    store begins there; then it has none of the messages in between. `failure`: why nothing could be
    read; empty if that was possible. No answer.

    It repeats the whole fetch: a replica that is opened again in the same process counts its
    fetches from 1 again, and an answer that its former life asked for is no answer to what has the
    same number now."""

    fetch: TierFetch
    first: int = 0
    messages: tuple[TierMessage, ...] = ()
    failure: str = ""
