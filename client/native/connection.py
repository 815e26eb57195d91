"""Where the leader of each broker group is, for streams and single calls to it: locating, redirects, reconnects, slow brokers.

Here live addresses and pauses. What is asked, and what is done about an answer, belongs to the callers. A node that does not lead answers
with a Redirect, so any endpoint is a way to the leader; no call here needs to know one in advance.

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

from ledgermq.client.connection import DEFAULT_ENDPOINTS, ELSEWHERE, Address, AsyncConnection, parse_endpoints, transport_code
from ledgermq.client.errors import BadArgument, Refused, Unreachable, refusal
from ledgermq.client.service import LOG
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.signature import Credentials

PASSING = ELSEWHERE | {grpc.StatusCode.INTERNAL}
"""Statuses of calls that may be tried again. INTERNAL is the transport's own: a stream that broke under a write ends with it, whatever the
node said."""
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 1.0
AWAY_S = 10.0
"""A reader that prefers another replica and was sent to the leader tries that one again after so long."""

STEPS_MS = ((15000, 600_000), (3000, 180_000), (2000, 120_000), (1000, 60_000), (550, 30_000))
"""RocketMQ's table of fault strategy: a broker that took so long is not used for so long; under 550 ms it is used on."""
MISSED_S = 2.0
"""A broker group whose leader was not found is not used for so long after the last try. Whoever has something for it goes on trying, so
this is short: it is used again soon after it has a leader."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class BrokerGroupQueues:
    """A broker group, and the queue ids of one topic that live there."""

    name: str
    queues: tuple[int, ...]
    log_id: str


@dataclass(frozen=True, slots=True)
class Located:
    """Where a topic is: its broker groups by name. `kind`: as `ledgermq topic create --kind` takes it."""

    cluster_id: str
    kind: str
    broker_groups: tuple[BrokerGroupQueues, ...]

    @property
    def queues(self) -> tuple[tuple[str, int], ...]:
        """Broker group and queue id of every queue. Its place here is the number under which administration and `peek` know the queue: ids
        are counted in each broker group for itself."""
        return tuple(sorted((group.name, queue) for group in self.broker_groups for queue in group.queues))


@dataclass(slots=True)
class Pauses:
    """How long to wait before the next try: doubling, and jittered so that the clients of a dead leader do not return in step."""

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
    """Which broker groups took long lately, or had no leader, and are not used while there are others."""

    clock: Callable[[], float] = time.monotonic
    _until: dict[str, float] = field(default_factory=dict)

    def took(self, broker_group: str, latency_ms: float) -> None:
        """Note how long an answer took. A better one does not shorten the time that a worse one has begun."""
        until = self.clock() + next((away for least, away in STEPS_MS if latency_ms >= least), 0) / 1000
        self._until[broker_group] = max(until, self._until.get(broker_group, 0.0))

    def missed(self, broker_group: str) -> None:
        """Note that its leader was not found, or is gone."""
        self._until[broker_group] = max(self.clock() + MISSED_S, self._until.get(broker_group, 0.0))

    def usable(self, broker_groups: Iterable[str]) -> list[str]:
        """Those to use, in the order given; of none that is usable, the one that will be first."""
        every, now = list(broker_groups), self.clock()
        found = [group for group in every if self._until.get(group, 0.0) <= now]
        return found or sorted(every, key=lambda group: self._until[group])[:1]


class LogConnection(AsyncConnection):
    """Channels to the nodes of one cluster for the native streams, for one event loop. An asynchronous context manager."""

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
        """As `Connection`; `chance` jitters the pauses."""
        super().__init__(endpoints, timeout_s=timeout_s, credentials=credentials, tls=tls, ca=ca, certificate=certificate)
        self.chance = chance or random.Random()
        self.latencies = Latencies()
        self._leaders: dict[str, Address] = {}

    async def __aenter__(self) -> LogConnection:
        return self

    # -- who leads

    def search(self, broker_group: str, *, near: bool = False) -> Search:
        """The way to the leader of a broker group, for one stream or call at a time; `near`: to the first endpoint that serves it, whether
        it leads or not, and to the leader where none does."""
        return Search(self, broker_group, Pauses(self.chance), near=near)

    def leader(self, broker_group: str) -> Address | None:
        """Who led it, when somebody last said."""
        return self._leaders.get(broker_group)

    def redirected(self, redirect: pb.Redirect) -> bool:
        """Believe a Redirect. False: nobody leads now, or the endpoint is not one."""
        self._leaders.pop(redirect.broker_group, None)
        try:
            (address,) = parse_endpoints(redirect.endpoint)
        except (BadArgument, ValueError):
            return False
        # The leader may be one of several workers behind that endpoint.
        self._leaders[redirect.broker_group] = replace(address, node=redirect.leader)
        return True

    def forget(self, broker_group: str, address: Address) -> None:
        """It did not answer there, or not as a leader does; the next endpoint will say who is."""
        if self._leaders.get(broker_group) == address:
            del self._leaders[broker_group]
        self.elsewhere(address)

    # -- calls

    async def locate(self, topic: str, namespace: str = "") -> Located:
        """Where a topic is. Also learns who leads its broker groups. Raises Unreachable or Refused."""
        request = pb.LocateRequest(namespace=namespace, topic=topic)
        answer = await self._answered("Locate", request, pb.LocateResponse, Search(self, "", Pauses(self.chance)))
        for group in answer.broker_groups:
            if group.leader.endpoint:
                self.redirected(pb.Redirect(broker_group=group.name, leader=group.leader.leader, endpoint=group.leader.endpoint))
        groups = [BrokerGroupQueues(group.name, tuple(group.queues), group.log_id) for group in answer.broker_groups]
        return Located(answer.cluster_id, answer.kind, tuple(sorted(groups, key=lambda group: group.name)))

    async def ask(self, method: str, broker_group: str, request: Message, response: type[M]) -> M:
        """The answer of a broker group's leader to a single call of the service, such as `Commit`, which must bear repetition.

        Follows redirects, and tries again after what may pass, all within the timeout. Raises Unreachable or Refused.
        """
        return await self._answered(method, request, response, self.search(broker_group))

    def stream(self, path: str, address: Address, request: Any = None, response: Any = None) -> Any:
        """A bidirectional call to one node, signed: a `grpc.aio.StreamStreamCall`. `path`: service.LOG + method. `request` and `response`
        are message classes; without them the stream carries bytes."""
        to_bytes = None if request is None else request.SerializeToString
        from_bytes = None if response is None else response.FromString
        return self.channel_to(address).stream_stream(path, to_bytes, from_bytes)(metadata=self.metadata_to(address))

    async def _answered(self, method: str, request: Message, response: type[M], search: Search) -> M:
        end = time.monotonic() + self.timeout_s
        while (left := end - time.monotonic()) > 0:
            address = await search.next_address(left)
            call: Any = self.channel_to(address).unary_unary(LOG + method, type(request).SerializeToString, response.FromString)
            try:
                answer = await call(request, metadata=self.metadata_to(address), timeout=min(left, max(1.0, self.timeout_s / 2)))
            except grpc.RpcError as error:
                search.failed(broken(address, error))
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
    """One caller's way to the leader of one broker group, retried with pauses. Not for several callers at once.

    With `near` every search begins at an endpoint that was given, for what serves there as well; sent away from it, it goes to the leader
    for `AWAY_S`."""

    def __init__(self, connection: LogConnection, broker_group: str, pauses: Pauses, *, near: bool = False) -> None:
        self._connection = connection
        self._group = broker_group
        self._pauses = pauses
        self._near = near
        self._away_until_s = 0.0
        self._due_s = 0.0
        self._address: Address | None = None
        self.last = "no endpoint was tried"
        """Why the last try was not the end of it."""

    async def next_address(self, patience_s: float = PAUSE_MAX_S) -> Address:
        """Where to try now: the leader, as far as known, else the next endpoint. First waits out what is due, at most `patience_s`."""
        if self._due_s > 0:
            due, self._due_s = self._due_s, 0.0
            await asyncio.sleep(min(due, patience_s))
        leader = None if self.at_home else self._connection.leader(self._group)
        self._address = leader or self._connection.address
        return self._address

    @property
    def at_home(self) -> bool:
        """Whether the next try is at an endpoint that was given, whoever leads."""
        return self._near and asyncio.get_running_loop().time() >= self._away_until_s

    def leave_home(self) -> None:
        """The replica there cannot serve now; the leader can."""
        self._away_until_s = asyncio.get_running_loop().time() + AWAY_S

    def worked(self) -> None:
        """The node leads and answers: the next pause is a short one again, and others may go there at once."""
        self._pauses.reset()
        if self._group and self._address is not None and not self._near:
            self._connection._leaders[self._group] = self._address

    def redirected(self, redirect: pb.Redirect) -> None:
        """Go where it says. Two nodes that name each other are asked with pauses, as a broker group without a leader is."""
        known = self._connection.redirected(redirect)
        if known and self.at_home:
            self.leave_home()
            return
        if not known and self._address is not None:
            self._miss(self._address)
        self.last = f"broker group {self._group} is led elsewhere" if known else f"broker group {self._group} has no leader"
        self._due_s = self._pauses.next_s() if not known or self._pauses.tries else 0.0
        self._pauses.tries = max(1, self._pauses.tries)

    def failed(self, why: str, retry_after_ms: int = 0) -> None:
        """It did not work there and may work later or elsewhere."""
        self.last = why
        if self._address is not None:
            self._miss(self._address)
        self._due_s = max(self._pauses.next_s(), retry_after_ms / 1000)

    def _miss(self, address: Address) -> None:
        """Whoever was thought to lead does not, or is not there."""
        self._connection.forget(self._group, address)
        self._connection.latencies.missed(self._group)

    def problem(self, problem: pb.Problem) -> None:
        """A Problem ended the try. Raises Refused if it will not pass."""
        error = problem_of(problem)
        if not error.retryable:
            raise error
        self.last = error.what
        self._due_s = max(self._pauses.next_s(), problem.retry_after_ms / 1000)

    def unreachable(self, timeout_s: float) -> Unreachable:
        """The end of trying, after so long."""
        endpoints = ";".join(str(address) for address in self._connection.addresses)
        what = f"no usable answer from {endpoints} within {timeout_s:g} s ({self.last})"
        return Unreachable(what, "check the endpoints and that the nodes run")


def problem_of(problem: pb.Problem) -> Refused:
    """A Problem as the exception it is. Whether it may pass is what the node says, not what the code usually means."""
    error = refusal(problem.code, problem.message)
    error.retryable = problem.retryable
    return error


def broken(address: Address, error: grpc.RpcError) -> str:
    """Why a call that broke may be tried again, in words. Raises Refused when that cannot help."""
    code = transport_code(error)
    if code not in PASSING:
        raise refusal(50001, f"the call to {address} failed with {code.name}") from error
    return f"{address} answers {code.name}"
