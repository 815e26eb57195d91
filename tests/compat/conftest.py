"""The drivers of RocketMQ's own store classes, compiled once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "java"
# The store releases its maps through classes that newer runtimes hide.
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
]
Driver = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Runs a driver by its name, and tells what it printed: its facts by name."""
    compiler = shutil.which("javac")
    if shutil.which("mvn") is None or compiler is None:
        pytest.skip("no Maven or no JDK here")
    # Spark's tests name a Java of their own, which has no compiler.
    home = Path(compiler).resolve().parents[1]
    environment = {**os.environ, "JAVA_HOME": str(home)}
    build = tmp_path_factory.mktemp("driver")
    goals = [
        "compile",
        "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath",
        f"-Dmdep.outputFile={build}/classpath",
    ]
    maven = ["mvn", "-q", "-B", "-f", PROJECT, f"-Dcompat.build={build}", *goals]
    done = subprocess.run(maven, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    classes = f"{build}/classes:{(build / 'classpath').read_text().strip()}"

    def run(name: str, *arguments: object) -> dict[str, str]:
        command = [home / "bin/java", *OPENS, "-cp", classes, name, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=build)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    return run
