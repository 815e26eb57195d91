"""The answer of a send between nodes, byte by byte, and those of other releases."""

from __future__ import annotations

import pytest

from ledgermq.proto import peer_pb2
from ledgermq.proto.send_answer import SendAnswer

GOLDEN = {
    b"\x12\x06answer\x12\x07durable\x12\x0217": SendAnswer(
        response=b"answer", durability="durable", queue=17
    ),
    b"\x12\x06answer\x12\x06memory\x12\x010": SendAnswer(
        response=b"answer", durability="memory", queue=0
    ),
    b"\x12\x06answer\x12\x06master": SendAnswer(response=b"answer", durability="master"),
}


@pytest.mark.parametrize("wire", GOLDEN)
def test_the_bytes_on_the_wire_stay(wire: bytes) -> None:
    """In both directions: nodes of other releases read and write these bytes."""
    result = peer_pb2.ForwardResult(responses=GOLDEN[wire].encode())
    assert result.SerializeToString() == wire
    assert SendAnswer.decode(peer_pb2.ForwardResult.FromString(wire).responses) == GOLDEN[wire]


def test_answers_of_other_releases_are_read() -> None:
    """One that ends early, and one with a part that is not known here."""
    assert SendAnswer.decode([b"answer"]) == SendAnswer(response=b"answer")
    known = SendAnswer(response=b"answer", durability="durable", queue=3)
    assert SendAnswer.decode([*known.encode(), b"more"]) == known
