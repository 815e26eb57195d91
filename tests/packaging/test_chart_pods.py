"""The chart's pods as real nodes on this machine: first user, pre-stop hook, and under load a
rolling upgrade, a renewed certificate, a lost node, and another number of nodes.

It shows what a Kubernetes cluster would ask of the nodes; it does not show what that cluster itself
does (docs/kubernetes.md).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.node.frontend.security import minting
from ledgermq.proto.levels import LEVEL_MAX
from tests.builds import next_release
from tests.cluster import wait_for
from tests.e2e.command_line import CommandLine
from tests.mounted_secret import MountedSecret
from tests.packaging.loads import Load, NativeLoad, OfficialLoad, UnaryLoad
from tests.packaging.pods import HELM, NAME, Pods, Rendered, Service, profile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.verify,
    pytest.mark.timeout(300),
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]


class Release:
    """A release of the chart, whose pods are processes here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def three(self, replicas: int = 3) -> Rendered:
        """The profile for three nodes, with small log files."""
        groups = [
            {
                "name": f"g{k + 1}",
                "replicas": [0, 1, 2],
                "preferredLeader": k,
                "data_file_bytes": "4MiB",
            }
            for k in range(3)
        ]
        small = self.directory / "small.yaml"
        small.write_text(
            yaml.safe_dump(
                {"replicas": replicas, "cluster": {"brokerGroups": groups}, **self.values(replicas)}
            )
        )
        return profile("three", "-f", str(small))

    def values(self, replicas: int) -> dict[str, Any]:
        """What this kind of pods needs besides."""
        return {}

    def pods(self, found: Rendered, tls: MountedSecret | None = None) -> Pods:
        return Pods(found, self.directory, tls)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def test_one_node_runs_as_its_pod_is_described(release: Release) -> None:
    """The first user can sign in and nobody else can; the hook says what stops with the only node,
    and does not wait."""
    pods = release.pods(profile("one"))
    with pods.all_running():
        root = CommandLine(pods.endpoints, keys=pods.keys)
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        assert CommandLine(pods.endpoints).run("status").status == 4
        stopped = pods.stop(0)
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert (
            stopped.stdout.endswith(f"{NAME}-0 can stop\n")
            and "broker group g1 needs 1 of" in stopped.stdout
        )


def certificate(directory: Path, found: Rendered, *more: str) -> dict[str, bytes]:
    """A Secret as cert-manager would fill it: for the names of the chart's Certificate, and for the
    addresses of the pods here."""
    names = [
        *found["Certificate"]["spec"]["dnsNames"],
        *(f"127.0.0.1{last}" for last in range(5)),
        *more,
    ]
    minting.ensure(directory, {"nodes": names})
    files = {"tls.crt": "nodes.pem", "tls.key": "nodes.key", "ca.crt": "ca.pem"}
    return {name: (directory / file).read_bytes() for name, file in files.items()}


def presented(endpoint: str, authority: bytes) -> bytes:
    """The certificate, as DER, that a new connection is shown."""

    async def ask() -> bytes:
        context = ssl.create_default_context(cadata=authority.decode())
        context.set_alpn_protocols(["h2"])
        host, port = endpoint.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return shown

    return asyncio.run(ask())


def presented_by_all(pods: Pods, secret: dict[str, bytes]) -> bool:
    wanted = ssl.PEM_cert_to_DER_cert(secret["tls.crt"].decode())
    return all(
        presented(pods.endpoint(ordinal), secret["ca.crt"]) == wanted
        for ordinal in range(pods.count)
    )


class Loads:
    """A load of each kind: the official client and unary calls through the Service, the native
    producer at the first nodes."""

    def __init__(self, pods: Pods, directory: Path, nodes: int = 3) -> None:
        self._stack = ExitStack()
        self._pods, self._directory = pods, directory
        self._native = ";".join(map(pods.endpoint, range(nodes)))
        self._found: dict[str, list[float]] = {}
        self.all: list[Load] = []

    def __enter__(self) -> Loads:
        with ExitStack() as stack:
            service = stack.enter_context(Service(self._pods)).endpoint
            keys = self._pods.keys
            self.all = [
                NativeLoad(self._native, keys),
                UnaryLoad(service, keys),
                OfficialLoad(service, keys, self._directory / "client"),
            ]
            for load in self.all:
                stack.enter_context(load)
            self._stack = stack.pop_all()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def more(self) -> None:
        """Wait for further acknowledgements of each load."""
        for load in self.all:
            load.more()

    def note(self, phase: str) -> None:
        """The longest times without an acknowledgement since the last note belong to this phase.
        Sends more before it asks."""
        self.more()
        self._found[phase] = [load.longest_since() for load in self.all]

    def judge(self, root: CommandLine, endpoints: str) -> None:
        """Everything acknowledged is stored, native messages once, and the replicas are equal.
        Prints the times."""
        for phase, longest in self._found.items():
            said = ", ".join(
                f"{load.name} {seconds:.2f} s"
                for load, seconds in zip(self.all, longest, strict=True)
            )
            print(f"longest time without an acknowledgement, {phase}: {said}")
        print(
            "acknowledged:", ", ".join(f"{load.name} {len(load.acknowledged)}" for load in self.all)
        )
        consumed = Counter(root.consume_all("t", "readers", "--timeout", "60s"))
        for load in self.all:
            assert not [body for body in load.acknowledged if body not in consumed], load.name
            assert not isinstance(load, NativeLoad) or all(
                consumed[body] == 1 for body in load.acknowledged
            )
        assert root.ok("status", "--json").json["health"] == "ok"
        audited = root.ok("audit", "--endpoints", endpoints, "--engine", "local", timeout_s=300)
        assert "audit: PASS" in audited.out, audited.out


def test_a_rolling_upgrade_and_a_renewed_certificate_lose_no_acknowledged_message(
    release: Release, tmp_path: Path
) -> None:
    """Pods are replaced as a StatefulSet does it, the highest ordinal first, each behind its hook,
    by the program of the next release. Then the certificate of all nodes changes behind `..data`,
    and the pods go back to this release."""
    found = release.three()
    volume = MountedSecret(tmp_path / "tls", certificate(tmp_path / "ca", found))
    renewed = certificate(tmp_path / "ca", found, "renewed.example.com")
    pods = release.pods(found, volume)
    root = CommandLine(pods.endpoints, keys=pods.keys)

    def read() -> set[int]:
        return {node["level_max"] for node in root.ok("upgrade", "status", "--json").json["nodes"]}

    with pods.all_running():
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        root.ok("topic", "create", "t", "--queues", "6")
        with Loads(pods, tmp_path) as loads:
            loads.note("before")
            for phase, build in (("upgrade", next_release(tmp_path / "next")), ("way back", None)):
                pods.build = build
                for ordinal in (2, 1, 0):
                    stopped = pods.stop(ordinal)
                    assert stopped.returncode == 0 and stopped.stdout.endswith(
                        f"{NAME}-{ordinal} can stop\n"
                    ), stopped.stderr
                    loads.more()
                    pods.start(ordinal)
                    pods.wait_ready(ordinal)
                    loads.more()
                assert read() == {LEVEL_MAX + (build is not None)}
                loads.note(phase)
                if build is not None:
                    volume.replace(renewed)
                    wait_for(lambda: presented_by_all(pods, renewed), 30, "the new certificate")
                    loads.note("renewed certificate")
        loads.judge(root, pods.endpoints)


def test_a_lost_node_is_replaced_by_an_empty_one_under_load(
    release: Release, tmp_path: Path
) -> None:
    """The machine with the leader of a broker group is gone, with the volume. The pod starts again
    with an empty one, receives everything and votes again."""
    found = release.three()
    pods = release.pods(found, MountedSecret(tmp_path / "tls", certificate(tmp_path / "ca", found)))
    root = CommandLine(pods.endpoints, keys=pods.keys)
    with pods.all_running():
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        root.ok("topic", "create", "t", "--queues", "6")
        with Loads(pods, tmp_path) as loads:
            loads.note("before")
            pods.lose(0)
            loads.note("lost")
            pods.start(0)
            pods.wait_ready(0)
            assert root.ok("status", "--wait", "60s", "--strict")
            loads.note("replaced")
        loads.judge(root, pods.endpoints)


def interrupted(pods: Pods, command: list[str]) -> str:
    """Run a job whose pod is killed once the first change is done; returns the steps that it meant
    to take."""
    process = pods.begin_job(command)
    assert process.stdout is not None and process.stderr is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("done: "):
            break
    process.kill()
    process.wait(30)
    assert said and said[-1].startswith("done: "), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return "".join(said)


@pytest.mark.parametrize("most", [4, 5])
def test_members_follow_the_replicas_up_and_back_under_load(
    release: Release, tmp_path: Path, most: int
) -> None:
    """The jobs of the chart, each killed once: nodes join and get replicas; replicas move away and
    nodes leave before their pods stop. Two replicas are refused and change nothing. Everything
    acknowledged is there, native messages exactly once, and the audit passes."""
    found = release.three(most)
    fewer, too_few = release.three(3), release.three(2)
    pods = release.pods(found, MountedSecret(tmp_path / "tls", certificate(tmp_path / "ca", found)))
    first = ";".join(map(pods.endpoint, range(3)))
    root = CommandLine(first, keys=pods.keys)
    names = {f"{NAME}-{ordinal}" for ordinal in range(most)}
    remaining = {f"{NAME}-{ordinal}" for ordinal in range(3)}

    def placed() -> set[str]:
        rows = root.ok("broker-group", "list", "--json").json["groups"]
        assert all(
            len(row["replicas"]) == 3 and {member["role"] for member in row["members"]} == {"voter"}
            for row in rows
        ), rows
        return {node for row in rows for node in row["replicas"]}

    def members() -> set[str]:
        return {
            row["node"]
            for row in root.ok("member", "list", "--json").json["members"]
            if row["up"] and row["controller"]
        }

    with pods.all_running(3):
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        root.ok("topic", "create", "t", "--queues", "6")
        with Loads(pods, tmp_path) as loads:
            loads.note("three nodes")
            for ordinal in range(3, most):
                pods.start(ordinal)
            assert "add mq-ledgermq-3" in interrupted(pods, found.job("members"))
            done = pods.job(found.job("members"))
            assert done.returncode == 0, done.stderr
            assert members() == placed() == names
            for ordinal in range(3, most):
                pods.wait_ready(ordinal)
            loads.note(f"3 to {most}")
            refused = pods.job(too_few.job("leave"))
            assert (
                refused.returncode == 4
                and "has 3 replicas, and only 2 nodes would remain" in refused.stderr
            )
            assert members() == placed() == names
            loads.note(f"{most} nodes")
            assert f"remove mq-ledgermq-{most - 1}" in interrupted(pods, fewer.job("leave"))
            done = pods.job(fewer.job("leave"))
            assert done.returncode == 0, done.stderr
            assert members() == placed() == remaining
            for ordinal in range(most - 1, 2, -1):
                stopped = pods.stop(ordinal)
                assert (
                    stopped.returncode == 4
                    and f"there is no node {NAME}-{ordinal}" in stopped.stderr
                ), "told by another node, at once"
            done = pods.job(fewer.job("members"))
            assert done.returncode == 0, done.stderr
            loads.note(f"{most} to 3")
        loads.judge(root, first)
