"""A small certificate authority for clusters without another one: one key that signs one
certificate for each node.

It is meant for local use, for containers and for clusters of one operator; an operator with a
certificate authority configures its files instead. A node's certificate names the node, for its
peers, and every host under which clients reach it. Keys are readable only by their owner.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ledgermq.node.runtime.errors import ConfigError
from ledgermq.storage.files.real_disk import replace_file

CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
AUTHORITY_DAYS = 3650
NODE_DAYS = 397
RENEW_DAYS = 30
"""A certificate that expires sooner is renewed."""


def ensure(directory: Path, nodes: Mapping[str, Sequence[str]]) -> list[str]:
    """Create an authority, and a certificate for each node with its hosts. Returns the names of the
    nodes that got a new certificate.

    Files that are valid for RENEW_DAYS more stay. Raises ConfigError for files that are not
    certificates or keys, and OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, key = _authority(directory)
    made = []
    for name, hosts in nodes.items():
        path = directory / f"{name}.pem"
        names = _names(name, hosts)
        if not (
            path.exists()
            and (directory / f"{name}.key").exists()
            and _is_good(path, authority, names)
        ):
            certificate, own_key = _signed(name, names, authority, key)
            replace_file(f"{directory}/{name}.key", _pem_of(own_key), 0o600)
            replace_file(str(path), certificate.public_bytes(serialization.Encoding.PEM), 0o644)
            made.append(name)
    return made


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = directory / CA_CERTIFICATE, directory / CA_KEY
    if certificate_file.exists() and not key_file.exists():
        raise ConfigError(
            f"{directory} holds {CA_CERTIFICATE} without {CA_KEY}",
            "restore the key, or use another directory",
        )
    if key_file.exists():
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificate = (
                x509.load_pem_x509_certificate(certificate_file.read_bytes())
                if certificate_file.exists()
                else None
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{certificate_file} or its key cannot be read ({error})", "use another directory"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                f"{key_file} was not made by this command",
                "configure the files of your authority instead",
            )
        if certificate is not None:
            return certificate, key
        # The run that wrote the key ended before it wrote the certificate.
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "LedgerMQ cluster authority")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    if not key_file.exists():
        replace_file(str(key_file), _pem_of(key), 0o600)
    replace_file(str(certificate_file), certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate, key


def _signed(
    name: str,
    names: Sequence[x509.GeneralName],
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    own = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, authority.subject, own.public_key(), NODE_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return builder.sign(key, hashes.SHA256()), own


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    # Valid from an hour ago: clocks of other machines may be behind.
    return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
        now + datetime.timedelta(days=days)
    )


def _names(node: str, hosts: Sequence[str]) -> list[x509.GeneralName]:
    alternatives: list[x509.GeneralName] = []
    for host in dict.fromkeys((node, *hosts)):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            alternatives.append(x509.DNSName(host))
    return alternatives


def _is_good(path: Path, authority: x509.Certificate, names: Sequence[x509.GeneralName]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(authority)
        had = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    # whatever is wrong with the file or its signature, it is replaced by a new one
    except Exception:
        return False
    ends = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return ends > datetime.timedelta(days=RENEW_DAYS) and set(names) <= set(had)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
