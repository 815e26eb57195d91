"""Structured logs: one JSON object per line on stderr, nothing else.

Every line has `ts` (UTC), `level`, `event` and named fields; with tracing on, a line written while
a call is served has the `trace_id` and `span_id` of the call. An exception becomes the field
`exception`, never extra lines. Under `ledgermq up` the supervisor writes the stream to `node.log`,
which may be on the disk that is full: a line that cannot be written is lost, without any other
effect. The last lines stay in memory for `ledgermq member show`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web import RequestPayloadError
from structlog.typing import EventDict, FilteringBoundLogger

from ledgermq.node.runtime import metrics

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


STDERR = 2
GRPC, CALL_IS_OVER = "grpc._cython.cygrpc", 'Failed "execute_batch"'
"""The logger of the gRPC server, and the beginning of its error for a call that ended before the
answer was written completely because the client had gone. Errors in the use of the library begin
differently and are logged."""
SNAPSHOTS = "pysyncobj.serializer"
"""The logger of the PySyncObj module that transfers snapshots of the controller quorum to other
nodes."""
KEPT_LINES = 200
KEPT_CHARACTERS = 2_000
"""Longer lines are cut in memory, so that all kept lines take at most 1.6 MB."""
MASK = "********"


def say(text: str) -> None:
    """Writes to stderr without a buffer. A buffer would keep the text of a failed write and fail
    again at the end of the process."""
    with contextlib.suppress(OSError):
        os.write(STDERR, text.encode(errors="backslashreplace"))


class _Stderr:
    """The file object that structlog writes to."""

    def write(self, text: str) -> None:
        for secret in _hidden:
            text = text.replace(secret, MASK)
        say(text)
        line = text.rstrip("\n")
        _kept.append(line if len(line) <= KEPT_CHARACTERS else f"{line[:KEPT_CHARACTERS]}…")

    def flush(self) -> None:
        pass


class _ThroughStructlog(logging.Handler):
    """Sends records of libraries (grpc, aiohttp, asyncio, pysyncobj) through the same renderer."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (BadHttpMessage, RequestPayloadError)):
            # The sender is at fault and gets an answer; logging the error would fill the log with
            # the sender's garbage.
            return
        if record.name == GRPC and str(error).startswith(CALL_IS_OVER):
            metrics.CALLS_LEFT.inc()
            return
        logger = structlog.get_logger().bind(logger=record.name)
        if isinstance(error, OSError) and record.name == SNAPSHOTS:
            # The library continues and retries; only the file and the reason are worth a line.
            logger.log(record.levelno, record.getMessage(), reason=str(error))
            return
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


_ids: Callable[[], Mapping[str, str]] | None = None
_hidden: tuple[str, ...] = ()
_kept: deque[str] = deque(maxlen=KEPT_LINES)


def hide(*secrets: bytes) -> None:
    """Mask these secrets in each line from now on. No code writes them; a library, or the text of
    an error, might."""
    global _hidden
    texts = [secret.decode() for secret in secrets if secret and _is_text(secret)]
    _hidden = tuple(dict.fromkeys(json.dumps(text, ensure_ascii=False)[1:-1] for text in texts))


def _is_text(secret: bytes) -> bool:
    """Whether the secret can appear in a line as it is."""
    try:
        secret.decode()
    except UnicodeDecodeError:
        return False
    return True


def last_lines(limit: int) -> list[str]:
    """The last lines that this process logged, the oldest first; at most `KEPT_LINES`."""
    return list(_kept)[-limit:] if limit > 0 else []


def add_ids(current: Callable[[], Mapping[str, str]] | None) -> None:
    """Add the fields that `current` returns to each line from now on: what names the call that the
    line belongs to. None: no longer."""
    global _ids
    _ids = current


def configure(level: str, node: str) -> None:
    """Sets up logging for this process: the least level, and the node's name as a field of every
    line."""

    def named(_: Any, __: str, fields: EventDict) -> EventDict:
        fields["node"] = node
        if _ids is not None:
            fields.update(_ids())
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
