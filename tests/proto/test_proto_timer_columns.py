"""Fire times in the place of tags codes: the dispatcher's columns, one by one and in vectors, and
the auditor's own reading agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.reading.columns import fire_time as audited
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.entries.layout import fire_time, java_hash, record_columns
from ledgermq.proto.entries.properties import Fields, edited, encode
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.types import Draft

pytestmark = pytest.mark.usefixtures("way")
TIMES = st.integers(1_000_000_000_000, 9_999_999_999_999) | st.integers(0, 1 << 50)


@given(
    st.lists(
        st.tuples(st.booleans(), TIMES, st.sampled_from(["", "a", "ü"])), min_size=1, max_size=48
    )
)
def test_a_message_on_the_timer_topic_has_its_fire_time_for_a_code(
    rows: list[tuple[bool, int, str]],
) -> None:
    """Few entries and many, mixed with other topics whose codes stay those of their tags, whatever
    else the properties hold."""
    drafts = []
    for waits, fire_ms, tag in rows:
        properties = encode(
            Fields(message_id="i", tag=tag, user={"TIMER_OUT_MS": "7", "k": "TIMER_OUT_MS"})
        )
        if waits:
            properties = edited(properties, {"REAL_TOPIC": "t", "TIMER_OUT_MS": str(fire_ms)})
        drafts.append(Draft(TIMER_TOPIC if waits else "t", 0, b"b", properties, 1))
    batch = encode_entries(drafts)
    place = {"first_index": 0, "term": 1, "pos": 0, "prev_chain": 0}
    seal(batch, queue_offsets=np.arange(len(drafts)), store_ms=1, store_host=bytes(8), **place)
    columns = record_columns(make_range(batch, 0, len(batch), **place))
    expected = [fire_ms if waits else java_hash(tag) if tag else 0 for waits, fire_ms, tag in rows]
    assert columns.tags_codes.tolist() == expected
    for draft, (waits, fire_ms, _) in zip(drafts, rows, strict=True):
        if waits:
            assert fire_time(draft.properties) == audited(draft.properties) == fire_ms


@pytest.mark.parametrize(
    "properties",
    [b"", b"TAGS\x01a\x02", b"a\x01b\x02TIMER_OUT_MS\x01x\x02", b"a\x01b\x02TIMER_OUT_MS\x011"],
)
def test_a_message_without_its_fire_time_is_told(properties: bytes) -> None:
    """The dispatcher stops; the auditor names a code that no queue holds."""
    with pytest.raises(ValueError, match="fire time"):
        fire_time(properties)
    assert audited(properties) == -1
