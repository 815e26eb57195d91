"""The chart's pods in a container engine: what a pod may and sees, and under load another number of
nodes, a rolling upgrade, a renewed certificate, and a lost node.

The scenarios are those of tests/packaging/test_chart_pods.py, which run as processes there. Here
every pod has its own file system, user, network address and limits of memory. Needs Helm and a
container engine; `.ci/with-engine` provides the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import base_port, wait_for
from tests.containers.chart_pods import ContainerPods
from tests.containers.engine import IMAGE, Project, built, engine_missing
from tests.e2e.command_line import CommandLine
from tests.mounted_secret import MountedSecret
from tests.packaging.pods import HELM, NAME, Rendered, profile
from tests.packaging.test_chart_pods import (
    Release,
    test_a_lost_node_is_replaced_by_an_empty_one_under_load,
    test_a_rolling_upgrade_and_a_renewed_certificate_lose_no_acknowledged_message,
    test_members_follow_the_replicas_up_and_back_under_load,
    test_one_node_runs_as_its_pod_is_described,
)

__all__ = [
    "test_a_lost_node_is_replaced_by_an_empty_one_under_load",
    "test_a_rolling_upgrade_and_a_renewed_certificate_lose_no_acknowledged_message",
    "test_members_follow_the_replicas_up_and_back_under_load",
    "test_one_node_runs_as_its_pod_is_described",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.verify,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]


class ContainerRelease(Release):
    """A release whose pods are containers. Clients outside reach each node at a port of this
    machine."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._port = base_port()

    def values(self, replicas: int) -> dict[str, Any]:
        return {
            "external": {
                "enabled": True,
                "nodes": [
                    {"host": f"127.0.0.1{k}", "port": self._port} for k in range(max(replicas, 3))
                ],
            }
        }

    def pods(self, found: Rendered, tls: MountedSecret | None = None) -> ContainerPods:
        return ContainerPods(found, self.directory, tls, IMAGE, self._port)


@pytest.fixture(scope="module")
def image() -> Iterator[None]:
    """The image of a node."""
    reason = engine_missing()
    if reason is not None:
        pytest.skip(reason)
    with built(Project()):
        yield


@pytest.fixture
def release(image: None, tmp_path: Path) -> Release:
    return ContainerRelease(tmp_path)


def test_a_pod_has_its_user_its_probes_and_another_address_after_every_start(
    release: ContainerRelease,
) -> None:
    """The node runs as the chart's user on a volume of root, cannot write outside of it, and reads
    secrets by its group. Probes are open to other machines, metrics are not. It finds itself and
    its data after a start with another address."""
    pods = release.pods(profile("one"))
    with pods.all_running():
        root = CommandLine(pods.endpoints, keys=pods.keys)
        wait_for(lambda: root.run("status").status == 0, 60, "the first user")
        assert pods.inside(0, "id", "-u").stdout == "10001\n"
        assert pods.inside(0, "touch", "/opt/file").returncode == 1
        assert (
            pods.inside(0, "stat", "-Lc", "%a %g", "/etc/ledgermq/cluster/cluster-secret").stdout
            == "440 10001\n"
        )
        assert pods.inside(
            0, "sh", "-c", "ls /data && stat -c %u /data /data/node"
        ).stdout.split() == ["lost+found", "node", "0", "10001"]
        assert (pods.asked(0, "/healthz"), pods.asked(0, "/readyz"), pods.asked(0, "/metrics")) == (
            200,
            200,
            403,
        )
        root.ok("topic", "create", "t")
        root.ok("send", "--topic", "t", "--body", "kept")
        former = pods.addresses[0]
        assert pods.stop(0).stdout.endswith(f"{NAME}-0 can stop\n")
        pods.start(0)
        pods.wait_ready(0)
        assert pods.addresses[0] != former
        assert root.consume_all("t", "readers", "--timeout", "60s") == ["kept"]
