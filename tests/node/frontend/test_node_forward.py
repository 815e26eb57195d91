"""Forwarding to the leader: which calls are retried, and which nodes are informed about clients.
Links are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from ledgermq.node.broker.calls.consumer_calls import ClientGone, ClientsAlive
from ledgermq.node.broker.calls.group_view import GroupView, HaView
from ledgermq.node.broker.calls.outcome import Call, CallRefused, Refused
from ledgermq.node.frontend.routing import forwarder
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.replica.ports import Lost, NotSent
from ledgermq.node.runtime import answer_budget
from ledgermq.node.runtime.answer_budget import BULKY_BYTES, AnswerBudget
from ledgermq.proto import peer_pb2

Result = peer_pb2.ForwardResult


def view(leader: str | None, serving: bool = True, term: int = 1) -> GroupView:
    return GroupView(leader, term, serving, {}, {}, {}, in_effect=("n1", "n2", "n3"))


@dataclass
class FakeEngine:
    views: dict[str, GroupView] = field(default_factory=dict)
    told: list[tuple[str, Call]] = field(default_factory=list)

    def notify(self, group: str, call: Call) -> None:
        self.told.append((group, call))


@dataclass
class FakeLink:
    """Answers from a list: results, or exceptions to raise."""

    answers: list[peer_pb2.ForwardResult | Exception] = field(default_factory=list)
    up: bool = True
    removed: bool = False
    calls: list[peer_pb2.ForwardCall] = field(default_factory=list)
    posted: list[peer_pb2.PeerMessage] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def post(self, message: peer_pb2.PeerMessage) -> None:
        self.posted.append(message)

    async def call(self, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        self.calls.append(call)
        self.before()
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class FakeExecutor:
    """Executes at once, or raises what it is given."""

    refusals: list[Refused] = field(default_factory=list)
    executed: list[tuple[str, str, bytes]] = field(default_factory=list)

    async def __call__(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Sequence[bytes]:
        self.executed.append((group, method, request))
        if self.refusals:
            raise CallRefused(self.refusals.pop(0))
        return [b"executed here"]


class Bench:
    """Node n1 of three with one group everywhere."""

    def __init__(
        self, leader: str | None, serving: bool = True, groups: Sequence[str] = ("g1",)
    ) -> None:
        self.engine = FakeEngine({group: view(leader, serving) for group in groups})
        self.links = {"n2": FakeLink(), "n3": FakeLink()}
        self.executor = FakeExecutor()
        self.forwarder = Forwarder(
            "n1",
            {group: ("n1", "n2", "n3") for group in groups},
            self.engine,
            self.links,
            lambda: 42,
        )
        self.forwarder.start(self.executor)

    def lead(self, leader: str | None, serving: bool = True) -> None:
        self.engine.views["g1"] = view(leader, serving)
        self.forwarder.changed()

    async def submit(self, seconds: float = 20, **options: bool) -> Sequence[bytes]:
        deadline = asyncio.get_running_loop().time() + seconds
        return await self.forwarder.submit(
            "g1", "SendMessage", {"k": "v"}, b"request", deadline, **options
        )

    async def refusal(self, seconds: float = 20) -> Refused:
        with pytest.raises(CallRefused) as caught:
            await self.submit(seconds)
        return caught.value.refused


async def test_follower_forwards_a_call_with_its_remaining_deadline() -> None:
    """A call is executed where the leader is; method, metadata, bytes and what is left of the
    deadline go along."""
    bench = Bench("n1")
    assert await bench.submit() == [b"executed here"]
    bench.lead("n2")
    bench.links["n2"].answers.append(Result(responses=[b"a", b"b"]))
    assert list(await bench.submit(20)) == [b"a", b"b"]
    call = bench.links["n2"].calls[0]
    assert (call.group, call.method, dict(call.metadata), call.request) == (
        "g1",
        "SendMessage",
        {"k": "v"},
        b"request",
    )
    assert 15_000 < call.deadline_ms <= 20_000
    assert len(bench.executor.executed) == 1


async def test_call_that_was_not_done_is_tried_again_at_the_new_leader() -> None:
    """not-leader from the other node, not-leader from our own executor, and a call that never left:
    all are tried again."""
    bench = Bench("n2")
    bench.links["n2"].answers.append(Result(not_leader=True, leader="n3"))
    bench.links["n2"].before = lambda: bench.lead("n3")
    bench.links["n3"].answers += [NotSent("down"), Result(responses=[b"done"])]
    assert list(await bench.submit()) == [b"done"]
    assert (len(bench.links["n2"].calls), len(bench.links["n3"].calls)) == (1, 2)
    bench.lead("n1")
    bench.executor.refusals.append(Refused("not-leader", "n2"))
    assert await bench.submit() == [b"executed here"]
    assert len(bench.executor.executed) == 2


@pytest.mark.parametrize("failure", [Lost("gone"), None])
async def test_call_with_unknown_outcome_is_not_repeated(
    failure: Exception | None,
) -> None:
    """Once it left this node, a lost stream or a passed deadline means unknown-outcome, although
    another leader is known."""
    bench = Bench("n2")
    bench.links["n2"].before = lambda: bench.lead("n3")
    if failure is not None:
        bench.links["n2"].answers.append(failure)
    refused = await bench.refusal(20 if failure is not None else 0.2)
    assert refused.reason == "unknown-outcome"
    assert not bench.links["n3"].calls and not bench.executor.executed


async def test_repeatable_call_is_retried_until_an_answer() -> None:
    """A lost stream and an unknown outcome here are no end for it; a refusal is, and so is the
    deadline, which says what is not known."""
    bench = Bench("n2")
    bench.links["n2"].before = lambda: bench.lead("n3")
    bench.links["n2"].answers.append(Lost("gone"))
    bench.links["n3"].answers.append(Result(responses=[b"done"]))
    assert list(await bench.submit(repeatable=True)) == [b"done"]
    bench.lead("n1")
    bench.executor.refusals.append(Refused("unknown-outcome"))
    assert await bench.submit(repeatable=True) == [b"executed here"]
    bench.executor.refusals.append(Refused("disk-full"))
    with pytest.raises(CallRefused, match="disk-full"):
        await bench.submit(repeatable=True)
    bench.executor.refusals.append(Refused("unknown-outcome"))
    with pytest.raises(CallRefused, match="unknown-outcome"):
        await bench.submit(0, repeatable=True)


async def test_refusal_of_the_leader_is_passed_on_and_not_tried_again() -> None:
    """disk-full and the like come from the leader's state; the caller decides."""
    bench = Bench("n2")
    bench.links["n2"].answers.append(Result(refusal="disk-full", grpc_message="no space"))
    assert await bench.refusal() == Refused("disk-full", detail="no space")
    bench.lead("n1")
    bench.executor.refusals.append(Refused("unknown-outcome"))
    assert (await bench.refusal()).reason == "unknown-outcome"
    assert len(bench.links["n2"].calls) == 1 and len(bench.executor.executed) == 1


async def test_calls_wait_for_a_leader_inside_their_deadline() -> None:
    """During an election nothing is sent; as soon as a leader serves, the call goes there. Without
    one it was certainly not done."""
    bench = Bench(None)
    call = asyncio.create_task(bench.submit())
    for leader, serving in ((None, False), ("n1", False)):
        bench.lead(leader, serving)
        await asyncio.sleep(0)
        assert not bench.executor.executed
    bench.lead("n1", True)
    assert await call == [b"executed here"]
    bench.lead(None)
    assert (await bench.refusal(0.1)).reason == "not-leader"
    assert not bench.links["n2"].calls


async def test_leader_without_a_connection_is_waited_for() -> None:
    """A known leader whose link is down gets nothing until the link is up again."""
    bench = Bench("n2")
    bench.links["n2"].up = False
    call = asyncio.create_task(bench.submit())
    await asyncio.sleep(0)
    assert not bench.links["n2"].calls
    bench.links["n2"].answers.append(Result(responses=[b"done"]))
    bench.links["n2"].up = True
    bench.forwarder.changed()
    assert list(await call) == [b"done"]


def forwarded(group: str = "g1", deadline_ms: int = 20_000) -> peer_pb2.ForwardCall:
    return peer_pb2.ForwardCall(
        sequence=1, group=group, method="SendMessage", request=b"r", deadline_ms=deadline_ms
    )


async def test_forwarded_call_is_executed_here_or_refused_but_never_forwarded_again() -> None:
    """A node that does not lead refuses and names the leader it knows; its own links are not
    used."""
    bench = Bench("n3")
    result = await bench.forwarder.execute_for_peer("n2", forwarded())
    assert result.not_leader and result.leader == "n3"
    assert (await bench.forwarder.execute_for_peer("n2", forwarded("unknown"))).not_leader
    bench.lead("n1")
    assert list((await bench.forwarder.execute_for_peer("n2", forwarded())).responses) == [
        b"executed here"
    ]
    assert not bench.links["n2"].calls and not bench.links["n3"].calls


async def test_a_master_that_cannot_serve_yet_says_so_at_once() -> None:
    """While too few are in sync there is nothing to wait for: calls are refused with the reason,
    here and for a peer."""
    bench = Bench("n1", serving=False)
    short = HaView(0, ("n1",), 2, False, False, "1 of the 2 replicas in sync")
    bench.engine.views["g1"] = replace(bench.engine.views["g1"], ha=short)
    refused = await bench.refusal()
    assert (refused.reason, refused.detail) == ("in-sync-short", short.short)
    answer = await bench.forwarder.execute_for_peer(
        "n2", peer_pb2.ForwardCall(group="g1", method="SendMessage", deadline_ms=20_000)
    )
    assert (answer.refusal, answer.grpc_message) == ("in-sync-short", short.short)
    assert not bench.executor.executed


async def test_forwarded_call_waits_until_the_new_leader_serves() -> None:
    """A node that has won but not yet applied its term start lets the call wait, and refuses it
    when it loses again."""
    bench = Bench("n1", serving=False)
    call = asyncio.create_task(bench.forwarder.execute_for_peer("n2", forwarded()))
    await asyncio.sleep(0)
    assert not bench.executor.executed
    bench.lead("n1", True)
    assert list((await call).responses) == [b"executed here"]
    bench.lead("n1", False)
    call = asyncio.create_task(bench.forwarder.execute_for_peer("n2", forwarded()))
    await asyncio.sleep(0)
    bench.lead("n2")
    assert (await call).not_leader


async def test_failures_of_the_executor_answer_a_forwarded_call() -> None:
    """Refusals travel as refusals, a bug as `internal`; neither ends the stream."""
    bench = Bench("n1")
    bench.executor.refusals.append(Refused("disk-full", detail="no space"))
    result = await bench.forwarder.execute_for_peer("n2", forwarded())
    assert (result.refusal, result.grpc_message) == ("disk-full", "no space")
    bench.executor.refusals.append(Refused("not-leader", "n3"))
    assert (await bench.forwarder.execute_for_peer("n2", forwarded())).leader == "n3"

    async def broken(*_: object) -> Sequence[bytes]:
        raise KeyError("bug")

    bench.forwarder.start(broken)
    assert (await bench.forwarder.execute_for_peer("n2", forwarded())).refusal == "internal"


def test_an_orderly_end_is_no_bug_of_the_executor() -> None:
    """A call that loses a part of this node under it has an unknown outcome; one that comes later
    was not done. Neither is logged."""

    async def main() -> None:
        bench = Bench("n1")
        begun, ended = asyncio.Event(), asyncio.Event()

        async def loses_its_part(*_: object) -> Sequence[bytes]:
            begun.set()
            await ended.wait()
            raise RuntimeError("cannot schedule new futures after shutdown")

        bench.forwarder.start(loses_its_part)
        calls = [
            asyncio.create_task(bench.forwarder.execute_for_peer("n2", call))
            for call in (forwarded(), forwarded(group=""))
        ]
        await begun.wait()
        bench.forwarder.stop()
        ended.set()
        assert [(await call).refusal for call in calls] == ["unknown-outcome"] * 2
        later = await bench.forwarder.execute_for_peer("n2", forwarded())
        assert later.not_leader and not later.HasField("leader")
        assert (await bench.forwarder.execute_for_peer("n2", forwarded(group=""))).refusal == "busy"

    with capture_logs() as lines:
        asyncio.run(main())
    assert not lines


async def test_group_without_a_replica_here_is_found_through_its_replicas() -> None:
    """Replicas are asked in turn; the leader they name, and the node that answered, are
    remembered."""
    bench = Bench("n1", groups=())
    forwarder = Forwarder("n1", {"far": ("n2", "n3")}, bench.engine, bench.links, lambda: 0)
    bench.links["n2"].answers.append(Result(not_leader=True, leader="n3"))
    bench.links["n3"].answers += [
        Result(not_leader=True, leader="n3"),
        Result(responses=[b"1"]),
        Result(responses=[b"2"]),
    ]
    deadline = asyncio.get_running_loop().time() + 20
    assert list(await forwarder.submit("far", "M", {}, b"", deadline)) == [b"1"]
    asked = len(bench.links["n2"].calls)
    assert list(await forwarder.submit("far", "M", {}, b"", deadline)) == [b"2"]
    assert len(bench.links["n2"].calls) == asked, "the second call went straight to the leader"


async def test_a_node_that_was_removed_does_not_wait_for_a_leader() -> None:
    """It will not hear of one again, so its callers should ask another node at once; while one peer
    still listens, it waits."""
    bench = Bench(None)
    bench.links["n2"].up, bench.links["n2"].removed = False, True
    assert "had no leader within the deadline" in (await bench.refusal(0.1)).detail
    bench.links["n3"].up = False
    began = asyncio.get_running_loop().time()
    assert (
        await bench.refusal(3600)
    ).detail == "node n1 was removed from its cluster; ask another node"
    assert asyncio.get_running_loop().time() - began < 1800


@pytest.mark.parametrize("end", ["down", "lost", "silent"])
async def test_a_leader_elsewhere_that_is_gone_is_looked_for_among_the_other_replicas(
    end: str,
) -> None:
    """For a group without a local replica, no view reports a leader change. The node that answered
    last is not asked any more once its stream is down, ended during a call, or gave no answer; and
    clients are not redirected to it."""
    bench = Bench("n1", groups=())
    forwarder = Forwarder("n1", {"far": ("n2", "n3")}, bench.engine, bench.links, lambda: 0)
    bench.links["n2"].answers += [Result(responses=[b"1"])]
    bench.links["n3"].answers += [Result(not_leader=True, leader="n2")]
    loop = asyncio.get_running_loop()
    assert list(await forwarder.submit("far", "M", {}, b"", loop.time() + 20)) == [b"1"]
    if end == "down":
        bench.links["n2"].up = False
    else:
        bench.links["n2"].answers += [Lost("gone")] if end == "lost" else []
        with pytest.raises(CallRefused, match="unknown-outcome"):
            await forwarder.submit(
                "far", "M", {}, b"", loop.time() + (20 if end == "lost" else 0.2)
            )
        assert forwarder.leader("far") is None
        bench.links["n2"].up = False
    # A follower may believe in the old leader for a while, too.
    bench.links["n3"].answers = [Result(not_leader=True, leader="n2"), Result(responses=[b"2"])]
    assert list(await forwarder.submit("far", "M", {}, b"", loop.time() + 20)) == [b"2"]
    assert forwarder.leader("far") == "n3"


async def test_signs_of_life_are_collected_and_told_to_leaders_here_and_elsewhere() -> None:
    """One message per leader's node has all active clients; only groups led here are informed
    directly."""
    bench = Bench("n1", groups=("g1", "g2", "g3"))
    bench.engine.views.update(g2=view("n2"), g3=view("n2"))
    for client in ("b", "a", "b"):
        bench.forwarder.on_contact(client)
    bench.forwarder.flush_signs()
    bench.forwarder.flush_signs()
    assert bench.engine.told == [("g1", ClientsAlive(frozenset("ab"), 42))]
    assert [list(message.client_signs.client_id) for message in bench.links["n2"].posted] == [
        ["a", "b"]
    ]
    assert not bench.links["n3"].posted
    bench.forwarder.client_gone("a")
    assert bench.engine.told[1:] == [("g1", ClientGone("a", 42))]
    assert bench.links["n2"].posted[1].client_gone.client_id == "a"


async def test_signs_from_a_peer_reach_the_groups_led_here_only() -> None:
    """What a peer relays is not relayed again."""
    bench = Bench("n1", groups=("g1", "g2"))
    bench.engine.views["g2"] = view("n2")
    bench.forwarder.signs_from_peer(["a"])
    bench.forwarder.gone_from_peer("a")
    assert [group for group, _ in bench.engine.told] == ["g1", "g1"]
    assert not bench.links["n2"].posted


async def test_signs_are_relayed_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay runs by itself."""
    monkeypatch.setattr(forwarder, "SIGNS_EVERY_S", 0.001)

    bench = Bench("n1")
    bench.forwarder.on_contact("a")
    async with asyncio.timeout(20):
        while not bench.engine.told:
            await asyncio.sleep(0.001)
    bench.forwarder.stop()


async def test_forwarded_answers_are_held_until_the_call_ends_within_the_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What may be asked again is refused; of a Receive, the outcome is unknown. Small answers
    always pass."""
    budget = AnswerBudget(1 << 20, 1 << 20)
    monkeypatch.setattr(forwarder, "ANSWERS", budget)
    large, small = Result(responses=[bytes(BULKY_BYTES // 8)] * 2), Result(responses=[bytes(1000)])

    async def main() -> None:
        bench = Bench("n2")
        bench.links["n2"].answers += [large, large, large, small, large]
        assert len(await bench.submit()) == 2 and budget.held_bytes == BULKY_BYTES // 2
        await bench.submit(repeatable=True)
        assert budget.held_bytes == BULKY_BYTES
        with pytest.raises(CallRefused) as refused:
            await bench.submit(repeatable=True)
        assert refused.value.refused.reason == "busy"
        assert list(await bench.submit()) == small.responses
        assert (await bench.refusal()).reason == "unknown-outcome"
        assert budget.held_bytes == BULKY_BYTES

    await asyncio.create_task(main())
    await asyncio.sleep(0)
    assert budget.held_bytes == 0


async def test_bulky_questions_of_peers_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = AnswerBudget(BULKY_BYTES, BULKY_BYTES)
    monkeypatch.setattr(forwarder, "ANSWERS", budget)

    bench = Bench("n1")
    peek = peer_pb2.ForwardCall(group="g1", method="ledgermq.v1.Admin/Peek", deadline_ms=20_000)
    first, other = (
        peer_pb2.ForwardCall(group="g1", method="SendMessage", deadline_ms=20_000),
        await budget.reserve(1),
    )
    waiting = asyncio.create_task(bench.forwarder.execute_for_peer("n2", peek))
    assert (await bench.forwarder.execute_for_peer("n2", first)).responses == [b"executed here"]
    assert not waiting.done() and len(bench.executor.executed) == 1
    other.settle(0)
    assert (await waiting).responses == [b"executed here"]
    await asyncio.sleep(0)
    assert budget.held_bytes == 0
    monkeypatch.setattr(answer_budget, "WAITERS_MAX", 0)
    await budget.reserve(BULKY_BYTES)
    refused = await bench.forwarder.execute_for_peer("n2", peek)
    assert refused.refusal == "busy" and "limits.buffered_bytes" in refused.grpc_message
