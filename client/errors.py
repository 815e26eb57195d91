"""The errors that a caller of a cluster can meet, as exceptions whose attributes say who is at
fault and what to do.

The command line prints `what` and `remedy` and exits with `exit_code`; retry loops read
`retryable`. Codes are those of the RocketMQ client contract. Callers of the Python API meet
`Unreachable`, `Refused` and `BadArgument`; producers also raise `SendFailed` and its subclasses.
Only commands raise `Incomplete` and `Stopped`.
"""

from __future__ import annotations

import re

from ledgermq.proto.carried import Carried
from ledgermq.proto.status import Code, ExitCode, Fault, fail


class ClusterError(Carried):
    """Base of every error that a call to a cluster raises."""

    exit_code = ExitCode.REFUSED
    retryable = False
    unknown = False
    """For a send: whether the message may have been stored all the same. False: it was not
    stored."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


class Unreachable(ClusterError):
    """No endpoint answered, or no leader was found, within the timeout."""

    exit_code = ExitCode.UNREACHABLE
    retryable = True


class Refused(ClusterError):
    """The cluster refused the request. `code` is the contract's status code; `shown` holds lines of
    the caller's own text with the mistake marked."""

    def __init__(
        self, code: int, message: str, remedy: str = "correct the request", shown: str = ""
    ) -> None:
        known = fail(code, message)
        super().__init__(known.message, remedy)
        self.code = code
        self.shown = shown
        self.retryable = known.retryable


class SendFailed(ClusterError):
    """A message was not acknowledged before its deadline, or before its producer was closed. If
    `unknown`, it may be or become stored."""

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


class Stopped(ClusterError):
    """Ctrl-C in a command that cannot simply be run again: says what was done, and how to
    continue."""

    exit_code = ExitCode.INTERRUPTED


class BadArgument(ClusterError):
    """A value that cannot be sent; found before any call."""

    exit_code = ExitCode.USAGE


class WrongKind(BadArgument):
    """Native streams do not carry messages of this topic's kind."""

    def __init__(self, topic: str, kind: str) -> None:
        problem = f"topic {topic} is of kind {kind}; native streams carry ordinary messages only"
        super().__init__(
            problem, "send with an official client, or with `ledgermq send` without --receipts"
        )
        self.kind = kind


REMEDIES: dict[int, str] = {
    Code.ILLEGAL_TOPIC: "a topic name has 1 to 127 characters of A-Z a-z 0-9 _ - % |",
    Code.ILLEGAL_CONSUMER_GROUP: "a group name has 1 to 120 characters of A-Z a-z 0-9 _ - % |",
    Code.ILLEGAL_FILTER_EXPRESSION: "use *, tags joined with ||, or sql: followed by a condition",
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: "see the topic's kind: ledgermq topic describe NAME",
    Code.UNAUTHORIZED: (
        "set LEDGERMQ_ACCESS_KEY and LEDGERMQ_SECRET_KEY to the keys of a user (ledgermq user"
        " create)"
    ),
    Code.FORBIDDEN: "see the permissions: ledgermq user describe NAME",
    Code.PRECONDITION_FAILED: "remove this cause, then repeat the request",
    Code.TOPIC_NOT_FOUND: (
        "check the name (ledgermq topic list), or create it: ledgermq topic create NAME"
    ),
    Code.CONSUMER_GROUP_NOT_FOUND: (
        "check the name (ledgermq group list), or create it: ledgermq group create NAME"
    ),
    Code.MESSAGE_BODY_TOO_LARGE: "send a smaller body, or raise limits.max_body_bytes of the nodes",
    Code.MESSAGE_BODY_EMPTY: "give a body that is not empty",
}


PHRASES: tuple[tuple[int, re.Pattern[str], str], ...] = (
    (Code.UNAUTHORIZED, re.compile("no credentials"), REMEDIES[Code.UNAUTHORIZED]),
    (
        Code.UNAUTHORIZED,
        re.compile("unknown or the signature"),
        "check LEDGERMQ_ACCESS_KEY, LEDGERMQ_SECRET_KEY and this machine's clock",
    ),
    (
        Code.FORBIDDEN,
        re.compile("^(the )?topic "),
        "see its permission: ledgermq topic describe NAME",
    ),
    (Code.NOT_FOUND, re.compile("^there is no user "), "see: ledgermq user list"),
    (
        Code.PRECONDITION_FAILED,
        re.compile("exists"),
        "see its settings with `describe`, or choose another name",
    ),
)
"""Remedies for some texts of a code that has several causes."""
NEEDED: dict[str, tuple[str, str]] = {
    "NORMAL": ("normal or mixed", "give it what the topic's kind requires"),
    "FIFO": ("fifo or mixed", "omit the message group"),
    "DELAY": ("delay or mixed", "omit the delivery time"),
    "TRANSACTION": ("transaction or mixed", "send it outside of a transaction"),
    "PRIORITY": ("priority", "omit the priority"),
    "LITE": ("lite", "omit the lite topic"),
}
"""For each type of message: the kinds of topics that take it, and how to send another type
instead."""
GIVES: dict[str, str] = {
    "FIFO": "a message group",
    "DELAY": "a delivery time",
    "PRIORITY": "a priority",
    "LITE": "a lite topic",
}
"""What makes a message one of this type."""
_MISFIT = re.compile(
    r"a message of type ([A-Z]+) does not fit the topic, which takes ([A-Z]+(?: or [A-Z]+)*)"
    r" messages"
)

UNKNOWN_REMEDY = "see the node's log if the reason is not clear"


def refusal(code: int, message: str) -> Refused:
    """The exception for a status that is not OK. The message may contain a remedy behind a
    semicolon."""
    shown = ""
    if code == Code.ILLEGAL_FILTER_EXPRESSION:
        message, _, shown = message.partition("\n")
    what, _, remedy = message.partition("; ")
    said = what or fail(code).message
    special = next(
        (text for known, phrase, text in PHRASES if known == code and phrase.search(said)), ""
    ) or _of_misfit(what)
    if code == Code.UNAUTHORIZED:
        # A node does not know the variables in which the caller keeps its keys.
        remedy = special or remedy
    return Refused(code, what, remedy or special or REMEDIES.get(code) or _of_fault(code), shown)


def _of_misfit(text: str) -> str:
    """The remedy for a message whose type the topic does not take; empty for other refusals."""
    match = _MISFIT.fullmatch(text)
    if match is None or match[1] not in NEEDED:
        return ""
    kinds, instead = NEEDED[match[1]]
    if match[1] == "NORMAL" and match[2] in GIVES:
        instead = f"give the message {GIVES[match[2]]}"
    return f"{instead}, or send it to a topic of kind {kinds}"


def _of_fault(code: int) -> str:
    """The remedy for a code of which nothing more is known, by whose fault it is."""
    return "correct the request" if fail(code).at_fault is Fault.CALLER else UNKNOWN_REMEDY
