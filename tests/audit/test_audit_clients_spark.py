"""The client side of the audit on Spark: what the local engine finds and counts, from shuffled buckets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.clients import outcome
from ledgermq.audit.clients.bad_file import BadFile
from ledgermq.audit.clients.joining import join_here
from ledgermq.audit.jobs import audit
from ledgermq.audit.spark import java
from tests.audit.client_cases import write_clients
from tests.audit.test_audit_clients import LIES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    before = dict(os.environ)
    spark = java.spark_session("local[2,3]")
    yield spark
    spark.stop()
    os.environ.clear()
    os.environ.update(before)


def test_both_joins_agree(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same findings in the same words and the same counts, with one bucket and with many; a file that is none is told as one."""
    from ledgermq.audit.spark.engine import SparkEngine

    clients = write_clients(tmp_path, leave_out=12)
    for at, lie in enumerate(LIES):
        LIES[lie](clients.receipts[at])
    row = clients.deliveries[5]
    clients.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
    clients.deliveries[8]["message_id"] = "order-99"
    groups = audit(clients.directories).groups
    receipts, acks = clients.write()
    given = outcome.ClientFiles.find([receipts], [acks])
    for rows in (400_000, 40):
        monkeypatch.setattr(outcome, "BUCKET_ROWS", rows)
        here = outcome.check_clients(groups, given, join_here)
        there = outcome.check_clients(groups, given, SparkEngine(session).join)
        assert (there.findings, there.windows, there.more, there.reasons) == (here.findings, here.windows, here.more, here.reasons)
        assert {"client.lost", "client.receipt", "client.phantom", "client.redelivered"} <= {f.flaw.rule for f in here.findings}
    monkeypatch.setattr("ledgermq.audit.spark.clients.LISTED", 3)
    cut = outcome.check_clients(groups, given, SparkEngine(session).join)
    assert cut.more["client.receipt"] > 0 and cut.windows == here.windows
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"topic": "t", "message_id": "m", "delivered_ms": 1}\n[]\n')
    with pytest.raises(BadFile, match="line 2, is no JSON object"):
        outcome.check_clients(groups, outcome.ClientFiles.find([], [str(bad)]), SparkEngine(session).join)
