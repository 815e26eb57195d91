"""The newest entries as they were appended: whatever is kept is what the log says, and nothing that
was cut off comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.proto.types import Range
from ledgermq.storage.log import hot_tail
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.hot_tail import HotTail
from tests.example_counts import examples
from tests.storage.log_material import HOST, make_batch, new_log


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_tail, "LEAST_BYTES", 500)
    monkeypatch.setattr(hot_tail, "MOST_BYTES", 4000)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("cut"), st.integers(0, 20)),
    st.tuples(st.just("commit"), st.integers(0, 20)),
)


def check(log: EntryLog, found: Range, index: int, max_bytes: int) -> None:
    said = log.read(index, len(found.data))
    assert (found.first_index, found.last_index, found.term, found.pos) == (
        index,
        said.last_index,
        said.term,
        said.pos,
    )
    assert (found.prev_chain, found.last_chain, bytes(found.data)) == (
        said.prev_chain,
        said.last_chain,
        bytes(said.data),
    )
    assert (
        found.starts.tolist() == said.starts.tolist()
        and found.sizes.tolist() == said.sizes.tolist()
    )
    assert len(found.data) <= max_bytes or len(found) == 1


@settings(max_examples=examples(40))
@given(st.lists(STEPS, max_size=12), st.integers(1, 3000))
def test_hot_tail_equals_the_log(steps: list[tuple[str, int]], max_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log, kept, committed = new_log(Path(directory) / "log"), HotTail(), -1
        for what, count in steps:
            if what == "append":
                first = log.end_index + 1
                for entries in log.append_leader(
                    1, make_batch(count, first=first), np.arange(first, first + count), 5, HOST
                ):
                    kept.appended(entries)
            elif what == "cut" and committed < log.end_index:
                kept.cut()
                log.truncate_from(max(committed + 1, log.end_index - count, 0))
            elif what == "commit":
                committed = min(log.end_index, committed + count)
                kept.end_turn(committed)
            for index in range(log.end_index + 2):
                if (found := kept.read(index, max_bytes)) is not None:
                    check(log, found, index, max_bytes)
            assert (
                sum(len(entries.data) for entries in kept._long) <= hot_tail.MOST_BYTES
                or len(kept._long) == 1
            )
        log.close()


def test_hot_tail_keeps_ranges_until_a_turn_after_commit(tmp_path: Path) -> None:
    """A range is kept from its append until a turn after its commit, and no more than there may be:
    of short ones the last few."""
    log, kept = new_log(tmp_path / "log"), HotTail()

    def append(count: int) -> int:
        first = log.end_index + 1
        for entries in log.append_leader(
            1, make_batch(count, first=first), np.arange(first, first + count), 5, HOST
        ):
            kept.appended(entries)
        return first

    short = [append(1) for _ in range(hot_tail.SHORT_RANGES + 1)]
    assert kept.read(short[0], 1 << 20) is None and all(
        kept.read(first, 1 << 20) for first in short[1:]
    )
    kept.end_turn(short[1])
    kept.end_turn(short[1])
    assert kept.read(short[1], 1 << 20) is None and kept.read(short[2], 1 << 20) is not None
    long = append(5)
    found = kept.read(long + 2, 1 << 20)
    assert found is not None and found.last_index == long + 4
    kept.end_turn(long + 4)
    assert kept.read(long, 1 << 20) is not None
    kept.end_turn(long + 4)
    assert kept.read(long, 1 << 20) is None
    firsts = [append(5) for _ in range(6)]
    assert kept.read(firsts[0], 1) is None and kept.read(firsts[-1] + 4, 1) is not None
    kept.cut()
    assert not any(kept.read(first, 1 << 20) for first in [*short, *firsts])
    log.close()
