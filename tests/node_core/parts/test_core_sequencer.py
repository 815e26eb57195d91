"""Queue offsets of a batch: in columns and one by one they are the same, dense for every queue
(I6)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.parts.sends.sequencer import Sequencer
from ledgermq.proto.types import UnsealedBatch

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 7, 40_000])), min_size=1, max_size=80
)


@given(ROWS, st.integers(1, 3))
def test_columns_give_every_message_the_next_offset_of_its_queue(
    rows: list[tuple[int, int]], topics: int
) -> None:
    """Whether there is one topic or several, one queue or many, with short numbers or long ones."""
    rows = [(topic % topics, queue) for topic, queue in rows]
    n = len(rows)
    topic_of, queues = (
        np.array([t for t, _ in rows], np.int32),
        np.array([q for _, q in rows], np.int32),
    )
    none = np.zeros(n, np.int64)
    batch = UnsealedBatch(bytearray(), none, queues, ("a", "b", "c")[:topics], topic_of, queues)
    sequencer = Sequencer(lambda topic, queue: 100 * ord(topic) + queue)
    each, after_each = sequencer._assign_each(batch)
    columns, after_columns = sequencer._assign_columns(batch)
    assert columns.tolist() == each.tolist() and after_columns == after_each
    assert all(type(number) is int for number in after_columns.values())
