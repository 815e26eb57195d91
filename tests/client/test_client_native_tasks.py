"""Ranges and numbered writes of tasks against three real nodes: names that are taken over, leaders
that die, ranges that are read once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from ledgermq.client.errors import Refused
from ledgermq.client.native.consumers.positions import Place, Start
from ledgermq.client.native.once.numbered import Chunk
from ledgermq.client.native.once.tasks import TaskConnection
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto.status import Code
from tests.cluster import running
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow
QUEUES = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("plain")) as cluster:
        yield cluster


def chunks(count: int, size: int = 100) -> Iterator[Chunk]:
    """Messages 0 … count−1, whatever their cutting."""
    for begin in range(0, count, size):
        numbers = range(begin, min(begin + size, count))
        yield Chunk(
            [b"body %d" % i for i in numbers],
            [i % QUEUES for i in numbers],
            [1_700_000_000_000] * len(numbers),
        )


def stored(connection: TaskConnection, topic: str) -> list[bytes]:
    """Everything in a topic, each queue in its order, and each offset once."""
    located = connection.locate(topic)
    begins, ends = connection.find_offsets(located, topic, "", Start())
    found = []
    for queue, end in ends.items():
        at = begins[queue]
        for part in connection.read_range(topic, "", queue, at, end):
            assert part.offsets.tolist() == list(range(at, at + len(part)))
            at += len(part.columns)
            found += part.columns.bodies()
        assert at == end
    return found


def numbers(bodies: list[bytes]) -> list[int]:
    return sorted(int(body.split()[1]) for body in bodies)


def test_a_name_stores_each_message_once(cluster: LocalCluster) -> None:
    """Another process under the same name continues after the stored messages, with any batch
    boundaries; the first process is then refused."""
    CommandLine(cluster.endpoints).ok("topic", "create", "names", "--queues", str(QUEUES))
    with TaskConnection(cluster.endpoints) as connection:
        (group,) = connection.locate("names").broker_groups
        first = connection.writer(group.name, "names", "", "job 0")
        assert first.write(islice(chunks(1000), 7)) == 700
        with connection.writer(group.name, "names", "", "job 0") as second:
            assert second.next_sequence == 700
            assert second.write(chunks(1000, 33)) == 1000 and second.duplicates == 700
        with pytest.raises(Refused):
            first.write(chunks(1000))
        first.close()
        with (
            connection.writer(group.name, "names", "", "job 0") as third,
            pytest.raises(Refused, match="not the same messages"),
        ):
            third.write(chunks(900))
        assert numbers(stored(connection, "names")) == list(range(1000))


def test_other_messages_than_the_stored_ones_are_refused(cluster: LocalCluster) -> None:
    """Whatever differs among the stored ones, and however they are cut. Nothing is stored of a
    write that is refused."""
    CommandLine(cluster.endpoints).ok("topic", "create", "others", "--queues", str(QUEUES))
    with TaskConnection(cluster.endpoints) as connection:
        (group,) = connection.locate("others").broker_groups
        with connection.writer(group.name, "others", "", "others") as producer:
            producer.write(chunks(300))
        whole = next(chunks(400, 400))
        others = {
            "a body": replace(whole, bodies=[*whole.bodies[:299], b"other", *whole.bodies[300:]]),
            "the order": replace(
                whole, bodies=[whole.bodies[1], whole.bodies[0], *whole.bodies[2:]]
            ),
            "a tag": replace(whole, tags=["t", *[None] * 399]),
            "a property": replace(whole, properties=[*[{}] * 200, {"p": "1"}, *[{}] * 199]),
        }
        for name, chunk in others.items():
            producer = connection.writer(group.name, "others", "", "others")
            with producer, pytest.raises(Refused, match="not the first 300") as refused:
                producer.write([chunk.piece(0, 150), chunk.behind(150)])
            assert refused.value.code == Code.PRECONDITION_FAILED, name
        assert numbers(stored(connection, "others")) == list(range(300))
        behind = replace(
            whole,
            bodies=[*whole.bodies[:300], b"body 1000", *whole.bodies[301:]],
            born_ms=[5] * 400,
        )
        with connection.writer(group.name, "others", "", "others") as producer:
            assert (producer.write([behind]), producer.duplicates) == (400, 300)
        assert numbers(stored(connection, "others")) == [*range(300), *range(301, 400), 1000]


def test_ranges_are_exact(cluster: LocalCluster) -> None:
    """From an offset to an offset of one queue, and nothing beside it."""
    CommandLine(cluster.endpoints).ok("topic", "create", "ranges", "--queues", str(QUEUES))
    with TaskConnection(cluster.endpoints) as connection:
        (group,) = connection.locate("ranges").broker_groups
        with connection.writer(group.name, "ranges", "", "job") as producer:
            producer.write(chunks(2000))
        parts = list(connection.read_range("ranges", "", Place(group.name, 2), 17, 123))
        assert [body for part in parts for body in part.columns.bodies()] == [
            b"body %d" % (4 * i + 2) for i in range(17, 123)
        ]
        assert not list(connection.read_range("ranges", "", Place(group.name, 2), 5, 5))


def test_a_leader_that_dies(tmp_path: Path) -> None:
    """A writer whose leader is killed amid its frames stores each message once."""
    with running(tmp_path) as cluster:
        cli = CommandLine(cluster.endpoints)
        cli.ok("topic", "create", "moved", "--queues", str(QUEUES))
        with TaskConnection(cluster.endpoints) as connection:
            (group,) = connection.locate("moved").broker_groups
            now = threading.Event()
            producer = connection.writer(group.name, "moved", "", "job")
            leader = next(
                one["leader"]
                for one in cli.ok("status", "--json").json["groups"]
                if one["group"] == group.name
            )

            def signalling() -> Iterator[Chunk]:
                for number, chunk in enumerate(chunks(20_000, 50)):
                    if number == 60:
                        now.set()
                    yield chunk

            killer = threading.Thread(target=lambda: (now.wait(), cluster.kill(leader)))
            killer.start()
            with producer:
                assert producer.write(signalling()) == 20_000
            killer.join()
            assert numbers(stored(connection, "moved")) == list(range(20_000))
