"""`ledgermq.v1.Admin`: the gRPC service behind `ledgermq status`, `topic`, `group`, `peek` and
`query`, on any node.

It delegates: intent goes to the controller, questions about messages and progress to `peeks.py` and
`queries.py`, other questions about broker groups to the engine or to a peer that hosts them. One
error table turns every failure into a `Status`. Creating and updating return when the intent is in
force in every broker group that this node sees, so that the next call of the same client finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import wraps
from typing import Any, TypeVar

from ledgermq.node.frontend.admin.broker_group_admin import BrokerGroups
from ledgermq.node.frontend.admin.client_list import METHOD as CLIENTS_METHOD
from ledgermq.node.frontend.admin.client_list import ClientList
from ledgermq.node.frontend.admin.group_reads import name_of
from ledgermq.node.frontend.admin.group_settings import given_of, group_info, settings_of
from ledgermq.node.frontend.admin.leadership_admin import (
    HISTORY_METHOD,
    TIME_EPOCH_METHOD,
    TRANSFER_METHOD,
    Leadership,
)
from ledgermq.node.frontend.admin.letters_admin import DeadLetters
from ledgermq.node.frontend.admin.member_admin import CHANGE_METHOD, Members
from ledgermq.node.frontend.admin.node_details import METHOD as NODE_METHOD
from ledgermq.node.frontend.admin.node_details import NodeDetails
from ledgermq.node.frontend.admin.overview import (
    Counts,
    Overview,
    number_in,
    queue_ends,
    topic_counts,
    topic_info,
    topic_sums,
)
from ledgermq.node.frontend.admin.peeks import PEEK_METHOD, Peeks
from ledgermq.node.frontend.admin.queries import Queries
from ledgermq.node.frontend.admin.replication_admin import METHOD as REPLICATION_METHOD
from ledgermq.node.frontend.admin.replication_admin import Replication
from ledgermq.node.frontend.admin.upgrade_admin import RAISE_METHOD, Upgrades
from ledgermq.node.frontend.admin.user_admin import UserAdmin
from ledgermq.node.frontend.admin.waiting_admin import WaitingMessages
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.ports import Engine, ServerCall
from ledgermq.node.frontend.proofs.checkpoints import METHODS as PROOF_METHODS
from ledgermq.node.frontend.proofs.checkpoints import SEAL_METHOD, Checkpoints
from ledgermq.node.frontend.routing.known_groups import broker_groups
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.frontend.security.admin_guard import caller
from ledgermq.node.replica.ports import STORAGE_METHOD, WHY_METHOD, Retention, RunningReplica
from ledgermq.node.runtime.deadlines import bounded, within
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.names import base_group, stored_name
from ledgermq.proto.status import Code, LedgerError, fail
from ledgermq.proto.types import GroupConfig, Permission, TopicDurability, TopicKind

IN_FORCE_WITHIN_S = 5.0
STORED_WITHIN_S = 2.0
ADMIN_PREFIX = "ledgermq.v1.Admin/"
"""Prefix of the name of every forwarded call that `AdminService.execute` answers."""

log = get_logger()
M = TypeVar("M", bound=Callable[..., Awaitable[Any]])


def _answered(method: M) -> M:
    """Wrap a method of the service: the answer gets status OK; a failure becomes an empty answer
    with a status."""
    response = getattr(admin_pb2, f"{method.__name__}Response")

    @wraps(method)
    async def answer(self: AdminService, request: Any, context: ServerCall) -> Any:
        try:
            found = await method(self, request, context)
            found.status.code = Code.OK
            return found
        except LedgerError as error:
            return response(status=admin_pb2.Status(code=int(error.code), message=error.message))
        except TimeoutError:
            return response(
                status=admin_pb2.Status(
                    code=int(Code.PROXY_TIMEOUT), message="no answer in time; try again"
                )
            )
        except Exception as error:  # a bug must not reach a client as a traceback
            log.exception("admin call failed")
            text = f"internal error, {type(error).__name__}; the node's log says more"
            return response(
                status=admin_pb2.Status(code=int(Code.INTERNAL_SERVER_ERROR), message=text)
            )

    return answer  # type: ignore[return-value]


@bounded
class AdminService:
    """The methods of the service, by their names in it. `controller` is
    `ledgermq.node.controller.controller.Controller`."""

    def __init__(
        self,
        engine: Engine,
        controller: Any,
        overview: Overview,
        peeks: Peeks,
        queries: Queries,
        storage: Retention,
        leadership: Leadership,
        members: Members,
        users: UserAdmin,
        clients: ClientList,
        receipt_keys: ReceiptKeys,
        replication: Replication,
        broker_groups: BrokerGroups,
        node_details: NodeDetails,
        upgrades: Upgrades,
        checkpoints: Checkpoints,
        tier: TierReads | None = None,
    ) -> None:
        self._engine = engine
        self._tier = tier
        self._controller = controller
        self._overview = overview
        self._peeks = peeks
        self._queries = queries
        self._letters = DeadLetters(queries, controller)
        self._waiting = WaitingMessages(queries)
        self._storage = storage
        self._leadership = leadership
        self._members = members
        self._users = users
        self._clients = clients
        self._receipt_keys = receipt_keys
        self._replication = replication
        self._broker_groups = broker_groups
        self._node_details = node_details
        self._upgrades = upgrades
        self._checkpoints = checkpoints

    # -- status

    @_answered
    async def ClusterStatus(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.ClusterStatusResponse:
        replies = await self._overview.gather()
        response = self._overview.merge(replies)
        response.level = self._controller.state.level
        for group in response.groups:
            agreed = self._controller.state.appointments.get(group.group)
            if group.HasField("ha") and not group.ha.in_sync and agreed is not None:
                group.ha.epoch, group.ha.in_sync[:] = agreed.epoch, sorted(agreed.in_sync)
        response.topics.extend(self._topic_sums(topic_counts(replies)))
        return response

    def _topic_sums(self, counts: Counts) -> Iterator[admin_pb2.TopicInfo]:
        """All topics in the order of their names."""
        topics = self._controller.state.topics
        return (topic_sums(topics[key], counts) for key in sorted(topics))

    @_answered
    async def DescribeNode(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.DescribeNodeResponse:
        return await self._node_details.of(request)

    # -- topics

    @_answered
    async def CreateTopic(self, request: Any, context: ServerCall) -> admin_pb2.CreateTopicResponse:
        name = request.topic
        kind = _choice(TopicKind, request.kind or "normal", "kind")
        permission = _choice(Permission, request.permission or "rw", "permission")
        durability = _choice(TopicDurability, request.durability, "durability")
        topic, created = await self._controller.create_topic(
            *(name.namespace, name.name, kind, request.queues or 8, permission),
            durability=durability,
            dedup_ms=request.dedup_ms,
        )
        await self._topic_in_force(topic)
        return admin_pb2.CreateTopicResponse(
            topic=topic_info(topic, self._local_ends()), created=created
        )

    @_answered
    async def UpdateTopic(self, request: Any, context: ServerCall) -> admin_pb2.UpdateTopicResponse:
        name = request.topic
        queues = request.queues if request.HasField("queues") else None
        permission = (
            _choice(Permission, request.permission, "permission")
            if request.HasField("permission")
            else None
        )
        durability = (
            _choice(TopicDurability, request.durability, "durability")
            if request.HasField("durability")
            else None
        )
        dedup_ms = request.dedup_ms if request.HasField("dedup_ms") else None
        topic = await self._controller.update_topic(
            *(name.namespace, name.name),
            queues=queues,
            permission=permission,
            durability=durability,
            dedup_ms=dedup_ms,
            add_group=request.add_group or None,
            grow=request.grow,
        )
        await self._topic_in_force(topic)
        return admin_pb2.UpdateTopicResponse(topic=topic_info(topic, self._local_ends()))

    @_answered
    async def ListTopics(self, request: Any, context: ServerCall) -> admin_pb2.ListTopicsResponse:
        await self._controller.barrier()
        return admin_pb2.ListTopicsResponse(topics=self._topic_sums(await self._counts()))

    @_answered
    async def DescribeTopic(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.DescribeTopicResponse:
        topic = await self._topic(request.topic)
        info = topic_info(topic, await self._ends())
        stored = stored_name(topic.namespace, topic.name)
        for queue in info.queue_list:
            if queue.broker_group in self._engine.groups:
                queue.min_offset = await self._engine.run(
                    queue.broker_group, _reader(stored, queue.group_queue)
                )
        await asyncio.gather(
            *(
                self._fill_stored(stored, queue)
                for queue in info.queue_list
                if queue.HasField("min_offset")
            )
        )
        return admin_pb2.DescribeTopicResponse(topic=info)

    async def _fill_stored(self, stored: str, queue: admin_pb2.QueueInfo) -> None:
        """Add the first offset in the object store, if it can be told in time; a description needs
        no store."""
        if self._tier is None:
            return
        with contextlib.suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(STORED_WITHIN_S):
                queue.stored_offset = await self._tier.first_offset(
                    queue.broker_group, stored, queue.group_queue
                )

    @_answered
    async def DeleteTopic(self, request: Any, context: ServerCall) -> admin_pb2.DeleteTopicResponse:
        deleted = await self._controller.delete_topic(request.topic.namespace, request.topic.name)
        stored = stored_name(deleted.namespace, deleted.name)
        await self._until(
            lambda: all(stored not in view.topics for view in self._engine.views.values())
        )
        return admin_pb2.DeleteTopicResponse()

    # -- consumer groups

    @_answered
    async def CreateGroup(self, request: Any, context: ServerCall) -> admin_pb2.CreateGroupResponse:
        name = request.group
        attempts = request.max_attempts or GroupConfig("", "").max_attempts
        self._check_lite_topic(name.namespace, request.lite_topic)
        group, created = await self._controller.create_group(
            name.namespace, name.name, attempts, **settings_of(request)
        )
        await self._group_in_force(group)
        return admin_pb2.CreateGroupResponse(group=group_info(group, True), created=created)

    @_answered
    async def UpdateGroup(self, request: Any, context: ServerCall) -> admin_pb2.UpdateGroupResponse:
        name = request.group
        attempts = request.max_attempts if request.HasField("max_attempts") else None
        settings = given_of(request)
        self._check_lite_topic(name.namespace, request.lite_topic)
        group = await self._controller.update_group(
            name.namespace, name.name, max_attempts=attempts, **settings
        )
        await self._group_in_force(group)
        return admin_pb2.UpdateGroupResponse(group=group_info(group, True))

    @_answered
    async def ListGroups(self, request: Any, context: ServerCall) -> admin_pb2.ListGroupsResponse:
        await self._controller.barrier()
        configured = {
            stored_name(*key): group for key, group in self._controller.state.groups.items()
        }
        used, clients = await asyncio.gather(self._consumers(), self._clients.of_groups())
        infos = [group_info(configured[name], True) for name in sorted(configured)]
        infos += [
            group_info(GroupConfig(*_split(name)), False)
            for name in sorted(used - configured.keys())
        ]
        if clients is not None:
            for info in infos:
                info.clients = clients[stored_name(info.group.namespace, info.group.name)]
        return admin_pb2.ListGroupsResponse(groups=infos)

    @_answered
    async def DescribeGroup(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.DescribeGroupResponse:
        await self._controller.barrier()
        key = (request.group.namespace, request.group.name)
        stored = stored_name(*key)
        configured = self._controller.state.groups.get(key)
        rows, clients = await asyncio.gather(
            self._queries.cursors(request.group), self._clients.of_groups()
        )
        if configured is None and not rows:
            raise fail(
                Code.CONSUMER_GROUP_NOT_FOUND,
                f"consumer group {stored} does not exist and was never used",
            )
        info = group_info(configured or GroupConfig(*key), configured is not None)
        if clients is not None:
            info.clients = clients[stored]
        for topic, queue in rows:
            one = info.queues.add(
                topic=name_of(topic),
                broker_group=queue.broker_group,
                group_queue=queue.group_queue,
                leased=queue.leased,
                lag=queue.lag,
                queue=number_in(
                    self._controller.state.topics.get(_split(topic)),
                    queue.broker_group,
                    queue.group_queue,
                ),
            )
            if queue.HasField("cursor"):
                one.cursor, one.max_offset = queue.cursor, queue.end
        return admin_pb2.DescribeGroupResponse(group=info)

    @_answered
    async def DeleteGroup(self, request: Any, context: ServerCall) -> admin_pb2.DeleteGroupResponse:
        deleted = await self._controller.delete_group(request.group.namespace, request.group.name)
        stored = stored_name(deleted.namespace, deleted.name)
        await self._until(
            lambda: all(stored not in view.groups for view in self._engine.views.values())
        )
        return admin_pb2.DeleteGroupResponse()

    # -- messages and progress

    @_answered
    async def Peek(self, request: Any, context: ServerCall) -> admin_pb2.PeekResponse:
        return await self._peeks.peek(await self._topic(request.topic), request)

    @_answered
    async def Query(self, request: Any, context: ServerCall) -> admin_pb2.QueryResponse:
        return await self._queries.query(await self._topic(request.topic), request)

    @_answered
    async def MessageDetail(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.MessageDetailResponse:
        return await self._queries.detail(await self._topic(request.topic), request)

    @_answered
    async def TraceMessage(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.TraceMessageResponse:
        return await self._queries.trace(await self._topic(request.topic), request)

    @_answered
    async def WhyNotDelivered(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.WhyNotDeliveredResponse:
        if request.HasField("topic"):
            return await self._queries.why_not_delivered(
                [await self._topic(request.topic)], request
            )
        return await self._queries.why_not_delivered(await self._topics_for(request.group), request)

    async def _topics_for(self, group: Any) -> list[Any]:
        """The topics that may hold a message of a consumer group: those it has used, then the
        others of its namespace."""
        await self._controller.barrier()
        used = {stored for stored, _ in await self._queries.cursors(group)}
        topics = [
            topic
            for _, topic in sorted(self._controller.state.topics.items())
            if topic.namespace == group.namespace
        ]
        return sorted(
            topics, key=lambda topic: stored_name(topic.namespace, topic.name) not in used
        )

    @_answered
    async def GroupLag(self, request: Any, context: ServerCall) -> admin_pb2.GroupLagResponse:
        topic = await self._topic(request.topic) if request.HasField("topic") else None
        return await self._queries.lag(request.group, topic)

    @_answered
    async def ResetGroup(self, request: Any, context: ServerCall) -> admin_pb2.ResetGroupResponse:
        return await self._queries.reset(await self._topic(request.topic), request)

    # -- dead letters

    @_answered
    async def ListDeadLetters(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.ListDeadLettersResponse:
        return await self._letters.listed(request)

    @_answered
    async def CountDeadLetters(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.CountDeadLettersResponse:
        return await self._letters.counted(request)

    @_answered
    async def SettleDeadLetters(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.SettleDeadLettersResponse:
        return await self._letters.settled(request, caller())

    # -- messages that wait

    @_answered
    async def ListWaiting(self, request: Any, context: ServerCall) -> admin_pb2.ListWaitingResponse:
        return await self._waiting.listed(await self._topic(request.topic), request)

    @_answered
    async def CancelWaiting(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.CancelWaitingResponse:
        return await self._waiting.cancelled(await self._topic(request.topic), request, caller())

    # -- log files

    @_answered
    async def WhyKept(self, request: Any, context: ServerCall) -> admin_pb2.WhyKeptResponse:
        await self._require_broker_group(request.broker_group)
        return await self._storage.ask_leader(request)

    @_answered
    async def TakePin(self, request: Any, context: ServerCall) -> admin_pb2.TakePinResponse:
        self._require_hosted(request.broker_group)
        return await self._storage.take_pin(request)

    @_answered
    async def RenewPin(self, request: Any, context: ServerCall) -> admin_pb2.RenewPinResponse:
        self._require_hosted(request.broker_group)
        return await self._storage.renew_pin(request)

    @_answered
    async def DropPin(self, request: Any, context: ServerCall) -> admin_pb2.DropPinResponse:
        self._require_hosted(request.broker_group)
        return await self._storage.drop_pin(request)

    @_answered
    async def RepairRange(self, request: Any, context: ServerCall) -> admin_pb2.RepairRangeResponse:
        # Never forwarded: a node repairs only its own replicas. What may be restored is decided in
        # `replica/shipping/`.
        group = request.broker_group
        self._require_hosted(group)
        if not 0 <= request.first_index <= request.last_index:
            raise fail(
                Code.BAD_REQUEST,
                f"entries {request.first_index} to {request.last_index} are not a valid range",
            )
        status = await self._engine.status(group)
        if status.state != "running":
            reason = "" if status.rebuild is None else f": {status.rebuild.reason}"
            if status.state == "refused":
                raise fail(
                    Code.PRECONDITION_FAILED,
                    f"broker group {group} cannot be repaired here{reason}",
                )
            return admin_pb2.RepairRangeResponse(
                waits_for=f"broker group {group} is {status.state}{reason}"
            )
        found = await self._engine.run(group, lambda running: running.store.identity)
        if (found.log_id, found.incarnation) != (request.log_id, request.incarnation):
            what = (
                f"the replica of broker group {group} on node {found.replica} is not the one that"
                " was audited"
            )
            raise fail(
                Code.PRECONDITION_FAILED,
                f"{what} (log {found.log_id}, directory {found.incarnation}); audit again",
            )
        put = await self._engine.put_back(group, request.first_index, request.last_index)
        if put.refused is None:
            return admin_pb2.RepairRangeResponse(
                done=True, repaired=put.repaired, written_bytes=put.written_bytes, source=put.source
            )
        if not request.whole_log:
            raise fail(Code.PRECONDITION_FAILED, put.refused)
        await self._engine.mend_all(group, f"asked for by an operator: {put.refused}")
        return admin_pb2.RepairRangeResponse(
            waits_for=f"{put.refused}; the whole log is now verified and repaired"
        )

    # -- leadership

    @_answered
    async def TransferLeadership(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.TransferLeadershipResponse:
        await self._require_broker_group(request.broker_group)
        return await self._leadership.transfer(request)

    @_answered
    async def BeginTimeEpoch(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.BeginTimeEpochResponse:
        await self._require_broker_group(request.broker_group)
        return await self._leadership.begin_time_epoch(request.broker_group, caller())

    @_answered
    async def LeadershipHistory(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.LeadershipHistoryResponse:
        await self._require_broker_group(request.broker_group)
        return await self._leadership.history(request)

    @_answered
    async def ElectMaster(self, request: Any, context: ServerCall) -> admin_pb2.ElectMasterResponse:
        await self._require_broker_group(request.broker_group)
        return await self._replication.elect(request)

    @_answered
    async def ChangeReplication(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.ChangeReplicationResponse:
        await self._require_broker_group(request.broker_group)
        return await self._replication.change(request)

    # -- members

    @_answered
    async def ChangeMember(
        self, request: Any, context: ServerCall | None
    ) -> admin_pb2.ChangeMemberResponse:
        return await self._members.change(request)

    @_answered
    async def ListMembers(self, request: Any, context: ServerCall) -> admin_pb2.ListMembersResponse:
        return await self._members.listed()

    # -- broker groups

    @_answered
    async def AddBrokerGroup(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.AddBrokerGroupResponse:
        return await self._broker_groups.add(request)

    @_answered
    async def ListBrokerGroups(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.ListBrokerGroupsResponse:
        return await self._broker_groups.listed()

    @_answered
    async def MoveReplica(self, request: Any, context: ServerCall) -> admin_pb2.MoveReplicaResponse:
        return await self._broker_groups.move(request)

    @_answered
    async def PreferLeader(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.PreferLeaderResponse:
        return await self._broker_groups.prefer(request)

    @_answered
    async def PlanRebalance(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.PlanRebalanceResponse:
        return await self._broker_groups.planned()

    # -- upgrades

    @_answered
    async def FinishUpgrade(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.FinishUpgradeResponse:
        return await self._upgrades.finish(caller())

    # -- checkpoints and proofs

    @_answered
    async def GetCheckpoint(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.GetCheckpointResponse:
        return await self._checkpoints.checkpoint(request)

    @_answered
    async def ProveEntry(self, request: Any, context: ServerCall) -> admin_pb2.ProveEntryResponse:
        return await self._checkpoints.prove(request)

    @_answered
    async def ProveConsistency(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.ProveConsistencyResponse:
        return await self._checkpoints.prove_consistency(request)

    @_answered
    async def SealNow(self, request: Any, context: ServerCall) -> admin_pb2.SealNowResponse:
        await self._require_broker_group(request.broker_group)
        return await self._checkpoints.seal(request, caller())

    @_answered
    async def ListCheckpointKeys(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.ListCheckpointKeysResponse:
        return await self._checkpoints.keys()

    @_answered
    async def ListClients(self, request: Any, context: ServerCall) -> admin_pb2.ListClientsResponse:
        return await self._clients.everywhere()

    # -- users

    @_answered
    async def CreateUser(self, request: Any, context: ServerCall) -> admin_pb2.CreateUserResponse:
        return await self._users.create(request, self._until)

    @_answered
    async def ChangeUser(self, request: Any, context: ServerCall) -> admin_pb2.ChangeUserResponse:
        return await self._users.change(request)

    @_answered
    async def DeleteUser(self, request: Any, context: ServerCall) -> admin_pb2.DeleteUserResponse:
        return await self._users.delete(request)

    @_answered
    async def ListUsers(self, request: Any, context: ServerCall) -> admin_pb2.ListUsersResponse:
        return await self._users.list(request)

    # -- receipts

    @_answered
    async def RotateReceiptKey(
        self, request: Any, context: ServerCall
    ) -> admin_pb2.RotateReceiptKeyResponse:
        key_id, keys = await self._receipt_keys.rotate()
        return admin_pb2.RotateReceiptKeyResponse(key_id=key_id, keys=keys)

    async def _require_broker_group(self, group: str) -> None:
        if group in self._engine.groups:
            return
        known = await broker_groups(self._controller, group)
        if group not in known:
            raise fail(
                Code.BAD_REQUEST,
                f"broker group {group!r} does not exist; known: {', '.join(sorted(known))}",
            )

    def _require_hosted(self, group: str) -> None:
        if group not in self._engine.groups:
            raise fail(
                Code.BAD_REQUEST,
                f"this node has no replica of broker group {group!r}; ask a node that has one",
            )

    async def execute(self, group: str, method: str, request: bytes) -> list[bytes]:
        """Answer a call of this service that was forwarded to this node."""
        if method == CLIENTS_METHOD:
            return [self._clients.here().SerializeToString()]
        if method == NODE_METHOD:
            return [
                self._node_details.here(
                    admin_pb2.DescribeNodeRequest.FromString(request)
                ).SerializeToString()
            ]
        if method in PROOF_METHODS:
            return [await self._checkpoints.execute(method, request)]
        if method == SEAL_METHOD:
            wanted = peer_pb2.GroupSeal.FromString(request)
            return [(await self._checkpoints.seal_here(group, wanted)).SerializeToString()]
        if method == STORAGE_METHOD:
            return [await self._storage.answer(request)]
        if method == WHY_METHOD:
            return [
                (
                    await self._storage.why_kept(admin_pb2.WhyKeptRequest.FromString(request))
                ).SerializeToString()
            ]
        if method == TRANSFER_METHOD:
            transfer = admin_pb2.TransferLeadershipRequest.FromString(request)
            return [(await self._leadership.transfer_here(transfer)).SerializeToString()]
        if method == TIME_EPOCH_METHOD:
            user = peer_pb2.GroupTimeEpoch.FromString(request).user
            return [(await self._leadership.begin_time_epoch_here(group, user)).SerializeToString()]
        if method == CHANGE_METHOD:
            change = admin_pb2.ChangeMemberRequest.FromString(request)
            # Without a group it is the whole request of a node that removes itself.
            done = await (
                self._members.change_here(group, change)
                if group
                else self.ChangeMember(change, None)
            )
            return [done.SerializeToString()]
        if method == REPLICATION_METHOD:
            to = admin_pb2.ChangeReplicationRequest.FromString(request)
            return [(await self._replication.change_here(to)).SerializeToString()]
        if method == RAISE_METHOD:
            raised = peer_pb2.GroupRaise.FromString(request)
            return [
                (
                    await self._upgrades.raise_here(group, raised.level, raised.user)
                ).SerializeToString()
            ]
        if method == HISTORY_METHOD:
            history = admin_pb2.LeadershipHistoryRequest.FromString(request)
            return [(await self._leadership.history_here(history)).SerializeToString()]
        if method == PEEK_METHOD:
            return [
                (
                    await self._peek_here(admin_pb2.PeekRequest.FromString(request))
                ).SerializeToString()
            ]
        return await self._queries.execute(method, group, request)

    async def _peek_here(self, request: admin_pb2.PeekRequest) -> admin_pb2.PeekResponse:
        """The leader's part of a Peek. Raises CallRefused for a refusal that another node may not
        repeat; the status has other failures."""
        try:
            answer = await self._peeks.peek_here(await self._topic(request.topic), request)
            answer.status.code = Code.OK
            return answer
        except LedgerError as error:
            return admin_pb2.PeekResponse(
                status=admin_pb2.Status(code=int(error.code), message=error.message)
            )

    # -- helpers

    async def _topic(self, name: Any) -> Any:
        """The topic. A topic counts as unknown only after a barrier read (docs/architecture.md, The
        controller)."""
        key = (name.namespace, name.name)
        if key not in self._controller.state.topics:
            await self._controller.barrier()
        topic = self._controller.state.topics.get(key)
        if topic is None:
            raise fail(
                Code.TOPIC_NOT_FOUND,
                f"topic {stored_name(*key)} does not exist; create it with: ledgermq topic create"
                f" {name.name}",
            )
        return topic

    def _check_lite_topic(self, namespace: str, name: str) -> None:
        """Refuse to bind a consumer group to a topic of another kind, from which it could never
        read. A topic that does not exist yet may become one. Not a rule of the metadata, which
        every release must apply alike. Raises LedgerError."""
        topic = self._controller.state.topics.get((namespace, name))
        if topic is not None and topic.kind is not TopicKind.LITE:
            what = (
                f"topic {stored_name(namespace, name)} is of kind {topic.kind.value}, and"
                " --lite-topic takes one of kind lite"
            )
            raise fail(Code.BAD_REQUEST, f"{what}; give another topic, or omit it")

    async def _topic_in_force(self, topic: Any) -> None:
        stored = stored_name(topic.namespace, topic.name)
        views = self._engine.views
        await self._until(
            lambda: all(
                view.topics.get(stored) == topic.in_group(group) for group, view in views.items()
            )
        )

    async def _group_in_force(self, group: GroupConfig) -> None:
        stored = stored_name(group.namespace, group.name)
        await self._until(
            lambda: all(view.groups.get(stored) == group for view in self._engine.views.values())
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the intent is in force on this node, because the answer promises that. Raises
        LedgerError after IN_FORCE_WITHIN_S."""
        limit = asyncio.get_running_loop().time() + within(IN_FORCE_WITHIN_S)
        while not condition():
            if asyncio.get_running_loop().time() > limit:
                text = (
                    "the quorum agreed, but the change is not in force in every broker group yet;"
                    " check `ledgermq status`, then retry"
                )
                raise fail(Code.PROXY_TIMEOUT, text)
            await asyncio.sleep(0.01)

    def _local_ends(self) -> dict[tuple[str, str, int], int]:
        return {
            (stored, group, queue): end
            for group, view in self._engine.views.items()
            for stored, ends in view.queue_ends.items()
            for queue, end in enumerate(ends)
        }

    async def _counts(self) -> Counts:
        """The counts of all topics. Peers are asked only if some broker group has no replica
        here."""
        if self._has_all_groups():
            views = self._engine.views.items()
            return {
                (stored, group): (len(ends), sum(ends))
                for group, view in views
                for stored, ends in view.queue_ends.items()
            }
        return topic_counts(await self._overview.gather())

    def _has_all_groups(self) -> bool:
        return set(self._controller.state.broker_groups) <= set(self._engine.groups)

    async def _ends(self) -> Mapping[tuple[str, str, int], int]:
        """The next offsets of all queues. Peers are asked only if some broker group has no replica
        here."""
        if self._has_all_groups():
            return self._local_ends()
        return queue_ends(await self._overview.gather(queues=True))

    async def _consumers(self) -> set[str]:
        """Stored names of the consumer groups that have used a queue of a broker group here."""
        found = await asyncio.gather(
            *(self._engine.run(group, _consumers_of) for group in self._engine.groups)
        )
        return {name for names in found for name in names}


def _consumers_of(hosted: RunningReplica) -> set[str]:
    return {base_group(name) for name, _, _ in hosted.machine.delivery.queues} | {
        name for name, _ in hosted.machine.offsets.pairs()
    }


def _reader(stored: str, queue: int) -> Callable[[RunningReplica], int]:
    return lambda hosted: hosted.machine.begin(stored, queue)


def _choice(kind: Any, value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(item.value for item in kind if item.value)
        raise fail(
            Code.BAD_REQUEST, f"{what} {value!r} is not supported; use one of {known}"
        ) from None


def _split(stored: str) -> tuple[str, str]:
    namespace, _, name = stored.rpartition("@")
    return namespace, name
