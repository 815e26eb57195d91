"""Store roots that RocketMQ's own store classes wrote, plain and DLedger, imported: every message
they hold, in its place, and audited.

Needs a JDK and Maven, as `test_compat_official_store.py` does; without them the tests are skipped
and say so.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgermq.cli import run
from ledgermq.node.process.local import free_ports
from ledgermq.proto.entries.compression import decompress
from tests.compat.conftest import Driver
from tests.importing.imported_log import messages

pytestmark = [pytest.mark.slow, pytest.mark.verify]
MESSAGES, FILE_BYTES, BORN_MS = 400, 32_768, 1_700_000_000_000


@pytest.mark.parametrize("layout", ["plain", "dledger"])
def test_import_keeps_messages_written_by_rocketmq(
    tmp_path: Path, driver: Driver, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    """Each message has the queue offset that RocketMQ gave it, its body, tag, keys, times and host;
    delayed ones wait; the audit passes."""
    store = tmp_path / "store"
    facts = driver("WriteStore", layout, store, MESSAGES, FILE_BYTES, free_ports(1)[0].peer_port)
    status = run(
        [
            "import",
            "--from",
            str(store),
            "--data",
            str(tmp_path / "c"),
            "--log-file-size",
            "128KiB",
            "--json",
        ]
    )
    told = json.loads(capsys.readouterr().out)
    assert (status, told["audit"], told["messages"], told["damages"]) == (0, "PASS", MESSAGES, [])
    assert told["layout"] == ("DLedger" if layout == "dledger" else "plain commit log")
    found = messages(tmp_path / "c/n1")
    ends = {
        f"{topic}/{queue}": 0
        for topic in ("orders", "wide", "SCHEDULE_TOPIC_XXXX")
        for queue in range(4)
    }
    for one in found:
        number = int(one.properties["UNIQ_KEY"], 16)
        assert decompress(one.body, one.sysflag) == (f"body {number}" * (1 + number % 20)).encode()
        assert (one.born_ms, one.reconsume_times) == (BORN_MS + number, number % 3)
        assert (one.properties["TAGS"], one.properties["KEYS"]) == (
            f"tag{number % 3}",
            f"k{number} shared",
        )
        assert one.properties["colour"] == ("grün" if number % 2 else "blue")
        wide = number % 7 == 3
        assert one.properties["__BORNHOST"] == ("fe80::12" if wide else "10.1.2.3")
        waits = number % 11 == 5
        assert one.topic == ("rmq_sys_ledgermq_timer" if waits else "wide" if wide else "orders")
        place = "SCHEDULE_TOPIC_XXXX/2" if waits else f"{one.topic}/{one.queue}"
        if waits:
            assert (one.properties["REAL_TOPIC"], one.properties["REAL_QID"]) == (
                "orders",
                str(number % 4),
            )
            assert int(one.properties["TIMER_DELIVER_MS"]) == one.store_ms + 10_000
        else:
            assert (one.queue, one.offset) == (number % 4, ends[place])
        ends[place] += 1
    assert {place: str(end) for place, end in ends.items()} == {
        place: facts[place] for place in ends
    }
