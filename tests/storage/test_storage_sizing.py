"""Laws of the sizing: a larger load never needs less, disk is linear in retention, texts are
understood or refused with a remedy, and the page and the chart state what the formula gives."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ledgermq import cli
from ledgermq.storage.cli.sizing import (
    FIGURES,
    GIB,
    KIB,
    NATIVE,
    ROCKETMQ,
    SIZING,
    Load,
    Options,
    Sizing,
    UnusablePlan,
    chart_values,
    figures_table,
    parse,
    plan,
)

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/ledgermq"
PROFILES = ("", "-one", "-three", "-zones")
LOAD = re.compile(r'# Sized for: ledgermq doctor --plan "([^"]+)"((?: --[a-z-]+ \S+)*)\n')

loads = st.builds(Load, st.floats(0.1, 1e5), st.integers(1, 65_536), st.floats(60, 1e6))
optionses = st.builds(
    Options,
    replicas=st.integers(1, 5),
    clients=st.sampled_from((NATIVE, ROCKETMQ)),
    consumer_groups=st.integers(0, 5),
    topics=st.integers(1, 2_000),
    queues=st.integers(1, 64),
    connections=st.integers(0, 10_000),
    cores=st.integers(2, 64),
    disk_bytes=st.integers(100 * GIB, 16_384 * GIB),
)


def planned(load: Load, options: Options) -> Sizing | None:
    """None: more nodes than a cluster can have."""
    try:
        return plan(load, options)
    except UnusablePlan:
        return None


def in_sum(found: Sizing) -> tuple[float, ...]:
    """What must never fall. With a small tolerance for sums of floats."""
    node = found.node
    several = (
        node.disk_written_per_s,
        node.network_in_per_s,
        node.network_out_per_s,
        node.page_cache_bytes,
    )
    return (
        found.nodes,
        found.groups,
        *(each * found.nodes * (1 + 1e-9) + found.nodes for each in several),
    )


@given(loads, optionses, st.floats(1, 10), st.integers(0, 10_000), st.floats(1, 10))
def test_a_larger_load_never_needs_less(
    load: Load, options: Options, times: float, more: int, longer: float
) -> None:
    larger = Load(load.messages_per_s * times, load.body_bytes + more, load.retention_s * longer)
    before, after = planned(load, options), planned(larger, options)
    if after is not None:
        assert before is not None
        assert all(
            now >= was - 2 * after.nodes
            for was, now in zip(in_sum(before), in_sum(after), strict=True)
        )
        assert after.nodes >= before.nodes and after.groups >= before.groups


@given(loads, optionses, st.floats(1, 10), st.integers(1, 5))
def test_sizing_is_monotonic_in_every_option(
    load: Load, options: Options, times: float, more: int
) -> None:
    """With a fixed number of nodes."""
    fixed = replace(options, nodes=options.replicas + 2)
    before = plan(load, fixed).node
    grown = [
        replace(load, messages_per_s=load.messages_per_s * times),
        replace(load, body_bytes=load.body_bytes + more),
    ]
    afters = [plan(each, fixed).node for each in grown]
    wider = (
        ("topics", more),
        ("queues", more),
        ("consumer_groups", more),
        ("connections", more * 100),
    )
    afters += [
        plan(load, replace(fixed, **{name: getattr(fixed, name) + count})).node
        for name, count in wider
    ]
    for after in afters:
        for name in before.__slots__:
            assert getattr(after, name) >= getattr(before, name) * (1 - 1e-9), name


@given(loads, optionses)
def test_disk_is_linear_in_retention(load: Load, options: Options) -> None:
    """Apart from the files that every replica has anyway."""
    fixed = replace(options, nodes=options.replicas)
    one, two, three = (
        plan(replace(load, retention_s=load.retention_s * k), fixed).node.disk_bytes
        for k in (1, 2, 3)
    )
    assert three - two == pytest.approx(two - one, abs=2)
    none = plan(replace(load, retention_s=0), fixed).node
    assert none.disk_bytes == pytest.approx(none.replicas * 3 * options.log_file_bytes / 0.8, abs=2)


@given(loads, optionses)
def test_the_hardware_suffices_and_one_node_less_would_not(load: Load, options: Options) -> None:
    found = planned(load, options)
    if found is None:
        return
    assert (
        found.exceeded == ()
        and found.node.cores <= options.cores
        and found.node.disk_bytes <= options.disk_bytes
    )
    assert found.node.cores_used <= found.node.workers / 2 + 1e-9, "half of each core stays free"
    if found.nodes > options.replicas:
        assert found.limit in plan(load, replace(options, nodes=found.nodes - 1)).exceeded
    else:
        assert found.limit == "replicas"


@given(optionses, st.integers(1, 16_384))
def test_a_group_leads_no_more_than_half_of_a_core(options: Options, body: int) -> None:
    """What the processes carry in sum is what the load costs: no group is counted on more than one
    core."""
    found = planned(Load(5_000, body, 3_600), options)
    if found is not None:
        assert found.groups >= found.nodes and found.node.workers * found.nodes >= found.groups
        assert found.node.replicas * found.nodes >= found.groups * options.replicas


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("20k msg/s of 1 KiB, 3 days", Load(20_000, 1_024, 259_200)),
        ("20,000 messages/s of 1KiB, for 72h", Load(20_000, 1_024, 259_200)),
        ("1.5M/s of 100 bytes, kept for 2 weeks", Load(1_500_000, 100, 1_209_600)),
        (" 500 msg/sec of 1 KB , 90 min ", Load(500, 1_000, 5_400)),
        ("1 message/second of 4 MiB, 1 d", Load(1, 4_194_304, 86_400)),
        ("0.5 records/s of 1.5 KiB, 30 seconds", Load(0.5, 1_536, 30)),
    ],
)
def test_loads_as_people_write_them(text: str, wanted: Load) -> None:
    assert parse(text) == wanted


@given(st.text(alphabet="20k msg/sofKiB,3days.-", max_size=30))
def test_any_text_is_a_load_or_refused_with_a_remedy(text: str) -> None:
    try:
        assert parse(text).messages_per_s > 0
    except UnusablePlan as refused:
        assert "; " in str(refused)


def test_no_cluster_has_any_number_of_nodes() -> None:
    with pytest.raises(
        UnusablePlan, match=r"more than 1,000 nodes would be needed \(.*cores.*\); divide"
    ):
        plan(parse("900M msg/s of 4 MiB, 1 year".replace("1 year", "9 weeks")), Options())


def test_the_figures_stand_in_the_pages_that_are_named() -> None:
    """A measurement that is published anew changes the constant, or this test fails."""
    for name, figure in FIGURES.items():
        text = (ROOT / figure.page).read_text()
        missing = [quote for quote in figure.quotes if quote not in text]
        assert not missing, f"{name}: {figure.page} does not say {missing}"
        for (_, value), quote in zip(figure.points, figure.quotes, strict=True):
            row = next(line for line in text.splitlines() if quote in line)
            assert f"{value:,g}" in row or f"{value:,}" in row, f"{name}: {value} is not in: {row}"


def test_the_page_has_the_figures_and_the_plans() -> None:
    """The table of figures, and each example with its output."""
    page = (ROOT / SIZING).read_text()
    assert "\n".join(figures_table()) in page
    assert page.count("$ ledgermq doctor --plan ") == len(re.findall(EXAMPLE, page)) >= 2


EXAMPLE = re.compile(r"    \$ ledgermq (doctor --plan \"([^\"]+)\"(.*))\n((?:    .*\n)+)")


def test_plans_on_the_sizing_page_equal_the_command_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for _, text, options, wanted in re.findall(EXAMPLE, (ROOT / SIZING).read_text()):
        code = cli.run(["doctor", "--plan", text, *options.split()])
        out, err = capfd.readouterr()
        assert (code, err) == (0, "")
        assert out == re.sub("^    ", "", wanted, flags=re.M)


def test_json_has_the_plan_the_chart_and_the_figures(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--plan", "20k msg/s of 1 KiB, 3 days", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["v"] == 1 and found["load"]["body_bytes"] == KIB and found["exceeded"] == []
    assert found["node"]["disk_bytes"] > 3 * found["node"]["page_cache_bytes"]
    assert found["chart"]["replicas"] == found["nodes"] and set(found["figures"]) == set(FIGURES)


def test_too_few_given_nodes_are_an_alarm(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--plan", "300k msg/s of 1 KiB, 3 days", "--nodes", "3"]) == 1
    out = capfd.readouterr().out
    assert (
        re.search(r"\nalarm: 3 nodes are too few \(cores, .*disk", out)
        and "; leave out --nodes" in out
    )


def test_exact_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--plan", "1 msg/s of 1 KiB, 1 day", "--bytes"]) == 0
    out = capfd.readouterr().out
    assert "1,024 bytes" in out and not re.search(r"\d [KMG]iB", out)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_profiles_of_the_chart_follow_the_plan(profile: str) -> None:
    """Each states its load, and has the resources of the plan for it."""
    text = (CHART / f"values{profile}.yaml").read_text()
    stated = LOAD.search(text)
    assert stated is not None, "the profile states no load"
    words = stated[2].split()
    names = {
        "replicas": int,
        "nodes": int,
        "clients": str,
        "log-file-size": lambda size: int(size.removesuffix("MiB")) << 20,
    }
    given_options: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        name = option.removeprefix("--")
        given_options["log_file_bytes" if name == "log-file-size" else name] = names[name](value)
    found = plan(parse(stated[1]), Options(**given_options))
    values = {**yaml.safe_load((CHART / "values.yaml").read_text()), **yaml.safe_load(text)}
    assert found.exceeded == ()
    wanted = chart_values(found)
    assert {"size": values["storage"]["size"]} == wanted["storage"]
    assert {name: values[name] for name in ("replicas", "workers", "resources")} == {
        k: wanted[k] for k in ("replicas", "workers", "resources")
    }
    groups = values["cluster"]["brokerGroups"]
    assert len(groups) == found.groups and {len(group["replicas"]) for group in groups} == {
        found.options.replicas
    }
