"""A cluster of the former release becomes one of this release, node by node under load, and goes back to the former one.

The former release comes from the repository's own history, so a copy without its history skips these tests. Both releases run with the
libraries of this environment.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from ledgermq import __version__
from ledgermq.client import Acknowledged, Producer, SendFailed
from tests.cluster import create_topic, leader
from tests.e2e.command_line import CommandLine
from tests.faults.faulty import TOPIC, FaultyCluster, events, faulty, judge
from tests.faults.histories import History

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(500)]

ROOT = Path(__file__).resolve().parents[2]
FORMER = "0.1.0"
FOLDERS = ("src", "proto", "raft", "storage", "node", "client", "audit", "sim")
NATIVE = "native"


def git(*arguments: str) -> bytes:
    """The output of git, or a skipped test."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"no history of the repository here: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the last commit with the former version."""
    if git("rev-parse", "--is-shallow-repository").strip() != b"false":
        pytest.skip("this clone is shallow: the commits of the former release are not in it")
    changed = git("log", "-1", "--format=%H", f'-Sversion = "{FORMER}"', "--", "pyproject.toml").decode().strip()
    place = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=io.BytesIO(git("archive", f"{changed}^", *FOLDERS))) as archive:
        archive.extractall(place, filter="tar")
    return place / "src"


class MixedCluster(FaultyCluster):
    """All nodes begin with the former release."""

    former: ClassVar[Path]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.own_environment = {node: {"PYTHONPATH": str(self.former)} for node in self.nodes}

    def change(self, node: str, version: str) -> None:
        """Stop the node, and start it with the other release."""
        assert self.terminate(node) == 0
        self.own_environment[node] = {"PYTHONPATH": str(self.former)} if version == FORMER else {}
        self.start(node)
        self.wait_ready(nodes=[node])
        assert [event["version"] for event in events(self, node) if event["event"] == "starting"][-1] == version


class NativeLoad:
    """A native producer that sends numbers, one after the other, until it is stopped."""

    def __init__(self, endpoints: str) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self._endpoints = endpoints
        self._stopped = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> NativeLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._endpoints, NATIVE, timeout_s=60.0) as producer:
            while not self._stopped.wait(0.002):
                future = producer.send(str(self.sent).encode())
                future.add_done_callback(lambda done, number=self.sent: self._done(done, number))  # type: ignore[misc]
                self.sent += 1

    def _done(self, future: Future[Acknowledged], number: int) -> None:
        error = future.exception()
        if isinstance(error, SendFailed):
            self.failed.append(f"{number}: {error}")
        else:
            self.acknowledged.append(number)


@pytest.fixture
def cluster(former: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MixedCluster]:
    monkeypatch.setattr(MixedCluster, "former", former, raising=False)
    with faulty(tmp_path, kind=MixedCluster) as found:
        assert isinstance(found, MixedCluster)
        create_topic(found, NATIVE)
        yield found


def test_a_rolling_upgrade_under_load_and_back(cluster: MixedCluster) -> None:
    """No acknowledged message is lost, none of a native producer is stored twice, and consumer groups keep their positions: from the former
    release to this one, with its leader last, and back, with its leader first."""
    with History(cluster, TOPIC) as history, NativeLoad(cluster.endpoints) as native:
        cli = CommandLine.of(cluster)
        before = cli.ok("consume", "--topic", TOPIC, "--group", "kept", "--max", "10").out.splitlines()
        assert {event["version"] for node in cluster.nodes for event in events(cluster, node) if event["event"] == "starting"} == {FORMER}
        first = leader(cluster)
        for node in [*cluster.others(first), first]:
            cluster.change(node, __version__)
            history.progress(20)
        between = cli.ok("consume", "--topic", TOPIC, "--group", "kept", "--max", "10").out.splitlines()
        last = leader(cluster)
        for node in [last, *cluster.others(last)]:
            cluster.change(node, FORMER)
            history.progress(20)
        after = cli.ok("consume", "--topic", TOPIC, "--group", "kept", "--max", "10").out.splitlines()
    judge(cluster, history)
    assert len({*before, *between, *after}) == 30
    stored = [int(body) for body in cli.consume_all(NATIVE, "judge")]
    assert native.acknowledged and not native.failed, native.failed[:3]
    assert sorted(stored) == sorted(native.acknowledged) == list(range(native.sent))
