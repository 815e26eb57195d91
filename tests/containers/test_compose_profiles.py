"""The profiles `monitoring` and `console` of compose.yaml for real: Prometheus scrapes the nodes,
its rules and the dashboards' expressions have data, and the console shows the cluster.

Needs a container engine; `.ci/with-engine` provides one, a base image (BASE_IMAGE) and Debian's
Prometheus. Grafana is not started: no package registry has it.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import wait_for
from tests.containers.engine import NODES, OPENER, Project, built, docker, engine_missing
from tests.packaging.test_dashboards import NAMES, executable, expressions

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

FILES = [Path(__file__).with_name("prometheus.yaml")]
TOPIC = "orders"
LINES = 400


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Nodes, Prometheus and console, with messages that were sent and consumed."""
    reason = engine_missing()
    if reason is not None:
        pytest.skip(reason)
    program, base = shutil.which("prometheus"), os.environ.get("BASE_IMAGE")
    if program is None or base is None:
        pytest.skip(
            "needs Debian's package prometheus, and BASE_IMAGE with a Debian of the same release"
        )
    context = tmp_path / "prometheus"
    context.mkdir()
    shutil.copy(program, context / "prometheus")
    (context / "Dockerfile").write_text(
        f'FROM {base}\nCOPY prometheus /bin/prometheus\nENTRYPOINT ["/bin/prometheus"]\n'
    )
    docker("build", "--tag", "ledgermq-test-prometheus", str(context))
    with built(Project()) as project:
        project.run(
            "--profile",
            "monitoring",
            "--profile",
            "console",
            "up",
            "-d",
            "--scale",
            "grafana=0",
            files=FILES,
        )
        project.ledgermq("status", "--wait", "60s", "--strict")
        project.ledgermq("topic", "create", TOPIC)
        lines = tmp_path / "lines"
        lines.write_text("".join(f"order {n}\n" for n in range(LINES)))
        project.ledgermq("send", "--topic", TOPIC, "--file", str(lines))
        consumed = project.ledgermq(
            "consume", "--topic", TOPIC, "--group", "shipping", "--until-empty", "3s"
        ).splitlines()
        assert len(consumed) == LINES
        yield project


def prometheus(what: str, **parameters: str) -> Any:
    """The data of one answer of Prometheus' HTTP interface."""
    with OPENER.open(
        f"http://127.0.0.1:9090/api/v1/{what}?{urllib.parse.urlencode(parameters)}", timeout=30
    ) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return found["data"]


def page(path: str) -> str:
    with OPENER.open(f"http://127.0.0.1:8090{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_prometheus_and_the_console_show_the_cluster(project: Project) -> None:
    """Every node is scraped; every rule is evaluated without error, and no alert fires; every
    dashboard has data. The console shows every node, the topic and the consumer group."""
    up = 'count(up{job="ledgermq"} == 1)'
    wait_for(
        lambda: (
            [one["value"][1] for one in prometheus("query", query=up)["result"]]
            == [str(len(NODES))]
        ),
        120,
        "scrapes of all nodes",
    )
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    wait_for(
        lambda: (
            {rule["health"] for group in prometheus("rules")["groups"] for rule in group["rules"]}
            == {"ok"}
        ),
        120,
        "the rules",
    )
    assert rules and not [
        alert for alert in prometheus("alerts")["alerts"] if alert["state"] == "firing"
    ]
    sent = f'sum(rocketmq_messages_in_total{{topic="{TOPIC}"}})'
    wait_for(
        lambda: (
            [one["value"][1] for one in prometheus("query", query=sent)["result"]] == [str(LINES)]
        ),
        120,
        "the messages sent",
    )
    for name in NAMES:
        wait_for(lambda name=name: enough(name), 120, f"data for the dashboard {name}")
    wait_for(lambda: all(node in page("/") for node in NODES), 60, "the console's overview")
    assert TOPIC in page("/topics") and "shipping" in page("/groups")


def enough(name: str) -> bool:
    """Whether half of a dashboard's expressions have data now; a quarter of those about audits,
    because most are of damage. Fails if one is refused."""
    found = [
        bool(prometheus("query", query=executable(expression))["result"])
        for expression, _ in expressions(name)
    ]
    return sum(found) / len(found) >= (0.25 if name == "audit" else 0.5)
