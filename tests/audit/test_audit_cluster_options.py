"""What Spark's options say of a topic, and how a range of messages is cut into partitions: no Spark
and no cluster needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from ledgermq.audit.spark.cluster.cluster_options import (
    count_of,
    flag_of,
    places_of,
    queues_of,
    target_of,
    time_ms,
)
from ledgermq.audit.spark.cluster.cluster_sink import producer_name
from ledgermq.audit.spark.cluster.cluster_source import limited, message_schema, refuse_ahead, split
from ledgermq.client.native.consumers.positions import Place

QUEUES = st.dictionaries(
    st.builds(Place, st.sampled_from(["g1", "g2"]), st.integers(0, 3)),
    st.integers(0, 50),
    max_size=6,
)


def test_a_write_of_one_name_into_two_topics_is_two_writes() -> None:
    """Names belong to a broker group, not to a topic: what one topic has says nothing of the
    other."""
    topics = [("a", ""), ("b", ""), ("a", "n"), ("b", "n")]
    names = {
        producer_name(target_of({"topic": topic, "namespace": namespace}), "daily", partition)
        for topic, namespace in topics
        for partition in (0, 1)
    }
    assert len(names) == 2 * len(topics)


@given(QUEUES)
def test_offsets_are_written_and_read(queues: dict[Place, int]) -> None:
    """As a checkpoint holds them."""
    assert queues_of(places_of(queues)) == queues


@given(QUEUES, QUEUES, st.none() | st.integers(1, 20))
def test_partitions_cover_a_range_once(
    begins: dict[Place, int], ends: dict[Place, int], most: int | None
) -> None:
    """Every message from begin to end of every queue is in exactly one partition of limited size; a
    new queue begins at 0."""
    found = [
        (Place(one.broker_group, one.queue), offset)
        for one in split(begins, ends, most)
        for offset in range(one.first, one.end)
    ]
    assert sorted(found, key=str) == sorted(
        (
            (queue, offset)
            for queue, end in ends.items()
            for offset in range(begins.get(queue, 0), end)
        ),
        key=str,
    )
    assert all(
        one.first < one.end and one.end - one.first <= (most or 1 << 20)
        for one in split(begins, ends, most)
    )


@given(QUEUES, QUEUES, st.none() | st.integers(1, 60))
def test_a_limited_batch_goes_on_and_never_back(
    begins: dict[Place, int], ends: dict[Place, int], most: int | None
) -> None:
    """A batch has exactly the limit of messages while there are more, otherwise all of them, and no
    queue moves back or beyond its end."""
    reached = limited(begins, ends, most)
    total = sum(max(0, end - begins.get(queue, 0)) for queue, end in ends.items())
    taken = sum(offset - begins.get(queue, 0) for queue, offset in reached.items())
    assert taken == (total if most is None else min(total, most))
    assert reached.keys() == begins.keys() | ends.keys()
    for queue, offset in reached.items():
        assert begins.get(queue, 0) <= offset <= max(begins.get(queue, 0), ends.get(queue, 0))


@given(QUEUES, QUEUES)
def test_a_checkpoint_that_is_ahead_of_the_log_is_refused(
    begins: dict[Place, int], ends: dict[Place, int]
) -> None:
    """A queue that the log does not have now says nothing; neither does one that the checkpoint
    does not know yet."""
    ahead = [queue for queue, end in ends.items() if queue in begins and begins[queue] > end]
    if ahead:
        with pytest.raises(
            ValueError,
            match=f"queue {min(ahead).queue} of broker group {min(ahead).broker_group} .* restored",
        ):
            refuse_ahead(begins, ends)
    else:
        refuse_ahead(begins, ends)


def test_options() -> None:
    """Wrong options are named; a secret is in no text."""
    target = target_of({"endpoints": "h:1", "topic": "t", "accessKey": "me", "secretKey": "hush"})
    assert (target.topic, target.access_key) == ("t", "me") and "hush" not in repr(target)
    assert time_ms("1700000000123") == 1700000000123 and time_ms("2026-01-01T00:00:00") == time_ms(
        "2026-01-01T01:00:00+01:00"
    )
    for wrong in (
        lambda: target_of({"endpoints": "h:1"}),
        lambda: flag_of({"tls": "maybe"}, "tls", False),
        lambda: count_of({"n": "0"}, "n"),
        lambda: time_ms("yesterday"),
        lambda: message_schema({"columns": "body,colour"}),
    ):
        with pytest.raises(ValueError, match=r"topic|tls|option n|yesterday|colour"):
            wrong()
    assert count_of({"maxmessagesperpartition": "7"}, "maxMessagesPerPartition") == 7, (
        "Spark may keep options in lower case"
    )
    assert message_schema({"columns": "body, offset"}) == "`body` binary, `offset` bigint"
