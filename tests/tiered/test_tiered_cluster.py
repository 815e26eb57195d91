"""Tiered storage in real clusters with a real server: ten times the local limit, killed leaders, a
store that is away, a lost cluster."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgermq.client import Consumer
from ledgermq.client.errors import ClusterError
from ledgermq.node.process.local import LocalCluster, free_ports
from ledgermq.proto import messaging_pb2 as pb
from tests.cluster import (
    create_group,
    create_topic,
    http,
    leader,
    log_file_bases,
    running,
    status,
    target,
    wait_for,
)
from tests.contract.official import ClientError, Official, official, receive, simple
from tests.e2e.command_line import CommandLine
from tests.tiered.s3_servers import BUCKET, Server, program, serving, tiered_settings

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

FILE_BYTES = 64 << 10
LOCAL_BYTES = 4 * FILE_BYTES
BODY = 2000
Row = tuple[int, int, str]
"""Queue, offset and body of a message."""
RETENTION: dict[str, Any] = {
    "hours": 0,
    "max_bytes": LOCAL_BYTES,
    "check_ms": 200,
    "reserve_bytes": "1MiB",
    "follower_hours": 0.01,
}


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("versitygw"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The server's home and its port."""
    home = tmp_path / "store"
    home.mkdir()
    yield home, free_ports(1)[0].client_port


def bodies(first: int, count: int) -> list[str]:
    return [f"{number:06d}".ljust(BODY, ".") for number in range(first, first + count)]


def objects(server: Server) -> list[str]:
    return sorted(path.name for path in server.directory.rglob("*.log"))


def waiting(cluster: LocalCluster) -> dict[str, tuple[int, str]]:
    """Node → its number of files that are not verified in the store, and why."""
    [group] = status(cluster, next(iter(cluster.nodes))).groups
    return {
        replica.node: (replica.tiered.waiting_files, replica.tiered.waits_for)
        for replica in group.replicas
    }


def nothing_waits(cluster: LocalCluster) -> bool:
    """Whether every node has verified every full file. The status alone may be older than the last
    file."""
    found = waiting(cluster)
    if len(found) != len(cluster.nodes) or set(found.values()) != {(0, "")}:
        return False
    [group] = status(cluster, next(iter(cluster.nodes))).groups
    return all(
        replica.tiered.verified_pos >= active_base(cluster, replica.node)
        for replica in group.replicas
    )


def active_base(cluster: LocalCluster, node: str) -> int:
    """The position of the last log file that has an entry."""
    folder = cluster.data(node) / "g1" / f"dledger-{node}" / "data"

    def has_entry(base: int) -> bool:
        with (folder / f"{base:020d}").open("rb") as file:
            return any(file.read(8))

    return next(base for base in reversed(log_file_bases(cluster, node)) if has_entry(base))


def small_on_disk(cluster: LocalCluster) -> bool:
    """Whether no node has more than the local limit, the active file and a spare one."""
    return all(
        len(log_file_bases(cluster, node)) <= LOCAL_BYTES // FILE_BYTES + 2
        for node in cluster.nodes
    )


def metric(cluster: LocalCluster, node: str, name: str) -> float:
    _, page = http(cluster, node, "/metrics")
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name}{{")
    )


def test_ten_times_the_local_limit_and_a_lost_cluster(
    tmp_path: Path, place: tuple[Path, int], versitygw: Path
) -> None:
    """Leaders are killed while files move to the store; local disks keep to their limit; then all
    nodes are lost, and the store brings the cluster back up to the entry that the command names."""
    home, port = place
    extra = {"retention": RETENTION, "tiered": {**tiered_settings(home, port), "retry_ms": "500ms"}}
    with (
        serving(versitygw, home, port) as server,
        running(tmp_path, log_file_bytes=FILE_BYTES, extra=extra) as cluster,
    ):
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        sent = 0
        for killed in (True, True, False):
            cli.send_lines("t", bodies(sent, 400))
            sent += 400
            if killed:
                node = leader(cluster)
                cluster.kill(node)
                cli.send_lines("t", bodies(sent, 100))
                sent += 100
                cluster.start(node)
                cluster.wait_ready()
        wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
        wait_for(lambda: small_on_disk(cluster), 120, "the local limit")
        stored = objects(server)
        assert len(stored) * FILE_BYTES >= 10 * LOCAL_BYTES // 2 and len(set(stored)) == len(stored)
        assert "every sealed log file is verified in the object store" in cli.ok("status").out
        queued = [
            message["body"]
            for message in cli.ok("peek", "--topic", "t", "--max", str(2 * sent), "--json").lines
        ]
        assert sorted(queued) == bodies(0, sent)
        assert set(cluster.stop().values()) <= {0}

        told = {}
        for node in cluster.nodes:
            shutil.rmtree(cluster.data(node))
            arguments = [
                "--endpoint",
                server.endpoint,
                "--credentials",
                server.credentials,
                "--data",
                cluster.data(node),
                "--node",
                node,
            ]
            told[node] = cli.ok("restore", "--from", f"s3://{BUCKET}/cluster", *arguments).out
        assert "lost: everything that g1 had stored behind entry" in told["n1"]
        cluster.settings = ["retention.max_bytes=0"]
        cluster.start_all()
        cluster.wait_ready()
        found = cli.consume_all("t", "afterwards")
        first = queued.index(found[0])
        assert found == queued[first : first + len(found)], (
            "what local retention keeps, up to the named entry, each once and in order"
        )
        assert sent - first - len(found) <= FILE_BYTES // BODY, (
            "at most the file that was not complete is lost"
        )
        cli.send_lines("t", bodies(sent, 200))
        wait_for(lambda: nothing_waits(cluster), 120, "the store goes on with the log")
        assert len(objects(server)) > len(stored)
        assert set(cluster.stop().values()) <= {0}
        audited = cli.ok(
            "audit", *(cluster.data(node) for node in cluster.nodes), "--engine", "local"
        )
        assert audited.out.splitlines()[-1] == "audit: PASS"
        cluster.start_all()
        cluster.wait_ready()


def test_a_store_that_is_away_costs_no_message_and_says_so(
    tmp_path: Path, place: tuple[Path, int], versitygw: Path
) -> None:
    """Everything stays on the disks and is announced; when the store comes, everything goes there,
    and the disks are small again."""
    home, port = place
    extra = {"retention": RETENTION, "tiered": {**tiered_settings(home, port), "retry_ms": "500ms"}}
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=extra) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        assert cli.send_lines("t", bodies(0, 500))["acknowledged"] == 500
        wait_for(
            lambda: min(files for files, _ in waiting(cluster).values()) >= 10,
            60,
            "files that wait",
        )
        for node in cluster.nodes:
            wait_for(
                lambda node=node: metric(cluster, node, "ledgermq_tiered_waiting_seconds") > 2,
                60,
                "the metric",
            )
            assert 0 in log_file_bases(cluster, node)
        assert "not verified in the object store yet" in cli.ok("status").out
        wait_for(
            lambda: "object store" in json.dumps(cli.ok("why-kept", "g1/0", "--json").json),
            60,
            "the pin in why-kept",
        )
        with serving(versitygw, home, port):
            wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
            wait_for(lambda: small_on_disk(cluster), 120, "the local limit")


def test_readers_and_queries_see_messages_below_the_local_begin(
    tmp_path: Path, place: tuple[Path, int], versitygw: Path
) -> None:
    """Ten times the local limit: native readers as Arrow columns and with a group, a sink, pulls as
    official clients make them, peek and queries see every message, also after a change of leaders;
    while the store is away they are refused, and nobody gets fewer messages."""
    home, port = place
    extra = {"retention": RETENTION, "tiered": {**tiered_settings(home, port), "retry_ms": "500ms"}}
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=extra) as cluster:
        cli = CommandLine.of(cluster)
        expected = bodies(0, 1300)
        with serving(versitygw, home, port):
            create_topic(cluster, "t", queues=2)
            cli.send_lines("t", expected)
            wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
            wait_for(lambda: small_on_disk(cluster), 120, "the local limit")
            described = cli.ok("topic", "describe", "t", "--json").json["queue_list"]
            assert all(queue["stored_offset"] == 0 < queue["min_offset"] for queue in described), (
                described
            )
            assert read_all(cluster) == expected and pull_all(cluster) == expected
            shown = cli.ok(
                "peek", "--topic", "t", "--queue", "0", "--from", "5", "--max", "700", "--json"
            ).lines
            assert [message["offset"] for message in shown] == list(
                range(5, 5 + len(shown))
            ) and len(shown) > 600
            [found] = cli.ok(
                "query", "--topic", "t", "--id", shown[0]["message_id"], "--json"
            ).lines
            assert found["offset"] == 5
            sunk = cli.ok(
                "sink",
                "parquet",
                "--topic",
                "t",
                "--to",
                tmp_path / "lake",
                "--until-empty",
                "3s",
                "--json",
            )
            files = sorted((tmp_path / "lake").rglob("*.parquet"))
            rows = [
                body for file in files for body in pq.read_table(file).column("body").to_pylist()
            ]
            assert sorted(body.decode() for body in rows) == expected, sunk.out
            with Consumer(
                cluster.endpoints, "t", group="readers", start="earliest", until_end=True
            ) as consumer:
                first = consumer.next_batch()
                assert first is not None
                consumer.commit()
                begun = len(first)
            with Consumer(cluster.endpoints, "t", group="readers", until_end=True) as consumer:
                assert sum(len(batch) for batch in consumer.batches()) == len(expected) - begun, (
                    "a committed offset stays where it is"
                )
            node = leader(cluster)
            cluster.kill(node)
            wait_for(lambda: leader(cluster) not in (None, node), 60, "another leader")
            assert read_all(cluster) == expected
            cluster.start(node)
            cluster.wait_ready()
        assert set(cluster.stop().values()) <= {0}
        cluster.start_all()
        cluster.wait_ready()
        with pytest.raises(ClusterError, match="object store"):
            read_all(cluster, timeout_s=5)
        with pytest.raises(AssertionError, match="object store"):
            pull_all(cluster)
        assert (
            len(cli.ok("peek", "--topic", "t", "--from", "latest", "--max", "3", "--json").lines)
            == 3
        )
        with serving(versitygw, home, port):
            assert read_all(cluster, timeout_s=60) == expected


def test_leasing_consumers_get_messages_below_the_local_begin(
    tmp_path: Path, place: tuple[Path, int], versitygw: Path
) -> None:
    """Official clients: a group that was slow while local retention removed what it had not read,
    and one that is new, get every message; the disks keep to their limit meanwhile. While the store
    is away a receive says so, and behind that nothing is missing."""
    home, port = place
    extra = {"retention": RETENTION, "tiered": {**tiered_settings(home, port), "retry_ms": "500ms"}}
    expected = bodies(0, 600)
    with (
        running(tmp_path, log_file_bytes=FILE_BYTES, extra=extra) as cluster,
        official(cluster, tmp_path / "client") as client,
    ):
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=2)
        for group in ("slow", "new"):
            create_group(cluster, group)
            simple(client, "t", name=group, group=group, await_s=3)
        with serving(versitygw, home, port):
            cli.send_lines("t", expected[:100])
            slow = consume(client, "slow", 40)
            cli.send_lines("t", expected[100:])
            wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
            wait_for(lambda: small_on_disk(cluster), 120, "the local limit")
            assert all(
                queue["min_offset"] > 100
                for queue in cli.ok("topic", "describe", "t", "--json").json["queue_list"]
            )
            assert sorted(slow + consume(client, "slow", len(expected) - len(slow))) == expected
            new = consume(client, "new", 200)
            wait_for(lambda: small_on_disk(cluster), 120, "the local limit")
        assert set(cluster.stop().values()) <= {0}
        cluster.start_all()
        cluster.wait_ready()
        failed = wait_for(
            lambda: failure_of(client, "new"), 120, "a receive that says why nothing comes"
        )
        assert "object store" in failed, failed
        with serving(versitygw, home, port):
            assert sorted(new + consume(client, "new", len(expected) - len(new))) == expected
            assert consume(client, "slow", 1, within_s=5) == []
            assert read_all(cluster, timeout_s=60) == expected


def consume(client: Official, group: str, count: int, within_s: float = 240) -> list[str]:
    """Receive and acknowledge messages of topic t, each once, until there are `count`, or the time
    is over. Returns their bodies."""
    found: list[str] = []
    until = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < until:
        try:
            messages = receive(
                client, name=group, batch=min(32, count - len(found)), invisible_s=600
            )
        except ClientError:
            # The store is being read again, or a leader is elected.
            continue
        for message in messages:
            client.do("ack", name=group, id=message["id"])
            found.append(bytes.fromhex(message["body"]).decode())
    assert len(set(found)) == len(found), "a message came twice"
    return found


def failure_of(client: Official, group: str) -> str:
    """What a receive that fails says; empty if it did not fail."""
    try:
        receive(client, name=group, batch=1, invisible_s=1)
    except ClientError as error:
        return str(error) if "object store" in str(error) else ""
    return ""


def test_store_is_bounded_by_total_retention(
    tmp_path: Path, place: tuple[Path, int], versitygw: Path
) -> None:
    """The store stays small while messages go on and leaders are killed; readers begin where it
    begins; all nodes are lost, and come back from it with what it holds."""
    home, port = place
    total = {"max_bytes": 10 * FILE_BYTES}
    settings = {**tiered_settings(home, port), "retry_ms": "500ms", "retention": total}
    with (
        serving(versitygw, home, port) as server,
        running(
            tmp_path, log_file_bytes=FILE_BYTES, extra={"retention": RETENTION, "tiered": settings}
        ) as cluster,
    ):
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=2)
        sent = 0
        for _ in range(2):
            cli.send_lines("t", bodies(sent, 500))
            sent += 500
            wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
            node = leader(cluster)
            cluster.kill(node)
            cluster.start(node)
            cluster.wait_ready()

        def small() -> bool:
            """The store is within its limit, but for what is on the disks and what waits for a
            snapshot; messages go on meanwhile."""
            nonlocal sent
            cli.send_lines("t", bodies(sent, 30))
            sent += 30
            return len(objects(server)) <= 10 + 2 * LOCAL_BYTES // FILE_BYTES

        wait_for(small, 180, "the limit of the store")
        wait_for(lambda: nothing_waits(cluster), 120, "every sealed file in the store")
        found = rows(cluster, skipping=True)
        assert sum(part[-1][1] + 1 for part in by_queue(found)) == sent, (
            "all from some message of each queue on"
        )
        assert set(cluster.stop().values()) <= {0}
        for node in cluster.nodes:
            shutil.rmtree(cluster.data(node))
            arguments = [
                "--endpoint",
                server.endpoint,
                "--credentials",
                server.credentials,
                "--data",
                cluster.data(node),
                "--node",
                node,
            ]
            cli.ok("restore", "--from", f"s3://{BUCKET}/cluster", *arguments)
        cluster.start_all()
        cluster.wait_ready()
        again = rows(cluster, skipping=True)
        assert len(by_queue(again)) == 2 and set(again) <= set(found) and len(again) > 100


def rows(cluster: LocalCluster, timeout_s: float = 30, skipping: bool = False) -> list[Row]:
    """Every message of the topic, by a reader without a group, as Arrow columns; sorted.
    `skipping`: some may go while it reads."""
    with Consumer(
        cluster.endpoints, "t", start="earliest", until_end=True, timeout_s=timeout_s
    ) as consumer:
        table = pa.Table.from_batches(consumer.arrow())
        assert skipping or consumer.statistics().skipped == 0
    found = zip(
        *(table.column(name).to_pylist() for name in ("queue", "offset", "body")), strict=True
    )
    return sorted((queue, offset, body.decode()) for queue, offset, body in found)


def by_queue(found: list[Row]) -> list[list[Row]]:
    """The rows of each queue, without a gap."""
    parts = [[*part] for _, part in groupby(found, lambda row: row[0])]
    for part in parts:
        assert [offset for _, offset, _ in part] == list(range(part[0][1], part[-1][1] + 1))
    return parts


def read_all(cluster: LocalCluster, timeout_s: float = 30) -> list[str]:
    """The bodies of all messages of the topic; sorted."""
    return sorted(body for _, _, body in rows(cluster, timeout_s))


def pull_all(cluster: LocalCluster) -> list[str]:
    """Every message of the topic, by PullMessage from where QueryOffset says that the queues begin;
    sorted."""
    found: list[str] = []
    service, who = "/apache.rocketmq.v2.MessagingService/", [("x-mq-client-id", "tester")]
    with grpc.insecure_channel(
        target(cluster, leader(cluster)), options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        query = channel.unary_unary(
            f"{service}QueryOffset", response_deserializer=pb.QueryOffsetResponse.FromString
        )
        pull = channel.unary_stream(
            f"{service}PullMessage", response_deserializer=pb.PullMessageResponse.FromString
        )
        for number in range(2):
            queue = pb.MessageQueue(
                topic=pb.Resource(name="t"), id=number, broker=pb.Broker(name="g1")
            )
            asked = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.BEGINNING)
            answer = query(asked.SerializeToString(), metadata=who, timeout=30)
            assert answer.status.code == pb.OK, answer.status.message
            offset, before = answer.offset, -1
            while offset != before:
                before = offset
                request = pb.PullMessageRequest(
                    group=pb.Resource(name="pullers"),
                    message_queue=queue,
                    offset=offset,
                    batch_size=200,
                )
                for response in pull(request.SerializeToString(), metadata=who, timeout=30):
                    match response.WhichOneof("content"):
                        case "message":
                            found.append(response.message.body.decode())
                        case "next_offset":
                            offset = response.next_offset
                        case _:
                            assert response.status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), (
                                response.status.message
                            )
    return sorted(found)
