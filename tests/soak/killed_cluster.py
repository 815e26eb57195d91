"""A pytest plugin that runs the unchanged tests of the official client against an external cluster
whose leaders are killed repeatedly.

Load it with `-p tests.soak.killed_cluster`; the environment names the cluster's directory. Clients
connect to the spared node, which is not killed, and the tests read the files of all nodes. This
module lists the excluded tests, and those that may fail in one round, with reasons.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.node.process.local import Child, LocalCluster
from ledgermq.node.runtime.config_loading import validate
from tests import cluster as real
from tests.contract import official

VARIABLE = "KILLED_CLUSTER"
SPARED = "n1"
LOG_FILE_BYTES = 16 << 20
PERIODS: dict[str, Any] = {
    "delivery": {
        "min_invisible_ms": 100,
        "liveness_ms": 3000,
        "long_poll_max_ms": 5000,
        "transaction_check_ms": 1000,
        "transaction_interval_ms": 300,
        "transaction_checks": 15,
    },
    "limits": {"drain_ms": 500},
}
"""The union of the settings that the modules request."""

TIMES = "judges times"
OWN_FAULTS = "kills or restarts nodes itself"
LEFT_OUT = {
    "test_statement_042_an_empty_topic": TIMES,
    "test_statement_045_invisible_time": TIMES,
    "test_statement_063_change_invisible_duration": (
        "acknowledges within a second of the lease: an election may take longer"
    ),
    "test_statement_073_shutdown_of_an_idle_push_consumer": TIMES,
    "test_statement_083_delivered_at_its_time": TIMES,
    "test_statement_023_074_after_a_restart_of_all_nodes": OWN_FAULTS,
    "test_two_broker_groups_share_a_topic_and_lose_a_leader": OWN_FAULTS,
    "test_delays_survive_a_killed_leader_and_a_restart_of_all": OWN_FAULTS,
    "test_statement_088_089_check_survives_death_of_sender_and_leader": (OWN_FAULTS),
    "test_clients_are_listed_and_told_of_other_settings_at_any_node": (
        "asks every node, also the one that is dead"
    ),
}

COUNTED: frozenset[str] = frozenset(
    {
        "test_statement_051_tag_filter",
        "test_statement_059_acknowledged_for_good",
        "test_statement_066_a_listener_that_always_fails_ends_in_the_dead_letter_topic",
        "test_statement_068_push_consumes_each_message_once",
        "test_statement_069_070_a_failing_listener",
        "test_statement_071_a_slow_listener",
        "test_statement_072_a_killed_consumer",
        "test_statement_074_late_subscriber_with_a_small_cache",
        "test_statement_076_each_message_group_comes_in_order",
        "test_statement_080_a_message_that_always_fails_is_forwarded_and_the_next_follow",
        "test_statement_087_half_message_is_invisible_before_commit_and_after_rollback",
        "test_statement_088_checks_until_an_answer_and_no_more_than_allowed",
        "test_statement_092_lite_topics",
    }
)
"""These tests count deliveries or checks, or wait for less than their lease. A message that a
leader leased just before it died is delivered again after its lease (at least once). So one of
these tests may fail if a kill came between the record and the answer; over all rounds, each test
must have passed."""


class Kept(Child):
    """The spared node, which another process started."""

    @property
    def exit_code(self) -> int | None:
        return None


def attached(directory: Path) -> LocalCluster:
    """The cluster of this directory; the tests call only the spared node."""
    tree = yaml.safe_load((directory / "cluster.yaml").read_text())
    checked = validate({**tree, "node": SPARED, "data": str(directory / SPARED)})
    spared: Any = Kept(SPARED, None, None)  # type: ignore[arg-type]
    return LocalCluster(
        directory,
        dict(checked.nodes),
        checked.cluster_id,
        checked.cluster.groups,
        children={SPARED: spared},
    )


def pytest_configure() -> None:
    """Patch the modules before they are imported."""
    cluster = attached(Path(os.environ[VARIABLE]))
    connect = official.official

    @contextmanager
    def running(
        _directory: Path, *, log_file_bytes: int, extra: Mapping[str, Any] = real.FAST
    ) -> Iterator[LocalCluster]:
        assert log_file_bytes == LOG_FILE_BYTES
        for section, values in extra.items():
            assert values.items() <= PERIODS[section].items(), (
                f"PERIODS differ from the settings of a module: {section} {values}"
            )
        yield cluster

    def to_spared(
        cluster: LocalCluster, home: Path, nodes: Sequence[str] = ()
    ) -> AbstractContextManager[official.Official]:
        assert not nodes, "a test that chooses its node cannot run here"
        return connect(cluster, home, [SPARED])

    real.running = running  # type: ignore[assignment]
    official.official = to_spared  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = {item.name.partition("[")[0] for item in items}
    unknown = (LEFT_OUT.keys() | COUNTED) - names
    assert not unknown, f"unknown tests: {sorted(unknown)}"
    left_out = [item for item in items if item.name.partition("[")[0] in LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
