"""Authentication of a call: the `authorization` header of the client contract (§3.2) and the
operator's derived credentials.

Pure functions over texts, used by both sides. Only the text of `x-mq-date-time` is signed, and its
age is not checked, because clients write local time with a `Z`, or RFC 3339. So a signature is
worth as much as a password to an attacker who can read the connection; TLS is what encrypts it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field

AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"
ALGORITHM = "MQv2-HMAC-SHA1"
OPERATOR = "_operator"
"""The access key of holders of the cluster secret; no user can have this name. It may manage users
and do nothing else."""

_OPERATOR_LABEL = b"ledgermq operator 1"
_SIGNATURE = re.compile("[0-9A-Fa-f]{40}").fullmatch


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials with which a caller signs. The secret never appears in a text form."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a header: the signer and the signature. Not verified yet."""

    access_key: str
    signature: bytes


def sign(credentials: Credentials, date_time: str) -> str:
    """The value of the header."""
    signature = signature_of(credentials.secret_key, date_time).hex()
    return (
        f"{ALGORITHM} Credential={credentials.access_key}, SignedHeaders={DATE_TIME},"
        f" Signature={signature}"
    )


def signature_of(secret_key: str, date_time: str) -> bytes:
    return hmac.digest(secret_key.encode(), date_time.encode(), "sha1")


def claim_of(header: str) -> Claim | None:
    """The claim in a header; None if it makes none: an empty credential, as sent by clients without
    keys. Raises ValueError if malformed."""
    algorithm, _, rest = header.strip().partition(" ")
    if algorithm != ALGORITHM:
        raise ValueError(f"the algorithm is not {ALGORITHM}")
    parts = {
        name.strip(): value.strip()
        for name, _, value in (part.partition("=") for part in rest.split(","))
    }
    access_key = parts.get("Credential", "").partition("/")[0]
    if not access_key:
        return None
    if _SIGNATURE(parts.get("Signature", "")) is None:
        raise ValueError("the signature is not 40 hexadecimal digits")
    return Claim(access_key, bytes.fromhex(parts["Signature"]))


def proves(claim: Claim, secret_key: str, date_time: str) -> bool:
    """Whether the secret made the signature; in constant time."""
    return hmac.compare_digest(claim.signature, signature_of(secret_key, date_time))


def operator_of(cluster_secret: bytes) -> Credentials:
    """The credentials of a holder of the cluster's secret file: for use before there is a user, and
    when the last key is lost."""
    return Credentials(OPERATOR, hmac.digest(cluster_secret, _OPERATOR_LABEL, hashlib.sha256).hex())
