"""Commands in this process against a scripted node."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator

import pytest

from ledgermq import cli
from tests.client.fake_cluster import FakeNode, fake_nodes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_nodes() as (one,):
        yield one


@pytest.fixture
def ledgermq(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """`ledgermq …` in this process against the fake: exit status, stdout, stderr."""
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = cli.run(list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return command
