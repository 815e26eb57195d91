"""Workers in the configuration: their names and ports, what they host, and what would put two
replicas on one machine."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import validate
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto.workers import WORKER_NAME, is_first, node_of, number_of, together, worker_name


def tree(
    workers: int = 2, groups: dict[str, list[str]] | None = None, **top: Any
) -> dict[str, Any]:
    """The example's three nodes with this many workers each."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE)
    for address in found["nodes"].values():
        address["workers"] = workers
    replicas = groups or {"g1": ["n1", "n2", "n3"], "g2": ["n1.2", "n2.2", "n3.2"]}
    found["cluster"]["groups"] = [
        {"name": name, "replicas": members} for name, members in replicas.items()
    ]
    return {**found, **top}


def test_names_say_which_node_a_worker_belongs_to() -> None:
    for number in (1, 2, 10, 64):
        name = worker_name("mq-1", number)
        assert (node_of(name), number_of(name), is_first(name)) == ("mq-1", number, number == 1)
        assert bool(WORKER_NAME(name)) == (number > 1)
    assert not any(
        WORKER_NAME(name)
        for name in ("n1", "n1.1", "n1.02", "n1.", ".2", "n1.2.3", "g1.log", "n1.100")
    )
    assert together(["n1", "n2.2", "n3"]) is None
    assert together(["n1.3", "n2", "n1"]) == ("n1.3", "n1")


def test_a_worker_shares_the_ports_of_clients_and_of_http_and_has_its_own_for_peers() -> None:
    loaded = validate(tree(workers=3, node="n2.3"))
    assert sorted(loaded.members) == [
        "n1",
        "n1.2",
        "n1.3",
        "n2",
        "n2.2",
        "n2.3",
        "n3",
        "n3.2",
        "n3.3",
    ]
    assert loaded.workers == ("n2", "n2.2", "n2.3")
    own = loaded.address
    assert (own.client_port, own.http_port, own.peer_port, own.controller_port) == (
        8082,
        11082,
        9102,
        10102,
    )


def test_worker_hosts_the_groups_that_name_it() -> None:
    assert [group.name for group in validate(tree(node="n1")).hosted_groups] == ["g1"]
    assert [group.name for group in validate(tree(node="n1.2")).hosted_groups] == ["g2"]


def test_joining_node_spreads_unassigned_groups_over_its_workers() -> None:
    """Every group on one worker exactly."""
    groups = {f"g{number}": ["n1", "n2"] for number in range(4)} | {"mine": ["n1", "n3.2"]}
    loaded = validate(tree(groups=groups, node="n3", join=True))
    found = {
        worker: [group.name for group in loaded.hosted_by(worker)] for worker in loaded.workers
    }
    assert found == {"n3": ["g0", "g2"], "n3.2": ["g1", "g3", "mine"]}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"g1": ["n1", "n1.2", "n2"]}, "n1 and n1.2, which are workers of one node"),
        ({"g1": ["n1", "n2.3"]}, "names the replica 'n2.3', but nodes.n2.workers is 2"),
        ({"g1": ["n1", "n9.2"]}, "names the replica 'n9.2', which nodes does not list"),
        ({"g1": ["n1", "n2.1"]}, "replicas"),
    ],
)
def test_replicas_that_cannot_be(groups: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        validate(tree(groups=groups))


def test_overlapping_worker_ports_are_refused() -> None:
    taken = tree()
    taken["nodes"]["n2"]["peer_port"] = 9091
    with pytest.raises(
        ConfigError,
        match=re.escape("nodes.n2.peer_port uses 127.0.0.1:9091, as does nodes.n1.2.peer_port"),
    ):
        validate(taken)
    shared = tree()
    shared["nodes"]["n2"]["client_port"] = 8081
    with pytest.raises(
        ConfigError,
        match=re.escape("nodes.n2.client_port uses 127.0.0.1:8081, as does nodes.n1.client_port"),
    ):
        validate(shared)
    high = tree()
    high["nodes"]["n3"]["controller_port"] = 65530
    with pytest.raises(ConfigError, match="worker 2 would have port 65540"):
        validate(high)


def test_invalid_number_of_workers_is_refused() -> None:
    for workers in (0, 65, "many"):
        with pytest.raises(ConfigError, match="workers"):
            validate(tree(workers=workers))  # type: ignore[arg-type]


def test_the_pool_needs_the_memory_policy_for_the_groups_of_every_worker() -> None:
    settings = {"storage": {"append": "pool"}, "flush": {"groups": {"g1": "memory"}}}
    with pytest.raises(ConfigError, match="broker group 'g2' has durable"):
        validate(tree(node="n1", **settings))
