"""The clients of a soak: native producer and consumer, a Parquet sink, and the official Python
client. They count every message.

Every message is a number. The native producer repeats a frame until it is answered and the cluster
stores it once, so its consumer and the sink must see each number once. The official client is at
least once: a number may come again, and a failed send may have been stored.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ledgermq.client import Acknowledged, Consumer, Producer
from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, wait_for
from tests.contract.official import ClientError, Official, message, push, text
from tests.e2e.command_line import CommandLine

NATIVE, OFFICIAL = "soak-native", "soak-official"
NATIVE_S, OFFICIAL_S = 0.2, 0.5
"""Between two messages: about 5 and 2 messages a second. Each is a commit of its own; more of them
cost the processor more, and meet no other faults."""
TIMEOUT_S = 600.0
"""Longer than any fault: an error of a native client is a finding."""
DRAIN_S = 300.0
ROLL_S = 20


class Worker(threading.Thread):
    """Works until it is ended; an exception is raised again in the thread that ends it."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self.ended = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._error = error

    def work(self) -> None:
        """What the thread does until `ended` is set."""

    def end(self) -> None:
        self.ended.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive(), f"{self.name} did not end"
        if self._error is not None:
            raise self._error


class NativeProducer(Worker):
    """`sent` numbers, and how long no acknowledgement came at most since `take_gap_s` was
    called."""

    def __init__(self, endpoints: str) -> None:
        super().__init__()
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._endpoints = endpoints
        self._last_s, self._gap_s = time.monotonic(), 0.0

    def work(self) -> None:
        with Producer(self._endpoints, NATIVE, timeout_s=TIMEOUT_S) as producer:
            while not self.ended.wait(NATIVE_S):
                future = producer.send(str(self.sent).encode())
                future.add_done_callback(lambda done, number=self.sent: self._done(done, number))  # type: ignore[misc]
                self.sent += 1

    def _done(self, future: Future[Acknowledged], number: int) -> None:
        error = future.exception()
        if error is not None:
            self.failed.append(f"{number}: {error}")
            return
        self.acknowledged.add(number)
        now_s = time.monotonic()
        self._gap_s, self._last_s = max(self._gap_s, now_s - self._last_s), now_s

    def take_gap_s(self) -> float:
        """The longest time without an acknowledgement since the last call, including the one that
        lasts."""
        gap_s, self._gap_s = max(self._gap_s, time.monotonic() - self._last_s), 0.0
        return round(gap_s, 2)


class NativeConsumer(Worker):
    """Counts how often each number came."""

    def __init__(self, endpoints: str) -> None:
        super().__init__()
        self.seen: Counter[int] = Counter()
        self._endpoints = endpoints

    def work(self) -> None:
        with Consumer(self._endpoints, NATIVE, timeout_s=TIMEOUT_S) as consumer:
            while not self.ended.is_set():
                batch = consumer.next_batch(wait_s=1.0)
                self.seen.update(int(body) for body in (() if batch is None else batch.bodies()))


class Sink:
    """`ledgermq sink parquet` as a process that may be killed."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cli = CommandLine.of(cluster)
        self._directory = directory
        times = ("--roll-every", f"{ROLL_S}s", "--timeout", f"{TIMEOUT_S:g}s")
        self._command = ("sink", "parquet", "--topic", NATIVE, "--to", directory, *times)
        self._start()

    def _start(self) -> None:
        self._process: subprocess.Popen[bytes] = self._cli.start(*self._command)

    def kill(self) -> None:
        """SIGKILL. The sink must have run until now."""
        status = self._process.poll()
        self._process.kill()
        error = self._process.communicate(timeout=30)[1] or b""
        assert status is None, (
            f"the sink ended with {status}: {error.decode(errors='replace')[-500:]}"
        )

    def restart(self) -> None:
        self.kill()
        self._start()

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate(timeout=30)

    def finish(self) -> Counter[int]:
        """Write the rest. Returns how often each number is in the files."""
        self.kill()
        summary = self._cli.ok(
            *self._command, "--until-empty", "5s", "--json", timeout_s=TIMEOUT_S
        ).json
        assert summary["skipped"] == 0, summary
        found: Counter[int] = Counter()
        for file in self._directory.rglob("*.parquet"):
            found.update(
                int(body)
                for body in pq.ParquetFile(file).read(columns=["body"])["body"].to_pylist()
            )
        return found


class OfficialProducer(Worker):
    """A process with the official client that sends one number after the other."""

    def __init__(self, endpoints: str, home: Path) -> None:
        super().__init__()
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._client = Official(endpoints, home)
        self._client.do("producer", name="p", topics=[OFFICIAL])

    def work(self) -> None:
        while not self.ended.wait(OFFICIAL_S):
            number, self.sent = self.sent, self.sent + 1
            try:
                self._client.do("send", name="p", message=message(OFFICIAL, str(number)))
            except ClientError:
                continue
            self.acknowledged.add(number)

    def close(self) -> None:
        self._client.close()


class OfficialConsumer:
    """A process with a push consumer of the official client."""

    def __init__(self, endpoints: str, home: Path) -> None:
        self._client = Official(endpoints, home)
        push(self._client, OFFICIAL, group="soak")

    def seen(self) -> Counter[int]:
        return Counter(int(text(event)) for event in self._client.do("events", name="push"))

    def close(self) -> None:
        self._client.close()


class Load:
    """All clients. `counts` ends them and compares what was acknowledged with what arrived."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        create_topic(cluster, NATIVE)
        create_topic(cluster, OFFICIAL)
        endpoints = cluster.endpoints
        self.producer, self.consumer = NativeProducer(endpoints), NativeConsumer(endpoints)
        self.sink = Sink(cluster, directory / "lake")
        self.official = OfficialProducer(endpoints, directory / "producer")
        self.pushed = OfficialConsumer(endpoints, directory / "consumer")

    def __enter__(self) -> Load:
        for worker in (self.producer, self.consumer, self.official):
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self.producer, self.consumer, self.official):
            worker.ended.set()
        self.sink.stop()
        self.official.close()
        self.pushed.close()

    def progress(self, messages: int, within_s: float) -> None:
        """Wait until the cluster has acknowledged so many more messages of either producer."""
        for producer in (self.producer, self.official):
            wanted = len(producer.acknowledged) + messages
            wait_for(
                lambda p=producer, w=wanted: len(p.acknowledged) >= w,
                within_s,
                f"{messages} acknowledgements of {producer.name}",
            )  # type: ignore[misc]

    def counts(self) -> dict[str, dict[str, int]]:
        """Way of the messages → sent, acknowledged, received, lost, duplicates. The cluster must be
        whole."""
        self.official.end()
        self.producer.end()
        assert not self.producer.failed, self.producer.failed[:3]
        native, official = self.producer.acknowledged, self.official.acknowledged
        wait_for(lambda: native <= self.consumer.seen.keys(), DRAIN_S, "the native consumer")
        wait_for(lambda: official <= self.pushed.seen().keys(), DRAIN_S, "the official consumer")
        self.consumer.end()
        return {
            "native": _count(self.producer.sent, native, self.consumer.seen),
            "sink": _count(self.producer.sent, native, self.sink.finish()),
            "official": _count(self.official.sent, official, self.pushed.seen()),
        }


def _count(sent: int, acknowledged: set[int], seen: Counter[int]) -> dict[str, Any]:
    return {
        "sent": sent,
        "acknowledged": len(acknowledged),
        "received": len(seen),
        "lost": len(acknowledged - seen.keys()),
        "duplicates": seen.total() - len(seen),
    }
