"""A fixture for tests of the entry layout: all ways of handling entries, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proto.ways import ARRAYS, LISTS, NOT_BUILT, few_entries

WAYS = [
    pytest.param((ARRAYS, False), id="arrays"),
    pytest.param((LISTS, False), id="lists"),
    pytest.param((ARRAYS, True), id="kernels", marks=NOT_BUILT),
]


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test of the module runs with arrays only, with lists only, and with kernels."""
    limit, native = request.param
    with few_entries(limit, native=native):
        yield
