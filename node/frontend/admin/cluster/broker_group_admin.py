"""Operator commands for broker groups, on any node: add and list groups, move a replica, set the
preferred leader, plan a balance.

As in `member_admin.py`, one call does as much as is possible now and says what it waits for; a
repeated call continues, on any node. The controller quorum records what was begun; no process keeps
it. Every change of replicas goes to the group's leader, which refuses a change that would cost the
group its quorum. A move therefore first adds and promotes the new replica, then hands leadership
over, and only then removes the old replica.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from ledgermq.node.controller.broker_groups import GroupSpec, Move, fewest_replicas, spec_settings
from ledgermq.node.controller.roster import Roster
from ledgermq.node.controller.state import OBSERVER, may_vote
from ledgermq.node.frontend.admin.cluster.balancing import Facts, GroupFacts, Plan, TopicFacts, plan
from ledgermq.node.frontend.admin.cluster.leadership_admin import Leadership
from ledgermq.node.frontend.admin.cluster.member_admin import CAUGHT_UP_ENTRIES, Members
from ledgermq.node.frontend.ports import AdminCalls
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.replica.ports import PeerLink
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import DEFAULT_MIN_IN_SYNC, BrokerGroup
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import is_dead_letter_topic, is_system_name
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.proto.types import TopicKind
from ledgermq.proto.workers import node_of

DEFAULT_COUNT = 3
GO_ON = "then run the same command again: it continues"
Kind = pb.ChangeMemberRequest.Kind

log = get_logger()


OWN_FIELDS = frozenset({"replicas", "replication", "preferred_leader", "created_ms"})
"""Settings that the list shows in fields of their own, or that only the cluster sets."""


def _settings_texts(spec: GroupSpec) -> dict[str, str]:
    """The other settings a group was created with, in the form that `BrokerGroups.add` reads."""
    found = {key: value for key, value in spec.settings.items() if key not in OWN_FIELDS}
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()
    }


class BrokerGroups:
    """`controller` is `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self,
        config: NodeConfig,
        controller: Any,
        members: Members,
        leadership: Leadership,
        leaders: Forwarder,
        roster: Roster,
        links: Mapping[str, PeerLink],
    ) -> None:
        self._config = config
        self._controller = controller
        self._members = members
        self._leadership = leadership
        self._leaders = leaders
        self._roster = roster
        self._links = links
        self._replication: dict[str, str] = {}
        """The replication of each broker group as its leader last stated it: the settings are those
        that the group was created with."""

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {
                "AddBrokerGroup": self.add,
                "ListBrokerGroups": lambda _: self.listed(),
                "MoveReplica": self.move,
                "PreferLeader": self.prefer,
                "PlanRebalance": lambda _: self.planned(),
            }
        )

    # -- a new group

    async def add(self, request: pb.AddBrokerGroupRequest) -> pb.AddBrokerGroupResponse:
        """Begin a broker group, or report its progress if it was begun. Raises LedgerError."""
        await self._controller.barrier()
        state, name = self._controller.state, request.name
        known = state.specs.get(name)
        founders = list(request.replicas)
        if not founders and known is not None:
            founders = list(known.founders)
            if request.count not in (0, len(founders)):
                what = f"broker group {name} exists, begun with {len(founders)} replicas"
                raise fail(
                    Code.PRECONDITION_FAILED,
                    f"{what}; move them with ledgermq move-replica, or choose another name",
                )
        if name not in state.broker_groups:
            if is_system_name(name):
                raise fail(
                    Code.BAD_REQUEST, f"the broker group name {name!r} is reserved; choose another"
                )
            founders = founders or self._chosen(request.count)
            self._check_all_there()
        group = self._described(name, founders, request.settings)
        spec, created = await self._controller.add_broker_group(
            name, {**spec_settings(group), "replicas": list(group.replicas)}
        )
        for node in spec.founders:
            await self._members.let_in(node)
        response = pb.AddBrokerGroupResponse(
            replicas=spec.founders, created=created, preferred=spec.leader_wanted
        )
        response.waits_for = await self._not_yet(name, spec)
        response.done = not response.waits_for
        return response

    def _chosen(self, count: int) -> list[str]:
        """The nodes with the fewest replicas; `count` of them, by default DEFAULT_COUNT. Raises
        LedgerError if too few nodes answer."""
        state = self._controller.state
        there = [node for node in may_vote(state) if self._up(node)]
        machines = sorted({node_of(node) for node in there})
        wanted = count or min(DEFAULT_COUNT, len(machines))
        if wanted > len(machines):
            what = (
                f"a broker group with {wanted} replicas needs as many nodes, and {len(machines)}"
                f" answer: {', '.join(machines)}"
            )
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what}; start or add nodes (ledgermq member add), or give a lower --count",
            )
        return list(fewest_replicas(state.broker_groups, there, wanted))

    def _check_all_there(self) -> None:
        missing = sorted(node for node in self._controller.state.nodes if not self._up(node))
        if missing:
            what = (
                "before a broker group begins, every node must confirm that it has no replica of it"
            )
            remedy = (
                f"start {missing[0]}, or remove it for good: ledgermq member remove {missing[0]}"
            )
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what}, and {', '.join(missing)} does not answer; {remedy}",
            )

    def _described(
        self, name: str, founders: Sequence[str], settings: Mapping[str, str]
    ) -> BrokerGroup:
        given: dict[str, Any] = {}
        for key, text in settings.items():
            if key in ("name", "replicas", "created_ms"):
                raise fail(
                    Code.BAD_REQUEST,
                    f"{key} cannot be set here; for the settings see: ledgermq config example",
                )
            try:
                given[key] = yaml.safe_load(text)
            except yaml.YAMLError:
                given[key] = text
        own = next((group for group in self._config.cluster.groups), None)
        if "data_file_bytes" not in given and own is not None:
            # A cluster that began with small files keeps using them.
            given["data_file_bytes"] = own.data_file_bytes
        try:
            return BrokerGroup(
                name=name, replicas=tuple(founders), created_ms=time.time_ns() // 1_000_000, **given
            )
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "its settings"
            remedy = "correct it (the settings of a broker group: ledgermq config example)"
            what = f"broker group {name!r}: {where}: {first['msg'].removeprefix('Value error, ')}"
            raise fail(Code.BAD_REQUEST, f"{what}; {remedy}") from error

    async def _not_yet(self, name: str, spec: GroupSpec) -> str:
        """What a new group waits for; empty if it serves."""
        try:
            members = await self._of_group(name)
        except LedgerError as error:
            return f"broker group {name} has no leader yet ({error.message})"
        lacking = sorted(found.node for found in members if not found.HasField("lag_entries"))
        if lacking:
            return (
                f"broker group {name}: the leader has not heard from the replica on"
                f" {', '.join(lacking)} yet"
            )
        return ""

    # -- the list

    async def listed(self) -> pb.ListBrokerGroupsResponse:
        """Every broker group. For a group without a leader, the facts that only a leader knows are
        absent."""
        await self._controller.barrier()
        state = self._controller.state
        names = sorted(state.broker_groups)
        answers = await asyncio.gather(*(self._asked(name) for name in names))
        response = pb.ListBrokerGroupsResponse()
        for name, members in zip(names, answers, strict=True):
            spec = state.specs.get(name, GroupSpec())
            entry = response.groups.add(
                broker_group=name,
                replicas=sorted(state.broker_groups[name]),
                leader=self._leaders.leader(name) if members else None,
                preferred=spec.leader_wanted,
                replication=self._replication_of(name),
                queues=sum(topic.placement.get(name, 0) for topic in state.topics.values()),
                members=members,
                settings=_settings_texts(spec),
            )
            if spec.move is not None:
                entry.move.from_node, entry.move.to_node = spec.move.source, spec.move.target
        return response

    async def _asked(self, name: str) -> Sequence[pb.MemberProgress]:
        try:
            return await self._of_group(name)
        except LedgerError:
            # Only a leader knows the progress of the members.
            return ()

    async def _of_group(self, name: str) -> Sequence[pb.MemberProgress]:
        """The members of a group, as its leader knows them. Raises LedgerError."""
        answer = await self._members.of_group(name)
        if answer.replication:
            self._replication[name] = answer.replication
        return answer.groups

    def _replication_of(self, name: str) -> str:
        return self._replication.get(name) or str(self._settings(name).get("replication", "raft"))

    # -- moving a replica

    async def move(self, request: pb.MoveReplicaRequest) -> pb.MoveReplicaResponse:
        """One step of a move; any node may be asked. Raises LedgerError."""
        await self._controller.barrier()
        group, move = request.broker_group, Move(request.from_node, request.to_node)
        state = self._controller.state
        if group not in state.broker_groups:
            raise fail(
                Code.BAD_REQUEST,
                f"broker group {group!r} does not exist; known:"
                f" {', '.join(sorted(state.broker_groups))}",
            )
        for node in (move.source, move.target):
            if node not in state.nodes:
                known = ", ".join(sorted(state.nodes))
                raise fail(
                    Code.PRECONDITION_FAILED,
                    f"node {node} is not part of this cluster; its nodes are {known}",
                )
        spec = state.specs.get(group, GroupSpec())
        roles = await self._roles(group, move)
        if request.abort:
            return await self._aborted(group, move, spec, roles)
        if spec.move != move:
            if (
                move == spec.moved
                and roles.get(move.target) == "voter"
                and move.source not in roles
            ):
                return self._moved(group, move)
            self._check_move(group, move, roles)
            await self._controller.begin_move(group, move)
        await self._members.let_in(move.target)
        return await self._move_on(group, move, roles)

    async def _roles(self, group: str, move: Move) -> dict[str, str]:
        """The role of each member. Raises LedgerError; if too few replicas answer for an election,
        the error names the missing ones."""
        try:
            return {member.node: member.role for member in await self._of_group(group)}
        except LedgerError:
            meant = set(self._controller.state.broker_groups[group])
            # Only a leader knows how far the move is, so a quorum at any of its stages suffices.
            stages = (meant, meant - {move.target}, meant - {move.source})
            if not self._elects(group) or any(
                len(self._there(stage)) * 2 > len(stage) for stage in stages
            ):
                raise
            missing = ", ".join(sorted(meant - self._there(meant)))
            what = (
                f"broker group {group} has no quorum: of its {len(meant)} replicas {missing} do not"
                " answer"
            )
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what}; start those first, then run the same command again",
            ) from None

    def _check_move(self, group: str, move: Move, roles: Mapping[str, str]) -> None:
        """Raises LedgerError for a move that must not begin."""
        source, target = move.source, move.target
        shown = ", ".join(sorted(roles))
        if source not in roles:
            raise fail(
                Code.PRECONDITION_FAILED,
                f"node {source} has no replica of broker group {group}; its replicas are on"
                f" {shown}",
            )
        if source == target:
            raise fail(
                Code.PRECONDITION_FAILED,
                f"a replica moves to another node, not from {source} to {source}; name another one",
            )
        for node, meant in (
            (source, "moving its replica would give another node a vote"),
            (target, "the replica would have to vote"),
        ):
            if roles.get(node) == OBSERVER:
                what = f"node {node} is an observer of broker group {group}, and {meant}"
                remedy = (
                    "name another node, or first give it a vote on purpose: ledgermq member"
                    f" promote {node} --observer-too"
                )
                raise fail(Code.PRECONDITION_FAILED, f"{what}; {remedy}")
        if roles.get(target) == "voter":
            what = f"node {target} has a replica of broker group {group} already"
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what} (its replicas are on {shown}); name a node that has none",
            )
        if node_of(source) == node_of(target):
            what = (
                f"{source} and {target} are workers of one node, which would have two replicas of"
                f" broker group {group} for a while"
            )
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what}; move the replica to another node, and from there to {target}",
            )
        if not self._up(target):
            where = self._roster.address(target, "peer")
            raise fail(
                Code.PRECONDITION_FAILED,
                f"node {target} is down: it does not answer at {where} (its peer port); start it"
                " first",
            )
        self._check_enough(group, move, roles, "then move the replica")

    def _check_enough(self, group: str, move: Move, roles: Mapping[str, str], then: str) -> None:
        """Check that the group can commit while the replica moves: it has one more voter for a
        time, then as many as now. In both stages the nodes needed to commit must answer: a
        majority, or the minimum in sync of an HA group. Raises LedgerError."""
        voters = {node for node, role in roles.items() if role == "voter"}
        for wanted in (voters | {move.target}, (voters | {move.target}) - {move.source}):
            there = self._there(wanted)
            needed = len(wanted) // 2 + 1 if self._elects(group) else self._least_in_sync(group)
            if len(there) < needed:
                missing = ", ".join(sorted(wanted - there))
                what = (
                    f"broker group {group} would have {len(wanted)} voters of which only"
                    f" {len(there)} answer (missing: {missing})"
                )
                lost = (
                    "it would lose its quorum"
                    if self._elects(group)
                    else f"it demands {needed} in sync"
                )
                raise fail(Code.PRECONDITION_FAILED, f"{what}: {lost}; start those first, {then}")

    async def _move_on(
        self, group: str, move: Move, roles: Mapping[str, str]
    ) -> pb.MoveReplicaResponse:
        """Continue the move from its current stage as far as possible now."""
        progress = await self._members.of_node(group, move.target)
        if progress is None or not progress.role:
            answer = await self._changed(group, Kind.ADD, move.target, move, roles)
            if not answer.done:
                return self._waits("open", answer.waits_for)
            progress = next(iter(answer.groups), None)
        if progress is None:
            return self._waits(
                "open", f"broker group {group}: node {move.target} is not a member yet"
            )
        if progress.role != "voter":
            lag = progress.lag_entries if progress.HasField("lag_entries") else None
            if lag is None and not self._up(move.target):
                where = (
                    f"does not answer at {self._roster.address(move.target, 'peer')} (its peer"
                    " port)"
                )
                return self._waits(
                    "catch-up", f"broker group {group}: node {move.target} {where}", progress
                )
            if lag is None or lag > CAUGHT_UP_ENTRIES:
                lacks = "an unknown number of entries" if lag is None else f"{lag} entries"
                return self._waits(
                    "catch-up", f"broker group {group}: {move.target} lacks {lacks}", progress
                )
            answer = await self._changed(group, Kind.PROMOTE, move.target, move, roles)
            if not answer.done:
                return self._waits("promote", answer.waits_for, progress)
        return await self._let_source_go(group, move, roles)

    async def _let_source_go(
        self, group: str, move: Move, roles: Mapping[str, str]
    ) -> pb.MoveReplicaResponse:
        """The new replica votes: the source hands over leadership if it leads, and is removed."""
        if self._leaders.leader(group) == move.source:
            waits = await self._handed_over(group, move.target, move, roles)
            if waits:
                return self._waits("hand-over", waits)
        if move.source in roles:
            removed = await self._changed(group, Kind.REMOVE, move.source, move, roles)
            if not removed.done:
                return self._waits("remove", removed.waits_for)
        await self._controller.set_node(move.target, {}, state="member")
        await self._controller.end_move(group, move, done=True)
        log.info("replica moved", group=group, source=move.source, target=move.target)
        return self._moved(group, move)

    async def _changed(
        self,
        group: str,
        kind: pb.ChangeMemberRequest.Kind,
        node: str,
        move: Move,
        roles: Mapping[str, str],
    ) -> pb.ChangeMemberResponse:
        """Ask the leader for a change of members during a move. A refusal with PRECONDITION_FAILED
        becomes `waits_for`, because the leader may grant the change later: it has just been
        elected, another change is not committed, the learner lacks the last entry. Raises
        LedgerError for any other failure, and if so few members answer that the change would cost
        the group its quorum: waiting would not help then."""
        try:
            answer = await self._members.changed(group, kind, node)
        except LedgerError as error:
            if error.code != Code.PRECONDITION_FAILED:
                raise
            answer = pb.ChangeMemberResponse(waits_for=error.message)
        if not answer.done:
            self._check_enough(group, move, roles, GO_ON)
        return answer

    async def _handed_over(self, group: str, to: str, move: Move, roles: Mapping[str, str]) -> str:
        """Hand leadership over to `to`. Returns an empty text once `to` leads, otherwise what the
        handover waits for. A replica that cannot take over now may soon: a replica just promoted
        joins the in-sync set of an HA group within moments. Raises LedgerError as `_changed`
        does."""
        try:
            answer = await self._leadership.transfer(
                pb.TransferLeadershipRequest(broker_group=group, to=to)
            )
        except LedgerError as error:
            if error.code != Code.PRECONDITION_FAILED:
                raise
            self._check_enough(group, move, roles, GO_ON)
            return f"broker group {group}: {error.message}"
        return "" if answer.done else f"broker group {group}: leadership goes to {to}"

    async def _aborted(
        self, group: str, move: Move, spec: GroupSpec, roles: Mapping[str, str]
    ) -> pb.MoveReplicaResponse:
        if spec.move != move:
            what = (
                f"broker group {group}: no replica is on its way from {move.source} to"
                f" {move.target}"
            )
            raise fail(Code.PRECONDITION_FAILED, f"{what}; see: ledgermq broker-group list")
        if move.source not in roles:
            what = f"broker group {group}: the replica of {move.source} is removed already"
            raise fail(Code.PRECONDITION_FAILED, f"{what}; finish the move, then move it back")
        back = Move(move.target, move.source)
        if self._leaders.leader(group) == move.target:
            waits = await self._handed_over(group, move.source, back, roles)
            if waits:
                return self._waits("hand-over", waits)
        if move.target in roles:
            removed = await self._changed(group, Kind.REMOVE, move.target, back, roles)
            if not removed.done:
                return self._waits("remove", removed.waits_for)
        await self._controller.end_move(group, move, done=False)
        return pb.MoveReplicaResponse(
            done=True, step="done", left_directory=f"{move.target}: {group}/"
        )

    def _moved(self, group: str, move: Move) -> pb.MoveReplicaResponse:
        return pb.MoveReplicaResponse(
            done=True, step="done", left_directory=f"{move.source}: {group}/"
        )

    @staticmethod
    def _waits(
        step: str, waits_for: str, progress: pb.MemberProgress | None = None
    ) -> pb.MoveReplicaResponse:
        return pb.MoveReplicaResponse(
            step=step, waits_for=waits_for or "the group's leader", progress=progress
        )

    def _elects(self, group: str) -> bool:
        """Whether the group elects its leader among its replicas (raft), or needs their majority
        too because its replication changes. In an HA group the controller appoints the master."""
        return self._replication_of(group) != "ha"

    def _least_in_sync(self, group: str) -> int:
        given = self._settings(group)
        return (
            1
            if given.get("ack") == "async"
            else int(given.get("min_in_sync") or DEFAULT_MIN_IN_SYNC)
        )

    def _settings(self, group: str) -> Mapping[str, Any]:
        spec: GroupSpec = self._controller.state.specs.get(group, GroupSpec())
        return spec.settings

    # -- preferred leader and balance

    async def prefer(self, request: pb.PreferLeaderRequest) -> pb.PreferLeaderResponse:
        """Make this node the preferred leader of the group. Raises LedgerError."""
        await self._controller.prefer_leader(request.broker_group, request.node)
        return pb.PreferLeaderResponse()

    async def planned(self) -> pb.PlanRebalanceResponse:
        """The plan that would balance the cluster. Raises LedgerError."""
        await self._controller.barrier()
        found: Plan = plan(await self._facts())
        response = pb.PlanRebalanceResponse(notes=found.notes)
        for step in found.steps:
            told = response.steps.add(
                kind=step.kind, broker_group=step.group, reason=step.reason, queues=step.queues
            )
            told.from_node, told.to_node = step.source, step.target
            if step.topic[1]:
                told.topic.namespace, told.topic.name = step.topic
        return response

    async def _facts(self) -> Facts:
        state = self._controller.state
        names = sorted(state.broker_groups)
        answers = await asyncio.gather(*(self._asked(name) for name in names))
        groups = {}
        for name, members in zip(names, answers, strict=True):
            spec = state.specs.get(name, GroupSpec())
            voters = tuple(member.node for member in members if member.role == "voter") or tuple(
                state.broker_groups[name]
            )
            groups[name] = GroupFacts(
                voters,
                leader=self._leaders.leader(name) if members else None,
                wanted=spec.leader_wanted,
                fixed=bool(spec.settings.get("preferred_leader")),
                others=tuple(member.node for member in members if member.role != "voter"),
                move=None if spec.move is None else (spec.move.source, spec.move.target),
            )
        topics = [
            topic for key, topic in sorted(state.topics.items()) if not is_dead_letter_topic(key[1])
        ]
        told = tuple(
            TopicFacts(topic.namespace, topic.name, topic.placement, _stays(topic))
            for topic in topics
        )
        nodes = may_vote(state)
        down = tuple(sorted(node for node in nodes if not self._up(node)))
        return Facts(tuple(sorted(set(nodes) - set(down))), groups, told, down)

    def _there(self, nodes: Iterable[str]) -> set[str]:
        return {node for node in nodes if self._up(node)}

    def _up(self, node: str) -> bool:
        return node == self._config.node or (node in self._links and self._links[node].up)


def _stays(topic: Any) -> str:
    """Why a topic must not get queues in further broker groups automatically; empty if it may."""
    if topic.kind in (TopicKind.FIFO, TopicKind.MIXED):
        return (
            "more queues move its message groups to other queues; where that does no harm: ledgermq"
            " topic update NAME --add-group GROUP"
        )
    if topic.kind is TopicKind.LITE:
        return "each of its lite topics belongs to one broker group permanently"
    if topic.dedup_ms:
        return "it recognises duplicates only within one broker group"
    return ""
