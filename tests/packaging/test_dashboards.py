"""The Grafana dashboards: their files are what the tables say, they name what exists, and their
expressions are valid."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.promql import KNOWN, OF_SCRAPES, labels_left
from tests.packaging.test_alert_rules import promtool, rules

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy/grafana"
TABLES = runpy.run_path(str(GRAFANA / "dashboards.py"))
NAMES = ("cluster", "broker-group", "topic", "consumer-group", "node", "audit")


def panels(name: str) -> list[dict[str, Any]]:
    found = json.loads((GRAFANA / f"dashboards/{name}.json").read_text())["panels"]
    assert isinstance(found, list)
    return found


def expressions(name: str) -> list[tuple[str, str]]:
    """Every expression of a dashboard with its legend."""
    return [
        (target["expr"], target["legendFormat"])
        for panel in panels(name)
        for target in panel["targets"]
    ]


def executable(expression: str) -> str:
    """The expression as Grafana sends it, when everything is chosen."""
    return re.sub(r"\$(?!__)\w+", ".*", expression).replace("$__rate_interval", "1m")


def test_dashboard_files_equal_their_tables() -> None:
    """Written by `python deploy/grafana/dashboards.py`."""
    assert (
        {path.stem for path in (GRAFANA / "dashboards").iterdir()}
        == set(TABLES["DASHBOARDS"])
        == set(NAMES)
    )
    for name in NAMES:
        assert (GRAFANA / f"dashboards/{name}.json").read_text() == TABLES["text"](name), name


def test_the_page_lists_every_dashboard() -> None:
    section = (
        (ROOT / "docs/monitoring.md").read_text().partition("## Dashboards")[2].partition("## ")[0]
    )
    assert re.findall(r"^\| ([a-z ]+) \|", section, re.MULTILINE)[1:] == [
        name.replace("-", " ") for name in NAMES
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_names_metrics_and_labels_that_exist(name: str) -> None:
    """In expressions, in legends, and in what the user chooses from."""
    for expression, legend in expressions(name):
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert shown <= labels_left(expression), (expression, legend)
    choices = TABLES["DASHBOARDS"][name].choices
    for label, metric in choices.items():
        assert label in KNOWN[metric]
    used = set(
        re.findall(r"\$(?!__)(\w+)", " ".join(expression for expression, _ in expressions(name)))
    )
    assert used == set(choices), "every choice is used, and nothing else"


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_titles_of_their_own_and_places_that_do_not_overlap(name: str) -> None:
    found = panels(name)
    assert (
        len({panel["title"] for panel in found})
        == len({str(panel["gridPos"]) for panel in found})
        == len(found)
        >= 9
    )


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("sum(rate(ledgermq_nothing[1m]))", "ledgermq_nothing"),
        ('ledgermq_term{group="g1"}', "group"),
        ("sum by (topic) (ledgermq_term)", "topic"),
        ("rate(ledgermq_term[1m])", "ledgermq_term"),
        ("sum by (le) (rate(ledgermq_sync_seconds[1m]))", "ledgermq_sync_seconds"),
    ],
)
def test_an_expression_that_is_wrong_is_found(expression: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        labels_left(expression)
    assert labels_left("sum by (le, instance) (rate(ledgermq_sync_seconds_bucket[1m]))") == {
        "le",
        "instance",
    }
    assert labels_left("ledgermq_term") == {"broker_group", *OF_SCRAPES}


def test_the_expressions_are_valid(tmp_path: Path) -> None:
    """promtool reads them as recording rules."""
    every = [executable(expression) for name in NAMES for expression, _ in expressions(name)]
    recorded = [
        {"record": f"panel:{at}", "expr": expression} for at, expression in enumerate(every)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(every)} rules found" in done.stdout and len(every) > 60


def test_the_configuration_of_prometheus_is_valid_and_loads_the_alerts() -> None:
    done = promtool("check", "config", str(ROOT / "deploy/prometheus/prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_compose_profile_mounts_the_named_files() -> None:
    """Prometheus scrapes the HTTP port of every node under the job of the alerts, and Grafana finds
    it and the dashboards."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    nodes = yaml.safe_load((ROOT / "deploy/node.yaml").read_text())["nodes"]
    assert job["job_name"] == "ledgermq"
    assert job["static_configs"] == [
        {"targets": [f"{name}:{node['http_port']}" for name, node in nodes.items()]}
    ]
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert (
        source["url"] == "http://prometheus:9090"
        and source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    )
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/ledgermq.yaml").read_text())[
        "providers"
    ]
    mounted = {
        to: ROOT / here for here, to, _ in [volume.split(":") for volume in grafana["volumes"]]
    }
    assert mounted == {
        "/etc/grafana/provisioning": GRAFANA / "provisioning",
        provider["options"]["path"]: GRAFANA / "dashboards",
    }
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted[str(home.parent)] / home.name).is_file()
    assert "./deploy/prometheus:/etc/prometheus:ro" in prometheus["volumes"]
    for service in (prometheus, grafana):
        assert service["profiles"] == ["monitoring"] and re.fullmatch(
            r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]
        )
        assert [port.partition(":")[0] for port in service["ports"]] == ["127.0.0.1"], (
            "neither asks for a password"
        )
