"""bench/streams/native_load.py against a Log service that stores nothing: what it counts was
acknowledged, its bytes are right."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from bench.streams import native_load
from bench.tools import empty_log
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import FrameBuilder, read_frame

TOPIC = "T"
Handlers = dict[str, Any]
EMPTY: Handlers = {"Produce": empty_log.produce, "Fetch": empty_log.fetch}


def run(handlers: Handlers, *arguments: str) -> dict[str, Any]:
    async def both() -> dict[str, Any]:
        server = grpc.aio.server(options=native_load.CHANNEL)
        methods = {
            name: grpc.stream_stream_rpc_method_handler(work) for name, work in handlers.items()
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("ledgermq.v1.Log", methods),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        what, *more = arguments
        options = native_load.parser().parse_args(
            [what, "--target", f"127.0.0.1:{port}", "--topic", TOPIC, *more]
        )
        try:
            return await native_load.work(options)
        finally:
            await server.stop(0)

    return asyncio.run(both())


@pytest.mark.parametrize("first", [0, 1, 127, 128, 1 << 40])
def test_hand_made_produce_request_parses_as_protobuf(first: int) -> None:
    frame = FrameBuilder(TOPIC, 7, 3, 1).encode(first, 2, [b"a" * 100, b"b" * 70_000], born_ms=5)
    request = pb.ProduceRequest.FromString(native_load.produce_request(TOPIC, frame))
    assert request == pb.ProduceRequest(
        frame=pb.Frame(topic=TOPIC, first_sequence=first, sizes=frame.sizes, entries=frame.entries)
    )


def test_native_load_counts_every_acknowledged_message() -> None:
    found = run(
        EMPTY,
        "produce",
        "--limit",
        "5000",
        "--batch",
        "100",
        "--producers",
        "2",
        "--warm-up-s",
        "0",
        "--seconds",
        "30",
    )
    assert found["messages"] == found["total"] == 10_000
    assert not found["open_loop"]


def test_frames_of_the_load_are_valid_for_a_node() -> None:
    frames = []

    async def produce(requests: Any, context: Any) -> Any:
        async def kept() -> Any:
            async for data in requests:
                request = pb.ProduceRequest.FromString(data)
                if request.HasField("frame"):
                    frames.append(request.frame)
                yield data

        async for answer in empty_log.produce(kept(), context):
            yield answer

    limits: Any = {"queues": 8, "max_body_bytes": 1000, "max_entry_bytes": 4000}
    run(
        {"Produce": produce},
        "produce",
        "--limit",
        "100",
        "--batch",
        "10",
        "--spread",
        "message",
        "--warm-up-s",
        "0",
        "--seconds",
        "30",
    )
    for frame in frames:
        found = read_frame(
            TOPIC,
            empty_log.LOG_TAG,
            1,
            0,
            frame.first_sequence,
            frame.sizes,
            frame.entries,
            **limits,
        )
        assert found.batch.queues.tolist() == [(frame.first_sequence + k) % 8 for k in range(10)]


def test_a_stall_shows_in_an_open_loop() -> None:
    """Frames have intended times: those that waited behind a stall count from then."""

    async def produce(requests: Any, context: Any) -> Any:
        answered = 0
        async for answer in empty_log.produce(requests, context):
            answered += 1
            if answered == 20:
                await asyncio.sleep(0.5)
            yield answer

    found = run(
        {"Produce": produce},
        "produce",
        "--rate",
        "1000",
        "--batch",
        "10",
        "--warm-up-s",
        "0",
        "--seconds",
        "1",
    )
    assert found["open_loop"]
    assert found["p90_ms"] > 300, found
    assert found["p50_ms"] < found["p90_ms"]


def test_a_refusal_ends_the_load() -> None:
    async def produce(requests: Any, context: Any) -> Any:
        async for answer in empty_log.produce(requests, context):
            if pb.ProduceResponse.FromString(answer).HasField("ack"):
                rejected = pb.FrameRejected(problem=pb.Problem(code=40400, message="no such topic"))
                answer = pb.ProduceResponse(rejected=rejected).SerializeToString()
            yield answer

    with pytest.raises(RuntimeError, match="no such topic"):
        run(
            {"Produce": produce},
            "produce",
            "--limit",
            "1000",
            "--batch",
            "10",
            "--warm-up-s",
            "0",
            "--seconds",
            "30",
        )


def test_a_reader_counts_every_entry_and_gives_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_log, "RANGES", 200)
    found = run(EMPTY, "consume", "--queues", "1", "--limit", "200000")
    assert found["messages"] == 200_000
    assert found["entry_bytes_a_message"] * found["messages"] > 2 * native_load.CREDIT_BYTES
    with pytest.raises(RuntimeError, match="200000 of 200001"):
        run(EMPTY, "consume", "--queues", "1", "--limit", "200001")
