"""Two nodes in one process for query tests: n1 leads the broker groups g1 and g2, n2 follows in g1.
Logs are in memory; lookups scan them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from ledgermq.node.broker.calls.consumer_calls import Ack, Handle, Receive, Received
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.frontend.admin.messages.group_queries import GroupQueries
from ledgermq.node.frontend.admin.messages.group_reads import ReadThrough
from ledgermq.node.frontend.admin.messages.peeks import PEEK_METHOD, Peeks
from ledgermq.node.frontend.admin.messages.queries import Queries
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.proto import admin_pb2
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.entries.properties import decode as decode_properties
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records.time_epochs import NO_EPOCHS, TimeEpochs
from ledgermq.proto.types import Draft, Range
from ledgermq.storage.keys.lookup import Found
from ledgermq.storage.log.log_reader import Limits
from tests.contract.backend import AgreedState, Clock, LoopEngine, MemoryLink
from tests.node_core.core_fakes import EPOCH_MS, MS, MemoryLog

T = TypeVar("T")
TOPIC = SimpleNamespace(namespace="", name="t", placement={"g1": 2, "g2": 1}, queues=3)
NAME = admin_pb2.Name(name="t")


class ScanningLookup:
    """A `Lookup` that scans the whole log."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def each_by_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int, epochs: TimeEpochs = NO_EPOCHS
    ) -> Iterator[Found]:
        found = []
        for entries in self._log.ranges:
            for at, start in enumerate(entries.starts.tolist()):
                record = bytes(entries.data[start + 48 : start + int(entries.sizes[at])])
                fields = decode_record(record)
                own = decode_properties(fields.properties)
                ms = epochs.counted(fields.store_ms, fields.physical_offset)
                if (
                    fields.topic == topic
                    and key in (*own.keys, own.message_id)
                    and begin_ms <= ms <= end_ms
                ):
                    found.append(
                        Found(
                            entries.first_index + at, entries.pos + start + 48, len(record), record
                        )
                    )
        return iter(found[::-1])


class MemoryReader:
    """The part of `LogReader` that log scans use."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.begin_index = 0

    @property
    def limits(self) -> Limits:
        return Limits(self.begin_index, self._log.end_index + 1, self._log.end_pos)

    def read(self, first_index: int, max_bytes: int) -> Range:
        return cut(self._log.read(first_index), first_index)


class MemoryStore:
    """The part of a group's store that locating a copy uses. `damage` flips a byte of every entry
    that is read."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.log = self
        self.identity = SimpleNamespace(data_file_bytes=1 << 20)
        self.begin_index = 0
        self.damage = False

    @property
    def end_index(self) -> int:
        return self._log.end_index

    def record_at(self, physical_offset: int, size: int) -> bytes:
        return self._log.record(physical_offset, size)

    def read(self, first_index: int, max_bytes: int) -> Range:
        entries = cut(self._log.read(first_index), first_index)
        if not self.damage:
            return entries
        data = bytearray(entries.data)
        data[-1] ^= 1
        return Range(
            entries.first_index, entries.last_index, entries.term, entries.pos, memoryview(data), entries.starts, entries.sizes,
            entries.prev_chain, entries.last_chain,
        )  # fmt: skip


class QueryEngine(LoopEngine):
    """An engine with hosted groups."""

    def __init__(self, clock: Clock, groups: Sequence[str]) -> None:
        super().__init__(clock, groups, LeaderSettings(times=LeaseTimes(handover_ns=0)))
        self.hosted = {
            name: SimpleNamespace(
                machine=group.machine,
                group=group,
                store=MemoryStore(self.replicators[name].log),
                lookup=ScanningLookup(self.replicators[name].log),
                reader=MemoryReader(self.replicators[name].log),
                key_index=SimpleNamespace(next_index=1 << 40, setbacks=0),
            )
            for name, group in self.groups.items()
        }

    async def run(self, group: str, work: Callable[[Any], T]) -> T:
        return work(self.hosted[group])


class QueryBench:
    """Both nodes. `queries[0]` belongs to the leader's node, `queries[1]` to the other."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.engines = [QueryEngine(self.clock, ("g1", "g2")), QueryEngine(self.clock, ("g1",))]
        self.state = AgreedState(("g1", "g2"))
        command = {
            "op": "create-topic",
            "ns": "",
            "name": "t",
            "kind": "normal",
            "queues": 3,
            "permission": "rw",
        }
        self.state.command(command)
        self.state._shown = self.state._agreed = replace(
            self.state.state, broker_groups={"g1": ("n1", "n2", "n3"), "g2": ("n1",)}
        )
        replicas = {"g1": ("n1", "n2", "n3"), "g2": ("n1",)}
        first = Forwarder("n1", replicas, self.engines[0], {}, self.clock)
        self.link = MemoryLink(first)
        second = Forwarder("n2", replicas, self.engines[1], {"n1": self.link}, self.clock)
        self.back = MemoryLink(second)
        first._links = {"n2": self.back}
        self.forwarders = [first, second]
        self.queries = []
        self.peeks = []
        for node, forwarder, engine in zip(
            ("n1", "n2"), self.forwarders, self.engines, strict=True
        ):
            queries = Queries(
                forwarder,
                self.state,
                GroupQueries(node, engine, ReadThrough(engine), self.clock, lambda: self.now_ms),
            )
            self.queries.append(queries)
            self.peeks.append(Peeks(engine, forwarder, self.state, ReadThrough(engine)))  # type: ignore[arg-type]
            forwarder._executor = self._executor(queries, self.peeks[-1])
        self.topic = self.state.state.topics["", "t"]

    def _executor(self, queries: Queries, peeks: Peeks) -> Any:
        async def execute(
            group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
        ) -> list[bytes]:
            if method == PEEK_METHOD:
                answer = await peeks.peek_here(
                    self.topic, admin_pb2.PeekRequest.FromString(request)
                )
                answer.status.code = 20000
                return [answer.SerializeToString()]
            return [await queries.calls().peers[method](group, request)]

        return execute

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + self.clock.now_ns // MS

    async def start(self) -> None:
        for group in ("g1", "g2"):
            self.engines[0].lead(group, 1)
            topics = self.state.state.topics_of(group)
            await self.engines[0].call(group, Configure(self.engines[0].new_token(), topics))
        self.engines[1].follow("g1", "n1")
        self.follow()

    def follow(self, entries: int | None = None) -> None:
        """Replicate all ranges of g1 to n2, or only the next `entries` ranges."""
        leader, follower = self.engines[0].replicators["g1"], self.engines[1].replicators["g1"]
        missing = leader.log.ranges[len(follower.log.ranges) :]
        follower.log.ranges += missing if entries is None else missing[:entries]
        follower.commit_index = follower.log.end_index
        self.engines[1].turn()

    def pass_ms(self, milliseconds: int) -> None:
        self.clock.now_ns += milliseconds * MS

    async def send(
        self,
        group: str,
        queue: int,
        body: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        deliver_ms: int = 0,
    ) -> None:
        fields = Fields(
            message_id=message_id or f"id-{body}",
            keys=(key,) if key else (),
            deliver_ms=deliver_ms or None,
        )
        draft = Draft("t", queue, body.encode(), encode(fields), EPOCH_MS, deliver_ms=deliver_ms)
        await self.engines[0].call(group, Produce(self.engines[0].new_token(), [draft]))

    async def receive(
        self, group: str = "c", broker: str = "g1", count: int = 32, invisible_ms: int = 10_000
    ) -> Received:
        engine = self.engines[0]
        call = Receive(
            engine.new_token(),
            group,
            "t",
            "client",
            TagFilter(),
            count,
            invisible_ms,
            self.clock.now_ns,
        )
        outcome = await engine.call(broker, call)
        assert isinstance(outcome, Received)
        return outcome

    async def ack(
        self, received: Received, group: str = "c", broker: str = "g1"
    ) -> tuple[bool, ...]:
        handles = [
            Handle(group, "t", x.queue, x.queue_offset, x.lease_number, x.attempt)
            for x in received.leases
        ]
        outcome: Any = await self.engines[0].call(broker, Ack(self.engines[0].new_token(), handles))
        ok: tuple[bool, ...] = outcome.ok
        return ok


@asynccontextmanager
async def started_bench() -> AsyncIterator[QueryBench]:
    bench = QueryBench()
    await bench.start()
    async with asyncio.timeout(30):
        yield bench


def bodies(answer: admin_pb2.QueryResponse | admin_pb2.PeekResponse) -> list[str]:
    return [message.body.decode() for message in answer.messages]
