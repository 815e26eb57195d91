"""Users' secrets at rest: encrypted under a key that only holders of the cluster secret can derive.

A signature is checked with the secret itself, so a digest of it will not do. AES-SIV is deterministic: the same secret of the same user is
the same text, by which a repeated command is recognised; of two different users nothing shows. The name of user and cluster are bound in: a
sealed secret copied to another user, or to another cluster with the same secret, does not open.
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
    """Seals with the first of the cluster's secrets and opens with any: the others are those before a change of it."""

    def __init__(self, cluster_secrets: Sequence[bytes], cluster_id: str) -> None:
        self._ciphers = [AESSIV(_key(secret, cluster_id)) for secret in cluster_secrets]

    def seal(self, user: str, secret: str) -> str:
        return base64.b64encode(self._ciphers[0].encrypt(secret.encode(), [user.encode()])).decode("ascii")

    def open(self, user: str, sealed: str) -> str | None:
        """The secret; None when it was sealed under a cluster secret that is not known here."""
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(base64.b64decode(sealed, validate=True), [user.encode()]).decode()
            except (InvalidTag, binascii.Error, ValueError):
                continue
        return None


def _key(secret: bytes, cluster_id: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=_LABEL + cluster_id.encode()).derive(secret)
