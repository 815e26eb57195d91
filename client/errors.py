"""What can go wrong for a caller of a cluster, as exceptions whose attributes say who is at fault and what to do.

`exit_code`, `what` and `remedy` are what the command line prints; `retryable` is what retry loops read. Codes are those of the client
contract.
"""

from __future__ import annotations

EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4

# Codes after which the same request may well succeed: no leader yet, flow control, a time-out inside the cluster.
RETRYABLE_CODES = frozenset({42900, 50002, 50400, 50401, 50402})


class ClusterError(Exception):
    """Base of everything a call to a cluster raises."""

    exit_code = EXIT_REFUSED
    retryable = False

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


class Unreachable(ClusterError):
    """No endpoint answered, or no leader was found, within the time allowed."""

    exit_code = EXIT_UNREACHABLE
    retryable = True


class Refused(ClusterError):
    """The cluster answered, and the answer is no. `code` is the contract's status code."""

    def __init__(self, code: int, message: str, remedy: str = "correct the request") -> None:
        super().__init__(message or f"refused with code {code}", remedy)
        self.code = code
        self.retryable = code in RETRYABLE_CODES


class BadArgument(ClusterError):
    """A value that cannot be sent at all, found before any call."""

    exit_code = 64


REMEDIES = {
    40002: "topic names have 1 to 127 characters of A-Z a-z 0-9 _ - % |",
    40003: "group names have 1 to 120 characters of A-Z a-z 0-9 _ - % |",
    40010: "use * or tags joined with ||",
    40014: "send to a topic of the right kind: a message group needs a fifo topic",
    40300: "see its permission: ledgermq topic describe NAME",
    40402: "create it: ledgermq topic create NAME",
    40403: "create it: ledgermq group create NAME",
    41301: "a body has at most 4 MiB",
    41302: "give a body that is not empty",
}


def refusal(code: int, message: str) -> Refused:
    """The exception for a status that is not OK."""
    return Refused(code, message, REMEDIES.get(code, "see the node's log if the reason is not clear"))
