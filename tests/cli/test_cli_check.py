"""`ledgermq check`: one line and one of four exit statuses, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from ledgermq import cli
from ledgermq.client.plans.health import Finding, Limit, Severity, worst
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.levels import LACKS, LEVEL_MAX
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

GIB = 1 << 30


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    with fake_nodes() as (one,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", one.endpoint)
        yield one


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the line, which is all that a monitoring system sees."""
    status = cli.run(["check", *arguments])
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 and err == ""
    return status, out.rstrip("\n")


def well() -> pb.ClusterStatusResponse:
    found = pb.ClusterStatusResponse(status=admin_status(), health="ok", cluster_id="c")
    for name in ("n1", "n2", "n3"):
        found.nodes.add(node=name, up=True, disk_free_bytes=100 * GIB)
    group = found.groups.add(group="g1", leader="n1")
    for name in ("n1", "n2", "n3"):
        group.replicas.add(node=name, state="running")
    return found


def test_a_good_cluster(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    """What was looked at, and numbers for graphs."""
    node.answers("ClusterStatus", well())
    assert run(capsys) == (
        0,
        "LEDGERMQ OK - nodes up: 3, broker groups with a leader: 1 | 'nodes_up'=3 'leaders'=1",
    )


def test_check_names_capabilities_above_the_feature_level(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no fault: an upgrade may be under way. At the highest level there is nothing to say."""
    found = well()
    for level in (LEVEL_MAX, 2):
        found.groups[0].level = level
        node.answers("ClusterStatus", found)
        status, line = run(capsys)
        assert status == 0 and line.startswith("LEDGERMQ OK - nodes up: 3")
        assert ("broker group g1 has feature level 2, and below" in line) == (level == 2)
        assert all((text in line) == (level == 2) for text in LACKS[3])
    assert "(see: ledgermq upgrade status)" in line


def no_leader(found: pb.ClusterStatusResponse) -> None:
    found.groups[0].ClearField("leader")


def node_down(found: pb.ClusterStatusResponse) -> None:
    found.nodes[1].up = False


def disk(free: int) -> Callable[[pb.ClusterStatusResponse], None]:
    def change(found: pb.ClusterStatusResponse) -> None:
        found.nodes[0].disk_free_bytes = free

    return change


def state(name: str) -> Callable[[pb.ClusterStatusResponse], None]:
    def change(found: pb.ClusterStatusResponse) -> None:
        found.groups[0].replicas[2].state = name

    return change


def differing(found: pb.ClusterStatusResponse) -> None:
    found.groups[0].replicas[2].differing_files.append(0)


def disputed(found: pb.ClusterStatusResponse) -> None:
    found.groups[0].disputed_files.append(0)


def ahead(level: int) -> Callable[[pb.ClusterStatusResponse], None]:
    def change(found: pb.ClusterStatusResponse) -> None:
        found.groups[0].store_time_ahead_ms, found.groups[0].level = 90_000, level

    return change


def short(found: pb.ClusterStatusResponse) -> None:
    found.groups[0].ha.short = "g1 has 1 of 2 members in sync"


def unheard(found: pb.ClusterStatusResponse) -> None:
    replica = found.groups[0].replicas[2]
    replica.state, replica.rebuild.reason = "waiting", "not heard by n1: an old copy"


def fenced(found: pb.ClusterStatusResponse) -> None:
    found.groups[0].replicas[2].fenced = "sync failed"


def degraded(found: pb.ClusterStatusResponse) -> None:
    found.health = "degraded"


def down(found: pb.ClusterStatusResponse) -> None:
    found.health = "down"


def clock(state: str, offset_ms: int) -> Callable[[pb.ClusterStatusResponse], None]:
    def change(found: pb.ClusterStatusResponse) -> None:
        found.nodes[0].clock, found.nodes[0].clock_offset_ms = state, offset_ms

    return change


def full(found: pb.ClusterStatusResponse) -> None:
    found.nodes[0].disk = "full"


def tls_fails(found: pb.ClusterStatusResponse) -> None:
    found.nodes[0].peer_failures.append(
        "the certificate of node n3 is refused (certificate has expired); renew it"
    )


def nothing(found: pb.ClusterStatusResponse) -> None:
    del found.groups[:]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (no_leader, 2, "broker group g1 has no leader"),
        (
            full,
            2,
            (
                "the disk of node n1 is full: it takes no messages, and leads only what no other"
                " node can lead"
            ),
        ),
        (node_down, 1, "node n2 is down"),
        (disk(5 * GIB), 0, "nodes up: 3"),
        (disk(5 * GIB - 1), 1, "node n1 has 5.00 GiB of free disk space"),
        (disk(GIB - 1), 2, "of free disk space"),
        (state("repairing"), 1, "g1 on n3 is repairing"),
        (tls_fails, 1, "node n1: the certificate of node n3 is refused (certificate has expired)"),
        (unheard, 1, "g1 on n3 is waiting: not heard by n1: an old copy"),
        (clock("agreed", 999), 0, "nodes up: 3"),
        (clock("uncertain", 999_999), 0, "nodes up: 3"),
        (
            clock("off", 400 * 86_400_000),
            1,
            "the clock of node n1 is 400 d ahead: a majority of the nodes has another time",
        ),
        (
            clock("divided", -3000),
            1,
            "the clock of node n1 is 3 s behind: the nodes' clocks differ, and no majority agrees",
        ),
        (differing, 2, "g1 on n3 differs"),
        (disputed, 2, "the replicas of g1 differ"),
        (short, 2, "1 of 2 members in sync"),
        (
            ahead(3),
            1,
            (
                "g1 is 1 min 30 s ahead of its leader's clock (if that clock is right: ledgermq"
                " begin-time-epoch g1)"
            ),
        ),
        (
            ahead(2),
            1,
            "ledgermq begin-time-epoch g1, which needs feature level 3: ledgermq upgrade finish)",
        ),
        (fenced, 1, "g1 on n3 has stopped: sync failed"),
        (degraded, 1, "the cluster is degraded"),
        (down, 2, "the cluster is down"),
        (nothing, 2, "no broker group"),
    ],
)
def test_check_status_follows_the_worst_problem(
    node: FakeNode,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[pb.ClusterStatusResponse], None],
    status: int,
    said: str,
) -> None:
    """And the line says it."""
    found = well()
    change(found)
    node.answers("ClusterStatus", found)
    got, line = run(capsys)
    assert (
        got == status and said in line and line.startswith(f"LEDGERMQ {Severity(status).name} - ")
    )


def test_exact_sizes_and_ages(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    """As in the other commands that show them."""
    found = well()
    disk(GIB - 1)(found)
    node.answers("ClusterStatus", found)
    answer = pb.GroupLagResponse(status=admin_status())
    answer.topics.add(topic=pb.Name(name="t"), lag=3, oldest_age_ms=200_000)
    node.answers("GroupLag", answer)
    assert (
        "node n1 has 1.00 GiB of free disk space; 3 messages wait for g, the oldest for 3 min 20 s"
        in run(capsys, "--group", "g")[1]
    )
    exact = (
        "node n1 has 1073741823 bytes of free disk space; 3 messages wait for g, the oldest for"
        " 200000 ms"
    )
    assert exact in run(capsys, "--group", "g", "--bytes")[1]


def test_the_worst_finding_comes_first_and_decides(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cut line still says the most important thing."""
    found = well()
    node_down(found)
    no_leader(found)
    node.answers("ClusterStatus", found)
    status, line = run(capsys)
    assert status == 2 and line.startswith(
        "LEDGERMQ CRITICAL - broker group g1 has no leader; node n2 is down | "
    )
    assert worst([Finding(Severity.UNKNOWN, ""), Finding(Severity.WARNING, "")]) == Severity.WARNING
    assert worst([Finding(Severity.UNKNOWN, ""), Finding(Severity.OK, "")]) == Severity.UNKNOWN


@pytest.mark.parametrize(
    ("lag", "age_ms", "status"),
    [
        (0, None, 0),
        (9, 1, 0),
        (10, 1, 1),
        (99, 59_999, 1),
        (100, 1, 2),
        (1, 60_000, 1),
        (1, 600_000, 2),
        (None, None, 3),
    ],
)
def test_the_lag_of_a_consumer_group(
    node: FakeNode,
    capsys: pytest.CaptureFixture[str],
    lag: int | None,
    age_ms: int | None,
    status: int,
) -> None:
    """From each limit on; an unknown lag is UNKNOWN and not 0."""
    node.answers("ClusterStatus", well())
    answer = pb.GroupLagResponse(status=admin_status())
    answer.topics.add(topic=pb.Name(name="t"), lag=lag, oldest_age_ms=age_ms)
    node.answers("GroupLag", answer)
    limits = (
        "--lag-warning",
        "10",
        "--lag-critical",
        "100",
        "--age-warning",
        "1m",
        "--age-critical",
        "10m",
    )
    got, line = run(capsys, "--group", "shop@billing", *limits)
    assert (
        got == status
        and "shop@billing" in line
        and ("'lag shop@billing'=" in line) == (lag is not None)
    )
    assert node.requests["GroupLag"][0].group == pb.Name(namespace="shop", name="billing")
    assert Limit().severity(1 << 60) == Severity.OK


def test_json_has_the_same_status(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with every finding."""
    found = well()
    node_down(found)
    node.answers("ClusterStatus", found)
    status, line = run(capsys, "--json")
    assert (status, json.loads(line)["status"]) == (1, "warning")
    assert json.loads(line)["findings"] == [{"severity": "warning", "text": "node n2 is down"}]


def test_no_cluster_is_critical(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    """A service that does not answer is down, and the line says where it was looked for."""
    node.stop()
    status, line = run(capsys, "--timeout", "200ms")
    assert status == 2 and line.startswith("LEDGERMQ CRITICAL - ") and node.endpoint in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nonsense",),
        ("--disk-warning", "5"),
        ("--lag-warning", "1"),
        ("--endpoints", "nonsense"),
        ("--context", "absent"),
        ("--tls", "--ca", "/nowhere/ca.pem"),
        ("extra",),
    ],
)
def test_wrong_usage_is_unknown(
    node: FakeNode, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Not 64: a monitoring system takes other statuses for a failure of the service."""
    status, line = run(capsys, *arguments)
    assert (
        status == 3
        and line.startswith("LEDGERMQ UNKNOWN - ")
        and "; " in line
        and not node.requests
    )


def test_no_permission_is_unknown(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster answers; what it would say is not known."""
    node.answers(
        "ClusterStatus",
        pb.ClusterStatusResponse(status=admin_status(40100, "the call carries no credentials")),
    )
    status, line = run(capsys)
    assert status == 3 and "LEDGERMQ_ACCESS_KEY" in line
