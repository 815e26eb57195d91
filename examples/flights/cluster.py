"""The demo's nodes: started with `ledgermq up`, one of them killed and restarted, all of them
stopped at the end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

NODES = 3
LEDGERMQ = [sys.executable, "-m", "ledgermq"]


class DemoFailure(Exception):
    """The demo cannot continue; the text becomes the reason in its last line."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Delay interrupts until the end of the block: a started process must be registered for the
    shutdown before an exception can be raised.

    A blocked signal mask would do the same here, but the started process would inherit it.
    """
    arrived: list[int] = []
    former = {
        number: signal.signal(number, lambda got, _: arrived.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


BASE_PORTS = range(18_081, 28_081, 50)
PORT_TAKEN = 72
START_ATTEMPTS = 3


def free_base_port(among: Sequence[int] = BASE_PORTS) -> int:
    """A base port P of these such that P, P+1000, P+2000 and P+3000 and their neighbours are free
    (the ports of `ledgermq up`).

    A random one, not the first: two programs that search at the same time should not find the same
    one.
    """
    for base in random.sample(among, len(among)):
        probes = [socket.socket() for _ in range(4 * NODES)]
        try:
            for probe, port in zip(
                probes,
                (base + 1000 * kind + node for kind in range(4) for node in range(NODES)),
                strict=True,
            ):
                probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise DemoFailure(f"no free ports between {min(among)} and {max(among) + 3000 + NODES}")


class Nodes:
    """Three nodes on loopback under one work directory."""

    def __init__(self, work: Path) -> None:
        self.data = work / "data"
        self.base_port = 0
        self._log = (work / "up.log").open("ab")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._console: subprocess.Popen[bytes] | None = None

    @property
    def endpoints(self) -> str:
        return ";".join(f"127.0.0.1:{self.base_port + k}" for k in range(NODES))

    def start(self, ready: Callable[[], None]) -> None:
        """Start the nodes; returns when `up` reports that every node is ready and every group has a
        leader.

        If another program takes a port between the search and its use, the start is repeated with
        other ports.
        """
        for _ in range(START_ATTEMPTS):
            self.base_port = free_base_port()
            status = self._up(ready)
            if status is None:
                return
            if status != PORT_TAKEN:
                break
        raise DemoFailure(
            f"the cluster did not start (exit status {status}); see up.log and data/n*/node.log"
        )

    def _up(self, ready: Callable[[], None]) -> int | None:
        """None if it runs, otherwise its exit status."""
        command = [
            *LEDGERMQ,
            "up",
            "--nodes",
            str(NODES),
            "--data",
            str(self.data),
            "--base-port",
            str(self.base_port),
        ]
        with undisturbed():
            up = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True
            )
            self._processes.append(up)
        assert up.stdout is not None
        for line in up.stdout:
            if line.startswith(b"ready: endpoints="):
                ready()
                return None
        return up.wait()

    def run(self, *arguments: str) -> tuple[int, str]:
        """One `ledgermq` command against this cluster: exit status and stdout."""
        environment = {**os.environ, "LEDGERMQ_ENDPOINTS": self.endpoints}
        done = subprocess.run(
            [*LEDGERMQ, *arguments], capture_output=True, text=True, env=environment, timeout=120
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def json(self, *arguments: str) -> Any:
        status, text = self.run(*arguments, "--json")
        if status != 0:
            raise DemoFailure(
                f"ledgermq {' '.join(arguments)}:"
                f" {text.strip().splitlines()[-1] if text.strip() else status}"
            )
        return json.loads(text)

    def leader(self) -> tuple[str, str]:
        """(node, broker group) of the first group's leader."""
        group = self.json("status", "--wait", "10s")["groups"][0]
        return group["leader"], group["group"]

    def kill(self, node: str, group: str) -> None:
        """SIGKILL one node; its process id is in the group's abort file (RocketMQ's convention)."""
        os.kill(int((self.data / node / group / "abort").read_text().strip()), signal.SIGKILL)

    def restart(self, node: str) -> None:
        own = ["--set", f"node={node}", "--set", f"data={self.data / node}"]
        command = [*LEDGERMQ, "serve", "--config", str(self.data / "cluster.yaml"), *own]
        with undisturbed():
            self._processes.append(
                subprocess.Popen(
                    command, stdout=self._log, stderr=self._log, start_new_session=True
                )
            )

    def resume(self) -> None:
        """Start the stopped nodes again, at the same addresses."""
        if (status := self._up(lambda: None)) is not None:
            raise DemoFailure(f"the cluster did not start again (exit status {status}); see up.log")

    def open_console(self) -> str:
        """Start the console of these nodes; returns its address. It runs until `close_console`,
        also while no node does."""
        command = [*LEDGERMQ, "console", "--listen", "127.0.0.1:0", "--endpoints", self.endpoints]
        with undisturbed():
            self._console = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True
            )
        assert self._console.stdout is not None
        line = self._console.stdout.readline().decode().strip()
        if not line.startswith("ready: console="):
            raise DemoFailure(
                f"the console did not start (exit status {self._console.wait()}); see up.log"
            )
        return line.removeprefix("ready: console=")

    def close_console(self) -> None:
        """Nothing happens where none is open."""
        if self._console is not None and self._console.poll() is None:
            self._console.terminate()
            self._console.wait()

    def stop(self) -> list[int]:
        """SIGTERM to every process started here, SIGKILL after 30 s; returns the exit statuses."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        statuses = []
        for process in self._processes:
            try:
                statuses.append(process.wait(timeout=30))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                statuses.append(process.wait())
        return statuses


class Traffic:
    """One process of the official client; its JSON lines are passed to `record`."""

    def __init__(
        self,
        role: str,
        endpoints: str,
        messages: int,
        work: Path,
        record: Callable[[dict[str, Any]], None],
    ) -> None:
        self._errors = (work / f"{role}.log").open("ab")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "examples.flights.traffic",
                role,
                "--endpoints",
                endpoints,
                "--messages",
                str(messages),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={**os.environ, "HOME": str(work)},
        )
        self._reader = threading.Thread(target=self._read, args=(record,), daemon=True)
        self._reader.start()

    def _read(self, record: Callable[[dict[str, Any]], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            record(json.loads(line))

    def tell(self, line: str) -> None:
        """Write one line to the process's stdin; a process that has ended shows by its exit
        status."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._reader.join(timeout=5)
