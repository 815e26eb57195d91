"""Operator commands for membership, on any node: `ledgermq member`.

A change concerns three parties: the controller's metadata (the addresses of a node, and what is
intended), the controller quorum (who votes there) and the log of each broker group (who replicates
it; only its leader decides). One call does as much as is possible now and says what it waits for. A
repeated call continues, on any node, because every step can be repeated. `controller/` and
`broker/` decide what each step means and refuse it if necessary.

    add          make the node known, reach it, give it a vote in the controller quorum, make it a learner of every group it hosts, and wait
                 until it has caught up; an observer gets no vote and becomes an observer of every
                 group it hosts
    promote      make the node a voter in every group where it is a learner; observers only on request
    remove       remove the node from every group and from the controller quorum, and forget it
    set-address  change the known addresses of the node
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ledgermq.node.broker.calls.member_calls import (
    ChangeMembers,
    GroupMembers,
    MembersChanged,
    MembersKind,
)
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.controller import voters
from ledgermq.node.controller.roster import Roster
from ledgermq.node.controller.state import ADDRESS_KINDS, JOINING, NODE_STATE, OBSERVER
from ledgermq.node.frontend.admin.answering import answered
from ledgermq.node.frontend.admin.cluster.overview import replication_of
from ledgermq.node.frontend.ports import AdminCalls, Engine
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.leader_calls import answering, ask_leader, ask_node
from ledgermq.node.replica.ports import Greetings, PeerLink
from ledgermq.node.runtime.deadlines import within
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.host_port import FORM, split
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.status import Code, LedgerError, fail, refused
from ledgermq.proto.workers import is_first, node_of

CHANGE_METHOD = "ledgermq.v1.Admin/ChangeMember"
STEP_WITHIN_S = 2.0
LEADER_WITHIN_S = 5.0
COMMIT_WITHIN_S = 3.0
CAUGHT_UP_ENTRIES = 500
"""A learner with at most this lag counts as caught up: under load a replica that keeps up is always
slightly behind."""

Kind = pb.ChangeMemberRequest.Kind
OBSERVER_TOO = (
    "an observer is promoted on purpose only: add --observer-too to give it a vote in the group"
)
_KINDS: Mapping[int, MembersKind] = {
    Kind.ADD: "add",
    Kind.PROMOTE: "promote",
    Kind.REMOVE: "remove",
}


class Members:
    """The membership commands. `controller` is `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        forwarder: Forwarder,
        controller: Any,
        roster: Roster,
        links: Mapping[str, PeerLink],
        peer_identities: Greetings,
    ) -> None:
        self._node = node
        self._engine = engine
        self._forwarder = forwarder
        self._controller = controller
        self._roster = roster
        self._links = links
        self._peer_identities = peer_identities

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {"ChangeMember": self.change, "ListMembers": lambda _: self.listed()},
            {CHANGE_METHOD: answering(pb.ChangeMemberRequest, self._answer)},
        )

    async def _answer(self, group: str, request: pb.ChangeMemberRequest) -> Any:
        """Without a group it is the whole request of a node that removes itself."""
        if group:
            return await self.change_here(group, request)
        return await answered("ChangeMember", self.change)(request, None)

    async def change(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        """One step of a change; any node may be asked. Raises LedgerError."""
        await self._controller.barrier()
        for group in request.broker_groups:
            if group not in self._controller.state.broker_groups:
                known = ", ".join(sorted(self._controller.state.broker_groups))
                raise fail(
                    Code.BAD_REQUEST, f"broker group {group!r} does not exist; known: {known}"
                )
        if request.kind == Kind.SET_ADDRESS:
            await self._set_address(request)
            return pb.ChangeMemberResponse(done=True)
        if request.kind == Kind.REMOVE:
            return await self._remove(request)
        if request.kind == Kind.PROMOTE:
            return await self._promote(request)
        if request.kind == Kind.ADD:
            return await self._add(request)
        raise fail(
            Code.BAD_REQUEST,
            "this node does not know that kind of change; use the same version of LedgerMQ on all"
            " nodes",
        )

    # -- the four kinds

    async def _set_address(self, request: pb.ChangeMemberRequest) -> None:
        if request.node not in self._controller.state.nodes:
            raise self._unknown(request.node)
        await self._controller.set_node(request.node, self._checked(request))

    async def _add(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        node = request.node
        known = self._controller.state.nodes.get(node)
        if request.HasField("addresses"):
            given = self._checked(request)
            if known is None or any(known.get(kind) != at for kind, at in given.items()):
                if known is not None and known.get(NODE_STATE) != JOINING:
                    # A wrong name must not lead clients away from a node that serves.
                    what = f"node {node} is part of this cluster already, at another address"
                    remedy = (
                        "see ledgermq member list; if the node has moved: ledgermq member"
                        f" set-address {node} ADDRESS"
                    )
                    raise fail(Code.PRECONDITION_FAILED, f"{what}; {remedy}")
                await self._controller.set_node(node, given, state=JOINING)
        elif known is None:
            raise fail(
                Code.BAD_REQUEST,
                f"node {node} is not known yet: give its address with --address HOST:PORT",
            )
        if not await self._reached(node):
            return pb.ChangeMemberResponse(waits_for=self._why_not_reached(node))
        level, reads = self._controller.state.level, self._reads_up_to(node)
        if reads is None:
            return pb.ChangeMemberResponse(waits_for=_ungreeted(node, self._node))
        if reads < level:
            # A spare node hosts no group yet that could refuse it.
            what = f"the cluster has feature level {level}, and node {node} reads up to {reads}"
            raise fail(Code.PRECONDITION_FAILED, f"{what}: upgrade {node} first")
        if request.observer:
            await self._let_listen(node)
        elif not request.broker_groups and is_first(node):
            await self._controller.set_voter(node, present=True)
        groups = list(request.broker_groups) or self._hosted_by(node)
        if not groups:
            # A spare node has nothing to catch up with; replicas are moved to it later.
            await self._controller.set_node(node, {}, state="member")
            return pb.ChangeMemberResponse(done=True)
        answers = []
        for group in groups:
            if node not in self._controller.state.broker_groups.get(group, ()):
                await self._controller.place_replica(group, node, present=True)
            answers.append(await self._at_leader(group, request))
        response = self._together(answers, caught_up=True)
        if request.observer and all(answer.done for answer in answers):
            await self._controller.set_node(node, {}, state=OBSERVER)
        return response

    async def let_in(self, node: str) -> None:
        """Give a joining node its vote in the controller quorum, if `add` stopped because the node
        did not answer then. With the vote it learns of the groups that it is to open. Raises what
        `Controller.set_voter` raises."""
        joins = self._controller.state.nodes.get(node, {}).get(NODE_STATE) == JOINING
        if joins and is_first(node) and node not in self._controller.health.voters:
            await self._controller.set_voter(node, present=True)

    async def _let_listen(self, node: str) -> None:
        """Prepare an observer, which never votes but learns the controller quorum's decisions.
        Raises PRECONDITION_FAILED if it votes."""
        if node in self._controller.health.voters:
            what = f"node {node} votes in the controller quorum, and an observer votes nowhere"
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what}; remove it first, and let it begin with an empty directory",
            )
        if not any(node in replicas for replicas in self._controller.state.broker_groups.values()):
            # Its own journal will begin with an entry that names no voters, so the quorum's journal
            # must name them.
            await self._controller.name_voters()

    async def _promote(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        node = request.node
        if node not in self._controller.state.nodes:
            raise self._unknown(node)
        groups = list(request.broker_groups) or self._groups_of(node)
        found = [await self._at_leader(group, self._question(node)) for group in groups]
        for group, answer in zip(groups, found, strict=True):
            if not answer.groups:
                what = f"node {node} is not a member of broker group {group}"
                raise fail(
                    Code.PRECONDITION_FAILED, f"{what}; add it first: ledgermq member add {node}"
                )
        observing = sorted(
            {row.broker_group for answer in found for row in answer.groups if row.role == OBSERVER}
        )
        if observing and not request.observer:
            what = f"node {node} is an observer of broker group {', '.join(observing)}"
            raise fail(Code.PRECONDITION_FAILED, f"{what}; {OBSERVER_TOO}")
        lagging = self._together(found, caught_up=True)
        if not lagging.done:
            return lagging
        answers = [await self._at_leader(group, request) for group in groups]
        if all(progress.role == "voter" for answer in answers for progress in answer.groups):
            await self._controller.set_node(node, {}, state="member")
        return self._together(answers, caught_up=False)

    async def _remove(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        node = request.node
        if node in self._controller.state.removed_nodes:
            return pb.ChangeMemberResponse(done=True)
        if node not in self._controller.state.nodes:
            raise self._unknown(node)
        if node == self._node:
            # This node would not see the end of its own removal.
            return await self._elsewhere(request)
        everywhere = not request.broker_groups
        if everywhere:
            health = self._controller.health
            lost = (
                voters.would_lose_quorum(health.voters, set(health.voters) - {node}, health.reached)
                if node in health.voters
                else None
            )
            if lost:
                raise fail(Code.PRECONDITION_FAILED, lost)
        answers = []
        for group in request.broker_groups or self._groups_of(node):
            answers.append(await self._at_leader(group, request))
            if answers[-1].done:
                await self._controller.place_replica(group, node, present=False)
        response = self._together(answers, caught_up=False)
        if response.done and everywhere:
            await self._controller.set_voter(node, present=False)
            await self._controller.remove_node(node)
        return response

    async def leader_answers(self, group: str) -> bool:
        """Whether a leader of the group answers now."""
        return bool(await self._progress_of(group))

    async def of_group(self, group: str) -> pb.ChangeMemberResponse:
        """All members of a group and its replication, as its leader knows them. Raises
        LedgerError."""
        return await self._at_leader(group, self._question(""))

    async def of_node(self, group: str, node: str) -> pb.MemberProgress | None:
        """One member of a group; None if the node is not a member. Raises LedgerError."""
        found = (await self._at_leader(group, self._question(node))).groups
        return found[0] if found else None

    async def changed(
        self, group: str, kind: pb.ChangeMemberRequest.Kind, node: str
    ) -> pb.ChangeMemberResponse:
        """Ask the group's leader for one change and return its progress. Raises LedgerError."""
        return await self._at_leader(group, pb.ChangeMemberRequest(kind=kind, node=node))

    # -- at the leader of a group

    async def change_here(
        self, group: str, request: pb.ChangeMemberRequest
    ) -> pb.ChangeMemberResponse:
        """Change the members in the log of a group that this node leads, or only report its
        members.

        The status carries a refusal that no other node would change. Raises CallRefused otherwise.
        """
        members = self._engine.views[group].members
        kind = _KINDS.get(request.kind)
        if (
            kind == "add"
            and request.observer
            and members is not None
            and request.node in {*members.nodes} - members.observers
        ):
            what = (
                f"broker group {group}: {request.node} is a {_role(members, request.node)} already"
            )
            error = fail(
                Code.PRECONDITION_FAILED,
                f"{what}; to make it an observer, remove it and add it again with an empty"
                " directory",
            )
            return pb.ChangeMemberResponse(
                status=pb.Status(code=int(error.code), message=error.message)
            )
        if kind is not None and not _so_already(members, kind, request.node):
            incarnation = (
                self._peer_identities.presented.get(group, {}).get(request.node)
                if kind == "add"
                else None
            )
            if kind == "add" and incarnation is None:
                waits = (
                    f"broker group {group}: node {request.node} has no replica known to the leader,"
                    f" {self._node}, yet"
                )
                return _ok(pb.ChangeMemberResponse(waits_for=waits))
            near = [
                name
                for name in (() if members is None else members.nodes)
                if node_of(name) == node_of(request.node)
            ]
            if kind == "add" and near:
                what = (
                    f"broker group {group} has a replica on {near[0]}, which is a worker of the"
                    f" same node as {request.node}"
                )
                error = fail(
                    Code.PRECONDITION_FAILED,
                    f"{what}: one failure would take both; remove {near[0]} from the group first",
                )
                return pb.ChangeMemberResponse(
                    status=pb.Status(code=int(error.code), message=error.message)
                )
            why = (
                "asked for by an operator:"
                f" {kind}{' as an observer' if request.observer and kind == 'add' else ''}"
            )
            token = self._engine.new_token()
            reads = self._reads_up_to(request.node) if kind == "add" else None
            if kind == "add" and reads is None:
                return _ok(
                    pb.ChangeMemberResponse(
                        waits_for=f"broker group {group}: {_ungreeted(request.node, self._node)}"
                    )
                )
            call = ChangeMembers(
                token,
                kind,
                request.node,
                incarnation,
                why,
                observer=request.observer,
                level_max=reads,
            )
            try:
                async with asyncio.timeout(COMMIT_WITHIN_S):
                    outcome = await self._engine.call(group, call)
            except TimeoutError:
                return _ok(
                    pb.ChangeMemberResponse(
                        waits_for=(
                            f"broker group {group}: a majority has not confirmed the change yet"
                        )
                    )
                )
            if isinstance(outcome, Refused):
                if outcome.reason == "members-not-yet":
                    return _ok(
                        pb.ChangeMemberResponse(waits_for=f"broker group {group}: {outcome.detail}")
                    )
                if outcome.reason != "members-refused":
                    raise CallRefused(outcome)
                error = refused(outcome.reason, f"broker group {group}: {outcome.detail}")
                return pb.ChangeMemberResponse(
                    status=pb.Status(code=int(error.code), message=error.message)
                )
            assert isinstance(outcome, MembersChanged), outcome
            members = outcome.members
        response = pb.ChangeMemberResponse(done=True)
        response.groups.extend(await self._progress(group, members, request.node))
        if members is not None:
            response.replication = replication_of(members)
        return _ok(response)

    async def _progress(
        self, group: str, members: GroupMembers | None, node: str
    ) -> list[pb.MemberProgress]:
        """The progress of one member, or of all members if `node` is empty."""
        if members is None:
            return []
        status = await self._engine.status(group)
        peers = {peer.node: peer for peer in status.peers}
        found = []
        for member in (
            members.nodes if not node else [name for name in members.nodes if name == node]
        ):
            progress = pb.MemberProgress(
                broker_group=group, node=member, role=_role(members, member)
            )
            if member == self._node:
                progress.lag_entries = max(0, status.end_index - status.durable_index)
            elif member in peers:
                peer = peers[member]
                if peer.durable_index is not None and not peer.left_behind:
                    progress.lag_entries = max(0, status.end_index - peer.durable_index)
                if peer.seconds_left is not None:
                    progress.seconds_left = peer.seconds_left
                if peer.lag_ms is not None:
                    progress.lag_ms = peer.lag_ms
            found.append(progress)
        return found

    # -- the list

    async def listed(self) -> pb.ListMembersResponse:
        """Every node with its addresses, and its progress as each broker group's leader knows it;
        groups that do not answer are left out."""
        await self._controller.barrier()
        state, health = self._controller.state, self._controller.health
        asked = sorted(state.broker_groups)
        answers = await asyncio.gather(*(self._progress_of(group) for group in asked))
        response = pb.ListMembersResponse()
        for node, known in sorted(state.nodes.items()):
            info = response.members.add(
                node=node, state=known.get(NODE_STATE, "member"), controller=node in health.voters
            )
            info.addresses.CopyFrom(
                pb.NodeAddresses(**{kind: known.get(kind, "") for kind in ADDRESS_KINDS})
            )
            info.up = node == self._node or (node in self._links and self._links[node].up)
            info.groups.extend(
                progress for answer in answers for progress in answer if progress.node == node
            )
        return response

    async def _progress_of(self, group: str) -> Sequence[pb.MemberProgress]:
        try:
            return (await self._at_leader(group, self._question(""))).groups
        except LedgerError:
            return ()

    # -- helpers

    async def _at_leader(
        self, group: str, request: pb.ChangeMemberRequest
    ) -> pb.ChangeMemberResponse:
        return await ask_leader(
            self._forwarder,
            group,
            method=CHANGE_METHOD,
            request=request,
            response=pb.ChangeMemberResponse,
            within_s=within(LEADER_WITHIN_S),
        )

    async def _elsewhere(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        other = next((name for name, link in sorted(self._links.items()) if link.up), None)
        if other is None:
            what = f"{self._node} is asked to remove itself and reaches no other node"
            raise fail(Code.PRECONDITION_FAILED, f"{what}; the last node cannot go")
        return await ask_node(
            self._forwarder,
            node=other,
            method=CHANGE_METHOD,
            request=request,
            response=pb.ChangeMemberResponse,
            within_s=within(LEADER_WITHIN_S),
        )

    def _checked(self, request: pb.ChangeMemberRequest) -> dict[str, str]:
        """The addresses of a request. Raises LedgerError if there are none, or one that is no
        address, or that another node has."""
        given = {
            kind: getattr(request.addresses, kind)
            for kind in ADDRESS_KINDS
            if getattr(request.addresses, kind)
        }
        for kind, at in given.items():
            try:
                port = split(at)[1]
            except ValueError:
                port = 0
            if not port:
                # The quorum would hand it to every node.
                raise fail(
                    Code.BAD_REQUEST, f"the {kind} address {at!r} is not an address: give {FORM}"
                )
        for name, known in self._controller.state.nodes.items():
            # Workers of one node share the addresses for clients and for HTTP.
            shared = ("client", "http") if node_of(name) == node_of(request.node) else ()
            taken = set(known.values()) & {at for kind, at in given.items() if kind not in shared}
            if name != request.node and taken:
                raise fail(Code.PRECONDITION_FAILED, f"{min(taken)} is an address of node {name}")
        if not given:
            raise fail(Code.BAD_REQUEST, "an address is needed: HOST:PORT")
        return given

    async def _reached(self, node: str) -> bool:
        """Whether the stream to the node is up, now or within STEP_WITHIN_S."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within(STEP_WITHIN_S)
        while not (node == self._node or (node in self._links and self._links[node].up)):
            if loop.time() > end:
                return False
            await asyncio.sleep(0.05)
        return True

    def _reads_up_to(self, node: str) -> int | None:
        """The highest feature level that a node reads, from its greetings; None before the first
        one. This node greets nobody of its name."""
        return LEVEL_MAX if node == self._node else self._peer_identities.level_max.get(node)

    def _why_not_reached(self, node: str) -> str:
        link = self._links.get(node)
        if link is not None and link.refusal is not None:
            return link.refusal
        where = self._roster.address(node, "peer")
        return (
            f"node {node} does not answer at {where} (its peer port); start it there with join:"
            " true in its configuration"
        )

    def _hosted_by(self, node: str) -> list[str]:
        """The broker groups of which the node reported a replica."""
        return sorted(
            group for group, nodes in self._peer_identities.presented.items() if node in nodes
        )

    def _groups_of(self, node: str) -> list[str]:
        """The broker groups that have, or should have, a replica on the node."""
        views = self._engine.views
        meant = {
            group
            for group, replicas in self._controller.state.broker_groups.items()
            if node in replicas
        }
        return sorted(
            meant
            | {
                group
                for group, view in views.items()
                if view.members is not None and node in view.members.nodes
            }
        )

    @staticmethod
    def _question(node: str) -> pb.ChangeMemberRequest:
        return pb.ChangeMemberRequest(kind=Kind.UNKNOWN, node=node)

    @staticmethod
    def _together(
        answers: Iterable[pb.ChangeMemberResponse], *, caught_up: bool
    ) -> pb.ChangeMemberResponse:
        """Merge the answers of several groups. With `caught_up`, the answer is done only if the
        node has caught up in all of them."""
        response = pb.ChangeMemberResponse(done=True)
        waits = []
        for answer in answers:
            response.groups.extend(answer.groups)
            if not answer.done:
                waits.append(answer.waits_for)
            elif caught_up:
                waits += [
                    f"broker group {progress.broker_group}: {progress.node} lacks "
                    + (
                        f"{progress.lag_entries} entries"
                        if progress.HasField("lag_entries")
                        else "an unknown number of entries"
                    )
                    for progress in answer.groups
                    if not progress.HasField("lag_entries")
                    or progress.lag_entries > CAUGHT_UP_ENTRIES
                ]
        response.done = not waits
        response.waits_for = "; ".join(waits)
        return response

    def _unknown(self, node: str) -> LedgerError:
        names = ", ".join(sorted(self._controller.state.nodes))
        return fail(
            Code.PRECONDITION_FAILED,
            f"node {node} is not part of this cluster; its nodes are {names}",
        )


def _role(members: GroupMembers, node: str) -> str:
    if node in members.voters:
        return "voter"
    return OBSERVER if node in members.observers else "learner"


def _ungreeted(node: str, here: str) -> str:
    return f"node {node} has not greeted {here} yet, which therefore does not know what it reads"


def _so_already(members: GroupMembers | None, kind: MembersKind, node: str) -> bool:
    if members is None:
        return False
    wanted = {"add": members.nodes, "promote": members.voters}
    return node not in members.nodes if kind == "remove" else node in wanted[kind]


def _ok(response: pb.ChangeMemberResponse) -> pb.ChangeMemberResponse:
    response.status.code = int(Code.OK)
    return response
