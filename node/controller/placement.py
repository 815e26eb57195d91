"""Where replicas of a broker group may be found: as the group's own log says where it is known here, else as the controller places them and
as the cluster was configured. A hint for whom to ask; who counts is decided in the log alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ledgermq.node.broker.calls.group_view import GroupView


class Placement(Mapping[str, Sequence[str]]):
    """Broker group → nodes, as of the moment it is asked."""

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
