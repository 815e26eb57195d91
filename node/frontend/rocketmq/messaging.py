"""The gRPC service `apache.rocketmq.v2.MessagingService`: requests and answers are bytes, and a
client never sees an exception.

This module has the registration, the caller's identity, deadlines, the small local methods, and the
one place where whatever ended a call becomes a `Status`. Each method's own work is in the module
named after it. Methods that are not offered are not registered: gRPC answers UNIMPLEMENTED.
`execute` is the second entry point, for calls that peers send to the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from ledgermq.node.broker.calls.consumer_calls import session_of
from ledgermq.node.broker.calls.outcome import AGAIN, CallRefused
from ledgermq.node.controller.state import State
from ledgermq.node.frontend.ports import (
    Engine,
    Metadata,
    Method,
    ServerCall,
    ServerStreamMethod,
    StreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq import (
    acknowledging,
    commanding,
    forwarding,
    group_offsets,
    lite_subscriptions,
    pulling,
    recalling,
    receiving,
    routes,
    sending,
    telemetry,
    transacting,
)
from ledgermq.node.frontend.rocketmq.access_control import AccessControl, retry_after
from ledgermq.node.frontend.rocketmq.acknowledging import Acknowledger
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.checking import Checker
from ledgermq.node.frontend.rocketmq.client_settings import retry_ms, retry_policy
from ledgermq.node.frontend.rocketmq.clients import Clients
from ledgermq.node.frontend.rocketmq.commanding import Commander
from ledgermq.node.frontend.rocketmq.forwarding import DeadLetterForwarder
from ledgermq.node.frontend.rocketmq.group_offsets import OffsetKeeper
from ledgermq.node.frontend.rocketmq.lite_subscriptions import LiteSubscriptions
from ledgermq.node.frontend.rocketmq.pulling import Puller
from ledgermq.node.frontend.rocketmq.recalling import Recaller, RecallHandles
from ledgermq.node.frontend.rocketmq.receiving import Receiver
from ledgermq.node.frontend.rocketmq.sending import Sender
from ledgermq.node.frontend.rocketmq.service_config import NO_DEADLINE_S, ServiceConfig
from ledgermq.node.frontend.rocketmq.streams import Streams
from ledgermq.node.frontend.rocketmq.telemetry import Telemetry
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.transacting import TransactionIds, Transactor
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.rocketmq.wire.meters import Meters
from ledgermq.node.frontend.rocketmq.wire.validation import (
    NODE_BOOT,
    Caller,
    caller_of,
    group_of,
    topic_of,
)
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.local_reads import LocalReads
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.frontend.security.quotas import Hold
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code, LedgerError, fail

SERVICE = "apache.rocketmq.v2.MessagingService"
REQUEST_BYTES = 24 << 20
"""The largest request accepted: several messages of the largest size. A forwarded request must fit
a peer frame."""
_NOTHING: Sequence[bytes] = ()
_NO_HOLD = contextlib.nullcontext()
RESPONSES_BESIDE = 2
"""The parts of the answer to a Receive or a pull besides messages: a status, and a time or an
offset."""
CONSUMERS = frozenset(
    {
        pb.PUSH_CONSUMER,
        pb.SIMPLE_CONSUMER,
        pb.PULL_CONSUMER,
        pb.LITE_PUSH_CONSUMER,
        pb.LITE_SIMPLE_CONSUMER,
    }
)

log = get_logger()
Unary = Callable[[bytes, Caller, ServerCall], Awaitable[bytes]]
Failure = Callable[[pb.Status, bytes], bytes]


class MessagingService:
    """The client contract of one node. Belongs to the loop's thread. `now_ns` is the clock of the
    engine."""

    def __init__(
        self,
        engine: Engine,
        forwarder: Forwarder,
        metadata: Metadata,
        config: ServiceConfig,
        now_ns: Callable[[], int] = time.monotonic_ns,
        access: AccessControl | None = None,
        local: LocalReads | None = None,
        tier: TierReads | None = None,
    ) -> None:
        self._config = config
        self._access = access or AccessControl()
        self.meters = Meters()
        self._receive_meter, self._pull_meter = (
            self.meters.of(receiving.METHOD),
            self.meters.of(pulling.METHOD),
        )
        self._node_boot = config.node_boot
        self._forwarder = forwarder
        self._topics = Topics(metadata)
        self._groups = Groups(engine, self._topics, forwarder)
        handles = Handles(config.secret)
        self.clients = Clients(
            forwarder,
            config.node_boot,
            config.delivery.liveness_ms / 1000,
            lambda: asyncio.get_running_loop().time(),
        )
        self.streams = Streams()
        self.commander = Commander(config.node, self.streams, forwarder)
        ids, recalls = TransactionIds(config.secret), RecallHandles(config.secret)
        self.checker = Checker(engine, self.commander, ids, config.delivery)
        self._sender = Sender(config, self._topics, self._groups, forwarder, ids, recalls=recalls)
        self._recaller = Recaller(self._topics, self._groups, recalls)
        self._transactor = Transactor(self._topics, self._groups, ids)
        self._receiver = Receiver(
            config,
            self._topics,
            self._groups,
            forwarder,
            self.clients,
            handles=handles,
            now_ns=now_ns,
        )
        self._acknowledger = Acknowledger(config, self._groups, forwarder, handles)
        self._letters = DeadLetterForwarder(self._groups, handles)
        self._puller = Puller(
            config, self._topics, self._groups, forwarder, now_ns, local=local, tier=tier
        )
        self._offsets = OffsetKeeper(self._topics, self._groups, tier)
        self._lite = LiteSubscriptions(config, self._topics, self._groups, lambda: now_ns() / 1e9)
        self._telemetry = Telemetry(config, self._topics, self.clients, self.streams, self._access)
        self._releases: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[Any]] = set()
        """Tasks of long-lived streams: polls and Telemetry."""
        self._draining = False
        self._known_groups = metadata.state.groups
        self._executors: dict[
            str, Callable[[str, bytes, Caller, float], Awaitable[Sequence[bytes]]]
        ] = {
            sending.METHOD: self._sender.execute,
            receiving.METHOD: self._receiver.execute,
            acknowledging.ACK: self._acknowledger.execute_ack,
            acknowledging.CHANGE: self._acknowledger.execute_change,
            forwarding.METHOD: self._letters.execute,
            pulling.METHOD: self._puller.execute,
            lite_subscriptions.METHOD: self._lite.execute,
            **{method: partial(self._offsets.execute, method) for method in group_offsets.METHODS},
            transacting.METHOD: self._transactor.execute,
            recalling.METHOD: self._recaller.execute,
        }

    def on_state(self, state: State) -> None:
        """The agreed metadata changed: send new Settings to the clients of consumer groups whose
        configuration changed."""
        former, self._known_groups = self._known_groups, state.groups
        if former is not state.groups:
            for key in former.keys() | state.groups.keys():
                if former.get(key) != state.groups.get(key):
                    self._telemetry.group_changed(stored_name(*key))

    def drain(self) -> None:
        """Before the node stops: answer long polls and end Telemetry streams, so that only short
        calls remain."""
        self._draining = True
        for task in self._waiting:
            task.cancel()

    @contextlib.contextmanager
    def _until_drained(self) -> Iterator[None]:
        """Suppresses the cancellation that `drain` causes, and no other."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._draining:
                raise
            task.uncancel()
        finally:
            self._waiting.discard(task)

    # Registration

    @property
    def unary_methods(self) -> frozenset[str]:
        """The names of the unary methods."""
        return frozenset(self._unary_methods())

    def methods(self) -> dict[str, Method]:
        """The methods by name."""
        methods: dict[str, Method] = {
            name: UnaryMethod(self._unary(name, work, failure))
            for name, (work, failure) in self._unary_methods().items()
        }
        methods[pulling.METHOD] = ServerStreamMethod(self._pull)
        methods[receiving.METHOD] = ServerStreamMethod(self._receive)
        methods[telemetry.METHOD] = StreamMethod(self._serve_telemetry)
        return methods

    def _unary_methods(self) -> dict[str, tuple[Unary, Failure]]:
        return {
            "QueryRoute": (self._query_route, _plain(pb.QueryRouteResponse)),
            "QueryAssignment": (self._query_assignment, _plain(pb.QueryAssignmentResponse)),
            "Heartbeat": (self._heartbeat, _plain(pb.HeartbeatResponse)),
            "NotifyClientTermination": (
                self._terminate,
                _plain(pb.NotifyClientTerminationResponse),
            ),
            sending.METHOD: (self._send, _plain(pb.SendMessageResponse)),
            acknowledging.ACK: (
                _routed(self._acknowledger.route_ack),
                _plain(pb.AckMessageResponse),
            ),
            acknowledging.CHANGE: (
                _routed(self._acknowledger.route_change),
                acknowledging.change_failure,
            ),
            forwarding.METHOD: (
                _routed(self._letters.route),
                _plain(pb.ForwardMessageToDeadLetterQueueResponse),
            ),
            **{
                name: (_routed(partial(self._offsets.route, name)), _plain(_response_of(name)))
                for name in group_offsets.METHODS
            },
            transacting.METHOD: (
                _routed(self._transactor.route),
                _plain(pb.EndTransactionResponse),
            ),
            recalling.METHOD: (_routed(self._recaller.route), _plain(pb.RecallMessageResponse)),
            lite_subscriptions.METHOD: (
                _routed(self._lite.route),
                _plain(pb.SyncLiteSubscriptionResponse),
            ),
        }

    def _unary(
        self, name: str, work: Unary, failure: Failure
    ) -> Callable[[bytes, ServerCall], Awaitable[bytes]]:
        meter = self.meters.of(name)

        async def serve(data: bytes, context: ServerCall) -> bytes:
            began = perf_counter()
            try:
                response = await work(data, self._enter(context), context)
            except Exception as error:  # the client gets a status, never an exception
                response = failure(
                    statuses.status_of(statuses.as_error(error, self._config.node, name)), data
                )
            meter.count(response, perf_counter() - began)
            return response

        async def serve_admitted(data: bytes, context: ServerCall) -> bytes:
            began = perf_counter()
            try:
                caller = await self._authenticated(context)
                with self._access.admitted(name, data, caller) or _NO_HOLD:
                    response = await work(data, caller, context)
            except Exception as error:  # the client gets a status, never an exception
                context.set_trailing_metadata(retry_after(error))
                response = failure(
                    statuses.status_of(statuses.as_error(error, self._config.node, name)), data
                )
            meter.count(response, perf_counter() - began)
            return response

        return serve if self._access.open else serve_admitted

    def _enter(self, context: ServerCall) -> Caller:
        """The caller without authentication. Any call is a sign of life."""
        return self._caller(dict(context.invocation_metadata()), context.peer())

    async def _authenticated(self, context: ServerCall) -> Caller:
        """The caller after authentication; an unauthenticated call is no sign of life."""
        metadata = dict(context.invocation_metadata())
        return self._caller(metadata, context.peer(), await self._access.user(metadata, context))

    def _caller(self, metadata: Mapping[str, str], peer: str, user: str = "") -> Caller:
        return caller_of(
            metadata, self.clients.on_contact, user, namespaces=self._config.namespaces, peer=peer
        )

    async def execute(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Sequence[bytes]:
        """Execute a call for a broker group led here, from a peer or from the forwarder, and return
        its response messages.

        Raises CallRefused only with `not-leader` or `unknown-outcome`: the caller decides whether
        to try elsewhere.
        """
        if method == commanding.METHOD:
            return self.commander.answer(request)
        try:
            boot = metadata.get(NODE_BOOT, self._node_boot)
            caller = caller_of(
                metadata,
                lambda client_id, _: session_of(client_id, boot),
                namespaces=self._config.namespaces,
            )
            return await self._executors[method](group, request, caller, deadline)
        except CallRefused as refusal:
            if refusal.refused.reason in AGAIN:
                raise
            return self._failed(method, request, refusal)
        except Exception as error:  # the client gets a status, never an exception
            return self._failed(method, request, error)

    def _failed(self, method: str, request: bytes, error: Exception) -> Sequence[bytes]:
        status = statuses.status_of(statuses.as_error(error, self._config.node, method))
        if method == receiving.METHOD:
            return receiving.failure(status)
        if method == acknowledging.CHANGE:
            return [acknowledging.change_failure(status, request)]
        return [_response_of(method)(status=status).SerializeToString()]

    # Methods of the leaders

    async def _send(self, data: bytes, caller: Caller, context: ServerCall) -> bytes:
        response, durability, queue = await self._sender.route(data, caller, _deadline(context))
        if durability is not None:
            of_queue = () if queue is None else ((sending.QUEUE_KEY, str(queue)),)
            context.set_trailing_metadata(((sending.DURABILITY_KEY, durability.value), *of_queue))
        return response

    async def _pull(self, data: bytes, context: ServerCall) -> None:
        responses: Sequence[bytes] = _NOTHING
        hold: Hold | None = None
        began = perf_counter()
        try:
            caller = (
                self._enter(context) if self._access.open else await self._authenticated(context)
            )
            hold = (
                None if self._access.open else self._access.admitted(pulling.METHOD, data, caller)
            )
            remaining = context.time_remaining()
            deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
            with self._until_drained(), hold or _NO_HOLD:
                responses = await self._puller.route(data, caller, deadline)
            if hold is not None:
                hold.cost(max(0, len(responses) - RESPONSES_BESIDE), sum(map(len, responses)))
        except Exception as error:  # the client gets a status, never an exception
            context.set_trailing_metadata(retry_after(error))
            responses = pulling.failure(
                statuses.status_of(statuses.as_error(error, self._config.node, pulling.METHOD))
            )
        self._pull_meter.count_stream(responses, perf_counter() - began)
        await _write(
            context,
            responses
            or pulling.failure(
                statuses.status(Code.HA_NOT_AVAILABLE, "the node is stopping; ask another one")
            ),
        )

    async def _receive(self, data: bytes, context: ServerCall) -> None:
        caller: Caller | None = None
        hold: Hold | None = None
        responses: Sequence[bytes] = _NOTHING
        began = perf_counter()
        try:
            caller = (
                self._enter(context) if self._access.open else await self._authenticated(context)
            )
            hold = (
                None if self._access.open else self._access.admitted(receiving.METHOD, data, caller)
            )
            remaining = context.time_remaining()
            deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
            with self._until_drained(), hold or _NO_HOLD:
                responses = await self._receiver.route(data, caller, deadline)
            if hold is not None:
                hold.cost(max(0, len(responses) - RESPONSES_BESIDE), sum(map(len, responses)))
        except Exception as error:  # the client gets a status, never an exception
            context.set_trailing_metadata(retry_after(error))
            responses = receiving.failure(
                statuses.status_of(statuses.as_error(error, self._config.node, receiving.METHOD))
            )
        except asyncio.CancelledError:
            if caller is not None:
                self.clients.doubt(caller.client_id)
            raise
        responses, withheld = receiving.fitting(responses, context)
        if withheld and caller is not None:
            self._withhold(withheld, data, caller)
        self._receive_meter.count_stream(responses, perf_counter() - began)
        if caller is not None and receiving.in_doubt(responses):
            self.clients.doubt(caller.client_id)
        responses = responses or receiving.failure(
            statuses.status(Code.MESSAGE_NOT_FOUND, "the node is stopping")
        )
        try:
            await _write(
                context,
                responses,
                taken=len(responses) > RESPONSES_BESIDE and receiving.auto_renewed(data),
            )
        except BaseException as error:
            # The caller has not taken the answer, whichever exception says so: release its messages
            # for other consumers.
            messages = receiving.undelivered(responses)
            if messages and caller is not None:
                metrics.RECEIVES_GIVEN_BACK.labels(_reason(error)).inc()
                self._release(messages, data, caller)
            raise

    def _withhold(self, messages: Sequence[pb.Message], request: bytes, caller: Caller) -> None:
        """Return messages that the caller cannot receive, as if a consumer had failed to process
        them: they come again after the group's backoff, up to its attempts. Another client of the
        group may receive them; after the last attempt they go to the dead-letter topic."""
        policy = retry_policy(
            self._topics.group(group_of(pb.ReceiveMessageRequest.FromString(request).group, caller))
        )
        for message in messages:
            system = message.system_properties
            named = {
                "topic": message.topic.name,
                "message_id": system.message_id,
                "attempt": system.delivery_attempt,
            }
            log.warning(
                "message_withheld", client=caller.client_id, bytes=message.ByteSize(), **named
            )
            self._release([message], request, caller, retry_ms(policy, system.delivery_attempt))

    def _release(
        self, messages: Sequence[pb.Message], request: bytes, caller: Caller, after_ms: int = 0
    ) -> None:
        """Release leases that did not reach their caller."""
        group = pb.ReceiveMessageRequest.FromString(request).group
        task = asyncio.create_task(self._give_back(messages, group, caller, after_ms))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _give_back(
        self, messages: Sequence[pb.Message], group: pb.Resource, caller: Caller, after_ms: int
    ) -> None:
        """All at once, so that one record holds them. Leases whose end nobody confirmed must not be
        renewed any more."""
        deadline = asyncio.get_running_loop().time() + NO_DEADLINE_S
        ended = await asyncio.gather(
            *[self._end_lease(message, group, caller, after_ms, deadline) for message in messages]
        )
        if not all(ended):
            self.clients.doubt(caller.client_id)

    async def _end_lease(
        self,
        message: pb.Message,
        group: pb.Resource,
        caller: Caller,
        after_ms: int,
        deadline: float,
    ) -> bool:
        """Whether this lease is known to have ended: by this, or because the message was
        acknowledged or the lease expired meanwhile."""
        change = pb.ChangeInvisibleDurationRequest(group=group, topic=message.topic)
        change.receipt_handle = message.system_properties.receipt_handle
        change.invisible_duration.FromMilliseconds(after_ms)
        change.invisible_duration.SetInParent()
        try:
            data = await self._acknowledger.route_change(
                change.SerializeToString(), caller, deadline
            )
            code = pb.ChangeInvisibleDurationResponse.FromString(data).status.code
        except (LedgerError, CallRefused) as error:
            code = statuses.status_of(
                statuses.as_error(error, self._config.node, acknowledging.CHANGE)
            ).code
        return code in (pb.OK, pb.INVALID_RECEIPT_HANDLE)

    # Local methods

    async def _query_route(self, data: bytes, caller: Caller, _: ServerCall) -> bytes:
        request = pb.QueryRouteRequest.FromString(data)
        topic = await self._topics.find(topic_of(request.topic, caller))
        queues = routes.route(topic, request.topic, self._endpoints(request.endpoints))
        return pb.QueryRouteResponse(status=statuses.OK, message_queues=queues).SerializeToString()

    async def _query_assignment(self, data: bytes, caller: Caller, _: ServerCall) -> bytes:
        request = pb.QueryAssignmentRequest.FromString(data)
        stored = topic_of(request.topic, caller)
        group = self._topics.group(group_of(request.group, caller))
        topic = await self._topics.find(stored)
        fifo = group is not None and group.fifo
        assignments = routes.assignments(
            topic, request.topic, self._endpoints(request.endpoints), fifo=fifo
        )
        return pb.QueryAssignmentResponse(
            status=statuses.OK, assignments=assignments
        ).SerializeToString()

    def _endpoints(self, given: pb.Endpoints) -> pb.Endpoints:
        return routes.endpoints_of(given, self._config.host, self._config.port)

    async def _heartbeat(self, data: bytes, caller: Caller, _: ServerCall) -> bytes:
        request = pb.HeartbeatRequest.FromString(data)
        settings = self.clients.settings(caller.client_id)
        if settings is None:
            raise fail(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "no settings of this client are known here; send them on the Telemetry stream",
            )
        if (request.client_type or settings.client_type) in CONSUMERS:
            group_of(request.group, caller)
        return pb.HeartbeatResponse(status=statuses.OK).SerializeToString()

    async def _terminate(self, data: bytes, caller: Caller, _: ServerCall) -> bytes:
        request = pb.NotifyClientTerminationRequest.FromString(data)
        if request.group.name:
            group_of(request.group, caller)
        if not self.clients.terminate(caller.client_id):
            raise fail(Code.UNRECOGNIZED_CLIENT_TYPE, "no settings of this client are known here")
        return pb.NotifyClientTerminationResponse(status=statuses.OK).SerializeToString()

    async def _serve_telemetry(self, context: ServerCall) -> None:
        # Sent at once, because some clients wait for the headers before they send anything.
        await context.send_initial_metadata(())
        try:
            caller = (
                self._enter(context) if self._access.open else await self._authenticated(context)
            )
        except LedgerError as error:
            await context.write(
                pb.TelemetryCommand(status=statuses.status_of(error)).SerializeToString()
            )
            return
        with self._until_drained():
            await self._telemetry.serve(caller, context)


def _routed(route: Callable[[bytes, Caller, float], Awaitable[bytes]]) -> Unary:
    """A method that the leader of a broker group executes."""

    async def work(data: bytes, caller: Caller, context: ServerCall) -> bytes:
        return await route(data, caller, _deadline(context))

    return work


def _plain(response: Callable[..., Any]) -> Failure:
    """A failure response that holds only a status."""

    def failure(status: pb.Status, _: bytes) -> bytes:
        data: bytes = response(status=status).SerializeToString()
        return data

    return failure


def _response_of(method: str) -> Callable[..., Any]:
    """The response class of a method."""
    response: Callable[..., Any] = getattr(pb, f"{method}Response")
    return response


async def _write(context: ServerCall, responses: Sequence[bytes], *, taken: bool = False) -> None:
    """Send an answer of several messages, and wait until the socket has taken it, or the client
    (`ServerCall.finish`)."""
    try:
        for response in responses:
            await context.write(response)
        await context.finish(taken=taken)
    except asyncio.CancelledError:
        # The client has gone. A CallGone is counted by the server.
        metrics.CALLS_LEFT.inc()
        raise


def _reason(error: BaseException) -> str:
    """Why a client has not taken an answer, as the server told; `left` if it tells no reason."""
    return (
        str(error.args[0]) if isinstance(error, asyncio.CancelledError) and error.args else "left"
    )


def _deadline(context: ServerCall) -> float:
    """The deadline of the call, in the loop's time."""
    remaining: float | None = context.time_remaining()
    return asyncio.get_running_loop().time() + (NO_DEADLINE_S if remaining is None else remaining)
