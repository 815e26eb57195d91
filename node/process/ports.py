"""What starting nodes on this machine needs from a process. Protocols only; tests fork instead of
starting an interpreter."""

from __future__ import annotations

from typing import Protocol


class Process(Protocol):
    """A started process; `subprocess.Popen` implements this."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...
