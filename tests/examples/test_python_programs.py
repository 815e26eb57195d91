"""The programs of examples/python against three real nodes, and the administration API against what
they left behind.

Topics and consumer groups are made as examples/python/README.md says.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ledgermq.client import Admin, AsyncAdmin, AsyncConnection, Connection
from ledgermq.node.process.local import LocalCluster
from tests import cluster as real

pytestmark = pytest.mark.slow
pytest.importorskip("rocketmq", reason="the demo's dependencies are not installed")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
PAGE = EXAMPLES.parents[1] / "docs" / "client.md"
PERIODS = {"transaction_check_ms": 1000, "transaction_interval_ms": 500}
PRINTED = {
    "normal": "received order 0 new",
    "push": "attempt 2 at order 3",
    "fifo": "customer-0 [0, 3, 6, 9]",
    "delay": "received 'tea is ready'",
    "transaction": "asked about forget",
    "priority": "received alert 7",
    "lite": "received room-42 hello room-42",
    "admin": "as it should be: ",
    "admin_async": "3 nodes, ",
    "native_producer": "acknowledged 10000 but not row 10000",
}
"""What each must have printed at least."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with (
        real.running(tmp_path_factory.mktemp("examples"), extra={"delivery": PERIODS}) as found,
        connected(found) as connection,
    ):
        admin = Admin(connection)
        readme = (EXAMPLES / "README.md").read_text()
        for name, kind in re.findall(r"`ledgermq topic create (\S+?)(?: --kind (\w+))?`", readme):
            admin.create_topic(name, kind=kind or "normal")
        for name, fifo, lite_topic in re.findall(
            r"`ledgermq group create (\S+?)( --fifo)?(?: --lite-topic (\S+))?`", readme
        ):
            admin.create_group(name, fifo=bool(fifo), lite_topic=lite_topic)
        yield found


def endpoints(cluster: LocalCluster) -> str:
    return ";".join(real.target(cluster, node) for node in cluster.nodes)


def connected(cluster: LocalCluster) -> Connection:
    return Connection(endpoints(cluster), timeout_s=20)


def start(cluster: LocalCluster, program: Path, home: Path) -> subprocess.Popen[str]:
    """As a user would, but with the client's files in a directory of its own."""
    home.mkdir()
    variables = {
        "HOME": str(home),
        "LEDGERMQ_ENDPOINTS": endpoints(cluster),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(program)]
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_every_program_ends_well(cluster: LocalCluster, tmp_path: Path) -> None:
    """Each one there is listed, ends with status 0, and has printed what it is about."""
    programs = sorted(EXAMPLES.glob("*.py"))
    readme = (EXAMPLES / "README.md").read_text()
    assert {path.stem for path in programs} == PRINTED.keys() and all(
        f"`{path.name}`" in readme for path in programs
    )
    # A program must not get the messages of another: normal and push share a topic, so they run one
    # after the other.
    for turn in ([path for path in programs if path.stem != "push"], [EXAMPLES / "push.py"]):
        run_together(cluster, turn, tmp_path)


def test_programs_without_a_cluster_end_with_one_line(tmp_path: Path) -> None:
    """Those of ledgermq's own client. The error says what is wrong, and a traceback would hide
    it."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{nobody.getsockname()[1]}"
        own = [
            *(EXAMPLES / f"{name}.py" for name in ("admin", "admin_async", "native_producer")),
            EXAMPLES.parent / "native_consumer.py",
        ]
        variables = {**os.environ, "LEDGERMQ_ENDPOINTS": nowhere, "GRPC_VERBOSITY": "ERROR"}
        running = [
            subprocess.Popen(
                [sys.executable, path, nowhere, "orders"],
                env=variables,
                cwd=tmp_path,
                stderr=subprocess.PIPE,
                text=True,
            )
            for path in own
        ]
        for path, process in zip(own, running, strict=True):
            said = process.communicate(timeout=120)[1].splitlines()
            assert (
                process.returncode == 1
                and len(said) == 1
                and said[0].startswith("error: ")
                and nowhere in said[0]
            ), (path, said)


def run_together(cluster: LocalCluster, programs: Sequence[Path], directory: Path) -> None:
    running = {path.stem: start(cluster, path, directory / path.stem) for path in programs}
    try:
        printed = {name: process.communicate(timeout=120)[0] for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    for name, process in running.items():
        assert process.returncode == 0 and PRINTED[name] in printed[name], (
            f"{name}: {process.returncode}\n{printed[name]}"
        )


def test_both_forms_tell_the_same_of_a_real_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    """Settings, lag, messages with their copies and history, members and users: from the log's side
    of things."""
    with connected(cluster) as connection:
        admin = Admin(connection)
        admin.create_topic("shop@told", queues=2)
        told = start(cluster, EXAMPLES / "normal.py", tmp_path / "home")
        assert told.wait(60) == 0
        newest = real.wait_for(
            lambda: admin.query("orders", key="order-0").messages, 10, "the key index"
        )[0]
        assert (
            newest.message_id is not None
            and newest.body == b"order 0"
            and newest.properties["customer"] == "c-17"
        )
        assert (
            admin.why_not_delivered(newest.message_id, "billing", topic="orders").reason
            == "acknowledged"
        )
        detail = admin.detail(newest)
        assert [copy.state for copy in detail.copies] == ["present"] * 3 and {
            c.group for c in detail.consumption
        } >= {"billing"}
        assert {event.kind for event in admin.trace("orders", newest.message_id)} >= {
            "stored",
            "leased",
            "acknowledged",
        }
        admin.create_group("fresh")
        (lag,) = admin.lag("fresh", topic="orders")
        assert lag.lag == sum(queue.lag or 0 for queue in lag.queues) > 0
        cursors = admin.reset("fresh", "orders", "latest")
        assert admin.lag("fresh", topic="orders")[0].lag == 0 and len(cursors) == 8
        assert admin.create_user("reader", None, grants=["subscribe:topic:*"]).role
        leader = admin.status().groups[0].leader
        other = next(node for node in cluster.nodes if node != leader)
        admin.transfer("g1", other)
        real.wait_for(lambda: admin.status().groups[0].leader == other, 10, "news of the transfer")
        assert admin.why_leader_moved("g1").reason == "operator" and {
            member.node for member in admin.members()
        } == set(cluster.nodes)
        known = (
            admin.topics(),
            admin.topic("shop@told"),
            admin.users(),
            admin.peek("orders", limit=3),
        )

    async def awaited() -> tuple[object, ...]:
        async with AsyncConnection(endpoints(cluster), timeout_s=20) as connection:
            admin = AsyncAdmin(connection)
            calls = (
                admin.topics(),
                admin.topic("shop@told"),
                admin.users(),
                admin.peek("orders", limit=3),
            )
            return tuple(await asyncio.gather(*calls))

    assert asyncio.run(awaited()) == known


def test_programs_of_the_client_page_run(cluster: LocalCluster, tmp_path: Path) -> None:
    """Every program of docs/client.md that administers, with this cluster's endpoints."""
    programs = [
        program
        for program in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "Admin" in program
    ]
    assert len(programs) == 2
    for number, text in enumerate(programs):
        path = tmp_path / f"program{number}.py"
        path.write_text(re.sub(r'"127[^"]*"', repr(endpoints(cluster)), text))
        process = start(cluster, path, tmp_path / f"home{number}")
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and printed.strip(), printed
