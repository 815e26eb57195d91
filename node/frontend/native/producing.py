"""Produce: opens a producer and runs its stream (`produce_stream.py`). This module has the first
request and the end of the stream.

A producer is opened at the leader, through its log, and only after there is a key to sign its
receipts with. A producer's name and number belong to the user who signed the call: no other user
can open or resume it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.node.broker.calls.outcome import AGAIN, CallRefused, Refused
from ledgermq.node.broker.calls.send_calls import OpenProducer, ProducerOpened, ResumeProducer
from ledgermq.node.controller.grants import Kind
from ledgermq.node.frontend.native.callers import Caller, Callers
from ledgermq.node.frontend.native.frame_answers import FrameAnswers
from ledgermq.node.frontend.native.frame_checks import FrameChecker, Origin
from ledgermq.node.frontend.native.incoming import Incoming
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.open_streams import OpenStream, OpenStreams
from ledgermq.node.frontend.native.problems import Moved, as_error, problem
from ledgermq.node.frontend.native.produce_stream import WINDOW_BYTES, WINDOW_FRAMES, ProduceStream
from ledgermq.node.frontend.native.requests import FrameRequest, read
from ledgermq.node.frontend.ports import CallGone, Engine, ServerCall, Spans
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.config_sections import Limits
from ledgermq.proto import log_pb2
from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.proto.names import has_control_character
from ledgermq.proto.status import Code, fail

METHOD = "Produce"
CLIENT_TYPE = "native-producer"
NAME_MAX = 255
OPEN_WITHIN_S = 30.0
"""A stream that sends no first request for this long is ended."""
LOG_FILE_PARTS = 4
"""A frame takes at most this fraction (1/4) of a log file: what remains of a file when the next
frame does not fit stays unused."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """What Produce needs to know of a broker group with a replica here."""

    log_id: str
    data_file_bytes: int


class Producing:
    """Produce of one node. Belongs to the loop's thread."""

    def __init__(
        self,
        node: str,
        cluster_id: str,
        engine: Engine,
        hosted: Mapping[str, Hosted],
        topics: Topics,
        leaders: Leaders,
        callers: Callers,
        keys: ReceiptKeys,
        streams: OpenStreams,
        limits: Limits,
        spans: Spans | None,
    ) -> None:
        self._node = node
        self._cluster_id = cluster_id
        self._engine = engine
        self._hosted = hosted
        self._topics = topics
        self._leaders = leaders
        self._callers = callers
        self._keys = keys
        self._streams = streams
        self._limits = limits
        self._spans = spans
        self._checker = FrameChecker(engine.views, topics, callers, limits)

    async def serve(self, context: ServerCall) -> None:
        """Serve one stream to its end."""
        incoming = Incoming(context)
        with (
            contextlib.suppress(CallGone),
            contextlib.closing(incoming),
            metrics.NATIVE_STREAMS.labels(METHOD).track_inprogress(),
        ):
            last: log_pb2.ProduceResponse | None = None
            try:
                await self._serve(context, incoming)
            except CallGone:
                raise
            except Moved as moved:
                last = log_pb2.ProduceResponse(
                    redirect=await self._leaders.settled(moved.broker_group)
                )
            except Exception as error:  # the client gets a problem, never an exception
                last = log_pb2.ProduceResponse(problem=problem(as_error(error, self._node, METHOD)))
            if last is not None:
                await context.write(last.SerializeToString())
                await incoming.silence()

    async def _serve(self, context: ServerCall, incoming: Incoming) -> None:
        # Read before the caller is checked: a client that is still writing would lose the answer.
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                data = await incoming.next()
        except TimeoutError:
            raise fail(
                Code.REQUEST_TIMEOUT,
                f"the stream did not open a producer within {OPEN_WITHIN_S:g} s",
            ) from None
        if data is None:
            return
        caller = await self._callers.of(context)
        request = read(data)
        if isinstance(request, FrameRequest):
            raise fail(Code.BAD_REQUEST, "the first request of a stream must open a producer")
        group = await self._group(request.broker_group)
        caller = caller.called(request.client_id)
        opened = await self._open(group, caller, request)
        hosted = self._hosted[group]
        origin = Origin(
            broker_group=group,
            caller=caller,
            log_tag=chain_seed(hosted.log_id),
            producer_id=opened.producer_id,
            epoch=opened.epoch,
            max_frame_bytes=min(
                self._limits.max_frame_bytes, hosted.data_file_bytes // LOG_FILE_PARTS
            ),
            max_entry_bytes=hosted.data_file_bytes // LOG_FILE_PARTS,
        )
        answers = FrameAnswers(
            self._node,
            self._cluster_id,
            hosted.log_id,
            origin,
            self._keys,
            next_sequence=opened.next_sequence,
        )
        stream = ProduceStream(
            context,
            incoming,
            self._engine,
            self._checker,
            answers,
            origin=origin,
            memory=request.memory,
            node=self._node,
            trace=None
            if self._spans is None
            else self._spans.frames_of(context, request.client_id),
        )
        with self._streams.held(
            OpenStream(caller.client_id, CLIENT_TYPE, group, stream.move, stream.topics)
        ):
            await context.write(self._opened(origin, opened).SerializeToString())
            await stream.run()

    async def _group(self, name: str) -> str:
        if not await self._topics.has_broker_group(name):
            raise fail(
                Code.BAD_REQUEST,
                f"there is no broker group {name!r}; Locate returns those of a topic",
            )
        if name not in self._hosted or not self._leaders.serves(name):
            raise Moved(name)
        return name

    async def _open(
        self, group: str, caller: Caller, request: log_pb2.OpenProducer
    ) -> ProducerOpened:
        """Open or resume a producer, through the log. Raises Moved, LedgerError."""
        await self._keys.ready()
        token = self._engine.new_token()
        call: OpenProducer | ResumeProducer
        if request.producer_id:
            call = ResumeProducer(token, request.producer_id, request.epoch, caller.user)
        else:
            call = OpenProducer(token, _name_of(request.name, caller), caller.user, request.digest)
        with (
            self._callers.enter(caller, Kind.TOPIC, (), receive=False, messages=1, size=0)
            or contextlib.nullcontext()
        ):
            outcome = await self._engine.call(group, call)
        if isinstance(outcome, Refused):
            if outcome.reason in AGAIN:
                raise Moved(group)
            raise CallRefused(outcome)
        assert isinstance(outcome, ProducerOpened), "a producer is opened or refused"
        return outcome

    def _opened(self, origin: Origin, opened: ProducerOpened) -> log_pb2.ProduceResponse:
        return log_pb2.ProduceResponse(
            opened=log_pb2.ProducerOpened(
                producer_id=opened.producer_id,
                epoch=opened.epoch,
                next_sequence=opened.next_sequence,
                max_frame_bytes=origin.max_frame_bytes,
                window_bytes=WINDOW_BYTES,
                window_frames=WINDOW_FRAMES,
                cluster_id=self._cluster_id,
                log_tag=origin.log_tag,
                digest=opened.digest,
            )
        )


def _name_of(name: str, caller: Caller) -> str:
    """The producer's name in the log: in signed calls the user's name is put in front. User names
    have no '@'."""
    if not name:
        return ""
    if len(name.encode()) > NAME_MAX or has_control_character(name) or not name.strip():
        raise fail(
            Code.BAD_REQUEST,
            f"a producer's name must have 1 to {NAME_MAX} bytes and no control characters",
        )
    return f"{caller.user}@{name}" if caller.user else name
