"""One broker group on real files behind the Fetch method of the Log service; the test controls the
turns of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.frontend.native.answers import Answer
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from tests.log_service.log_stage import Stage
from tests.node.replica.test_node_hosting import Driver, single


class DrivenEngine:
    """Answers at once in the calling thread, and publishes views to its listeners."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.views: dict[str, GroupView] = {}
        self.runs = 0
        self.woken = 0
        self.leads = True
        self.term = 0
        """The term to report instead of the group's, after a return of leadership."""
        self._listeners: list[Callable[[str, GroupView], None]] = []
        self._hidden: list[Callable[[str], None]] = []
        self.publish()

    def on_view(self, listener: Callable[[str, GroupView], None]) -> None:
        self._listeners.append(listener)

    def on_hidden(self, listener: Callable[[str], None]) -> None:
        self._hidden.append(listener)

    def wake(self, group: str) -> None:
        self.woken += 1

    def new_token(self) -> int:
        self.driver.tokens += 1
        return self.driver.tokens

    def publish(self, view: GroupView | None = None) -> None:
        """Publish a view; by default the last one of the group."""
        assert self.driver.view is not None
        found = view or (
            replace(self.driver.view, term=self.term) if self.term else self.driver.view
        )
        self.views["g1"] = found
        for listener in self._listeners:
            listener("g1", found)

    def show(
        self, leader: str | None = "n1", *, term: int = 0, serving: bool = True, topics: Any = None
    ) -> None:
        """Publish the group's view with another leader. Calls are refused unless `serving`."""
        assert self.driver.view is not None
        self.leads = serving
        self.publish(
            replace(
                self.driver.view, leader=leader, serving=serving, term=term or self.driver.view.term
            )
        )

    def lead(self, term: int) -> None:
        """Return the leadership to this node, in a later term."""
        self.show(term=term)
        self.term = term

    def hide(self) -> None:
        self.views.pop("g1", None)
        for listener in self._hidden:
            listener("g1")

    def run(self, group: str, work: Callable[[Any], Any]) -> asyncio.Future[Any]:
        self.runs += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(work(self.driver.group))
        except Exception as error:  # as in the engine: the error of the work reaches its awaiter
            future.set_exception(error)
        return future

    def call(self, group: str, call: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.leads:
            future.set_result(Refused("not-leader"))
            return future
        self.driver.turn(call)
        while call.token not in self.driver.done:
            self.driver.turn(elapsed_ns=1_000_000_000)
        future.set_result(self.driver.done.pop(call.token))
        self.publish()
        return future

    def notify(self, group: str, call: Any) -> None:
        self.driver.turn(call)


@dataclass(slots=True)
class Stored:
    """A message that the test stored."""

    queue: int
    offset: int
    body: bytes


class Group:
    """The group, its topics, and the messages stored in them."""

    def __init__(self, directory: Path, **group: Any) -> None:
        self.driver = Driver(single(directory, group=group))
        self.engine = DrivenEngine(self.driver)
        self.topics: dict[str, TopicConfig] = {}
        self.stored: dict[tuple[str, int], list[bytes]] = {}

    def configure(self, name: str, queues: int, incarnation: int = 1) -> None:
        config = TopicConfig("", name, TopicKind.NORMAL, queues, Permission.READ_WRITE, incarnation)
        self.topics[name] = config
        assert self.driver.call(lambda token: Configure(token, [config])) == Configured()
        self.engine.publish()

    def delete(self, name: str) -> None:
        assert (
            self.driver.call(lambda token: Configure(token, deleted_topics=[name])) == Configured()
        )
        self.engine.publish()

    def produce(
        self, rows: Sequence[tuple[str, int, int]], user: dict[str, str] | None = None
    ) -> None:
        """Store one batch; `rows`: (topic, queue, length of the body) of each message. `user`: the
        properties of all."""
        drafts = []
        for topic, queue, size in rows:
            kept = self.stored.setdefault((topic, queue), [])
            body = f"{topic}/{queue}/{len(kept)}:".encode().ljust(size, b".")
            kept.append(body)
            drafts.append(
                Draft(
                    topic,
                    queue,
                    body,
                    encode(Fields(message_id=f"m{len(kept)}", user=user or {})),
                    1,
                )
            )
        outcome = self.driver.call(lambda token: Produce(token, drafts))
        assert isinstance(outcome, Produced)
        self.engine.publish()

    def ends(self, topic: str) -> tuple[int, ...]:
        return self.engine.views["g1"].queue_ends[topic]

    def close(self) -> None:
        self.driver.group.close()


class DrivenStage(Stage):
    """The Log service over this group."""

    def __init__(self, group: Group, **options: Any) -> None:
        self.group = group
        super().__init__(engine=group.engine, **options)

    def topic(
        self,
        name: str = "T",
        kind: str = "normal",
        queues: int = 4,
        permission: str = "rw",
        namespace: str = "",
    ) -> None:
        """Create a topic that is already in effect."""
        names = {
            "ns": namespace,
            "name": name,
            "kind": kind,
            "queues": queues,
            "permission": permission,
        }
        self.quorum.command({"op": "create-topic", **names})
        self.group.configure(name, queues, self.quorum.state.topics[namespace, name].incarnation)


@dataclass(frozen=True, slots=True)
class Got:
    """An answer, parsed with the generated code."""

    queue: int
    first: int
    bodies: tuple[bytes, ...]
    skipped: int
    end: int
    entries: bytes


def got(answer: Answer | bytes) -> Got:
    """Parse an answer and check the sizes, positions and headers of its entries."""
    data = answer.data if isinstance(answer, Answer) else answer
    entries = pb.FetchResponse.FromString(data).entries
    sizes = np.frombuffer(entries.sizes, "<u4").tolist()
    assert sum(sizes) == len(entries.entries) and sizes
    bodies, at = [], 0
    for place, size in enumerate(sizes):
        entry = entries.entries[at : at + size]
        at += size
        assert int.from_bytes(entry[4:8], "big") == size
        record = entry[48:]
        queue, offset = int.from_bytes(record[12:16], "big"), int.from_bytes(record[20:28], "big")
        if entries.queue >= 0:
            assert (queue, offset) == (entries.queue, entries.first_offset + place)
        else:
            assert int.from_bytes(entry[8:16], "big") == entries.first_offset + place
        length = int.from_bytes(record[84:88], "big")
        bodies.append(record[88 : 88 + length])
    if isinstance(answer, Answer):
        assert (answer.count, answer.size) == (len(sizes), len(entries.entries))
    return Got(
        entries.queue,
        entries.first_offset,
        tuple(bodies),
        entries.skipped,
        entries.end_offset,
        entries.entries,
    )
