"""The errors with which a node stops by itself. Each has an exit code and a sentence that tells the
operator what to do."""

from __future__ import annotations


class FatalError(Exception):
    """The node cannot start or go on. `exit_code` is one of 70–79; `what` and `remedy` form one
    sentence for the operator."""

    def __init__(self, exit_code: int, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.exit_code = exit_code
        self.what = what
        self.remedy = remedy


class ConfigError(FatalError):
    """The configuration is wrong (exit 64)."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(64, what, remedy)
