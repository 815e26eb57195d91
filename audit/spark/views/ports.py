"""The port of a view: its columns, the tasks for a table of it, and how one task becomes rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.spark.views.view import Batch, Share
from ledgermq.audit.spark.views.wanted import Wanted


class View(Protocol):
    """One view."""

    columns: Mapping[str, str]
    """Name and Spark type of every column."""
    bounds: Mapping[str, str]
    """What the values of a column bound (`wanted`): filters on these reduce what is read."""
    kinds: frozenset[str]
    """What options may bound."""

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        """The tasks for one replica; parts of files that cannot give a row are not read. Runs on
        the driver."""
        ...

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        """The rows of one task. Runs in a worker."""
        ...
