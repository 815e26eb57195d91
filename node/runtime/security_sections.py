"""The sections of a node's configuration about who may reach it, over which wire, and how much they may do. Values only.

What is open to everybody is never open by default on an address that other machines reach: it takes a sentence, word for word, that says
what it means. Files are named here and read where they are used, again whenever they change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ledgermq.node.runtime.config_types import Bytes, Section

OPEN_TO_ALL = "anyone who reaches the port may read and write"


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class Access(Section):
    """Whether calls are signed, and what holds if they are not."""

    authentication: Literal["none", "required"] = "none"
    allow_unauthenticated: Literal["anyone who reaches the port may read and write"] | None = None
    allow_open_http: Literal["anyone who reaches the port may read health and metrics"] | None = None
    ignore_namespaces: bool = False
    """Topics and groups are known by their plain names, whatever namespace a client names. The same on all nodes."""


class Tls(Section):
    """The clients' port. `both`: the first bytes of a connection say whether it is TLS or plaintext."""

    mode: Annotated[Literal["off", "both", "required"], BeforeValidator(_off)] = "off"
    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    """Set: whoever comes over TLS shows a certificate that this authority signed."""
    users: dict[str, str] = Field(default_factory=dict)
    """Common name of a client's certificate → user, for calls that carry no signature."""

    @model_validator(mode="after")
    def _check(self) -> Tls:
        if self.mode != "off" and (self.certificate_file is None or self.key_file is None):
            raise ValueError(f"tls.mode {self.mode} needs certificate_file and key_file")
        if self.users and self.client_ca_file is None:
            raise ValueError("tls.users needs client_ca_file: nobody shows a certificate without it")
        return self

    @property
    def proves_clients(self) -> bool:
        """Nobody gets in without a certificate."""
        return self.mode == "required" and self.client_ca_file is not None


class PeerTls(Section):
    """The peers' port. `required`: mutual TLS with certificates of one authority, each for the name of its node, besides the secret."""

    mode: Annotated[Literal["off", "required"], BeforeValidator(_off)] = "off"
    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> PeerTls:
        if self.mode != "off" and None in (self.certificate_file, self.key_file, self.ca_file):
            raise ValueError("peer_tls.mode required needs certificate_file, key_file and ca_file")
        return self


class Quota(Section):
    """How much one client, user, topic or group may do on one node; 0: no limit."""

    messages_per_s: Annotated[float, Field(ge=0, le=1e9)] = 0
    bytes_per_s: Bytes = 0
    calls: Annotated[int, Field(ge=0)] = 0
    """At once."""
    receives: Annotated[int, Field(ge=0)] = 0
    """Open at once."""

    @property
    def limits_nothing(self) -> bool:
        return not (self.messages_per_s or self.bytes_per_s or self.calls or self.receives)


class Quotas(Section):
    """Of each of a kind, and of some by name or pattern (the longest that fits counts). Connections are those of this node."""

    client: Quota = Quota()
    user: Quota = Quota()
    topic: Quota = Quota()
    group: Quota = Quota()
    users: dict[str, Quota] = Field(default_factory=dict)
    topics: dict[str, Quota] = Field(default_factory=dict)
    groups: dict[str, Quota] = Field(default_factory=dict)
    connections: Annotated[int, Field(ge=0)] = 0
    connections_per_address: Annotated[int, Field(ge=0)] = 0
    new_connections_per_s: Annotated[float, Field(ge=0, le=1e6)] = 0
    """More than these wait for their turn, so that a crowd that comes back at once is not felt by those who are there."""

    @property
    def limit_connections(self) -> bool:
        return bool(self.connections or self.connections_per_address or self.new_connections_per_s)

    @property
    def limit_calls(self) -> bool:
        """Whether any call has to be counted."""
        named = (*self.users.values(), *self.topics.values(), *self.groups.values())
        return not all(quota.limits_nothing for quota in (self.client, self.user, self.topic, self.group, *named))
