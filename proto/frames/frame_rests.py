"""The part of the property strings that a producer chooses: tags, keys and user properties of many
messages, behind the message id.

Columns of ordinary values are joined, encoded and split again in a few calls. A frame with other
values is built message by message with the encoder of `properties`, and checked by the rules of the
nodes. Both ways give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import add

from ledgermq.proto.entries.properties import KEYS, Fields, encode, stored_user_name
from ledgermq.proto.frames.frame_properties import (
    PROPERTIES_BYTES_MAX,
    USER_PROPERTIES_MAX,
    complaint,
)
from ledgermq.proto.names import RESERVED_KEYS, has_control_character
from ledgermq.proto.status import Code, LedgerError, fail

Keys = str | Sequence[str]
"""The keys of one message: one key, or several."""
Users = Mapping[str, str]
_KNOWN_MAX = 4096
_KNOWN_BYTES_MAX = 256
"""Limits of the cache: tags, sets of property keys, and their length."""


def refused(position: int, code: int, reason: str) -> LedgerError:
    """The error for a message of a frame that no node accepts."""
    return fail(Code(code), f"message {position} of the frame: {reason}")


class RestEncoder:
    """Caches tags and sets of property keys."""

    def __init__(self) -> None:
        self._tags: dict[str | None, bytes] = {}
        self._shapes: dict[tuple[str, ...], tuple[tuple[str, ...], str]] = {}

    def encode(
        self,
        count: int,
        tags: Sequence[str | None] | None,
        keys: Sequence[Keys | None] | None,
        users: Sequence[Users] | None,
    ) -> Sequence[bytes] | None:
        """The rests of `count` messages; None if all are empty. Raises LedgerError for the first
        message that a node would refuse."""
        for what, given in (("tags", tags), ("keys", keys), ("properties", users)):
            if given is not None and len(given) != count:
                raise ValueError(f"there are {len(given)} {what} for {count} messages")
        columns = []
        if tags is not None:
            columns.append(self._tag_column(tags))
        if keys is not None:
            columns.append(_key_column(keys))
        if users is not None:
            columns.append(self._user_column(users))
        rests: list[bytes] | None = None
        for column in columns:
            if column is None:
                return _row_by_row(count, tags, keys, users)
            rests = column if rests is None else list(map(add, rests, column))
        if rests is not None and max(map(len, rests)) > PROPERTIES_BYTES_MAX:
            return _row_by_row(count, tags, keys, users)
        return rests

    def _tag_column(self, tags: Sequence[str | None]) -> list[bytes] | None:
        known = self._tags
        try:
            return list(map(known.__getitem__, tags))
        except KeyError:
            fresh = set(tags).difference(known)
        encoded: dict[str | None, bytes] = {}
        for tag in fresh:
            if tag and (not tag.isprintable() or not tag.strip() or "|" in tag):
                return None
            encoded[tag] = encode(Fields(tag=tag))
        made = {**known, **encoded}
        if len(made) > _KNOWN_MAX:
            known.clear()
        if len(encoded) <= _KNOWN_MAX and max(map(len, encoded.values())) <= _KNOWN_BYTES_MAX:
            known.update(encoded)
        return list(map(made.__getitem__, tags))

    def _user_column(self, users: Sequence[Users]) -> list[bytes] | None:
        if not "".join(chain.from_iterable([user.values() for user in users])).isprintable():
            return None
        shapes, rows = self._shapes, []
        for user in users:
            shape = shapes.get(tuple(user)) or self._learn(tuple(user))
            if shape is None:
                return None
            rows.append(shape[1] % tuple(map(user.__getitem__, shape[0])))
        return "\0".join(rows).encode().split(b"\0")

    def _learn(self, keys: tuple[str, ...]) -> tuple[tuple[str, ...], str] | None:
        """Keys in the order of the format, and the pattern of their properties; None if no node
        accepts them."""
        if len(keys) > USER_PROPERTIES_MAX or any(
            not key or key in RESERVED_KEYS or has_control_character(key) for key in keys
        ):
            return None
        ordered = tuple(sorted(keys))
        names = [stored_user_name(key).replace("%", "%%") for key in ordered]
        shape = ordered, "".join([f"{name}\x01%s\x02" for name in names])
        if len(self._shapes) >= _KNOWN_MAX:
            self._shapes.clear()
        if len(shape[1]) <= _KNOWN_BYTES_MAX:
            self._shapes[keys] = shape
        return shape


def _key_column(keys: Sequence[Keys | None]) -> list[bytes] | None:
    """At most one plain key per message."""
    present = [key for key in keys if key]
    if not present:
        return [b""] * len(keys)
    try:
        text = "".join(present)  # type: ignore[arg-type]
    except TypeError:
        return None
    # Printable text has no control character, and ASCII text without spaces has no key that is
    # blank or must be stored twice.
    if not text.isascii() or not text.isprintable() or " " in text:
        return None
    between = f"\x02\0{KEYS}\x01"
    pieces = f"{KEYS}\x01{between.join(present)}\x02".encode().split(b"\0")  # type: ignore[arg-type]
    if len(pieces) == len(keys):
        return pieces
    rest = iter(pieces)
    return [next(rest) if key else b"" for key in keys]


def _row_by_row(
    count: int,
    tags: Sequence[str | None] | None,
    keys: Sequence[Keys | None] | None,
    users: Sequence[Users] | None,
) -> list[bytes]:
    rests = []
    for row in range(count):
        key = keys[row] if keys is not None else None
        listed = () if not key else (key,) if isinstance(key, str) else key
        user = users[row] if users is not None else {}
        rests.append(
            _one(row, Fields(tag=tags[row] if tags is not None else None, keys=listed, user=user))
        )
    return rests


def _one(row: int, fields: Fields) -> bytes:
    for key, value in fields.user.items():
        if (
            not key
            or key in RESERVED_KEYS
            or has_control_character(key)
            or has_control_character(value)
        ):
            text = (
                f"the property key {key!r} is reserved, empty, or has a control character in it or"
                " its value"
            )
            raise refused(row, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
    try:
        rest = encode(fields)
    except LedgerError as error:
        raise refused(row, error.code, error.message) from None
    found = complaint(rest, PROPERTIES_BYTES_MAX, USER_PROPERTIES_MAX)
    if found is not None:
        raise refused(row, found.code, found.reason)
    return rest
