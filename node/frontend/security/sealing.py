"""Encrypts users' secrets at rest, under a key that only holders of the cluster secret can derive.

Checking a signature needs the secret itself, so storing a digest is not enough. AES-SIV is
deterministic: the same secret of the same user gives the same text, which identifies a repeated
command; texts of different users reveal nothing about each other. User name and cluster id are
authenticated too: a sealed secret that is copied to another user, or to another cluster with the
same cluster secret, does not decrypt.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_KEY_BYTES = 64
_LABEL = b"ledgermq users 1 "


class Sealer:
    """Encrypts with the first cluster secret and decrypts with any; the others are former cluster
    secrets."""

    def __init__(self, cluster_secrets: Sequence[bytes], cluster_id: str) -> None:
        self._ciphers = [AESSIV(_key(secret, cluster_id)) for secret in cluster_secrets]

    def seal(self, user: str, secret: str) -> str:
        return base64.b64encode(self._ciphers[0].encrypt(secret.encode(), [user.encode()])).decode(
            "ascii"
        )

    def open(self, user: str, sealed: str) -> str | None:
        """The secret; None if it was encrypted under a cluster secret that is not known here."""
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(
                    base64.b64decode(sealed, validate=True), [user.encode()]
                ).decode()
            except (InvalidTag, binascii.Error, ValueError):
                continue
        return None


def _key(secret: bytes, cluster_id: str) -> bytes:
    return HKDF(
        algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=_LABEL + cluster_id.encode()
    ).derive(secret)
