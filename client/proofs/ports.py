"""The ports of a witness: the cluster as it asks it, and the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group: the nodes that hold it, and its commit index as its leader says."""

    name: str
    nodes: tuple[str, ...]
    commit_index: int


class Cluster(Protocol):
    """The cluster as the witness asks it."""

    def groups(self) -> Sequence[Group]:
        """The broker groups. Raises Unreachable if no node answers."""

    def checkpoint(self, broker_group: str, node: str) -> str:
        """The note that a node shows. Raises Refused (NOT_FOUND: no file of the log is sealed) and
        Unreachable."""

    def paths(self, broker_group: str, old_size: int, new_size: int) -> Sequence[tuple[bytes, ...]]:
        """The consistency paths that nodes give, at least one. Raises Refused and Unreachable if
        none does."""


class Clock(Protocol):
    """Seconds since 1970, and waiting."""

    def now(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...
