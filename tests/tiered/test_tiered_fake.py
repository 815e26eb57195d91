"""The fake store of the tests keeps the promises of the port."""

from __future__ import annotations

import pytest

from tests.tiered.fake_store import FakeStore
from tests.tiered.store_conformance import StoreConformance


class TestFake(StoreConformance):
    @pytest.fixture
    def store(self) -> FakeStore:
        return FakeStore()
