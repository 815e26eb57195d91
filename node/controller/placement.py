"""Finds the nodes that may have a replica of a broker group. Uses the group's own log where this
node has it, otherwise the controller's placement and the configuration. The result says which nodes
to contact; only the log decides which are members."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ledgermq.node.broker.calls.group_view import GroupView


class Placement(Mapping[str, Sequence[str]]):
    """Broker group → nodes, evaluated at every access."""

    def __init__(
        self,
        configured: Mapping[str, Sequence[str]],
        placed: Callable[[], Mapping[str, Sequence[str]]],
        views: Mapping[str, GroupView],
    ) -> None:
        self._configured = configured
        self._placed = placed
        self._views = views

    def __getitem__(self, group: str) -> Sequence[str]:
        view = self._views.get(group)
        if view is not None and view.members is not None:
            return view.members.nodes
        placed = self._placed()
        if group not in self._configured and group not in placed:
            raise KeyError(group)
        return tuple(dict.fromkeys((*placed.get(group, ()), *self._configured.get(group, ()))))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._configured, *self._placed())))

    def __len__(self) -> int:
        return sum(1 for _ in self)
