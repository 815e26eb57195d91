"""The clients' port of a node: bound by gRPC itself where that is enough, by the front (`security/front.py`) where it is not.

gRPC has it alone, at no cost, while the port speaks plaintext only or TLS only and connections are not limited.
"""

from __future__ import annotations

import grpc.aio

from ledgermq.node.frontend.rocketmq.messaging import SERVER_OPTIONS
from ledgermq.node.frontend.security.front import Front
from ledgermq.node.runtime import certificates
from ledgermq.node.runtime.config import NodeConfig

REUSE_PORT = "grpc.so_reuseport"


class ClientPort:
    """One port. Its order: `bind`, the server's own start, `start`; then `close` before the server stops and `stop` after it."""

    def __init__(self, config: NodeConfig, *, shared: bool = False) -> None:
        """Reads the certificates; raises as `certificates.CertificateFiles`. `shared`: several workers listen there, and their supervisor
        holds the port (`port_hold.py`)."""
        self._config = config
        self._shared = shared
        self._files = certificates.of_clients(config.tls)
        self._front: Front | None = None

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """What the server on this port is made with."""
        return tuple((name, int(self._shared) if name == REUSE_PORT else value) for name, value in SERVER_OPTIONS)

    def bind(self, server: grpc.aio.Server, address: str) -> None:
        """Tell the server where to listen. Raises RuntimeError when the port is taken."""
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
        """Raises OSError when the port is taken."""
        if self._front is not None:
            await self._front.listen(self._config.listen_host, self._config.address.client_port, shared=self._shared)

    def address_of(self, peer: str) -> str:
        """Where a connection comes from, by what gRPC calls its peer."""
        return peer if self._front is None else self._front.address_of(peer)

    def close(self) -> None:
        if self._front is not None:
            self._front.close()

    def stop(self) -> None:
        if self._front is not None:
            self._front.stop()
