"""Admission on the peer port beyond the secret: old copies, duplicates, removed nodes, and format
versions one apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.peer_identities import Boots, PeerIdentities, Refused, descends
from ledgermq.node.replica.peers.peers import Peers
from ledgermq.proto import peer_pb2
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state.identity import BOOTS_LISTED, note_boot
from tests.node.replica.test_node_peers import FixedRoll, Recorder, _fail, greeter, identity, pair


def met(there: Greeter, one: Greeter, alive: str | None = None) -> None:
    """`one` greets `there`."""
    there.check_hello(b"c" * 32, one.hello(b"c" * 32, b"n" * 32), alive)


def started(directory: Path, boot: str, **changes: Any) -> Greeter:
    """n1's next start on a directory."""
    boots = note_boot(RealDisk(), str(directory / "n1" / "state"), boot)
    return greeter(directory, "n1", boot_id=boot, boots={"g1": boots}, **changes)


# -- old copies


@given(
    st.lists(st.uuids(), min_size=1, max_size=3 * BOOTS_LISTED),
    st.integers(0, 3 * BOOTS_LISTED),
    st.integers(0, 3 * BOOTS_LISTED),
)
def test_later_directory_states_descend_from_earlier_ones_only(
    boots: Sequence[Any], seen: int, shown: int
) -> None:
    """Whatever start a peer recorded last, all later starts are recognised; an earlier state never
    passes for a later one."""
    states = [Boots()]
    for boot in boots:
        states.append(states[-1].begun(boot.hex))
    last, now = states[min(seen, len(boots))], states[min(shown, len(boots))]
    if last.generation:
        assert descends(now, last.generation, last.words[-1]) == (now.generation >= last.generation)
    if now.generation >= last.generation > 0 and now.generation - last.generation < BOOTS_LISTED:
        assert not descends(now, last.generation, "another"), (
            "a copy that was started elsewhere does not descend"
        )


def test_starts_survive_on_disk(tmp_path: Path) -> None:
    """The count is permanent, the list is bounded."""
    for number in range(1, BOOTS_LISTED + 5):
        boots = note_boot(RealDisk(), str(tmp_path), f"boot-{number:04}-and-more")
        assert (
            boots.generation == number
            and boots.words[-1] == f"boot-{number:04}-an"
            and len(boots.words) == min(number, BOOTS_LISTED)
        )


def test_an_old_backup_is_named_and_not_heard(tmp_path: Path) -> None:
    """The peers recorded a later start than the directory has: it lost its later promises. The
    peers still refuse it after a restart, and admit the right directory again."""
    two = greeter(tmp_path, "n2")
    for boot in ("first", "second", "third"):
        met(two, started(tmp_path / "a", boot))
        assert not two.peer_identities.barred
    for boot in ("first", "backup"):
        old = started(tmp_path / "b", boot)
    again = greeter(tmp_path, "n2")
    met(again, old)
    assert (
        "old copy (start 2 of it, but start 3 was reported before)"
        in again.peer_identities.barred["g1", "n1"]
    )
    assert not again.peer_identities.returned("g1"), (
        "the group is not asked to take it in: it may be the good one's double"
    )
    met(again, started(tmp_path / "a", "fourth"))
    assert not again.peer_identities.barred


def test_a_node_on_an_old_copy_learns_which_members_do_not_hear_it(tmp_path: Path) -> None:
    """Its own log looks sound, so only the peers can tell; one reason of several peers is told
    once. A removed peer's word is void, and a group that left takes its objections along."""
    names = frozenset({"n1", "n2", "n3"})
    peers = [greeter(tmp_path, name, roll=FixedRoll(names - {name})) for name in ("n2", "n3")]
    first = started(tmp_path / "a", "first")
    for peer in peers:
        met(peer, first)
    old, hello = (
        started(tmp_path / "b", "backup", roll=FixedRoll(names - {"n1"})),
        peer_pb2.Hello(node="n1", nonce=b"n" * 32),
    )
    heard = old.peer_identities
    for peer in peers:
        met(peer, old)
        old.check_reply(b"n" * 32, peer.reply(hello), peer.node)
    (reason,) = heard.unheard("g1")
    assert reason.startswith(
        "not heard by n2, n3: broker group g1: node n1: its data directory is an old copy (start 1"
        " of it"
    )
    heard.name("g1", ("n1", "n2"), {})
    assert [why.split(":")[0] for why in heard.unheard("g1")] == ["not heard by n2"]
    assert heard.unheard("g2") == []
    heard.note_objections("n2", {"g2": "of a group that is not here"})
    assert heard.unheard("g1") == [] and heard.unheard("g2") == [], "n2 takes the packets again"
    heard.note_objections("n2", {"g1": "why"})
    heard.left("g1")
    assert not heard.objections


def test_a_copy_that_ran_makes_the_original_an_old_copy(tmp_path: Path) -> None:
    """Two directories with the same past: the one that connected last is the node, and the other is
    refused, however often each was started."""
    two = greeter(tmp_path, "n2")
    for directory in ("a", "b"):
        started(tmp_path / directory, "common")
    met(two, started(tmp_path / "a", "original"))
    met(two, started(tmp_path / "a", "original-2"))
    copy = [started(tmp_path / "b", f"copy-{k}") for k in range(3)][-1]
    met(two, copy)
    assert "another copy ran meanwhile" in two.peer_identities.barred["g1", "n1"]


def test_a_replaced_directory_does_not_hide_an_old_copy_of_the_former_one(tmp_path: Path) -> None:
    """Before the group has taken the new directory in, the former one counts, with all its
    starts."""
    two = greeter(tmp_path, "n2")
    met(two, started(tmp_path / "a", "one"))
    met(two, started(tmp_path / "a", "two"))
    met(two, started(tmp_path / "new", "x", identities={"g1": identity("n1", incarnation=2)}))
    assert "data directory replaced" in two.peer_identities.barred["g1", "n1"]
    met(two, started(tmp_path / "b", "backup"))
    assert "old copy" in two.peer_identities.barred["g1", "n1"]


# -- doubles and removed nodes


def test_two_living_processes_of_one_name_are_told_apart_by_their_boot_ids(tmp_path: Path) -> None:
    """The second is refused and leaves no trace; the first may reconnect."""
    two = greeter(tmp_path, "n2")
    met(two, started(tmp_path / "a", "first"))
    started(tmp_path / "b", "first")
    with pytest.raises(
        Refused, match=r"another process speaks as node n1 .*boot first, not second.*stop it"
    ) as caught:
        met(two, started(tmp_path / "b", "second"), alive="first")
    assert caught.value.reason == "alive"
    met(two, started(tmp_path / "a", "first"), alive="first")


async def test_peer_port_refuses_a_copied_directory_and_takes_its_next_life(
    tmp_path: Path,
) -> None:
    """Two processes on copies of one directory: the second is kept out until the first is
    silent."""
    async with pair(tmp_path, one=greeter(tmp_path, "n1", boot_id="first")) as (
        link,
        here,
        _,
        _,
        port,
    ):
        await here.until(lambda: link.up)
        other = greeter(tmp_path / "copy", "n1", boot_id="second")
        dialling = Peers({"n2": [f"127.0.0.1:{port}"]}, other, Recorder(), 1 << 20)
        dialling.dial()
        try:
            async with asyncio.timeout(20):
                while dialling.links["n2"].refusal is None:
                    link.post(peer_pb2.PeerMessage(client_gone=peer_pb2.ClientGone(client_id="c")))
                    await asyncio.sleep(0.02)
            assert (
                "another process speaks as node n1" in (dialling.links["n2"].refusal or "")
                and link.up
            )
            await link.stop()
            async with asyncio.timeout(20):
                while not dialling.links["n2"].up:
                    await asyncio.sleep(0.02)
        finally:
            await dialling.stop()


def test_a_removed_node_is_refused_by_name(tmp_path: Path) -> None:
    """The refusal says what happened and how to undo it."""
    two = greeter(tmp_path, "n2", roll=FixedRoll(frozenset(), frozenset({"n1"})))
    with pytest.raises(
        Refused,
        match=(
            "node n1 was removed from this cluster; stop it, or let it in again: ledgermq member"
            " add n1"
        ),
    ):
        met(two, greeter(tmp_path, "n1"))


# -- format versions


def build(directory: Path, name: str, writes: int, reads: int) -> Greeter:
    """A build that reads up to `reads`, on a directory written in `writes`."""
    return greeter(
        directory,
        name,
        identities={"g1": replace(identity(name), format_version=writes)},
        format_max=reads,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ((1, 1), (1, 1), None),
        ((1, 1), (1, 2), None),  # they are upgraded, the group is not
        ((1, 2), (1, 1), None),
        ((1, 2), (2, 2), None),  # the group has switched, this directory has not applied it yet
        ((2, 2), (1, 2), None),
        ((1, 1), (2, 2), "writes format version 2, n2 reads up to 1; upgrade n2"),
        ((2, 2), (1, 1), "reads up to format version 1, the group is written in 2; upgrade n1"),
        ((3, 3), (1, 3), "more than one apart"),
    ],
)
def test_builds_one_version_apart_work_together_until_the_group_has_switched(
    tmp_path: Path, ours: tuple[int, int], theirs: tuple[int, int], said: str | None
) -> None:
    """(writes, reads) of both sides: an unreadable directory is refused, and the refusal names the
    node to upgrade."""
    two, one = build(tmp_path, "n2", *ours), build(tmp_path, "n1", *theirs)
    if said is None:
        met(two, one)
        assert not two.peer_identities.barred
    else:
        with pytest.raises(Refused, match=said) as caught:
            met(two, one)
        assert caught.value.reason == "format"


def test_build_without_a_highest_version_reads_its_own_version(tmp_path: Path) -> None:
    """This holds for all builds before the first that reports it."""
    two, one = build(tmp_path, "n2", 1, 2), build(tmp_path, "n1", 1, 0)
    met(two, one)
    with pytest.raises(Refused, match="reads up to format version 1"):
        met(build(tmp_path / "later", "n2", 2, 2), one)


# -- feature levels


@pytest.mark.parametrize(
    ("reads", "level", "refused"),
    [(0, 1, False), (1, 1, False), (2, 2, False), (3, 2, False), (0, 2, True), (1, 2, True)],
)
def test_a_node_that_reads_less_than_the_level_of_a_group_is_refused(
    tmp_path: Path, reads: int, level: int, refused: bool
) -> None:
    """As caller and as callee, naming the node to upgrade; a program that states no level reads
    level 1. No directory is recorded."""
    one, two = greeter(tmp_path, "n1", level_max=reads), greeter(tmp_path, "n2", level_max=3)
    two.peer_identities.levels["g1"] = level
    answer = one.reply(two.hello(b"c" * 32, b"n" * 32))
    if refused:
        for greeting in (lambda: met(two, one), lambda: two.check_reply(b"n" * 32, answer, "n1")):
            with pytest.raises(
                Refused,
                match=f"n1 .* reads up to feature level 1, the group has level {level}; upgrade n1",
            ) as caught:
                greeting()
            assert caught.value.reason == "level"
        assert not two.peer_identities.known["g1"] and not two.peer_identities.level_max
    else:
        met(two, one)
        two.check_reply(b"n" * 32, answer, "n1")
        assert two.peer_identities.level_max == {"n1": max(reads, 1)}


def test_only_the_level_of_shared_groups_counts(tmp_path: Path) -> None:
    """A node without a replica of the group may read less: it takes no part in the group's log."""
    one, two = greeter(tmp_path, "n1", identities={}), greeter(tmp_path, "n2")
    two.peer_identities.levels["g1"] = 2
    met(two, one)
    two.peer_identities.left("g1")
    assert not two.peer_identities.levels


# -- versions of packets


@pytest.mark.parametrize(
    ("states", "said"),
    [(0, "n1 (LedgerMQ 0.1.0) sends packets of version 1"), (1, "version 1"), (3, "version 3")],
)
def test_a_node_with_other_packets_is_refused_in_both_directions(
    tmp_path: Path, states: int, said: str
) -> None:
    """A program before version 2 states none and refuses nobody, so the newer side refuses as
    caller and as callee. The refusal names both versions and the remedy, and no directory is
    recorded."""
    old, new = (
        greeter(tmp_path, "n1", version="0.1.0", wire_version=states),
        greeter(tmp_path, "n2", version="0.2.0"),
    )
    assert new.wire_version == 2, "an absent version is 1"
    with pytest.raises(Refused) as of_hello:
        met(new, old)
    with pytest.raises(Refused) as of_reply:
        new.check_reply(b"n" * 32, old.reply(new.hello(b"c" * 32, b"n" * 32)), "n1")
    for caught in (of_hello, of_reply):
        assert caught.value.reason == "wire"
        assert said in str(caught.value) and "n2 (LedgerMQ 0.2.0) of version 2" in str(caught.value)
        assert str(caught.value).endswith(
            "stop all nodes of the cluster and start them with one version of LedgerMQ"
        )
    assert not new.peer_identities.known["g1"]


def test_a_full_book_of_a_former_version_is_read(tmp_path: Path) -> None:
    """Without the peers' starts; they are noted at the next greeting."""
    book = PeerIdentities(RealDisk(), {"g1": str(tmp_path)}, _fail)
    book.load()
    book.greeted("g1", "n1", "one", None)
    again = PeerIdentities(RealDisk(), {"g1": str(tmp_path)}, _fail)
    again.load()
    assert again.boots == {"g1": {}}
    again.greeted("g1", "n1", "one", Boots(4, ("a", "b")))
    assert again.boots == {"g1": {"n1": ("one", 4, "b")}}
