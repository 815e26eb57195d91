"""The single error table: every status code and exit code of LedgerMQ, its meaning, whose fault it
is, and whether to retry.

Codes are those of the client contract; clients, nodes and the command line all map through this
module. It knows no transport: the node writes a `LedgerError` into a response, and a client creates
one from a response.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from ledgermq.proto.carried import Carried


class Code(IntEnum):
    """Status codes of the contract that LedgerMQ sends or understands. `value // 100` is the
    HTTP-like class."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500


class Fault(str, Enum):
    """Who has to act. NOBODY: a normal outcome that the contract expresses as an error."""

    CALLER = "caller"
    CLUSTER = "cluster"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table. `retryable`: the same call may succeed later *and* repeating it does no
    harm except a duplicate message."""

    text: str
    at_fault: Fault
    retryable: bool


def _caller(text: str) -> Meaning:
    return Meaning(text, Fault.CALLER, False)


def _cluster(text: str, *, retryable: bool = True) -> Meaning:
    return Meaning(text, Fault.CLUSTER, retryable)


MEANINGS: dict[Code, Meaning] = {
    Code.OK: Meaning("OK", Fault.NOBODY, False),
    Code.MULTIPLE_RESULTS: Meaning(
        "the entries of the call have different results", Fault.NOBODY, False
    ),
    Code.BAD_REQUEST: _caller("the request is malformed"),
    Code.ILLEGAL_ACCESS_POINT: _caller("the endpoints in the request are not usable"),
    Code.ILLEGAL_TOPIC: _caller("the topic name breaks the naming rules or is reserved"),
    Code.ILLEGAL_CONSUMER_GROUP: _caller(
        "the consumer group name breaks the naming rules or is reserved"
    ),
    Code.ILLEGAL_MESSAGE_TAG: _caller("the tag is blank, contains '|' or a control character"),
    Code.ILLEGAL_MESSAGE_KEY: _caller("a message key is blank or contains a control character"),
    Code.ILLEGAL_MESSAGE_GROUP: _caller(
        "the message group is blank, too long or contains a control character"
    ),
    Code.ILLEGAL_MESSAGE_PROPERTY_KEY: _caller(
        "a user property has a reserved key or contains a control character"
    ),
    Code.INVALID_TRANSACTION_ID: _caller(
        "the transaction is not known, was dropped, or has ended the other way"
    ),
    Code.ILLEGAL_MESSAGE_ID: _caller("the message id is blank or contains a control character"),
    Code.ILLEGAL_FILTER_EXPRESSION: _caller("the filter expression is not understood"),
    Code.ILLEGAL_INVISIBLE_TIME: _caller("the invisible duration is out of range"),
    Code.ILLEGAL_DELIVERY_TIME: _caller("the delivery timestamp is out of range"),
    Code.INVALID_RECEIPT_HANDLE: _caller("the receipt handle is unknown, expired or replaced"),
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: _caller(
        "the type of the message does not fit the topic"
    ),
    Code.UNRECOGNIZED_CLIENT_TYPE: _caller("no settings of this client are known here"),
    Code.MESSAGE_CORRUPTED: _caller(
        "the batch is empty, mixes topics or does not match its digest"
    ),
    Code.CLIENT_ID_REQUIRED: _caller("the header x-mq-client-id is missing"),
    Code.ILLEGAL_POLLING_TIME: _caller("the long polling timeout does not fit the deadline"),
    Code.ILLEGAL_OFFSET: _caller("the offset is out of range"),
    Code.ILLEGAL_LITE_TOPIC: _caller("the name of the lite topic breaks the naming rules"),
    Code.LITE_TOPIC_QUOTA_EXCEEDED: _caller("the topic has too many lite topics"),
    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: _caller("the client reads from too many lite topics"),
    Code.UNAUTHORIZED: _caller("the credentials are not accepted"),
    Code.FORBIDDEN: _caller("the topic does not permit this"),
    Code.NOT_FOUND: _caller("it does not exist"),
    Code.MESSAGE_NOT_FOUND: Meaning("no new message", Fault.NOBODY, True),
    Code.TOPIC_NOT_FOUND: _caller("the topic does not exist"),
    Code.CONSUMER_GROUP_NOT_FOUND: _caller("the consumer group does not exist"),
    Code.OFFSET_NOT_FOUND: _caller("no such offset is known"),
    Code.REQUEST_TIMEOUT: _cluster("the request took too long"),
    Code.MESSAGE_BODY_TOO_LARGE: _caller("the message body is too large"),
    Code.MESSAGE_BODY_EMPTY: _caller("the message body is empty"),
    Code.PRECONDITION_FAILED: _caller(
        "it exists with other settings, or something else forbids the change"
    ),
    Code.TOO_MANY_REQUESTS: _cluster("the cluster cannot take more at the moment"),
    Code.MESSAGE_PROPERTIES_TOO_LARGE: _caller(
        "there are too many or too large message properties"
    ),
    Code.INTERNAL_ERROR: _cluster("internal error"),
    Code.INTERNAL_SERVER_ERROR: _cluster("internal server error"),
    Code.HA_NOT_AVAILABLE: _cluster("the broker group has no leader"),
    Code.NOT_IMPLEMENTED: _cluster("not implemented", retryable=False),
    Code.PROXY_TIMEOUT: _cluster("no answer from the broker group in time"),
    Code.MASTER_PERSISTENCE_TIMEOUT: _cluster("the leader could not store it in time"),
    Code.SLAVE_PERSISTENCE_TIMEOUT: _cluster(
        "the leader changed before a majority confirmed; it may have been stored"
    ),
    Code.UNSUPPORTED: _cluster("unsupported", retryable=False),
}


class LedgerError(Carried):
    """A call that ended with a status other than OK. Raise one through `fail`, which picks the
    class."""

    def __init__(self, code: int, message: str, *, retryable: bool, at_fault: Fault) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.at_fault = at_fault

    def __str__(self) -> str:
        return f"{self.message} ({code_name(self.code)} {int(self.code)})"


class BadRequest(LedgerError):
    """The request breaks a rule (class 400), a handle included."""


class Unauthorized(LedgerError):
    """Missing or wrong credentials (class 401)."""


class Forbidden(LedgerError):
    """The caller is known, but not permitted (class 403)."""


class NotFound(LedgerError):
    """A topic, group, message or offset that does not exist (class 404)."""


class TooLarge(LedgerError):
    """Body or properties outside the limits (classes 413, 431)."""


class Conflict(LedgerError):
    """Conflicts with the current state, such as an existing topic with other settings (class
    428)."""


class Overloaded(LedgerError):
    """Flow control (class 429)."""


class ServerFailure(LedgerError):
    """The cluster failed (class 500)."""


class TimedOut(LedgerError):
    """No answer in time; the outcome may be unknown (classes 408, 504)."""


class Unsupported(LedgerError):
    """Not offered by this server (classes 501, 505), or a code of a newer one."""


_CLASSES: dict[int, type[LedgerError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: TimedOut,
    413: TooLarge,
    428: Conflict,
    429: Overloaded,
    431: TooLarge,
    500: ServerFailure,
    501: Unsupported,
    504: TimedOut,
    505: Unsupported,
}


def code_name(code: int) -> str:
    """The contract's name, or `CODE_<number>` for one this version does not know."""
    try:
        return Code(code).name
    except ValueError:
        return f"CODE_{code}"


def fail(code: int, message: str = "") -> LedgerError:
    """The error for `code`, ready to raise; without a message, the text of the table."""
    try:
        known = Code(code)
    except ValueError:
        kind = _CLASSES.get(code // 100, Unsupported)
        return kind(code, message or code_name(code), retryable=False, at_fault=Fault.CLUSTER)
    meaning = MEANINGS[known]
    kind = _CLASSES.get(code // 100, LedgerError)
    return kind(
        known, message or meaning.text, retryable=meaning.retryable, at_fault=meaning.at_fault
    )


def common(codes: set[int]) -> Code:
    """The outer status of a call with several entries: their common code, otherwise
    MULTIPLE_RESULTS; OK if there are none."""
    if not codes:
        return Code.OK
    return Code(next(iter(codes))) if len(codes) == 1 else Code.MULTIPLE_RESULTS


# Why the core of a broker group refused a call (node/broker/calls/outcome.py), mapped to codes of
# the contract.
REFUSALS: dict[str, Code] = {
    "not-leader": Code.HA_NOT_AVAILABLE,
    "no-leader": Code.HA_NOT_AVAILABLE,
    "disk-full": Code.INTERNAL_SERVER_ERROR,
    "in-sync-short": Code.HA_NOT_AVAILABLE,
    "store-away": Code.HA_NOT_AVAILABLE,
    "unknown-outcome": Code.PROXY_TIMEOUT,
    "busy": Code.TOO_MANY_REQUESTS,
    "unknown-topic": Code.TOPIC_NOT_FOUND,
    "too-large": Code.MESSAGE_BODY_TOO_LARGE,
    "too-many-transactions": Code.TOO_MANY_REQUESTS,
    "too-many-recalls": Code.TOO_MANY_REQUESTS,
    "too-many-letters": Code.PRECONDITION_FAILED,
    "illegal-offset": Code.ILLEGAL_OFFSET,
    "lite-topics": Code.LITE_TOPIC_QUOTA_EXCEEDED,
    "lite-subscriptions": Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    "transfer-refused": Code.PRECONDITION_FAILED,
    "members-refused": Code.PRECONDITION_FAILED,
    "members-not-yet": Code.PRECONDITION_FAILED,
    "time-epoch-refused": Code.PRECONDITION_FAILED,
    "seal-refused": Code.PRECONDITION_FAILED,
    "seal-not-yet": Code.PRECONDITION_FAILED,
    "unknown-producer": Code.NOT_FOUND,
    "stale-epoch": Code.PRECONDITION_FAILED,
    "sequence-gap": Code.PRECONDITION_FAILED,
    "partial-frame": Code.PRECONDITION_FAILED,
    "wrong-kind": Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
}
_REFUSAL_TEXTS = {
    "disk-full": "the disk of the leader is full; writing resumes when space returns",
    "unknown-outcome": (
        "the leader changed before a majority confirmed; the call may still take effect"
    ),
    "too-large": "the message does not fit into a log file",
}


def refused(reason: str, detail: str = "") -> LedgerError:
    """The error for a refusal reason of the core; `detail` replaces the default text."""
    return fail(
        REFUSALS.get(reason, Code.INTERNAL_SERVER_ERROR), detail or _REFUSAL_TEXTS.get(reason, "")
    )


class ExitCode(IntEnum):
    """Exit statuses of the `ledgermq` command; 70–79 are those of a node that cannot start or
    continue."""

    OK = 0
    FAILED = 1
    """Checked and failed, or some items failed."""
    INCOMPLETE = 2
    UNREACHABLE = 3
    """No node answers, or no leader in time."""
    REFUSED = 4
    """Not found, exists already, illegal, denied, or would lose the quorum."""
    USAGE = 64
    DATA_ERROR = 65
    """A file that a command was given is not of the kind that it must be."""
    BUG = 70
    DATA_UNUSABLE = 71
    PORT_TAKEN = 72
    SYNC_FAILED = 73
    NO_SPACE = 74
    DAMAGED = 75
    """Damage at or below the synced mark."""
    WRONG_VERSION = 76
    """Unsupported platform or format version."""
    UNSAFE = 77
    """Missing secret or unsafe address."""
    MAP_LOST = 78
    """SIGBUS on a mapped file."""
    LIMIT = 79
    """The operating system provides no more open files, maps or memory."""
    INTERRUPTED = 130
