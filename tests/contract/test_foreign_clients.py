"""The unmodified official clients for Node and Java (and Go, which takes a minute to build, in
`make soak`) against three real nodes.

The statements of the contract's checklist that are marked (N), (J) and (G), and each message type
once in each client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

import pytest

from ledgermq.node.broker.queries.why_delivery import WIRE_MAX
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from tests import cluster as real
from tests.contract.foreign import Foreign, build

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(600)]
LANGUAGES = ["node", "java", pytest.param("go", marks=pytest.mark.soak)]
PERIODS = {
    "delivery": {
        "min_invisible_ms": 100,
        "liveness_ms": 3000,
        "transaction_check_ms": 500,
        "transaction_interval_ms": 500,
    }
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with real.running(
        tmp_path_factory.mktemp("foreign"), log_file_bytes=16 << 20, extra=PERIODS
    ) as found:
        yield found


@pytest.fixture(scope="module")
def endpoints(cluster: LocalCluster) -> str:
    """One address: the Node client takes no more. The others are reached through it."""
    return real.target(cluster, "n2")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Foreign]:
    """The client of a language, built when it is first asked for."""
    return lru_cache(lambda language: build(language, tmp_path_factory.mktemp(language)))


@pytest.fixture(params=LANGUAGES)
def client(request: pytest.FixtureRequest, built: Callable[[str], Foreign]) -> Foreign:
    return built(request.param)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One node whose port accepts TLS, with a self-signed certificate, and plaintext."""
    with real.running(tmp_path_factory.mktemp("both"), nodes=1, extra=real.FAST, tls=True) as found:
        yield found


def fresh(cluster: LocalCluster, kind: str = "normal") -> str:
    name = f"F{next(_numbers)}"
    real.create_topic(cluster, name, kind)
    return name


def test_statement_004_an_unknown_topic_is_named(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """Sending to a topic that does not exist ends with code 40402, in Java and Node as a
    NotFoundException."""
    facts = client.run("unknown", endpoints, fresh(cluster))
    assert facts["code"] == "40402"
    assert facts.get("error", "NotFoundException") == "NotFoundException"


def test_statement_026_a_message_arrives_unchanged(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """All byte values, tag, keys and properties come back as they were sent."""
    facts = client.run("roundtrip", endpoints, fresh(cluster), "roundtrip")
    assert facts.pop("sent") == facts.pop("id")
    assert facts == {
        "same": "true",
        "tag": "tagA",
        "keys": "k1,k2",
        "properties": "x:1,y:ü",
        "attempt": "1",
    }


def test_statement_052_a_filter_that_is_wrong_is_named(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """The consumer starts; what it receives is an error with the place and the text of the
    filter."""
    facts = client.run("filter", endpoints, fresh(cluster), "filter")
    assert (
        facts["built"] == "true" and "line 1, column 13: LIKE is not supported" in facts["error"]
    ), facts
    assert "a > 1 AND b LIKE 'x%'" in facts["error"]


@pytest.mark.parametrize("less", [0, 65_536])
def test_statement_029_the_largest_body_in_node(
    less: int, cluster: LocalCluster, endpoints: str, built: Callable[[str], Foreign]
) -> None:
    """A message of 4 MiB less 64 KiB arrives. One of 4 MiB does not: the error names it, the others
    arrive, and `why-not-delivered` reports it."""
    topic, size = fresh(cluster), WIRE_MAX - less
    facts = built("node").run("large", endpoints, topic, "large", size)
    assert facts["sizes"] == ("1,2" if not less else f"1,2,{size}")
    name = facts[f"sent-{size}"]
    assert (name in facts["error"]) is (not less)
    question = admin_pb2.WhyNotDeliveredRequest(
        message_id=name, group=admin_pb2.Name(name="large"), topic=admin_pb2.Name(name=topic)
    )
    said = real.admin(cluster, "n1", "WhyNotDelivered", question)
    assert any("bytes on the wire" in line for line in said.evidence) is (not less), said
    assert less or said.reason in ("leased", "too-large")


def test_statement_059_an_acknowledgement_that_is_repeated(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """Acknowledging a message twice within its lease is no error."""
    assert client.run("twice", endpoints, fresh(cluster), "twice")["got"] == "once"


def test_statement_068_a_push_consumer_gets_each_message_and_a_failed_one_again(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """Each message is delivered once; the one that failed comes a second time."""
    assert (
        client.run("push", endpoints, fresh(cluster), "push", 5)["seen"]
        == "0:1,0:2,1:1,2:1,3:1,4:1"
    )


def test_statement_076_a_message_group_keeps_its_order(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """Each message group arrives in the order in which it was sent, in a FIFO consumer group."""
    name = f"fifo{next(_numbers)}"
    real.create_group(cluster, name, fifo=True)
    seen = client.run("fifo", endpoints, fresh(cluster, "fifo"), name, 12)["seen"].split(",")
    assert sorted(seen) == sorted(f"g{i % 3}:{i}" for i in range(12))
    for group in ("g0", "g1", "g2"):
        numbers = [int(line.partition(":")[2]) for line in seen if line.startswith(group)]
        assert numbers == sorted(numbers)


def test_statement_083_085_delay_and_recall(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """A delayed message comes at its time and not before, a recalled one never."""
    facts = client.run("delay", endpoints, fresh(cluster, "delay"), "delay")
    assert facts["recalled"] == facts["wanted"] != facts["kept"]
    assert int(facts["late"]) >= 0
    assert (facts["got"], facts["after"]) == ("kept", "")


def test_statement_087_088_transactions(
    client: Foreign, cluster: LocalCluster, endpoints: str
) -> None:
    """What is committed comes, what is rolled back does not, and the producer is asked about what
    it forgot."""
    facts = client.run("transaction", endpoints, fresh(cluster, "transaction"), "transaction")
    assert facts["got"] == "commit,nothing"
    assert "nothing" in facts["asked"].split(",")


def test_statement_091_priorities(client: Foreign, cluster: LocalCluster, endpoints: str) -> None:
    """Of the messages that wait, the one with the highest priority comes first."""
    assert (
        client.run("priority", endpoints, fresh(cluster, "priority"), "priority")["got"] == "7,3,1"
    )


def test_statement_092_lite_topics_in_java(
    cluster: LocalCluster, endpoints: str, built: Callable[[str], Foreign]
) -> None:
    """A lite consumer gets what is sent to its lite topic, in order, and nothing else."""
    topic, name = fresh(cluster, "lite"), f"lite{next(_numbers)}"
    real.create_group(cluster, name, lite_topic=topic)
    assert (
        built("java").run("lite", endpoints, topic, name, 6)["seen"] == "room42:0,room42:2,room42:4"
    )


def test_statement_021_a_node_producer_with_several_topics_starts(
    cluster: LocalCluster, endpoints: str, built: Callable[[str], Foreign]
) -> None:
    """Settings are sent again after the last route, so the client does not hang."""
    topics = [fresh(cluster) for _ in range(3)]
    facts = built("node").run("several", endpoints, ",".join(topics))
    assert set(facts) == set(topics)


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_statement_099_tls_by_default_and_plaintext_on_one_port(
    language: str, both: LocalCluster, built: Callable[[str], Foreign]
) -> None:
    """Clients with TLS as the default accept a self-signed certificate; the same port also accepts
    plaintext."""
    for tls in (True, False):
        facts = built(language).run(
            "roundtrip", real.target(both, "n1"), fresh(both), f"roundtrip-{tls}", tls=tls
        )
        assert facts["sent"] == facts["id"] and facts["same"] == "true"
