"""A real Prometheus (Debian's package `prometheus`) that scrapes the nodes of a test and evaluates
the alert rules.

The rules are those of `deploy/prometheus/alerts.yaml` with shorter times: how long a condition must
hold, over which time a counter is looked at, and the ages in `SHORTER`. No other number is changed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.node.process.local import LocalCluster, free_ports
from tests.cluster import wait_for

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/alerts.yaml"
SCRAPE_S = 2
HOLDS_S = 3
OVER_S = 20
"""The time over which counters are looked at: several scrapes, also on a busy machine."""
SHORTER = {
    "LedgerMQConsumersBehind": ("15 * 60 * 1000", "5 * 1000"),
    "LedgerMQLogNotVerified": ("7 * 86400", "45"),
    "LedgerMQNotInObjectStore": ("900", "5"),
}
"""Alert → an age in its expression, and the one of the test."""
WAIT_S = 240.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def alerts() -> list[str]:
    """The names of all alerts."""
    return [
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    ]


def shorter_rules() -> str:
    tree = yaml.safe_load(RULES.read_text())
    for rule in [rule for group in tree["groups"] for rule in group["rules"]]:
        if "for" in rule:
            rule["for"] = f"{HOLDS_S}s"
        rule["expr"] = re.sub(r"(\[|offset )\d+[smhd]", rf"\g<1>{OVER_S}s", rule["expr"])
        if rule["alert"] in SHORTER:
            age, short = SHORTER[rule["alert"]]
            assert rule["expr"].count(age) == 1, rule["expr"]
            rule["expr"] = rule["expr"].replace(age, short)
    return yaml.safe_dump(tree)


class Prometheus:
    """The answers of a running Prometheus."""

    def __init__(self, cluster: LocalCluster, port: int) -> None:
        self._cluster = cluster
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        try:
            with _OPENER.open(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def instance(self, node: str) -> str:
        """The label `instance` of a node."""
        address = self._cluster.nodes[node]
        return f"{address.host}:{address.http_port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def firing(self, alert: str, **labels: str) -> bool:
        """Whether this alert fires with these labels."""
        wanted = {"alertname": alert, **labels}
        return any(
            one["state"] == "firing" and wanted.items() <= one["labels"].items()
            for one in self._get("alerts")["alerts"]
        )

    def fired(self, alert: str, **labels: str) -> bool:
        """Whether this alert has fired with these labels since Prometheus was started, however
        short."""
        wanted = {"alertname": alert, "alertstate": "firing", **labels}
        matchers = ",".join(f'{name}="{value}"' for name, value in wanted.items())
        return bool(self.query(f"count_over_time(ALERTS{{{matchers}}}[1h])"))

    def wait_fired(self, alert: str, **labels: str) -> None:
        wait_for(lambda: self.fired(alert, **labels), WAIT_S, f"the alert {alert}")

    def wait_firing(self, alert: str, **labels: str) -> None:
        """Wait until the alert fires; the fault must last meanwhile."""
        wait_for(lambda: self.firing(alert, **labels), WAIT_S, f"the alert {alert}")

    def wait_ended(self, alert: str) -> None:
        """Wait until the alert fires for nothing at all."""
        wait_for(lambda: not self.firing(alert), WAIT_S, f"the end of the alert {alert}")

    def wait_scraped(self) -> None:
        """Wait until every node is scraped."""
        up = f'count(up{{job="ledgermq"}} == 1) == {len(self._cluster.nodes)}'
        wait_for(lambda: self.query(up), WAIT_S, "scrapes of every node")

    def begin(self, *alerts: str) -> None:
        """Before the faults: every node is scraped, and none of these alerts has fired."""
        self.wait_scraped()
        assert not [alert for alert in alerts if self.fired(alert)]

    def wait_calm(self, *alerts: str) -> None:
        """After a fault: every node is scraped, and none of these alerts fires any more."""
        self.wait_scraped()
        for alert in alerts:
            self.wait_ended(alert)

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        with _OPENER.open(
            f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}", timeout=30
        ) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        data: dict[str, Any] = found["data"]
        return data


@contextmanager
def watching(cluster: LocalCluster, directory: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes all nodes of the cluster; skips the test where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    port = free_ports(1)[0].http_port
    found = Prometheus(cluster, port)
    (directory / "rules.yaml").write_text(shorter_rules())
    scrape = {
        "job_name": "ledgermq",
        "static_configs": [{"targets": [found.instance(node) for node in cluster.nodes]}],
    }
    times = {
        "scrape_interval": f"{SCRAPE_S}s",
        "scrape_timeout": f"{SCRAPE_S}s",
        "evaluation_interval": "1s",
    }
    config = {"global": times, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
        try:
            wait_for(lambda: process.poll() is not None or found.ready(), 60, "Prometheus")
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            yield found
        finally:
            process.terminate()
            process.wait(60)
