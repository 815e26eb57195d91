"""The permitted property strings of a native message (docs/format.md §4.5): exactly those that the
unary path writes for ordinary messages.

Every rule is implemented twice: for one message, with a reason, and for a whole frame with vector
operations, as yes or no. Both check the bytes behind the message id; tests compare them with each
other and with the encoder of `properties`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ledgermq.proto.entries import properties as names
from ledgermq.proto.entries.layout import distinct_topics
from ledgermq.proto.names import RESERVED_KEYS, has_control_character
from ledgermq.proto.status import Code
from ledgermq.proto.types import I32, I64

PROPERTIES_BYTES_MAX = 16 << 10
"""Limit on the properties behind the message id, unless the node states another."""
USER_PROPERTIES_MAX = 128

_FIXED = (names.TAG, names.KEYS, names.EXACT_KEYS, names.TRACE_CONTEXT)
"""In stored order; user properties follow."""
_TAG, _KEYS, _EXACT, _, _USER = range(len(_FIXED) + 1)
_OTHER_KINDS = frozenset(
    {names.MESSAGE_GROUP, names.DELIVER_MS, names.TRANSACTION, names.PRIORITY, names.LITE_TOPIC}
)
_SEPARATORS = re.compile("[\x01\x02]")
_CONTROL_BYTES = np.array([byte < 0x20 or byte == 0x7F for byte in range(256)])
_CONTROL_BYTES[1:3] = False


class Complaint(NamedTuple):
    """The reason for a refusal, with the contract's code."""

    code: Code
    reason: str


def _user_key(name: str) -> str | None:
    """The client's key of a stored name; None if it is not the name of a user property."""
    key = name.removeprefix(names.ESCAPE)
    return key if key and key not in RESERVED_KEYS and names.stored_user_name(key) == name else None


def name_complaint(name: str) -> Complaint | None:
    """The error in the name of a property; None if there is none."""
    return _known_name(name) if len(name) <= _KNOWN_NAME_MAX else _judge_name(name)


def _judge_name(name: str) -> Complaint | None:
    if name in _FIXED or _user_key(name) is not None:
        return None
    if name in _OTHER_KINDS:
        text = (
            f"property {name} makes it a message of another kind; send such messages one by one"
            " (SendMessage)"
        )
        return Complaint(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    return Complaint(
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        f"the property name {name!r} is reserved, empty or wrongly escaped",
    )


_KNOWN_NAME_MAX = 128
"""In characters. Longer names are checked each time, so that a sender of such names cannot fill the
memory."""
_known_name = lru_cache(maxsize=4096)(_judge_name)


def complaint(rest: bytes, bytes_max: int, user_max: int) -> Complaint | None:
    """The error in the properties behind the message id of one message; None if there is none."""
    if len(rest) > bytes_max:
        return Complaint(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message properties have {len(rest)} bytes; the limit is {bytes_max}",
        )
    try:
        text = rest.decode()
    except UnicodeDecodeError:
        return Complaint(Code.MESSAGE_CORRUPTED, "the message properties are not UTF-8 text")
    if has_control_character(_SEPARATORS.sub("", text)):
        return Complaint(Code.BAD_REQUEST, "a message property contains a control character")
    pieces = text.split("\x02")
    if pieces.pop() or any(piece.count("\x01") != 1 for piece in pieces):
        return Complaint(
            Code.MESSAGE_CORRUPTED,
            "the property string is not made of a name, 0x01, a value and 0x02",
        )
    return _pairs_complaint(
        [(name, value) for name, _, value in (piece.partition("\x01") for piece in pieces)],
        user_max,
    )


def _pairs_complaint(pairs: list[tuple[str, str]], user_max: int) -> Complaint | None:
    for name, _ in pairs:
        found = name_complaint(name)
        if found is not None:
            return found
    places = [
        (_FIXED.index(name), "") if name in _FIXED else (_USER, _user_key(name) or "")
        for name, _ in pairs
    ]
    if any(after <= before for before, after in pairwise(places)):
        return Complaint(
            Code.MESSAGE_CORRUPTED,
            "the message properties are not in their order, or one occurs twice",
        )
    users = sum(place[0] == _USER for place in places)
    if users > user_max:
        return Complaint(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {users} user properties; the limit is {user_max}",
        )
    values = dict(pairs)
    tag, keys, exact = values.get(names.TAG), values.get(names.KEYS), values.get(names.EXACT_KEYS)
    if tag is not None and (not tag.strip() or "|" in tag):
        return Complaint(Code.ILLEGAL_MESSAGE_TAG, f"the tag {tag!r} is blank or contains '|'")
    return None if keys is None and exact is None else _keys_complaint(keys, exact)


def _keys_complaint(joined: str | None, exact: str | None) -> Complaint | None:
    try:
        keys = (joined or "").split(" ") if exact is None else json.loads(exact)
    except (ValueError, RecursionError):
        keys = None
    if (
        joined is None
        or not isinstance(keys, list)
        or not keys
        or not all(isinstance(key, str) for key in keys)
    ):
        return Complaint(
            Code.ILLEGAL_MESSAGE_KEY, "the list of message keys does not conform to the format"
        )
    if any(key and (not key.strip() or has_control_character(key)) for key in keys):
        return Complaint(
            Code.ILLEGAL_MESSAGE_KEY, "a message key is blank or contains a control character"
        )
    if names.key_values(keys) != (joined, exact):
        return Complaint(
            Code.ILLEGAL_MESSAGE_KEY, f"the message keys {joined!r} do not conform to the format"
        )
    return None


def all_good(rests: bytes, lengths: I64, bytes_max: int, user_max: int) -> bool:
    """Whether `complaint` would accept all of these concatenated strings; none is empty."""
    raw = np.frombuffer(rests, np.uint8)
    ends = np.cumsum(lengths)
    if int(lengths.max()) > bytes_max or _CONTROL_BYTES[raw].any() or not _is_plain(rests):
        return False
    marks, splits = np.flatnonzero(raw == 2), np.flatnonzero(raw == 1)
    begins = np.empty(len(marks), np.int64)
    begins[:1], begins[1:] = 0, marks[:-1] + 1
    # One 0x01 in each property, not at its start; and the last property of a message ends where the
    # message's string does.
    if (
        len(marks) != len(splits)
        or (raw[ends - 1] != 2).any()
        or (splits <= begins).any()
        or (splits > marks).any()
    ):
        return False
    owners = np.searchsorted(ends, begins, side="right")
    found, name_of = distinct_topics(memoryview(rests), begins, splits - begins)
    if any(name_complaint(name) is not None for name in found):
        return False
    order = sorted(range(len(found)), key=lambda i: _place(found[i]))
    ranks = np.empty(len(found), np.int64)
    ranks[order] = np.arange(len(found))
    places = ranks[name_of] + owners * len(found)
    if (places[1:] <= places[:-1]).any():
        return False
    users = np.array([name not in _FIXED for name in found])
    if users.any() and int(np.bincount(owners[users[name_of]]).max()) > user_max:
        return False
    return _values_good(rests, found, name_of, owners, begins=splits + 1, ends=marks)


def _place(name: str) -> tuple[int, str]:
    return (_FIXED.index(name), "") if name in _FIXED else (_USER, _user_key(name) or "")


def _is_plain(rests: bytes) -> bool:
    """UTF-8 without control characters beyond ASCII: the separators are ASCII, so a property of all
    strings together holds for each."""
    if rests.isascii():
        return True
    try:
        return not has_control_character(_SEPARATORS.sub("", rests.decode()))
    except UnicodeDecodeError:
        return False


def _values_good(
    rests: bytes, found: tuple[str, ...], name_of: I32, owners: I64, begins: I64, ends: I64
) -> bool:
    if names.TAG in found:
        rows = np.flatnonzero(name_of == found.index(names.TAG))
        if not _tags_good(rests, begins[rows], ends[rows]):
            return False
    if names.EXACT_KEYS in found:
        # Rare enough to be checked one by one.
        return _exact_keys_good(rests, found, name_of, owners, begins, ends=ends)
    if names.KEYS not in found:
        return True
    rows = np.flatnonzero(name_of == found.index(names.KEYS))
    return _keys_good(rests, begins[rows], ends[rows])


def _tags_good(rests: bytes, begins: I64, ends: I64) -> bool:
    """Neither blank nor containing '|': decided by the first character, unless there is something
    unusual."""
    if (begins == ends).any():
        return False
    first = np.frombuffer(rests, np.uint8)[begins]
    if first.min() > 0x20 and first.max() < 0x80 and b"|" not in rests:
        return True
    tags = {
        rests[begin:end].decode() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    }
    return all(tag.strip() and "|" not in tag for tag in tags)


def _keys_good(rests: bytes, begins: I64, ends: I64) -> bool:
    """KEYS values without an exact list: words between single spaces, none of them empty or
    blank."""
    if (begins == ends).any():
        return False
    if rests.isascii() and b" " not in rests:
        return True
    values = [
        rests[begin:end].decode() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return all(_keys_complaint(value, None) is None for value in values)


def _exact_keys_good(
    rests: bytes, found: tuple[str, ...], name_of: I32, owners: I64, begins: I64, ends: I64
) -> bool:
    def values(name: str) -> dict[int, str]:
        rows = np.flatnonzero(name_of == found.index(name)).tolist() if name in found else []
        return {int(owners[row]): rests[int(begins[row]) : int(ends[row])].decode() for row in rows}

    joined, exact = values(names.KEYS), values(names.EXACT_KEYS)
    return all(
        _keys_complaint(joined.get(row), exact.get(row)) is None
        for row in joined.keys() | exact.keys()
    )
