"""Conversations with a cluster as generators that never wait: a talk yields the calls and pauses it
needs, and returns its result.

Every rule of the client (retries, pages, steps repeated until done) is written once, as a talk.
Only the drivers wait: `carry_out` blocks its thread, `carry_out_async` awaits on the event loop.
This module opens no channel and builds no request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from ledgermq.client.errors import BadArgument

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call:
    """One unary call over the channel in use. The talk receives its answer; a grpc.RpcError is
    thrown into it."""

    path: str
    request: Message
    response: type[Message]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of this length."""

    seconds: float


Step: TypeAlias = Call | Pause
Talk: TypeAlias = Generator[Step, Any, R]


def _first(talk: Talk[R]) -> Step:
    """The first step. A talk builds its request before it: what the arguments do not give is a
    mistake in them."""
    try:
        return next(talk)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadArgument(
            f"an argument cannot be sent ({error})", "correct its type or value"
        ) from error


def carry_out(talk: Talk[R], do: Callable[[Step], Any]) -> R:
    """Run a talk and return its result; `do` executes each step and blocks until it is done. Raises
    BadArgument."""
    try:
        step = _first(talk)
        while True:
            try:
                outcome = do(step)
            except grpc.RpcError as error:
                step = talk.throw(error)
            else:
                step = talk.send(outcome)
    except StopIteration as end:
        found: R = end.value
        return found


async def carry_out_async(talk: Talk[R], do: Callable[[Step], Awaitable[Any]]) -> R:
    """Run a talk and return its result; `do` executes each step and awaits it. Cancellation ends
    the talk at the current step. Raises BadArgument."""
    try:
        step = _first(talk)
        while True:
            try:
                outcome = await do(step)
            except grpc.RpcError as error:
                step = talk.throw(error)
            else:
                step = talk.send(outcome)
    except StopIteration as end:
        found: R = end.value
        return found
    finally:
        talk.close()
