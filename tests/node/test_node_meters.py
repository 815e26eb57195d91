"""Metrics of the client methods: codes read from the bytes of an answer, counts and latencies as
Prometheus wants them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from ledgermq.node.frontend.rocketmq.wire.meters import BUCKETS_S, NO_CODE, Meters, code_of
from ledgermq.proto import messaging_pb2 as pb


@pytest.mark.parametrize(
    "response",
    [
        pb.SendMessageResponse,
        pb.AckMessageResponse,
        pb.HeartbeatResponse,
        pb.ReceiveMessageResponse,
    ],
)
@pytest.mark.parametrize("message", ["", "OK", "x" * 200])
@pytest.mark.parametrize(
    "code", [pb.OK, pb.MULTIPLE_RESULTS, pb.TOPIC_NOT_FOUND, pb.INTERNAL_SERVER_ERROR]
)
def test_the_code_is_read_from_the_first_bytes(response: type, message: str, code: int) -> None:
    """As the library writes it, with texts of any length, and with more behind it."""
    answer = response(status=pb.Status(code=code, message=message))
    if response is pb.SendMessageResponse:
        answer.entries.add(message_id="m", offset=7)
    assert code_of(answer.SerializeToString()) == code


def test_response_without_a_status_counts_as_no_code() -> None:
    """Nothing at all, parts that are messages, and a status without a code are counted as 0 and
    break nothing."""
    part = pb.ReceiveMessageResponse(message=pb.Message(body=b"\x08\x08\x08"))
    for data in (
        b"",
        b"\x0a",
        part.SerializeToString(),
        pb.HeartbeatResponse(status=pb.Status(message="m")).SerializeToString(),
    ):
        assert code_of(data) == NO_CODE


def test_calls_are_counted_by_method_and_code_with_their_latency() -> None:
    """Every bucket counts what is not slower; a streamed answer counts once, by the part with the
    status."""
    meters = Meters()
    ok, missing = (
        pb.SendMessageResponse(status=pb.Status(code=code)).SerializeToString()
        for code in (pb.OK, pb.TOPIC_NOT_FOUND)
    )
    send, receive = meters.of("SendMessage"), meters.of("ReceiveMessage")
    for seconds in (0.0005, 0.001, 0.004, 100.0):
        send.count(ok, seconds)
    send.count(missing, 0.02)
    message = pb.ReceiveMessageResponse(message=pb.Message(body=b"x")).SerializeToString()
    receive.count_stream(
        [
            message,
            message,
            pb.ReceiveMessageResponse(status=pb.Status(code=pb.OK)).SerializeToString(),
        ],
        1.0,
    )

    class Shown(Collector):
        collect = meters.families

    registry = CollectorRegistry()
    registry.register(Shown())
    value = registry.get_sample_value
    assert value("ledgermq_calls_total", {"method": "SendMessage", "code": str(pb.OK)}) == 4
    assert (
        value("ledgermq_calls_total", {"method": "SendMessage", "code": str(pb.TOPIC_NOT_FOUND)})
        == 1
    )
    assert value("ledgermq_calls_total", {"method": "ReceiveMessage", "code": str(pb.OK)}) == 1
    buckets = [
        value("ledgermq_call_seconds_bucket", {"method": "SendMessage", "le": le})
        for le in (*map(str, BUCKETS_S), "+Inf")
    ]
    assert (
        buckets[:3] == [2, 2, 3]
        and buckets[-2:] == [4, 5]
        and value("ledgermq_call_seconds_count", {"method": "SendMessage"}) == 5
    )
