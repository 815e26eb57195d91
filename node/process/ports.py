"""What starting nodes on this machine needs of a process. Protocols only; tests fork instead of starting an interpreter."""

from __future__ import annotations

from typing import Protocol


class Process(Protocol):
    """What is needed of a started process; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...
