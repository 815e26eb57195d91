"""What every client checks of its arguments before any call, so that a mistake is a BadArgument
where it was made."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any, TypeVar

from ledgermq.client.errors import BadArgument
from ledgermq.proto.names import topic_name
from ledgermq.proto.signature import Credentials
from ledgermq.proto.status import LedgerError

F = TypeVar("F")
T = TypeVar("T")

LONGEST_S = 365 * 86400.0
"""A longer time is shortened to this: gRPC cannot represent deadlines that are centuries away."""


def _is_a(kind: type, value: Any) -> bool:
    """Whether the value is a number of this kind. True and False do not count as numbers here,
    although `bool` is a subclass of `int`."""
    return isinstance(value, kind) and not isinstance(value, bool)


def seconds(value: Any, name: str, *, zero: bool = False) -> float:
    """A duration, at most `LONGEST_S`. Raises BadArgument for what is no number, or is not above
    zero (`zero`: is below)."""
    if _is_a(Real, value) and (value > 0 or (zero and value == 0)):
        return float(min(value, LONGEST_S))
    raise BadArgument(
        f"{name} is {value!r}",
        "give a number that is not negative" if zero else "give a number above 0",
    )


def patience(value: Any, name: str) -> float | None:
    """How long a caller waits; None: for ever. What is left of a time may be below zero. Raises
    BadArgument."""
    if value is None:
        return None
    return 0.0 if _is_a(Real, value) and value < 0 else seconds(value, name, zero=True)


def count(value: Any, name: str, least: int = 1) -> int:
    """A number of bytes or things. Raises BadArgument."""
    if _is_a(Integral, value) and value >= least:
        return int(value)
    raise BadArgument(f"{name} is {value!r}", f"give a whole number of at least {least}")


def text(value: Any, name: str) -> str:
    """A text that can be sent. Raises BadArgument, also for a half of a surrogate pair, as Python
    makes of bytes that are no UTF-8."""
    if not isinstance(value, str):
        raise BadArgument(f"{name} is {value!r}, which is no text", "give a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadArgument(
            f"{name} {value!r} is no valid text", "give text that UTF-8 can express"
        ) from None
    return value


def collection(value: Any, name: str) -> Collection[Any]:
    """Several values; a text is none. Raises BadArgument."""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return value
    raise BadArgument(f"{name} is {value!r}", "give a list or a set")


def instance(value: Any, name: str, kind: type[T]) -> T:
    """A value of this class. Raises BadArgument."""
    if isinstance(value, kind):
        return value
    raise BadArgument(f"{name} is {value!r}", f"give one of {kind.__name__}")


def one_of(value: Any, name: str, *kinds: type) -> None:
    """Raises BadArgument for a value of another type; None is no value."""
    if value is not None and not isinstance(value, kinds):
        raise BadArgument(
            f"{name} is {value!r}",
            f"give {' or '.join(kind.__name__ for kind in kinds)}, or omit it",
        )


def function(value: F, name: str) -> F:
    """A function to call, or None. Raises BadArgument."""
    if value is None or callable(value):
        return value
    raise BadArgument(f"{name} is {value!r}", "give a function, or omit it")


def stored_topic(namespace: object, topic: object) -> str:
    """The stored name of a topic. Raises BadArgument for names that no topic can have."""
    try:
        return topic_name(text(namespace, "the namespace"), text(topic, "the topic"))
    except LedgerError as error:
        what, _, remedy = error.message.partition("; ")
        raise BadArgument(what, remedy or "give the name of a topic") from error


def pem(value: Any, name: str) -> bytes | None:
    """The content of a PEM file. Raises BadArgument, as for its path."""
    if value is None or (isinstance(value, bytes) and b"-----BEGIN " in value):
        return value
    raise BadArgument(f"{name} is no PEM", "give the content of the file as bytes")


def pems(value: Any, name: str) -> tuple[bytes, bytes] | None:
    """A key and its certificate. Raises BadArgument."""
    if value is None:
        return None
    if (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(pem(part, name) for part in value)
    ):
        return value[0], value[1]
    raise BadArgument(
        f"{name} is no pair of a key and its certificate",
        "give the contents of both files as bytes",
    )


def credentials(value: Any) -> Credentials | None:
    """Raises BadArgument for what is none, and for an access key that no header can carry."""
    if value is None:
        return None
    if not isinstance(value, Credentials):
        raise BadArgument(
            "credentials are no Credentials", "give Credentials(access_key, secret_key)"
        )
    key = text(value.access_key, "the access key")
    text(value.secret_key, "the secret key")
    if not (key.isascii() and key.isprintable()):
        raise BadArgument(
            f"the access key {key!r} has characters that no access key has",
            "see: ledgermq user list",
        )
    return value
