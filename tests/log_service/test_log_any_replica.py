"""Fetch from a replica that does not lead: where the group allows it, as far as it is confirmed,
and only while what it knows is young."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ledgermq.node.frontend.native import fetching
from ledgermq.node.frontend.routing.local_reads import Rules
from ledgermq.proto import log_pb2 as pb
from tests.log_service.fetch_stage import DrivenStage
from tests.log_service.test_log_fetching import Reader, opening, played

MS = 1_000_000


def follows(stage: DrivenStage, age_ms: int | None = 40, *, allowed: bool = True) -> None:
    """This node's replica follows n2 and knows what was so long ago."""
    if allowed:
        stage.read_rules["g1"] = Rules(max_age_ms=2_000, cold_bytes=0)
    stage.age_ns = None if age_ms is None else age_ms * MS
    stage.engine.show("n2", serving=False)


async def test_follower_serves_a_reader_and_states_its_age(tmp_path: Path) -> None:
    """Opened, entries, caught up, as from the leader; no question goes to the leader."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 5)
        follows(stage)
        reader = Reader(wire)
        await reader.say(opening(any_replica=True))
        opened = await reader.control("opened")
        assert (opened.replica, opened.role, opened.age_ms) == ("n1", "follower", 40)
        assert (await reader.entries()).bodies == tuple(stage.group.stored["T", 0])
        assert (await reader.control("caught_up")).age_ms == 40


async def test_the_leader_serves_as_ever(tmp_path: Path) -> None:
    """A reader that allows any replica and comes to the leader: no age, because it knows."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)])
        reader = Reader(wire)
        await reader.say(opening(any_replica=True))
        opened = await reader.control("opened")
        assert opened.role == "leader" and not opened.HasField("age_ms")


async def test_reader_without_any_replica_rights_is_redirected_to_the_leader(
    tmp_path: Path,
) -> None:
    """Without the reader's word, without the group's setting, or with a replica that is too old: a
    Redirect, at once."""
    async with played(tmp_path) as (stage, wire):

        async def redirected(**options: Any) -> None:
            reader = Reader(wire)
            await reader.say(opening(**options))
            assert (await reader.control("redirect")).leader == "n2"

        follows(stage, allowed=False)
        await redirected(any_replica=True)
        follows(stage)
        await redirected()
        follows(stage, age_ms=500)
        await redirected(any_replica=True, max_age_ms=400)
        follows(stage, age_ms=2_001)
        await redirected(any_replica=True, max_age_ms=1_000_000)
        follows(stage, age_ms=None)
        await redirected(any_replica=True)


async def test_a_stream_ends_with_a_redirect_when_the_replica_grows_too_old(tmp_path: Path) -> None:
    """No entries arrive and the contact to the leader is lost: a periodic check detects this."""
    fetching.SIGN_OF_LIFE_S, former = 0.02, fetching.SIGN_OF_LIFE_S

    try:
        async with played(tmp_path) as (stage, wire):
            stage.group.produce([("T", 0, 60)])
            follows(stage)
            reader = Reader(wire)
            await reader.say(opening(any_replica=True))
            await reader.control("opened")
            await reader.entries()
            for _ in range(3):
                # A sign of life, again and again.
                assert (await reader.control("caught_up")).age_ms == 40
            stage.age_ns = 2_001 * MS
            while (found := await reader.hear()) is not None and isinstance(
                found, pb.FetchResponse
            ):
                if found.WhichOneof("response") == "redirect":
                    assert found.redirect.leader == "n2"
                    break
            else:
                raise AssertionError("the stream goes on")
    finally:
        fetching.SIGN_OF_LIFE_S = former


async def test_a_reader_that_knows_more_than_the_replica_goes_to_the_leader(tmp_path: Path) -> None:
    """An offset behind the end of this replica is no error, because the leader may have it. At the
    leader it is an error."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)] * 3)
        follows(stage)
        for options in (
            {"begin": [{"queue": 0, "offset": 9}]},
            {"topic": "", "begin": [], "from_index": 1 << 40},
        ):
            reader = Reader(wire)
            await reader.say(opening(any_replica=True, **options))
            assert (await reader.control("redirect")).leader == "n2"


async def test_a_stream_outlives_a_change_of_leaders(tmp_path: Path) -> None:
    """The stream does not depend on the leader: another node or this node may become leader."""
    async with played(tmp_path) as (stage, wire):
        stage.group.produce([("T", 0, 60)])
        follows(stage)
        reader = Reader(wire)
        await reader.say(opening(any_replica=True))
        await reader.control("opened")
        await reader.entries()
        await reader.control("caught_up")
        stage.engine.show("n3", serving=False, term=90)
        stage.service.led_elsewhere("g1")
        stage.engine.lead(91)
        stage.group.produce([("T", 0, 60)])
        while not hasattr(found := await reader.hear(), "bodies"):
            assert (
                isinstance(found, pb.FetchResponse) and found.WhichOneof("response") == "caught_up"
            )
