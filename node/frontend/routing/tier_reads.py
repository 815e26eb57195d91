"""Reads of the object store for clients, below where the log begins on the disk of this node.

A message is below the local begin because local retention removed it from the disks; its entry was
committed, so what the store holds of it never changes, and no leadership needs to be confirmed for
it. Consumers with leases are served by the leader, which asks for what it needs
(`tier_fetches.py`). Store requests run on threads of their own, so that a slow store delays nobody
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ledgermq.node.frontend.ports import Engine
from ledgermq.node.replica.ports import RunningReplica
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.storage.files.errors import Damaged, StorageError
from ledgermq.storage.log.log_reader import Piece
from ledgermq.storage.tiered.ports import Answered, StoreFailure
from ledgermq.storage.tiered.tier_reader import (
    UNITS_MAX,
    LocalBegin,
    NotHere,
    QueueEntries,
    TierReader,
)

THREADS = 4
FAILED_S = 2.0
"""After the store failed, readers are refused for this time without asking it, so that they do not
queue up behind its time-outs: those of all broker groups, or of the one that asked if the store
answered and does not give that object."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """A queue: `floor`, where the topic of now began; where the local log begins; the end."""

    floor: int
    local: LocalBegin
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether all messages are on the local disk."""
        return self.floor >= self.local.offset


def bounds_of(hosted: RunningReplica, topic: str, queue: int) -> Bounds:
    """Runs between two turns."""
    machine = hosted.machine
    local = LocalBegin(machine.begin(topic, queue), machine.begin_pos, machine.time_epochs)
    return Bounds(machine.floor(topic, queue), local, machine.end(topic, queue))


class TierReads:
    """The reads of one node. `reader`: the reader of a broker group's stored files; None while the
    group does not run here."""

    def __init__(
        self, engine: Engine, reader: Callable[[str], TierReader | None], now_s: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._now_s = now_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tiered-read")
        self._failed: dict[str, tuple[float, str]] = {}
        """Broker group, or "" for all of them → until when its readers are refused, and why."""

    def reader(self, group: str) -> TierReader:
        """The reader of a broker group's stored files. Raises LedgerError while it does not run
        here."""
        reader = self._reader(group)
        if reader is None:
            raise fail(
                Code.HA_NOT_AVAILABLE,
                f"broker group {group} has just begun to run on this node; try again",
            )
        return reader

    async def bounds(self, group: str, topic: str, queue: int) -> Bounds:
        return await self._engine.run(group, lambda hosted: bounds_of(hosted, topic, queue))

    async def first_offset(self, group: str, topic: str, queue: int, offset: int = 0) -> int:
        """The first offset from `offset` on that is in the store or on the local disk. Raises
        LedgerError."""
        of = await self.bounds(group, topic, queue)
        wanted = max(offset, of.floor)
        if wanted >= of.local.offset:
            return wanted
        return await self.run(
            group, lambda reader: reader.first_offset(topic, queue, wanted, of.local)
        )

    async def offset_at(
        self, group: str, topic: str, queue: int, store_ms: int, local_offset: int
    ) -> int:
        """The first offset that was stored at `store_ms` or later. `local_offset`: the same, as the
        local log alone has it. Raises LedgerError."""
        of = await self.bounds(group, topic, queue)
        if of.is_whole or local_offset > of.local.offset:
            return local_offset
        return await self.run(
            group, lambda reader: reader.offset_at(topic, queue, of.floor, of.local, store_ms)
        )

    async def entries(
        self, group: str, topic: str, queue: int, first: int, max_bytes: int, count: int = UNITS_MAX
    ) -> QueueEntries | None:
        """Entries of a queue from the first one in the store at or above `first` on; None if the
        local log has the next one. Raises LedgerError."""
        of = await self.bounds(group, topic, queue)
        wanted = max(first, of.floor)
        if wanted >= of.local.offset:
            return None
        return await self.run(
            group,
            lambda reader: reader.entries(
                topic, queue, wanted, of.local, max_bytes=max_bytes, count=count
            ),
        )

    async def first_index(self, group: str, index: int, local: int) -> int:
        """The first entry of the log from `index` on; `local`: with which the local log begins.
        Raises LedgerError."""
        if index >= local:
            return index
        return max(index, await self.run(group, TierReader.first_index))

    async def log(self, group: str, first_index: int, max_bytes: int) -> Piece | None:
        """Entries of the log from an index on; None if the store begins behind it. Raises
        LedgerError."""
        return await self.run(group, lambda reader: reader.read(first_index, max_bytes))

    async def run(self, group: str, work: Callable[[TierReader], T]) -> T:
        """Run a read on a thread. Raises LedgerError, which says what to do."""
        reader = self.reader(group)
        for scope in ("", group):
            until, why = self._failed.get(scope, (float("-inf"), ""))
            if self._now_s() < until:
                raise _away(why)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, reader)
        except StoreFailure as failure:
            if not isinstance(failure, NotHere):
                self._failed[group if isinstance(failure, Answered) else ""] = (
                    self._now_s() + FAILED_S,
                    str(failure),
                )
            raise self.error(failure) from failure
        except (StorageError, OSError) as error:
            raise self.error(error) from error

    @staticmethod
    def error(error: Exception) -> LedgerError:
        """The error for a client, from what a reader of the store raised."""
        if isinstance(error, StoreFailure):
            return _away(str(error))
        if isinstance(error, StorageError) and not isinstance(error, Damaged):
            problem = (
                f"older messages are in the object store, which holds something wrong ({error})"
            )
            return fail(
                Code.INTERNAL_SERVER_ERROR,
                f"{problem}; ledgermq restore --check names it, put it back from the store's own"
                " versions",
            )
        return fail(
            Code.INTERNAL_SERVER_ERROR,
            f"older messages cannot be read from the object store ({error})",
        )


def _away(why: str) -> LedgerError:
    problem = f"older messages are in the object store, which cannot be read now ({why})"
    return fail(Code.HA_NOT_AVAILABLE, f"{problem}; try again, or begin with newer messages")
