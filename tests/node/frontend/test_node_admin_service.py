"""The administration as it is composed of its nouns, and its error table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.node.frontend.admin.answering import answered
from ledgermq.node.frontend.admin.service import AdminService
from ledgermq.node.frontend.ports import AdminCalls
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code, LedgerError, fail

METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["Admin"].methods]


async def nothing(request: Any) -> Any:
    raise fail(Code.NOT_FOUND, "nothing is here")


async def echo(group: str, request: bytes) -> bytes:
    return group.encode() + request


class Noun:
    """Serves these methods."""

    def __init__(self, *methods: str, peers: tuple[str, ...] = ()) -> None:
        self._calls = AdminCalls(dict.fromkeys(methods, nothing), dict.fromkeys(peers, echo))

    def calls(self) -> AdminCalls:
        return self._calls


def test_every_method_is_served_by_one_noun() -> None:
    assert AdminService([Noun(*METHODS)]).methods.keys() == set(METHODS)
    with pytest.raises(AssertionError, match=f"not served once: {{{METHODS[0]!r}}}"):
        AdminService([Noun(*METHODS[1:])])
    with pytest.raises(AssertionError, match="two nouns serve"):
        AdminService([Noun(*METHODS), Noun(METHODS[3])])
    with pytest.raises(AssertionError, match="two nouns serve"):
        AdminService([Noun(*METHODS, peers=("a",)), Noun(peers=("a",))])


def test_a_question_of_a_newer_version_is_refused() -> None:
    service = AdminService([Noun(*METHODS, peers=("known",))])
    assert asyncio.run(service.execute("g1", "known", b"?")) == [b"g1?"]
    with pytest.raises(LedgerError, match="does not know the question unknown") as error:
        asyncio.run(service.execute("g1", "unknown", b""))
    assert error.value.code == Code.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (fail(Code.NOT_FOUND, "it is gone"), Code.NOT_FOUND, "it is gone"),
        (TimeoutError(), Code.PROXY_TIMEOUT, "no answer in time"),
        (KeyError("secret"), Code.INTERNAL_SERVER_ERROR, "internal error, KeyError"),
    ],
)
def test_every_failure_becomes_a_status(failure: Exception, code: Code, text: str) -> None:
    """A bug too: the client sees its kind, and nothing that it says."""

    async def call(request: Any) -> Any:
        raise failure

    answer = asyncio.run(answered("Peek", call)(pb.PeekRequest(), None))
    assert isinstance(answer, pb.PeekResponse) and answer.status.code == code
    assert answer.status.message.startswith(text) and "secret" not in answer.status.message
