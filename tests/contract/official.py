"""The official client in a child process, and the leases recorded in the server's log."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import parse
from tests import cluster as real

DRIVER = Path(__file__).with_name("official_driver.py")


class ClientError(Exception):
    """The official client raised an exception; `kind` is its class name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Official:
    """A process with official clients. Its methods are those of the driver."""

    def __init__(
        self, endpoints: str, home: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables`: the environment of the process, for the connection of the driver's clients
        and for gRPC itself."""
        home.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "HOME": str(home),
            "PYTHONWARNINGS": "ignore",
            **(variables or {}),
        }
        self._log = (home / "stderr.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), endpoints],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def start(self, do: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to the oldest unanswered command."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the client's process ended; its log is in its HOME"
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(*answer["error"])
        return answer["value"]

    def do(self, do: str, **arguments: Any) -> Any:
        self.start(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()


@contextmanager
def official(cluster: LocalCluster, home: Path, nodes: Sequence[str] = ()) -> Iterator[Official]:
    """A client process whose access point lists these nodes, or all nodes."""
    client = Official(";".join(real.target(cluster, node) for node in nodes or cluster.nodes), home)
    try:
        yield client
    finally:
        client.close()


def message(topic: str, body: bytes | str = b"hello", **fields: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "body": (body.encode() if isinstance(body, str) else body).hex(),
        **fields,
    }


def records(cluster: LocalCluster, node: str, group: str = "g1") -> Iterator[Record]:
    """All message records in a node's log of a broker group, as currently on disk."""
    for path in sorted((cluster.data(node) / group).glob("dledger-*/data/*")):
        data = path.read_bytes()
        at = 0
        while at + 48 <= len(data):
            magic, size = struct.unpack_from(">ii", data, at)
            if magic != 1 or at + size > len(data):
                break
            yield decode_record(data[at + 48 : at + size])
            at += size


def control_records(
    cluster: LocalCluster, node: str, group: str = "g1"
) -> list[tuple[str, int, dict[str, Any]]]:
    """(kind, store time in ms, fields) of every delivery record."""
    found = (
        record
        for record in records(cluster, node, group)
        if record.topic == "rmq_sys_ledgermq_delivery"
    )
    return [
        (parse(record.properties)["TAGS"], record.store_ms, json.loads(record.body))
        for record in found
    ]


class Deliveries:
    """The deliveries of one consumer group and topic according to the log, for checks such as
    "once", "not before" and "never again"."""

    def __init__(
        self, cluster: LocalCluster, group: str, topic: str, broker_group: str = "g1"
    ) -> None:
        self.leases: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """(queue, offset) → [(attempt, store time)]"""
        self.acked: set[tuple[int, int]] = set()
        self.passed = 0
        for kind, store_ms, fields in control_records(
            cluster, real.leader(cluster, broker_group), broker_group
        ):
            if kind == "lease" and (fields["g"], fields["t"]) == (group, topic):
                for queue, offsets, attempts in fields["q"]:
                    for offset, attempt in zip(offsets, attempts, strict=True):
                        self.leases.setdefault((queue, offset), []).append((attempt, store_ms))
                self.passed += sum(to - begin for _, begin, to in fields["s"])
            elif kind == "ack":
                for acked_group, acked_topic, queue, offsets, _ in fields["a"]:
                    if (acked_group, acked_topic) == (group, topic):
                        self.acked.update((queue, offset) for offset in offsets)

    @property
    def once(self) -> bool:
        """Whether every message was leased once and acknowledged, so that none can be delivered
        again."""
        return all(len(leases) == 1 for leases in self.leases.values()) and self.done

    @property
    def done(self) -> bool:
        return self.acked == set(self.leases)


def late(bound_s: float) -> float:
    """The timeout for an operation that should take `bound_s`; leaves room for a busy disk or
    CPU."""
    return 5 * bound_s + 15


def send(client: Official, topic: str, body: str = "hello", **fields: Any) -> dict[str, Any]:
    receipt: dict[str, Any] = client.do("send", name="p", message=message(topic, body, **fields))
    return receipt


def simple(
    client: Official,
    topic: str,
    name: str = "c",
    group: str = "G",
    expression: str = "*",
    await_s: int = 1,
) -> None:
    client.do("simple", name=name, group=group, subscription={topic: expression}, await_s=await_s)


def receive(
    client: Official, name: str = "c", batch: int = 32, invisible_s: int = 30
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.do(
        "receive", name=name, batch=batch, invisible_s=invisible_s
    )["messages"]
    return found


def receive_some(
    client: Official, name: str = "c", invisible_s: int = 30, within_s: float = 20
) -> list[dict[str, Any]]:
    return real.wait_for(
        lambda: receive(client, name, invisible_s=invisible_s), within_s, "messages"
    )


def push(
    client: Official,
    topic: str,
    name: str = "push",
    group: str = "P",
    behaviour: Any = None,
    options: Any = None,
) -> float:
    took: float = client.do(
        "push",
        name=name,
        group=group,
        topic=topic,
        behaviour=behaviour or {},
        options={"consumption_thread_count": 4, **(options or {})},
    )
    return took


def events(
    client: Official, count: int, name: str = "push", within_s: float = 30
) -> list[dict[str, Any]]:
    """Wait until the listener was called `count` times. Returns the calls."""

    def enough() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = client.do("events", name=name)
        return found if len(found) >= count else None

    return real.wait_for(enough, within_s, f"{count} calls of the listener")


def until_done(cluster: LocalCluster, group: str, topic: str, count: int) -> Deliveries:
    """Wait until `count` messages are acknowledged. Returns the deliveries in the log."""

    def done() -> Deliveries | None:
        found = Deliveries(cluster, group, topic)
        return found if found.done and len(found.acked) == count else None

    return real.wait_for(done, 30, f"{count} acknowledgements in the log")


def text(found: dict[str, Any]) -> str:
    return bytes.fromhex(found["body"]).decode(errors="replace")
