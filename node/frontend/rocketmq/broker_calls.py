"""Calls to broker groups that this node leads, with two additions: retries for new topics and
cancellation.

A topic that the controller knows may not yet be in force in a broker group's log, because its
leader has yet to write the control record: the call is then repeated until its deadline. If the
caller of a Receive or a Pull has gone, the call is cancelled, so that no lease goes to a dead call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    CancelReceive,
    Change,
    Forward,
    Receive,
    SyncLite,
)
from ledgermq.node.broker.calls.outcome import AGAIN, NOTHING_DONE, Call, CallRefused, Refused
from ledgermq.node.broker.calls.read_calls import (
    CommitOffset,
    Confirm,
    FindOffset,
    Pull,
    ReadOffset,
)
from ledgermq.node.broker.calls.send_calls import Produce, Recall
from ledgermq.node.broker.calls.transaction_calls import Prepare, Resolve
from ledgermq.node.frontend.ports import Engine
from ledgermq.node.frontend.rocketmq.service_config import DEADLINE_MARGIN_S
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire.validation import Caller
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.proto.status import Code, fail

RETRY_S = 0.03

Answered = (
    Produce
    | Prepare
    | Resolve
    | Recall
    | Confirm
    | Receive
    | Ack
    | Change
    | Forward
    | CommitOffset
    | ReadOffset
    | FindOffset
    | Pull
    | SyncLite
)


class Groups:
    """The broker groups of this node for the methods of the service. Deadlines are in the loop's
    time, in seconds."""

    def __init__(self, engine: Engine, topics: Topics, forwarder: Forwarder) -> None:
        self.engine = engine
        self._topics = topics
        self._forwarder = forwarder

    def leads(self, broker_group: str) -> bool:
        """Whether a call should be tried here first. An outdated yes does no harm: the group
        refuses with `not-leader`."""
        view = self.engine.views.get(broker_group)
        return view is not None and view.serving

    async def at_leader(
        self,
        broker_group: str,
        here: Callable[[], Awaitable[bytes]],
        *,
        method: str,
        caller: Caller,
        data: bytes,
        deadline: float,
        repeatable: bool = True,
    ) -> bytes:
        """The response to the request `data` from the leader of the broker group: by `here` if this
        node leads it, otherwise from the node that does. `repeatable` as for `Forwarder.submit`.
        Raises CallRefused, and what `here` raises."""
        if self.leads(broker_group):
            try:
                return await here()
            except CallRefused as refusal:
                if refusal.refused.reason not in (AGAIN if repeatable else NOTHING_DONE):
                    raise
        responses = await self._forwarder.submit(
            broker_group,
            method,
            caller.metadata(),
            data,
            deadline - DEADLINE_MARGIN_S,
            repeatable=repeatable,
        )
        return responses[0]

    async def call(
        self, broker_group: str, call: Answered, stored_topic: str, deadline: float
    ) -> Any:
        """The result of a call. Raises CallRefused, or LedgerError if the topic did not come into
        force in time."""
        while True:
            entered = ANSWERS.enter(call.token) if isinstance(call, Receive | Pull) else None
            try:
                outcome = await self.engine.call(broker_group, call)
            except asyncio.CancelledError:
                if entered is not None:
                    self.notify(broker_group, CancelReceive(call.token))
                raise
            finally:
                if entered is not None:
                    ANSWERS.leave(entered)
            if not isinstance(outcome, Refused):
                return outcome
            if outcome.reason != "unknown-topic" or self._topics.known(stored_topic) is None:
                raise CallRefused(outcome)
            if asyncio.get_running_loop().time() + RETRY_S + DEADLINE_MARGIN_S > deadline:
                raise fail(
                    Code.HA_NOT_AVAILABLE,
                    f"topic {stored_topic} is being set up in broker group {broker_group}; try"
                    " again",
                )
            await asyncio.sleep(RETRY_S)
            call = replace(call, token=self.engine.new_token())

    def notify(self, broker_group: str, call: Call) -> None:
        self.engine.notify(broker_group, call)
