"""The value types of a node's configuration (durations, sizes, ports, names) and the base class of
its sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ledgermq.proto import units
from ledgermq.proto.host_port import host_of
from ledgermq.proto.workers import MEMBER_NAME, NODE_NAME

NAME = f"^{NODE_NAME}$"


def parse_duration_ms(value: object) -> object:
    """Milliseconds from `500ms`, `10s`, `2m`, `1h`, or a plain number. Raises ValueError; leaves
    other types to pydantic."""
    if isinstance(value, str):
        if value.strip().isdigit():
            return int(value)
        if (milliseconds := units.duration_ms(value)) is None:
            raise ValueError(
                f"expected a duration such as {units.DURATION_FORM}, or a number of milliseconds"
            )
        return milliseconds
    return value


def parse_size_bytes(value: object) -> object:
    """Bytes from `64KiB`, `64MiB`, `1GiB`, or a plain number. Raises ValueError; leaves other types
    to pydantic."""
    if isinstance(value, str):
        if value.strip().isdigit():
            return int(value)
        if (size := units.size_bytes(value)) is None:
            raise ValueError(f"expected a size such as {units.SIZE_FORM}, or a number of bytes")
        return size
    return value


Milliseconds = Annotated[int, BeforeValidator(parse_duration_ms), Field(ge=0, le=366 * 86_400_000)]
Bytes = Annotated[int, BeforeValidator(parse_size_bytes), Field(ge=0, le=1 << 46)]
Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(min_length=1), AfterValidator(host_of)]
"""A name or an address; an IPv6 address with or without brackets, which the value does not have."""
Name = Annotated[str, Field(pattern=NAME)]
Member = Annotated[str, Field(pattern=f"^{MEMBER_NAME}$")]
"""The name of a node, or of one of its workers."""


class Section(BaseModel):
    """Base of all sections: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
