"""Audits that users start from a page: `ledgermq audit` as a process of its own, one at a time, and
the last verdicts.

Law: an audit makes its calls as its user. The secret is in the environment of its process, never in
arguments, files or records. When an audit ends, or the console, its process and its directory are
gone. Verdicts are kept in memory, and go with the console.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from ledgermq.client.api.connection import AsyncConnection
from ledgermq.client.errors import Refused
from ledgermq.proto import units
from ledgermq.proto.status import Code

COMMAND = (sys.executable, "-P", "-m", "ledgermq", "audit", "--engine", "local")
KEPT = 20
"""Verdicts in memory, the newest."""
FINDINGS_SHOWN = 200
LONGEST_S = 3600.0
"""An audit that takes longer is ended."""
ENDING_S = 5.0
"""An interrupted audit releases the files on the nodes within this time, or is killed."""
NICENESS = 10
VERDICTS = {"PASS": "OK", "FAIL": "CRITICAL", "INCOMPLETE": "WARNING"}
"""Verdict → how it is coloured."""
SAID_BYTES = 4096
FOLDER = "ledgermq-console-audit-"


@dataclass(slots=True)
class Run:
    """One audit, running or ended. `user`: empty without authentication. `took_s` None: it runs.
    `verdict` is empty, and `error` says why, if it ended without one. `report`: the object of
    `ledgermq audit --json`. `findings`: the first of `count`."""

    number: int
    user: str
    began: datetime
    took_s: float | None = None
    verdict: str = ""
    error: str = ""
    count: int = 0
    report: Mapping[str, Any] = field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()
    directory: Path | None = None

    @property
    def colour(self) -> str:
        return VERDICTS.get(self.verdict, "UNKNOWN")

    @property
    def said(self) -> str:
        """The last line of the process on stderr: its progress, or its error. Empty: it said
        nothing."""
        if self.directory is None:
            return ""
        with suppress(FileNotFoundError), open(self.directory / "said", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - SAID_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
            return next((line for line in reversed(lines) if line.strip()), "")
        return ""

    def read(self) -> None:
        """Take over what the process wrote. Raises OSError if it wrote no verdict."""
        assert self.directory is not None
        report = json.loads(
            (self.directory / "findings" / "verdict.json").read_text(encoding="utf-8")
        )
        with open(self.directory / "findings" / "findings.jsonl", encoding="utf-8") as file:
            self.findings = [json.loads(line) for line in islice(file, FINDINGS_SHOWN)]
        self.count = len(report.pop("findings"))
        self.report, self.verdict = report, report["verdict"]


class Audits:
    """The audits of one console. `record` writes a line of its log; `wire`: the TLS options of its
    connections to the nodes."""

    def __init__(
        self,
        record: Callable[[Mapping[str, Any]], None],
        wire: Sequence[str] = (),
        *,
        command: Sequence[str] = COMMAND,
        longest_s: float = LONGEST_S,
    ) -> None:
        self.running: Run | None = None
        self.ended: deque[Run] = deque(maxlen=KEPT)
        """The newest first."""
        self._record = record
        self._wire = wire
        self._command = command
        self._longest_s = longest_s
        self._started = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, connection: AsyncConnection) -> None:
        """Start an audit as the user of this connection. Raises Refused while another one runs."""
        if (run := self.running) is not None:
            whose = f" of {run.user}" if run.user else ""
            problem = f"an audit{whose} has been running since {run.began:%Y-%m-%d %H:%M:%S} UTC"
            raise Refused(
                Code.PRECONDITION_FAILED, problem, "wait for its verdict: one audit runs at a time"
            )
        self._started += 1
        user = "" if connection.credentials is None else connection.credentials.access_key
        self.running = Run(self._started, user, datetime.now(UTC))
        self._task = asyncio.create_task(self._run(self.running, connection))

    def find(self, number: str) -> Run | None:
        """The audit with a verdict that has this number."""
        return next((run for run in self.ended if run.verdict and str(run.number) == number), None)

    async def close(self) -> None:
        """End the audit that runs, and wait until nothing of it is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, run: Run, connection: AsyncConnection) -> None:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix=FOLDER) as directory:
                run.directory = Path(directory)
                await self._audit(run, connection)
        except TimeoutError:
            run.error = (
                f"it took longer than {units.duration_words(round(1000 * self._longest_s))} and was"
                " ended; use ledgermq audit"
            )
        except OSError as error:
            run.error = f"the audit cannot run here ({error})"
        finally:
            # Also if the console ends.
            run.directory, self.running = None, None
            run.took_s = time.monotonic() - began
            ended = (
                {"verdict": run.verdict, "findings": run.count}
                if run.verdict
                else {"error": run.error or "ended with the console"}
            )
            self._record(
                {
                    "event": "audit",
                    "user": run.user,
                    "number": run.number,
                    "took_s": round(run.took_s, 3),
                    **ended,
                }
            )
        self.ended.appendleft(run)

    async def _audit(self, run: Run, connection: AsyncConnection) -> None:
        """Run the process to its end. Raises OSError and TimeoutError."""
        assert run.directory is not None
        options = (
            "--endpoints",
            ";".join(map(str, connection.addresses)),
            "--timeout",
            f"{round(1000 * connection.timeout_s)}ms",
        )
        arguments = (
            *self._command,
            *options,
            *self._wire,
            "--findings",
            str(run.directory / "findings"),
        )
        nothing = asyncio.subprocess.DEVNULL
        with open(run.directory / "said", "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=nothing,
                stdout=nothing,
                stderr=output,
                env=_environment(connection),
            )
        try:
            with suppress(ProcessLookupError):
                os.setpriority(
                    os.PRIO_PROCESS,
                    process.pid,
                    min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS),
                )
            status = await asyncio.wait_for(process.wait(), self._longest_s)
        finally:
            await _end(process)
        try:
            await asyncio.to_thread(run.read)
        except FileNotFoundError:
            run.error = (
                run.said.removeprefix("error: ") or f"its process ended with status {status}"
            )


def _environment(connection: AsyncConnection) -> dict[str, str]:
    """That of the console, with the keys of the connection instead of any other settings of
    LedgerMQ's commands."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LEDGERMQ_") or name == "LEDGERMQ_PURE"
    }
    keys = connection.credentials
    return (
        kept
        if keys is None
        else {
            **kept,
            "LEDGERMQ_ACCESS_KEY": keys.access_key,
            "LEDGERMQ_SECRET_KEY": keys.secret_key,
        }
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt the process if it runs, and kill it if that is not enough."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), ENDING_S)
        except TimeoutError:
            process.kill()
            await process.wait()
