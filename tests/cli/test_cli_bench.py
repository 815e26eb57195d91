"""`ledgermq bench` against a scripted node: what counts, from when, and how it ends."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from ledgermq import cli
from ledgermq.client.messages.bench_load import Latencies
from ledgermq.proto import messaging_pb2 as pb
from tests.client.fake_cluster import FakeNode, acked, fake_nodes, route, sent, status, verdict


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    with fake_nodes() as (one,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", one.endpoint)
        one.answers("QueryRoute", route(queues=1))
        one.answers("AckMessage", acked)
        yield one


class Topic:
    """Delivers what was sent to it, once."""

    def __init__(self, node: FakeNode, lost: int = 0) -> None:
        self._waiting: deque[pb.Message] = deque()
        self._arrived = threading.Condition()
        self._lost = lost
        node.answers("SendMessage", self._send)
        node.answers("ReceiveMessage", self._receive)

    def _send(self, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        with self._arrived:
            if self._lost:
                self._lost -= 1
            else:
                self._waiting.append(request.messages[0])
            self._arrived.notify_all()
        return sent(request)

    def _receive(self, request: pb.ReceiveMessageRequest) -> list[pb.ReceiveMessageResponse]:
        with self._arrived:
            self._arrived.wait_for(lambda: self._waiting, 0.05)
            found = [
                self._waiting.popleft() for _ in range(min(len(self._waiting), request.batch_size))
            ]
        return [pb.ReceiveMessageResponse(message=message) for message in found] or [verdict(40401)]


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON object or {}, and stderr."""
    code = cli.run(["bench", *arguments, "--json", "-q"])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out) if out else {}, err


def test_send_keeps_its_rate(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """Every intended send is made, of the wanted size, and is counted once."""
    node.answers("SendMessage", sent)
    code, found, _ = run(
        capfd, "send", "--topic", "shop@t", "--rate", "100", "--duration", "500ms", "--size", "64B"
    )
    assert code == 0 and (
        found["messages"],
        found["failed"],
        found["unsent"],
        found["intended_per_s"],
    ) == (50, 0, 0, 100.0)
    assert found["latency_from"] == "intended time" and list(found["latency_ms"]) == [
        "p50",
        "p90",
        "p99",
        "p99_9",
        "max",
    ]
    message = node.requests["SendMessage"][0].messages[0]
    assert (len(message.body), message.topic.resource_namespace) == (64, "shop") and len(
        node.requests["SendMessage"]
    ) == 50


def test_rates_are_rounded_unless_exact_bytes_are_asked_for(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in the other commands that show sizes."""
    node.answers("SendMessage", sent)
    for option, unit in (((), " KiB/s"), (("--bytes",), " bytes/s")):
        assert (
            cli.run(
                [
                    "bench",
                    "send",
                    "--topic",
                    "t",
                    "--rate",
                    "50",
                    "--duration",
                    "200ms",
                    "--size",
                    "1KiB",
                    *option,
                    "-q",
                ]
            )
            == 0
        )
        assert [
            line.endswith(unit)
            for line in capfd.readouterr().out.splitlines()
            if line.startswith("rate: ")
        ] == [True]


def test_a_stall_delays_every_send_that_was_intended_meanwhile(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """No coordinated omission: with one call in flight and one answer that takes long, the sends
    behind it have waited too."""
    stalled = threading.Event()

    def answer(request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        if not stalled.is_set():
            stalled.set()
            time.sleep(0.4)
        return sent(request)

    node.answers("SendMessage", answer)
    code, found, _ = run(
        capfd, "send", "--topic", "t", "--rate", "100", "--duration", "500ms", "--window", "1"
    )
    assert (code, found["messages"]) == (0, 50)
    # 40 of 50 sends were intended during the stall: half of all waited for at least 100 ms.
    assert found["latency_ms"]["p50"] > 100 and found["latest_send_ms"] > 300


def test_as_fast_as_possible(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a rate, latencies count from each send, and the result says so."""
    node.answers("SendMessage", sent)
    code, found, _ = run(capfd, "send", "--topic", "t", "--duration", "200ms", "--window", "4")
    assert (
        code == 0
        and found["latency_from"] == "send"
        and found["messages"] == len(node.requests["SendMessage"]) > 0
    )


def test_request_measures_until_delivery(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """Everything sent is delivered, acknowledged and counted once; what others sent is not
    counted."""
    topic = Topic(node)
    topic._waiting.append(pb.Message(body=b"of an earlier run"))
    code, found, _ = run(
        capfd, "request", "--topic", "t", "--rate", "100", "--duration", "300ms", "--window", "2"
    )
    assert (
        code == 0
        and (found["messages"], found["failed"]) == (30, 0)
        and found["latency_ms"]["p50"] > 0
    )
    assert sum(len(request.entries) for request in node.requests["AckMessage"]) == 31


def test_a_message_that_is_not_delivered_is_a_failure(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was acknowledged, so the run is not a success."""
    Topic(node, lost=1)
    code, found, err = run(
        capfd,
        "request",
        "--topic",
        "t",
        "--rate",
        "20",
        "--duration",
        "300ms",
        "--timeout",
        "500ms",
        "--window",
        "2",
    )
    assert code == 1 and (found["messages"], found["failed"]) == (5, 1) and "not delivered" in err


def test_bench_receive_counts_all_messages_and_measures_its_own(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Other messages have no intended time."""
    topic = Topic(node)
    intended = str(round((time.time() - 5) * 1e6))
    topic._waiting.extend(
        [
            pb.Message(body=b"other"),
            pb.Message(body=b"ours", user_properties={"bench-intended-us": intended}),
        ]
    )
    code, found, _ = run(
        capfd, "receive", "--topic", "t", "--group", "g", "--duration", "500ms", "--window", "2"
    )
    assert code == 0 and found["messages"] == 2 and 5000 <= found["latency_ms"]["max"] < 60_000


def test_ctrl_c_ends_a_run_with_its_result(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """130, and what was measured until then."""

    def answer(request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        if len(node.requests["SendMessage"]) == 10:
            signal.raise_signal(signal.SIGINT)
        return sent(request)

    node.answers("SendMessage", answer)
    code, found, _ = run(capfd, "send", "--topic", "t", "--rate", "50", "--duration", "1m")
    assert code == 130 and found["interrupted"] and 0 < found["messages"] < 3000


@pytest.mark.parametrize(
    ("script", "status_", "said"),
    [
        (
            [pb.SendMessageResponse(status=status(40300, "user u has no permission; see: x"))],
            4,
            "no permission",
        ),
        ([grpc.StatusCode.UNAVAILABLE], 3, "messages failed"),
        ([sent, pb.SendMessageResponse(status=status(40300, "no; x"))], 1, "messages failed"),
    ],
)
def test_failed_sends(
    node: FakeNode, capfd: pytest.CaptureFixture[str], script: list[Any], status_: int, said: str
) -> None:
    """One error line, as for `send`."""
    node.answers("SendMessage", *script)
    code, _, err = run(
        capfd, "send", "--topic", "t", "--rate", "20", "--duration", "200ms", "--timeout", "300ms"
    )
    assert code == status_ and err.startswith("error: ") and said in err


def test_a_topic_of_another_kind_is_refused_before_the_first_send(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not by thousands of failed sends."""
    answer = route(queues=1)
    answer.message_queues[0].accept_message_types.append(pb.MessageType.FIFO)
    node.answers("QueryRoute", answer)
    for command in (("send",), ("request",)):
        code, _, err = run(capfd, *command, "--topic", "t")
        assert (
            code == 4 and "takes messages of type FIFO" in err and not node.requests["SendMessage"]
        )


def test_no_cluster(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """3, after the timeout and not after the run."""
    node.stop()
    for command in (("send",), ("receive", "--group", "g"), ("request",)):
        code, _, err = run(
            capfd, *command, "--topic", "t", "--timeout", "200ms", "--duration", "1h"
        )
        assert code == 3 and "nothing listens" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("send",),
        ("send", "--topic", "t", "--rate", "0"),
        ("send", "--topic", "t", "--size", "0B"),
        ("send", "--topic", "t", "--size", "5MiB"),
        ("send", "--topic", "t", "--duration", "1ms"),
        ("send", "--topic", "t", "--window", "0"),
        ("receive", "--topic", "t"),
    ],
)
def test_wrong_usage_is_64_before_any_call(
    node: FakeNode, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Nothing is sent."""
    assert run(capfd, *arguments)[0] == 64 and not node.requests


def test_the_text_form_and_the_live_line(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result on stdout, progress on stderr."""
    monkeypatch.setattr("ledgermq.client.cli.bench_commands.PROGRESS_LINE_S", 0.1)
    node.answers("SendMessage", sent)
    assert cli.run(["bench", "send", "--topic", "t", "--rate", "100", "--duration", "300ms"]) == 0
    out, err = capfd.readouterr()
    assert (
        out.startswith("send: 30 messages in ")
        and "latency in ms from the intended time: p50 " in out
    )
    assert "messages, " in err and "/s, p99 " in err


def test_percentiles_are_within_a_hundredth() -> None:
    """And the maximum is exact."""
    found = Latencies()
    assert found.as_json() == dict.fromkeys(["p50", "p90", "p99", "p99_9", "max"])
    values = [0.0, *(k / 1000 for k in range(1, 1000)), 12.345678]
    for value in reversed(values):
        found.add(value)
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = values[round(share * len(values)) - 1] * 1000
        assert exact <= (found.percentile_ms(share) or 0) <= exact * 1.01 + 0.001
    assert found.as_json()["max"] == 12345.678
