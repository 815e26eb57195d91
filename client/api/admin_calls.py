"""The administrative requests of `ledgermq.v1.Admin` as plain calls, which retry within the
connection's timeout.

Every call here is safe to repeat: creating an object that exists with the same settings succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from ledgermq.client.api.admin_requests import PAGE
from ledgermq.client.api.connection import Connection
from ledgermq.client.api.service import ADMIN
from ledgermq.proto import admin_pb2 as pb

R = TypeVar("R", bound=Message)


def name_of(text: str, namespace: str = "") -> pb.Name:
    return pb.Name(namespace=namespace, name=text)


class AdminCalls:
    """The `ledgermq.v1.Admin` service; any node answers. Every call raises `Unreachable` or
    `Refused`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _ask(self, method: str, request: Message, response: type[R]) -> R:
        return self._connection.ask(ADMIN + method, request, response)

    def cluster_status(self) -> pb.ClusterStatusResponse:
        return self._ask("ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusResponse)

    def describe_node(
        self, node: str, log_lines: int, *, configuration: bool
    ) -> pb.DescribeNodeResponse:
        request = pb.DescribeNodeRequest(
            node=node, log_lines=log_lines, configuration=configuration
        )
        return self._ask("DescribeNode", request, pb.DescribeNodeResponse)

    def create_topic(
        self,
        name: str,
        kind: str,
        queues: int,
        permission: str,
        namespace: str = "",
        durability: str = "",
        dedup_ms: int = 0,
    ) -> pb.CreateTopicResponse:
        request = pb.CreateTopicRequest(
            topic=name_of(name, namespace), kind=kind, queues=queues, permission=permission
        )
        request.durability, request.dedup_ms = durability, dedup_ms
        return self._ask("CreateTopic", request, pb.CreateTopicResponse)

    def update_topic(
        self,
        name: str,
        queues: int | None,
        permission: str | None,
        namespace: str = "",
        durability: str | None = None,
        dedup_ms: int | None = None,
        add_group: str | None = None,
        grow: Mapping[str, int] | None = None,
    ) -> pb.UpdateTopicResponse:
        topic = name_of(name, namespace)
        request = pb.UpdateTopicRequest(
            topic=topic,
            queues=queues,
            permission=permission,
            durability=durability,
            dedup_ms=dedup_ms,
        )
        request.MergeFrom(pb.UpdateTopicRequest(add_group=add_group, grow=grow))
        return self._ask("UpdateTopic", request, pb.UpdateTopicResponse)

    def list_topics(self) -> pb.ListTopicsResponse:
        return self._ask("ListTopics", pb.ListTopicsRequest(), pb.ListTopicsResponse)

    def describe_topic(self, name: str, namespace: str = "") -> pb.DescribeTopicResponse:
        return self._ask(
            "DescribeTopic",
            pb.DescribeTopicRequest(topic=name_of(name, namespace)),
            pb.DescribeTopicResponse,
        )

    def delete_topic(self, name: str, namespace: str = "") -> pb.DeleteTopicResponse:
        return self._ask(
            "DeleteTopic",
            pb.DeleteTopicRequest(topic=name_of(name, namespace)),
            pb.DeleteTopicResponse,
        )

    def create_group(
        self,
        name: str,
        max_attempts: int,
        namespace: str = "",
        *,
        fifo: bool = False,
        backoff: pb.Backoff | None = None,
        lite_topic: str = "",
        broadcast: bool = False,
    ) -> pb.CreateGroupResponse:
        group = name_of(name, namespace)
        settings = pb.CreateGroupRequest(
            group=group,
            max_attempts=max_attempts,
            fifo=fifo,
            lite_topic=lite_topic,
            broadcast=broadcast,
        )
        if backoff is not None:
            settings.backoff.CopyFrom(backoff)
        return self._ask("CreateGroup", settings, pb.CreateGroupResponse)

    def update_group(self, request: pb.UpdateGroupRequest) -> pb.UpdateGroupResponse:
        return self._ask("UpdateGroup", request, pb.UpdateGroupResponse)

    def list_groups(self) -> pb.ListGroupsResponse:
        return self._ask("ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse)

    def describe_group(self, name: str, namespace: str = "") -> pb.DescribeGroupResponse:
        return self._ask(
            "DescribeGroup",
            pb.DescribeGroupRequest(group=name_of(name, namespace)),
            pb.DescribeGroupResponse,
        )

    def delete_group(self, name: str, namespace: str = "") -> pb.DeleteGroupResponse:
        return self._ask(
            "DeleteGroup",
            pb.DeleteGroupRequest(group=name_of(name, namespace)),
            pb.DeleteGroupResponse,
        )

    def peek(self, request: pb.PeekRequest) -> pb.PeekResponse:
        return self._ask("Peek", request, pb.PeekResponse)

    def query(self, request: pb.QueryRequest) -> pb.QueryResponse:
        return self._ask("Query", request, pb.QueryResponse)

    def query_pages(self, request: pb.QueryRequest, limit: int) -> Iterator[pb.QueryResponse]:
        """Yield answers until `limit` messages have arrived or no page follows. Changes the
        request."""
        left = limit
        while left > 0:
            request.max = min(left, PAGE)
            page = self.query(request)
            yield page
            left -= len(page.messages)
            request.after = page.next
            if not page.next:
                return

    def message_detail(self, message: pb.PeekedMessage) -> pb.MessageDetailResponse:
        """Where a message found by a query is stored, and what each consumer group has done with
        it."""
        request = pb.MessageDetailRequest(
            topic=message.topic,
            broker_group=message.broker_group,
            group_queue=message.group_queue,
            offset=message.offset,
        )
        return self._ask("MessageDetail", request, pb.MessageDetailResponse)

    def group_lag(self, name: str, topic: str | None, namespace: str = "") -> pb.GroupLagResponse:
        request = pb.GroupLagRequest(
            group=name_of(name, namespace),
            topic=None if topic is None else name_of(topic, namespace),
        )
        return self._ask("GroupLag", request, pb.GroupLagResponse)

    def trace_pages(self, topic: pb.Name, message_id: str) -> Iterator[pb.TraceMessageResponse]:
        """Yield answers until the whole log behind the message has been searched."""
        request = pb.TraceMessageRequest(topic=topic, message_id=message_id)
        while True:
            page = self._ask("TraceMessage", request, pb.TraceMessageResponse)
            yield page
            if not page.next:
                return
            request.after = page.next

    def why_not_delivered(self, request: pb.WhyNotDeliveredRequest) -> pb.WhyNotDeliveredResponse:
        return self._ask("WhyNotDelivered", request, pb.WhyNotDeliveredResponse)

    def list_dead_letters(self, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
        return self._ask("ListDeadLetters", request, pb.ListDeadLettersResponse)

    def count_dead_letters(self, group: pb.Name | None = None) -> pb.CountDeadLettersResponse:
        """The dead letters of one consumer group, or of all that have any."""
        return self._ask(
            "CountDeadLetters", pb.CountDeadLettersRequest(group=group), pb.CountDeadLettersResponse
        )

    def settle_dead_letters(
        self, request: pb.SettleDeadLettersRequest
    ) -> pb.SettleDeadLettersResponse:
        return self._ask("SettleDeadLetters", request, pb.SettleDeadLettersResponse)

    def list_waiting(self, request: pb.ListWaitingRequest) -> pb.ListWaitingResponse:
        return self._ask("ListWaiting", request, pb.ListWaitingResponse)

    def cancel_waiting(self, request: pb.CancelWaitingRequest) -> pb.CancelWaitingResponse:
        return self._ask("CancelWaiting", request, pb.CancelWaitingResponse)

    def why_kept(self, request: pb.WhyKeptRequest) -> pb.WhyKeptResponse:
        return self._ask("WhyKept", request, pb.WhyKeptResponse)

    def begin_time_epoch(self, broker_group: str) -> pb.BeginTimeEpochResponse:
        """Begin a time epoch in a broker group."""
        request = pb.BeginTimeEpochRequest(broker_group=broker_group)
        return self._ask("BeginTimeEpoch", request, pb.BeginTimeEpochResponse)

    def transfer_leadership(self, broker_group: str, to: str) -> pb.TransferLeadershipResponse:
        """One step of a transfer; a repeated call joins the transfer that is under way."""
        request = pb.TransferLeadershipRequest(broker_group=broker_group, to=to)
        return self._ask("TransferLeadership", request, pb.TransferLeadershipResponse)

    def elect_master(self, request: pb.ElectMasterRequest) -> pb.ElectMasterResponse:
        return self._ask("ElectMaster", request, pb.ElectMasterResponse)

    def change_replication(
        self, broker_group: str, to: str = "", min_in_sync: int | None = None
    ) -> pb.ChangeReplicationResponse:
        """One step of a change; a repeated call continues it."""
        request = pb.ChangeReplicationRequest(
            broker_group=broker_group, to=to, min_in_sync=min_in_sync
        )
        return self._ask("ChangeReplication", request, pb.ChangeReplicationResponse)

    def leadership_history(self, broker_group: str, last: int) -> pb.LeadershipHistoryResponse:
        request = pb.LeadershipHistoryRequest(broker_group=broker_group, last=last)
        return self._ask("LeadershipHistory", request, pb.LeadershipHistoryResponse)

    def change_member(self, request: pb.ChangeMemberRequest) -> pb.ChangeMemberResponse:
        """One step of a change; a repeated call continues it."""
        return self._ask("ChangeMember", request, pb.ChangeMemberResponse)

    def add_broker_group(self, request: pb.AddBrokerGroupRequest) -> pb.AddBrokerGroupResponse:
        """One step of a creation; a repeated call reports its progress."""
        return self._ask("AddBrokerGroup", request, pb.AddBrokerGroupResponse)

    def list_broker_groups(self) -> pb.ListBrokerGroupsResponse:
        return self._ask(
            "ListBrokerGroups", pb.ListBrokerGroupsRequest(), pb.ListBrokerGroupsResponse
        )

    def move_replica(self, request: pb.MoveReplicaRequest) -> pb.MoveReplicaResponse:
        """One step of a move; a repeated call continues it."""
        return self._ask("MoveReplica", request, pb.MoveReplicaResponse)

    def prefer_leader(self, broker_group: str, node: str) -> pb.PreferLeaderResponse:
        return self._ask(
            "PreferLeader",
            pb.PreferLeaderRequest(broker_group=broker_group, node=node),
            pb.PreferLeaderResponse,
        )

    def plan_rebalance(self) -> pb.PlanRebalanceResponse:
        return self._ask("PlanRebalance", pb.PlanRebalanceRequest(), pb.PlanRebalanceResponse)

    def finish_upgrade(self) -> pb.FinishUpgradeResponse:
        """One step; a repeated call continues it."""
        return self._ask("FinishUpgrade", pb.FinishUpgradeRequest(), pb.FinishUpgradeResponse)

    def list_members(self) -> pb.ListMembersResponse:
        return self._ask("ListMembers", pb.ListMembersRequest(), pb.ListMembersResponse)

    def list_clients(self) -> pb.ListClientsResponse:
        return self._ask("ListClients", pb.ListClientsRequest(), pb.ListClientsResponse)

    def reset_group(self, request: pb.ResetGroupRequest) -> pb.ResetGroupResponse:
        return self._ask("ResetGroup", request, pb.ResetGroupResponse)

    def create_user(
        self, name: str, secret_key: str, grants: Sequence[str], roles: Sequence[str]
    ) -> pb.CreateUserResponse:
        request = pb.CreateUserRequest(name=name, secret_key=secret_key, grants=grants, roles=roles)
        return self._ask("CreateUser", request, pb.CreateUserResponse)

    def change_user(self, request: pb.ChangeUserRequest) -> pb.ChangeUserResponse:
        return self._ask("ChangeUser", request, pb.ChangeUserResponse)

    def delete_user(self, name: str) -> pb.DeleteUserResponse:
        return self._ask("DeleteUser", pb.DeleteUserRequest(name=name), pb.DeleteUserResponse)

    def rotate_receipt_key(self) -> pb.RotateReceiptKeyResponse:
        return self._ask(
            "RotateReceiptKey", pb.RotateReceiptKeyRequest(), pb.RotateReceiptKeyResponse
        )

    def repair_range(self, request: pb.RepairRangeRequest) -> pb.RepairRangeResponse:
        """One step of a repair on the node at this endpoint; a repeated call continues it."""
        return self._ask("RepairRange", request, pb.RepairRangeResponse)

    def list_users(self, name: str = "") -> pb.ListUsersResponse:
        return self._ask("ListUsers", pb.ListUsersRequest(name=name), pb.ListUsersResponse)

    def get_checkpoint(self, broker_group: str, node: str = "") -> pb.GetCheckpointResponse:
        """The newest checkpoint of a group that a node signs; empty: the node that answers."""
        return self._ask(
            "GetCheckpoint",
            pb.GetCheckpointRequest(broker_group=broker_group, node=node),
            pb.GetCheckpointResponse,
        )

    def prove_entry(self, broker_group: str, index: int, size: int) -> pb.ProveEntryResponse:
        """An entry with its paths up to the log tree of `size` files."""
        request = pb.ProveEntryRequest(broker_group=broker_group, index=index, size=size)
        return self._ask("ProveEntry", request, pb.ProveEntryResponse)

    def prove_consistency(
        self, broker_group: str, old_size: int, new_size: int
    ) -> pb.ProveConsistencyResponse:
        request = pb.ProveConsistencyRequest(
            broker_group=broker_group, old_size=old_size, new_size=new_size
        )
        return self._ask("ProveConsistency", request, pb.ProveConsistencyResponse)

    def seal_now(self, request: pb.SealNowRequest) -> pb.SealNowResponse:
        """One step towards the seal of everything in a broker group's log; a repeated call
        continues it."""
        return self._ask("SealNow", request, pb.SealNowResponse)

    def list_checkpoint_keys(self) -> pb.ListCheckpointKeysResponse:
        return self._ask(
            "ListCheckpointKeys", pb.ListCheckpointKeysRequest(), pb.ListCheckpointKeysResponse
        )
