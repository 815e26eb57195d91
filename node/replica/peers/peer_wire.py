"""Connections between nodes: plain TCP, or TLS with a certificate on each side that names its node. `peer_stream.py` has the traffic.

All connections are made here, with the newest consistent set of certificate files (`certificates.py`). Connections are accepted one by one,
and not by the loop's own server, so that a TLS handshake counts towards the greeting's limits of number and time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from ledgermq.node.runtime import sockets
from ledgermq.node.runtime.certificates import CertificateFiles, Pems
from ledgermq.node.runtime.security_sections import PeerTls
from ledgermq.proto.host_port import split
from ledgermq.proto.workers import node_of

P = TypeVar("P", bound=asyncio.BaseProtocol)
BACKLOG = 128


class PeerWire:
    """Creates one node's connections to and from its peers."""

    def __init__(self, files: CertificateFiles | None = None) -> None:
        self._files = files
        self._made: tuple[Pems, ssl.SSLContext, ssl.SSLContext] | None = None

    async def connect(self, address: str, peer: str, make: Callable[[], P]) -> P:
        """Connect to a node. The other side must have a certificate for the node's name, whatever the address. Raises OSError."""
        context = None if self._files is None else self._contexts()[0]
        # The workers of a node are on one machine and have its certificate.
        name = None if context is None else node_of(peer)
        try:
            host, port = split(address)
        except ValueError as error:
            raise OSError(str(error)) from error
        try:
            _, stream = await asyncio.get_running_loop().create_connection(make, host, port, ssl=context, server_hostname=name)
        except UnicodeError as error:
            # The resolver is not even called with such a name; for the caller this is a name that does not exist.
            raise OSError(f"{host} is not a valid host name: {error}") from error
        return stream

    async def listen(self, address: str) -> socket.socket:
        """A socket that listens on the address. Raises OSError if the address cannot be used."""
        found = await asyncio.to_thread(sockets.places, *split(address))
        return sockets.listener(found[0], BACKLOG)

    async def accept(self, connection: socket.socket, make: Callable[[], P]) -> P:
        """The stream of an accepted connection, after the TLS handshake if there is one. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            context = None if self._files is None else self._contexts()[1]
            # With TLS the loop would return its own protocol of the encryption, so keep a reference to ours.
            stream = make()
            await loop.connect_accepted_socket(lambda: stream, connection, ssl=context)
        except BaseException:  # a cancelled greeting must not leak the socket
            connection.close()
            raise
        return stream

    def names(self, transport: asyncio.BaseTransport) -> frozenset[str] | None:
        """The names in the certificate of an accepted connection; None without TLS."""
        if self._files is None:
            return None
        shown = transport.get_extra_info("peercert") or {}
        return frozenset(name for _, name in shown.get("subjectAltName", ()))

    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The contexts for outgoing and for incoming connections, from the newest files."""
        assert self._files is not None
        pems = self._files.current()
        if self._made is None or self._made[0] is not pems:
            self._made = pems, _context(ssl.PROTOCOL_TLS_CLIENT, pems), _context(ssl.PROTOCOL_TLS_SERVER, pems)
        return self._made[1:]


def _context(role: int, pems: Pems) -> ssl.SSLContext:
    """Both ends are this program: require TLS 1.3, and a certificate from the authority."""
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    assert pems.authority is not None, "checked by the configuration"
    context.load_verify_locations(cadata=pems.authority.decode("ascii", "ignore"))
    # The library reads files only. This one exists in memory, and holds a key and a certificate that were checked to match.
    file = os.memfd_create("peer-certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pems.key + b"\n" + pems.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def peer_wire(tls: PeerTls) -> PeerWire:
    """The connections as configured. Raises as `CertificateFiles`."""
    if tls.mode == "off":
        return PeerWire()
    assert tls.certificate_file is not None and tls.key_file is not None, "checked by the configuration"
    return PeerWire(CertificateFiles(tls.certificate_file, tls.key_file, tls.ca_file))
