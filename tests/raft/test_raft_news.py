"""When peers learn the commit index: with the next range or heartbeat, or by a separate message
after a delay where a reader waits.

Invariant: a reachable follower's commit index is behind by at most one heartbeat period.
"""

from __future__ import annotations

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteReply
from tests.raft.scenario import Scenario

START_NS = 5000 * MS
NEWS_NS = 5 * MS
HEARTBEAT_NS = 100 * MS


class Leader:
    """The leader of a, b and c, whose peers hold whatever they were sent. Readers wait at the peers
    in `watched`."""

    def __init__(self, news_ns: int = NEWS_NS, watched: str = "bc") -> None:
        self.now_ns = START_NS
        self.watched = watched
        config = RaftConfig("a", ("a", "b", "c"), 1, timing=Timing(news_ns=news_ns))
        self.core = Core(config, LogView([(0, 0)], 0), HardState(1), _Middle(), 0)
        self.core.tick(self.now_ns)
        for pre in (True, False):
            self.core.step(
                VoteReply(sender="b", to="a", term=2, pre=pre, granted=True), self.now_ns
            )
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
        pushed = [
            self.core.pushed(push.to, Extent(push.first_index, self.core.log.end_index, 2, 100))
            for push in effects.pushes
        ]
        return [message for message in effects.messages if isinstance(message, Append)] + pushed

    def answer(self, messages: list[Append]) -> None:
        """Of everything, as durable; and the own sync ends."""
        self.core.synced(*self.core.sync_begins())
        for said in messages:
            self.core.step(self.reply(said), self.now_ns)

    def reply(self, said: Append) -> AppendReply:
        return AppendReply(
            sender=said.to,
            to="a",
            term=2,
            round=said.round,
            boot_id=7,
            rejected=False,
            received=said.last_index,
            durable=said.last_index,
            watched=said.to in self.watched,
        )

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
    assert all(message.extent is not None for message in said) and told(said) == dict.fromkeys(
        "bc", leader.core.commit_index
    )


@pytest.mark.parametrize("watched", ["", "b"])
def test_without_a_reader_news_waits_for_the_heartbeat(watched: str) -> None:
    """No message, no wake-up before the heartbeat, and then one message to each peer that has the
    news and wants an answer."""
    leader = Leader(watched=watched)
    leader.commit_one()
    beat_ns = leader.core.election.leading.heartbeat_due_ns  # type: ignore[union-attr]
    assert leader.said() == [] and leader.now_ns < beat_ns <= leader.now_ns + HEARTBEAT_NS
    assert leader.core.wake_at_ns(leader.now_ns) == (
        leader.now_ns + NEWS_NS if watched else beat_ns
    )
    leader.now_ns = beat_ns - 1
    assert [message.to for message in leader.said()] == list(watched)
    leader.now_ns = beat_ns
    said = leader.said()
    assert told(said) == dict.fromkeys("bc", leader.core.commit_index) and not any(
        message.quiet for message in said
    )


def test_without_a_range_news_for_a_reader_goes_when_its_time_is_over_and_once() -> None:
    """The delay starts with the first turn that could have sent it; the leader requests a wake-up
    for it, and wants no answer."""
    leader = Leader()
    leader.commit_one()
    assert leader.said() == [] and leader.core.wake_at_ns(leader.now_ns) == leader.now_ns + NEWS_NS
    leader.now_ns += NEWS_NS - 1
    assert leader.said() == []
    leader.now_ns += 1
    said = leader.said()
    assert all(message.extent is None and message.quiet for message in said)
    assert told(said) == dict.fromkeys("bc", leader.core.commit_index)
    assert leader.said() == [] and leader.core.wake_at_ns(leader.now_ns) > leader.now_ns + NEWS_NS


def test_later_commit_news_does_not_delay_waiting_news() -> None:
    """If a group commits more often than the delay, a peer that gets no range is still notified in
    time."""
    leader = Leader()
    leader.commit_one()
    leader.said()
    due = leader.core.wake_at_ns(leader.now_ns)
    leader.now_ns += NEWS_NS // 2
    leader.core.request_flush()
    assert leader.said() == [] and leader.core.wake_at_ns(leader.now_ns) == due


def test_news_is_sent_for_a_reader_that_comes_after_the_commit() -> None:
    leader = Leader(watched="")
    leader.commit_one()
    assert leader.said() == []
    leader.watched = "c"
    peer = leader.core.peers["c"]
    leader.core.step(
        AppendReply(
            sender="c",
            to="a",
            term=2,
            round=peer.answered_round,
            boot_id=7,
            rejected=False,
            received=peer.received,
            durable=peer.durable,
            watched=True,
        ),
        leader.now_ns,
    )
    assert leader.said() == []
    leader.now_ns += NEWS_NS
    assert told(leader.said()) == {"c": leader.core.commit_index}


def test_a_watched_group_may_tell_at_once() -> None:
    leader = Leader(news_ns=0)
    leader.commit_one()
    assert told(leader.said()) == dict.fromkeys("bc", leader.core.commit_index)


@pytest.mark.parametrize("wrong", [-1, 101 * MS])
def test_news_waits_no_longer_than_a_heartbeat(wrong: int) -> None:
    with pytest.raises(ValueError, match="news"):
        Timing(news_ns=wrong)


def following() -> Scenario:
    """n1 leads three replicas; nothing is on the wire, and no reader waits anywhere."""
    play = Scenario()
    play.run(["cluster 3"])
    for member in play.members.values():
        member.core.watch(False)
    play.run(["elect n1", "wait 100", "tick", "deliver"])
    return play


def test_a_follower_does_not_answer_news() -> None:
    """It commits what it is told, and the only message is the news itself."""
    play = following()
    play.members["n2"].core.watch(True)
    play.run(["tick", "deliver", "propose n1 1", "deliver", "sync n1 n2", "deliver n2->n1"])
    assert play.run(["deliver"]) == "n2 commits 2"
    assert play.wire == []


def test_a_follower_answers_news_that_it_rejects() -> None:
    """It lacks the entry in question, so the leader's picture of it is wrong: the leader learns of
    that at once."""
    follower = following().members["n2"]
    core = follower.core
    core.step(
        Append(
            sender="n1",
            to="n2",
            term=core.term,
            round=99,
            prev_index=2,
            prev_term=core.term,
            commit_index=2,
            quiet=True,
        ),
        START_NS,
    )
    (reply,) = core.take(START_NS).messages
    assert (
        isinstance(reply, AppendReply)
        and reply.rejected
        and reply.round == 99
        and core.commit_index == 1
    )


def test_a_follower_tells_at_once_that_a_reader_waits() -> None:
    """Once per reader that comes, not with a message of its own when readers go; before it verified
    anything it waits for the next message of the leader."""
    play = following()
    follower = play.members["n2"]
    follower.core.watch(True)
    (reply,) = follower.core.take(play.now_ns).messages
    assert (
        isinstance(reply, AppendReply)
        and reply.watched
        and (reply.received, reply.durable) == (1, 1)
    )
    follower.core.watch(True)
    follower.core.watch(False)
    assert follower.core.take(play.now_ns).messages == ()
    play.run(["propose n1 1", "deliver", "sync n2"])
    assert not any(
        packet.message.watched for packet in play.wire if isinstance(packet.message, AppendReply)
    )
    play.run(["crash n3", "start n3"])
    play.members["n3"].core.watch(False)
    play.members["n3"].core.watch(True)
    assert play.members["n3"].core.take(play.now_ns).messages == ()


def test_followers_learn_of_a_commit_with_the_heartbeat() -> None:
    """The invariant: without readers, ranges or lost packets, a follower knows a commit one
    heartbeat period after the leader."""
    play = following()
    play.run(["propose n1 1", "deliver", "sync", "deliver"])
    leader, others = play.members["n1"].core, [play.members[name].core for name in ("n2", "n3")]
    assert (
        leader.commit_index == 2
        and all(core.commit_index == 1 for core in others)
        and play.wire == []
    )
    play.run(["wait 100", "tick n1", "deliver"])
    assert all(core.commit_index == 2 for core in others)
