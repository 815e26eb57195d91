"""Finding the leader of each broker group, for streams and single calls: locating, redirects,
reconnects, slow brokers.

Addresses and pauses live here; requests and the reactions to answers belong to the callers. A node
that does not lead answers with a Redirect, so a caller can start at any endpoint without knowing
the leader.

A caller that keeps a stream open does this until it is done:

    search = connection.search(broker_group)
    while True:
        address = await search.next_address()          # waits out the pause, if one is due
        call = connection.stream(service.LOG + "Fetch", address)
        ...                                            # write and read messages of log_pb2
        search.worked()                                # at the first good answer
        search.redirected(redirect)                    # or: a Redirect came
        search.failed(f"{address} answers …")          # or: the stream broke, or a Problem came that may pass
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from ledgermq.client.api.connection import (
    DEFAULT_ENDPOINTS,
    FAILOVER_CODES,
    Address,
    AsyncConnection,
    parse_endpoints,
)
from ledgermq.client.api.service import LOG
from ledgermq.client.api.transport import CHECK, cause_of, failure_of, transport_code
from ledgermq.client.errors import BadArgument, Refused, Unreachable, refusal
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.signature import Credentials

RETRYABLE_CODES = FAILOVER_CODES | {grpc.StatusCode.INTERNAL}
"""Status codes after which a call is retried. INTERNAL comes from the transport: a stream that
breaks during a write ends with it, whatever status the node sent."""
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 1.0
NEARBY_RETRY_S = 10.0
"""A reader that a nearby replica sent to the leader tries a nearby replica again after this
time."""

STEPS_MS = ((15000, 600_000), (3000, 180_000), (2000, 120_000), (1000, 60_000), (550, 30_000))
"""RocketMQ's fault latency table: (latency of an answer, how long the broker is then avoided).
Below 550 ms it is not avoided."""
MISSED_S = 2.0
"""How long a broker group is avoided after its leader was not found. Short, because producers with
messages for the group keep trying: it is used again soon after it has a leader."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class BrokerGroupQueues:
    """A broker group, and the queue ids that one topic has there."""

    name: str
    queues: tuple[int, ...]
    log_id: str


@dataclass(frozen=True, slots=True)
class Located:
    """The location of a topic: its broker groups by name. `kind`: as for `ledgermq topic create
    --kind`."""

    cluster_id: str
    kind: str
    broker_groups: tuple[BrokerGroupQueues, ...]

    @property
    def queues(self) -> tuple[tuple[str, int], ...]:
        """Broker group and queue id of every queue. The index in this tuple is the queue's number
        in administration and `peek`; ids count from 0 in each broker group."""
        return tuple(
            sorted((group.name, queue) for group in self.broker_groups for queue in group.queues)
        )


@dataclass(slots=True)
class Pauses:
    """The pause before the next try: doubled each time, and jittered so that the clients of a
    failed leader do not reconnect together."""

    chance: random.Random = field(default_factory=random.Random)
    tries: int = 0

    def next_s(self) -> float:
        pause = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(self.tries, 10))
        self.tries += 1
        return pause * self.chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.tries = 0


@dataclass(slots=True)
class Latencies:
    """Broker groups that were slow lately, or had no leader; they are avoided while there are
    others."""

    clock: Callable[[], float] = time.monotonic
    _until: dict[str, float] = field(default_factory=dict)

    def took(self, broker_group: str, latency_ms: float) -> None:
        """Record the latency of an answer. A fast answer does not shorten the time that a slow one
        started."""
        until = (
            self.clock()
            + next((avoided for least, avoided in STEPS_MS if latency_ms >= least), 0) / 1000
        )
        self._until[broker_group] = max(until, self._until.get(broker_group, 0.0))

    def missed(self, broker_group: str) -> None:
        """Record that the group's leader was not found, or is gone."""
        self._until[broker_group] = max(self.clock() + MISSED_S, self._until.get(broker_group, 0.0))

    def usable(self, broker_groups: Iterable[str]) -> list[str]:
        """The usable broker groups, in the given order; if none is usable, the one that becomes
        usable first."""
        every, now = list(broker_groups), self.clock()
        candidates = [group for group in every if self._until.get(group, 0.0) <= now]
        return candidates or sorted(every, key=lambda group: self._until[group])[:1]


class LogConnection(AsyncConnection):
    """Channels to the nodes of one cluster for native streams, for one event loop. An asynchronous
    context manager."""

    def __init__(
        self,
        endpoints: str = DEFAULT_ENDPOINTS,
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        tls: bool = False,
        ca: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """As for `Connection`; `chance` jitters the pauses."""
        super().__init__(
            endpoints,
            timeout_s=timeout_s,
            credentials=credentials,
            tls=tls,
            ca=ca,
            certificate=certificate,
        )
        self.chance = chance or random.Random()
        self.latencies = Latencies()
        self._leaders: dict[str, Address] = {}

    async def __aenter__(self) -> LogConnection:
        await super().__aenter__()
        return self

    # -- who leads

    def search(self, broker_group: str, *, near: bool = False) -> Search:
        """Start the search for the leader of a broker group, for one stream or call at a time.
        `near`: use the first endpoint that serves the group, leader or not, and the leader if no
        endpoint does."""
        return Search(self, broker_group, Pauses(self.chance), near=near)

    def leader(self, broker_group: str) -> Address | None:
        """The leader, as last reported by a node."""
        return self._leaders.get(broker_group)

    def redirected(self, redirect: pb.Redirect) -> bool:
        """Accept a Redirect. False: the group has no leader now, or the address is not valid."""
        self._leaders.pop(redirect.broker_group, None)
        try:
            (address,) = parse_endpoints(redirect.endpoint)
        except (BadArgument, ValueError):
            return False
        # The leader may be one of several workers behind this endpoint.
        self._leaders[redirect.broker_group] = replace(address, node=redirect.leader)
        return True

    def forget(self, broker_group: str, address: Address) -> None:
        """Forget a leader that did not answer, or answered that it does not lead; the next endpoint
        will name the leader."""
        if self._leaders.get(broker_group) == address:
            del self._leaders[broker_group]
        self.fail_over(address)

    # -- calls

    async def locate(self, topic: str, namespace: str = "") -> Located:
        """Find a topic, and learn the leaders of its broker groups. Raises Unreachable or
        Refused."""
        request = pb.LocateRequest(namespace=namespace, topic=topic)
        answer = await self._answered(
            "Locate", request, pb.LocateResponse, Search(self, "", Pauses(self.chance))
        )
        for group in answer.broker_groups:
            if group.leader.endpoint:
                self.redirected(
                    pb.Redirect(
                        broker_group=group.name,
                        leader=group.leader.leader,
                        endpoint=group.leader.endpoint,
                    )
                )
        groups = [
            BrokerGroupQueues(group.name, tuple(group.queues), group.log_id)
            for group in answer.broker_groups
        ]
        return Located(
            answer.cluster_id, answer.kind, tuple(sorted(groups, key=lambda group: group.name))
        )

    async def ask(self, method: str, broker_group: str, request: Message, response: type[M]) -> M:
        """The answer of a broker group's leader to a single call, such as `Commit`. The call must
        be safe to repeat.

        Follows redirects and retries temporary failures within the timeout. Raises Unreachable or
        Refused.
        """
        return await self._answered(method, request, response, self.search(broker_group))

    def stream(self, path: str, address: Address, request: Any = None, response: Any = None) -> Any:
        """Open a bidirectional call to one node, with credentials: a `grpc.aio.StreamStreamCall`.
        `path`: service.LOG + method. `request` and `response` are message classes; without them the
        stream carries bytes."""
        to_bytes = None if request is None else request.SerializeToString
        from_bytes = None if response is None else response.FromString
        return self.channel_to(address).stream_stream(path, to_bytes, from_bytes)(
            metadata=self.metadata_to(address)
        )

    async def _answered(
        self, method: str, request: Message, response: type[M], search: Search
    ) -> M:
        self._life.check()
        end, share_s = time.monotonic() + self.timeout_s, max(1.0, self.timeout_s / 2)
        while (left := end - time.monotonic()) > 0:
            address = await search.next_address(left)
            left = end - time.monotonic()
            try:
                answer: Any = await self.answer_of(
                    address, LOG + method, request, response, min(left, share_s)
                )
            except grpc.RpcError as error:
                cut_short = (
                    left < share_s and transport_code(error) == grpc.StatusCode.DEADLINE_EXCEEDED
                )
                search.broke(address, error, cut_short=cut_short)
                continue
            names = type(answer).DESCRIPTOR.fields_by_name
            if "redirect" in names and answer.HasField("redirect"):
                search.redirected(answer.redirect)
            elif "problem" in names and answer.HasField("problem"):
                search.problem(answer.problem)
            else:
                search.worked()
                return cast(M, answer)
        raise search.unreachable(self.timeout_s)


class Search:
    """One caller's search for the leader of one broker group, with pauses between tries. Not for
    concurrent callers.

    With `near` every search starts at one of the given endpoints, which may serve without leading.
    If that replica redirects the caller, the search uses the leader for `NEARBY_RETRY_S`."""

    def __init__(
        self, connection: LogConnection, broker_group: str, pauses: Pauses, *, near: bool = False
    ) -> None:
        self._connection = connection
        self._group = broker_group
        self._pauses = pauses
        self._near = near
        self._leader_until_s = 0.0
        self._due_s = 0.0
        self._address: Address | None = None
        self._named_by: Address | None = None
        """The endpoint that named the leader to try next."""
        self.last = ""
        """Why the last try failed; empty before the first one."""
        self._remedy = CHECK

    async def next_address(self, pause_max_s: float = PAUSE_MAX_S) -> Address:
        """The address to try now: the known leader, or else the next endpoint. Waits for the pause
        that is due, at most `pause_max_s`."""
        if self._due_s > 0:
            due, self._due_s = self._due_s, 0.0
            await asyncio.sleep(min(due, pause_max_s))
        leader = None if self.uses_nearby else self._connection.leader(self._group)
        self._address = leader or self._connection.address
        return self._address

    @property
    def uses_nearby(self) -> bool:
        """Whether the next try uses one of the given endpoints, whether that node leads or not."""
        return self._near and asyncio.get_running_loop().time() >= self._leader_until_s

    def use_leader(self) -> None:
        """The replica at the given endpoint cannot serve now; use the leader."""
        self._leader_until_s = asyncio.get_running_loop().time() + NEARBY_RETRY_S

    def worked(self) -> None:
        """The node answers as leader: reset the pause, and let other callers use this address at
        once."""
        self._pauses.reset()
        self._named_by = None
        if self._group and self._address is not None and not self._near:
            self._connection._leaders[self._group] = self._address

    def redirected(self, redirect: pb.Redirect) -> None:
        """Follow a Redirect. If two nodes redirect to each other, or the group has no leader, tries
        are separated by pauses."""
        known = self._connection.redirected(redirect)
        self._named_by = self._address if known else None
        if known and self.uses_nearby:
            self.use_leader()
            return
        if not known and self._address is not None:
            self._miss(self._address)
        self.last = (
            f"broker group {self._group} is led elsewhere"
            if known
            else f"broker group {self._group} has no leader"
        )
        self._remedy = CHECK
        self._due_s = self._pauses.next_s() if not known or self._pauses.tries else 0.0
        self._pauses.tries = max(1, self._pauses.tries)

    def broke(self, address: Address, error: grpc.RpcError, *, cut_short: bool = False) -> None:
        """The try ended in transport. `cut_short`: only because the caller's time ended, which
        explains less than the try before. Raises Refused if no other try can succeed."""
        last = self.last, self._remedy
        self.failed(*(last if cut_short and self.last else broken(address, error)))

    def failed(self, why: str, remedy: str = CHECK, retry_after_ms: int = 0) -> None:
        """The try failed, but a later try, or a try at another node, may succeed."""
        self.last, self._remedy = why, remedy
        if self._address is not None:
            self._miss(self._address)
        self._due_s = max(self._pauses.next_s(), retry_after_ms / 1000)

    def _miss(self, address: Address) -> None:
        """The presumed leader does not lead, or does not answer. The endpoint that named it would
        name it again, so the next is asked: the leader may be reachable under another address than
        the one that nodes give."""
        self._connection.forget(self._group, address)
        if self._named_by is not None:
            self._connection.fail_over(self._named_by)
            self._named_by = None
        self._connection.latencies.missed(self._group)

    def problem(self, problem: pb.Problem) -> None:
        """A Problem ended the try. Raises Refused if it is permanent."""
        error = problem_of(problem)
        if not error.retryable:
            raise error
        self.last, self._remedy = error.what, CHECK
        self._due_s = max(self._pauses.next_s(), problem.retry_after_ms / 1000)

    def unreachable(self, timeout_s: float) -> Unreachable:
        """The error to raise after `timeout_s` without success."""
        endpoints = ";".join(str(address) for address in self._connection.addresses)
        problem = (
            f"no usable answer from {endpoints} within {timeout_s:g} s"
            f" ({self.last or 'no endpoint was tried'})"
        )
        return Unreachable(problem, self._remedy)


def problem_of(problem: pb.Problem) -> Refused:
    """Convert a Problem into an exception. The node says whether it is temporary; the code's usual
    meaning does not count."""
    error = refusal(problem.code, problem.message)
    error.retryable = problem.retryable
    return error


def broken(address: Address, error: grpc.RpcError) -> tuple[str, str]:
    """What happened to a broken call that may be retried, and the remedy. Raises Refused if a retry
    cannot help."""
    if transport_code(error) not in RETRYABLE_CODES:
        raise failure_of(address, error) from error
    return cause_of(address, error)
