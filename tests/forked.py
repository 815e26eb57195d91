"""Nodes and commands of tests as forks of one process that has already imported the product.

A node imports for more than a second of processor time before its first own line, and a command for a quarter; the suite starts hundreds
of each. Python's fork server pays for the imports once; a fork is a process like any other: its own session, streams, environment,
directory, umask, signals and exit status. A start whose environment speaks to the loader or the interpreter (`LD_PRELOAD`,
`PYTHONOPTIMIZE`) is a real one, and so is all that `ledgermq up` starts.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from ledgermq.cli import COMMANDS
from ledgermq.node.process import local

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["ledgermq.cli", "ledgermq.node.process.serving", *{place.partition(":")[0] for place, _ in COMMANDS.values()}],
)
READ_BEFORE_MAIN = ("LD_", "PYTHON")
"""Prefixes of variables that only a new interpreter reads."""

_launch = local.launch


def needs_exec(environment: Mapping[str, str]) -> bool:
    """Whether only a new interpreter would do what these variables say."""
    return any(name.startswith(READ_BEFORE_MAIN) for name, _ in environment.items() ^ os.environ.items())


def launch(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> local.Process:
    """In place of `local.launch`."""
    return _launch(arguments, environment, log) if needs_exec(environment) else Fork(arguments, environment, log)


def run(arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Run `ledgermq ARGUMENTS` to its end, as `subprocess.run` does. Returns its exit status and what it wrote to stdout and stderr."""
    if needs_exec(environment):
        command = [sys.executable, "-m", "ledgermq", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=timeout_s, check=False)
        return done.returncode, done.stdout, done.stderr
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(3)]
    (its_in, our_in), (our_out, its_out), (our_err, its_err) = pipes
    process = CONTEXT.Process(target=_command, args=(list(arguments), dict(environment), _place(), its_in, its_out, its_err), daemon=True)
    with ThreadPoolExecutor(len(pipes)) as pool:
        try:
            process.start()
        finally:
            for its in (its_in, its_out, its_err):
                its.close()
        pool.submit(_feed, our_in, stdin)
        out, err = pool.submit(_drain, our_out), pool.submit(_drain, our_err)
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(["ledgermq", *arguments], timeout_s)
        return process.exitcode, out.result(), err.result()


class Fork:
    """One forked `ledgermq ARGUMENTS`, with what `subprocess.Popen` offers. Returns once the process leads a group of its own."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        began, begins = CONTEXT.Pipe(duplex=False)
        # What a failed test leaves running ends with the test process.
        self._process = CONTEXT.Process(target=_node, args=(list(arguments), dict(environment), _place(), log.name, begins), daemon=True)
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


def _place() -> tuple[str, int]:
    """Directory and umask of this process, which a started one would inherit."""
    (mask,) = re.findall(r"^Umask:\s*(\d+)$", Path("/proc/self/status").read_text(), re.M)
    return os.getcwd(), int(mask, 8)


def _feed(to: Connection, data: bytes) -> None:
    """Write all of it; a command may end without reading it."""
    with to, open(to.fileno(), "wb", closefd=False) as stream, contextlib.suppress(BrokenPipeError):
        stream.write(data)
        stream.flush()


def _drain(of: Connection) -> bytes:
    with of, open(of.fileno(), "rb", closefd=False) as stream:
        return stream.read()


def _node(arguments: list[str], environment: dict[str, str], place: tuple[str, int], log: str, begins: Connection) -> None:
    os.setsid()
    # The fork server is the parent of all its forks, and ends with the process that started it.
    environment["LEDGERMQ_PARENT"] = str(os.getppid())
    nothing = os.open(os.devnull, os.O_RDWR)
    told = os.open(log, os.O_WRONLY | os.O_APPEND)

    def ready() -> None:
        for file in (nothing, told):
            os.close(file)
        begins.send(None)
        begins.close()

    _main(arguments, environment, place, (nothing, nothing, told), ready)


def _command(arguments: list[str], environment: dict[str, str], place: tuple[str, int], *streams: Connection) -> None:
    def ready() -> None:
        for stream in streams:
            stream.close()

    _main(arguments, environment, place, [stream.fileno() for stream in streams], ready)


def _main(
    arguments: list[str], environment: dict[str, str], place: tuple[str, int], streams: Sequence[int], ready: Callable[[], None]
) -> None:
    """Become `ledgermq ARGUMENTS`. `ready` is called once the standard streams are these."""
    directory, mask = place
    os.chdir(directory)
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environment)
    for standard, file in enumerate(streams):
        os.dup2(file, standard)
    ready()
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = ["ledgermq", *arguments]
    from ledgermq.cli import main

    try:
        main()
    finally:
        # A forked process ends without them.
        atexit._run_exitfuncs()
