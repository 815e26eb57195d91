"""What a node does about leadership beside its groups: leaving within bounds, and one history from
replicas that answer and that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import HandedOver, HandingOver, HandOver
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.broker.queries.leadership_history import LeadershipEvent
from ledgermq.node.frontend.admin.cluster import leadership_admin
from ledgermq.node.frontend.admin.cluster.leadership_admin import Leadership
from ledgermq.proto import admin_pb2
from ledgermq.raft.transfer import Cause

WON = LeadershipEvent(5000, 2, "n1", "n2", Cause.ELECTION_TIMEOUT, "n1", 600)


class FakeEngine:
    """Answers every call with one outcome, or never."""

    groups = ("g1", "g2")

    def __init__(self, outcome: Any = None) -> None:
        self.outcome = outcome
        self.calls: list[tuple[str, HandOver]] = []

    def new_token(self) -> int:
        return len(self.calls) + 1

    def call(self, group: str, call: HandOver) -> asyncio.Future[Any]:
        self.calls.append((group, call))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.outcome is not None:
            future.set_result(self.outcome)
        return future


class FakeForwarder:
    """n2 answers with one event, n3 with a cause of a newer version; no other node is reachable."""

    async def ask(self, node: str, method: str, request: bytes, deadline: float) -> Sequence[bytes]:
        event = leadership_admin._packed(WON)
        if node == "n3":
            event.cause = 77
        elif node != "n2":
            raise CallRefused(Refused("unknown-outcome"))
        return [admin_pb2.LeadershipHistoryResponse(events=[event]).SerializeToString()]


def service(engine: FakeEngine) -> Leadership:
    return Leadership("n1", engine, FakeForwarder(), None, {"g1": ("n1", "n2", "n3")}, lambda: 7)  # type: ignore[arg-type]


def test_leaving_asks_every_group_once() -> None:
    """Each group is informed that its node stops, whichever node leads it, with a deadline of one
    second."""
    engine = FakeEngine(Refused("not-leader", "n2"))
    asyncio.run(service(engine).leave())
    assert [(group, call.to, call.cause) for group, call in engine.calls] == [
        (g, None, Cause.PLANNED_STOP) for g in ("g1", "g2")
    ]
    assert {call.patience_ns for _, call in engine.calls} == {10**9} and {
        call.until_ns for _, call in engine.calls
    } == {10**9 + 7}


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        HandedOver("n2"),
        HandingOver("n2", 4),
        Refused("transfer-refused", "n1", "nobody is there"),
    ],
)
def test_leaving_never_holds_a_stop_up(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop continues whatever happens, even if the engine does not answer."""
    monkeypatch.setattr(leadership_admin, "ENGINE_WITHIN_S", 0.01)
    asyncio.run(service(FakeEngine(outcome)).leave())


@pytest.mark.parametrize("last", [-5, 0, 1, 1000])
def test_leadership_history_names_unreachable_replicas(last: int) -> None:
    """Unreachable replicas, and those of a version we do not understand, are named; any number of
    changes may be asked for."""
    request = admin_pb2.LeadershipHistoryRequest(broker_group="g1", last=last)
    answer = asyncio.run(service(FakeEngine()).history(request))
    assert answer.reason == "election-timeout"
    assert answer.evidence[0].endswith(
        "term 2: n1 -> n2, election timeout: not heard from n1 for 600 ms (told by n2)"
    )
    assert [line.partition(" ")[0] for line in answer.evidence[1:]] == ["n1", "n3"]


def test_an_event_survives_the_way_between_nodes() -> None:
    """Absent names stay absent."""
    lost = LeadershipEvent(1, 2, "n1", None, Cause.NO_MAJORITY, "", 900)
    first = LeadershipEvent(1, 1, None, "n1", Cause.STARTED, "", 0)
    for event in (WON, lost, first):
        assert leadership_admin._unpacked(leadership_admin._packed(event)) == event


@pytest.mark.parametrize(
    ("outcome", "code", "done"),
    [
        (HandedOver("n2"), 20000, True),
        (HandingOver("n2", 4), 20000, False),
        (Refused("transfer-refused", "n1", "no"), 42800, False),
    ],
)
def test_the_leader_answers_a_transfer_in_the_words_of_the_contract(
    outcome: Any, code: int, done: bool
) -> None:
    """Done, running with its lag, or refused permanently."""
    request = admin_pb2.TransferLeadershipRequest(broker_group="g1", to="n2")
    answer = asyncio.run(service(FakeEngine(outcome)).transfer_here(request))
    assert (answer.status.code, answer.done, answer.lag_entries) == (
        code,
        done,
        0 if done or code != 20000 else 4,
    )


def test_transfer_on_a_former_leader_is_refused_for_forwarding() -> None:
    """`not-leader` lets the forwarder ask the next node."""
    request = admin_pb2.TransferLeadershipRequest(broker_group="g1", to="n2")
    with pytest.raises(CallRefused):
        asyncio.run(service(FakeEngine(Refused("not-leader", "n2"))).transfer_here(request))
