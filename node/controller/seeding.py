"""The metadata that a cluster begins with when its data were there before it: topics and consumer groups of an imported store.

Every node gets the same journal, which begins as a quorum's does, with the first voters, and goes on with commands as if an operator had
given them; all of it counts as committed. What the commands mean is `metadata.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ledgermq.node.controller import metadata, voters
from ledgermq.node.controller.journal import DEFAULT_FILE_BYTES, Journal
from ledgermq.node.controller.quorum import COMMAND_TYPE
from ledgermq.node.controller.state import Json, State
from ledgermq.proto.group_config import group_fields
from ledgermq.proto.names import is_dead_letter_topic
from ledgermq.proto.types import GroupConfig, TopicConfig
from ledgermq.storage.disk import Disk


def commands_for(
    group: str, replicas: Sequence[str], nodes: Sequence[str], topics: Sequence[TopicConfig], consumers: Sequence[GroupConfig]
) -> list[Json]:
    """The commands that lead to a cluster of these nodes with one broker group, these topics and consumer groups."""
    placed = {group: sorted(replicas)}
    made: list[Json] = [{"op": "set-cluster", "nodes": {node: {} for node in sorted(nodes)}, "broker_groups": placed}]
    for topic in topics:
        key = {"ns": topic.namespace, "name": topic.name}
        if is_dead_letter_topic(topic.name):
            made.append({"op": "adopt-topic", **key, "broker_group": group})
        else:
            settings = {"kind": topic.kind.value, "permission": topic.permission.value, "queues": topic.queues}
            made.append({"op": "create-topic", **key, **settings})
    made += [{"op": "create-group", **group_fields(consumer)} for consumer in consumers]
    return made


def state_after(commands: Sequence[Json]) -> State:
    """What they lead to. Raises ValueError for a command that is refused."""
    state = State()
    for command in commands:
        state, outcome = metadata.apply(state, command)
        if outcome.detail:
            raise ValueError(outcome.detail)
    return state


def write_journal(disk: Disk, directory: str, nodes: Sequence[str], commands: Sequence[Json]) -> None:
    """The journal of one node, in a directory without one. Durable when this returns. Raises NoSpace, OSError."""
    disk.mkdirs(directory)
    lines = [COMMAND_TYPE + json.dumps(command, separators=(",", ":")).encode("ascii") for command in commands]
    room = max(DEFAULT_FILE_BYTES, 4 * sum(map(len, lines)))
    journal = Journal(disk, directory, file_bytes=room)
    journal.add(voters.encode(tuple(sorted(nodes))), 1, 0)
    for index, line in enumerate(lines, 2):
        journal.add(line, index, 0)
    journal.setRaftCommitIndex(len(lines) + 1)
    journal.mark()
    journal._destroy()
