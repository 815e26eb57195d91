"""Which nodes there are and where: the quorum's word over the file's, and peers that come, move and
go while a node runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.node.controller.roster import FILE, Roster
from ledgermq.node.replica.peers.peers import Peers
from ledgermq.node.replica.ports import Lost, NotSent
from ledgermq.proto import peer_pb2
from ledgermq.storage.files.real_disk import RealDisk
from tests.node.replica.test_node_peers import FixedRoll, Recorder, greeter

SEEDS = {
    name: {"peer": f"{name}:1", "controller": f"{name}:2", "client": f"{name}:3"}
    for name in ("n1", "n2", "n3")
}


def roster(directory: Path, node: str = "n1") -> Roster:
    made = Roster(node, SEEDS, RealDisk(), str(directory))
    assert made.load() is None
    return made


def test_seeds_lead_to_the_others_until_the_quorum_tells_more(tmp_path: Path) -> None:
    """A moved node is first tried at its reported address; an added node is included; a removed
    node is not."""
    one = roster(tmp_path)
    assert (
        one.peers() == {"n2": ("n2:1",), "n3": ("n3:1",)}
        and one.knows("n2")
        and not one.knows("n4")
    )
    told = {
        "n1": SEEDS["n1"],
        "n2": {"peer": "new:1", "controller": "new:2"},
        "n4": {"peer": "n4:1", "state": "joining"},
    }
    assert one.on_addresses(7, told, ["n3"], current=True)
    assert one.peers() == {"n2": ("new:1", "n2:1"), "n4": ("n4:1",)}
    assert (
        one.controllers() == {"n1": ("n1:2",), "n2": ("new:2", "n2:2"), "n4": ()}
        and one.address("n2", "client") == "n2:3"
    )
    assert one.removed("n3") and not one.knows("n3") and not one.knows("n1"), (
        "a node is no peer of itself"
    )
    assert not one.on_addresses(7, told, ["n3"], current=True), "nothing new"


def test_learned_addresses_outlive_a_restart_with_an_old_file(tmp_path: Path) -> None:
    """The file still names the removed node and the old address; a quorum that is not up to date
    yet changes nothing back."""
    one = roster(tmp_path)
    one.on_addresses(9, {"n2": {"peer": "new:1"}}, ["n3"], current=True)
    one.save()
    again = roster(tmp_path)
    assert again.peers() == {"n2": ("new:1", "n2:1")}
    assert not again.on_addresses(3, SEEDS, [], current=False) and again.removed("n3")
    assert again.on_addresses(3, SEEDS, [], current=True), (
        "a quorum that began anew is believed once it is complete"
    )


def test_changed_own_address_is_told_to_the_quorum(tmp_path: Path) -> None:
    """All nodes may be restarted on other ports at once; but an address set by an operator has
    priority over an unchanged file."""
    one = roster(tmp_path)
    one.on_addresses(9, {"n1": {"peer": "elsewhere:1"}}, [], current=True)
    one.save()
    assert roster(tmp_path).moved is None
    changed = Roster(
        "n1", {**SEEDS, "n1": {**SEEDS["n1"], "peer": "n1:77"}}, RealDisk(), str(tmp_path)
    )
    changed.load()
    assert changed.moved is not None and changed.moved["peer"] == "n1:77"
    changed.save()
    assert roster(tmp_path).moved is None, "a change that was taken back before it was told"
    changed.has_moved()
    changed.save()
    assert roster(tmp_path).moved is not None


@pytest.mark.parametrize("content", [b"{}", b"not json", b""])
def test_a_damaged_file_is_said_and_the_seeds_count(tmp_path: Path, content: bytes) -> None:
    """Nothing rests on it but finding the others."""
    (tmp_path / FILE).write_bytes(content)
    made = Roster("n1", SEEDS, RealDisk(), str(tmp_path))
    assert FILE in (made.load() or "") and made.peers() == {"n2": ("n2:1",), "n3": ("n3:1",)}


async def test_peers_come_move_and_go_while_the_node_runs(tmp_path: Path) -> None:
    """`links` stays the same dictionary; a moved peer is reached at its new address, and a removed
    peer is not called any more."""
    here = Recorder()
    accepting = [Peers({}, greeter(tmp_path, "n2"), Recorder(), 1 << 20) for _ in range(2)]
    ports = [await peers.listen("127.0.0.1:0") for peers in accepting]
    one = Peers({}, greeter(tmp_path, "n1"), here, 1 << 20)
    links = one.links
    one.dial()
    try:
        one.set_peers({"n2": [f"127.0.0.1:{ports[0]}"]})
        link = links["n2"]
        await here.until(lambda: link.up)
        assert (await link.call(peer_pb2.ForwardCall(method="M"))).responses
        one.set_peers({"n2": [f"127.0.0.1:{ports[0]}"]})
        assert here.links == [("n2", True)], "nothing changed, nothing was closed"
        await accepting[0].stop()
        one.set_peers({"n2": [f"127.0.0.1:{ports[1]}", f"127.0.0.1:{ports[0]}"]})
        await here.until(lambda: here.links[-1] == ("n2", True) and len(here.links) >= 3)
        assert link is links["n2"] and (await link.call(peer_pb2.ForwardCall(method="M"))).responses
        waiting = asyncio.create_task(link.call(peer_pb2.ForwardCall(method="never")))
        await asyncio.sleep(0)
        one.set_peers({})
        assert not links
        with pytest.raises((NotSent, Lost)):
            await waiting
    finally:
        await one.stop()
        await accepting[1].stop()


async def test_a_peer_that_is_not_where_it_is_said_to_be_is_found_where_the_file_says(
    tmp_path: Path,
) -> None:
    """The reported address first, then the seed, in turn."""
    here = Recorder()
    accepting = Peers({}, greeter(tmp_path, "n2"), Recorder(), 1 << 20)
    port = await accepting.listen("127.0.0.1:0")
    one = Peers(
        {"n2": ["127.0.0.1:1", f"127.0.0.1:{port}"]}, greeter(tmp_path, "n1"), here, 1 << 20
    )
    one.dial()
    try:
        await here.until(lambda: one.links["n2"].up)
    finally:
        await one.stop()
        await accepting.stop()


async def test_the_stream_of_a_node_that_was_removed_ends(tmp_path: Path) -> None:
    """It does not wait until the removed node's process stops, and the next greeting is refused."""
    here = Recorder()
    two = greeter(tmp_path, "n2")
    accepting = Peers({"n1": ["127.0.0.1:1"]}, two, Recorder(), 1 << 20)
    port = await accepting.listen("127.0.0.1:0")
    one = Peers({"n2": [f"127.0.0.1:{port}"]}, greeter(tmp_path, "n1"), here, 1 << 20)
    one.dial()
    try:
        await here.until(lambda: one.links["n2"].up)
        object.__setattr__(two, "roll", FixedRoll(frozenset(), frozenset({"n1"})))
        accepting.set_peers({})
        async with asyncio.timeout(20):
            while one.links["n2"].refusal is None:
                await asyncio.sleep(0.01)
        assert "was removed from this cluster" in (one.links["n2"].refusal or "")
    finally:
        await one.stop()
        await accepting.stop()
