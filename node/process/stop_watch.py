"""Reports what a slow stop waits for: where every thread and every task of the loop is.

It runs on a timer's thread, so it reports even if the loop, or the end of the interpreter, is
blocked. It ends nothing and changes nothing: the process that started the node decides how long a
stop may take.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType

from ledgermq.node.runtime.logs import get_logger

log = get_logger()


def watch_stop(loop: asyncio.AbstractEventLoop, slow_s: float) -> threading.Timer:
    """Start the timer. Its thread is a daemon and need not be cancelled, because the process is
    about to end."""
    timer = threading.Timer(slow_s, lambda: _report(loop, slow_s))
    timer.name, timer.daemon = "stop-watch", True
    timer.start()
    return timer


def _report(loop: asyncio.AbstractEventLoop, slow_s: float) -> None:
    frames = sys._current_frames()
    own = threading.get_ident()
    threads = [
        f"{thread.name}: {_place(frames.get(thread.ident or 0))}"
        for thread in threading.enumerate()
        if thread.ident != own
    ]
    tasks = []
    for task in asyncio.all_tasks(loop):
        stack = task.get_stack(limit=1)
        tasks.append(f"{task.get_name()}: {_place(stack[0] if stack else None)}")
    log.warning("the stop is slow", seconds=slow_s, tasks=sorted(tasks), threads=threads)


def _place(frame: FrameType | None) -> str:
    """The two innermost calls."""
    places: list[str] = []
    while frame is not None and len(places) < 2:
        places.append(
            f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        )
        frame = frame.f_back
    return " < ".join(places) or "not started"
