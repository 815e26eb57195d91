"""The Telemetry stream: a client sends its Settings and gets the server's (§2.4).

Only here does a broken rule end a call with a gRPC status: INVALID_ARGUMENT for Settings that
cannot be accepted. Otherwise the stream stays open for the life of the client, and every Settings
is answered. The first answer is repeated once, because some clients lose an answer that comes
before their last route.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from google.protobuf.message import DecodeError

from ledgermq.node.frontend.ports import CallAborted, CallGone, ServerCall, StatusCode
from ledgermq.node.frontend.rocketmq.access_control import AccessControl
from ledgermq.node.frontend.rocketmq.client_settings import merge
from ledgermq.node.frontend.rocketmq.clients import Clients
from ledgermq.node.frontend.rocketmq.receiving import takes
from ledgermq.node.frontend.rocketmq.service_config import ServiceConfig
from ledgermq.node.frontend.rocketmq.streams import Open, Streams
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.validation import (
    Caller,
    check_settings,
    group_of,
    topic_of,
)
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Forbidden, LedgerError

METHOD = "Telemetry"
REPEAT_S = 1.5
POSTED_BYTES = 8 << 20
"""The most bytes of commands that wait for one client; one command is always accepted."""
BEAT_S = 5.0
"""How often an open stream counts as a sign of life, in seconds."""


class Telemetry:
    """The Telemetry streams of one node."""

    def __init__(
        self,
        config: ServiceConfig,
        topics: Topics,
        clients: Clients,
        streams: Streams,
        access: AccessControl,
    ) -> None:
        self._config = config
        self._access = access
        self._topics = topics
        self._clients = clients
        self._streams = streams
        self._beat_s = min(BEAT_S, config.delivery.liveness_ms / 4000)

    async def serve(self, caller: Caller, context: ServerCall) -> None:
        """Serve one stream until the client ends it."""
        stream = _Stream(
            context, self._beat_s, lambda: self._clients.still_open(caller.client_id, caller.peer)
        )
        try:
            while (data := await context.read()) is not None:
                self._clients.on_contact(caller.client_id, caller.peer)
                command = pb.TelemetryCommand.FromString(data)
                if command.WhichOneof("command") == "settings":
                    check_settings(command.settings, caller)
                    self._access.admit_settings(command.settings, caller)
                    self._clients.remember(caller.client_id, command.settings)
                    opened = _described(stream, command.settings, caller)
                    self._streams.opened(opened)
                    await stream.answer(self._merged(opened))
        except DecodeError:
            raise CallAborted(
                StatusCode.INVALID_ARGUMENT,
                "a message on the stream is not a valid TelemetryCommand",
            ) from None
        except Forbidden as error:
            # As for wrong credentials: the answer is a command with only a status, and then the
            # stream ends.
            await stream.refuse(
                pb.TelemetryCommand(status=statuses.status_of(error)).SerializeToString()
            )
        except LedgerError as error:
            raise CallAborted(StatusCode.INVALID_ARGUMENT, str(error)) from None
        finally:
            self._streams.closed(caller.client_id, stream)
            stream.close()

    def group_changed(self, stored: str) -> None:
        """Send new Settings to the clients of a consumer group whose configuration changed."""
        for opened in self._streams.of_group(stored):
            opened.stream.renew(self._merged(opened))

    def _merged(self, opened: Open) -> bytes:
        group = self._topics.group(opened.group) if opened.group else None
        merged = merge(opened.settings, group, self._config.delivery, self._config.limits)
        return pb.TelemetryCommand(status=statuses.OK, settings=merged).SerializeToString()


def _described(stream: _Stream, settings: pb.Settings, caller: Caller) -> Open:
    if settings.WhichOneof("pub_sub") == "publishing":
        return Open(
            stream,
            settings,
            caller,
            sorted({topic_of(topic, caller) for topic in settings.publishing.topics}),
            "",
        )
    return Open(stream, settings, caller, (), group_of(settings.subscription.group, caller))


class _Stream:
    """The writing side of one stream; the reader and a timer write, one at a time. While the stream
    is open it gives signs of life."""

    def __init__(self, context: ServerCall, beat_s: float, beat: Callable[[], None]) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._beat_s = beat_s
        self._beat = beat
        self._beating = asyncio.get_running_loop().call_later(beat_s, self._keep_beating)
        self._latest = b""
        self._timer: asyncio.TimerHandle | None = None
        self._repeat: asyncio.Task[None] | None = None
        self._posted: set[asyncio.Task[None]] = set()
        self._posted_bytes = 0

    def post(self, command: bytes) -> bool:
        """Queue a command for writing. False if too much waits already, or the client cannot
        receive a message of this size."""
        if not takes(self._context, len(command)):
            return False
        if self._posted and self._posted_bytes + len(command) > POSTED_BYTES:
            return False
        self._posted_bytes += len(command)
        task = asyncio.create_task(self._write(command))
        self._posted.add(task)
        task.add_done_callback(lambda _: self._written(task, len(command)))
        return True

    def _written(self, task: asyncio.Task[None], size: int) -> None:
        self._posted.discard(task)
        self._posted_bytes -= size

    def renew(self, settings: bytes) -> None:
        """Send Settings that replace the last answer."""
        self._latest = settings
        self.post(settings)

    async def answer(self, data: bytes) -> None:
        first = not self._latest
        self._latest = data
        async with self._lock:
            await self._context.write(data)
        if first:
            self._timer = asyncio.get_running_loop().call_later(REPEAT_S, self._start_repeat)

    async def refuse(self, data: bytes) -> None:
        async with self._lock:
            await self._context.write(data)

    def _keep_beating(self) -> None:
        self._beat()
        self._beating = asyncio.get_running_loop().call_later(self._beat_s, self._keep_beating)

    def _start_repeat(self) -> None:
        self._repeat = asyncio.create_task(self._write(self._latest))

    async def _write(self, data: bytes) -> None:
        # The client may have just gone; the stream's own task notices.
        with contextlib.suppress(CallGone):
            async with self._lock:
                await self._context.write(data)

    def close(self) -> None:
        self._beating.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._repeat is not None:
            self._repeat.cancel()
            # A cancelled task references this stream: a reference cycle that the collector does not
            # see.
            self._repeat = None
        for task in self._posted:
            task.cancel()
