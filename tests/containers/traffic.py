"""Clients of a containerized cluster during faults, their recorded history, and the check that each
queue behaved as one log.

Two topics have one queue in every broker group. *official*: unmodified official clients send in
message groups and consume from outside, through the ports that compose.yaml publishes. *native*: a
producer and a consumer use native streams in a container of the nodes' network. In addition, both
topics are read repeatedly through every node. No send is repeated here, because that could hide
errors: the outcome of a failed send is unknown. The official client repeats sends by itself, so its
topic deduplicates ids.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from ledgermq.audit.history import Read, Send, Violation, check_queue
from tests.cluster import wait_for
from tests.containers.engine import ENDPOINTS, IMAGE, NODES, Project, docker
from tests.faults.deliveries import check_deliveries
from tests.faults.histories import OPTIONS, Refused, read_queue

PROGRAMS = Path(__file__).with_name("programs")
OFFICIAL, NATIVE = "official", "native"
CONSUMERS = "official-consumers"
SENDERS = 8
READ_EVERY_S = 0.2
WAIT_S = 180.0
"""Only ends a broken run."""
Fact = dict[str, Any]


class Program:
    """A process that prints facts as JSON lines, which are kept. If it ends without being asked,
    the test fails."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.facts: list[Fact] = []
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, daemon=True, name=name)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.facts.append(json.loads(line))

    def told(self, fact: str) -> list[Fact]:
        self.lives()
        return [found for found in self.facts if found["fact"] == fact]

    def lives(self) -> None:
        code = self._process.poll()
        assert not code, (
            f"{self.name} ended with {code}: {self.log.read_text(errors='replace')[-2000:]}"
        )

    def say_end(self) -> None:
        """Ask the program to end its work."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Readers(threading.Thread):
    """Reads the queues of a topic in turn through every node, each from the last value seen."""

    def __init__(self, topic: str, queues: int, number: int) -> None:
        super().__init__(daemon=True, name=f"readers of {topic}")
        self.reads: list[tuple[int, Read]] = []
        self.ended = threading.Event()
        self._topic, self._queues, self._number = topic, queues, number

    def run(self) -> None:
        first = Counter[int]()
        ports = [port for port, _ in NODES.values()]
        turn = self._number
        while not self.ended.is_set():
            with grpc.insecure_channel(
                f"127.0.0.1:{ports[turn % len(ports)]}", options=OPTIONS
            ) as channel:
                for queue in range(self._queues):
                    try:
                        read = read_queue(channel, self._topic, first[queue], queue)
                    except (grpc.RpcError, Refused):
                        continue
                    self.reads.append((queue, read))
                    first[queue] = max(first[queue], read.end - 1)
            turn += 1
            self.ended.wait(READ_EVERY_S)


class Traffic:
    """All clients of a run. `groups`: the broker groups, in the order of their names: queue *k* of
    both topics is in the *k*-th."""

    def __init__(self, project: Project, directory: Path, groups: Sequence[str]) -> None:
        self.groups = list(groups)
        self._project = project
        self._directory = directory
        self._queue_of: dict[int, int] = {}
        """Sender → the queue of its message group."""
        self._native_container = f"{project.name}_native"
        self._programs: list[Program] = []
        self._readers: list[Readers] = []
        self._final: dict[tuple[str, int], Read] = {}
        self._counted = Counter[str]()
        self._looked_at = Counter[str]()
        """Program → the number of its facts counted so far."""

    def start(self) -> None:
        queues = str(len(self.groups))
        cli = self._project.ledgermq
        cli("topic", "create", OFFICIAL, "--kind", "fifo", "--queues", queues, "--dedup", "10m")
        cli("topic", "create", NATIVE, "--queues", queues)
        cli("group", "create", CONSUMERS, "--fifo")
        for topic in (OFFICIAL, NATIVE):
            described = json.loads(cli("topic", "describe", topic, "--json"))["queue_list"]
            assert [queue["broker_group"] for queue in described] == self.groups, described
        official = [sys.executable, "-W", "ignore", str(PROGRAMS / "official.py")]
        native = [
            "docker",
            "run",
            "--rm",
            "-i",
            "--name",
            self._native_container,
            "--network",
            self._project.network,
        ]
        native += [
            "-v",
            f"{PROGRAMS}:/programs:ro",
            "--entrypoint",
            "python3",
            IMAGE,
            "/programs/native.py",
        ]
        inside = ";".join(f"{node}:{port}" for node, (port, _) in NODES.items())
        self.official = self._run(
            "official-senders", [*official, "send", ENDPOINTS, OFFICIAL, str(SENDERS)]
        )
        self.consumer = self._run(
            "official-consumer", [*official, "consume", ENDPOINTS, OFFICIAL, CONSUMERS]
        )
        self.native = self._run("native", [*native, inside, NATIVE, queues])
        for number, topic in enumerate((OFFICIAL, NATIVE)):
            self._readers.append(Readers(topic, len(self.groups), number))
            self._readers[-1].start()
        wait_for(
            lambda: len({sender_of(value) for value in acknowledged_by(self.official)}) == SENDERS,
            WAIT_S,
            "a message from each sender",
        )
        self._queue_of = {
            sender_of(value): queue
            for queue in range(len(self.groups))
            for value in self._whole(OFFICIAL, queue).values
        }
        assert set(self._queue_of.values()) == set(range(len(self.groups))), (
            f"message groups miss a queue: {self._queue_of}"
        )
        self.progress()

    def _run(self, name: str, command: Sequence[str]) -> Program:
        program = Program(name, command, self._directory / f"{name}.log")
        self._programs.append(program)
        return program

    # -- while it runs

    def acknowledged(self) -> dict[str, int]:
        """The number of acknowledgements by topic and broker group, such as `official g1`."""
        for program in (self.official, self.native):
            program.lives()
            for fact in program.facts[self._looked_at[program.name] :]:
                self._looked_at[program.name] += 1
                if fact["fact"] == "send" and "returned" in fact:
                    queue = (
                        fact["queue"]
                        if program is self.native
                        else self._queue_of[sender_of(fact["value"])]
                    )
                    self._counted[
                        f"{NATIVE if program is self.native else OFFICIAL} {self.groups[queue]}"
                    ] += 1
        return dict(self._counted)

    def progress(
        self,
        topics: Sequence[str] = (OFFICIAL, NATIVE),
        groups: Sequence[str] | None = None,
        messages: int = 5,
    ) -> None:
        """Wait until each kind of client got `messages` more acknowledgements in each broker
        group."""
        before = self.acknowledged()
        missing: list[str] = []

        def enough() -> bool:
            now = self.acknowledged()
            names = (f"{topic} {group}" for topic in topics for group in groups or self.groups)
            missing[:] = [
                name for name in names if now.get(name, 0) < before.get(name, 0) + messages
            ]
            return not missing

        try:
            wait_for(enough, WAIT_S, "")
        except AssertionError:
            raise AssertionError(
                f"waited {WAIT_S:g} s for {messages} more acknowledgements of: {', '.join(missing)}"
            ) from None

    # -- afterwards

    def settle(self) -> None:
        """End the senders, wait until the consumers received all acknowledged messages, and read
        the whole queues."""
        for program in (self.official, self.native):
            program.say_end()
        wait_for(
            lambda: self.official.told("send ended") and self.native.told("senders ended"),
            WAIT_S,
            "the end of the senders",
        )
        for readers in self._readers:
            readers.ended.set()
        official, native = acknowledged_by(self.official), acknowledged_by(self.native)
        got_all(
            lambda: official - {fact["value"] for fact in self.consumer.told("delivery")},
            "the official consumer",
        )
        got_all(
            lambda: (
                native - {value for fact in self.native.told("read") for value in fact["values"]}
            ),
            "the native reader",
        )
        for topic in (OFFICIAL, NATIVE):
            for queue in range(len(self.groups)):
                self._final[topic, queue] = self._whole(topic, queue)

    def check(self) -> list[Violation]:
        """Check the recorded history with the audit's checkers."""
        found: list[Violation] = []
        queues_of: dict[int, set[int]] = {}
        for queue in range(len(self.groups)):
            for value in self._final[OFFICIAL, queue].values:
                queues_of.setdefault(sender_of(value), set()).add(queue)
        found += [
            Violation("reordered", f"the messages of sender {sender} are in queues {queues}")
            for sender, queues in queues_of.items()
            if len(queues) > 1
        ]
        for queue in range(len(self.groups)):
            own = [
                fact
                for fact in self.official.facts
                if fact["fact"] == "send" and self._queue_of[sender_of(fact["value"])] == queue
            ]
            found += check_queue([sent(fact) for fact in own], self._reads(OFFICIAL, queue))
            own = [
                fact
                for fact in self.native.facts
                if fact["fact"] == "send" and fact["queue"] == queue
            ]
            found += check_queue([sent(fact) for fact in own], self._reads(NATIVE, queue))
        found += self._deliveries()
        stored = {value for read in self._final.values() for value in read.values}
        for fact in (*self.official.facts, *self.native.facts):
            if fact["fact"] == "send" and "returned" in fact and fact["value"] not in stored:
                found.append(
                    Violation("lost", f"{fact['value']} was acknowledged and is in no queue")
                )
            if fact["fact"] == "send" and fact.get("unknown") is False and fact["value"] in stored:
                found.append(
                    Violation(
                        "phantom",
                        f"{fact['value']} is stored although the send failed definitely"
                        f" ({fact['error']})",
                    )
                )
        return found

    def _deliveries(self) -> list[Violation]:
        given: dict[str, list[str]] = {}
        for fact in self.consumer.facts:
            if fact["fact"] == "delivery":
                given.setdefault(key_of(fact["value"]), []).append(fact["value"])
        for fact in self.native.facts:
            if fact["fact"] == "read":
                for value in fact["values"]:
                    given.setdefault(key_of(value), []).append(value)
        sends = [
            fact for fact in (*self.official.facts, *self.native.facts) if fact["fact"] == "send"
        ]
        acknowledged: dict[str, list[str]] = {}
        for fact in sends:
            if "returned" in fact:
                acknowledged.setdefault(key_of(fact["value"]), []).append(fact["value"])
        return check_deliveries(
            acknowledged, [fact["value"] for fact in sends], given, complete=True
        )

    def _reads(self, topic: str, queue: int) -> list[Read]:
        number = (OFFICIAL, NATIVE).index(topic)
        return [
            *(read for at, read in self._readers[number].reads if at == queue),
            self._final[topic, queue],
        ]

    def _whole(self, topic: str, queue: int) -> Read:
        def read() -> Read | None:
            for port, _ in NODES.values():
                with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
                    try:
                        return read_queue(channel, topic, 0, queue)
                    except (grpc.RpcError, Refused):
                        pass
            return None

        return wait_for(read, WAIT_S, f"a read of queue {queue} of {topic}")

    def write(self, path: Path) -> None:
        """The history as JSON lines."""
        with path.open("w") as file:
            for program in self._programs:
                for fact in program.facts:
                    print(json.dumps({"client": program.name, **fact}), file=file)
            for topic, readers in zip((OFFICIAL, NATIVE), self._readers, strict=False):
                for queue, read in readers.reads:
                    seen = {
                        "invoked": read.invoked,
                        "returned": read.returned,
                        "first": read.first,
                        "values": read.values,
                        "end": read.end,
                    }
                    print(
                        json.dumps(
                            {
                                "client": f"readers of {topic}",
                                "fact": "peek",
                                "queue": queue,
                                **seen,
                            }
                        ),
                        file=file,
                    )

    def close(self) -> None:
        for readers in self._readers:
            readers.ended.set()
        docker("rm", "-f", self._native_container, check=False)
        for program in self._programs:
            program.close()
        for readers in self._readers:
            readers.join(30)


@contextmanager
def traffic(project: Project, directory: Path, groups: Sequence[str]) -> Iterator[Traffic]:
    """Started clients that make progress. Afterwards they are ended, and `directory` has their
    history; after a failure also the nodes' logs."""
    found = Traffic(project, directory, groups)
    try:
        found.start()
        yield found
    except BaseException:
        for node in NODES:
            (directory / f"{node}.log").write_text(
                docker("logs", project.container(node), merged=True)
            )
        raise
    finally:
        found.close()
        found.write(directory / "history.jsonl")


def got_all(missing: Callable[[], Collection[str]], who: str) -> None:
    """Wait until nothing is missing. Fails only if the number of missing messages stops falling, so
    a busy machine may take long."""
    fewest, since = len(missing()), time.monotonic()
    while fewest:
        time.sleep(0.2)
        left = len(missing())
        if left < fewest:
            fewest, since = left, time.monotonic()
        assert time.monotonic() - since < WAIT_S, (
            f"{who} does not receive the last {fewest} messages"
        )


def acknowledged_by(program: Program) -> set[str]:
    """The acknowledged values."""
    return {fact["value"] for fact in program.told("send") if "returned" in fact}


def key_of(value: str) -> str:
    """The unit of ordering: a message group of the official clients, a queue of the native
    client."""
    return value.rpartition("-")[0]


def sender_of(value: str) -> int:
    return int(key_of(value).removeprefix(OFFICIAL))


def sent(fact: Fact) -> Send:
    """The record of a send. An acknowledgement without an offset counts as an unknown outcome;
    whether the value is stored is checked separately."""
    if fact.get("offset") is None:
        return Send(fact["value"], fact["invoked"])
    return Send(fact["value"], fact["invoked"], fact["returned"], fact["offset"])
