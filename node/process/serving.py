"""Runs one node as a process: the checks before the start, recovery, and the end. A refused start
gives one sentence; a stop is clean.

Order: platform and secret, the data directory (locked by this process from then on), recovery of
every broker group, then the node itself (`server.py`). The abort files are removed last, after
everything is flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import uvloop

from ledgermq import __version__
from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry, worker_registry_of
from ledgermq.node.process.data_directory import DataDirectory
from ledgermq.node.process.process import check_platform, end_with_parent, exit_on_lost_map
from ledgermq.node.process.server import Node
from ledgermq.node.process.stop_watch import watch_stop
from ledgermq.node.process.store_access import store_of
from ledgermq.node.replica.hosting.hosted_groups import open_assigned
from ledgermq.node.replica.hosting.opening import controller_directory
from ledgermq.node.replica.hosting.replica_assignments import AssignmentFile, assignments_of
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.errors import FatalError
from ledgermq.node.runtime.limits import raise_descriptor_limit
from ledgermq.proto import kernels
from ledgermq.proto.status import ExitCode
from ledgermq.storage.files.errors import StorageError, concerns_files, explain
from ledgermq.storage.files.real_disk import RealDisk

# A stop that takes this much longer than the drain reports what it waits for.
STOP_SLOW_S = 15.0

log = logs.get_logger()


def run(config: NodeConfig) -> int:
    """Run one node, or one worker of a node, until it is told to stop. Returns the exit status.
    Raises FatalError if it cannot start."""
    workers = worker_registry_of(config)
    logs.configure(config.log_level, config.node)
    check_platform()
    end_with_parent()
    exit_on_lost_map()
    raise_descriptor_limit()
    secret = config.secret()
    first_user = config.bootstrap_user()
    logs.hide(
        secret, *config.former_secrets(), *([] if first_user is None else [first_user[1].encode()])
    )
    config.check_exposure()
    # What is wrong with the access to the object store must end the start before anything is
    # opened.
    store_of(config)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, secret, workers))
    except StorageError as error:
        raise _as_fatal(error) from error
    except OSError as error:
        if not concerns_files(error):
            raise
        raise _as_fatal(explain(str(config.data), error)) from error


def _as_fatal(error: StorageError) -> FatalError:
    what, _, remedy = str(error).partition(": ")
    return FatalError(
        error.exit_code or ExitCode.DATA_UNUSABLE, what, remedy or "the node's log says more"
    )


async def _serve(config: NodeConfig, secret: bytes, workers: WorkerRegistry | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    disk = RealDisk()
    directory = DataDirectory(config)
    directory.take(disk)
    began = time.monotonic()
    log.info(
        "starting",
        version=__version__,
        native=kernels.STATE,
        data=str(directory.path),
        cluster=config.cluster_id,
        pid=os.getpid(),
    )
    agreed, lost = AssignmentFile(disk, controller_directory(config)).load()
    if lost:
        log.warning(
            "the remembered broker groups are lost; the configured ones apply until the quorum"
            " reports its own",
            reason=lost,
        )
    assigned, refused = assignments_of(config, agreed)
    for reason in refused.values():
        log.error("broker group not opened", reason=reason)
    hosted = await asyncio.to_thread(open_assigned, config, assigned, disk, store_of(config))
    log.info("recovered", groups=sorted(hosted), seconds=round(time.monotonic() - began, 3))
    node = Node(config, secret, disk, hosted, workers, assigned=assigned, agreed=agreed)
    try:
        await node.start()
        log.info(
            "serving", client_port=config.address.client_port, peer_port=config.address.peer_port
        )
        await stop.wait()
        log.info("stopping")
    finally:
        watch_stop(loop, config.limits.drain_ms / 1000 + STOP_SLOW_S)
        with contextlib.suppress(asyncio.CancelledError):
            await node.stop()
    directory.release()
    log.info("stopped", seconds=round(time.monotonic() - began, 3))
    return 0
