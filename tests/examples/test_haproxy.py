"""The example for clients with one address: a real HAProxy in front of three real nodes, and the
official Node client behind it."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster, free_ports
from tests.cluster import create_topic, leader, running, wait_for
from tests.contract.foreign import Foreign, build
from tests.contract.killing import hand_over
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

CONFIGURATION = Path(__file__).parents[2] / "examples/haproxy/haproxy.cfg"
TOPIC = "orders"
KILLED_S, PAUSED_S = 12, 16
"""Within this time sending goes on: without the balancer not before the node is back, that is
never."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    return build("node", tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def program() -> str:
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("no haproxy here: apt install haproxy")
    return found


@contextmanager
def balanced(program: str, cluster: LocalCluster) -> Iterator[str]:
    """HAProxy with the file of the example; its address, once it takes connections."""
    listen = f"127.0.0.1:{free_ports(1)[0].client_port}"
    nodes = {name.upper(): f"{at.host}:{at.client_port}" for name, at in cluster.nodes.items()}
    pages = {f"{name.upper()}_HTTP": str(at.http_port) for name, at in cluster.nodes.items()}
    process = subprocess.Popen(
        [program, "-db", "-f", str(CONFIGURATION)],
        env={**os.environ, "LISTEN": listen, **nodes, **pages},
        stderr=subprocess.DEVNULL,
    )

    def accepts() -> bool:
        assert process.poll() is None, f"haproxy ended with {process.returncode}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(listen.rpartition(":")[2]))) == 0

    try:
        wait_for(accepts, 20, "haproxy")
        yield listen
    finally:
        process.terminate()
        process.wait()


class Sender:
    """The Node client, sending one message after the other."""

    def __init__(self, client: Foreign, address: str) -> None:
        command = [*client.command, "steady", address, TOPIC, "-", "0", "plain"]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "HOME": str(client.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.acked = 0
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def more(self, count: int, within_s: float) -> float:
        """The seconds until this many further messages were acknowledged."""
        began = time.monotonic()
        wanted = self.acked + count
        while self.acked < wanted:
            line = self._lines.get(timeout=max(0.0, began + within_s - time.monotonic()))
            self.acked += line.startswith("acked=")
        return time.monotonic() - began

    def drop(self) -> None:
        """Forget what was said before now."""
        while not self._lines.empty():
            self.acked += self._lines.get().startswith("acked=")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize(
    ("number", "limit_s"), [(signal.SIGKILL, KILLED_S), (signal.SIGSTOP, PAUSED_S)]
)
def test_a_client_with_one_address_goes_on_when_its_node_is_gone(
    program: str, client: Foreign, tmp_path: Path, number: signal.Signals, limit_s: int
) -> None:
    """The leader, to which the client is connected, dies or is paused: sending continues through
    the others."""
    with running(tmp_path) as cluster, balanced(program, cluster) as address:
        create_topic(cluster, TOPIC)
        sender = Sender(client, address)
        try:
            sender.more(10, 60)
            cli = CommandLine.of(cluster)
            found = cli.ok("client", "list", "--topic", TOPIC, "--json").json["clients"]
            node = next(one["node"] for one in found if one["connected"])
            if leader(cluster) != node:
                hand_over(cluster, node)
            sender.drop()
            sender.more(10, 30)
            cluster.children[node].signal(number)
            sender.drop()
            print(
                f"{number.name}: {sender.more(10, limit_s):.1f} s until ten further messages were"
                " acknowledged"
            )
        finally:
            sender.close()
            if number is signal.SIGSTOP:
                cluster.children[node].signal(signal.SIGCONT)
        if number is signal.SIGKILL:
            assert cluster.children[node].wait(10) == -signal.SIGKILL
            cluster.start(node)
        cluster.wait_ready()
        stored = cli.ok("topic", "describe", TOPIC, "--json").json["messages"]
        assert stored >= sender.acked
