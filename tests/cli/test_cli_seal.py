"""`seal` from argument to output, against a scripted node."""

from __future__ import annotations

import json

import pytest

from ledgermq import cli
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import admin_status, fake_nodes


def test_seal_asks_for_the_same_entries_until_they_are_sealed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result names what is sealed and how to prove it; a repeated request cannot end a second
    file."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        waits = pb.SealNowResponse(status=admin_status(), through=0, waits_for="a file")
        node.answers(
            "SealNow",
            waits,
            waits,
            pb.SealNowResponse(status=admin_status(), through=0, done=True, size=3, next_index=9),
        )
        assert cli.run(["seal", "g1"]) == 0
        out = capfd.readouterr().out
        assert out.startswith("the log of g1 is sealed up to entry 8, in 3 files\n")
        assert "ledgermq prove --broker-group g1 --index 0 --to FILE" in out
        again = pb.SealNowRequest(broker_group="g1", through=0)
        assert node.requests["SealNow"] == [
            pb.SealNowRequest(broker_group="g1"),
            again,
            again,
        ] and again.HasField("through")
        assert cli.run(["seal", "g1", "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == {
            "v": 1,
            "group": "g1",
            "through": 0,
            "size": 3,
            "next_index": 9,
        }


def test_seal_says_why_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 with the leader's sentence, 4 with what it waits for when the time is over, 3 without a
    leader."""
    with fake_nodes() as (node,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
        node.answers(
            "SealNow",
            pb.SealNowResponse(status=pb.Status(code=Code.PRECONDITION_FAILED, message="level 2")),
        )
        assert cli.run(["seal", "g1"]) == 4
        assert "level 2" in capfd.readouterr().err
        node.answers(
            "SealNow",
            pb.SealNowResponse(
                status=admin_status(), through=5, waits_for="a majority of the replicas"
            ),
        )
        assert cli.run(["seal", "g1", "--timeout", "300ms"]) == 4
        assert (
            "the log of g1 is not sealed yet: it waits for a majority of the replicas; repeat it"
            in capfd.readouterr().err
        )
        node.answers(
            "SealNow",
            pb.SealNowResponse(status=pb.Status(code=Code.HA_NOT_AVAILABLE, message="no leader")),
        )
        assert cli.run(["seal", "g1", "--timeout", "300ms"]) == 3
