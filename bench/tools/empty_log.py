"""The ceiling of native streams: a Log service that stores nothing. It acknowledges every frame at
once, and serves the same range of entries repeatedly. `python -m bench.tools.empty_log PORT`.

Prints `ready` when it listens, and ends with its standard input. What remains is the cost of gRPC,
the wire and the client; everything else is the cost of a cluster.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio
import uvloop

from bench.streams.native_load import CHANNEL
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import FrameBuilder

LOG_TAG = 1
WINDOW_FRAMES = 5
ENTRIES = 1000
RANGES = 2000
"""A reader receives this many ranges of `ENTRIES` messages of 100 bytes."""


async def produce(requests: Any, _: Any) -> Any:
    sequence = 0
    async for data in requests:
        request = pb.ProduceRequest.FromString(data)
        if request.HasField("open"):
            opened = pb.ProducerOpened(
                producer_id=1, window_frames=WINDOW_FRAMES, window_bytes=8 << 20, log_tag=LOG_TAG
            )
            yield pb.ProduceResponse(opened=opened).SerializeToString()
            continue
        count = len(request.frame.sizes) // 4
        if request.frame.first_sequence != sequence:
            raise ValueError(f"sequence {request.frame.first_sequence} came, {sequence} was next")
        yield pb.ProduceResponse(
            ack=pb.FrameAck(first_sequence=sequence, count=count)
        ).SerializeToString()
        sequence += count


async def fetch(requests: Any, context: Any) -> Any:
    opened = pb.FetchRequest.FromString(await anext(requests)).open
    frame = FrameBuilder(opened.topic, LOG_TAG, 1, 0).encode(
        0, 0, [bytes(100)] * ENTRIES, born_ms=1
    )
    credit = opened.credit_bytes
    yield pb.FetchResponse(opened=pb.FetchOpened()).SerializeToString()
    for number in range(RANGES):
        entries = pb.Entries(
            queue=0, first_offset=number * ENTRIES, sizes=frame.sizes, entries=frame.entries
        )
        while credit <= 0:
            credit += pb.FetchRequest.FromString(await anext(requests)).credit_bytes
        credit -= len(frame.entries)
        yield pb.FetchResponse(entries=entries).SerializeToString()
    yield pb.FetchResponse(caught_up=pb.CaughtUp()).SerializeToString()
    async for _ in requests:
        pass  # the reader ends the stream


async def serve(port: int) -> None:
    server = grpc.aio.server(options=CHANNEL)
    methods = {
        "Produce": grpc.stream_stream_rpc_method_handler(produce),
        "Fetch": grpc.stream_stream_rpc_method_handler(fetch),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("ledgermq.v1.Log", methods),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(serve(int(sys.argv[1])))
