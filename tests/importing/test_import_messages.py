"""What `ledgermq import` makes of messages: kept byte for byte where our records have the field, in
a named form where they have not."""

from __future__ import annotations

import zlib
from pathlib import Path

import lz4.frame
import pytest

from ledgermq.proto.entries.compression import decompress
from tests.importing.conftest import Run
from tests.importing.imported_log import messages, snapshot
from tests.importing.store_root import BORN_MS, StoreRoot, host

KINDS = ("commitlog", "dledger")


@pytest.mark.parametrize("kind", KINDS)
def test_imported_message_keeps_its_fields(tmp_path: Path, import_store: Run, kind: str) -> None:
    """Place, times, hosts, redeliveries, body and properties in their order; the host's name is
    added where clients look for it."""
    root = StoreRoot(tmp_path / "store", kind)
    root.begin_queue("orders", 2, 500)
    names = {"UNIQ_KEY": "A1", "TAGS": "paid", "KEYS": "k1 k2", "colour": "grün", "WAIT": "true"}
    root.send(
        "orders",
        b"hello",
        2,
        properties=names,
        born_ms=BORN_MS + 5,
        store_ms=BORN_MS + 9,
        reconsume_times=3,
    )
    root.send("orders", b"", 2, properties={"UNIQ_KEY": "A2"}, store_ms=BORN_MS + 10, open_end=True)
    status, told, _ = import_store(root.write())
    assert (status, told["audit"], told["differences"]) == (0, "PASS", [])
    first, second = messages(tmp_path / "cluster/n1")
    assert (first.topic, first.queue, first.offset, first.body, first.reconsume_times) == (
        "orders",
        2,
        500,
        b"hello",
        3,
    )
    assert (first.born_ms, first.store_ms) == (BORN_MS + 5, BORN_MS + 9)
    assert (first.born_host, first.store_host) == (host("10.1.2.3", 50000), host("10.9.8.7", 10911))
    assert first.properties == {**names, "__BORNHOST": "10.1.2.3"} and first.names[:5] == tuple(
        names
    )
    assert (second.offset, second.body, second.properties) == (
        501,
        b"",
        {"UNIQ_KEY": "A2", "__BORNHOST": "10.1.2.3"},
    )


def test_the_copies_are_the_same_bytes(tmp_path: Path, import_store: Run) -> None:
    """Three nodes get one log: not a byte of log, index and consume queues differs, and each node
    has an incarnation of its own."""
    root = StoreRoot(tmp_path / "store")
    for number in range(50):
        root.send("orders", b"x" * 200, number % 3, properties={"UNIQ_KEY": f"U{number}"})
    status, told, _ = import_store(root.write(), nodes=3)
    assert (status, list(told["nodes"])) == (0, ["n1", "n2", "n3"])
    cluster = tmp_path / "cluster"
    kinds = ("dledger-NODE/data", "dledger-NODE/index", "consumequeue/orders/0")
    for kind in kinds:
        held = [
            {
                path.name: path.read_bytes()
                for path in sorted((cluster / node / "g1" / kind.replace("NODE", node)).iterdir())
            }
            for node in ("n1", "n2", "n3")
        ]
        assert held[0] == held[1] == held[2] and held[0], kind
    assert (
        len({(cluster / node / "g1/identity.json").read_bytes() for node in ("n1", "n2", "n3")})
        == 3
    )


def test_queues_go_on_where_they_were(tmp_path: Path, import_store: Run) -> None:
    """A queue begins with its first remaining message, also in a later file; a queue that lost all
    messages continues at its end."""
    root = StoreRoot(tmp_path / "store", first_file=8192)
    root.begin_queue("orders", 0, 70_000)
    for _ in range(30):
        root.send("orders", b"x" * 300)
    root.topics(orders={}, quiet={"readQueueNums": 1, "writeQueueNums": 2})
    root.queue_file("quiet", 1, [(10, 200, 0)] * 2, first=123)
    status, told, _ = import_store(root.write())
    rows = {row["topic"]: row for row in told["topics"]}
    assert status == 0 and told["audit"] == "PASS"
    assert (
        rows["orders"]["first_offset"],
        rows["orders"]["next_offset"],
        rows["orders"]["queues"],
    ) == (70_000, 70_030, 4)
    assert (rows["quiet"]["messages"], rows["quiet"]["next_offset"], rows["quiet"]["queues"]) == (
        0,
        125,
        2,
    )
    state = snapshot(tmp_path / "cluster/n1")
    assert (state["queues"]["orders"], state["queues"]["quiet"]) == ({"0": 70_030}, {"1": 125})
    assert (state["minimums"]["orders"], state["minimums"]["quiet"]) == (
        {"0": [70_000, None]},
        {"1": [125, None]},
    )
    assert state["topics"]["orders"]["begins"] == [70_000, 0, 0, 0]


def test_compressed_bodies_stay_compressed(tmp_path: Path, import_store: Run) -> None:
    """LZ4 and zlib, the old flag without a compressor too: the stored bytes are the source's, and
    read back as they were written."""
    text = b"many words " * 40
    packed = {
        0x101: lz4.frame.compress(text),
        0x001: zlib.compress(text),
        0x301: zlib.compress(text, 9),
    }
    root = StoreRoot(tmp_path / "store")
    for sysflag, body in packed.items():
        root.send("orders", body, sysflag=sysflag, properties={"UNIQ_KEY": f"{sysflag:x}"})
    assert import_store(root.write())[0] == 0
    found = messages(tmp_path / "cluster/n1")
    assert [one.body for one in found] == list(packed.values())
    assert [one.sysflag for one in found] == [0x101, 0x301, 0x301]
    assert {decompress(one.body, one.sysflag) for one in found} == {text}


def test_imported_fields_are_converted_to_our_forms(tmp_path: Path, import_store: Run) -> None:
    """Hosts of IPv6 width, FLAG, an id that is missing, names that mean something else here, a CRC
    of the whole record."""
    root = StoreRoot(tmp_path / "store", file_bytes=8192)
    root.send(
        "orders",
        b"1",
        born_host="fe80::1",
        store_host="fe80::2",
        properties={"UNIQ_KEY": "A", "PRIORITY": "3", "__LMQ.X": "y"},
    )
    root.send(
        "orders",
        b"2",
        flag=7,
        sysflag=0x2,
        properties={"_SYS_MSG_PRIORITY_": "4", "__CRC32#": "8758651980"},
    )
    root.send("orders" + "n" * 100, b"3", wide=True, properties={"UNIQ_KEY": "C"})
    root.send(
        "committed",
        b"4",
        sysflag=0x8,
        properties={"UNIQ_KEY": "D", "TRAN_MSG": "true", "PGROUP": "p"},
    )
    status, told, _ = import_store(root.write())
    assert (status, told["audit"]) == (0, "PASS")
    one, two, three, four = messages(tmp_path / "cluster/n1")
    assert (one.born_host, one.store_host, one.properties["__BORNHOST"]) == (
        bytes(8),
        bytes(8),
        "fe80::1",
    )
    assert one.properties["__LMQ.U.PRIORITY"] == "3" and one.properties["__LMQ.U.__LMQ.X"] == "y"
    assert (two.sysflag, two.properties["__LMQ.FLAG"], two.properties["PRIORITY"]) == (0, "7", "4")
    assert (
        "__CRC32#" not in two.properties
        and two.properties["UNIQ_KEY"] == f"0A09080700002A9F{root.positions[1]:016X}"
    )
    assert three.topic == "orders" + "n" * 100 and four.sysflag == 0
    assert {row["topic"]: row["kind"] for row in told["topics"]}["committed"] == "transaction"


def test_store_times_never_fall(tmp_path: Path, import_store: Run) -> None:
    """After a clock was set back, later messages get the time of the message before them, and the
    output has their number."""
    root = StoreRoot(tmp_path / "store")
    for store_ms in (BORN_MS + 10, BORN_MS + 4, BORN_MS + 7, BORN_MS + 12):
        root.send("orders", b"x", properties={"UNIQ_KEY": "A"}, store_ms=store_ms)
    status, told, _ = import_store(root.write())
    assert (status, told["times_raised"]) == (0, 2)
    assert [one.store_ms - BORN_MS for one in messages(tmp_path / "cluster/n1")] == [10, 10, 10, 12]


def test_groups_and_offsets_are_carried_over(tmp_path: Path, import_store: Run) -> None:
    """Attempts, order and waits of consumer groups; offsets as cursors and as committed offsets,
    within what the queues hold."""
    root = StoreRoot(tmp_path / "store")
    root.begin_queue("orders", 0, 10)
    for number in range(40):
        root.send("orders", b"x", number % 2, properties={"UNIQ_KEY": f"U{number}"})
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 2},
    }
    root.groups(
        workers={"retryMaxTimes": 4, "consumeMessageOrderly": True, "groupRetryPolicy": policy},
        TOOLS_CONSUMER={},
    )
    root.offsets(
        {"orders@workers": {0: 15, 1: 999}, "orders@reader": {0: 3}, "gone@workers": {0: 1}}
    )
    status, told, _ = import_store(root.write())
    assert (status, told["consumer_groups"]) == (0, ["reader", "workers"])
    assert any("2 consumer offsets were outside" in remark for remark in told["remarks"])
    state = snapshot(tmp_path / "cluster/n1")
    assert state["groups"]["workers"] == {
        "ns": "", "name": "workers", "max_attempts": 5, "fifo": True, "backoff": {"initial_ms": 1000, "max_ms": 60000, "multiplier": 2.0},
    }  # fmt: skip
    assert state["offsets"] == {
        "reader": {"orders": {"0": 10}},
        "workers": {"orders": {"0": 15, "1": 20}},
    }
    assert {queue: rows[0] for queue, rows in state["delivery"]["workers"]["orders"].items()} == {
        "0": 15,
        "1": 20,
    }
