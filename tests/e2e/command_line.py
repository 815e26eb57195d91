"""Runs the `ledgermq` command as a process against a running cluster, and returns its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.node.process.local import LocalCluster
from tests import forked
from tests.cluster import wait_for

LEDGERMQ = [sys.executable, "-m", "ledgermq"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit status and output of one command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The single JSON object on stdout."""
        (line,) = self.out.splitlines()
        found = json.loads(line)
        assert found["v"] == 1
        return found

    @property
    def lines(self) -> list[Any]:
        """The JSON Lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The error line: the last line on stderr, with a remedy and without a traceback before
        it."""
        lines = self.err.splitlines()
        assert lines and lines[-1].startswith("error: ") and "; " in lines[-1], self.err
        assert "Traceback" not in self.err
        assert sum(line.startswith("error: ") for line in lines) == 1
        return lines[-1]


def environment(endpoints: str) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith("LEDGERMQ_")}
    return {**own, "LEDGERMQ_ENDPOINTS": endpoints}


class CommandLine:
    """Runs commands against one cluster, through all of its endpoints."""

    def __init__(
        self, endpoints: str, *more: str | Path, keys: tuple[str, str] | None = None
    ) -> None:
        """`more`: options added to every command. `keys`: the credentials of every command."""
        self.endpoints = endpoints
        self._more = more
        self._keys = (
            {} if keys is None else {"LEDGERMQ_ACCESS_KEY": keys[0], "LEDGERMQ_SECRET_KEY": keys[1]}
        )

    @classmethod
    def of(cls, cluster: LocalCluster) -> CommandLine:
        return cls(cluster.endpoints)

    def run(self, *arguments: str | Path, stdin: bytes = b"", timeout_s: float = 90) -> Outcome:
        environ = {**environment(self.endpoints), **self._keys}
        status, out, err = forked.run(
            [*map(str, arguments), *map(str, self._more)], environ, stdin, timeout_s
        )
        return Outcome(status, out.decode(errors="replace"), err.decode())

    def ok(self, *arguments: str | Path, stdin: bytes = b"", timeout_s: float = 90) -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(*arguments, stdin=stdin, timeout_s=timeout_s)
        assert outcome.status == 0, (
            f"{arguments}: exit status {outcome.status}\n{outcome.out}\n{outcome.err}"
        )
        return outcome

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start a command without waiting for its end; all its streams are pipes."""
        command = [*LEDGERMQ, *map(str, arguments), *map(str, self._more)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**environment(self.endpoints), **self._keys},
        )

    def send_lines(self, topic: str, bodies: Iterable[str], *more: str) -> Any:
        """Run `send --file -`. Returns its summary."""
        return self.ok(
            "send",
            "--topic",
            topic,
            "--file",
            "-",
            "--json",
            *more,
            stdin="".join(f"{b}\n" for b in bodies).encode(),
        ).json

    def consume_all(self, topic: str, group: str, *more: str) -> list[str]:
        """The bodies that `consume --until-empty` printed."""
        return self.ok(
            "consume", "--topic", topic, "--group", group, "--until-empty", "1s", *more
        ).out.splitlines()


def described(cli: CommandLine, topic: str, least: int = 0) -> dict[str, Any]:
    """What `topic describe` reports once it counts at least `least` messages. The ends of queues
    whose leaders did not answer the asked node in time are null, and so is their sum; or they are
    those of a replica that lags behind."""

    def found() -> dict[str, Any] | None:
        answer: dict[str, Any] = cli.ok("topic", "describe", topic, "--json").json
        return answer if answer["messages"] is not None and answer["messages"] >= least else None

    return wait_for(found, 60, f"{least} messages of topic {topic}")


def counted(cli: CommandLine, topic: str, least: int) -> int:
    """Wait until `topic describe` reports at least `least` messages. Returns the number."""
    return int(described(cli, topic, least)["messages"])
