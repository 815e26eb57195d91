"""The official clients of other languages: built from their registries, then run with one process
per scenario.

Each directory `clients/LANGUAGE/` contains one program for the unmodified client; all programs
print the same facts for a scenario.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "clients"
EXAMPLES = Path(__file__).parents[2] / "examples"
BUILD_S, RUN_S = 300, 90


@dataclass(frozen=True)
class Foreign:
    """A built client. `home`: the directory for its logs."""

    command: Sequence[str | Path]
    home: Path

    def run(
        self,
        scenario: str,
        endpoints: str,
        topic: str,
        group: str = "-",
        count: int = 1,
        *,
        tls: bool = False,
    ) -> dict[str, str]:
        """Run a scenario. Returns the printed facts."""
        arguments = [scenario, endpoints, topic, group, str(count), "tls" if tls else "plain"]
        environment = {**os.environ, "HOME": str(self.home), "mq.consoleAppender.enabled": "false"}
        done = subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.home,
            timeout=RUN_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def build(language: str, home: Path) -> Foreign:
    """Fetch and build a client; skips the test with a reason if its tools are missing."""
    return {"node": _node, "java": _java, "go": _go}[language](home)


def _needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")


def _call(command: Sequence[str | Path], cwd: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _node(home: Path) -> Foreign:
    _needs("node", "npm")
    # The version is taken from the example.
    shutil.copy(EXAMPLES / "node/package.json", home)
    shutil.copy(HERE / "node/driver.js", home)
    _call(
        ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"], home
    )
    return Foreign(["node", home / "driver.js"], home)


def _java(home: Path) -> Foreign:
    _needs("mvn", "javac", "java")
    path = home / "classpath"
    maven = ["mvn", "-q", "-B", "-f", EXAMPLES / "java", f"-Dexample.build={home}/example"]
    _call(
        [
            *maven,
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath",
            f"-Dmdep.outputFile={path}",
        ],
        home,
    )
    _call(["javac", "-cp", path.read_text().strip(), "-d", home, HERE / "java/Driver.java"], home)
    return Foreign(["java", "-cp", f"{home}:{path.read_text().strip()}", "Driver"], home)


def _go(home: Path) -> Foreign:
    _needs("go")
    for name in ("go.mod", "driver.go"):
        shutil.copy(HERE / "go" / name, home)
    _call(["go", "mod", "tidy"], home)
    _call(["go", "build", "-o", "driver", "."], home)
    return Foreign([home / "driver"], home)
