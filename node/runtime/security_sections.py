"""The configuration sections for access, TLS and quotas: who may reach a node, how, and how much
they may do. Values only.

On an address that other machines can reach, nothing is open to all by default: the operator has to
write a fixed sentence, word for word, that states the consequence. Files are only named here; the
modules that use them read them, and reload them when they change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ledgermq.node.runtime.config_types import Bytes, Section

USER_SECRET_LEAST = 16
USER_SECRET_MOST = 256
OPEN_TO_ALL = "anyone who reaches the port may read and write"


def _off(value: object) -> object:
    """YAML reads an unquoted `off` as false."""
    return "off" if value is False else value


def objection_to_secret(secret: bytes) -> str | None:
    """Why this cannot be the secret of a user; None if it can."""
    try:
        printable = secret.decode().isprintable()
    except UnicodeDecodeError:
        printable = False
    if printable and USER_SECRET_LEAST <= len(secret) <= USER_SECRET_MOST:
        return None
    return f"a secret must have {USER_SECRET_LEAST} to {USER_SECRET_MOST} bytes of printable text"


class Access(Section):
    """Whether calls must be signed, and what is allowed if they need not be."""

    authentication: Literal["none", "required"] = "none"
    allow_unauthenticated: Literal["anyone who reaches the port may read and write"] | None = None
    allow_open_http: Literal["anyone who reaches the port may read health and metrics"] | None = (
        None
    )
    ignore_namespaces: bool = False
    """Topics and groups are known by their plain names, whatever namespace a client names. The
    setting must be the same on all nodes."""
    bootstrap_user: Annotated[str, Field(min_length=1)] | None = None
    """A cluster without any user gets this administrator. The setting may stay in place
    afterwards."""
    bootstrap_secret_file: Path | None = None
    """The secret of `bootstrap_user`."""

    @model_validator(mode="after")
    def _check(self) -> Access:
        if (self.bootstrap_user is None) != (self.bootstrap_secret_file is None):
            raise ValueError(
                "bootstrap_user and bootstrap_secret_file belong together: set both or neither"
            )
        return self


class Tls(Section):
    """TLS on the client port. `both`: the node recognises TLS or plaintext by the first bytes of a
    connection."""

    mode: Annotated[Literal["off", "both", "required"], BeforeValidator(_off)] = "off"
    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    """If set, a client that uses TLS must show a certificate signed by this authority."""
    users: dict[str, str] = Field(default_factory=dict)
    """Maps the common name of a client's certificate to a user, for calls that carry no
    signature."""

    @model_validator(mode="after")
    def _check(self) -> Tls:
        if self.mode != "off" and (self.certificate_file is None or self.key_file is None):
            raise ValueError(f"tls.mode {self.mode} needs certificate_file and key_file")
        if self.users and self.client_ca_file is None:
            raise ValueError(
                "tls.users needs client_ca_file: without it, clients show no certificate"
            )
        return self

    @property
    def proves_clients(self) -> bool:
        """Whether every client must show a certificate."""
        return self.mode == "required" and self.client_ca_file is not None


class PeerTls(Section):
    """TLS on the peer port. `required`: mutual TLS, with certificates of one authority that name
    their nodes, in addition to the secret."""

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
    """How much one client, user, topic or consumer group may do on one node; 0: no limit."""

    messages_per_s: Annotated[float, Field(ge=0, le=1e9)] = 0
    bytes_per_s: Bytes = 0
    calls: Annotated[int, Field(ge=0)] = 0
    """Calls under way at once."""
    receives: Annotated[int, Field(ge=0)] = 0
    """Receives open at once."""

    @property
    def limits_nothing(self) -> bool:
        return not (self.messages_per_s or self.bytes_per_s or self.calls or self.receives)


class Quotas(Section):
    """Default quotas of each client, user, topic and group, and overrides by name or pattern (the
    longest match wins). The connection settings apply to the whole node."""

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
    """Further new connections wait for their turn, so that clients that all reconnect at once do
    not disturb the connected ones."""

    @property
    def limit_connections(self) -> bool:
        return bool(self.connections or self.connections_per_address or self.new_connections_per_s)

    @property
    def limit_calls(self) -> bool:
        """Whether any quota on calls is set, so that calls have to be counted."""
        named = (*self.users.values(), *self.topics.values(), *self.groups.values())
        return not all(
            quota.limits_nothing
            for quota in (self.client, self.user, self.topic, self.group, *named)
        )
