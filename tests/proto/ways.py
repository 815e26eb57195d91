"""The ways of handling entries, each for batches and ranges of any length: few and many of them in
Python (`layout.FEW_ENTRIES`), and the compiled kernels (`kernels.NATIVE`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ledgermq.proto import kernels
from ledgermq.proto.entries import layout
from ledgermq.proto.types import Range, UnsealedBatch

ARRAYS, LISTS = 0, 1 << 30
"""Limits for `few_entries`: everything goes one way."""


NOT_BUILT = pytest.mark.skipif(not kernels.NATIVE, reason=kernels.described())


@contextmanager
def pure() -> Iterator[None]:
    """Without compiled kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "NATIVE", False)
        yield


@contextmanager
def few_entries(limit: int, *, native: bool = False) -> Iterator[None]:
    """Up to this many entries count as few, in every module that asks; with `native` the kernels
    are used, where they are built."""
    usual = layout.FEW_ENTRIES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "NATIVE", native and kernels.NATIVE)
        for name, module in list(sys.modules.items()):
            if name.startswith("ledgermq.") and vars(module).get("FEW_ENTRIES") == usual:
                patch.setattr(module, "FEW_ENTRIES", limit)
        assert limit == layout.FEW_ENTRIES
        yield


def told(value: Range | UnsealedBatch, *names: str) -> list[object]:
    """Fields of a batch or a range for comparisons: lists as they are, arrays with their types."""
    found = [getattr(value, name) for name in names]
    return [(item.dtype.str, item.tolist()) if hasattr(item, "dtype") else item for item in found]


def told_range(entries: Range) -> list[object]:
    """All of a range, in both descriptions."""
    names = (
        "first_index",
        "last_index",
        "term",
        "pos",
        "prev_chain",
        "last_chain",
        "starts",
        "sizes",
        "edges",
    )
    return [bytes(entries.data), *told(entries, *names)]
