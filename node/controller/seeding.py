"""Writes the first metadata of a cluster whose data existed before it: the topics and consumer
groups of an imported store.

Every node gets the same journal. It starts with the first voters, as that of any quorum does, and
continues with the commands that an operator would have given. All entries count as committed.
`metadata.py` defines what the commands mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ledgermq.node.controller import metadata, voters
from ledgermq.node.controller.journal import DEFAULT_FILE_BYTES, Journal
from ledgermq.node.controller.quorum import COMMAND_TYPE
from ledgermq.node.controller.state import Json, State
from ledgermq.proto.levels import FIRST_LEVEL, LEVEL_MAX
from ledgermq.proto.names import is_dead_letter_topic
from ledgermq.proto.records.group_config import group_fields
from ledgermq.proto.types import GroupConfig, TopicConfig
from ledgermq.storage.files.ports import Disk


def commands_for(
    group: str,
    replicas: Sequence[str],
    nodes: Sequence[str],
    topics: Sequence[TopicConfig],
    consumers: Sequence[GroupConfig],
) -> list[Json]:
    """The commands that create a cluster of these nodes with one broker group, these topics and
    these consumer groups."""
    placed = {group: sorted(replicas)}
    made: list[Json] = [
        {"op": "raise-level", "level": level} for level in range(FIRST_LEVEL + 1, LEVEL_MAX + 1)
    ]
    made.append(
        {
            "op": "set-cluster",
            "nodes": {node: {} for node in sorted(nodes)},
            "broker_groups": placed,
        }
    )
    for topic in topics:
        key = {"ns": topic.namespace, "name": topic.name}
        if is_dead_letter_topic(topic.name):
            made.append({"op": "adopt-topic", **key, "broker_group": group})
        else:
            settings = {
                "kind": topic.kind.value,
                "permission": topic.permission.value,
                "queues": topic.queues,
            }
            made.append({"op": "create-topic", **key, **settings})
    made += [{"op": "create-group", **group_fields(consumer)} for consumer in consumers]
    return made


def state_after(commands: Sequence[Json]) -> State:
    """The state after these commands. Raises ValueError if a command is refused."""
    state = State()
    for command in commands:
        state, outcome = metadata.apply(state, command)
        if outcome.detail:
            raise ValueError(outcome.detail)
    return state


def write_journal(
    disk: Disk, directory: str, nodes: Sequence[str], commands: Sequence[Json]
) -> None:
    """Write the journal of one node into a directory that has none. Durable on return. Raises
    NoSpace, OSError."""
    disk.mkdirs(directory)
    lines = [
        COMMAND_TYPE + json.dumps(command, separators=(",", ":")).encode("ascii")
        for command in commands
    ]
    room = max(DEFAULT_FILE_BYTES, 4 * sum(map(len, lines)))
    journal = Journal(disk, directory, file_bytes=room)
    journal.add(voters.encode(tuple(sorted(nodes))), 1, 0)
    for index, line in enumerate(lines, 2):
        journal.add(line, index, 0)
    journal.setRaftCommitIndex(len(lines) + 1)
    journal.mark()
    journal._destroy()
