"""Configuration of its node that the client service reads, and how long calls wait. Values only; the ports are in `frontend/ports.py`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from ledgermq.node.runtime.config_sections import Delivery, Limits

NO_DEADLINE_S = 30.0
"""How long a call without a deadline may take: it must not wait for ever for a leader."""
DEADLINE_MARGIN_S = 0.1
"""An answer must reach the caller before its deadline: waiting ends this much earlier."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What the service must know of the node's configuration. `host` and `port`: where clients reach this node if they do not say."""

    node: str
    host: str
    port: int
    secret: bytes
    delivery: Delivery = field(default_factory=Delivery)
    limits: Limits = field(default_factory=Limits)
    namespaces: bool = True
    """Whether namespaces tell topics and groups apart."""
    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    """Another one in every process."""

    @property
    def node_boot(self) -> str:
        return f"{self.node}/{self.boot}"
