"""Ed25519 as functions of bytes, by the package `cryptography`. It is imported when first used:
other commands work without it."""

from __future__ import annotations

import os

from ledgermq.client.errors import BadArgument
from ledgermq.proto.proofs.signed_notes import Signer

SEED_BYTES = 32


def _missing() -> BadArgument:
    return BadArgument(
        "signatures need the package cryptography, which is not installed",
        "pip install 'ledgermq[proof]'",
    )


def verified(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the signature of the message was made with the key of these 32 public bytes. Raises
    BadArgument without `cryptography`."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise _missing() from None
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def signing_key(seed: bytes) -> tuple[Signer, bytes]:
    """The function that signs with a private key of 32 bytes, and the public key."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise _missing() from None
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return private.sign, private.public_key().public_bytes_raw()


def new_seed() -> bytes:
    """A new private key."""
    return os.urandom(SEED_BYTES)
