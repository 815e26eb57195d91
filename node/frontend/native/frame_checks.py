"""Checks an incoming frame before the broker group appends it: the caller's permission, the topic,
the quota, the format.

The cheap checks come first, so that a refusal costs little. A large frame is parsed on a thread, so
that the loop never spends more than a few milliseconds on one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.controller.grants import Kind
from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.native.callers import Caller, Callers, publish
from ledgermq.node.frontend.native.requests import FrameRequest
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.security.quotas import Hold
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.proto.frames import read_frame
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import Frame, TopicKind

INLINE_MESSAGES = 1024
"""A frame with more messages or more bytes is checked on a thread. The handover costs about 0.1 ms;
a message costs up to 1 µs, or about 10 µs in a frame with a bad message."""
INLINE_BYTES = 512 << 10
IN_FORCE_WITHIN_S = 3.0
_LOOK_AGAIN_S = 0.02
KINDS = frozenset({TopicKind.NORMAL, TopicKind.MIXED})
"""The topic kinds that accept frames: other kinds need message properties that a frame cannot
carry."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What all frames of a stream share. `max_entry_bytes`: the longest entry that the broker
    group's log files accept."""

    broker_group: str
    caller: Caller
    log_tag: int
    producer_id: int
    epoch: int
    max_frame_bytes: int
    max_entry_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A checked frame. `hold`: counts against quotas until the frame is answered."""

    topic: str
    frame: Frame
    hold: Hold | None


class FrameChecker:
    """The frame checks of one node. `views`: of its broker groups."""

    def __init__(
        self, views: Mapping[str, GroupView], topics: Topics, callers: Callers, limits: Limits
    ) -> None:
        self._views = views
        self._topics = topics
        self._callers = callers
        self._limits = limits

    async def check(self, origin: Origin, request: FrameRequest) -> Checked:
        """Check a frame. Raises BadFrame, TooMuch, or another LedgerError; then nothing was
        counted."""
        stored = origin.caller.topic(request.namespace, request.topic)
        self._callers.allow(origin.caller, publish(stored))
        queues = await self._queues(stored, origin.broker_group)
        size = len(request.entries)
        if size > origin.max_frame_bytes:
            text = f"the frame has {size} bytes of entries; the limit is {origin.max_frame_bytes}"
            raise fail(Code.MESSAGE_BODY_TOO_LARGE, text)
        hold = self._callers.enter(
            origin.caller, Kind.TOPIC, (stored,), receive=False, messages=request.count, size=size
        )
        try:
            return Checked(stored, await self._read(origin, stored, request, queues), hold)
        except BaseException:  # a caller that left meanwhile must not keep its share of the quota
            if hold is not None:
                hold.__exit__(None, None, None)
            raise

    async def _queues(self, stored: str, broker_group: str) -> int:
        """The number of queues of the topic in the broker group, once it is in force there. Raises
        LedgerError."""
        topic = self._topics.known(stored) or await self._topics.find(stored)
        if topic.kind not in KINDS:
            text = (
                f"topic {stored} is of kind {topic.kind.value}: its messages are sent one by one"
                " (SendMessage), not in frames"
            )
            raise fail(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        if not topic.permission.writable:
            raise fail(Code.FORBIDDEN, f"topic {stored} has no writable queue")
        queues = topic.placement.get(broker_group, 0)
        if not queues:
            raise fail(
                Code.BAD_REQUEST,
                f"topic {stored} has no queue in broker group {broker_group}; locate it again",
            )
        await self._in_force(stored, topic, broker_group)
        return queues

    async def _in_force(self, stored: str, topic: Topic, broker_group: str) -> None:
        """Wait until the topic is in force. If the log refused a frame for a topic it does not know
        yet, later frames would overtake it."""
        wanted = topic.in_group(broker_group)
        until = asyncio.get_running_loop().time() + IN_FORCE_WITHIN_S
        while (
            (view := self._views.get(broker_group)) is not None
            and view.serving
            and view.topics.get(stored) != wanted
        ):
            if asyncio.get_running_loop().time() > until:
                raise fail(
                    Code.HA_NOT_AVAILABLE,
                    f"topic {stored} is being set up in broker group {broker_group}; try again",
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _read(self, origin: Origin, stored: str, request: FrameRequest, queues: int) -> Frame:
        limits = self._limits

        def read() -> Frame:
            return read_frame(
                stored_topic=stored,
                log_tag=origin.log_tag,
                producer_id=origin.producer_id,
                epoch=origin.epoch,
                first_sequence=request.first_sequence,
                sizes=request.sizes,
                entries=request.entries,
                queues=queues,
                max_body_bytes=limits.max_body_bytes,
                max_entry_bytes=origin.max_entry_bytes,
                max_properties_bytes=limits.max_properties_bytes,
                max_user_properties=limits.max_user_properties,
            )

        if request.count <= INLINE_MESSAGES and len(request.entries) <= INLINE_BYTES:
            return read()
        return await asyncio.to_thread(read)
