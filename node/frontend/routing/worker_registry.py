"""What a worker process knows of the other workers of its node: their names, and where they listen for each other.

Workers of a node meet on Unix sockets in a directory that only their user can enter, made by the supervisor for one life of the node. On
`NAME.calls` a worker takes calls that a sibling passes on (`worker_proxy.py`), on `NAME.http` it answers the sibling that speaks for the
node (`node_pages.py`). Nothing here opens anything.
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
"""Set by the supervisor for its workers: the directory of their sockets."""


@dataclass(frozen=True, slots=True)
class WorkerRegistry:
    """`own`: this worker; `names`: all workers of its node, itself included."""

    own: str
    names: tuple[str, ...]
    directory: Path

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.own)

    def calls(self, worker: str) -> str:
        """Where a worker takes calls of its siblings."""
        return str(self.directory / f"{worker}.calls")

    def pages(self, worker: str) -> str:
        """Where a worker answers what its node is asked over HTTP."""
        return str(self.directory / f"{worker}.http")


def worker_registry_of(config: NodeConfig, environment: Mapping[str, str] | None = None) -> WorkerRegistry | None:
    """None: this process is no worker that a supervisor started. Raises ConfigError for a worker that was started by itself."""
    directory = (os.environ if environment is None else environment).get(VARIABLE)
    if directory is not None:
        return WorkerRegistry(config.node, config.workers, Path(directory))
    if not is_first(config.node):
        node = node_of(config.node)
        raise ConfigError(f"{config.node} is a worker of node {node} and does not run by itself", f"start the node: node={node}")
    return None
