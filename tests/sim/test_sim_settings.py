"""The simulator reads the configuration that a node reads, and takes from it the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import load
from ledgermq.node.runtime.config_sections import Flush, Raft
from ledgermq.raft.config import MS
from ledgermq.sim.machine.settings import FILE_BYTES, FILE_BYTES_MAX, Settings, SettingsError, read

BY_HAND = """
node: b
data: ./b
cluster:
  id: 6f9619ff-8b86-4d01-b42d-00cf4fc964ff
  created_ms: 1
  secret: sixteen-bytes-or-more
  groups:
    - {name: first, replicas: [a, b], data_file_bytes: 64KiB}
    - {name: second, replicas: [c, b, a], data_file_bytes: 131072, preferred_leader: c}
nodes:
  a: {client_port: 1001, peer_port: 1002, controller_port: 1003, http_port: 1004}
  b: {client_port: 2001, peer_port: 2002, controller_port: 2003, http_port: 2004}
  c: {client_port: 3001, peer_port: 3002, controller_port: 3003, http_port: 3004}
raft: {heartbeat_ms: 20, election_min_ms: 60ms, election_max_ms: "90", push_bytes: 8KiB, window_bytes: 64KiB}
flush: {policy: hybrid, groups: {second: memory}, interval_ms: 250ms, least_pages: 2, thorough_ms: 1s}
delivery: {liveness_ms: 5s}
storage: {append: map}
"""


@pytest.mark.parametrize("text", [EXAMPLE, BY_HAND], ids=["example", "by-hand"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_node_and_the_simulator_read_the_same(tmp_path: Path, text: str, place: int) -> None:
    """Every key that both know has the same name, unit, default and meaning."""
    file = tmp_path / "node.yaml"
    file.write_text(text)
    node = load(file, ())
    group = node.cluster.groups[place]
    settings = read(text, group.name)
    assert (settings.group, settings.names, settings.preferred) == (
        group.name,
        group.replicas,
        group.preferred_leader,
    )
    raft, timing = node.raft, settings.timing
    assert (timing.heartbeat_ns, timing.election_min_ns, timing.election_max_ns) == (
        raft.heartbeat_ms * MS,
        raft.election_min_ms * MS,
        raft.election_max_ms * MS,
    )
    assert (timing.range_bytes_max, timing.window_bytes) == (raft.push_bytes, raft.window_bytes)
    assert settings.policy is FlushPolicy(node.flush.of(group.name))
    lazy = settings.lazy
    assert (lazy.interval_ns, lazy.thorough_ns) == (
        node.flush.interval_ms * MS,
        node.flush.thorough_ms * MS,
    )
    assert lazy.least_bytes == node.flush.least_pages * 4096
    assert settings.times.liveness_ns == node.delivery.liveness_ms * MS
    assert settings.append == node.storage.append
    assert settings.file_bytes == min(FILE_BYTES_MAX, group.data_file_bytes)


def test_defaults_are_those_of_a_node() -> None:
    """What a configuration leaves out is as it is for a node, not as it is for a run without
    one."""
    group = "cluster: {groups: [{name: g, replicas: [x]}]}"
    raft = Raft()
    settings = read(group)
    assert settings.names == ("x",)
    assert settings.timing.window_bytes == raft.window_bytes
    assert settings.lazy.thorough_ns == Flush().thorough_ms * MS
    assert settings.file_bytes == FILE_BYTES_MAX >= FILE_BYTES
    assert Settings.of_nodes(2).names == ("n1", "n2")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"raft": {"heartbeat_ms": "soon"}}, "raft.heartbeat_ms"),
        ({"raft": {"heartbeat_ms": 300, "election_min_ms": 400}}, "raft"),
        ({"raft": [1]}, "raft"),
        ({"flush": {"policy": "sometimes"}}, "flush.policy"),
        ({"storage": {"append": "hope"}}, "storage.append"),
        ({"cluster": {"groups": []}}, "cluster.groups"),
        (
            {"cluster": {"groups": [{"name": "g", "replicas": ["a", "a"]}]}},
            "cluster.groups.replicas",
        ),
        ({"cluster": {"groups": [{"name": "g", "replicas": "a"}]}}, "cluster.groups.replicas"),
        (
            {"cluster": {"groups": [{"name": "g", "replicas": ["a"], "data_file_bytes": True}]}},
            "cluster.groups.data_file_bytes",
        ),
    ],
)
def test_unsimulated_setting_is_named(change: dict[str, object], key: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(yaml.safe_dump({**yaml.safe_load(BY_HAND), **change}))
    assert error.value.key == key


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "", "1"])
def test_malformed_simulator_configuration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        read(text)
