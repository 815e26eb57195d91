"""The law of FIFO consumer groups, exhaustively, against a model of a few lines (`fifo_law.py`):
every state that acknowledgements, nacks, lapses, resets and new leaders can lead to with a few
messages, and every action in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ledgermq.node.broker.calls.consumer_calls import Ack, Lease, Received
from ledgermq.node.broker.calls.operator_calls import Reset
from tests.node_core.core_fakes import SECOND, handle
from tests.node_core.fifo_law import LEASED, VISIBLE, At, Law
from tests.node_core.parts.test_core_fifo import KEY, make

Action = tuple[str, int]
LONG_MS = 3_600_000
SHORT_MS = 10_000


class Walk:
    """A group under test and the model, from the beginning. `do` carries out one action on both and
    compares them."""

    def __init__(self, names: str, sent: int) -> None:
        self._names = names
        self.bench = make()
        self.law = Law()
        self.leases: dict[int, Lease] = {}
        """The last lease of each message."""
        for _ in range(sent):
            self.do(("send", 0))

    def actions(self) -> Iterator[Action]:
        """Every action that may have an effect now."""
        at = self.law.at
        if len(at) < len(self._names):
            yield "send", 0
        for most in range(1, len(at) + 1):
            yield "receive", most
        yield "receive together", 1
        yield "receive together", 2
        for offset, word in enumerate(at):
            if word in LEASED:
                yield "ack", offset
                yield "ack and receive", offset
                yield "give back", offset
                yield "forward", offset
            if word is At.SHORT:
                yield "prolong", offset
            if word in VISIBLE:
                yield "ack late", offset
        if At.SHORT in at:
            yield "wait", 0
        if any(word in (*LEASED, *VISIBLE) for word in at):
            yield "new leader", 0
            yield "new leader", 1
        if any(word is not At.NEW for word in at):
            yield "reset", 0
            yield "reset", 1

    def tried(self, kinds: tuple[str, ...] | None) -> list[Action]:
        """The actions of these kinds; None: all."""
        return [action for action in self.actions() if kinds is None or action[0] in kinds]

    def do(self, action: Action) -> None:
        what, number = action
        step: Callable[[int], None] = getattr(self, "_" + what.replace(" ", "_"))
        step(number)
        for offset, word in enumerate(self.law.at):
            row = self.bench.machine.delivery.row(KEY, offset)
            assert (word in (*LEASED, *VISIBLE)) == (row is not None and row.lease > 0), (
                f"message {offset} after {action}"
            )

    def state(self) -> tuple[object, ...]:
        """What distinguishes one place of the walk from another: the model's words, which messages
        wait, and what is looked at first."""
        delivery, turns = self.bench.machine.delivery, self.bench.group.leader._picker._turns
        return (
            tuple(self.law.at),
            tuple(delivery.waiting(KEY)),
            delivery.cursor(KEY),
            turns.get(KEY[:2], 0) % 2,
        )

    def _send(self, _: int) -> None:
        name = self._names[len(self.law.names)]
        self.bench.send_of(name if name != "-" else None, f"m{len(self.law.names)}")
        self.law.sent(name)

    def _took(self, leases: tuple[Lease, ...], most: int) -> None:
        self.law.received([lease.queue_offset for lease in leases], most)
        self.leases.update((lease.queue_offset, lease) for lease in leases)

    def _receive(self, most: int) -> None:
        self._took(self.bench.receive(n=most, invisible_ms=SHORT_MS), most)

    def _receive_together(self, most: int) -> None:
        """Two clients ask in the same turn: the second one is decided against what the first one
        gets."""
        calls = [
            self.bench.poll(n=n, wait_ns=0, client=client, invisible_ms=SHORT_MS)
            for n, client in ((most, "c1"), (2, "c2"))
        ]
        self.bench.turn(*calls)
        for call in calls:
            answer = self.bench.done[call.token]
            assert isinstance(answer, Received)
            self._took(answer.leases, call.max_messages)

    def _ack(self, offset: int) -> None:
        assert self.bench.ack(self.leases[offset]) == (True,)
        self.law.at[offset] = At.DONE

    def _ack_late(self, offset: int) -> None:
        """An acknowledgement behind the end of its lease is refused, and changes nothing."""
        assert self.bench.ack(self.leases[offset]) == (False,)

    def _ack_and_receive(self, offset: int) -> None:
        """In one turn. The Receive is decided before the acknowledgement is applied, or after."""
        bench = self.bench
        poll = bench.poll(wait_ns=0, invisible_ms=SHORT_MS)
        bench.turn(Ack(next(bench.tokens), [handle(self.leases[offset])]), poll)
        answer = bench.done[poll.token]
        assert isinstance(answer, Received)
        came = [lease.queue_offset for lease in answer.leases]
        before = [due for name in dict.fromkeys(self.law.names) for due in self.law.due(name)]
        if sorted(came) == sorted(before):
            self._took(answer.leases, 32)
            self.law.at[offset] = At.DONE
        else:
            self.law.at[offset] = At.DONE
            self._took(answer.leases, 32)

    def _give_back(self, offset: int) -> None:
        number = self.bench.change(self.leases[offset], 0)
        assert number is not None
        self.leases[offset] = self.leases[offset]._replace(lease_number=number)
        self.law.at[offset] = At.BACK

    def _prolong(self, offset: int) -> None:
        number = self.bench.change(self.leases[offset], LONG_MS)
        assert number is not None
        self.leases[offset] = self.leases[offset]._replace(lease_number=number)
        self.law.at[offset] = At.LONG

    def _forward(self, offset: int) -> None:
        assert self.bench.forward(self.leases[offset])
        self.law.at[offset] = At.DONE

    def _wait(self, _: int) -> None:
        self.bench.pass_time(SHORT_MS // 1000 * SECOND)
        self.law.time_passes()

    def _new_leader(self, snapshot: int) -> None:
        self.bench = self.bench.successor(snapshot=bool(snapshot))
        self.law.new_leader()

    def _reset(self, position: int) -> None:
        self.bench.ask(Reset(next(self.bench.tokens), "g", "t", ((0, position),)))
        self.law.reset(position)


def walked(names: str, sent: int, path: tuple[Action, ...]) -> Walk:
    walk = Walk(names, sent)
    for action in path:
        walk.do(action)
    return walk


SOME = ("send", "receive", "ack", "give back", "wait", "new leader")
"""The actions that the shorter test tries."""
MORE = pytest.mark.verify
LONGEST = 24
"""After so many actions a walk begins anew: a long log makes each new leader slower."""


@pytest.mark.parametrize(
    ("names", "sent", "kinds"),
    [
        ("aaa", 2, SOME),
        ("a-", 2, None),
        pytest.param("aaa", 2, None, marks=MORE),
        pytest.param("aaaa", 3, None, marks=MORE),
        pytest.param("aab", 3, None, marks=MORE),
        pytest.param("a-a-", 3, SOME, marks=MORE),
    ],
)
def test_every_action_in_every_state_follows_the_law(
    names: str, sent: int, kinds: tuple[str, ...] | None
) -> None:
    """A walk goes on with an action that was not tried where it is. When there is none, another
    walk goes to a state that has one."""
    start = Walk(names, sent)
    untried: dict[object, list[Action]] = {start.state(): start.tried(kinds)}
    ways: dict[object, tuple[Action, ...]] = {start.state(): ()}
    while any(untried.values()):
        state = min(
            (state for state, actions in untried.items() if actions),
            key=lambda state: len(ways[state]),
        )
        path = ways[state]
        walk = walked(names, sent, path)
        assert walk.state() == state, "the same actions lead to the same state"
        while untried[state] and len(path) < LONGEST:
            action = untried[state].pop()
            walk.do(action)
            path = (*path, action)
            state = walk.state()
            if state not in untried:
                untried[state] = walk.tried(kinds)
            if len(path) < len(ways.setdefault(state, path)):
                ways[state] = path
    assert len(untried) > 20
