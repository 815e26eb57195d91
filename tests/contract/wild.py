"""Random requests: any message type filled from its descriptor, with names, handles and ids that
exist in the test.

The same seed gives the same requests, as long as the answers are the same.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_INTEGERS = (
    0,
    1,
    -1,
    2,
    7,
    31,
    32,
    127,
    1000,
    65535,
    2**31 - 1,
    -(2**31),
    2**40,
    1_795_000_000,
    1_795_000_000_000,
    2**63 - 1,
    -(2**63),
)
_ODD = ("", " ", "\n", "\x01\x02", "ü€𝄞", "x" * 63, "x" * 64, "x" * 300, "0", "-1")
_TEXTS = (*_ODD, "*", "a || b", "|", "a > 1 AND b = 'x'", "a >", "(" * 200)
_FLOATS = (0.0, -1.0, 1.5, 1e300, float("inf"), float("nan"))
_DEPTH = 6
_MUTATED = 0.1
_REMEMBERED = 200


class Wild:
    """Generates requests. `names`: existing topics, groups and so on; handles and ids from answers
    are reused."""

    def __init__(self, seed: int, names: tuple[str, ...]) -> None:
        self.chance = random.Random(seed)
        self._names = names
        self._known: deque[str] = deque(maxlen=_REMEMBERED)

    def request(self, descriptor: Any, good: Message | None = None) -> bytes:
        """The bytes of one request of this type: `good` with some fields changed, or a random one;
        some requests are corrupted afterwards."""
        message = GetMessageClass(descriptor)()
        if good is None:
            self._fill(message, _DEPTH)
        else:
            message.CopyFrom(good)
            self._touch(message)
        data = bytearray(message.SerializeToString())
        if data and self.chance.random() < _MUTATED:
            for _ in range(self.chance.randrange(1, 4)):
                data[self.chance.randrange(len(data))] = self.chance.randrange(256)
        return bytes(data)

    def known(self) -> str:
        """A handle or id of an earlier answer."""
        return self.chance.choice(self._known) if self._known else "-"

    def learn(self, message: Message) -> None:
        """Remember handles and ids of an answer."""
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                if field.message_type.GetOptions().map_entry:
                    continue
                for item in value if _is_list(field, value) else (value,):
                    self.learn(item)
            elif field.type == FieldDescriptor.TYPE_STRING and field.name.endswith(
                ("_handle", "_id")
            ):
                self._known.extend(value if _is_list(field, value) else (value,))

    def _touch(self, message: Message) -> None:
        """Change one field in ten, at any depth."""
        for field in message.DESCRIPTOR.fields:
            if self.chance.random() < 0.1:
                message.ClearField(field.name)
                fresh = type(message)()
                self._fill(fresh, 2)
                if field.name in {known.name for known, _ in fresh.ListFields()}:
                    wanted = type(message)()
                    wanted.CopyFrom(fresh)
                    for other, _ in fresh.ListFields():
                        if other.name != field.name:
                            wanted.ClearField(other.name)
                    message.MergeFrom(wanted)
            elif (
                field.type == FieldDescriptor.TYPE_MESSAGE
                and not field.message_type.GetOptions().map_entry
            ):
                value = getattr(message, field.name)
                for item in (
                    value
                    if _repeated(field)
                    else ((value,) if message.HasField(field.name) else ())
                ):
                    self._touch(item)

    def _fill(self, message: Message, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            # Most fields are set, so that most requests pass the first checks.
            if depth == 0 or self.chance.random() < 0.25:
                continue
            if (
                field.type == FieldDescriptor.TYPE_MESSAGE
                and field.message_type.GetOptions().map_entry
            ):
                self._fill_map(field, getattr(message, field.name))
            elif _repeated(field):
                into = getattr(message, field.name)
                for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
                    if field.type == FieldDescriptor.TYPE_MESSAGE:
                        self._fill(into.add(), depth - 1)
                    else:
                        into.append(self._value(field))
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill(getattr(message, field.name), depth - 1)
                getattr(message, field.name).SetInParent()
            else:
                setattr(message, field.name, self._value(field))

    def _fill_map(self, field: FieldDescriptor, into: Any) -> None:
        for _ in range(self.chance.randrange(3)):
            if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_MESSAGE:
                into[self._text()].SetInParent()
            else:
                into[self._text()] = self._value(field.message_type.fields_by_name["value"])

    def _value(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._bytes() if field.type == FieldDescriptor.TYPE_BYTES else self._text()
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.chance.choice([*(value.number for value in field.enum_type.values), 99])
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.chance.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self.chance.choice(_FLOATS)
        bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
        least = (
            0
            if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
            else -(1 << bits - 1)
        )
        return min(max(self.chance.choice(_INTEGERS), least), least + (1 << bits) - 1)

    def _text(self) -> str:
        draw = self.chance.random()
        if draw < 0.6:
            return self.chance.choice(self._names)
        if draw < 0.8 and self._known:
            return self.chance.choice(self._known)
        return self.chance.choice(_TEXTS)

    def _bytes(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((0, 1, 100, 100, 100, 70_000)))


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _is_list(field: FieldDescriptor, value: Any) -> bool:
    return _repeated(field) and not isinstance(value, str | bytes)
