"""Nodes of test clusters as forks of one process that has already imported the product.

A node imports for more than a second of processor time before its first own line, and the suite starts hundreds of them. Python's fork
server pays for the imports once; a fork is a process like any other: its own session, log, environment, signals and exit status. A start
whose environment speaks to the loader or the interpreter (`LD_PRELOAD`, `PYTHONOPTIMIZE`) is a real one, and so is all that
`ledgermq up` starts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO

from ledgermq.node.process import local

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ledgermq.cli", "ledgermq.node.process.serving"])
READ_BEFORE_MAIN = ("LD_", "PYTHON")
"""Prefixes of variables that only a new interpreter reads."""

_launch = local.launch


def launch(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> local.Process:
    """In place of `local.launch`."""
    changed = environment.items() ^ os.environ.items()
    if any(name.startswith(READ_BEFORE_MAIN) for name, _ in changed):
        return _launch(arguments, environment, log)
    return Fork(arguments, environment, log)


class Fork:
    """One forked `ledgermq ARGUMENTS`, with what `subprocess.Popen` offers. Returns once the process leads a group of its own."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        began, begins = CONTEXT.Pipe(duplex=False)
        # What a failed test leaves running ends with the test process.
        self._process = CONTEXT.Process(target=_run, args=(list(arguments), dict(environment), log.name, begins), daemon=True)
        self._process.start()
        begins.close()
        began.recv()
        began.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("ledgermq", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], environment: dict[str, str], log: str, begins: Connection) -> None:
    os.setsid()
    os.environ.clear()
    # The fork server is the parent of all its forks, and ends with the process that started it.
    os.environ.update(environment, LEDGERMQ_PARENT=str(os.getppid()))
    nothing = os.open(os.devnull, os.O_RDWR)
    told = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard, file in enumerate((nothing, nothing, told)):
        os.dup2(file, standard)
    os.close(nothing)
    os.close(told)
    begins.send(None)
    begins.close()
    sys.argv = ["ledgermq", *arguments]
    from ledgermq.cli import main

    main()
