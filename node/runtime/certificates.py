"""TLS certificates of the two ports: read from files at the start, and read again while the node
runs.

To renew a certificate, the operator replaces the files; new connections use them, without a
restart. If the files do not match each other (for instance because only one of them has been
replaced), the old ones stay in force and the log says so. Open connections are not affected. The
servers of the client port and `peer_wire.py` take what they need from here.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from ledgermq.node.runtime.errors import ConfigError, FatalError
from ledgermq.node.runtime.logs import get_logger
from ledgermq.node.runtime.security_sections import Tls
from ledgermq.proto.status import ExitCode

LOOK_EVERY_S = 1.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class Pems:
    """The contents of the files, taken when they matched each other. PEM bytes; `authority` is None
    without a CA file."""

    certificate: bytes
    key: bytes
    authority: bytes | None

    def __repr__(self) -> str:
        return "Pems(…)"


class CertificateFiles:
    """The certificate, key and CA files of one port. `current` may be called from any thread; gRPC
    calls it from its own."""

    def __init__(self, certificate: Path, key: Path, authority: Path | None) -> None:
        """Raises ConfigError for files that cannot be used, and FatalError for a key file that
        other users can read."""
        self._paths = tuple(path for path in (certificate, key, authority) if path is not None)
        self._certificate, self._key, self._authority = certificate, key, authority
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._pems = self._read()
        self._look_at = 0.0
        self._objected = ""

    def current(self) -> Pems:
        """The newest files that match each other; looks for changes at most once in `LOOK_EVERY_S`
        seconds."""
        with self._lock:
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + LOOK_EVERY_S
                self._look()
            return self._pems

    def _look(self) -> None:
        try:
            seen = self._stamp()
            if seen == self._seen:
                return
            self._pems, self._seen, self._objected = self._read(), seen, ""
            log.info("certificate read again", file=str(self._certificate))
        except FatalError as error:
            if str(error) != self._objected:
                self._objected = str(error)
                log.error(
                    "certificate not replaced, the one before stays in force", reason=str(error)
                )

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        try:
            found = [path.stat() for path in self._paths]
        except OSError as error:
            raise _unreadable(error) from error
        return tuple((at.st_mtime_ns, at.st_size, at.st_ino) for at in found)

    def _read(self) -> Pems:
        try:
            if self._key.stat().st_mode & 0o007:
                what = f"the key file {self._key} is open to every user of this machine"
                raise FatalError(ExitCode.UNSAFE, what, f"chmod 600 {self._key}")
            certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
            authority = None if self._authority is None else self._authority.read_bytes()
        except OSError as error:
            raise _unreadable(error) from error
        try:
            public = x509.load_pem_x509_certificates(certificate)[0].public_key()
            fits = _plain(public) == _plain(load_pem_private_key(key, None).public_key())
            if authority is not None:
                x509.load_pem_x509_certificates(authority)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            what = (
                f"{self._certificate}, its key or its authority is not PEM or cannot be read"
                f" ({error})"
            )
            raise ConfigError(what, "use PEM files, and a key without a password") from error
        if not fits:
            raise ConfigError(
                f"the key {self._key} does not belong to the certificate {self._certificate}",
                "use a matching pair",
            )
        return Pems(certificate, key, authority)


def _unreadable(error: OSError) -> ConfigError:
    return ConfigError(
        f"the file {error.filename} cannot be read ({error.strerror})",
        "check the paths under tls and peer_tls",
    )


def _plain(public: Any) -> bytes:
    found: bytes = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def of_clients(tls: Tls) -> CertificateFiles | None:
    """The certificate files of the clients' port; None without TLS."""
    if tls.mode == "off":
        return None
    assert tls.certificate_file is not None and tls.key_file is not None, (
        "checked by the configuration"
    )
    return CertificateFiles(tls.certificate_file, tls.key_file, tls.client_ca_file)
