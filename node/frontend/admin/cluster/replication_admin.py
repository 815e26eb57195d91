"""Operator commands for the replication of a broker group, on any node: `ledgermq elect` and
`ledgermq replication`.

A forced election goes to the controller quorum like a replica's own request; before it, this module
finds out from every replica that answers which entries it may lose. A change of the kind of
replication is a membership change, and goes to the group's leader. So is another minimum of
replicas in sync; because it may be what a master lacks to serve, it goes to the master's node past
the forwarder's wait for a leader that serves. `raft/` decides what each may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledgermq.node.broker.calls.member_calls import ChangeMembers, GroupMembers, MembersChanged
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.admin.cluster.overview import Overview, replication_of
from ledgermq.node.frontend.ports import AdminCalls, Engine, OperatorCall
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.known_groups import of_broker_group
from ledgermq.node.frontend.routing.leader_calls import answering, ask_leader, ask_node
from ledgermq.node.runtime.deadlines import within
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import peer_pb2
from ledgermq.proto.status import Code, fail, refused
from ledgermq.proto.types import Role
from ledgermq.raft.config import Rule
from ledgermq.raft.ha_control import NO_EPOCH, ElectionRequest
from ledgermq.raft.transfer import Cause

METHOD = "ledgermq.v1.Admin/ChangeReplication"
QUORUM_WITHIN_S = 2.0
"""Shorter than the timeout of the caller, so that the caller receives the reason of a failure."""
LEADER_WITHIN_S = 5.0
COMMIT_WITHIN_S = 3.0
_RULES = {"raft": Rule.MAJORITY, "ha": Rule.IN_SYNC}

log = get_logger()


@dataclass(frozen=True, slots=True)
class Loss:
    """What a cluster loses with a master that lacks entries of other replicas. `entries`, `ms`:
    None if none are known."""

    words: str
    entries: int | None = None
    ms: int | None = None


class Replication:
    """The replication commands. `controller` is
    `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self, node: str, engine: Engine, forwarder: Forwarder, controller: Any, overview: Overview
    ) -> None:
        self._node = node
        self._engine = engine
        self._forwarder = forwarder
        self._controller = controller
        self._overview = overview

    def calls(self) -> AdminCalls:
        """The methods that it serves."""

        def known(serve: OperatorCall) -> OperatorCall:
            return of_broker_group(self._engine, self._controller, serve)

        return AdminCalls(
            {"ElectMaster": known(self.elect), "ChangeReplication": known(self.change)},
            {
                METHOD: answering(
                    pb.ChangeReplicationRequest, lambda _, request: self.change_here(request)
                )
            },
        )

    # -- a forced election

    async def elect(self, request: pb.ElectMasterRequest) -> pb.ElectMasterResponse:
        """Make a node the master of an HA group; with `preview` only report the loss. Raises
        LedgerError with the reason and a remedy."""
        await self._controller.barrier(QUORUM_WITHIN_S)
        group, node = request.broker_group, request.node
        told = reports_of(group, await self._overview.gather())
        if node not in self._controller.state.nodes:
            names = ", ".join(sorted(self._controller.state.nodes))
            raise fail(
                Code.PRECONDITION_FAILED,
                f"node {node} is not part of this cluster; its nodes are {names}",
            )
        if node not in told:
            raise fail(
                Code.PRECONDITION_FAILED,
                f"node {node} does not answer with a replica of broker group {group}; start it"
                " first",
            )
        own = told[node]
        if not own.HasField("ha"):
            what = f"broker group {group} elects its leader among its replicas (replication raft)"
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what}; hand leadership over with: ledgermq transfer {group} --to {node}",
            )
        agreed = self._controller.state.appointments.get(group)
        in_sync = (
            None if agreed is None or agreed.generation < own.ha.generation else agreed.in_sync
        )
        if not request.unclean and (objection := why_not(group, node, told, in_sync)):
            raise fail(Code.PRECONDITION_FAILED, objection)
        # Without an agreed in-sync set it is unknown who was in sync.
        unclean = request.unclean and (in_sync is None or in_sync.get(node) != own.ha.incarnation)
        loss = loss_of(node, told, unclean=unclean)
        response = pb.ElectMasterResponse(
            loss=loss.words, lost_entries=loss.entries, lost_ms=loss.ms
        )
        if request.preview:
            return response
        epoch = NO_EPOCH if agreed is None else agreed.epoch
        cause = Cause.FORCED if request.unclean else Cause.OPERATOR
        voters = {
            voter: told[voter].ha.incarnation if voter in told else "" for voter in own.voters
        }
        wish = ElectionRequest(
            node=node,
            incarnation=own.ha.incarnation,
            generation=own.ha.generation,
            epoch=epoch,
            term=own.term,
            voters=voters,
            cause=cause,
            asked_by=node,
        )
        granted = await self._controller.appoint(group, wish, QUORUM_WITHIN_S)
        facts = {"group": group, "master": node, "epoch": granted.epoch, "unclean": request.unclean}
        log.warning("an operator appointed a master", **facts, loss=loss.words)
        response.epoch = granted.epoch
        return response

    # -- another kind of replication

    async def change(self, request: pb.ChangeReplicationRequest) -> pb.ChangeReplicationResponse:
        """One step of a change; any node may be asked. Raises LedgerError."""
        if request.HasField("min_in_sync") is bool(request.to):
            raise fail(Code.BAD_REQUEST, "name either the kind of replication or min_in_sync")
        if not request.to:
            return await self._change_minimum(request)
        if request.to not in _RULES:
            raise fail(Code.BAD_REQUEST, f"replication is raft or ha, not {request.to!r}")
        if _RULES[request.to] is Rule.IN_SYNC:
            # Without a controller quorum, the group would have no master until there is one.
            await self._controller.barrier(QUORUM_WITHIN_S)
        return await ask_leader(
            self._forwarder,
            group=request.broker_group,
            method=METHOD,
            request=request,
            response=pb.ChangeReplicationResponse,
            within_s=within(LEADER_WITHIN_S),
        )

    async def _change_minimum(
        self, request: pb.ChangeReplicationRequest
    ) -> pb.ChangeReplicationResponse:
        group = request.broker_group
        master = self._forwarder.leader(group)
        if master is None:
            raise refused(
                "not-leader",
                f"broker group {group} has no master that node {self._node} knows of; see ledgermq"
                " status",
            )
        return await ask_node(
            self._forwarder,
            node=master,
            method=METHOD,
            request=request,
            response=pb.ChangeReplicationResponse,
            within_s=within(LEADER_WITHIN_S),
        )

    async def change_here(
        self, request: pb.ChangeReplicationRequest
    ) -> pb.ChangeReplicationResponse:
        """Change the replication in the log of a group that this node leads. The status carries a
        refusal that no other node would change. Raises CallRefused otherwise."""
        group = request.broker_group
        view = self._engine.views.get(group)
        if view is None:
            raise CallRefused(Refused("not-leader"))
        members, wanted, token = view.members, request.min_in_sync, self._engine.new_token()
        if not request.to:
            reason = f"asked for by an operator: min_in_sync {wanted}"
            call = ChangeMembers(token, "minimum", "", None, reason, minimum=wanted)
        elif members is not None and _RULES[request.to].value not in (
            members.rule,
            members.towards,
        ):
            reason = f"asked for by an operator: replication {request.to}"
            call = ChangeMembers(token, "rule", "", None, reason, rule=_RULES[request.to].value)
        else:
            call = None
        if call is not None:
            found = await self._changed(group, call)
            if isinstance(found, pb.ChangeReplicationResponse):
                return found
            members = found
        if members is None:
            return _ok(
                pb.ChangeReplicationResponse(
                    waits_for="the group's first record is not applied yet"
                )
            )
        done = not request.to or (
            members.rule == _RULES[request.to].value and members.towards is None
        )
        waits = (
            ""
            if done
            else (
                f"every voter ({', '.join(members.voters)}) confirms the change, entry"
                f" {members.index}"
            )
        )
        response = pb.ChangeReplicationResponse(
            done=done, waits_for=waits, replication=replication_of(members)
        )
        if members.minimum:
            response.min_in_sync = members.minimum
        return _ok(response)

    async def _changed(
        self, group: str, call: ChangeMembers
    ) -> GroupMembers | pb.ChangeReplicationResponse:
        """The members by the committed record of this change, or the answer that says why there is
        none yet. Raises CallRefused."""
        try:
            async with asyncio.timeout(COMMIT_WITHIN_S):
                outcome = await self._engine.call(group, call)
        except TimeoutError:
            who = "every voter has" if call.kind == "rule" else "the in-sync set has"
            return _ok(pb.ChangeReplicationResponse(waits_for=f"{who} confirmed the change"))
        if isinstance(outcome, Refused):
            if outcome.reason == "members-not-yet":
                return _ok(
                    pb.ChangeReplicationResponse(
                        waits_for=f"the group can take the change ({outcome.detail})"
                    )
                )
            if outcome.reason != "members-refused":
                raise CallRefused(outcome)
            error = refused(outcome.reason, f"broker group {group}: {outcome.detail}")
            return pb.ChangeReplicationResponse(
                status=pb.Status(code=int(error.code), message=error.message)
            )
        assert isinstance(outcome, MembersChanged), outcome
        return outcome.members


Report = pb.BrokerGroupInfo
"""The report of one replica; its own entry is the first of `replicas`."""


def reports_of(
    group: str, replies: Mapping[str, peer_pb2.NodeStatusReply | None]
) -> dict[str, Report]:
    """Node → the report of its replica of the group, for running replicas."""
    found = (
        info
        for reply in replies.values()
        if reply is not None
        for info in reply.groups
        if info.group == group and info.replicas
    )
    return {info.replicas[0].node: info for info in found if info.replicas[0].HasField("role")}


def why_not(
    group: str, node: str, told: Mapping[str, Report], in_sync: Mapping[str, str] | None
) -> str:
    """Why an operator may not appoint this master; empty if there is no objection."""
    for name, report in sorted(told.items()):
        if report.replicas[0].role == Role.LEADER.value:
            return (
                f"{name} is master of {group} (epoch {report.term}); hand over with: ledgermq"
                f" transfer {group} --to {node}"
            )
    hearing = sorted(name for name, report in told.items() if report.HasField("leader"))
    if hearing:
        master = told[hearing[0]].leader
        return (
            f"{', '.join(hearing)} heard the master {master} of {group} within the last second;"
            " check again (ledgermq status)"
        )
    if in_sync is None:
        what = (
            f"the controller quorum knows of no in-sync set of {group}; its replicas elect their"
            " first master themselves"
        )
        return (
            f"{what}; if the quorum lost its metadata, name a node that has everything with"
            " --unclean"
        )
    if in_sync.get(node) == told[node].ha.incarnation:
        return ""
    there = sorted(
        name for name in in_sync if name in told and told[name].ha.incarnation == in_sync[name]
    )
    if there:
        return (
            f"{', '.join(there)} of the in-sync set of {group} answers and is elected by itself,"
            " without loss; wait a moment"
        )
    missing = ", ".join(sorted(in_sync))
    what = (
        f"{node} is not in the in-sync set of {group} ({missing}), and entries that only its"
        " members hold would be lost"
    )
    return f"{what}; start one of them, or, if none can come back, add --unclean"


def loss_of(node: str, told: Mapping[str, Report], *, unclean: bool) -> Loss:
    """The entries that other replicas are known to have and the node has not. Entries of replicas
    that do not answer cannot be counted."""
    if not unclean:
        return Loss(f"nothing that was committed is lost: {node} is in sync")
    own = told[node]
    last = own.replicas[0].end_index
    known = max(max(report.replicas[0].end_index, report.commit_index) for report in told.values())
    newest_ms = max(report.ha.last_store_ms for report in told.values())
    stored = datetime.fromtimestamp(own.ha.last_store_ms / 1000, UTC).isoformat(
        timespec="milliseconds"
    )
    kept = f"{node} has entries up to {last}, the last one applied there stored at {stored}"
    silent = sorted(set(own.voters) - set(told))
    unknown = (
        f"; what only {', '.join(silent)} had cannot be counted, because no answer comes from there"
        if silent
        else ""
    )
    if known <= last:
        return Loss(f"{kept}; no replica that answers knows of a later one{unknown}")
    ms = max(0, newest_ms - own.ha.last_store_ms)
    return Loss(
        f"{kept}; {known - last} later ones, of {ms} ms, are known to exist and would be"
        f" lost{unknown}",
        known - last,
        ms,
    )


def _ok(response: pb.ChangeReplicationResponse) -> pb.ChangeReplicationResponse:
    response.status.code = int(Code.OK)
    return response
