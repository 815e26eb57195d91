"""The supervisor of a node that runs its broker groups in several worker processes: starts, watches
and ends them, and serves no clients.

It holds the client port for its workers (`port_hold.py`), creates the directory of their sockets
(`worker_registry.py`), and passes on every stop. A worker that ends by itself has a reason, so the
node ends with it and with its exit status: the others hand over their leaderships and stop. No
worker outlives the supervisor, even if the supervisor is killed (`process.end_with_parent`). All
processes write to one log, each under its own name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ledgermq.node.frontend.routing.worker_registry import VARIABLE
from ledgermq.node.process.port_hold import PortHold
from ledgermq.node.process.process import check_platform, end_with_parent
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_loading import ENV_PREFIX
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.workers import is_first

log = logs.get_logger()


def run(config: NodeConfig, config_file: Path | None, settings: Sequence[str]) -> int:
    """Run the node until it is told to stop. Returns the exit status. Raises FatalError if it
    cannot start, or if a worker was killed."""
    logs.configure(config.log_level, f"{config.node} supervisor")
    check_platform()
    end_with_parent()
    config.secret()
    config.check_exposure()
    hold = PortHold(config.listen_host, config.address.client_port)
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-"))
    try:
        return asyncio.run(_Workers(config, config_file, settings, directory).run())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        hold.release()


def worker_data(config: NodeConfig, worker: str) -> Path:
    """A worker's directory: the node's own for the first worker, a directory inside it for each of
    the others."""
    return config.data if is_first(worker) else config.data / worker


class _Workers:
    """The worker processes of one run of the node."""

    def __init__(
        self, config: NodeConfig, config_file: Path | None, settings: Sequence[str], directory: Path
    ) -> None:
        self._config = config
        self._command = [sys.executable, "-m", "ledgermq", "serve"]
        if config_file is not None:
            self._command += ["--config", str(config_file)]
        for setting in settings:
            self._command += ["--set", setting]
        self._environment = {
            **os.environ,
            VARIABLE: str(directory),
            f"{ENV_PREFIX}PARENT": str(os.getpid()),
        }
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def run(self) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        log.info("starting workers", workers=list(self._config.workers), pid=os.getpid())
        waits: dict[asyncio.Task[int], str] = {}
        try:
            for worker in self._config.workers:
                waits[asyncio.create_task((await self._start(worker)).wait())] = worker
            stopping = asyncio.create_task(stop.wait())
            ended, _ = await asyncio.wait([stopping, *waits], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            first = next((waits[task] for task in ended if task in waits), None)
            if first is not None and not stop.is_set():
                log.error(
                    "a worker ended; the node ends with it",
                    worker=first,
                    status=self._processes[first].returncode,
                )
        finally:
            self._end()
            codes = dict(zip(waits.values(), await asyncio.gather(*waits), strict=True))
        log.info("workers stopped", statuses=codes)
        return _verdict(codes, None if stop.is_set() else first)

    async def _start(self, worker: str) -> asyncio.subprocess.Process:
        command = [
            *self._command,
            "--set",
            f"node={worker}",
            "--set",
            f"data={worker_data(self._config, worker)}",
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, env=self._environment
        )
        self._processes[worker] = process
        return process

    def _end(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)


def _verdict(codes: dict[str, int], first: str | None) -> int:
    """The node's exit status: that of the worker that ended first by itself, otherwise of the first
    that did not stop cleanly."""
    # SIGTERM ended the worker before it handled signals, so it has not opened anything yet: that is
    # a clean stop too.
    worker = first or next(
        (name for name, code in codes.items() if code not in (0, -signal.SIGTERM)), None
    )
    if worker is None:
        return 0
    code = codes[worker]
    if code < 0:
        what = f"worker {worker} was ended by {signal.Signals(-code).name}, and its node with it"
        raise FatalError(
            128 - code,
            what,
            "find out what sent it (the kernel's log reports a lack of memory), then start the node"
            " again",
        )
    return code
