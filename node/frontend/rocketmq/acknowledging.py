"""AckMessage and ChangeInvisibleDuration: what consumers do with their leases (§2.7, §2.8).

A receipt handle names its broker group, so any node forwards the entries of a call to the groups of
their leases. An acknowledgement is answered when it is committed, and a repeated one the same way,
so a node that does not know the outcome asks the next leader. It repeats a change too: if the first
request took effect, the handle is replaced, and the second request changes nothing. A handle that
is unreadable, of another group or topic, expired or replaced is INVALID_RECEIPT_HANDLE for its
entry alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.consumer_calls import Ack, Acked, Change, Changed, Handle
from ledgermq.node.broker.calls.outcome import AGAIN, CallRefused
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.service_config import DEADLINE_MARGIN_S, ServiceConfig
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.rocketmq.wire.validation import Caller, changed_ms, group_of, topic_of
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, LedgerError, common, fail

ACK = "AckMessage"
CHANGE = "ChangeInvisibleDuration"
ACKS_MAX = 4096
"""The most entries in one call; a Receive returns at most 32 messages."""


def change_failure(status: pb.Status, data: bytes) -> bytes:
    """The response for a lease that was not changed. It repeats the handle, because clients
    overwrite theirs with whatever comes."""
    response = pb.ChangeInvisibleDurationResponse(status=status)
    with contextlib.suppress(DecodeError):
        response.receipt_handle = pb.ChangeInvisibleDurationRequest.FromString(data).receipt_handle
    return response.SerializeToString()


def _replaced() -> LedgerError:
    return fail(
        Code.INVALID_RECEIPT_HANDLE,
        "the lease of this receipt handle has expired, was replaced or is acknowledged already",
    )


class Acknowledger:
    """AckMessage and ChangeInvisibleDuration of one node."""

    def __init__(
        self, config: ServiceConfig, groups: Groups, forwarder: Forwarder, handles: Handles
    ) -> None:
        self._config = config
        self._groups = groups
        self._forwarder = forwarder
        self._handles = handles

    # Ack

    async def route_ack(self, data: bytes, caller: Caller, deadline: float) -> bytes:
        """Acknowledge the entries in the broker groups of their leases."""
        request = pb.AckMessageRequest.FromString(data)
        statuses_, parts, stored = self._sort(request, caller)
        if len(parts) == 1:
            ((broker_group, places),) = parts.items()
            await self._ack_part(
                broker_group, places, request, stored, caller, deadline=deadline, results=statuses_
            )
        elif parts:
            jobs = (
                self._ack_part(
                    broker_group=bg,
                    places=places,
                    request=request,
                    stored=stored,
                    caller=caller,
                    deadline=deadline,
                    results=statuses_,
                )
                for bg, places in parts.items()
            )
            await asyncio.gather(*jobs)
        return _ack_response(request, statuses_)

    async def execute_ack(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> list[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        request = pb.AckMessageRequest.FromString(data)
        statuses_, parts, stored = self._sort(request, caller)
        places = parts.pop(broker_group, [])
        for others in parts.values():
            for place, _ in others:
                statuses_[place] = statuses.status_of(_replaced())
        if places:
            await self._ack_here(broker_group, places, stored, deadline, statuses_)
        return [_ack_response(request, statuses_)]

    def _sort(
        self, request: pb.AckMessageRequest, caller: Caller
    ) -> tuple[list[pb.Status], dict[str, list[tuple[int, Handle]]], str]:
        """(status of each entry so far, (index, handle) of the valid entries by broker group,
        stored topic)"""
        stored, group = topic_of(request.topic, caller), group_of(request.group, caller)
        if not 0 < len(request.entries) <= ACKS_MAX:
            raise fail(
                Code.BAD_REQUEST,
                f"an acknowledgement holds 1 to {ACKS_MAX} entries, not {len(request.entries)}",
            )
        results = [statuses.OK] * len(request.entries)
        parts: dict[str, list[tuple[int, Handle]]] = {}
        for place, entry in enumerate(request.entries):
            try:
                broker_group, handle = self._handles.read_for(entry.receipt_handle, group, stored)
            except LedgerError as error:
                results[place] = statuses.status_of(error)
            else:
                parts.setdefault(broker_group, []).append((place, handle))
        return results, parts, stored

    async def _ack_part(
        self,
        broker_group: str,
        places: list[tuple[int, Handle]],
        request: pb.AckMessageRequest,
        stored: str,
        caller: Caller,
        deadline: float,
        results: list[pb.Status],
    ) -> None:
        """Acknowledge the entries of one broker group; a failure becomes their status."""
        try:
            if self._groups.leads(broker_group):
                try:
                    await self._ack_here(broker_group, places, stored, deadline, results)
                    return
                except CallRefused as refusal:
                    if refusal.refused.reason not in AGAIN:
                        raise
            part = pb.AckMessageRequest(
                group=request.group,
                topic=request.topic,
                entries=[request.entries[place] for place, _ in places],
            )
            data = part.SerializeToString()
            responses = await self._forwarder.submit(
                broker_group,
                ACK,
                caller.metadata(),
                data,
                deadline - DEADLINE_MARGIN_S,
                repeatable=True,
            )
            response = pb.AckMessageResponse.FromString(responses[0])
            for i, (place, _) in enumerate(places):
                results[place] = (
                    response.entries[i].status if i < len(response.entries) else response.status
                )
        # a failure of this part must not change the results of the other entries
        except Exception as error:
            status = statuses.status_of(statuses.as_error(error, self._config.node, ACK))
            for place, _ in places:
                results[place] = status

    async def _ack_here(
        self,
        broker_group: str,
        places: Sequence[tuple[int, Handle]],
        stored: str,
        deadline: float,
        results: list[pb.Status],
    ) -> None:
        call = Ack(self._groups.engine.new_token(), [handle for _, handle in places])
        acked: Acked = await self._groups.call(broker_group, call, stored, deadline)
        for (place, _), ok in zip(places, acked.ok, strict=True):
            if not ok:
                results[place] = statuses.status_of(_replaced())

    # Change

    async def route_change(self, data: bytes, caller: Caller, deadline: float) -> bytes:
        """Change the time until a leased message becomes visible again."""
        request = pb.ChangeInvisibleDurationRequest.FromString(data)
        broker_group, handle, stored = self._check_change(request, caller)
        return await self._groups.at_leader(
            broker_group,
            lambda: self._change_here(
                broker_group, handle, request, stored, caller, deadline=deadline
            ),
            method=CHANGE,
            caller=caller,
            data=data,
            deadline=deadline,
        )

    async def execute_change(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> list[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        request = pb.ChangeInvisibleDurationRequest.FromString(data)
        named, handle, stored = self._check_change(request, caller)
        if named != broker_group:
            raise _replaced()
        return [
            await self._change_here(
                broker_group, handle, request, stored, caller, deadline=deadline
            )
        ]

    def _check_change(
        self, request: pb.ChangeInvisibleDurationRequest, caller: Caller
    ) -> tuple[str, Handle, str]:
        stored, group = topic_of(request.topic, caller), group_of(request.group, caller)
        broker_group, handle = self._handles.read_for(request.receipt_handle, group, stored)
        changed_ms(request, self._config.delivery)
        return broker_group, handle, stored

    async def _change_here(
        self,
        broker_group: str,
        handle: Handle,
        request: pb.ChangeInvisibleDurationRequest,
        stored: str,
        caller: Caller,
        deadline: float,
    ) -> bytes:
        invisible_ms = changed_ms(request, self._config.delivery)
        call = Change(self._groups.engine.new_token(), handle, invisible_ms, caller.session)
        changed: Changed = await self._groups.call(broker_group, call, stored, deadline)
        if changed.lease_number is None:
            raise _replaced()
        renewed = Handle(
            group=handle.group,
            topic=handle.topic,
            queue=handle.queue,
            queue_offset=handle.queue_offset,
            lease_number=changed.lease_number,
            attempt=handle.attempt,
        )
        response = pb.ChangeInvisibleDurationResponse(
            status=statuses.OK, receipt_handle=self._handles.make(broker_group, renewed)
        )
        return response.SerializeToString()


def _ack_response(request: pb.AckMessageRequest, results: list[pb.Status]) -> bytes:
    """One result for each entry, in order; the response's own status is the code they have in
    common."""
    status = statuses.OK
    if any([each is not statuses.OK for each in results]):
        message = next((each.message for each in results if each.code != pb.OK), "OK")
        status = statuses.status(common({each.code for each in results}), message)
    response = pb.AckMessageResponse()
    response.status.CopyFrom(status)
    for entry, each in zip(request.entries, results, strict=True):
        response.entries.add(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each
        )
    return response.SerializeToString()
