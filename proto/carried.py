"""Exceptions that survive a copy and the way into another process, as process pools, Dask and Spark
send them."""

from __future__ import annotations

import copyreg
from typing import Any


class Carried(Exception):
    """Restored from its text and its attributes. By default Python calls the class again with the
    text as its only argument, which fails for a class with other arguments; a pool that cannot
    restore an error of a worker is broken as a whole."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]
