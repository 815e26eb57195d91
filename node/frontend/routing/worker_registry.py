"""The workers of this node: their names, and the sockets on which they listen for each other.

The workers meet on Unix sockets in a directory that only their user can enter; the supervisor
creates it for one run of the node. On `NAME.calls` a worker takes calls that another worker passes
on (`worker_proxy.py`); on `NAME.http` it answers the worker that serves the node's HTTP pages
(`node_pages.py`). This module opens no socket.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_loading import ENV_PREFIX
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.proto.workers import is_first, node_of

VARIABLE = f"{ENV_PREFIX}WORKER"
"""Environment variable that the supervisor sets for its workers: the directory of their sockets."""


@dataclass(frozen=True, slots=True)
class WorkerRegistry:
    """`own`: this worker; `names`: all workers of the node, including this one."""

    own: str
    names: tuple[str, ...]
    directory: Path

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.own)

    def calls(self, worker: str) -> str:
        """The path of the socket on which a worker takes calls of other workers."""
        return str(self.directory / f"{worker}.calls")

    def pages(self, worker: str) -> str:
        """The path of the socket on which a worker answers HTTP requests to the node."""
        return str(self.directory / f"{worker}.http")


def worker_registry_of(
    config: NodeConfig, environment: Mapping[str, str] | None = None
) -> WorkerRegistry | None:
    """The registry of a worker; None if no supervisor started this process. Raises ConfigError if a
    worker was started directly."""
    directory = (os.environ if environment is None else environment).get(VARIABLE)
    if directory is not None:
        return WorkerRegistry(config.node, config.workers, Path(directory))
    if not is_first(config.node):
        node = node_of(config.node)
        raise ConfigError(
            f"{config.node} is a worker of node {node} and does not run by itself",
            f"start the node: node={node}",
        )
    return None
