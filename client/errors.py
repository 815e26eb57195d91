"""The errors that a caller of a cluster can meet, as exceptions whose attributes say who is at fault and what to do.

The command line prints `what` and `remedy` and exits with `exit_code`; retry loops read `retryable`. Codes are those of the RocketMQ client
contract. Callers of the Python API meet `Unreachable`, `Refused` and `BadArgument`; producers also raise `SendFailed` and its subclasses.
Only commands raise `Incomplete`.
"""

from __future__ import annotations

from ledgermq.proto.status import Code, ExitCode, fail


class ClusterError(Exception):
    """Base of every error that a call to a cluster raises."""

    exit_code = ExitCode.REFUSED
    retryable = False
    unknown = False
    """For a send: whether the message may have been stored all the same. False: it was not stored."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


class Unreachable(ClusterError):
    """No endpoint answered, or no leader was found, within the timeout."""

    exit_code = ExitCode.UNREACHABLE
    retryable = True


class Refused(ClusterError):
    """The cluster refused the request. `code` is the contract's status code; `shown` holds lines of the caller's own text with the mistake
    marked."""

    def __init__(self, code: int, message: str, remedy: str = "correct the request", shown: str = "") -> None:
        known = fail(code, message)
        super().__init__(known.message, remedy)
        self.code = code
        self.shown = shown
        self.retryable = known.retryable


class SendFailed(ClusterError):
    """A message was not acknowledged before its deadline, or before its producer was closed. If `unknown`, it may be or become stored."""

    exit_code = ExitCode.UNREACHABLE
    retryable = True

    def __init__(self, what: str, remedy: str, *, unknown: bool) -> None:
        super().__init__(what, remedy)
        self.unknown = unknown


class ProducerFenced(SendFailed):
    """Another producer of the same name was opened; only the newest may send."""

    exit_code = ExitCode.REFUSED
    retryable = False


class Incomplete(ClusterError):
    """The result is correct but may be incomplete."""

    exit_code = ExitCode.INCOMPLETE
    retryable = True


class BadArgument(ClusterError):
    """A value that cannot be sent; found before any call."""

    exit_code = ExitCode.USAGE


class WrongKind(BadArgument):
    """Native streams do not carry messages of this topic's kind."""

    def __init__(self, topic: str, kind: str) -> None:
        what = f"topic {topic} is of kind {kind}; native streams carry ordinary messages only"
        super().__init__(what, "send with an official client, or with `ledgermq send` without --receipts")
        self.kind = kind


REMEDIES: dict[int, str] = {
    Code.ILLEGAL_TOPIC: "a topic name has 1 to 127 characters of A-Z a-z 0-9 _ - % |",
    Code.ILLEGAL_CONSUMER_GROUP: "a group name has 1 to 120 characters of A-Z a-z 0-9 _ - % |",
    Code.ILLEGAL_FILTER_EXPRESSION: "use *, tags joined with ||, or sql: followed by a condition",
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: "send to a topic of the matching kind: a message group needs a fifo topic",
    Code.UNAUTHORIZED: "set LEDGERMQ_ACCESS_KEY and LEDGERMQ_SECRET_KEY to the keys of a user (ledgermq user create)",
    Code.FORBIDDEN: "see its permission: ledgermq topic describe NAME",
    Code.PRECONDITION_FAILED: "see its settings with `describe`, or choose another name",
    Code.TOPIC_NOT_FOUND: "create it: ledgermq topic create NAME",
    Code.CONSUMER_GROUP_NOT_FOUND: "create it: ledgermq group create NAME",
    Code.MESSAGE_BODY_TOO_LARGE: "a body has at most 4 MiB",
    Code.MESSAGE_BODY_EMPTY: "give a body that is not empty",
}


UNKNOWN_REMEDY = "see the node's log if the reason is not clear"


def refusal(code: int, message: str) -> Refused:
    """The exception for a status that is not OK. The message may contain a remedy behind a semicolon."""
    shown = ""
    if code == Code.ILLEGAL_FILTER_EXPRESSION:
        message, _, shown = message.partition("\n")
    what, _, remedy = message.partition("; ")
    return Refused(code, what, remedy or REMEDIES.get(code, UNKNOWN_REMEDY), shown)
