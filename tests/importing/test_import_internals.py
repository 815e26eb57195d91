"""RocketMQ's own topics, each on purpose: delayed messages, the timer wheel, retries and dead
letters, transactions, the rest."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from tests.importing.conftest import Run
from tests.importing.imported_log import messages, snapshot
from tests.importing.store_root import BORN_MS, StoreRoot
from tests.terminal import Typed

MINUTE = 60_000


def delayed(root: StoreRoot, number: int, queue: int, **more: object) -> None:
    names = {
        "UNIQ_KEY": f"D{number}",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        "DELAY": str(queue + 1),
        "TAGS": "late",
    }
    root.send("SCHEDULE_TOPIC_XXXX", b"late %d" % number, queue, properties=names, **more)


def test_delay_levels_become_delayed_messages(tmp_path: Path, import_store: Run) -> None:
    """Those that were not delivered yet wait in their slot, with their topic, queue and time; those
    before the level's offset are done."""
    root = StoreRoot(tmp_path / "store")
    for number in range(4):
        delayed(root, number, 4, store_ms=BORN_MS + number)
    root.send("orders", b"last", 0, properties={"UNIQ_KEY": "A"}, store_ms=BORN_MS + 30_000)
    root.config("delayOffset.json", {"offsetTable": {5: 2}}, bare=True)
    status, told, _ = import_store(root.write())
    assert (status, told["audit"], told["topics"][0]["delayed"]) == (0, "PASS", 2)
    assert told["left_out"] == [
        {"topic": "SCHEDULE_TOPIC_XXXX", "reason": "delayed, and delivered before", "messages": 2}
    ]
    waiting = [
        one for one in messages(tmp_path / "cluster/n1") if one.topic == "rmq_sys_ledgermq_timer"
    ]
    times = [BORN_MS + 2 + MINUTE, BORN_MS + 3 + MINUTE]
    assert [one.queue for one in waiting] == [time // MINUTE % 4096 for time in times]
    assert [(one.offset, one.body) for one in waiting] == [(0, b"late 2"), (1, b"late 3")]
    for one, time in zip(waiting, times, strict=True):
        assert (
            one.names[-4:] == ("REAL_TOPIC", "REAL_QID", "__LMQ.INC", "TIMER_OUT_MS")
            and "DELAY" not in one.names
        )
        assert one.properties["TIMER_DELIVER_MS"] == one.properties["TIMER_OUT_MS"] == str(time)
        assert (one.properties["REAL_TOPIC"], one.properties["REAL_QID"]) == ("orders", "1")
    state = snapshot(tmp_path / "cluster/n1")
    assert state["timers"]["counts"]["stored"] == 2 and state["timers"]["watermark"] == [
        BORN_MS + 30_000,
        -1,
    ]
    assert state["topics"]["orders"]["kind"] == "mixed" and state["topics"]["orders"]["queues"] == 2


def test_the_timer_wheel(tmp_path: Path, import_store: Run) -> None:
    """What it delivered is done; recalled ones and older copies of those it stored again are left
    out; far ones wait at the wheel's end."""
    root = StoreRoot(tmp_path / "store")

    def timer(name: str, out_ms: int, **more: str) -> None:
        names = {
            "UNIQ_KEY": name,
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
            "TIMER_OUT_MS": str(out_ms),
            **more,
        }
        root.send("rmq_sys_wheel_timer", name.encode(), 0, properties=names, store_ms=BORN_MS)

    timer("done", BORN_MS + 1000)
    timer("soon", BORN_MS + 5000)
    timer("rolled", BORN_MS + 90 * MINUTE)
    timer("unwanted", BORN_MS + 9000)
    timer("rolled", BORN_MS + 90 * MINUTE, TIMER_ROLL_TIMES="1")
    timer("mark", BORN_MS + 9000, TIMER_DEL_UNIQKEY="unwanted")
    timer("far", BORN_MS + 5000 * MINUTE)
    (root.path / "config/timercheck").write_bytes(struct.pack(">q", BORN_MS + 2000) + bytes(4088))
    status, told, _ = import_store(root.write())
    assert (status, told["audit"], told["topics"][0]["delayed"]) == (0, "PASS", 3)
    found = {one.body: one for one in messages(tmp_path / "cluster/n1")}
    assert sorted(found) == [b"far", b"rolled", b"soon"]
    last = ((BORN_MS + 2000) // MINUTE + 4095) * MINUTE
    assert (
        found[b"far"].properties["TIMER_OUT_MS"] == str(last)
        and found[b"far"].queue == last // MINUTE % 4096
    )
    assert found[b"far"].properties["TIMER_DELIVER_MS"] == str(BORN_MS + 5000 * MINUTE)
    reasons = {row["reason"]: row["messages"] for row in told["left_out"]}
    assert reasons == {
        "delayed, and delivered before": 1,
        "delayed, and recalled": 2,
        "delayed, and stored again for later": 1,
    }


ODD = ("", "x", "-1", "+1", "²", "1" * 1000, str(1 << 63))
"""What is no number of a queue, and no time."""


def test_delayed_messages_that_name_no_queue_or_no_time(tmp_path: Path, import_store: Run) -> None:
    """They are left out and told; so is what has a number that does not fit."""
    root = StoreRoot(tmp_path / "store")
    for odd in ODD:
        names = {"UNIQ_KEY": "u", "REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": odd}
        root.send("rmq_sys_wheel_timer", b"time", 0, properties=names, store_ms=BORN_MS)
    for odd in ODD:
        names = {
            "UNIQ_KEY": "q",
            "REAL_TOPIC": "orders",
            "REAL_QID": odd,
            "TIMER_OUT_MS": str(BORN_MS + 5000),
        }
        root.send("rmq_sys_wheel_timer", b"queue", 0, properties=names, store_ms=BORN_MS)
    root.send(
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        ",".join(ODD).encode(),
        0,
        properties={"TAGS": "d"},
        store_ms=BORN_MS,
    )
    root.send("orders", b"last", 0, properties={"UNIQ_KEY": "A"}, store_ms=BORN_MS)
    store = root.write()
    for name in ("0/" + "²" * 20, "²/" + "0" * 20):
        (root.path / "consumequeue/orders" / name).mkdir(parents=True)
    status, told, _ = import_store(store)
    assert (status, told["audit"], [topic["delayed"] for topic in told["topics"]]) == (
        0,
        "PASS",
        [0],
    )
    assert {
        "topic": "rmq_sys_wheel_timer",
        "reason": "delayed, without a topic or a time",
        "messages": 14,
    } in told["left_out"]


def test_transactions(tmp_path: Path, import_store: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed transactions are ordinary messages; open half messages are reported, and dropped
    only with --yes or a yes."""
    root = StoreRoot(tmp_path / "store")
    for number in range(4):
        names = {
            "UNIQ_KEY": f"T{number}",
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
            "TRAN_MSG": "true",
            "PGROUP": "p",
        }
        root.send("RMQ_SYS_TRANS_HALF_TOPIC", b"half", 0, properties=names)
    root.send("orders", b"half", 0, sysflag=0x8, properties={"UNIQ_KEY": "T1", "TRAN_MSG": "true"})
    root.send("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"1,2,", 0, properties={"TAGS": "d"})
    root.send("old", b"prepared", 0, sysflag=0x4, properties={"UNIQ_KEY": "P"})
    root.offsets({"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 1}})
    root.write()
    status, _, said = import_store(root.path)
    assert (
        status == 4
        and "1 transactions are undecided and end here (half messages at offsets 3)" in said
        and "--yes" in said
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Typed("n\n"))
        status, _, said = import_store(root.path)
    assert status == 1 and said.endswith(
        "nothing was written; import another replica of the broker, if there is one\n"
    )
    assert not (tmp_path / "cluster").exists() and not (tmp_path / "cluster.importing").exists()
    status, told, _ = import_store(root.path, "--yes")
    assert (status, told["undecided_transactions"], told["audit"]) == (0, 1, "PASS")
    assert [one.body for one in messages(tmp_path / "cluster/n1")] == [b"half"]
    assert {row["reason"] for row in told["left_out"]} == {
        "half message of a transaction",
        "RocketMQ's own",
        "prepared or rolled back, never visible",
    }


def test_retries_dead_letters_and_the_rest(tmp_path: Path, import_store: Run) -> None:
    """Retry and dead-letter topics are kept under their names; what only brokers need is counted by
    topic and left out."""
    root = StoreRoot(tmp_path / "store")
    root.send("%RETRY%g", b"again", properties={"UNIQ_KEY": "A", "RETRY_TOPIC": "orders"})
    root.send(
        "%DLQ%g",
        b"dead",
        properties={"UNIQ_KEY": "B", "DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "A"},
    )
    for topic in (
        "rmq_sys_REVIVE_LOG_c",
        "RMQ_SYS_TRACE_TOPIC",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ):
        root.send(topic, b"x", properties={"UNIQ_KEY": "C"})
    root.topics(TBW102={"perm": 7}, broker_a={"perm": 7}, c_REPLY_TOPIC={})
    status, told, _ = import_store(root.write())
    assert (status, told["audit"]) == (0, "PASS")
    assert [row["topic"] for row in told["topics"]] == ["%DLQ%g", "%RETRY%g"]
    assert [row["topic"] for row in told["left_out"]] == [
        "RMQ_SYS_TRACE_TOPIC", "SELF_TEST_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_REVIVE_LOG_c",
    ]  # fmt: skip


def test_only_some_topics(tmp_path: Path, import_store: Run) -> None:
    """--topics takes these topics, with what waits for them, and says how much stayed behind; one
    that is not there is an error."""
    root = StoreRoot(tmp_path / "store")
    for topic in ("orders", "other"):
        root.send(topic, b"x", properties={"UNIQ_KEY": topic})
    delayed(root, 1, 3)
    root.write()
    status, told, _ = import_store(root.path, "--topics", "other")
    assert (status, [row["topic"] for row in told["topics"]], told["kept"]) == (0, ["other"], 1)
    assert {row["reason"] for row in told["left_out"]} == {"of a topic that was not asked for"}
    status, _, said = import_store(root.path, "--topics", "other,missing", data="second")
    assert status == 4 and "has no topic missing" in said
