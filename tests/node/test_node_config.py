"""The configuration: three sources, and words that help."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.node.process.addresses import addresses_of
from ledgermq.node.process.store_access import store_of
from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.node.runtime.config_example import EXAMPLE
from ledgermq.node.runtime.config_loading import load, masked, validate
from ledgermq.node.runtime.errors import ConfigError, FatalError
from tests.mounted_secret import MountedSecret


def example() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(EXAMPLE)
    return tree


def changed(path: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(example())
    place: Any = tree
    *above, last = path.split(".")
    for part in above:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    place[int(last) if isinstance(place, list) else last] = value
    return tree


def test_example_is_valid_and_its_units_are_read() -> None:
    """The printed example is a configuration; durations and sizes with units become numbers."""
    loaded = validate(example())
    assert loaded.delivery.liveness_ms == 65_000
    assert loaded.cluster.groups[0].data_file_bytes == 1 << 30
    assert loaded.address.peer_port == 9081
    assert [group.name for group in loaded.hosted_groups] == ["g1"]


HA = {"name": "g1", "replicas": ["n1", "n2", "n3"], "replication": "ha"}


def test_an_ha_group_waits_for_two_members_unless_told_otherwise() -> None:
    """Without settings a send waits for the in-sync set, which must have a slave; with `ack: async`
    for the master alone."""
    made = {
        (): (False, 2),
        (("ack", "async"),): (True, 1),
        (("min_in_sync", 3),): (False, 3),
        (
            ("ack", "in-sync"),
            ("min_in_sync", 1),
            ("in_sync_lag_ms", "3s"),
            ("in_sync_lag_bytes", "1MiB"),
            ("transfer", "pull"),
        ): (False, 1),
    }
    for settings, expected in made.items():
        group = validate(changed("cluster.groups.0", {**HA, **dict(settings)})).cluster.groups[0]
        assert (group.ack_async, group.least_in_sync) == expected, settings
    assert (group.in_sync_lag_ms, group.in_sync_lag_bytes, group.transfer) == (
        3_000,
        1 << 20,
        "pull",
    )


def test_shown_group_settings_are_valid_input() -> None:
    """`config show` names every setting of a group, those of the other kind of replication too:
    they are empty there."""
    for group in (HA, {**HA, "replication": "raft"}):
        tree = changed("cluster.groups.0", group)
        shown = masked(validate(tree))["cluster"]["groups"][0]
        assert (
            validate(changed("cluster.groups.0", shown)).cluster.groups
            == validate(tree).cluster.groups
        )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"min_in_sync": 4},
            "min_in_sync is 4, and the group has 3 replicas: no send could ever be accepted",
        ),
        ({"min_in_sync": 2, "ack": "async"}, "with ack: async leave it out"),
        ({"replicas": ["n1"]}, "an HA group needs at least two replicas"),
        ({"ack": "sync"}, "expected one of 'async' or 'in-sync'"),
        ({"min_in_sync": 0}, "expected at least 1"),
    ],
)
def test_ha_settings_that_cannot_work_are_refused_in_a_sentence(
    settings: dict[str, Any], said: str
) -> None:
    """Each names the setting, and what to do."""
    with pytest.raises(ConfigError) as refused:
        validate(changed("cluster.groups.0", {**HA, **settings}))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("log_levle", "x", ["unknown key 'log_levle'", "did you mean 'log_level'"]),
        ("log_level", "loud", ["log_level = 'loud'", "'debug', 'info', 'warning' or 'error'"]),
        (
            "delivery.livenes_ms",
            3,
            ["unknown key 'delivery.livenes_ms'", "did you mean 'liveness_ms'"],
        ),
        (
            "delivery.liveness_ms",
            "5 parsecs",
            ["delivery.liveness_ms = '5 parsecs'", "500ms, 10s, 2m or 1h"],
        ),
        ("delivery.liveness_ms", 1, ["delivery.liveness_ms = 1", "at least 100"]),
        ("limits.max_body_bytes", "4MB", ["limits.max_body_bytes = '4MB'", "64KiB, 64MiB or 1GiB"]),
        ("nodes.n1.client_port", 99999, ["nodes.n1.client_port = 99999", "at most 65535"]),
        (
            "nodes.n1.cleint_port",
            1,
            ["unknown key 'nodes.n1.cleint_port'", "did you mean 'client_port'"],
        ),
        ("nodes.n2", {"host": "127.0.0.1", "client_port": 8081}, ["127.0.0.1:8081", "n1"]),
        ("cluster.id", "x", ["cluster.id = 'x'", "UUID"]),
        ("cluster.groups.0.replicas", ["n1", "n9"], ["'g1'", "'n9'"]),
        ("cluster.groups.0.data_file_bytes", "x", ["cluster.groups.0.data_file_bytes", "'x'"]),
        (
            "cluster.groups.0.key_index_units",
            1,
            ["cluster.groups.0.key_index_units = 1", "at least 2"],
        ),
        (
            "cluster.groups.0.key_index_slots",
            0,
            ["cluster.groups.0.key_index_slots = 0", "at least 1"],
        ),
        ("cluster.groups.0.replication", "chain", ["replication = 'chain'", "'raft' or 'ha'"]),
        ("cluster.groups.0.ack", "async", ["ack is a setting of HA groups", "set replication: ha"]),
        ("cluster.groups.0.transfer", "pull", ["transfer is a setting of HA groups"]),
        ("node", "n9", ["'n9'", "n1, n2, n3"]),
        ("node", "../etc", ["node = '../etc'", "letters, digits"]),
        ("raft.heartbeat_ms", 300, ["heartbeat_ms", "election_min_ms"]),
        ("retention.delete_percent", 95, ["warn_percent < delete_percent < refuse_percent"]),
        ("retention.warn_percent", 0, ["retention.warn_percent = 0", "at least 1"]),
        ("retention.groups", {"g9": {"hours": 1}}, ["'g9'", "not a broker group", "g1"]),
        ("flush.policy", "async", ["flush.policy = 'async'", "'durable', 'memory' or 'hybrid'"]),
        ("flush.groups", {"g9": "memory"}, ["flush.groups", "'g9'", "not a broker group", "g1"]),
        ("flush.interval_ms", "20s", ["interval_ms must not exceed thorough_ms"]),
        (
            "limits.connection_bytes",
            "300MiB",
            ["limits", "connection_bytes must not exceed half of buffered_bytes"],
        ),
        ("limits.buffered_bytes", "100MiB", ["limits.buffered_bytes"]),
        ("flush.least_pages", 0, ["flush.least_pages = 0", "at least 1"]),
        ("storage.append", "mmap", ["storage.append = 'mmap'", "'pwrite', 'map' or 'pool'"]),
        ("storage.append", "pool", ["'g1' has durable", "flush.policy to memory"]),
        ("storage.pool_buffers", 0, ["storage.pool_buffers = 0", "at least 1"]),
        ("storage.pool_buffer_bytes", "1KiB", ["storage.pool_buffer_bytes", "at least 65536"]),
    ],
)
def test_configuration_error_names_key_value_and_accepted_values(
    key: str, value: Any, said: list[str]
) -> None:
    """Every error names the place, the value, and the accepted values."""
    with pytest.raises(ConfigError) as caught:
        validate(changed(key, value))
    for part in said:
        assert part in str(caught.value)
    assert caught.value.exit_code == 64


def test_append_pool_needs_the_flush_policy_memory() -> None:
    """What counts is the policy of each group this node hosts, its own before the node's."""
    tree = changed("storage", {"append": "pool"})
    assert validate({**tree, "flush": {"policy": "memory"}}).storage.append == "pool"
    assert validate({**tree, "flush": {"groups": {"g1": "memory"}}}).storage.pool_buffers == 5
    for flush in ({"policy": "hybrid"}, {"policy": "memory", "groups": {"g1": "durable"}}):
        with pytest.raises(
            ConfigError, match=r"storage\.append pool needs the flush policy memory"
        ):
            validate({**tree, "flush": flush})


def test_group_settings_override_only_named_keys() -> None:
    """The rest is as for all broker groups; 0 hours is an override like any other."""
    found = validate(
        changed("retention", {"max_bytes": "1GiB", "groups": {"g1": {"hours": 0}}})
    ).retention
    assert (found.of("g1").hours, found.of("g1").max_bytes) == (0, 1 << 30)
    assert (found.of("g2").hours, found.of("g2").ignore_groups) == (72, False)
    flush = validate(changed("flush", {"policy": "hybrid", "groups": {"g1": "memory"}})).flush
    assert (
        flush.of("g1"),
        flush.of("g2"),
        flush.interval_ms,
        flush.least_pages,
        flush.thorough_ms,
    ) == ("memory", "hybrid", 500, 4, 10_000)


def test_all_faults_are_told_at_once() -> None:
    """Two faults are two parts of one message."""
    tree = changed("log_level", "loud")
    del tree["cluster"]["id"]
    with pytest.raises(ConfigError) as caught:
        validate(tree)
    assert "log_level" in str(caught.value) and "'cluster.id' is missing" in str(caught.value)


def test_set_wins_over_environment_and_environment_over_file(tmp_path: Path) -> None:
    """The order of sources is file, environment, --set; variables of other commands are no
    settings."""
    path = tmp_path / "node.yaml"
    path.write_text(
        yaml.safe_dump({**example(), "log_level": "error", "delivery": {"liveness_ms": "1s"}})
    )
    environment = {
        "LEDGERMQ_LOG_LEVEL": "debug",
        "LEDGERMQ_DELIVERY__LIVENESS_MS": "2s",
        "LEDGERMQ_ENDPOINTS": "127.0.0.1:8081",
        "HOME": "/",
    }
    loaded = load(path, ["delivery.liveness_ms=3s"], environment)
    assert (loaded.log_level, loaded.delivery.liveness_ms) == ("debug", 3000)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("::", "::"),
        ("::1", "::1"),
        ("[::]", "::"),
        ("[fd00::1]", "fd00::1"),
        ("fd00::1", "fd00::1"),
    ],
)
def test_an_ipv6_address_in_a_setting_is_no_yaml(text: str, host: str, tmp_path: Path) -> None:
    """YAML would read some of them as maps and lists."""
    path = tmp_path / "node.yaml"
    path.write_text(EXAMPLE)
    loaded = load(path, [f"listen_host={text}"], {"LEDGERMQ_NODES__N1__HOST": text})
    assert (loaded.listen_host, loaded.nodes["n1"].host) == (host, host)


SERVICE_LINKS = {
    "LEDGERMQ_SERVICE_HOST": "10.96.0.17",
    "LEDGERMQ_SERVICE_PORT": "8081",
    "LEDGERMQ_SERVICE_PORT_CLIENTS": "8081",
    "LEDGERMQ_PORT": "tcp://10.96.0.17:8081",
    "LEDGERMQ_PORT_8081_TCP": "tcp://10.96.0.17:8081",
    "LEDGERMQ_PORT_8081_TCP_PROTO": "tcp",
    "LEDGERMQ_PORT_8081_TCP_PORT": "8081",
    "LEDGERMQ_PORT_8081_TCP_ADDR": "10.96.0.17",
    "LEDGERMQ_CLIENTS_SERVICE_HOST": "10.96.0.18",
    "LEDGERMQ_CLIENTS_SERVICE_PORT_GRPC": "8081",
    "LEDGERMQ_CLIENTS_PORT": "udp://10.96.0.18:53",
    "LEDGERMQ_CLIENTS_PORT_53_UDP_ADDR": "10.96.0.18",
}
"""What Kubernetes puts into the environment of every container beside Services named `ledgermq` and
`ledgermq-clients`."""
COMMANDS = {
    "LEDGERMQ_TLS": "1",
    "LEDGERMQ_TLS_CA": "ca.pem",
    "LEDGERMQ_TLS_CERTIFICATE": "own.pem",
    "LEDGERMQ_TLS_CERTIFICATE_KEY": "own.key",
    "LEDGERMQ_VOLUMES": "/data",
    "LEDGERMQ_BIND": "127.0.0.1",
    "LEDGERMQ_REPLICAS": "n1,n2,n3",
    "LEDGERMQ_PURE": "1",
}


@pytest.mark.parametrize(("name", "value"), [*SERVICE_LINKS.items(), *COMMANDS.items()])
def test_variables_that_are_not_settings_are_ignored(tmp_path: Path, name: str, value: str) -> None:
    """Kubernetes' links to Services, and variables of other commands, do not stop a node."""
    path = tmp_path / "node.yaml"
    path.write_text(EXAMPLE)
    assert load(path, environment={name: value}) == load(path, environment={})


def test_variables_that_only_look_like_links_to_services_are_still_settings(tmp_path: Path) -> None:
    """A port of a node is a number, and a misspelt key is refused."""
    path = tmp_path / "node.yaml"
    path.write_text(EXAMPLE)
    assert (
        load(path, environment={"LEDGERMQ_NODES__N1__CLIENT_PORT": "8090"}).nodes["n1"].client_port
        == 8090
    )
    for name in ("LEDGERMQ_SERVICE", "LEDGERMQ_PORT", "LEDGERMQ_HOST", "LEDGERMQ_CLIENT_PORT"):
        with pytest.raises(ConfigError, match="unknown key"):
            load(path, environment={name: "8081"})


def test_example_names_every_setting_of_a_broker_group_and_they_are_valid_together() -> None:
    """Commented settings are valid too; sizes of derived files and the creation time of an added
    group are not user settings."""
    above, group_and_rest = EXAMPLE.split("    - name: g1\n")
    group, below = group_and_rest.split("nodes:", 1)
    spelled = group.replace("\n      # ", "\n      ").replace(
        "replication: raft", "replication: ha"
    )
    tree = yaml.safe_load(f"{above}    - name: g1\n{spelled}nodes:{below}")
    unnamed = {
        "created_ms",
        "index_file_bytes",
        "consume_queue_file_bytes",
        "key_index_slots",
        "key_index_units",
    }
    assert {*tree["cluster"]["groups"][0]} == {*BrokerGroup.model_fields} - unnamed
    loaded = validate(tree).cluster.groups[0]
    assert loaded.follower_reads and loaded.least_in_sync == 2


@pytest.mark.parametrize(
    "setting",
    ["workers: 2", "join: true", "join: spare", "observer_bytes_per_s:", "observer_bytes:"],
)
def test_example_says_how_larger_clusters_are_configured(setting: str) -> None:
    """Workers, nodes that come later, observers: a line each."""
    assert setting in EXAMPLE


def test_whole_configuration_can_come_from_the_environment() -> None:
    """A container needs no file: maps and lists are written as YAML in variables."""
    tree = example()
    environment = {
        f"LEDGERMQ_{key.upper()}": yaml.safe_dump(value, default_flow_style=True)
        for key, value in tree.items()
    }
    assert load(None, (), environment) == validate(tree)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("nonsense", "KEY=VALUE"),
        ("node.x=1", "no keys below"),
        ("nodes.n1.hots=h", "did you mean 'host'"),
    ],
)
def test_wrong_set_option_is_refused(setting: str, said: str, tmp_path: Path) -> None:
    """--set is checked like everything else."""
    path = tmp_path / "node.yaml"
    path.write_text(EXAMPLE)
    with pytest.raises(ConfigError, match=said):
        load(path, [setting], {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not valid YAML"),
        ("- a", "holds a list"),
        (b"\xff\xfe", "UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_unreadable_file_is_refused_in_one_sentence(
    text: str | bytes | None, said: str, tmp_path: Path
) -> None:
    """Not YAML, not a mapping, not text, not there."""
    path = tmp_path / "node.yaml"
    if isinstance(text, str):
        path.write_text(text)
    elif text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(path, (), {})
    assert "\n" not in str(caught.value)


def test_show_masks_the_secret() -> None:
    """A secret given directly appears neither in `show` nor in the text of the value."""
    tree = changed("cluster.secret", "correct horse battery staple")
    del tree["cluster"]["secret_file"]
    loaded = validate(tree)
    assert "horse" not in str(masked(loaded)) and "horse" not in repr(loaded)
    assert loaded.secret() == b"correct horse battery staple"


def secret_of(
    tmp_path: Path, content: str | None, mode: int = 0o600, host: str = "127.0.0.1"
) -> bytes:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    tree = changed("cluster.secret_file", str(path))
    tree["listen_host"] = host
    return validate(tree).secret()


@pytest.mark.parametrize(
    ("content", "mode", "host", "said"),
    [
        (None, 0o600, "127.0.0.1", "does not exist; create it with"),
        ("", 0o600, "127.0.0.1", "has 0 bytes"),
        ("short", 0o600, "127.0.0.1", "has 5 bytes"),
        ("x" * 40, 0o644, "127.0.0.1", "chmod 600"),
        ("x" * 20, 0o600, "0.0.0.0", "reachable from other machines"),
    ],
)
def test_missing_weak_or_open_secret_is_refused(
    tmp_path: Path, content: str | None, mode: int, host: str, said: str
) -> None:
    """Exit 77: no secret, a short one, one that every user can read, one too short for an open
    address."""
    with pytest.raises(FatalError, match=said) as caught:
        secret_of(tmp_path, content, mode, host)
    assert caught.value.exit_code == 77


def test_good_secrets_are_accepted(tmp_path: Path) -> None:
    """White space around a secret in a file does not count."""
    assert secret_of(tmp_path, "x" * 16 + "\n") == b"x" * 16
    assert secret_of(tmp_path, "x" * 32, host="0.0.0.0") == b"x" * 32


@pytest.mark.parametrize(
    ("mode", "accepted"), [(0o440, True), (0o400, True), (0o444, False), (0o644, False)]
)
def test_a_secret_mounted_by_kubernetes_is_judged_by_the_file_behind_the_links(
    tmp_path: Path, mode: int, accepted: bool
) -> None:
    """Links are open to all; what counts is who may read the file. A group is accepted: `fsGroup`
    is how the node gets to read it."""
    volume = MountedSecret(tmp_path / "secret", {"cluster": b"x" * 40}, mode)
    tree = changed("cluster.secret_file", str(volume.directory / "cluster"))
    tree["cluster"]["former_secret_file"] = str(volume.directory / "cluster")
    loaded = validate(tree)
    for read in (loaded.secret, lambda: loaded.former_secrets()[0]):
        if accepted:
            assert read() == b"x" * 40
            continue
        with pytest.raises(FatalError, match="open to every user") as caught:
            read()
        assert caught.value.exit_code == 77


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"x" * 16 + b"\n", 0o440, None),
        (b"x" * 15, 0o440, "16 to 256 bytes of printable text"),
        (b"x" * 257, 0o440, "16 to 256 bytes of printable text"),
        (b"\xff" * 20, 0o440, "16 to 256 bytes of printable text"),
        (b"x" * 20, 0o444, "open to every user"),
        (None, 0, "does not exist"),
    ],
)
def test_the_secret_of_the_first_user_is_checked_at_the_start(
    tmp_path: Path, content: bytes | None, mode: int, said: str | None
) -> None:
    """A cluster that nobody could sign in to would be noticed later, and far from the cause."""
    path = tmp_path / "root"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    loaded = validate(
        {**example(), "access": {"bootstrap_user": "root", "bootstrap_secret_file": str(path)}}
    )
    if said is None:
        assert loaded.bootstrap_user() == ("root", "x" * 16)
        return
    with pytest.raises(FatalError, match=said) as caught:
        loaded.bootstrap_user()
    assert caught.value.exit_code == 77


def test_no_secret_at_all_is_refused() -> None:
    """A cluster without a secret never starts, on loopback neither."""
    tree = example()
    del tree["cluster"]["secret_file"]
    with pytest.raises(FatalError, match="no cluster secret") as caught:
        validate(tree).secret()
    assert caught.value.exit_code == 77


def test_a_preferred_leader_must_be_a_replica() -> None:
    """A wrong name is an error at the start, instead of a leader that never moves."""
    tree = example()
    tree["cluster"]["groups"][0]["preferred_leader"] = "n2"
    assert validate(tree).cluster.groups[0].preferred_leader == "n2"
    tree["cluster"]["groups"][0]["preferred_leader"] = "n9"
    with pytest.raises(
        ConfigError, match="preferred_leader 'n9' is not one of the replicas n1, n2, n3"
    ):
        validate(tree)


@pytest.mark.parametrize(
    ("join", "hosted"),
    [(False, ["g1"]), (True, ["g1", "g2"]), (["g2"], ["g1", "g2"]), (["g1"], ["g1"])],
)
def test_joining_node_hosts_its_groups_without_bootstrap(join: Any, hosted: list[str]) -> None:
    """`join` is for all broker groups or for those named; where it is set, no log begins here, even
    if the file names this replica."""
    tree = example()
    tree["cluster"]["groups"].append({"name": "g2", "replicas": ["n2", "n3"]})
    loaded = validate({**tree, "join": join})
    assert [group.name for group in loaded.hosted_groups] == hosted
    joined = {"g1", "g2"} if join is True else set(join or [])
    assert {name for name in ("g1", "g2") if loaded.joins(name)} == joined


def test_a_joining_node_names_the_cluster_it_joins() -> None:
    """A node cannot join only itself; replicas that were removed in the meantime are ignored; a
    wrong group is an error."""
    tree = example()
    tree["nodes"] = {name: tree["nodes"][name] for name in ("n1", "n2")}
    assert validate({**tree, "join": True}).hosted_groups
    with pytest.raises(ConfigError, match="names the replica 'n3'"):
        validate(tree)
    with pytest.raises(
        ConfigError, match="join names 'g9', which is not a broker group; known: g1"
    ):
        validate({**example(), "join": ["g9"]})
    tree["nodes"] = {"n1": tree["nodes"]["n1"]}
    with pytest.raises(ConfigError, match="nodes lists only this one"):
        validate({**tree, "join": True})


OPEN = "anyone who reaches the port may read and write"


@pytest.mark.parametrize(
    ("settings", "hosts", "opened"),
    [
        ({}, ["127.0.0.1"], False),
        ({"listen_host": "[::1]"}, ["::1"], False),
        (
            {"listen_host": "fd00::4", "access": {"authentication": "required"}},
            ["fd00::4", "::1"],
            False,
        ),
        ({"listen_host": "0.0.0.0", "access": {"allow_unauthenticated": OPEN}}, ["0.0.0.0"], True),
        ({"listen_host": "0.0.0.0", "access": {"authentication": "required"}}, ["0.0.0.0"], False),
        (
            {"listen_host": "10.0.0.4", "access": {"authentication": "required"}},
            ["10.0.0.4", "127.0.0.1"],
            False,
        ),
        (
            {
                "listen_host": "10.0.0.4",
                "access": {
                    "authentication": "required",
                    "allow_open_http": "anyone who reaches the port may read health and metrics",
                },
            },
            ["10.0.0.4"],
            True,
        ),
        (
            {
                "listen_host": "::",
                "tls": {
                    "mode": "required",
                    "certificate_file": "c",
                    "key_file": "k",
                    "client_ca_file": "a",
                },
            },
            ["::"],
            False,
        ),
    ],
)
def test_exposure_needs_authentication_or_consent(
    settings: dict[str, Any], hosts: list[str], opened: bool
) -> None:
    """Only loopback, or authenticated callers, or an explicit consent; reasons and metrics need a
    separate consent, and this machine can always ask for them."""
    loaded = validate({**example(), **settings})
    loaded.check_exposure()
    assert (list(loaded.http_hosts), loaded.opens_http) == (hosts, opened)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tls": {"mode": "both", "certificate_file": "c", "key_file": "k", "client_ca_file": "a"}},
        {"tls": {"mode": "required", "certificate_file": "c", "key_file": "k"}},
    ],
)
def test_an_open_port_is_refused(settings: dict[str, Any]) -> None:
    """Exit status 77 and the required consent; encryption alone does not authenticate callers."""
    loaded = validate({**example(), "listen_host": "0.0.0.0", **settings})
    with pytest.raises(FatalError) as caught:
        loaded.check_exposure()
    assert caught.value.exit_code == 77 and OPEN in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o440, None), (0o444, "open to every user"), (None, "format of AWS's shared credentials")],
)
def test_the_credentials_of_the_object_store_are_checked_at_the_start(
    tmp_path: Path, mode: int | None, said: str | None
) -> None:
    """Whoever reads them reads the whole log."""
    path = tmp_path / "credentials"
    if mode is not None:
        path.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
        path.chmod(mode)
    loaded = validate(
        {**example(), "tiered": {"url": "s3://bucket/x", "credentials_file": str(path)}}
    )
    if said is None:
        store = store_of(loaded)
        assert store is not None and store.place == "s3://bucket/x"
        return
    with pytest.raises(FatalError, match=said) as caught:
        store_of(loaded)
    assert caught.value.exit_code == 77


def test_without_the_section_there_is_no_store() -> None:
    assert store_of(validate(example())) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"access": {"allow_unauthenticated": "yes"}}, OPEN),
        ({"access": {"authentication": "on"}}, "'none' or 'required'"),
        (
            {"access": {"bootstrap_user": "root"}},
            "bootstrap_user and bootstrap_secret_file belong together",
        ),
        ({"tls": {"mode": "both"}}, "certificate_file"),
        ({"tiered": {"region": "eu-west-1"}}, "tiered needs url"),
        ({"tiered": {"url": "https://bucket/prefix"}}, "tiered.url"),
        ({"tiered": {"url": "s3://bucket", "endpoint": "store:9000"}}, "tiered.endpoint"),
        ({"tls": {"users": {"a": "b"}}}, "client_ca_file"),
        ({"peer_tls": {"mode": "required", "certificate_file": "c"}}, "ca_file"),
    ],
)
def test_wrong_words_about_security(settings: dict[str, Any], words: str) -> None:
    """The sentence must be the sentence, and what belongs together must come together."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        validate({**example(), **settings})


def test_clients_are_told_the_advertised_address_and_peers_the_own_one() -> None:
    """One of the two may be given alone; the workers of a node share it."""
    tree = changed("nodes.n1.advertised_host", "mq1.example.com")
    tree["nodes"]["n1"]["workers"] = 2
    tree["nodes"]["n2"]["advertised_port"] = 31082
    tree["nodes"]["n3"] |= {"advertised_host": "::1", "advertised_port": 31083}
    found = addresses_of(validate(tree))
    assert {name: at["client"] for name, at in found.items()} == {
        "n1": "mq1.example.com:8081",
        "n1.2": "mq1.example.com:8081",
        "n2": "127.0.0.1:31082",
        "n3": "[::1]:31083",
    }
    without = validate(
        {
            **example(),
            "nodes": {**example()["nodes"], "n1": {**example()["nodes"]["n1"], "workers": 2}},
        }
    )
    for kind in ("peer", "controller", "http"):
        assert {name: at[kind] for name, at in found.items()} == {
            name: at[kind] for name, at in addresses_of(without).items()
        }


def test_ipv6_hosts_have_brackets_only_in_front_of_a_port() -> None:
    """Either form is read, and one form is written; two forms of one address are one address."""
    tree = changed("nodes.n1.host", "[fd00::1]")
    tree["nodes"]["n2"]["host"], tree["listen_host"] = "fd00::2", "[::]"
    found = validate(tree)
    assert (found.nodes["n1"].host, found.nodes["n2"].host, found.listen_host) == (
        "fd00::1",
        "fd00::2",
        "::",
    )
    assert [addresses_of(found)[name]["peer"] for name in ("n1", "n2")] == [
        "[fd00::1]:9081",
        "[fd00::2]:9082",
    ]
    tree["nodes"]["n2"] |= {"host": "fd00::1", "client_port": 8081}
    with pytest.raises(
        ConfigError,
        match=re.escape("nodes.n2.client_port uses [fd00::1]:8081, as does nodes.n1.client_port"),
    ):
        validate(tree)


@pytest.mark.parametrize("key", ["listen_host", "nodes.n1.host", "nodes.n1.advertised_host"])
@pytest.mark.parametrize(
    "host", ["", "n1:8081", "[n1]", "[::1]:8081", "::1::", "fe80::1%eth0", "n 1"]
)
def test_invalid_host_is_a_configuration_error(key: str, host: str) -> None:
    """Otherwise the node would find out when it opens a port, or its peers when they look for
    it."""
    with pytest.raises(ConfigError, match=re.escape(key)):
        validate(changed(key, host))


@pytest.mark.parametrize(
    ("advertised", "said"),
    [
        (
            {
                "n1": {"advertised_host": "mq"},
                "n2": {"advertised_host": "mq", "advertised_port": 8081},
            },
            "advertised_port uses mq:8081",
        ),
        (
            {"n2": {"advertised_port": 8081}},
            "nodes.n2.advertised_port uses 127.0.0.1:8081, as does nodes.n1.client_port",
        ),
    ],
)
def test_two_nodes_never_advertise_one_address(advertised: dict[str, Any], said: str) -> None:
    """A client that is told the address of the leader must reach the leader, not a load balancer in
    front of all nodes."""
    tree = example()
    for node, more in advertised.items():
        tree["nodes"][node] |= more
    with pytest.raises(ConfigError, match=re.escape(said)):
        validate(tree)


def test_a_bare_off_in_yaml_is_off() -> None:
    """YAML reads it as false."""
    assert validate({**example(), "tls": {"mode": False}}).tls.mode == "off"
