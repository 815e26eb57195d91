"""A consumer on the native streams, for one event loop: batches of every queue in order, positions,
commits, membership.

This module puts the parts together. `positions.py` decides what may be read, `fetching.py` reads
it, `joining.py` assigns the queues, and `received.py` holds a batch. Each decision is made in one
place: an offset is committed only while its queue has a position here.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ledgermq.client.api import arguments
from ledgermq.client.api.connection import Address
from ledgermq.client.api.lifecycle import LoopLife
from ledgermq.client.errors import BadArgument, ClusterError, Refused, Unreachable
from ledgermq.client.native.consumers.delivery_log import Deliveries
from ledgermq.client.native.consumers.fetching import Flow
from ledgermq.client.native.consumers.joining import Confirm, Membership
from ledgermq.client.native.consumers.positions import Place, Positions, Run, Start
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.consumers.settings import (
    WIRE,
    ConsumerOptions,
    ConsumerSettings,
    at_offset,
    start_of,
)
from ledgermq.client.native.consumers.statistics import (
    ConsumerStatistics,
    QueueStatistics,
    ServedBy,
)
from ledgermq.client.native.log_connection import NEARBY_RETRY_S, Located, LogConnection
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import BadEntries
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code

if TYPE_CHECKING:
    import pyarrow

TIMEOUT_S = 30.0
WATCH_S = 5.0
"""After this time without a message from a leader, another node is asked for the leader and the
topic's queues."""
LEAVE_S = 1.0
"""How long a member that leaves waits for its stream to end."""
AGAIN_S = 0.1
"""Pause before repeating a commit that was refused because the coordinator does not know this
member yet."""
PROGRESS_S = 0.1
DISTRUST_MAX = 3
"""After this many damaged reads in a row, a message counts as damaged in the log."""

T = TypeVar("T")
_CALLBACK: ContextVar[object] = ContextVar("ledgermq_callback", default=None)
"""The call of a callback that this code runs in, also in tasks and threads that the callback waits
for."""


class AsyncConsumer:
    """Reads one topic in batches. An asynchronous context manager; for one task at a time.

        async with AsyncConsumer("127.0.0.1:8081", "orders", group="billing", auto_commit=True) as
        consumer:
            async for batch in consumer.batches():
                work(batch.bodies())

    Every stored message of a queue is read once and in order, also when the leader changes.
    `Batch.skipped` and `statistics()` count messages that retention removed before they were read.
    With a consumer group, delivery is at least once: the next owner of a queue reads uncommitted
    messages again. Methods raise ClusterError. A call for a batch that ends by an exception passes
    over no message: the next call returns what it would have returned.
    """

    def __init__(self, endpoints: str, topic: str, **options: Unpack[ConsumerOptions]) -> None:
        """`endpoints`: host:port;host:port. For the options see `ConsumerOptions`. Raises
        BadArgument."""
        given: dict[str, Any] = dict(options)
        wire = {"timeout_s": TIMEOUT_S, **{name: given.pop(name) for name in WIRE if name in given}}
        self.settings = ConsumerSettings(topic, **given)
        self._life = LoopLife(
            "consumer", "use it within its `async with` block, or call open() first"
        )
        self._connection = LogConnection(endpoints, **wire)
        group = self.settings.group
        names = [
            stored_name(self.settings.namespace, name) if name else "" for name in (topic, group)
        ]
        self._log = Deliveries(self.settings.delivery_log, *names)
        self._positions = Positions()
        self._places: tuple[Place, ...] = ()
        """Queues by number: counted over all broker groups, in the order of their names."""
        self._starts: dict[Place, Start] = {}
        """Where the queues that the topic had at the opening begin: `start` uses the numbers that
        they had then."""
        # All messages of a queue that is added later are newer than the opening, but a time may lie
        # in the future.
        self._later = (
            start_of(self.settings.start, 0)
            if isinstance(self.settings.start, datetime)
            else Start()
        )
        self._flows: dict[str, Flow] = {}
        self._ready: deque[Run] = deque()
        self._news = asyncio.Event()
        self._unseen: Batch | None = None
        """Handed out by a call whose caller has not got it yet: `on_progress` failed, or the caller
        was interrupted."""
        self._calls: set[object] = set()
        """The callbacks that run now."""
        self._returned = asyncio.Event()
        """Set while the application has no batch in hand."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._membership: Membership | None = None
        self._joined: asyncio.Task[None] | None = None
        self._assigned = self.settings.group is None
        self._committing = asyncio.Lock()
        self._distrusted: tuple[Place, int, int] | None = None
        self._messages = self._bytes = self._batches = 0
        self._reported_at = -PROGRESS_S

    async def __aenter__(self) -> AsyncConsumer:
        with self._life.opening():
            try:
                await self._open()
            except BaseException:  # a cancelled opening must not leave a stream behind either
                await self.close()
                raise
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self.close()
        except ClusterError:
            # The caller is to see the first error.
            if kind is None:
                raise

    # -- open and close

    async def open(self) -> None:
        """Find the topic and start reading, or join the group. Raises Unreachable, Refused or
        BadArgument."""
        with self._life.opening():
            await self._open()

    async def _open(self) -> None:
        self._returned.set()
        located = await self._connection.locate(self.settings.topic, self.settings.namespace)
        self._life.check_goes_on()
        self._locate(located)
        self._starts = {
            place: start_of(self.settings.start, number)
            for number, place in enumerate(self._places)
        }
        if self.settings.group is None:
            self._begin(self._chosen())
        else:
            who = pb.JoinRequest(
                broker_group=self._places[0].broker_group,
                namespace=self.settings.namespace,
                topic=self.settings.topic,
                consumer_group=self.settings.group,
                member=f"{self._connection.client_id}@{secrets.token_hex(4)}",
            )
            self._membership = Membership(self._connection, who, self._change, self.assigned)
            self._joined = self._start(self._membership.run())
            if self.settings.auto_commit:
                self._start(self._commit_by_itself())
        self._start(self._watch())

    async def close(self) -> None:
        """Commit processed batches (with auto_commit), leave the group, and end all streams. A
        `next_batch` under way raises BadArgument."""
        self.check_may_wait()
        await self._life.end(self._close)

    async def _close(self) -> None:
        self._news.set()
        try:
            if self.settings.auto_commit and self._membership is not None and self._failure is None:
                await self._commit(self._positions.to_commit(handed=False))
        finally:
            self._failure = self._failure or BadArgument(
                "the consumer is closed", "open another one"
            )
            self._news.set()
            await self._end(self._tasks - {self._joined})
            if self._membership is not None and self._joined is not None:
                await self._membership.leave()
                await asyncio.wait([self._joined], timeout=LEAVE_S)
                await self._end({self._joined})
            self._ready.clear()
            await self._connection.close()
            self._log.close(opened=bool(self._places))

    @staticmethod
    async def _end(tasks: Collection[asyncio.Task[None] | None]) -> None:
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; the application's next batch raises its error."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # no other code would see the error
            self._failure = self._failure or error
            self._news.set()
            if not isinstance(error, Exception):
                raise

    # -- what is read

    def _locate(self, located: Located) -> None:
        places = [Place(*queue) for queue in located.queues]
        if not places:
            raise Refused(Code.TOPIC_NOT_FOUND, f"topic {self.settings.topic} has no queues")
        self._places = tuple(places)
        groups = {place.broker_group for place in places}
        window = self.settings.read_ahead_bytes // len(groups)
        for name in sorted(groups - self._flows.keys()):
            near = self.settings.read_from == "nearest"
            flow = Flow(
                self._connection,
                broker_group=name,
                positions=self._positions,
                window_bytes=window,
                opening=self._wanted(name),
                ready=self._came,
                near=near,
            )
            self._flows[name] = flow
            self._start(flow.run())

    def _wanted(self, broker_group: str) -> pb.OpenFetch:
        s = self.settings
        opening = pb.OpenFetch(
            broker_group=broker_group,
            namespace=s.namespace,
            topic=s.topic,
            max_response_bytes=s.response_bytes,
        )
        opening.consumer_group = s.group or ""
        opening.any_replica = s.read_from == "nearest"
        return opening

    def _chosen(self) -> list[Place]:
        """Without a group: the queues to read that are not read yet."""
        numbers = (
            range(len(self._places))
            if self.settings.queues is None
            else sorted(self.settings.queues)
        )
        return [place for place in map(self._place, numbers) if place not in self._positions]

    def _place(self, number: int) -> Place:
        if not isinstance(number, Integral) or not 0 <= number < len(self._places):
            problem = f"topic {self.settings.topic} has no queue {number}"
            raise BadArgument(problem, f"its queues are 0 to {len(self._places) - 1}")
        return self._places[number]

    def _begin(self, places: Iterable[Place], committed: Mapping[Place, int] | None = None) -> None:
        for place in places:
            offset = None if committed is None else committed.get(place)
            start = self._starts.get(place, self._later) if offset is None else Start(offset=offset)
            self._positions.add(place, start, offset)

    def _restart(self, places: Iterable[Place]) -> None:
        for name in {place.broker_group for place in places}:
            self._flows[name].restart()

    def _came(self, run: Run | None) -> None:
        if run is not None:
            self._ready.append(run)
        self._news.set()

    async def _watch(self) -> None:
        """When a leader is silent, ask another node whether it still leads. Also finds queues that
        were added to the topic."""
        suspects: dict[str, Address | None] = {}
        while True:
            await asyncio.sleep(WATCH_S)
            self._look_after_near()
            quiet = [
                name
                for name, flow in self._flows.items()
                if flow.silent_s() >= WATCH_S and not flow.near
            ]
            if not quiet:
                continue
            try:
                self._locate(
                    await self._connection.locate(self.settings.topic, self.settings.namespace)
                )
            except Unreachable:
                continue
            for name in quiet:
                leader = self._connection.leader(name)
                # A single node may learn of a new leader late, so only the second finding counts.
                if leader != self._flows[name].address and suspects.get(name) == leader:
                    self._flows[name].restart()
                    if self._membership is not None and self._membership.broker_group == name:
                        self._membership.restart()
                suspects[name] = leader
            if (
                self.settings.group is None
                and self.settings.queues is None
                and (new := self._chosen())
            ):
                self._begin(new)
                self._restart(new)

    def _look_after_near(self) -> None:
        """A replica that serves without leading reports every second that it is alive; restart the
        stream of one that does not."""
        for flow in self._flows.values():
            if flow.near and flow.uses_nearby and flow.silent_s() >= WATCH_S:
                flow.restart(f"{flow.address} gives no sign of life")
            elif flow.near and not flow.uses_nearby and flow.on_leader_s() >= NEARBY_RETRY_S:
                flow.restart()

    # -- batches

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield batches as they arrive: forever, or with `until_end` up to the end of the topic.
        Requesting the next batch marks the last one as processed."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def arrow_batches(
        self, columns: Collection[str] | None = None
    ) -> AsyncIterator[pyarrow.RecordBatch]:
        """The same as Arrow record batches (`Batch.to_arrow`); needs pyarrow."""
        while (batch := await self.offer()) is not None:
            converted = batch.to_arrow(columns)
            self.seen()
            yield converted

    async def next_batch(self, wait_s: float | None = None) -> Batch | None:
        """The next batch. None: none arrived within `wait_s`, or with `until_end` everything was
        read. Raises BadArgument outside of the consumer's life."""
        batch = await self.offer(wait_s)
        self.seen()
        return batch

    def seen(self) -> None:
        """The application has got what `offer` returned."""
        self._unseen = None

    async def offer(self, wait_s: float | None = None) -> Batch | None:
        """As `next_batch`, for callers that can fail before the application has the batch: until
        `seen`, it comes again."""
        patience_s = arguments.patience(wait_s, "wait_s")
        self._life.check()
        self.check_may_wait()
        if self._unseen is None:
            self._positions.all_processed()
            self._returned.set()
        loop = asyncio.get_running_loop()
        deadline = None if patience_s is None else loop.time() + patience_s
        while True:
            self._life.check()
            if self._failure is not None:
                raise self._failure
            if self._unseen is None and (batch := self._next_ready()) is not None:
                self._unseen = batch
                self._returned.clear()
                await self._report()
            if self._unseen is not None:
                if self._positions.current(self._unseen.run.place, self._unseen.run.generation):
                    return self._unseen
                # Meanwhile the application left the place by a seek, or another member got the
                # queue.
                self._unseen = None
                self._returned.set()
                continue
            if self.settings.until_end and self._assigned and self._positions.finished():
                return None
            self._news.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return None

    def _next_ready(self) -> Batch | None:
        while self._ready:
            # A run stays there until it is handed out: whatever fails before, the next call meets
            # it again.
            run = self._still_wanted(self._ready[0])
            batch: Batch | None = None
            rest: Run | None = None
            try:
                if run is not None:
                    s = self.settings
                    batch = Batch.read(
                        run, self._places.index(run.place), s.verify, s.batch_bytes, s.expansion
                    )
                    rest = batch.rest(run)
            except BadEntries as error:
                self._taken(None)
                assert run is not None, "it was read"
                self._distrust(run, error)
                continue
            if batch is None:
                self._taken(None)
                continue
            if self.settings.tags is not None:
                batch = batch.with_tags(self.settings.tags)
            if len(batch):
                self._record(batch.run.place, batch)
            self._positions.hand(batch.run)
            self._taken(rest)
            if not len(batch):
                # The batch is empty after filtering, so the application has nothing to process.
                self._positions.all_processed()
                continue
            self._messages += len(batch)
            self._bytes += batch.entry_bytes
            self._batches += 1
            return batch
        return None

    def _still_wanted(self, came: Run) -> Run | None:
        if not self._positions.current(came.place, came.generation):
            return None
        return self._positions.until_target(came) if self.settings.until_end else came

    def _taken(self, rest: Run | None) -> None:
        """The first run read ahead has been dealt with, up to this rest of it."""
        came = self._ready.popleft()
        if rest is not None:
            self._ready.appendleft(rest)
        else:
            self._flows[came.place.broker_group].taken(len(came.entries))

    def _record(self, place: Place, batch: Batch) -> None:
        try:
            self._log.delivered(place, batch)
        except BadArgument as error:
            # What this file says from here on would be false.
            self._failure = error
            raise

    def _distrust(self, run: Run, error: BadEntries) -> None:
        """Read a damaged run again: it may have been damaged in transit."""
        times = (
            self._distrusted[2] + 1
            if self._distrusted and self._distrusted[:2] == (run.place, run.offset)
            else 1
        )
        self._distrusted = run.place, run.offset, times
        problem = (
            f"queue {self._places.index(run.place)} is damaged from offset {run.offset} on: {error}"
        )
        self._positions.again(run)
        self._flows[run.place.broker_group].restart(problem)
        if times >= DISTRUST_MAX:
            # Whoever asks again reads it again; what comes behind it is not handed out in its
            # place.
            raise Refused(Code.INTERNAL_SERVER_ERROR, problem, "see ledgermq audit")

    async def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._reported_at >= PROGRESS_S:
            self._reported_at = now
            await self._call(self.settings.on_progress, self.statistics())

    def statistics(self) -> ConsumerStatistics:
        """Counters of this consumer, and its progress in every queue."""
        queues = []
        for place in self._positions:
            p = self._positions[place]
            skipped = p.missed + p.missed_ahead
            # Every message read ahead was removed by retention.
            position = None if p.handed is None else p.handed + p.missed_ahead
            queues.append(
                QueueStatistics(
                    queue=self._places.index(place),
                    broker_group=place.broker_group,
                    position=position,
                    committed=p.committed,
                    end=p.end,
                    skipped=skipped,
                )
            )
        buffered = sum(flow.window.waiting for flow in self._flows.values())
        streams = sum(flow.opened for flow in self._flows.values())
        live = [
            (name, flow) for name, flow in sorted(self._flows.items()) if flow.live and flow.replica
        ]
        served = tuple(ServedBy(name, flow.replica, flow.age_ms) for name, flow in live)
        return ConsumerStatistics(
            messages=self._messages,
            bytes=self._bytes,
            batches=self._batches,
            buffered_bytes=buffered,
            streams=streams,
            queues=tuple(queues),
            served_by=served,
        )

    # -- positions

    def assigned(self) -> tuple[int, ...]:
        """The numbers of the queues that this consumer reads."""
        return self._numbers(self._positions)

    def log_id(self, broker_group: str) -> str:
        """The id of the log that this broker group is read from. It changes when a recovery may
        have lost messages."""
        return self._flows[broker_group].log_id

    def caught_up(self) -> bool:
        """Whether the consumer has handed out every message up to the ends that the leaders last
        reported. False while a leader is unreachable, while a position was not compared with its
        log yet, and for a group member without queues."""
        reading = {place.broker_group for place in self._positions}
        live = bool(reading) and all(self._flows[name].live for name in reading)
        return live and not self._positions.awaits() and self.statistics().lag == 0

    def unproven(self) -> int:
        """The number of queues whose position could not be compared with the log, because retention
        removed the message in front of it."""
        return sum(self._positions[place].unproven for place in self._positions)

    def _numbers(self, places: Iterable[Place]) -> tuple[int, ...]:
        return tuple(sorted(map(self._places.index, places)))

    def seek(self, queue: int, to: int | str | datetime) -> None:
        """Continue one queue at another place: an offset, `earliest`, `latest`, or the first
        message stored at or after a moment."""
        self._life.check(closing=True)
        place = self._place(queue)
        if place not in self._positions:
            raise BadArgument(f"queue {queue} is not read here", "choose one of assigned()")
        self._go(place, at_offset(to) if isinstance(to, int | Integral) else start_of(to, queue))
        self._restart([place])

    def seek_time(self, moment: datetime | int, queue: int | None = None) -> None:
        """Continue one queue, or all, with the first message stored at or after this moment (or
        milliseconds since 1970)."""
        self._life.check(closing=True)
        arguments.one_of(moment, "the moment", datetime, Integral)
        start = (
            Start(store_ms=int(moment))
            if isinstance(moment, int | Integral)
            else start_of(moment, 0)
        )
        places = list(self._positions) if queue is None else [self._place(queue)]
        for place in places:
            self._go(place, start)
        self._restart(places)

    def _go(self, place: Place, start: Start) -> None:
        self._log.sought(place, self._positions[place].end)
        self._positions.seek(place, start)

    # -- the consumer group

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit the group's position: behind every message handed out, or the next offset to read
        for each given queue.

        Durable on a majority when it returns. Queues that were revoked in the meantime are left
        out. Raises BadArgument, Unreachable or Refused.
        """
        self._life.check(closing=True)
        if self.settings.group is None:
            raise BadArgument("without a consumer group nothing is committed", "name a group")
        if offsets is None:
            handed = dict(self._positions.to_commit(handed=True))
            if self._unseen is not None and self._unseen.run.place in handed:
                place = self._unseen.run.place
                handed[place] = min(handed[place], self._unseen.run.offset)
            await self._commit(handed)
        else:
            arguments.one_of(offsets, "offsets", Mapping)
            await self._commit(
                {
                    self._place(queue): arguments.count(offset, "an offset", 0)
                    for queue, offset in offsets.items()
                }
            )

    async def _commit(self, offsets: Mapping[Place, int]) -> None:
        async with self._committing:
            for name in sorted({place.broker_group for place in offsets}):
                await self._commit_at(
                    name,
                    {
                        place: offset
                        for place, offset in offsets.items()
                        if place.broker_group == name
                    },
                )

    async def _commit_at(self, broker_group: str, offsets: Mapping[Place, int]) -> None:
        """Commit only queues that this member owns. A new coordinator that this member has not
        joined yet refuses; the commit is then repeated."""
        assert self._membership is not None, "only members commit"
        end = asyncio.get_running_loop().time() + self._connection.timeout_s
        while own := {
            place: offset for place, offset in offsets.items() if place in self._positions
        }:
            request = pb.CommitRequest(
                **self._as_group(broker_group),
                offsets=[
                    pb.QueueOffset(queue=place.queue, offset=offset)
                    for place, offset in own.items()
                ],
                member=self._membership.member,
                generation=self._membership.generation,
            )
            try:
                await self._connection.ask("Commit", broker_group, request, pb.CommitResponse)
            except Refused as error:
                if error.code != Code.PRECONDITION_FAILED:
                    raise
                if self._membership.changing:
                    return
                if asyncio.get_running_loop().time() > end:
                    raise Unreachable(error.what, "check ledgermq status") from error
                await asyncio.sleep(AGAIN_S)
            else:
                self._positions.committed(own)
                self._log.committed(own)
                return

    def _as_group(self, broker_group: str) -> dict[str, str]:
        assert self.settings.group is not None, "only members ask as a group"
        s = self.settings
        return {
            "broker_group": broker_group,
            "namespace": s.namespace,
            "topic": s.topic,
            "consumer_group": self.settings.group,
        }

    async def _commit_by_itself(self) -> None:
        """Commit processed batches at intervals. While the cluster is unreachable, the next
        interval tries again."""
        while True:
            await asyncio.sleep(self.settings.commit_interval_s)
            with suppress(Unreachable):
                await self._commit(self._positions.to_commit(handed=False))

    async def _change(self, numbers: frozenset[int], confirm: Confirm) -> None:
        """Take over exactly these queues: see `joining.py` for the order."""
        anew = bool(numbers) and next(iter(self._positions), None) is None
        if anew or any(number >= len(self._places) for number in numbers):
            # While the consumer reads no queue, the numbers may have been given to other queues.
            self._locate(
                await self._connection.locate(self.settings.topic, self.settings.namespace)
            )
        wanted = set(map(self._place, numbers))
        gone = set(self._positions) - wanted
        if gone:
            await self._let_go(gone)
        await confirm()
        new = sorted(wanted - set(self._positions))
        if new:
            self._begin(new, await self._committed(new))
            # A callback that seeks is asked before anything is read, however long it takes.
            self._positions.pause(new)
            await self._call(self.settings.on_assigned, self._numbers(new))
            self._positions.resume(new)
            self._restart(new)
        self._assigned = self._assigned or bool(numbers)
        self._news.set()

    async def _let_go(self, gone: Collection[Place]) -> None:
        self._positions.pause(gone)
        self._restart(gone)
        assert self._membership is not None, "only members let go"
        if self._positions.in_hand(gone):
            # If the application finishes its batch in time, the next owner need not read it again.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._membership.liveness_s / 3):
                    await self._returned.wait()
        if self.settings.auto_commit:
            processed = self._positions.to_commit(handed=False)
            with suppress(ClusterError):
                await self._commit(
                    {place: offset for place, offset in processed.items() if place in gone}
                )
        await self._call(self.settings.on_revoked, self._numbers(gone))
        self._positions.drop(gone)

    async def _call(
        self, callback: Callable[[T], Awaitable[None] | None] | None, argument: T
    ) -> None:
        """Call the application. Raises what it raises, but CancelledError only if this task is
        cancelled."""
        if callback is None:
            return
        call = object()
        self._calls.add(call)
        outside = _CALLBACK.set(call)
        try:
            answer = callback(argument)
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Of a task that the callback ended and waited for. As a cancellation, it would end this
            # task without a word.
            raise RuntimeError("the callback raised CancelledError") from error
        finally:
            _CALLBACK.reset(outside)
            self._calls.discard(call)

    def check_may_wait(self) -> None:
        """Raises BadArgument in a callback of this consumer, which must not wait for batches: they
        may wait for its end."""
        if _CALLBACK.get() in self._calls:
            problem = "a callback can neither ask for batches nor close its consumer"
            raise BadArgument(
                problem, "return from it first; commit, seek and statistics are allowed"
            )

    async def _committed(self, places: Collection[Place]) -> dict[Place, int]:
        """The group's committed offsets in these queues."""
        states_of: dict[Place, int] = {}
        for name in sorted({place.broker_group for place in places}):
            request = pb.OffsetsRequest(**self._as_group(name))
            answer = await self._connection.ask("Offsets", name, request, pb.OffsetsResponse)
            states = {
                Place(name, state.queue): state.committed
                for state in answer.queues
                if state.committed >= 0
            }
            states_of |= {place: states[place] for place in places if place in states}
        return states_of
