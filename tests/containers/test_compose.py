"""compose.yaml for real: three healthy containers carry messages, survive a killed leader, and their volumes pass the audit, in one process
and on a Spark cluster of two more.

Needs a container engine; `.ci/run` provides one and a base image (BASE_IMAGE). Without an engine the tests say so and are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENDPOINTS = "127.0.0.1:8081;127.0.0.1:8082;127.0.0.1:8083"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def engine_missing() -> str | None:
    """Why containers cannot run here, or None."""
    if shutil.which("docker") is None:
        return "no docker command"
    if subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        return "no container engine answers (docker info); .ci/run starts one"
    if compose_command() is None:
        return "neither `docker compose` nor docker-compose is installed"
    return None


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return None


class Project:
    """One compose project under a name of its own."""

    def __init__(self) -> None:
        command = compose_command()
        assert command is not None
        self.name = f"ledgermq{uuid.uuid4().hex[:8]}"
        self._command = [*command, "-p", self.name]

    def run(self, *arguments: str, check: bool = True, timeout: int = 400) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*self._command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
        assert not check or done.returncode == 0, f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def container(self, service: str) -> str:
        return self.run("ps", "-q", service).stdout.strip()

    def ledgermq(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ledgermq", *arguments, "--endpoints", ENDPOINTS, "--timeout", "30s"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """Built, started and healthy; everything of it is removed afterwards, volumes included."""
    reason = engine_missing()
    if reason is not None:
        pytest.skip(reason)
    project = Project()
    try:
        project.run("build")
        project.run("up", "-d")
        yield project
    finally:
        project.run("down", "-v", "--timeout", "20", check=False)


def test_three_containers_carry_messages_and_pass_the_audit(project: Project, tmp_path: Path) -> None:
    """Send, kill the leader's container, send on, consume everything, stop, audit: PASS; one changed byte: FAIL with its place."""
    status = json.loads(project.ledgermq("status", "--wait", "60s", "--strict", "--json"))
    project.ledgermq("topic", "create", "orders")
    lines = tmp_path / "lines"
    lines.write_text("".join(f"order {n}\n" for n in range(400)))
    sent = json.loads(project.ledgermq("send", "--topic", "orders", "--file", str(lines), "--json"))
    assert (sent["acknowledged"], sent["durability"]) == (400, "durable")
    leader = status["groups"][0]["leader"]
    subprocess.run(["docker", "kill", "-s", "KILL", project.container(leader)], check=True, capture_output=True)
    assert json.loads(project.ledgermq("send", "--topic", "orders", "--file", str(lines), "--json"))["acknowledged"] == 400
    project.run("up", "-d")
    project.ledgermq("status", "--wait", "60s", "--strict")
    bodies = project.ledgermq("consume", "--topic", "orders", "--group", "g", "--until-empty", "3s").splitlines()
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
    assert any("n2" in line and "bit-rot" in line for line in audit.stdout.splitlines()), audit.stdout


def flip_a_byte(project: Project) -> None:
    """Change one byte of n2's log inside its volume, from a container of the same image."""
    change = (
        "p='/data/g1/dledger-n2/data/00000000000000000000'; f=open(p,'r+b'); f.seek(5000); b=f.read(1)"
        "; f.seek(5000); f.write(bytes([b[0] ^ 1]))"
    )
    volume = f"{project.name}_n2-data:/data"
    entry = ["--entrypoint", "python3", "ledgermq:local", "-c", change]
    subprocess.run(["docker", "run", "--rm", "-v", volume, *entry], check=True, capture_output=True, env=os.environ)
