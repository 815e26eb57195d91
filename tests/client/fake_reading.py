"""The reading half of `ledgermq.v1.Log` in memory: broker groups that change leaders, streams that
break, queues that are trimmed, and members that join and leave. Its responses follow
proto/log.proto; a random source decides how they are cut, delayed and broken.

`FakeLog` is the cluster. `served` makes its nodes available on real gRPC ports, and
`FakeConnection` reaches them without a network.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import numpy as np

from bench.tools.drafts import drafts
from ledgermq.client.api.connection import Address
from ledgermq.client.native.log_connection import (
    BrokerGroupQueues,
    Located,
    LogConnection,
    Pauses,
    Search,
    problem_of,
)
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.entries.native_ids import native_ids
from ledgermq.proto.status import Code

SERVICE = "/ledgermq.v1.Log/"
LIVENESS_MS = 3000


class Broken(Exception):
    """The connection breaks here."""


class Queue:
    """One queue: its entries, of which those below `begin` are trimmed."""

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.begin = 0
        self.entries: list[bytes] = []

    @property
    def end(self) -> int:
        return len(self.entries)

    def append(
        self,
        bodies: Iterable[bytes],
        tags: Iterable[str] | None = None,
        store_ms: int = 0,
        term: int = 1,
    ) -> None:
        bodies = list(bodies)
        if not bodies:
            return
        first = self.end
        ids = [
            found.decode() for found in native_ids(1, 1, self.queue, first, len(bodies)).tolist()
        ]
        batch = encode_entries(
            drafts(
                "t",
                bodies,
                born_ms=1,
                queues=[self.queue] * len(bodies),
                message_ids=ids,
                tags=tags,
            )
        )
        offsets = np.arange(first, first + len(bodies))
        before = int.from_bytes(self.entries[-1][36:40], "big") if self.entries else 1
        host = bytes(8)
        seal(
            batch,
            first_index=first,
            term=term,
            pos=0,
            queue_offsets=offsets,
            store_ms=store_ms,
            store_host=host,
            prev_chain=before,
        )
        for start, size in zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True):
            self.entries.append(bytes(batch.data[start : start + size]))

    def restore(self, end: int) -> None:
        """The cluster is restored from a state in which the queue ended there."""
        del self.entries[end:]
        self.begin = min(self.begin, end)

    def at_time(self, store_ms: int) -> int:
        stored = [int.from_bytes(entry[104:112], "big") for entry in self.entries]
        return next(
            (offset for offset, ms in enumerate(stored) if ms >= store_ms and offset >= self.begin),
            self.end,
        )


class Group:
    """A broker group: its queues, its leader (a node number, or None), and the number of times its
    streams were broken."""

    def __init__(self, queues: int) -> None:
        self.queues = [Queue(queue) for queue in range(queues)]
        self.leader: int | None = 0
        self.breaks = 0
        self.log_id = "log"


class Members:
    """A consumer group: the assignment of queues to members. A queue is assigned only when no
    member holds it."""

    def __init__(self) -> None:
        self.generation = 0
        self.held: dict[str, set[int]] = {}
        """The queues that a member may still read."""
        self.given: dict[str, set[int]] = {}
        """The assignments of this generation."""
        self.informed: dict[str, int] = {}
        """The generation that a member was told last."""

    def share(self, queues: int) -> None:
        """Balance the queues; those that another member holds are assigned later."""
        self.generation += 1
        names = sorted(self.held)
        wanted: dict[str, set[int]] = {name: set() for name in names}
        for queue in range(queues):
            if names:
                wanted[names[queue % len(names)]].add(queue)
        for name in names:
            others = set().union(*(held for other, held in self.held.items() if other != name))
            self.given[name] = wanted[name] - others
        for name in names:
            self.held[name] |= self.given[name]

    def finished(self, member: str, generation: int, queues: int) -> None:
        """The member released what this generation does not assign to it. In an earlier one it may
        still read what was its own then."""
        if (
            generation == self.informed.get(member) == self.generation
            and self.held[member] != self.given[member]
        ):
            self.held[member] = set(self.given[member])
            self.share(queues)


class FakeLog:
    """The cluster. `chance` decides how responses are cut; `trouble` is the probability that a
    stream breaks at each response."""

    def __init__(
        self,
        groups: dict[str, int] | None = None,
        *,
        nodes: int = 3,
        chance: random.Random | None = None,
    ) -> None:
        self.groups = {name: Group(queues) for name, queues in (groups or {"g1": 2}).items()}
        self.nodes = nodes
        self.chance = chance or random.Random(0)
        self.trouble = 0.0
        self.run_max = 5
        self.endpoints = [f"127.0.0.1:{9001 + node}" for node in range(nodes)]
        self.committed: dict[tuple[str, int], int] = {}
        self.commits: list[tuple[str, pb.CommitRequest]] = []
        self.members = Members()
        self.overdrawn = 0
        """The bytes that were sent without credit, beyond one entry."""
        self.fetches = 0
        self.sent = 0
        """The number of messages that were sent."""
        self.fetched_at: list[int] = []
        """The node of each member."""
        self.replicas: set[int] = set()
        """Nodes that serve readers without being leader."""
        self.frozen: set[int] = set()
        """Those of them that no longer respond."""
        self.corrupt = 0
        """The number of responses that will be damaged."""
        self.keys: dict[str, int] = defaultdict(int)
        self.beats: dict[str, int] = defaultdict(int)
        """The number of keep-alive messages that are not answered."""
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def serves(self, node: int, opening: pb.OpenFetch) -> bool:
        return self.groups[opening.broker_group].leader == node or (
            opening.any_replica and node in self.replicas
        )

    # -- what happens to the cluster

    def store(self, group: str, queue: int, bodies: Iterable[bytes], **options: Any) -> None:
        self.groups[group].queues[queue].append(bodies, **options)
        self.changed()

    def trim(self, group: str, queue: int, begin: int) -> None:
        self.groups[group].queues[queue].begin = max(begin, self.groups[group].queues[queue].begin)
        self.changed()

    def lead(self, group: str, node: int | None) -> None:
        self.groups[group].leader = node
        self.changed()

    def break_streams(self, group: str) -> None:
        self.groups[group].breaks += 1
        self.changed()

    @property
    def queue_count(self) -> int:
        return sum(len(group.queues) for group in self.groups.values())

    def redirect(self, group: str) -> pb.Redirect:
        leader = self.groups[group].leader
        named = (
            {}
            if leader is None
            else {"leader": f"n{leader + 1}", "endpoint": self.endpoints[leader]}
        )
        return pb.Redirect(broker_group=group, **named)

    # -- calls

    def locate(self, request: pb.LocateRequest) -> pb.LocateResponse:
        if request.topic != "t":
            return pb.LocateResponse(
                problem=pb.Problem(code=Code.TOPIC_NOT_FOUND, message=f"no topic {request.topic}")
            )
        answer = pb.LocateResponse(cluster_id="c", kind="normal")
        for name, group in sorted(self.groups.items()):
            answer.broker_groups.add(
                name=name, queues=range(len(group.queues)), leader=self.redirect(name)
            )
        return answer

    def commit(self, node: int, request: pb.CommitRequest) -> pb.CommitResponse:
        if self.groups[request.broker_group].leader != node:
            return pb.CommitResponse(redirect=self.redirect(request.broker_group))
        self.commits.append((request.member, request))
        for one in request.offsets:
            number = self.number(request.broker_group, one.queue)
            if request.member and number not in self.members.held.get(request.member, set()):
                problem = pb.Problem(
                    code=Code.PRECONDITION_FAILED,
                    message=f"queue {number} is not {request.member}'s",
                )
                return pb.CommitResponse(problem=problem)
        for one in request.offsets:
            self.committed[request.broker_group, one.queue] = one.offset
        return pb.CommitResponse()

    def offsets(self, node: int, request: pb.OffsetsRequest) -> pb.OffsetsResponse:
        if self.groups[request.broker_group].leader != node:
            return pb.OffsetsResponse(redirect=self.redirect(request.broker_group))
        answer = pb.OffsetsResponse()
        for queue in self.groups[request.broker_group].queues:
            committed = self.committed.get((request.broker_group, queue.queue), -1)
            answer.queues.add(
                queue=queue.queue, committed=committed, begin=queue.begin, end=queue.end
            )
        return answer

    def number(self, group: str, queue: int) -> int:
        places = [
            (name, one) for name, of in sorted(self.groups.items()) for one in range(len(of.queues))
        ]
        return places.index((group, queue))

    # -- Fetch

    async def fetch(
        self, node: int, requests: AsyncIterator[pb.FetchRequest]
    ) -> AsyncIterator[pb.FetchResponse]:
        opening = (await anext(requests)).open
        group = self.groups[opening.broker_group]
        breaks = group.breaks
        if not self.serves(node, opening):
            yield pb.FetchResponse(redirect=self.redirect(opening.broker_group))
            return
        self.fetches += 1
        self.fetched_at.append(node)
        credit = [opening.credit_bytes]
        granting = asyncio.ensure_future(self._grants(requests, credit))
        try:
            if (problem := self._outside(group, opening)) is not None:
                yield pb.FetchResponse(problem=problem)
                return
            places, opened = self._opened(group, opening)
            yield pb.FetchResponse(opened=opened)
            reported = False
            while True:
                changed = self._changed
                if not self.serves(node, opening):
                    yield pb.FetchResponse(redirect=self.redirect(opening.broker_group))
                    return
                if group.breaks != breaks or self.chance.random() < self.trouble:
                    raise Broken
                entries = self._entries(
                    group, places, credit[0], opening.max_response_bytes or 1 << 20
                )
                if entries is not None:
                    reported = False
                    credit[0] -= len(entries.entries)
                    yield pb.FetchResponse(entries=entries)
                    continue
                if (
                    all(
                        max(places[queue], group.queues[queue].begin) >= group.queues[queue].end
                        for queue in places
                    )
                    and not reported
                ):
                    reported = True
                    yield pb.FetchResponse(
                        caught_up=pb.CaughtUp(
                            ends=_ranges({queue: group.queues[queue].end for queue in places})
                        )
                    )
                if group.leader == node or node in self.frozen:
                    await changed.wait()
                    continue
                try:
                    async with asyncio.timeout(1.0):
                        await changed.wait()
                except TimeoutError:
                    # A keep-alive message.
                    reported = False
        finally:
            granting.cancel()

    async def _grants(self, requests: AsyncIterator[pb.FetchRequest], credit: list[int]) -> None:
        async for request in requests:
            credit[0] += request.credit_bytes
            self.changed()

    @staticmethod
    def _outside(group: Group, opening: pb.OpenFetch) -> pb.Problem | None:
        """The refusal of an offset that a queue does not have."""
        for one in getattr(opening, "from"):
            if one.offset > group.queues[one.queue].end or one.offset < 0:
                return pb.Problem(
                    code=Code.ILLEGAL_OFFSET,
                    message=f"offset {one.offset} is outside of queue {one.queue}",
                )
        return None

    def _opened(self, group: Group, opening: pb.OpenFetch) -> tuple[dict[int, int], pb.FetchOpened]:
        places: dict[int, int] = {}
        for one in getattr(opening, "from"):
            queue = group.queues[one.queue]
            place = one.WhichOneof("place")
            if place == "offset":
                places[one.queue] = max(one.offset, queue.begin)
            elif place == "store_ms":
                places[one.queue] = queue.at_time(one.store_ms)
            else:
                places[one.queue] = queue.begin if one.earliest else queue.end
        ends = {queue: group.queues[queue].end for queue in places}
        return places, pb.FetchOpened(
            begins=_ranges(places), ends=_ranges(ends), replica="somebody", log_id=group.log_id
        )

    def _entries(
        self, group: Group, places: dict[int, int], credit: int, limit: int
    ) -> pb.Entries | None:
        ready = [
            queue
            for queue, place in places.items()
            if max(place, group.queues[queue].begin) < group.queues[queue].end
        ]
        if not ready or credit <= 0:
            return None
        queue = group.queues[self.chance.choice(ready)]
        skipped = max(0, queue.begin - places[queue.queue])
        first = places[queue.queue] + skipped
        chosen = queue.entries[first : first + self.chance.randint(1, self.run_max)]
        while len(chosen) > 1 and sum(map(len, chosen)) > min(credit, limit):
            chosen.pop()
        places[queue.queue] = first + len(chosen)
        self.sent += len(chosen)
        sizes, data = np.array([len(entry) for entry in chosen], "<u4").tobytes(), b"".join(chosen)
        self.overdrawn = max(self.overdrawn, len(data) - credit if len(chosen) > 1 else 0)
        if self.corrupt:
            self.corrupt -= 1
            data = data[:140] + bytes([data[140] ^ 1]) + data[141:]
        return pb.Entries(
            queue=queue.queue,
            first_offset=first,
            sizes=sizes,
            entries=data,
            end_offset=queue.end,
            skipped=skipped,
        )

    # -- Join

    async def join(
        self, node: int, requests: AsyncIterator[pb.JoinRequest]
    ) -> AsyncIterator[pb.JoinResponse]:
        first = await anext(requests)
        coordinator = min(self.groups)
        group = self.groups[coordinator]
        breaks = group.breaks
        if first.broker_group != coordinator or group.leader != node:
            yield pb.JoinResponse(redirect=self.redirect(coordinator))
            return
        members, member = self.members, first.member
        self.keys[member] += 1
        stream = self.keys[member]
        if member in members.held and not first.generation:
            self._gone(member)
        if member not in members.held:
            members.held[member] = set()
            members.share(self.queue_count)
        else:
            assert set(first.queues) <= members.held[member], (
                "a member claims queues that were never assigned to it"
            )
        members.informed.pop(member, None)
        self.changed()
        confirming = asyncio.ensure_future(self._confirmations(requests, member))
        left = True
        try:
            while True:
                changed = self._changed
                if group.leader != node or coordinator != min(self.groups):
                    left = False
                    yield pb.JoinResponse(redirect=self.redirect(min(self.groups)))
                    return
                if group.breaks != breaks:
                    left = False
                    raise Broken
                if member not in members.held:
                    problem = pb.Problem(
                        code=Code.PRECONDITION_FAILED, message=f"member {member} counts as gone"
                    )
                    left = False
                    yield pb.JoinResponse(problem=problem)
                    return
                if confirming.done():
                    return
                if members.informed.get(member) != members.generation or self.beats[member]:
                    self.beats[member] = 0
                    members.informed[member] = members.generation
                    yield pb.JoinResponse(
                        assignment=pb.Assignment(
                            generation=members.generation,
                            queues=sorted(members.given[member]),
                            members=sorted(members.held),
                            liveness_ms=LIVENESS_MS,
                        )
                    )
                    continue
                await changed.wait()
        finally:
            confirming.cancel()
            if left:
                self._gone(member)
            else:
                asyncio.get_running_loop().call_later(
                    LIVENESS_MS / 1000, self._silent, member, stream
                )

    async def _confirmations(self, requests: AsyncIterator[pb.JoinRequest], member: str) -> None:
        async for request in requests:
            self.beats[member] += 1
            if member in self.members.held:
                self.members.finished(member, request.generation, self.queue_count)
            self.changed()
        self.changed()

    def _silent(self, member: str, stream: int) -> None:
        if self.keys[member] == stream:
            self._gone(member)

    def _gone(self, member: str) -> None:
        if self.members.held.pop(member, None) is not None:
            self.members.given.pop(member, None)
            self.members.share(self.queue_count)
            self.changed()


def _ranges(offsets: dict[int, int]) -> list[pb.QueueRange]:
    return [
        pb.QueueRange(queue=queue, first_offset=offset) for queue, offset in sorted(offsets.items())
    ]


class FakeCall:
    """A StreamStreamCall of `grpc.aio`, as far as the client uses it."""

    def __init__(
        self,
        answers: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
        read: Any,
        response: Any,
        request: Any,
    ) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._responses: asyncio.Queue[Any] = asyncio.Queue(1)
        self._read_request = read
        self._raw = request is None
        self._cancelled = False
        self._task = asyncio.ensure_future(self._work(answers(self._incoming())))

    async def _incoming(self) -> AsyncIterator[Any]:
        while True:
            request = await self._requests.get()
            if request is _END:
                return
            yield request

    async def _work(self, answers: AsyncIterator[Any]) -> None:
        end: Any = grpc.aio.EOF
        try:
            async for answer in answers:
                await self._responses.put(answer.SerializeToString() if self._raw else answer)
        except Broken:
            empty = grpc.aio.Metadata()
            end = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, "scripted break")
        except asyncio.CancelledError:
            await answers.aclose()  # type: ignore[attr-defined]
            raise
        await self._responses.put(end)

    async def write(self, request: Any) -> None:
        if self._task.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        self._requests.put_nowait(self._read_request(request) if self._raw else request)

    async def done_writing(self) -> None:
        self._requests.put_nowait(_END)

    async def read(self) -> Any:
        if self._cancelled:
            raise asyncio.CancelledError
        answer = await self._responses.get()
        if answer is _END:
            raise asyncio.CancelledError
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()
            while not self._responses.empty():
                self._responses.get_nowait()
            self._responses.put_nowait(_END)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


_END = object()


class FakeConnection(LogConnection):
    """A connection whose nodes run in this process and event loop."""

    def __init__(self, log: FakeLog, timeout_s: float = 1000.0) -> None:
        super().__init__(";".join(log.endpoints), timeout_s=timeout_s, chance=random.Random(0))
        self.log = log

    def _node(self, address: Address) -> int:
        return self.log.endpoints.index(str(address).rpartition("@")[2])

    async def locate(self, topic: str, namespace: str = "") -> Located:
        answer = self.log.locate(pb.LocateRequest(topic=topic, namespace=namespace))
        if answer.HasField("problem"):
            raise problem_of(answer.problem)
        groups = tuple(
            BrokerGroupQueues(group.name, tuple(group.queues), group.log_id)
            for group in answer.broker_groups
        )
        return Located(answer.cluster_id, answer.kind, groups)

    def stream(self, path: str, address: Address, request: Any = None, response: Any = None) -> Any:
        node = self._node(address)
        if path.endswith("Fetch"):
            return FakeCall(
                lambda requests: self.log.fetch(node, requests),
                pb.FetchRequest.FromString,
                response,
                request,
            )
        return FakeCall(lambda requests: self.log.join(node, requests), None, response, request)

    async def ask(self, method: str, broker_group: str, request: Any, response: Any) -> Any:
        search = Search(self, broker_group, Pauses(self.chance))
        while True:
            node = self._node(await search.next_address())
            await asyncio.sleep(0)
            answer = {"Commit": self.log.commit, "Offsets": self.log.offsets}[method](node, request)
            if answer.HasField("redirect"):
                search.redirected(answer.redirect)
            elif answer.HasField("problem"):
                search.problem(answer.problem)
            else:
                return answer


@asynccontextmanager
async def served(log: FakeLog) -> AsyncIterator[str]:
    """Serve every node on a real port; yields the endpoints in the form a client takes."""
    servers = []
    for node in range(log.nodes):
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((_handlers(log, node),))
        log.endpoints[node] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    try:
        yield ";".join(log.endpoints)
    finally:
        for server in servers:
            await server.stop(None)


def _handlers(log: FakeLog, node: int) -> grpc.GenericRpcHandler:
    def unary(name: str, work: Callable[..., Any]) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            return work(request) if name == "Locate" else work(node, request)

        return grpc.unary_unary_rpc_method_handler(
            answer, getattr(pb, f"{name}Request").FromString, _serialise
        )

    def stream(name: str, work: Callable[..., AsyncIterator[Any]]) -> Any:
        async def answer(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            with suppress(StopAsyncIteration):
                try:
                    async for one in work(node, aiter(requests)):
                        yield one
                except Broken:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted break")

        return grpc.stream_stream_rpc_method_handler(
            answer, getattr(pb, f"{name}Request").FromString, _serialise
        )

    methods = {
        "Locate": unary("Locate", log.locate),
        "Commit": unary("Commit", log.commit),
        "Offsets": unary("Offsets", log.offsets),
        "Fetch": stream("Fetch", log.fetch),
        "Join": stream("Join", log.join),
    }
    return grpc.method_handlers_generic_handler(SERVICE.strip("/"), methods)


def _serialise(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found
