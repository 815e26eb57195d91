"""`ledgermq.v1.Log` on the client port: assembles the service's methods; requests and answers are
bytes, and a client never sees an exception.

Each method is in the module named after it. This module wraps unary methods: it identifies the
caller, turns whatever ended a call into a `Problem` or a `Redirect`, and counts the result. Streams
do this themselves, because they answer while they run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.native import committing, fetching, joining, producing, verifying
from ledgermq.node.frontend.native.callers import Caller, Callers
from ledgermq.node.frontend.native.committing import Committer
from ledgermq.node.frontend.native.fetching import Fetcher
from ledgermq.node.frontend.native.joining import Joiner
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.locating import Locator
from ledgermq.node.frontend.native.open_streams import OpenStreams
from ledgermq.node.frontend.native.problems import Moved, as_error, problem
from ledgermq.node.frontend.native.producing import Hosted, Producing
from ledgermq.node.frontend.native.sources import Sources
from ledgermq.node.frontend.native.verifying import Verifier
from ledgermq.node.frontend.ports import (
    Engine,
    Metadata,
    Method,
    ServerCall,
    Spans,
    StreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire.meters import Meters
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.local_reads import LocalReads
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.proto import log_pb2
from ledgermq.proto.status import Code

SERVICE = "ledgermq.v1.Log"
LOG_PREFIX = f"{SERVICE}/"
"""Prefix of the name of every forwarded call that `LogService.execute` answers."""
KEYS_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service consists of and needs from its node. `hosted`: the broker groups with a
    replica here."""

    node: str
    cluster_id: str
    engine: Engine
    forwarder: Forwarder
    metadata: Metadata
    leaders: Leaders
    callers: Callers
    meters: Meters
    hosted: dict[str, Hosted]
    keys: ReceiptKeys
    limits: Limits
    local: LocalReads
    spans: Spans | None = None
    member_liveness_ms: int = 10_000
    tier: TierReads | None = None


class LogService:
    """The Log service of one node. Belongs to the loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        topics = Topics(parts.metadata)
        self.streams = OpenStreams()
        meter = parts.meters.of(f"Log/{fetching.METHOD}")
        sources = Sources(parts.engine, parts.tier)
        self._fetcher = Fetcher(
            parts.node,
            topics,
            sources,
            parts.leaders,
            parts.callers,
            streams=self.streams,
            meter=meter,
            local=parts.local,
            spans=parts.spans,
        )
        self._joiner = Joiner(
            parts.node,
            parts.engine,
            topics,
            parts.leaders,
            parts.callers,
            streams=self.streams,
            meter=parts.meters.of(f"Log/{joining.METHOD}"),
            liveness_ms=parts.member_liveness_ms,
            now_ns=time.monotonic_ns,
        )
        self._committer = Committer(
            parts.engine,
            topics,
            parts.leaders,
            parts.callers,
            self._joiner,
            forwarder=parts.forwarder,
            tiered=parts.tier is not None,
        )
        log_ids = self._log_ids = {name: hosted.log_id for name, hosted in parts.hosted.items()}
        self._locator = Locator(parts.cluster_id, log_ids, topics, parts.leaders, parts.callers)
        self._verifier = Verifier(
            parts.cluster_id,
            log_ids,
            known=topics.has_broker_group,
            engine=parts.engine,
            forwarder=parts.forwarder,
            callers=parts.callers,
            keys=parts.keys,
            method=f"{LOG_PREFIX}{verifying.METHOD}",
        )
        self._producing = Producing(
            parts.node,
            parts.cluster_id,
            parts.engine,
            parts.hosted,
            topics,
            leaders=parts.leaders,
            callers=parts.callers,
            keys=parts.keys,
            streams=self.streams,
            limits=parts.limits,
            spans=parts.spans,
        )

    def methods(self) -> dict[str, Method]:
        """The methods by name. Requests stay bytes, so that large ones are read without copying."""
        return {
            "Locate": self._unary("Locate", self._locator.locate),
            "Commit": self._unary("Commit", self._committer.commit),
            "Offsets": self._unary("Offsets", self._committer.offsets),
            joining.METHOD: StreamMethod(self._joiner.serve),
            fetching.METHOD: StreamMethod(self._fetcher.serve),
            verifying.METHOD: self._unary(verifying.METHOD, self._verifier.verify),
            producing.METHOD: StreamMethod(self._producing.serve),
        }

    def led_elsewhere(self, broker_group: str) -> None:
        """This node no longer serves the broker group: redirect its streams."""
        self.streams.end_of(broker_group)

    def take_in(self, broker_group: str, hosted: Hosted) -> None:
        """A broker group's replica was added to this node."""
        self._parts.hosted[broker_group] = hosted
        self._log_ids[broker_group] = hosted.log_id

    def let_go(self, broker_group: str) -> None:
        """A broker group's replica left this node: redirect its streams."""
        self._parts.hosted.pop(broker_group, None)
        self._log_ids.pop(broker_group, None)
        self.led_elsewhere(broker_group)

    def drain(self) -> None:
        """Before the node stops: end all streams after the answers that are under way."""
        self.streams.end_all()

    async def run(self) -> None:
        """The service's periodic work, until cancelled."""
        while True:
            await self._parts.keys.rotate_if_old()
            await asyncio.sleep(KEYS_EVERY_S)

    async def execute(self, group: str, method: str, request: bytes) -> Sequence[bytes]:
        """Answer a call of this service that a peer or the forwarder sent to this node, the leader.
        Raises CallRefused."""
        if method == committing.OWNED:
            return await self._committer.execute(group, request)
        if method != f"{LOG_PREFIX}{verifying.METHOD}":
            raise CallRefused(
                Refused("internal", detail=f"this node does not know the call {method}")
            )
        return await self._verifier.execute(group, request)

    def _unary(self, name: str, work: Callable[[Any, Caller], Awaitable[Any]]) -> UnaryMethod:
        """Wrap a unary method. `work` raises `Moved` if another node must be asked."""
        read, response = (
            getattr(log_pb2, f"{name}Request").FromString,
            getattr(log_pb2, f"{name}Response"),
        )
        meter, parts = self._parts.meters.of(f"Log/{name}"), self._parts

        async def serve(data: bytes, context: ServerCall) -> bytes:
            began, code = perf_counter(), int(Code.OK)
            try:
                answer = await work(read(data), await parts.callers.of(context))
            except Moved as moved:
                answer, code = (
                    response(redirect=await parts.leaders.settled(moved.broker_group)),
                    int(Code.HA_NOT_AVAILABLE),
                )
            except Exception as error:  # the client gets a problem, never an exception
                answer = response(problem=problem(as_error(error, parts.node, name)))
                code = answer.problem.code
            meter.count_code(code, perf_counter() - began)
            encoded: bytes = answer.SerializeToString()
            return encoded

        return UnaryMethod(serve)
