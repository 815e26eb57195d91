"""Real clusters for slow tests: N `serve` processes on free loopback ports.

`running(tmp_path)` yields a ready cluster and ends every process afterwards, even if the test
failed. A node that the test did not kill must stop cleanly: exit status 0, and no abort file left
behind.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from examples.flights.cluster import free_base_port
from ledgermq.node.process import local
from ledgermq.node.process.local import LOG_FILE, LocalCluster
from ledgermq.node.runtime.config_cluster import NodeAddress
from ledgermq.proto import admin_pb2, admin_pb2_grpc
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.host_port import joined

T = TypeVar("T")

# Shorter waiting times than in production; the rules are unchanged.
DELIVERY: dict[str, Any] = {
    "min_invisible_ms": 100,
    "liveness_ms": 3_000,
    "member_liveness_ms": 3_000,
}
FAST: dict[str, Any] = {"delivery": DELIVERY, "limits": {"drain_ms": 500}}
SMALL_LOG_FILE_BYTES = 4 << 20
NEIGHBOURS = 4
"""Ports above the first one of a kind that `up` may take."""


def base_port() -> int:
    """A free base port for `up --base-port`. Its neighbours, and the ports 1,000, 2,000 and 3,000
    above, belong to this worker too."""
    own = set(local.port_range())
    return free_base_port(
        [port for port in own if port + NEIGHBOURS in own and port + 3000 + NEIGHBOURS in own]
    )


def prepare(
    directory: Path,
    *,
    nodes: int = 3,
    groups: Sequence[str | Mapping[str, Any]] | None = None,
    workers: int = 1,
    addresses: Sequence[NodeAddress] | None = None,
    log_file_bytes: int = SMALL_LOG_FILE_BYTES,
    extra: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    kind: type[LocalCluster] = LocalCluster,
    tls: bool = False,
) -> LocalCluster:
    """A cluster directory with free ports, in which no process runs yet."""
    sections = {**FAST, **(extra or {})}
    return kind.prepare(
        directory / "cluster",
        nodes=nodes,
        groups=groups,
        workers=workers,
        addresses=addresses,
        log_file_bytes=log_file_bytes,
        extra=sections,
        settings=settings,
        tls=tls,
    )


@contextmanager
def running(directory: Path, **options: Any) -> Iterator[LocalCluster]:
    """A ready cluster. Options as for `prepare`."""
    cluster = prepare(directory, **options)
    cluster.start_all()
    try:
        cluster.wait_ready()
        yield cluster
    except BaseException:
        end_all(cluster)
        for node in cluster.nodes:
            print(f"--- {node}: last log lines ---\n" + "\n".join(log_lines(cluster, node)[-20:]))
        raise
    codes = cluster.stop()
    assert set(codes.values()) <= {0}, f"exit statuses {codes}"
    for node in codes:
        assert not list(cluster.data(node).glob("**/abort")), f"{node} left an abort file"


def end_all(cluster: LocalCluster) -> None:
    """Send SIGKILL to every process that still runs."""
    for node, child in cluster.children.items():
        if child.exit_code is None:
            cluster.kill(node)


def log_lines(cluster: LocalCluster, node: str) -> list[str]:
    """The lines of the node's log."""
    return cluster.log_file(node).read_text(errors="replace").splitlines()


def http(cluster: LocalCluster, node: str, path: str) -> tuple[int, str]:
    """Status and text of a page of the node's HTTP port."""
    address = cluster.nodes[node]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _KeepErrors())
    with opener.open(
        f"http://{joined(address.host, address.http_port)}{path}", timeout=10
    ) as response:
        return response.status, response.read().decode()


class _KeepErrors(urllib.request.HTTPDefaultErrorHandler):
    def http_error_default(self, req: Any, fp: Any, code: int, msg: str, hdrs: Any) -> Any:
        return fp


def target(cluster: LocalCluster, node: str) -> str:
    """The node's client endpoint."""
    address = cluster.nodes[node]
    return joined(address.host, address.client_port)


def admin(cluster: LocalCluster, node: str, method: str, request: Any) -> Any:
    """One Admin call."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target(cluster, node), options=options) as channel:
        return getattr(admin_pb2_grpc.AdminStub(channel), method)(request, timeout=10)


def status(cluster: LocalCluster, node: str) -> admin_pb2.ClusterStatusResponse:
    """The node's status of the cluster."""
    answer: admin_pb2.ClusterStatusResponse = admin(
        cluster, node, "ClusterStatus", admin_pb2.ClusterStatusRequest()
    )
    return answer


def create_topic(cluster: LocalCluster, name: str, kind: str = "normal", queues: int = 4) -> None:
    """Create a topic through the first running node; the topic is usable when this returns."""
    node = next(node for node, child in cluster.children.items() if child.exit_code is None)
    request = admin_pb2.CreateTopicRequest(
        topic=admin_pb2.Name(name=name), kind=kind, queues=queues, permission="rw"
    )
    answer = admin(cluster, node, "CreateTopic", request)
    assert answer.status.code == 20000, answer.status.message


def create_group(cluster: LocalCluster, name: str, **settings: Any) -> None:
    """Create a consumer group."""
    request = admin_pb2.CreateGroupRequest(
        group=admin_pb2.Name(name=name), max_attempts=17, **settings
    )
    answer = admin(cluster, next(iter(cluster.nodes)), "CreateGroup", request)
    assert answer.status.code == 20000, answer.status.message


def send(cluster: LocalCluster, node: str, topic: str, name: str, timeout_s: float = 20) -> int:
    """Send one message through a node. Returns the status code, or -1 if no answer came in time."""
    message = pb.Message(topic=pb.Resource(name=topic), body=name.encode())
    message.system_properties.message_id = name
    message.system_properties.message_type = pb.NORMAL
    with grpc.insecure_channel(
        target(cluster, node), options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=pb.SendMessageRequest.SerializeToString,
            response_deserializer=pb.SendMessageResponse.FromString,
        )
        try:
            response = call(
                pb.SendMessageRequest(messages=[message]),
                metadata=(("x-mq-client-id", "test"),),
                timeout=timeout_s,
            )
        except grpc.RpcError:
            return -1
    return int(response.status.code)


def bodies(cluster: LocalCluster, node: str, topic: str) -> set[str]:
    """What a node's replica has committed of a topic."""
    answer = admin(
        cluster,
        node,
        "Peek",
        admin_pb2.PeekRequest(topic=admin_pb2.Name(name=topic), earliest=True, max=1000),
    )
    assert answer.status.code == 20000, answer.status.message
    return {message.body.decode() for message in answer.messages}


def wipe(cluster: LocalCluster, node: str) -> None:
    """Remove all files of a stopped node except its log lines, which tests still read."""
    for path in cluster.data(node).iterdir():
        if path.name != LOG_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def leader(cluster: LocalCluster, group: str = "g1", timeout_s: float = 30) -> str:
    """Wait until a node leads the broker group, asking any running node; returns that node."""

    def found() -> str | None:
        for node, child in cluster.children.items():
            if child.exit_code is not None:
                continue
            try:
                groups = status(cluster, node).groups
            except grpc.RpcError as error:
                # A node that was just started does not listen yet.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                continue
            for info in groups:
                if info.group == group and info.HasField("leader"):
                    return str(info.leader)
        return None

    return wait_for(found, timeout_s, f"a leader of {group}")


def wait_for(condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Poll a condition until it holds; there is no other way to wait for processes."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)


def log_file_bases(cluster: LocalCluster, node: str, group: str = "g1") -> list[int]:
    """The positions at which the log files of a node's replica begin, in order. The last file may
    be a spare without an entry."""
    folder = cluster.data(node) / group / f"dledger-{node}" / "data"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def full_files_sealed(cluster: LocalCluster, group: str = "g1") -> bool:
    """Whether the seal of every full log file is recorded. The leader appends a seal some time
    after the file is full: a node that stops before the others may lack it, and an audit of the
    directories is then incomplete."""
    events = [event for node in cluster.nodes for event in log_events(cluster, node)]
    sealed = {
        event["base"]
        for event in events
        if event.get("event") == "log file sealed" and event["group"] == group
    }
    return all(sealed.issuperset(full_files(cluster, node, group)) for node in cluster.nodes)


def full_files(cluster: LocalCluster, node: str, group: str = "g1") -> list[int]:
    """The positions at which the log files of a node's replica begin that are followed by one with
    an entry."""
    folder = cluster.data(node) / group / f"dledger-{node}" / "data"
    written = []
    for base in log_file_bases(cluster, node, group):
        with (folder / f"{base:020d}").open("rb") as file:
            if any(file.read(8)):
                written.append(base)
    return written[:-1]


def log_events(cluster: LocalCluster, node: str) -> list[dict[str, Any]]:
    """The JSON lines of the node's log. A line that is not JSON must be the single error line."""
    events = []
    for line in log_lines(cluster, node):
        if not line.startswith("error: "):
            events.append(json.loads(line))
    return events
