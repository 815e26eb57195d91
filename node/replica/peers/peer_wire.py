"""Connections between nodes: plain TCP, or TLS with a certificate on each side that names its node.
`peer_stream.py` has the traffic.

All connections are made here, with the newest consistent set of certificate files
(`certificates.py`). Connections are accepted one by one, and not by the loop's own server, so that
a TLS handshake counts towards the greeting's limits of number and time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from cryptography import x509

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
        """Connect to a node. The other side must have a certificate for the node's name, whatever
        the address. Raises OSError."""
        context = None if self._files is None else self._contexts()[0]
        # The workers of a node are on one machine and have its certificate.
        name = None if context is None else node_of(peer)
        try:
            host, port = split(address)
        except ValueError as error:
            raise OSError(str(error)) from error
        try:
            _, stream = await asyncio.get_running_loop().create_connection(
                make, host, port, ssl=context, server_hostname=name
            )
        except UnicodeError as error:
            # The resolver is not even called with such a name; for the caller this is a name that
            # does not exist.
            raise OSError(f"{host} is not a valid host name: {error}") from error
        return stream

    async def listen(self, address: str) -> socket.socket:
        """A socket that listens on the address. Raises OSError if the address cannot be used."""
        host, port = split(address)
        found = await asyncio.to_thread(sockets.places, host, port)
        return sockets.listener(found[0], BACKLOG)

    async def accept(self, connection: socket.socket, make: Callable[[], P]) -> P:
        """The stream of an accepted connection, after the TLS handshake if there is one. Raises
        OSError."""
        loop = asyncio.get_running_loop()
        try:
            context = None if self._files is None else self._contexts()[1]
            # With TLS the loop would return its own protocol of the encryption, so keep a reference
            # to ours.
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

    def cut_off(self) -> EOFError:
        """The error for a dialled connection that ended before the other side's first word."""
        if self._files is None:
            return EOFError()
        own = x509.load_pem_x509_certificates(self._files.current().certificate)[0]
        return CutOff(own.not_valid_after_utc < datetime.now(UTC))

    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The contexts for outgoing and for incoming connections, from the newest files."""
        assert self._files is not None
        pems = self._files.current()
        if self._made is None or self._made[0] is not pems:
            self._made = (
                pems,
                _context(ssl.PROTOCOL_TLS_CLIENT, pems),
                _context(ssl.PROTOCOL_TLS_SERVER, pems),
            )
        return self._made[1:]


class CutOff(EOFError):
    """The other side ended a connection between the TLS handshake and its first word. `ended`: the
    certificate of this side has ended.

    A server in TLS 1.3 refuses a client's certificate when the handshake has ended for the client,
    and the loop closes such a connection without the alert that says why. So the dialling side can
    only look at its own certificate."""

    def __init__(self, ended: bool) -> None:
        super().__init__()
        self.ended = ended


@dataclass(frozen=True, slots=True)
class TlsFailure:
    """Why a connection failed by TLS. `reason`: one of `TLS_REASONS`, for the metric."""

    reason: str
    words: str


TLS_REASONS = ("expired", "authority", "name", "certificate", "missing", "protocol", "refused")
"""What this side says of the other's certificate; then: it showed none; it speaks no TLS; and it
refuses the certificate of this side."""
_BY_CODE = {
    **dict.fromkeys((9, 10), "expired"),
    **dict.fromkeys((2, 18, 19, 20, 21), "authority"),
    **dict.fromkeys((62, 63, 64), "name"),
}
"""By the codes of OpenSSL's verification."""


def tls_failure(error: BaseException) -> TlsFailure | None:
    """What to tell about a failed connection; None if TLS was not the cause: the other side was
    only not there, or went away."""
    if isinstance(error, CutOff):
        words = (
            "it has ended"
            if error.ended
            else "it ends the connection after the handshake; its log says why"
        )
        return TlsFailure("expired" if error.ended else "refused", words)
    if not isinstance(error, ssl.SSLError) or isinstance(
        error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    ):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailure(_BY_CODE.get(error.verify_code, "certificate"), error.verify_message)
    said = error.reason or str(error)
    return TlsFailure(
        "missing" if "DID_NOT_RETURN" in said else "protocol", said.lower().replace("_", " ")
    )


def _context(role: int, pems: Pems) -> ssl.SSLContext:
    """Both ends are this program: require TLS 1.3, and a certificate from the authority."""
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    assert pems.authority is not None, "checked by the configuration"
    context.load_verify_locations(cadata=pems.authority.decode("ascii", "ignore"))
    # The library reads files only. This one exists in memory, and holds a key and a certificate
    # that were checked to match.
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
    assert tls.certificate_file is not None and tls.key_file is not None, (
        "checked by the configuration"
    )
    return PeerWire(CertificateFiles(tls.certificate_file, tls.key_file, tls.ca_file))
