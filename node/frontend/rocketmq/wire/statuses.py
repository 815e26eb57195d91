"""`Status` values of the contract, and the one translation of refusals and unexpected errors into
them."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, LedgerError, fail, refused

log = get_logger()

OK = pb.Status(code=pb.OK, message="OK")


def status(code: int, message: str) -> pb.Status:
    """A status; codes that this version's table does not have pass unchanged (proto3 enums are
    open)."""
    return pb.Status(code=int(code), message=message)  # type: ignore[arg-type]


def status_of(error: LedgerError) -> pb.Status:
    """The status for a call, or an entry of one, that was refused. Of a receipt handle RocketMQ
    says the name of the code, which clients look for; the reason is behind it."""
    name = "INVALID_RECEIPT_HANDLE: " if error.code == Code.INVALID_RECEIPT_HANDLE else ""
    return status(error.code, f"{name}{error.message}")


def unreadable() -> LedgerError:
    """The error for bytes that are not a message of the method's type."""
    return fail(Code.BAD_REQUEST, "the request is not a valid protobuf message of this method")


def refusal_error(refusal: Refused, node: str) -> LedgerError:
    """The error for the caller of a call that a broker group refused. `node` is the node that
    received the refusal."""
    if refusal.reason == "disk-full":
        return refused(
            refusal.reason,
            f"the disk of node {node} is full: nothing was stored; writing resumes by itself when"
            " space returns",
        )
    if refusal.reason == "too-large":
        return refused(
            refusal.reason,
            f"the message does not fit into a log file of this broker group ({refusal.detail})",
        )
    return refused(refusal.reason, refusal.detail)


def as_error(error: Exception, node: str, method: str) -> LedgerError:
    """The LedgerError for whatever ended a call. An unexpected exception is logged with its
    traceback and never shown to the client."""
    if isinstance(error, LedgerError):
        return error
    if isinstance(error, CallRefused):
        return refusal_error(error.refused, node)
    if isinstance(error, DecodeError):
        return unreadable()
    log.error("client call failed", method=method, exc_info=error)
    return fail(
        Code.INTERNAL_SERVER_ERROR, f"internal error on node {node}; its log has the details"
    )
