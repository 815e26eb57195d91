"""`why-kept` from argument to output: what FILE may be, and one sentence before its evidence."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.client.cli.storage_commands import parse_file
from ledgermq.client.errors import BadArgument
from ledgermq.proto import admin_pb2
from tests.client.fake_cluster import admin_status, fake_nodes

NAME = "00000000000067108864"


@pytest.mark.parametrize(
    ("file", "group", "base", "node"),
    [
        (f"/data/n1/g1/dledger-n1/data/{NAME}", "g1", 67108864, "n1"),
        (f"g1/dledger-n2/data/{NAME}", "g1", 67108864, "n2"),
        ("g1/67108864", "g1", 67108864, None),
        (f"g1/{NAME}", "g1", 67108864, None),
        ("g1/0", "g1", 0, None),
    ],
)
def test_file_is_a_path_or_group_and_base(
    file: str, group: str, base: int, node: str | None
) -> None:
    """A path determines the node of the copy; no file is opened."""
    assert parse_file(file) == (group, base, node)


@pytest.mark.parametrize(
    "file",
    [
        "",
        "0",
        "g1/",
        "g1/x",
        "g1/-1",
        "/data/n1/g1/dledger-n1/index/" + NAME,
        "a/b/0",
        "g1/" + "9" * 30,
    ],
)
def test_malformed_file_argument_is_refused(file: str) -> None:
    """With a sentence that says what a FILE is."""
    with pytest.raises(BadArgument, match="GROUP/BASE"):
        parse_file(file)


def test_sentence_then_evidence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text and the object say the same."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        answer = admin_pb2.WhyKeptResponse(
            status=admin_status(), answer="It is kept.", reason="follower", evidence=["one", "two"]
        )
        node.answers("WhyKept", answer)
        assert cli.run(["why-kept", "g1/0"]) == 0
        assert capfd.readouterr().out == "It is kept.\n  one\n  two\n"
        assert cli.run(["why-kept", "g1/0", "--json"]) == 0
        expected = {
            "v": 1,
            "answer": "It is kept.",
            "reason": "follower",
            "evidence": ["one", "two"],
        }
        assert json.loads(capfd.readouterr().out) == expected
        assert node.requests["WhyKept"][0] == admin_pb2.WhyKeptRequest(broker_group="g1", base=0)
