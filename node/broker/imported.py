"""The initial snapshot of an imported log: the state before its first entry.

An imported log begins like a trimmed one (format §4.8). No node has the earlier entries, so this
snapshot says where the queues begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.machine import Machine
from ledgermq.proto.entries.layout import Columns
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.queues.consume_queue import Minimum, QueueUnits


class _Begins:
    """Empty queues that begin at these offsets."""

    def __init__(self, minimums: Mapping[str, Mapping[int, Minimum]]) -> None:
        self._minimums = {topic: dict(queues) for topic, queues in minimums.items()}

    def next_offset(self, topic: str, queue: int) -> int:
        return self.min_offset(topic, queue)

    def ends(self, topic: str, queues: int) -> tuple[int, ...]:
        return tuple([self.min_offset(topic, queue) for queue in range(queues)])

    def next_offsets(self) -> dict[str, dict[int, int]]:
        return {
            topic: {queue: low for queue, (low, _) in queues.items()}
            for topic, queues in self._minimums.items()
        }

    def min_offset(self, topic: str, queue: int) -> int:
        return self._minimums.get(topic, {}).get(queue, (0, None))[0]

    def minimums(self) -> dict[str, dict[int, Minimum]]:
        return self._minimums

    def raise_minimums(self, begin_pos: int) -> object:
        raise AssertionError("nothing is applied here")

    def forget(self, topic: str, queue: int) -> None:
        raise AssertionError("nothing is applied here")

    def begin_at(self, topic: str, queue: int, offset: int) -> None:
        raise AssertionError("nothing is applied here")

    def append(self, columns: Columns) -> None:
        raise AssertionError("nothing is applied here")

    def read(self, topic: str, queue: int, first: int, count: int) -> QueueUnits:
        raise AssertionError("nothing is applied here")


def first_snapshot(
    log_id: str,
    begin: Begin,
    end_pos: int,
    voters: Sequence[str],
    created_ms: int,
    minimums: Mapping[str, Mapping[int, Minimum]],
) -> dict[str, Any]:
    """The snapshot as of the entry before `begin`: the membership record with which every group
    begins, ending at `end_pos`."""
    machine = Machine(_Begins(minimums), lambda _position, _size: b"")
    machine.members = GroupMembers(0, tuple(sorted(voters)))
    machine.applied_index, machine.applied_term = begin.index - 1, begin.term
    machine.applied_end_pos, machine.chain_crc, machine.store_ms = end_pos, begin.chain, created_ms
    retained = machine.retained
    retained.begin_index, retained.begin_pos = begin.index, begin.pos
    retained.begin_term, retained.begin_chain = begin.term, begin.chain
    return machine.export(log_id)
