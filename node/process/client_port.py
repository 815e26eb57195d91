"""The client port of a node: bound by gRPC itself if possible, otherwise by the front (`security/front.py`).

gRPC binds the port alone, without extra cost, if the port speaks only plaintext or only TLS and connections are not limited.
"""

from __future__ import annotations

import grpc.aio

from ledgermq.node.frontend.rocketmq.messaging import SERVER_OPTIONS
from ledgermq.node.frontend.security.front import Front
from ledgermq.node.runtime import certificates
from ledgermq.node.runtime.config import NodeConfig

REUSE_PORT = "grpc.so_reuseport"


class ClientPort:
    """One port. Order of calls: `bind`, the server's own start, `start`; then `close` before the server stops and `stop` after it."""

    def __init__(self, config: NodeConfig, *, shared: bool = False) -> None:
        """Reads the certificates; raises as `certificates.CertificateFiles`. `shared`: several workers listen on the port, and their
        supervisor holds it (`port_hold.py`)."""
        self._config = config
        self._shared = shared
        self._files = certificates.of_clients(config.tls)
        self._front: Front | None = None

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """The options for creating the server of this port."""
        return tuple((name, int(self._shared) if name == REUSE_PORT else value) for name, value in SERVER_OPTIONS)

    def bind(self, server: grpc.aio.Server, address: str) -> None:
        """Tell the server where to listen. Raises RuntimeError if the port is taken."""
        tls, quotas, files = self._config.tls, self._config.quotas, self._files
        if tls.mode == "both" or quotas.limit_connections:
            self._front = Front(
                plain=tls.mode != "required",
                tls=files is not None,
                connections=quotas.connections,
                connections_per_address=quotas.connections_per_address,
                new_per_s=quotas.new_connections_per_s,
            )
            if self._front.plain is not None:
                server.add_insecure_port(f"unix:{self._front.plain}")
            if self._front.tls is not None and files is not None:
                server.add_secure_port(f"unix:{self._front.tls}", certificates.server_credentials(files))
        elif files is not None:
            server.add_secure_port(address, certificates.server_credentials(files))
        else:
            server.add_insecure_port(address)

    async def start(self) -> None:
        """Open the front's port, if there is one. Raises OSError if it is taken."""
        if self._front is not None:
            await self._front.listen(self._config.listen_host, self._config.address.client_port, shared=self._shared)

    def address_of(self, peer: str) -> str:
        """The client address of a connection, from gRPC's name of its peer."""
        return peer if self._front is None else self._front.address_of(peer)

    def close(self) -> None:
        if self._front is not None:
            self._front.close()

    def stop(self) -> None:
        if self._front is not None:
            self._front.stop()
