"""Log records of libraries in the node's log: with their traceback, unless it adds nothing."""

from __future__ import annotations

import logging
import sys

import pytest
from grpc._cython import cygrpc
from structlog.testing import capture_logs

from ledgermq.node.runtime import logs, metrics

CALL = (
    "ExecuteBatchError raised in core by servicer method"
    " [/apache.rocketmq.v2.MessagingService/ReceiveMessage]"
)


def logged(name: str, message: str, error: Exception) -> list[dict[str, object]]:
    """What a library's record of an error becomes."""
    try:
        raise error
    except Exception:
        record = logging.LogRecord(name, logging.ERROR, __file__, 1, message, None, sys.exc_info())
    with capture_logs() as lines:
        logs._ThroughStructlog().emit(record)
    return [dict(line) for line in lines]


def test_a_client_that_is_gone_is_counted_and_not_logged() -> None:
    """The library calls it an error when the rest of an answer cannot be written."""
    before = metrics.CALLS_LEFT._value.get()
    gone = cygrpc.ExecuteBatchError('Failed "execute_batch": (<SendMessageOperation>,)')
    assert logged("grpc._cython.cygrpc", CALL, gone) == []
    assert metrics.CALLS_LEFT._value.get() == before + 1


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "grpc._cython.cygrpc",
            cygrpc.ExecuteBatchError(
                "Failed grpc_call_start_batch: 8 with grpc_call_error value: 'TOO_MANY'"
            ),
        ),
        ("grpc._cython.cygrpc", ValueError("a handler is wrong")),
        ("asyncio", cygrpc.ExecuteBatchError('Failed "execute_batch": (<SendMessageOperation>,)')),
        ("asyncio", OSError(5, "Input/output error")),
        ("pysyncobj.serializer", ValueError("x")),
    ],
)
def test_other_errors_are_logged_with_their_trace(name: str, error: Exception) -> None:
    """Errors in the use of the library, and those of other loggers."""
    before = metrics.CALLS_LEFT._value.get()
    (line,) = logged(name, "message", error)
    assert line["log_level"] == "error" and line["exc_info"][1] is error and line["logger"] == name  # type: ignore[index]
    assert metrics.CALLS_LEFT._value.get() == before


def test_a_snapshot_that_cannot_be_read_for_another_node_needs_no_trace() -> None:
    """The library that sends snapshots of the controller quorum catches the error and tries
    again."""
    error = OSError(5, "Input/output error", "/data/n1/controller/snapshot")
    (line,) = logged("pysyncobj.serializer", "Failed to open file for transmission", error)
    assert line["reason"] == str(error) and "exc_info" not in line and line["log_level"] == "error"
