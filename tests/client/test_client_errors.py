"""Remedies: each fits its refusal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.client.errors import NEEDED, UNKNOWN_REMEDY, refusal
from ledgermq.node.frontend.rocketmq.wire.validation import ACCEPTED, check_kinds
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, LedgerError

SYSTEM: dict[str, dict[str, Any]] = {
    "NORMAL": {},
    "FIFO": {"message_group": "g"},
    "DELAY": {"delivery_timestamp": {"seconds": 1}},
    "TRANSACTION": {"message_type": pb.TRANSACTION},
    "PRIORITY": {"priority": 1},
    "LITE": {"lite_topic": "l"},
}


@pytest.mark.parametrize("sent", SYSTEM)
def test_the_remedy_for_a_wrong_kind_fits_the_message_and_the_topic(sent: str) -> None:
    """The node's own text is understood for every pair; the kinds named in the remedy do take such
    a message."""
    assert set(SYSTEM) == set(NEEDED)
    message = SimpleNamespace(system_properties=pb.SystemProperties(**SYSTEM[sent]))
    taking = []
    for kind in ACCEPTED:
        try:
            check_kinds(SimpleNamespace(messages=[message]), kind)  # type: ignore[arg-type]
            taking.append(kind.value)
        except LedgerError as error:
            remedy = refusal(error.code, error.message).remedy
            kinds = remedy.partition("of kind ")[2].split(" or ")
            assert kinds == NEEDED[sent][0].split(" or ")
            gives = {
                "fifo": "message group",
                "delay": "delivery time",
                "priority": "priority",
                "lite": "lite topic",
            }
            assert sent != "NORMAL" or gives.get(kind.value, "kind requires") in remedy
            assert sent == "NORMAL" or gives.get(sent.lower(), "transaction") in remedy
    assert sorted(taking) == sorted(NEEDED[sent][0].split(" or "))


@pytest.mark.parametrize(
    ("code", "message", "remedy"),
    [
        (Code.BAD_REQUEST, "topic t has the queues 0 to 7", "correct the request"),
        (Code.ILLEGAL_OFFSET, "the offset is -1", "correct the request"),
        (Code.INTERNAL_SERVER_ERROR, "internal error on node n1", UNKNOWN_REMEDY),
        (
            Code.UNAUTHORIZED,
            "the call carries no credentials; set the client's access key and secret key",
            "LEDGERMQ_ACCESS_KEY and",
        ),
        (
            Code.UNAUTHORIZED,
            "the access key is unknown or the signature does not match",
            "check LEDGERMQ_ACCESS_KEY",
        ),
        (Code.FORBIDDEN, "topic t has no writable queue", "topic describe"),
        (Code.FORBIDDEN, "no permission covers the method M", "user describe"),
        (Code.PRECONDITION_FAILED, "topic t exists with other settings", "describe"),
        (
            Code.PRECONDITION_FAILED,
            "consumer group g exists with other settings; change them",
            "change them",
        ),
        (Code.PRECONDITION_FAILED, "10.0.0.1:8081 is an address of node n2", "remove this cause"),
        (
            Code.MESSAGE_BODY_TOO_LARGE,
            "the message body has 9 bytes; the limit is 8",
            "the limit is 8",
        ),
    ],
)
def test_a_remedy_fits_the_text_of_its_refusal(code: Code, message: str, remedy: str) -> None:
    """A code with several causes has several remedies."""
    assert remedy in refusal(code, message).remedy
