"""The Log service of one node on a real gRPC port, over an engine with scripted answers, without a
log or a quorum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.controller.metadata import apply
from ledgermq.node.controller.state import Outcome, State
from ledgermq.node.frontend.native.callers import Callers
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.producing import Hosted
from ledgermq.node.frontend.native.service import LogService, Parts
from ledgermq.node.frontend.ports import Listening
from ledgermq.node.frontend.rocketmq.wire.meters import Meters
from ledgermq.node.frontend.routing.local_reads import LocalReads, Rules
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.quotas import Quotas
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.process.client_port import call_server
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.node.runtime.security_sections import Quotas as QuotaSettings
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.signature import Credentials, operator_of, sign
from ledgermq.proto.types import TopicConfig

SECRET = b"0123456789abcdef0123456789abcdef"
LOG_ID = "6f9a41c0-log"
CLUSTER = "cluster"
FILE_BYTES = 4 << 20
SERVICE = "/ledgermq.v1.Log/"
ADDRESSES = {"n1": "10.0.0.1:8081", "n2": "10.0.0.2:8081"}


class FakeQuorum:
    """The controller's state machine; commands take effect at once."""

    def __init__(self) -> None:
        self.state = self._agreed = State()
        self.barriers = 0
        self.reachable = True
        nodes = {name: {"client": at} for name, at in ADDRESSES.items()}
        self.command({"op": "set-cluster", "nodes": nodes, "broker_groups": {"g1": ["n1", "n2"]}})

    def command(self, command: dict[str, Any]) -> Outcome:
        self._agreed, outcome = apply(self.state, command)
        assert outcome.code == 20000, outcome
        self.state = self._agreed
        return outcome

    def forget(self) -> None:
        """Nothing is known before the next barrier, as after a start."""
        self.state = State()

    async def submit(self, operation: str, arguments: dict[str, Any], timeout: float) -> Outcome:
        return self.command({"op": operation, **arguments})

    async def barrier(self) -> None:
        self.barriers += 1
        self.state = self._agreed


class FakeEngine:
    """Answers calls through `answer`; the tests set the views."""

    def __init__(self) -> None:
        self.views: dict[str, GroupView] = {}
        self.calls: list[Any] = []
        self.answer: Callable[[Any], Any] = lambda call: None
        """Returns an outcome. None: the call waits, and its future is in `waiting`."""
        self.waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._token = 0

    def new_token(self) -> int:
        self._token += 1
        return self._token

    def call(self, group: str, call: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        outcome = self.answer(call)
        if outcome is None:
            self.waiting.append((call, future))
        else:
            future.set_result(outcome)
        return future

    def on_view(self, listener: Any) -> None:
        """Listeners are not called: the tests replace the views directly."""

    on_hidden = on_view

    def notify(self, group: str, call: Any) -> None:
        self.calls.append(call)

    def show(
        self,
        leader: str | None = "n1",
        *,
        term: int = 3,
        serving: bool = True,
        topics: Mapping[str, TopicConfig] | None = None,
    ) -> None:
        known = dict(self.views["g1"].topics) if "g1" in self.views else {}
        self.views["g1"] = GroupView(leader, term, serving, {**known, **(topics or {})}, {}, {})


class Stage:
    """One node, `n1`, which leads `g1` unless a test changes that."""

    def __init__(
        self,
        *,
        authentication: bool = False,
        quotas: QuotaSettings | None = None,
        namespaces: bool = True,
        limits: Limits | None = None,
        engine: Any = None,
        member_liveness_ms: int = 10_000,
        spans: Any = None,
    ) -> None:
        self.now = 0.0
        self.engine = engine or FakeEngine()
        self.quorum = FakeQuorum()
        self.sealer = Sealer((SECRET,), CLUSTER)
        authority = Authority(
            lambda: self.quorum.state.users,
            self.quorum.barrier,
            self.sealer,
            operator_of(SECRET),
            required=authentication,
        )
        self.read_rules: dict[str, Rules] = {}
        """Broker groups in which other replicas than the leader may serve readers."""
        self.age_ns: int | None = None
        """The age of this replica's state."""
        local = LocalReads("n1", self.read_rules, self.engine.views, lambda group: self.age_ns)
        self.leaders = Leaders("n1", self.engine, self._believed, ADDRESSES.get)
        self.meters = Meters()
        self.keys = ReceiptKeys(self.quorum, self.sealer, lambda: 0)
        self.service = LogService(
            Parts(
                node="n1",
                cluster_id=CLUSTER,
                engine=self.engine,
                forwarder=None,  # type: ignore[arg-type]  # nothing here goes to another node
                metadata=self.quorum,
                leaders=self.leaders,
                callers=Callers(
                    authority,
                    Quotas(quotas or QuotaSettings(), lambda: self.now),
                    namespaces=namespaces,
                ),
                meters=self.meters,
                hosted={"g1": Hosted(LOG_ID, FILE_BYTES)},
                keys=self.keys,
                limits=limits or Limits(),
                local=local,
                spans=spans,
                member_liveness_ms=member_liveness_ms,
            )
        )
        self.engine.show()

    def _believed(self, group: str) -> str | None:
        view = self.engine.views.get(group)
        return None if view is None else view.leader

    def topic(
        self,
        name: str = "T",
        kind: str = "normal",
        queues: int = 4,
        permission: str = "rw",
        namespace: str = "",
    ) -> None:
        """Create a topic that is already in effect in `g1`."""
        names = {
            "ns": namespace,
            "name": name,
            "kind": kind,
            "queues": queues,
            "permission": permission,
        }
        self.quorum.command({"op": "create-topic", **names})
        config = self.quorum.state.topics[namespace, name].in_group("g1")
        assert config is not None
        self.engine.show(topics={f"{namespace}@{name}" if namespace else name: config})

    def moves(self, leader: str | None) -> None:
        """Move the leadership of `g1` to another node."""
        self.engine.show(leader, term=self.engine.views["g1"].term + 1, serving=leader == "n1")
        self.leaders.changed()
        if leader != "n1":
            self.service.led_elsewhere("g1")

    def user(self, name: str, secret: str, *grants: str) -> None:
        sealed = self.sealer.seal(name, secret)
        self.quorum.command(
            {
                "op": "create-user",
                "name": name,
                "secret": sealed,
                "grants": list(grants),
                "roles": [],
            }
        )


def signed(access_key: str, secret: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call signed by a user."""
    date_time = "20260102T030405Z"
    return (
        ("x-mq-client-id", "t1"),
        ("x-mq-date-time", date_time),
        ("authorization", sign(Credentials(access_key, secret), date_time)),
    )


class Wire:
    """The client side."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def unary(self, method: str, request: Any, metadata: Any = ()) -> Any:
        response = getattr(pb, f"{method}Response")
        stub = self.channel.unary_unary(SERVICE + method, response_deserializer=response.FromString)
        return await stub(
            request if isinstance(request, bytes) else request.SerializeToString(),
            metadata=metadata,
            timeout=20,
        )

    def fetch(self, metadata: Any = ()) -> Any:
        """A Fetch stream; requests and answers are bytes."""
        return self.channel.stream_stream(SERVICE + "Fetch")(metadata=metadata, timeout=30)

    def produce(self, metadata: Any = ()) -> Any:
        """A Produce stream; requests are bytes."""
        stub = self.channel.stream_stream(
            SERVICE + "Produce", response_deserializer=pb.ProduceResponse.FromString
        )
        return stub(metadata=metadata, timeout=30)


@asynccontextmanager
async def on_the_wire(stage: Stage) -> AsyncIterator[Wire]:
    server = call_server()
    server.add_service("ledgermq.v1.Log", stage.service.methods())
    port = await server.listen(Listening("127.0.0.1", 0))
    options = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
    try:
        yield Wire(channel)
    finally:
        await channel.close()
        await server.stop(0)
