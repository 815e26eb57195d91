"""A real gRPC server with our service over in-memory broker groups on virtual time, and raw stubs
for calls to it.

The groups are real (`node/broker`); their replicator commits at once. Time passes only in
`pass_time`, which advances the virtual clock, so tests can check exact times without waiting. Only
gRPC deadlines use real time.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.transactions.transaction_checks import TransactionRules
from ledgermq.node.broker.ports import ReadBudget, Unlimited
from ledgermq.node.broker.queries.why_delivery import WIRE_MAX
from ledgermq.node.controller.metadata import apply
from ledgermq.node.controller.reconcile import unknown_letters
from ledgermq.node.controller.state import State
from ledgermq.node.frontend.ports import CallServer, Executor, Listening
from ledgermq.node.frontend.rocketmq.access_control import AccessControl
from ledgermq.node.frontend.rocketmq.messaging import MessagingService
from ledgermq.node.frontend.rocketmq.service_config import ServiceConfig
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.quotas import Quotas
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.process.client_port import call_server
from ledgermq.node.replica.ports import NotSent
from ledgermq.node.runtime.config_sections import Delivery, Limits
from ledgermq.node.runtime.security_sections import Quotas as QuotaSettings
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto import peer_pb2
from ledgermq.proto.signature import Credentials, operator_of, sign
from tests.node_core.core_fakes import EPOCH_MS, MS, SECOND, FakeReplicator, MemoryLog, MemoryQueues

Outcome = Result | Refused
Metadata = Sequence[tuple[str, str]]
SECRET = b"0123456789abcdef0123456789abcdef"
SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENT_ID = (("x-mq-client-id", "t1"),)
NODE_JS = (
    ("grpc.primary_user_agent", "grpc-node-js/1.12.2"),
    ("grpc.max_receive_message_length", WIRE_MAX),
    ("grpc.enable_http_proxy", 0),
)
"""A client that accepts 4 MiB on the wire, as the official clients for Node, Rust and C# do."""
UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)


class Clock:
    """The virtual clock of a backend."""

    def __init__(self) -> None:
        self.now_ns = 10 * SECOND

    def __call__(self) -> int:
        return self.now_ns

    def now_ms(self) -> int:
        return EPOCH_MS + self.now_ns // MS


class LoopEngine:
    """An engine on the event loop: the calls of one loop iteration become one turn."""

    def __init__(self, clock: Clock, groups: Sequence[str], settings: LeaderSettings) -> None:
        self.clock = clock
        self.views: dict[str, GroupView] = {}
        self.groups: dict[str, Group] = {}
        self.replicators: dict[str, FakeReplicator] = {}
        self._queued: dict[str, list[Call]] = {}
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._token = 0
        self.turned = asyncio.Event()
        for name in groups:
            log = MemoryLog()
            self.replicators[name] = FakeReplicator(log)
            machine = Machine(MemoryQueues(), log.record, log.index_at)
            self.groups[name] = Group(name, "n1", self.replicators[name], machine, settings)

    def new_token(self) -> int:
        self._token += 1
        return self._token

    def call(self, group: str, call: Call) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[call.token] = future  # type: ignore[union-attr]
        self.notify(group, call)
        return future

    def notify(self, group: str, call: Call) -> None:
        if not self._queued:
            asyncio.get_running_loop().call_soon(self.turn)
        self._queued.setdefault(group, []).append(call)

    def turn(self) -> None:
        """Run one turn of every group."""
        queued, self._queued = self._queued, {}
        for name, group in self.groups.items():
            output = group.turn(self.clock.now_ns, self.clock.now_ms(), queued.get(name, ()))
            if output.view is not None:
                self.views[name] = output.view
            for done in output.done:
                future = self._waiting.pop(done.token, None)
                if future is not None and not future.done():
                    future.set_result(done.outcome)
        self.turned.set()
        self.turned = asyncio.Event()

    def lead(self, group: str, term: int) -> None:
        self.replicators[group].lead(term)
        self.turn()

    def follow(self, group: str, leader: str | None) -> None:
        replicator = self.replicators[group]
        replicator.follow(replicator.term + 1, leader)
        self.turn()

    @property
    def polls(self) -> int:
        """The number of waiting long polls."""
        return sum(len(group.leader.polls) for group in self.groups.values())

    def in_flight(self) -> int:
        return sum(group.machine.delivery.in_flight for group in self.groups.values())

    def counter(self, name: str) -> int:
        return sum(group.leader.counters[name] for group in self.groups.values())


class AgreedState:
    """The controller: commands take effect at once, or with `behind` at the next barrier."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._agreed = State()
        self._shown = self._agreed
        self.behind = False
        self.barriers = 0
        nodes = {"n1": {"client": "127.0.0.1:1", "peer": "127.0.0.1:2"}}
        self.command(
            {
                "op": "set-cluster",
                "nodes": nodes,
                "broker_groups": {name: ["n1"] for name in groups},
            }
        )

    def command(self, command: dict[str, Any]) -> None:
        self._agreed, outcome = apply(self._agreed, command)
        assert outcome.code == 20000, outcome
        if not self.behind:
            self._shown = self._agreed

    @property
    def state(self) -> State:
        return self._shown

    def forget(self) -> None:
        """Nothing is known before the next barrier, as after a start."""
        self._shown = State()

    async def barrier(self) -> None:
        self.barriers += 1
        self._shown = self._agreed


class MemoryLink:
    """The stream to another backend node in this process."""

    def __init__(self, target: Forwarder) -> None:
        self.up = True
        self.removed = False
        self._target = target
        self.calls = 0

    def post(self, message: peer_pb2.PeerMessage) -> None:
        if message.HasField("client_signs"):
            self._target.signs_from_peer(message.client_signs.client_id)
        elif message.HasField("client_gone"):
            self._target.gone_from_peer(message.client_gone.client_id)

    async def call(self, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        if not self.up:
            raise NotSent("down")
        self.calls += 1
        return await self._target.execute_for_peer(
            "n2", peer_pb2.ForwardCall.FromString(call.SerializeToString())
        )


def begin_forwarding(forwarder: Forwarder, executor: Executor) -> None:
    """Let a forwarder execute calls. The tests flush signs of life, because they control the
    time."""
    forwarder.start(executor)
    assert forwarder._task is not None
    forwarder._task.cancel()


class Backend:
    """One server. `n2` is a second node without a replica that forwards all calls."""

    def __init__(
        self,
        *,
        groups: Sequence[str] = ("g1",),
        delivery: Delivery | None = None,
        limits: Limits | None = None,
        authentication: bool = False,
        quotas: QuotaSettings | None = None,
        namespaces: bool = True,
        budget: ReadBudget | None = None,
    ) -> None:
        delivery = delivery or Delivery()
        self.delivery = delivery
        self.clock = Clock()
        times = LeaseTimes(
            liveness_ns=delivery.liveness_ms * MS,
            cap_ns=delivery.auto_renew_max_ms * MS,
            gone_ns=delivery.gone_grace_ms * MS,
            handover_ns=0,
        )
        rules = TransactionRules(
            delivery.transaction_check_ms * MS,
            delivery.transaction_interval_ms * MS,
            delivery.transaction_checks,
        )
        settings = LeaderSettings(times=times, transactions=rules, budget=budget or Unlimited())
        self.engine = LoopEngine(self.clock, groups, settings)
        self.controller = AgreedState(groups)
        self.sealer = Sealer((SECRET,), "cluster")
        config = ServiceConfig(
            "n1",
            "127.0.0.1",
            8081,
            SECRET,
            delivery,
            limits or Limits(),
            namespaces,
            self.clock.now_ms,
        )
        authority = Authority(
            lambda: self.controller.state.users,
            self.controller.barrier,
            self.sealer,
            operator_of(SECRET),
            required=authentication,
        )
        access = AccessControl(
            authority, Quotas(quotas or QuotaSettings(), lambda: self.clock.now_ns / SECOND)
        )
        replicas = {name: ("n1",) for name in groups}
        self.links: dict[str, MemoryLink] = {}
        self.forwarder = Forwarder("n1", replicas, self.engine, self.links, self.clock)
        self.service = MessagingService(
            self.engine, self.forwarder, self.controller, config, self.clock, access
        )
        self.link = MemoryLink(self.forwarder)
        self.elsewhere = LoopEngine(self.clock, (), LeaderSettings())
        config2 = ServiceConfig(
            "n2",
            "127.0.0.1",
            8082,
            SECRET,
            delivery,
            limits or Limits(),
            namespaces,
            self.clock.now_ms,
        )
        self.forwarder2 = Forwarder("n2", replicas, self.elsewhere, {"n1": self.link}, self.clock)
        self.links["n2"] = MemoryLink(self.forwarder2)
        self.service2 = MessagingService(
            self.elsewhere, self.forwarder2, self.controller, config2, self.clock
        )
        self._servers: list[CallServer] = []
        self.raw: Raw
        self.raw2: Raw

    async def start(self) -> None:
        for term, name in enumerate(self.engine.groups, 1):
            self.engine.lead(name, term)
        begin_forwarding(self.forwarder, self.service.execute)
        begin_forwarding(self.forwarder2, self.service2.execute)
        self.port = await self._serve(self.service)
        self.raw = Raw(self.port)
        self.port2 = await self._serve(self.service2)
        self.raw2 = Raw(self.port2)

    async def _serve(self, service: MessagingService) -> int:
        server = call_server()
        server.add_service("apache.rocketmq.v2.MessagingService", service.methods())
        self._servers.append(server)
        return await server.listen(Listening("127.0.0.1", 0))

    async def stop(self) -> None:
        await self.raw.close()
        await self.raw2.close()
        for server in self._servers:
            await server.stop(0)

    async def topic(
        self,
        name: str,
        kind: str = "normal",
        queues: int = 4,
        permission: str = "rw",
        namespace: str = "",
    ) -> None:
        """Create a topic and wait until it takes effect."""
        command = {
            "op": "create-topic",
            "ns": namespace,
            "name": name,
            "kind": kind,
            "queues": queues,
            "permission": permission,
        }
        self.controller.command(command)
        await self.reconcile()

    def user(self, name: str, secret: str, *grants: str, roles: Sequence[str] = ()) -> None:
        """Create a user, or with an empty secret a role."""
        sealed = self.sealer.seal(name, secret) if secret else ""
        self.controller.command(
            {
                "op": "create-user",
                "name": name,
                "secret": sealed,
                "grants": list(grants),
                "roles": list(roles),
            }
        )

    async def reconcile(self) -> None:
        for group in self.engine.groups:
            topics = self.controller._agreed.topics_of(group)
            await self.engine.call(
                group,
                Configure(
                    self.engine.new_token(), topics, tuple(self.controller._agreed.groups.values())
                ),
            )

    async def adopt(self) -> None:
        """Report the existing dead-letter topics to the controller."""
        for group, view in self.engine.views.items():
            for namespace, name in unknown_letters(view, group, self.controller.state):
                self.controller.command(
                    {"op": "adopt-topic", "ns": namespace, "name": name, "broker_group": group}
                )

    async def group(self, name: str, max_attempts: int = 17, **settings: Any) -> None:
        self.controller.command(
            {"op": "create-group", "ns": "", "name": name, "max_attempts": max_attempts, **settings}
        )
        await self.reconcile()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and run the groups; the clock stops at each due time in between."""
        self.clock.now_ns += round(seconds * SECOND)
        self.engine.turn()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the server state holds; it is checked after every turn."""
        async with asyncio.timeout(30):
            while not condition():
                await self.engine.turned.wait()

    def flush_signs(self) -> None:
        """Exchange the signs of life that both nodes received since the last call."""
        self.forwarder.flush_signs()
        self.forwarder2.flush_signs()
        self.engine.turn()

    async def until_polls(self, count: int) -> None:
        await self.until(lambda: self.engine.polls == count)


class Raw:
    """Calls of the official service through hand-made stubs."""

    def __init__(self, port: int, options: Sequence[tuple[str, Any]] = UNLIMITED) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)

    async def close(self) -> None:
        await self.channel.close()

    def unary(
        self,
        method: str,
        request: Any,
        metadata: Sequence[tuple[str, str]] = CLIENT_ID,
        timeout: float | None = 10,
    ) -> Any:
        """An awaitable call. The method name determines the response class."""
        response = getattr(pb, f"{method}Response")
        stub = self.channel.unary_unary(SERVICE + method, response_deserializer=response.FromString)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return stub(data, metadata=metadata, timeout=timeout)

    def stream(
        self,
        request: Any,
        metadata: Sequence[tuple[str, str]] = CLIENT_ID,
        timeout: float | None = 10,
    ) -> Any:
        """A ReceiveMessage call."""
        stub = self.channel.unary_stream(
            SERVICE + "ReceiveMessage", response_deserializer=pb.ReceiveMessageResponse.FromString
        )
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return stub(data, metadata=metadata, timeout=timeout)

    def telemetry(
        self, metadata: Sequence[tuple[str, str]] = CLIENT_ID, timeout: float | None = 10
    ) -> Any:
        serializer, deserializer = (
            pb.TelemetryCommand.SerializeToString,
            pb.TelemetryCommand.FromString,
        )
        stub = self.channel.stream_stream(
            SERVICE + "Telemetry", request_serializer=serializer, response_deserializer=deserializer
        )
        return stub(metadata=metadata, timeout=timeout)

    async def send(self, *messages: pb.Message, **options: Any) -> pb.SendMessageResponse:
        response: pb.SendMessageResponse = await self.unary(
            "SendMessage", pb.SendMessageRequest(messages=messages), **options
        )
        return response

    async def receive(
        self,
        topic: str = "T",
        group: str = "G",
        *,
        metadata: Sequence[tuple[str, str]] = CLIENT_ID,
        **options: Any,
    ) -> Received:
        """Run one complete Receive; by default it does not wait."""
        return await self.collect(
            self.stream(receive_request(topic, group, **options), metadata=metadata)
        )

    async def collect(self, call: Any) -> Received:
        return Received([response async for response in call], await call.code())

    async def ack(
        self, message: pb.Message, group: str = "G", metadata: Sequence[tuple[str, str]] = CLIENT_ID
    ) -> int:
        """Acknowledge one message. Returns the status."""
        response = await self.unary("AckMessage", ack_request([message], group), metadata=metadata)
        return int(response.status.code)

    async def forward(
        self, message: pb.Message, group: str = "G", metadata: Sequence[tuple[str, str]] = CLIENT_ID
    ) -> int:
        """Forward one message to the dead-letter topic. Returns the status."""
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=group), topic=message.topic
        )
        request.receipt_handle = message.system_properties.receipt_handle
        request.message_id = message.system_properties.message_id
        response = await self.unary("ForwardMessageToDeadLetterQueue", request, metadata=metadata)
        return int(response.status.code)

    async def change(
        self, message: pb.Message, seconds: float, group: str = "G", handle: str | None = None
    ) -> Any:
        request = pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=group), topic=message.topic
        )
        request.receipt_handle = handle or message.system_properties.receipt_handle
        request.invisible_duration.FromMilliseconds(round(seconds * 1000))
        return await self.unary("ChangeInvisibleDuration", request)


class Received:
    """The responses of one Receive."""

    def __init__(self, responses: list[pb.ReceiveMessageResponse], code: grpc.StatusCode) -> None:
        self.contents = [str(response.WhichOneof("content")) for response in responses]
        self.responses = responses
        self.code = code
        self.status = next(r.status for r in responses if r.HasField("status"))
        self.messages = [r.message for r in responses if r.HasField("message")]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def signed(
    access_key: str, secret: str, date_time: str = "20260102T030405Z", client_id: str = "t1"
) -> tuple[tuple[str, str], ...]:
    """The metadata of a call signed by a user."""
    header = sign(Credentials(access_key, secret), date_time)
    return (("x-mq-client-id", client_id), ("x-mq-date-time", date_time), ("authorization", header))


def message(
    body: bytes = b"hello",
    topic: str = "T",
    message_id: str | None = None,
    namespace: str = "",
    **system: Any,
) -> pb.Message:
    """A message as a producer would send it."""
    out = pb.Message(topic=pb.Resource(name=topic, resource_namespace=namespace), body=body)
    out.system_properties.message_id = f"01{next(_ids):032X}" if message_id is None else message_id
    out.system_properties.body_encoding = pb.IDENTITY
    out.system_properties.message_type = pb.NORMAL
    out.system_properties.born_timestamp.FromMilliseconds(EPOCH_MS)
    out.system_properties.born_host = "producer-host"
    for name, value in system.items():
        if isinstance(value, list):
            getattr(out.system_properties, name).extend(value)
        else:
            setattr(out.system_properties, name, value)
    return out


_ids = iter(range(1, 1 << 60))


def receive_request(
    topic: str = "T",
    group: str = "G",
    *,
    broker: str = "",
    queue: int = -1,
    batch: int = 32,
    invisible: float | None = 30,
    polling: float | None = 0,
    expression: str = "*",
    namespace: str = "",
    attempt_id: str = "",
) -> pb.ReceiveMessageRequest:
    """A Receive request. `invisible` None: automatic renewal; `polling` None: the field is not
    set."""
    resource = pb.Resource(name=topic, resource_namespace=namespace)
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group, resource_namespace=namespace), batch_size=batch
    )
    request.message_queue.CopyFrom(
        pb.MessageQueue(topic=resource, id=queue, broker=pb.Broker(name=broker))
    )
    request.filter_expression.type = pb.TAG
    request.filter_expression.expression = expression
    request.auto_renew = invisible is None
    if attempt_id:
        request.attempt_id = attempt_id
    if invisible is not None:
        request.invisible_duration.FromMilliseconds(round(invisible * 1000))
    if polling is not None:
        request.long_polling_timeout.FromMilliseconds(round(polling * 1000))
    return request


def ack_request(messages: Sequence[pb.Message], group: str = "G") -> pb.AckMessageRequest:
    entries = [
        pb.AckMessageEntry(
            message_id=m.system_properties.message_id,
            receipt_handle=m.system_properties.receipt_handle,
        )
        for m in messages
    ]
    return pb.AckMessageRequest(
        group=pb.Resource(name=group), topic=messages[0].topic, entries=entries
    )


@asynccontextmanager
async def backend(**options: Any) -> AsyncIterator[Backend]:
    server = Backend(**options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


_runner: asyncio.Runner | None = None


def run(work: Callable[[], Awaitable[None]], within_s: float = 60) -> None:
    """Run a scenario on the process-wide event loop; grpc.aio does not support replacing the
    loop."""
    global _runner
    if _runner is None:
        _runner = asyncio.Runner()
        atexit.register(_runner.close)

    async def limited() -> None:
        async with asyncio.timeout(within_s):
            await work()

    _runner.run(limited())


def contract(
    topics: Mapping[str, str] | None = None, **options: Any
) -> Callable[[Callable[[Backend], Awaitable[None]]], Callable[[], None]]:
    """Turn a scenario into a test with a new backend and the topics T (normal) and F (FIFO), or the
    given ones (name → kind)."""
    wanted = {"T": "normal", "F": "fifo"} if topics is None else topics

    def wrap(scenario: Callable[[Backend], Awaitable[None]]) -> Callable[[], None]:
        async def work() -> None:
            async with backend(**options) as server:
                for name, kind in wanted.items():
                    await server.topic(name, kind)
                await scenario(server)

        @functools.wraps(scenario)
        def test() -> None:
            run(work)

        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look for a fixture of the scenario's parameter
        return test

    return wrap
