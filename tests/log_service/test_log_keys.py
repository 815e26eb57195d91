"""Receipt keys: created once by agreement, replaced when old, kept for verification, and never
disclosed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ledgermq.node.controller.metadata import apply
from ledgermq.node.controller.signing_keys import RECEIPT_KEYS_MAX as MAX_KEYS
from ledgermq.node.controller.state import export, restore
from ledgermq.node.frontend.native.keys import ROTATE_AFTER_MS, ReceiptKeys
from ledgermq.node.frontend.security.sealing import Sealer
from tests.log_service.log_stage import CLUSTER, SECRET, FakeQuorum


class Bench:
    def __init__(self) -> None:
        self.quorum = FakeQuorum()
        self.now_ms = 1_000
        self.sealer = Sealer((SECRET,), CLUSTER)
        self.keys = ReceiptKeys(self.quorum, self.sealer, lambda: self.now_ms)

    def other_node(self) -> ReceiptKeys:
        return ReceiptKeys(self.quorum, self.sealer, lambda: self.now_ms)


def test_the_first_key_is_made_at_first_use_and_is_the_same_everywhere() -> None:
    """Looking for a key makes none."""
    bench = Bench()
    assert bench.keys.newest() is None
    asyncio.run(bench.keys.rotate_if_old())
    assert bench.quorum.state.receipt_keys == ()
    asyncio.run(bench.keys.ready())
    found = bench.keys.newest()
    assert found is not None and len(found[1]) == 32
    asyncio.run(bench.keys.ready())
    asyncio.run(bench.other_node().ready())
    assert bench.other_node().newest() == found
    assert len(bench.quorum.state.receipt_keys) == 1


def test_of_two_nodes_that_make_a_key_at_once_one_wins() -> None:
    """The loser's key is never used."""

    class Late(FakeQuorum):
        """The command of another node arrives first."""

        async def submit(self, operation: str, arguments: dict[str, Any], timeout: float) -> Any:
            self.command(
                {
                    "op": operation,
                    **arguments,
                    "key_id": "first",
                    "secret": sealer.seal("receipt key first", "11" * 32),
                }
            )
            return await super().submit(operation, arguments, timeout)

    sealer = Sealer((SECRET,), CLUSTER)
    keys = ReceiptKeys(Late(), sealer, lambda: 0)
    asyncio.run(keys.ready())
    assert keys.newest() == ("first", b"\x11" * 32)


def test_a_rotation_at_a_node_that_lags_behind_the_quorum_adds_a_key() -> None:
    """The node has just started, so it does not know the newest key."""

    class Lagging(FakeQuorum):
        """The node learns of `agreed` with its first barrier; commands meet `agreed` in any
        case."""

        def __init__(self, agreed: FakeQuorum) -> None:
            super().__init__()
            self.agreed = agreed

        async def submit(self, operation: str, arguments: dict[str, Any], timeout: float) -> Any:
            return await self.agreed.submit(operation, arguments, timeout)

        async def barrier(self) -> None:
            await super().barrier()
            self.state = self.agreed.state

    bench = Bench()
    asyncio.run(bench.keys.ready())
    lagging = ReceiptKeys(Lagging(bench.quorum), bench.sealer, lambda: bench.now_ms)
    newest, count = asyncio.run(lagging.rotate())
    assert (
        count == 2
        and newest
        == bench.quorum.state.receipt_keys[-1].key_id
        != bench.quorum.state.receipt_keys[0].key_id
    )


def test_an_old_key_is_replaced_and_goes_on_verifying() -> None:
    """A young one stays."""
    bench = Bench()
    asyncio.run(bench.keys.ready())
    former = bench.keys.newest()
    bench.now_ms += ROTATE_AFTER_MS - 1
    asyncio.run(bench.keys.rotate_if_old())
    assert bench.keys.newest() == former
    bench.now_ms += 1
    asyncio.run(bench.keys.rotate_if_old())
    newest = bench.keys.newest()
    assert newest is not None and former is not None and newest[0] != former[0]
    assert bench.keys.find(former[0]) == former[1] and bench.keys.find("unknown") is None
    barriers = bench.quorum.barriers
    asyncio.run(bench.keys.meet([former[0], newest[0]]))
    assert bench.quorum.barriers == barriers
    asyncio.run(bench.keys.meet([former[0], "unknown", "neither"]))
    assert bench.quorum.barriers == barriers + 1, (
        "a key that is not known here may have been made elsewhere"
    )


def test_a_key_under_another_cluster_secret_is_not_used() -> None:
    """It is not replaced either: nodes that can read it continue to use it; this node signs with
    the previous key."""
    bench = Bench()
    asyncio.run(bench.keys.ready())
    first = bench.keys.newest()
    foreign = ReceiptKeys(
        bench.quorum, Sealer((b"another secret of the cluster...",), CLUSTER), lambda: 0
    )
    asyncio.run(foreign.rotate())
    assert bench.keys.newest() == first


def test_keys_are_in_no_text_and_in_no_answer() -> None:
    """Neither in plain nor sealed."""
    bench = Bench()
    asyncio.run(bench.keys.ready())
    outcome = asyncio.run(bench.keys.rotate())
    newest = bench.keys.newest()
    assert newest is not None
    sealed = bench.quorum.state.receipt_keys[-1].sealed
    texts = [
        repr(bench.keys),
        repr(bench.quorum.state.receipt_keys),
        repr(outcome),
        repr(bench.quorum.state.answered),
    ]
    assert not any(newest[1].hex() in text or sealed in text for text in texts)
    assert newest[1].hex() not in json.dumps(export(bench.quorum.state))


def test_keys_survive_the_snapshot_and_are_bounded() -> None:
    """An old snapshot has none."""
    bench = Bench()
    for number in range(MAX_KEYS + 3):
        known = bench.quorum.state.receipt_keys
        after = known[-1].key_id if known else ""
        bench.quorum.command(
            {
                "op": "add-receipt-key",
                "key_id": f"k{number}",
                "secret": "s",
                "created_ms": 1,
                "after": after,
            }
        )
    keys = bench.quorum.state.receipt_keys
    assert (len(keys), keys[0].key_id, keys[-1].key_id) == (MAX_KEYS, "k3", f"k{MAX_KEYS + 2}")
    tree = json.loads(json.dumps(export(bench.quorum.state)))
    assert restore(tree).receipt_keys == keys
    del tree["receipt_keys"]
    assert restore(tree).receipt_keys == ()


@pytest.mark.parametrize(
    "change",
    [
        {"key_id": ""},
        {"key_id": 5},
        {"secret": ""},
        {"created_ms": "1"},
        {"key_id": "k0", "after": "k0"},
    ],
)
def test_invalid_receipt_key_is_refused(change: dict[str, Any]) -> None:
    """Commands come from nodes of other versions, too."""
    bench = Bench()
    first = {"op": "add-receipt-key", "key_id": "k0", "secret": "s", "created_ms": 1, "after": ""}
    bench.quorum.command(first)
    after, outcome = apply(bench.quorum.state, {**first, "key_id": "k1", "after": "k0", **change})
    assert (outcome.code, after) == (40000, bench.quorum.state)
