"""bench/tools/load.py against a service that stores nothing: a load that has no messages left ends,
and divides by the time until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from bench.tools import load
from ledgermq.proto import messaging_pb2 as pb

BACKLOG = 500
OK = pb.Status(code=pb.OK)


class Backlog:
    """So many messages for Receives, each delivered once."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    async def ReceiveMessage(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        count = min(self.left, pb.ReceiveMessageRequest.FromString(data).batch_size)
        self.left -= count
        status = OK if count else pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
        yield pb.ReceiveMessageResponse(status=status).SerializeToString()
        for number in range(count):
            message = pb.Message(
                system_properties=pb.SystemProperties(
                    message_id=f"m{number}", receipt_handle=f"h{number}"
                )
            )
            yield pb.ReceiveMessageResponse(message=message).SerializeToString()

    async def AckMessage(self, data: bytes, context: Any) -> bytes:
        return pb.AckMessageResponse(status=OK).SerializeToString()

    async def SendMessage(self, data: bytes, context: Any) -> bytes:
        return pb.SendMessageResponse(status=OK).SerializeToString()


def run(backlog: Backlog, what: str, *arguments: str) -> dict[str, Any]:
    async def both() -> dict[str, Any]:
        server = grpc.aio.server()
        methods = {
            "ReceiveMessage": grpc.unary_stream_rpc_method_handler(backlog.ReceiveMessage),
            "AckMessage": grpc.unary_unary_rpc_method_handler(backlog.AckMessage),
            "SendMessage": grpc.unary_unary_rpc_method_handler(backlog.SendMessage),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", methods),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        options = load.parser().parse_args(
            [what, "--target", f"127.0.0.1:{port}", "--topic", "T", *arguments]
        )
        try:
            return await load.work(options)
        finally:
            await server.stop(0)

    return asyncio.run(both())


@pytest.mark.parametrize("what", ["receive", "send"])
def test_the_measured_time_ends_when_the_messages_are_used_up(what: str) -> None:
    found = run(
        Backlog(BACKLOG),
        what,
        "--window",
        "4",
        "--limit",
        str(BACKLOG),
        "--warm-up-s",
        "0",
        "--seconds",
        "3600",
    )
    assert found["total"] == BACKLOG
    # Calls that were in flight when the first worker found nothing left do not count.
    assert 0 < found["messages"] <= BACKLOG
    assert found["seconds"] < 3600


def test_messages_that_are_used_up_before_the_measured_time_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=f"{BACKLOG} messages before"):
        run(Backlog(BACKLOG), "receive", "--warm-up-s", "3600")
