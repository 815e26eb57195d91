"""A node takes the descriptors it is allowed."""

from __future__ import annotations

import resource

import pytest

from ledgermq.node.runtime import limits


@pytest.mark.parametrize(
    ("soft", "hard", "result"),
    [
        (1024, 1 << 20, 1 << 16),
        (1024, 5000, 5000),
        (1024, 1024, 1024),
        (1 << 18, 1 << 20, 1 << 18),
        (1024, resource.RLIM_INFINITY, 1 << 16),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, result: int
) -> None:
    """Up to what is wanted, never above the hard limit, never down."""
    now = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: now.__setitem__(0, values))
    assert limits.raise_descriptor_limit() == result
    assert now[0] == (result, hard)
