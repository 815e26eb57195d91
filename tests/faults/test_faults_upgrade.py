"""A cluster of one version becomes one of another version, node by node under load, and goes back.

The versions are this one and the last two tags; each pair is tried, the older one first. Without two tags, the last commit of version 0.1.0
and the first merge behind it stand for them. Older versions come from the repository's own history, so a copy without its history skips
these tests. All versions run with the libraries of this environment.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import combinations
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
NAMES = OLDEST, FORMER, PRESENT = ("oldest", "former", "present")
FIRST_VERSION = "0.1.0"
FOLDERS = ("src", "proto", "raft", "storage", "node", "client", "audit", "sim")
NATIVE = "native"


def git(*arguments: str) -> bytes:
    """The output of git, or a skipped test."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"no history of the repository here: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Build:
    """A version of the program: what it says of itself, and its source tree (None: this one)."""

    version: str
    source: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.source is None else {"PYTHONPATH": str(self.source)}


def commits() -> dict[str, str]:
    """The commits of the two older versions."""
    if git("rev-parse", "--is-shallow-repository").strip() != b"false":
        pytest.skip("this clone is shallow: the commits of older versions are not in it")
    tags = git("tag", "--list", "v[0-9]*", "[0-9]*", "--sort=version:refname", "--merged", "HEAD~1").decode().split()
    if len(tags) >= 2:
        return dict(zip((OLDEST, FORMER), tags[-2:], strict=True))
    bumped = git("log", "-1", "--format=%H", f'-Sversion = "{FIRST_VERSION}"', "--", "pyproject.toml").decode().strip()
    merged = git("log", "--merges", "--reverse", "--format=%H", f"{bumped}..HEAD").decode().split()
    return {OLDEST: f"{bumped}^", FORMER: merged[0]}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Build]:
    """The source trees of the versions, by name."""
    found = {PRESENT: Build(__version__)}
    for name, commit in commits().items():
        place = tmp_path_factory.mktemp(name)
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *FOLDERS))) as archive:
            archive.extractall(place, filter="tar")
        told = re.search(r'^version = "(.+)"$', git("show", f"{commit}:pyproject.toml").decode(), re.MULTILINE)
        assert told is not None, f"{commit} states no version"
        found[name] = Build(told[1], place / "src")
    return found


class MixedCluster(FaultyCluster):
    """All nodes begin with the older version."""

    first: ClassVar[Build]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.own_environment = {node: self.first.environment for node in self.nodes}

    def change(self, node: str, build: Build) -> None:
        """Stop the node, and start it with another version."""
        assert self.terminate(node) == 0
        self.own_environment[node] = build.environment
        self.start(node)
        self.wait_ready(nodes=[node])
        assert self.versions(node)[-1] == build.version

    def versions(self, node: str) -> list[str]:
        """The versions that the node was started with."""
        return [event["version"] for event in events(self, node) if event["event"] == "starting"]


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


@pytest.mark.parametrize(("older", "newer"), list(combinations(NAMES, 2)))
def test_a_rolling_upgrade_under_load_and_back(
    builds: dict[str, Build], older: str, newer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No acknowledged message is lost, none of a native producer is stored twice, and consumer groups keep their positions: from the older
    version to the newer one, with its leader last, and back, with its leader first."""
    monkeypatch.setattr(MixedCluster, "first", builds[older], raising=False)
    with faulty(tmp_path, kind=MixedCluster) as cluster:
        assert isinstance(cluster, MixedCluster)
        create_topic(cluster, NATIVE)
        roll(cluster, builds[older], builds[newer])


def roll(cluster: MixedCluster, older: Build, newer: Build) -> None:
    """Replace the older version by the newer one and back under load, and judge what was stored."""
    with History(cluster, TOPIC) as history, NativeLoad(cluster.endpoints) as native:
        cli = CommandLine.of(cluster)
        before = cli.ok("consume", "--topic", TOPIC, "--group", "kept", "--max", "10").out.splitlines()
        assert {version for node in cluster.nodes for version in cluster.versions(node)} == {older.version}
        first = leader(cluster)
        for node in [*cluster.others(first), first]:
            cluster.change(node, newer)
            history.progress(20)
        between = cli.ok("consume", "--topic", TOPIC, "--group", "kept", "--max", "10").out.splitlines()
        last = leader(cluster)
        for node in [last, *cluster.others(last)]:
            cluster.change(node, older)
            history.progress(20)
        after = cli.ok("consume", "--topic", TOPIC, "--group", "kept", "--max", "10").out.splitlines()
    judge(cluster, history)
    assert len({*before, *between, *after}) == 30
    stored = [int(body) for body in cli.consume_all(NATIVE, "judge")]
    assert native.acknowledged and not native.failed, native.failed[:3]
    assert sorted(stored) == sorted(native.acknowledged) == list(range(native.sent))
