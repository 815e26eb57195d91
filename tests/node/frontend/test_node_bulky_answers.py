"""Reads of the administration are counted while they build their answers, and what they built until
their client has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.node.frontend.admin import admin_port
from ledgermq.node.frontend.admin.admin_port import BULKY, admin_methods
from ledgermq.node.frontend.ports import UnaryMethod
from ledgermq.node.runtime import answer_budget
from ledgermq.node.runtime.answer_budget import BULKY_BYTES, COPIES, AnswerBudget
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code

BODY = b"x" * 100_000


class Service:
    """Every method answers at once; Peek with a message."""

    def __init__(self, budget: AnswerBudget) -> None:
        self.budget = budget
        self.held: list[int] = []

    def method(self, name: str) -> Any:
        response = getattr(admin_pb2, f"{name}Response")

        async def serve(request: Any, context: Any) -> Any:
            self.held.append(self.budget.held_bytes)
            return (
                response(messages=[admin_pb2.PeekedMessage(body=BODY)])
                if name == "Peek"
                else response()
            )

        return serve


class Open:
    required = False


def methods(
    monkeypatch: pytest.MonkeyPatch, budget: AnswerBudget
) -> tuple[Service, dict[str, Any]]:
    monkeypatch.setattr(admin_port, "ANSWERS", budget)
    service = Service(budget)
    served = {name: service.method(name) for name in (*BULKY, "ClusterStatus")}
    found = admin_methods(served, Open())  # type: ignore[arg-type]
    return service, {
        name: method.serve for name, method in found.items() if isinstance(method, UnaryMethod)
    }


async def test_bulky_reads_take_turns_and_others_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = AnswerBudget(BULKY_BYTES, BULKY_BYTES)
    service, served = methods(monkeypatch, budget)
    assert served.keys() >= BULKY
    go_on = asyncio.Event()

    async def call() -> bytes:
        answer: bytes = await served["Peek"](b"", None)
        await go_on.wait()
        return answer

    first = asyncio.create_task(call())
    await asyncio.sleep(0)
    assert service.held == [BULKY_BYTES] and len(BODY) * COPIES < budget.held_bytes < 3 * len(BODY)
    second = asyncio.create_task(call())
    await served["ClusterStatus"](b"", None)
    assert len(service.held) == 2, (
        "the second Peek waits until the client has taken the first answer"
    )
    go_on.set()
    assert await first == await second
    await asyncio.sleep(0)
    assert len(service.held) == 3
    assert budget.held_bytes == 0


async def test_a_read_for_which_too_many_wait_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = AnswerBudget(BULKY_BYTES, BULKY_BYTES)
    _, served = methods(monkeypatch, budget)
    await budget.reserve(1)
    monkeypatch.setattr(answer_budget, "WAITERS_MAX", 0)
    status = admin_pb2.PeekResponse.FromString(await served["Peek"](b"", None)).status
    assert status.code == Code.TOO_MANY_REQUESTS and "limits.buffered_bytes" in status.message
