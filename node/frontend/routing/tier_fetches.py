"""Messages from the object store for consumers with leases: carries out what the leaders of this
node ask for (`TierFetch`).

Every fetch ends with an answer, whatever happens to it, so that the leader can ask again. The store
is asked on the threads of `TierReads`; nothing that decides waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched, TierMessage
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto.status import LedgerError
from ledgermq.storage.tiered.tier_reader import LocalBegin, TierReader

log = get_logger()


class TierFetches:
    """The fetches of one node."""

    def __init__(self, engine: Engine, tier: TierReads) -> None:
        self._engine = engine
        self._tier = tier
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}
        """Broker group whose last fetch failed → why."""

    def start(self, group: str, fetches: Sequence[TierFetch]) -> None:
        """Begin these fetches."""
        for fetch in fetches:
            task = asyncio.create_task(
                self._fetch(group, fetch), name=f"tier-fetch-{group}-{fetch.number}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what is under way; the groups of this node no longer need it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fetch(self, group: str, fetch: TierFetch) -> None:
        try:
            answer = await self._tier.run(group, lambda reader: fetched(reader, fetch))
        except LedgerError as error:
            answer = TierFetched(fetch, failure=error.message)
        except Exception as error:  # the leader asks again, and must not wait for ever
            log.exception("messages not fetched from the object store", group=group)
            answer = TierFetched(fetch, failure=f"internal error: {error}")
        self._note(group, answer.failure)
        self._engine.notify(group, answer)

    def _note(self, group: str, failure: str) -> None:
        if failure and failure != self._failing.get(group):
            log.warning(
                "consumers wait for messages that only the object store has",
                group=group,
                reason=failure,
            )
        elif not failure and group in self._failing:
            log.info("consumers get messages from the object store again", group=group)
        if failure:
            self._failing[group] = failure
        else:
            self._failing.pop(group, None)


def fetched(reader: TierReader, fetch: TierFetch) -> TierFetched:
    """Carry out one fetch; blocks. Raises StoreFailure, StorageError, OSError."""
    local = LocalBegin(fetch.begin, fetch.begin_pos)
    stored = reader.entries(
        fetch.topic,
        fetch.queue,
        fetch.first,
        local,
        max_bytes=fetch.max_bytes,
        count=fetch.count,
    )
    if stored is None:
        return TierFetched(fetch, fetch.begin)
    return TierFetched(fetch, stored.first, tuple(map(TierMessage.of_entry, stored.entries())))
