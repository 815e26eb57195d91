"""Conversion of the cluster's answers to the values of `results.py`: one reader for all of them,
driven by their annotations.

A field has the name it has in admin.proto, unless its class says otherwise. An absent field is
None, and so is an empty text if the class allows None.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from ledgermq.client.results import OF
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.names import parse_stored, stored_name

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(kind: type[T], message: Message) -> T:
    """Convert a message to a value of this class."""
    return kind(*(reader(message) for reader in _readers(cast(Hashable, kind))))


def read_all(kind: type[T], messages: Iterable[Message]) -> tuple[T, ...]:
    return tuple(read(kind, message) for message in messages)


def text_of(name: pb.Name) -> str:
    """The name of a topic or group as text."""
    return stored_name(name.namespace, name.name)


def name_of(text: str) -> pb.Name:
    """The inverse of `text_of`."""
    namespace, name = parse_stored(text)
    return pb.Name(namespace=namespace, name=name)


def moment_of(ms: int) -> datetime | None:
    """A moment as datetime; None if it is out of range, because producers may state any birth
    time."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def ms_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


@cache
def _readers(kind: Any) -> tuple[Callable[[Any], Any], ...]:
    """For each field of the class, in order, a function that reads its value from a message."""
    hints = get_type_hints(kind)
    return tuple(
        _reader(field.metadata.get(OF, field.name), hints[field.name])
        for field in dataclasses.fields(kind)
    )


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    if get_origin(hint) not in (Union, types.UnionType):
        value = _value(hint)
        return lambda message: value(getattr(message, name))
    (plain,) = (part for part in get_args(hint) if part is not types.NoneType)
    value = _value(plain)

    def optional(message: Any) -> Any:
        if message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name):
            return None
        found = getattr(message, name)
        return None if found == "" else value(found)

    return optional


def _value(hint: Any) -> Callable[[Any], Any]:
    """The conversion of a field's content to a value of this annotation."""
    if get_origin(hint) is tuple:
        item = _value(get_args(hint)[0])
        return lambda found: tuple(item(one) for one in found)
    if get_origin(hint) is Mapping:
        return dict
    if hint is datetime:
        return cast(Callable[[Any], Any], moment_of)
    if dataclasses.is_dataclass(hint):
        return lambda found: read(cast(type[Any], hint), found)
    if hint is str:
        return lambda found: text_of(found) if isinstance(found, pb.Name) else found
    return lambda found: found
