"""The chart's pods as real nodes on this machine: first user, pre-stop hook, a rolling restart and a renewed certificate under load.

It shows what a Kubernetes cluster would ask of the nodes; it does not show what that cluster itself does (docs/kubernetes.md).
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
import yaml

from ledgermq.client import Producer
from ledgermq.node.frontend.security import minting
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.signature import Credentials
from tests.cluster import wait_for
from tests.contract.backend import message, signed
from tests.e2e.command_line import CommandLine
from tests.mounted_secret import MountedSecret
from tests.packaging.pods import HELM, NAME, Pods, Rendered, profile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.verify,
    pytest.mark.timeout(300),
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
OK = 20000


def test_one_node_runs_as_its_pod_is_described(tmp_path: Path) -> None:
    """The first user can sign in and nobody else can; the hook says what stops with the only node, and does not wait."""
    pods = Pods(profile("one"), tmp_path)
    with pods.all_running():
        root = CommandLine(pods.endpoints, keys=pods.keys)
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        assert CommandLine(pods.endpoints).run("status").status == 4
        stopped = pods.stop(0)
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert stopped.stdout.endswith(f"{NAME}-0 can stop\n") and "broker group g1 needs 1 of" in stopped.stdout


class Sender:
    """Sends numbered messages, each to one node after the other until one acknowledges it."""

    def __init__(self, pods: Pods) -> None:
        self._endpoints = [pods.endpoint(ordinal) for ordinal in range(pods.count)]
        self._metadata = signed(*pods.keys)
        self.acknowledged: set[str] = set()
        self._longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)]
        channels = [grpc.insecure_channel(endpoint, options=options) for endpoint in self._endpoints]
        calls = [
            channel.unary_unary(SEND, pb.SendMessageRequest.SerializeToString, pb.SendMessageResponse.FromString) for channel in channels
        ]
        turns, last = itertools.cycle(calls), time.monotonic()
        for number in itertools.count():
            request = pb.SendMessageRequest(messages=[message(f"m{number:06}".encode(), "t")])
            while not self._stop.is_set():
                try:
                    if next(turns)(request, metadata=self._metadata, timeout=5).status.code == OK:
                        self.acknowledged.add(f"m{number:06}")
                        self._longest_s, last = max(self._longest_s, time.monotonic() - last), time.monotonic()
                        break
                except grpc.RpcError:
                    continue
            if self._stop.is_set():
                break
        for channel in channels:
            channel.close()

    def longest_since(self) -> float:
        """The longest time in seconds between two acknowledgements since the last question."""
        found, self._longest_s = self._longest_s, 0.0
        return found

    def more(self, count: int = 50) -> None:
        """Wait for further acknowledgements."""
        least = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= least, 60, "acknowledgements")


def certificate(directory: Path, found: Rendered, *more: str) -> dict[str, bytes]:
    """A Secret as cert-manager would fill it: for the names of the chart's Certificate, and for the addresses of the pods here."""
    names = [*found["Certificate"]["spec"]["dnsNames"], *(f"127.0.0.1{last}" for last in range(5)), *more]
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
    return all(presented(pods.endpoint(ordinal), secret["ca.crt"]) == wanted for ordinal in range(pods.count))


def three(directory: Path, *arguments: str) -> Rendered:
    """The profile for three nodes, with small log files."""
    groups = [{"name": f"g{k + 1}", "replicas": [0, 1, 2], "preferredLeader": k, "data_file_bytes": "4MiB"} for k in range(3)]
    (directory / "small.yaml").write_text(yaml.safe_dump({"cluster": {"brokerGroups": groups}}))
    return profile("three", "-f", str(directory / "small.yaml"), *arguments)


def test_a_rolling_restart_and_a_renewed_certificate_lose_no_acknowledged_message(tmp_path: Path) -> None:
    """Pods are replaced as a StatefulSet does it, the highest ordinal first, each behind its hook, while messages are sent; between two of
    them the certificate of all nodes changes behind `..data`."""
    found = three(tmp_path)
    volume = MountedSecret(tmp_path / "tls", certificate(tmp_path / "ca", found))
    renewed = certificate(tmp_path / "ca", found, "renewed.example.com")
    pods = Pods(found, tmp_path, volume)
    with pods.all_running():
        root = CommandLine(pods.endpoints, keys=pods.keys)
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        root.ok("topic", "create", "t")
        with Sender(pods) as sender:
            sender.more()
            for ordinal in (2, 1, 0):
                stopped = pods.stop(ordinal)
                assert stopped.returncode == 0 and stopped.stdout.endswith(f"{NAME}-{ordinal} can stop\n"), stopped.stderr
                sender.more()
                pods.start(ordinal)
                pods.wait_ready(ordinal)
                sender.more()
                if ordinal == 2:
                    volume.replace(renewed)
                    wait_for(lambda: presented_by_all(pods, renewed), 30, "the new certificate")
        consumed = root.consume_all("t", "readers", "--timeout", "60s")
        assert sender.acknowledged <= set(consumed)
        assert root.ok("status", "--json").json["health"] == "ok"


class NativeSender:
    """A native producer that sends one message after the other, and knows which were acknowledged."""

    def __init__(self, pods: Pods, endpoints: str) -> None:
        self._endpoints, self._credentials = endpoints, Credentials(*pods.keys)
        self.acknowledged: list[str] = []
        self._longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> NativeSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._endpoints, "t", credentials=self._credentials) as producer:
            last = time.monotonic()
            while not self._stop.is_set():
                body = f"n{len(self.acknowledged):06}"
                producer.send(body.encode()).result()
                self.acknowledged.append(body)
                self._longest_s, last = max(self._longest_s, time.monotonic() - last), time.monotonic()

    def longest_since(self) -> float:
        """The longest time in seconds between two acknowledgements since the last question."""
        found, self._longest_s = self._longest_s, 0.0
        return found


def interrupted(pods: Pods, command: list[str]) -> str:
    """Run a job whose pod is killed once the first change is done; returns the steps that it meant to take."""
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


def test_members_follow_the_replicas_from_three_to_five_and_back_under_load(tmp_path: Path) -> None:
    """The jobs of the chart, each killed once: nodes join and get replicas; replicas move away and nodes leave before their pods stop. Two
    replicas are refused and change nothing. Everything acknowledged is there, native messages exactly once, and the audit passes."""
    found = three(tmp_path, "--set", "replicas=5")
    fewer, too_few = three(tmp_path, "--set", "replicas=3"), three(tmp_path, "--set", "replicas=2")
    pods = Pods(found, tmp_path, MountedSecret(tmp_path / "tls", certificate(tmp_path / "ca", found)))
    first = ";".join(map(pods.endpoint, range(3)))
    root = CommandLine(first, keys=pods.keys)
    names = {f"{NAME}-{ordinal}" for ordinal in range(5)}
    remaining = {f"{NAME}-{ordinal}" for ordinal in range(3)}

    def placed() -> set[str]:
        rows = root.ok("broker-group", "list", "--json").json["groups"]
        assert all(len(row["replicas"]) == 3 and {member["role"] for member in row["members"]} == {"voter"} for row in rows), rows
        return {node for row in rows for node in row["replicas"]}

    def members() -> set[str]:
        return {row["node"] for row in root.ok("member", "list", "--json").json["members"] if row["up"] and row["controller"]}

    gaps = {}
    with pods.all_running(3):
        wait_for(lambda: root.run("status").status == 0, 30, "the first user")
        root.ok("topic", "create", "t", "--queues", "6")
        with NativeSender(pods, first) as native, Sender(pods) as sender:
            sender.more()
            gaps["before"] = native.longest_since(), sender.longest_since()
            pods.start(3)
            pods.start(4)
            assert "add mq-ledgermq-3" in interrupted(pods, found.job("members"))
            done = pods.job(found.job("members"))
            assert done.returncode == 0, done.stderr
            assert members() == placed() == names
            pods.wait_ready(3)
            pods.wait_ready(4)
            gaps["3 to 5"] = native.longest_since(), sender.longest_since()
            sender.more()
            refused = pods.job(too_few.job("leave"))
            assert refused.returncode == 4 and "has 3 replicas, and only 2 nodes would remain" in refused.stderr
            assert members() == placed() == names
            gaps["at 5"] = native.longest_since(), sender.longest_since()
            assert "remove mq-ledgermq-4" in interrupted(pods, fewer.job("leave"))
            done = pods.job(fewer.job("leave"))
            assert done.returncode == 0, done.stderr
            assert members() == placed() == remaining
            for ordinal in (4, 3):
                stopped = pods.stop(ordinal)
                assert stopped.returncode == 4 and f"there is no node {NAME}-{ordinal}" in stopped.stderr, "told by another node, at once"
            done = pods.job(fewer.job("members"))
            assert done.returncode == 0, done.stderr
            gaps["5 to 3"] = native.longest_since(), sender.longest_since()
            sender.more()
        for name, (by_native, by_unary) in gaps.items():
            print(f"longest time without an acknowledgement, {name}: native {by_native:.2f} s, one unary sender {by_unary:.2f} s")
        print("acknowledged:", len(native.acknowledged), len(sender.acknowledged))
        consumed = Counter(root.consume_all("t", "readers", "--timeout", "60s"))
        assert sender.acknowledged <= set(consumed)
        assert all(consumed[body] == 1 for body in native.acknowledged)
        audited = root.ok("audit", "--endpoints", first, "--engine", "local", timeout_s=300)
        assert "audit: PASS" in audited.out, audited.out
