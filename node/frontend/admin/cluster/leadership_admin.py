"""Operator commands for the leader of a broker group, on any node: hand leadership over, show why
it moved, leave before a planned stop, and begin a time epoch.

A transfer is forwarded to the leader, as every call is, and answered there. The history is
collected from every replica and merged here. `raft/` and `node/broker/parts/members/handovers.py`
decide what a handover does and when it is allowed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.member_calls import (
    BeginTimeEpoch,
    HandedOver,
    HandingOver,
    HandOver,
    TimeEpochBegun,
)
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.queries.leadership_history import LeadershipEvent, merged
from ledgermq.node.frontend.ports import AdminCalls, Engine, Metadata, OperatorCall
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.known_groups import of_broker_group
from ledgermq.node.frontend.routing.leader_calls import answering, ask_leader
from ledgermq.node.frontend.security.admin_guard import caller
from ledgermq.node.runtime.deadlines import within
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.status import Code, LedgerError, refused
from ledgermq.raft.transfer import Cause

TRANSFER_METHOD = "ledgermq.v1.Admin/TransferLeadership"
TIME_EPOCH_METHOD = "ledgermq.v1.Admin/BeginTimeEpoch"
HISTORY_METHOD = "ledgermq.v1.Admin/LeadershipHistory"
LEADER_WITHIN_S = 5.0
PEER_WITHIN_S = 1.5
ANSWER_NS = 500_000_000
PATIENCE_NS = 2_000_000_000
"""How long a handover continues after its caller last asked for it."""
LEAVE_WITHIN_NS = 1_000_000_000
ENGINE_WITHIN_S = 1.5
LAST = 10
LAST_MAX = 64

log = get_logger()


class Leadership:
    """The leadership commands of one node. `replicas`: broker group → its nodes."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        forwarder: Forwarder,
        controller: Metadata,
        replicas: Mapping[str, Sequence[str]],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._node = node
        self._engine = engine
        self._forwarder = forwarder
        self._controller = controller
        self._replicas = replicas
        self._now_ns = now_ns

    def calls(self) -> AdminCalls:
        """The methods that it serves."""

        def known(serve: OperatorCall) -> OperatorCall:
            return of_broker_group(self._engine, self._controller, serve)

        return AdminCalls(
            {
                "TransferLeadership": known(self.transfer),
                "BeginTimeEpoch": known(
                    lambda request: self.begin_time_epoch(request.broker_group, caller())
                ),
                "LeadershipHistory": known(self.history),
            },
            {
                TRANSFER_METHOD: answering(
                    admin_pb2.TransferLeadershipRequest,
                    lambda _, request: self.transfer_here(request),
                ),
                TIME_EPOCH_METHOD: answering(
                    peer_pb2.GroupTimeEpoch,
                    lambda group, request: self.begin_time_epoch_here(group, request.user),
                ),
                HISTORY_METHOD: answering(
                    admin_pb2.LeadershipHistoryRequest,
                    lambda _, request: self.history_here(request),
                ),
            },
        )

    # -- handing over

    async def transfer(
        self, request: admin_pb2.TransferLeadershipRequest
    ) -> admin_pb2.TransferLeadershipResponse:
        """Transfer leadership, from any node: forwards the request to the leader and returns its
        answer. Raises LedgerError."""
        return await ask_leader(
            self._forwarder,
            group=request.broker_group,
            method=TRANSFER_METHOD,
            request=request,
            response=admin_pb2.TransferLeadershipResponse,
            within_s=within(LEADER_WITHIN_S),
        )

    async def transfer_here(
        self, request: admin_pb2.TransferLeadershipRequest
    ) -> admin_pb2.TransferLeadershipResponse:
        """Transfer leadership away from this node, the leader. The status carries a refusal that no
        other node would change; raises CallRefused otherwise."""
        outcome = await self._hand_over(
            request.broker_group, request.to, Cause.OPERATOR, PATIENCE_NS, ANSWER_NS
        )
        if isinstance(outcome, Refused) and outcome.reason != "transfer-refused":
            raise CallRefused(outcome)
        if isinstance(outcome, Refused):
            error = refused(outcome.reason, outcome.detail)
            return admin_pb2.TransferLeadershipResponse(
                status=admin_pb2.Status(code=int(error.code), message=error.message)
            )
        response = admin_pb2.TransferLeadershipResponse(
            status=admin_pb2.Status(code=int(Code.OK)), done=isinstance(outcome, HandedOver)
        )
        if isinstance(outcome, HandingOver):
            response.lag_entries = outcome.lag_entries
        return response

    async def leave(self) -> None:
        """Before a planned stop: hand over all leaderships, waiting a second at most, and take over
        no leadership any more."""
        groups = self._engine.groups
        asked = (
            self._hand_over(group, None, Cause.PLANNED_STOP, LEAVE_WITHIN_NS, LEAVE_WITHIN_NS)
            for group in groups
        )
        try:
            async with asyncio.timeout(ENGINE_WITHIN_S):
                outcomes = await asyncio.gather(*asked)
        except TimeoutError:
            log.warning(
                "stopping without handover",
                reason="the engine does not answer; its disk may be slow",
            )
            return
        for group, outcome in zip(groups, outcomes, strict=True):
            if isinstance(outcome, HandedOver):
                log.info("leadership handed over", group=group, leader=outcome.leader)
            elif isinstance(outcome, HandingOver) or outcome.reason != "not-leader":
                reason = "not in time" if isinstance(outcome, HandingOver) else outcome.detail
                log.warning("stopping as leader", group=group, reason=reason)

    async def _hand_over(
        self, group: str, to: str | None, cause: Cause, patience_ns: int, answer_ns: int
    ) -> HandedOver | HandingOver | Refused:
        call = HandOver(
            self._engine.new_token(), to, cause, patience_ns, self._now_ns() + answer_ns
        )
        outcome = await self._engine.call(group, call)
        assert isinstance(outcome, HandedOver | HandingOver | Refused), outcome
        return outcome

    # -- time epochs

    async def begin_time_epoch(self, group: str, user: str) -> admin_pb2.BeginTimeEpochResponse:
        """Begin a time epoch, from any node. Raises LedgerError."""
        return await ask_leader(
            self._forwarder,
            group,
            method=TIME_EPOCH_METHOD,
            request=peer_pb2.GroupTimeEpoch(user=user),
            response=admin_pb2.BeginTimeEpochResponse,
            within_s=within(LEADER_WITHIN_S),
        )

    async def begin_time_epoch_here(
        self, group: str, user: str
    ) -> admin_pb2.BeginTimeEpochResponse:
        """Begin a time epoch in a broker group that this node leads. The status carries a refusal
        that no other node would change; raises CallRefused otherwise."""
        outcome = await self._engine.call(group, BeginTimeEpoch(self._engine.new_token(), user))
        if isinstance(outcome, Refused):
            if outcome.reason != "time-epoch-refused":
                raise CallRefused(outcome)
            error = refused(outcome.reason, outcome.detail)
            return admin_pb2.BeginTimeEpochResponse(
                status=admin_pb2.Status(code=int(error.code), message=error.message)
            )
        assert isinstance(outcome, TimeEpochBegun), outcome
        log.warning(
            "time epoch begun", group=group, before_ms=outcome.before_ms, ms=outcome.ms, user=user
        )
        status = admin_pb2.Status(code=int(Code.OK))
        return admin_pb2.BeginTimeEpochResponse(
            status=status, before_ms=outcome.before_ms, ms=outcome.ms
        )

    # -- the history

    async def history(
        self, request: admin_pb2.LeadershipHistoryRequest
    ) -> admin_pb2.LeadershipHistoryResponse:
        """The recorded leadership changes of all replicas that answer, merged into one answer."""
        group = request.broker_group
        nodes = sorted(self._replicas.get(group, ()))
        answers = await asyncio.gather(*(self._ask(node, request) for node in nodes))
        told = {
            node: answer for node, answer in zip(nodes, answers, strict=True) if answer is not None
        }
        silent = [node for node in nodes if node not in told]
        found = merged(group, told, silent, max(1, min(request.last or LAST, LAST_MAX)))
        return admin_pb2.LeadershipHistoryResponse(
            answer=found.answer, reason=found.reason, evidence=found.evidence
        )

    async def history_here(
        self, request: admin_pb2.LeadershipHistoryRequest
    ) -> admin_pb2.LeadershipHistoryResponse:
        """The leadership changes that this node's replica recorded."""
        response = admin_pb2.LeadershipHistoryResponse()
        if request.broker_group in self._engine.groups:
            response.events.extend(
                _packed(event)
                for event in await self._engine.run(
                    request.broker_group, lambda hosted: hosted.leaders()
                )
            )
        return response

    async def _ask(
        self, node: str, request: admin_pb2.LeadershipHistoryRequest
    ) -> list[LeadershipEvent] | None:
        deadline = asyncio.get_running_loop().time() + PEER_WITHIN_S
        try:
            responses = await self._forwarder.ask(
                node, HISTORY_METHOD, request.SerializeToString(), deadline
            )
            return [
                _unpacked(event)
                for event in admin_pb2.LeadershipHistoryResponse.FromString(responses[0]).events
            ]
        except (CallRefused, LedgerError, DecodeError, ValueError, IndexError):
            # Not reachable, or a different version.
            return None


def _packed(event: LeadershipEvent) -> admin_pb2.LeadershipEvent:
    return admin_pb2.LeadershipEvent(
        at_ms=event.at_ms,
        term=event.term,
        former=event.former,
        leader=event.leader,
        cause=int(event.cause),
        peer=event.peer,
        silent_ms=event.silent_ms,
    )


def _unpacked(event: admin_pb2.LeadershipEvent) -> LeadershipEvent:
    """Raises ValueError for a cause that this version does not know."""
    former = event.former if event.HasField("former") else None
    leader = event.leader if event.HasField("leader") else None
    return LeadershipEvent(
        at_ms=event.at_ms,
        term=event.term,
        former=former,
        leader=leader,
        cause=Cause(event.cause),
        peer=event.peer,
        silent_ms=event.silent_ms,
    )
