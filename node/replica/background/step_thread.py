"""A thread that runs background work in steps."""

from __future__ import annotations

import threading
import time

from ledgermq.node.replica.background.ports import Steps


class StepThread:
    """See `ports.py:Worker`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.wake = self._woken.set
        self.now_s = time.monotonic
        self.spent_s = time.thread_time

    def start(self, steps: Steps) -> None:
        self._thread = threading.Thread(
            target=self._work, args=(steps,), name=self._name, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _work(self, steps: Steps) -> None:
        try:
            for rest in steps:
                if rest.wakes:
                    self._woken.wait(rest.limit_s)
                    self._woken.clear()
                else:
                    self._stop.wait(rest.limit_s)
                if self._stop.is_set():
                    break
        finally:
            steps.close()
