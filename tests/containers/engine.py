"""Builds, starts, queries and removes compose projects of `compose.yaml`, with any container
engine.

All container tests use this module. The faults are in `faults.py`, the clients in `traffic.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "ledgermq:local"
NODES = {"n1": (8081, 11081), "n2": (8082, 11082), "n3": (8083, 11083)}
"""Node → the client port and the HTTP port that compose.yaml publishes."""
ENDPOINTS = ";".join(f"127.0.0.1:{client}" for client, _ in NODES.values())
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens what containers publish, past any proxy of the environment."""
DOCKER_S = 60
LOCK_FILE = "ledgermq-compose.lock"


def engine_missing() -> str | None:
    """The reason why containers cannot run here, or None."""
    if shutil.which("docker") is None:
        return "no docker command"
    if subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        return "no container engine answers (docker info); .ci/with-engine starts one"
    if compose_command() is None:
        return "neither `docker compose` nor docker-compose is installed"
    return None


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return None


def docker(*arguments: str, check: bool = True, merged: bool = False) -> str:
    """The output of an engine command; `merged`: with its stderr, on which container logs are
    printed."""
    done = subprocess.run(
        ["docker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        timeout=DOCKER_S,
    )
    assert not check or done.returncode == 0, (
        f"docker {' '.join(arguments)}: {done.stdout[-2000:]}{(done.stderr or '')[-2000:]}"
    )
    return done.stdout.strip()


class Project:
    """A compose project with a unique name."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """`variables`: the environment variables of compose.yaml."""
        command = compose_command()
        assert command is not None
        self.name = f"ledgermq{uuid.uuid4().hex[:8]}"
        self.network = f"{self.name}_default"
        self._command = [*command, "-p", self.name]
        self._environment = {**os.environ, **(variables or {})}

    def run(
        self, *arguments: str, check: bool = True, timeout: int = 400, files: Sequence[Path] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a compose command; `files` override compose.yaml."""
        over = [
            part
            for file in ([ROOT / "compose.yaml", *files] if files else ())
            for part in ("-f", str(file))
        ]
        command = [*self._command, *over, *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self._environment,
        )
        assert not check or done.returncode == 0, (
            f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        return done

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        labels = [
            f"label=com.docker.compose.{name}={value}"
            for name, value in (("project", self.name), ("service", service))
        ]
        found = docker("ps", "-aq", "-f", labels[0], "-f", labels[1])
        assert found and "\n" not in found, f"containers of {service}: {found!r}"
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        (found,) = json.loads(docker("inspect", self.container(service)))
        assert isinstance(found, dict)
        return found

    def ledgermq(self, *arguments: str) -> str:
        """Run a command against all nodes from outside the containers. Returns its output."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ledgermq",
                *arguments,
                "--endpoints",
                ENDPOINTS,
                "--timeout",
                "30s",
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout


@contextmanager
def default_ports() -> Iterator[None]:
    """Keeps every other test away from the default ports of this machine, which clusters in
    containers publish or use directly."""
    with (Path(tempfile.gettempdir()) / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def built(project: Project) -> Iterator[Project]:
    """A project with its image built, which has the default ports; afterwards containers and
    volumes are removed."""
    with default_ports():
        try:
            project.run("build")
            yield project
        finally:
            project.run("down", "-v", "--timeout", "20", check=False)
