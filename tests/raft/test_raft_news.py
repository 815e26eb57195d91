"""When peers learn the commit index: with the next range, by a separate message after a delay, or with a heartbeat at the latest."""

from __future__ import annotations

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteReply

START_NS = 5000 * MS
NEWS_NS = 5 * MS


class Leader:
    """The leader of a, b and c, whose peers hold whatever they were sent."""

    def __init__(self, news_ns: int = NEWS_NS) -> None:
        self.now_ns = START_NS
        config = RaftConfig("a", ("a", "b", "c"), 1, timing=Timing(news_ns=news_ns))
        self.core = Core(config, LogView([(0, 0)], 0), HardState(1), _Middle(), 0)
        self.core.tick(self.now_ns)
        for pre in (True, False):
            self.core.step(VoteReply("b", "a", 2, pre, True), self.now_ns)
        assert self.core.role is Role.LEADER
        self.append()
        self.answer(self.said())
        self.now_ns += 50 * MS
        self.said()

    def append(self) -> None:
        index = self.core.log.end_index + 1
        self.core.appended(Extent(index, index, 2, 100))

    def said(self) -> list[Append]:
        effects = self.core.take(self.now_ns)
        pushed = [self.core.pushed(push.to, Extent(push.first_index, self.core.log.end_index, 2, 100)) for push in effects.pushes]
        return [message for message in effects.messages if isinstance(message, Append)] + pushed

    def answer(self, messages: list[Append]) -> None:
        """Of everything, as durable; and the own sync ends."""
        self.core.synced(*self.core.sync_begins())
        for said in messages:
            reply = AppendReply(said.to, "a", 2, said.round, 7, False, said.last_index, said.last_index)
            self.core.step(reply, self.now_ns)

    def commit_one(self) -> None:
        before = self.core.commit_index
        self.append()
        self.answer(self.said())
        assert self.core.commit_index == before + 1


class _Middle:
    def uniform(self, a: float, b: float, /) -> float:
        return (a + b) / 2


def told(messages: list[Append]) -> dict[str, int]:
    return {message.to: message.commit_index for message in messages}


def test_news_goes_with_the_next_range() -> None:
    """And no message goes for it alone."""
    leader = Leader()
    leader.commit_one()
    assert leader.said() == []
    leader.append()
    said = leader.said()
    assert all(message.extent is not None for message in said) and told(said) == dict.fromkeys("bc", leader.core.commit_index)


def test_without_a_range_news_goes_when_its_time_is_over_and_once() -> None:
    """The delay starts with the first turn that could have sent it; the leader requests a wake-up for it."""
    leader = Leader()
    leader.commit_one()
    assert leader.said() == [] and leader.core.wake_at_ns(leader.now_ns) == leader.now_ns + NEWS_NS
    leader.now_ns += NEWS_NS - 1
    assert leader.said() == []
    leader.now_ns += 1
    said = leader.said()
    assert all(message.extent is None for message in said) and told(said) == dict.fromkeys("bc", leader.core.commit_index)
    assert leader.said() == [] and leader.core.wake_at_ns(leader.now_ns) > leader.now_ns + NEWS_NS


def test_later_news_does_not_put_off_what_waits() -> None:
    """If a group commits more often than the delay, a peer that gets no range is still notified in time."""
    leader = Leader()
    leader.commit_one()
    leader.said()
    due = leader.core.wake_at_ns(leader.now_ns)
    leader.now_ns += NEWS_NS // 2
    leader.core.request_flush()
    assert leader.said() == [] and leader.core.wake_at_ns(leader.now_ns) == due


def test_a_group_may_tell_at_once() -> None:
    leader = Leader(news_ns=0)
    leader.commit_one()
    assert told(leader.said()) == dict.fromkeys("bc", leader.core.commit_index)


@pytest.mark.parametrize("wrong", [-1, 101 * MS])
def test_news_waits_no_longer_than_a_heartbeat(wrong: int) -> None:
    with pytest.raises(ValueError, match="news"):
        Timing(news_ns=wrong)
