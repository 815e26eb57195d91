"""A cluster whose disk fills up: writes are refused clearly, reads and elections continue, and
writes resume when space returns."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb
from tests import cluster as real

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB; needs the right to mount one."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(where)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def send(cluster: LocalCluster, node: str, body: bytes, name: str) -> tuple[int, str]:
    """Status code and text; 0 if no answer came in time, as when the followers had no room for what
    the leader had appended."""
    message = pb.Message(topic=pb.Resource(name="t"), body=body)
    message.system_properties.message_id = name
    message.system_properties.message_type = pb.NORMAL
    with grpc.insecure_channel(
        real.target(cluster, node), options=[("grpc.enable_http_proxy", 0)]
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
                timeout=20,
            )
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
            return 0, ""
    return int(response.status.code), str(response.status.message)


def stored(cluster: LocalCluster, node: str) -> set[str]:
    answer = real.admin(
        cluster,
        node,
        "Peek",
        admin_pb2.PeekRequest(topic=admin_pb2.Name(name="t"), earliest=True, max=1000),
    )
    assert answer.status.code == 20000, answer.status.message
    return {message.message_id for message in answer.messages}


def fill(directory: Path) -> Path:
    """Take all space that is left."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size >= 512:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return ballast


def test_full_disk_refuses_writes_keeps_reads_and_elections_and_recovers(small_disk: Path) -> None:
    """All three nodes are on one full file system; no acknowledged message is lost, and no node
    needs a restart."""
    with real.running(small_disk, log_file_bytes=2 << 20) as cluster:
        real.create_topic(cluster, "t", queues=1)
        leader = real.leader(cluster)
        assert send(cluster, leader, b"first", "first")[0] == 20000
        for node in cluster.nodes:
            real.wait_for(
                lambda node=node: stored(cluster, node), 30, "the first message everywhere"
            )  # type: ignore[misc]
        ballast = fill(small_disk)
        acknowledged = {"first"}
        said = ""
        for k in range(400):
            code, said = send(cluster, leader, os.urandom(30_000), f"m{k}")
            if code == 20000:
                acknowledged.add(f"m{k}")
            elif code:
                break
        assert f"the disk of node {leader} is full" in said and len(acknowledged) > 1
        for node in cluster.nodes:
            assert cluster.children[node].exit_code is None, cluster.last_error(node)
            assert acknowledged <= stored(cluster, node), "reads go on"
        cluster.kill(leader)
        survivors = [node for node in cluster.nodes if node != leader]

        def another() -> str | None:
            now = real.leader(cluster)
            return now if now != leader else None

        elected = real.wait_for(another, 30, "a new leader on a full disk")
        assert elected in survivors
        follower = next(node for node in survivors if node != elected)
        assert cluster.terminate(follower) == 0, "a full disk does not spoil a good stop"
        assert not (cluster.data(follower) / "g1" / "abort").exists()
        ballast.unlink()
        cluster.start(follower)

        def resumed() -> bool:
            return send(cluster, elected, b"again", "again")[0] == 20000

        real.wait_for(resumed, 30, "writing to resume")
        cluster.start(leader)
        cluster.wait_ready()
        for node in cluster.nodes:
            real.wait_for(
                lambda node=node: acknowledged | {"again"} <= stored(cluster, node),
                30,
                "everything",
            )  # type: ignore[misc]
