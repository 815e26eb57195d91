"""The processor time of a leader with and without metrics by topic and consumer group, at a million
messages a minute on 1,000 topics.

    python -m bench.alone.observing [--topics 1000] [--rate 16667] [--seconds 60] [--rounds 5]
    [--directory DIR]

Two clusters of three nodes run side by side, and take the load in turns; each round has one turn of
both. In one cluster the metrics are scraped every 15 s and exported by OTLP every 60 s. In the
other nothing is read, `metrics.series_max` is 0, and the leader does not count by topic and
consumer group: a `sitecustomize` replaces the counting. A consumer group has read one message of
each topic, so that every topic has all of its series. The result is the processor time of the
leader per acknowledged message, and the ratio with to without of each round: a ratio of 1.02 is the
limit that the product has set itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from bench.tools import cluster as cl
from bench.tools.load import METADATA, SERVICE, TIMEOUT_S, check, message
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb

GROUP = "bench"
BATCH, BODY_BYTES, WINDOW = 10, 100, 64
SCRAPE_EVERY_S, EXPORT_EVERY_S = 15, 60
UNCOUNTED = """\
from ledgermq.node.broker.queries.traffic import Traffic

Traffic.applied = Traffic.leased = lambda *_: None
"""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters."""

    cluster: LocalCluster
    observed: bool

    @property
    def pid(self) -> int:
        """The process of the leader."""
        return cl.pids(self.cluster)[cl.leader(self.cluster)]


class Collector(grpc.GenericRpcHandler):
    """Takes whatever is exported."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0

    def service(self, _: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._take)

    def _take(self, request: bytes, _: Any) -> bytes:
        self.requests, self.bytes = self.requests + 1, self.bytes + len(request)
        return b""


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector of OTLP, and its endpoint."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((collector,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def uncounted(directory: Path) -> Iterator[None]:
    """Processes that are started meanwhile do not count by topic and consumer group."""
    directory.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(UNCOUNTED)
    former = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), *([former] if former else [])])
    try:
        yield
    finally:
        if former is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = former


def prepare(side: Side, topics: list[str]) -> None:
    """Create the topics, and let a consumer group read a message of each."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda topic: cl.create_topic(side.cluster, topic, queues=1), topics))
    asyncio.run(_read_one(side, topics))


async def _read_one(side: Side, topics: list[str]) -> None:
    async with _channel(side) as channel:
        send: Any = channel.unary_unary(SERVICE + "SendMessage")
        receive: Any = channel.unary_stream(SERVICE + "ReceiveMessage")
        for number, topic in enumerate(topics):
            request = pb.SendMessageRequest(messages=[message(topic, number, b"x" * BODY_BYTES)])
            check(
                pb.SendMessageResponse.FromString(
                    await send(request.SerializeToString(), metadata=METADATA, timeout=TIMEOUT_S)
                ).status
            )
            lease = pb.ReceiveMessageRequest(group=pb.Resource(name=GROUP), batch_size=1)
            lease.message_queue.topic.name, lease.message_queue.id = topic, -1
            lease.filter_expression.type, lease.filter_expression.expression = pb.TAG, "*"
            lease.invisible_duration.FromSeconds(3600)
            lease.long_polling_timeout.FromSeconds(5)
            async for _ in receive(lease.SerializeToString(), metadata=METADATA, timeout=30):
                pass


def _channel(side: Side) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        cl.address(side.cluster, cl.leader(side.cluster)), options=[("grpc.enable_http_proxy", 0)]
    )


async def load(side: Side, topics: list[str], rate: float, seconds: float) -> int:
    """Send batches to the topics in turn, at a rate of messages per second; returns how many
    messages were acknowledged."""
    sent = acknowledged = 0
    began = time.monotonic()

    async def worker(channel: grpc.aio.Channel) -> None:
        nonlocal sent, acknowledged
        call: Any = channel.unary_unary(SERVICE + "SendMessage")
        while (due := sent / rate) < seconds:
            topic, first, sent = topics[sent // BATCH % len(topics)], sent, sent + BATCH
            await asyncio.sleep(began + due - time.monotonic())
            if time.monotonic() - began > seconds:
                return
            batch = [
                message(topic, number, b"x" * BODY_BYTES) for number in range(first, first + BATCH)
            ]
            data = pb.SendMessageRequest(messages=batch).SerializeToString()
            check(
                pb.SendMessageResponse.FromString(
                    await call(data, metadata=METADATA, timeout=TIMEOUT_S)
                ).status
            )
            acknowledged += BATCH

    async with _channel(side) as channel:
        await asyncio.gather(*(worker(channel) for _ in range(WINDOW)))
    return acknowledged


@contextmanager
def scraping(side: Side, every_s: float) -> Iterator[list[int]]:
    """Read `/metrics` of all nodes at once and then at each interval; the sizes of the pages."""
    pages: list[int] = []
    ended = threading.Event()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def scrape() -> None:
        while True:
            for node in side.cluster.nodes.values():
                with opener.open(
                    f"http://{node.host}:{node.http_port}/metrics", timeout=10
                ) as response:
                    pages.append(len(response.read()))
            if ended.wait(every_s):
                return

    thread = threading.Thread(target=scrape)
    if side.observed:
        thread.start()
    try:
        yield pages
    finally:
        ended.set()
        if side.observed:
            thread.join()


def turn(
    side: Side, topics: list[str], rate: float, seconds: float, scrape_s: float
) -> dict[str, float]:
    """One turn of the load on one cluster."""
    pid = side.pid
    with scraping(side, scrape_s) as pages:
        before = cl.cpu_s(pid)
        messages = uvloop.run(load(side, topics, rate, seconds))
        used = cl.cpu_s(pid) - before
    if side.pid != pid:
        raise RuntimeError("the leader changed during a turn: run it again on a quieter machine")
    per_message = round(used / messages * 1e6, 3)
    return {
        "messages": messages,
        "messages_per_s": round(messages / seconds),
        "cpu_s": round(used, 2),
        "us": per_message,
        "pages": len(pages),
    }


def run(directory: Path, topics: int, rate: float, seconds: float, rounds: int) -> dict[str, Any]:
    """The whole measurement. A turn that is shorter than the intervals has them shorter in
    proportion, so that each has as many scrapes."""
    names = [f"topic-{number}" for number in range(topics)]
    scale = min(1.0, seconds / EXPORT_EVERY_S)
    interval_ms = max(1000, round(EXPORT_EVERY_S * 1000 * scale))
    with ExitStack() as stack:
        collector, endpoint = stack.enter_context(collecting())
        observed = {"metrics": {"otlp_endpoint": endpoint, "otlp_interval_ms": interval_ms}}
        sides = [Side(stack.enter_context(cl.running(directory / "observed", observed)), True)]
        with uncounted(directory / "site"):
            plain = stack.enter_context(
                cl.running(directory / "plain", {"metrics": {"series_max": 0}})
            )
        sides.append(Side(plain, False))
        for side in sides:
            prepare(side, names)
        taken: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for number in range(rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                taken[side.observed].append(
                    turn(side, names, rate, seconds, SCRAPE_EVERY_S * scale)
                )
        exported = {"requests": collector.requests, "bytes": collector.bytes}
    ratios = [
        with_["us"] / without["us"]
        for with_, without in zip(taken[True], taken[False], strict=True)
    ]
    return {
        "topics": topics,
        "seconds": seconds,
        "us_a_message": {
            name: statistics.median(one["us"] for one in taken[key])
            for name, key in (("with", True), ("without", False))
        },
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "exported": exported,
        "turns": {"with": taken[True], "without": taken[False]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.alone.observing", description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=1e6 / 60, help="messages per second")
    parser.add_argument("--seconds", type=float, default=60, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="directory for data"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="ledgermq-bench-observing-", dir=options.directory
    ) as directory:
        found = run(Path(directory), options.topics, options.rate, options.seconds, options.rounds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
