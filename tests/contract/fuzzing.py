"""Sends random requests to all public methods of a running node: `python -m tests.contract.fuzzing
--for 1800 --seed 1`.

Every answer must be a status of the contract, and none that indicates an internal bug (50001,
50000, gRPC UNKNOWN or INTERNAL). The node must continue to serve ordinary clients, stay below a
memory bound, and log no error. Requests that once failed are kept in `corpus.txt` as lines METHOD
HEX; every run sends them first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb
from tests import cluster as real
from tests.contract.wild import Wild

CORPUS = Path(__file__).with_name("corpus.txt")
TOPICS = {
    "T": "normal",
    "F": "fifo",
    "D": "delay",
    "X": "transaction",
    "P": "priority",
    "L": "lite",
    "M": "mixed",
}
NAMES = (*TOPICS, "G", "H", "n1", "n2", "g1", "g1/0", "room42", "127.0.0.1", "earliest")
PERIODS = {
    "delivery": {"min_invisible_ms": 100, "liveness_ms": 3000, "long_poll_max_ms": 1000},
    "limits": {"drain_ms": 500},
}
CALL_S = 30.0
TOGETHER = 16
PROBE_EVERY = 500
POLLS = 20
"""Receive calls of a probe, one second each."""
GROWTH_BYTES = 200 << 20
SERVICES = {
    "apache.rocketmq.v2.MessagingService": pb.DESCRIPTOR.services_by_name["MessagingService"],
    "ledgermq.v1.Admin": admin_pb2.DESCRIPTOR.services_by_name["Admin"],
}
_TELEMETRY = "Telemetry"
# A valid request could remove nodes or move logs, which this test does not cover.
_LEFT_OUT = frozenset(
    {"AddBrokerGroup", "ChangeMember", "MoveReplica", "PreferLeader", "TransferLeadership"}
)
_BUGS = frozenset({pb.CODE_UNSPECIFIED, pb.INTERNAL_ERROR, pb.INTERNAL_SERVER_ERROR})
_BROKEN = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Method:
    """One public method."""

    path: str
    name: str
    request: Any
    response: Any
    streams: bool


@dataclass(slots=True)
class Report:
    """The result of a run."""

    calls: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    bugs: list[str] = field(default_factory=list)
    grown_bytes: int = 0


def methods() -> dict[str, Method]:
    """All public methods by name."""
    found = {}
    for service, descriptor in SERVICES.items():
        for method in descriptor.methods:
            if method.name not in _LEFT_OUT:
                streams = bool(method.server_streaming)
                found[method.name] = Method(
                    f"/{service}/{method.name}",
                    method.name,
                    method.input_type,
                    method.output_type,
                    streams,
                )
    return found


def corpus() -> Iterator[tuple[str, bytes]]:
    """(method, request) of all requests that once failed."""
    for line in CORPUS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, data = line.partition(" ")
            yield name, bytes.fromhex(data)


class Fuzzer:
    """Sends requests to one address."""

    def __init__(self, channel: grpc.aio.Channel, seed: int) -> None:
        self._channel = channel
        self._wild = Wild(seed, NAMES)
        self._methods = methods()
        self.report = Report()

    async def once(self, name: str, data: bytes) -> None:
        """Make one call and record any violation in its answer."""
        method = self._methods[name]
        try:
            async with asyncio.timeout(CALL_S + 5):
                answers = await self._answers(method, data)
        except grpc.aio.AioRpcError as error:
            self.report.calls += 1
            if error.code() in _BROKEN:
                self._bug(name, data, f"gRPC {error.code().name}: {error.details()}")
            return
        except TimeoutError:
            self._bug(name, data, "no answer")
            return
        self.report.calls += 1
        for answer in answers:
            message = GetMessageClass(method.response).FromString(answer)
            self._wild.learn(message)
            if "status" in message.DESCRIPTOR.fields_by_name and message.HasField("status"):
                self.report.codes[message.status.code] += 1
                if message.status.code in _BUGS:
                    self._bug(name, data, f"{message.status.code}: {message.status.message}")

    async def _answers(self, method: Method, data: bytes) -> list[bytes]:
        metadata = (("x-mq-client-id", self._wild.chance.choice(("fuzz-1", "fuzz-2", "fuzz-3"))),)
        if method.name == _TELEMETRY:
            stream = self._channel.stream_stream(method.path)(metadata=metadata, timeout=CALL_S)
            await stream.write(data)
            await stream.done_writing()
            return [answer async for answer in stream]
        if method.streams:
            return [
                answer
                async for answer in self._channel.unary_stream(method.path)(
                    data, metadata=metadata, timeout=CALL_S
                )
            ]
        return [
            await self._channel.unary_unary(method.path)(data, metadata=metadata, timeout=CALL_S)
        ]

    def _bug(self, name: str, data: bytes, what: str) -> None:
        self.report.bugs.append(f"{name} {data.hex()}  # {what}")

    def _good(self, name: str) -> Any:
        """A valid request for the methods whose first checks random requests rarely pass."""
        topic, chance = pb.Resource(name=self._wild.chance.choice(list(TOPICS))), self._wild.chance
        group = pb.Resource(name=chance.choice(("G", "H")))
        handle = self._wild.known()
        if name == "SendMessage":
            system = pb.SystemProperties(
                message_id=f"m{chance.randrange(1000)}",
                tag="a",
                keys=["k"],
                message_type=chance.randrange(7),
            )
            return pb.SendMessageRequest(
                messages=[pb.Message(topic=topic, body=b"x" * 100, system_properties=system)]
            )
        if name == "ReceiveMessage":
            request = pb.ReceiveMessageRequest(
                group=group, message_queue=pb.MessageQueue(topic=topic), batch_size=4
            )
            request.invisible_duration.seconds = chance.randrange(3)
            return request
        if name == "AckMessage":
            return pb.AckMessageRequest(
                group=group,
                topic=topic,
                entries=[pb.AckMessageEntry(message_id="m1", receipt_handle=handle)],
            )
        if name in (
            "ChangeInvisibleDuration",
            "ForwardMessageToDeadLetterQueue",
            "RecallMessage",
            "EndTransaction",
        ):
            request = GetMessageClass(self._methods[name].request)(topic=topic)
            for field_ in ("receipt_handle", "recall_handle", "transaction_id"):
                if field_ in request.DESCRIPTOR.fields_by_name:
                    setattr(request, field_, handle)
            if "group" in request.DESCRIPTOR.fields_by_name:
                request.group.CopyFrom(group)
            return request
        if name in ("PullMessage", "UpdateOffset", "GetOffset"):
            return GetMessageClass(self._methods[name].request)(
                group=group, message_queue=pb.MessageQueue(topic=topic)
            )
        return None

    def _draw(self, name: str) -> bytes:
        good = self._good(name) if self._wild.chance.random() < 0.7 else None
        return self._wild.request(self._methods[name].request, good)

    async def some(self, count: int) -> None:
        """Make `count` random calls, several at a time."""
        names = sorted(self._methods)
        for _ in range(0, count, TOGETHER):
            drawn = [self._wild.chance.choice(names) for _ in range(TOGETHER)]
            await asyncio.gather(*(self.once(name, self._draw(name)) for name in drawn))


async def probe(channel: grpc.aio.Channel, number: int) -> None:
    """An ordinary client sends, receives and acknowledges a message."""
    metadata, topic = (("x-mq-client-id", "probe"),), pb.Resource(name="probe")
    path = "/apache.rocketmq.v2.MessagingService/"

    async def call(method: str, request: Any, response: Any) -> Any:
        return response.FromString(
            await channel.unary_unary(path + method)(
                request.SerializeToString(), metadata=metadata, timeout=CALL_S
            )
        )

    message = pb.Message(
        topic=topic,
        body=b"probe",
        system_properties=pb.SystemProperties(message_id=f"probe-{number}"),
    )
    sent = await call(
        "SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse
    )
    assert sent.status.code == pb.OK, sent.status
    request = pb.ReceiveMessageRequest(
        group=topic, message_queue=pb.MessageQueue(topic=topic), batch_size=1
    )
    request.invisible_duration.seconds = 30
    messages: list[pb.Message] = []
    for _ in range(POLLS):
        got = channel.unary_stream(path + "ReceiveMessage")(
            request.SerializeToString(), metadata=metadata, timeout=CALL_S
        )
        messages += [
            r.message
            for r in [pb.ReceiveMessageResponse.FromString(data) async for data in got]
            if r.HasField("message")
        ]
        if messages:
            break
    assert [m.system_properties.message_id for m in messages] == [f"probe-{number}"], messages
    entry = pb.AckMessageEntry(
        message_id=f"probe-{number}", receipt_handle=messages[0].system_properties.receipt_handle
    )
    acked = await call(
        "AckMessage",
        pb.AckMessageRequest(group=topic, topic=topic, entries=[entry]),
        pb.AckMessageResponse,
    )
    assert acked.status.code == pb.OK, acked.status


def resident_bytes(cluster: LocalCluster) -> int:
    """The resident memory of all nodes."""
    pages = [
        Path(f"/proc/{child.process.pid}/statm").read_text().split()[1]
        for child in cluster.children.values()
    ]
    return sum(int(count) for count in pages) * 4096


async def fuzz(
    cluster: LocalCluster, seed: int, seconds: float, calls: int | None = None
) -> Report:
    """Send the corpus, then random requests until the time is over or `calls` calls were made."""
    node = sorted(cluster.nodes)[0]
    options = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(real.target(cluster, node), options=options) as channel:
        fuzzer = Fuzzer(channel, seed)
        for name, data in corpus():
            await fuzzer.once(name, data)
        await fuzzer.some(PROBE_EVERY)
        before = resident_bytes(cluster)
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end and (calls is None or fuzzer.report.calls < calls):
            await fuzzer.some(PROBE_EVERY)
            number += 1
            # A request may have deleted them.
            await asyncio.to_thread(prepared, cluster)
            await probe(channel, number)
        fuzzer.report.grown_bytes = resident_bytes(cluster) - before
    return fuzzer.report


def prepared(cluster: LocalCluster) -> None:
    """Create the topics that requests name, whatever earlier requests did to them."""
    for name, kind in {**TOPICS, "probe": "normal"}.items():
        request = admin_pb2.CreateTopicRequest(
            topic=admin_pb2.Name(name=name), kind=kind, queues=4, permission="rw"
        )
        answer = real.admin(cluster, next(iter(cluster.nodes)), "CreateTopic", request)
        assert answer.status.code in (pb.OK, pb.PRECONDITION_FAILED), answer.status


def logged_errors(cluster: LocalCluster) -> list[dict[str, Any]]:
    """The errors in the logs of the nodes."""
    events = [event for node in cluster.nodes for event in real.log_events(cluster, node)]
    return [event for event in events if event.get("level") in ("error", "critical")]


def main() -> int:
    """The command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--for", dest="seconds", type=float, default=60.0)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        real.running(Path(directory), nodes=1, extra=PERIODS) as cluster,
    ):
        prepared(cluster)
        report = asyncio.run(fuzz(cluster, given.seed, given.seconds))
        errors = logged_errors(cluster)
    codes = dict(sorted(report.codes.items()))
    print(
        f"{report.calls} calls, {report.grown_bytes >> 20} MiB more, {len(errors)} errors logged,"
        f" codes {codes}"
    )
    for bug in [*report.bugs, *errors][:20]:
        print(bug)
    return 1 if report.bugs or errors else 0


if __name__ == "__main__":
    sys.exit(main())
