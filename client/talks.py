"""What is said to a cluster, as generators that never wait: a talk yields the calls and the pauses it wants, and ends with its result.

Every rule of the client (retries, pages, steps repeated until they are done) is written once, as a talk. Waiting is the drivers' alone:
`carry_out` blocks its thread, `carry_out_async` gives way to the event loop. No channel and no request is made here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call:
    """One unary call over the channel in use. The talk gets its answer, or its grpc.RpcError thrown."""

    path: str
    request: Message
    response: type[Message]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing for a while."""

    seconds: float


Step: TypeAlias = Call | Pause
Talk: TypeAlias = Generator[Step, Any, R]


def carry_out(talk: Talk[R], do: Callable[[Step], Any]) -> R:
    """The talk's result; `do` takes each step and blocks until it is over."""
    try:
        step = next(talk)
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
    """The talk's result; `do` takes each step and waits for it. Cancelling ends the talk where it is."""
    try:
        step = next(talk)
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
