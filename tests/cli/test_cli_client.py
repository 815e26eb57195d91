"""`ledgermq client list` from argument to output, against a scripted node."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import admin_status, fake_nodes

PRODUCER = pb.ClientInfo(
    client_id="p@1",
    node="n1",
    connected=True,
    type="producer",
    topics=["orders", "ns@bills"],
    language="java",
    silent_ms=40,
)
CONSUMER = pb.ClientInfo(
    client_id="c@2",
    node="n2",
    type="push-consumer",
    group="billing",
    topics=["orders"],
    version="5.1.2",
    silent_ms=9,
)
UNKNOWN = pb.ClientInfo(client_id="u@3", node="n2", silent_ms=7000)


def answered(
    capfd: pytest.CaptureFixture[str], *arguments: str, unreachable: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Exit status and both streams."""
    with fake_nodes() as (node,):
        clients = [PRODUCER, CONSUMER, UNKNOWN]
        node.answers(
            "ListClients",
            pb.ListClientsResponse(status=admin_status(), clients=clients, unreachable=unreachable),
        )
        status = cli.run(["client", "list", *arguments, "--endpoints", node.endpoint])
    return (status, *capfd.readouterr())


def test_client_list_has_every_client_with_null_for_unknown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One object; what a client did not say is null."""
    status, out, _ = answered(capfd, "--json")
    found = json.loads(out)
    assert (status, [client["client"] for client in found["clients"]], found["unreachable"]) == (
        0,
        ["p@1", "c@2", "u@3"],
        [],
    )
    assert (
        found["clients"][0]["topics"] == ["orders", "ns@bills"] and found["clients"][0]["connected"]
    )
    assert found["clients"][2]["type"] is None and found["clients"][2]["group"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--topic", "ns@bills"), ["p@1"]),
        (("--topic", "orders"), ["p@1", "c@2"]),
        (("--group", "billing"), ["c@2"]),
    ],
)
def test_clients_are_chosen_by_topic_or_group(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: list[str]
) -> None:
    """Only those that publish or subscribe to it, or belong to it."""
    _, out, _ = answered(capfd, *arguments, "--json")
    assert [client["client"] for client in json.loads(out)["clients"]] == expected


def test_a_node_that_does_not_answer_makes_the_list_incomplete(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What is known is printed; the exit status is 2 and the error line names the node."""
    status, out, error = answered(capfd, unreachable=("n3",))
    assert status == 2 and "p@1" in out and "the clients of n3 are unknown" in error
