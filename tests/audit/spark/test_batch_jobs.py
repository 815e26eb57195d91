"""The batch jobs as functions of data frames, against plain Python: every subset of a short
sequence, and drawn messages with few keys."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F

from ledgermq.audit.batch import counts
from ledgermq.audit.batch.compare import differences
from tests.audit.spark_session import running_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MESSAGES = (
    "store_time timestamp, born_time timestamp, broker_group string, queue int, offset bigint,"
    " message_id string, tag string, keys array<string>, properties map<string,string>, body binary"
)
BEGIN = datetime(2026, 1, 31, 12, 59, 58, tzinfo=UTC)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with running_spark() as spark:
        # Half an hour off UTC: hours must not depend on the session.
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        yield spark


def message(
    offset: int, body: bytes = b"b", keys: Sequence[str] | None = (), **more: Any
) -> dict[str, Any]:
    at = BEGIN + timedelta(seconds=offset)
    said = {
        "message_id": f"id-{offset}",
        "broker_group": "g1",
        "queue": 0,
        "tag": None,
        "properties": {},
    }
    return {
        "store_time": at,
        "born_time": at,
        "offset": offset,
        "body": body,
        "keys": None if keys is None else list(keys),
        **said,
        **more,
    }


def frame_of(session: Any, messages: Sequence[dict[str, Any]]) -> Any:
    return session.createDataFrame(list(messages), MESSAGES)


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Messages with few keys, bodies and properties, so that all of them repeat."""
    chance = random.Random(seed)
    return [
        message(
            offset,
            chance.choice((b"", b"a", b"\xff\x00")),
            chance.choice(((), ("k1",), ("k1", "k2"), ("k2", "k2"), ("k1 k2",))),
            tag=chance.choice((None, "", "T")),
            properties=dict(
                chance.sample(
                    [("p", chance.choice("12")), ("q", chance.choice("12")), ("p2", "")],
                    chance.randrange(3),
                )
            ),
        )
        for offset in range(count)
    ]


def test_messages_per_hour(session: Any) -> None:
    """A message counts for each of its keys, or for null; hours are those of UTC; any expression is
    a key, any time counts."""
    messages = drawn(1, 60)
    found = counts.messages_per_hour(frame_of(session, messages)).collect()
    hours = Counter(
        (key, int(m["store_time"].timestamp()) // 3600)
        for m in messages
        for key in m["keys"] or [None]
    )
    assert {
        (row["key"], int(row["hour"].timestamp()) // 3600): row["messages"] for row in found
    } == hours
    assert len({hour for _, hour in hours}) == 2
    old = [{**m, "born_time": datetime(1969, 12, 31, 23, 59, tzinfo=UTC)} for m in messages]
    (row,) = counts.messages_per_hour(frame_of(session, old), F.lit(7), "born_time").collect()
    assert (row["key"], row["messages"], row["hour"].timestamp()) == ("7", 60, -3600)


def test_duplicates(session: Any) -> None:
    """Keys that two messages have, with first and last place and the number of different bodies; a
    message is no duplicate of itself."""
    messages = drawn(2, 30)
    found = {row["key"]: row for row in counts.duplicates(frame_of(session, messages)).collect()}
    by_key: dict[str, list[dict[str, Any]]] = {}
    for m in messages:
        for key in set(m["keys"]):
            by_key.setdefault(key, []).append(m)
    repeated = {key: group for key, group in by_key.items() if len(group) > 1}
    assert found.keys() == repeated.keys() and repeated
    for key, group in repeated.items():
        row = found[key]
        assert (row["messages"], row["bodies"]) == (len(group), len({m["body"] for m in group}))
        assert (row["first"]["offset"], row["last"]["offset"]) == (
            group[0]["offset"],
            group[-1]["offset"],
        )
    assert (
        counts.duplicates(
            frame_of(session, [message(0, keys=("k", "k")), message(1), message(2, keys=None)])
        ).count()
        == 0
    )
    by_tag = counts.duplicates(frame_of(session, messages), F.col("tag")).collect()
    assert {row["key"]: row["messages"] for row in by_tag} == {
        tag: n for tag, n in Counter(m["tag"] for m in messages).items() if tag is not None
    }


def test_gaps_of_every_subset(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All subsets of ten numbers, each a series of its own, with stretches of four numbers and one
    number twice; and one long series."""
    monkeypatch.setattr(counts, "BUCKET_BITS", 2)
    subsets = [[n - 5 for n in range(10) if mask >> n & 1] for mask in range(1 << 10)]
    numbers = [
        (str(mask), str(n)) for mask, subset in enumerate(subsets) for n in [*subset, *subset[:1]]
    ]
    # Not a number of the sequence.
    numbers += [("3", "x"), ("3", None), ("3", "1.5")]
    frame = session.createDataFrame(numbers, "series string, n string").repartition(7)
    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in counts.gaps(frame, F.col("n"), F.col("series")).collect():
        found.setdefault(row["series"], []).append((row["first"], row["last"], row["missing"]))
    wanted = {
        str(mask): missing for mask, subset in enumerate(subsets) if (missing := gaps_of(subset))
    }
    assert {series: sorted(rows) for series, rows in found.items()} == wanted
    one = [(n,) for n in range(1000) if n not in (17, 18, 400)]
    rows = counts.gaps(session.createDataFrame(one, "n bigint"), F.col("n")).collect()
    assert sorted(tuple(row) for row in rows) == [(None, 17, 18, 2), (None, 400, 400, 1)]


def gaps_of(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    pairs = itertools.pairwise(numbers)
    return [(low + 1, high - 1, high - low - 1) for low, high in pairs if high - low > 1]


def content(m: dict[str, Any]) -> tuple[Any, ...]:
    return m["body"], m["tag"] or "", tuple(m["keys"] or ()), tuple(sorted(m["properties"].items()))


@pytest.mark.parametrize(("left_seed", "right_seed"), [(3, 4), (5, 5)])
def test_differences(session: Any, left_seed: int, right_seed: int) -> None:
    """Contents that one side has more often; places, ids and the order of properties do not count,
    and which name has which value does."""
    left, right = drawn(left_seed, 200), drawn(right_seed, 180 if right_seed != left_seed else 200)
    random.Random(1).shuffle(right)
    right = [{**m, "offset": 1000 + n, "message_id": f"copy-{n}"} for n, m in enumerate(right)]
    # A dict of Python has no order in a data frame.
    turned = frame_of(session, right).withColumn(
        "properties", F.map_from_entries(F.reverse(F.map_entries("properties")))
    )
    found = differences(frame_of(session, left), turned, F.col("tag")).collect()
    counted = [Counter((m["tag"], content(m)) for m in side) for side in (left, right)]
    wanted = Counter(
        (key[0], *(side[key] for side in counted))
        for key in {*counted[0], *counted[1]}
        if counted[0][key] != counted[1][key]
    )
    assert Counter((row["key"], row["left"], row["right"]) for row in found) == wanted
    assert bool(wanted) == (left_seed != right_seed)
    for row in found:
        assert (row["first_left"] is None) == (row["left"] == 0) and (
            row["first_right"] is None
        ) == (row["right"] == 0)


@pytest.mark.verify
def test_one_changed_byte_is_a_difference(session: Any) -> None:
    """Each part of a message counts, and parts are not confused with each other; the order of
    properties means nothing."""
    same = message(0, b"ab", ("k",), tag="T", properties={"p": "1"})
    for change in (
        {"body": b"aB"},
        {"tag": "t"},
        {"keys": ["k", ""]},
        {"keys": []},
        {"properties": {"p": "2"}},
        {"properties": {"p": "1", "q": ""}},
        {"properties": {"1": "p"}},
    ):
        rows = differences(
            frame_of(session, [same]), frame_of(session, [{**same, **change}]), F.lit("x")
        ).collect()
        assert sorted((row["key"], row["left"], row["right"]) for row in rows) == [
            ("x", 0, 1),
            ("x", 1, 0),
        ], change
    orders = ["map('p', '1', 'q', '2')", "map('q', '2', 'p', '1')"]
    left, right = (
        frame_of(session, [same]).withColumn("properties", F.expr(order)) for order in orders
    )
    assert differences(left, right).count() == 0
