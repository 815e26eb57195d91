"""The broker groups of this node as sources for readers, and the wake-up of readers when there is
more to read.

A source lives while it has readers; only then is the window of the newest ranges kept. Readers wake
when the group publishes a change after a turn (new messages of their topic, another leader, another
configuration), never by polling. Two threads read files and may block on the disk, so that no
reader delays a turn or the loop. A third thread works on data in memory, so that readers at the end
of the log do not wait behind readers of files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.ports import Unreadable, reading
from ledgermq.node.broker.recent import Recent
from ledgermq.node.frontend.native.reading import Files, files_of, recent_of
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.replica.ports import RunningReplica

COLD_THREADS = 2
REST_S = 0.05
"""While messages are produced, a reader of files pauses for as long as it worked, but at most this
long."""

T = TypeVar("T")


class GroupSource:
    """One broker group, in one life of its replica."""

    def __init__(
        self,
        group: str,
        log_id: str,
        engine: Engine,
        threads: ReaderThreads,
        files: Files,
        recent: Recent,
        tier: TierReads | None,
    ) -> None:
        self.group = group
        self.log_id = log_id
        self.files = files
        self.recent = recent
        self.tier = tier
        """Reads what local retention has removed; None if it went nowhere else."""
        self.readers = 0
        self._engine = engine
        self._threads = threads
        self._progress: object = None

    def run(self, work: Callable[[Any], T]) -> Awaitable[T]:
        return self._engine.run(self.group, work)

    async def cold(self, work: Callable[[], T]) -> T:
        """Run a file read on a thread. Raises Unreadable, after reporting it to the group, which is
        then repaired."""
        began = time.perf_counter()
        try:
            result = await asyncio.get_running_loop().run_in_executor(
                self._threads.cold, self._guarded, work
            )
        except Unreadable as damage:
            await self._engine.run(self.group, self._failing(damage))
            raise
        view = self._engine.views.get(self.group)
        ends = None if view is None else view.queue_ends
        if ends is not self._progress:
            # Messages came since the last piece: their producers, who wait for acknowledgements, go
            # first.
            self._progress = ends
            await asyncio.sleep(min(time.perf_counter() - began, REST_S))
        return result

    def _failing(self, damage: Unreadable) -> Callable[[Any], None]:
        """Fail the group only if the damaged files are still its own: it may have been repaired
        while the read waited."""
        return lambda hosted: hosted.fail(damage) if self.files.belong_to(hosted) else None

    @staticmethod
    def _guarded(work: Callable[[], T]) -> T:
        with reading():
            return work()

    async def hot(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads.hot, work)

    async def offset_at(self, topic: str, queue: int, begin: int, end: int, store_ms: int) -> int:
        """The first offset in begin … end−1 that was stored at `store_ms` or later, on this disk or
        in the store; `end` if there is none."""
        local_offset = await self._local_offset_at(topic, queue, begin, end, store_ms)
        return (
            local_offset
            if self.tier is None
            else await self.tier.offset_at(self.group, topic, queue, store_ms, local_offset)
        )

    async def _local_offset_at(
        self, topic: str, queue: int, begin: int, end: int, store_ms: int
    ) -> int:
        written, epochs = await self.run(
            lambda hosted: (
                int(hosted.store.queues.written_offset(topic, queue)),
                hosted.machine.time_epochs,
            )
        )
        high = max(begin, min(written, end))
        offset = await self.cold(
            lambda: self.files.offset_at(
                topic, queue, low=begin, high=high, store_ms=store_ms, epochs=epochs
            )
        )
        if offset < high or high == end:
            return offset
        # The other units wait in memory.
        return min(
            end,
            await self.run(lambda hosted: int(hosted.machine.offset_at(topic, queue, store_ms))),
        )


class ReaderThreads:
    """The threads that read files and memory for readers."""

    def __init__(self) -> None:
        self.cold = ThreadPoolExecutor(COLD_THREADS, thread_name_prefix="fetch-files")
        self.hot = ThreadPoolExecutor(1, thread_name_prefix="fetch-recent")


class Waiter:
    """Wakes one reader of a group. With an empty `topic`, any progress of the group wakes it."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._advanced = asyncio.Event()
        self._seen: tuple[object, ...] = ()

    def stir(self) -> None:
        self._advanced.set()

    def on_view(self, view: GroupView) -> None:
        """Wake if the view has changed. Mappings and tuples of a view are replaced when they
        change, so comparing identities is enough."""
        ends = view.queue_ends.get(self._topic) if self._topic else view.queue_ends
        seen = (id(ends), id(view.topics), view.serving, view.leader, view.term)
        if seen != self._seen:
            self._seen = seen
            # Kept alive, so that no other object gets the same identity.
            self._held = (ends, view.topics)
            self._advanced.set()

    def begin(self) -> None:
        """Changes from now on end the next `wait`."""
        self._advanced.clear()

    async def wait(self) -> None:
        await self._advanced.wait()


class Sources:
    """The sources of one node. Belongs to the loop's thread."""

    def __init__(self, engine: Engine, tier: TierReads | None = None) -> None:
        self.engine = engine
        self._tier = tier
        self._threads = ReaderThreads()
        self._open: dict[str, GroupSource] = {}
        self._waiters: dict[str, dict[Waiter, None]] = {}
        engine.on_view(self._view)
        engine.on_hidden(self._hidden)

    async def open(self, group: str, waiter: Waiter) -> GroupSource:
        """Add a reader; `close` removes it. Raises LedgerError while the group does not run
        here."""
        source = self._open.get(group)
        if source is None:
            files, recent, log_id = await self._opened(group)
            # The next turn asks the leader for news of commits on behalf of the new reader.
            self.engine.wake(group)
            source = self._open.get(group)
            if source is None:
                source = self._open[group] = GroupSource(
                    group, log_id, self.engine, self._threads, files, recent=recent, tier=self._tier
                )
            else:
                # Another reader opened the source meanwhile.
                self._release(group, recent)
        source.readers += 1
        self._waiters.setdefault(group, {})[waiter] = None
        return source

    async def _opened(self, group: str) -> tuple[Files, Recent, str]:
        """Open the window of a group. It is opened between two turns even if the reader no longer
        waits; then it is released again."""
        opening = asyncio.ensure_future(self.engine.run(group, _found))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: self._unwanted(group, done))
            raise

    def _unwanted(self, group: str, opened: asyncio.Future[tuple[Files, Recent, str]]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self._release(group, opened.result()[1])

    def close(self, source: GroupSource, waiter: Waiter) -> None:
        """Remove a reader. The last one releases the window."""
        self._waiters.get(source.group, {}).pop(waiter, None)
        source.readers -= 1
        if not source.readers and self._open.get(source.group) is source:
            del self._open[source.group]
            self._release(source.group, source.recent)

    def _release(self, group: str, recent: Recent) -> None:
        """Release a window without waiting; a group that does not run has no window."""
        released = asyncio.ensure_future(
            self.engine.run(group, lambda hosted: hosted.group.release_recent(recent))
        )
        released.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _view(self, group: str, view: GroupView) -> None:
        for waiter in self._waiters.get(group, ()):
            waiter.on_view(view)

    def _hidden(self, group: str) -> None:
        """The group no longer runs here; if it returns, it is another life with other files."""
        self._open.pop(group, None)
        for waiter in self._waiters.get(group, ()):
            waiter.stir()


def _found(hosted: RunningReplica) -> tuple[Files, Recent, str]:
    """What a source needs of the group. Runs between two turns."""
    return files_of(hosted), recent_of(hosted), hosted.store.identity.log_id
