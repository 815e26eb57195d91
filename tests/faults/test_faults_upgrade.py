"""A cluster of one version becomes one of another version, node by node under load, and goes back.

The versions are this one and the last two tags; each pair is tried, the older one first. Without
two tags, the last commit of version 0.1.0 and the first merge behind it stand for them. Older
versions come from the repository's own history, so a copy without its history skips these tests.
All versions run with the libraries of this environment.

What `upgrade finish` does needs a program that reads a higher feature level than this one: a copy
of this tree whose table of levels ends one level higher stands for the next release.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tarfile
from concurrent.futures import Future
from itertools import combinations
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from ledgermq import __version__
from ledgermq.client import Acknowledged, Producer, SendFailed
from ledgermq.proto.levels import LEVEL_MAX
from tests.builds import FOLDERS, ROOT, Build, next_release
from tests.cluster import create_topic, leader, running, wait_for
from tests.e2e.command_line import CommandLine
from tests.faults.faulty import TOPIC, FaultyCluster, events, faulty, judge
from tests.faults.histories import History

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(500)]

NAMES = OLDEST, FORMER, PRESENT = ("oldest", "former", "present")
FIRST_VERSION = "0.1.0"
NATIVE = "native"


def git(*arguments: str) -> bytes:
    """The output of git, or a skipped test."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if done.returncode != 0:
        pytest.skip(
            f"no history of the repository here: {done.stderr.decode(errors='replace').strip()}"
        )
    return done.stdout


def commits() -> dict[str, str]:
    """The commits of the two older versions."""
    if git("rev-parse", "--is-shallow-repository").strip() != b"false":
        pytest.skip("this clone is shallow: the commits of older versions are not in it")
    tags = (
        git("tag", "--list", "v[0-9]*", "[0-9]*", "--sort=version:refname", "--merged", "HEAD~1")
        .decode()
        .split()
    )
    if len(tags) >= 2:
        return dict(zip((OLDEST, FORMER), tags[-2:], strict=True))
    bumped = (
        git("log", "-1", "--format=%H", f'-Sversion = "{FIRST_VERSION}"', "--", "pyproject.toml")
        .decode()
        .strip()
    )
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
        told = re.search(
            r'^version = "(.+)"$', git("show", f"{commit}:pyproject.toml").decode(), re.MULTILINE
        )
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
    builds: dict[str, Build],
    older: str,
    newer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No acknowledged message is lost, none of a native producer is stored twice, and consumer
    groups keep their positions: from the older version to the newer one, with its leader last, and
    back, with its leader first."""
    monkeypatch.setattr(MixedCluster, "first", builds[older], raising=False)
    with faulty(tmp_path, kind=MixedCluster) as cluster:
        assert isinstance(cluster, MixedCluster)
        create_topic(cluster, NATIVE)
        roll(cluster, builds[older], builds[newer])


def roll(cluster: MixedCluster, older: Build, newer: Build) -> None:
    """Replace the older version by the newer one and back under load, and judge what was stored."""
    with History(cluster, TOPIC) as history, NativeLoad(cluster.endpoints) as native:
        cli = CommandLine.of(cluster)
        before = cli.ok(
            "consume", "--topic", TOPIC, "--group", "kept", "--max", "10"
        ).out.splitlines()
        assert {version for node in cluster.nodes for version in cluster.versions(node)} == {
            older.version
        }
        first = leader(cluster)
        for node in [*cluster.others(first), first]:
            cluster.change(node, newer)
            history.progress(20)
        between = cli.ok(
            "consume", "--topic", TOPIC, "--group", "kept", "--max", "10"
        ).out.splitlines()
        last = leader(cluster)
        for node in [last, *cluster.others(last)]:
            cluster.change(node, older)
            history.progress(20)
        after = cli.ok(
            "consume", "--topic", TOPIC, "--group", "kept", "--max", "10"
        ).out.splitlines()
    judge(cluster, history)
    assert len({*before, *between, *after}) == 30
    stored = [int(body) for body in cli.consume_all(NATIVE, "judge")]
    assert native.acknowledged and not native.failed, native.failed[:3]
    assert sorted(stored) == sorted(native.acknowledged) == list(range(native.sent))


def levels(cli: CommandLine) -> tuple[int, dict[str, int]]:
    """The feature level of the cluster, and those of its broker groups."""
    found = cli.ok("upgrade", "status", "--json").json
    return found["level"], {
        group["broker_group"]: group["level"] for group in found["broker_groups"]
    }


def refused(cli: CommandLine) -> str:
    """Why the upgrade cannot be finished."""
    done = cli.run("upgrade", "finish", "--yes")
    assert done.status == 4, done.err
    return done.error


def test_an_upgrade_is_finished_under_load_and_then_has_no_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused while a node runs the former release, or does not answer. Nothing that was
    acknowledged is lost or stored twice, a group that is created afterwards has the level too, and
    a node of the former release ends with status 76 and says why. The messages are counted; an
    audit of this release would refuse the records of the next one."""
    above, former, newer = LEVEL_MAX + 1, Build(__version__), next_release(tmp_path / "next")
    monkeypatch.setattr(MixedCluster, "first", former, raising=False)
    with running(tmp_path, kind=MixedCluster) as cluster, contextlib.closing(cluster.network):
        create_topic(cluster, NATIVE)
        cli = CommandLine.of(cluster)
        first, *others = cluster.nodes
        with NativeLoad(cluster.endpoints) as native:
            assert "nothing to raise" in cli.ok("upgrade", "finish", "--yes").out
            for node in others:
                cluster.change(node, newer)
            assert (
                f"node {first} runs LedgerMQ {former.version}, which reads up to level {LEVEL_MAX}:"
                " upgrade it" in refused(cli)
            )
            assert levels(cli) == (LEVEL_MAX, {"g1": LEVEL_MAX})
            cluster.change(first, newer)
            assert cluster.terminate(others[0]) == 0
            assert f"node {others[0]} does not answer: start it" in refused(cli)
            cluster.change(others[1], former)  # there is a way back until then
            cluster.change(others[1], newer)
            cluster.start(others[0])
            cluster.wait_ready()
            wait_for(
                lambda: not cli.ok("upgrade", "status", "--json").json["in_the_way"],
                30,
                "all nodes to answer",
            )
            done = cli.ok("upgrade", "finish", "--yes", "--json").json
            assert done == {"v": 1, "level": above, "raised": ["g1"], "changed": True}
            assert "nothing to raise" in cli.ok("upgrade", "finish", "--yes").out
            cli.ok("broker-group", "add", "g2")
            wait_for(
                lambda: levels(cli) == (above, {"g1": above, "g2": above}),
                30,
                "the new group to have the level",
            )
            assert cluster.terminate(first) == 0
            cluster.own_environment[first] = former.environment
            child = cluster.start(first)
            assert wait_for(lambda: child.exit_code, 60, f"{first} to refuse its directory") == 76
            assert f"level {above}, this program reads up to {LEVEL_MAX}" in cluster.last_error(
                first
            )
            cluster.own_environment[first] = newer.environment
            cluster.start(first)
            cluster.wait_ready()
        assert native.acknowledged and not native.failed, native.failed[:3]
        assert (
            sorted(map(int, cli.consume_all(NATIVE, "judge")))
            == sorted(native.acknowledged)
            == list(range(native.sent))
        )
