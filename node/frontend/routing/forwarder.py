"""Forwards client calls: any node answers, one hop from the leader of the broker group
(docs/architecture.md, Serving clients).

All rules serve at-most-once execution. A call is retried only while it cannot have been executed:
its executor answered `not-leader`, the leader's node did, or the call never left this node. Once a
call has left this node and its stream ended, the answer is `unknown-outcome`; only a repeatable
call is retried until its deadline. A call from a peer is executed here or refused, but never
forwarded again. While there is no leader, calls wait, within their deadline. Signs of life of
clients go to the leaders' nodes every second.

Calls are passed as bytes; the executor (`node/frontend/rocketmq`) interprets them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import Counter

from ledgermq.node.broker.calls.consumer_calls import ClientGone, ClientsAlive
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.outcome import AGAIN, NOTHING_DONE, UNREAD, CallRefused, Refused
from ledgermq.node.frontend.ports import Engine, Executor
from ledgermq.node.replica.ports import Lost, NotSent, PeerLink
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.answer_budget import ANSWERS, BULKY_BYTES, COPIES
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import peer_pb2
from ledgermq.proto.status import LedgerError

# How long a call waits before the next attempt if nothing announces a change.
RETRY_S = 0.05
SIGNS_EVERY_S = 1.0
# Subtracted from a forwarded call's deadline, so that the leader's result still arrives in time.
DEADLINE_MARGIN_S = 0.05

BULKY = frozenset(
    (
        "ledgermq.v1.Admin/Peek",
        *(
            f"ledgermq.v1.Admin/query:Group{what}"
            for what in ("Query", "Message", "Letters", "Waiting", "Trace", "Why")
        ),
    )
)
"""The calls of the administration whose answers may have many MiB."""

log = get_logger()


class Forwarder:
    """Routes calls to leaders. All methods run on the loop's thread; deadlines are in the loop's
    time, in seconds."""

    def __init__(
        self,
        node: str,
        replicas: Mapping[str, Sequence[str]],
        engine: Engine,
        links: Mapping[str, PeerLink],
        now_ns: Callable[[], int],
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._engine = engine
        self._links = links
        self._now_ns = now_ns
        self._executor: Executor | None = None
        self._stopped = False
        self._hints: dict[str, str] = {}
        self._next_guess = 0
        self._changed: asyncio.Event = asyncio.Event()
        self._contacted: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, executor: Executor) -> None:
        self._executor = executor
        self._task = asyncio.create_task(self._relay_signs(), name="client-signs")

    def stop(self) -> None:
        """From now on calls of peers are refused: the parts that would execute them are about to
        end."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def changed(self) -> None:
        """Wake waiting calls: a view or a link has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def leader(self, group: str) -> str | None:
        """The node that leads the group, as far as this node knows."""
        view = self._engine.views.get(group)
        if view is not None and self._belongs(view):
            return view.leader
        return self._hints.get(group)

    def led(self, group: str) -> bool:
        """Whether this node knows a leader of the group that it could send a call to now."""
        view = self._engine.views.get(group)
        if view is not None and self._belongs(view):
            return view.serving if view.leader == self._node else self._reached(view.leader)
        return self._reached(self._hints.get(group))

    async def submit(
        self,
        group: str,
        method: str,
        metadata: Mapping[str, str],
        request: bytes,
        deadline: float,
        *,
        repeatable: bool = False,
    ) -> Sequence[bytes]:
        """Execute a call at the group's leader, here or on another node, and return its response
        messages. Raises CallRefused. `repeatable`: executing the call twice has the same effect as
        once, so it is also retried after an unknown outcome."""
        loop = asyncio.get_running_loop()
        passing = AGAIN if repeatable else NOTHING_DONE
        late = Refused(
            "not-leader", detail=f"broker group {group} had no leader within the deadline"
        )
        while True:
            changed = self._changed
            target = self._target(group)
            try:
                if target is None:
                    self._refuse_when_short(group)
                if target == self._node:
                    return await self._execute(group, method, metadata, request, deadline)
                if target is not None:
                    responses = await self._forward(
                        target, group, method, metadata, request, deadline=deadline
                    )
                    if responses is not None:
                        if not ANSWERS.charge(sum(map(len, responses))):
                            # What a Receive has leased comes again, as if the answer had been lost
                            # on its way.
                            raise CallRefused(
                                UNREAD
                                if repeatable
                                else Refused("unknown-outcome", detail=UNREAD.detail)
                            )
                        return responses
            except CallRefused as refusal:
                if refusal.refused.reason not in passing:
                    raise
                if refusal.refused.reason not in NOTHING_DONE:
                    late = refusal.refused
            left = deadline - loop.time()
            if self._removed() and late.reason == "not-leader":
                late, left = (
                    Refused(
                        "not-leader",
                        detail=f"node {self._node} was removed from its cluster; ask another node",
                    ),
                    0,
                )
            if left <= 0:
                raise CallRefused(late)
            await _wait(changed, min(left, RETRY_S))

    def _removed(self) -> bool:
        """Whether the cluster removed this node: it will not hear of a leader again, so callers
        should ask another node at once."""
        links = self._links.values()
        return any(link.removed for link in links) and not any(link.up for link in links)

    def peers(self) -> list[str]:
        """The nodes that can be asked now, in rotating order, so that no node is always the
        first."""
        names = sorted(name for name, link in self._links.items() if link.up)
        self._next_guess += 1
        first = self._next_guess % len(names) if names else 0
        return names[first:] + names[:first]

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> Sequence[bytes]:
        """Send a question to one node, whatever it leads, at most once. Raises CallRefused."""
        if node == self._node:
            return await self._execute("", method, {}, request, deadline)
        left = deadline - asyncio.get_running_loop().time()
        call = peer_pb2.ForwardCall(
            method=method, request=request, deadline_ms=max(0, int(left * 1000))
        )
        try:
            if node not in self._links:
                raise NotSent
            async with asyncio.timeout(left):
                result = await self._links[node].call(call)
        except (NotSent, Lost, TimeoutError) as error:
            raise CallRefused(
                Refused("unknown-outcome", detail=f"node {node} is not reached")
            ) from error
        if result.HasField("refusal"):
            raise CallRefused(Refused(result.refusal, detail=result.grpc_message))
        return result.responses

    async def execute_for_peer(
        self, sender: str, call: peer_pb2.ForwardCall
    ) -> peer_pb2.ForwardResult:
        """Execute a call that another node sent here, if it concerns no group or a group that this
        node leads; refuse it otherwise. Raises nothing but cancellation."""
        if self._stopped:
            # Nothing was done, so the caller may ask the next leader.
            stops = f"node {self._node} is stopping"
            return (
                peer_pb2.ForwardResult(not_leader=True)
                if call.group
                else peer_pb2.ForwardResult(refusal="busy", grpc_message=stops)
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + call.deadline_ms / 1000
        try:
            while call.group:
                changed = self._changed
                view = self._engine.views.get(call.group)
                if view is None or view.leader != self._node:
                    leader = None if view is None else view.leader
                    return peer_pb2.ForwardResult(not_leader=True, leader=leader)
                if view.serving:
                    break
                if view.short:
                    return peer_pb2.ForwardResult(refusal="in-sync-short", grpc_message=view.short)
                left = deadline - loop.time()
                if left <= 0:
                    return peer_pb2.ForwardResult(not_leader=True)
                await _wait(changed, left)
            if call.group:
                _executed(call.group).inc()
            return peer_pb2.ForwardResult(responses=await self._execute_counted(call, deadline))
        except CallRefused as refusal:
            refused = refusal.refused
            if refused.reason == "not-leader":
                return peer_pb2.ForwardResult(not_leader=True, leader=refused.leader)
            return peer_pb2.ForwardResult(refusal=refused.reason, grpc_message=refused.detail)
        except LedgerError as error:
            return peer_pb2.ForwardResult(refusal="busy", grpc_message=error.message)
        # a bug in the executor must answer its caller, not end the stream that all callers share
        except Exception as error:
            if self._stopped:
                # A part that it needed has ended under it; how far it came is unknown.
                return peer_pb2.ForwardResult(
                    refusal="unknown-outcome",
                    grpc_message=f"node {self._node} stopped during the call",
                )
            log.exception("forwarded call failed", method=call.method, sender=sender)
            return peer_pb2.ForwardResult(refusal="internal", grpc_message=type(error).__name__)

    async def _execute_counted(
        self, call: peer_pb2.ForwardCall, deadline: float
    ) -> Sequence[bytes]:
        """Execute a call of a peer. What a bulky answer holds is counted until the task of the call
        ends."""
        if call.method not in BULKY:
            return await self._execute(
                call.group, call.method, call.metadata, call.request, deadline
            )
        size, share = 0, await ANSWERS.reserve_for_task(BULKY_BYTES)
        try:
            responses = await self._execute(
                call.group, call.method, call.metadata, call.request, deadline
            )
            size = COPIES * sum(map(len, responses))
            return responses
        finally:
            share.settle(size)

    def on_contact(self, client_id: str) -> None:
        """A client showed a sign of life at this node."""
        self._contacted.add(client_id)

    def client_gone(self, client_id: str) -> None:
        """A client said goodbye to this node: tell all leaders at once."""
        self._contacted.discard(client_id)
        self.gone_from_peer(client_id)
        for peer in self._leaders_elsewhere():
            self._links[peer].post(
                peer_pb2.PeerMessage(client_gone=peer_pb2.ClientGone(client_id=client_id))
            )

    def signs_from_peer(self, client_ids: Sequence[str]) -> None:
        """Pass signs of life that a peer relayed to the groups led here."""
        alive = ClientsAlive(frozenset(client_ids), self._now_ns())
        for group in self._groups_led_here():
            self._engine.notify(group, alive)

    def gone_from_peer(self, client_id: str) -> None:
        """Pass a goodbye that a peer relayed to the groups led here."""
        gone = ClientGone(client_id, self._now_ns())
        for group in self._groups_led_here():
            self._engine.notify(group, gone)

    def flush_signs(self) -> None:
        """Relay the signs collected since the last flush."""
        if not self._contacted:
            return
        on_contact, self._contacted = sorted(self._contacted), set()
        self.signs_from_peer(on_contact)
        for peer in self._leaders_elsewhere():
            self._links[peer].post(
                peer_pb2.PeerMessage(client_signs=peer_pb2.ClientSigns(client_id=on_contact))
            )

    async def _relay_signs(self) -> None:
        while True:
            await asyncio.sleep(SIGNS_EVERY_S)
            self.flush_signs()

    async def _execute(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Sequence[bytes]:
        assert self._executor is not None
        return await self._executor(group, method, metadata, request, deadline)

    async def _forward(
        self,
        target: str,
        group: str,
        method: str,
        metadata: Mapping[str, str],
        request: bytes,
        deadline: float,
    ) -> Sequence[bytes] | None:
        """Make one attempt at another node. Returns None if nothing was executed there and the call
        may be retried."""
        left = deadline - asyncio.get_running_loop().time() - DEADLINE_MARGIN_S
        if left <= 0:
            return None
        call = peer_pb2.ForwardCall(
            group=group,
            method=method,
            metadata=metadata,
            request=request,
            deadline_ms=int(left * 1000),
        )
        try:
            async with asyncio.timeout(left + DEADLINE_MARGIN_S):
                result = await self._links[target].call(call)
        except NotSent:
            self._count(group, "not-sent")
            return None
        except Lost as lost:
            self._count(group, "lost")
            self._doubt(group, target)
            raise CallRefused(Refused("unknown-outcome", detail=str(lost))) from lost
        except TimeoutError as late:
            self._count(group, "late")
            self._doubt(group, target)
            detail = f"node {target} did not answer within the deadline"
            raise CallRefused(Refused("unknown-outcome", detail=detail)) from late
        if result.not_leader:
            self._count(group, "not-leader")
            self._remember(group, result.leader if result.HasField("leader") else None)
            return None
        if result.HasField("refusal"):
            self._count(group, "refused")
            raise CallRefused(Refused(result.refusal, detail=result.grpc_message))
        self._count(group, "done")
        self._hints[group] = target
        return result.responses

    def _target(self, group: str) -> str | None:
        """The node to try now; None if the call can only wait."""
        view = self._engine.views.get(group)
        if view is not None and self._belongs(view):
            if view.leader == self._node:
                return self._node if view.serving else None
            return view.leader if self._reached(view.leader) else None
        hint = self._hints.get(group)
        # An unreachable hint cannot name the leader, and no log here can: ask another replica.
        return hint if self._reached(hint) else self._guess(group)

    def _reached(self, node: str | None) -> bool:
        return node is not None and node in self._links and self._links[node].up

    def _refuse_when_short(self, group: str) -> None:
        """Refuse calls while the master of an HA group is on this node and does not serve, because
        too few replicas are in sync."""
        view = self._engine.views.get(group)
        if view is not None and view.leader == self._node and view.short:
            raise CallRefused(Refused("in-sync-short", detail=view.short))

    def follows(self, group: str) -> bool:
        """Whether the replica on this node learns of its leader by itself."""
        view = self._engine.views.get(group)
        return view is not None and self._belongs(view)

    def _belongs(self, view: GroupView) -> bool:
        """Whether a leader sends to the replica here. A replica that joins, or that was moved away,
        hears from no leader."""
        return self._node in view.in_effect

    def _guess(self, group: str) -> str | None:
        """A replica of a group that has none here, in rotating order; None if no replica is
        reachable."""
        candidates = [name for name in self._replicas.get(group, ()) if self._reached(name)]
        self._next_guess += 1
        return candidates[self._next_guess % len(candidates)] if candidates else None

    def _remember(self, group: str, leader: str | None) -> None:
        if leader is None:
            self._hints.pop(group, None)
        else:
            self._hints[group] = leader

    def _doubt(self, group: str, target: str) -> None:
        """Forget a leader that did not answer; other replicas know whether it still leads."""
        if self._hints.get(group) == target:
            del self._hints[group]

    def _groups_led_here(self) -> list[str]:
        return [group for group, view in self._engine.views.items() if view.leader == self._node]

    def _leaders_elsewhere(self) -> list[str]:
        """The other nodes that may lead: while a group's leader is unknown, all of its replicas."""
        nodes: set[str] = set()
        for group, replicas in self._replicas.items():
            leader = self.leader(group)
            nodes.update(replicas if leader is None else (leader,))
        return sorted(name for name in nodes if name in self._links)

    def _count(self, group: str, result: str) -> None:
        _forwarded(group, result).inc()


@functools.cache
def _forwarded(group: str, result: str) -> Counter:
    """Cached, because looking up a labelled counter costs more than incrementing it; there are few
    groups and results."""
    return metrics.FORWARDED_CALLS.labels(group, result)


@functools.cache
def _executed(group: str) -> Counter:
    return metrics.EXECUTED_CALLS.labels(group)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        # Nothing was announced in time: the caller checks again.
        pass
