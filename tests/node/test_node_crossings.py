"""How often a lone commit passes from one thread to another, on its leader and on each follower.

Three engines run real groups over real files on one loop. The clock stands still, so no timer,
heartbeat or checkpoint adds to the count. Every hand-over is counted where it happens:
`SimpleQueue.put` (which executors use as well), `Event.set` and `call_soon_threadsafe`. In a node,
gRPC's library adds one crossing for each call of a client: its polling thread wakes the loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.replica.hosting.hosted_groups import open_groups
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import validate
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log import log_writer

NODES = ("n1", "n2", "n3")
GROUP = "g1"
TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)
STEP_NS = 20_000_000
COMMITS = 20


class Crossings:
    """Counts the hand-overs between threads in this process. The value handed over or the callback
    shows which node they belong to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[tuple[object, str]] = Counter()
        seen = self.seen
        set_event, to_loop = threading.Event.set, asyncio.BaseEventLoop.call_soon_threadsafe

        class CountedQueue(queue.SimpleQueue):  # type: ignore[type-arg]
            def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
                seen[self, "queue"] += 1
                super().put(item, block, timeout)

        def counted_set(event: threading.Event) -> None:
            seen[event, "event"] += 1
            set_event(event)

        def counted_to_loop(
            loop: Any, callback: Callable[..., Any], *arguments: Any, context: Any = None
        ) -> asyncio.Handle:
            seen[getattr(callback, "__self__", callback), "loop"] += 1
            return to_loop(loop, callback, *arguments, context=context)

        monkeypatch.setattr(queue, "SimpleQueue", CountedQueue)
        monkeypatch.setattr(log_writer, "SimpleQueue", CountedQueue)
        monkeypatch.setattr(threading.Event, "set", counted_set)
        monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", counted_to_loop)


class Trio:
    """Three engines. A packet reaches the other node in a later pass of the loop, and time moves
    only with `elapse`."""

    def __init__(self, directory: Path) -> None:
        self.now_ns = time.monotonic_ns()
        self.hosts = {
            node: open_groups(_config(directory, node), RealDisk())[GROUP].group for node in NODES
        }
        self.engines: Mapping[str, Engine] = {
            node: Engine(
                {GROUP: host},
                send_packets=self._sender(node),
                on_fatal=self._fail,
                now_ns=lambda: self.now_ns,
            )
            for node, host in self.hosts.items()
        }

    def _fail(self, error: Exception) -> None:
        raise error

    def _sender(self, node: str) -> Callable[[str, Sequence[tuple[str, PeerPacket]]], None]:
        def send(group: str, packets: Sequence[tuple[str, PeerPacket]]) -> None:
            for peer, packet in packets:
                arrived = PeerPacket(packet.header, bytes(packet.payload))
                asyncio.get_running_loop().call_soon(
                    self.engines[peer].packets, [(group, node, arrived)]
                )

        return send

    async def start(self) -> str:
        """Start with a leader and a topic; returns the leading node."""
        for node, engine in self.engines.items():
            engine.start()
            self.hosts[node].connect(lambda engine=engine: engine.wake(GROUP), lambda packets: None)  # type: ignore[misc]
            engine.admit(GROUP)
        async with asyncio.timeout(60):
            while not (
                led := [node for node, engine in self.engines.items() if self._leads(node, engine)]
            ):
                await self._elapse()
            configured = self.engines[led[0]].call(
                GROUP, Configure(self.engines[led[0]].new_token(), [TOPIC])
            )
            while not configured.done():
                await self._elapse()
        return led[0]

    @staticmethod
    def _leads(node: str, engine: Engine) -> bool:
        view = engine.views.get(GROUP)
        return view is not None and view.serving and view.leader == node

    async def _elapse(self) -> None:
        self.now_ns += STEP_NS
        for engine in self.engines.values():
            engine.wake(GROUP)
        await asyncio.sleep(0.001)

    async def commit(self, leader: str, number: int) -> None:
        """One send, until its answer is there and every replica has ended its sync."""
        engine = self.engines[leader]
        draft = Draft("t", 0, b"x" * 100, encode(Fields(message_id=f"m{number}")), 1)
        assert isinstance(await engine.call(GROUP, Produce(engine.new_token(), [draft])), Produced)
        end_index = self.hosts[leader].running.store.log.end_index
        while any(host.running.store.log.durable_index < end_index for host in self.hosts.values()):
            await asyncio.sleep(0)

    async def stop(self) -> None:
        for engine in self.engines.values():
            await engine.stop()

    def owners(self) -> dict[object, str]:
        """The node that each counted object belongs to. The index threads, which are woken at a
        pace of their own, are left out."""
        found: dict[object, str] = {}
        for node, engine in self.engines.items():
            syncer, writer = engine._syncers[GROUP], self.hosts[node].running.store.log._writer
            assert isinstance(writer.together, log_writer.AtOnceIfSlow)
            found |= dict.fromkeys(
                (engine, engine._scheduler, syncer._tickets, writer.together._work), node
            )
            found[self.hosts[node].running.indexer._worker._woken] = "index thread"
        return found


def _config(directory: Path, node: str) -> NodeConfig:
    tree = yaml.safe_load(EXAMPLE)
    tree["node"], tree["data"] = node, str(directory / node)
    tree["cluster"]["groups"] = [
        {"name": GROUP, "replicas": list(NODES), "data_file_bytes": "1MiB"}
    ]
    return validate(tree)


def counted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The crossings of COMMITS lone commits: on the leader, on both followers together, and of
    anything else."""
    crossings = Crossings(monkeypatch)

    async def main() -> dict[str, int]:
        trio = Trio(directory)
        leader = await trio.start()
        async with asyncio.timeout(60):
            # The first commits find out how fast the disk is.
            for number in range(3):
                await trio.commit(leader, number)
            crossings.seen.clear()
            for number in range(COMMITS):
                await trio.commit(leader, 3 + number)
        seen, owners = dict(crossings.seen), trio.owners()
        await trio.stop()
        found = dict.fromkeys(("leader", "followers", "others"), 0)
        for (owner, _), count in seen.items():
            node = owners.get(owner, "others")
            if node != "index thread":
                found["leader" if node == leader else "followers" if node in NODES else node] += (
                    count
                )
        return found

    return asyncio.run(main())


@pytest.mark.parametrize(("short_sync_s", "crossings", "others"), [(60.0, 2, 0), (0.0, 3, 3)])
def test_lone_commit_crosses_only_to_the_sync_thread_and_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    short_sync_s: float,
    crossings: int,
    others: int,
) -> None:
    """Two crossings on the leader and two on each follower, where the disk is fast. A slow disk
    syncs the mark on a second thread: one more hand-over, whose outcome comes back through a queue
    made for the commit, which no node owns."""
    monkeypatch.setattr(log_writer, "SHORT_SYNC_S", short_sync_s)
    assert counted(tmp_path, monkeypatch) == {
        "leader": crossings * COMMITS,
        "followers": 2 * crossings * COMMITS,
        "others": others * COMMITS,
    }
