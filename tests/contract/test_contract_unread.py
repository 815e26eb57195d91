"""Clients that do not take their answers: what the server reads for them is bounded, on the node
and for a connection, and others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.frontend.rocketmq import broker_calls
from ledgermq.node.runtime.answer_budget import COPIES, AnswerBudget
from ledgermq.proto import messaging_pb2 as pb
from tests.contract.backend import SERVICE, Backend, message, run
from tests.contract.test_contract_pull import pull, queue

NODE, CONNECTION = 8 << 20, 4 << 20
BODY, BATCH = 100_000, 10
ANSWER = COPIES * BATCH * BODY
CONNECTIONS, CALLS = 4, 15


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def field(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call(stream: int, method: str, request: bytes) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": SERVICE + method,
        ":authority": "x",
        "te": "trailers",
    }
    fields |= {"content-type": "application/grpc", "x-mq-client-id": "c"}
    head = b"".join(field(name, value) for name, value in fields.items())
    return frame(1, 4, stream, head) + frame(
        0, 1, stream, b"\0" + len(request).to_bytes(4, "big") + request
    )


WHOLE = pb.FilterExpression(type=pb.TAG, expression="*")


def pull_of(topic: str) -> bytes:
    return pb.PullMessageRequest(
        group=pb.Resource(name="G"),
        message_queue=queue(topic),
        batch_size=BATCH,
        filter_expression=WHOLE,
    ).SerializeToString()


def receive_of(topic: str) -> bytes:
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name="G"),
        message_queue=queue(topic),
        batch_size=BATCH,
        filter_expression=WHOLE,
    )
    request.long_polling_timeout.FromSeconds(20)
    request.invisible_duration.FromSeconds(60)
    return request.SerializeToString()


REQUESTS = {"PullMessage": pull_of("T"), "ReceiveMessage": receive_of("T")}


@pytest.mark.parametrize("method", REQUESTS)
def test_untaken_answers_are_bounded(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty calls, for 120 MB with their copies. The client keeps its windows shut, as one whose
    socket is full does in effect."""
    budget = AnswerBudget(NODE, CONNECTION)
    monkeypatch.setattr(broker_calls, "ANSWERS", budget)

    async def scenario() -> None:
        server = Backend(budget=budget)
        budget.on_room(server.engine.turn)
        await server.start()
        await server.topic("T", queues=1)
        for _ in range(CONNECTIONS * CALLS * BATCH if method == "ReceiveMessage" else BATCH):
            await server.raw.send(message(b"x" * BODY))
        group = server.engine.groups["g1"]
        asked = 0
        take = group.leader.take

        def counted(calls: Any, *rest: Any) -> Any:
            nonlocal asked
            asked += sum(isinstance(one, Receive) for one in calls)
            return take(calls, *rest)

        monkeypatch.setattr(group.leader, "take", counted)
        shut = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4\0\0\0\0")
        writers = []
        for _ in range(CONNECTIONS):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                shut + b"".join(call(2 * at + 1, method, REQUESTS[method]) for at in range(CALLS))
            )
            writers.append(writer)
        pulls = group._reads.pulls

        def all_arrived() -> bool:
            if method == "ReceiveMessage":
                return asked == CONNECTIONS * CALLS
            return len(pulls.waiting) + round(budget.held_bytes / ANSWER) == CONNECTIONS * CALLS

        await server.until(all_arrived)
        await server.until(lambda: not budget.open)
        assert NODE <= budget.held_bytes < NODE + 1.1 * ANSWER
        assert max(budget._of.values()) < CONNECTION + 1.1 * ANSWER
        if method == "ReceiveMessage":
            assert server.engine.in_flight() * BODY * COPIES <= budget.held_bytes, (
                "messages that were not read were leased"
            )
        # Sends go on, and another client gets its messages as soon as there is room.
        assert (await server.raw.send(message(b"other"))).status.code == pb.OK
        waiting = asyncio.create_task(pull(server.raw, 0, batch=1, polling=20, timeout=30))
        await server.until(lambda: bool(pulls.turned_away))
        for writer in writers:
            writer.close()
        assert len((await waiting).bodies) == 1
        await server.stop()
        async with asyncio.timeout(30):
            while budget.held_bytes:
                await asyncio.sleep(0.01)

    run(scenario)
