"""The ceiling of a client: a server of the official protocol that stores nothing and answers at
once.

    python -m bench.tools.empty_server PORT

Prints `ready` when it listens, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from ledgermq.node.frontend.rocketmq.client_settings import merge
from ledgermq.node.runtime.config_sections import Delivery, Limits
from ledgermq.proto import messaging_pb2 as pb

OK = pb.Status(code=pb.OK, message="OK")
QUEUES = 8


async def route(request: pb.QueryRouteRequest, _: Any) -> pb.QueryRouteResponse:
    broker = pb.Broker(name="g1", id=0, endpoints=request.endpoints)
    queues = [
        pb.MessageQueue(
            topic=request.topic,
            id=queue,
            permission=pb.READ_WRITE,
            broker=broker,
            accept_message_types=[pb.NORMAL],
        )
        for queue in range(QUEUES)
    ]
    return pb.QueryRouteResponse(status=OK, message_queues=queues)


async def heartbeat(request: pb.HeartbeatRequest, _: Any) -> pb.HeartbeatResponse:
    return pb.HeartbeatResponse(status=OK)


async def terminate(
    request: pb.NotifyClientTerminationRequest, _: Any
) -> pb.NotifyClientTerminationResponse:
    return pb.NotifyClientTerminationResponse(status=OK)


async def send(request: pb.SendMessageRequest, _: Any) -> pb.SendMessageResponse:
    entries = [
        pb.SendResultEntry(status=OK, message_id=message.system_properties.message_id, offset=1)
        for message in request.messages
    ]
    return pb.SendMessageResponse(status=OK, entries=entries)


async def telemetry(_: Any, context: Any) -> None:
    await context.send_initial_metadata(())
    while (command := await context.read()) is not grpc.aio.EOF:
        if command.WhichOneof("command") == "settings":
            await context.write(
                pb.TelemetryCommand(
                    status=OK, settings=merge(command.settings, None, Delivery(), Limits())
                )
            )


UNARY: dict[str, tuple[Any, Any, Any]] = {
    "QueryRoute": (route, pb.QueryRouteRequest, pb.QueryRouteResponse),
    "Heartbeat": (heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
    "NotifyClientTermination": (
        terminate,
        pb.NotifyClientTerminationRequest,
        pb.NotifyClientTerminationResponse,
    ),
    "SendMessage": (send, pb.SendMessageRequest, pb.SendMessageResponse),
}


async def serve(port: int) -> None:
    server = grpc.aio.server()
    methods: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            work, request.FromString, response.SerializeToString
        )
        for name, (work, request, response) in UNARY.items()
    }
    command = pb.TelemetryCommand
    methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
        telemetry, command.FromString, command.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", methods),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0.5)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(serve(int(sys.argv[1])))
