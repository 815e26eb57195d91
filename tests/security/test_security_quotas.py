"""Quotas against a simple model of what they promise: rates over time, counts at once, bounded
memory."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.frontend.security import quotas as module
from ledgermq.node.frontend.security.quotas import Quotas, TooMuch
from ledgermq.node.runtime.security_sections import Quota
from ledgermq.node.runtime.security_sections import Quotas as Settings

CLIENT = ("client", "c")


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.now = 50.0
        self.quotas = Quotas(Settings(**settings), lambda: self.now)

    def call(
        self, *scopes: tuple[str, str], messages: int = 1, size: int = 0, receive: bool = False
    ) -> int:
        """Make one complete call. Returns 0, or the milliseconds to wait before a retry."""
        try:
            with self.quotas.enter(list(scopes), receive=receive, messages=messages, size=size):
                return 0
        except TooMuch as error:
            assert error.retryable and error.retry_after_ms > 0
            return error.retry_after_ms


@given(
    rate=st.floats(0.5, 1000),
    calls=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), min_size=1, max_size=60),
)
def test_a_rate_is_never_exceeded(rate: float, calls: list[tuple[float, int]]) -> None:
    """In any time no more gets in than its worth, one second's more, and the last batch; and the
    hint is when one gets in."""
    scene = Scene(client=Quota(messages_per_s=rate))
    let_in: list[tuple[float, int]] = []
    for pause, messages in calls:
        scene.now += pause
        if scene.call(CLIENT, messages=messages) == 0:
            let_in.append((scene.now, messages))
    for first, (began, _) in enumerate(let_in):
        total = 0
        for (_, messages), (at, _) in itertools.pairwise(let_in[first:]):
            total += messages
            assert total <= (at - began) * rate + max(rate, 1) + 1e-6
    again_ms = scene.call(CLIENT, messages=0)
    scene.now += again_ms / 1000
    assert scene.call(CLIENT, messages=0) == 0


def test_idle_time_is_not_saved_up() -> None:
    """After however long a pause, one second's worth gets in at once and no more."""
    scene = Scene(client=Quota(messages_per_s=5))
    for _ in range(3):
        assert [scene.call(CLIENT) == 0 for _ in range(7)] == [True] * 5 + [False] * 2
        scene.now += 100


def test_bytes_count_beside_messages() -> None:
    """The one that is used up first decides, and says which it is."""
    scene = Scene(client=Quota(messages_per_s=100, bytes_per_s=1000))
    assert scene.call(CLIENT, size=3000) == 0
    with pytest.raises(
        TooMuch,
        match=r"client c has reached its quota of 1000 bytes a second; try again in 2001 ms",
    ):
        scene.quotas.enter([CLIENT], receive=False, messages=1, size=1)
    scene.now += 2.1
    assert scene.call(CLIENT) == 0


def test_refused_call_takes_no_quota() -> None:
    """Neither in the buckets of others it would have touched, nor as open."""
    scene = Scene(client=Quota(messages_per_s=2, calls=5), topics={"full": Quota(messages_per_s=1)})
    topic = ("topic", "full")
    assert scene.call(CLIENT, topic) == 0
    assert scene.call(CLIENT, topic) > 0
    assert scene.call(CLIENT) == 0, "the refused call took nothing of the client's"
    assert scene.quotas._open == {}


def test_calls_and_receives_at_once() -> None:
    """Each has its own number; a place is free when its call ended, however it ended."""
    scene = Scene(group=Quota(receives=1), client=Quota(calls=1))
    group = ("group", "g")
    with scene.quotas.enter([CLIENT, group], receive=True, messages=0, size=0):
        assert scene.call(("client", "d"), group, receive=True) == module.RECEIVES_AGAIN_MS
        with (
            pytest.raises(ZeroDivisionError),
            scene.quotas.enter([CLIENT], receive=False, messages=0, size=0),
        ):
            assert scene.call(CLIENT) == module.CALLS_AGAIN_MS
            raise ZeroDivisionError
        assert scene.call(CLIENT) == 0
    assert scene.call(("client", "d"), group, receive=True) == 0
    assert scene.quotas._open == {}


def test_the_longest_pattern_counts() -> None:
    """A name before patterns, a longer pattern before a shorter, patterns before what holds for
    each."""
    each, short, long, name = (Quota(messages_per_s=rate) for rate in (1, 2, 3, 4))
    quotas = Quotas(
        Settings(topic=each, topics={"o*": short, "orders*": long, "orders": name, "free": Quota()})
    )
    chosen = {
        topic: quotas._quota(("topic", topic))
        for topic in ("orders", "orders2", "other", "x", "free")
    }
    assert chosen == {"orders": name, "orders2": long, "other": short, "x": each, "free": Quota()}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of clients, the least recently used buckets are removed first, and a used
    bucket keeps its debt."""
    monkeypatch.setattr(module, "BUCKETS_MAX", 50)
    monkeypatch.setattr(module, "PRESUMED_MAX", 50)
    scene = Scene(client=Quota(messages_per_s=1, calls=1))
    assert scene.call(CLIENT, messages=100) == 0
    for number in range(500):
        scene.call(("client", str(number)))
        assert scene.call(CLIENT) > 0
    assert len(scene.quotas) <= 100
