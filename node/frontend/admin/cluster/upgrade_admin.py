"""`ledgermq upgrade finish`, on any node: raises the feature level of every broker group, and then
that of the cluster.

Why there are levels, and what they promise: docs/decisions/2026-11-23-negotiated-versions.md. What
holds here:

1. Nothing is assumed of a node. Directly before each record, and before the command to the
   controller, every node of the cluster and every member of the group has answered from its present
   process that it reads the level. A node that does not answer, or reads less, is named, and the
   level stays.
2. The group refuses the record if a member, committed or not, was not among those asked, and
   refuses a later member that reads less (`node/broker/parts/members/memberships.py`). So the gap
   between the question and the record admits nobody. A member that is replaced by an older program
   within that gap stops at the record with status 76, before it applies anything.
3. A log is raised by its own leader, by one level per record. The level of the controller rests on
   no log, and no log rests on it: it is raised last, when every broker group has the level, and
   tells leaders of groups created later what to raise theirs to.
4. Every step can be repeated, at any node. A group that has the level is left alone, and a call
   that was interrupted, or whose answer was lost, is simply made again: what is in force is read
   from the logs and the controller, and nothing else is remembered.
5. Only an operator's call begins to raise a level. It cannot be lowered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.node.broker.calls.member_calls import RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Kept
from ledgermq.node.broker.calls.outcome import AGAIN, CallRefused, Refused
from ledgermq.node.frontend.admin.cluster.overview import Overview
from ledgermq.node.frontend.ports import AdminCalls, Engine
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.leader_calls import accepted, answering
from ledgermq.node.frontend.security.admin_guard import caller
from ledgermq.node.runtime.deadlines import within
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import peer_pb2
from ledgermq.proto.levels import FIRST_LEVEL
from ledgermq.proto.records.control import LevelRecord
from ledgermq.proto.status import Code, LedgerError, fail, refused

RAISE_METHOD = "ledgermq.v1.Admin/RaiseGroup"
STEP_WITHIN_S = 1.0
LEADER_WITHIN_S = 5.0
COMMIT_WITHIN_S = 3.0

Replies = Mapping[str, peer_pb2.NodeStatusReply | None]

log = get_logger()


class Upgrades:
    """The upgrade commands of one node. `controller` is
    `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self, engine: Engine, forwarder: Forwarder, controller: Any, overview: Overview
    ) -> None:
        self._engine = engine
        self._forwarder = forwarder
        self._controller = controller
        self._overview = overview

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {"FinishUpgrade": lambda _: self.finish(caller())},
            {
                RAISE_METHOD: answering(
                    peer_pb2.GroupRaise,
                    lambda group, request: self.raise_here(group, request.level, request.user),
                )
            },
        )

    async def finish(self, user: str) -> pb.FinishUpgradeResponse:
        """Raise everything that is below the highest level that a node reads, for `user`. Raises
        LedgerError with what is in the way."""
        await self._controller.barrier()
        replies = await self._overview.gather()
        response = pb.FinishUpgradeResponse(level=max(map(_reads, replies.values())))
        self._require(replies, (), response.level)
        asked: set[str] = set()
        end = asyncio.get_running_loop().time() + STEP_WITHIN_S
        # A group may be created while the others are raised.
        while missing := sorted(self._controller.state.broker_groups.keys() - asked):
            for group in missing:
                if response.raised and asyncio.get_running_loop().time() > end:
                    # The caller's deadline must not pass before it hears of the progress.
                    answer = pb.FinishUpgradeResponse(waits_for="its turn")
                else:
                    answer = await self._raise(group, response.level, user)
                response.raised.extend(answer.raised)
                if not answer.done:
                    response.waits_for = f"broker group {group}: {answer.waits_for}"
                    response.changed = bool(response.raised)
                    return response
            asked.update(missing)
            await self._controller.barrier()
        response.changed = bool(response.raised)
        while self._controller.state.level < response.level:
            level = self._controller.state.level + 1
            self._require(await self._overview.gather(), (), level)
            await self._controller.raise_level(level)
            await self._controller.barrier()
            log.info("feature level of the cluster raised", feature_level=level, user=user)
            response.changed = True
        response.done = True
        return response

    async def _raise(self, group: str, level: int, user: str) -> pb.FinishUpgradeResponse:
        """Ask the leader of a group, wherever it is. Raises LedgerError for what only an operator
        can remove."""
        deadline = asyncio.get_running_loop().time() + within(LEADER_WITHIN_S)
        request = peer_pb2.GroupRaise(level=level, user=user).SerializeToString()
        try:
            answers = await self._forwarder.submit(
                group, RAISE_METHOD, {}, request, deadline, repeatable=True
            )
        except CallRefused as refusal:
            if refusal.refused.reason in AGAIN:
                return pb.FinishUpgradeResponse(
                    waits_for=refusal.refused.detail
                    or f"no answer of its leader ({refusal.refused.reason})"
                )
            raise refused(
                refusal.refused.reason, f"broker group {group}: {refusal.refused.detail}"
            ) from refusal
        return accepted(pb.FinishUpgradeResponse.FromString(answers[0]))

    async def raise_here(self, group: str, level: int, user: str) -> pb.FinishUpgradeResponse:
        """Raise a group that this node leads, record by record. The status carries a refusal that
        no other node would change; raises CallRefused otherwise."""
        response = pb.FinishUpgradeResponse(status=pb.Status(code=int(Code.OK)))
        try:
            for step in range(self._engine.views[group].level + 1, level + 1):
                replies = await self._overview.gather()
                self._require(replies, self._engine.views[group].in_effect, step)
                asked = frozenset(node for node, reply in replies.items() if _reads(reply) >= step)
                call = RaiseLevel(self._engine.new_token(), LevelRecord(step, user), asked)
                async with asyncio.timeout(within(COMMIT_WITHIN_S)):
                    outcome = await self._engine.call(group, call)
                if isinstance(outcome, Refused):
                    if outcome.reason != "members-not-yet":
                        raise CallRefused(outcome)
                    response.waits_for = outcome.detail
                    return response
                assert isinstance(outcome, Kept), outcome
                log.info("feature level raised", group=group, feature_level=step, user=user)
                response.raised[:] = [group]
        except LedgerError as error:
            return pb.FinishUpgradeResponse(
                status=pb.Status(code=int(error.code), message=error.message)
            )
        except TimeoutError:
            response.waits_for = "a majority has not confirmed the level yet"
            return response
        response.done = True
        return response

    async def raise_local(self, group: str, level: int) -> str:
        """Raise a group that this node leads to the level that the cluster has. Returns why it has
        not got the level yet, or ""."""
        try:
            answer = await self.raise_here(group, level, "")
        except CallRefused as refusal:
            return str(refusal)
        return answer.waits_for or answer.status.message

    def _require(self, replies: Replies, members: Iterable[str], level: int) -> None:
        """Check that every node of the cluster, and every member, reads the level. Raises
        LedgerError that names those that are in the way."""
        reasons = in_the_way(replies, {*self._overview.nodes, *members}, level)
        if reasons:
            raise fail(
                Code.PRECONDITION_FAILED,
                f"the upgrade to feature level {level} cannot be finished: {'; '.join(reasons)}",
            )


def _reads(reply: peer_pb2.NodeStatusReply | None) -> int:
    """The highest level that a node reads; 0 if it does not answer. A program that states none
    reads the first level."""
    return 0 if reply is None else reply.node.level_max or FIRST_LEVEL


def in_the_way(replies: Replies, nodes: Iterable[str], level: int) -> list[str]:
    """Which of these nodes do not read the level, as far as they answered, and what to do."""
    known = {node: _reads(replies.get(node)) for node in sorted(nodes)}
    return [
        (
            f"node {node} runs LedgerMQ {reply.node.version}, which reads up to level {reads}:"
            " upgrade it"
            if (reply := replies.get(node)) is not None
            else (
                f"node {node} does not answer: start it or, if it is gone for good, remove it"
                f" (ledgermq member remove {node})"
            )
        )
        for node, reads in known.items()
        if reads < level
    ]
