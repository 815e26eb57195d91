"""Shared code of the peers' scripts: the package cache, processes and ports, and the form of a row.

This module knows no peer. Packages come from ordinary registries through their ordinary clients
into a cache directory outside the repository (`$XDG_CACHE_HOME/ledgermq-peers`); data goes to the
caller's directory. Only processes started here are ended, by id.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ledgermq-peers"
HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
CONFIGURATIONS = HERE / "conf"
TICKS = os.sysconf("SC_CLK_TCK")
START_S = 90.0
INSTALL_S = 900.0

DURABLE = "durable on a majority"
"""On stable storage on a majority of the replicas before it is acknowledged: LedgerMQ's
`durable`."""
MEMORY = "memory of a majority"
"""Received by a majority before it is acknowledged, in the page cache or in the process."""
WEAKER = "fewer than a majority"

SINGLES, BATCHES, OFFICIAL = "single messages", "batches", "RocketMQ's official Java client"
"""Kinds of sending: only rows of one kind and durability class are compared."""


class Skip(Exception):
    """A peer that cannot run here, with the reason."""


@dataclass(frozen=True)
class Load:
    """The load for every client."""

    body_bytes: int
    seconds: float
    warm_up_s: float


@dataclass
class Row:
    """One figure of one peer in one configuration."""

    system: str
    version: str
    durability_class: str
    durability: str
    client: str
    batching: str
    result: Mapping[str, float]
    """`messages_per_s`, `p50_ms`, `p99_ms` of acknowledgements, as the client saw them."""
    body_bytes: int
    server_cpu_us_a_message: float | None = None
    replicas: int = 3
    notes: str = ""
    kind: str = SINGLES

    def document(self) -> dict[str, Any]:
        found = {key: value for key, value in vars(self).items() if key != "result"}
        return {
            **found,
            **{key: self.result[key] for key in ("messages_per_s", "p50_ms", "p99_ms")},
        }


def tool(name: str) -> str:
    """The path of a program on this machine."""
    found = shutil.which(name)
    if found is None:
        raise Skip(f"no {name} on this machine")
    return found


def install(
    what: str, command: Sequence[str], directory: Path, extra: Mapping[str, str] | None = None
) -> None:
    """One step of an installation into the cache."""
    directory.mkdir(parents=True, exist_ok=True)
    print(f"installing {what}", file=sys.stderr, flush=True)
    environment = {**os.environ, **(extra or {})}
    with (directory / "install.log").open("ab") as log:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                stdout=log,
                stderr=log,
                env=environment,
                timeout=INSTALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Skip(f"{what} was not installed within {INSTALL_S:g} s") from None
    if done.returncode:
        raise Skip(f"{what} could not be installed ({command[0]} ended with {done.returncode})")


def go_build(name: str, modules: Sequence[str], packages: Mapping[str, str]) -> Path:
    """Programs of Go modules, built in their own module: {program: package}; a package that is a
    file is one of our clients."""
    go, directory = tool("go"), CACHE / name
    if all((directory / "bin" / program).exists() for program in packages):
        return directory / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "go.mod").exists():
        install(f"{name}: module", [go, "mod", "init", "peers"], directory)
    flags = {"GOFLAGS": "-mod=mod"}
    install(", ".join(modules), [go, "get", *modules], directory, flags)
    for program, package in packages.items():
        install(program, [go, "build", "-o", f"bin/{program}", package], directory, flags)
    return directory / "bin"


def go_client(source: str, directory: Path) -> Path:
    """One of our Go clients, built in the module of `go_build`; rebuilt when it changed."""
    go, name = tool("go"), source.removesuffix(".go")
    text, place = (CLIENTS / source).read_text(), directory.parent / name / "main.go"
    program = directory / name
    if not (program.exists() and place.exists() and place.read_text() == text):
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        install(
            source,
            [go, "build", "-o", f"bin/{name}", f"./{name}"],
            directory.parent,
            {"GOFLAGS": "-mod=mod"},
        )
    return program


def jars(name: str, artifacts: Sequence[str]) -> str:
    """A class path of Maven artifacts (`group:artifact:version`) and their dependencies."""
    maven, directory = tool("mvn"), CACHE / name
    lines = []
    for artifact in artifacts:
        group, one, version = artifact.split(":")
        lines.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{one}</artifactId><version>{version}</version></dependency>"
        )
    model = (
        "<project"
        ' xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>peers</groupId>'
    )
    model += f"<artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging><dependencies>"
    model += "".join(lines) + "</dependencies></project>\n"
    file = directory / "pom.xml"
    if not (file.exists() and file.read_text() == model and any((directory / "lib").glob("*.jar"))):
        shutil.rmtree(directory / "lib", ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(model)
        install(
            ", ".join(artifacts),
            [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
            directory,
        )
    return f"{directory / 'lib'}/*"


def java_client(
    source: str, class_path: str, arguments: Sequence[object], timeout_s: float
) -> dict[str, float]:
    """Run one of our Java clients from its source; it prints one JSON line."""
    # Clients write their logs below user.home.
    java = [tool("java"), "-Xmx1g", f"-Duser.home={CACHE / 'home'}", "-cp", class_path]
    return client([*java, str(CLIENTS / source), *map(str, arguments)], timeout_s)


def client(command: Sequence[str], timeout_s: float) -> dict[str, float]:
    """Run a client to its end; the last line of its output is the result."""
    result: dict[str, float] = json.loads(output(command, timeout_s).strip().splitlines()[-1])
    return result


def output(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> str:
    """The output of a client. If it fails, its errors are passed to stderr, and their last line is
    the reason."""
    full = {**os.environ, **(environment or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=full
    ) as process:
        try:
            told, errors = process.communicate(timeout=timeout_s)
            failure = f"the client ended with {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            process.kill()
            told, errors = process.communicate()
            failure = f"the client did not end within {timeout_s:g} s"
        except BaseException:  # also on Ctrl-C it must not keep running
            process.kill()
            raise
    if failure:
        print(told[-4000:], errors[-4000:], file=sys.stderr, flush=True)
        # Lines of a stack trace are indented.
        last = next(
            (line for line in reversed(errors.splitlines()) if line and not line[0].isspace()),
            "it said nothing",
        )
        raise RuntimeError(f"{failure}: {last}")
    return told


def configuration(file: str, /, **values: object) -> str:
    """One of the committed configurations with its placeholders filled in."""
    return string.Template((CONFIGURATIONS / file).read_text()).substitute(
        {key: str(value) for key, value in values.items()}
    )


def free_ports(count: int, span: int = 1) -> list[int]:
    """Free ports on loopback, each followed by `span` − 1 further free ones."""
    found: list[int] = []
    candidate = 20_000 + os.getpid() % 10_000
    while len(found) < count:
        candidate += span
        if all(_is_free(candidate + k) for k in range(span)):
            found.append(candidate)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Processes:
    """The servers of one peer, each the leader of its own session."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[str]:
        log = (self.directory / f"{name}.log").open("ab")
        more.setdefault("stdout", log)
        with log:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=self.directory,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                text=True,
                **more,
            )
        self.started.append(process)
        return process

    def check(self) -> None:
        for process in self.started:
            if process.poll() is not None:
                raise RuntimeError(
                    f"a server ended with {process.returncode}; see {self.directory}"
                )

    def cpu_s(self) -> float:
        """Processor time of all sessions so far, without ended processes."""
        return sum((int(fields[11]) + int(fields[12])) / TICKS for fields in self._living())

    def _living(self) -> Iterator[list[str]]:
        """/proc/PID/stat, from the state on, of every running process of our sessions."""
        sessions = {process.pid for process in self.started}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) in sessions and fields[0] != "Z":
                yield fields

    @property
    def living(self) -> int:
        return len(list(self._living()))

    def end(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self.started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)
        # Processes that a server started and left behind.
        for fields in self._living():
            with suppress(ProcessLookupError):
                os.killpg(int(fields[2]), signal.SIGKILL)


@contextmanager
def servers(directory: Path) -> Iterator[Processes]:
    """Servers that are ended, and their directory removed, when the block ends; after a failure the
    ends of their logs are printed."""
    work = Path(tempfile.mkdtemp(prefix="peer-", dir=directory))
    processes = Processes(work)
    try:
        yield processes
    except Exception:
        # After any failure print the servers' logs, which are about to be removed.
        for log in sorted(work.rglob("*.log")):
            print(
                f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}",
                file=sys.stderr,
                flush=True,
            )
        raise
    finally:
        processes.end()
        shutil.rmtree(work, ignore_errors=True)


def measured(
    processes: Processes, work: Callable[[], dict[str, float]]
) -> tuple[dict[str, float], float | None]:
    """A client's result, and the servers' processor time per acknowledged message if the client
    says how many (`total`)."""
    processes.check()
    before = processes.cpu_s()
    result = work()
    total = result.get("total")
    return result, round((processes.cpu_s() - before) / total * 1e6, 1) if total else None


def main(system: str, rows: Callable[[Path, Load], Iterator[Row]]) -> None:
    """The command line of a peer's script: prints one JSON document on stdout."""
    parser = argparse.ArgumentParser(
        description=f"{system}: installed, started, measured and stopped"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="directory for data"
    )
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up-s", type=float, default=30.0)
    options = parser.parse_args()
    # Ends the servers on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    document: dict[str, Any] = {"system": system, "rows": [], "skipped": None}
    try:
        for row in rows(
            options.directory, Load(options.body_bytes, options.seconds, options.warm_up_s)
        ):
            print(
                f"{system}: {row.durability}: {row.result['messages_per_s']:,.0f} messages/s",
                file=sys.stderr,
                flush=True,
            )
            document["rows"].append(row.document())
    except Skip as reason:
        document["skipped"] = str(reason)
    # the rows before it stand
    except (RuntimeError, subprocess.SubprocessError, OSError) as failure:
        document["skipped"] = (
            f"after {len(document['rows'])} rows: {type(failure).__name__}: {failure}"[:300]
        )
    print(json.dumps(document))
