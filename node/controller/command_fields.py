"""Parses the fields of a controller command; an invalid field refuses the command. Pure, like
`metadata.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ledgermq.node.controller.state import Json, Key, Outcome
from ledgermq.proto.names import agreed_group_name, stored_name, topic_name
from ledgermq.proto.status import Code, LedgerError
from ledgermq.proto.workers import MEMBER_NAME

NODE_NAME = re.compile(MEMBER_NAME)


class Refused(Exception):
    """The command changes nothing; its outcome gives the reason."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.outcome = Outcome(int(code), detail)


def read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise Refused(Code.BAD_REQUEST, f"expected a text, not {value!r}")
    return value


def read_mapping(value: Any) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(Code.BAD_REQUEST, f"expected names and values, not {value!r}")
    return value


def read_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(Code.BAD_REQUEST, f"expected a list, not {value!r}")
    return value


def read_count(value: Any, field: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise Refused(
            Code.BAD_REQUEST, f"{field} must be a whole number from 1 to {most}, not {value!r}"
        )
    return value


def read_choice(kind: Callable[[str], Any], value: Any, field: str) -> Any:
    try:
        return kind(read_text(value))
    except ValueError:
        raise Refused(Code.BAD_REQUEST, f"{field} {value!r} is unknown") from None


def read_node_name(command: Json) -> str:
    name = read_text(command.get("node"))
    if not NODE_NAME.fullmatch(name):
        raise Refused(
            Code.BAD_REQUEST,
            f"{name!r} is no name of a node: letters, digits, '_' and '-', at most 63",
        )
    return name


def read_key(command: Json, check: Callable[[str, str], str]) -> Key:
    key = read_text(command.get("ns")), read_text(command.get("name"))
    try:
        check(*key)
    except LedgerError as error:
        raise Refused(error.code, error.message) from error
    return key


def read_topic_key(command: Json) -> Key:
    return read_key(command, topic_name)


def read_group_key(command: Json) -> Key:
    return read_key(command, agreed_group_name)


def name_of(key: Key) -> str:
    return stored_name(*key)


def existing(known: Mapping[Key, Any], key: Key, code: Code, what: str) -> Any:
    if key not in known:
        raise Refused(code, f"{what} {name_of(key)} does not exist")
    return known[key]
