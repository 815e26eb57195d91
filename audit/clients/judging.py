"""Comparing claims of clients with the log, within one bucket: both are tables, and all rows about
one message are in the same bucket.

A message is identified by its id; a native message's id contains producer, epoch and sequence
number. The log tells where it is stored. This module calls the judge of each kind of claim, and
reports claims that cannot be true. Pure: tables in, rows of `RESULTS` out.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.audit.clients.bucket_results import Bucket, Results, one
from ledgermq.audit.clients.claims import DELIVERY, RECEIPT
from ledgermq.audit.clients.deliveries import judge_deliveries
from ledgermq.audit.clients.receipts import Receipts, judge_receipts
from ledgermq.audit.clients.scope import Scope


def judge(
    stored: pa.Table, claims: pa.Table, scopes: Mapping[str, Scope], window_ms: int
) -> pa.Table:
    """Judge one bucket: compare its claims with the stored messages."""
    results = Results(window_ms)
    wrong = pc.is_valid(claims.column("wrong"))
    for row in claims.filter(wrong).to_pylist():
        rule = "client.receipt" if row["kind"] == RECEIPT else "client.delivery"
        results.finding(
            rule,
            group=row["broker_group"],
            topic=row["topic"],
            file=row["file"],
            row=row["row"],
            index=None,
            n=1,
            proof=row["wrong"],
        )
    claims = claims.filter(pc.invert(wrong))
    receipts = Receipts(claims.filter(pc.equal(claims.column("kind"), RECEIPT)))
    deliveries = claims.filter(pc.equal(claims.column("kind"), DELIVERY))
    bucket = Bucket(stored, [receipts.ids, one(deliveries.column("message_id"))])
    results.count("stored", bucket.groups, bucket.topics, bucket.store_ms)
    if len(receipts):
        judge_receipts(bucket, receipts, scopes, results)
    if deliveries.num_rows:
        judge_deliveries(bucket, deliveries, scopes, results)
    return results.table()
