"""The client port of a node: which server is behind it, and how it listens, from the configuration.

The server is that of `ledgermq_native` where this package is used (`proto/kernels.py`), and
otherwise that of grpc.aio, which costs five times the processor time.
"""

from __future__ import annotations

from ledgermq.node.frontend.ports import CallServer, Diversion, Listening
from ledgermq.node.process.grpc_server import GrpcServer
from ledgermq.node.runtime import certificates
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.proto import kernels


def call_server(divert: Diversion | None = None) -> CallServer:
    """The server for the services of a node. `divert`: takes calls before the services see them."""
    if not kernels.NATIVE:
        return GrpcServer(divert)
    from ledgermq.node.process.native_server import NativeServer

    return NativeServer(divert)


def listening(config: NodeConfig, *, shared: bool = False, unix: str | None = None) -> Listening:
    """How the client port listens. Reads the certificates; raises as
    `certificates.CertificateFiles`. `shared`: several workers listen on the port, and their
    supervisor holds it (`port_hold.py`). `unix`: the socket on which this worker takes calls from
    the others."""
    return Listening(
        host=config.listen_host,
        port=config.address.client_port,
        plain=config.tls.mode != "required",
        tls=certificates.of_clients(config.tls),
        limits=config.quotas,
        memory=config.limits,
        shared=shared,
        unix=unix,
    )
