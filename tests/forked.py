"""Runs nodes and commands of tests as forks of one process that has already imported the product.

The imports take more than a second of CPU time for a node and a quarter of a second for a command,
and the suite starts hundreds of each. Python's fork server imports the product once. A fork has its
own session, streams, environment, directory, umask, signals and exit status. If the environment
configures the loader, the interpreter or imports (`LD_PRELOAD`, `PYTHONOPTIMIZE`, `LEDGERMQ_PURE`),
a new interpreter is started instead. So are all processes that `ledgermq up` starts.
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
from ledgermq.proto import kernels

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "ledgermq.cli",
        "ledgermq.node.process.serving",
        *{place.partition(":")[0] for place, _ in COMMANDS.values()},
    ],
)
READ_BEFORE_MAIN = ("LD_", "PYTHON", kernels.SWITCH)
"""Prefixes of variables that only a new interpreter reads."""

_launch = local.launch


def needs_exec(environment: Mapping[str, str]) -> bool:
    """Whether these variables take effect only in a new interpreter."""
    return any(
        name.startswith(READ_BEFORE_MAIN) for name, _ in environment.items() ^ os.environ.items()
    )


def launch(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> local.Process:
    """Replaces `local.launch`."""
    return (
        _launch(arguments, environment, log)
        if needs_exec(environment)
        else Fork(arguments, environment, log)
    )


def run(
    arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes, timeout_s: float
) -> tuple[int, bytes, bytes]:
    """Run `ledgermq ARGUMENTS` to its end, as `subprocess.run` does. Returns its exit status,
    stdout and stderr."""
    if needs_exec(environment):
        command = [sys.executable, "-m", "ledgermq", *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(3)]
    (its_in, our_in), (our_out, its_out), (our_err, its_err) = pipes
    process = CONTEXT.Process(
        target=_command,
        args=(list(arguments), dict(environment), _place(), its_in, its_out, its_err),
        daemon=True,
    )
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
    """A forked `ledgermq ARGUMENTS` with the interface of `subprocess.Popen`. The constructor
    returns once the process leads its own process group."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> None:
        began, begins = CONTEXT.Pipe(duplex=False)
        # Processes that a failed test leaves running end with the test process.
        self._process = CONTEXT.Process(
            target=_node,
            args=(list(arguments), dict(environment), _place(), log.name, begins),
            daemon=True,
        )
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
    """The directory and umask of this process, which a new process would inherit."""
    (mask,) = re.findall(r"^Umask:\s*(\d+)$", Path("/proc/self/status").read_text(), re.M)
    return os.getcwd(), int(mask, 8)


def _feed(to: Connection, data: bytes) -> None:
    """Write all data; a command may end before it has read it."""
    with to, open(to.fileno(), "wb", closefd=False) as stream, contextlib.suppress(BrokenPipeError):
        stream.write(data)
        stream.flush()


def _drain(of: Connection) -> bytes:
    with of, open(of.fileno(), "rb", closefd=False) as stream:
        return stream.read()


def _node(
    arguments: list[str],
    environment: dict[str, str],
    place: tuple[str, int],
    log: str,
    begins: Connection,
) -> None:
    os.setsid()
    # The fork server is the parent of all forks, and ends with the process that started it.
    environment["LEDGERMQ_PARENT"] = str(os.getppid())
    nothing = os.open(os.devnull, os.O_RDWR)
    told = os.open(log, os.O_WRONLY | os.O_APPEND)

    def ready() -> None:
        for file in (nothing, told):
            os.close(file)
        begins.send(None)
        begins.close()

    _main(arguments, environment, place, (nothing, nothing, told), ready)


def _command(
    arguments: list[str], environment: dict[str, str], place: tuple[str, int], *streams: Connection
) -> None:
    def ready() -> None:
        for stream in streams:
            stream.close()

    _main(arguments, environment, place, [stream.fileno() for stream in streams], ready)


def _main(
    arguments: list[str],
    environment: dict[str, str],
    place: tuple[str, int],
    streams: Sequence[int],
    ready: Callable[[], None],
) -> None:
    """Turn this process into `ledgermq ARGUMENTS`. `ready` is called once the standard streams are
    redirected."""
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
        # A process forked by multiprocessing does not run its exit functions.
        atexit._run_exitfuncs()
