"""The part of the node's configuration that the client service reads, and the time limits of calls.
Values only; the ports are in `frontend/ports.py`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.node.runtime.config_sections import Delivery, Limits

NO_DEADLINE_S = 30.0
"""How long a call without a deadline may wait for a leader."""
DEADLINE_MARGIN_S = 0.1
"""Waiting ends this much before a call's deadline, so that the answer still reaches the caller."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The node's configuration for the service. `host` and `port`: the address of this node for
    clients that send none."""

    node: str
    host: str
    port: int
    secret: bytes
    delivery: Delivery = field(default_factory=Delivery)
    limits: Limits = field(default_factory=Limits)
    namespaces: bool = True
    """Whether namespaces distinguish topics and groups."""
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """The time that this node goes by (`node/replica/consensus/cluster_clock.py`)."""
    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    """A different value in every process."""

    @property
    def node_boot(self) -> str:
        return f"{self.node}/{self.boot}"
