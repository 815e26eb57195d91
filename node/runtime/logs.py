"""Structured logs: one JSON object a line on stderr, nothing else.

Every line has `ts` (UTC), `level`, `event` and named fields; an exception becomes the field `exception`, never lines of its own. Under
`ledgermq up` the supervisor sends the stream to `node.log`, which may lie on the very disk that is full: a line that cannot be written is
lost, and nothing else happens.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import structlog
from aiohttp.http_exceptions import BadHttpMessage
from structlog.typing import EventDict, FilteringBoundLogger

from ledgermq.node.runtime import metrics

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


STDERR = 2
GRPC, CALL_IS_OVER = "grpc._cython.cygrpc", 'Failed "execute_batch"'
"""The logger of the gRPC server, and how its error begins when a call ended before all of its answer was written: the client is gone. An
error in the use of the library begins otherwise, and is logged."""
SNAPSHOTS = "pysyncobj.serializer"
"""The logger of what carries snapshots of the controller quorum to other nodes."""


def say(text: str) -> None:
    """Write to stderr without a buffer, which would remember a failed write and fail again at the end of the process."""
    with contextlib.suppress(OSError):
        os.write(STDERR, text.encode(errors="backslashreplace"))


class _Stderr:
    """What the logger takes for a file."""

    def write(self, text: str) -> None:
        say(text)

    def flush(self) -> None:
        pass


class _ThroughStructlog(logging.Handler):
    """Sends records of libraries (grpc, aiohttp, asyncio, pysyncobj) through the same renderer."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, BadHttpMessage):
            # Garbage on the HTTP port is the sender's fault, is answered, and would fill the log with its own bytes.
            return
        if record.name == GRPC and str(error).startswith(CALL_IS_OVER):
            metrics.CALLS_LEFT.inc()
            return
        logger = structlog.get_logger().bind(logger=record.name)
        if isinstance(error, OSError) and record.name == SNAPSHOTS:
            # The library goes on, and tries again: which file could not be used, and why, is all there is to tell.
            logger.log(record.levelno, record.getMessage(), reason=str(error))
            return
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


def configure(level: str, node: str) -> None:
    """Set up logging for this process."""

    def named(_: Any, __: str, fields: EventDict) -> EventDict:
        fields["node"] = node
        return fields

    structlog.configure(
        processors=[
            named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(_Stderr()),  # type: ignore[arg-type]  # write and flush are all it uses
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ThroughStructlog()]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def get_logger(**fields: Any) -> FilteringBoundLogger:
    """A logger with fixed fields."""
    logger: FilteringBoundLogger = structlog.get_logger(**fields)
    return logger
