"""Maps failures of calls and streams of the Log service to `Problem` values of its contract."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.frontend.rocketmq.wire.statuses import refusal_error
from ledgermq.node.frontend.security.quotas import TooMuch
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import log_pb2
from ledgermq.proto.status import Code, LedgerError, fail

log = get_logger()

E = TypeVar("E", bound=BaseException)


class Moved(Exception):
    """Another node leads the broker group, or no node does: the caller is redirected."""

    def __init__(self, broker_group: str) -> None:
        super().__init__(broker_group)
        self.broker_group = broker_group


def bare(error: E) -> E:
    """An error that is kept for later, without its traceback. The traceback references every call
    that it passed and what those hold, such as frames. If the keeper is among them, that is a
    reference cycle, which waits for the garbage collector. The collector counts objects, not bytes,
    so under native frames minutes pass without a run. A cycle with a cancelled task is never freed,
    because the collector of CPython 3.11 does not see what such a task references."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def problem(error: LedgerError) -> log_pb2.Problem:
    """The error as a Problem. `retryable`: the error table says so, and the outcome is known."""
    encoded = log_pb2.Problem(
        code=int(error.code), message=error.message, retryable=error.retryable
    )
    if isinstance(error, TooMuch):
        encoded.retry_after_ms = error.retry_after_ms
    return encoded


def as_error(error: Exception, node: str, method: str) -> LedgerError:
    """The LedgerError for what ended a call. An unexpected exception is logged with its traceback
    and never shown to the client."""
    if isinstance(error, LedgerError):
        return error
    if isinstance(error, CallRefused):
        return refusal_error(error.refused, node)
    if isinstance(error, DecodeError):
        return fail(Code.BAD_REQUEST, f"the request is not a valid protobuf message of {method}")
    log.error("log call failed", method=method, exc_info=error)
    return fail(
        Code.INTERNAL_SERVER_ERROR, f"internal error on node {node}; its log has the details"
    )
